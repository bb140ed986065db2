/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - one name of files/; see files.h. */
#include <config.h>

#include "fs/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"

#define INO_BIT (UINT64_C(1) << 62)

/* ---- where it is ---- */

/* The higher, the better for files/. */
static int rank_of(const struct ucm_medium *medium)
{
	if (medium->readonly)
		return 0;
	return medium->flags & UCM_MEDIUM_VOLATILE ? 1 : 2;
}

int ucm_files_choose(const struct ucm_dirs *dirs, const char *path,
		     unsigned *dir_out, struct ucm_error *error)
{
	_cleanup_free_ char *real = path ? realpath(path, NULL) : NULL;
	unsigned best = dirs->num;

	for (unsigned dir = 0; dir < dirs->num; dir++) {
		const struct ucm_medium *medium = dirs->at[dir];

		if (path ? real && !strcmp(medium->path, real)
			 : best == dirs->num ||
				   rank_of(medium) > rank_of(dirs->at[best]))
			best = dir;
	}
	if (best == dirs->num)
		return ucm_error_set(error, -EINVAL,
				     "files=%s: it is not one of the mount's "
				     "directories",
				     path);
	*dir_out = best;
	return 0;
}

void ucm_files_tree_init(struct ucm_files_tree *tree, struct ucm_dirs *dirs,
			 unsigned dir)
{
	*tree = (struct ucm_files_tree){
		.dirs = dirs,
		.at = ucm_directory_of(dirs->at[dir]),
		.dir = dir,
	};
}

static bool has_files(struct ucm_medium *medium)
{
	_cleanup_free_ char *names = NULL;

	return !ucm_os_list(ucm_directory_fd(medium), UCM_FILES_ROOT,
			    &names) &&
	       *names;
}

void ucm_files_warn_of_others(const struct ucm_files_tree *tree)
{
	_cleanup_free_ char *others = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&others, &len);

	for (unsigned dir = 0; out && dir < tree->dirs->num; dir++) {
		if (dir != tree->dir && has_files(tree->dirs->at[dir]))
			fprintf(out, "%s%s", ftell(out) ? ", " : "",
				tree->dirs->at[dir]->path);
	}
	if (out && !fclose(out) && len)
		ucm_warning("files/ is that of %s; what is in files/ of these "
			    "is not served: %s; gather it with cp -an",
			    tree->at->medium.path, others);
}

/* ---- one name ---- */

int ucm_files_result(struct ucm_files_tree *tree, const char *path,
		     const char *what, int err)
{
	switch (err) {
	case -ETIMEDOUT: /* the guard has said so */
		ucm_dirs_count_error(tree->dirs, tree->dir, err);
		break;
	case -EIO: case -ESTALE: case -ENOTCONN: case -EHOSTDOWN:
	case -EHOSTUNREACH: case -ESHUTDOWN: case -ENODEV: case -EUCLEAN:
	case -EREMOTEIO:
		ucm_dirs_count_error(tree->dirs, tree->dir, err);
		ucm_error("%s/%s: %s: %s", tree->at->medium.path, path, what,
			  strerror(-err));
		break;
	default:
		break;
	}
	return err;
}

/* A link in the place of the whole tree is none of it. */
static bool is_shown(const char *path, mode_t mode)
{
	return S_ISDIR(mode) || S_ISREG(mode) ||
	       (S_ISLNK(mode) && strcmp(path, UCM_FILES_ROOT));
}

int ucm_files_look(struct ucm_files_tree *tree, const char *path,
		   struct stat *out)
{
	int err = ucm_os_stat(tree->at->dirfd, path, out);

	if (err == -ENOTDIR || err == -ELOOP || err == -EXDEV)
		return -ENOENT;
	if (err || is_shown(path, out->st_mode))
		return ucm_files_result(tree, path, "stat", err);
	ucm_warning("%s/%s: neither file, link nor folder: left out",
		    tree->at->medium.path, path);
	return -ENOENT;
}

uint64_t ucm_files_ino(uint64_t ino)
{
	return ino | INO_BIT;
}

/* ---- making ---- */

bool ucm_files_is_set_id(mode_t mode, bool is_dir)
{
	return mode & (is_dir ? S_ISUID : S_ISUID | S_ISGID);
}

static bool hands_down_group(int dirfd, const char *path)
{
	char folder[PATH_MAX];
	struct stat st;

	snprintf(folder, sizeof(folder), "%.*s",
		 (int)(strrchr(path, '/') - path), path);
	return !ucm_os_stat(dirfd, folder, &st) && st.st_mode & S_ISGID;
}

/* Give what is new its owner and mode, if it has not got them. Without the
 * privilege it stays ours. */
static int give(int dirfd, const char *path, int fd,
		const struct ucm_files_owner *owner, struct stat *st)
{
	struct ucm_files_owner want = *owner;
	int err = ucm_os_fstat(fd, st);

	if (err)
		return err;
	if (want.gid != st->st_gid && hands_down_group(dirfd, path))
		want.gid = st->st_gid;
	if (S_ISDIR(st->st_mode))
		want.mode |= st->st_mode & S_ISGID;
	if (want.uid != st->st_uid || want.gid != st->st_gid)
		err = ucm_os_fchown(fd, want.uid, want.gid);
	if (err == -EPERM)
		err = 0;
	if (!err && want.mode != (st->st_mode & 07777) &&
	    !S_ISLNK(st->st_mode))
		err = ucm_os_fchmod(fd, want.mode);
	return err ? err : ucm_os_fstat(fd, st);
}

/* Another name for the same errors: it was not there before, so it is another
 * machine's, or not shown. */
static int made(struct ucm_files_tree *tree, const char *path,
		const char *what, int rc)
{
	struct stat st;

	if (rc != -EEXIST)
		return rc < 0 ? ucm_files_result(tree, path, what, rc) : rc;
	return ucm_files_look(tree, path, &st) ? -EPERM : -EEXIST;
}

/* Within the limits of the tier, which are the store's to keep. */
static int check_room(struct ucm_files_tree *tree)
{
	if (tree->at->medium.readonly)
		return -EROFS;
	return ucm_tier_takes_files(tree->dirs->tier_of[tree->dir],
				    &tree->at->medium)
		       ? 0
		       : -ENOSPC;
}

int ucm_files_create(struct ucm_files_tree *tree, const char *path,
		     const struct ucm_files_owner *owner, struct stat *out)
{
	int dirfd = tree->at->dirfd, fd, err = check_room(tree);

	if (err)
		return err;
	if (ucm_files_is_set_id(owner->mode, false))
		return -EPERM;
	fd = ucm_os_open(dirfd, path, O_RDWR | O_CREAT | O_EXCL,
			 owner->mode & 0777);
	if (fd < 0)
		return made(tree, path, "create", fd);
	err = give(dirfd, path, fd, owner, out);
	if (err) {
		ucm_os_close(fd);
		ucm_os_unlink(dirfd, path);
		return ucm_files_result(tree, path, "create", err);
	}
	ucm_count(&tree->dirs->tier_of[tree->dir]->stats.files_created);
	return fd;
}

int ucm_files_mkdir(struct ucm_files_tree *tree, const char *path,
		    const struct ucm_files_owner *owner, struct stat *out)
{
	_cleanup_fd_ int fd = -1;
	int dirfd = tree->at->dirfd, err = check_room(tree);

	if (err)
		return err;
	if (ucm_files_is_set_id(owner->mode, true))
		return -EPERM;
	err = ucm_os_mkdir(dirfd, path, owner->mode & 0777);
	if (err)
		return made(tree, path, "mkdir", err);
	fd = ucm_os_open(dirfd, path, O_RDONLY | O_DIRECTORY, 0);
	err = fd < 0 ? fd : give(dirfd, path, fd, owner, out);
	if (err)
		ucm_os_rmdir(dirfd, path);
	return ucm_files_result(tree, path, "mkdir", err);
}

int ucm_files_symlink(struct ucm_files_tree *tree, const char *path,
		      const struct ucm_files_owner *owner, struct stat *out)
{
	_cleanup_fd_ int fd = -1;
	int dirfd = tree->at->dirfd, err = check_room(tree);

	if (err)
		return err;
	err = ucm_os_symlink(owner->target, dirfd, path);
	if (err)
		return made(tree, path, "symlink", err);
	fd = ucm_os_open(dirfd, path, O_PATH, 0);
	err = fd < 0 ? fd : give(dirfd, path, fd, owner, out);
	if (err) {
		ucm_os_unlink(dirfd, path);
		return ucm_files_result(tree, path, "symlink", err);
	}
	ucm_files_account(tree, path, (int64_t)ucm_file_takes(out));
	ucm_count(&tree->dirs->tier_of[tree->dir]->stats.files_created);
	return 0;
}

/* The tier has its bytes already. */
int ucm_files_link(struct ucm_files_tree *tree, int fd, const char *path,
		   struct stat *out)
{
	int err = tree->at->medium.readonly
			  ? -EROFS
			  : ucm_os_link(fd, NULL, tree->at->dirfd, path);

	if (err)
		return made(tree, path, "link", err);
	err = ucm_os_fstat(fd, out);
	if (err) {
		ucm_os_unlink(tree->at->dirfd, path);
		return ucm_files_result(tree, path, "link", err);
	}
	ucm_files_charge(tree, path, (int64_t)ucm_file_takes(out));
	return 0;
}

/* ---- removing ---- */

/* A name is gone: the file as well, if it was the last. */
static void account_gone(struct ucm_files_tree *tree, const char *path,
			 const struct stat *st)
{
	int64_t bytes = -(int64_t)ucm_file_takes(st);

	if (st->st_nlink == 1)
		ucm_files_account(tree, path, bytes);
	else
		ucm_files_charge(tree, path, bytes);
	ucm_count(&tree->dirs->tier_of[tree->dir]->stats.files_removed);
}

int ucm_files_unlink(struct ucm_files_tree *tree, const char *path,
		     const struct stat *st)
{
	int err = tree->at->medium.readonly
			  ? -EROFS
			  : ucm_os_unlink(tree->at->dirfd, path);

	if (!err)
		account_gone(tree, path, st);
	return ucm_files_result(tree, path, "unlink", err);
}

int ucm_files_rmdir(struct ucm_files_tree *tree, const char *path)
{
	int err = tree->at->medium.readonly
			  ? -EROFS
			  : ucm_os_rmdir(tree->at->dirfd, path);

	if (!err)
		ucm_files_quota_load(tree, path);
	return ucm_files_result(tree, path, "rmdir",
				err == -EEXIST ? -ENOTEMPTY : err);
}

/* ---- renaming ---- */

int ucm_files_rename(struct ucm_files_tree *tree, const char *from,
		     const char *to, unsigned flags,
		     const struct stat *from_st, const struct stat *to_st)
{
	int err = tree->at->medium.readonly
			  ? -EROFS
			  : ucm_os_rename_in(tree->at->dirfd, from, to, flags);

	if (err)
		return ucm_files_result(tree, from, "rename",
					err == -EEXIST &&
							S_ISDIR(from_st->st_mode) &&
							!flags
						? -ENOTEMPTY
						: err);
	if (to_st && to_st->st_ino == from_st->st_ino)
		return 0; /* two names of one file: both stay */
	if (to_st && !S_ISDIR(to_st->st_mode))
		account_gone(tree, to, to_st);
	if (S_ISDIR(from_st->st_mode))
		ucm_files_quota_renamed(tree, from, to);
	else
		ucm_files_charge_moved(tree, from, to,
				       (int64_t)ucm_file_takes(from_st));
	return 0;
}
