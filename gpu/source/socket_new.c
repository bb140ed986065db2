/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket_new.c - new blocks, by a daemon's socket.
 *
 * They are shared out to a few connections, as the daemon drops them with
 * theirs; a commit whose daemon has gone fails.
 */
#include <config.h>

#include "gpu/source/socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/osfile.h"

/* A connection that has drafts: they are its own, and end with it. */
struct ucm_saver {
	struct ucm_client *client;
	unsigned refs; /* of its drafts, and of its place among the savers */
};

struct ucm_draft {
	struct ucm_saver *saver;
	uint32_t number;
};

static void put_saver(struct ucm_source *source, struct ucm_saver *saver)
{
	bool last;

	pthread_mutex_lock(&source->lock);
	last = !--saver->refs;
	pthread_mutex_unlock(&source->lock);
	if (!last)
		return;
	ucm_client_close(saver->client);
	free(saver);
}

void ucm_socket_retire_savers(struct ucm_source *source)
{
	for (unsigned i = 0; i < UCM_SOCKET_SAVERS; i++) {
		struct ucm_saver *saver;

		pthread_mutex_lock(&source->lock);
		saver = source->savers[i];
		source->savers[i] = NULL;
		pthread_mutex_unlock(&source->lock);
		if (saver)
			put_saver(source, saver);
	}
}

static struct ucm_saver *new_saver(const struct ucm_source *source, int *err)
{
	struct ucm_saver *saver = calloc(1, sizeof(*saver));

	*err = saver ? ucm_socket_connect(source, &saver->client) : -ENOMEM;
	if (!*err)
		return saver;
	free(saver);
	return NULL;
}

/* The next one, with a reference. */
static struct ucm_saver *get_saver(struct ucm_source *source, int *err)
{
	struct ucm_saver **place, *saver, *made = NULL;

	pthread_mutex_lock(&source->lock);
	place = &source->savers[source->turn++ % UCM_SOCKET_SAVERS];
	if (!*place) {
		pthread_mutex_unlock(&source->lock);
		made = new_saver(source, err);
		pthread_mutex_lock(&source->lock);
		if (made && !*place) {
			made->refs = 1;
			*place = made;
			made = NULL;
		}
	}
	saver = *place;
	if (saver)
		saver->refs++;
	pthread_mutex_unlock(&source->lock);
	if (made) {
		ucm_client_close(made->client);
		free(made);
	}
	return saver;
}

static int create_by(struct ucm_saver *saver, const char *space,
		     const struct ucm_id *id, uint64_t bytes, uint32_t *number)
{
	struct ucm_serve_created created;
	int fd;
	int err = ucm_client_create(saver->client, space, id, 1, bytes, &fd,
				    &created);

	*number = created.draft;
	return err ? err : fd;
}

int ucm_socket_create(struct ucm_source *source, const char *space,
			 const struct ucm_id *id, uint64_t bytes,
			 struct ucm_draft **out)
{
	struct ucm_draft *draft = calloc(1, sizeof(*draft));
	int fd = draft ? -ENOTCONN : -ENOMEM;

	for (unsigned tries = 0; tries < 2 && fd == -ENOTCONN; tries++) {
		draft->saver = get_saver(source, &fd);
		if (!draft->saver)
			continue;
		fd = create_by(draft->saver, space, id, bytes, &draft->number);
		if (fd == -ENOTCONN)
			ucm_socket_retire_savers(source);
		if (fd < 0)
			put_saver(source, draft->saver);
	}
	if (fd < 0)
		free(draft);
	else
		*out = draft;
	return fd;
}

int ucm_socket_reopen(struct ucm_source *source,
			 const struct ucm_draft *draft)
{
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_REOPEN,
		.num = 1,
	};
	int32_t result;
	int fd = -1;
	int err = ucm_client_call(draft->saver->client, &head, &draft->number,
				  sizeof(draft->number), &result,
				  sizeof(result), &fd);

	(void)source;
	return err ? err : result ? result : fd;
}

static void end_draft(struct ucm_source *source, struct ucm_draft *draft,
		      int err)
{
	if (err == -ENOTCONN)
		ucm_socket_retire_savers(source);
	put_saver(source, draft->saver);
	free(draft);
}

void ucm_socket_drop(struct ucm_source *source, struct ucm_draft *draft)
{
	end_draft(source, draft,
		  ucm_client_cancel(draft->saver->client, &draft->number, 1));
}

/* A child that was forked may have the file open for a moment, until it is another
 * program. */
#define BUSY_MS 1000u

static int commit_closed(struct ucm_client *client,
			 const struct ucm_serve_commit *commit)
{
	const struct timespec wait = { .tv_nsec = 1000000 };
	int32_t result = -EBUSY;
	int err = 0;

	for (unsigned ms = 0; !err && result == -EBUSY && ms < BUSY_MS; ms++) {
		if (ms)
			nanosleep(&wait, NULL);
		err = ucm_client_commit(client, commit, 1, &result);
	}
	return err ? err : result;
}

int ucm_socket_commit(struct ucm_source *source, struct ucm_draft *draft,
			 int fd, const void *header, uint32_t header_bytes)
{
	struct ucm_serve_commit commit = { .draft = draft->number };
	int err = ucm_os_flush(fd);

	if (header && header_bytes <= sizeof(commit.header)) {
		commit.header_bytes = header_bytes;
		memcpy(commit.header, header, header_bytes);
	}
	ucm_os_close(fd);
	if (err) {
		ucm_socket_drop(source, draft);
		return err;
	}
	err = commit_closed(draft->saver->client, &commit);
	if (err == -EBUSY)
		ucm_socket_drop(source, draft);
	else
		end_draft(source, draft, err);
	return err;
}

/* ---- what the daemon wants, and what goes ---- */

int ucm_socket_offer(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, const struct ucm_id *parents,
			size_t num, uint64_t bytes, int32_t *answers)
{
	struct ucm_tries tries = { .err = 0 };

	while (ucm_socket_try(source, &tries))
		tries.err = ucm_client_offer(tries.client, space, ids, parents,
					     num, bytes, answers);
	return tries.err;
}

int ucm_socket_remove(struct ucm_source *source, const char *space,
			 const struct ucm_id *id)
{
	return ucm_socket_ask_one(source, UCM_SERVE_REMOVE, space, id);
}
