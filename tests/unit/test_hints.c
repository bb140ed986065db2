/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hints.c - what a mount is told of its blocks, and in which order. The
 * test takes its calls, and keeps them for as long as it wants.
 */
#include <config.h>

#include "gpu/source/hints.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include <ucm/control.h>

#include "tests/unit/load_fixture.h"

#define MOST_CALLS 16

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool hangs;
	unsigned num, begun;
	struct call {
		uint32_t num;
		char space[sizeof(((struct ucm_control_head *)NULL)->space)];
		struct ucm_control_verified_block first;
	} calls[MOST_CALLS];
} mount = { .lock = PTHREAD_MUTEX_INITIALIZER,
	    .changed = PTHREAD_COND_INITIALIZER };

static void take_call(const struct ucm_control_verified *verified)
{
	struct call *call;

	pthread_mutex_lock(&mount.lock);
	mount.begun++;
	pthread_cond_broadcast(&mount.changed);
	while (mount.hangs)
		pthread_cond_wait(&mount.changed, &mount.lock);
	must(mount.num < MOST_CALLS);
	call = &mount.calls[mount.num++];
	call->num = verified->head.num;
	call->first = verified->u.blocks[0];
	snprintf(call->space, sizeof(call->space), "%s", verified->head.space);
	pthread_cond_broadcast(&mount.changed);
	pthread_mutex_unlock(&mount.lock);
}

/* In place of the C library's. */
int ioctl(int fd, unsigned long request, ...)
{
	va_list args;

	(void)fd;
	ck_assert_uint_eq(request, UCM_CONTROL_VERIFIED);
	va_start(args, request);
	take_call(va_arg(args, const struct ucm_control_verified *));
	va_end(args);
	return 0;
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

static struct ucm_hints *hints;

static void setup(void)
{
	struct ucm_error error;

	fx_setup();
	fx_mkdirs(fx_path("$/mnt/.ucmfs"));
	fx_put(fx_path("$/mnt/.ucmfs/control"), "", 0);
	ck_assert_int_eq(ucm_hints_open(fx_path("$/mnt"), UCM_HINT_VERIFIED,
					&hints, &error), 0);
}

static void teardown(void)
{
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
	ck_assert_str_eq(call->space, space);
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
	for (unsigned i = 0; i <= UCM_CONTROL_VERIFIED_MOST; i++)
		add("a", 2 + i, 7);
	add("a", 1000, 0);
	add("c", 1001, 0);
	let_go();
	ucm_hints_close(hints);
	ck_assert_uint_eq(mount.num, 5);
	check_call(0, "a", 0, 7);
	check_call(1, "b", 1, 0);
	check_call(2, "a", 2, 7);
	ck_assert_uint_eq(mount.calls[2].num, UCM_CONTROL_VERIFIED_MOST);
	check_call(3, "a", 1000, 0);
	check_call(4, "c", 1001, 0);
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
