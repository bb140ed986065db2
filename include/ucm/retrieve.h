/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retrieve.h - when blocks are chosen, by whom, and which of them are in
 * memory.
 *
 * <ucm/sparse.h> says which blocks matter to a token. Here is what it takes to
 * act on that while a request decodes:
 *
 *	schedule   what to do at a step: choose, load, wait, or go on as before
 *
 * Steps are counted from 1, by the tokens that have been generated; step 0 is
 * the prefill. Clocks are logical, and everything but the retrieval's threads
 * is arithmetic: the same calls give the same results on every machine.
 *
 * All calls that return int return 0 or -errno, and write nothing but *error
 * (<ucm/error.h>; NULL: not wanted) if they fail. -EINVAL: an argument is
 * wrong, and error begins with its name.
 */
#ifndef UCM_RETRIEVE_H
#define UCM_RETRIEVE_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/error.h>
#include <ucm/sparse.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- schedules ---- */

#define UCM_LAYERS_MAX 256u
#define UCM_STRIDE_MAX 65536u

/* Layer i is bit i % 64 of word i / 64. */
struct ucm_layers {
	uint64_t bits[UCM_LAYERS_MAX / 64];
};

/*
 * When the blocks of a request are chosen anew.
 *
 * A choice is used from its first step on, for stride steps: steps 1 to stride,
 * stride + 1 to 2 * stride and so on. It is made with the queries of `queries`
 * steps in a row, the last of which is `lead` steps before its first step:
 *
 *	lead 0   with that step's own query, before it attends (GSA On-Device)
 *	lead 1   with the query of the step before: scores of step N are used in
 *	         N + 1 (ESA, GSA)
 *	more     so that retrieving and loading may take as long. UCM's own ESA
 *	         is stride - 1; KVStar takes the queries of stride steps, with
 *	         stride + 1
 *
 * The first choice is made with the last queries of the prompt, and stays until
 * the queries of enough steps are there.
 *
 * Layers in dense ("rollback") attend to all blocks; those in reuse ("skip") to
 * what the last layer before them that is in neither has chosen.
 */
struct ucm_schedule {
	uint32_t stride;     /* 1 to UCM_STRIDE_MAX */
	uint32_t lead;       /* up to 2 * stride */
	uint32_t queries;    /* 1 to stride; 1 with lead 0 */
	uint32_t num_layers; /* 1 to UCM_LAYERS_MAX */
	struct ucm_layers dense, reuse; /* no layer is in both */
};

/* What is to be done at a step, in this order. */
enum ucm_do {
	UCM_DO_KEEP_QUERY = 0x01, /* a later retrieval takes it */
	UCM_DO_SELECT = 0x02,     /* choose now, with this step's query */
	UCM_DO_SUBMIT = 0x04,     /* a retrieval, with this query (step 0: the
				   * prompt's last ones) and those kept */
	UCM_DO_BUILD = 0x08,      /* representations: of the new keys */
	UCM_DO_COLLECT = 0x10,    /* the retrieval that is due */
	UCM_DO_LOAD = 0x20,       /* what has been chosen and is not resident */
	UCM_DO_WAIT_LOADS = 0x40, /* then use the new choice */
};

enum ucm_layer_role {
	UCM_LAYER_CHOOSES = 0,
	UCM_LAYER_DENSE = 1,
	UCM_LAYER_REUSES = 2,
};

struct ucm_step {
	uint32_t role;   /* enum ucm_layer_role */
	uint32_t source; /* the layer whose choice is used; itself if it
			  * chooses or is dense */
	uint32_t begin;  /* bits of enum ucm_do: before the layer attends ... */
	uint32_t end;    /* ... and after it */
	/* Choices are known by the last step whose query they were made with; 0
	 * is the prompt's. */
	uint64_t collects; /* with UCM_DO_COLLECT: which */
	uint64_t uses;     /* which is attended with; 0 in step 0, and if
			    * dense */
};

/* -EINVAL also if a layer is to reuse a choice and none is made before it. */
int ucm_schedule_check(const struct ucm_schedule *schedule,
		       struct ucm_error *error);

/* What to do at a step in a layer. */
int ucm_schedule_step(const struct ucm_schedule *schedule, uint64_t step,
		      uint32_t layer, struct ucm_step *out,
		      struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
