/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub_note.h - what a directory's note says of a scrub: what it is to do, where
 * it is, and what it has found. Text in memory; it reads and writes no file.
 */
#ifndef UCM_SCRUB_NOTE_H
#define UCM_SCRUB_NOTE_H

#include <stddef.h>

#include "fs/store/scrub.h"
#include "hashing/tree.h"

struct ucm_scrub_place {
	bool all; /* spaces; else the one of this name */
	char space[UCM_TREE_SPACE_MAX + 1];
	bool any_read;	     /* else after means nothing */
	struct ucm_id after; /* up to this one all have been read */
};

struct ucm_scrub_note {
	struct ucm_scrub_status status;
	struct ucm_scrub_place place;
	uint64_t rate;
};

#define UCM_SCRUB_NOTE_MAX 1024

/* The length without its NUL. */
size_t ucm_scrub_note_format(const struct ucm_scrub_note *note,
			     char text[UCM_SCRUB_NOTE_MAX]);
int ucm_scrub_note_parse(const char *text, struct ucm_scrub_note *out);

#endif
