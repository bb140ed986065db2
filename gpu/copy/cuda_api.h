/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_api.h - the CUDA driver, found at run time.
 *
 * The library is linked with nothing of CUDA: where there is no driver it works
 * for the host's memory. The calls are asked of the driver one by one, in the
 * version whose arguments we know. Any thread may use them.
 */
#ifndef UCM_CUDA_API_H
#define UCM_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <ucm/error.h>

/* Name without cu, and the version that is asked for. */
#define UCM_CUDA_CALLS(X)                                                     \
	X(Init, 2000)                                                         \
	X(GetErrorName, 6000)                                                 \
	X(GetErrorString, 6000)                                               \
	X(DeviceGetCount, 2000)                                               \
	X(DeviceGet, 2000)                                                    \
	X(DeviceGetName, 2000)                                                \
	X(DeviceGetPCIBusId, 4010)                                            \
	X(DeviceGetAttribute, 2000)                                           \
	X(DevicePrimaryCtxRetain, 7000)                                       \
	X(DevicePrimaryCtxRelease, 11000)                                     \
	X(CtxPushCurrent, 4000)                                               \
	X(CtxPopCurrent, 4000)                                                \
	X(ModuleLoadData, 2000)                                               \
	X(ModuleUnload, 2000)                                                 \
	X(ModuleGetFunction, 2000)                                            \
	X(MemAlloc, 3020)                                                     \
	X(MemFree, 3020)                                                      \
	X(MemHostAlloc, 2020)                                                 \
	X(MemFreeHost, 2000)                                                  \
	X(MemHostRegister, 6050)                                              \
	X(MemHostUnregister, 4000)                                            \
	X(MemHostGetDevicePointer, 3020)                                      \
	X(MemcpyAsync, 4000)                                                  \
	X(StreamCreate, 2000)                                                 \
	X(StreamDestroy, 4000)                                                \
	X(StreamSynchronize, 2000)                                            \
	X(StreamIsCapturing, 10000)                                           \
	X(StreamWaitEvent, 3020)                                              \
	X(ThreadExchangeStreamCaptureMode, 10010)                             \
	X(EventCreate, 2000)                                                  \
	X(EventDestroy, 4000)                                                 \
	X(EventRecord, 2000)                                                  \
	X(EventQuery, 2000)                                                   \
	X(EventSynchronize, 2000)                                             \
	X(EventElapsedTime, 2000)                                             \
	X(LaunchKernel, 4000)

struct ucm_cuda {
#define UCM_CUDA_FIELD(name, version) PFN_cu##name##_v##version name;
	UCM_CUDA_CALLS(UCM_CUDA_FIELD)
#undef UCM_CUDA_FIELD
	/* From driver 12.8 on, else NULL. */
	PFN_cuMemcpyBatchAsync_v12080 MemcpyBatchAsync;
};

/* The file that is opened, and the folder of the PCI bus's devices; tests set
 * others. */
extern const char *ucm_cuda_library, *ucm_cuda_devices;

/* The NUMA node of a device, or -1: it has none, or is not known. */
int ucm_cuda_node(int device);

/* Open the driver, once for the process, which keeps it. -ENODEV: there is no
 * driver, it is too old, or it has no device. */
int ucm_cuda_get(const struct ucm_cuda **out, struct ucm_error *error);

/*
 * Before calls that need a context: make it this thread's, and let the thread
 * call the driver while another one captures a graph. By default such calls are
 * refused then (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) and spoil the capture;
 * ours have no part in anybody's graph. *mode is for ucm_cuda_leave(), which
 * puts both back.
 */
CUresult ucm_cuda_enter(const struct ucm_cuda *cuda, CUcontext context,
			CUstreamCaptureMode *mode);
void ucm_cuda_leave(const struct ucm_cuda *cuda, CUstreamCaptureMode mode);

/* Not now, because of a capture: the call can be made again later. */
bool ucm_cuda_is_passing(CUresult result);
/* The context is gone for good, and all that ran in it has ended. */
bool ucm_cuda_is_fatal(CUresult result);

/* The result as -errno; what is not known is -EIO. */
int ucm_cuda_errno(CUresult result);

/* "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure" */
void ucm_cuda_text(const struct ucm_cuda *cuda, CUresult result, char *text,
		   size_t len);

/* Both, and in the log: "CUDA: cuMemAlloc: ...". */
int ucm_cuda_failed(const struct ucm_cuda *cuda, CUresult result,
		    const char *what);

#endif
