/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.h - a loader, for the files that make the calls of <ucm/load.h> on it.
 *
 * loader.c opens and closes it, loader_groups.c keeps its groups, loader_find.c
 * looks blocks up, loader_submit.c makes tasks of requests.
 */
#ifndef UCM_LOAD_LOADER_H
#define UCM_LOAD_LOADER_H

#include "gpu/load/task/buffer.h"
#include "gpu/load/thread.h"

#define UCM_LOADER_THREADS 64 /* a byte tells one */
#define UCM_LOADER_GROUPS 256 /* at a time */

struct ucm_loader {
	struct ucm_shared shared;
	unsigned num_engines;
	struct ucm_engine **engines;
	pthread_mutex_t lock; /* one group is added or removed at a time */
	pthread_mutex_t table_lock; /* guards these, and is never kept long */
	struct ucm_group *groups[UCM_LOADER_GROUPS];
	uint32_t uses[UCM_LOADER_GROUPS]; /* groups that had the place before */
};

/* It is not removed until it is let go of. NULL: unknown. */
struct ucm_group *ucm_loader_use_group(struct ucm_loader *loader, unsigned id);
void ucm_loader_leave_group(struct ucm_group *group);

/* May some blocks be in the write buffer? */
static inline bool ucm_loader_has_buffered(const struct ucm_shared *shared)
{
	return shared->buffer && !ucm_buffer_is_empty(shared->buffer);
}

#endif
