/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - the loop of one thread of the loader.
 *
 * Each round: new work is taken in, what is overdue is given up, pieces are
 * started as far as the lanes of the directories allow (lane.h), the ring is
 * asked, and at most one piece
 * is verified and copied: so the device has work while the processor has. Saves
 * are started when there is no load to start.
 *
 * The thread sleeps in ucm_ring_poll() alone: until I/O is done, somebody
 * wakes it, a task's deadline is reached, or (while a device copies) for a few
 * microseconds.
 */
#include <config.h>

#include "gpu/load/engine/stage.h"
#include "gpu/load/piece/piece.h"
#include "gpu/load/save/save.h"
#include "gpu/load/task/abandon.h"
#include "gpu/load/task/buffer.h"
#include "gpu/load/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/process.h"

#define DEPTH 512
#define POOL_THREADS 16
#define COPY_POLL_NS 20000
#define EVENT_POLL_NS 100000 /* the caller's: it may take a step of a model */
#define STARTS 256 /* in a round */

static void feed(struct ucm_engine *engine)
{
	engine->gate.woken = false;
	if (engine->gate.gave_up)
		ucm_save_end_given_up(engine);
	ucm_load_feed(engine);
	ucm_save_feed(engine);
}

/* ---- copies ---- */

static unsigned count_jobs(const struct ucm_copy_job *job)
{
	unsigned num = 0;

	for (; job; job = job->next)
		num++;
	return num;
}

static void start_copies(struct ucm_engine *engine)
{
	const struct ucm_copy_ops *ops = engine->shared->copy_ops;
	struct ucm_copy_job *jobs = engine->to_scatter;

	engine->to_scatter = NULL;
	engine->copies += count_jobs(jobs);
	if (jobs)
		ops->scatter(engine->copy, jobs);
	jobs = engine->to_gather;
	engine->to_gather = NULL;
	engine->copies += count_jobs(jobs);
	if (jobs)
		ops->gather(engine->copy, jobs);
}

static void poll_copies(struct ucm_engine *engine)
{
	struct ucm_copy_job *job = engine->shared->copy_ops->poll(engine->copy);

	while (job) {
		struct ucm_copy_job *next = job->next;

		engine->copies--;
		job->copied(job);
		job = next;
	}
}

/* ---- work ---- */

static uint64_t num_pieces(const struct ucm_part *part)
{
	return (uint64_t)part->num_blocks * part->task->num_cuts;
}

static bool is_over(const struct ucm_part *part)
{
	if (part->task->terms.is_save)
		return part->settled == part->num_blocks;
	return part->cursor == num_pieces(part) && LIST_EMPTY(&part->pieces);
}

/* Nothing of it is begun before its event, so that what waits holds no staging
 * memory that others could use. 0, or -errno: that will never complete. */
static int look_at_event(struct ucm_engine *engine, struct ucm_task *task)
{
	int reached;

	if (atomic_load(&task->released))
		return 0;
	reached = engine->shared->copy_ops->reached(engine->copy,
						    task->terms.after);
	if (reached > 0)
		atomic_store(&task->released, true);
	else if (!reached)
		engine->unreleased = true;
	return reached < 0 ? reached : 0;
}

/* A commit finds what was saved before it: of its group, as blocks are not
 * looked for here. Decided once for a round, as events complete in between. */
static void release(struct ucm_engine *engine, struct ucm_part *part)
{
	const struct ucm_task *task = part->task;
	const struct ucm_part *before = engine->saves;

	if (part->released || !atomic_load(&task->released))
		return;
	while (task->terms.is_commit && before != part &&
	       (before->released || before->task->group != task->group))
		before = before->next;
	part->released = !task->terms.is_commit || before == part;
}

/* Parts that are done leave; those that are overdue are given up. */
static void sweep(struct ucm_engine *engine, struct ucm_part **at)
{
	while (*at) {
		struct ucm_part *part = *at;
		struct ucm_task *task = part->task;
		int err = 0;

		if (atomic_load(&task->cancelled))
			err = -ECANCELED;
		else if (task->terms.deadline_ns &&
			 ucm_monotonic_ns() >= task->terms.deadline_ns)
			err = -ETIMEDOUT;
		else
			err = look_at_event(engine, task);
		if (err && task->terms.is_save)
			ucm_save_give_up(engine, part, err);
		else if (err)
			ucm_load_give_up(engine, part, err);
		if (!is_over(part)) {
			release(engine, part);
			at = &part->next;
			continue;
		}
		*at = part->next;
		if (task->terms.order == UCM_LOAD_LAYERS)
			ucm_load_files_want(engine, -(int64_t)part->num_blocks);
		ucm_task_put(task);
	}
}

static void sweep_all(struct ucm_engine *engine)
{
	engine->unreleased = false;
	for (unsigned rank = 0; rank < UCM_RANKS; rank++)
		sweep(engine, &engine->loads[rank]);
	sweep(engine, &engine->saves);
}

static bool has_more(const struct ucm_part *part)
{
	return part->cursor < num_pieces(part) && part->released;
}

/* Start as much as there is room for; false: there is none left, or not the
 * time. */
static bool start_parts(struct ucm_engine *engine, struct ucm_part *part,
			bool (*start)(struct ucm_engine *, struct ucm_part *),
			unsigned *left)
{
	for (; part; part = part->next) {
		while (has_more(part)) {
			engine->eager |= !*left;
			if (!*left || !start(engine, part))
				return false;
			--*left;
		}
	}
	return true;
}

/* Loads that somebody waits for, and the others, which find less room (lane.c).
 * True: all are under way. */
static bool start_loads(struct ucm_engine *engine)
{
	bool all = true;

	for (unsigned rank = 0; rank < UCM_RANKS; rank++) {
		unsigned left = STARTS;

		all &= start_parts(engine, engine->loads[rank], ucm_load_start,
				   &left);
	}
	return all && !ucm_lanes_wait(engine);
}

static struct ucm_part *next_save(struct ucm_engine *engine)
{
	struct ucm_part *part = engine->saves;

	while (part && !has_more(part))
		part = part->next;
	return part;
}

/* Those that loads would keep waiting for too long. Whether one can be started
 * or waits for memory, it has had its turn. */
static void start_due_saves(struct ucm_engine *engine)
{
	struct ucm_share *share = &engine->gate.saves;
	int64_t now = ucm_monotonic_ns();
	struct ucm_part *part;

	while ((part = next_save(engine)) &&
	       ucm_share_is_due(share, ucm_task_bytes(part->task),
				UCM_SAVE_AGE_NS, now)) {
		bool started = ucm_save_start(engine, part);

		ucm_share_take(share, started ? ucm_task_bytes(part->task) : 0, now);
		if (!started)
			break;
	}
	ucm_share_wait(share, part != NULL, now);
}

/* Saves wait for loads to be started. Blocks that fail at once take no room:
 * after many of them deadlines are looked after before the next ones. */
static void start_work(struct ucm_engine *engine)
{
	unsigned left = STARTS;

	engine->eager = false;
	if (engine->saves || engine->gate.saves.waits)
		start_due_saves(engine);
	if (!start_loads(engine))
		return;
	start_parts(engine, engine->saves, ucm_save_start, &left);
	ucm_share_take(&engine->gate.saves, 0, ucm_monotonic_ns());
}

/* ---- the loop ---- */

/* Until the first deadline, -1 if there is none. */
static int64_t until_deadline(struct ucm_part *const lists[UCM_RANKS + 1],
			      int64_t now_ns)
{
	int64_t first = INT64_MAX;

	for (unsigned i = 0; i <= UCM_RANKS; i++) {
		for (struct ucm_part *part = lists[i]; part; part = part->next)
			if (part->task->terms.deadline_ns &&
			    part->task->terms.deadline_ns < first)
				first = part->task->terms.deadline_ns;
	}
	if (first == INT64_MAX)
		return -1;
	return first > now_ns ? first - now_ns : 0;
}

/* -1 is for ever. */
static int64_t sooner(int64_t a, int64_t b)
{
	return b < 0 || (a >= 0 && a < b) ? a : b;
}

static bool has_work(const struct ucm_engine *engine)
{
	return engine->loads[0] || engine->loads[1] || engine->saves;
}

static int64_t how_long(struct ucm_engine *engine)
{
	struct ucm_part *const lists[] = { engine->loads[0], engine->loads[1],
					   engine->saves };
	int64_t wait = ucm_load_files_expire(engine);
	int64_t now = ucm_monotonic_ns();

	if (engine->ready.first || engine->gate.woken || engine->eager)
		return 0;
	wait = sooner(wait, ucm_gate_until(engine, now));
	if (has_work(engine))
		wait = sooner(wait, until_deadline(lists, now));
	wait = sooner(wait, ucm_lanes_until_late(engine));
	wait = sooner(wait, ucm_share_until(&engine->gate.saves,
					    UCM_SAVE_AGE_NS, now));
	if (engine->unreleased)
		wait = sooner(wait, EVENT_POLL_NS);
	return engine->copies ? sooner(wait, COPY_POLL_NS) : wait;
}

static void one_round(struct ucm_engine *engine)
{
	struct ucm_piece *piece;

	sweep_all(engine);
	ucm_gate_look(engine);
	if (engine->gate.woken) {
		feed(engine);
		ucm_gate_look(engine); /* there may be room for opens now */
	}
	start_work(engine);
	ucm_save_go(engine);
	ucm_load_files_ask(engine);
	start_copies(engine); /* of saves: what follows may wait */
	ucm_engine_poll(engine, how_long(engine));
	if (engine->copies)
		poll_copies(engine);
	if (engine->gate.woken)
		feed(engine);
	if (engine->ready.first && has_work(engine)) {
		/* the window has room again: fill it before we compute */
		start_work(engine);
		ucm_load_files_ask(engine);
		ucm_engine_poll(engine, 0);
		ucm_load_go_on(engine);
	}
	piece = ucm_piece_pop(&engine->ready);
	if (piece)
		ucm_load_finish(piece);
	start_copies(engine);
}

/* What came too late for its task, and files that are being closed. */
static void drain(struct ucm_engine *engine)
{
	static const struct ucm_abandon all = { .last = UINT64_MAX };

	for (;;) {
		sweep_all(engine);
		ucm_save_abandon_now(engine, &all);
		ucm_load_files_close(engine);
		while (engine->gate.woken) /* what waited for room ends */
			feed(engine);
		ucm_save_go(engine);
		if (!engine->ops && !engine->held && !engine->ready.first &&
		    !engine->copies && !engine->savings.queued &&
		    TAILQ_EMPTY(&engine->files.asked))
			break;
		one_round(engine);
	}
}

static void *engine_main(void *arg)
{
	struct ucm_engine *engine = arg;

	while (ucm_engine_take_mail(engine))
		one_round(engine);
	drain(engine);
	return NULL;
}

/* ---- its start and end ---- */

static int open_parts(struct ucm_engine *engine, struct ucm_error *error)
{
	struct ucm_shared *shared = engine->shared;
	int err = 0;

	if (shared->copy_ops)
		err = shared->copy_ops->open(&shared->copy_options,
					     &engine->copy, error);
	if (err)
		return err;
	err = ucm_ring_open(shared->io, DEPTH, POOL_THREADS, &engine->ring);
	if (err)
		return ucm_error_set(error, err, "io_uring: %s",
				     strerror(-err));
	err = ucm_stage_open(engine, error);
	if (err)
		return err;
	if (shared->buffer) /* not being able to costs a little time */
		ucm_ring_pin(engine->ring, ucm_buffer_memory(shared->buffer),
			     ucm_buffer_len(shared->buffer));
	return 0;
}

void ucm_engine_close(struct ucm_engine *engine)
{
	struct ucm_piece *piece = engine->spare;

	while (piece) {
		struct ucm_piece *next = piece->next;

		free(piece);
		piece = next;
	}
	if (engine->ring)
		ucm_ring_close(engine->ring);
	if (engine->copy)
		engine->shared->copy_ops->close(engine->copy);
	ucm_staging_close(engine->staging);
	ucm_lanes_free(engine);
	free(engine->bounce);
	pthread_mutex_destroy(&engine->lock);
	pthread_cond_destroy(&engine->cond);
}

int ucm_engine_start(struct ucm_engine *engine, struct ucm_shared *shared,
		     unsigned number, struct ucm_error *error)
{
	int err;

	engine->shared = shared;
	engine->number = number;
	engine->pages_are_host = !shared->copy_ops;
	ucm_piece_list_init(&engine->ready);
	ucm_piece_list_init(&engine->told);
	ucm_piece_list_init(&engine->gate.kept);
	engine->backlog_end = &engine->backlog;
	STAILQ_INIT(&engine->savings.hungry);
	engine->savings.queued_end = &engine->savings.queued;
	TAILQ_INIT(&engine->files.idle);
	TAILQ_INIT(&engine->files.asked);
	engine->files.most = shared->open_files;
	pthread_mutex_init(&engine->lock, NULL);
	pthread_cond_init(&engine->cond, NULL);
	err = open_parts(engine, error);
	if (!err) {
		err = ucm_thread_start(&engine->thread, engine_main, engine);
		if (err)
			ucm_error_set(error, err, "no thread: %s",
				      strerror(-err));
	}
	if (err)
		ucm_engine_close(engine);
	return err;
}

void ucm_engine_stop(struct ucm_engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	engine->stopping = true;
	pthread_mutex_unlock(&engine->lock);
	ucm_engine_mail(engine);
	pthread_join(engine->thread, NULL);
}
