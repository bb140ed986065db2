/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_serve_model.c - threads that write, read and remove the same few blocks over
 * a server, against a model of what each of them may see.
 *
 * Each file that is written has a version of its own in its payload, and all of its
 * bytes follow from block and version. The model is a clock and, for each block:
 *
 *   - when the commit of each version ended: a read that begins after a removal has
 *     ended sees no version whose commit had ended when that removal began;
 *   - whether it is surely there (a commit has ended, and no removal was under way
 *     since it began) or surely absent (the same, the other way): then a look that
 *     no removal, or no commit, has overlapped says so.
 *
 * A version whose file was cancelled, short, or lost with its peer is never seen.
 * Held descriptors keep their bytes. Between rounds nothing is under way: what is
 * staged is what peers have not committed, and the model begins anew with what is
 * there.
 *
 * UCMFS_TEST_LONG=1: a hundred times as much.
 */
#include <config.h>

#include "tests/unit/serve_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/store/motion/motion.h"
#include "tests/unit/random.h"

#define IDS 20u
#define THREADS 6u
#define ROUND 500u /* things that a thread does in a round */
#define ROUNDS 7u
#define DRAFTS 6u
#define HELD 8u
#define BATCH 5u

#define NEVER UINT64_MAX

struct version {
	uint64_t ended; /* its commit; NEVER */
	bool begun;     /* its commit was asked for, and its file was whole */
};

static struct model {
	pthread_mutex_t lock; /* guards all */
	uint64_t clock;
	struct block {
		struct fx_file file; /* without a version */
		struct version *versions;
		uint32_t num;
		uint64_t dead; /* the latest begin of a removal that has ended */
		uint64_t removals, commits; /* that were begun */
		unsigned removing, committing;
		bool there, absent; /* surely */
	} blocks[IDS];
} model = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* What a thread has when nothing is under way. */
static struct worker {
	unsigned number;
	uint64_t random;
	struct ucm_client *client;
	struct draft {
		uint32_t draft, version;
		unsigned block;
		int fd; /* -1: closed */
		bool whole;
	} drafts[DRAFTS];
	unsigned num_drafts;
	struct held {
		int fd;
		unsigned block;
		uint32_t version;
	} held[HELD];
	unsigned num_held;
} workers[THREADS];

static unsigned draw(struct worker *worker, unsigned num)
{
	return (unsigned)(random_next(&worker->random) % num);
}

#define claim(condition, what)                                               \
	must_in_case(condition, worker->number, what)

/* ---- bytes ---- */

static void make_bytes(unsigned block, uint32_t version, struct fx_file *out)
{
	uint8_t *payload;

	*out = model.blocks[block].file;
	payload = out->bytes + out->block.data_offset;
	memcpy(payload, &version, sizeof(version));
	for (size_t i = sizeof(version); i < 64; i++)
		payload[i] = (uint8_t)(version * 31 + i);
	must(!ucm_block_encode(&out->block, payload, out->bytes,
			       out->block.data_offset));
}

/* The version that a descriptor has, all of it; or UINT32_MAX. */
static uint32_t read_version(unsigned block, int fd)
{
	struct fx_file want;
	uint32_t version;
	uint64_t at = model.blocks[block].file.block.data_offset;

	if (pread(fd, &version, sizeof(version), (off_t)at) != sizeof(version))
		return UINT32_MAX;
	make_bytes(block, version, &want);
	return fx_has_bytes(fd, &want) ? version : UINT32_MAX;
}

/* ---- the model ---- */

/* What was known when a call began. */
struct before {
	uint64_t clock, dead, removals, commits;
	bool there, absent, removing, committing;
};

static struct before look(unsigned i)
{
	const struct block *block = &model.blocks[i];
	struct before before;

	pthread_mutex_lock(&model.lock);
	before = (struct before){
		.clock = ++model.clock,
		.dead = block->dead,
		.removals = block->removals,
		.commits = block->commits,
		.there = block->there,
		.absent = block->absent,
		.removing = block->removing,
		.committing = block->committing,
	};
	pthread_mutex_unlock(&model.lock);
	return before;
}

/* Seen, or not: by a call that begun then. */
static void check_look(struct worker *worker, unsigned i,
		       const struct before *before, bool seen)
{
	const struct block *block = &model.blocks[i];

	pthread_mutex_lock(&model.lock);
	claim(seen || !before->there || block->removals != before->removals,
	      "a block that must be there is absent");
	claim(!seen || !before->absent || block->commits != before->commits,
	      "a block that must be absent is there");
	pthread_mutex_unlock(&model.lock);
}

static void check_version(struct worker *worker, unsigned i,
			  const struct before *before, uint32_t number)
{
	const struct block *block = &model.blocks[i];
	const struct version *version;

	pthread_mutex_lock(&model.lock);
	claim(number < block->num, "bytes of no version");
	version = &block->versions[number];
	claim(version->begun, "bytes of what was never committed");
	claim(version->ended > before->dead, "bytes of what was removed");
	pthread_mutex_unlock(&model.lock);
}

static struct before begin_removal(unsigned i)
{
	struct block *block = &model.blocks[i];
	struct before before = look(i);

	pthread_mutex_lock(&model.lock);
	before.clock = ++model.clock;
	before.commits = block->commits;
	before.committing = block->committing;
	block->removals++;
	block->removing++;
	block->there = false;
	pthread_mutex_unlock(&model.lock);
	return before;
}

static void end_removal(unsigned i, const struct before *before, bool done)
{
	struct block *block = &model.blocks[i];

	pthread_mutex_lock(&model.lock);
	block->removing--;
	if (done && before->clock > block->dead)
		block->dead = before->clock;
	if (done && !before->committing && block->commits == before->commits)
		block->absent = true;
	pthread_mutex_unlock(&model.lock);
}

static struct before begin_commit(const struct draft *draft)
{
	struct block *block = &model.blocks[draft->block];
	struct before before = look(draft->block);

	pthread_mutex_lock(&model.lock);
	before.removals = block->removals;
	before.removing = block->removing;
	block->commits++;
	block->committing++;
	block->absent = false;
	block->versions[draft->version].begun = true;
	pthread_mutex_unlock(&model.lock);
	return before;
}

static void end_commit(const struct draft *draft, const struct before *before)
{
	struct block *block = &model.blocks[draft->block];

	pthread_mutex_lock(&model.lock);
	block->committing--;
	block->versions[draft->version].ended = ++model.clock;
	if (!before->removing && block->removals == before->removals)
		block->there = true;
	pthread_mutex_unlock(&model.lock);
}

static uint32_t new_version(unsigned i)
{
	struct block *block = &model.blocks[i];
	uint32_t number;

	pthread_mutex_lock(&model.lock);
	if (!(block->num & (block->num - 1))) { /* full */
		block->versions = reallocarray(block->versions,
					       block->num ? 2 * block->num : 1,
					       sizeof(*block->versions));
		must(block->versions);
	}
	number = block->num++;
	block->versions[number] = (struct version){ .ended = NEVER };
	pthread_mutex_unlock(&model.lock);
	return number;
}

/* ---- what is done ---- */

static void do_create(struct worker *worker)
{
	struct draft *draft = &worker->drafts[worker->num_drafts];
	struct ucm_serve_created created;
	unsigned i = draw(worker, IDS);
	struct before before = look(i);
	struct fx_file file;
	size_t len;
	int fd;

	if (worker->num_drafts == DRAFTS)
		return;
	claim(!ucm_client_create(worker->client, NULL,
				 &model.blocks[i].file.key.id, 1,
				 model.blocks[i].file.len, &fd, &created),
	      "create");
	claim(fd >= 0 || fd == -EEXIST, "not created");
	check_look(worker, i, &before, fd < 0);
	if (fd < 0)
		return;
	*draft = (struct draft){
		.draft = created.draft,
		.version = new_version(i),
		.block = i,
		.fd = fd,
		.whole = draw(worker, 16),
	};
	make_bytes(i, draft->version, &file);
	len = draft->whole ? file.len : draw(worker, (unsigned)file.len);
	claim(pwrite(fd, file.bytes, len, 0) == (ssize_t)len, "not written");
	if (draw(worker, 8)) {
		close(fd);
		draft->fd = -1;
	}
	worker->num_drafts++;
}

static void forget_draft(struct worker *worker, unsigned at)
{
	if (worker->drafts[at].fd >= 0)
		close(worker->drafts[at].fd);
	worker->drafts[at] = worker->drafts[--worker->num_drafts];
}

static void commit_whole(struct worker *worker, const struct draft *draft)
{
	struct before before = begin_commit(draft);

	claim(!fx_commit_draft(worker->client, draft->draft), "not committed");
	end_commit(draft, &before);
}

static void do_commit(struct worker *worker)
{
	unsigned at = draw(worker, DRAFTS);
	struct draft *draft = &worker->drafts[at];

	if (at >= worker->num_drafts)
		return;
	if (draft->fd >= 0) {
		claim(fx_commit_draft(worker->client, draft->draft) == -EBUSY,
		      "an open file is committed");
		close(draft->fd);
		draft->fd = -1;
	}
	if (draft->whole)
		commit_whole(worker, draft);
	else
		claim(fx_commit_draft(worker->client, draft->draft) == -EINVAL,
		      "half a block is committed");
	forget_draft(worker, at);
}

static void do_cancel(struct worker *worker)
{
	unsigned at = draw(worker, DRAFTS);

	if (at >= worker->num_drafts)
		return;
	claim(!ucm_client_cancel(worker->client, &worker->drafts[at].draft, 1),
	      "cancel");
	forget_draft(worker, at);
}

static void keep(struct worker *worker, unsigned block, int fd,
		 uint32_t version)
{
	unsigned at = worker->num_held < HELD ? worker->num_held++
					      : draw(worker, HELD);
	struct held *held = &worker->held[at];

	if (held->fd >= 0)
		close(held->fd);
	*held = (struct held){ fd, block, version };
}

static void do_read(struct worker *worker)
{
	struct before befores[BATCH];
	unsigned blocks[BATCH], num = 1 + draw(worker, BATCH);
	struct ucm_id ids[BATCH] = { 0 };
	int fds[BATCH];

	for (unsigned i = 0; i < num; i++) {
		blocks[i] = draw(worker, IDS);
		ids[i] = model.blocks[blocks[i]].file.key.id;
		befores[i] = look(blocks[i]);
	}
	claim(!ucm_client_open(worker->client, NULL, ids, num, fds, NULL),
	      "open");
	for (unsigned i = 0; i < num; i++) {
		uint32_t version;

		claim(fds[i] >= 0 || fds[i] == -ENOENT, "not opened");
		check_look(worker, blocks[i], &befores[i], fds[i] >= 0);
		if (fds[i] < 0)
			continue;
		version = read_version(blocks[i], fds[i]);
		check_version(worker, blocks[i], &befores[i], version);
		if (draw(worker, 4))
			close(fds[i]);
		else
			keep(worker, blocks[i], fds[i], version);
	}
}

static void do_reread(struct worker *worker)
{
	const struct held *held = &worker->held[draw(worker, HELD)];

	if (held->fd >= 0)
		claim(read_version(held->block, held->fd) == held->version,
		      "a descriptor has other bytes");
}

static void do_lookup(struct worker *worker)
{
	struct before befores[IDS];
	struct ucm_id ids[IDS];
	int32_t results[IDS];

	for (unsigned i = 0; i < IDS; i++) {
		ids[i] = model.blocks[i].file.key.id;
		befores[i] = look(i);
	}
	claim(!ucm_client_ids(worker->client, UCM_SERVE_LOOKUP, NULL, 0, ids,
			      IDS, results), "lookup");
	for (unsigned i = 0; i < IDS; i++) {
		claim(results[i] == 0 || results[i] == 1, "unknown");
		check_look(worker, i, &befores[i], results[i]);
	}
}

static void do_remove(struct worker *worker)
{
	bool evict = draw(worker, 2);
	unsigned i = draw(worker, IDS);
	struct before before = begin_removal(i);
	int err = fx_one_id(worker->client,
			    evict ? UCM_SERVE_EVICT : UCM_SERVE_REMOVE, NULL,
			    &model.blocks[i].file);

	claim(!err || err == -ENOENT ||
	      (evict && (err == -EPERM || err == -EBUSY)), "not removed");
	end_removal(i, &before, !err);
}

static void do_pin(struct worker *worker)
{
	unsigned i = draw(worker, IDS);
	struct before before = look(i);
	int err = fx_one_id(worker->client,
			    draw(worker, 3) ? UCM_SERVE_UNPIN : UCM_SERVE_PIN,
			    NULL, &model.blocks[i].file);

	claim(!err || err == -ENOENT, "not pinned");
	check_look(worker, i, &before, !err);
}

/* Where new blocks are written, and where the old ones are. */
static void do_drain(struct worker *worker)
{
	const char *path = fx_set->dirs.at[draw(worker, 2)]->path;
	struct ucm_control_drain state;
	struct ucm_serve_request head = {
		.verb = UCM_SERVE_DRAIN,
		.num = (uint32_t)strlen(path),
		.argument = UCM_DRAIN_END,
	};

	if (path[strlen(path) - 1] == 'a' && draw(worker, 2))
		head.argument = UCM_DRAIN_BEGIN;
	claim(!ucm_client_call(worker->client, &head, path, 1, &state,
			       sizeof(state), NULL), "drain");
}

/* ---- peers that go ---- */

static void connect_worker(struct worker *worker)
{
	claim(!ucm_client_connect(fx_socket(), &worker->client), "connect");
}

static void do_leave(struct worker *worker)
{
	ucm_client_close(worker->client);
	while (worker->num_drafts)
		forget_draft(worker, 0);
	connect_worker(worker);
}

/* On a connection of its own: a file is created, perhaps written, and its commit
 * asked for; nobody reads the answer. What has become of it is not known in this
 * round. */
static void do_leave_early(struct worker *worker)
{
	unsigned i = draw(worker, IDS), far = draw(worker, 3);
	struct {
		struct ucm_serve_request head;
		struct ucm_id id;
	} create = { { .verb = UCM_SERVE_CREATE, .num = 1,
		       .bytes = model.blocks[i].file.len },
		     model.blocks[i].file.key.id };
	struct {
		struct ucm_serve_request head;
		struct ucm_serve_commit item;
	} commit = { { .verb = UCM_SERVE_COMMIT, .num = 1 }, { .draft = 1 } };
	struct ucm_serve_created created = { .result = 1 };
	struct ucm_serve_answer head;
	struct fx_file file;
	int fd = fx_dial(), fds[UCM_SERVE_DESCRIPTORS] = { -1 };

	if (!far) {
		claim(send(fd, &create, sizeof(create), 0) > 0, "send");
	} else {
		claim(fx_ask(fd, &create, sizeof(create), &head, &created,
			     sizeof(created), fds) > 0, "create");
	}
	if (fds[0] >= 0) {
		const struct draft draft = { .version = new_version(i),
					     .block = i };

		make_bytes(i, draft.version, &file);
		claim(pwrite(fds[0], file.bytes, file.len, 0) ==
		      (ssize_t)file.len, "not written");
		close(fds[0]);
		if (far == 2) {
			begin_commit(&draft);
			send(fd, &commit, sizeof(commit), MSG_NOSIGNAL);
		}
	}
	close(fd);
}

/* ---- rounds ---- */

static void do_one(struct worker *worker)
{
	unsigned what = draw(worker, 1000);

	if (what < 200)
		do_create(worker);
	else if (what < 400)
		do_commit(worker);
	else if (what < 430)
		do_cancel(worker);
	else if (what < 700)
		do_read(worker);
	else if (what < 750)
		do_reread(worker);
	else if (what < 830)
		do_lookup(worker);
	else if (what < 930)
		do_remove(worker);
	else if (what < 975)
		do_pin(worker);
	else if (what < 980)
		do_drain(worker);
	else if (what < 990)
		do_leave(worker);
	else
		do_leave_early(worker);
}

static void *round_main(void *arg)
{
	for (unsigned i = 0; i < ROUND; i++)
		do_one(arg);
	return NULL;
}

/* Whoever has left early, and a mover's files. */
static bool are_gone(void *arg)
{
	return ucm_server_peers(fx_server) == THREADS &&
	       fx_staged() == *(const unsigned *)arg;
}

/* Nothing is under way: what is there is known. */
static void settle(void)
{
	struct worker *worker = &workers[0];
	unsigned drafts = 0;

	for (unsigned i = 0; i < THREADS; i++)
		drafts += workers[i].num_drafts;
	fx_wait(are_gone, &drafts);
	for (unsigned i = 0; i < IDS; i++) {
		struct block *block = &model.blocks[i];
		struct before before = look(i);
		int fd = fx_open_one(worker->client, &block->file);

		check_look(worker, i, &before, fd >= 0);
		if (fd >= 0)
			check_version(worker, i, &before, read_version(i, fd));
		if (fd >= 0)
			close(fd);
		claim(!block->removing, "a removal is under way");
		block->committing = 0;
		block->there = fd >= 0;
		block->absent = fd < 0;
	}
}

/* The same for a commit of which nobody knows when it ended. */
static void end_commits(void)
{
	for (unsigned i = 0; i < IDS; i++) {
		struct block *block = &model.blocks[i];

		for (uint32_t j = 0; j < block->num; j++) {
			if (block->versions[j].begun &&
			    block->versions[j].ended == NEVER)
				block->versions[j].ended = ++model.clock;
		}
	}
}

static void play_round(void)
{
	pthread_t threads[THREADS];

	for (unsigned i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, round_main,
						&workers[i]), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	settle();
	end_commits();
}

static void __attribute__((constructor)) use_memory(void)
{
	fx_use_memory();
}

static void setup(void)
{
	fx_setup();
	fx_configure("fast=$/a:slow=$/b");
	fx_option("write", "fast:back");
	fx_open();
	fx_start();
	fx_set_terms();
	fx_serve();
	for (unsigned i = 0; i < IDS; i++) {
		fx_block(&model.blocks[i].file, i + 1,
			 i % 4 ? FX_PACKED : FX_PAGED);
		model.blocks[i].absent = true;
	}
}

static unsigned num_rounds(void)
{
	const char *text = getenv("UCMFS_TEST_LONG");

	return text && atoi(text) ? 100 * ROUNDS : ROUNDS;
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 3600);

UNIT_TEST(what_is_read_was_written_and_not_removed)
{
	unsigned before = fx_descriptors();

	for (unsigned i = 0; i < THREADS; i++) {
		workers[i].number = i;
		workers[i].random = random_case(i);
		for (unsigned j = 0; j < HELD; j++)
			workers[i].held[j].fd = -1;
		connect_worker(&workers[i]);
	}
	for (unsigned i = 0; i < num_rounds(); i++)
		play_round();
	for (unsigned i = 0; i < THREADS; i++) {
		struct worker *worker = &workers[i];

		for (unsigned j = 0; j < HELD; j++) {
			if (worker->held[j].fd >= 0)
				close(worker->held[j].fd);
		}
		while (worker->num_drafts)
			forget_draft(worker, 0);
		ucm_client_close(worker->client);
	}
	fx_wait_alone();
	ck_assert_int_eq(ucm_movers_flush(fx_set, NULL, NULL), 0);
	ck_assert_uint_eq(fx_staged(), 0);
	fx_wait_descriptors(before);
	fx_all_whole(fx_path("$/a"));
	fx_all_whole(fx_path("$/b"));
	for (unsigned i = 0; i < IDS; i++)
		free(model.blocks[i].versions);
}
