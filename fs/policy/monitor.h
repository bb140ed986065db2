/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor.h - a sample of all blocks, of which it is known exactly when they
 * were last asked for, whether they are there or not.
 *
 * Those whose hash is 0 modulo a power of two; which is doubled when there are
 * too many. So whoever has them all has an even sample of the blocks, and of
 * each of these all requests.
 */
#ifndef UCM_FS_POLICY_MONITOR_H
#define UCM_FS_POLICY_MONITOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/policy/rates.h"

#define MONITOR_PLACES 65536u /* of 12 bytes */
#define MONITOR_FULL   (MONITOR_PLACES / 4 * 3)
#define MONITOR_EVERY  8u

struct monitored {
	uint32_t key; /* 0: an empty place */
	uint32_t last_s;
	uint16_t more; /* of the key */
	uint8_t class; /* RATES_CLASSES: forgotten */
};

struct monitor {
	struct monitored *places;
	unsigned num; /* not empty */
	_Atomic uint32_t every;
};

/* 0, or -ENOMEM. */
int monitor_init(struct monitor *monitor);
void monitor_fini(struct monitor *monitor);

/* Is a tag with this hash one of them? No lock. */
static inline bool monitor_has(const struct monitor *monitor, uint64_t hash)
{
	return !(hash & (atomic_load_explicit(&monitor->every,
					      memory_order_relaxed) - 1));
}

/* One of them was asked for, and has that class from now on. True: it was
 * before, and *was is how. */
bool monitor_ask(struct monitor *monitor, uint64_t hash, uint32_t now_s,
		 unsigned class, struct monitored *was);

/* How long all of them have been waiting; the oldest are forgotten. */
void monitor_waits(struct monitor *monitor, uint32_t now_s,
		   struct rates_open *out);

#endif
