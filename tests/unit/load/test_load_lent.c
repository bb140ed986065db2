/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_lent.c - pages that are lent: reads into them that have not ended
 * when their task has.
 */
#include <config.h>

#include <errno.h>
#include <linux/capability.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/load/direct_fixture.h"

/* ---- pages that are lent ---- */

static struct {
	_Atomic bool go_on;
	_Atomic unsigned steps;
} late;

/* A read of a payload comes in steps that take a while, as from a server that
 * hangs, until it may go on. */
static ssize_t hang(const struct ucm_io *io, ssize_t result)
{
	if (io->op != UCM_IO_READ || !io->offset)
		return result;
	atomic_fetch_add(&late.steps, 1);
	if (atomic_load(&late.go_on) || result <= PLANE)
		return result;
	usleep(5000);
	return PLANE;
}

static unsigned take_all(struct ucm_completions *queue, int timeout_ms)
{
	struct ucm_task *tasks[4];

	return (unsigned)ucm_completions_take(queue, tasks, 4, timeout_ms);
}

static void must_be_lent(struct ucm_task *task)
{
	ck_assert(ucm_task_done(task));
	ck_assert_uint_eq(ucm_task_num_lent(task), 1);
	ck_assert(ucm_task_is_lent(task, 0));
	ck_assert(!ucm_task_is_lent(task, 1));
	ck_assert(!ucm_task_is_lent(task, 99));
	ck_assert_int_eq(ucm_task_wait_returned(task, 0), -ETIMEDOUT);
}

static const struct {
	enum ucm_load_lend lend;
	uint32_t deadline_ms; /* 0: it is cancelled */
	int err;
} lendings[] = {
	{ UCM_LEND_ALWAYS, 20, -ETIMEDOUT },
	{ UCM_LEND_LOCAL, 20, -ETIMEDOUT },
	{ UCM_LEND_LOCAL, 0, -ECANCELED },
};

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 300);

/* The end of the task is told, and later that its page is the caller's again:
 * each once, and nothing is written to it from then on. */
UNIT_TEST(a_lent_page_comes_back_when_its_read_has_ended,
	  .rows = NUM_ROWS(lendings))
{
	struct ucm_request request = { .lend = lendings[_i].lend,
				       .deadline_ms =
					       lendings[_i].deadline_ms };
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;
	unsigned steps;

	if (!can_read_directly())
		return;
	ck_assert_int_eq(ucm_completions_new(&request.completions), 0);
	open_place(&place, geometry_of(1, 64 * PLANE, 0), 0, 4096);
	lf_plant("$/tier", &place.geometry, 0);
	loader = open_loader(&place, NULL);
	ucm_ring_fault = hang;
	task = lf_submit(loader, false, 0, 2, &request); /* the second: absent */
	while (!atomic_load(&late.steps))
		usleep(100);
	if (!request.deadline_ms)
		ucm_task_cancel(task);
	ck_assert_uint_eq(take_all(request.completions, 20000), 1);
	ck_assert_int_eq(ucm_task_outcomes(task)[0].err, lendings[_i].err);
	must_be_lent(task);
	steps = atomic_load(&late.steps);
	while (atomic_load(&late.steps) == steps) /* it goes on */
		usleep(100);
	must_be_lent(task);
	ck_assert_uint_eq(take_all(request.completions, 0), 0);
	atomic_store(&late.go_on, true);
	ck_assert_int_eq(ucm_task_wait_returned(task, 20000), -EIO);
	ck_assert_uint_eq(ucm_task_num_lent(task), 0);
	ck_assert(!ucm_task_is_lent(task, 0));
	ck_assert_uint_eq(take_all(request.completions, 20000), 1);
	ck_assert_uint_eq(take_all(request.completions, 0), 0);
	ck_assert_int_eq(ucm_task_outcomes(task)[0].err, lendings[_i].err);
	ck_assert(has_block(&place, 0, 0, 1, 0)); /* late, and nowhere else */
	ck_assert(rest_is_clear(&place, 0, 0, 1));
	ck_assert(is_clear(page_of(&place, 1), (NUM - 1) * place.stride));
	ucm_ring_fault = NULL;
	ucm_task_free(task);
	ucm_loader_close(loader);
	ucm_completions_free(request.completions);
	close_place(&place);
}

/* Whoever frees the task has the page when that returns. */
UNIT_TEST(a_task_is_not_freed_before_its_pages_are_back)
{
	struct ucm_request request = { .lend = UCM_LEND_ALWAYS };
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;
	unsigned steps;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(1, 64 * PLANE, 0), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	loader = open_loader(&place, NULL);
	ucm_ring_fault = hang;
	task = lf_submit(loader, false, 0, 1, &request);
	while (!atomic_load(&late.steps))
		usleep(100);
	ucm_task_cancel(task);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	must_be_lent(task);
	ucm_task_free(task);
	steps = atomic_load(&late.steps);
	ck_assert_uint_eq(steps, 64);
	ck_assert(has_block(&place, 0, 0, 1, 0));
	clear(&place);
	ucm_loader_close(loader);
	ck_assert_uint_eq(atomic_load(&late.steps), steps);
	ck_assert(is_clear(place.memory, place.len));
	ucm_ring_fault = NULL;
	close_place(&place);
}

/* So much memory may be locked, whoever we are. */
static void limit_locked(uint64_t bytes)
{
	const struct rlimit limit = { bytes, bytes };
	struct __user_cap_header_struct header = {
		.version = _LINUX_CAPABILITY_VERSION_3
	};
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];

	ck_assert_int_eq(syscall(SYS_capget, &header, caps), 0);
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	ck_assert_int_eq(syscall(SYS_capset, &header, caps), 0);
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* There is no room for it, nor for staging memory, which is larger. */
UNIT_TEST(a_thread_that_cannot_pin_the_pages_is_told_of)
{
	const struct ucm_loader_options options = { .threads = 2 };
	struct ucm_loader *loader;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(1, 16 * PLANE, 0), 0, 0);
	for (unsigned n = 0; n < NUM; n++)
		lf_plant("$/tier", &place.geometry, n);
	limit_locked(place.len / 2);
	loader = open_loader(&place, &options);
	ck_assert(fx_logged("cannot be pinned"));
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	for (uint32_t n = 0; n < NUM; n++)
		ck_assert(has_block(&place, n, 0, 1, n));
	ucm_loader_close(loader);
	close_place(&place);
}
