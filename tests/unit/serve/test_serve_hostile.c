/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_serve_hostile.c - peers that send what no client does, or nothing, or
 * too much: a server answers or ends the connection.
 */
#include <config.h>

#include "tests/unit/serve/hostile_fixture.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/random.h"

/* ---- malformed messages ---- */

/* A message, with so many bytes of items after its head. */
static const struct {
	const char *what;
	struct ucm_serve_request head;
	size_t items;
	int want;
} wrong[] = {
	{ "no such verb", { .verb = 0 }, 0, -EOPNOTSUPP },
	{ "no such verb yet", { .verb = UCM_SERVE_VERBS }, 0, -EOPNOTSUPP },
	{ "no verb at all", { .verb = UINT32_MAX }, 0, -EOPNOTSUPP },
	{ "no item", { .verb = UCM_SERVE_LOOKUP, .num = 1 }, 0, -EINVAL },
	{ "half an item", { .verb = UCM_SERVE_LOOKUP, .num = 1 }, 8, -EINVAL },
	{ "half an item more", { .verb = UCM_SERVE_LOOKUP, .num = 1 }, 24,
	  -EINVAL },
	{ "one item more", { .verb = UCM_SERVE_LOOKUP, .num = 1 }, 32, -EINVAL },
	{ "items of no number", { .verb = UCM_SERVE_LOOKUP }, 16, -EINVAL },
	{ "too many", { .verb = UCM_SERVE_LOOKUP, .num = 1001 }, 16016,
	  -EINVAL },
	{ "so many that it wraps",
	  { .verb = UCM_SERVE_LOOKUP, .num = 0x10000001 }, 16, -EINVAL },
	{ "as many as there are", { .verb = UCM_SERVE_LOOKUP,
				    .num = UINT32_MAX }, 16, -EINVAL },
	{ "too many to open", { .verb = UCM_SERVE_OPEN, .num = 251 }, 4016,
	  -EINVAL },
	{ "too many to create", { .verb = UCM_SERVE_CREATE, .num = 251 }, 4016,
	  -EINVAL },
	{ "two paths", { .verb = UCM_SERVE_PATH, .num = 2 }, 32, -EINVAL },
	{ "no path", { .verb = UCM_SERVE_PATH }, 0, -EINVAL },
	{ "unknown flag", { .verb = UCM_SERVE_LOOKUP, .flags = 1 }, 0, -EINVAL },
	{ "another verb's flag",
	  { .verb = UCM_SERVE_PIN, .flags = UCM_TOUCH_EXPECTED }, 0, -EINVAL },
	{ "both of two flags", { .verb = UCM_SERVE_TOUCH, .flags =
		UCM_TOUCH_EXPECTED | UCM_TOUCH_ENDED }, 0, -EINVAL },
	{ "a time of what has ended", { .verb = UCM_SERVE_TOUCH, .flags =
		UCM_TOUCH_ENDED, .argument = 1 }, 0, -EINVAL },
	{ "a time of a use", { .verb = UCM_SERVE_TOUCH, .argument = 1 }, 0,
	  -EINVAL },
	{ "more than an hour", { .verb = UCM_SERVE_TOUCH, .flags =
		UCM_TOUCH_EXPECTED, .argument = UCM_EXPECTED_MOST_MS + 1 }, 0,
	  -EINVAL },
	{ "an argument that is unused", { .verb = UCM_SERVE_PIN, .argument = 1 },
	  0, -EINVAL },
	{ "bytes that are unused", { .verb = UCM_SERVE_LOOKUP, .bytes = 1 }, 0,
	  -EINVAL },
	{ "no mode", { .verb = UCM_SERVE_MKSPACE, .argument = 010000 }, 0,
	  -EINVAL },
	{ "hello with an item", { .verb = UCM_SERVE_HELLO, .num = 1 }, 1,
	  -EINVAL },
	{ "hello with bytes after it", { .verb = UCM_SERVE_HELLO }, 1, -EINVAL },
	{ "no such space", { .verb = UCM_SERVE_HELLO, .space = "none" }, 0,
	  -ENOENT },
	{ "a path for a space", { .verb = UCM_SERVE_LOOKUP,
				  .space = "../blocks" }, 0, -ENOENT },
	{ "no such text", { .verb = UCM_SERVE_TEXT, .argument = 5 }, 0,
	  -EINVAL },
	{ "no byte", { .verb = UCM_SERVE_LIST, .argument = 256 }, 0, -EINVAL },
	{ "a list with an item", { .verb = UCM_SERVE_LIST, .num = 1 }, 0,
	  -EINVAL },
	{ "a drain of too long a path",
	  { .verb = UCM_SERVE_DRAIN, .num = 4097 }, 4097, -EINVAL },
	{ "a drain of a part of a path", { .verb = UCM_SERVE_DRAIN, .num = 1 },
	  1, -ENOENT },
};

static char message[UCM_SERVE_MESSAGE_MAX + 4096];

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(malformed_messages_are_refused, .rows = NUM_ROWS(wrong))
{
	struct ucm_serve_answer head = { .result = 1 };
	struct ucm_serve_request lookup = { .verb = UCM_SERVE_LOOKUP };
	size_t size = sizeof(wrong[_i].head) + wrong[_i].items;
	int fd = fx_dial();

	memcpy(message, &wrong[_i].head, sizeof(wrong[_i].head));
	ck_assert_int_eq(fx_ask(fd, message, size, &head, NULL, 0, NULL),
			 sizeof(head));
	ck_assert_msg(head.result == wrong[_i].want, "%s: %d", wrong[_i].what,
		      head.result);
	ck_assert_uint_eq(head.verb, wrong[_i].head.verb);
	ck_assert_uint_eq(head.num, 0);
	ck_assert_uint_eq(head.descriptors, 0);
	/* and the connection continues */
	ck_assert_int_eq(fx_ask(fd, &lookup, sizeof(lookup), &head, NULL, 0,
				NULL), sizeof(head));
	ck_assert_int_eq(head.result, 0);
	close(fd);
}

UNIT_TEST(a_message_is_neither_shorter_nor_longer, .rows = 5)
{
	static const size_t sizes[] = {
		1, 8, sizeof(struct ucm_serve_request) - 1,
		UCM_SERVE_MESSAGE_MAX + 1, UCM_SERVE_MESSAGE_MAX + 4096,
	};
	struct ucm_serve_request lookup = { .verb = UCM_SERVE_LOOKUP };
	struct ucm_serve_answer head;
	int fd = fx_dial();

	memcpy(message, &lookup, sizeof(lookup));
	ck_assert_int_eq(fx_ask(fd, message, sizes[_i], &head, NULL, 0, NULL),
			 sizeof(head));
	ck_assert_int_eq(head.result, -EINVAL);
	ck_assert_int_eq(fx_ask(fd, &lookup, sizeof(lookup), &head, NULL, 0,
				NULL), sizeof(head));
	ck_assert_int_eq(head.result, 0);
	close(fd);
}

UNIT_TEST(a_name_without_its_end_is_refused)
{
	struct ucm_serve_request head = { .verb = UCM_SERVE_HELLO };
	struct ucm_serve_answer answer;
	int fd = fx_dial();

	memset(head.space, 's', sizeof(head.space));
	ck_assert_int_eq(fx_ask(fd, &head, sizeof(head), &answer, NULL, 0,
				NULL), sizeof(answer));
	ck_assert_int_eq(answer.result, -EINVAL);
	close(fd);
}

/* ---- descriptors that nobody asked for ---- */

UNIT_TEST(descriptors_of_a_peer_do_not_arrive)
{
	struct ucm_serve_request lookup = { .verb = UCM_SERVE_LOOKUP };
	struct ucm_serve_answer head;
	int fd = fx_dial(), pipes[2];
	unsigned before;
	char byte;

	ck_assert_int_eq(fx_ask(fd, &lookup, sizeof(lookup), &head, NULL, 0,
				NULL), sizeof(head));
	before = fx_descriptors();
	ck_assert_int_eq(pipe(pipes), 0);
	for (unsigned i = 0; i < 50; i++) {
		send_with_descriptors(fd, &lookup,
				      i % 2 ? sizeof(lookup) : 5, 200);
		ck_assert_int_eq(recv(fd, &head, sizeof(head), 0),
				 sizeof(head));
		ck_assert_int_eq(head.result, i % 2 ? 0 : -EINVAL);
	}
	ck_assert_uint_eq(fx_descriptors(), before + 2);
	close(pipes[1]);
	ck_assert_int_eq(read(pipes[0], &byte, 1), 0);
	close(pipes[0]);
	close(fd);
}

/* ---- peers that do not do their part ---- */

static bool is_full(void *arg)
{
	struct pollfd fd = { .fd = *(int *)arg, .events = POLLOUT };

	return poll(&fd, 1, 0) == 0;
}

UNIT_TEST(a_peer_that_does_not_read_holds_up_nobody)
{
	int fd = fx_dial();
	unsigned sent = 0;

	/* its requests stay where they are when its answers do */
	for (unsigned i = 0; i < 3; i++) {
		sent += fill(fd);
		fx_wait(is_full, &fd);
	}
	ck_assert_uint_gt(sent, 2);
	for (unsigned i = 0; i < 1000; i++)
		must(one(UCM_SERVE_LOOKUP, &file) == 1);
	ck_assert_uint_eq(ucm_server_peers(fx_server), 2);
	close(fd);
	close_client();
	fx_wait_alone();
}

static bool has_ended(void *arg)
{
	struct pollfd fd = { .fd = *(int *)arg, .events = POLLRDHUP };

	return poll(&fd, 1, 0) > 0 && fd.revents & POLLRDHUP;
}

/* Those that are on their way count against the daemon's user, and whoever reads none
 * could have any number of them. */
UNIT_TEST(a_peer_with_descriptors_to_receive_gets_no_more)
{
	struct {
		struct ucm_serve_request head;
		struct ucm_id ids[UCM_SERVE_DESCRIPTORS];
	} ask = { .head = { .verb = UCM_SERVE_OPEN,
			    .num = UCM_SERVE_DESCRIPTORS } };
	struct ucm_serve_opened opened[UCM_SERVE_DESCRIPTORS];
	struct ucm_serve_answer head;
	struct iovec parts[] = { { &head, sizeof(head) },
				 { opened, sizeof(opened) } };
	struct msghdr answer = { .msg_iov = parts, .msg_iovlen = 2 };
	int fd = fx_dial();

	for (unsigned i = 0; i < UCM_SERVE_DESCRIPTORS; i++)
		ask.ids[i] = file.key.id;
	/* one after another, as often as it likes */
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(fx_ask(fd, &ask, sizeof(ask), &head, opened,
					sizeof(opened), NULL),
				 sizeof(head) + sizeof(opened));
		ck_assert_uint_eq(head.descriptors, UCM_SERVE_DESCRIPTORS);
	}
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(send(fd, &ask, sizeof(ask), 0), sizeof(ask));
	fx_wait(has_ended, &fd);
	ck_assert_int_eq(recvmsg(fd, &answer, 0),
			 sizeof(head) + sizeof(opened));
	ck_assert_int_eq(recvmsg(fd, &answer, 0), 0);
	close(fd);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
}

UNIT_TEST(a_server_stops_while_a_peer_does_not_read)
{
	int fd = fx_dial();

	fill(fd);
	fx_wait(is_full, &fd);
	fx_stop_serving(); /* asserts that it does within its time */
	close(fd);
	fx_serve();
}

UNIT_TEST(a_peer_that_closes_early_is_forgotten, .rows = 3)
{
	struct ucm_serve_request lookup = { .verb = UCM_SERVE_OPEN, .num = 2 };
	struct ucm_id ids[2] = { file.key.id, file.key.id };
	unsigned before;

	memcpy(message, &lookup, sizeof(lookup));
	memcpy(message + sizeof(lookup), ids, sizeof(ids));
	before = fx_descriptors();
	for (unsigned i = 0; i < 200; i++) {
		int fd = fx_dial();

		if (_i == 1) /* a part of what it should */
			must(send(fd, message, sizeof(lookup) + 16, 0) > 0);
		if (_i == 2) /* and it is not there for the answer */
			must(send(fd, message, sizeof(lookup) + 32, 0) > 0);
		close(fd);
	}
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	close_client();
	fx_wait_alone();
	fx_wait_descriptors(before - 2); /* the client's end, and the server's */
}

/* Reading nothing, writing nothing. */
UNIT_TEST(a_peer_that_shuts_down_is_forgotten, .rows = 3)
{
	static const int how[] = { SHUT_RD, SHUT_WR, SHUT_RDWR };
	struct ucm_serve_request lookup = { .verb = UCM_SERVE_LOOKUP };
	int fd = fx_dial();

	close_client();
	shutdown(fd, how[_i]);
	send(fd, &lookup, sizeof(lookup), MSG_NOSIGNAL | MSG_DONTWAIT);
	fx_wait_alone();
	close(fd);
}

/* ---- many ---- */

UNIT_TEST(hundreds_of_peers_are_served_at_once)
{
	struct ucm_client *clients[300];
	unsigned before = fx_descriptors();

	for (unsigned i = 0; i < NUM_ROWS(clients); i++)
		clients[i] = fx_client();
	ck_assert_uint_eq(ucm_server_peers(fx_server), 301);
	for (unsigned i = 0; i < NUM_ROWS(clients); i++)
		must(fx_one_id(clients[i], UCM_SERVE_LOOKUP, NULL, &file) == 1);
	for (unsigned i = 0; i < NUM_ROWS(clients); i++)
		ucm_client_close(clients[i]);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	fx_wait_descriptors(before);
}

UNIT_TEST(hundreds_of_peers_are_cut_off_at_the_end)
{
	int fds[300];
	char byte;

	for (unsigned i = 0; i < NUM_ROWS(fds); i++)
		fds[i] = fx_dial();
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	fx_stop_serving();
	for (unsigned i = 0; i < NUM_ROWS(fds); i++) {
		ssize_t got = recv(fds[i], &byte, 1, 0);

		must(got == 0 || (got < 0 && errno == ECONNRESET));
		close(fds[i]);
	}
	fx_serve();
}

/* ---- random messages ---- */

#define MESSAGES 20000u

/* What is long or ends the connection is a test of its own; all else is drawn. */
static struct ucm_serve_request random_head(uint64_t *state)
{
	struct ucm_serve_request head = {
		.verb = (uint32_t)random_between(state, 0, UCM_SERVE_VERBS),
		.num = (uint32_t)random_between(state, 0, 4),
	};

	/* of the whole store, which take long */
	if (head.verb >= UCM_SERVE_FLUSH && head.verb < UCM_SERVE_TEXT &&
	    random_between(state, 0, 49))
		head.verb = UCM_SERVE_OPEN;
	if (!random_between(state, 0, 3))
		head.argument = (uint32_t)random_between(state, 0, 3);
	if (head.verb == UCM_SERVE_MKSPACE || !random_between(state, 0, 15))
		strcpy(head.space, random_between(state, 0, 1) ? "s" : "none");
	if (head.verb == UCM_SERVE_CREATE)
		head.bytes = 8192;
	if (head.verb == UCM_SERVE_HELLO || head.verb == UCM_SERVE_STATISTICS ||
	    (head.verb >= UCM_SERVE_FLUSH && head.verb <= UCM_SERVE_TEXT) ||
	    head.verb >= UCM_SERVE_MKSPACE)
		head.num = 0;
	return head;
}

static size_t item_bytes(uint32_t verb)
{
	switch (verb) {
	case UCM_SERVE_OFFER:
		return sizeof(struct ucm_control_offered);
	case UCM_SERVE_VERIFIED:
		return sizeof(struct ucm_control_verified_block);
	case UCM_SERVE_COMMIT:
		return sizeof(struct ucm_serve_commit);
	case UCM_SERVE_CANCEL:
		return sizeof(uint32_t);
	case UCM_SERVE_DRAIN:
		return 1;
	default:
		return sizeof(struct ucm_id);
	}
}

static void fill_items(uint64_t *state, uint32_t verb, uint32_t num, char *out)
{
	size_t each = item_bytes(verb);

	for (uint32_t i = 0; i < num; i++) {
		const struct ucm_id *id = random_between(state, 0, 1)
						  ? &file.key.id
						  : &other.key.id;

		memset(out + i * each, 0, each);
		if (each >= sizeof(*id))
			memcpy(out + i * each, id, sizeof(*id));
		else
			out[i * each] = (char)random_between(state, 0, 40);
	}
}

/* Bytes that are other than they were, and a size that is. */
static size_t mutate(uint64_t *state, size_t size)
{
	unsigned num = (unsigned)random_between(state, 1, 4);

	for (unsigned i = 0; i < num; i++) {
		size_t at = (size_t)random_between(state, 0,
						   (int64_t)size - 1);

		if (random_between(state, 0, 1))
			at %= 32; /* verb, num, flags, argument, bytes */
		message[at] = (char)random_next(state);
	}
	if (random_between(state, 0, 3) == 0)
		size = (size_t)random_between(state, 1, 2 * (int64_t)size);
	if (random_between(state, 0, 199) == 0)
		size = (size_t)random_between(state, 1, sizeof(message));
	return size;
}

static size_t random_message(uint64_t *state)
{
	struct ucm_serve_request head = random_head(state);
	size_t size = sizeof(head) + head.num * item_bytes(head.verb);

	memcpy(message, &head, sizeof(head));
	fill_items(state, head.verb, head.num, message + sizeof(head));
	if (random_between(state, 0, 1))
		size = mutate(state, size);
	return size;
}

/* The answer is one of a verb that is known, or says what is wrong. */
static void check_answer(unsigned number, size_t size, ssize_t got,
			 const struct ucm_serve_answer *head)
{
	const struct ucm_serve_request *request = (void *)message;

	must_in_case(got >= (ssize_t)sizeof(*head), number, "no answer");
	must_in_case(head->result <= 0 && head->result > -4096, number,
		     "no result");
	must_in_case(!head->result || got == (ssize_t)sizeof(*head), number,
		     "items of an error");
	must_in_case(head->descriptors <= UCM_SERVE_DESCRIPTORS, number,
		     "too many descriptors");
	if (size >= sizeof(*request) && size <= UCM_SERVE_MESSAGE_MAX)
		must_in_case(head->verb == request->verb, number,
			     "another verb");
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 120);

UNIT_TEST(random_messages_are_answered)
{
	static char items[UCM_SERVE_MESSAGE_MAX];
	unsigned before;
	int fd;

	close_client();
	fx_wait_alone();
	before = fx_descriptors();
	fd = fx_dial();
	for (unsigned i = 0; i < MESSAGES; i++) {
		uint64_t state = 20261128 + i; /* the same in each run */
		size_t size = random_message(&state);
		struct ucm_serve_answer head = { .result = 1 };
		ssize_t got = fx_ask(fd, message, size, &head, items,
				     sizeof(items), NULL);

		check_answer(i, size, got, &head);
		if (!random_between(&state, 0, 99)) {
			close(fd);
			fd = fx_dial();
		}
	}
	close(fd);
	fx_wait_alone();
	ck_assert_uint_eq(fx_staged(), 0);
	fx_wait_descriptors(before);
	client = fx_client();
	ck_assert_int_ge(one(UCM_SERVE_LOOKUP, &file), 0);
	ck_assert_int_eq(fx_put_block(client, "", &file) == -EEXIST ||
			 one(UCM_SERVE_LOOKUP, &file) == 1, 1);
	fx_all_whole("$/a");
}
