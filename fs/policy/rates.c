/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rates.c - learnt rates of reuse, and the index that follows.
 *
 * Counted are, for each class and bin of age, the hits that fell there and the
 * time that blocks spent there, whether they were hit later or not. Hits by
 * time is the rate. Where little was seen, a class borrows from all classes of
 * its path and uses, those from all, and all from a rate that falls with age:
 * so with nothing seen the order is that of last use.
 *
 * Worth is a Gittins index: a block is kept as long as that pays. For each bin
 * in which one could let it go, the chance of a hit until then is divided by the
 * time that it is expected to stay until then; the best of these counts. A block
 * whose rate is low now and high in a minute is thus worth what the minute
 * brings; one that was not hit when it should have been is worth little.
 *
 * Indices are floats, stored one by one and read without a lock: a reader meets
 * old and new ones side by side, which does no harm.
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "fs/policy/rates.h"

#define RATES_HALVE 40000u /* events */
#define RATES_PRIOR 0.3	   /* hits by age, before anything was seen */
#define RATES_PRIOR_WIDTHS 4.0
#define RATES_BACK_OFF	   128.0 /* widths of a bin */

typedef double rates_row[RATES_BINS];

void rates_event(struct rates *rates, unsigned class, uint32_t age_s)
{
	double age = age_s < RATES_AGE_MAX ? age_s : RATES_AGE_MAX;
	unsigned bin = rates_bin(age_s);

	for (unsigned i = 0; i < bin; i++)
		rates->time_s[class][i] += rates->widths[i];
	rates->time_s[class][bin] += age - rates->edges[bin];
	rates->hits[class][bin]++;
	if (++rates->events < RATES_HALVE)
		return;
	rates->events = 0;
	for (unsigned c = 0; c < RATES_CLASSES; c++) {
		for (unsigned i = 0; i < RATES_BINS; i++) {
			rates->hits[c][i] /= 2;
			rates->time_s[c][i] /= 2;
		}
	}
}

/* Time spent in each bin, with that of waits that have not ended. */
static void rates_time(const struct rates *rates,
		       const struct rates_open *open, unsigned class,
		       rates_row out)
{
	uint64_t beyond = 0;

	for (unsigned i = RATES_BINS; i-- > 0;) {
		double waits = open->waits[class][i];

		out[i] = rates->time_s[class][i] +
			 rates->widths[i] * (double)beyond +
			 open->ages_s[class][i] - waits * rates->edges[i];
		beyond += open->waits[class][i];
	}
}

/* (1 2 1) / 4; what would leave at the ends stays. */
static void rates_smooth(rates_row row)
{
	double before = row[0];

	for (unsigned i = 0; i < RATES_BINS; i++) {
		double here = row[i];
		double after = i + 1 < RATES_BINS ? row[i + 1] : here;

		row[i] = (before + 2 * here + after) / 4;
		before = here;
	}
}

static void rates_add(rates_row sum, const rates_row row)
{
	for (unsigned i = 0; i < RATES_BINS; i++)
		sum[i] += row[i];
}

/* The rate seen, drawn to another one where little was seen. */
static void rates_draw(const struct rates *rates, const rates_row hits,
		       const rates_row time_s, double widths,
		       const rates_row to, rates_row out)
{
	for (unsigned i = 0; i < RATES_BINS; i++) {
		double weight = widths * rates->widths[i];

		out[i] = (hits[i] + weight * to[i]) / (time_s[i] + weight);
	}
}

void rates_gittins(const double rate[RATES_BINS],
		   const double width[RATES_BINS], double index_out[RATES_BINS])
{
	double stays[RATES_BINS], lasts[RATES_BINS];

	for (unsigned i = 0; i < RATES_BINS; i++) {
		stays[i] = exp(-rate[i] * width[i]);
		lasts[i] = -expm1(-rate[i] * width[i]) / rate[i];
	}
	for (unsigned i = 0; i < RATES_BINS; i++) {
		double left = 1, time = 0, best = 0;

		for (unsigned j = i; j < RATES_BINS; j++) {
			time += left * lasts[j];
			left *= stays[j];
			/* hits by time > best, without the division */
			if (1 - left > best * time)
				best = (1 - left) / time;
		}
		index_out[i] = best;
	}
}

static void rates_store(_Atomic float *to, double value)
{
	atomic_store_explicit(to, (float)value, memory_order_relaxed);
}

static void rates_publish(struct rates *rates, unsigned class,
			  const rates_row rate)
{
	rates_row index;
	double sum = 0;

	rates_gittins(rate, rates->widths, index);
	for (unsigned i = 0; i < RATES_BINS; i++) {
		sum += rate[i] * rates->widths[i];
		rates_store(&rates->index[class][i], index[i]);
		rates_store(&rates->chance[class][i], -expm1(-sum));
	}
}

void rates_learn(struct rates *rates, const struct rates_open *open)
{
	rates_row hits[RATES_CLASSES], time_s[RATES_CLASSES];
	rates_row all_hits = { 0 }, all_time = { 0 }, prior, all;

	for (unsigned c = 0; c < RATES_CLASSES; c++) {
		memcpy(hits[c], rates->hits[c], sizeof(hits[c]));
		rates_time(rates, open, c, time_s[c]);
		rates_smooth(hits[c]);
		rates_smooth(time_s[c]);
		rates_add(all_hits, hits[c]);
		rates_add(all_time, time_s[c]);
	}
	for (unsigned i = 0; i < RATES_BINS; i++) {
		double middle = (rates->edges[i] + rates->edges[i + 1]) / 2;

		prior[i] = RATES_PRIOR / (middle + 1);
	}
	rates_draw(rates, all_hits, all_time, RATES_PRIOR_WIDTHS, prior, all);

	for (unsigned c = 0; c < RATES_CLASSES; c += RATES_PAUSES) {
		rates_row sum_hits = { 0 }, sum_time = { 0 }, sum, rate;

		for (unsigned g = 0; g < RATES_PAUSES; g++) {
			rates_add(sum_hits, hits[c + g]);
			rates_add(sum_time, time_s[c + g]);
		}
		rates_draw(rates, sum_hits, sum_time, RATES_BACK_OFF, all, sum);
		for (unsigned g = 0; g < RATES_PAUSES; g++) {
			rates_draw(rates, hits[c + g], time_s[c + g],
				   RATES_BACK_OFF, sum, rate);
			rates_publish(rates, c + g, rate);
		}
	}
}

double rates_chance(const struct rates *rates, unsigned class, uint32_t age_s)
{
	const _Atomic float *row = rates->chance[class];
	unsigned bin = rates_bin(age_s);
	double age = age_s < RATES_AGE_MAX ? age_s : RATES_AGE_MAX;
	double from = 0, to;

	if (bin)
		from = atomic_load_explicit(&row[bin - 1], memory_order_relaxed);
	to = atomic_load_explicit(&row[bin], memory_order_relaxed);
	return from + (to - from) * (age - rates->edges[bin]) /
			      rates->widths[bin];
}

void rates_init(struct rates *rates)
{
	struct rates_open none = { 0 };

	memset(rates, 0, sizeof(*rates));
	for (unsigned i = 0; i <= RATES_BINS; i++)
		rates->edges[i] = exp2(i / 2.0) - 1;
	for (unsigned i = 0; i < RATES_BINS; i++)
		rates->widths[i] = rates->edges[i + 1] - rates->edges[i];
	rates_learn(rates, &none);
}
