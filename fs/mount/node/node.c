/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c - what kinds of nodes have in common: inode numbers, attributes.
 *
 * st_ino is not the node id: it must survive a remount, so it is made from the
 * block's hash (or the space's name). Bit 62 keeps those apart from the few
 * fixed numbers.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <string.h>

#define INO_HASHED (UINT64_C(1) << 62)

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t hash_text(const char *text)
{
	uint64_t hash = 0;

	for (; *text; text++)
		hash = mix(hash + (unsigned char)*text + 1);
	return hash;
}

static ino_t hashed_ino(uint64_t hash)
{
	return (hash & (INO_HASHED - 1)) | INO_HASHED;
}

/* By name, as numbers may differ at the next mount. */
static uint64_t space_hash(const struct ucm_space *space)
{
	return space ? hash_text(space->folder) : 0;
}

ino_t ucm_ino_of_space(const struct ucm_space *space)
{
	return hashed_ino(space_hash(space));
}

ino_t ucm_ino_in_space(const struct ucm_space *space, uint64_t number)
{
	return hashed_ino(mix(space_hash(space) + number));
}

ino_t ucm_ino_of_block(const struct ucm_space *space, const struct ucm_id *id)
{
	uint64_t low, high;

	memcpy(&low, id->bytes, sizeof(low));
	memcpy(&high, id->bytes + 8, sizeof(high));
	return hashed_ino(mix(low ^ mix(high ^ space_hash(space))));
}

struct ucm_space *ucm_node_space(struct ucm_daemon *daemon, fuse_ino_t ino)
{
	uint64_t value = ucm_node_value(ino);

	if (ucm_node_type(ino) == UCM_NODE_BUCKET)
		value >>= 8;
	return value < UCM_MAX_SPACES ? ucm_namespace_get(&daemon->store->names,
							  (unsigned)value)
				      : NULL;
}

double ucm_entry_timeout(const struct ucm_daemon *daemon)
{
	return daemon->options->entry_timeout_s;
}

int ucm_entry_fill(const struct ucm_node_ops *ops, struct ucm_daemon *daemon,
		   fuse_ino_t ino, struct fuse_entry_param *out)
{
	double timeout = ops->timeout ? ops->timeout(daemon) : 0;

	*out = (struct fuse_entry_param){
		.ino = ino,
		.generation = 1,
		.attr_timeout = timeout,
		.entry_timeout = timeout,
	};
	return ops->getattr(daemon, ino, &out->attr);
}

void ucm_attr_set_owner(struct stat *st, struct ucm_space *space)
{
	pthread_mutex_lock(&space->lock);
	st->st_uid = space->uid;
	st->st_gid = space->gid;
	if (space->is_private)
		st->st_mode &= ~(mode_t)077;
	pthread_mutex_unlock(&space->lock);
}

void ucm_attr_folder(struct ucm_daemon *daemon, ino_t ino, struct stat *out)
{
	*out = (struct stat){
		.st_ino = ino,
		.st_mode = S_IFDIR | 0755,
		.st_nlink = 1, /* 2 would say that there is no folder in it */
		.st_uid = daemon->store->names.spaces[0]->uid,
		.st_gid = daemon->store->names.spaces[0]->gid,
		.st_blksize = UCM_BLOCK_PAGE,
		.st_atim = daemon->started,
		.st_mtim = daemon->started,
		.st_ctim = daemon->started,
	};
}

void ucm_attr_file(struct ucm_daemon *daemon, uint16_t number, ino_t ino,
		   const struct stat *st, struct stat *out)
{
	struct ucm_space *space = daemon->store->names.spaces[number];

	*out = *st;
	out->st_ino = ino;
	out->st_mode = S_IFREG | 0644;
	out->st_nlink = 1;
	out->st_blksize = UCM_BLOCK_PAGE;
	ucm_attr_set_owner(out, space);
}

void ucm_attr_times(const struct stat *attr, int to_set,
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

bool ucm_attr_changes_nothing(const struct stat *now, const struct stat *attr,
			      int to_set)
{
	if (to_set & FUSE_SET_ATTR_MODE &&
	    (attr->st_mode & 07777) != (now->st_mode & 07777))
		return false;
	if (to_set & FUSE_SET_ATTR_UID && attr->st_uid != now->st_uid)
		return false;
	return !(to_set & FUSE_SET_ATTR_GID) || attr->st_gid == now->st_gid;
}

void ucm_narrow_to_quota(struct statvfs *st, uint64_t quota, uint64_t used)
{
	uint64_t unit = st->f_frsize ? st->f_frsize : 1;
	uint64_t left = quota > used ? (quota - used) / unit : 0;

	if (quota / unit < st->f_blocks)
		st->f_blocks = quota / unit;
	if (left < st->f_bfree)
		st->f_bfree = left;
	if (left < st->f_bavail)
		st->f_bavail = left;
}

bool ucm_name_is_staging(const char *name)
{
	size_t len = strlen(name);

	if (len > UCM_NAME_MAX || !strcmp(name, ".") || !strcmp(name, ".."))
		return false;
	return name[0] == '.' || (len > 4 && !strcmp(name + len - 4, ".tmp"));
}
