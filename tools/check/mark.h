/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mark.h - how far ucm scrub is, in a small file: the next one goes on there.
 *
 * The file is replaced as a whole. One that is damaged, or of other blocks, counts
 * as none.
 */
#ifndef UCM_TOOLS_CHECK_MARK_H
#define UCM_TOOLS_CHECK_MARK_H

#include <stdbool.h>

#include "hashing/tree.h"

struct ucm_mark {
	const char *of, *only; /* what is scrubbed: the caller's */
	int dirfd;
	char name[256];
	bool any; /* else the rest means nothing */
	/* All before this space have been read, and of it all up to this id. */
	char space[UCM_TREE_SPACE_MAX + 1];
	struct ucm_id after;
};

/* Find the mark of a scrub. of: the mount or the directories; only: which blocks of
 * it; state: the file, NULL: one for these two in the user's state directory, which
 * is made. Where there can be none the process ends (reported). */
void ucm_mark_open(struct ucm_mark *mark, const char *state, const char *of,
		   const char *only);
void ucm_mark_close(struct ucm_mark *mark);

/* 0 or -errno (reported). */
int ucm_mark_save(const struct ucm_mark *mark);
/* All has been read: the next one begins at the beginning. */
void ucm_mark_remove(const struct ucm_mark *mark);

#endif
