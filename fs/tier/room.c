/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.c - room promised to files being written; see room.h.
 *
 * A promise is entered first and looked at then, against those before it only:
 * of several that want the last room, one gets it. A file that ends leaves the
 * list after it has taken its room, so whoever does not find it there finds its
 * bytes taken.
 */
#include <config.h>

#include "fs/tier/room.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/osfile.h"
#include "fs/medium/medium.h"
#include "fs/tier/tier.h"

struct ucm_room {
	dev_t dev;
	unsigned refs; /* under rooms_lock */
	LIST_ENTRY(ucm_room) in_rooms;
	pthread_mutex_t lock; /* guards the rest */
	uint64_t promised;
	unsigned guesses; /* promises that are guessed */
	LIST_HEAD(, ucm_promise) promises; /* newest first */
};

static pthread_mutex_t rooms_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, ucm_room) rooms = LIST_HEAD_INITIALIZER(rooms);

struct ucm_room *ucm_room_get(dev_t dev)
{
	struct ucm_room *room;

	pthread_mutex_lock(&rooms_lock);
	LIST_FOREACH(room, &rooms, in_rooms) {
		if (room->dev == dev)
			break;
	}
	if (!room) {
		room = calloc(1, sizeof(*room));
		if (room) {
			room->dev = dev;
			pthread_mutex_init(&room->lock, NULL);
			LIST_INSERT_HEAD(&rooms, room, in_rooms);
		}
	}
	if (room)
		room->refs++;
	pthread_mutex_unlock(&rooms_lock);
	return room;
}

void ucm_room_put(struct ucm_room *room)
{
	if (!room)
		return;
	pthread_mutex_lock(&rooms_lock);
	if (!--room->refs) {
		LIST_REMOVE(room, in_rooms);
		pthread_mutex_destroy(&room->lock);
		free(room);
	}
	pthread_mutex_unlock(&rooms_lock);
}

/* What is promised to those before it; alone: none of them is guessed. */
static uint64_t enter(struct ucm_room *room, struct ucm_promise *promise,
		      bool *alone)
{
	uint64_t before;

	pthread_mutex_lock(&room->lock);
	before = room->promised;
	*alone = !room->guesses;
	room->promised += promise->bytes;
	room->guesses += promise->guessed;
	promise->room = room;
	LIST_INSERT_HEAD(&room->promises, promise, in_room);
	pthread_mutex_unlock(&room->lock);
	return before;
}

void ucm_room_give_back(struct ucm_promise *promise)
{
	struct ucm_room *room = promise->room;

	if (!room)
		return;
	pthread_mutex_lock(&room->lock);
	room->promised -= promise->bytes;
	room->guesses -= promise->guessed;
	LIST_REMOVE(promise, in_room);
	promise->room = NULL;
	pthread_mutex_unlock(&room->lock);
}

void ucm_room_watch(struct ucm_promise *promise, const char *path)
{
	pthread_mutex_lock(&promise->room->lock);
	strncpy(promise->path, path, sizeof(promise->path) - 1);
	pthread_mutex_unlock(&promise->room->lock);
}

static void set_bytes(struct ucm_promise *promise, uint64_t bytes, bool guessed)
{
	struct ucm_room *room = promise->room;

	pthread_mutex_lock(&room->lock);
	room->promised += bytes - promise->bytes;
	room->guesses -= promise->guessed && !guessed;
	promise->bytes = bytes;
	promise->guessed = guessed;
	pthread_mutex_unlock(&room->lock);
}

void ucm_room_resize(struct ucm_promise *promise, uint64_t bytes)
{
	set_bytes(promise, bytes, false);
}

static int look_at(const struct ucm_promise *promise, struct stat *out)
{
	struct ucm_medium *medium = promise->medium;

	return *promise->path ? medium->ops->stat(medium, promise->path, out)
			      : -ENOENT;
}

/* What the files before this one have not taken yet. */
static uint64_t open_before(struct ucm_promise *promise)
{
	const struct ucm_promise *of = promise;
	uint64_t open = 0;
	int err = 0;

	pthread_mutex_lock(&promise->room->lock);
	while ((of = LIST_NEXT(of, in_room))) {
		uint64_t has = 0;
		struct stat st;

		/* a server that does not answer is not asked of each */
		if (!err || err == -ENOENT)
			err = look_at(of, &st);
		if (!err)
			has = (uint64_t)st.st_blocks * 512;
		open += has < of->bytes ? of->bytes - has : 0;
	}
	pthread_mutex_unlock(&promise->room->lock);
	return open;
}

/* Of a new block: its file, its folder, and the second name of the moment in which
 * it is linked, where each name counts (tmpfs). */
#define INODES_OF_ONE 3

/* Free space, except for one block of it; false: none, or it cannot say, and is set
 * aside. */
static bool free_of(struct ucm_medium *medium, uint64_t *out)
{
	struct ucm_medium_room room;
	int err = medium->ops->room(medium, &room);

	if (err)
		ucm_medium_failed(medium, "statvfs", err);
	/* the next write shows whether the server or the disk is full */
	if (err || room.free_bytes < room.unit ||
	    (room.total_files && room.free_files < INODES_OF_ONE))
		return false;
	*out = room.free_bytes - room.unit;
	return true;
}

static bool is_enough(struct ucm_promise *promise, uint64_t before, bool alone)
{
	uint64_t room;

	if (!free_of(promise->medium, &room))
		return false;
	if (promise->anywhere || room >= before + promise->bytes)
		return true;
	if (before && (promise->guessed || room >= promise->bytes)) {
		before = open_before(promise);
		if (!free_of(promise->medium, &room))
			return false;
	}
	if (room >= before + promise->bytes)
		return true;
	if (!promise->guessed || !alone || room <= before + promise->outgrown)
		return false;
	set_bytes(promise, room - before, true);
	return true;
}

bool ucm_room_take(struct ucm_room *room, struct ucm_medium *medium,
		   struct ucm_promise *promise)
{
	bool alone;
	uint64_t before;

	promise->medium = medium;
	before = enter(room, promise, &alone);
	if (is_enough(promise, before, alone))
		return true;
	ucm_room_give_back(promise);
	return false;
}
