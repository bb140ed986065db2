/* SPDX-License-Identifier: Apache-2.0 */
/* tasks_fixture.h - blocks to load, and pages for them. */
#ifndef UCM_TESTS_TASKS_FIXTURE_H
#define UCM_TESTS_TASKS_FIXTURE_H

#include "tests/unit/load_fixture.h"

#define NUM 32

static struct lf_cache cache;

static inline void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
}

static inline void teardown(void)
{
	lf_cache_close(&cache);
	fx_teardown();
}

static inline void plant(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		lf_plant("$/tier", &lf_geometry, i);
}

static inline struct ucm_loader *threaded(void)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };

	return lf_loader("$/tier", &cache, &options);
}

static inline bool all_untouched(void)
{
	for (uint32_t page = 0; page < NUM; page++)
		if (!lf_page_untouched(&cache, page, 0, 4))
			return false;
	return true;
}

#endif
