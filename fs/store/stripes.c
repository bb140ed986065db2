/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stripes.c - a table of what writers have said; see stripes.h.
 *
 * A block is kept as its distance from the first block of its chain that was not
 * announced itself: its root. Where that lies, or would lie, decides for all
 * after it, in whatever order their files are made, and whether or not the ones
 * between have been written. Sets of a few places each; the oldest goes.
 */
#include <config.h>

#include "fs/store/stripes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SETS 16384u
#define WAYS 4u

struct ucm_stripe {
	struct ucm_id id, root;
	uint32_t steps; /* from the root; 0: the place is free */
	uint32_t turn;  /* when it was said */
	uint16_t space;
};

void ucm_stripes_init(struct ucm_stripes *stripes)
{
	*stripes = (struct ucm_stripes){ .lock = PTHREAD_MUTEX_INITIALIZER };
}

void ucm_stripes_fini(struct ucm_stripes *stripes)
{
	free(stripes->table);
	pthread_mutex_destroy(&stripes->lock);
}

/* Ids are hashes, but not all that are given: numbers do as well. */
static struct ucm_stripe *stripes_set(const struct ucm_stripes *stripes,
				      const struct ucm_key *key)
{
	uint64_t words[2];

	memcpy(words, key->id.bytes, sizeof(words));
	words[0] ^= words[1] + key->space;
	words[0] *= UINT64_C(0x9e3779b97f4a7c15);
	return &stripes->table[(words[0] >> 40) % SETS * WAYS];
}

static struct ucm_stripe *stripes_look(const struct ucm_stripes *stripes,
				       const struct ucm_key *key)
{
	struct ucm_stripe *set;

	if (!stripes->table)
		return NULL;
	set = stripes_set(stripes, key);
	for (unsigned i = 0; i < WAYS; i++) {
		if (set[i].steps && set[i].space == key->space &&
		    !memcmp(&set[i].id, &key->id, sizeof(key->id)))
			return &set[i];
	}
	return NULL;
}

/* Its own place, a free one, or the oldest. */
static struct ucm_stripe *stripes_place(const struct ucm_stripes *stripes,
					const struct ucm_key *key)
{
	struct ucm_stripe *at = stripes_look(stripes, key);
	struct ucm_stripe *set = stripes_set(stripes, key);

	for (unsigned i = 0; i < WAYS && !at; i++) {
		if (!set[i].steps)
			at = &set[i];
	}
	if (at)
		return at;
	at = set;
	for (unsigned i = 1; i < WAYS; i++) {
		if (stripes->turn - set[i].turn > stripes->turn - at->turn)
			at = &set[i];
	}
	return at;
}

int ucm_stripes_expect(struct ucm_stripes *stripes, const struct ucm_key *key,
		       const struct ucm_id *parent)
{
	const struct ucm_key above = { .id = *parent, .space = key->space };
	struct ucm_stripe stripe = { .id = key->id, .root = *parent, .steps = 1,
				     .space = key->space };
	const struct ucm_stripe *known;
	int err = 0;

	pthread_mutex_lock(&stripes->lock);
	if (!stripes->table)
		stripes->table = calloc(SETS * WAYS, sizeof(*stripes->table));
	if (stripes->table) {
		known = stripes_look(stripes, &above);
		if (known && known->steps < UINT32_MAX) {
			stripe.root = known->root;
			stripe.steps = known->steps + 1;
		}
		stripe.turn = ++stripes->turn;
		*stripes_place(stripes, key) = stripe;
	} else {
		err = -ENOMEM;
	}
	pthread_mutex_unlock(&stripes->lock);
	return err;
}

uint32_t ucm_stripes_find(struct ucm_stripes *stripes,
			  const struct ucm_key *key, struct ucm_id *root_out)
{
	const struct ucm_stripe *stripe;
	uint32_t steps = 0;

	pthread_mutex_lock(&stripes->lock);
	stripe = stripes_look(stripes, key);
	if (stripe) {
		*root_out = stripe->root;
		steps = stripe->steps;
	}
	pthread_mutex_unlock(&stripes->lock);
	return steps;
}
