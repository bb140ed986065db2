/* SPDX-License-Identifier: Apache-2.0 */
/* test_args.c - command lines of subcommands. */
#include <config.h>

#include "tools/lib/args.h"

#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/unit.h"
#include "tools/lib/tool.h"

static struct ucm_common common;
static uint64_t number;
static bool flag;
static enum { RED, GREEN, BLUE } colour;

static const struct ucm_arg shared[] = {
	{ "number", 'n', "N", ucm_arg_number, &number, .help = "a number",
	  .max = 10 },
	{ "colour", 0, "red|green|blue", ucm_arg_choice, &colour,
	  .help = "a text that does not fit into one line, so that it has to "
		  "be wrapped" },
	{ 0 },
};
static const struct ucm_arg args[] = {
	UCM_ARG_MOUNT(common),
	UCM_ARG_SPACE(common),
	UCM_ARG_JSON(common),
	UCM_ARGS(shared),
	{ "flag", .to = &flag, .help = "a flag" },
	{ 0 },
};

static const struct ucm_command command = {
	.name = "test",
	.operands = "A B\nC",
	.about = "About it.",
	.args = args,
	.end = "The end.",
	.most = 2,
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
	colour = RED;
	optind = 0; /* of glibc: from the start */
	ucm_tool_command = "test";
	status = ucm_args_parse(&command, &argc, &at);
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
	const char *words[5];
	int status;
} ends[] = {
	{ { "c", "--bogus" }, UCM_EXIT_USAGE },
	{ { "c", "-x" }, UCM_EXIT_USAGE },
	{ { "c", "-jx" }, UCM_EXIT_USAGE },
	{ { "c", "-n" }, UCM_EXIT_USAGE },
	{ { "c", "--number" }, UCM_EXIT_USAGE },
	{ { "c", "--number=x" }, UCM_EXIT_USAGE },
	{ { "c", "-n", "-1" }, UCM_EXIT_USAGE },
	{ { "c", "-n", "11" }, UCM_EXIT_USAGE },
	{ { "c", "-n", "10" }, -1 },
	{ { "c", "--colour", "Red" }, UCM_EXIT_USAGE },
	{ { "c", "--colour", "gree" }, UCM_EXIT_USAGE },
	{ { "c", "--colour", "" }, UCM_EXIT_USAGE },
	{ { "c", "--json=1" }, UCM_EXIT_USAGE },
	{ { "c", "a", "b" }, -1 },
	{ { "c", "a", "b", "c" }, UCM_EXIT_USAGE },
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

UNIT_TEST(a_choice_is_the_number_of_its_word, .rows = 3)
{
	static const char *const words[][4] = {
		{ "c", "--colour", "red" },
		{ "c", "--colour", "green" },
		{ "c", "--colour", "blue" },
	};
	char *operands[MOST];
	int num;

	ck_assert_int_eq(parse(words[_i], operands, &num), -1);
	ck_assert_int_eq((int)colour, _i);
}

static const char help[] =
	"usage: ucm test [options] A B\n"
	"       ucm test [options] C\n"
	"\n"
	"About it.\n"
	"\n"
	"  -m, --mount MOUNT   the mount point, the daemon's socket or tiers=SOURCE; not\n"
	"                      needed if there is only one mount\n"
	"  -s, --space NAME    the space spaces/NAME (default: blocks/)\n"
	"  -j, --json          print JSON instead\n"
	"  -n, --number N      a number\n"
	"      --colour red|green|blue\n"
	"                      a text that does not fit into one line, so that it has to\n"
	"                      be wrapped\n"
	"      --flag          a flag\n"
	"      --help          print this text\n"
	"\n"
	"The end.\n";

UNIT_TEST(help_is_made_of_the_rows)
{
	static const char *const words[] = { "c", "--help", NULL };
	char *operands[MOST], got[2048] = "";
	int num, status, was = dup(1);
	FILE *file = tmpfile();

	ck_assert(file && was >= 0);
	fflush(stdout);
	dup2(fileno(file), 1);
	status = parse(words, operands, &num);
	dup2(was, 1);
	close(was);
	rewind(file);
	ck_assert_uint_gt(fread(got, 1, sizeof(got) - 1, file), 0);
	fclose(file);
	ck_assert_int_eq(status, 0);
	ck_assert_str_eq(got, help);
}

UNIT_TEST(a_name_has_at_most_128_bytes)
{
	const char *space;
	const struct ucm_arg arg = { .to = &space };
	char name[130];

	memset(name, 'n', sizeof(name));
	name[129] = '\0';
	ck_assert_int_ne(ucm_arg_space(&arg, name), 0);
	name[128] = '\0';
	ck_assert_int_eq(ucm_arg_space(&arg, name), 0);
}
