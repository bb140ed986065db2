/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota_evict.c - which files of a marked folder go, and their removal; see
 * quota.h.
 *
 * One thread serves all marks, a step at a time. A mark that has to be counted
 * is walked; the walk looks at each file, so it also fills the mark's pool with
 * the oldest that may go. A mark whose quota is nearly used up has the files of
 * its pool removed, the oldest first. When the pool is empty it is filled
 * again:
 *
 *   few files    a walk: the pool is exact
 *   many files   samples: from the folder downwards some sub-folders of each
 *                are picked at random, and some files of each; of what was
 *                seen the oldest sixteenth goes into the pool
 *
 * A sample costs a listing of some folders and a stat(2) of a few thousand
 * files, however many there are, and serves a hundred removals. If a pool is
 * used up and nothing of it could be removed, the next one is exact; if that
 * has nothing either, the mark is left alone for a while, which is the answer
 * to whoever waits for room.
 *
 * A file is removed under the lock of its name, after a second look: it must
 * still be the same file of the same directory and in the marked folder, not
 * used since, and not open. So whoever opens, replaces or renames it comes
 * before or after. The kernel may remember a name that is gone; who opens it
 * hears ESTALE below, and the kernel looks again. No descriptor is kept for
 * those, unlike for files that a program removes, as that would keep their
 * room.
 *
 * A directory that does not answer costs the thread its deadline, once, and is
 * passed over from then on; what it holds counts as it was known last.
 */
#include <config.h>

#include "fs/files/quota.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/files/files.h"
#include "fs/files/node.h"
#include "fs/files/quota_marks.h"

#define POOL_MAX 1024u /* files */
#define SAMPLE_SEEN 2048u
#define SAMPLE_ROUNDS 8u
#define SAMPLE_FANOUT 8u /* sub-folders of a folder */
#define SAMPLE_SHARE 16u /* one of so many goes into the pool */
#define STEP_FILES 64u
#define COUNT_EVERY_MS (10 * 60 * 1000)
#define AGAIN_MS 1000
#define AGAIN_MAX_MS 10000
#define SETTLE_MS 1000
#define TELL_MS 60000

/* ---- the pool ---- */

/* Files that are seen, of which the oldest are to be kept: a heap, the youngest
 * on top. */
struct look {
	struct ucm_files_quotas *quotas;
	struct ucm_files_mark *mark;
	char *folder; /* the mark's, as it was at the start */
	unsigned dir;
	enum ucm_files_order order;
	int64_t now_ns, grace_ns;
	struct ucm_quota_pool pool;
	uint64_t files; /* regular ones */
};

static int64_t later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* The greater, the later it goes. */
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

static void swap_victims(struct ucm_quota_victim *a, struct ucm_quota_victim *b)
{
	struct ucm_quota_victim was = *a;

	*a = *b;
	*b = was;
}

static void sift_up(struct ucm_quota_pool *pool, size_t i)
{
	for (; i && pool->list[i].key_ns > pool->list[(i - 1) / 2].key_ns;
	     i = (i - 1) / 2)
		swap_victims(&pool->list[i], &pool->list[(i - 1) / 2]);
}

static void sift_down(struct ucm_quota_pool *pool)
{
	size_t i = 0, child;

	while ((child = 2 * i + 1) < pool->num) {
		if (child + 1 < pool->num &&
		    pool->list[child + 1].key_ns > pool->list[child].key_ns)
			child++;
		if (pool->list[child].key_ns <= pool->list[i].key_ns)
			return;
		swap_victims(&pool->list[i], &pool->list[child]);
		i = child;
	}
}

static void pool_add(struct ucm_quota_pool *pool,
		     const struct ucm_quota_victim *victim)
{
	bool full = pool->num == POOL_MAX;
	struct ucm_quota_victim copy = *victim;

	if (full && victim->key_ns >= pool->list[0].key_ns)
		return;
	if (!pool->list)
		pool->list = calloc(POOL_MAX, sizeof(*pool->list));
	if (!pool->list)
		return;
	copy.path = strdup(victim->path);
	if (!copy.path)
		return;
	if (!full) {
		pool->list[pool->num++] = copy;
		sift_up(pool, pool->num - 1);
		return;
	}
	free(pool->list[0].path);
	pool->list[0] = copy;
	sift_down(pool);
}

static int compare_victims(const void *a, const void *b)
{
	const struct ucm_quota_victim *x = a, *y = b;

	return x->key_ns < y->key_ns ? -1 : x->key_ns > y->key_ns;
}

/* Oldest first, and no more than so many. */
static void pool_finish(struct ucm_quota_pool *pool, size_t most)
{
	if (pool->num)
		qsort(pool->list, pool->num, sizeof(*pool->list),
		      compare_victims);
	while (pool->num > most)
		free(pool->list[--pool->num].path);
}

static void look_at(struct look *look, const char *path, const struct stat *st)
{
	struct ucm_quota_victim victim = {
		.path = (char *)(uintptr_t)path,
		.dir = look->dir,
		.ino = st->st_ino,
	};

	if (!S_ISREG(st->st_mode))
		return;
	look->files++;
	look->pool.seen++;
	if (look->quotas->tree->dirs->at[look->dir]->readonly)
		return;
	if (is_young(look->now_ns, look->grace_ns, st)) {
		look->pool.young++;
		return;
	}
	victim.key_ns = key_of(look->order, st);
	pool_add(&look->pool, &victim);
}

/* NULL: no memory. To free with end_look(). */
static struct look *begin_look(struct ucm_files_quotas *quotas,
			       struct ucm_files_mark *mark)
{
	struct look *look = calloc(1, sizeof(*look));

	if (!look)
		return NULL;
	look->quotas = quotas;
	look->mark = mark;
	look->now_ns = quotas->now_ns();
	pthread_mutex_lock(&quotas->lock);
	look->folder = strdup(mark->path);
	look->order = mark->order;
	look->grace_ns = (int64_t)mark->grace_s * 1000000000;
	look->pool.of = mark->changes;
	pthread_mutex_unlock(&quotas->lock);
	if (look->folder)
		return look;
	free(look);
	return NULL;
}

static void end_look(struct look *look, bool keep)
{
	if (keep) {
		ucm_quota_pool_clear(&look->mark->pool);
		look->mark->pool = look->pool;
	} else {
		ucm_quota_pool_clear(&look->pool);
	}
	free(look->folder);
	free(look);
}

/* ---- counting, and looking at all ---- */

static bool count_one(void *arg, const char *path, const struct stat *st)
{
	struct look *look = arg;
	struct ucm_files_quotas *quotas = look->quotas;
	struct ucm_quota_walk *walk = &quotas->walk;
	bool goes_on;

	pthread_mutex_lock(&quotas->lock);
	goes_on = walk->mark == look->mark && !atomic_load(&quotas->stopping);
	ucm_quota_walk_pass(walk, path, ucm_file_takes(st));
	pthread_mutex_unlock(&quotas->lock);
	if (goes_on)
		look_at(look, path, st);
	return goes_on;
}

/* False: the folder has another name now, or it is the end. */
static bool count_in(struct look *look, unsigned dir)
{
	struct ucm_files_quotas *quotas = look->quotas;
	struct ucm_quota_walk *walk = &quotas->walk;
	struct ucm_files_mark *mark = look->mark;
	bool goes_on;
	int err;

	look->dir = dir;
	pthread_mutex_lock(&quotas->lock);
	goes_on = walk->mark == mark;
	ucm_quota_walk_begin(walk, dir);
	pthread_mutex_unlock(&quotas->lock);
	if (!goes_on)
		return false;
	err = ucm_files_walk(quotas->tree, dir, look->folder, count_one, look);
	if (err && err != -ECANCELED)
		ucm_files_failed(quotas->tree, dir, look->folder, "counting",
				 err);
	pthread_mutex_lock(&quotas->lock);
	goes_on = walk->mark == mark && !atomic_load(&quotas->stopping);
	ucm_quota_walk_end(walk);
	if (goes_on && !err) {
		mark->total += walk->sum - mark->used[dir];
		mark->used[dir] = walk->sum;
	}
	pthread_mutex_unlock(&quotas->lock);
	return goes_on;
}

/* Whether it has been done. */
static bool look_at_all(struct ucm_files_quotas *quotas,
			struct ucm_files_mark *mark)
{
	struct look *look = begin_look(quotas, mark);
	bool done = look;

	if (!look) { /* the count waits for its next time */
		pthread_mutex_lock(&quotas->lock);
		mark->stale = false;
		mark->counted_ms = ucm_monotonic_ms();
		pthread_mutex_unlock(&quotas->lock);
		return false;
	}
	if (quotas->ops && quotas->ops->settle)
		quotas->ops->settle(quotas->ops->arg);
	pthread_mutex_lock(&quotas->lock);
	quotas->walk.mark = mark;
	mark->stale = false;
	pthread_mutex_unlock(&quotas->lock);
	for (unsigned dir = 0; dir < quotas->tree->dirs->num && done; dir++)
		done = count_in(look, dir);
	pthread_mutex_lock(&quotas->lock);
	quotas->walk.mark = NULL;
	mark->stale |= !done;
	mark->counted |= done;
	mark->counted_ms = ucm_monotonic_ms();
	pthread_mutex_unlock(&quotas->lock);
	if (done)
		mark->files = look->files;
	look->pool.whole = true;
	pool_finish(&look->pool, POOL_MAX);
	end_look(look, done);
	return done;
}

/* ---- samples ---- */

static uint64_t random_below(struct ucm_files_quotas *quotas, uint64_t limit)
{
	uint64_t x = quotas->random += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (x ^ x >> 31) % limit;
}

/* Of entries first to num - 1, one that has not been picked; it is put at
 * first. */
static const struct ucm_files_entry *pick(struct ucm_files_quotas *quotas,
					  struct ucm_files_entries *entries,
					  size_t first)
{
	size_t i = first + random_below(quotas, entries->num - first);
	struct ucm_files_entry was = entries->list[first];

	entries->list[first] = entries->list[i];
	entries->list[i] = was;
	return &entries->list[first];
}

static bool put_name(char *path, size_t len, const char *name)
{
	size_t more = strlen(name);

	if (len + more + 2 > PATH_MAX)
		return false;
	path[len] = '/';
	memcpy(path + len + 1, name, more + 1);
	return true;
}

static void sample_file(struct look *look, const char *path)
{
	struct stat st;

	if (!ucm_os_stat(ucm_files_fd(look->quotas->tree, look->dir), path,
			 &st))
		look_at(look, path, &st);
}

/*
 * Some files below a folder, about as many as budget says. path: PATH_MAX
 * bytes, the folder's name of len bytes; what follows is ours to write. Each
 * level of folders takes a part of the budget, so that it comes to an end.
 */
static void sample_folder(struct look *look, char *path, size_t len,
			  unsigned budget)
{
	struct ucm_files_entries entries;
	unsigned folders = 0, share;
	size_t i;

	if (atomic_load(&look->quotas->stopping) ||
	    ucm_files_entries(look->quotas->tree, look->dir, path, &entries))
		return;
	share = budget > SAMPLE_FANOUT ? budget / SAMPLE_FANOUT : 1;
	for (i = 0; i < entries.num && budget; i++) {
		const struct ucm_files_entry *entry =
			pick(look->quotas, &entries, i);

		if (!put_name(path, len, entry->name))
			continue;
		if (entry->type != DT_DIR) {
			sample_file(look, path);
			budget--;
		} else if (folders++ < SAMPLE_FANOUT) {
			sample_folder(look, path, strlen(path), share - 1);
			budget -= share < budget ? share : budget;
		}
		path[len] = '\0';
	}
	ucm_files_entries_free(&entries);
}

/* A directory, the likelier the more of the folder it has. */
static unsigned pick_dir(struct look *look)
{
	struct ucm_files_quotas *quotas = look->quotas;
	struct ucm_files_mark *mark = look->mark;
	unsigned dir = 0;
	int64_t at;

	pthread_mutex_lock(&quotas->lock);
	at = mark->total > 0
		     ? (int64_t)random_below(quotas, (uint64_t)mark->total)
		     : 0;
	while (dir + 1 < quotas->tree->dirs->num && at >= mark->used[dir])
		at -= mark->used[dir++];
	pthread_mutex_unlock(&quotas->lock);
	return dir;
}

static bool look_at_some(struct ucm_files_quotas *quotas,
			 struct ucm_files_mark *mark)
{
	struct look *look = begin_look(quotas, mark);
	char path[PATH_MAX];

	if (!look)
		return false;
	for (unsigned i = 0;
	     i < SAMPLE_ROUNDS && look->pool.seen < SAMPLE_SEEN; i++) {
		look->dir = pick_dir(look);
		strcpy(path, look->folder);
		sample_folder(look, path, strlen(path), SAMPLE_SEEN);
	}
	pool_finish(&look->pool, look->pool.seen / SAMPLE_SHARE + 1);
	end_look(look, true);
	return true;
}

/* ---- removing ---- */

/* The same of a folder in a folder; its name is locked. */
static struct ucm_files_node *reach_next(struct ucm_files_quotas *quotas,
					 struct ucm_files_node *parent,
					 const char *name, const char *path)
{
	struct ucm_files_child child;
	struct ucm_files found;

	if (ucm_files_child(quotas->nodes, parent, name, &child))
		return child.is_dir ? ucm_files_looked_up(quotas->nodes, parent,
							  name, true, 0,
							  child.dir)
				    : NULL;
	if (ucm_files_find(quotas->tree, path, UCM_FILES_NOWHERE, &found) ||
	    !S_ISDIR(found.st.st_mode))
		return NULL;
	return ucm_files_looked_up(quotas->nodes, parent, name, true,
				   ucm_files_ino(quotas->tree, &found),
				   found.dir);
}

/* The node of a folder, with one lookup more; NULL: it is not there. */
static struct ucm_files_node *reach(struct ucm_files_quotas *quotas,
				    const char *folder)
{
	struct ucm_files_node *node = &quotas->nodes->root, *next;
	_cleanup_free_ char *copy = strdup(folder + strlen(UCM_FILES_ROOT));
	char path[PATH_MAX], *name, *rest;
	struct ucm_files_lock lock;

	for (name = copy ? strtok_r(copy, "/", &rest) : NULL; name && node;
	     name = strtok_r(NULL, "/", &rest)) {
		next = NULL;
		if (!ucm_files_lock_name(quotas->nodes, node, name, &lock,
					 path)) {
			next = reach_next(quotas, node, name, path);
			ucm_files_unlock(&lock);
		}
		ucm_files_forget(quotas->nodes, node, 1);
		node = next;
	}
	return copy ? node : NULL;
}

enum outcome {
	GONE, /* by itself, or not what it was */
	OPEN,
	FAILED,
	EVICTED,
};

/* Only a copy that nobody sees. */
static enum outcome evict_copy(struct ucm_files_quotas *quotas,
			       const char *path, unsigned dir, uint64_t bytes)
{
	int err = ucm_os_unlink(ucm_files_fd(quotas->tree, dir), path);

	if (err && err != -ENOENT) {
		ucm_files_failed(quotas->tree, dir, path, "unlink", err);
		return FAILED;
	}
	ucm_files_account(quotas->tree, dir, path, -(int64_t)bytes);
	ucm_count(&quotas->tree->dirs->tier_of[dir]->stats.files_removed);
	return EVICTED;
}

/* Is it as it was when it was chosen? Neither the folder's name nor what its
 * mark says has changed, while the name is locked. */
static bool is_still(struct ucm_files_quotas *quotas,
		     struct ucm_files_mark *mark,
		     const struct ucm_quota_victim *victim, const char *path)
{
	struct stat st;
	bool same;
	int64_t grace_ns, key_ns;

	if (strcmp(path, victim->path) ||
	    ucm_files_look(quotas->tree, victim->dir, path, &st))
		return false;
	pthread_mutex_lock(&quotas->lock);
	same = !mark->gone && mark->changes == mark->pool.of &&
	       ucm_quota_covers(mark->path, mark->len, path);
	grace_ns = (int64_t)mark->grace_s * 1000000000;
	key_ns = key_of(mark->order, &st);
	pthread_mutex_unlock(&quotas->lock);
	return same && S_ISREG(st.st_mode) && st.st_ino == victim->ino &&
	       key_ns == victim->key_ns &&
	       !is_young(quotas->now_ns(), grace_ns, &st);
}

/* Under the name's lock. */
static enum outcome evict_locked(struct ucm_files_quotas *quotas,
				 struct ucm_files_mark *mark,
				 struct ucm_files_node *folder,
				 const char *name, const char *path,
				 const struct ucm_quota_victim *victim,
				 uint64_t *bytes_out)
{
	const struct ucm_files_quota_ops *ops = quotas->ops;
	struct ucm_files_copies copies;
	struct ucm_files_child child;
	bool known = ucm_files_child(quotas->nodes, folder, name, &child);
	unsigned i = 0;

	if (!is_still(quotas, mark, victim, path) ||
	    ucm_files_copies(quotas->tree, path, &copies) || copies.is_dir)
		return GONE;
	while (i < copies.num && copies.dirs[i] != victim->dir)
		i++;
	if (i == copies.num || copies.inos[i] != victim->ino)
		return GONE;
	*bytes_out = copies.bytes[i];
	if (i)
		return evict_copy(quotas, path, victim->dir, copies.bytes[i]);
	if (known && ops && ops->is_open &&
	    ops->is_open(ops->arg, child.node))
		return OPEN;
	for (i = 1; i < copies.num; i++)
		*bytes_out += copies.bytes[i];
	if (ucm_files_unlink(quotas->tree, path))
		return FAILED;
	ucm_files_removed(quotas->nodes, folder, name, -1);
	if (known && ops && ops->removed)
		ops->removed(ops->arg, child.node);
	return EVICTED;
}

static enum outcome evict_one(struct ucm_files_quotas *quotas,
			      struct ucm_files_mark *mark,
			      const struct ucm_quota_victim *victim,
			      uint64_t *bytes_out)
{
	char *name = strrchr(victim->path, '/') + 1, path[PATH_MAX];
	struct ucm_files_node *folder;
	enum outcome outcome = GONE;
	struct ucm_files_lock lock;

	name[-1] = '\0';
	folder = reach(quotas, victim->path);
	name[-1] = '/';
	if (!folder)
		return GONE;
	if (!ucm_files_lock_name(quotas->nodes, folder, name, &lock, path)) {
		outcome = evict_locked(quotas, mark, folder, name, path, victim,
				       bytes_out);
		ucm_files_unlock(&lock);
	}
	ucm_files_forget(quotas->nodes, folder, 1);
	return outcome;
}

static const char *const outcomes[] = {
	[GONE] = "no longer what it was",
	[OPEN] = "open, and stays",
	[FAILED] = "it cannot be removed",
	[EVICTED] = "removed",
};

/* The next of the pool. */
static void evict_next(struct ucm_files_quotas *quotas,
		       struct ucm_files_mark *mark)
{
	struct ucm_quota_pool *pool = &mark->pool;
	struct ucm_quota_victim *victim = &pool->list[pool->next++];
	enum outcome outcome = FAILED;
	uint64_t bytes = 0;

	if (!pool->skip[victim->dir])
		outcome = evict_one(quotas, mark, victim, &bytes);
	ucm_debug(TIER, 1, "%s: over its folder's quota: %s", victim->path,
		  outcomes[outcome]);
	pool->skip[victim->dir] |= outcome == FAILED;
	pool->open += outcome == OPEN;
	free(victim->path);
	if (outcome != EVICTED)
		return;
	pool->evicted++;
	pthread_mutex_lock(&quotas->lock);
	mark->files_evicted++;
	mark->bytes_evicted += bytes;
	pthread_mutex_unlock(&quotas->lock);
}

/* ---- steps ---- */

/* Nothing may go: whoever waits for room hears it. */
static void give_up(struct ucm_files_quotas *quotas,
		    struct ucm_files_mark *mark, int64_t took_ms)
{
	const struct ucm_quota_pool *pool = &mark->pool;
	int64_t pause_ms = took_ms * 20;
	bool tell;

	pause_ms = pause_ms < AGAIN_MS	     ? AGAIN_MS
		   : pause_ms > AGAIN_MAX_MS ? AGAIN_MAX_MS
					     : pause_ms;
	pthread_mutex_lock(&quotas->lock);
	mark->again_ms = ucm_monotonic_ms() + pause_ms;
	tell = !mark->full && ucm_quota_is_reached(mark);
	mark->full |= tell;
	pthread_cond_broadcast(&quotas->room);
	if (tell)
		ucm_warning("%s: its quota of %llu bytes is used up, and "
			    "nothing may go: of %llu files %llu are open and "
			    "%llu were changed in the last %u s; new files are "
			    "refused (EDQUOT)",
			    mark->path, (unsigned long long)mark->quota,
			    (unsigned long long)pool->seen,
			    (unsigned long long)pool->open,
			    (unsigned long long)pool->young, mark->grace_s);
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

/* Nothing could be removed of all that was in the pool. */
static bool was_in_vain(const struct ucm_quota_pool *pool)
{
	return pool->next == pool->num && !pool->evicted;
}

static void evict_some(struct ucm_files_quotas *quotas,
		       struct ucm_files_mark *mark)
{
	struct ucm_quota_pool *pool = &mark->pool;
	int64_t began_ms = ucm_monotonic_ms();
	bool current, looked = true;

	pthread_mutex_lock(&quotas->lock);
	current = pool->of == mark->changes;
	pthread_mutex_unlock(&quotas->lock);
	if (!current || pool->next == pool->num) {
		looked = mark->whole || mark->files <= quotas->see_whole
				 ? look_at_all(quotas, mark)
				 : look_at_some(quotas, mark);
		mark->whole = false;
	}
	for (unsigned i = 0; i < STEP_FILES && pool->next < pool->num &&
			     needs_eviction(quotas, mark);
	     i++)
		evict_next(quotas, mark);
	if (was_in_vain(pool) && needs_eviction(quotas, mark)) {
		if (pool->whole || !looked)
			give_up(quotas, mark, ucm_monotonic_ms() - began_ms);
		else
			mark->whole = true;
	}
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
