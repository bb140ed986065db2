/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_damage.c - blocks that are not as they should be, and such as
 * others write.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/load/failures_fixture.h"

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- what is in the place of a block ---- */

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
