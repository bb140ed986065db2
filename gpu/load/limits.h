/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.h - what a loader chooses by itself, and a test or a benchmark for it:
 * small limits make waits that otherwise take large files.
 */
#ifndef UCM_LOAD_LIMITS_H
#define UCM_LOAD_LIMITS_H

#include <ucm/load.h>

/* Each 0: the loader's choice. */
struct ucm_loader_limits {
	uint64_t window_bytes; /* reads in flight [found by trying] */
	uint64_t save_bytes;   /* that wait [4 x staging memory] */
	uint64_t in_flight;    /* reads and writes under way [any] */
	uint32_t read_bytes;   /* reads are split at this [4 MiB] */
};

/* As ucm_loader_open(). */
int ucm_loader_open_within(const struct ucm_loader_options *options,
			   const struct ucm_loader_limits *limits,
			   struct ucm_loader **out, struct ucm_error *error);

#endif
