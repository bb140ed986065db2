/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exporter.c - ucm status --serve: a mount's metrics over HTTP.
 *
 * The mount is opened by its path for every question, so that it may come and
 * go.
 */
#include <config.h>

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "tools/lib/args.h"
#include "tools/lib/metrics.h"
#include "tools/lib/tool.h"
#include "tools/look/http.h"

#define DEFAULT_LISTEN "127.0.0.1:9741"

static const char *listen_at = DEFAULT_LISTEN;

static const struct ucm_arg args[] = {
	{ "listen", 0, "ADDRESS:PORT", ucm_arg_text, &listen_at,
	  .help = "where to listen (" DEFAULT_LISTEN "); [ADDRESS]:PORT for "
		  "IPv6; port 0: any that is free" },
	{ 0 },
};

#if defined(HAVE_MICROHTTPD) && !defined(UCM_NO_EXPORTER)

static int read_metrics(const char *mount, char **out, size_t *len_out)
{
	int err = ucm_mount_read(mount, "metrics", UCM_METRICS_MAX, out,
				 len_out);

	return err ? ucm_mount_complain(mount, "metrics", err) : 0;
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

static int open_listener(const struct addrinfo *at)
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

static int open_socket(const char *listen)
{
	struct addrinfo hints = {
		.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
		.ai_socktype = SOCK_STREAM,
	};
	_cleanup_free_ char *address = ucm_tool_format("%s", listen);
	struct addrinfo *found = NULL;
	char *port = cut_port(address);
	int fd, err;

	if (!port)
		ucm_tool_usage("--listen '%s': ADDRESS:PORT", listen);
	err = getaddrinfo(address, port, &hints, &found);
	if (err)
		ucm_tool_die(UCM_EXIT_USAGE, "--listen '%s': %s", listen,
			     gai_strerror(err));
	fd = open_listener(found);
	freeaddrinfo(found);
	if (fd < 0)
		ucm_tool_die(UCM_EXIT_FAILED, "--listen %s: %s", listen,
			     strerror(-fd));
	return fd;
}

static void tell_address(int fd)
{
	struct sockaddr_storage address;
	socklen_t len = sizeof(address);
	char host[128], port[16];

	if (getsockname(fd, (struct sockaddr *)&address, &len) ||
	    getnameinfo((struct sockaddr *)&address, len, host, sizeof(host),
			port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV))
		ucm_tool_die(UCM_EXIT_FAILED, "getsockname failed");
	printf(strchr(host, ':') ? "http://[%s]:%s/metrics\n"
				 : "http://%s:%s/metrics\n", host, port);
	if (ucm_tool_flush())
		ucm_tool_exit(UCM_EXIT_FAILED);
}

static int serve(const char *mount, const char *listen)
{
	int fd = open_socket(listen);

	tell_address(fd);
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

static int run(int argc, char **argv)
{
	_cleanup_free_ char *mount = ucm_mount_find(argc ? argv[0] : NULL);

	return serve(mount, listen_at);
}

const struct ucm_command ucm_exporter_command = {
	.name = "status",
	.word = "--serve",
	.does = "serve a mount's metrics over HTTP",
	.operands = "[MOUNT]",
	.about = "Serve MOUNT/.ucmfs/metrics at /metrics for Prometheus, until "
		 "SIGTERM or SIGINT. The first line on standard output is the "
		 "address. MOUNT is not needed if there is only one.",
	.args = args,
	.most = 1,
	.run = run,
};
