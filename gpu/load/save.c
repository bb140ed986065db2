/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - blocks that are written: from pages to committed files.
 *
 *	create -> for each part of the layers: gather, checksums, write -> header
 *	-> commit
 *
 * A block that fits one read is gathered after its header and written at once.
 * Of others the header is written last, so that the file is no block before it
 * is whole: whatever fails or dies on the way leaves nothing that could be
 * taken for one. A range of layers may be saved by itself; then the file stays
 * open and waits for the others. A block that is held waits likewise, without
 * its header, for the turn that commits it.
 *
 * A saving belongs to the block's id: two tasks that save one block have one
 * after the other. The one under way belongs to its part; when the part has
 * given it up, it is dropped at the next step.
 */
#include <config.h>

#include "gpu/load/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"

#define FILE_MODE 0644
#define PAGE ((uint64_t)UCM_BLOCK_PAGE)

/* A block of a part that waits for its turn. */
struct turn {
	struct ucm_part *part;
	uint32_t block;
	struct turn *next;
};

struct ucm_saving {
	struct ucm_engine_op op; /* create, write, close */
	struct ucm_copy_job job;
	struct ucm_engine *engine;
	const struct ucm_group *group;
	struct ucm_id id;
	struct ucm_place place;
	struct ucm_draft *draft; /* of sources that have drafts */
	int fd;
	bool direct;
	bool busy;         /* a step is under way */
	bool hungry;       /* waits for staging memory */
	bool headed;       /* the header is written, or may be */
	struct ucm_block written; /* what it says */
	bool held;         /* only a turn of ucm_save_commit() commits it */
	bool copied;       /* the pages of the present turn were taken */
	bool abandoned;    /* while it was busy */
	uint32_t *crcs;    /* of the planes */
	uint8_t *have;     /* layers that are written */
	uint32_t missing;  /* layers */
	struct ucm_slot slot;
	uint32_t first, end; /* layers that are in it */
	uint8_t *head;
	/* The present turn; part is NULL between turns, or given up. */
	struct ucm_task *task;
	struct ucm_part *part;
	uint32_t block, end_layer;
	struct turn *turns; /* that wait */
	struct ucm_saving *next;
};

static void queue_write(struct ucm_saving *saving, void *buffer, uint64_t len,
			uint64_t offset,
			void (*done)(struct ucm_engine *,
				     struct ucm_engine_op *));
static void next_chunk(struct ucm_saving *saving);
static void begin(struct ucm_saving *saving, struct ucm_part *part,
		  uint32_t block);

/* ---- turns ---- */

static void count_block(struct ucm_shared *shared,
			const struct ucm_task *task, uint32_t block)
{
	const struct ucm_outcome *outcome = &task->outcomes[block];

	if (outcome->skipped)
		ucm_add(&shared->stats.save_skipped, 1);
	else if (outcome->refused)
		ucm_add(&shared->stats.save_refused, 1);
	else if (outcome->err)
		ucm_add(&shared->stats.save_failed, 1);
}

static uint64_t turn_bytes(const struct ucm_task *task)
{
	if (task->is_commit)
		return 0;
	return (task->end_layer - task->first_layer) *
	       task->group->layer_bytes;
}

/* A block of a part is done with. */
static void settle(struct ucm_engine *engine, struct ucm_part *part,
		   uint32_t block, const struct ucm_outcome *outcome,
		   bool copied)
{
	struct ucm_task *task = part->task;

	if (!copied)
		ucm_task_copied(task);
	ucm_task_decide(task, block, outcome);
	if (!task->blocks[block].dropped) {
		atomic_fetch_sub(&engine->shared->save_waiting,
				 turn_bytes(task));
		count_block(engine->shared, task, block);
	}
	part->settled++;
	ucm_task_settle(task, block, 0);
}

/* The present turn ends. */
static void end_turn(struct ucm_saving *saving,
		     const struct ucm_outcome *outcome)
{
	struct ucm_part *part = saving->part;
	struct ucm_task *task = saving->task;

	saving->part = NULL;
	saving->task = NULL;
	saving->busy = false;
	saving->engine->savings_busy--;
	if (part)
		settle(saving->engine, part, saving->block, outcome,
		       saving->copied);
	ucm_task_put(task);
}

static struct ucm_saving *find(struct ucm_engine *engine,
			       const struct ucm_group *group,
			       const struct ucm_id *id)
{
	struct ucm_saving *saving = engine->savings;

	while (saving && (saving->group != group ||
			  memcmp(&saving->id, id, sizeof(*id)) != 0))
		saving = saving->next;
	return saving;
}

static void give_slot(struct ucm_saving *saving)
{
	struct ucm_engine *engine = saving->engine;

	if (!saving->slot.memory)
		return;
	engine->saving_bytes -= saving->slot.len;
	ucm_staging_put(engine->staging, &saving->slot);
	ucm_engine_feed(engine);
}

/* ---- the end of a saving ---- */

static void free_saving(struct ucm_saving *saving)
{
	free(saving->crcs);
	free(saving->have);
	free(saving->head);
	free(saving);
}

static void on_dropped(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	(void)engine;
	free_saving((struct ucm_saving *)op);
}

/* Out of the list; whoever waited for it starts anew. */
static void leave(struct ucm_saving *saving)
{
	struct ucm_engine *engine = saving->engine;
	struct ucm_saving **at = &engine->savings;
	struct turn *turn = saving->turns;

	while (*at != saving)
		at = &(*at)->next;
	*at = saving->next;
	saving->turns = NULL;
	while (turn) {
		struct turn *next = turn->next;

		begin(NULL, turn->part, turn->block);
		free(turn);
		turn = next;
	}
}

static void close_dropped(struct ucm_saving *saving)
{
	saving->op.io = (struct ucm_io){ .op = UCM_IO_CLOSE, .fd = saving->fd };
	saving->op.done = on_dropped;
	ucm_engine_queue(saving->engine, &saving->op);
}

static void on_spoiled(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	(void)engine;
	close_dropped((struct ucm_saving *)op);
}

static void drop_draft(struct ucm_saving *saving)
{
	struct ucm_shared *shared = saving->engine->shared;

	if (saving->draft)
		shared->source_ops->drop(shared->source, saving->draft);
	saving->draft = NULL;
}

/* Would closing it commit it? What the kernel knows of the size will do, and
 * nobody has to be asked who might not answer. */
static bool may_be_whole(const struct ucm_saving *saving)
{
	struct statx stx;

	if (!saving->headed || saving->engine->shared->source_ops->create)
		return false;
	return statx(saving->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
		     STATX_SIZE, &stx) ||
	       stx.stx_size >= saving->group->file_size;
}

/* The file is removed; nothing of it will be seen. Where closing it would
 * commit it, its header is wiped first. */
static void drop(struct ucm_saving *saving)
{
	static uint8_t nothing[PAGE] __attribute__((aligned(PAGE)));

	give_slot(saving);
	drop_draft(saving);
	leave(saving);
	if (saving->fd < 0)
		free_saving(saving);
	else if (may_be_whole(saving))
		queue_write(saving, nothing, sizeof(nothing), 0, on_spoiled);
	else
		close_dropped(saving);
}

static void fail(struct ucm_saving *saving, int err, const char *what)
{
	struct ucm_outcome outcome = { .err = err };
	char hex[UCM_ID_HEX + 1];

	if (saving->part) {
		ucm_id_format(&saving->id, hex);
		ucm_warning("block %s: not saved: %s: %s", hex, what,
			    strerror(-err));
	}
	if (err == -ENOSPC || err == -EDQUOT) /* removed ones may be open */
		ucm_load_files_close(saving->engine);
	if (ucm_is_lost(err))
		saving->engine->shared->source_ops->lost(
			saving->engine->shared->source);
	drop_draft(saving); /* before anybody hears of it */
	end_turn(saving, &outcome);
	drop(saving);
}

/* Has the turn been given up meanwhile? Then nothing is left to do. */
static bool is_given_up(struct ucm_saving *saving)
{
	if (saving->part &&
	    !ucm_task_block_decided(saving->task, saving->block))
		return false;
	end_turn(saving, &(struct ucm_outcome){ .err = -ECANCELED });
	drop(saving);
	return true;
}

/* ---- commit ---- */

static void end_well(struct ucm_saving *saving, bool skipped)
{
	struct ucm_outcome outcome = { .skipped = skipped };

	if (!skipped)
		ucm_add(&saving->engine->shared->stats.save_bytes,
			turn_bytes(saving->task));
	end_turn(saving, &outcome);
}

static void on_committed(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_saving *saving = (struct ucm_saving *)op;
	int result = (int)op->io.result;

	saving->fd = -1; /* closed, whatever close(2) says */
	if (result < 0) {
		fail(saving, result, "commit");
		return;
	}
	ucm_add(&engine->shared->stats.saves, 1);
	end_well(saving, false);
	drop(saving);
}

static void commit(struct ucm_saving *saving)
{
	struct ucm_shared *shared = saving->engine->shared;
	int err = 0;

	if (saving->draft) {
		err = shared->source_ops->commit(shared->source, saving->draft,
						 saving->fd, &saving->written);
		saving->draft = NULL;
	}
	if (err) {
		fail(saving, err, "commit");
		return;
	}
	saving->op.io = (struct ucm_io){ .op = UCM_IO_CLOSE, .fd = saving->fd };
	saving->op.done = on_committed;
	ucm_engine_queue(saving->engine, &saving->op);
}

/* ---- write ---- */

static void queue_write(struct ucm_saving *saving, void *buffer, uint64_t len,
			uint64_t offset,
			void (*done)(struct ucm_engine *,
				     struct ucm_engine_op *))
{
	saving->op.io = (struct ucm_io){
		.op = UCM_IO_WRITE,
		.fd = saving->fd,
		.buffer = buffer,
		.len = len,
		.offset = (off_t)offset,
		.align = saving->direct ? (uint32_t)PAGE : 1,
	};
	saving->op.done = done;
	ucm_engine_queue(saving->engine, &saving->op);
}

/* No id is none. */
static bool has_parent(const struct ucm_task *task, uint32_t block)
{
	static const struct ucm_id none;

	return task->parents &&
	       memcmp(&task->parents[block], &none, sizeof(none)) != 0;
}

static int encode_head(struct ucm_saving *saving, void *bytes)
{
	const struct ucm_task *task = saving->task;
	struct ucm_block block = {
		.id = saving->id,
		.geometry = saving->group->layout->geometry,
		.form = UCM_FORM_PAGED,
		.data_offset = saving->group->data_offset,
		.flags = UCM_BLOCK_HAS_CRC,
	};
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	block.created_ns = (uint64_t)ucm_time_ns(&now);
	if (has_parent(task, saving->block)) {
		block.flags |= UCM_BLOCK_HAS_PARENT;
		block.parent = task->parents[saving->block];
	}
	saving->written = block;
	return ucm_block_encode_planes(&block, saving->crcs, bytes,
				       block.data_offset);
}

static void on_head_written(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_saving *saving = (struct ucm_saving *)op;

	(void)engine;
	if (is_given_up(saving))
		return;
	if (op->io.result < 0)
		fail(saving, (int)op->io.result, "write");
	else
		commit(saving);
}

/* All layers are there. */
static void write_head(struct ucm_saving *saving)
{
	uint32_t len = saving->group->data_offset;
	int err;

	if (saving->headed) {
		commit(saving);
		return;
	}
	saving->headed = true;
	saving->head = aligned_alloc(PAGE, len);
	err = saving->head ? encode_head(saving, saving->head) : -ENOMEM;
	if (err)
		fail(saving, err, "header");
	else
		queue_write(saving, saving->head, len, 0, on_head_written);
}

/* Its file is open: if a turn drops it, it stays until that is closed. */
static void next_turns(struct ucm_saving *saving)
{
	while (!saving->busy && saving->turns) {
		struct turn *turn = saving->turns;

		saving->turns = turn->next;
		begin(saving, turn->part, turn->block);
		free(turn);
	}
}

/* Some layers are there; whoever waits with others is next. */
static void end_part(struct ucm_saving *saving)
{
	end_well(saving, false);
	if (saving->abandoned)
		drop(saving);
	else
		next_turns(saving);
}

static void on_written(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_saving *saving = (struct ucm_saving *)op;

	(void)engine;
	ucm_slot_move(&saving->slot, UCM_SLOT_IO, UCM_SLOT_HELD);
	if (is_given_up(saving))
		return;
	if (op->io.result < 0) {
		fail(saving, (int)op->io.result, "write");
		return;
	}
	for (uint32_t i = saving->first; i < saving->end; i++) {
		saving->missing -= !saving->have[i];
		saving->have[i] = 1;
	}
	give_slot(saving);
	if (saving->end < saving->end_layer)
		next_chunk(saving);
	else if (!saving->missing && !saving->held)
		write_head(saving);
	else
		end_part(saving);
}

/* ---- gather ---- */

/* The whole block in one write, header first. */
static bool is_single(const struct ucm_saving *saving)
{
	return !saving->held && saving->first == 0 &&
	       saving->end == saving->group->layout->geometry.num_layers;
}

static uint64_t file_offset(const struct ucm_saving *saving)
{
	return is_single(saving)
		       ? 0
		       : saving->group->data_offset +
				 saving->first * saving->group->layer_bytes;
}

static uint64_t file_end(const struct ucm_saving *saving)
{
	const struct ucm_group *group = saving->group;

	return saving->end == group->layout->geometry.num_layers
		       ? group->file_size
		       : group->data_offset + saving->end * group->layer_bytes;
}

static uint8_t *payload_in_slot(const struct ucm_saving *saving)
{
	return saving->slot.memory +
	       (is_single(saving) ? saving->group->data_offset : 0);
}

static void take_checksums(struct ucm_saving *saving)
{
	const struct ucm_geometry *g = &saving->group->layout->geometry;
	const uint8_t *at = payload_in_slot(saving);

	for (uint32_t layer = saving->first; layer < saving->end; layer++) {
		saving->crcs[2 * layer] = ucm_crc32c(0, at, g->k_bytes);
		at += g->k_bytes;
		saving->crcs[2 * layer + 1] = ucm_crc32c(0, at, g->v_bytes);
		at += g->v_bytes;
	}
	/* the tail after the payload is zero */
	memset((uint8_t *)(uintptr_t)at, 0,
	       saving->slot.len -
		       (size_t)(at - saving->slot.memory));
}

/* O_DIRECT wants whole pages; layers that are none go through the cache. */
static void fit_descriptor(struct ucm_saving *saving, uint64_t offset,
			   uint64_t len)
{
	if (!saving->direct || !((offset | len) & (PAGE - 1)))
		return;
	if (!fcntl(saving->fd, F_SETFL, O_WRONLY))
		saving->direct = false;
}

static void on_gathered(struct ucm_saving *saving)
{
	uint64_t offset = file_offset(saving);

	ucm_slot_copied(&saving->slot, saving->job.lost);
	if (is_given_up(saving))
		return;
	if (saving->job.err) {
		fail(saving, saving->job.err, "gather");
		return;
	}
	if (saving->end == saving->end_layer) {
		ucm_task_copied(saving->task);
		saving->copied = true;
	}
	take_checksums(saving);
	if (is_single(saving)) {
		saving->headed = !encode_head(saving, saving->slot.memory);
		if (!saving->headed) {
			fail(saving, -EINVAL, "header");
			return;
		}
	}
	fit_descriptor(saving, offset, saving->slot.len);
	ucm_slot_move(&saving->slot, UCM_SLOT_HELD, UCM_SLOT_IO);
	queue_write(saving, saving->slot.memory, saving->slot.len, offset,
		    on_written);
}

static void on_copied(struct ucm_copy_job *job)
{
	on_gathered((struct ucm_saving *)((char *)job -
					  offsetof(struct ucm_saving, job)));
}

static void gather(struct ucm_saving *saving)
{
	const struct ucm_task *task = saving->task;
	const struct ucm_layout *layout = saving->group->layout;
	struct ucm_engine *engine = saving->engine;

	saving->job = (struct ucm_copy_job){
		.copied = on_copied,
		.group = saving->group->number,
		.first_layer = saving->first,
		.end_layer = saving->end,
		.staging = payload_in_slot(saving),
		.page = task->blocks[saving->block].page,
	};
	if (task->addresses)
		saving->job.addresses =
			task->addresses +
			(uint64_t)saving->block * task->num_addresses +
			(layout->layer_first[saving->first] -
			 layout->layer_first[task->first_layer]);
	ucm_slot_move(&saving->slot, UCM_SLOT_HELD, UCM_SLOT_COPY);
	if (engine->pages_are_host) {
		ucm_host_gather(layout, &saving->job);
		on_gathered(saving);
	} else {
		saving->job.next = engine->to_gather;
		engine->to_gather = &saving->job;
	}
}

/* How many layers to a write: as many as a read, whole pages if that is not too
 * much for the staging memory. */
static uint32_t chunk_end(const struct ucm_saving *saving, uint32_t first)
{
	const struct ucm_group *group = saving->group;
	uint64_t most = saving->engine->shared->read_bytes / group->layer_bytes;
	uint64_t each = ucm_plan_multiple(group->layer_bytes, (uint32_t)PAGE);
	uint64_t room = ucm_staging_len(saving->engine->staging) / 4;

	if (most > each)
		each = most - most % each;
	else if (each * group->layer_bytes > room)
		each = most ? most : 1;
	return saving->end_layer - first <= each ? saving->end_layer
						 : first + (uint32_t)each;
}

static void next_chunk(struct ucm_saving *saving)
{
	struct ucm_engine *engine = saving->engine;
	uint64_t len;
	int err;

	if (is_given_up(saving))
		return;
	saving->first = saving->end;
	saving->end = chunk_end(saving, saving->first);
	len = file_end(saving) - file_offset(saving);
	/* loads have half of the staging memory for themselves */
	if (engine->saving_bytes &&
	    engine->saving_bytes + len > ucm_staging_len(engine->staging) / 2)
		err = -EAGAIN;
	else
		err = ucm_staging_get(engine->staging, len, &saving->slot);
	if (err == -EAGAIN) {
		saving->end = saving->first;
		saving->hungry = true;
	} else if (err) {
		fail(saving, err, "staging memory");
	} else {
		engine->saving_bytes += len;
		gather(saving);
	}
}

/* ---- create ---- */

static void created(struct ucm_saving *saving, int fd)
{
	if (fd == -EEXIST) {
		end_well(saving, true);
		drop(saving);
		return;
	}
	if (fd < 0) {
		fail(saving, fd, "create");
		return;
	}
	saving->fd = fd;
	next_chunk(saving);
}

static void create(struct ucm_saving *saving);

static void on_created(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_saving *saving = (struct ucm_saving *)op;
	int result = (int)op->io.result;

	(void)engine;
	if (result == -EINVAL && saving->direct) {
		atomic_store(&saving->place.dir->no_direct, true);
		create(saving);
		return;
	}
	created(saving, result);
}

static int create_draft(struct ucm_saving *saving)
{
	struct ucm_shared *shared = saving->engine->shared;
	int fd = shared->source_ops->create(shared->source,
					    saving->group->space, &saving->id,
					    saving->group->file_size,
					    &saving->draft);

	saving->direct = fd >= 0 && !fcntl(fd, F_SETFL, O_DIRECT);
	return fd;
}

static void create(struct ucm_saving *saving)
{
	struct ucm_shared *shared = saving->engine->shared;
	int err;

	if (shared->source_ops->create) {
		created(saving, create_draft(saving));
		return;
	}
	err = shared->source_ops->place
		      ? shared->source_ops->place(
				shared->source, saving->group->space,
				&saving->id, 0, &saving->place)
		      : -EOPNOTSUPP; /* it is only read */
	if (err) {
		created(saving, err);
		return;
	}
	saving->direct = !atomic_load(&saving->place.dir->no_direct);
	saving->op.io = (struct ucm_io){
		.op = UCM_IO_OPEN,
		.fd = saving->place.dir->fd,
		.path = saving->place.path,
		.flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC |
			 (saving->direct ? O_DIRECT : 0),
		.mode = FILE_MODE,
	};
	saving->op.done = on_created;
	ucm_engine_queue(saving->engine, &saving->op);
}

static struct ucm_saving *new_saving(struct ucm_engine *engine,
				     const struct ucm_group *group,
				     const struct ucm_id *id)
{
	uint32_t layers = group->layout->geometry.num_layers;
	struct ucm_saving *saving = calloc(1, sizeof(*saving));

	if (!saving)
		return NULL;
	saving->crcs = calloc(2 * (size_t)layers, sizeof(*saving->crcs));
	saving->have = calloc(layers, 1);
	if (!saving->crcs || !saving->have) {
		free_saving(saving);
		return NULL;
	}
	saving->engine = engine;
	saving->group = group;
	saving->id = *id;
	saving->fd = -1;
	saving->missing = layers;
	saving->next = engine->savings;
	engine->savings = saving;
	return saving;
}

static void wait_for_turn(struct ucm_saving *saving, struct ucm_part *part,
			  uint32_t block)
{
	struct turn *turn = malloc(sizeof(*turn)), **at = &saving->turns;

	if (!turn) {
		settle(saving->engine, part, block,
		       &(struct ucm_outcome){ .err = -ENOMEM }, false);
		return;
	}
	while (*at)
		at = &(*at)->next;
	*turn = (struct turn){ .part = part, .block = block };
	*at = turn;
}

static void commit_held(struct ucm_saving *saving)
{
	if (saving->missing)
		end_turn(saving, &(struct ucm_outcome){ .err = -EAGAIN });
	else
		write_head(saving);
}

/* A block's turn; saving, if there is an open one that is free. */
static void begin(struct ucm_saving *saving, struct ucm_part *part,
		  uint32_t block)
{
	struct ucm_task *task = part->task;
	struct ucm_engine *engine = task->engines[part - task->parts];

	if (!saving)
		saving = find(engine, task->group, &task->blocks[block].id);
	if (saving && saving->busy) {
		wait_for_turn(saving, part, block);
		return;
	}
	if (!saving && task->is_commit) {
		settle(engine, part, block,
		       &(struct ucm_outcome){ .err = -ENOENT }, false);
		return;
	}
	if (!saving)
		saving = new_saving(engine, task->group,
				    &task->blocks[block].id);
	if (!saving) {
		settle(engine, part, block,
		       &(struct ucm_outcome){ .err = -ENOMEM }, false);
		return;
	}
	ucm_task_get(task);
	saving->busy = true;
	engine->savings_busy++;
	saving->copied = false;
	saving->task = task;
	saving->part = part;
	saving->block = block;
	saving->end = task->first_layer;
	saving->end_layer = task->end_layer;
	saving->held |= task->hold;
	if (task->is_commit)
		commit_held(saving);
	else if (saving->fd < 0)
		create(saving);
	else
		next_chunk(saving);
}

/* ---- what the source is told, and asked ---- */

/*
 * Before a task makes its first file, whoever keeps files is asked which of its
 * blocks it wants, if it may refuse some, and whoever places them is told the
 * parents of all. That may hang, so a thread for calls does it; whatever is saved
 * after it waits, so that turns stay in their order.
 */
enum telling { UNTOLD, TELLING, TOLD };

struct tell {
	struct ucm_engine_op op;
	struct ucm_shared *shared;
	struct ucm_task *task;
};

/* The first layers make the files. */
static bool has_to_tell(const struct ucm_shared *shared,
			const struct ucm_task *task)
{
	const struct ucm_source_ops *ops = shared->source_ops;

	return task->parents && !task->first_layer && ops->expect &&
	       ops->expects(shared->source);
}

static bool has_to_offer(const struct ucm_shared *shared,
			 const struct ucm_task *task)
{
	return task->may_refuse && shared->source_ops->offer;
}

/* A source that cannot say wants all. */
static void offer_blocks(const struct tell *tell, const struct ucm_id *ids)
{
	const struct ucm_shared *shared = tell->shared;
	struct ucm_task *task = tell->task;
	int32_t *answers = calloc(task->num_blocks, sizeof(*answers));

	if (!answers)
		return;
	if (shared->source_ops->offer(shared->source, task->group->space, ids,
				      task->parents, task->num_blocks,
				      task->group->file_size, answers))
		free(answers);
	else
		task->answers = answers;
}

static ssize_t tell_source(const void *of, void *buffer, size_t len,
			   off_t offset)
{
	const struct tell *tell = of;
	const struct ucm_shared *shared = tell->shared;
	const struct ucm_task *task = tell->task;
	struct ucm_id *ids = calloc(task->num_blocks, sizeof(*ids));

	(void)buffer, (void)len, (void)offset;
	for (size_t i = 0; ids && i < task->num_blocks; i++)
		ids[i] = task->blocks[i].id;
	if (ids && has_to_offer(shared, task))
		offer_blocks(tell, ids);
	if (ids && has_to_tell(shared, task))
		shared->source_ops->expect(shared->source, task->group->space,
					   ids, task->parents,
					   task->num_blocks);
	free(ids);
	return 0;
}

/* What could not be said is no error. */
static void end_telling(struct ucm_task *task)
{
	atomic_store(&task->telling, TOLD);
	for (unsigned i = 0; i < task->num_parts; i++)
		task->wake(task->engines[i]);
}

static void on_told(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct tell *tell = (struct tell *)op;

	(void)engine;
	end_telling(tell->task);
	ucm_task_put(tell->task);
	free(tell);
}

static void begin_telling(struct ucm_engine *engine, struct ucm_task *task)
{
	struct tell *tell = malloc(sizeof(*tell));

	if (!tell) {
		end_telling(task);
		return;
	}
	ucm_task_get(task);
	*tell = (struct tell){
		.op.io = { .op = UCM_IO_CALL,
			   .call = tell_source,
			   .of = tell,
			   .align = 1 },
		.op.done = on_told,
		.shared = engine->shared,
		.task = task,
	};
	ucm_engine_queue(engine, &tell->op);
}

static bool may_make_files(struct ucm_engine *engine, struct ucm_task *task)
{
	int untold = UNTOLD;

	if (task->is_commit || atomic_load(&task->telling) == TOLD ||
	    (!has_to_tell(engine->shared, task) &&
	     !has_to_offer(engine->shared, task)))
		return true;
	if (atomic_compare_exchange_strong(&task->telling, &untold, TELLING))
		begin_telling(engine, task);
	return atomic_load(&task->telling) == TOLD;
}

bool ucm_save_start(struct ucm_engine *engine, struct ucm_part *part)
{
	struct ucm_task *task = part->task;
	uint32_t block = part->blocks[part->cursor];
	uint64_t len = turn_bytes(task);

	if (ucm_task_block_decided(task, block)) { /* dropped at submit */
		part->cursor++;
		settle(engine, part, block, &task->outcomes[block], false);
		return true;
	}
	if (!may_make_files(engine, task))
		return false;
	/* of one that is half saved, it has been asked before */
	if (task->answers && !task->answers[block] &&
	    !find(engine, task->group, &task->blocks[block].id)) {
		part->cursor++;
		settle(engine, part, block,
		       &(struct ucm_outcome){ .refused = 1 }, false);
		return true;
	}
	if (engine->savings_busy &&
	    (engine->savings_busy + 1) * len >
		    ucm_staging_len(engine->staging) / 2)
		return false;
	part->cursor++;
	begin(NULL, part, block);
	return true;
}

void ucm_save_feed(struct ucm_engine *engine)
{
	struct ucm_saving *saving = engine->savings;

	while (saving) {
		if (!saving->hungry) {
			saving = saving->next;
			continue;
		}
		saving->hungry = false;
		next_chunk(saving);
		if (saving->hungry)
			return;
		saving = engine->savings; /* the list may have changed */
	}
}

/* ---- giving up ---- */

static void give_up_turns(struct ucm_saving *saving, struct ucm_part *part,
			  const struct ucm_outcome *outcome)
{
	struct turn **at = &saving->turns;

	while (*at) {
		struct turn *turn = *at;

		if (turn->part != part) {
			at = &turn->next;
			continue;
		}
		*at = turn->next;
		settle(saving->engine, part, turn->block, outcome, false);
		free(turn);
	}
}

void ucm_save_give_up(struct ucm_engine *engine, struct ucm_part *part, int err)
{
	const struct ucm_outcome outcome = { .err = err };

	for (struct ucm_saving *saving = engine->savings; saving;
	     saving = saving->next) {
		give_up_turns(saving, part, &outcome);
		if (saving->part != part)
			continue;
		ucm_task_decide(part->task, saving->block, &outcome);
		/* pages that are being copied are waited for */
		if (saving->slot.memory &&
		    saving->slot.state == UCM_SLOT_COPY)
			continue;
		saving->part = NULL;
		settle(engine, part, saving->block, &outcome, saving->copied);
		ucm_engine_feed(engine); /* a hungry one ends at once */
	}
	while (part->cursor < part->num_blocks)
		settle(engine, part, part->blocks[part->cursor++], &outcome,
		       false);
}

/* One that is busy is removed when its turn ends without making it whole. */
static void abandon(struct ucm_saving *saving)
{
	if (saving->busy)
		saving->abandoned = true;
	else
		drop(saving);
}

void ucm_save_drop(struct ucm_engine *engine, const struct ucm_group *group,
		   const struct ucm_id *id)
{
	struct ucm_saving *saving = find(engine, group, id);

	if (saving)
		abandon(saving);
}

void ucm_save_drop_all(struct ucm_engine *engine, const struct ucm_group *group)
{
	struct ucm_saving *saving = engine->savings, *next;

	for (; saving; saving = next) {
		next = saving->next;
		if (!group || saving->group == group)
			abandon(saving);
	}
}
