/* SPDX-License-Identifier: Apache-2.0 */
/* test_args.c - command lines of subcommands. */
#include <config.h>

#include "tools/ucm_args.h"

#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "tools/ucm_tool.h"

static struct ucm_common common;
static uint64_t number;
static bool flag;

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNT(common),
	UCM_ARG_SPACE(common),
	UCM_ARG_JSON(common),
	{ "number", 'n', ucm_arg_number, &number },
	{ "flag", 0, NULL, &flag },
	{ 0 },
};

#define MOST 8

/* As main gets them; what is parsed leads into them. */
static char copies[MOST][160];

static int parse(const char *const *words, char **operands, int *num)
{
	char *argv[MOST + 1] = { 0 }, **at = argv;
	int argc, status;

	for (argc = 0; argc < MOST && words[argc]; argc++) {
		snprintf(copies[argc], sizeof(copies[argc]), "%s",
			 words[argc]);
		argv[argc] = copies[argc];
	}
	common = (struct ucm_common){ 0 };
	number = 0;
	flag = false;
	optind = 0; /* of glibc: from the start */
	ucm_tool_command = "test";
	status = ucm_args_parse(&argc, &at, args, "# help\n");
	*num = argc;
	for (int i = 0; status < 0 && i < argc; i++)
		operands[i] = at[i];
	return status;
}

UNIT_TEST(options_and_operands_may_be_mixed)
{
	static const char *const words[] = { "c", "a", "-jm", "/m", "--number=7",
					     "b", NULL };
	char *operands[MOST];
	int num;

	ck_assert_int_eq(parse(words, operands, &num), -1);
	ck_assert_int_eq(num, 2);
	ck_assert_str_eq(operands[0], "a");
	ck_assert_str_eq(operands[1], "b");
	ck_assert(common.json);
	ck_assert(!flag);
	ck_assert_str_eq(common.mount, "/m");
	ck_assert_uint_eq(number, 7);
}

UNIT_TEST(behind_two_dashes_come_operands)
{
	static const char *const words[] = { "c", "--flag", "--", "--flag",
					     NULL };
	char *operands[MOST];
	int num;

	ck_assert_int_eq(parse(words, operands, &num), -1);
	ck_assert_int_eq(num, 1);
	ck_assert(flag);
}

static const struct {
	const char *words[4];
	int status;
} ends[] = {
	{ { "c", "--help" }, 0 },
	{ { "c", "--bogus" }, UCM_EXIT_USAGE },
	{ { "c", "-x" }, UCM_EXIT_USAGE },
	{ { "c", "-jx" }, UCM_EXIT_USAGE },
	{ { "c", "-n" }, UCM_EXIT_USAGE },
	{ { "c", "--number" }, UCM_EXIT_USAGE },
	{ { "c", "--number=x" }, UCM_EXIT_USAGE },
	{ { "c", "-n", "-1" }, UCM_EXIT_USAGE },
	{ { "c", "--json=1" }, UCM_EXIT_USAGE },
	{ { "c", "--mount=" }, UCM_EXIT_USAGE },
	{ { "c", "-s", "" }, UCM_EXIT_USAGE },
	{ { "c", "-s", ".." }, UCM_EXIT_USAGE },
	{ { "c", "-s", "a/b" }, UCM_EXIT_USAGE },
	{ { "c", "-s", "a b" }, -1 },
};

UNIT_TEST(what_is_wrong_ends_with_2, .rows = NUM_ROWS(ends))
{
	char *operands[MOST];
	int num;

	ck_assert_int_eq(parse(ends[_i].words, operands, &num),
			 ends[_i].status);
}

UNIT_TEST(a_name_has_at_most_128_bytes)
{
	char name[130];
	const char *space;

	memset(name, 'n', sizeof(name));
	name[129] = '\0';
	ck_assert_int_ne(ucm_arg_space(name, &space), 0);
	name[128] = '\0';
	ck_assert_int_eq(ucm_arg_space(name, &space), 0);
}
