/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fixture.h - a server of the store of store_fixture.h, and its peers. */
#ifndef UCM_TESTS_SERVE_FIXTURE_H
#define UCM_TESTS_SERVE_FIXTURE_H

#include <ucm/client.h>

#include "fs/serve/serve.h"
#include "tests/unit/store_fixture.h"

extern struct ucm_server_terms fx_terms; /* for fx_serve() */
extern struct ucm_server *fx_server;

/* fx_terms as they are by default, of the open store; and they have memory. */
void fx_set_terms(void);
/* On fx_socket(), until the test ends. */
void fx_serve(void);
void fx_stop_serving(void);
/* All of it: a store of two tiers, its default terms, and the server. */
void fx_setup_served(void);
const char *fx_socket(void); /* its path; any thread */

/* Waits until no peer is connected. */
void fx_wait_alone(void);

struct ucm_client *fx_client(void);
/* A connection without a client, for messages of any kind. */
int fx_dial(void);
/* On such a connection: a request, and its answer's size and head. fds: room for
 * descriptors that come with it, UCM_SERVE_DESCRIPTORS; or NULL: they are closed. */
ssize_t fx_ask(int fd, const void *message, size_t size,
	       struct ucm_serve_answer *head, void *items, size_t room,
	       int *fds);

/* A block of a space: created, written and committed. What failed first. */
int fx_put_block(struct ucm_client *client, const char *space,
		 const struct fx_file *file);
/* The same without the commit: the draft's number. */
uint32_t fx_draft(struct ucm_client *client, const struct fx_file *file,
		  size_t len);
int fx_commit_draft(struct ucm_client *client, uint32_t draft);
/* One block, opened: a descriptor or -errno. */
int fx_open_one(struct ucm_client *client, const struct fx_file *file);
/* The descriptor reads the file's bytes, and no others. */
bool fx_has_bytes(int fd, const struct fx_file *file);
int fx_one_id(struct ucm_client *client, enum ucm_serve_verb verb,
	      const char *space, const struct fx_file *file);

/* Files in the folders of new files, of all directories. */
unsigned fx_staged(void);
/* Open descriptors of this process. */
unsigned fx_descriptors(void);
/* Waits until there are no more than that. */
void fx_wait_descriptors(unsigned num);
/* Threads of this process that have a name. */
unsigned fx_threads(const char *name);

#endif
