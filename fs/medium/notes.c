/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notes.c - notes of a medium: small files in .ucmfs, and in the folders of
 * spaces; see medium.h.
 *
 * A note is replaced whole, by a file beside it that takes its name once it is on
 * disk.
 */
#include <config.h>

#include "fs/medium/medium.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/clock.h"

/* The path of one, and of one that is to take its place. */
struct note {
	char path[UCM_TREE_PATH_MAX], fresh[UCM_TREE_PATH_MAX + 4];
};

static struct note note_of(const char *folder, const char *name)
{
	struct note note;

	snprintf(note.path, sizeof(note.path), "%s/%s",
		 folder ? folder : UCM_TREE_OWN, name);
	snprintf(note.fresh, sizeof(note.fresh), "%s.new", note.path);
	return note;
}

int ucm_medium_read_note(struct ucm_medium *medium, const char *folder,
			 const char *name, char *text, size_t size)
{
	const struct note note = note_of(folder, name);
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct stat st;
	ssize_t got;
	int err = medium->ops->open(medium, note.path, UCM_OPEN_READ, &file,
				    &st);

	if (err)
		return err;
	got = ucm_file_read(&file, text, size, 0);
	if (got < 0)
		return (int)got;
	if ((size_t)got >= size)
		return -EFBIG;
	text[got] = '\0';
	return 0;
}

/* 0, or -EROFS: it is only read, or since now, as another daemon has it. */
static int check_owner(struct ucm_medium *medium)
{
	return medium->readonly ? -EROFS
				: ucm_medium_beat(medium, UCM_BEAT_CHECK);
}

/* The file is closed; err: what has come before. */
static int note_keep(struct ucm_medium *medium, const struct note *note,
		     struct ucm_file *file, int err)
{
	if (!err)
		err = ucm_file_sync(file, UCM_SYNC_ALL);
	ucm_file_close(file);
	if (!err)
		err = medium->ops->rename(medium, note->fresh, note->path);
	if (err)
		medium->ops->remove(medium, note->fresh, false);
	return err;
}

/* On a shared medium: what is replaced others would go on reading for seconds, and
 * two daemons could each say something else. -EEXIST: one has said so before. */
static int note_link(struct ucm_medium *medium, const struct note *note,
		     const char *text, size_t len)
{
	char temp[UCM_TEMP_PATH_MAX];
	struct ucm_file file;
	int err = ucm_medium_put(medium, temp, &file);

	if (err)
		return err;
	err = ucm_file_write(&file, text, len, 0);
	if (!err)
		err = ucm_file_sync(&file, UCM_SYNC_ALL);
	ucm_file_close(&file);
	if (!err)
		err = medium->ops->link(medium, temp, note->path);
	ucm_medium_drop(medium, temp);
	return err;
}

static bool note_says(struct ucm_medium *medium, const char *folder,
		      const char *name, const char *text, size_t len)
{
	_cleanup_free_ char *there = malloc(len + 1);

	return there &&
	       !ucm_medium_read_note(medium, folder, name, there, len + 1) &&
	       !strncmp(there, text, len) && !there[len];
}

int ucm_medium_replace_note(struct ucm_medium *medium, const char *folder,
			    const char *name, const char *text, size_t len)
{
	const struct note note = note_of(folder, name);
	struct ucm_file file;
	int err = check_owner(medium);

	if (!err && medium->hosts) {
		err = note_link(medium, &note, text, len);
		return err == -EEXIST &&
				       note_says(medium, folder, name, text, len)
			       ? 0
			       : err;
	}
	if (!err)
		err = medium->ops->open(medium, note.fresh, UCM_OPEN_OVER,
					&file, NULL);
	if (err)
		return err;
	err = ucm_file_write(&file, text, len, 0);
	err = note_keep(medium, &note, &file, err);
	if (err || folder)
		return err;
	err = ucm_medium_sync(medium, UCM_TREE_OWN);
	return err == -EINVAL ? 0 : err; /* some cannot sync a folder */
}

int ucm_medium_open_note(struct ucm_medium *medium, const char *name,
			 enum ucm_open_how how, struct ucm_file *out)
{
	const struct note note = note_of(NULL, name);
	struct stat st;

	if (how != UCM_OPEN_NEW)
		return medium->ops->open(medium, note.path, how, out, &st);
	medium->ops->remove(medium, note.fresh, false);
	return medium->ops->open(medium, note.fresh, how, out, NULL);
}

int ucm_medium_keep_note(struct ucm_medium *medium, const char *name,
			 struct ucm_file *file, int err)
{
	const struct note note = note_of(NULL, name);

	return note_keep(medium, &note, file,
			 err ? err : check_owner(medium));
}

void ucm_medium_remove_note(struct ucm_medium *medium, const char *name)
{
	const struct note note = note_of(NULL, name);

	medium->ops->remove(medium, note.path, false);
	medium->ops->remove(medium, note.fresh, false);
}

int ucm_medium_now(struct ucm_medium *medium, int64_t *ns_out)
{
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct stat st;
	int err = medium->ops->open(medium, UCM_TREE_OWN "/clock",
				    UCM_OPEN_OVER, &file, NULL);

	if (!err)
		err = ucm_file_set_times(&file, NULL);
	if (!err)
		err = ucm_file_stat(&file, &st);
	if (!err)
		*ns_out = ucm_time_ns(&st.st_ctim);
	return err;
}
