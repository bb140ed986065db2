/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_api.c - the host's side of the CUDA back end: which driver it
 * finds, what it calls, with which image, and how it copies.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "gpu/copy/cuda.h"
#include "tests/unit/copy/driver_fixture.h"

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
	unsetenv("UCM_CUDA_RUN_BYTES");
	cuda_fixture_open(&fixture, &(struct ucm_copy_options){ 0 });
	ck_assert_uint_eq(fake->launches, 0);
	ck_assert_uint_eq(num_logged, 1); /* it is said once */
	close_clean();
}

/* ---- kernel or copy engine ---- */

UNIT_TEST(long_runs_are_the_copy_engines_without_a_word)
{
	struct ucm_copy_options options = { .stream = UCM_STREAM_OWN };
	struct ucm_copy *copy;
	struct ucm_error error;

	use_fake();
	must(!ucm_copy_cuda.open(&options, &copy, &error));
	ck_assert_uint_eq(copy->engine_from, 512 << 10);
	ck_assert_uint_eq(fake->launches, 0);
	ucm_copy_cuda.close(copy);
	ck_assert_uint_eq(fake->live, 0);
	ck_assert_uint_eq(fake->mistakes, 0);
}
