/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_bench.c - what it costs a request to be counted and traced.
 *
 * trace_bench [FILE [THREADS [ROUNDS]]]: nanoseconds of a request's two clock
 * readings, of its count, and of its record in a trace in FILE, one thread and
 * several at once: each the median of the rounds. FILE becomes a trace.
 */
#include <config.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "fs/watch/opstats.h"
#include "fs/watch/trace.h"

#define CALLS 200000u
#define MAX_THREADS 256
#define MAX_ROUNDS 1000

static struct ucm_opstats *stats;
static struct ucm_trace *trace;
static volatile int64_t sink;

static void read_clocks(unsigned i)
{
	(void)i;
	sink = ucm_monotonic_ns();
	sink = ucm_monotonic_ns();
}

static void count(unsigned i)
{
	ucm_opstats_add(stats, UCM_OP_LOOKUP, i, 0);
}

static void record(unsigned i)
{
	struct ucm_trace_record one = {
		.time_ns = ucm_trace_time(trace, i),
		.id.bytes = { (uint8_t)i },
		.bytes = 4096,
		.duration_ns = i,
		.op = UCM_OP_LOOKUP,
		.tier = 0,
		.dir = 0,
	};

	ucm_trace_add(trace, &one);
}

static void all(unsigned i)
{
	read_clocks(i);
	count(i);
	record(i);
}

static const struct work {
	const char *name;
	void (*call)(unsigned i);
} works[] = {
	{ "two clock readings", read_clocks },
	{ "counting", count },
	{ "a record in the trace", record },
	{ "all of it", all },
};
#define NUM_WORKS (sizeof(works) / sizeof(works[0]))

struct job {
	const struct work *work;
	pthread_barrier_t *start;
	pthread_t thread;
	double ns;
};

static void *run(void *arg)
{
	struct job *job = arg;
	int64_t began;

	pthread_barrier_wait(job->start);
	began = ucm_monotonic_ns();
	for (unsigned i = 0; i < CALLS; i++)
		job->work->call(i);
	job->ns = (double)(ucm_monotonic_ns() - began) / CALLS;
	return NULL;
}

/* The slowest thread's time of a call. */
static double one_round(const struct work *work, unsigned threads)
{
	struct job jobs[MAX_THREADS];
	pthread_barrier_t start;
	double most = 0;

	pthread_barrier_init(&start, NULL, threads);
	for (unsigned i = 0; i < threads; i++) {
		jobs[i] = (struct job){ .work = work, .start = &start };
		if (pthread_create(&jobs[i].thread, NULL, run, &jobs[i]))
			exit(1);
	}
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(jobs[i].thread, NULL);
		most = jobs[i].ns > most ? jobs[i].ns : most;
	}
	pthread_barrier_destroy(&start);
	return most;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(const struct work *work, unsigned threads,
		     unsigned rounds)
{
	double ns[MAX_ROUNDS];

	for (unsigned i = 0; i < rounds; i++)
		ns[i] = one_round(work, threads);
	qsort(ns, rounds, sizeof(ns[0]), compare);
	return ns[rounds / 2];
}

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : "/dev/shm/ucmfs-bench-trace";
	unsigned threads = argc > 2 ? (unsigned)atoi(argv[2]) : 2;
	unsigned rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 31;
	const char *tier = "tier";
	struct ucm_trace_names names = {
		.ops = ucm_op_names, .num_ops = UCM_OP_COUNT,
		.tiers = &tier, .num_tiers = 1, .mount = "",
	};
	int err;

	if (threads < 1 || threads > MAX_THREADS || rounds < 1 ||
	    rounds > MAX_ROUNDS) {
		fprintf(stderr, "usage: trace_bench [FILE [THREADS [ROUNDS]]]\n");
		return 2;
	}
	stats = ucm_opstats_new();
	err = stats ? ucm_trace_open(path, 64 << 20, &names, &trace) : -1;
	if (err) {
		fprintf(stderr, "trace_bench: %s: %s\n", path, strerror(-err));
		return 1;
	}
	printf("%-24s %10s %10u threads\n", "ns a call", "1 thread", threads);
	for (size_t i = 0; i < NUM_WORKS; i++)
		printf("%-24s %10.1f %10.1f\n", works[i].name,
		       median(&works[i], 1, rounds),
		       median(&works[i], threads, rounds));
	ucm_trace_close(trace);
	ucm_opstats_free(stats);
	return 0;
}
