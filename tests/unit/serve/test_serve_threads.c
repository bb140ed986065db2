/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_serve_threads.c - a client that many threads have, or that signals meet; and
 * a server that stops while a request hangs.
 */
#include <config.h>

#include "tests/unit/serve_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>


#define THREADS 4u
#define REQUESTS 500u

static struct ucm_client *client;
static struct fx_file file, other;

static void close_client(void)
{
	ucm_client_close(client);
	client = NULL;
}

static void setup(void)
{
	fx_setup_served();
	fx_at_end(close_client);
	client = fx_client();
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- threads ---- */

static void *ask_main(void *arg)
{
	unsigned number = *(unsigned *)arg;

	for (unsigned i = 0; i < REQUESTS; i++) {
		int fd;

		if ((i + number) % 2) {
			fd = fx_open_one(client, &file);
			must(fx_has_bytes(fd, &file));
			close(fd);
		} else {
			must(fx_one_id(client, UCM_SERVE_LOOKUP, NULL,
				       i % 3 ? &file : &other) == !!(i % 3));
		}
	}
	return NULL;
}

static void start_all(pthread_t *threads, unsigned *numbers)
{
	for (unsigned i = 0; i < THREADS; i++) {
		numbers[i] = i;
		ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_main,
						&numbers[i]), 0);
	}
}

UNIT_TEST(threads_share_a_client)
{
	pthread_t threads[THREADS];
	unsigned numbers[THREADS];

	start_all(threads, numbers);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(ucm_server_peers(fx_server), 1);
}

/* ---- signals ---- */

static void nothing(int number)
{
	(void)number;
}

static void catch_signals(void)
{
	const struct sigaction action = { .sa_handler = nothing };

	ck_assert_int_eq(sigaction(SIGUSR1, &action, NULL), 0);
}

static _Atomic bool done;

static void *ask_and_end_main(void *arg)
{
	ask_main(arg);
	atomic_store(&done, true);
	return NULL;
}

UNIT_TEST(short_requests_go_on_after_signals)
{
	unsigned number = 0, sent = 0;
	pthread_t thread;

	catch_signals();
	ck_assert_int_eq(pthread_create(&thread, NULL, ask_and_end_main,
					&number), 0);
	for (; !atomic_load(&done); sent++)
		pthread_kill(thread, SIGUSR1);
	pthread_join(thread, NULL);
	ck_assert_uint_gt(sent, 0);
}

/* Before all is scanned nothing is copied below: a flush waits for that. */
static void set_scanned(bool scanned)
{
	struct ucm_space *space = fx_set->names.spaces[0];

	if (scanned)
		ucm_space_set_scanned(space, 1, 255);
	else
		ucm_space_clear_scanned(space, 1, 255);
	atomic_store(&fx_set->scan.complete, scanned);
}

static _Atomic pid_t flusher;
static int flushed;

static void *flush_main(void *arg)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_FLUSH };

	(void)arg;
	atomic_store(&flusher, gettid());
	flushed = ucm_client_call(client, &head, NULL, 0, NULL, 0, NULL);
	atomic_store(&done, true);
	return NULL;
}

static bool is_done(void *arg)
{
	pthread_kill(*(pthread_t *)arg, SIGUSR1);
	return atomic_load(&done);
}

static void setup_back(void)
{
	fx_setup();
	fx_configure("fast=$/a:slow=$/b");
	fx_option("write", "fast:back");
	fx_open();
	fx_start();
	fx_set_terms();
	fx_serve();
	fx_at_end(close_client);
	client = fx_client();
	fx_block(&file, 1, FX_PAGED);
}

UNIT_FIXTURE(.setup = setup_back, .teardown = fx_teardown);

UNIT_TEST(a_flush_is_ended_by_a_signal)
{
	pthread_t thread;

	catch_signals();
	set_scanned(false);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, flush_main, NULL), 0);
	fx_wait(fx_sleeps, &flusher);
	fx_wait(is_done, &thread);
	pthread_join(thread, NULL);
	ck_assert_int_eq(flushed, -EINTR);
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_LOOKUP, NULL, &file),
			 -ENOTCONN);
	fx_wait_alone(); /* the daemon's end of it has ended, too */
	set_scanned(true);
}

/* ---- a request that hangs ---- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool hangs;

static void hang(void *arg)
{
	(void)arg;
	atomic_store(&hangs, true);
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
}

static bool is_hanging(void *arg)
{
	(void)arg;
	return atomic_load(&hangs);
}

static bool have_ended(void *arg)
{
	(void)arg;
	return !fx_threads("ucm-peer");
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* The server that is left is freed by the last of its threads. */
UNIT_TEST(a_server_is_left_to_a_request_that_hangs)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_STATISTICS };
	unsigned before;
	int fds[3];

	close_client();
	fx_stop_serving();
	before = fx_descriptors();
	fx_terms.count = hang;
	fx_serve();
	pthread_mutex_lock(&gate);
	for (unsigned i = 0; i < 3; i++) {
		fds[i] = fx_dial();
		ck_assert_int_eq(send(fds[i], &head, sizeof(head), 0),
				 sizeof(head));
	}
	fx_wait(is_hanging, NULL);
	ck_assert(!ucm_server_stop(fx_server, 10));
	ck_assert(!fx_exists(fx_socket()));
	pthread_mutex_unlock(&gate);
	fx_wait(have_ended, NULL);
	for (unsigned i = 0; i < 3; i++)
		close(fds[i]);
	ck_assert_uint_eq(fx_descriptors(), before);
	fx_terms.count = NULL;
	fx_serve();
}
