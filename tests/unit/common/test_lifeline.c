/* SPDX-License-Identifier: Apache-2.0 */
/* test_lifeline.c - the word says "dead" however its thread ends. */
#include <config.h>

#include "common/lifeline.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/unit.h"

static _Atomic uint32_t *word;

static void setup(void)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(page, MAP_FAILED);
	word = page;
}

static bool lives(void)
{
	return ucm_lifeline_lives(atomic_load(word));
}

/* A child that holds the word, and then does as told. */
static pid_t start(void (*then)(struct ucm_lifeline *line))
{
	pid_t pid = unit_fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct ucm_lifeline line = { 0 };

		signal(SIGTERM, SIG_DFL); /* check has handlers */
		signal(SIGSEGV, SIG_DFL);
		if (ucm_lifeline_hold(&line, word))
			_exit(99);
		then(&line);
		_exit(0);
	}
	return pid;
}

static void wait_for_ever(struct ucm_lifeline *line)
{
	(void)line;
	for (;;)
		pause();
}

static void wait_until_held(void)
{
	while (!lives())
		usleep(100);
}

UNIT_FIXTURE(.setup = setup);

UNIT_TEST(it_dies_with_a_process_that_is_killed, .rows = 3)
{
	static const int signals[] = { SIGKILL, SIGTERM, SIGSEGV };
	pid_t pid = start(wait_for_ever);

	wait_until_held();
	kill(pid, signals[_i]);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert(!lives());
}

static void leave(struct ucm_lifeline *line)
{
	(void)line;
	_exit(7);
}

UNIT_TEST(it_dies_with_a_process_that_ends)
{
	int status;
	pid_t pid = start(leave);

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(WEXITSTATUS(status), 7);
	ck_assert(!lives());
	ck_assert_uint_ne(atomic_load(word), 0); /* the kernel has been there */
}

UNIT_TEST(it_can_be_given_up_and_taken_again)
{
	struct ucm_lifeline line = { 0 };

	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(ucm_lifeline_hold(&line, word), 0);
		ck_assert(lives());
		ucm_lifeline_release(&line);
		ck_assert(!lives());
	}
	ucm_lifeline_release(&line);
}

UNIT_TEST(a_child_does_not_hold_it)
{
	struct ucm_lifeline line = { 0 };
	pid_t pid;

	ck_assert_int_eq(ucm_lifeline_hold(&line, word), 0);
	pid = unit_fork();
	if (pid == 0)
		_exit(0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert(lives());
	ucm_lifeline_release(&line);
}

static void *hold_and_end(void *arg)
{
	struct ucm_lifeline *line = arg;

	return ucm_lifeline_hold(line, word) ? "hold" : NULL;
}

UNIT_TEST(it_is_one_threads)
{
	struct ucm_lifeline line = { 0 };
	pthread_t thread;
	void *wrong;

	ck_assert_int_eq(pthread_create(&thread, NULL, hold_and_end, &line), 0);
	pthread_join(thread, &wrong);
	ck_assert_ptr_null(wrong);
	ck_assert(!lives());
}
