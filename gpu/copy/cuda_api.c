/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_api.c - the CUDA driver, found at run time.
 */
#include <config.h>

#include "gpu/copy/cuda_api.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "common/error.h"
#include "common/log.h"

const char *ucm_cuda_library = "libcuda.so.1";
const char *ucm_cuda_devices = "/sys/bus/pci/devices";

/* Filled once, under the lock; the library stays open until the process ends:
 * the driver has threads, and the engine uses it as well. */
static struct ucm_cuda the_cuda;
static bool is_open;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
	const char *name;
	int version;
	size_t field; /* offset in struct ucm_cuda */
} calls[] = {
#define ROW(name, version)                                                    \
	{ "cu" #name, version, offsetof(struct ucm_cuda, name) },
	UCM_CUDA_CALLS(ROW)
#undef ROW
};

static void *call_of(PFN_cuGetProcAddress_v12000 find, const char *name,
		     int version)
{
	CUdriverProcAddressQueryResult status;
	void *address = NULL;

	if (find(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
		 &status) != CUDA_SUCCESS ||
	    status != CU_GET_PROC_ADDRESS_SUCCESS)
		return NULL;
	return address;
}

static int find_calls(PFN_cuGetProcAddress_v12000 find, struct ucm_cuda *cuda,
		      struct ucm_error *error)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *address = call_of(find, calls[i].name, calls[i].version);

		if (!address)
			return ucm_error_set(
				error, -ENODEV,
				"%s has no %s: the driver does not fit",
				ucm_cuda_library, calls[i].name);
		*(void **)((char *)cuda + calls[i].field) = address;
	}
	*(void **)&cuda->MemcpyBatchAsync =
		call_of(find, "cuMemcpyBatchAsync", 12080);
	return 0;
}

static int start(const struct ucm_cuda *cuda, struct ucm_error *error)
{
	CUresult result = cuda->Init(0);
	char text[256];
	int num = 0;

	if (result == CUDA_SUCCESS)
		result = cuda->DeviceGetCount(&num);
	if (result != CUDA_SUCCESS) {
		ucm_cuda_text(cuda, result, text, sizeof(text));
		return ucm_error_set(error, -ENODEV, "cuInit: %s", text);
	}
	if (!num)
		return ucm_error_set(error, -ENODEV, "there is no CUDA device");
	return 0;
}

static int open_driver(struct ucm_cuda *cuda, struct ucm_error *error)
{
	void *library = dlopen(ucm_cuda_library, RTLD_NOW | RTLD_LOCAL);
	PFN_cuGetProcAddress_v12000 find;
	int err;

	if (!library)
		return ucm_error_set(error, -ENODEV, "no CUDA driver: %s",
				     dlerror());
	*(void **)&find = dlsym(library, "cuGetProcAddress_v2");
	if (!find)
		err = ucm_error_set(error, -ENODEV, "%s is older than CUDA 12",
				    ucm_cuda_library);
	else
		err = find_calls(find, cuda, error);
	if (err) { /* once initialised it is not closed, see above */
		dlclose(library);
		return err;
	}
	return start(cuda, error);
}

int ucm_cuda_get(const struct ucm_cuda **out, struct ucm_error *error)
{
	int err = 0;

	pthread_mutex_lock(&open_lock);
	if (!is_open) {
		err = open_driver(&the_cuda, error);
		is_open = !err;
	}
	pthread_mutex_unlock(&open_lock);
	if (!err)
		*out = &the_cuda;
	return err;
}

/* -1 is also what the kernel writes of a device that is near to all. */
static int read_node(const char *bus_id)
{
	char path[256], text[16];
	FILE *file;
	int node = -1;

	snprintf(path, sizeof(path), "%s/%s/numa_node", ucm_cuda_devices,
		 bus_id);
	file = fopen(path, "re");
	if (!file)
		return -1;
	if (fgets(text, sizeof(text), file) &&
	    sscanf(text, "%d", &node) != 1)
		node = -1;
	fclose(file);
	return node;
}

int ucm_cuda_node(int device)
{
	const struct ucm_cuda *cuda;
	struct ucm_error error;
	char bus_id[32] = "";
	CUdevice handle;

	if (ucm_cuda_get(&cuda, &error) ||
	    cuda->DeviceGet(&handle, device) != CUDA_SUCCESS ||
	    cuda->DeviceGetPCIBusId(bus_id, sizeof(bus_id), handle) !=
		    CUDA_SUCCESS)
		return -1;
	for (char *at = bus_id; *at; at++) /* as the kernel spells it */
		*at = (char)tolower((unsigned char)*at);
	return read_node(bus_id);
}

CUresult ucm_cuda_enter(const struct ucm_cuda *cuda, CUcontext context,
			CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode ours = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult result = cuda->CtxPushCurrent(context);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda->ThreadExchangeStreamCaptureMode(&ours);
	if (result == CUDA_SUCCESS)
		*mode = ours; /* what it was before */
	else
		cuda->CtxPopCurrent(&context);
	return result;
}

void ucm_cuda_leave(const struct ucm_cuda *cuda, CUstreamCaptureMode mode)
{
	CUcontext context;

	cuda->ThreadExchangeStreamCaptureMode(&mode);
	cuda->CtxPopCurrent(&context);
}

bool ucm_cuda_is_passing(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_NOT_READY:
	case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
	case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
	case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
		return true;
	default:
		return false;
	}
}

/* Those of which cuda.h says that the process has to end before CUDA can be
 * used again, and those that say that there is no context. */
bool ucm_cuda_is_fatal(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_INVALID_CONTEXT:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
		return true;
	default:
		return false;
	}
}

int ucm_cuda_errno(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_INVALID_VALUE:
		return -EINVAL;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE:
		return -ENODEV;
	case CUDA_ERROR_NOT_PERMITTED:
		return -EPERM;
	case CUDA_ERROR_NOT_SUPPORTED:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

void ucm_cuda_text(const struct ucm_cuda *cuda, CUresult result, char *text,
		   size_t len)
{
	const char *name = NULL, *words = NULL;

	if (cuda->GetErrorName(result, &name) != CUDA_SUCCESS || !name)
		name = "unknown error";
	if (cuda->GetErrorString(result, &words) != CUDA_SUCCESS || !words)
		words = "the driver has no text for it";
	snprintf(text, len, "%s (%d): %s", name, (int)result, words);
}

int ucm_cuda_failed(const struct ucm_cuda *cuda, CUresult result,
		    const char *what)
{
	char text[256];

	ucm_cuda_text(cuda, result, text, sizeof(text));
	ucm_error("CUDA: %s: %s", what, text);
	return ucm_cuda_errno(result);
}
