/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abandon.h - which blocks ucm_save_abandon() was called for.
 *
 * Each thread of the loader gets one of its own, in the order of its tasks: it
 * means what was submitted before, whether that has been begun or not, and
 * nothing that came later.
 */
#ifndef UCM_ABANDON_H
#define UCM_ABANDON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/load/task/task.h"

struct ucm_abandon {
	struct ucm_group *group; /* NULL: of all groups */
	uint64_t last; /* number of the last part that came before */
	struct ucm_abandon *next;
	size_t num;    /* 0: all blocks */
	struct ucm_id ids[]; /* sorted */
};

/* With a reference to the group. NULL: out of memory. */
struct ucm_abandon *ucm_abandon_new(struct ucm_group *group,
				    const struct ucm_id *ids, size_t num);

void ucm_abandon_free(struct ucm_abandon *abandon);

/* Is that block one of them? */
bool ucm_abandon_means(const struct ucm_abandon *abandon,
		       const struct ucm_group *group, const struct ucm_id *id);

#endif
