/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_ioctl.c - calls on .ucmfs/control: who may make them, and what they
 * bring and take. What they do is in batch.c.
 *
 * The kernel has copied what the command's number says: in and out have the
 * size of the command's struct, which is checked all the same.
 */
#include <config.h>

#include "fs/face.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "fs/batch.h"

_Static_assert(sizeof(struct ucm_control_batch) < 16384 &&
		       sizeof(struct ucm_control_locate) < 16384 &&
		       sizeof(struct ucm_control_path) < 16384,
	       "the size in a command has 14 bits");

/* Of which fields are used; see struct ucm_control_head. */
static int check_head(const struct ucm_control_head *head, uint32_t most)
{
	if (head->version != UCM_CONTROL_VERSION ||
	    head->flags & ~UCM_LOCATE_CRC ||
	    head->num > most || head->lease_ms > UCM_CONTROL_LEASE_MAX_MS ||
	    !memchr(head->space, 0, sizeof(head->space)))
		return -EINVAL;
	return 0;
}

static bool is_owner(fuse_req_t req)
{
	uid_t uid = fuse_req_ctx(req)->uid;

	return uid == 0 || uid == geteuid();
}

/* The space, if the caller may read its blocks. */
static int space_of(fuse_req_t req, const struct ucm_control_head *head,
		    struct ucm_space **out)
{
	struct ucm_face *face = ucm_face_of(req);
	struct ucm_space *space =
		*head->space ? ucm_namespace_find(&face->set->names,
						  head->space)
			     : ucm_namespace_get(&face->set->names, 0);
	bool hidden;

	if (!space)
		return -ENOENT;
	pthread_mutex_lock(&space->lock);
	hidden = space->is_private && space->uid != fuse_req_ctx(req)->uid;
	pthread_mutex_unlock(&space->lock);
	if (hidden && !is_owner(req))
		return -EACCES;
	*out = space;
	return 0;
}

static int run_batch(fuse_req_t req, enum ucm_batch_op op,
		     struct ucm_control_batch *batch)
{
	struct ucm_face *face = ucm_face_of(req);
	struct ucm_space *space;
	int err = check_head(&batch->head, UCM_CONTROL_IDS);

	if (!err && op != UCM_BATCH_LOOKUP && op != UCM_BATCH_TOUCH &&
	    !is_owner(req))
		err = -EPERM;
	if (!err)
		err = space_of(req, &batch->head, &space);
	if (err)
		return err;
	/* a result is smaller than an id and never overtakes it */
	for (uint32_t i = 0; i < batch->head.num; i++) {
		struct ucm_key key = { .id = batch->u.ids[i],
				       .space = space->number };
		int result = ucm_batch_one(face->set, &face->leases, op, &key);

		if (op == UCM_BATCH_EVICT && !result)
			ucm_notify_loss(face, &key);
		batch->u.results[i] = result;
	}
	return 0;
}

static int run_locate(fuse_req_t req, struct ucm_control_locate *locate)
{
	struct ucm_face *face = ucm_face_of(req);
	_cleanup_free_ struct ucm_id *ids = NULL;
	struct ucm_space *space;
	int err = check_head(&locate->head, UCM_CONTROL_PLACES);

	if (!err)
		err = space_of(req, &locate->head, &space);
	if (err)
		return err;
	ids = malloc(sizeof(locate->u.ids));
	if (!ids)
		return -ENOMEM;
	memcpy(ids, locate->u.ids, sizeof(locate->u.ids));
	for (uint32_t i = 0; i < locate->head.num; i++) {
		struct ucm_key key = { .id = ids[i], .space = space->number };

		ucm_batch_locate(face->set, &face->leases, &key,
				 locate->head.lease_ms, locate->head.flags,
				 &locate->u.places[i]);
	}
	return 0;
}

static int run_path(fuse_req_t req, struct ucm_control_path *path)
{
	struct ucm_face *face = ucm_face_of(req);
	struct ucm_space *space;
	struct ucm_entry entry;
	struct ucm_key key;
	ucm_ref ref;
	int err = check_head(&path->head, 1);

	if (!err && !is_owner(req))
		err = -EPERM;
	if (!err)
		err = space_of(req, &path->head, &space);
	if (err)
		return err;
	key = (struct ucm_key){ .id = path->u.id, .space = space->number };
	err = ucm_tierset_find(face->set, &key, &entry, &ref);
	if (!err)
		err = ucm_tierset_path(face->set, &entry, path->u.path,
				       sizeof(path->u.path));
	return err;
}

static int run_statistics(fuse_req_t req, struct ucm_control_statistics *stats)
{
	if (stats->version != UCM_CONTROL_VERSION)
		return -EINVAL;
	ucm_batch_statistics(ucm_face_of(req)->set, stats);
	return 0;
}

static int run_plain(fuse_req_t req, unsigned cmd)
{
	struct ucm_tierset *set = ucm_face_of(req)->set;

	if (!is_owner(req))
		return -EPERM;
	switch (cmd) {
	case UCM_CONTROL_FLUSH:
		return ucm_batch_flush(set);
	case UCM_CONTROL_RESCAN:
		return ucm_batch_rescan(set);
	default:
		return ucm_upkeep_checkpoint(set);
	}
}

static int dispatch(fuse_req_t req, unsigned cmd, void *data)
{
	switch (cmd) {
	case UCM_CONTROL_LOOKUP:
		return run_batch(req, UCM_BATCH_LOOKUP, data);
	case UCM_CONTROL_TOUCH:
		return run_batch(req, UCM_BATCH_TOUCH, data);
	case UCM_CONTROL_PIN:
		return run_batch(req, UCM_BATCH_PIN, data);
	case UCM_CONTROL_UNPIN:
		return run_batch(req, UCM_BATCH_UNPIN, data);
	case UCM_CONTROL_EVICT:
		return run_batch(req, UCM_BATCH_EVICT, data);
	case UCM_CONTROL_LOCATE:
		return run_locate(req, data);
	case UCM_CONTROL_PATH:
		return run_path(req, data);
	case UCM_CONTROL_STATISTICS:
		return run_statistics(req, data);
	case UCM_CONTROL_WARM:
		return is_owner(req) ? -EOPNOTSUPP : -EPERM;
	case UCM_CONTROL_FLUSH:
	case UCM_CONTROL_RESCAN:
	case UCM_CONTROL_CHECKPOINT:
		return run_plain(req, cmd);
	default:
		return -ENOTTY;
	}
}

void ucm_op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
		  struct fuse_file_info *fi, unsigned flags,
		  const void *in_buf, size_t in_size, size_t out_size)
{
	_cleanup_free_ void *data = NULL;
	size_t size = _IOC_SIZE(cmd);
	int err;

	(void)arg;
	(void)fi;
	if (ino != ucm_control_find("control") || (flags & FUSE_IOCTL_DIR)) {
		fuse_reply_err(req, ENOTTY);
		return;
	}
	if (in_size != size || out_size != size) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	if (size) {
		data = malloc(size);
		if (!data) {
			fuse_reply_err(req, ENOMEM);
			return;
		}
		memcpy(data, in_buf, size);
	}
	err = dispatch(req, cmd, data);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_ioctl(req, 0, data, size);
}
