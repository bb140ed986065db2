/* SPDX-License-Identifier: Apache-2.0 */
/* test_load_direct_random.c - random loads into the pages themselves. */
#include <config.h>

#include <errno.h>
#include <unistd.h>

#include "tests/unit/load/direct_fixture.h"
#include "tests/unit/random.h"

#define CASES 200

/* ---- at random ---- */

enum state { GOOD, ABSENT, BAD_PLANE, BAD_HEAD, TORN };

struct trial {
	uint64_t random;
	unsigned number;
	struct place place;
	enum state states[NUM];
	struct ucm_loader *loader;
};

static unsigned pick(struct trial *trial, unsigned num)
{
	return (unsigned)(random_next(&trial->random) % num);
}

#define must_here(condition, what)                                            \
	must_in_case(condition, trial->number, what)

static void put_file(struct trial *trial, unsigned n)
{
	static const enum state states[] = { GOOD, GOOD, GOOD, GOOD,
					     ABSENT, BAD_PLANE, BAD_HEAD,
					     TORN };
	const struct place *place = &trial->place;

	trial->states[n] = states[pick(trial, NUM_ROWS(states))];
	unlink(lf_path("$/tier", n));
	if (trial->states[n] == ABSENT)
		return;
	lf_plant("$/tier", &place->geometry, n);
	if (trial->states[n] == BAD_PLANE)
		damage(n, HEAD + (off_t)pick(trial, (unsigned)place->payload));
	if (trial->states[n] == BAD_HEAD)
		damage(n, pick(trial, 64));
	if (trial->states[n] == TORN)
		ck_assert_int_eq(
			truncate(lf_path("$/tier", n),
				 pick(trial, HEAD + (unsigned)place->payload)),
			0);
}

static void open_trial(struct trial *trial, unsigned number)
{
	static const uint32_t sizes[] = { 512, 2048, 4096, 4096, 8192, 1000 };
	static const uint64_t aligns[] = { 0, 0, 4096, 512, 64, 8 };
	struct ucm_loader_options options;

	*trial = (struct trial){ .random = random_case(number),
				 .number = number };
	open_place(&trial->place,
		   geometry_of(1 + pick(trial, 6),
			       sizes[pick(trial, NUM_ROWS(sizes))],
			       pick(trial, 2)
				       ? sizes[pick(trial, NUM_ROWS(sizes))]
				       : 0),
		   aligns[pick(trial, NUM_ROWS(aligns))],
		   aligns[pick(trial, NUM_ROWS(aligns))]);
	options = (struct ucm_loader_options){
		.threads = 1 + pick(trial, 3),
		.staging_bytes = 1,
		.open_files = 1 + pick(trial, 12),
	};
	for (unsigned n = 0; n < NUM; n++)
		put_file(trial, n);
	lf_limits.read_bytes = pick(trial, 3) ? 0 : 1u << pick(trial, 16);
	lf_limits.window_bytes = pick(trial, 2) ? 0 : 1u << pick(trial, 16);
	trial->loader = open_loader(&trial->place, &options);
}

static void judge(struct trial *trial, const struct ucm_request *request,
		  uint32_t end, const struct ucm_outcome *outcome, unsigned n,
		  bool cancelled)
{
	uint32_t first = request->first_layer;
	bool damaged = trial->states[n] == BAD_PLANE &&
		       request->verify != UCM_VERIFY_FULL;

	must_here(rest_is_clear(&trial->place, n, first, end),
		  "something else was written to");
	if (!outcome->err && !damaged)
		must_here(has_block(&trial->place, n, first, end, n),
			  "loaded, with other bytes");
	if (outcome->err == -ECANCELED)
		must_here(cancelled, "cancelled by nobody");
	else if (trial->states[n] == GOOD)
		must_here(!outcome->err, "a good block has failed");
	else if (trial->states[n] == ABSENT)
		must_here(outcome->err == -ENOENT, "not told to be absent");
	else if (trial->states[n] != BAD_PLANE)
		must_here(outcome->err == -EBADMSG, "damage was not noticed");
}

static void load_at_random(struct trial *trial)
{
	uint32_t layers = trial->place.geometry.num_layers, end;
	struct ucm_request request = {
		.verify = (enum ucm_verify)pick(trial, 2),
		.order = (enum ucm_load_order)pick(trial, 2),
		.first_layer = pick(trial, 3) ? 0 : pick(trial, layers),
		.deadline_ms = pick(trial, 2) ? 0 : 60000,
		.lend = (enum ucm_load_lend)pick(trial, 3),
	};
	bool cancelled = !pick(trial, 5);
	struct ucm_task *task;

	end = pick(trial, 3) ? layers
			     : request.first_layer + 1 +
				       pick(trial, layers -
							   request.first_layer);
	request.num_layers = end - request.first_layer;
	clear(&trial->place);
	lf_shorten(UCM_IO_READ, 1 + pick(trial, 5000),
		   pick(trial, 3) ? 0 : pick(trial, 20));
	task = lf_submit(trial->loader, false, 0, NUM, &request);
	if (cancelled)
		ucm_task_cancel(task);
	ucm_task_wait_returned(task, -1);
	for (unsigned n = 0; n < NUM; n++)
		judge(trial, &request, end, &ucm_task_outcomes(task)[n], n,
		      cancelled);
	ucm_task_free(task);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 300);

UNIT_TEST(what_is_loaded_is_right_at_random)
{
	uint64_t direct = 0;

	for (unsigned number = 0; number < CASES; number++) {
		struct trial trial;

		open_trial(&trial, number);
		for (unsigned i = 0; i < 6; i++)
			load_at_random(&trial);
		direct += direct_bytes(trial.loader);
		ucm_loader_close(trial.loader);
		close_place(&trial.place);
	}
	if (can_read_directly())
		ck_assert_uint_ne(direct, 0);
}
