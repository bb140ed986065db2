/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pressure.c - by how much directories are over their marks: high is 90
 * percent, low is 50. The room of the file system is what a test says.
 */
#include <config.h>

#include <errno.h>

#include "fs/store/pressure.h"
#include "fs/store/store.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192ull /* of a block of FX_PAGED */

static struct fx_file files[24];

/* Of each file system, as it is when the store first asks. */
static struct ucm_medium_room room;
static int room_err;
static struct ucm_medium_ops ops;

static int room_as_said(struct ucm_medium *medium, struct ucm_medium_room *out)
{
	(void)medium;
	if (!room_err)
		*out = room;
	return room_err;
}

static void setup(void)
{
	fx_setup();
	for (unsigned i = 0; i < NUM_ROWS(files); i++)
		fx_block(&files[i], i + 1, FX_PAGED);
	room = (struct ucm_medium_room){
		.total_bytes = 1000 * BYTES,
		.free_bytes = 1000 * BYTES,
		.unit = 4096,
	};
	room_err = 0;
}

static void configure(const char *source)
{
	fx_configure(source);
	fx_config.high = 90;
	fx_config.low = 50;
}

/* A store with that limit (or NULL) and these blocks that has not asked yet
 * how much room there is. */
static void open_with(unsigned blocks, const char *limit)
{
	fx_open_still();
	for (unsigned i = 0; i < blocks; i++)
		ck_assert_int_eq(fx_commit(&files[i]), 0);
	fx_close();
	if (limit)
		fx_option("limit", fx_path("%s", limit));
	fx_open_still();
	ops = *fx_set->dirs.at[0]->ops;
	ops.room = room_as_said;
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++)
		fx_set->dirs.at[dir]->ops = &ops;
	for (unsigned i = 0; i < blocks; i++)
		ck_assert_int_eq(fx_find(&files[i]), 0);
}

static struct ucm_tier *tier(unsigned number)
{
	return &fx_set->dirs.tiers[number];
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- by how much ---- */

UNIT_TEST(directories_share_what_their_tier_is_over)
{
	uint64_t sum;

	configure("only=$/a,$/b");
	open_with(20, "only:160K");
	if (!fx_set->dirs.at[0]->blocks || !fx_set->dirs.at[1]->blocks) {
		fx_print_log(); /* was one refused? */
		ck_abort_msg("all blocks are in one");
	}
	sum = ucm_pressure(fx_set, 0) + ucm_pressure(fx_set, 1);
	ck_assert_uint_le(sum, 10 * BYTES);
	ck_assert_uint_ge(sum, 10 * BYTES - 2); /* rounded down */
}

static const char *const limits[] = {"only:80K", "$/a:80K"};

UNIT_TEST(a_file_being_written_counts, .rows = NUM_ROWS(limits))
{
	struct ucm_temp temp;
	int fd;

	configure("only=$/a");
	open_with(9, limits[_i]);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 0);
	fd = fx_create(&files[9].key, BYTES, &temp);
	ck_assert_int_ge(fd, 0);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 5 * BYTES);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
}

/* Of ten blocks: by inodes that are free besides. */
static const struct {
	uint64_t free_files;
	unsigned blocks;
} inodes[] = {{0, 5}, {1, 5}, {2, 0}, {100, 0}};

UNIT_TEST(inodes_have_the_same_marks, .rows = NUM_ROWS(inodes))
{
	configure("only=$/a");
	room.total_files = 1000;
	room.free_files = inodes[_i].free_files;
	open_with(10, NULL);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), inodes[_i].blocks * BYTES);
}

/* Of ten blocks, where 15 are free. */
static const struct {
	const char *reserve;
	unsigned blocks;
} reserves[] = {{"120K", 0}, {"144K", 3}, {"1%", 0}, {"2%", 5}, {"9%", 10}};

UNIT_TEST(a_reserve_is_of_the_whole_file_system, .rows = NUM_ROWS(reserves))
{
	configure("only=$/a");
	fx_option("reserve", reserves[_i].reserve);
	room.free_bytes = 15 * BYTES;
	open_with(10, NULL);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), reserves[_i].blocks * BYTES);
}

UNIT_TEST(a_file_system_that_could_not_be_asked_is_asked_again)
{
	configure("only=$/a");
	fx_option("reserve", "144K");
	room.free_bytes = 15 * BYTES;
	room_err = -EIO;
	open_with(10, NULL);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 0);
	room_err = 0;
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 3 * BYTES);
}

/* ---- what is raised and eased ---- */

UNIT_TEST(a_raise_ends_when_so_much_was_freed)
{
	configure("only=$/a");
	open_with(10, NULL);
	ucm_pressure_raise(fx_set, 0); /* from the high to the low mark */
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 4 * BYTES);
	ucm_pressure_ease(fx_set, 0, BYTES);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 3 * BYTES);
	ucm_pressure_ease(fx_set, 0, 0); /* no more can be */
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 0);
}

/* ---- what a new block lacks ---- */

/* Two blocks, where eight are. */
static const struct {
	const char *limit;
	uint64_t free_bytes, lack;
} lacks[] = {
	{NULL, 100 * BYTES, 1},	      {NULL, 2 * BYTES, 1},
	{NULL, BYTES, BYTES},	      {"only:72K", 100 * BYTES, BYTES},
	{"$/a:72K", 100 * BYTES, BYTES}, {"$/a:72K", 0, 2 * BYTES},
};

UNIT_TEST(a_block_lacks_what_the_narrowest_limit_says,
	  .rows = NUM_ROWS(lacks))
{
	configure("only=$/a");
	room.free_bytes = lacks[_i].free_bytes;
	open_with(8, lacks[_i].limit);
	ck_assert_uint_eq(ucm_pressure_lack(fx_set, 0, 2 * BYTES),
			  lacks[_i].lack);
}

/* ---- what a tier takes ---- */

/* With four blocks, and twelve that are free. */
static const struct {
	const char *limit, *reserve;
	unsigned more; /* blocks: so many, and not one byte more */
} rooms[] = {
	{"only:80K", "0", 1},
	{"$/a:80K", "0", 1},
	{NULL, "80K", 2},
};

UNIT_TEST(room_ends_at_the_low_mark, .rows = NUM_ROWS(rooms))
{
	uint64_t more = rooms[_i].more * BYTES;

	configure("only=$/a");
	fx_option("reserve", rooms[_i].reserve);
	room.free_bytes = 12 * BYTES + 1;
	open_with(4, rooms[_i].limit);
	ck_assert(ucm_pressure_leaves_room(fx_set, tier(0), more));
	ck_assert(!ucm_pressure_leaves_room(fx_set, tier(0), more + 1));
}

UNIT_TEST(room_in_one_directory_of_a_tier_is_enough)
{
	configure("only=$/a,$/b");
	open_with(0, "$/a:8K");
	ck_assert(ucm_pressure_leaves_room(fx_set, tier(0), 5 * BYTES));
}

/* With four blocks: without evictions so far, and with some. */
static const struct {
	const char *limit;
	uint64_t free_bytes;
	unsigned before, after;
} headrooms[] = {
	{"only:80K", 100 * BYTES, 5, 1},
	{"$/a:80K", 100 * BYTES, 5, 1},
	{"only:80K", 3 * BYTES, 3, 1},
	{"only:16K", 100 * BYTES, 0, 0},
};

UNIT_TEST(headroom_ends_at_the_high_mark_and_after_evictions_at_the_low_one,
	  .rows = NUM_ROWS(headrooms))
{
	configure("only=$/a");
	room.free_bytes = headrooms[_i].free_bytes;
	open_with(4, headrooms[_i].limit);
	ck_assert_uint_eq(ucm_pressure_headroom(fx_set, tier(0), false),
			  headrooms[_i].before * BYTES);
	ck_assert_uint_eq(ucm_pressure_headroom(fx_set, tier(0), true),
			  headrooms[_i].after * BYTES);
}

/* What was made free there is for those that come, and no headroom. */
UNIT_TEST(without_a_limit_headroom_is_what_is_free_and_not_reserved)
{
	configure("only=$/a");
	fx_option("reserve", "16K");
	room.free_bytes = 12 * BYTES;
	open_with(10, NULL);
	ck_assert_uint_eq(ucm_pressure_headroom(fx_set, tier(0), false),
			  10 * BYTES);
	ck_assert_uint_eq(ucm_pressure_headroom(fx_set, tier(0), true),
			  6 * BYTES); /* less 40 percent of what it has */
}

UNIT_TEST(a_directory_that_is_drained_has_no_headroom)
{
	configure("only=$/a");
	open_with(1, NULL);
	fx_set->dirs.at[0]->draining = true;
	ck_assert_uint_eq(ucm_pressure_headroom(fx_set, tier(0), false), 0);
}

/* ---- tiers ---- */

UNIT_TEST(the_tier_below_is_one_that_can_be_written_to)
{
	configure("fast=$/a:mid=$/b:slow=$/c");
	open_with(0, NULL);
	ck_assert_ptr_eq(ucm_tier_below(fx_set, tier(0)), tier(1));
	tier(1)->readonly = true;
	ck_assert_ptr_eq(ucm_tier_below(fx_set, tier(0)), tier(2));
	ck_assert_ptr_null(ucm_tier_below(fx_set, tier(2)));
}

/* In memory alone: a directory insists on its own operations. */
UNIT_PROGRAM(.variants = fx_media + 1);
