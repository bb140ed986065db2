/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verified.c - files that need not be verified again (UCM_VERIFY_ONCE).
 *
 * The mount's index can say of a block: the file of this stamp has passed all
 * its checksums on this machine. A stamp (common/filestamp.h) is what fstat(2)
 * says of a file, which changes with its bytes; so whatever somebody has done to
 * the file since, it is another one and is verified. What does not show in it is
 * a disk that has lost bits: that is what this gives up, until the mark is too
 * old.
 *
 * Only files that the source opens in local directories have a stamp: of those of a
 * server, fstat(2) tells what this machine remembers.
 *
 * Both ways the file is looked at when its bytes have been read: a write that
 * came before shows, and one that came later is in no byte that was used. To be
 * told as verified it must also be as it was before its first read, and that
 * must be so long ago that a change in between has another time, and that no write
 * that began before is still under way (UCM_FILESTAMP_AGE_S). Its first loads are
 * verified, and one that comes later marks it.
 */
#include <config.h>

#include "gpu/load/engine/engine.h"

#include <stdlib.h>

#include "common/filestamp.h"
#include "common/osfile.h"

void ucm_verified_begin(struct ucm_load_file *file, const struct stat *st)
{
	uint64_t stamp = ucm_file_is_settled(st) ? ucm_file_stamp(st) : 0;

	if (stamp == file->stamp)
		return;
	ucm_verified_end(file);
	file->stamp = stamp;
}

void ucm_verified_end(struct ucm_load_file *file)
{
	free(file->right);
	file->right = NULL;
	file->num_right = 0;
}

/* 0: it is not known. */
static uint64_t stamp_now(const struct ucm_load_file *file)
{
	struct stat st;

	return ucm_os_fstat(file->fd, &st) ? 0 : ucm_file_stamp(&st);
}

bool ucm_verified_is(const struct ucm_load_file *file)
{
	const struct ucm_shared *shared = file->engine->shared;
	struct ucm_where where;

	return file->dir->quick &&
	       shared->source_ops->where(shared->source, file->group->space,
					 &file->id, &where) &&
	       where.verified && where.verified == stamp_now(file);
}

static uint32_t num_layers(const struct ucm_load_file *file)
{
	return file->head.block.geometry.num_layers;
}

/* Of each layer once. */
static void count_right(struct ucm_load_file *file, uint32_t first,
			uint32_t end)
{
	if (!file->right)
		file->right = calloc(num_layers(file) / 64 + 1,
				     sizeof(*file->right));
	for (uint32_t layer = first; file->right && layer < end; layer++) {
		uint64_t *word = &file->right[layer / 64];
		uint64_t bit = UINT64_C(1) << layer % 64;

		file->num_right += !(*word & bit);
		*word |= bit;
	}
}

void ucm_verified_add(struct ucm_load_file *file, uint32_t first_layer,
		      uint32_t end_layer)
{
	bool whole = !first_layer && end_layer == num_layers(file);

	if (!file->stamp || !(file->head.block.flags & UCM_BLOCK_HAS_CRC))
		return;
	if (!whole)
		count_right(file, first_layer, end_layer);
	if (!whole && file->num_right < num_layers(file))
		return;
	ucm_verified_end(file);
	if (stamp_now(file) == file->stamp)
		ucm_hints_add_verified(file->engine->shared->hints,
				       file->group->space, &file->id,
				       file->stamp);
}

void ucm_verified_deny(const struct ucm_load_file *file)
{
	ucm_hints_deny(file->engine->shared->hints, file->group->space,
		       &file->id);
}
