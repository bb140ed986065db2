/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_fixture.h - blocks in two directories and spaces, and their
 * snapshot.
 */
#ifndef UCM_TESTS_SNAPSHOT_FIXTURE_H
#define UCM_TESTS_SNAPSHOT_FIXTURE_H

#include "fs/index/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "tests/unit/store_fixture.h"

#define PATH "$/a/.ucmfs/" UCM_SNAPSHOT_NAME
#define NUM 40u

static struct fx_file files[NUM], other;

static inline bool in_a(unsigned i)
{
	return i % 4 < 2;
}

static inline bool in_default(unsigned i)
{
	return i % 8 < 4;
}

static inline const char *folder_of(unsigned i)
{
	return in_default(i) ? "blocks" : "spaces/s";
}

static bool single; /* a directory, whose calls have an order */

static inline void setup(void)
{
	fx_setup();
	single = false;
	/* the buckets of a test are as old as the test */
	ucm_snapshot_grain_ns = -INT64_C(3600000000000);
}

static inline void count_opens(void)
{
	fx_fail_on("open", ".bin", UINT32_MAX, -EIO, false);
}

/* Spaces have their numbers from the order of a listing. */
static inline void know_spaces(void)
{
	struct ucm_space *s = ucm_namespace_find(&fx_set->names, "s");

	for (unsigned i = 0; i < NUM; i++)
		files[i].key.space = in_default(i) ? 0 : s->number;
}

static inline void start(void)
{
	fx_open();
	know_spaces();
	fx_start();
}

/* Blocks in two directories and two spaces, and a clean end. */
static inline void prepare(void)
{
	fx_configure(single ? "$/a" : "$/a,$/b");
	for (unsigned i = 0; i < NUM; i++) {
		fx_block(&files[i], i, i % 3 ? FX_PAGED : FX_PACKED);
		fx_plant(single || in_a(i) ? "$/a" : "$/b", folder_of(i),
			 &files[i]);
	}
	fx_mkdirs(fx_path(single ? "$/a/spaces/empty" : "$/b/spaces/empty"));
	fx_block(&other, 1000, FX_PAGED);
	start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), NUM);
	fx_close();
	ck_assert(fx_exists(fx_path(PATH)));
	fx_clear_log();
}

static inline void all_are_served(void)
{
	for (unsigned i = 0; i < NUM; i++)
		fx_serves(&files[i]);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), NUM);
}

static char bytes[1 << 20];
static size_t len;

static inline ssize_t read_taken(const struct ucm_bytes *from, void *to,
				 size_t want, uint64_t at)
{
	(void)from;
	if (at >= len)
		return 0;
	if (want > len - at)
		want = len - at;
	memcpy(to, bytes + at, want);
	return (ssize_t)want;
}

static const struct ucm_bytes taken = { .read = read_taken };

static inline void take(const char *path)
{
	int fd = fx_open_path(fx_path("%s", path), O_RDONLY);
	ssize_t got = fx_pread(fd, bytes, sizeof(bytes), 0);

	ck_assert_int_gt(got, 0);
	len = (size_t)got;
	fx_close_file(fd);
}

#endif
