/* SPDX-License-Identifier: Apache-2.0 */
/* placement.c - rendezvous hashing and its plainer rivals; see placement.h. */
#include <config.h>

#include "fs/config/placement.h"

#include <stddef.h>
#include <string.h>

#include "common/parse.h"

static const char *const names[] = {
	[UCM_PLACEMENT_RENDEZVOUS] = "rendezvous",
	[UCM_PLACEMENT_ROUND_ROBIN] = "round_robin",
	[UCM_PLACEMENT_RANDOM] = "random",
};
#define NUM_POLICIES (sizeof(names) / sizeof(names[0]))

int ucm_placement_parse(const char *name, enum ucm_placement *out)
{
	return ucm_parse_word(name, names, NUM_POLICIES, out);
}

const char *ucm_placement_name(enum ucm_placement policy)
{
	return names[policy];
}

static uint64_t fmix64(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdu;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53u;
	x ^= x >> 33;
	return x;
}

uint64_t ucm_placement_score(const uint8_t uuid[16], const struct ucm_id *id)
{
	uint64_t words[4];
	uint64_t score = 0;

	memcpy(words, uuid, 16);
	memcpy(words + 2, id->bytes, 16);
	for (int i = 0; i < 4; i++)
		score = fmix64(score + words[i]);
	return score;
}

static void order_by_score(const uint8_t (*uuids)[16], unsigned num,
			   const struct ucm_id *id, uint8_t *order)
{
	uint64_t scores[UINT8_MAX];

	for (unsigned i = 0; i < num; i++) {
		uint64_t score = ucm_placement_score(uuids[i], id);
		unsigned at = i;

		while (at > 0 && scores[at - 1] < score) {
			scores[at] = scores[at - 1];
			order[at] = order[at - 1];
			at--;
		}
		scores[at] = score;
		order[at] = (uint8_t)i;
	}
}

void ucm_placement_order(enum ucm_placement policy, const uint8_t (*uuids)[16],
			 unsigned num, const struct ucm_id *id, uint64_t turn,
			 uint8_t *order)
{
	if (policy == UCM_PLACEMENT_RENDEZVOUS) {
		order_by_score(uuids, num, id, order);
		return;
	}
	for (unsigned i = 0; i < num; i++)
		order[i] = (uint8_t)((turn % num + i) % num);
}
