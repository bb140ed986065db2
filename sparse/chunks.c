/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunks.c - which text of a request is cached elsewhere, and what of it is
 * computed all the same.
 *
 * Chunks begin at multiples of their size, in the request and in the sources. So
 * each chunk is compared with each of the sources' chunks, and nearly always that
 * ends at the first token: no index is kept.
 */
#include <config.h>

#include <ucm/position.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/error.h"

static uint32_t least_of(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* ---- found ---- */

static int config_check(const struct ucm_chunk_config *config,
			struct ucm_error *error)
{
	if (!config)
		return ucm_error_set(error, -EINVAL, "config is NULL");
	if (!config->chunk_tokens)
		return ucm_error_set(error, -EINVAL, "chunk_tokens is 0");
	if (!(config->min_match_ratio >= 0 && config->min_match_ratio <= 1))
		return ucm_error_set(error, -EINVAL, "min_match_ratio %g: "
				     "from 0 to 1", config->min_match_ratio);
	return 0;
}

/* Do all tokens have positions? */
static int positions_check(const char *name, uint32_t first, uint32_t num,
			   struct ucm_error *error)
{
	if ((uint64_t)first + num <= UCM_POSITION_MAX)
		return 0;
	return ucm_error_set(error, -EINVAL, "%s %" PRIu32 " + %" PRIu32
			     " tokens: up to %d", name, first, num,
			     UCM_POSITION_MAX);
}

static int sources_check(const struct ucm_chunk_source *sources, uint32_t num,
			 struct ucm_error *error)
{
	int err = 0;

	if (num && !sources)
		return ucm_error_set(error, -EINVAL, "sources is NULL");
	for (uint32_t i = 0; !err && i < num; i++) {
		if (sources[i].num_tokens && !sources[i].tokens)
			return ucm_error_set(error, -EINVAL, "sources: number %"
					     PRIu32 " has no tokens", i);
		err = positions_check("sources: position", sources[i].position,
				      sources[i].num_tokens, error);
	}
	return err;
}

static uint32_t match_length(const int64_t *a, const int64_t *b, uint32_t num)
{
	uint32_t i = 0;

	while (i < num && a[i] == b[i])
		i++;
	return i;
}

/* The longest match of a chunk's tokens; kind is still open. */
static void find_longest(const struct ucm_chunk_config *config,
			 const int64_t *tokens,
			 const struct ucm_chunk_source *sources,
			 uint32_t num_sources, struct ucm_chunk *chunk)
{
	uint32_t num = chunk->end - chunk->begin;

	for (uint32_t i = 0; i < num_sources; i++) {
		const struct ucm_chunk_source *source = &sources[i];
		uint64_t at = 0; /* adding to it does not overflow */

		for (; at < source->num_tokens; at += config->chunk_tokens) {
			uint32_t left = source->num_tokens - (uint32_t)at;
			uint32_t length = match_length(tokens,
						       source->tokens + at,
						       least_of(num, left));

			if (length <= chunk->matched)
				continue;
			chunk->matched = length;
			chunk->source = i;
			chunk->token = (uint32_t)at;
			if (length == num)
				return;
		}
	}
}

static struct ucm_chunk find_chunk(const struct ucm_chunk_config *config,
				   const int64_t *tokens, uint32_t num,
				   uint32_t begin,
				   const struct ucm_chunk_source *sources,
				   uint32_t num_sources)
{
	struct ucm_chunk chunk = { .begin = begin, .end = begin + num };

	find_longest(config, tokens, sources, num_sources, &chunk);
	if (!chunk.matched || chunk.matched < config->min_match_ratio * num)
		return (struct ucm_chunk){ .begin = begin, .end = begin + num };
	chunk.kind = chunk.matched == num ? UCM_CHUNK_FULL : UCM_CHUNK_PARTIAL;
	chunk.delta = (int32_t)begin -
		      (int32_t)(sources[chunk.source].position + chunk.token);
	return chunk;
}

int ucm_chunks_find(const struct ucm_chunk_config *config,
		    const int64_t *tokens, uint32_t num_tokens,
		    uint32_t position, const struct ucm_chunk_source *sources,
		    uint32_t num_sources, struct ucm_chunk *out, size_t room,
		    uint32_t *num_out, struct ucm_error *error)
{
	uint32_t size, num;
	int err = config_check(config, error);

	if (err)
		return err;
	size = config->chunk_tokens;
	num = num_tokens / size + (num_tokens % size != 0);
	if (!num_out || (num && (!tokens || !out)))
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !num_out  ? "num_out"
				     : !tokens ? "tokens" : "out");
	err = positions_check("position", position, num_tokens, error)
		?: sources_check(sources, num_sources, error);
	if (err)
		return err;
	if (room < num)
		return ucm_error_set(error, -EINVAL, "room %zu: there are %"
				     PRIu32 " chunks", room, num);
	for (uint32_t i = 0; i < num; i++) {
		uint32_t first = i * size;

		out[i] = find_chunk(config, tokens + first,
				    least_of(size, num_tokens - first),
				    position + first, sources, num_sources);
	}
	*num_out = num;
	return 0;
}

/* ---- ranges ---- */

/* Ascending ranges that are joined where they touch; out NULL: only counted. */
struct joined {
	struct ucm_range *out;
	uint32_t num;
	struct ucm_range last; /* if num > 0; not yet written */
};

static void joined_end(struct joined *joined)
{
	if (joined->num && joined->out)
		joined->out[joined->num - 1] = joined->last;
}

/* begin is not below that of any before. */
static void joined_add(struct joined *joined, uint32_t begin, uint32_t end)
{
	if (begin == end)
		return;
	if (joined->num && begin <= joined->last.end) {
		if (end > joined->last.end)
			joined->last.end = end;
		return;
	}
	joined_end(joined);
	joined->num++;
	joined->last = (struct ucm_range){ begin, end };
}

/* What is computed of a chunk. */
static void chunk_recompute(const struct ucm_chunk_config *config,
			    const struct ucm_chunk *chunk,
			    struct joined *joined)
{
	uint32_t head = config->head_tokens, tail = 0, used = chunk->matched;

	if (chunk->kind == UCM_CHUNK_PARTIAL) {
		tail = least_of(config->boundary_tokens, used);
		if (head < config->boundary_tokens)
			head = config->boundary_tokens;
	}
	joined_add(joined, chunk->begin, chunk->begin + least_of(head, used));
	joined_add(joined, chunk->begin + used - tail, chunk->end);
}

static int chunks_check(const struct ucm_chunk *chunks, uint32_t num,
			struct ucm_error *error)
{
	if (num && !chunks)
		return ucm_error_set(error, -EINVAL, "chunks is NULL");
	for (uint32_t i = 0; i < num; i++) {
		const struct ucm_chunk *chunk = &chunks[i];
		uint32_t size = chunk->end - chunk->begin;
		bool right = chunk->begin < chunk->end &&
			     (!i || chunks[i - 1].end <= chunk->begin);

		if (chunk->kind == UCM_CHUNK_NONE)
			right &= chunk->matched == 0;
		else if (chunk->kind == UCM_CHUNK_FULL)
			right &= chunk->matched == size;
		else
			right &= chunk->kind == UCM_CHUNK_PARTIAL &&
				 chunk->matched < size;
		if (!right)
			return ucm_error_set(error, -EINVAL, "chunks: number %"
					     PRIu32 " is not one that was "
					     "found, or not after the last",
					     i);
	}
	return 0;
}

static uint32_t recompute(const struct ucm_chunk_config *config,
			  const struct ucm_chunk *chunks, uint32_t num,
			  struct ucm_range *out)
{
	struct joined joined = { .out = out };

	for (uint32_t i = 0; i < num; i++)
		chunk_recompute(config, &chunks[i], &joined);
	joined_end(&joined);
	return joined.num;
}

int ucm_chunks_recompute(const struct ucm_chunk_config *config,
			 const struct ucm_chunk *chunks, uint32_t num,
			 struct ucm_range *out, size_t room, uint32_t *num_out,
			 struct ucm_error *error)
{
	uint32_t total;
	int err = config_check(config, error)
		?: chunks_check(chunks, num, error);

	if (err)
		return err;
	total = recompute(config, chunks, num, NULL);
	if (!num_out || (total && !out))
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     num_out ? "out" : "num_out");
	if (room < total)
		return ucm_error_set(error, -EINVAL, "room %zu: there are %"
				     PRIu32 " ranges", room, total);
	*num_out = recompute(config, chunks, num, out);
	return 0;
}

int ucm_chunks_deltas(const struct ucm_chunk *chunks, uint32_t num_chunks,
		      uint32_t first, int32_t *out, size_t num,
		      struct ucm_error *error)
{
	int err = chunks_check(chunks, num_chunks, error);

	if (err)
		return err;
	if (num && !out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	for (size_t i = 0; i < num; i++)
		out[i] = 0;
	for (uint32_t i = 0; i < num_chunks; i++) {
		const struct ucm_chunk *chunk = &chunks[i];
		uint64_t end = (uint64_t)chunk->begin + chunk->matched;
		uint64_t t = chunk->begin > first ? chunk->begin : first;

		for (; t < end && t - first < num; t++)
			out[t - first] = chunk->delta;
	}
	return 0;
}

static int by_begin(const void *a, const void *b)
{
	uint32_t x = ((const struct ucm_range *)a)->begin;
	uint32_t y = ((const struct ucm_range *)b)->begin;

	return (x > y) - (x < y);
}

int ucm_ranges_merge(struct ucm_range *ranges, uint32_t num, uint32_t *num_out,
		     struct ucm_error *error)
{
	struct joined joined = { .out = ranges };

	if (!num_out || (num && !ranges))
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     num_out ? "ranges" : "num_out");
	for (uint32_t i = 0; i < num; i++) {
		if (ranges[i].begin > ranges[i].end)
			return ucm_error_set(error, -EINVAL, "ranges: number %"
					     PRIu32 " ends before it begins",
					     i);
	}
	if (num)
		qsort(ranges, num, sizeof(*ranges), by_begin);
	/* what is written lies before what is read next */
	for (uint32_t i = 0; i < num; i++)
		joined_add(&joined, ranges[i].begin, ranges[i].end);
	joined_end(&joined);
	*num_out = joined.num;
	return 0;
}
