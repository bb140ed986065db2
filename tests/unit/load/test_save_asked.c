/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_save_asked.c - a source that is asked which blocks it wants, and hangs.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/load/thread.h"
#include "tests/unit/load/save_fixture.h"

/* ---- a source hangs when it is asked which blocks it wants ---- */

static void check_chain(struct ucm_loader *loader)
{
	struct ucm_request all = { .verify = UCM_VERIFY_FULL };

	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, NUM, &all, NULL), 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* Submitting does not wait for it; its files do, and whatever comes after. */
UNIT_TEST(a_source_is_asked_before_files_are_made, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = choosing_loader(_i, true);
	struct ucm_task *tasks[2];

	tasks[0] = save_chain(loader, (struct ucm_request){ .num_layers = 2 });
	tasks[1] = save_layers(loader, 2, 2);
	chooser_wait_asked(1);
	ck_assert_int_eq(ucm_task_wait(tasks[1], 20), -ETIMEDOUT);
	check_nothing(0, NUM);
	chooser_let_go();
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	check_chain(loader);
	ck_assert_uint_eq(chooser.asked, 1);
	ck_assert_uint_eq(chooser.blocks, NUM);
	ucm_loader_close(loader);
}

UNIT_TEST(a_source_that_hangs_when_asked_costs_a_task_its_time, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = choosing_loader(_i, true);
	struct ucm_task *task =
		save_chain(loader, (struct ucm_request){ .deadline_ms = 30 });

	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ck_assert_int_eq(ucm_task_outcomes(task)[NUM - 1].err, -ETIMEDOUT);
	ucm_task_free(task);
	check_nothing(0, NUM);
	chooser_let_go();
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	check_saved(0, NUM);
	ucm_loader_close(loader);
}

UNIT_TEST(a_source_that_must_take_all_is_not_asked, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = choosing_loader(_i, true);

	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	check_saved(0, NUM);
	ck_assert_uint_eq(chooser.asked, 0);
	ucm_loader_close(loader);
}

/* The threads of this process: those that carry out I/O, and how many others
 * there are. */
struct threads {
	pid_t io[64];
	unsigned num_io, others;
};

static void list_threads(struct threads *threads)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;

	*threads = (struct threads){ .others = 0 };
	while ((entry = readdir(tasks))) {
		char path[64], name[32] = "";
		FILE *file;
		bool there;

		snprintf(path, sizeof(path), "/proc/self/task/%.20s/comm",
			 entry->d_name);
		file = fopen(path, "re");
		if (!file)
			continue;
		there = fgets(name, sizeof(name), file);
		fclose(file);
		if (!there) /* it has just ended */
			continue;
		if (strcmp(name, "ucm-io\n"))
			threads->others++;
		else if (threads->num_io < NUM_ROWS(threads->io))
			threads->io[threads->num_io++] = atoi(entry->d_name);
	}
	closedir(tasks);
}

static bool others_are_left(void *num)
{
	struct threads now;

	list_threads(&now);
	return now.others == *(unsigned *)num;
}

static bool any_has_gone(const struct threads *before)
{
	for (unsigned i = 0; i < before->num_io; i++) {
		if (!fx_exists(fx_path("/proc/self/task/%d", before->io[i])))
			return true;
	}
	return false;
}

/* Of the second of two threads. */
static unsigned block_of_the_second(void)
{
	struct ucm_id id = lf_id(NUM);
	unsigned n = NUM;
	uint32_t hash;

	for (;; id = lf_id(++n)) {
		memcpy(&hash, id.bytes + 8, sizeof(hash)); /* see home_of() */
		if (hash % 2)
			return n;
	}
}

static void *close_it(void *loader)
{
	ucm_loader_close(loader);
	return NULL;
}

/* Its thread wakes the others when the call comes back. */
UNIT_TEST(a_source_that_hangs_when_asked_finds_all_threads_at_the_end)
{
	struct ucm_loader *loader = choosing_loader(3, true);
	const struct timespec moment = { .tv_nsec = 50 * 1000000 };
	struct ucm_id parent = lf_id(0);
	struct threads before;
	struct ucm_task *task;
	pthread_t closer;
	bool early;

	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	task = lf_submit(loader, true, block_of_the_second(), 1,
			 &(struct ucm_request){ .parents = &parent,
						.may_refuse = true,
						.deadline_ms = 30 });
	chooser_wait_asked(1);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ucm_task_free(task);
	list_threads(&before);
	ck_assert_uint_gt(before.num_io, 1);
	ck_assert_int_eq(pthread_create(&closer, NULL, close_it, loader), 0);
	fx_wait(others_are_left, &before.others); /* without the first */
	nanosleep(&moment, NULL); /* in which it must not go */
	early = any_has_gone(&before);
	chooser_let_go();
	pthread_join(closer, NULL);
	ck_assert(!early);
}
