/* SPDX-License-Identifier: Apache-2.0 */
/* test_store.c - finding, reading and removing blocks in several tiers. */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fs/store/find/find.h"
#include "tests/unit/memory_medium.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static struct fx_file file, other;
static struct ucm_entry entry;
static ucm_ref ref;

static void find(const struct fx_file *wanted)
{
	ck_assert_int_eq(ucm_store_find(fx_set, &wanted->key, &entry, &ref), 0);
}

/* ---- opening ---- */

static const struct {
	const char *source, *says;
} wrong_sources[] = {
	{ "$/a,$/a", "given twice" },	 { "$/a:$/b/../a", "given twice" },
	{ "$/a:$/a/in", "is inside" }, { "$/a/in,$/a", "is inside" },
	{ "$/none", "No such file" },	 { "$/a:$/file", "Not a directory" },
};

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(wrong_directories_are_named_and_none_is_kept,
	  .rows = NUM_ROWS(wrong_sources))
{
	struct ucm_error error = { "" };
	struct ucm_store *set = NULL;

	if (!fx_needs_directory("nothing lies in another medium"))
		return;
	fx_mkdirs(fx_path("$/a/in"));
	fx_mkdirs(fx_path("$/b"));
	fx_put(fx_path("$/file"), "", 0);
	fx_config_begin();
	ck_assert_int_eq(
		ucm_config_source(&fx_config,
				  fx_path("%s", wrong_sources[_i].source),
				  &error),
		0);
	ck_assert_int_lt(ucm_store_open(&fx_config, &set, &error), 0);
	ck_assert_msg(strstr(error.text, wrong_sources[_i].says) != NULL, "%s",
		      error.text);
	ck_assert_ptr_null(set);
	fx_store("$/a"); /* nothing is locked */
}

/* "/a" and "/ab" begin alike and are two. */
UNIT_TEST(directories_with_a_common_beginning_are_two)
{
	fx_store("$/a,$/ab");
	ck_assert_uint_eq(fx_set->dirs.num, 2);
}

static void open_again(void *arg)
{
	struct ucm_error error = { "" };
	struct ucm_store *set;

	(void)arg;
	ck_assert_int_lt(ucm_store_open(&fx_config, &set, &error), 0);
	ck_assert_ptr_nonnull(strstr(error.text, "in use by another"));
}

UNIT_TEST(a_second_daemon_is_refused)
{
	if (!fx_needs_directory("only a directory is locked"))
		return;
	fx_configure("$/a");
	fx_open();
	fx_in_child(open_again, NULL);
}

UNIT_TEST(closing_nothing_is_harmless)
{
	ucm_store_close(NULL);
}

/* ---- finding and reading ---- */

UNIT_TEST(lookups_are_counted)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fx_misses(&file);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
	ck_assert_uint_eq(fx_set->stats.lookups, 2);
	ck_assert_uint_eq(fx_set->stats.misses, 1);
	ck_assert_uint_eq(fx_set->stats.hits, 1);
	ck_assert_uint_eq(fx_set->stats.opens, 1);
	ck_assert_uint_eq(fx_set->stats.probes, 0);
	find(&file);
	ck_assert_uint_eq(entry.uses, 1);
	ck_assert_uint_gt(entry.atime_s, 0);
}

UNIT_TEST(an_entry_says_what_stat_says)
{
	struct stat st;
	char path[512];

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	ck_assert_int_eq(ucm_store_path(fx_set, &entry, path, sizeof(path)), 0);
	ck_assert_str_eq(path, fx_path("$/a/blocks/%s", fx_name(&file)));
	ck_assert_int_eq(ucm_store_path(fx_set, &entry, path, 10), -ERANGE);
	ck_assert_int_eq(fx_stat(fx_path("$/a/blocks/%s", fx_name(&file)), &st),
			 0);
	ck_assert_uint_eq(entry.size, (uint64_t)st.st_size);
	ck_assert_uint_eq(entry.blocks, (uint32_t)st.st_blocks);
	ck_assert_int_eq(entry.mtime_ns / 1000000000, st.st_mtim.tv_sec);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]),
			  (uint64_t)st.st_blocks * 512);
}

UNIT_TEST(what_is_young_counts_as_written)
{
	const struct {
		const char *what;
		int64_t ago; /* seconds */
		bool counts;
	} rows[] = {
		{ "just made", 0, false },
		{ "made a while ago", 30, false },
		{ "made long ago", 120, true },
	};
	struct stat st;
	uint64_t used;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	used = ucm_tier_used(&fx_set->dirs.tiers[0]);
	ck_assert_uint_gt(used, 4096);
	ck_assert_int_eq(fx_stat(fx_path("$/a/blocks/%s", fx_name(&file)), &st),
			 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct stat now = st;

		now.st_ctim.tv_sec = time(NULL) - rows[i].ago;
		now.st_blocks = 8;
		ucm_store_restat(fx_set, ref, 0, &now);
		ck_assert_msg(ucm_tier_used(&fx_set->dirs.tiers[0]) ==
				      (rows[i].counts ? 4096 : used),
			      "%s", rows[i].what);
		ucm_store_restat(fx_set, ref, 0, &st);
		ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), used);
	}
}

UNIT_TEST(a_vanished_file_is_a_miss)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	ck_assert_int_eq(fx_unlink(fx_path("$/a/blocks/%s", fx_name(&file))), 0);
	ck_assert_int_eq(fx_open_block(ref, &entry), -ENOENT);
	fx_misses(&file);
	ck_assert_int_eq(fx_open_block(ref, &entry), -ENOENT);
	ck_assert_uint_eq(fx_set->stats.vanished, 1);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 0);
}

UNIT_TEST(a_file_that_changed_its_size_is_set_aside)
{
	static const off_t sizes[] = { 0, 100, 9000 };

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	for (unsigned i = 0; i < NUM_ROWS(sizes); i++) {
		ck_assert_int_eq(fx_commit(&file), 0);
		find(&file);
		ck_assert_int_eq(
			fx_truncate(fx_path("$/a/blocks/%s", fx_name(&file)),
				 sizes[i]),
			0);
		ck_assert_int_eq(fx_open_block(ref, &entry),
				 -ENOENT);
		fx_misses(&file);
		ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/quarantine")),
				  i + 1);
	}
}

UNIT_TEST(an_open_block_stays_readable_when_it_goes)
{
	uint8_t bytes[8192];
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	fd = fx_open_block(ref, &entry);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(fx_pread(fd, bytes, sizeof(bytes), 0), 8192);
	ck_assert_mem_eq(bytes, file.bytes, 8192);
	fx_close_file(fd);
}

UNIT_TEST(a_tier_that_fails_to_open_loses_nothing)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	fx_fail("open", 1, -EIO, true);
	ck_assert_int_eq(fx_open_block(ref, &entry), -EIO);
	ck_assert_uint_eq(fx_set->dirs.io_errors, 1);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].stats.errors[EIO], 1);
	fx_serves(&file);
}

UNIT_TEST(the_header_of_a_block_can_be_asked_for)
{
	struct ucm_block block;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	file.block.flags = UCM_BLOCK_HAS_PARENT;
	file.block.parent.bytes[3] = 7;
	fx_encode(&file, true);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	ck_assert_int_eq(ucm_store_header(fx_set, ref, &block), 0);
	ck_assert_uint_eq(block.parent.bytes[3], 7);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(ucm_store_header(fx_set, ref, &block), -ENOENT);
}

/* ---- copies ---- */

static void plant_copies(void)
{
	fx_configure("fast=$/a:slow=$/b:tape=$/c");
	fx_block(&file, 1, FX_PAGED);
	fx_plant("$/a", "blocks", &file);
	fx_plant("$/b", "blocks", &file);
	fx_plant("$/c", "blocks", &file);
}

UNIT_TEST(the_loss_of_one_copy_leads_to_the_next)
{
	static const char *const dirs[] = { "$/a", "$/b", "$/c" };

	plant_copies();
	fx_open();
	fx_start();
	for (unsigned left = 3; left > 0; left--) {
		unsigned dir;

		fx_serves(&file);
		find(&file);
		dir = entry.dir;
		ck_assert_int_eq(fx_unlink(fx_path("%s/blocks/%s", dirs[dir],
						fx_name(&file))),
				 0);
		ck_assert_int_eq(fx_open_block(ref, &entry),
				 -ENOENT);
	}
	fx_misses(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 0);
}

UNIT_TEST(damage_to_one_copy_leads_to_the_next)
{
	static const char *const dirs[] = { "$/a", "$/b", "$/c" };

	plant_copies();
	fx_open();
	fx_start();
	find(&file);
	ck_assert_int_eq(fx_truncate(fx_path("%s/blocks/%s", dirs[entry.dir],
					  fx_name(&file)),
				  5),
			 0);
	ck_assert_int_eq(fx_open_block(ref, &entry), -ENOENT);
	fx_serves(&file);
}

static unsigned copies_left(void)
{
	return fx_exists(fx_path("$/a/blocks/%s", fx_name(&file))) +
	       fx_exists(fx_path("$/b/blocks/%s", fx_name(&file))) +
	       fx_exists(fx_path("$/c/blocks/%s", fx_name(&file)));
}

UNIT_TEST(a_removed_block_is_gone_from_every_tier)
{
	plant_copies();
	fx_open();
	fx_start();
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(copies_left(), 0);
	fx_misses(&file);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), -ENOENT);
	ck_assert_uint_eq(fx_set->stats.removed, 1);
}

/* Where the scan has seen all of it, two places are two removals. */
UNIT_TEST(a_block_is_removed_where_it_lies)
{
	fx_configure("fast=$/a:slow=$/b:tape=$/c");
	fx_block(&file, 1, FX_PAGED);
	fx_plant("$/b", "blocks", &file);
	fx_plant("$/c", "blocks", &file);
	fx_open();
	fx_start();
	fx_fail_on("unlink", ".bin", UINT32_MAX, -EIO, false);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(fx_calls(), 2);
	ck_assert_uint_eq(copies_left(), 0);
}

static void set_copy(struct ucm_entry *edited, void *arg)
{
	edited->copy = *(const uint8_t *)arg;
}

/* Whichever it is: the scan's threads find the second and the third in no
 * order. */
UNIT_TEST(a_lost_block_is_looked_for_in_its_second_place_first, .rows = 2)
{
	uint8_t copy = (uint8_t)(_i + 2);
	struct ucm_entry now;

	plant_copies();
	fx_open();
	fx_start();
	find(&file);
	ck_assert_uint_eq(entry.dir, 0); /* it was looked at at the opening */
	ck_assert_uint_ne(entry.copy, 0);
	ck_assert_uint_ne(entry.flags & UCM_ENTRY_DUPLICATE, 0);
	ck_assert(ucm_index_edit(fx_set->index, ref, set_copy, &copy));
	ck_assert_int_eq(fx_unlink(fx_path("$/a/blocks/%s", fx_name(&file))), 0);
	ck_assert_int_eq(fx_open_block(ref, &now), -ENOENT);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &now, &ref), 0);
	/* and then all others; it is read in the fastest of them */
	ck_assert_uint_eq(now.dir, 1);
	ck_assert_uint_eq(now.copy, 3);
}

UNIT_TEST(a_block_removed_before_the_scan_is_gone_from_every_tier)
{
	plant_copies();
	fx_open();
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(copies_left(), 0);
	fx_start();
	fx_misses(&file);
}

/* One copy vanishes; the other two must still both be found for removal. */
UNIT_TEST(a_removed_block_does_not_come_back_from_a_third_copy)
{
	plant_copies();
	fx_open();
	fx_start();
	find(&file);
	ck_assert_int_eq(fx_unlink(fx_path("%s/blocks/%s",
					entry.dir == 0	 ? "$/a"
					: entry.dir == 1 ? "$/b"
							 : "$/c",
					fx_name(&file))),
			 0);
	ck_assert_int_eq(fx_open_block(ref, &entry), -ENOENT);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(copies_left(), 0);
}

UNIT_TEST(a_remove_that_fails_leaves_the_fast_copy, .rows = 3)
{
	plant_copies();
	fx_open();
	fx_start();
	fx_fail("unlink", (unsigned)_i + 1, -EIO, true);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), -EIO);
	ck_assert(fx_exists(fx_path("$/a/blocks/%s", fx_name(&file))));
	fx_serves(&file);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(copies_left(), 0);
}

UNIT_TEST(a_block_on_a_readonly_tier_cannot_be_removed)
{
	fx_store("$/a:$/r");
	fx_close();
	fx_configure("w=$/a:r=$/r");
	fx_option("readonly", "r");
	fx_block(&file, 1, FX_PAGED);
	fx_plant("$/r", "blocks", &file);
	fx_block(&other, 2, FX_PAGED);
	fx_open();
	fx_start();
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), -EROFS);
	fx_serves(&file);
	ck_assert_int_eq(fx_commit(&other), 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &other.key), 0);
}

/* ---- attributes ---- */

UNIT_TEST(times_are_set_on_the_file_and_in_the_index)
{
	struct timespec times[2] = { { .tv_sec = 1000 },
				     { .tv_sec = 2000, .tv_nsec = 5000 } };
	struct stat st;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	ck_assert_int_eq(ucm_store_set_times(fx_set, ref, times), 0);
	find(&file);
	ck_assert_uint_eq(entry.atime_s, 1000);
	ck_assert_int_eq(entry.mtime_ns, 2000000005000);
	ck_assert_int_eq(fx_stat(fx_path("$/a/blocks/%s", fx_name(&file)), &st),
			 0);
	ck_assert_int_eq(st.st_mtim.tv_sec, 2000);
	times[0].tv_nsec = UTIME_OMIT;
	times[1].tv_nsec = UTIME_NOW;
	ck_assert_int_eq(ucm_store_set_times(fx_set, ref, times), 0);
	find(&file);
	ck_assert_uint_eq(entry.atime_s, 1000);
	ck_assert_int_gt(entry.mtime_ns, 2000000005000);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(ucm_store_set_times(fx_set, ref, times), -ENOENT);
}

UNIT_TEST(pins_survive_the_store)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(fx_commit(&other), 0);
	find(&file);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), 0);
	find(&file);
	ck_assert_uint_ne(entry.flags & UCM_ENTRY_PINNED, 0);
	fx_close();
	fx_open();
	fx_start();
	find(&file);
	ck_assert_uint_ne(entry.flags & UCM_ENTRY_PINNED, 0);
	find(&other);
	ck_assert_uint_eq(entry.flags & UCM_ENTRY_PINNED, 0);
	find(&file);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, false), 0);
	fx_close();
	fx_open();
	fx_start();
	find(&file);
	ck_assert_uint_eq(entry.flags & UCM_ENTRY_PINNED, 0);
}

UNIT_TEST(a_pin_goes_with_its_block)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	fx_fail("open", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), -EIO);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), 0);
	ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/pinned")), 1);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/pinned")), 0);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), -ENOENT);
}

UNIT_TEST(a_pin_goes_with_a_block_that_is_removed_before_the_scan)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), 0);
	fx_close();
	fx_open();
	ck_assert_int_eq(ucm_store_begin(fx_set), 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/pinned")), 0);
	fx_start();
	ck_assert_int_eq(fx_commit(&file), 0);
	find(&file);
	ck_assert_uint_eq(entry.flags & UCM_ENTRY_PINNED, 0);
}

UNIT_TEST(statvfs_stays_within_the_limit)
{
	struct statvfs all, limited;

	fx_store("t=$/a");
	ucm_store_statvfs(fx_set, &all);
	ck_assert_uint_gt(all.f_blocks, 0);
	fx_close();
	fx_option("limit", "t:1M");
	fx_open();
	fx_start();
	ucm_store_statvfs(fx_set, &limited);
	ck_assert_uint_eq(limited.f_blocks, 256);
	ck_assert_uint_eq(limited.f_bavail, 256);
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ucm_store_statvfs(fx_set, &limited);
	ck_assert_uint_eq(limited.f_bavail, 254);
	ck_assert_uint_eq(limited.f_files - limited.f_ffree, 1);
}

/* ---- many threads, few names ---- */

#define THREADS 4
#define NAMES	8
#define ROUNDS	400

static struct fx_file shared[NAMES];

static const char *one_round(unsigned choice, const struct fx_file *of)
{
	struct ucm_entry found;
	ucm_ref at;
	int err, fd;

	if (choice == 0) {
		struct ucm_temp temp;

		fd = fx_create(&of->key, 0, &temp);
		if (fd < 0)
			return "create failed";
		if (fx_pwrite(fd, of->bytes, of->len, 0) != (ssize_t)of->len)
			return "short write";
		err = fx_commit_temp(&temp, fd, &of->key,
				       UCM_COMMIT_NOW);
		fx_recheck(&temp, fd);
		fx_close_file(fd);
		ucm_store_drop(fx_set, &temp);
		return err ? "commit failed" : NULL;
	}
	if (choice == 1) {
		err = ucm_store_remove(fx_set, &of->key);
		return err && err != -ENOENT ? "remove failed" : NULL;
	}
	err = ucm_store_find(fx_set, &of->key, &found, &at);
	if (err)
		return err == -ENOENT ? NULL : "find failed";
	fd = fx_open_block(at, &found);
	if (fd >= 0) {
		uint8_t bytes[1024];
		bool same = fx_pread(fd, bytes, sizeof(bytes), 0) ==
				    (ssize_t)of->len &&
			    !memcmp(bytes, of->bytes, of->len);

		fx_close_file(fd);
		return same ? NULL : "other bytes";
	}
	return fd == -ENOENT ? NULL : "open failed";
}

static void *work(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg * 0x9e3779b97f4a7c15u;

	for (unsigned i = 0; i < ROUNDS; i++) {
		const char *wrong;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		wrong = one_round(seed >> 60 & 3, &shared[seed >> 40 & 7]);
		if (wrong)
			return (void *)wrong;
	}
	return NULL;
}

UNIT_TEST(threads_never_see_other_bytes_or_half_a_block)
{
	pthread_t threads[THREADS];
	uint64_t used = 0;

	fx_configure("fast=$/a,$/b:slow=$/c");
	fx_option("placement", "round_robin");
	for (unsigned i = 0; i < NAMES; i++)
		fx_block(&shared[i], i, FX_PACKED);
	memory_delay(NULL, 40); /* where it is in memory: other orders */
	fx_open();
	fx_start_only(); /* scanning goes on beside it */
	for (uintptr_t i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, work,
						(void *)(i + 1)),
				 0);
	for (unsigned i = 0; i < THREADS; i++) {
		void *wrong;

		pthread_join(threads[i], &wrong);
		ck_assert_msg(!wrong, "%s", (char *)wrong);
	}
	fx_wait_scanned();
	fx_all_whole("$/a");
	fx_all_whole("$/b");
	fx_all_whole("$/c");
	for (unsigned i = 0; i < NAMES; i++) {
		int err = ucm_store_remove(fx_set, &shared[i].key);

		ck_assert(!err || err == -ENOENT);
	}
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 0);
	ck_assert_uint_eq(fx_set->names.spaces[0]->pending, 0);
	for (unsigned i = 0; i < fx_set->dirs.num_tiers; i++)
		used += ucm_tier_used(&fx_set->dirs.tiers[i]) +
			fx_set->dirs.tiers[i].writing;
	ck_assert_uint_eq(used, 0);
	ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/quarantine")) +
				  fx_count(fx_path("$/b/.ucmfs/quarantine")) +
				  fx_count(fx_path("$/c/.ucmfs/quarantine")),
			  0);
}
