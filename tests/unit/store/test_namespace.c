/* SPDX-License-Identifier: Apache-2.0 */
/* test_namespace.c - the table of spaces, and the one geometry of each. */
#include <config.h>

#include "fs/store/namespace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"

static struct ucm_namespace names;
static struct ucm_space *space; /* the default one */
static struct ucm_error why;

static const struct ucm_geometry one = { 2, 4, 1, 128, 128, 2, 8, 0 };
static const struct ucm_geometry other = { 3, 4, 1, 128, 128, 2, 8, 0 };
static const struct ucm_geometry bare = { 2, 4, 1, 128, 128, 0, 0, 2 };

static void setup(void)
{
	ck_assert_int_eq(ucm_namespace_init(&names, 3), 0);
	space = ucm_namespace_get(&names, 0);
	ck_assert_ptr_nonnull(space);
}

static void teardown(void)
{
	ucm_namespace_fini(&names);
}

static enum ucm_fault admit(const struct ucm_geometry *geometry)
{
	struct ucm_block block = { .geometry = *geometry };

	return ucm_space_admit(space, &block, &why);
}

/* A block was committed, and is in the index. */
static void commit(const struct ucm_geometry *geometry)
{
	ck_assert_int_eq(admit(geometry), UCM_FAULT_NONE);
	atomic_fetch_add(&space->blocks, 1);
	ucm_space_settled(space);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(the_default_space_is_number_0_without_a_name)
{
	ck_assert_uint_eq(space->number, 0);
	ck_assert_str_eq(space->name, "");
	ck_assert_str_eq(space->folder, "blocks");
	ck_assert_ptr_eq(ucm_namespace_find(&names, ""), space);
}

UNIT_TEST(spaces_are_found_until_they_are_removed)
{
	struct ucm_space *a, *b;

	ck_assert_int_eq(ucm_namespace_add(&names, "llama", &a), 0);
	ck_assert_str_eq(a->folder, "spaces/llama");
	ck_assert_ptr_eq(ucm_namespace_find(&names, "llama"), a);
	ck_assert_ptr_eq(ucm_namespace_get(&names, a->number), a);
	ck_assert_int_eq(ucm_namespace_add(&names, "llama", &b), -EEXIST);
	ucm_namespace_remove(&names, a);
	ck_assert_ptr_null(ucm_namespace_find(&names, "llama"));
	ck_assert_ptr_null(ucm_namespace_get(&names, a->number));
	ck_assert_int_eq(ucm_namespace_add(&names, "llama", &b), 0);
	ck_assert_uint_ne(b->number, a->number); /* the old is still there */
	ck_assert_str_eq(a->name, "llama");
}

UNIT_TEST(names_of_spaces_are_plain)
{
	static const char *const good[] = { "a", "a.b", "A b", "\xc3\xa9", "x@y",
					    "blocks", "~" };
	static const char *const bad[] = { "", ".", "..", ".hidden", "a/b", "/",
					   "a\nb", "\t", "a\x7f" };
	struct ucm_space *out;
	char name[130];

	for (size_t i = 0; i < NUM_ROWS(good); i++)
		ck_assert_int_eq(ucm_namespace_add(&names, good[i], &out), 0);
	for (size_t i = 0; i < NUM_ROWS(bad); i++)
		ck_assert_int_eq(ucm_namespace_add(&names, bad[i], &out),
				 -EINVAL);
	memset(name, 'n', 129);
	name[129] = '\0';
	ck_assert_int_eq(ucm_namespace_add(&names, name, &out), -ENAMETOOLONG);
	name[128] = '\0';
	ck_assert_int_eq(ucm_namespace_add(&names, name, &out), 0);
	ck_assert_uint_eq(strlen(out->folder), 7 + 128);
	ck_assert_ptr_null(ucm_namespace_get(&names, 60000));
}

UNIT_TEST(the_first_block_fixes_the_geometry)
{
	ck_assert_uint_eq(ucm_space_block_bytes(space), 0);
	ck_assert(!ucm_space_has_geometry(space));
	commit(&one);
	ck_assert(ucm_space_has_geometry(space));
	ck_assert_uint_eq(ucm_space_block_bytes(space), 8192);
	ck_assert_int_eq(admit(&other), UCM_FAULT_GEOMETRY);
	ck_assert_ptr_nonnull(strstr(why.text, "the space has 2 layers"));
	ck_assert_ptr_nonnull(strstr(why.text, "the block has 3 layers"));
	commit(&one);
}

UNIT_TEST(an_empty_space_takes_a_new_geometry)
{
	commit(&one);
	atomic_fetch_sub(&space->blocks, 1);
	ck_assert(!ucm_space_has_geometry(space));
	commit(&other);
	ck_assert_int_eq(admit(&one), UCM_FAULT_GEOMETRY);
}

UNIT_TEST(an_empty_space_keeps_its_blocks_size)
{
	commit(&one);
	atomic_fetch_sub(&space->blocks, 1);
	ck_assert_uint_eq(ucm_space_block_bytes(space), 8192);
}

/* Between admission and index the space is not empty. */
UNIT_TEST(a_commit_under_way_holds_the_geometry)
{
	ck_assert_int_eq(admit(&one), UCM_FAULT_NONE);
	ck_assert_int_eq(admit(&other), UCM_FAULT_GEOMETRY);
	ucm_space_settled(space); /* it failed */
	ck_assert_int_eq(admit(&other), UCM_FAULT_NONE);
	ucm_space_settled(space);
}

UNIT_TEST(a_fuller_block_completes_a_bare_one)
{
	struct ucm_geometry hnd = one;

	hnd.order = UCM_ORDER_HND;
	commit(&bare);
	commit(&one);
	ck_assert_int_eq(admit(&hnd), UCM_FAULT_GEOMETRY);
	commit(&bare);
	ck_assert_uint_eq(space->geometry.num_kv_heads, 2);
}

UNIT_TEST(a_manifest_holds_also_without_blocks)
{
	struct ucm_manifest manifest = { .geometry = one, .space_id = { 1 } };

	ck_assert_int_eq(ucm_space_set_manifest(space, &manifest, &why), 0);
	ck_assert(ucm_space_has_geometry(space));
	ck_assert_int_eq(admit(&other), UCM_FAULT_GEOMETRY);
	commit(&one);
	atomic_fetch_sub(&space->blocks, 1);
	ck_assert_int_eq(admit(&other), UCM_FAULT_GEOMETRY);
}

UNIT_TEST(a_manifest_must_fit_the_blocks_that_are_there)
{
	struct ucm_manifest manifest = { .geometry = other };

	commit(&one);
	ck_assert_int_eq(ucm_space_set_manifest(space, &manifest, &why),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(why.text, "3 layers"));
	ck_assert_ptr_nonnull(strstr(why.text, "2 layers"));
	ck_assert(!space->has_manifest);
	atomic_fetch_sub(&space->blocks, 1);
	ck_assert_int_eq(ucm_space_set_manifest(space, &manifest, &why), 0);
}

UNIT_TEST(a_block_with_a_space_id_must_have_the_right_one)
{
	struct ucm_manifest manifest = { .geometry = one, .space_id = { 1 } };
	struct ucm_block block = { .geometry = one,
				   .flags = UCM_BLOCK_HAS_SPACE,
				   .space_id = { 2 } };

	/* nothing to compare it with */
	ck_assert_int_eq(ucm_space_fits(space, &block, true), UCM_FAULT_NONE);
	ck_assert_int_eq(ucm_space_set_manifest(space, &manifest, &why), 0);
	ck_assert_int_eq(ucm_space_fits(space, &block, true), UCM_FAULT_SPACE);
	ck_assert_int_eq(ucm_space_admit(space, &block, &why), UCM_FAULT_SPACE);
	ck_assert_str_eq(why.text, ucm_fault_text(UCM_FAULT_SPACE));
	block.space_id[0] = 1;
	ck_assert_int_eq(ucm_space_fits(space, &block, true), UCM_FAULT_NONE);
	block.flags = 0;
	ck_assert_int_eq(ucm_space_fits(space, &block, true), UCM_FAULT_NONE);
}

UNIT_TEST(buckets_are_marked_one_by_one)
{
	for (unsigned dir = 0; dir < 3; dir++) {
		for (unsigned bucket = 0; bucket < 256; bucket++) {
			ck_assert(!ucm_space_is_scanned(space, dir, bucket));
			ucm_space_set_scanned(space, dir, bucket);
			ck_assert(ucm_space_is_scanned(space, dir, bucket));
		}
	}
}

UNIT_TEST(there_are_at_most_65535_spaces)
{
	struct ucm_space *out;
	int err = 0;

	/* the lookup is linear: fill the table past it */
	names.num = UCM_MAX_SPACES - 1;
	for (unsigned i = 1; i < names.num; i++)
		names.spaces[i] = space;
	ck_assert_int_eq(ucm_namespace_add(&names, "last", &out), 0);
	ck_assert_uint_eq(out->number, 65534);
	err = ucm_namespace_add(&names, "more", &out);
	ck_assert_int_eq(err, -ENOSPC);
	names.spaces[1] = names.spaces[UCM_MAX_SPACES - 1];
	names.num = 2;
}
