/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - copies that are synced together; see batch.h. */
#include <config.h>

#include "fs/store/motion/batch.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "fs/store/find/find.h"
#include "fs/store/motion/motion.h"

void ucm_batch_init(struct ucm_batch *batch, struct ucm_store *store,
		    unsigned from, bool durable)
{
	batch->store = store;
	batch->from = from;
	batch->durable = durable;
	batch->num = 0;
	batch->bytes = 0;
}

bool ucm_batch_has(const struct ucm_batch *batch, ucm_ref ref)
{
	for (unsigned i = 0; i < batch->num; i++) {
		if (batch->items[i].open.ref == ref)
			return true;
	}
	return false;
}

int ucm_batch_begin_copy(struct ucm_batch *batch, ucm_ref ref)
{
	struct ucm_batch_item *item = &batch->items[batch->num];

	assert(!ucm_batch_is_full(batch));
	*item = (struct ucm_batch_item){.to = 0};
	return ucm_hold_open(batch->store, &item->open, ref, false);
}

static int batch_find_copy(struct ucm_batch *batch, struct ucm_batch_item *item)
{
	struct ucm_entry entry;

	if (!ucm_index_get(batch->store->index, item->open.ref, &entry) ||
	    !entry.copy || !ucm_entry_has_place(&entry, batch->from))
		return -ENOENT;
	item->to = ucm_entry_other_place(&entry, batch->from);
	item->size = entry.size;
	batch->bytes += (uint64_t)entry.blocks * 512;
	return 0;
}

int ucm_batch_end_copy(struct ucm_batch *batch, int err)
{
	struct ucm_batch_item *item = &batch->items[batch->num];

	if (!err || err == -EEXIST)
		err = batch_find_copy(batch, item);
	if (err)
		ucm_hold_end(batch->store, &item->open);
	else
		batch->num++;
	return err;
}

static void batch_count(struct ucm_batch *batch,
			const struct ucm_batch_item *item)
{
	struct ucm_tier *from = batch->store->dirs.tier_of[batch->from];

	/* the tiers lie in memory fast to slow */
	if (batch->store->dirs.tier_of[item->to] <= from)
		return;
	ucm_count(&from->stats.demoted);
	ucm_count_more(&from->stats.demoted_bytes, item->size);
}

/* dir: the place that goes. */
static bool batch_leave(struct ucm_batch *batch, struct ucm_batch_item *item,
			unsigned dir, uint64_t *freed)
{
	struct ucm_store *store = batch->store;
	ucm_ref ref = item->open.ref;
	uint64_t one = 0;
	int err;

	ucm_hold_end(store, &item->open);
	err = ucm_store_drop_place(store, ref, dir, &one);
	if (err)
		ucm_debug(MOVE, 2, "%s: a block stays: %s",
			  store->dirs.at[dir]->path, strerror(-err));
	if (err || dir != batch->from)
		return false;
	batch_count(batch, item);
	if (freed)
		*freed += one;
	return true;
}

static unsigned batch_settle_in(struct ucm_batch *batch, unsigned to,
				uint64_t *freed)
{
	int err = batch->durable ? ucm_store_sync_dir(batch->store, to) : 0;
	unsigned left = 0;

	for (unsigned i = 0; i < batch->num; i++) {
		if (batch->items[i].to == to)
			left += batch_leave(batch, &batch->items[i],
					    err ? to : batch->from, freed);
	}
	return left;
}

unsigned ucm_batch_settle(struct ucm_batch *batch, uint64_t *freed)
{
	bool settled[UCM_MAX_DIRS] = {false};
	unsigned left = 0;

	for (unsigned i = 0; i < batch->num; i++) {
		unsigned to = batch->items[i].to;

		if (!settled[to])
			left += batch_settle_in(batch, to, freed);
		settled[to] = true;
	}
	batch->num = 0;
	batch->bytes = 0;
	return left;
}
