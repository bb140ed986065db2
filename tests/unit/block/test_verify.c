/* SPDX-License-Identifier: Apache-2.0 */
/* test_verify.c - what each verdict on an open file is, and when. */
#include <config.h>

#include "fs/block/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/block_fixture.h"

static struct fx_file file;

struct verdicts {
	enum ucm_fault header, commit, whole;
	uint32_t plane;
	struct ucm_block block;
};

static int put_and_open(size_t len)
{
	int fd;

	fx_put(fx_path("$/f"), file.bytes, len);
	fd = open(fx_path("$/f"), O_RDONLY);
	ck_assert_int_ge(fd, 0);
	return fd;
}

static struct verdicts judge(size_t len)
{
	struct verdicts v = { .plane = 99 };
	int fd = put_and_open(len);
	const struct ucm_bytes bytes = ucm_bytes_of_fd(fd);

	ck_assert_int_eq(ucm_verify_header(&bytes, len, &file.key.id, &v.block,
					   &v.header), 0);
	ck_assert_int_eq(ucm_verify_commit(&bytes, len, &file.key.id, &v.block,
					   &v.commit), 0);
	ck_assert_int_eq(ucm_verify_whole(&bytes, len, &file.key.id, &v.block,
					  &v.whole, &v.plane), 0);
	close(fd);
	return v;
}

static void expect(size_t len, enum ucm_fault header, enum ucm_fault commit,
		   enum ucm_fault whole)
{
	struct verdicts v = judge(len);

	ck_assert_str_eq(ucm_fault_text(v.header), ucm_fault_text(header));
	ck_assert_str_eq(ucm_fault_text(v.commit), ucm_fault_text(commit));
	ck_assert_str_eq(ucm_fault_text(v.whole), ucm_fault_text(whole));
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(good_blocks_of_every_form_pass)
{
	for (int kind = FX_PAGED; kind <= FX_BARE; kind++) {
		fx_block(&file, 1, (enum fx_kind)kind);
		expect(file.len, UCM_FAULT_NONE, UCM_FAULT_NONE,
		       UCM_FAULT_NONE);
	}
}

UNIT_TEST(blocks_with_an_extension_of_several_pages_pass)
{
	struct ucm_geometry many = { 1009, 1, 0, 8, 4, 0, 0, 2 };
	struct verdicts v;

	fx_block_of(&file, 1, FX_PAGED, &many);
	ck_assert_uint_eq(file.block.data_offset, 12288);
	expect(file.len, UCM_FAULT_NONE, UCM_FAULT_NONE, UCM_FAULT_NONE);
	/* the last plane's checksum, on the extension's third page */
	file.bytes[12288 + 1008 * 12 + 11] ^= 1;
	v = judge(file.len);
	ck_assert_int_eq(v.whole, UCM_FAULT_PLANE);
	ck_assert_uint_eq(v.plane, 2017);
	file.bytes[12287] ^= 1;
	expect(file.len, UCM_FAULT_NONE, UCM_FAULT_EXTENSION,
	       UCM_FAULT_EXTENSION);
}

UNIT_TEST(blocks_without_v_planes_pass)
{
	struct ucm_geometry mla = { 3, 4, 2, 1152, 0, 0, 0, 2 };

	fx_block_of(&file, 1, FX_PAGED, &mla);
	expect(file.len, UCM_FAULT_NONE, UCM_FAULT_NONE, UCM_FAULT_NONE);
	fx_block_of(&file, 1, FX_PACKED, &mla);
	expect(file.len, UCM_FAULT_NONE, UCM_FAULT_NONE, UCM_FAULT_NONE);
}

UNIT_TEST(every_cut_of_a_file_is_short)
{
	static const size_t lengths[] = { 0, 1, 63, 64, 127, 128, 4095, 4096,
					  4097, 8191 };

	fx_block(&file, 1, FX_PAGED);
	for (size_t i = 0; i < NUM_ROWS(lengths); i++)
		expect(lengths[i], UCM_FAULT_SHORT, UCM_FAULT_SHORT,
		       UCM_FAULT_SHORT);
	fx_block(&file, 1, FX_PACKED);
	expect(575, UCM_FAULT_SHORT, UCM_FAULT_SHORT, UCM_FAULT_SHORT);
}

UNIT_TEST(longer_files_are_not_blocks)
{
	fx_block(&file, 1, FX_PAGED);
	expect(8193, UCM_FAULT_SIZE, UCM_FAULT_SIZE, UCM_FAULT_SIZE);
	expect(12288, UCM_FAULT_SIZE, UCM_FAULT_SIZE, UCM_FAULT_SIZE);
	fx_block(&file, 1, FX_PACKED);
	expect(577, UCM_FAULT_SIZE, UCM_FAULT_SIZE, UCM_FAULT_SIZE);
}

UNIT_TEST(a_file_under_another_name_is_not_the_block)
{
	fx_block(&file, 1, FX_PAGED);
	file.key.id.bytes[15] ^= 1;
	expect(file.len, UCM_FAULT_NAME, UCM_FAULT_NAME, UCM_FAULT_NAME);
}

/* Found by its own checksum, on the plane where it is. */
UNIT_TEST(one_wrong_byte_of_a_plane_names_the_plane)
{
	static const struct {
		size_t at;
		uint32_t plane;
	} rows[] = {
		{ 4096, 0 }, { 4223, 0 }, { 4224, 1 }, { 4351, 1 },
		{ 4352, 2 }, { 4480, 3 }, { 4607, 3 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct verdicts v;

		fx_block(&file, 1, FX_PAGED);
		file.bytes[rows[i].at] ^= 0x80;
		v = judge(file.len);
		ck_assert_int_eq(v.commit, UCM_FAULT_NONE);
		ck_assert_int_eq(v.whole, UCM_FAULT_PLANE);
		ck_assert_uint_eq(v.plane, rows[i].plane);
	}
}

UNIT_TEST(one_wrong_byte_of_a_packed_payload_is_found)
{
	for (size_t at = 64; at < 576; at += 73) {
		fx_block(&file, 1, FX_PACKED);
		file.bytes[at] ^= 1;
		expect(file.len, UCM_FAULT_NONE, UCM_FAULT_NONE,
		       UCM_FAULT_PAYLOAD);
	}
}

UNIT_TEST(the_tail_is_zero_even_without_checksums)
{
	static const size_t offsets[] = { 4608, 6000, 8191 };

	for (size_t i = 0; i < NUM_ROWS(offsets); i++) {
		fx_block(&file, 1, FX_PAGED);
		file.bytes[offsets[i]] = 1;
		expect(file.len, UCM_FAULT_NONE, UCM_FAULT_NONE,
		       UCM_FAULT_TAIL);
		fx_block(&file, 1, FX_PAGED_RAW);
		file.bytes[offsets[i]] = 1;
		expect(file.len, UCM_FAULT_NONE, UCM_FAULT_NONE,
		       UCM_FAULT_TAIL);
	}
}

UNIT_TEST(without_checksums_any_payload_passes_and_flags_tell)
{
	struct verdicts v;

	fx_block(&file, 1, FX_PAGED_RAW);
	file.bytes[4100] ^= 1;
	v = judge(file.len);
	ck_assert_int_eq(v.whole, UCM_FAULT_NONE);
	ck_assert_uint_eq(v.block.flags & UCM_BLOCK_HAS_CRC, 0);
}

UNIT_TEST(foreign_files_are_told_from_torn_ones)
{
	fx_block(&file, 1, FX_PAGED);
	memset(file.bytes, 0, 4096); /* a page that was never written */
	expect(file.len, UCM_FAULT_MAGIC, UCM_FAULT_MAGIC, UCM_FAULT_MAGIC);
	fx_block(&file, 1, FX_PAGED);
	memset(file.bytes + 512, 0, 3584);
	memset(file.bytes + 32, 0xff, 4);
	expect(file.len, UCM_FAULT_HEADER_CRC, UCM_FAULT_HEADER_CRC,
	       UCM_FAULT_HEADER_CRC);
}

/* A tier that cannot be read says nothing about the bytes. */
UNIT_TEST(read_errors_are_errors_not_verdicts)
{
	struct ucm_geometry many = { 1009, 1, 0, 8, 4, 0, 0, 2 };
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	uint32_t plane;
	unsigned nth;
	struct ucm_bytes bytes;
	int fd, err;

	fx_block_of(&file, 1, FX_PAGED, &many);
	fd = put_and_open(file.len);
	bytes = ucm_bytes_of_fd(fd);
	for (nth = 1;; nth++) {
		fx_fail("read", nth, -EIO, true);
		err = ucm_verify_whole(&bytes, file.len, &file.key.id, &block,
				       &fault, &plane);
		ck_assert_int_eq(fault, UCM_FAULT_NONE);
		if (fx_calls() < nth)
			break;
		ck_assert_int_eq(err, -EIO);
	}
	ck_assert_int_eq(err, 0);
	ck_assert_uint_eq(nth, 4); /* after head, extension, and the rest */
	close(fd);
}

/* The file shrinks between the stat and the read. */
UNIT_TEST(a_file_cut_while_it_is_read_is_an_error)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	uint32_t plane;
	struct ucm_bytes bytes;
	int fd;

	fx_block(&file, 1, FX_PAGED);
	fd = put_and_open(4200);
	bytes = ucm_bytes_of_fd(fd);
	ck_assert_int_eq(ucm_verify_whole(&bytes, 8192, &file.key.id, &block,
					  &fault, &plane), -EIO);
	close(fd);
}

static enum ucm_fault judge_direct(const struct ucm_geometry *geometry,
				   enum fx_kind kind, bool spoil)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	uint32_t plane;
	struct ucm_bytes bytes;
	int fd, err;

	fx_block_of(&file, 1, kind, geometry);
	if (spoil)
		file.bytes[file.block.data_offset + 40] ^= 1;
	close(put_and_open(file.len));
	fd = open(fx_path("$/f"), O_RDONLY | O_DIRECT);
	ck_assert_int_ge(fd, 0);
	bytes = ucm_bytes_of_fd(fd);
	err = ucm_verify_whole(&bytes, file.len, &file.key.id, &block, &fault,
			       &plane);
	close(fd);
	ck_assert_int_eq(err, 0);
	return fault;
}

/* Planes, extensions and ends of files that are not aligned. */
UNIT_TEST(a_file_can_be_read_past_the_page_cache)
{
	static const struct ucm_geometry odd[] = {
		{ 2, 4, 0, 128, 128, 0, 0, 2 }, { 1009, 1, 0, 8, 4, 0, 0, 2 },
		{ 3, 1, 0, 4097, 2047, 0, 0, 2 },
	};
	int fd;

	fx_put(fx_path("$/f"), "", 0);
	fd = open(fx_path("$/f"), O_RDONLY | O_DIRECT);
	if (fd < 0) {
		unit_skip("direct I/O: this file system has none");
		return;
	}
	close(fd);
	for (size_t i = 0; i < NUM_ROWS(odd); i++) {
		for (int spoil = 0; spoil < 2; spoil++) {
			ck_assert_int_eq(judge_direct(&odd[i], FX_PAGED, spoil),
					 spoil ? UCM_FAULT_PLANE
					       : UCM_FAULT_NONE);
			ck_assert_int_eq(judge_direct(&odd[i], FX_PACKED,
						      spoil),
					 spoil ? UCM_FAULT_PAYLOAD
					       : UCM_FAULT_NONE);
		}
	}
}
