/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_twins_calls.c - kernels of gpu/sparse/ are opened and launched, or are
 * not, on a driver made for tests.
 */
#include <config.h>

#include "tests/unit/sparse/fake_device.h"

UNIT_FIXTURE(.setup = open_fake, .teardown = close_fake);

UNIT_TEST(a_device_without_an_image_is_named)
{
	struct ucm_sparse_cuda *twins;
	struct ucm_error error;

	fake->no_binary = CUDA_ERROR_NO_BINARY_FOR_GPU;
	fake->no_ptx = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	fake->sm = 130;
	ck_assert_int_eq(ucm_sparse_cuda_open(0, &twins, &error), -ENOTSUP);
	ck_assert_msg(strstr(error.text, "sm_130): no kernels for it; this "
					 "library has " CUDA_IMAGES) != NULL,
		      "%s", error.text);
	fake->no_ptx = 0;
	ok(ucm_sparse_cuda_open(0, &twins, &error));
	ucm_sparse_cuda_close(twins);
}

UNIT_TEST(no_requests_are_nothing_to_do)
{
	struct ucm_repr_slab slab = a_slab();
	struct ucm_cuda_score score = a_score(&slab);
	struct ucm_cuda_select select = a_selection();
	struct ucm_budget_config config = { .block_size = 16 };

	score.requests.num = select.requests.num = 0;
	ck_assert_int_eq(ucm_sparse_cuda_score(fixture.twins, &spec, &score,
					       NULL, NULL), 0);
	ck_assert_int_eq(ucm_sparse_cuda_select(fixture.twins, &config,
						&select, NULL, NULL), 0);
	nothing_was_queued();
}

UNIT_TEST(a_call_is_one_kernel_in_the_stream_of_the_caller)
{
	struct ucm_repr_slab slab = a_slab();
	struct ucm_cuda_score score = a_score(&slab);
	int32_t zeros[16] = { 0 };

	score.requests.tables = twins_upload(&fixture, zeros, sizeof(zeros));
	score.requests.tokens = score.requests.tables;
	fake->foreign = 0;
	ck_assert_int_eq(ucm_sparse_cuda_score(fixture.twins, &spec, &score,
					       (void *)FAKE_STREAM, NULL), 0);
	ck_assert_uint_eq(fake->launches, 1);
	ck_assert_uint_eq(fake->foreign, 1);
	ck_assert_uint_eq(fake->queued, 1); /* nothing has waited for it */
	twins_download(&fixture, zeros, score.requests.tables, sizeof(zeros));
}

UNIT_TEST(a_launch_that_fails_is_told)
{
	struct ucm_cuda_select select = a_selection();
	struct ucm_budget_config config = { .block_size = 16 };
	struct ucm_error error;

	fake->fail_with = CUDA_ERROR_LAUNCH_FAILED;
	fake->fail = "cuLaunchKernel";
	ck_assert_int_eq(ucm_sparse_cuda_select(fixture.twins, &config,
						&select, NULL, &error), -EIO);
	ck_assert_str_eq(error.text, "CUDA device 0: ucm_twin_select: "
				     "CUDA_ERROR_LAUNCH_FAILED (719): "
				     "unspecified launch failure");
	ck_assert_int_eq(fake->pushed, 0);
	fake->fail = "cuCtxPushCurrent";
	ck_assert_int_eq(ucm_sparse_cuda_select(fixture.twins, &config,
						&select, NULL, &error), -EIO);
}

/* ---- opening ---- */

static void opens_not(const char *call, int after)
{
	struct ucm_sparse_cuda *twins = NULL;
	struct ucm_error error;
	unsigned live = fake->live;

	fake->fail = call;
	fake->fail_after = (unsigned)after;
	fake->fail_with = CUDA_ERROR_OUT_OF_MEMORY;
	ck_assert_int_eq(ucm_sparse_cuda_open(0, &twins, &error), -ENOMEM);
	ck_assert_msg(!strncmp(error.text, "CUDA device 0: ", 15), "%s",
		      error.text);
	ck_assert_ptr_null(twins);
	fake->fail = NULL;
	ck_assert_uint_eq(fake->live, live); /* all is undone */
	ck_assert_int_eq(fake->pushed, 0);
}

UNIT_TEST(opening_that_fails_leaves_nothing_behind)
{
	opens_not("cuDeviceGet", 0);
	opens_not("cuDevicePrimaryCtxRetain", 0);
	opens_not("cuCtxPushCurrent", 0);
	opens_not("cuModuleLoadData", 0);
	opens_not("cuModuleGetFunction", 0);
	opens_not("cuModuleGetFunction", 10);
}

UNIT_FIXTURE(.setup = NULL);

UNIT_TEST(without_a_driver_it_says_so)
{
	struct ucm_sparse_cuda *twins = NULL;
	struct ucm_error error;

	ucm_cuda_library = "/nonexistent/libcuda.so.1";
	ck_assert_int_eq(ucm_sparse_cuda_open(0, &twins, &error), -ENODEV);
	ck_assert_msg(strstr(error.text, "no CUDA driver") != NULL, "%s",
		      error.text);
	ck_assert_ptr_null(twins);
	ucm_sparse_cuda_close(NULL);
}
