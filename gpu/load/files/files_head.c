/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_head.c - what is known of a file before its payload is used: its header,
 * and, for forms without a plane table, the checksum of all of it.
 */
#include <config.h>

#include "gpu/load/engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/align.h"
#include "common/osfile.h"

/* A multiple of any alignment. */
#define VOUCH_STEP ((uint64_t)1 << 20)

/* ---- the head ---- */

void ucm_load_file_take_head(struct ucm_load_file *file, const void *bytes,
			     size_t len)
{
	int err;
	enum ucm_fault fault = ucm_file_header_make(
		bytes, len, file->size, &file->id,
		&file->group->layout->geometry, &file->head, &err);

	if (fault || err)
		ucm_load_file_fail(file, fault ? -EBADMSG : err,
				   (uint16_t)fault);
	else
		file->head_state = UCM_HEAD_KNOWN;
}

static void read_head(struct ucm_load_file *file, uint64_t len);

/* A header that is longer than what was asked for: how long it says it is. */
static uint64_t longer_head(const struct ucm_load_file *file,
			    const struct ucm_io *io)
{
	struct ucm_block block;

	if (ucm_block_parse(io->buffer, (size_t)io->result, file->size,
			    &block) ||
	    block.form != UCM_FORM_PAGED || block.data_offset <= io->len ||
	    block.data_offset > file->size ||
	    block.data_offset > UCM_FILE_HEADER_MOST)
		return 0;
	return block.data_offset;
}

/* The head is made of what was read, or fails; unless so many bytes have to be
 * read for it. */
static uint64_t use_head(struct ucm_load_file *file, const struct ucm_io *io)
{
	uint64_t more = 0;

	if (io->result < 0)
		ucm_load_file_fail(file, (int)io->result, 0);
	else
		more = longer_head(file, io);
	if (io->result >= 0 && !more)
		ucm_load_file_take_head(file, io->buffer, (size_t)io->result);
	return more;
}

void ucm_load_file_read_head_now(struct ucm_load_file *file)
{
	uint64_t more = ucm_file_header_bytes(&file->group->layout->geometry);

	while (more) {
		struct ucm_io io = { .buffer = malloc(more), .len = more };

		io.result = io.buffer ? ucm_os_read_at(file->fd, io.buffer,
						       io.len, 0)
				      : -ENOMEM;
		more = use_head(file, &io);
		free(io.buffer);
	}
}

static void on_head(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_load_file *file = (struct ucm_load_file *)op;
	uint64_t more;

	(void)engine;
	file->head_state = UCM_HEAD_UNKNOWN;
	more = use_head(file, &op->io);
	free(file->buffer);
	file->buffer = NULL;
	if (more)
		read_head(file, more);
	if (file->head_state != UCM_HEAD_COMING)
		ucm_load_file_tell(file);
	ucm_load_file_put(file); /* the operation's */
}

static size_t memory_align(const struct ucm_load_file *file)
{
	return file->align < sizeof(void *) ? sizeof(void *) : file->align;
}

/* Not through staging, which may be full of pieces that wait for this. */
static void read_head(struct ucm_load_file *file, uint64_t len)
{
	len = ucm_round_up(len, file->align);
	file->buffer = aligned_alloc(memory_align(file), len);
	if (!file->buffer) {
		ucm_load_file_fail(file, -ENOMEM, 0);
		return;
	}
	file->op.io = (struct ucm_io){ .buffer = file->buffer, .len = len };
	ucm_load_file_read(file, &file->op.io);
	file->op.done = on_head;
	file->head_state = UCM_HEAD_COMING;
	file->refs++;
	ucm_add(&file->engine->shared->stats.reads, 1);
	ucm_engine_queue(file->engine, &file->op);
}

void ucm_load_file_read_head(struct ucm_load_file *file)
{
	read_head(file, ucm_file_header_bytes(&file->group->layout->geometry));
}

bool ucm_load_file_map(struct ucm_load_file *file)
{
	struct stat st;
	void *map;

	/* touching a page past the end would kill the process: a file in
	 * memory that somebody has cut off is noticed here */
	if (ucm_os_fstat(file->fd, &st) || (uint64_t)st.st_size != file->size ||
	    !file->size)
		return false;
	if (file->map)
		return true;
	map = mmap(NULL, file->size, PROT_READ, MAP_SHARED, file->fd, 0);
	if (map == MAP_FAILED)
		return false;
	file->map = map;
	return true;
}

/* ---- forms without a plane table ---- */

static uint64_t payload_end(const struct ucm_load_file *file)
{
	return file->head.block.data_offset +
	       ucm_block_payload_bytes(&file->head.block.geometry);
}

bool ucm_load_file_needs_vouch(const struct ucm_load_file *file)
{
	return !file->head.planes &&
	       (file->head.block.flags & UCM_BLOCK_HAS_CRC);
}

static void read_to_vouch(struct ucm_load_file *file);

static void count_in(struct ucm_load_file *file, uint64_t got)
{
	uint64_t skip = file->vouch_at ? 0 : file->head.block.data_offset;
	uint64_t end = payload_end(file);

	if (got > end - file->vouch_at)
		got = end - file->vouch_at;
	if (got <= skip) {
		ucm_load_file_fail(file, -EBADMSG, UCM_FAULT_SHORT);
		return;
	}
	file->vouch_crc = ucm_crc32c(file->vouch_crc, file->buffer + skip,
				     got - skip);
	ucm_file_header_add(
		&file->head,
		file->vouch_at + skip - file->head.block.data_offset,
		file->buffer + skip, got - skip, file->vouch_planes);
	file->vouch_at += got;
	if (file->vouch_at < end)
		return;
	if (file->vouch_crc != file->head.block.payload_crc) {
		ucm_load_file_fail(file, -EBADMSG, UCM_FAULT_PAYLOAD);
		return;
	}
	file->head.planes = file->vouch_planes;
	file->vouch_planes = NULL;
}

static void end_vouching(struct ucm_load_file *file)
{
	free(file->vouch_planes);
	free(file->buffer);
	file->vouch_planes = NULL;
	file->buffer = NULL;
}

static void on_vouch(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_load_file *file = (struct ucm_load_file *)op;
	ssize_t result = op->io.result;

	(void)engine;
	if (result < 0)
		ucm_load_file_fail(file, (int)result, 0);
	else
		count_in(file, (uint64_t)result);
	if (file->state == UCM_LOAD_FILE_OPEN &&
	    ucm_load_file_needs_vouch(file)) {
		read_to_vouch(file);
		return;
	}
	end_vouching(file);
	ucm_load_file_tell(file);
	ucm_load_file_put(file); /* the operation's */
}

static void read_to_vouch(struct ucm_load_file *file)
{
	file->op.io = (struct ucm_io){ .buffer = file->buffer,
				       .len = VOUCH_STEP,
				       .offset = (off_t)file->vouch_at };
	ucm_load_file_read(file, &file->op.io);
	file->op.done = on_vouch;
	ucm_add(&file->engine->shared->stats.reads, 1);
	ucm_engine_queue(file->engine, &file->op);
}

void ucm_load_file_vouch(struct ucm_load_file *file)
{
	if (file->buffer)
		return; /* it is coming */
	file->buffer = aligned_alloc(memory_align(file), VOUCH_STEP);
	file->vouch_planes = calloc(file->head.block.geometry.num_layers,
				    2 * sizeof(*file->vouch_planes));
	if (!file->buffer || !file->vouch_planes) {
		end_vouching(file);
		ucm_load_file_fail(file, -ENOMEM, 0);
		ucm_load_file_tell(file);
		return;
	}
	file->vouch_at = 0;
	file->vouch_crc = 0;
	file->refs++;
	read_to_vouch(file);
}
