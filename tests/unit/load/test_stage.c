/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_stage.c - how much staging memory a loader has, and when.
 */
#include <config.h>

#include "gpu/load/engine/stage.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/load_fixture.h"

#define NUM 24
#define MIB ((size_t)1 << 20)

static struct lf_cache cache;
static struct ucm_geometry geometry; /* 1 MiB a block */

static void setup(void)
{
	fx_setup();
	lf_tier("$/tier");
	geometry = lf_geometry_of(4, 16, 8, 512);
	lf_cache_open(&cache, &geometry, NUM);
	for (unsigned i = 0; i < NUM; i++)
		lf_plant("$/tier", &geometry, i);
}

static void teardown(void)
{
	lf_cache_close(&cache);
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* What it says of itself: MiB that are there, and that may be. */
static size_t staged(struct ucm_loader *loader, size_t *most_out)
{
	char text[256];
	size_t there, most = 0;
	const char *at;

	ucm_loader_describe(loader, text, sizeof(text));
	at = strstr(text, "threads, ");
	ck_assert_msg(at && sscanf(at, "threads, %zu of %zu MiB", &there,
				   &most) == 2, "%s", text);
	if (most_out)
		*most_out = most;
	return there;
}

/* Of this process, by its drivers and rings: KiB. */
static size_t pinned_kib(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[128];
	size_t kib = 0;

	ck_assert_ptr_nonnull(status);
	while (fgets(line, sizeof(line), status))
		sscanf(line, "VmPin: %zu", &kib);
	fclose(status);
	return kib;
}

static void check_pages(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
}

UNIT_TEST(little_is_pinned_before_it_is_used)
{
	const struct ucm_loader_options options = { .threads = 2,
						    .staging_bytes = 256 * MIB };
	struct ucm_loader *loader;
	size_t most, before;

	lf_limits.window_bytes = 24 * MIB;
	loader = lf_loader("$/tier", &cache, &options);
	before = pinned_kib();
	ck_assert_uint_le(staged(loader, &most), 4);
	ck_assert_uint_eq(most, 256);
	ck_assert_uint_le(before, 4 * 1024);
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	check_pages(NUM);
	ck_assert_uint_gt(staged(loader, NULL), 4);
	ck_assert_uint_le(staged(loader, NULL), 64);
	if (before) /* it could be pinned at all */
		ck_assert_uint_gt(pinned_kib(), before);
	ucm_loader_close(loader);
}

/* So much may be locked, whoever we are. */
static void limit_locked(uint64_t bytes)
{
	const struct rlimit limit = { bytes, bytes };
	struct __user_cap_header_struct header = {
		.version = _LINUX_CAPABILITY_VERSION_3
	};
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];

	ck_assert_int_eq(syscall(SYS_capget, &header, caps), 0);
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	ck_assert_int_eq(syscall(SYS_capset, &header, caps), 0);
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* Since the last call: nothing more is logged of it. */
static bool logged_again(const char *text)
{
	bool found = fx_logged(text);

	fx_clear_log();
	return found;
}

/* What cannot be pinned is used all the same, and told of once. */
UNIT_TEST(a_limit_of_locked_memory_fails_no_load)
{
	const struct ucm_loader_options options = { .threads = 2,
						    .staging_bytes = 256 * MIB };
	struct ucm_loader *loader;
	char text[256];

	limit_locked(5 * MIB);
	lf_limits.window_bytes = 24 * MIB;
	loader = lf_loader("$/tier", &cache, &options);
	ucm_loader_describe(loader, text, sizeof(text));
	for (unsigned i = 0; i < 2; i++) {
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
		check_pages(NUM);
		ck_assert_int_eq(logged_again("with io_uring: ulimit -l"),
				 !i && strstr(text, "registered buffers"));
	}
	ck_assert_uint_gt(staged(loader, NULL), 5);
	ck_assert_uint_le(pinned_kib(), 5 * 1024);
	ucm_loader_close(loader);
}

/* ---- the memory of one engine ---- */

static struct ucm_shared shared;
static struct ucm_engine engine;
static struct ucm_copy_ops ops; /* pages are the host's, but it may refuse */
static size_t accepted, most;

static int take_some(struct ucm_copy *copy, void *memory, size_t len)
{
	(void)copy, (void)memory;
	if (accepted + len > most)
		return -ENOMEM;
	accepted += len;
	return 0;
}

static void give_up(struct ucm_copy *copy, void *memory)
{
	(void)copy, (void)memory;
}

static void open_engine(size_t staging_bytes, size_t will_accept)
{
	struct ucm_error error = { "" };

	ops.register_staging = take_some;
	ops.unregister_staging = give_up;
	accepted = 0;
	most = will_accept;
	shared = (struct ucm_shared){ .copy_ops = &ops,
				      .node = -1,
				      .staging_bytes = staging_bytes };
	engine = (struct ucm_engine){ .shared = &shared,
				      .pages_are_host = true };
	ck_assert_int_eq(ucm_ring_open(lf_io(UCM_IO_AUTO), 8, 1, &engine.ring),
			 0);
	ck_assert_msg(!ucm_stage_open(&engine, &error), "%s", error.text);
}

static void close_engine(void)
{
	ucm_ring_close(engine.ring);
	ucm_staging_close(engine.staging);
}

/* A driver that pins no more: those that wait go on with what there is. */
UNIT_TEST(a_back_end_that_takes_no_more_is_told_of_once)
{
	struct ucm_slot slots[NUM], none;
	unsigned num = 0;

	open_engine(64 * MIB, 5 * MIB);
	for (unsigned i = 0; i < 2; i++) {
		while (!ucm_staging_get(engine.staging, MIB, &slots[num]))
			num++;
		ck_assert_uint_ge(num, 4);
		ck_assert_int_eq(ucm_staging_get(engine.staging, MIB, &none),
				 -EAGAIN);
		while (num)
			ucm_staging_put(engine.staging, &slots[--num]);
		ck_assert_int_eq(logged_again("going on with"), !i);
	}
	close_engine();
}

UNIT_TEST(a_back_end_that_takes_nothing_is_told_at_open)
{
	struct ucm_error error = { "" };

	open_engine(64 * MIB, SIZE_MAX);
	close_engine();
	engine = (struct ucm_engine){ .shared = &shared };
	most = 0;
	ck_assert_int_eq(ucm_ring_open(UCM_IO_THREADS, 8, 1, &engine.ring), 0);
	ck_assert_int_eq(ucm_stage_open(&engine, &error), -ENOMEM);
	ck_assert_str_ne(error.text, "");
	ucm_ring_close(engine.ring);
}
