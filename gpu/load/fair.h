/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fair.h - arithmetic of a budget: a bucket of bytes that fills with time, and
 * what one of several may have of a total. Pure; the time is an argument.
 */
#ifndef UCM_FAIR_H
#define UCM_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#define UCM_FAIR_ALL UINT64_MAX /* a demand: whatever is to be had */

/* Bytes that may be begun. It is enough that there are some: what is taken then
 * may be more, and is paid for before the next one. */
struct ucm_bucket {
	double bytes;
	int64_t filled_ns;
};

/* It fills at so many bytes a second, up to what comes in UCM_BUCKET_NS. */
#define UCM_BUCKET_NS (INT64_C(50) * 1000000)

/* Full, or (nothing was taken for long) as good as. */
void ucm_bucket_init(struct ucm_bucket *bucket, uint64_t rate, int64_t now_ns);
void ucm_bucket_fill(struct ucm_bucket *bucket, uint64_t rate, int64_t now_ns);
static inline bool ucm_bucket_has_some(const struct ucm_bucket *bucket)
{
	return bucket->bytes > 0;
}
/* In how many ns it has; 0: now. */
int64_t ucm_bucket_until(const struct ucm_bucket *bucket, uint64_t rate);
static inline void ucm_bucket_take(struct ucm_bucket *bucket, uint64_t bytes)
{
	bucket->bytes -= (double)bytes;
}
static inline void ucm_bucket_give(struct ucm_bucket *bucket, uint64_t bytes)
{
	bucket->bytes += (double)bytes;
}

/*
 * What one may have of the total who wants all of it, beside others that want
 * so much: nobody gets more than he wants, and nobody less than another one who
 * wants more (max-min). Sorts the demands. Never 0, unless the total is less
 * than one for each.
 */
uint64_t ucm_fair_share(uint64_t total, uint64_t *demands, unsigned num);

#endif
