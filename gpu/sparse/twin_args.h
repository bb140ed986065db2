/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twin_args.h - what the kernels are given: structs of host and device. All
 * addresses are the device's; strides are in elements, but for *_bytes.
 */
#ifndef UCM_GPU_SPARSE_TWIN_ARGS_H
#define UCM_GPU_SPARSE_TWIN_ARGS_H

#include <stdint.h>

#include <ucm/sparse.h>

#include "sparse/kernels.h"

#define UCM_TWIN_THREADS 256 /* of a CTA, where nothing else is said */

/* A row is added up in as many lanes as a warp has threads: sparse/kernels.c. */
#define UCM_TWIN_LANES UCM_REPR_ROW

/* Rows of a cache: keys, or values. */
struct ucm_twin_rows_args {
	uint64_t base, num_blocks;
	int64_t stride_block, stride_token, stride_head;
	uint32_t dtype, dim;
};

/* Heads of queries. */
struct ucm_twin_heads_args {
	uint64_t base;
	int64_t stride_query, stride_head;
	uint32_t dtype;
};

/* ---- scores ---- */

struct ucm_twin_query_args {
	struct ucm_twin_heads_args query;
	uint64_t out, out_stride;
	uint32_t minmax;
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
	uint64_t scales_at; /* of int8, in a slot */
	uint32_t num_heads, rows, width;
	uint32_t sum; /* one score for a block, not one for a row */
	uint32_t block_size, max_blocks;
};

/* ---- representations ---- */

#define UCM_TWIN_BUILD_THREADS 128

/* Blocks of a cache, and the slots for what is made of their keys. */
struct ucm_twin_blocks_args {
	struct ucm_twin_rows_args keys;
	uint64_t slots;          /* int64_t: of tokens that were written; or */
	uint64_t blocks, tokens; /* int32_t: blocks, and their tokens, or 0 */
	uint64_t num;            /* of slots or blocks */
	uint64_t base, stride_bytes, num_slots; /* of the slab */
	uint32_t num_heads, block_size;
};

struct ucm_twin_build_args {
	struct ucm_twin_blocks_args from;
	uint32_t repr_bytes, scales_at;
	uint32_t dtype, kind;
	uint32_t padded, width;
};

/* ---- hash codes ---- */

#define UCM_TWIN_CODE_THREADS 128
#define UCM_TWIN_PLANES	      8 /* UCM_CODE_PLANES */

struct ucm_twin_coder_part {
	uint64_t matrix;
	uint32_t first, dim; /* channels */
	uint32_t bits, columns;
};

/* An encoder. */
struct ucm_twin_coder {
	struct ucm_twin_coder_part parts[2];
	uint64_t centers;
	uint32_t words;
};

struct ucm_twin_code_args {
	struct ucm_twin_blocks_args from;
	struct ucm_twin_coder coder;
	uint64_t head_bytes, norms_at, tokens_at, bytes; /* of a slot */
	uint32_t rows; /* of a head, whole tiles */
	uint32_t counts, norms;
};

struct ucm_twin_code_query_args {
	struct ucm_twin_coder coder;
	struct ucm_twin_heads_args query, rope; /* base 0: follows the others */
	uint64_t out, out_stride, row_words;
	uint32_t rope_first, head_dim; /* channels */
	uint32_t group;   /* query heads of a key head */
	uint32_t rows;    /* of these */
	uint32_t vectors; /* of a row: means of merged heads, step apart */
	uint32_t merged, step;
	uint32_t estimate; /* 4 bits */
	uint32_t planes, weights[UCM_TWIN_PLANES];
};

struct ucm_twin_code_score_args {
	uint64_t queries;
	uint64_t base, stride_bytes, num_slots; /* of the slab */
	uint64_t tables, tokens, scores;
	uint64_t query_stride, table_stride, row_words;
	uint64_t stride_request, stride_row;
	uint64_t head_bytes, tokens_at;
	uint64_t norms_at; /* 0: none that are wanted */
	uint32_t num_heads, rows, words, bits;
	uint32_t sum, hamming;
	uint32_t digits; /* of counts */
	uint32_t team;   /* threads of an item */
	uint32_t block_size, max_blocks;
	uint32_t planes, weights[UCM_TWIN_PLANES];
};

/* ---- merged channels ---- */

#define UCM_TWIN_STAR_ROWS 4 /* of a query, at a time */

struct ucm_twin_star_build_args {
	struct ucm_twin_blocks_args from;
	uint64_t channels; /* uint16_t, or 0 */
	uint64_t scales_at, groups_at, bytes; /* of a slot */
	uint32_t dtype, kept, merge, lanes;
};

struct ucm_twin_star_query_args {
	struct ucm_twin_heads_args query;
	uint64_t channels, out, out_stride;
	uint32_t num_heads, group; /* of keys; query heads of each */
	uint32_t num_queries, rows, kept;
};

struct ucm_twin_star_score_args {
	uint64_t queries;
	uint64_t base, stride_bytes, num_slots; /* of the slab */
	uint64_t tables, tokens, scores;
	uint64_t weights; /* or 0 */
	uint64_t query_stride, table_stride, stride_request, stride_row;
	uint64_t scales_at, groups_at;
	uint32_t num_heads, group, rows, kept, lanes, per;
	uint32_t block_size, max_blocks;
	float scale;
};

struct ucm_twin_vote_args {
	uint64_t tokens, scores, weights, votes;
	uint64_t stride_request, stride_row, votes_stride;
	uint32_t rows, block_size, max_blocks;
	float scale;
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

/* ---- positions ---- */

#define UCM_TWIN_PAIRS_MAX    256 /* of channels that are rotated */
#define UCM_TWIN_SHIFT_TOKENS 16  /* of a CTA */

struct ucm_twin_shift_args {
	struct ucm_twin_rows_args from, to;
	uint64_t from_blocks, to_blocks, tokens; /* int32_t, or 0 */
	uint64_t deltas;
	uint32_t per_token;
	uint32_t num_heads, block_size;
	uint32_t rotary;     /* channels */
	uint32_t neighbours; /* a pair's channels are */
	double magnitude;
	double turns[UCM_TWIN_PAIRS_MAX]; /* for each position */
};

/* Keys, or values. */
struct ucm_twin_pair_args {
	struct ucm_twin_rows_args cached, fresh;
};

struct ucm_twin_deviation_args {
	struct ucm_twin_pair_args pairs[2];
	uint64_t table; /* or 0 */
	uint64_t out;
	uint32_t num_pairs, num_tokens, num_heads, block_size;
	uint32_t relative;
};

/* ---- attention ---- */

#define UCM_TWIN_ATTEND_THREADS 128
#define UCM_TWIN_ATTEND_HEADS	8   /* of a CTA, at most */
#define UCM_TWIN_ATTEND_TOKENS	256 /* of a part, but at least a block */

struct ucm_twin_attend_args {
	struct ucm_twin_heads_args query;
	struct ucm_twin_rows_args keys, values;
	uint64_t tables, tokens, table_stride;
	uint64_t positions, selected, selected_stride; /* or 0 */
	uint64_t angles; /* 0: without ReRoPE */
	uint64_t work, out, lse, out_stride, lse_stride;
	uint32_t block_size, max_blocks;
	uint32_t num_heads, group; /* query heads of a key head, ... */
	uint32_t chunks;           /* ... and CTAs for these */
	uint32_t parts, part_blocks;
	uint32_t window, training_length, rotary, neighbours;
	double scale;
	double turns[UCM_TWIN_PAIRS_MAX]; /* for each position */
};

#endif
