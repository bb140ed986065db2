/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_twins_cuda.c - the compiled kernels of gpu/sparse/, on a device, have the
 * bits of sparse/.
 *
 * UNTESTED: on a device, as there was none; on the driver of tests/unit it passes.
 * It does not fork: a child cannot use the driver of its parent.
 */
#include <config.h>

#include <stdio.h>

#include "tests/unit/twins_fixture.h"

static struct twins_fixture fixture;

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

static void open_device(void)
{
	twins_open(&fixture, CU_STREAM_LEGACY);
}

static void close_device(void)
{
	twins_close(&fixture);
}

UNIT_FIXTURE(.setup = open_device, .teardown = close_device);

UNIT_TEST(scores_have_the_bits_of_the_cpu)
{
	for (unsigned i = 0; i < 1000; i++)
		twins_compare_scores(&fixture, i);
}

UNIT_TEST(representations_have_the_bytes_of_the_cpu)
{
	for (unsigned i = 0; i < 1000; i++)
		twins_compare_build(&fixture, i);
}

UNIT_TEST(hash_codes_and_their_scores_have_the_bits_of_the_cpu)
{
	for (unsigned i = 0; i < 1000; i++)
		twins_compare_codes(&fixture, i);
}

UNIT_TEST(merged_channels_and_their_votes_have_the_bits_of_the_cpu)
{
	for (unsigned i = 0; i < 1000; i++)
		twins_compare_star(&fixture, i);
}

UNIT_TEST(selections_are_those_of_the_cpu)
{
	for (unsigned i = 0; i < 1000; i++)
		twins_compare_select(&fixture, i);
}

UNIT_TEST(keys_that_move_have_the_bytes_of_the_cpu)
{
	for (unsigned i = 0; i < 1000; i++)
		twins_compare_shift(&fixture, i);
}

UNIT_TEST(attention_is_that_of_the_cpu)
{
	for (unsigned i = 0; i < 1000; i++)
		twins_compare_attention(&fixture, i);
}

UNIT_TEST(deviations_have_the_bits_of_the_cpu)
{
	for (unsigned i = 0; i < 1000; i++)
		twins_compare_deviation(&fixture, i);
}
