/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recall_score.c - one score for each block of a request, in every way that
 * the library has, as its users would call it; and in two ways that look at all
 * keys.
 */
#include <config.h>

#include "bench/recall.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/error.h"

#define CODE_SEED 1

static int no_memory(struct ucm_error *error)
{
	return ucm_error_set(error, -ENOMEM, "%s", strerror(ENOMEM));
}

static struct ucm_query query_of(const struct ucm_recall *recall)
{
	return (struct ucm_query){
		recall->query, UCM_DTYPE_FLOAT32, recall->shape->query_heads,
		recall->shape->dim,
	};
}

/* A slab with a slot for each block; base NULL: there is no memory. */
static struct ucm_repr_slab slab_of(const struct ucm_recall *recall,
				    size_t bytes)
{
	return (struct ucm_repr_slab){
		aligned_alloc(64, bytes * recall->num_blocks),
		recall->num_blocks, bytes,
	};
}

/* ---- from all keys ---- */

static int score_mass(const struct ucm_recall_method *method,
		      const struct ucm_recall *recall, float *out,
		      struct ucm_error *error)
{
	(void)method;
	(void)error;
	for (uint32_t i = 0; i < recall->num_blocks; i++)
		out[i] = (float)recall->mass[i];
	return 0;
}

static int score_best(const struct ucm_recall_method *method,
		      const struct ucm_recall *recall, float *out,
		      struct ucm_error *error)
{
	(void)method;
	(void)error;
	for (uint32_t i = 0; i < recall->num_blocks; i++)
		out[i] = (float)recall->best[i];
	return 0;
}

/* ---- representations ---- */

static struct ucm_repr_spec repr_spec(const struct ucm_recall_method *method,
				      const struct ucm_recall_shape *shape)
{
	return (struct ucm_repr_spec){ method->kind, method->dtype,
				       shape->heads, shape->dim,
				       shape->block_size };
}

static size_t repr_bytes(const struct ucm_recall_method *method,
			 const struct ucm_recall_shape *shape)
{
	struct ucm_repr_spec spec = repr_spec(method, shape);

	return ucm_repr_bytes(&spec);
}

static int repr_score(const struct ucm_recall_method *method,
		      const struct ucm_recall *recall,
		      const struct ucm_repr_spec *spec,
		      const struct ucm_repr_slab *slab, float *out,
		      struct ucm_error *error)
{
	struct ucm_query query = query_of(recall);
	uint32_t per = UCM_SCORE_BLOCK |
		       (method->distance ? UCM_SCORE_DISTANCE : 0);
	_cleanup_free_ float *prepared =
		calloc(ucm_query_floats(spec, query.num_heads, per),
		       sizeof(*prepared));
	const struct ucm_score_request request = {
		.query = prepared, .num_heads = query.num_heads, .per = per,
		.slab = slab, .num = recall->num_blocks, .scores = out,
	};
	int err;

	if (!prepared)
		return no_memory(error);
	err = ucm_query_prepare(spec, &query, per, prepared, error);
	return err ? err : ucm_score(spec, &request, 1, error);
}

static int score_repr(const struct ucm_recall_method *method,
		      const struct ucm_recall *recall, float *out,
		      struct ucm_error *error)
{
	struct ucm_repr_spec spec = repr_spec(method, recall->shape);
	struct ucm_keys keys = ucm_recall_keys(recall);
	struct ucm_repr_slab slab = slab_of(recall, ucm_repr_bytes(&spec));
	int err;

	if (!slab.base)
		return no_memory(error);
	err = ucm_repr_build(&spec, &keys, NULL, recall->num_blocks,
			     ucm_recall_last_tokens(recall), &slab, NULL,
			     error);
	if (!err)
		err = repr_score(method, recall, &spec, &slab, out, error);
	free(slab.base);
	return err;
}

/* ---- hash codes ---- */

/* As many bits as channels. */
static struct ucm_code_spec code_spec(const struct ucm_recall_method *method,
				      const struct ucm_recall_shape *shape)
{
	return (struct ucm_code_spec){
		.form = method->form, .num_heads = shape->heads,
		.head_dim = shape->dim, .bits = shape->dim,
		.block_size = shape->block_size, .norms = method->norms,
		.seed = CODE_SEED,
	};
}

static size_t code_bytes(const struct ucm_recall_method *method,
			 const struct ucm_recall_shape *shape)
{
	struct ucm_code_spec spec = code_spec(method, shape);

	return ucm_code_bytes(&spec);
}

static int code_score(const struct ucm_recall_method *method,
		      const struct ucm_recall *recall,
		      const struct ucm_code_spec *spec, const void *encoder,
		      const struct ucm_repr_slab *slab, float *out,
		      struct ucm_error *error)
{
	struct ucm_query query = query_of(recall);
	const struct ucm_code_method how = {
		method->measure, method->over, UCM_SCORE_BLOCK,
		query.num_heads, 1,
	};
	size_t words = ucm_code_query_words(spec, &how);
	_cleanup_free_ uint64_t *prepared =
		calloc(words ? words : 1, sizeof(*prepared));
	const struct ucm_code_request request = {
		.query = prepared, .slab = slab, .num = recall->num_blocks,
		.scores = out,
	};
	int err;

	if (!prepared)
		return no_memory(error);
	err = ucm_code_query_prepare(encoder, &how, &query, NULL, prepared,
				     error);
	return err ? err : ucm_code_score(spec, &how, &request, 1, error);
}

static int score_code(const struct ucm_recall_method *method,
		      const struct ucm_recall *recall, float *out,
		      struct ucm_error *error)
{
	struct ucm_code_spec spec = code_spec(method, recall->shape);
	struct ucm_keys keys = ucm_recall_keys(recall);
	struct ucm_repr_slab slab = slab_of(recall, ucm_code_bytes(&spec));
	void *encoder = malloc(ucm_code_encoder_bytes(&spec));
	int err = 0;

	if (!slab.base || !encoder)
		err = no_memory(error);
	if (!err)
		err = ucm_code_encoder_make(&spec,
					    method->centered ? recall->centers
							     : NULL,
					    encoder, error);
	if (!err)
		err = ucm_code_build(encoder, &keys, NULL, recall->num_blocks,
				     ucm_recall_last_tokens(recall), &slab,
				     NULL, error);
	if (!err)
		err = code_score(method, recall, &spec, encoder, &slab, out,
				 error);
	free(encoder);
	free(slab.base);
	return err;
}

/* ---- merged channels ---- */

/* bfloat16; channels are the caller's */
static struct ucm_star_spec star_spec(const struct ucm_recall_method *method,
				      const struct ucm_recall_shape *shape)
{
	return (struct ucm_star_spec){
		UCM_DTYPE_BFLOAT16, shape->heads, shape->dim,
		shape->block_size,
		.merge_tokens = method->merge_tokens < shape->block_size
					? method->merge_tokens
					: shape->block_size,
		.kept = ucm_star_kept(shape->dim, method->kept),
	};
}

/* The first ones of each head, until some are chosen; to free. */
static uint16_t *star_channels(const struct ucm_star_spec *spec)
{
	size_t num = (size_t)spec->num_heads * spec->kept;
	uint16_t *channels = calloc(num, sizeof(*channels));

	for (size_t i = 0; channels && i < num; i++)
		channels[i] = (uint16_t)(i % spec->kept);
	return channels;
}

static size_t star_bytes(const struct ucm_recall_method *method,
			 const struct ucm_recall_shape *shape)
{
	struct ucm_star_spec spec = star_spec(method, shape);
	_cleanup_free_ uint16_t *channels = star_channels(&spec);

	spec.channels = channels;
	return ucm_star_bytes(&spec);
}

/* KVStar's scale is 1. */
static int star_vote(const struct ucm_recall *recall,
		     const struct ucm_star_spec *spec,
		     struct ucm_star_request *request, float *out,
		     struct ucm_error *error)
{
	size_t rows = request->num_heads, num = recall->num_blocks;
	_cleanup_free_ float *scores = calloc(rows * num, sizeof(*scores));
	_cleanup_free_ float *weights = calloc(rows * num, sizeof(*weights));
	int err;

	if (!scores || !weights)
		return no_memory(error);
	request->per = UCM_SCORE_HEAD;
	request->scores = scores;
	request->weights = weights;
	request->stride = num;
	request->scale = 1;
	err = ucm_star_score(spec, request, 1, error);
	return err ? err
		   : ucm_star_vote(scores, weights, rows, num, num, 1, out,
				   error);
}

static int star_score(const struct ucm_recall_method *method,
		      const struct ucm_recall *recall,
		      const struct ucm_star_spec *spec,
		      const struct ucm_repr_slab *slab, float *out,
		      struct ucm_error *error)
{
	struct ucm_query query = query_of(recall);
	_cleanup_free_ float *prepared =
		calloc(ucm_star_query_floats(spec, 1, query.num_heads),
		       sizeof(*prepared));
	struct ucm_star_request request = {
		.query = prepared, .num_queries = 1,
		.num_heads = query.num_heads, .per = UCM_SCORE_BLOCK,
		.slab = slab, .num = recall->num_blocks, .scores = out,
	};
	int err;

	if (!prepared)
		return no_memory(error);
	err = ucm_star_query_prepare(spec, &query, 1, prepared, error);
	if (err)
		return err;
	return method->vote ? star_vote(recall, spec, &request, out, error)
			    : ucm_star_score(spec, &request, 1, error);
}

static int score_star(const struct ucm_recall_method *method,
		      const struct ucm_recall *recall, float *out,
		      struct ucm_error *error)
{
	struct ucm_star_spec spec = star_spec(method, recall->shape);
	struct ucm_keys keys = ucm_recall_keys(recall);
	uint32_t last = ucm_recall_last_tokens(recall);
	_cleanup_free_ uint16_t *channels = star_channels(&spec);
	struct ucm_repr_slab slab = slab_of(recall, star_bytes(method,
							       recall->shape));
	int err = 0;

	if (!channels || !slab.base)
		err = no_memory(error);
	if (!err)
		err = ucm_star_channels(&spec, &keys, NULL, recall->num_blocks,
					last, channels, error);
	spec.channels = channels;
	if (!err)
		err = ucm_star_build(&spec, &keys, NULL, recall->num_blocks,
				     last, &slab, NULL, error);
	if (!err)
		err = star_score(method, recall, &spec, &slab, out, error);
	free(slab.base);
	return err;
}

/* ---- all of them ---- */

#define REPR(name_, kind_, stored_, dtype_)                                   \
	{ .name = (name_), .stored = (stored_), .score = score_repr,          \
	  .bytes = repr_bytes, .kind = (kind_), .dtype = (dtype_) }
#define REPRS(name, kind)                                                     \
	REPR(name, kind, "float32", UCM_DTYPE_FLOAT32),                       \
	REPR(name, kind, "bfloat16", UCM_DTYPE_BFLOAT16),                     \
	REPR(name, kind, "float16", UCM_DTYPE_FLOAT16),                       \
	REPR(name, kind, "int8", UCM_DTYPE_INT8)
#define CODE(name_, stored_, ...)                                             \
	{ .name = (name_), .stored = (stored_), .score = score_code,          \
	  .bytes = code_bytes, __VA_ARGS__ }

#define STAR(name_, stored_, ...)                                             \
	{ .name = (name_), .stored = (stored_), .score = score_star,          \
	  .bytes = star_bytes, __VA_ARGS__ }

const struct ucm_recall_method ucm_recall_methods[] = {
	{ .name = "mass", .stored = "", .score = score_mass },
	{ .name = "best", .stored = "", .score = score_best },
	REPRS("mean", UCM_REPR_MEAN),
	REPRS("normed", UCM_REPR_NORMED),
	REPRS("max", UCM_REPR_MAX),
	REPRS("minmax", UCM_REPR_MINMAX),
	{ .name = "distance", .stored = "bfloat16", .score = score_repr,
	  .bytes = repr_bytes, .kind = UCM_REPR_MEAN,
	  .dtype = UCM_DTYPE_BFLOAT16, .distance = 1 },
	STAR("star", "1/2 by 4", .kept = .5, .merge_tokens = 4),
	STAR("star", "1/4 by 2", .kept = .25, .merge_tokens = 2),
	STAR("star-vote", "1/2 by 4", .kept = .5, .merge_tokens = 4, .vote = 1),
	STAR("star-vote", "1/4 by 2", .kept = .25, .merge_tokens = 2, .vote = 1),
	CODE("hamming", "1 bit", .over = UCM_CODE_BEST),
	CODE("hamming", "centered", .over = UCM_CODE_BEST, .centered = 1),
	CODE("hamming-sum", "counts", .form = UCM_CODE_COUNTS,
	     .over = UCM_CODE_SUM),
	CODE("hamming-sum", "centered", .form = UCM_CODE_COUNTS,
	     .over = UCM_CODE_SUM, .centered = 1),
	CODE("estimate", "1 bit", .measure = UCM_CODE_ESTIMATE,
	     .over = UCM_CODE_BEST, .norms = 1),
	CODE("estimate", "centered", .measure = UCM_CODE_ESTIMATE,
	     .over = UCM_CODE_BEST, .norms = 1, .centered = 1),
};
const size_t ucm_recall_num_methods =
	sizeof(ucm_recall_methods) / sizeof(ucm_recall_methods[0]);
