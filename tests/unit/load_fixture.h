/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_fixture.h - a paged cache in memory, block files, and a loader.
 *
 * On top of store_fixture.h: '$' in paths is the test's directory. The cache
 * has one tensor for each layer, [2, pages, tokens, heads, dim] as vLLM's, and
 * each of its bytes is known: what no load was to touch must be as it was.
 */
#ifndef UCM_TESTS_LOAD_FIXTURE_H
#define UCM_TESTS_LOAD_FIXTURE_H

#include <ucm/load.h>

#include "tests/unit/store_fixture.h"

struct lf_cache {
	struct ucm_geometry geometry;
	uint32_t num_pages;
	struct ucm_layout *layout;
	uint8_t *memory;
	size_t layer_bytes; /* of a layer's tensor */
	size_t len;
};

/* 4 layers of 16 tokens, float16, 2 heads of 32: K 2048 + V 2048 bytes; a file
 * has 4096 + 16384. */
extern const struct ucm_geometry lf_geometry;

struct ucm_geometry lf_geometry_of(uint32_t layers, uint32_t tokens,
				   uint32_t heads, uint32_t dim);

void lf_cache_open(struct lf_cache *cache, const struct ucm_geometry *geometry,
		   uint32_t num_pages);
void lf_cache_close(struct lf_cache *cache);

/* All bytes of all pages to what lf_check_untouched() expects. */
void lf_cache_clear(struct lf_cache *cache);

/* Block number n: its id, and byte i of its payload. */
struct ucm_id lf_id(unsigned n);
uint8_t lf_byte(unsigned n, uint64_t i);

/* Is the page, in these layers, block n (or untouched)? */
bool lf_page_is(const struct lf_cache *cache, uint32_t page, uint32_t first,
		uint32_t end, unsigned n);
bool lf_page_untouched(const struct lf_cache *cache, uint32_t page,
		       uint32_t first, uint32_t end);
/* Fill a page with block n. */
void lf_fill_page(struct lf_cache *cache, uint32_t page, unsigned n);

/* The file of block n, as our writers make it; *len_out bytes, to free. */
uint8_t *lf_file(const struct ucm_geometry *geometry, unsigned n,
		 enum fx_kind kind, size_t *len_out);
/* Its path below a backing directory ("$/tier"). */
const char *lf_path(const char *dir, unsigned n);
void lf_plant(const char *dir, const struct ucm_geometry *geometry, unsigned n);
/* Is the file of block n there, with all the bytes it should have? */
bool lf_saved(const char *dir, const struct ucm_geometry *geometry, unsigned n);

/* Make a backing directory usable without a daemon. */
void lf_tier(const char *dir);

/* A loader over the tiers, with what is set in options; the cache is its
 * group 0. */
struct ucm_loader *lf_loader(const char *tiers, const struct lf_cache *cache,
			     const struct ucm_loader_options *options);

/* Blocks first .. first + num - 1 to or from pages of the same numbers, less
 * first; waits. What ucm_task_wait() returned; outcomes (may be NULL) gets all. */
int lf_load(struct ucm_loader *loader, unsigned first, unsigned num,
	    const struct ucm_request *options, struct ucm_outcome *outcomes);
int lf_save(struct ucm_loader *loader, unsigned first, unsigned num,
	    const struct ucm_request *options, struct ucm_outcome *outcomes);

/* The same without waiting. */
struct ucm_task *lf_submit(struct ucm_loader *loader, bool is_save,
			   unsigned first, unsigned num,
			   const struct ucm_request *options);

#endif
