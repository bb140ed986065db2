/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_cuda.h - <ucm/sparse.h> and <ucm/position.h> on a CUDA device:
 * representations, scores and block tables of many requests, and keys that move,
 * made and used there.
 *
 * A call queues a kernel in a stream of the caller's, or two, and returns. It does not
 * wait, does not allocate and copies nothing, so that it can be captured in a CUDA
 * graph: how long requests are, and where their blocks lie, is read by the device
 * when the kernel runs. All pointers in the structs are the device's, of the device
 * that was opened. Results have the same bits as those of the calls for the CPU, and
 * selections are equal.
 *
 * per is HEAD, GROUP or BLOCK.
 *
 * Calls return 0 or -errno, and then nothing is queued; error is as there. What the
 * device alone can see it cannot refuse: what comes of bad ids and of keys that are
 * not finite is said with each call.
 */
#ifndef UCM_SPARSE_CUDA_H
#define UCM_SPARSE_CUDA_H

#include <ucm/position.h>
#include <ucm/sparse.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A device with the kernels; of its primary context, the one that the CUDA runtime
 * and PyTorch use. Any number of threads may use it. */
struct ucm_sparse_cuda;

/* -ENODEV: the library was built without CUDA, or there is no driver or device;
 * -ENOTSUP: it has no kernels that the device or its driver takes. */
int ucm_sparse_cuda_open(int device, struct ucm_sparse_cuda **out,
			 struct ucm_error *error);

/* Nothing that was queued may still run. NULL is allowed. */
void ucm_sparse_cuda_close(struct ucm_sparse_cuda *cuda);

/*
 * Requests, as an engine has them. Block number i of request r lies in block
 * tables[r * table_stride + i] of the cache, and its representation in the slot of
 * that number. tokens[r]: how many it has so far; less than 1: none.
 */
struct ucm_cuda_requests {
	const int32_t *tables;
	size_t table_stride; /* at least max_blocks */
	const int32_t *tokens;
	uint32_t num;        /* up to 65535; 0: nothing is done */
	uint32_t max_blocks; /* of a request */
};

/* ---- representations ---- */

/*
 * Which blocks to build: those that hold a token that was written (slots: as
 * vLLM's slot_mapping, block * block_size + place, of num tokens; below 0: none;
 * tokens of a block follow each other, ascending, and the block is taken up to the
 * last of them), or if slots is NULL, blocks: num of them, with tokens tokens
 * (NULL: full).
 */
struct ucm_cuda_written {
	const int64_t *slots;
	const int32_t *blocks, *tokens;
	size_t num;
};

/*
 * Build representations, in the slots of the blocks' numbers. slab: as for
 * ucm_score().
 *
 * Each block is read whole: the keys must be in the cache, by this stream's order.
 * A block that is not in the cache or the slab, or has more tokens than fit, is left
 * out. Where a key is not finite or a value too large for the type, the
 * representation is not finite.
 */
int ucm_sparse_cuda_build(const struct ucm_sparse_cuda *cuda,
			  const struct ucm_repr_spec *spec,
			  const struct ucm_keys *keys,
			  const struct ucm_cuda_written *written,
			  const struct ucm_repr_slab *slab, void *stream,
			  struct ucm_error *error);

/* ---- scores ---- */

/* Query r is that of request r: struct ucm_query, at base + r * stride_query. */
struct ucm_cuda_queries {
	const void *base;
	uint32_t dtype, num_heads;
	uint32_t num; /* up to 65535 */
	int64_t stride_query, stride_head;
};

/* What ucm_query_prepare() does, of query r to out + r * out_stride: at least
 * ucm_query_floats(). Its form is that of ucm_sparse_cuda_score() alone. */
int ucm_sparse_cuda_prepare(const struct ucm_sparse_cuda *cuda,
			    const struct ucm_repr_spec *spec,
			    const struct ucm_cuda_queries *queries,
			    uint32_t per, float *out, size_t out_stride,
			    void *stream, struct ucm_error *error);

/* Queries as ucm_sparse_cuda_prepare() makes them, aligned to 16 bytes, with a
 * query_stride that is a multiple of 4. */
struct ucm_cuda_score {
	const float *queries;
	size_t query_stride;
	uint32_t num_heads; /* query heads */
	uint32_t per;       /* enum ucm_score_per */
	/* Its base and stride_bytes are multiples of 16. */
	const struct ucm_repr_slab *slab;
	struct ucm_cuda_requests requests;
	/* Score of request r, row j, block i: r * stride_request + j * stride_row
	 * + i. With BLOCK there is one row. */
	float *scores;
	size_t stride_request, stride_row;
};

/* ucm_score() for each request. The score of a block without a slot, because its
 * number is wrong, is NaN. */
int ucm_sparse_cuda_score(const struct ucm_sparse_cuda *cuda,
			  const struct ucm_repr_spec *spec,
			  const struct ucm_cuda_score *score, void *stream,
			  struct ucm_error *error);

/* ---- hash codes ---- */

/* An encoder, as ucm_code_encoder_make() makes it; and a copy of all its bytes on
 * the device, aligned to 8. */
struct ucm_cuda_encoder {
	const void *host, *device;
};

/*
 * Codes of blocks, in the slots of their numbers; slab: as for ucm_code_build().
 *
 * With written->slots tokens are added to what their blocks have, as
 * ucm_code_add() does: those alone are encoded. The first token of a block begins
 * it anew. So the codes of its other tokens must be there; blocks that have been
 * loaded without are built by written->blocks. UCM_CODE_COUNTS is counted anew in
 * either case, from the block's first token.
 *
 * The code of a key that is not finite, or is beyond 2^40, says nothing of it; its
 * norm is NaN.
 */
int ucm_sparse_cuda_code_build(const struct ucm_sparse_cuda *cuda,
			       const struct ucm_cuda_encoder *encoder,
			       const struct ucm_keys *keys,
			       const struct ucm_cuda_written *written,
			       const struct ucm_repr_slab *slab, void *stream,
			       struct ucm_error *error);

/* What ucm_code_query_prepare() does, of query r to out + r * out_stride: at least
 * ucm_code_query_words(), of the same form. rope (NULL: it follows the others): as
 * many queries. Where a number is not finite, or is beyond 2^40, scores are NaN. */
int ucm_sparse_cuda_code_prepare(const struct ucm_sparse_cuda *cuda,
				 const struct ucm_cuda_encoder *encoder,
				 const struct ucm_code_method *method,
				 const struct ucm_cuda_queries *queries,
				 const struct ucm_cuda_queries *rope,
				 uint64_t *out, size_t out_stride,
				 void *stream, struct ucm_error *error);

struct ucm_cuda_code_score {
	const uint64_t *queries; /* aligned to 8 */
	size_t query_stride;
	/* Its base and stride_bytes are multiples of 16. */
	const struct ucm_repr_slab *slab;
	struct ucm_cuda_requests requests;
	/* As struct ucm_cuda_score; with UCM_CODE_EACH that of token t of block i
	 * is at r * stride_request + j * stride_row + i * block_size + t. */
	float *scores;
	size_t stride_request, stride_row;
};

/* ucm_code_score() for each request. Scores of a block without a slot, because its
 * number is wrong, are NaN. */
int ucm_sparse_cuda_code_score(const struct ucm_sparse_cuda *cuda,
			       const struct ucm_code_spec *spec,
			       const struct ucm_code_method *method,
			       const struct ucm_cuda_code_score *score,
			       void *stream, struct ucm_error *error);

/* ---- merged channels (KVStar) ---- */

/*
 * ucm_star_build() into the slots of the blocks' numbers. channels: a copy of spec's
 * on the device, or NULL as there.
 *
 * With written->slots the groups from that of the first token on are made anew, and
 * those before it must be there, as for ucm_sparse_cuda_code_build(). Where a key is
 * not finite or a mean too large for the type, what is stored is not finite: of
 * int8, the scale.
 */
int ucm_sparse_cuda_star_build(const struct ucm_sparse_cuda *cuda,
			       const struct ucm_star_spec *spec,
			       const uint16_t *channels,
			       const struct ucm_keys *keys,
			       const struct ucm_cuda_written *written,
			       const struct ucm_repr_slab *slab, void *stream,
			       struct ucm_error *error);

/* ucm_star_query_prepare(), of the same form: num_queries queries of request r, which
 * are number r * num_queries and so on, to out + r * out_stride. */
int ucm_sparse_cuda_star_prepare(const struct ucm_sparse_cuda *cuda,
				 const struct ucm_star_spec *spec,
				 const uint16_t *channels,
				 const struct ucm_cuda_queries *queries,
				 uint32_t num_queries, float *out,
				 size_t out_stride, void *stream,
				 struct ucm_error *error);

struct ucm_cuda_star_score {
	const float *queries; /* as ucm_sparse_cuda_star_prepare() makes them */
	size_t query_stride;
	uint32_t num_queries, num_heads;
	uint32_t per; /* enum ucm_score_per */
	const struct ucm_repr_slab *slab;
	struct ucm_cuda_requests requests;
	float *scores, *weights; /* lie as those of struct ucm_cuda_score */
	size_t stride_request, stride_row;
	float scale; /* not looked at without weights */
};

/* ucm_star_score() for each request. Where a product is NaN, or a block has no slot,
 * so is the score. */
int ucm_sparse_cuda_star_score(const struct ucm_sparse_cuda *cuda,
			       const struct ucm_star_spec *spec,
			       const struct ucm_cuda_star_score *score,
			       void *stream, struct ucm_error *error);

/* Votes of request r are written to votes + r * votes_stride. */
struct ucm_cuda_star_vote {
	struct ucm_cuda_requests requests;
	const float *scores;
	float *weights; /* used up */
	size_t stride_request, stride_row;
	uint32_t num_rows;
	float scale;
	float *votes;
	size_t votes_stride;
};

/* ucm_star_vote() for each request, in two kernels. Where a score is NaN, or is
 * infinitely large, so are the request's votes: NaN. */
int ucm_sparse_cuda_star_vote(const struct ucm_sparse_cuda *cuda,
			      uint32_t block_size,
			      const struct ucm_cuda_star_vote *vote,
			      void *stream, struct ucm_error *error);

/* ---- selection ---- */

/*
 * What ucm_budget_blocks(), ucm_select() and ucm_select_table() do, for each
 * request: request r has its scores at scores + r * scores_stride, and the new table
 * is written to tables_out + r * room. The new lengths go to tokens_out.
 *
 * Optional (NULL): blocks_out, the numbers of the selected blocks, at r * room; and
 * num_out, how many they are.
 *
 * status[r] is 0, or -EINVAL if a score is NaN, a page of a selected block is below
 * 0, or the request has more than max_blocks blocks or more are selected than there
 * is room for. Then nothing else is written for that request.
 *
 * No array that is written may overlap one that is read.
 */
struct ucm_cuda_select {
	struct ucm_cuda_requests requests;
	const float *scores;
	size_t scores_stride; /* at least max_blocks */
	int32_t *tables_out;
	size_t room; /* entries of a table */
	int32_t *tokens_out, *status;
	uint32_t *blocks_out, *num_out;
};

int ucm_sparse_cuda_select(const struct ucm_sparse_cuda *cuda,
			   const struct ucm_budget_config *config,
			   const struct ucm_cuda_select *select, void *stream,
			   struct ucm_error *error);

/* ---- positions ---- */

/*
 * Blocks that move, as in struct ucm_shift_request; tokens[i]: how many block i of the
 * list has (NULL: all are full). A block that is not in one of the caches, or has more
 * tokens than fit, is left out.
 */
struct ucm_cuda_shift {
	struct ucm_keys from;
	struct ucm_key_room to;
	const int32_t *from_blocks, *to_blocks; /* NULL: 0, 1, ... num - 1 */
	const int32_t *tokens;
	size_t num; /* blocks */
	uint32_t num_heads, block_size;
	const int32_t *deltas; /* one for each block, or token: per_token */
	uint32_t per_token, unrotated;
};

/* ucm_rope_shift(), unchecked; rotary_dim is at most 512. */
int ucm_sparse_cuda_shift(const struct ucm_sparse_cuda *cuda,
			  const struct ucm_rope *rope,
			  const struct ucm_cuda_shift *shift, void *stream,
			  struct ucm_error *error);

/* ucm_kv_deviation(). What is not finite, or too large for a float, makes the result
 * so, and a block that is not in the cache makes it NaN. */
int ucm_sparse_cuda_deviation(const struct ucm_sparse_cuda *cuda,
			      const struct ucm_deviation_request *request,
			      float *out, void *stream,
			      struct ucm_error *error);

/* ---- attention ---- */

/*
 * What the next token of each request attends to: struct ucm_attention, with the
 * table and the length of requests. After a selection these are tables_out and
 * tokens_out of ucm_sparse_cuda_select(), and room is max_blocks.
 *
 * The result for query head h of request r is at out + r * out_stride + h *
 * value_dim, and its lse at r * lse_stride + h. A request of no tokens has 0 and
 * -INFINITY. What is not finite, a product that is too large for a float, or a block
 * that is not in both caches makes the results of its heads NaN; a length beyond
 * max_blocks is cut off there.
 *
 * Only for ReRoPE: positions[r], of the query (NULL: that of its last token), and
 * selected, of request r at r * selected_stride, which blocks those of its table are
 * (NULL: 0, 1, ...): blocks_out. A position before the last token's, or beyond
 * UCM_POSITION_MAX, makes the results NaN.
 */
struct ucm_cuda_attention {
	struct ucm_cuda_queries queries; /* as many as requests */
	struct ucm_keys keys, values;
	struct ucm_cuda_requests requests;
	uint32_t num_heads; /* of keys and of values */
	uint32_t head_dim, value_dim, block_size;
	double scale;
	const int32_t *positions;
	const uint32_t *selected;
	size_t selected_stride; /* at least max_blocks */
	float *work; /* ucm_sparse_cuda_attention_floats() of them */
	float *out, *lse; /* lse NULL: not wanted */
	size_t out_stride, lse_stride;
};

/* 0: attention is wrong, or has no requests. */
size_t ucm_sparse_cuda_attention_floats(const struct ucm_cuda_attention *attention);

/*
 * ucm_attention_decode() for each request, in two kernels.
 *
 * A request of up to 256 tokens, or of one block, has the bits of that call but for
 * lse, which may be off by its last one. A longer one is told apart into parts of as
 * many, so that they can be computed at a time, and is off by at most
 * (parts + 4) 2^-20 of the largest |v| from what it would be undivided.
 */
int ucm_sparse_cuda_attention(const struct ucm_sparse_cuda *cuda,
			      const struct ucm_cuda_attention *attention,
			      void *stream, struct ucm_error *error);

/* ucm_rerope_decode(), likewise; rotary_dim is at most 512. angles: what
 * ucm_rerope_prepare() makes, on the device. From training_length on, products may
 * be off by 2^-23 besides. */
int ucm_sparse_cuda_rerope(const struct ucm_sparse_cuda *cuda,
			   const struct ucm_rerope *rerope,
			   const float *angles,
			   const struct ucm_cuda_attention *attention,
			   void *stream, struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
