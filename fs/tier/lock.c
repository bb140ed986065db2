/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - the lock of a directory, and what is written into it.
 *
 *   "serving NAMESPACE MAJOR:MINOR PLACE PID NAMESPACE"
 *
 * are the mount namespace, the mount's device, a checksum of its path; and who
 * has the lock, and the namespace of that number.
 *
 * The kernel takes a mount away before the daemon hears of it. So "serving" is
 * believed only while the mount is there (its device number may soon be that of
 * another mount elsewhere); a process in another namespace cannot see that, and
 * takes the word for it. Nor does a process id mean anything in another one.
 *
 * The lock is an open-file one: it dies with the daemon.
 */
#include <config.h>

#include "fs/tier/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <ucm/block.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"

#define POLL_NS (10 * 1000 * 1000)
#define TEXT_SIZE 64 /* always as long, so that it is overwritten whole */
#define STILL_ENDING                                             \
	", which is ending: files of its mount may still be open, " \
	"or a disk hangs"

static const char *const words[] = {
	[UCM_LOCK_STARTING] = "starting",
	[UCM_LOCK_SERVING] = "serving",
	[UCM_LOCK_ENDING] = "ending",
};

/* A line of a file of /proc. */
static int read_line(const char *path, char *line, int size)
{
	FILE *file = fopen(path, "re");
	int err = file && fgets(line, size, file) ? 0 : -EIO;

	if (file)
		fclose(file);
	if (!err)
		line[strcspn(line, "\n")] = '\0';
	return err;
}

/* Of this process: 0: not known. */
static unsigned long long namespace_of(const char *path)
{
	struct stat st;

	return stat(path, &st) ? 0 : st.st_ino;
}

static unsigned long long mount_namespace(void)
{
	return namespace_of("/proc/self/ns/mnt");
}

static unsigned long long process_namespace(void)
{
	return namespace_of("/proc/self/ns/pid");
}

/* Is a device mounted, and where: at *place, or (0) at any, which is stored? As
 * good as yes if that cannot be learned. */
static bool is_mounted(dev_t device, unsigned *place)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char line[2 * PATH_MAX], path[PATH_MAX];
	unsigned a, b, here;
	bool found = !file;

	while (!found && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%*u %*u %u:%u %*s %4095s", &a, &b, path) !=
			    3 ||
		    makedev(a, b) != device)
			continue;
		here = ucm_crc32c(0, path, strlen(path));
		found = !*place || here == *place;
		*place = found ? here : *place;
	}
	if (file)
		fclose(file);
	return found;
}

static bool is_ending(int fd)
{
	char text[TEXT_SIZE + 1] = "", word[16];
	unsigned a, b, place = 0;
	unsigned long long where;

	if (ucm_os_read_at(fd, text, TEXT_SIZE, 0) < 0 ||
	    sscanf(text, "%15s", word) != 1)
		return false;
	if (!strcmp(word, words[UCM_LOCK_ENDING]))
		return true;
	return sscanf(text, "serving %llu %u:%u %x", &where, &a, &b, &place) ==
		       4 &&
	       where && where == mount_namespace() &&
	       !is_mounted(makedev(a, b), &place);
}

struct holder {
	char text[64]; /* "" if it is not known */
};

/* Who has the lock, for people: " (process 1234, NAME)". */
static struct holder holder_of(int fd)
{
	char text[TEXT_SIZE + 1] = "", path[48], name[32] = "";
	unsigned long long where;
	struct holder holder = { "" };
	int pid;

	if (ucm_os_read_at(fd, text, TEXT_SIZE, 0) < 0 ||
	    sscanf(text, "%*s %*u %*u:%*u %*x %d %llu", &pid, &where) != 2 ||
	    !where || where != process_namespace())
		return holder;
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	if (!read_line(path, name, sizeof(name)))
		snprintf(holder.text, sizeof(holder.text),
			 " (process %d, %s)", pid, name);
	return holder;
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
		  struct ucm_error *error)
{
	int fd = ucm_os_open(ctldir, "lock", O_RDWR | O_CREAT, 0644);
	int err = fd < 0 ? fd : wait_for(fd, path, wait_s);

	if (!err) {
		ucm_lock_tell(fd, UCM_LOCK_STARTING, 0);
		return fd;
	}
	if (err == -EBUSY)
		ucm_error_set(error, err, "%s: in use by another ucmfs%s%s",
			      path, holder_of(fd).text,
			      is_ending(fd) ? STILL_ENDING : "");
	else
		ucm_error_set(error, err, "%s: .ucmfs/lock: %s", path,
			      strerror(-err));
	if (fd >= 0)
		close(fd);
	return err;
}

void ucm_lock_tell(int lockfd, enum ucm_lock_state state, dev_t mount)
{
	char text[TEXT_SIZE + 1], said[TEXT_SIZE];
	unsigned place = 0;
	int err;

	if (lockfd < 0)
		return;
	if (mount)
		is_mounted(mount, &place);
	snprintf(said, sizeof(said), "%s %llu %u:%u %x %d %llu", words[state],
		 mount_namespace(), major(mount), minor(mount), place,
		 (int)getpid(), process_namespace());
	snprintf(text, sizeof(text), "%-*s\n", TEXT_SIZE - 1, said);
	err = ucm_os_write_at(lockfd, text, TEXT_SIZE, 0);
	if (err)
		ucm_debug(TIER, 1, ".ucmfs/lock: %s", strerror(-err));
}
