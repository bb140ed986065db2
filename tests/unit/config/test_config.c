/* SPDX-License-Identifier: Apache-2.0 */
/* test_config.c - SOURCE, single settings, and the YAML file. */
#include <config.h>

#include "fs/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/unit/tier_fixture.h"

static struct ucm_error error;

static void setup(void)
{
	fx_setup();
	fx_config_begin();
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(a_source_is_tiers_of_directories)
{
	ck_assert_int_eq(ucm_config_source(&fx_config,
					   "/a/kv,/b/kv:/mnt/nfs/kv", &error),
			 0);
	ck_assert_uint_eq(fx_config.num_tiers, 2);
	ck_assert_str_eq(fx_config.tiers[0].name, "tier0");
	ck_assert_uint_eq(fx_config.tiers[0].num_dirs, 2);
	ck_assert_str_eq(fx_config.tiers[0].dirs[0], "/a/kv");
	ck_assert_str_eq(fx_config.tiers[0].dirs[1], "/b/kv");
	ck_assert_str_eq(fx_config.tiers[1].name, "tier1");
	ck_assert_str_eq(fx_config.tiers[1].dirs[0], "/mnt/nfs/kv");
	ck_assert_int_eq(ucm_config_check(&fx_config, &error), 0);
}

UNIT_TEST(a_tier_may_have_a_name)
{
	ck_assert_int_eq(ucm_config_source(&fx_config,
					   "nvme=/a,/b=c:n.f-s_2=relative",
					   &error),
			 0);
	ck_assert_str_eq(fx_config.tiers[0].name, "nvme");
	ck_assert_str_eq(fx_config.tiers[0].dirs[0], "/a");
	ck_assert_str_eq(fx_config.tiers[0].dirs[1], "/b=c");
	ck_assert_str_eq(fx_config.tiers[1].name, "n.f-s_2");
	ck_assert_str_eq(fx_config.tiers[1].dirs[0], "relative");
}

/* '=' behind a '/' belongs to the path. */
UNIT_TEST(a_path_may_have_an_equals_sign)
{
	ck_assert_int_eq(ucm_config_source(&fx_config, "/a=b", &error), 0);
	ck_assert_str_eq(fx_config.tiers[0].name, "tier0");
	ck_assert_str_eq(fx_config.tiers[0].dirs[0], "/a=b");
}

static const struct {
	const char *source, *says;
} wrong_sources[] = {
	{ "", "empty directory" },
	{ ":", "empty directory" },
	{ "/a:", "empty directory" },
	{ "/a,", "empty directory" },
	{ ",/a", "empty directory" },
	{ "/a::/b", "empty directory" },
	{ "nvme=", "empty directory" },
	{ "=/a", "tier name ''" },
	{ "a b=/a", "tier name 'a b'" },
	{ "\xff=/a", "tier name" },
	{ "a234567890123456789012345678901234=/a", "1 to 32" },
	{ "mem@", "such as mem@8G" },
	{ "mem@0", "such as mem@8G" },
	{ "mem@8X", "such as mem@8G" },
	{ "fast=mem@101%", "such as mem@8G" },
	{ "mem@1G,/a", "a separate tier" },
	{ "/a,mem@1G", "a separate tier" },
	{ "mem@1G,mem@2G", "a separate tier" },
	{ "shared@", "empty directory" },
	{ "shared@mem@1G", "memory cannot be shared" },
};

UNIT_TEST(a_wrong_source_is_named, .rows = NUM_ROWS(wrong_sources))
{
	ck_assert_int_eq(
		ucm_config_source(&fx_config, wrong_sources[_i].source, &error),
		-EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, wrong_sources[_i].says));
}

UNIT_TEST(source_none_leaves_the_tiers_of_a_file)
{
	ck_assert_int_eq(ucm_config_source(&fx_config, "x=/a", &error), 0);
	ck_assert_int_eq(ucm_config_source(&fx_config, "none", &error), 0);
	ck_assert_str_eq(fx_config.tiers[0].name, "x");
	ck_assert_int_eq(ucm_config_source(&fx_config, "/b:/c", &error), 0);
	ck_assert_uint_eq(fx_config.num_tiers, 2);
	ck_assert_str_eq(fx_config.tiers[0].name, "tier0");
}

UNIT_TEST(memory_is_a_tier_with_a_size)
{
	struct ucm_tier_config *tier;

	ck_assert_int_eq(ucm_config_source(&fx_config,
					   "mem@8G:fast=mem@50%:./mem@1:/a",
					   &error),
			 0);
	ck_assert_int_eq(ucm_config_check(&fx_config, &error), 0);
	tier = &fx_config.tiers[0];
	ck_assert(tier->memory);
	ck_assert_str_eq(tier->name, "mem");
	ck_assert_uint_eq(tier->num_dirs, 1);
	ck_assert_uint_eq(tier->limits[0].size, UINT64_C(8) << 30);
	ck_assert(!tier->limits[0].percent);
	tier = &fx_config.tiers[1];
	ck_assert(tier->memory);
	ck_assert_str_eq(tier->name, "fast");
	ck_assert_uint_eq(tier->limits[0].size, 50);
	ck_assert(tier->limits[0].percent);
	ck_assert(!fx_config.tiers[2].memory);
	ck_assert_str_eq(fx_config.tiers[3].name, "tier3");
	ck_assert_int_eq(ucm_config_limit_dir(&fx_config.tiers[0], "1G",
					      &error),
			 -EINVAL);
	ck_assert_int_eq(ucm_config_source(&fx_config, "mem@1G:mem@2G", &error),
			 0);
	ck_assert_int_eq(ucm_config_check(&fx_config, &error), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "'mem'"));
}

UNIT_TEST(a_tier_may_be_shared_with_other_hosts)
{
	ck_assert_int_eq(ucm_config_source(&fx_config,
					   "/a:nfs=shared@/b,/c:./shared@d",
					   &error),
			 0);
	ck_assert(!fx_config.tiers[0].shared);
	ck_assert(fx_config.tiers[1].shared);
	ck_assert_str_eq(fx_config.tiers[1].dirs[0], "/b");
	ck_assert_str_eq(fx_config.tiers[1].dirs[1], "/c");
	ck_assert(!fx_config.tiers[2].shared);
	ck_assert_int_eq(ucm_config_set_tier(&fx_config.tiers[0], "shared",
					     "true", &error),
			 0);
	ck_assert(fx_config.tiers[0].shared);
	ck_assert_int_eq(ucm_config_set_tier(&fx_config.tiers[0], "shared",
					     "both", &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "shared 'both'"));
}

UNIT_TEST(tiers_must_be_there_and_differ_in_name)
{
	struct ucm_tier_config *tier;
	char source[2048] = "/x";

	ck_assert_int_eq(ucm_config_check(&fx_config, &error), -EINVAL);
	ck_assert_int_eq(ucm_config_source(&fx_config, "a=/a:a=/b", &error), 0);
	ck_assert_int_eq(ucm_config_check(&fx_config, &error), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "'a'"));
	for (int i = 0; i < 255; i++)
		strcat(source, ",/x");
	ck_assert_int_eq(ucm_config_source(&fx_config, source, &error), 0);
	ck_assert_int_eq(ucm_config_check(&fx_config, &error), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "256 directories"));
	ck_assert_int_eq(ucm_config_source(&fx_config, "/a", &error), 0);
	ck_assert_int_eq(ucm_config_add_tier(&fx_config, &tier), 0);
	ck_assert_int_eq(ucm_config_check(&fx_config, &error), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "no directory"));
}

static const struct {
	const char *key, *value;
	int err;
	const char *says; /* part of the error */
} settings[] = {
	{ "durability", "none", 0, NULL },
	{ "durability", "data", 0, NULL },
	{ "durability", "full", 0, NULL },
	{ "durability", "Full", -EINVAL, "'Full'" },
	{ "durability", "", -EINVAL, "durability" },
	{ "placement", "round_robin", 0, NULL },
	{ "placement", "best", -EINVAL, "'best'" },
	{ "checkpoint", "0", 0, NULL },
	{ "checkpoint", "86400", 0, NULL },
	{ "checkpoint", "86401", -EINVAL, "86400" },
	{ "checkpoint", "-1", -EINVAL, "checkpoint" },
	{ "movers", "0", -EINVAL, "1 to 64" },
	{ "movers", "64", 0, NULL },
	{ "movers", "65", -EINVAL, "1 to 64" },
	{ "block_max", "4K", 0, NULL },
	{ "block_max", "1T", 0, NULL },
	{ "block_max", "4095", -EINVAL, "4K to 1T" },
	{ "block_max", "2T", -EINVAL, "block_max '2T'" },
	{ "block_max", "80%", -EINVAL, "block_max" },
	{ "spaces", "0", 0, NULL },
	{ "spaces", "65535", -EINVAL, "65534" },
	{ "lock_wait", "1", -ENOENT, NULL },
	{ "staging_age", "0", -EINVAL, "staging_age" },
	{ "staging_age", "60", 0, NULL },
	{ "limit", "nvme:500G", 0, NULL },
	{ "limit", "nfs:80%", 0, NULL },
	{ "limit", "80%", -EINVAL, "which of 2 tiers it is for: nvme, nfs" },
	{ "limit", "tape:1G", -EINVAL, "'tape'" },
	{ "limit", "nvm:1G", -EINVAL, "'nvm'" },
	{ "limit", "nvme:0", -EINVAL, "'nvme'" },
	{ "limit", "nvme:", -EINVAL, "'nvme'" },
	{ "limit", "nvme:1.5G", -EINVAL, "1.5G" },
	{ "limit", "/a:500G", 0, NULL },
	{ "limit", "/b:80%", 0, NULL },
	{ "limit", "/c:1G", -EINVAL, "'/c'" },
	{ "limit", "/a/:1G", -EINVAL, "'/a/'" },
	{ "limit", "/a:0", -EINVAL, "directory '/a'" },
	{ "limit", "/a:", -EINVAL, "directory '/a'" },
	{ "policy", "lru", 0, NULL },
	{ "policy", "", -EINVAL, "policy ''" },
	{ "policy", "lr\001u", -EINVAL, "use hazard, lru or none" },
	{ "policy", "a: b", -EINVAL, "policy 'a: b'" },
	{ "write", "nvme", -EINVAL, "TIER:MODE" },
	{ "endurance", "nvme:500G", 0, NULL },
	{ "endurance", "nvme:500G/day", 0, NULL },
	{ "endurance", "nfs:0", 0, NULL },
	{ "endurance", "500G", -EINVAL, "TIER:BYTES" },
	{ "endurance", "tape:1G", -EINVAL, "'tape'" },
	{ "endurance", "nvme:", -EINVAL, "'nvme'" },
	{ "endurance", "nvme:/day", -EINVAL, "'/day'" },
	{ "endurance", "nvme:50%", -EINVAL, "'50%'" },
	{ "endurance", "nvme:1G/hour", -EINVAL, "'1G/hour'" },
	{ "readonly", "nfs", 0, NULL },
	{ "readonly", "tape", -EINVAL, "'tape'" },
	{ "nonsense", "1", -ENOENT, NULL },
};

UNIT_TEST(a_setting_is_taken_or_named, .rows = NUM_ROWS(settings))
{
	int err;

	ck_assert_int_eq(
		ucm_config_source(&fx_config, "nvme=/a:nfs=/b", &error), 0);
	err = ucm_config_set(&fx_config, settings[_i].key, settings[_i].value,
			     &error);
	ck_assert_msg(err == settings[_i].err, "%s=%s: %d", settings[_i].key,
		      settings[_i].value, err);
	if (settings[_i].says)
		ck_assert_ptr_nonnull(strstr(error.text, settings[_i].says));
}

UNIT_TEST(settings_change_what_they_are_called)
{
	ck_assert_int_eq(
		ucm_config_source(&fx_config, "nvme=/a:nfs=/b", &error), 0);
	ck_assert_uint_eq(fx_config.checkpoint_s, 30);
	ck_assert_uint_eq(fx_config.staging_age_s, 3600);
	fx_option("durability", "full");
	fx_option("placement", "random");
	fx_option("checkpoint", "7");
	fx_option("staging_age", "9");
	fx_option("limit", "nvme:64K");
	fx_option("limit", "nfs:80%");
	fx_option("endurance", "nvme:1G/day");
	fx_option("readonly", "nfs");
	ck_assert_int_eq(fx_config.durability, UCM_DURABILITY_FULL);
	ck_assert_int_eq(fx_config.placement, UCM_PLACEMENT_RANDOM);
	ck_assert_uint_eq(fx_config.checkpoint_s, 7);
	ck_assert_uint_eq(fx_config.staging_age_s, 9);
	ck_assert_uint_eq(fx_config.tiers[0].limit.size, 65536);
	ck_assert(!fx_config.tiers[0].limit.percent);
	ck_assert(!fx_config.tiers[0].readonly);
	ck_assert_uint_eq(fx_config.tiers[0].endurance, 1 << 30);
	ck_assert_uint_eq(fx_config.tiers[1].endurance, 0);
	ck_assert_uint_eq(fx_config.tiers[1].limit.size, 80);
	ck_assert(fx_config.tiers[1].limit.percent);
	ck_assert(fx_config.tiers[1].readonly);
}

/* ---- YAML ---- */

static int set_here(void *arg, const char *key, const char *value,
		    struct ucm_error *why)
{
	return ucm_config_set(arg, key, value, why);
}

static int read_yaml(const char *text)
{
	fx_put(fx_path("$/c.yaml"), text, strlen(text));
	return ucm_config_read(&fx_config, fx_path("$/c.yaml"), set_here,
			       &fx_config, &error);
}

UNIT_TEST(a_file_says_what_options_say)
{
	ck_assert_int_eq(read_yaml("durability: data\n"
				   "limit: nvme:1G\n"
				   "tiers:\n"
				   "  - name: nvme\n"
				   "    directories: [/a, '/b c']\n"
				   "  - directories:\n"
				   "      - /n\n"
				   "    limit: 80%\n"
				   "    endurance: 2K/day\n"
				   "    readonly: yes\n"
				   "checkpoint: 5 # seconds\n"), 0);
	ck_assert_uint_eq(fx_config.num_tiers, 2);
	ck_assert_str_eq(fx_config.tiers[0].name, "nvme");
	ck_assert_uint_eq(fx_config.tiers[0].limit.size, 1 << 30);
	ck_assert_str_eq(fx_config.tiers[0].dirs[1], "/b c");
	ck_assert_str_eq(fx_config.tiers[1].name, "tier1");
	ck_assert_uint_eq(fx_config.tiers[1].limit.size, 80);
	ck_assert(fx_config.tiers[1].limit.percent);
	ck_assert(fx_config.tiers[1].readonly);
	ck_assert_uint_eq(fx_config.tiers[1].endurance, 2048);
	ck_assert_int_eq(fx_config.durability, UCM_DURABILITY_DATA);
	ck_assert_uint_eq(fx_config.checkpoint_s, 5);
}

UNIT_TEST(a_directory_may_have_a_limit_of_its_own)
{
	ck_assert_int_eq(read_yaml("tiers:\n"
				   "  - directories:\n"
				   "      - /a\n"
				   "      - path: /b:c\n"
				   "        limit: 1G\n"
				   "      - {limit: 50%, path: /d}\n"
				   "    limit: 2G\n"), 0);
	fx_option("limit", "/a:64K");
	ck_assert_uint_eq(fx_config.tiers[0].num_dirs, 3);
	ck_assert_uint_eq(fx_config.tiers[0].limits[0].size, 65536);
	ck_assert_str_eq(fx_config.tiers[0].dirs[1], "/b:c");
	ck_assert_uint_eq(fx_config.tiers[0].limits[1].size, 1 << 30);
	ck_assert(!fx_config.tiers[0].limits[1].percent);
	ck_assert_str_eq(fx_config.tiers[0].dirs[2], "/d");
	ck_assert_uint_eq(fx_config.tiers[0].limits[2].size, 50);
	ck_assert(fx_config.tiers[0].limits[2].percent);
	ck_assert_uint_eq(fx_config.tiers[0].limit.size, UINT64_C(2) << 30);
}

UNIT_TEST(a_limit_without_a_name_is_that_of_the_only_tier)
{
	ck_assert_int_eq(ucm_config_source(&fx_config, "/a,/b", &error), 0);
	fx_option("limit", "500G");
	ck_assert_uint_eq(fx_config.tiers[0].limit.size, UINT64_C(500) << 30);
	ck_assert_uint_eq(fx_config.tiers[0].limits[0].size, 0);
	ck_assert_int_eq(ucm_config_set(&fx_config, "limit", "much", &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "'much' of tier"));
}

UNIT_TEST(an_empty_file_says_nothing)
{
	ck_assert_int_eq(read_yaml(""), 0);
	ck_assert_int_eq(read_yaml("# nothing\n"), 0);
	ck_assert_uint_eq(fx_config.num_tiers, 0);
}

static const struct {
	const char *text, *says; /* file and line first */
} wrong_files[] = {
	{ "durability: none\ncheckpoint: x\n", "c.yaml:2: checkpoint 'x'" },
	{ "a: 1\n", "c.yaml:1: unknown key 'a'" },
	{ "- a\n", "c.yaml:1: not a map" },
	{ "word\n", "c.yaml:1: not a map" },
	{ "tiers: 7\n", "c.yaml:1: tiers is not a list" },
	{ "tiers:\n  - 7\n", "c.yaml:2: a tier is not a map" },
	{ "tiers:\n  - name: x\n    colour: red\n", "c.yaml:3: unknown key" },
	{ "tiers:\n  - name: 'a b'\n", "c.yaml:2: tier name" },
	{ "tiers:\n  - directories: /a\n", "c.yaml:2: directories is not" },
	{ "tiers:\n  - directories: [[/a]]\n", "c.yaml:2: a directory is" },
	{ "tiers:\n  - directories: ['']\n", "c.yaml:2: tier 'tier0'" },
	{ "tiers:\n  - directories: [{path: ''}]\n", "c.yaml:2: tier 'tier0'" },
	{ "tiers:\n  - directories: [{limit: 1}]\n", "c.yaml:2: a directory" },
	{ "tiers:\n  - directories: [{path: [1]}]\n", "c.yaml:2: a directory" },
	{ "tiers:\n  - directories: [{path: /a, x: 1}]\n",
	  "c.yaml:2: a directory has the keys" },
	{ "tiers:\n  - directories: [{path: /a, limit: [1]}]\n",
	  "c.yaml:2: not a single value" },
	{ "tiers:\n  - directories: [{path: /a, limit: lots}]\n",
	  "c.yaml:2: limit 'lots' of directory '/a'" },
	{ "tiers:\n  - limit: [1]\n", "c.yaml:2: not a single value" },
	{ "tiers:\n  - limit: lots\n", "c.yaml:2: limit 'lots'" },
	{ "tiers:\n  - readonly: maybe\n", "c.yaml:2: readonly 'maybe'" },
	{ "tiers:\n  - [a]: b\n", "c.yaml:2: a key is not a word" },
	{ "[a]: b\n", "c.yaml:1: a key is not a word" },
	{ "durability: [data]\n", "c.yaml:1: not a single value" },
	{ "\n\na: [\n", "c.yaml:4" },
	{ "a: b: c\n", "c.yaml:1" },
	{ "\x01\n", "c.yaml:1" },
	{ "a: *nobody\n", "c.yaml:1" },
};

UNIT_TEST(a_wrong_file_is_named_with_its_line, .rows = NUM_ROWS(wrong_files))
{
	ck_assert_int_eq(read_yaml(wrong_files[_i].text), -EINVAL);
	ck_assert_msg(strstr(error.text, wrong_files[_i].says) != NULL, "%s",
		      error.text);
}

UNIT_TEST(an_absent_file_is_named)
{
	ck_assert_int_eq(ucm_config_read(&fx_config, fx_path("$/none"),
					 set_here, &fx_config, &error),
			 -ENOENT);
	ck_assert_ptr_nonnull(strstr(error.text, "/none: No such file"));
	ck_assert_int_eq(ucm_config_read(&fx_config, fx_path("$"), set_here,
					 &fx_config, &error),
			 -EINVAL);
}

UNIT_TEST(what_is_printed_can_be_read_back)
{
	char first[2048] = "", second[2048] = "";
	FILE *out = fmemopen(first, sizeof(first), "w");

	ck_assert_int_eq(
		ucm_config_source(&fx_config, "n=/a'b,/c: d #e:/-f\"", &error),
		0);
	ck_assert_uint_eq(fx_config.num_tiers, 3);
	fx_option("limit", "n:12345");
	fx_option("limit", "tier1:80%");
	fx_option("limit", "/a'b:7G");
	fx_option("limit", "/-f\":1%");
	fx_option("endurance", "tier1:1T");
	fx_option("readonly", "tier2");
	fx_option("durability", "full");
	fx_option("placement", "random");
	ucm_config_print(&fx_config, out);
	fclose(out);

	ucm_config_fini(&fx_config);
	ucm_config_init(&fx_config);
	ck_assert_msg(!read_yaml(first), "%s", error.text);
	ck_assert_str_eq(fx_config.tiers[0].dirs[0], "/a'b");
	out = fmemopen(second, sizeof(second), "w");
	ucm_config_print(&fx_config, out);
	fclose(out);
	ck_assert_str_eq(second, first);
}

/* Found by the fuzzer: "name: -" is a list to YAML. */
UNIT_TEST(odd_tier_names_are_printed_so_that_they_can_be_read)
{
	char text[2048] = "";
	FILE *out = fmemopen(text, sizeof(text), "w");

	ck_assert_int_eq(
		ucm_config_source(&fx_config, "-=/a:.=/b:1=/c", &error), 0);
	ucm_config_print(&fx_config, out);
	fclose(out);
	ucm_config_fini(&fx_config);
	ucm_config_init(&fx_config);
	ck_assert_msg(!read_yaml(text), "%s", error.text);
	ck_assert_str_eq(fx_config.tiers[0].name, "-");
	ck_assert_str_eq(fx_config.tiers[2].name, "1");
}
