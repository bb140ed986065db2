/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_tool.h - what the subcommands of ucm(1) have in common.
 *
 * Exit status: 0; 1: it could not be done; 2: a wrong argument. Either failure
 * is told in one line on standard error, "ucm COMMAND: what".
 */
#ifndef UCM_TOOLS_TOOL_H
#define UCM_TOOLS_TOOL_H

#define UCM_EXIT_FAILED 1
#define UCM_EXIT_USAGE 2

/* The subcommand that runs, for messages; set by main. */
extern const char *ucm_tool_command;

/* One line on standard error; returns -EINVAL. */
int ucm_tool_complain(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

/* argv[0] is the subcommand's name. */
int ucm_get_main(int argc, char **argv);
int ucm_hash_main(int argc, char **argv);
int ucm_put_main(int argc, char **argv);
int ucm_verify_main(int argc, char **argv);

#endif
