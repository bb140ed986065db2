/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - the lock of a directory, and what is written into it.
 *
 *   "used PID NAMESPACE", or "ending PID NAMESPACE"
 *
 * say who has the lock, and the namespace of that number, which means nothing in
 * another one. All of the file is locked.
 *
 * umount(8) returns before the daemon hears of it, and a private daemon ends soon
 * after its last client: so each is waited for a few seconds, and one that says that
 * it is ending as long as that may take.
 *
 * The locks are open-file ones: they die with their process, and are not given up
 * when another part of it closes the file.
 */
#include <config.h>

#include "fs/medium/dir/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/process.h"

#define POLL_NS (10 * 1000 * 1000)
#define RECORD_BYTES 64 /* always as long, so that it is overwritten whole */
#define GRACE_S 4 /* longer than an idle private one lives (serve/server.c) */
#define STILL_ENDING                                             \
	", which is ending: files of its mount may still be open, " \
	"or a disk hangs"

static void read_text(int fd, char text[RECORD_BYTES + 1])
{
	memset(text, 0, RECORD_BYTES + 1);
	if (ucm_os_read_at(fd, text, RECORD_BYTES, 0) < 0)
		*text = '\0';
}

static bool is_ending(const char *text)
{
	return !strncmp(text, "ending ", strlen("ending "));
}

/* ---- who has it ---- */

struct holder {
	char text[64]; /* " (process 1234, NAME)"; "": it is not known */
};

static struct holder holder_of(const char *text)
{
	char path[48], name[32] = "";
	struct holder holder = { "" };
	unsigned long long where;
	int pid;

	if (sscanf(text, "%*s %d %llu", &pid, &where) != 2 ||
	    !where || where != ucm_process_namespace())
		return holder;
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	ucm_system_line(path, name, sizeof(name));
	if (*name)
		snprintf(holder.text, sizeof(holder.text),
			 " (process %d, %s)", pid, name);
	return holder;
}

/* ---- taking it ---- */

static int take(int fd)
{
	int err = ucm_os_lock(fd, 0, 0);

	return err == -EAGAIN || err == -EACCES ? -EBUSY : err;
}

static int wait_for(int fd, const char *path, unsigned wait_s)
{
	const int64_t begin_ms = ucm_monotonic_ms();
	const struct timespec poll = { .tv_nsec = POLL_NS };
	bool told = false;
	int err;

	while ((err = take(fd)) == -EBUSY) {
		int64_t waited_s = (ucm_monotonic_ms() - begin_ms) / 1000;
		char text[RECORD_BYTES + 1];

		read_text(fd, text);
		if (waited_s >= wait_s ||
		    (waited_s >= GRACE_S && !is_ending(text)))
			break;
		if (!told)
			ucm_info("%s: waiting for another ucmfs to end", path);
		told = true;
		nanosleep(&poll, NULL);
	}
	/* Its user may have ended after the first look, before the second. */
	return err == -EBUSY ? take(fd) : err;
}

static int refuse(int fd, const char *path, int err, struct ucm_error *error)
{
	char text[RECORD_BYTES + 1];

	if (err == -EBUSY) {
		read_text(fd, text);
		ucm_error_set(error, err, "%s: in use by another ucmfs%s%s",
			      path, holder_of(text).text,
			      is_ending(text) ? STILL_ENDING : "");
	} else {
		ucm_error_set(error, err, "%s: .ucmfs/lock: %s", path,
			      strerror(-err));
	}
	if (fd >= 0)
		close(fd);
	return err;
}

/* A directory that is full can be used all the same. */
static void write_text(int fd, const char *use)
{
	char text[RECORD_BYTES + 1], said[RECORD_BYTES];
	int err;

	snprintf(said, sizeof(said), "%s %d %llu", use, (int)getpid(),
		 ucm_process_namespace());
	snprintf(text, sizeof(text), "%-*s\n", RECORD_BYTES - 1, said);
	err = ucm_os_write_at(fd, text, RECORD_BYTES, 0);
	if (err)
		ucm_debug(TIER, 1, ".ucmfs/lock: %s", strerror(-err));
}

int ucm_lock_take(int ctldir, const char *path, unsigned wait_s,
		  struct ucm_error *error)
{
	int fd = ucm_os_open(ctldir, "lock", O_RDWR | O_CREAT, 0644);
	int err = fd < 0 ? fd : wait_for(fd, path, wait_s);

	if (err)
		return refuse(fd, path, err, error);
	write_text(fd, "used");
	return fd;
}

void ucm_lock_ending(int lockfd)
{
	if (lockfd >= 0)
		write_text(lockfd, "ending");
}
