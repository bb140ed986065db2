/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - times as numbers, and waits that the wall clock cannot move. */
#ifndef UCM_CLOCK_H
#define UCM_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline int64_t ucm_time_ns(const struct timespec *time)
{
	return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

/* Since some moment in the past. */
static inline int64_t ucm_monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return ucm_time_ns(&now);
}

static inline int64_t ucm_monotonic_ms(void)
{
	return ucm_monotonic_ns() / 1000000;
}

/* Seconds since the machine was started, with those that it slept. */
static inline uint64_t ucm_boottime_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec;
}

/* That time, so many milliseconds from now. */
static inline struct timespec ucm_monotonic_in_ms(int64_t ms)
{
	int64_t then = ucm_monotonic_ns() + ms * 1000000;

	return (struct timespec){ .tv_sec = then / 1000000000,
				  .tv_nsec = then % 1000000000 };
}

/* A condition whose pthread_cond_timedwait() counts in CLOCK_MONOTONIC. */
static inline void ucm_cond_init_monotonic(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

/* Wait until then, or for any time if timeout_ms is below 0. */
static inline int ucm_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock,
				int timeout_ms, const struct timespec *until)
{
	return timeout_ms < 0 ? pthread_cond_wait(cond, lock)
			      : pthread_cond_timedwait(cond, lock, until);
}

#endif
