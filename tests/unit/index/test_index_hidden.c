/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index_hidden.c - entries of hidden spaces, which shared memory does not
 * have.
 */
#include <config.h>

#include "fs/index/index.h"

#include <errno.h>
#include <string.h>

#include "fs/index/memory.h"
#include "fs/index/shard.h"
#include "tests/unit/index/index_fixture.h"

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- hidden spaces ---- */

UNIT_TEST(a_hidden_space_is_kept_out_of_shared_memory)
{
	struct ucm_entry mine = entry_of(1, 7), others = entry_of(2, 8), out;
	struct ucm_key key = key_of(&mine);
	ucm_ref ref, found;

	ck_assert(ucm_index_is_published(ix, 7));
	ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
	ck_assert(!ucm_index_is_published(ix, 7));
	ck_assert(ucm_index_is_published(ix, 8));
	ck_assert_int_eq(ucm_index_add(ix, &mine, NULL, &ref), 0);
	ck_assert_int_eq(ucm_index_add(ix, &mine, NULL, &found), -EEXIST);
	ck_assert_uint_eq(found, ref);
	ck_assert_int_eq(ucm_index_add(ix, &others, NULL, NULL), 0);
	ck_assert(!is_seen(&mine));
	ck_assert(is_seen(&others));
	ck_assert(ucm_index_find(ix, &key, &out, &found));
	ck_assert_uint_eq(found, ref);
	ck_assert_uint_lt(ref, UINT64_C(1) << 60);
	ck_assert_uint_eq(out.size, mine.size);
	ck_assert_uint_eq(count_bucket(7, mine.id.bytes[0]), 1);
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert(!ucm_index_get(ix, ref, &out));
}

/* References are node ids, and held by writers. */
UNIT_TEST(references_outlive_the_hiding_of_their_space)
{
	enum { NUM = 3000 };
	static ucm_ref refs[NUM];
	uint32_t uses = 5;

	for (unsigned i = 0; i < NUM; i++) {
		struct ucm_entry entry = entry_of(i, i % 2 ? 7 : 8);

		ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &refs[i]), 0);
	}
	ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
	ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
	for (unsigned i = 0; i < NUM; i++) {
		struct ucm_entry entry = entry_of(i, i % 2 ? 7 : 8), out;
		struct ucm_key key = key_of(&entry);
		ucm_ref ref;

		must(ucm_index_get(ix, refs[i], &out));
		must(out.size == entry.size && out.space == entry.space);
		must(!memcmp(&out.id, &entry.id, sizeof(out.id)));
		must(ucm_index_find(ix, &key, NULL, &ref) && ref == refs[i]);
		must(ucm_index_edit(ix, refs[i], set_uses, &uses));
		must(ucm_index_flag(ix, refs[i], UCM_ENTRY_PINNED, true));
		must(i > 100 || is_seen(&entry) == (i % 2 == 0));
	}
	for (unsigned i = 0; i < NUM; i++)
		must(ucm_index_remove(ix, refs[i], NULL));
}

UNIT_TEST(a_slot_is_used_again_after_its_exile)
{
	struct ucm_entry mine = entry_of(1, 7), other = entry_of(1, 8), out;
	ucm_ref old, new;

	ck_assert_int_eq(ucm_index_add(ix, &mine, NULL, &old), 0);
	ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
	ck_assert(!is_seen(&mine));
	ck_assert(ucm_index_remove(ix, old, NULL));
	ck_assert_int_eq(ucm_index_add(ix, &other, NULL, &new), 0);
	ck_assert_uint_eq(new & ((1u << 28) - 1), old & ((1u << 28) - 1));
	ck_assert_uint_ne(new, old);
	ck_assert(!ucm_index_get(ix, old, &out));
	ck_assert(is_seen(&other));
}

/* Who sees how often a shard changes learns first bytes of hidden ids. */
UNIT_TEST(nothing_that_can_be_seen_moves_with_a_hidden_space)
{
	struct ucm_index_memory *live = ucm_index_live(ix);
	uint64_t size = ucm_index_memory_size(live);
	char *before = malloc(size);

	ck_assert_ptr_nonnull(before);
	ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
	memcpy(before, live->base, size);
	for (unsigned i = 0; i < 5000; i++) {
		struct ucm_entry entry = entry_of(i, 7);
		ucm_ref ref;

		must(!ucm_index_add(ix, &entry, NULL, &ref));
		must(ucm_index_flag(ix, ref, UCM_ENTRY_PINNED, true));
		must(i % 3 || ucm_index_remove(ix, ref, NULL));
	}
	ck_assert_uint_eq(ucm_index_memory_size(live), size);
	ck_assert(!memcmp(before, live->base, size));
	free(before);
}

UNIT_TEST(a_listing_has_hidden_entries_too)
{
	unsigned num = 0;

	for (unsigned i = 0; i < 3000; i++) {
		struct ucm_entry entry = entry_of(i, 7);

		if (i == 1500)
			ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
		ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
	}
	for (unsigned bucket = 0; bucket < 256; bucket++)
		num += count_bucket(7, bucket);
	ck_assert_uint_eq(num, 3000);
}
