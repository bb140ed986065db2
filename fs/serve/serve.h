/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - a store on a socket: the daemon's side of <ucm/serve.h>.
 *
 * Knows the store, and nothing of FUSE. Who may connect is decided by the
 * kernel's word for who the peer is (SO_PEERCRED).
 */
#ifndef UCM_SERVE_ROOM_H
#define UCM_SERVE_ROOM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/store/store.h"

struct ucm_server;

/* What is served, and to whom. All of it is the caller's, until the server is
 * stopped. */
struct ucm_server_terms {
	struct ucm_store *store;
	bool others;   /* users that are neither root, ours nor the owner */
	bool readonly; /* nothing can be written */
	/* Memory that peers map; -1: none. */
	int index_fd, budget_fd;
	uint64_t index_bytes, budget_bytes;
	uint64_t rate, in_flight; /* of the node, of a loader; 0: any */
	/* A text of UCM_TEXT_*, to free; or NULL. */
	char *(*text)(void *arg, uint32_t what, size_t *len_out);
	/* Called before statistics are read; or NULL. */
	void (*count)(void *arg);
	/* Are files being written to a space, beside those of peers? Or NULL. */
	bool (*writes)(void *arg, const struct ucm_space *space);
	/* There has been no peer for a second or two. It must not wait. Or NULL. */
	void (*idle)(void *arg);
	void *arg;
};

/*
 * Listen on a socket of that path, whose folder is there, and serve. A socket that
 * a dead process has left is replaced. listening: a socket to listen on instead
 * (systemd's), or -1; it is ours then. 0 or -errno: -EADDRINUSE: a process that
 * lives has that socket; -ENAMETOOLONG.
 */
int ucm_server_start(const struct ucm_server_terms *terms, const char *path,
		     int listening, struct ucm_server **out);

/* Peers are cut off, and what they ask for is waited for. After wait_ms those
 * threads that have not ended are left, with the server: false. Its socket has no
 * name any more. NULL is harmless. */
bool ucm_server_stop(struct ucm_server *server, unsigned wait_ms);

/* Remove the socket at that path if the process that listened there was killed. */
void ucm_server_remove_dead(const char *path);

/* How many peers there are. */
unsigned ucm_server_peers(struct ucm_server *server);

#endif
