/* SPDX-License-Identifier: Apache-2.0 */
/* child.h - another process, which is killed. */
#ifndef UCM_TESTS_CHILD_H
#define UCM_TESTS_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/unit.h"

/* A process that has done this, and waits. */
static inline pid_t child_start(bool (*done)(void *arg), void *arg)
{
	int told[2];
	char byte;
	pid_t pid;

	ck_assert_int_eq(pipe(told), 0);
	pid = unit_fork();
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		close(told[0]);
		if (!done(arg) || write(told[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(told[1]);
	ck_assert_int_eq(read(told[0], &byte, 1), 1);
	close(told[0]);
	return pid;
}

static inline void child_kill(pid_t pid)
{
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

#endif
