/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c - what to do at a step, from its number alone. */
#include <config.h>

#include <ucm/retrieve.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "common/error.h"
#include "sparse/spec.h"

static bool has_layer(const struct ucm_layers *layers, uint32_t layer)
{
	return layers->bits[layer / 64] >> layer % 64 & 1;
}

static int numbers_check(const struct ucm_schedule *schedule,
			 struct ucm_error *error)
{
	if (ucm_sparse_in_range("stride", schedule->stride, UCM_STRIDE_MAX,
				error) ||
	    ucm_sparse_in_range("num_layers", schedule->num_layers,
				UCM_LAYERS_MAX, error) ||
	    ucm_sparse_in_range("queries", schedule->queries, schedule->stride,
				error))
		return -EINVAL;
	if (schedule->lead > 2 * schedule->stride)
		return ucm_error_set(error, -EINVAL, "lead %" PRIu32
				     ": at most two strides of %" PRIu32,
				     schedule->lead, schedule->stride);
	if (schedule->queries > 1 && !schedule->lead)
		return ucm_error_set(error, -EINVAL, "queries %" PRIu32
				     ": one alone with lead 0",
				     schedule->queries);
	return 0;
}

/* UCM_LAYERS_MAX: none. */
static uint32_t first_layer(const struct ucm_layers *layers)
{
	for (uint32_t i = 0; i < UCM_LAYERS_MAX / 64; i++) {
		if (layers->bits[i])
			return 64 * i +
			       (uint32_t)__builtin_ctzll(layers->bits[i]);
	}
	return UCM_LAYERS_MAX;
}

static int layers_check(const struct ucm_schedule *schedule,
			struct ucm_error *error)
{
	const struct ucm_layers *dense = &schedule->dense;
	const struct ucm_layers *reuse = &schedule->reuse;
	struct ucm_layers both, chooses, beyond;
	uint32_t layer;

	for (uint32_t i = 0; i < UCM_LAYERS_MAX / 64; i++) {
		uint32_t num = schedule->num_layers - 64 * i;
		uint64_t there = schedule->num_layers <= 64 * i ? 0
				 : num >= 64 ? UINT64_MAX
					     : (UINT64_C(1) << num) - 1;

		both.bits[i] = dense->bits[i] & reuse->bits[i];
		chooses.bits[i] = ~(dense->bits[i] | reuse->bits[i]);
		beyond.bits[i] = (dense->bits[i] | reuse->bits[i]) & ~there;
	}
	layer = first_layer(&beyond);
	if (layer < UCM_LAYERS_MAX)
		return ucm_error_set(error, -EINVAL, "%s: layer %" PRIu32
				     ", there are %" PRIu32,
				     has_layer(dense, layer) ? "dense"
							     : "reuse",
				     layer, schedule->num_layers);
	layer = first_layer(&both);
	if (layer < UCM_LAYERS_MAX)
		return ucm_error_set(error, -EINVAL, "reuse: layer %" PRIu32
				     " is dense, too", layer);
	layer = first_layer(reuse);
	if (layer < first_layer(&chooses))
		return ucm_error_set(error, -EINVAL, "reuse: layer %" PRIu32
				     " has none before it that chooses",
				     layer);
	return 0;
}

int ucm_schedule_check(const struct ucm_schedule *schedule,
		       struct ucm_error *error)
{
	int err = ucm_sparse_given(error, "schedule", schedule, NULL)
		?: numbers_check(schedule, error);

	return err ? err : layers_check(schedule, error);
}

/* Is a choice made anew for the steps from first on? Not if some of the queries
 * that it takes would be the prompt's; but the first one's all are. */
static bool is_chosen_for(const struct ucm_schedule *schedule, uint64_t first)
{
	return first == 1 || first >= (uint64_t)schedule->lead +
					      schedule->queries;
}

/* The last step whose query the choice was made with that is used at a step. */
static uint64_t used_at(const struct ucm_schedule *schedule, uint64_t step)
{
	uint64_t first = (step - 1) / schedule->stride * schedule->stride + 1;

	if (!schedule->lead)
		return first;
	return first > 1 && is_chosen_for(schedule, first)
		       ? first - schedule->lead
		       : 0;
}

/* Is step one of those whose queries the next retrieval is made with? The
 * groups do not overlap, and end stride apart. */
static bool is_kept(const struct ucm_schedule *schedule, uint64_t step)
{
	uint64_t after = (step + schedule->lead - 1) % schedule->stride;
	uint64_t left = after ? schedule->stride - after : 0;

	return schedule->queries > 1 && left < schedule->queries &&
	       step + left >= schedule->queries;
}

static bool is_submitted(const struct ucm_schedule *schedule, uint64_t step)
{
	uint64_t first = step + schedule->lead;

	return schedule->lead && first > 1 &&
	       (first - 1) % schedule->stride == 0 &&
	       is_chosen_for(schedule, first);
}

static void prefill_actions(const struct ucm_schedule *schedule,
			    struct ucm_step *out)
{
	out->end = UCM_DO_BUILD;
	if (schedule->lead)
		out->end |= UCM_DO_SUBMIT | UCM_DO_COLLECT | UCM_DO_LOAD;
}

static void decode_actions(const struct ucm_schedule *schedule, uint64_t step,
			   struct ucm_step *out)
{
	bool is_first = (step - 1) % schedule->stride == 0;

	out->uses = used_at(schedule, step);
	out->end = UCM_DO_BUILD;
	if (is_kept(schedule, step))
		out->begin |= UCM_DO_KEEP_QUERY;
	if (is_submitted(schedule, step))
		out->begin |= UCM_DO_SUBMIT;
	if (is_first && !schedule->lead)
		out->begin |= UCM_DO_SELECT | UCM_DO_LOAD | UCM_DO_WAIT_LOADS;
	if (is_first && schedule->lead && is_chosen_for(schedule, step))
		out->begin |= UCM_DO_WAIT_LOADS;
	if (schedule->lead && step % schedule->stride == 0 &&
	    is_chosen_for(schedule, step + 1)) {
		out->end |= UCM_DO_COLLECT | UCM_DO_LOAD;
		out->collects = step + 1 - schedule->lead;
	}
}

/* What a layer does in its role: the bytes of its own blocks it loads in any
 * case, as each layer has others. */
static void role_actions(const struct ucm_schedule *schedule, uint32_t layer,
			 struct ucm_step *out)
{
	const uint32_t loads = UCM_DO_LOAD | UCM_DO_WAIT_LOADS;

	out->source = layer;
	if (has_layer(&schedule->dense, layer)) {
		out->role = UCM_LAYER_DENSE;
		out->begin = out->end = 0;
		out->collects = out->uses = 0;
	} else if (has_layer(&schedule->reuse, layer)) {
		out->role = UCM_LAYER_REUSES;
		out->begin &= loads;
		out->end &= loads;
		out->collects = 0;
		while (has_layer(&schedule->reuse, out->source) ||
		       has_layer(&schedule->dense, out->source))
			out->source--;
	}
}

int ucm_schedule_step(const struct ucm_schedule *schedule, uint64_t step,
		      uint32_t layer, struct ucm_step *out,
		      struct ucm_error *error)
{
	struct ucm_step plan = { .role = UCM_LAYER_CHOOSES };
	int err = ucm_schedule_check(schedule, error);

	if (err)
		return err;
	if (!out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	if (layer >= schedule->num_layers)
		return ucm_error_set(error, -EINVAL, "layer %" PRIu32
				     ": there are %" PRIu32, layer,
				     schedule->num_layers);
	if (step > UINT64_MAX - 2 * UCM_STRIDE_MAX)
		return ucm_error_set(error, -EINVAL, "step %" PRIu64
				     ": too large", step);
	if (step)
		decode_actions(schedule, step, &plan);
	else
		prefill_actions(schedule, &plan);
	role_actions(schedule, layer, &plan);
	*out = plan;
	return 0;
}
