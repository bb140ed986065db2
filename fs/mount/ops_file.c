/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_file.c - operations on open files.
 *
 * With passthrough the kernel reads and writes the backing file itself and
 * read and write below are never called. What remains is when a file becomes a
 * block: at a FLUSH that finds it whole, at fsync, at rename, or at the last
 * RELEASE.
 *
 * A FLUSH alone says nothing: shells send one before the first byte, fork sends
 * one in mid-stream, and the kernel sends one for a process that was killed. So
 * a file is committed unchecked at a FLUSH only if the process that sends it goes
 * on, and at RELEASE only if such a one was the last FLUSH and nothing has been
 * written since; else its checksums decide, and without any it is dropped. While another open of the file is left, it is
 * not judged at all: who has that one may go on writing.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/process.h"
#include "fs/index/memory.h"
#include "fs/mount/ops_files.h"
#include "hashing/digest.h"
#include "hashing/name.h"

static struct ucm_handle *file_of(const struct fuse_file_info *fi)
{
	return (struct ucm_handle *)(uintptr_t)fi->fh;
}

/* What it is about, where that is a block or one in the making. Under
 * file->lock: a rename makes a block of what was staging. */
static void note_file(struct ucm_account *event, const struct ucm_handle *file)
{
	if (file->kind != UCM_HANDLE_BLOCK && file->kind != UCM_HANDLE_WRITER)
		return;
	ucm_account_block(event, &file->key);
	event->dir = file->dir;
	event->bytes = file->size;
}

static bool wants_write(const struct fuse_file_info *fi)
{
	return (fi->flags & O_ACCMODE) != O_RDONLY;
}

/* ---- passthrough ---- */

/* One directory's file system may be stacked too deep; others go on. */
static void give_up_passthrough(struct ucm_daemon *daemon, unsigned dir)
{
	if (atomic_exchange(&daemon->refused[dir], true))
		return;
	ucm_warning("%s: passthrough off: the kernel refused a backing file "
		    "(it needs CAP_SYS_ADMIN and a file system that is not "
		    "itself stacked too deep)",
		    daemon->set->dirs[dir]->path);
	if (atomic_fetch_add(&daemon->num_refused, 1) + 1 <
	    daemon->set->num_dirs)
		return;
	daemon->passthrough_why = "the kernel refused a backing file";
	atomic_store(&daemon->passthrough, false);
}

/* What the kernel says of the file system, or of us, and not of the moment:
 * want of memory, of which it may have enough for the next file, is not here. */
static bool is_for_good(int err)
{
	switch (err) {
	case -EPERM:      /* no CAP_SYS_ADMIN, or no passthrough */
	case -ELOOP:      /* stacked too deep */
	case -EINVAL:     /* no file that can be one */
	case -EOPNOTSUPP: /* built without */
	case -ENOTTY: case -ENOSYS:
		return true;
	default:
		return false;
	}
}

/* A backing id or -errno; libfuse logs why. */
static int register_backing(fuse_req_t req, int fd)
{
	int id;

	errno = 0;
	id = fuse_passthrough_open(req, fd);
	return id > 0 ? id : -(errno ? errno : EIO);
}

/* First open of an inode: register its descriptor. If that fails for now, all
 * opens until its last close do without, as the kernel asks. Under file->lock. */
void ucm_handle_attach(fuse_req_t req, struct ucm_handle *file)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	int id;

	file->backing_id = 0;
	if (!ucm_handle_wants_backing(daemon, file))
		return;
	id = register_backing(req, file->fd);
	if (id > 0)
		file->backing_id = id;
	else if (is_for_good(id))
		give_up_passthrough(daemon, file->dir);
}

/* Last close: the kernel has no open left on it. Under file->lock. */
void ucm_handle_detach(fuse_req_t req, struct ucm_handle *file)
{
	ucm_handle_close(ucm_daemon_of(req), file);
}

/* One more open of a file that has its descriptor. Under file->lock. */
void ucm_handle_count_open(struct ucm_handle *file, struct fuse_file_info *fi)
{
	file->opens++;
	if ((fi->flags & O_ACCMODE) == O_RDWR)
		file->shared_write = file->temp.shared = true;
	fi->fh = (uintptr_t)file;
	fi->backing_id = file->backing_id;
	/* of files of files/ nothing is judged when they are closed, and where
	 * the kernel has their pages nothing is left to be written either;
	 * unless their file system has something to tell */
	fi->noflush =
		!wants_write(fi) || (file->kind == UCM_HANDLE_PLAIN &&
				     file->backing_id && !file->told_at_close);
	/* a block's pages never change; those of a file being written do */
	fi->keep_cache = !file->backing_id && file->kind == UCM_HANDLE_BLOCK;
	/* that would go before passthrough */
	fi->direct_io = ucm_handle_in_memory(file) && !file->backing_id;
}

/* ---- the end of a file being written ---- */

/* -EAGAIN: it is not whole, as far as can be seen. */
static int commit_writer(const struct ucm_account *within,
			 struct ucm_handle *file, enum ucm_commit_when when)
{
	if (file->temp.committed)
		return 0;
	if (file->failed)
		return -EIO;
	return ucm_handle_commit(within, file, file->fd, &file->key, when);
}

static int flush_writer(const struct ucm_account *event,
			struct ucm_handle *file)
{
	bool goes_on;
	int err;

	if (file->opens > 1 && !file->temp.committed) {
		file->vouched = ucm_process_goes_on((pid_t)event->pid) &&
				!ucm_os_fstat(file->fd, &file->temp.stamp);
		return 0;
	}
	goes_on = ucm_process_goes_on((pid_t)event->pid);
	err = commit_writer(event, file,
			    goes_on ? UCM_COMMIT_CLOSED : UCM_COMMIT_IF_WHOLE);
	file->vouched = goes_on && err == -EAGAIN;
	return err == -EAGAIN ? 0 : err;
}

/* Somebody has begun a block, and there is none. */
static void tell_of_unfinished(struct ucm_store *set,
			       const struct ucm_handle *file)
{
	if (file->temp.wants_word)
		ucm_store_refuse(set, &file->key, UCM_FAULT_UNVOUCHED,
				 "it has no checksums, and its writer ended "
				 "without closing it");
	else if (file->temp.stamp.st_size)
		ucm_info("block %s: dropped: it was closed before all of it was "
			 "written; size %lld",
			 ucm_hex(&file->key.id).text,
			 (long long)file->temp.stamp.st_size);
}

/* The last close of a file under a block's name; nobody hears an error now. */
static void finish_writer(const struct ucm_account *within,
			  struct ucm_handle *file)
{
	struct ucm_store *set = within->daemon->set;
	bool unchanged = ucm_store_unchanged(&file->temp, file->fd);

	if (file->refused && unchanged)
		return; /* close(2) has told, and so has the log */
	if (file->temp.committed)
		ucm_store_recheck(set, &file->temp, file->fd);
	else if (commit_writer(within, file,
			       file->vouched && unchanged ? UCM_COMMIT_NOW
							  : UCM_COMMIT_LAST) ==
		 -EAGAIN)
		tell_of_unfinished(set, file);
}

static void close_file(fuse_req_t req, struct ucm_account *event,
		       struct ucm_handle *file)
{
	pthread_mutex_lock(&file->lock);
	file->touched_ms = ucm_monotonic_ms();
	if (--file->opens == 0) {
		if (file->kind == UCM_HANDLE_WRITER)
			finish_writer(event, file);
		else if (file->kind == UCM_HANDLE_PLAIN)
			ucm_files_last_close(event->daemon, file);
		else if (file->kind == UCM_HANDLE_STAGING)
			ucm_store_rest(&file->temp, file->fd);
		if (!ucm_kept_add(event->daemon, file))
			ucm_handle_detach(req, file);
	}
	note_file(event, file);
	pthread_mutex_unlock(&file->lock);
	ucm_handle_put(event->daemon, file);
}

/* ---- create ---- */

/* Where a staging file's block will belong, guessed from its name: the hash
 * in "<hash>.tmp" or ".<hash>.bin.XXXXXX", else any fixed place. */
static void guess_id(const char *name, struct ucm_id *id)
{
	if (strlen(name) >= UCM_ID_HEX && !ucm_id_parse(name, id))
		return;
	if (strlen(name) > UCM_ID_HEX && !ucm_id_parse(name + 1, id))
		return;
	if (ucm_md5(name, strlen(name), id->bytes))
		memset(id, 0, sizeof(*id));
}

/* What a new name in a bucket is going to be; -EINVAL: nothing. */
static int plan_file(fuse_ino_t parent, const char *name,
		     enum ucm_handle_kind *kind, struct ucm_key *key)
{
	key->space = ucm_bucket_space(parent);
	if (!ucm_name_parse(name, &key->id)) {
		*kind = UCM_HANDLE_WRITER;
		return ucm_bucket(&key->id) == ucm_bucket_number(parent) ? 0 : -EINVAL;
	}
	if (strlen(name) > UCM_NAME_MAX)
		return -ENAMETOOLONG;
	if (!ucm_name_is_staging(name))
		return -EINVAL;
	*kind = UCM_HANDLE_STAGING;
	guess_id(name, &key->id);
	return 0;
}

static int new_file(struct ucm_daemon *daemon, fuse_ino_t parent,
		    const char *name, int flags, struct ucm_handle **out)
{
	enum ucm_handle_kind kind;
	struct ucm_temp temp;
	struct ucm_handle *file;
	struct ucm_key key;
	int fd, err = plan_file(parent, name, &kind, &key);

	if (err)
		return err;
	if (kind == UCM_HANDLE_WRITER &&
	    ucm_index_find(daemon->set->index, &key, NULL, NULL))
		/* committed since the kernel looked */
		return flags & O_EXCL ? -EEXIST : -EPERM;
	fd = ucm_store_create(daemon->set, &key, 0, &temp);
	if (fd < 0)
		return fd;
	file = ucm_handle_open(daemon, kind, 0);
	if (!file) {
		close(fd);
		ucm_store_drop(daemon->set, &temp);
		return -ENOMEM;
	}
	file->fd = fd;
	file->temp = temp;
	file->dir = temp.dir;
	file->key = key;
	if (kind == UCM_HANDLE_STAGING &&
	    ucm_handle_set_name(daemon, file, key.space,
				ucm_bucket_number(parent), name)) {
		ucm_handle_put(daemon, file);
		return -ENOMEM;
	}
	*out = file;
	return 0;
}

static void reply_create(fuse_req_t req, struct ucm_account *event,
			 struct ucm_handle *file, struct fuse_file_info *fi)
{
	/* The name is asked for anew each time. The attributes are the inode's
	 * alone, and the kernel drops them itself when it writes: remembering
	 * them spares a GETATTR for the permission check of this very open. */
	struct fuse_entry_param entry = { .ino = file->node,
					  .generation = 1,
					  .attr_timeout = 1.0 };
	struct stat st;
	int err;

	pthread_mutex_lock(&file->lock);
	err = ucm_os_fstat(file->fd, &st);
	if (!err)
		ucm_attr_file(event->daemon, file, &st, &entry.attr);
	note_file(event, file);
	pthread_mutex_unlock(&file->lock);
	ucm_account_end(event, err);
	if (err) {
		close_file(req, event, file);
		fuse_reply_err(req, -err);
	} else if (fuse_reply_create(req, &entry, fi) == -ENOENT) {
		/* interrupted: the kernel has no such open. req is gone, and
		 * with it the way to close the backing id; its descriptor and
		 * the file go at the end of the mount. */
		ucm_debug(OP, 1, "create interrupted");
	}
}

static int create_in_bucket(fuse_req_t req, fuse_ino_t parent, const char *name,
			    struct fuse_file_info *fi, struct ucm_handle **out)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file;
	int err;

	if (!ucm_node_space(daemon, parent))
		return -ENOENT;
	err = new_file(daemon, parent, name, fi->flags, &file);
	if (err)
		return err;
	pthread_mutex_lock(&file->lock);
	ucm_handle_attach(req, file);
	ucm_handle_count_open(file, fi);
	pthread_mutex_unlock(&file->lock);
	*out = file;
	return 0;
}

/* ---- space.json: a memory file, checked and stored when it is closed ---- */

static int load_manifest(struct ucm_daemon *daemon, struct ucm_space *space,
			 int *fd_out)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	int fd, err;

	if (!text)
		return -ENOMEM;
	fd = ucm_os_memory_file(UCM_MANIFEST_NAME);
	if (fd < 0)
		return fd;
	err = ucm_store_read_manifest(daemon->set, space, text,
				      UCM_MANIFEST_MAX);
	if (!err)
		err = ucm_os_write_at(fd, text, strlen(text), 0);
	if (err && err != -ENOENT) {
		close(fd);
		return err;
	}
	*fd_out = fd;
	return 0;
}

/* An empty one is one that is not written yet. */
static int store_manifest(struct ucm_daemon *daemon, struct ucm_space *space,
			  int fd)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	ssize_t len;

	if (!text)
		return -ENOMEM;
	len = ucm_os_read_at(fd, text, UCM_MANIFEST_MAX, 0);
	if (len <= 0)
		return (int)len;
	return ucm_store_write_manifest(daemon->set, space, text, (size_t)len);
}

/* Each open has a memory file of its own: what is read is of one moment. */
static int open_manifest(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct fuse_file_info *fi, struct ucm_handle **out)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);
	struct ucm_handle *file;
	int fd, err;

	if (!space)
		return -ENOENT;
	err = load_manifest(daemon, space, &fd);
	if (!err && fi->flags & O_TRUNC)
		err = ucm_os_truncate(fd, 0);
	if (err)
		return err;
	file = ucm_handle_open(daemon, UCM_HANDLE_MANIFEST, 0);
	if (!file) {
		close(fd);
		return -ENOMEM;
	}
	file->fd = fd;
	file->key.space = space->number;
	file->writes = wants_write(fi);
	ucm_handle_count_open(file, fi);
	*out = file;
	return 0;
}

static int flush_manifest(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	struct ucm_space *space =
		ucm_namespace_get(&daemon->set->names, file->key.space);

	if (!file->writes)
		return 0;
	return space ? store_manifest(daemon, space, file->fd) : -ENOENT;
}

static void create_plain(fuse_req_t req, struct ucm_account *event,
			 fuse_ino_t parent, const char *name, mode_t mode,
			 struct fuse_file_info *fi)
{
	struct fuse_entry_param entry;
	int err = ucm_files_op_create(req, parent, name, mode, fi, &entry);

	ucm_account_end(event, err);
	if (err)
		fuse_reply_err(req, -err);
	else if (fuse_reply_create(req, &entry, fi) == -ENOENT)
		ucm_debug(OP, 1, "create interrupted"); /* as in reply_create */
}

void ucm_op_create(fuse_req_t req, fuse_ino_t parent, const char *name,
		   mode_t mode, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_CREATE);
	struct ucm_handle *file;
	int err;

	if (ucm_node_type(parent) == UCM_NODE_PLAIN) {
		create_plain(req, &event, parent, name, mode, fi);
		return;
	}
	/* elsewhere, modes are the space's */
	if (ucm_node_type(parent) == UCM_NODE_BUCKET)
		err = create_in_bucket(req, parent, name, fi, &file);
	else if (ucm_node_type(parent) == UCM_NODE_SPACE &&
		 !strcmp(name, UCM_MANIFEST_NAME))
		err = open_manifest(event.daemon, parent, fi, &file);
	else
		err = strlen(name) > UCM_NAME_MAX ? -ENAMETOOLONG : -EPERM;
	if (err)
		ucm_account_reply(req, &event, err);
	else
		reply_create(req, &event, file, fi);
}

/* ---- open ---- */

/* Under file->lock. */
static int first_open_block(fuse_req_t req, struct ucm_handle *file)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_entry entry;
	int fd = ucm_store_open_block(daemon->set, ucm_node_value(file->node),
				      &entry);

	if (fd < 0)
		return fd;
	file->fd = fd;
	file->key = (struct ucm_key){ .id = entry.id, .space = entry.space };
	file->dir = entry.dir;
	file->size = entry.size;
	ucm_handle_attach(req, file);
	ucm_kept_opened(daemon, file);
	return 0;
}

/* It is what its name says. */
static int refuse_to_write(struct ucm_account *event, fuse_ino_t ino)
{
	struct ucm_entry entry;

	if (!ucm_index_get(event->daemon->set->index, ucm_node_value(ino),
			   &entry))
		return -ESTALE;
	ucm_account_entry(event, &entry);
	return -EPERM;
}

static int open_block(fuse_req_t req, struct ucm_account *event, fuse_ino_t ino,
		      struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = event->daemon;
	struct ucm_handle *file;
	int err = 0;

	if (wants_write(fi) || fi->flags & O_TRUNC)
		return refuse_to_write(event, ino);
	file = ucm_handle_get(daemon, ino);
	if (!file)
		file = ucm_handle_open(daemon, UCM_HANDLE_BLOCK, ino);
	if (!file)
		return -ENOMEM;
	pthread_mutex_lock(&file->lock);
	if (file->opens)
		err = ucm_store_open_again(daemon->set, ucm_node_value(ino));
	else if (!ucm_kept_open(daemon, file))
		err = first_open_block(req, file);
	if (!err) {
		ucm_handle_count_open(file, fi);
		note_file(event, file);
	}
	pthread_mutex_unlock(&file->lock);
	if (err)
		ucm_handle_put(daemon, file);
	/* ESTALE makes the kernel look the name up again: it may be another
	 * block's by now, or lie in another tier */
	return err == -ENOENT ? -ESTALE : err;
}

/* Under file->lock. */
static int open_file_locked(fuse_req_t req, struct ucm_handle *file,
			    struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	int fd;

	if (file->temp.committed && (wants_write(fi) || fi->flags & O_TRUNC))
		return -EPERM;
	if (!file->opens) {
		if (file->temp.committed || !ucm_handle_has_temp(file))
			return -ENOENT;
		fd = ucm_store_reopen(daemon->set, &file->temp);
		if (fd < 0)
			return fd;
		file->fd = fd;
		ucm_handle_attach(req, file);
	}
	if (fi->flags & O_TRUNC) {
		int err = ucm_os_truncate(file->fd, 0);

		if (err) {
			if (!file->opens)
				ucm_handle_detach(req, file);
			return err;
		}
	}
	ucm_handle_count_open(file, fi);
	return 0;
}

/* Staging once more, or a writer's own file by way of /proc/self/fd. */
static int open_file(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int err;

	if (!file)
		return -ENOENT;
	pthread_mutex_lock(&file->lock);
	err = open_file_locked(req, file, fi);
	pthread_mutex_unlock(&file->lock);
	if (err)
		ucm_handle_put(daemon, file);
	return err;
}

/* A control file's text lives as long as the open. */
static int open_control(struct ucm_daemon *daemon, fuse_ino_t ino,
			struct fuse_file_info *fi)
{
	struct ucm_handle *file;
	size_t len;
	char *text;
	int fd, err;

	if ((wants_write(fi) || fi->flags & O_TRUNC) &&
	    !ucm_control_is_writable(ino))
		return -EPERM;
	text = ucm_control_text(daemon, ino, &len);
	if (!text)
		return -ENOENT;
	fd = ucm_os_memory_file("ucmfs");
	err = fd < 0 ? fd : ucm_os_write_at(fd, text, len, 0);
	free(text);
	file = err ? NULL : ucm_handle_open(daemon, UCM_HANDLE_CONTROL, 0);
	if (!file) {
		if (fd >= 0)
			close(fd);
		return err ? err : -ENOMEM;
	}
	file->fd = fd;
	file->control = (uint8_t)(ino - UCM_FIXED_FILES);
	ucm_handle_count_open(file, fi);
	return 0;
}

/* ---- the index: nothing but passthrough makes a shared mapping live ---- */

/* Under file->lock. */
static int first_open_index(fuse_req_t req, struct ucm_handle *file)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	int fd = fcntl(ucm_index_live(daemon->set->index)->fd, F_DUPFD_CLOEXEC,
		       0);
	int id;

	if (fd < 0)
		return -errno;
	id = register_backing(req, fd);
	if (id < 0) {
		close(fd);
		if (!is_for_good(id))
			return id;
		if (!atomic_exchange(&daemon->index_refused, true))
			ucm_warning("index: the kernel refused it as a "
				    "backing file; clients ask for each block");
		return -EOPNOTSUPP;
	}
	file->backing_id = id;
	file->fd = fd;
	return 0;
}

static int open_index(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file;
	int err = 0;

	if (wants_write(fi) || fi->flags & O_TRUNC)
		return -EPERM;
	if (!atomic_load(&daemon->passthrough) ||
	    atomic_load(&daemon->index_refused) ||
	    ucm_index_live(daemon->set->index)->fd < 0)
		return -EOPNOTSUPP;
	file = ucm_handle_open(daemon, UCM_HANDLE_INDEX, ino);
	if (!file)
		return -ENOMEM;
	pthread_mutex_lock(&file->lock);
	if (!file->opens)
		err = first_open_index(req, file);
	if (!err)
		ucm_handle_count_open(file, fi);
	pthread_mutex_unlock(&file->lock);
	if (err)
		ucm_handle_put(daemon, file);
	return err;
}

static int open_any(fuse_req_t req, struct ucm_account *event, fuse_ino_t ino,
		    struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = event->daemon;
	struct ucm_handle *file;

	switch (ucm_node_type(ino)) {
	case UCM_NODE_BLOCK: return open_block(req, event, ino, fi);
	case UCM_NODE_FILE: return open_file(req, ino, fi);
	case UCM_NODE_MANIFEST:
		return open_manifest(daemon, ino, fi, &file);
	case UCM_NODE_FIXED:
		return ucm_control_is_index(ino)
			       ? open_index(req, ino, fi)
			       : open_control(daemon, ino, fi);
	case UCM_NODE_PLAIN:
		return ucm_files_op_open(req, ino, fi);
	default: return -EISDIR;
	}
}

void ucm_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_OPEN);
	int err = open_any(req, &event, ino, fi);

	ucm_account_end(&event, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_open(req, fi);
}

/* ---- reading and writing, where the kernel does not do it itself ---- */

/* Bytes that the daemon moved, where they lie on a tier. */
static void count_moved(struct ucm_account *event, struct ucm_handle *file,
			uint64_t bytes)
{
	struct ucm_tier_stats *stats;

	if (ucm_handle_in_memory(file))
		return;
	stats = &event->daemon->set->tier_of[file->dir]->stats;
	ucm_count_more(event->op == UCM_OP_READ ? &stats->read_bytes
						: &stats->written_bytes,
		       bytes);
	pthread_mutex_lock(&file->lock);
	note_file(event, file);
	pthread_mutex_unlock(&file->lock);
	event->bytes = bytes;
}

/* How much of it there is, of a block; the kernel asks for whole pages. */
static uint64_t part_there(const struct ucm_handle *file, size_t size,
			   off_t off)
{
	uint64_t from = (uint64_t)off;

	if (file->kind != UCM_HANDLE_BLOCK)
		return size;
	if (from >= file->size)
		return 0;
	return file->size - from < size ? file->size - from : size;
}

void ucm_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		 struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_READ);
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(size);
	struct ucm_handle *file = file_of(fi);

	(void)ino;
	count_moved(&event, file, part_there(file, size, off));
	out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK |
			   FUSE_BUF_FD_RETRY;
	out.buf[0].fd = file->fd;
	out.buf[0].pos = off;
	/* it reads and replies in one, and tells nobody if the file fails */
	fuse_reply_data(req, &out, FUSE_BUF_SPLICE_MOVE);
	ucm_account_end(&event, 0);
}

static int may_write(const struct ucm_handle *file, off_t off, size_t len)
{
	if (file->kind == UCM_HANDLE_BLOCK || file->kind == UCM_HANDLE_INDEX)
		return -EBADF;
	if (file->temp.committed)
		return -EPERM;
	if (file->kind == UCM_HANDLE_MANIFEST &&
	    (uint64_t)off + len > UCM_MANIFEST_MAX)
		return -EFBIG;
	return 0;
}

/* What is written is one command or more; where to does not matter. */
static ssize_t write_control(struct ucm_daemon *daemon,
			     const struct ucm_handle *file,
			     struct fuse_bufvec *in)
{
	char text[UCM_CONTROL_WRITE_MAX + 1];
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(fuse_buf_size(in));
	ssize_t len;
	int err;

	if (fuse_buf_size(in) > UCM_CONTROL_WRITE_MAX)
		return -EFBIG;
	out.buf[0].mem = text;
	len = fuse_buf_copy(&out, in, 0);
	if (len < 0)
		return len;
	text[len] = '\0';
	err = ucm_control_write(daemon, file->control, text);
	return err ? err : len;
}

static ssize_t write_file(const struct ucm_handle *file, struct fuse_bufvec *in,
			  off_t off)
{
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(fuse_buf_size(in));
	int err = may_write(file, off, fuse_buf_size(in));

	if (err)
		return err;
	out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK |
			   FUSE_BUF_FD_RETRY;
	out.buf[0].fd = file->fd;
	out.buf[0].pos = off;
	return fuse_buf_copy(&out, in, FUSE_BUF_SPLICE_NONBLOCK);
}

void ucm_op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in,
		      off_t off, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_WRITE);
	struct ucm_handle *file = file_of(fi);
	ssize_t done = file->kind == UCM_HANDLE_CONTROL
			       ? write_control(event.daemon, file, in)
			       : write_file(file, in, off);

	(void)ino;
	if (done < 0) {
		ucm_account_reply(req, &event, (int)done);
		return;
	}
	count_moved(&event, file, (uint64_t)done);
	ucm_account_end(&event, 0);
	fuse_reply_write(req, (size_t)done);
}

void ucm_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		      off_t length, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_FALLOCATE);
	struct ucm_handle *file = file_of(fi);
	int err = may_write(file, offset, 0);

	(void)ino;
	if (!err && ucm_handle_in_memory(file))
		err = -EOPNOTSUPP;
	if (!err && ucm_handle_has_temp(file) &&
	    (uint64_t)offset + (uint64_t)length >
		    event.daemon->set->config->block_max)
		err = -EFBIG;
	pthread_mutex_lock(&file->lock);
	if (!err) {
		file->temp.presized = true;
		err = ucm_os_fallocate(file->fd, mode, offset, length);
	}
	if (!err && !(mode & ~FALLOC_FL_KEEP_SIZE))
		ucm_promise_resize(file->temp.promise,
				   (uint64_t)offset + (uint64_t)length);
	pthread_mutex_unlock(&file->lock);
	ucm_account_reply(req, &event, err);
}

void ucm_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		  struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_LSEEK);
	off_t found = ucm_os_seek(file_of(fi)->fd, off, whence);

	(void)ino;
	ucm_account_end(&event, found < 0 ? (int)found : 0);
	if (found < 0)
		fuse_reply_err(req, (int)-found);
	else
		fuse_reply_lseek(req, found);
}

/* ---- flush, fsync, release ---- */

void ucm_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_FLUSH);
	struct ucm_handle *file = file_of(fi);
	int err = 0;

	(void)ino;
	pthread_mutex_lock(&file->lock);
	if (file->kind == UCM_HANDLE_WRITER)
		err = flush_writer(&event, file);
	else if (file->kind == UCM_HANDLE_MANIFEST)
		err = flush_manifest(event.daemon, file);
	else if (file->kind == UCM_HANDLE_PLAIN)
		err = ucm_files_op_flush(event.daemon, file);
	file->refused = err == -EINVAL || err == -EFBIG;
	pthread_mutex_unlock(&file->lock);
	ucm_account_reply(req, &event, err);
}

/* Pages that could not be written count as written afterwards: what failed
 * once is dropped and never asked again. */
static int sync_file(struct ucm_daemon *daemon, struct ucm_handle *file,
		     int datasync)
{
	int err;

	if (ucm_handle_in_memory(file))
		return 0;
	if (file->failed)
		return -EIO;
	err = datasync ? ucm_os_fdatasync(file->fd) : ucm_os_fsync(file->fd);
	if (!err)
		return 0;
	if (file->kind == UCM_HANDLE_PLAIN) {
		ucm_error("a file in %s/files: fsync: %s",
			  daemon->set->dirs[file->dir]->path, strerror(-err));
		ucm_store_count_error(daemon->set, file->dir, err);
		return err;
	}
	ucm_error("block %s: fsync: %s: the file will not become a block",
		  ucm_hex(&file->key.id).text, strerror(-err));
	ucm_store_count_error(daemon->set, file->dir, err);
	file->failed = file->kind != UCM_HANDLE_BLOCK;
	if (file->temp.committed && file->temp.ref)
		ucm_store_condemn(daemon->set, file->temp.ref,
				  &file->temp.stamp, UCM_FAULT_UNVOUCHED,
				  " (fsync failed)");
	return err;
}

void ucm_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		  struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_FSYNC);
	struct ucm_handle *file = file_of(fi);
	int err;

	(void)ino;
	pthread_mutex_lock(&file->lock);
	err = sync_file(event.daemon, file, datasync);
	if (!err && file->kind == UCM_HANDLE_WRITER)
		err = commit_writer(&event, file, UCM_COMMIT_NOW);
	pthread_mutex_unlock(&file->lock);
	ucm_account_reply(req, &event, err == -EAGAIN ? 0 : err);
}

void ucm_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_RELEASE);

	(void)ino;
	close_file(req, &event, file_of(fi));
	ucm_account_reply(req, &event, 0);
}
