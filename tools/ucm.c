/* SPDX-License-Identifier: Apache-2.0 */
/* ucm.c - ucm(1): picks the subcommand. */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "tools/ucm_tool.h"

static const struct command {
	const char *name, *does;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "debug", "switch the debugging of a mount", ucm_debug_main },
	{ "doctor", "check machine, directories and mounts", ucm_doctor_main },
	{ "du", "blocks and bytes by space and tier", ucm_du_main },
	{ "evict", "remove blocks that are not pinned", ucm_evict_main },
	{ "exporter", "serve a mount's metrics over HTTP", ucm_exporter_main },
	{ "get", "blocks of a store to a file of pages", ucm_get_main },
	{ "hash", "print the ids of the blocks of a request", ucm_hash_main },
	{ "lookup", "which of these blocks are there", ucm_lookup_main },
	{ "ls", "list the blocks of a space", ucm_ls_main },
	{ "pin", "keep blocks from being evicted", ucm_pin_main },
	{ "put", "pages of a file to blocks of a store", ucm_put_main },
	{ "stat", "all about one block", ucm_stat_main },
	{ "status", "how a mount is", ucm_status_main },
	{ "top", "what a mount does, as it happens", ucm_top_main },
	{ "touch", "count a use of blocks", ucm_touch_main },
	{ "trace", "decode an access trace", ucm_trace_main },
	{ "unpin", "let blocks be evicted again", ucm_unpin_main },
	{ "verify", "check blocks, and say what is damaged", ucm_verify_main },
	{ "warm", "fetch blocks to a faster tier", ucm_warm_main },
	{ "where", "which tier and file has a block", ucm_where_main },
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static int help(void)
{
	puts("usage: ucm COMMAND [options] ...\n"
	     "       ucm COMMAND --help\n"
	     "       ucm --version\n");
	for (size_t i = 0; i < LENGTH(commands); i++)
		printf("  %-10s %s\n", commands[i].name, commands[i].does);
	return 0;
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
	for (size_t i = 0; i < LENGTH(commands); i++) {
		if (strcmp(argv[1], commands[i].name) != 0)
			continue;
		ucm_tool_command = commands[i].name;
		return commands[i].run(argc - 1, argv + 1);
	}
	fprintf(stderr, "ucm: no command '%s'; try --help\n", argv[1]);
	return UCM_EXIT_USAGE;
}
