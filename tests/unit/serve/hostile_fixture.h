/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile_fixture.h - a client of a server, blocks for it, and what bad peers
 * send.
 */
#ifndef UCM_TESTS_HOSTILE_FIXTURE_H
#define UCM_TESTS_HOSTILE_FIXTURE_H

#include "tests/unit/serve_fixture.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* Thousands of files are made and removed. */
static void __attribute__((constructor)) use_memory(void)
{
	fx_use_memory();
}

static struct ucm_client *client;
static struct fx_file file, other;

static inline void close_client(void)
{
	ucm_client_close(client);
	client = NULL;
}

static inline void setup(void)
{
	fx_setup_served();
	fx_at_end(close_client);
	client = fx_client();
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
}

static inline int one(enum ucm_serve_verb verb, const struct fx_file *of)
{
	return fx_one_id(client, verb, NULL, of);
}

/* ---- descriptors that nobody asked for ---- */

/* false: the kernel refuses to send them. */
static inline bool send_with_descriptors(int fd, const void *bytes, size_t size,
					 unsigned num)
{
	struct iovec part = { (void *)bytes, size };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(200 * sizeof(int))];
	} control = { .head = { .cmsg_len = CMSG_LEN(num * sizeof(int)),
				.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS } };
	struct msghdr with = { .msg_iov = &part, .msg_iovlen = 1,
			       .msg_control = &control,
			       .msg_controllen = CMSG_SPACE(num * sizeof(int)) };

	for (unsigned i = 0; i < num; i++)
		memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &fd,
		       sizeof(int));
	if (sendmsg(fd, &with, 0) == (ssize_t)size)
		return true;
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_eq(send(fd, bytes, size, 0), (ssize_t)size);
	return false;
}

/* ---- peers that do not do their part ---- */

/* A large answer of which there is room for a few. */
static inline unsigned fill(int fd)
{
	static struct {
		struct ucm_serve_request head;
		struct ucm_id ids[UCM_SERVE_ITEMS];
	} locate = { .head = { .verb = UCM_SERVE_LOCATE,
			       .num = UCM_SERVE_ITEMS } };
	unsigned sent = 0;

	while (send(fd, &locate, sizeof(locate), MSG_DONTWAIT) > 0)
		sent++;
	ck_assert_int_eq(errno, EAGAIN);
	return sent;
}

#endif
