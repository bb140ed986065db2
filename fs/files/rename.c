/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rename.c - renaming in files/; see files.h.
 *
 * A file is renamed in the directory that it lies in, which is atomic there.
 * If the file that it replaces lies in another directory, that one is unlinked
 * afterwards, when the new name is safe on disk: so at no time is there none,
 * and after a crash in between both are there, of which the first is seen. If
 * that would be the old one, the new file is linked to its new name, and loses
 * its old one last: so a crash hides neither. A file with two names is put
 * right at the next start, as .ucmfs/both.N says; else whoever writes one name
 * would change the other. Copies that nobody sees go before, so that none turns
 * up.
 *
 * A folder is renamed where it lies, and only if that is one directory.
 */
#include <config.h>

#include "fs/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/osfile.h"

#define BOTH "both." /* in .ucmfs, with a number: a file that has both names */
#define NOTE_MAX (2 * PATH_MAX + 32)

typedef int (*name_fn)(int from_dirfd, const char *from, int to_dirfd,
		       const char *to);

/* Rename or link, in a folder that may have to be made. */
static int name_in(struct ucm_files_tree *tree, unsigned dir, const char *from,
		   const char *to, name_fn name)
{
	int dirfd = ucm_files_fd(tree, dir);
	int err = name(dirfd, from, dirfd, to);

	if (err != -ENOENT)
		return err;
	err = ucm_files_make_above(tree, dir, to);
	return err ? err : name(dirfd, from, dirfd, to);
}

static int rename_in(struct ucm_files_tree *tree, unsigned dir,
		     const char *from, const char *to)
{
	return name_in(tree, dir, from, to, ucm_os_rename);
}

/* fsync of the folder that a name is in. */
static int sync_above(struct ucm_files_tree *tree, unsigned dir,
		      const char *path)
{
	char folder[PATH_MAX];
	const char *slash = strrchr(path, '/');

	snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
	return ucm_os_sync_dir(ucm_files_fd(tree, dir), folder);
}

/* ---- notes ---- */

static size_t note_of(const char *from, const char *to, char *text)
{
	return (size_t)snprintf(text, NOTE_MAX, "%zu %s%s", strlen(from),
				from, to);
}

static bool is_ours(const char *path)
{
	return !strncmp(path, UCM_FILES_ROOT "/", strlen(UCM_FILES_ROOT "/"));
}

/* Splits the text; NULL: it is none of ours. */
static const char *parse_note(char *text, char *from)
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

/* ---- files ---- */

static int drop_copy(struct ucm_files_tree *tree, const char *path,
		     const struct ucm_files_copies *copies, unsigned i)
{
	unsigned dir = copies->dirs[i];
	int err = ucm_os_unlink(ucm_files_fd(tree, dir), path);

	if (err && err != -ENOENT)
		return ucm_files_failed(tree, dir, path, "unlink", err);
	ucm_files_account(tree, dir, path, -(int64_t)copies->bytes[i]);
	ucm_count(&tree->dirs->tier_of[dir]->stats.files_removed);
	return 0;
}

/* Unlink the copies from number `first` on, but one in the directory `but`. */
static int drop_copies(struct ucm_files_tree *tree, const char *path,
		       const struct ucm_files_copies *copies, unsigned first,
		       unsigned but)
{
	int err = 0;

	for (unsigned i = copies->num; i-- > first && !err;) {
		if (copies->dirs[i] != but)
			err = drop_copy(tree, path, copies, i);
	}
	return err;
}

/* The number of the copy in a directory, or that of all. */
static unsigned copy_in(const struct ucm_files_copies *copies, unsigned dir)
{
	unsigned i = 0;

	while (i < copies->num && copies->dirs[i] != dir)
		i++;
	return i;
}

/* The replaced file in the same directory went with the rename. */
static void count_replaced(struct ucm_files_tree *tree, unsigned dir,
			   const char *path,
			   const struct ucm_files_copies *copies)
{
	unsigned i = copy_in(copies, dir);

	if (i == copies->num)
		return;
	ucm_files_account(tree, dir, path, -(int64_t)copies->bytes[i]);
	ucm_count(&tree->dirs->tier_of[dir]->stats.files_removed);
}

/* The name is there twice now: with the other file gone it is done. */
static int drop_replaced(struct ucm_files_tree *tree, const char *from,
			 const char *to, unsigned dir,
			 const struct ucm_files_copies *old)
{
	int err = sync_above(tree, dir, to), undone;

	if (err)
		ucm_files_failed(tree, dir, to, "fsync of its folder", err);
	else
		err = drop_copies(tree, to, old, 0, dir);
	if (!err)
		return 0;
	undone = rename_in(tree, dir, to, from);
	if (undone)
		ucm_files_failed(tree, dir, to, "taking back its rename",
				 undone);
	return err;
}

/* Not synced: it is for a daemon that is killed. After a power cut without it,
 * the file keeps both names. */
static int note_both(struct ucm_directory *backing, const char *from,
		     const char *to, char name[32])
{
	static _Atomic unsigned number;
	_cleanup_fd_ int fd = -1;
	char text[NOTE_MAX];
	int err;

	do {
		snprintf(name, 32, BOTH "%u", atomic_fetch_add(&number, 1));
		fd = ucm_os_open(backing->ctlfd, name,
				 O_WRONLY | O_CREAT | O_EXCL, 0644);
	} while (fd == -EEXIST); /* one that could not be put right */
	if (fd < 0)
		return fd;
	err = ucm_os_write_at(fd, text, note_of(from, to, text), 0);
	if (err)
		ucm_os_unlink(backing->ctlfd, name);
	return err;
}

/* Give the file its new name as well, and take that from the old one. both: it
 * has both names, though it could not be done. */
static int link_over(struct ucm_files_tree *tree, const char *from,
		     const char *to, unsigned dir,
		     const struct ucm_files_copies *old, bool *both)
{
	int err = name_in(tree, dir, from, to, ucm_os_link);

	if (err)
		return ucm_files_failed(tree, dir, to, "link", err);
	err = sync_above(tree, dir, to);
	if (err)
		ucm_files_failed(tree, dir, to, "fsync of its folder", err);
	else
		err = drop_copies(tree, to, old, 0, dir);
	if (err)
		*both = ucm_os_unlink(ucm_files_fd(tree, dir), to) != 0;
	return err;
}

/* The old file hides the new one: until it is removed, that keeps its
 * name. */
static int replace_in_front(struct ucm_files_tree *tree, const char *from,
			    const char *to, unsigned dir,
			    const struct ucm_files_copies *old)
{
	struct ucm_directory *backing =
		ucm_files_directory(tree, dir);
	unsigned hidden = copy_in(old, dir);
	bool both = false;
	char note[32];
	int err = hidden < old->num ? drop_copy(tree, to, old, hidden) : 0;

	if (err)
		return err;
	err = note_both(backing, from, to, note);
	if (err) /* no room: it is still right unless we are killed now */
		ucm_warning("%s/" UCM_TREE_OWN "/%s: %s",
			    backing->medium.path, note,
			    strerror(-err));
	err = link_over(tree, from, to, dir, old, &both);
	if (!err) {
		err = ucm_os_unlink(backing->dirfd, from);
		both = err != 0;
		if (err)
			ucm_files_failed(tree, dir, from, "unlink", err);
	}
	if (!both) /* else the next start does it */
		ucm_os_unlink(backing->ctlfd, note);
	return err;
}

/* Renaming is nothing to a file that has both names. */
static bool has_both(const struct ucm_files_copies *source,
		     const struct ucm_files_copies *old, unsigned dir)
{
	unsigned i = copy_in(old, dir);

	return i < old->num && old->inos[i] == source->inos[0];
}

static int rename_file(struct ucm_files_tree *tree, const char *from,
		       const char *to, const struct ucm_files_copies *source,
		       const struct ucm_files_copies *old)
{
	unsigned dir = source->dirs[0];
	bool elsewhere = old->num && old->dirs[0] != dir;
	int err = drop_copies(tree, from, source, 1, dir);

	if (!err && !elsewhere)
		err = drop_copies(tree, to, old, 1, dir);
	if (err)
		return err;
	if (elsewhere && old->dirs[0] < dir) {
		err = replace_in_front(tree, from, to, dir, old);
	} else if (has_both(source, old, dir)) {
		return drop_copy(tree, from, source, 0);
	} else {
		err = rename_in(tree, dir, from, to);
		if (err)
			return ucm_files_failed(tree, dir, from, "rename", err);
		if (elsewhere)
			err = drop_replaced(tree, from, to, dir, old);
		if (!err)
			count_replaced(tree, dir, to, old);
	}
	if (!err)
		ucm_files_charge_moved(tree, dir, from, to,
				       (int64_t)source->bytes[0]);
	return err;
}

/* ---- folders ---- */

/* What was there, and empty, in other directories; if it stays, it is a part of
 * the renamed one. */
static void drop_empty(struct ucm_files_tree *tree, const char *path,
		       const struct ucm_files_copies *old, unsigned dir)
{
	for (unsigned i = 0; i < old->num; i++) {
		if (old->dirs[i] != dir)
			ucm_os_rmdir(ucm_files_fd(tree, old->dirs[i]), path);
	}
}

/* Of one that lies in several directories a crash could leave a part under each
 * name. -EXDEV makes mv(1) copy it, file by file. */
static int rename_folder(struct ucm_files_tree *tree, const char *from,
			 const char *to, const struct ucm_files_copies *source,
			 const struct ucm_files_copies *old)
{
	unsigned dir = source->dirs[0];
	int err = ucm_files_check_empty(tree, to, old);

	if (err)
		return err;
	/* a part of either may lie there */
	if (source->mutes.num || old->mutes.num)
		return UCM_FILES_SILENT;
	if (source->num > 1)
		return -EXDEV;
	err = ucm_files_quota_moving(tree, from, to);
	if (err)
		return err;
	err = rename_in(tree, dir, from, to);
	ucm_files_quota_moved(tree, from, to, !err);
	if (err)
		return ucm_files_failed(tree, dir, from, "rename", err);
	drop_empty(tree, to, old, dir);
	return 0;
}

/* ---- both ---- */

/* A file of the new name in front of this one would hide it one day. What lies
 * behind it does no harm. */
static bool may_be_hidden(const struct ucm_files_copies *source,
			  const struct ucm_files_copies *old)
{
	for (unsigned dir = 0; old->mutes.num && dir < source->dirs[0]; dir++) {
		if (ucm_files_is_mute(&old->mutes, dir))
			return true;
	}
	return false;
}

static int check_kinds(const struct ucm_files_copies *source,
		       const struct ucm_files_copies *old, bool noreplace)
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

int ucm_files_rename(struct ucm_files_tree *tree, const char *from,
		     const char *to, bool noreplace, unsigned *dir_out)
{
	struct ucm_files_copies source, old;
	int err = ucm_files_copies(tree, from, &source);

	if (err)
		return err;
	if (!strcmp(from, to) && !noreplace) { /* not one with both names */
		*dir_out = source.dirs[0];
		return 0;
	}
	err = ucm_files_copies(tree, to, &old);
	if (err && err != -ENOENT && err != UCM_FILES_SILENT)
		return err;
	err = check_kinds(&source, &old, noreplace);
	if (!err && may_be_hidden(&source, &old))
		err = UCM_FILES_SILENT;
	if (!err)
		err = source.is_dir
			      ? rename_folder(tree, from, to, &source, &old)
			      : rename_file(tree, from, to, &source, &old);
	if (err)
		return err;
	ucm_files_did_without(tree, &old.mutes);
	*dir_out = source.dirs[0];
	return 0;
}

/* ---- after a crash ---- */

/* If the file has both names: the old one is removed, unless another file in
 * front has the new one still. */
static int part_names(struct ucm_files_tree *tree, unsigned dir,
		      const char *from, const char *to)
{
	struct ucm_files_copies source, old;
	int err = ucm_files_copies(tree, from, &source);
	unsigned i, j;

	if (!err)
		err = ucm_files_copies(tree, to, &old);
	if (err)
		return err == -ENOENT ? 0 : err;
	if (old.mutes.num) /* it may have the file in front */
		return UCM_FILES_SILENT;
	i = copy_in(&source, dir);
	j = copy_in(&old, dir);
	if (i == source.num || j == old.num || source.inos[i] != old.inos[j])
		return 0;
	return ucm_os_unlink(ucm_files_fd(tree, dir), j ? to : from);
}

static void recover_both(struct ucm_files_tree *tree, unsigned dir,
			 const char *name)
{
	struct ucm_directory *backing =
		ucm_files_directory(tree, dir);
	char text[NOTE_MAX], from[PATH_MAX];
	int err = ucm_os_read_file(backing->ctlfd, name, text, sizeof(text));
	const char *to = err ? NULL : parse_note(text, from);

	if (to) /* else it was killed before it had written it */
		err = part_names(tree, dir, from, to);
	if (err)
		ucm_error("%s/" UCM_TREE_OWN "/%s: a file may have two names: "
			  "%s",
			  backing->medium.path, name, strerror(-err));
	else
		ucm_os_unlink(backing->ctlfd, name);
}

static void recover_files(struct ucm_files_tree *tree, unsigned dir)
{
	_cleanup_free_ char *names = NULL;

	if (ucm_os_list(ucm_files_directory(tree, dir)->ctlfd, ".", &names))
		return; /* what is there needs the directory as well */
	for (char *name = names; *name; name += strlen(name) + 1) {
		if (!strncmp(name, BOTH, strlen(BOTH)))
			recover_both(tree, dir, name);
	}
}

void ucm_files_recover(struct ucm_files_tree *tree)
{
	for (unsigned i = 0; i < tree->dirs->num; i++) {
		if (!tree->dirs->at[i]->readonly)
			recover_files(tree, i);
	}
}
