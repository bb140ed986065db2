/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - between staging memory and pages: calls for those of the host, and a table
 * of operations for each kind of device.
 *
 * A copy back end belongs to one thread of the loader, which makes all calls.
 * It knows regions and pages, not files: the bytes of the layers [first_layer,
 * end_layer) of a block lie in a row in staging.
 */
#ifndef UCM_COPY_H
#define UCM_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/layout/layout.h"

struct ucm_copy;

/* One block's layers. Belongs to the back end from start to done. */
struct ucm_copy_job {
	unsigned group;
	uint32_t first_layer, end_layer;
	uint8_t *staging; /* of first_layer's first byte */
	uint32_t page;
	const uint64_t *addresses; /* of first_layer's first region on, or NULL:
				    * see struct ucm_request */
	/* The caller's, who hears of it at poll. */
	void (*copied)(struct ucm_copy_job *job);
	/* The same, or NULL: the device has got all of it, and of what is queued
	 * in the copy's stream from now on it comes first. Before copied, if at
	 * all. */
	void (*queued)(struct ucm_copy_job *job);
	int err; /* once done: 0 or -errno, logged */
	/* Once done, with err: the device went while it had the job, and nobody
	 * has said that it leaves staging alone: that is never used again. */
	bool lost;
	struct ucm_copy_job *next;
};

struct ucm_copy_options {
	int device;
	void *stream; /* or UCM_STREAM_OWN */
	unsigned ctas;
};

struct ucm_copy_ops {
	const char *name;

	/* The NUMA node that pages are nearest to, or -1. */
	int (*node)(const struct ucm_copy_options *options);

	int (*open)(const struct ucm_copy_options *options,
		    struct ucm_copy **out, struct ucm_error *error);
	void (*close)(struct ucm_copy *copy);

	/* A layout by the loader's number for it, which must stay until the
	 * group is removed or the copy closed. A number is the next one, from 0
	 * on, or that of a group that was removed. */
	int (*add_group)(struct ucm_copy *copy, unsigned group,
			 const struct ucm_layout *layout);
	/* No job of it is under way. */
	void (*remove_group)(struct ucm_copy *copy, unsigned group);

	/* Memory that staging will lie in, page aligned; until close, or until it
	 * is given back, all of it, when no job has any of it. */
	int (*register_staging)(struct ucm_copy *copy, void *memory,
				size_t len);
	void (*unregister_staging)(struct ucm_copy *copy, void *memory);

	/* Start jobs (a list by next): staging to pages, or pages to staging. */
	void (*scatter)(struct ucm_copy *copy, struct ucm_copy_job *jobs);
	void (*gather)(struct ucm_copy *copy, struct ucm_copy_job *jobs);

	/* Jobs that are done (a list), in any order; never waits. */
	struct ucm_copy_job *(*poll)(struct ucm_copy *copy);

	/* Has a caller's event completed? 1, 0, or -errno, logged. */
	int (*reached)(struct ucm_copy *copy, void *event);
	/* From any thread: what is queued in that stream afterwards comes after
	 * the jobs that are queued by now. -EBUSY: one of the streams is being
	 * captured; -errno, logged. */
	int (*join)(struct ucm_copy *copy, void *stream);
};

/* Where libucm is built with CUDA; open says what is missing at run time. */
extern const struct ucm_copy_ops ucm_copy_cuda;

/* Tests and benches set this: stores of at most so many bytes at a time that go
 * past the caches; 0: none do. */
extern unsigned ucm_host_widest;

/* For the host's pages: the copy is done when it returns, and there is nothing to
 * open, queue or poll. */
void ucm_host_scatter(const struct ucm_layout *layout,
		      const struct ucm_copy_job *job);
void ucm_host_gather(const struct ucm_layout *layout,
		     const struct ucm_copy_job *job);

#endif
