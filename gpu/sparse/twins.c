/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twins.c - the kernels of twins.cu, on a device.
 *
 * UNTESTED: on a device. There was none where this was written: the kernels'
 * arithmetic is run on the CPU, thread by thread, by a driver made for tests.
 * tests/gpu is for the first machine that has one.
 */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "common/error.h"
#include "gpu/copy/cuda_api.h"
#include "gpu/copy/image.h"

extern const char ucm_twins_fatbin[] __attribute__((visibility("hidden")));
extern const char ucm_twins_ptx[] __attribute__((visibility("hidden")));

struct ucm_sparse_cuda {
	const struct ucm_cuda *api;
	CUdevice device;
	CUcontext context; /* the primary one */
	CUmodule module;
	CUfunction kernels[UCM_TWIN_KERNELS];
};

static const char *const names[] = {
	[UCM_TWIN_QUERY] = "ucm_twin_query",
	[UCM_TWIN_QUERY_STEPS] = "ucm_twin_query_steps",
	[UCM_TWIN_SCORE_FLOAT32] = "ucm_twin_score_float32",
	[UCM_TWIN_SCORE_FLOAT16] = "ucm_twin_score_float16",
	[UCM_TWIN_SCORE_BFLOAT16] = "ucm_twin_score_bfloat16",
	[UCM_TWIN_SCORE_INT8] = "ucm_twin_score_int8",
	[UCM_TWIN_SCORE_STEPS] = "ucm_twin_score_steps",
	[UCM_TWIN_BUILD] = "ucm_twin_build",
	[UCM_TWIN_ENCODE] = "ucm_twin_encode",
	[UCM_TWIN_COUNT_BITS] = "ucm_twin_count",
	[UCM_TWIN_CODE_QUERY] = "ucm_twin_code_query",
	[UCM_TWIN_SCORE_CODES] = "ucm_twin_code_least",
	[UCM_TWIN_SCORE_CODES + 1] = "ucm_twin_code_best",
	[UCM_TWIN_SCORE_CODES + 2] = "ucm_twin_code_sum",
	[UCM_TWIN_SCORE_CODES + 3] = "ucm_twin_code_counts",
	[UCM_TWIN_SCORE_CODES + 4] = "ucm_twin_code_normed_sum",
	[UCM_TWIN_SCORE_CODES + 5] = "ucm_twin_code_tokens",
	[UCM_TWIN_STAR_BUILD] = "ucm_twin_star_build",
	[UCM_TWIN_STAR_QUERY] = "ucm_twin_star_query",
	[UCM_TWIN_STAR_FLOAT32] = "ucm_twin_star_float32",
	[UCM_TWIN_STAR_FLOAT16] = "ucm_twin_star_float16",
	[UCM_TWIN_STAR_BFLOAT16] = "ucm_twin_star_bfloat16",
	[UCM_TWIN_STAR_INT8] = "ucm_twin_star_int8",
	[UCM_TWIN_VOTE_ROWS] = "ucm_twin_vote_rows",
	[UCM_TWIN_VOTES] = "ucm_twin_votes",
	[UCM_TWIN_SELECT] = "ucm_twin_select",
	[UCM_TWIN_SHIFT] = "ucm_twin_shift",
	[UCM_TWIN_DEVIATION] = "ucm_twin_deviation",
	[UCM_TWIN_ATTEND] = "ucm_twin_attend_1",
	[UCM_TWIN_ATTEND + 1] = "ucm_twin_attend_2",
	[UCM_TWIN_ATTEND + 2] = "ucm_twin_attend_4",
	[UCM_TWIN_ATTEND + 3] = "ucm_twin_attend_8",
	[UCM_TWIN_ATTEND_JOIN] = "ucm_twin_attend_joined",
};

static int twins_failed(const struct ucm_sparse_cuda *cuda, CUresult result,
			const char *what, struct ucm_error *error)
{
	char text[256];

	ucm_cuda_text(cuda->api, result, text, sizeof(text));
	return ucm_error_set(error, ucm_cuda_errno(result),
			     "CUDA device %d: %s: %s", cuda->device, what,
			     text);
}

/* With the context pushed. */
static int twins_load(struct ucm_sparse_cuda *cuda, struct ucm_error *error)
{
	static const struct ucm_cuda_image image = { ucm_twins_fatbin,
						     ucm_twins_ptx };
	CUresult result = CUDA_SUCCESS;
	int err = ucm_cuda_image_load(cuda->api, cuda->device, &image,
				      &cuda->module, error);

	if (err)
		return err;
	for (int i = 0; i < UCM_TWIN_KERNELS && result == CUDA_SUCCESS; i++)
		result = cuda->api->ModuleGetFunction(
			&cuda->kernels[i], cuda->module, names[i]);
	if (result == CUDA_SUCCESS)
		return 0;
	cuda->api->ModuleUnload(cuda->module);
	return twins_failed(cuda, result, "finding the kernels", error);
}

static int twins_open(struct ucm_sparse_cuda *cuda, int device,
		      struct ucm_error *error)
{
	const struct ucm_cuda *api = cuda->api;
	const char *what = "cuDeviceGet";
	CUstreamCaptureMode mode;
	CUresult result;
	int err;

	cuda->device = device; /* for the text of an error */
	result = api->DeviceGet(&cuda->device, device);
	if (result != CUDA_SUCCESS)
		return twins_failed(cuda, result, what, error);
	what = "cuDevicePrimaryCtxRetain";
	result = api->DevicePrimaryCtxRetain(&cuda->context, cuda->device);
	if (result != CUDA_SUCCESS)
		return twins_failed(cuda, result, what, error);
	result = ucm_cuda_enter(api, cuda->context, &mode);
	if (result == CUDA_SUCCESS) {
		err = twins_load(cuda, error);
		ucm_cuda_leave(api, mode);
	} else {
		err = twins_failed(cuda, result, "cuCtxPushCurrent", error);
	}
	if (err)
		api->DevicePrimaryCtxRelease(cuda->device);
	return err;
}

int ucm_sparse_cuda_open(int device, struct ucm_sparse_cuda **out,
			 struct ucm_error *error)
{
	struct ucm_sparse_cuda *cuda;
	int err;

	if (!out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	cuda = calloc(1, sizeof(*cuda));
	if (!cuda)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	err = ucm_cuda_get(&cuda->api, error)
		?: twins_open(cuda, device, error);
	if (err)
		free(cuda);
	else
		*out = cuda;
	return err;
}

void ucm_sparse_cuda_close(struct ucm_sparse_cuda *cuda)
{
	CUstreamCaptureMode mode;

	if (!cuda)
		return;
	if (ucm_cuda_enter(cuda->api, cuda->context, &mode) == CUDA_SUCCESS) {
		cuda->api->ModuleUnload(cuda->module);
		ucm_cuda_leave(cuda->api, mode);
	}
	cuda->api->DevicePrimaryCtxRelease(cuda->device);
	free(cuda);
}

int ucm_twin_launch(const struct ucm_sparse_cuda *cuda,
		    const struct ucm_twin_grid *grid, void *args,
		    const char *what, void *stream, struct ucm_error *error)
{
	void *params[] = { args };
	CUcontext popped;
	CUresult result;

	if (grid->x > INT_MAX)
		return ucm_error_set(error, -EINVAL, "%s: too many for a grid",
				     what);
	result = cuda->api->CtxPushCurrent(cuda->context);
	if (result != CUDA_SUCCESS)
		return twins_failed(cuda, result, "cuCtxPushCurrent", error);
	result = cuda->api->LaunchKernel(cuda->kernels[grid->kernel],
					 (unsigned)grid->x, grid->y, 1,
					 grid->threads, 1, 1, grid->shared,
					 stream, params, NULL);
	cuda->api->CtxPopCurrent(&popped);
	if (result == CUDA_SUCCESS)
		return 0;
	return twins_failed(cuda, result, names[grid->kernel], error);
}
