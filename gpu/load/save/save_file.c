/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_file.c - the file of a block that is being saved: made, written,
 * committed or dropped.
 *
 * It is a draft of the source's (source.h). Every call on that is made by a thread
 * for calls (UCM_IO_CALL), never by the engine's: a daemon or a disk may take its
 * time. One that hangs so keeps that one thread, and neither loads nor deadlines.
 *
 * What such a call has done is told in saving->result, not as the ring's
 * result: that one would make it again (-EAGAIN).
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>

#include "common/osfile.h"
#include "gpu/load/save/saving.h"

static void step_done(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_saving *saving = (struct ucm_saving *)op;

	(void)engine;
	/* of a call that could not be made; else it is 0 */
	if (op->io.result < 0)
		saving->result = (int)op->io.result;
	saving->then(saving);
}

void ucm_save_file_call(struct ucm_saving *saving,
			void (*call)(struct ucm_io *io), ucm_saving_step *then)
{
	saving->result = 0;
	saving->then = then;
	saving->op.done = step_done;
	ucm_engine_call(saving->engine, &saving->op, call);
}

/* ---- create ---- */

void ucm_save_file_create(struct ucm_io *io)
{
	struct ucm_saving *saving = (struct ucm_saving *)io;
	const struct ucm_shared *shared = saving->engine->shared;
	int fd = shared->source_ops->create(shared->source, saving->group->space,
					&saving->id, saving->group->file_size,
					&saving->draft);

	saving->result = fd < 0 ? fd : 0;
	if (fd < 0)
		return;
	saving->fd = fd;
	saving->direct = !fcntl(fd, F_SETFL, O_DIRECT);
	saving->align = ucm_direct_align(fd);
}

/* ---- between two parts ---- */

void ucm_save_file_rest(struct ucm_io *io)
{
	struct ucm_saving *saving = (struct ucm_saving *)io;

	saving->result = ucm_os_flush(saving->fd);
	ucm_os_close(saving->fd);
	saving->fd = -1;
}

void ucm_save_file_reopen(struct ucm_io *io)
{
	struct ucm_saving *saving = (struct ucm_saving *)io;
	const struct ucm_shared *shared = saving->engine->shared;
	int fd = shared->source_ops->reopen(shared->source, saving->draft);

	saving->result = fd < 0 ? fd : 0;
	if (fd < 0)
		return;
	saving->fd = fd;
	saving->direct = saving->direct && !fcntl(fd, F_SETFL, O_DIRECT);
}

/* ---- write ---- */

static void queue_write(struct ucm_saving *saving, struct ucm_io io,
			void (*done)(struct ucm_engine *,
				     struct ucm_engine_op *))
{
	io.op = UCM_IO_WRITE;
	io.fd = saving->fd;
	io.align = saving->direct ? saving->align : 1;
	saving->op.io = io;
	saving->op.done = done;
	ucm_engine_queue(saving->engine, &saving->op);
}

/* From here on through the page cache. */
static bool leave_direct(struct ucm_saving *saving)
{
	int flags = fcntl(saving->fd, F_GETFL);

	if (flags < 0 || fcntl(saving->fd, F_SETFL, flags & ~O_DIRECT))
		return false;
	saving->direct = false;
	return true;
}

/* A mount, or an old kernel, does not tell what the file system below wants. */
static void on_written(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_saving *saving = (struct ucm_saving *)op;

	(void)engine;
	if (op->io.result == -EINVAL && saving->direct &&
	    leave_direct(saving)) {
		queue_write(saving, op->io, on_written);
		return;
	}
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_IO, 0, "write", op->begin_ns, op->io.result,
		.id = saving->id });
	saving->result = op->io.result < 0 ? (int)op->io.result : 0;
	saving->then(saving);
}

/* O_DIRECT wants whole units of the file system's. */
void ucm_save_file_write(struct ucm_saving *saving, uint32_t head_len,
			 void *buffer, uint64_t len, uint64_t offset,
			 ucm_saving_step *then)
{
	uint64_t places = head_len | offset | len | (uintptr_t)buffer;

	saving->then = then;
	if (saving->direct && (places & (saving->align - 1)))
		leave_direct(saving);
	queue_write(saving,
		    (struct ucm_io){ .head = head_len ? saving->head : NULL,
				     .head_len = head_len,
				     .buffer = buffer,
				     .len = head_len + len,
				     .offset = (off_t)offset },
		    on_written);
}

/* ---- commit ---- */

void ucm_save_file_commit(struct ucm_io *io)
{
	struct ucm_saving *saving = (struct ucm_saving *)io;
	const struct ucm_shared *shared = saving->engine->shared;

	saving->result = shared->source_ops->commit(shared->source,
						saving->draft, saving->fd,
						saving->head,
						saving->group->data_offset);
	saving->draft = NULL;
	saving->fd = -1;
}

/* ---- drop ---- */

static void drop_draft(struct ucm_io *io)
{
	struct ucm_saving *saving = (struct ucm_saving *)io;
	const struct ucm_shared *shared = saving->engine->shared;

	if (saving->draft)
		shared->source_ops->drop(shared->source, saving->draft);
	saving->draft = NULL;
	ucm_os_close(saving->fd);
	saving->fd = -1;
}

/* No thread could be had for it: it may wait then. */
static void on_draft_dropped(struct ucm_engine *engine,
			     struct ucm_engine_op *op)
{
	struct ucm_saving *saving = (struct ucm_saving *)op;

	(void)engine;
	if (saving->draft || saving->fd >= 0)
		drop_draft(&op->io);
	saving->then(saving);
}

void ucm_save_file_drop(struct ucm_saving *saving, ucm_saving_step *then)
{
	if (saving->fd < 0 && !saving->draft) {
		then(saving);
		return;
	}
	ucm_save_file_call(saving, drop_draft, then);
	saving->op.done = on_draft_dropped;
}
