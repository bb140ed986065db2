/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.c - filling the index at the start.
 *
 * Every bucket of every space of every directory is a task; a few threads take
 * tasks in order, while the mount serves already. A bucket that is listed
 * before its turn is scanned by whoever lists it (bucket.c). When all tasks are
 * done, what is in doubt after an unclean stop is checked by the same threads,
 * which share the index by its shards; and what came from snapshots alone is
 * listed after all.
 *
 * What could not be read then, or checked, is tried again by the directory's
 * own thread (keeper.c), so that one that hangs keeps no other waiting.
 */
#include <config.h>

#include "fs/store/inside.h"

#include <errno.h>

#include "common/log.h"
#include "hashing/name.h"
#include "fs/index/memory.h"

/* What a task's number stands for. */
struct task {
	struct ucm_space *space; /* NULL: it is gone */
	unsigned dir, bucket;
};

static unsigned dir_of_task(const struct ucm_store *set, uint64_t number)
{
	return (unsigned)(number / UCM_BUCKETS / set->scan_spaces);
}

static struct task task_of(struct ucm_store *set, uint64_t number)
{
	unsigned space = (unsigned)(number / UCM_BUCKETS % set->scan_spaces);

	return (struct task){
		.space = ucm_namespace_get(&set->names, space),
		.dir = dir_of_task(set, number),
		.bucket = (unsigned)(number % UCM_BUCKETS),
	};
}

static int run_task(struct ucm_store *set, uint64_t number)
{
	struct task task = task_of(set, number);

	if (task.space &&
	    !ucm_space_is_scanned(task.space, task.dir, task.bucket))
		return ucm_store_scan_bucket(set, task.space, task.dir,
					     task.bucket);
	return 0;
}

bool ucm_scan_knows(struct ucm_store *set, unsigned dir)
{
	for (unsigned i = 0; i < set->scan_spaces; i++) {
		struct ucm_space *space = ucm_namespace_get(&set->names, i);

		for (unsigned word = 0; space && word < 4; word++) {
			if (~atomic_load(&space->scanned[4 * dir + word]))
				return false;
		}
	}
	return true;
}

/* A directory that could not be read keeps its names unknown: then the index
 * never counts as whole, and what it lacks is probed for. */
static bool all_scanned(struct ucm_store *set)
{
	if (atomic_load(&set->dirs_left))
		return false;
	for (unsigned dir = 0; dir < set->dirs.num; dir++) {
		if (!ucm_scan_knows(set, dir))
			return false;
	}
	return true;
}

static void mark_pinned(void *arg, const char *name, const struct ucm_id *id)
{
	struct ucm_store *set = arg;
	struct ucm_space *space = *name ? ucm_namespace_find(&set->names, name)
					: set->names.spaces[0];
	struct ucm_key key = { .id = *id };
	ucm_ref ref;

	if (!space)
		return;
	key.space = space->number;
	if (ucm_index_find(set->index, &key, NULL, &ref))
		ucm_index_flag(set->index, ref, UCM_ENTRY_PINNED, true);
}

/* What others put into a bucket behind an earlier mount, the snapshot does not
 * know, and its times do not tell. */
static void audit(struct ucm_store *set)
{
	for (uint64_t number = 0; number < set->num_tasks; number++) {
		struct task task = task_of(set, number);

		if (atomic_load(&set->stopping))
			return;
		if (task.space && ucm_snapshots_trusted(set, task.space,
							task.dir, task.bucket))
			ucm_store_scan_bucket(set, task.space, task.dir,
					      task.bucket);
	}
}

static void scan_ended(struct ucm_store *set)
{
	if (!all_scanned(set) || atomic_exchange(&set->scanned, true))
		return;
	ucm_index_memory_set_complete(ucm_index_live(set->index));
	ucm_info("%llu blocks found",
		 (unsigned long long)atomic_load(&set->blocks));
}

/* All tasks of a directory have been tried. */
static void dir_ended(struct ucm_store *set, unsigned dir)
{
	ucm_backing_each_pin(set->dirs.at[dir], mark_pinned, set);
	atomic_fetch_sub(&set->dirs_left, 1);
	scan_ended(set);
}

void ucm_scan_retry(struct ucm_store *set, unsigned dir)
{
	uint64_t num = (uint64_t)set->scan_spaces * UCM_BUCKETS;

	if (atomic_load(&set->keepers[dir].tasks_left) ||
	    ucm_scan_knows(set, dir))
		return;
	for (uint64_t task = dir * num; task < (dir + 1) * num; task++) {
		if (atomic_load(&set->stopping))
			return;
		/* one that fails again is not asked 256 times */
		if (run_task(set, task))
			task += UCM_BUCKETS - task % UCM_BUCKETS - 1;
	}
	ucm_backing_each_pin(set->dirs.at[dir], mark_pinned, set);
	scan_ended(set);
}

static void settle_shard(struct ucm_store *set, unsigned shard, unsigned dir)
{
	ucm_store_each_flagged(set, shard, dir, UCM_ENTRY_DOUBT,
			       ucm_store_settle);
}

/* All that is in doubt; by several threads, each of which takes shards. */
static void settle_all(struct ucm_store *set)
{
	unsigned shard;

	while (atomic_load(&set->doubts) && !atomic_load(&set->stopping) &&
	       (shard = atomic_fetch_add(&set->next_shard, 1)) < UCM_BUCKETS)
		settle_shard(set, shard, UCM_ALL_DIRS);
}

void ucm_scan_settle(struct ucm_store *set, unsigned dir)
{
	const struct ucm_keeper *keeper = &set->keepers[dir];

	if (atomic_load(&keeper->tasks_left))
		return;
	/* from the other end than the threads of the scan, who may be at it */
	for (unsigned shard = UCM_BUCKETS; shard-- > 0;) {
		if (!atomic_load(&keeper->doubts) ||
		    atomic_load(&set->stopping))
			return;
		settle_shard(set, shard, dir);
	}
}

/* ---- threads ---- */

static void task_ended(struct ucm_store *set, uint64_t number)
{
	unsigned dir = dir_of_task(set, number);

	if (atomic_fetch_sub(&set->keepers[dir].tasks_left, 1) == 1)
		dir_ended(set, dir);
	if (atomic_fetch_add(&set->tasks_done, 1) + 1 < set->num_tasks)
		return;
	pthread_mutex_lock(&set->upkeep_lock);
	pthread_cond_broadcast(&set->upkeep_wake);
	pthread_mutex_unlock(&set->upkeep_lock);
}

static void wait_for_last_task(struct ucm_store *set)
{
	pthread_mutex_lock(&set->upkeep_lock);
	while (atomic_load(&set->tasks_done) < set->num_tasks &&
	       !atomic_load(&set->stopping))
		pthread_cond_wait(&set->upkeep_wake, &set->upkeep_lock);
	pthread_mutex_unlock(&set->upkeep_lock);
}

static void *scan_main(void *arg)
{
	struct ucm_store *set = arg;
	uint64_t task;

	while (!atomic_load(&set->stopping) &&
	       (task = atomic_fetch_add(&set->next_task, 1)) < set->num_tasks) {
		run_task(set, task);
		task_ended(set, task);
	}
	wait_for_last_task(set);
	settle_all(set);
	if (!atomic_exchange(&set->audited, true)) {
		audit(set);
		ucm_snapshots_close(set);
	}
	return NULL;
}

int ucm_scan_start(struct ucm_store *set)
{
	uint64_t num = (uint64_t)set->scan_spaces * UCM_BUCKETS;

	set->num_tasks = set->dirs.num * num;
	set->dirs_left = set->dirs.num;
	for (unsigned dir = 0; dir < set->dirs.num; dir++)
		set->keepers[dir].tasks_left = num;
	for (unsigned i = 0; i < set->config->scan_threads; i++) {
		int err = pthread_create(&set->scan_threads[i], NULL,
					 scan_main, set);

		if (err)
			return set->num_scan_threads ? 0 : -err;
		set->num_scan_threads++;
	}
	return 0;
}

void ucm_scan_stop(struct ucm_store *set)
{
	pthread_mutex_lock(&set->upkeep_lock);
	pthread_cond_broadcast(&set->upkeep_wake);
	pthread_mutex_unlock(&set->upkeep_lock);
	for (unsigned i = 0; i < set->num_scan_threads; i++)
		pthread_join(set->scan_threads[i], NULL);
	set->num_scan_threads = 0;
}
