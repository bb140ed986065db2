/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media.h - the directories of a store, whose files ucm scrub reads itself.
 *
 * They are opened for reading: no lock is taken and nothing in them changes. What
 * cannot be read is reported once for each directory, noted in failed, and the rest
 * goes on. A directory whose server does not answer is asked nothing more.
 */
#ifndef UCM_TOOLS_CHECK_MEDIA_H
#define UCM_TOOLS_CHECK_MEDIA_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/medium/medium.h"

struct ucm_media_dir {
	struct ucm_medium *medium; /* NULL: it is not open */
	int err;         /* why it is asked nothing more; 0: it is */
	uint64_t unread; /* things in it that could not be read */
};

struct ucm_media {
	struct ucm_config config;
	struct ucm_media_dir dirs[UCM_MAX_DIRS];
	unsigned num;
	bool failed; /* something could not be read */
};

/* What cannot be opened of them is reported and left out; -EIO if that is all, and
 * -errno (reported). close also after an error. */
int ucm_media_open(struct ucm_media *media, const char *const *paths,
		   unsigned num);
/* Says how much more could not be read. */
void ucm_media_close(struct ucm_media *media);

/* Something below a directory could not be read. */
void ucm_media_note(struct ucm_media *media, struct ucm_media_dir *dir,
		    const char *below, int err);
/* The same, which has been reported. */
void ucm_media_leave(struct ucm_media *media, struct ucm_media_dir *dir,
		     int err);

/* Is a directory to be asked? */
static inline bool ucm_media_asks(const struct ucm_media_dir *dir)
{
	return dir->medium && !dir->err;
}

#endif
