/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gcra.h - the generic cell rate algorithm (ITU-T I.371): a rate kept by one number.
 *
 * The number is the theoretical arrival time: the time at which all that was
 * reserved so far will have passed at the rate. Whoever reserves advances it by what
 * that costs, and may begin at the time at which it stood before. It may be shared
 * by processes: one compare-and-swap changes it. Pure; the time is an argument.
 */
#ifndef UCM_GCRA_H
#define UCM_GCRA_H

#include <stdatomic.h>
#include <stdint.h>

/* Unused time is saved up for so long. */
#define UCM_GCRA_BURST_NS (INT64_C(50) * 1000000)
/* A clock that is further ahead than this is garbage, and counts as now. */
#define UCM_GCRA_AHEAD_NS (INT64_C(1000) * 1000000)

#define UCM_GCRA_MOST_NS (INT64_MAX / 4)

/* What bytes cost at a rate (bytes a second, not 0): 1 ns at least, and no more than
 * can be added to a time. */
static inline int64_t ucm_gcra_cost(uint64_t bytes, uint64_t rate)
{
	double ns = (double)bytes * 1e9 / (double)rate;

	if (ns >= (double)UCM_GCRA_MOST_NS)
		return UCM_GCRA_MOST_NS;
	return ns < 1 ? 1 : (int64_t)ns;
}

/* When a reservation that is made now begins. */
static inline int64_t ucm_gcra_begin(int64_t tat_ns, int64_t now_ns)
{
	if (tat_ns > now_ns + UCM_GCRA_AHEAD_NS)
		return now_ns;
	if (tat_ns < now_ns - UCM_GCRA_BURST_NS)
		return now_ns - UCM_GCRA_BURST_NS;
	return tat_ns;
}

/* Reserve so much time, UCM_GCRA_AHEAD_NS at most if others use the clock. Returns
 * when it begins: a time in the past, or at most UCM_GCRA_AHEAD_NS ahead. */
static inline int64_t ucm_gcra_reserve(_Atomic int64_t *tat_ns, int64_t cost_ns,
				       int64_t now_ns)
{
	int64_t was = atomic_load_explicit(tat_ns, memory_order_relaxed);
	int64_t at;

	do
		at = ucm_gcra_begin(was, now_ns);
	while (!atomic_compare_exchange_weak(tat_ns, &was, at + cost_ns));
	return at;
}

#endif
