/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.c - keys are rotated to other positions.
 *
 * A rotation by so many positions is a table of cosines and sines, a pair of
 * numbers for each channel, which the kernels multiply rows with. It is made in
 * double (rope.h), and only once for a run of tokens that move by as much: for
 * most requests, once.
 *
 * Frequencies are made in long double, for libm's pow() has several versions, of
 * which it takes one that suits the CPU, and they do not always agree in the last
 * bit. powl() has one.
 *
 * Sources: rotation, Su et al., RoFormer (arXiv 2104.09864); YaRN, Peng et al.
 * (arXiv 2309.00071), with the rounding of its limits that vLLM and transformers
 * have; Llama 3's as its configurations have it (rope_type "llama3").
 */
#include <config.h>

#include "sparse/rope.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/error.h"
#include "sparse/kernels.h"
#include "sparse/rows.h"

static const long double two_pi = 6.283185307179586476925286766559L;

/* ---- frequencies ---- */

static double or_default(double value, double instead)
{
	return value != 0 ? value : instead;
}

/* Pair of which b turns are made in the original length, as a number. */
static long double yarn_pair(const struct ucm_rope *rope, uint32_t half,
			     double turns)
{
	return (long double)half *
	       logl(rope->original_length / (two_pi * turns)) /
	       logl(rope->base);
}

/* The share of the interpolated frequency, for a pair. */
static long double yarn_ramp(const struct ucm_rope *rope, uint32_t half,
			     uint32_t pair)
{
	long double low, high, ramp;

	low = floorl(yarn_pair(rope, half, or_default(rope->beta_fast, 32)));
	high = ceill(yarn_pair(rope, half, or_default(rope->beta_slow, 1)));
	low = low < 0 ? 0 : low;
	high = high > 2 * half - 1 ? 2 * half - 1 : high;
	if (low == high)
		high += 0.001L;
	ramp = (pair - low) / (high - low);
	return ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
}

/* The share of the frequency as it is, for one of so many turns. */
static long double llama3_ramp(const struct ucm_rope *rope, long double turns)
{
	double low = or_default(rope->low_freq_factor, 1);
	double high = or_default(rope->high_freq_factor, 4);
	long double ramp = (turns - low) / (high - low);

	return ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
}

static long double scaled(const struct ucm_rope *rope, uint32_t half,
			  uint32_t pair, long double f)
{
	long double slow = f / rope->factor, ramp;

	switch (rope->scaling) {
	case UCM_ROPE_LINEAR:
		return slow;
	case UCM_ROPE_YARN:
		ramp = yarn_ramp(rope, half, pair);
		return slow * ramp + f * (1 - ramp);
	case UCM_ROPE_LLAMA3:
		ramp = llama3_ramp(rope, rope->original_length * f / two_pi);
		return slow * (1 - ramp) + f * ramp;
	default:
		return f;
	}
}

static uint32_t rotary_of(const struct ucm_rope *rope)
{
	return rope->rotary_dim ? rope->rotary_dim : rope->head_dim;
}

/* Radians for each position; times what they are wanted in. */
static void fill_frequencies(const struct ucm_rope *rope, long double unit,
			     double *out)
{
	uint32_t half = rotary_of(rope) / 2;
	long double step = powl(rope->base, -1.0L / half), f = 1;

	for (uint32_t i = 0; i < half; i++) {
		out[i] = (double)(scaled(rope, half, i, f) * unit);
		f *= step;
	}
}

/* ---- checks ---- */

static int number_check(const char *name, double value, double least,
			struct ucm_error *error)
{
	if (isfinite(value) && value >= least)
		return 0;
	return ucm_error_set(error, -EINVAL, "%s %g: at least %g", name, value,
			     least);
}

/* Two limits, or 0 for a default. */
static int limits_check(const char *name, double low, double high,
			struct ucm_error *error)
{
	if (isfinite(low) && isfinite(high) && low > 0 && low < high)
		return 0;
	return ucm_error_set(error, -EINVAL,
			     "%s: %g and %g: above 0, and the second larger",
			     name, low, high);
}

static int scaling_check(const struct ucm_rope *rope, struct ucm_error *error)
{
	int err = 0;

	if (rope->scaling >= UCM_ROPE_SCALINGS)
		return ucm_error_set(error, -EINVAL, "scaling %" PRIu32
				     ": unknown", rope->scaling);
	if (rope->scaling == UCM_ROPE_NONE)
		return 0;
	err = number_check("factor", rope->factor, 1, error);
	if (err || rope->scaling == UCM_ROPE_LINEAR)
		return err;
	if (!rope->original_length)
		return ucm_error_set(error, -EINVAL, "original_length is 0");
	if (rope->scaling == UCM_ROPE_LLAMA3)
		return limits_check("low_freq_factor, high_freq_factor",
				    or_default(rope->low_freq_factor, 1),
				    or_default(rope->high_freq_factor, 4),
				    error);
	err = limits_check("beta_slow, beta_fast",
			   or_default(rope->beta_slow, 1),
			   or_default(rope->beta_fast, 32), error);
	return err ?: number_check("attention_factor", rope->attention_factor,
				   0, error);
}

static double magnitude_of(const struct ucm_rope *rope)
{
	if (rope->scaling != UCM_ROPE_YARN)
		return 1;
	return or_default(rope->attention_factor,
			  (double)(0.1L * logl(rope->factor) + 1));
}

/* All but the table of turns. */
static int rope_check(const struct ucm_rope *rope, struct ucm_error *error)
{
	if (!rope)
		return ucm_error_set(error, -EINVAL, "rope is NULL");
	if (rope->pairing >= UCM_ROPE_PAIRINGS)
		return ucm_error_set(error, -EINVAL, "pairing %" PRIu32
				     ": unknown", rope->pairing);
	if (rope->head_dim < 2 || rope->head_dim > UCM_REPR_HEAD_DIM_MAX)
		return ucm_error_set(error, -EINVAL, "head_dim %" PRIu32
				     ": from 2 to %u", rope->head_dim,
				     UCM_REPR_HEAD_DIM_MAX);
	if (rotary_of(rope) > rope->head_dim || rotary_of(rope) % 2)
		return ucm_error_set(error, -EINVAL, "rotary_dim %" PRIu32
				     ": even, up to %" PRIu32, rotary_of(rope),
				     rope->head_dim);
	if (!(isfinite(rope->base) && rope->base > 1))
		return ucm_error_set(error, -EINVAL, "base %g: above 1",
				     rope->base);
	return scaling_check(rope, error);
}

int ucm_rope_check(const struct ucm_rope *rope, struct ucm_rope_shape *out,
		   struct ucm_error *error)
{
	int err = rope_check(rope, error);

	if (err)
		return err;
	out->rotary = rotary_of(rope);
	out->magnitude = magnitude_of(rope);
	fill_frequencies(rope, 1 / two_pi, out->turns);
	return 0;
}

int ucm_rope_frequencies(const struct ucm_rope *rope, double *out, size_t room,
			 struct ucm_error *error)
{
	int err = rope_check(rope, error);

	if (err)
		return err;
	if (!out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	if (room < rotary_of(rope) / 2)
		return ucm_error_set(error, -EINVAL, "room %zu: there are %"
				     PRIu32, room, rotary_of(rope) / 2);
	fill_frequencies(rope, 1, out);
	return 0;
}

/* ---- rotation ---- */

void ucm_rope_table_fill(const struct ucm_rope *rope,
			 const struct ucm_rope_shape *shape, int64_t delta,
			 double magnitude, struct ucm_rope_table *out)
{
	uint32_t half = shape->rotary / 2;
	bool halves = rope->pairing == UCM_ROPE_NEOX;

	for (uint32_t i = 0; i < half; i++) {
		uint32_t first = halves ? i : 2 * i;
		uint32_t second = halves ? half + i : 2 * i + 1;
		double cosine, sine;

		ucm_turn((double)delta * shape->turns[i], &cosine, &sine);
		out->cosines[first] = (float)(cosine * magnitude);
		out->cosines[second] = out->cosines[first];
		out->sines[second] = (float)(sine * magnitude);
		out->sines[first] = -out->sines[second];
	}
}

/* What a shift is done with. */
struct shift_work {
	const struct ucm_rope *rope;
	const struct ucm_shift_request *request;
	int64_t item_bytes;
	double magnitude; /* that is applied now */
	struct ucm_rope_shape shape;
	bool filled; /* the table is of this delta */
	int32_t delta;
	struct ucm_rope_table table;
};

static uint32_t tokens_of(const struct ucm_shift_request *request, size_t i)
{
	return i + 1 < request->num ? request->block_size
				    : request->last_tokens;
}

static int32_t delta_of(const struct ucm_shift_request *request, size_t block,
			uint32_t token)
{
	return request->per_token
		       ? request->deltas[block * request->block_size + token]
		       : request->deltas[block];
}

/* Rows of num tokens, token after token or head after head as they lie. */
static struct ucm_rotate_run run_of(const struct shift_work *work,
				    size_t block, uint32_t first, uint32_t num)
{
	const struct ucm_shift_request *request = work->request;
	const struct ucm_keys *from = &request->from;
	const struct ucm_key_room *to = &request->to;
	int64_t item = work->item_bytes;
	int64_t from_block = (int64_t)ucm_repr_id(request->from_blocks, 0,
						  block);
	int64_t to_block = (int64_t)ucm_repr_id(request->to_blocks, 0, block);
	bool by_token = ucm_rows_by_token(from);
	struct ucm_rotate_run run = {
		.from = (const uint8_t *)from->base +
			item * (from_block * from->stride_block +
				(int64_t)first * from->stride_token),
		.to = (uint8_t *)to->base +
		      item * (to_block * to->stride_block +
			      (int64_t)first * to->stride_token),
		.outer = by_token ? num : request->num_heads,
		.inner = by_token ? request->num_heads : num,
		.dim = work->rope->head_dim,
		.rotary = work->shape.rotary,
		.neighbours = work->rope->pairing == UCM_ROPE_GPTJ,
		.cosines = work->table.cosines,
		.sines = work->table.sines,
	};

	run.from_outer = item * (by_token ? from->stride_token
					  : from->stride_head);
	run.from_inner = item * (by_token ? from->stride_head
					  : from->stride_token);
	run.to_outer = item * (by_token ? to->stride_token : to->stride_head);
	run.to_inner = item * (by_token ? to->stride_head : to->stride_token);
	return run;
}

static void copy_rows(const struct shift_work *work,
		      const struct ucm_rotate_run *run)
{
	size_t bytes = (size_t)run->dim * (size_t)work->item_bytes;

	if (run->to == run->from)
		return;
	for (uint32_t i = 0; i < run->outer; i++) {
		for (uint32_t j = 0; j < run->inner; j++)
			memcpy(run->to + i * run->to_outer + j * run->to_inner,
			       run->from + i * run->from_outer +
				       j * run->from_inner, bytes);
	}
}

/* Tokens of a block that move by as much. */
static void shift_tokens(struct shift_work *work, size_t block, uint32_t first,
			 uint32_t num, int32_t delta)
{
	struct ucm_rotate_run run = run_of(work, block, first, num);

	if (!delta && work->magnitude == 1) {
		copy_rows(work, &run); /* not -0 + 0, nor another NaN */
		return;
	}
	if (!work->filled || work->delta != delta)
		ucm_rope_table_fill(work->rope, &work->shape, delta,
				    work->magnitude, &work->table);
	work->filled = true;
	work->delta = delta;
	ucm_sparse_kernels()->rotate[work->request->from.dtype](&run);
}

static void shift_block(struct shift_work *work, size_t block)
{
	const struct ucm_shift_request *request = work->request;
	uint32_t tokens = tokens_of(request, block), first = 0;

	while (first < tokens) {
		int32_t delta = delta_of(request, block, first);
		uint32_t end = request->per_token ? first + 1 : tokens;

		while (end < tokens && delta_of(request, block, end) == delta)
			end++;
		shift_tokens(work, block, first, end - first, delta);
		first = end;
	}
}

/* ---- requests ---- */

static int deltas_check(const struct ucm_shift_request *request,
			struct ucm_error *error)
{
	size_t num = request->num;

	if (!request->deltas)
		return ucm_error_set(error, -EINVAL, "deltas is NULL");
	if (request->per_token)
		num = (num - 1) * request->block_size + request->last_tokens;
	for (size_t i = 0; i < num; i++) {
		if (request->deltas[i] > UCM_POSITION_MAX ||
		    request->deltas[i] < -UCM_POSITION_MAX)
			return ucm_error_set(error, -EINVAL, "deltas: number "
					     "%zu is %" PRId32 ": up to %d "
					     "either way", i,
					     request->deltas[i],
					     UCM_POSITION_MAX);
	}
	return 0;
}

/* Both caches, the blocks of them that are used, and the keys. */
static int places_check(const struct ucm_rope *rope,
			const struct ucm_shift_request *request,
			struct ucm_error *error)
{
	uint64_t tokens = (uint64_t)(request->num - 1) * request->block_size +
			  request->last_tokens;
	const struct ucm_key_room *to = &request->to;
	const struct ucm_rows from_rows = {
		"from", request->from, request->block_size, request->num_heads,
		rope->head_dim,
	}, to_rows = {
		"to", { to->base, request->from.dtype, to->num_blocks,
			to->stride_block, to->stride_token, to->stride_head },
		request->block_size, request->num_heads, rope->head_dim,
	};
	int err = ucm_rows_check(&from_rows, "from_blocks",
				 request->from_blocks, request->num, error)
		?: ucm_rows_check(&to_rows, "to_blocks", request->to_blocks,
				  request->num, error);

	if (err || request->unchecked)
		return err;
	return ucm_rows_finite(&from_rows, request->from_blocks, tokens, error);
}

/* A request of at least one block. */
static int request_check(const struct ucm_rope *rope,
			 const struct ucm_shift_request *request,
			 struct ucm_error *error)
{
	int err = ucm_sparse_in_range("num_heads", request->num_heads,
				      UCM_REPR_HEADS_MAX, error)
		?: ucm_sparse_in_range("block_size", request->block_size,
				       UCM_REPR_BLOCK_SIZE_MAX, error)
		?: ucm_sparse_in_range("last_tokens", request->last_tokens,
				       request->block_size, error)
		?: deltas_check(request, error);

	return err ? err : places_check(rope, request, error);
}

int ucm_rope_shift(const struct ucm_rope *rope,
		   const struct ucm_shift_request *request,
		   struct ucm_error *error)
{
	struct shift_work work;
	int err;

	work.rope = rope;
	work.request = request;
	work.filled = false;
	err = ucm_rope_check(rope, &work.shape, error);
	if (err)
		return err;
	if (!request)
		return ucm_error_set(error, -EINVAL, "request is NULL");
	if (!request->num)
		return 0;
	err = request_check(rope, request, error);
	if (err)
		return err;
	work.item_bytes = ucm_repr_input_bytes(request->from.dtype);
	work.magnitude = request->unrotated ? work.shape.magnitude : 1;
	for (size_t i = 0; i < request->num; i++)
		shift_block(&work, i);
	return 0;
}
