/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_attr.c - attributes, extended attributes, and space.
 *
 * A committed block's bytes, mode and owner cannot be changed; a call that
 * changes nothing succeeds, because cp -p, install, rsync and tar make such.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/osfile.h"
#include "common/parse.h"
#include "fs/mount/ops_files.h"

/* Ends the event. */
static void reply_attr(fuse_req_t req, const struct ucm_account *event,
		       fuse_ino_t ino)
{
	struct ucm_daemon *daemon = event->daemon;
	double timeout = daemon->options->entry_timeout_s;
	struct stat st;
	int err = ucm_node_attr(daemon, ino, &st);

	ucm_account_end(event, err);
	if (err) {
		fuse_reply_err(req, -err);
		return;
	}
	if (ucm_node_type(ino) == UCM_NODE_FILE ||
	    ucm_node_type(ino) == UCM_NODE_MANIFEST || st.st_nlink == 0 ||
	    (ino >= UCM_FIXED_FILES && ucm_node_type(ino) == UCM_NODE_FIXED))
		timeout = 0;
	else if (ucm_node_type(ino) == UCM_NODE_PLAIN)
		timeout = ucm_files_timeout(daemon);
	fuse_reply_attr(req, &st, timeout);
}

void ucm_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_GETATTR);

	(void)fi;
	reply_attr(req, &event, ino);
}

/* What utimensat(2) takes, from what FUSE says. */
static void times_of(const struct stat *attr, int to_set,
		     struct timespec times[2])
{
	times[0].tv_nsec = times[1].tv_nsec = UTIME_OMIT;
	if (to_set & FUSE_SET_ATTR_ATIME_NOW)
		times[0].tv_nsec = UTIME_NOW;
	else if (to_set & FUSE_SET_ATTR_ATIME)
		times[0] = attr->st_atim;
	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		times[1].tv_nsec = UTIME_NOW;
	else if (to_set & FUSE_SET_ATTR_MTIME)
		times[1] = attr->st_mtim;
}

#define SET_TIMES                                                              \
	(FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | \
	 FUSE_SET_ATTR_MTIME_NOW)

/* Would mode and owner stay what they are? */
static bool changes_nothing(const struct stat *now, const struct stat *attr,
			    int to_set)
{
	if (to_set & FUSE_SET_ATTR_MODE &&
	    (attr->st_mode & 07777) != (now->st_mode & 07777))
		return false;
	if (to_set & FUSE_SET_ATTR_UID && attr->st_uid != now->st_uid)
		return false;
	return !(to_set & FUSE_SET_ATTR_GID) || attr->st_gid == now->st_gid;
}

static int set_block(struct ucm_daemon *daemon, fuse_ino_t ino,
		     const struct stat *attr, int to_set)
{
	struct timespec times[2];
	struct stat now;
	int err = ucm_node_attr(daemon, ino, &now);

	if (err)
		return err;
	if (to_set & FUSE_SET_ATTR_SIZE || !changes_nothing(&now, attr, to_set))
		return -EPERM;
	if (!(to_set & SET_TIMES))
		return 0;
	times_of(attr, to_set, times);
	return ucm_store_set_times(daemon->set, ucm_node_value(ino), times);
}

/* A size beyond the end says nothing of the bytes in between; rsync(1) sets the
 * one that is there. */
static int set_size(struct ucm_daemon *daemon, struct ucm_handle *file, int fd,
		    off_t size)
{
	struct stat st;
	int err;

	if (file->kind == UCM_HANDLE_MANIFEST && size > UCM_MANIFEST_MAX)
		return -EFBIG;
	if (file->temp.committed)
		return -EPERM;
	if (ucm_handle_has_temp(file) &&
	    (uint64_t)size > daemon->set->config->block_max)
		return -EFBIG; /* it would be no block, and be promised room */
	err = ucm_os_fstat(fd, &st);
	if (!err) {
		file->temp.presized |= size > st.st_size;
		err = ucm_os_truncate(fd, size);
	}
	if (!err && size > 0)
		ucm_promise_resize(file->temp.promise, (uint64_t)size);
	return err;
}

static int set_open_file(struct ucm_daemon *daemon, struct ucm_handle *file,
			 int fd, const struct stat *attr, int to_set)
{
	struct timespec times[2];
	int err = 0;

	if (to_set & FUSE_SET_ATTR_SIZE)
		err = set_size(daemon, file, fd, attr->st_size);
	times_of(attr, to_set, times);
	if (!err && to_set & SET_TIMES && !file->temp.committed)
		err = ucm_os_utimens(fd, times);
	return err;
}

/* Of a file being written: size and times. Modes and owners are its space's;
 * programs that set them before they rename are humoured. */
static int set_file(struct ucm_daemon *daemon, fuse_ino_t ino,
		    const struct stat *attr, int to_set)
{
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int fd, err;

	if (!file)
		return -ENOENT;
	pthread_mutex_lock(&file->lock);
	fd = ucm_handle_borrow_fd(daemon, file);
	err = fd < 0 ? fd : set_open_file(daemon, file, fd, attr, to_set);
	ucm_handle_return_fd(file, fd);
	pthread_mutex_unlock(&file->lock);
	ucm_handle_put(daemon, file);
	return err;
}

static int set_space(struct ucm_daemon *daemon, fuse_ino_t ino,
		     const struct stat *attr, int to_set)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);
	int err = 0;

	if (!space)
		return -ENOENT;
	if (space->number == 0) /* its owner is an option of the mount */
		return -EPERM;
	if (to_set & FUSE_SET_ATTR_MODE)
		err = ucm_store_chmod(daemon->set, space,
				      ucm_space_mode_is_private(attr->st_mode));
	if (!err && to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
		err = ucm_store_chown(
			daemon->set, space,
			to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
			to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1);
	ucm_notify_owner(daemon, space);
	return err;
}

/* Times of a directory are not kept; tar and rsync set them all the same. */
static int set_dir(struct ucm_daemon *daemon, fuse_ino_t ino,
		   const struct stat *attr, int to_set)
{
	struct stat now;
	int err = ucm_node_attr(daemon, ino, &now);

	if (err || changes_nothing(&now, attr, to_set))
		return err;
	return ucm_node_type(ino) == UCM_NODE_SPACE
		       ? set_space(daemon, ino, attr, to_set)
		       : -EPERM;
}

static int set_plain(struct ucm_daemon *daemon, fuse_ino_t ino,
		     const struct stat *attr, int to_set)
{
	struct ucm_files_change change = {
		.mode_set = to_set & FUSE_SET_ATTR_MODE,
		.size_set = to_set & FUSE_SET_ATTR_SIZE,
		.times_set = to_set & SET_TIMES,
		.mode = attr->st_mode & 07777,
		.uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
		.gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1,
		.size = attr->st_size,
	};

	/* the owner of files/ is an option, if it is one */
	if (ino == UCM_FILES_ROOT_NODE &&
	    ((change.uid != (uid_t)-1 && daemon->options->has_uid) ||
	     (change.gid != (gid_t)-1 && daemon->options->has_gid)))
		return -EPERM;
	times_of(attr, to_set, change.times);
	return ucm_files_op_change(daemon, ino, &change);
}

static int set_attr(struct ucm_daemon *daemon, fuse_ino_t ino,
		    const struct stat *attr, int to_set)
{
	switch (ucm_node_type(ino)) {
	case UCM_NODE_BLOCK:
		return set_block(daemon, ino, attr, to_set);
	case UCM_NODE_FILE:
		return set_file(daemon, ino, attr, to_set);
	case UCM_NODE_PLAIN:
		return set_plain(daemon, ino, attr, to_set);
	case UCM_NODE_MANIFEST:
		/* open(O_TRUNC) truncates by itself */
		return to_set & FUSE_SET_ATTR_SIZE ? -EPERM : 0;
	default:
		return set_dir(daemon, ino, attr, to_set);
	}
}

void ucm_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		    int to_set, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_SETATTR);
	int err = set_attr(event.daemon, ino, attr, to_set);

	(void)fi;
	if (ucm_node_type(ino) == UCM_NODE_BLOCK)
		ucm_account_ref(&event, ucm_node_value(ino));
	if (err)
		ucm_account_reply(req, &event, err);
	else
		reply_attr(req, &event, ino);
}

void ucm_op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_STATFS);
	struct statvfs st;

	(void)ino;
	ucm_store_statvfs(event.daemon->set, &st);
	ucm_account_end(&event, 0);
	fuse_reply_statfs(req, &st);
}

/* ---- extended attributes of blocks ---- */

#define PREFIX "user.ucmfs."
#define VALUE_MAX 4400 /* a path, and more than any other value */

typedef int (*xattr_get)(struct ucm_daemon *daemon, ucm_ref ref,
			 const struct ucm_entry *entry, char *value);

static int get_tier(struct ucm_daemon *daemon, ucm_ref ref,
		    const struct ucm_entry *entry, char *value)
{
	(void)ref;
	return snprintf(value, VALUE_MAX, "%s",
			daemon->set->dirs.tier_of[entry->dir]->name);
}

static int get_path(struct ucm_daemon *daemon, ucm_ref ref,
		    const struct ucm_entry *entry, char *value)
{
	int err = ucm_store_path(daemon->set, entry, value, VALUE_MAX);

	(void)ref;
	return err ? err : (int)strlen(value);
}

static int get_crc(struct ucm_daemon *daemon, ucm_ref ref,
		   const struct ucm_entry *entry, char *value)
{
	struct ucm_block block;
	int err = ucm_store_header(daemon->set, ref, &block);

	(void)entry;
	if (err)
		return err;
	if (!(block.flags & UCM_BLOCK_HAS_CRC))
		return -ENODATA;
	return snprintf(value, VALUE_MAX, "%08x", block.payload_crc);
}

static int get_parent(struct ucm_daemon *daemon, ucm_ref ref,
		      const struct ucm_entry *entry, char *value)
{
	struct ucm_block block;
	int err = ucm_store_header(daemon->set, ref, &block);

	(void)entry;
	if (err)
		return err;
	if (!(block.flags & UCM_BLOCK_HAS_PARENT))
		return -ENODATA;
	ucm_id_format(&block.parent, value);
	return UCM_ID_HEX;
}

static int get_uses(struct ucm_daemon *daemon, ucm_ref ref,
		    const struct ucm_entry *entry, char *value)
{
	(void)daemon, (void)ref;
	return snprintf(value, VALUE_MAX, "%" PRIu32, entry->uses);
}

static int get_pinned(struct ucm_daemon *daemon, ucm_ref ref,
		      const struct ucm_entry *entry, char *value)
{
	(void)daemon, (void)ref;
	return snprintf(value, VALUE_MAX, "%d",
			!!(entry->flags & UCM_ENTRY_PINNED));
}

static const struct {
	const char *name;
	xattr_get get;
	bool root_only;
} xattrs[] = {
	{ PREFIX "tier", get_tier, false },
	{ PREFIX "path", get_path, true },
	{ PREFIX "crc32c", get_crc, false },
	{ PREFIX "parent", get_parent, false },
	{ PREFIX "uses", get_uses, false },
	{ PREFIX "pinned", get_pinned, false },
};
#define NUM_XATTRS (sizeof(xattrs) / sizeof(xattrs[0]))

static bool may_see(fuse_req_t req, size_t number)
{
	return !xattrs[number].root_only || fuse_req_ctx(req)->uid == 0;
}

static int find_xattr(const char *name)
{
	for (size_t i = 0; i < NUM_XATTRS; i++) {
		if (!strcmp(name, xattrs[i].name))
			return (int)i;
	}
	return -1;
}

/* Its number in .ucmfs/index, if it can be seen there. For the readers of the
 * index: not listed, and of no use to others. */
static int get_space_number(struct ucm_daemon *daemon, fuse_ino_t ino,
			    char *value)
{
	const struct ucm_space *space = ucm_node_space(daemon, ino);

	if (!space ||
	    !ucm_index_is_published(daemon->set->index, space->number))
		return -ENODATA;
	return snprintf(value, VALUE_MAX, "%u", space->number);
}

/* How large its blocks are, or are going to be: its writers may say so before
 * the first one is there. Not listed, either. */
#define BLOCK_BYTES PREFIX "block_bytes"

static int get_block_bytes(struct ucm_daemon *daemon, fuse_ino_t ino,
			   char *value)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);
	uint64_t bytes = space ? ucm_space_block_bytes(space) : 0;

	return bytes ? snprintf(value, VALUE_MAX, "%" PRIu64, bytes) : -ENODATA;
}

static int set_block_bytes(struct ucm_daemon *daemon, fuse_ino_t ino,
			   const char *value, size_t size)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);
	char text[24] = "";
	uint64_t bytes;

	if (!space)
		return -ENOENT;
	if (size >= sizeof(text))
		return -EINVAL;
	memcpy(text, value, size);
	if (ucm_parse_u64(text, &bytes))
		return -EINVAL;
	ucm_space_announce(space, bytes);
	return 0;
}

/* Of files, the tier and the path are known. */
static int get_plain_value(fuse_req_t req, fuse_ino_t ino, int number,
			   char *value)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_store *set = daemon->set;
	char path[PATH_MAX];
	unsigned dir;
	int err;

	if (xattrs[number].get != get_tier && xattrs[number].get != get_path)
		return -ENODATA;
	err = ucm_files_op_where(daemon, ino, &dir, path);
	if (err)
		return err;
	if (xattrs[number].get == get_tier)
		return snprintf(value, VALUE_MAX, "%s",
				set->dirs.tier_of[dir]->name);
	err = snprintf(value, VALUE_MAX, "%s/%s", set->dirs.at[dir]->path,
		       path);
	return err < VALUE_MAX ? err : -ERANGE;
}

/* Length of the value, or -errno. */
static int get_value(fuse_req_t req, fuse_ino_t ino, const char *name,
		     char *value)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_entry entry;
	int number = find_xattr(name);

	if (!strncmp(name, "system.", 7))
		return -EOPNOTSUPP;
	if (ucm_node_type(ino) == UCM_NODE_SPACE &&
	    !strcmp(name, PREFIX "index"))
		return get_space_number(daemon, ino, value);
	if (ucm_node_type(ino) == UCM_NODE_SPACE && !strcmp(name, BLOCK_BYTES))
		return get_block_bytes(daemon, ino, value);
	if (number < 0 || (ucm_node_type(ino) != UCM_NODE_BLOCK &&
			   ucm_node_type(ino) != UCM_NODE_PLAIN))
		return -ENODATA;
	if (!may_see(req, (size_t)number))
		return -EPERM;
	if (ucm_node_type(ino) == UCM_NODE_PLAIN)
		return get_plain_value(req, ino, number, value);
	if (!ucm_index_get(daemon->set->index, ucm_node_value(ino), &entry))
		return -ENOENT;
	return xattrs[number].get(daemon, ucm_node_value(ino), &entry, value);
}

/* size 0 asks how much room is needed. Ends the event. */
static void reply_value(fuse_req_t req, const struct ucm_account *event,
			const char *value, int len, size_t size)
{
	int err = len < 0 ? len : size && (size_t)len > size ? -ERANGE : 0;

	ucm_account_end(event, err);
	if (err)
		fuse_reply_err(req, -err);
	else if (size == 0)
		fuse_reply_xattr(req, (size_t)len);
	else
		fuse_reply_buf(req, value, (size_t)len);
}

void ucm_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     size_t size)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_GETXATTR);
	char value[VALUE_MAX];
	int len = get_value(req, ino, name, value);

	reply_value(req, &event, value, len, size);
}

void ucm_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_LISTXATTR);
	char list[VALUE_MAX], value[VALUE_MAX];
	int len = 0;

	for (size_t i = 0; i < NUM_XATTRS; i++) {
		size_t name_len = strlen(xattrs[i].name) + 1;

		if (!may_see(req, i) ||
		    get_value(req, ino, xattrs[i].name, value) < 0)
			continue;
		memcpy(list + len, xattrs[i].name, name_len);
		len += (int)name_len;
	}
	reply_value(req, &event, list, len, size);
}

static int set_pinned(struct ucm_daemon *daemon, fuse_ino_t ino,
		      const char *value, size_t size)
{
	if (size != 1 || (*value != '0' && *value != '1'))
		return -EINVAL;
	return ucm_store_pin(daemon->set, ucm_node_value(ino), *value == '1');
}

static int set_xattr(struct ucm_daemon *daemon, fuse_ino_t ino,
		     const char *name, const char *value, size_t size)
{
	if (ucm_node_type(ino) == UCM_NODE_SPACE && !strcmp(name, BLOCK_BYTES))
		return set_block_bytes(daemon, ino, value, size);
	if (ucm_node_type(ino) != UCM_NODE_BLOCK || find_xattr(name) < 0)
		return -EOPNOTSUPP;
	if (strcmp(name, PREFIX "pinned"))
		return -EPERM;
	return set_pinned(daemon, ino, value, size);
}

static void do_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
			const char *value, size_t size)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_SETXATTR);
	int err = set_xattr(event.daemon, ino, name, value, size);

	if (ucm_node_type(ino) == UCM_NODE_BLOCK)
		ucm_account_ref(&event, ucm_node_value(ino));
	ucm_account_reply(req, &event, err);
}

void ucm_op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     const char *value, size_t size, int flags)
{
	(void)flags;
	do_setxattr(req, ino, name, value, size);
}

void ucm_op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	do_setxattr(req, ino, name, "0", 1);
}
