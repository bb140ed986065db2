/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - a store by its socket: find, read, write and remove blocks.
 *
 * The daemon opens the files and passes their descriptors: so it needs no mount,
 * no rights on the directories and no FUSE. The messages are those of
 * <ucm/serve.h>; requests of any number of blocks are cut into messages here.
 *
 * Any number of threads may use one client: its requests are sent one after
 * another, so threads that should not wait for each other have clients of their
 * own. A child of fork(2) must not use its parent's. Calls return 0 or -errno, as
 * <ucm/serve.h> says, and in results[i] the same for each block. -ENOTCONN: the
 * daemon has ended, or a call was interrupted: the client is of no use any more, close
 * it and connect again (NULL is not connected). What had been committed is there; new
 * files are dropped.
 */
#ifndef UCM_CLIENT_H
#define UCM_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>
#include <ucm/serve.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ucm_client;

/* Before the SOURCE of directories, where a socket or a mount could be named. */
#define UCM_CLIENT_TIERS "tiers="

/*
 * where: the path of a socket; or a mount point of ucmfs, or the first directory
 * that a daemon has, which lead to its socket (.ucmfs/socket); or "tiers=SOURCE",
 * directories as ucmfs(8) takes them: if no daemon has them a private one is started,
 * which ends a second or two after its last client.
 * -ENOENT: no such socket, no mount of ucmfs, or one whose
 * socket is not in this namespace; -ECONNREFUSED: a socket that a dead daemon has
 * left; -EACCES: it does not serve this user; -EPROTONOSUPPORT: another version;
 * -ETIMEDOUT: the daemon hangs. Of tiers also -EBUSY: another process has one of
 * them, and has no socket here; -EINVAL: ucmfs refuses them; -ENOTCONN: there is no
 * program ucmfs; the cause is logged.
 */
int ucm_client_connect(const char *where, struct ucm_client **out);
/* NULL is harmless. */
void ucm_client_close(struct ucm_client *client);

/* The daemon's hello. The descriptors of memory that it names are the caller's, to map
 * and to close; or -1. */
int ucm_client_hello(struct ucm_client *client, struct ucm_serve_hello *out,
		     int *index_fd, int *budget_fd);

/*
 * One request of num blocks of a space (NULL or "": the default one), for the verbs
 * that take ids and give an int32_t for each. flags: of the verb. With
 * num 0 it says whether the request may be made.
 */
int ucm_client_ids(struct ucm_client *client, enum ucm_serve_verb verb,
		   const char *space, uint32_t flags, const struct ucm_id *ids,
		   size_t num, int32_t *results);

/* The same for any verb that takes items of in bytes and gives some of out_each for
 * each. head: its num and space are filled in. */
int ucm_client_items(struct ucm_client *client,
		     const struct ucm_serve_request *head, const char *space,
		     const void *items, size_t in, size_t num, void *out,
		     size_t out_each);

/* Which of these is it worth to save? As ucm_blocks_offer(). */
int ucm_client_offer(struct ucm_client *client, const char *space,
		     const struct ucm_id *ids, const struct ucm_id *parents,
		     size_t num, uint64_t bytes, int32_t *results);

/*
 * Open blocks for reading: fds[i] is a descriptor (O_RDONLY, close-on-exec), the
 * caller's to close, or -errno; opened[i] (or NULL) has the file's size. Bytes that
 * are read through it are the block's until it is closed, whatever becomes of the
 * block. Several blocks at once cost much less than one at a time. If the call as a
 * whole fails, nothing stays open.
 */
int ucm_client_open(struct ucm_client *client, const char *space,
		    const struct ucm_id *ids, size_t num, int *fds,
		    struct ucm_serve_opened *opened);

/*
 * New blocks, each of bytes bytes: fds[i] is a descriptor to write to (O_RDWR), or
 * -errno: -EEXIST: the block is there. Write all of it, close each copy of the
 * descriptor (an error of close(2) is one of the write), and commit it. If the call
 * as a whole fails, no file stays.
 */
int ucm_client_create(struct ucm_client *client, const char *space,
		      const struct ucm_id *ids, size_t num, uint64_t bytes,
		      int *fds, struct ucm_serve_created *created);
/* results[i]: 0: the block is there, as durable as the store is configured to
 * make it; -EBUSY: a descriptor of it is still open, try again; else the file is
 * dropped. */
int ucm_client_commit(struct ucm_client *client,
		      const struct ucm_serve_commit *commits, size_t num,
		      int32_t *results);
int ucm_client_cancel(struct ucm_client *client, const uint32_t *drafts,
		      size_t num);

/* Any other request: item_in bytes for each of num items, at most UCM_SERVE_ITEMS;
 * out: out_size bytes, all of which the answer must have. fd_out: the one
 * descriptor of the answer, or NULL. */
int ucm_client_call(struct ucm_client *client,
		    const struct ucm_serve_request *request, const void *items,
		    size_t item_in, void *out, size_t out_size, int *fd_out);

#ifdef __cplusplus
}
#endif

#endif
