/* SPDX-License-Identifier: Apache-2.0 */
/* http.c - one page over HTTP; see http.h. */
#include <config.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <microhttpd.h>

#include "tools/lib/tool.h"
#include "tools/look/http.h"

#define THREADS 4u /* a mount that hangs takes one for each question */
#define CONNECTIONS 32u
#define TIMEOUT_S 30u

struct server {
	int (*read)(const char *mount, char **out, size_t *len_out);
	const char *mount;
};

/* Takes the text over. */
static enum MHD_Result reply(struct MHD_Connection *connection, unsigned code,
			     const char *type, char *text, size_t len)
{
	struct MHD_Response *response;
	enum MHD_Result result;

	response = MHD_create_response_from_buffer(len, text,
						   MHD_RESPMEM_MUST_FREE);
	if (!response) {
		free(text);
		return MHD_NO;
	}
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW,
					"GET, HEAD");
	result = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result reply_text(struct MHD_Connection *connection,
				  unsigned code, const char *mount,
				  const char *text)
{
	char *line;

	if (asprintf(&line, "%s%s%s\n", mount, *mount ? ": " : "", text) < 0)
		return MHD_NO;
	return reply(connection, code, "text/plain; charset=utf-8", line,
		     strlen(line));
}

static enum MHD_Result reply_metrics(struct MHD_Connection *connection,
				     const struct server *server)
{
	char *text;
	size_t len;
	int err = server->read(server->mount, &text, &len);

	if (err)
		return reply_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
				  server->mount, strerror(-err));
	return reply(connection, MHD_HTTP_OK,
		     "text/plain; version=0.0.4; charset=utf-8", text, len);
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *connection,
			      const char *url, const char *method,
			      const char *version, const char *upload,
			      size_t *upload_len, void **seen)
{
	static char once;

	(void)version, (void)upload;
	if (!*seen) { /* the headers; the answer comes after the body */
		*seen = &once;
		return MHD_YES;
	}
	if (*upload_len) {
		*upload_len = 0; /* not wanted */
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) &&
	    strcmp(method, MHD_HTTP_METHOD_HEAD))
		return reply_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "",
				  "GET only");
	if (!strcmp(url, "/metrics"))
		return reply_metrics(connection, arg);
	if (!strcmp(url, "/"))
		return reply_text(connection, MHD_HTTP_OK, "",
				  "ucm status --serve: see /metrics");
	return reply_text(connection, MHD_HTTP_NOT_FOUND, "", "not found");
}

int ucm_http_serve(int socket,
		   int (*read)(const char *mount, char **out, size_t *len_out),
		   const char *mount)
{
	struct server server = { .read = read, .mount = mount };
	struct MHD_Daemon *daemon;
	sigset_t signals;
	int signal;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL); /* in its threads as well */
	daemon = MHD_start_daemon(
		MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ERROR_LOG, 0, NULL, NULL,
		answer, &server, MHD_OPTION_LISTEN_SOCKET, socket,
		MHD_OPTION_THREAD_POOL_SIZE, THREADS,
		MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
		MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S, MHD_OPTION_END);
	if (!daemon) {
		ucm_tool_fail(0, "cannot serve HTTP");
		return -EIO;
	}
	while (sigwait(&signals, &signal))
		;
	MHD_stop_daemon(daemon);
	return 0;
}
