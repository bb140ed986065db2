/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_serve_limits.c - a server and its peers that have too few descriptors,
 * or too little room.
 */
#include <config.h>

#include "tests/unit/serve/drafts_fixture.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- too little of something ---- */

UNIT_TEST(what_is_too_large_is_not_created)
{
	struct ucm_serve_created created;
	int fd;

	ck_assert_int_eq(fx_put_block(client, NULL, &other), 0);
	ck_assert_int_eq(ucm_client_create(client, NULL, &file.key.id, 1,
					   UINT64_MAX / 2, &fd, &created), 0);
	ck_assert_int_eq(fd, -EFBIG);
	ck_assert_uint_eq(fx_staged(), 0);
	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
}

static void limit_descriptors(rlim_t num)
{
	struct rlimit limit;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = num;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* A program that has no descriptors left gets none, and what the server has made
 * for it is removed. */
static void create_with_few(void *arg)
{
	unsigned num = *(const unsigned *)arg, before;
	struct ucm_serve_created created[400];
	struct ucm_id ids[400] = { { { 0 } } };
	int fds[400];

	for (unsigned i = 0; i < num; i++)
		memcpy(ids[i].bytes, &i, sizeof(i));
	client = fx_client();
	before = fx_descriptors();
	limit_descriptors(before + num / 2);
	must(ucm_client_create(client, NULL, ids, num, 4096, fds, created) ==
	     -EMFILE);
	must(ucm_client_open(client, NULL, &file.key.id, 1, fds, NULL) == 0);
	must(fx_has_bytes(fds[0], &file));
	close(fds[0]);
	limit_descriptors(1024);
	must(fx_descriptors() == before);
	must(fx_staged() == 0);
	must(fx_put_block(client, NULL, &other) == 0);
}

UNIT_TEST(what_a_program_cannot_receive_is_dropped, .rows = 2)
{
	unsigned nums[] = { 100, 400 };

	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
	fx_in_child(create_with_few, &nums[_i]);
}

/* One request's, as a message of its own. */
static ssize_t ask_create(int fd, unsigned first, unsigned num)
{
	struct {
		struct ucm_serve_request head;
		struct ucm_id ids[UCM_SERVE_DESCRIPTORS];
	} message = { .head = { .verb = UCM_SERVE_CREATE,
				.num = num, .bytes = 4096 } };

	for (unsigned i = 0; i < num; i++) {
		unsigned number = first + i;

		memcpy(message.ids[i].bytes, &number, sizeof(number));
	}
	return send(fd, &message,
		    sizeof(message.head) + num * sizeof(message.ids[0]), 0);
}

static bool has_answer(void *arg)
{
	struct pollfd fd = { .fd = *(int *)arg, .events = POLLIN };

	return poll(&fd, 1, 0) > 0;
}

/* The server opens what it can, and continues. */
UNIT_TEST(a_server_without_descriptors_says_so)
{
	struct ucm_serve_created created[100];
	struct ucm_serve_answer head;
	int fd = fx_dial(), good = 0;

	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
	limit_descriptors(fx_descriptors() + 30);
	ck_assert_int_gt(ask_create(fd, 1, 100), 0);
	fx_wait(has_answer, &fd);
	limit_descriptors(1024);
	ck_assert_int_eq(recv(fd, &head, sizeof(head), MSG_PEEK),
			 sizeof(head));
	ck_assert_int_eq(head.result, 0);
	ck_assert_uint_ge(head.descriptors, 10);
	ck_assert_uint_le(head.descriptors, 40);
	{
		struct iovec parts[] = { { &head, sizeof(head) },
					 { created, sizeof(created) } };
		const struct msghdr message = { .msg_iov = parts,
						.msg_iovlen = 2 };

		ck_assert_int_eq(recvmsg(fd, (struct msghdr *)&message, 0),
				 sizeof(head) + sizeof(created));
	}
	for (unsigned i = 0; i < 100; i++) {
		must(!created[i].result || created[i].result == -EMFILE);
		good += !created[i].result;
	}
	ck_assert_int_eq(good, (int)head.descriptors);
	ck_assert_uint_eq(fx_staged(), (unsigned)good);
	ck_assert_int_eq(fx_put_block(client, NULL, &other), 0);
	close(fd);
}

/* Want of descriptors says nothing of a block. */
UNIT_TEST(a_server_without_descriptors_keeps_its_blocks)
{
	struct ucm_serve_created created;
	unsigned before;
	uint32_t draft;
	int fd;

	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
	draft = fx_draft(client, &other, other.len);
	/* the server has closed its own when it reads the next request */
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	before = fx_descriptors();
	for (unsigned i = 0; i < 3; i++) {
		limit_descriptors(3);
		ck_assert_int_eq(fx_open_one(client, &file), -EMFILE);
		ck_assert_int_eq(one(UCM_SERVE_CHECK, &file), -EMFILE);
		ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
		ck_assert_int_eq(ucm_client_create(client, NULL, &other.key.id,
						   1, other.len, &fd, &created),
				 0);
		ck_assert_int_eq(fd, -EMFILE);
		/* the first one drops it, as any error does */
		ck_assert_int_eq(fx_commit_draft(client, draft),
				 i ? -EINVAL : -EMFILE);
		limit_descriptors(1024);
		ck_assert_uint_eq(fx_descriptors(), before);
		ck_assert_uint_eq(fx_staged(), 0);
	}
	fd = fx_open_one(client, &file);
	ck_assert(fx_has_bytes(fd, &file));
	close(fd);
	ck_assert_int_eq(fx_put_block(client, NULL, &other), 0);
}

/* One that cannot accept continues when it can. */
UNIT_TEST(a_peer_waits_for_a_server_without_descriptors)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const struct ucm_serve_request hello = { .verb = UCM_SERVE_HELLO };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucm_serve_answer head;
	struct ucm_serve_hello items;

	strcpy(address.sun_path, fx_socket());
	limit_descriptors(3);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&address,
				 sizeof(address)), 0);
	ck_assert_int_eq(send(fd, &hello, sizeof(hello), 0), sizeof(hello));
	/* who is connected is served */
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 0);
	ck_assert(!has_answer(&fd));
	limit_descriptors(1024);
	fx_wait(has_answer, &fd);
	ck_assert_int_eq(recv(fd, &items, 0, MSG_PEEK | MSG_TRUNC),
			 sizeof(head) + sizeof(items));
	close(fd);
}

/* ---- a user with too many descriptors on their way ---- */

#define USER 4321

/* In a child, which nothing has been opened in, and which is not root. */
static void fill_sockets(void *arg)
{
	int fds[3];

	(void)arg;
	if (!geteuid())
		must(!setresgid(USER, USER, USER) &&
		     !setresuid(USER, USER, USER));
	fx_store("$/a");
	fx_set_terms();
	fx_serve();
	limit_descriptors(300);
	for (unsigned i = 0; i < 3; i++) {
		fds[i] = fx_dial();
		must(ask_create(fds[i], i * 200, 200) > 0);
		fx_wait(has_answer, &fds[i]);
	}
	for (unsigned i = 0; i < 3; i++) {
		struct ucm_serve_answer head = { .result = 1 };

		must(recv(fds[i], &head, sizeof(head), MSG_PEEK) ==
		     sizeof(head));
		must(head.result == (i < 2 ? 0 : -EMFILE));
		must(head.descriptors == (i < 2 ? 200 : 0));
	}
	must(fx_staged() == 400);
	close(fds[0]);
	close(fds[1]);
	}

/* The same user has as many threads as he may. */
static void refuse_threads(void *arg)
{
	struct rlimit limit, none;
	struct ucm_client *first;

	(void)arg;
	if (!geteuid())
		must(!setresgid(USER, USER, USER) &&
		     !setresuid(USER, USER, USER));
	fx_store("$/a");
	fx_set_terms();
	fx_serve();
	first = fx_client();
	must(!getrlimit(RLIMIT_NPROC, &limit));
	none = limit;
	none.rlim_cur = 1;
	must(!setrlimit(RLIMIT_NPROC, &none));
	must(ucm_client_connect(fx_socket(), &client) == -EMFILE);
	must(fx_one_id(first, UCM_SERVE_LOOKUP, NULL, &file) == 0);
	must(!setrlimit(RLIMIT_NPROC, &limit));
	client = fx_client();
	must(one(UCM_SERVE_LOOKUP, &file) == 0);
}

static void setup_users(void)
{
	fx_setup();
	fx_mkdirs(fx_path("$/a"));
	if (!geteuid()) {
		ck_assert_int_eq(chmod(fx_path("$/.."), 0711), 0);
		ck_assert_int_eq(chown(fx_path("$"), USER, USER), 0);
		ck_assert_int_eq(chown(fx_path("$/a"), USER, USER), 0);
	}
}

UNIT_FIXTURE(.setup = setup_users, .teardown = fx_teardown);

UNIT_TEST(what_cannot_be_sent_is_dropped)
{
	fx_in_child(fill_sockets, NULL);
}

UNIT_TEST(a_peer_without_a_thread_is_one_too_many)
{
	fx_in_child(refuse_threads, NULL);
}
