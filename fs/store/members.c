/* SPDX-License-Identifier: Apache-2.0 */
/* members.c - a list of places to draw from; see members.h. */
#include <config.h>

#include "fs/store/members.h"

#include <stdlib.h>

#define FIRST_ROOM 256u
/* So many more than there are blocks may be listed. */
#define SLACK 4096u

void ucm_members_init(struct ucm_members *members)
{
	*members = (struct ucm_members){.num = 0};
	pthread_mutex_init(&members->lock, NULL);
}

void ucm_members_fini(struct ucm_members *members)
{
	free(members->places);
	pthread_mutex_destroy(&members->lock);
}

/* By a quarter: what lies idle counts for each block. */
static bool members_grow(struct ucm_members *members)
{
	uint64_t room = members->room + members->room / 4 + FIRST_ROOM;
	uint32_t *places;

	if (room > UINT32_MAX)
		return false;
	places = realloc(members->places, room * sizeof(*places));
	if (!places)
		return false;
	members->places = places;
	members->room = (uint32_t)room;
	return true;
}

void ucm_members_add(struct ucm_members *members, uint32_t place)
{
	pthread_mutex_lock(&members->lock);
	if (members->num < members->room || members_grow(members))
		members->places[members->num++] = place;
	else
		members->lacks_some = true;
	pthread_mutex_unlock(&members->lock);
}

bool ucm_members_draw(struct ucm_members *members, uint64_t number,
		      uint32_t *place_out)
{
	bool any;

	pthread_mutex_lock(&members->lock);
	any = members->num;
	if (any)
		*place_out = members->places[number % members->num];
	pthread_mutex_unlock(&members->lock);
	return any;
}

void ucm_members_drop(struct ucm_members *members, uint64_t number,
		      uint32_t place)
{
	uint32_t *at;

	pthread_mutex_lock(&members->lock);
	if (members->num) {
		at = &members->places[number % members->num];
		if (*at == place)
			*at = members->places[--members->num];
	}
	pthread_mutex_unlock(&members->lock);
}

bool ucm_members_begin_anew(struct ucm_members *members, uint64_t num)
{
	bool anew;

	pthread_mutex_lock(&members->lock);
	anew = members->lacks_some || members->num > 2 * num + SLACK;
	if (anew) {
		members->num = 0;
		members->lacks_some = false;
	}
	pthread_mutex_unlock(&members->lock);
	return anew;
}
