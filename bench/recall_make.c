/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recall_make.c - requests with something planted in them.
 *
 * With N a normal number of variance 1, drawn anew wherever it stands:
 *
 *   query   of key head h a direction u of length 1; each of its query heads is
 *           sqrt(dim) (a u + sqrt(1 - a^2) v), v being a direction of its own that
 *           is at right angles to u, and a what heads agree by
 *   keys    mean + topic / 2 + N for each channel: the mean of the head's
 *           channel, N / 2, with 8 more or less in the outliers; the topic of the
 *           block, N. With RoPE they are rotated to their positions (NeoX, base
 *           500000), and the outliers are in the slowest pairs, where models have
 *           them
 *   plants  strength / a u is added to one token of a block (needle), or to all of
 *           its tokens (topic), in all key heads, rotated or not
 *
 * So q.k / sqrt(dim) is about normal for what is not planted, and larger by the
 * strength for what is, in every query head, for any dim. Keys are stored as
 * bfloat16 then; everything else is computed from what is stored.
 *
 * The same seed makes the same bits everywhere: numbers come from Philox4x32-10, a
 * function of seed and counter. A normal one is the sum of eight uniform ones of
 * 16 bits (within 4.9). Roots are IEEE 754's, exponentials are computed here, and
 * sums have one order.
 */
#include <config.h>

#include "bench/recall.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "sparse/code_matrix.h"
#include "sparse/number.h"

#define OUTLIER	  8.0f
#define ROPE_BASE 500000.0

/* ---- numbers ---- */

/* What numbers are for: each has a sequence of its own. */
enum stream {
	STREAM_QUERY,
	STREAM_MEAN,
	STREAM_TOPIC,
	STREAM_KEY,
	STREAM_PLACE,
};

struct random {
	uint32_t key[2], counter[4];
};

static struct random random_of(const struct ucm_recall_shape *shape,
			       enum ucm_recall_workload workload,
			       uint32_t number, enum stream stream)
{
	return (struct random){
		{ (uint32_t)shape->seed, (uint32_t)(shape->seed >> 32) },
		{ 0, 0, number,
		  (uint32_t)stream * UCM_RECALL_WORKLOADS + workload },
	};
}

static void random_words(struct random *random, uint32_t out[4])
{
	ucm_philox(random->counter, random->key, out);
	if (++random->counter[0] == 0)
		random->counter[1]++;
}

static float random_normal(struct random *random)
{
	uint32_t words[4];
	int32_t sum = -4 * 65535;

	random_words(random, words);
	for (int i = 0; i < 4; i++)
		sum += (int32_t)((words[i] >> 16) + (words[i] & 0xffff));
	return (float)sum * (1.22474487f / 65536); /* sqrt(12 / 8) */
}

/* 0 to end - 1 */
static uint32_t random_below(struct random *random, uint32_t end)
{
	uint32_t words[4];

	random_words(random, words);
	return (uint32_t)((uint64_t)words[0] * end >> 32);
}

/* exp x for x <= 0: 2^n exp r, with |r| <= ln 2 / 2 as a sum. Good to 2^-50 of
 * it. (The C library's has other last bits on other CPUs.) */
static double exp_of(double x)
{
	double n, r, sum = 1;

	if (x < -700)
		return 0;
	n = floor(x * 1.4426950408889634 + 0.5);
	r = x - n * 0.693145751953125;   /* ln 2, 16 bits: exact */
	r -= n * 1.4286068203094172e-06; /* and its rest */
	for (int i = 14; i >= 1; i--)
		sum = 1 + sum * r / i;
	return ldexp(sum, (int)n);
}

/* ---- room ---- */

static size_t num_keys(const struct ucm_recall_shape *shape)
{
	return (size_t)shape->tokens * shape->heads * shape->dim;
}

int ucm_recall_open(const struct ucm_recall_shape *shape,
		    struct ucm_recall *out)
{
	size_t num = num_keys(shape), dim = shape->dim;
	uint32_t blocks = (shape->tokens - 1) / shape->block_size + 1;
	uint32_t group = shape->query_heads / shape->heads;

	*out = (struct ucm_recall){
		.shape = shape,
		.num_blocks = blocks,
		.draft = calloc(num, sizeof(*out->draft)),
		.stored = calloc(num, sizeof(*out->stored)),
		.query = calloc(shape->query_heads * dim, sizeof(*out->query)),
		.centers = calloc(shape->heads * dim, sizeof(*out->centers)),
		.planted = calloc(blocks, sizeof(*out->planted)),
		.logits = calloc((size_t)group * shape->tokens,
				 sizeof(*out->logits)),
		.mass = calloc(blocks, sizeof(*out->mass)),
		.best = calloc(blocks, sizeof(*out->best)),
	};
	if (out->draft && out->stored && out->query && out->centers &&
	    out->planted && out->logits && out->mass && out->best)
		return 0;
	ucm_recall_close(out);
	return -ENOMEM;
}

void ucm_recall_close(struct ucm_recall *recall)
{
	free(recall->draft);
	free(recall->stored);
	free(recall->query);
	free(recall->centers);
	free(recall->planted);
	free(recall->logits);
	free(recall->mass);
	free(recall->best);
	*recall = (struct ucm_recall){ 0 };
}

struct ucm_keys ucm_recall_keys(const struct ucm_recall *recall)
{
	const struct ucm_recall_shape *shape = recall->shape;
	int64_t token = (int64_t)shape->heads * shape->dim;

	return (struct ucm_keys){
		recall->stored, UCM_DTYPE_BFLOAT16, recall->num_blocks,
		token * shape->block_size, token, shape->dim,
	};
}

uint32_t ucm_recall_last_tokens(const struct ucm_recall *recall)
{
	return recall->shape->tokens -
	       (recall->num_blocks - 1) * recall->shape->block_size;
}

/* ---- queries ---- */

static double product(const double *a, const double *b, uint32_t num)
{
	double sum = 0;

	for (uint32_t i = 0; i < num; i++)
		sum += a[i] * b[i];
	return sum;
}

/* A random direction, at right angles to another one (NULL: to none). */
static void draw_direction(struct random *random, const double *other,
			   uint32_t dim, double *out)
{
	double along, length;

	for (uint32_t i = 0; i < dim; i++)
		out[i] = (double)random_normal(random);
	along = other ? product(out, other, dim) : 0;
	for (uint32_t i = 0; i < dim && other; i++)
		out[i] -= along * other[i];
	length = sqrt(product(out, out, dim));
	for (uint32_t i = 0; i < dim; i++)
		out[i] /= length;
}

/* The query heads of a key head; out: their direction. */
static void draw_group(const struct ucm_recall *recall, struct random *random,
		       uint32_t head, double *out)
{
	const struct ucm_recall_shape *shape = recall->shape;
	uint32_t dim = shape->dim, group = shape->query_heads / shape->heads;
	double own[UCM_REPR_HEAD_DIM_MAX], a = shape->agree;

	draw_direction(random, NULL, dim, out);
	for (uint32_t i = 0; i < group; i++) {
		float *query = recall->query + (size_t)(head * group + i) * dim;

		draw_direction(random, out, dim, own);
		for (uint32_t j = 0; j < dim; j++)
			query[j] = (float)(sqrt(dim) *
					   (a * out[j] +
					    sqrt(1 - a * a) * own[j]));
	}
}

/* ---- keys ---- */

/* Outliers are in the slowest pairs: i and i + dim / 2, from the last on. */
static void draw_means(const struct ucm_recall_shape *shape,
		       struct random *random, float *out)
{
	uint32_t dim = shape->dim;

	for (uint32_t head = 0; head < shape->heads; head++, out += dim) {
		for (uint32_t i = 0; i < dim; i++)
			out[i] = 0.5f * random_normal(random);
		for (uint32_t i = 0; i < shape->outliers; i++) {
			uint32_t at = (i % 2 ? dim : dim / 2) - 1 - i / 2;

			out[at] += random_below(random, 2) ? OUTLIER : -OUTLIER;
		}
	}
}

/* The keys of a block: means has what its tokens have in common. */
static void draw_block(const struct ucm_recall *recall, struct random *topics,
		       struct random *keys, const float *means, uint32_t block)
{
	const struct ucm_recall_shape *shape = recall->shape;
	uint32_t width = shape->heads * shape->dim;
	uint32_t first = block * shape->block_size, end = shape->tokens;

	if (end - first > shape->block_size)
		end = first + shape->block_size;
	for (uint32_t i = 0; i < width; i++) {
		float common = means[i] + 0.5f * random_normal(topics);

		for (uint32_t token = first; token < end; token++)
			recall->draft[(size_t)token * width + i] =
				common + random_normal(keys);
	}
}

static int rotate(const struct ucm_recall *recall, struct ucm_error *error)
{
	const struct ucm_recall_shape *shape = recall->shape;
	const struct ucm_rope rope = {
		.head_dim = shape->dim, .base = ROPE_BASE,
	};
	int64_t token = (int64_t)shape->heads * shape->dim;
	int32_t *positions = calloc(shape->tokens, sizeof(*positions));
	struct ucm_shift_request request = {
		.from = { recall->draft, UCM_DTYPE_FLOAT32, shape->tokens,
			  token, token, shape->dim },
		.to = { recall->draft, shape->tokens, token, token,
			shape->dim },
		.num = shape->tokens, .num_heads = shape->heads,
		.block_size = 1, .last_tokens = 1, .deltas = positions,
		.unrotated = 1,
	};
	int err;

	if (!positions)
		return ucm_error_set(error, -ENOMEM, "%s", strerror(ENOMEM));
	for (uint32_t i = 0; i < shape->tokens; i++)
		positions[i] = (int32_t)i;
	err = ucm_rope_shift(&rope, &request, error);
	free(positions);
	return err;
}

/* ---- plants ---- */

/* All blocks, the first num of them in random order. */
static void draw_places(const struct ucm_recall *recall, struct random *random,
			uint32_t num)
{
	for (uint32_t i = 0; i < recall->num_blocks; i++)
		recall->planted[i] = i;
	for (uint32_t i = 0; i < num; i++) {
		uint32_t j = i + random_below(random, recall->num_blocks - i);
		uint32_t block = recall->planted[j];

		recall->planted[j] = recall->planted[i];
		recall->planted[i] = block;
	}
}

static void plant_token(const struct ucm_recall *recall, uint32_t token,
			const double *directions, double strength)
{
	const struct ucm_recall_shape *shape = recall->shape;
	uint32_t width = shape->heads * shape->dim;
	float *key = recall->draft + (size_t)token * width;

	for (uint32_t i = 0; i < width; i++)
		key[i] += (float)(strength / shape->agree * directions[i]);
}

static void plant(const struct ucm_recall *recall, struct random *random,
		  enum ucm_recall_workload workload, const double *directions)
{
	const struct ucm_recall_shape *shape = recall->shape;

	draw_places(recall, random, shape->num_plants[workload]);
	for (uint32_t i = 0; i < shape->num_plants[workload]; i++) {
		uint32_t block = recall->planted[i], num = shape->block_size;
		uint32_t first = block * shape->block_size;

		if (block == recall->num_blocks - 1)
			num = ucm_recall_last_tokens(recall);
		if (workload == UCM_RECALL_NEEDLES) {
			first += random_below(random, num);
			num = 1;
		}
		for (uint32_t j = 0; j < num; j++)
			plant_token(recall, first + j, directions,
				    shape->strength[workload]);
	}
}

/* ---- what there is to find ---- */

static void store_keys(const struct ucm_recall *recall)
{
	size_t num = num_keys(recall->shape);

	for (size_t i = 0; i < num; i++)
		recall->stored[i] = ucm_bfloat16_of(recall->draft[i],
						    UCM_ROUND_NEAREST);
}

static void find_centers(const struct ucm_recall *recall)
{
	const struct ucm_recall_shape *shape = recall->shape;
	size_t width = (size_t)shape->heads * shape->dim;

	for (size_t i = 0; i < width; i++) {
		double sum = 0;

		for (size_t j = 0; j < shape->tokens; j++)
			sum += (double)ucm_float_of_bfloat16(
				recall->stored[j * width + i]);
		recall->centers[i] = (float)(sum / shape->tokens);
	}
}

/* q.k of all tokens and the query heads of a key head */
static void find_products(const struct ucm_recall *recall, uint32_t head)
{
	const struct ucm_recall_shape *shape = recall->shape;
	uint32_t dim = shape->dim, group = shape->query_heads / shape->heads;
	double key[UCM_REPR_HEAD_DIM_MAX];

	for (uint32_t token = 0; token < shape->tokens; token++) {
		const uint16_t *stored =
			recall->stored +
			((size_t)token * shape->heads + head) * dim;

		for (uint32_t i = 0; i < dim; i++)
			key[i] = (double)ucm_float_of_bfloat16(stored[i]);
		for (uint32_t i = 0; i < group; i++) {
			const float *query = recall->query +
					     (size_t)(head * group + i) * dim;
			double sum = 0;

			for (uint32_t j = 0; j < dim; j++)
				sum += (double)query[j] * key[j];
			recall->logits[(size_t)i * shape->tokens + token] = sum;
		}
	}
}

/* Add a query head to mass and best; its products become exponentials. */
static void add_head(const struct ucm_recall *recall, double *products)
{
	const struct ucm_recall_shape *shape = recall->shape;
	uint32_t group = shape->query_heads / shape->heads;
	double most = -INFINITY, all = 0;

	for (uint32_t i = 0; i < shape->tokens; i++)
		most = fmax(most, products[i]);
	for (uint32_t block = 0; block < recall->num_blocks; block++) {
		uint32_t i = block * shape->block_size;
		double best = -INFINITY;

		for (uint32_t j = 0; j < shape->block_size &&
				     i + j < shape->tokens; j++)
			best = fmax(best, products[i + j]);
		recall->best[block] += best / group;
	}
	for (uint32_t i = 0; i < shape->tokens; i++) {
		products[i] = exp_of((products[i] - most) / sqrt(shape->dim));
		all += products[i];
	}
	for (uint32_t i = 0; i < shape->tokens; i++)
		recall->mass[i / shape->block_size] +=
			products[i] / all / shape->query_heads;
}

static void find_truth(const struct ucm_recall *recall)
{
	const struct ucm_recall_shape *shape = recall->shape;
	uint32_t group = shape->query_heads / shape->heads;

	for (uint32_t i = 0; i < recall->num_blocks; i++)
		recall->mass[i] = recall->best[i] = 0;
	for (uint32_t head = 0; head < shape->heads; head++) {
		find_products(recall, head);
		for (uint32_t i = 0; i < group; i++)
			add_head(recall, recall->logits +
						 (size_t)i * shape->tokens);
	}
}

int ucm_recall_draw(struct ucm_recall *recall,
		    enum ucm_recall_workload workload, uint32_t number,
		    struct ucm_error *error)
{
	const struct ucm_recall_shape *shape = recall->shape;
	size_t width = (size_t)shape->heads * shape->dim;
	struct random query = random_of(shape, workload, number, STREAM_QUERY);
	struct random mean = random_of(shape, workload, number, STREAM_MEAN);
	struct random topic = random_of(shape, workload, number, STREAM_TOPIC);
	struct random key = random_of(shape, workload, number, STREAM_KEY);
	struct random place = random_of(shape, workload, number, STREAM_PLACE);
	double *directions = calloc(width, sizeof(*directions));
	int err = 0;

	if (!directions)
		return ucm_error_set(error, -ENOMEM, "%s", strerror(ENOMEM));
	for (uint32_t head = 0; head < shape->heads; head++)
		draw_group(recall, &query, head,
			   directions + (size_t)head * shape->dim);
	draw_means(shape, &mean, recall->centers);
	for (uint32_t block = 0; block < recall->num_blocks; block++)
		draw_block(recall, &topic, &key, recall->centers, block);
	if (shape->rope)
		err = rotate(recall, error);
	if (!err) {
		plant(recall, &place, workload, directions);
		store_keys(recall);
		find_centers(recall);
		find_truth(recall);
	}
	free(directions);
	return err;
}
