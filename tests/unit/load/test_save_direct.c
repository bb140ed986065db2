/* SPDX-License-Identifier: Apache-2.0 */
/* test_save_direct.c - saves that write from the pages themselves. */
#include <config.h>

#include <errno.h>

#include "tests/unit/load/direct_fixture.h"

/* ---- saves ---- */

static uint64_t saved_directly(struct ucm_loader *loader)
{
	struct ucm_loader_stats stats;

	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	return stats.save_direct_bytes;
}

static void fill_pages(struct place *place)
{
	clear(place);
	for (unsigned page = 0; page < NUM; page++) {
		for (uint64_t i = 0; i < place->payload; i++)
			page_of(place, page)[i] = lf_byte(page, i);
	}
}

static void check_files(const struct place *place)
{
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_saved("$/tier", &place->geometry, i));
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
}

static const enum ucm_io_kind rings[] = { UCM_IO_AUTO, UCM_IO_THREADS };

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 300);

UNIT_TEST(what_is_aligned_is_written_from_pages,
	  .rows = NUM_ROWS(ways) * NUM_ROWS(rings))
{
	unsigned way = _i / NUM_ROWS(rings);
	struct ucm_loader_options options = { .io = rings[_i % 2] };
	struct ucm_loader *loader;
	struct place place;

	open_place(&place,
		   geometry_of(ways[way].layers, ways[way].k, ways[way].v),
		   ways[way].offset, ways[way].gap);
	fill_pages(&place);
	lf_limits.read_bytes = ways[way].read_bytes;
	loader = open_loader(&place, &options);
	lf_shorten(UCM_IO_WRITE, 5000, 7); /* in the head, and after it */
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	check_files(&place);
	if (can_read_directly() && ways[way].direct)
		ck_assert_uint_eq(saved_directly(loader), NUM * place.payload);
	else if (can_read_directly() && ways[way].gap != 2048 + 64)
		ck_assert_uint_eq(saved_directly(loader), 0);
	ucm_loader_close(loader);
	close_place(&place);
}

UNIT_TEST(layers_are_written_from_pages, .rows = NUM_ROWS(rings))
{
	struct ucm_loader_options options = { .io = rings[_i] };
	struct ucm_loader *loader;
	struct ucm_task *tasks[3];
	struct place place;

	open_place(&place, geometry_of(6, PLANE, PLANE), 0, 4096);
	fill_pages(&place);
	loader = open_loader(&place, &options);
	for (unsigned i = 0; i < 3; i++)
		tasks[i] = lf_submit(loader, true, 0, NUM,
				     &(struct ucm_request){
					     .first_layer = 2 * i,
					     .num_layers = 2 });
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	check_files(&place);
	if (can_read_directly())
		ck_assert_uint_eq(saved_directly(loader), NUM * place.payload);
	ucm_loader_close(loader);
	close_place(&place);
}

/* With a deadline, or from addresses, they are copied. */
UNIT_TEST(a_page_is_not_kept_past_a_deadline)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_request request = { .deadline_ms = 50 };
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;

	open_place(&place, geometry_of(2, PLANE, PLANE), 0, 0);
	fill_pages(&place);
	loader = open_loader(&place, &options);
	lf_hold(UCM_IO_WRITE, 0);
	task = lf_submit(loader, true, 0, 2, &request);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ucm_task_free(task);
	lf_release();
	ck_assert_uint_eq(saved_directly(loader), 0);
	ucm_loader_close(loader);
	close_place(&place);
}

/* What is cancelled ends when nobody reads its page any more. */
UNIT_TEST(a_page_that_is_written_from_is_waited_for)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(2, PLANE, PLANE), 0, 0);
	fill_pages(&place);
	loader = open_loader(&place, &options);
	lf_hold(UCM_IO_WRITE, 0);
	task = lf_submit(loader, true, 0, 2, NULL);
	lf_wait_held(2);
	ucm_task_cancel(task);
	ck_assert_int_eq(ucm_task_wait(task, 30), -ETIMEDOUT);
	ck_assert_int_eq(ucm_task_wait_copied(task, 0), -ETIMEDOUT);
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_task_outcomes(task)[i].err, -ECANCELED);
	ucm_task_free(task);
	ucm_loader_close(loader);
	for (unsigned i = 0; i < 2; i++)
		ck_assert(!fx_exists(lf_path("$/tier", i)));
	close_place(&place);
}
