/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_late.c - loads from a local directory whose disk takes its time: what
 * waits for it does not use up the descriptors of the process.
 */
#include <config.h>

#include <errno.h>
#include <unistd.h>

#include "tests/unit/load_fixture.h"

#define SLOW 80u  /* blocks of the directory that is late */
#define PROMPT 4u  /* and of another one */
#define FILES 32u
#define THREADS 16u /* of a loader's pool, for each directory */

static struct lf_cache cache;

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/slow");
	lf_tier("$/prompt");
	lf_cache_open(&cache, &lf_geometry, SLOW + PROMPT);
	for (unsigned i = 0; i < SLOW + PROMPT; i++)
		lf_plant(i < SLOW ? "$/slow" : "$/prompt", &lf_geometry, i);
}

static void teardown(void)
{
	lf_cache_close(&cache);
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

static struct ucm_loader *open_loader(void)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1,
					      .open_files = FILES };

	lf_limits.window_bytes = 16 << 20;
	return lf_loader("slow=$/slow:prompt=$/prompt", &cache, &options);
}

/* All of the first directory wait for it. That it is late shows where others go
 * on, which were asked for after them. */
static struct ucm_task *make_late(struct ucm_loader *loader)
{
	struct ucm_request request = { .deadline_ms = 10000 };
	struct ucm_task *task;

	lf_hold(UCM_IO_READ, 0);
	task = lf_submit(loader, false, 0, SLOW, NULL);
	lf_wait_held(THREADS);
	lf_hold(UCM_IO_CLOSE, 1000); /* nothing else is held from now on */
	ck_assert_int_eq(lf_load(loader, SLOW, PROMPT, &request, NULL), 0);
	return task;
}

UNIT_TEST(a_late_disk_takes_its_share_of_descriptors)
{
	struct ucm_loader *loader = open_loader();
	struct ucm_task *task = make_late(loader);

	ck_assert_uint_ge(lf_open_files("/slow/blocks/"), THREADS);
	ck_assert_uint_le(lf_open_files("/slow/blocks/"), FILES + 1);
	lf_cache_clear(&cache);
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, SLOW, NULL, NULL), 0);
	for (unsigned i = 0; i < SLOW; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	ucm_loader_close(loader);
}

/* One that is removed while it waits is absent, and nothing else. */
UNIT_TEST(what_goes_while_it_waits_is_absent)
{
	struct ucm_loader *loader = open_loader();
	struct ucm_task *task = make_late(loader);
	const struct ucm_outcome *outcomes;

	ck_assert_int_eq(unlink(lf_path("$/slow", SLOW - 1)), 0);
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	outcomes = ucm_task_outcomes(task);
	for (unsigned i = 0; i < SLOW; i++)
		ck_assert_int_eq(outcomes[i].err, i < SLOW - 1 ? 0 : -ENOENT);
	ucm_task_free(task);
	ucm_loader_close(loader);
}

/* Nor does the end wait for what was never opened. */
UNIT_TEST(what_waits_ends_at_the_deadline)
{
	struct ucm_loader *loader = open_loader();
	struct ucm_request request = { .deadline_ms = 300 };
	struct ucm_outcome outcomes[SLOW];

	lf_hold(UCM_IO_READ, 0);
	ck_assert_int_eq(lf_load(loader, 0, SLOW, &request, outcomes), -EIO);
	for (unsigned i = 0; i < SLOW; i++)
		ck_assert_int_eq(outcomes[i].err, -ETIMEDOUT);
	lf_release();
	ucm_loader_close(loader);
	ck_assert_uint_eq(lf_open_files("/slow/blocks/"), 0);
}
