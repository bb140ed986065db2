/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.c - what a peer may ask for, and what the store does then.
 *
 * A message is checked here, against one row of the table: its length, number of
 * items, flags, the space's name, and the peer's right. So a handler sees whole
 * items only. Nothing in a message is believed but the ids themselves.
 */
#include <config.h>

#include "fs/serve/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/store/find/calls.h"
#include "fs/store/motion/motion.h"
#include "fs/store/motion/offers.h"
#include "fs/store/value.h"

/* Who may make a request, beside root and the daemon's user. */
enum right {
	READER, /* who may read the space's blocks */
	WRITER, /* the space's owner, and not in a read-only store */
	OWNER,	/* the store's owner */
	CHANGER, /* the same, and not in a read-only store */
};

struct row {
	int (*run)(struct ucm_exchange *exchange);
	enum right right;
	uint32_t in, out;   /* bytes of an item of the request, of the answer */
	uint32_t most;      /* items of a request */
	uint32_t flags;     /* that it takes */
	uint32_t argument;  /* its largest */
	enum ucm_calls_op op; /* run_batch */
};

/* ---- who may ---- */

bool ucm_peer_is_daemons(const struct ucm_peer *peer)
{
	return peer->uid == 0 || peer->uid == geteuid();
}

/* Has it closed its end? */
static bool peer_has_left(void *arg)
{
	const struct ucm_peer *peer = arg;
	struct pollfd fd = { .fd = peer->fd, .events = POLLRDHUP };

	return poll(&fd, 1, 0) > 0;
}

int ucm_peer_may(const struct ucm_peer *peer, struct ucm_space *space,
		 bool writes)
{
	bool is_owner, is_private;

	pthread_mutex_lock(&space->lock);
	is_owner = space->uid == peer->uid;
	is_private = space->is_private;
	pthread_mutex_unlock(&space->lock);
	if (is_owner || ucm_peer_is_daemons(peer))
		return 0;
	return is_private || writes ? -EACCES : 0;
}

static int check_right(const struct ucm_peer *peer, enum right right)
{
	if ((right == OWNER || right == CHANGER) && !ucm_peer_is_daemons(peer) &&
	    peer->uid != peer->terms->store->names.spaces[0]->uid)
		return -EPERM;
	if ((right == WRITER || right == CHANGER) && peer->terms->readonly)
		return -EROFS;
	return 0;
}

/* The space that a request names, if the peer may do that there. */
static int find_space(struct ucm_exchange *exchange, enum right right)
{
	struct ucm_store *store = exchange->peer->terms->store;
	const char *name = exchange->request->space;

	exchange->space = *name ? ucm_store_meet_space(store, name)
				: ucm_namespace_get(&store->names, 0);
	if (!exchange->space)
		return -ENOENT;
	return ucm_peer_may(exchange->peer, exchange->space, right == WRITER);
}

/* ---- many blocks ---- */

static const struct row *row_of(uint32_t verb);

static int run_batch(struct ucm_exchange *exchange)
{
	struct ucm_store *store = exchange->peer->terms->store;
	const struct ucm_serve_request *request = exchange->request;
	const struct row *row = row_of(request->verb);
	const struct ucm_id *ids = exchange->items;
	int32_t *results = exchange->out;

	for (uint32_t i = 0; i < request->num; i++) {
		const struct ucm_key key = ucm_exchange_key(exchange, &ids[i]);

		results[i] = ucm_calls_one(store, row->op, &key);
	}
	return 0;
}

/* The policy learns what a program wants, head first, but not what it has learnt
 * before: a request that waits is still the same. One that names a time wants to have
 * them kept. */
static int run_expect(struct ucm_exchange *exchange)
{
	uint32_t ms = exchange->request->argument;
	struct ucm_store *store = exchange->peer->terms->store;
	const struct ucm_id *ids = exchange->items;
	uint32_t num = exchange->request->num;
	int32_t *results = exchange->out;
	bool is_new = false;

	for (uint32_t i = 0; i < num; i++) {
		const struct ucm_key key = ucm_exchange_key(exchange, &ids[i]);
		int known = ucm_calls_expect(store, &key, ms);

		is_new |= known == 0;
		results[i] = known < 0 ? known : 0;
	}
	if (is_new && !ms)
		ucm_value_asked(store, exchange->space->number, ids, num);
	return 0;
}

static int run_end(struct ucm_exchange *exchange)
{
	const struct ucm_id *ids = exchange->items;
	int32_t *results = exchange->out;
	int err = exchange->peer->terms->readonly
			  ? -EROFS
			  : ucm_peer_may(exchange->peer, exchange->space, true);

	for (uint32_t i = 0; !err && i < exchange->request->num; i++) {
		const struct ucm_key key = ucm_exchange_key(exchange, &ids[i]);

		results[i] = ucm_evict_first(exchange->peer->terms->store, &key);
	}
	return err;
}

static int run_touch(struct ucm_exchange *exchange)
{
	uint32_t flags = exchange->request->flags;

	if (flags == UCM_TOUCH_EXPECTED)
		return run_expect(exchange);
	if (exchange->request->argument || flags & UCM_TOUCH_EXPECTED)
		return -EINVAL;
	return flags ? run_end(exchange) : run_batch(exchange);
}

static int run_offer(struct ucm_exchange *exchange)
{
	return ucm_offers_judge(exchange->peer->terms->store,
				exchange->space->number, exchange->items,
				exchange->request->num,
				exchange->request->bytes, exchange->out);
}

static int run_verified(struct ucm_exchange *exchange)
{
	const struct ucm_control_verified_block *blocks = exchange->items;
	int32_t *results = exchange->out;

	for (uint32_t i = 0; i < exchange->request->num; i++) {
		const struct ucm_key key = ucm_exchange_key(exchange, &blocks[i].id);

		results[i] = ucm_calls_verified(exchange->peer->terms->store,
						&key, blocks[i].stamp);
	}
	return 0;
}

static int run_locate(struct ucm_exchange *exchange)
{
	const struct ucm_id *ids = exchange->items;
	struct ucm_control_place *places = exchange->out;

	for (uint32_t i = 0; i < exchange->request->num; i++) {
		const struct ucm_key key = ucm_exchange_key(exchange, &ids[i]);

		ucm_calls_locate(exchange->peer->terms->store, &key,
				 exchange->request->flags, &places[i]);
	}
	return 0;
}

static int run_path(struct ucm_exchange *exchange)
{
	struct ucm_store *store = exchange->peer->terms->store;
	const struct ucm_key key = ucm_exchange_key(exchange, exchange->items);
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_store_peek(store, &key, &entry, &ref);

	return err ? err
		   : ucm_store_path(store, &entry, exchange->out,
				    exchange->out_size);
}

/* ---- the whole store ---- */

/* A descriptor that can be mapped, and nothing else be done with. */
static void give_memory(struct ucm_exchange *exchange, int fd, int flags,
			uint64_t *bytes)
{
	char path[32];
	int given;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	given = *bytes && fd >= 0 ? open(path, flags | O_CLOEXEC) : -1;
	if (given < 0)
		*bytes = 0;
	else
		exchange->fds[exchange->num_fds++] = given;
}

static int run_hello(struct ucm_exchange *exchange)
{
	const struct ucm_server_terms *terms = exchange->peer->terms;
	bool gives = exchange->request->flags & UCM_HELLO_MEMORY;
	struct ucm_serve_hello *hello = exchange->out;

	*hello = (struct ucm_serve_hello){
		.version = UCM_SERVE_VERSION,
		.flags = terms->readonly ? UCM_SERVE_READONLY : 0,
		.index_bytes = gives ? terms->index_bytes : 0,
		.budget_bytes = gives ? terms->budget_bytes : 0,
		.rate = terms->rate,
		.in_flight = terms->in_flight,
	};
	give_memory(exchange, terms->index_fd, O_RDONLY, &hello->index_bytes);
	give_memory(exchange, terms->budget_fd, O_RDWR, &hello->budget_bytes);
	return 0;
}

static int run_statistics(struct ucm_exchange *exchange)
{
	const struct ucm_server_terms *terms = exchange->peer->terms;

	if (terms->count)
		terms->count(terms->arg);
	ucm_calls_statistics(terms->store, exchange->out);
	return 0;
}

static struct ucm_medium *medium_of(const struct ucm_exchange *exchange,
				    unsigned *dir)
{
	const struct ucm_dirs *dirs = &exchange->peer->terms->store->dirs;

	for (*dir = 0; *dir < dirs->num; (*dir)++) {
		const char *path = dirs->at[*dir]->path;

		if (strlen(path) == exchange->size &&
		    !memcmp(path, exchange->items, exchange->size))
			return dirs->at[*dir];
	}
	return NULL;
}

static int run_drain(struct ucm_exchange *exchange)
{
	uint32_t what = exchange->request->argument;
	struct ucm_control_drain *out = exchange->out;
	unsigned dir;
	struct ucm_medium *medium = medium_of(exchange, &dir);

	if (!medium)
		return -ENOENT;
	if (medium->readonly)
		return -EROFS;
	if (what != UCM_DRAIN_ASK)
		ucm_movers_drain(exchange->peer->terms->store, dir,
				 what == UCM_DRAIN_BEGIN);
	out->draining = atomic_load(&medium->draining);
	out->blocks = atomic_load(&medium->blocks);
	out->bytes = atomic_load(&medium->used);
	out->stays = out->blocks ? atomic_load(&medium->stays) : 0;
	return 0;
}

static int run_flush(struct ucm_exchange *exchange)
{
	struct ucm_store *store = exchange->peer->terms->store;
	int err = ucm_movers_flush(store, peer_has_left, exchange->peer);

	return err == -EINTR ? err : ucm_store_sync(store) ? -EIO : err;
}

static int run_rescan(struct ucm_exchange *exchange)
{
	return ucm_calls_rescan(exchange->peer->terms->store, peer_has_left,
				exchange->peer);
}

static int run_checkpoint(struct ucm_exchange *exchange)
{
	return ucm_store_checkpoint(exchange->peer->terms->store);
}

static int give_bytes(struct ucm_exchange *exchange, const void *bytes,
		      size_t len)
{
	int fd = ucm_os_memory_file("ucmfs-answer");
	int err = fd < 0 ? fd : ucm_os_write_at(fd, bytes, len, 0);

	if (!err)
		exchange->fds[exchange->num_fds++] = fd;
	else if (fd >= 0)
		ucm_os_close(fd);
	return err;
}

/* One of the daemon's own, to free. */
static int daemons_text(const struct ucm_peer *peer, uint32_t what, char **out,
			size_t *len_out)
{
	const struct ucm_server_terms *terms = peer->terms;

	if (what != UCM_TEXT_METRICS && !ucm_peer_is_daemons(peer) &&
	    peer->uid != terms->store->names.spaces[0]->uid)
		return -EPERM;
	*out = terms->text ? terms->text(terms->arg, what, len_out) : NULL;
	return *out ? 0 : -ENOENT;
}

static int text_of(struct ucm_exchange *exchange, char **out, size_t *len_out)
{
	uint32_t what = exchange->request->argument;

	if (what == UCM_TEXT_MANIFEST)
		return ucm_peer_manifest(exchange, out, len_out);
	if (what == UCM_TEXT_SPACES)
		return ucm_peer_spaces(exchange, out, len_out);
	return daemons_text(exchange->peer, what, out, len_out);
}

static int run_text(struct ucm_exchange *exchange)
{
	_cleanup_free_ char *text = NULL;
	size_t len = 0;
	int err = text_of(exchange, &text, &len);

	return err ? err : give_bytes(exchange, text, len);
}

static int run_list(struct ucm_exchange *exchange)
{
	struct ucm_store *store = exchange->peer->terms->store;
	unsigned bucket = exchange->request->argument;
	struct ucm_entry entry;
	uint32_t cursor = 0;
	_cleanup_free_ char *ids = NULL;
	size_t len = 0;
	FILE *file;
	ucm_ref ref;
	int err = ucm_store_fill_bucket(store, exchange->space, bucket);

	if (err)
		return err;
	file = open_memstream(&ids, &len);
	if (!file)
		return -ENOMEM;
	while (ucm_index_next(store->index, exchange->space->number, bucket,
			      &cursor, &entry, &ref))
		fwrite(&entry.id, sizeof(entry.id), 1, file);
	return fclose(file) ? -ENOMEM : give_bytes(exchange, ids, len);
}

/* ---- the table ---- */

#define ID sizeof(struct ucm_id)
#define RESULT sizeof(int32_t)
#define ALL UCM_SERVE_ITEMS
#define FDS UCM_SERVE_DESCRIPTORS
#define BATCH(right, op) { run_batch, right, ID, RESULT, ALL, 0, 0, op }

/* in 0: the message has no items, whose answer is one struct of out bytes. */
static const struct row rows[UCM_SERVE_VERBS] = {
	[UCM_SERVE_HELLO] = { run_hello, READER, 0,
			      sizeof(struct ucm_serve_hello), 0,
			      UCM_HELLO_MEMORY, 0, 0 },
	[UCM_SERVE_LOOKUP] = BATCH(READER, UCM_BATCH_LOOKUP),
	[UCM_SERVE_TOUCH] = { run_touch, READER, ID, RESULT, ALL,
			      UCM_TOUCH_EXPECTED | UCM_TOUCH_ENDED,
			      UCM_EXPECTED_MOST_MS, UCM_BATCH_TOUCH },
	[UCM_SERVE_PIN] = BATCH(CHANGER, UCM_BATCH_PIN),
	[UCM_SERVE_UNPIN] = BATCH(CHANGER, UCM_BATCH_UNPIN),
	[UCM_SERVE_EVICT] = BATCH(CHANGER, UCM_BATCH_EVICT),
	[UCM_SERVE_REMOVE] = BATCH(WRITER, UCM_BATCH_REMOVE),
	[UCM_SERVE_WARM] = BATCH(CHANGER, UCM_BATCH_WARM),
	[UCM_SERVE_CHECK] = BATCH(CHANGER, UCM_BATCH_CHECK),
	[UCM_SERVE_OFFER] = { run_offer, READER,
			      sizeof(struct ucm_control_offered), RESULT, ALL, 0,
			      0, 0 },
	[UCM_SERVE_VERIFIED] = { run_verified, OWNER,
				 sizeof(struct ucm_control_verified_block),
				 RESULT, ALL, 0, 0, 0 },
	[UCM_SERVE_LOCATE] = { run_locate, READER, ID,
			       sizeof(struct ucm_control_place), ALL,
			       UCM_LOCATE_CRC | UCM_LOCATE_PEEK, 0, 0 },
	[UCM_SERVE_PATH] = { run_path, OWNER, ID, UCM_SERVE_PATH_MAX, 1, 0, 0, 0 },
	[UCM_SERVE_STATISTICS] = { run_statistics, READER, 0,
				   sizeof(struct ucm_control_statistics), 0, 0,
				   0, 0 },
	[UCM_SERVE_DRAIN] = { run_drain, OWNER, 1,
			      sizeof(struct ucm_control_drain),
			      UCM_SERVE_PATH_MAX, 0, UCM_DRAIN_END, 0 },
	[UCM_SERVE_FLUSH] = { run_flush, OWNER, 0, 0, 0, 0, 0, 0 },
	[UCM_SERVE_RESCAN] = { run_rescan, OWNER, 0, 0, 0, 0, 0, 0 },
	[UCM_SERVE_CHECKPOINT] = { run_checkpoint, OWNER, 0, 0, 0, 0, 0, 0 },
	[UCM_SERVE_TEXT] = { run_text, READER, 0, 0, 0, 0, UCM_TEXT_SPACES, 0 },
	[UCM_SERVE_LIST] = { run_list, READER, 0, 0, 0, 0, UCM_BUCKETS - 1, 0 },
	[UCM_SERVE_OPEN] = { ucm_peer_open, READER, ID,
			     sizeof(struct ucm_serve_opened), FDS, 0, 0, 0 },
	[UCM_SERVE_CREATE] = { ucm_peer_create, WRITER, ID,
			       sizeof(struct ucm_serve_created), FDS, 0, 0, 0 },
	[UCM_SERVE_COMMIT] = { ucm_peer_commit, READER,
			       sizeof(struct ucm_serve_commit), RESULT,
			       UCM_SERVE_COMMITS, 0, 0, 0 },
	[UCM_SERVE_CANCEL] = { ucm_peer_cancel, READER, sizeof(uint32_t), RESULT,
			       ALL, 0, 0, 0 },
	[UCM_SERVE_REOPEN] = { ucm_peer_reopen, READER, sizeof(uint32_t), RESULT,
			       FDS, 0, 0, 0 },
	[UCM_SERVE_MKSPACE] = { ucm_peer_mkspace, READER, 1, 0,
				UCM_MANIFEST_MAX - 1, 0, 07777, 0 },
	[UCM_SERVE_RMSPACE] = { ucm_peer_rmspace, WRITER, 0, 0, 0, 0, 0, 0 },
	[UCM_SERVE_SPACE] = { ucm_peer_space, READER, 0,
			      sizeof(struct ucm_serve_space), 0, 0, 0, 0 },
};

static const struct row *row_of(uint32_t verb)
{
	return verb < UCM_SERVE_VERBS && rows[verb].run ? &rows[verb] : NULL;
}

/* Those of one answer: of a request with a text, one, or none. */
static uint32_t answers_of(const struct row *row, uint32_t num)
{
	return row->in > 1 ? num : row->out ? 1 : 0;
}

static bool takes_bytes(const struct row *row)
{
	return row->run == run_offer || row->run == ucm_peer_create;
}

static int check(const struct row *row, const struct ucm_exchange *exchange)
{
	const struct ucm_serve_request *request = exchange->request;

	if (request->num > row->most ||
	    exchange->size != (size_t)request->num * row->in ||
	    request->flags & ~row->flags ||
	    request->argument > row->argument ||
	    (request->bytes && !takes_bytes(row)) ||
	    !memchr(request->space, 0, sizeof(request->space)))
		return -EINVAL;
	return row->run == run_path && request->num != 1 ? -EINVAL : 0;
}

/* A verb that needs no space is asked of the default one, which each peer may
 * name; one that it makes does not exist yet. */
static int serve(const struct row *row, struct ucm_exchange *exchange,
		 uint32_t *num)
{
	int err = check(row, exchange);

	if (!err)
		err = check_right(exchange->peer, row->right);
	if (!err && row->run != ucm_peer_mkspace)
		err = find_space(exchange, row->right);
	if (err)
		return err;
	*num = answers_of(row, exchange->request->num);
	exchange->out_size = (size_t)*num * row->out;
	exchange->out = calloc(1, exchange->out_size + 1);
	return exchange->out ? row->run(exchange) : -ENOMEM;
}

void ucm_peer_serve(struct ucm_exchange *exchange, size_t size,
		    struct ucm_serve_answer *head)
{
	const struct row *row;

	if (size < sizeof(*exchange->request) || size > UCM_SERVE_MESSAGE_MAX) {
		head->result = -EINVAL;
		return;
	}
	exchange->size = size - sizeof(*exchange->request);
	head->verb = exchange->request->verb;
	row = row_of(head->verb);
	head->result = row ? serve(row, exchange, &head->num) : -EOPNOTSUPP;
	if (head->result) {
		head->num = 0;
		exchange->out_size = 0;
	}
	head->descriptors = exchange->num_fds;
}
