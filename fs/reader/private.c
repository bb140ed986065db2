/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private.c - connect to the daemon that serves some directories, or start one.
 *
 * Each daemon leaves a link to its socket in the first directory that it has
 * (.ucmfs/socket), so whoever knows the directories finds it, be it a mount, a
 * service, or the private daemon that another client has started. If there is none,
 * this starts a private one: "ucmfs serve SOURCE --private", which ends soon after
 * its last client has gone.
 *
 * Several clients may come at once, and all start one: one of these gets the locks
 * of the directories. The others exit with BUSY, and their clients look for the
 * link again, for BUSY_MS.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"

#define START_MS 30000
#define BUSY_MS 2000 /* for another start to be ready */
/* Exit status of ucmfs: another process has one of the directories. */
#define BUSY 3

static const struct timespec poll = { .tv_nsec = 10 * 1000 * 1000 };
static const struct timespec again = { .tv_nsec = 100 * 1000 * 1000 };

/* The first directory of "name=/a,/b:name=/c" that is none of memory, nor shared. */
static int first_directory(const char *source, char dir[PATH_MAX])
{
	for (;;) {
		size_t len = strcspn(source, ",:");
		size_t name = strcspn(source, "=/,:");

		if (name < len && source[name] == '=') {
			source += name + 1;
			len -= name + 1;
		}
		if (len && len < PATH_MAX && strncmp(source, "mem@", 4) &&
		    strncmp(source, "shared@", 7)) {
			memcpy(dir, source, len);
			dir[len] = '\0';
			return 0;
		}
		if (!source[len])
			return -EINVAL;
		source += len + 1;
	}
}

/* ---- starting ---- */

/* Beside libucm, as in a Python wheel; else where it was installed. */
static void find_program(char path[PATH_MAX])
{
	const char *given = secure_getenv("UCMFS_PROGRAM"), *slash;
	Dl_info info;

	snprintf(path, PATH_MAX, "%s", given ? given : BINDIR "/ucmfs");
	if (given || !dladdr((const void *)&ucm_client_connect, &info) ||
	    !(slash = strrchr(info.dli_fname, '/')))
		return;
	snprintf(path, PATH_MAX, "%.*s/ucmfs", (int)(slash - info.dli_fname),
		 info.dli_fname);
	if (access(path, X_OK))
		snprintf(path, PATH_MAX, BINDIR "/ucmfs");
}

/* It gets no descriptor of ours, and signals as a new program expects them. */
static int spawn(const char *program, const char *source, int errors,
		 pid_t *child)
{
	char *const argv[] = { (char *)"ucmfs", (char *)"serve", (char *)source,
			       (char *)"--private", NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int err;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK |
						POSIX_SPAWN_SETSIGDEF);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
					 O_RDWR, 0);
	posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO,
					 STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
	posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	err = posix_spawn(child, program, &actions, &attr, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	return -err;
}

/* What it has said, in one line. */
static void report(const char *program, const char *source, int errors)
{
	char text[512];
	ssize_t len = pread(errors, text, sizeof(text) - 1, 0);

	text[len > 0 ? len : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	ucm_error("%s: no daemon: %s", source, *text ? text : program);
}

static int meaning_of(int status)
{
	if (!WIFEXITED(status))
		return -EIO;
	switch (WEXITSTATUS(status)) {
	case 0: return 0;
	case 2: return -EINVAL;
	case BUSY: return -EBUSY;
	default: return -EIO;
	}
}

/* Until it serves, or has failed. A program that reaps all its children, or ignores
 * them, leaves us no status: whether it serves is seen by its socket. */
static int start(const char *source, int errors, const char *program,
		 int64_t until_ms)
{
	int status, err;
	pid_t child;

	err = spawn(program, source, errors, &child);
	if (err) {
		dprintf(errors, "%s: %s\n", program, strerror(-err));
		return err == -ENOENT ? -ENOTCONN : err;
	}
	for (;;) {
		pid_t ended = waitpid(child, &status, WNOHANG);

		if (ended == child)
			return meaning_of(status);
		if (ended < 0 && errno != EINTR)
			return -EAGAIN;
		if (ucm_monotonic_ms() >= until_ms) {
			kill(child, SIGTERM);
			return -ETIMEDOUT;
		}
		nanosleep(&poll, NULL);
	}
}

/* ---- connecting ---- */

static bool is_absent(int err)
{
	return err == -ENOENT || err == -ECONNREFUSED || err == -ENOTCONN;
}

static int start_and_connect(const char *source, const char *dir,
			     struct ucm_client **out)
{
	const int64_t begin_ms = ucm_monotonic_ms();
	_cleanup_fd_ int errors = memfd_create("ucmfs-start", MFD_CLOEXEC);
	char program[PATH_MAX];
	int err, found;

	if (errors < 0)
		return -errno;
	find_program(program);
	for (;;) {
		if (ftruncate(errors, 0) || lseek(errors, 0, SEEK_SET))
			return -errno;
		err = start(source, errors, program, begin_ms + START_MS);
		if (err && err != -EBUSY && err != -EAGAIN)
			break;
		found = ucm_client_connect(dir, out);
		if (!is_absent(found))
			return found;
		if (ucm_monotonic_ms() >= begin_ms + BUSY_MS) {
			err = err ? err : found;
			break;
		}
		nanosleep(&again, NULL);
	}
	report(program, source, errors);
	return err;
}

char *ucm_reader_absolute(const char *where)
{
	return strncmp(where, UCM_CLIENT_TIERS, strlen(UCM_CLIENT_TIERS))
		       ? realpath(where, NULL)
		       : strdup(where);
}

int ucm_private_connect(const char *source, struct ucm_client **out)
{
	char dir[PATH_MAX];
	int err = first_directory(source, dir);

	if (err)
		ucm_error("%s: names no directory of this machine alone, by "
			  "which its daemon is found",
			  source);
	else if (access(dir, F_OK))
		err = -errno;
	if (err)
		return err;
	err = ucm_client_connect(dir, out);
	return is_absent(err) ? start_and_connect(source, dir, out) : err;
}
