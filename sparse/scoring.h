/* SPDX-License-Identifier: Apache-2.0 */
/* scoring.h - what the blocks of a retrieval's job are scored by. */
#ifndef UCM_SPARSE_SCORING_H
#define UCM_SPARSE_SCORING_H

#include <ucm/retrieve.h>

/* Copies of what a job says, but for what it says is read until its end. */
struct ucm_scoring {
	/* One of them, or the caller's function. */
	int (*run)(const struct ucm_scoring *scoring, size_t begin, size_t num,
		   float *scores, struct ucm_error *error);
	union {
		struct ucm_repr_spec spec;
		struct {
			struct ucm_code_spec codes;
			struct ucm_code_method method;
		};
		struct {
			struct ucm_star_spec star;
			uint32_t num_queries;
		};
		struct {
			int (*score)(void *arg, size_t begin, size_t end,
				     float *scores, struct ucm_error *error);
			void *arg;
		};
	};
	uint32_t num_heads;
	struct ucm_repr_slab slab;
	const int32_t *slots;
	const void *query;
};

/*
 * Take what a job says, if it is right, and its query fits in room floats.
 * *query_bytes: how much of *query there is; the caller copies it, and sets it to
 * the copy. -EINVAL names what is wrong.
 */
int ucm_scoring_take(const struct ucm_retrieval_job *job, uint32_t room,
		     struct ucm_scoring *out, size_t *query_bytes,
		     struct ucm_error *error);

#endif
