/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_snapshot.c - what a clean end leaves and the next start takes: no
 * header is read again, and what has changed since is noticed.
 */
#include <config.h>

#include "fs/index/snapshot.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/store/find/find.h"
#include "hashing/tree.h"
#include "tests/unit/index/snapshot_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static const char *path_of(unsigned i)
{
	return fx_path("%s/%s/%s", in_a(i) ? "$/a" : "$/b", folder_of(i),
		       fx_name(&files[i]));
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- what it saves ---- */

/* One block of each space that has some tells what they look like. */
UNIT_TEST(after_a_clean_end_no_header_is_read)
{
	prepare();
	count_opens();
	start();
	ck_assert_uint_le(fx_calls(), 2);
	ck_assert(!fx_exists(fx_path(PATH)));
	ck_assert(!fx_logged("not used"));
	all_are_served();
	fx_close();
	ck_assert(fx_exists(fx_path(PATH)));
	fx_clear_log();
	count_opens(); /* and again */
	start();
	ck_assert_uint_le(fx_calls(), 2);
	all_are_served();
}

UNIT_TEST(no_bucket_is_listed_before_the_index_is_complete)
{
	prepare();
	fx_config.scan_threads = 1;
	fx_open();
	know_spaces();
	fx_fail_on("list", "blocks/", 1, -EIO, false);
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), NUM);
}

UNIT_TEST(entries_come_back_as_they_were)
{
	struct ucm_entry before, after;
	ucm_ref ref;

	prepare();
	start();
	ck_assert_int_eq(ucm_store_find(fx_set, &files[3].key, &before, &ref),
			 0);
	ck_assert_int_eq(ucm_store_touch(fx_set, ref), 0);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), 0);
	must(ucm_index_get(fx_set->index, ref, &before));
	fx_close();
	start();
	ck_assert_int_eq(ucm_store_find(fx_set, &files[3].key, &after, &ref),
			 0);
	ck_assert_uint_eq(after.size, before.size);
	ck_assert_uint_eq(after.blocks, before.blocks);
	ck_assert_uint_eq(after.dir, before.dir);
	ck_assert_int_eq(after.mtime_ns, before.mtime_ns);
	ck_assert_uint_eq(after.atime_s, before.atime_s);
	ck_assert_uint_eq(after.uses, 1);
	ck_assert_uint_ne(after.flags & UCM_ENTRY_PINNED, 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]),
			  ucm_tier_used(&fx_set->dirs.tiers[0]));
}

UNIT_TEST(parents_come_back_without_a_header_being_read)
{
	struct ucm_entry entry;
	struct ucm_id parent;
	ucm_ref ref;

	fx_configure("$/a");
	fx_block(&files[0], 0, FX_PAGED);
	fx_block(&files[1], 1, FX_PAGED);
	files[1].block.flags |= UCM_BLOCK_HAS_PARENT;
	files[1].block.parent = files[0].key.id;
	fx_encode(&files[1], true);
	fx_plant("$/a", "blocks", &files[0]);
	fx_plant("$/a", "blocks", &files[1]);
	for (unsigned i = 0; i < 3; i++) { /* and from the second end, too */
		fx_clear_log();
		fx_open();
		count_opens();
		fx_start();
		ck_assert(!i || !fx_calls());
		ck_assert(!fx_logged("not used"));
		must(!ucm_store_find(fx_set, &files[0].key, &entry, &ref));
		ck_assert_uint_eq(entry.children, 1);
		must(!ucm_store_find(fx_set, &files[1].key, &entry, &ref));
		ck_assert(ucm_index_parent(fx_set->index, ref, &parent));
		ck_assert_mem_eq(&parent, &files[0].key.id, sizeof(parent));
		fx_close();
	}
}

UNIT_TEST(a_read_only_mount_uses_it_and_leaves_it)
{
	prepare();
	fx_option("readonly", "tier0");
	count_opens();
	start();
	ck_assert_uint_le(fx_calls(), 2);
	all_are_served();
	fx_close();
	ck_assert(fx_exists(fx_path(PATH)));
}

UNIT_TEST(what_was_not_known_at_the_end_is_read)
{
	prepare();
	fx_open();
	know_spaces();
	fx_start_only();
	fx_close();
	start();
	all_are_served();
}

/* ---- what has changed since ---- */

UNIT_TEST(what_came_and_went_meanwhile_is_noticed)
{
	prepare();
	fx_plant("$/a", "blocks", &other);
	ck_assert_int_eq(fx_unlink(path_of(0)), 0);
	ck_assert_int_eq(fx_unlink(path_of(4)), 0);
	count_opens();
	start();
	ck_assert_uint_le(fx_calls(), 4);
	fx_serves(&other);
	fx_misses(&files[0]);
	fx_misses(&files[4]);
	fx_serves(&files[1]);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), NUM - 1);
	ck_assert_uint_eq(fx_set->stats.vanished, 0);
}

/* The times of a bucket do not tell what came behind an earlier mount. */
static bool has_one_more(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->blocks) == NUM + 1;
}

UNIT_TEST(what_came_behind_an_earlier_mount_is_found_soon)
{
	prepare();
	start();
	/* a copy, so that what is first found of the space is a known one */
	other = files[0];
	other.key.id.bytes[9] ^= 1;
	other.block.id = other.key.id;
	fx_encode(&other, true);
	fx_plant("$/a", "blocks", &other);
	fx_close();
	start();
	fx_wait(has_one_more, NULL);
	fx_serves(&other);
}

static void put_garbage(const char *path)
{
	memset(other.bytes, 'x', sizeof(other.bytes));
	fx_put(path, other.bytes, files[7].len);
}

static void put_short(const char *path)
{
	fx_put(path, files[7].bytes, 100);
}

static void put_other_form(const char *path)
{
	fx_block(&files[7], 7, FX_PACKED);
	fx_put(path, files[7].bytes, files[7].len);
}

static void put_link(const char *path)
{
	fx_unlink(path);
	ck_assert_int_eq(fx_symlink("/etc/passwd", path), 0);
}

static const struct {
	void (*put)(const char *path);
	bool is_block;
} replaced[] = {
	{ put_garbage, false }, { put_short, false }, { put_link, false },
	{ put_other_form, true },
};

/* Nothing that was replaced in place is served before it was looked at. */
UNIT_TEST(a_file_that_was_replaced_is_looked_at_when_it_is_opened,
	  .rows = NUM_ROWS(replaced))
{
	struct ucm_entry entry;
	ucm_ref ref;

	prepare();
	replaced[_i].put(path_of(7));
	start();
	if (!ucm_store_find(fx_set, &files[7].key, &entry, &ref))
		ck_assert_int_lt(fx_open_block(ref, &entry), 0);
	if (replaced[_i].is_block)
		fx_serves(&files[7]);
	else
		fx_misses(&files[7]);
	fx_serves(&files[6]);
}

UNIT_TEST(a_block_removed_before_its_turn_stays_away)
{
	prepare();
	fx_open();
	know_spaces();
	for (unsigned i = 0; i < NUM; i += 2)
		ck_assert_int_eq(ucm_store_remove(fx_set, &files[i].key), 0);
	fx_start();
	for (unsigned i = 0; i < NUM; i++) {
		if (i % 2)
			fx_serves(&files[i]);
		else
			fx_misses(&files[i]);
	}
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), NUM / 2);
}

UNIT_TEST(a_space_that_is_gone_is_forgotten)
{
	prepare();
	ck_assert_int_eq(fx_rename(fx_path("$/a/spaces/s"), fx_path("$/s")), 0);
	ck_assert_int_eq(fx_rename(fx_path("$/b/spaces/s"), fx_path("$/t")), 0);
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), NUM / 2);
}

/* By hand; its blocks do not fit any more, as after a start without it. */
UNIT_TEST(a_space_of_another_geometry_is_read_anew)
{
	static const char manifest[] =
		"{\"version\":1,\"geometry\":{\"num_layers\":3,"
		"\"block_size\":4,\"dtype\":\"float16\",\"k_bytes\":128,"
		"\"v_bytes\":128,\"num_kv_heads\":2,\"head_dim\":8,"
		"\"order\":\"NHD\"}}";

	prepare();
	fx_put(fx_path("$/a/spaces/s/space.json"), manifest, strlen(manifest));
	fx_open();
	fx_start();
	if (!ucm_namespace_find(&fx_set->names, "s")->has_manifest)
		ck_abort_msg("the manifest is not one");
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), NUM / 2);
	ck_assert_uint_eq(fx_set->stats.misfits, NUM / 2);
}

/* Would the next start take the bucket of a block as it is? */
static bool is_stamped(const char *path, const struct ucm_id *id)
{
	const struct ucm_snapshot_stamp *stamp;
	struct ucm_snapshot snapshot;
	struct ucm_snapshot_head at;
	const char *why;
	bool is;

	take(path);
	memcpy(&at, bytes, sizeof(at));
	ck_assert_int_eq(ucm_snapshot_open(&taken, len, at.uuid, at.number,
					   &snapshot, &why), 0);
	stamp = ucm_snapshot_bucket(snapshot.spaces[0], ucm_tree_bucket(id));
	ck_assert_ptr_nonnull(stamp);
	is = stamp->ino;
	ucm_snapshot_close(&snapshot);
	return is;
}

static const char *snapshot_in(const char *dir)
{
	return fx_path("%s/.ucmfs/" UCM_SNAPSHOT_NAME, dir);
}

/* Two scan threads may come to either copy first, and the entry is of that one.
 * Here it is known which: the bucket is scanned before they start. */
static void start_with(unsigned dir)
{
	fx_open();
	ck_assert_int_eq(ucm_store_scan_bucket(fx_set,
					       fx_set->names.spaces[0], dir,
					       ucm_tree_bucket(&other.key.id)),
			 0);
	fx_start();
}

static const char *const dirs[] = { "$/a", "$/b" };

static void plant_in_bucket(struct fx_file *file, const char *dir,
			    unsigned bucket)
{
	fx_block(file, 1, FX_PAGED);
	file->key.id.bytes[0] = (uint8_t)bucket;
	file->block.id = file->key.id;
	fx_encode(file, true);
	fx_plant(dir, "blocks", file);
}

/* A block in both, and a clean end. The one before it shows the open what blocks
 * look like, or that would take in the first copy. */
static void prepare_copies(unsigned first)
{
	fx_configure("$/a:$/b");
	plant_in_bucket(&files[0], "$/a", 0);
	for (unsigned i = 0; i < NUM_ROWS(dirs); i++)
		plant_in_bucket(&other, dirs[i], 1);
	start_with(first);
	fx_close();
}

UNIT_TEST(a_copy_is_removed_with_the_block, .rows = NUM_ROWS(dirs))
{
	prepare_copies((unsigned)_i);
	start_with((unsigned)_i);
	ck_assert_int_eq(ucm_store_remove(fx_set, &other.key), 0);
	for (unsigned i = 0; i < NUM_ROWS(dirs); i++)
		ck_assert(!fx_exists(fx_path("%s/blocks/%s", dirs[i],
					     fx_name(&other))));
}

/* Both directories' snapshots have it, so that a start that has one alone knows
 * it. */
UNIT_TEST(a_copy_is_known_where_the_other_directory_is_left_out,
	  .rows = NUM_ROWS(dirs))
{
	const char *first = dirs[_i], *second = dirs[!_i];
	struct ucm_entry entry;
	ucm_ref ref;

	prepare_copies((unsigned)_i);
	start_with((unsigned)_i); /* from the snapshots, now */
	ck_assert_int_eq(ucm_store_find(fx_set, &other.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.dir, 0); /* the fast one, in any case */
	ck_assert_uint_eq(entry.copy, 2);
	fx_close();
	ck_assert(is_stamped(snapshot_in(first), &other.key.id));
	ck_assert(is_stamped(snapshot_in(second), &other.key.id));
	ucm_config_fini(&fx_config);
	ucm_config_init(&fx_config);
	fx_configure(second);
	fx_open();
	fx_start();
	fx_serves(&other);
}

/* ---- stamps ---- */

#define SECOND INT64_C(1000000000)

static const struct {
	int64_t ctime_ns, mtime_ns, taken_ns;
	bool holds;
} stamps[] = {
	{ 100 * SECOND, 100 * SECOND, 103 * SECOND, true },
	{ 100 * SECOND, 100 * SECOND, 102 * SECOND, false },
	{ 100 * SECOND, 100 * SECOND, 100 * SECOND, false },
	{ 100 * SECOND, 100 * SECOND, 99 * SECOND, false },
	{ 100 * SECOND, 10 * SECOND, 102 * SECOND, false },
	{ 10 * SECOND, 100 * SECOND, 102 * SECOND, false },
	{ 100 * SECOND, 10 * SECOND, 103 * SECOND, true },
};

static struct timespec time_of(int64_t ns)
{
	return (struct timespec){ .tv_sec = ns / SECOND,
				  .tv_nsec = ns % SECOND };
}

UNIT_TEST(a_bucket_that_has_just_changed_is_not_known_by_its_times,
	  .rows = NUM_ROWS(stamps))
{
	struct stat st = {
		.st_ino = 7,
		.st_ctim = time_of(stamps[_i].ctime_ns),
		.st_mtim = time_of(stamps[_i].mtime_ns),
	};
	struct ucm_snapshot_stamp stamp;

	ucm_snapshot_grain_ns = 2 * SECOND;
	stamp = ucm_snapshot_stamp(&st, stamps[_i].taken_ns);
	ck_assert_int_eq(ucm_snapshot_stamp_equal(&stamp, &st),
			 stamps[_i].holds);
}

UNIT_TEST(another_inode_or_time_is_another_bucket)
{
	const struct stat st = { .st_ino = 7, .st_ctim = { 100, 5 },
				 .st_mtim = { 90, 6 } };
	const struct ucm_snapshot_stamp stamp =
		ucm_snapshot_stamp(&st, 1000 * SECOND);
	struct stat now = st;

	ck_assert(ucm_snapshot_stamp_equal(&stamp, &now));
	now.st_ino++;
	ck_assert(!ucm_snapshot_stamp_equal(&stamp, &now));
	now = st;
	now.st_ctim.tv_nsec++;
	ck_assert(!ucm_snapshot_stamp_equal(&stamp, &now));
	now = st;
	now.st_mtim.tv_nsec++;
	ck_assert(!ucm_snapshot_stamp_equal(&stamp, &now));
}
