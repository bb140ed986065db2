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

#include "fs/store/start/start.h"

#include "common/log.h"
#include "fs/index/memory.h"
#include "fs/store/jobs.h"
#include "hashing/tree.h"

/* What a task's number stands for. */
struct task {
	struct ucm_space *space; /* NULL: it is gone */
	unsigned dir, bucket;
};

static unsigned dir_of_task(const struct ucm_store *store, uint64_t number)
{
	return (unsigned)(number / UCM_BUCKETS / store->scan.spaces);
}

static struct task scan_task_of(struct ucm_store *store, uint64_t number)
{
	unsigned space = (unsigned)(number / UCM_BUCKETS % store->scan.spaces);

	return (struct task){
		.space = ucm_namespace_get(&store->names, space),
		.dir = dir_of_task(store, number),
		.bucket = (unsigned)(number % UCM_BUCKETS),
	};
}

static int scan_run_task(struct ucm_store *store, uint64_t number)
{
	struct task task = scan_task_of(store, number);

	if (task.space &&
	    !ucm_space_is_scanned(task.space, task.dir, task.bucket))
		return ucm_store_scan_bucket(store, task.space, task.dir,
					     task.bucket);
	return 0;
}

/* A directory that could not be read keeps its names unknown: then the index
 * never counts as whole, and what it lacks is probed for. */
static bool all_scanned(struct ucm_store *store)
{
	if (atomic_load(&store->scan.dirs_left))
		return false;
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (!ucm_store_knows(store, dir))
			return false;
	}
	return true;
}

/* What others put into a bucket during an earlier mount, the snapshot does not
 * know, and its times do not show. */
static void scan_audit(struct ucm_store *store)
{
	for (uint64_t number = 0; number < store->scan.num_tasks; number++) {
		struct task task = scan_task_of(store, number);

		if (atomic_load(&store->life.stopping))
			return;
		if (task.space && ucm_snapshots_trusted(store, task.space,
							task.dir, task.bucket))
			ucm_store_scan_bucket(store, task.space, task.dir,
					      task.bucket);
	}
}

static void scan_ended(struct ucm_store *store)
{
	ucm_jobs_lack(store->jobs); /* movers may have looked before */
	if (!all_scanned(store) || atomic_exchange(&store->scan.complete, true))
		return;
	/* what others add to a shared directory it does not have: who maps it asks */
	if (!ucm_store_is_shared(store))
		ucm_index_memory_set_complete(ucm_index_live(store->index));
	ucm_info("%llu blocks found",
		 (unsigned long long)atomic_load(&store->blocks));
}

/* All tasks of a directory have been tried. */
static void dir_ended(struct ucm_store *store, unsigned dir)
{
	ucm_pins_read(store, dir);
	atomic_fetch_sub(&store->scan.dirs_left, 1);
	scan_ended(store);
}

void ucm_scan_retry(struct ucm_store *store, unsigned dir)
{
	uint64_t num = (uint64_t)store->scan.spaces * UCM_BUCKETS;

	if (atomic_load(&store->keepers[dir].tasks_left) ||
	    ucm_store_knows(store, dir))
		return;
	for (uint64_t task = dir * num; task < (dir + 1) * num; task++) {
		if (atomic_load(&store->life.stopping))
			return;
		/* one that fails again is not asked 256 times */
		if (scan_run_task(store, task))
			task += UCM_BUCKETS - task % UCM_BUCKETS - 1;
	}
	ucm_pins_read(store, dir);
	scan_ended(store);
}

static void scan_settle_shard(struct ucm_store *store, unsigned shard,
			      unsigned dir)
{
	ucm_store_each_flagged(store, shard, dir, UCM_ENTRY_DOUBT,
			       ucm_store_settle);
}

/* All that is in doubt; by several threads, each of which takes shards. */
static void scan_settle_all(struct ucm_store *store)
{
	unsigned shard;

	while (atomic_load(&store->doubts) &&
	       !atomic_load(&store->life.stopping) &&
	       (shard = atomic_fetch_add(&store->scan.next_shard, 1)) <
		       UCM_BUCKETS)
		scan_settle_shard(store, shard, UCM_ALL_DIRS);
}

void ucm_scan_settle(struct ucm_store *store, unsigned dir)
{
	const struct ucm_keeper *keeper = &store->keepers[dir];

	if (atomic_load(&keeper->tasks_left))
		return;
	/* from the other end than the threads of the scan, who may be at it */
	for (unsigned shard = UCM_BUCKETS; shard-- > 0;) {
		if (!atomic_load(&keeper->doubts) ||
		    atomic_load(&store->life.stopping))
			return;
		scan_settle_shard(store, shard, dir);
	}
}

/* ---- threads ---- */

static void task_ended(struct ucm_store *store, uint64_t number)
{
	unsigned dir = dir_of_task(store, number);

	if (atomic_fetch_sub(&store->keepers[dir].tasks_left, 1) == 1)
		dir_ended(store, dir);
	if (atomic_fetch_add(&store->scan.tasks_done, 1) + 1 <
	    store->scan.num_tasks)
		return;
	pthread_mutex_lock(&store->life.lock);
	pthread_cond_broadcast(&store->life.wake);
	pthread_mutex_unlock(&store->life.lock);
}

static void wait_for_last_task(struct ucm_store *store)
{
	pthread_mutex_lock(&store->life.lock);
	while (atomic_load(&store->scan.tasks_done) < store->scan.num_tasks &&
	       !atomic_load(&store->life.stopping))
		pthread_cond_wait(&store->life.wake, &store->life.lock);
	pthread_mutex_unlock(&store->life.lock);
}

static void *scan_main(void *arg)
{
	struct ucm_store *store = arg;
	void (*beside)(struct ucm_dirs *dirs, const _Atomic bool *stopping);
	uint64_t task;

	while (!atomic_load(&store->life.stopping) &&
	       (task = atomic_fetch_add(&store->scan.next_task, 1)) <
		       store->scan.num_tasks) {
		ucm_pins_read(store, dir_of_task(store, task));
		scan_run_task(store, task);
		task_ended(store, task);
	}
	beside = atomic_exchange(&store->scan.beside, NULL);
	if (beside)
		beside(&store->dirs, &store->life.stopping);
	wait_for_last_task(store);
	scan_settle_all(store);
	if (!atomic_exchange(&store->scan.audited, true)) {
		scan_audit(store);
		ucm_snapshots_close(store);
	}
	return NULL;
}

int ucm_scan_start(struct ucm_store *store)
{
	uint64_t num = (uint64_t)store->scan.spaces * UCM_BUCKETS;

	store->scan.num_tasks = store->dirs.num * num;
	store->scan.dirs_left = store->dirs.num;
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		store->keepers[dir].tasks_left = num;
	for (unsigned i = 0; i < store->config->scan_threads; i++) {
		int err = pthread_create(&store->scan.threads[i], NULL,
					 scan_main, store);

		if (err)
			return store->scan.num_threads ? 0 : -err;
		store->scan.num_threads++;
	}
	return 0;
}

void ucm_scan_stop(struct ucm_store *store)
{
	pthread_mutex_lock(&store->life.lock);
	pthread_cond_broadcast(&store->life.wake);
	pthread_mutex_unlock(&store->life.lock);
	for (unsigned i = 0; i < store->scan.num_threads; i++)
		pthread_join(store->scan.threads[i], NULL);
	store->scan.num_threads = 0;
}
