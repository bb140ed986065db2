/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.h - what can be done to the blocks of a store by their ids: touch,
 * pin, evict, remove, and ask where they are.
 *
 * The requests of ucm-serve(7), for any number of blocks: they are cut into
 * messages here. To look up which blocks there are, <ucm/index.h> is faster.
 *
 * Any number of threads may use one handle. All calls return 0 or -errno, as
 * <ucm/serve.h> says; -ENOTCONN: the daemon has ended: close, and open again.
 * See ucm_blocks(3).
 */
#ifndef UCM_BLOCKS_H
#define UCM_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>
#include <ucm/control.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ucm_blocks;

/* where: the mount point, or the path of the daemon's socket. -ENOENT: no mount of
 * ucmfs, or its socket is not in this namespace. */
int ucm_blocks_open(const char *where, struct ucm_blocks **out);
/* NULL is harmless. */
void ucm_blocks_close(struct ucm_blocks *blocks);

/*
 * space: the name of a space, NULL or "" for the default one. results: one for
 * each id, 0 or -errno unless it says otherwise; those of earlier batches are
 * written also if a later one fails. With num 0 a call only tells whether it
 * may be made.
 */

/* 1: there, 0: absent; -errno: could not be learned. */
int ucm_blocks_lookup(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, int32_t *results);
/* Count a use, as an open does. */
int ucm_blocks_touch(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, int32_t *results);
/* They are about to be opened, which counts then: for UCM_EXPECTED_MS they are not
 * evicted while anything else may be. ms: for this time, UCM_EXPECTED_MOST_MS at
 * most, whether or not they are opened, or 0; UCM_EXPECTED_NO_MORE: chains whose
 * last ones they are have ended, and are evicted first, as far as no other has them. */
int ucm_blocks_expect(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, uint32_t ms,
		      int32_t *results);
/* Keep them from being evicted, and let them be evicted again. */
int ucm_blocks_pin(struct ucm_blocks *blocks, const char *space,
		   const struct ucm_id *ids, size_t num, int32_t *results);
int ucm_blocks_unpin(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, int32_t *results);
/* Remove them from every tier, if they are neither pinned (-EPERM) nor open
 * (-EBUSY). */
int ucm_blocks_evict(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, int32_t *results);
/* Have them copied to the fastest tier, in the background; -EAGAIN: too many
 * are waiting. */
int ucm_blocks_warm(struct ucm_blocks *blocks, const char *space,
		    const struct ucm_id *ids, size_t num, int32_t *results);
/* Compare their files in all directories with their checksums, and quarantine what is
 * wrong: for a program that has read a bad one. 0: a whole one is there; -ENOENT:
 * none is, now. */
int ucm_blocks_check(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, size_t num, int32_t *results);
/* Remove them: for the space's owner, too, and pinned ones as well. A
 * damaged block is in the way of a whole one until it is removed. */
int ucm_blocks_remove(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, int32_t *results);

/* Which of these is it worth to save? Those of a chain in their order; parents:
 * of each (all zero: it has none), or NULL; bytes: of a block's file, 0: as
 * others of the space. results: 1: save it; 0: it is refused. See
 * UCM_SERVE_OFFER. */
int ucm_blocks_offer(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, const struct ucm_id *parents,
		     size_t num, uint64_t bytes, int32_t *results);

/* Where they lie. flags: UCM_LOCATE_*. */
int ucm_blocks_locate(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, uint32_t flags,
		      struct ucm_control_place *places);

#define UCM_BLOCKS_PATH_MAX 4096u

/* The path of a block's file in its tier. -ENOENT: there is no such block. */
int ucm_blocks_path(struct ucm_blocks *blocks, const char *space,
		    const struct ucm_id *id, char path[UCM_BLOCKS_PATH_MAX]);

int ucm_blocks_statistics(struct ucm_blocks *blocks,
			  struct ucm_control_statistics *out);

/* ---- of the whole mount ---- */

/* syncfs(2) of all tiers. */
int ucm_blocks_flush(struct ucm_blocks *blocks);
/* Look for blocks that were put into the directories by hand; may take long. A signal
 * ends it (-EINTR), as it ends a flush, and with it the connection. */
int ucm_blocks_rescan(struct ucm_blocks *blocks);
/* Flush, and note in each directory that all is on disk. -EAGAIN: one has not
 * been read to its end, or has blocks in doubt. */
int ucm_blocks_checkpoint(struct ucm_blocks *blocks);

/* Move what a backing directory has to others, and write nothing new there, until
 * UCM_DRAIN_END or the end of the mount; what: UCM_DRAIN_*. The daemon does; the
 * call returns at once. out: what is left; may be NULL. -ENOENT: the mount has no
 * such directory. */
int ucm_blocks_drain(struct ucm_blocks *blocks, const char *directory,
		     uint32_t what, struct ucm_control_drain *out);

#ifdef __cplusplus
}
#endif

#endif
