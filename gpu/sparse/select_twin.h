/* SPDX-License-Identifier: Apache-2.0 */
/*
 * select_twin.h - what a thread of the GPU does for a request's selection.
 *
 * A CTA has a request. The selection is ucm_select()'s, for the k best scores are
 * the same however they are found: of equal ones the lower blocks, and -0 is 0.
 * Here the k-th is found byte by byte: for the highest byte, the CTA counts how
 * many scores have each of its 256 values, and adds up from the top until there
 * are k; then for the next one, of those alone that have that value. So there are
 * four passes over the scores.
 *
 * Then a warp has a part of the blocks, all threads of it 32 at a time. It counts
 * those that are selected for certain and those that are equal to the k-th; so
 * each warp knows how many lie before its part, and where its own are written.
 *
 *	ucm_twin_select_begin
 *	for byte = 3, 2, 1, 0:
 *		ucm_twin_bins_clear, _count, then for d = 1, 2, ... 128
 *		ucm_twin_bins_add, then _choose and _narrow
 *	for each 32 blocks of a part: ucm_twin_place_of, _part_add
 *	the same again, and ucm_twin_part_write, to check; and again, to write
 *	ucm_twin_select_end
 *
 * All threads wait for each other between these. Whoever runs them makes a ballot
 * of a warp's answers where a mask is taken.
 */
#ifndef UCM_GPU_SPARSE_SELECT_TWIN_H
#define UCM_GPU_SPARSE_SELECT_TWIN_H

#include "gpu/sparse/score_twin.h"

/* Counting by several threads at a time. */
#ifdef __CUDACC__
#define UCM_TWIN_COUNT(place) atomicAdd(place, 1u)
#else
#define UCM_TWIN_COUNT(place) ((*(place))++)
#endif

/* Of the CTA. */
struct ucm_twin_selection {
	struct ucm_budget budget;
	uint32_t tokens;
	uint32_t invalid; /* nothing is to be written */
	/* The k-th score: the bytes of its key that are known, the others 0; and
	 * which of those that begin so it is. */
	uint32_t key, rank;
	uint32_t digit, digit_rank; /* the same of the next byte */
	uint32_t last_taken;        /* the request's last block */
	uint32_t bins[2][UCM_TWIN_BINS];
	uint32_t sure[UCM_TWIN_SELECT_WARPS], equal[UCM_TWIN_SELECT_WARPS];
};

UCM_INLINE uint32_t ucm_twin_total(const struct ucm_twin_selection *s)
{
	return s->budget.first + s->budget.topk + s->budget.last;
}

/* One thread. */
UCM_INLINE void ucm_twin_select_begin(const struct ucm_twin_select_args *args,
				      uint32_t request,
				      struct ucm_twin_selection *s)
{
	int32_t tokens = UCM_AT(const int32_t, args->tokens)[request];

	s->tokens = tokens > 0 ? (uint32_t)tokens : 0;
	s->budget = ucm_budget_of(&args->config, s->tokens);
	s->invalid = tokens < 0 || s->budget.num_blocks > args->max_blocks ||
		     ucm_twin_total(s) > args->room;
	s->key = 0;
	s->rank = s->budget.topk;
	s->digit = s->digit_rank = 0; /* if none is to be found */
	s->last_taken = 0;
}

/* Scores as integers in the same order; -0 and 0 are equal. */
UCM_INLINE uint32_t ucm_twin_key_of(float score)
{
	uint32_t bits = ucm_float_bits(score == 0 ? 0.0f : score);

	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

UCM_INLINE float ucm_twin_score_at(const struct ucm_twin_select_args *args,
				   uint32_t request, uint32_t block)
{
	return *UCM_AT(const float,
		       args->scores +
			       (request * args->scores_stride + block) * 4);
}

/* ---- the k-th score ---- */

UCM_INLINE void ucm_twin_bins_clear(struct ucm_twin_selection *s,
				    uint32_t thread)
{
	if (thread < UCM_TWIN_BINS)
		s->bins[0][thread] = 0;
}

UCM_INLINE void ucm_twin_bins_count(const struct ucm_twin_select_args *args,
				    uint32_t request, uint32_t thread,
				    uint32_t byte, struct ucm_twin_selection *s)
{
	uint32_t end = s->budget.num_blocks - s->budget.last;

	for (uint32_t i = s->budget.first + thread; i < end;
	     i += UCM_TWIN_SELECT_THREADS) {
		float score = ucm_twin_score_at(args, request, i);
		uint32_t key = ucm_twin_key_of(score);
		uint32_t differs = (key ^ s->key) >> 8 * byte;

		if (score != score)
			s->invalid = 1;
		if (!(differs >> 8))
			UCM_TWIN_COUNT(&s->bins[0][differs]);
	}
}

/* One step of adding up: bin i then has what it and the 2 d - 1 after it had. */
UCM_INLINE void ucm_twin_bins_add(struct ucm_twin_selection *s, uint32_t thread,
				  uint32_t d, uint32_t from)
{
	uint32_t sum;

	if (thread >= UCM_TWIN_BINS)
		return;
	sum = s->bins[from][thread];
	if (thread + d < UCM_TWIN_BINS)
		sum += s->bins[from][thread + d];
	s->bins[!from][thread] = sum;
}

/* bins: how many have that value of the byte, or a larger one. */
UCM_INLINE void ucm_twin_bins_choose(struct ucm_twin_selection *s,
				     uint32_t thread, uint32_t from)
{
	uint32_t larger = 0;

	if (thread >= UCM_TWIN_BINS)
		return;
	if (thread + 1 < UCM_TWIN_BINS)
		larger = s->bins[from][thread + 1];
	if (larger < s->rank && s->rank <= s->bins[from][thread]) {
		s->digit = thread;
		s->digit_rank = s->rank - larger;
	}
}

/* One thread. */
UCM_INLINE void ucm_twin_bins_narrow(struct ucm_twin_selection *s,
				     uint32_t byte)
{
	s->key |= s->digit << 8 * byte;
	s->rank = s->digit_rank;
}

/* ---- what is selected ---- */

enum ucm_twin_place {
	UCM_TWIN_LEFT,  /* not selected */
	UCM_TWIN_EQUAL, /* if it is among the first s->rank of these */
	UCM_TWIN_SURE,
};

UCM_INLINE uint32_t ucm_twin_place_of(const struct ucm_twin_select_args *args,
				      uint32_t request, uint32_t block,
				      const struct ucm_twin_selection *s)
{
	uint32_t key;

	if (block >= s->budget.num_blocks)
		return UCM_TWIN_LEFT;
	if (block < s->budget.first ||
	    block >= s->budget.num_blocks - s->budget.last)
		return UCM_TWIN_SURE;
	if (!s->budget.topk)
		return UCM_TWIN_LEFT;
	key = ucm_twin_key_of(ucm_twin_score_at(args, request, block));
	return key > s->key    ? UCM_TWIN_SURE
	       : key == s->key ? UCM_TWIN_EQUAL
			       : UCM_TWIN_LEFT;
}

/* Blocks of a warp's part: a multiple of 32. */
UCM_INLINE uint32_t ucm_twin_part(const struct ucm_twin_selection *s)
{
	uint32_t step = UCM_TWIN_SELECT_WARPS * UCM_WARP;

	return (s->budget.num_blocks + step - 1) / step * UCM_WARP;
}

/* Two masks of a warp's threads, whose 32 blocks come next: those that are for
 * certain, those that are equal. */
struct ucm_twin_masks {
	uint32_t sure, equal;
};

/* What a thread knows of its warp's blocks so far. */
struct ucm_twin_before {
	uint32_t sure, equal;
};

UCM_INLINE void ucm_twin_part_add(struct ucm_twin_before *before,
				  struct ucm_twin_masks masks)
{
	before->sure += UCM_TWIN_ONES(masks.sure);
	before->equal += UCM_TWIN_ONES(masks.equal);
}

/* How many lie before a warp's part. */
UCM_INLINE struct ucm_twin_before
ucm_twin_part_before(const struct ucm_twin_selection *s, uint32_t warp)
{
	struct ucm_twin_before before = { 0, 0 };

	for (uint32_t i = 0; i < warp; i++) {
		before.sure += s->sure[i];
		before.equal += s->equal[i];
	}
	return before;
}

/* A thread's block is written to its place, or its page is looked at; 0: it is not
 * selected. */
UCM_INLINE int ucm_twin_part_write(const struct ucm_twin_select_args *args,
				   uint32_t request, uint32_t block,
				   struct ucm_twin_before before,
				   struct ucm_twin_masks masks, int write,
				   struct ucm_twin_selection *s)
{
	uint32_t lane = block % UCM_WARP, lower = (1u << lane) - 1;
	uint32_t sure = before.sure + UCM_TWIN_ONES(masks.sure & lower);
	uint32_t equal = before.equal + UCM_TWIN_ONES(masks.equal & lower);
	uint64_t at = request * args->room + sure +
		      ucm_least_of(equal, s->rank);
	int32_t page;

	if (!(masks.sure >> lane & 1) &&
	    !(masks.equal >> lane & 1 && equal < s->rank))
		return 0;
	page = *UCM_AT(const int32_t,
		       args->tables +
			       (request * args->table_stride + block) * 4);
	if (block + 1 == s->budget.num_blocks)
		s->last_taken = 1;
	if (!write) {
		if (page < 0)
			s->invalid = 1;
		return 1;
	}
	*UCM_AT(int32_t, args->tables_out + at * 4) = page;
	if (args->blocks_out)
		*UCM_AT(uint32_t, args->blocks_out + at * 4) = block;
	return 1;
}

/* One thread. */
UCM_INLINE void ucm_twin_select_end(const struct ucm_twin_select_args *args,
				    uint32_t request,
				    const struct ucm_twin_selection *s)
{
	uint32_t size = args->config.block_size, total = ucm_twin_total(s);
	uint32_t left = s->last_taken ? ucm_tokens_lacking(s->tokens, size) : 0;

	*UCM_AT(int32_t, args->status + request * 4ull) =
		s->invalid ? args->invalid : 0;
	if (s->invalid)
		return;
	*UCM_AT(int32_t, args->tokens_out + request * 4ull) =
		(int32_t)(total * size - left);
	if (args->num_out)
		*UCM_AT(uint32_t, args->num_out + request * 4ull) = total;
}

#endif
