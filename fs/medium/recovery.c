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

#include "fs/medium/recovery.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/process.h"
#include "fs/medium/medium.h"

#define STATE "state"
#define FORMAT "clean=%d\ncheckpoint=%" PRId64 "\nboot=%s"
#define LOST "lost" /* instead of a boot id: writes were lost */
#define DAMAGED "damaged" /* the same: the file before this one was */

/* Clocks tick coarsely and may be stepped back a little. */
#define SLACK_NS (2 * INT64_C(1000000000))

static void read_boot_id(char *id, size_t size)
{
	ucm_system_line("/proc/sys/kernel/random/boot_id", id, size);
	if (!*id)
		snprintf(id, size, "unknown");
}

static int state_write(const struct ucm_recovery *recovery,
		       struct ucm_medium *medium, bool clean)
{
	char text[160];
	int len;

	if (medium->hosts) /* one file cannot say it of all of them */
		return 0;
	len = snprintf(text, sizeof(text), FORMAT "\n", clean,
			   atomic_load(&recovery->checkpoint_ns),
			   recovery->boot);

	if (clean && recovery->snapshot)
		len += snprintf(text + len, sizeof(text) - (size_t)len,
				"snapshot=%" PRIx64 "\n", recovery->snapshot);
	return ucm_medium_replace_note(medium, NULL, STATE, text, (size_t)len);
}

static uint64_t snapshot_number(const char *text)
{
	const char *line = strstr(text, "\nsnapshot=");
	uint64_t number;

	return line && sscanf(line, " snapshot=%" SCNx64, &number) == 1
		       ? number
		       : 0;
}

/* -EINVAL: it is not as ucm_recovery_write() makes it. */
static int state_parse(const char *text, int *clean, int64_t *checkpoint,
		       char boot[40])
{
	char same[160];
	int len;

	if (sscanf(text, "clean=%d checkpoint=%" SCNd64 " boot=%39[^ \n]", clean,
		   checkpoint, boot) != 3 ||
	    (*clean != 0 && *clean != 1))
		return -EINVAL;
	len = snprintf(same, sizeof(same), FORMAT, *clean, *checkpoint, boot);
	if (strncmp(text, same, (size_t)len))
		return -EINVAL;
	/* mark_lost_in_place() fills up with spaces */
	return text[len] == '\n' || text[len] == ' ' ? 0 : -EINVAL;
}

static bool state_is_damaged(int err)
{
	return err == -EINVAL || err == -EFBIG || err == -EIO ||
	       err == -EUCLEAN || err == -EBADMSG;
}

int ucm_recovery_read(struct ucm_recovery *recovery, struct ucm_medium *medium)
{
	char text[256], boot[40] = "";
	int64_t checkpoint;
	int clean, err;

	/* nothing is newer than what has been closed */
	*recovery = (struct ucm_recovery){ .epoch = 1,
					   .oldest = 1,
					   .checkpoint_ns = INT64_MAX };
	read_boot_id(recovery->boot, sizeof(recovery->boot));
	if (medium->hosts)
		return 0;
	err = ucm_medium_read_note(medium, NULL, STATE, text, sizeof(text));
	if (err == -ENOENT)
		return 0;
	if (!err)
		err = state_parse(text, &clean, &checkpoint, boot);
	if (state_is_damaged(err)) {
		recovery->damaged = err;
		recovery->unclean = recovery->unvouched = true;
		recovery->checkpoint_ns = 0;
		memcpy(recovery->boot, DAMAGED, sizeof(DAMAGED));
		return 0;
	}
	if (err) {
		ucm_error("%s: .ucmfs/state cannot be read: %s", medium->path,
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
static int mark_in_place(struct ucm_medium *medium)
{
	static const char unclean[] = "clean=0";
	char text[sizeof(unclean)];
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	ssize_t got;
	int err = ucm_medium_open_note(medium, STATE, UCM_OPEN_CHANGE, &file);

	if (err)
		return err;
	got = ucm_file_read(&file, text, sizeof(unclean) - 1, 0);
	if (got < 0)
		return (int)got;
	if (got != sizeof(unclean) - 1 || memcmp(text, "clean=1", (size_t)got))
		return -EINVAL;
	err = ucm_file_write(&file, unclean, sizeof(unclean) - 1, 0);
	return err ? err : ucm_file_sync(&file, UCM_SYNC_DATA);
}

static int mark_in_use(struct ucm_recovery *recovery,
		       struct ucm_medium *medium)
{
	int64_t now = 0;
	int err = ucm_medium_now(medium, &now);

	if (!err) {
		recovery->checkpoint_ns = now;
		err = state_write(recovery, medium, false);
	}
	if ((err == -ENOSPC || err == -EDQUOT) && !mark_in_place(medium))
		err = 0;
	return err;
}

int ucm_recovery_begin(struct ucm_recovery *recovery, struct ucm_medium *medium)
{
	int err;

	recovery->snapshot = 0;
	if (recovery->damaged) {
		err = state_write(recovery, medium, false);
		/* without room the damaged one says the same */
		return err == -ENOSPC || err == -EDQUOT ? 0 : err;
	}
	/* else the mark is there, with what it has to say */
	return recovery->unclean ? 0 : mark_in_use(recovery, medium);
}

/* The same for the boot id. Not synced: after a restart of the machine any id
 * means as much, and until then the page cache has it. */
static int mark_lost_in_place(struct ucm_medium *medium)
{
	char text[256], *boot;
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	int err = ucm_medium_read_note(medium, NULL, STATE, text, sizeof(text));

	boot = err ? NULL : strstr(text, "boot=");
	if (!boot)
		return err ? err : -EINVAL;
	boot += strlen("boot=");
	boot[strcspn(boot, "\n")] = '\0';
	if (strlen(boot) < strlen(LOST))
		return -EINVAL;
	memset(boot, ' ', strlen(boot));
	memcpy(boot, LOST, strlen(LOST));
	err = ucm_medium_open_note(medium, STATE, UCM_OPEN_CHANGE, &file);
	return err ? err
		   : ucm_file_write(&file, boot, strlen(boot),
				    (uint64_t)(boot - text));
}

static int note_loss(const struct ucm_recovery *recovery,
		     struct ucm_medium *medium)
{
	int err = state_write(recovery, medium, false);

	return err && !mark_lost_in_place(medium) ? 0 : err;
}

static void lose(struct ucm_recovery *recovery, struct ucm_medium *medium)
{
	bool again = recovery->lost;
	int err;

	recovery->unclean = recovery->unvouched = true;
	atomic_fetch_add(&recovery->losses, 1);
	recovery->lost = true;
	memcpy(recovery->boot, LOST, sizeof(LOST));
	err = note_loss(recovery, medium);
	if (err && !again)
		ucm_error(".ucmfs/state: that writes were lost cannot be "
			  "noted: %s", strerror(-err));
}

int ucm_recovery_sync(struct ucm_recovery *recovery, struct ucm_medium *medium)
{
	uint16_t epoch = (uint16_t)(recovery->epoch + 1);
	int err;

	if (!epoch)
		epoch = 1;
	recovery->epoch = epoch;
	err = ucm_medium_sync(medium, NULL);
	if (err)
		lose(recovery, medium);
	else
		recovery->oldest = epoch;
	return err;
}

void ucm_recovery_mark(struct ucm_recovery *recovery, struct ucm_medium *medium)
{
	if (ucm_medium_now(medium, &recovery->mark_ns))
		recovery->mark_ns = 0;
}

int ucm_recovery_checkpoint(struct ucm_recovery *recovery,
			    struct ucm_medium *medium)
{
	int64_t before = recovery->mark_ns;
	int no_time = before ? 0 : ucm_medium_now(medium, &before);
	/* in any case: one that has gone read-only has perhaps lost writes */
	int err = ucm_recovery_sync(recovery, medium);

	recovery->mark_ns = 0;
	if (!err)
		err = no_time;
	if (err)
		return err;
	recovery->checkpoint_ns = before;
	read_boot_id(recovery->boot, sizeof(recovery->boot));
	err = state_write(recovery, medium, false);
	if (!err)
		recovery->unclean = recovery->lost = false;
	return err;
}

int ucm_recovery_end(struct ucm_recovery *recovery, struct ucm_medium *medium)
{
	int64_t before;
	int no_time = ucm_medium_now(medium, &before);
	int err = ucm_recovery_sync(recovery, medium);

	if (err)
		return err;
	if (!no_time)
		recovery->checkpoint_ns = before;
	read_boot_id(recovery->boot, sizeof(recovery->boot));
	return state_write(recovery, medium, true);
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
