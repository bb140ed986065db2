/* SPDX-License-Identifier: Apache-2.0 */
/*
 * medium.c - what is common to all media: how they are opened, taken into use
 * and closed.
 */
#include <config.h>

#include "fs/tier/medium.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/log.h"
#include "fs/index/snapshot.h"
#include "fs/tier/dir.h"

static int medium_read_state(struct ucm_medium *medium,
			     struct ucm_error *error)
{
	int err = ucm_recovery_read(&medium->recovery, medium);
	int damaged = medium->recovery.damaged;

	if (damaged)
		ucm_warning("%s: .ucmfs/state is damaged: %s; all blocks are "
			    "checked before use",
			    medium->path,
			    damaged == -EINVAL ? "cut off or overwritten"
					       : strerror(-damaged));
	/* there, the mark may be another machine's, which is at work: what has
	 * no checksum is not condemned for it */
	if (medium->flags & UCM_MEDIUM_SHARED && !medium->recovery.lost)
		medium->recovery.unvouched = false;
	if (err)
		ucm_error_set(error, err, "%s: .ucmfs/state: %s", medium->path,
			      strerror(-err));
	return err;
}

int ucm_medium_open(const char *path, bool readonly,
		    const struct ucm_config *config, struct ucm_medium **out,
		    struct ucm_error *error)
{
	ucm_medium_open_fn *open_fn = config->open_medium
					      ? config->open_medium
					      : ucm_directory_open;
	struct ucm_medium *medium;
	int err = open_fn(path, readonly, config, &medium, error);

	if (err)
		return err;
	ucm_temp_whoami(&medium->maker);
	err = medium_read_state(medium, error);
	if (err) {
		ucm_medium_close(medium, false);
		ucm_medium_free(medium);
		return err;
	}
	*out = medium;
	return 0;
}

static const char *medium_why_unclean(const struct ucm_medium *medium)
{
	if (medium->recovery.lost)
		return "writes were lost";
	return medium->recovery.unvouched
		       ? "not closed cleanly before the machine restarted"
		       : "not closed cleanly, or before all of it had been "
			 "checked";
}

int ucm_medium_begin(struct ucm_medium *medium)
{
	int err;

	if (medium->readonly)
		return 0;
	if (medium->recovery.unclean && !medium->recovery.damaged)
		ucm_warning("%s: %s; blocks newer than the last checkpoint are "
			    "checked before use",
			    medium->path, medium_why_unclean(medium));
	ucm_medium_clear_temps(medium);
	err = ucm_recovery_begin(&medium->recovery, medium);
	if (err)
		ucm_error("%s: .ucmfs/state: %s", medium->path, strerror(-err));
	else
		/* the state file has ended it; its reader has it open */
		ucm_medium_remove_note(medium, UCM_SNAPSHOT_NAME);
	return err;
}

void ucm_medium_close(struct ucm_medium *medium, bool clean)
{
	if (!medium)
		return;
	if (clean && !medium->readonly && !medium->abandoned) {
		int err = ucm_recovery_end(&medium->recovery, medium);

		if (err)
			ucm_error("%s: closing: %s", medium->path,
				  strerror(-err));
	}
	medium->ops->close(medium);
}

void ucm_medium_free(struct ucm_medium *medium)
{
	free(medium);
}
