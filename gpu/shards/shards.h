/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards.h - what the parts of the store interface share.
 *
 * shape.c knows sizes, shards.c checks what callers say, calls.c keeps calls and
 * their handles, parts.c carries them out (call.h), join.c makes one load of many, dumps.c remembers which
 * blocks are being dumped.
 * What moves bytes is the loader; its public calls alone are used.
 */
#ifndef UCM_GPU_SHARDS_H
#define UCM_GPU_SHARDS_H

#include <pthread.h>
#include <stdbool.h>

#include <ucm/shards.h>

#include "gpu/shards/join.h"

struct ucm_shards_call;
struct ucm_shards_dump;
struct ucm_shards_link;

struct ucm_shards_slot {
	uint32_t generation;         /* never 0 */
	uint32_t next_free;
	struct ucm_shards_call *call; /* NULL: free, or not published yet */
};

struct ucm_shards {
	struct ucm_loader *loader;
	unsigned group;
	struct ucm_shards_shape shape;
	uint64_t region_bytes; /* one address of the loader's */
	enum ucm_verify verify;
	uint32_t deadline_ms;
	bool may_refuse;
	pthread_mutex_t lock; /* guards the rest; taken in on_done too */
	struct ucm_shards_dump *dumps; /* a table, by id */
	struct ucm_shards_link *links; /* NULL: no parent has been told */
	struct ucm_shards_slot *slots;
	uint32_t num_slots;
	uint32_t first_free; /* num_slots: none */
};

/* ---- sizes (shape.c) ---- */

/* From the configuration: its shape, and a group of the loader. */
int ucm_shards_set_up(struct ucm_shards *store,
		      const struct ucm_shards_config *config,
		      struct ucm_error *error);

/* ---- calls (calls.c, parts.c) ---- */

enum ucm_shards_kind {
	UCM_SHARDS_LOAD,
	UCM_SHARDS_DUMP,
	UCM_SHARDS_DUMP_HELD, /* V0 */
	UCM_SHARDS_COMMIT,
};

/* A call with num entries, none of which is known to be refused; the outcome of one
 * that is takes its place in call->outcomes. -ENOMEM. */
int ucm_shards_call_new(struct ucm_shards *store, enum ucm_shards_kind kind,
			size_t num, struct ucm_shards_call **out);
void ucm_shards_call_free(struct ucm_shards_call *call);

/* Submit what is not decided, and give it a handle. The call is the table's
 * afterwards. Cannot fail: what could not be submitted has failed. */
uint64_t ucm_shards_call_start(struct ucm_shards_call *call);

/* End all calls that have a handle. */
void ucm_shards_end_calls(struct ucm_shards *store);

/* ---- blocks that are being dumped (dumps.c); with the lock ---- */

/* Layers of a block are to be dumped (held: by V0). True: they are, and
 * ucm_shards_dumped() must follow; else *out is the outcome. */
bool ucm_shards_admit(struct ucm_shards *store, const struct ucm_id *id,
		      uint32_t first_layer, uint32_t num_layers, bool held,
		      struct ucm_outcome *out);
void ucm_shards_dumped(struct ucm_shards *store, const struct ucm_id *id,
		       const struct ucm_outcome *outcome);

/* V0's create, of a block that does not exist. */
int ucm_shards_reserve(struct ucm_shards *store, const struct ucm_id *id);

/* V0's commit. true: the loader is to commit, ucm_shards_committed() must
 * follow; else *out is the outcome. */
bool ucm_shards_may_commit(struct ucm_shards *store, const struct ucm_id *id,
			   bool success, struct ucm_outcome *out);
void ucm_shards_committed(struct ucm_shards *store, const struct ucm_id *id,
			  const struct ucm_outcome *outcome);

/* The block before one, as it was told; false: it was not. */
bool ucm_shards_parent(const struct ucm_shards *store, const struct ucm_id *id,
		       struct ucm_id *out);

/* Forget all. */
void ucm_shards_end_dumps(struct ucm_shards *store);

#endif
