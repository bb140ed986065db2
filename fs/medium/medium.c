/* SPDX-License-Identifier: Apache-2.0 */
/*
 * medium.c - what is common to all media: their identities, and how they are
 * opened, taken into use and closed.
 */
#include <config.h>

#include "fs/medium/medium.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/error.h"
#include "common/log.h"
#include "fs/index/snapshot.h"

#define FORMAT_VERSION 1
#define UUID_TEXT 32

static int new_identity(struct ucm_medium *medium,
			char text[UCM_IDENTITY_BYTES])
{
	char hex[UUID_TEXT + 1];
	uint8_t uuid[16];

	if (getrandom(uuid, sizeof(uuid), 0) != sizeof(uuid))
		return -EIO;
	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", uuid[i]);
	snprintf(text, UCM_IDENTITY_BYTES, "ucmfs %d\nuuid %s\n",
		 FORMAT_VERSION, hex);
	return ucm_medium_replace_note(medium, NULL, "id", text, strlen(text));
}

int ucm_medium_parse_identity(const char *text, uint8_t uuid_out[16])
{
	char hex[UUID_TEXT + 1];
	struct ucm_id uuid; /* the same 32 hex digits as an id's */
	int version;

	if (sscanf(text, "ucmfs %d uuid %32s", &version, hex) != 2 ||
	    version != FORMAT_VERSION || strlen(hex) != UUID_TEXT ||
	    ucm_id_parse(hex, &uuid))
		return -EINVAL;
	memcpy(uuid_out, uuid.bytes, sizeof(uuid.bytes));
	return 0;
}

static int medium_read_identity(struct ucm_medium *medium,
				struct ucm_error *error)
{
	char text[UCM_IDENTITY_BYTES];
	int err = ucm_medium_read_note(medium, NULL, "id", text, sizeof(text));

	if (err == -ENOENT && !medium->readonly)
		err = new_identity(medium, text);
	if (!err)
		err = ucm_medium_parse_identity(text, medium->uuid);
	if (err)
		ucm_error_set(error, err,
			      "%s: .ucmfs/id is not of a version that this "
			      "ucmfs can use: %s",
			      medium->path, strerror(-err));
	return err;
}

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

int ucm_medium_open(ucm_medium_open_fn *open, const char *path, bool readonly,
		    const struct ucm_config *config, struct ucm_medium **out,
		    struct ucm_error *error)
{
	struct ucm_medium *medium;
	int err = open(path, readonly, config, &medium, error);

	if (err)
		return err;
	ucm_temp_whoami(&medium->maker);
	err = medium_read_identity(medium, error);
	if (!err)
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
	if (medium)
		free(medium->hosts);
	free(medium);
}
