/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery_savers.c - the state file of a directory where several save side by side.
 *
 * A saver links a block when all of it is written, and never writes to it again. So
 * while the machine runs nothing that savers have left is in doubt, though all of
 * them were killed: the page cache has it. What they say in the state file is
 * "savers": in this boot, nothing is in doubt; after a restart of the machine, what
 * is newer than the checkpoint is, as in any directory that was in use.
 *
 *   clean      the first saver writes "savers", with the time
 *   savers     others join, and write nothing. Each moves the checkpoint on when a
 *              sync of its own has succeeded: a sync is of the whole file system,
 *              also of what the others wrote. The last one to end writes "clean";
 *              of those that end at once all but one are gone before it looks.
 *   unclean    a daemon's, or another boot's: it is for a daemon to look through.
 *              No saver does, so none moves the checkpoint or ends it.
 *   lost       a sync has failed: any of them writes that, with the older
 *              checkpoint, and it is as above
 *
 * Always: the checkpoint never moves past what some saver has not got on disk.
 * There is no snapshot, as none of them knows what all of them have saved.
 *
 * Whoever reads the file and then writes it is inside the gate meanwhile (enter and
 * leave of medium.h). One that is killed there has written it or not. Where there
 * are no locks, as on a network file system, nobody knows who else is there: the
 * file is left alone. There a commit follows a close, which the server has answered.
 */
#include <config.h>

#include "fs/tier/recovery.h"

#include <errno.h>

#include "fs/tier/medium.h"

/* With fn between enter and leave. */
static int in_turn(struct ucm_recovery *recovery, struct ucm_medium *medium,
		   bool last,
		   int (*fn)(struct ucm_recovery *recovery,
			     struct ucm_medium *medium, bool alone))
{
	bool alone;
	int err = medium->ops->enter ? medium->ops->enter(medium, &alone)
				     : -EOPNOTSUPP;

	if (err)
		return err == -EOPNOTSUPP ? 0 : err;
	err = fn(recovery, medium, alone);
	medium->ops->leave(medium, last);
	return err;
}

/* What was read when the directory was opened may be another's beginning ago. */
static int begin(struct ucm_recovery *recovery, struct ucm_medium *medium,
		 bool alone)
{
	int err = ucm_recovery_read(recovery, medium);

	(void)alone;
	if (err || recovery->unclean || recovery->savers)
		return err;
	err = ucm_recovery_open(recovery, medium, UCM_RECOVERY_SAVERS);
	recovery->savers = !err;
	return err;
}

int ucm_recovery_savers_begin(struct ucm_recovery *recovery,
			      struct ucm_medium *medium)
{
	int err = in_turn(recovery, medium, false, begin);

	recovery->snapshot = 0;
	return err;
}

static int note_loss(struct ucm_recovery *recovery, struct ucm_medium *medium,
		     bool alone)
{
	struct ucm_recovery now;

	(void)alone;
	/* another may have lost more */
	if (!ucm_recovery_read(&now, medium) &&
	    now.checkpoint_ns < recovery->checkpoint_ns)
		recovery->checkpoint_ns = atomic_load(&now.checkpoint_ns);
	return ucm_recovery_note_loss(recovery, medium);
}

int ucm_recovery_savers_note_loss(struct ucm_recovery *recovery,
				  struct ucm_medium *medium)
{
	recovery->savers = false;
	return in_turn(recovery, medium, false, note_loss);
}

/* mark_ns: what the sync has covered. */
static int move_on(struct ucm_recovery *recovery, struct ucm_medium *medium,
		   bool alone)
{
	struct ucm_recovery now;
	int err = ucm_recovery_read(&now, medium);

	(void)alone;
	if (err || !now.savers)
		return err;
	if (now.checkpoint_ns >= recovery->mark_ns) {
		recovery->checkpoint_ns = atomic_load(&now.checkpoint_ns);
		return 0;
	}
	recovery->checkpoint_ns = recovery->mark_ns;
	ucm_recovery_take_boot(recovery);
	return ucm_recovery_write(recovery, medium, UCM_RECOVERY_SAVERS);
}

int ucm_recovery_savers_checkpoint(struct ucm_recovery *recovery,
				   struct ucm_medium *medium, int64_t before)
{
	int err;

	recovery->mark_ns = before;
	err = in_turn(recovery, medium, false, move_on);
	recovery->mark_ns = 0;
	if (!err)
		recovery->lost = false; /* of what we have written ourselves */
	return err;
}

/* Whoever begins waits meanwhile: what one that was killed has left is synced, too. */
static int end(struct ucm_recovery *recovery, struct ucm_medium *medium,
	       bool alone)
{
	struct ucm_recovery now;
	int64_t before;
	int err;

	if (!alone)
		return 0;
	err = ucm_recovery_read(&now, medium);
	if (err || !now.savers)
		return err;
	err = medium->ops->now(medium, &before);
	if (!err)
		err = ucm_recovery_sync(recovery, medium);
	if (err)
		return err;
	recovery->checkpoint_ns = before;
	ucm_recovery_take_boot(recovery);
	return ucm_recovery_write(recovery, medium, UCM_RECOVERY_CLEAN);
}

int ucm_recovery_savers_end(struct ucm_recovery *recovery,
			    struct ucm_medium *medium)
{
	/* with all that it has to do before the others have to wait */
	int err = ucm_recovery_sync(recovery, medium);

	return err ? err : in_turn(recovery, medium, true, end);
}

static int spoil(struct ucm_recovery *recovery, struct ucm_medium *medium,
		 bool alone)
{
	struct ucm_recovery now;
	int err = ucm_recovery_read(&now, medium);

	(void)alone;
	(void)recovery;
	return err || !now.savers ? err
				  : ucm_recovery_write(&now, medium,
						       UCM_RECOVERY_IN_USE);
}

int ucm_recovery_spoil(struct ucm_recovery *recovery, struct ucm_medium *medium)
{
	return medium->saver ? in_turn(recovery, medium, false, spoil) : 0;
}
