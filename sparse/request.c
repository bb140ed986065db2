/* SPDX-License-Identifier: Apache-2.0 */
/* request.c - how far a request is, and what it attends to. */
#include <config.h>

#include <ucm/retrieve.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "common/error.h"

static uint32_t blocks_kept(const struct ucm_budget *budget)
{
	return budget->first + budget->topk + budget->last;
}

/* Does a request of so many tokens attend to all its blocks? */
static int look_at(const struct ucm_sparse_config *config, uint32_t tokens,
		   struct ucm_budget *budget, uint32_t *dense,
		   struct ucm_error *error)
{
	int err = ucm_budget_blocks(&config->budget, tokens, budget, error);

	if (err)
		return err;
	*dense = config->method == UCM_METHOD_BLEND ||
		 config->method == UCM_METHOD_REROPE ||
		 budget->num_blocks < config->min_blocks ||
		 blocks_kept(budget) == budget->num_blocks;
	return 0;
}

static int state_check(const struct ucm_sparse_request *request,
		       uint32_t state, const char *wanted,
		       struct ucm_error *error)
{
	if (!request)
		return ucm_error_set(error, -EINVAL, "request is NULL");
	if (request->state != state)
		return ucm_error_set(error, -EINVAL, "request: %s", wanted);
	return 0;
}

/* May so many be added, with most in all? */
static int tokens_check(const struct ucm_sparse_request *request,
			uint32_t tokens, uint32_t most,
			struct ucm_error *error)
{
	if (tokens && tokens <= most - request->tokens)
		return 0;
	return ucm_error_set(error, -EINVAL, "tokens %" PRIu32
			     ": from 1 to %" PRIu32, tokens,
			     most - request->tokens);
}

int ucm_sparse_begin(struct ucm_sparse_request *request,
		     const struct ucm_sparse_config *config,
		     uint32_t prompt_tokens, struct ucm_error *error)
{
	struct ucm_sparse_request new = {
		.config = config,
		.state = UCM_REQUEST_PREFILL,
		.prompt_tokens = prompt_tokens,
	};
	int err = state_check(request, UCM_REQUEST_NONE, "there is one", error)
		?: ucm_sparse_check(config, error);

	if (err)
		return err;
	if (!prompt_tokens || prompt_tokens > INT32_MAX)
		return ucm_error_set(error, -EINVAL, "prompt_tokens %" PRIu32
				     ": from 1 to %d", prompt_tokens,
				     INT32_MAX);
	err = look_at(config, prompt_tokens, &new.budget, &new.dense, error);
	if (!err)
		*request = new;
	return err;
}

int ucm_sparse_prefill(struct ucm_sparse_request *request, uint32_t tokens,
		       uint32_t *done_out, struct ucm_error *error)
{
	int err = state_check(request, UCM_REQUEST_PREFILL,
			      "its prefill has ended, or it has not begun",
			      error);

	if (!err && !done_out)
		err = ucm_error_set(error, -EINVAL, "done_out is NULL");
	if (!err)
		err = tokens_check(request, tokens, request->prompt_tokens,
				   error);
	if (err)
		return err;
	request->tokens += tokens;
	*done_out = request->tokens == request->prompt_tokens;
	if (*done_out)
		request->state = UCM_REQUEST_DECODE;
	return 0;
}

int ucm_sparse_step(struct ucm_sparse_request *request, uint32_t tokens,
		    struct ucm_error *error)
{
	const struct ucm_sparse_config *config;
	struct ucm_budget budget;
	uint32_t dense;
	int err = state_check(request, UCM_REQUEST_DECODE,
			      "its prefill is not over", error)
		?: tokens_check(request, tokens, INT32_MAX, error);

	if (err)
		return err;
	config = request->config;
	/* the configuration is the caller's, who may have changed it */
	err = look_at(config, request->tokens + tokens, &budget, &dense, error);
	if (err)
		return err;
	request->tokens += tokens;
	request->budget = budget;
	/* What is chosen in the step itself can begin wherever it chooses; the
	 * others would have to wait for a choice, and what is generated is
	 * resident. */
	if (!config->schedule.lead &&
	    (!request->dense || request->step % config->schedule.stride == 0))
		request->dense = dense;
	request->step++;
	request->blocks_in_all += request->budget.num_blocks;
	request->blocks_attended += request->dense
					    ? request->budget.num_blocks
					    : blocks_kept(&request->budget);
	return 0;
}

int ucm_sparse_layer(const struct ucm_sparse_request *request, uint32_t layer,
		     struct ucm_step *out, struct ucm_error *error)
{
	struct ucm_step plan;
	int err = state_check(request, UCM_REQUEST_DECODE,
			      "its prefill is not over", error);

	if (!err && !out)
		err = ucm_error_set(error, -EINVAL, "out is NULL");
	if (!err)
		err = ucm_schedule_step(&request->config->schedule,
					request->step, layer, &plan, error);
	if (err)
		return err;
	if (request->dense) {
		bool keeps = request->config->method != UCM_METHOD_BLEND &&
			     request->config->method != UCM_METHOD_REROPE;

		plan.role = UCM_LAYER_DENSE;
		plan.source = layer;
		plan.begin = 0;
		plan.end = keeps ? plan.end & UCM_DO_BUILD : 0;
		plan.collects = plan.uses = 0;
	}
	*out = plan;
	return 0;
}

int ucm_sparse_finish(struct ucm_sparse_request *request,
		      struct ucm_error *error)
{
	int err = state_check(request, UCM_REQUEST_DECODE,
			      "its prefill is not over", error);

	if (!err)
		request->state = UCM_REQUEST_NONE;
	return err;
}

void ucm_sparse_abort(struct ucm_sparse_request *request)
{
	request->state = UCM_REQUEST_NONE;
}

int ucm_sparse_slots(const struct ucm_sparse_config *config,
		     uint32_t prompt_tokens, uint32_t output_tokens,
		     uint32_t *out, struct ucm_error *error)
{
	struct ucm_budget prompt, all;
	uint32_t dense, unused;
	int err = ucm_sparse_check(config, error);

	if (err)
		return err;
	if (!out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	if (!prompt_tokens || prompt_tokens > INT32_MAX ||
	    output_tokens > INT32_MAX - prompt_tokens)
		return ucm_error_set(error, -EINVAL, "prompt_tokens %" PRIu32
				     " + %" PRIu32 ": from 1 to %d",
				     prompt_tokens, output_tokens, INT32_MAX);
	err = look_at(config, prompt_tokens, &prompt, &dense, error)
		?: look_at(config, prompt_tokens + output_tokens, &all, &unused,
			   error);
	if (err)
		return err;
	*out = dense ? all.num_blocks
		     : blocks_kept(&prompt) + all.num_blocks -
			       prompt.num_blocks;
	return 0;
}
