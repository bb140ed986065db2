/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_iobudget_processes.c - processes that keep a rate together, of which
 * one is killed.
 */
#include <config.h>

#include "gpu/load/budget/iobudget.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/unit/load/budget_fixture.h"

/* ---- processes ---- */

#define PROCESSES 3
#define FAST ((uint64_t)256 << 20)

static _Atomic uint64_t *progress; /* shared: of each process, in bytes */

static void sleep_until(int64_t ns)
{
	const struct timespec end = { .tv_sec = ns / S, .tv_nsec = ns % S };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
}

static void take_in_a_process(struct ucm_iobudget *budget, unsigned number)
{
	int64_t until;

	for (;;) {
		int64_t time = ucm_monotonic_ns();

		if (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, 16 * SOME,
				      time, &until))
			atomic_fetch_add(&progress[number], 16 * SOME);
		else
			sleep_until(until);
	}
}

static uint64_t progress_of(unsigned num)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < num; i++)
		sum += atomic_load(&progress[i]);
	return sum;
}

static bool has_come_to(void *arg)
{
	return progress_of(PROCESSES) >= *(uint64_t *)arg;
}

/* Until they have begun so much more: what each had of it. Returns the time. */
static int64_t measure(uint64_t bytes, uint64_t each[PROCESSES])
{
	uint64_t end = progress_of(PROCESSES) + bytes;
	int64_t began = ucm_monotonic_ns();

	for (unsigned i = 0; i < PROCESSES; i++)
		each[i] = atomic_load(&progress[i]);
	fx_wait(has_come_to, &end);
	for (unsigned i = 0; i < PROCESSES; i++)
		each[i] = atomic_load(&progress[i]) - each[i];
	return ucm_monotonic_ns() - began;
}

static void kill_one(pid_t child)
{
	kill(child, SIGKILL);
	must(waitpid(child, NULL, 0) == child);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* A busy machine may take longer, and never less. */
UNIT_TEST(processes_keep_the_rate_and_one_is_killed)
{
	uint64_t each[PROCESSES];
	pid_t children[PROCESSES];

	start_daemon(FAST, 0);
	progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(progress != MAP_FAILED);
	for (unsigned i = 0; i < PROCESSES; i++) {
		struct ucm_iobudget *budget = add()->budget;

		children[i] = unit_fork();
		must(children[i] >= 0);
		if (!children[i])
			take_in_a_process(budget, i);
	}
	measure(FAST / 8, each); /* they start */
	ck_assert_int_ge(measure(FAST / 2, each), S / 2 * 8 / 10);
	for (unsigned i = 0; i < PROCESSES; i++)
		check_part(each[i], FAST / 2, 10, 60);
	kill_one(children[2]);
	ck_assert_int_ge(measure(FAST / 2, each), S / 2 * 8 / 10);
	ck_assert_uint_eq(each[2], 0);
	for (unsigned i = 0; i < 2; i++)
		kill_one(children[i]);
	munmap((void *)progress, 4096);
}
