/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - one page over HTTP: a mount's metrics. http.c is the
 * only file that knows libmicrohttpd; where that is missing, it is not built.
 */
#ifndef UCM_TOOLS_LOOK_HTTP_H
#define UCM_TOOLS_LOOK_HTTP_H

/*
 * Serve GET /metrics on a listening socket (taken over) until SIGINT or
 * SIGTERM comes. read() gives the page, to free, or -errno: then the answer is
 * 503 and why. It is called from several threads. 0, or -errno (reported).
 */
int ucm_http_serve(int socket,
		   int (*read)(const char *mount, char **out, size_t *len_out),
		   const char *mount);

#endif
