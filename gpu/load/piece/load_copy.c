/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_copy.c - pieces whose bytes are there: verified, and copied into their pages.
 *
 * To pages of the host layer by layer, and to those of a device as a whole, by its
 * back end. Bytes come from a read, from a file in memory, or from the write buffer.
 */
#include <config.h>

#include "gpu/load/piece/piece.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/align.h"
#include "common/osfile.h"
#include "gpu/load/task/buffer.h"

/* What is read of a memory file at a time, unless a layer is longer. */
#define BOUNCE ((uint64_t)256 << 10)

static bool needs_sums(const struct ucm_piece *piece)
{
	enum ucm_verify verify = piece->task->terms.verify;

	return verify == UCM_VERIFY_FULL ||
	       (verify == UCM_VERIFY_ONCE && !ucm_verified_is(piece->file));
}

/* What it says of its file that its bytes were right, or not looked at. */
static void tell_verified(const struct ucm_piece *piece, uint64_t bytes)
{
	const uint32_t *cuts = &piece->task->cuts[piece->cut];

	if (piece->task->terms.verify != UCM_VERIFY_ONCE || piece->kept)
		return;
	if (piece->sums)
		ucm_verified_add(piece->file, cuts[0], cuts[1]);
	else
		ucm_add(&piece->engine->shared->stats.unsummed_bytes, bytes);
}

static void succeed(struct ucm_piece *piece)
{
	struct ucm_shared *shared = piece->engine->shared;
	uint64_t bytes = ucm_piece_bytes(piece);

	tell_verified(piece, bytes);
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_COPY, 0, "copy", piece->op.begin_ns, (int64_t)bytes,
		.id = piece->task->blocks[piece->block].id });
	ucm_add(&shared->stats.load_bytes, bytes);
	if (piece->state == UCM_PIECE_STARTED)
		ucm_add(&shared->stats.mapped_bytes, bytes);
	if (piece->direct)
		ucm_add(&shared->stats.direct_bytes, bytes);
	if (piece->kept)
		ucm_add(&shared->stats.load_buffered_bytes, bytes);
	ucm_piece_leave_part(piece);
	ucm_piece_end(piece);
}

static struct ucm_copy_job job_of(const struct ucm_piece *piece, uint32_t first,
				  uint32_t end, const uint8_t *bytes)
{
	return ucm_task_job(piece->task, piece->block, first, end, bytes);
}

/* Their checksums, and the padding of layers that are smaller than the geometry's;
 * false: the piece has failed. Padding that is not zero is part of larger layers,
 * whatever the checksums say. */
static bool check_layers(struct ucm_piece *piece, uint32_t first, uint32_t end,
			 const uint8_t *bytes)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	uint32_t plane;

	if (piece->sums && !ucm_file_header_check(&piece->file->head, first,
						  end, bytes, &plane))
		fault = UCM_FAULT_PLANE;
	else if (!ucm_layout_padding_is_zero(piece->task->group->layout, first,
					     end, bytes, &plane))
		fault = UCM_FAULT_GEOMETRY;
	if (fault)
		ucm_piece_fail_plane(piece, -EBADMSG, fault, plane);
	return !fault;
}

/* ---- into pages ---- */

/* Layer by layer, so that the bytes that were checked are copied while the
 * processor's caches have them. false: the piece has failed. */
static bool copy_layers(struct ucm_piece *piece, uint32_t first, uint32_t end,
			const uint8_t *bytes)
{
	const struct ucm_task *task = piece->task;

	for (uint32_t layer = first; layer < end; layer++) {
		struct ucm_copy_job job =
			job_of(piece, layer, layer + 1, bytes);

		if (!check_layers(piece, layer, layer + 1, bytes))
			return false;
		if (!piece->direct)
			ucm_host_scatter(task->group->layout, &job);
		bytes += task->group->layer_bytes;
	}
	return true;
}

/* A file in memory is copied from after its mark was looked at. Has that gone
 * since then, as the file was written to or found damaged? */
static bool was_unmarked(const struct ucm_piece *piece)
{
	return piece->state == UCM_PIECE_STARTED && !piece->sums &&
	       piece->task->terms.verify == UCM_VERIFY_ONCE &&
	       !ucm_verified_is(piece->file);
}

static void finish_memory(struct ucm_piece *piece);

/* All of it is in the page. */
static void end_host_copy(struct ucm_piece *piece)
{
	if (!was_unmarked(piece)) {
		succeed(piece);
		return;
	}
	piece->sums = true;
	finish_memory(piece);
}

static void copy_to_host(struct ucm_piece *piece, const uint8_t *bytes)
{
	const uint32_t *cuts = &piece->task->cuts[piece->cut];

	if (copy_layers(piece, cuts[0], cuts[1], bytes))
		end_host_copy(piece);
}

static struct ucm_piece *piece_of(struct ucm_copy_job *job)
{
	return (struct ucm_piece *)((char *)job -
				    offsetof(struct ucm_piece, job));
}

static void on_copied(struct ucm_copy_job *job)
{
	struct ucm_piece *piece = piece_of(job);

	ucm_slot_copied(&piece->slot, job->lost);
	if (piece->job.err)
		ucm_piece_fail(piece, piece->job.err, 0);
	else
		succeed(piece);
}

static void on_queued(struct ucm_copy_job *job)
{
	struct ucm_piece *piece = piece_of(job);

	piece->state = UCM_PIECE_QUEUED;
	ucm_task_queued(piece->task, piece->cut);
}

static void start_scatter(struct ucm_piece *piece, uint32_t first, uint32_t end,
			  const uint8_t *bytes)
{
	struct ucm_engine *engine = piece->engine;

	piece->job = job_of(piece, first, end, bytes);
	piece->job.copied = on_copied;
	piece->job.queued = on_queued;
	ucm_slot_move(&piece->slot, UCM_SLOT_HELD, UCM_SLOT_COPY);
	piece->state = UCM_PIECE_COPYING;
	piece->job.next = engine->to_scatter;
	engine->to_scatter = &piece->job;
}

static void copy_to_device(struct ucm_piece *piece, const uint8_t *bytes)
{
	const uint32_t *cuts = &piece->task->cuts[piece->cut];

	if (check_layers(piece, cuts[0], cuts[1], bytes))
		start_scatter(piece, cuts[0], cuts[1], bytes);
}

/* All of a payload that has one checksum: is it right? */
static bool payload_is_right(const struct ucm_piece *piece,
			     const uint8_t *bytes)
{
	return ucm_crc32c(0, bytes, piece->task->group->payload_bytes) ==
	       piece->file->head.block.payload_crc;
}

static bool is_whole(const struct ucm_piece *piece)
{
	const struct ucm_task *task = piece->task;

	return task->cuts[piece->cut] == 0 &&
	       task->cuts[piece->cut + 1] ==
		       task->group->layout->geometry.num_layers;
}

/* Bytes are there, and so is what has to be known of the file. */
static void use_bytes(struct ucm_piece *piece, const uint8_t *bytes)
{
	struct ucm_load_file *file = piece->file;

	if (piece->sums && ucm_load_file_needs_vouch(file)) {
		if (!is_whole(piece)) {
			ucm_piece_await_file(piece);
			ucm_load_file_vouch(file);
			return;
		}
		if (!payload_is_right(piece, bytes)) {
			ucm_piece_fail(piece, -EBADMSG, UCM_FAULT_PAYLOAD);
			return;
		}
	}
	if (piece->engine->pages_are_host)
		copy_to_host(piece, bytes);
	else
		copy_to_device(piece, bytes);
}

/* ---- files in memory ---- */

/* The kernel copies by rep movsb, which takes five times as long to an address that is no
 * multiple of 64 (AMD EPYC, 6.18: 1.3 in place of 6.5 GB/s from tmpfs). */
static uint8_t *get_bounce(struct ucm_engine *engine, size_t len)
{
	if (engine->bounce_len >= len)
		return engine->bounce;
	free(engine->bounce);
	len = ucm_round_up(len, UCM_BLOCK_PAGE);
	engine->bounce = aligned_alloc(UCM_BLOCK_PAGE, len);
	engine->bounce_len = engine->bounce ? len : 0;
	return engine->bounce;
}

/* Some layers at a time, so few that the caches have them until they are in
 * the page. */
static void copy_by_reading(struct ucm_piece *piece, uint64_t offset)
{
	const uint32_t *cuts = &piece->task->cuts[piece->cut];
	const uint64_t each = piece->task->group->layer_bytes;
	uint32_t most = each < BOUNCE ? (uint32_t)(BOUNCE / each) : 1;
	uint8_t *bytes = get_bounce(piece->engine, most * each);

	if (!bytes) {
		ucm_piece_fail(piece, -ENOMEM, 0);
		return;
	}
	for (uint32_t layer = cuts[0], num; layer < cuts[1]; layer += num) {
		ssize_t got;

		num = cuts[1] - layer < most ? cuts[1] - layer : most;
		got = ucm_os_read_at(piece->file->fd, bytes, num * each,
				     (off_t)offset);
		if (got != (ssize_t)(num * each)) {
			ucm_piece_fail(piece, got < 0 ? (int)got : -EBADMSG,
			     got < 0 ? UCM_FAULT_NONE : UCM_FAULT_SHORT);
			return;
		}
		if (!copy_layers(piece, layer, layer + num, bytes))
			return;
		offset += num * each;
	}
	piece->file->taken += (cuts[1] - cuts[0]) * each;
	end_host_copy(piece);
}

/* To map a file's pages takes longer than to read it once, but not twice. Where
 * all of it has to be seen before a part is used, there is no other way. */
static bool is_to_be_mapped(const struct ucm_piece *piece)
{
	const struct ucm_load_file *file = piece->file;

	return file->map || file->taken >= piece->task->group->payload_bytes ||
	       (piece->sums && ucm_load_file_needs_vouch(file));
}

static void finish_memory(struct ucm_piece *piece)
{
	const struct ucm_group *group = piece->task->group;
	struct ucm_load_file *file = piece->file;
	uint64_t offset;

	if (file->head_state != UCM_HEAD_KNOWN && ucm_piece_needs_head(piece))
		ucm_load_file_read_head_now(file);
	if (file->state == UCM_LOAD_FILE_FAILED) {
		ucm_piece_fail(piece, file->err, file->fault);
		return;
	}
	offset = ucm_load_file_data_offset(file) +
		 piece->task->cuts[piece->cut] * group->layer_bytes;
	if (!is_to_be_mapped(piece))
		copy_by_reading(piece, offset);
	else if (ucm_load_file_map(file))
		use_bytes(piece, file->map + offset);
	else
		ucm_piece_fail(piece, -EBADMSG, UCM_FAULT_SHORT);
}

/* ---- what was read ---- */

/* A server no longer knows the descriptor: it was restarted, or another machine has
 * removed the file. NFS says so by EBADF where reads are direct. */
static bool is_stale(int err)
{
	return err == -ESTALE || err == -EBADF;
}

/* The file was opened before its mount went: if that is back, or only the descriptor
 * is stale, open it once more. */
static bool try_anew(struct ucm_piece *piece, int err)
{
	struct ucm_engine *engine = piece->engine;
	struct ucm_shared *shared = engine->shared;
	const struct ucm_task *task = piece->task;
	struct ucm_load_file *file;

	if ((!ucm_is_lost(err) && !is_stale(err)) || piece->anew)
		return false;
	ucm_load_file_forget(piece->file);
	if (!shared->source_ops->lost(shared->source) && !is_stale(err))
		return false;
	file = ucm_load_file_get(engine, task->group,
				 &task->blocks[piece->block].id);
	if (!file)
		return false;
	ucm_gate_give_slot(piece);
	ucm_load_file_put(piece->file);
	piece->file = file;
	piece->direct = NULL;
	piece->anew = true;
	piece->state = UCM_PIECE_STARTED;
	ucm_load_go(piece);
	return true;
}

static void finish_read(struct ucm_piece *piece)
{
	ssize_t result = piece->op.io.result;
	struct ucm_load_file *file = piece->file;

	if (result < 0) {
		if (!try_anew(piece, (int)result))
			ucm_piece_fail(piece, (int)result, 0);
		return;
	}
	if ((uint64_t)result < piece->plan.want) {
		ucm_piece_fail(piece, -EBADMSG, UCM_FAULT_SHORT);
		return;
	}
	if (file->state == UCM_LOAD_FILE_FAILED) {
		ucm_piece_fail(piece, file->err, file->fault);
		return;
	}
	if (file->head_state != UCM_HEAD_KNOWN && ucm_piece_needs_head(piece)) {
		ucm_load_await_head(piece);
		return;
	}
	use_bytes(piece, piece->direct ? piece->direct
				       : piece->slot.memory + piece->plan.skip);
}

/* ---- from the write buffer ---- */

/* To a device by staging memory. */
static void finish_kept(struct ucm_piece *piece)
{
	const struct ucm_task *task = piece->task;
	const uint32_t *cuts = &task->cuts[piece->cut];
	uint64_t each = task->group->layer_bytes;
	uint8_t *bytes = piece->kept->payload + cuts[0] * each;
	struct ucm_engine *engine = piece->engine;
	struct ucm_copy_job job = job_of(piece, cuts[0], cuts[1], bytes);
	int err;

	if (!check_layers(piece, cuts[0], cuts[1], bytes))
		return;
	if (engine->pages_are_host) {
		ucm_host_scatter(task->group->layout, &job);
		succeed(piece);
		return;
	}
	err = ucm_gate_stage_kept(piece, (cuts[1] - cuts[0]) * each);
	if (err == -EAGAIN)
		return;
	if (err) {
		ucm_piece_fail(piece, err, 0);
		return;
	}
	memcpy(piece->slot.memory, bytes, (cuts[1] - cuts[0]) * each);
	start_scatter(piece, cuts[0], cuts[1], piece->slot.memory);
}

void ucm_load_finish(struct ucm_piece *piece)
{
	if (!piece->part) {
		ucm_piece_end(piece);
		return;
	}
	if (ucm_task_block_decided(piece->task, piece->block)) {
		ucm_piece_leave_part(piece);
		ucm_piece_end(piece);
		return;
	}
	piece->op.begin_ns = ucm_profile_begin();
	if (piece->kept) {
		finish_kept(piece);
		return;
	}
	piece->sums = needs_sums(piece);
	if (piece->state == UCM_PIECE_READ)
		finish_read(piece);
	else
		finish_memory(piece);
}
