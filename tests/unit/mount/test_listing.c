/* SPDX-License-Identifier: Apache-2.0 */
/* test_listing.c - the entries of a READDIR reply. */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <string.h>

#include "tests/unit/unit.h"

static char buffer[4096];
static const struct stat folder = { .st_ino = 5, .st_mode = S_IFDIR | 0755 };

/* struct fuse_dirent of the kernel; names are padded to 8 bytes. */
struct dirent_head {
	uint64_t ino, off;
	uint32_t name_len, type;
};

static struct ucm_listing listing(size_t size)
{
	return (struct ucm_listing){ .buffer = buffer, .size = size };
}

static struct dirent_head head_at(size_t at)
{
	struct dirent_head head;

	memcpy(&head, buffer + at, sizeof(head));
	return head;
}

UNIT_TEST(dots_come_first)
{
	struct ucm_listing list = listing(sizeof(buffer));
	off_t off = 0;

	ck_assert(ucm_list_dots(&list, &folder, &off));
	ck_assert_int_eq(off, 2);
	ck_assert_uint_eq(list.used, 64);
	ck_assert_uint_eq(head_at(0).ino, 5);
	ck_assert_uint_eq(head_at(0).off, 1);
	ck_assert_uint_eq(head_at(0).name_len, 1);
	ck_assert_uint_eq(head_at(32).off, 2);
	ck_assert_uint_eq(head_at(32).name_len, 2);
}

UNIT_TEST(dots_that_were_listed_are_not_listed_again)
{
	struct ucm_listing list = listing(sizeof(buffer));
	off_t off = 1;

	ck_assert(ucm_list_dots(&list, &folder, &off));
	ck_assert_uint_eq(list.used, 32);
	ck_assert_uint_eq(head_at(0).off, 2);
	off = 9;
	ck_assert(ucm_list_dots(&list, &folder, &off));
	ck_assert_int_eq(off, 9);
	ck_assert_uint_eq(list.used, 32);
}

UNIT_TEST(what_has_no_room_is_left_to_the_next_request)
{
	struct ucm_listing list = listing(40);
	off_t off = 0;

	ck_assert(!ucm_list_dots(&list, &folder, &off));
	ck_assert_int_eq(off, 1);
	ck_assert_uint_eq(list.used, 32);
	ck_assert(!ucm_list_name(&list, "name", &folder, 3));
	ck_assert_uint_eq(list.used, 32);
}

/* struct fuse_direntplus begins with an entry; its node id is the first. */
UNIT_TEST(a_name_is_no_lookup_and_an_entry_is_one)
{
	struct ucm_listing list = listing(sizeof(buffer));
	struct fuse_entry_param entry = { .ino = 77, .attr = folder };
	uint64_t node;
	size_t at;

	list.plus = true;
	ck_assert(ucm_list_name(&list, "name", &folder, 1));
	memcpy(&node, buffer, sizeof(node));
	ck_assert_uint_eq(node, 0);
	at = list.used;
	ck_assert(ucm_list_entry(&list, "entry", &entry, 2));
	memcpy(&node, buffer + at, sizeof(node));
	ck_assert_uint_eq(node, 77);
}
