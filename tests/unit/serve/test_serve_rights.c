/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_serve_rights.c - what users may do who are neither root nor the daemon's.
 *
 * Peers are children that take another user's id. The test's directory is only
 * root's, so they connect from within it.
 */
#include <config.h>

#include "tests/unit/serve_fixture.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/unit/child.h"

#define ALICE 4321
#define BOB 4322
#define CAROL 4323

static struct ucm_client *client;
static struct fx_file file, other;

static bool is_root(void)
{
	return !geteuid() || unit_skip("only root has other users' rights");
}

static void setup(void)
{
	fx_setup_served();
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(chmod(fx_path("$"), 0755), 0);
}

/* In a child: from now on it is that user, and connected. */
static int become(uid_t user)
{
	must(!chdir(fx_path("$")));
	must(!setresgid(user, user, user) && !setresuid(user, user, user));
	return ucm_client_connect("socket", &client);
}

static int one_in(const char *space, enum ucm_serve_verb verb,
		  const struct fx_file *of)
{
	return fx_one_id(client, verb, space, of);
}

static int one(enum ucm_serve_verb verb, const struct fx_file *of)
{
	return one_in(NULL, verb, of);
}

static int call(enum ucm_serve_verb verb, uint32_t argument, void *out,
		size_t size, int *fd_out)
{
	const struct ucm_serve_request head = { .verb = verb,
						.argument = argument };

	return ucm_client_call(client, &head, NULL, 0, out, size, fd_out);
}

static int mkspace(const char *name, uint32_t mode)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_MKSPACE,
						.argument = mode };

	return ucm_client_items(client, &head, name, NULL, 0, 0, NULL, 0);
}

static int create(const char *space, const struct fx_file *of)
{
	struct ucm_serve_created created;
	int fd;
	int err = ucm_client_create(client, space, &of->key.id, 1, of->len, &fd,
				    &created);

	if (err)
		return err;
	if (fd >= 0)
		close(fd);
	return fd < 0 ? fd : 0;
}

/* The default space, and with it the store, is that user's. */
static void give_store(uid_t user)
{
	ck_assert_int_eq(ucm_store_chown(fx_set, fx_set->names.spaces[0], user,
					 user), 0);
}

static char *text(void *arg, uint32_t what, size_t *len_out)
{
	(void)arg, (void)what;
	*len_out = 4;
	return strdup("text");
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .only_if = is_root);

/* ---- the owner's ---- */

static const struct {
	enum ucm_serve_verb verb;
	size_t in;
} owners[] = {
	{ UCM_SERVE_PIN, sizeof(struct ucm_id) },
	{ UCM_SERVE_UNPIN, sizeof(struct ucm_id) },
	{ UCM_SERVE_EVICT, sizeof(struct ucm_id) },
	{ UCM_SERVE_WARM, sizeof(struct ucm_id) },
	{ UCM_SERVE_CHECK, sizeof(struct ucm_id) },
	{ UCM_SERVE_PATH, sizeof(struct ucm_id) },
	{ UCM_SERVE_VERIFIED, sizeof(struct ucm_control_verified_block) },
	{ UCM_SERVE_DRAIN, 1 },
	{ UCM_SERVE_FLUSH, 0 },
	{ UCM_SERVE_RESCAN, 0 },
	{ UCM_SERVE_CHECKPOINT, 0 },
};

static int ask_owners(unsigned i)
{
	const char zero[64] = { 0 };
	char out[UCM_SERVE_PATH_MAX];
	const struct ucm_serve_request head = {
		.verb = owners[i].verb,
		.num = owners[i].in ? 1 : 0,
	};
	size_t size = owners[i].in == 0 ? 0
		      : owners[i].verb == UCM_SERVE_PATH ? UCM_SERVE_PATH_MAX
		      : owners[i].verb == UCM_SERVE_DRAIN
			      ? sizeof(struct ucm_control_drain)
			      : sizeof(int32_t);

	return ucm_client_call(client, &head, zero, owners[i].in, out, size,
			       NULL);
}

static void be_refused(void *arg)
{
	int fd;

	(void)arg;
	must(!become(ALICE));
	for (unsigned i = 0; i < NUM_ROWS(owners); i++)
		must(ask_owners(i) == -EPERM);
	must(call(UCM_SERVE_TEXT, UCM_TEXT_STATS, NULL, 0, &fd) == -EPERM);
	must(call(UCM_SERVE_TEXT, UCM_TEXT_CONFIG, NULL, 0, &fd) == -EPERM);
}

static void serve_texts(void)
{
	fx_stop_serving();
	fx_terms.text = text;
	fx_serve();
}

UNIT_TEST(the_stores_verbs_are_its_owners)
{
	serve_texts();
	fx_in_child(be_refused, NULL);
	fx_serves(&file);
}

static void be_served(void *arg)
{
	int fd;

	(void)arg;
	must(!become(ALICE));
	for (unsigned i = 0; i < NUM_ROWS(owners); i++) {
		int err = ask_owners(i);

		/* of a path and a directory that are none */
		must(!err || err == -ENOENT);
	}
	must(!call(UCM_SERVE_TEXT, UCM_TEXT_STATS, NULL, 0, &fd));
	close(fd);
	must(!one(UCM_SERVE_PIN, &file));
	must(one(UCM_SERVE_EVICT, &file) == -EPERM); /* pinned */
	must(!one(UCM_SERVE_UNPIN, &file));
	must(!one(UCM_SERVE_REMOVE, &file));
	must(!fx_put_block(client, NULL, &other));
}

UNIT_TEST(the_stores_owner_need_not_be_root)
{
	serve_texts();
	give_store(ALICE);
	fx_in_child(be_served, NULL);
	fx_misses(&file);
	fx_serves(&other);
}

/* ---- everybody's ---- */

static void read_only(void *arg)
{
	struct ucm_control_statistics statistics;
	struct ucm_serve_space space;
	struct ucm_control_place place;
	const struct ucm_serve_request locate = { .verb = UCM_SERVE_LOCATE };
	int fd;

	(void)arg;
	must(!become(ALICE));
	must(one(UCM_SERVE_LOOKUP, &file) == 1);
	must(!one(UCM_SERVE_TOUCH, &file));
	must(!ucm_client_items(client, &locate, NULL, &file.key.id, 16, 1,
			       &place, sizeof(place)) && !place.result);
	must(!call(UCM_SERVE_STATISTICS, 0, &statistics, sizeof(statistics),
		   NULL));
	must(!call(UCM_SERVE_SPACE, 0, &space, sizeof(space), NULL));
	must(!call(UCM_SERVE_TEXT, UCM_TEXT_METRICS, NULL, 0, &fd));
	close(fd);
	fd = fx_open_one(client, &file);
	must(fx_has_bytes(fd, &file));
	/* but not written: neither the store nor the descriptor */
	must(pwrite(fd, "x", 1, 0) == -1 && errno == EBADF);
	must(ftruncate(fd, 0));
	must(one(UCM_SERVE_REMOVE, &file) == -EACCES);
	must(create(NULL, &other) == -EACCES);
}

UNIT_TEST(everybody_reads_and_only_the_owner_writes)
{
	serve_texts();
	fx_in_child(read_only, NULL);
	fx_serves(&file);
}

/* ---- spaces ---- */

static void make_spaces(void *arg)
{
	(void)arg;
	must(!become(ALICE));
	must(!mkspace("open", 0755));
	must(!mkspace("private", 0700));
	must(!fx_put_block(client, "open", &file));
	must(!fx_put_block(client, "private", &file));
	must(one_in("private", UCM_SERVE_LOOKUP, &file) == 1);
}

static void use_others_spaces(void *arg)
{
	static const enum ucm_serve_verb verbs[] = {
		UCM_SERVE_LOOKUP, UCM_SERVE_TOUCH, UCM_SERVE_REMOVE,
	};
	struct ucm_serve_request space = { .verb = UCM_SERVE_SPACE,
					   .space = "private" };
	const struct ucm_serve_request list = { .verb = UCM_SERVE_LIST,
						.space = "private" };
	struct ucm_serve_space out;
	int fd;

	(void)arg;
	must(!become(BOB));
	for (unsigned i = 0; i < NUM_ROWS(verbs); i++)
		must(one_in("private", verbs[i], &file) == -EACCES);
	must(ucm_client_open(client, "private", &file.key.id, 1, &fd, NULL) ==
	     -EACCES);
	must(create("private", &other) == -EACCES);
	must(ucm_client_call(client, &space, NULL, 0, &out, sizeof(out),
			     NULL) == -EACCES);
	must(ucm_client_call(client, &list, NULL, 0, NULL, 0, &fd) == -EACCES);
	must(one_in("open", UCM_SERVE_LOOKUP, &file) == 1);
	must(one_in("open", UCM_SERVE_REMOVE, &file) == -EACCES);
	must(create("open", &other) == -EACCES);
	must(mkspace("open", 0755) == -EEXIST);
}

static void own_spaces(void *arg)
{
	(void)arg;
	must(!become(ALICE));
	must(!one_in("private", UCM_SERVE_REMOVE, &file));
	must(!one_in("open", UCM_SERVE_REMOVE, &file));
	must(one_in("open", UCM_SERVE_PIN, &file) == -EPERM);
}

UNIT_TEST(a_space_is_its_makers)
{
	struct ucm_space *space;

	fx_in_child(make_spaces, NULL);
	space = ucm_namespace_find(&fx_set->names, "private");
	ck_assert_ptr_nonnull(space);
	ck_assert_uint_eq(space->uid, ALICE);
	ck_assert(space->is_private);
	fx_in_child(use_others_spaces, NULL);
	fx_in_child(own_spaces, NULL);
}

/* Root, whatever is private. */
UNIT_TEST(the_daemons_user_may_do_all)
{
	fx_in_child(make_spaces, NULL);
	client = fx_client();
	ck_assert_int_eq(one_in("private", UCM_SERVE_LOOKUP, &file), 1);
	ck_assert_int_eq(one_in("private", UCM_SERVE_PIN, &file), 0);
	ck_assert_int_eq(one_in("private", UCM_SERVE_REMOVE, &file), 0);
	ucm_client_close(client);
}

static void make_too_many(void *arg)
{
	char name[8] = "0";

	(void)arg;
	must(!become(ALICE));
	for (unsigned i = 0; i < fx_config.spaces; i++, name[0]++)
		must(!mkspace(name, 0755));
	must(mkspace(name, 0755) == -EDQUOT);
}

UNIT_TEST(a_user_makes_so_many_spaces_and_no_more)
{
	fx_config.spaces = 3;
	fx_in_child(make_too_many, NULL);
}

/* A file that was created while its space was open to all is committed by who
 * has created it. */
static void commit_elsewhere(void *arg)
{
	uint32_t draft;

	(void)arg;
	must(!become(BOB));
	draft = 1; /* another peer's */
	must(fx_commit_draft(client, draft) == -EINVAL);
	must(!ucm_client_cancel(client, &draft, 1));
}

UNIT_TEST(another_peers_file_is_out_of_reach)
{
	uint32_t draft;

	client = fx_client();
	draft = fx_draft(client, &other, other.len);
	ck_assert_uint_eq(draft, 1);
	fx_in_child(commit_elsewhere, NULL);
	ck_assert_int_eq(fx_commit_draft(client, draft), 0);
	ucm_client_close(client);
}

/* ---- all verbs ---- */

/*
 * What a request of no block gets, in the default space, in one that is open to all, and
 * in a private one, of root, the store's owner (ALICE), the owner of the two other
 * spaces (CAROL) and another (BOB): served (o), -EACCES (A), -EPERM (P), -EEXIST (E), -ENOENT (N) or
 * -EINVAL (I).
 */
#define ENDED UINT32_MAX /* the flag, in place of an argument */
static const struct {
	enum ucm_serve_verb verb;
	uint32_t argument;
	size_t out;
	const char *wants[3];
} verbs[] = {
	{ UCM_SERVE_HELLO, 0, sizeof(struct ucm_serve_hello),
	  { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_LOOKUP, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_TOUCH, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_TOUCH, ENDED, 0, { "ooAA", "oAoA", "oAoA" } },
	{ UCM_SERVE_PIN, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_UNPIN, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_EVICT, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_REMOVE, 0, 0, { "ooAA", "oAoA", "oAoA" } },
	{ UCM_SERVE_WARM, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_CHECK, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_OFFER, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_VERIFIED, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_LOCATE, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_PATH, 0, UCM_SERVE_PATH_MAX, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_STATISTICS, 0, sizeof(struct ucm_control_statistics),
	  { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_DRAIN, UCM_DRAIN_ASK, sizeof(struct ucm_control_drain),
	  { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_FLUSH, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_RESCAN, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_CHECKPOINT, 0, 0, { "ooPP", "ooPP", "oAPP" } },
	{ UCM_SERVE_TEXT, UCM_TEXT_STATS, 0, { "ooPP", "ooPP", "oAPA" } },
	{ UCM_SERVE_TEXT, UCM_TEXT_CONFIG, 0, { "ooPP", "ooPP", "oAPA" } },
	{ UCM_SERVE_TEXT, UCM_TEXT_METRICS, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_TEXT, UCM_TEXT_MANIFEST, 0, { "NNNN", "NNNN", "NANA" } },
	{ UCM_SERVE_TEXT, UCM_TEXT_SPACES, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_OPEN, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_CREATE, 0, 0, { "ooAA", "oAoA", "oAoA" } },
	/* these, and REOPEN: of drafts, which only their peer can name */
	{ UCM_SERVE_COMMIT, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_CANCEL, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_MKSPACE, 0755, 0, { "EEEE", "EEEE", "EEEE" } },
	{ UCM_SERVE_SPACE, 0, sizeof(struct ucm_serve_space),
	  { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_REOPEN, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_LIST, 0, 0, { "oooo", "oooo", "oAoA" } },
	{ UCM_SERVE_RMSPACE, 0, 0, { "IIAA", "oAoA", "oAoA" } },
};

static const char *const spaces[] = { "", "open", "private" };
static const uid_t kinds[] = { 0, ALICE, CAROL, BOB };

/* A block, or a directory, where no request can do without. */
static int ask_verb(unsigned i, const char *space)
{
	char out[UCM_SERVE_PATH_MAX];
	struct ucm_serve_request head = {
		.verb = verbs[i].verb,
		.argument = verbs[i].argument,
	};
	const void *item = verbs[i].verb == UCM_SERVE_DRAIN
				   ? (const void *)fx_set->dirs.at[0]->path
				   : &file.key.id;
	size_t in = sizeof(file.key.id);
	int fd = -1, err;

	strcpy(head.space, space);
	if (head.argument == ENDED) {
		head.argument = 0;
		head.flags = UCM_TOUCH_ENDED;
	}
	if (verbs[i].verb == UCM_SERVE_PATH)
		head.num = 1;
	if (verbs[i].verb == UCM_SERVE_DRAIN) {
		head.num = (uint32_t)strlen(item);
		in = 1;
	}
	err = ucm_client_call(client, &head, item, in, out, verbs[i].out,
			      verbs[i].verb == UCM_SERVE_TEXT ||
					      verbs[i].verb == UCM_SERVE_LIST
				      ? &fd
				      : NULL);
	if (fd >= 0)
		close(fd);
	return err;
}

static char name_of(int err)
{
	return err == 0		 ? 'o'
	       : err == -EACCES	 ? 'A'
	       : err == -EPERM	 ? 'P'
	       : err == -EEXIST	 ? 'E'
	       : err == -ENOENT	 ? 'N'
	       : err == -EINVAL	 ? 'I'
				 : '?';
}

static void ask_all_verbs(void *arg)
{
	unsigned user = *(const unsigned *)arg;

	must(!become(kinds[user]));
	for (unsigned i = 0; i < NUM_ROWS(verbs); i++) {
		for (unsigned j = 0; j < NUM_ROWS(spaces); j++) {
			int err = ask_verb(i, spaces[j]);

			if (name_of(err) != verbs[i].wants[j][user])
				ck_abort_msg("verb %u of %u in \"%s\": %s",
					     verbs[i].verb, kinds[user],
					     spaces[j], strerror(-err));
		}
	}
}

static void make_carols(void *arg)
{
	(void)arg;
	must(!become(CAROL));
	must(!mkspace("open", 0755));
	must(!mkspace("private", 0700));
	must(!fx_put_block(client, "open", &file));
	must(!fx_put_block(client, "private", &file));
}

UNIT_TEST(each_verb_is_for_those_who_may, .rows = NUM_ROWS(kinds))
{
	uint32_t next = UCM_SERVE_HELLO;

	for (unsigned i = 0; i < NUM_ROWS(verbs); i++) /* none is missing */
		next += verbs[i].verb == next;
	ck_assert_uint_eq(next, UCM_SERVE_VERBS);
	serve_texts();
	give_store(ALICE);
	fx_in_child(make_carols, NULL);
	fx_in_child(ask_all_verbs, &(unsigned){ (unsigned)_i });
}

/* ---- who may connect ---- */

static void be_turned_away(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < 200; i++) {
		unsigned before = fx_descriptors();

		if (!i)
			must(become(ALICE) == -EACCES);
		else
			must(ucm_client_connect("socket", &client) == -EACCES);
		must(!i || fx_descriptors() == before);
	}
}

static void be_let_in(void *arg)
{
	must(!become(*(const uid_t *)arg));
	must(one(UCM_SERVE_LOOKUP, &file) == 1);
}

UNIT_TEST(without_others_only_the_owner_connects)
{
	uid_t users[] = { 0, ALICE };

	fx_stop_serving();
	fx_terms.others = false;
	fx_serve();
	fx_in_child(be_turned_away, NULL);
	fx_in_child(be_let_in, &users[0]);
	give_store(ALICE);
	fx_in_child(be_let_in, &users[1]);
}

/* ---- a user who takes what others need ---- */

#define FEW 100u /* descriptors of the daemon */

static void limit_descriptors(rlim_t num)
{
	struct rlimit limit;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = num;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* More connections than the daemon could have. */
static bool connect_often(void *arg)
{
	unsigned made = 0;
	int err = become(ALICE);

	(void)arg;
	limit_descriptors(1024);
	for (; !err && made < 2 * FEW; made++)
		err = ucm_client_connect("socket", &client);
	return err == -EMFILE && made == FEW / 4;
}

UNIT_TEST(connections_leave_descriptors_for_blocks)
{
	int fds[5];
	struct ucm_id ids[5] = { file.key.id, file.key.id, file.key.id,
				 file.key.id, file.key.id };
	pid_t pid;

	fx_stop_serving();
	limit_descriptors(FEW);
	fx_serve();
	pid = child_start(connect_often, NULL);
	client = fx_client();
	ck_assert_int_eq(ucm_client_open(client, NULL, ids, 5, fds, NULL), 0);
	for (unsigned i = 0; i < 5; i++) {
		ck_assert(fx_has_bytes(fds[i], &file));
		close(fds[i]);
	}
	ck_assert_int_eq(fx_put_block(client, NULL, &other), 0);
	ucm_client_close(client);
	child_kill(pid);
	fx_wait_alone();
	limit_descriptors(1024);
}

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

static bool can_refuse_descriptors(void)
{
	int no = 0, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool can = !setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));

	close(fd);
	return is_root() &&
	       (can || unit_skip("Linux before 6.16 takes all descriptors"));
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown,
	     .only_if = can_refuse_descriptors);

/* Of a connection that has sent what is never read: its last close waits. */
static int make_lingering(void)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = 3600 };
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t len = sizeof(address);
	static const char bytes[1 << 16];
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(!bind(listening, (struct sockaddr *)&address, len));
	must(!listen(listening, 1));
	must(!getsockname(listening, (struct sockaddr *)&address, &len));
	must(!connect(fd, (struct sockaddr *)&address, len));
	must(accept(listening, NULL, NULL) >= 0); /* until the process ends */
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	must(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	return fd;
}

/* Sends it before it is refused, and leaves it to the daemon. */
static bool send_lingering(void *arg)
{
	const struct sockaddr_un address = { AF_UNIX, "socket" };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), lingering;
	struct iovec part = { "x", 1 };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)),
				.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS } };
	struct msghdr with = { .msg_iov = &part, .msg_iovlen = 1,
			       .msg_control = &control,
			       .msg_controllen = sizeof(control.room) };

	(void)arg;
	must(!chdir(fx_path("$")));
	must(!setresgid(ALICE, ALICE, ALICE) && !setresuid(ALICE, ALICE, ALICE));
	lingering = make_lingering();
	memcpy(CMSG_DATA(&control.head), &lingering, sizeof(lingering));
	must(!connect(fd, (const struct sockaddr *)&address, sizeof(address)));
	if (sendmsg(fd, &with, MSG_NOSIGNAL) != 1) {
		const int off[2] = { 0, 0 };

		setsockopt(lingering, SOL_SOCKET, SO_LINGER, off, sizeof(off));
	}
	close(lingering);
	return true;
}

/* The acceptor closes what comes with the message of a peer that it refuses. */
UNIT_TEST(a_descriptor_that_is_slow_to_close_holds_up_nobody)
{
	pid_t pids[5];

	fx_stop_serving();
	fx_terms.others = false;
	fx_serve();
	for (unsigned i = 0; i < NUM_ROWS(pids); i++)
		pids[i] = child_start(send_lingering, NULL);
	client = fx_client();
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	ucm_client_close(client);
	for (unsigned i = 0; i < NUM_ROWS(pids); i++)
		child_kill(pids[i]);
}
