/* SPDX-License-Identifier: Apache-2.0 */
/*
 * savings.c - which blocks an engine is saving: found by their ids, and in a
 * list of all. Where layers are saved one by one there are many thousands.
 */
#include <config.h>

#include <string.h>

#include "gpu/load/saving.h"

static size_t bucket_of(const struct ucm_id *id)
{
	uint32_t hash;

	/* other bytes than those that have chosen the engine */
	memcpy(&hash, id->bytes, sizeof(hash));
	return hash % UCM_SAVINGS_BUCKETS;
}

struct ucm_saving *ucm_savings_find(const struct ucm_savings *savings,
				    const struct ucm_group *group,
				    const struct ucm_id *id)
{
	struct ucm_saving *saving = savings->buckets[bucket_of(id)];

	while (saving && (saving->group != group ||
			  memcmp(&saving->id, id, sizeof(*id)) != 0))
		saving = saving->hash_next;
	return saving;
}

void ucm_savings_add(struct ucm_savings *savings, struct ucm_saving *saving)
{
	struct ucm_saving **bucket = &savings->buckets[bucket_of(&saving->id)];

	saving->hash_next = *bucket;
	*bucket = saving;
	saving->next = savings->first;
	saving->prev = &savings->first;
	if (saving->next)
		saving->next->prev = &saving->next;
	savings->first = saving;
}

void ucm_savings_remove(struct ucm_savings *savings, struct ucm_saving *saving)
{
	struct ucm_saving **at = &savings->buckets[bucket_of(&saving->id)];

	while (*at != saving)
		at = &(*at)->hash_next;
	*at = saving->hash_next;
	*saving->prev = saving->next;
	if (saving->next)
		saving->next->prev = saving->prev;
}
