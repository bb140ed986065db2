/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_space.c - spaces and their manifests in the directories of tiers. (Those
 * of mounts are tested by tests/python/test_namespace.py.)
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

UNIT_TEST(the_first_directory_gets_the_manifest)
{
	ck_assert_int_eq(make("$/a:$/b", "s", MANIFEST("2", "")), 0);
	ck_assert_int_eq(manifest_of("$/a", "s"), 0);
	ck_assert_str_eq(there, MANIFEST("2", ""));
	ck_assert_int_eq(manifest_of("$/b", "s"), -ENOENT);
	ck_assert_int_eq(manifest_of("$/b:$/a", "s"), 0);
	ck_assert_uint_eq(fx_count(fx_path("$/a/spaces/s")), 1);
	ck_assert(!fx_exists(fx_path("$/b/spaces")));
}

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

UNIT_TEST(the_manifest_of_any_directory_counts)
{
	ck_assert_int_eq(make("$/b", "s", MANIFEST("2", "")), 0);
	ck_assert_int_eq(make("$/a:$/b", "s", MANIFEST("3", "")), -EEXIST);
	ck_assert_str_eq(there, MANIFEST("2", ""));
	ck_assert_int_eq(make("$/a:$/b", "s", MANIFEST("2", "")), 0);
	ck_assert(!fx_exists(fx_path("$/a/spaces")));
}

UNIT_TEST(blocks_without_a_manifest_are_left_alone)
{
	fx_mkdirs(fx_path("$/b/spaces/s/3f"));
	fx_put(fx_path("$/b/spaces/s/3f/notes.bin"), "", 0);
	ck_assert_int_eq(make("$/a:$/b", "s", MANIFEST("2", "")), 0);
	fx_mkdirs(fx_path("$/b/spaces/t/3f"));
	fx_put(fx_path("$/b/spaces/t/3f/3f9a101112131415161718191a1b1ce1.bin"),
	       "", 0);
	ck_assert_int_eq(make("$/a:$/b", "t", MANIFEST("2", "")), -ENOTEMPTY);
	ck_assert_int_eq(manifest_of("$/a:$/b", "t"), -ENOENT);
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
	{ "$/a:$/none", "s", MANIFEST("2", ""), -ENOENT, "/none" },
	{ "", "s", MANIFEST("2", ""), -EINVAL, "" },
};

UNIT_TEST(what_is_wrong_is_said, .rows = NUM_ROWS(bad))
{
	ck_assert_int_eq(make(bad[_i].tiers, bad[_i].name, bad[_i].manifest),
			 bad[_i].err);
	ck_assert_msg(strstr(error.text, bad[_i].why), "'%s'", error.text);
	ck_assert(!fx_exists(fx_path("$/a/spaces")));
}

/* One that is a tier stays the tier that it is. */
UNIT_TEST(directories_become_tiers)
{
	const char *tiers = fx_path("$/a:$/b");

	ck_assert_int_eq(ucm_tiers_make(fx_path("$/a"), &error), 0);
	ck_assert(fx_exists(fx_path("$/a/.ucmfs")));
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_tiers_make(tiers, &error), 0);
	ck_assert(fx_exists(fx_path("$/b/.ucmfs")));
}

UNIT_TEST(one_that_is_in_use_keeps_no_other_from_being_made)
{
	struct ucm_config config;
	struct ucm_store *store;
	int err;

	ucm_config_init(&config);
	ck_assert_int_eq(ucm_config_source(&config, fx_path("$/a"), &error), 0);
	ck_assert_int_eq(ucm_store_open(&config, &store, &error), 0);
	err = ucm_tiers_make(fx_path("$/a:$/b"), &error);
	ucm_store_close(store);
	ucm_config_fini(&config);
	ck_assert_msg(!err, "%s", error.text);
	ck_assert(fx_exists(fx_path("$/b/.ucmfs")));
}

UNIT_TEST(what_is_not_there_becomes_no_tier)
{
	ck_assert_int_eq(ucm_tiers_make(fx_path("$/a:$/none"), &error),
			 -ENOENT);
	ck_assert_ptr_nonnull(strstr(error.text, "none"));
	ck_assert(!fx_exists(fx_path("$/none")));
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
	fx_mkdirs(fx_path("$/b/spaces/s"));
	fx_mkdirs(fx_path("$/b/spaces/.hidden"));
	fx_put(fx_path("$/b/spaces/file"), "", 0);
	ck_assert_int_eq(ucm_space_list(NULL, fx_path("$/a:$/b"), add_name,
					names, &error), 0);
	ck_assert_str_eq(names, "s");
	fx_mkdirs(fx_path("$/b/spaces/stop"));
	ck_assert_int_eq(ucm_space_list(NULL, fx_path("$/b"), add_name, names,
					&error), 7);
	ck_assert_int_eq(ucm_space_list(fx_path("$"), NULL, add_name, names,
					&error), -ENOENT);
}

UNIT_TEST(what_a_crash_has_left_is_no_hindrance)
{
	struct stat st;

	fx_mkdirs(fx_path("$/a/spaces/s"));
	fx_put(fx_path("$/a/spaces/s/space.json.make"), "half", 4);
	ck_assert_int_eq(make("$/a", "s", MANIFEST("2", "")), 0);
	ck_assert_uint_eq(fx_count(fx_path("$/a/spaces/s")), 1);
	ck_assert_int_eq(stat(fx_path("$/a/spaces/s/space.json"), &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0644);
}
