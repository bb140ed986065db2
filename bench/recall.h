/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recall.h - made-up requests, of which it is known what attention looks
 * for, and the ways to score their blocks.
 */
#ifndef UCM_BENCH_RECALL_H
#define UCM_BENCH_RECALL_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/error.h>
#include <ucm/position.h>
#include <ucm/sparse.h>

/* What is planted, and how requests are drawn; see recall_make.c. */
enum ucm_recall_workload {
	UCM_RECALL_NEEDLES, /* single tokens */
	UCM_RECALL_TOPICS,  /* whole blocks */
	UCM_RECALL_WORKLOADS
};

struct ucm_recall_shape {
	uint32_t tokens, block_size;
	uint32_t heads, query_heads, dim; /* dim: a multiple of 8 */
	uint32_t num_plants[UCM_RECALL_WORKLOADS]; /* blocks */
	double strength[UCM_RECALL_WORKLOADS];
	double agree;      /* above 0, up to 1 */
	uint32_t outliers; /* up to dim */
	uint32_t rope;
	uint64_t seed;
};

/* One request. Its keys are float32 while they are made, and bfloat16 then:
 * [token][head][channel]. */
struct ucm_recall {
	const struct ucm_recall_shape *shape;
	uint32_t num_blocks;
	float *draft;
	uint16_t *stored;
	float *query;      /* [query head][channel] */
	float *centers;    /* the mean key, [head][channel] */
	uint32_t *planted; /* blocks, the first num_plants; then the others */
	double *logits;    /* [query head of a group][token] */
	double *mass; /* of each block: its share of the attention, the average
		       * over the query heads */
	double *best; /* the largest q.k, the average over a group, summed */
};

/* Room for requests of a shape. 0 or -ENOMEM. */
int ucm_recall_open(const struct ucm_recall_shape *shape,
		    struct ucm_recall *out);
void ucm_recall_close(struct ucm_recall *recall);

/* Draw request number i of a workload, and compute what there is to find. */
int ucm_recall_draw(struct ucm_recall *recall,
		    enum ucm_recall_workload workload, uint32_t number,
		    struct ucm_error *error);

struct ucm_keys ucm_recall_keys(const struct ucm_recall *recall);
uint32_t ucm_recall_last_tokens(const struct ucm_recall *recall);

/* ---- ways to score (recall_score.c) ---- */

struct ucm_recall_method {
	const char *name;
	const char *stored; /* the type, or what else there is to say; "" */
	int (*score)(const struct ucm_recall_method *method,
		     const struct ucm_recall *recall, float *out,
		     struct ucm_error *error);
	/* of one block; NULL: needs all keys */
	size_t (*bytes)(const struct ucm_recall_method *method,
			const struct ucm_recall_shape *shape);
	uint32_t kind, dtype, distance; /* representations */
	uint32_t form, measure, over;   /* codes */
	uint32_t norms, centered;
	uint32_t merge_tokens, vote; /* merged channels */
	double kept;
};

extern const struct ucm_recall_method ucm_recall_methods[];
extern const size_t ucm_recall_num_methods;

#endif
