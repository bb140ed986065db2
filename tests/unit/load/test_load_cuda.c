/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_cuda.c - the loader and the CUDA back end together, from files to
 * pages and back, on the driver made for tests (fake_cuda.c).
 */
#include <config.h>

#include "tests/unit/load_fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "gpu/copy/cuda_api.h"
#include "gpu/layout/layout.h"

#include "tests/unit/fake_cuda.h"

#define NUM 24

static struct fake_cuda *fake;
static struct lf_cache cache;
static const struct ucm_cuda *cuda;
static CUcontext context;

static const struct ucm_loader_options on_device = { .copy = UCM_COPY_CUDA,
						     .stream = UCM_STREAM_OWN,
						     .threads = 1 };

/* The cache's memory becomes the device's: its addresses get the mark. */
static void setup(void)
{
	struct ucm_error error;
	void *library;

	fx_setup();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
	for (size_t i = 0; i < cache.layout->num_regions; i++)
		cache.layout->regions[i].base += FAKE_MARK;
	ucm_cuda_library = FAKE_CUDA;
	library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(library != NULL, "%s", dlerror());
	fake = dlsym(library, "fake_cuda");
	must(!ucm_cuda_get(&cuda, &error));
	must(!cuda->DevicePrimaryCtxRetain(&context, 0));
	must(!cuda->CtxPushCurrent(context));
	must(!cuda->MemHostRegister(cache.memory, cache.len,
				    CU_MEMHOSTREGISTER_DEVICEMAP));
	must(!cuda->CtxPopCurrent(&context));
}

static void teardown(void)
{
	fake->fail = NULL;
	must(!cuda->CtxPushCurrent(context));
	must(!cuda->MemHostUnregister(cache.memory));
	must(!cuda->CtxPopCurrent(&context));
	must(!cuda->DevicePrimaryCtxRelease(0));
	ck_assert_uint_eq(fake->live, 0);
	ck_assert_uint_eq(fake->mistakes, 0);
	lf_cache_close(&cache);
	fx_teardown();
}

static const char *const run_bytes[] = { "1T", "0" }; /* kernel, engine */

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(blocks_come_back_as_they_were_saved, .rows = 2)
{
	struct ucm_request some = { .first_layer = 1, .num_layers = 2 };
	struct ucm_loader *loader;

	setenv("UCM_CUDA_RUN_BYTES", run_bytes[_i], 1);
	loader = lf_loader("$/tier", &cache, &on_device);
	lf_cache_clear(&cache);
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, NUM - 1, NULL, NULL), 0);
	for (unsigned i = 0; i < NUM - 1; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	ck_assert(lf_page_untouched(&cache, NUM - 1, 0, 4));
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 3, 5, &some, NULL), 0);
	for (unsigned i = 0; i < 5; i++) {
		ck_assert(lf_page_untouched(&cache, i, 0, 1));
		ck_assert(lf_page_is(&cache, i, 1, 3, i + 3));
		ck_assert(lf_page_untouched(&cache, i, 3, 4));
	}
	ck_assert_int_eq(fake->launches > 0, _i == 0);
	ucm_loader_close(loader);
}

/* From the device by staging memory into the write buffer, and back. */
UNIT_TEST(pages_of_a_device_go_through_the_write_buffer, .rows = 2)
{
	struct ucm_loader_options options = on_device;
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;
	struct ucm_task *task;

	setenv("UCM_CUDA_RUN_BYTES", run_bytes[_i], 1);
	options.write_buffer_bytes = 2 << 20;
	options.io = UCM_IO_THREADS;
	lf_faults();
	loader = lf_loader("$/tier", &cache, &options);
	lf_cache_clear(&cache);
	for (unsigned i = 0; i < 4; i++)
		lf_fill_page(&cache, i, i);
	lf_hold(UCM_IO_WRITE, 0);
	task = lf_submit(loader, true, 0, 4, NULL);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20000), 0);
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, 4, NULL, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.save_buffered_bytes, 4 * 4 * 4096);
	ck_assert_uint_eq(stats.load_buffered_bytes, 4 * 4 * 4096);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	ucm_loader_close(loader);
}

UNIT_TEST(a_device_that_fails_fails_the_blocks, .rows = 2)
{
	struct ucm_outcome outcomes[4];
	struct ucm_loader *loader;

	setenv("UCM_CUDA_RUN_BYTES", run_bytes[_i], 1);
	for (unsigned i = 0; i < 4; i++)
		lf_plant("$/tier", &lf_geometry, i);
	loader = lf_loader("$/tier", &cache, &on_device);
	fake->fail_with = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	fake->fail = "cuEventQuery";
	ck_assert_int_eq(lf_load(loader, 0, 4, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_int_eq(outcomes[i].err, -EIO);
	fake->fail = _i ? "cuMemcpyBatchAsync" : "cuLaunchKernel";
	ck_assert_int_eq(lf_save(loader, 8, 4, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_int_eq(outcomes[i].err, -EIO);
		ck_assert(!fx_exists(lf_path("$/tier", 8 + i)));
	}
	fake->fail = NULL;
	ck_assert_int_eq(lf_load(loader, 0, 4, NULL, NULL), 0);
	ucm_loader_close(loader);
}

static void wait_refused(unsigned times)
{
	int64_t end_ms = ucm_monotonic_ms() + 10000;

	while (fake->refused < times && ucm_monotonic_ms() < end_ms)
		sched_yield();
	ck_assert_uint_ge(fake->refused, times);
}

/* If it were taken for failed, its slot would be used by the next one. */
UNIT_TEST(a_gather_of_which_nothing_is_known_keeps_its_slot)
{
	struct ucm_loader *loader;
	struct ucm_task *task;

	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	lf_plant("$/tier", &lf_geometry, 1);
	loader = lf_loader("$/tier", &cache, &on_device);
	lf_fill_page(&cache, 0, 0);
	fake->refusal = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	task = lf_submit(loader, true, 0, 1, NULL);
	wait_refused(20);
	ck_assert(!ucm_task_done(task));
	ck_assert_int_eq(ucm_task_wait_copied(task, 0), -ETIMEDOUT);
	ucm_task_cancel(task); /* its pages are still read */
	wait_refused(fake->refused + 20);
	ck_assert(!ucm_task_done(task));
	fake->refusal = 0;
	ck_assert_int_eq(ucm_task_wait(task, 10000), -EIO);
	ck_assert_int_eq(ucm_task_outcomes(task)->err, -ECANCELED);
	ucm_task_free(task);
	ck_assert_int_eq(lf_load(loader, 1, 1, NULL, NULL), 0);
	ck_assert(lf_page_is(&cache, 0, 0, 4, 1));
	ucm_loader_close(loader);
}

/* Nor may tasks wait for ever: each of them fails, and the loader closes. */
UNIT_TEST(a_dead_device_ends_every_task)
{
	struct ucm_outcome outcomes[8];
	struct ucm_loader *loader;

	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	for (unsigned i = 0; i < 8; i++)
		lf_plant("$/tier", &lf_geometry, i);
	loader = lf_loader("$/tier", &cache, &on_device);
	fake->refusal = CUDA_ERROR_ILLEGAL_ADDRESS;
	for (int round = 0; round < 3; round++) {
		ck_assert_int_eq(lf_load(loader, 0, 8, NULL, outcomes), -EIO);
		for (unsigned i = 0; i < 8; i++)
			ck_assert_int_eq(outcomes[i].err, -EIO);
		ck_assert_int_eq(lf_save(loader, 10, 2, NULL, outcomes), -EIO);
		ck_assert(!fx_exists(lf_path("$/tier", 10)));
	}
	fake->refusal = 0; /* so that the driver for tests can be put away */
	must(!cuda->CtxPushCurrent(context));
	must(!cuda->StreamSynchronize(NULL));
	must(!cuda->CtxPopCurrent(&context));
	ucm_loader_close(loader);
}

UNIT_TEST(no_stream_is_the_default_one)
{
	struct ucm_loader_options options = on_device;
	struct ucm_loader *loader;
	struct ucm_error error = { "" };
	unsigned group;

	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	lf_plant("$/tier", &lf_geometry, 0);
	options.size = sizeof(options);
	options.stream = NULL;
	options.tiers = fx_path("$/tier");
	options.staging_bytes = 16 << 20;
	ck_assert_msg(!ucm_loader_open(&options, &loader, &error), "%s",
		      error.text);
	must(!ucm_loader_add_group(loader, cache.layout, NULL, &group, &error));
	ck_assert_int_eq(lf_load(loader, 0, 1, NULL, NULL), 0);
	ck_assert_int_gt(fake->legacy, 0);
	ucm_loader_close(loader);
}

/* Row: the device is near no node, or node 0, or one that is not there. */
UNIT_TEST(staging_is_near_the_device, .rows = 3)
{
	static const char *const nodes[] = { "-1\n", "0\n", "77\n" };
	struct ucm_loader *loader;
	char text[256];

	ucm_cuda_devices = strdup(fx_path("$/devices"));
	must(!mkdir(ucm_cuda_devices, 0755));
	must(!mkdir(fx_path("$/devices/0000:3b:00.0"), 0755));
	fx_put(fx_path("$/devices/0000:3b:00.0/numa_node"), nodes[_i],
	       strlen(nodes[_i]));
	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	loader = lf_loader("$/tier", &cache, &on_device);
	ucm_loader_describe(loader, text, sizeof(text));
	ck_assert_int_eq(strstr(text, " on node 0") != NULL,
			 _i == 1 && !access("/sys/devices/system/node/node0",
					    F_OK));
	ucm_loader_close(loader);
	free((char *)(uintptr_t)ucm_cuda_devices);
}

/* What the first thread has made of it is undone. */
UNIT_TEST(a_group_that_a_later_thread_refuses_is_forgotten_by_all)
{
	struct ucm_loader_options options = on_device;
	const struct ucm_request request = { .group = 1 };
	struct ucm_loader *loader;
	struct ucm_error error = { "" };
	unsigned group = 77, live;

	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	lf_plant("$/tier", &lf_geometry, 0);
	options.threads = 2;
	loader = lf_loader("$/tier", &cache, &options);
	live = fake->live;
	fake->fail_with = CUDA_ERROR_OUT_OF_MEMORY;
	fake->fail_after = 1;
	fake->fail = "cuMemAlloc";
	ck_assert_int_eq(ucm_loader_add_group(loader, cache.layout, NULL,
					      &group, &error),
			 -ENOMEM);
	ck_assert_str_eq(error.text, "group 1: Cannot allocate memory");
	ck_assert_uint_eq(group, 77);
	ck_assert_uint_eq(fake->live, live);
	fake->fail = NULL;
	ck_assert_int_eq(ucm_loader_add_group(loader, cache.layout, NULL,
					      &group, &error),
			 0);
	ck_assert_uint_eq(group, 1);
	ck_assert_int_eq(lf_load(loader, 0, 1, &request, NULL), 0);
	ck_assert_int_eq(ucm_loader_remove_group(loader, 0, &error), 0);
	ck_assert_uint_eq(fake->live, live);
	ck_assert_int_eq(lf_load(loader, 0, 1, &request, NULL), 0);
	ucm_loader_close(loader);
}

/* ---- streams and events of the caller ---- */

static void *const stream = (void *)(uintptr_t)FAKE_STREAM;

/* As a model's kernel that reads pages would: queued in the caller's stream. */
static void read_pages(void *to, unsigned num)
{
	must(!cuda->CtxPushCurrent(context));
	for (unsigned i = 0; i < num; i++)
		must(!cuda->MemcpyAsync((uintptr_t)to + i * cache.len / num,
					((uintptr_t)cache.memory +
					 i * cache.len / num) | FAKE_MARK,
					cache.len / num, stream));
	must(!cuda->CtxPopCurrent(&context));
}

static void finish_stream(void)
{
	fake->hold = false;
	must(!cuda->CtxPushCurrent(context));
	must(!cuda->StreamSynchronize(stream));
	must(!cuda->CtxPopCurrent(&context));
}

/* The device has done nothing yet when the call returns, and in its order the
 * pages are filled before they are read. Row: threads; and layer by layer. */
UNIT_TEST(a_stream_waits_for_pages_and_the_processor_does_not, .rows = 4)
{
	const struct ucm_request request = {
		.order = _i & 1 ? UCM_LOAD_LAYERS : UCM_LOAD_BLOCKS,
		.group_layers = 1,
	};
	struct ucm_loader_options options = on_device;
	struct ucm_loader *loader;
	struct ucm_task *task;
	uint8_t *before = cache.memory, *seen = malloc(cache.len);

	setenv("UCM_CUDA_RUN_BYTES", run_bytes[_i & 1], 1);
	for (unsigned i = 0; i < 8; i++)
		lf_plant("$/tier", &lf_geometry, i);
	options.threads = 1 + _i / 2;
	loader = lf_loader("$/tier", &cache, &options);
	lf_cache_clear(&cache);
	fake->hold = true;
	task = lf_submit(loader, false, 0, 8, &request);
	for (uint32_t layer = 0; layer < 4; layer++)
		ck_assert_int_eq(ucm_task_wait_stream(task, layer, stream,
						      20000),
				 0);
	ck_assert_int_eq(ucm_task_wait_stream(task, UCM_ALL_LAYERS, stream,
					      20000),
			 0);
	ck_assert_uint_ge(fake->waits, 5);
	ck_assert_int_eq(ucm_task_wait(task, 0), -ETIMEDOUT);
	for (unsigned i = 0; i < 8; i++)
		ck_assert(lf_page_untouched(&cache, i, 0, 4));
	read_pages(seen, 1);
	finish_stream();
	cache.memory = seen; /* as it was when its turn had come */
	for (unsigned i = 0; i < 8; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	cache.memory = before;
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ucm_loader_close(loader);
	free(seen);
}

/* Nothing on the device says that bytes are there that are not: the call says
 * it before anything can be queued after them. */
UNIT_TEST(a_stream_does_not_wait_for_what_is_not_loaded)
{
	struct ucm_loader_options options = on_device;
	struct ucm_loader *loader;
	struct ucm_task *task;

	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	lf_plant("$/tier", &lf_geometry, 0);
	options.io = UCM_IO_THREADS;
	lf_faults();
	loader = lf_loader("$/tier", &cache, &options);
	lf_hold(UCM_IO_READ, 0);
	task = lf_submit(loader, false, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait_stream(task, 4, stream, 0), -EINVAL);
	ck_assert_int_eq(ucm_task_wait_stream(task, 0, stream, 10),
			 -ETIMEDOUT);
	ck_assert_uint_eq(fake->waits, 0);
	lf_release();
	ck_assert_int_eq(ucm_task_wait_stream(task, 0, stream, 20000), 0);
	ucm_task_free(task);
	/* one is absent */
	task = lf_submit(loader, false, 0, 2, NULL);
	ck_assert_int_eq(ucm_task_wait_stream(task, 0, stream, 20000), -EIO);
	ucm_task_free(task);
	ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
	/* the device does not take the copy */
	fake->fail_with = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	fake->fail = "cuLaunchKernel";
	task = lf_submit(loader, false, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait_stream(task, UCM_ALL_LAYERS, stream,
					      20000),
			 -EIO);
	ucm_task_free(task);
	fake->fail = NULL;
	finish_stream();
	ucm_loader_close(loader);
}

UNIT_TEST(a_stream_that_is_captured_is_left_alone)
{
	struct ucm_loader *loader;
	struct ucm_task *task;

	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	lf_plant("$/tier", &lf_geometry, 0);
	loader = lf_loader("$/tier", &cache, &on_device);
	task = lf_submit(loader, false, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	fake->captured = stream;
	ck_assert_int_eq(ucm_task_wait_stream(task, 0, stream, 0), -EBUSY);
	fake->captured = NULL;
	ck_assert_uint_eq(fake->spoiled, 0);
	ck_assert_int_eq(ucm_task_wait_stream(task, 0, stream, 0), 0);
	fake->fail_with = CUDA_ERROR_INVALID_HANDLE;
	fake->fail = "cuStreamWaitEvent";
	ck_assert_int_eq(ucm_task_wait_stream(task, 0, stream, 0), -ENODEV);
	fake->fail = NULL;
	ucm_task_free(task);
	finish_stream();
	ucm_loader_close(loader);
}

static CUevent record_event(void)
{
	CUevent event;

	must(!cuda->CtxPushCurrent(context));
	must(!cuda->EventCreate(&event, CU_EVENT_DISABLE_TIMING));
	must(!cuda->EventRecord(event, stream));
	must(!cuda->CtxPopCurrent(&context));
	return event;
}

static void destroy_event(CUevent event)
{
	must(!cuda->CtxPushCurrent(context));
	must(!cuda->EventDestroy(event));
	must(!cuda->CtxPopCurrent(&context));
}

/* A step of the model reads the pages until its event; or writes them. Others go
 * on meanwhile. Row: load, save. */
UNIT_TEST(a_request_begins_after_its_event, .rows = 2)
{
	struct ucm_request request = { 0 };
	struct ucm_loader *loader;
	struct ucm_task *task;
	unsigned launches;

	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	lf_plant("$/tier", &lf_geometry, 1);
	loader = lf_loader("$/tier", &cache, &on_device);
	lf_cache_clear(&cache);
	request.after = record_event();
	launches = fake->launches;
	fake->hold = true;
	task = lf_submit(loader, _i, _i ? 100 : 1, 1, &request);
	ck_assert_int_eq(ucm_task_wait(task, 20), -ETIMEDOUT);
	ck_assert_uint_eq(fake->launches, launches);
	ck_assert(lf_page_untouched(&cache, 0, 0, 4));
	if (_i)
		lf_fill_page(&cache, 0, 100);
	fake->hold = false;
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	if (_i)
		ck_assert(lf_saved("$/tier", &lf_geometry, 100));
	else
		ck_assert(lf_page_is(&cache, 0, 0, 4, 1));
	ucm_task_free(task);
	destroy_event(request.after);
	ucm_loader_close(loader);
}

UNIT_TEST(others_do_not_wait_for_an_event_of_one)
{
	struct ucm_request late = { 0 };
	struct ucm_loader *loader;
	struct ucm_task *tasks[2];

	setenv("UCM_CUDA_RUN_BYTES", "1T", 1);
	for (unsigned i = 0; i < NUM; i++)
		lf_plant("$/tier", &lf_geometry, i);
	loader = lf_loader("$/tier", &cache, &on_device);
	late.after = record_event();
	fake->hold = true;
	tasks[0] = lf_submit(loader, false, 0, NUM, &late);
	tasks[1] = lf_submit(loader, true, 200, 1, &late);
	/* the event never comes for these; but copies of others end */
	ck_assert_int_eq(ucm_task_wait(tasks[0], 5), -ETIMEDOUT);
	ucm_task_cancel(tasks[0]);
	ck_assert_int_eq(ucm_task_wait(tasks[0], 20000), -EIO);
	ck_assert_int_eq(ucm_task_outcomes(tasks[0])->err, -ECANCELED);
	fake->hold = false;
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	ck_assert_int_eq(ucm_task_wait(tasks[1], 20000), 0);
	ucm_task_free(tasks[0]);
	ucm_task_free(tasks[1]);
	/* one of which nothing can be learned */
	fake->fail_with = CUDA_ERROR_INVALID_HANDLE;
	fake->fail = "cuEventQuery";
	for (int save = 0; save < 2; save++) {
		tasks[0] = lf_submit(loader, save, 300 * save, 1, &late);
		ck_assert_int_eq(ucm_task_wait(tasks[0], 20000), -EIO);
		ck_assert_int_lt(ucm_task_outcomes(tasks[0])->err, 0);
		ucm_task_free(tasks[0]);
	}
	fake->fail = NULL;
	ck_assert(!fx_exists(lf_path("$/tier", 300)));
	destroy_event(late.after);
	ucm_loader_close(loader);
}

UNIT_TEST(a_loader_without_a_device_says_why)
{
	struct ucm_loader_options options = on_device;
	struct ucm_loader *loader;
	struct ucm_error error = { "" };

	options.size = sizeof(options);
	options.tiers = fx_path("$/tier");
	options.device = 7;
	ck_assert_int_eq(ucm_loader_open(&options, &loader, &error), -ENODEV);
	ck_assert_msg(strstr(error.text, "CUDA device 7: cuDeviceGet") != NULL,
		      "%s", error.text);
}
