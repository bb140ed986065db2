/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - one name of files/; see files.h. */
#include <config.h>

#include "fs/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

#define SILENCE_ENDS_MS 1000 /* it answers, and has for so long */
#define INO_HASHED (UINT64_C(1) << 62)
#define CHUNK_MAX (UINT64_C(64) << 20) /* larger files are no example */
#define FOLDER "folder" /* in .ucmfs, in the making */
#define MODE_KEPT 01777 /* set-id bits of files are not */

void ucm_files_tree_init(struct ucm_files_tree *tree, struct ucm_dirs *dirs)
{
	*tree = (struct ucm_files_tree){ .dirs = dirs };
}

/* ---- directories that do not answer ---- */

/* One name may be damaged; if the root of the tree cannot be looked at either,
 * it is the directory. */
static bool means_silence(struct ucm_files_tree *tree, unsigned dir, int err)
{
	struct stat st;

	if (err == -ETIMEDOUT || err == -ENOTCONN)
		return true;
	if (err != -EIO && err != -ESTALE && err != -EHOSTDOWN &&
	    err != -EHOSTUNREACH && err != -ESHUTDOWN && err != -ENODEV)
		return false;
	err = ucm_os_stat(ucm_files_fd(tree, dir), UCM_FILES_ROOT, &st);
	return err && err != -ENOENT;
}

int ucm_files_failed(struct ucm_files_tree *tree, unsigned dir,
		     const char *path, const char *what, int err)
{
	struct ucm_files_silence *silence = &tree->silence[dir];
	const char *where = tree->dirs->at[dir]->path;

	ucm_dirs_count_error(tree->dirs, dir, err);
	if (!means_silence(tree, dir, err)) {
		ucm_error("%s/%s: %s: %s", where, path, what, strerror(-err));
		return err;
	}
	atomic_store(&silence->last_ms, ucm_monotonic_ms());
	if (!atomic_exchange(&silence->is, true))
		ucm_error("%s/%s: %s: %s: files/ goes on without this "
			  "directory",
			  where, path, what, strerror(-err));
	return UCM_FILES_SILENT;
}

/* It may answer one kind of call and not another: a word for each outage. */
static void heard_of(struct ucm_files_tree *tree, unsigned dir)
{
	struct ucm_files_silence *silence = &tree->silence[dir];

	if (atomic_load_explicit(&silence->is, memory_order_relaxed) &&
	    ucm_monotonic_ms() - atomic_load(&silence->last_ms) >
		    SILENCE_ENDS_MS &&
	    atomic_exchange(&silence->is, false))
		ucm_info("%s: answers again", tree->dirs->at[dir]->path);
}

void ucm_files_did_without(struct ucm_files_tree *tree,
			   const struct ucm_files_mutes *mutes)
{
	for (unsigned dir = 0; mutes->num && dir < tree->dirs->num; dir++) {
		if (ucm_files_is_mute(mutes, dir))
			ucm_count(&tree->dirs->tier_of[dir]
					   ->stats.files_left_out);
	}
}

/* ---- finding ---- */

/* A link in the place of the whole tree is none of it. */
static bool is_shown(const char *path, mode_t mode)
{
	return S_ISDIR(mode) || S_ISREG(mode) ||
	       (S_ISLNK(mode) && strcmp(path, UCM_FILES_ROOT));
}

int ucm_files_look(struct ucm_files_tree *tree, unsigned dir, const char *path,
		   struct stat *out)
{
	int err = ucm_os_stat(ucm_files_fd(tree, dir), path, out);

	switch (err) {
	case 0:
		heard_of(tree, dir);
		if (is_shown(path, out->st_mode))
			return 0;
		ucm_warning("%s/%s: neither file, link nor folder: left out",
			    tree->dirs->at[dir]->path, path);
		return -ENOENT;
	case -ENOENT: case -ENOTDIR: case -ELOOP: case -EXDEV:
		heard_of(tree, dir);
		return -ENOENT;
	case -ENAMETOOLONG: case -ENOMEM:
		return err;
	default:
		return ucm_files_failed(tree, dir, path, "stat", err);
	}
}

static void take_later(struct timespec *time, const struct timespec *other)
{
	if (ucm_time_ns(other) > ucm_time_ns(time))
		*time = *other;
}

/* A name made or removed changes the folder in one directory only. */
static void merge_times(struct ucm_files_tree *tree, const char *path,
			struct ucm_files *plain)
{
	struct stat st;

	for (unsigned dir = plain->dir + 1; dir < tree->dirs->num; dir++) {
		if (ucm_files_look(tree, dir, path, &st) ||
		    !S_ISDIR(st.st_mode))
			continue;
		take_later(&plain->st.st_mtim, &st.st_mtim);
		take_later(&plain->st.st_ctim, &st.st_ctim);
		take_later(&plain->st.st_atim, &st.st_atim);
	}
}

/* mutes: is added to. */
static int find_first(struct ucm_files_tree *tree, const char *path,
		      struct ucm_files *out, struct ucm_files_mutes *mutes)
{
	int err, failed = -ENOENT;

	for (unsigned dir = 0; dir < tree->dirs->num; dir++) {
		err = ucm_files_look(tree, dir, path, &out->st);
		if (!err) {
			out->dir = dir;
			return 0;
		}
		if (err == UCM_FILES_SILENT)
			ucm_files_add_mute(mutes, dir);
		else if (err != -ENOENT)
			failed = err;
	}
	return failed == -ENOENT && mutes->num ? UCM_FILES_SILENT : failed;
}

static int find_anywhere(struct ucm_files_tree *tree, const char *path,
			 struct ucm_files *out,
			 struct ucm_files_mutes *mutes)
{
	struct ucm_files found;
	int err = find_first(tree, path, &found, mutes);

	if (err)
		return err;
	if (S_ISDIR(found.st.st_mode))
		merge_times(tree, path, &found);
	*out = found;
	return 0;
}

int ucm_files_find(struct ucm_files_tree *tree, const char *path, unsigned hint,
		   struct ucm_files *out)
{
	struct ucm_files found;
	struct ucm_files_mutes mutes = { 0 };
	int err;

	if (hint >= tree->dirs->num)
		return find_anywhere(tree, path, out, &mutes);
	err = ucm_files_look(tree, hint, path, &found.st);
	/* another copy may be an old one, which this one hides */
	if (err == UCM_FILES_SILENT)
		return err;
	if (err || S_ISDIR(found.st.st_mode))
		return find_anywhere(tree, path, out, &mutes);
	found.dir = hint;
	*out = found;
	return 0;
}

int ucm_files_find_unknown(struct ucm_files_tree *tree, const char *path,
			   struct ucm_files *out, bool *unsure_out)
{
	struct ucm_files_mutes mutes = { 0 };
	int err = find_anywhere(tree, path, out, &mutes);

	*unsure_out = err == UCM_FILES_SILENT;
	if (!*unsure_out)
		return err;
	ucm_files_did_without(tree, &mutes);
	return -ENOENT;
}

void ucm_files_missing(struct ucm_files_tree *tree, const char *path,
		       struct ucm_files_mutes *out)
{
	struct stat st;

	*out = (struct ucm_files_mutes){ 0 };
	for (unsigned dir = 0; dir < tree->dirs->num; dir++) {
		if (ucm_files_look(tree, dir, path, &st) == UCM_FILES_SILENT)
			ucm_files_add_mute(out, dir);
	}
}

uint64_t ucm_files_ino(const struct ucm_files_tree *tree,
		       const struct ucm_files *plain)
{
	uint64_t ino = plain->st.st_ino;
	struct ucm_id id = { 0 };

	memcpy(id.bytes, &ino, sizeof(ino));
	ino = ucm_placement_score(tree->dirs->at[plain->dir]->uuid, &id);
	return (ino & (INO_HASHED - 1)) | INO_HASHED;
}

int ucm_files_copies(struct ucm_files_tree *tree, const char *path,
		     struct ucm_files_copies *out)
{
	struct stat st;
	int err;

	out->num = 0;
	out->mutes = (struct ucm_files_mutes){ 0 };
	out->is_dir = out->readonly = false;
	for (unsigned dir = 0; dir < tree->dirs->num; dir++) {
		err = ucm_files_look(tree, dir, path, &st);
		if (err == UCM_FILES_SILENT)
			ucm_files_add_mute(&out->mutes, dir);
		if (err == -ENOENT || err == UCM_FILES_SILENT)
			continue;
		if (err)
			return err;
		if (!out->num)
			out->is_dir = S_ISDIR(st.st_mode);
		else if (out->is_dir != S_ISDIR(st.st_mode))
			continue;
		out->dirs[out->num] = (uint8_t)dir;
		out->inos[out->num] = st.st_ino;
		out->bytes[out->num++] = ucm_file_takes(&st);
		out->readonly |= tree->dirs->at[dir]->readonly;
	}
	if (out->num)
		return 0;
	return out->mutes.num ? UCM_FILES_SILENT : -ENOENT;
}

/* ---- making ---- */

/* The path of the folder that a name is in; its length. */
static size_t folder_of(const char *path, char folder[PATH_MAX])
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0;

	memcpy(folder, path, len);
	folder[len] = '\0';
	return len;
}

static bool hands_down_group(int dirfd, const char *path)
{
	char folder[PATH_MAX];
	struct stat st;

	folder_of(path, folder);
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
	want.mode &= S_ISDIR(st->st_mode) ? 07777 & ~(mode_t)S_ISUID
					  : MODE_KEPT;
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

/* A descriptor of the new folder. */
static int new_folder(int dirfd, const char *path,
		      const struct ucm_files_owner *owner, struct stat *st)
{
	_cleanup_fd_ int fd = -1;
	int err = ucm_os_mkdir(dirfd, path, owner->mode & 0777);

	if (err)
		return err;
	fd = ucm_os_open(dirfd, path, O_RDONLY | O_DIRECTORY, 0);
	err = fd < 0 ? fd : give(dirfd, path, fd, owner, st);
	if (err)
		ucm_os_rmdir(dirfd, path);
	return err;
}

static int new_file(int dirfd, const char *path,
		    const struct ucm_files_owner *owner, struct stat *st)
{
	int fd = ucm_os_open(dirfd, path, O_RDWR | O_CREAT | O_EXCL,
			     owner->mode & 0777);
	int err;

	if (fd < 0)
		return fd;
	err = give(dirfd, path, fd, owner, st);
	if (!err)
		return fd;
	ucm_os_close(fd);
	ucm_os_unlink(dirfd, path);
	return err;
}

static int new_link(int dirfd, const char *path,
		    const struct ucm_files_owner *owner, struct stat *st)
{
	_cleanup_fd_ int fd = -1;
	int err = ucm_os_symlink(owner->target, dirfd, path);

	if (err)
		return err;
	fd = ucm_os_open(dirfd, path, O_PATH, 0);
	err = fd < 0 ? fd : give(dirfd, path, fd, owner, st);
	if (err)
		ucm_os_unlink(dirfd, path);
	return err;
}

/* It comes into view with its owner and mode, because others may look at the
 * name meanwhile, and remember. Under backing->folder_lock. */
static int put_folder(struct ucm_directory *backing, const char *path,
		      const struct ucm_files_owner *owner)
{
	struct stat st;
	int err;

	ucm_os_rmdir(backing->ctlfd, FOLDER); /* after a crash */
	err = new_folder(backing->ctlfd, FOLDER, owner, &st);
	if (err)
		return err;
	err = ucm_os_rename(backing->ctlfd, FOLDER, backing->dirfd, path);
	if (err)
		ucm_os_rmdir(backing->ctlfd, FOLDER);
	return err;
}

/* Make a folder in one directory as it is in another; under the same lock. */
static int copy_folder(struct ucm_files_tree *tree, unsigned dir,
		       const char *path)
{
	struct ucm_directory *backing =
		ucm_files_directory(tree, dir);
	struct ucm_files_owner owner;
	struct ucm_files there;
	struct ucm_files_mutes mutes = { 0 };
	struct stat st;
	int err = ucm_os_stat(backing->dirfd, path, &st);

	if (!err)
		return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
	if (err != -ENOENT)
		return err;
	err = find_first(tree, path, &there, &mutes);
	if (err)
		return err;
	if (!S_ISDIR(there.st.st_mode))
		return -ENOTDIR;
	owner = (struct ucm_files_owner){ .uid = there.st.st_uid,
					  .gid = there.st.st_gid,
					  .mode = there.st.st_mode & 07777 };
	return put_folder(backing, path, &owner);
}

int ucm_files_make_above(struct ucm_files_tree *tree, unsigned dir,
			 const char *path)
{
	char folder[PATH_MAX];
	int err = 0;

	folder_of(path, folder);
	for (char *slash = folder; slash && !err;) {
		slash = strchr(slash + 1, '/');
		if (slash)
			*slash = '\0';
		pthread_mutex_lock(
			&ucm_files_directory(tree, dir)->folder_lock);
		err = copy_folder(tree, dir, folder);
		pthread_mutex_unlock(
			&ucm_files_directory(tree, dir)->folder_lock);
		if (slash)
			*slash = '/';
	}
	return err;
}

typedef int (*make_fn)(int dirfd, const char *path,
		       const struct ucm_files_owner *owner, struct stat *st);

static int make_in(struct ucm_files_tree *tree, unsigned dir, const char *path,
		   const struct ucm_files_owner *owner, make_fn make,
		   struct stat *st)
{
	int rc = make(ucm_files_fd(tree, dir), path, owner, st);

	if (rc != -ENOENT)
		return rc;
	rc = ucm_files_make_above(tree, dir, path);
	return rc ? rc : make(ucm_files_fd(tree, dir), path, owner, st);
}

/* Errors that speak of the directory and not of the name. */
static bool is_out_of_order(int err)
{
	switch (err) {
	case -EIO: case -EROFS: case -ENOSPC: case -EDQUOT: case -ESTALE:
	case -ENOTCONN: case -ETIMEDOUT:
		return true;
	default:
		return false;
	}
}

/* What is to be made, and where that has been tried. */
struct making {
	struct ucm_files_tree *tree;
	const char *path;
	const struct ucm_files_owner *owner;
	make_fn make;
	struct ucm_id id; /* for placement */
	uint64_t bytes;   /* of room wanted */
	struct ucm_files made;
	int result;
};

/* In one tier: true if that is the end of it, with the result. */
static bool make_in_tier(struct making *m, struct ucm_tier *tier)
{
	struct ucm_want want = { .bytes = m->bytes, .anywhere = !m->bytes };
	struct ucm_medium *medium;
	int err;

	/* as often as there are directories: each failure rules one out */
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		err = ucm_tier_choose(tier, m->tree->dirs->placement, &m->id,
				      &want, &m->made.promise);
		if (err) {
			m->result = m->result == -EROFS ? err : m->result;
			return false;
		}
		medium = m->made.promise->medium;
		m->made.dir = ucm_tier_dir(tier, medium);
		m->result = make_in(m->tree, m->made.dir, m->path, m->owner,
				    m->make, &m->made.st);
		if (m->result < 0)
			ucm_promise_end(m->made.promise);
		if (m->result >= 0 || !is_out_of_order(m->result))
			return true;
		ucm_dirs_count_error(m->tree->dirs, m->made.dir, m->result);
		ucm_medium_failed(medium, m->path, m->result);
	}
	return false;
}

/* Nothing copies files out of memory, which is gone when the machine restarts:
 * they lie there only where there is nothing else. */
static bool make_passes_over(const struct ucm_dirs *dirs, unsigned number)
{
	for (unsigned i = 0; i < dirs->num_tiers; i++) {
		if (!ucm_tier_is_volatile(&dirs->tiers[i]))
			return ucm_tier_is_volatile(&dirs->tiers[number]);
	}
	return false;
}

static bool make_in_tiers(struct making *m)
{
	const struct ucm_dirs *dirs = m->tree->dirs;

	m->result = -EROFS;
	for (unsigned i = 0; i < dirs->num_tiers; i++) {
		if (!make_passes_over(dirs, i) &&
		    make_in_tier(m, &m->tree->dirs->tiers[i]))
			return true;
	}
	return false;
}

/* It was not there before, so it is another machine's, or not to be seen. */
static int explain_eexist(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files there;
	struct ucm_files_mutes mutes = { 0 };

	return find_first(tree, path, &there, &mutes) ? -EPERM : -EEXIST;
}

/* Is a name free to be made? A directory that does not answer may have it; but
 * the folder that it is in must be known, or nobody could say whose it is. */
static int check_absent(struct making *m, struct ucm_files_mutes *mutes)
{
	struct ucm_files there;
	char folder[PATH_MAX];
	int err = find_first(m->tree, m->path, &there, mutes);

	if (err == -ENOENT)
		return 0;
	if (err != UCM_FILES_SILENT)
		return err ? err : -EEXIST;
	folder_of(m->path, folder);
	return find_first(m->tree, folder, &there, mutes);
}

static int make_somewhere(struct making *m, struct ucm_files *out)
{
	struct ucm_files_mutes mutes = { 0 };
	int err = check_absent(m, &mutes);

	if (err)
		return err;
	ucm_files_place(m->path, &m->id);
	if (!make_in_tiers(m) && m->result == -ENOSPC && m->bytes) {
		m->bytes = 0; /* it may be a small one */
		make_in_tiers(m);
	}
	if (m->result == -EEXIST)
		return explain_eexist(m->tree, m->path);
	if (m->result < 0)
		return m->result;
	ucm_files_did_without(m->tree, &mutes);
	*out = m->made;
	return m->result;
}

int ucm_files_create(struct ucm_files_tree *tree, const char *path,
		     const struct ucm_files_owner *owner, struct ucm_files *out)
{
	struct making m = {
		.tree = tree,
		.path = path,
		.owner = owner,
		.make = new_file,
		.bytes = atomic_load(&tree->file_bytes),
	};
	int fd = make_somewhere(&m, out);

	if (fd < 0)
		return fd;
	ucm_room_watch(out->promise, fd);
	ucm_count(&tree->dirs->tier_of[out->dir]->stats.files_created);
	return fd;
}

/* It has its room, or needs none. */
static void end_promise(struct ucm_files *made)
{
	ucm_promise_end(made->promise);
	made->promise = NULL;
}

void ucm_files_written(struct ucm_files_tree *tree, struct ucm_files *made,
		       uint64_t bytes)
{
	uint64_t before = atomic_load(&tree->file_bytes);

	end_promise(made);
	if (!bytes || bytes > CHUNK_MAX)
		return;
	/* the large ones count; whatever came between has counted as well */
	atomic_store(&tree->file_bytes,
		     bytes > before ? bytes : before - (before - bytes) / 8);
}

/* Might a directory have a part of what is new elsewhere? */
static bool knows_silence(const struct ucm_files_tree *tree)
{
	for (unsigned dir = 0; dir < tree->dirs->num; dir++) {
		if (ucm_files_is_silent(tree, dir))
			return true;
	}
	return false;
}

int ucm_files_mkdir(struct ucm_files_tree *tree, const char *path,
		    const struct ucm_files_owner *owner, struct ucm_files *out)
{
	struct making m = {
		.tree = tree,
		.path = path,
		.owner = owner,
		.make = new_folder,
	};
	int err = make_somewhere(&m, out);

	if (err)
		return err;
	end_promise(out);
	if (!knows_silence(tree))
		ucm_files_quota_forget(tree, path); /* of one before it */
	return 0;
}

int ucm_files_symlink(struct ucm_files_tree *tree, const char *path,
		      const struct ucm_files_owner *owner,
		      struct ucm_files *out)
{
	struct making m = {
		.tree = tree,
		.path = path,
		.owner = owner,
		.make = new_link,
	};
	int err = make_somewhere(&m, out);

	if (err)
		return err;
	ucm_files_account(tree, out->dir, path,
			  (int64_t)ucm_file_takes(&out->st));
	end_promise(out);
	ucm_count(&tree->dirs->tier_of[out->dir]->stats.files_created);
	return 0;
}

/* ---- opening ---- */

int ucm_files_readlink(struct ucm_files_tree *tree, const char *path,
		       unsigned dir, char *target_out)
{
	int err = ucm_os_readlink(ucm_files_fd(tree, dir), path, target_out,
				  PATH_MAX);

	switch (err) {
	case 0: case -EACCES: case -ENAMETOOLONG:
		return err;
	case -ENOENT: case -ENOTDIR: case -ELOOP: case -EINVAL:
		return -ESTALE;
	default:
		return ucm_files_failed(tree, dir, path, "readlink", err);
	}
}

int ucm_files_open(struct ucm_files_tree *tree, const char *path, unsigned dir,
		   int flags, struct stat *stat_out)
{
	int fd;

	if (flags != O_RDONLY && tree->dirs->at[dir]->readonly)
		return -EROFS;
	fd = ucm_os_open_regular(ucm_files_fd(tree, dir), path, flags,
				 stat_out);
	switch (fd) {
	case -ENOENT: case -ENOTDIR: case -ELOOP: case -ENXIO: case -EISDIR:
		return -ESTALE;
	case -EACCES: case -EPERM: case -EROFS: case -ETXTBSY:
		return fd;
	default:
		break;
	}
	if (fd < 0)
		return ucm_files_failed(tree, dir, path, "open", fd);
	ucm_count(&tree->dirs->tier_of[dir]->stats.files_opened);
	return fd;
}

/* ---- removing ---- */

int ucm_files_unlink(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_copies copies;
	int err = ucm_files_copies(tree, path, &copies);

	if (err)
		return err;
	if (copies.is_dir)
		return -EISDIR;
	if (copies.readonly)
		return -EROFS;
	/* slow ones first: what fails leaves the copy that is seen */
	for (unsigned i = copies.num; i-- > 0;) {
		unsigned dir = copies.dirs[i];

		err = ucm_os_unlink(ucm_files_fd(tree, dir), path);
		if (err && err != -ENOENT)
			return ucm_files_failed(tree, dir, path, "unlink", err);
		ucm_files_account(tree, dir, path, -(int64_t)copies.bytes[i]);
		ucm_count(&tree->dirs->tier_of[dir]->stats.files_removed);
	}
	ucm_files_did_without(tree, &copies.mutes);
	return 0;
}

int ucm_files_check_empty(struct ucm_files_tree *tree, const char *path,
			  const struct ucm_files_copies *copies)
{
	for (unsigned i = 0; i < copies->num; i++) {
		_cleanup_free_ char *names = NULL;
		unsigned dir = copies->dirs[i];
		int err = ucm_os_list(ucm_files_fd(tree, dir), path, &names);

		if (err)
			return ucm_files_failed(tree, dir, path, "readdir",
						err);
		if (*names)
			return -ENOTEMPTY;
	}
	return 0;
}

/* All or none: of a folder that stays none may go, or the inode that gave it
 * its number is freed and may be another folder's next. */
int ucm_files_rmdir(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_copies copies;
	int err = ucm_files_copies(tree, path, &copies);

	if (err)
		return err;
	if (!copies.is_dir)
		return -ENOTDIR;
	if (copies.readonly)
		return -EROFS;
	if (copies.mutes.num) /* it may have names in it there */
		return UCM_FILES_SILENT;
	err = ucm_files_check_empty(tree, path, &copies);
	if (err)
		return err;
	for (unsigned i = copies.num; i-- > 0;) {
		unsigned dir = copies.dirs[i];

		err = ucm_os_rmdir(ucm_files_fd(tree, dir), path);
		if (err == -ENOTEMPTY || err == -EEXIST)
			return -ENOTEMPTY;
		if (err && err != -ENOENT)
			return ucm_files_failed(tree, dir, path, "rmdir", err);
	}
	ucm_files_quota_forget(tree, path);
	return 0;
}

/* ---- attributes ---- */

int ucm_files_change_fd(int fd, const struct ucm_files_change *change)
{
	struct stat st;
	mode_t mode;
	int err = ucm_os_fstat(fd, &st);

	if (!err && change->size_set)
		err = ucm_os_truncate(fd, change->size);
	/* a change of owner takes set-id bits away: the mode comes after it */
	if (!err && (change->uid != (uid_t)-1 || change->gid != (gid_t)-1))
		err = ucm_os_fchown(fd, change->uid, change->gid);
	if (!err && change->mode_set) {
		mode = change->mode & (S_ISDIR(st.st_mode) ? 03777 : MODE_KEPT);
		err = ucm_os_fchmod(fd, mode);
	}
	if (!err && change->times_set)
		err = ucm_os_utimens(fd, change->times);
	return err;
}

static int change_in(struct ucm_files_tree *tree, unsigned dir,
		     const char *path, int flags,
		     const struct ucm_files_change *change)
{
	_cleanup_fd_ int fd = -1;
	int dirfd = ucm_files_fd(tree, dir);

	if (tree->dirs->at[dir]->readonly)
		return -EROFS;
	fd = ucm_os_open(dirfd, path, flags, 0);
	if (fd == -EACCES) /* one that we may write and not read */
		fd = ucm_os_open(dirfd, path, flags | O_WRONLY, 0);
	return fd < 0 ? fd : ucm_files_change_fd(fd, change);
}

static int change_file(struct ucm_files_tree *tree, const char *path,
		       const struct ucm_files *plain,
		       const struct ucm_files_change *change)
{
	int flags = S_ISLNK(plain->st.st_mode) ? O_PATH
		    : change->size_set	       ? O_WRONLY
					       : O_RDONLY;
	int err = change_in(tree, plain->dir, path, flags, change);
	struct stat st;

	if (!err && change->size_set &&
	    !ucm_os_stat(ucm_files_fd(tree, plain->dir), path, &st))
		ucm_files_account(tree, plain->dir, path,
				  (int64_t)(ucm_file_takes(&st) -
					    ucm_file_takes(&plain->st)));
	return err;
}

/* Wherever it is and not done yet: the number of those, or an error. Under each
 * directory's lock for folders, so that a copy is there or not begun. */
static int change_copies(struct ucm_files_tree *tree, const char *path,
			 const struct ucm_files_change *change,
			 bool done[UCM_MAX_DIRS])
{
	int num = 0, err = 0;
	struct stat st;

	for (unsigned dir = 0; dir < tree->dirs->num && !err; dir++) {
		if (done[dir])
			continue;
		pthread_mutex_lock(
			&ucm_files_directory(tree, dir)->folder_lock);
		err = ucm_files_look(tree, dir, path, &st);
		if (!err && S_ISDIR(st.st_mode)) {
			err = change_in(tree, dir, path, O_RDONLY | O_DIRECTORY,
					change);
			done[dir] = true;
			num++;
		}
		pthread_mutex_unlock(
			&ucm_files_directory(tree, dir)->folder_lock);
		if (err == -ENOENT)
			err = 0;
	}
	return err ? err : num;
}

static bool changes_rights(const struct ucm_files_change *change)
{
	return change->mode_set || change->uid != (uid_t)-1 ||
	       change->gid != (gid_t)-1;
}

/* A file made below it meanwhile may have copied it as it was, to a directory
 * that had been passed: until all have been seen. A directory that does not
 * answer would come back with the old rights, so they are not changed; its
 * times do no harm. */
static int change_folder(struct ucm_files_tree *tree, const char *path,
			 const struct ucm_files_change *change)
{
	bool done[UCM_MAX_DIRS] = { false };
	struct ucm_files_copies copies;
	int first, more, err = ucm_files_copies(tree, path, &copies);

	if (err)
		return err;
	if (copies.mutes.num && changes_rights(change))
		return UCM_FILES_SILENT;
	for (unsigned dir = 0; dir < tree->dirs->num; dir++)
		done[dir] = ucm_files_is_mute(&copies.mutes, dir);
	more = first = change_copies(tree, path, change, done);
	while (more > 0)
		more = change_copies(tree, path, change, done);
	return more ? more : first ? 0 : -ENOENT;
}

int ucm_files_change(struct ucm_files_tree *tree, const char *path,
		     const struct ucm_files *plain,
		     const struct ucm_files_change *change)
{
	if (!S_ISDIR(plain->st.st_mode))
		return change_file(tree, path, plain, change);
	if (change->size_set)
		return -EISDIR;
	return change_folder(tree, path, change);
}

int ucm_files_sync_dir(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_copies copies;
	int err = ucm_files_copies(tree, path, &copies);

	for (unsigned i = 0; i < copies.num && !err; i++) {
		unsigned dir = copies.dirs[i];

		if (tree->dirs->at[dir]->readonly)
			continue;
		err = ucm_os_sync_dir(ucm_files_fd(tree, dir), path);
		if (err)
			err = ucm_files_failed(tree, dir, path, "fsync", err);
	}
	/* nobody knows whether what was made there is on its disk */
	return !err && copies.mutes.num ? UCM_FILES_SILENT : err;
}
