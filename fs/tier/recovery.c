/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.c - the state file of a directory: "clean", "checkpoint", "boot", and
 * the number of the snapshot, if it is clean.
 *
 * ctime decides, because utimensat(2) can set mtime (cp -p, rsync -t) but never
 * ctime. The boot id distinguishes a crash of the daemon, after which the page
 * cache still holds every byte, from one of the machine; blocks without
 * checksums are trusted after the first and not after the second.
 */
#include <config.h>

#include "fs/tier/recovery.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

#define STATE "state"
#define CLOCK "clock"
#define LOST "lost" /* instead of a boot id: writes were lost */

/* Clocks tick coarsely and may be stepped back a little. */
#define SLACK_NS (2 * INT64_C(1000000000))

static void read_boot_id(char *id, size_t size)
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (!file || !fgets(id, (int)size, file))
		snprintf(id, size, "unknown");
	id[strcspn(id, "\n")] = '\0';
	if (file)
		fclose(file);
}

int ucm_recovery_time(int ctldir, int64_t *out_ns)
{
	_cleanup_fd_ int fd = ucm_os_open(ctldir, CLOCK, O_WRONLY | O_CREAT, 0644);
	struct stat st;
	int err;

	if (fd < 0)
		return fd;
	err = ucm_os_utimens(fd, NULL);
	if (!err)
		err = ucm_os_fstat(fd, &st);
	if (!err)
		*out_ns = ucm_time_ns(&st.st_ctim);
	return err;
}

static int write_state(const struct ucm_recovery *recovery, int ctldir,
		       bool clean)
{
	char text[160];
	int err, len = snprintf(text, sizeof(text),
				"clean=%d\ncheckpoint=%" PRId64 "\nboot=%s\n",
				clean, atomic_load(&recovery->checkpoint_ns),
				recovery->boot);

	if (clean && recovery->snapshot)
		len += snprintf(text + len, sizeof(text) - (size_t)len,
				"snapshot=%" PRIx64 "\n", recovery->snapshot);
	err = ucm_os_replace_file(ctldir, STATE, text, (size_t)len);
	if (err)
		return err;
	err = ucm_os_fsync(ctldir);
	return err == -EINVAL ? 0 : err; /* some cannot sync a folder */
}

static uint64_t snapshot_number(const char *text)
{
	const char *line = strstr(text, "\nsnapshot=");
	uint64_t number;

	return line && sscanf(line, " snapshot=%" SCNx64, &number) == 1
		       ? number
		       : 0;
}

int ucm_recovery_read(struct ucm_recovery *recovery, int ctldir,
		      const char *path)
{
	char text[256], boot[40] = "";
	int64_t checkpoint;
	int clean, err;

	/* nothing is newer than what has been closed */
	*recovery = (struct ucm_recovery){ .epoch = 1,
					   .oldest = 1,
					   .checkpoint_ns = INT64_MAX };
	read_boot_id(recovery->boot, sizeof(recovery->boot));
	err = ucm_os_read_file(ctldir, STATE, text, sizeof(text));
	if (err == -ENOENT)
		return 0;
	if (!err && sscanf(text, "clean=%d checkpoint=%" SCNd64 " boot=%39s",
			   &clean, &checkpoint, boot) != 3)
		err = -EINVAL;
	if (err) {
		ucm_error("%s: .ucmfs/state cannot be read: %s", path,
			  strerror(-err));
		return err;
	}
	if (clean) {
		recovery->snapshot = snapshot_number(text);
		return 0;
	}
	recovery->checkpoint_ns = checkpoint;
	recovery->unclean = true;
	recovery->lost = !strcmp(boot, LOST);
	recovery->unvouched = strcmp(boot, recovery->boot) != 0;
	/* until all doubts are settled the file keeps telling of that crash */
	memcpy(recovery->boot, boot, sizeof(recovery->boot));
	return 0;
}

/* The mark alone, where there is no room for another file: a full directory
 * is to be read, and to be emptied. What else the file says is older than it
 * could be, so that more blocks are checked after a crash. */
static int mark_in_place(int ctldir)
{
	static const char unclean[] = "clean=0";
	char text[sizeof(unclean)];
	_cleanup_fd_ int fd = ucm_os_open(ctldir, STATE, O_RDWR, 0);
	ssize_t got;
	int err;

	if (fd < 0)
		return fd;
	got = ucm_os_read_at(fd, text, sizeof(unclean) - 1, 0);
	if (got < 0)
		return (int)got;
	if (got != sizeof(unclean) - 1 || memcmp(text, "clean=1", (size_t)got))
		return -EINVAL;
	err = ucm_os_write_at(fd, unclean, sizeof(unclean) - 1, 0);
	return err ? err : ucm_os_fsync(fd);
}

int ucm_recovery_begin(struct ucm_recovery *recovery, int ctldir)
{
	int64_t now;
	int err;

	recovery->snapshot = 0;
	if (recovery->unclean)
		return 0; /* the mark is there, with what it has to say */
	err = ucm_recovery_time(ctldir, &now);
	if (!err) {
		recovery->checkpoint_ns = now;
		err = write_state(recovery, ctldir, false);
	}
	if ((err == -ENOSPC || err == -EDQUOT) && !mark_in_place(ctldir))
		err = 0;
	return err;
}

/* The same for the boot id. Not synced: after a restart of the machine any id
 * means as much, and until then the page cache has it. */
static int mark_lost_in_place(int ctldir)
{
	char text[256], *boot;
	_cleanup_fd_ int fd = -1;
	int err = ucm_os_read_file(ctldir, STATE, text, sizeof(text));

	boot = err ? NULL : strstr(text, "boot=");
	if (!boot)
		return err ? err : -EINVAL;
	boot += strlen("boot=");
	boot[strcspn(boot, "\n")] = '\0';
	if (strlen(boot) < strlen(LOST))
		return -EINVAL;
	memset(boot, ' ', strlen(boot));
	memcpy(boot, LOST, strlen(LOST));
	fd = ucm_os_open(ctldir, STATE, O_WRONLY, 0);
	return fd < 0 ? fd : ucm_os_write_at(fd, boot, strlen(boot),
					     boot - text);
}

static void lose(struct ucm_recovery *recovery, int ctldir)
{
	bool again = recovery->lost;
	int err;

	recovery->unclean = recovery->unvouched = true;
	atomic_fetch_add(&recovery->losses, 1);
	recovery->lost = true;
	memcpy(recovery->boot, LOST, sizeof(LOST));
	err = write_state(recovery, ctldir, false);
	if (err && mark_lost_in_place(ctldir) && !again)
		ucm_error(".ucmfs/state: that writes were lost cannot be "
			  "noted: %s", strerror(-err));
}

int ucm_recovery_sync(struct ucm_recovery *recovery, int ctldir)
{
	uint16_t epoch = (uint16_t)(recovery->epoch + 1);
	int err;

	if (!epoch)
		epoch = 1;
	recovery->epoch = epoch;
	err = ucm_os_syncfs(ctldir);
	if (err)
		lose(recovery, ctldir);
	else
		recovery->oldest = epoch;
	return err;
}

void ucm_recovery_mark(struct ucm_recovery *recovery, int ctldir)
{
	if (ucm_recovery_time(ctldir, &recovery->mark_ns))
		recovery->mark_ns = 0;
}

int ucm_recovery_checkpoint(struct ucm_recovery *recovery, int ctldir)
{
	int64_t before = recovery->mark_ns;
	int no_time = before ? 0 : ucm_recovery_time(ctldir, &before);
	/* in any case: one that has gone read-only has perhaps lost writes */
	int err = ucm_recovery_sync(recovery, ctldir);

	recovery->mark_ns = 0;
	if (!err)
		err = no_time;
	if (err)
		return err;
	recovery->checkpoint_ns = before;
	read_boot_id(recovery->boot, sizeof(recovery->boot));
	err = write_state(recovery, ctldir, false);
	if (!err)
		recovery->unclean = recovery->lost = false;
	return err;
}

int ucm_recovery_end(struct ucm_recovery *recovery, int ctldir)
{
	int64_t before;
	int no_time = ucm_recovery_time(ctldir, &before);
	int err = ucm_recovery_sync(recovery, ctldir);

	if (err)
		return err;
	if (!no_time)
		recovery->checkpoint_ns = before;
	read_boot_id(recovery->boot, sizeof(recovery->boot));
	return write_state(recovery, ctldir, true);
}

bool ucm_recovery_uncovered(const struct ucm_recovery *recovery, uint16_t epoch)
{
	return epoch && (uint16_t)(epoch - recovery->oldest) <=
				(uint16_t)(recovery->epoch - recovery->oldest);
}

bool ucm_recovery_is_recent(const struct ucm_recovery *recovery,
			    const struct stat *st)
{
	return ucm_time_ns(&st->st_ctim) >
	       atomic_load(&recovery->checkpoint_ns) - SLACK_NS;
}

bool ucm_recovery_doubts(const struct ucm_recovery *recovery,
			 const struct stat *st)
{
	return recovery->unclean && ucm_recovery_is_recent(recovery, st);
}
