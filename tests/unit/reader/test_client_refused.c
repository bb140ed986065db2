/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_refused.c - a peer that is refused hears why, whether the daemon has
 * closed the connection before it asks, or before it reads the answer.
 */
#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <ucm/client.h>

#include "tests/unit/dir_fixture.h"
#include "tests/unit/unit.h"

enum order {
	CLOSED_BEFORE_REQUEST,
	CLOSED_BEFORE_ANSWER, /* with the request unread in it */
	CLOSED_WITHOUT_ANSWER,
	NUM_ORDERS
};

static int listening;
static enum order order;
static pthread_t daemon_thread;
static bool has_ended; /* the client's thread alone */

static void wait_until_closed(void)
{
	if (!has_ended)
		pthread_join(daemon_thread, NULL);
	has_ended = true;
}

/* In place of the C library's: what comes before is fixed. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	ssize_t (*next)(int, const struct msghdr *, int) =
		(ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT,
								   "sendmsg");

	if (order == CLOSED_BEFORE_REQUEST)
		wait_until_closed();
	return next(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t (*next)(int, struct msghdr *, int) =
		(ssize_t(*)(int, struct msghdr *, int))dlsym(RTLD_NEXT,
							     "recvmsg");

	wait_until_closed();
	return next(fd, message, flags);
}

static void *refuse_one(void *arg)
{
	const struct ucm_serve_answer head = { .result = -EACCES };
	int fd = accept(listening, NULL, NULL);
	struct pollfd request = { .fd = fd, .events = POLLIN };

	(void)arg;
	must(fd >= 0);
	if (order != CLOSED_BEFORE_REQUEST)
		must(poll(&request, 1, -1) == 1);
	if (order != CLOSED_WITHOUT_ANSWER)
		must(write(fd, &head, sizeof(head)) == sizeof(head));
	close(fd);
	return NULL;
}

static void setup(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	fx_setup();
	strcpy(address.sun_path, fx_path("$/sock"));
	listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	must(!bind(listening, (struct sockaddr *)&address, sizeof(address)));
	must(!listen(listening, 1));
}

static void teardown(void)
{
	close(listening);
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(refused_peer_hears_why, .rows = NUM_ORDERS)
{
	struct ucm_client *client;

	order = (enum order)_i;
	has_ended = false;
	must(!pthread_create(&daemon_thread, NULL, refuse_one, NULL));
	ck_assert_int_eq(ucm_client_connect(fx_path("$/sock"), &client),
			 order == CLOSED_WITHOUT_ANSWER ? -ENOTCONN : -EACCES);
	wait_until_closed();
}
