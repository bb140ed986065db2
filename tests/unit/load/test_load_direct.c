/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_direct.c - loads that read into the pages themselves, and saves that
 * write from them.
 *
 * The pages are one run of bytes each, with gaps between them, in memory that
 * is shared with nobody but mapped as an engine's is. What was not asked for
 * must be as it was: gaps, other layers, pages of others.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpu/layout/layout.h"
#include "tests/unit/load_fixture.h"
#include "tests/unit/random.h"

#define NUM 8
#define PLANE 4096
#define HEAD 4096
#define CASES 200

struct place {
	struct ucm_geometry geometry;
	uint64_t offset; /* of the first page in the memory */
	uint64_t gap;    /* between pages */
	uint64_t payload, layer, stride;
	uint8_t *memory;
	size_t len;
	struct ucm_layout *layout;
};

static struct ucm_geometry geometry_of(uint32_t layers, uint32_t k, uint32_t v)
{
	return (struct ucm_geometry){
		.num_layers = layers,
		.block_size = 16,
		.k_bytes = k,
		.v_bytes = v,
		.order = UCM_ORDER_OPAQUE,
	};
}

static void add_region(struct place *place, uint32_t layer)
{
	struct ucm_region region = {
		.base = (uintptr_t)place->memory + place->offset +
			layer * place->layer,
		.page_stride = (int64_t)place->stride,
		.run_bytes = place->layer,
		.n0 = 1,
		.n1 = 1,
		.offset = layer * place->layer,
		.layer = layer,
	};

	ck_assert_int_eq(ucm_layout_add_region(place->layout, &region, NULL),
			 0);
}

static void clear(struct place *place)
{
	memset(place->memory, 0xa5, place->len);
}

static void open_place(struct place *place, struct ucm_geometry geometry,
		       uint64_t offset, uint64_t gap)
{
	*place = (struct place){
		.geometry = geometry, .offset = offset, .gap = gap
	};
	place->payload = ucm_block_payload_bytes(&geometry);
	place->layer = place->payload / geometry.num_layers;
	place->stride = place->payload + gap;
	place->len = offset + NUM * place->stride + 4096;
	place->memory = mmap(NULL, place->len, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(place->memory, MAP_FAILED);
	clear(place);
	ck_assert_int_eq(ucm_layout_new(&geometry, NUM, &place->layout, NULL),
			 0);
	for (uint32_t layer = 0; layer < geometry.num_layers; layer++)
		add_region(place, layer);
	ck_assert_int_eq(ucm_layout_seal(place->layout, NULL), 0);
	ck_assert_int_eq(ucm_layout_set_direct(place->layout, NULL), 0);
}

static void close_place(struct place *place)
{
	ucm_layout_free(place->layout);
	munmap(place->memory, place->len);
}

static struct ucm_loader *open_loader(const struct place *place,
				      const struct ucm_loader_options *options)
{
	const struct lf_cache cache = { .layout = place->layout };

	return lf_loader("$/tier", &cache, options);
}

static uint64_t direct_bytes(struct ucm_loader *loader)
{
	struct ucm_loader_stats stats;

	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	return stats.direct_bytes;
}

/* Where the kernel, the limit of locked memory or the file system does not
 * allow it the tests of what is loaded remain. */
static bool can_read_directly(void)
{
	static int known = -1;
	struct ucm_loader *loader;
	struct place place;

	if (known >= 0)
		return known;
	open_place(&place, geometry_of(1, PLANE, 0), 0, 0);
	lf_plant("$/tier", &place.geometry, 1000);
	loader = open_loader(&place, NULL);
	ck_assert_int_eq(lf_load(loader, 1000, 1, NULL, NULL), 0);
	known = direct_bytes(loader) != 0;
	if (!known)
		unit_skip("reading into pages: no io_uring, locked memory or "
			  "O_DIRECT");
	ucm_loader_close(loader);
	close_place(&place);
	return known;
}

static uint8_t *page_of(const struct place *place, uint32_t page)
{
	return place->memory + place->offset + page * place->stride;
}

static bool has_block(const struct place *place, uint32_t page, uint32_t first,
		      uint32_t end, unsigned n)
{
	const uint8_t *bytes = page_of(place, page);

	for (uint64_t i = first * place->layer; i < end * place->layer; i++) {
		if (bytes[i] != lf_byte(n, i))
			return false;
	}
	return true;
}

static bool is_clear(const uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (bytes[i] != 0xa5)
			return false;
	}
	return true;
}

/* Other layers of the page, and the gap behind it. */
static bool rest_is_clear(const struct place *place, uint32_t page,
			  uint32_t first, uint32_t end)
{
	const uint8_t *bytes = page_of(place, page);

	return is_clear(bytes, first * place->layer) &&
	       is_clear(bytes + end * place->layer,
			place->stride - end * place->layer);
}

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
}

/* ---- which reads go there ---- */

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 300);

UNIT_TEST(only_pages_in_one_piece)
{
	struct ucm_layout *layout;
	struct lf_cache cache;
	struct ucm_error error = { "" };

	lf_cache_open(&cache, &lf_geometry, 2);
	ck_assert_int_eq(ucm_layout_new(&lf_geometry, 2, &layout, NULL), 0);
	ck_assert_int_eq(ucm_layout_set_direct(layout, &error), -EINVAL);
	ck_assert_str_eq(error.text, "the layout is not sealed");
	ck_assert_int_eq(ucm_layout_set_direct(cache.layout, &error), -EINVAL);
	ck_assert_str_eq(error.text,
			 "a block is 8 pieces of memory: reading into "
			 "pages needs one");
	ucm_layout_free(layout);
	lf_cache_close(&cache);
}

static const struct {
	uint32_t layers, k, v;
	uint64_t offset, gap;
	uint32_t read_bytes;
	unsigned direct; /* of the layers of a block */
} ways[] = {
	{ 1, PLANE, 0, 0, 0, 0, 1 },
	{ 1, PLANE, PLANE, 4096, 4096, 0, 1 },
	{ 4, PLANE, PLANE, 0, 0, 0, 4 },
	{ 4, PLANE, PLANE, 0, 0, 2 * PLANE, 4 }, /* a layer a read */
	{ 4, PLANE / 2, PLANE / 2, 8192, 0, PLANE, 4 },
	{ 32, PLANE, PLANE, 0, 65536, 0, 32 },
	{ 1, 100, 0, 0, 4096 - 100, 0, 0 },       /* no whole unit */
	{ 1, PLANE + 100, 0, 0, 4096 - 100, 0, 0 },
	{ 2, PLANE, 0, 64, 0, 0, 0 },             /* not aligned */
	{ 2, PLANE, 0, 0, 2048 + 64, 0, 0 },      /* nor all but one of these */
};

UNIT_TEST(what_is_aligned_is_read_into_pages, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader;
	struct place place;
	unsigned num = ways[_i].gap == 2048 + 64 ? 1 : NUM;

	open_place(&place,
		   geometry_of(ways[_i].layers, ways[_i].k, ways[_i].v),
		   ways[_i].offset, ways[_i].gap);
	for (unsigned i = 0; i < NUM; i++)
		lf_plant("$/tier", &place.geometry, i);
	lf_limits.read_bytes = ways[_i].read_bytes;
	loader = open_loader(&place, NULL);
	for (unsigned turn = 1; turn < 3; turn++) { /* files new, then open */
		clear(&place);
		ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
		ck_assert(is_clear(place.memory, place.offset));
		for (unsigned i = 0; i < NUM; i++) {
			ck_assert(has_block(&place, i, 0, ways[_i].layers, i));
			ck_assert(rest_is_clear(&place, i, 0, ways[_i].layers));
		}
		if (can_read_directly())
			ck_assert_uint_eq(
				direct_bytes(loader),
				ways[_i].direct
					? turn * NUM * place.payload
					: num == 1 ? turn * place.payload : 0);
	}
	ucm_loader_close(loader);
	close_place(&place);
}

/* A deadline is kept if pages may be lent, too. */
UNIT_TEST(requests_that_lend_are_read_into_pages, .rows = 2)
{
	const struct ucm_request request = {
		.lend = _i ? UCM_LEND_LOCAL : UCM_LEND_ALWAYS,
		.deadline_ms = 60000,
	};
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(1, PLANE, PLANE), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	loader = open_loader(&place, NULL);
	task = lf_submit(loader, false, 0, 1, &request);
	ck_assert_int_eq(ucm_task_wait_returned(task, 20000), 0);
	ck_assert_uint_eq(ucm_task_num_lent(task), 0);
	ck_assert(has_block(&place, 0, 0, 1, 0));
	ck_assert_uint_eq(direct_bytes(loader), place.payload);
	ucm_task_free(task);
	ucm_loader_close(loader);
	close_place(&place);
}

/* A deadline is kept, and addresses may be anywhere: by way of staging. */
UNIT_TEST(requests_that_go_through_staging)
{
	struct ucm_request requests[] = {
		{ .deadline_ms = 60000 },
		{ .addresses = (uint64_t[1]){ 0 } },
	};
	struct ucm_loader *loader;
	struct place place;
	uint64_t address;

	open_place(&place, geometry_of(1, PLANE, PLANE), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	address = (uintptr_t)page_of(&place, 0);
	requests[1].addresses = &address;
	loader = open_loader(&place, NULL);
	for (unsigned i = 0; i < NUM_ROWS(requests); i++) {
		clear(&place);
		ck_assert_int_eq(lf_load(loader, 0, 1, &requests[i], NULL), 0);
		ck_assert(has_block(&place, 0, 0, 1, 0));
		ck_assert_uint_eq(direct_bytes(loader), 0);
	}
	ucm_loader_close(loader);
	close_place(&place);
}

/* ---- saves ---- */

static uint64_t saved_directly(struct ucm_loader *loader)
{
	struct ucm_loader_stats stats;

	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	return stats.save_direct_bytes;
}

static void fill_pages(struct place *place)
{
	clear(place);
	for (unsigned page = 0; page < NUM; page++) {
		for (uint64_t i = 0; i < place->payload; i++)
			page_of(place, page)[i] = lf_byte(page, i);
	}
}

static void check_files(const struct place *place)
{
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_saved("$/tier", &place->geometry, i));
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
}

static const enum ucm_io_kind rings[] = { UCM_IO_AUTO, UCM_IO_THREADS };

UNIT_TEST(what_is_aligned_is_written_from_pages,
	  .rows = NUM_ROWS(ways) * NUM_ROWS(rings))
{
	unsigned way = _i / NUM_ROWS(rings);
	struct ucm_loader_options options = { .io = rings[_i % 2] };
	struct ucm_loader *loader;
	struct place place;

	open_place(&place,
		   geometry_of(ways[way].layers, ways[way].k, ways[way].v),
		   ways[way].offset, ways[way].gap);
	fill_pages(&place);
	lf_limits.read_bytes = ways[way].read_bytes;
	loader = open_loader(&place, &options);
	lf_shorten(UCM_IO_WRITE, 5000, 7); /* in the head, and after it */
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	check_files(&place);
	if (can_read_directly() && ways[way].direct)
		ck_assert_uint_eq(saved_directly(loader), NUM * place.payload);
	else if (can_read_directly() && ways[way].gap != 2048 + 64)
		ck_assert_uint_eq(saved_directly(loader), 0);
	ucm_loader_close(loader);
	close_place(&place);
}

UNIT_TEST(layers_are_written_from_pages, .rows = NUM_ROWS(rings))
{
	struct ucm_loader_options options = { .io = rings[_i] };
	struct ucm_loader *loader;
	struct ucm_task *tasks[3];
	struct place place;

	open_place(&place, geometry_of(6, PLANE, PLANE), 0, 4096);
	fill_pages(&place);
	loader = open_loader(&place, &options);
	for (unsigned i = 0; i < 3; i++)
		tasks[i] = lf_submit(loader, true, 0, NUM,
				     &(struct ucm_request){
					     .first_layer = 2 * i,
					     .num_layers = 2 });
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	check_files(&place);
	if (can_read_directly())
		ck_assert_uint_eq(saved_directly(loader), NUM * place.payload);
	ucm_loader_close(loader);
	close_place(&place);
}

/* With a deadline, or from addresses, they are copied. */
UNIT_TEST(a_page_is_not_kept_past_a_deadline)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_request request = { .deadline_ms = 50 };
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;

	open_place(&place, geometry_of(2, PLANE, PLANE), 0, 0);
	fill_pages(&place);
	loader = open_loader(&place, &options);
	lf_hold(UCM_IO_WRITE, 0);
	task = lf_submit(loader, true, 0, 2, &request);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ucm_task_free(task);
	lf_release();
	ck_assert_uint_eq(saved_directly(loader), 0);
	ucm_loader_close(loader);
	close_place(&place);
}

/* What is cancelled ends when nobody reads its page any more. */
UNIT_TEST(a_page_that_is_written_from_is_waited_for)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(2, PLANE, PLANE), 0, 0);
	fill_pages(&place);
	loader = open_loader(&place, &options);
	lf_hold(UCM_IO_WRITE, 0);
	task = lf_submit(loader, true, 0, 2, NULL);
	lf_wait_held(2);
	ucm_task_cancel(task);
	ck_assert_int_eq(ucm_task_wait(task, 30), -ETIMEDOUT);
	ck_assert_int_eq(ucm_task_wait_copied(task, 0), -ETIMEDOUT);
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_task_outcomes(task)[i].err, -ECANCELED);
	ucm_task_free(task);
	ucm_loader_close(loader);
	for (unsigned i = 0; i < 2; i++)
		ck_assert(!fx_exists(lf_path("$/tier", i)));
	close_place(&place);
}

/* ---- failures ---- */

static void damage(unsigned n, off_t at)
{
	int fd = open(lf_path("$/tier", n), O_RDWR | O_CLOEXEC);
	char byte;

	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

UNIT_TEST(damage_is_noticed_in_the_page)
{
	struct ucm_request header_only = { .verify = UCM_VERIFY_HEADER };
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;
	struct place place;

	open_place(&place, geometry_of(2, PLANE, PLANE), 0, 0);
	for (unsigned i = 0; i < 3; i++)
		lf_plant("$/tier", &place.geometry, i);
	damage(1, HEAD + 3 * PLANE + 5);
	loader = open_loader(&place, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[1].err, -EBADMSG);
	ck_assert_int_eq(outcomes[1].fault, UCM_FAULT_PLANE);
	ck_assert_int_eq(outcomes[1].plane, 3);
	for (unsigned i = 0; i < 3; i += 2) {
		ck_assert_int_eq(outcomes[i].err, 0);
		ck_assert(has_block(&place, i, 0, 2, i));
	}
	ck_assert_int_eq(lf_load(loader, 0, 3, &header_only, NULL), 0);
	damage(2, 3); /* the header, of a file that is opened anew */
	ucm_loader_close(loader);
	loader = open_loader(&place, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, &header_only, outcomes), -EIO);
	ck_assert_int_eq(outcomes[2].fault, UCM_FAULT_MAGIC);
	ucm_loader_close(loader);
	close_place(&place);
}

static struct {
	_Atomic bool begun, cancelled;
	_Atomic unsigned steps;
	unsigned num; /* steps of the read */
	unsigned steps_at_end;
} slow;

/* The read of a payload comes in steps of 512 bytes; after the first one the
 * test cancels the task. */
static ssize_t in_steps(const struct ucm_io *io, ssize_t result)
{
	if (io->op != UCM_IO_READ || !io->offset || result <= 512)
		return result;
	atomic_fetch_add(&slow.steps, 1);
	atomic_store(&slow.begun, true);
	while (!atomic_load(&slow.cancelled))
		usleep(100);
	return 512;
}

static void note_end(void *arg, struct ucm_task *task)
{
	(void)arg;
	(void)task;
	slow.steps_at_end = atomic_load(&slow.steps);
}

UNIT_TEST(a_cancelled_task_ends_when_its_reads_have)
{
	struct ucm_request request = { .on_done = note_end };
	const unsigned steps = 64 * PLANE / 512;
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(1, 64 * PLANE, 0), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	loader = open_loader(&place, NULL);
	ucm_ring_fault = in_steps;
	task = lf_submit(loader, false, 0, 1, &request);
	while (!atomic_load(&slow.begun))
		usleep(100);
	ucm_task_cancel(task);
	atomic_store(&slow.cancelled, true);
	ck_assert_int_eq(ucm_task_wait(task, -1), -EIO);
	ucm_ring_fault = NULL;
	ck_assert_int_eq(ucm_task_outcomes(task)[0].err, -ECANCELED);
	/* the last step brings the rest as it is */
	ck_assert_uint_eq(slow.steps_at_end, steps - 1);
	ucm_task_free(task);
	ucm_loader_close(loader);
	close_place(&place);
}

static uint64_t staged_mib(struct ucm_loader *loader)
{
	char text[256];
	const char *at;

	ucm_loader_describe(loader, text, sizeof(text));
	at = strstr(text, "threads, ");
	ck_assert_ptr_nonnull(at);
	return strtoull(at + strlen("threads, "), NULL, 10);
}

/* It is what lies between files and pages: of these there is nothing. */
UNIT_TEST(staging_does_not_grow_for_what_goes_straight_into_pages)
{
	const struct ucm_loader_options options = {
		.threads = 1,
		.staging_bytes = 256 << 20,
	};
	struct ucm_loader *loader;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(4, 128 * PLANE, 128 * PLANE), 0, 0);
	for (unsigned n = 0; n < NUM; n++)
		lf_plant("$/tier", &place.geometry, n);
	lf_limits.window_bytes = 64 << 20;
	loader = open_loader(&place, &options);
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	ck_assert_uint_eq(direct_bytes(loader), NUM * place.payload);
	ck_assert_uint_le(staged_mib(loader), 2);
	ucm_loader_close(loader);
	close_place(&place);
}

/* ---- pages that are lent ---- */

static struct {
	_Atomic bool go_on;
	_Atomic unsigned steps;
} late;

/* A read of a payload comes in steps that take a while, as from a server that
 * hangs, until it may go on. */
static ssize_t hang(const struct ucm_io *io, ssize_t result)
{
	if (io->op != UCM_IO_READ || !io->offset)
		return result;
	atomic_fetch_add(&late.steps, 1);
	if (atomic_load(&late.go_on) || result <= PLANE)
		return result;
	usleep(5000);
	return PLANE;
}

static unsigned take_all(struct ucm_completions *queue, int timeout_ms)
{
	struct ucm_task *tasks[4];

	return (unsigned)ucm_completions_take(queue, tasks, 4, timeout_ms);
}

static void must_be_lent(struct ucm_task *task)
{
	ck_assert(ucm_task_done(task));
	ck_assert_uint_eq(ucm_task_num_lent(task), 1);
	ck_assert(ucm_task_is_lent(task, 0));
	ck_assert(!ucm_task_is_lent(task, 1));
	ck_assert(!ucm_task_is_lent(task, 99));
	ck_assert_int_eq(ucm_task_wait_returned(task, 0), -ETIMEDOUT);
}

static const struct {
	enum ucm_load_lend lend;
	uint32_t deadline_ms; /* 0: it is cancelled */
	int err;
} lendings[] = {
	{ UCM_LEND_ALWAYS, 20, -ETIMEDOUT },
	{ UCM_LEND_LOCAL, 20, -ETIMEDOUT },
	{ UCM_LEND_LOCAL, 0, -ECANCELED },
};

/* The end of the task is told, and later that its page is the caller's again:
 * each once, and nothing is written to it from then on. */
UNIT_TEST(a_lent_page_comes_back_when_its_read_has_ended,
	  .rows = NUM_ROWS(lendings))
{
	struct ucm_request request = { .lend = lendings[_i].lend,
				       .deadline_ms =
					       lendings[_i].deadline_ms };
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;
	unsigned steps;

	if (!can_read_directly())
		return;
	ck_assert_int_eq(ucm_completions_new(&request.completions), 0);
	open_place(&place, geometry_of(1, 64 * PLANE, 0), 0, 4096);
	lf_plant("$/tier", &place.geometry, 0);
	loader = open_loader(&place, NULL);
	ucm_ring_fault = hang;
	task = lf_submit(loader, false, 0, 2, &request); /* the second: absent */
	while (!atomic_load(&late.steps))
		usleep(100);
	if (!request.deadline_ms)
		ucm_task_cancel(task);
	ck_assert_uint_eq(take_all(request.completions, 20000), 1);
	ck_assert_int_eq(ucm_task_outcomes(task)[0].err, lendings[_i].err);
	must_be_lent(task);
	steps = atomic_load(&late.steps);
	while (atomic_load(&late.steps) == steps) /* it goes on */
		usleep(100);
	must_be_lent(task);
	ck_assert_uint_eq(take_all(request.completions, 0), 0);
	atomic_store(&late.go_on, true);
	ck_assert_int_eq(ucm_task_wait_returned(task, 20000), -EIO);
	ck_assert_uint_eq(ucm_task_num_lent(task), 0);
	ck_assert(!ucm_task_is_lent(task, 0));
	ck_assert_uint_eq(take_all(request.completions, 20000), 1);
	ck_assert_uint_eq(take_all(request.completions, 0), 0);
	ck_assert_int_eq(ucm_task_outcomes(task)[0].err, lendings[_i].err);
	ck_assert(has_block(&place, 0, 0, 1, 0)); /* late, and nowhere else */
	ck_assert(rest_is_clear(&place, 0, 0, 1));
	ck_assert(is_clear(page_of(&place, 1), (NUM - 1) * place.stride));
	ucm_ring_fault = NULL;
	ucm_task_free(task);
	ucm_loader_close(loader);
	ucm_completions_free(request.completions);
	close_place(&place);
}

/* Whoever frees the task has the page when that returns. */
UNIT_TEST(a_task_is_not_freed_before_its_pages_are_back)
{
	struct ucm_request request = { .lend = UCM_LEND_ALWAYS };
	struct ucm_loader *loader;
	struct ucm_task *task;
	struct place place;
	unsigned steps;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(1, 64 * PLANE, 0), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	loader = open_loader(&place, NULL);
	ucm_ring_fault = hang;
	task = lf_submit(loader, false, 0, 1, &request);
	while (!atomic_load(&late.steps))
		usleep(100);
	ucm_task_cancel(task);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	must_be_lent(task);
	ucm_task_free(task);
	steps = atomic_load(&late.steps);
	ck_assert_uint_eq(steps, 64);
	ck_assert(has_block(&place, 0, 0, 1, 0));
	clear(&place);
	ucm_loader_close(loader);
	ck_assert_uint_eq(atomic_load(&late.steps), steps);
	ck_assert(is_clear(place.memory, place.len));
	ucm_ring_fault = NULL;
	close_place(&place);
}

/* So much memory may be locked, whoever we are. */
static void limit_locked(uint64_t bytes)
{
	const struct rlimit limit = { bytes, bytes };
	struct __user_cap_header_struct header = {
		.version = _LINUX_CAPABILITY_VERSION_3
	};
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];

	ck_assert_int_eq(syscall(SYS_capget, &header, caps), 0);
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	ck_assert_int_eq(syscall(SYS_capset, &header, caps), 0);
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* There is no room for it, nor for staging memory, which is larger. */
UNIT_TEST(a_thread_that_cannot_pin_the_pages_is_told_of)
{
	const struct ucm_loader_options options = { .threads = 2 };
	struct ucm_loader *loader;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(1, 16 * PLANE, 0), 0, 0);
	for (unsigned n = 0; n < NUM; n++)
		lf_plant("$/tier", &place.geometry, n);
	limit_locked(place.len / 2);
	loader = open_loader(&place, &options);
	ck_assert(fx_logged("cannot be pinned"));
	ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
	for (uint32_t n = 0; n < NUM; n++)
		ck_assert(has_block(&place, n, 0, 1, n));
	ucm_loader_close(loader);
	close_place(&place);
}

/* A file is cut off after its opening: what the pages still have from before is
 * not taken for what was read. */
UNIT_TEST(an_early_end_is_torn, .rows = 3)
{
	const struct ucm_request request = { .verify = (enum ucm_verify)_i };
	const off_t payload = 4 * 2 * PLANE;
	off_t cut;
	struct ucm_outcome outcomes[2];
	struct ucm_loader *loader;
	struct place place;

	if (!can_read_directly())
		return;
	open_place(&place, geometry_of(4, PLANE, PLANE), 0, 0);
	lf_plant("$/tier", &place.geometry, 0);
	lf_limits.read_bytes = 2 * PLANE;
	loader = open_loader(&place, NULL);
	for (cut = 1; cut <= payload; cut += cut > 1 ? PLANE : PLANE - 1) {
		uint64_t direct = direct_bytes(loader);

		lf_plant("$/tier", &place.geometry, 1);
		ck_assert_int_eq(lf_load(loader, 0, 2, &request, NULL), 0);
		ck_assert_uint_eq(direct_bytes(loader) - direct,
				  2 * (uint64_t)payload);
		ck_assert_int_eq(truncate(lf_path("$/tier", 1),
					  HEAD + payload - cut), 0);
		ck_assert_int_eq(lf_load(loader, 0, 2, &request, outcomes),
				 -EIO);
		ck_assert_int_eq(outcomes[0].err, 0);
		ck_assert_int_eq(outcomes[1].err, -EBADMSG);
		ck_assert_uint_eq(outcomes[1].fault, UCM_FAULT_SHORT);
	}
	ucm_loader_close(loader);
	close_place(&place);
}

/* ---- at random ---- */

enum state { GOOD, ABSENT, BAD_PLANE, BAD_HEAD, TORN };

struct trial {
	uint64_t random;
	unsigned number;
	struct place place;
	enum state states[NUM];
	struct ucm_loader *loader;
};

static unsigned pick(struct trial *trial, unsigned num)
{
	return (unsigned)(random_next(&trial->random) % num);
}

#define must_here(condition, what)                                            \
	must_in_case(condition, trial->number, what)

static void put_file(struct trial *trial, unsigned n)
{
	static const enum state states[] = { GOOD, GOOD, GOOD, GOOD,
					     ABSENT, BAD_PLANE, BAD_HEAD,
					     TORN };
	const struct place *place = &trial->place;

	trial->states[n] = states[pick(trial, NUM_ROWS(states))];
	unlink(lf_path("$/tier", n));
	if (trial->states[n] == ABSENT)
		return;
	lf_plant("$/tier", &place->geometry, n);
	if (trial->states[n] == BAD_PLANE)
		damage(n, HEAD + (off_t)pick(trial, (unsigned)place->payload));
	if (trial->states[n] == BAD_HEAD)
		damage(n, pick(trial, 64));
	if (trial->states[n] == TORN)
		ck_assert_int_eq(
			truncate(lf_path("$/tier", n),
				 pick(trial, HEAD + (unsigned)place->payload)),
			0);
}

static void open_trial(struct trial *trial, unsigned number)
{
	static const uint32_t sizes[] = { 512, 2048, 4096, 4096, 8192, 1000 };
	static const uint64_t aligns[] = { 0, 0, 4096, 512, 64, 8 };
	struct ucm_loader_options options;

	*trial = (struct trial){ .random = random_case(number),
				 .number = number };
	open_place(&trial->place,
		   geometry_of(1 + pick(trial, 6),
			       sizes[pick(trial, NUM_ROWS(sizes))],
			       pick(trial, 2)
				       ? sizes[pick(trial, NUM_ROWS(sizes))]
				       : 0),
		   aligns[pick(trial, NUM_ROWS(aligns))],
		   aligns[pick(trial, NUM_ROWS(aligns))]);
	options = (struct ucm_loader_options){
		.threads = 1 + pick(trial, 3),
		.staging_bytes = 1,
		.open_files = 1 + pick(trial, 12),
	};
	for (unsigned n = 0; n < NUM; n++)
		put_file(trial, n);
	lf_limits.read_bytes = pick(trial, 3) ? 0 : 1u << pick(trial, 16);
	lf_limits.window_bytes = pick(trial, 2) ? 0 : 1u << pick(trial, 16);
	trial->loader = open_loader(&trial->place, &options);
}

static void judge(struct trial *trial, const struct ucm_request *request,
		  uint32_t end, const struct ucm_outcome *outcome, unsigned n,
		  bool cancelled)
{
	uint32_t first = request->first_layer;
	bool damaged = trial->states[n] == BAD_PLANE &&
		       request->verify != UCM_VERIFY_FULL;

	must_here(rest_is_clear(&trial->place, n, first, end),
		  "something else was written to");
	if (!outcome->err && !damaged)
		must_here(has_block(&trial->place, n, first, end, n),
			  "loaded, with other bytes");
	if (outcome->err == -ECANCELED)
		must_here(cancelled, "cancelled by nobody");
	else if (trial->states[n] == GOOD)
		must_here(!outcome->err, "a good block has failed");
	else if (trial->states[n] == ABSENT)
		must_here(outcome->err == -ENOENT, "not told to be absent");
	else if (trial->states[n] != BAD_PLANE)
		must_here(outcome->err == -EBADMSG, "damage was not noticed");
}

static void load_at_random(struct trial *trial)
{
	uint32_t layers = trial->place.geometry.num_layers, end;
	struct ucm_request request = {
		.verify = (enum ucm_verify)pick(trial, 2),
		.order = (enum ucm_load_order)pick(trial, 2),
		.first_layer = pick(trial, 3) ? 0 : pick(trial, layers),
		.deadline_ms = pick(trial, 2) ? 0 : 60000,
		.lend = (enum ucm_load_lend)pick(trial, 3),
	};
	bool cancelled = !pick(trial, 5);
	struct ucm_task *task;

	end = pick(trial, 3) ? layers
			     : request.first_layer + 1 +
				       pick(trial, layers -
							   request.first_layer);
	request.num_layers = end - request.first_layer;
	clear(&trial->place);
	lf_shorten(UCM_IO_READ, 1 + pick(trial, 5000),
		   pick(trial, 3) ? 0 : pick(trial, 20));
	task = lf_submit(trial->loader, false, 0, NUM, &request);
	if (cancelled)
		ucm_task_cancel(task);
	ucm_task_wait_returned(task, -1);
	for (unsigned n = 0; n < NUM; n++)
		judge(trial, &request, end, &ucm_task_outcomes(task)[n], n,
		      cancelled);
	ucm_task_free(task);
}

UNIT_TEST(what_is_loaded_is_right_at_random)
{
	uint64_t direct = 0;

	for (unsigned number = 0; number < CASES; number++) {
		struct trial trial;

		open_trial(&trial, number);
		for (unsigned i = 0; i < 6; i++)
			load_at_random(&trial);
		direct += direct_bytes(trial.loader);
		ucm_loader_close(trial.loader);
		close_place(&trial.place);
	}
	if (can_read_directly())
		ck_assert_uint_ne(direct, 0);
}
