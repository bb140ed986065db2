/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_space.c - spaces and their manifests in directories that a private daemon
 * serves. (Those of mounts are tested by tests/python/test_namespace.py.)
 */
#include <config.h>

#include <ucm/space.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/unit/store_fixture.h"

#define MANIFEST(layers, more)                                               \
	"{\"geometry\":{\"block_size\":16,\"dtype\":\"opaque\","             \
	"\"k_bytes\":512,\"num_layers\":" layers "}" more "}"

static char there[UCM_SPACE_MANIFEST_MAX];
static struct ucm_error error;

static int make(const char *tiers, const char *name, const char *manifest)
{
	memset(there, 0, sizeof(there));
	error.text[0] = '\0';
	return ucm_space_make(NULL, fx_path("%s", tiers), name, manifest, there,
			      &error);
}

static int manifest_of(const char *tiers, const char *name)
{
	memset(there, 0, sizeof(there));
	return ucm_space_manifest(NULL, fx_path("%s", tiers), name, there,
				  &error);
}

static void setup(void)
{
	fx_setup();
	fx_mkdirs(fx_path("$/a"));
	fx_mkdirs(fx_path("$/b"));
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(the_same_manifest_may_be_spelt_differently)
{
	ck_assert_int_eq(make("$/a", "s", MANIFEST("2", ",\"x\":1")), 0);
	ck_assert_int_eq(make("$/a", "s", " " MANIFEST(" 2", ", \"x\": 1 ")),
			 0);
	ck_assert_int_eq(make("$/a", "s", MANIFEST("2", ",\"x\":2")), -EEXIST);
	ck_assert_str_eq(there, MANIFEST("2", ",\"x\":1"));
}

UNIT_TEST(a_quota_says_nothing_of_the_blocks)
{
	fx_mkdirs(fx_path("$/a/spaces/s"));
	fx_put(fx_path("$/a/spaces/s/space.json"), "{\"quota\": 5000}", 15);
	ck_assert_int_eq(manifest_of("$/a", "s"), -ENOENT);
	ck_assert_int_eq(make("$/a", "s", MANIFEST("2", "")), 0);
	ck_assert_int_eq(manifest_of("$/a", "s"), 0);
	ck_assert_ptr_nonnull(strstr(there, "\"quota\": 5000"));
	ck_assert_int_eq(make("$/a", "s", MANIFEST("2", "")), 0);
	ck_assert_int_eq(make("$/a", "s", MANIFEST("3", "")), -EEXIST);
	ck_assert_uint_eq(fx_count(fx_path("$/a/spaces/s")), 1);
}

static const struct {
	const char *tiers, *name, *manifest;
	int err;
	const char *why;
} bad[] = {
	{ "$/a", "", MANIFEST("2", ""), -EINVAL, "no name" },
	{ "$/a", "..", MANIFEST("2", ""), -EINVAL, "no name" },
	{ "$/a", "x/y", MANIFEST("2", ""), -EINVAL, "no name" },
	{ "$/a", "s", "{}", -EINVAL, "geometry" },
	{ "$/a", "s", "x", -EINVAL, "space.json" },
	{ "$/a", "s", MANIFEST("0", ""), -EINVAL, "num_layers" },
	{ "$/a", "s", MANIFEST("2", ",\"x\":1.5"), -EINVAL, "fraction" },
	{ "$/none:$/a", "s", MANIFEST("2", ""), -ENOENT, "/none" },
	{ "$/a:$/none", "s", MANIFEST("2", ""), -EINVAL, "/none" },
	{ "", "s", MANIFEST("2", ""), -EINVAL, "" },
};

UNIT_TEST(what_is_wrong_is_said, .rows = NUM_ROWS(bad))
{
	ck_assert_int_eq(make(bad[_i].tiers, bad[_i].name, bad[_i].manifest),
			 bad[_i].err);
	ck_assert_msg(strstr(error.text, bad[_i].why), "'%s'", error.text);
	ck_assert(!fx_exists(fx_path("$/a/spaces/s")));
}

UNIT_TEST(a_mount_or_tiers_are_needed)
{
	ck_assert_int_eq(ucm_space_manifest(NULL, NULL, "s", there, &error),
			 -EINVAL);
	ck_assert_int_eq(ucm_space_manifest("/", "/", "s", there, NULL),
			 -EINVAL);
	ck_assert_int_eq(ucm_space_make(fx_path("$/a"), NULL, "s",
					MANIFEST("2", ""), NULL, &error),
			 -ENOENT);
	ck_assert_ptr_nonnull(strstr(error.text, "is ucmfs mounted there?"));
}

static int add_name(void *arg, const char *name)
{
	strcat(arg, name);
	return !strcmp(name, "stop") ? 7 : 0;
}

UNIT_TEST(spaces_are_listed_once)
{
	char names[64] = "";

	ck_assert_int_eq(make("$/a", "s", MANIFEST("2", "")), 0);
	ck_assert_int_eq(make("$/a", "stop", MANIFEST("2", "")), 0);
	ck_assert_int_eq(ucm_space_list(NULL, fx_path("$/a:$/b"), add_name,
					names, &error), 7);
	ck_assert(!strcmp(names, "sstop") || !strcmp(names, "stop"));
	ck_assert_int_eq(ucm_space_list(fx_path("$"), NULL, add_name, names,
					&error), -ENOENT);
}

UNIT_TEST(two_names_of_a_place_have_one_daemon)
{
	ck_assert_int_eq(make("$/a:$/b", "s", MANIFEST("2", "")), 0);
	ck_assert_int_eq(manifest_of("fast=$/a", "s"), 0);
	ck_assert_str_eq(there, MANIFEST("2", ""));
	ck_assert_int_eq(ucm_space_manifest(fx_path("$/a"), NULL, "s", there,
					    &error), 0);
}
