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

START_TEST(one_that_runs_goes_on)
{
	ck_assert(ucm_process_goes_on(getpid()));
	ck_assert(ucm_process_goes_on(getppid()));
}
END_TEST

static void *ask_of_myself(void *arg)
{
	*(bool *)arg = ucm_process_goes_on((pid_t)syscall(SYS_gettid));
	return NULL;
}

START_TEST(a_thread_is_asked_for_by_its_own_number)
{
	bool goes_on = false;
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, ask_of_myself, &goes_on),
			 0);
	pthread_join(thread, NULL);
	ck_assert(goes_on);
}
END_TEST

/* It stays a zombie, which has begun to end, until it is waited for. */
START_TEST(one_that_has_ended_does_not)
{
	pid_t pid = fork();
	siginfo_t info;

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (_i)
			raise(SIGKILL);
		_exit(0);
	}
	ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	ck_assert(!ucm_process_goes_on(pid));
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert(!ucm_process_goes_on(pid));
}
END_TEST

START_TEST(a_name_that_looks_like_the_rest_of_the_line_is_a_name)
{
	char was[16];

	prctl(PR_GET_NAME, was);
	prctl(PR_SET_NAME, ") R 1 1 1 1 4");
	ck_assert(ucm_process_goes_on(getpid()));
	prctl(PR_SET_NAME, was);
}
END_TEST

START_TEST(one_that_cannot_be_seen_does_not)
{
	ck_assert(!ucm_process_goes_on(0));
	ck_assert(!ucm_process_goes_on(-1));
	ck_assert(!ucm_process_goes_on(INT32_MAX));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("process");
	TCase *tests = tcase_create("process");

	tcase_add_test(tests, one_that_runs_goes_on);
	tcase_add_test(tests, a_thread_is_asked_for_by_its_own_number);
	tcase_add_loop_test(tests, one_that_has_ended_does_not, 0, 2);
	tcase_add_test(tests,
		       a_name_that_looks_like_the_rest_of_the_line_is_a_name);
	tcase_add_test(tests, one_that_cannot_be_seen_does_not);
	suite_add_tcase(suite, tests);
	return unit_run(suite);
}
