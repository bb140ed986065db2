/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_serve_good_peer.c - a good peer beside bad ones, which it does not
 * notice.
 */
#include <config.h>

#include "tests/unit/serve/hostile_fixture.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

/* ---- a good one beside them ---- */

static void stop_reading(int fd)
{
	fill(fd);
}

static void flood(int fd)
{
	static const struct {
		struct ucm_serve_request head;
		struct ucm_id ids[UCM_SERVE_ITEMS];
	} ask = { .head = { .verb = UCM_SERVE_LOOKUP, .num = UCM_SERVE_ITEMS } };
	int32_t results[UCM_SERVE_ITEMS];
	struct ucm_serve_answer head;

	for (unsigned i = 0; i < 50; i++)
		must(fx_ask(fd, &ask, sizeof(ask), &head, results,
			    sizeof(results), NULL) ==
		     sizeof(head) + sizeof(results));
}

/* A head that asks for more than comes with it, or for less than a head. */
static void ask_wrong(int fd, struct ucm_serve_request head, size_t size)
{
	char bytes[sizeof(head) + 64] = { 0 };
	struct ucm_serve_answer answer;

	memcpy(bytes, &head, sizeof(head));
	must(fx_ask(fd, bytes, size, &answer, NULL, 0, NULL) ==
	     sizeof(answer));
	must(answer.result == -EINVAL || answer.result == -EOPNOTSUPP);
}

static void send_half(int fd)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_OPEN,
						.num = 2 };

	ask_wrong(fd, head, 8);
	ask_wrong(fd, head, sizeof(head) + 24);
}

static void ask_beyond(int fd)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_CREATE,
						.num = UINT32_MAX };

	ask_wrong(fd, head, sizeof(head) + 16);
}

static void be_newer(int fd)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_VERBS + 7,
						.num = 1 };

	ask_wrong(fd, head, sizeof(head) + 16);
}

static void send_foreign(int fd)
{
	const struct ucm_serve_request lookup = { .verb = UCM_SERVE_LOOKUP };
	struct ucm_serve_answer head;

	send_with_descriptors(fd, &lookup, sizeof(lookup), 200);
	must(recv(fd, &head, sizeof(head), 0) == sizeof(head));
}

static void send_nonsense(int fd)
{
	static const char bytes[UCM_SERVE_MESSAGE_MAX + 4096] = { 'x', 'y' };
	struct ucm_serve_answer head;

	must(fx_ask(fd, bytes, sizeof(bytes), &head, NULL, 0, NULL) ==
	     sizeof(head));
	ck_assert_int_eq(head.result, -EINVAL);
}

/* With what it has asked for on its way. */
static void vanish(int fd)
{
	static const struct {
		struct ucm_serve_request head;
		struct ucm_id ids[50];
	} ask = { .head = { .verb = UCM_SERVE_CREATE, .num = 50,
			    .bytes = 8192 } };

	struct pollfd answer = { .fd = fd, .events = POLLIN };

	must(send(fd, &ask, sizeof(ask), 0) == sizeof(ask));
	/* else there would be as many peers as may connect */
	must(poll(&answer, 1, -1) == 1);
}

static struct bad {
	void (*once)(int fd);
	_Atomic unsigned times;
	pthread_t thread;
} bads[] = {
	{ .once = stop_reading }, { .once = flood },
	{ .once = send_half },	  { .once = ask_beyond },
	{ .once = be_newer },	  { .once = send_foreign },
	{ .once = send_nonsense }, { .once = vanish },
};
static _Atomic bool enough;

/* What has closed its end is a peer until its thread has seen that; and too many are
 * refused. */
static void wait_for_few_peers(void)
{
	static const struct timespec moment = { .tv_nsec = 1000000 };

	while (ucm_server_peers(fx_server) > 64)
		nanosleep(&moment, NULL);
}

static void *be_bad(void *arg)
{
	struct bad *bad = arg;
	int fd, before = -1;

	/* the last connection stays open while the next one is used */
	while (!atomic_load(&enough)) {
		wait_for_few_peers();
		fd = fx_dial();
		bad->once(fd);
		if (before >= 0)
			close(before);
		before = fd;
		atomic_fetch_add(&bad->times, 1);
	}
	close(before);
	return NULL;
}

static bool all_were_bad(unsigned times)
{
	for (unsigned i = 0; i < NUM_ROWS(bads); i++) {
		if (atomic_load(&bads[i].times) < times)
			return false;
	}
	return true;
}

static int64_t use_once(void)
{
	int64_t began = ucm_monotonic_ms();
	int fd;

	must(!fx_put_block(client, NULL, &other));
	must(one(UCM_SERVE_LOOKUP, &other) == 1);
	fd = fx_open_one(client, &other);
	must(fx_has_bytes(fd, &other));
	close(fd);
	must(!one(UCM_SERVE_REMOVE, &other));
	must(one(UCM_SERVE_LOOKUP, &other) == 0);
	return ucm_monotonic_ms() - began;
}

#define TIMES 100u
/* Half of what the server grants a peer that does not read: so no request of a good
 * one has waited for that. */
#define SOON_MS 5000

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 120);

UNIT_TEST(a_good_peer_is_served_beside_bad_ones)
{
	unsigned uses = 0;
	int64_t longest = 0;

	for (unsigned i = 0; i < NUM_ROWS(bads); i++)
		must(!pthread_create(&bads[i].thread, NULL, be_bad, &bads[i]));
	for (; uses < TIMES || !all_were_bad(TIMES); uses++) {
		int64_t took = use_once();

		longest = took > longest ? took : longest;
	}
	atomic_store(&enough, true);
	for (unsigned i = 0; i < NUM_ROWS(bads); i++)
		pthread_join(bads[i].thread, NULL);
	ck_assert_int_lt(longest, SOON_MS);
	close_client();
	fx_wait_alone();
	ck_assert_uint_eq(fx_staged(), 0);
}
