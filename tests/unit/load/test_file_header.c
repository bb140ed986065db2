/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_file_header.c - what the loader believes of a file's header.
 */
#include <config.h>

#include "gpu/load/files/file_header.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/load_fixture.h"

#define HEAD 4096

static uint8_t *bytes;
static size_t len;

static void teardown(void)
{
	free(bytes);
	bytes = NULL;
}

static enum ucm_fault make(struct ucm_file_header *head, size_t seen,
			   uint64_t size)
{
	struct ucm_id id = lf_id(7);
	enum ucm_fault fault;
	int err = 1;

	fault = ucm_file_header_make(bytes, seen, size, &id, &lf_geometry, head,
				     &err);
	ck_assert_int_eq(err, 0);
	return fault;
}

static const struct {
	enum fx_kind kind;
	bool table;
	uint32_t data_offset;
} kinds[] = {
	{ FX_PAGED, true, HEAD },
	{ FX_PAGED_RAW, false, HEAD },
	{ FX_PACKED, false, UCM_BLOCK_HEADER_BYTES },
	{ FX_PACKED_RAW, false, UCM_BLOCK_HEADER_BYTES },
};

UNIT_FIXTURE(.teardown = teardown);

UNIT_TEST(heads_of_all_forms_are_made, .rows = NUM_ROWS(kinds))
{
	struct ucm_file_header head;
	uint32_t plane = 99;

	bytes = lf_file(&lf_geometry, 7, kinds[_i].kind, &len);
	ck_assert_int_eq(make(&head, len, len), UCM_FAULT_NONE);
	ck_assert_uint_eq(head.block.data_offset, kinds[_i].data_offset);
	ck_assert_int_eq(head.planes != NULL, kinds[_i].table);
	ck_assert(ucm_file_header_check(
		&head, 0, 4, bytes + head.block.data_offset, &plane));
	ck_assert_uint_eq(plane, 99);
	ucm_file_header_fini(&head);
	/* the first bytes are enough */
	ck_assert_int_eq(make(&head, ucm_file_header_bytes(&lf_geometry), len),
			 UCM_FAULT_NONE);
	ucm_file_header_fini(&head);
	ucm_file_header_fini(&head); /* harmless */
}

UNIT_TEST(each_plane_is_told_from_the_others)
{
	struct ucm_file_header head;

	bytes = lf_file(&lf_geometry, 7, FX_PAGED, &len);
	ck_assert_int_eq(make(&head, len, len), UCM_FAULT_NONE);
	for (uint32_t plane = 0; plane < 8; plane++) {
		uint8_t *byte = bytes + HEAD + plane * 2048 + 2047;
		uint32_t told = 99, layer = plane / 2;

		*byte ^= 1;
		ck_assert(!ucm_file_header_check(&head, 0, 4, bytes + HEAD,
						 &told));
		ck_assert_uint_eq(told, plane);
		told = 99;
		ck_assert(!ucm_file_header_check(&head, layer, layer + 1,
						 bytes + HEAD + layer * 4096,
						 &told));
		ck_assert_uint_eq(told, plane);
		ck_assert(ucm_file_header_check(&head, 0, layer, bytes + HEAD,
						&told));
		ck_assert(ucm_file_header_check(
			&head, layer + 1, 4, bytes + HEAD + (layer + 1) * 4096,
			&told));
		*byte ^= 1;
	}
	ucm_file_header_fini(&head);
}

/* In steps of any size: the same as the table of a file that has one. */
UNIT_TEST(checksums_of_planes_are_added_up, .rows = 12)
{
	static const struct ucm_geometry mla = { .num_layers = 3,
						 .block_size = 1,
						 .k_bytes = 100,
						 .order = UCM_ORDER_OPAQUE };
	const struct ucm_geometry *g = _i % 2 ? &mla : &lf_geometry;
	static const size_t steps[] = { 1, 7, 100, 2048, 3000, 1 << 20 };
	uint64_t end = ucm_block_payload_bytes(g);
	size_t step = steps[_i / 2];
	struct ucm_block block;
	uint32_t planes[8] = { 0 };

	bytes = lf_file(g, 7, FX_PAGED, &len);
	ck_assert_int_eq(ucm_block_parse(bytes, len, len, &block), 0);
	for (uint64_t at = 0; at < end; at += step)
		ucm_file_header_add(&(struct ucm_file_header){ .block = block },
				    at, bytes + HEAD + at,
				    end - at < step ? end - at : step, planes);
	for (uint32_t i = 0; i < 2 * g->num_layers; i++)
		ck_assert_uint_eq(planes[i],
				  ucm_block_plane_crc(&block, bytes, i));
}

/* What is done to a good file, and what must be said of it. */
static const struct {
	size_t at;    /* this byte is turned over; 0: none */
	size_t seen;  /* of the file; 0: all */
	int64_t size; /* more than the file has */
	enum ucm_fault fault;
} wrongs[] = {
	{ 0, 0, 4096, UCM_FAULT_SIZE },	     { 0, 0, 1, UCM_FAULT_SIZE },
	{ 0, 0, -1, UCM_FAULT_SHORT },	     { 0, 0, -4096, UCM_FAULT_SHORT },
	{ 0, 63, 0, UCM_FAULT_SHORT },	     { 0, 64, 0, UCM_FAULT_SHORT },
	{ 0, 4095, 0, UCM_FAULT_SHORT },     { 1, 0, 0, UCM_FAULT_MAGIC },
	{ 20, 0, 0, UCM_FAULT_HEADER_CRC },  { 100, 0, 0, UCM_FAULT_EXTENSION },
	{ 128, 0, 0, UCM_FAULT_EXTENSION },  /* the table of planes */
	{ 4095, 0, 0, UCM_FAULT_EXTENSION }, /* must be zero */
};

UNIT_TEST(wrong_ones_are_refused, .rows = NUM_ROWS(wrongs))
{
	struct ucm_file_header head = { .planes = (uint32_t *)bytes };
	size_t seen = wrongs[_i].seen;

	bytes = lf_file(&lf_geometry, 7, FX_PAGED, &len);
	if (wrongs[_i].at)
		bytes[wrongs[_i].at] ^= 0x40;
	head.planes = (uint32_t *)bytes;
	ck_assert_int_eq(make(&head, seen ? seen : len,
			      (uint64_t)((int64_t)len + wrongs[_i].size)),
			 wrongs[_i].fault);
	ck_assert_ptr_eq(head.planes, bytes); /* left alone */
}

UNIT_TEST(another_name_or_geometry_is_refused)
{
	struct ucm_geometry other = lf_geometry;
	struct ucm_id id = lf_id(8);
	struct ucm_file_header head;
	int err;

	bytes = lf_file(&lf_geometry, 7, FX_PAGED, &len);
	ck_assert_int_eq(ucm_file_header_make(bytes, len, len, &id,
					      &lf_geometry, &head, &err),
			 UCM_FAULT_NAME);
	id = lf_id(7);
	other.num_layers = 5;
	ck_assert_int_eq(
		ucm_file_header_make(bytes, len, len, &id, &other, &head, &err),
		UCM_FAULT_GEOMETRY);
	other = lf_geometry;
	other.order = UCM_ORDER_HND;
	ck_assert_int_eq(
		ucm_file_header_make(bytes, len, len, &id, &other, &head, &err),
		UCM_FAULT_GEOMETRY);
	other = lf_geometry;
	other.dtype = UCM_DTYPE_BFLOAT16;
	ck_assert_int_eq(
		ucm_file_header_make(bytes, len, len, &id, &other, &head, &err),
		UCM_FAULT_GEOMETRY);
}

/* A block without V planes: only the K of each layer has a checksum. */
UNIT_TEST(empty_planes_are_passed_over)
{
	struct ucm_geometry mla = lf_geometry;
	struct ucm_file_header head;
	struct ucm_id id = lf_id(7);
	uint32_t plane = 99;
	int err;

	mla.v_bytes = 0;
	bytes = lf_file(&mla, 7, FX_PAGED, &len);
	ck_assert_int_eq(
		ucm_file_header_make(bytes, len, len, &id, &mla, &head, &err),
		UCM_FAULT_NONE);
	ck_assert(ucm_file_header_check(&head, 0, 4, bytes + HEAD, &plane));
	bytes[HEAD + 3 * 2048] ^= 1;
	ck_assert(!ucm_file_header_check(&head, 0, 4, bytes + HEAD, &plane));
	ck_assert_uint_eq(plane, 6);
	ucm_file_header_fini(&head);
}
