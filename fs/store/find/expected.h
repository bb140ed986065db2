/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected.h - blocks that are about to be opened.
 *
 * A program that has found a block opens it a moment later. Until then the block
 * is spared by those who make room, as long as anything else may go (evict.c). A
 * hint: it holds nothing, has no owner, is not given back, and is not known after a
 * restart. Any thread may call.
 */
#ifndef UCM_EXPECTED_H
#define UCM_EXPECTED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/index/index.h"

#define UCM_EXPECTED_MOST (1u << 20) /* at a time; further ones are ignored */

struct ucm_expectation {
	ucm_ref ref;	  /* 0: free */
	int64_t until_ms; /* monotonic: it is about to be opened until then, */
	int64_t kept_ms;  /* or it is kept until then */
};

struct ucm_expected {
	pthread_mutex_t lock; /* guards the rest; below all others */
	struct ucm_expectation *slots; /* open addressing */
	size_t room;
	_Atomic size_t used; /* slots, some of which have expired */
	int64_t cleared_ms;  /* when those were removed last */
};

void ucm_expected_init(struct ucm_expected *expected);
void ucm_expected_fini(struct ucm_expected *expected);

/* A block is about to be opened, within UCM_EXPECTED_MS. Was that known? */
bool ucm_expected_add(struct ucm_expected *expected, ucm_ref ref, int64_t now_ms);
/* It is kept for this time, or for what is left of an earlier one, if that is longer;
 * 0: no more. Such blocks leave half of the table to the others. */
void ucm_expected_keep(struct ucm_expected *expected, ucm_ref ref,
		       uint32_t for_ms, int64_t now_ms);
/* Either of these? */
bool ucm_expected_has(struct ucm_expected *expected, ucm_ref ref,
		      int64_t now_ms);

/* May any be expected? No lock is taken. */
static inline bool ucm_expected_any(const struct ucm_expected *expected)
{
	return atomic_load_explicit(&expected->used, memory_order_relaxed);
}

#endif
