/* SPDX-License-Identifier: Apache-2.0 */
/* test_tree.c - names and paths of the block tree. */
#include <config.h>

#include "hashing/tree.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/unit.h"

#define HEX "3f9a101112131415161718191a1b1ce1"

UNIT_TEST(a_name_is_an_id_and_back)
{
	char name[UCM_TREE_BLOCK_LEN + 1], path[UCM_TREE_BELOW_LEN + 1];
	struct ucm_id id;

	ck_assert_int_eq(ucm_tree_parse_block(HEX ".bin", &id), 0);
	ck_assert_uint_eq(ucm_tree_bucket(&id), 0x3f);
	ucm_tree_block_name(&id, name);
	ck_assert_str_eq(name, HEX ".bin");
	ucm_tree_block_below(&id, path);
	ck_assert_str_eq(path, "3f/" HEX ".bin");
}

static const char *const wrong_names[] = {
	"",
	".",
	"..",
	".bin",
	HEX,
	HEX ".BIN",
	HEX ".bi",
	HEX ".bin ",
	HEX ".bin\n",
	HEX ".bin.tmp",
	HEX "0.bin",
	"." HEX ".bin",
	" " HEX ".bin",
	"3F9a101112131415161718191a1b1ce1.bin",
	"3f9a101112131415161718191a1b1cE1.bin",
	"3f9a101112131415161718191a1b1ce.bin",
	"3f9a101112131415161718191a1b1ceg.bin",
	"3f9a1011121314151617181 1a1b1ce1.bin",
	"../../../../../../../../etc/sha.bin",
	"3f/a101112131415161718191a1b1ce1.bin",
	("\xff\xfe\xfd\xfc\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b"
	"\xff\xfe\xfd\xfc\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b.bin"),
};

UNIT_TEST(other_names_are_not_blocks, .rows = NUM_ROWS(wrong_names))
{
	struct ucm_id id, before;

	memset(&id, 0x77, sizeof(id));
	before = id;
	ck_assert_int_eq(ucm_tree_parse_block(wrong_names[_i], &id), -EINVAL);
	ck_assert_mem_eq(&id, &before, sizeof(id));
}

UNIT_TEST(a_name_of_4_kib_is_not_a_block)
{
	char name[4097];
	struct ucm_id id;

	memset(name, 'a', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	ck_assert_int_eq(ucm_tree_parse_block(name, &id), -EINVAL);
	memcpy(name + sizeof(name) - 5, ".bin", 4);
	ck_assert_int_eq(ucm_tree_parse_block(name, &id), -EINVAL);
}

UNIT_TEST(a_name_with_any_wrong_byte_is_not_a_block)
{
	for (size_t at = 0; at < UCM_TREE_BLOCK_LEN; at++) {
		for (int c = 0; c < 256; c++) {
			char name[] = HEX ".bin";
			struct ucm_id id;
			bool same = (char)c == name[at];
			bool digit = at < UCM_ID_HEX && c &&
				     strchr("0123456789abcdef", c);

			name[at] = (char)c;
			ck_assert_int_eq(ucm_tree_parse_block(name, &id),
					 same || digit ? 0 : -EINVAL);
		}
	}
}

UNIT_TEST(buckets_are_two_lowercase_digits)
{
	static const char *const wrong[] = {
		"", "3", "3F", "F3", "3g", "g3", "..", ".", "3f0", "/3", "3/",
		" 3", "\xff\xff", "0x",
	};
	char name[3];

	for (unsigned i = 0; i < UCM_BUCKETS; i++) {
		ucm_tree_bucket_name(i, name);
		ck_assert_int_eq(ucm_tree_parse_bucket(name), (int)i);
	}
	ck_assert_str_eq(name, "ff");
	for (size_t i = 0; i < NUM_ROWS(wrong); i++)
		ck_assert_msg(ucm_tree_parse_bucket(wrong[i]) == -EINVAL, "'%s'",
			      wrong[i]);
}

UNIT_TEST(a_space_has_a_folder)
{
	char folder[UCM_TREE_FOLDER_MAX], name[UCM_TREE_SPACE_MAX + 1];

	ucm_tree_folder(NULL, folder);
	ck_assert_str_eq(folder, "blocks");
	ck_assert_str_eq(ucm_tree_folder_name(folder), "");
	ucm_tree_folder("", folder);
	ck_assert_str_eq(folder, "blocks");
	ucm_tree_folder("llama", folder);
	ck_assert_str_eq(folder, "spaces/llama");
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	ucm_tree_folder(name, folder);
	ck_assert_uint_eq(strlen(folder), sizeof(folder) - 1);
	ck_assert_str_eq(ucm_tree_folder_name(folder), name);
}

UNIT_TEST(paths_are_below_the_folder_of_the_space)
{
	char path[UCM_TREE_PATH_MAX];
	struct ucm_id id;

	ck_assert_int_eq(ucm_id_parse(HEX, &id), 0);
	ucm_tree_block_path("blocks", &id, path);
	ck_assert_str_eq(path, "blocks/3f/" HEX ".bin");
	ucm_tree_block_path("spaces/llama", &id, path);
	ck_assert_str_eq(path, "spaces/llama/3f/" HEX ".bin");
	ucm_tree_bucket_path("spaces/llama", 0x3f, path);
	ck_assert_str_eq(path, "spaces/llama/3f");
}

UNIT_TEST(a_name_of_a_space_leads_nowhere_else)
{
	static const char *const wrong[] = {
		"", ".", "..", ".hidden", "a/b", "/", "a\n", "\x7f", "a\tb",
	};
	static const char *const right[] = { "a", "a.b", "\xc3\xa4", "a b" };
	char name[UCM_TREE_SPACE_MAX + 2];

	for (size_t i = 0; i < NUM_ROWS(wrong); i++)
		ck_assert_msg(!ucm_tree_space_valid(wrong[i]), "'%s'", wrong[i]);
	for (size_t i = 0; i < NUM_ROWS(right); i++)
		ck_assert_msg(ucm_tree_space_valid(right[i]), "'%s'", right[i]);
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	ck_assert(!ucm_tree_space_valid(name));
	name[sizeof(name) - 2] = '\0';
	ck_assert(ucm_tree_space_valid(name));
}
