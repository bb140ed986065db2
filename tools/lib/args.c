/* SPDX-License-Identifier: Apache-2.0 */
/* args.c - command line and --help of a subcommand, from a table. */
#include <config.h>

#include "tools/lib/args.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/parse.h"
#include "hashing/tree.h"
#include "tools/lib/tool.h"

#define MOST 32
#define KEY 256 /* + number of the row */

/* The rows, and what getopt_long(3) wants to know of them. */
struct tables {
	const struct ucm_arg *rows[MOST];
	unsigned num;
	struct option longs[MOST + 1];
	char shorts[2 * MOST + 2];
};

static const struct ucm_arg help_row[] = {
	{ "help", .help = "print this text" },
	{ 0 },
};

static void gather_rows(const struct ucm_arg *args, struct tables *out)
{
	for (; args->name || args->table; args++) {
		if (args->table) {
			gather_rows(args->table, out);
			continue;
		}
		assert(out->num < MOST);
		out->rows[out->num++] = args;
	}
}

static void fill_tables(const struct ucm_arg *args, struct tables *out)
{
	char *at = out->shorts;

	*out = (struct tables){ 0 };
	gather_rows(args, out);
	gather_rows(help_row, out);
	*at++ = ':';
	for (unsigned i = 0; i < out->num; i++) {
		const struct ucm_arg *arg = out->rows[i];
		int has = arg->value ? required_argument : no_argument;

		out->longs[i] = (struct option){ arg->name, has, NULL,
						 KEY + (int)i };
		if (!arg->letter)
			continue;
		*at++ = arg->letter;
		if (arg->value)
			*at++ = ':';
	}
}

static const struct ucm_arg *find_row(const struct tables *tables, int key)
{
	unsigned i = 0;

	if (key >= KEY)
		return tables->rows[key - KEY];
	while (tables->rows[i]->letter != key)
		i++;
	return tables->rows[i];
}

/* ---- --help ---- */

#define COLUMN 22 /* where the text of an option begins */
#define WIDTH 79

/* Lines of at most WIDTH columns; all but the first are indented. */
static void print_text(const char *text, int indent)
{
	for (int blanks = 0; *text; blanks = indent) {
		int room = WIDTH - indent;
		int len = (int)strcspn(text, "\n");

		if (len > room) {
			for (len = room; text[len] != ' '; len--)
				assert(len);
		}
		printf("%*s%.*s\n", blanks, "", len, text);
		text += len + (text[len] != '\0');
	}
}

static void print_row(const struct ucm_arg *arg)
{
	char letter[] = "    ";
	int len;

	if (arg->letter)
		snprintf(letter, sizeof(letter), "-%c, ", arg->letter);
	len = printf("  %s--%s%s%s", letter, arg->name, arg->value ? " " : "",
		     arg->value ? arg->value : "");
	if (len > COLUMN - 2) {
		putchar('\n');
		len = 0;
	}
	printf("%*s", COLUMN - len, "");
	print_text(arg->help, COLUMN);
}

static void print_usage(const struct ucm_command *command, const char *lead)
{
	const char *form = command->operands;

	do {
		int len = (int)strcspn(form, "\n");

		printf("%-6s ucm %s [options]%s%s%s%.*s\n", lead, command->name,
		       command->word ? " " : "", command->word ?: "",
		       len ? " " : "", len, form);
		form += len + (form[len] != '\0');
		lead = "";
	} while (*form);
	for (unsigned i = 0; command->forms && command->forms[i]; i++)
		print_usage(command->forms[i], "");
}

/* The options that choose a form; with each come other options. */
static void print_forms(const struct ucm_command *command)
{
	for (unsigned i = 0; command->forms[i]; i++) {
		const struct ucm_arg row = { command->forms[i]->word + 2,
					     .help = command->forms[i]->does };

		if (*command->forms[i]->word == '-')
			print_row(&row);
	}
	printf("\nOptions of each form: ucm %s %s --help\n", command->name,
	       command->forms[0]->word);
}

static int print_help(const struct ucm_command *command,
		      const struct tables *tables)
{
	print_usage(command, "usage:");
	putchar('\n');
	print_text(command->about, 0);
	if (command->print_more)
		command->print_more();
	putchar('\n');
	for (unsigned i = 0; i < tables->num; i++)
		print_row(tables->rows[i]);
	if (command->forms)
		print_forms(command);
	if (command->end) {
		putchar('\n');
		print_text(command->end, 0);
	}
	return ucm_tool_flush();
}

/* ---- parsing ---- */

static int complain_of_value(const struct ucm_arg *arg, const char *given)
{
	if (arg->parse == ucm_arg_number && arg->max)
		return ucm_tool_complain("--%s '%s': must be a number from "
					 "%" PRIu64 " to %" PRIu64
					 "; try --help", arg->name, given,
					 arg->min, arg->max);
	if (strchr(arg->value, '|') || islower((unsigned char)*arg->value))
		return ucm_tool_complain("--%s '%s': must be %s; try --help",
					 arg->name, given, arg->value);
	return ucm_tool_complain("--%s '%s': not a valid %s; try --help",
				 arg->name, given, arg->value);
}

static int set_row(const struct ucm_arg *arg)
{
	char *given;

	if (!arg->value) {
		*(bool *)arg->to = true;
		return 0;
	}
	given = strdupa(optarg);
	return arg->parse(arg, optarg) ? complain_of_value(arg, given) : 0;
}

static int complain_of_option(int key, char **argv)
{
	/* of several letters in one argument, the one that is wrong */
	const char letter[3] = { '-', (char)optopt, '\0' };
	const char *what = optopt && optopt < KEY ? letter : argv[optind - 1];

	if (key == ':')
		return ucm_tool_complain("%s: no value; try --help", what);
	if (optopt >= KEY)
		return ucm_tool_complain("%s: takes no value; try --help",
					 what);
	return ucm_tool_complain("unknown option %s; try --help", what);
}

int ucm_args_parse(const struct ucm_command *command, int *argc, char ***argv)
{
	struct tables tables;
	int key;

	fill_tables(command->args, &tables);
	opterr = 0;
	while ((key = getopt_long(*argc, *argv, tables.shorts, tables.longs,
				  NULL)) != -1) {
		const struct ucm_arg *arg;

		if (key == ':' || key == '?') {
			complain_of_option(key, *argv);
			return UCM_EXIT_USAGE;
		}
		arg = find_row(&tables, key);
		if (arg == help_row)
			return print_help(command, &tables);
		if (set_row(arg))
			return UCM_EXIT_USAGE;
	}
	*argc -= optind;
	*argv += optind;
	if (command->common)
		return ucm_args_take_mount(command->common, *argc, *argv);
	return ucm_args_limit(*argc, *argv, command->most);
}

int ucm_args_limit(int argc, char **argv, int most)
{
	if (most == UCM_ARGS_ANY || argc <= most)
		return -1;
	return ucm_tool_fail(UCM_EXIT_USAGE,
			     "too many arguments: %s; try --help", argv[most]);
}

int ucm_args_take_mount(struct ucm_common *common, int argc, char **argv)
{
	if (argc == 1 && common->mount)
		return ucm_tool_fail(UCM_EXIT_USAGE,
				     "%s and --mount or --tiers; try --help",
				     argv[0]);
	if (argc == 1)
		common->mount = argv[0];
	return ucm_args_limit(argc, argv, 1);
}

/* ---- values ---- */

int ucm_arg_text(const struct ucm_arg *arg, char *value)
{
	*(const char **)arg->to = value;
	return *value ? 0 : -EINVAL;
}

int ucm_arg_number(const struct ucm_arg *arg, char *value)
{
	return ucm_parse_range(value, arg->min,
			       arg->max ? arg->max : UINT64_MAX, arg->to);
}

int ucm_arg_bytes(const struct ucm_arg *arg, char *value)
{
	uint64_t *to = arg->to;
	int err = ucm_parse_bytes(value, to);

	return err || *to >= arg->min ? err : -EINVAL;
}

int ucm_arg_choice(const struct ucm_arg *arg, char *value)
{
	const char *word = arg->value;

	for (unsigned number = 0; ; number++) {
		size_t len = strcspn(word, "|");

		if (len == strlen(value) && !strncmp(word, value, len)) {
			*(unsigned *)arg->to = number;
			return 0;
		}
		if (!word[len])
			return -EINVAL;
		word += len + 1;
	}
}

int ucm_arg_tiers(const struct ucm_arg *arg, char *value)
{
	char *place;

	if (!*value || asprintf(&place, UCM_CLIENT_TIERS "%s", value) < 0)
		return -EINVAL;
	*(const char **)arg->to = place;
	return 0;
}

/* As the mount has them; so a name leads nowhere else. */
int ucm_arg_space(const struct ucm_arg *arg, char *value)
{
	if (!ucm_tree_space_valid(value))
		return -EINVAL;
	*(const char **)arg->to = value;
	return 0;
}
