/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - jobs to launches, launches to events, events to jobs.
 *
 * A batch is as many waiting jobs, in their order, as are copied the same way
 * and have room: one copy of descriptors and one launch, or some calls of the
 * copy engine; and one event, which is asked and never waited for.
 *
 *	TO_QUEUE -> TO_RECORD -> RECORDED -> its jobs are finished
 *	     any of them -> TO_SYNC -> its jobs are finished, with -EIO
 *
 * What always holds: a job that the driver was given is finished only once the
 * driver has said that the device is done with it, by its event, or by a wait
 * for the stream that succeeded. Until then staging and page are the device's:
 * a gather that came late would overwrite what a slot holds next.
 *
 * - While somebody captures a graph the driver may refuse calls. That passes:
 *   the batch stays at its step, and the call is made again at the next poll.
 *   (A batch that was queued in part is queued once more as a whole: the same
 *   bytes to the same places, before the event.)
 * - Any other error: the stream is waited for, which is the only wait, and the
 *   jobs fail. If that is refused as well it is tried again.
 * - The context is gone for good (an illegal address, somewhere in the process):
 *   nobody will ever say that the device is done. All jobs fail; those that it
 *   had are lost (copy.h), and nothing is sent to it any more.
 */
#include <config.h>

#include "gpu/copy/cuda.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/align.h"
#include "common/log.h"

#define ARENA_ALIGN 16

void ucm_cuda_append(struct ucm_cuda_list *list, struct ucm_copy_job *job)
{
	job->next = NULL;
	if (list->first)
		list->last->next = job;
	else
		list->first = job;
	list->last = job;
}

static void finish(struct ucm_copy *copy, struct ucm_copy_job *jobs, int err)
{
	while (jobs) {
		struct ucm_copy_job *next = jobs->next;

		jobs->err = err;
		ucm_cuda_append(&copy->finished, jobs);
		jobs = next;
	}
}

/* It may be answered the same again and again. */
static void note(struct ucm_copy *copy, CUresult result, const char *what)
{
	char text[256];

	bool passing = ucm_cuda_is_passing(result);

	if (result == copy->last_error ||
	    (passing && ucm_cuda_is_passing(copy->last_error)))
		return;
	copy->last_error = result;
	if (!passing) {
		ucm_cuda_failed(copy->cuda, result, what);
		return;
	}
	ucm_cuda_text(copy->cuda, result, text, sizeof(text));
	ucm_warning("CUDA: %s: %s: copies wait until the capture has ended",
		    what, text);
}

/* ---- the two ways ---- */

static uint32_t num_addresses(const struct ucm_layout *layout,
			      const struct ucm_copy_job *job)
{
	if (!job->addresses)
		return 0;
	return layout->layer_first[job->end_layer] -
	       layout->layer_first[job->first_layer];
}

size_t ucm_cuda_arena_bytes(const struct ucm_copy *copy,
			    const struct ucm_copy_job *job)
{
	const struct ucm_layout *layout = copy->groups[job->group].layout;

	return sizeof(struct ucm_scatter_job) +
	       num_addresses(layout, job) * sizeof(uint64_t);
}

static uint64_t job_bytes(const struct ucm_layout *layout,
			  const struct ucm_copy_job *job)
{
	return (job->end_layer - job->first_layer) *
	       ucm_layout_layer_bytes(layout);
}

/* Descriptors in a row, and after them the addresses. Returns the items;
 * *len_out is what was written. */
static uint64_t describe(struct ucm_copy *copy, const struct ucm_copy_job *job,
			 unsigned num, size_t at, size_t *len_out)
{
	struct ucm_scatter_job *out = (void *)(copy->arena + at);
	size_t more = at + num * sizeof(*out);
	uint64_t items = 0;

	for (unsigned i = 0; i < num; i++, job = job->next) {
		const struct ucm_cuda_group *group = &copy->groups[job->group];
		size_t len = num_addresses(group->layout, job) *
			     sizeof(uint64_t);
		uint64_t staging = ucm_cuda_staging(copy, job->staging,
						    job_bytes(group->layout,
							      job));

		if (len)
			memcpy(copy->arena + more, job->addresses, len);
		items += ucm_scatter_describe(
			group->layout, group->table, group->device_table, job,
			staging, len ? copy->device_arena + more : 0, items,
			&out[i]);
		more += len;
	}
	*len_out = more - at;
	return items;
}

/*
 * Queue num jobs in a stream: as one launch, with their descriptors at this
 * place of the arena; or as calls of the copy engine. what: the call that
 * failed; some of the jobs may be under way then.
 */
static CUresult by_kernel(struct ucm_copy *copy, CUstream stream,
			  const struct ucm_copy_job *jobs, unsigned num,
			  bool gather, size_t at, const char **what)
{
	struct ucm_scatter_args args = {
		.jobs = copy->device_arena + at,
		.num_jobs = num,
	};
	void *params[] = { &args };
	CUresult result;
	size_t len;

	args.num_items = describe(copy, jobs, num, at, &len);
	*what = "cuMemcpyAsync of descriptors";
	result = copy->cuda->MemcpyAsync(copy->device_arena + at,
					 (uintptr_t)(copy->arena + at), len,
					 stream);
	if (result != CUDA_SUCCESS)
		return result;
	*what = gather ? "cuLaunchKernel of the gather"
		       : "cuLaunchKernel of the scatter";
	return copy->cuda->LaunchKernel(copy->kernels[gather], copy->ctas, 1, 1,
					UCM_CTA_THREADS, 1, 1, 0, stream,
					params, NULL);
}

/* The batched call does not take the legacy default stream. */
static CUresult copy_pieces(struct ucm_copy *copy, CUstream stream, size_t num,
			    const char **what)
{
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
	};
	size_t index = 0, failed;
	CUresult result = CUDA_SUCCESS;

	if (copy->cuda->MemcpyBatchAsync && stream != CU_STREAM_LEGACY) {
		*what = "cuMemcpyBatchAsync";
		return copy->cuda->MemcpyBatchAsync(copy->to, copy->from,
						    copy->sizes, num,
						    &attributes, &index, 1,
						    &failed, stream);
	}
	*what = "cuMemcpyAsync";
	for (size_t i = 0; i < num && result == CUDA_SUCCESS; i++)
		result = copy->cuda->MemcpyAsync(copy->to[i], copy->from[i],
						 copy->sizes[i], stream);
	return result;
}

static CUresult by_engine(struct ucm_copy *copy, CUstream stream,
			  const struct ucm_copy_job *job, unsigned num, bool gather,
			  const char **what)
{
	CUresult result = CUDA_SUCCESS;
	struct ucm_runs runs;
	struct ucm_run run;
	size_t pieces = 0;

	for (; num && result == CUDA_SUCCESS; num--, job = job->next) {
		const struct ucm_layout *layout =
			copy->groups[job->group].layout;
		CUdeviceptr staging = ucm_cuda_staging(
			copy, job->staging, job_bytes(layout, job));

		ucm_runs_start(&runs, layout, job);
		while (result == CUDA_SUCCESS && ucm_runs_next(&runs, &run)) {
			if (pieces == UCM_ENGINE_PIECES) {
				result = copy_pieces(copy, stream, pieces,
						     what);
				pieces = 0;
			}
			copy->to[pieces] = gather ? staging + run.offset
						  : run.page;
			copy->from[pieces] = gather ? run.page
						    : staging + run.offset;
			copy->sizes[pieces++] = run.len;
		}
	}
	if (result == CUDA_SUCCESS && pieces)
		result = copy_pieces(copy, stream, pieces, what);
	return result;
}

/* ---- batches ---- */

/* Where that many bytes in a row are free, and how many there are; 0: nowhere.
 * One byte stays free, as a full ring would look like an empty one. */
static size_t arena_room(struct ucm_copy *copy, size_t need, size_t *at)
{
	if (!copy->num_batches)
		copy->arena_head = copy->arena_tail = 0;
	*at = copy->arena_head;
	if (copy->arena_head < copy->arena_tail) {
		size_t room = copy->arena_tail - copy->arena_head - 1;

		return room >= need ? room : 0;
	}
	if (UCM_ARENA_BYTES - copy->arena_head >= need)
		return UCM_ARENA_BYTES - copy->arena_head;
	*at = 0;
	return copy->arena_tail > need ? copy->arena_tail - 1 : 0;
}

/* A new batch, of jobs that are cut off the list that waits. false: there is no
 * room for their descriptors. */
static bool cut_batch(struct ucm_copy *copy, bool gather)
{
	unsigned number = (copy->first_batch + copy->num_batches) % UCM_BATCHES;
	struct ucm_cuda_batch *batch = &copy->batches[number];
	struct ucm_cuda_list *list = &copy->waiting[gather];
	struct ucm_copy_job *job = list->first, *last = NULL;
	bool engine = copy->groups[job->group].engine;
	size_t room = 0, at = 0, len = 0;
	unsigned num = 0;

	if (!engine) {
		room = arena_room(copy, ucm_cuda_arena_bytes(copy, job), &at);
		if (!room)
			return false;
	}
	batch->jobs = job;
	for (; job && copy->groups[job->group].engine == engine;
	     last = job, job = job->next, num++) {
		size_t more = engine ? 0 : ucm_cuda_arena_bytes(copy, job);

		if (more > room - len)
			break;
		len += more;
	}
	list->first = job;
	last->next = NULL;
	if (len)
		copy->arena_head = ucm_round_up(at + len, ARENA_ALIGN);
	batch->num = num;
	batch->gather = gather;
	batch->engine = engine;
	batch->at = at;
	batch->arena_end = copy->arena_head;
	batch->step = UCM_CUDA_TO_QUEUE;
	batch->err = 0;
	copy->num_batches++;
	return true;
}

/* What is queued in a stream that is being captured does not run: it becomes
 * part of somebody's graph. Asking spoils no capture. */
static CUresult may_queue(struct ucm_copy *copy, const char **what)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result;

	if (copy->stream == copy->own)
		return CUDA_SUCCESS;
	*what = "cuStreamIsCapturing";
	result = copy->cuda->StreamIsCapturing(copy->stream, &status);
	if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return result;
}

static CUresult queue_batch(struct ucm_copy *copy,
			    const struct ucm_cuda_batch *batch,
			    const char **what)
{
	CUresult result = may_queue(copy, what);

	if (result != CUDA_SUCCESS)
		return result;
	if (batch->engine)
		return by_engine(copy, copy->stream, batch->jobs, batch->num,
				 batch->gather, what);
	return by_kernel(copy, copy->stream, batch->jobs, batch->num,
			 batch->gather, batch->at, what);
}

/* A call for a batch has not succeeded. true: it is to be made again. */
static bool is_put_off(struct ucm_copy *copy, struct ucm_cuda_batch *batch,
		       CUresult result, const char *what)
{
	if (result == CUDA_ERROR_NOT_READY)
		return true;
	note(copy, result, what);
	if (ucm_cuda_is_passing(result))
		return true;
	if (!ucm_cuda_give_up(copy, result)) {
		batch->step = UCM_CUDA_TO_SYNC;
		batch->err = -EIO;
	}
	return false;
}

static void tell_queued(struct ucm_copy_job *job)
{
	for (; job; job = job->next) {
		if (job->queued)
			job->queued(job);
	}
}

/* Give the newest batch to the driver. false: it does not take it now. */
static bool send_batch(struct ucm_copy *copy, struct ucm_cuda_batch *batch)
{
	const char *what = "";
	CUresult result;

	if (batch->step == UCM_CUDA_TO_QUEUE) {
		result = queue_batch(copy, batch, &what);
		if (result != CUDA_SUCCESS)
			return !is_put_off(copy, batch, result, what);
		batch->step = UCM_CUDA_TO_RECORD;
	}
	if (batch->step == UCM_CUDA_TO_RECORD) {
		what = "cuEventRecord";
		result = copy->cuda->EventRecord(batch->event, copy->stream);
		if (result != CUDA_SUCCESS)
			return !is_put_off(copy, batch, result, what);
		batch->step = UCM_CUDA_RECORDED;
		tell_queued(batch->jobs);
	}
	return true;
}

/* It may have been put off. */
static bool send_newest(struct ucm_copy *copy)
{
	unsigned newest = copy->first_batch + copy->num_batches - 1;

	return !copy->num_batches ||
	       send_batch(copy, &copy->batches[newest % UCM_BATCHES]);
}

void ucm_cuda_start(struct ucm_copy *copy)
{
	for (int gather = 0; gather < 2; gather++) { /* loads go first */
		while (copy->waiting[gather].first) {
			if (!send_newest(copy) ||
			    copy->num_batches == UCM_BATCHES ||
			    !cut_batch(copy, gather))
				return;
		}
	}
	send_newest(copy);
}

static void drop_oldest(struct ucm_copy *copy, int err)
{
	struct ucm_cuda_batch *batch = &copy->batches[copy->first_batch];

	finish(copy, batch->jobs, err);
	batch->jobs = NULL;
	copy->arena_tail = batch->arena_end;
	copy->first_batch = (copy->first_batch + 1) % UCM_BATCHES;
	copy->num_batches--;
}

/* Is the device done with a batch? */
static CUresult ask_batch(struct ucm_copy *copy,
			  const struct ucm_cuda_batch *batch, const char **what)
{
	switch (batch->step) {
	case UCM_CUDA_RECORDED:
		*what = "copies";
		return copy->cuda->EventQuery(batch->event);
	case UCM_CUDA_TO_SYNC:
		*what = "waiting for copies that failed";
		return copy->cuda->StreamSynchronize(copy->stream);
	default:
		return CUDA_ERROR_NOT_READY; /* it has not got all of it */
	}
}

void ucm_cuda_retire(struct ucm_copy *copy)
{
	while (copy->num_batches) {
		struct ucm_cuda_batch *batch =
			&copy->batches[copy->first_batch];
		bool failed = batch->step == UCM_CUDA_TO_SYNC;
		const char *what = "";
		CUresult result = ask_batch(copy, batch, &what);

		if (result == CUDA_SUCCESS) {
			if (!failed)
				copy->last_error = CUDA_SUCCESS;
			drop_oldest(copy, batch->err);
		} else if (is_put_off(copy, batch, result, what) || failed) {
			return;
		}
	}
}

/* Of a batch that the driver has: to be told from one that never reached it. */
static unsigned lose(struct ucm_copy_job *jobs)
{
	unsigned num = 0;

	for (; jobs; jobs = jobs->next, num++)
		jobs->lost = true;
	return num;
}

bool ucm_cuda_give_up(struct ucm_copy *copy, CUresult result)
{
	unsigned lost = 0;

	if (!copy->gone && !ucm_cuda_is_fatal(result))
		return false;
	while (copy->num_batches) {
		lost += lose(copy->batches[copy->first_batch].jobs);
		drop_oldest(copy, -EIO);
	}
	for (int gather = 0; gather < 2; gather++) {
		struct ucm_copy_job *jobs = copy->waiting[gather].first;

		copy->waiting[gather].first = NULL;
		finish(copy, jobs, -EIO);
	}
	if (!copy->gone)
		ucm_error("CUDA device %d: its context is gone, and with it "
			  "what was in its memory; %u copies were under way: "
			  "their staging memory is not used again, and nothing "
			  "is copied until the loader is opened again",
			  copy->device, lost);
	copy->gone = true;
	return true;
}

void ucm_cuda_settle(struct ucm_copy *copy)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	CUresult result = CUDA_SUCCESS;

	while (copy->num_batches && !copy->gone) {
		result = copy->cuda->StreamSynchronize(copy->stream);
		if (!ucm_cuda_is_passing(result))
			break;
		nanosleep(&moment, NULL);
	}
	if (result != CUDA_SUCCESS)
		note(copy, result, "waiting for copies");
}
