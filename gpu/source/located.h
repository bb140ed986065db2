/* SPDX-License-Identifier: Apache-2.0 */
/*
 * located.h - blocks of a mount by the directories that they lie in.
 *
 * An open through a mount is a question to its daemon. Whoever may open the
 * directories themselves can do without: the mapped index says in which of them
 * a block lies. What is said here is a hint of the moment. A block that has been
 * moved or removed meanwhile is not found there, and the mount knows.
 */
#ifndef UCM_LOCATED_H
#define UCM_LOCATED_H

#include <stdbool.h>

#include "gpu/source/source.h"

struct ucm_located;

/* mount: its path. NULL: no memory. */
struct ucm_located *ucm_located_new(const char *mount);
/* The thread is waited for a little, and left to its fate with what it needs if
 * the daemon does not answer. NULL is harmless. */
void ucm_located_free(struct ucm_located *located);

/* Get ready for a space, in this thread, which the daemon may keep. */
void ucm_located_prepare(struct ucm_located *located, const char *space);

/*
 * Where a block lies, and how long its file is; false: not known, or it cannot
 * be opened there: then only out->directory is set, if it is known. From any thread; it never waits for the daemon. The directory
 * stays until the end.
 */
bool ucm_located_find(struct ucm_located *located, const char *space,
		      const struct ucm_id *id, struct ucm_place *out,
		      uint64_t *size_out);

/* The stamp of its file that was verified; 0: of none. From any thread; it never
 * waits for the daemon. */
uint64_t ucm_located_verified(struct ucm_located *located, const char *space,
			      const struct ucm_id *id);

#endif
