/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.h - a layout and the space of its blocks, known to a loader.
 *
 * All but the counters is immutable once the group is published. A group is
 * removed when nobody can have a page of it any more: no task of it is under way
 * (tasks), and neither a call nor a thread is at work with it (users). Its memory
 * goes later, with the last task, open file or saving that points to it (refs).
 */
#ifndef UCM_LOAD_GROUP_H
#define UCM_LOAD_GROUP_H

#include <stdatomic.h>
#include <stdint.h>

#include "gpu/layout/layout.h"

#define UCM_SPACE_MAX 128

struct ucm_group {
	unsigned id;     /* as callers call it: never that of another group */
	unsigned number; /* its place in tables, which may be another one's later */
	struct ucm_layout *layout;
	char space[UCM_SPACE_MAX + 1];
	uint64_t layer_bytes;
	uint64_t payload_bytes;
	/* Of the files that we write, and of all whose size is the same. */
	uint32_t data_offset;
	uint64_t file_size;
	_Atomic unsigned tasks; /* that are not done */
	_Atomic unsigned users; /* from 0 only under the lock of the table */
	_Atomic unsigned refs;  /* beside the loader's own */
};

/* The key of files and saves, which have group and id in this order. */
struct ucm_group_key {
	const struct ucm_group *group;
	struct ucm_id id;
};

/* Further references. The last put (the loader's has none to match it) frees
 * group and layout. Any thread. */
void ucm_group_get(struct ucm_group *group);
void ucm_group_put(struct ucm_group *group);

#endif
