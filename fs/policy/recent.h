/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recent.h - states of blocks that a request asked for and did not find.
 *
 * They are likely to be written soon, one by one, by somebody who no longer
 * knows of the request. A table of fixed size in which each tag has one place:
 * what another tag pushes out is worked out anew.
 */
#ifndef UCM_FS_POLICY_RECENT_H
#define UCM_FS_POLICY_RECENT_H

#include "fs/policy/policy.h"

#define RECENT_PLACES 8192u
#define RECENT_MAX_S  600u

struct recent {
	struct recent_place {
		uint64_t hash;
		struct ucm_policy_state state; /* uses 0: empty */
	} places[RECENT_PLACES];
};

void recent_put(struct recent *recent, uint64_t hash,
		const struct ucm_policy_state *state);

/* True: it is there, and is not any more. */
bool recent_take(struct recent *recent, uint64_t hash, uint32_t now_s,
		 struct ucm_policy_state *out);

#endif
