/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deviation.c - how far cached keys and values are from fresh ones, and the tokens
 * that have the highest deviation (HKVD: Yao et al., CacheBlend, arXiv 2405.16444).
 *
 * What is cached of a text was computed after another one. Computing few of its
 * tokens anew, those that deviate most, makes up for most of that.
 */
#include <config.h>

#include <ucm/position.h>

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/align.h"
#include "common/error.h"
#include "sparse/kernels.h"
#include "sparse/number.h"
#include "sparse/rows.h"

/* ---- deviation ---- */

/* Cached and fresh rows: keys, or values. */
struct pair {
	struct ucm_rows cached, fresh;
};

struct deviation_work {
	const struct ucm_deviation_request *request;
	struct pair pairs[2]; /* of keys, of values */
	uint32_t num_pairs;
	struct ucm_error *error;
	/* of the pair's rows; zeros after head_dim */
	float cached[UCM_REPR_HEAD_DIM_MAX], fresh[UCM_REPR_HEAD_DIM_MAX];
	float zeros[UCM_REPR_HEAD_DIM_MAX];
	float lanes[UCM_REPR_ROW], sizes[UCM_REPR_ROW];
};

static void pair_add(struct deviation_work *work, const char *cached_name,
		     const struct ucm_keys *cached, const char *fresh_name,
		     const struct ucm_keys *fresh)
{
	const struct ucm_deviation_request *request = work->request;
	struct pair *pair = &work->pairs[work->num_pairs++];

	pair->cached = (struct ucm_rows){ cached_name, *cached,
					  request->block_size,
					  request->num_heads,
					  request->head_dim };
	pair->fresh = (struct ucm_rows){ fresh_name, *fresh,
					 request->num_tokens,
					 request->num_heads,
					 request->head_dim };
	pair->fresh.keys.stride_block = 0;
}

static int pairs_check(const struct deviation_work *work)
{
	const struct ucm_deviation_request *request = work->request;
	uint32_t blocks = (request->num_tokens - 1) / request->block_size + 1;
	int err = 0;

	for (uint32_t i = 0; !err && i < work->num_pairs; i++) {
		err = ucm_rows_check(&work->pairs[i].cached, "table",
				     request->table, blocks, work->error)
			?: ucm_rows_check(&work->pairs[i].fresh, "fresh", NULL,
					  1, work->error);
	}
	return err;
}

static int work_begin(struct deviation_work *work)
{
	const struct ucm_deviation_request *request = work->request;
	int err = ucm_sparse_in_range("num_tokens", request->num_tokens,
				      INT32_MAX, work->error)
		?: ucm_sparse_in_range("num_heads", request->num_heads,
				       UCM_REPR_HEADS_MAX, work->error)
		?: ucm_sparse_in_range("head_dim", request->head_dim,
				       UCM_REPR_HEAD_DIM_MAX, work->error)
		?: ucm_sparse_in_range("block_size", request->block_size,
				       UCM_REPR_BLOCK_SIZE_MAX, work->error);

	if (err)
		return err;
	pair_add(work, "cached", &request->cached, "fresh", &request->fresh);
	if (request->cached_values.base || request->fresh_values.base)
		pair_add(work, "cached_values", &request->cached_values,
			 "fresh_values", &request->fresh_values);
	return pairs_check(work);
}

static int pair_take(struct deviation_work *work, const struct pair *pair,
		     uint32_t token, uint32_t head)
{
	uint32_t size = work->request->block_size;
	uint32_t padded = (uint32_t)ucm_round_up(pair->cached.dim,
						 UCM_REPR_ROW);
	int err = ucm_row_widen(
		&pair->cached,
		ucm_repr_id(work->request->table, 0, token / size),
		token % size, head, work->cached, work->error)
		?: ucm_row_widen(&pair->fresh, 0, token, head, work->fresh,
				 work->error);

	if (err)
		return err;
	ucm_sparse_kernels()->distance(work->lanes, work->cached, work->fresh,
				       padded);
	if (work->request->relative)
		ucm_sparse_kernels()->distance(work->sizes, work->fresh,
					       work->zeros, padded);
	return 0;
}

static int token_deviation(struct deviation_work *work, uint32_t token,
			   float *out)
{
	float sum, size;
	int err = 0;

	memset(work->lanes, 0, sizeof(work->lanes));
	memset(work->sizes, 0, sizeof(work->sizes));
	for (uint32_t i = 0; i < work->num_pairs; i++) {
		for (uint32_t head = 0; !err && head < work->request->num_heads;
		     head++)
			err = pair_take(work, &work->pairs[i], token, head);
	}
	if (err)
		return err;
	sum = ucm_tree_sum(work->lanes, UCM_REPR_ROW);
	size = ucm_tree_sum(work->sizes, UCM_REPR_ROW);
	if (!ucm_float_finite(sum) || !ucm_float_finite(size))
		return ucm_error_set(work->error, -ERANGE, "token %" PRIu32
				     ": too large for float32", token);
	*out = work->request->relative && sum > 0 ? sum / size : sum;
	return 0;
}

int ucm_kv_deviation(const struct ucm_deviation_request *request, float *out,
		     struct ucm_error *error)
{
	struct deviation_work work = { .request = request, .error = error };
	int err = ucm_sparse_given(error, "request", request, "out", out, NULL)
		?: work_begin(&work);

	for (int write = 0; write <= 1; write++) {
		for (uint32_t i = 0; !err && i < request->num_tokens; i++) {
			float value;

			err = token_deviation(&work, i, write ? &out[i]
							      : &value);
		}
	}
	return err;
}

/* ---- the highest ---- */

static int rule_check(uint32_t rule, double value, struct ucm_error *error)
{
	if (rule >= UCM_HKVD_RULES)
		return ucm_error_set(error, -EINVAL, "rule %" PRIu32
				     ": unknown", rule);
	if (rule == UCM_HKVD_THRESHOLD ? isfinite(value)
				       : value >= 0 && value <= 1)
		return 0;
	return ucm_error_set(error, -EINVAL, "value %g: %s", value,
			     rule == UCM_HKVD_THRESHOLD ? "finite"
							: "from 0 to 1");
}

/* Those of at least least. */
static int select_above(const float *scores, uint32_t num, float least,
			uint32_t *out, size_t room, uint32_t *num_out,
			struct ucm_error *error)
{
	const struct ucm_sparse_kernels *kernels = ucm_sparse_kernels();
	float low, high;
	size_t total;

	if (num && !ucm_score_range(scores, num, &low, &high))
		return ucm_error_set(error, -EINVAL, "scores: one is NaN");
	total = kernels->count(scores, num, least);
	if (total > room)
		return ucm_error_set(error, -EINVAL, "room %zu: %zu are "
				     "selected", room, total);
	*num_out = (uint32_t)kernels->pick(scores, num, least, num, 0, out);
	return 0;
}

/* The least float that is not below a finite value. */
static float float_from(double value)
{
	float near = (float)value;

	return (double)near < value ? nextafterf(near, INFINITY) : near;
}

int ucm_hkvd_select(const float *scores, uint32_t num, uint32_t rule,
		    double value, uint32_t *out, size_t room,
		    uint32_t *num_out, struct ucm_error *error)
{
	struct ucm_budget budget = { .num_blocks = num };
	int err = rule_check(rule, value, error);

	if (err)
		return err;
	if (num > INT32_MAX)
		return ucm_error_set(error, -EINVAL, "num %" PRIu32
				     ": too many", num);
	if (!scores || !out || !num_out)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !scores ? "scores"
				     : !out  ? "out" : "num_out");
	if (rule == UCM_HKVD_THRESHOLD)
		return select_above(scores, num, float_from(value), out, room,
				    num_out, error);
	/* of the tokens that can be chosen; -INFINITY is below all others */
	budget.topk = (uint32_t)((double)ucm_sparse_kernels()->count(
					 scores, num, -FLT_MAX) * value);
	return ucm_select(scores, &budget, out, room, num_out, error);
}
