/* SPDX-License-Identifier: Apache-2.0 */
/* test_index.c - entries, references, listing and growth of the index. */
#include <config.h>

#include "fs/index/index.h"

#include <errno.h>
#include <string.h>

#include "common/osfile.h"
#include "fs/index/memory.h"
#include "fs/index/shard.h"
#include "tests/unit/index/index_fixture.h"

#define MANY 100000u

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(what_was_added_is_found_by_name_and_by_reference)
{
	struct ucm_entry entry = entry_of(1, 0), out = { 0 };
	struct ucm_key key = key_of(&entry);
	ucm_ref ref = 0, found = 0;

	ck_assert(!ucm_index_find(ix, &key, NULL, NULL));
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &ref), 0);
	ck_assert_uint_ne(ref, 0);
	ck_assert_uint_lt(ref, UINT64_C(1) << 60);
	ck_assert(ucm_index_find(ix, &key, &out, &found));
	ck_assert_uint_eq(found, ref);
	ck_assert_uint_eq(out.size, entry.size);
	ck_assert_uint_eq(out.dir, 3);
	ck_assert(ucm_index_get(ix, ref, &out));
	ck_assert_mem_eq(&out.id, &entry.id, sizeof(out.id));
}

UNIT_TEST(a_second_add_tells_of_the_first)
{
	struct ucm_entry entry = entry_of(1, 0), out;
	ucm_ref ref, second = 0;

	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &ref), 0);
	entry.dir = 9;
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &second), -EEXIST);
	ck_assert_uint_eq(second, ref);
	ck_assert(ucm_index_get(ix, ref, &out));
	ck_assert_uint_eq(out.dir, 3);
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), -EEXIST);
}

UNIT_TEST(one_id_in_two_spaces_is_two_blocks)
{
	struct ucm_entry a = entry_of(1, 0), b = entry_of(1, 1), out;
	struct ucm_key key = key_of(&b);
	ucm_ref ref_a, ref_b;

	ck_assert_int_eq(ucm_index_add(ix, &a, NULL, &ref_a), 0);
	ck_assert(!ucm_index_find(ix, &key, NULL, NULL));
	ck_assert_int_eq(ucm_index_add(ix, &b, NULL, &ref_b), 0);
	ck_assert_uint_ne(ref_a, ref_b);
	ck_assert(ucm_index_remove(ix, ref_a, &out));
	ck_assert_uint_eq(out.space, 0);
	ck_assert(ucm_index_find(ix, &key, NULL, NULL));
}

UNIT_TEST(a_reference_dies_with_its_entry_and_stays_dead)
{
	struct ucm_entry entry = entry_of(1, 0), out;
	ucm_ref old[50], ref;

	for (unsigned i = 0; i < NUM_ROWS(old); i++) {
		ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &old[i]), 0);
		for (unsigned j = 0; j < i; j++) {
			/* the slot is the same, the reference is not */
			ck_assert_uint_ne(old[j], old[i]);
			ck_assert(!ucm_index_get(ix, old[j], &out));
			ck_assert(!ucm_index_remove(ix, old[j], NULL));
		}
		ck_assert(ucm_index_get(ix, old[i], &out));
		ck_assert(ucm_index_remove(ix, old[i], NULL));
		ck_assert(!ucm_index_get(ix, old[i], &out));
		ck_assert(!ucm_index_remove(ix, old[i], NULL));
	}
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &ref), 0);
	ck_assert_uint_eq(ref & ((1u << 28) - 1),
			  old[0] & ((1u << 28) - 1)); /* reused indeed */
}

UNIT_TEST(references_that_never_were_are_refused)
{
	static const ucm_ref wild[] = { 0, 1, UINT64_MAX, UINT64_C(1) << 36,
					UINT64_C(0xfffffffffffff) };
	struct ucm_entry out;

	for (size_t i = 0; i < NUM_ROWS(wild); i++) {
		ck_assert(!ucm_index_get(ix, wild[i], &out));
		ck_assert(!ucm_index_remove(ix, wild[i], NULL));
		ck_assert(!ucm_index_edit(ix, wild[i], NULL, NULL));
	}
}

UNIT_TEST(edits_are_seen)
{
	struct ucm_entry entry = entry_of(1, 0), out;
	uint32_t uses = 77;
	ucm_ref ref;

	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &ref), 0);
	ck_assert(ucm_index_edit(ix, ref, set_uses, &uses));
	ck_assert(ucm_index_get(ix, ref, &out));
	ck_assert_uint_eq(out.uses, 77);
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert(!ucm_index_edit(ix, ref, set_uses, &uses));
}

UNIT_TEST(a_listing_has_each_entry_of_its_bucket_once)
{
	unsigned want[256] = { 0 }, total = 0;

	for (unsigned i = 0; i < 5000; i++) {
		struct ucm_entry entry = entry_of(i, i % 3 == 0);

		ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
		want[entry.id.bytes[0]] += i % 3 != 0;
	}
	for (unsigned bucket = 0; bucket < 256; bucket++) {
		ck_assert_uint_eq(count_bucket(0, bucket), want[bucket]);
		total += count_bucket(1, bucket);
	}
	ck_assert_uint_eq(total, 1667);
	ck_assert_uint_eq(count_bucket(2, 0), 0);
}

/* "rm *" lists and removes at once. */
UNIT_TEST(a_listing_goes_on_over_removed_entries)
{
	struct ucm_entry entry;
	unsigned removed = 0;
	ucm_ref ref;

	for (unsigned i = 0; i < 5000; i++) {
		entry = entry_of(i, 0);
		ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
	}
	for (unsigned bucket = 0; bucket < 256; bucket++) {
		uint32_t cursor = 0;

		while (ucm_index_next(ix, 0, bucket, &cursor, &entry, &ref))
			removed += ucm_index_remove(ix, ref, NULL);
	}
	ck_assert_uint_eq(removed, 5000);
	for (unsigned bucket = 0; bucket < 256; bucket++)
		ck_assert_uint_eq(count_bucket(0, bucket), 0);
}

/* Slots that are looked at in one go: not all of a shard, whose lock is held. */
UNIT_TEST(a_walk_gives_the_lock_back_after_a_bounded_number_of_slots)
{
	struct ucm_index_memory live;
	struct ucm_shard shard;
	struct ucm_entry entry;
	uint32_t cursor = 0, before, slot;
	unsigned found = 0, pauses = 0;

	ck_assert_int_eq(ucm_index_memory_init(&live), 0);
	ucm_shard_init(&shard, &live, 7);
	for (unsigned i = 0; i < 20000; i++) {
		entry = crowd_of(i, i == 15000 ? 1 : 0);
		slot = UCM_NO_SLOT;
		must(!ucm_shard_add(&shard, &entry, i % 2, &slot));
	}
	do {
		before = cursor;
		slot = ucm_shard_next(&shard, 1, &cursor);
		pauses += slot == UCM_LATER_SLOT;
		found += slot < UCM_LATER_SLOT;
		/* from one side to the other it is a leap */
		if ((before ^ cursor) < UCM_HIDDEN_SLOT)
			ck_assert_uint_le(cursor - before, UCM_SHARD_STEPS);
	} while (slot != UCM_NO_SLOT);
	ck_assert_uint_eq(found, 1);
	ck_assert_uint_ge(pauses, 20000 / UCM_SHARD_STEPS - 1);
	for (cursor = 0, pauses = 0; ucm_shard_hide(&shard, 0, &cursor); pauses++)
		;
	ck_assert_uint_ge(pauses, 20000 / UCM_SHARD_STEPS - 1);
	ucm_shard_fini(&shard);
	ucm_index_memory_fini(&live);
}

/* Those of a listing that goes on are seen once, whatever comes and goes. */
UNIT_TEST(a_listing_in_pieces_sees_what_stays_exactly_once)
{
	unsigned seen[3000] = { 0 };
	struct ucm_entry entry;
	unsigned num = 0;
	uint32_t cursor = 0;
	ucm_ref refs[12000], ref;

	for (unsigned i = 0; i < NUM_ROWS(refs); i++) {
		entry = crowd_of(i, i % 4 != 0);
		entry.size = i;
		must(!ucm_index_add(ix, &entry, NULL, &refs[i]));
	}
	while (ucm_index_next(ix, 0, 7, &cursor, &entry, &ref)) {
		if (entry.size < NUM_ROWS(refs))
			seen[entry.size / 4]++;
		if (++num % 3 || num > 2900)
			continue;
		/* one of the other space goes, one of this space comes */
		ucm_index_remove(ix, refs[num * 4 + 1], NULL);
		entry = crowd_of(NUM_ROWS(refs) + num, 0);
		entry.size = NUM_ROWS(refs);
		must(!ucm_index_add(ix, &entry, NULL, NULL));
	}
	for (unsigned i = 0; i < NUM_ROWS(seen); i++)
		must(seen[i] == 1);
}

UNIT_TEST(a_hundred_thousand_blocks_take_80_bytes_each_at_most)
{
	struct ucm_entry out;

	for (unsigned i = 0; i < MANY; i++) {
		struct ucm_entry entry = entry_of(i, 0);

		ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
	}
	ck_assert_uint_le(ucm_index_memory(ix), 80 * (uint64_t)MANY);
	for (unsigned i = 0; i < MANY; i++) {
		struct ucm_entry entry = entry_of(i, 0);
		struct ucm_key key = key_of(&entry);

		ck_assert(ucm_index_find(ix, &key, &out, NULL));
		ck_assert_uint_eq(out.size, 4096 + i);
	}
}

UNIT_TEST(memory_is_used_again)
{
	uint64_t before;
	ucm_ref ref;

	for (int round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 20000; i++) {
			struct ucm_entry entry = entry_of(i, 0);

			ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
		}
		if (round == 0)
			before = ucm_index_memory(ix);
		ck_assert_uint_eq(ucm_index_memory(ix), before);
		for (unsigned i = 0; i < 20000; i++) {
			struct ucm_entry entry = entry_of(i, 0);
			struct ucm_key key = key_of(&entry);

			ck_assert(ucm_index_find(ix, &key, NULL, &ref));
			ck_assert(ucm_index_remove(ix, ref, NULL));
		}
	}
}

/* Counted names, as a test bench makes them: all in one bucket, all alike. */
UNIT_TEST(names_that_are_no_hashes_are_found_too)
{
	for (unsigned i = 0; i < 20000; i++) {
		struct ucm_entry entry = { .space = 0 };

		memcpy(entry.id.bytes + 12, &i, sizeof(i));
		ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
	}
	ck_assert_uint_eq(count_bucket(0, 0), 20000);
}

static int no_memory(const char *call, const char *path)
{
	(void)path;
	return strcmp(call, "fallocate") ? 0 : -ENOSPC;
}

UNIT_TEST(without_memory_it_takes_no_more_and_keeps_what_it_has)
{
	unsigned num = 0, later = 0;

	ucm_os_fault = no_memory;
	for (unsigned i = 0; i < 20000; i++) {
		struct ucm_entry entry = entry_of(i, 0);
		int err = ucm_index_add(ix, &entry, NULL, NULL);

		must(err == 0 || err == -ENOMEM);
		num += err == 0;
	}
	ck_assert_uint_lt(num, 20000);
	ucm_os_fault = NULL;
	for (unsigned i = 0; i < 20000; i++) {
		struct ucm_entry entry = entry_of(i, 0);

		later += ucm_index_add(ix, &entry, NULL, NULL) == 0;
	}
	ck_assert_uint_eq(num + later, 20000);
	for (unsigned i = 0; i < 20000; i++) {
		struct ucm_entry entry = entry_of(i, 0);
		struct ucm_key key = key_of(&entry);

		must(ucm_index_find(ix, &key, &entry, NULL));
		must(entry.size == 4096 + i);
	}
}

static void set_size(struct ucm_entry *entry, void *arg)
{
	entry->size = *(uint64_t *)arg;
}

static bool mark(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	unsigned *piece = arg;

	ck_assert_uint_ne(ref, 0);
	(*piece)++;
	entry->uses++;
	entry->epoch = (uint16_t)(entry->size % 1000);
	return entry->space != 2;
}

/* One walk for all spaces, a little at a time. */
UNIT_TEST(a_walk_meets_each_entry_of_every_space_once)
{
	unsigned seen = 0;
	ucm_ref gone;

	ck_assert_int_eq(ucm_index_hide(ix, 1), 0);
	for (unsigned i = 0; i < MANY; i++) {
		struct ucm_entry entry = entry_of(i, i % 4);

		ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &gone), 0);
		if (i % 5 == 0)
			ck_assert(ucm_index_remove(ix, gone, NULL));
	}
	for (unsigned shard = 0; shard < 256; shard++) {
		uint32_t cursor = 0;
		unsigned piece = 0;

		while (ucm_index_walk(ix, shard, &cursor, mark, &piece)) {
			ck_assert_uint_le(piece, UCM_INDEX_PIECE);
			seen += piece;
			piece = 0;
		}
		seen += piece;
	}
	ck_assert_uint_eq(seen, MANY / 5 * 4);
	for (unsigned i = 0; i < MANY; i++) {
		struct ucm_entry entry = entry_of(i, i % 4);
		struct ucm_key key = key_of(&entry);

		if (i % 5 == 0)
			continue;
		ck_assert(ucm_index_find(ix, &key, &entry, NULL));
		ck_assert_uint_eq(entry.uses, i % 4 != 2);
		ck_assert_uint_eq(entry.epoch,
				  i % 4 != 2 ? entry.size % 1000 : 0);
	}
}

UNIT_TEST(a_size_that_does_not_fit_is_refused)
{
	struct ucm_entry entry = entry_of(1, 0), out;
	uint64_t most = (UINT64_C(1) << 40) - 1, more = most + 1;
	ucm_ref ref;

	entry.size = more;
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &ref), -EFBIG);
	entry.size = most;
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, &ref), 0);
	ck_assert(!ucm_index_edit(ix, ref, set_size, &more));
	ck_assert(ucm_index_get(ix, ref, &out));
	ck_assert_uint_eq(out.size, most);
	ck_assert_uint_eq(out.space, 0);
	ck_assert_uint_eq(out.dir, 3);
}

/* Whatever its size: chunks that are not full cost, too. */
UNIT_TEST(a_block_takes_80_bytes_at_most)
{
	uint64_t empty = ucm_index_memory(ix);

	for (unsigned i = 1; i <= 1000000; i++) {
		struct ucm_entry entry = entry_of(i, 0);
		struct ucm_entry above = entry_of(i - 1, 0);

		entry.copy = 1;
		must(!ucm_index_add(ix, &entry, i > 1 ? &above.id : NULL,
					  NULL));
		must(i < 100000 || i % 1000 ||
		     ucm_index_memory(ix) - empty <= UINT64_C(80) * i);
	}
}

UNIT_TEST(freeing_no_index_is_harmless)
{
	ucm_index_free(NULL);
}
