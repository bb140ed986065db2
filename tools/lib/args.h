/* SPDX-License-Identifier: Apache-2.0 */
/*
 * args.h - a subcommand in one table: options, --help, and what it runs.
 *
 * All that is known of an option stands in its row. Parsing and --help are made
 * from the rows; the completion for bash asks --help, and a test compares the
 * man page with it. What is wrong with a command line is said in one line that
 * names the option and the value, and ends with "try --help".
 */
#ifndef UCM_TOOLS_LIB_ARGS_H
#define UCM_TOOLS_LIB_ARGS_H

#include <stdbool.h>
#include <stdint.h>

/* The last row of a table is zero. */
struct ucm_arg {
	const char *name; /* without the "--" */
	char letter;      /* 0: none */
	/* What --help calls the value, such as "FILE"; NULL: the option is a
	 * flag, and to is a bool. Words that can be chosen are in lower case,
	 * with '|' between them. */
	const char *value;
	/* Sets what to points to: 0 or -errno. May cut value into pieces, which
	 * live as long as the process. */
	int (*parse)(const struct ucm_arg *arg, char *value);
	void *to;
	const char *help;
	uint64_t min, max; /* ucm_arg_number; min: ucm_arg_bytes, too */
	const struct ucm_arg *table; /* instead of all this: the rows there */
};

/* The rows of a table that several commands share. */
#define UCM_ARGS(rows) { .table = (rows) }

#define UCM_ARGS_ANY -1

struct ucm_common;

struct ucm_command {
	const char *name;
	/* Of several commands of one name, all but one are its forms (up to
	 * NULL), each chosen by a word such as "--where". */
	const char *word;
	const struct ucm_command *const *forms;
	const char *does;     /* in a few words, for ucm --help */
	const char *operands; /* for the usage line; a line for each form */
	const char *about;
	void (*print_more)(void); /* follows about in --help; or NULL */
	const struct ucm_arg *args;
	/* For the mount, if that is the one operand; most is ignored then. */
	struct ucm_common *common;
	const char *end; /* follows the options in --help; or NULL */
	int most;        /* operands; UCM_ARGS_ANY: any number */
	/* Gets the operands alone; returns the exit status. */
	int (*run)(int argc, char **argv);
};

/*
 * Reads options, in any place, and leaves the operands in *argv. Returns -1 to
 * go on, or the exit status: help was asked for (printed), or something is
 * wrong (reported).
 */
int ucm_args_parse(const struct ucm_command *command, int *argc, char ***argv);

/* No operands beyond so many: -1, or the exit status (reported). */
int ucm_args_limit(int argc, char **argv, int most);

/* The operand, if there is one, is the mount: -1, or the exit status. */
int ucm_args_take_mount(struct ucm_common *common, int argc, char **argv);

/* ---- values ---- */

/* const char *; not empty */
int ucm_arg_text(const struct ucm_arg *arg, char *value);
/* uint64_t, from min to max; max 0: any */
int ucm_arg_number(const struct ucm_arg *arg, char *value);
/* uint64_t, such as 64K; at least min */
int ucm_arg_bytes(const struct ucm_arg *arg, char *value);
/* unsigned or an enum: 0 for the first of the words, 1 for the next, ... */
int ucm_arg_choice(const struct ucm_arg *arg, char *value);
/* const char *: SOURCE, as the place "tiers=SOURCE" */
int ucm_arg_tiers(const struct ucm_arg *arg, char *value);
/* const char *, the name of a space */
int ucm_arg_space(const struct ucm_arg *arg, char *value);

/* ---- what most subcommands have ---- */

struct ucm_common {
	const char *mount; /* as ucm_client_connect() has it; NULL: the only one */
	const char *space; /* "" or NULL: the default one */
	bool json;
};

#define UCM_ARG_MOUNT(common)                                                 \
	{ "mount", 'm', "MOUNT", ucm_arg_text, &(common).mount,               \
	  .help = "the mount point, the daemon's socket or tiers=SOURCE; not "  \
		  "needed if there is only one mount" }
#define UCM_ARG_MOUNTS(common)                                                \
	{ "mount", 'm', "MOUNT", ucm_arg_text, &(common).mount,               \
	  .help = "the mount point, the daemon's socket or tiers=SOURCE "      \
		  "(default: all mounts, one after the other)" }
#define UCM_ARG_TIERS(common)                                                 \
	{ "tiers", 0, "SOURCE", ucm_arg_tiers, &(common).mount,               \
	  .help = "the directories of the tiers, written as in ucmfs(8): the " \
		  "daemon that has them, or a private one" }
#define UCM_ARG_SPACE(common)                                                 \
	{ "space", 's', "NAME", ucm_arg_space, &(common).space,               \
	  .help = "the space spaces/NAME (default: blocks/)" }
#define UCM_ARG_JSON(common)                                                  \
	{ "json", 'j', .to = &(common).json, .help = "print JSON instead" }

/* What those have that ask one mount about blocks of a space. */
#define UCM_ARGS_BLOCKS(common)                                               \
	UCM_ARG_MOUNT(common), UCM_ARG_TIERS(common), UCM_ARG_SPACE(common),  \
		UCM_ARG_JSON(common)

/* ---- the subcommands ---- */

extern const struct ucm_command ucm_debug_command;
extern const struct ucm_command ucm_doctor_command;
extern const struct ucm_command ucm_drain_command;
extern const struct ucm_command ucm_du_command;
extern const struct ucm_command ucm_evict_command;
extern const struct ucm_command ucm_exporter_command;
extern const struct ucm_command ucm_get_command;
extern const struct ucm_command ucm_hash_command;
extern const struct ucm_command ucm_lookup_command;
extern const struct ucm_command ucm_ls_command;
extern const struct ucm_command ucm_pin_command;
extern const struct ucm_command ucm_plan_command;
extern const struct ucm_command ucm_put_command;
extern const struct ucm_command ucm_quarantine_command;
extern const struct ucm_command ucm_quota_command;
extern const struct ucm_command ucm_replay_command;
extern const struct ucm_command ucm_repr_command;
extern const struct ucm_command ucm_scrub_command;
extern const struct ucm_command ucm_stat_command;
extern const struct ucm_command ucm_status_command;
extern const struct ucm_command ucm_sync_command;
extern const struct ucm_command ucm_top_command;
extern const struct ucm_command ucm_trace_command;
extern const struct ucm_command ucm_verify_command;
extern const struct ucm_command ucm_warm_command;
extern const struct ucm_command ucm_where_command;

#endif
