/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_save_hung.c - saves whose source does not answer: a store that hangs
 * when it is opened, makes a file, commits or drops one. Nobody else waits for
 * it, deadlines hold, and what it brings too late leaves nothing.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/load/save/saving.h"
#include "tests/unit/load_fixture.h"

#define NUM 8

static struct lf_cache cache;

/* ---- a store that hangs ---- */

enum call { CREATE, COMMIT, DROP, CALLS };

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool hangs[CALLS];
	unsigned hanging;
	pthread_t submitter;
	bool in_submitter; /* a call was made in its thread */
	struct ucm_source_ops ops;
} store = { .lock = PTHREAD_MUTEX_INITIALIZER,
	    .changed = PTHREAD_COND_INITIALIZER };

static void pass(enum call call)
{
	pthread_mutex_lock(&store.lock);
	store.in_submitter |= pthread_equal(pthread_self(), store.submitter);
	store.hanging++;
	pthread_cond_broadcast(&store.changed);
	while (store.hangs[call])
		pthread_cond_wait(&store.changed, &store.lock);
	store.hanging--;
	pthread_mutex_unlock(&store.lock);
}

static void hang(enum call call)
{
	pthread_mutex_lock(&store.lock);
	store.hangs[call] = true;
	pthread_mutex_unlock(&store.lock);
}

static void let_go(void)
{
	pthread_mutex_lock(&store.lock);
	memset(store.hangs, 0, sizeof(store.hangs));
	pthread_cond_broadcast(&store.changed);
	pthread_mutex_unlock(&store.lock);
}

static void wait_hanging(unsigned num)
{
	pthread_mutex_lock(&store.lock);
	while (store.hanging < num)
		pthread_cond_wait(&store.changed, &store.lock);
	pthread_mutex_unlock(&store.lock);
}

/* Two calls hang, or the machine was so slow that the deadline came first. */
static bool hang_or_over(void *arg)
{
	bool yes;

	pthread_mutex_lock(&store.lock);
	yes = store.hanging >= 2;
	pthread_mutex_unlock(&store.lock);
	return yes || ucm_task_done(arg);
}

static int create(struct ucm_source *source, const char *space,
		  const struct ucm_id *id, uint64_t bytes,
		  struct ucm_draft **out)
{
	pass(CREATE);
	return ucm_source_tiers.create(source, space, id, bytes, out);
}

static int commit(struct ucm_source *source, struct ucm_draft *draft, int fd,
		  const void *header, uint32_t header_bytes)
{
	pass(COMMIT);
	return ucm_source_tiers.commit(source, draft, fd, header,
					header_bytes);
}

static void drop(struct ucm_source *source, struct ucm_draft *draft)
{
	pass(DROP);
	ucm_source_tiers.drop(source, draft);
}

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
	store.ops = ucm_source_tiers;
	store.ops.create = create;
	store.ops.commit = commit;
	store.ops.drop = drop;
	store.submitter = pthread_self();
	store.in_submitter = false;
	let_go();
	ucm_loader_source = &store.ops;
}

static void teardown(void)
{
	ucm_loader_source = NULL;
	lf_cache_close(&cache);
	fx_teardown();
}

static const struct ucm_loader_options ways[] = {
	{ .io = UCM_IO_AUTO, .threads = 1 },
	{ .io = UCM_IO_THREADS, .threads = 1 },
};

static bool has_no_temps(void *arg)
{
	(void)arg;
	return !fx_count_files(fx_path("$/tier/.ucmfs/tmp"));
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

static const enum call slow_calls[] = { CREATE, COMMIT };

/* Its deadline holds, and loads go on meanwhile. */
UNIT_TEST(a_store_that_hangs_costs_a_save_its_time,
	  .rows = NUM_ROWS(ways) * NUM_ROWS(slow_calls))
{
	enum call call = slow_calls[_i / NUM_ROWS(ways)];
	struct ucm_loader *loader =
		lf_loader("$/tier", &cache, &ways[_i % NUM_ROWS(ways)]);
	struct ucm_request request = { .deadline_ms = 150 };
	struct ucm_task *task;

	lf_plant("$/tier", &lf_geometry, NUM);
	hang(call);
	task = lf_submit(loader, true, 0, 2, &request);
	fx_wait(hang_or_over, task);
	ck_assert_int_eq(lf_load(loader, NUM, 1, NULL, NULL), 0);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_task_outcomes(task)[i].err, -ETIMEDOUT);
	ucm_task_free(task);
	ck_assert(!store.in_submitter);
	let_go();
	fx_wait(has_no_temps, NULL);
	ck_assert(call == COMMIT || !fx_exists(lf_path("$/tier", 0)));
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	ucm_loader_close(loader);
}

/* Nor do its bytes count as under way from then on: what they are is all that
 * may be. */
UNIT_TEST(a_save_that_was_given_up_is_not_under_way, .rows = NUM_ROWS(ways))
{
	struct ucm_loader_options options = ways[_i];
	struct ucm_request soon = { .deadline_ms = 50 },
			   later = { .deadline_ms = 10000 };
	struct ucm_loader *loader;

	lf_limits.in_flight = 1;
	loader = lf_loader("$/tier", &cache, &options);
	lf_plant("$/tier", &lf_geometry, NUM);
	hang(CREATE);
	ck_assert_int_eq(lf_save(loader, 0, 1, &soon, NULL), -EIO);
	ck_assert_int_eq(lf_load(loader, NUM, 1, &later, NULL), 0);
	let_go();
	fx_wait(has_no_temps, NULL);
	/* what it was comes to nothing twice: others still have their limit */
	ck_assert_int_eq(lf_save(loader, 1, 2, &later, NULL), 0);
	ucm_loader_close(loader);
}

/* The same block anew, while the first attempt is still with the store. */
UNIT_TEST(a_second_save_waits_for_the_first_one, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &ways[_i]);
	struct ucm_request request = { .deadline_ms = 50 };
	struct ucm_outcome outcome;
	struct ucm_task *task;

	hang(CREATE);
	ck_assert_int_eq(lf_save(loader, 0, 1, &request, &outcome), -EIO);
	ck_assert_int_eq(outcome.err, -ETIMEDOUT);
	task = lf_submit(loader, true, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait(task, 20), -ETIMEDOUT);
	let_go();
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ck_assert(lf_saved("$/tier", &lf_geometry, 0));
	ucm_loader_close(loader);
}

/* A cancelled save is done at once; dropping its file is nobody's wait. */
UNIT_TEST(a_drop_that_hangs_keeps_nobody, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &ways[_i]);
	struct ucm_request one_layer = { .num_layers = 1 };

	lf_plant("$/tier", &lf_geometry, NUM);
	ck_assert_int_eq(lf_save(loader, 0, 2, &one_layer, NULL), 0);
	hang(DROP);
	ucm_save_abandon(loader, 0, NULL, 0);
	wait_hanging(2);
	ck_assert_int_eq(lf_load(loader, NUM, 1, NULL, NULL), 0);
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
	ck_assert_int_eq(lf_save(loader, 0, 2, NULL, NULL), 0);
	let_go();
	ucm_loader_close(loader);
	for (unsigned i = 0; i < 2; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
}

/* It knows what it has written: whatever the file system says of the file's
 * blocks, nothing is read back to commit it. */
UNIT_TEST(a_commit_reads_nothing, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &ways[_i]);
	struct ucm_request layers = { .num_layers = 2 };

	/* the store is open from now on */
	ck_assert_int_eq(lf_save(loader, 0, 1, NULL, NULL), 0);
	lf_fill_page(&cache, 0, 1);
	fx_fail_on("read", NULL, 1, -EIO, false);
	for (unsigned i = 1; i < NUM; i++)
		lf_fill_page(&cache, i - 1, i);
	ck_assert_int_eq(lf_save(loader, 1, 3, NULL, NULL), 0);
	for (unsigned i = 4; i < NUM; i++)
		lf_fill_page(&cache, i - 4, i);
	for (; layers.first_layer < 4; layers.first_layer += 2)
		ck_assert_int_eq(lf_save(loader, 4, 4, &layers, NULL), 0);
	ck_assert_uint_eq(fx_calls(), 0);
	fx_fail(NULL, 0, 0, false);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	ucm_loader_close(loader);
}

/* ---- file systems with large units ---- */

static bool refuses_small; /* as one with sectors of 16 KiB */
static unsigned refused;

static ssize_t with_sectors(const struct ucm_io *io, ssize_t result)
{
	bool fits = !((((uint64_t)io->offset | io->len) & 16383));

	if (!refuses_small || io->op != UCM_IO_WRITE || fits ||
	    !(fcntl(io->fd, F_GETFL) & O_DIRECT))
		return result;
	refused++;
	return -EINVAL;
}

static const struct ucm_loader_options cuts[] = {
	{ .io = UCM_IO_AUTO, .threads = 1 },
	{ .io = UCM_IO_THREADS, .threads = 1 },
};

/* Nobody has said what O_DIRECT wants there, and it refuses: then without. */
UNIT_TEST(large_sectors_are_written_through_the_cache,
	  .rows = 2 * NUM_ROWS(cuts))
{
	struct ucm_loader *loader;

	ucm_ring_fault = with_sectors;
	refuses_small = true;
	refused = 0;
	lf_limits.read_bytes = _i / NUM_ROWS(cuts) ? 4096 : 0;
	loader = lf_loader("$/tier", &cache, &cuts[_i % NUM_ROWS(cuts)]);
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	ck_assert_uint_gt(refused, 0);
	ucm_loader_close(loader);
	refuses_small = false;
}

/* ---- many at a time ---- */

#define MANY 16000

UNIT_TEST(one_of_many_savings_is_found)
{
	struct ucm_saving *many = calloc(MANY, sizeof(*many));
	struct ucm_savings *savings = calloc(1, sizeof(*savings));
	struct ucm_group group = { .number = 0 }, other = { .number = 0 };

	for (unsigned i = 0; i < MANY; i++) {
		many[i].group = &group;
		many[i].id = lf_id(i);
		must(ucm_savings_add(savings, &many[i]));
	}
	for (unsigned i = 0; i < MANY; i += 2)
		ucm_savings_remove(savings, &many[i]);
	for (unsigned i = 0; i < MANY; i++) {
		must(ucm_savings_find(savings, &group, &many[i].id) ==
		     (i % 2 ? &many[i] : NULL));
		must(!ucm_savings_find(savings, &other, &many[i].id));
	}
	for (unsigned i = 1; i < MANY; i += 2)
		ucm_savings_remove(savings, &many[i]);
	ck_assert_ptr_null(savings->all);
	free(savings);
	free(many);
}
