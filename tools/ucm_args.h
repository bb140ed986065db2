/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_args.h - the command line of a subcommand, from a table.
 *
 * What is wrong with it is told in one line that ends with "try --help".
 */
#ifndef UCM_TOOLS_ARGS_H
#define UCM_TOOLS_ARGS_H

#include <stdbool.h>

/* The last one has no name. */
struct ucm_arg {
	const char *name; /* without the "--" */
	char letter;      /* 0: none */
	/* NULL: a flag, and to is a bool. Else 0 or -errno; value lives as long
	 * as the arguments. */
	int (*parse)(const char *value, void *to);
	void *to;
};

/*
 * Reads options, in any place, and leaves the operands in *argv. Returns -1 to
 * go on, or the exit status: help was asked for (printed), or something is
 * wrong (told).
 */
int ucm_args_parse(int *argc, char ***argv, const struct ucm_arg *args,
		   const char *help);

/* No operands beyond so many: -1, or the exit status (told). */
int ucm_args_limit(int argc, char **argv, int most);

/* ---- values ---- */

int ucm_arg_text(const char *value, void *to);   /* const char * */
int ucm_arg_number(const char *value, void *to); /* uint64_t */
int ucm_arg_space(const char *value, void *to);  /* const char *, a name */

/* ---- what most subcommands have ---- */

struct ucm_common {
	const char *mount; /* NULL: the only one */
	const char *space; /* "" or NULL: the default one */
	bool json;
};

#define UCM_ARG_MOUNT(common) { "mount", 'm', ucm_arg_text, &(common).mount }
#define UCM_ARG_SPACE(common) { "space", 's', ucm_arg_space, &(common).space }
#define UCM_ARG_JSON(common) { "json", 'j', NULL, &(common).json }

#define UCM_HELP_MOUNT                                                        \
	"  -m, --mount MOUNT   the mount point; not needed if there is one only\n"
#define UCM_HELP_MOUNTS                                                       \
	"  -m, --mount MOUNT   the mount point; all that there are, if left out\n"
#define UCM_HELP_SPACE "  -s, --space NAME    a space (the default one: blocks/)\n"
#define UCM_HELP_JSON "  -j, --json          a JSON object\n"
#define UCM_HELP_HELP "      --help\n"

#endif
