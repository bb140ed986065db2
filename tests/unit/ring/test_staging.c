/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_staging.c - the memory between files and pages.
 */
#include <config.h>

#include "gpu/ring/staging.h"

#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/ring/arena.h"
#include "tests/unit/random.h"

#define LEN ((size_t)4 << 20)
#define UNIT ((size_t)65536)
#define MAX_SLOTS 64

static struct ucm_staging *staging;

static void setup(void)
{
	ck_assert_int_eq(ucm_staging_open(LEN, -1, &staging), 0);
}

static void teardown(void)
{
	ucm_staging_close(staging);
}

static struct ucm_slot get(size_t len)
{
	struct ucm_slot slot;

	ck_assert_int_eq(ucm_staging_get(staging, len, &slot), 0);
	return slot;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(the_length_is_rounded_up)
{
	struct ucm_staging *odd;

	ck_assert_int_eq(ucm_staging_open(1, -1, &odd), 0);
	ck_assert_uint_eq(ucm_staging_len(odd), (size_t)2 << 20);
	ck_assert_uint_eq((uintptr_t)ucm_staging_memory(odd) % (2 << 20), 0);
	memset(ucm_staging_memory(odd), 1, ucm_staging_len(odd));
	ucm_staging_close(odd);
	ucm_staging_close(NULL);
}

UNIT_TEST(slots_lie_apart_and_aligned)
{
	struct ucm_slot slots[LEN / UNIT];
	struct ucm_slot none = { .memory = NULL };

	for (size_t i = 0; i < NUM_ROWS(slots); i++) {
		slots[i] = get(i % 2 ? UNIT : 1);
		ck_assert_int_eq(slots[i].state, UCM_SLOT_HELD);
		ck_assert_uint_eq((uintptr_t)slots[i].memory %
					  UCM_STAGING_ALIGN,
				  0);
		memset(slots[i].memory, (int)i, slots[i].len);
	}
	ck_assert_int_eq(ucm_staging_get(staging, 1, &none), -EAGAIN);
	ck_assert_ptr_null(none.memory);
	for (size_t i = 0; i < NUM_ROWS(slots); i++) {
		for (size_t j = 0; j < slots[i].len; j++)
			must(slots[i].memory[j] == (uint8_t)i);
		ucm_staging_put(staging, &slots[i]);
		ck_assert_int_eq(slots[i].state, UCM_SLOT_FREE);
		ck_assert_ptr_null(slots[i].memory);
	}
}

UNIT_TEST(what_is_lost_is_never_used_again)
{
	struct ucm_slot lost = get(3 * UNIT), held, slot;
	const uint8_t *gone = lost.memory;

	ucm_slot_move(&lost, UCM_SLOT_HELD, UCM_SLOT_COPY);
	ucm_slot_copied(&lost, true);
	ucm_staging_put(staging, &lost);
	ck_assert_ptr_null(lost.memory);
	for (size_t i = 0; i < 3 * LEN / UNIT; i++) {
		slot = get(UNIT);
		must(slot.memory < gone || slot.memory >= gone + 3 * UNIT);
		ucm_staging_put(staging, &slot);
	}
	ck_assert_int_eq(ucm_staging_get(staging, LEN, &slot), -EIO);
	held = get(UNIT); /* it may come back, and bring room */
	ck_assert_int_eq(ucm_staging_get(staging, LEN, &slot), -EAGAIN);
	ucm_slot_move(&held, UCM_SLOT_HELD, UCM_SLOT_COPY);
	ucm_slot_copied(&held, false);
	ucm_staging_put(staging, &held);
}

/* A child's copy of what is being read would leave one of the two without. */
UNIT_TEST(a_child_does_not_get_it)
{
	unsigned char there;
	int status;
	pid_t child;

	memset(ucm_staging_memory(staging), 1, LEN);
	child = unit_fork();
	if (!child)
		_exit(mincore(ucm_staging_memory(staging), 4096, &there) &&
		      errno == ENOMEM ? 0 : 1);
	ck_assert_int_gt(child, 0);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(ucm_staging_memory(staging)[LEN - 1], 1);
}

UNIT_TEST(memory_of_a_node_is_asked_for)
{
	unsigned long nodes[16] = { 0 };
	struct ucm_staging *near;
	int mode = -1;

	ck_assert(!ucm_arena_has_node(-1));
	ck_assert(!ucm_arena_has_node(1023));
	ck_assert(!ucm_arena_has_node(INT_MAX));
	if (!ucm_arena_has_node(0)) {
		unit_skip("NUMA: this kernel knows no nodes");
		return;
	}
	ck_assert_int_eq(ucm_staging_open(LEN, 0, &near), 0);
	memset(ucm_staging_memory(near), 1, LEN);
	ck_assert_int_eq(syscall(SYS_get_mempolicy, &mode, nodes, 1024,
				 ucm_staging_memory(near), MPOL_F_ADDR), 0);
	ck_assert_int_eq(mode, MPOL_PREFERRED);
	ck_assert_uint_eq(nodes[0], 1);
	ucm_staging_close(near);
}

UNIT_TEST(what_can_never_be_is_refused_for_good)
{
	struct ucm_slot slot, all;

	ck_assert_int_eq(ucm_staging_get(staging, 0, &slot), -EFBIG);
	ck_assert_int_eq(ucm_staging_get(staging, LEN + 1, &slot), -EFBIG);
	ck_assert_int_eq(ucm_staging_get(staging, SIZE_MAX / 2, &slot), -EFBIG);
	all = get(LEN);
	ck_assert_int_eq(ucm_staging_get(staging, LEN, &slot), -EAGAIN);
	ucm_staging_put(staging, &all);
	all = get(LEN);
	ucm_staging_put(staging, &all);
}

/* A hole in front of where the last search ended is found. */
UNIT_TEST(the_search_comes_round)
{
	struct ucm_slot first = get(LEN / 4), rest = get(LEN / 4 * 3), again;

	ucm_staging_put(staging, &first);
	again = get(LEN / 4);
	ck_assert_ptr_eq(again.memory, ucm_staging_memory(staging));
	ucm_staging_put(staging, &again);
	first = get(UNIT);
	ck_assert_int_eq(ucm_staging_get(staging, LEN / 4, &again), -EAGAIN);
	ucm_staging_put(staging, &first);
	ucm_staging_put(staging, &rest);
}

/* At random, and each slot keeps its bytes for as long as it is held. */
UNIT_TEST(no_two_slots_share_a_byte)
{
	struct ucm_slot slots[MAX_SLOTS];
	uint64_t state = random_case(0);
	size_t num = 0, held = 0;

	for (unsigned round = 0; round < 20000; round++) {
		size_t len = (size_t)random_between(&state, 1, 5 * UNIT);

		if (num < MAX_SLOTS && random_next(&state) % 2 &&
		    !ucm_staging_get(staging, len, &slots[num])) {
			slots[num].memory[0] = (uint8_t)round;
			slots[num].memory[len - 1] = (uint8_t)round;
			held += slots[num++].len;
		} else if (num) {
			size_t i = random_next(&state) % num;
			struct ucm_slot *slot = &slots[i];

			must(slot->memory[0] == slot->memory[slot->len - 1] ||
			     slot->len == 1);
			held -= slot->len;
			ucm_staging_put(staging, slot);
			slots[i] = slots[--num];
		}
		must(held <= LEN);
	}
	while (num)
		ucm_staging_put(staging, &slots[--num]);
	slots[0] = get(LEN); /* nothing was lost */
	ucm_staging_put(staging, &slots[0]);
}

/* ---- a pool ---- */

#define MIB ((size_t)1 << 20)
#define MOST_PIECES 64

/* Who is told of the pieces. */
static struct {
	struct { uint8_t *memory; size_t len; } pieces[MOST_PIECES];
	unsigned num, taken;
	size_t bytes;
	size_t most; /* more than that are refused */
} told;

static int on_piece(void *arg, uint8_t *memory, size_t len)
{
	ck_assert_ptr_eq(arg, &told);
	ck_assert_uint_eq(len % (2 * MIB), 0);
	if (told.bytes + len > told.most)
		return -EDQUOT;
	must(told.num < MOST_PIECES);
	told.pieces[told.num].memory = memory;
	told.pieces[told.num++].len = len;
	told.bytes += len;
	told.taken++;
	return 0;
}

static void on_left(void *arg, uint8_t *memory, size_t len)
{
	unsigned i = 0;

	ck_assert_ptr_eq(arg, &told);
	while (i < told.num && told.pieces[i].memory != memory)
		i++;
	must(i < told.num && told.pieces[i].len == len);
	told.pieces[i] = told.pieces[--told.num];
	told.bytes -= len;
}

static const struct ucm_staging_ops telling = { on_piece, on_left };

static struct ucm_staging *open_pool(size_t limit, size_t most)
{
	struct ucm_staging *pool;

	memset(&told, 0, sizeof(told));
	told.most = most;
	ck_assert_int_eq(ucm_staging_open_pool(limit, -1, &telling, &told,
					       &pool), 0);
	return pool;
}

/* Does it lie in one piece that was told? */
static bool is_in_a_piece(const struct ucm_slot *slot)
{
	for (unsigned i = 0; i < told.num; i++) {
		size_t at = (uintptr_t)slot->memory -
			    (uintptr_t)told.pieces[i].memory;

		if (at < told.pieces[i].len)
			return slot->len <= told.pieces[i].len - at;
	}
	return false;
}

UNIT_TEST(a_pool_grows_with_what_is_taken)
{
	struct ucm_staging *pool = open_pool(128 * MIB, SIZE_MAX);
	struct ucm_slot slots[64], none = { .memory = NULL };
	size_t num = 0, before = 0;

	ck_assert_uint_le(ucm_staging_size(pool), 2 * MIB);
	ck_assert_uint_eq(ucm_staging_len(pool), 128 * MIB);
	while (!ucm_staging_get(pool, 4 * MIB + 4096, &slots[num])) {
		ck_assert(is_in_a_piece(&slots[num]));
		ck_assert_uint_le(ucm_staging_size(pool) - before, 20 * MIB);
		before = ucm_staging_size(pool);
		memset(slots[num].memory, (int)num, slots[num].len);
		num++;
	}
	/* little is lost at the ends of pieces */
	ck_assert_uint_ge(num, 28);
	ck_assert_uint_le(ucm_staging_size(pool), 128 * MIB);
	ck_assert_uint_eq(ucm_staging_size(pool), told.bytes);
	ck_assert_int_eq(ucm_staging_get(pool, 4 * MIB, &none), -EAGAIN);
	ck_assert_int_eq(ucm_staging_get(pool, 128 * MIB + 1, &none), -EFBIG);
	for (size_t i = 0; i < num; i++) {
		must(slots[i].memory[slots[i].len - 1] == (uint8_t)i);
		ucm_staging_put(pool, &slots[i]);
	}
	before = ucm_staging_size(pool);
	slots[0] = (struct ucm_slot){ .memory = NULL };
	ck_assert_int_eq(ucm_staging_get(pool, 4 * MIB, &slots[0]), 0);
	ck_assert_uint_eq(ucm_staging_size(pool), before);
	ucm_staging_put(pool, &slots[0]);
	ucm_staging_close(pool);
}

/* Any slot up to the limit is had, whatever was before. */
UNIT_TEST(a_longer_slot_takes_the_place_of_shorter_ones)
{
	struct ucm_staging *pool = open_pool(64 * MIB, SIZE_MAX);
	struct ucm_slot slots[64], large;
	size_t num = 0;

	while (!ucm_staging_get(pool, MIB, &slots[num]))
		num++;
	ck_assert_int_eq(ucm_staging_get(pool, 32 * MIB, &large), -EAGAIN);
	while (num > 1)
		ucm_staging_put(pool, &slots[--num]);
	ck_assert_int_eq(ucm_staging_get(pool, 32 * MIB, &large), 0);
	ck_assert(is_in_a_piece(&large));
	ck_assert(is_in_a_piece(&slots[0]));
	ck_assert_uint_le(ucm_staging_size(pool), 64 * MIB);
	ucm_staging_put(pool, &large);
	ck_assert_int_eq(ucm_staging_get(pool, 64 * MIB, &large), -EAGAIN);
	ucm_staging_put(pool, &slots[0]);
	ck_assert_int_eq(ucm_staging_get(pool, 64 * MIB, &large), 0);
	ck_assert_uint_eq(told.num, 1);
	ucm_staging_put(pool, &large);
	ucm_staging_close(pool);
}

/* Its slots go on in what there is, and it is asked again when it is empty. */
UNIT_TEST(a_pool_that_may_not_grow_stays_as_it_is)
{
	struct ucm_staging *pool = open_pool(64 * MIB, 20 * MIB);
	struct ucm_slot slots[64], none = { .memory = NULL };
	unsigned asked;
	size_t num = 0;

	while (!ucm_staging_get(pool, MIB, &slots[num]))
		num++;
	ck_assert_uint_ge(num, 16);
	ck_assert_uint_le(num, 20);
	ck_assert_uint_eq(ucm_staging_len(pool), told.bytes);
	asked = told.taken;
	told.most = SIZE_MAX;
	ck_assert_int_eq(ucm_staging_get(pool, MIB, &none), -EAGAIN);
	ck_assert_uint_eq(told.taken, asked);
	told.most = 20 * MIB;
	while (num)
		ucm_staging_put(pool, &slots[--num]);
	/* nobody would give anything back: this is what is wrong */
	ck_assert_int_eq(ucm_staging_get(pool, 32 * MIB, &none), -EDQUOT);
	ck_assert_int_eq(ucm_staging_get(pool, MIB, &slots[0]), 0);
	ucm_staging_put(pool, &slots[0]);
	told.most = SIZE_MAX;
	ck_assert_int_eq(ucm_staging_get(pool, 32 * MIB, &slots[0]), 0);
	ck_assert_uint_eq(ucm_staging_len(pool), 64 * MIB);
	ucm_staging_put(pool, &slots[0]);
	ucm_staging_close(pool);
}

/* In normal use there is always a slot that fits when none is taken. */
UNIT_TEST(a_pool_that_was_refused_grows_later)
{
	struct ucm_staging *pool = open_pool(64 * MIB, 20 * MIB);
	struct ucm_slot slots[64];
	size_t num = 0, before;

	while (!ucm_staging_get(pool, MIB, &slots[num]))
		num++;
	before = ucm_staging_size(pool);
	ck_assert_uint_eq(ucm_staging_len(pool), before);
	ck_assert_uint_eq(ucm_staging_limit(pool), 64 * MIB);
	told.most = SIZE_MAX;
	while (num)
		ucm_staging_put(pool, &slots[--num]);
	while (!ucm_staging_get(pool, MIB, &slots[num]))
		num++;
	ck_assert_uint_gt(ucm_staging_size(pool), before);
	ck_assert_uint_eq(ucm_staging_len(pool), 64 * MIB);
	while (num)
		ucm_staging_put(pool, &slots[--num]);
	ucm_staging_close(pool);
}

UNIT_TEST(a_lost_slot_keeps_its_piece)
{
	struct ucm_staging *pool = open_pool(32 * MIB, SIZE_MAX);
	struct ucm_slot slot;
	uint8_t *memory;

	ck_assert_int_eq(ucm_staging_get(pool, UNIT, &slot), 0);
	memory = slot.memory;
	ucm_slot_move(&slot, UCM_SLOT_HELD, UCM_SLOT_COPY);
	ucm_slot_copied(&slot, true);
	ucm_staging_put(pool, &slot);
	memory[0] = 1; /* the device's */
	ck_assert_int_eq(ucm_staging_get(pool, 32 * MIB, &slot), -EIO);
	ck_assert_int_eq(ucm_staging_get(pool, 16 * MIB, &slot), 0);
	ucm_staging_put(pool, &slot);
	ucm_staging_close(pool);
	memory[0] = 2;
	munmap(memory, 2 * MIB);
}

/* At random: lengths and refusals. */
UNIT_TEST(no_two_slots_of_a_pool_share_a_byte)
{
	struct ucm_staging *pool = open_pool(40 * MIB, SIZE_MAX);
	struct ucm_slot slots[MAX_SLOTS];
	uint64_t state = random_case(1);
	size_t num = 0;

	for (unsigned round = 0; round < 4000; round++) {
		size_t most = random_next(&state) % 8 ? MIB : 30 * MIB;
		size_t len = (size_t)random_between(&state, 1, most);

		told.most = random_next(&state) % 4 ? SIZE_MAX : told.bytes;
		if (num < MAX_SLOTS && random_next(&state) % 2 &&
		    !ucm_staging_get(pool, len, &slots[num])) {
			must(is_in_a_piece(&slots[num]));
			slots[num].memory[0] = (uint8_t)round;
			slots[num].memory[len - 1] = (uint8_t)round;
			num++;
		} else if (num) {
			size_t i = random_next(&state) % num;
			struct ucm_slot *slot = &slots[i];

			must(slot->memory[0] == slot->memory[slot->len - 1] ||
			     slot->len == 1);
			ucm_staging_put(pool, slot);
			slots[i] = slots[--num];
		}
		must(ucm_staging_size(pool) == told.bytes);
		must(told.bytes <= 40 * MIB);
	}
	while (num)
		ucm_staging_put(pool, &slots[--num]);
	told.most = SIZE_MAX;
	ck_assert_int_eq(ucm_staging_get(pool, 40 * MIB, &slots[0]), 0);
	ucm_staging_put(pool, &slots[0]);
	ucm_staging_close(pool);
}

UNIT_TEST(a_small_pool_is_one_piece)
{
	struct ucm_staging *pool = open_pool(16 * MIB, SIZE_MAX);

	ck_assert_uint_eq(ucm_staging_size(pool), 16 * MIB);
	ucm_staging_close(pool);
}

UNIT_TEST(a_slot_goes_from_hand_to_hand)
{
	struct ucm_slot slot = get(UNIT);

	ucm_slot_move(&slot, UCM_SLOT_HELD, UCM_SLOT_IO);
	ucm_slot_move(&slot, UCM_SLOT_IO, UCM_SLOT_HELD);
	slot.memory[UNIT - 1] = 1;
	ucm_slot_move(&slot, UCM_SLOT_HELD, UCM_SLOT_COPY);
	ucm_slot_move(&slot, UCM_SLOT_COPY, UCM_SLOT_HELD);
	ucm_staging_put(staging, &slot);
}

#ifndef NDEBUG
UNIT_TEST(a_slot_is_not_taken_from_who_has_it, .signal = SIGABRT)
{
	struct ucm_slot slot = get(UNIT);

	ucm_slot_move(&slot, UCM_SLOT_HELD, UCM_SLOT_IO);
	ucm_staging_put(staging, &slot); /* aborts */
}

UNIT_TEST(a_slot_is_not_moved_from_where_it_is_not, .signal = SIGABRT)
{
	struct ucm_slot slot = get(UNIT);

	ucm_slot_move(&slot, UCM_SLOT_COPY, UCM_SLOT_HELD); /* aborts */
}
#endif
