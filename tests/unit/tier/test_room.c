/* SPDX-License-Identifier: Apache-2.0 */
/* test_room.c - what is promised of a file system is not free any more. */
#include <config.h>

#include "fs/tier/room.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "fs/medium/dir/dir.h"
#include "tests/unit/tier_fixture.h"

static struct ucm_room *room;
static uint64_t most; /* what is free, or a bit less: others write as well */
static struct ucm_medium *dir;

static void setup(void)
{
	struct ucm_medium_room there;
	struct ucm_error error;

	fx_setup();
	fx_configure("$/a");
	ck_assert_int_eq(ucm_medium_open(ucm_directory_open, fx_path("$/a"),
					 false, &fx_config, &dir, &error), 0);
	ck_assert_int_eq(dir->ops->room(dir, &there), 0);
	most = there.free_bytes;
	room = ucm_room_get(dir->dev);
	ck_assert_ptr_nonnull(room);
}

static void teardown(void)
{
	ucm_room_put(room);
	ucm_medium_close(dir, false);
	ucm_medium_free(dir);
	fx_teardown();
}

static bool take(struct ucm_promise *promise, unsigned percent)
{
	promise->bytes = most / 100 * percent;
	return ucm_room_take(room, dir, promise);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(room_is_promised_once)
{
	struct ucm_promise first = { 0 }, second = { 0 }, third = { 0 };

	ck_assert(take(&first, 60));
	ck_assert(!take(&second, 60));
	ck_assert(take(&second, 20));
	ck_assert(!take(&third, 40));
	ucm_room_give_back(&first);
	ucm_room_give_back(&first); /* once only */
	ck_assert(take(&third, 60));
	ucm_room_give_back(&second);
	ucm_room_give_back(&third);
	ck_assert(take(&first, 90));
	ucm_room_give_back(&first);
}

UNIT_TEST(who_holds_a_file_system_shares_its_room)
{
	struct ucm_promise first = { 0 }, second = { 0 };
	struct ucm_room *again, *other;

	again = ucm_room_get(dir->dev);
	other = ucm_room_get(dir->dev + 1);
	ck_assert_ptr_eq(again, room);
	ck_assert_ptr_ne(other, room);
	ck_assert(take(&first, 60));
	second.bytes = first.bytes;
	ck_assert(!ucm_room_take(again, dir, &second));
	ck_assert(ucm_room_take(other, dir, &second));
	ucm_room_give_back(&first);
	ucm_room_give_back(&second);
	ucm_room_put(again);
	ucm_room_put(other);
}

UNIT_TEST(a_guess_makes_do_with_what_is_left_if_it_is_the_only_one)
{
	struct ucm_promise sure = { 0 };
	struct ucm_promise guess = { .guessed = true };
	struct ucm_promise another = { .guessed = true };

	ck_assert(take(&sure, 60));
	ck_assert(take(&guess, 90));
	ck_assert_uint_gt(guess.bytes, most / 100 * 30);
	ck_assert_uint_lt(guess.bytes, most / 100 * 50);
	ck_assert(!take(&another, 90));
	ucm_room_give_back(&guess);
	guess.outgrown = most / 100 * 50; /* it would not do */
	ck_assert(!take(&guess, 90));
	ucm_room_give_back(&sure);
	ck_assert(take(&guess, 90));
	ck_assert_uint_eq(guess.bytes, most / 100 * 90);
	ucm_room_give_back(&guess);
}

UNIT_TEST(a_size_that_becomes_known_is_what_is_promised)
{
	struct ucm_promise guess = { .guessed = true };
	struct ucm_promise other = { 0 };

	ck_assert(take(&guess, 90));
	ck_assert(!take(&other, 50));
	ucm_room_resize(&guess, most / 100 * 20);
	ck_assert(!guess.guessed);
	ck_assert(take(&other, 50));
	ucm_room_give_back(&other);
	other.guessed = true; /* the only guess again */
	ck_assert(take(&other, 95));
	ucm_room_give_back(&other);
	ucm_room_give_back(&guess);
}

UNIT_TEST(any_room_will_do_for_some)
{
	struct ucm_promise sure = { 0 };
	struct ucm_promise any = { .anywhere = true };

	ck_assert(take(&sure, 90));
	ck_assert(take(&any, 90));
	ucm_room_give_back(&any);
	ucm_room_give_back(&sure);
	fx_fail("statvfs", 1, -EIO, true);
	ck_assert(!take(&any, 1));
	ck_assert_ptr_null(any.room);
}

/* Each is asked for what it has, by name; none need answer. */
UNIT_TEST(files_that_cannot_be_asked_have_nothing_yet)
{
	struct ucm_promise promises[4] = { 0 };
	struct ucm_promise last = { 0 };

	for (unsigned i = 0; i < NUM_ROWS(promises); i++)
		ck_assert(take(&promises[i], 20));
	ucm_room_watch(&promises[1], "none");
	ucm_room_watch(&promises[2], "none");
	fx_fail("stat", 1, -EIO, true);
	ck_assert(!take(&last, 40));
	ck_assert_uint_eq(fx_calls(), 1); /* the first failure is the last */
	fx_fail("stat", 1, -ENOENT, false);
	ck_assert(!take(&last, 40));
	ck_assert_uint_eq(fx_calls(), 2);
	fx_fail(NULL, 0, 0, false);
	for (unsigned i = 0; i < NUM_ROWS(promises); i++)
		ucm_room_give_back(&promises[i]);
}

#define THREADS 8
#define TURNS 2000

static _Atomic int holding; /* promises of 40 % */
static _Atomic bool too_many;

static void *take_and_give(void *arg)
{
	struct ucm_promise promise;

	(void)arg;
	for (unsigned i = 0; i < TURNS; i++) {
		promise = (struct ucm_promise){ 0 };
		if (!take(&promise, 40))
			continue;
		if (atomic_fetch_add(&holding, 1) >= 2)
			atomic_store(&too_many, true);
		atomic_fetch_sub(&holding, 1);
		ucm_room_give_back(&promise);
	}
	return NULL;
}

UNIT_TEST(threads_never_get_more_than_there_is)
{
	struct ucm_promise all = { 0 };
	pthread_t threads[THREADS];

	for (unsigned i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL,
						take_and_give, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ck_assert(!atomic_load(&too_many));
	ck_assert(take(&all, 90));
	ucm_room_give_back(&all);
}
