/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rates.h - how often blocks of a class are asked for again, by age; and what a
 * block of that class and age is worth.
 *
 * Ages lie in bins whose edges grow by the root of two. A class is what is
 * known of a block when it was last asked for.
 */
#ifndef UCM_FS_POLICY_RATES_H
#define UCM_FS_POLICY_RATES_H

#include <stdatomic.h>
#include <stdint.h>

#define RATES_PATHS   3u
#define RATES_USES    5u /* 1, 2-3, 4-7, 8-15, more */
#define RATES_PAUSES  4u
#define RATES_CLASSES (RATES_PATHS * RATES_USES * RATES_PAUSES)
#define RATES_BINS    34u
#define RATES_AGE_MAX ((1u << 17) - 1) /* seconds; where the last bin ends */

static inline unsigned rates_uses_step(uint32_t uses)
{
	unsigned step = uses ? 31u - (unsigned)__builtin_clz(uses) : 0;

	return step < RATES_USES - 1 ? step : RATES_USES - 1;
}

static inline unsigned rates_class(unsigned path, uint32_t uses, unsigned pause)
{
	path = path < RATES_PATHS - 1 ? path : RATES_PATHS - 1;
	return (path * RATES_USES + rates_uses_step(uses)) * RATES_PAUSES +
	       pause;
}

/* floor(2 log2(1 + age)), at most the last bin. */
static inline unsigned rates_bin(uint32_t age_s)
{
	uint64_t x = (uint64_t)age_s + 1;
	unsigned log, bin;

	if (age_s >= RATES_AGE_MAX)
		return RATES_BINS - 1;
	log = 63u - (unsigned)__builtin_clzll(x);
	bin = 2 * log + (x * x >> (2 * log + 1) & 1);
	return bin;
}

/* Waits that have not ended: added to a copy of the counts, each time anew. */
struct rates_open {
	uint32_t waits[RATES_CLASSES][RATES_BINS];
	double ages_s[RATES_CLASSES][RATES_BINS]; /* their sum */
};

struct rates {
	double edges[RATES_BINS + 1], widths[RATES_BINS];
	double hits[RATES_CLASSES][RATES_BINS];
	double time_s[RATES_CLASSES][RATES_BINS];
	unsigned events; /* since the counts were halved */
	/* What follows from them; read without a lock. */
	_Atomic float index[RATES_CLASSES][RATES_BINS];
	_Atomic float chance[RATES_CLASSES][RATES_BINS]; /* at the bin's end */
};

/* Nothing is known: what was used last is worth most. */
void rates_init(struct rates *rates);

/* A block of that class was asked for again after so long. */
void rates_event(struct rates *rates, unsigned class, uint32_t age_s);

/* One was not, so far. */
static inline void rates_open_add(struct rates_open *open, unsigned class,
				  uint32_t age_s)
{
	unsigned bin = rates_bin(age_s);

	open->waits[class][bin]++;
	open->ages_s[class][bin] += age_s < RATES_AGE_MAX ? age_s
							  : RATES_AGE_MAX;
}

/* Work out indices and chances. */
void rates_learn(struct rates *rates, const struct rates_open *open);

static inline double rates_index(const struct rates *rates, unsigned class,
				 uint32_t age_s)
{
	return atomic_load_explicit(&rates->index[class][rates_bin(age_s)],
				    memory_order_relaxed);
}

/* That one of that class, just asked for, is asked for again within age_s. */
double rates_chance(const struct rates *rates, unsigned class, uint32_t age_s);

/* ---- the arithmetic, for tests ---- */

/* index_out[i]: the most hits for each second that a block which has reached
 * bin i can bring, over all bins at whose end one may let it go. */
void rates_gittins(const double rate[RATES_BINS],
		   const double width[RATES_BINS],
		   double index_out[RATES_BINS]);

#endif
