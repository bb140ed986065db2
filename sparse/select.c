/* SPDX-License-Identifier: Apache-2.0 */
/*
 * select.c - which blocks are taken, and the block table that names them.
 *
 * The k best of n scores are found without moving any: the k-th largest value is
 * looked for by halving the range between the least and the largest, and
 * counting at each step how many scores are at least so large. Floats are as
 * many as integers, and in the same order, so there are 32 steps at the most.
 * Each is a pass at the speed of the memory; there is no work space, the time
 * hardly depends on the values, and ties need no care until the end. There the
 * lower ones of equal scores are taken, by going through them in order.
 */
#include <config.h>

#include <ucm/sparse.h>

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"
#include "sparse/budget.h"
#include "sparse/kernels.h"
#include "sparse/number.h"
#include "sparse/spec.h"

/* ---- budget ---- */

int ucm_budget_check(const struct ucm_budget_config *config,
		     struct ucm_error *error)
{
	if (!config)
		return ucm_error_set(error, -EINVAL, "config is NULL");
	if (!config->block_size)
		return ucm_error_set(error, -EINVAL, "block_size is 0");
	if (!config->budget_tokens &&
	    !(config->ratio >= 0 && config->ratio <= 1))
		return ucm_error_set(error, -EINVAL, "ratio %g: from 0 to 1",
				     config->ratio);
	if (config->budget_tokens && config->budget_tokens < config->block_size)
		return ucm_error_set(error, -EINVAL, "budget_tokens %" PRIu32
				     ": less than a block of %" PRIu32,
				     config->budget_tokens, config->block_size);
	if (config->max_topk && config->max_topk < config->min_topk)
		return ucm_error_set(error, -EINVAL, "max_topk %" PRIu32
				     ": less than min_topk %" PRIu32,
				     config->max_topk, config->min_topk);
	return 0;
}

int ucm_budget_blocks(const struct ucm_budget_config *config, uint32_t tokens,
		      struct ucm_budget *out, struct ucm_error *error)
{
	int err = ucm_budget_check(config, error);

	if (err)
		return err;
	if (!out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	*out = ucm_budget_of(config, tokens);
	return 0;
}

/* ---- the best of the scores ---- */

/* Floats as integers in the same order, and back. */
static int32_t rank_of(float value)
{
	int32_t bits = (int32_t)ucm_float_bits(value);

	return bits < 0 ? (int32_t)((uint32_t)bits ^ 0x7fffffffu) : bits;
}

static float value_of(int32_t rank)
{
	return ucm_float_of(rank < 0 ? (uint32_t)rank ^ 0x7fffffffu
				     : (uint32_t)rank);
}

/*
 * A value that k of the scores are at least as large as, and fewer than k are
 * larger than; 0 < k < num. *equal_out: how many of those that are equal to it
 * are among the k best, the first ones.
 */
static float find_kth(const float *scores, size_t num, size_t k, float least,
		      float most, size_t *equal_out)
{
	/* Invariant: k or more scores are at least value_of(low), and above,
	 * which is less than k, are larger than value_of(high - 1). (-0 and 0
	 * have two ranks and are one value: either may be found.) */
	int64_t low = rank_of(least), high = (int64_t)rank_of(most) + 1;
	size_t above = 0;

	while (high - low > 1) {
		int64_t middle = low + (high - low) / 2;
		float value = value_of((int32_t)middle);
		size_t count = ucm_sparse_kernels()->count(scores, num, value);

		if (count == k) {
			*equal_out = k;
			return value;
		}
		if (count < k) {
			high = middle;
			above = count;
		} else {
			low = middle;
		}
	}
	*equal_out = k - above;
	return value_of((int32_t)low);
}

/* The k best of num scores, by their numbers plus base; 0 < k <= num. */
static void select_best(const float *scores, size_t num, size_t k,
			float least, float most, uint32_t base, uint32_t *out)
{
	size_t equal = num;
	float limit = k < num ? find_kth(scores, num, k, least, most,
					 &equal)
			      : least;

	ucm_sparse_kernels()->pick(scores, num, limit, equal, base, out);
}

static int budget_check(const struct ucm_budget *budget, size_t room,
			struct ucm_error *error)
{
	uint64_t total;

	if (!budget)
		return ucm_error_set(error, -EINVAL, "budget is NULL");
	total = (uint64_t)budget->first + budget->topk + budget->last;
	if (total > budget->num_blocks || budget->num_blocks > INT32_MAX)
		return ucm_error_set(error, -EINVAL, "budget: %" PRIu32 " + %"
				     PRIu32 " + %" PRIu32 " of %" PRIu32
				     " blocks", budget->first, budget->topk,
				     budget->last, budget->num_blocks);
	if (room < total)
		return ucm_error_set(error, -EINVAL, "room %zu: %" PRIu64
				     " are selected", room, total);
	return 0;
}

static uint32_t *append_range(uint32_t *out, uint32_t begin, uint32_t end)
{
	while (begin < end)
		*out++ = begin++;
	return out;
}

int ucm_select(const float *scores, const struct ucm_budget *budget,
	       uint32_t *out, size_t room, uint32_t *num_out,
	       struct ucm_error *error)
{
	float least = 0, most = 0;
	uint32_t candidates;
	int err = budget_check(budget, room, error);

	if (err)
		return err;
	if (!scores || !out || !num_out)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !scores ? "scores"
				     : !out  ? "out" : "num_out");
	scores += budget->first;
	candidates = budget->num_blocks - budget->first - budget->last;
	if (candidates &&
	    !ucm_score_range(scores, candidates, &least, &most))
		return ucm_error_set(error, -EINVAL, "scores: one is NaN");
	*num_out = budget->first + budget->topk + budget->last;
	out = append_range(out, 0, budget->first);
	if (budget->topk)
		select_best(scores, candidates, budget->topk, least,
			    most, budget->first, out);
	append_range(out + budget->topk, budget->num_blocks - budget->last,
		     budget->num_blocks);
	return 0;
}

/* ---- the block table ---- */

static int selected_check(const int32_t *table, const uint32_t *selected,
			  uint32_t num, uint32_t num_blocks,
			  struct ucm_error *error)
{
	for (uint32_t i = 0; i < num; i++) {
		if (selected[i] >= num_blocks)
			return ucm_error_set(error, -EINVAL, "selected: block %"
					     PRIu32 ", there are %" PRIu32,
					     selected[i], num_blocks);
		if (i && selected[i] <= selected[i - 1])
			return ucm_error_set(error, -EINVAL, "selected: %" PRIu32
					     " after %" PRIu32 ": not ascending",
					     selected[i], selected[i - 1]);
		if (table[selected[i]] < 0)
			return ucm_error_set(error, -EINVAL, "table: block %"
					     PRIu32 " is %" PRId32, selected[i],
					     table[selected[i]]);
	}
	return 0;
}

int ucm_select_table(const int32_t *table, uint32_t block_size,
		     uint32_t tokens, const uint32_t *selected, uint32_t num,
		     int32_t *out, size_t room, uint32_t *tokens_out,
		     struct ucm_error *error)
{
	uint32_t num_blocks, left;
	int err;

	if (!block_size)
		return ucm_error_set(error, -EINVAL, "block_size is 0");
	if (!tokens_out ||
	    (num && (!table || !selected || !out)))
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !tokens_out ? "tokens_out"
				     : !table	 ? "table"
				     : !selected ? "selected" : "out");
	if (room < num)
		return ucm_error_set(error, -EINVAL, "room %zu: %" PRIu32
				     " are selected", room, num);
	num_blocks = ucm_blocks_of(tokens, block_size);
	err = selected_check(table, selected, num, num_blocks, error);
	if (err)
		return err;
	/* What the last block lacks; it is below block_size. Selected blocks
	 * are at most all there are, so their tokens are at most tokens. */
	left = 0;
	if (num && selected[num - 1] == num_blocks - 1)
		left = ucm_tokens_lacking(tokens, block_size);
	*tokens_out = num * block_size - left;
	for (uint32_t i = 0; i < num; i++)
		out[i] = table[selected[i]]; /* never before where it is read */
	return 0;
}
