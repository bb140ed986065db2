/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.c - the blocks of a daemon, by its socket.
 *
 * Which blocks there are the mapped index says. The daemon opens them, many in a
 * request, and passes their descriptors. New blocks are written to descriptors, too, and
 * committed when they are closed.
 *
 * Each space has two readers of the index: one for look-ups, which may ask the daemon
 * and wait for it, and one for threads that must not wait (its view). A view that does
 * not hold any more, as its daemon has ended or spaces have come or gone, is
 * replaced by the next request for descriptors.
 *
 * A request may wait for a disk, and its connection with it: so each thread that asks
 * takes a connection for itself, from those that nobody uses, or makes one. Where the
 * daemon was restarted they all are dead: then a request is made once more, on a new
 * one. New blocks have connections of their own: socket_new.c.
 */
#include <config.h>

#include "gpu/source/socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "fs/reader/reader.h"

#define RETRY_MS 200

/* ---- connections ---- */

static struct ucm_client *take_idle(struct ucm_source *source)
{
	struct ucm_client *client;

	pthread_mutex_lock(&source->lock);
	client = source->num_idle ? source->idle[--source->num_idle] : NULL;
	pthread_mutex_unlock(&source->lock);
	return client;
}

static void give_back(struct ucm_source *source, struct ucm_client *client)
{
	pthread_mutex_lock(&source->lock);
	if (source->num_idle < UCM_SOCKET_IDLE) {
		source->idle[source->num_idle++] = client;
		client = NULL;
	}
	pthread_mutex_unlock(&source->lock);
	ucm_client_close(client);
}

static void close_idle(struct ucm_source *source)
{
	struct ucm_client *client;

	while ((client = take_idle(source)))
		ucm_client_close(client);
}

int ucm_socket_connect(const struct ucm_source *source, struct ucm_client **out)
{
	int err = ucm_client_connect(source->path, out);

	return err == -ENOENT || err == -ECONNREFUSED ? -ENOTCONN : err;
}

bool ucm_socket_try(struct ucm_source *source, struct ucm_tries *tries)
{
	if (!tries->client) {
		tries->client = take_idle(source);
		if (tries->client)
			return true;
	} else if (tries->err != -ENOTCONN) {
		give_back(source, tries->client);
		return false;
	} else {
		ucm_client_close(tries->client);
		if (tries->is_new)
			return false;
		close_idle(source);
	}
	tries->is_new = true;
	tries->err = ucm_socket_connect(source, &tries->client);
	return !tries->err;
}

/* ---- the source ---- */

static int socket_open(const char *text, struct ucm_source **out,
		       struct ucm_error *error)
{
	struct ucm_source *source = calloc(1, sizeof(*source));
	struct ucm_client *client = NULL;
	int err;

	if (source)
		source->path = ucm_reader_absolute(text);
	err = source && !source->path ? -errno
				      : ucm_client_connect(text, &client);
	if (!err && source) {
		pthread_mutex_init(&source->lock, NULL);
		pthread_mutex_init(&source->index_lock, NULL);
		pthread_mutex_init(&source->view_lock, NULL);
		give_back(source, client);
		*out = source;
		return 0;
	}
	if (!err)
		ucm_client_close(client);
	if (source)
		free(source->path);
	free(source);
	if (!err)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	/* it is there, and something else */
	if (err == -ENOENT && !access(text, F_OK))
		return ucm_error_set(error, -ENOTCONN,
				     "%s: no mount of ucmfs, or its socket is "
				     "not in this namespace",
				     text);
	return ucm_error_set(error, err, "%s: %s", text, strerror(-err));
}

static void socket_close(struct ucm_source *source)
{
	while (source->indexes) {
		struct ucm_socket_index *index = source->indexes;

		source->indexes = index->next;
		ucm_index_close(index->reader);
		ucm_index_close(index->view);
		free(index);
	}
	close_idle(source);
	ucm_socket_retire_savers(source);
	pthread_mutex_destroy(&source->lock);
	pthread_mutex_destroy(&source->index_lock);
	pthread_mutex_destroy(&source->view_lock);
	free(source->path);
	free(source);
}

/* ---- what a space's index says ---- */

/* Under the view lock. */
static struct ucm_socket_index *find_index(const struct ucm_source *source,
				      const char *space)
{
	struct ucm_socket_index *index = source->indexes;

	while (index && strcmp(index->space, space) != 0)
		index = index->next;
	return index;
}

static struct ucm_socket_index *index_of(struct ucm_source *source,
				    const char *space)
{
	struct ucm_socket_index *index;

	pthread_mutex_lock(&source->view_lock);
	index = find_index(source, space);
	if (!index) {
		index = calloc(1, sizeof(*index) + strlen(space) + 1);
		if (index) {
			strcpy(index->space, space);
			index->outdated = true;
			index->next = source->indexes;
			source->indexes = index;
		}
	}
	pthread_mutex_unlock(&source->view_lock);
	return index;
}

static bool socket_where(struct ucm_source *source, const char *space,
			 const struct ucm_id *id, struct ucm_where *out)
{
	struct ucm_reader_place place;
	struct ucm_socket_index *index;
	int err = -ESTALE;

	pthread_mutex_lock(&source->view_lock);
	index = find_index(source, space);
	if (index && index->view)
		err = ucm_reader_locate(index->view, id, &place);
	if (index && (err == -ESTALE || err == -ENOTCONN))
		index->outdated = true;
	pthread_mutex_unlock(&source->view_lock);
	if (err)
		return false;
	*out = (struct ucm_where){ .directory = place.dir,
				   .verified = place.verified };
	return true;
}

/* Replace the view if it does not hold, unless another thread does. */
static void renew_view(struct ucm_source *source, const char *space)
{
	struct ucm_socket_index *index = index_of(source, space);
	struct ucm_index_reader *view = NULL, *before;

	pthread_mutex_lock(&source->view_lock);
	if (!index || !index->outdated) {
		pthread_mutex_unlock(&source->view_lock);
		return;
	}
	index->outdated = false;
	pthread_mutex_unlock(&source->view_lock);
	if (ucm_index_open(source->path, space, &view))
		view = NULL;
	pthread_mutex_lock(&source->view_lock);
	before = index->view;
	index->view = view;
	pthread_mutex_unlock(&source->view_lock);
	ucm_index_close(before);
}

static int socket_check_space(struct ucm_source *source, const char *space)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_LOOKUP };
	struct ucm_tries tries = { .err = 0 };

	while (ucm_socket_try(source, &tries))
		tries.err = ucm_client_items(tries.client, &head, space, NULL,
					     0, 0, NULL, 0);
	if (!tries.err)
		renew_view(source, space);
	return tries.err;
}

/* A question to an index, and its answer. */
struct question {
	const struct ucm_id *ids;
	size_t num;
	uint64_t *present, *unknown; /* lookup: bitmaps; else NULL */
	size_t count;                /* prefix: so many, and */
	int doubt;                   /* whether the next one is not known */
};

static int ask_reader(struct ucm_index_reader *reader,
		      struct question *question)
{
	return question->present
		       ? ucm_index_lookup(reader, question->ids, question->num,
					  question->present, question->unknown)
		       : ucm_index_prefix(reader, question->ids, question->num,
					  &question->count, &question->doubt);
}

/* A reader that finds its daemon gone is opened anew, for the next one. */
static int ask_index(struct ucm_source *source, struct ucm_socket_index *index,
		     struct question *question)
{
	int err = -ENOTCONN;

	for (unsigned i = 0; i < 2 && err == -ENOTCONN; i++) {
		err = index->reader ? 0
				    : ucm_index_open(source->path, index->space,
						     &index->reader);
		if (!err)
			err = ask_reader(index->reader, question);
		if (err) {
			ucm_index_close(index->reader);
			index->reader = NULL;
		}
	}
	return err;
}

static int ask_space(struct ucm_source *source, const char *space,
		     struct question *question)
{
	struct ucm_socket_index *index;
	int err;

	pthread_mutex_lock(&source->index_lock);
	index = index_of(source, space);
	err = index ? ask_index(source, index, question) : -ENOMEM;
	pthread_mutex_unlock(&source->index_lock);
	return err;
}

static int socket_lookup(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, size_t num, uint8_t *found)
{
	size_t words = UCM_INDEX_WORDS(num);
	_cleanup_free_ uint64_t *bits = calloc(2 * words + 1, sizeof(*bits));
	uint64_t *unknown = bits + words;
	struct question question = {
		.ids = ids,
		.num = num,
		.present = bits,
		.unknown = unknown,
	};
	int err = bits ? ask_space(source, space, &question) : -ENOMEM;

	for (size_t i = 0; i < num && !err; i++) {
		if (unknown[i / 64] >> i % 64 & 1)
			found[i] = UCM_FOUND_UNKNOWN;
		else
			found[i] = bits[i / 64] >> i % 64 & 1;
	}
	return err;
}

int ucm_socket_ask_one(struct ucm_source *source, enum ucm_serve_verb verb,
		       const char *space, const struct ucm_id *id)
{
	struct ucm_tries tries = { .err = 0 };
	int32_t answer;

	while (ucm_socket_try(source, &tries))
		tries.err = ucm_client_ids(tries.client, verb, space, 0, id, 1,
					   &answer);
	return tries.err ?: answer;
}

static int socket_look(struct ucm_source *source, const char *space,
		       const struct ucm_id *id)
{
	return ucm_socket_ask_one(source, UCM_SERVE_LOOKUP, space, id);
}

static int socket_prefix(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, size_t num, size_t *count_out,
			bool *unknown_out)
{
	struct question question = {
		.ids = ids,
		.num = num,
	};
	int err = ask_space(source, space, &question);

	if (err)
		return err;
	*count_out = question.count;
	*unknown_out = question.doubt;
	return 0;
}

/* ---- reading ---- */

static void socket_descriptors(struct ucm_source *source, const char *space,
			       const struct ucm_id *ids, unsigned num,
			       struct ucm_given *given)
{
	struct ucm_serve_opened opened[UCM_SOURCE_DESCRIPTORS];
	int fds[UCM_SOURCE_DESCRIPTORS];
	struct ucm_tries tries = { .err = 0 };

	renew_view(source, space);
	while (ucm_socket_try(source, &tries))
		tries.err = ucm_client_open(tries.client, space, ids, num, fds,
					    opened);
	for (unsigned i = 0; i < num; i++) {
		given[i] = (struct ucm_given){ .fd = tries.err ?: fds[i] };
		if (given[i].fd < 0)
			continue;
		given[i].directory = opened[i].directory < UCM_DIRECTORIES
					     ? opened[i].directory
					     : UCM_DIRECTORIES;
		given[i].local = opened[i].flags & UCM_OPENED_LOCAL;
	}
}

/* ---- a daemon that has gone ---- */

/* What was learned a moment ago still holds: those that come together find out
 * together. */
static bool is_to_be_tried(struct ucm_source *source, bool *gone_out)
{
	int64_t now_ms = ucm_monotonic_ms();
	bool yes;

	pthread_mutex_lock(&source->lock);
	yes = now_ms - source->tried_ms >= RETRY_MS;
	if (yes)
		source->tried_ms = now_ms;
	*gone_out = source->told;
	pthread_mutex_unlock(&source->lock);
	return yes;
}

static bool socket_lost(struct ucm_source *source)
{
	struct ucm_client *client;
	bool gone, was;

	if (!is_to_be_tried(source, &gone))
		return !gone;
	gone = ucm_client_connect(source->path, &client);
	if (!gone)
		give_back(source, client);
	pthread_mutex_lock(&source->lock);
	was = source->told;
	source->told = gone;
	pthread_mutex_unlock(&source->lock);
	if (was != gone)
		ucm_log(gone ? UCM_LOG_WARNING : UCM_LOG_INFO,
			gone ? "%s: the daemon has gone"
			     : "%s: the daemon is back",
			source->path);
	return !gone;
}

const struct ucm_source_ops ucm_source_socket = {
	.name = "socket",
	.open = socket_open,
	.close = socket_close,
	.check_space = socket_check_space,
	.offer = ucm_socket_offer,
	.descriptors = socket_descriptors,
	.where = socket_where,
	.lookup = socket_lookup,
	.look = socket_look,
	.prefix = socket_prefix,
	.lost = socket_lost,
	.create = ucm_socket_create,
	.reopen = ucm_socket_reopen,
	.commit = ucm_socket_commit,
	.drop = ucm_socket_drop,
	.remove = ucm_socket_remove,
};
