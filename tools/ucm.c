/* SPDX-License-Identifier: Apache-2.0 */
/* ucm.c - ucm(1): picks the subcommand. */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "tools/ucm_args.h"
#include "tools/ucm_tool.h"

static const struct ucm_command *const commands[] = {
	&ucm_checkpoint_command,
	&ucm_debug_command,
	&ucm_doctor_command,
	&ucm_drain_command,
	&ucm_du_command,
	&ucm_evict_command,
	&ucm_exporter_command,
	&ucm_flush_command,
	&ucm_get_command,
	&ucm_hash_command,
	&ucm_lookup_command,
	&ucm_ls_command,
	&ucm_pin_command,
	&ucm_put_command,
	&ucm_quarantine_command,
	&ucm_quota_command,
	&ucm_replay_command,
	&ucm_repr_command,
	&ucm_rescan_command,
	&ucm_scrub_command,
	&ucm_sparse_command,
	&ucm_stat_command,
	&ucm_status_command,
	&ucm_top_command,
	&ucm_touch_command,
	&ucm_trace_command,
	&ucm_unpin_command,
	&ucm_verify_command,
	&ucm_warm_command,
	&ucm_where_command,
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static int help(void)
{
	puts("usage: ucm COMMAND [options] ...\n"
	     "       ucm COMMAND --help\n"
	     "       ucm --version\n"
	     "\n"
	     "Look at, move and check KV-cache blocks; see ucm(1).\n");
	for (size_t i = 0; i < LENGTH(commands); i++)
		printf("  %-11s %s\n", commands[i]->name, commands[i]->does);
	return 0;
}

static int run(const struct ucm_command *command, int argc, char **argv)
{
	int status;

	ucm_tool_command = command->name;
	status = ucm_args_parse(command, &argc, &argv);
	return status < 0 ? command->run(argc, argv) : status;
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
		if (!strcmp(argv[1], commands[i]->name))
			return run(commands[i], argc - 1, argv + 1);
	}
	fprintf(stderr, "ucm: no command '%s'; try --help\n", argv[1]);
	return UCM_EXIT_USAGE;
}
