/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.c - the medium that is a directory; its layout is in dir.h.
 *
 * What is linked is what was written: nobody else can write to .ucmfs/tmp (trust.h),
 * which we hold open, so that the name in it stays that file's. By its descriptor it
 * could be linked only where /proc is, and only while nothing has unlinked its last
 * name.
 */
#include <config.h>

#include "fs/medium/dir/dir.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/fstype.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/osguard.h"
#include "fs/medium/dir/lock.h"
#include "fs/medium/shared/hosts.h"

static const struct ucm_medium_ops directory_ops;

struct ucm_directory *ucm_directory_of(struct ucm_medium *medium)
{
	assert(medium->ops == &directory_ops);
	return (struct ucm_directory *)medium;
}

int ucm_directory_fd(struct ucm_medium *medium)
{
	return ucm_directory_of(medium)->dirfd;
}

static int open_dir(int dirfd, const char *path)
{
	return ucm_os_open(dirfd, path, O_RDONLY | O_DIRECTORY, 0);
}

static int learn_type(struct ucm_directory *dir)
{
	struct statfs st;
	int err = ucm_os_statfs(dir->dirfd, &st);

	if (err)
		return err;
	dir->medium.remote = !ucm_fstype_is_local((uint32_t)st.f_type);
	if (dir->medium.remote)
		dir->medium.flags = UCM_MEDIUM_SHARED |
				    UCM_MEDIUM_REPORTS_AT_CLOSE;
	if (!ucm_fstype_has_ctime((uint32_t)st.f_type))
		dir->medium.flags |= UCM_MEDIUM_NO_CTIME;
	dir->medium.kind = ucm_fskind_of((uint32_t)st.f_type, dir->medium.dev);
	if ((uint32_t)st.f_type == FUSE_SUPER_MAGIC && dir->medium.guard)
		ucm_guard_ask_before_close(dir->medium.guard);
	return 0;
}

/* No server is told of the close of a folder. */
static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Where a lock does not do. What is full can be mounted, and emptied. */
static int take_owner(struct ucm_directory *dir, struct ucm_error *error)
{
	struct ucm_temp_maker self;
	int64_t now_ns = 0;
	int err = ucm_medium_now(&dir->medium, &now_ns);

	ucm_temp_whoami(&self);
	if (!err) {
		ucm_owner_init(&dir->owner, &self, now_ns);
		err = ucm_owner_take(&dir->owner, &self, dir->ctlfd,
				     dir->medium.path, error);
	} else {
		ucm_error_set(error, err, "%s: .ucmfs/clock: %s",
			      dir->medium.path, strerror(-err));
	}
	if (!err)
		return 0;
	*dir->owner.start = '\0';
	if (err != -ENOSPC && err != -EDQUOT)
		return err;
	ucm_warning("%s; another daemon would not notice that it is in use",
		    error->text);
	return 0;
}

/* Two daemons must not write one directory, unless it is shared. Where other machines
 * may use it a lock may hold for one machine only, or wait out a server's grace
 * period. */
static int take_lock(struct ucm_directory *dir, unsigned wait_s,
		     struct ucm_error *error)
{
	if (dir->medium.remote)
		return take_owner(dir, error);
	dir->lockfd =
		ucm_lock_take(dir->ctlfd, dir->medium.path, wait_s, error);
	return dir->lockfd < 0 ? dir->lockfd : 0;
}

static void leave_lock(struct ucm_directory *dir)
{
	if (*dir->owner.start)
		ucm_owner_leave(&dir->owner, dir->ctlfd);
	*dir->owner.start = '\0';
	close_fd(&dir->lockfd);
}

static bool is_shared(struct ucm_directory *dir)
{
	struct stat st;

	return !ucm_os_stat_now(dir->ctlfd, ".", &st) &&
	       !ucm_os_stat(dir->ctlfd, strchr(UCM_HOSTS, '/') + 1, &st) &&
	       S_ISDIR(st.st_mode);
}

/* It becomes shared under the lock alone. */
static int take_lock_or_join(struct ucm_directory *dir, unsigned wait_s,
			     struct ucm_error *error)
{
	int err = is_shared(dir) ? 0 : take_lock(dir, wait_s, error);

	if (err || !is_shared(dir))
		return err;
	leave_lock(dir);
	err = ucm_hosts_join(&dir->medium);
	return err ? ucm_error_set(error, err, "%s/" UCM_HOSTS ": %s",
				   dir->medium.path, strerror(-err))
		   : 0;
}

static int make_layout(struct ucm_directory *dir)
{
	static const char *const folders[] = {
		UCM_TREE_BLOCKS,
		UCM_TREE_SPACES,
		UCM_TREE_FILES,
		UCM_TEMPS,
		UCM_TREE_OWN "/quarantine",
		UCM_TREE_OWN "/pinned",
	};
	_cleanup_fd_ int tmp = -1;

	for (size_t i = 0; i < sizeof(folders) / sizeof(*folders); i++) {
		int err = dir->medium.ops->mkdir(&dir->medium, folders[i],
						 0755);

		if (err && err != -EEXIST)
			return err;
	}
	tmp = open_dir(dir->ctlfd, "tmp");
	if (tmp < 0)
		return tmp;
	/* ext4 makes a file in its folder's group of inodes, and passes over each
	 * inode there that was deleted in the last minutes: where blocks come and
	 * go, a create took a millisecond. */
	ucm_os_spread(tmp);
	return 0;
}

/* Nobody knows yet whether it is a file server's, and whether that answers: so it
 * is looked at under guard. */
static int open_guard(struct ucm_directory *dir, const char *path,
		      unsigned deadline_s)
{
	if (deadline_s == UCM_DEADLINE_AUTO)
		deadline_s = UCM_DEADLINE_NETWORK;
	return deadline_s ? ucm_guard_new(path, deadline_s * 1000,
					  &dir->medium.guard)
			  : 0;
}

static int open_path(struct ucm_directory *dir, const char *path,
		     struct stat *st)
{
	struct ucm_guard *guard = dir->medium.guard;
	int err = ucm_os_real_path(guard, path, &dir->medium.path);

	if (err)
		return err;
	dir->dirfd = ucm_os_open_root(guard, dir->medium.path);
	return dir->dirfd < 0 ? dir->dirfd : ucm_os_fstat(dir->dirfd, st);
}

static int open_root(struct ucm_directory *dir, const char *path,
		     unsigned deadline_s, struct ucm_error *error)
{
	struct stat st;
	int err = open_guard(dir, path, deadline_s);

	if (!err)
		err = open_path(dir, path, &st);
	if (!err) {
		dir->medium.dev = st.st_dev;
		err = learn_type(dir);
	}
	if (err)
		return ucm_error_set(error, err, "%s: %s", path,
				     strerror(-err));
	if (!dir->medium.remote && deadline_s == UCM_DEADLINE_AUTO) {
		ucm_guard_close(dir->medium.guard);
		dir->medium.guard = NULL;
	}
	ucm_trust_init(&dir->trust, dir->medium.path, &st, dir->medium.readonly,
		       dir->medium.remote);
	if (st.st_mode & S_IWOTH)
		ucm_warning("%s: anyone may write to this directory: let only "
			    "its owner do so",
			    dir->medium.path);
	return 0;
}

static int open_control(struct ucm_directory *dir,
			struct ucm_error *error)
{
	int err = 0;

	if (!dir->medium.readonly)
		/* files of private spaces are written in there */
		err = ucm_os_mkdir(dir->dirfd, UCM_TREE_OWN, 0700);
	if (err == -EEXIST)
		err = 0;
	if (!err) {
		dir->ctlfd = open_dir(dir->dirfd, UCM_TREE_OWN);
		if (dir->ctlfd < 0)
			err = dir->ctlfd;
	}
	if (err)
		ucm_error_set(error, err, "%s: %s: %s", dir->medium.path,
			     dir->medium.readonly ? UCM_TREE_OWN
						  : "not writable",
			     strerror(-err));
	return err;
}

struct used {
	const char *path; /* NULL: the last */
	mode_t type;
};

static int trust_names(struct ucm_directory *dir, const struct used *used,
		       struct ucm_error *error)
{
	int err = 0;

	for (; used->path && !err; used++)
		err = ucm_trust_name(&dir->trust, dir->dirfd,
				     used->type, used->path, error);
	return err;
}

/* Before anything of it is used. */
static int trust_control(struct ucm_directory *dir,
			 struct ucm_error *error)
{
	static const struct used used[] = {
		{ UCM_TREE_OWN "/tmp", S_IFDIR },
		{ UCM_TREE_OWN "/quarantine", S_IFDIR },
		{ UCM_TREE_OWN "/pinned", S_IFDIR },
		{ UCM_HOSTS, S_IFDIR },
		{ UCM_TREE_OWN "/id", S_IFREG },
		{ UCM_TREE_OWN "/state", S_IFREG },
		{ UCM_TREE_OWN "/clock", S_IFREG },
		{ UCM_TREE_OWN "/lock", S_IFREG },
		{ UCM_TREE_OWN "/owner", S_IFREG },
		{ NULL, 0 },
	};
	int err = 0;

	if (dir->medium.remote && !dir->medium.readonly)
		err = ucm_trust_learn(&dir->trust, dir->ctlfd);
	if (err)
		return ucm_error_set(error, err, "%s: not writable: %s",
				     dir->medium.path, strerror(-err));
	err = ucm_trust_fd(&dir->trust, dir->ctlfd, S_IFDIR,
			   UCM_TREE_OWN, error);
	return err ? err : trust_names(dir, used, error);
}

/* Once it is there. */
static int trust_tree(struct ucm_directory *dir,
		      struct ucm_error *error)
{
	static const struct used used[] = {
		{ UCM_TREE_BLOCKS, S_IFDIR },
		{ UCM_TREE_SPACES, S_IFDIR },
		{ NULL, 0 },
	};
	int err = trust_names(dir, used, error);

	return err ? err
		   : ucm_trust_plain(&dir->trust, dir->dirfd,
				     error);
}

static int open_writable(struct ucm_directory *dir, unsigned wait_s,
			 struct ucm_error *error)
{
	int err = take_lock_or_join(dir, wait_s, error);

	if (err)
		return err;
	err = make_layout(dir);
	if (err)
		ucm_error_set(error, err, "%s: not writable: %s",
			      dir->medium.path, strerror(-err));
	return err;
}

static int directory_open_all(struct ucm_directory *dir, const char *path,
			      const struct ucm_config *config,
			      struct ucm_error *error)
{
	int err = open_root(dir, path, config->deadline_s, error);

	if (!err)
		err = open_control(dir, error);
	if (!err)
		err = trust_control(dir, error);
	if (!err && !dir->medium.readonly)
		err = open_writable(dir, config->lock_wait_s, error);
	else if (!err && is_shared(dir))
		err = ucm_hosts_join(&dir->medium);
	if (!err)
		err = trust_tree(dir, error);
	return err;
}

static void directory_close(struct ucm_medium *medium)
{
	struct ucm_directory *dir = ucm_directory_of(medium);

	if (*dir->owner.start && !ucm_guard_is_down(medium->guard,
						    UCM_CALL_WRITES))
		ucm_owner_leave(&dir->owner, dir->ctlfd);
	if (medium->hosts)
		ucm_hosts_leave(medium);
	ucm_guard_close(medium->guard);
	medium->guard = NULL;
	close_fd(&dir->lockfd);
	for (unsigned i = 0; i < UCM_TEMP_FOLDERS; i++) {
		int fd = atomic_load(&dir->temp_fds[i]);

		if (fd >= 0)
			ucm_os_close(fd);
	}
	close_fd(&dir->ctlfd);
	close_fd(&dir->dirfd);
	free(medium->path);
	medium->path = NULL;
}

int ucm_directory_open(const char *path, bool readonly,
		       const struct ucm_config *config,
		       struct ucm_medium **out, struct ucm_error *error)
{
	struct ucm_directory *dir = calloc(1, sizeof(*dir));
	int err;

	if (!dir)
		return ucm_error_set(error, -ENOMEM, "%s: out of memory", path);
	*dir = (struct ucm_directory){
		.medium = { .ops = &directory_ops,
			    .readonly = readonly },
		.dirfd = -1,
		.ctlfd = -1,
		.lockfd = -1,
	};
	for (unsigned i = 0; i < UCM_TEMP_FOLDERS; i++)
		atomic_init(&dir->temp_fds[i], -1);
	err = directory_open_all(dir, path, config, error);
	if (err) {
		directory_close(&dir->medium);
		ucm_medium_free(&dir->medium);
		return err;
	}
	*out = &dir->medium;
	return 0;
}

/* ---- in use ---- */

static int directory_ask_owner(struct ucm_directory *dir,
			       int (*ask)(const struct ucm_owner *me, int ctldir,
					  struct ucm_owner *other))
{
	struct ucm_owner other;

	if (!*dir->owner.start || dir->medium.readonly ||
	    ask(&dir->owner, dir->ctlfd, &other) != -EBUSY)
		return 0;
	dir->medium.readonly = true;
	if (!atomic_exchange(&dir->medium.fenced, true))
		ucm_error("%s: another ucmfs has taken it over (%s): nothing is "
			  "written there from now on",
			  dir->medium.path, ucm_owner_describe(&other).text);
	return -EROFS;
}

/* One at a time. */
static void directory_show(struct ucm_directory *dir)
{
	int64_t due_ms = atomic_load(&dir->beat_due_ms);

	if (!*dir->owner.start || ucm_monotonic_ms() < due_ms ||
	    !atomic_compare_exchange_strong(&dir->beat_due_ms, &due_ms,
					    INT64_MAX))
		return;
	directory_ask_owner(dir, ucm_owner_beat);
	atomic_store(&dir->beat_due_ms,
		     ucm_monotonic_ms() + UCM_OWNER_BEAT_MS);
}

static int directory_beat(struct ucm_medium *medium, enum ucm_beat what)
{
	struct ucm_directory *dir = ucm_directory_of(medium);

	if (what == UCM_BEAT_SHARED)
		leave_lock(dir);
	if (medium->hosts)
		return ucm_hosts_beat(medium, what);
	if (what == UCM_BEAT_SHOW)
		directory_show(dir);
	else if (what == UCM_BEAT_ENDING)
		ucm_lock_ending(dir->lockfd);
	return what == UCM_BEAT_CHECK
		       ? directory_ask_owner(dir, ucm_owner_check)
		       : 0;
}

static int directory_room(struct ucm_medium *medium,
			  struct ucm_medium_room *out)
{
	struct statvfs st;
	int err = ucm_os_statvfs(ucm_directory_fd(medium), &st);

	if (err)
		return err;
	*out = (struct ucm_medium_room){
		.total_bytes = (uint64_t)st.f_blocks * st.f_frsize,
		.free_bytes = (uint64_t)st.f_bavail * st.f_frsize,
		.unit = st.f_frsize,
		.total_files = st.f_files,
		.free_files = st.f_favail,
	};
	return 0;
}

/* ---- names ---- */

/* It stays open: nothing after this needs a descriptor. */
static int temp_folder(struct ucm_directory *dir, unsigned number)
{
	int fd = atomic_load(&dir->temp_fds[number]), before = -1;
	char path[UCM_TREE_PATH_MAX];

	if (fd >= 0)
		return fd;
	ucm_tree_bucket_path("tmp", number, path);
	fd = open_dir(dir->ctlfd, path);
	if (fd < 0 || atomic_compare_exchange_strong(&dir->temp_fds[number],
						     &before, fd))
		return fd;
	ucm_os_close(fd);
	return before;
}

/* A folder that is open, and what of path is below it. So what is done with a
 * temporary file is one system call. */
static int enter(struct ucm_medium *medium, const char **path)
{
	struct ucm_directory *dir = ucm_directory_of(medium);
	int fd = -1, len = 0;
	unsigned number;

	if (strncmp(*path, UCM_TREE_OWN "/", strlen(UCM_TREE_OWN "/")))
		return dir->dirfd;
	*path += strlen(UCM_TREE_OWN "/");
	if (sscanf(*path, "tmp/%2x/%n", &number, &len) == 1 && len &&
	    number < UCM_TEMP_FOLDERS)
		fd = temp_folder(dir, number);
	if (fd < 0)
		return dir->ctlfd;
	*path += len;
	return fd;
}

static int directory_list(struct ucm_medium *medium, const char *folder,
			  char **names_out)
{
	int at = enter(medium, &folder);

	return ucm_os_list(at, folder, names_out);
}

static int directory_stat(struct ucm_medium *medium, const char *path,
			  struct stat *out)
{
	int at = enter(medium, &path);

	return medium->hosts ? ucm_os_stat_now(at, path, out)
			     : ucm_os_stat(at, path, out);
}

static int directory_open_file(struct ucm_medium *medium, const char *path,
			       enum ucm_open_how how, struct ucm_file *out,
			       struct stat *st)
{
	static const int flags[] = {
		[UCM_OPEN_CHANGE] = O_RDWR,
		[UCM_OPEN_NEW] = O_RDWR | O_CREAT | O_EXCL,
		[UCM_OPEN_OVER] = O_WRONLY | O_CREAT | O_TRUNC,
	};
	int fd = enter(medium, &path);

	if (how == UCM_OPEN_READ)
		fd = ucm_os_open_regular(fd, path, O_RDONLY, st);
	else
		fd = ucm_os_open(fd, path, flags[how],
				 how == UCM_OPEN_NEW ? 0600 : 0644);
	if (fd < 0)
		return fd;
	*out = ucm_file_of(medium, fd);
	return 0;
}

/* Not for others while it is written: its space may be private. Some file
 * systems have no modes. */
static int publish(int at, const char *path)
{
	int err = ucm_os_chmod(at, path, 0644);

	return err == -EPERM || err == -EOPNOTSUPP || err == -ENOSYS ? 0 : err;
}

static int directory_link(struct ucm_medium *medium, const char *path,
			  const char *name)
{
	int from = enter(medium, &path), to = enter(medium, &name);
	int err = publish(from, path);

	return err ? err : ucm_os_link(from, path, to, name);
}

static int directory_rename(struct ucm_medium *medium, const char *from,
			    const char *to)
{
	int old = enter(medium, &from), new = enter(medium, &to);

	return ucm_os_rename(old, from, new, to);
}

static int directory_remove(struct ucm_medium *medium, const char *path,
			    bool is_folder)
{
	int at = enter(medium, &path);

	return is_folder ? ucm_os_rmdir(at, path) : ucm_os_unlink(at, path);
}

static int directory_mkdir(struct ucm_medium *medium, const char *path,
			   mode_t mode)
{
	int at = enter(medium, &path);

	return ucm_os_mkdir(at, path, mode);
}

/* The mode last, as chown may clear bits of it. */
static int directory_own(struct ucm_medium *medium, const char *path,
			 const struct ucm_space_owner *owner)
{
	int at = enter(medium, &path), err;
	_cleanup_fd_ int fd = open_dir(at, path);

	if (fd < 0)
		return fd;
	err = ucm_os_fchown(fd, owner->uid, owner->gid);
	if (err == -EPERM)
		err = 0; /* not root: it is ours anyway */
	return err ? err : ucm_os_fchmod(fd, owner->is_private ? 0700 : 0755);
}

static int directory_sync(struct ucm_medium *medium, const char *folder)
{
	int at;

	if (!folder)
		return ucm_os_syncfs(ucm_directory_of(medium)->ctlfd);
	at = enter(medium, &folder);
	return ucm_os_sync_dir(at, folder);
}

static const struct ucm_medium_ops directory_ops = {
	.beat = directory_beat,
	.close = directory_close,
	.room = directory_room,
	.list = directory_list,
	.stat = directory_stat,
	.open = directory_open_file,
	.link = directory_link,
	.rename = directory_rename,
	.remove = directory_remove,
	.mkdir = directory_mkdir,
	.own = directory_own,
	.sync = directory_sync,
};
