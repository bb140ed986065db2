/* SPDX-License-Identifier: Apache-2.0 */
/* recent.c - states of blocks that may be written soon; see recent.h. */
#include <config.h>

#include "fs/policy/mark.h"
#include "fs/policy/recent.h"

void recent_put(struct recent *recent, uint64_t hash,
		const struct ucm_policy_state *state)
{
	struct recent_place *place = &recent->places[hash % RECENT_PLACES];

	*place = (struct recent_place){ .hash = hash, .state = *state };
}

bool recent_take(struct recent *recent, uint64_t hash, uint32_t now_s,
		 struct ucm_policy_state *out)
{
	struct recent_place *place = &recent->places[hash % RECENT_PLACES];

	if (place->hash != hash || !place->state.uses ||
	    policy_age(now_s, place->state.last_s) > RECENT_MAX_S)
		return false;
	*out = place->state;
	place->state.uses = 0;
	return true;
}
