/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twin_args.h - what the kernels are given: structs of host and device. All
 * addresses are the device's; strides are in elements, but for *_bytes.
 */
#ifndef UCM_GPU_SPARSE_TWIN_ARGS_H
#define UCM_GPU_SPARSE_TWIN_ARGS_H

#include <stdint.h>

#include <ucm/sparse.h>

#define UCM_TWIN_THREADS 256 /* of a CTA, where nothing else is said */

/* A row is added up in as many lanes as a warp has threads: sparse/kernels.c. */
#define UCM_TWIN_LANES UCM_REPR_ROW

/* ---- scores ---- */

struct ucm_twin_query_args {
	uint64_t base, out;
	int64_t stride_query, stride_head;
	uint64_t out_stride;
	uint32_t dtype, minmax;
	uint32_t head_dim, padded, width;
	uint32_t rows;   /* of a prepared query */
	uint32_t merged; /* heads of a row */
};

struct ucm_twin_score_args {
	uint64_t queries;
	uint64_t base, stride_bytes, num_slots; /* of the slab */
	uint64_t tables, tokens, scores;
	uint64_t query_stride, table_stride;
	uint64_t stride_request, stride_row;
	uint32_t num_heads, rows, width;
	uint32_t sum; /* one score for a block, not one for a row */
	uint32_t block_size, max_blocks;
};

/* ---- representations ---- */

#define UCM_TWIN_BUILD_THREADS 128

struct ucm_twin_build_args {
	uint64_t keys, num_blocks; /* of the cache */
	int64_t stride_block, stride_token, stride_head;
	uint64_t slots;          /* int64_t: of tokens that were written; or */
	uint64_t blocks, tokens; /* int32_t: blocks, and their tokens, or 0 */
	uint64_t base, stride_bytes, num_slots; /* of the slab */
	uint64_t num;         /* of slots or blocks */
	uint32_t repr_bytes, rows_bytes;
	uint32_t key_dtype, dtype, kind;
	uint32_t num_heads, head_dim, padded, width;
	uint32_t block_size;
};

/* ---- selection ---- */

#define UCM_TWIN_SELECT_THREADS 1024
#define UCM_TWIN_SELECT_WARPS	(UCM_TWIN_SELECT_THREADS / 32)
#define UCM_TWIN_BINS		256 /* of a byte of a score */

struct ucm_twin_select_args {
	struct ucm_budget_config config;
	uint64_t scores, tables, tokens;
	uint64_t tables_out, tokens_out, status;
	uint64_t blocks_out, num_out; /* 0: not wanted */
	uint64_t scores_stride, table_stride, room;
	uint32_t max_blocks;
	int32_t invalid; /* what status is then */
};

#endif
