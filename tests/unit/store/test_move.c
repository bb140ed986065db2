/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move.c - what happens while a block is copied, and which of its copies
 * stays. test_motion.c has copies and drops without such a thing.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fs/store/find/find.h"
#include "fs/store/motion/motion.h"
#include "tests/unit/store_fixture.h"

static struct fx_file file;

static void setup(void)
{
	fx_setup();
	fx_block(&file, 1, FX_PAGED);
}

/* A store that has the block in its first tier; nothing moves by itself. */
static void store_of(const char *source)
{
	fx_still_store(source);
	ck_assert_int_eq(fx_commit(&file), 0);
}

static int copy(struct ucm_move_terms move, unsigned tier)
{
	move.to = &fx_set->dirs.tiers[tier];
	return ucm_store_copy(fx_set, fx_ref(&file), &move, NULL);
}

static int copy_to(unsigned tier)
{
	return copy((struct ucm_move_terms){.first = false}, tier);
}

/* It is read there from then on. */
static int promote_to(unsigned tier)
{
	return copy((struct ucm_move_terms){.first = true}, tier);
}

static int drop(unsigned dir)
{
	return ucm_store_drop_place(fx_set, fx_ref(&file), dir, NULL);
}

static bool is_in(const char *dir)
{
	return fx_exists(fx_path("%s/blocks/%s", dir, fx_name(&file)));
}

/* It is read in the first, and has a copy in the second; -1: none. */
static void is_read_in(int dir, int other)
{
	struct ucm_entry entry = fx_entry(&file);

	ck_assert_int_eq(entry.dir, dir);
	ck_assert_int_eq(entry.copy - 1, other);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- large blocks ---- */

/* Larger than what is read of a block at a time; without checksums most of it
 * is not read to verify it. */
static const struct ucm_geometry large_geometry = {
	.num_layers = 2, .block_size = 4, .dtype = UCM_DTYPE_FLOAT16,
	.k_bytes = 1 << 18, .v_bytes = 1 << 18,
};
static uint8_t large[5 << 18], there[sizeof(large) + 1];

/* The bytes of a large block of that name; returns how many. */
static size_t encode_large(bool crc)
{
	struct ucm_block block = {
		.id = file.key.id,
		.geometry = large_geometry,
		.form = UCM_FORM_PAGED,
		.data_offset = ucm_block_data_offset(2),
	};
	size_t len = ucm_block_file_size(&block);
	const uint8_t *payload;

	must(len <= sizeof(large));
	for (size_t i = 0; i < ucm_block_payload_bytes(&large_geometry); i++)
		large[block.data_offset + i] = (uint8_t)(i + i / 251);
	payload = crc ? large + block.data_offset : NULL;
	ck_assert_int_eq(ucm_block_encode(&block, payload, large,
					  block.data_offset), 0);
	return len;
}

static void commit_large(size_t len)
{
	struct ucm_temp temp;
	int fd = fx_create(&file.key, len, &temp);

	ck_assert_int_eq(fx_pwrite(fd, large, len, 0), (ssize_t)len);
	ck_assert_int_eq(
		fx_commit_temp(&temp, fd, &file.key, UCM_COMMIT_NOW), 0);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
}

UNIT_TEST(a_large_block_is_copied_whole, .rows = 2)
{
	size_t len = encode_large(_i);
	int fd;

	fx_store("fast=$/a:slow=$/b");
	commit_large(len);
	ck_assert_int_eq(copy_to(1), 0);
	fd = fx_open_path(fx_path("$/b/blocks/%s", fx_name(&file)), O_RDONLY);
	ck_assert_int_eq(fx_pread(fd, there, sizeof(there), 0), (ssize_t)len);
	must(!memcmp(there, large, len));
	fx_close_file(fd);
}

/* ---- while it is copied ---- */

/* Runs in a copy, once its first bytes are written. */
static void (*during_copy)(void);

static void run_during_copy(void *arg, uint64_t bytes)
{
	void (*fn)(void) = during_copy;

	(void)arg;
	(void)bytes;
	during_copy = NULL;
	if (fn)
		fn();
}

static int copy_while(unsigned tier, void (*fn)(void))
{
	during_copy = fn;
	return copy((struct ucm_move_terms){.pace = run_during_copy}, tier);
}

static void suspect_it(void)
{
	ucm_store_doubt(fx_set, fx_ref(&file));
}

UNIT_TEST(a_block_that_becomes_suspect_is_not_copied)
{
	store_of("fast=$/a:slow=$/b");
	ck_assert_int_eq(copy_while(1, suspect_it), -EBUSY);
	is_read_in(0, -1);
	ck_assert(!is_in("$/b"));
}

static void copy_elsewhere(void)
{
	ck_assert_int_eq(copy_to(2), 0);
}

UNIT_TEST(a_block_that_gets_another_copy_is_not_copied_again)
{
	store_of("fast=$/a:slow=$/b:archive=$/c");
	ck_assert_int_eq(copy_while(1, copy_elsewhere), -EBUSY);
	is_read_in(0, 2);
	ck_assert(!is_in("$/b") && is_in("$/c"));
}

/* ---- which two copies ---- */

UNIT_TEST(a_copy_in_the_fast_tier_is_read_there_when_promoted)
{
	store_of("fast=$/a:slow=$/b");
	ck_assert_int_eq(promote_to(1), 0);
	is_read_in(1, 0);
	ck_assert_int_eq(promote_to(0), -EEXIST);
	is_read_in(0, 1);
}

UNIT_TEST(a_promotion_drops_the_slower_of_two_copies)
{
	store_of("fast=$/a:slow=$/b:archive=$/c");
	ck_assert_int_eq(copy_to(1), 0);
	ck_assert_int_eq(drop(0), 0);
	ck_assert_int_eq(copy_to(2), 0);
	is_read_in(1, 2);
	ck_assert_int_eq(promote_to(0), 0);
	is_read_in(0, 1);
	ck_assert(!is_in("$/c"));
}

/* Only its copy would survive a reboot. */
UNIT_TEST(a_promotion_does_not_drop_the_copy_of_what_is_in_memory)
{
	store_of("fast=$/a:slow=$/b:archive=$/c");
	fx_set->dirs.at[0]->flags |= UCM_MEDIUM_VOLATILE;
	ck_assert_int_eq(copy_to(1), 0);
	ck_assert_int_eq(promote_to(2), -EEXIST);
	is_read_in(0, 1);
	ck_assert(is_in("$/b") && !is_in("$/c"));
}

UNIT_TEST(a_block_in_three_directories_loses_none_for_a_promotion)
{
	store_of("fast=$/a:slow=$/b:archive=$/c");
	ck_assert_int_eq(copy_to(1), 0);
	ucm_index_flag(fx_set->index, fx_ref(&file), UCM_ENTRY_DUPLICATE, true);
	ck_assert_int_eq(promote_to(2), -EEXIST);
	ck_assert(is_in("$/a") && is_in("$/b"));
}

/* Another directory may have it, and what that has is not counted yet. */
UNIT_TEST(nothing_is_copied_before_all_directories_are_scanned)
{
	store_of("fast=$/a:slow=$/b");
	fx_close();
	fx_open_still();
	ck_assert_int_eq(fx_find(&file), 0);
	ck_assert_int_eq(copy_to(1), -EBUSY);
	fx_start_only();
	fx_wait_scanned();
	ck_assert_int_eq(copy_to(1), 0);
}

/* ---- which copy may be dropped ---- */

UNIT_TEST(nothing_is_dropped_from_a_readonly_directory)
{
	store_of("fast=$/a:slow=$/b");
	ck_assert_int_eq(copy_to(1), 0);
	fx_set->dirs.at[0]->readonly = true;
	ck_assert_int_eq(drop(0), -EROFS);
	is_read_in(0, 1);
	ck_assert(is_in("$/a"));
}

UNIT_TEST(a_copy_is_kept_where_the_other_file_has_another_size)
{
	store_of("fast=$/a:slow=$/b");
	ck_assert_int_eq(copy_to(1), 0);
	ck_assert_int_eq(fx_truncate(fx_path("$/b/blocks/%s", fx_name(&file)),
				     4096), 0);
	ck_assert_int_eq(drop(0), -ESTALE);
	is_read_in(0, -1);
	fx_serves(&file);
}

/* The directory that it was copied from may be lost. */
UNIT_TEST(a_copy_is_pinned_by_itself)
{
	store_of("fast=$/a:slow=$/b");
	ck_assert_int_eq(ucm_store_pin(fx_set, fx_ref(&file), true), 0);
	ck_assert_int_eq(copy_to(1), 0);
	fx_close();
	ucm_config_fini(&fx_config);
	ucm_config_init(&fx_config);
	fx_store("slow=$/b");
	ck_assert(fx_entry(&file).flags & UCM_ENTRY_PINNED);
}

UNIT_PROGRAM(.variants = fx_media);
