/* SPDX-License-Identifier: Apache-2.0 */
/* test_index_parents.c - blocks and their parents: children are counted. */
#include <config.h>

#include "fs/index/index.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "fs/index/memory.h"
#include "fs/index/shard.h"
#include "tests/unit/index/index_fixture.h"
#include "tests/unit/random.h"

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

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

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
