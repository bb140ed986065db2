/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_served.c - spaces and their manifests by the socket of a daemon. (Those of
 * directories: test_space.c.)
 */
#include <config.h>

#include "tests/unit/serve_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucm/space.h>

#define ALICE 4321
#define BOB 4322

#define MANIFEST(layers, more)                                               \
	"{\"geometry\":{\"block_size\":16,\"dtype\":\"opaque\","             \
	"\"k_bytes\":512,\"num_layers\":" layers "}" more "}"
#define WANTED MANIFEST("2", ",\"x\":1")

static struct ucm_client *client;
static struct ucm_error error;
static struct fx_file file;
static char there[UCM_SPACE_MANIFEST_MAX];

static void close_client(void)
{
	ucm_client_close(client);
	client = NULL;
}

static void setup(void)
{
	fx_setup_served();
	fx_block(&file, 1, FX_PAGED);
	client = fx_client();
	fx_at_end(close_client);
}

static int make(const char *name, const char *manifest)
{
	memset(there, 0, sizeof(there));
	error.text[0] = '\0';
	return ucm_space_make(fx_socket(), NULL, name, manifest, there, &error);
}

static int manifest_of(const char *name)
{
	memset(there, 0, sizeof(there));
	return ucm_space_manifest(fx_socket(), NULL, name, there, &error);
}

static int mkspace(const char *name, uint32_t mode)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_MKSPACE,
						.argument = mode };

	return ucm_client_items(client, &head, name, NULL, 0, 0, NULL, 0);
}

static struct ucm_space *space_of(const char *name)
{
	struct ucm_space *space = ucm_namespace_find(&fx_set->names, name);

	ck_assert_ptr_nonnull(space);
	return space;
}

static void write_manifest(const char *name, const char *text)
{
	ck_assert_int_eq(ucm_store_write_manifest(fx_set, space_of(name), text,
						  strlen(text)), 0);
}

static void serve_again(void)
{
	close_client();
	fx_stop_serving();
	fx_serve();
	client = fx_client();
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- making ---- */

UNIT_TEST(a_space_is_made_once)
{
	ck_assert_int_eq(manifest_of("s"), -ENOENT);
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_int_eq(manifest_of("s"), 0);
	ck_assert_str_eq(there, WANTED);
	ck_assert_int_eq(make("s", " " MANIFEST(" 2", ", \"x\": 1 ")), 0);
	ck_assert_int_eq(manifest_of("s"), 0);
	ck_assert_str_eq(there, WANTED);
}

UNIT_TEST(another_manifest_is_shown)
{
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_int_eq(make("s", MANIFEST("2", ",\"x\":2")), -EEXIST);
	ck_assert_str_eq(there, WANTED);
	ck_assert_ptr_nonnull(strstr(error.text, "another manifest"));
}

UNIT_TEST(one_that_was_made_without_a_manifest_gets_it)
{
	ck_assert_int_eq(mkspace("s", 0755), 0);
	ck_assert_int_eq(manifest_of("s"), -ENOENT);
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_int_eq(manifest_of("s"), 0);
	ck_assert_str_eq(there, WANTED);
}

UNIT_TEST(a_quota_that_is_there_stays)
{
	ck_assert_int_eq(mkspace("s", 0755), 0);
	write_manifest("s", "{\"quota\": 50000}");
	ck_assert_int_eq(manifest_of("s"), -ENOENT);
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_int_eq(manifest_of("s"), 0);
	ck_assert_ptr_nonnull(strstr(there, "\"quota\": 50000"));
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_uint_eq(atomic_load(&space_of("s")->own_quota), 50000);
}

UNIT_TEST(blocks_without_a_manifest_are_left_alone)
{
	ck_assert_int_eq(mkspace("s", 0755), 0);
	ck_assert_int_eq(fx_put_block(client, "s", &file), 0);
	ck_assert_int_eq(make("s", WANTED), -ENOTEMPTY);
	ck_assert_ptr_nonnull(strstr(error.text, "blocks and no manifest"));
	ck_assert_int_eq(manifest_of("s"), -ENOENT);
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_LOOKUP, "s", &file), 1);
}

static const struct {
	const char *name, *manifest;
	int err;
	const char *why;
} bad[] = {
	{ "", WANTED, -EINVAL, "no name" },
	{ "x/y", WANTED, -EINVAL, "no name" },
	{ "s", "{}", -EINVAL, "geometry" },
	{ "s", "{\"quota\": 5}", -EINVAL, "geometry" },
	{ "s", MANIFEST("64", ""), -EFBIG, "space s" },
};

UNIT_TEST(what_is_wrong_is_said_and_makes_no_space, .rows = NUM_ROWS(bad))
{
	fx_config.block_max = 16384;
	ck_assert_int_eq(make(bad[_i].name, bad[_i].manifest), bad[_i].err);
	ck_assert_msg(strstr(error.text, bad[_i].why), "'%s'", error.text);
	ck_assert_ptr_null(ucm_namespace_find(&fx_set->names, "s"));
	ck_assert(!fx_exists(fx_path("$/a/spaces/s")));
}

/* A daemon does not count on a client that has looked. */
UNIT_TEST(a_manifest_from_elsewhere_is_checked, .rows = 3)
{
	static const struct {
		const char *text;
		size_t len;
	} texts[] = { { "x", 1 }, { WANTED "\0", sizeof(WANTED) }, { "{}", 2 } };
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_MKSPACE,
		.num = (uint32_t)texts[_i].len,
		.argument = 0755,
		.space = "s",
	};

	ck_assert_int_eq(ucm_client_call(client, &head, texts[_i].text, 1, NULL,
					 0, NULL), -EINVAL);
	ck_assert_ptr_null(ucm_namespace_find(&fx_set->names, "s"));
}

UNIT_TEST(the_longest_manifest_fits)
{
	static char text[UCM_SPACE_MANIFEST_MAX + 1];
	int len = snprintf(text, sizeof(text), "%s", MANIFEST("2", ",\"x\":\""));

	memset(text + len - 1, 'y', sizeof(text) - 1 - (size_t)len);
	memcpy(text + sizeof(text) - 4, "\"}", 3);
	ck_assert_uint_eq(strlen(text), UCM_SPACE_MANIFEST_MAX - 1);
	ck_assert_int_eq(make("s", text), 0);
	ck_assert_int_eq(manifest_of("s"), 0);
	ck_assert_str_eq(there, text);
	memcpy(text + sizeof(text) - 4, "y\"}", 4);
	ck_assert_int_eq(make("t", text), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "65535"));
}

UNIT_TEST(a_manifest_that_cannot_be_written_leaves_no_space)
{
	fx_fail("rename", 1, -ENOSPC, true);
	ck_assert_int_eq(make("s", WANTED), -ENOSPC);
	ck_assert_ptr_null(ucm_namespace_find(&fx_set->names, "s"));
	ck_assert(!fx_exists(fx_path("$/a/spaces/s")));
	ck_assert_int_eq(make("s", WANTED), 0);
}

#define MAKERS 8

static void *make_one(void *arg)
{
	static const char *const texts[] = { MANIFEST("2", ",\"who\":0"),
					     MANIFEST("2", ",\"who\":1") };
	unsigned number = *(unsigned *)arg;
	int err = ucm_space_make(fx_socket(), NULL, "s", texts[number % 2],
				 NULL, NULL);

	return (void *)(intptr_t)err;
}

UNIT_TEST(of_many_that_make_it_at_once_one_does)
{
	pthread_t threads[MAKERS];
	unsigned numbers[MAKERS], made = 0;

	for (unsigned i = 0; i < MAKERS; i++) {
		numbers[i] = i;
		ck_assert_int_eq(pthread_create(&threads[i], NULL, make_one,
						&numbers[i]), 0);
	}
	for (unsigned i = 0; i < MAKERS; i++) {
		void *result;

		pthread_join(threads[i], &result);
		made += !result;
		ck_assert(!result || (intptr_t)result == -EEXIST);
	}
	ck_assert_uint_eq(made, MAKERS / 2);
	ck_assert_int_eq(manifest_of("s"), 0);
}

UNIT_TEST(a_read_only_store_shows_its_spaces)
{
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_int_eq(mkspace("t", 0755), 0);
	fx_terms.readonly = true;
	serve_again();
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_int_eq(make("t", WANTED), -EROFS);
	ck_assert_int_eq(make("new", WANTED), -EROFS);
	ck_assert_int_eq(ucm_space_remove(fx_socket(), "s", &error), -EROFS);
	ck_assert_int_eq(manifest_of("s"), 0);
}

UNIT_TEST(no_daemon_is_said)
{
	fx_stop_serving();
	ck_assert_int_eq(make("s", WANTED), -ENOENT);
	ck_assert_ptr_nonnull(strstr(error.text, "is ucmfs mounted there?"));
	ck_assert_int_eq(ucm_space_manifest(fx_path("$"), NULL, "s", there,
					    &error), -ENOENT);
}

/* ---- listing ---- */

static int add_name(void *arg, const char *name)
{
	strcat(arg, name);
	strcat(arg, ",");
	return !strcmp(name, "stop") ? 7 : 0;
}

UNIT_TEST(all_but_the_default_one_are_listed)
{
	char names[64] = "";

	ck_assert_int_eq(ucm_space_list(fx_socket(), NULL, add_name, names,
					&error), 0);
	ck_assert_str_eq(names, "");
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_int_eq(make("t", WANTED), 0);
	ck_assert_int_eq(ucm_space_list(fx_socket(), NULL, add_name, names,
					&error), 0);
	ck_assert_str_eq(names, "s,t,");
	ck_assert_int_eq(make("stop", WANTED), 0);
	ck_assert_int_eq(make("u", WANTED), 0);
	ck_assert_int_eq(ucm_space_list(fx_socket(), NULL, add_name, names,
					&error), 7);
	ck_assert_str_eq(names, "s,t,s,t,stop,");
}

/* ---- removing ---- */

UNIT_TEST(a_space_is_removed_with_its_blocks)
{
	ck_assert_int_eq(mkspace("s", 0755), 0);
	ck_assert_int_eq(fx_put_block(client, "s", &file), 0);
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_PIN, "s", &file), 0);
	ck_assert_int_eq(ucm_space_remove(fx_socket(), "s", &error), 0);
	ck_assert(!fx_exists(fx_path("$/a/spaces/s")));
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_LOOKUP, "s", &file),
			 -ENOENT);
	ck_assert_int_eq(ucm_space_remove(fx_socket(), "s", &error), -ENOENT);
	ck_assert_ptr_nonnull(strstr(error.text, "space s"));
	ck_assert_int_eq(make("s", WANTED), 0); /* another one */
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_LOOKUP, "s", &file), 0);
}

UNIT_TEST(the_default_one_stays)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_RMSPACE };

	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_client_call(client, &head, NULL, 0, NULL, 0, NULL),
			 -EINVAL);
	fx_serves(&file);
}

static bool writes(void *arg, const struct ucm_space *space)
{
	return !strcmp(space->name, arg);
}

UNIT_TEST(one_that_is_being_written_to_stays)
{
	char name[] = "s";

	fx_terms.writes = writes;
	fx_terms.arg = name;
	serve_again();
	ck_assert_int_eq(make("s", WANTED), 0);
	ck_assert_int_eq(make("t", WANTED), 0);
	ck_assert_int_eq(ucm_space_remove(fx_socket(), "t", &error), 0);
	ck_assert_int_eq(ucm_space_remove(fx_socket(), "s", &error),
			 -ENOTEMPTY);
	ck_assert_int_eq(manifest_of("s"), 0);
}

/* ---- other users ---- */

/* In a child: from now on it is that user. */
static void become(uid_t user)
{
	must(!setresgid(user, user, user) && !setresuid(user, user, user));
}

static void make_as(uid_t user, const char *name, mode_t mask, int want)
{
	become(user);
	umask(mask);
	must(ucm_space_make("socket", NULL, name, WANTED, NULL, NULL) == want);
}

static void make_open(void *arg)
{
	(void)arg;
	make_as(ALICE, "open", 022, 0);
}

static void make_private(void *arg)
{
	(void)arg;
	make_as(ALICE, "private", 077, 0);
}

static void make_bare(void *arg)
{
	(void)arg;
	become(ALICE);
	must(!ucm_client_connect("socket", &client) && !mkspace("bare", 0755));
}

static void use_others(void *arg)
{
	(void)arg;
	become(BOB);
	must(!ucm_space_make("socket", NULL, "open", WANTED, NULL, NULL));
	must(!ucm_space_manifest("socket", NULL, "open", there, NULL));
	must(ucm_space_remove("socket", "open", NULL) == -EACCES);
	must(ucm_space_make("socket", NULL, "private", WANTED, NULL, NULL) ==
	     -EACCES);
	must(ucm_space_manifest("socket", NULL, "private", there, NULL) ==
	     -EACCES);
	must(ucm_space_remove("socket", "private", NULL) == -EACCES);
	must(ucm_space_make("socket", NULL, "bare", WANTED, NULL, NULL) ==
	     -EACCES);
}

static void remove_own(void *arg)
{
	(void)arg;
	become(ALICE);
	must(!ucm_space_remove("socket", "open", NULL));
	must(!ucm_space_remove("socket", "private", NULL));
}

UNIT_TEST(a_space_is_its_makers)
{
	if (geteuid()) {
		unit_skip("only root has other users' rights");
		return;
	}
	ck_assert_int_eq(chmod(fx_path("$"), 0755), 0);
	ck_assert_int_eq(chdir(fx_path("$")), 0);
	fx_in_child(make_open, NULL);
	fx_in_child(make_private, NULL);
	fx_in_child(make_bare, NULL);
	ck_assert(!space_of("open")->is_private);
	ck_assert_uint_eq(space_of("open")->uid, ALICE);
	ck_assert(space_of("private")->is_private);
	fx_in_child(use_others, NULL);
	ck_assert_int_eq(manifest_of("bare"), -ENOENT);
	fx_in_child(remove_own, NULL);
	ck_assert_ptr_null(ucm_namespace_find(&fx_set->names, "open"));
}
