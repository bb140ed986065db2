/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_failures.c - blocks that are not as they should be, and files that
 * cannot be read.
 *
 * Three blocks are asked for; something is wrong with the one in the middle.
 * Each test looks at its outcome, and at the pages of the others.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/load_fixture.h"

#define NUM 32
#define MANY 500
#define HEAD 4096
#define LAYER 4096

static struct lf_cache cache;
static char tier[64]; /* in memory */

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
}

static void teardown(void)
{
	lf_cache_close(&cache);
	fx_teardown();
}

static void setup_memory(void)
{
	setup();
	snprintf(tier, sizeof(tier), "%s/tier", lf_memory);
}

static void teardown_memory(void)
{
	lf_empty_memory();
	teardown();
}

static void plant(unsigned num)
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
static void load_as(const struct way *way, const char *dir,
		    enum ucm_verify verify, const struct ucm_outcome *want)
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

static void load_as_all(const char *dir, enum ucm_verify verify,
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

static void damage(const char *dir, unsigned row)
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

static void load_damaged(const char *dir, unsigned row)
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

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(damage_is_noticed, .rows = NUM_ROWS(damages))
{
	load_damaged("$/tier", (unsigned)_i);
}

UNIT_TEST(another_block_under_the_name_is_noticed)
{
	const struct ucm_outcome bad = { .err = -EBADMSG,
					 .fault = UCM_FAULT_NAME };
	uint8_t *bytes;
	size_t len;

	plant(3);
	bytes = lf_file(&lf_geometry, 9, FX_PAGED, &len);
	fx_put(lf_path("$/tier", 1), bytes, len);
	free(bytes);
	load_as_all("$/tier", UCM_VERIFY_FULL, &bad);
	load_as_all("$/tier", UCM_VERIFY_HEADER, &bad);
}

UNIT_TEST(another_geometry_is_noticed)
{
	const struct ucm_outcome bad = { .err = -EBADMSG,
					 .fault = UCM_FAULT_GEOMETRY };
	struct ucm_geometry others[2] = { lf_geometry, lf_geometry };
	uint8_t *bytes;
	size_t len;

	plant(3);
	others[0].dtype = UCM_DTYPE_BFLOAT16; /* of the same size */
	others[1].num_layers = 3;
	for (unsigned i = 0; i < 2; i++) {
		bytes = lf_file(&others[i], 1, FX_PAGED, &len);
		fx_put(lf_path("$/tier", 1), bytes, len);
		free(bytes);
		load_as_all("$/tier", UCM_VERIFY_FULL, &bad);
		load_as_all("$/tier", UCM_VERIFY_HEADER, &bad);
	}
	load_as_all("$/tier", UCM_VERIFY_NONE, &bad); /* by its size */
}

static void put_nothing(const char *path)
{
	(void)path;
}

static void put_folder(const char *path)
{
	ck_assert_int_eq(mkdir(path, 0755), 0);
}

static void put_fifo(const char *path)
{
	ck_assert_int_eq(mkfifo(path, 0644), 0);
}

static void put_link(const char *path)
{
	lf_plant("$/elsewhere", &lf_geometry, 1);
	ck_assert_int_eq(symlink(lf_path("$/elsewhere", 1), path), 0);
}

static void (*const puts_other[])(const char *) = { put_nothing, put_folder,
						    put_fifo, put_link };

UNIT_TEST(what_is_no_file_is_absent, .rows = NUM_ROWS(puts_other))
{
	const struct ucm_outcome absent = { .err = -ENOENT };

	plant(3);
	ck_assert_int_eq(unlink(lf_path("$/tier", 1)), 0);
	puts_other[_i](lf_path("$/tier", 1));
	load_as_all("$/tier", UCM_VERIFY_FULL, &absent);
	load_as_all("$/tier", UCM_VERIFY_NONE, &absent);
}

/* ---- forms that others write ---- */

static const enum fx_kind foreign[] = { FX_PACKED, FX_PACKED_RAW, FX_PAGED_RAW,
					FX_BARE };

static void put_foreign(enum fx_kind kind)
{
	struct ucm_geometry geometry = lf_geometry;
	uint8_t *bytes;
	size_t len;

	plant(3);
	bytes = lf_file(&geometry, 1, kind, &len);
	fx_put(lf_path("$/tier", 1), bytes, len);
	free(bytes);
}

UNIT_TEST(foreign_forms_are_loaded, .rows = NUM_ROWS(foreign))
{
	const struct ucm_outcome well = { .err = 0 };

	put_foreign(foreign[_i]);
	load_as_all("$/tier", UCM_VERIFY_FULL, &well);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
	load_as_all("$/tier", UCM_VERIFY_HEADER, &well);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
	load_as_all("$/tier", UCM_VERIFY_NONE, &well);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
}

UNIT_TEST(a_packed_payload_is_checked)
{
	const struct ucm_outcome bad = { .err = -EBADMSG,
					 .fault = UCM_FAULT_PAYLOAD };
	uint8_t *bytes;
	size_t len;

	plant(3);
	bytes = lf_file(&lf_geometry, 1, FX_PACKED, &len);
	bytes[len - 1] ^= 1;
	fx_put(lf_path("$/tier", 1), bytes, len);
	free(bytes);
	load_as_all("$/tier", UCM_VERIFY_FULL, &bad);
	load_as_all("$/tier", UCM_VERIFY_HEADER,
		    &(struct ucm_outcome){ .err = 0 });
}

/* What was compared is not what came first: each read is held against it. (As
 * a device would, it writes to memory that is the kernel's at the moment.) */
__attribute__((no_sanitize_address)) static ssize_t
spoil_pieces(const struct ucm_io *io, ssize_t result)
{
	if (io->op == UCM_IO_READ && io->enough && result > 100)
		((uint8_t *)io->buffer)[100] ^= 1;
	return result;
}

UNIT_TEST(what_is_copied_of_a_packed_payload_was_checked)
{
	struct ucm_request request = { .first_layer = 1, .num_layers = 1 };
	struct ucm_outcome outcome;
	struct ucm_loader *loader;
	uint8_t *bytes;
	size_t len;

	plant(1);
	bytes = lf_file(&lf_geometry, 0, FX_PACKED, &len);
	fx_put(lf_path("$/tier", 0), bytes, len);
	free(bytes);
	ucm_ring_fault = spoil_pieces;
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 1, &request, &outcome), -EIO);
	ck_assert_int_eq(outcome.err, -EBADMSG);
	ck_assert_int_eq(outcome.fault, UCM_FAULT_PLANE);
	ck_assert_uint_eq(outcome.plane, 2);
	ck_assert(lf_page_untouched(&cache, 0, 0, 4));
	ucm_loader_close(loader);
}

/* The checksum of all tells nothing of a part: what is not asked for is read
 * for it, and must be right as well. */
UNIT_TEST(a_part_of_a_packed_payload_is_checked)
{
	struct ucm_request request = { .first_layer = 1, .num_layers = 1 };
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;
	uint8_t *bytes;
	size_t len;

	plant(3);
	bytes = lf_file(&lf_geometry, 1, FX_PACKED, &len);
	fx_put(lf_path("$/tier", 1), bytes, len);
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, &request, outcomes), 0);
	ck_assert(lf_page_is(&cache, 1, 1, 2, 1));
	ucm_loader_close(loader);
	bytes[len - 1] ^= 1;
	fx_put(lf_path("$/tier", 1), bytes, len);
	free(bytes);
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, &request, outcomes), -EIO);
	ck_assert_int_eq(outcomes[1].err, -EBADMSG);
	ck_assert_int_eq(outcomes[1].fault, UCM_FAULT_PAYLOAD);
	/* and an error is told as one */
	lf_fail_at(lf_path("$/tier", 1), 15000, -EIO);
	ck_assert_int_eq(lf_load(loader, 0, 3, &request, outcomes), -EIO);
	ck_assert_int_eq(outcomes[1].err, -EIO);
	ck_assert_int_eq(outcomes[2].err, 0);
	ucm_loader_close(loader);
}

static void put_with_offset(uint32_t data_offset, size_t less)
{
	size_t payload = 4 * LAYER, len = data_offset + payload;
	uint8_t *bytes = calloc(1, len);
	struct ucm_block block = {
		.id = lf_id(1),
		.geometry = lf_geometry,
		.form = UCM_FORM_PAGED,
		.data_offset = data_offset,
	};

	for (size_t i = 0; i < payload; i++)
		bytes[data_offset + i] = lf_byte(1, i);
	ck_assert_int_eq(ucm_block_encode(&block, bytes + data_offset, bytes,
					  len),
			 0);
	fx_put(lf_path("$/tier", 1), bytes, len - less);
	free(bytes);
}

static const uint32_t offsets[] = { 8192, 12288, 1 << 20 };

UNIT_TEST(longer_headers_are_read, .rows = NUM_ROWS(offsets))
{
	plant(3);
	put_with_offset(offsets[_i], 0);
	load_as_all("$/tier", UCM_VERIFY_FULL,
		    &(struct ucm_outcome){ .err = 0 });
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
}

/* Cut off inside of it, before it is opened and after. */
UNIT_TEST(longer_headers_may_be_torn)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS };
	struct ucm_loader *loader;
	struct ucm_task *task;

	plant(3);
	put_with_offset(1 << 20, 4 * LAYER + 4096);
	load_as_all("$/tier", UCM_VERIFY_FULL,
		    &(struct ucm_outcome){ .err = -EBADMSG,
					   .fault = UCM_FAULT_SHORT });
	put_with_offset(1 << 20, 0);
	loader = lf_loader("$/tier", &cache, &options);
	lf_hold(UCM_IO_READ, 0);
	task = lf_submit(loader, false, 1, 1, NULL);
	lf_wait_held(1);
	ck_assert_int_eq(truncate(lf_path("$/tier", 1), 8192), 0);
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ck_assert_int_eq(ucm_task_outcomes(task)->err, -EBADMSG);
	ck_assert_int_eq(ucm_task_outcomes(task)->fault, UCM_FAULT_SHORT);
	ucm_task_free(task);
	ucm_loader_close(loader);
}

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

/* A file is cut off after its opening, in which so much of it was loaded: its
 * end comes before it is due. */
static const struct ucm_request openings[] = {
	{ .verify = UCM_VERIFY_NONE, .num_layers = 1 },
	{ .verify = UCM_VERIFY_NONE },
	{ .verify = UCM_VERIFY_FULL },
};

static void cut_off(struct ucm_loader *loader, const char *dir,
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

static void cut_off_all(const char *dir, unsigned row)
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

/* ---- memory ---- */

static unsigned mappings_of(const char *part)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned num = 0;
	char line[512];

	ck_assert_ptr_nonnull(maps);
	while (fgets(line, sizeof(line), maps))
		num += strstr(line, part) != NULL;
	fclose(maps);
	return num;
}

UNIT_FIXTURE(.setup = setup_memory,
	     .teardown = teardown_memory,
	     .only_if = lf_open_memory);

/* Read the first time, mapped from the second one on. */
UNIT_TEST(damage_in_memory_is_noticed, .rows = NUM_ROWS(damages))
{

	lf_tier(tier);
	load_damaged(tier, (unsigned)_i);
}

UNIT_TEST(blocks_in_memory_are_copied_from_there)
{
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;

	lf_tier(tier);
	for (unsigned i = 0; i < NUM; i++)
		lf_plant(tier, &lf_geometry, i);
	loader = lf_loader(tier, &cache, NULL);
	lf_fail(UCM_IO_READ, 1, -EIO, false); /* none goes through the ring */
	for (unsigned turn = 1; turn <= 3; turn++) {
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
		for (unsigned i = 0; i < NUM; i++)
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
		ucm_loader_get_stats(loader, &stats, sizeof(stats));
		ck_assert_uint_eq(stats.mapped_bytes, turn * NUM * 4 * LAYER);
		ck_assert_uint_eq(stats.reads, 0);
		ck_assert_uint_eq(mappings_of(tier), turn == 1 ? 0 : NUM);
	}
	ucm_loader_close(loader);
}

/* While it is read as well as when it is mapped. */
UNIT_TEST(damage_in_memory_is_noticed_each_time, .rows = 3)
{
	struct ucm_outcome outcomes[2];
	struct ucm_loader *loader;
	int fd;

	lf_tier(tier);
	lf_plant(tier, &lf_geometry, 0);
	lf_plant(tier, &lf_geometry, 1);
	loader = lf_loader(tier, &cache, NULL);
	for (int turn = 0; turn < _i; turn++)
		ck_assert_int_eq(lf_load(loader, 0, 2, NULL, NULL), 0);
	fd = open(lf_path(tier, 1), O_WRONLY | O_CLOEXEC);
	ck_assert_int_eq(pwrite(fd, "\x5a\xa5", 2, HEAD + 2 * LAYER + 7), 2);
	close(fd);
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, 2, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[0].err, 0);
	ck_assert_int_eq(outcomes[1].err, -EBADMSG);
	ck_assert_int_eq(outcomes[1].fault, UCM_FAULT_PLANE);
	ck_assert_int_eq(outcomes[1].plane, 4);
	ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
	ck_assert(lf_page_untouched(&cache, 1, 2, 4));
	ucm_loader_close(loader);
}

UNIT_TEST(an_early_end_in_memory_is_torn, .rows = NUM_ROWS(ways))
{
	lf_tier(tier);
	for (unsigned i = 0; i < 3; i++)
		lf_plant(tier, &lf_geometry, i);
	cut_off_all(tier, (unsigned)_i);
}

/* Some layers have been read: it is not mapped yet. */
UNIT_TEST(a_file_in_memory_is_cut_off_while_it_is_read)
{
	struct ucm_request request = { .num_layers = 1 };
	struct ucm_outcome outcome;
	struct ucm_loader *loader;

	lf_tier(tier);
	lf_plant(tier, &lf_geometry, 0);
	loader = lf_loader(tier, &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 1, &request, NULL), 0);
	ck_assert_int_eq(truncate(lf_path(tier, 0), HEAD + LAYER + 1), 0);
	request.first_layer = 1;
	ck_assert_int_eq(lf_load(loader, 0, 1, &request, &outcome), -EIO);
	ck_assert_int_eq(outcome.err, -EBADMSG);
	ck_assert_int_eq(outcome.fault, UCM_FAULT_SHORT);
	ck_assert(lf_page_untouched(&cache, 0, 1, 4));
	ucm_loader_close(loader);
}

/* Touching what is not there any more would kill the process. */
UNIT_TEST(a_file_in_memory_that_is_cut_off_is_noticed)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;

	lf_tier(tier);
	for (unsigned i = 0; i < 3; i++)
		lf_plant(tier, &lf_geometry, i);
	loader = lf_loader(tier, &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, NULL), 0);
	for (unsigned i = 0; i < 3; i++) {
		static const off_t lens[] = { 20479, 4096, 0 };

		ck_assert_int_eq(truncate(lf_path(tier, 1), lens[i]), 0);
		ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
		ck_assert_int_eq(outcomes[1].err, -EBADMSG);
		ck_assert_int_eq(outcomes[1].fault, UCM_FAULT_SHORT);
		ck_assert_int_eq(outcomes[2].err, 0);
	}
	lf_plant(tier, &lf_geometry, 1);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, NULL), 0);
	ucm_loader_close(loader);
}

UNIT_TEST(memory_holds_foreign_forms, .rows = NUM_ROWS(foreign))
{
	const struct ucm_outcome well = { .err = 0 };
	uint8_t *bytes;
	size_t len;

	lf_tier(tier);
	for (unsigned i = 0; i < 3; i++)
		lf_plant(tier, &lf_geometry, i);
	bytes = lf_file(&lf_geometry, 1, foreign[_i], &len);
	fx_put(lf_path(tier, 1), bytes, len);
	free(bytes);
	load_as_all(tier, UCM_VERIFY_FULL, &well);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
	load_as_all(tier, UCM_VERIFY_NONE, &well);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
}

/* What is checked in a second turn is copied once, what fails is not at all. */
UNIT_TEST(what_comes_from_memory_is_counted_once)
{
	struct ucm_request request = { .first_layer = 1, .num_layers = 1 };
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;
	uint8_t *bytes;
	size_t len;

	lf_tier(tier);
	lf_plant(tier, &lf_geometry, 0);
	lf_plant(tier, &lf_geometry, 1);
	bytes = lf_file(&lf_geometry, 0, FX_PACKED, &len);
	fx_put(lf_path(tier, 0), bytes, len);
	free(bytes);
	bytes = lf_file(&lf_geometry, 1, FX_PAGED, &len);
	bytes[HEAD + LAYER] ^= 1;
	fx_put(lf_path(tier, 1), bytes, len);
	free(bytes);
	loader = lf_loader(tier, &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 2, &request, NULL), -EIO);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.load_bytes, LAYER);
	ck_assert_uint_eq(stats.mapped_bytes, LAYER);
	ucm_loader_close(loader);
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
