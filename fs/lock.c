/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - the lock of a directory, and what is written into it.
 *
 *   "serving NAMESPACE MAJOR:MINOR"   the mount namespace, and the mount's device
 *
 * The kernel takes a mount away before the daemon hears of it. So "serving" is
 * believed only while the mount is there; who is in another namespace cannot
 * see that, and takes the word for it.
 *
 * The lock is an open-file one: it survives the fork into the background and
 * dies with the daemon.
 */
#include <config.h>

#include "fs/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

#define POLL_NS (10 * 1000 * 1000)
#define TEXT_SIZE 64 /* always as long, so that it is overwritten whole */

static const char *const words[] = {
	[UCM_LOCK_STARTING] = "starting",
	[UCM_LOCK_SERVING] = "serving",
	[UCM_LOCK_ENDING] = "ending",
};

/* 0: cannot be told. */
static unsigned long long mount_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/mnt", &st) ? 0 : st.st_ino;
}

static bool is_mounted(unsigned major_, unsigned minor_)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	unsigned a, b;
	char line[4096];
	bool found = false;

	if (!file)
		return true;
	while (!found && fgets(line, sizeof(line), file))
		found = sscanf(line, "%*u %*u %u:%u ", &a, &b) == 2 &&
			a == major_ && b == minor_;
	fclose(file);
	return found;
}

static bool is_ending(int fd)
{
	char text[TEXT_SIZE + 1] = "", word[16];
	unsigned long long where;
	unsigned major_, minor_;

	if (ucm_os_read_at(fd, text, TEXT_SIZE, 0) < 0 ||
	    sscanf(text, "%15s", word) != 1)
		return false;
	if (!strcmp(word, words[UCM_LOCK_ENDING]))
		return true;
	return sscanf(text, "serving %llu %u:%u", &where, &major_, &minor_) ==
		       3 &&
	       where && where == mount_namespace() &&
	       !is_mounted(major_, minor_);
}

static int try_lock(int fd)
{
	int err = ucm_os_lock(fd);

	return err == -EAGAIN || err == -EACCES ? -EBUSY : err;
}

static int wait_for(int fd, const char *path, unsigned wait_s)
{
	int64_t until_ms = ucm_monotonic_ms() + (int64_t)wait_s * 1000;
	const struct timespec poll = { .tv_nsec = POLL_NS };
	bool told = false;
	int err;

	while ((err = try_lock(fd)) == -EBUSY && is_ending(fd) &&
	       ucm_monotonic_ms() < until_ms) {
		if (!told)
			ucm_info("%s: waiting for another ucmfs to end", path);
		told = true;
		nanosleep(&poll, NULL);
	}
	return err;
}

int ucm_lock_take(int ctldir, const char *path, unsigned wait_s,
		  struct ucm_complaint *complaint)
{
	int fd = ucm_os_open(ctldir, "lock", O_RDWR | O_CREAT, 0644);
	int err = fd < 0 ? fd : wait_for(fd, path, wait_s);

	if (!err) {
		ucm_lock_tell(fd, UCM_LOCK_STARTING, 0);
		return fd;
	}
	if (fd >= 0)
		close(fd);
	if (err == -EBUSY)
		ucm_complain(complaint, "%s: in use by another ucmfs", path);
	else
		ucm_complain(complaint, "%s: .ucmfs/lock: %s", path,
			     strerror(-err));
	return err;
}

void ucm_lock_tell(int lockfd, enum ucm_lock_state state, dev_t mount)
{
	char text[TEXT_SIZE + 1], said[TEXT_SIZE];
	int err;

	if (lockfd < 0)
		return;
	snprintf(said, sizeof(said), "%s %llu %u:%u", words[state],
		 mount_namespace(), major(mount), minor(mount));
	snprintf(text, sizeof(text), "%-*s\n", TEXT_SIZE - 1, said);
	err = ucm_os_write_at(lockfd, text, TEXT_SIZE, 0);
	if (err)
		ucm_debug(TIER, 1, ".ucmfs/lock: %s", strerror(-err));
}
