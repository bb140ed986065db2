/* SPDX-License-Identifier: Apache-2.0 */
/* opstats.c - how long requests take, and how they fail; see opstats.h. */
#include <config.h>

#include "fs/watch/opstats.h"

#include <stdlib.h>
#include <string.h>

#define SHARDS 16u /* a power of two */
#define CACHE_LINE 64

const char *const ucm_op_names[UCM_OP_COUNT] = {
#define NAME(id, name) [UCM_OP_##id] = name,
	UCM_OPS(NAME)
#undef NAME
};

struct shard {
	struct {
		_Atomic uint64_t buckets[UCM_OP_BUCKETS];
		_Atomic uint64_t sum_ns;
	} ops[UCM_OP_COUNT];
} __attribute__((aligned(CACHE_LINE)));

struct ucm_opstats {
	struct shard shards[SHARDS];
	/* rarer than successes, except for absent names */
	_Atomic uint64_t errors[UCM_OP_COUNT][UCM_ERRNOS];
};

struct ucm_opstats *ucm_opstats_new(void)
{
	struct ucm_opstats *stats = aligned_alloc(CACHE_LINE, sizeof(*stats));

	if (stats)
		memset(stats, 0, sizeof(*stats));
	return stats;
}

void ucm_opstats_free(struct ucm_opstats *stats)
{
	free(stats);
}

/* Threads take shards in turn, and keep them. */
static struct shard *my_shard(struct ucm_opstats *stats)
{
	static _Atomic unsigned next;
	static _Thread_local unsigned mine = UINT32_MAX;

	if (__builtin_expect(mine == UINT32_MAX, 0))
		mine = atomic_fetch_add(&next, 1) % SHARDS;
	return &stats->shards[mine];
}

static unsigned bucket_of(uint64_t ns)
{
	unsigned bits = ns >> 10 ? 64 - (unsigned)__builtin_clzll(ns >> 10) : 0;

	return bits < UCM_OP_BOUNDS ? bits : UCM_OP_BOUNDS;
}

void ucm_opstats_add(struct ucm_opstats *stats, enum ucm_op op, uint64_t ns,
		     int err)
{
	struct shard *shard = my_shard(stats);

	ucm_count(&shard->ops[op].buckets[bucket_of(ns)]);
	ucm_count_more(&shard->ops[op].sum_ns, ns);
	if (err)
		ucm_count_errno(stats->errors[op], err);
}

void ucm_opstats_times(const struct ucm_opstats *stats, enum ucm_op op,
		       struct ucm_op_times *out)
{
	*out = (struct ucm_op_times){ 0 };
	for (unsigned i = 0; i < SHARDS; i++) {
		const struct shard *shard = &stats->shards[i];

		for (unsigned j = 0; j < UCM_OP_BUCKETS; j++)
			out->buckets[j] +=
				ucm_counted(&shard->ops[op].buckets[j]);
		out->sum_ns += ucm_counted(&shard->ops[op].sum_ns);
	}
	for (unsigned j = 0; j < UCM_OP_BUCKETS; j++)
		out->count += out->buckets[j];
}

uint64_t ucm_opstats_errors(const struct ucm_opstats *stats, enum ucm_op op,
			    unsigned error)
{
	return ucm_counted(&stats->errors[op][error]);
}
