/* SPDX-License-Identifier: Apache-2.0 */
/* twins_inside.h - what the files of twins_fixture.h share: requests and caches on
 * both sides, and is memory of the device as it ought to be? */
#ifndef UCM_TESTS_TWINS_INSIDE_H
#define UCM_TESTS_TWINS_INSIDE_H

#include "tests/unit/twins_fixture.h"

#define BLOCKS_MAX   40 /* of a cache */
#define REQUESTS_MAX 3
#define SELECT_MAX   3000 /* blocks to select from */

static inline void done(int err, const struct ucm_error *error)
{
	ck_assert_msg(!err, "%d: %s", err, error->text);
}

static inline uint32_t any(uint64_t *random, uint32_t most)
{
	return (uint32_t)random_between(random, 0, most);
}

/* Is the device's memory what it ought to be? */
static inline void same(struct twins_fixture *fixture, const void *device,
		 const void *want, size_t len, unsigned number,
		 const char *what)
{
	void *got = malloc(len);

	twins_download(fixture, got, device, len);
	must_in_case(!memcmp(got, want, len), number, what);
	free(got);
}

/* ---- requests ---- */

struct requests {
	int32_t tables[REQUESTS_MAX * SELECT_MAX], tokens[REQUESTS_MAX];
	uint32_t num, stride, max_blocks;
	struct ucm_cuda_requests device;
};

/* Of blocks of a cache of so many; max_blocks is set. */
static inline void requests_make(struct twins_fixture *fixture,
			  struct requests *requests, uint32_t block_size,
			  uint32_t num_blocks, uint64_t *random)
{
	uint32_t most = requests->max_blocks * block_size;

	requests->num = 1 + any(random, REQUESTS_MAX - 1);
	requests->stride = requests->max_blocks + any(random, 3);
	must(requests->stride <= SELECT_MAX);
	for (uint32_t i = 0; i < REQUESTS_MAX * SELECT_MAX; i++)
		requests->tables[i] = (int32_t)any(random, num_blocks - 1);
	for (uint32_t r = 0; r < requests->num; r++) {
		requests->tokens[r] = (int32_t)any(random, most);
		if (!any(random, 5))
			requests->tokens[r] = (int32_t)(most * any(random, 1));
	}
	requests->device = (struct ucm_cuda_requests){
		.tables = twins_upload(fixture, requests->tables,
				       sizeof(requests->tables)),
		.table_stride = requests->stride,
		.tokens = twins_upload(fixture, requests->tokens,
				       sizeof(requests->tokens)),
		.num = requests->num,
		.max_blocks = requests->max_blocks,
	};
}

static inline uint32_t request_blocks(const struct requests *requests, uint32_t r,
			       uint32_t block_size)
{
	return ((uint32_t)requests->tokens[r] + block_size - 1) / block_size;
}

/* ---- caches ---- */

/* A cache on both sides; its memory is as large as its strides say. */
struct both {
	struct cache host;
	struct ucm_keys device;
	size_t bytes;
};

static inline struct both both_make(struct twins_fixture *fixture,
			     const struct ucm_repr_spec *spec, uint32_t dtype,
			     uint32_t num_blocks, uint64_t *random)
{
	struct both both = { .host = cache_make(spec, dtype, num_blocks,
						random) };
	const struct ucm_keys *keys = &both.host.keys;
	ptrdiff_t at = (const uint8_t *)keys->base - both.host.memory;

	both.bytes = (uint64_t)llabs(keys->stride_block) * num_blocks *
		     type_bytes(dtype);
	both.device = *keys;
	both.device.base = (uint8_t *)twins_upload(fixture, both.host.memory,
						   both.bytes) + at;
	return both;
}

static inline void both_same(struct twins_fixture *fixture, const struct both *both,
		      unsigned number, const char *what)
{
	ptrdiff_t at = (const uint8_t *)both->host.keys.base -
		       both->host.memory;

	same(fixture, (const uint8_t *)both->device.base - at,
	     both->host.memory, both->bytes, number, what);
}

#endif
