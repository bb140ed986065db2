/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain_rename.c - renaming in files/; see plain.h.
 *
 * A file is renamed in the directory that it lies in, which is atomic there.
 * If the file that it replaces lies in another directory, that one is unlinked
 * afterwards, when the new name is safe on disk: so at no time is there none,
 * and after a crash in between both are there, of which the first is seen.
 * Copies that nobody sees go before, so that none of them turns up.
 */
#include <config.h>

#include "fs/plain.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/osfile.h"

#define RECORD "rename" /* in .ucmfs */
#define RECORD_MAX (2 * PATH_MAX + 32)

static int rename_in(struct ucm_tierset *set, unsigned dir, const char *from,
		     const char *to)
{
	int dirfd = set->dirs[dir]->dirfd;
	int err = ucm_os_rename(dirfd, from, dirfd, to);

	if (err != -ENOENT)
		return err;
	err = ucm_plain_make_above(set, dir, to);
	return err ? err : ucm_os_rename(dirfd, from, dirfd, to);
}

/* fsync of the folder that a name is in. */
static int sync_above(struct ucm_tierset *set, unsigned dir, const char *path)
{
	char folder[PATH_MAX];
	const char *slash = strrchr(path, '/');

	snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
	return ucm_os_sync_dir(set->dirs[dir]->dirfd, folder);
}

/* ---- files ---- */

/* Unlink the copies from number `first` on, but one in the directory `but`. */
static int drop_copies(struct ucm_tierset *set, const char *path,
		       const struct ucm_plain_copies *copies, unsigned first,
		       unsigned but)
{
	for (unsigned i = copies->num; i-- > first;) {
		unsigned dir = copies->dirs[i];
		int err;

		if (dir == but)
			continue;
		err = ucm_os_unlink(set->dirs[dir]->dirfd, path);
		if (err && err != -ENOENT)
			return ucm_plain_failed(set, dir, path, "unlink", err);
		ucm_plain_account(set, dir, -(int64_t)copies->bytes[i]);
		ucm_count(&set->tier_of[dir]->stats.files_removed);
	}
	return 0;
}

/* The replaced file in the same directory went with the rename. */
static void count_replaced(struct ucm_tierset *set, unsigned dir,
			   const struct ucm_plain_copies *copies)
{
	for (unsigned i = 0; i < copies->num; i++) {
		if (copies->dirs[i] != dir)
			continue;
		ucm_plain_account(set, dir, -(int64_t)copies->bytes[i]);
		ucm_count(&set->tier_of[dir]->stats.files_removed);
	}
}

/* The name is there twice now: with the other file gone it is done. */
static int drop_replaced(struct ucm_tierset *set, const char *from,
			 const char *to, unsigned dir,
			 const struct ucm_plain_copies *old)
{
	int err = sync_above(set, dir, to), undone;

	if (err)
		ucm_plain_failed(set, dir, to, "fsync of its folder", err);
	else
		err = drop_copies(set, to, old, 0, dir);
	if (!err)
		return 0;
	undone = rename_in(set, dir, to, from);
	if (undone)
		ucm_plain_failed(set, dir, to, "taking back its rename",
				 undone);
	return err;
}

static int rename_file(struct ucm_tierset *set, const char *from,
		       const char *to, const struct ucm_plain_copies *source,
		       const struct ucm_plain_copies *old)
{
	unsigned dir = source->dirs[0];
	bool elsewhere = old->num && old->dirs[0] != dir;
	int err = drop_copies(set, from, source, 1, dir);

	if (!err && !elsewhere)
		err = drop_copies(set, to, old, 1, dir);
	if (err)
		return err;
	err = rename_in(set, dir, from, to);
	if (err)
		return ucm_plain_failed(set, dir, from, "rename", err);
	if (elsewhere)
		err = drop_replaced(set, from, to, dir, old);
	if (!err)
		count_replaced(set, dir, old);
	return err;
}

/* ---- folders ---- */

static int write_record(struct ucm_backing *backing, const char *from,
			const char *to)
{
	char text[RECORD_MAX];
	int len = snprintf(text, sizeof(text), "%zu %s%s", strlen(from), from,
			   to);

	return ucm_os_replace_file(backing->ctlfd, RECORD, text, (size_t)len);
}

static bool is_ours(const char *path)
{
	return !strncmp(path, UCM_PLAIN_ROOT "/", strlen(UCM_PLAIN_ROOT "/"));
}

/* Splits the text; NULL: it is none of ours. */
static const char *parse_record(char *text, char *from)
{
	char *names;
	size_t len = strtoul(text, &names, 10);

	if (*names++ != ' ' || len >= PATH_MAX || strlen(names) <= len)
		return NULL;
	memcpy(from, names, len);
	from[len] = '\0';
	names += len;
	return is_ours(from) && is_ours(names) ? names : NULL;
}

static int check_empty(struct ucm_tierset *set, const char *path,
		       const struct ucm_plain_copies *copies)
{
	for (unsigned i = 0; i < copies->num; i++) {
		_cleanup_free_ char *names = NULL;
		int err = ucm_os_list(set->dirs[copies->dirs[i]]->dirfd, path,
				      &names);

		if (err)
			return err;
		if (*names)
			return -ENOTEMPTY;
	}
	return 0;
}

/* Back to the old name where it has the new one: the first num. */
static int take_back(struct ucm_tierset *set, const char *from, const char *to,
		     const struct ucm_plain_copies *copies, unsigned num)
{
	int err = 0;

	while (num-- > 0 && !err) {
		err = rename_in(set, copies->dirs[num], to, from);
		if (err)
			ucm_plain_failed(set, copies->dirs[num], to,
					 "taking back its rename", err);
	}
	return err;
}

/* undone: nothing has changed in the end. */
static int rename_copies(struct ucm_tierset *set, const char *from,
			 const char *to, const struct ucm_plain_copies *copies,
			 bool *undone)
{
	int err = 0;

	for (unsigned i = 0; i < copies->num && !err; i++) {
		err = rename_in(set, copies->dirs[i], from, to);
		if (!err)
			continue;
		ucm_plain_failed(set, copies->dirs[i], from, "rename", err);
		*undone = !take_back(set, from, to, copies, i);
	}
	return err;
}

static bool has_copy(const struct ucm_plain_copies *copies, unsigned dir)
{
	return memchr(copies->dirs, (int)dir, copies->num);
}

/* What was there, and empty, where the renamed one is not; if it stays, it is
 * a part of the renamed one. */
static void drop_empty(struct ucm_tierset *set, const char *path,
		       const struct ucm_plain_copies *old,
		       const struct ucm_plain_copies *renamed)
{
	for (unsigned i = 0; i < old->num; i++) {
		if (!has_copy(renamed, old->dirs[i]))
			ucm_os_rmdir(set->dirs[old->dirs[i]]->dirfd, path);
	}
}

/* The record may go when none of the renames can be lost any more. */
static void end_record(struct ucm_tierset *set, struct ucm_backing *backing,
		       const char *to, const struct ucm_plain_copies *copies)
{
	for (unsigned i = 0; i < copies->num; i++)
		sync_above(set, copies->dirs[i], to);
	ucm_os_unlink(backing->ctlfd, RECORD);
	/* or it may come back, and be done to another folder of that name */
	ucm_os_sync_dir(backing->ctlfd, ".");
}

static int rename_folder(struct ucm_tierset *set, const char *from,
			 const char *to, const struct ucm_plain_copies *source,
			 const struct ucm_plain_copies *old)
{
	struct ucm_backing *backing = set->dirs[source->dirs[0]];
	bool recorded = source->num > 1, undone = true;
	int err = check_empty(set, to, old);

	if (!err && recorded) {
		err = write_record(backing, from, to);
		if (err)
			ucm_plain_failed(set, source->dirs[0], from,
					 ".ucmfs/" RECORD, err);
	}
	if (err)
		return err;
	err = rename_copies(set, from, to, source, &undone);
	if (!err)
		drop_empty(set, to, old, source);
	if (recorded && (!err || undone))
		end_record(set, backing, to, source);
	return err;
}

/* ---- both ---- */

static int check_kinds(const struct ucm_plain_copies *source,
		       const struct ucm_plain_copies *old, bool noreplace)
{
	if (source->readonly || old->readonly)
		return -EROFS;
	if (!old->num)
		return 0;
	if (noreplace)
		return -EEXIST;
	if (old->is_dir && !source->is_dir)
		return -EISDIR;
	return source->is_dir && !old->is_dir ? -ENOTDIR : 0;
}

int ucm_plain_rename(struct ucm_tierset *set, const char *from, const char *to,
		     bool noreplace, unsigned *dir_out)
{
	struct ucm_plain_copies source, old;
	int err = ucm_plain_copies(set, from, &source);

	if (err)
		return err;
	err = ucm_plain_copies(set, to, &old);
	if (err && err != -ENOENT)
		return err;
	err = check_kinds(&source, &old, noreplace);
	if (!err)
		err = source.is_dir
			      ? rename_folder(set, from, to, &source, &old)
			      : rename_file(set, from, to, &source, &old);
	if (!err)
		*dir_out = source.dirs[0];
	return err;
}

/* ---- after a crash ---- */

static int finish_rename(struct ucm_tierset *set, const char *from,
			 const char *to)
{
	struct ucm_plain_copies left;
	int err = ucm_plain_copies(set, from, &left);
	bool undone = false;

	if (err == -ENOENT)
		return 0;
	if (!err && (!left.is_dir || left.readonly))
		err = -EROFS;
	/* what is done stays done */
	for (unsigned i = 0; i < left.num && !err; i++) {
		struct ucm_plain_copies one = { .num = 1,
						.dirs = { left.dirs[i] } };

		err = rename_copies(set, from, to, &one, &undone);
	}
	return err;
}

static void recover_from(struct ucm_tierset *set, struct ucm_backing *backing)
{
	char text[RECORD_MAX], from[PATH_MAX];
	const char *to;
	int err = ucm_os_read_file(backing->ctlfd, RECORD, text, sizeof(text));

	if (err == -ENOENT)
		return;
	to = err ? NULL : parse_record(text, from);
	if (!err)
		err = to ? finish_rename(set, from, to) : -EINVAL;
	if (err) {
		ucm_error("%s/.ucmfs/" RECORD ": a folder's rename is not "
			  "finished: %s", backing->path, strerror(-err));
		return;
	}
	ucm_info("%s: the rename to %s is finished", from, to);
	ucm_os_unlink(backing->ctlfd, RECORD);
}

void ucm_plain_recover(struct ucm_tierset *set)
{
	for (unsigned i = 0; i < set->num_dirs; i++) {
		if (!set->dirs[i]->readonly)
			recover_from(set, set->dirs[i]);
	}
}
