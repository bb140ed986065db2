/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the command line: SOURCE, MOUNTPOINT, flags and -o options.
 *
 * One table has every option and every setting of ucmfs.conf(5). It feeds the
 * parser of both, --help, and the test that compares the man pages with it.
 */
#ifndef UCM_OPTIONS_H
#define UCM_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

#include "common/log.h"
#include "fs/config/config.h"

enum ucm_switch {
	UCM_AUTO, /* where it can be had */
	UCM_ON,   /* and say so if it cannot */
	UCM_OFF,
};

enum ucm_log_to {
	UCM_LOG_TO_DEFAULT, /* stderr in the foreground, else syslog */
	UCM_LOG_TO_STDERR,
	UCM_LOG_TO_SYSLOG,
	UCM_LOG_TO_FILE,
};

#define UCM_LEFT_OUT UINT32_MAX

struct ucm_options {
	const char *source;
	const char *mountpoint; /* NULL: it serves the socket alone */
	char *socket; /* absolute; NULL: in the user's folder */
	bool ends_with_peers; /* it ends with its last peer */
	bool foreground;
	bool debug;
	bool show_help;
	bool show_version;
	struct ucm_config config; /* of the store */
	enum ucm_switch passthrough;
	enum ucm_switch io_uring;
	unsigned threads;
	unsigned entry_timeout_s;
	int ready_fd; /* -1: none */
	unsigned uid, gid; /* or UCM_LEFT_OUT */
	enum ucm_log_to log;
	char *log_file; /* absolute, if it is logged there */
	enum ucm_log_level log_level;
	char *trace; /* file, NULL: none */
	char *files; /* directory that has files/; NULL: the first that may */
	uint64_t trace_size;
	uint64_t budget;   /* of the node's loaders, bytes a second; 0: any */
	uint64_t inflight; /* bytes; 0: any */
	bool allow_other;
	char *pass; /* for libfuse and the kernel, ",a,b=c" */
};

/* Where it serves, for people and as a name of its memory: the options'. */
const char *ucm_options_place(const struct ucm_options *options);

void ucm_options_init(struct ucm_options *options);
void ucm_options_fini(struct ucm_options *options);

/* 0, or -errno with the cause in error. Keeps pointers into argv. */
int ucm_options_parse(struct ucm_options *options, int argc, char **argv,
		      struct ucm_error *error);

void ucm_options_help(FILE *out);

/* Is it one of those that are passed on to libfuse and the kernel? */
bool ucm_options_passed(const struct ucm_options *options, const char *name);

/* The settings in force, as a configuration file. */
void ucm_options_print(const struct ucm_options *options, FILE *out);

#endif
