/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_media.h - the directories of a store, read without a daemon.
 *
 * They are opened as an engine does that reads beside others: no lock is taken and
 * nothing in them changes, not even the times of a file, where the file system lets
 * its owner read so. A file is a block if its header, size and name are right and
 * it fits its space, as for a mount (fs/store/examine.c); others are counted and
 * otherwise left alone. A block that several directories have lies in the first
 * of them.
 *
 * What cannot be read is reported once for each directory, noted in failed, and the
 * rest goes on. A directory whose server does not answer is asked nothing more.
 * Calls return 0 or -errno (reported), unless it says otherwise; one thread.
 */
#ifndef UCM_TOOLS_MEDIA_H
#define UCM_TOOLS_MEDIA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/blocks.h>

#include "fs/store/namespace.h"
#include "fs/store/pins.h"
#include "fs/tier/config.h"
#include "fs/tier/medium.h"

struct ucm_media_dir {
	struct ucm_medium *medium; /* NULL: it is not open */
	unsigned tier;
	int err;         /* why it is asked nothing more; 0: it is */
	uint64_t unread; /* things in it that could not be read */
};

struct ucm_media {
	char *source;
	struct ucm_config config;
	struct ucm_media_dir *dirs; /* in the order of SOURCE */
	unsigned num;
	struct ucm_namespace names; /* the spaces that were asked for */
	struct ucm_pins pins;
	uint64_t strays; /* files that have the name of a block and are none */
	bool failed;     /* something could not be read */
};

/* source: as SOURCE of ucmfs(8). What cannot be opened of it is reported and left
 * out; -EIO if that is all. */
int ucm_media_open(const char *source, struct ucm_media **out);
/* The same of directories by their paths, each a tier; source: what is said of them
 * all. */
int ucm_media_open_paths(const char *source, const char *const *paths,
			 unsigned num, struct ucm_media **out);
/* The same for whoever removes blocks: with the lock of each directory, and none is
 * left out. -EBUSY: somebody else has one, who is named. */
int ucm_media_open_to_remove(const char *source, struct ucm_media **out);
/* Says how much more could not be read. NULL is harmless. */
void ucm_media_close(struct ucm_media *media);

/* ---- blocks; space: NULL or "": the default one ---- */

/* -ENOENT (reported): no directory has that space. */
int ucm_media_check_space(struct ucm_media *media, const char *space);

struct ucm_media_block {
	struct ucm_id id;
	/* What only a daemon knows is zero: uses, generation, and all flags but
	 * pinned, copy and checksum. */
	struct ucm_control_place place;
	struct ucm_id parent; /* zero: it has none */
	uint64_t bytes;       /* of its files in all directories */
	unsigned copies;      /* how many have it, the first too */
	unsigned second;      /* the tier of the second, if there is one */
};

/* fn for each block of a bucket, by id, until it returns what is not 0; returns
 * that. What cannot be read is no error here: see above. */
int ucm_media_each(struct ucm_media *media, const char *space, unsigned bucket,
		   int (*fn)(void *arg, const struct ucm_media_block *block),
		   void *arg);

/* 0; -ENOENT: it is in none; -errno: nobody can say. Not reported. */
int ucm_media_find(struct ucm_media *media, const char *space,
		   const struct ucm_id *id, struct ucm_media_block *out);

/* The file of a block that was found, for people. */
int ucm_media_path(struct ucm_media *media, const char *space,
		   const struct ucm_id *id,
		   const struct ucm_control_place *place,
		   char path[UCM_BLOCKS_PATH_MAX]);
/* The same for reading: a descriptor, or -errno; not reported. */
int ucm_media_open_block(struct ucm_media *media, const char *space,
			 const struct ucm_id *id,
			 const struct ucm_control_place *place);

/* fn for each space but the default one, once, in no order, until it returns what
 * is not 0; returns that. */
int ucm_media_spaces(struct ucm_media *media,
		     int (*fn)(void *arg, const char *name), void *arg);

/* ---- removing; opened for that (ucm_media_remove.c) ---- */

/* A block from all directories. -EPERM: it is pinned; -ENOENT: there is none of
 * that name, whatever else has it. Not reported. */
int ucm_media_remove(struct ucm_media *media, const char *space,
		     const struct ucm_id *id);

/* A space that has no blocks any more: its folders and its manifest. -ENOTEMPTY:
 * something else is in it. */
int ucm_media_remove_space(struct ucm_media *media, const char *space);

/* ---- for those who read files of directories themselves ---- */

/* Something below a directory could not be read. Returns err. */
int ucm_media_note(struct ucm_media *media, struct ucm_media_dir *dir,
		   const char *below, int err);
/* The same, which has been reported. */
void ucm_media_leave(struct ucm_media *media, struct ucm_media_dir *dir,
		     int err);

/* Is a directory to be asked? */
static inline bool ucm_media_asks(const struct ucm_media_dir *dir)
{
	return dir->medium && !dir->err;
}

/* NULL: no memory, or no such name. */
struct ucm_space *ucm_media_space(struct ucm_media *media, const char *name);

/* 1: what one directory has of that name is a block of the space; 0: it is none,
 * or there is nothing; -errno (noted). */
int ucm_media_look(struct ucm_media *media, unsigned dir,
		   struct ucm_space *space, const struct ucm_id *id,
		   struct ucm_media_block *out);

#endif
