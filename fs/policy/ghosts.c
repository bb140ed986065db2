/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghosts.c - blocks that are remembered; see ghosts.h.
 *
 * A ghost is a word: tag 16, last use / 8 s 11, again 1, uses 4 (never 0, so
 * that 0 is an empty place). The set of a hash is its upper half scaled to the
 * number of sets. A new number of sets cuts the same range elsewhere: each new
 * set gets the newest ghosts of the old ones that it overlaps. A ghost does not
 * know its whole hash, so some land where nobody will look for them, and are
 * pushed out in time.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/policy/ghosts.h"

#define GHOST_STEP_S 8u
#define GHOST_TIMES  2048u

static uint32_t ghost_tag(uint64_t hash)
{
	return (uint32_t)hash & 0xffffu;
}

static uint32_t *ghost_set(const struct ghosts *ghosts, uint64_t hash)
{
	return ghosts->sets[(hash >> 32) * ghosts->num_sets >> 32];
}

static uint64_t ghost_sets(uint64_t number)
{
	uint64_t sets = (number + GHOSTS_WAYS - 1) / GHOSTS_WAYS;

	return sets < 1 ? 1 : sets > UINT32_MAX ? UINT32_MAX : sets;
}

int ghosts_init(struct ghosts *ghosts, uint64_t number)
{
	uint64_t num_sets = ghost_sets(number);
	void *sets = calloc(num_sets, sizeof(*ghosts->sets));

	if (!sets)
		return -ENOMEM;
	*ghosts = (struct ghosts){ .sets = sets, .num_sets = num_sets };
	return 0;
}

void ghosts_fini(struct ghosts *ghosts)
{
	free(ghosts->sets);
}

/* Newest first, by turns of the old sets from..to. */
static void ghost_merge(const struct ghosts *ghosts, uint64_t from, uint64_t to,
			uint32_t *set)
{
	unsigned num = 0;

	if (to - from >= GHOSTS_WAYS)
		to = from + GHOSTS_WAYS - 1;
	for (unsigned way = 0; way < GHOSTS_WAYS; way++) {
		for (uint64_t i = from; i <= to && num < GHOSTS_WAYS; i++) {
			set[num] = ghosts->sets[i][way];
			num += set[num] != 0;
		}
	}
}

int ghosts_resize(struct ghosts *ghosts, uint64_t number)
{
	uint64_t had = ghosts->num_sets, num_sets = ghost_sets(number);
	uint32_t(*sets)[GHOSTS_WAYS];

	if (num_sets >= had - had / 4 && num_sets <= had + had / 4)
		return 0;
	sets = calloc(num_sets, sizeof(*sets));
	if (!sets)
		return -ENOMEM;
	for (uint64_t i = 0; i < num_sets; i++)
		ghost_merge(ghosts, i * had / num_sets,
			    ((i + 1) * had - 1) / num_sets, sets[i]);
	free(ghosts->sets);
	ghosts->sets = sets;
	ghosts->num_sets = num_sets;
	return 0;
}

static unsigned ghost_way(const uint32_t *set, uint64_t hash)
{
	unsigned i = 0;

	while (i < GHOSTS_WAYS &&
	       !(set[i] && set[i] >> 16 == ghost_tag(hash)))
		i++;
	return i;
}

void ghosts_put(struct ghosts *ghosts, uint64_t hash, const struct ghost *ghost)
{
	uint32_t *set = ghost_set(ghosts, hash);
	unsigned way = ghost_way(set, hash);
	uint32_t uses = ghost->uses < GHOSTS_USES_MAX ? ghost->uses
						      : GHOSTS_USES_MAX;

	if (way == GHOSTS_WAYS)
		way--;
	memmove(set + 1, set, way * sizeof(*set));
	set[0] = ghost_tag(hash) << 16 |
		 ghost->last_s / GHOST_STEP_S % GHOST_TIMES << 5 |
		 (uint32_t)ghost->again << 4 | (uses ? uses : 1);
}

bool ghosts_find(const struct ghosts *ghosts, uint64_t hash, uint32_t now_s,
		 struct ghost *out)
{
	const uint32_t *set = ghost_set(ghosts, hash);
	unsigned way = ghost_way(set, hash);
	uint32_t now = now_s / GHOST_STEP_S, age;

	if (way == GHOSTS_WAYS)
		return false;
	age = (now - (set[way] >> 5)) % GHOST_TIMES;
	out->uses = set[way] & 0xfu;
	out->again = set[way] & 0x10u;
	out->last_s = age < now ? (now - age) * GHOST_STEP_S : 0;
	return true;
}

void ghosts_drop(struct ghosts *ghosts, uint64_t hash)
{
	uint32_t *set = ghost_set(ghosts, hash);
	unsigned way = ghost_way(set, hash);

	if (way == GHOSTS_WAYS)
		return;
	memmove(set + way, set + way + 1,
		(GHOSTS_WAYS - 1 - way) * sizeof(*set));
	set[GHOSTS_WAYS - 1] = 0;
}
