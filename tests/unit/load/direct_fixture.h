/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct_fixture.h - pages that are read into and written from directly.
 *
 * They are one run of bytes each, with gaps between them, in memory that is
 * shared with nobody but mapped as an engine's is. What was not asked for must
 * be as it was: gaps, other layers, pages of others.
 */
#ifndef UCM_TESTS_DIRECT_FIXTURE_H
#define UCM_TESTS_DIRECT_FIXTURE_H

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/layout/layout.h"
#include "tests/unit/load_fixture.h"

#define NUM 8
#define PLANE 4096
#define HEAD 4096

struct place {
	struct ucm_geometry geometry;
	uint64_t offset; /* of the first page in the memory */
	uint64_t gap;    /* between pages */
	uint64_t payload, layer, stride;
	uint8_t *memory;
	size_t len;
	struct ucm_layout *layout;
};

static inline struct ucm_geometry geometry_of(uint32_t layers, uint32_t k,
					      uint32_t v)
{
	return (struct ucm_geometry){
		.num_layers = layers,
		.block_size = 16,
		.k_bytes = k,
		.v_bytes = v,
		.order = UCM_ORDER_OPAQUE,
	};
}

static inline void add_region(struct place *place, uint32_t layer)
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

static inline void clear(struct place *place)
{
	memset(place->memory, 0xa5, place->len);
}

static inline void open_place(struct place *place, struct ucm_geometry geometry,
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

static inline void close_place(struct place *place)
{
	ucm_layout_free(place->layout);
	munmap(place->memory, place->len);
}

static inline struct ucm_loader *
open_loader(const struct place *place, const struct ucm_loader_options *options)
{
	const struct lf_cache cache = { .layout = place->layout };

	return lf_loader("$/tier", &cache, options);
}

static inline uint64_t direct_bytes(struct ucm_loader *loader)
{
	struct ucm_loader_stats stats;

	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	return stats.direct_bytes;
}

/* Where the kernel, the limit of locked memory or the file system does not
 * allow it the tests of what is loaded remain. */
static inline bool can_read_directly(void)
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

static inline uint8_t *page_of(const struct place *place, uint32_t page)
{
	return place->memory + place->offset + page * place->stride;
}

static inline bool has_block(const struct place *place, uint32_t page,
			     uint32_t first, uint32_t end, unsigned n)
{
	const uint8_t *bytes = page_of(place, page);

	for (uint64_t i = first * place->layer; i < end * place->layer; i++) {
		if (bytes[i] != lf_byte(n, i))
			return false;
	}
	return true;
}

static inline bool is_clear(const uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (bytes[i] != 0xa5)
			return false;
	}
	return true;
}

/* Other layers of the page, and the gap behind it. */
static inline bool rest_is_clear(const struct place *place, uint32_t page,
				 uint32_t first, uint32_t end)
{
	const uint8_t *bytes = page_of(place, page);

	return is_clear(bytes, first * place->layer) &&
	       is_clear(bytes + end * place->layer,
			place->stride - end * place->layer);
}

static inline void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
}

/* ---- which reads go there ---- */

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

/* ---- failures ---- */

static inline void damage(unsigned n, off_t at)
{
	int fd = open(lf_path("$/tier", n), O_RDWR | O_CLOEXEC);
	char byte;

	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

#endif
