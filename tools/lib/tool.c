/* SPDX-License-Identifier: Apache-2.0 */
/* tool.c - what the subcommands have in common; see tool.h. */
#include <config.h>

#include "tools/lib/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "hashing/tree.h"

const char *ucm_tool_command = "";

__attribute__((format(printf, 1, 0)))
static void tell(const char *format, va_list args, const char *end)
{
	fprintf(stderr, "ucm %s: ", ucm_tool_command);
	vfprintf(stderr, format, args);
	fputs(end, stderr);
}

int ucm_tool_complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(format, args, "\n");
	va_end(args);
	return -EINVAL;
}

int ucm_tool_fail(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(format, args, "\n");
	va_end(args);
	return status;
}

/* The leak checker is asked to pass over what a process that dies still holds. */
static bool dies;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return dies;
}

void ucm_tool_exit(int status)
{
	dies = true;
	exit(status);
}

void ucm_tool_die(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(format, args, "\n");
	ucm_tool_exit(status);
}

void ucm_tool_usage(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(format, args, "; try --help\n");
	ucm_tool_exit(UCM_EXIT_USAGE);
}

void *ucm_tool_alloc(size_t num, size_t size)
{
	void *memory = calloc(num ? num : 1, size);

	if (!memory)
		ucm_tool_die(UCM_EXIT_FAILED, "no memory");
	return memory;
}

char *ucm_tool_format(const char *format, ...)
{
	va_list args;
	char *text;
	int len;

	va_start(args, format);
	len = vasprintf(&text, format, args);
	va_end(args);
	if (len < 0)
		ucm_tool_die(UCM_EXIT_FAILED, "no memory");
	return text;
}

void *ucm_tool_grow(void *array, size_t num, size_t *room, size_t size)
{
	if (num < *room)
		return array;
	*room = *room ? 2 * *room : 64;
	array = reallocarray(array, *room, size);
	if (!array)
		ucm_tool_die(UCM_EXIT_FAILED, "no memory");
	return array;
}

int ucm_tool_flush(void)
{
	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	return ucm_tool_fail(UCM_EXIT_FAILED, "standard output: %s",
			     strerror(errno));
}

int ucm_tool_read_fd(int fd, size_t max, char **out, size_t *len_out)
{
	size_t room = 65536, len = 0;
	char *text = ucm_tool_alloc(room, 1);
	ssize_t got;
	int err = 0;

	while (!err && (got = read(fd, text + len, room - len - 1)) != 0) {
		if (got > 0)
			len += (size_t)got;
		else if (errno != EINTR)
			err = -errno;
		if (len > max)
			err = -EFBIG;
		text = ucm_tool_grow(text, len + 1, &room, 1);
	}
	if (err) {
		free(text);
		return err;
	}
	text[len] = '\0';
	*out = text;
	*len_out = len;
	return 0;
}

int ucm_tool_read(const char *path, size_t max, char **out, size_t *len_out)
{
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? -errno : ucm_tool_read_fd(fd, max, out, len_out);
}

/* ---- daemons ---- */

bool ucm_ask_is_tiers(const char *where)
{
	return !strncmp(where, UCM_CLIENT_TIERS, strlen(UCM_CLIENT_TIERS));
}

bool ucm_ask_is_socket(const char *where)
{
	struct stat st;

	return ucm_ask_is_tiers(where) ||
	       (!stat(where, &st) && S_ISSOCK(st.st_mode));
}

int ucm_ask_connect(const char *where, struct ucm_client **out)
{
	int err = ucm_client_connect(where, out);

	if (err == -ENOTCONN && !ucm_ask_is_tiers(where))
		ucm_tool_complain("%s: its daemon is gone; umount -l %s", where,
				  where);
	else if (err)
		ucm_tool_complain(
			"%s: %s", where,
			/* more of it may be in the log */
			ucm_ask_is_tiers(where) ? strerror(-err)
			: err == -ENOENT	? "not a mount of ucmfs, or one "
						  "whose socket is not in this "
						  "namespace"
			: err == -ECONNREFUSED	? "its daemon is gone"
						: strerror(-err));
	return err;
}

/* A daemon without a mount gives its texts by the socket. */
static int open_text(const char *path, const char *name)
{
	static const char *const texts[] = {
		[UCM_TEXT_STATS] = "stats.json",
		[UCM_TEXT_CONFIG] = "config.yaml",
		[UCM_TEXT_METRICS] = "metrics",
	};
	struct ucm_serve_request head = { .verb = UCM_SERVE_TEXT };
	struct ucm_client *client;
	int fd = -1, err;

	while (head.argument < 3 && strcmp(texts[head.argument], name))
		head.argument++;
	if (head.argument == 3)
		return -ENOENT;
	err = ucm_client_connect(path, &client);
	if (err)
		return err;
	err = ucm_client_call(client, &head, NULL, 0, NULL, 0, &fd);
	ucm_client_close(client);
	return err == -EPERM ? -EACCES : err ? err : fd;
}

int ucm_mount_open(const char *mount, const char *name, int flags)
{
	_cleanup_free_ char *path =
		ucm_tool_format("%s/" UCM_TREE_OWN "/%s", mount, name);
	int fd;

	if (ucm_ask_is_socket(mount))
		return open_text(mount, name);
	fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int ucm_mount_read(const char *mount, const char *name, size_t max, char **out,
		   size_t *len_out)
{
	_cleanup_fd_ int fd = ucm_mount_open(mount, name, O_RDONLY);

	return fd < 0 ? fd : ucm_tool_read_fd(fd, max, out, len_out);
}

int ucm_mount_complain(const char *mount, const char *name, int err)
{
	return ucm_tool_fail(err, "%s/" UCM_TREE_OWN "/%s: %s", mount, name,
			     strerror(-err));
}
