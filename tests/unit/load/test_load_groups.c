/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_groups.c - groups that are removed, and what comes after them.
 */
#include <config.h>

#include "tests/unit/load_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/layout/layout.h"

#define NUM 8

static struct lf_cache cache, other;

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
	lf_cache_open(&other, &lf_geometry, NUM);
	for (unsigned i = 0; i < NUM; i++)
		lf_plant("$/tier", &lf_geometry, i);
}

static void teardown(void)
{
	lf_cache_close(&cache);
	lf_cache_close(&other);
	fx_teardown();
}

static unsigned add(struct ucm_loader *loader, const struct lf_cache *of)
{
	struct ucm_error error = { "" };
	unsigned group;

	ck_assert_msg(!ucm_loader_add_group(loader, of->layout, NULL, &group,
					    &error),
		      "%s", error.text);
	return group;
}

static void remove_group(struct ucm_loader *loader, unsigned group)
{
	struct ucm_error error = { "" };

	ck_assert_msg(!ucm_loader_remove_group(loader, group, &error), "%s",
		      error.text);
}

static void is_unknown(struct ucm_loader *loader, unsigned group)
{
	struct ucm_request request = { .size = sizeof(request),
				       .group = group };
	const struct ucm_id id = lf_id(0);
	struct ucm_error error = { "" };
	struct ucm_task *task;
	char text[64];
	uint8_t found;

	snprintf(text, sizeof(text), "group %u: unknown", group);
	ck_assert_int_eq(ucm_load_submit(loader, &request, &task, &error),
			 -EINVAL);
	ck_assert_str_eq(error.text, text);
	ck_assert_int_eq(ucm_loader_lookup(loader, group, &id, 1, &found),
			 -EINVAL);
	ck_assert_int_eq(ucm_loader_remove_group(loader, group, &error),
			 -EINVAL);
	ck_assert_str_eq(error.text, text);
	ucm_loader_prefetch(loader, group, &id, 1);
	ucm_save_abandon(loader, group, NULL, 0);
}

/* Loads of a group go to its own pages, and to no others. */
static void loads_into(struct ucm_loader *loader, unsigned group,
		       struct lf_cache *into, const struct lf_cache *beside)
{
	const struct ucm_request request = { .group = group };

	lf_cache_clear(into);
	ck_assert_int_eq(lf_load(loader, 0, NUM, &request, NULL), 0);
	for (unsigned i = 0; i < NUM; i++) {
		ck_assert(lf_page_is(into, i, 0, 4, i));
		ck_assert(lf_page_untouched(beside, i, 0, 4));
	}
}

static bool files_are_closed(void *arg)
{
	(void)arg;
	return !lf_open_files("/tier/blocks/");
}

static const struct {
	enum ucm_io_kind io;
	unsigned threads;
} ways[] = { { UCM_IO_AUTO, 1 }, { UCM_IO_AUTO, 3 }, { UCM_IO_THREADS, 2 } };

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(a_group_that_was_removed_is_unknown, .rows = NUM_ROWS(ways))
{
	const struct ucm_loader_options options = {
		.io = ways[_i].io, .threads = ways[_i].threads
	};
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &options);
	unsigned group = 0, next;

	for (unsigned round = 0; round < 5; round++) {
		loads_into(loader, group, &cache, &other);
		remove_group(loader, group);
		is_unknown(loader, group);
		fx_wait(files_are_closed, NULL);
		next = add(loader, &cache);
		is_unknown(loader, group);
		ck_assert_uint_gt(next, group);
		group = next;
	}
	next = add(loader, &other);
	lf_cache_clear(&cache);
	loads_into(loader, next, &other, &cache);
	remove_group(loader, group);
	loads_into(loader, next, &other, &cache);
	ucm_loader_close(loader);
}

/* Its place goes to others, of other geometries, and never its number. */
UNIT_TEST(there_are_many_groups_one_after_the_other)
{
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);
	struct ucm_error error = { "" };
	unsigned group, num = 1;

	for (unsigned round = 0; round < 600; round++) {
		group = add(loader, round % 2 ? &cache : &other);
		ck_assert_uint_eq(group, 1 + 256 * round);
		remove_group(loader, group);
	}
	while (!ucm_loader_add_group(loader, other.layout, NULL, &group,
				     &error))
		num++;
	ck_assert_uint_eq(num, 256);
	ck_assert_str_eq(error.text, "a loader has 256 groups at most");
	remove_group(loader, 7);
	ck_assert_uint_eq(add(loader, &other), 256 + 7);
	ucm_loader_close(loader);
}

static void is_busy(struct ucm_loader *loader, unsigned group,
		    const char *because)
{
	struct ucm_error error = { "" };

	ck_assert_int_eq(ucm_loader_remove_group(loader, group, &error),
			 -EBUSY);
	ck_assert_msg(strstr(error.text, because) != NULL, "%s", error.text);
}

UNIT_TEST(a_group_of_a_task_that_is_not_done_stays, .rows = 2)
{
	const struct ucm_loader_options options = { .io = UCM_IO_THREADS,
						    .threads = 2 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &options);
	struct ucm_task *task;

	lf_fill_page(&cache, 0, 100);
	lf_hold(_i ? UCM_IO_WRITE : UCM_IO_READ, 0);
	task = _i ? lf_submit(loader, true, 100, 1, NULL)
		  : lf_submit(loader, false, 0, NUM, NULL);
	lf_wait_held(1);
	is_busy(loader, 0, "tasks of it are not done");
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	if (!_i)
		loads_into(loader, 0, &cache, &other);
	remove_group(loader, 0);
	is_unknown(loader, 0);
	ucm_task_free(task); /* after its group */
	ucm_loader_close(loader);
}

/* It ends in staging memory; but who says that the group is not in use? */
UNIT_TEST(a_group_whose_io_came_too_late_stays)
{
	const struct ucm_loader_options options = { .io = UCM_IO_THREADS,
						    .threads = 1 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &options);
	struct ucm_task *task;

	lf_hold(UCM_IO_READ, 0);
	task = lf_submit(loader, false, 0, 1, NULL);
	lf_wait_held(1);
	ucm_task_cancel(task);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ucm_task_free(task);
	is_busy(loader, 0, "still under way");
	lf_release();
	remove_group(loader, 0);
	is_unknown(loader, 0);
	ucm_loader_close(loader);
}

/* Files of it are removed: nobody can commit them any more. */
UNIT_TEST(blocks_that_are_not_whole_go_with_their_group)
{
	const struct ucm_request half = { .num_layers = 2 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);

	lf_fill_page(&cache, 0, 100);
	ck_assert_int_eq(lf_save(loader, 100, 1, &half, NULL), 0);
	ck_assert_uint_ge(lf_open_files("/tier/"), 1);
	remove_group(loader, 0);
	ck_assert_uint_eq(add(loader, &cache), 256);
	ck_assert_int_eq(lf_save(loader, 101, 1,
				 &(struct ucm_request){ .group = 256 }, NULL),
			 0);
	ck_assert(!fx_exists(lf_path("$/tier", 100)));
	ck_assert(fx_exists(lf_path("$/tier", 101)));
	ucm_loader_close(loader);
}

/* ---- pages that were pinned ---- */

/* One page, of one layer. */
#define PAGE_BYTES 65536

static const struct ucm_geometry single = {
	.num_layers = 1, .block_size = 16, .k_bytes = PAGE_BYTES,
	.order = UCM_ORDER_OPAQUE
};

/* A page at this address (NULL: anywhere), with nothing of before in it. */
static struct lf_cache map_page(void *at)
{
	struct lf_cache page = { .geometry = single, .num_pages = 1 };
	struct ucm_region region = { .page_stride = PAGE_BYTES,
				     .run_bytes = PAGE_BYTES, .n0 = 1,
				     .n1 = 1 };

	page.memory = mmap(at, PAGE_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS |
				   (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);
	ck_assert_ptr_ne(page.memory, MAP_FAILED);
	region.base = (uintptr_t)page.memory;
	ck_assert_int_eq(ucm_layout_new(&single, 1, &page.layout, NULL), 0);
	ck_assert_int_eq(ucm_layout_add_region(page.layout, &region, NULL), 0);
	ck_assert_int_eq(ucm_layout_seal(page.layout, NULL), 0);
	ck_assert_int_eq(ucm_layout_set_direct(page.layout, NULL), 0);
	return page;
}

static void *unmap_page(struct lf_cache *page)
{
	ucm_layout_free(page->layout);
	munmap(page->memory, PAGE_BYTES);
	return page->memory;
}

static bool has_block(const struct lf_cache *page, unsigned n)
{
	for (uint64_t i = 0; i < PAGE_BYTES; i++) {
		if (page->memory[i] != lf_byte(n, i))
			return false;
	}
	return true;
}

/*
 * Where pages are read into, the kernel keeps the memory that it has pinned,
 * whatever is at its addresses later. Many times, with another group beside: so
 * places in the table of what is pinned are used again.
 */
UNIT_TEST(memory_of_a_removed_group_may_be_mapped_anew, .rows = 2)
{
	const struct ucm_loader_options options = { .threads = 1 + _i };
	struct lf_cache page = map_page(NULL), fixed = map_page(NULL);
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;
	struct ucm_request request = { 0 }, to_fixed = { 0 };

	for (unsigned i = 20; i < 28; i++)
		lf_plant("$/tier", &single, i);
	loader = lf_loader("$/tier", &page, &options);
	to_fixed.group = add(loader, &fixed);
	for (unsigned i = 20; i < 28; i++) {
		ck_assert_int_eq(lf_load(loader, i, 1, &request, NULL), 0);
		ck_assert(has_block(&page, i));
		remove_group(loader, request.group);
		page = map_page(unmap_page(&page));
		request.group = add(loader, &page);
		ck_assert_int_eq(lf_load(loader, i, 1, &to_fixed, NULL), 0);
		ck_assert(has_block(&fixed, i));
	}
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	if (!stats.direct_bytes)
		unit_skip("reading into pages: no io_uring, locked memory or "
			  "O_DIRECT");
	else
		ck_assert_uint_eq(stats.direct_bytes, 16 * PAGE_BYTES);
	ucm_loader_close(loader);
	unmap_page(&page);
	unmap_page(&fixed);
}

/* Two groups of the same pages: one goes, the other's are pinned as before. */
UNIT_TEST(groups_of_the_same_pages_are_pinned_each)
{
	struct lf_cache page = map_page(NULL);
	struct ucm_loader_stats before, after;
	struct ucm_loader *loader;

	lf_plant("$/tier", &single, 20);
	loader = lf_loader("$/tier", &page, NULL);
	ck_assert_uint_eq(add(loader, &page), 1);
	ck_assert_int_eq(lf_load(loader, 20, 1, NULL, NULL), 0);
	ucm_loader_get_stats(loader, &before, sizeof(before));
	remove_group(loader, 1);
	ck_assert_int_eq(lf_load(loader, 20, 1, NULL, NULL), 0);
	ck_assert(has_block(&page, 20));
	ucm_loader_get_stats(loader, &after, sizeof(after));
	ck_assert_uint_eq(after.direct_bytes, 2 * before.direct_bytes);
	ucm_loader_close(loader);
	unmap_page(&page);
}

/* ---- at the same time ---- */

struct user {
	struct ucm_loader *loader;
	_Atomic bool stop;
	int failed;
};

/* Loads what it may: of a group that is removed meanwhile nothing. */
static void *load_all_the_time(void *arg)
{
	struct user *user = arg;

	while (!atomic_load(&user->stop)) {
		struct ucm_move move = { .id = lf_id(1) };
		struct ucm_request request = { .size = sizeof(request),
					       .blocks = &move,
					       .num_blocks = 1 };
		struct ucm_task *task;

		if (ucm_load_submit(user->loader, &request, &task, NULL))
			continue;
		user->failed |= ucm_task_wait(task, 20000);
		ucm_task_free(task);
	}
	return NULL;
}

UNIT_TEST(a_group_is_removed_while_others_submit)
{
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);
	struct user user = { .loader = loader };
	pthread_t thread;
	int err;

	ck_assert_int_eq(pthread_create(&thread, NULL, load_all_the_time,
					&user), 0);
	while ((err = ucm_loader_remove_group(loader, 0, NULL)) == -EBUSY)
		;
	ck_assert_int_eq(err, 0);
	lf_cache_clear(&cache); /* it is ours again */
	for (unsigned i = 0; i < 100; i++)
		ck_assert(lf_page_untouched(&cache, 0, 0, 4));
	atomic_store(&user.stop, true);
	pthread_join(thread, NULL);
	ck_assert_int_eq(user.failed, 0);
	ucm_loader_close(loader);
}
