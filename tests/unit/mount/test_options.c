/* SPDX-License-Identifier: Apache-2.0 */
/* test_options.c - what stands behind -o, what in the file, and what nowhere. */
#include <config.h>

#include "fs/mount/setup/options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/dir_fixture.h"

static struct ucm_options options;
static struct ucm_error error;

static void setup(void)
{
	fx_setup();
	ucm_options_init(&options);
}

static void teardown(void)
{
	ucm_options_fini(&options);
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

static int parse(const char *list)
{
	char *argv[] = { (char *)"ucmfs", (char *)"fast=/a:slow=/b",
			 (char *)"/mnt", (char *)"-o", (char *)list, NULL };

	return ucm_options_parse(&options, 5, argv, &error);
}

static int parse_file(const char *text)
{
	char list[300];

	fx_put(fx_path("$/u.conf"), text, strlen(text));
	snprintf(list, sizeof(list), "config=%s", fx_path("$/u.conf"));
	return parse(list);
}

static void printed(char *text, size_t size)
{
	FILE *out = fmemopen(text, size, "w");

	ucm_options_print(&options, out);
	fclose(out);
}

static void says(const char *text)
{
	ck_assert_msg(strstr(error.text, text) != NULL, "'%s' is not in: %s",
		      text, error.text);
}

/* ---- settings ---- */

/* All of them, with a good and a bad value. */
static const struct {
	const char *key, *value, *bad, *says;
} settings[] = {
	{ "placement", "random", "best", "'best'" },
	{ "high", "97", "101", "2 to 100" },
	{ "low", "70", "0", "1 to 99" },
	{ "reserve", "5%", "much", "reserve 'much'" },
	{ "endurance", "fast:1G", "1G", "not TIER:BYTES" },
	{ "movers", "3", "65", "1 to 64" },
	{ "move_rate", "1048576", "fast", "move_rate 'fast'" },
	{ "block_max", "8192", "1", "4K to 1T" },
	{ "spaces", "0", "65535", "0 to 65534" },
	{ "checkpoint", "0", "soon", "checkpoint 'soon'" },
	{ "staging_age", "9", "0", "1 to 31536000" },
	{ "reverify", "0", "-1", "reverify '-1'" },
	{ "threads", "3", "0", "1 to 1024" },
	{ "entry_timeout", "0", "1s", "entry_timeout '1s'" },
	{ "budget", "65536", "1", "0, or from 64K" },
	{ "inflight", "65536", "17T", "to 16T" },
	{ "trace_size", "65536", "0", "trace_size '0': from 64K" },
	{ "debug", "fs.tier=1", "fs.tear=1", "no area 'fs.tear'" },
};

UNIT_TEST(a_setting_behind_o_is_refused_with_what_to_do,
	  .rows = NUM_ROWS(settings))
{
	char list[100], want[200];

	snprintf(list, sizeof(list), "allow_other,%s=%s", settings[_i].key,
		 settings[_i].value);
	snprintf(want, sizeof(want),
		 "%s is a setting of ucmfs.conf(5) now: put `%s: %s` into a "
		 "file and mount with -o config=FILE",
		 settings[_i].key, settings[_i].key, settings[_i].value);
	ck_assert_int_eq(parse(list), -EINVAL);
	ck_assert_str_eq(error.text, want);
	ck_assert_int_eq(parse(settings[_i].key), -EINVAL);
	says(": "); /* what it would take */
}

UNIT_TEST(a_setting_in_the_file_is_taken, .rows = NUM_ROWS(settings))
{
	char text[200], print[4096] = "";

	snprintf(text, sizeof(text), "%s: %s\n", settings[_i].key,
		 settings[_i].value);
	ck_assert_msg(!parse_file(text), "%s", error.text);
	printed(print, sizeof(print));
	if (!strcmp(settings[_i].key, "endurance"))
		snprintf(text, sizeof(text), "    endurance: 1073741824\n");
	if (strcmp(settings[_i].key, "debug") != 0)
		ck_assert_msg(strstr(print, text) != NULL, "%s", print);
}

UNIT_TEST(a_bad_value_in_the_file_is_named_with_its_line,
	  .rows = NUM_ROWS(settings))
{
	char text[200], want[100];

	snprintf(text, sizeof(text), "policy: lru\n%s: %s\n", settings[_i].key,
		 settings[_i].bad);
	snprintf(want, sizeof(want), "u.conf:2: %s", settings[_i].key);
	ck_assert_int_eq(parse_file(text), -EINVAL);
	says(want);
	says(settings[_i].says);
}

/* --help has these, and no others. */
UNIT_TEST(all_settings_are_tried_here)
{
	char help[16384] = "", *line;
	FILE *out = fmemopen(help, sizeof(help), "w");
	unsigned num = 0;

	ucm_options_help(out);
	fclose(out);
	line = strstr(help, "\nSettings");
	ck_assert_ptr_nonnull(line);
	for (line = strstr(line, "\n  "); line; line = strstr(line + 1, "\n  ")) {
		unsigned i = 0;
		size_t len = strcspn(line + 3, ":");

		while (i < NUM_ROWS(settings) &&
		       (strlen(settings[i].key) != len ||
			memcmp(settings[i].key, line + 3, len) != 0))
			i++;
		ck_assert_msg(i < NUM_ROWS(settings), "%.20s", line + 3);
		num++;
	}
	ck_assert_uint_eq(num, NUM_ROWS(settings));
}

/* ---- options ---- */

static const struct {
	const char *list, *says;
} wrong[] = {
	{ "frobnicate", "unknown option 'frobnicate'" },
	{ "ro=1", "option ro takes no value" },
	{ "allow_other=1", "option allow_other takes no value" },
	{ "policy", "option policy needs a value: policy=NAME" },
	{ "ready-fd=65536", "0 to 65535" },
	{ "uid=root", "uid 'root'" },
};

UNIT_TEST(a_wrong_option_is_named, .rows = NUM_ROWS(wrong))
{
	ck_assert_int_ne(parse(wrong[_i].list), 0);
	says(wrong[_i].says);
}

UNIT_TEST(words_of_mount_are_handed_on_or_ignored)
{
	ck_assert_msg(!parse("rw,nosuid,comment=a b,x-systemd.automount,noatime,"
			     "auto_unmount,uid=7"),
		      "%s", error.text);
	ck_assert_str_eq(options.pass, ",noatime,auto_unmount");
	ck_assert_uint_eq(options.uid, 7);
	ck_assert_uint_eq(options.gid, UCM_LEFT_OUT);
}

UNIT_TEST(the_file_has_options_too_but_for_two)
{
	ck_assert_msg(!parse_file("uid: 7\nallow_other: yes\nro: true\n"
				  "noexec: false\nlimit: slow:80%\n"),
		      "%s", error.text);
	ck_assert_str_eq(options.pass, ",allow_other,ro");
	ck_assert(options.allow_other && options.uid == 7);
	ck_assert_int_eq(parse_file("config: x\n"), -EINVAL);
	says("u.conf:1: unknown key 'config'");
	ck_assert_int_eq(parse_file("ready-fd: 3\n"), -EINVAL);
	says("u.conf:1: unknown key 'ready-fd'");
	ck_assert_int_eq(parse_file("ro: 7\n"), -EINVAL);
	says("u.conf:1: ro '7': true or false");
}

UNIT_TEST(what_is_printed_is_a_file_that_says_the_same)
{
	char first[4096] = "", second[4096] = "";

	ck_assert_int_eq(parse("noatime,allow_other,gid=3,limit=fast:1G,"
			       "write=fast:back,log=/l,trace=/t"),
			 0);
	printed(first, sizeof(first));
	ucm_options_fini(&options);
	ucm_options_init(&options);
	ck_assert_msg(!parse_file(first), "%s", error.text);
	printed(second, sizeof(second));
	/* but for the tiers, which SOURCE replaces */
	ck_assert_str_eq(strstr(second, "durability"),
			 strstr(first, "durability"));
	ck_assert_ptr_nonnull(strstr(second, "noatime: true\n"));
	ck_assert_ptr_nonnull(strstr(second, "gid: 3\n"));
}

/* The scan has no more threads than requests have. */
UNIT_TEST(threads_bound_those_of_the_scan)
{
	ck_assert_int_eq(parse("policy=lru"), 0);
	ck_assert_uint_eq(options.config.scan_threads, 4);
	ck_assert_int_eq(parse_file("threads: 2\n"), 0);
	ck_assert_uint_eq(options.config.scan_threads, 2);
}
