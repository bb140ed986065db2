/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse.h - which blocks of a request's KV cache matter to its next token.
 *
 * A block is stood for by a representation, made of its keys. The query's
 * product with it is the block's score. The blocks with the best scores are
 * selected, together with those of the windows, and a block table is written
 * that names them alone. doc/sparse.md says what each method keeps and misses.
 *
 * All memory is the caller's: no call allocates, keeps a pointer or has a state
 * of its own. So any number of threads may call at a time, each with its own
 * range of blocks, as long as no two write to the same memory.
 *
 * Strides of keys and queries are in elements of their type, and may be
 * negative; strides of representations are in bytes, those of scores in floats.
 * Memory needs the alignment that is said; where none is said, any will do.
 *
 * All calls that return int return 0 or -errno, and write nothing but *error
 * (<ucm/error.h>; NULL: not wanted) if they fail. -EINVAL: an argument is
 * wrong, and error begins with its name. -ERANGE: a value is too large for the
 * type that it is to be stored in.
 *
 * Results do not depend on the CPU: every way to compute them adds in the same
 * order, and gives the same bits.
 */
#ifndef UCM_SPARSE_H
#define UCM_SPARSE_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>
#include <ucm/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- representations ---- */

/*
 * What stands for a block of n tokens with the keys k_1 ... k_n of a head:
 *
 *   MEAN    (k_1 + ... + k_n) / n                       (ESA, GSA)
 *   MAX     the largest k_i, for each channel           (ESA, GSA)
 *   NORMED  the mean, divided by its length (L2 norm); 0 stays 0  (ESA)
 *   MINMAX  the largest and the smallest k_i, for each channel    (Quest)
 */
enum ucm_repr_kind {
	UCM_REPR_MEAN = 0,
	UCM_REPR_MAX = 1,
	UCM_REPR_NORMED = 2,
	UCM_REPR_MINMAX = 3,
	UCM_REPR_KINDS
};

#define UCM_REPR_HEADS_MAX 1024u
#define UCM_REPR_HEAD_DIM_MAX 1024u
#define UCM_REPR_BLOCK_SIZE_MAX 65536u /* tokens */
#define UCM_REPR_ROW 32u /* a row is a multiple of as many elements */

/*
 * What representations are alike in.
 *
 * dtype is what they are stored in. With x the exact value, and s the scale of
 * the block's head:
 *
 *   UCM_DTYPE_FLOAT32   as computed
 *   UCM_DTYPE_BFLOAT16  off by at most 2^-8 |x|
 *   UCM_DTYPE_FLOAT16   off by at most 2^-11 |x| + 2^-25; up to 65504
 *   UCM_DTYPE_INT8      off by at most 0.501 s; s is the largest |x| / 127
 *
 * MINMAX is rounded outwards, so that its bound stays one; there the error is
 * up to twice as large. A mean of n tokens is computed with an error of at most
 * n 2^-24 (|k_1| + ... + |k_n|) / n.
 */
struct ucm_repr_spec {
	uint32_t kind;       /* enum ucm_repr_kind */
	uint32_t dtype;      /* enum ucm_dtype: one of the four above */
	uint32_t num_heads;  /* of keys, 1 to 1024; MLA: 1 */
	uint32_t head_dim;   /* 1 to 1024 */
	uint32_t block_size; /* tokens, 1 to 65536 */
};

/*
 * Bytes of one block's representation, a multiple of 64; 0 if spec is wrong.
 *
 * For each head a row: head_dim elements and zeros up to a multiple of 32; of
 * MINMAX two such rows, the largest first. Behind the rows of all heads, int8
 * has the scales, a float for each head: the value of an element is its scale
 * times the number. The rest is 0.
 */
size_t ucm_repr_bytes(const struct ucm_repr_spec *spec);

/*
 * Representations side by side: a slot for each block. stride_bytes is at least
 * ucm_repr_bytes() and a multiple of 4; base is aligned to 4. Scores are read
 * fastest where both are multiples of 64.
 */
struct ucm_repr_slab {
	void *base;
	uint64_t num_slots;
	uint64_t stride_bytes;
};

/*
 * Keys as an engine holds them: channel c of head h of token t of block b is
 * element b * stride_block + t * stride_token + h * stride_head + c, counted
 * from base. float32, float16 or bfloat16, all finite.
 */
struct ucm_keys {
	const void *base;
	uint32_t dtype;      /* enum ucm_dtype */
	uint64_t num_blocks; /* that there are */
	int64_t stride_block, stride_token, stride_head;
};

/*
 * The representations of num blocks, written to slots of slab.
 *
 * blocks: which, NULL: 0, 1, ... num - 1. slots: where, all different; NULL: 0,
 * 1, ... num - 1. last_tokens: how many tokens the last of these blocks has so
 * far, 1 to block_size; the others are full. Keys beyond them are not read.
 *
 * The keys are read twice, so that nothing is written if one is not finite.
 */
int ucm_repr_build(const struct ucm_repr_spec *spec,
		   const struct ucm_keys *keys, const int32_t *blocks,
		   size_t num, uint32_t last_tokens,
		   const struct ucm_repr_slab *slab, const int32_t *slots,
		   struct ucm_error *error);

/*
 * A block that is growing: tokens are added as they arrive, and what stands for
 * those that are there is written at any time. The bytes are those that
 * ucm_repr_build() writes for the same tokens, however they came.
 *
 * state: ucm_repr_state_bytes() bytes (0 if spec is wrong), aligned to 4. It is
 * set by ucm_repr_begin(), may be copied, and belongs to one spec.
 */
size_t ucm_repr_state_bytes(const struct ucm_repr_spec *spec);
int ucm_repr_begin(const struct ucm_repr_spec *spec, void *state,
		   struct ucm_error *error);

/* Add num_tokens tokens: those of block 0 of keys, from its first. At most
 * block_size in all. */
int ucm_repr_add(const struct ucm_repr_spec *spec, void *state,
		 const struct ucm_keys *keys, uint32_t num_tokens,
		 struct ucm_error *error);

/* out: ucm_repr_bytes() bytes, aligned to 4. -EINVAL: no token has been added. */
int ucm_repr_write(const struct ucm_repr_spec *spec, const void *state,
		   void *out, struct ucm_error *error);

/* ---- scores ---- */

/*
 * Which scores of a block are wanted. With the product q.R of a query head and
 * its key head's representation, g query heads to a key head:
 *
 *   HEAD   one for each query head: q.R; with MINMAX, the sum over the channels
 *          of max(q max, q min): no token's q.k is larger (Quest)
 *   GROUP  one for each key head: the mean of those of its g query heads
 *   BLOCK  one: the sum over the key heads of those of the groups (ESA, GSA)
 *
 * Nothing is divided by sqrt(head_dim). With MEAN, BLOCK is num_heads times the
 * average q.k of all query heads and tokens.
 */
enum ucm_score_per {
	UCM_SCORE_HEAD = 0,
	UCM_SCORE_GROUP = 1,
	UCM_SCORE_BLOCK = 2,
	UCM_SCORE_PERS
};

/* The query of one token: channel c of head h is element h * stride_head + c.
 * Head h belongs to the key head h / (num_heads / spec's num_heads). */
struct ucm_query {
	const void *base;
	uint32_t dtype;     /* float32, float16 or bfloat16; all finite */
	uint32_t num_heads; /* a multiple of spec's, up to 65536 */
	int64_t stride_head;
};

/* Floats of a prepared query; 0 if an argument is wrong. */
size_t ucm_query_floats(const struct ucm_repr_spec *spec, uint32_t num_heads,
			uint32_t per);

/* Bring a query into the form that ucm_score() takes, once for all blocks.
 * out: ucm_query_floats() of them. */
int ucm_query_prepare(const struct ucm_repr_spec *spec,
		      const struct ucm_query *query, uint32_t per, float *out,
		      struct ucm_error *error);

struct ucm_score_request {
	const float *query; /* made by ucm_query_prepare() ... */
	uint32_t num_heads; /* ... from as many query heads ... */
	uint32_t per;       /* ... for these scores */
	const struct ucm_repr_slab *slab;
	const int32_t *slots; /* of its blocks; NULL: from first_slot on */
	uint64_t first_slot;
	size_t num;    /* blocks */
	float *scores; /* out: score of row r, block i is r * stride + i */
	/* At least num; with BLOCK there is one row, and it is not looked at.
	 * Many rows that lie a multiple of 4 KiB apart fight for places in the
	 * cache: add 16 to a multiple of 1024. */
	size_t stride;
};

/*
 * Score the blocks of one or of many requests. No two scores may lie in the
 * same place. If one request is wrong, nothing is written for any.
 *
 * What was not made by the calls above is not looked for: representations that
 * are not finite give scores that are not, which ucm_select() refuses. The
 * error of a score is at most (2 n + 8) 2^-24 sum |q R|, n being the elements
 * that are added to it.
 */
int ucm_score(const struct ucm_repr_spec *spec,
	      const struct ucm_score_request *requests, size_t num_requests,
	      struct ucm_error *error);

/* ---- selection ---- */

/*
 * Blocks that are taken whatever their scores are: at the start those of
 * initial_blocks and those with one of the first sink_tokens tokens, whichever
 * are more, and at the end those of local_blocks and those with one of the last
 * recent_tokens tokens. The last block is counted as one, also if it is partial.
 */
struct ucm_windows {
	uint32_t initial_blocks, local_blocks;
	uint32_t sink_tokens, recent_tokens;
};

/*
 * How many blocks are selected by score: of the c blocks between the windows
 * floor(c ratio), computed in double; or if budget_tokens is not 0,
 * budget_tokens / block_size less those of the windows. Then at least min_topk,
 * at most max_topk (0: no limit), and at most c.
 *
 * (GSA's own rule adds the windows to the number, and then again to the
 * selection. Here they are counted once.)
 */
struct ucm_budget_config {
	uint32_t block_size; /* tokens, at least 1 */
	struct ucm_windows windows;
	double ratio; /* 0 to 1; not looked at with budget_tokens */
	uint32_t budget_tokens;
	uint32_t min_topk, max_topk;
	uint32_t dense_tokens; /* a request of as many or fewer takes all */
};

/* Blocks 0 to first - 1 and the last ones are taken, and topk of the others:
 * first + topk + last blocks in all. */
struct ucm_budget {
	uint32_t num_blocks; /* of the request */
	uint32_t first, last, topk;
};

/* The budget of a request of so many tokens. */
int ucm_budget_blocks(const struct ucm_budget_config *config, uint32_t tokens,
		      struct ucm_budget *out, struct ucm_error *error);

/*
 * Select blocks: the windows' and, of the others, the topk with the highest
 * scores; of equal scores the lower block. Ascending, each block once.
 *
 * scores: of all num_blocks blocks; those of the windows are not read, the
 * others may be infinite, but not NaN (-EINVAL). out: room for so many.
 */
int ucm_select(const float *scores, const struct ucm_budget *budget,
	       uint32_t *out, size_t room, uint32_t *num_out,
	       struct ucm_error *error);

/*
 * A block table that names the selected blocks alone.
 *
 * table: of a request of so many tokens, all its blocks. selected: ascending,
 * num of them. out: room for num entries; may be table itself. What follows
 * them is left as it is, and is not to be read: an engine goes by the number of
 * tokens, *tokens_out. That is num * block_size, less what the last block lacks
 * if it is among them.
 */
int ucm_select_table(const int32_t *table, uint32_t block_size,
		     uint32_t tokens, const uint32_t *selected, uint32_t num,
		     int32_t *out, size_t room, uint32_t *tokens_out,
		     struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
