/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_args.c - the command line of a subcommand, from a table. */
#include <config.h>

#include "tools/ucm_args.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "common/parse.h"
#include "hashing/tree.h"
#include "tools/ucm_tool.h"

#define MOST 16
#define KEY 256 /* + number of the argument */

/* What getopt_long(3) wants to know. */
struct tables {
	struct option longs[MOST + 2];
	char shorts[2 * MOST + 2];
	unsigned num;
};

static void fill_tables(const struct ucm_arg *args, struct tables *out)
{
	char *at = out->shorts;
	unsigned i;

	*out = (struct tables){ 0 };
	*at++ = ':';
	for (i = 0; args[i].name && i < MOST; i++) {
		int has = args[i].parse ? required_argument : no_argument;

		out->longs[i] = (struct option){ args[i].name, has, NULL,
						 KEY + (int)i };
		if (!args[i].letter)
			continue;
		*at++ = args[i].letter;
		if (args[i].parse)
			*at++ = ':';
	}
	out->longs[i] = (struct option){ "help", no_argument, NULL, 'h' };
	out->num = i;
}

static unsigned number_of(const struct ucm_arg *args, int key)
{
	unsigned i = 0;

	if (key >= KEY)
		return (unsigned)(key - KEY);
	while (args[i].letter != key)
		i++;
	return i;
}

static int set(const struct ucm_arg *arg)
{
	if (!arg->parse) {
		*(bool *)arg->to = true;
		return 0;
	}
	if (!arg->parse(optarg, arg->to))
		return 0;
	return ucm_tool_complain("--%s '%s'; try --help", arg->name, optarg);
}

static int complain_of(int key, char **argv)
{
	/* of several letters in one argument, the one that is wrong */
	const char letter[3] = { '-', (char)optopt, '\0' };
	const char *what = optopt && optopt < KEY ? letter : argv[optind - 1];

	if (key == ':')
		return ucm_tool_complain("%s: no value; try --help", what);
	return ucm_tool_complain("unknown option %s; try --help", what);
}

int ucm_args_parse(int *argc, char ***argv, const struct ucm_arg *args,
		   const char *help)
{
	struct tables tables;
	int key;

	fill_tables(args, &tables);
	opterr = 0;
	while ((key = getopt_long(*argc, *argv, tables.shorts, tables.longs,
				  NULL)) != -1) {
		if (key == 'h') {
			fputs(help, stdout);
			return ucm_tool_flush();
		}
		if (key == ':' || key == '?') {
			complain_of(key, *argv);
			return UCM_EXIT_USAGE;
		}
		if (set(&args[number_of(args, key)]))
			return UCM_EXIT_USAGE;
	}
	*argc -= optind;
	*argv += optind;
	return -1;
}

int ucm_args_limit(int argc, char **argv, int most)
{
	if (argc <= most)
		return -1;
	return ucm_tool_fail(UCM_EXIT_USAGE, "too many arguments: %s; try --help",
			     argv[most]);
}

int ucm_arg_text(const char *value, void *to)
{
	*(const char **)to = value;
	return *value ? 0 : -EINVAL;
}

int ucm_arg_number(const char *value, void *to)
{
	return ucm_parse_u64(value, to);
}

/* As the mount has them; so a name leads nowhere else. */
int ucm_arg_space(const char *value, void *to)
{
	if (!ucm_tree_space_valid(value))
		return -EINVAL;
	*(const char **)to = value;
	return 0;
}
