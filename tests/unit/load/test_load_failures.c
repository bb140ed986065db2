/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_failures.c - files that cannot be read, or not as a whole; few
 * files that may be open, and io_uring that fails.
 */
#include <config.h>

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/load/failures_fixture.h"

#define MANY 500

/* ---- errors while reading ---- */

static const struct {
	off_t at;
	int err;
} errors[] = {
	{ 0, -EIO },	      { 100, -EIO },	{ HEAD - 1, -EIO },
	{ HEAD, -EIO },	      { HEAD + 1, -EIO },
	{ HEAD + LAYER, -EIO }, { 20479, -EIO },
	{ 12345, -ENODATA },  { 12345, -EACCES }, { 12345, -ENOTCONN },
};

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(an_error_at_a_byte_fails_its_block, .rows = NUM_ROWS(errors))
{
	plant(3);
	lf_fail_at(lf_path("$/tier", 1), errors[_i].at, errors[_i].err);
	load_as_all("$/tier", UCM_VERIFY_FULL,
		    &(struct ucm_outcome){ .err = errors[_i].err });
}

/* The one that was read for a damaged page is not believed for ever. */
UNIT_TEST(after_an_error_the_file_is_opened_anew)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;

	plant(3);
	loader = lf_loader("$/tier", &cache, NULL);
	lf_fail_at(lf_path("$/tier", 1), 5000, -EIO);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[1].err, -EIO);
	lf_fail_at(NULL, 0, 0);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), 0);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
	ucm_loader_close(loader);
}

UNIT_TEST(what_took_the_place_of_a_damaged_file_is_loaded)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;
	uint8_t *bytes;
	size_t len;

	plant(3);
	bytes = lf_file(&lf_geometry, 1, FX_PAGED, &len);
	bytes[HEAD] ^= 1;
	fx_put(lf_path("$/tier", 1), bytes, len);
	free(bytes);
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[1].err, -EBADMSG);
	ck_assert_int_eq(unlink(lf_path("$/tier", 1)), 0);
	lf_plant("$/tier", &lf_geometry, 1);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), 0);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
	ucm_loader_close(loader);
}

/* One of the calls brings less, at every size; the rest comes after it. */
UNIT_TEST(short_reads_of_every_size, .rows = NUM_ROWS(ways))
{
	struct ucm_loader_options options = { .io = ways[_i].io };
	struct ucm_request request = { .order = ways[_i].order,
				       .group_layers = ways[_i].group_layers };
	struct ucm_loader *loader;
	struct ucm_loader_stats stats;

	plant(1);
	loader = lf_loader("$/tier", &cache, &options);
	for (size_t most = 1; most < 20480; most += 61) {
		lf_cache_clear(&cache);
		lf_shorten(UCM_IO_READ, most, 1);
		must(!lf_load(loader, 0, 1, &request, NULL));
		must(lf_page_is(&cache, 0, 0, 4, 0));
	}
	/* and many in a row, that bring pages */
	for (size_t most = 4096; most < 20480; most += 4096) {
		lf_cache_clear(&cache);
		lf_shorten(UCM_IO_READ, most, 1000);
		must(!lf_load(loader, 0, 1, &request, NULL));
		must(lf_page_is(&cache, 0, 0, 4, 0));
	}
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_ge(stats.short_reads, 20);
	ucm_loader_close(loader);
}

/* Nothing, or never a whole unit of direct I/O: it ends all the same. */
UNIT_TEST(short_reads_for_ever)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;

	plant(3);
	loader = lf_loader("$/tier", &cache, NULL);
	lf_fail(UCM_IO_READ, 1, -EAGAIN, false);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(outcomes[i].err, -EAGAIN);
	lf_fail(UCM_IO_READ, 0, 0, false);
	lf_shorten(UCM_IO_READ, 100, UINT32_MAX);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(outcomes[i].err, -EIO);
	ck_assert(lf_page_untouched(&cache, 0, 0, 4));
	ucm_loader_close(loader);
}

UNIT_TEST(an_early_end_is_torn, .rows = NUM_ROWS(ways))
{
	plant(3);
	cut_off_all("$/tier", (unsigned)_i);
}

UNIT_TEST(an_open_may_fail)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;

	plant(3);
	loader = lf_loader("$/tier", &cache, NULL);
	fx_fail("open", 1, -EMFILE, false);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(outcomes[i].err, -EMFILE);
	fx_fail("fstat", 1, -EIO, false);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(outcomes[i].err, -EIO);
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, NULL), 0);
	ucm_loader_close(loader);
}

/* Of two directories one cannot say: its error is the block's only if the other
 * one has not got it. */
UNIT_TEST(one_directory_cannot_say)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;

	lf_tier("a=$/a:b=$/b");
	lf_plant("$/b", &lf_geometry, 0);
	loader = lf_loader("a=$/a:b=$/b", &cache, NULL);
	fx_fail("open", 1, -EIO, true);
	ck_assert_int_eq(lf_load(loader, 0, 1, NULL, outcomes), 0);
	fx_fail("open", 1, -EIO, true);
	ck_assert_int_eq(lf_load(loader, 1, 1, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[0].err, -EIO);
	ck_assert_int_eq(lf_load(loader, 1, 1, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[0].err, -ENOENT);
	ucm_loader_close(loader);
}

/* ---- open files ---- */

static bool are_few(void *arg)
{
	return lf_open_files("/blocks/") <= *(unsigned *)arg;
}

UNIT_TEST(few_files_stay_open)
{
	struct ucm_loader_options options = { .open_files = 5, .threads = 1 };
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;
	unsigned most = 6; /* and one for each thread */

	plant(NUM);
	loader = lf_loader("$/tier", &cache, &options);
	for (unsigned round = 1; round <= 3; round++) {
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
		for (unsigned i = 0; i < NUM; i++)
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
		fx_wait(are_few, &most);
		ck_assert_uint_ge(lf_open_files("/blocks/"), 5);
	}
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_ge(stats.opens, 3 * (NUM - 6));
	ucm_loader_close(loader);
	ck_assert_uint_eq(lf_open_files("/blocks/"), 0);
}

UNIT_TEST(an_open_file_is_found_again)
{
	struct ucm_loader_options options = { .open_files = NUM,
					      .threads = 1 };
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;

	plant(NUM);
	loader = lf_loader("$/tier", &cache, &options);
	for (unsigned round = 0; round < 3; round++)
		ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.opens, NUM);
	ck_assert_uint_eq(stats.open_hits, 2 * NUM);
	ucm_loader_close(loader);
	ck_assert_uint_eq(lf_open_files("/blocks/"), 0);
}

/* More blocks than the process may have files: the loader waits for its own. */
UNIT_TEST(few_descriptors_are_enough, .rows = 2)
{
	struct ucm_loader_options options = { .io = _i ? UCM_IO_THREADS
						       : UCM_IO_AUTO,
					      .open_files = 32 };
	struct rlimit limit = { 0 }, before;
	struct ucm_loader *loader;
	struct lf_cache many;

	lf_cache_open(&many, &lf_geometry, MANY);
	for (unsigned i = 0; i < MANY; i++)
		lf_plant("$/tier", &lf_geometry, i);
	loader = lf_loader("$/tier", &many, &options);
	getrlimit(RLIMIT_NOFILE, &before);
	limit = before;
	limit.rlim_cur = 128;
	ck_assert(!setrlimit(RLIMIT_NOFILE, &limit));
	ck_assert_int_eq(lf_load(loader, 0, MANY, NULL, NULL), 0);
	ck_assert(!setrlimit(RLIMIT_NOFILE, &before));
	for (unsigned i = 0; i < MANY; i++)
		ck_assert(lf_page_is(&many, i, 0, 4, i));
	ucm_loader_close(loader);
	lf_cache_close(&many);
}

/* ---- io_uring that fails ---- */

static int refuse_entry(void)
{
	return -EPERM;
}

/* What is under way fails, or is right; and the process lives. */
static void load_while_it_fails(struct ucm_loader *loader)
{
	struct ucm_outcome outcomes[NUM];

	lf_cache_clear(&cache);
	ucm_ring_enter_fault = refuse_entry;
	lf_load(loader, 0, NUM, NULL, outcomes);
	for (unsigned i = 0; i < NUM; i++) {
		ck_assert(!outcomes[i].err || outcomes[i].err == -EIO);
		if (!outcomes[i].err)
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
	}
}

UNIT_FIXTURE(.setup = setup_memory,
	     .teardown = teardown_memory,
	     .only_if = lf_open_memory);

UNIT_TEST(io_uring_that_fails_is_followed_by_threads)
{
	const struct ucm_loader_options options = { .threads = 2 };
	struct ucm_loader *loader;
	char text[256];

	plant(NUM);
	loader = lf_loader("$/tier", &cache, &options);
	ucm_loader_describe(loader, text, sizeof(text));
	if (!strstr(text, ", io_uring")) {
		unit_skip("io_uring: %s", text);
		ucm_loader_close(loader);
		return;
	}
	load_while_it_fails(loader);
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	ck_assert_int_eq(lf_save(loader, NUM, NUM, NULL, NULL), 0);
	ucm_loader_describe(loader, text, sizeof(text));
	ck_assert_msg(strstr(text, "threads (io_uring failed: Operation not "
				   "permitted)") != NULL, "%s", text);
	ucm_ring_enter_fault = NULL;
	ucm_loader_close(loader);
}

UNIT_TEST(io_uring_that_fails_where_nothing_else_will_do)
{
	const struct ucm_loader_options options = { .io = UCM_IO_URING,
						    .threads = 2 };
	struct ucm_outcome outcomes[NUM];
	struct ucm_loader *loader;
	struct ucm_ring *ring;

	plant(NUM);
	if (ucm_ring_open(lf_io(UCM_IO_URING), 1, 1, &ring)) {
		unit_skip("io_uring: not here");
		return;
	}
	ucm_ring_close(ring);
	if (lf_io(UCM_IO_URING) != UCM_IO_URING)
		return;
	loader = lf_loader("$/tier", &cache, &options);
	load_while_it_fails(loader);
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert_int_eq(outcomes[i].err, -EIO);
	ck_assert_int_eq(lf_save(loader, NUM, 4, NULL, NULL), -EIO);
	ucm_ring_enter_fault = NULL;
	ucm_loader_close(loader);
}
