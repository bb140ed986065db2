/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failures_fixture.h - blocks that are damaged, of which loads must tell.
 *
 * Three blocks are asked for; something is wrong with the one in the middle.
 * Each test looks at its outcome, and at the pages of the others.
 */
#ifndef UCM_TESTS_FAILURES_FIXTURE_H
#define UCM_TESTS_FAILURES_FIXTURE_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/load_fixture.h"

#define NUM 32
#define HEAD 4096
#define LAYER 4096

static struct lf_cache cache;
static char tier[64]; /* in memory */

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

static inline void setup_memory(void)
{
	setup();
	snprintf(tier, sizeof(tier), "%s/tier", lf_memory);
}

static inline void teardown_memory(void)
{
	lf_empty_memory();
	teardown();
}

static inline void plant(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		lf_plant("$/tier", &lf_geometry, i);
}

/* Every way to read. */
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

/* Blocks 0 to 2, of which 1 must end so; then what must hold for the others.
 * Twice: the second time files are found open. */
static inline void load_as(const struct way *way, const char *dir,
			   enum ucm_verify verify,
			   const struct ucm_outcome *want)
{
	struct ucm_loader_options options = { .io = way->io,
					      .threads = way->threads };
	struct ucm_request request = { .order = way->order,
				       .group_layers = way->group_layers,
				       .verify = verify };
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;

	lf_limits.read_bytes = way->read_bytes;
	loader = lf_loader(dir, &cache, &options);
	for (unsigned round = 0; round < 2; round++) {
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, 3, &request, outcomes),
				 want->err ? -EIO : 0);
		ck_assert_int_eq(outcomes[0].err, 0);
		ck_assert_int_eq(outcomes[1].err, want->err);
		ck_assert_uint_eq(outcomes[1].fault, want->fault);
		ck_assert_uint_eq(outcomes[1].plane, want->plane);
		ck_assert_int_eq(outcomes[2].err, 0);
		ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
		ck_assert(lf_page_is(&cache, 2, 0, 4, 2));
		ck_assert(lf_page_untouched(&cache, 3, 0, 4));
	}
	ucm_loader_close(loader);
}

static inline void load_as_all(const char *dir, enum ucm_verify verify,
			       const struct ucm_outcome *want)
{
	for (unsigned i = 0; i < NUM_ROWS(ways); i++)
		load_as(&ways[i], dir, verify, want);
}

/* ---- what is in the place of a block ---- */

/* Bytes of block 1 are turned over, or its length changed. */
static const struct {
	const char *what;
	size_t at; /* 0: none */
	ssize_t more;
	enum ucm_fault fault;
	uint32_t plane;
	/* Is it noticed when no checksum is asked for, and when nothing is? */
	bool header, none;
} damages[] = {
	{ "a byte short", 0, -1, UCM_FAULT_SHORT, 0, true, true },
	{ "a page short", 0, -4096, UCM_FAULT_SHORT, 0, true, true },
	{ "half a header", 0, -20430, UCM_FAULT_SHORT, 0, true, true },
	{ "the header alone", 0, -16384, UCM_FAULT_SHORT, 0, true, true },
	{ "empty", 0, -20480, UCM_FAULT_SHORT, 0, true, true },
	{ "a byte long", 0, 1, UCM_FAULT_SIZE, 0, true, true },
	{ "a page long", 0, 4096, UCM_FAULT_SIZE, 0, true, true },
	{ "magic", 1, 0, UCM_FAULT_MAGIC, 0, true, false },
	{ "header CRC", 60, 0, UCM_FAULT_HEADER_CRC, 0, true, false },
	{ "a field", 20, 0, UCM_FAULT_HEADER_CRC, 0, true, false },
	{ "extension", 100, 0, UCM_FAULT_EXTENSION, 0, true, false },
	{ "plane table", 130, 0, UCM_FAULT_EXTENSION, 0, true, false },
	{ "layer 0 K", HEAD, 0, UCM_FAULT_PLANE, 0, false, false },
	{ "layer 0 V", HEAD + 2048, 0, UCM_FAULT_PLANE, 1, false, false },
	{ "layer 1 K", HEAD + LAYER + 2047, 0, UCM_FAULT_PLANE, 2, false,
	  false },
	{ "layer 1 V", HEAD + 2 * LAYER - 1, 0, UCM_FAULT_PLANE, 3, false,
	  false },
	{ "layer 3 K", HEAD + 3 * LAYER, 0, UCM_FAULT_PLANE, 6, false, false },
	{ "layer 3 V", HEAD + 4 * LAYER - 1, 0, UCM_FAULT_PLANE, 7, false,
	  false },
};

static inline void damage(const char *dir, unsigned row)
{
	uint8_t *bytes;
	size_t len;

	bytes = lf_file(&lf_geometry, 1, FX_PAGED, &len);
	bytes = realloc(bytes, len + 4096);
	memset(bytes + len, 0, 4096);
	if (damages[row].at)
		bytes[damages[row].at] ^= 0x08;
	fx_put(lf_path(dir, 1), bytes,
	       (size_t)((ssize_t)len + damages[row].more));
	free(bytes);
}

static inline void load_damaged(const char *dir, unsigned row)
{
	const struct ucm_outcome well = { .err = 0 };
	const struct ucm_outcome bad = {
		.err = -EBADMSG,
		.fault = (uint16_t)damages[row].fault,
		.plane = damages[row].plane,
	};

	for (unsigned i = 0; i < 3; i++)
		lf_plant(dir, &lf_geometry, i);
	damage(dir, row);
	load_as_all(dir, UCM_VERIFY_FULL, &bad);
	load_as_all(dir, UCM_VERIFY_HEADER,
		    damages[row].header ? &bad : &well);
	load_as_all(dir, UCM_VERIFY_NONE, damages[row].none ? &bad : &well);
}

/* ---- forms that others write ---- */

static const enum fx_kind foreign[] = { FX_PACKED, FX_PACKED_RAW, FX_PAGED_RAW,
					FX_BARE };

/* ---- errors while reading ---- */

/* A file is cut off after its opening, in which so much of it was loaded: its
 * end comes before it is due. */
static const struct ucm_request openings[] = {
	{ .verify = UCM_VERIFY_NONE, .num_layers = 1 },
	{ .verify = UCM_VERIFY_NONE },
	{ .verify = UCM_VERIFY_FULL },
};

static inline void cut_off(struct ucm_loader *loader, const char *dir,
			   enum fx_kind kind, const struct ucm_request *opening,
			   const struct ucm_request *request)
{
	struct ucm_outcome outcomes[3];
	uint8_t *bytes;
	size_t len;

	bytes = lf_file(&lf_geometry, 1, kind, &len);
	for (size_t cut = 1; cut <= len; cut += cut < 8 ? 7 : len / 8) {
		fx_put(lf_path(dir, 1), bytes, len);
		ck_assert_int_eq(lf_load(loader, 0, 3, opening, NULL), 0);
		ck_assert_int_eq(truncate(lf_path(dir, 1), (off_t)(len - cut)),
				 0);
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, 3, request, outcomes),
				 -EIO);
		ck_assert_int_eq(outcomes[1].err, -EBADMSG);
		ck_assert_uint_eq(outcomes[1].fault, UCM_FAULT_SHORT);
		ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
		ck_assert(lf_page_is(&cache, 2, 0, 4, 2));
	}
	free(bytes);
}

static inline void cut_off_all(const char *dir, unsigned row)
{
	static const enum fx_kind kinds[] = { FX_PAGED, FX_PACKED, FX_BARE };
	const struct way *way = &ways[row];
	struct ucm_loader_options options = { .io = way->io,
					      .threads = way->threads };
	struct ucm_request request = { .order = way->order,
				       .group_layers = way->group_layers };
	struct ucm_loader *loader;

	lf_limits.read_bytes = way->read_bytes;
	loader = lf_loader(dir, &cache, &options);
	for (unsigned i = 0; i < 3 * NUM_ROWS(kinds) * NUM_ROWS(openings);
	     i++) {
		request.verify = (enum ucm_verify)(i % 3);
		cut_off(loader, dir, kinds[i / 3 % NUM_ROWS(kinds)],
			&openings[i / 3 / NUM_ROWS(kinds)], &request);
	}
	ucm_loader_close(loader);
}

#endif
