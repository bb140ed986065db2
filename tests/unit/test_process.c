/* SPDX-License-Identifier: Apache-2.0 */
/* test_process.c - who goes on, and who is ending. */
#include <config.h>

#include "common/process.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/unit.h"

UNIT_TEST(one_that_runs_goes_on)
{
	ck_assert(ucm_process_goes_on(getpid()));
	ck_assert(ucm_process_goes_on(getppid()));
}

static void *ask_of_myself(void *arg)
{
	*(bool *)arg = ucm_process_goes_on((pid_t)syscall(SYS_gettid));
	return NULL;
}

UNIT_TEST(a_thread_is_asked_for_by_its_own_number)
{
	bool goes_on = false;
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, ask_of_myself, &goes_on),
			 0);
	pthread_join(thread, NULL);
	ck_assert(goes_on);
}

/* It stays a zombie, which has begun to end, until it is waited for. */
UNIT_TEST(one_that_has_ended_does_not, .rows = 3)
{
	pid_t pid = fork();
	siginfo_t info;

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (_i == 1)
			raise(SIGKILL);
		if (_i == 2) /* as if the rest of the line were another */
			prctl(PR_SET_NAME, ") R 1 1 1 1 1 0");
		_exit(0);
	}
	ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	ck_assert(!ucm_process_goes_on(pid));
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert(!ucm_process_goes_on(pid));
}

UNIT_TEST(one_that_cannot_be_seen_does_not)
{
	ck_assert(!ucm_process_goes_on(0));
	ck_assert(!ucm_process_goes_on(-1));
	ck_assert(!ucm_process_goes_on(INT32_MAX));
}
