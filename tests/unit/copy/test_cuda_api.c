/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_api.c - the host's side of the CUDA back end, on a driver made for
 * tests (fake_cuda.c): what is called, in which order, with which memory, and
 * what comes of failures. It says nothing of a real driver: tests/gpu.
 */
#include <config.h>

#include "gpu/copy/cuda_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "gpu/copy/cuda.h"

#include "tests/unit/cuda_fixture.h"
#include "tests/unit/fake_cuda.h"

static struct fake_cuda *fake;
static struct cuda_fixture fixture;
static unsigned num_logged;
static char logged[1024];

static void keep_line(enum ucm_log_level level, const char *line)
{
	if (level > UCM_LOG_WARNING)
		return;
	num_logged++;
	strncpy(logged, line, sizeof(logged) - 1);
}

/* Beside this program, in the build directory. */
static void use_fake(void)
{
	void *library;

	ucm_cuda_library = FAKE_CUDA;
	library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(library != NULL, "%s", dlerror());
	fake = dlsym(library, "fake_cuda");
	ck_assert_ptr_nonnull(fake);
	ucm_log_set(keep_line, UCM_LOG_INFO);
}

#define KERNELS "1T"
#define ENGINE "0"

static void open_with(const char *run_bytes, void *stream)
{
	struct ucm_copy_options options = { .stream = stream };

	use_fake();
	setenv("UCM_CUDA_RUN_BYTES", run_bytes, 1);
	cuda_fixture_open(&fixture, &options);
}

static void close_clean(void)
{
	fake->fail = NULL;
	cuda_fixture_close(&fixture);
	ck_assert_uint_eq(fake->live, 0);
	ck_assert_int_eq(fake->pushed, 0);
	ck_assert_uint_eq(fake->mistakes, 0);
}

/* ---- finding the driver ---- */

static void fails_to_open(const char *part)
{
	struct ucm_copy_options options = { .stream = UCM_STREAM_OWN };
	struct ucm_copy *copy = NULL;
	struct ucm_error error = { "" };

	ck_assert_int_eq(ucm_copy_cuda.open(&options, &copy, &error), -ENODEV);
	ck_assert_msg(strstr(error.text, part) != NULL, "%s", error.text);
	ck_assert_ptr_null(copy);
}

UNIT_TEST(without_a_driver_it_says_so)
{
	ucm_cuda_library = "/nonexistent/libcuda.so.1";
	fails_to_open("no CUDA driver: /nonexistent/libcuda.so.1");
}

UNIT_TEST(a_driver_that_does_not_fit_is_named)
{
	ucm_cuda_library = "libm.so.6"; /* a library, and no such call */
	fails_to_open("libm.so.6 is older than CUDA 12");
	use_fake();
	fake->missing = "cuMemHostRegister";
	fails_to_open("has no cuMemHostRegister");
}

UNIT_TEST(without_a_device_it_says_so)
{
	use_fake();
	fake->num_devices = 0;
	fails_to_open("there is no CUDA device");
	fake->fail = "cuInit";
	fake->fail_with = CUDA_ERROR_LAUNCH_FAILED;
	fails_to_open("cuInit: CUDA_ERROR_LAUNCH_FAILED (719): unspecified");
	fake->fail = NULL;
	fake->num_devices = 1; /* it is tried again, not remembered */
	setenv("UCM_CUDA_RUN_BYTES", KERNELS, 1);
	cuda_fixture_open(&fixture, &(struct ucm_copy_options){ 0 });
	close_clean();
}

UNIT_TEST(a_device_that_is_not_there)
{
	struct ucm_copy_options options = { .device = 3 };
	struct ucm_copy *copy;
	struct ucm_error error;

	use_fake();
	ck_assert_int_eq(ucm_copy_cuda.open(&options, &copy, &error), -ENODEV);
	ck_assert_ptr_nonnull(
		strstr(error.text, "CUDA device 3: cuDeviceGet: "));
	ck_assert_uint_eq(fake->live, 0);
}

/* ---- copying ---- */

static void rounds(int num)
{
	while (num--) {
		if (!fixture.num_groups || below(2))
			cuda_fixture_group(&fixture);
		cuda_fixture_round(&fixture, below(2));
		ck_assert_int_eq(fake->pushed, 0);
	}
}

UNIT_TEST(kernels_copy_what_load_h_says)
{
	open_with(KERNELS, UCM_STREAM_OWN);
	rounds(40);
	ck_assert_uint_eq(fake->batches, 0);
	ck_assert_uint_eq(fake->ctas, 8);
	ck_assert_uint_eq(fake->foreign, 0);
	close_clean();
}

UNIT_TEST(the_copy_engine_does_the_same)
{
	open_with(ENGINE, UCM_STREAM_OWN);
	rounds(40);
	ck_assert_uint_eq(fake->launches, 0);
	ck_assert_uint_ge(fake->batches, 40);
	close_clean();
}

UNIT_TEST(an_older_driver_copies_piece_by_piece)
{
	use_fake();
	fake->version = 12040;
	open_with(ENGINE, UCM_STREAM_OWN);
	rounds(20);
	ck_assert_uint_eq(fake->batches, 0);
	close_clean();
}

UNIT_TEST(the_legacy_stream_gets_no_batched_call)
{
	open_with(ENGINE, CU_STREAM_LEGACY);
	rounds(20);
	ck_assert_uint_eq(fake->batches, 0);
	close_clean();
}

UNIT_TEST(copies_are_ordered_in_the_callers_stream)
{
	open_with(KERNELS, (void *)FAKE_STREAM);
	cuda_fixture_group(&fixture);
	cuda_fixture_round(&fixture, false);
	/* descriptors, launch, event */
	ck_assert_uint_eq(fake->foreign, 3);
	close_clean();
}

/* As PyTorch's default stream is given. */
UNIT_TEST(no_stream_is_the_default_stream)
{
	struct ucm_copy_job job = { .end_layer = 1 };

	for (int own = 0; own < 2; own++) {
		open_with(KERNELS, own ? UCM_STREAM_OWN : NULL);
		cuda_fixture_group(&fixture);
		job.staging = fixture.staging;
		fake->legacy = 0;
		ucm_copy_cuda.scatter(fixture.copy, &job);
		ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), 0);
		/* descriptors, launch, event */
		ck_assert_uint_eq(fake->legacy, own ? 0 : 3);
		close_clean();
	}
}

UNIT_TEST(a_stream_that_is_another_one_in_each_thread_is_refused)
{
	struct ucm_copy_options options = { .stream = CU_STREAM_PER_THREAD };
	struct ucm_copy *copy;
	struct ucm_error error;

	use_fake();
	ck_assert_int_eq(ucm_copy_cuda.open(&options, &copy, &error), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "CU_STREAM_PER_THREAD"));
	ck_assert_uint_eq(fake->live, 0);
}

UNIT_TEST(ctas_are_as_asked_for)
{
	struct ucm_copy_options options = { .stream = UCM_STREAM_OWN,
					    .ctas = 3 };

	use_fake();
	setenv("UCM_CUDA_RUN_BYTES", KERNELS, 1);
	cuda_fixture_open(&fixture, &options);
	rounds(3);
	ck_assert_uint_eq(fake->ctas, 3);
	close_clean();
}

/* ---- many at a time ---- */

#define MANY 400

static struct ucm_copy_job *many_jobs(const struct ucm_layout *layout,
				      unsigned num, const uint64_t *addresses)
{
	struct ucm_copy_job *jobs = calloc(num, sizeof(*jobs));

	for (unsigned i = 0; i < num; i++)
		jobs[i] = (struct ucm_copy_job){
			.end_layer = layout->geometry.num_layers,
			.staging = fixture.staging,
			.addresses = addresses,
		};
	return jobs;
}

UNIT_TEST(what_has_no_room_waits_and_each_job_comes_back_once, .rows = 2)
{
	const struct ucm_layout *layout;
	struct ucm_copy_job *jobs;
	uint64_t addresses[MAX_REGIONS];

	open_with(_i ? ENGINE : KERNELS, UCM_STREAM_OWN);
	layout = cuda_fixture_group(&fixture);
	for (size_t i = 0; i < layout->num_regions; i++)
		addresses[i] = layout->regions[i].base;
	jobs = many_jobs(layout, MANY, addresses);
	fake->hold = true;
	for (unsigned i = 0; i < MANY / 2; i++) /* batches of one */
		(i % 3 ? ucm_copy_cuda.scatter
		       : ucm_copy_cuda.gather)(fixture.copy, &jobs[i]);
	ck_assert_uint_eq(fixture.copy->num_batches, UCM_BATCHES);
	ck_assert_ptr_null(ucm_copy_cuda.poll(fixture.copy));
	for (unsigned i = MANY / 2; i + 1 < MANY; i++)
		jobs[i].next = &jobs[i + 1];
	ucm_copy_cuda.scatter(fixture.copy, &jobs[MANY / 2]);
	fake->hold = false;
	ck_assert_int_eq(cuda_fixture_wait(&fixture, MANY), 0);
	close_clean();
	free(jobs);
}

/* Pages of 16 bytes, in four regions: more descriptors than the ring holds. */
#define TINY 40000

static void add_tiny_group(void)
{
	static uint32_t first[2];
	static struct ucm_region regions[4];
	static struct ucm_layout layout = {
		.geometry = { .num_layers = 1, .k_bytes = 16 },
		.num_pages = TINY,
		.regions = regions,
		.num_regions = 4,
	};

	for (unsigned i = 0; i < 4; i++)
		regions[i] = (struct ucm_region){
			.base = fixture.pages + 4 * (3 - i),
			.page_stride = 16,
			.run_bytes = 4,
			.n0 = 1,
			.n1 = 1,
		};
	seal(&layout, first);
	must(!ucm_copy_cuda.add_group(fixture.copy, 0, &layout));
}

static struct ucm_copy_job *tiny_jobs(uint64_t addresses[][4])
{
	struct ucm_copy_job *jobs = calloc(TINY, sizeof(*jobs));

	for (uint32_t i = 0; i < TINY; i++) {
		for (uint32_t k = 0; k < 4; k++)
			addresses[i][k] = fixture.pages + 16 * i + 4 * (3 - k);
		jobs[i] = (struct ucm_copy_job){
			.end_layer = 1,
			.page = i,
			.staging = fixture.staging + 16 * i,
			.addresses = i % 3 ? addresses[i] : NULL,
		};
	}
	return jobs;
}

/* Lists of many lengths, of which some end, so that the ring is full and its
 * ends are anywhere. */
static void send_all(struct ucm_copy_job *jobs, bool gather)
{
	unsigned in_flight = 0;

	fake->hold = true;
	for (unsigned sent = 0, num; sent < TINY; sent += num) {
		num = 1 + below(2000);
		num = num < TINY - sent ? num : TINY - sent;
		for (unsigned i = 0; i < num; i++)
			jobs[sent + i].next =
				i + 1 < num ? &jobs[sent + i + 1] : NULL;
		(gather ? ucm_copy_cuda.gather
			: ucm_copy_cuda.scatter)(fixture.copy, &jobs[sent]);
		if (fixture.copy->waiting[gather].first)
			fake->release = 1 + below(3);
		in_flight += num;
		for (struct ucm_copy_job *job =
			     ucm_copy_cuda.poll(fixture.copy);
		     job; job = job->next)
			in_flight--;
	}
	fake->hold = false;
	ck_assert_int_eq(cuda_fixture_wait(&fixture, in_flight), 0);
}

UNIT_TEST(descriptors_lie_in_a_ring)
{
	uint64_t(*addresses)[4] = calloc(TINY, sizeof(*addresses));
	uint32_t *staging;
	struct ucm_copy_job *jobs;

	open_with(KERNELS, UCM_STREAM_OWN);
	add_tiny_group();
	jobs = tiny_jobs(addresses);
	staging = (uint32_t *)(void *)fixture.staging;
	for (uint32_t i = 0; i < 4 * TINY; i++)
		staging[i] = i;
	send_all(jobs, false);
	cuda_fixture_download(&fixture, fixture.got);
	for (uint32_t i = 0; i < 4 * TINY; i++)
		must(((uint32_t *)(void *)fixture.got)[i] == (i ^ 3));
	memset(fixture.staging, 0, STAGING_BYTES);
	send_all(jobs, true);
	for (uint32_t i = 0; i < 4 * TINY; i++)
		must(staging[i] == i);
	close_clean();
	free(jobs);
	free(addresses);
}

UNIT_TEST(close_waits_for_what_is_under_way)
{
	struct ucm_copy_job job = { .end_layer = 1 };

	open_with(KERNELS, UCM_STREAM_OWN);
	cuda_fixture_group(&fixture);
	job.staging = fixture.staging;
	fake->hold = true;
	ucm_copy_cuda.scatter(fixture.copy, &job);
	ck_assert_uint_gt(fake->queued, 0);
	close_clean(); /* memory that is in use is not freed: a mistake */
}

/* ---- failures ---- */

static void one_job_fails(const char *call, unsigned after, const char *line)
{
	struct ucm_copy_job a = { .end_layer = 1, .staging = fixture.staging };
	struct ucm_copy_job b = a;

	num_logged = 0;
	fake->fail = call;
	fake->fail_after = after;
	fake->fail_with = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	ucm_copy_cuda.scatter(fixture.copy, &a);
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), -EIO);
	ck_assert_uint_eq(fake->queued, 0); /* pages are left alone */
	ck_assert(!a.lost);
	ck_assert_str_eq(logged, line);
	ucm_copy_cuda.scatter(fixture.copy, &b);
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), -EIO);
	ck_assert_uint_eq(num_logged, 1); /* once */
	fake->fail = NULL;
	ucm_copy_cuda.scatter(fixture.copy, &a);
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), 0);
}

#define FAILURE "CUDA_ERROR_OTHER (701): some other error"

UNIT_TEST(a_call_that_fails_fails_its_jobs_only)
{
	static const struct {
		const char *run_bytes, *call, *line;
	} rows[] = {
		{ KERNELS, "cuMemcpyAsync",
		  "CUDA: cuMemcpyAsync of descriptors: " FAILURE },
		{ KERNELS, "cuLaunchKernel",
		  "CUDA: cuLaunchKernel of the scatter: " FAILURE },
		{ KERNELS, "cuEventRecord", "CUDA: cuEventRecord: " FAILURE },
		{ KERNELS, "cuEventQuery", "CUDA: copies: " FAILURE },
		{ ENGINE, "cuMemcpyBatchAsync",
		  "CUDA: cuMemcpyBatchAsync: " FAILURE },
		{ ENGINE, "cuEventQuery", "CUDA: copies: " FAILURE },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		open_with(rows[i].run_bytes, UCM_STREAM_OWN);
		cuda_fixture_group(&fixture);
		one_job_fails(rows[i].call, 0, rows[i].line);
		close_clean();
	}
}

/* ---- while another thread captures a graph ---- */

UNIT_TEST(a_capture_elsewhere_is_not_disturbed, .rows = 2)
{
	static uint8_t more[4096] __attribute__((aligned(4096)));
	struct ucm_copy_options options = { .stream = UCM_STREAM_OWN };
	struct ucm_copy_job jobs[2];
	struct ucm_copy *second;
	struct ucm_error error;

	open_with(_i ? ENGINE : KERNELS, UCM_STREAM_OWN);
	cuda_fixture_group(&fixture);
	memset(fixture.got, 0x5a, PAGES_BYTES);
	cuda_fixture_upload(&fixture, fixture.got);
	jobs[0] = (struct ucm_copy_job){ .end_layer = 1,
					 .staging = fixture.staging };
	jobs[1] = jobs[0];
	fake->capturing = true;
	ucm_copy_cuda.gather(fixture.copy, &jobs[0]);
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), 0);
	ck_assert_int_eq(fixture.staging[0], 0x5a);
	ucm_copy_cuda.scatter(fixture.copy, &jobs[1]);
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), 0);
	/* and what a loader does when it is opened and closed */
	must(!ucm_copy_cuda.open(&options, &second, &error));
	must(!ucm_copy_cuda.register_staging(second, more, sizeof(more)));
	ucm_copy_cuda.close(second);
	fake->capturing = false; /* the fixture has calls of its own */
	ck_assert_uint_eq(fake->spoiled, 0);
	close_clean();
}

/* A gather: it writes to staging, which the next one would use meanwhile. */
UNIT_TEST(a_copy_ends_only_when_the_driver_has_said_so, .rows = 4)
{
	static const int refusals[] = { CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
					CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
					CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
					CUDA_ERROR_INVALID_HANDLE };
	struct ucm_copy_job job = { .end_layer = 1 };

	open_with(KERNELS, UCM_STREAM_OWN);
	cuda_fixture_group(&fixture);
	job.staging = fixture.staging;
	num_logged = 0;
	fake->refusal = refusals[_i];
	ucm_copy_cuda.gather(fixture.copy, &job);
	for (int i = 0; i < 100; i++)
		ck_assert_ptr_null(ucm_copy_cuda.poll(fixture.copy));
	ck_assert_uint_gt(fake->queued, 0);
	ck_assert_uint_eq(num_logged, 1);
	fake->refusal = 0;
	/* what is no refusal in passing is a failure, once it has ended */
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), _i == 3 ? -EIO : 0);
	ck_assert_uint_eq(fake->queued, 0);
	ck_assert(!job.lost);
	close_clean();
}

UNIT_TEST(a_call_that_is_refused_is_made_again)
{
	static const struct {
		const char *run_bytes, *call;
	} rows[] = {
		{ KERNELS, "cuMemcpyAsync" },  { KERNELS, "cuLaunchKernel" },
		{ KERNELS, "cuEventRecord" },  { ENGINE, "cuMemcpyBatchAsync" },
		{ ENGINE, "cuEventRecord" },
	};
	struct ucm_copy_job jobs[2];

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		open_with(rows[i].run_bytes, UCM_STREAM_OWN);
		cuda_fixture_group(&fixture);
		jobs[0] = (struct ucm_copy_job){ .end_layer = 1,
						 .staging = fixture.staging };
		jobs[1] = jobs[0];
		fake->fail = rows[i].call;
		fake->fail_with = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		ucm_copy_cuda.scatter(fixture.copy, &jobs[0]);
		ucm_copy_cuda.gather(fixture.copy, &jobs[1]);
		for (int k = 0; k < 100; k++)
			ck_assert_ptr_null(ucm_copy_cuda.poll(fixture.copy));
		fake->fail = NULL;
		ck_assert_int_eq(cuda_fixture_wait(&fixture, 2), 0);
		rounds(3);
		close_clean();
	}
}

/* What is queued there would run when the graph does. */
UNIT_TEST(nothing_is_queued_in_a_stream_that_is_captured, .rows = 2)
{
	struct ucm_copy_job job = { .end_layer = 1 };
	unsigned queued;

	open_with(KERNELS, _i ? CU_STREAM_LEGACY : (void *)FAKE_STREAM);
	cuda_fixture_group(&fixture);
	job.staging = fixture.staging;
	fake->captured = (void *)FAKE_STREAM;
	queued = fake->queued;
	ucm_copy_cuda.scatter(fixture.copy, &job);
	for (int i = 0; i < 100; i++)
		ck_assert_ptr_null(ucm_copy_cuda.poll(fixture.copy));
	ck_assert_uint_eq(fake->queued, queued);
	ck_assert_uint_eq(fake->spoiled, 0);
	fake->captured = NULL;
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), 0);
	close_clean();
}

UNIT_TEST(what_a_dead_device_had_is_lost_and_no_more_is_sent, .rows = 2)
{
	struct ucm_copy_job jobs[3];
	unsigned launches;

	open_with(KERNELS, UCM_STREAM_OWN);
	cuda_fixture_group(&fixture);
	for (int i = 0; i < 3; i++)
		jobs[i] = (struct ucm_copy_job){ .end_layer = 1,
						 .staging = fixture.staging };
	fake->hold = true;
	ucm_copy_cuda.gather(fixture.copy, &jobs[0]);
	num_logged = 0;
	fake->refusal = _i ? CUDA_ERROR_CONTEXT_IS_DESTROYED
			   : CUDA_ERROR_ILLEGAL_ADDRESS;
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), -EIO);
	ck_assert(jobs[0].lost);
	ck_assert_uint_eq(num_logged, 2); /* the error, and what it means */
	ck_assert_ptr_nonnull(strstr(logged, "1 copies were under way"));
	launches = fake->launches;
	fake->refusal = 0;
	ucm_copy_cuda.gather(fixture.copy, &jobs[1]);
	ucm_copy_cuda.scatter(fixture.copy, &jobs[2]);
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 2), -EIO);
	ck_assert(!jobs[1].lost && !jobs[2].lost);
	ck_assert_uint_eq(fake->launches, launches);
	ck_assert_uint_eq(num_logged, 2);
	fake->hold = false;
	fixture.cuda->CtxPushCurrent(fixture.context);
	fixture.cuda->StreamSynchronize(NULL);
	fixture.cuda->CtxPopCurrent(&fixture.context);
	close_clean();
}

UNIT_TEST(a_lost_context_fails_everything_that_waits)
{
	const struct ucm_layout *layout;
	struct ucm_copy_job *jobs;

	open_with(KERNELS, UCM_STREAM_OWN);
	layout = cuda_fixture_group(&fixture);
	jobs = many_jobs(layout, 200, NULL);
	fake->hold = true;
	for (unsigned i = 0; i < 200; i++)
		ucm_copy_cuda.scatter(fixture.copy, &jobs[i]);
	num_logged = 0;
	fake->fail = "cuCtxPushCurrent";
	fake->fail_with = CUDA_ERROR_LAUNCH_FAILED;
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 200), -EIO);
	ck_assert_uint_eq(num_logged, 2);
	for (unsigned i = 0; i < 200; i++)
		must(jobs[i].lost == (i < UCM_BATCHES));
	fake->fail = NULL;
	fake->hold = false;
	fixture.cuda->CtxPushCurrent(fixture.context);
	fixture.cuda->StreamSynchronize(NULL);
	fixture.cuda->CtxPopCurrent(&fixture.context);
	close_clean();
	free(jobs);
}

/* Whichever call fails while it is opened, nothing is left behind. */
UNIT_TEST(an_open_that_fails_leaves_nothing)
{
	static const char *const names[] = {
		"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
		"cuStreamCreate",	    "cuEventCreate",
		"cuModuleLoadData",	    "cuModuleGetFunction",
		"cuMemHostAlloc",	    "cuMemAlloc",
	};
	struct ucm_copy_options options = { .stream = UCM_STREAM_OWN };
	struct ucm_copy *copy;
	struct ucm_error error;

	use_fake();
	setenv("UCM_CUDA_RUN_BYTES", KERNELS, 1);
	fake->fail_with = CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < NUM_ROWS(names); i++) {
		fake->fail = names[i];
		fake->fail_after = 0;
		error.text[0] = '\0';
		ck_assert_int_eq(ucm_copy_cuda.open(&options, &copy, &error),
				 -ENOMEM);
		ck_assert_ptr_nonnull(strstr(error.text, "CUDA device 0: "));
		ck_assert_uint_eq(fake->live, 0);
		ck_assert_int_eq(fake->pushed, 0);
	}
	setenv("UCM_CUDA_RUN_BYTES", "much", 1);
	fake->fail = NULL;
	ck_assert_int_eq(ucm_copy_cuda.open(&options, &copy, &error), -EINVAL);
	ck_assert_uint_eq(fake->live, 0);
}

UNIT_TEST(what_the_device_could_not_refuse_is_refused_here)
{
	const struct ucm_layout *layout;
	struct ucm_copy_job good = { .end_layer = 1 }, bad;

	open_with(KERNELS, UCM_STREAM_OWN);
	layout = cuda_fixture_group(&fixture);
	good.staging = fixture.staging;
	for (int i = 0; i < 6; i++) {
		bad = good;
		switch (i) {
		case 0:
			bad.group = 1;
			break;
		case 1:
			bad.page = (uint32_t)layout->num_pages;
			break;
		case 2:
			bad.end_layer = layout->geometry.num_layers + 1;
			break;
		case 3:
			bad.end_layer = 0;
			break;
		case 4: /* beyond registered memory by a byte */
			bad.staging = fixture.staging + STAGING_BYTES -
				      ucm_layout_layer_bytes(layout) + 1;
			break;
		default:
			bad.staging = (uint8_t *)logged;
		}
		ucm_copy_cuda.gather(fixture.copy, &bad);
		ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), -EINVAL);
	}
	ck_assert_uint_eq(fake->launches, 0);
	good.staging = fixture.staging + STAGING_BYTES -
		       ucm_layout_layer_bytes(layout);
	ucm_copy_cuda.gather(fixture.copy, &good);
	ck_assert_int_eq(cuda_fixture_wait(&fixture, 1), 0);
	close_clean();
}

UNIT_TEST(staging_that_is_pinned_already_is_taken_and_left)
{
	struct ucm_copy_options options = { .stream = UCM_STREAM_OWN };
	struct ucm_copy *second;
	struct ucm_error error;

	open_with(KERNELS, UCM_STREAM_OWN);
	must(!ucm_copy_cuda.open(&options, &second, &error));
	ck_assert_int_eq(ucm_copy_cuda.register_staging(
				 second, fixture.staging, STAGING_BYTES),
			 0);
	ucm_copy_cuda.close(second);
	cuda_fixture_group(&fixture);
	cuda_fixture_round(&fixture, true);
	fake->fail = "cuMemHostRegister";
	fake->fail_with = CUDA_ERROR_OUT_OF_MEMORY;
	ck_assert_int_eq(ucm_copy_cuda.register_staging(fixture.copy, logged,
							sizeof(logged)),
			 -ENOMEM);
	close_clean();
}

/* ---- which image ---- */

UNIT_TEST(ptx_is_taken_where_there_is_no_machine_code)
{
	use_fake();
	fake->no_binary = CUDA_ERROR_NO_BINARY_FOR_GPU;
	open_with(KERNELS, UCM_STREAM_OWN);
	ck_assert_uint_ge(fake->from_ptx, 1);
	rounds(5);
	ck_assert_uint_gt(fake->launches, 0);
	close_clean();
}

UNIT_TEST(a_device_without_an_image_is_served_by_its_copy_engine, .rows = 5)
{
	static const int refusals[] = { CUDA_ERROR_NO_BINARY_FOR_GPU,
					CUDA_ERROR_INVALID_PTX,
					CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
					CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
					CUDA_ERROR_JIT_COMPILATION_DISABLED };

	use_fake();
	fake->no_binary = CUDA_ERROR_NO_BINARY_FOR_GPU;
	fake->no_ptx = refusals[_i];
	fake->sm = 61;
	num_logged = 0;
	open_with(KERNELS, UCM_STREAM_OWN);
	ck_assert_uint_eq(num_logged, 1);
	ck_assert_ptr_nonnull(strstr(logged, "CUDA device 0 (fake device 0, "
					     "sm_61): no kernels for it"));
	ck_assert_ptr_nonnull(strstr(logged, "has " CUDA_IMAGES ", and PTX "));
	rounds(10);
	ck_assert_uint_eq(fake->launches, 0);
	close_clean();
	unsetenv("UCM_CUDA_RUN_BYTES"); /* there is nothing to measure */
	cuda_fixture_open(&fixture, &(struct ucm_copy_options){ 0 });
	ck_assert_uint_eq(fake->launches, 0);
	ck_assert_uint_eq(num_logged, 1); /* it is said once */
	close_clean();
}

/* ---- kernel or copy engine ---- */

UNIT_TEST(the_run_length_is_found_by_measuring_once)
{
	static const struct {
		double us_per_piece;
		uint64_t want;
	} rows[] = {
		{ 100, UINT64_MAX }, { 1, 1 << 20 }, { 0.5, 256 << 10 },
		{ 0.1, 64 << 10 },   { 0, 16 << 10 },
	};
	struct ucm_copy_options options = { .stream = UCM_STREAM_OWN };
	struct ucm_copy *copy;
	unsigned launches;
	struct ucm_error error;

	use_fake();
	for (unsigned i = 0; i < NUM_ROWS(rows); i++) {
		fake->us_per_piece = rows[i].us_per_piece;
		options.ctas = i + 1; /* is measured by itself */
		for (int again = 0; again < 2; again++) {
			launches = fake->launches;
			must(!ucm_copy_cuda.open(&options, &copy, &error));
			ck_assert_uint_eq(copy->engine_from[0], rows[i].want);
			ck_assert_uint_eq(copy->engine_from[1], rows[i].want);
			ck_assert_int_eq(fake->launches == launches, again);
			ucm_copy_cuda.close(copy);
		}
	}
	ck_assert_uint_eq(fake->live, 0);
	ck_assert_uint_eq(fake->mistakes, 0);
}

UNIT_TEST(what_cannot_be_measured_has_a_default)
{
	static const char *const names[] = { "cuEventElapsedTime",
					     "cuLaunchKernel",
					     "cuEventSynchronize",
					     "cuMemcpyBatchAsync" };
	struct ucm_copy_options options = { .stream = UCM_STREAM_OWN };
	struct ucm_copy *copy;
	struct ucm_error error;

	use_fake();
	fake->fail_with = CUDA_ERROR_LAUNCH_FAILED;
	for (unsigned i = 0; i < NUM_ROWS(names); i++) {
		fake->fail = names[i];
		fake->fail_after = 2;
		options.ctas = i + 1;
		must(!ucm_copy_cuda.open(&options, &copy, &error));
		ck_assert_uint_eq(copy->engine_from[0], 512 << 10);
		ck_assert_uint_eq(copy->engine_from[1], 512 << 10);
		ucm_copy_cuda.close(copy);
		ck_assert_uint_eq(fake->live, 0);
	}
	ck_assert_uint_eq(fake->mistakes, 0);
}
