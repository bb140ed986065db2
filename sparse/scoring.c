/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scoring.c - what the blocks of a retrieval's job are scored by: representations,
 * hash codes, merged channels, or a function of the caller's.
 *
 * Whether a job is right, the calls say that score: they are asked for the scores
 * of no blocks.
 */
#include <config.h>

#include "sparse/scoring.h"

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"

/* ---- one way each ---- */

static const int32_t *slots_from(const struct ucm_scoring *scoring,
				 size_t begin)
{
	return scoring->slots ? scoring->slots + begin : NULL;
}

static int run_repr(const struct ucm_scoring *scoring, size_t begin,
		    size_t num, float *scores, struct ucm_error *error)
{
	const struct ucm_score_request request = {
		.query = scoring->query,
		.num_heads = scoring->num_heads,
		.per = UCM_SCORE_BLOCK,
		.slab = &scoring->slab,
		.slots = slots_from(scoring, begin),
		.first_slot = begin,
		.num = num,
		.scores = scores,
	};

	return ucm_score(&scoring->spec, &request, 1, error);
}

static int run_codes(const struct ucm_scoring *scoring, size_t begin,
		     size_t num, float *scores, struct ucm_error *error)
{
	const struct ucm_code_request request = {
		.query = scoring->query,
		.slab = &scoring->slab,
		.slots = slots_from(scoring, begin),
		.first_slot = begin,
		.num = num,
		.scores = scores,
	};

	return ucm_code_score(&scoring->codes, &scoring->method, &request, 1,
			      error);
}

static int run_star(const struct ucm_scoring *scoring, size_t begin,
		    size_t num, float *scores, struct ucm_error *error)
{
	const struct ucm_star_request request = {
		.query = scoring->query,
		.num_queries = scoring->num_queries,
		.num_heads = scoring->num_heads,
		.per = UCM_SCORE_BLOCK,
		.slab = &scoring->slab,
		.slots = slots_from(scoring, begin),
		.first_slot = begin,
		.num = num,
		.scores = scores,
	};

	return ucm_star_score(&scoring->star, &request, 1, error);
}

static int run_call(const struct ucm_scoring *scoring, size_t begin,
		    size_t num, float *scores, struct ucm_error *error)
{
	return scoring->score(scoring->arg, begin, begin + num, scores, error);
}

/* ---- what a job says ---- */

static void take_repr(const struct ucm_retrieval_job *job,
		      struct ucm_scoring *out, size_t *query_bytes)
{
	out->run = run_repr;
	out->spec = *job->spec;
	out->query = job->query;
	*query_bytes = sizeof(float) *
		       ucm_query_floats(job->spec, job->num_heads,
					UCM_SCORE_BLOCK);
}

static int take_codes(const struct ucm_retrieval_job *job,
		      struct ucm_scoring *out, size_t *query_bytes,
		      struct ucm_error *error)
{
	const struct ucm_code_method *method = job->code_method;

	if (!method)
		return ucm_error_set(error, -EINVAL, "code_method is NULL");
	if (method->per != UCM_SCORE_BLOCK || method->over == UCM_CODE_EACH)
		return ucm_error_set(error, -EINVAL, "code_method: per %" PRIu32
				     ", over %" PRIu32 ": one score of a block "
				     "is needed", method->per, method->over);
	out->run = run_codes;
	out->codes = *job->codes;
	out->method = *method;
	out->query = job->code_query;
	*query_bytes = sizeof(uint64_t) *
		       ucm_code_query_words(job->codes, method);
	return 0;
}

static void take_star(const struct ucm_retrieval_job *job,
		      struct ucm_scoring *out, size_t *query_bytes)
{
	out->run = run_star;
	out->star = *job->star;
	out->num_queries = job->num_queries;
	out->query = job->query;
	*query_bytes = sizeof(float) *
		       ucm_star_query_floats(job->star, job->num_queries,
					     job->num_heads);
}

/* A job says one thing. */
static int ways_check(const struct ucm_retrieval_job *job,
		      struct ucm_error *error)
{
	int ways = !!job->spec + !!job->codes + !!job->star + !!job->score;

	if (ways == 1)
		return 0;
	return ucm_error_set(error, -EINVAL, "%s",
			     ways ? "spec, codes, star and score: more than one"
				  : "spec is NULL, and so are codes, star and "
				    "score");
}

int ucm_scoring_take(const struct ucm_retrieval_job *job, uint32_t room,
		     struct ucm_scoring *out, size_t *query_bytes,
		     struct ucm_error *error)
{
	struct ucm_scoring scoring = {
		.num_heads = job->num_heads,
		.slots = job->slots,
	};
	size_t bytes = 0;
	float unused;
	int err = ways_check(job, error);

	if (err)
		return err;
	if (job->slab)
		scoring.slab = *job->slab;
	if (job->spec)
		take_repr(job, &scoring, &bytes);
	else if (job->codes)
		err = take_codes(job, &scoring, &bytes, error);
	else if (job->star)
		take_star(job, &scoring, &bytes);
	if (job->score) {
		scoring.run = run_call;
		scoring.score = job->score;
		scoring.arg = job->arg;
	} else if (!err) {
		/* of no blocks: what would be wrong with some */
		err = scoring.run(&scoring, 0, 0, &unused, error);
	}
	if (err)
		return err;
	if (bytes > room * sizeof(float))
		return ucm_error_set(error, -EINVAL, "query_floats %" PRIu32
				     ": the query has %zu", room,
				     bytes / sizeof(float));
	*query_bytes = bytes;
	*out = scoring;
	return 0;
}
