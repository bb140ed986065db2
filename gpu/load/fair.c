/* SPDX-License-Identifier: Apache-2.0 */
/* fair.c - arithmetic of a budget; see fair.h. */
#include <config.h>

#include "gpu/load/fair.h"

#include <stdlib.h>

#define NS_PER_S 1e9

static double bucket_most(uint64_t rate)
{
	return (double)rate * (double)UCM_BUCKET_NS / NS_PER_S;
}

void ucm_bucket_init(struct ucm_bucket *bucket, uint64_t rate, int64_t now_ns)
{
	bucket->bytes = bucket_most(rate);
	bucket->filled_ns = now_ns;
}

void ucm_bucket_fill(struct ucm_bucket *bucket, uint64_t rate, int64_t now_ns)
{
	int64_t passed = now_ns - bucket->filled_ns;
	double most = bucket_most(rate);

	if (passed <= 0) /* another thread was later */
		return;
	bucket->filled_ns = now_ns;
	bucket->bytes += (double)rate * (double)passed / NS_PER_S;
	if (bucket->bytes > most)
		bucket->bytes = most;
}

int64_t ucm_bucket_until(const struct ucm_bucket *bucket, uint64_t rate)
{
	double ns;

	if (bucket->bytes > 0)
		return 0;
	ns = (1 - bucket->bytes) * NS_PER_S / (double)(rate ? rate : 1);
	return ns < (double)(INT64_MAX / 4) ? (int64_t)ns + 1 : INT64_MAX / 4;
}

static int compare_demands(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

uint64_t ucm_fair_share(uint64_t total, uint64_t *demands, unsigned num)
{
	uint64_t left = total;

	qsort(demands, num, sizeof(*demands), compare_demands);
	for (unsigned i = 0; i < num; i++) {
		if (demands[i] >= left / (num - i + 1))
			return left / (num - i + 1);
		left -= demands[i];
	}
	return left;
}
