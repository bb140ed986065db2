/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - which blocks a mount has, without asking it for each.
 *
 * The daemon keeps its index in memory that a reader maps: a look-up is a few
 * loads, no system call. Where it cannot be mapped the same calls ask the daemon
 * (by its socket, 1000 blocks at a time): slower, and right as well.
 *
 * An answer is one of three: the block is there; it is absent; or nobody can
 * say yet, because the daemon has not read all of its directories, has to check
 * the block first, or is changing it just now. Never is a block said to be there
 * that could not have been opened at that moment.
 *
 * One thread at a time may use a reader; open one for each. All calls return 0
 * or -errno. See ucm_index(3).
 */
#ifndef UCM_INDEX_H
#define UCM_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ucm_index_reader;

/*
 * where: the mount point, or the path of the daemon's socket. space: the name of
 * a space, NULL or "" for the default one (blocks/).
 *
 * -ENOENT: no mount of ucmfs, or no such space. -EACCES: it may not be read.
 * -EINVAL: no name of a space. -ENOTCONN: the daemon is gone. -ENOMEM.
 */
int ucm_index_open(const char *where, const char *space,
		   struct ucm_index_reader **out);
/* NULL is harmless. */
void ucm_index_close(struct ucm_index_reader *reader);

/* Words of a bitmap of num bits; bit i is bit i % 64 of word i / 64. */
#define UCM_INDEX_WORDS(num) ((num) / 64 + ((num) % 64 != 0))

/*
 * Look up many ids. Bit i of present: block i is there. Bit i of unknown (NULL:
 * not wanted): nobody can say. Neither: it is absent.
 *
 * -ENOTCONN: the daemon is gone, and with it the mount: close the reader, and
 * open it again when there is a new one. -ENOENT: the space is gone (one made
 * again under its name will be found). -EACCES: it has become private. On any
 * error all bits are 0.
 */
int ucm_index_lookup(struct ucm_index_reader *reader, const struct ucm_id *ids,
		     size_t num, uint64_t *present, uint64_t *unknown);

/* The same, and no use: it does not count in the mount's hits and misses, where the
 * index is mapped. unknown is wanted. */
int ucm_index_peek(struct ucm_index_reader *reader, const struct ucm_id *ids,
		   size_t num, uint64_t *present, uint64_t *unknown);

/*
 * How many of the ids, from the first on, are there. unknown_out (NULL: not
 * wanted): 1 if it is not known whether the one after them is, else 0. Errors
 * as of lookup; then nothing is written.
 */
int ucm_index_prefix(struct ucm_index_reader *reader, const struct ucm_id *ids,
		     size_t num, size_t *count_out, int *unknown_out);

#define UCM_INDEX_PINNED 0x2u /* exempt from eviction */
#define UCM_INDEX_COPY 0x4u   /* another directory is known to have it, too */

#define UCM_INDEX_TIER_NAME 40u /* bytes, with the NUL */

/* What is known of a block. */
struct ucm_index_entry {
	uint64_t size;       /* bytes of the file */
	/* Differs from that of every block before and after it, of the same
	 * name or another, for as long as the daemon runs; 0: not known. */
	uint64_t generation;
	uint32_t flags;      /* UCM_INDEX_* */
	int32_t tier;        /* 0 is the fastest; -1: not known */
	char tier_name[UCM_INDEX_TIER_NAME]; /* "": not known */
};

/* -ENOENT: absent (or the space is gone). -EAGAIN: nobody can say. Others as
 * of lookup. */
int ucm_index_entry(struct ucm_index_reader *reader, const struct ucm_id *id,
		    struct ucm_index_entry *out);

/* How a reader gets its answers. */
struct ucm_index_info {
	const char *backend; /* "map" or "socket"; static text */
	const char *why;     /* why it is not "map", else NULL; static text */
	uint64_t blocks;     /* in the map, of all spaces in it; else 0 */
	int complete;        /* 1: what is not there is absent */
};

int ucm_index_info(struct ucm_index_reader *reader,
		   struct ucm_index_info *out);

#ifdef __cplusplus
}
#endif

#endif
