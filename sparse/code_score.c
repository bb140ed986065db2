/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_score.c - scores by hash codes.
 *
 * All are made of distances, see code_core.h: those of a prepared query's rows
 * from the rows of a block. A row of the query is a word with its unit and its
 * weight (below), and then its planes, word by word.
 *
 * Only the distances and what is said of many of them are worth vectors; the
 * rest is done once for a block and head, in C, the same for all CPUs.
 */
#include <config.h>

#include "sparse/code.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/error.h"
#include "sparse/kernels.h"
#include "sparse/number.h"
#include "sparse/spec.h"

#define GROUP_MAX	((1u << UCM_CODE_PLANES) - 1)
#define EXACT_MAX	((uint64_t)1 << 24) /* all whole numbers are floats */
#define CHUNK		1024u /* tokens at a time; whole tiles */

/* The largest whole number that a score may be. */
static uint64_t largest(const struct ucm_code_spec *spec,
			const struct ucm_code_method *method, uint32_t codes)
{
	uint64_t most = (uint64_t)spec->bits + spec->rope_bits;

	if (method->per != UCM_SCORE_HEAD)
		most *= codes;
	if (method->per == UCM_SCORE_BLOCK)
		most *= spec->num_heads;
	return method->over == UCM_CODE_SUM ? most * spec->block_size : most;
}

static int method_check(const struct ucm_code_spec *spec,
			const struct ucm_code_method *method,
			struct ucm_error *error)
{
	uint32_t group;
	int err;

	if (!method)
		return ucm_error_set(error, -EINVAL, "method is NULL");
	if (method->measure >= UCM_CODE_MEASURES)
		return ucm_error_set(error, -EINVAL, "measure %" PRIu32
				     ": unknown", method->measure);
	if (method->over >= UCM_CODE_OVERS)
		return ucm_error_set(error, -EINVAL, "over %" PRIu32
				     ": unknown", method->over);
	if (spec->form == UCM_CODE_COUNTS && method->over != UCM_CODE_SUM)
		return ucm_error_set(error, -EINVAL, "over %" PRIu32
				     ": counts have only a sum", method->over);
	if (method->per >= UCM_SCORE_PERS)
		return ucm_error_set(error, -EINVAL, "per %" PRIu32
				     ": unknown", method->per);
	err = ucm_sparse_heads_check("num_heads", method->num_heads,
				     spec->num_heads, error);
	if (err)
		return err;
	group = method->num_heads / spec->num_heads;
	if (!method->merged_heads || group % method->merged_heads)
		return ucm_error_set(error, -EINVAL, "merged_heads %" PRIu32
				     ": a divisor of %" PRIu32,
				     method->merged_heads, group);
	return 0;
}

int ucm_code_query_shape(const struct ucm_code_spec *spec,
			 const struct ucm_code_method *method,
			 struct ucm_code_query *out, struct ucm_error *error)
{
	int err = ucm_code_shape(spec, &out->code, error)
		?: method_check(spec, method, error);
	bool each_head;
	uint64_t most;

	if (err)
		return err;
	each_head = method->per == UCM_SCORE_HEAD;
	out->group = method->num_heads / spec->num_heads;
	out->codes = out->group / method->merged_heads;
	out->rows = each_head ? out->codes : 1;
	if (method->measure == UCM_CODE_ESTIMATE) {
		out->num = ucm_code_weights(UCM_CODE_LEVELS - 1, out->weights);
	} else {
		most = largest(spec, method, out->codes);
		if (!each_head && out->codes > GROUP_MAX)
			return ucm_error_set(error, -EINVAL, "num_heads %"
					     PRIu32 ": %" PRIu32 " to a key "
					     "head after merging, up to %u",
					     method->num_heads, out->codes,
					     GROUP_MAX);
		if (most > EXACT_MAX)
			return ucm_error_set(error, -EINVAL, "per, over: a "
					     "score may be %" PRIu64
					     ", floats hold whole numbers up to"
					     " 2^24", most);
		out->num = ucm_code_weights(each_head ? 1 : out->codes,
					    out->weights);
	}
	out->row_words = 1 + (size_t)out->num * out->code.words;
	return 0;
}

size_t ucm_code_query_words(const struct ucm_code_spec *spec,
			    const struct ucm_code_method *method)
{
	struct ucm_code_query shape;

	if (ucm_code_query_shape(spec, method, &shape, NULL))
		return 0;
	return (size_t)spec->num_heads * shape.rows * shape.row_words;
}

/* ---- the query ---- */

struct code_prepare {
	const void *encoder;
	const struct ucm_code_spec *spec; /* the encoder's */
	const struct ucm_code_method *method;
	const struct ucm_query *query, *rope;
	struct ucm_code_query shape;
	struct ucm_error *error;
};

/* A query head as floats. -EINVAL, -ERANGE: one is not finite, or too large. */
static int head_load(const struct code_prepare *work, uint32_t head, float *out)
{
	uint32_t dim = work->spec->head_dim;
	uint32_t rope = work->rope ? work->spec->rope_dim : 0;
	bool small = true, finite = ucm_sparse_query_widen(work->query, head,
							   dim - rope, out);

	if (rope)
		finite &= ucm_sparse_query_widen(work->rope, head, rope,
						 out + dim - rope);
	for (uint32_t i = 0; i < dim; i++)
		small &= fabsf(out[i]) <= UCM_CODE_LIMIT;
	if (finite && small)
		return 0;
	return ucm_error_set(work->error, finite ? -ERANGE : -EINVAL,
			     "query: head %" PRIu32 " is %s", head,
			     finite ? "beyond 2^40" : "not finite");
}

/* The mean of num heads, step apart. */
static void heads_mean(const struct code_prepare *work, uint32_t first,
		       uint32_t step, uint32_t num, float *out)
{
	float head[UCM_REPR_HEAD_DIM_MAX];
	uint32_t dim = work->spec->head_dim;

	head_load(work, first, out);
	for (uint32_t i = 1; i < num; i++) {
		head_load(work, first + i * step, head);
		for (uint32_t c = 0; c < dim; c++)
			out[c] += head[c];
	}
	for (uint32_t c = 0; num > 1 && c < dim; c++)
		out[c] /= (float)num;
}

/* Code number i of a key head's group. */
static void code_load(const struct code_prepare *work, uint32_t key_head,
		      uint32_t i, float *out)
{
	heads_mean(work, key_head * work->shape.group + i, work->shape.codes,
		   work->method->merged_heads, out);
}

static void row_set(const struct ucm_code_query *shape, uint64_t *row,
		    uint32_t bit, uint32_t planes)
{
	uint64_t *word = row + 1 + (size_t)(bit / UCM_CODE_WORD) * shape->num;

	for (uint32_t p = 0; p < shape->num; p++)
		word[p] |= (uint64_t)(planes >> p & 1) << bit % UCM_CODE_WORD;
}

/* The unit, and the distance of a code of zeros. */
static void row_finish(const struct ucm_code_query *shape, uint64_t *row,
		       float unit)
{
	uint64_t weight = 0;

	for (uint32_t w = 0; w < shape->code.words; w++) {
		for (uint32_t p = 0; p < shape->num; p++)
			weight += (uint64_t)shape->weights[p] *
				  (uint64_t)__builtin_popcountll(
					  row[1 + w * shape->num + p]);
	}
	row[0] = weight << 32 | ucm_float_bits(unit);
}

/* The codes of some of a group's heads, from number first on. */
static void row_hamming(const struct code_prepare *work, uint32_t key_head,
			uint32_t first, uint32_t num, uint64_t *row)
{
	const struct ucm_code_query *shape = &work->shape;
	uint32_t counts[UCM_CODE_WORDS_MAX * UCM_CODE_WORD] = { 0 };
	uint64_t code[UCM_CODE_WORDS_MAX];
	float vector[UCM_REPR_HEAD_DIM_MAX];

	for (uint32_t i = 0; i < num; i++) {
		code_load(work, key_head, first + i, vector);
		ucm_code_encode(work->encoder, &shape->code, vector, 0, 1, code,
				NULL);
		for (uint32_t j = 0; j < shape->code.words * UCM_CODE_WORD; j++)
			counts[j] += code[j / UCM_CODE_WORD] >>
				     j % UCM_CODE_WORD & 1;
	}
	for (uint32_t j = 0; j < shape->code.words * UCM_CODE_WORD; j++)
		row_set(shape, row, j,
			ucm_code_sum_of(counts[j], shape->weights, shape->num));
	row_finish(shape, row, 1);
}

static void row_estimate(const struct code_prepare *work, const float *vector,
			 uint64_t *row)
{
	const struct ucm_code_query *shape = &work->shape;
	float sums[UCM_CODE_WORDS_MAX * UCM_CODE_WORD], most = 0;
	uint64_t code[UCM_CODE_WORDS_MAX];
	uint32_t at = 0;

	ucm_code_encode(work->encoder, &shape->code, vector, 0, 1, code, sums);
	for (uint32_t j = 0; j < shape->code.words * UCM_CODE_WORD; j++)
		most = fabsf(sums[j]) > most ? fabsf(sums[j]) : most;
	for (uint32_t i = 0; i < UCM_CODE_PARTS; i++) {
		for (uint32_t j = 0; most > 0 && j < shape->code.parts[i].bits;
		     j++)
			row_set(shape, row, at + j,
				ucm_code_sum_of(ucm_code_level(sums[at + j],
							       most),
						shape->weights, shape->num));
		at += shape->code.parts[i].words * UCM_CODE_WORD;
	}
	row_finish(shape, row, most / UCM_CODE_LEVELS);
}

static void row_make(const struct code_prepare *work, uint32_t key_head,
		     uint32_t i, uint64_t *row)
{
	const struct ucm_code_query *shape = &work->shape;
	bool each_head = work->method->per == UCM_SCORE_HEAD;
	float vector[UCM_REPR_HEAD_DIM_MAX];

	memset(row, 0, shape->row_words * sizeof(*row));
	if (work->method->measure == UCM_CODE_HAMMING) {
		row_hamming(work, key_head, i, each_head ? 1 : shape->codes,
			    row);
		return;
	}
	if (each_head)
		code_load(work, key_head, i, vector);
	else
		heads_mean(work, key_head * shape->group, 1, shape->group,
			   vector);
	row_estimate(work, vector, row);
}

static int prepare_check(struct code_prepare *work)
{
	const struct ucm_query *query = work->query, *rope = work->rope;
	struct ucm_error why;
	int err = ucm_code_encoder_check(work->encoder, &work->spec,
					 work->error)
		?: ucm_code_query_shape(work->spec, work->method, &work->shape,
					work->error)
		?: ucm_sparse_query_check(query, work->spec->head_dim,
					  work->error);

	if (err)
		return err;
	if (rope && !work->spec->rope_dim)
		return ucm_error_set(work->error, -EINVAL,
				     "rope: spec has no rope_dim");
	if (rope && ucm_sparse_query_check(rope, work->spec->rope_dim, &why))
		return ucm_error_set(work->error, -EINVAL, "rope: %s",
				     why.text);
	if (query->num_heads != work->method->num_heads ||
	    (rope && rope->num_heads != work->method->num_heads))
		return ucm_error_set(work->error, -EINVAL, "num_heads: the "
				     "query has not the method's %" PRIu32,
				     work->method->num_heads);
	return 0;
}

int ucm_code_query_prepare(const void *encoder,
			   const struct ucm_code_method *method,
			   const struct ucm_query *query,
			   const struct ucm_query *rope, uint64_t *out,
			   struct ucm_error *error)
{
	struct code_prepare work = { .encoder = encoder, .method = method,
				     .query = query, .rope = rope,
				     .error = error };
	float head[UCM_REPR_HEAD_DIM_MAX];
	int err = prepare_check(&work);

	if (!err && !out)
		err = ucm_error_set(error, -EINVAL, "out is NULL");
	for (uint32_t i = 0; !err && i < query->num_heads; i++)
		err = head_load(&work, i, head);
	if (err)
		return err;
	for (uint32_t i = 0; i < work.spec->num_heads; i++) {
		for (uint32_t j = 0; j < work.shape.rows; j++) {
			row_make(&work, i, j, out);
			out += work.shape.row_words;
		}
	}
	return 0;
}

/* ---- the scores ---- */

/* A key head of a block, and a row of the query. */
struct code_run {
	const struct ucm_code_spec *spec;
	const struct ucm_code_method *method;
	const struct ucm_code_query *shape;
	struct ucm_code_rows code;
	const uint16_t *norms; /* NULL: none that are wanted */
	uint32_t tokens;
	float unit;
	uint32_t weight;
};

/* A token's score; before the unit, which is 1 with Hamming's. */
static float token_score(const struct code_run *run, uint32_t distance,
			 uint32_t token)
{
	float score;

	if (run->method->measure == UCM_CODE_HAMMING)
		return (float)-(int32_t)distance; /* 0, not -0 */
	score = (float)ucm_code_agreement(run->shape->code.bits, distance);
	return run->norms ? score * ucm_float_of_bfloat16(run->norms[token])
			  : score;
}

static float best_score(const struct code_run *run)
{
	if (!run->tokens)
		return -INFINITY;
	if (run->norms)
		return ucm_code_kernels()->best(
			&run->code, run->norms,
			ucm_code_agreement(run->shape->code.bits, 0));
	return token_score(run, ucm_code_kernels()->least(&run->code), 0);
}

/* Some tokens of the block. */
static uint32_t chunk_distances(const struct code_run *run, uint32_t first,
				uint32_t *out)
{
	struct ucm_code_rows code = run->code;
	uint32_t left = run->tokens - first;

	code.base += ucm_code_at(first, code.words, 0);
	code.rows = left < CHUNK ? left : CHUNK;
	ucm_code_kernels()->distances(&code, out);
	return (uint32_t)code.rows;
}

static double normed_sum(const struct code_run *run)
{
	uint32_t distances[CHUNK];
	double sum = 0;

	for (uint32_t i = 0; i < run->tokens; i += CHUNK) {
		uint32_t num = chunk_distances(run, i, distances);

		for (uint32_t j = 0; j < num; j++)
			sum += (double)token_score(run, distances[j], i + j);
	}
	return sum;
}

/* The score of tokens whose distances have such a sum; before the unit. */
static double score_of_sum(const struct code_run *run, uint64_t sum)
{
	if (run->method->measure == UCM_CODE_HAMMING)
		return (double)-(int64_t)sum;
	return (double)((uint64_t)(UCM_CODE_LEVELS - 1) *
			run->shape->code.bits * run->tokens) -
	       2 * (double)sum;
}

static double sum_score(const struct code_run *run)
{
	if (run->norms)
		return normed_sum(run);
	return score_of_sum(run, ucm_code_kernels()->sum(&run->code));
}

/* One for each token, added to what is there. */
static void tokens_add(const struct code_run *run, float *scores)
{
	uint32_t distances[CHUNK];

	for (uint32_t i = 0; i < run->tokens; i += CHUNK) {
		uint32_t num = chunk_distances(run, i, distances);

		for (uint32_t j = 0; j < num; j++)
			scores[i + j] += token_score(run, distances[j], i + j) *
					 run->unit;
	}
}

static void each_begin(const struct code_run *run, float *scores)
{
	for (uint32_t i = 0; i < run->spec->block_size; i++)
		scores[i] = i < run->tokens ? 0 : -INFINITY;
}

static float run_score(const struct code_run *run)
{
	return run->method->over == UCM_CODE_BEST
		       ? best_score(run) * run->unit
		       : (float)(sum_score(run) * (double)run->unit);
}

static void run_query(struct code_run *run, const uint64_t *row)
{
	run->unit = ucm_float_of((uint32_t)row[0]);
	run->weight = (uint32_t)(row[0] >> 32);
	run->code.planes = row + 1;
}

static void run_block(struct code_run *run, const uint8_t *slot)
{
	memcpy(&run->tokens, slot + run->shape->code.tokens_at,
	       sizeof(run->tokens));
	if (run->tokens > run->spec->block_size)
		run->tokens = run->spec->block_size;
	run->code.rows = run->spec->form == UCM_CODE_COUNTS
				 ? run->shape->code.rows : run->tokens;
}

static void run_head(struct code_run *run, const uint8_t *slot, uint32_t head)
{
	const struct ucm_code_shape *shape = &run->shape->code;

	slot += head * shape->head_bytes;
	run->code.base = (const uint64_t *)slot;
	if (run->spec->norms && run->method->measure == UCM_CODE_ESTIMATE)
		run->norms = (const uint16_t *)(slot + shape->norms_at);
}

/* Tokens' codes of block number i of a request. */
static void tokens_score(struct code_run *run,
			 const struct ucm_code_request *request,
			 const uint8_t *slot, size_t i)
{
	bool each = run->method->over == UCM_CODE_EACH;
	bool whole = run->method->per == UCM_SCORE_BLOCK;
	float *score = request->scores + (each ? i * run->spec->block_size : i);
	const uint64_t *row = request->query;
	double sum = 0;

	for (uint32_t head = 0; head < run->spec->num_heads; head++) {
		run_head(run, slot, head);
		for (uint32_t j = 0; j < run->shape->rows; j++) {
			run_query(run, row);
			row += run->shape->row_words;
			if (each && (!whole || head == 0))
				each_begin(run, score);
			if (each)
				tokens_add(run, score);
			else if (whole)
				sum += (double)run_score(run);
			else
				*score = run_score(run);
			if (!whole)
				score += request->stride;
		}
	}
	if (whole && !each)
		*score = (float)sum;
}

/* A row of the query against counts: the tokens' distances sum up to those of the
 * digits, less those that code_core.h tells of. */
static float count_score(struct code_run *run, const uint64_t *row,
			 uint64_t digits)
{
	uint64_t most = ((uint64_t)1 << run->shape->code.rows) - 1;

	run_query(run, row);
	return (float)(score_of_sum(run, digits - (most - run->tokens) *
						 run->weight) *
		       (double)run->unit);
}

/* Hamming's distances are whole numbers that floats can hold, all of them: their
 * sum over the heads is the same in any order. */
static float whole_count_score(const struct code_run *run,
			       const uint64_t *query, size_t apart)
{
	uint64_t most = ((uint64_t)1 << run->shape->code.rows) - 1;
	uint64_t weight = 0, sum;
	uint32_t heads = run->spec->num_heads;

	for (uint32_t head = 0; head < heads; head++)
		weight += query[head * apart] >> 32;
	sum = ucm_code_kernels()->count_all(
		&run->code, run->shape->code.head_bytes / sizeof(uint64_t),
		apart, heads);
	return (float)score_of_sum(run, sum - (most - run->tokens) * weight);
}

/* Counts of block number i. A head has as little as 128 bytes, so that all of them
 * are one call. */
static void counts_score(struct code_run *run,
			 const struct ucm_code_request *request,
			 const uint8_t *slot, size_t i)
{
	const struct ucm_code_query *shape = run->shape;
	bool whole = run->method->per == UCM_SCORE_BLOCK;
	uint32_t heads = run->spec->num_heads;
	size_t apart = shape->rows * shape->row_words; /* rows of heads */
	uint64_t digits[UCM_REPR_HEADS_MAX];
	double sum = 0;

	run->code.base = (const uint64_t *)slot;
	run->code.planes = request->query + 1;
	if (whole && run->method->measure == UCM_CODE_HAMMING) {
		request->scores[i] = whole_count_score(run, request->query,
						       apart);
		return;
	}
	for (uint32_t j = 0; j < shape->rows; j++) {
		const uint64_t *row = request->query + j * shape->row_words;

		run->code.planes = row + 1;
		ucm_code_kernels()->count(
			&run->code, shape->code.head_bytes / sizeof(uint64_t),
			apart, heads, digits);
		for (uint32_t head = 0; head < heads; head++) {
			float score = count_score(run, row + head * apart,
						  digits[head]);
			size_t at = head * shape->rows + j;

			if (whole)
				sum += (double)score;
			else
				request->scores[at * request->stride + i] =
					score;
		}
	}
	if (whole)
		request->scores[i] = (float)sum;
}

static void block_score(struct code_run *run,
			const struct ucm_code_request *request, size_t i)
{
	const uint8_t *slot = (const uint8_t *)request->slab->base +
			      ucm_repr_id(request->slots, request->first_slot,
					  i) *
				      request->slab->stride_bytes;

	run_block(run, slot);
	if (run->spec->form == UCM_CODE_COUNTS)
		counts_score(run, request, slot, i);
	else
		tokens_score(run, request, slot, i);
}

static int request_check(const struct ucm_code_spec *spec,
			 const struct ucm_code_method *method,
			 const struct ucm_code_request *request,
			 struct ucm_error *error)
{
	struct ucm_code_query shape;
	int err = ucm_code_query_shape(spec, method, &shape, error)
		?: ucm_repr_slab_check(request->slab, shape.code.bytes,
				       sizeof(uint64_t), error)
		?: ucm_sparse_places_check(request->slab, request->slots,
					   request->first_slot, request->num,
					   request->query, request->scores,
					   error);
	uint64_t rows, row, all;

	if (err)
		return err;
	row = method->over == UCM_CODE_EACH ? spec->block_size : 1;
	rows = method->per == UCM_SCORE_BLOCK
		       ? 1 : (uint64_t)spec->num_heads * shape.rows;
	if (__builtin_mul_overflow(row, request->num, &row) ||
	    (rows > 1 && request->stride < row) ||
	    __builtin_mul_overflow(rows * sizeof(float),
				   rows > 1 ? request->stride : row, &all))
		return ucm_error_set(error, -EINVAL, "stride %zu: at least %"
				     PRIu64, request->stride, row);
	return 0;
}

static void request_run(const struct ucm_code_spec *spec,
			const struct ucm_code_method *method,
			const struct ucm_code_request *request)
{
	struct ucm_code_query shape;
	struct code_run run = { spec, method, &shape, .norms = NULL };

	ucm_code_query_shape(spec, method, &shape, NULL);
	run.code.words = shape.code.words;
	run.code.num_planes = shape.num;
	run.code.weights = shape.weights;
	for (size_t i = 0; i < request->num; i++)
		block_score(&run, request, i);
}

int ucm_code_score(const struct ucm_code_spec *spec,
		   const struct ucm_code_method *method,
		   const struct ucm_code_request *requests,
		   size_t num_requests, struct ucm_error *error)
{
	struct ucm_error why;

	if (num_requests && !requests)
		return ucm_error_set(error, -EINVAL, "requests is NULL");
	for (size_t i = 0; i < num_requests; i++) {
		int err = request_check(spec, method, &requests[i], &why);

		if (err)
			return ucm_sparse_refuse(i, num_requests, err, &why,
						 error);
	}
	for (size_t i = 0; i < num_requests; i++)
		request_run(spec, method, &requests[i]);
	return 0;
}
