/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_loader.c - blocks to pages and back, through the public interface.
 */
#include <config.h>

#include "common/log.h"
#include "tests/unit/load_fixture.h"

#include <errno.h>
#include <glob.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define NUM 32

static struct lf_cache cache;

static void setup(void)
{
	fx_setup();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
}

static void teardown(void)
{
	lf_cache_close(&cache);
	fx_teardown();
}

static void plant(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		lf_plant("$/tier", &lf_geometry, i);
}

/* Every way to do I/O, and to read. */
static const struct {
	enum ucm_io_kind io;
	unsigned threads;
	enum ucm_verify verify;
	enum ucm_load_order order;
} ways[] = {
	{ UCM_IO_AUTO, 1, UCM_VERIFY_FULL, UCM_LOAD_BLOCKS },
	{ UCM_IO_AUTO, 2, UCM_VERIFY_HEADER, UCM_LOAD_BLOCKS },
	{ UCM_IO_AUTO, 3, UCM_VERIFY_NONE, UCM_LOAD_LAYERS },
	{ UCM_IO_AUTO, 1, UCM_VERIFY_FULL, UCM_LOAD_LAYERS },
	{ UCM_IO_THREADS, 1, UCM_VERIFY_FULL, UCM_LOAD_BLOCKS },
	{ UCM_IO_THREADS, 2, UCM_VERIFY_NONE, UCM_LOAD_LAYERS },
};

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(load_fills_the_pages, .rows = NUM_ROWS(ways))
{
	struct ucm_loader_options options = { .io = ways[_i].io,
					      .threads = ways[_i].threads };
	struct ucm_request request = { .verify = ways[_i].verify,
				       .order = ways[_i].order,
				       .group_layers = 1 };
	struct ucm_loader *loader;
	struct ucm_loader_stats stats;

	plant(NUM - 1);
	loader = lf_loader("$/tier", &cache, &options);
	for (unsigned round = 0; round < 2; round++) {
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, NUM - 1, &request, NULL),
				 0);
		for (unsigned i = 0; i < NUM - 1; i++)
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
		ck_assert(lf_page_untouched(&cache, NUM - 1, 0, 4));
	}
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.loads, 2 * (NUM - 1));
	ck_assert_uint_eq(stats.load_bytes, 2 * (NUM - 1) * 16384);
	ucm_loader_close(loader);
}

/* A window for one read at a time, and reads of one layer: files are opened
 * long before they are read, those that are absent or damaged too. */
UNIT_TEST(files_opened_ahead_are_not_mixed_up, .rows = NUM_ROWS(ways))
{
	struct ucm_loader_options options = {
		.io = ways[_i].io, .threads = ways[_i].threads,
		.open_files = 1,
	};
	struct ucm_request request = { .order = ways[_i].order,
				       .group_layers = 1 };
	struct ucm_outcome outcomes[NUM];
	struct ucm_loader *loader;

	for (unsigned i = 0; i < NUM; i++) {
		if (i % 3)
			lf_plant("$/tier", &lf_geometry, i);
		if (i % 3 && i % 5 == 1)
			fx_put(lf_path("$/tier", i), "short", 5);
	}
	lf_limits.window_bytes = 1;
	lf_limits.read_bytes = 4096;
	loader = lf_loader("$/tier", &cache, &options);
	ck_assert_int_eq(lf_load(loader, 0, NUM, &request, outcomes), -EIO);
	for (unsigned i = 0; i < NUM; i++) {
		int want = !(i % 3) ? -ENOENT : i % 5 == 1 ? -EBADMSG : 0;

		ck_assert_int_eq(outcomes[i].err, want);
		if (want)
			ck_assert(lf_page_untouched(&cache, i, 0, 4));
		else
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
	}
	ucm_loader_close(loader);
}

UNIT_TEST(load_of_some_layers_leaves_the_others, .rows = NUM_ROWS(ways))
{
	struct ucm_request request = { .first_layer = 1, .num_layers = 2,
				       .verify = ways[_i].verify };
	struct ucm_loader_options options = { .io = ways[_i].io };
	struct ucm_loader *loader;

	plant(3);
	loader = lf_loader("$/tier", &cache, &options);
	ck_assert_int_eq(lf_load(loader, 0, 3, &request, NULL), 0);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert(lf_page_untouched(&cache, i, 0, 1));
		ck_assert(lf_page_is(&cache, i, 1, 3, i));
		ck_assert(lf_page_untouched(&cache, i, 3, 4));
	}
	ucm_loader_close(loader);
}

UNIT_TEST(absent_blocks_are_told_one_by_one)
{
	struct ucm_outcome outcomes[4];
	struct ucm_loader *loader;
	struct ucm_loader_stats stats;

	plant(2);
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 4, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[0].err, 0);
	ck_assert_int_eq(outcomes[1].err, 0);
	ck_assert_int_eq(outcomes[2].err, -ENOENT);
	ck_assert_int_eq(outcomes[3].err, -ENOENT);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
	ck_assert(lf_page_untouched(&cache, 2, 0, 4));
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.load_absent, 2);
	ucm_loader_close(loader);
}

static int64_t cpu_ms(void)
{
	struct timespec at;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
	return at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

/* Does the process come to rest: a twentieth of a second without work? */
static bool rests(void)
{
	static const struct timespec moment = { .tv_nsec = 50000000 };

	for (unsigned tries = 0; tries < 100; tries++) {
		int64_t before = cpu_ms();

		nanosleep(&moment, NULL);
		if (cpu_ms() - before < 5)
			return true;
	}
	return false;
}

/* More pieces than are started in one round. */
UNIT_TEST(a_loader_rests_when_all_is_done)
{
	struct ucm_request request = { .order = UCM_LOAD_LAYERS,
				       .group_layers = 1 };
	struct ucm_loader_options options = { .threads = 1 };
	struct lf_cache large;
	struct ucm_loader *loader;

	lf_cache_open(&large, &lf_geometry, 600);
	loader = lf_loader("$/tier", &large, &options);
	ck_assert_int_eq(lf_load(loader, 0, 600, &request, NULL), -EIO);
	ck_assert(rests());
	ucm_loader_close(loader);
	lf_cache_close(&large);
}

UNIT_TEST(a_damaged_plane_is_named)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;
	uint8_t *bytes;
	size_t len;

	plant(3);
	bytes = lf_file(&lf_geometry, 1, FX_PAGED, &len);
	bytes[4096 + 2 * 4096 + 2048 + 77] ^= 0x10; /* layer 2 V */
	fx_put(lf_path("$/tier", 1), bytes, len);
	free(bytes);
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[0].err, 0);
	ck_assert_int_eq(outcomes[1].err, -EBADMSG);
	ck_assert_int_eq(outcomes[1].fault, UCM_FAULT_PLANE);
	ck_assert_uint_eq(outcomes[1].plane, 5);
	ck_assert_int_eq(outcomes[2].err, 0);
	ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
	ck_assert(lf_page_is(&cache, 2, 0, 4, 2));
	ck_assert(fx_logged("layer 2 V"));
	ucm_loader_close(loader);
}

UNIT_TEST(save_makes_blocks, .rows = NUM_ROWS(ways))
{
	struct ucm_loader_options options = { .io = ways[_i].io,
					      .threads = ways[_i].threads };
	struct ucm_outcome outcomes[NUM];
	struct ucm_loader *loader;

	plant(1);
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
	loader = lf_loader("$/tier", &cache, &options);
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, outcomes), 0);
	ck_assert_uint_eq(outcomes[0].skipped, 1);
	for (unsigned i = 1; i < NUM; i++) {
		ck_assert_uint_eq(outcomes[i].skipped, 0);
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	}
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	ucm_loader_close(loader);
}

UNIT_TEST(layers_saved_one_by_one_make_a_block)
{
	struct ucm_loader *loader;

	for (unsigned i = 0; i < 3; i++)
		lf_fill_page(&cache, i, i);
	loader = lf_loader("$/tier", &cache, NULL);
	for (uint32_t layer = 4; layer--;) {
		struct ucm_request request = { .first_layer = layer,
					       .num_layers = 1 };

		ck_assert(!fx_exists(lf_path("$/tier", 0)));
		ck_assert_int_eq(lf_save(loader, 0, 3, &request, NULL), 0);
	}
	for (unsigned i = 0; i < 3; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	ucm_loader_close(loader);
}

static int commit(struct ucm_loader *loader, unsigned n)
{
	const struct ucm_move move = { .id = lf_id(n) };
	const struct ucm_request request = {
		.size = sizeof(request),
		.blocks = &move,
		.num_blocks = 1,
	};
	struct ucm_task *task;
	int err;

	ck_assert_int_eq(ucm_save_commit(loader, &request, &task, NULL), 0);
	ucm_task_wait(task, 20000);
	err = ucm_task_outcomes(task)->err;
	ucm_task_free(task);
	return err;
}

/* Files under way, and whether one of them could be taken for a block. */
static unsigned count_drafts(const char *dir, bool *any_block)
{
	glob_t found = { 0 };
	char magic[4];
	unsigned num;

	*any_block = false;
	glob(fx_path("%s/.ucmfs/tmp/*/*", dir), 0, NULL, &found);
	num = (unsigned)found.gl_pathc;
	for (unsigned i = 0; i < num; i++) {
		FILE *file = fopen(found.gl_pathv[i], "r");

		ck_assert_ptr_nonnull(file);
		ck_assert_uint_eq(fread(magic, 1, 4, file), 4);
		*any_block |= magic[0] || magic[1] || magic[2] || magic[3];
		fclose(file);
	}
	globfree(&found);
	return num;
}

UNIT_TEST(held_blocks_wait_for_their_commit)
{
	struct ucm_request whole = { .hold = 1 };
	struct ucm_request first = { .num_layers = 1, .hold = 1 };
	struct ucm_request rest = { .first_layer = 1 };
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;
	bool any_block;

	for (unsigned i = 0; i < 3; i++)
		lf_fill_page(&cache, i, i);
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(commit(loader, 0), -ENOENT);
	ck_assert_int_eq(lf_save(loader, 0, 2, &whole, NULL), 0);
	ck_assert_uint_eq(count_drafts("$/tier", &any_block), 2);
	ck_assert(!any_block);
	ck_assert(!fx_exists(lf_path("$/tier", 0)));
	ck_assert_int_eq(commit(loader, 0), 0);
	ck_assert(lf_saved("$/tier", &lf_geometry, 0));
	ck_assert_int_eq(commit(loader, 0), -ENOENT);
	ck_assert(!fx_exists(lf_path("$/tier", 1)));

	lf_cache_clear(&cache);
	lf_fill_page(&cache, 0, 2);
	ck_assert_int_eq(lf_save(loader, 2, 1, &first, NULL), 0);
	ck_assert_int_eq(commit(loader, 2), -EAGAIN);
	/* once held, it stays so */
	ck_assert_int_eq(lf_save(loader, 2, 1, &rest, NULL), 0);
	ck_assert(!fx_exists(lf_path("$/tier", 2)));
	ck_assert_int_eq(commit(loader, 2), 0);
	ck_assert(lf_saved("$/tier", &lf_geometry, 2));
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.saves, 2);
	ck_assert_uint_eq(stats.save_bytes, 3 * 16384);
	ucm_loader_close(loader);
	ck_assert(!fx_exists(lf_path("$/tier", 1)));
}

UNIT_TEST(an_eventfd_tells_the_end)
{
	struct ucm_request request = { .eventfd = eventfd(0, EFD_CLOEXEC) };
	struct pollfd fd = { .fd = request.eventfd, .events = POLLIN };
	struct ucm_loader *loader;
	struct ucm_task *task;

	plant(NUM);
	loader = lf_loader("$/tier", &cache, NULL);
	task = lf_submit(loader, false, 0, NUM, &request);
	ck_assert_int_eq(poll(&fd, 1, 10000), 1);
	ck_assert(ucm_task_done(task));
	ck_assert_int_eq(ucm_task_wait(task, 0), 0);
	ucm_task_free(task);
	task = lf_submit(loader, false, 0, 0, NULL);
	ck_assert(ucm_task_done(task));
	ucm_task_free(task);
	ucm_loader_close(loader);
	close(request.eventfd);
}

UNIT_TEST(lookup_tells_which_are_there)
{
	struct ucm_id ids[4];
	uint8_t found[4];
	struct ucm_loader *loader;

	plant(3);
	for (unsigned i = 0; i < 4; i++)
		ids[i] = lf_id(i + 1);
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(ucm_loader_lookup(loader, 0, ids, 4, found), 0);
	ck_assert(found[0] && found[1] && !found[2] && !found[3]);
	ck_assert_int_eq(ucm_loader_lookup(loader, 1, ids, 4, found), -EINVAL);
	ucm_loader_close(loader);
}

/* ---- the environment ---- */

static _Atomic unsigned num_warnings, num_calls;

static void count_lines(enum ucm_log_level level, const char *line)
{
	static const char of_call[] = "os.call: ";

	num_warnings += level == UCM_LOG_WARNING;
	if (level == UCM_LOG_DEBUG && !strncmp(line, of_call, strlen(of_call)))
		num_calls++;
}

static const struct {
	const char *value;
	bool debugs;
	unsigned warnings;
} debugs[] = {
	{ NULL, false, 0 },
	{ "", false, 0 },
	{ "os.call=2", true, 0 },
	{ "TRUE", true, 0 },
	{ "os.nothing=2", false, 1 },
};

UNIT_TEST(system_calls_are_debugged_if_asked_for, .rows = NUM_ROWS(debugs))
{
	plant(NUM);
	ucm_log_set(count_lines, UCM_LOG_INFO);
	if (debugs[_i].value)
		setenv("UCM_DEBUG", debugs[_i].value, 1);
	else
		unsetenv("UCM_DEBUG");
	ucm_loader_close(lf_loader("$/tier", &cache, NULL));
	ck_assert_int_eq(num_calls > 0, debugs[_i].debugs);
	ck_assert_uint_eq(num_warnings, debugs[_i].warnings);
	unsetenv("UCM_DEBUG");
}
