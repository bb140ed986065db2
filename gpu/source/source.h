/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h - where blocks are: with a daemon, or in the tiers.
 *
 * A source opens blocks, many in a call, and knows how a new one comes to be. What
 * is in them the loader reads, through its ring. All calls except open and close may
 * be made from any thread.
 */
#ifndef UCM_SOURCE_H
#define UCM_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <ucm/block.h>
#include <ucm/error.h>

#include "fs/config/config.h"
#include "hashing/tree.h"

/* A directory that block files are found below. */
struct ucm_dir {
	bool memory;             /* tmpfs: its pages can be mapped */
	bool quick;              /* a read never waits for a server */
	_Atomic bool no_direct;  /* it refused O_DIRECT */
	_Atomic bool answered;   /* a read came back: see may_hang in ring.h */
	_Atomic uint32_t align;  /* of O_DIRECT; 0: not known yet */
};

/* Directories are numbered by a byte; one more: it is not known which. */
#define UCM_DIRECTORIES 256u

/* Where a block is expected. */
struct ucm_where {
	unsigned directory;
	/* The stamp (common/filestamp.h) of its file that was verified on this
	 * machine, by whom the source believes; 0: of none. */
	uint64_t verified;
};

/* What a source has opened. */
struct ucm_given {
	int fd; /* -errno: it could not */
	unsigned directory;
	bool local; /* no call on it waits for a server */
};

struct ucm_source;
struct ucm_draft; /* a new block that is not committed yet */

#define UCM_FOUND_UNKNOWN 2
#define UCM_SOURCE_DESCRIPTORS 250u

struct ucm_source_ops {
	const char *name;

	/* text: a mount point or a socket; or tiers, as in SOURCE of ucmfs(8). */
	int (*open)(const char *text, struct ucm_source **out,
		    struct ucm_error *error);
	void (*close)(struct ucm_source *source);

	/* space: its name, "" for the default one. -ENOENT if there is none. */
	int (*check_space)(struct ucm_source *source, const char *space);

	/* Which of these is it worth to save? Of a chain in their order;
	 * parents: all zero: none; or NULL; bytes: of each file. answers[i]: 1: it is,
	 * 0: it is not wanted. -errno: nobody knows. It may take its time.
	 * NULL: all are wanted. */
	int (*offer)(struct ucm_source *source, const char *space,
		     const struct ucm_id *ids, const struct ucm_id *parents,
		     size_t num, uint64_t bytes, int32_t *answers);

	/* Descriptors of whole blocks, to read, of at most UCM_SOURCE_DESCRIPTORS
	 * of them; -ENOENT: there is no such block. It may take its time, and is
	 * called by threads that do nothing else, several at a time. */
	void (*descriptors)(struct ucm_source *source, const char *space,
			    const struct ucm_id *ids, unsigned num,
			    struct ucm_given *given);
	/* Of those, as far as it is known now: false: it is not. It never waits. */
	bool (*where)(struct ucm_source *source, const char *space,
		      const struct ucm_id *id, struct ucm_where *out);

	/* Which blocks there are: found[i] is 1, 0, or UCM_FOUND_UNKNOWN where
	 * look has to be asked. -errno: for all. NULL: likewise. */
	int (*lookup)(struct ucm_source *source, const char *space,
		      const struct ucm_id *ids, size_t num, uint8_t *found);

	/* Is one there that is UNKNOWN? 1, 0, or -errno. It may take its time. */
	int (*look)(struct ucm_source *source, const char *space,
		    const struct ucm_id *id);

	/* How many of the ids, from the first on, are there, in one question;
	 * unknown: look has to be asked for the next one. Both are written on
	 * success only. -errno: for all. NULL: likewise. */
	int (*prefix)(struct ucm_source *source, const char *space,
		      const struct ucm_id *ids, size_t num, size_t *count_out,
		      bool *unknown_out);

	/* A call failed as it does when the daemon or a mount is gone. true: it
	 * is back, and what is opened from now on may work. */
	bool (*lost)(struct ucm_source *source);

	/*
	 * A new block, which is going to take so many bytes: a descriptor to
	 * write to; commit or drop ends the draft. commit closes the descriptor,
	 * after a drop the caller does. -EEXIST: it is there.
	 * header: the first header_bytes of the file, all of which is written: its
	 * header, with the extension; NULL: it has to be read.
	 * They may take their time, and are called by threads that do nothing
	 * else, several at a time.
	 */
	int (*create)(struct ucm_source *source, const char *space,
		      const struct ucm_id *id, uint64_t bytes,
		      struct ucm_draft **out);
	/* A draft's file was closed between two parts: open it again for
	 * writing. */
	int (*reopen)(struct ucm_source *source,
		      const struct ucm_draft *draft);
	int (*commit)(struct ucm_source *source, struct ucm_draft *draft,
		      int fd, const void *header, uint32_t header_bytes);
	void (*drop)(struct ucm_source *source, struct ucm_draft *draft);

	/* Remove a block. -ENOENT. It may take its time. */
	int (*remove)(struct ucm_source *source, const char *space,
		      const struct ucm_id *id);
};

extern const struct ucm_source_ops ucm_source_socket;
extern const struct ucm_source_ops ucm_source_tiers;

/* Errors that say that the mount or server of a file has gone. */
bool ucm_is_lost(int err);

/* Which of num blocks there are: found[i] is 1 or 0. -errno, with nothing
 * found, if that could not be learned. */
int ucm_source_lookup(const struct ucm_source_ops *ops,
		      struct ucm_source *source, const char *space,
		      const struct ucm_id *ids, size_t num, uint8_t *found);

/* How many of them are there, from the first on: up to the first that is
 * absent. -errno if that could not be learned. */
int ucm_source_prefix(const struct ucm_source_ops *ops,
		      struct ucm_source *source, const char *space,
		      const struct ucm_id *ids, size_t num, size_t *count_out);

/* What the file system of a directory says; fd: of it, or of a file in it. */
void ucm_dir_init(struct ucm_dir *dir, int fd);

/* What O_DIRECT wants of offsets, lengths and addresses in the file system of
 * an open file, as statx(2) says; 4096 if it does not. Remembered. */
uint32_t ucm_dir_align(struct ucm_dir *dir, int fd);
/* The same, asked each time. */
uint32_t ucm_direct_align(int fd);

#endif
