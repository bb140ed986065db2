/* SPDX-License-Identifier: Apache-2.0 */
/* test_serve_start.c - start and end of a server, and its socket. */
#include <config.h>

#include "tests/unit/serve/peer_fixture.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- start and end ---- */

UNIT_TEST(a_stopped_server_leaves_nothing)
{
	unsigned before;

	close_client();
	fx_stop_serving();
	before = fx_descriptors();
	fx_serve();
	client = fx_client();
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	ck_assert_uint_eq(fx_threads("ucm-accept"), 1);
	fx_stop_serving();
	ck_assert(!fx_exists(fx_socket()));
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), -ENOTCONN);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), -ENOTCONN);
	close_client();
	ck_assert_uint_eq(fx_descriptors(), before);
	ck_assert_uint_eq(fx_threads("ucm-accept"), 0);
	fx_serve();
}

UNIT_TEST(a_socket_that_somebody_listens_on_is_his)
{
	struct ucm_server *second;

	ck_assert_int_eq(ucm_server_start(&fx_terms, fx_socket(), -1, &second),
			 -EADDRINUSE);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	ck_assert(fx_exists(fx_socket()));
}

/* As one that was killed leaves it. */
UNIT_TEST(a_dead_socket_is_replaced)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	close_client();
	fx_stop_serving();
	strcpy(address.sun_path, fx_socket());
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address,
			      sizeof(address)), 0);
	close(fd);
	ck_assert(fx_exists(fx_socket()));
	fx_serve();
	client = fx_client();
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
}

UNIT_TEST(what_is_no_socket_is_left_alone)
{
	struct ucm_server *server;
	const char *path = fx_path("$/file");
	char long_path[200];

	fx_put(path, "x", 1);
	ck_assert_int_eq(ucm_server_start(&fx_terms, path, -1, &server),
			 -EADDRINUSE);
	ck_assert(fx_exists(path));
	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = '\0';
	ck_assert_int_eq(ucm_server_start(&fx_terms, long_path, -1, &server),
			 -ENAMETOOLONG);
	ck_assert_int_eq(ucm_server_start(&fx_terms, fx_path("$/none/socket"),
					  -1, &server), -ENOENT);
}

UNIT_TEST(another_ones_socket_outlives_a_server)
{
	ck_assert_int_eq(unlink(fx_socket()), 0);
	fx_put(fx_socket(), "x", 1);
	fx_stop_serving();
	ck_assert(fx_exists(fx_socket()));
	ck_assert_int_eq(unlink(fx_socket()), 0);
	fx_serve();
}

UNIT_TEST(a_socket_that_listens_already_is_served)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	close_client();
	fx_stop_serving();
	strcpy(address.sun_path, fx_socket());
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address,
			      sizeof(address)), 0);
	ck_assert_int_eq(listen(fd, 16), 0);
	ck_assert_int_eq(ucm_server_start(&fx_terms, NULL, fd, &fx_server), 0);
	fx_at_end(fx_stop_serving);
	client = fx_client();
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
}
