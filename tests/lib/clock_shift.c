/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock_shift.c - to be preloaded: a program whose clock is CLOCK_SHIFT seconds off.
 *
 * What the kernel notes by itself (times of files) is not shifted.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void)
{
	const char *text = getenv("CLOCK_SHIFT");

	return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
	long err = syscall(SYS_clock_gettime, clock, out);

	if (!err && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		out->tv_sec += shift();
	return (int)err;
}

time_t time(time_t *out)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (out)
		*out = now.tv_sec;
	return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	*out = (struct timeval){ .tv_sec = now.tv_sec,
				 .tv_usec = now.tv_nsec / 1000 };
	return 0;
}
