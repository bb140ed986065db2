/* SPDX-License-Identifier: Apache-2.0 */
/* test_reader_marks.c - files that are marked as verified in a mapped index. */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>

#include "tests/unit/fake_server.h"
#include "tests/unit/reader/mapped_index.h"

/* ---- marks ---- */

#define STAMP UINT64_C(0x1234567890)

/* What the reader says of block 7; of any space. */
static uint64_t verified(void)
{
	struct ucm_reader_place place = { .verified = 1 };
	struct ucm_id id = rf_id(7);

	return ucm_reader_locate(reader, &id, &place) ? 0 : place.verified;
}

static unsigned dir_of_7(void)
{
	return rf_size(7, 0) % RF_DIRS;
}

static ucm_ref add_marked(void)
{
	ucm_ref ref = rf_add(ix, 7);

	ucm_index_memory_set_reverify(ucm_index_live(ix), 1000);
	ck_assert_uint_eq(verified(), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP), 0);
	ck_assert_uint_eq(verified(), STAMP);
	ck_assert_uint_eq(ucm_index_marked(ix), 1);
	return ref;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(a_mark_goes_with_its_entry)
{
	ucm_ref ref = add_marked();

	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP), -ENOENT);
	ref = rf_add(ix, 7);
	ck_assert_uint_eq(verified(), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP + 1), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP + 2), 0);
	ck_assert_uint_eq(verified(), STAMP + 2);
	ck_assert_uint_eq(ucm_index_marked(ix), 1);
	ucm_index_unmark(ix, ref);
	ucm_index_unmark(ix, ref);
	ck_assert_uint_eq(verified(), 0);
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
}

static void edit_use(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->uses++;
	entry->atime_s = 77;
}

static void edit_dir(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->dir = (uint8_t)(entry->dir + 1) % RF_DIRS;
}

static void edit_size(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->size++;
}

static void edit_mtime(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->mtime_ns++;
}

static void edit_back(struct ucm_entry *entry, void *arg)
{
	*entry = *(const struct ucm_entry *)arg;
}

UNIT_TEST(a_mark_goes_when_its_file_is_another, .rows = 3)
{
	static void (*const edits[])(struct ucm_entry *, void *) = {
		edit_dir, edit_size, edit_mtime,
	};
	ucm_ref ref = add_marked();
	struct ucm_entry entry;

	ck_assert(ucm_index_edit(ix, ref, edit_use, NULL));
	ck_assert(ucm_index_flag(ix, ref, UCM_ENTRY_PINNED, true));
	ck_assert_uint_eq(verified(), STAMP);
	ck_assert(ucm_index_get(ix, ref, &entry));
	ck_assert(ucm_index_edit(ix, ref, edits[_i], NULL));
	ck_assert_uint_eq(verified(), 0);
	ck_assert(ucm_index_edit(ix, ref, edit_back, &entry));
	ck_assert_uint_eq(verified(), 0);
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
}

UNIT_TEST(a_mark_goes_with_any_doubt, .rows = 4)
{
	static const uint8_t flags[] = { UCM_ENTRY_DOUBT, UCM_ENTRY_LEAVING,
					 UCM_ENTRY_WRITABLE,
					 UCM_ENTRY_UNREAD };
	ucm_ref ref = add_marked();

	ck_assert(ucm_index_flag(ix, ref, flags[_i], true));
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP), -EAGAIN);
	ck_assert(ucm_index_flag(ix, ref, flags[_i], false));
	ck_assert_uint_eq(verified(), 0);
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
}

UNIT_TEST(what_lies_elsewhere_or_is_private_is_not_marked)
{
	ucm_ref ref = add_marked();

	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7() + 1, STAMP),
			 -ENOENT);
	ck_assert_int_eq(ucm_index_hide(ix, 0), 0);
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP),
			 -EOPNOTSUPP);
	/* another one gets its slot one day */
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
}

UNIT_TEST(a_mark_does_not_hold_for_ever)
{
	struct ucm_index_memory_header *header =
		ucm_index_memory_header(ucm_index_live(ix));
	uint64_t began_s = header->began_s;

	add_marked();
	header->began_s = began_s - 990; /* it was made so long ago */
	ck_assert_uint_eq(verified(), STAMP);
	header->began_s = began_s - 1000;
	ck_assert_uint_eq(verified(), 0);
	header->began_s = began_s + 1000; /* another clock */
	ck_assert_uint_eq(verified(), 0);
	header->began_s = began_s;
	ck_assert_uint_eq(verified(), STAMP);
	ucm_index_memory_set_reverify(ucm_index_live(ix), 0);
	ck_assert_uint_eq(verified(), 0);
	ck_assert_int_eq(ucm_index_mark(ix, rf_ref(ix, 7), dir_of_7(), STAMP),
			 -EOPNOTSUPP);
}

/* Of a stamp all bits count, and no time is part of it. */
UNIT_TEST(a_mark_has_the_whole_stamp)
{
	ucm_ref ref = add_marked();

	for (uint64_t stamp = 1; stamp < UCM_INDEX_MEMORY_STAMP; stamp *= 2) {
		ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), stamp), 0);
		ck_assert_uint_eq(verified(), stamp);
	}
}

/* The file has grown since the reader mapped it. */
UNIT_TEST(marks_of_many_are_found)
{
	struct ucm_reader_place place;

	ucm_index_memory_set_reverify(ucm_index_live(ix), 1000);
	for (unsigned n = 0; n < 20000; n++)
		rf_add(ix, n);
	for (unsigned n = 0; n < 20000; n += 3)
		must(!ucm_index_mark(ix, rf_ref(ix, n), rf_size(n, 0) % RF_DIRS,
				     n + 1));
	ck_assert_uint_eq(ucm_index_marked(ix), 6667);
	for (unsigned n = 0; n < 20000; n++) {
		struct ucm_id id = rf_id(n);

		must(!ucm_reader_locate(reader, &id, &place));
		must(place.verified == (n % 3 ? 0 : n + 1));
	}
}
