/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_quota.c - what the blocks of a space may take on disk.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fs/store/motion/motion.h"
#include "fs/store/quota.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192u /* of a block of FX_PAGED */

#define FILES 40u /* of fx_files that are used */
static struct ucm_space *space;

static void use_space(void)
{
	space = ucm_namespace_find(&fx_set->names, "s");
	must(space);
	for (unsigned i = 0; i < FILES; i++)
		fx_files[i].key.space = space->number;
}

/* With a policy and a space; nothing moves by itself. */
static void still_store(const char *source)
{
	fx_still_store(source);
	must(!ucm_store_mkdir(fx_set, "s", 0755, 0, 0, &space));
	use_space();
}

static void restart(void)
{
	fx_close();
	fx_open();
	fx_start();
	use_space();
}

static void limit_to(unsigned blocks)
{
	ck_assert_int_eq(
		ucm_store_set_quota(fx_set, space, (uint64_t)blocks * BYTES),
		0);
}

static bool is_there(unsigned i)
{
	return ucm_index_find(fx_set->index, &fx_files[i].key, NULL, NULL);
}

static unsigned count(void)
{
	unsigned num = 0;

	for (unsigned i = 0; i < FILES; i++)
		num += is_there(i);
	return num;
}

static ucm_ref ref_of(unsigned i)
{
	ucm_ref ref;

	must(ucm_index_find(fx_set->index, &fx_files[i].key, NULL, &ref));
	return ref;
}

/* What it takes is what its blocks take, and nothing is promised any more. */
static void sums_are_right(void)
{
	ck_assert_uint_eq(space->used, (uint64_t)count() * BYTES);
	ck_assert_uint_eq(space->writing, 0);
}

UNIT_FIXTURE(.setup = fx_setup_files, .teardown = fx_teardown);

/* ---- sums ---- */

UNIT_TEST(a_block_counts_once_wherever_it_lies)
{
	struct ucm_move_terms move = { .first = true };

	still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 2);
	sums_are_right();
	move.to = &fx_set->dirs.tiers[1];
	ck_assert_int_eq(ucm_store_copy(fx_set, ref_of(0), &move, NULL), 0);
	ck_assert_uint_eq(fx_set->dirs.at[0]->used, 2 * BYTES);
	ck_assert_uint_eq(fx_set->dirs.at[1]->used, BYTES);
	sums_are_right();
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref_of(0), 0, NULL), 0);
	sums_are_right();
	ck_assert_int_eq(ucm_store_remove(fx_set, &fx_files[0].key), 0);
	sums_are_right();
	restart();
	ck_assert_uint_eq(count(), 1);
	sums_are_right();
}

UNIT_TEST(a_file_that_is_dropped_gives_back_what_was_promised)
{
	struct ucm_temp temp;
	int fd;

	still_store("$/a");
	limit_to(2);
	fd = fx_create(&fx_files[0].key, BYTES, &temp);
	ck_assert_int_ge(fd, 0);
	ck_assert_uint_eq(space->writing, BYTES);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	sums_are_right();
}

UNIT_TEST(a_file_larger_than_promised_is_promised_the_rest)
{
	struct ucm_temp temp;
	int fd;

	still_store("$/a");
	limit_to(2);
	fd = fx_create(&fx_files[0].key, BYTES / 2, &temp);
	ck_assert_int_ge(fd, 0);
	ck_assert_uint_eq(space->writing, BYTES / 2);
	ck_assert_int_eq(fx_pwrite(fd, fx_files[0].bytes, fx_files[0].len, 0),
			 (ssize_t)fx_files[0].len);
	ck_assert_int_eq(
		fx_commit_temp(&temp, fd, &fx_files[0].key, UCM_COMMIT_NOW), 0);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	sums_are_right();
}

/* ---- room ---- */

UNIT_TEST(in_a_full_space_the_oldest_goes_for_a_new_one)
{
	still_store("$/a");
	limit_to(4);
	fx_commit_files(0, 4);
	for (unsigned i = 0; i < 3; i++) /* the last one was used least lately */
		ck_assert_int_eq(ucm_store_touch(fx_set, ref_of(i)), 0);
	fx_commit_files(4, 1);
	ck_assert_uint_eq(count(), 4);
	ck_assert(is_there(4));
	sums_are_right();
	ck_assert_uint_eq(space->quota->evicted, 1);
}

UNIT_TEST(another_space_loses_nothing)
{
	struct ucm_space *other;
	struct fx_file file;

	still_store("$/a");
	ck_assert_int_eq(
		ucm_store_mkdir(fx_set, "other", 0755, 0, 0, &other), 0);
	for (unsigned i = 0; i < 20; i++) {
		fx_block(&file, 100 + i, FX_PAGED);
		file.key.space = i % 2 ? other->number : 0;
		ck_assert_int_eq(fx_commit(&file), 0);
	}
	limit_to(3);
	fx_commit_files(0, 30);
	ck_assert_uint_eq(count(), 3);
	ck_assert_uint_eq(other->blocks, 10);
	ck_assert_uint_eq(fx_set->names.spaces[0]->blocks, 10);
	sums_are_right();
}

UNIT_TEST(a_chain_is_eaten_from_its_end)
{
	still_store("fast=$/a:slow=$/b");
	for (unsigned i = 1; i < 8; i++) {
		fx_files[i].block.flags |= UCM_BLOCK_HAS_PARENT;
		fx_files[i].block.parent = fx_files[i - 1].key.id;
		fx_encode(&fx_files[i], true);
	}
	limit_to(8);
	fx_commit_files(0, 8);
	fx_commit_files(10, 3);
	ck_assert_uint_eq(count(), 8);
	ck_assert(is_there(0) && is_there(1));
	for (unsigned i = 1; i < 8; i++)
		ck_assert(!is_there(i) || is_there(i - 1));
	sums_are_right();
}

UNIT_TEST(where_nothing_may_go_the_quota_is_exceeded)
{
	still_store("$/a");
	limit_to(2);
	fx_commit_files(0, 2);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(i), true), 0);
	ck_assert_int_eq(fx_commit(&fx_files[2]), -EDQUOT);
	ck_assert(fx_logged("the quota of 16384 bytes is used up"));
	ck_assert(fx_logged("of 64 blocks that were looked at 64 are pinned"));
	ck_assert_uint_eq(count(), 2);
	sums_are_right();
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(1), false), 0);
	fx_commit_files(2, 1);
	ck_assert(is_there(0) && !is_there(1));
}

UNIT_TEST(a_block_that_is_larger_than_the_quota_takes_nothing_away)
{
	still_store("$/a");
	fx_commit_files(0, 3);
	ck_assert_int_eq(ucm_store_set_quota(fx_set, space, BYTES / 2), 0);
	ck_assert_int_eq(fx_commit(&fx_files[3]), -EDQUOT);
	ck_assert(fx_logged("it takes 8192 bytes, and the quota is 4096"));
	ck_assert_uint_eq(count(), 3);
}

UNIT_TEST(without_a_policy_nothing_goes)
{
	fx_configure("$/a");
	fx_option("policy", "none");
	fx_open();
	fx_start();
	must(!ucm_store_mkdir(fx_set, "s", 0755, 0, 0, &space));
	use_space();
	limit_to(2);
	fx_commit_files(0, 2);
	ck_assert_int_eq(fx_commit(&fx_files[2]), -EDQUOT);
	ck_assert_uint_eq(count(), 2);
}

/* Its size is not known before: at its commit it has to fit. */
UNIT_TEST(a_file_of_unknown_size_has_to_fit_when_it_is_committed)
{
	struct ucm_temp temp;
	int fd;

	still_store("$/a");
	limit_to(2);
	fd = fx_create(&fx_files[0].key, 0, &temp);
	ck_assert_int_ge(fd, 0);
	ck_assert_uint_eq(space->writing, 0);
	ck_assert_int_eq(fx_pwrite(fd, fx_files[0].bytes, fx_files[0].len, 0),
			 (ssize_t)fx_files[0].len);
	fx_commit_files(1, 2);
	ck_assert_int_eq(
		fx_commit_temp(&temp, fd, &fx_files[0].key, UCM_COMMIT_NOW), 0);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	ck_assert_uint_eq(count(), 2);
	ck_assert(is_there(0));
	sums_are_right();
}

UNIT_TEST(a_file_counts_where_it_becomes_a_block)
{
	struct ucm_space *other;
	struct ucm_temp temp;
	int fd;

	still_store("$/a");
	ck_assert_int_eq(
		ucm_store_mkdir(fx_set, "other", 0755, 0, 0, &other), 0);
	limit_to(1);
	ck_assert_int_eq(ucm_store_set_quota(fx_set, other, 10 * BYTES), 0);
	fx_commit_files(1, 1);
	fx_files[0].key.space = other->number;
	fd = fx_create(&fx_files[0].key, BYTES, &temp);
	ck_assert_int_ge(fd, 0);
	ck_assert_uint_eq(other->writing, BYTES);
	ck_assert_int_eq(fx_pwrite(fd, fx_files[0].bytes, fx_files[0].len, 0),
			 (ssize_t)fx_files[0].len);
	fx_files[0].key.space = space->number;
	ck_assert_int_eq(
		fx_commit_temp(&temp, fd, &fx_files[0].key, UCM_COMMIT_NOW), 0);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	ck_assert_uint_eq(other->writing, 0);
	ck_assert(is_there(0) && !is_there(1));
	sums_are_right();
}

UNIT_TEST(a_block_that_is_there_takes_nothing_away)
{
	still_store("$/a");
	limit_to(2);
	fx_commit_files(0, 2);
	fx_commit_files(0, 2);
	ck_assert_uint_eq(count(), 2);
	sums_are_right();
}

static _Atomic bool over;

static void *write_some(void *arg)
{
	unsigned first = (unsigned)(uintptr_t)arg;

	for (unsigned round = 0; round < 30; round++) {
		for (unsigned i = first; i < first + 10; i++) {
			int err = fx_commit(&fx_files[i]);

			if (err || space->used > 6 * BYTES)
				over = true;
			ucm_store_remove(fx_set, &fx_files[first].key);
		}
	}
	return NULL;
}

UNIT_TEST(writers_at_the_same_time_never_pass_it)
{
	pthread_t threads[4];

	still_store("fast=$/a:slow=$/b");
	limit_to(6);
	over = false;
	for (uintptr_t i = 0; i < NUM_ROWS(threads); i++)
		must(!pthread_create(&threads[i], NULL, write_some,
				     (void *)(i * 10)));
	for (unsigned i = 0; i < NUM_ROWS(threads); i++)
		pthread_join(threads[i], NULL);
	ck_assert(!over);
	sums_are_right();
}

static void *write_one(void *arg)
{
	return (void *)(intptr_t)fx_commit(&fx_files[(uintptr_t)arg]);
}

/* Those of 0 to 35 that are lacking, and no others. */
static void fill_with_36(void)
{
	limit_to(40);
	for (unsigned i = 0; i < 36; i++) {
		if (!is_there(i))
			ck_assert_int_eq(fx_commit(&fx_files[i]), 0);
	}
	for (unsigned i = 36; i < 40; i++)
		ucm_store_remove(fx_set, &fx_files[i].key);
}

/* Each of them lacks all that is over a quota that was made smaller: it is evicted
 * once. They do not meet each time. One that is being committed counts twice for a moment
 * (quota.c), for which another may evict one more. */
static void write_four(void)
{
	pthread_t threads[4];
	void *result;

	for (uintptr_t i = 0; i < NUM_ROWS(threads); i++)
		must(!pthread_create(&threads[i], NULL, write_one,
				     (void *)(36 + i)));
	for (unsigned i = 0; i < NUM_ROWS(threads); i++) {
		pthread_join(threads[i], &result);
		ck_assert_ptr_null(result);
	}
}

UNIT_TEST(writers_evict_no_more_than_they_lack)
{
	still_store("fast=$/a:slow=$/b");
	for (unsigned round = 0; round < 8; round++) {
		fill_with_36();
		limit_to(20);
		write_four();
		ck_assert_uint_le(count(), 20);
		ck_assert_uint_ge(count(), 17);
		sums_are_right();
	}
}

/* ---- movers ---- */

/* A quota of ten blocks: movers evict above 90 percent, down to 50. */
static void still_store_of_ten(void)
{
	still_store("$/a");
	fx_config.high = 90;
	fx_config.low = 50;
	limit_to(10);
}

static void pin(unsigned first, unsigned num, bool on)
{
	for (unsigned i = first; i < first + num; i++)
		ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(i), on), 0);
}

UNIT_TEST(between_the_marks_nothing_is_evicted)
{
	still_store_of_ten();
	fx_commit_files(0, 9);
	ck_assert(!ucm_quota_relieve(fx_set));
	ck_assert_uint_eq(count(), 9);
	fx_commit_files(9, 1);
	ck_assert(ucm_quota_relieve(fx_set));
	ck_assert_uint_eq(count(), 5);
	sums_are_right();
}

UNIT_TEST(once_begun_it_goes_on_to_the_low_mark)
{
	still_store_of_ten();
	fx_commit_files(0, 10);
	pin(0, 7, true);
	ck_assert(ucm_quota_relieve(fx_set)); /* all that may be evicted */
	ck_assert_uint_eq(count(), 7);
	pin(0, 7, false);
	ck_assert(ucm_quota_relieve(fx_set)); /* below the high mark, too */
	ck_assert_uint_eq(count(), 5);
	fx_commit_files(10, 3); /* it has ended */
	ck_assert(!ucm_quota_relieve(fx_set));
	sums_are_right();
}

UNIT_TEST(headroom_ends_at_the_high_mark_and_after_evictions_at_the_low_one)
{
	still_store_of_ten();
	ck_assert_uint_eq(ucm_quota_headroom(&fx_config, space), 9 * BYTES);
	fx_commit_files(0, 4);
	ck_assert_uint_eq(ucm_quota_headroom(&fx_config, space), 5 * BYTES);
	fx_commit_files(4, 6);
	ck_assert_uint_eq(ucm_quota_headroom(&fx_config, space), 0);
	ck_assert(ucm_quota_relieve(fx_set));
	for (unsigned i = 0; i < 10; i++) /* those that are left */
		ucm_store_remove(fx_set, &fx_files[i].key);
	ck_assert_uint_eq(ucm_quota_headroom(&fx_config, space), 5 * BYTES);
	limit_to(0);
	ck_assert_uint_eq(ucm_quota_headroom(&fx_config, space), UINT64_MAX);
}

/* Movers that get false wait before they look again. */
UNIT_TEST(movers_hear_of_an_eviction_in_any_of_the_spaces)
{
	struct ucm_space *other;

	still_store_of_ten();
	ck_assert_int_eq(
		ucm_store_mkdir(fx_set, "other", 0755, 0, 0, &other), 0);
	for (unsigned i = 20; i < 30; i++)
		fx_files[i].key.space = other->number;
	ck_assert_int_eq(ucm_store_set_quota(fx_set, other, 10 * BYTES), 0);
	fx_commit_files(20, 10);
	ck_assert(ucm_quota_relieve(fx_set));
	fx_commit_files(0, 10);
	ck_assert(ucm_quota_relieve(fx_set));
	ck_assert(!ucm_quota_relieve(fx_set));
}

UNIT_TEST(an_eviction_counts_for_the_tier_of_the_block)
{
	struct ucm_move_terms move = { .first = true };

	still_store("fast=$/a:slow=$/b");
	limit_to(1);
	fx_commit_files(0, 1);
	move.to = &fx_set->dirs.tiers[1];
	ck_assert_int_eq(ucm_store_copy(fx_set, ref_of(0), &move, NULL), 0);
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref_of(0), 0, NULL), 0);
	fx_commit_files(1, 1);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].stats.evicted, 0);
	ck_assert_uint_eq(fx_set->dirs.tiers[1].stats.evicted, 1);
}

UNIT_TEST(a_list_that_lacked_some_has_all_again)
{
	still_store("$/a");
	limit_to(4);
	fx_commit_files(0, 4);
	space->quota->victims.members.lacks_some = true;
	ucm_quota_relist(fx_set);
	fx_commit_files(4, 4);
	ck_assert_uint_eq(count(), 4);
}

static bool is_within(void *arg)
{
	return space->used <= *(const uint64_t *)arg;
}

UNIT_TEST(a_lower_quota_is_reached_by_movers)
{
	uint64_t want = 10 * BYTES;

	fx_configure("fast=$/a:slow=$/b");
	fx_option("policy", "lru");
	fx_open();
	fx_start();
	must(!ucm_store_mkdir(fx_set, "s", 0755, 0, 0, &space));
	use_space();
	fx_commit_files(0, 40);
	limit_to(10);
	fx_wait(is_within, &want);
	ck_assert_uint_ge(count(), 9); /* low is 90 percent */
	sums_are_right();
}

UNIT_TEST(what_a_scan_finds_is_brought_within_the_quota)
{
	uint64_t want = 4 * BYTES;

	still_store("$/a");
	limit_to(4);
	fx_close();
	for (unsigned i = 0; i < 12; i++)
		fx_plant("$/a", "spaces/s", &fx_files[i]);
	fx_open();
	fx_start();
	use_space();
	fx_wait(is_within, &want);
	sums_are_right();
}

/* ---- what is set, and stays ---- */

UNIT_TEST(it_is_there_after_a_restart_and_can_be_lifted)
{
	still_store("$/a");
	limit_to(3);
	restart();
	ck_assert_uint_eq(ucm_quota_of(&fx_config, space), 3 * BYTES);
	limit_to(0);
	ck_assert_uint_eq(ucm_quota_of(&fx_config, space), 0);
	fx_commit_files(0, 10);
	ck_assert_uint_eq(count(), 10);
	restart();
	ck_assert_uint_eq(ucm_quota_of(&fx_config, space), 0);
}

UNIT_TEST(one_that_cannot_be_written_does_not_hold)
{
	still_store("$/a");
	limit_to(3);
	fx_fail("rename", 1, -ENOSPC, true);
	ck_assert_int_eq(ucm_store_set_quota(fx_set, space, BYTES), -ENOSPC);
	ck_assert_uint_eq(ucm_quota_of(&fx_config, space), 3 * BYTES);
}

UNIT_TEST(spaces_without_their_own_have_the_configured_one)
{
	fx_configure("$/a");
	fx_option("policy", "lru");
	fx_option("space_quota", "24K");
	fx_open();
	must(!ucm_store_begin(fx_set));
	fx_set->keepers[0].pins_known = true;
	must(!ucm_store_mkdir(fx_set, "s", 0755, 0, 0, &space));
	use_space();
	fx_commit_files(0, 5);
	ck_assert_uint_eq(count(), 3);
	limit_to(5);
	fx_commit_files(5, 5);
	ck_assert_uint_eq(count(), 5);
	limit_to(0);
	ck_assert_uint_eq(ucm_quota_of(&fx_config, space), 3 * BYTES);
	ck_assert_uint_eq(ucm_quota_of(&fx_config, fx_set->names.spaces[0]), 0);
	restart();
	ck_assert_uint_eq(ucm_quota_of(&fx_config, space), 3 * BYTES);
}

#define GEOMETRY                                                              \
	"\"geometry\": {\"num_layers\": 2, \"block_size\": 4, "               \
	"\"dtype\": \"float16\", \"k_bytes\": 128, \"v_bytes\": 128, "        \
	"\"num_kv_heads\": 2, \"head_dim\": 8, \"order\": \"NHD\"}"

static int write_manifest(const char *text)
{
	return ucm_store_write_manifest(fx_set, space, text, strlen(text));
}

UNIT_TEST(a_manifest_may_say_it_or_leave_it_as_it_is)
{
	static const struct {
		const char *text;
		unsigned blocks;
	} says[] = {
		{ "{\"quota\": 40960}", 5 },
		{ "{" GEOMETRY "}", 5 },
		{ "{" GEOMETRY ", \"quota\": \"24K\"}", 3 },
		{ "{" GEOMETRY ", \"quota\": 0}", 0 },
	};

	still_store("$/a");
	for (unsigned i = 0; i < NUM_ROWS(says); i++) {
		ck_assert_int_eq(write_manifest(says[i].text), 0);
		ck_assert_uint_eq(ucm_quota_of(&fx_config, space),
				  says[i].blocks * BYTES);
		restart();
		ck_assert_uint_eq(ucm_quota_of(&fx_config, space),
				  says[i].blocks * BYTES);
	}
	limit_to(2);
	ck_assert(space->has_manifest);
	restart();
	ck_assert(space->has_manifest);
	ck_assert_uint_eq(ucm_quota_of(&fx_config, space), 2 * BYTES);
	ck_assert_int_eq(write_manifest("{\"quota\": 1}"), -EINVAL);
	ck_assert_int_eq(write_manifest("{" GEOMETRY ", \"quota\": -1}"),
			 -EINVAL);
	ck_assert(fx_logged("quota: not bytes"));
}

/* A restart of the machine empties memory. */
UNIT_TEST(it_is_written_where_it_lasts)
{
	char text[200];

	still_store("fast=$/a:slow=$/b");
	fx_set->dirs.at[0]->flags |= UCM_MEDIUM_VOLATILE;
	limit_to(3);
	ck_assert(fx_exists(fx_path("$/b/spaces/s/space.json")));
	ck_assert(!fx_exists(fx_path("$/a/spaces/s/space.json")));
	ck_assert_int_eq(
		ucm_store_read_manifest(fx_set, space, text, sizeof(text)), 0);
}

UNIT_PROGRAM(.variants = fx_media);
