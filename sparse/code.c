/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code.c - hash codes of keys.
 *
 * An encoder is a head, and then floats: W of the first part, W of rope's, the
 * centers. A row of W is padded with columns of zeros to whole words, so that
 * the bits of padding are 0 without being looked at.
 *
 * A block's codes need no state beside them: a token's code is its own row, and
 * counts are kept in full. So a block that grows and one that is built at once
 * take the same way, and the first token of a block clears what was there.
 *
 * Keys are looked at before anything is written; only then are they encoded,
 * which costs far more than reading them twice.
 */
#include <config.h>

#include "sparse/code.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/align.h"
#include "common/error.h"
#include "sparse/code_matrix.h"
#include "sparse/kernels.h"
#include "sparse/number.h"
#include "sparse/rows.h"
#include "sparse/spec.h"

#define ENCODER_MAGIC 0x63637068u

/* At the start of an encoder. */
struct code_encoder {
	uint32_t magic;
	uint32_t has_centers;
	struct ucm_code_spec spec;
	uint32_t reserved[4];
};
static_assert(sizeof(struct code_encoder) == 64, "the floats follow");

/* ---- what follows from a spec ---- */

uint32_t ucm_code_rope_bits(const struct ucm_code_spec *spec)
{
	if (!spec->rope_dim || spec->rope_dim >= spec->head_dim)
		return 0;
	return (uint32_t)ucm_round_up(
		((uint64_t)spec->bits * spec->rope_dim - 1) /
				(spec->head_dim - spec->rope_dim) + 1,
		8);
}

size_t ucm_code_bytes(const struct ucm_code_spec *spec)
{
	struct ucm_code_shape shape;

	return ucm_code_shape(spec, &shape, NULL) ? 0 : shape.bytes;
}

/* ---- encoders ---- */

static const float *encoder_floats(const void *encoder)
{
	return (const float *)((const struct code_encoder *)encoder + 1);
}

size_t ucm_code_encoder_bytes(const struct ucm_code_spec *spec)
{
	struct ucm_code_shape shape;

	if (ucm_code_shape(spec, &shape, NULL))
		return 0;
	return sizeof(struct code_encoder) + shape.floats * sizeof(float);
}

/* Its size is at most the limit; also false for NaN. */
static bool in_limit(float value)
{
	return fabsf(value) <= UCM_CODE_LIMIT;
}

int ucm_code_encoder_make(const struct ucm_code_spec *spec,
			  const float *centers, void *memory,
			  struct ucm_error *error)
{
	struct code_encoder *encoder = memory;
	struct ucm_code_shape shape;
	int err = ucm_code_shape(spec, &shape, error)
		?: ucm_sparse_aligned("memory", memory, sizeof(uint64_t),
				      error);
	size_t num;
	float *floats;

	if (err)
		return err;
	num = (size_t)spec->num_heads * spec->head_dim;
	for (size_t i = 0; centers && i < num; i++) {
		if (!in_limit(centers[i]))
			return ucm_error_set(error, -EINVAL, "centers: number "
					     "%zu is not finite, or beyond "
					     "2^40", i);
	}
	*encoder = (struct code_encoder){ .magic = ENCODER_MAGIC,
					  .has_centers = centers != NULL,
					  .spec = *spec };
	floats = (float *)(encoder + 1);
	memset(floats, 0, shape.floats * sizeof(*floats));
	for (uint32_t i = 0; i < UCM_CODE_PARTS; i++)
		ucm_code_matrix_make(spec->seed, i, shape.parts[i].dim,
				     shape.parts[i].bits,
				     floats + shape.parts[i].matrix_at,
				     (size_t)shape.parts[i].words *
					     UCM_CODE_WORD);
	if (centers)
		memcpy(floats + shape.centers_at, centers,
		       num * sizeof(*centers));
	return 0;
}

int ucm_code_encoder_check(const void *memory,
			   const struct ucm_code_spec **spec,
			   struct ucm_error *error)
{
	const struct code_encoder *encoder = memory;
	int err = ucm_sparse_aligned("encoder", memory, sizeof(uint64_t),
				     error);

	if (!err && encoder->magic != ENCODER_MAGIC)
		err = ucm_error_set(error, -EINVAL, "encoder: none was made "
				    "there");
	if (!err)
		*spec = &encoder->spec;
	return err;
}

const float *ucm_code_matrix(const void *encoder, int rope, size_t *stride)
{
	const struct ucm_code_spec *spec;
	struct ucm_code_shape shape;
	uint32_t part = rope ? 1 : 0;

	if (ucm_code_encoder_check(encoder, &spec, NULL) ||
	    ucm_code_shape(spec, &shape, NULL) || !shape.parts[part].bits)
		return NULL;
	*stride = (size_t)shape.parts[part].words * UCM_CODE_WORD;
	return encoder_floats(encoder) + shape.parts[part].matrix_at;
}

void ucm_code_encode(const void *encoder, const struct ucm_code_shape *shape,
		     const float *vectors, size_t dim_stride, unsigned num,
		     uint64_t *codes, float *sums)
{
	uint32_t word = 0;

	for (uint32_t i = 0; i < UCM_CODE_PARTS; i++) {
		const float *matrix = encoder_floats(encoder) +
				      shape->parts[i].matrix_at;
		size_t stride = (size_t)shape->parts[i].words * UCM_CODE_WORD;

		for (uint32_t w = 0; w < shape->parts[i].words; w++, word++) {
			float products[UCM_CODE_VECTORS * UCM_CODE_WORD];
			uint64_t signs[UCM_CODE_VECTORS];

			ucm_code_kernels()->rotate(
				matrix + (size_t)w * UCM_CODE_WORD, stride,
				vectors + shape->parts[i].first, dim_stride,
				num, shape->parts[i].dim, products, signs);
			for (unsigned v = 0; v < num; v++) {
				size_t at = (size_t)v * shape->words + word;

				codes[at] = signs[v];
				if (sums)
					memcpy(sums + at * UCM_CODE_WORD,
					       products + v * UCM_CODE_WORD,
					       UCM_CODE_WORD * sizeof(*sums));
			}
		}
	}
}

/* ---- keys ---- */

/* What codes are made with. */
struct code_work {
	const void *encoder;
	const struct ucm_code_spec *spec; /* the encoder's */
	struct ucm_code_shape shape;
	const struct ucm_keys *keys;
	struct ucm_error *error;
};

static int work_begin(struct code_work *work, uint32_t tokens)
{
	int err = ucm_code_encoder_check(work->encoder, &work->spec,
					 work->error);

	if (!err)
		err = ucm_code_shape(work->spec, &work->shape, work->error);
	if (!err)
		err = ucm_sparse_keys_check(
			work->keys, tokens ? tokens : work->spec->block_size,
			work->spec->num_heads, work->spec->head_dim,
			work->error);
	return err;
}

static bool key_load(const struct code_work *work, uint64_t block,
		     uint32_t token, uint32_t head, float *out)
{
	const struct ucm_keys *keys = work->keys;
	const uint8_t *at = ucm_key_at(keys, block, token, head);

	return ucm_sparse_kernels()->widen[keys->dtype](out, at,
							work->spec->head_dim);
}

static int key_check(const struct code_work *work, uint64_t block,
		     uint32_t token, uint32_t head)
{
	float key[UCM_REPR_HEAD_DIM_MAX];
	bool finite = key_load(work, block, token, head, key), small = true;

	for (uint32_t i = 0; i < work->spec->head_dim; i++)
		small &= in_limit(key[i]);
	if (finite && small)
		return 0;
	return ucm_error_set(work->error, finite ? -ERANGE : -EINVAL,
			     "keys: block %" PRIu64 ", token %" PRIu32
			     ", head %" PRIu32 ": %s", block, token, head,
			     finite ? "beyond 2^40" : "not finite");
}

static int keys_check(const struct code_work *work, uint64_t block,
		      uint32_t tokens)
{
	for (uint32_t token = 0; token < tokens; token++) {
		for (uint32_t head = 0; head < work->spec->num_heads; head++) {
			int err = key_check(work, block, token, head);

			if (err)
				return err;
		}
	}
	return 0;
}

/* |key|^2 / sum |sums|: so the estimate of key.key is exact */
static uint16_t norm_of(const struct code_work *work, const float *key,
			const float *sums)
{
	double square = 0, sum = 0;

	for (uint32_t i = 0; i < work->spec->head_dim; i++)
		square += (double)key[i] * (double)key[i];
	for (size_t i = 0; i < (size_t)work->shape.words * UCM_CODE_WORD; i++)
		sum += (double)fabsf(sums[i]);
	return ucm_bfloat16_of(sum > 0 ? (float)(square / sum) : 0,
			       UCM_ROUND_NEAREST);
}

static void code_store(const struct code_work *work, uint32_t token,
		       const uint64_t *code, uint64_t *rows)
{
	uint32_t words = work->shape.words;

	for (uint32_t w = 0; w < words; w++) {
		if (work->spec->form == UCM_CODE_COUNTS)
			ucm_code_count(rows, work->shape.rows, words, w,
				       code[w]);
		else
			rows[ucm_code_at(token, words, w)] = code[w];
	}
}

/* num > 0 keys of a head, less its center; one at each UCM_REPR_HEAD_DIM_MAX. */
static void keys_load(const struct code_work *work, uint64_t block,
		      uint32_t token, uint32_t head, unsigned num, float *out)
{
	const struct code_encoder *encoder = work->encoder;
	uint32_t dim = work->spec->head_dim;
	const float *center = encoder_floats(encoder) +
			      work->shape.centers_at + (size_t)head * dim;

	do {
		key_load(work, block, token++, head, out);
		for (uint32_t c = 0; encoder->has_centers && c < dim; c++)
			out[c] -= center[c];
		out += UCM_REPR_HEAD_DIM_MAX;
	} while (--num);
}

/* Encode num tokens of a head, which become those from number first on. */
static void tokens_encode(const struct code_work *work, uint64_t block,
			  uint32_t token, uint32_t head, unsigned num,
			  uint32_t first, void *out)
{
	float keys[UCM_CODE_VECTORS * UCM_REPR_HEAD_DIM_MAX];
	float sums[UCM_CODE_VECTORS * UCM_CODE_WORDS_MAX * UCM_CODE_WORD];
	uint64_t codes[UCM_CODE_VECTORS * UCM_CODE_WORDS_MAX];
	uint8_t *rows = (uint8_t *)out + head * work->shape.head_bytes;
	uint16_t *norms = (uint16_t *)(rows + work->shape.norms_at);

	keys_load(work, block, token, head, num, keys);
	ucm_code_encode(work->encoder, &work->shape, keys,
			UCM_REPR_HEAD_DIM_MAX, num, codes,
			work->spec->norms ? sums : NULL);
	for (unsigned i = 0; i < num; i++) {
		size_t at = (size_t)i * work->shape.words;

		code_store(work, first + i, codes + at, (uint64_t *)rows);
		if (work->spec->norms)
			norms[first + i] = norm_of(
				work, keys + (size_t)i * UCM_REPR_HEAD_DIM_MAX,
				sums + at * UCM_CODE_WORD);
	}
}

/* Add tokens of a block of keys, from its first, to what has some already. */
static void block_encode(const struct code_work *work, uint64_t block,
			 uint32_t have, uint32_t tokens, void *out)
{
	uint32_t all = have + tokens;

	if (!have)
		memset(out, 0, work->shape.bytes);
	for (uint32_t head = 0; head < work->spec->num_heads; head++) {
		for (uint32_t i = 0; i < tokens; i += UCM_CODE_VECTORS) {
			uint32_t left = tokens - i;

			tokens_encode(work, block, i, head,
				      left < UCM_CODE_VECTORS
					      ? left : UCM_CODE_VECTORS,
				      have + i, out);
		}
	}
	memcpy((uint8_t *)out + work->shape.tokens_at, &all, sizeof(all));
}

/* ---- calls ---- */

int ucm_code_build(const void *encoder, const struct ucm_keys *keys,
		   const int32_t *blocks, size_t num, uint32_t last_tokens,
		   const struct ucm_repr_slab *slab, const int32_t *slots,
		   struct ucm_error *error)
{
	struct code_work work = { encoder, .keys = keys, .error = error };
	int err = work_begin(&work, 0)
		?: ucm_sparse_in_range("last_tokens", last_tokens,
				       work.spec->block_size, error)
		?: ucm_repr_slab_check(slab, work.shape.bytes,
				       sizeof(uint64_t), error)
		?: ucm_repr_ids_check("blocks", blocks, 0, num,
				      keys->num_blocks, error)
		?: ucm_repr_ids_check("slots", slots, 0, num, slab->num_slots,
				      error);

	for (size_t i = 0; !err && i < num; i++)
		err = keys_check(&work, ucm_repr_id(blocks, 0, i),
				 i + 1 < num ? work.spec->block_size
					     : last_tokens);
	for (size_t i = 0; !err && i < num; i++)
		block_encode(&work, ucm_repr_id(blocks, 0, i), 0,
			     i + 1 < num ? work.spec->block_size : last_tokens,
			     ucm_repr_slot(slab, slots, i));
	return err;
}

int ucm_code_add(const void *encoder, const struct ucm_keys *keys,
		 uint32_t first_token, uint32_t num_tokens, void *out,
		 struct ucm_error *error)
{
	struct code_work work = { encoder, .keys = keys, .error = error };
	int err = work_begin(&work, num_tokens)
		?: ucm_sparse_aligned("out", out, sizeof(uint64_t), error);
	uint32_t have = 0;

	if (err)
		return err;
	err = ucm_sparse_grow_check(keys, num_tokens, first_token,
				    work.spec->block_size, error);
	if (err)
		return err;
	if (first_token)
		memcpy(&have, (uint8_t *)out + work.shape.tokens_at,
		       sizeof(have));
	if (have != first_token)
		return ucm_error_set(error, -EINVAL, "first_token %" PRIu32
				     ": the block has %" PRIu32, first_token,
				     have);
	err = keys_check(&work, 0, num_tokens);
	if (!err)
		block_encode(&work, 0, first_token, num_tokens, out);
	return err;
}
