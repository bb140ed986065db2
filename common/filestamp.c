/* SPDX-License-Identifier: Apache-2.0 */
/* filestamp.c - a number that is another one for another file. */
#include <config.h>

#include "common/filestamp.h"

#include <time.h>

#include "common/clock.h"

/* As the finalizer of SplitMix64: each bit changes half of all others. */
static uint64_t mix(uint64_t sum, uint64_t word)
{
	sum = (sum ^ word) + UINT64_C(0x9e3779b97f4a7c15);
	sum = (sum ^ sum >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	sum = (sum ^ sum >> 27) * UINT64_C(0x94d049bb133111eb);
	return sum ^ sum >> 31;
}

uint64_t ucm_file_stamp(const struct stat *st)
{
	uint64_t sum = mix(0, st->st_dev);

	sum = mix(sum, st->st_ino);
	sum = mix(sum, (uint64_t)st->st_size);
	sum = mix(sum, (uint64_t)ucm_time_ns(&st->st_mtim));
	sum = mix(sum, (uint64_t)ucm_time_ns(&st->st_ctim));
	sum >>= 64 - UCM_FILESTAMP_BITS;
	return sum ? sum : 1;
}

bool ucm_file_is_older(const struct stat *st, unsigned seconds)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	return ucm_time_ns(&now) - ucm_time_ns(&st->st_ctim) >=
	       seconds * INT64_C(1000000000);
}

bool ucm_file_is_settled(const struct stat *st)
{
	return ucm_file_is_older(st, UCM_FILESTAMP_AGE_S);
}
