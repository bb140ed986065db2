/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_exporter.c - ucm exporter: a mount's metrics for Prometheus over HTTP.
 *
 * The mount is opened by its path for every question, so that it may come and
 * go.
 */
#include <config.h>

#include "tools/ucm_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "hashing/tree.h"
#include "tools/ucm_http.h"

#define DEFAULT_LISTEN "127.0.0.1:9741"

static const char help_text[] =
	"usage: ucm exporter [--listen ADDRESS:PORT] [MOUNT]\n"
	"\n"
	"Serve MOUNT/.ucmfs/metrics at /metrics, for Prometheus, until it is told\n"
	"to end (SIGTERM, SIGINT). MOUNT can be left out if there is one only.\n"
	"\n"
	"  --listen ADDRESS:PORT\n"
	"            where to listen (" DEFAULT_LISTEN "); [::1]:PORT for IPv6;\n"
	"            port 0: any that is free; what it is stands in the first line\n"
	"            of standard output\n"
	"  --help\n";

#ifdef HAVE_MICROHTTPD

#define METRICS_MAX (16u << 20)

static int read_metrics(const char *mount, char **out, size_t *len_out)
{
	_cleanup_fd_ int fd = ucm_mount_open(mount, UCM_TREE_METRICS, O_RDONLY);
	int err;

	if (fd < 0)
		return fd;
	err = ucm_tool_read(fd, METRICS_MAX, out, len_out);
	if (err)
		ucm_tool_fail(0, "%s/" UCM_TREE_METRICS ": %s", mount,
			      strerror(-err));
	return err;
}

/* "127.0.0.1:9741", "[::1]:9741": cuts it in two. NULL: it is neither. */
static char *cut_port(char *address)
{
	char *colon = strrchr(address, ':');
	size_t len;

	if (!colon || !colon[1])
		return NULL;
	*colon = '\0';
	len = strlen(address);
	if (address[0] == '[' && len > 1 && address[len - 1] == ']') {
		address[len - 1] = '\0';
		memmove(address, address + 1, len - 1);
	} else if (strchr(address, ':')) {
		return NULL;
	}
	return *address ? colon + 1 : NULL;
}

static int listen_at(const struct addrinfo *at)
{
	int on = 1, err;
	int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC,
			at->ai_protocol);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (!bind(fd, at->ai_addr, at->ai_addrlen) && !listen(fd, 16))
		return fd;
	err = -errno;
	close(fd);
	return err;
}

/* A listening socket, or the exit status, negative (told). */
static int open_socket(const char *listen)
{
	struct addrinfo hints = {
		.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
		.ai_socktype = SOCK_STREAM,
	};
	_cleanup_free_ char *address = strdup(listen);
	struct addrinfo *found = NULL;
	char *port = address ? cut_port(address) : NULL;
	int fd, err;

	if (!port)
		return -ucm_tool_fail(UCM_EXIT_USAGE, "--listen '%s': ADDRESS:PORT; try --help",
				      listen);
	err = getaddrinfo(address, port, &hints, &found);
	if (err)
		return -ucm_tool_fail(UCM_EXIT_USAGE, "--listen '%s': %s",
				      listen, gai_strerror(err));
	fd = listen_at(found);
	freeaddrinfo(found);
	if (fd < 0)
		return -ucm_tool_fail(UCM_EXIT_FAILED, "--listen %s: %s",
				      listen, strerror(-fd));
	return fd;
}

static int tell_address(int fd)
{
	struct sockaddr_storage address;
	socklen_t len = sizeof(address);
	char host[128], port[16];

	if (getsockname(fd, (struct sockaddr *)&address, &len) ||
	    getnameinfo((struct sockaddr *)&address, len, host, sizeof(host),
			port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV))
		return ucm_tool_fail(UCM_EXIT_FAILED, "getsockname failed");
	printf(strchr(host, ':') ? "http://[%s]:%s/metrics\n"
				 : "http://%s:%s/metrics\n", host, port);
	return ucm_tool_flush();
}

static int serve(const char *mount, const char *listen)
{
	int fd = open_socket(listen);
	int status;

	if (fd < 0)
		return -fd;
	status = tell_address(fd);
	if (status) {
		close(fd);
		return status;
	}
	return ucm_http_serve(fd, read_metrics, mount) ? UCM_EXIT_FAILED : 0;
}

#else

static int serve(const char *mount, const char *listen)
{
	(void)mount, (void)listen;
	return ucm_tool_fail(UCM_EXIT_FAILED, "built without libmicrohttpd; MOUNT/.ucmfs/metrics "
			     "can be read as a file");
}

#endif

int ucm_exporter_main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "listen", required_argument, NULL, 'l' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	_cleanup_free_ char *mount = NULL;
	const char *listen = DEFAULT_LISTEN;
	int flag;

	opterr = 0;
	while ((flag = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (flag) {
		case 'l': listen = optarg; break;
		case 'h':
			fputs(help_text, stdout);
			return 0;
		default:
			return ucm_tool_fail(UCM_EXIT_USAGE, "'%s': unknown, or no value; "
					     "try --help", argv[optind - 1]);
		}
	}
	if (argc - optind > 1)
		return ucm_tool_fail(UCM_EXIT_USAGE, "one MOUNT at most; try --help");
	mount = ucm_mount_find(argv[optind]);
	if (!mount)
		return UCM_EXIT_FAILED;
	return serve(mount, listen);
}
