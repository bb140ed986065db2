/* SPDX-License-Identifier: Apache-2.0 */
/* filestamp.c - a number that is another one for another file. */
#include <config.h>

#include "common/filestamp.h"

#include <time.h>

#include "common/clock.h"

#define TICK_NS (INT64_C(50) * 1000000)
#define LONG_TICK_NS (INT64_C(2500) * 1000000)

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

/* Some file systems have whole seconds (ext4 with small inodes), or even ones. */
static int64_t tick_ns(const struct stat *st)
{
	return st->st_ctim.tv_nsec ? TICK_NS : LONG_TICK_NS;
}

/* One from the future, after a clock was set back, is not either. */
bool ucm_file_is_settled(const struct stat *st)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return ucm_time_ns(&now) - ucm_time_ns(&st->st_ctim) >= tick_ns(st);
}
