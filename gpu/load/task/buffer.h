/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffer.h - the write buffer: memory that pages are copied into when they are
 * saved, so that they are the engine's again before a disk has them.
 *
 * There is one for all loaders of a process. What is in it is gone with the
 * process. A whole block can be found there by all of them from the moment that
 * it was copied until its file is committed, or it has failed. All calls may be
 * made from any thread.
 */
#ifndef UCM_BUFFER_H
#define UCM_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <ucm/error.h>

#include "gpu/load/task/task.h"
#include "gpu/ring/staging.h"

struct ucm_buffer;

/* Some layers of a block, in the buffer. */
struct ucm_buffered {
	struct ucm_buffer *buffer;
	struct ucm_slot slot;
	uint8_t *payload; /* of the first layer; room for a header before it */
	unsigned refs;
	/* Of a whole block; under the buffer's lock. */
	const char *home; /* NULL: it cannot be found */
	const struct ucm_group *group;
	struct ucm_id id;
	LIST_ENTRY(ucm_buffered) in_bucket;
};

/* The buffer of the process, made if it has none yet; else that one, whatever
 * its size. Its memory is touched now. */
int ucm_buffer_open(uint64_t bytes, struct ucm_buffer **out,
		    struct ucm_error *error);
/* Nothing of the caller's may be in it. NULL is harmless. */
void ucm_buffer_close(struct ucm_buffer *buffer);

uint8_t *ucm_buffer_memory(const struct ucm_buffer *buffer);
size_t ucm_buffer_len(const struct ucm_buffer *buffer);

/* Room for so many bytes; the caller has a reference. NULL: none at present. */
struct ucm_buffered *ucm_buffer_get(struct ucm_buffer *buffer, size_t len);
void ucm_buffered_put(struct ucm_buffered *kept); /* NULL is harmless */

/* It holds all layers of a block, and can be found from now on, by loaders with the
 * same home: a mount, or tiers. That text and the group must stay until it is hidden;
 * a block that was found may be used after that, too. */
void ucm_buffered_show(struct ucm_buffered *kept, const char *home,
		   const struct ucm_group *group, const struct ucm_id *id);
void ucm_buffered_hide(struct ucm_buffered *kept);

/* A whole block, with a reference; NULL: it is not in the buffer. */
struct ucm_buffered *
ucm_buffer_find(struct ucm_buffer *buffer, const char *home,
		const struct ucm_group *group, const struct ucm_id *id);
/* So that who has none need not look. */
bool ucm_buffer_is_empty(const struct ucm_buffer *buffer);

#endif
