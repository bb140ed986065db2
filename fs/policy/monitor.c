/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor.c - the sample of blocks that rates are learnt from; see monitor.h.
 *
 * A table with open addressing. Nothing is taken out one by one: what is
 * forgotten keeps its place until the table is full, and is then left out of a
 * new one.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/policy/mark.h"
#include "fs/policy/monitor.h"

int monitor_init(struct monitor *monitor)
{
	monitor->places = calloc(MONITOR_PLACES, sizeof(*monitor->places));
	if (!monitor->places)
		return -ENOMEM;
	monitor->num = 0;
	atomic_init(&monitor->every, MONITOR_EVERY);
	return 0;
}

void monitor_fini(struct monitor *monitor)
{
	free(monitor->places);
}

/*
 * The upper half has the lowest bits of the hash, so that whether a tag is of a
 * smaller sample can be told from its key.
 */
static uint32_t monitor_key(uint64_t hash)
{
	uint32_t key = (uint32_t)(hash << 16) | (uint32_t)(hash >> 32 & 0xffff);

	return key ? key : 1;
}

static struct monitored *monitor_place(struct monitored *places, uint32_t key,
				       uint16_t more)
{
	for (uint32_t at = key;; at++) {
		struct monitored *place = &places[at % MONITOR_PLACES];

		if (!place->key || (place->key == key && place->more == more))
			return place;
	}
}

/* Of those that are not forgotten, the ones of a sample of 1 in every. */
static unsigned monitor_copy(const struct monitor *monitor, uint32_t every,
			     struct monitored *places)
{
	unsigned num = 0;

	for (unsigned i = 0; i < MONITOR_PLACES; i++) {
		const struct monitored *old = &monitor->places[i];

		if (!old->key || old->class == RATES_CLASSES ||
		    old->key >> 16 & (every - 1))
			continue;
		if (places)
			*monitor_place(places, old->key, old->more) = *old;
		num++;
	}
	return num;
}

/* Without memory for a new table the sample begins anew. */
static void monitor_shrink(struct monitor *monitor)
{
	struct monitored *places = calloc(MONITOR_PLACES, sizeof(*places));
	uint32_t every = atomic_load_explicit(&monitor->every,
					      memory_order_relaxed);

	while (every < 65536 &&
	       monitor_copy(monitor, every, NULL) > MONITOR_FULL / 2)
		every *= 2;
	atomic_store_explicit(&monitor->every, every, memory_order_relaxed);
	if (!places) {
		memset(monitor->places, 0, MONITOR_PLACES * sizeof(*places));
		monitor->num = 0;
		return;
	}
	monitor->num = monitor_copy(monitor, every, places);
	free(monitor->places);
	monitor->places = places;
}

bool monitor_ask(struct monitor *monitor, uint64_t hash, uint32_t now_s,
		 unsigned class, struct monitored *was)
{
	struct monitored *place = monitor_place(
		monitor->places, monitor_key(hash), (uint16_t)(hash >> 48));
	struct monitored is = {
		.key = monitor_key(hash),
		.last_s = now_s,
		.more = (uint16_t)(hash >> 48),
		.class = (uint8_t)class,
	};
	bool had = place->key && place->class != RATES_CLASSES;

	*was = *place;
	monitor->num += !place->key;
	*place = is;
	if (monitor->num > MONITOR_FULL)
		monitor_shrink(monitor);
	return had;
}

void monitor_waits(struct monitor *monitor, uint32_t now_s,
		   struct rates_open *out)
{
	for (unsigned i = 0; i < MONITOR_PLACES; i++) {
		struct monitored *place = &monitor->places[i];
		uint32_t age = policy_age(now_s, place->last_s);

		if (!place->key || place->class == RATES_CLASSES)
			continue;
		if (age >= RATES_AGE_MAX)
			place->class = RATES_CLASSES;
		else
			rates_open_add(out, place->class, age);
	}
}
