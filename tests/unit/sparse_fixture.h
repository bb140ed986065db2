/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_fixture.h - random keys, queries and representations, for the tests of
 * sparse/. */
#ifndef UCM_TESTS_SPARSE_FIXTURE_H
#define UCM_TESTS_SPARSE_FIXTURE_H

#include <errno.h>
#include <math.h>
#include <string.h>

#include <ucm/position.h>

#include "sparse/kernels.h"
#include "sparse/number.h"
#include "tests/unit/random.h"
#include "tests/unit/unit.h"

static const char *const ways[] = { "plain", "avx2", "avx512" };
static const uint32_t input_types[] = { UCM_DTYPE_FLOAT32, UCM_DTYPE_FLOAT16,
					UCM_DTYPE_BFLOAT16 };
static const uint32_t stored_types[] = { UCM_DTYPE_FLOAT32, UCM_DTYPE_FLOAT16,
					 UCM_DTYPE_BFLOAT16, UCM_DTYPE_INT8 };

/* All calls go this way from now on; false, with a SKIP line: this CPU cannot. */
static inline bool use_way(int way)
{
	if (!ucm_sparse_kernels_use(ways[way]))
		return unit_skip("sparse: this CPU has no %s", ways[way]);
	must(!strcmp(ucm_sparse_kernels()->name, ways[way]));
	return true;
}

static inline size_t type_bytes(uint32_t dtype)
{
	return dtype == UCM_DTYPE_FLOAT32 ? 4 : dtype == UCM_DTYPE_INT8 ? 1 : 2;
}

static inline float load_number(const void *at, uint32_t dtype)
{
	uint16_t half;
	float value;

	if (dtype == UCM_DTYPE_FLOAT32) {
		memcpy(&value, at, sizeof(value));
		return value;
	}
	if (dtype == UCM_DTYPE_INT8)
		return *(const int8_t *)at;
	memcpy(&half, at, sizeof(half));
	return dtype == UCM_DTYPE_FLOAT16 ? ucm_float_of_float16(half)
					  : ucm_float_of_bfloat16(half);
}

static inline void store_number(void *at, uint32_t dtype, float value)
{
	uint16_t half = dtype == UCM_DTYPE_FLOAT16
				? ucm_float16_of(value, UCM_ROUND_NEAREST)
				: ucm_bfloat16_of(value, UCM_ROUND_NEAREST);

	if (dtype == UCM_DTYPE_FLOAT32)
		memcpy(at, &value, sizeof(value));
	else
		memcpy(at, &half, sizeof(half));
}

/* -range to range */
static inline float random_float(uint64_t *state, float range)
{
	return range * ((float)(int32_t)random_next(state) / 0x1p31f);
}

/* Keys of a cache, in memory that is just as large as their strides say. */
struct cache {
	struct ucm_keys keys;
	uint8_t *memory;
	uint32_t num_heads, head_dim, block_size;
};

static inline uint8_t *cache_at(const struct cache *cache, uint64_t block,
				uint32_t token, uint32_t head, uint32_t channel)
{
	const struct ucm_keys *keys = &cache->keys;

	return (uint8_t *)keys->base +
	       (int64_t)type_bytes(keys->dtype) *
		       ((int64_t)block * keys->stride_block +
			(int64_t)token * keys->stride_token +
			(int64_t)head * keys->stride_head + channel);
}

static inline float cache_key(const struct cache *cache, uint64_t block,
			      uint32_t token, uint32_t head, uint32_t channel)
{
	return load_number(cache_at(cache, block, token, head, channel),
			   cache->keys.dtype);
}

/* One of [block][token][head][channel], [block][head][token][channel], or the
 * first with its blocks the other way round; with gaps now and then. */
static inline void cache_strides(struct cache *cache, uint64_t *random,
				 size_t *elements)
{
	struct ucm_keys *keys = &cache->keys;
	int64_t gap = random_between(random, 0, 2);
	int64_t inner = cache->head_dim + gap;
	int64_t size = inner * cache->num_heads * cache->block_size + gap;

	keys->stride_head = inner;
	keys->stride_token = inner * cache->num_heads;
	if (random_between(random, 0, 1)) {
		keys->stride_token = inner;
		keys->stride_head = inner * cache->block_size;
	}
	keys->stride_block = size;
	*elements = (size_t)size * keys->num_blocks;
}

static inline struct cache cache_make(const struct ucm_repr_spec *spec,
				      uint32_t dtype, uint32_t num_blocks,
				      uint64_t *random)
{
	struct cache cache = {
		.keys = { .dtype = dtype, .num_blocks = num_blocks },
		.num_heads = spec->num_heads,
		.head_dim = spec->head_dim,
		.block_size = spec->block_size,
	};
	size_t num, item = type_bytes(dtype);
	float range = random_between(random, 0, 1) ? 1 : 100;

	cache_strides(&cache, random, &num);
	cache.memory = malloc(num * item);
	must(cache.memory);
	for (size_t i = 0; i < num; i++)
		store_number(cache.memory + i * item, dtype,
			     random_float(random, range));
	cache.keys.base = cache.memory;
	if (random_between(random, 0, 3) == 0) { /* the last block first */
		cache.keys.base = cache.memory + (num_blocks - 1) * item *
				  (size_t)cache.keys.stride_block;
		cache.keys.stride_block = -cache.keys.stride_block;
	}
	return cache;
}

static inline struct ucm_repr_slab slab_make(const struct ucm_repr_spec *spec,
					     uint64_t num_slots, size_t gap)
{
	struct ucm_repr_slab slab = {
		.num_slots = num_slots,
		.stride_bytes = ucm_repr_bytes(spec) + gap,
	};

	slab.base = malloc(slab.num_slots * slab.stride_bytes);
	must(slab.base && ucm_repr_bytes(spec));
	memset(slab.base, 0xa5, slab.num_slots * slab.stride_bytes);
	return slab;
}

/* Stored element i of a head, rows one after the other; *scale: int8's, or 0. */
static inline double repr_value(const struct ucm_repr_spec *spec,
				const struct ucm_repr_slab *slab, uint64_t slot,
				uint32_t head, uint32_t i, double *scale)
{
	uint32_t width = (spec->head_dim + 31) / 32 * 32 *
			 (spec->kind == UCM_REPR_MINMAX ? 2 : 1);
	size_t item = type_bytes(spec->dtype);
	const uint8_t *at = (const uint8_t *)slab->base +
			    slot * slab->stride_bytes;
	double value = load_number(at + ((size_t)head * width + i) * item,
				   spec->dtype);
	float factor;

	*scale = 0;
	if (spec->dtype != UCM_DTYPE_INT8)
		return value;
	memcpy(&factor, at + (size_t)spec->num_heads * width + head * 4, 4);
	*scale = factor;
	return value * *scale;
}

static inline struct ucm_repr_spec random_spec(uint64_t *random)
{
	static const uint32_t dims[] = { 1, 7, 31, 32, 33, 64, 80, 128, 576 };

	return (struct ucm_repr_spec){
		.kind = (uint32_t)random_between(random, 0,
						 UCM_REPR_KINDS - 1),
		.dtype = stored_types[random_between(random, 0, 3)],
		.num_heads = (uint32_t)random_between(random, 1, 4),
		.head_dim = dims[random_between(random, 0,
						NUM_ROWS(dims) - 1)],
		.block_size = (uint32_t)random_between(random, 1, 20),
	};
}

/* What error says, or the errno alone, must begin with a word. */
#define assert_einval(call, error, word)                                      \
	do {                                                                  \
		ck_assert_int_eq(call, -EINVAL);                              \
		ck_assert_msg(!strncmp((error).text, word, strlen(word)),     \
			      "%s, not: %s", (error).text, word);             \
	} while (0)

#endif
