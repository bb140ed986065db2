/* SPDX-License-Identifier: Apache-2.0 */
/* none.c - in the place of twins.c where the library is built without CUDA. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>

#include "common/error.h"

static int none(struct ucm_error *error)
{
	return ucm_error_set(error, -ENODEV,
			     "this library was built without CUDA");
}

int ucm_sparse_cuda_open(int device, struct ucm_sparse_cuda **out,
			 struct ucm_error *error)
{
	(void)device;
	(void)out;
	return none(error);
}

void ucm_sparse_cuda_close(struct ucm_sparse_cuda *cuda)
{
	(void)cuda; /* NULL: none can be opened */
}

int ucm_twin_launch(const struct ucm_sparse_cuda *cuda,
		    const struct ucm_twin_grid *grid, void *args,
		    const char *what, void *stream, struct ucm_error *error)
{
	(void)cuda;
	(void)grid;
	(void)args;
	(void)what;
	(void)stream;
	return none(error);
}
