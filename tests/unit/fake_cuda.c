/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.c - a driver for tests, see fake_cuda.h. */
#include <config.h>

#include "tests/unit/fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/copy/cuda_api.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_RANGES 256
#define MAX_OPS (1 << 19)
#define CALL(name, version, ...) static CUresult name##_##version(__VA_ARGS__)

extern EXPORT struct fake_cuda fake_cuda;
struct fake_cuda fake_cuda = {
	.version = 13000,
	.num_devices = 1,
	.sm = 90,
};

/* Memory that the device can reach, by its address without the mark. */
static struct {
	uint64_t start, len;
	bool registered;
} ranges[MAX_RANGES];

static void mistake(const char *what, uint64_t address)
{
	fake_cuda.mistakes++;
	fprintf(stderr, "fake CUDA: %s: 0x%llx\n", what,
		(unsigned long long)address);
}

/* The device's view of memory: anything else would be a fault. */
static void *reach(uint64_t address, uint64_t len)
{
	uint64_t plain = address & ~FAKE_MARK;

	for (int i = 0; i < MAX_RANGES && (address & FAKE_MARK); i++) {
		uint64_t at = plain - ranges[i].start;

		if (ranges[i].start && at <= ranges[i].len &&
		    ranges[i].len - at >= len)
			return (void *)(uintptr_t)plain;
	}
	mistake("no memory of the device", address);
	abort();
}

#define UCM_AT(type, address) ((type *)reach(address, sizeof(type)))
#include "gpu/copy/scatter.h"
#include "tests/unit/fake_twins.h"

UCM_INLINE struct ucm_vector ucm_scatter_load(uint64_t from)
{
	struct ucm_vector vector;

	if (from % sizeof(vector))
		mistake("load is not aligned", from);
	memcpy(&vector, reach(from, sizeof(vector)), sizeof(vector));
	return vector;
}

UCM_INLINE void ucm_scatter_store(uint64_t to, struct ucm_vector vector)
{
	if (to % sizeof(vector))
		mistake("store is not aligned", to);
	memcpy(reach(to, sizeof(vector)), &vector, sizeof(vector));
}

UCM_INLINE void ucm_scatter_piece(uint64_t to, uint64_t from, uint32_t width)
{
	if ((to | from) % width)
		mistake("piece is not aligned", to | from);
	memcpy(reach(to, width), reach(from, width), width);
}

/* ---- faults ---- */

static CUresult faulty(const char *name)
{
	if (!fake_cuda.fail || strcmp(fake_cuda.fail, name) != 0)
		return CUDA_SUCCESS;
	if (fake_cuda.fail_after) {
		fake_cuda.fail_after--;
		return CUDA_SUCCESS;
	}
	return (CUresult)fake_cuda.fail_with;
}

static _Thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Of calls that a capture does not see, and whose effect it would lose. */
static CUresult unsafe(void)
{
	if (!fake_cuda.capturing || mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	fake_cuda.spoiled++;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

#define SAFE()                                                                \
	do {                                                                  \
		CUresult refused = unsafe();                                  \
                                                                              \
		if (refused != CUDA_SUCCESS)                                  \
			return refused;                                       \
	} while (0)

/* Whether anything has ended is not said. */
#define REFUSED()                                                             \
	do {                                                                  \
		int refusal = fake_cuda.refusal;                              \
                                                                              \
		fake_cuda.refused += refusal != 0;                            \
		if (refusal)                                                  \
			return (CUresult)refusal;                             \
	} while (0)

/* Of the driver: calls of several threads come one after the other. */
static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;

static int driver_lock(void)
{
	return pthread_mutex_lock(&driver);
}

static void driver_unlock(const int *entered)
{
	(void)entered;
	pthread_mutex_unlock(&driver);
}

/* First line of every call; inside: it wants a context. */
#define ENTER(name, inside)                                                   \
	__attribute__((cleanup(driver_unlock), unused)) const int entered =  \
		driver_lock();                                                \
	do {                                                                  \
		CUresult fault = faulty(name);                                \
                                                                              \
		if (fault != CUDA_SUCCESS)                                    \
			return fault;                                         \
		if ((inside) && fake_cuda.pushed < 1)                        \
			return CUDA_ERROR_INVALID_CONTEXT;                    \
	} while (0)

/* ---- memory ---- */

static CUresult add_range(void *start, uint64_t len, bool registered)
{
	for (int i = 0; i < MAX_RANGES; i++) {
		if (ranges[i].start)
			continue;
		ranges[i].start = (uintptr_t)start;
		ranges[i].len = len;
		ranges[i].registered = registered;
		fake_cuda.live++;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static int find_range(uint64_t start)
{
	for (int i = 0; i < MAX_RANGES; i++) {
		if (start && ranges[i].start == start)
			return i;
	}
	return -1;
}

static CUresult drop_range(uint64_t start)
{
	int i = find_range(start);

	if (i < 0) {
		mistake("free of what is not there", start);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (fake_cuda.queued)
		mistake("free while copies are under way", start);
	ranges[i].start = 0;
	fake_cuda.live--;
	return CUDA_SUCCESS;
}

CALL(cuMemAlloc, 3020, CUdeviceptr *out, size_t len)
{
	void *memory;

	ENTER("cuMemAlloc", true);
	SAFE();
	memory = aligned_alloc(256, (len + 255) & ~(size_t)255);
	memset(memory, 0xdd, len);
	*out = (uintptr_t)memory | FAKE_MARK;
	return add_range(memory, len, false);
}

CALL(cuMemFree, 3020, CUdeviceptr address)
{
	CUresult result;

	ENTER("cuMemFree", true);
	SAFE();
	result = drop_range(address & ~FAKE_MARK);
	if (result == CUDA_SUCCESS)
		free((void *)(uintptr_t)(address & ~FAKE_MARK));
	return result;
}

CALL(cuMemHostAlloc, 2020, void **out, size_t len, unsigned flags)
{
	ENTER("cuMemHostAlloc", true);
	SAFE();
	(void)flags;
	*out = aligned_alloc(4096, len);
	return add_range(*out, len, false);
}

CALL(cuMemFreeHost, 2000, void *memory)
{
	CUresult result;

	ENTER("cuMemFreeHost", true);
	SAFE();
	result = drop_range((uintptr_t)memory);
	if (result == CUDA_SUCCESS)
		free(memory);
	return result;
}

CALL(cuMemHostRegister, 6050, void *memory, size_t len, unsigned flags)
{
	ENTER("cuMemHostRegister", true);
	SAFE();
	if (!(flags & CU_MEMHOSTREGISTER_DEVICEMAP))
		mistake("memory is not mapped", (uintptr_t)memory);
	if (find_range((uintptr_t)memory) >= 0)
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	return add_range(memory, len, true);
}

CALL(cuMemHostUnregister, 4000, void *memory)
{
	ENTER("cuMemHostUnregister", true);
	SAFE();
	return drop_range((uintptr_t)memory);
}

CALL(cuMemHostGetDevicePointer, 3020, CUdeviceptr *out, void *memory,
     unsigned flags)
{
	ENTER("cuMemHostGetDevicePointer", true);
	if (find_range((uintptr_t)memory) < 0 || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (uintptr_t)memory | FAKE_MARK;
	return CUDA_SUCCESS;
}

/* ---- what is queued: one line for all streams ---- */

struct event {
	double at_us;
	uint64_t number; /* of its record among all operations; 0: none */
};

static struct op {
	enum { COPY, LAUNCH, TWIN, RECORD } kind;
	uint64_t to, from, len;
	struct ucm_scatter_args args;
	uint32_t threads;
	bool gather;
	struct event *event;
	const struct fake_twin *twin;
	struct fake_grid grid;
	void *twin_args; /* a copy */
} ops[MAX_OPS];
static uint64_t next_op = 1, next_done = 1;
static double now_us;

static struct op *queue(CUstream stream)
{
	if (next_op - next_done == MAX_OPS) {
		mistake("too much is queued", next_op);
		abort();
	}
	if (stream == (CUstream)FAKE_STREAM)
		fake_cuda.foreign++;
	if (!stream || stream == CU_STREAM_LEGACY)
		fake_cuda.legacy++;
	if (fake_cuda.captured && stream == fake_cuda.captured) {
		static struct op nowhere;

		fake_cuda.spoiled++;
		return &nowhere;
	}
	fake_cuda.queued++;
	return &ops[next_op++ % MAX_OPS];
}

static void run_launch(const struct op *op)
{
	for (uint32_t thread = 0; thread < op->threads; thread++)
		ucm_scatter_thread(&op->args, thread, op->threads, op->gather);
	now_us += 5 + (double)op->args.num_items * UCM_ITEM_UNITS *
			      UCM_UNIT_BYTES / 50e3;
}

static void run_op(const struct op *op)
{
	switch (op->kind) {
	case COPY:
		memcpy(op->to & FAKE_MARK ? reach(op->to, op->len)
					  : (void *)(uintptr_t)op->to,
		       op->from & FAKE_MARK ? reach(op->from, op->len)
					    : (void *)(uintptr_t)op->from,
		       op->len);
		now_us += 1 + (double)op->len / 55e3;
		break;
	case LAUNCH:
		run_launch(op);
		break;
	case TWIN:
		op->twin->run(&op->grid, op->twin_args);
		free(op->twin_args);
		now_us += 5;
		break;
	case RECORD:
		if (op->event)
			op->event->at_us = now_us;
	}
}

static void run_until(uint64_t end)
{
	while (next_done < end) {
		run_op(&ops[next_done % MAX_OPS]);
		next_done++;
		fake_cuda.queued--;
	}
}

CALL(cuMemcpyAsync, 4000, CUdeviceptr to, CUdeviceptr from, size_t len,
     CUstream stream)
{
	ENTER("cuMemcpyAsync", true);
	*queue(stream) = (struct op){ .kind = COPY, .to = to, .from = from,
				      .len = len };
	fake_cuda.copies++;
	return CUDA_SUCCESS;
}

CALL(cuMemcpyBatchAsync, 12080, CUdeviceptr *to, CUdeviceptr *from, size_t *len,
     size_t num, CUmemcpyAttributes *attributes, size_t *indices,
     size_t num_attributes, size_t *failed, CUstream stream)
{
	ENTER("cuMemcpyBatchAsync", true);
	if (stream == CU_STREAM_LEGACY || !num || num_attributes != 1 ||
	    indices[0] ||
	    attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) {
		*failed = SIZE_MAX;
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < num; i++)
		*queue(stream) = (struct op){ .kind = COPY, .to = to[i],
					      .from = from[i], .len = len[i] };
	fake_cuda.batches++;
	return CUDA_SUCCESS;
}

static int kernels[2];

static CUresult launch_twin(const struct fake_twin *twin,
			    const struct fake_grid *grid, const void *args,
			    CUstream stream)
{
	struct op op = { .kind = TWIN, .twin = twin, .grid = *grid };

	op.twin_args = malloc(twin->args_bytes);
	memcpy(op.twin_args, args, twin->args_bytes);
	*queue(stream) = op;
	fake_cuda.launches++;
	return CUDA_SUCCESS;
}

/* A handle is the kernel's address. */
static const struct fake_twin *twin_of(CUfunction kernel)
{
	for (size_t i = 0; i < sizeof(fake_twins) / sizeof(*fake_twins); i++) {
		if ((const void *)kernel == &fake_twins[i])
			return &fake_twins[i];
	}
	return NULL;
}

CALL(cuLaunchKernel, 4000, CUfunction kernel, unsigned x, unsigned y,
     unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
     void **params, void **extra)
{
	struct op op = { .kind = LAUNCH, .threads = x * bx };
	const struct fake_twin *twin = twin_of(kernel);

	ENTER("cuLaunchKernel", true);
	if (!y || y > (twin ? 65535 : 1) || z != 1 || by != 1 || bz != 1 ||
	    shared > (twin ? 44 << 10 : 0) || extra || bx > 1024 || !x)
		return CUDA_ERROR_INVALID_VALUE;
	if (twin)
		return launch_twin(twin, &(struct fake_grid){ x, y, bx, shared },
				   params[0], stream);
	memcpy(&op.args, params[0], sizeof(op.args));
	op.gather = (int *)kernel == &kernels[1];
	*queue(stream) = op;
	fake_cuda.launches++;
	fake_cuda.ctas = x;
	return CUDA_SUCCESS;
}

/* ---- streams and events ---- */

CALL(cuStreamCreate, 2000, CUstream *out, unsigned flags)
{
	static int stream;

	ENTER("cuStreamCreate", true);
	if (!(flags & CU_STREAM_NON_BLOCKING))
		mistake("the stream waits for the default one", flags);
	*out = (CUstream)(void *)&stream;
	fake_cuda.live++;
	return CUDA_SUCCESS;
}

CALL(cuStreamDestroy, 4000, CUstream stream)
{
	ENTER("cuStreamDestroy", true);
	(void)stream;
	fake_cuda.live--;
	return CUDA_SUCCESS;
}

CALL(cuStreamSynchronize, 2000, CUstream stream)
{
	ENTER("cuStreamSynchronize", true);
	SAFE();
	REFUSED();
	(void)stream;
	run_until(next_op);
	return CUDA_SUCCESS;
}

CALL(cuStreamIsCapturing, 10000, CUstream stream, CUstreamCaptureStatus *out)
{
	ENTER("cuStreamIsCapturing", true);
	if (fake_cuda.captured && stream == CU_STREAM_LEGACY)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	*out = fake_cuda.captured && stream == fake_cuda.captured
		       ? CU_STREAM_CAPTURE_STATUS_ACTIVE
		       : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

CALL(cuThreadExchangeStreamCaptureMode, 10010, CUstreamCaptureMode *inout)
{
	CUstreamCaptureMode before = mode;

	ENTER("cuThreadExchangeStreamCaptureMode", false);
	mode = *inout;
	*inout = before;
	return CUDA_SUCCESS;
}

CALL(cuEventCreate, 2000, CUevent *out, unsigned flags)
{
	struct event *event;

	ENTER("cuEventCreate", true);
	(void)flags;
	event = calloc(1, sizeof(*event));
	*out = (CUevent)(void *)event;
	fake_cuda.live++;
	return CUDA_SUCCESS;
}

CALL(cuEventDestroy, 4000, CUevent event)
{
	ENTER("cuEventDestroy", true);
	for (uint64_t i = next_done; i < next_op; i++) { /* it may go before */
		if (ops[i % MAX_OPS].kind == RECORD &&
		    ops[i % MAX_OPS].event == (void *)event)
			ops[i % MAX_OPS].event = NULL;
	}
	free(event);
	fake_cuda.live--;
	return CUDA_SUCCESS;
}

CALL(cuEventRecord, 2000, CUevent handle, CUstream stream)
{
	struct event *event = (void *)handle;

	ENTER("cuEventRecord", true);
	event->number = next_op;
	*queue(stream) = (struct op){ .kind = RECORD, .event = event };
	return CUDA_SUCCESS;
}

/* All streams are one line: what comes later waits anyway. */
CALL(cuStreamWaitEvent, 3020, CUstream stream, CUevent handle, unsigned flags)
{
	const struct event *event = (void *)handle;

	ENTER("cuStreamWaitEvent", true);
	if (flags || !event->number)
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_cuda.captured && stream == fake_cuda.captured)
		fake_cuda.spoiled++;
	fake_cuda.waits++;
	return CUDA_SUCCESS;
}

CALL(cuEventQuery, 2000, CUevent handle)
{
	struct event *event = (void *)handle;

	ENTER("cuEventQuery", true);
	SAFE();
	REFUSED();
	if (event->number >= next_done && fake_cuda.hold) {
		if (!fake_cuda.release)
			return CUDA_ERROR_NOT_READY;
		fake_cuda.release--;
	}
	run_until(event->number + 1);
	return CUDA_SUCCESS;
}

CALL(cuEventSynchronize, 2000, CUevent handle)
{
	struct event *event = (void *)handle;

	ENTER("cuEventSynchronize", true);
	SAFE();
	REFUSED();
	run_until(event->number + 1);
	return CUDA_SUCCESS;
}

CALL(cuEventElapsedTime, 2000, float *ms, CUevent start, CUevent end)
{
	ENTER("cuEventElapsedTime", true);
	*ms = (float)((((struct event *)(void *)end)->at_us -
		       ((struct event *)(void *)start)->at_us) /
		      1000);
	return CUDA_SUCCESS;
}

/* ---- devices, contexts, modules ---- */

static int context;

CALL(cuInit, 2000, unsigned flags)
{
	ENTER("cuInit", false);
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CALL(cuDeviceGetCount, 2000, int *out)
{
	ENTER("cuDeviceGetCount", false);
	*out = fake_cuda.num_devices;
	return CUDA_SUCCESS;
}

CALL(cuDeviceGet, 2000, CUdevice *out, int number)
{
	ENTER("cuDeviceGet", false);
	if (number < 0 || number >= fake_cuda.num_devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*out = number;
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetName, 2000, char *name, int len, CUdevice device)
{
	snprintf(name, (size_t)len, "fake device %d", device);
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetPCIBusId, 4010, char *out, int len, CUdevice device)
{
	ENTER("cuDeviceGetPCIBusId", false);
	snprintf(out, (size_t)len, "0000:3B:0%d.0", device);
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetAttribute, 2000, int *out, CUdevice_attribute attribute,
     CUdevice device)
{
	(void)device;
	if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
		*out = fake_cuda.sm / 10;
	else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
		*out = fake_cuda.sm % 10;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CALL(cuDevicePrimaryCtxRetain, 7000, CUcontext *out, CUdevice device)
{
	ENTER("cuDevicePrimaryCtxRetain", false);
	(void)device;
	*out = (CUcontext)(void *)&context;
	fake_cuda.live++;
	return CUDA_SUCCESS;
}

CALL(cuDevicePrimaryCtxRelease, 11000, CUdevice device)
{
	(void)device;
	fake_cuda.live--;
	return CUDA_SUCCESS;
}

CALL(cuCtxPushCurrent, 4000, CUcontext which)
{
	ENTER("cuCtxPushCurrent", false);
	if ((void *)which != &context)
		return CUDA_ERROR_INVALID_CONTEXT;
	fake_cuda.pushed++;
	return CUDA_SUCCESS;
}

CALL(cuCtxPopCurrent, 4000, CUcontext *out)
{
	ENTER("cuCtxPopCurrent", true);
	*out = (CUcontext)(void *)&context;
	fake_cuda.pushed--;
	return CUDA_SUCCESS;
}

/* What fatbinary writes: its magic number. Or PTX, a string. */
static CUresult check_image(const void *image)
{
	if (!memcmp(image, "\x50\xed\x55\xba", 4))
		return (CUresult)fake_cuda.no_binary;
	if (!strstr(image, "\n.version ") || !strstr(image, "\n.target "))
		return CUDA_ERROR_INVALID_IMAGE;
	fake_cuda.from_ptx += !fake_cuda.no_ptx;
	return (CUresult)fake_cuda.no_ptx;
}

CALL(cuModuleLoadData, 2000, CUmodule *out, const void *image)
{
	static int module;

	ENTER("cuModuleLoadData", true);
	SAFE();
	if (check_image(image) != CUDA_SUCCESS)
		return check_image(image);
	*out = (CUmodule)(void *)&module;
	fake_cuda.live++;
	return CUDA_SUCCESS;
}

CALL(cuModuleUnload, 2000, CUmodule module)
{
	ENTER("cuModuleUnload", true);
	SAFE();
	(void)module;
	fake_cuda.live--;
	return CUDA_SUCCESS;
}

CALL(cuModuleGetFunction, 2000, CUfunction *out, CUmodule module,
     const char *name)
{
	ENTER("cuModuleGetFunction", true);
	(void)module;
	for (size_t i = 0; i < sizeof(fake_twins) / sizeof(*fake_twins); i++) {
		if (!strcmp(name, fake_twins[i].name)) {
			*out = (CUfunction)(uintptr_t)&fake_twins[i];
			return CUDA_SUCCESS;
		}
	}
	if (strcmp(name, "ucm_scatter") != 0 && strcmp(name, "ucm_gather") != 0)
		return CUDA_ERROR_NOT_FOUND;
	*out = (CUfunction)(void *)&kernels[!strcmp(name, "ucm_gather")];
	return CUDA_SUCCESS;
}

CALL(cuGetErrorName, 6000, CUresult error, const char **out)
{
	*out = error == CUDA_ERROR_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
						 : "CUDA_ERROR_OTHER";
	return CUDA_SUCCESS;
}

CALL(cuGetErrorString, 6000, CUresult error, const char **out)
{
	*out = error == CUDA_ERROR_LAUNCH_FAILED ? "unspecified launch failure"
						 : "some other error";
	return CUDA_SUCCESS;
}

/* ---- finding all that ---- */

/* The type is that of cudaTypedefs.h, or this does not compile. */
#define ROW(name, version)                                                    \
	{ "cu" #name, version,                                                \
	  1 ? cu##name##_##version : (PFN_cu##name##_v##version)NULL },
static const struct {
	const char *name;
	int version;
	void *address;
} calls[] = { UCM_CUDA_CALLS(ROW) ROW(MemcpyBatchAsync, 12080) };

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version,
				    cuuint64_t flags,
				    CUdriverProcAddressQueryResult *status);

CUresult cuGetProcAddress_v2(const char *name, void **out, int version,
			     cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	(void)flags;
	*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		if (strcmp(calls[i].name, name) != 0 ||
		    calls[i].version > fake_cuda.version ||
		    (fake_cuda.missing && !strcmp(name, fake_cuda.missing)))
			continue;
		if (calls[i].version != version)
			mistake("another version is asked for",
				(uint64_t)version);
		*out = calls[i].address;
		*status = CU_GET_PROC_ADDRESS_SUCCESS;
	}
	return CUDA_SUCCESS;
}
