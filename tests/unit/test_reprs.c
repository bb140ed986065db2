/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reprs.c - files of representations beside blocks: none stays behind when
 * its block, a place of it or an entry goes, whatever fails on the way.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ucm/repr.h>

#include "common/osfile.h"
#include "fs/store/endurance.h"
#include "fs/store/inside.h"
#include "fs/store/move.h"
#include "fs/store/repr.h"
#include "hashing/tree.h"
#include "tests/unit/store_fixture.h"

#define BLOCK_BYTES 8192u /* of a block of FX_PAGED */
#define TWO_TIERS "fast=$/fast:slow=$/slow"

static struct fx_file files[4];

static void setup(void)
{
	fx_setup();
	for (unsigned i = 0; i < NUM_ROWS(files); i++)
		fx_block(&files[i], i + 1, FX_PAGED);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* A store whose movers do not run. */
static void open_still(const char *source)
{
	fx_configure(source);
	fx_option("policy", "lru");
	fx_open();
	ck_assert_int_eq(ucm_store_begin(fx_set), 0);
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++)
		fx_set->keepers[dir].pins_known = true;
}

/* ---- a block's file of representations ---- */

struct repr {
	uint8_t *bytes;
	size_t len;
};

/* Means of float32, of a block whose header says how many heads it has, or (num)
 * of so many. Another seed: other bytes. */
static struct repr make_repr(const struct fx_file *of, uint32_t heads,
			     uint32_t head_dim, uint8_t seed)
{
	const struct ucm_repr_spec spec = {
		.kind = UCM_REPR_MEAN,
		.dtype = UCM_DTYPE_FLOAT32,
		.num_heads = heads,
		.head_dim = head_dim,
		.block_size = of->block.geometry.block_size,
	};
	struct ucm_repr_file file;
	struct ucm_error error;
	uint8_t *layers;
	struct repr repr;

	ck_assert_msg(!ucm_repr_file_init(&of->block, &spec, &file, &error),
		      "%s", error.text);
	repr.len = ucm_repr_file_size(&file);
	repr.bytes = malloc(repr.len);
	layers = calloc(file.geometry.num_layers, file.layer_bytes);
	must(repr.bytes && layers);
	memset(layers, seed, file.layer_bytes / 2);
	ck_assert_int_eq(ucm_repr_file_encode(&file, layers, repr.bytes,
					      repr.len, NULL), 0);
	free(layers);
	return repr;
}

static struct repr small_repr(unsigned i, uint8_t seed)
{
	return make_repr(&files[i], 2, 8, seed);
}

static int put(unsigned i, uint8_t seed)
{
	struct repr repr = small_repr(i, seed);
	int err = ucm_store_put_repr(fx_set, &files[i].key, repr.bytes,
				     repr.len);

	free(repr.bytes);
	return err;
}

static void commit_with_repr(unsigned i)
{
	ck_assert_int_eq(fx_commit(&files[i]), 0);
	ck_assert_int_eq(put(i, 1), 0);
}

static const char *repr_name(unsigned i)
{
	char name[UCM_TREE_REPR_LEN + 1];

	ucm_tree_repr_name(&files[i].key.id, name);
	return fx_path("%.2s/%s", name, name);
}

static const char *repr_in(const char *dir, unsigned i)
{
	return fx_path("%s/blocks/%s", dir, repr_name(i));
}

static const char *block_in(const char *dir, unsigned i)
{
	return fx_path("%s/blocks/%s", dir, fx_name(&files[i]));
}

static ucm_ref ref_of(unsigned i)
{
	ucm_ref ref;

	must(ucm_index_find(fx_set->index, &files[i].key, NULL, &ref));
	return ref;
}

static struct ucm_entry entry_of(unsigned i)
{
	struct ucm_entry entry;

	must(ucm_index_find(fx_set->index, &files[i].key, &entry, NULL));
	return entry;
}

static int copy_to(unsigned i, unsigned tier, bool first)
{
	const struct ucm_move move = {
		.to = &fx_set->dirs.tiers[tier],
		.first = first,
	};

	return ucm_store_copy(fx_set, ref_of(i), &move, NULL);
}

/* Opened, and its bytes are those of put(i, seed). */
static int serves(unsigned i, uint8_t seed)
{
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct repr repr = small_repr(i, seed);
	struct ucm_entry entry;
	struct stat st;
	uint8_t got[16384];
	int err = ucm_store_open_repr(fx_set, ref_of(i), &entry, &file, &st);

	if (!err) {
		ck_assert_uint_eq((uint64_t)st.st_size, repr.len);
		ck_assert_int_eq(ucm_file_read(&file, got, sizeof(got), 0),
				 (ssize_t)repr.len);
		ck_assert_mem_eq(got, repr.bytes, repr.len);
	}
	free(repr.bytes);
	return err;
}

/* What an entry says, and counts, is what lies there. */
static void entry_is_right(unsigned i)
{
	struct ucm_entry entry = entry_of(i);
	struct stat st;
	bool has = !ucm_store_stat_repr_in(fx_set, &entry, entry.dir, &st);

	ck_assert_int_eq(entry.has_repr, has);
	ck_assert_uint_eq(entry.blocks * 512u,
			  BLOCK_BYTES + (has ? ucm_file_takes(&st) : 0));
}

/* ---- nothing stays behind ---- */

UNIT_TEST(a_block_that_has_vanished_leaves_none)
{
	open_still("t=$/t");
	commit_with_repr(0);
	must(fx_exists(repr_in("$/t", 0)));
	ck_assert_int_eq(unlink(block_in("$/t", 0)), 0);
	ck_assert_int_eq(ucm_store_check(fx_set, ref_of(0)), -ENOENT);
	must(!fx_exists(repr_in("$/t", 0)));
}

UNIT_TEST(the_copy_of_a_block_that_has_vanished_keeps_its_own)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(unlink(block_in("$/fast", 0)), 0);
	must(ucm_store_lose(fx_set, ref_of(0), 0, NULL, -ENOENT));
	must(!fx_exists(repr_in("$/fast", 0)));
	must(fx_exists(repr_in("$/slow", 0)));
	ck_assert_int_eq(serves(0, 1), 0);
	entry_is_right(0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &files[0].key), 0);
	must(!fx_exists(repr_in("$/slow", 0)));
}

UNIT_TEST(so_does_that_of_a_block_that_is_condemned)
{
	struct ucm_entry entry;
	struct stat st;

	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	entry = entry_of(0);
	ck_assert_int_eq(fx_stat(block_in("$/fast", 0), &st), 0);
	ucm_store_condemn(fx_set, ref_of(0), entry.dir, &st, UCM_FAULT_PAYLOAD,
			  "");
	must(!fx_exists(repr_in("$/fast", 0)));
	ck_assert_int_eq(serves(0, 1), 0);
	entry_is_right(0);
}

UNIT_TEST(a_place_that_has_vanished_leaves_none)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(unlink(block_in("$/slow", 0)), 0);
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref_of(0), 0, NULL),
			 -ESTALE);
	must(!fx_exists(repr_in("$/slow", 0)));
	ck_assert_int_eq(serves(0, 1), 0);
}

/* The file first: a block that is gone would leave it without an entry. */
UNIT_TEST(a_block_stays_while_its_file_cannot_be_removed)
{
	open_still("t=$/t");
	commit_with_repr(0);
	fx_fail_on("unlink", ".repr", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_remove(fx_set, &files[0].key), -EIO);
	must(fx_exists(block_in("$/t", 0)));
	ck_assert_int_eq(serves(0, 1), 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &files[0].key), 0);
	must(!fx_exists(repr_in("$/t", 0)));
	ck_assert_uint_eq(fx_set->dirs.at[0]->used, 0);
}

UNIT_TEST(so_does_a_place)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	fx_fail_on("unlink", ".repr", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref_of(0), 0, NULL),
			 -EIO);
	must(fx_exists(block_in("$/fast", 0)));
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref_of(0), 0, NULL), 0);
	must(!fx_exists(repr_in("$/fast", 0)));
	ck_assert_int_eq(serves(0, 1), 0);
}

static bool has_failed(void *arg)
{
	(void)arg;
	return fx_failed_call();
}

/* A block whose file cannot be read yet has no entry when its bucket is read. */
UNIT_TEST(a_block_that_is_read_later_has_its_own)
{
	open_still("t=$/t");
	commit_with_repr(0);
	fx_close();
	fx_open();
	fx_fail_on("open", fx_name(&files[0]), 1, -EIO, true);
	fx_start();
	fx_wait(has_failed, NULL);
	ck_assert_int_eq(fx_find(&files[0]), 0); /* looked at again */
	ck_assert_int_eq(serves(0, 1), 0);
	entry_is_right(0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &files[0].key), 0);
	must(!fx_exists(repr_in("$/t", 0)));
}

/* Neither says an entry that it is there, nor will one ever. */
UNIT_TEST(a_space_is_removed_with_what_a_stranger_has_left)
{
	struct ucm_space *space;
	struct repr repr = small_repr(0, 1);
	struct ucm_id id;

	open_still("t=$/t");
	ck_assert_int_eq(ucm_store_mkdir(fx_set, "one", 0755, 0, 0, &space), 0);
	fx_put(fx_path("$/t/spaces/one/%s", repr_name(0)), repr.bytes,
	       repr.len);
	free(repr.bytes);
	ck_assert_int_eq(ucm_tree_parse_repr(strrchr(repr_name(0), '/') + 1,
					     &id), 0);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
	must(!fx_exists(fx_path("$/t/spaces/one")));
}

UNIT_TEST(and_not_with_anything_else)
{
	struct ucm_space *space;
	struct repr repr = small_repr(0, 1);

	open_still("t=$/t");
	ck_assert_int_eq(ucm_store_mkdir(fx_set, "one", 0755, 0, 0, &space), 0);
	fx_put(fx_path("$/t/spaces/one/%s", repr_name(0)), repr.bytes,
	       repr.len);
	free(repr.bytes);
	fx_put(fx_path("$/t/spaces/one/%s", fx_name(&files[0])), "x", 1);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), -ENOTEMPTY);
	must(fx_exists(fx_path("$/t/spaces/one/%s", repr_name(0))));
}

/* ---- the place that stays has it ---- */

UNIT_TEST(the_place_that_stays_gets_what_it_lacks)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(unlink(repr_in("$/slow", 0)), 0);
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref_of(0), 0, NULL), 0);
	must(!fx_exists(repr_in("$/fast", 0)));
	ck_assert_int_eq(serves(0, 1), 0);
	entry_is_right(0);
}

UNIT_TEST(or_the_other_one_stays_too)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(unlink(repr_in("$/slow", 0)), 0);
	fx_fail_on("rename", ".repr", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref_of(0), 0, NULL),
			 -EIO);
	ck_assert_int_eq(serves(0, 1), 0);
	must(fx_exists(block_in("$/fast", 0)));
}

UNIT_TEST(one_that_no_place_has_is_dropped_with_the_place)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(unlink(repr_in("$/slow", 0)), 0);
	ck_assert_int_eq(unlink(repr_in("$/fast", 0)), 0);
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref_of(0), 0, NULL), 0);
	ck_assert_int_eq(entry_of(0).has_repr, false);
	entry_is_right(0);
}

/* ---- looked for in both places ---- */

static const int errors[] = { -EIO, -ESTALE, -ETIMEDOUT, -ENOENT };

UNIT_TEST(one_that_cannot_be_read_is_served_from_the_other_place,
	  .rows = NUM_ROWS(errors))
{
	struct ucm_entry entry;
	struct stat st;

	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	fx_fail_on("open", ".repr", 1, errors[_i], true);
	ck_assert_int_eq(serves(0, 1), 0);
	fx_fail_on("stat", ".repr", 1, errors[_i], true);
	ck_assert_int_eq(ucm_store_stat_repr(fx_set, ref_of(0), &entry, &st),
			 0);
	ck_assert_int_eq(entry.dir, 1);
}

/* What cannot be read may be there. */
UNIT_TEST(what_a_place_does_not_answer_is_not_taken_for_absent)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(unlink(repr_in("$/slow", 0)), 0);
	fx_fail_on("open", ".repr", 1, -EIO, true);
	ck_assert_int_eq(serves(0, 1), -EIO);
	must(entry_of(0).has_repr);
	ck_assert_int_eq(serves(0, 1), 0);
}

/* ---- put ---- */

/* 8 MiB, of a block whose header does not say how many heads it has. */
static struct fx_file large_file;

static struct repr commit_large(void)
{
	struct ucm_geometry geometry = fx_geometry;

	geometry.num_kv_heads = 0;
	geometry.head_dim = 0;
	fx_block_of(&large_file, 77, FX_PAGED, &geometry);
	ck_assert_int_eq(fx_commit(&large_file), 0);
	return make_repr(&large_file, 1024, 1024, 7);
}

static struct watched {
	unsigned writes, reads, locked;
	void (*at_first)(void); /* at the first write */
} watched;

static void *try_lock(void *arg)
{
	pthread_mutex_t *lock = &fx_set->name_locks[large_file.key.id.bytes[1]];

	*(bool *)arg = !pthread_mutex_trylock(lock);
	if (*(bool *)arg)
		pthread_mutex_unlock(lock);
	return NULL;
}

/* By another thread: it is recursive. */
static bool name_is_locked(void)
{
	pthread_t thread;
	bool got = false;

	ck_assert_int_eq(pthread_create(&thread, NULL, try_lock, &got), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	return !got;
}

static int watch(const char *call, const char *path)
{
	void (*at_first)(void) = watched.at_first;

	(void)path;
	if (!strcmp(call, "read"))
		watched.reads++;
	if (strcmp(call, "write") && strcmp(call, "fdatasync"))
		return 0;
	watched.locked += name_is_locked();
	watched.writes += !strcmp(call, "write");
	watched.at_first = NULL;
	if (at_first)
		at_first();
	return 0;
}

static int put_watched(const struct repr *repr)
{
	int (*before)(const char *call, const char *path) = ucm_os_fault;
	int err;

	ucm_os_fault = watch;
	err = ucm_store_put_repr(fx_set, &large_file.key, repr->bytes,
				 repr->len);
	ucm_os_fault = before;
	return err;
}

/* A server has its deadline for each, and nobody else waits for it. */
UNIT_TEST(it_is_written_in_pieces_and_without_the_lock)
{
	struct repr repr;

	open_still("t=$/t");
	repr = commit_large();
	ck_assert_uint_gt(repr.len, 8 * UCM_STORE_REPR_PIECE);
	watched = (struct watched){ .writes = 0 };
	ck_assert_int_eq(put_watched(&repr), 0);
	ck_assert_uint_ge(watched.writes, 9);
	ck_assert_uint_eq(watched.locked, 0);
	free(repr.bytes);
}

static ucm_ref large_ref(void)
{
	ucm_ref ref;

	must(ucm_index_find(fx_set->index, &large_file.key, NULL, &ref));
	return ref;
}

UNIT_TEST(so_is_one_that_moves)
{
	const struct ucm_move *move;
	struct repr repr;

	open_still(TWO_TIERS);
	move = &(struct ucm_move){ .to = &fx_set->dirs.tiers[1] };
	repr = commit_large();
	ck_assert_int_eq(put_watched(&repr), 0);
	watched = (struct watched){ .writes = 0 };
	ucm_os_fault = watch;
	ck_assert_int_eq(ucm_store_copy(fx_set, large_ref(), move, NULL), 0);
	ck_assert_uint_ge(watched.writes, 9);
	ck_assert_uint_ge(watched.reads, 9);
	ck_assert_uint_eq(watched.locked, 0);
	free(repr.bytes);
}

static unsigned syncs;

static int count_syncs(const char *call, const char *path)
{
	(void)path;
	syncs += !strcmp(call, "fdatasync") || !strcmp(call, "fsync");
	return 0;
}

static unsigned syncs_of_move(unsigned i)
{
	const struct ucm_move move = {
		.to = &fx_set->dirs.tiers[1],
		.durable = true,
	};

	syncs = 0;
	ucm_os_fault = count_syncs;
	ck_assert_int_eq(ucm_store_copy(fx_set, ref_of(i), &move, NULL), 0);
	ucm_os_fault = NULL;
	return syncs;
}

/* The file and its name, before the place that it came from goes. */
UNIT_TEST(it_survives_a_power_cut_where_its_block_does)
{
	unsigned alone;

	fx_option("durability", "none");
	open_still(TWO_TIERS);
	ck_assert_int_eq(fx_commit(&files[0]), 0);
	commit_with_repr(1);
	alone = syncs_of_move(0);
	ck_assert_uint_gt(alone, 0);
	ck_assert_uint_eq(syncs_of_move(1), alone + 2);
}

static void copy_large(void)
{
	const struct ucm_move move = { .to = &fx_set->dirs.tiers[1] };

	ck_assert_int_eq(ucm_store_copy(fx_set, large_ref(), &move, NULL), 0);
}

static unsigned num_tmp(const char *dir)
{
	return fx_count(fx_path("%s/.ucmfs/tmp", dir));
}

UNIT_TEST(a_block_that_moves_meanwhile_has_it_in_all_places)
{
	struct ucm_entry entry;
	struct repr repr;
	struct stat st;

	open_still(TWO_TIERS);
	repr = commit_large();
	watched = (struct watched){ .at_first = copy_large };
	ck_assert_int_eq(put_watched(&repr), 0);
	must(ucm_index_get(fx_set->index, large_ref(), &entry));
	must(entry.copy && entry.has_repr);
	for (unsigned dir = 0; dir < 2; dir++)
		ck_assert_int_eq(ucm_store_stat_repr_in(fx_set, &entry, dir,
							&st), 0);
	ck_assert_uint_eq(num_tmp("$/fast") + num_tmp("$/slow"), 0);
	free(repr.bytes);
}

static void remove_large(void)
{
	ck_assert_int_eq(ucm_store_remove(fx_set, &large_file.key), 0);
}

UNIT_TEST(a_block_that_goes_meanwhile_leaves_nothing)
{
	struct repr repr;

	open_still("t=$/t");
	repr = commit_large();
	watched = (struct watched){ .at_first = remove_large };
	ck_assert_int_eq(put_watched(&repr), -ENOENT);
	ck_assert_uint_eq(num_tmp("$/t"), 0);
	must(!fx_exists(fx_path("$/t/blocks/%.2s/%s.repr", fx_name(&large_file),
				ucm_hex(&large_file.key.id).text)));
	free(repr.bytes);
}

static const char *const failing[] = { "write", "fdatasync", "rename", "fsync",
				       "stat" };

/* What was there stays, or goes altogether; and what failed leaves nothing. */
UNIT_TEST(whatever_fails_an_entry_says_what_is_there,
	  .rows = NUM_ROWS(failing))
{
	fx_configure(TWO_TIERS);
	fx_option("durability", "full");
	fx_open();
	ck_assert_int_eq(ucm_store_begin(fx_set), 0);
	ck_assert_int_eq(fx_commit(&files[0]), 0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	for (unsigned nth = 1; nth < 20; nth++) {
		int err;

		ck_assert_int_eq(put(0, 1), 0);
		fx_fail(failing[_i], nth, -EIO, true);
		err = put(0, 2);
		if (!fx_failed_call())
			break;
		fx_fail(NULL, 0, 0, false);
		if (entry_of(0).has_repr)
			ck_assert_int_eq(serves(0, err ? 1 : 2),
					 fx_exists(repr_in("$/fast", 0)) ||
					 fx_exists(repr_in("$/slow", 0))
						 ? 0 : -ENOENT);
		entry_is_right(0);
		ck_assert_uint_eq(num_tmp("$/fast") + num_tmp("$/slow"), 0);
	}
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(ucm_store_remove(fx_set, &files[0].key), 0);
	must(!fx_exists(repr_in("$/fast", 0)));
	must(!fx_exists(repr_in("$/slow", 0)));
}

/* ---- room ---- */

static bool is_there(unsigned i)
{
	return ucm_index_find(fx_set->index, &files[i].key, NULL, NULL);
}

static void open_limited(const char *source, const char *limit)
{
	fx_configure(source);
	fx_option("policy", "lru");
	fx_option("limit", limit);
	fx_open();
	ck_assert_int_eq(ucm_store_begin(fx_set), 0);
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++)
		fx_set->keepers[dir].pins_known = true;
}

static void nothing_is_promised(void)
{
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++)
		ck_assert_uint_eq(fx_set->dirs.at[dir]->writing, 0);
}

/* Never the block itself, though it is the oldest. */
UNIT_TEST(another_block_makes_room_for_it)
{
	open_limited("t=$/t", "t:24K");
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(fx_commit(&files[i]), 0);
	ck_assert_int_eq(put(0, 1), 0);
	ck_assert_int_eq(serves(0, 1), 0);
	must(is_there(0) && is_there(1) != is_there(2));
	ck_assert_uint_eq(fx_set->dirs.at[0]->used, 3 * BLOCK_BYTES);
	nothing_is_promised();
}

UNIT_TEST(where_nothing_may_go_there_is_no_room)
{
	open_limited("t=$/t", "t:12K");
	ck_assert_int_eq(fx_commit(&files[0]), 0);
	ck_assert_int_eq(put(0, 1), -ENOSPC);
	must(is_there(0));
	entry_is_right(0);
	must(fx_logged("no room, and nothing may go"));
	nothing_is_promised();
	ck_assert_uint_eq(num_tmp("$/t"), 0);
}

UNIT_TEST(it_counts_with_what_a_tier_may_be_written)
{
	double owed;

	fx_configure("t=$/t");
	fx_option("policy", "lru");
	fx_option("endurance", "t:1G");
	fx_open();
	ck_assert_int_eq(ucm_store_begin(fx_set), 0);
	ck_assert_int_eq(fx_commit(&files[0]), 0);
	owed = ucm_endurance_owed(fx_set, &fx_set->dirs.tiers[0]);
	must(owed > 0);
	ck_assert_int_eq(put(0, 1), 0);
	must(ucm_endurance_owed(fx_set, &fx_set->dirs.tiers[0]) > 1.9 * owed);
}

/* ---- wrong ---- */

static void damage(const char *path)
{
	int fd = open(path, O_RDWR);
	uint8_t byte;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pread(fd, &byte, 1, 4096), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, 4096), 1);
	close(fd);
}

static unsigned num_aside(const char *dir)
{
	return fx_count(fx_path("%s/.ucmfs/quarantine", dir));
}

UNIT_TEST(one_that_is_wrong_when_its_block_moves_is_quarantined)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	damage(repr_in("$/fast", 0));
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	must(!entry_of(0).has_repr);
	ck_assert_uint_eq(num_aside("$/fast"), 1);
	ck_assert_uint_eq(num_aside("$/slow"), 0);
	ck_assert_uint_eq(ucm_counted(&fx_set->stats.reprs_quarantined), 1);
	ck_assert_uint_eq(ucm_counted(&fx_set->stats.quarantined), 0);
	must(fx_logged("layer 0: checksum differs: quarantined"));
	entry_is_right(0);
}

/* As a later release would write it: of another version, with a right header. */
static void make_later(const char *path)
{
	uint8_t header[UCM_REPR_FILE_HEADER_BYTES];
	const size_t crc_at = sizeof(header) - 4;
	int fd = open(path, O_RDWR);
	uint32_t crc;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pread(fd, header, sizeof(header), 0),
			 sizeof(header));
	header[4] = 9;
	crc = ucm_crc32c(0, header, crc_at);
	memcpy(header + crc_at, &crc, sizeof(crc));
	ck_assert_int_eq(pwrite(fd, header, sizeof(header), 0),
			 sizeof(header));
	close(fd);
}

static int pay_nothing(void *arg, size_t bytes)
{
	(void)arg, (void)bytes;
	return 0;
}

static int scrub_repr(unsigned i, unsigned dir)
{
	struct ucm_entry entry = entry_of(i);
	uint64_t bytes = 0;

	return ucm_store_scrub_repr(fx_set, ref_of(i), &entry, dir,
				    pay_nothing, NULL, &bytes);
}

/* Who goes back to this release keeps what the later one has made. */
UNIT_TEST(one_of_a_later_version_goes_along_with_its_block)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	make_later(repr_in("$/fast", 0));
	ck_assert_int_eq(scrub_repr(0, 0), 0);
	ck_assert_int_eq(copy_to(0, 1, true), 0);
	must(fx_exists(repr_in("$/slow", 0)));
	fx_close();
	fx_unlink(fx_path("$/slow/.ucmfs/snapshot"));
	fx_open();
	fx_start();
	must(entry_of(0).has_repr);
	entry_is_right(0);
	ck_assert_uint_eq(num_aside("$/fast") + num_aside("$/slow"), 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &files[0].key), 0);
	must(!fx_exists(repr_in("$/slow", 0)));
}

UNIT_TEST(a_scrub_condemns_one_that_is_too_large)
{
	open_still("t=$/t");
	commit_with_repr(0);
	ck_assert_int_eq(truncate(repr_in("$/t", 0),
				  UCM_STORE_REPR_MAX + 4096), 0);
	ck_assert_int_eq(scrub_repr(0, 0), -EBADMSG);
	must(!entry_of(0).has_repr);
	ck_assert_uint_eq(num_aside("$/t"), 1);
}

static const char *large_in(const char *dir)
{
	return fx_path("%s/blocks/%.2s/%s.repr", dir, fx_name(&large_file),
		       ucm_hex(&large_file.key.id).text);
}

/* A block with a wrong file in the first place, and a right one in the second. */
static void open_large_in_two_places(void)
{
	struct repr repr;

	open_still(TWO_TIERS);
	repr = commit_large();
	ck_assert_int_eq(put_watched(&repr), 0);
	copy_large();
	damage(large_in("$/fast"));
	free(repr.bytes);
}

static int scrub_large(void)
{
	struct ucm_entry entry;
	uint64_t bytes;

	must(ucm_index_get(fx_set->index, large_ref(), &entry));
	return ucm_store_scrub_repr(fx_set, large_ref(), &entry, 0,
				    pay_nothing, NULL, &bytes);
}

/* The copy may be large, and its server slow. */
UNIT_TEST(a_scrub_mends_one_without_the_lock)
{
	open_large_in_two_places();
	watched = (struct watched){ .writes = 0 };
	ucm_os_fault = watch;
	ck_assert_int_eq(scrub_large(), -EBADMSG);
	ucm_os_fault = NULL;
	ck_assert_uint_ge(watched.writes, 9);
	ck_assert_uint_eq(watched.locked, 0);
	ck_assert_uint_eq(num_aside("$/fast"), 1);
	ck_assert_int_eq(scrub_large(), 0);
}

UNIT_TEST(one_that_no_place_has_right_is_in_no_entry)
{
	struct ucm_entry entry;

	open_large_in_two_places();
	ck_assert_int_eq(unlink(large_in("$/slow")), 0);
	ck_assert_int_eq(scrub_large(), -EBADMSG);
	must(ucm_index_get(fx_set->index, large_ref(), &entry));
	must(!entry.has_repr);
}

/* It stays where it is; but the block has none from now on. */
UNIT_TEST(a_scrub_says_what_becomes_of_a_wrong_one_on_a_readonly_directory)
{
	open_still("t=$/t");
	commit_with_repr(0);
	damage(repr_in("$/t", 0));
	fx_set->dirs.at[0]->readonly = true;
	ck_assert_int_eq(scrub_repr(0, 0), -EBADMSG);
	must(!entry_of(0).has_repr);
	must(fx_exists(repr_in("$/t", 0)));
	must(fx_logged("found by a scrub: not used"));
}

UNIT_TEST(one_goes_to_the_quarantine_with_its_block)
{
	struct stat st;

	open_still("t=$/t");
	commit_with_repr(0);
	ck_assert_int_eq(fx_stat(block_in("$/t", 0), &st), 0);
	ucm_store_condemn(fx_set, ref_of(0), 0, &st, UCM_FAULT_PAYLOAD, "");
	must(!fx_exists(repr_in("$/t", 0)));
	ck_assert_uint_eq(num_aside("$/t"), 2);
}

/* It may be the server's fault, and not the file's. */
UNIT_TEST(one_whose_directory_does_not_answer_stays)
{
	open_still(TWO_TIERS);
	commit_with_repr(0);
	fx_fail_on("open", ".repr", 1, -ETIMEDOUT, false);
	ck_assert_int_eq(copy_to(0, 1, false), -ETIMEDOUT);
	fx_fail(NULL, 0, 0, false);
	must(!fx_exists(block_in("$/slow", 0)));
	ck_assert_int_eq(serves(0, 1), 0);
}
