/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_copy_cuda.c - the CUDA back end on a device: the compiled kernels and
 * the copy engine give what load.h says, byte by byte.
 *
 * UNTESTED: on a device, as there was none; on the driver of tests/unit it
 * passes. It does not fork: a child cannot use the driver of its parent.
 */
#include <config.h>

#include <stdio.h>

#include "tests/unit/cuda_fixture.h"

#define KERNELS "1T"
#define ENGINE "0"

static struct cuda_fixture fixture;

static void rounds(const char *run_bytes, void *stream, unsigned ctas, int num)
{
	struct ucm_copy_options options = { .stream = stream, .ctas = ctas };

	setenv("UCM_CUDA_RUN_BYTES", run_bytes, 1);
	cuda_fixture_open(&fixture, &options);
	while (num--) {
		if (!fixture.num_groups || !below(3))
			cuda_fixture_group(&fixture);
		cuda_fixture_round(&fixture, below(2));
	}
	cuda_fixture_close(&fixture);
}

/* In this process: a CUDA context does not survive a fork. */
static void find_device(void)
{
	const struct ucm_cuda *cuda;
	struct ucm_error error;

	setenv("CK_FORK", "no", 1);
	if (!ucm_cuda_get(&cuda, &error))
		return;
	printf("1..0 # SKIP %s\n", error.text);
	exit(EXIT_SUCCESS);
}

UNIT_PROGRAM(.begin = find_device);

UNIT_TEST(kernels_copy_what_load_h_says)
{
	rounds(KERNELS, UCM_STREAM_OWN, 0, 100);
	rounds(KERNELS, UCM_STREAM_OWN, 1, 20);
	rounds(KERNELS, UCM_STREAM_OWN, 32, 20);
}

UNIT_TEST(the_copy_engine_does_the_same)
{
	rounds(ENGINE, UCM_STREAM_OWN, 0, 100);
}

UNIT_TEST(in_the_default_stream_as_well)
{
	rounds(KERNELS, CU_STREAM_LEGACY, 0, 20);
	rounds(ENGINE, NULL, 0, 20);
}

UNIT_TEST(the_run_length_can_be_measured)
{
	unsetenv("UCM_CUDA_RUN_BYTES");
	cuda_fixture_open(&fixture, &(struct ucm_copy_options){ 0 });
	cuda_fixture_group(&fixture);
	cuda_fixture_round(&fixture, false);
	cuda_fixture_close(&fixture);
}
