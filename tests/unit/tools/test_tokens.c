/* SPDX-License-Identifier: Apache-2.0 */
/* test_tokens.c - token ids from text and from binary integers. */
#include <config.h>

#include "tools/data/tokens.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/unit.h"

static int read_all(struct ucm_tokens *tokens, enum ucm_token_format format,
		    const void *bytes, size_t len)
{
	*tokens = (struct ucm_tokens){ .format = format };
	return ucm_tokens_parse(tokens, bytes, len);
}

static const struct {
	const char *text;
	size_t num;
	int64_t ids[4];
} texts[] = {
	{ "", 0, { 0 } },
	{ " \n\t,,[ ]\r\n", 0, { 0 } },
	{ "0", 1, { 0 } },
	{ "1 2\n3\n", 3, { 1, 2, 3 } },
	{ "[1, 2, 128255]", 3, { 1, 2, 128255 } },
	{ "007", 1, { 7 } },
	{ "-5,5", 2, { -5, 5 } },
	{ "9223372036854775807", 1, { INT64_MAX } },
	{ "-9223372036854775807", 1, { -INT64_MAX } },
};

UNIT_TEST(numbers_are_read_from_text, .rows = NUM_ROWS(texts))
{
	struct ucm_tokens tokens;

	ck_assert_int_eq(read_all(&tokens, UCM_TOKENS_TEXT, texts[_i].text,
				  strlen(texts[_i].text)), 0);
	ck_assert_uint_eq(tokens.num, texts[_i].num);
	for (size_t i = 0; i < tokens.num; i++)
		ck_assert_int_eq(tokens.ids[i], texts[_i].ids[i]);
	ucm_tokens_fini(&tokens);
}

static const struct {
	const char *text;
	int err;
	uint64_t offset;
} wrong[] = {
	{ "1 x", -EINVAL, 2 },
	{ "1.5", -EINVAL, 1 },
	{ "0x10", -EINVAL, 1 },
	{ "1 - 2", -EINVAL, 3 },
	{ "--1", -EINVAL, 1 },
	{ "12-3", -EINVAL, 2 },
	{ "+1", -EINVAL, 0 },
	{ "1;2", -EINVAL, 1 },
	{ "-", -EINVAL, 1 },
	{ "\xff", -EINVAL, 0 },
	{ "9223372036854775808", -ERANGE, 18 },
	{ "99999999999999999999999", -ERANGE, 18 },
};

UNIT_TEST(other_text_is_refused_where_it_is_wrong, .rows = NUM_ROWS(wrong))
{
	struct ucm_tokens tokens;

	ck_assert_int_eq(read_all(&tokens, UCM_TOKENS_TEXT, wrong[_i].text,
				  strlen(wrong[_i].text)), wrong[_i].err);
	ck_assert_uint_eq(tokens.offset, wrong[_i].offset);
	ucm_tokens_fini(&tokens);
}

UNIT_TEST(binary_integers_are_little_endian_and_whole)
{
	static const uint8_t bytes[] = { 1, 2, 3, 0, 0, 0, 0, 0x80,
					 0xff, 0xff, 0xff, 0xff };
	struct ucm_tokens tokens;

	ck_assert_int_eq(read_all(&tokens, UCM_TOKENS_INT32, bytes, 12), 0);
	ck_assert_uint_eq(tokens.num, 3);
	ck_assert_int_eq(tokens.ids[0], 0x30201);
	ck_assert_int_eq(tokens.ids[1], INT32_MIN);
	ck_assert_int_eq(tokens.ids[2], -1);
	ucm_tokens_fini(&tokens);
	ck_assert_int_eq(read_all(&tokens, UCM_TOKENS_INT64, bytes, 8), 0);
	ck_assert_int_eq(tokens.ids[0], INT64_MIN + 0x30201);
	ucm_tokens_fini(&tokens);
	ck_assert_int_eq(read_all(&tokens, UCM_TOKENS_INT64, bytes, 12),
			 -EINVAL);
	ucm_tokens_fini(&tokens);
}
