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
 * one. New blocks are shared out to a few connections, as the daemon drops them with
 * theirs; a commit whose daemon has gone fails.
 */
#include <config.h>

#include "gpu/source/source.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ucm/client.h>
#include <ucm/index.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/reader/reader.h"
#include "hashing/tree.h"

#define RETRY_MS 200
#define IDLE_MOST 8u
#define SAVERS 4u

/* The live index of a space, opened when it is first asked. */
struct space_index {
	struct ucm_index_reader *reader; /* NULL: the daemon had gone */
	struct ucm_index_reader *view;   /* that nobody waits with; NULL: none */
	bool outdated;			 /* another one is to be made */
	struct space_index *next;
	char space[];
};

/* A connection that has drafts: they are its own, and end with it. */
struct saver {
	struct ucm_client *client;
	unsigned refs; /* of its drafts, and of its place among the savers */
};

struct ucm_source {
	char *path;
	pthread_mutex_t lock; /* guards these */
	struct ucm_client *idle[IDLE_MOST];
	unsigned num_idle;
	struct saver *savers[SAVERS]; /* NULL: none yet */
	unsigned turn;		      /* which of them is next */
	int64_t tried_ms;
	bool told; /* that it has gone, when it was last tried */
	pthread_mutex_t index_lock; /* guards the readers */
	pthread_mutex_t view_lock;  /* the list of indexes, and their views */
	struct space_index *indexes;
};

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
	if (source->num_idle < IDLE_MOST) {
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

/* A request, and what it is about. */
struct asked {
	int (*ask)(struct ucm_client *client, struct asked *asked);
	const char *space;
	const struct ucm_id *ids, *parents;
	size_t num;
	uint64_t bytes;
	int32_t *answers;
	int *fds;
	struct ucm_serve_opened *opened;
};

static int ask_with(struct ucm_source *source, struct ucm_client *client,
		    struct asked *asked)
{
	int err = asked->ask(client, asked);

	if (err == -ENOTCONN)
		ucm_client_close(client);
	else
		give_back(source, client);
	return err;
}

/* The daemon was there: its socket is missing, or nobody listens on it. */
static int connect_again(const struct ucm_source *source,
			 struct ucm_client **out)
{
	int err = ucm_client_connect(source->path, out);

	return err == -ENOENT || err == -ECONNREFUSED ? -ENOTCONN : err;
}

/* An idle connection may have died with its daemon. */
static int ask(struct ucm_source *source, struct asked *asked)
{
	struct ucm_client *client = take_idle(source);
	int err = -ENOTCONN;

	if (client) {
		err = ask_with(source, client, asked);
		if (err != -ENOTCONN)
			return err;
		close_idle(source);
	}
	err = connect_again(source, &client);
	return err ? err : ask_with(source, client, asked);
}

static void retire_savers(struct ucm_source *source);

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
		struct space_index *index = source->indexes;

		source->indexes = index->next;
		ucm_index_close(index->reader);
		ucm_index_close(index->view);
		free(index);
	}
	close_idle(source);
	retire_savers(source);
	pthread_mutex_destroy(&source->lock);
	pthread_mutex_destroy(&source->index_lock);
	pthread_mutex_destroy(&source->view_lock);
	free(source->path);
	free(source);
}

static int ask_space_there(struct ucm_client *client, struct asked *asked)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_LOOKUP };

	return ucm_client_items(client, &head, asked->space, NULL, 0, 0, NULL, 0);
}

static int ask_offer(struct ucm_client *client, struct asked *asked)
{
	return ucm_client_offer(client, asked->space, asked->ids,
				asked->parents, asked->num, asked->bytes,
				asked->answers);
}

static int socket_offer(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, const struct ucm_id *parents,
			size_t num, uint64_t bytes, int32_t *answers)
{
	struct asked asked = {
		.ask = ask_offer,
		.space = space,
		.ids = ids,
		.parents = parents,
		.num = num,
		.bytes = bytes,
		.answers = answers,
	};

	return ask(source, &asked);
}

/* ---- what a space's index says ---- */

/* Under the view lock. */
static struct space_index *find_index(const struct ucm_source *source,
				      const char *space)
{
	struct space_index *index = source->indexes;

	while (index && strcmp(index->space, space) != 0)
		index = index->next;
	return index;
}

static struct space_index *index_of(struct ucm_source *source,
				    const char *space)
{
	struct space_index *index;

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
	struct space_index *index;
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
	struct space_index *index = index_of(source, space);
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
	struct asked asked = { .ask = ask_space_there, .space = space };
	int err = ask(source, &asked);

	if (!err)
		renew_view(source, space);
	return err;
}

/* A question to an index, and its answer. */
struct question {
	int (*ask)(struct ucm_index_reader *reader, struct question *question);
	const struct ucm_id *ids;
	size_t num;
	uint64_t *present, *unknown; /* lookup: bitmaps */
	size_t count;                /* prefix: so many, and */
	int doubt;                   /* whether the next one is not known */
};

static int ask_each(struct ucm_index_reader *reader, struct question *question)
{
	return ucm_index_lookup(reader, question->ids, question->num,
				question->present, question->unknown);
}

static int ask_prefix(struct ucm_index_reader *reader,
		      struct question *question)
{
	return ucm_index_prefix(reader, question->ids, question->num,
				&question->count, &question->doubt);
}

/* A reader that finds its daemon gone is opened anew, for the next one. */
static int ask_index(struct ucm_source *source, struct space_index *index,
		     struct question *question)
{
	int err = -ENOTCONN;

	for (unsigned i = 0; i < 2 && err == -ENOTCONN; i++) {
		err = index->reader ? 0
				    : ucm_index_open(source->path, index->space,
						     &index->reader);
		if (!err)
			err = question->ask(index->reader, question);
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
	struct space_index *index;
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
		.ask = ask_each,
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

static int ask_look(struct ucm_client *client, struct asked *asked)
{
	return ucm_client_ids(client, UCM_SERVE_LOOKUP, asked->space, 0,
			      asked->ids, 1, asked->answers);
}

static int socket_look(struct ucm_source *source, const char *space,
		       const struct ucm_id *id)
{
	int32_t answer;
	struct asked asked = {
		.ask = ask_look,
		.space = space,
		.ids = id,
		.answers = &answer,
	};
	int err = ask(source, &asked);

	return err ? err : answer;
}

static int socket_prefix(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, size_t num, size_t *count_out,
			bool *unknown_out)
{
	struct question question = {
		.ask = ask_prefix,
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

static int ask_open(struct ucm_client *client, struct asked *asked)
{
	return ucm_client_open(client, asked->space, asked->ids, asked->num,
			       asked->fds, asked->opened);
}

static void socket_descriptors(struct ucm_source *source, const char *space,
			       const struct ucm_id *ids, unsigned num,
			       struct ucm_given *given)
{
	struct ucm_serve_opened opened[UCM_SOURCE_DESCRIPTORS];
	int fds[UCM_SOURCE_DESCRIPTORS];
	struct asked asked = {
		.ask = ask_open,
		.space = space,
		.ids = ids,
		.num = num,
		.fds = fds,
		.opened = opened,
	};
	int err;

	renew_view(source, space);
	err = ask(source, &asked);
	for (unsigned i = 0; i < num; i++) {
		given[i] = (struct ucm_given){ .fd = err ? err : fds[i] };
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

/* ---- new blocks ---- */

struct ucm_draft {
	struct saver *saver;
	uint32_t number;
};

static void put_saver(struct ucm_source *source, struct saver *saver)
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

/* Each ends with its last draft: the daemon has gone, and others of them are as dead
 * as the one that has shown it; or it is the end. */
static void retire_savers(struct ucm_source *source)
{
	for (unsigned i = 0; i < SAVERS; i++) {
		struct saver *saver;

		pthread_mutex_lock(&source->lock);
		saver = source->savers[i];
		source->savers[i] = NULL;
		pthread_mutex_unlock(&source->lock);
		if (saver)
			put_saver(source, saver);
	}
}

static struct saver *new_saver(const struct ucm_source *source, int *err)
{
	struct saver *saver = calloc(1, sizeof(*saver));

	*err = saver ? connect_again(source, &saver->client) : -ENOMEM;
	if (!*err)
		return saver;
	free(saver);
	return NULL;
}

/* The next one, with a reference. */
static struct saver *get_saver(struct ucm_source *source, int *err)
{
	struct saver **place, *saver, *made = NULL;

	pthread_mutex_lock(&source->lock);
	place = &source->savers[source->turn++ % SAVERS];
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

static int create_by(struct saver *saver, const char *space,
		     const struct ucm_id *id, uint64_t bytes, uint32_t *number)
{
	struct ucm_serve_created created;
	int fd;
	int err = ucm_client_create(saver->client, space, id, 1, bytes, &fd,
				    &created);

	*number = created.draft;
	return err ? err : fd;
}

static int socket_create(struct ucm_source *source, const char *space,
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
			retire_savers(source);
		if (fd < 0)
			put_saver(source, draft->saver);
	}
	if (fd < 0)
		free(draft);
	else
		*out = draft;
	return fd;
}

static int socket_reopen(struct ucm_source *source,
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
		retire_savers(source);
	put_saver(source, draft->saver);
	free(draft);
}

static void socket_drop(struct ucm_source *source, struct ucm_draft *draft)
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

static int socket_commit(struct ucm_source *source, struct ucm_draft *draft,
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
		socket_drop(source, draft);
		return err;
	}
	err = commit_closed(draft->saver->client, &commit);
	if (err == -EBUSY)
		socket_drop(source, draft);
	else
		end_draft(source, draft, err);
	return err;
}

static int ask_remove(struct ucm_client *client, struct asked *asked)
{
	int err = ucm_client_ids(client, UCM_SERVE_REMOVE, asked->space, 0,
				 asked->ids, 1, asked->answers);

	return err ? err : *asked->answers;
}

static int socket_remove(struct ucm_source *source, const char *space,
			 const struct ucm_id *id)
{
	int32_t answer = 0;
	struct asked asked = {
		.ask = ask_remove,
		.space = space,
		.ids = id,
		.answers = &answer,
	};

	return ask(source, &asked);
}

const struct ucm_source_ops ucm_source_socket = {
	.name = "socket",
	.open = socket_open,
	.close = socket_close,
	.check_space = socket_check_space,
	.offer = socket_offer,
	.descriptors = socket_descriptors,
	.where = socket_where,
	.lookup = socket_lookup,
	.look = socket_look,
	.prefix = socket_prefix,
	.lost = socket_lost,
	.create = socket_create,
	.reopen = socket_reopen,
	.commit = socket_commit,
	.drop = socket_drop,
	.remove = socket_remove,
};
