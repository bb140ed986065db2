/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.c - kernel or copy engine?
 *
 * A kernel costs the same for runs of any length; the copy engine pays for each
 * piece, and takes no SM from the model. So there is a length from which on the
 * engine is no slower. It is found on scratch memory, with the code that is
 * used afterwards, and remembered for the process.
 */
#include <config.h>

#include "gpu/copy/cuda.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/error.h"
#include "common/log.h"
#include "common/parse.h"

#define SCRATCH_BYTES (UINT64_C(8) << 20)
#define ROUNDS 3
#define SLACK 1.05 /* so much slower may the engine be */
/* If it cannot be measured: what others have found for cards on PCIe. */
#define DEFAULT_RUN (UINT64_C(512) << 10)
#define NEVER UINT64_MAX

static const uint64_t run_sizes[] = { 16384, 65536, 262144, 1048576 };
#define NUM_SIZES (sizeof(run_sizes) / sizeof(run_sizes[0]))

/* What was found, for the whole process; entries are never removed. */
struct found {
	CUdevice device;
	unsigned ctas;
	uint64_t engine_from[2];
	struct found *next;
};
static struct found *all_found;
static pthread_mutex_t found_lock = PTHREAD_MUTEX_INITIALIZER;

struct scratch {
	uint8_t *staging;
	CUdeviceptr pages; /* twice as large: every other run */
	CUevent start, end;
};

static CUresult scratch_init(struct ucm_copy *copy, struct scratch *scratch)
{
	const struct ucm_cuda *cuda = copy->cuda;

	return cuda->MemHostAlloc((void **)&scratch->staging, SCRATCH_BYTES,
				  CU_MEMHOSTALLOC_PORTABLE |
					  CU_MEMHOSTALLOC_DEVICEMAP)
		?: cuda->MemAlloc(&scratch->pages, 2 * SCRATCH_BYTES)
		?: cuda->EventCreate(&scratch->start, CU_EVENT_DEFAULT)
		?: cuda->EventCreate(&scratch->end, CU_EVENT_DEFAULT);
}

static void scratch_fini(struct ucm_copy *copy, struct scratch *scratch)
{
	const struct ucm_cuda *cuda = copy->cuda;

	if (scratch->end)
		cuda->EventDestroy(scratch->end);
	if (scratch->start)
		cuda->EventDestroy(scratch->start);
	if (scratch->pages)
		cuda->MemFree(scratch->pages);
	if (scratch->staging)
		cuda->MemFreeHost(scratch->staging);
}

static CUresult by(struct ucm_copy *copy, const struct ucm_copy_job *job,
		   bool gather, bool engine)
{
	const char *what;

	return engine ? ucm_cuda_by_engine(copy, copy->own, job, 1, gather,
					   &what)
		      : ucm_cuda_by_kernel(copy, copy->own, job, 1, gather, 0,
					   &what);
}

/* Best of some rounds, in milliseconds, after one that does not count. */
static CUresult time_it(struct ucm_copy *copy, const struct scratch *scratch,
			bool gather, bool engine, float *best)
{
	const struct ucm_cuda *cuda = copy->cuda;
	struct ucm_copy_job job = { .end_layer = 1,
				    .staging = scratch->staging };
	CUresult result = CUDA_SUCCESS;
	float took;

	for (int round = 0; round <= ROUNDS && result == CUDA_SUCCESS;
	     round++) {
		result = cuda->EventRecord(scratch->start, copy->own)
			?: by(copy, &job, gather, engine)
			?: cuda->EventRecord(scratch->end, copy->own)
			?: cuda->EventSynchronize(scratch->end)
			?: cuda->EventElapsedTime(&took, scratch->start,
						  scratch->end);
		if (result == CUDA_SUCCESS && (round <= 1 || took < *best))
			*best = took;
	}
	return result;
}

/* One run length: is the engine fast enough? faster[gather] */
static CUresult try_size(struct ucm_copy *copy, const struct scratch *scratch,
			 uint64_t run, bool faster[2])
{
	struct ucm_region region = {
		.base = scratch->pages,
		.run_bytes = run,
		.n0 = (uint32_t)(SCRATCH_BYTES / run),
		.n1 = 1,
		.s0 = (int64_t)(2 * run),
	};
	uint32_t layer_first[] = { 0, 1 };
	struct ucm_layout layout = {
		.geometry = { .num_layers = 1, .k_bytes = SCRATCH_BYTES },
		.num_pages = 1,
		.regions = &region,
		.num_regions = 1,
		.layer_first = layer_first,
		.runs = region.n0,
	};
	struct ucm_cuda_group group;
	CUresult result = CUDA_SUCCESS;
	float kernel = 0, engine = 0;

	if (ucm_cuda_group_init(copy, &layout, &group))
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->groups = &group;
	for (int gather = 0; gather < 2 && result == CUDA_SUCCESS; gather++) {
		result = time_it(copy, scratch, gather, false, &kernel)
			?: time_it(copy, scratch, gather, true, &engine);
		faster[gather] = engine <= kernel * (float)SLACK;
		ucm_log(UCM_LOG_DEBUG,
			"CUDA: %s, runs of %" PRIu64 " bytes: kernel %.3f ms,"
			  " copy engine %.3f ms",
			  gather ? "gather" : "scatter", run, (double)kernel,
			  (double)engine);
	}
	if (result != CUDA_SUCCESS) /* something may still run */
		copy->cuda->StreamSynchronize(copy->own);
	copy->groups = NULL;
	ucm_cuda_group_fini(copy, &group);
	return result;
}

/* The shortest run from which on all lengths were fast enough. */
static CUresult try_sizes(struct ucm_copy *copy, struct scratch *scratch,
			  uint64_t engine_from[2])
{
	bool faster[2] = { true, true };
	CUresult result = CUDA_SUCCESS;

	engine_from[0] = engine_from[1] = NEVER;
	for (size_t i = NUM_SIZES; i-- && result == CUDA_SUCCESS;) {
		bool here[2] = { false, false };

		result = try_size(copy, scratch, run_sizes[i], here);
		for (int gather = 0; gather < 2; gather++) {
			faster[gather] = faster[gather] && here[gather];
			if (faster[gather])
				engine_from[gather] = run_sizes[i];
		}
	}
	return result;
}

static void measure(struct ucm_copy *copy, uint64_t engine_from[2])
{
	struct ucm_cuda_range range = { .len = SCRATCH_BYTES };
	struct scratch scratch = { 0 };
	CUresult result = scratch_init(copy, &scratch);

	if (result == CUDA_SUCCESS)
		result = copy->cuda->MemHostGetDevicePointer(
			&range.device, scratch.staging, 0);
	if (result == CUDA_SUCCESS) {
		range.memory = scratch.staging;
		copy->ranges = &range;
		copy->num_ranges = 1;
		result = try_sizes(copy, &scratch, engine_from);
		copy->ranges = NULL;
		copy->num_ranges = 0;
	}
	if (result != CUDA_SUCCESS) {
		ucm_cuda_failed(copy->cuda, result,
				"measuring; a default is taken instead");
		engine_from[0] = engine_from[1] = DEFAULT_RUN;
	}
	scratch_fini(copy, &scratch);
}

static void tell(const struct ucm_copy *copy, const uint64_t engine_from[2])
{
	char name[64] = "", words[2][32];

	copy->cuda->DeviceGetName(name, sizeof(name), copy->device);
	for (int gather = 0; gather < 2; gather++) {
		if (engine_from[gather] == NEVER)
			snprintf(words[gather], sizeof(words[0]), "never");
		else
			snprintf(words[gather], sizeof(words[0]),
				 "from %" PRIu64 " bytes",
				 engine_from[gather]);
	}
	ucm_info("CUDA device %d (%s): copy engine for runs to pages %s, "
		 "from pages %s", copy->device, name, words[0], words[1]);
}

/* With the lock held: whoever comes second waits for the result. */
static int measure_once(struct ucm_copy *copy, struct ucm_error *error)
{
	struct found *found;

	for (found = all_found; found; found = found->next) {
		if (found->device == copy->device && found->ctas == copy->ctas)
			break;
	}
	if (!found) {
		found = calloc(1, sizeof(*found));
		if (!found)
			return ucm_error_set(error, -ENOMEM, "out of memory");
		found->device = copy->device;
		found->ctas = copy->ctas;
		measure(copy, found->engine_from);
		tell(copy, found->engine_from);
		found->next = all_found;
		all_found = found;
	}
	for (int gather = 0; gather < 2; gather++)
		copy->engine_from[gather] = found->engine_from[gather];
	return 0;
}

int ucm_cuda_measure(struct ucm_copy *copy, struct ucm_error *error)
{
	const char *text = getenv("UCM_CUDA_RUN_BYTES");
	uint64_t bytes;
	int err;

	if (text) {
		err = ucm_parse_bytes(text, &bytes);
		if (err)
			return ucm_error_set(
				error, err,
				"UCM_CUDA_RUN_BYTES=%s: no number of "
				"bytes",
				text);
		copy->engine_from[0] = copy->engine_from[1] = bytes;
	}
	if (!copy->module)
		copy->engine_from[0] = copy->engine_from[1] = 0;
	if (text || !copy->module)
		return 0;
	pthread_mutex_lock(&found_lock);
	err = measure_once(copy, error);
	pthread_mutex_unlock(&found_lock);
	return err;
}
