/* SPDX-License-Identifier: Apache-2.0 */
/* ucm.c - ucm(1): picks the subcommand. */
#include <config.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/lib/args.h"
#include "tools/lib/tool.h"

static const char *const titles[] = { "Look", "Move", "Check", "Data" };
static const struct ucm_command *const commands[] = {
	NULL, /* the next title */
	&ucm_status_command,
	&ucm_ls_command,
	&ucm_stat_command,
	&ucm_du_command,
	&ucm_top_command,
	&ucm_trace_command,
	&ucm_plan_command,
	NULL,
	&ucm_pin_command,
	&ucm_warm_command,
	&ucm_evict_command,
	&ucm_drain_command,
	&ucm_quota_command,
	&ucm_sync_command,
	NULL,
	&ucm_verify_command,
	&ucm_scrub_command,
	&ucm_quarantine_command,
	&ucm_doctor_command,
	NULL,
	&ucm_put_command,
	&ucm_get_command,
	&ucm_hash_command,
#ifdef ENABLE_SPARSE
	&ucm_repr_command,
#endif
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* Names of earlier versions, which run as before until the next one. */
static const struct {
	const char *verb, *word; /* word: NULL, or what follows */
	const char *now, *now_word;
} old_names[] = {
	{ "checkpoint", NULL, "sync", "checkpoint" },
	{ "debug", NULL, "trace", "debug" },
	{ "exporter", NULL, "status", "--serve" },
	{ "flush", NULL, "sync", "flush" },
	{ "lookup", NULL, "stat", "--present" },
	{ "quarantine", "inspect", "quarantine", "list" },
	{ "replay", NULL, "trace", "replay" },
	{ "rescan", NULL, "sync", "rescan" },
	{ "touch", NULL, "warm", "--touch" },
	{ "unpin", NULL, "pin", "--off" },
	{ "where", NULL, "stat", "--where" },
};

/* As git: another name is that of a program ucm-NAME in PATH. */
static int run_program(const char *name, char **argv)
{
	char program[NAME_MAX];

	if (!strchr(name, '/') && snprintf(program, sizeof(program), "ucm-%s", name) <
					  (int)sizeof(program)) {
		argv[0] = program;
		execvp(program, argv);
	}
	if (!strcmp(name, "bench"))
		fputs("ucm bench: no ucm-bench in PATH; it comes with pip install "
		      "'ucmfs[bench]'\n", stderr);
	else
		fprintf(stderr, "ucm: no command '%s'; try --help\n", name);
	return UCM_EXIT_USAGE;
}

static int help(void)
{
	size_t title = 0;

	puts("usage: ucm COMMAND [options] ...\n"
	     "       ucm COMMAND --help\n"
	     "       ucm --version\n"
	     "\n"
	     "Look at, move and check KV-cache blocks; see ucm(1).");
	for (size_t i = 0; i < LENGTH(commands); i++) {
		if (commands[i])
			printf("  %-11s %s\n", commands[i]->name,
			       commands[i]->does);
		else
			printf("\n%s:\n", titles[title++]);
	}
	puts("\nAny other COMMAND runs the program ucm-COMMAND of PATH; 'ucm bench', of the\n"
	     "Python package, measures a server.");
	return 0;
}

/* The form that the command line names, without its word; or the command. */
static const struct ucm_command *take_form(const struct ucm_command *command,
					   int *argc, char **argv)
{
	const struct ucm_command *const *form;

	for (int i = 1; command->forms && i < *argc; i++) {
		for (form = command->forms; *form; form++)
			if (!strcmp(argv[i], (*form)->word))
				break;
		if (!*form)
			continue;
		memmove(&argv[i], &argv[i + 1],
			(size_t)(*argc - i) * sizeof(*argv));
		--*argc;
		return *form;
	}
	return command;
}

static int run(const char *name, int argc, char **argv)
{
	const struct ucm_command *command = NULL;
	int status;

	for (size_t i = 0; i < LENGTH(commands); i++) {
		if (commands[i] && !strcmp(name, commands[i]->name))
			command = commands[i];
	}
	if (!command)
		return run_program(name, argv);
	ucm_tool_command = name;
	command = take_form(command, &argc, argv);
	status = ucm_args_parse(command, &argc, &argv);
	return status < 0 ? command->run(argc, argv) : status;
}

/* argv[0] makes room for the word that an old name does not have. */
static int run_named(int argc, char **argv)
{
	if (!strcmp(argv[1], "sparse")) {
		fputs("ucm sparse: 'sparse repr' is 'ucm repr'; 'sparse recall' "
		      "is bench/recall of the source tree\n", stderr);
		return UCM_EXIT_USAGE;
	}
	for (size_t i = 0; i < LENGTH(old_names); i++) {
		const char *word = old_names[i].word;

		if (strcmp(argv[1], old_names[i].verb) ||
		    (word && (argc < 3 || strcmp(argv[2], word))))
			continue;
		fprintf(stderr, "ucm %s%s%s: use 'ucm %s %s'\n", argv[1],
			word ? " " : "", word ?: "", old_names[i].now,
			old_names[i].now_word);
		argv[1 + !!word] = (char *)old_names[i].now_word;
		return run(old_names[i].now, argc - !!word, argv + !!word);
	}
	return run(argv[1], argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fputs("ucm: no command; try --help\n", stderr);
		return UCM_EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--help"))
		return help();
	if (!strcmp(argv[1], "--version")) {
		puts("ucm " PACKAGE_VERSION);
		return 0;
	}
	return run_named(argc, argv);
}
