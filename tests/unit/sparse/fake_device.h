/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_device.h - kernels of gpu/sparse/ on a driver made for tests, and calls
 * of them.
 */
#ifndef UCM_TESTS_FAKE_DEVICE_H
#define UCM_TESTS_FAKE_DEVICE_H

#include <dlfcn.h>

#include "tests/unit/fake_cuda.h"
#include "tests/unit/twins_fixture.h"

static struct fake_cuda *fake;
static struct twins_fixture fixture;

static inline void use_fake(void)
{
	void *library;

	ucm_cuda_library = FAKE_CUDA;
	library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(library != NULL, "%s", dlerror());
	fake = dlsym(library, "fake_cuda");
	ck_assert_ptr_nonnull(fake);
}

static inline void open_fake(void)
{
	use_fake();
	twins_open(&fixture, (CUstream)FAKE_STREAM);
}

static inline void close_fake(void)
{
	fake->fail = NULL;
	twins_close(&fixture);
	ck_assert_uint_eq(fake->live, 0);
	ck_assert_int_eq(fake->pushed, 0);
	ck_assert_uint_eq(fake->mistakes, 0);
}

static inline void ok(int err)
{
	ck_assert_int_eq(err, 0);
}

/* ---- calls ---- */

static const struct ucm_repr_spec spec = {
	.kind = UCM_REPR_MEAN,
	.dtype = UCM_DTYPE_BFLOAT16,
	.num_heads = 2,
	.head_dim = 64,
	.block_size = 16,
};

/* The host does not look at what these point to. */
#define DEVICE(bytes) ((void *)(uintptr_t)(FAKE_MARK + (bytes)))

static inline struct ucm_repr_slab a_slab(void)
{
	return (struct ucm_repr_slab){ DEVICE(0), 10, 256 };
}

static inline struct ucm_cuda_requests some_requests(void)
{
	return (struct ucm_cuda_requests){
		.tables = DEVICE(0), .table_stride = 8, .tokens = DEVICE(0),
		.num = 2, .max_blocks = 8,
	};
}

static inline struct ucm_cuda_score a_score(const struct ucm_repr_slab *slab)
{
	return (struct ucm_cuda_score){
		.queries = DEVICE(0), .query_stride = 128, .num_heads = 4,
		.per = UCM_SCORE_GROUP, .slab = slab,
		.requests = some_requests(), .scores = DEVICE(0),
		.stride_request = 16, .stride_row = 8,
	};
}

static inline struct ucm_cuda_select a_selection(void)
{
	return (struct ucm_cuda_select){
		.requests = some_requests(), .scores = DEVICE(0),
		.scores_stride = 8, .tables_out = DEVICE(4), .room = 8,
		.tokens_out = DEVICE(0), .status = DEVICE(0),
	};
}

static inline void nothing_was_queued(void)
{
	ck_assert_uint_eq(fake->launches, 0);
}

#endif
