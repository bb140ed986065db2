/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier.h - the directories of one tier, and the room in them.
 *
 * Knows nothing of other tiers (dirs.h) nor of single blocks.
 */
#ifndef UCM_TIER_H
#define UCM_TIER_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "common/align.h"
#include "common/osguard.h"
#include "fs/medium/medium.h"
#include "fs/medium/memory/memory.h"
#include "fs/tier/room.h"
#include "fs/tier/stats.h"

struct ucm_tier {
	char name[UCM_TIER_NAME_MAX + 1];
	struct ucm_medium **dirs;
	unsigned num_dirs;
	unsigned first; /* number of dirs[0], see dirs.h */
	struct ucm_limit limit;
	bool readonly;
	enum ucm_write_mode write_mode;
	uint8_t (*uuids)[16];     /* of dirs, for placement */
	struct ucm_room **rooms;  /* of dirs, which may share one */
	_Atomic uint64_t writing; /* bytes promised to files being written */
	_Atomic uint64_t guessed; /* of them, where nobody knows the size */
	_Atomic uint64_t turns;   /* for round_robin */
	struct ucm_tier_stats stats;
};

/* Opens all directories, as those of a store with that configuration. On
 * failure error names the directory. */
int ucm_tier_open(struct ucm_tier *tier, const struct ucm_tier_config *config,
		  unsigned first, const struct ucm_config *store,
		  struct ucm_error *error);
/* The same for a tier of memory, in the store with that key. */
int ucm_tier_open_memory(struct ucm_tier *tier,
			 const struct ucm_tier_config *config, unsigned first,
			 const struct ucm_config *store,
			 const struct ucm_memory_key *key,
			 struct ucm_error *error);
/* Leaves the directories as they are, clean or not. */
void ucm_tier_close(struct ucm_tier *tier);

/* What a new file is going to take. */
struct ucm_want {
	uint64_t bytes;
	uint64_t outgrown; /* guessed: room for so much was not enough */
	bool guessed;      /* nobody knows: bytes is likely more than that */
	bool anywhere;     /* any room on disk will do, within the limit */
	unsigned only;     /* 1 + which of the directories; 0: any */
};

/*
 * Promise a new file room in a directory, the first of the policy's order that
 * has it; out->medium says which. -ENOSPC if there is none, -EROFS for a
 * read-only tier. Directories that failed lately are passed over, and those that
 * have lost writes and had no checkpoint since (-EIO, if that is why).
 *
 * Where there is no room for a guess, one file whose size is guessed is let in
 * at a time: so no limit is exceeded by more than one file. There are three that
 * may be in the way: the tier's limit, the directory's, and the file system.
 */
int ucm_tier_choose(struct ucm_tier *tier, enum ucm_placement policy,
		    const struct ucm_id *id, const struct ucm_want *want,
		    struct ucm_promise **out);

/* Has a directory room for so much, or one that cannot say? Also one that failed
 * lately, and whatever others were promised: for who asks whether a file that
 * could not be made there was one too many. */
bool ucm_tier_has_room(const struct ucm_tier *tier, uint64_t bytes);

/* May a file of files/ be made in a directory of it? Within the limits, whatever
 * others were promised. */
bool ucm_tier_takes_files(const struct ucm_tier *tier,
			  struct ucm_medium *medium);

/* The number of a medium, of this tier, in dirs.h. */
unsigned ucm_tier_dir(const struct ucm_tier *tier,
		      const struct ucm_medium *medium);

/* The size is known: a guess is one no more; of others it may be more
 * than was promised. NULL does nothing, here and below. */
void ucm_promise_resize(struct ucm_promise *promise, uint64_t bytes);

/* The file counts as used, or is gone. */
void ucm_promise_end(struct ucm_promise *promise);

/* What a file takes on disk, as it is counted: what was allocated beyond its
 * end to be written to (XFS does that) is given back when it is closed. */
static inline uint64_t ucm_file_takes(const struct stat *st)
{
	uint64_t unit = st->st_blksize > 0 ? (uint64_t)st->st_blksize : 512;
	uint64_t most = ucm_round_up_to((uint64_t)st->st_size, unit);
	uint64_t now = (uint64_t)st->st_blocks * 512;

	return now < most ? now : most;
}

/* Bytes that a directory's files take, and its blocks and files; and those of all
 * directories of a tier. */
uint64_t ucm_medium_files(const struct ucm_medium *medium);
uint64_t ucm_medium_used(const struct ucm_medium *medium);
uint64_t ucm_tier_files(const struct ucm_tier *tier);
uint64_t ucm_tier_used(const struct ucm_tier *tier);

/* Ask a medium, and remember what it says for those who must not wait. */
int ucm_medium_ask_room(struct ucm_medium *medium, struct ucm_medium_room *out);

/* The limit in bytes, UINT64_MAX if there is none. */
uint64_t ucm_medium_limit_bytes(struct ucm_medium *medium);
uint64_t ucm_tier_limit_bytes(const struct ucm_tier *tier);

/* Size and free space in bytes, within the limit; of a tier also within those
 * of its directories. Of what does not answer, as it was seen last. */
void ucm_medium_space(struct ucm_medium *medium, uint64_t *total_out,
		      uint64_t *free_out);
void ucm_tier_space(const struct ucm_tier *tier, uint64_t *total_out,
		    uint64_t *free_out);

enum ucm_dir_state {
	UCM_DIR_GOOD,
	UCM_DIR_SET_ASIDE,
	UCM_DIR_UNREADABLE,
	UCM_DIR_LOST,
	UCM_DIR_UNRESPONSIVE,
	UCM_DIR_TAKEN_OVER,
	UCM_DIR_STATES
};
extern const char *const ucm_dir_states[UCM_DIR_STATES];

/* Does it answer all kinds of calls? If not, some fail at once. */
static inline bool ucm_medium_answers(const struct ucm_medium *medium)
{
	for (int kind = 0; kind < UCM_CALL_KINDS; kind++) {
		if (ucm_guard_is_down(medium->guard, (enum ucm_call_kind)kind))
			return false;
	}
	return true;
}

/* Need a failed call not be logged? Its caller was killed, or the guard has logged once
 * that the directory does not answer. */
static inline bool ucm_medium_is_no_news(const struct ucm_medium *medium, int err)
{
	return err == -EINTR ||
	       (err == -ETIMEDOUT && !ucm_medium_answers(medium));
}

enum ucm_dir_state ucm_medium_state(const struct ucm_medium *medium);

/* A call on this directory failed with err: after some errors it gets no new
 * blocks for a while. */
void ucm_medium_failed(struct ucm_medium *medium, const char *what, int err);

#endif
