/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.c - pages that are memory of a CUDA device.
 *
 * Staging is registered with the driver and read and written by the device
 * itself: by kernels of a few CTAs, which leave the rest of the device to the
 * model, or by its copy engine where runs are long. Which one is decided for
 * each group.
 *
 * UNTESTED: on a device. There was none where this was written: the kernels'
 * arithmetic is tested on the CPU, the calls against a driver made for tests.
 * tests/gpu and bench/load-cuda are for the first machine that has one.
 */
#include <config.h>

#include "gpu/copy/cuda.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/error.h"
#include "common/log.h"
#include "common/parse.h"
#include "gpu/copy/image.h"

#define DEFAULT_CTAS 8
/* A kernel costs the same for runs of any length; the copy engine pays for each
 * piece, and takes no SM from the model. From this length on it is no slower, as
 * others have found for cards on PCIe. */
#define ENGINE_FROM (UINT64_C(512) << 10)

extern const char ucm_kernels_fatbin[] __attribute__((visibility("hidden")));
extern const char ucm_kernels_ptx[] __attribute__((visibility("hidden")));

static bool enter(struct ucm_copy *copy)
{
	CUresult result = ucm_cuda_enter(copy->cuda, copy->context,
					 &copy->mode);

	if (result == CUDA_SUCCESS)
		return true;
	if (result != copy->last_error)
		ucm_cuda_failed(copy->cuda, result, "cuCtxPushCurrent");
	copy->last_error = result;
	ucm_cuda_give_up(copy, result);
	return false;
}

static void leave(struct ucm_copy *copy)
{
	ucm_cuda_leave(copy->cuda, copy->mode);
}

/* ---- opening ---- */

static int open_failed(const struct ucm_copy *copy, int device, CUresult result,
		       const char *what, struct ucm_error *error)
{
	char text[256];

	ucm_cuda_text(copy->cuda, result, text, sizeof(text));
	return ucm_error_set(error, ucm_cuda_errno(result),
			     "CUDA device %d: %s: %s", device, what, text);
}

/* Once for each device: a loader has several threads. */
static void say_without_kernels(CUdevice device, const char *why)
{
	static _Atomic uint64_t said[2]; /* a bit for each device */
	uint64_t bit = UINT64_C(1) << (device & 63);

	if (atomic_fetch_or(&said[device >> 6 & 1], bit) & bit)
		return;
	ucm_warning("%s; its copy engine moves all, which is slow where runs "
		    "are short", why);
}

static int open_kernels(struct ucm_copy *copy, struct ucm_error *error)
{
	static const struct ucm_cuda_image image = { ucm_kernels_fatbin,
						     ucm_kernels_ptx };
	static const char *const names[] = { "ucm_scatter", "ucm_gather" };
	struct ucm_error own;
	int err = ucm_cuda_image_load(copy->cuda, copy->device, &image,
				      &copy->module, &own);
	CUresult result = CUDA_SUCCESS;

	if (err == -ENOTSUP) {
		copy->module = NULL;
		say_without_kernels(copy->device, own.text);
		return 0;
	}
	if (err)
		return ucm_error_set(error, err, "%s", own.text);
	for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++)
		result = copy->cuda->ModuleGetFunction(
			&copy->kernels[i], copy->module, names[i]);
	return result == CUDA_SUCCESS
		       ? 0
		       : open_failed(copy, copy->device, result,
				     "finding the kernels", error);
}

/* All, where there are no kernels. */
static int choose_engine_from(struct ucm_copy *copy, struct ucm_error *error)
{
	const char *text = getenv("UCM_CUDA_RUN_BYTES");
	int err;

	copy->engine_from = ENGINE_FROM;
	err = text ? ucm_parse_bytes(text, &copy->engine_from) : 0;
	if (err)
		return ucm_error_set(error, err, "UCM_CUDA_RUN_BYTES=%s: no "
				     "number of bytes", text);
	if (!copy->module)
		copy->engine_from = 0;
	return 0;
}

static CUresult open_arena(struct ucm_copy *copy, const char **what)
{
	CUresult result;

	*what = "cuMemHostAlloc";
	result = copy->cuda->MemHostAlloc((void **)&copy->arena,
					  UCM_ARENA_BYTES,
					  CU_MEMHOSTALLOC_PORTABLE);
	if (result != CUDA_SUCCESS)
		return result;
	*what = "cuMemAlloc";
	return copy->cuda->MemAlloc(&copy->device_arena, UCM_ARENA_BYTES);
}

static CUresult open_streams(struct ucm_copy *copy, void *stream,
			     const char **what)
{
	CUresult result;

	*what = "cuStreamCreate";
	result = copy->cuda->StreamCreate(&copy->own, CU_STREAM_NON_BLOCKING);
	if (stream == UCM_STREAM_OWN)
		copy->stream = copy->own;
	else
		copy->stream = stream ? stream : CU_STREAM_LEGACY;
	*what = result == CUDA_SUCCESS ? "cuEventCreate" : *what;
	for (int i = 0; i < UCM_BATCHES && result == CUDA_SUCCESS; i++)
		result = copy->cuda->EventCreate(&copy->batches[i].event,
						 CU_EVENT_DISABLE_TIMING);
	return result;
}

static CUresult open_device(struct ucm_copy *copy, int number,
			    const char **what)
{
	CUresult result;

	*what = "cuDeviceGet";
	result = copy->cuda->DeviceGet(&copy->device, number);
	if (result != CUDA_SUCCESS)
		return result;
	*what = "cuDevicePrimaryCtxRetain";
	result = copy->cuda->DevicePrimaryCtxRetain(&copy->context,
						    copy->device);
	copy->retained = result == CUDA_SUCCESS;
	return result;
}

static int open_inside(struct ucm_copy *copy,
		       const struct ucm_copy_options *options,
		       struct ucm_error *error)
{
	const char *what = "";
	CUresult result = open_streams(copy, options->stream, &what);
	int err;

	if (result == CUDA_SUCCESS)
		result = open_arena(copy, &what);
	if (result != CUDA_SUCCESS)
		return open_failed(copy, options->device, result, what, error);
	err = open_kernels(copy, error);
	return err ? err : choose_engine_from(copy, error);
}

static void cuda_close(struct ucm_copy *copy);

static int cuda_open(const struct ucm_copy_options *options,
		     struct ucm_copy **out, struct ucm_error *error)
{
	struct ucm_copy *copy = calloc(1, sizeof(*copy));
	const char *what;
	CUresult result;
	int err;

	if (options->stream == CU_STREAM_PER_THREAD) {
		free(copy);
		return ucm_error_set(error, -EINVAL, "stream "
				     "CU_STREAM_PER_THREAD: it is another one "
				     "in the loader's threads than in yours");
	}
	if (!copy)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	copy->ctas = options->ctas ? options->ctas : DEFAULT_CTAS;
	err = ucm_cuda_get(&copy->cuda, error);
	if (err)
		goto free_copy;
	result = open_device(copy, options->device, &what);
	if (result == CUDA_SUCCESS) {
		what = "cuCtxPushCurrent";
		result = ucm_cuda_enter(copy->cuda, copy->context, &copy->mode);
	}
	if (result != CUDA_SUCCESS) {
		err = open_failed(copy, options->device, result, what, error);
		goto close_copy;
	}
	err = open_inside(copy, options, error);
	leave(copy);
	if (err)
		goto close_copy;
	*out = copy;
	return 0;

close_copy:
	cuda_close(copy);
	return err;
free_copy:
	free(copy);
	return err;
}

/* ---- groups ---- */

static CUresult upload_table(struct ucm_copy *copy, size_t len,
			     struct ucm_cuda_group *group)
{
	const struct ucm_cuda *cuda = copy->cuda;
	CUresult result = cuda->MemAlloc(&group->device_table, len);

	if (result != CUDA_SUCCESS)
		return result;
	/* not by cuMemcpyHtoD, which waits for the engine's default stream */
	result = cuda->MemcpyAsync(group->device_table,
				   (uintptr_t)group->table, len, copy->own);
	if (result == CUDA_SUCCESS)
		result = cuda->StreamSynchronize(copy->own);
	if (result != CUDA_SUCCESS)
		cuda->MemFree(group->device_table);
	return result;
}

/* Fill a group; logs. */
static int init_group(struct ucm_copy *copy, const struct ucm_layout *layout,
		      struct ucm_cuda_group *out)
{
	size_t num = layout->num_regions + 1;
	struct ucm_cuda_group group = { .layout = layout };
	CUresult result;
	int err;

	if (layout->num_regions * sizeof(uint64_t) +
		    sizeof(struct ucm_scatter_job) > UCM_ARENA_BYTES / 2) {
		ucm_error("CUDA: a layout of %zu regions is too large",
			  layout->num_regions);
		return -EINVAL;
	}
	group.table = calloc(num, sizeof(*group.table));
	if (!group.table)
		return -ENOMEM;
	err = ucm_scatter_table(layout, group.table);
	if (err)
		goto free_table;
	result = upload_table(copy, num * sizeof(*group.table), &group);
	if (result != CUDA_SUCCESS) {
		err = ucm_cuda_failed(copy->cuda, result, "table of regions");
		goto free_table;
	}
	*out = group;
	return 0;

free_table:
	free(group.table);
	return err;
}

void ucm_cuda_group_fini(struct ucm_copy *copy, struct ucm_cuda_group *group)
{
	copy->cuda->MemFree(group->device_table);
	free(group->table);
}

/* A new one, or that of a group that was removed. */
static struct ucm_cuda_group *place_of(struct ucm_copy *copy, unsigned number)
{
	struct ucm_cuda_group *more;

	if (number < copy->num_groups)
		return &copy->groups[number];
	more = reallocarray(copy->groups, number + 1, sizeof(*more));
	if (!more)
		return NULL;
	copy->groups = more;
	more[number] = (struct ucm_cuda_group){ 0 };
	copy->num_groups++;
	return &more[number];
}

static int cuda_add_group(struct ucm_copy *copy, unsigned number,
			  const struct ucm_layout *layout)
{
	uint64_t run = ucm_block_payload_bytes(&layout->geometry) /
		       layout->runs;
	struct ucm_cuda_group *group;
	int err;

	if (number > copy->num_groups)
		return -EINVAL;
	group = place_of(copy, number);
	if (!group)
		return -ENOMEM;
	if (group->layout)
		return -EINVAL;
	if (!enter(copy))
		return -EIO;
	err = init_group(copy, layout, group);
	leave(copy);
	if (err)
		return err;
	group->engine = run >= copy->engine_from;
	return 0;
}

/* The driver may refuse to free memory when the context has gone; it is gone
 * with it. */
static void cuda_remove_group(struct ucm_copy *copy, unsigned number)
{
	struct ucm_cuda_group *group = &copy->groups[number];

	if (!group->layout)
		return;
	if (enter(copy)) {
		ucm_cuda_group_fini(copy, group);
		leave(copy);
	} else {
		free(group->table);
	}
	*group = (struct ucm_cuda_group){ 0 };
}

/* ---- staging ---- */

CUdeviceptr ucm_cuda_staging(const struct ucm_copy *copy,
			     const uint8_t *staging, uint64_t len)
{
	for (unsigned i = 0; i < copy->num_ranges; i++) {
		const struct ucm_cuda_range *range = &copy->ranges[i];
		uint64_t at = (uintptr_t)staging - (uintptr_t)range->memory;

		if (at <= range->len && range->len - at >= len)
			return range->device + at;
	}
	return 0;
}

/* Another thread's back end may have the same memory: who came first undoes
 * it, and the loader closes its threads together. */
static CUresult pin(struct ucm_copy *copy, struct ucm_cuda_range *range)
{
	const struct ucm_cuda *cuda = copy->cuda;
	CUresult result = cuda->MemHostRegister(
		range->memory, range->len,
		CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);

	range->registered = result == CUDA_SUCCESS;
	if (result != CUDA_SUCCESS &&
	    result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		return result;
	result = cuda->MemHostGetDevicePointer(&range->device, range->memory,
					       0);
	if (result != CUDA_SUCCESS && range->registered)
		cuda->MemHostUnregister(range->memory);
	return result;
}

static int cuda_register_staging(struct ucm_copy *copy, void *memory,
				 size_t len)
{
	struct ucm_cuda_range range = { .memory = memory, .len = len };
	struct ucm_cuda_range *more;
	CUresult result;

	more = reallocarray(copy->ranges, copy->num_ranges + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	copy->ranges = more;
	if (!enter(copy))
		return -EIO;
	result = pin(copy, &range);
	leave(copy);
	if (result != CUDA_SUCCESS)
		return ucm_cuda_failed(copy->cuda, result, "pinning staging");
	copy->ranges[copy->num_ranges++] = range;
	return 0;
}

static void cuda_unregister_staging(struct ucm_copy *copy, void *memory)
{
	struct ucm_cuda_range *range = copy->ranges;
	CUresult result = CUDA_SUCCESS;

	while (range->memory != memory)
		range++;
	if (range->registered && enter(copy)) {
		result = copy->cuda->MemHostUnregister(memory);
		leave(copy);
	}
	if (result != CUDA_SUCCESS)
		ucm_cuda_failed(copy->cuda, result, "giving up staging");
	*range = copy->ranges[--copy->num_ranges];
}

/* ---- copying ---- */

/* Mistakes of the loader must not reach the device, which could not report
 * them. */
static bool is_sound(const struct ucm_copy *copy,
		     const struct ucm_copy_job *job)
{
	const struct ucm_layout *layout;

	if (job->group >= copy->num_groups)
		return false;
	layout = copy->groups[job->group].layout;
	if (!layout)
		return false;
	return job->first_layer < job->end_layer &&
	       job->end_layer <= layout->geometry.num_layers &&
	       (job->addresses || job->page < layout->num_pages) &&
	       ucm_cuda_staging(copy, job->staging,
				(job->end_layer - job->first_layer) *
					ucm_layout_layer_bytes(layout));
}

static void start_jobs(struct ucm_copy *copy, struct ucm_copy_job *jobs,
		       bool gather)
{
	while (jobs) {
		struct ucm_copy_job *next = jobs->next;

		jobs->err = 0;
		jobs->lost = false;
		if (is_sound(copy, jobs)) {
			ucm_cuda_append(&copy->waiting[gather], jobs);
		} else {
			ucm_error("CUDA: group %u, layers %" PRIu32
				  " to %" PRIu32 ", page %" PRIu32
				  ", staging %p: out of range",
				  jobs->group, jobs->first_layer,
				  jobs->end_layer, jobs->page,
				  (void *)jobs->staging);
			jobs->err = -EINVAL;
			ucm_cuda_append(&copy->finished, jobs);
		}
		jobs = next;
	}
	if (copy->gone) {
		ucm_cuda_give_up(copy, copy->last_error);
	} else if (enter(copy)) {
		ucm_cuda_start(copy);
		leave(copy);
	}
}

static void cuda_scatter(struct ucm_copy *copy, struct ucm_copy_job *jobs)
{
	start_jobs(copy, jobs, false);
}

static void cuda_gather(struct ucm_copy *copy, struct ucm_copy_job *jobs)
{
	start_jobs(copy, jobs, true);
}

static struct ucm_copy_job *cuda_poll(struct ucm_copy *copy)
{
	struct ucm_copy_job *jobs;

	if ((copy->num_batches || copy->waiting[0].first ||
	     copy->waiting[1].first) && enter(copy)) {
		ucm_cuda_retire(copy);
		ucm_cuda_start(copy);
		leave(copy);
	}
	jobs = copy->finished.first;
	copy->finished.first = NULL;
	return jobs;
}

/* ---- the caller's events and streams ---- */

static int cuda_reached(struct ucm_copy *copy, void *event)
{
	CUresult result;

	if (copy->gone || !enter(copy))
		return -EIO;
	result = copy->cuda->EventQuery(event);
	leave(copy);
	if (result == CUDA_SUCCESS)
		return 1;
	if (result == CUDA_ERROR_NOT_READY || ucm_cuda_is_passing(result))
		return 0;
	return ucm_cuda_failed(copy->cuda, result, "an event to wait for");
}

/* What is recorded or waited for in a captured stream becomes part of a graph. */
static int check_captures(const struct ucm_copy *copy, CUstream stream)
{
	const CUstream streams[] = { copy->stream, stream };

	for (int i = 0; i < 2; i++) {
		CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
		CUresult result =
			copy->cuda->StreamIsCapturing(streams[i], &status);

		if (ucm_cuda_is_passing(result) ||
		    (result == CUDA_SUCCESS &&
		     status != CU_STREAM_CAPTURE_STATUS_NONE))
			return -EBUSY;
		if (result != CUDA_SUCCESS)
			return ucm_cuda_failed(copy->cuda, result,
					       "a stream that is to wait");
	}
	return 0;
}

/* The driver keeps the event until the wait is over. */
static int join_inside(const struct ucm_copy *copy, CUstream stream)
{
	const struct ucm_cuda *cuda = copy->cuda;
	const char *what = "cuEventCreate";
	CUevent event;
	CUresult result;
	int err = check_captures(copy, stream);

	if (err)
		return err;
	result = cuda->EventCreate(&event, CU_EVENT_DISABLE_TIMING);
	if (result == CUDA_SUCCESS) {
		what = "cuEventRecord";
		result = cuda->EventRecord(event, copy->stream);
		if (result == CUDA_SUCCESS) {
			what = "cuStreamWaitEvent";
			result = cuda->StreamWaitEvent(stream, event, 0);
		}
		cuda->EventDestroy(event);
	}
	return result == CUDA_SUCCESS ? 0
				      : ucm_cuda_failed(cuda, result, what);
}

/* In the caller's thread: of the copy only what never changes is looked at. */
static int cuda_join(struct ucm_copy *copy, void *stream)
{
	CUstream waits = stream ? stream : CU_STREAM_LEGACY;
	CUstreamCaptureMode mode;
	CUresult result;
	int err;

	if (waits == copy->stream)
		return 0;
	result = ucm_cuda_enter(copy->cuda, copy->context, &mode);
	if (result != CUDA_SUCCESS)
		return ucm_cuda_failed(copy->cuda, result, "cuCtxPushCurrent");
	err = join_inside(copy, waits);
	ucm_cuda_leave(copy->cuda, mode);
	return err;
}

/* ---- closing ---- */

static void close_inside(struct ucm_copy *copy)
{
	const struct ucm_cuda *cuda = copy->cuda;

	ucm_cuda_settle(copy);
	for (unsigned i = 0; i < copy->num_groups; i++) {
		if (copy->groups[i].layout)
			ucm_cuda_group_fini(copy, &copy->groups[i]);
	}
	for (unsigned i = 0; i < copy->num_ranges; i++) {
		if (copy->ranges[i].registered)
			cuda->MemHostUnregister(copy->ranges[i].memory);
	}
	if (copy->device_arena)
		cuda->MemFree(copy->device_arena);
	if (copy->arena)
		cuda->MemFreeHost(copy->arena);
	if (copy->module)
		cuda->ModuleUnload(copy->module);
	for (int i = 0; i < UCM_BATCHES; i++) {
		if (copy->batches[i].event)
			cuda->EventDestroy(copy->batches[i].event);
	}
	if (copy->own)
		cuda->StreamDestroy(copy->own);
}

/* Waits for what is under way: pages and staging are left alone afterwards. */
static void cuda_close(struct ucm_copy *copy)
{
	if (!copy)
		return;
	if (copy->retained) {
		if (enter(copy)) {
			close_inside(copy);
			leave(copy);
		} else {
			for (unsigned i = 0; i < copy->num_groups; i++)
				free(copy->groups[i].table);
		}
		copy->cuda->DevicePrimaryCtxRelease(copy->device);
	}
	free(copy->groups);
	free(copy->ranges);
	free(copy);
}

static int cuda_node(const struct ucm_copy_options *options)
{
	return ucm_cuda_node(options->device);
}

const struct ucm_copy_ops ucm_copy_cuda = {
	.name = "cuda",
	.node = cuda_node,
	.open = cuda_open,
	.close = cuda_close,
	.add_group = cuda_add_group,
	.remove_group = cuda_remove_group,
	.register_staging = cuda_register_staging,
	.unregister_staging = cuda_unregister_staging,
	.scatter = cuda_scatter,
	.gather = cuda_gather,
	.poll = cuda_poll,
	.reached = cuda_reached,
	.join = cuda_join,
};
