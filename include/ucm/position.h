/* SPDX-License-Identifier: Apache-2.0 */
/*
 * position.h - cached keys at other positions than those they were computed for.
 *
 * Keys carry their token's position as a rotation (RoPE). So what is cached of a
 * text can be used where the text stands elsewhere: its keys are rotated further,
 * by as much as the text has moved. doc/position.md says what that is good for.
 *
 * As in <ucm/sparse.h>: all memory is the caller's; any number of threads may
 * call at a time; int is 0 or -errno, and then nothing but *error is written
 * (NULL: not wanted); -EINVAL: an argument is wrong, and error begins with its
 * name. Results do not depend on the CPU.
 */
#ifndef UCM_POSITION_H
#define UCM_POSITION_H

#include <ucm/sparse.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rotary positions ---- */

/* Which two channels of a head are rotated together, with h = rotary_dim / 2:
 * NEOX i and i + h (Llama, Qwen), GPTJ 2 i and 2 i + 1 (DeepSeek); 0 <= i < h. */
enum ucm_rope_pairing {
	UCM_ROPE_NEOX = 0,
	UCM_ROPE_GPTJ = 1,
	UCM_ROPE_PAIRINGS
};

/*
 * By what angle pair i is rotated for each position. Unscaled, it is
 * f = base^(-i / h). With s = factor, L = original_length:
 *
 *   NONE    f
 *   LINEAR  f / s
 *   YARN    f / s r + f (1 - r), with r = (i - low) / (high - low) within 0 and 1,
 *           low = floor d(beta_fast) but not below 0, high = ceil d(beta_slow)
 *           but not above rotary_dim - 1 (if both are equal, high is .001 more),
 *           and d(b) = h ln(L / (2 pi b)) / ln base
 *   LLAMA3  with x = L f / (2 pi), turns in the original length: f / s where x is
 *           below low_freq_factor, f above high_freq_factor, and between them
 *           f / s (1 - r) + f r, r = (x - low_freq_factor) /
 *           (high_freq_factor - low_freq_factor)
 *
 * A scaling that depends on the length of the request (dynamic NTK) is not
 * offered: its keys cannot be moved.
 */
enum ucm_rope_scaling {
	UCM_ROPE_NONE = 0,
	UCM_ROPE_LINEAR = 1,
	UCM_ROPE_YARN = 2,
	UCM_ROPE_LLAMA3 = 3,
	UCM_ROPE_SCALINGS
};

#define UCM_POSITION_MAX (1 << 24)

/* How a model rotates. 0 is a default for what its configuration lacks. */
struct ucm_rope {
	uint32_t pairing;    /* enum ucm_rope_pairing */
	uint32_t scaling;    /* enum ucm_rope_scaling */
	uint32_t head_dim;   /* 2 to 1024 */
	uint32_t rotary_dim; /* the first channels of a head, even; 0: all */
	double base;         /* above 1: 10000, say (rope_theta) */
	double factor;       /* at least 1; not with NONE */
	uint32_t original_length; /* YARN, LLAMA3: tokens */
	double beta_fast, beta_slow; /* YARN; 0: 32 and 1 */
	double low_freq_factor, high_freq_factor; /* LLAMA3; 0: 1 and 4 */
	/* YARN: rotated channels are multiplied by it once, when a key is rotated
	 * for the first time. 0: .1 ln(factor) + 1. */
	double attention_factor;
};

/* The angles per position, in radians: rotary_dim / 2 of them. */
int ucm_rope_frequencies(const struct ucm_rope *rope, double *out, size_t room,
			 struct ucm_error *error);

/* Where keys are written; what is said of struct ucm_keys holds here. */
struct ucm_key_room {
	void *base;
	uint64_t num_blocks;
	int64_t stride_block, stride_token, stride_head;
};

/*
 * Keys that move. All blocks have block_size tokens but the last one, which has
 * last_tokens.
 *
 * to, to_blocks: where they are written, in the same type. Either all keys are
 * written to where they were read, or none is; to_blocks are all different.
 */
struct ucm_shift_request {
	struct ucm_keys from;
	struct ucm_key_room to;
	const int32_t *from_blocks, *to_blocks; /* NULL: 0, 1, ... num - 1 */
	size_t num; /* blocks */
	uint32_t num_heads, block_size, last_tokens;
	/* By how many positions: one for each block, or with per_token one for
	 * each token, block_size of them for a block. Up to UCM_POSITION_MAX
	 * either way. */
	const int32_t *deltas;
	uint32_t per_token;
	/* Not 0: the keys have not been rotated yet, and deltas are their
	 * positions. Only then is YARN's attention_factor applied. */
	uint32_t unrotated;
	/* Not 0: the keys are not looked at first. Then they are read once and
	 * not twice, and NaN and infinite ones stay so, together with those that
	 * they are paired with. */
	uint32_t unchecked;
};

/*
 * Rotate keys. 0 leaves every bit as it is. Otherwise the result is the exact one
 * for the stored keys, computed in float32 with an error of at most 2^-22 of the
 * length of the pair, and rounded to the type (float16: beyond 65504 it becomes
 * infinite). A rotation by a and then by b is one by a + b, rounded twice.
 */
int ucm_rope_shift(const struct ucm_rope *rope,
		   const struct ucm_shift_request *request,
		   struct ucm_error *error);

/* ---- text that stands elsewhere ---- */

#define UCM_CHUNK_TOKENS   64u /* what BlendConnector's description proposes */
#define UCM_CHUNK_MATCH	   0.8
#define UCM_CHUNK_BOUNDARY 2u

struct ucm_chunk_config {
	uint32_t chunk_tokens; /* at least 1 */
	/* What is used of a chunk that is cached in part: its first tokens, if they
	 * are at least this share of it. Those after the first that differs were
	 * computed after another text, and are not used. 0 to 1. */
	double min_match_ratio;
	/* As many tokens at each end of such a part are computed again, and at the
	 * start of each chunk that is used (LegoLink of EPIC: 16 or 32, say). */
	uint32_t boundary_tokens, head_tokens;
};

/* A text that is cached: chunks of it begin at multiples of chunk_tokens. */
struct ucm_chunk_source {
	const int64_t *tokens;
	uint32_t num_tokens;
	uint32_t position; /* of the first, which its keys are rotated for */
};

enum ucm_chunk_kind {
	UCM_CHUNK_NONE = 0,
	UCM_CHUNK_PARTIAL = 1,
	UCM_CHUNK_FULL = 2,
};

/* Tokens begin to end - 1 of a request. */
struct ucm_chunk {
	uint32_t begin, end;
	uint32_t kind;    /* enum ucm_chunk_kind */
	uint32_t matched; /* the first of them that are used; NONE: 0 */
	uint32_t source;  /* of which text ... */
	uint32_t token;   /* ... and which of its tokens is the first */
	int32_t delta;    /* positions from there to here */
};

/*
 * Tell num_tokens tokens of a request, from position on, apart into chunks, the
 * last of which may be shorter, and find each in the sources: the longest match
 * from a chunk's start, of equal ones the first.
 */
int ucm_chunks_find(const struct ucm_chunk_config *config,
		    const int64_t *tokens, uint32_t num_tokens,
		    uint32_t position, const struct ucm_chunk_source *sources,
		    uint32_t num_sources, struct ucm_chunk *out, size_t room,
		    uint32_t *num_out, struct ucm_error *error);

/* Tokens begin to end - 1. */
struct ucm_range {
	uint32_t begin, end;
};

/* What is computed of ascending chunks: those that are not cached, what differs,
 * and boundaries. Ranges are ascending, and do not touch; at most two for each
 * chunk. */
int ucm_chunks_recompute(const struct ucm_chunk_config *config,
			 const struct ucm_chunk *chunks, uint32_t num,
			 struct ucm_range *out, size_t room, uint32_t *num_out,
			 struct ucm_error *error);

/* By how much each of num tokens from first on has moved, for ucm_rope_shift():
 * 0 for those that are not used. */
int ucm_chunks_deltas(const struct ucm_chunk *chunks, uint32_t num_chunks,
		      uint32_t first, int32_t *out, size_t num,
		      struct ucm_error *error);

/* Sort ranges, in place, and make one of those that overlap or touch; empty ones
 * go. */
int ucm_ranges_merge(struct ucm_range *ranges, uint32_t num, uint32_t *num_out,
		     struct ucm_error *error);

/* ---- which tokens are computed again ---- */

/*
 * How far what is cached of tokens is from what is computed for them: for each
 * token, the sum of |cached - fresh| over all heads and channels of its key, and
 * of its value if there are values. The keys have been moved to their new
 * positions; in a first layer nothing is left then but rounding.
 *
 * The cached rows of token i are in block table[i / block_size]; the fresh ones
 * are token i of block 0 of theirs, whose stride_block is not looked at.
 */
struct ucm_deviation_request {
	struct ucm_keys cached, fresh;
	struct ucm_keys cached_values, fresh_values; /* base NULL: none */
	const int32_t *table; /* NULL: 0, 1, ... */
	uint32_t num_tokens, num_heads, head_dim, block_size;
	/* Not 0: divided by the sum of |fresh|, so that it says how much of a
	 * token has changed; 0 of 0 is 0, more of 0 is infinite. */
	uint32_t relative;
};

/* out: num_tokens of them; off by at most 2^-24 of themselves for each number
 * that is added up. All is read twice, so that nothing is written if a number is
 * not finite. -ERANGE: a sum is too large for a float. */
int ucm_kv_deviation(const struct ucm_deviation_request *request, float *out,
		     struct ucm_error *error);

/*
 * Which of num tokens are computed again, by their scores: deviations, say. A score
 * of -INFINITY is a token that cannot be chosen, for it is not cached, say; n
 * tokens can.
 *
 *   RATIO      the floor(n value) highest, computed in double
 *   THRESHOLD  those of at least value. A usual one is .1, of relative
 *              deviations
 *   QUANTILE   those of at least the quantile of 1 - value, but at most
 *              floor(n value). (The quantile alone chooses up to one more, and all
 *              that are equal to it. So it comes to what RATIO chooses.)
 *
 * Of equal scores the lower token is chosen. out: ascending. -EINVAL: a score is
 * NaN, or more are chosen than there is room for.
 */
enum ucm_hkvd_rule {
	UCM_HKVD_RATIO = 0,
	UCM_HKVD_THRESHOLD = 1,
	UCM_HKVD_QUANTILE = 2,
	UCM_HKVD_RULES
};

int ucm_hkvd_select(const float *scores, uint32_t num, uint32_t rule,
		    double value, uint32_t *out, size_t room,
		    uint32_t *num_out, struct ucm_error *error);

/* ---- attention ---- */

/*
 * What a token attends to: the first num_tokens tokens of the blocks in table, of
 * which all but the last are full. With s_j = scale q.k_j for a query head q and
 * token j of its key head, the result is the sum of exp(s_j) v_j, divided by the
 * sum of exp(s_j). A selection of blocks is a table that names no others:
 * ucm_select_table() makes it.
 *
 * keys and values are paged alike, in the blocks of the table, but may differ in
 * type and strides. All is finite.
 */
struct ucm_attention {
	struct ucm_query query; /* head h is of key head h / (heads / num_heads) */
	struct ucm_keys keys, values;
	const int32_t *table; /* NULL: 0, 1, ... */
	uint32_t num_tokens;  /* at least 1 */
	uint32_t num_heads;   /* of keys and of values */
	uint32_t head_dim;    /* of query and keys, up to 1024 */
	uint32_t value_dim;   /* 0: head_dim. MLA: keys' first 512 are values */
	uint32_t block_size;
	double scale; /* 0: 1 / sqrt(head_dim) */
	/* Only for ReRoPE: the query's position, which no token follows, and
	 * which blocks of the request those of the table are, ascending, as
	 * ucm_select() gives them (NULL: 0, 1, ...). */
	uint32_t position;
	const uint32_t *selected;
};

/*
 * Attention as it is defined, in double, slowly: for tests, and to measure what a
 * selection loses.
 *
 * out: value_dim numbers for each query head, one head after the other. lse (NULL:
 * not wanted): for each, the logarithm of the sum of exp(s_j). So if a request's
 * tokens are told apart into two sets, the second's share of the attention is
 * exp(lse_2 - lse), and out - out_1 = share (out_2 - out_1).
 */
int ucm_attention_reference(const struct ucm_attention *attention, double *out,
			    double *lse, struct ucm_error *error);

/* The same, for one token, and fast: in float32, over the tokens in their order.
 * To use several threads, give each some of the key heads (bases are moved by
 * stride_head).
 *
 * work: ucm_attention_floats() floats, 0 if attention is wrong; it is written also
 * if the call fails. out and lse as above, in floats. -ERANGE: a product or a sum is
 * too large for one. */
size_t ucm_attention_floats(const struct ucm_attention *attention);
int ucm_attention_decode(const struct ucm_attention *attention, float *work,
			 float *out, float *lse, struct ucm_error *error);

/* ---- ReRoPE ---- */

/*
 * Attention in which no token is farther away than window positions (Su, ReRoPE):
 * the query at position i sees token j where it is if i - j < window, or else as
 * if it were window positions before. So positions that a model has not been
 * trained for do not occur. s_j is multiplied by max(1, ln(i + 1) / ln
 * training_length) besides.
 *
 * Query and keys are those of an ordinary cache, rotated for their positions:
 * where it is needed the rotation is undone on the way. There is no other cache.
 */
struct ucm_rerope {
	struct ucm_rope rope;     /* its head_dim is attention's */
	uint32_t window;          /* 1 to UCM_POSITION_MAX */
	uint32_t training_length; /* at least 2; 0: s_j is not multiplied */
};

/* As it is defined, in double. */
int ucm_rerope_reference(const struct ucm_rerope *rerope,
			 const struct ucm_attention *attention, double *out,
			 double *lse, struct ucm_error *error);

/* Angles, made once for a model: ucm_rerope_floats() of them, 0 if an argument is
 * wrong. */
size_t ucm_rerope_floats(const struct ucm_rerope *rerope, uint32_t block_size);
int ucm_rerope_prepare(const struct ucm_rerope *rerope, uint32_t block_size,
		       float *angles, struct ucm_error *error);

/* ucm_attention_decode() with ReRoPE. If all tokens are nearer than window, and the
 * position is below training_length, it has that call's bits. angles: made for
 * this rope and block size. */
int ucm_rerope_decode(const struct ucm_rerope *rerope, const float *angles,
		      const struct ucm_attention *attention, float *work,
		      float *out, float *lse, struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
