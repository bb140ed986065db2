/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_direct.c - loads that read into the pages themselves: which ones
 * do, and what comes of damage.
 */
#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/layout/layout.h"
#include "tests/unit/load/direct_fixture.h"

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 300);

/* ---- which reads go there ---- */

UNIT_TEST(only_pages_in_one_piece)
{
	struct ucm_layout *layout;
	struct lf_cache cache;
	struct ucm_error error = { "" };

	lf_cache_open(&cache, &lf_geometry, 2);
	ck_assert_int_eq(ucm_layout_new(&lf_geometry, 2, &layout, NULL), 0);
	ck_assert_int_eq(ucm_layout_set_direct(layout, &error), -EINVAL);
	ck_assert_str_eq(error.text, "the layout is not sealed");
	ck_assert_int_eq(ucm_layout_set_direct(cache.layout, &error), -EINVAL);
	ck_assert_str_eq(error.text,
			 "a block is 8 pieces of memory: reading into "
			 "pages needs one");
	ucm_layout_free(layout);
	lf_cache_close(&cache);
}

UNIT_TEST(what_is_aligned_is_read_into_pages, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader;
	struct place place;
	unsigned num = ways[_i].gap == 2048 + 64 ? 1 : NUM;

	open_place(&place,
		   geometry_of(ways[_i].layers, ways[_i].k, ways[_i].v),
		   ways[_i].offset, ways[_i].gap);
	for (unsigned i = 0; i < NUM; i++)
		lf_plant("$/tier", &place.geometry, i);
	lf_limits.read_bytes = ways[_i].read_bytes;
	loader = open_loader(&place, NULL);
	for (unsigned turn = 1; turn < 3; turn++) { /* files new, then open */
		clear(&place);
		ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
		ck_assert(is_clear(place.memory, place.offset));
		for (unsigned i = 0; i < NUM; i++) {
			ck_assert(has_block(&place, i, 0, ways[_i].layers, i));
			ck_assert(rest_is_clear(&place, i, 0, ways[_i].layers));
		}
		if (can_read_directly())
			ck_assert_uint_eq(
				direct_bytes(loader),
				ways[_i].direct
					? turn * NUM * place.payload
					: num == 1 ? turn * place.payload : 0);
	}
	ucm_loader_close(loader);
	close_place(&place);
}

/* A deadline is kept if pages may be lent, too. */
UNIT_TEST(requests_that_lend_are_read_into_pages, .rows = 2)
{
	const struct ucm_request request = {
		.lend = _i ? UCM_LEND_LOCAL : UCM_LEND_ALWAYS,
		.deadline_ms = 60000,
	};
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(1, PLANE, PLANE), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	loader = open_loader(&place, NULL);
	task = lf_submit(loader, false, 0, 1, &request);
	ck_assert_int_eq(ucm_task_wait_returned(task, 20000), 0);
	ck_assert_uint_eq(ucm_task_num_lent(task), 0);
	ck_assert(has_block(&place, 0, 0, 1, 0));
	ck_assert_uint_eq(direct_bytes(loader), place.payload);
	ucm_task_free(task);
	ucm_loader_close(loader);
	close_place(&place);
}

/* A deadline is kept, and addresses may be anywhere: by way of staging. */
UNIT_TEST(requests_that_go_through_staging)
{
	struct ucm_request requests[] = {
		{ .deadline_ms = 60000 },
		{ .addresses = (uint64_t[1]){ 0 } },
	};
	struct ucm_loader *loader;
	struct place place;
	uint64_t address;

	open_place(&place, geometry_of(1, PLANE, PLANE), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	address = (uintptr_t)page_of(&place, 0);
	requests[1].addresses = &address;
	loader = open_loader(&place, NULL);
	for (unsigned i = 0; i < NUM_ROWS(requests); i++) {
		clear(&place);
		ck_assert_int_eq(lf_load(loader, 0, 1, &requests[i], NULL), 0);
		ck_assert(has_block(&place, 0, 0, 1, 0));
		ck_assert_uint_eq(direct_bytes(loader), 0);
	}
	ucm_loader_close(loader);
	close_place(&place);
}

/* ---- failures ---- */

UNIT_TEST(damage_is_noticed_in_the_page)
{
	struct ucm_request header_only = { .verify = UCM_VERIFY_HEADER };
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;
	struct place place;

	open_place(&place, geometry_of(2, PLANE, PLANE), 0, 0);
	for (unsigned i = 0; i < 3; i++)
		lf_plant("$/tier", &place.geometry, i);
	damage(1, HEAD + 3 * PLANE + 5);
	loader = open_loader(&place, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[1].err, -EBADMSG);
	ck_assert_int_eq(outcomes[1].fault, UCM_FAULT_PLANE);
	ck_assert_int_eq(outcomes[1].plane, 3);
	for (unsigned i = 0; i < 3; i += 2) {
		ck_assert_int_eq(outcomes[i].err, 0);
		ck_assert(has_block(&place, i, 0, 2, i));
	}
	ck_assert_int_eq(lf_load(loader, 0, 3, &header_only, NULL), 0);
	damage(2, 3); /* the header, of a file that is opened anew */
	ucm_loader_close(loader);
	loader = open_loader(&place, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, &header_only, outcomes), -EIO);
	ck_assert_int_eq(outcomes[2].fault, UCM_FAULT_MAGIC);
	ucm_loader_close(loader);
	close_place(&place);
}

static struct {
	_Atomic bool begun, cancelled;
	_Atomic unsigned steps;
	unsigned num; /* steps of the read */
	unsigned steps_at_end;
} slow;

/* The read of a payload comes in steps of 512 bytes; after the first one the
 * test cancels the task. */
static ssize_t in_steps(const struct ucm_io *io, ssize_t result)
{
	if (io->op != UCM_IO_READ || !io->offset || result <= 512)
		return result;
	atomic_fetch_add(&slow.steps, 1);
	atomic_store(&slow.begun, true);
	while (!atomic_load(&slow.cancelled))
		usleep(100);
	return 512;
}

static void note_end(void *arg, struct ucm_task *task)
{
	(void)arg;
	(void)task;
	slow.steps_at_end = atomic_load(&slow.steps);
}

UNIT_TEST(a_cancelled_task_ends_when_its_reads_have)
{
	struct ucm_request request = { .on_done = note_end };
	const unsigned steps = 64 * PLANE / 512;
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(1, 64 * PLANE, 0), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	loader = open_loader(&place, NULL);
	ucm_ring_fault = in_steps;
	task = lf_submit(loader, false, 0, 1, &request);
	while (!atomic_load(&slow.begun))
		usleep(100);
	ucm_task_cancel(task);
	atomic_store(&slow.cancelled, true);
	ck_assert_int_eq(ucm_task_wait(task, -1), -EIO);
	ucm_ring_fault = NULL;
	ck_assert_int_eq(ucm_task_outcomes(task)[0].err, -ECANCELED);
	/* the last step brings the rest as it is */
	ck_assert_uint_eq(slow.steps_at_end, steps - 1);
	ucm_task_free(task);
	ucm_loader_close(loader);
	close_place(&place);
}

static uint64_t staged_mib(struct ucm_loader *loader)
{
	char text[256];
	const char *at;

	ucm_loader_describe(loader, text, sizeof(text));
	at = strstr(text, "threads, ");
	ck_assert_ptr_nonnull(at);
	return strtoull(at + strlen("threads, "), NULL, 10);
}

/* It is what lies between files and pages: of these there is nothing. */
UNIT_TEST(staging_does_not_grow_for_what_goes_straight_into_pages)
{
	const struct ucm_loader_options options = {
		.threads = 1,
		.staging_bytes = 256 << 20,
	};
	struct ucm_loader *loader;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(4, 128 * PLANE, 128 * PLANE), 0, 0);
	for (unsigned n = 0; n < NUM; n++)
		lf_plant("$/tier", &place.geometry, n);
	lf_limits.window_bytes = 64 << 20;
	loader = open_loader(&place, &options);
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	ck_assert_uint_eq(direct_bytes(loader), NUM * place.payload);
	ck_assert_uint_le(staged_mib(loader), 2);
	ucm_loader_close(loader);
	close_place(&place);
}

/* A file is cut off after its opening: what the pages still have from before is
 * not taken for what was read. */
UNIT_TEST(an_early_end_is_torn, .rows = 3)
{
	const struct ucm_request request = { .verify = (enum ucm_verify)_i };
	const off_t payload = 4 * 2 * PLANE;
	off_t cut;
	struct ucm_outcome outcomes[2];
	struct ucm_loader *loader;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(4, PLANE, PLANE), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	lf_limits.read_bytes = 2 * PLANE;
	loader = open_loader(&place, NULL);
	for (cut = 1; cut <= payload; cut += cut > 1 ? PLANE : PLANE - 1) {
		uint64_t direct = direct_bytes(loader);

		lf_plant("$/tier", &place.geometry, 1);
		ck_assert_int_eq(lf_load(loader, 0, 2, &request, NULL), 0);
		ck_assert_uint_eq(direct_bytes(loader) - direct,
				  2 * (uint64_t)payload);
		ck_assert_int_eq(truncate(lf_path("$/tier", 1),
					  HEAD + payload - cut), 0);
		ck_assert_int_eq(lf_load(loader, 0, 2, &request, outcomes),
				 -EIO);
		ck_assert_int_eq(outcomes[0].err, 0);
		ck_assert_int_eq(outcomes[1].err, -EBADMSG);
		ck_assert_uint_eq(outcomes[1].fault, UCM_FAULT_SHORT);
	}
	ucm_loader_close(loader);
	close_place(&place);
}
