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
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALICE 4321
#define BOB 4322

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
	struct ucm_control_directory directory;
	struct ucm_serve_space space;
	struct ucm_control_place place;
	const struct ucm_serve_request locate = { .verb = UCM_SERVE_LOCATE };
	int fd;

	(void)arg;
	must(!become(ALICE));
	must(one(UCM_SERVE_LOOKUP, &file) == 1);
	must(!one(UCM_SERVE_TOUCH, &file));
	must(!one(UCM_SERVE_LEASE, &file)); /* gives none back */
	must(!ucm_client_items(client, &locate, NULL, &file.key.id, 16, 1,
			       &place, sizeof(place)) && !place.result);
	must(!call(UCM_SERVE_STATISTICS, 0, &statistics, sizeof(statistics),
		   NULL));
	must(!call(UCM_SERVE_DIRECTORY, 0, &directory, sizeof(directory),
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
		UCM_SERVE_LOOKUP, UCM_SERVE_TOUCH, UCM_SERVE_LEASE,
		UCM_SERVE_REMOVE,
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
