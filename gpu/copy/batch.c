/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - jobs to launches, launches to events, events to jobs.
 *
 * A batch is as many waiting jobs, in their order, as are copied the same way
 * and have room: one copy of descriptors and one launch, or some calls of the
 * copy engine; and one event, which is asked and never waited for.
 *
 * An error: the jobs of the batch end with -EIO. Before they are handed back
 * the stream is waited for, as a part of them may have been started and pages
 * must not be written to without the caller's knowledge. This is the only wait.
 */
#include <config.h>

#include "gpu/copy/cuda.h"

#include <errno.h>
#include <string.h>

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

/* A broken context answers every call the same. */
static void note(struct ucm_copy *copy, CUresult result, const char *what)
{
	if (result != copy->last_error)
		ucm_cuda_failed(copy->cuda, result, what);
	copy->last_error = result;
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

CUresult ucm_cuda_by_kernel(struct ucm_copy *copy, CUstream stream,
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

CUresult ucm_cuda_by_engine(struct ucm_copy *copy, CUstream stream,
			    const struct ucm_copy_job *job, unsigned num,
			    bool gather, const char **what)
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

/* The jobs of the next batch, cut off the list that waits. */
struct cut {
	struct ucm_copy_job *jobs;
	unsigned num;
	size_t at, len; /* in the arena; len 0: nothing */
	bool engine;
};

static bool cut_batch(struct ucm_copy *copy, bool gather, struct cut *out)
{
	struct ucm_cuda_list *list = &copy->waiting[gather];
	struct ucm_copy_job *job = list->first, *last = NULL;
	bool engine = copy->groups[job->group].engine[gather];
	struct cut cut = { .jobs = job, .engine = engine };
	size_t room = 0;

	if (!engine) {
		room = arena_room(copy, ucm_cuda_arena_bytes(copy, job),
				  &cut.at);
		if (!room)
			return false;
	}
	for (; job && copy->groups[job->group].engine[gather] == engine;
	     last = job, job = job->next, cut.num++) {
		size_t len = engine ? 0 : ucm_cuda_arena_bytes(copy, job);

		if (len > room - cut.len)
			break;
		cut.len += len;
	}
	list->first = job;
	last->next = NULL;
	*out = cut;
	return true;
}

static void start_batch(struct ucm_copy *copy, const struct cut *cut,
			bool gather)
{
	unsigned number = (copy->first_batch + copy->num_batches) % UCM_BATCHES;
	struct ucm_cuda_batch *batch = &copy->batches[number];
	const char *what = "";
	CUresult result;

	if (cut->engine)
		result = ucm_cuda_by_engine(copy, copy->stream, cut->jobs,
					    cut->num, gather, &what);
	else
		result = ucm_cuda_by_kernel(copy, copy->stream, cut->jobs,
					    cut->num, gather, cut->at, &what);
	if (result == CUDA_SUCCESS) {
		what = "cuEventRecord";
		result = copy->cuda->EventRecord(batch->event, copy->stream);
	}
	if (result != CUDA_SUCCESS) {
		note(copy, result, what);
		copy->cuda->StreamSynchronize(copy->stream);
		finish(copy, cut->jobs, -EIO);
		return;
	}
	if (cut->len)
		copy->arena_head = ucm_round_up(cut->at + cut->len,
						ARENA_ALIGN);
	batch->jobs = cut->jobs;
	batch->arena_end = copy->arena_head;
	copy->num_batches++;
}

void ucm_cuda_start(struct ucm_copy *copy)
{
	struct cut cut;

	for (int gather = 0; gather < 2; gather++) { /* loads go first */
		while (copy->waiting[gather].first) {
			if (copy->num_batches == UCM_BATCHES ||
			    !cut_batch(copy, gather, &cut))
				return;
			start_batch(copy, &cut, gather);
		}
	}
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

void ucm_cuda_retire(struct ucm_copy *copy)
{
	while (copy->num_batches) {
		CUresult result = copy->cuda->EventQuery(
			copy->batches[copy->first_batch].event);

		if (result == CUDA_ERROR_NOT_READY)
			return;
		if (result == CUDA_SUCCESS) {
			copy->last_error = CUDA_SUCCESS;
			drop_oldest(copy, 0);
			continue;
		}
		note(copy, result, "copies");
		copy->cuda->StreamSynchronize(copy->stream);
		drop_oldest(copy, -EIO);
	}
}

void ucm_cuda_give_up(struct ucm_copy *copy)
{
	while (copy->num_batches)
		drop_oldest(copy, -EIO);
	for (int gather = 0; gather < 2; gather++) {
		struct ucm_copy_job *jobs = copy->waiting[gather].first;

		copy->waiting[gather].first = NULL;
		finish(copy, jobs, -EIO);
	}
}
