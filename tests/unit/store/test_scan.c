/* SPDX-License-Identifier: Apache-2.0 */
/* test_scan.c - what lies in the directories, and what of it is served. */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/store/find/calls.h"
#include "fs/store/find/find.h"
#include "tests/unit/memory_medium.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

#define QUARANTINE "$/a/.ucmfs/quarantine"

static struct fx_file good, file;

/* A block whose bucket is in [from, to): the scan goes in that order. */
static void block_in(struct fx_file *out, unsigned from, unsigned to,
		     const struct ucm_geometry *geometry)
{
	for (unsigned n = 0;; n++) {
		fx_block_of(out, n, FX_PAGED, geometry);
		if (out->key.id.bytes[0] >= from && out->key.id.bytes[0] < to)
			return;
	}
}

/* A good block early, so that the geometry is known, and room for a bad one. */
static const char *prepare(void)
{
	fx_configure("$/a");
	block_in(&good, 0, 64, &fx_geometry);
	fx_plant("$/a", "blocks", &good);
	block_in(&file, 128, 256, &fx_geometry);
	fx_mkdirs(fx_path("$/a/blocks/%.2s", fx_name(&file)));
	return fx_path("$/a/blocks/%s", fx_name(&file));
}

static void scan(void)
{
	fx_open();
	fx_start();
	fx_serves(&good);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 1);
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

/* The scan says so just after it has ended. */
static bool five_are_reported(void *unused)
{
	(void)unused;
	return fx_logged("5 blocks found");
}

UNIT_TEST(blocks_of_every_kind_are_found)
{
	struct fx_file files[5];

	fx_configure("$/a:$/b,$/c");
	for (unsigned i = 0; i < 5; i++) {
		static const char *const dirs[] = { "$/a", "$/b", "$/c" };

		fx_block(&files[i], i, (enum fx_kind)i);
		fx_plant(dirs[i % 3], "blocks", &files[i]);
	}
	fx_open();
	fx_start();
	for (unsigned i = 0; i < 5; i++)
		fx_serves(&files[i]);
	fx_wait(five_are_reported, NULL);
	ck_assert_uint_eq(fx_set->stats.strays, 0);
}

static bool all_tasks_are_done(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->scan.tasks_done) == fx_set->scan.num_tasks;
}

/* What a want of descriptors, or a slow server, kept from being looked at is
 * not absent. */
UNIT_TEST(a_file_that_could_not_be_looked_at_is_probed_for, .rows = 2)
{
	static const struct { const char *call; int err; } faults[] = {
		{ "open", -EMFILE }, { "open", -ETIMEDOUT },
	};

	fx_configure("$/a");
	fx_config.scan_threads = 1;
	block_in(&good, 0, 64, &fx_geometry);
	fx_plant("$/a", "blocks", &good);
	block_in(&file, 128, 256, &fx_geometry);
	fx_plant("$/a", "blocks", &file);
	fx_open();
	fx_fail_on(faults[_i].call, fx_name(&file), 1, faults[_i].err, true);
	fx_start_only();
	fx_wait(all_tasks_are_done, NULL);
	ck_assert_ptr_nonnull(fx_failed_call());
	fx_fail(NULL, 0, 0, false);
	fx_serves(&good);
	fx_serves(&file);
}

static const struct {
	const char *what;
	size_t len;
} torn[] = {
	{ "empty", 0 }, { "short", 10 }, { "header only", 64 },
	{ "page", 4096 }, { "torn", 8191 }, { "long", 8193 },
};

UNIT_TEST(torn_files_are_set_aside_and_counted, .rows = NUM_ROWS(torn))
{
	const char *path = prepare();

	fx_put(path, file.bytes, torn[_i].len);
	scan();
	fx_misses(&file);
	ck_assert(!fx_exists(path));
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	ck_assert_uint_eq(fx_set->stats.quarantined, 1);
	ck_assert_uint_eq(fx_set->stats.quarantined_for[
				  torn[_i].len > file.len ? UCM_FAULT_SIZE
							  : UCM_FAULT_SHORT],
			  1);
	ck_assert_uint_eq(fx_set->stats.strays, 0);
}

/* While a torn file is being judged, its good successor is committed. */
static int rival_err;

static int commit_while_it_is_read(const char *call, const char *path)
{
	(void)path;
	if (rival_err != 1 || strcmp(call, "read"))
		return 0;
	rival_err = 0; /* no commit within this one */
	rival_err = fx_commit(&file);
	return 0;
}

UNIT_TEST(a_torn_files_successor_is_not_set_aside_for_it)
{
	const char *path = prepare();

	fx_open();
	fx_start();
	fx_put(path, file.bytes, 4096);
	rival_err = 1;
	ucm_os_fault = commit_while_it_is_read;
	ck_assert_int_eq(ucm_store_examine(fx_set, fx_set->names.spaces[0],
					   &file.key.id, 0),
			 0);
	ucm_os_fault = NULL;
	ck_assert_int_eq(rival_err, 0);
	fx_serves(&file);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(what_is_no_block_is_left_alone_and_counted)
{
	static const char *const names[] = {
		"README", ".hidden", "x.bin",
		"3F9A101112131415161718191A1B1CE1.bin",
	};
	unsigned before;

	prepare();
	for (size_t i = 0; i < NUM_ROWS(names); i++)
		fx_put(fx_path("$/a/blocks/3f/%s", names[i]), good.bytes,
		       good.len);
	/* a good block, in another bucket than its own */
	fx_put(fx_path("$/a/blocks/3f/%s", strchr(fx_name(&file), '/') + 1),
	       file.bytes, file.len);
	/* another machine has removed a block that is open there */
	fx_put(fx_path("$/a/blocks/3f/.nfs000000000004000a00000001"), good.bytes,
	       good.len);
	fx_put(fx_path("$/a/blocks/3f/.nfsx"), good.bytes, good.len);
	before = fx_count(fx_path("$/a/blocks/3f"));
	scan();
	fx_misses(&file);
	ck_assert_uint_eq(fx_set->stats.strays, 6);
	ck_assert_uint_eq(fx_count(fx_path("$/a/blocks/3f")), before);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 0);
}

UNIT_TEST(things_under_a_blocks_name_that_are_no_files_are_left_alone,
	  .rows = 4)
{
	const char *path = prepare();

	switch (_i) {
	case 0: ck_assert_int_eq(fx_symlink("/etc/passwd", path), 0); break;
	case 1: ck_assert_int_eq(fx_mkfifo(path, 0644), 0); break;
	case 2: ck_assert_int_eq(fx_mkdir(path, 0755), 0); break;
	case 3: ck_assert_int_eq(fx_symlink(fx_path("$/a/blocks/%s",
						 fx_name(&good)), path), 0);
		break;
	}
	scan();
	fx_misses(&file);
	ck_assert(fx_exists(path));
	ck_assert_uint_eq(fx_set->stats.strays, 1);
}

UNIT_TEST(a_block_under_another_name_is_left_alone)
{
	const char *path = prepare();

	fx_put(path, good.bytes, good.len);
	scan();
	fx_misses(&file);
	ck_assert(fx_exists(path));
	ck_assert_uint_eq(fx_set->stats.strays, 1);
	ck_assert(fx_logged("not the file's name"));
}

UNIT_TEST(a_foreign_file_of_a_blocks_size_is_left_alone)
{
	const char *path = prepare();

	memset(file.bytes, 'x', file.len);
	fx_put(path, file.bytes, file.len);
	scan();
	fx_misses(&file);
	ck_assert(fx_exists(path));
	ck_assert_uint_eq(fx_set->stats.strays, 1);
}

UNIT_TEST(a_block_of_another_geometry_is_left_alone)
{
	struct ucm_geometry g = fx_geometry;
	const char *path;

	prepare();
	g.num_layers = 3;
	block_in(&file, 128, 256, &g);
	fx_plant("$/a", "blocks", &file);
	path = fx_path("$/a/blocks/%s", fx_name(&file));
	scan();
	fx_misses(&file);
	ck_assert(fx_exists(path));
	ck_assert_uint_eq(fx_set->stats.misfits, 1);
	ck_assert_uint_eq(fx_set->stats.quarantined, 0);
}

UNIT_TEST(a_bucket_that_is_no_directory_or_a_link_is_not_entered)
{
	fx_configure("$/a");
	fx_block(&file, 1, FX_PAGED);
	fx_plant("$/elsewhere", "blocks", &file);
	fx_mkdirs(fx_path("$/a/blocks"));
	ck_assert_int_eq(fx_symlink(fx_path("$/elsewhere/blocks/%.2s",
					 fx_name(&file)),
				 fx_path("$/a/blocks/%.2s", fx_name(&file))),
			 0);
	fx_open();
	fx_start_only();
	fx_misses(&file);
	fx_wait(all_tasks_are_done, NULL);
	ck_assert_uint_gt(fx_set->dirs.io_errors, 0);
}

/* Block number n, in the bucket 07. */
static void block_in_07(struct fx_file *out, unsigned n)
{
	fx_block(out, n, FX_PAGED);
	out->key.id.bytes[0] = 0x07;
	out->block.id = out->key.id;
	fx_encode(out, true);
}

/* The mount is waiting: one right header tells what the blocks are like. */
UNIT_TEST(a_full_bucket_is_not_read_before_the_start)
{
	fx_configure("$/a");
	for (unsigned i = 0; i < 200; i++) {
		block_in_07(&file, i);
		fx_plant("$/a", "blocks", &file);
	}
	fx_fail_on("open", ".bin", UINT32_MAX, -EIO, false);
	fx_open();
	ck_assert_uint_eq(fx_calls(), 1);
	ck_assert(fx_set->names.spaces[0]->has_geometry);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 1);
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 200);
}

UNIT_TEST(one_right_block_among_others_tells_the_geometry)
{
	fx_configure("$/a,$/b");
	fx_mkdirs(fx_path("$/a/blocks/07"));
	for (unsigned i = 0; i < 50; i++)
		fx_put(fx_path("$/b/blocks/07/%u", i), "x", 1);
	block_in_07(&file, 0);
	fx_put(fx_path("$/b/blocks/%s", fx_name(&file)), "x", 1);
	block_in_07(&good, 1);
	fx_plant("$/b", "blocks", &good);
	fx_open();
	ck_assert(fx_set->names.spaces[0]->has_geometry);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 1);
}

UNIT_TEST(an_empty_space_costs_one_listing_before_the_start)
{
	fx_configure("$/a,$/b");
	for (unsigned i = 0; i < 20; i++)
		fx_mkdirs(fx_path("$/a/spaces/s%u", i));
	fx_fail_on("list", "spaces/s", UINT32_MAX, -EIO, false);
	fx_open();
	ck_assert_uint_eq(fx_calls(), 2 * 20);
	fx_fail_on("open", "spaces/s", UINT32_MAX, -EIO, false);
	fx_close();
	fx_open();
	ck_assert_uint_le(fx_calls(), 2 * 20); /* space.json */
}

UNIT_TEST(names_are_probed_for_before_the_scan)
{
	prepare();
	fx_plant("$/a", "blocks", &file);
	fx_open(); /* knows the geometry, from good's bucket */
	ck_assert_uint_eq(fx_set->stats.probes, 0);
	fx_serves(&file);
	ck_assert_uint_eq(fx_set->stats.probes, 1);
	fx_serves(&file); /* from the index now */
	ck_assert_uint_eq(fx_set->stats.probes, 1);
	file.key.id.bytes[15] ^= 1;
	fx_misses(&file);
	ck_assert_uint_eq(fx_set->stats.probes, 2);
	fx_start();
	fx_misses(&file); /* the index is the truth now */
	ck_assert_uint_eq(fx_set->stats.probes, 2);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 2);
}

/* And what a fast one has the slow one is not asked for. */
UNIT_TEST(before_the_scan_fast_tiers_are_asked_first)
{
	struct ucm_entry entry;
	ucm_ref ref;

	fx_configure("fast=$/a:slow=$/b");
	for (unsigned n = 0; n < 4; n++) { /* one is looked at at the opening */
		fx_block(&file, n, FX_PAGED);
		fx_plant("$/a", "blocks", &file);
		fx_plant("$/b", "blocks", &file);
	}
	fx_open();
	for (unsigned n = 0; n < 4; n++) {
		fx_block(&file, n, FX_PAGED);
		ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry,
						&ref), 0);
		ck_assert_uint_eq(entry.dir, 0);
		ck_assert_uint_eq(entry.copy, 0);
	}
}

UNIT_TEST(a_listing_before_the_scan_scans_its_bucket)
{
	struct ucm_entry entry;
	uint32_t cursor = 0;
	unsigned bucket;

	prepare();
	fx_plant("$/a", "blocks", &file);
	fx_open();
	bucket = file.key.id.bytes[0];
	ck_assert(!ucm_index_next(fx_set->index, 0, bucket, &cursor, &entry,
				  NULL));
	ucm_store_fill_bucket(fx_set, fx_set->names.spaces[0], bucket);
	cursor = 0;
	ck_assert(ucm_index_next(fx_set->index, 0, bucket, &cursor, &entry,
				 NULL));
	ck_assert_mem_eq(&entry.id, &file.key.id, sizeof(entry.id));
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 2);
}

UNIT_TEST(a_bucket_that_could_not_be_read_is_probed)
{
	prepare();
	fx_plant("$/a", "blocks", &file);
	fx_open();
	fx_fail_on("list", fx_path("blocks/%.2s", fx_name(&file)), 1, -EIO,
		   false);
	fx_start_only();
	fx_serves(&good);
	fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->scan.complete), 0);
}

/* A read error says nothing about the bytes: nothing is moved aside. */
UNIT_TEST(a_block_that_cannot_be_read_stays_where_it_is)
{
	const char *path = prepare();

	fx_plant("$/a", "blocks", &file);
	fx_open();
	fx_fail("read", 1, -EIO, false);
	fx_misses(&file);
	fx_fail(NULL, 0, 0, false);
	ck_assert(fx_exists(path));
	fx_serves(&file);
}

UNIT_TEST(a_copy_in_another_tier_is_noted)
{
	struct ucm_entry entry;
	ucm_ref ref;

	fx_configure("fast=$/a:slow=$/b");
	fx_block(&file, 1, FX_PAGED);
	fx_plant("$/a", "blocks", &file);
	fx_plant("$/b", "blocks", &file);
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 1);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.dir + entry.copy - 1, 1);
	ck_assert_uint_eq(entry.flags & UCM_ENTRY_DUPLICATE, 0);
}

/* Number n's parent is number n / 2, so that most have two children. */
static void plant_family(unsigned num)
{
	struct fx_file above;

	for (unsigned n = 1; n < num; n++) {
		fx_block(&file, n, FX_PAGED);
		if (n > 1) {
			fx_block(&above, n / 2, FX_PAGED);
			file.block.flags |= UCM_BLOCK_HAS_PARENT;
			file.block.parent = above.key.id;
			fx_encode(&file, true);
		}
		fx_plant(n % 2 ? "$/a" : "$/b", "blocks", &file);
	}
}

UNIT_TEST(a_scan_learns_parents_in_whatever_order)
{
	enum { NUM = 60 };
	struct ucm_entry entry;
	ucm_ref ref;

	fx_configure("$/a:$/b");
	plant_family(NUM);
	fx_open();
	fx_start();
	for (unsigned n = 1; n < NUM; n++) {
		unsigned children = (2 * n < NUM) + (2 * n + 1 < NUM);

		fx_block(&file, n, FX_PAGED);
		must(!ucm_store_find(fx_set, &file.key, &entry, &ref));
		must(entry.children == children);
		must(!entry.parent == (n == 1));
	}
}

UNIT_TEST(of_a_third_copy_it_is_known_that_there_is_one)
{
	struct ucm_entry entry;
	ucm_ref ref;

	fx_configure("fast=$/a:slow=$/b:cold=$/c");
	fx_block(&file, 1, FX_PAGED);
	fx_plant("$/a", "blocks", &file);
	fx_plant("$/b", "blocks", &file);
	fx_plant("$/c", "blocks", &file);
	fx_open();
	fx_start();
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_uint_ne(entry.copy, 0);
	ck_assert_uint_ne(entry.flags & UCM_ENTRY_DUPLICATE, 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	fx_close();
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 0);
}

UNIT_TEST(spaces_on_any_directory_are_found_and_scanned)
{
	struct ucm_space *space;

	fx_configure("$/a:$/b");
	fx_block(&file, 1, FX_PAGED);
	fx_plant("$/b", "spaces/llama", &file);
	fx_mkdirs(fx_path("$/a/spaces/empty"));
	fx_mkdirs(fx_path("$/a/spaces/.hidden"));
	fx_put(fx_path("$/a/spaces/file"), "", 0);
	fx_open();
	fx_start();
	ck_assert_ptr_nonnull(ucm_namespace_find(&fx_set->names, "empty"));
	ck_assert_ptr_null(ucm_namespace_find(&fx_set->names, ".hidden"));
	ck_assert_ptr_null(ucm_namespace_find(&fx_set->names, "file"));
	space = ucm_namespace_find(&fx_set->names, "llama");
	ck_assert_ptr_nonnull(space);
	fx_misses(&file); /* not in the default space */
	file.key.space = space->number;
	fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&space->blocks), 1);
}

UNIT_TEST(many_blocks_in_many_threads_are_all_found_once)
{
	fx_configure("$/a,$/b");
	fx_config.scan_threads = 8;
	for (unsigned i = 0; i < 500; i++) {
		fx_block(&file, i, FX_PACKED);
		fx_plant(i % 2 ? "$/a" : "$/b", "blocks", &file);
	}
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 500);
	for (unsigned i = 0; i < 500; i++) {
		fx_block(&file, i, FX_PACKED);
		must(fx_find(&file) == 0);
	}
}

UNIT_TEST(a_scan_can_be_stopped_in_the_middle)
{
	fx_configure("$/a");
	for (unsigned i = 0; i < 300; i++) {
		fx_block(&file, i, FX_PACKED);
		fx_plant("$/a", "blocks", &file);
	}
	for (unsigned round = 0; round < 10; round++) {
		fx_open();
		fx_start_only();
		fx_close();
	}
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 300);
}

/* ---- files that cannot be read ---- */

static void scan_with_a_bad_file(void)
{
	prepare();
	fx_plant("$/a", "blocks", &file);
	fx_fail_on("open", fx_name(&file), 1, -EIO, false);
	fx_open();
	fx_start();
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

UNIT_TEST(a_file_that_cannot_be_read_is_a_miss_until_the_next_start, .rows = 2)
{
	scan_with_a_bad_file();
	fx_serves(&good);
	ck_assert(atomic_load(&fx_set->scan.complete));
	fx_misses(&file);
	fx_fail(NULL, 0, 0, false);
	fx_misses(&file);
	if (_i) {
		fx_close();
		fx_open();
		fx_start();
	} else {
		ck_assert_int_eq(ucm_calls_rescan(fx_set, never, NULL), 0);
	}
	fx_serves(&file);
}

UNIT_TEST(a_file_that_cannot_be_read_is_replaced_by_a_new_one)
{
	scan_with_a_bad_file();
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
}

static unsigned opened;

static int stop_at_first_open(const char *call, const char *path)
{
	if (!strcmp(call, "open") && !strncmp(path, "blocks/", 7)) {
		opened++;
		atomic_store(&fx_set->life.stopping, true);
	}
	return 0;
}

/* Somebody waits for the end: not for all files of a large bucket. */
UNIT_TEST(a_scan_stops_in_the_middle_of_a_bucket)
{
	unsigned bucket;

	fx_configure("$/a");
	fx_open();
	block_in(&good, 0, 256, &fx_geometry);
	bucket = good.key.id.bytes[0];
	fx_plant("$/a", "blocks", &good);
	for (unsigned i = 0; i < 3; i++) {
		block_in(&file, bucket, bucket + 1, &fx_geometry);
		file.key.id.bytes[15] ^= (uint8_t)(i + 1);
		fx_plant("$/a", "blocks", &file);
	}
	atomic_store(&fx_set->names.spaces[0]->scanned[bucket / 64], 0);
	opened = 0;
	ucm_os_fault = stop_at_first_open;
	ck_assert_int_eq(ucm_store_scan_bucket(fx_set, fx_set->names.spaces[0],
					       0, bucket),
			 -ECANCELED);
	ck_assert_uint_eq(opened, 1);
	ck_assert(!ucm_space_is_scanned(fx_set->names.spaces[0], 0, bucket));
}

/* ---- media of another kind ---- */

static bool all_tasks_tried(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->scan.tasks_done) == fx_set->scan.num_tasks;
}

/* Nothing is known to be absent, and nothing is wrong with the medium. */
UNIT_TEST(a_medium_that_cannot_be_listed_is_asked_for_each_name)
{
	if (!fx_needs_memory("they can be listed"))
		return;
	fx_configure("$/a:$/b");
	memory_hide_names();
	fx_block(&good, 1, FX_PAGED);
	fx_block(&file, 2, FX_PAGED);
	fx_plant("$/b", "blocks", &good);
	fx_open();
	fx_start_only();
	fx_wait(all_tasks_tried, NULL);
	ck_assert(!atomic_load(&fx_set->scan.complete));
	fx_serves(&good);
	fx_misses(&file);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
	ck_assert_int_eq(ucm_store_remove(fx_set, &good.key), 0);
	fx_misses(&good);
	ck_assert_uint_eq(fx_set->dirs.io_errors, 0);
	fx_close();
	fx_open();
	fx_start_only();
	fx_serves(&file);
	fx_misses(&good);
}

/* A file of a medium without descriptors is used like any other. */
UNIT_TEST(a_block_that_has_no_descriptor_is_read_all_the_same)
{
	struct ucm_entry entry;
	struct ucm_file read;
	char first[4];
	ucm_ref ref;

	if (!fx_needs_memory("their files have descriptors"))
		return;
	fx_store("$/a");
	fx_block(&good, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&good), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &good.key, &entry, &ref), 0);
	ck_assert_int_eq(ucm_store_open_block(fx_set, ref, &entry, &read,
					      NULL), 0);
	ck_assert_int_eq(ucm_file_descriptor(&read), -EOPNOTSUPP);
	ck_assert_int_eq(ucm_file_read(&read, first, 4, 0), 4);
	ck_assert_mem_eq(first, good.bytes, 4);
	ck_assert_int_eq(ucm_file_read(&read, first, 4, good.len - 2), 2);
	ucm_file_close(&read);
	ucm_file_close(&read); /* harmless */
}
