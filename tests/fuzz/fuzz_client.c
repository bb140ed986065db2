/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_client.c - a daemon that answers a client with any bytes and descriptors: each
 * call ends, and of the descriptors that came each is the caller's or closed, once.
 *
 * The client is compiled in, with recvmsg(2) and sendmsg(2) of our own. The first byte
 * of the input chooses a call; an answer is a head (how it ends, how many descriptors,
 * whether its head is made right, its length) and its bytes.
 */
#include <config.h>

#include <sys/socket.h>

static ssize_t fuzz_sendmsg(int fd, const struct msghdr *message, int flags);
static ssize_t fuzz_recvmsg(int fd, struct msghdr *message, int flags);
#define sendmsg fuzz_sendmsg
#define recvmsg fuzz_recvmsg
#include "fs/reader/client.c" /* what is fuzzed */
#undef sendmsg
#undef recvmsg

#include <sys/mman.h>

#include "tests/fuzz/require.h"

#define GIVEN_MOST 4096
#define IDS 600

static const uint8_t *input;
static size_t left;
static struct ucm_serve_request asked; /* the last one */
static int given[GIVEN_MOST];
static unsigned num_given;
static int memory = -1;

static unsigned take(void)
{
	if (!left)
		return 0;
	left--;
	return *input++;
}

static ssize_t fuzz_sendmsg(int fd, const struct msghdr *message, int flags)
{
	ssize_t size = 0;

	(void)fd, (void)flags;
	memcpy(&asked, message->msg_iov[0].iov_base, sizeof(asked));
	for (size_t i = 0; i < message->msg_iovlen; i++) {
		const uint8_t *bytes = message->msg_iov[i].iov_base;

		for (size_t at = 0; at < message->msg_iov[i].iov_len; at++)
			size += bytes[at] >= 0; /* each can be read */
	}
	REQUIRE(size <= (ssize_t)UCM_SERVE_MESSAGE_MAX);
	return size;
}

/* As the kernel does: as many as there is room for. */
static void give_descriptors(struct msghdr *message, unsigned num)
{
	size_t room = message->msg_controllen < CMSG_LEN(0)
			      ? 0
			      : (message->msg_controllen - CMSG_LEN(0)) /
					sizeof(int);
	struct cmsghdr *head = message->msg_control;

	if (num > room) {
		message->msg_flags |= MSG_CTRUNC;
		num = (unsigned)room;
	}
	if (num > GIVEN_MOST - num_given)
		num = GIVEN_MOST - num_given;
	message->msg_controllen = 0;
	if (!num)
		return;
	*head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(num * sizeof(int)),
				  .cmsg_level = SOL_SOCKET,
				  .cmsg_type = SCM_RIGHTS };
	for (unsigned i = 0; i < num; i++) {
		int fd = fcntl(memory, F_DUPFD_CLOEXEC, 0);

		REQUIRE(fd >= 0);
		given[num_given++] = fd;
		memcpy(CMSG_DATA(head) + i * sizeof(int), &fd, sizeof(fd));
	}
	message->msg_controllen = CMSG_SPACE(num * sizeof(int));
}

static ssize_t put_bytes(struct msghdr *message, const uint8_t *bytes,
			 size_t size)
{
	size_t at = 0;

	for (size_t i = 0; i < message->msg_iovlen && at < size; i++) {
		size_t part = min(message->msg_iov[i].iov_len, size - at);

		if (part)
			memcpy(message->msg_iov[i].iov_base, bytes + at, part);
		at += part;
	}
	if (at < size)
		message->msg_flags |= MSG_TRUNC;
	return (ssize_t)at;
}

#define RIGHT_HEAD 1u   /* that of an answer, and good items */
#define RIGHT_LENGTH 2u /* as long as is asked for */

static ssize_t fuzz_recvmsg(int fd, struct msghdr *message, int flags)
{
	static uint8_t bytes[2 * UCM_SERVE_MESSAGE_MAX];
	unsigned how = take(), num = take(), right = take();
	size_t size = take() | take() << 8;
	size_t room = message->msg_iov[0].iov_len + message->msg_iov[1].iov_len;
	const struct ucm_serve_answer head = {
		.verb = asked.verb,
		.num = asked.num,
		.descriptors = num,
	};

	(void)fd, (void)flags;
	message->msg_flags = 0;
	if (how < 3 || !left) {
		errno = how == 1 ? ECONNRESET : EINTR;
		message->msg_controllen = 0;
		return how && left ? -1 : 0;
	}
	if (right & RIGHT_LENGTH)
		size = room;
	memset(bytes, 0, size);
	memcpy(bytes, input, min(left, min(size, 64)));
	if (right & RIGHT_HEAD && size >= sizeof(head))
		memcpy(bytes, &head, sizeof(head));
	input += min(left, min(size, 64));
	left -= min(left, min(size, 64));
	give_descriptors(message, num);
	return put_bytes(message, bytes, size);
}

/* The caller's, and he closes it. */
static void close_one(int fd)
{
	REQUIRE(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	REQUIRE(!close(fd));
}

static void close_got(int err, const int *fds, size_t num)
{
	for (size_t i = 0; i < num; i++) {
		REQUIRE(!err || fds[i] < 0);
		if (fds[i] >= 0)
			close_one(fds[i]);
	}
}

static void call(struct ucm_client *client, unsigned what)
{
	static struct ucm_id ids[2 * UCM_SERVE_ITEMS];
	static int32_t results[2 * UCM_SERVE_ITEMS];
	static struct ucm_serve_created created[IDS];
	static struct ucm_serve_opened opened[IDS];
	const struct ucm_serve_request text = { .verb = UCM_SERVE_TEXT };
	struct ucm_serve_hello hello;
	static int fds[IDS];
	int err, one = -1, other = -1;
	size_t num = take() | take() << 8;

	switch (what % 6) {
	case 0:
		if (!ucm_client_hello(client, &hello, &one, &other)) {
			REQUIRE(hello.version == UCM_SERVE_VERSION);
			REQUIRE(!!hello.index_bytes == (one >= 0));
			REQUIRE(!!hello.budget_bytes == (other >= 0));
		}
		break;
	case 1:
		num %= 2 * UCM_SERVE_ITEMS;
		ucm_client_ids(client, UCM_SERVE_LOOKUP, "s", 0, ids, num,
			       results);
		break;
	case 2:
		num %= IDS;
		err = ucm_client_open(client, NULL, ids, num, fds, opened);
		close_got(err, fds, num);
		break;
	case 3:
		num %= IDS;
		err = ucm_client_create(client, NULL, ids, num, 8192, fds,
					created);
		close_got(err, fds, num);
		break;
	case 4:
		ucm_client_offer(client, NULL, ids, ids, num % UCM_SERVE_ITEMS,
				 8192, results);
		break;
	default:
		ucm_client_call(client, &text, NULL, 0, NULL, 0, &one);
	}
	if (one >= 0)
		close_one(one);
	if (other >= 0)
		close_one(other);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	memory = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	REQUIRE(memory >= 0 && !ftruncate(memory, 1 << 20));
	REQUIRE(!fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ucm_client *client = calloc(1, sizeof(*client));

	REQUIRE(client);
	client->fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	REQUIRE(client->fd >= 0);
	pthread_mutex_init(&client->lock, NULL);
	input = data;
	left = size;
	num_given = 0;
	while (left)
		call(client, take());
	REQUIRE(fcntl(client->fd, F_GETFD) >= 0);
	ucm_client_close(client);
	for (unsigned i = 0; i < num_given; i++)
		REQUIRE(fcntl(given[i], F_GETFD) < 0);
	return 0;
}
