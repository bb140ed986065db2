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

#include "gpu/load/limits.h"
#include "gpu/ring/ring.h"
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

/* How many open files of this process have this in their paths. */
unsigned lf_open_files(const char *part);

/* Make a backing directory usable without a daemon. */
void lf_tier(const char *dir);

/* A loader over the tiers, with what is set in options; the cache is its
 * group 0. Under TSAN never with io_uring: TSAN does not hear of what the kernel
 * closes, and takes numbers that come back for one descriptor. */
enum ucm_io_kind lf_io(enum ucm_io_kind io);
struct ucm_loader *lf_loader(const char *tiers, const struct lf_cache *cache,
			     const struct ucm_loader_options *options);
/* Of the next loader that lf_loader() opens, and of no other. */
extern struct ucm_loader_limits lf_limits;

/* Blocks first .. first + num - 1 to or from pages of the same numbers, less
 * first; waits. What ucm_task_wait() returned; outcomes (may be NULL) gets all. */
int lf_load(struct ucm_loader *loader, unsigned first, unsigned num,
	    const struct ucm_request *options, struct ucm_outcome *outcomes);
int lf_save(struct ucm_loader *loader, unsigned first, unsigned num,
	    const struct ucm_request *options, struct ucm_outcome *outcomes);

/* ---- memory ---- */

/* A directory in memory for all tests of a program, removed at its end, also
 * after a test that crashed; false, and reported, where there is none. */
bool lf_open_memory(void);
extern char lf_memory[32];
void lf_empty_memory(void);

/* ---- I/O that is held up, or goes wrong ---- */

/*
 * From the call on, before a loader is opened; each ends with the test. What is
 * held waits in the pool's threads (UCM_IO_THREADS; with io_uring it would hold
 * up the loader itself).
 */
void lf_faults(void);

/* Operations of this kind wait at their ends, but for the first `skip`. */
void lf_hold(enum ucm_io_op op, unsigned skip);
/* Those that begin at a byte of [from, end) of a file. */
void lf_hold_at(enum ucm_io_op op, off_t from, off_t end);
void lf_wait_held(unsigned num); /* until so many do; for ten seconds */
void lf_release(void);
/* Those that are held pass, and so many after them; then they are held again. */
void lf_let_pass(unsigned more);

/* The nth operation of this kind from now on, and all after it (unless
 * only_once), end with err. */
void lf_fail(enum ucm_io_op op, unsigned nth, int err, bool only_once);

/* Reads of this file (NULL: of all) that reach byte `at` end with err. */
void lf_fail_at(const char *path, off_t at, int err);

/* No call brings more than so many bytes, the next `times` times. */
void lf_shorten(enum ucm_io_op op, size_t most, unsigned times);

/* The same without waiting. */
struct ucm_task *lf_submit(struct ucm_loader *loader, bool is_save,
			   unsigned first, unsigned num,
			   const struct ucm_request *options);

#endif
