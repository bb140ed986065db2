/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict_bench.c - how fast are blocks evicted from a store, files and all, and
 * who waits for that?
 *
 * A store of one directory, which has the blocks already, without a mount. Its
 * index is filled by the scan; then the memory of index, lists and policy is
 * counted. In each round blocks are evicted, and beside that another thread looks
 * up names; before, the same thread looks up as many alone.
 *
 * usage: evict_bench DIRECTORY VICTIMS ROUNDS; a line for each figure: name,
 * value, unit. bench/evict makes the directory.
 */
#include <config.h>

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "common/parse.h"
#include "fs/store/evict.h"
#include "fs/store/mover.h"
#include "fs/tier/config.h"

#define ME "evict_bench"
#define NAMES 65536u
#define LOOKUPS 2000000u
#define SLOW_US 200

static struct bench {
	struct ucm_config config;
	struct ucm_store *store;
	struct ucm_key names[NAMES];
	unsigned num_names;
	_Atomic bool over;
	double *took; /* us, of each look-up */
	size_t num_took;
	double longest; /* of those that kept their processor */
} bench;

static void die(const char *what)
{
	fprintf(stderr, ME ": %s\n", what);
	exit(1);
}

static double us_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static double now_us(void)
{
	return us_of(CLOCK_MONOTONIC);
}

/* How often this thread's processor was given to others. */
static long preempted(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nivcsw;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static uint64_t number(const char *text)
{
	uint64_t value;

	if (ucm_parse_range(text, 1, UINT32_MAX, &value))
		die("not a number");
	return value;
}

/* ---- the store ---- */

static void set(const char *key, const char *value)
{
	struct ucm_error error;

	if (ucm_config_set(&bench.config, key, value, &error))
		die(error.text);
}

/* And until the policy has made itself as large as it is to be. */
static void wait_scanned(void)
{
	static const struct timespec moment = {.tv_nsec = 10000000};
	static const struct timespec learnt = {.tv_sec = 3};

	while (!atomic_load(&bench.store->scanned))
		nanosleep(&moment, NULL);
	nanosleep(&learnt, NULL);
}

static void open_store(const char *directory)
{
	struct ucm_error error;

	ucm_config_init(&bench.config);
	if (ucm_config_source(&bench.config, directory, &error))
		die(error.text);
	set("checkpoint", "0");
	set("movers", "1");
	if (ucm_store_open(&bench.config, &bench.store, &error))
		die(error.text);
	if (ucm_store_start(bench.store))
		die("the store does not start");
	wait_scanned();
}

static uint64_t heap(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

/* Of one that knows of as many blocks as the store's does. */
static uint64_t policy_memory(void)
{
	uint64_t before = heap(), bytes;
	struct ucm_policy *policy;

	if (ucm_policy_new(bench.store->value.policy->ops, 1,
			   bench.store->value.capacity, &policy))
		die("no memory");
	bytes = heap() - before;
	ucm_policy_free(policy);
	return bytes;
}

static void tell_memory(void)
{
	struct ucm_store *store = bench.store;
	double blocks = (double)atomic_load(&store->blocks);
	double index = (double)ucm_index_memory(store->index);
	double list = (double)ucm_members_memory(&store->members[0]);
	double policy = (double)policy_memory();

	printf("blocks\t%.0f\t\n", blocks);
	printf("memory of a block, index\t%.1f\tB\n", index / blocks);
	printf("memory of a block, list\t%.1f\tB\n", list / blocks);
	printf("memory of a block, policy\t%.1f\tB\n", policy / blocks);
	printf("memory of a block, all\t%.1f\tB\n",
	       (index + list + policy) / blocks);
}

/* ---- look-ups ---- */

static bool take_name(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	(void)ref, (void)arg;
	if (bench.num_names < NAMES)
		bench.names[bench.num_names++] = (struct ucm_key){
			.id = entry->id,
			.space = entry->space,
		};
	return false;
}

static void take_names(void)
{
	for (unsigned shard = 0; shard < UCM_BUCKETS; shard++) {
		uint32_t cursor = 0;

		for (unsigned i = 0; i < 4; i++)
			ucm_index_walk(bench.store->index, shard, &cursor,
				       take_name, NULL);
	}
	if (!bench.num_names)
		die("the directory has no blocks");
}

/* One that took long: for what it waited, or because others computed? */
static void look_closer(double took, long *times)
{
	long now;

	if (took <= SLOW_US)
		return;
	now = preempted();
	if (now == *times && took > bench.longest)
		bench.longest = took;
	*times = now;
}

static void *look_up(void *arg)
{
	long times = preempted();

	(void)arg;
	bench.longest = 0;
	for (bench.num_took = 0;
	     !atomic_load(&bench.over) && bench.num_took < LOOKUPS;
	     bench.num_took++) {
		double began = now_us();
		struct ucm_entry entry;
		ucm_ref ref;

		ucm_store_find(bench.store,
			       &bench.names[bench.num_took % bench.num_names],
			       &entry, &ref);
		bench.took[bench.num_took] = now_us() - began;
		look_closer(bench.took[bench.num_took], &times);
	}
	return NULL;
}

static void tell_lookups(const char *what)
{
	size_t num = bench.num_took;

	qsort(bench.took, num, sizeof(*bench.took), by_value);
	printf("look-up %s, median\t%.2f\tus\n", what, bench.took[num / 2]);
	printf("look-up %s, 99.99 %%\t%.1f\tus\n", what,
	       bench.took[num - 1 - num / 10000]);
	printf("look-up %s, longest\t%.0f\tus\n", what, bench.took[num - 1]);
	printf("look-up %s, longest that kept its processor\t%.0f\tus\n",
	       what, bench.longest);
}

/* ---- rounds ---- */

static void evict(uint64_t victims, uint64_t block_bytes)
{
	double began = now_us(), computed = us_of(CLOCK_THREAD_CPUTIME_ID);
	double gone;
	uint64_t freed;

	if (ucm_evict_bytes(bench.store, 0, victims * block_bytes,
			    UCM_EVICT_AT_ONCE, NULL, &freed))
		die("not as many blocks as were to go");
	gone = (double)freed / (double)block_bytes;
	printf("victims a second\t%.0f\t\n", gone / (now_us() - began) * 1e6);
	printf("victims a second of a processor\t%.0f\t\n",
	       gone / (us_of(CLOCK_THREAD_CPUTIME_ID) - computed) * 1e6);
}

static void run_round(uint64_t victims)
{
	uint64_t block_bytes = atomic_load(&bench.store->dirs.at[0]->used) /
			       atomic_load(&bench.store->blocks);
	pthread_t thread;

	atomic_store(&bench.over, false);
	look_up(NULL);
	tell_lookups("alone");
	if (pthread_create(&thread, NULL, look_up, NULL))
		die("no thread");
	evict(victims, block_bytes);
	atomic_store(&bench.over, true);
	pthread_join(thread, NULL);
	tell_lookups("beside evictions");
	atomic_store(&bench.over, false);
}

int main(int argc, char **argv)
{
	uint64_t victims, rounds, blocks;

	if (argc != 4)
		die("usage: " ME " DIRECTORY VICTIMS ROUNDS");
	victims = number(argv[2]);
	rounds = number(argv[3]);
	bench.took = malloc(LOOKUPS * sizeof(*bench.took));
	if (!bench.took)
		die("no memory");
	open_store(argv[1]);
	blocks = atomic_load(&bench.store->blocks);
	take_names();
	tell_memory();
	if (blocks <= victims * rounds)
		die("fewer blocks than victims");
	for (uint64_t i = 0; i < rounds; i++)
		run_round(victims);
	ucm_store_close(bench.store);
	ucm_config_fini(&bench.config);
	free(bench.took);
	return 0;
}
