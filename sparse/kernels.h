/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - the loops over elements, compiled for each instruction set.
 *
 * All ways give the same bits (kernels.c says how). Counts of elements that are
 * called "whole" are multiples of UCM_REPR_ROW; nothing needs to be aligned.
 */
#ifndef UCM_SPARSE_KERNELS_H
#define UCM_SPARSE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/repr/shape.h"

/* What a run of blocks is scored with. */
struct ucm_score_run {
	/* Rows of width, one after the other. For bfloat16, those with an even
	 * number of each 32 elements come before the others (but not of
	 * distances). Of *_int, int16_t in steps. */
	const float *query;
	const float *steps;  /* of each row */
	const uint8_t *base; /* of slot 0 */
	uint64_t stride_bytes;
	size_t scales_at;   /* int8: offset of the scales in a slot */
	uint32_t num_heads; /* of keys */
	uint32_t rows;      /* of the query, for each of these */
	uint32_t width;     /* elements of a head, whole */
	uint32_t per;	    /* of distances, enum ucm_score_per */
	const int32_t *slots; /* NULL: from first on */
	uint64_t first;
	size_t num;
	float *scores;
	size_t stride; /* between rows of scores */
};

/* Rows that are rotated by the same angles: outer times inner of them, strides in
 * bytes. Rows are read from where they are written, or nowhere near it. */
struct ucm_rotate_run {
	const uint8_t *from;
	uint8_t *to;
	uint32_t outer, inner;
	int64_t from_outer, from_inner, to_outer, to_inner;
	uint32_t dim, rotary; /* elements; those beyond rotary are copied */
	bool neighbours;      /* pairs are i, i + 1; or else i, i + rotary / 2 */
	/* of each channel; the sine of a pair's first one is negative */
	const float *cosines, *sines;
};

/* Tokens that attention takes at a time; a multiple of all vectors' floats. */
#define UCM_TILE_TOKENS 16u

/* What a run of blocks with merged channels is scored with. */
struct ucm_star_run {
	const float *query; /* of each head: for each channel, that of each row */
	const uint8_t *base;
	uint64_t stride_bytes;
	size_t scales_at, groups_at; /* offsets in a slot */
	uint32_t num_heads;	     /* of keys */
	uint32_t kept;		     /* channels */
	uint32_t lanes;		     /* groups there is room for, whole chunks */
	uint32_t group;	     /* query heads of a key head */
	uint32_t rows;	     /* these, of all queries */
	uint32_t per;
	const int32_t *slots; /* NULL: from first on */
	uint64_t first;
	size_t num;
	float *scores, *weights; /* weights NULL: not wanted */
	size_t stride;
	float scale;
};

struct ucm_sparse_kernels {
	const char *name;

	/* num keys to floats: are all finite? By enum ucm_dtype. */
	bool (*widen[UCM_DTYPE_INT8 + 1])(float *to, const void *from,
					  size_t num);

	/* Take a whole number of floats into what has been seen so far. */
	void (*add)(float *sum, const float *from, size_t num);
	void (*largest)(float *most, const float *from, size_t num);
	void (*smallest)(float *least, const float *from, size_t num);

	/* A score for each row of the query, or their sum; by enum ucm_dtype. */
	void (*score_rows[UCM_DTYPE_INT8 + 1])(const struct ucm_score_run *run);
	void (*score_sum[UCM_DTYPE_INT8 + 1])(const struct ucm_score_run *run);

	/* The same for int8, by a query in int16_t. */
	void (*rows_int)(const struct ucm_score_run *run);
	void (*sum_int)(const struct ucm_score_run *run);

	/* Negative distances, per what the run says; by enum ucm_dtype. */
	void (*score_distance[UCM_DTYPE_INT8 + 1])(const struct ucm_score_run *run);

	/* The largest products, and weights; by enum ucm_dtype. */
	void (*star[UCM_DTYPE_INT8 + 1])(const struct ucm_star_run *run);
	/* Add a row's votes to num blocks'; weights are used up. */
	void (*star_vote)(const float *most, float *weights, size_t num,
			  float scale, float *votes);

	/* The least and the largest of num > 0 scores; false: one is NaN. */
	bool (*range)(const float *scores, size_t num, float *least,
		      float *most);
	/* How many are at least so large? num is below 2^31. */
	size_t (*count)(const float *scores, size_t num, float least);
	/* Append the numbers of those above limit, and of the first equal ones
	 * that are equal to it, plus base; returns how many. */
	size_t (*pick)(const float *scores, size_t num, float limit,
		       size_t equal, uint32_t base, uint32_t *out);

	/* Are all numbers finite? Of a type that is not int8. */
	bool (*finite)(const uint8_t *from, size_t bytes, uint32_t dtype);
	/* By enum ucm_dtype; not of int8. */
	void (*rotate[UCM_DTYPE_FLOAT32 + 1])(const struct ucm_rotate_run *run);
	/* Add the magnitudes of a whole number of differences to 32 lanes. */
	void (*distance)(float *lanes, const float *a, const float *b,
			 size_t num);

	/* Rows of dim elements, stride bytes apart, as floats: width apart. */
	void (*unpack[UCM_DTYPE_FLOAT32 + 1])(float *to, size_t width,
					      const uint8_t *from,
					      int64_t stride, size_t num,
					      size_t dim);
	/* Attention over a tile: rows of a whole width, one after the other. */
	void (*products)(float *out, const float *query, const float *rows,
			 size_t num, size_t width);
	/* x = exp(x - most), for UCM_TILE_TOKENS of them; not above 1. */
	void (*weights)(float *x, float most);
	/* sum = sum * factor + weights[0] * row 0 + ..., in this order */
	void (*weigh)(float *sum, float factor, const float *weights,
		      const float *rows, size_t num, size_t width);
};

/* Those in use; NULL: to be chosen. */
extern const struct ucm_sparse_kernels *ucm_sparse_kernels_used;

/* Use those of this name ("plain", "avx2", "avx512") from now on, for tests and
 * benchmarks; NULL: the best ones of this CPU. False: they are not compiled in,
 * or this CPU cannot, and those in use stay. */
bool ucm_sparse_kernels_use(const char *name);

static inline const struct ucm_sparse_kernels *ucm_sparse_kernels(void)
{
	if (!__atomic_load_n(&ucm_sparse_kernels_used, __ATOMIC_RELAXED))
		ucm_sparse_kernels_use(NULL);
	return __atomic_load_n(&ucm_sparse_kernels_used, __ATOMIC_RELAXED);
}

#endif
