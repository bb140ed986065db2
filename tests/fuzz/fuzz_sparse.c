/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_sparse.c - a method's configuration from any bytes: taken, or refused in
 * words. With what is taken a request goes through its steps.
 *
 * The first two bytes of the input are the block size and the number of layers.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include <ucm/retrieve.h>

#include "tests/fuzz/require.h"

#define STEPS 40u

/* A layer that reuses a choice has one before it that makes one. */
static void check_step(const struct ucm_sparse_request *request)
{
	const struct ucm_schedule *schedule = &request->config->schedule;
	struct ucm_step plan, source;

	for (uint32_t i = 0; i < schedule->num_layers; i++) {
		REQUIRE(!ucm_sparse_layer(request, i, &plan, NULL));
		REQUIRE(plan.source <= i && plan.uses <= request->step);
		REQUIRE(plan.collects <= request->step);
		if (plan.role != UCM_LAYER_REUSES)
			continue;
		REQUIRE(!ucm_sparse_layer(request, plan.source, &source, NULL));
		REQUIRE(source.role == UCM_LAYER_CHOOSES);
	}
}

static void run_request(const struct ucm_sparse_config *config,
			uint32_t prompt_tokens)
{
	struct ucm_sparse_request request = { .state = UCM_REQUEST_NONE };
	uint32_t done, slots;

	REQUIRE(!ucm_sparse_slots(config, prompt_tokens, STEPS, &slots, NULL));
	REQUIRE(!ucm_sparse_begin(&request, config, prompt_tokens, NULL));
	REQUIRE(!ucm_sparse_prefill(&request, prompt_tokens, &done, NULL) &&
		done);
	check_step(&request);
	for (uint32_t i = 0; i < STEPS; i++) {
		REQUIRE(!ucm_sparse_step(&request, 1, NULL));
		check_step(&request);
	}
	REQUIRE(request.blocks_attended <= request.blocks_in_all);
	REQUIRE(!ucm_sparse_finish(&request, NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ucm_sparse_config config;
	struct ucm_error error = { "" };
	int err;

	if (size < 2)
		return 0;
	err = ucm_sparse_parse((const char *)data + 2, size - 2, data[0],
			       data[1], &config, &error);
	REQUIRE(!err || ((err == -EINVAL || err == -ENOENT) && error.text[0]));
	if (err)
		return 0;
	REQUIRE(!ucm_sparse_check(&config, NULL));
	run_request(&config, 1);
	run_request(&config, 1000);
	run_request(&config, 200000);
	return 0;
}
