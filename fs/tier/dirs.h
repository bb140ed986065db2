/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dirs.h - the directories of all tiers, in order from fast to slow.
 *
 * The number of a directory is its place in this order; index entries and the
 * files of files/ keep it. Knows nothing of what lies in the directories.
 * Calls may be made from any thread, except open and close, which are the
 * owner's; nothing but the counters changes between the two.
 */
#ifndef UCM_DIRS_H
#define UCM_DIRS_H

#include <stdatomic.h>
#include <stdint.h>

#include "fs/tier/tier.h"

struct ucm_dirs {
	struct ucm_tier *tiers;
	unsigned num_tiers;
	struct ucm_medium *at[UCM_MAX_DIRS]; /* by number */
	struct ucm_tier *tier_of[UCM_MAX_DIRS];
	unsigned num;
	enum ucm_placement placement;  /* of new files within a tier */
	_Atomic uint64_t io_errors; /* failed calls, on any of them */
};

/* Open the tiers that the configuration names. -EINVAL: a directory is given
 * twice, or lies inside another. error names the directory; a failure
 * leaves nothing open. */
int ucm_dirs_open(struct ucm_dirs *dirs, const struct ucm_config *config,
		  struct ucm_error *error);

/* Leaves the directories as they are, clean or not. What was never opened (all
 * zero) may be closed, too. */
void ucm_dirs_close(struct ucm_dirs *dirs);

/* Count a failed call on a directory; err is -errno. */
void ucm_dirs_count_error(struct ucm_dirs *dirs, unsigned dir, int err);

#endif
