/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - one connection, and a request on it, for the files of this room.
 */
#ifndef UCM_PEER_H
#define UCM_PEER_H

#include <stddef.h>
#include <sys/queue.h>

#include <ucm/serve.h>

#include "common/table.h"
#include "fs/serve/serve.h"

/* A new file of a peer, which is not yet a block. */
struct ucm_peer_draft {
	uint32_t number;
	struct ucm_key key;
	struct ucm_temp temp;
	UT_hash_handle in_drafts;
};

/* All but the first three is its thread's alone. */
struct ucm_peer {
	struct ucm_server *server;
	int fd;
	LIST_ENTRY(ucm_peer) in_peers; /* under the server's lock */
	const struct ucm_server_terms *terms;
	uid_t uid;
	gid_t gid;
	struct ucm_peer_draft *drafts;
	uint32_t num_drafts; /* that there have been; numbers of drafts */
};

/* A request and its answer. */
struct ucm_exchange {
	struct ucm_peer *peer;
	const struct ucm_serve_request *request;
	const void *items;
	size_t size; /* of the items, in bytes */
	struct ucm_space *space;
	/* The answer. */
	void *out;
	size_t out_size;
	int fds[UCM_SERVE_DESCRIPTORS]; /* the caller's, to close */
	unsigned num_fds;
};

static inline struct ucm_key ucm_exchange_key(const struct ucm_exchange *exchange,
				    const struct ucm_id *id)
{
	return (struct ucm_key){ .id = *id, .space = exchange->space->number };
}

/* Serve a request of size bytes: fills head, and the rest of the answer. */
void ucm_peer_serve(struct ucm_exchange *exchange, size_t size,
		    struct ucm_serve_answer *head);

/* Is the peer root or the daemon's user? */
bool ucm_peer_is_daemons(const struct ucm_peer *peer);
/* Read a space's blocks, or write to it: 0 or -EACCES. */
int ucm_peer_may(const struct ucm_peer *peer, struct ucm_space *space,
		 bool writes);

/* ---- blocks by descriptors (descriptors.c); 0 or -errno ---- */

int ucm_peer_open(struct ucm_exchange *exchange);
int ucm_peer_create(struct ucm_exchange *exchange);
int ucm_peer_commit(struct ucm_exchange *exchange);
int ucm_peer_reopen(struct ucm_exchange *exchange);
int ucm_peer_cancel(struct ucm_exchange *exchange);
/* Drop what it has not committed of the files after that number. */
void ucm_peer_drop(struct ucm_peer *peer, uint32_t after);

/* ---- spaces (spaces.c); 0 or -errno; texts are the caller's, to free ---- */

int ucm_peer_mkspace(struct ucm_exchange *exchange);
int ucm_peer_rmspace(struct ucm_exchange *exchange);
int ucm_peer_space(struct ucm_exchange *exchange);
int ucm_peer_manifest(struct ucm_exchange *exchange, char **out,
		      size_t *len_out);
int ucm_peer_spaces(struct ucm_exchange *exchange, char **out, size_t *len_out);

#endif
