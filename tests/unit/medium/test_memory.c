/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory.c - the place of a memory tier: whose it is, and that nothing else
 * is taken for it. What needs other users and sizes is in memory-tier.sh.
 */
#include <config.h>

#include "fs/medium/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/tier/dirs.h"
#include "tests/unit/tier_fixture.h"

static char base[] = "/dev/shm/ucmfs-test.XXXXXX", root[64]; /* of one test */
static struct ucm_error error;
static char first[UCM_MEMORY_PATH_MAX], second[UCM_MEMORY_PATH_MAX];

static void make_base(void)
{
	if (mkdtemp(base))
		return;
	perror(base);
	exit(EXIT_FAILURE);
}

/* Also what a test has left that failed. */
static void remove_base(void)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf %s", base);
	if (system(command))
		perror(base);
}

static void setup(void)
{
	fx_setup();
	snprintf(root, sizeof(root), "%s/XXXXXX", base);
	ck_assert_ptr_nonnull(mkdtemp(root));
	ucm_memory_root = root;
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);
UNIT_PROGRAM(.begin = make_base, .end = remove_base);

static struct ucm_memory_key key_of(const char *uuids)
{
	struct ucm_memory_key key = { .num = 0 };

	for (; *uuids; uuids++) {
		uint8_t uuid[16] = { (uint8_t)*uuids };

		ucm_memory_key_add(&key, uuid);
	}
	return key;
}

static int place(const char *uuids, const char *tier, bool make, char *out)
{
	struct ucm_memory_key key = key_of(uuids);

	return ucm_memory_place(&key, &fx_config, tier, make, out, &error);
}

static const struct {
	const char *uuids, *tier, *other_uuids, *other_tier;
	bool same;
} stores[] = {
	{ "a", "mem", "a", "mem", true },
	{ "ab", "mem", "ba", "mem", true },
	{ "abc", "mem", "cab", "mem", true },
	{ "a", "mem", "b", "mem", false },
	{ "a", "mem", "ab", "mem", false },
	{ "ab", "mem", "ac", "mem", false },
	{ "a", "mem", "a", "fast", false },
};

UNIT_TEST(a_store_has_one_place_and_shares_it_with_no_other,
	  .rows = NUM_ROWS(stores))
{
	fx_configure("$/a");
	ck_assert_int_eq(place(stores[_i].uuids, stores[_i].tier, true, first),
			 0);
	ck_assert_int_eq(place(stores[_i].other_uuids, stores[_i].other_tier,
			       true, second),
			 0);
	ck_assert_int_eq(!strcmp(first, second), stores[_i].same);
}

UNIT_TEST(nothing_but_memory_belongs_to_the_mount_point)
{
	fx_configure("$/a");
	ck_assert_int_eq(place("", "mem", true, first), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "mount point"));
	fx_config.mount = "/mnt/a";
	ck_assert_int_eq(place("", "mem", true, first), 0);
	fx_config.mount = "/mnt/b";
	ck_assert_int_eq(place("", "mem", true, second), 0);
	ck_assert_str_ne(first, second);
}

UNIT_TEST(who_only_looks_makes_nothing)
{
	fx_configure("$/a");
	ck_assert_int_eq(place("a", "mem", false, first), -ENOENT);
	ck_assert_int_eq(rmdir(root), 0);
	ck_assert_int_eq(mkdir(root, 0700), 0);
}

/* What somebody has put there, where the folder or the place would be. */
static void put_link(const char *path)
{
	ck_assert_int_eq(symlink("/tmp", path), 0);
}

static void put_file(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0700);

	ck_assert_int_ge(fd, 0);
	close(fd);
}

static void put_open_folder(const char *path)
{
	ck_assert_int_eq(mkdir(path, 0700), 0);
	ck_assert_int_eq(chmod(path, 0750), 0);
}

static const struct {
	void (*put)(const char *path);
	const char *says;
} planted[] = {
	{ put_link, "no directory" },
	{ put_file, "no directory" },
	{ put_open_folder, "others may enter" },
};

UNIT_TEST(what_is_planted_is_refused_and_left, .rows = NUM_ROWS(planted))
{
	char own[UCM_MEMORY_PATH_MAX];
	struct stat was, is;

	fx_configure("$/a");
	ck_assert_int_eq(place("a", "mem", true, first), 0);
	ck_assert_int_eq(rmdir(first), 0);
	planted[_i].put(first);
	ck_assert_int_eq(lstat(first, &was), 0);
	ck_assert_int_eq(place("a", "mem", true, second), -EPERM);
	ck_assert_ptr_nonnull(strstr(error.text, planted[_i].says));
	ck_assert_int_eq(lstat(first, &is), 0);
	ck_assert_uint_eq(is.st_ino, was.st_ino);
	ck_assert_int_eq(remove(first), 0);
	snprintf(own, sizeof(own), "%s/ucmfs-%u", root, (unsigned)geteuid());
	ck_assert_int_eq(rmdir(own), 0);
	planted[_i].put(own);
	ck_assert_int_eq(place("a", "mem", true, second), -EPERM);
	ck_assert_ptr_nonnull(strstr(error.text, planted[_i].says));
}

UNIT_TEST(a_root_whose_names_anyone_may_change_is_refused)
{
	fx_configure("$/a");
	ck_assert_int_eq(chmod(root, 0777), 0);
	ck_assert_int_eq(place("a", "mem", true, first), -EPERM);
	ck_assert_ptr_nonnull(strstr(error.text, "sticky"));
	ck_assert_int_eq(chmod(root, 01777), 0);
	ck_assert_int_eq(place("a", "mem", true, first), 0);
}

UNIT_TEST(a_root_that_is_no_memory_is_refused)
{
	fx_configure("$/a");
	ucm_memory_root = "/proc";
	ck_assert_int_eq(place("a", "mem", true, first), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "no tmpfs"));
}

static void open_dirs(struct ucm_dirs *dirs)
{
	ck_assert_msg(!ucm_dirs_open(dirs, &fx_config, &error), "%s",
		      error.text);
}

/* Wherever it stands in the list. */
UNIT_TEST(the_tiers_of_a_store_find_their_memory_again)
{
	char path[UCM_MEMORY_PATH_MAX];
	struct ucm_dirs dirs;
	uint8_t uuid[16];

	fx_configure("$/a,$/b:mem@1M:$/c");
	open_dirs(&dirs);
	ck_assert_uint_eq(dirs.num, 4);
	ck_assert_uint_eq(dirs.tiers[1].first, 2);
	ck_assert_uint_eq(dirs.tiers[2].first, 3);
	ck_assert_ptr_eq(dirs.tiers[1].dirs[0], dirs.at[2]);
	ck_assert_uint_eq(dirs.at[2]->flags, UCM_MEDIUM_VOLATILE);
	ck_assert_int_eq(dirs.at[2]->kind, UCM_FS_MEMORY);
	ck_assert_uint_eq(ucm_medium_limit_bytes(dirs.at[2]), 1 << 20);
	ck_assert(!(dirs.at[0]->flags & UCM_MEDIUM_VOLATILE));
	snprintf(path, sizeof(path), "%s", dirs.at[2]->path);
	memcpy(uuid, dirs.at[2]->uuid, 16);
	ucm_dirs_close(&dirs);
	ck_assert_int_eq(ucm_memory_find(&fx_config, "mem", first, &error), 0);
	ck_assert_str_eq(first, path);
	open_dirs(&dirs);
	ck_assert_mem_eq(dirs.at[2]->uuid, uuid, 16);
	ucm_dirs_close(&dirs);
}

UNIT_TEST(what_can_never_fit_is_refused)
{
	struct ucm_dirs dirs;

	fx_configure("mem@1024P:$/a");
	ck_assert_int_eq(ucm_dirs_open(&dirs, &fx_config, &error), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "mem@1024P is more than"));
}

/* For reading: a tier's memory may be gone, and its daemon not there yet. */
UNIT_TEST(an_empty_place_can_be_read)
{
	struct ucm_memory_key key = key_of("a");
	struct ucm_medium *medium;

	fx_configure("mem@1M:$/a");
	ck_assert_int_eq(ucm_memory_open(&key, &fx_config, &fx_config.tiers[0],
					 true, &medium, &error),
			 0);
	ck_assert(medium->readonly);
	ucm_medium_close(medium, false);
	ucm_medium_free(medium);
}

static char left[4][UCM_MEMORY_PATH_MAX];
static unsigned num_left;

static void note_left(void *arg, const char *path)
{
	(void)arg;
	ck_assert_uint_lt(num_left, 4);
	snprintf(left[num_left++], UCM_MEMORY_PATH_MAX, "%s", path);
}

UNIT_TEST(only_what_nobody_uses_is_left)
{
	struct ucm_dirs dirs;

	ucm_memory_each_left(note_left, NULL);
	ck_assert_uint_eq(num_left, 0);
	fx_configure("mem@1M:$/a");
	ck_assert_int_eq(place("x", "mem", true, first), 0);
	open_dirs(&dirs);
	ucm_memory_each_left(note_left, NULL);
	ck_assert_uint_eq(num_left, 1);
	ck_assert_str_eq(left[0], first);
	ucm_dirs_close(&dirs);
	ucm_memory_each_left(note_left, NULL);
	ck_assert_uint_eq(num_left, 3);
}
