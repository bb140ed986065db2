/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse.h - which blocks of a request's KV cache matter to its next token.
 *
 * A block is stood for by a representation, made of its keys. The query's
 * product with it is the block's score. The blocks with the best scores are
 * selected, together with those of the windows, and a block table is written
 * that names them alone. doc/sparse.md says what each method keeps and misses.
 *
 * Beside it: <ucm/retrieve.h>, when that is done and which blocks are in memory;
 * <ucm/position.h>, keys at other positions; <ucm/repr.h>, representations in
 * files; <ucm/sparse_cuda.h>, some of this on a GPU.
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
 * MINMAX two such rows, the largest first. After the rows of all heads, int8
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
 *
 * DISTANCE, added to one of these: with -|q - R|, the negative distance, in place
 * of q.R (GSA's third score is that of BLOCK). Not with MINMAX. It ranks
 * otherwise than q.R does: long keys are far from everything.
 */
enum ucm_score_per {
	UCM_SCORE_HEAD = 0,
	UCM_SCORE_GROUP = 1,
	UCM_SCORE_BLOCK = 2,
	UCM_SCORE_PERS,
	UCM_SCORE_DISTANCE = 4,
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
 * that are added to it; that of a distance (n + 8) 2^-24 of it, and 2^-24 |R|.
 *
 * With int8 a product is one of whole numbers, and the query is rounded to them:
 * each element is off by at most 0.501 of its row's largest |q| / 32767, a 256th
 * of what int8 may be off. Not so with MINMAX, whose bound would not be one, and
 * for distances.
 */
int ucm_score(const struct ucm_repr_spec *spec,
	      const struct ucm_score_request *requests, size_t num_requests,
	      struct ucm_error *error);

/* How scores of many query heads become one. */
enum ucm_reduction {
	UCM_REDUCE_MEAN = 0,
	UCM_REDUCE_SUM = 1,
	UCM_REDUCE_MAX = 2, /* the largest of all heads: GSA's second score */
	UCM_REDUCTIONS
};

/*
 * Reduce num_rows rows of num scores to one, row by row; NaN stays NaN. Rows are
 * stride apart: with twice that, every other one is taken. out may be the first
 * row.
 */
int ucm_score_reduce(const float *scores, size_t num_rows, size_t num,
		     size_t stride, uint32_t reduction, float *out,
		     struct ucm_error *error);

/* ---- hash codes ---- */

/*
 * A key's code has the signs of its products with random directions: bit j is 1
 * where (k W) j > 0. The columns of W are orthogonal, dim at a time, so that
 * the part of the bits in which two codes differ (Hamming) grows with the angle
 * between their vectors. The same for queries. (GSA On-Device; HATA)
 *
 * W = Q sign(diag R), QR being a matrix of independent N(0, 2^2), in blocks of
 * dim columns where there are more bits than dimensions. It follows from the
 * seed alone: all that share codes take the same one.
 *
 * Codes are of one layer's keys as they are in the cache, after RoPE; they
 * cannot be moved to other positions.
 */
enum ucm_code_form {
	UCM_CODE_TOKENS = 0, /* the code of each token */
	UCM_CODE_COUNTS = 1, /* how many tokens have each bit; no norms */
	UCM_CODE_FORMS
};

#define UCM_CODE_BITS_MAX 4096u

/*
 * What codes are alike in. MLA: one head of 576 dimensions, rope_dim 64; the
 * channels of the two parts are encoded apart, each by a W of its own.
 */
struct ucm_code_spec {
	uint32_t form;       /* enum ucm_code_form */
	uint32_t num_heads;  /* of keys, 1 to 1024; MLA: 1 */
	uint32_t head_dim;   /* 1 to 1024 */
	uint32_t rope_dim;   /* the last channels, encoded apart; 0: none */
	uint32_t bits;       /* for the other channels: a multiple of 8 */
	uint32_t rope_bits;  /* for the last ones: the same; 0 without
			      * rope_dim. Up to 4096 together */
	uint32_t block_size; /* tokens, 1 to 65536 */
	uint32_t norms;      /* 1: with each code what UCM_CODE_ESTIMATE scales
			      * it by; each part has at least as many bits as
			      * channels. Not with COUNTS */
	uint64_t seed;
};

/*
 * Bytes of a block's codes, a multiple of 64; 0 if spec is wrong.
 *
 * A row is the code of one token: bit j is bit j % 8 of byte j / 8. The code of
 * each part is padded with zeros to a multiple of 8 bytes, a word; rope_dim's
 * follows. The rows of 8 tokens are interleaved by words: word w of token t of
 * a head is word number (t / 8 * words + w) * 8 + t % 8 of the head's.
 *
 * COUNTS has, in the place of tokens, the digits of counts in base 2: bit j of
 * row i is bit i of the number of tokens whose code has bit j; as many rows as
 * block_size has digits.
 *
 * After a head's rows, which are a multiple of 8, are their norms, if there
 * are any, a bfloat16 for each, and zeros up to a multiple of 64 bytes; after
 * the last head the number of tokens, a uint32_t. What is not used is 0.
 */
size_t ucm_code_bytes(const struct ucm_code_spec *spec);

/*
 * What codes are made with: W, and the centers. memory has
 * ucm_code_encoder_bytes() bytes (0 if spec is wrong), aligned to 8; it may be
 * copied, and read by any number of threads. For a head_dim of 1024 it takes a
 * second.
 *
 * centers: a float for each channel of each key head, [num_heads][head_dim], or
 * NULL. It is subtracted from keys, not from queries: then the same is missing
 * in the products of a query head with all keys. Signs say more about keys that
 * are spread around 0. All that share codes take the same one.
 */
size_t ucm_code_encoder_bytes(const struct ucm_code_spec *spec);
int ucm_code_encoder_make(const struct ucm_code_spec *spec,
			  const float *centers, void *memory,
			  struct ucm_error *error);

/* W: that of the first part, or of rope_dim's channels. Bit j of channel c is
 * element c * *stride + j. NULL: encoder is none, or has no such part. */
const float *ucm_code_matrix(const void *encoder, int rope, size_t *stride);

/*
 * Codes of blocks, as ucm_repr_build() makes representations: blocks, slots and
 * last_tokens are as there. In slab, base is aligned to 8, and stride_bytes is
 * a multiple of 8 and at least ucm_code_bytes().
 *
 * A bit is as exact as a sum of floats: it may be wrong where |(k W) j| is at
 * most dim 2^-23 |k|. -ERANGE: a key is beyond 2^40.
 */
int ucm_code_build(const void *encoder, const struct ucm_keys *keys,
		   const int32_t *blocks, size_t num, uint32_t last_tokens,
		   const struct ucm_repr_slab *slab, const int32_t *slots,
		   struct ucm_error *error);

/*
 * Tokens as they arrive: the first num_tokens of block 0 of keys are added to a
 * block that has first_token tokens so far. With 0 it is begun anew. The
 * block's codes are their own state, and the bytes are those of
 * ucm_code_build().
 *
 * out: ucm_code_bytes() bytes, aligned to 8.
 */
int ucm_code_add(const void *encoder, const struct ucm_keys *keys,
		 uint32_t first_token, uint32_t num_tokens, void *out,
		 struct ucm_error *error);

/*
 * A token's score, by its code and the query's:
 *
 *   HAMMING   minus the number of bits in which they differ; a whole number
 *   ESTIMATE  the query has 4 bits in place of one. With the key's bits as
 *             s = +1 or -1, and f = |k|^2 / sum |(k W) j|, its norm:
 *             f sum s (q W) j, an estimate of q.k (RaBitQ); without norms, f
 *             is left out
 *
 * What ESTIMATE is off by, W having at most b columns for each dimension of a
 * part, is at most
 *
 *   |q| sqrt(b bits f^2 - |k|^2) + bits f m / 16
 *
 * with the rounding of f to bfloat16, 2^-8 of the estimate, and m the largest
 * |(q W) j|; bits being those of both parts. The first, which is far from its
 * bound as a rule, has the mean 0 over all seeds; the second is due to the 4
 * bits.
 */
enum ucm_code_measure {
	UCM_CODE_HAMMING = 0,
	UCM_CODE_ESTIMATE = 1,
	UCM_CODE_MEASURES
};

/* What is said of a block's tokens. */
enum ucm_code_over {
	UCM_CODE_BEST = 0, /* the score of the best one; not with COUNTS */
	UCM_CODE_SUM = 1,  /* the sum of all */
	UCM_CODE_EACH = 2, /* one by one; not with COUNTS */
	UCM_CODE_OVERS
};

/*
 * per: HEAD   for each query head
 *      GROUP  for each key head: with HAMMING, the tokens' scores are the sums
 *             over the query heads of the group, exactly; with ESTIMATE their
 *             mean, estimated as one
 *      BLOCK  the sum of those of the groups
 *
 * merged_heads: as many query heads of a group are averaged to one before
 * anything else; 1: none. Of n that are left, number i is made of the group's
 * heads i, i + n, i + 2 n, ... (GSA On-Device merges all heads of a group, and
 * with MLA pairs: 2.)
 */
struct ucm_code_method {
	uint32_t measure;      /* enum ucm_code_measure */
	uint32_t over;         /* enum ucm_code_over */
	uint32_t per;          /* enum ucm_score_per */
	uint32_t num_heads;    /* of the query, a multiple of spec's */
	uint32_t merged_heads; /* a divisor of num_heads / spec's num_heads */
};

/*
 * The query for ucm_code_score(), brought into the form that is compared.
 * ucm_code_query_words(): how many uint64_t it takes; 0 if an argument is
 * wrong, or if a score could be a whole number beyond 2^24, which floats do not
 * hold.
 *
 * rope: where the last rope_dim channels are, if they are apart; NULL: they
 * follow the others. -ERANGE: an element is beyond 2^40.
 */
size_t ucm_code_query_words(const struct ucm_code_spec *spec,
			    const struct ucm_code_method *method);
int ucm_code_query_prepare(const void *encoder,
			   const struct ucm_code_method *method,
			   const struct ucm_query *query,
			   const struct ucm_query *rope, uint64_t *out,
			   struct ucm_error *error);

/*
 * As struct ucm_score_request. With EACH the score of row r, block i, token t
 * is r * stride + i * block_size + t, and minus infinity for tokens that the
 * block has not; stride is at least num * block_size. With BLOCK there is one
 * row.
 */
struct ucm_code_request {
	const uint64_t *query; /* made by ucm_code_query_prepare() */
	const struct ucm_repr_slab *slab;
	const int32_t *slots; /* NULL: from first_slot on */
	uint64_t first_slot;
	size_t num;
	float *scores;
	size_t stride;
};

/* Score the blocks of one or of many requests, as ucm_score() does. Higher is
 * better. A block without tokens has minus infinity, or with SUM 0. */
int ucm_code_score(const struct ucm_code_spec *spec,
		   const struct ucm_code_method *method,
		   const struct ucm_code_request *requests,
		   size_t num_requests, struct ucm_error *error);

/* ---- merged channels (KVStar) ---- */

/*
 * A block is stood for by many small means: its tokens make groups of
 * merge_tokens, one after the other, and of each group's mean key some channels
 * are kept. The last group may have fewer tokens.
 *
 * dtype is as for struct ucm_repr_spec, with the same errors; int8 has a scale
 * for each group of a head.
 *
 * channels: for each head those that are kept, ascending; num_heads * kept of
 * them. NULL: all, and kept is head_dim. They are chosen once for a request and
 * layer, by ucm_star_channels(); what is built with some must be scored with the
 * same.
 */
struct ucm_star_spec {
	uint32_t dtype, num_heads, head_dim, block_size;
	uint32_t merge_tokens; /* 1 to block_size */
	uint32_t kept;	       /* of a head, 1 to head_dim */
	const uint16_t *channels;
};

/* How many channels are kept at a ratio: head_dim * ratio, rounded (half to
 * even), at least 1; all from 0.98 on. 0: ratio is not above 0 and at most 1. */
uint32_t ucm_star_kept(uint32_t head_dim, double ratio);

/*
 * Choose spec's kept channels for each head: those with the largest mean |K|,
 * of equal ones the lower. Blocks are given as for ucm_repr_build(); at least
 * one. spec's own channels are not looked at. out: num_heads * kept.
 */
int ucm_star_channels(const struct ucm_star_spec *spec,
		      const struct ucm_keys *keys, const int32_t *blocks,
		      size_t num, uint32_t last_tokens, uint16_t *out,
		      struct ucm_error *error);

/*
 * Bytes of one block, a multiple of 64; 0 if spec is wrong.
 *
 * For each head and kept channel a row: an element for each group, and zeros up
 * to a multiple of 16. After all rows, int8 has a float for each element of a
 * row, for each head: the scales. Then a uint32_t: the groups that the block
 * has. A slot of zeros is a block without tokens.
 */
size_t ucm_star_bytes(const struct ucm_star_spec *spec);

/* As the calls of the same names for ucm_repr. */
int ucm_star_build(const struct ucm_star_spec *spec,
		   const struct ucm_keys *keys, const int32_t *blocks,
		   size_t num, uint32_t last_tokens,
		   const struct ucm_repr_slab *slab, const int32_t *slots,
		   struct ucm_error *error);
size_t ucm_star_state_bytes(const struct ucm_star_spec *spec);
int ucm_star_begin(const struct ucm_star_spec *spec, void *state,
		   struct ucm_error *error);
int ucm_star_add(const struct ucm_star_spec *spec, void *state,
		 const struct ucm_keys *keys, uint32_t num_tokens,
		 struct ucm_error *error);
int ucm_star_write(const struct ucm_star_spec *spec, const void *state,
		   void *out, struct ucm_error *error);

/* Queries of several tokens, which are scored together. All have the same number
 * of heads, a multiple of spec's. out: ucm_star_query_floats() of them; 0 if an
 * argument is wrong. */
size_t ucm_star_query_floats(const struct ucm_star_spec *spec,
			     uint32_t num_queries, uint32_t num_heads);
int ucm_star_query_prepare(const struct ucm_star_spec *spec,
			   const struct ucm_query *queries,
			   uint32_t num_queries, float *out,
			   struct ucm_error *error);

/*
 * A score is the largest q.r of the block's groups: with all channels and
 * merge_tokens 1 the largest q.k of its tokens. per:
 *
 *   HEAD   one for each head of each query; head h of query t is row
 *          t * num_heads + h
 *   GROUP  one for each key head: the mean of those of all its query heads
 *   BLOCK  one: the sum of those of the key heads
 *
 * A block without tokens has -infinity.
 *
 * weights (NULL: not wanted; HEAD alone): the sum over the block's groups of
 * exp(scale * (q.r - score)), for ucm_star_vote(); they lie as the scores do.
 * scale is at least 0: 1 as KVStar has it, 1 / sqrt(head_dim) as attention does.
 */
struct ucm_star_request {
	const float *query; /* made by ucm_star_query_prepare() ... */
	uint32_t num_queries, num_heads; /* ... from so many, of so many heads */
	uint32_t per; /* enum ucm_score_per */
	const struct ucm_repr_slab *slab;
	const int32_t *slots; /* of its blocks; NULL: from first_slot on */
	uint64_t first_slot;
	size_t num; /* blocks */
	float *scores, *weights; /* of row r, block i: at r * stride + i */
	size_t stride;
	float scale; /* not looked at without weights */
};

/* Score the blocks of one or of many requests, as ucm_score() does. An exact
 * score of n channels is off by at most (n + 4) 2^-24 sum |q r|, its weight by
 * 2^-20 of itself and what follows from its products being off. */
int ucm_star_score(const struct ucm_star_spec *spec,
		   const struct ucm_star_request *requests,
		   size_t num_requests, struct ucm_error *error);

/*
 * The vote (KVStar). Each row has one: it is shared out among the groups of all
 * blocks by softmax, and votes[i] is what those of block i get from all rows. All
 * votes together are num_rows; or 0 where no block has a token.
 *
 * scores and weights: of num blocks, by ucm_star_score() with this scale, HEAD;
 * in one call or in several for parts of the blocks. weights are used up.
 */
int ucm_star_vote(const float *scores, float *weights, size_t num_rows,
		  size_t num, size_t stride, float scale, float *votes,
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
	uint32_t budget_tokens; /* 0, or at least block_size */
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
