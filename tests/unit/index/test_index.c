/* SPDX-License-Identifier: Apache-2.0 */
/* test_index.c - entries, references, listing, growth and many threads. */
#include <config.h>

#include "fs/index/index.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/osfile.h"
#include "fs/index/memory.h"
#include "fs/index/shard.h"
#include "tests/unit/random.h"
#include "tests/unit/unit.h"

#define MANY 100000u

static struct ucm_index *ix;

static void setup(void)
{
	ck_assert_int_eq(ucm_index_new(&ix), 0);
}

static void teardown(void)
{
	ucm_index_free(ix);
}

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static struct ucm_entry entry_of(unsigned number, uint16_t space)
{
	uint64_t words[2] = { mix(number), mix(number + 1000003) };
	struct ucm_entry entry = { .size = 4096 + number, .space = space,
				   .dir = 3, .blocks = 8 };

	memcpy(entry.id.bytes, words, sizeof(words));
	return entry;
}

static struct ucm_key key_of(const struct ucm_entry *entry)
{
	return (struct ucm_key){ .id = entry->id, .space = entry->space };
}

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

static void set_uses(struct ucm_entry *entry, void *arg)
{
	entry->uses = *(uint32_t *)arg;
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

static unsigned count_bucket(uint16_t space, unsigned bucket)
{
	struct ucm_entry entry;
	uint32_t cursor = 0;
	unsigned num = 0;
	ucm_ref ref;

	while (ucm_index_next(ix, space, bucket, &cursor, &entry, &ref)) {
		struct ucm_entry out;

		ck_assert_uint_eq(entry.space, space);
		ck_assert_uint_eq(entry.id.bytes[0], bucket);
		ck_assert(ucm_index_get(ix, ref, &out));
		ck_assert_mem_eq(&out.id, &entry.id, sizeof(out.id));
		num++;
	}
	return num;
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

static struct ucm_entry crowd_of(unsigned number, uint16_t space)
{
	struct ucm_entry entry = entry_of(number, space);

	entry.id.bytes[0] = 0x07;
	return entry;
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

static _Atomic unsigned walk; /* odd: one is under way */
static _Atomic unsigned served;

/* Counts the calls that came and went within one walk. */
static void *ask_meanwhile(void *arg)
{
	ucm_ref ref = *(ucm_ref *)arg;
	struct ucm_entry entry;

	while (atomic_load(&served) < 20) {
		unsigned began = atomic_load(&walk);

		if (!ucm_index_get(ix, ref, &entry))
			return "the entry is gone";
		if (began & 1 && atomic_load(&walk) == began)
			atomic_fetch_add(&served, 1);
	}
	return NULL;
}

UNIT_TEST(others_come_first_while_a_space_is_listed)
{
	struct ucm_entry entry;
	pthread_t thread;
	unsigned walks = 0;
	void *wrong;
	ucm_ref ref;

	for (unsigned i = 0; i < 200000; i++) {
		entry = crowd_of(i, 0);
		must(!ucm_index_add(ix, &entry, NULL, &ref));
	}
	atomic_store(&walk, 0);
	atomic_store(&served, 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, ask_meanwhile, &ref), 0);
	while (atomic_load(&served) < 20 && walks++ < 200) {
		uint32_t cursor = 0;

		atomic_fetch_add(&walk, 1);
		must(!ucm_index_next(ix, 1, 7, &cursor, &entry, NULL));
		atomic_fetch_add(&walk, 1);
	}
	ck_assert_uint_ge(atomic_load(&served), 20);
	pthread_join(thread, &wrong);
	ck_assert_msg(!wrong, "%s", (char *)wrong);
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

/* ---- hidden spaces ---- */

/* Does the memory that others map have these 16 bytes anywhere? */
static bool is_seen(const struct ucm_entry *entry)
{
	struct ucm_index_memory *live = ucm_index_live(ix);

	return memmem(live->base, ucm_index_memory_size(live), entry->id.bytes,
		      sizeof(entry->id)) != NULL;
}

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

/* ---- parents ---- */

/* What a name's children are, by what the test knows. Entries are numbered, and
 * their space follows from the number. */
#define FAMILY 48u
#define NOBODY UINT_MAX

static struct {
	bool there[FAMILY];
	unsigned parent[FAMILY]; /* or NOBODY */
	ucm_ref ref[FAMILY];
	uint8_t copy[FAMILY];
} family;

static struct ucm_entry member(unsigned number)
{
	return entry_of(number, number % 2 ? 7 : 8);
}

static unsigned children_of(unsigned number)
{
	unsigned num = 0;

	for (unsigned i = 0; i < FAMILY; i++)
		num += family.there[i] && family.parent[i] == number;
	return num;
}

static void compare_family(void)
{
	for (unsigned i = 0; i < FAMILY; i++) {
		struct ucm_entry entry = member(i), out;
		struct ucm_key key = key_of(&entry);
		struct ucm_id parent;
		bool found = ucm_index_find(ix, &key, &out, NULL);

		must(found == family.there[i]);
		must(ucm_index_parent(ix, family.ref[i], &parent) ==
		     (found && family.parent[i] != NOBODY));
		if (!found)
			continue;
		must(out.children == children_of(i));
		must(out.copy == family.copy[i] && out.size == entry.size);
		must(!out.parent == (family.parent[i] == NOBODY));
		if (out.parent) {
			entry = member(family.parent[i]);
			must(!memcmp(&parent, &entry.id, sizeof(parent)));
		}
	}
}

static void edit_copy(struct ucm_entry *entry, void *arg)
{
	entry->copy = *(const uint8_t *)arg;
}

/* One step; a parent is of the child's space, and may be the child. */
static void live_on(uint64_t random)
{
	unsigned i = (unsigned)(random % FAMILY);
	unsigned parent = (unsigned)(random >> 8) % (FAMILY / 2) * 2 + i % 2;
	struct ucm_entry entry = member(i), above = member(parent);
	bool named = random >> 16 & 3 && parent != i;
	uint8_t copy = (uint8_t)(random >> 32);
	int err;

	if (!family.there[i] || !(random >> 20 & 7)) {
		entry.copy = copy;
		err = ucm_index_add(
			ix, &entry, random >> 16 & 3 ? &above.id : NULL,
			family.there[i] ? NULL : &family.ref[i]);
		must(err == (family.there[i] ? -EEXIST : 0));
		if (!err)
			family.copy[i] = copy;
		if (!err || family.parent[i] == NOBODY)
			family.parent[i] = named ? parent : NOBODY;
		family.there[i] = true;
	} else if (random >> 20 & 1) {
		must(ucm_index_remove(ix, family.ref[i], NULL));
		must(!ucm_index_remove(ix, family.ref[i], NULL));
		must(ucm_index_set_parent(ix, family.ref[i], &above.id) ==
		     -ENOENT);
		family.there[i] = false;
	} else if (random >> 21 & 1) {
		must(!ucm_index_set_parent(ix, family.ref[i], &above.id));
		if (family.parent[i] == NOBODY && parent != i)
			family.parent[i] = parent;
	} else {
		must(ucm_index_edit(ix, family.ref[i], edit_copy, &copy));
		family.copy[i] = copy;
	}
}

UNIT_TEST(children_are_counted_whatever_comes_and_goes, .rows = 8)
{
	uint64_t seed = random_case((unsigned)_i);
	unsigned hide = (unsigned)_i % 4 * 1000; /* 0: never */

	memset(&family, 0, sizeof(family));
	for (unsigned i = 0; i < 4000; i++) {
		seed = mix(seed);
		live_on(seed);
		if (hide && i == hide)
			ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
		if (i < 200 || i % 16 == 0)
			compare_family();
	}
	for (unsigned i = 0; i < FAMILY; i++) {
		struct ucm_entry entry = member(i);

		must(!hide || i % 2 == 0 || !is_seen(&entry));
	}
	for (unsigned i = 0; i < FAMILY; i++) {
		if (family.there[i])
			must(ucm_index_remove(ix, family.ref[i], NULL));
		family.there[i] = false;
		compare_family();
	}
	/* nothing is kept of a name that is nobody's */
	for (unsigned i = 0; i < FAMILY; i++) {
		struct ucm_entry entry = member(i);

		must(!is_seen(&entry));
	}
}

UNIT_TEST(a_parent_may_come_after_its_children_and_go_before_them)
{
	struct ucm_entry above = entry_of(1, 0), below = entry_of(2, 0), out;
	struct ucm_key key = key_of(&above);
	ucm_ref first, second, child;
	uint32_t cursor = 0;

	ck_assert_int_eq(ucm_index_add(ix, &below, &above.id, &child), 0);
	ck_assert(!ucm_index_find(ix, &key, NULL, NULL));
	ck_assert(!ucm_index_next(ix, 0, above.id.bytes[0], &cursor, &out,
				  NULL));
	ck_assert_int_eq(ucm_index_add(ix, &above, NULL, &first), 0);
	ck_assert(ucm_index_get(ix, first, &out));
	ck_assert_uint_eq(out.children, 1);
	ck_assert(ucm_index_remove(ix, first, &out));
	ck_assert_uint_eq(out.children, 1);
	ck_assert(!ucm_index_get(ix, first, &out));
	ck_assert(!ucm_index_find(ix, &key, NULL, NULL));
	ck_assert_int_eq(ucm_index_add(ix, &above, NULL, &second), 0);
	ck_assert_uint_ne(second, first);
	ck_assert(!ucm_index_get(ix, first, &out));
	ck_assert(ucm_index_get(ix, second, &out));
	ck_assert_uint_eq(out.children, 1);
	ck_assert(ucm_index_remove(ix, child, NULL));
	ck_assert(ucm_index_get(ix, second, &out));
	ck_assert_uint_eq(out.children, 0);
}

UNIT_TEST(no_id_and_its_own_id_are_no_parents)
{
	struct ucm_entry entry = entry_of(1, 0), out;
	struct ucm_id none = { .bytes = { 0 } };
	ucm_ref ref;

	ck_assert_int_eq(ucm_index_add(ix, &entry, &none, &ref), 0);
	ck_assert_int_eq(ucm_index_set_parent(ix, ref, &entry.id), 0);
	ck_assert_int_eq(ucm_index_set_parent(ix, ref, NULL), 0);
	ck_assert(ucm_index_get(ix, ref, &out));
	ck_assert_uint_eq(out.parent, 0);
	ck_assert_uint_eq(out.children, 0);
}

UNIT_TEST(parents_in_a_hidden_space_are_hidden)
{
	struct ucm_index_memory *live = ucm_index_live(ix);
	uint64_t size = ucm_index_memory_size(live);
	char *before = malloc(size);

	ck_assert_ptr_nonnull(before);
	ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
	memcpy(before, live->base, size);
	for (unsigned i = 0; i < 5000; i++) {
		struct ucm_entry entry = entry_of(i, 7);
		struct ucm_entry above = entry_of(i * 3, 7);
		ucm_ref ref;

		must(!ucm_index_add(ix, &entry, &above.id, &ref));
		must(i % 3 || ucm_index_remove(ix, ref, NULL));
	}
	ck_assert_uint_eq(ucm_index_memory_size(live), size);
	ck_assert(!memcmp(before, live->base, size));
	free(before);
}

/* Its name alone is there, as a child has it. */
UNIT_TEST(an_absent_parent_is_hidden_with_its_space)
{
	struct ucm_entry above = entry_of(1, 7), below = entry_of(2, 7);

	ck_assert_int_eq(ucm_index_add(ix, &below, &above.id, NULL), 0);
	ck_assert(is_seen(&above));
	ck_assert_int_eq(ucm_index_hide(ix, 7), 0);
	ck_assert(!is_seen(&below));
	ck_assert(!is_seen(&above));
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

#define THREADS 4
#define ROUNDS 20000
#define NAMES 512 /* shared by all threads */

static _Atomic uint64_t adds, removes;

static void *hammer(void *arg)
{
	uint64_t seed = random_case((unsigned)(uintptr_t)arg);

	for (unsigned i = 0; i < ROUNDS; i++) {
		struct ucm_entry entry, above, out;
		struct ucm_key key;
		uint32_t uses = i, cursor = 0;
		ucm_ref ref;

		seed = mix(seed);
		entry = entry_of((unsigned)(seed % NAMES), 0);
		above = entry_of((unsigned)(seed >> 40) % NAMES, 0);
		key = key_of(&entry);
		switch (seed >> 32 & 3) {
		case 0:
			adds += ucm_index_add(ix, &entry, &above.id,
						    NULL) == 0;
			break;
		case 1:
			if (ucm_index_find(ix, &key, &out, &ref))
				removes += ucm_index_remove(ix, ref, NULL);
			break;
		case 2:
			if (ucm_index_find(ix, &key, &out, &ref)) {
				if (out.size != entry.size)
					return "wrong entry found";
				if (ucm_index_edit(ix, ref, set_uses, &uses) &&
				    ucm_index_get(ix, ref, &out) &&
				    memcmp(&out.id, &entry.id, sizeof(out.id)))
					return "reference led elsewhere";
			}
			break;
		default:
			while (ucm_index_next(ix, 0, entry.id.bytes[0],
					      &cursor, &out, NULL)) {
				if (out.id.bytes[0] != entry.id.bytes[0])
					return "entry of another bucket";
			}
			break;
		}
	}
	return NULL;
}

/* By name, of all entries that there are. */
static void count_all_children(uint32_t told[NAMES], uint32_t counted[NAMES])
{
	for (unsigned i = 0; i < NAMES; i++) {
		struct ucm_entry entry = entry_of(i, 0), out;
		struct ucm_key key = key_of(&entry);
		struct ucm_id parent;
		ucm_ref ref;

		if (!ucm_index_find(ix, &key, &out, &ref))
			continue;
		told[i] = out.children;
		if (!ucm_index_parent(ix, ref, &parent))
			continue;
		for (unsigned k = 0; k < NAMES; k++) {
			struct ucm_entry above = entry_of(k, 0);

			counted[k] += !memcmp(&above.id, &parent,
					      sizeof(parent));
		}
	}
}

UNIT_TEST(threads_agree_on_who_added_and_who_removed)
{
	static uint32_t told[NAMES], counted[NAMES];
	pthread_t threads[THREADS];
	uint64_t left = 0;

	for (uintptr_t i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer,
						(void *)(i + 1)), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		void *wrong;

		pthread_join(threads[i], &wrong);
		ck_assert_msg(!wrong, "%s", (char *)wrong);
	}
	for (unsigned bucket = 0; bucket < 256; bucket++)
		left += count_bucket(0, bucket);
	ck_assert_uint_eq(adds - removes, left);
	ck_assert_uint_gt(removes, 1000);
	count_all_children(told, counted);
	for (unsigned i = 0; i < NAMES; i++) {
		struct ucm_entry entry = entry_of(i, 0);
		struct ucm_key key = key_of(&entry);

		must(told[i] == counted[i] ||
		     !ucm_index_find(ix, &key, NULL, NULL));
	}
}

UNIT_TEST(freeing_no_index_is_harmless)
{
	ucm_index_free(NULL);
}
