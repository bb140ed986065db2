/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover.c - the threads that move blocks; see mover.h.
 *
 * What there is to do, in the order in which a mover looks:
 *
 *   1. spaces over their quotas, and directories over their high mark: what is
 *      worth least leaves them, down to the low mark (quota_evict.c, evict.c);
 *   2. new blocks of tiers with write=back: a copy to the tier below;
 *   3. blocks that are used often: a copy to the fastest tier, which is where
 *      they are read from then;
 *   4. directories that are being drained; and, once, blocks that lie in another
 *      directory than placement says, because one was added.
 *
 * 2 and 3 are asked for in wishes.h.
 *
 * Each piece of work is one block. Between two, and while bytes are copied, a
 * mover gives way: by the rate that is configured, and by being of the idle I/O
 * class, except where writers need the room that it makes.
 *
 * One mover works on a directory at a time (busy).
 */
#include <config.h>

#include "fs/store/mover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/process.h"
#include "fs/store/batch.h"
#include "fs/store/endurance.h"
#include "fs/store/evict.h"
#include "fs/store/inside.h"
#include "fs/store/move.h"
#include "fs/store/pressure.h"
#include "fs/store/quota.h"
#include "fs/store/wishes.h"

#define TICK_MS 1000
#define BATCH_BYTES (UINT64_C(64) << 20) /* freed before it looks again */

struct ucm_movers {
	struct ucm_store *store;
	struct ucm_wishes *wishes;
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t ended;
	bool rebalanced;
	bool busy[UCM_MAX_DIRS];
	int64_t drained_ms[UCM_MAX_DIRS]; /* a drain moved nothing then */
	pthread_t threads[64];
	unsigned num_threads, num_left;
	int64_t learnt_ms;
	_Atomic int64_t paid_ms; /* until then the rate is used up */
};

/* ---- how fast ---- */

static void sleep_ms(int64_t ms)
{
	const struct timespec time = {
		.tv_sec = ms / 1000,
		.tv_nsec = ms % 1000 * 1000000,
	};

	nanosleep(&time, NULL);
}

/* Not of one that does not answer, for which it would wait. */
static void mover_beat(struct ucm_movers *movers)
{
	struct ucm_dirs *dirs = &movers->store->dirs;

	for (unsigned dir = 0; dir < dirs->num; dir++) {
		struct ucm_medium *medium = dirs->at[dir];

		if (medium->ops->beat && !ucm_wait_is_vain(dirs, dir))
			medium->ops->beat(medium);
	}
}

/* What is copied is paid for in time; who comes before that is over waits. */
static void mover_pace(void *arg, uint64_t bytes)
{
	struct ucm_movers *movers = arg;
	uint64_t rate = movers->store->config->move_rate;
	int64_t cost, until, now;

	mover_beat(movers);
	if (!rate)
		return;
	cost = (int64_t)(bytes * 1000 / rate);
	now = ucm_monotonic_ms();
	until = atomic_load(&movers->paid_ms);
	while (!atomic_compare_exchange_weak(
		&movers->paid_ms, &until, (until > now ? until : now) + cost))
		;
	until = atomic_load(&movers->paid_ms);
	while (!atomic_load(&movers->store->stopping) &&
	       (now = ucm_monotonic_ms()) < until) {
		mover_beat(movers);
		sleep_ms(until - now < 100 ? until - now : 100);
	}
}

/* What this thread does now, nobody waits for (idle), or somebody does. */
static void mover_give_way(bool idle)
{
	static _Thread_local int is_idle = -1;

	if (is_idle != idle)
		ucm_process_give_way(idle);
	is_idle = idle;
}

/* ---- the work ---- */

static bool mover_enter_dir(struct ucm_movers *movers, unsigned dir)
{
	bool entered;

	pthread_mutex_lock(&movers->lock);
	entered = !movers->busy[dir];
	movers->busy[dir] = true;
	pthread_mutex_unlock(&movers->lock);
	return entered;
}

static void mover_leave_dir(struct ucm_movers *movers, unsigned dir)
{
	pthread_mutex_lock(&movers->lock);
	movers->busy[dir] = false;
	pthread_mutex_unlock(&movers->lock);
}

static bool mover_relieve(struct ucm_movers *movers, unsigned dir)
{
	struct ucm_store *store = movers->store;
	const struct ucm_move pace = {.pace = mover_pace, .arg = movers};
	uint64_t excess, freed = 0;

	/* one that does not answer cannot say how full it is */
	if (ucm_wait_is_vain(&store->dirs, dir))
		return false;
	/* in any case: others see what it says */
	excess = ucm_pressure(store, dir);
	if (!store->value.policy)
		return false;
	if (!excess)
		ucm_pressure_ease(store, dir, 0);
	if (!excess || !mover_enter_dir(movers, dir))
		return false;
	ucm_evict_bytes(store, dir, excess < BATCH_BYTES ? excess : BATCH_BYTES,
			UCM_EVICT_MOVING, &pace, &freed);
	/* below the high mark it goes on, to the low one */
	ucm_pressure_ease(store, dir, freed);
	mover_leave_dir(movers, dir);
	return freed;
}

static bool mover_relieve_all(struct ucm_movers *movers)
{
	bool any = false;

	/* slow tiers first: what leaves a fast one needs their room */
	for (unsigned dir = movers->store->dirs.num; dir-- > 0;)
		any |= mover_relieve(movers, dir);
	return any;
}

/* What might have been refused need not be below; a person's blocks are to be. */
static bool mover_was_offered(struct ucm_store *store,
			      const struct ucm_entry *entry)
{
	const struct ucm_key key = {.id = entry->id, .space = entry->space};

	return ucm_offers_took(store, &key);
}

/* A copy of a new block in the next tier below that takes it. */
static int mover_save(struct ucm_store *store, ucm_ref ref,
		      const struct ucm_entry *entry, struct ucm_move *move)
{
	struct ucm_tier *from = store->dirs.tier_of[entry->dir];
	int err;

	move->durable = store->config->durability != UCM_DURABILITY_NONE;
	err = ucm_evict_and_copy_down(store, ref, from, move);
	if (!err)
		ucm_count(&from->stats.written_below);
	return err;
}

static bool mover_save_one(struct ucm_movers *movers)
{
	struct ucm_store *store = movers->store;
	struct ucm_move move = {.pace = mover_pace, .arg = movers};
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	if (!ucm_wishes_take(movers->wishes, &movers->wishes->down, &ref))
		return false;
	if (!ucm_index_get(store->index, ref, &entry) ||
	    !ucm_wishes_is_unsaved(store, &entry))
		return true;
	move.may_refuse = mover_was_offered(store, &entry);
	err = mover_save(store, ref, &entry, &move);
	if (err == -ENOSPC && move.may_refuse) {
		ucm_store_withhold(store, ref);
		return true;
	}
	if (err && err != -ENOENT && err != -EEXIST) {
		ucm_debug(MOVE, 2, "block %s: not below yet: %s",
			  ucm_hex(&entry.id).text, strerror(-err));
		ucm_wishes_lack(movers->wishes); /* it is tried again */
		return false;
	}
	return true;
}

/* Who asks for a block knows better than the policy; a use is a guess, and one
 * that would be the next to leave is not copied. */
static int mover_promote(struct ucm_movers *movers, const struct ucm_entry *entry,
			 ucm_ref ref, bool asked)
{
	struct ucm_store *store = movers->store;
	struct ucm_move move = {
		.to = ucm_wishes_tier_above(store, entry->dir),
		.first = true,
		.may_refuse = !asked,
		.pace = mover_pace,
		.arg = movers,
	};
	int err;

	if (!move.to)
		return -EEXIST;
	if (!asked && !ucm_evict_would_stay(store, entry, move.to)) {
		ucm_count(&move.to->stats.promotions_refused);
		return -ENOSPC;
	}
	err = ucm_evict_and_copy(store, ref, &move);
	if (err)
		return err;
	ucm_count(&move.to->stats.promoted);
	ucm_count_more(&move.to->stats.promoted_bytes, entry->size);
	return 0;
}

static bool mover_promote_one(struct ucm_movers *movers)
{
	struct ucm_wishes *wishes = movers->wishes;
	struct ucm_entry entry;
	bool asked;
	ucm_ref ref;
	int err;

	asked = ucm_wishes_take(wishes, &wishes->warm, &ref);
	if (!asked && !ucm_wishes_take(wishes, &wishes->up, &ref))
		return false;
	if (!ucm_index_get(movers->store->index, ref, &entry))
		return true;
	err = mover_promote(movers, &entry, ref, asked);
	if (err) /* whoever uses it asks again */
		ucm_debug(MOVE, 2, "block %s: not promoted: %s",
			  ucm_hex(&entry.id).text, strerror(-err));
	return true;
}

/* ---- walks of the index ---- */

struct walk {
	struct ucm_movers *movers;
	bool (*wants)(const struct walk *walk, const struct ucm_entry *entry);
	unsigned dir;
	unsigned num;
	ucm_ref refs[UCM_INDEX_PIECE];
};

static bool walk_note(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct walk *walk = arg;

	if (!(entry->flags & UCM_ENTRY_LEAVING) && walk->wants(walk, entry))
		walk->refs[walk->num++] = ref;
	return false;
}

/* fn on all entries that are wanted, while it returns true. */
static bool walk_all(struct walk *walk, bool (*fn)(struct walk *walk,
						   ucm_ref ref))
{
	struct ucm_store *store = walk->movers->store;

	for (unsigned shard = 0; shard < UCM_BUCKETS; shard++) {
		uint32_t cursor = 0;
		bool more;

		do {
			walk->num = 0;
			more = ucm_index_walk(store->index, shard, &cursor,
					      walk_note, walk);
			for (unsigned i = 0; i < walk->num; i++) {
				if (atomic_load(&store->stopping) ||
				    !fn(walk, walk->refs[i]))
					return false;
			}
		} while (more);
	}
	return true;
}

static bool wants_saved(const struct walk *walk, const struct ucm_entry *entry)
{
	return ucm_wishes_is_unsaved(walk->movers->store, entry);
}

static bool wants_unsaved(const struct walk *walk,
			  const struct ucm_entry *entry)
{
	return !(entry->flags & UCM_ENTRY_WRITABLE) && wants_saved(walk, entry);
}

static bool walk_queue(struct walk *walk, ucm_ref ref)
{
	return ucm_wishes_put_down(walk->movers->wishes, ref);
}

/* At the start, and when the queue was full, or a copy has failed. */
static void mover_find_unsaved(struct ucm_movers *movers)
{
	struct walk walk = {.movers = movers, .wants = wants_unsaved};
	struct ucm_wishes *wishes = movers->wishes;
	uint64_t blocks, bytes;
	bool lacks;

	ucm_wishes_count_unsaved(movers->store, &blocks, &bytes);
	pthread_mutex_lock(&wishes->lock);
	lacks = wishes->down_lacks && !wishes->down.num;
	if (lacks)
		wishes->down_lacks = false;
	pthread_mutex_unlock(&wishes->lock);
	if (lacks && blocks)
		walk_all(&walk, walk_queue);
}

static bool wants_dir(const struct walk *walk, const struct ucm_entry *entry)
{
	return ucm_entry_has_place(entry, walk->dir);
}

struct drain {
	struct walk walk;
	struct ucm_batch batch;
	uint64_t moved, stays; /* blocks; stays: that have no room elsewhere */
};

/* To the same tier, the next one below, or the next one above. */
static int drain_copy(struct ucm_movers *movers, ucm_ref ref,
		      struct ucm_tier *home)
{
	struct ucm_store *store = movers->store;
	struct ucm_move move = {
		.to = home,
		.soon = true,
		.pace = mover_pace,
		.arg = movers,
	};
	int err = ucm_evict_copy_beside(store, ref, &move);

	for (struct ucm_tier *tier = home;
	     err == -ENOSPC && (tier = ucm_tier_below(store, tier));) {
		move.to = tier;
		err = ucm_evict_copy_beside(store, ref, &move);
	}
	for (unsigned i = (unsigned)(home - store->dirs.tiers);
	     err == -ENOSPC && i-- > 0;) {
		move.to = &store->dirs.tiers[i];
		err = ucm_evict_copy_beside(store, ref, &move);
	}
	return err;
}

static void drain_settle(struct drain *drain)
{
	drain->moved += ucm_batch_settle(&drain->batch, NULL);
}

/* What has been copied takes room twice until it is settled. */
static int drain_one(struct drain *drain, ucm_ref ref,
		     const struct ucm_entry *entry)
{
	struct ucm_movers *movers = drain->walk.movers;
	struct ucm_tier *home = movers->store->dirs.tier_of[drain->walk.dir];
	int err;

	do {
		if (ucm_batch_is_full(&drain->batch))
			drain_settle(drain);
		err = ucm_batch_begin_copy(&drain->batch, ref);
		if (err)
			return err;
		/* one that has another place is to be on disk there, too */
		err = entry->copy ? -EEXIST
				  : drain_copy(movers, ref, home);
		err = ucm_batch_end_copy(&drain->batch, err);
		if (err != -ENOSPC || !drain->batch.num)
			return err;
		drain_settle(drain);
	} while (true);
}

static bool walk_drain(struct walk *walk, ucm_ref ref)
{
	struct drain *drain = (struct drain *)walk; /* its first member */
	struct ucm_store *store = walk->movers->store;
	struct ucm_medium *medium = store->dirs.at[walk->dir];
	struct ucm_entry entry;
	int err;

	if (!atomic_load(&medium->draining))
		return false;
	if (!ucm_index_get(store->index, ref, &entry))
		return true;
	err = drain_one(drain, ref, &entry);
	drain->stays += err == -ENOSPC;
	if (err)
		ucm_debug(MOVE, 2, "%s: block %s stays: %s", medium->path,
			  ucm_hex(&entry.id).text, strerror(-err));
	return true;
}

static void mover_drain(struct ucm_movers *movers, unsigned dir)
{
	struct drain drain = {
		.walk = {.movers = movers, .wants = wants_dir, .dir = dir},
	};
	struct ucm_medium *medium = movers->store->dirs.at[dir];

	ucm_batch_init(&drain.batch, movers->store, dir, true);
	walk_all(&drain.walk, walk_drain);
	drain_settle(&drain);
	/* a pass that --stop has ended says nothing */
	atomic_store(&medium->stays, atomic_load(&medium->draining) * drain.stays);
	movers->drained_ms[dir] = drain.moved ? 0 : ucm_monotonic_ms();
}

/* A pass that has moved nothing is not repeated at once: it reads the index. */
static bool drain_is_due(const struct ucm_movers *movers, unsigned dir)
{
	int64_t last = movers->drained_ms[dir];

	return !last || ucm_monotonic_ms() - last >= TICK_MS;
}

static void mover_drain_all(struct ucm_movers *movers)
{
	struct ucm_store *store = movers->store;

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		struct ucm_medium *medium = store->dirs.at[dir];

		if (!atomic_load(&medium->draining) ||
		    !atomic_load(&medium->blocks) ||
		    !mover_enter_dir(movers, dir))
			continue;
		if (drain_is_due(movers, dir))
			mover_drain(movers, dir);
		mover_leave_dir(movers, dir);
	}
}

void ucm_movers_drain(struct ucm_store *store, unsigned dir, bool on)
{
	atomic_store(&store->dirs.at[dir]->stays, 0);
	atomic_store(&store->dirs.at[dir]->draining, on);
	if (on)
		ucm_wishes_wake(store);
}

/* Where placement wants it, if that is its tier's affair. */
static bool wants_better(const struct walk *walk,
			 const struct ucm_entry *entry)
{
	const struct ucm_store *store = walk->movers->store;
	struct ucm_tier *tier = store->dirs.tier_of[entry->dir];
	uint8_t order[UCM_MAX_DIRS];

	if (tier->num_dirs < 2 || tier->readonly || entry->copy)
		return false;
	ucm_placement_order(UCM_PLACEMENT_RENDEZVOUS,
			    (const uint8_t(*)[16])tier->uuids, tier->num_dirs,
			    &entry->id, 0, order);
	return tier->first + order[0] != entry->dir &&
	       !atomic_load(&tier->dirs[order[0]]->draining);
}

static bool walk_rebalance(struct walk *walk, ucm_ref ref)
{
	struct ucm_movers *movers = walk->movers;
	struct ucm_store *store = movers->store;
	struct ucm_move move = {
		.first = true,
		.durable = true,
		.within = true,
		.pace = mover_pace,
		.arg = movers,
	};
	struct ucm_entry entry;

	if (!ucm_index_get(store->index, ref, &entry))
		return true;
	move.to = store->dirs.tier_of[entry.dir];
	/* another mover that evicts there would evict too much */
	if (ucm_endurance_is_spent(store, move.to) ||
	    !mover_enter_dir(movers, entry.dir))
		return false;
	if (!ucm_store_copy(store, ref, &move, NULL))
		ucm_store_drop_place(store, ref, entry.dir, NULL);
	mover_leave_dir(movers, entry.dir);
	return true;
}

/* To walk the index for nothing, each second, would be too much. */
static bool is_any_spent(struct ucm_store *store)
{
	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		if (ucm_endurance_is_spent(store, &store->dirs.tiers[i]))
			return true;
	}
	return false;
}

static void mover_rebalance(struct ucm_movers *movers)
{
	struct walk walk = {.movers = movers, .wants = wants_better};
	struct ucm_store *store = movers->store;
	bool mine;

	if (store->dirs.placement != UCM_PLACEMENT_RENDEZVOUS ||
	    is_any_spent(store) ||
	    !store->value.policy ||
	    !atomic_load_explicit(&store->scanned, memory_order_acquire))
		return;
	pthread_mutex_lock(&movers->lock);
	mine = !movers->rebalanced;
	movers->rebalanced = true;
	pthread_mutex_unlock(&movers->lock);
	if (!mine || walk_all(&walk, walk_rebalance))
		return;
	pthread_mutex_lock(&movers->lock);
	movers->rebalanced = false; /* it goes on when it may write again */
	pthread_mutex_unlock(&movers->lock);
}

/* ---- threads ---- */

static void mover_learn(struct ucm_movers *movers)
{
	struct ucm_store *store = movers->store;
	int64_t now = ucm_monotonic_ms();
	bool due;

	pthread_mutex_lock(&movers->lock);
	due = now - movers->learnt_ms >= TICK_MS;
	if (due)
		movers->learnt_ms = now;
	pthread_mutex_unlock(&movers->lock);
	if (!due)
		return;
	ucm_value_learn(&store->value, atomic_load(&store->blocks));
	ucm_endurance_count_files(store);
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		ucm_evict_relist(store, dir);
	ucm_quota_relist(store);
}

/* One round: whether there may be more to do at once. */
static bool mover_round(struct ucm_movers *movers)
{
	bool any;

	mover_learn(movers);
	mover_give_way(false);
	/* or a parent might go whose children have not been read */
	any = ucm_scan_knows_all(movers->store) &&
	      (ucm_quota_relieve(movers->store) | mover_relieve_all(movers));
	mover_find_unsaved(movers);
	any |= mover_save_one(movers);
	mover_give_way(true);
	if (any)
		return true;
	if (mover_promote_one(movers))
		return true;
	mover_drain_all(movers);
	mover_rebalance(movers);
	return false;
}

static void mover_wait(struct ucm_movers *movers)
{
	struct ucm_wishes *wishes = movers->wishes;
	int64_t until_ms = ucm_monotonic_ms() + TICK_MS;
	const struct timespec until = {
		.tv_sec = until_ms / 1000,
		.tv_nsec = until_ms % 1000 * 1000000,
	};

	pthread_mutex_lock(&wishes->lock);
	while (!wishes->woken && !atomic_load(&movers->store->stopping) &&
	       pthread_cond_timedwait(&wishes->wake, &wishes->lock, &until) !=
		       ETIMEDOUT)
		;
	wishes->woken = false;
	pthread_mutex_unlock(&wishes->lock);
}

static void *mover_main(void *arg)
{
	struct ucm_movers *movers = arg;

	pthread_setname_np(pthread_self(), "ucmfs-mover");
	while (!atomic_load(&movers->store->stopping)) {
		mover_beat(movers);
		if (!mover_round(movers))
			mover_wait(movers);
	}
	pthread_mutex_lock(&movers->lock);
	movers->num_left--;
	pthread_cond_signal(&movers->ended);
	pthread_mutex_unlock(&movers->lock);
	return NULL;
}

int ucm_movers_init(struct ucm_store *store)
{
	struct ucm_movers *movers = calloc(1, sizeof(*movers));

	store->victims = calloc(store->dirs.num, sizeof(*store->victims));
	store->movers = movers;
	store->wishes = ucm_wishes_new();
	if (!movers || !store->victims || !store->wishes)
		return -ENOMEM;
	movers->store = store;
	movers->wishes = store->wishes;
	pthread_mutex_init(&movers->lock, NULL);
	ucm_cond_init_monotonic(&movers->ended);
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		ucm_victims_init(&store->victims[dir],
				 (uint64_t)ucm_monotonic_ms() + dir);
	return 0;
}

void ucm_movers_fini(struct ucm_store *store)
{
	struct ucm_movers *movers = store->movers;

	for (unsigned dir = 0; store->victims && dir < store->dirs.num; dir++)
		ucm_victims_fini(&store->victims[dir]);
	free(store->victims);
	ucm_wishes_free(store->wishes);
	if (!movers)
		return;
	pthread_mutex_destroy(&movers->lock);
	pthread_cond_destroy(&movers->ended);
	free(movers);
}

static void mover_open_wishes(struct ucm_movers *movers, bool open)
{
	pthread_mutex_lock(&movers->wishes->lock);
	movers->wishes->started = open;
	pthread_cond_broadcast(&movers->wishes->wake);
	pthread_mutex_unlock(&movers->wishes->lock);
}

int ucm_movers_start(struct ucm_store *store)
{
	struct ucm_movers *movers = store->movers;

	for (unsigned i = 0; i < store->config->movers; i++) {
		int err = pthread_create(&movers->threads[i], NULL, mover_main,
					 movers);

		if (err)
			return i ? 0 : -err;
		pthread_mutex_lock(&movers->lock);
		movers->num_threads++;
		movers->num_left++;
		pthread_mutex_unlock(&movers->lock);
	}
	mover_open_wishes(movers, true);
	return 0;
}

static bool wait_for_movers(struct ucm_movers *movers)
{
	int64_t until_ms = ucm_monotonic_ms() + movers->store->close_ms;
	const struct timespec until = {
		.tv_sec = until_ms / 1000,
		.tv_nsec = until_ms % 1000 * 1000000,
	};
	bool all;

	mover_open_wishes(movers, false);
	pthread_mutex_lock(&movers->lock);
	while (movers->num_left &&
	       pthread_cond_timedwait(&movers->ended, &movers->lock, &until) !=
		       ETIMEDOUT)
		;
	all = !movers->num_left;
	pthread_mutex_unlock(&movers->lock);
	return all;
}

bool ucm_movers_stop(struct ucm_store *store)
{
	struct ucm_movers *movers = store->movers;
	bool all;

	if (!movers || !movers->num_threads)
		return true;
	all = wait_for_movers(movers);
	for (unsigned i = 0; i < movers->num_threads; i++) {
		if (all)
			pthread_join(movers->threads[i], NULL);
		else
			pthread_detach(movers->threads[i]);
	}
	if (!all)
		ucm_error("a mover does not end: a directory does not answer");
	movers->num_threads = 0;
	return all;
}

/* ---- flush ---- */

#define FLUSH_NAMED 16u		/* blocks that are named in the log */
#define FLUSH_FAILURES 64u	/* in a row: the tiers below fail, not blocks */
#define FLUSH_BUSY_MS 30000	/* a block that stays busy for so long fails */
#define FLUSH_POLL_MS 10

struct flush {
	struct walk walk;
	ucm_ref *refs; /* of blocks that are in no lower tier yet */
	size_t num, room;
	bool (*stop)(void *arg);
	void *arg;
	uint64_t named, in_a_row;
	int err; /* of the first that failed */
};

static bool walk_collect(struct walk *walk, ucm_ref ref)
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
	struct ucm_move move = {
		.open = true,
		.pace = mover_pace,
		.arg = movers,
	};
	struct ucm_entry entry;
	int err;

	if (!ucm_index_get(store->index, ref, &entry) ||
	    !ucm_wishes_is_unsaved(store, &entry))
		return 0;
	err = mover_save(store, ref, &entry, &move);
	if (!err)
		flush->in_a_row = 0;
	if (!err || err == -ENOENT || err == -EEXIST)
		return 0;
	if (err == -EBUSY && !last)
		return err;
	/* a mover may have copied it in the same moment */
	if (ucm_index_get(store->index, ref, &entry) &&
	    ucm_wishes_is_unsaved(store, &entry))
		flush_leave(flush, &entry, err);
	return 0;
}

static bool flush_is_over(const struct flush *flush)
{
	return flush->in_a_row >= FLUSH_FAILURES ||
	       atomic_load(&flush->walk.movers->store->stopping);
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
		sleep_ms(FLUSH_POLL_MS);
		err = flush_round(flush, now - began_ms > FLUSH_BUSY_MS);
	}
	return err;
}

int ucm_movers_flush(struct ucm_store *store, bool (*stop)(void *arg),
		     void *arg)
{
	struct flush flush = {
		.walk = {.movers = store->movers, .wants = wants_saved},
		.stop = stop,
		.arg = arg,
	};
	int err = 0;

	walk_all(&flush.walk, walk_collect);
	if (!flush.err)
		err = flush_all(&flush);
	free(flush.refs);
	if (flush.named > FLUSH_NAMED)
		ucm_warning("%llu blocks were not copied to a lower tier",
			    (unsigned long long)flush.named);
	return err ? err : flush.err;
}
