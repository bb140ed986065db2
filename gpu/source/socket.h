/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.h - the source of a daemon's socket, for its two files: socket.c, which
 * blocks are there, and socket_new.c, those that come and go.
 */
#ifndef UCM_SOURCE_SOCKET_H
#define UCM_SOURCE_SOCKET_H

#include <pthread.h>

#include <ucm/client.h>
#include <ucm/index.h>

#include "gpu/source/source.h"

#define UCM_SOCKET_IDLE 8u
#define UCM_SOCKET_SAVERS 4u

/* The live index of a space, opened when it is first asked. */
struct ucm_socket_index {
	struct ucm_index_reader *reader; /* NULL: the daemon had gone */
	struct ucm_index_reader *view;   /* that nobody waits with; NULL: none */
	bool outdated;			 /* another one is to be made */
	struct ucm_socket_index *next;
	char space[];
};

struct ucm_saver;

struct ucm_source {
	char *path;
	pthread_mutex_t lock; /* guards these */
	struct ucm_client *idle[UCM_SOCKET_IDLE];
	unsigned num_idle;
	struct ucm_saver *savers[UCM_SOCKET_SAVERS]; /* NULL: none yet */
	unsigned turn;		      /* which of them is next */
	int64_t tried_ms;
	bool told; /* that it has gone, when it was last tried */
	pthread_mutex_t index_lock; /* guards the readers */
	pthread_mutex_t view_lock;  /* the list of indexes, and their views */
	struct ucm_socket_index *indexes;
};

/* A request, which may be made twice: by client, with the result err. All zero before
 * the first time. */
struct ucm_tries {
	struct ucm_client *client;
	bool is_new; /* the connection was made for it */
	int err;
};

/* Must it be made now? By an idle connection, and if that has died with its daemon,
 * by a new one. false: err is its result. */
bool ucm_socket_try(struct ucm_source *source, struct ucm_tries *tries);

/* The answer to a request about one block. */
int ucm_socket_ask_one(struct ucm_source *source, enum ucm_serve_verb verb,
		       const char *space, const struct ucm_id *id);

/* The daemon was there. -ENOTCONN: its socket is missing, or nobody listens on it. */
int ucm_socket_connect(const struct ucm_source *source,
		       struct ucm_client **out);

/* Each ends with its last draft: the daemon has gone, and others of them are as dead
 * as the one that has shown it; or it is the end. */
void ucm_socket_retire_savers(struct ucm_source *source);

/* As in struct ucm_source_ops. */
int ucm_socket_create(struct ucm_source *source, const char *space,
		      const struct ucm_id *id, uint64_t bytes,
		      struct ucm_draft **out);
int ucm_socket_reopen(struct ucm_source *source, const struct ucm_draft *draft);
int ucm_socket_commit(struct ucm_source *source, struct ucm_draft *draft,
		      int fd, const void *header, uint32_t header_bytes);
int ucm_socket_offer(struct ucm_source *source, const char *space,
		     const struct ucm_id *ids, const struct ucm_id *parents,
		     size_t num, uint64_t bytes, int32_t *answers);
int ucm_socket_remove(struct ucm_source *source, const char *space,
		      const struct ucm_id *id);
void ucm_socket_drop(struct ucm_source *source, struct ucm_draft *draft);

#endif
