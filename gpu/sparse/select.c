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
	const struct {
		const char *name;
		const void *pointer;
		int wanted;
	} pointers[] = {
		{ "scores", select->scores, 1 },
		{ "tables_out", select->tables_out, 1 },
		{ "tokens_out", select->tokens_out, 1 },
		{ "status", select->status, 1 },
		{ "blocks_out", select->blocks_out, 0 },
		{ "num_out", select->num_out, 0 },
	};
	const struct ucm_cuda_requests *requests = &select->requests;
	int err = ucm_twin_requests_check(requests, error);

	for (size_t i = 0; !err && i < sizeof(pointers) / sizeof(*pointers);
	     i++) {
		if (pointers[i].wanted || pointers[i].pointer)
			err = ucm_twin_pointer_check(pointers[i].name,
						     pointers[i].pointer, 4,
						     error);
	}
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
	int err;

	if (!cuda || !select)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     cuda ? "select" : "cuda");
	err = ucm_budget_check(config, error);
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
