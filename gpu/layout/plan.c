/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c - which bytes of a file are read for which layers.
 */
#include <config.h>

#include "gpu/layout/plan.h"

#include "common/align.h"

#define FIRST_SHARE 16

uint32_t ucm_plan_multiple(uint64_t layer_bytes, uint32_t align)
{
	uint64_t odd = layer_bytes & -layer_bytes; /* its power of two */

	return odd >= align ? 1 : align / (uint32_t)odd;
}

/* How many layers to a read. */
static uint64_t layers_each(uint64_t layer_bytes, uint64_t num,
			    uint64_t read_bytes)
{
	uint64_t most = read_bytes / layer_bytes ?: 1;
	uint64_t parts = (num + most - 1) / most;

	return (num + parts - 1) / parts;
}

uint32_t ucm_plan_cuts(uint64_t layer_bytes, uint32_t first, uint32_t end,
		       uint64_t read_bytes, uint32_t group_layers,
		       uint32_t *cuts)
{
	uint64_t each = group_layers
				? group_layers
				: layers_each(layer_bytes, end - first,
					      read_bytes);
	uint32_t num = 0;

	for (uint64_t layer = first; layer < end; layer += each) {
		if (cuts)
			cuts[num] = (uint32_t)layer;
		num++;
	}
	if (cuts)
		cuts[num] = end;
	return num;
}

uint32_t ucm_plan_growing(uint64_t layer_bytes, uint32_t first, uint32_t end,
			  uint64_t read_bytes, uint32_t *cuts)
{
	uint64_t most = read_bytes / layer_bytes ?: 1;
	uint64_t each = (end - first) / FIRST_SHARE ?: 1;
	uint64_t layer = first;
	uint32_t num = 0;

	while (layer < end) {
		if (cuts)
			cuts[num] = (uint32_t)layer;
		num++;
		layer += each < most ? each : most;
		each = layer - first; /* as much again */
	}
	if (cuts)
		cuts[num] = end;
	return num;
}

void ucm_plan_read(uint64_t layer_bytes, uint64_t data_offset, uint32_t first,
		   uint32_t end, bool head, uint32_t align,
		   struct ucm_plan *out)
{
	uint64_t start = data_offset + first * layer_bytes;
	uint64_t stop = data_offset + end * layer_bytes;

	out->offset = head ? 0 : start & ~(uint64_t)(align - 1);
	out->len = ucm_round_up(stop, align) - out->offset;
	out->want = stop - out->offset;
	out->skip = start - out->offset;
}
