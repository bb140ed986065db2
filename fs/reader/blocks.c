/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - the calls of <ucm/blocks.h>: those of .ucmfs/control, in batches.
 *
 * Who may make a call, and what becomes of a block, is the daemon's to say.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ucm/blocks.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "hashing/tree.h"

struct ucm_blocks {
	int root; /* the mount point */
	int control;
};

/* What a mount without its daemon says, and what is no mount. */
static int error_of(int number)
{
	return number == ENOTDIR ? -ENOENT : ucm_mount_error(number);
}

int ucm_blocks_open(const char *mount, struct ucm_blocks **out)
{
	struct ucm_blocks *blocks = calloc(1, sizeof(*blocks));
	int err;

	if (!blocks)
		return -ENOMEM;
	blocks->control = -1;
	blocks->root = open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (blocks->root >= 0)
		blocks->control = openat(blocks->root, UCM_TREE_CONTROL,
					 O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (blocks->control < 0) {
		err = error_of(errno);
		ucm_blocks_close(blocks);
		return err;
	}
	*out = blocks;
	return 0;
}

void ucm_blocks_close(struct ucm_blocks *blocks)
{
	if (!blocks)
		return;
	if (blocks->control >= 0)
		close(blocks->control);
	if (blocks->root >= 0)
		close(blocks->root);
	free(blocks);
}

/* ---- calls ---- */

static int blocks_call(const struct ucm_blocks *blocks, unsigned long number,
		       void *data)
{
	if (!ioctl(blocks->control, number, data))
		return 0;
	return ucm_mount_error(errno);
}

/* A name that is cut would be another space's. */
static int fill_head(struct ucm_control_head *head, const char *space,
		     size_t num)
{
	if (space && strlen(space) >= sizeof(head->space))
		return -ENOENT;
	*head = (struct ucm_control_head){
		.version = UCM_CONTROL_VERSION,
		.num = (uint32_t)num,
	};
	snprintf(head->space, sizeof(head->space), "%s", space ? space : "");
	return 0;
}

static size_t min(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* flags, lease_ms: of UCM_CONTROL_LEASE. */
static int run_batches_for(const struct ucm_blocks *blocks,
			   unsigned long number, const char *space,
			   const struct ucm_id *ids, size_t num, uint32_t flags,
			   uint32_t lease_ms, int32_t *results)
{
	_cleanup_free_ struct ucm_control_batch *batch =
		malloc(sizeof(*batch));
	size_t part, at = 0;
	int err;

	if (!batch)
		return -ENOMEM;
	do { /* once at least: whoever may not ask hears of it */
		part = min(num - at, UCM_CONTROL_IDS);
		err = fill_head(&batch->head, space, part);
		batch->head.flags = flags;
		batch->head.lease_ms = lease_ms;
		if (!err && part)
			memcpy(batch->u.ids, ids + at, part * sizeof(*ids));
		if (!err)
			err = blocks_call(blocks, number, batch);
		if (!err && part)
			memcpy(results + at, batch->u.results,
			       part * sizeof(*results));
		at += part;
	} while (!err && at < num);
	return err;
}

static int run_batches(const struct ucm_blocks *blocks, unsigned long number,
		       const char *space, const struct ucm_id *ids, size_t num,
		       int32_t *results)
{
	return run_batches_for(blocks, number, space, ids, num, 0, 0, results);
}

int ucm_blocks_lookup(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, int32_t *results)
{
	return run_batches(blocks, UCM_CONTROL_LOOKUP, space, ids, num,
			   results);
}

int ucm_blocks_touch(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, int32_t *results)
{
	return run_batches(blocks, UCM_CONTROL_TOUCH, space, ids, num, results);
}

int ucm_blocks_pin(struct ucm_blocks *blocks, const char *space,
		   const struct ucm_id *ids, size_t num, int32_t *results)
{
	return run_batches(blocks, UCM_CONTROL_PIN, space, ids, num, results);
}

int ucm_blocks_unpin(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, int32_t *results)
{
	return run_batches(blocks, UCM_CONTROL_UNPIN, space, ids, num, results);
}

int ucm_blocks_check(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, int32_t *results)
{
	return run_batches(blocks, UCM_CONTROL_CHECK, space, ids, num, results);
}

int ucm_blocks_evict(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, int32_t *results)
{
	return run_batches(blocks, UCM_CONTROL_EVICT, space, ids, num, results);
}

int ucm_blocks_warm(struct ucm_blocks *blocks, const char *space,
		    const struct ucm_id *ids, size_t num, int32_t *results)
{
	return run_batches(blocks, UCM_CONTROL_WARM, space, ids, num, results);
}

int ucm_blocks_lease(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, uint32_t flags,
		     uint32_t lease_ms, int32_t *results)
{
	return run_batches_for(blocks, UCM_CONTROL_LEASE, space, ids, num,
			       flags, lease_ms, results);
}

int ucm_blocks_offer(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, const struct ucm_id *parents,
		     size_t num, uint64_t bytes, int32_t *results)
{
	_cleanup_free_ struct ucm_control_offer *offer =
		calloc(1, sizeof(*offer));
	size_t part, at = 0;
	int err;

	if (!offer)
		return -ENOMEM;
	do {
		part = min(num - at, UCM_CONTROL_OFFERS);
		err = fill_head(&offer->head, space, part);
		offer->bytes = bytes;
		for (size_t i = 0; i < part; i++) {
			offer->u.blocks[i] = (struct ucm_control_offered){
				.id = ids[at + i],
			};
			if (parents)
				offer->u.blocks[i].parent = parents[at + i];
		}
		if (!err)
			err = blocks_call(blocks, UCM_CONTROL_OFFER, offer);
		if (!err && part)
			memcpy(results + at, offer->u.results,
			       part * sizeof(*results));
		at += part;
	} while (!err && at < num);
	return err;
}

int ucm_blocks_remove(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, int32_t *results)
{
	char folder[UCM_TREE_FOLDER_MAX], path[UCM_TREE_PATH_MAX];

	if (space && *space && !ucm_tree_space_valid(space))
		return -ENOENT;
	ucm_tree_folder(space, folder);
	for (size_t i = 0; i < num; i++) {
		ucm_tree_block_path(folder, &ids[i], path);
		results[i] = 0;
		if (unlinkat(blocks->root, path, 0))
			results[i] = ucm_mount_error(errno);
		if (results[i] == -ENOTCONN)
			return -ENOTCONN;
	}
	return 0;
}

int ucm_blocks_locate(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, uint32_t flags,
		      uint32_t lease_ms, struct ucm_control_place *places)
{
	_cleanup_free_ struct ucm_control_locate *locate =
		malloc(sizeof(*locate));
	size_t part, at = 0;
	int err;

	if (!locate)
		return -ENOMEM;
	do {
		part = min(num - at, UCM_CONTROL_PLACES);
		err = fill_head(&locate->head, space, part);
		locate->head.flags = flags;
		locate->head.lease_ms = lease_ms;
		if (!err && part)
			memcpy(locate->u.ids, ids + at, part * sizeof(*ids));
		if (!err)
			err = blocks_call(blocks, UCM_CONTROL_LOCATE, locate);
		if (!err && part)
			memcpy(places + at, locate->u.places,
			       part * sizeof(*places));
		at += part;
	} while (!err && at < num);
	return err;
}

int ucm_blocks_path(struct ucm_blocks *blocks, const char *space,
		    const struct ucm_id *id, char path[UCM_BLOCKS_PATH_MAX])
{
	struct ucm_control_path data;
	int err = fill_head(&data.head, space, 1);

	if (err)
		return err;
	data.u.id = *id;
	err = blocks_call(blocks, UCM_CONTROL_PATH, &data);
	if (!err)
		memcpy(path, data.u.path, sizeof(data.u.path));
	return err;
}

int ucm_blocks_statistics(struct ucm_blocks *blocks,
			  struct ucm_control_statistics *out)
{
	struct ucm_control_statistics stats = { .version =
							UCM_CONTROL_VERSION };
	int err = blocks_call(blocks, UCM_CONTROL_STATISTICS, &stats);

	if (!err)
		*out = stats;
	return err;
}

/* ---- of the whole mount ---- */

int ucm_blocks_flush(struct ucm_blocks *blocks)
{
	return blocks_call(blocks, UCM_CONTROL_FLUSH, NULL);
}

int ucm_blocks_rescan(struct ucm_blocks *blocks)
{
	return blocks_call(blocks, UCM_CONTROL_RESCAN, NULL);
}

int ucm_blocks_checkpoint(struct ucm_blocks *blocks)
{
	return blocks_call(blocks, UCM_CONTROL_CHECKPOINT, NULL);
}

int ucm_blocks_drain(struct ucm_blocks *blocks, const char *directory,
		     uint32_t what, struct ucm_control_drain *out)
{
	_cleanup_free_ struct ucm_control_drain *drain =
		calloc(1, sizeof(*drain));
	int err;

	if (!drain)
		return -ENOMEM;
	if (strlen(directory) >= sizeof(drain->path))
		return -ENOENT;
	drain->version = UCM_CONTROL_VERSION;
	drain->what = what;
	memcpy(drain->path, directory, strlen(directory));
	err = blocks_call(blocks, UCM_CONTROL_DRAIN, drain);
	if (!err && out)
		*out = *drain;
	return err;
}
