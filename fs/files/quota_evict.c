/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota_evict.c - which files of a marked folder are evicted, and their
 * removal; see quota.h.
 *
 * One thread serves all marks, a step at a time. A mark that has to be counted
 * is walked; the walk looks at each file, so it also fills the mark's pool with
 * the oldest that may be evicted. A mark whose quota is nearly used up has the
 * files of its pool removed, the oldest first; when the pool is empty the
 * folder is walked again. If nothing of a pool could be removed, the mark is
 * left alone for a while, which is the answer to those who wait for room.
 *
 * A file is removed under the lock of its name, after a second look: it must
 * still be the same file and in the marked folder, not used since, and not
 * open. So opening, replacing or renaming it comes before or after. The kernel
 * may remember a name that is gone; an open of it gets ESTALE below, and the
 * kernel looks again. No descriptor is kept for those, unlike for files that a
 * program removes, as that would keep their room.
 */
#include <config.h>

#include "fs/files/quota.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/files/files.h"
#include "fs/files/node.h"

#define POOL_MAX 1024u /* files */
#define POOL_EVICTING (1u << 16) /* while a quota is nearly used up */
#define STEP_FILES 64u
#define COUNT_EVERY_MS (10 * 60 * 1000)
#define AGAIN_MS 1000
#define AGAIN_MAX_MS 10000
#define SETTLE_MS 1000
#define TELL_MS 60000

/* ---- the pool ---- */

/* Files that are seen, of which the oldest are kept. */
struct look {
	struct ucm_files_quotas *quotas;
	struct ucm_files_mark *mark;
	char *folder; /* the mark's, as it was at the start */
	enum ucm_files_order order;
	int64_t now_ns, grace_ns;
	size_t most;
	struct ucm_quota_pool pool; /* room for twice as many */
};

static int64_t later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* The greater, the later it is evicted. */
static int64_t key_of(enum ucm_files_order order, const struct stat *st)
{
	int64_t written = ucm_time_ns(&st->st_mtim);

	return order == UCM_FILES_FIFO
		       ? written
		       : later(written, ucm_time_ns(&st->st_atim));
}

/* A program may have given it the time of another file: then its ctime is that
 * of this. */
static bool is_young(int64_t now_ns, int64_t grace_ns, const struct stat *st)
{
	return now_ns - later(ucm_time_ns(&st->st_mtim),
			      ucm_time_ns(&st->st_ctim)) <
	       grace_ns;
}

static int compare_victims(const void *a, const void *b)
{
	const struct ucm_quota_victim *x = a, *y = b;

	return x->key_ns < y->key_ns ? -1 : x->key_ns > y->key_ns;
}

/* Oldest first, and no more than so many. */
static void pool_cut(struct ucm_quota_pool *pool, size_t most)
{
	if (pool->num)
		qsort(pool->list, pool->num, sizeof(*pool->list),
		      compare_victims);
	while (pool->num > most)
		free(pool->list[--pool->num].path);
}

static void look_at(struct look *look, const char *path, const struct stat *st)
{
	struct ucm_quota_pool *pool = &look->pool;

	if (!S_ISREG(st->st_mode))
		return;
	pool->seen++;
	if (is_young(look->now_ns, look->grace_ns, st)) {
		pool->young++;
		return;
	}
	if (pool->num == 2 * look->most)
		pool_cut(pool, look->most);
	pool->list[pool->num] = (struct ucm_quota_victim){
		.path = strdup(path),
		.ino = st->st_ino,
		.key_ns = key_of(look->order, st),
	};
	pool->num += pool->list[pool->num].path != NULL;
}

/* False: no memory. */
static bool begin_look(struct look *look, struct ucm_files_quotas *quotas,
		       struct ucm_files_mark *mark)
{
	*look = (struct look){
		.quotas = quotas,
		.mark = mark,
		.now_ns = quotas->now_ns(),
	};
	pthread_mutex_lock(&quotas->lock);
	look->folder = strdup(mark->path);
	look->order = mark->order;
	look->grace_ns = (int64_t)mark->grace_s * 1000000000;
	look->pool.of = mark->changes;
	look->pool.evicting = mark->evicting;
	look->most = mark->evicting ? POOL_EVICTING : POOL_MAX;
	mark->stale = false;
	mark->counted_ms = ucm_monotonic_ms();
	quotas->walk.mark = mark;
	quotas->walk.sum = 0;
	*quotas->walk.at = '\0';
	pthread_mutex_unlock(&quotas->lock);
	look->pool.list = calloc(2 * look->most, sizeof(*look->pool.list));
	return look->folder && look->pool.list;
}

static bool look_at_one(void *arg, const char *path, const struct stat *st)
{
	struct look *look = arg;
	struct ucm_files_quotas *quotas = look->quotas;
	bool goes_on;

	pthread_mutex_lock(&quotas->lock);
	goes_on = quotas->walk.mark == look->mark &&
		  !atomic_load(&quotas->stopping);
	ucm_quota_walk_pass(&quotas->walk, path, ucm_file_takes(st));
	pthread_mutex_unlock(&quotas->lock);
	if (goes_on)
		look_at(look, path, st);
	return goes_on;
}

/* err: of the walk; one that was cut short is made again. A failed one changes
 * nothing until its next time. */
static void end_look(struct look *look, int err)
{
	struct ucm_files_quotas *quotas = look->quotas;
	struct ucm_files_mark *mark = look->mark;

	pthread_mutex_lock(&quotas->lock);
	ucm_quota_walk_end(&quotas->walk);
	if (quotas->walk.mark != mark)
		err = -ECANCELED;
	if (!err)
		mark->used = quotas->walk.sum;
	mark->counted |= !err;
	mark->stale |= err == -ECANCELED;
	quotas->walk.mark = NULL;
	pthread_mutex_unlock(&quotas->lock);
	pool_cut(&look->pool, look->most);
	ucm_quota_pool_clear(&mark->pool);
	mark->pool = look->pool;
	free(look->folder);
}

/* Count a mark, and fill its pool. */
static void look_at_all(struct ucm_files_quotas *quotas,
			struct ucm_files_mark *mark)
{
	struct look look;
	int err = -ENOMEM;

	if (quotas->ops && quotas->ops->settle)
		quotas->ops->settle(quotas->ops->arg);
	if (begin_look(&look, quotas, mark))
		err = ucm_files_walk(quotas->tree->at->dirfd, look.folder,
				     look_at_one, &look);
	if (err != -ECANCELED)
		ucm_files_result(quotas->tree, mark->path, "counting", err);
	end_look(&look, err);
}

/* ---- removing ---- */

enum outcome {
	GONE, /* by itself, or not what it was */
	OPEN,
	FAILED,
	EVICTED,
};

static const char *const outcomes[] = {
	[GONE] = "no longer what it was",
	[OPEN] = "open, and stays",
	[FAILED] = "it cannot be removed",
	[EVICTED] = "removed",
};

/* Is it as it was when it was chosen? Neither what its mark says nor where that
 * is has changed, while the name is locked. */
static bool is_still(struct ucm_files_quotas *quotas,
		     struct ucm_files_mark *mark,
		     const struct ucm_quota_victim *victim, struct stat *st)
{
	int64_t grace_ns, key_ns;
	bool same;

	if (ucm_files_look(quotas->tree, victim->path, st))
		return false;
	pthread_mutex_lock(&quotas->lock);
	same = !mark->gone && mark->changes == mark->pool.of;
	grace_ns = (int64_t)mark->grace_s * 1000000000;
	key_ns = key_of(mark->order, st);
	pthread_mutex_unlock(&quotas->lock);
	return same && S_ISREG(st->st_mode) && st->st_ino == victim->ino &&
	       key_ns == victim->key_ns &&
	       !is_young(quotas->now_ns(), grace_ns, st);
}

/* Under the name's lock; folder: the number of the folder that it is in. */
static enum outcome evict_locked(struct ucm_files_quotas *quotas,
				 struct ucm_files_mark *mark,
				 const struct ucm_quota_victim *victim,
				 uint64_t folder, uint64_t *bytes_out)
{
	const struct ucm_files_quota_ops *ops = quotas->ops;
	const struct ucm_files_node *node;
	struct stat st;

	if (!is_still(quotas, mark, victim, &st))
		return GONE;
	node = ucm_files_known(quotas->nodes, victim->ino);
	if (node && ops && ops->is_open && ops->is_open(ops->arg, node))
		return OPEN;
	*bytes_out = ucm_file_takes(&st);
	if (ucm_files_unlink(quotas->tree, victim->path, &st))
		return FAILED;
	ucm_files_removed(quotas->nodes, folder, strrchr(victim->path, '/') + 1,
			  victim->ino, -1);
	return EVICTED;
}

/* The next of the pool. What cannot be removed ends it: the rest cannot be
 * either. */
static void evict_next(struct ucm_files_quotas *quotas,
		       struct ucm_files_mark *mark)
{
	struct ucm_quota_pool *pool = &mark->pool;
	struct ucm_quota_victim *victim = &pool->list[pool->next++];
	enum outcome outcome = GONE;
	struct ucm_files_lock lock;
	uint64_t bytes = 0, folder;

	if (!ucm_files_lock_path(quotas->nodes, quotas->tree->at->dirfd,
				 victim->path, &lock, &folder)) {
		outcome = evict_locked(quotas, mark, victim, folder, &bytes);
		ucm_files_unlock(&lock);
	}
	ucm_debug(TIER, 1, "%s: over its folder's quota: %s", victim->path,
		  outcomes[outcome]);
	free(victim->path);
	pool->open += outcome == OPEN;
	while (outcome == FAILED && pool->next < pool->num)
		free(pool->list[pool->next++].path);
	if (outcome != EVICTED)
		return;
	pool->evicted++;
	pthread_mutex_lock(&quotas->lock);
	mark->files_evicted++;
	mark->bytes_evicted += bytes;
	pthread_mutex_unlock(&quotas->lock);
}

/* ---- steps ---- */

/* Nothing may be evicted: those who wait for room are refused. */
static void give_up(struct ucm_files_quotas *quotas,
		    struct ucm_files_mark *mark, int64_t took_ms)
{
	const struct ucm_quota_pool *pool = &mark->pool;
	int64_t pause_ms = took_ms * 20;

	pause_ms = pause_ms < AGAIN_MS	     ? AGAIN_MS
		   : pause_ms > AGAIN_MAX_MS ? AGAIN_MAX_MS
					     : pause_ms;
	pthread_mutex_lock(&quotas->lock);
	mark->again_ms = ucm_monotonic_ms() + pause_ms;
	pthread_cond_broadcast(&quotas->room);
	if (!mark->full && ucm_quota_is_reached(mark)) {
		mark->full = true;
		ucm_warning("%s: its quota of %llu bytes is used up, and "
			    "nothing may go: of %llu files %llu are open and "
			    "%llu were changed in the last %u s; new files are "
			    "refused (EDQUOT)",
			    mark->path, (unsigned long long)mark->quota,
			    (unsigned long long)pool->seen,
			    (unsigned long long)pool->open,
			    (unsigned long long)pool->young, mark->grace_s);
	}
	pthread_mutex_unlock(&quotas->lock);
}

static bool needs_eviction(struct ucm_files_quotas *quotas,
			   struct ucm_files_mark *mark)
{
	bool needs;

	pthread_mutex_lock(&quotas->lock);
	needs = !mark->gone && !ucm_quota_is_low(mark) &&
		mark->changes == mark->pool.of;
	pthread_mutex_unlock(&quotas->lock);
	return needs && !atomic_load(&quotas->stopping);
}

/* One line now and then, of many removed files. */
static void tell_evicted(struct ucm_files_quotas *quotas,
			 struct ucm_files_mark *mark)
{
	int64_t now_ms = ucm_monotonic_ms();

	if (mark->told_ms && now_ms - mark->told_ms < TELL_MS)
		return;
	pthread_mutex_lock(&quotas->lock);
	if (mark->files_evicted != mark->told_files)
		ucm_info("%s: %llu files of %llu bytes removed for its quota",
			 mark->path,
			 (unsigned long long)(mark->files_evicted -
					      mark->told_files),
			 (unsigned long long)(mark->bytes_evicted -
					      mark->told_bytes));
	mark->told_files = mark->files_evicted;
	mark->told_bytes = mark->bytes_evicted;
	pthread_mutex_unlock(&quotas->lock);
	mark->told_ms = now_ms;
}

static void evict_some(struct ucm_files_quotas *quotas,
		       struct ucm_files_mark *mark)
{
	struct ucm_quota_pool *pool = &mark->pool;
	int64_t began_ms = ucm_monotonic_ms();

	if (!needs_eviction(quotas, mark) || pool->next == pool->num)
		look_at_all(quotas, mark);
	for (unsigned i = 0; i < STEP_FILES && pool->next < pool->num &&
			     needs_eviction(quotas, mark);
	     i++)
		evict_next(quotas, mark);
	/* a pool that was filled long ago says nothing: the next one will */
	if (pool->evicting && pool->next == pool->num && !pool->evicted &&
	    needs_eviction(quotas, mark))
		give_up(quotas, mark, ucm_monotonic_ms() - began_ms);
	tell_evicted(quotas, mark);
}

static bool needs_count(const struct ucm_files_mark *mark)
{
	return mark->stale ||
	       ucm_monotonic_ms() - mark->counted_ms > COUNT_EVERY_MS;
}

/* Under the lock. */
static bool evicts(struct ucm_files_mark *mark)
{
	if (ucm_quota_is_high(mark))
		mark->evicting = true;
	else if (ucm_quota_is_low(mark))
		mark->evicting = false;
	return mark->evicting && mark->again_ms <= ucm_monotonic_ms();
}

/* Under the lock; the marks take turns. */
static struct ucm_files_mark *next_mark(struct ucm_files_quotas *quotas,
					bool *count_out)
{
	for (unsigned i = 0; i < quotas->num; i++) {
		struct ucm_files_mark *mark = quotas->marks[i];
		bool evict = evicts(mark);

		*count_out = needs_count(mark);
		if (!evict && !*count_out)
			continue;
		memmove(&quotas->marks[i], &quotas->marks[i + 1],
			(quotas->num - 1 - i) * sizeof(mark));
		quotas->marks[quotas->num - 1] = mark;
		return mark;
	}
	return NULL;
}

bool ucm_files_quotas_step(struct ucm_files_quotas *quotas)
{
	struct ucm_files_mark *mark;
	bool count = false;

	pthread_mutex_lock(&quotas->lock);
	mark = next_mark(quotas, &count);
	if (mark)
		mark->held = true;
	pthread_mutex_unlock(&quotas->lock);
	if (!mark)
		return false;
	if (count)
		look_at_all(quotas, mark);
	else
		evict_some(quotas, mark);
	pthread_mutex_lock(&quotas->lock);
	mark->held = false;
	if (mark->gone)
		ucm_quota_mark_free(mark);
	pthread_mutex_unlock(&quotas->lock);
	return true;
}

/* ---- the thread ---- */

static void wait_for_work(struct ucm_files_quotas *quotas)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	pthread_mutex_lock(&quotas->lock);
	if (!atomic_load(&quotas->stopping))
		pthread_cond_timedwait(&quotas->work, &quotas->lock, &until);
	pthread_mutex_unlock(&quotas->lock);
}

static void *quota_main(void *arg)
{
	struct ucm_files_quotas *quotas = arg;
	int64_t settled_ms = 0;

	while (!atomic_load(&quotas->stopping)) {
		int64_t now_ms = ucm_monotonic_ms();

		if (atomic_load(&quotas->num) &&
		    now_ms - settled_ms >= SETTLE_MS) {
			settled_ms = now_ms;
			quotas->ops->settle(quotas->ops->arg);
		}
		if (!ucm_files_quotas_step(quotas))
			wait_for_work(quotas);
	}
	pthread_mutex_lock(&quotas->lock);
	quotas->ended = true;
	pthread_cond_broadcast(&quotas->room);
	pthread_mutex_unlock(&quotas->lock);
	return NULL;
}

int ucm_files_quotas_start(struct ucm_files_tree *tree,
			   struct ucm_files_nodes *nodes,
			   const struct ucm_files_quota_ops *ops)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	int err;

	quotas->nodes = nodes;
	quotas->ops = ops;
	err = pthread_create(&quotas->thread, NULL, quota_main, quotas);
	quotas->running = !err;
	return -err;
}

bool ucm_files_quotas_stop(struct ucm_files_tree *tree, unsigned wait_ms)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	struct timespec until;
	int err = 0;

	if (!quotas || !quotas->running)
		return true;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += wait_ms / 1000 + 1;
	pthread_mutex_lock(&quotas->lock);
	atomic_store(&quotas->stopping, true);
	pthread_cond_broadcast(&quotas->work);
	pthread_cond_broadcast(&quotas->room);
	while (!quotas->ended && !err)
		err = pthread_cond_timedwait(&quotas->room, &quotas->lock,
					     &until);
	quotas->running = !quotas->ended;
	pthread_mutex_unlock(&quotas->lock);
	if (quotas->running) {
		pthread_detach(quotas->thread);
		return false;
	}
	pthread_join(quotas->thread, NULL);
	return true;
}
