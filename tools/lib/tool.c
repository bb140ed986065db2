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
#include <unistd.h>

#include <ucm/client.h>

#include "common/cleanup.h"
#include "hashing/tree.h"
#include "tools/lib/ask.h"

const char *ucm_tool_command = "";

__attribute__((format(printf, 1, 0)))
static void tell(const char *format, va_list args)
{
	fprintf(stderr, "ucm %s: ", ucm_tool_command);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
}

int ucm_tool_complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(format, args);
	va_end(args);
	return -EINVAL;
}

int ucm_tool_fail(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(format, args);
	va_end(args);
	return status;
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
	char *text = malloc(room);
	ssize_t got = -1;

	errno = ENOMEM;
	while (text && (got = read(fd, text + len, room - len - 1)) != 0) {
		char *more;

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		len += (size_t)got;
		if (len > max) {
			errno = EFBIG;
			got = -1;
			break;
		}
		if (room - len > 1)
			continue;
		more = realloc(text, room *= 2);
		if (!more) {
			got = -1;
			break;
		}
		text = more;
	}
	if (!text || got < 0) {
		int err = -errno;

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
	_cleanup_free_ char *path = NULL;
	int fd;

	if (ucm_ask_is_socket(mount))
		return open_text(mount, name);
	if (asprintf(&path, "%s/" UCM_TREE_OWN "/%s", mount, name) < 0) {
		path = NULL;
		return -ENOMEM;
	}
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
	ucm_tool_complain("%s/" UCM_TREE_OWN "/%s: %s", mount, name,
			  strerror(-err));
	return err;
}
