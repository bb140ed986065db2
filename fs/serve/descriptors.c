/* SPDX-License-Identifier: Apache-2.0 */
/*
 * descriptors.c - blocks that a peer reads and writes by descriptors.
 *
 * Reading: the descriptor is of the block's file, opened for reading. Files of
 * blocks never change, and one that is unlinked stays readable: so the store need
 * not know who has one open.
 *
 * Writing: the descriptor is of a temporary file, and the daemon keeps none. So
 * the file is open nowhere when its writer has closed it, and a commit can prove
 * that: a lease for writing (fcntl(2), F_SETLEASE) is granted to the only opener of
 * a file. Writes that are still on their way (io_uring) hold the file, too. Where a
 * file system has no leases (NFS), the commit trusts the writer, as close(2) does.
 * What is committed is whole: a commit says that its caller has written it all, and
 * the header is checked against the file's size and the space's geometry. The header
 * may come with the commit: to read it takes longer than all else where a disk is busy
 * with the next blocks. If it is not the file's own, loads of the block find that.
 *
 * A peer that ends drops what it has not committed.
 */
#include <config.h>

#include "fs/serve/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/osfile.h"

/* Its descriptor is passed with the answer, or it is closed. */
static int give_file(struct ucm_exchange *exchange, struct ucm_file *file)
{
	int fd = ucm_file_descriptor(file);

	if (fd < 0) {
		ucm_file_close(file);
		return fd;
	}
	exchange->fds[exchange->num_fds++] = fd;
	return 0;
}

/* ---- reading ---- */

static int open_one(struct ucm_exchange *exchange, const struct ucm_id *id,
		    struct ucm_serve_opened *out)
{
	struct ucm_store *store = exchange->peer->terms->store;
	const struct ucm_key key = ucm_exchange_key(exchange, id);
	struct ucm_file file = UCM_NO_FILE;
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_store_find(store, &key, &entry, &ref);

	if (!err)
		err = ucm_store_open_block(store, ref, &entry, &file, NULL);
	if (!err)
		err = give_file(exchange, &file);
	if (err)
		return err;
	out->size = entry.size;
	out->directory = entry.dir;
	out->flags = store->dirs.at[entry.dir]->remote ? 0 : UCM_OPENED_LOCAL;
	return 0;
}

int ucm_peer_open(struct ucm_exchange *exchange)
{
	struct ucm_serve_opened *opened = exchange->out;
	const struct ucm_id *ids = exchange->items;

	for (uint32_t i = 0; i < exchange->request->num; i++)
		opened[i].result = open_one(exchange, &ids[i], &opened[i]);
	return 0;
}

/* ---- writing ---- */

static struct ucm_peer_draft *find_draft(struct ucm_peer *peer, uint32_t number)
{
	struct ucm_peer_draft *draft;

	HASH_FIND(in_drafts, peer->drafts, &number, sizeof(number), draft);
	return draft;
}

static void end_draft(struct ucm_peer *peer, struct ucm_peer_draft *draft)
{
	HASH_DELETE(in_drafts, peer->drafts, draft);
	ucm_store_drop(peer->terms->store, &draft->temp);
	free(draft);
}

void ucm_peer_drop(struct ucm_peer *peer, uint32_t after)
{
	struct ucm_peer_draft *draft, *next;

	HASH_ITER(in_drafts, peer->drafts, draft, next) {
		if (draft->number > after)
			end_draft(peer, draft);
	}
}

static bool is_there(struct ucm_store *store, const struct ucm_key *key)
{
	struct ucm_entry entry;
	ucm_ref ref;

	return !ucm_store_peek(store, key, &entry, &ref);
}

static int new_draft(struct ucm_exchange *exchange, const struct ucm_key *key,
		     struct ucm_peer_draft *draft, int *fd_out)
{
	struct ucm_file file = UCM_NO_FILE;
	int err = ucm_store_create(exchange->peer->terms->store, key,
				   exchange->request->bytes, &draft->temp,
				   &file);

	if (err)
		return err;
	*fd_out = ucm_file_descriptor(&file);
	if (*fd_out >= 0)
		return 0;
	ucm_file_close(&file);
	ucm_store_drop(exchange->peer->terms->store, &draft->temp);
	return *fd_out;
}

static int create_one(struct ucm_exchange *exchange, const struct ucm_id *id,
		      struct ucm_serve_created *out)
{
	struct ucm_peer *peer = exchange->peer;
	const struct ucm_key key = ucm_exchange_key(exchange, id);
	struct ucm_peer_draft *draft;
	int fd, err;

	if (HASH_CNT(in_drafts, peer->drafts) >= UCM_SERVE_DRAFTS)
		return -EMFILE;
	if (is_there(peer->terms->store, &key))
		return -EEXIST;
	draft = calloc(1, sizeof(*draft));
	if (!draft)
		return -ENOMEM;
	err = new_draft(exchange, &key, draft, &fd);
	if (err) {
		free(draft);
		return err;
	}
	draft->key = key;
	draft->number = ++peer->num_drafts;
	HASH_ADD(in_drafts, peer->drafts, number, sizeof(draft->number), draft);
	if (!draft->in_drafts.tbl) {
		ucm_os_close(fd);
		ucm_store_drop(peer->terms->store, &draft->temp);
		free(draft);
		return -ENOMEM;
	}
	out->draft = draft->number;
	out->directory = draft->temp.dir;
	exchange->fds[exchange->num_fds++] = fd;
	return 0;
}

int ucm_peer_create(struct ucm_exchange *exchange)
{
	struct ucm_serve_created *created = exchange->out;
	const struct ucm_id *ids = exchange->items;

	for (uint32_t i = 0; i < exchange->request->num; i++)
		created[i].result =
			create_one(exchange, &ids[i], &created[i]);
	return 0;
}

/* Open nowhere else: -EBUSY. */
static int prove_closed(const struct ucm_file *file)
{
	int fd = ucm_file_descriptor(file);

	if (fd < 0)
		return fd;
	if (fcntl(fd, F_SETLEASE, F_WRLCK))
		return errno == EAGAIN ? -EBUSY : 0;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return 0;
}

/* As of a file that has no more than the header. */
static ssize_t read_sent(const struct ucm_bytes *bytes, void *buffer, size_t len,
			 uint64_t offset)
{
	const struct ucm_serve_commit *commit = bytes->from;

	if (offset >= commit->header_bytes)
		return 0;
	if (len > commit->header_bytes - offset)
		len = commit->header_bytes - offset;
	memcpy(buffer, commit->header + offset, len);
	return (ssize_t)len;
}

static int commit_draft(struct ucm_store *store, struct ucm_peer_draft *draft,
			const struct ucm_serve_commit *commit,
			const struct ucm_file *file)
{
	const struct ucm_bytes sent = { .read = read_sent, .from = commit };
	int err;

	draft->temp.head = commit->header_bytes ? &sent : NULL;
	err = ucm_store_commit_evicting(store, &draft->temp, file, &draft->key,
					UCM_COMMIT_WRITTEN);
	draft->temp.head = NULL;
	return err == -EAGAIN ? ucm_store_refuse(store, &draft->key,
						 UCM_FAULT_SHORT, NULL)
			      : err;
}

static int commit_one(struct ucm_peer *peer,
		      const struct ucm_serve_commit *commit)
{
	struct ucm_store *store = peer->terms->store;
	struct ucm_peer_draft *draft = find_draft(peer, commit->draft);
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	int err;

	if (!draft || commit->header_bytes > sizeof(commit->header))
		return -EINVAL;
	err = ucm_store_reopen(store, &draft->temp, &file);
	if (!err)
		err = prove_closed(&file);
	if (err == -EBUSY)
		return err;
	if (!err)
		err = commit_draft(store, draft, commit, &file);
	end_draft(peer, draft);
	return err;
}

int ucm_peer_commit(struct ucm_exchange *exchange)
{
	const struct ucm_serve_commit *commits = exchange->items;
	int32_t *results = exchange->out;

	for (uint32_t i = 0; i < exchange->request->num; i++)
		results[i] = commit_one(exchange->peer, &commits[i]);
	return 0;
}

int ucm_peer_cancel(struct ucm_exchange *exchange)
{
	const uint32_t *numbers = exchange->items;
	int32_t *results = exchange->out;

	for (uint32_t i = 0; i < exchange->request->num; i++) {
		struct ucm_peer_draft *draft =
			find_draft(exchange->peer, numbers[i]);

		results[i] = draft ? 0 : -EINVAL;
		if (draft)
			end_draft(exchange->peer, draft);
	}
	return 0;
}

static int reopen_one(struct ucm_exchange *exchange, uint32_t number)
{
	struct ucm_peer *peer = exchange->peer;
	struct ucm_peer_draft *draft = find_draft(peer, number);
	struct ucm_file file = UCM_NO_FILE;
	int err;

	if (!draft)
		return -EINVAL;
	err = ucm_store_reopen(peer->terms->store, &draft->temp, &file);
	return err ? err : give_file(exchange, &file);
}

int ucm_peer_reopen(struct ucm_exchange *exchange)
{
	const uint32_t *numbers = exchange->items;
	int32_t *results = exchange->out;

	for (uint32_t i = 0; i < exchange->request->num; i++)
		results[i] = reopen_one(exchange, numbers[i]);
	return 0;
}
