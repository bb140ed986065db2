/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing.c - one backing directory; its layout is in backing.h.
 *
 * A commit is link(2) from .ucmfs/tmp to the block's name and unlink(2) of the
 * temporary one. link fails if the name exists, which decides between two
 * writers on every file system; renameat2(RENAME_NOREPLACE) and O_TMPFILE do
 * not work on NFS, GlusterFS, sshfs or MooseFS. What is linked is what was
 * written: nobody else can write to .ucmfs/tmp (trust.h), which we hold open, so
 * that the name in it stays that file's. By its descriptor it could be linked
 * only where /proc is, and only while nothing has unlinked its last name.
 */
#include <config.h>

#include "fs/tier/backing.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/osguard.h"
#include "fs/tier/fstype.h"
#include "fs/tier/lock.h"
#include "fs/index/snapshot.h"
#include "hashing/tree.h"

#define FORMAT_VERSION 1
#define UUID_TEXT 32
#define NETWORK_DEADLINE_S 30

/* "blocks" or "spaces/NAME" and an id as one flat name. */
static void flat_name(const char *folder, const struct ucm_id *id, char *out,
		      size_t size)
{
	char hex[UCM_ID_HEX + 1];

	ucm_id_format(id, hex);
	snprintf(out, size, "%s@%s", ucm_tree_folder_name(folder), hex);
}

static int make_dir(int dirfd, const char *path)
{
	int err = ucm_os_mkdir(dirfd, path, 0755);

	return err == -EEXIST ? 0 : err;
}

static int open_dir(int dirfd, const char *path)
{
	return ucm_os_open(dirfd, path, O_RDONLY | O_DIRECTORY, 0);
}

static void learn_type(struct ucm_backing *backing)
{
	struct statfs st = { 0 };

	backing->remote = fstatfs(backing->dirfd, &st) ||
			  !ucm_fstype_is_local((uint32_t)st.f_type);
	backing->is_tmpfs = (uint32_t)st.f_type == TMPFS_MAGIC;
}

/* Two daemons must not write one directory. Not where other machines may use
 * it: there a lock may hold for one machine only, or wait out a server's grace
 * period. */
static int take_lock(struct ucm_backing *backing, unsigned wait_s,
		     struct ucm_error *error)
{
	if (backing->remote)
		return 0;
	backing->lockfd = ucm_lock_take(backing->ctlfd, backing->path, wait_s,
					error);
	return backing->lockfd < 0 ? backing->lockfd : 0;
}

static int new_identity(struct ucm_backing *backing)
{
	char text[80], hex[UUID_TEXT + 1];
	int len;

	if (getrandom(backing->uuid, sizeof(backing->uuid), 0) !=
	    sizeof(backing->uuid))
		return -EIO;
	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", backing->uuid[i]);
	len = snprintf(text, sizeof(text), "ucmfs %d\nuuid %s\n",
		       FORMAT_VERSION, hex);
	return ucm_os_replace_file(backing->ctlfd, "id", text, (size_t)len);
}

static int parse_identity(struct ucm_backing *backing, const char *text)
{
	char hex[UUID_TEXT + 1];
	struct ucm_id uuid; /* the same 32 hex digits as an id's */
	int version;

	if (sscanf(text, "ucmfs %d uuid %32s", &version, hex) != 2 ||
	    version != FORMAT_VERSION || strlen(hex) != UUID_TEXT ||
	    ucm_id_parse(hex, &uuid))
		return -EINVAL;
	memcpy(backing->uuid, uuid.bytes, sizeof(backing->uuid));
	return 0;
}

static int read_identity(struct ucm_backing *backing,
			 struct ucm_error *error)
{
	char text[128];
	int err = ucm_os_read_file(backing->ctlfd, "id", text, sizeof(text));

	if (err == -ENOENT && !backing->readonly)
		err = new_identity(backing);
	else if (!err)
		err = parse_identity(backing, text);
	if (err)
		ucm_error_set(error, err,
			      "%s: .ucmfs/id is not of a version that this "
			      "ucmfs can use: %s",
			      backing->path, strerror(-err));
	return err;
}

static int make_layout(struct ucm_backing *backing)
{
	static const char *const below_root[] = {
		UCM_TREE_BLOCKS, UCM_TREE_SPACES, UCM_TREE_FILES,
	};
	static const char *const below_ctl[] = { "tmp", "quarantine",
						 "pinned" };
	int err = 0;

	for (size_t i = 0; i < 3 && !err; i++)
		err = make_dir(backing->dirfd, below_root[i]);
	for (size_t i = 0; i < 3 && !err; i++)
		err = make_dir(backing->ctlfd, below_ctl[i]);
	if (err)
		return err;
	backing->tmpfd = open_dir(backing->ctlfd, "tmp");
	return backing->tmpfd < 0 ? backing->tmpfd : 0;
}

static int open_root(struct ucm_backing *backing, const char *path,
		     struct ucm_error *error)
{
	struct stat st;
	int err;

	backing->path = realpath(path, NULL);
	if (!backing->path) {
		err = -errno;
		return ucm_error_set(error, err, "%s: %s", path,
				     strerror(-err));
	}
	backing->dirfd = open(backing->path,
			      O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (backing->dirfd < 0 || fstat(backing->dirfd, &st)) {
		err = -errno;
		return ucm_error_set(error, err, "%s: %s", path,
				     strerror(-err));
	}
	backing->dev = st.st_dev;
	backing->ino = st.st_ino;
	learn_type(backing);
	ucm_trust_init(&backing->trust, backing->path, &st, backing->readonly,
		       backing->remote);
	if (st.st_mode & S_IWOTH)
		ucm_warning("%s: anyone may write to this directory: let only "
			    "its owner do so",
			    backing->path);
	return 0;
}

static int open_control(struct ucm_backing *backing,
			struct ucm_error *error)
{
	int err = 0;

	if (!backing->readonly)
		/* files of private spaces are written in there */
		err = ucm_os_mkdir(backing->dirfd, UCM_TREE_OWN, 0700);
	if (err == -EEXIST)
		err = 0;
	if (!err) {
		backing->ctlfd = open_dir(backing->dirfd, UCM_TREE_OWN);
		if (backing->ctlfd < 0)
			err = backing->ctlfd;
	}
	if (err)
		ucm_error_set(error, err, "%s: %s: %s", backing->path,
			     backing->readonly ? UCM_TREE_OWN : "not writable",
			     strerror(-err));
	return err;
}

struct used {
	const char *path; /* NULL: the last */
	mode_t type;
};

static int trust_names(struct ucm_backing *backing, const struct used *used,
		       struct ucm_error *error)
{
	int err = 0;

	for (; used->path && !err; used++)
		err = ucm_trust_name(&backing->trust, backing->dirfd,
				     used->type, used->path, error);
	return err;
}

/* Before anything of it is used. */
static int trust_control(struct ucm_backing *backing,
			 struct ucm_error *error)
{
	static const struct used used[] = {
		{ UCM_TREE_OWN "/tmp", S_IFDIR },
		{ UCM_TREE_OWN "/quarantine", S_IFDIR },
		{ UCM_TREE_OWN "/pinned", S_IFDIR },
		{ UCM_TREE_OWN "/id", S_IFREG },
		{ UCM_TREE_OWN "/state", S_IFREG },
		{ UCM_TREE_OWN "/clock", S_IFREG },
		{ UCM_TREE_OWN "/lock", S_IFREG },
		{ NULL, 0 },
	};
	int err = 0;

	if (backing->remote && !backing->readonly)
		err = ucm_trust_learn(&backing->trust, backing->ctlfd);
	if (err)
		return ucm_error_set(error, err, "%s: not writable: %s",
				     backing->path, strerror(-err));
	err = ucm_trust_fd(&backing->trust, backing->ctlfd, S_IFDIR,
			   UCM_TREE_OWN, error);
	return err ? err : trust_names(backing, used, error);
}

/* Once it is there. */
static int trust_tree(struct ucm_backing *backing,
		      struct ucm_error *error)
{
	static const struct used used[] = {
		{ UCM_TREE_BLOCKS, S_IFDIR },
		{ UCM_TREE_SPACES, S_IFDIR },
		{ NULL, 0 },
	};
	int err = trust_names(backing, used, error);

	return err ? err
		   : ucm_trust_plain(&backing->trust, backing->dirfd,
				     error);
}

static int open_writable(struct ucm_backing *backing, unsigned wait_s,
			 struct ucm_error *error)
{
	int err = take_lock(backing, wait_s, error);

	if (err)
		return err;
	err = make_layout(backing);
	if (err)
		ucm_error_set(error, err, "%s: not writable: %s", backing->path,
			     strerror(-err));
	return err;
}

/* What is opened below the directory inherits its guard. */
static int guard_root(struct ucm_backing *backing, unsigned deadline_s,
		      struct ucm_error *error)
{
	int err;

	if (deadline_s == UCM_DEADLINE_AUTO)
		deadline_s = backing->remote ? NETWORK_DEADLINE_S : 0;
	if (!deadline_s)
		return 0;
	err = ucm_guard_open(backing->dirfd, backing->path, deadline_s * 1000,
			     &backing->guard);
	if (err)
		ucm_error_set(error, err, "%s: %s", backing->path,
			     strerror(-err));
	return err;
}

int ucm_backing_open(struct ucm_backing *backing, const char *path,
		     bool readonly, const struct ucm_config *config,
		     struct ucm_error *error)
{
	int err;

	*backing = (struct ucm_backing){
		.dirfd = -1,
		.ctlfd = -1,
		.tmpfd = -1,
		.lockfd = -1,
		.readonly = readonly,
		.folder_lock = PTHREAD_MUTEX_INITIALIZER,
	};
	ucm_temp_whoami(&backing->self);
	err = open_root(backing, path, error);
	if (!err)
		err = guard_root(backing, config->deadline_s, error);
	if (!err)
		err = open_control(backing, error);
	if (!err)
		err = trust_control(backing, error);
	if (!err && !readonly)
		err = open_writable(backing, config->lock_wait_s, error);
	if (!err)
		err = trust_tree(backing, error);
	if (!err)
		err = read_identity(backing, error);
	if (!err) {
		err = ucm_recovery_read(&backing->recovery, backing->ctlfd,
					backing->path);
		/* there, the mark may be another machine's, which is at work:
		 * what has no checksum is not condemned for it */
		if (backing->remote && !backing->recovery.lost)
			backing->recovery.unvouched = false;
		if (err)
			ucm_error_set(error, err, "%s: .ucmfs/state: %s",
				     backing->path, strerror(-err));
	}
	if (err)
		ucm_backing_close(backing, false);
	return err;
}

/* What a stopped daemon left. Without a lock another one, here or on another
 * machine, may be writing it. */
static bool is_leftover(struct ucm_backing *backing, const char *name,
			int64_t now_s)
{
	struct stat st;

	return backing->lockfd >= 0 ||
	       (!ucm_os_stat(backing->tmpfd, name, &st) &&
		ucm_temp_is_over(&backing->self, name, now_s - st.st_mtime));
}

static void clear_temps(struct ucm_backing *backing)
{
	_cleanup_free_ char *names = NULL;
	unsigned removed = 0;
	int64_t now_ns = 0;

	if (ucm_os_list(backing->ctlfd, "tmp", &names) || !*names)
		return;
	if (backing->lockfd < 0 &&
	    ucm_recovery_time(backing->ctlfd, &now_ns))
		return; /* by its clock: ours may be another */
	for (const char *name = names; *name; name += strlen(name) + 1) {
		if (is_leftover(backing, name, now_ns / 1000000000) &&
		    !ucm_os_unlink(backing->tmpfd, name))
			removed++;
	}
	if (removed)
		ucm_info("%s: removed %u unfinished files", backing->path,
			 removed);
}

int ucm_backing_begin(struct ucm_backing *backing)
{
	int err;

	if (backing->readonly)
		return 0;
	if (backing->recovery.unclean)
		ucm_warning("%s: %s; blocks newer than the last checkpoint are "
			    "checked before use",
			    backing->path,
			    backing->recovery.lost ? "writes were lost"
			    : backing->recovery.unvouched
				    ? "not closed cleanly before the machine "
				      "restarted"
				    : "not closed cleanly, or before all of it "
				      "had been checked");
	if (getrandom(&backing->instance, sizeof(backing->instance), 0) < 0)
		backing->instance = (uint32_t)getpid();
	clear_temps(backing);
	err = ucm_recovery_begin(&backing->recovery, backing->ctlfd);
	if (err)
		ucm_error("%s: .ucmfs/state: %s", backing->path,
			  strerror(-err));
	else /* the state file has ended it; its reader has it open */
		ucm_snapshot_remove(backing->ctlfd);
	return err;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void ucm_backing_close(struct ucm_backing *backing, bool clean)
{
	if (clean && !backing->readonly && !backing->abandoned) {
		int err = ucm_recovery_end(&backing->recovery, backing->ctlfd);

		if (err)
			ucm_error("%s: closing: %s", backing->path,
				  strerror(-err));
	}
	ucm_guard_close(backing->guard);
	backing->guard = NULL;
	close_fd(&backing->lockfd);
	close_fd(&backing->tmpfd);
	close_fd(&backing->ctlfd);
	close_fd(&backing->dirfd);
	free(backing->path);
	backing->path = NULL;
}

int ucm_backing_temp(struct ucm_backing *backing,
		     char name_out[UCM_TEMP_NAME_MAX])
{
	uint64_t serial = atomic_fetch_add(&backing->temps, 1);

	ucm_temp_name(&backing->self, backing->instance, serial, name_out);
	return ucm_os_open(backing->tmpfd, name_out, O_RDWR | O_CREAT | O_EXCL,
			   0600);
}

int ucm_backing_temp_open(struct ucm_backing *backing, const char *name)
{
	return ucm_os_open(backing->tmpfd, name, O_RDWR, 0);
}

/*
 * Does SEEK_HOLE see a hole where there is one? Tried once, on a file of two
 * pages with a hole in front. A file system without the call says "all data".
 */
static enum ucm_holes try_seek_hole(struct ucm_backing *backing)
{
	char name[UCM_TEMP_NAME_MAX];
	_cleanup_fd_ int fd = ucm_backing_temp(backing, name);
	enum ucm_holes seen = UCM_HOLES_UNKNOWN;

	if (fd < 0)
		return UCM_HOLES_UNKNOWN; /* no room, perhaps: next time */
	if (!ucm_os_write_at(fd, "x", 1, UCM_BLOCK_PAGE))
		seen = ucm_os_seek(fd, 0, SEEK_HOLE) == 0 ? UCM_HOLES_SOME
							  : UCM_HOLES_NONE;
	ucm_backing_temp_drop(backing, name);
	return seen;
}

/*
 * Fewer blocks than bytes is a hole or compression; more is no proof, since
 * XFS counts what it has set aside. Huge pages of tmpfs, and blocks larger than
 * a page, are filled with zeros around the first byte that is written: local
 * file systems say so by st_blksize. (On a network file system that is the size
 * of a transfer.)
 */
enum ucm_holes ucm_backing_find_holes(struct ucm_backing *backing, int fd,
				      const struct stat *st)
{
	int worth = atomic_load(&backing->holes);
	off_t hole;

	if (worth == UCM_HOLES_UNKNOWN) {
		worth = try_seek_hole(backing);
		atomic_store(&backing->holes, worth);
	}
	if (worth != UCM_HOLES_SOME ||
	    (!backing->remote && st->st_blksize > UCM_BLOCK_PAGE))
		return UCM_HOLES_UNKNOWN;
	if (backing->is_tmpfs) /* counts pages, and would look at each (18 us)
				*/
		return (uint64_t)st->st_blocks * 512 < (uint64_t)st->st_size
			       ? UCM_HOLES_SOME
			       : UCM_HOLES_NONE;
	hole = ucm_os_seek(fd, 0, SEEK_HOLE);
	if (hole < 0)
		return UCM_HOLES_UNKNOWN;
	if (hole < st->st_size)
		return UCM_HOLES_SOME;
	return (uint64_t)st->st_blocks * 512 < (uint64_t)st->st_size
		       ? UCM_HOLES_UNKNOWN
		       : UCM_HOLES_NONE;
}

void ucm_backing_temp_drop(struct ucm_backing *backing, const char *name)
{
	int err = ucm_os_unlink(backing->tmpfd, name);

	if (err && err != -ENOENT)
		ucm_error("%s/" UCM_TREE_OWN "/tmp/%s: %s", backing->path, name,
			  strerror(-err));
}

/* Not the space's folder: who may enter that is not ours to say. */
static int make_bucket(struct ucm_backing *backing, const char *folder,
		       const char *bucket, bool sync)
{
	int err = make_dir(backing->dirfd, bucket);

	if (!err && sync)
		err = ucm_os_sync_dir(backing->dirfd, folder);
	return err;
}

/* Not for others while it is written: its space may be private. Some file
 * systems have no modes. */
static int publish(struct ucm_backing *backing, const char *temp)
{
	int err = ucm_os_chmod(backing->tmpfd, temp, 0644);

	return err == -EPERM || err == -EOPNOTSUPP || err == -ENOSYS ? 0 : err;
}

int ucm_backing_commit(struct ucm_backing *backing, const char *temp,
		       const char *folder, const struct ucm_id *id, bool sync)
{
	char path[UCM_TREE_PATH_MAX], bucket[UCM_TREE_PATH_MAX];
	int err;

	ucm_tree_block_path(folder, id, path);
	ucm_tree_bucket_path(folder, ucm_tree_bucket(id), bucket);
	err = publish(backing, temp);
	if (err)
		return err;
	err = ucm_os_link(backing->tmpfd, temp, backing->dirfd, path);
	if (err == -ENOENT) {
		err = make_bucket(backing, folder, bucket, sync);
		if (!err)
			err = ucm_os_link(backing->tmpfd, temp, backing->dirfd,
					  path);
	}
	if (err)
		return err;
	ucm_backing_temp_drop(backing, temp);
	err = sync ? ucm_os_sync_dir(backing->dirfd, bucket) : 0;
	/* else the next commit would take it for one that is safe on disk */
	if (err)
		ucm_backing_remove(backing, folder, id);
	return err;
}

int ucm_backing_open_block(struct ucm_backing *backing, const char *folder,
			   const struct ucm_id *id, int flags,
			   struct stat *stat_out)
{
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_block_path(folder, id, path);
	return ucm_os_open_regular(backing->dirfd, path, flags, stat_out);
}

int ucm_backing_remove(struct ucm_backing *backing, const char *folder,
		       const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_block_path(folder, id, path);
	return ucm_os_unlink(backing->dirfd, path);
}

int ucm_backing_quarantine(struct ucm_backing *backing, const char *folder,
			   const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX], flat[UCM_TREE_PATH_MAX];
	char to[UCM_TREE_PATH_MAX + 64];
	struct timespec now;

	if (backing->readonly)
		return -EROFS;
	clock_gettime(CLOCK_REALTIME, &now);
	ucm_tree_block_path(folder, id, path);
	flat_name(folder, id, flat, sizeof(flat));
	snprintf(to, sizeof(to), UCM_TREE_OWN "/quarantine/%s.%lld%09ld", flat,
		 (long long)now.tv_sec, now.tv_nsec);
	return ucm_os_rename(backing->dirfd, path, backing->dirfd, to);
}

static void pin_path(const char *folder, const struct ucm_id *id, char *path,
		     size_t size)
{
	char flat[UCM_TREE_PATH_MAX];

	flat_name(folder, id, flat, sizeof(flat));
	snprintf(path, size, "pinned/%s", flat);
}

int ucm_backing_pin(struct ucm_backing *backing, const char *folder,
		    const struct ucm_id *id, bool pinned)
{
	char path[UCM_TREE_PATH_MAX + 16];
	_cleanup_fd_ int fd = -1;
	int err;

	if (backing->readonly)
		return -EROFS;
	pin_path(folder, id, path, sizeof(path));
	if (!pinned) {
		err = ucm_os_unlink(backing->ctlfd, path);
		return err == -ENOENT ? 0 : err;
	}
	fd = ucm_os_open(backing->ctlfd, path, O_WRONLY | O_CREAT, 0644);
	return fd < 0 ? fd : 0;
}

static void read_pin(const char *name,
		     void (*fn)(void *arg, const char *space,
				const struct ucm_id *id),
		     void *arg)
{
	const char *at = strrchr(name, '@');
	char space[UCM_TREE_PATH_MAX];
	struct ucm_id id;

	if (!at || strlen(at + 1) != UCM_ID_HEX || ucm_id_parse(at + 1, &id))
		return;
	snprintf(space, sizeof(space), "%.*s", (int)(at - name), name);
	fn(arg, space, &id);
}

void ucm_backing_each_pin(struct ucm_backing *backing,
			  void (*fn)(void *arg, const char *space,
				     const struct ucm_id *id),
			  void *arg)
{
	_cleanup_free_ char *names = NULL;

	if (ucm_os_list(backing->ctlfd, "pinned", &names))
		return;
	for (const char *name = names; *name; name += strlen(name) + 1)
		read_pin(name, fn, arg);
}

int ucm_backing_buckets(const struct ucm_backing *backing, const char *folder,
			uint64_t out[4])
{
	_cleanup_free_ char *names = NULL;
	int err = ucm_os_list(backing->dirfd, folder, &names);

	memset(out, 0, 4 * sizeof(*out));
	if (err)
		return err == -ENOENT ? 0 : err;
	for (const char *name = names; *name; name += strlen(name) + 1) {
		int bucket = ucm_tree_parse_bucket(name);

		if (bucket >= 0)
			out[bucket / 64] |= UINT64_C(1) << bucket % 64;
	}
	return 0;
}
