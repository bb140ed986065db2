/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_fixture.h - pages to save, a loader of each way, and what must be there
 * then.
 */
#ifndef UCM_TESTS_SAVE_FIXTURE_H
#define UCM_TESTS_SAVE_FIXTURE_H

#include <pthread.h>
#include <string.h>

#include "gpu/load/thread.h"
#include "tests/unit/load_fixture.h"

#define NUM 8
#define LAYER 4096

static struct lf_cache cache;

static inline void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
}

static inline void teardown(void)
{
	ucm_loader_source = NULL;
	lf_cache_close(&cache);
	fx_teardown();
}

/* A block in one write, or layer by layer with its header last. */
static const struct ucm_loader_options ways[] = {
	{ .io = UCM_IO_AUTO, .threads = 1 },
	{ .io = UCM_IO_THREADS, .threads = 1 },
	{ .io = UCM_IO_AUTO, .threads = 1 },
	{ .io = UCM_IO_THREADS, .threads = 2 },
};

/* So long are its reads. */
static const uint32_t reads[NUM_ROWS(ways)] = { 0, 0, LAYER, LAYER };

static inline struct ucm_loader *open_way(unsigned way)
{
	lf_limits.read_bytes = reads[way];
	return lf_loader("$/tier", &cache, &ways[way]);
}

static inline void check_nothing(unsigned from, unsigned end)
{
	for (unsigned i = from; i < end; i++)
		ck_assert(!fx_exists(lf_path("$/tier", i)));
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
}

static inline void check_saved(unsigned from, unsigned end)
{
	for (unsigned i = from; i < end; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
}

/* By the daemon, so that it knows. */
static inline void remove_saved(struct ucm_loader *loader, unsigned num)
{
	struct ucm_id ids[NUM] = { 0 };
	int32_t results[NUM];

	for (unsigned i = 0; i < num; i++)
		ids[i] = lf_id(i);
	ck_assert_int_eq(ucm_loader_remove(loader, 0, ids, num, results), 0);
	for (unsigned i = 0; i < num; i++)
		ck_assert_int_eq(results[i], 0);
}

/* ---- the same block ---- */

static inline bool has_no_temps(void *arg)
{
	(void)arg;
	return !fx_count_files(fx_path("$/tier/.ucmfs/tmp"));
}

/* ---- layers ---- */

static inline struct ucm_task *save_layers(struct ucm_loader *loader,
					   uint32_t first, uint32_t num)
{
	struct ucm_request request = { .first_layer = first,
				       .num_layers = num };

	return lf_submit(loader, true, 0, NUM, &request);
}

/* ---- a source hangs when it is asked which blocks it wants ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned asked; /* so often */
	size_t blocks;  /* the last time */
	bool hangs;
} chooser = { .lock = PTHREAD_MUTEX_INITIALIZER,
	      .changed = PTHREAD_COND_INITIALIZER };

static inline int chooser_offer(struct ucm_source *source, const char *space,
				const struct ucm_id *ids,
				const struct ucm_id *parents, size_t num,
				uint64_t bytes, int32_t *answers)
{
	(void)source, (void)space, (void)bytes;
	pthread_mutex_lock(&chooser.lock);
	chooser.asked++;
	chooser.blocks = num;
	for (size_t i = 0; i < num; i++) {
		answers[i] = 1;
		ck_assert(!i || !memcmp(&parents[i], &ids[i - 1], sizeof(*ids)));
	}
	pthread_cond_broadcast(&chooser.changed);
	while (chooser.hangs)
		pthread_cond_wait(&chooser.changed, &chooser.lock);
	pthread_mutex_unlock(&chooser.lock);
	return 0;
}

static inline void chooser_wait_asked(unsigned times)
{
	pthread_mutex_lock(&chooser.lock);
	while (chooser.asked < times)
		pthread_cond_wait(&chooser.changed, &chooser.lock);
	pthread_mutex_unlock(&chooser.lock);
}

static inline void chooser_let_go(void)
{
	pthread_mutex_lock(&chooser.lock);
	chooser.hangs = false;
	pthread_cond_broadcast(&chooser.changed);
	pthread_mutex_unlock(&chooser.lock);
}

/* All blocks, a chain, of which the source may refuse some. */
static inline struct ucm_task *save_chain(struct ucm_loader *loader,
					  struct ucm_request request)
{
	struct ucm_id parents[NUM] = { 0 };

	for (unsigned i = 1; i < NUM; i++)
		parents[i] = lf_id(i - 1);
	request.parents = parents;
	request.may_refuse = true;
	return lf_submit(loader, true, 0, NUM, &request);
}

static struct ucm_source_ops choosing_ops;

static inline struct ucm_loader *choosing_loader(unsigned way, bool hangs)
{
	choosing_ops = ucm_source_tiers;
	choosing_ops.offer = chooser_offer;
	chooser.asked = 0;
	chooser.hangs = hangs;
	ucm_loader_source = &choosing_ops;
	return open_way(way);
}

#endif
