/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.c - the lock of a directory, and what is written into it.
 *
 *   "serving NAMESPACE MAJOR:MINOR PLACE PID NAMESPACE INSTANCE"
 *
 * are the mount namespace, the mount's device, a checksum of its path; who
 * has the lock, and the namespace of that number; and which start that was. Each
 * line has RECORD_BYTES. The first is that of a user who has the directory for
 * itself, and has locked all of the file. The others are of savers; each has
 * locked its own line, and nothing else for longer than a moment:
 *
 *   byte 0        the gate: locked by the saver that begins or ends
 *   byte 1        locked by nobody but a user of the whole file
 *   64, 128, …    a saver each, the first free one
 *
 * So that user and savers keep each other out, and savers do not. What a free
 * line says is of somebody who is gone.
 *
 * The kernel takes a mount away before the daemon hears of it. So "serving" is
 * believed only while the mount is there (its device number may soon be that of
 * another mount elsewhere); a process in another namespace cannot see that, and
 * takes the word for it. Nor does a process id mean anything in another one.
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
#define GATE 0
#define WHOLE 1
#define GATE_MS 10000
#define MOST_SAVERS 1024
#define MOST_NAMED 4
#define STILL_ENDING                                             \
	", which is ending: files of its mount may still be open, " \
	"or a disk hangs"

static const char *const words[] = {
	[UCM_LOCK_STARTING] = "starting",
	[UCM_LOCK_SERVING] = "serving",
	[UCM_LOCK_ENDING] = "ending",
	[UCM_LOCK_SAVING] = "saving",
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

/* By a user who has the directory for itself. */
static bool is_whole(int fd)
{
	return ucm_os_find_lock(fd, WHOLE, 1) >= 0;
}

static bool is_ending(int fd)
{
	char text[RECORD_BYTES + 1] = "", word[16];
	unsigned a, b, place = 0;
	unsigned long long where;

	if (!is_whole(fd) || ucm_os_read_at(fd, text, RECORD_BYTES, 0) < 0 ||
	    sscanf(text, "%15s", word) != 1)
		return false;
	if (!strcmp(word, words[UCM_LOCK_ENDING]))
		return true;
	return sscanf(text, "serving %llu %u:%u %x", &where, &a, &b, &place) ==
		       4 &&
	       where && where == mount_namespace() &&
	       !is_mounted(makedev(a, b), &place);
}

/* ---- who has it ---- */

static off_t line_of(unsigned saver)
{
	return (off_t)(saver + 1) * RECORD_BYTES;
}

/* Lines that a saver has, or had. */
static unsigned num_lines(int fd)
{
	struct stat st;

	if (ucm_os_fstat(fd, &st) || st.st_size < RECORD_BYTES)
		return 0;
	return (unsigned)(st.st_size / RECORD_BYTES) - 1;
}

/* Not our own. */
static bool has_line(int fd, unsigned saver)
{
	return ucm_os_find_lock(fd, line_of(saver), RECORD_BYTES) >= 0;
}

static void read_text(int fd, off_t line, char text[RECORD_BYTES + 1])
{
	memset(text, 0, RECORD_BYTES + 1);
	if (ucm_os_read_at(fd, text, RECORD_BYTES, line) < 0)
		*text = '\0';
}

/* "process 1234, NAME", for people; false: it is not known. */
static bool name_holder(int fd, off_t line, char *out, size_t size)
{
	char text[RECORD_BYTES + 1], path[48], name[32] = "";
	unsigned long long where;
	int pid;

	read_text(fd, line, text);
	if (sscanf(text, "%*s %*u %*u:%*u %*x %d %llu", &pid, &where) != 2 ||
	    !where || where != ucm_process_namespace())
		return false;
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	ucm_system_line(path, name, sizeof(name));
	if (!*name)
		return false;
	snprintf(out, size, "process %d, %s", pid, name);
	return true;
}

struct holders {
	char text[192]; /* "" if nobody is known */
};

/* Those that are known: " (process 1234, NAME; process 1235, NAME)". */
static void name_savers(int fd, struct holders *out)
{
	unsigned num = num_lines(fd), named = 0, more = 0;
	size_t len = 0;

	for (unsigned i = 0; i < num; i++) {
		char one[48];

		if (!has_line(fd, i))
			continue;
		if (named < MOST_NAMED &&
		    name_holder(fd, line_of(i), one, sizeof(one)))
			len += (size_t)snprintf(out->text + len,
						sizeof(out->text) - len,
						"%s%s", named++ ? "; " : " (",
						one);
		else
			more++;
	}
	if (more && named)
		len += (size_t)snprintf(out->text + len,
					sizeof(out->text) - len,
					"; and %u more", more);
	if (named)
		snprintf(out->text + len, sizeof(out->text) - len, ")");
}

static struct holders holders_of(int fd)
{
	struct holders holders = { "" };
	char one[48];

	if (!is_whole(fd))
		name_savers(fd, &holders);
	else if (name_holder(fd, 0, one, sizeof(one)))
		snprintf(holders.text, sizeof(holders.text), " (%s)", one);
	return holders;
}

/* ---- taking it ---- */

static int busy_if_locked(int err)
{
	return err == -EAGAIN || err == -EACCES ? -EBUSY : err;
}

static int take_whole(int fd, unsigned *saver)
{
	(void)saver;
	return busy_if_locked(ucm_os_lock(fd, 0, 0));
}

/* The first free line. */
static int take_line(int fd, unsigned *saver)
{
	int err = -EBUSY;

	for (unsigned i = 0; i < MOST_SAVERS && err == -EBUSY; i++) {
		*saver = i;
		err = busy_if_locked(ucm_os_lock(fd, line_of(i), RECORD_BYTES));
		if (err == -EBUSY && is_whole(fd))
			break;
	}
	return err;
}

static int wait_for(int fd, int (*take)(int fd, unsigned *saver),
		    unsigned *saver, const char *path, unsigned wait_s)
{
	int64_t until_ms = ucm_monotonic_ms() + (int64_t)wait_s * 1000;
	const struct timespec poll = { .tv_nsec = POLL_NS };
	bool told = false;
	int err;

	while ((err = take(fd, saver)) == -EBUSY && is_ending(fd) &&
	       ucm_monotonic_ms() < until_ms) {
		if (!told)
			ucm_info("%s: waiting for another ucmfs to end", path);
		told = true;
		nanosleep(&poll, NULL);
	}
	/* Its user may have ended after the first look, before the second. */
	return err == -EBUSY ? take(fd, saver) : err;
}

static int write_line(int fd, off_t line, enum ucm_lock_state state,
		      dev_t mount, uint32_t instance)
{
	char text[RECORD_BYTES + 1], said[RECORD_BYTES];
	unsigned place = 0;

	if (mount)
		is_mounted(mount, &place);
	snprintf(said, sizeof(said), "%s %llu %u:%u %x %d %llu %08x",
		 words[state], mount_namespace(), major(mount), minor(mount),
		 place, (int)getpid(), ucm_process_namespace(), instance);
	snprintf(text, sizeof(text), "%-*s\n", RECORD_BYTES - 1, said);
	return ucm_os_write_at(fd, text, RECORD_BYTES, line);
}

static int refuse(int fd, const char *path, int err, struct ucm_error *error)
{
	if (err == -EBUSY)
		ucm_error_set(error, err, "%s: in use by another ucmfs%s%s",
			      path, holders_of(fd).text,
			      is_ending(fd) ? STILL_ENDING : "");
	else
		ucm_error_set(error, err, "%s: .ucmfs/lock: %s", path,
			      strerror(-err));
	if (fd >= 0)
		close(fd);
	return err;
}

static int open_lock(int ctldir)
{
	return ucm_os_open(ctldir, "lock", O_RDWR | O_CREAT, 0644);
}

int ucm_lock_take(int ctldir, const char *path, unsigned wait_s,
		  struct ucm_error *error)
{
	int fd = open_lock(ctldir);
	int err = fd < 0 ? fd : wait_for(fd, take_whole, NULL, path, wait_s);

	if (err)
		return refuse(fd, path, err, error);
	ucm_lock_tell(fd, UCM_LOCK_STARTING, 0);
	return fd;
}

void ucm_lock_tell(int lockfd, enum ucm_lock_state state, dev_t mount)
{
	int err = lockfd < 0 ? 0 : write_line(lockfd, 0, state, mount, 0);

	if (err)
		ucm_debug(TIER, 1, ".ucmfs/lock: %s", strerror(-err));
}

/* ---- savers ---- */

/* Its line must be there: by it others know whose temporaries are whose. */
int ucm_lock_join(int ctldir, const char *path, unsigned wait_s,
		  uint32_t instance, struct ucm_error *error)
{
	int fd = open_lock(ctldir), err;
	unsigned saver = 0;

	err = fd < 0 ? fd : wait_for(fd, take_line, &saver, path, wait_s);
	if (!err)
		err = write_line(fd, line_of(saver), UCM_LOCK_SAVING, 0,
				 instance);
	return err ? refuse(fd, path, err, error) : fd;
}

bool ucm_lock_is_savers(int lockfd, uint32_t instance)
{
	unsigned num = num_lines(lockfd), its;
	char text[RECORD_BYTES + 1];

	for (unsigned i = 0; i < num; i++) {
		if (!has_line(lockfd, i))
			continue;
		read_text(lockfd, line_of(i), text);
		if (sscanf(text, "%*s %*u %*u:%*u %*x %*d %*u %8x", &its) !=
			    1 ||
		    its == instance)
			return true;
	}
	return false;
}

bool ucm_lock_is_alone(int lockfd)
{
	unsigned num = num_lines(lockfd);

	for (unsigned i = 0; i < num; i++) {
		if (has_line(lockfd, i))
			return false;
	}
	return true;
}

int ucm_lock_enter(int lockfd)
{
	int64_t until_ms = ucm_monotonic_ms() + GATE_MS;
	const struct timespec poll = { .tv_nsec = POLL_NS };
	int err;

	while ((err = busy_if_locked(ucm_os_lock(lockfd, GATE, 1))) ==
		       -EBUSY &&
	       ucm_monotonic_ms() < until_ms)
		nanosleep(&poll, NULL);
	return err;
}

static void unlock(int lockfd, off_t offset, off_t len)
{
	int err = ucm_os_unlock(lockfd, offset, len);

	if (err)
		ucm_error(".ucmfs/lock: %s", strerror(-err));
}

void ucm_lock_leave(int lockfd)
{
	unlock(lockfd, GATE, 1);
}

void ucm_lock_part(int lockfd)
{
	unlock(lockfd, 0, 0);
}
