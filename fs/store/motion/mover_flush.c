/* SPDX-License-Identifier: Apache-2.0 */
/* mover_flush.c - all that no lower tier has yet is copied there, and waited for. */
#include <config.h>

#include "fs/store/motion/mover_inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "fs/store/jobs.h"

#define FLUSH_NAMED 16u		/* blocks that are named in the log */
#define FLUSH_FAILURES 64u	/* in a row: the tiers below fail, not blocks */
#define FLUSH_BUSY_MS 30000	/* a block that stays busy for so long fails */
#define FLUSH_POLL_MS 10

struct flush {
	struct ucm_mover_walk walk;
	ucm_ref *refs; /* of blocks that are in no lower tier yet */
	size_t num, room;
	bool (*stop)(void *arg);
	void *arg;
	uint64_t named, in_a_row;
	int err; /* of the first that failed */
};

static bool walk_collect(struct ucm_mover_walk *walk, ucm_ref ref)
{
	struct flush *flush = (struct flush *)walk; /* its first member */

	if (flush->num == flush->room) {
		size_t room = flush->room ? flush->room * 2 : 1024;
		ucm_ref *refs = reallocarray(flush->refs, room, sizeof(*refs));

		if (!refs) {
			flush->err = -ENOMEM;
			return false;
		}
		flush->refs = refs;
		flush->room = room;
	}
	flush->refs[flush->num++] = ref;
	return true;
}

/* What is full refuses a block that is worth less than all it has: that is no
 * failure. */
static void flush_leave(struct flush *flush, const struct ucm_entry *entry,
			int err)
{
	struct ucm_store *store = flush->walk.movers->store;

	if (err == -ENOSPC) {
		ucm_count(&store->dirs.tier_of[entry->dir]->stats.flush_refused);
	} else {
		flush->in_a_row++;
		if (!flush->err)
			flush->err = err;
	}
	if (flush->named++ < FLUSH_NAMED)
		ucm_warning("block %s: not copied to a lower tier: %s",
			    ucm_hex(&entry->id).text,
			    err == -ENOSPC ? "no room for it" : strerror(-err));
}

/* -EBUSY: it is tried again; all else is over. */
static int flush_one(struct flush *flush, ucm_ref ref, bool last)
{
	struct ucm_movers *movers = flush->walk.movers;
	struct ucm_store *store = movers->store;
	struct ucm_move_terms move = {
		.open = true,
		.pace = ucm_mover_pace,
		.arg = movers,
	};
	struct ucm_entry entry;
	int err;

	if (!ucm_index_get(store->index, ref, &entry) ||
	    !ucm_jobs_is_unsaved(store, &entry))
		return 0;
	err = ucm_mover_save(store, ref, &entry, &move);
	if (!err)
		flush->in_a_row = 0;
	if (!err || err == -ENOENT || err == -EEXIST)
		return 0;
	if (err == -EBUSY && !last)
		return err;
	/* a mover may have copied it in the same moment */
	if (ucm_index_get(store->index, ref, &entry) &&
	    ucm_jobs_is_unsaved(store, &entry))
		flush_leave(flush, &entry, err);
	return 0;
}

static bool flush_is_over(const struct flush *flush)
{
	return flush->in_a_row >= FLUSH_FAILURES ||
	       atomic_load(&flush->walk.movers->store->life.stopping);
}

/* All that are left, once; the busy ones stay on the list. -EINTR. */
static int flush_round(struct flush *flush, bool last)
{
	size_t busy = 0, i;
	int err = 0;

	for (i = 0; i < flush->num && !flush_is_over(flush) && !err; i++) {
		if (flush->stop && flush->stop(flush->arg))
			err = -EINTR;
		else if (flush_one(flush, flush->refs[i], last))
			flush->refs[busy++] = flush->refs[i];
	}
	flush->num = busy;
	return err;
}

static int flush_all(struct flush *flush)
{
	int64_t began_ms = ucm_monotonic_ms();
	size_t was = flush->num;
	int err = flush_round(flush, false);

	while (!err && flush->num && !flush_is_over(flush)) {
		int64_t now = ucm_monotonic_ms();

		if (flush->num < was)
			began_ms = now;
		was = flush->num;
		ucm_mover_sleep(FLUSH_POLL_MS);
		err = flush_round(flush, now - began_ms > FLUSH_BUSY_MS);
	}
	return err;
}

int ucm_movers_flush(struct ucm_store *store, bool (*stop)(void *arg),
		     void *arg)
{
	struct flush flush = {
		.walk = {.movers = store->movers,
			 .wants = ucm_mover_wants_saved},
		.stop = stop,
		.arg = arg,
	};
	int err = 0;

	ucm_mover_walk(&flush.walk, walk_collect);
	if (!flush.err)
		err = flush_all(&flush);
	free(flush.refs);
	if (flush.named > FLUSH_NAMED)
		ucm_warning("%llu blocks were not copied to a lower tier",
			    (unsigned long long)flush.named);
	return err ? err : flush.err;
}
