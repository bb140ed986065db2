/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - the lock of a directory, and what is written into it.
 *
 *   "serving NAMESPACE MAJOR:MINOR PLACE PID NAMESPACE"
 *
 * are the mount namespace, the mount's device (0:0: none), a checksum of its path; who
 * has the lock, and the namespace of that number. All of the file is locked.
 *
 * The kernel takes a mount away before the daemon hears of it. So "serving" is
 * believed only while the mount is there (its device number may soon be that of
 * another mount elsewhere); a process in another namespace cannot see that, and
 * takes the word for it. Nor does a process id mean anything in another one.
 * "private" is a daemon that ends soon after its last client has gone, which may
 * have happened.
 *
 * The locks are open-file ones: they die with their process, and are not given up
 * when another part of it closes the file.
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
#include "common/process.h"

#define POLL_NS (10 * 1000 * 1000)
#define RECORD_BYTES 64 /* always as long, so that it is overwritten whole */
#define PRIVATE_WAIT_S 4 /* longer than an idle one lives (serve/server.c) */
#define STILL_ENDING                                             \
	", which is ending: files of its mount may still be open, " \
	"or a disk hangs"

static const char *const words[] = {
	[UCM_MEDIUM_USE_STARTING] = "starting",
	[UCM_MEDIUM_USE_SERVING] = "serving",
	[UCM_MEDIUM_USE_ENDING] = "ending",
	[UCM_MEDIUM_USE_PRIVATE] = "private",
};

/* Of this process: 0: not known. */
static unsigned long long mount_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/mnt", &st) ? 0 : st.st_ino;
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

static void read_text(int fd, char text[RECORD_BYTES + 1])
{
	memset(text, 0, RECORD_BYTES + 1);
	if (ucm_os_read_at(fd, text, RECORD_BYTES, 0) < 0)
		*text = '\0';
}

static bool is_private(const char *text)
{
	return !strncmp(text, "private ", strlen("private "));
}

static bool is_ending(const char *text)
{
	char word[16];
	unsigned a, b, place = 0;
	unsigned long long where;

	if (sscanf(text, "%15s", word) != 1)
		return false;
	if (!strcmp(word, words[UCM_MEDIUM_USE_ENDING]))
		return true;
	return sscanf(text, "serving %llu %u:%u %x", &where, &a, &b, &place) ==
		       4 &&
	       (a || b) && /* it has a mount */
	       where && where == mount_namespace() &&
	       !is_mounted(makedev(a, b), &place);
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

	if (sscanf(text, "%*s %*u %*u:%*u %*x %d %llu", &pid, &where) != 2 ||
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
		    !(is_ending(text) ||
		      (is_private(text) && waited_s < PRIVATE_WAIT_S)))
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

int ucm_lock_take(int ctldir, const char *path, unsigned wait_s,
		  struct ucm_error *error)
{
	int fd = ucm_os_open(ctldir, "lock", O_RDWR | O_CREAT, 0644);
	int err = fd < 0 ? fd : wait_for(fd, path, wait_s);

	if (err)
		return refuse(fd, path, err, error);
	ucm_lock_tell(fd, UCM_MEDIUM_USE_STARTING, 0);
	return fd;
}

void ucm_lock_tell(int lockfd, enum ucm_medium_use use, dev_t mount)
{
	char text[RECORD_BYTES + 1], said[RECORD_BYTES];
	unsigned place = 0;
	int err;

	if (lockfd < 0)
		return;
	if (mount)
		is_mounted(mount, &place);
	snprintf(said, sizeof(said), "%s %llu %u:%u %x %d %llu", words[use],
		 mount_namespace(), major(mount), minor(mount), place,
		 (int)getpid(), ucm_process_namespace());
	snprintf(text, sizeof(text), "%-*s\n", RECORD_BYTES - 1, said);
	err = ucm_os_write_at(lockfd, text, RECORD_BYTES, 0);
	if (err)
		ucm_debug(TIER, 1, ".ucmfs/lock: %s", strerror(-err));
}
