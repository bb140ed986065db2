/* SPDX-License-Identifier: Apache-2.0 */
/* select.c - selections and block tables of many requests, by the kernel. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"
#include "gpu/sparse/twin_args.h"

static int select_check(const struct ucm_cuda_select *select,
			struct ucm_error *error)
{
	const struct ucm_cuda_requests *requests = &select->requests;
	int err = ucm_twin_requests_check(requests, error)
		?: ucm_twin_pointer_check("scores", select->scores, 4, error)
		?: ucm_twin_pointer_check("tables_out", select->tables_out, 4,
					  error)
		?: ucm_twin_pointer_check("tokens_out", select->tokens_out, 4,
					  error)
		?: ucm_twin_pointer_check("status", select->status, 4, error)
		?: ucm_twin_optional_check("blocks_out", select->blocks_out,
					   error)
		?: ucm_twin_optional_check("num_out", select->num_out, error);

	if (err)
		return err;
	if (select->scores_stride < requests->max_blocks)
		return ucm_error_set(error, -EINVAL, "scores_stride %zu: at "
				     "least %" PRIu32, select->scores_stride,
				     requests->max_blocks);
	if (select->tables_out == requests->tables)
		return ucm_error_set(error, -EINVAL,
				     "tables_out is tables");
	return 0;
}

int ucm_sparse_cuda_select(const struct ucm_sparse_cuda *cuda,
			   const struct ucm_budget_config *config,
			   const struct ucm_cuda_select *select, void *stream,
			   struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_SELECT, 0, 1,
				      UCM_TWIN_SELECT_THREADS, 0 };
	struct ucm_twin_select_args args;
	int err = ucm_sparse_given(error, "cuda", cuda, "select", select, NULL)
		?: ucm_budget_check(config, error);

	if (err || !select->requests.num)
		return err;
	err = select_check(select, error);
	if (err)
		return err;
	args = (struct ucm_twin_select_args){
		.config = *config,
		.scores = (uintptr_t)select->scores,
		.tables = (uintptr_t)select->requests.tables,
		.tokens = (uintptr_t)select->requests.tokens,
		.tables_out = (uintptr_t)select->tables_out,
		.tokens_out = (uintptr_t)select->tokens_out,
		.status = (uintptr_t)select->status,
		.blocks_out = (uintptr_t)select->blocks_out,
		.num_out = (uintptr_t)select->num_out,
		.scores_stride = select->scores_stride,
		.table_stride = select->requests.table_stride,
		.room = select->room,
		.max_blocks = select->requests.max_blocks,
		.invalid = -EINVAL,
	};
	grid.x = select->requests.num;
	return ucm_twin_launch(cuda, &grid, &args, "num", stream, error);
}
