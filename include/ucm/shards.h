/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards.h - whole blocks and shards of them, by id: a store's interface.
 *
 * A thin layer over the loader (load.h) for those who have addresses instead of
 * pages: connectors that were written for a store with lookup, load, dump and
 * wait. A block is block_size bytes of payload, made of shards (a layer each,
 * or the whole block), made of tensors of one size:
 *
 *	payload = shard 0, shard 1, ...    shard = tensor 0, tensor 1, ...
 *
 * Two forms exist beside each other:
 *
 *	V1	shards by index; a block is committed by itself once all its
 *		shards have been dumped, in whatever order
 *	V0	bytes of the payload by offset; a block is created, dumped, and
 *		committed or given up by a call
 *
 * Files are blocks as everywhere (ucm-block(5)): a block is seen by lookups and
 * loads when it is whole, checked and committed, never before. ucm_shards(3)
 * describes all that with an example.
 *
 * Calls return 0 or -errno; all except open and close may be made from any
 * thread. Some say in words what was wrong (<ucm/error.h>).
 */
#ifndef UCM_SHARDS_H
#define UCM_SHARDS_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>
#include <ucm/error.h>
#include <ucm/load.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zero is a default everywhere but in the first two; set size to
 * sizeof(struct). Copied. */
struct ucm_shards_config {
	size_t size;
	/* In bytes, each a divisor of the next: */
	uint64_t tensor_size; /* at one address */
	uint64_t shard_size;  /* 0: the whole block */
	uint64_t block_size;  /* of a block's payload; 0: one shard */
	/*
	 * Layers of the block files, the smallest piece that can be moved: a
	 * shard must hold a whole number of them, and one of tensor and layer
	 * must divide the other. 0: as many as there are shards, or tensors
	 * where the whole block is one shard.
	 */
	uint32_t num_layers;
	/*
	 * What the files' headers say, and what loaded blocks must have; its
	 * planes must make up block_size. NULL: data of an opaque kind, with a
	 * K and a V plane to a layer where a layer is two tensors, else with
	 * one plane.
	 */
	const struct ucm_geometry *geometry;
	const char *space;	/* NULL: the default one */
	enum ucm_verify verify; /* of loads */
	uint32_t deadline_ms;	/* of each load, dump and commit; 0: none */
	/* 1: the daemon may refuse blocks that are not worth their writing. The
	 * outcomes of their dumps, and of a commit, say so (refused) and are no
	 * errors; nothing is written. As of struct ucm_request. */
	uint8_t may_refuse;
};

/* What follows from a configuration. */
struct ucm_shards_shape {
	uint64_t tensor_size, shard_size, block_size, layer_size;
	uint32_t num_layers;
	uint32_t num_shards;	    /* of a block */
	uint32_t tensors_per_shard; /* addresses that a shard takes */
};

struct ucm_shards;

/*
 * A store on a loader, which must outlive it, and of which it takes up a group
 * until the loader is closed. -EINVAL: sizes that do not fit each other; error
 * names them.
 */
int ucm_shards_open(struct ucm_loader *loader,
		    const struct ucm_shards_config *config,
		    struct ucm_shards **out, struct ucm_error *error);

/* Cancels what is under way and waits for that; blocks that are not committed
 * are given up. No other call may be under way. NULL is harmless. */
void ucm_shards_close(struct ucm_shards *store);

void ucm_shards_get_shape(const struct ucm_shards *store,
			  struct ucm_shards_shape *out);

/* ---- questions ---- */

/* What is found is expected (ucm-serve(7)), so that it can be loaded.
 *
 * found[i] is 1 where there is a committed block, else 0: for each id by
 * itself, whatever is found of the ones before. -errno, with nothing found, if
 * that could not be learned. */
int ucm_shards_lookup(struct ucm_shards *store, const struct ucm_id *ids,
		      size_t num, uint8_t *found);

/* The index of the last id of which it and all before are there; -1: the first
 * is not. */
int ucm_shards_lookup_on_prefix(struct ucm_shards *store,
				const struct ucm_id *ids, size_t num,
				int64_t *last_out);

/* A hint that these will be loaded soon; see ucm_loader_prefetch(). 0. */
int ucm_shards_prefetch(struct ucm_shards *store, const struct ucm_id *ids,
			size_t num);

/* ---- tasks ---- */

/*
 * Transfers are asynchronous. A call that returns 0 gives a handle, never 0,
 * which is valid until ucm_shards_wait() has told the end. Each entry of the
 * call (ids[i] and what belongs to it) has an outcome of its own; see load.h
 * for its errors, and below. A call that fails has started nothing.
 *
 * Arrays are copied; the memory that is loaded into or dumped from belongs to
 * the task until it is done. Addresses are the host's or the device's, as the
 * loader's copy option says.
 */

/* An address and how many bytes there are. */
struct ucm_span {
	uint64_t address;
	uint64_t bytes;
};

/*
 * Wait. 0: done, all entries well; -EIO: done, and some entry failed; both give
 * the outcomes (num entries, as the call had; NULL: not wanted), and end the
 * handle. -ETIMEDOUT: not done within timeout_ms (< 0: for ever); the task goes
 * on and the handle stays. -ENOENT: no such handle, or its end was reported
 * before; of several threads that wait for one task at once, all learn its end.
 * -EINVAL: num is not that of the call; nothing has changed.
 */
int ucm_shards_wait(struct ucm_shards *store, uint64_t handle, int timeout_ms,
		    struct ucm_outcome *outcomes, size_t num);

/* 1: done; 0: not yet. Never waits, and leaves the handle; outcomes are given
 * in both cases, -EINPROGRESS where one is not known. Errors as above. */
int ucm_shards_check(struct ucm_shards *store, uint64_t handle,
		     struct ucm_outcome *outcomes, size_t num);

/* 1 is added to the eventfd when the task is done, at once if it is. It must
 * stay open until that has been seen, or another has taken its place (0: none).
 * -ENOENT as of wait. */
int ucm_shards_notify(struct ucm_shards *store, uint64_t handle, int eventfd);

/* What is not done yet ends with -ECANCELED, soon; wait for it. */
int ucm_shards_cancel(struct ucm_shards *store, uint64_t handle);

/*
 * Say of blocks which one comes before each of them in its chain (all zero:
 * none), before they are dumped, or created: their headers name it, and what goes
 * first when a mount needs room goes by it. A hint, of which some thousands are
 * kept. Other blocks name none.
 */
void ucm_shards_set_parents(struct ucm_shards *store, const struct ucm_id *ids,
			    const struct ucm_id *parents, size_t num);

/* ---- V1: shards ---- */

/*
 * Entry i is shard shards[i] (NULL: 0 everywhere) of block ids[i]; its tensors
 * are at addresses[i * tensors_per_shard] and on. Name all shards that you want
 * of a block in one call: its file is opened and read once then.
 */
int ucm_shards_load(struct ucm_shards *store, const struct ucm_id *ids,
		    const uint32_t *shards, size_t num,
		    const uint64_t *addresses, uint64_t *handle,
		    struct ucm_error *error);

/*
 * Dump, likewise. A block is committed by the last of its shards. One that
 * exists is skipped (and the outcome says so). If a shard fails the block is
 * given up: what was dumped of it is removed, and shards that follow are
 * refused with -ECANCELED until each has come once, or one comes again: that
 * begins anew. -EBUSY: the id was created for V0.
 */
int ucm_shards_dump(struct ucm_shards *store, const struct ucm_id *ids,
		    const uint32_t *shards, size_t num,
		    const uint64_t *addresses, uint64_t *handle,
		    struct ucm_error *error);

/* The same with spans, whose sizes are checked: tensors_per_shard for an entry,
 * each of tensor_size bytes; or one for an entry, with the whole shard. */
int ucm_shards_load_data(struct ucm_shards *store, const struct ucm_id *ids,
			 const uint32_t *shards, size_t num,
			 const struct ucm_span *spans, size_t num_spans,
			 uint64_t *handle, struct ucm_error *error);
int ucm_shards_dump_data(struct ucm_shards *store, const struct ucm_id *ids,
			 const uint32_t *shards, size_t num,
			 const struct ucm_span *spans, size_t num_spans,
			 uint64_t *handle, struct ucm_error *error);

/* ---- V0: offsets ---- */

/*
 * Reserve blocks for ucm_shards_dump_at(). results[i]: 0; -EEXIST: there is
 * such a block; -EALREADY: reserved before; -EBUSY: being dumped by V1, or
 * still being given up; -ENOMEM. No space of a disk is reserved. -errno, with
 * no block reserved, if it could not be learned which exist.
 */
int ucm_shards_create(struct ucm_shards *store, const struct ucm_id *ids,
		      size_t num, int *results);

/*
 * Entry i is spans[i].bytes bytes of block ids[i] from offsets[i] of the
 * payload on (NULL: 0 everywhere): whole layers, else the call is refused with
 * -EINVAL and error names offset and length. (Where K and V of a layer are to
 * be moved by themselves, let num_layers count them as layers.)
 */
int ucm_shards_load_at(struct ucm_shards *store, const struct ucm_id *ids,
		       const uint64_t *offsets, const struct ucm_span *spans,
		       size_t num, uint64_t *handle, struct ucm_error *error);

/* Dump, likewise; nothing is committed. -ENOENT: the block was not created;
 * -ECANCELED: a dump of it has failed, only a commit ends that. */
int ucm_shards_dump_at(struct ucm_shards *store, const struct ucm_id *ids,
		       const uint64_t *offsets, const struct ucm_span *spans,
		       size_t num, uint64_t *handle, struct ucm_error *error);

/*
 * Commit (success[i] is not 0, or success is NULL) or give up. Outcomes:
 *
 *	0		it is there; or, given up, nothing is left of it
 *	-EBUSY		commit: dumps of it are not done yet: wait for them
 *	-EAGAIN		commit: bytes are missing; dump them, or give it up
 *	-ENOENT		it was not created (or has been committed since)
 *	others		commit: why it, or a dump before, has failed
 *
 * After all but -EBUSY and -EAGAIN the reservation has ended. Giving up works
 * as well for a block that V1 has dumped in parts; what is still being written
 * of it goes when that has ended.
 */
int ucm_shards_commit(struct ucm_shards *store, const struct ucm_id *ids,
		      const uint8_t *success, size_t num, uint64_t *handle,
		      struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
