/* SPDX-License-Identifier: Apache-2.0 */
/* test_chunks.c - text that stands elsewhere is found, and what is not to be used
 * of it is computed; each token once. */
#include <config.h>

#include <string.h>

#include "tests/unit/sparse_fixture.h"

#define MAX_TOKENS 300u

static const struct ucm_chunk_config seed = {
	UCM_CHUNK_TOKENS, UCM_CHUNK_MATCH, UCM_CHUNK_BOUNDARY, 0
};

/* ---- found ---- */

/* A document of 150 tokens that was at 1000 in another request. */
static void fill(int64_t *tokens, uint32_t num, int64_t first)
{
	for (uint32_t i = 0; i < num; i++)
		tokens[i] = first + i;
}

UNIT_TEST(a_text_is_found_where_it_stands_now)
{
	int64_t source[150], tokens[64 + 150 + 20];
	struct ucm_chunk_source where = { source, 150, 1000 };
	struct ucm_chunk chunks[4];
	uint32_t num = 0;

	fill(source, 150, 5000);
	fill(tokens, 64, 1);
	fill(tokens + 64, 150, 5000);
	fill(tokens + 214, 20, 9000);
	tokens[64 + 64 + 60] = -1; /* in the second chunk of the text */
	ck_assert_int_eq(ucm_chunks_find(&seed, tokens, 234, 0, &where, 1,
					 chunks, 4, &num, NULL), 0);
	ck_assert_uint_eq(num, 4);
	ck_assert_uint_eq(chunks[0].kind, UCM_CHUNK_NONE);
	ck_assert_uint_eq(chunks[1].kind, UCM_CHUNK_FULL);
	ck_assert_int_eq(chunks[1].delta, 64 - 1000);
	ck_assert_uint_eq(chunks[2].kind, UCM_CHUNK_PARTIAL);
	ck_assert_uint_eq(chunks[2].matched, 60);
	ck_assert_uint_eq(chunks[2].token, 64);
	ck_assert_int_eq(chunks[2].delta, 128 - 1064);
	/* 22 tokens of 42 that are the text's */
	ck_assert_uint_eq(chunks[3].kind, UCM_CHUNK_NONE);
	ck_assert_uint_eq(chunks[3].begin, 192);
	ck_assert_uint_eq(chunks[3].end, 234);
	ck_assert_uint_eq(chunks[3].matched, 0);
}

UNIT_TEST(enough_of_a_chunk_is_the_ratio_or_more)
{
	int64_t source[64], tokens[64];
	struct ucm_chunk_source where = { source, 64, 7 };
	struct ucm_chunk_config config = seed;

	for (uint32_t same = 0; same <= 64; same++) {
		for (int ratio = 0; ratio <= 64; ratio++) {
			struct ucm_chunk chunk;
			uint32_t num, kind;

			config.min_match_ratio = ratio / 64.0;
			fill(source, 64, 0);
			fill(tokens, 64, 0);
			if (same < 64)
				tokens[same] = 777;
			must(!ucm_chunks_find(&config, tokens, 64, 0, &where, 1,
					      &chunk, 1, &num, NULL));
			kind = same == 64 ? UCM_CHUNK_FULL
			       : same && same >= (uint32_t)ratio
				       ? UCM_CHUNK_PARTIAL
				       : UCM_CHUNK_NONE;
			must(chunk.kind == kind);
			must(chunk.matched == (kind ? same : 0));
		}
	}
}

struct text {
	int64_t tokens[MAX_TOKENS];
	uint32_t num;
};

/* All that can match, one by one. */
static struct ucm_chunk naive_chunk(const struct ucm_chunk_config *config,
				    const struct text *text, uint32_t begin,
				    uint32_t position,
				    const struct ucm_chunk_source *sources,
				    uint32_t num_sources)
{
	uint32_t end = begin + config->chunk_tokens;
	struct ucm_chunk best = { 0 };

	if (end > text->num)
		end = text->num;
	for (uint32_t s = 0; s < num_sources; s++) {
		for (uint32_t o = 0; o < sources[s].num_tokens; o++) {
			uint32_t n = 0;

			while (begin + n < end &&
			       o + n < sources[s].num_tokens &&
			       text->tokens[begin + n] ==
				       sources[s].tokens[o + n])
				n++;
			if (o % config->chunk_tokens || n <= best.matched ||
			    n < config->min_match_ratio * (end - begin))
				continue;
			best.matched = n;
			best.source = s;
			best.token = o;
			best.delta = (int32_t)(begin + position) -
				     (int32_t)(o + sources[s].position);
			best.kind = n == end - begin ? UCM_CHUNK_FULL
						     : UCM_CHUNK_PARTIAL;
		}
	}
	best.begin = begin + position;
	best.end = end + position;
	return best;
}

/* Is a token in a range? */
static bool in_ranges(const struct ucm_range *ranges, uint32_t num,
		      uint32_t token)
{
	for (uint32_t i = 0; i < num; i++) {
		if (token >= ranges[i].begin && token < ranges[i].end)
			return true;
	}
	return false;
}

static bool is_computed(const struct ucm_chunk_config *config,
			const struct ucm_chunk *chunk, uint32_t token)
{
	uint32_t at = token - chunk->begin, edge = config->boundary_tokens;

	if (at >= chunk->matched || at < config->head_tokens)
		return true;
	return chunk->kind == UCM_CHUNK_PARTIAL &&
	       (at < edge || at + edge >= chunk->matched);
}

static void check_ranges(const struct ucm_chunk_config *config,
			 const struct ucm_chunk *chunks, uint32_t num)
{
	struct ucm_range ranges[2 * MAX_TOKENS + 1];
	uint32_t num_ranges = 0;

	ranges[2 * num] = (struct ucm_range){ 77, 78 };
	must(!ucm_chunks_recompute(config, chunks, num, ranges, 2 * num,
				   &num_ranges, NULL));
	must(ranges[2 * num].begin == 77);
	for (uint32_t i = 0; i < num_ranges; i++) {
		must(ranges[i].begin < ranges[i].end);
		must(!i || ranges[i].begin > ranges[i - 1].end);
	}
	for (uint32_t i = 0; i < num; i++) {
		for (uint32_t t = chunks[i].begin; t < chunks[i].end; t++)
			must(in_ranges(ranges, num_ranges, t) ==
			     is_computed(config, &chunks[i], t));
	}
}

static void check_deltas(const struct ucm_chunk *chunks, uint32_t num,
			 uint32_t first, uint32_t num_deltas)
{
	int32_t deltas[2 * MAX_TOKENS];

	deltas[num_deltas] = 77;
	must(!ucm_chunks_deltas(chunks, num, first, deltas, num_deltas, NULL));
	must(deltas[num_deltas] == 77);
	for (uint32_t i = 0; i < num; i++) {
		for (uint32_t t = chunks[i].begin; t < chunks[i].end; t++) {
			if (t < first || t >= first + num_deltas)
				continue;
			must(deltas[t - first] ==
			     (t < chunks[i].begin + chunks[i].matched
				      ? chunks[i].delta : 0));
		}
	}
}

UNIT_TEST(chunks_ranges_and_deltas_are_those_of_a_naive_search)
{
	for (unsigned number = 0; number < 1000; number++) {
		uint64_t random = random_case(number);
		static struct text text, sources[4];
		struct ucm_chunk_source where[4];
		struct ucm_chunk_config config = {
			(uint32_t)random_between(&random, 1, 40),
			(double)random_between(&random, 0, 10) / 10,
			(uint32_t)random_between(&random, 0, 9),
			(uint32_t)random_between(&random, 0, 9),
		};
		struct ucm_chunk got[MAX_TOKENS];
		uint32_t num, num_sources = (uint32_t)random_between(&random, 0,
								     4);
		uint32_t position = (uint32_t)random_between(&random, 0, 99);

		text.num = (uint32_t)random_between(&random, 0, MAX_TOKENS);
		for (uint32_t i = 0; i < MAX_TOKENS; i++)
			text.tokens[i] = random_between(&random, 0, 1);
		for (uint32_t i = 0; i < num_sources; i++) {
			struct text *s = &sources[i];
			uint32_t from = (uint32_t)random_between(&random, 0,
								 MAX_TOKENS);

			s->num = (uint32_t)random_between(&random, 0,
							  MAX_TOKENS);
			for (uint32_t j = 0; j < MAX_TOKENS; j++)
				s->tokens[j] = random_between(&random, 0, 40)
					? text.tokens[(from + j) % MAX_TOKENS]
					: 7;
			where[i] = (struct ucm_chunk_source){
				s->tokens, s->num,
				(uint32_t)random_between(&random, 0, 9999),
			};
		}
		must(!ucm_chunks_find(&config, text.tokens, text.num, position,
				      where, num_sources, got, MAX_TOKENS, &num,
				      NULL));
		must(num == (text.num + config.chunk_tokens - 1) /
				    config.chunk_tokens);
		for (uint32_t i = 0; i < num; i++) {
			struct ucm_chunk want = naive_chunk(
				&config, &text, i * config.chunk_tokens,
				position, where, num_sources);

			must(!memcmp(&want, &got[i], sizeof(want)));
		}
		check_ranges(&config, got, num);
		check_deltas(got, num, position, text.num);
		check_deltas(got, num, position + 5,
			     text.num > 20 ? text.num - 20 : 0);
	}
}

UNIT_TEST(boundaries_of_a_chunk_in_part_are_computed)
{
	static const struct ucm_chunk chunks[] = {
		{ 0, 64, UCM_CHUNK_FULL, 64, 0, 0, 5 },
		{ 64, 128, UCM_CHUNK_PARTIAL, 60, 0, 64, 5 },
		{ 128, 192, UCM_CHUNK_NONE, 0, 0, 0, 0 },
		{ 192, 256, UCM_CHUNK_FULL, 64, 0, 0, 5 },
		{ 256, 260, UCM_CHUNK_PARTIAL, 3, 0, 0, 5 },
	};
	static const struct ucm_range want[] = {
		{ 64, 66 }, { 122, 192 }, { 256, 260 }
	};
	struct ucm_range got[3];
	uint32_t num;

	must(!ucm_chunks_recompute(&seed, chunks, 5, got, 3, &num, NULL));
	must(num == 3 && !memcmp(got, want, sizeof(want)));
}

/* ---- ranges ---- */

UNIT_TEST(ranges_are_merged_to_the_same_tokens)
{
	for (unsigned number = 0; number < 5000; number++) {
		uint64_t random = random_case(number);
		uint32_t num = (uint32_t)random_between(&random, 0, 20), left;
		struct ucm_range before[20], after[20];
		int64_t most = random_between(&random, 1, 300);

		for (uint32_t i = 0; i < num; i++) {
			uint32_t begin = (uint32_t)random_between(&random, 0,
								  most);

			before[i] = (struct ucm_range){
				begin, begin + (uint32_t)random_between(
						       &random, 0, 9)
			};
		}
		memcpy(after, before, sizeof(after));
		must(!ucm_ranges_merge(after, num, &left, NULL));
		must(left <= num);
		for (uint32_t i = 0; i < left; i++) {
			must(after[i].begin < after[i].end);
			must(!i || after[i].begin > after[i - 1].end);
		}
		for (uint32_t t = 0; t < 320; t++)
			must(in_ranges(before, num, t) ==
			     in_ranges(after, left, t));
	}
}

/* ---- wrong arguments ---- */

UNIT_TEST(wrong_searches_are_named)
{
	int64_t tokens[10] = { 0 };
	struct ucm_chunk_source source = { tokens, 10, 0 }, far = source;
	struct ucm_chunk_config config = { 4, .8, 2, 0 }, bad = config;
	struct ucm_chunk out[3] = { { .begin = 77 } };
	struct ucm_error error;
	uint32_t num = 77;

#define FIND(config_, tokens_, num_, position_, sources_, num_sources_, room)  \
	ucm_chunks_find(config_, tokens_, num_, position_, sources_,          \
			num_sources_, out, room, &num, &error)
	assert_einval(FIND(NULL, tokens, 10, 0, &source, 1, 3), error, "config");
	bad.chunk_tokens = 0;
	assert_einval(FIND(&bad, tokens, 10, 0, &source, 1, 3), error,
		      "chunk_tokens");
	bad = config;
	bad.min_match_ratio = 1.1;
	assert_einval(FIND(&bad, tokens, 10, 0, &source, 1, 3), error,
		      "min_match_ratio");
	bad.min_match_ratio = NAN;
	assert_einval(FIND(&bad, tokens, 10, 0, &source, 1, 3), error,
		      "min_match_ratio");
	assert_einval(FIND(&config, NULL, 10, 0, &source, 1, 3), error,
		      "tokens");
	assert_einval(FIND(&config, tokens, 10, UCM_POSITION_MAX - 9, &source,
			   1, 3), error, "position");
	assert_einval(FIND(&config, tokens, 10, 0, NULL, 1, 3), error,
		      "sources is NULL");
	far.position = UINT32_MAX;
	assert_einval(FIND(&config, tokens, 10, 0, &far, 1, 3), error,
		      "sources: position");
	far = (struct ucm_chunk_source){ NULL, 1, 0 };
	assert_einval(FIND(&config, tokens, 10, 0, &far, 1, 3), error,
		      "sources: number 0");
	assert_einval(FIND(&config, tokens, 10, 0, &source, 1, 2), error,
		      "room");
#undef FIND
	assert_einval(ucm_chunks_find(&config, tokens, 10, 0, &source, 1, NULL,
				      3, &num, &error), error, "out");
	assert_einval(ucm_chunks_find(&config, tokens, 10, 0, &source, 1, out,
				      3, NULL, &error), error, "num_out");
	must(num == 77 && out[0].begin == 77);
}

UNIT_TEST(wrong_chunks_and_ranges_are_named)
{
	static const struct ucm_chunk wrong[] = {
		{ 4, 8, UCM_CHUNK_FULL, 3, 0, 0, 0 },
		{ 4, 8, UCM_CHUNK_NONE, 1, 0, 0, 0 },
		{ 4, 8, UCM_CHUNK_PARTIAL, 4, 0, 0, 0 },
		{ 4, 8, 3, 2, 0, 0, 0 },
		{ 4, 4, UCM_CHUNK_NONE, 0, 0, 0, 0 },
		{ 8, 4, UCM_CHUNK_NONE, 0, 0, 0, 0 },
		{ 3, 8, UCM_CHUNK_NONE, 0, 0, 0, 0 },
	};
	struct ucm_range ranges[2] = { { 5, 9 }, { 3, 2 } };
	int32_t deltas[8] = { 77 };
	struct ucm_error error;
	uint32_t num = 77;

	for (size_t i = 0; i < NUM_ROWS(wrong); i++) {
		struct ucm_chunk chunks[] = {
			{ 0, 4, UCM_CHUNK_NONE, 0, 0, 0, 0 }, wrong[i],
		};

		assert_einval(ucm_chunks_recompute(&seed, chunks, 2, ranges, 2,
						   &num, &error), error,
			      "chunks: number 1");
		assert_einval(ucm_chunks_deltas(chunks, 2, 0, deltas, 8,
						&error), error,
			      "chunks: number 1");
		must(deltas[0] == 77);
	}
	assert_einval(ucm_chunks_recompute(&seed, NULL, 1, ranges, 2, &num,
					   &error), error, "chunks is NULL");
	assert_einval(ucm_chunks_deltas(NULL, 0, 0, NULL, 1, &error), error,
		      "out is NULL");
	assert_einval(ucm_ranges_merge(ranges, 2, &num, &error), error,
		      "ranges: number 1");
	assert_einval(ucm_ranges_merge(NULL, 2, &num, &error), error,
		      "ranges is NULL");
	assert_einval(ucm_ranges_merge(ranges, 1, NULL, &error), error,
		      "num_out");
	must(num == 77 && ranges[0].begin == 5 && ranges[1].begin == 3);
}

UNIT_TEST(ranges_need_room)
{
	static const struct ucm_chunk chunks[] = {
		{ 0, 4, UCM_CHUNK_NONE, 0, 0, 0, 0 },
		{ 9, 14, UCM_CHUNK_NONE, 0, 0, 0, 0 },
	};
	struct ucm_range out[2] = { { 77, 77 } };
	struct ucm_error error;
	uint32_t num = 77;

	assert_einval(ucm_chunks_recompute(&seed, chunks, 2, out, 1, &num,
					   &error), error, "room");
	assert_einval(ucm_chunks_recompute(&seed, chunks, 2, NULL, 2, &num,
					   &error), error, "out is NULL");
	must(num == 77 && out[0].begin == 77);
}
