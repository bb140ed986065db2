/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - which bytes of a file are read for which layers.
 *
 * Pure arithmetic; knows no files and no memory.
 */
#ifndef UCM_PLAN_H
#define UCM_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Cut the layers [first, end) into reads of whole layers: as few as read_bytes
 * allows (or of group_layers each, if that is not 0), as even as can be. Returns
 * their number n; cuts, if not NULL, gets n + 1 layers, from first to end.
 */
uint32_t ucm_plan_cuts(uint64_t layer_bytes, uint32_t first, uint32_t end,
		       uint64_t read_bytes, uint32_t group_layers,
		       uint32_t *cuts);

/*
 * Likewise, for callers who want the first layers early: the first read has a
 * sixteenth of the layers, the next ones as many as all before them, up to
 * read_bytes.
 */
uint32_t ucm_plan_growing(uint64_t layer_bytes, uint32_t first, uint32_t end,
			  uint64_t read_bytes, uint32_t *cuts);

/* The least number of layers whose bytes are a multiple of align (a power of
 * two). */
uint32_t ucm_plan_multiple(uint64_t layer_bytes, uint32_t align);

struct ucm_plan {
	uint64_t offset; /* in the file, a multiple of align */
	uint64_t len;    /* a multiple of align; may reach beyond the end */
	uint64_t want;   /* bytes of it that must be there */
	uint64_t skip;   /* from offset to the first layer's first byte */
};

/*
 * A read of the layers [first, end) of a file whose payload starts at
 * data_offset, from the start of the file if head is set.
 */
void ucm_plan_read(uint64_t layer_bytes, uint64_t data_offset, uint32_t first,
		   uint32_t end, bool head, uint32_t align,
		   struct ucm_plan *out);

#endif
