/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.h - the room on a file system that is promised to files being written.
 *
 * A file takes its room while it is written, and where the kernel writes it,
 * nobody tells us. So that files made at the same time do not count on the same
 * room, each is promised what it will take before it is made; room is what is
 * free and promised to nobody. What a file has on disk already is not free any
 * more, and must not count twice: where room is short, the files are asked.
 *
 * Directories on one file system share its room, whatever tiers and stores of
 * this process they belong to. Limits of tiers are tier.h's. Calls may be made
 * from any thread; for one promise, from one at a time.
 */
#ifndef UCM_ROOM_H
#define UCM_ROOM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "fs/medium/temp.h"

struct ucm_medium;
struct ucm_room;
struct ucm_tier;

struct ucm_promise {
	uint64_t bytes;
	uint64_t outgrown; /* guessed: room for so much is not enough */
	bool guessed;      /* the size is not known; bytes is likely more */
	bool anywhere;     /* any room will do, though it be promised */

	/* tier.c */
	struct ucm_tier *tier;
	bool shares; /* in the limit of the medium, too */

	/* room.c: where, and of those taken after this one, and before */
	struct ucm_medium *medium;
	struct ucm_room *room; /* NULL: none is taken */
	LIST_ENTRY(ucm_promise) in_room;
	char path[UCM_TEMP_PATH_MAX]; /* of the file in there, or "" */
};

/* The room of a file system; NULL: no memory. */
struct ucm_room *ucm_room_get(dev_t dev);
void ucm_room_put(struct ucm_room *room);

/*
 * Take what the promise says, of a medium on that file system; false: there is
 * no such room. One that is guessed, where no other guess is open, also makes
 * do with what is left if that is more than it has outgrown: bytes says then
 * how much it is.
 */
bool ucm_room_take(struct ucm_room *room, struct ucm_medium *medium,
		   struct ucm_promise *promise);

/* Which file it is for: its path in the medium. It can be asked until the promise
 * ends. */
void ucm_room_watch(struct ucm_promise *promise, const char *path);

/* The size is known now. */
void ucm_room_resize(struct ucm_promise *promise, uint64_t bytes);

/* The file has its room, or needs it no more. */
void ucm_room_give_back(struct ucm_promise *promise);

#endif
