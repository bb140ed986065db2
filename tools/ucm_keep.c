/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_keep.c - ucm evict --keep; see ucm_keep.h.
 *
 * A block was used when its file was read or written last. Nobody counts uses
 * here, but file systems note when a file was read, O_DIRECT or not: with relatime
 * once a day, and at the first read after it was written; with noatime never, and
 * then it is the block that was saved first that goes (man page).
 */
#include <config.h>

#include "tools/ucm_keep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hashing/tree.h"
#include "tools/ucm_target.h"
#include "tools/ucm_list.h"
#include "tools/ucm_oldest.h"
#include "tools/ucm_text.h"
#include "tools/ucm_tool.h"

static struct {
	const struct ucm_common *common;
	uint64_t bytes; /* that may stay */
} order;

struct keep {
	struct ucm_media *media;
	struct ucm_progress progress;
	char **spaces;
	size_t num_spaces;
	uint32_t space; /* that is listed */
	struct ucm_aged *blocks;
	size_t num, room;
	size_t evicted, failed, pinned;
	uint64_t left;
	json_t *failures; /* JSON */
};

/* ---- which there are ---- */

static int64_t last_use_ns(const struct ucm_control_place *place)
{
	int64_t read_ns = (int64_t)place->atime_s * 1000000000;

	return read_ns > place->mtime_ns ? read_ns : place->mtime_ns;
}

static int add_block(void *arg, const struct ucm_media_block *block)
{
	struct keep *keep = arg;

	if (keep->num == keep->room) {
		size_t room = keep->room ? 2 * keep->room : 1024;
		struct ucm_aged *more =
			reallocarray(keep->blocks, room, sizeof(*more));

		if (!more)
			return ucm_tool_fail(-ENOMEM, "no memory");
		keep->blocks = more;
		keep->room = room;
	}
	keep->blocks[keep->num++] = (struct ucm_aged){
		.id = block->id,
		.parent = block->parent,
		.space = keep->space,
		.bytes = block->bytes,
		.used_ns = last_use_ns(&block->place),
		.stays = block->place.flags & UCM_PLACE_PINNED,
	};
	keep->pinned += keep->blocks[keep->num - 1].stays;
	return 0;
}

static int list_space(struct keep *keep)
{
	int err = 0;

	for (unsigned i = 0; i < UCM_BUCKETS && !err; i++) {
		err = ucm_media_each(keep->media, keep->spaces[keep->space], i,
				     add_block, keep);
		ucm_progress_tell(&keep->progress, keep->num, 0, 0);
	}
	return err;
}

static int list_blocks(struct keep *keep)
{
	int err = 0;

	for (keep->space = 0; keep->space < keep->num_spaces && !err;
	     keep->space++) {
		const char *name = keep->spaces[keep->space];

		if (!order.common->space || !strcmp(name, order.common->space))
			err = list_space(keep);
	}
	return err;
}

/* ---- removing them ---- */

static void tell_failure(struct keep *keep, const struct ucm_aged *block,
			 int err)
{
	char folder[UCM_TREE_FOLDER_MAX], hex[UCM_ID_HEX + 1];
	json_t *json;

	keep->failed++;
	ucm_id_format(&block->id, hex);
	ucm_tree_folder(keep->spaces[block->space], folder);
	if (!keep->failures) {
		ucm_tool_complain("%s/%s: %s", folder, hex, strerror(-err));
		return;
	}
	json = json_pack("{so ss ss}", "space", ucm_json_text(folder), "id",
			 hex, "error", strerror(-err));
	json_array_append_new(keep->failures, json);
}

static void remove_blocks(struct keep *keep)
{
	for (size_t i = 0; i < keep->num; i++) {
		const struct ucm_aged *block = &keep->blocks[i];
		int err;

		if (!block->goes)
			continue;
		err = ucm_media_remove(keep->media,
				       keep->spaces[block->space], &block->id);
		if (!err || err == -ENOENT) { /* by hand, meanwhile */
			keep->evicted++;
		} else {
			keep->left += block->bytes;
			tell_failure(keep, block, err);
		}
		ucm_progress_tell(&keep->progress, keep->evicted, 0, 0);
	}
}

/* ---- the command ---- */

static int tell(struct keep *keep)
{
	int status = keep->failed || keep->left > order.bytes ? UCM_EXIT_FAILED
							       : 0;

	if (order.common->json) {
		json_t *failures = keep->failures;

		keep->failures = NULL;
		return ucm_json_print(
			json_pack("{sI sI so sI}", "evicted",
				  (json_int_t)keep->evicted, "failed",
				  (json_int_t)keep->failed, "failures",
				  failures, "left", (json_int_t)keep->left),
			status);
	}
	if (keep->left > order.bytes && keep->pinned)
		ucm_tool_complain("pinned blocks: %zu", keep->pinned);
	printf("%zu block%s evicted", keep->evicted,
	       keep->evicted == 1 ? "" : "s");
	if (keep->failed)
		printf(", %zu not", keep->failed);
	printf("; %" PRIu64 " bytes left\n", keep->left);
	return ucm_tool_flush() | status;
}

static int make_room(struct keep *keep)
{
	if (list_blocks(keep))
		return UCM_EXIT_FAILED;
	if (ucm_oldest_sort(keep->blocks, keep->num))
		return ucm_tool_fail(UCM_EXIT_FAILED, "no memory");
	keep->left = ucm_oldest_choose(keep->blocks, keep->num, order.bytes);
	remove_blocks(keep);
	ucm_progress_clear(&keep->progress);
	return tell(keep);
}

static int run(struct ucm_target *target)
{
	struct keep keep = { .media = target->media };
	int status = UCM_EXIT_FAILED;

	ucm_progress_begin(&keep.progress);
	if (order.common->json)
		keep.failures = json_array();
	if (!ucm_spaces_read(target, &keep.spaces, &keep.num_spaces))
		status = make_room(&keep);
	ucm_progress_clear(&keep.progress);
	ucm_spaces_free(keep.spaces, keep.num_spaces);
	json_decref(keep.failures);
	free(keep.blocks);
	return status;
}

int ucm_keep(const struct ucm_common *common, uint64_t bytes)
{
	order.common = common;
	order.bytes = bytes;
	return ucm_target_run_tiers(common, ucm_media_open_to_remove, run);
}
