/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - what the calls of <ucm/sparse_cuda.h> are given, as far as the host
 * can see it. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"

int ucm_twin_spec_check(const struct ucm_repr_spec *spec,
			struct ucm_repr_shape *shape_out,
			struct ucm_error *error)
{
	int err = ucm_repr_shape(spec, shape_out, error);

	if (!err && spec->dtype == UCM_DTYPE_INT8)
		err = ucm_error_set(error, -EINVAL, "dtype %" PRIu32
				    ": int8 is not on a device", spec->dtype);
	return err;
}

int ucm_twin_pointer_check(const char *name, const void *pointer,
			   uint32_t align, struct ucm_error *error)
{
	if (!pointer)
		return ucm_error_set(error, -EINVAL, "%s is NULL", name);
	if ((uintptr_t)pointer % align)
		return ucm_error_set(error, -EINVAL, "%s is not aligned to %"
				     PRIu32 " bytes", name, align);
	return 0;
}

int ucm_twin_requests_check(const struct ucm_cuda_requests *requests,
			    struct ucm_error *error)
{
	int err;

	if (!requests->num)
		return 0;
	if (requests->num > UCM_TWIN_REQUESTS_MAX)
		return ucm_error_set(error, -EINVAL, "num %" PRIu32
				     ": up to %u requests", requests->num,
				     UCM_TWIN_REQUESTS_MAX);
	if (!requests->max_blocks || requests->max_blocks > INT32_MAX)
		return ucm_error_set(error, -EINVAL, "max_blocks %" PRIu32
				     ": from 1 to %d", requests->max_blocks,
				     INT32_MAX);
	err = ucm_twin_pointer_check("tables", requests->tables, 4, error);
	if (!err)
		err = ucm_twin_pointer_check("tokens", requests->tokens, 4,
					     error);
	if (!err && requests->table_stride < requests->max_blocks)
		err = ucm_error_set(error, -EINVAL, "table_stride %zu: at "
				    "least %" PRIu32, requests->table_stride,
				    requests->max_blocks);
	return err;
}
