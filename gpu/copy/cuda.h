/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h - the CUDA copy back end, as its own files see it.
 *
 *	cuda.c   the calls of copy.h: device, groups, staging
 *	batch.c  jobs to launches, launches to events, events to jobs
 *
 * Everything belongs to one thread. Jobs wait, until a batch and room in the
 * arena are free; then they are in a batch, until its event has come; then
 * they are finished, until poll hands them out. Calls into the driver are made
 * between ucm_cuda_enter() and ucm_cuda_leave(); whoever is called from outside
 * calls these.
 */
#ifndef UCM_COPY_CUDA_H
#define UCM_COPY_CUDA_H

#include "gpu/copy/copy.h"
#include "gpu/copy/cuda_api.h"
#include "gpu/copy/scatter_table.h"

#define UCM_BATCHES 64
#define UCM_ARENA_BYTES (UINT64_C(2) << 20)
#define UCM_ENGINE_PIECES 1024

struct ucm_cuda_group {
	const struct ucm_layout *layout;
	struct ucm_scatter_region *table; /* ours, and its copy: */
	CUdeviceptr device_table;
	bool engine; /* by the copy engine, not by a kernel */
};

struct ucm_cuda_range {
	uint8_t *memory;
	size_t len;
	CUdeviceptr device;
	bool registered; /* by us, who undo it */
};

struct ucm_cuda_list {
	struct ucm_copy_job *first, *last;
};

/* How far a batch is; see batch.c. */
enum ucm_cuda_step {
	UCM_CUDA_TO_QUEUE,  /* the driver has not taken all of it */
	UCM_CUDA_TO_RECORD, /* nor its event */
	UCM_CUDA_RECORDED,  /* the event is asked */
	UCM_CUDA_TO_SYNC,   /* it has failed: the stream is waited for */
};

/* What one event reports. In the order of their start, which is that of the
 * stream, and so of their ends. Only the newest can be before RECORDED. */
struct ucm_cuda_batch {
	CUevent event;
	struct ucm_copy_job *jobs;
	unsigned num;
	bool gather, engine;
	size_t at, arena_end; /* of its descriptors */
	enum ucm_cuda_step step;
	int err;
};

struct ucm_copy {
	const struct ucm_cuda *cuda;
	CUdevice device;
	bool retained;
	CUcontext context; /* the primary one, as the engine's */
	CUstream own;
	CUstream stream; /* the caller's, or our own */
	CUmodule module; /* NULL: there are no kernels for the device */
	CUfunction kernels[2]; /* [gather] */
	unsigned ctas;
	uint64_t engine_from; /* bytes of a run */

	struct ucm_cuda_group *groups;
	unsigned num_groups;
	struct ucm_cuda_range *ranges;
	unsigned num_ranges;

	/* Descriptors of jobs: a ring, pinned, and its copy on the device,
	 * where each thread searches it. */
	uint8_t *arena;
	CUdeviceptr device_arena;
	size_t arena_head, arena_tail; /* next free byte; oldest in use */

	struct ucm_cuda_batch batches[UCM_BATCHES];
	unsigned first_batch, num_batches;
	struct ucm_cuda_list waiting[2], finished;
	CUresult last_error; /* logged last; the next of its kind is not */
	CUstreamCaptureMode mode; /* of the thread, while it is in here */
	bool gone; /* the context: no call is made any more */

	/* For the copy engine: pieces of one call. */
	CUdeviceptr to[UCM_ENGINE_PIECES], from[UCM_ENGINE_PIECES];
	size_t sizes[UCM_ENGINE_PIECES];
};

void ucm_cuda_group_fini(struct ucm_copy *copy, struct ucm_cuda_group *group);

/* The device's address of staging; 0: not registered. */
CUdeviceptr ucm_cuda_staging(const struct ucm_copy *copy,
			     const uint8_t *staging, uint64_t len);

/* ---- batch.c ---- */

void ucm_cuda_append(struct ucm_cuda_list *list, struct ucm_copy_job *job);
/* Start what waits, as far as there is room. */
void ucm_cuda_start(struct ucm_copy *copy);
/* Batches whose event has come are finished. */
void ucm_cuda_retire(struct ucm_copy *copy);
/* If the result says that the context is gone, everything ends with -EIO, now
 * and from here on. */
bool ucm_cuda_give_up(struct ucm_copy *copy, CUresult result);
/* Wait for what is under way, to close it. */
void ucm_cuda_settle(struct ucm_copy *copy);

/* Bytes of the arena that a job's descriptor takes. */
size_t ucm_cuda_arena_bytes(const struct ucm_copy *copy,
			    const struct ucm_copy_job *job);

#endif
