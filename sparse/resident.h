/* SPDX-License-Identifier: Apache-2.0 */
/* resident.h - what a prefetch sees of a residency. */
#ifndef UCM_SPARSE_RESIDENT_H
#define UCM_SPARSE_RESIDENT_H

#include <ucm/retrieve.h>

enum ucm_resident_place {
	UCM_PLACE_NONE = 0,
	UCM_PLACE_COMING, /* a load is under way */
	UCM_PLACE_LOADED,
};

/* Where a block is; *fill: of what load (not with UCM_PLACE_NONE). */
enum ucm_resident_place ucm_resident_find(const struct ucm_resident *resident,
					  uint32_t block,
					  struct ucm_fill *fill);

const struct ucm_resident_config *
ucm_resident_get_config(const struct ucm_resident *resident);

/* The clock of its last plan. */
uint64_t ucm_resident_now(const struct ucm_resident *resident);

#endif
