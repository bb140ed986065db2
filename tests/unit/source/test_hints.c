/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hints.c - what a daemon hears of its blocks, and in which order. The test
 * is the daemon, and keeps a request for as long as it wants.
 */
#include <config.h>

#include "gpu/source/hints.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/fake_server.h"
#include "tests/unit/load_fixture.h"

#define MOST_CALLS 16

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool hangs;
	unsigned num, begun;
	struct call {
		struct ucm_serve_request request;
		struct ucm_control_verified_block first; /* or its id alone */
	} calls[MOST_CALLS];
} mount = { .lock = PTHREAD_MUTEX_INITIALIZER,
	    .changed = PTHREAD_COND_INITIALIZER };

static void take_call(const struct ucm_serve_request *request,
		      const void *items, struct fake_answer *out)
{
	struct call *call;

	pthread_mutex_lock(&mount.lock);
	mount.begun++;
	pthread_cond_broadcast(&mount.changed);
	while (mount.hangs)
		pthread_cond_wait(&mount.changed, &mount.lock);
	must(mount.num < MOST_CALLS);
	call = &mount.calls[mount.num++];
	call->request = *request;
	memcpy(&call->first, items,
	       request->verb == UCM_SERVE_VERIFIED ? sizeof(call->first)
						   : sizeof(struct ucm_id));
	pthread_cond_broadcast(&mount.changed);
	pthread_mutex_unlock(&mount.lock);
	fake_put_results(out, request->num, 0);
}

static void let_go(void)
{
	pthread_mutex_lock(&mount.lock);
	mount.hangs = false;
	pthread_cond_broadcast(&mount.changed);
	pthread_mutex_unlock(&mount.lock);
}

/* Until so many have begun. */
static void wait_begun(unsigned num)
{
	pthread_mutex_lock(&mount.lock);
	while (mount.begun < num)
		pthread_cond_wait(&mount.changed, &mount.lock);
	pthread_mutex_unlock(&mount.lock);
}

static struct fake_server server;
static struct ucm_hints *hints;

static void setup(void)
{
	fx_setup();
	fx_mkdirs(fx_path("$/mnt/.ucmfs"));
	ck_assert_int_eq(
		symlink(fx_path("$/s"), fx_path("$/mnt/.ucmfs/socket")), 0);
	server = FAKE_SERVER;
	server.answer = take_call;
	fake_server_start(&server, fx_path("$/s"));
	ck_assert_int_eq(ucm_hints_open(fx_path("$/mnt"), &hints, NULL), 0);
}

static void teardown(void)
{
	fake_server_stop(&server);
	fx_teardown();
}

static void add(const char *space, unsigned n, uint64_t stamp)
{
	struct ucm_id id = lf_id(n);

	if (stamp)
		ucm_hints_add_verified(hints, space, &id, stamp);
	else
		ucm_hints_deny(hints, space, &id);
}

static void check_call(unsigned i, const char *space, unsigned n,
		       uint64_t stamp)
{
	const struct call *call = &mount.calls[i];
	struct ucm_id id = lf_id(n);

	ck_assert_uint_gt(mount.num, i);
	ck_assert_uint_eq(call->request.verb, UCM_SERVE_VERIFIED);
	ck_assert_str_eq(call->request.space, space);
	ck_assert_mem_eq(&call->first.id, &id, sizeof(id));
	ck_assert_uint_eq(call->first.stamp, stamp);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* The batch is another space's, and full. */
UNIT_TEST(what_is_damaged_is_told_whatever_else_is)
{
	mount.hangs = true;
	add("a", 0, 7);
	add("b", 1, 0);
	wait_begun(1);
	for (unsigned i = 0; i <= UCM_SERVE_ITEMS; i++)
		add("a", 2 + i, 7);
	add("a", 5000, 0);
	add("c", 5001, 0);
	let_go();
	ucm_hints_close(hints);
	ck_assert_uint_eq(mount.num, 5);
	check_call(0, "a", 0, 7);
	check_call(1, "b", 1, 0);
	check_call(2, "a", 2, 7);
	ck_assert_uint_eq(mount.calls[2].request.num, UCM_SERVE_ITEMS);
	check_call(3, "a", 5000, 0);
	check_call(4, "c", 5001, 0);
}

/* Else the mark would come back. */
UNIT_TEST(what_is_damaged_is_told_after_what_was_right)
{
	mount.hangs = true;
	add("a", 0, 0);
	wait_begun(1);
	add("a", 1, 7);
	add("a", 1, 0);
	let_go();
	ucm_hints_close(hints);
	ck_assert_uint_eq(mount.num, 3);
	check_call(1, "a", 1, 7);
	check_call(2, "a", 1, 0);
}

static bool is_heard(void *num)
{
	bool yes;

	add("a", 1, 7);
	pthread_mutex_lock(&mount.lock);
	yes = mount.num >= *(const unsigned *)num;
	pthread_mutex_unlock(&mount.lock);
	return yes;
}

/* What the one that went was about to hear is lost with it. */
UNIT_TEST(a_new_daemon_is_found_under_the_same_name)
{
	unsigned num = 1;

	fx_wait(is_heard, &num);
	fake_server_stop(&server);
	num = mount.num + 1;
	ck_assert_int_eq(unlink(fx_path("$/s")), 0);
	fake_server_start(&server, fx_path("$/s"));
	fx_wait(is_heard, &num);
	ucm_hints_close(hints);
	check_call(num - 1, "a", 1, 7);
}

UNIT_TEST(what_is_wanted_is_warmed)
{
	const struct ucm_serve_request *request = &mount.calls[0].request;
	struct ucm_id id = lf_id(3);

	ucm_hints_add(hints, UCM_HINT_WANTED, "a", &id, 1);
	ucm_hints_close(hints);
	ck_assert_uint_eq(mount.num, 1);
	ck_assert_uint_eq(request->verb, UCM_SERVE_WARM);
	ck_assert_uint_eq(request->flags, 0);
	ck_assert_uint_eq(request->num, 1);
	ck_assert_str_eq(request->space, "a");
	ck_assert_mem_eq(&mount.calls[0].first.id, &id, sizeof(id));
}

/* In as many messages as it takes, head first. */
UNIT_TEST(what_a_lookup_found_is_expected_as_one)
{
	static struct ucm_id ids[UCM_SERVE_ITEMS + 1];
	const struct ucm_serve_request *request = &mount.calls[0].request;

	for (unsigned i = 0; i < NUM_ROWS(ids); i++)
		ids[i] = lf_id(i);
	ucm_hints_add(hints, UCM_HINT_EXPECTED, "a", ids, 0);
	ucm_hints_add(hints, UCM_HINT_EXPECTED, "a", ids, NUM_ROWS(ids));
	ucm_hints_close(hints);
	ck_assert_uint_eq(mount.num, 2);
	ck_assert_uint_eq(request->verb, UCM_SERVE_TOUCH);
	ck_assert_uint_eq(request->flags, UCM_TOUCH_EXPECTED);
	ck_assert_uint_eq(request->num, UCM_SERVE_ITEMS);
	ck_assert_str_eq(request->space, "a");
	ck_assert_mem_eq(&mount.calls[0].first.id, &ids[0], sizeof(ids[0]));
	ck_assert_uint_eq(mount.calls[1].request.num, 1);
	ck_assert_mem_eq(&mount.calls[1].first.id, &ids[UCM_SERVE_ITEMS],
			 sizeof(ids[0]));
}

UNIT_TEST(what_has_no_daemon_takes_no_hints)
{
	struct ucm_hints *none;
	struct ucm_error error;

	ucm_hints_close(hints);
	fx_mkdirs(fx_path("$/dir"));
	ck_assert_int_eq(ucm_hints_open(fx_path("$/dir"), &none, &error),
			 -ENOENT);
	ck_assert_ptr_nonnull(strstr(error.text, "/dir"));
}

/* What has to go at once does not wait for what may be collected for a while. */
UNIT_TEST(each_kind_has_its_time)
{
	struct ucm_id id = lf_id(3);

	add("a", 1, 7);
	ucm_hints_add(hints, UCM_HINT_WANTED, "b", &id, 1);
	wait_begun(1);
	ucm_hints_close(hints);
	ck_assert_uint_eq(mount.num, 2);
	ck_assert_uint_eq(mount.calls[0].request.verb, UCM_SERVE_WARM);
	check_call(1, "a", 1, 7);
}
