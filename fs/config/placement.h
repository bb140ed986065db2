/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement.h - in which directory of a tier a block belongs.
 *
 * Pure arithmetic. Rendezvous hashing: every directory gets a score from its
 * UUID and the block's id, the highest wins; so all daemons agree without
 * talking, and adding one directory to n moves 1/(n+1) of the blocks.
 */
#ifndef UCM_PLACEMENT_H
#define UCM_PLACEMENT_H

#include <stdint.h>

#include <ucm/block.h>

enum ucm_placement {
	UCM_PLACEMENT_RENDEZVOUS,
	UCM_PLACEMENT_ROUND_ROBIN,
	UCM_PLACEMENT_RANDOM,
};

/* "rendezvous", "round_robin", "random"; -EINVAL for any other. */
int ucm_placement_parse(const char *name, enum ucm_placement *out);
const char *ucm_placement_name(enum ucm_placement policy);

/* The rendezvous score of a directory for a block: the four 64-bit
 * words of both, chained through the finalizer of MurmurHash3 (fmix64). */
uint64_t ucm_placement_score(const uint8_t uuid[16], const struct ucm_id *id);

/*
 * The order in which to try the directories of a tier, best first.
 *
 * uuids, num: the directories; turn: a number that grows with every block
 * (round_robin) or is random (random); order: num entries, filled with 0..num-1.
 */
void ucm_placement_order(enum ucm_placement policy, const uint8_t (*uuids)[16],
			 unsigned num, const struct ucm_id *id, uint64_t turn,
			 uint8_t *order);

#endif
