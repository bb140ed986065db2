/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lessee.c - a lessee, with calls of a mount that is not there: those of
 * <ucm/blocks.h> are here, and keep books.
 */
#include <config.h>

#include <ucm/lessee.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <ucm/blocks.h>

#include "common/clock.h"
#include "tests/unit/unit.h"

enum { CALLS_MOST = 64, IDS = 3 };

struct call {
	uint32_t flags, lease_ms;
	size_t num;
	struct ucm_id first;
	char space[32];
};

/* The mount. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct call calls[CALLS_MOST];
static unsigned num_calls, opened, closed;
static int open_err, call_err; /* what it says */
static int32_t result_of_first;
static bool hangs, is_in;
static struct ucm_lessee *lessee;
static struct ucm_id ids[IDS];

int ucm_blocks_open(const char *mount, struct ucm_blocks **out)
{
	int err;

	pthread_mutex_lock(&lock);
	must(!strcmp(mount, "/mnt/kv"));
	err = open_err;
	opened += !err;
	*out = err ? NULL : (struct ucm_blocks *)&opened;
	pthread_mutex_unlock(&lock);
	return err;
}

void ucm_blocks_close(struct ucm_blocks *blocks)
{
	pthread_mutex_lock(&lock);
	closed += blocks != NULL;
	pthread_mutex_unlock(&lock);
}

int ucm_blocks_lease(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *some, size_t num, uint32_t flags,
		     uint32_t lease_ms, int32_t *results)
{
	int err;

	must(blocks == (struct ucm_blocks *)&opened);
	pthread_mutex_lock(&lock);
	must(num_calls < CALLS_MOST);
	is_in = true;
	pthread_cond_broadcast(&changed);
	while (hangs)
		pthread_cond_wait(&changed, &lock);
	calls[num_calls] = (struct call){ .flags = flags,
					  .lease_ms = lease_ms,
					  .num = num,
					  .first = some[0] };
	strcpy(calls[num_calls++].space, space);
	memset(results, 0, num * sizeof(*results));
	results[0] = result_of_first;
	err = call_err;
	if (err == -ENOTCONN)
		call_err = 0; /* the next mount */
	is_in = false;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return err;
}

static void wait_calls(unsigned num)
{
	pthread_mutex_lock(&lock);
	while (num_calls < num)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static void set_hangs(bool on)
{
	pthread_mutex_lock(&lock);
	hangs = on;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void wait_in(void)
{
	pthread_mutex_lock(&lock);
	while (!is_in)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static struct ucm_lessee_stats stats(void)
{
	struct ucm_lessee_stats out;

	ucm_lessee_get_stats(lessee, &out);
	return out;
}

static void setup(void)
{
	for (unsigned i = 0; i < IDS; i++)
		memset(&ids[i], (int)i + 1, sizeof(ids[i]));
	num_calls = opened = closed = 0;
	open_err = call_err = result_of_first = 0;
	hangs = is_in = false;
	ck_assert_int_eq(ucm_lessee_open("/mnt/kv", 0, &lessee), 0);
}

static void teardown(void)
{
	ucm_lessee_close(lessee);
}

/* One whose leases are short, so that renewals are soon. */
static void reopen(uint32_t lease_ms)
{
	ucm_lessee_close(lessee);
	ck_assert_int_eq(ucm_lessee_open("/mnt/kv", lease_ms, &lessee), 0);
}

static uint64_t hold(uint32_t for_ms)
{
	return ucm_lessee_hold(lessee, "space", ids, IDS, for_ms);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(a_request_is_one_call_and_its_release_another)
{
	uint64_t number = hold(60000);

	ck_assert_uint_ne(number, 0);
	wait_calls(1);
	ck_assert_uint_eq(calls[0].num, IDS);
	ck_assert_uint_eq(calls[0].flags, 0);
	ck_assert_uint_eq(calls[0].lease_ms, UCM_LESSEE_MS);
	ck_assert_str_eq(calls[0].space, "space");
	ucm_lessee_release(lessee, number);
	wait_calls(2);
	ck_assert_uint_eq(calls[1].num, IDS);
	ck_assert_uint_eq(calls[1].lease_ms, 0);
	ucm_lessee_release(lessee, number); /* harmless */
	ucm_lessee_release(lessee, 0);
	ucm_lessee_close(lessee);
	lessee = NULL;
	ck_assert_uint_eq(num_calls, 2);
	ck_assert_uint_eq(opened, 1);
	ck_assert_uint_eq(closed, 1);
}

UNIT_TEST(it_is_renewed_until_it_is_released)
{
	uint64_t number;

	reopen(20);
	number = hold(60000);
	wait_calls(4);
	for (unsigned i = 1; i < 4; i++)
		ck_assert_uint_eq(calls[i].flags, UCM_LEASE_RENEW);
	ucm_lessee_release(lessee, number);
	while (stats().holds)
		;
	ck_assert_uint_eq(stats().leased, IDS);
	ck_assert_uint_eq(calls[num_calls - 1].lease_ms, 0);
}

UNIT_TEST(it_is_not_held_for_longer_than_was_asked_for)
{
	int64_t began = ucm_monotonic_ms();

	reopen(20);
	hold(50);
	wait_calls(1);
	while (stats().holds)
		;
	ck_assert_int_ge(ucm_monotonic_ms() - began, 50);
	/* the last ones are as short as what is left, and run out */
	for (unsigned i = 0; i < num_calls; i++)
		ck_assert(calls[i].lease_ms > 0 && calls[i].lease_ms <= 20);
	ck_assert_uint_eq(stats().blocks, 0);
}

UNIT_TEST(what_was_not_leased_is_not_given_back)
{
	uint64_t number;

	result_of_first = -EDQUOT;
	number = hold(60000);
	wait_calls(1);
	ucm_lessee_release(lessee, number);
	wait_calls(2);
	ck_assert_uint_eq(calls[1].num, IDS - 1);
	ck_assert_mem_eq(&calls[1].first, &ids[1], sizeof(ids[1]));
	ck_assert_uint_eq(stats().refused, 1);
	ck_assert_uint_eq(stats().leased, IDS - 1);
	ck_assert_uint_eq(stats().absent, 0);
}

/* A daemon that hangs holds up nobody, and what was given up costs no call. */
UNIT_TEST(what_is_released_before_its_turn_costs_no_call)
{
	uint64_t numbers[3];

	set_hangs(true);
	for (unsigned i = 0; i < 3; i++)
		numbers[i] = hold(60000);
	wait_in();
	ucm_lessee_release(lessee, numbers[1]);
	ucm_lessee_release(lessee, numbers[0]); /* it is being leased */
	set_hangs(false);
	wait_calls(3);
	while (stats().holds > 1 || stats().leased < 2 * IDS)
		;
	ck_assert_uint_eq(num_calls, 3); /* first, its end, third */
	ck_assert_uint_eq(stats().leased, 2 * IDS);
	(void)numbers[2];
}

UNIT_TEST(without_a_mount_nothing_is_held_and_nothing_fails)
{
	open_err = -ENOENT;
	ck_assert_uint_ne(hold(60000), 0);
	while (!stats().calls)
		;
	ck_assert_uint_eq(stats().failed, 1);
	ck_assert_uint_eq(stats().leased, 0);
	ck_assert_uint_eq(num_calls, 0);
}

UNIT_TEST(an_older_daemon_gives_no_leases_and_is_asked_for_nothing_back)
{
	uint64_t number;

	call_err = -ENOTTY;
	number = hold(60000);
	wait_calls(1);
	ucm_lessee_release(lessee, number);
	while (stats().holds)
		;
	ck_assert_uint_eq(num_calls, 1);
	ck_assert_uint_eq(stats().failed, 1);
}

UNIT_TEST(a_mount_that_is_back_is_asked_again)
{
	call_err = -ENOTCONN;
	hold(60000);
	wait_calls(2);
	while (!stats().leased)
		;
	ck_assert_uint_eq(opened, 2);
	ck_assert_uint_eq(closed, 1);
	ck_assert_uint_eq(stats().failed, 0);
}

UNIT_TEST(the_end_gives_everything_back)
{
	for (unsigned i = 0; i < 5; i++)
		hold(60000);
	wait_calls(5);
	ucm_lessee_close(lessee);
	lessee = NULL;
	ck_assert_uint_eq(num_calls, 10);
	for (unsigned i = 5; i < 10; i++)
		ck_assert_uint_eq(calls[i].lease_ms, 0);
}

UNIT_TEST(the_end_does_not_wait_for_a_daemon_that_hangs)
{
	int64_t began = ucm_monotonic_ms();

	set_hangs(true);
	hold(60000);
	wait_in();
	ucm_lessee_close(lessee);
	lessee = NULL;
	ck_assert_int_lt(ucm_monotonic_ms() - began, 10000);
}

UNIT_TEST(what_cannot_be_held_is_said)
{
	char space[200];

	memset(space, 'x', sizeof(space));
	space[sizeof(space) - 1] = '\0';
	ck_assert_uint_eq(ucm_lessee_hold(lessee, space, ids, IDS, 1000), 0);
	ck_assert_uint_eq(ucm_lessee_hold(lessee, NULL, ids, 0, 1000), 0);
	ck_assert_uint_eq(ucm_lessee_hold(lessee, NULL, ids, 2 << 20, 1000), 0);
	ck_assert_uint_ne(ucm_lessee_hold(lessee, NULL, ids, 1, 1000), 0);
	wait_calls(1);
	ck_assert_str_eq(calls[0].space, "");
	ucm_lessee_close(lessee);
	lessee = NULL;
	ck_assert_int_eq(ucm_lessee_open("/mnt/kv", 60001, &lessee), -EINVAL);
	ck_assert_ptr_null(lessee);
}
