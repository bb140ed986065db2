/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reader.c - what a mapped index tells, also when nobody keeps it any
 * more.
 */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>

#include "tests/unit/fake_server.h"
#include "tests/unit/reader/mapped_index.h"

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- answers ---- */

UNIT_TEST(what_is_added_is_there_at_once_and_gone_when_removed)
{
	ucm_ref ref;

	ck_assert_int_eq(rf_ask(reader, 1), 'n');
	ref = rf_add(ix, 1);
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	ck_assert_int_eq(rf_ask(reader, 2), 'n');
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_int_eq(rf_ask(reader, 1), 'n');
}

UNIT_TEST(an_entry_is_told_as_it_is)
{
	struct ucm_index_entry entry, later;
	struct ucm_id id = rf_id(7);
	ucm_ref ref = rf_add(ix, 7);

	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), 0);
	ck_assert_uint_eq(entry.size, rf_size(7, 0));
	ck_assert_uint_eq(entry.generation, ref);
	ck_assert_uint_eq(entry.flags, 0);
	ck_assert_int_eq(entry.tier, (int)(rf_size(7, 0) % RF_DIRS));
	ck_assert_str_eq(entry.tier_name, "nfs");
	ck_assert(ucm_index_flag(ix, ref, UCM_ENTRY_PINNED, true));
	ck_assert_int_eq(ucm_index_entry(reader, &id, &later), 0);
	ck_assert_uint_eq(later.flags, UCM_INDEX_PINNED);
	ck_assert_uint_eq(later.generation, entry.generation);
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_int_eq(ucm_index_entry(reader, &id, &later), -ENOENT);
	rf_add(ix, 7);
	ck_assert_int_eq(ucm_index_entry(reader, &id, &later), 0);
	ck_assert_uint_ne(later.generation, entry.generation);
}

UNIT_TEST(what_is_in_doubt_or_leaving_is_unknown, .rows = 2)
{
	static const uint8_t flags[] = { UCM_ENTRY_DOUBT, UCM_ENTRY_LEAVING };
	struct ucm_index_entry entry;
	struct ucm_id id = rf_id(1);
	ucm_ref ref = rf_add(ix, 1);
	int unknown = 7;
	size_t count;

	ck_assert(ucm_index_flag(ix, ref, flags[_i], true));
	ck_assert_int_eq(rf_ask(reader, 1), '?');
	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), -EAGAIN);
	ck_assert_int_eq(ucm_index_prefix(reader, &id, 1, &count, &unknown), 0);
	ck_assert_uint_eq(count, 0);
	ck_assert_int_eq(unknown, 1);
	ck_assert(ucm_index_flag(ix, ref, flags[_i], false));
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
}

UNIT_TEST(a_block_is_located_until_it_moves)
{
	struct ucm_reader_place place;
	struct ucm_id id = rf_id(7);
	ucm_ref ref;

	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), -ENOENT);
	ref = rf_add(ix, 7);
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), 0);
	ck_assert_uint_eq(place.size, rf_size(7, 0));
	ck_assert_uint_eq(place.dir, rf_size(7, 0) % RF_DIRS);
	ck_assert(ucm_index_flag(ix, ref, UCM_ENTRY_PINNED, true));
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), 0);
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), -ENOENT);
}

UNIT_TEST(what_the_daemon_has_to_look_at_is_not_located, .rows = 4)
{
	static const uint8_t flags[] = { UCM_ENTRY_DOUBT, UCM_ENTRY_LEAVING,
					 UCM_ENTRY_WRITABLE,
					 UCM_ENTRY_UNREAD };
	struct ucm_reader_place place;
	struct ucm_id id = rf_id(1);
	ucm_ref ref = rf_add(ix, 1);

	ck_assert(ucm_index_flag(ix, ref, flags[_i], true));
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), -EAGAIN);
	ck_assert(ucm_index_flag(ix, ref, flags[_i], false));
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), 0);
}

UNIT_TEST(while_the_scan_runs_absent_means_unknown)
{
	struct ucm_index *young;
	struct ucm_index_reader *early;
	struct ucm_index_entry entry;
	struct ucm_index_info info;
	struct ucm_id id = rf_id(2);

	ck_assert_int_eq(ucm_index_new(&young), 0);
	ucm_index_memory_unserve(ucm_index_live(ix)); /* one for each thread */
	ck_assert_int_eq(ucm_index_memory_serve(ucm_index_live(young)), 0);
	early = rf_reader(young);
	rf_add(young, 1);
	ck_assert_int_eq(rf_ask(early, 1), 'y');
	ck_assert_int_eq(rf_ask(early, 2), '?');
	ck_assert_int_eq(ucm_index_entry(early, &id, &entry), -EAGAIN);
	ck_assert_int_eq(ucm_index_info(early, &info), 0);
	ck_assert_int_eq(info.complete, 0);
	ucm_index_memory_set_complete(ucm_index_live(young));
	ck_assert_int_eq(rf_ask(early, 2), 'n');
	ck_assert_int_eq(ucm_index_entry(early, &id, &entry), -ENOENT);
	ucm_index_close(early);
	ucm_index_free(young);
}

UNIT_TEST(a_prefix_ends_at_the_first_that_is_absent, .rows = 12)
{
	static const unsigned holes[] = { 0, 1, 63, 64, 65, 255, 256, 257,
					  511, 512, 999, 1000 };
	struct ucm_id ids[1000];
	unsigned hole = holes[_i];
	size_t count;
	int unknown;

	for (unsigned i = 0; i < 1000; i++) {
		ids[i] = rf_id(i);
		if (i != hole)
			rf_add(ix, i);
	}
	ck_assert_int_eq(ucm_index_prefix(reader, ids, 1000, &count, &unknown),
			 0);
	ck_assert_uint_eq(count, hole);
	ck_assert_int_eq(unknown, 0);
	ck_assert_int_eq(ucm_index_prefix(reader, ids, 0, &count, NULL), 0);
	ck_assert_uint_eq(count, 0);
}

UNIT_TEST(a_bitmap_has_a_bit_for_each_id)
{
	enum { NUM = 1003 };
	struct ucm_id ids[NUM];
	uint64_t present[UCM_INDEX_WORDS(NUM) + 1];
	uint64_t unknown[UCM_INDEX_WORDS(NUM) + 1];

	memset(present, 0xaa, sizeof(present));
	memset(unknown, 0xaa, sizeof(unknown));
	for (unsigned i = 0; i < NUM; i++) {
		ids[i] = rf_id(i);
		if (i % 3 == 0)
			rf_add(ix, i);
		if (i % 9 == 0)
			ucm_index_flag(ix, rf_ref(ix, i), UCM_ENTRY_DOUBT,
				       true);
	}
	ck_assert_int_eq(ucm_index_lookup(reader, ids, NUM, present, unknown),
			 0);
	for (unsigned i = 0; i < NUM; i++) {
		must((present[i / 64] >> i % 64 & 1) ==
		     (i % 3 == 0 && i % 9 != 0));
		must((unknown[i / 64] >> i % 64 & 1) == (i % 9 == 0));
	}
	/* and not one more */
	ck_assert_uint_eq(present[NUM / 64] >> NUM % 64, 0);
	ck_assert_uint_eq(present[UCM_INDEX_WORDS(NUM)], 0xaaaaaaaaaaaaaaaa);
	ck_assert_int_eq(ucm_index_lookup(reader, ids, NUM, present, NULL), 0);
	ck_assert_uint_eq(present[0] & 0xff, 0x48);
}

UNIT_TEST(one_id_in_two_spaces_is_two_blocks)
{
	struct ucm_entry entry = rf_entry(1, 0);

	entry.space = 5;
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
	ck_assert_int_eq(rf_ask(reader, 1), 'n');
	reader->space = 5;
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
}

/* The file grows, and what it has is mapped as far as it is needed. */
UNIT_TEST(a_growing_index_is_followed)
{
	enum { NUM = 120000 };
	uint64_t before = reader->map.len;
	struct ucm_index_info info;

	for (unsigned i = 0; i < NUM; i++) {
		rf_add(ix, i);
		must(i % 97 || rf_ask(reader, i) == 'y');
	}
	for (unsigned i = 0; i < NUM; i++)
		must(rf_ask(reader, i) == 'y' && rf_ask(reader, i + NUM) == 'n');
	ck_assert_uint_gt(reader->map.len, before);
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_uint_eq(info.blocks, NUM);
	ck_assert_str_eq(info.backend, "map");
	ck_assert_ptr_null(info.why);
}

UNIT_TEST(counted_names_are_found)
{
	for (unsigned i = 0; i < 5000; i++) {
		struct ucm_entry entry = { .size = 4096 };
		uint64_t present;

		memcpy(entry.id.bytes + 12, &i, sizeof(i));
		must(!ucm_index_add(ix, &entry, NULL, NULL));
		must(!ucm_index_lookup(reader, &entry.id, 1, &present, NULL));
		must(present == 1);
	}
}

UNIT_TEST(what_is_hidden_is_not_found)
{
	struct ucm_id id = rf_id(1);
	uint64_t present = 7;

	rf_add(ix, 1);
	ck_assert_int_eq(ucm_index_hide(ix, 0), 0);
	/* it has no daemon to ask what the space's number is now */
	ck_assert_int_ne(ucm_index_lookup(reader, &id, 1, &present, NULL), 0);
	ck_assert_uint_eq(present, 0);
	reader->names = ucm_reader_map_names(&reader->map);
	reader->resolved = true;
	ck_assert_int_eq(rf_ask(reader, 1), '-');
}

/* ---- the daemon's end ---- */

UNIT_TEST(an_index_that_nobody_keeps_is_gone)
{
	struct ucm_index_entry entry = { .size = 77 };
	struct ucm_id id = rf_id(1);
	uint64_t present = 7, unknown = 7;
	struct ucm_index_info info;
	int flag = 77;
	size_t count = 77;

	rf_add(ix, 1);
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	ucm_index_memory_unserve(ucm_index_live(ix));
	ck_assert_int_eq(ucm_index_lookup(reader, &id, 1, &present, &unknown),
			 -ENOTCONN);
	ck_assert_uint_eq(present | unknown, 0);
	ck_assert_int_eq(ucm_index_prefix(reader, &id, 1, &count, &flag),
			 -ENOTCONN);
	ck_assert_uint_eq(count, 77);
	ck_assert_int_eq(flag, 77);
	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), -ENOTCONN);
	ck_assert_uint_eq(entry.size, 77);
	ck_assert_int_eq(ucm_index_info(reader, &info), -ENOTCONN);
}

/* A writer that never ends what it began; so does one that is stopped. */
UNIT_TEST(a_shard_that_is_being_changed_is_waited_for_not_for_ever)
{
	struct ucm_index_memory *live = ucm_index_live(ix);
	uint64_t present, unknown;
	struct ucm_id ids[64];

	for (unsigned i = 0; i < 64; i++) {
		ids[i] = rf_id(i);
		rf_add(ix, i);
	}
	for (unsigned i = 0; i < 32; i++)
		ucm_index_memory_shard(live, ids[i].bytes[0])->seq |= 1;
	ck_assert_int_eq(ucm_index_lookup(reader, ids, 64, &present, &unknown),
			 0);
	for (unsigned i = 0; i < 64; i++) {
		bool odd =
			ucm_index_memory_shard(live, ids[i].bytes[0])->seq & 1;

		must((unknown >> i & 1) == odd);
		must((present >> i & 1) == !odd);
	}
}

UNIT_TEST(a_name_that_is_only_a_parent_is_absent)
{
	struct ucm_entry entry = rf_entry(1, 0);
	struct ucm_id parent = rf_id(2);
	struct ucm_index_entry told;
	struct ucm_index_info info;
	ucm_ref ref;

	ck_assert_int_eq(ucm_index_add(ix, &entry, &parent, &ref), 0);
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	ck_assert_int_eq(rf_ask(reader, 2), 'n');
	ck_assert_int_eq(ucm_index_entry(reader, &parent, &told), -ENOENT);
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_uint_eq(info.blocks, 1);
	rf_add(ix, 2);
	ck_assert_int_eq(rf_ask(reader, 2), 'y');
	ck_assert(ucm_index_remove(ix, rf_ref(ix, 2), NULL));
	ck_assert_int_eq(rf_ask(reader, 2), 'n');
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_uint_eq(info.blocks, 1);
}

UNIT_TEST(a_second_place_is_told)
{
	struct ucm_entry entry = rf_entry(1, 0);
	struct ucm_index_entry told;

	rf_add(ix, 2);
	entry.copy = 3;
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
	ck_assert_int_eq(ucm_index_entry(reader, &entry.id, &told), 0);
	ck_assert_uint_eq(told.flags, UCM_INDEX_COPY);
	entry = rf_entry(2, 0);
	ck_assert_int_eq(ucm_index_entry(reader, &entry.id, &told), 0);
	ck_assert_uint_eq(told.flags, 0);
}

/* ---- opening ---- */

UNIT_TEST(names_that_are_no_spaces_are_refused)
{
	static const char *const names[] = { ".", "..", ".hidden", "a/b", "/" };
	struct ucm_index_reader *none = NULL;
	char name[200];

	for (unsigned i = 0; i < NUM_ROWS(names); i++)
		ck_assert_int_eq(ucm_index_open("/tmp", names[i], &none),
				 -EINVAL);
	memset(name, 'x', sizeof(name));
	name[129] = '\0';
	ck_assert_int_eq(ucm_index_open("/tmp", name, &none), -EINVAL);
	ck_assert_ptr_null(none);
}

UNIT_TEST(what_is_no_mount_is_not_there)
{
	struct ucm_index_reader *none = NULL;

	ck_assert_int_eq(ucm_index_open("/nowhere", NULL, &none), -ENOENT);
	ck_assert_int_eq(ucm_index_open("/proc", NULL, &none), -ENOENT);
	ck_assert_int_eq(ucm_index_open("/proc", "x", &none), -ENOENT);
	ck_assert_ptr_null(none);
	ucm_index_close(NULL);
}
