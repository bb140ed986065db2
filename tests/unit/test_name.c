/* SPDX-License-Identifier: Apache-2.0 */
/* test_name.c - what is a block's name, and what is not. */
#include <config.h>

#include "hashing/name.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/unit.h"

#define HEX "3f9a101112131415161718191a1b1ce1"

UNIT_TEST(a_name_is_an_id_and_back)
{
	char name[UCM_BLOCK_NAME_LEN + 1], path[UCM_BLOCK_PATH_LEN + 1];
	struct ucm_id id;

	ck_assert_int_eq(ucm_name_parse(HEX ".bin", &id), 0);
	ck_assert_uint_eq(ucm_bucket(&id), 0x3f);
	ucm_name_format(&id, name);
	ck_assert_str_eq(name, HEX ".bin");
	ucm_path_format(&id, path);
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
	ck_assert_int_eq(ucm_name_parse(wrong_names[_i], &id), -EINVAL);
	ck_assert_mem_eq(&id, &before, sizeof(id));
}

UNIT_TEST(a_name_of_4_kib_is_not_a_block)
{
	char name[4097];
	struct ucm_id id;

	memset(name, 'a', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	ck_assert_int_eq(ucm_name_parse(name, &id), -EINVAL);
	memcpy(name + sizeof(name) - 5, ".bin", 4);
	ck_assert_int_eq(ucm_name_parse(name, &id), -EINVAL);
}

UNIT_TEST(a_name_with_any_wrong_byte_is_not_a_block)
{
	for (size_t at = 0; at < UCM_BLOCK_NAME_LEN; at++) {
		for (int c = 0; c < 256; c++) {
			char name[] = HEX ".bin";
			struct ucm_id id;
			bool same = (char)c == name[at];
			bool digit = at < UCM_ID_HEX && c &&
				     strchr("0123456789abcdef", c);

			name[at] = (char)c;
			ck_assert_int_eq(ucm_name_parse(name, &id),
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
		ucm_bucket_format(i, name);
		ck_assert_int_eq(ucm_bucket_parse(name), (int)i);
	}
	ck_assert_str_eq(name, "ff");
	for (size_t i = 0; i < NUM_ROWS(wrong); i++)
		ck_assert_msg(ucm_bucket_parse(wrong[i]) == -EINVAL, "'%s'",
			      wrong[i]);
}
