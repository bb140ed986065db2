/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background.c - see background.h.
 *
 * The child has the write end of a pipe, and no program that it starts has it.
 * A byte says that it serves; the pipe's end without one, that it is gone: its
 * exit status is the parent's.
 */
#include <config.h>

#include "fs/mount/setup/background.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"

static int waiting_parent = -1; /* the write end, in the child */

static int background_wait(pid_t child, int fd)
{
	ssize_t got;
	int status;
	char byte;

	do
		got = read(fd, &byte, 1);
	while (got < 0 && errno == EINTR);
	if (got == 1)
		return 0;
	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			return 1;
	}
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	fprintf(stderr, "ucmfs: the start was ended by a signal: %s\n",
		strsignal(WTERMSIG(status)));
	return 1;
}

int ucm_background_fork(int *status)
{
	pid_t parent = getpid(), child;
	int fds[2];

	signal(SIGCHLD, SIG_DFL); /* ignored, no child has an exit status */
	if (pipe2(fds, O_CLOEXEC))
		return -errno;
	child = fork();
	if (child < 0) {
		int err = -errno;

		close(fds[0]);
		close(fds[1]);
		return err;
	}
	if (child > 0) {
		close(fds[1]);
		*status = background_wait(child, fds[0]);
		close(fds[0]);
		return 1;
	}
	close(fds[0]);
	waiting_parent = fds[1];
	/* for a parent that went before this call, the next line */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent && getppid() != 0) /* 0: outside our namespace */
		_exit(1);
	return 0;
}

int ucm_background_ready(void)
{
	_cleanup_fd_ int null = -1;

	if (waiting_parent < 0)
		return 0;
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0 || setsid() < 0 || chdir("/"))
		return -errno;
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (dup2(null, fd) < 0)
			return -errno;
	}
	prctl(PR_SET_PDEATHSIG, 0);
	/* killed since then, it does not wait; libfuse ignores SIGPIPE */
	if (write(waiting_parent, "", 1) < 0 && errno != EPIPE)
		return -errno;
	close(waiting_parent);
	waiting_parent = -1;
	return 0;
}
