/* SPDX-License-Identifier: Apache-2.0 */
/* expire.c - a thread that drops old staging, and reports log lines left out. */
#include <config.h>

#include "fs/mount/node/daemon.h"

#include <time.h>

#include "common/clock.h"
#include "common/log.h"

#define EVERY_S 30

static void *expire_main(void *arg)
{
	struct ucm_daemon *daemon = arg;
	struct ucm_expiry *expiry = &daemon->expiry;
	bool is_short = daemon->store->config->staging_age_s < EVERY_S;
	struct timespec until;

	pthread_mutex_lock(&expiry->lock);
	while (!expiry->stopping) {
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += is_short ? 1 : EVERY_S;
		if (!pthread_cond_timedwait(&expiry->wake, &expiry->lock,
					    &until))
			continue;
		pthread_mutex_unlock(&expiry->lock);
		ucm_handles_expire(daemon);
		ucm_log_tell_left_out(false);
		pthread_mutex_lock(&expiry->lock);
	}
	pthread_mutex_unlock(&expiry->lock);
	return NULL;
}

int ucm_expiry_start(struct ucm_daemon *daemon)
{
	struct ucm_expiry *expiry = &daemon->expiry;
	int err;

	pthread_mutex_init(&expiry->lock, NULL);
	ucm_cond_init_monotonic(&expiry->wake);
	err = pthread_create(&expiry->thread, NULL, expire_main, daemon);
	expiry->running = !err;
	return -err;
}

void ucm_expiry_stop(struct ucm_daemon *daemon)
{
	struct ucm_expiry *expiry = &daemon->expiry;

	if (!expiry->running)
		return;
	pthread_mutex_lock(&expiry->lock);
	expiry->stopping = true;
	pthread_cond_signal(&expiry->wake);
	pthread_mutex_unlock(&expiry->lock);
	pthread_join(expiry->thread, NULL);
	expiry->running = false;
}
