/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_failures.c - calls of CUDA that fail, or are refused while a graph
 * is captured, and what comes of them.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "gpu/copy/cuda.h"
#include "tests/unit/copy/driver_fixture.h"

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
