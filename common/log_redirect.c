/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_redirect.c - lines for the program that uses the library.
 *
 * The function is called with the lock held: so none that was replaced is still
 * running when ucm_log_redirect() returns, and two lines never come at a time.
 * Programs without such a function (the daemon) look at one flag and take no lock.
 *
 * What the function itself causes to be logged, by a finalizer it ran into for
 * example, goes to the sink: the lock is its own.
 *
 * A thread may be in the function when another one forks. The child has no such
 * thread, so its lock is made anew.
 */
#include <config.h>

#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ucm_log_fn redirect_fn; /* guarded by the lock, as is its argument */
static void *redirect_arg;
static _Atomic bool is_redirected;
static _Thread_local bool is_inside;

static void unlock_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	is_inside = false;
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, unlock_in_child);
}

int ucm_log_redirect(ucm_log_fn fn, void *arg)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (is_inside)
		return -EDEADLK;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	redirect_fn = fn;
	redirect_arg = arg;
	atomic_store(&is_redirected, fn != NULL);
	pthread_mutex_unlock(&lock);
	return 0;
}

bool ucm_log_redirected(enum ucm_log_level level, const char *line)
{
	bool taken;

	if (!atomic_load(&is_redirected) || is_inside)
		return false;
	pthread_mutex_lock(&lock);
	taken = redirect_fn;
	if (taken) {
		is_inside = true;
		redirect_fn(redirect_arg, level, line);
		is_inside = false;
	}
	pthread_mutex_unlock(&lock);
	return taken;
}

void ucm_log_to_socket(void *arg, enum ucm_log_level level, const char *line)
{
	char text[UCM_LOG_LINE_SIZE + 1];
	int len = snprintf(text, sizeof(text), "%d%s", (int)level, line);

	if (send((int)(intptr_t)arg, text, (size_t)len,
		 MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		ucm_log_stderr(level, line);
}
