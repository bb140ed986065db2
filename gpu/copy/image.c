/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - compiled kernels, for whichever device there is.
 */
#include <config.h>

#include "gpu/copy/image.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/error.h"

/* It is the image that does not fit, and not the device that fails. */
static bool is_refused(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_INVALID_IMAGE:
	case CUDA_ERROR_NO_BINARY_FOR_GPU:
	case CUDA_ERROR_INVALID_PTX:
	case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
	case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
	case CUDA_ERROR_JIT_COMPILATION_DISABLED:
		return true;
	default:
		return false;
	}
}

/* "8.0" of a line ".version 8.0" */
static void word_after(const char *ptx, const char *directive, char *out,
		       size_t len)
{
	const char *at = strstr(ptx, directive);

	if (at)
		snprintf(out, len, "%.*s", (int)strcspn(at + strlen(directive),
							",\n"),
			 at + strlen(directive));
}

static int say_refused(const struct ucm_cuda *cuda, CUdevice device,
		       const struct ucm_cuda_image *image, CUresult result,
		       struct ucm_error *error)
{
	char name[64] = "unknown", version[16] = "?", target[16] = "?";
	char text[128];
	int major = 0, minor = 0;

	cuda->DeviceGetName(name, sizeof(name), device);
	cuda->DeviceGetAttribute(
		&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
	cuda->DeviceGetAttribute(
		&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
	word_after(image->ptx, "\n.version ", version, sizeof(version));
	word_after(image->ptx, "\n.target ", target, sizeof(target));
	ucm_cuda_text(cuda, result, text, sizeof(text));
	return ucm_error_set(error, -ENOTSUP,
			     "CUDA device %d (%s, sm_%d%d): no kernels for it; "
			     "this library has %s, and PTX %s for %s and later: "
			     "%s", device, name, major, minor, CUDA_IMAGES,
			     version, target, text);
}

int ucm_cuda_image_load(const struct ucm_cuda *cuda, CUdevice device,
			const struct ucm_cuda_image *image, CUmodule *out,
			struct ucm_error *error)
{
	CUresult result = cuda->ModuleLoadData(out, image->fatbin);
	char text[256];

	if (is_refused(result))
		result = cuda->ModuleLoadData(out, image->ptx);
	if (result == CUDA_SUCCESS)
		return 0;
	if (is_refused(result))
		return say_refused(cuda, device, image, result, error);
	ucm_cuda_text(cuda, result, text, sizeof(text));
	return ucm_error_set(error, ucm_cuda_errno(result),
			     "CUDA device %d: loading the kernels: %s", device,
			     text);
}
