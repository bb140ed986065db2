/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client.c - a client whose daemon lies: what is no answer is an error, the
 * client is of no use after it where it must not be used on, and no descriptor is
 * left.
 *
 * The liar is a thread with a socket. It answers each message with the next lie of
 * its list.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <ucm/client.h>

#include "tests/unit/dir_fixture.h"

#define END UINT32_MAX /* as a size: nothing is answered, and all is closed */

/* One answer. */
struct lie {
	struct ucm_serve_answer head;
	const void *items;
	uint32_t size; /* of the items; END */
	uint32_t cut;  /* bytes of all that are left out, from the end */
	int fds;       /* so many descriptors */
	int memory;    /* of this, if it is not 0; else of a file */
	bool unasked;  /* it does not wait for a message */
};

static struct liar {
	int listening;
	pthread_t thread;
	bool is_over_first; /* before the client sends */
	const struct lie *lies[4];
} liar;

/* The client's, and the liar's. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (liar.is_over_first && !pthread_equal(pthread_self(), liar.thread)) {
		pthread_join(liar.thread, NULL);
		liar.is_over_first = false;
	}
	return syscall(SYS_sendmsg, fd, message, flags);
}

static void send_lie(int fd, const struct lie *lie)
{
	struct iovec parts[] = {
		{ (void *)&lie->head, sizeof(lie->head) },
		{ (void *)lie->items, lie->size },
	};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(253 * sizeof(int))];
	} control = { .head = { .cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	size_t bytes = (size_t)lie->fds * sizeof(int);
	int sent = lie->memory ? lie->memory : fd;

	if (lie->cut <= lie->size) {
		parts[1].iov_len -= lie->cut;
	} else {
		parts[0].iov_len -= lie->cut - lie->size;
		parts[1].iov_len = 0;
	}
	if (bytes) {
		control.head.cmsg_len = CMSG_LEN(bytes);
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(bytes);
	}
	for (int i = 0; i < lie->fds; i++)
		memcpy(CMSG_DATA(&control.head) + (size_t)i * sizeof(int),
		       &sent, sizeof(int));
	sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* At once, as a server does that refuses: what comes is read, or the client would
 * not see the answer. Else when the client closes its end. */
static void end(int fd, bool at_once)
{
	char byte;

	if (at_once)
		shutdown(fd, SHUT_RDWR);
	while (recv(fd, &byte, 1, at_once ? MSG_DONTWAIT : 0) > 0)
		;
	close(fd);
}

static void *lie_main(void *arg)
{
	char message[UCM_SERVE_MESSAGE_MAX];
	int fd = accept4(liar.listening, NULL, NULL, SOCK_CLOEXEC);

	(void)arg;
	for (unsigned i = 0; i < 4 && liar.lies[i]; i++) {
		const struct lie *lie = liar.lies[i];

		if (!lie->unasked && recv(fd, message, sizeof(message), 0) <= 0)
			break;
		if (lie->size == END) {
			end(fd, true);
			return NULL;
		}
		send_lie(fd, lie);
	}
	end(fd, liar.lies[0]->unasked);
	return NULL;
}

static const char *where(void)
{
	return fx_path("$/socket");
}

static void setup(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	fx_setup();
	strcpy(address.sun_path, where());
	liar.listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(liar.listening, (struct sockaddr *)&address,
			      sizeof(address)), 0);
	ck_assert_int_eq(listen(liar.listening, 4), 0);
}

static void teardown(void)
{
	close(liar.listening);
	fx_teardown();
}

static void begin(const struct lie *first, const struct lie *second,
		  const struct lie *third)
{
	liar.lies[0] = first;
	liar.lies[1] = second;
	liar.lies[2] = second ? third : NULL;
	ck_assert_int_eq(pthread_create(&liar.thread, NULL, lie_main, NULL), 0);
}

/* The number of the next descriptor: of as many as are open below. */
static unsigned count_fds(void)
{
	unsigned num = 0;

	for (int i = 0; i < 1024; i++)
		num += fcntl(i, F_GETFD) >= 0;
	return num;
}

static int sealed_memory(unsigned seals, off_t size)
{
	int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, size), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- hello ---- */

static const struct ucm_serve_hello true_hello = { .version =
							   UCM_SERVE_VERSION };
static const struct ucm_serve_hello old_hello = { .version =
							  UCM_SERVE_VERSION + 1 };
static const struct ucm_serve_hello index_hello = {
	.version = UCM_SERVE_VERSION, .index_bytes = 8192,
};
static const struct ucm_serve_hello both_hello = {
	.version = UCM_SERVE_VERSION, .index_bytes = 8192, .budget_bytes = 1,
};
#define HELLO(hello, n)                                                      \
	.head = { .verb = UCM_SERVE_HELLO, .descriptors = (n) },             \
	.items = &(hello), .size = sizeof(hello), .fds = (n)

static const char zeros[65536];
static const struct lie truth = { HELLO(true_hello, 0) };

static const struct {
	struct lie lie;
	int want;
} hellos[] = {
	{ { HELLO(true_hello, 0) }, 0 },
	{ { HELLO(old_hello, 0) }, -EPROTONOSUPPORT },
	{ { HELLO(true_hello, 0), .cut = 1 }, -EPROTO },
	{ { HELLO(true_hello, 0), .cut = sizeof(true_hello) }, -EPROTO },
	{ { HELLO(true_hello, 0), .cut = sizeof(true_hello) + 1 }, -EPROTO },
	{ { HELLO(true_hello, 0), .cut = sizeof(true_hello) + 15 }, -EPROTO },
	{ { .head = { .verb = UCM_SERVE_HELLO }, .items = zeros, .size = 49 },
	  -EPROTO },
	{ { .head = { .verb = UCM_SERVE_HELLO }, .items = zeros,
	    .size = 60000 }, -EPROTO },
	{ { .head = { .verb = UCM_SERVE_LOOKUP }, .items = &true_hello,
	    .size = sizeof(true_hello) }, -EPROTO },
	{ { .head = { .result = -EACCES } }, -EACCES },
	{ { .head = { .result = -EACCES }, .unasked = true }, -EACCES },
	{ { .head = { .result = 1 } }, -EPROTO },
	{ { .head = { .verb = UCM_SERVE_HELLO }, .size = END }, -ENOTCONN },
	{ { .size = END, .unasked = true }, -ENOTCONN },
	/* descriptors: none where there should be, one too many, two */
	{ { HELLO(index_hello, 0) }, -EPROTO },
	{ { HELLO(true_hello, 1) }, -EPROTO },
	{ { HELLO(both_hello, 1) }, -EPROTO },
	{ { HELLO(true_hello, 3) }, -EPROTO },
	{ { HELLO(true_hello, 253) }, -EMFILE },
	{ { .head = { .verb = UCM_SERVE_HELLO, .descriptors = 1 },
	    .items = &index_hello, .size = sizeof(index_hello) }, -EPROTO },
	{ { .head = { .verb = UCM_SERVE_HELLO }, .items = &index_hello,
	    .size = sizeof(index_hello), .fds = 1 }, -EPROTO },
	/* a socket, and no memory */
	{ { HELLO(index_hello, 1) }, -EPROTO },
	{ { HELLO(both_hello, 2) }, -EPROTO },
	{ { .head = { .verb = UCM_SERVE_HELLO, .result = -EIO }, .fds = 2 },
	  -EIO },
	/* descriptors, and no byte */
	{ { HELLO(both_hello, 2), .cut = sizeof(both_hello) + 16 }, -ENOTCONN },
};

UNIT_TEST(a_hello_is_believed_as_far_as_it_can_be, .rows = NUM_ROWS(hellos))
{
	struct ucm_client *client = NULL;
	struct ucm_serve_hello hello;
	unsigned before = count_fds();
	int index, budget;

	begin(&truth, &hellos[_i].lie, NULL);
	ck_assert_int_eq(ucm_client_connect(where(), &client), 0);
	ck_assert_int_eq(ucm_client_hello(client, &hello, &index, &budget),
			 hellos[_i].want);
	ucm_client_close(client);
	pthread_join(liar.thread, NULL);
	ck_assert_uint_eq(count_fds(), before);
}

/* It is not asked for memory. */
static const struct {
	struct lie lie;
	int want;
} firsts[] = {
	{ { HELLO(old_hello, 0) }, -EPROTONOSUPPORT },
	{ { HELLO(index_hello, 0) }, -EPROTO },
	{ { HELLO(index_hello, 1) }, -EPROTO },
	{ { HELLO(true_hello, 1) }, -EPROTO },
	{ { HELLO(true_hello, 0), .cut = 1 }, -EPROTO },
	{ { .head = { .verb = UCM_SERVE_HELLO }, .size = END }, -ENOTCONN },
};

UNIT_TEST(a_connection_begins_with_a_hello, .rows = NUM_ROWS(firsts))
{
	struct ucm_client *client = NULL;
	unsigned before = count_fds();

	begin(&firsts[_i].lie, NULL, NULL);
	ck_assert_int_eq(ucm_client_connect(where(), &client), firsts[_i].want);
	ck_assert_ptr_null(client);
	pthread_join(liar.thread, NULL);
	ck_assert_uint_eq(count_fds(), before);
}

/* The daemon has refused, and closed its end, before the hello is sent. */
UNIT_TEST(a_refusal_that_came_first_is_heard)
{
	static const struct lie refusal = { .head = { .result = -EACCES },
					    .unasked = true };
	struct ucm_client *client = NULL;
	unsigned before = count_fds();

	liar.is_over_first = true;
	begin(&refusal, NULL, NULL);
	ck_assert_int_eq(ucm_client_connect(where(), &client), -EACCES);
	ck_assert(!liar.is_over_first);
	ck_assert_uint_eq(count_fds(), before);
}

static const struct {
	unsigned seals;
	off_t size;
	int want;
} memories[] = {
	{ 0, 8192, -EPROTO },
	{ F_SEAL_GROW, 8192, -EPROTO },
	{ F_SEAL_SHRINK, 8192, 0 },
	{ F_SEAL_SHRINK, 16384, 0 },
	{ F_SEAL_SHRINK, 8191, -EPROTO },
	{ F_SEAL_SHRINK, 0, -EPROTO },
};

UNIT_TEST(memory_stays_as_long_as_it_is_called, .rows = NUM_ROWS(memories))
{
	struct lie lie = { HELLO(index_hello, 1) };
	struct ucm_serve_hello hello;
	struct ucm_client *client = NULL;
	unsigned before = count_fds();
	int index, budget;

	lie.memory = sealed_memory(memories[_i].seals, memories[_i].size);
	begin(&truth, &lie, NULL);
	ck_assert_int_eq(ucm_client_connect(where(), &client), 0);
	ck_assert_int_eq(ucm_client_hello(client, &hello, &index, &budget),
			 memories[_i].want);
	if (!memories[_i].want) {
		ck_assert_uint_eq(hello.index_bytes, 8192);
		ck_assert_int_eq(fcntl(index, F_GETFD), FD_CLOEXEC);
		ck_assert_int_eq(budget, -1);
		close(index);
	}
	ucm_client_close(client);
	pthread_join(liar.thread, NULL);
	close(lie.memory);
	ck_assert_uint_eq(count_fds(), before);
}

/* ---- where there is no daemon ---- */

UNIT_TEST(what_is_no_socket_is_no_daemon, .rows = 6)
{
	struct ucm_client *client;
	char long_path[300];

	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = '\0';
	fx_put(fx_path("$/file"), "x", 1);
	fx_mkdirs(fx_path("$/folder"));
	fx_mkdirs(fx_path("$/mount/.ucmfs"));
	fx_mkdirs(fx_path("$/dead/.ucmfs"));
	ck_assert_int_eq(symlink(fx_path("$/none"),
				 fx_path("$/dead/.ucmfs/socket")), 0);
	switch (_i) {
	case 0:
		ck_assert_int_eq(ucm_client_connect(fx_path("$/none"), &client),
				 -ENOENT);
		break;
	case 1:
		ck_assert_int_eq(ucm_client_connect(fx_path("$/file"), &client),
				 -ENOENT);
		break;
	case 2:
		ck_assert_int_eq(ucm_client_connect(fx_path("$/folder"),
						    &client), -ENOENT);
		break;
	case 3:
		ck_assert_int_eq(ucm_client_connect(fx_path("$/mount"),
						    &client), -ENOENT);
		break;
	case 4:
		ck_assert_int_eq(ucm_client_connect(fx_path("$/dead"), &client),
				 -ENOENT);
		break;
	case 5:
		ck_assert_int_eq(ucm_client_connect(long_path, &client),
				 -ENAMETOOLONG);
		break;
	}
}

UNIT_TEST(a_dead_daemons_socket_refuses)
{
	struct ucm_client *client;
	int listening = liar.listening;

	close(listening);
	ck_assert_int_eq(ucm_client_connect(where(), &client), -ECONNREFUSED);
	liar.listening = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

UNIT_TEST(another_kind_of_socket_is_no_daemons)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucm_client *client;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, fx_path("$/stream"));
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address,
			      sizeof(address)), 0);
	ck_assert_int_eq(listen(fd, 4), 0);
	ck_assert_int_eq(ucm_client_connect(fx_path("$/stream"), &client),
			 -ENOENT);
	close(fd);
}

/* As a mount has it: .ucmfs/socket leads there. */
UNIT_TEST(a_mount_leads_to_its_socket)
{
	struct ucm_client *client;

	fx_mkdirs(fx_path("$/mount/.ucmfs"));
	ck_assert_int_eq(symlink(where(), fx_path("$/mount/.ucmfs/socket")), 0);
	begin(&truth, NULL, NULL);
	ck_assert_int_eq(ucm_client_connect(fx_path("$/mount"), &client), 0);
	ucm_client_close(client);
	pthread_join(liar.thread, NULL);
}

/* ---- answers of items ---- */

#define LOOKED_UP(n, of_items)                                               \
	.head = { .verb = UCM_SERVE_LOOKUP, .num = (n) },                    \
	.items = (of_items), .size = (n) * sizeof(int32_t)
static const int32_t ones[4] = { 1, 1, 1, 1 };

static const struct {
	struct lie lie;
	int want;
	bool broken; /* and no other request is made */
} items[] = {
	{ { LOOKED_UP(2, ones) }, 0, false },
	{ { LOOKED_UP(1, ones) }, -EPROTO, false },
	{ { LOOKED_UP(2, ones), .cut = 1 }, -EPROTO, false },
	{ { LOOKED_UP(2, ones), .cut = 8 + 16 - 1 }, -EPROTO, false },
	{ { LOOKED_UP(3, ones) }, -EPROTO, true },
	{ { LOOKED_UP(10000, zeros) }, -EPROTO, true },
	{ { .head = { .verb = UCM_SERVE_TOUCH, .num = 2 }, .items = ones,
	    .size = 8 }, -EPROTO, false },
	{ { .head = { .result = -ENOENT } }, -ENOENT, false },
	{ { .head = { .result = 2 } }, -EPROTO, false },
	{ { LOOKED_UP(2, ones), .fds = 1 }, 0, false },
	{ { .head = { .verb = UCM_SERVE_LOOKUP, .descriptors = 1 },
	    .items = ones, .size = 8, .fds = 1 }, -EPROTO, false },
	{ { LOOKED_UP(2, ones), .fds = 253 }, -EMFILE, false },
	{ { .size = END }, -ENOTCONN, true },
};

UNIT_TEST(items_are_believed_as_far_as_they_can_be, .rows = NUM_ROWS(items))
{
	static const struct lie next = { LOOKED_UP(1, ones) };
	const struct ucm_id ids[2] = { { { 1 } }, { { 2 } } };
	struct ucm_client *client;
	unsigned before = count_fds();
	int32_t results[2] = { -1, -1 };
	int err;

	begin(&truth, &items[_i].lie, &next);
	ck_assert_int_eq(ucm_client_connect(where(), &client), 0);
	ck_assert_int_eq(ucm_client_ids(client, UCM_SERVE_LOOKUP, NULL, 0,
					ids, 2, results), items[_i].want);
	err = ucm_client_ids(client, UCM_SERVE_LOOKUP, NULL, 0, ids, 1,
			     results);
	ck_assert_int_eq(err, items[_i].broken ? -ENOTCONN : 0);
	ucm_client_close(client);
	pthread_join(liar.thread, NULL);
	ck_assert_uint_eq(count_fds(), before);
}

/* ---- answers of descriptors ---- */

static const struct ucm_serve_opened good2[2] = { { .size = 1 }, { .size = 2 } };
static const struct ucm_serve_opened good1[2] = { { .result = -ENOENT },
						  { .size = 2 } };
static const struct ucm_serve_opened good0[2] = { { .result = -ENOENT },
						  { .result = -EIO } };
/* A number that is a descriptor here, and not the caller's to close. */
static const struct ucm_serve_opened theirs[2] = { { .result = 2 },
						   { .size = 2 } };
#define OPENED(of_items, n)                                                  \
	.head = { .verb = UCM_SERVE_OPEN, .num = 2, .descriptors = (n) },    \
	.items = (of_items), .size = sizeof(of_items), .fds = (n)

static const struct {
	struct lie lie;
	int want;
	int num; /* that are got */
} opens[] = {
	{ { OPENED(good2, 2) }, 0, 2 },
	{ { OPENED(good1, 1) }, 0, 1 },
	{ { OPENED(good0, 0) }, 0, 0 },
	{ { OPENED(good2, 1) }, -EPROTO, 0 },
	{ { OPENED(good2, 0) }, -EPROTO, 0 },
	{ { OPENED(good1, 2) }, -EPROTO, 0 },
	{ { OPENED(good0, 1) }, -EPROTO, 0 },
	{ { OPENED(good2, 3) }, -EPROTO, 0 },
	{ { OPENED(good2, 253) }, -EMFILE, 0 },
	{ { OPENED(theirs, 1) }, -EPROTO, 0 },
	{ { OPENED(theirs, 2) }, -EPROTO, 0 },
	{ { OPENED(good2, 2), .cut = 1 }, -EPROTO, 0 },
	{ { OPENED(good2, 2), .cut = sizeof(good2) + 1 }, -EPROTO, 0 },
	{ { .head = { .verb = UCM_SERVE_OPEN, .result = -EACCES }, .fds = 2 },
	  -EACCES, 0 },
	{ { .size = END }, -ENOTCONN, 0 },
};

UNIT_TEST(descriptors_are_those_of_the_good_items, .rows = NUM_ROWS(opens))
{
	const struct ucm_id ids[2] = { { { 1 } }, { { 2 } } };
	struct ucm_client *client;
	unsigned before = count_fds();
	int fds[2] = { 77777, 77777 };

	begin(&truth, &opens[_i].lie, NULL);
	ck_assert_int_eq(ucm_client_connect(where(), &client), 0);
	ck_assert_int_eq(ucm_client_open(client, NULL, ids, 2, fds, NULL),
			 opens[_i].want);
	for (unsigned i = 0; i < 2; i++) {
		bool got = i >= 2u - (unsigned)opens[_i].num;

		ck_assert(got ? fcntl(fds[i], F_GETFD) == FD_CLOEXEC
			      : fds[i] < 0);
		if (got)
			close(fds[i]);
	}
	ucm_client_close(client);
	pthread_join(liar.thread, NULL);
	ck_assert_int_ge(fcntl(2, F_GETFD), 0);
	ck_assert_uint_eq(count_fds(), before);
}

/* What the first of two messages has brought is lost with the second. */
UNIT_TEST(a_part_that_fails_takes_the_others_with_it, .rows = 2)
{
	static struct ucm_serve_opened all[UCM_SERVE_DESCRIPTORS];
	static const struct lie first = {
		.head = { .verb = UCM_SERVE_OPEN,
			  .descriptors = UCM_SERVE_DESCRIPTORS },
		.items = all, .size = sizeof(all),
		.fds = UCM_SERVE_DESCRIPTORS,
	};
	static const struct lie second[2] = { { OPENED(good2, 1) },
					      { .size = END } };
	static struct ucm_id ids[UCM_SERVE_DESCRIPTORS + 2];
	static int fds[UCM_SERVE_DESCRIPTORS + 2];
	struct ucm_client *client;
	unsigned before = count_fds();
	int want = _i ? -ENOTCONN : -EPROTO;

	begin(&truth, &first, &second[_i]);
	ck_assert_int_eq(ucm_client_connect(where(), &client), 0);
	ck_assert_int_eq(ucm_client_open(client, NULL, ids, NUM_ROWS(ids), fds,
					 NULL), want);
	for (unsigned i = 0; i < NUM_ROWS(fds); i++)
		must(fds[i] == want);
	ucm_client_close(client);
	pthread_join(liar.thread, NULL);
	ck_assert_uint_eq(count_fds(), before);
}

#define TEXT(n)                                                              \
	.head = { .verb = UCM_SERVE_TEXT, .descriptors = (n) }, .fds = (n)

static const struct {
	struct lie lie;
	int want;
} texts[] = {
	{ { TEXT(1) }, 0 },
	{ { TEXT(0) }, -EPROTO },
	{ { TEXT(2) }, -EPROTO },
	{ { TEXT(1), .items = zeros, .size = 1 }, -EPROTO },
	{ { .head = { .verb = UCM_SERVE_TEXT, .result = -EIO }, .fds = 1 },
	  -EIO },
};

UNIT_TEST(one_descriptor_is_one, .rows = NUM_ROWS(texts))
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_TEXT };
	struct ucm_client *client;
	unsigned before = count_fds();
	int fd = -7;

	begin(&truth, &texts[_i].lie, NULL);
	ck_assert_int_eq(ucm_client_connect(where(), &client), 0);
	ck_assert_int_eq(ucm_client_call(client, &head, NULL, 0, NULL, 0, &fd),
			 texts[_i].want);
	ck_assert(texts[_i].want ? fd == -7 : !close(fd));
	ucm_client_close(client);
	pthread_join(liar.thread, NULL);
	ck_assert_uint_eq(count_fds(), before);
}

/* ---- names of spaces ---- */

UNIT_TEST(a_name_that_is_too_long_is_no_spaces)
{
	const struct ucm_id id = { { 1 } };
	char name[UCM_SERVE_SPACE_MAX + 1];
	struct ucm_client *client;
	int32_t result;
	int fd;

	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	begin(&truth, NULL, NULL);
	ck_assert_int_eq(ucm_client_connect(where(), &client), 0);
	ck_assert_int_eq(ucm_client_ids(client, UCM_SERVE_LOOKUP, name, 0,
					&id, 1, &result), -ENOENT);
	ck_assert_int_eq(ucm_client_open(client, name, &id, 1, &fd, NULL),
			 -ENOENT);
	ucm_client_close(client);
	pthread_join(liar.thread, NULL);
}
