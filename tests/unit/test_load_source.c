/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_source.c - loads from a source whose blocks have no descriptors: it
 * reads them into memory itself, slowly, wrongly or not at all if a test wants.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/load/engine.h"
#include "tests/unit/load_fixture.h"

#define BLOCKS 8
#define HEAD 4096
#define LAYER 4096

/* ---- the source ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint8_t *bytes[BLOCKS]; /* NULL: there is no such block */
	size_t len[BLOCKS];
	unsigned hangs;	  /* block + 1: its reads wait */
	unsigned hanging; /* reads that do */
	unsigned fails;	  /* block + 1: reads of its data fail with err */
	int err;
	size_t most;	  /* bytes of a read, at most; 0: all */
	size_t cut;	  /* block 1 ends there, whatever its size */
	unsigned reads;
} shelf = { .lock = PTHREAD_MUTEX_INITIALIZER,
	    .changed = PTHREAD_COND_INITIALIZER };

static int shelf_open(const char *text, struct ucm_source **out,
		      struct ucm_error *error)
{
	(void)text, (void)error;
	*out = (struct ucm_source *)&shelf;
	return 0;
}

static void shelf_close(struct ucm_source *source)
{
	(void)source;
}

static int shelf_check_space(struct ucm_source *source, const char *space)
{
	(void)source;
	return *space ? -ENOENT : 0;
}

static int number_of(const struct ucm_id *id)
{
	for (unsigned n = 0; n < BLOCKS; n++) {
		struct ucm_id one = lf_id(n);

		if (shelf.bytes[n] && !memcmp(&one, id, sizeof(one)))
			return (int)n;
	}
	return -ENOENT;
}

static ssize_t shelf_read(struct ucm_source *source, const char *space,
			  const struct ucm_id *id, void *buffer, size_t len,
			  uint64_t offset, uint64_t *size_out)
{
	int n = number_of(id);
	size_t end;

	(void)source, (void)space;
	if (n < 0)
		return n;
	*size_out = shelf.len[n];
	pthread_mutex_lock(&shelf.lock);
	shelf.reads++;
	if (len && shelf.hangs == (unsigned)n + 1) {
		shelf.hanging++;
		pthread_cond_broadcast(&shelf.changed);
		while (shelf.hangs == (unsigned)n + 1)
			pthread_cond_wait(&shelf.changed, &shelf.lock);
	}
	pthread_mutex_unlock(&shelf.lock);
	if (offset + len > HEAD && shelf.fails == (unsigned)n + 1)
		return shelf.err;
	end = n == 1 && shelf.cut ? shelf.cut : shelf.len[n];
	if (offset >= end)
		return 0;
	if (len > end - offset)
		len = end - offset;
	if (shelf.most && len > shelf.most)
		len = shelf.most;
	if (len)
		memcpy(buffer, shelf.bytes[n] + offset, len);
	return (ssize_t)len;
}

static int shelf_lookup(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, size_t num, uint8_t *found)
{
	(void)source, (void)space;
	for (size_t i = 0; i < num; i++)
		found[i] = number_of(&ids[i]) >= 0;
	return 0;
}

static bool shelf_lost(struct ucm_source *source)
{
	(void)source;
	return false;
}

static const struct ucm_source_ops shelf_ops = {
	.name = "shelf",
	.open = shelf_open,
	.close = shelf_close,
	.check_space = shelf_check_space,
	.read_into = shelf_read,
	.lookup = shelf_lookup,
	.lost = shelf_lost,
};

/* ---- the tests' frame ---- */

static struct lf_cache cache;

static const struct way {
	enum ucm_io_kind io;
	unsigned threads;
	enum ucm_load_order order;
	uint32_t group_layers;
	uint32_t read_bytes;
} ways[] = {
	{ UCM_IO_AUTO, 1, UCM_LOAD_BLOCKS, 0, 0 },
	{ UCM_IO_AUTO, 2, UCM_LOAD_LAYERS, 1, 0 },
	{ UCM_IO_AUTO, 1, UCM_LOAD_BLOCKS, 0, 2 * LAYER },
	{ UCM_IO_THREADS, 1, UCM_LOAD_BLOCKS, 0, 0 },
	{ UCM_IO_THREADS, 2, UCM_LOAD_LAYERS, 3, 0 },
};

static void let_go(void)
{
	pthread_mutex_lock(&shelf.lock);
	shelf.hangs = 0;
	pthread_cond_broadcast(&shelf.changed);
	pthread_mutex_unlock(&shelf.lock);
}

static void put(unsigned n, enum fx_kind kind)
{
	free(shelf.bytes[n]);
	shelf.bytes[n] = lf_file(&lf_geometry, n, kind, &shelf.len[n]);
}

static void setup(void)
{
	fx_setup();
	lf_cache_open(&cache, &lf_geometry, BLOCKS + 1);
	for (unsigned n = 0; n < BLOCKS; n++)
		put(n, FX_PAGED);
	ucm_loader_source = &shelf_ops;
}

static void teardown(void)
{
	let_go();
	ucm_loader_source = NULL;
	for (unsigned n = 0; n < BLOCKS; n++) {
		free(shelf.bytes[n]);
		shelf.bytes[n] = NULL;
	}
	shelf.fails = shelf.reads = shelf.hanging = 0;
	shelf.most = shelf.cut = 0;
	lf_cache_close(&cache);
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

static struct ucm_loader *open_loader(const struct way *way)
{
	struct ucm_loader_options options = { .io = lf_io(way->io),
					      .threads = way->threads };

	lf_limits.read_bytes = way->read_bytes;
	return lf_loader("$/none", &cache, &options);
}

static struct ucm_request request_of(const struct way *way)
{
	return (struct ucm_request){ .order = way->order,
				     .group_layers = way->group_layers,
				     .verify = UCM_VERIFY_FULL };
}

/* Blocks 0 to 2, of which 1 ends so, and the others well. */
static void load_three(const struct way *way, int err, uint16_t fault)
{
	struct ucm_loader *loader = open_loader(way);
	struct ucm_request request = request_of(way);
	struct ucm_outcome outcomes[3];

	for (unsigned round = 0; round < 2; round++) {
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, 3, &request, outcomes),
				 err ? -EIO : 0);
		ck_assert_int_eq(outcomes[1].err, err);
		ck_assert_uint_eq(outcomes[1].fault, fault);
		for (unsigned i = 0; i < 3; i += 2) {
			ck_assert_int_eq(outcomes[i].err, 0);
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
		}
		if (!err)
			ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
		ck_assert(lf_page_untouched(&cache, 3, 0, 4));
	}
	ucm_loader_close(loader);
}

/* ---- loads ---- */

UNIT_TEST(blocks_are_loaded_and_checked, .rows = NUM_ROWS(ways))
{
	load_three(&ways[_i], 0, 0);
	ck_assert_uint_gt(shelf.reads, 0);
}

UNIT_TEST(reads_in_small_parts_are_put_together, .rows = NUM_ROWS(ways))
{
	shelf.most = 1000;
	load_three(&ways[_i], 0, 0);
}

UNIT_TEST(a_block_without_a_plane_table_is_vouched_for, .rows = NUM_ROWS(ways))
{
	put(1, FX_PACKED);
	load_three(&ways[_i], 0, 0);
}

UNIT_TEST(what_is_absent_is_absent, .rows = NUM_ROWS(ways))
{
	free(shelf.bytes[1]);
	shelf.bytes[1] = NULL;
	load_three(&ways[_i], -ENOENT, 0);
}

UNIT_TEST(a_read_that_fails_is_its_blocks_error, .rows = NUM_ROWS(ways))
{
	shelf.fails = 2;
	shelf.err = -EHOSTDOWN;
	load_three(&ways[_i], -EHOSTDOWN, 0);
}

/* The source says that it has more than it brings. */
UNIT_TEST(a_short_read_is_an_error, .rows = NUM_ROWS(ways))
{
	shelf.cut = HEAD + 3 * LAYER + 100;
	load_three(&ways[_i], -EBADMSG, UCM_FAULT_SHORT);
}

UNIT_TEST(a_wrong_byte_is_found, .rows = NUM_ROWS(ways))
{
	shelf.bytes[1][HEAD + 2 * LAYER + 5] ^= 1;
	load_three(&ways[_i], -EBADMSG, UCM_FAULT_PLANE);
}

/* ---- time ---- */

static bool one_hangs(void *arg)
{
	bool yes;

	(void)arg;
	pthread_mutex_lock(&shelf.lock);
	yes = shelf.hanging > 0;
	pthread_mutex_unlock(&shelf.lock);
	return yes;
}

/* What comes late ends in staging: the page is as it was. */
UNIT_TEST(a_read_that_hangs_ends_at_the_deadline, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_loader(&ways[_i]);
	struct ucm_request request = request_of(&ways[_i]);
	struct ucm_outcome outcomes[3];

	lf_cache_clear(&cache);
	shelf.hangs = 2;
	request.deadline_ms = 200;
	ck_assert_int_ne(lf_load(loader, 0, 3, &request, outcomes), 0);
	ck_assert_int_eq(outcomes[1].err, -ETIMEDOUT);
	ck_assert(one_hangs(NULL));
	/* others are read meanwhile */
	request.deadline_ms = 0;
	ck_assert_int_eq(lf_load(loader, 4, 2, &request, outcomes), 0);
	let_go();
	ucm_loader_close(loader);
	ck_assert(!lf_page_is(&cache, 1, 0, 4, 1));
}

UNIT_TEST(a_loader_that_closes_waits_for_what_hangs)
{
	struct ucm_loader *loader = open_loader(&ways[0]);
	struct ucm_request request = request_of(&ways[0]);
	struct ucm_outcome outcomes[1];

	request.deadline_ms = 100;
	shelf.hangs = 1;
	ck_assert_int_ne(lf_load(loader, 0, 1, &request, outcomes), 0);
	fx_wait(one_hangs, NULL);
	let_go();
	ucm_loader_close(loader);
}

UNIT_TEST(nothing_is_saved_there)
{
	struct ucm_loader *loader = open_loader(&ways[0]);
	struct ucm_outcome outcomes[1];

	ck_assert_int_ne(lf_save(loader, 0, 1, NULL, outcomes), 0);
	ck_assert_int_eq(outcomes[0].err, -EOPNOTSUPP);
	ucm_loader_close(loader);
}
