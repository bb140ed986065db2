/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_iobudget_daemon.c - what a daemon gives to its loaders' budget, daemons
 * that come and go, and whatever is in their memory.
 */
#include <config.h>

#include "gpu/load/budget/iobudget.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/index/memory_layout.h"
#include "tests/unit/load/budget_fixture.h"
#include "tests/unit/random.h"

/* It has no memory for a clock. */
static void start_poor_daemon(uint64_t rate)
{
	server = FAKE_SERVER;
	server.hello.rate = rate;
	make_index();
	budget_fd = -1;
	serve(0);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- what a daemon gives ---- */

/* Where a mount was, there is a folder: that is no mount without a budget. */
UNIT_TEST(a_folder_is_no_mount)
{
	struct ucm_node_budget node;

	fx_mkdirs(fx_path("$/mnt"));
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/mnt"), &node),
			 -ENOENT);
}

UNIT_TEST(limits_and_memory_are_the_daemons, .rows = 2)
{
	const uint64_t rate = _i ? RATE : 0, in_flight = _i ? 0 : SOME;
	const uint32_t dead = 0;
	struct ucm_node_budget node;

	start_daemon(rate, in_flight);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), 0);
	ck_assert_int_eq(node.why, 0);
	ck_assert_uint_eq(node.limits.rate, rate);
	ck_assert_uint_eq(node.limits.in_flight, in_flight);
	atomic_store(&memory->tat_ns, 1);
	ck_assert_int_eq(atomic_fetch_add(&node.memory->tat_ns, 1), 1);
	ck_assert_int_eq(atomic_load(&memory->tat_ns), 2);
	ck_assert(ucm_node_budget_lives(&node));
	must(pwrite(index_fd, &dead, sizeof(dead),
		    offsetof(struct ucm_index_memory_header, alive)) ==
	     sizeof(dead));
	ck_assert(!ucm_node_budget_lives(&node));
	ucm_node_budget_close(&node);
}

static _Atomic unsigned bad_closes;

/* In place of the C library's. */
int close(int fd)
{
	int err = (int)syscall(SYS_close, fd);

	if (err && errno == EBADF)
		bad_closes++;
	return err;
}

/* A second time the number could be that of another thread's file. */
UNIT_TEST(descriptors_of_the_memory_are_closed_once)
{
	struct ucm_node_budget node;

	start_daemon(RATE, 0);
	bad_closes = 0;
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), 0);
	ucm_node_budget_close(&node);
	ck_assert_uint_eq(bad_closes, 0);
}

UNIT_TEST(without_limits_only_the_index_is_mapped)
{
	struct ucm_node_budget node;

	start_daemon(0, 0);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), 0);
	ck_assert_ptr_null(node.memory);
	ck_assert_int_eq(node.why, 0);
	ck_assert(ucm_node_budget_lives(&node));
	ucm_node_budget_close(&node);
}

/* It would be the end of those that map it. */
UNIT_TEST(a_budget_that_ends_too_early_is_refused)
{
	struct ucm_node_budget node;

	server = FAKE_SERVER;
	server.hello.rate = RATE;
	make_index();
	budget_fd = sealed_memory(UCM_CONTROL_BUDGET_BYTES - 1);
	serve(UCM_CONTROL_BUDGET_BYTES);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), -EPROTO);
}

/* ---- one daemon after the other ---- */

static void check_rate(struct taker *taker, uint64_t rate)
{
	run(S);
	run(S);
	check_part(taker->taken, rate, 97, 103);
}

/* Who asks for it in time looks; once, and again when that was in vain. */
UNIT_TEST(an_end_of_the_daemon_is_noticed)
{
	struct ucm_iobudget *budget;

	start_daemon(RATE, 0);
	budget = add()->budget;
	ck_assert(!ucm_iobudget_must_look(budget, now));
	end_daemon();
	ck_assert(ucm_iobudget_must_look(budget, now));
	ck_assert(!ucm_iobudget_must_look(budget, now + S));
	ucm_iobudget_look(budget);
	ck_assert(!ucm_iobudget_must_look(budget, now + MS));
	ck_assert(ucm_iobudget_must_look(budget, now + S));
	start_daemon(RATE, 0);
	ucm_iobudget_look(budget);
	ck_assert(!ucm_iobudget_must_look(budget, now + 2 * S));
}

UNIT_TEST(the_memory_of_one_that_has_ended_is_used_until_there_is_another)
{
	struct taker *first, *second;

	start_daemon(RATE, 0);
	first = add();
	second = add();
	end_daemon();
	ucm_iobudget_look(first->budget);
	run(S);
	run(S);
	check_part(taken_by_all(), RATE, 97, 103);
	check_part(second->taken, taken_by_all(), 48, 52);
	start_daemon(RATE / 2, 0);
	ucm_iobudget_look(first->budget);
	ucm_iobudget_look(second->budget);
	run(S);
	run(S);
	check_part(taken_by_all(), RATE / 2, 97, 103);
	check_part(second->taken, taken_by_all(), 48, 52);
	ck_assert_int_gt(atomic_load(&memory->tat_ns), now - S);
}

static const struct {
	uint64_t before, after; /* rates */
} changes[] = { { 0, RATE }, { RATE, 0 }, { RATE / 2, RATE } };

UNIT_TEST(limits_of_the_next_daemon_hold, .rows = NUM_ROWS(changes))
{
	struct taker *one;

	start_daemon(changes[_i].before, 0);
	one = add();
	one->piece = 2 * SOME;
	one->every_ns = 1; /* one each ms, which is twice RATE */
	if (changes[_i].before)
		check_rate(one, changes[_i].before);
	end_daemon();
	start_daemon(changes[_i].after, 0);
	ucm_iobudget_look(one->budget);
	check_rate(one, changes[_i].after ? changes[_i].after : 2000 * SOME);
}

/* A loader without memory to share keeps the rate by itself. */
UNIT_TEST(a_rate_that_cannot_be_shared_holds_for_one)
{
	struct taker *one;

	start_poor_daemon(RATE);
	one = add();
	ck_assert(fx_logged("cannot be shared"));
	check_rate(one, RATE);
	ck_assert(ucm_iobudget_must_look(one->budget, now));
	end_daemon();
	start_daemon(RATE, 0);
	ucm_iobudget_look(one->budget);
	check_rate(one, RATE);
	ck_assert_int_gt(atomic_load(&memory->tat_ns), now - S);
}

/* The old memory is shared until the new one can be. */
UNIT_TEST(a_moment_without_memory_ends_no_sharing)
{
	struct taker *first, *second;

	start_daemon(RATE, 0);
	first = add();
	second = add();
	end_daemon();
	start_poor_daemon(2 * RATE);
	ucm_iobudget_look(first->budget);
	ucm_iobudget_look(second->budget);
	run(S);
	run(S);
	check_part(taken_by_all(), RATE, 97, 103);
}

/* ---- whatever is in the memory ---- */

/* What was written there, and for how long nothing begins then. */
static const struct {
	int64_t ahead_ns, most_ns;
} written[] = {
	{ 0, 0 },
	{ 500 * MS, 500 * MS },
	{ S, S },
	{ S + 100 * MS, 0 },
	{ 1000 * S, 0 },
	{ -1000 * S, 0 },
};

UNIT_TEST(garbage_costs_a_second_at_most, .rows = NUM_ROWS(written))
{
	struct taker *one;
	int64_t began;

	start_daemon(RATE, 0);
	one = add();
	run(S);
	atomic_store(&memory->tat_ns, now + written[_i].ahead_ns);
	one->taken = 0;
	for (began = now; one->taken < 4 * SOME; now += MS)
		take_all(one);
	/* the slice that it had, and those of four pieces */
	ck_assert_int_le(now - began, written[_i].most_ns + 8 * MS);
	run(S);
	check_part(one->taken, RATE, 97, 108);
}

/* Kept ahead: a slice a second, and all of it a second after the liar has ended. */
UNIT_TEST(a_liar_slows_the_others_for_as_long_as_it_writes)
{
	struct taker *one;
	uint64_t slowly = 0;

	start_daemon(RATE, 0);
	one = add();
	for (unsigned ms = 0; ms < 10000; ms++) {
		atomic_store(&memory->tat_ns, now + S);
		run(MS);
		slowly += ms < 1000 ? 0 : one->taken;
	}
	ck_assert_uint_gt(slowly, 0);
	ck_assert_uint_le(slowly, 10 * (RATE / 1000 + SOME));
	run(S);
	check_rate(one, RATE);
}

/* At random, while four share it: nothing fails, and all is well two seconds later:
 * slices that were reserved come, and then the clock that was written. */
UNIT_TEST(noise_does_no_harm)
{
	uint64_t random = random_case(0);

	start_daemon(RATE, 0);
	for (unsigned i = 0; i < 4; i++)
		add();
	for (unsigned round = 0; round < 300; round++) {
		size_t at = random_next(&random) % sizeof(*memory) / 8;

		((uint64_t *)(void *)memory)[at] = random_next(&random);
		atomic_store(&memory->tat_ns,
			     now + random_between(&random, -2 * S, 2 * S));
		run(2 * MS);
	}
	run(2 * S);
	run(S);
	check_part(taken_by_all(), RATE, 97, 103);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}
