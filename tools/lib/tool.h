/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool.h - what the subcommands of ucm(1) have in common.
 *
 * Exit status: 0; 1: it could not be done; 2: a wrong argument. Either failure
 * is reported in one line on standard error, "ucm COMMAND: what".
 */
#ifndef UCM_TOOLS_LIB_TOOL_H
#define UCM_TOOLS_LIB_TOOL_H

#include <stdbool.h>
#include <stddef.h>

#include <ucm/client.h>

#define UCM_EXIT_FAILED 1
#define UCM_EXIT_USAGE 2

/* The subcommand that runs, for messages; set by main. */
extern const char *ucm_tool_command;

/* One line on standard error; returns -EINVAL. */
int ucm_tool_complain(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

/* The same; returns status. */
int ucm_tool_fail(int status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* The process ends after what has been reported: what it holds is released with it. */
_Noreturn void ucm_tool_exit(int status);

/* A line on standard error, and that. */
_Noreturn void ucm_tool_die(int status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* The same for a wrong command line; "; try --help" follows. */
_Noreturn void ucm_tool_usage(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

/* Memory, zeroed; formatted text; an array with room for one more than num. Where
 * there is no memory the process ends (reported). */
void *ucm_tool_alloc(size_t num, size_t size);
char *ucm_tool_format(const char *format, ...)
	__attribute__((format(printf, 1, 2)));
void *ucm_tool_grow(void *array, size_t num, size_t *room, size_t size);

/* Standard output has taken everything? 0, or UCM_EXIT_FAILED (reported). */
int ucm_tool_flush(void);

/* ---- daemons (tool.c) ---- */

/* A place may be "tiers=SOURCE", by which libucm finds or starts a daemon. */
bool ucm_ask_is_tiers(const char *where);

/* Such a place, or the path of a socket? Then there are no files of a mount. */
bool ucm_ask_is_socket(const char *where);

/* where: as ucm_client_connect() has it. -errno, reported. */
int ucm_ask_connect(const char *where, struct ucm_client **out);

/* ---- mounts (mount.c) ---- */

/* Does an argument name a mount? It has a slash in it, or is "." or "..". */
int ucm_mount_is_named(const char *arg);

/* The mounts of ucmfs that there are; each mount point once. */
struct ucm_mount {
	char *point, *source;
};
struct ucm_mounts {
	struct ucm_mount *mounts;
	size_t num;
};

void ucm_mounts_list(struct ucm_mounts *out);
void ucm_mounts_fini(struct ucm_mounts *mounts);

/* The mount that is meant: arg, or if that is NULL, the only one that there is,
 * without which the process ends. To free. */
char *ucm_mount_find(const char *arg);

/* ---- files (tool.c) ---- */

/* All of a file, up to max bytes, and a NUL; to free. 0, or -errno
 * (not reported; -EFBIG if there is more). */
int ucm_tool_read(const char *path, size_t max, char **out, size_t *len_out);
int ucm_tool_read_fd(int fd, size_t max, char **out, size_t *len_out);

/* MOUNT/.ucmfs/NAME, or what a daemon without a mount has under that name (mount: its
 * socket): a descriptor, or all of it as above. */
int ucm_mount_open(const char *mount, const char *name, int flags);
int ucm_mount_read(const char *mount, const char *name, size_t max, char **out,
		   size_t *len_out);

/* One line that such a file could not be used; returns err. */
int ucm_mount_complain(const char *mount, const char *name, int err);

#endif
