/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghosts.h - what is remembered of blocks that are no longer there.
 *
 * Four bytes for each: 16 bits of the tag, and how often and when it was used,
 * coarsely. They lie in sets of one cache line, the newest first, and a new one
 * pushes the oldest of its set out. Of two tags of a set, one in 4096 is taken
 * for the other's.
 */
#ifndef UCM_FS_POLICY_GHOSTS_H
#define UCM_FS_POLICY_GHOSTS_H

#include <stdbool.h>
#include <stdint.h>

#define GHOSTS_WAYS	16u
#define GHOSTS_USES_MAX 15u

struct ghosts {
	uint32_t (*sets)[GHOSTS_WAYS];
	uint64_t num_sets;
};

struct ghost {
	uint32_t uses;
	uint32_t last_s; /* to 8 s, if it is less than 4.5 hours ago */
	bool again;
};

/* For about so many; 0, or -ENOMEM. */
int ghosts_init(struct ghosts *ghosts, uint64_t number);
void ghosts_fini(struct ghosts *ghosts);

/* Another number; most of what fits stays. A change by a quarter or less is none.
 * 0, or -ENOMEM and no change. */
int ghosts_resize(struct ghosts *ghosts, uint64_t number);

/* hash: the same for the same tag, evenly spread. */
void ghosts_put(struct ghosts *ghosts, uint64_t hash,
		const struct ghost *ghost);
bool ghosts_find(const struct ghosts *ghosts, uint64_t hash, uint32_t now_s,
		 struct ghost *out);
void ghosts_drop(struct ghosts *ghosts, uint64_t hash);

#endif
