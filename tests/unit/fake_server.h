/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_server.h - the socket of a store, with answers that the test makes up: those
 * that no daemon of ours would give, or not at the moment that a test needs.
 *
 * One thread serves all peers, one request after another: while answer() waits,
 * each of them does.
 */
#ifndef UCM_TESTS_FAKE_SERVER_H
#define UCM_TESTS_FAKE_SERVER_H

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <ucm/serve.h>

#include "tests/unit/unit.h"

#define FAKE_PEERS 8

/* Comes zeroed: an answer without items. */
struct fake_answer {
	int32_t result;
	uint32_t num;
	int fd;      /* 0: none; it stays open */
	size_t size; /* bytes of the items */
	char items[UCM_SERVE_MESSAGE_MAX];
};

/* The first four are the test's, to be set before the start. */
struct fake_server {
	struct ucm_serve_hello hello;
	int index_fd, budget_fd; /* sent with hello; -1: none */
	/* To anything but hello. By the server's thread. */
	void (*answer)(const struct ucm_serve_request *request,
		       const void *items, struct fake_answer *out);

	struct pollfd fds[1 + FAKE_PEERS]; /* the listening one is the first */
	nfds_t num_fds;
	pthread_t thread;
};

/* A daemon of this version that has no memory to give. */
#define FAKE_SERVER                                          \
	((struct fake_server){                               \
		.hello = { .version = UCM_SERVE_VERSION },   \
		.index_fd = -1,                              \
		.budget_fd = -1,                             \
	})

static inline void fake_put(struct fake_answer *out, const void *item,
			    size_t size)
{
	must(out->size + size <= sizeof(out->items));
	memcpy(out->items + out->size, item, size);
	out->size += size;
	out->num++;
}

/* The same result for each item of a request. */
static inline void fake_put_results(struct fake_answer *out, uint32_t num,
				    int32_t result)
{
	for (uint32_t i = 0; i < num; i++)
		fake_put(out, &result, sizeof(result));
}

static inline void fake_send(int fd, uint32_t verb,
			     const struct fake_answer *answer, const int *fds,
			     unsigned num_fds)
{
	struct ucm_serve_answer head = {
		.verb = verb,
		.num = answer->num,
		.result = answer->result,
		.descriptors = num_fds,
	};
	struct iovec parts[] = {
		{ .iov_base = &head, .iov_len = sizeof(head) },
		{ .iov_base = (void *)answer->items, .iov_len = answer->size },
	};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = { .head = {
			      .cmsg_len = CMSG_LEN(num_fds * sizeof(int)),
			      .cmsg_level = SOL_SOCKET,
			      .cmsg_type = SCM_RIGHTS,
		      } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	if (num_fds) {
		memcpy(CMSG_DATA(&control.head), fds, num_fds * sizeof(int));
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
	}
	sendmsg(fd, &message, MSG_NOSIGNAL); /* or the peer has gone */
}

/* false: the peer has gone. */
static inline bool fake_serve(struct fake_server *server, int fd)
{
	static char message[UCM_SERVE_MESSAGE_MAX];
	static struct fake_answer answer;
	struct ucm_serve_request request;
	ssize_t size = recv(fd, message, sizeof(message), 0);
	unsigned num_fds = 0;
	int fds[2];

	if (size <= 0)
		return false;
	must((size_t)size >= sizeof(request));
	memcpy(&request, message, sizeof(request));
	memset(&answer, 0, offsetof(struct fake_answer, items));
	if (request.verb == UCM_SERVE_HELLO) {
		struct ucm_serve_hello hello = server->hello;
		bool gives = request.flags & UCM_HELLO_MEMORY;

		if (!gives)
			hello.index_bytes = hello.budget_bytes = 0;
		fake_put(&answer, &hello, sizeof(hello));
		if (gives && server->index_fd >= 0)
			fds[num_fds++] = server->index_fd;
		if (gives && server->budget_fd >= 0)
			fds[num_fds++] = server->budget_fd;
	} else {
		must(server->answer);
		server->answer(&request, message + sizeof(request), &answer);
		if (answer.fd)
			fds[num_fds++] = answer.fd;
	}
	fake_send(fd, request.verb, &answer, fds, num_fds);
	return true;
}

static inline void *fake_main(void *arg)
{
	struct fake_server *server = arg;
	struct pollfd *fds = server->fds;

	for (;;) {
		must(poll(fds, server->num_fds, -1) > 0);
		if (fds[0].revents) {
			int fd = accept(fds[0].fd, NULL, NULL);

			if (fd < 0)
				return NULL; /* it is stopped */
			must(server->num_fds <= FAKE_PEERS);
			fds[server->num_fds++] =
				(struct pollfd){ .fd = fd, .events = POLLIN };
		}
		for (nfds_t i = server->num_fds; i-- > 1;) {
			if (!fds[i].revents || fake_serve(server, fds[i].fd))
				continue;
			close(fds[i].fd);
			fds[i] = fds[--server->num_fds];
		}
	}
}

/* Listen at this path, where nothing is, and serve. */
static inline void fake_server_start(struct fake_server *server,
				     const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	ck_assert_uint_lt(strlen(path), sizeof(address.sun_path));
	strcpy(address.sun_path, path);
	ck_assert_int_eq(
		bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(fd, FAKE_PEERS), 0);
	server->fds[0] = (struct pollfd){ .fd = fd, .events = POLLIN };
	server->num_fds = 1;
	ck_assert_int_eq(
		pthread_create(&server->thread, NULL, fake_main, server), 0);
}

/* As a daemon that is killed: its peers are cut off, and the socket's name is left.
 * What is being answered is waited for. */
static inline void fake_server_stop(struct fake_server *server)
{
	ck_assert_int_eq(shutdown(server->fds[0].fd, SHUT_RDWR), 0);
	ck_assert_int_eq(pthread_join(server->thread, NULL), 0);
	for (nfds_t i = 0; i < server->num_fds; i++)
		close(server->fds[i].fd);
}

#endif
