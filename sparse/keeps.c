/* SPDX-License-Identifier: Apache-2.0 */
/* keeps.c - what a method keeps of the blocks of a model: the specs that follow
 * from its configuration. */
#include <config.h>

#include <ucm/retrieve.h>

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"
#include "sparse/code.h"
#include "sparse/method.h"
#include "sparse/spec.h"

static const char *const keeps_names[] = {
	[UCM_KEEPS_REPR] = "representations",
	[UCM_KEEPS_CODES] = "hash codes",
	[UCM_KEEPS_CHANNELS] = "merged channels",
	[UCM_KEEPS_NOTHING] = "nothing",
};

static int keeps_check(const struct ucm_sparse_config *config,
		       const struct ucm_sparse_model *model, const void *out,
		       uint32_t wanted, struct ucm_error *error)
{
	const struct ucm_sparse_method *method;
	int err;

	if (!config || !model || !out)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !config  ? "config"
				     : !model ? "model"
					      : "out");
	err = ucm_sparse_check(config, error);
	if (err)
		return err;
	method = ucm_method_of(config->method);
	if (method->keeps != wanted)
		return ucm_error_set(error, -EINVAL, "method %s: it keeps %s, "
				     "not %s", method->name,
				     keeps_names[method->keeps],
				     keeps_names[wanted]);
	return ucm_sparse_heads_check("query_heads", model->query_heads,
				      model->num_heads, error);
}

int ucm_sparse_repr_spec(const struct ucm_sparse_config *config,
			 const struct ucm_sparse_model *model,
			 struct ucm_repr_spec *out, struct ucm_error *error)
{
	struct ucm_repr_spec spec;
	int err = keeps_check(config, model, out, UCM_KEEPS_REPR, error);

	if (err)
		return err;
	spec = (struct ucm_repr_spec){
		.kind = config->pooling,
		.dtype = model->dtype,
		.num_heads = model->num_heads,
		.head_dim = model->head_dim,
		.block_size = config->budget.block_size,
	};
	err = ucm_repr_shape(&spec, NULL, error);
	if (!err)
		*out = spec;
	return err;
}

int ucm_sparse_code_spec(const struct ucm_sparse_config *config,
			 const struct ucm_sparse_model *model,
			 struct ucm_code_spec *out,
			 struct ucm_code_method *method_out,
			 struct ucm_error *error)
{
	struct ucm_code_shape shape;
	struct ucm_code_spec spec;
	uint32_t group;
	int err = keeps_check(config, model, out, UCM_KEEPS_CODES, error);

	if (err)
		return err;
	if (!method_out)
		return ucm_error_set(error, -EINVAL, "method_out is NULL");
	if (model->rope_dim && model->rope_dim >= model->head_dim)
		return ucm_error_set(error, -EINVAL, "rope_dim %" PRIu32
				     ": below %" PRIu32, model->rope_dim,
				     model->head_dim);
	spec = (struct ucm_code_spec){
		.form = UCM_CODE_TOKENS,
		.num_heads = model->num_heads,
		.head_dim = model->head_dim,
		.rope_dim = model->rope_dim,
		.bits = config->hash_bits,
		.block_size = config->budget.block_size,
		.seed = model->seed,
	};
	spec.rope_bits = ucm_code_rope_bits(&spec);
	err = ucm_code_shape(&spec, &shape, error);
	if (err)
		return err;
	group = model->query_heads / model->num_heads;
	if (model->rope_dim && (!config->hash_reduction_heads ||
				group % config->hash_reduction_heads))
		return ucm_error_set(error, -EINVAL, "hash_reduction_head_num %"
				     PRIu32 ": a divisor of %" PRIu32,
				     config->hash_reduction_heads, group);
	*out = spec;
	*method_out = (struct ucm_code_method){
		.measure = UCM_CODE_HAMMING,
		.over = UCM_CODE_BEST,
		.per = UCM_SCORE_BLOCK,
		.num_heads = model->query_heads,
		.merged_heads = model->rope_dim ? config->hash_reduction_heads
						: group,
	};
	return 0;
}

int ucm_sparse_star_spec(const struct ucm_sparse_config *config,
			 const struct ucm_sparse_model *model,
			 const uint16_t *channels, struct ucm_star_spec *out,
			 struct ucm_error *error)
{
	struct ucm_repr_spec keys = { .kind = UCM_REPR_MEAN };
	uint32_t kept;
	int err = keeps_check(config, model, out, UCM_KEEPS_CHANNELS, error);

	if (err)
		return err;
	keys.dtype = model->dtype;
	keys.num_heads = model->num_heads;
	keys.head_dim = model->head_dim;
	keys.block_size = config->budget.block_size;
	err = ucm_repr_shape(&keys, NULL, error);
	if (err)
		return err;
	kept = ucm_star_kept(keys.head_dim, config->kept_channels);
	if (!kept)
		return ucm_error_set(error, -EINVAL, "blk_repre_dim_prune_ratio"
				     " %g: above 0, at most 1",
				     config->kept_channels);
	*out = (struct ucm_star_spec){
		.dtype = keys.dtype,
		.num_heads = keys.num_heads,
		.head_dim = keys.head_dim,
		.block_size = keys.block_size,
		.merge_tokens = config->merged_tokens,
		.kept = kept,
		.channels = channels,
	};
	return 0;
}
