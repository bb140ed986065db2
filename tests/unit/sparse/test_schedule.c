/* SPDX-License-Identifier: Apache-2.0 */
/* test_schedule.c - what is done at which step, and in which layer. */
#include <config.h>

#include <string.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse_fixture.h"

#define LONG 400u /* steps */

static struct ucm_step step_of(const struct ucm_schedule *schedule,
			       uint64_t step, uint32_t layer)
{
	struct ucm_error error;
	struct ucm_step out;

	ck_assert_msg(!ucm_schedule_step(schedule, step, layer, &out, &error),
		      "%s", error.text);
	return out;
}

/* ---- the methods' ---- */

#define ESA	  { .stride = 16, .lead = 1, .queries = 1, .num_layers = 1 }
#define ESA_OF_UCM { .stride = 5, .lead = 4, .queries = 1, .num_layers = 1 }
#define GSA	  { .stride = 1, .lead = 1, .queries = 1, .num_layers = 1 }
#define KVSTAR	  { .stride = 8, .lead = 9, .queries = 8, .num_layers = 1 }
#define ON_DEVICE { .stride = 1, .lead = 0, .queries = 1, .num_layers = 1 }

#define KEEP	UCM_DO_KEEP_QUERY
#define SELECT	UCM_DO_SELECT
#define SUBMIT	UCM_DO_SUBMIT
#define BUILD	UCM_DO_BUILD
#define COLLECT UCM_DO_COLLECT
#define LOAD	UCM_DO_LOAD
#define WAIT	UCM_DO_WAIT_LOADS

static const struct {
	struct ucm_schedule schedule;
	uint64_t step;
	uint32_t begin, end;
	uint64_t collects, uses;
} steps[] = {
	/* one retrieval in 16 steps; that of step 16 is used in step 17 */
	{ ESA, 0, 0, SUBMIT | BUILD | COLLECT | LOAD, 0, 0 },
	{ ESA, 1, WAIT, BUILD, 0, 0 },
	{ ESA, 2, 0, BUILD, 0, 0 },
	{ ESA, 15, 0, BUILD, 0, 0 },
	{ ESA, 16, SUBMIT, BUILD | COLLECT | LOAD, 16, 0 },
	{ ESA, 17, WAIT, BUILD, 0, 16 },
	{ ESA, 32, SUBMIT, BUILD | COLLECT | LOAD, 32, 16 },
	{ ESA, 33, WAIT, BUILD, 0, 32 },

	/* submitted in step 2, awaited in step 5, used from step 6 on */
	{ ESA_OF_UCM, 1, WAIT, BUILD, 0, 0 },
	{ ESA_OF_UCM, 2, SUBMIT, BUILD, 0, 0 },
	{ ESA_OF_UCM, 3, 0, BUILD, 0, 0 },
	{ ESA_OF_UCM, 5, 0, BUILD | COLLECT | LOAD, 2, 0 },
	{ ESA_OF_UCM, 6, WAIT, BUILD, 0, 2 },
	{ ESA_OF_UCM, 7, SUBMIT, BUILD, 0, 2 },
	{ ESA_OF_UCM, 11, WAIT, BUILD, 0, 7 },

	{ GSA, 0, 0, SUBMIT | BUILD | COLLECT | LOAD, 0, 0 },
	{ GSA, 1, SUBMIT | WAIT, BUILD | COLLECT | LOAD, 1, 0 },
	{ GSA, 2, SUBMIT | WAIT, BUILD | COLLECT | LOAD, 2, 1 },

	/* the prompt's choice lasts for two strides */
	{ KVSTAR, 0, 0, SUBMIT | BUILD | COLLECT | LOAD, 0, 0 },
	{ KVSTAR, 1, KEEP | WAIT, BUILD, 0, 0 },
	{ KVSTAR, 7, KEEP, BUILD, 0, 0 },
	{ KVSTAR, 8, KEEP | SUBMIT, BUILD, 0, 0 },
	{ KVSTAR, 9, KEEP, BUILD, 0, 0 },
	{ KVSTAR, 16, KEEP | SUBMIT, BUILD | COLLECT | LOAD, 8, 0 },
	{ KVSTAR, 17, KEEP | WAIT, BUILD, 0, 8 },
	{ KVSTAR, 24, KEEP | SUBMIT, BUILD | COLLECT | LOAD, 16, 8 },
	{ KVSTAR, 25, KEEP | WAIT, BUILD, 0, 16 },

	{ ON_DEVICE, 0, 0, BUILD, 0, 0 },
	{ ON_DEVICE, 1, SELECT | LOAD | WAIT, BUILD, 0, 1 },
	{ ON_DEVICE, 9, SELECT | LOAD | WAIT, BUILD, 0, 9 },
};

UNIT_TEST(each_method_does_at_a_step_what_it_says, .rows = NUM_ROWS(steps))
{
	struct ucm_step got = step_of(&steps[_i].schedule, steps[_i].step, 0);

	ck_assert_uint_eq(got.role, UCM_LAYER_CHOOSES);
	ck_assert_uint_eq(got.source, 0);
	ck_assert_uint_eq(got.begin, steps[_i].begin);
	ck_assert_uint_eq(got.end, steps[_i].end);
	ck_assert_uint_eq(got.collects, steps[_i].collects);
	ck_assert_uint_eq(got.uses, steps[_i].uses);
}

/* ---- any ---- */

static struct ucm_schedule random_schedule(uint64_t *random)
{
	struct ucm_schedule schedule = {
		.stride = (uint32_t)random_between(random, 1, 20),
		.queries = 1,
		.num_layers = 1,
	};

	schedule.lead = (uint32_t)random_between(random, 0,
						 2 * schedule.stride);
	if (schedule.lead)
		schedule.queries = (uint32_t)random_between(random, 1,
							    schedule.stride);
	return schedule;
}

/* Who follows the steps and does only what they say. */
struct follower {
	bool submitted[LONG + 1], chosen, loading;
	uint64_t collected, used, last_use;
	unsigned kept;
};

static void follow(struct follower *at, const struct ucm_schedule *schedule,
		   uint64_t step, uint32_t todo, uint64_t collects)
{
	if (todo & UCM_DO_KEEP_QUERY)
		at->kept++;
	if (todo & UCM_DO_SELECT) {
		at->collected = step;
		at->chosen = true;
	}
	if (todo & UCM_DO_SUBMIT) {
		at->submitted[step] = true;
		must(step == 0 || schedule->queries == 1 ||
		     at->kept == schedule->queries);
		at->kept = 0;
	}
	if (todo & UCM_DO_COLLECT) {
		must(at->submitted[collects]);
		at->submitted[collects] = false;
		at->collected = collects;
		at->chosen = true;
	}
	if (todo & UCM_DO_LOAD) {
		must(at->chosen && !at->loading);
		at->chosen = false;
		at->loading = true;
	}
	if (todo & UCM_DO_WAIT_LOADS) {
		must(at->loading);
		at->loading = false;
		at->used = at->collected;
		at->last_use = step;
	}
}

UNIT_TEST(whoever_follows_the_steps_uses_what_they_say, .rows = 200)
{
	uint64_t random = random_case((unsigned)_i);
	const struct ucm_schedule schedule = random_schedule(&random);
	struct follower at = { .kept = 0 };
	unsigned left = 0;

	for (uint64_t step = 0; step <= LONG; step++) {
		struct ucm_step plan = step_of(&schedule, step, 0);

		follow(&at, &schedule, step, plan.begin, plan.collects);
		must_in_case(plan.uses == at.used, (unsigned)_i, "uses");
		/* a choice is never older than it has to be */
		if (at.used)
			must(step - at.used < schedule.lead + schedule.stride);
		must(step == 0 || step - at.last_use < schedule.stride ||
		     at.used == 0);
		follow(&at, &schedule, step, plan.end, plan.collects);
	}
	for (uint64_t step = 0; step <= LONG; step++)
		left += at.submitted[step];
	/* what is submitted is collected: at most the last ones are open */
	must(left <= 3 && at.used > LONG - 5 * schedule.stride);
}

/* ---- layers ---- */

UNIT_TEST(a_layer_reuses_what_the_last_one_before_it_has_chosen)
{
	/* 0 dense, 1 chooses, 2 and 3 reuse, 4 dense, 5 reuses, 6 chooses
	 * ... */
	static const uint32_t sources[] = { 0, 1, 1, 1, 4, 1, 6, 6 };
	static const uint32_t roles[] = {
		UCM_LAYER_DENSE,   UCM_LAYER_CHOOSES, UCM_LAYER_REUSES,
		UCM_LAYER_REUSES,  UCM_LAYER_DENSE,   UCM_LAYER_REUSES,
		UCM_LAYER_CHOOSES, UCM_LAYER_REUSES,
	};
	struct ucm_schedule schedule = ON_DEVICE;

	schedule.num_layers = NUM_ROWS(sources);
	schedule.dense.bits[0] = 1 << 0 | 1 << 4;
	schedule.reuse.bits[0] = 1 << 2 | 1 << 3 | 1 << 5 | 1 << 7;
	for (uint32_t i = 0; i < NUM_ROWS(sources); i++) {
		struct ucm_step plan = step_of(&schedule, 3, i);

		ck_assert_uint_eq(plan.role, roles[i]);
		ck_assert_uint_eq(plan.source, sources[i]);
		ck_assert_uint_eq(plan.uses,
				  roles[i] == UCM_LAYER_DENSE ? 0 : 3);
		ck_assert_uint_eq(plan.begin,
				  roles[i] == UCM_LAYER_DENSE ? 0
				  : roles[i] == UCM_LAYER_REUSES
					  ? LOAD | WAIT
					  : SELECT | LOAD | WAIT);
		ck_assert_uint_eq(plan.end, roles[i] == UCM_LAYER_CHOOSES
						    ? BUILD : 0);
	}
}

UNIT_TEST(layers_of_all_words_are_told_apart)
{
	struct ucm_schedule schedule = GSA;

	schedule.num_layers = UCM_LAYERS_MAX;
	schedule.dense.bits[3] = 1ull << 63; /* 255 */
	schedule.reuse.bits[1] = 1;          /* 64 */
	ck_assert_uint_eq(step_of(&schedule, 1, 255).role, UCM_LAYER_DENSE);
	ck_assert_uint_eq(step_of(&schedule, 1, 254).role, UCM_LAYER_CHOOSES);
	ck_assert_uint_eq(step_of(&schedule, 1, 64).source, 63);
	/* it has no retrieval of its own, but loads its own bytes */
	ck_assert_uint_eq(step_of(&schedule, 1, 64).begin, WAIT);
	ck_assert_uint_eq(step_of(&schedule, 1, 64).end, LOAD);
}

/* ---- what is refused ---- */

static const struct {
	struct ucm_schedule schedule;
	const char *word;
} wrong[] = {
	{ { .stride = 0, .queries = 1, .num_layers = 1 }, "stride 0" },
	{ { .stride = 65537, .queries = 1, .num_layers = 1 }, "stride 65537" },
	{ { .stride = 4, .lead = 9, .queries = 1, .num_layers = 1 }, "lead 9" },
	{ { .stride = 4, .lead = 1, .num_layers = 1 }, "queries 0" },
	{ { .stride = 4, .lead = 1, .queries = 5, .num_layers = 1 },
	  "queries 5" },
	{ { .stride = 4, .queries = 2, .num_layers = 1 }, "queries 2" },
	{ { .stride = 4, .queries = 1 }, "num_layers 0" },
	{ { .stride = 4, .queries = 1, .num_layers = 257 }, "num_layers 257" },
	{ { .stride = 4, .queries = 1, .num_layers = 3, .dense = { { 8 } } },
	  "dense: layer 3" },
	{ { .stride = 4, .queries = 1, .num_layers = 64,
	    .reuse = { { 0, 1 } } }, "reuse: layer 64" },
	{ { .stride = 4, .queries = 1, .num_layers = 3, .dense = { { 2 } },
	    .reuse = { { 2 } } }, "reuse: layer 1 is dense" },
	{ { .stride = 4, .queries = 1, .num_layers = 3, .dense = { { 1 } },
	    .reuse = { { 2 } } }, "reuse: layer 1 has none" },
};

UNIT_TEST(a_wrong_schedule_is_refused_by_name, .rows = NUM_ROWS(wrong))
{
	struct ucm_step out, before;
	struct ucm_error error;

	memset(&out, 0x5a, sizeof(out));
	before = out;
	assert_einval(ucm_schedule_check(&wrong[_i].schedule, &error), error,
		      wrong[_i].word);
	assert_einval(ucm_schedule_step(&wrong[_i].schedule, 1, 0, &out,
					&error), error, wrong[_i].word);
	ck_assert_mem_eq(&out, &before, sizeof(out));
	ck_assert_int_eq(ucm_schedule_check(&wrong[_i].schedule, NULL),
			 -EINVAL);
}

UNIT_TEST(wrong_arguments_are_refused_by_name)
{
	const struct ucm_schedule schedule = GSA;
	struct ucm_step out;
	struct ucm_error error;

	assert_einval(ucm_schedule_check(NULL, &error), error, "schedule");
	assert_einval(ucm_schedule_step(&schedule, 1, 1, &out, &error), error,
		      "layer 1");
	assert_einval(ucm_schedule_step(&schedule, 1, 0, NULL, &error), error,
		      "out");
	assert_einval(ucm_schedule_step(&schedule, UINT64_MAX, 0, &out, &error),
		      error, "step");
}
