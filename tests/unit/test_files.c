/* SPDX-License-Identifier: Apache-2.0 */
/* test_files.c - files/: one tree over several directories. */
#include <config.h>

#include "fs/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osfile.h"
#include "tests/unit/store_fixture.h"

static struct ucm_dirs dirs;
static struct ucm_files_tree tree;
static struct ucm_files found;
static unsigned dir;

/* ---- a tree ---- */

static void tree_open(void)
{
	struct ucm_error error = { "" };

	ck_assert_msg(!ucm_dirs_open(&dirs, &fx_config, &error), "%s",
		      error.text);
	ucm_files_tree_init(&tree, &dirs);
}

static void tree_close(void)
{
	ucm_files_count_stop(&tree);
	ucm_dirs_close(&dirs);
}

static void tree_teardown(void)
{
	tree_close();
	fx_teardown();
}

/* Does not wait until what is there has been counted. */
static void tree_start_only(void)
{
	for (unsigned i = 0; i < dirs.num; i++)
		ck_assert_int_eq(ucm_medium_begin(dirs.at[i]), 0);
	ucm_files_recover(&tree);
	ck_assert_int_eq(ucm_files_count_start(&tree), 0);
}

static bool is_counted(void *arg)
{
	(void)arg;
	return atomic_load(&tree.counted);
}

static void tree_start(void)
{
	tree_start_only();
	fx_wait(is_counted, NULL); /* or its calls meet a test's faults */
}

static void tree_store(const char *source)
{
	fx_configure(source);
	tree_open();
	tree_start();
}

/* ---- what is in it ---- */

static struct ucm_files_owner owner(mode_t mode)
{
	return (struct ucm_files_owner){ .uid = geteuid(),
					 .gid = getegid(),
					 .mode = mode };
}

/* A file that was put there by somebody else: "a/files/x" holds the text. */
static void put(const char *path, const char *text)
{
	char full[256], *slash;

	snprintf(full, sizeof(full), "%s", fx_path("$/%s", path));
	slash = strrchr(full, '/');
	*slash = '\0';
	fx_mkdirs(full);
	*slash = '/';
	fx_put(full, text, strlen(text));
}

static void holds(const char *path, const char *text)
{
	char is[64] = "";

	fx_read(fx_path("$/%s", path), is, sizeof(is));
	ck_assert_str_eq(is, text);
}

static int find(const char *path)
{
	return ucm_files_find(&tree, path, UCM_FILES_NOWHERE, &found);
}

/* The name leads to a file with this text. */
static void leads_to(const char *path, const char *text)
{
	char is[64] = "";
	struct stat st;
	int fd;

	ck_assert_msg(!find(path), "%s is not there", path);
	fd = ucm_files_open(&tree, path, found.dir, O_RDONLY, &st);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_ge(read(fd, is, sizeof(is) - 1), 0);
	close(fd);
	ck_assert_str_eq(is, text);
}

static void leads_nowhere(const char *path)
{
	ck_assert_int_eq(find(path), -ENOENT);
}

static int create(const char *path)
{
	struct ucm_files_owner who = owner(0640);
	int fd = ucm_files_create(&tree, path, &who, &found);

	if (fd < 0)
		return fd;
	close(fd);
	ucm_files_written(&tree, &found, 0);
	return 0;
}

static int make_folder(const char *path, mode_t mode)
{
	struct ucm_files_owner who = owner(mode);

	return ucm_files_mkdir(&tree, path, &who, &found);
}

static int rename_to(const char *from, const char *to)
{
	return ucm_files_rename(&tree, from, to, false, &dir);
}

static mode_t mode_of(const char *path)
{
	struct stat st;

	ck_assert_int_eq(stat(fx_path("$/%s", path), &st), 0);
	return st.st_mode & 07777;
}

/* ---- finding ---- */

UNIT_FIXTURE(.setup = fx_setup, .teardown = tree_teardown);

UNIT_TEST(the_first_directory_that_has_a_name_wins)
{
	tree_store("$/a,$/b:$/c");
	put("b/files/x", "b");
	put("c/files/x", "c");
	put("c/files/only", "here");
	leads_to("files/x", "b");
	ck_assert_uint_eq(found.dir, 1);
	leads_to("files/only", "here");
	leads_nowhere("files/none");
	leads_nowhere("files/x/below");
	/* one that is known to lie elsewhere goes on to */
	ck_assert_int_eq(ucm_files_find(&tree, "files/x", 2, &found), 0);
	ck_assert_uint_eq(found.dir, 2);
}

UNIT_TEST(what_is_neither_file_link_nor_folder_is_not_there)
{
	struct ucm_files_names names;

	tree_store("$/a:$/b");
	ck_assert_int_eq(mkfifo(fx_path("$/a/files/file"), 0600), 0);
	ck_assert_int_eq(mkfifo(fx_path("$/a/files/fifo"), 0600), 0);
	put("b/files/file", "good");
	leads_nowhere("files/fifo");
	leads_to("files/file", "good");
	ck_assert_int_eq(ucm_files_list(&tree, "files", &names), 0);
	ck_assert_uint_eq(names.num, 1);
	ck_assert_str_eq(names.list[0].name, "file");
	ucm_files_names_free(&names);
}

/* ---- links ---- */

static int make_link(const char *target, const char *path)
{
	struct ucm_files_owner who = owner(0777);

	who.target = target;
	return ucm_files_symlink(&tree, path, &who, &found);
}

/* The name is a link, and says so. */
static void says(const char *path, const char *target)
{
	char is[PATH_MAX];

	ck_assert_msg(!find(path), "%s is not there", path);
	ck_assert(S_ISLNK(found.st.st_mode));
	ck_assert_uint_eq(found.st.st_size, strlen(target));
	ck_assert_int_eq(ucm_files_readlink(&tree, path, found.dir, is), 0);
	ck_assert_str_eq(is, target);
}

UNIT_TEST(a_link_is_never_followed)
{
	char text[PATH_MAX];

	tree_store("$/a:$/b");
	put("outside/secret", "s");
	put("b/files/file", "hidden");
	ck_assert_int_eq(symlink("../../outside", fx_path("$/a/files/link")),
			 0);
	ck_assert_int_eq(
		symlink("../../outside/secret", fx_path("$/a/files/file")), 0);
	says("files/link", "../../outside");
	says("files/file", "../../outside/secret");
	leads_nowhere("files/link/secret");
	/* nothing is made through it, or in place of it */
	ck_assert_int_lt(create("files/link/new"), 0);
	ck_assert_int_eq(make_folder("files/link/new", 0755), -ENOTDIR);
	ck_assert_int_lt(make_link("x", "files/link/new"), 0);
	ck_assert_int_eq(create("files/file"), -EEXIST);
	ck_assert_int_eq(make_link("x", "files/file"), -EEXIST);
	ck_assert(!fx_exists(fx_path("$/outside/new")));
	ck_assert_int_eq(
		ucm_files_readlink(&tree, "files/link/secret", 0, text),
		-ESTALE);
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/link/secret"),
			 -ENOENT);
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/link"), -ENOTDIR);
	ck_assert(fx_exists(fx_path("$/outside/secret")));
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/file"), 0);
	leads_nowhere("files/file");
	holds("outside/secret", "s");
}

UNIT_TEST(a_link_in_the_place_of_the_tree_is_none_of_it)
{
	tree_store("$/a:$/b");
	put("outside/secret", "s");
	ck_assert_int_eq(rmdir(fx_path("$/a/files")), 0);
	ck_assert_int_eq(symlink("../outside", fx_path("$/a/files")), 0);
	ck_assert_int_eq(find("files"), 0);
	ck_assert_uint_eq(found.dir, 1);
	leads_nowhere("files/secret");
}

static const char *const targets[] = {
	"x", "/", "/etc/passwd", "../../..", "l", "not/there", " ", "\\\n",
};

UNIT_TEST(a_link_says_what_it_was_told, .rows = NUM_ROWS(targets))
{
	tree_store("$/a:$/b");
	ck_assert_int_eq(make_link(targets[_i], "files/l"), 0);
	says("files/l", targets[_i]);
	ck_assert_int_eq(make_link(targets[_i], "files/none/l"), -ENOENT);
}

UNIT_TEST(a_link_is_renamed_listed_and_changed)
{
	struct ucm_files_change change = {
		.times_set = true,
		.uid = geteuid(),
		.gid = (gid_t)-1,
		.times = { { 11, 0 }, { 22, 0 } },
	};
	struct ucm_files_names names;

	tree_store("$/a:$/b");
	put("b/files/x", "x");
	ck_assert_int_eq(make_link("x", "files/l"), 0);
	ck_assert_int_eq(ucm_files_change(&tree, "files/l", &found, &change),
			 0);
	says("files/l", "x");
	ck_assert_int_eq(found.st.st_mtim.tv_sec, 22);
	ck_assert_int_eq(find("files/x"), 0);
	ck_assert_int_ne(found.st.st_mtim.tv_sec, 22);
	ck_assert_int_eq(ucm_files_list(&tree, "files", &names), 0);
	ck_assert_uint_eq(names.num, 2);
	ck_assert_uint_eq(names.list[0].type, DT_LNK);
	ck_assert_uint_eq(names.list[1].type, DT_REG);
	ucm_files_names_free(&names);
	/* over a file of another directory, and one over it */
	ck_assert_int_eq(rename_to("files/l", "files/x"), 0);
	says("files/x", "x");
	leads_nowhere("files/l");
	put("b/files/y", "y");
	ck_assert_int_eq(rename_to("files/y", "files/x"), 0);
	leads_to("files/x", "y");
	ck_assert_int_eq(make_folder("files/d", 0755), 0);
	ck_assert_int_eq(make_link("d", "files/l"), 0);
	ck_assert_int_eq(rename_to("files/l", "files/d"), -EISDIR);
	ck_assert_int_eq(rename_to("files/d", "files/l"), -ENOTDIR);
}

UNIT_TEST(a_link_whose_owner_cannot_be_set_goes_again)
{
	struct ucm_files_owner who = owner(0777);

	who.uid++;
	who.target = "x";
	tree_store("$/a");
	fx_fail("fchown", 1, -EIO, false);
	ck_assert_int_eq(ucm_files_symlink(&tree, "files/l", &who, &found),
			 -EIO);
	leads_nowhere("files/l");
}

static const char *const ways_out[] = {
	"files/../../outside/secret",
	"files/../.ucmfs/id",
	"../outside/secret",
};

UNIT_TEST(no_path_leaves_the_tree)
{
	struct stat st;

	tree_store("$/a");
	put("outside/secret", "s");
	ck_assert_int_lt(ucm_files_open(&tree, ways_out[0], 0, O_RDONLY, &st),
			 0);
	ck_assert_int_lt(ucm_files_unlink(&tree, ways_out[0]), 0);
	ck_assert_int_lt(ucm_files_open(&tree, ways_out[2], 0, O_RDONLY, &st),
			 0);
	ck_assert_int_lt(rename_to(ways_out[2], "files/x"), 0);
	ck_assert(fx_exists(fx_path("$/outside/secret")));
}

UNIT_TEST(a_directory_that_cannot_say_makes_no_name_absent)
{
	tree_store("$/a:$/b");
	put("a/files/x", "a");
	fx_fail_on("stat", "files/", 2, -EIO, false);
	leads_to("files/x", "a"); /* the first says yes: one call */
	ck_assert_int_eq(find("files/none"), -EIO);
	ck_assert_int_eq(create("files/new"), -EIO);
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/x"), -EIO);
	fx_fail(NULL, 0, 0, false);
	ck_assert(fx_logged("/files/none: stat: Input/output error"));
	leads_to("files/x", "a");
	ck_assert_uint_gt(dirs.io_errors, 0);
}

UNIT_TEST(a_folder_has_the_latest_time_of_all)
{
	static const struct timespec late[2] = { { 5000, 0 },
						 { 4000000000, 7 } };

	tree_store("$/a:$/b");
	fx_mkdirs(fx_path("$/a/files/d"));
	fx_mkdirs(fx_path("$/b/files/d"));
	ck_assert_int_eq(utimensat(AT_FDCWD, fx_path("$/b/files/d"), late, 0),
			 0);
	ck_assert_int_eq(find("files/d"), 0);
	ck_assert_int_eq(found.st.st_mtim.tv_sec, 4000000000);
	ck_assert_uint_eq(found.dir, 0);
}

UNIT_TEST(an_inode_number_outlives_rename_and_restart)
{
	uint64_t ino, other;

	tree_store("$/a,$/b");
	ck_assert_int_eq(create("files/x"), 0);
	ino = ucm_files_ino(&tree, &found);
	ck_assert_int_eq(create("files/y"), 0);
	other = ucm_files_ino(&tree, &found);
	ck_assert(ino != other);
	ck_assert_int_eq(rename_to("files/x", "files/z"), 0);
	tree_close();
	tree_store("$/b,$/a");
	ck_assert_int_eq(find("files/z"), 0);
	ck_assert_uint_eq(ucm_files_ino(&tree, &found), ino);
}

/* ---- making ---- */

UNIT_TEST(a_new_file_is_what_was_asked_for)
{
	tree_store("$/a");
	ck_assert_int_eq(create("files/x"), 0);
	ck_assert_uint_eq(found.st.st_mode, S_IFREG | 0640);
	ck_assert_int_eq(create("files/x"), -EEXIST);
	ck_assert_int_eq(make_folder("files/x", 0755), -EEXIST);
	ck_assert_int_eq(create("files/none/x"), -ENOENT);
	ck_assert_int_eq(create("files/x/y"), -ENOTDIR);
	ck_assert_int_eq(make_folder("files/d", 0711), 0);
	ck_assert_uint_eq(found.st.st_mode, S_IFDIR | 0711);
	ck_assert_int_eq(create("files/d"), -EEXIST);
	ck_assert_uint_eq(dirs.tiers[0].stats.files_created, 1);
	ck_assert_int_eq(atomic_load(&dirs.at[0]->retry_s), 0);
}

UNIT_TEST(set_id_bits_of_files_are_not_kept)
{
	struct ucm_files_owner who = owner(06755);
	struct ucm_files_change change = {
		.mode_set = true,
		.mode = 06711,
		.uid = (uid_t)-1,
		.gid = (gid_t)-1,
	};
	int fd;

	tree_store("$/a");
	fd = ucm_files_create(&tree, "files/x", &who, &found);
	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert_uint_eq(found.st.st_mode, S_IFREG | 0755);
	ck_assert_int_eq(ucm_files_change(&tree, "files/x", &found, &change),
			 0);
	ck_assert_uint_eq(mode_of("a/files/x"), 0711);
	ucm_files_written(&tree, &found, 0);
	/* a folder hands down its group by one */
	ck_assert_int_eq(make_folder("files/d", 02770), 0);
	ck_assert_uint_eq(mode_of("a/files/d"), 02770);
	ck_assert_int_eq(make_folder("files/d/e", 0700), 0);
	ck_assert_uint_eq(mode_of("a/files/d/e"), 02700);
}

UNIT_TEST(folders_are_made_where_a_file_needs_them)
{
	fx_configure("fast=$/a:slow=$/b");
	tree_open();
	tree_start();
	ck_assert_int_eq(make_folder("files/d", 0750), 0);
	ck_assert_int_eq(make_folder("files/d/e", 0705), 0);
	ck_assert(fx_exists(fx_path("$/a/files/d/e")));
	ck_assert(!fx_exists(fx_path("$/b/files/d")));
	dirs.tiers[0].limit.size = 1; /* nothing more */
	atomic_store(&dirs.at[0]->used, 2);
	ck_assert_int_eq(create("files/d/e/f"), 0);
	ck_assert_uint_eq(found.dir, 1);
	ck_assert(fx_exists(fx_path("$/b/files/d/e/f")));
	ck_assert_uint_eq(mode_of("b/files/d"), 0750);
	ck_assert_uint_eq(mode_of("b/files/d/e"), 0705);
	atomic_store(&dirs.at[0]->used, 0);
}

static unsigned views; /* of a folder that came into view */

/* Who looks at a name may remember what it sees. */
static int see_folder(const char *call, const char *path)
{
	if (!path || strcmp(path, "files/d"))
		return 0;
	ck_assert_str_ne(call, "mkdir");
	if (!strcmp(call, "rename")) {
		views++;
		ck_assert_uint_eq(mode_of("b/.ucmfs/folder"), 02750);
	}
	return 0;
}

UNIT_TEST(a_copied_folder_comes_into_view_as_it_is)
{
	tree_store("$/a:$/b");
	put("a/files/d/x", "x");
	ck_assert_int_eq(chmod(fx_path("$/a/files/d"), 02750), 0);
	views = 0;
	ucm_os_fault = see_folder;
	ck_assert_int_eq(ucm_files_make_above(&tree, 1, "files/d/y"), 0);
	ucm_os_fault = NULL;
	ck_assert_uint_eq(views, 1);
	ck_assert_uint_eq(mode_of("b/files/d"), 02750);
}

UNIT_TEST(no_room_anywhere_is_enospc)
{
	tree_store("$/a:$/b");
	for (unsigned i = 0; i < 2; i++) {
		dirs.tiers[i].limit.size = 1;
		atomic_store(&dirs.tiers[i].dirs[0]->files, 2);
	}
	ck_assert_int_eq(create("files/x"), -ENOSPC);
	leads_nowhere("files/x");
}

/* Chunks are alike: a tier with no room for another of them is passed over,
 * but not if none has room for one; and several are made at once. */
UNIT_TEST(room_is_set_aside_as_files_before_have_taken)
{
	static const struct ucm_files_owner who = { .mode = 0600 };
	struct ucm_files made[3];
	int fd;

	tree_store("$/a:$/b");
	dirs.tiers[0].limit.size = 5000;
	ck_assert_int_eq(create("files/first"), 0);
	ucm_files_written(&tree, &found, 2000);
	for (unsigned i = 0; i < 3; i++) {
		fd = ucm_files_create(&tree, fx_path("files/%u", i), &who,
				      &made[i]);
		ck_assert_int_ge(fd, 0);
		close(fd);
		ck_assert_uint_eq(made[i].promise->bytes, 2000);
		ck_assert_uint_eq(made[i].dir, i == 2);
	}
	ck_assert_uint_eq(dirs.tiers[0].writing, 4000);
	ucm_files_written(&tree, &made[0], 2000);
	ck_assert_uint_eq(dirs.tiers[0].writing, 2000);
	ck_assert_int_eq(create("files/again"), 0);
	ck_assert_uint_eq(found.dir, 0);
	dirs.tiers[1].limit.size = 5000;
	ucm_files_written(&tree, &made[1], 6000);
	ck_assert_int_eq(create("files/small"), 0);
	ck_assert_uint_eq(dirs.tiers[0].writing, 0);
	/* one that is huge is no example */
	ucm_files_written(&tree, &made[2], UINT64_C(1) << 40);
	ck_assert_uint_eq(tree.file_bytes, 6000);
	ck_assert_uint_eq(dirs.tiers[0].writing, 0);
}

UNIT_TEST(a_directory_that_fails_is_passed_over)
{
	tree_store("$/a:$/b");
	fx_fail_on("open", "files/x", 1, -ENOSPC, true);
	ck_assert_int_eq(create("files/x"), 0);
	ck_assert_uint_eq(found.dir, 1);
	fx_fail(NULL, 0, 0, false);
	/* and gets nothing new for a while */
	ck_assert_int_eq(create("files/y"), 0);
	ck_assert_uint_eq(found.dir, 1);
}

UNIT_TEST(a_read_only_tier_takes_and_loses_nothing)
{
	struct ucm_files_change change = { .uid = 1, .gid = 1 };
	struct stat st;

	fx_configure("$/a:$/b");
	tree_open();
	tree_close();
	put("b/files/d/x", "b");
	fx_configure("$/a:$/b");
	fx_config.tiers[1].readonly = true;
	tree_open();
	tree_start();
	leads_to("files/d/x", "b");
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/d/x"), -EROFS);
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/d"), -EROFS);
	ck_assert_int_eq(rename_to("files/d/x", "files/y"), -EROFS);
	ck_assert_int_eq(rename_to("files/d", "files/y"), -EROFS);
	ck_assert_int_eq(create("files/new"), 0);
	ck_assert_int_eq(rename_to("files/new", "files/d/x"), -EROFS);
	ck_assert_int_eq(ucm_files_open(&tree, "files/d/x", 1, O_RDWR, &st),
			 -EROFS);
	leads_to("files/d/x", "b");
	ck_assert_int_eq(ucm_files_change(&tree, "files/d/x", &found, &change),
			 -EROFS);
	ck_assert_int_eq(create("files/d/more"), 0); /* in the other one */
	ck_assert(fx_exists(fx_path("$/a/files/d/more")));
}

/* ---- removing ---- */

UNIT_TEST(a_removed_name_is_gone_from_everywhere)
{
	tree_store("$/a:$/b:$/c");
	put("a/files/x", "a");
	put("c/files/x", "c");
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/x"), 0);
	leads_nowhere("files/x");
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/x"), -ENOENT);
	ck_assert_int_eq(make_folder("files/d", 0755), 0);
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/d"), -EISDIR);
}

UNIT_TEST(a_folder_is_removed_only_if_it_is_empty_everywhere)
{
	tree_store("$/a:$/b:$/c");
	fx_mkdirs(fx_path("$/a/files/d"));
	put("b/files/d/x", "b");
	fx_mkdirs(fx_path("$/c/files/d"));
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/d"), -ENOTEMPTY);
	for (const char *d = "abc"; *d; d++)
		ck_assert(fx_exists(fx_path("$/%c/files/d", *d)));
	leads_to("files/d/x", "b");
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/d/x"), -ENOTDIR);
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/d/x"), 0);
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/d"), 0);
	leads_nowhere("files/d");
	for (const char *d = "abc"; *d; d++)
		ck_assert(!fx_exists(fx_path("$/%c/files/d", *d)));
}

/* ---- attributes ---- */

UNIT_TEST(a_folder_changes_in_all_directories)
{
	struct ucm_files_change change = {
		.mode_set = true,
		.mode = 01700,
		.uid = (uid_t)-1,
		.gid = (gid_t)-1,
	};

	tree_store("$/a:$/b");
	fx_mkdirs(fx_path("$/a/files/d"));
	fx_mkdirs(fx_path("$/b/files/d"));
	ck_assert_int_eq(find("files/d"), 0);
	ck_assert_int_eq(ucm_files_change(&tree, "files/d", &found, &change),
			 0);
	ck_assert_uint_eq(mode_of("a/files/d"), 01700);
	ck_assert_uint_eq(mode_of("b/files/d"), 01700);
	change.size_set = true;
	ck_assert_int_eq(ucm_files_change(&tree, "files/d", &found, &change),
			 -EISDIR);
}

/* A file below it is made just then, in a directory that has been passed. */
static int make_below(const char *call, const char *path)
{
	if (strcmp(call, "fchmod") || path)
		return 0;
	ucm_os_fault = NULL;
	ck_assert_int_eq(ucm_files_make_above(&tree, 0, "files/d/x"), 0);
	return 0;
}

UNIT_TEST(a_folder_changes_also_where_it_is_copied_to_meanwhile)
{
	struct ucm_files_change change = {
		.mode_set = true,
		.mode = 0700,
		.uid = (uid_t)-1,
		.gid = (gid_t)-1,
	};

	tree_store("$/a:$/b");
	fx_mkdirs(fx_path("$/b/files/d"));
	ck_assert_int_eq(find("files/d"), 0);
	ucm_os_fault = make_below;
	ck_assert_int_eq(ucm_files_change(&tree, "files/d", &found, &change),
			 0);
	ck_assert_ptr_null(ucm_os_fault);
	ck_assert_uint_eq(mode_of("a/files/d"), 0700);
	ck_assert_uint_eq(mode_of("b/files/d"), 0700);
}

UNIT_TEST(a_file_takes_size_and_times)
{
	struct ucm_files_change change = {
		.size_set = true,
		.size = 3,
		.times_set = true,
		.uid = (uid_t)-1,
		.gid = (gid_t)-1,
		.times = { { 11, 0 }, { 22, 0 } },
	};

	tree_store("$/a");
	put("a/files/x", "abcdef");
	ck_assert_int_eq(find("files/x"), 0);
	ck_assert_int_eq(ucm_files_change(&tree, "files/x", &found, &change),
			 0);
	leads_to("files/x", "abc");
	ck_assert_int_eq(found.st.st_mtim.tv_sec, 22);
}

/* ---- renaming files ---- */

/* Directories that have the source and the target; all have the folders of
 * the source only. */
static const struct {
	const char *from, *to;
} renames[] = {
	{ "a", "" },	{ "b", "" },	{ "c", "" },	  { "a", "a" },
	{ "a", "b" },	{ "b", "a" },	{ "b", "b" },	  { "c", "a" },
	{ "a", "abc" }, { "b", "abc" }, { "c", "abc" },	  { "b", "ac" },
	{ "ab", "" },	{ "bc", "a" },	{ "abc", "abc" }, { "ac", "b" },
};

UNIT_TEST(a_renamed_file_takes_the_name_from_whoever_has_it,
	  .rows = NUM_ROWS(renames))
{
	unsigned left = 0;

	tree_store("$/a:$/b:$/c");
	ck_assert_int_eq(make_folder("files/to", 0755), 0);
	for (const char *d = renames[_i].from; *d; d++)
		put(fx_path("%c/files/from/x", *d),
		    d == renames[_i].from ? "new" : "hid");
	for (const char *d = renames[_i].to; *d; d++)
		put(fx_path("%c/files/to/y", *d), "old");
	ck_assert_int_eq(rename_to("files/from/x", "files/to/y"), 0);
	leads_nowhere("files/from/x");
	leads_to("files/to/y", "new");
	ck_assert_uint_eq(found.dir, dir);
	for (const char *d = "abc"; *d; d++)
		left += fx_exists(fx_path("$/%c/files/to/y", *d));
	ck_assert_uint_eq(left, 1);
	ck_assert_int_eq(rename_to("files/from/x", "files/to/y"), -ENOENT);
}

static const struct {
	const char *from, *to;
	bool noreplace;
	int err;
} refusals[] = {
	{ "files/none", "files/y", false, -ENOENT },
	{ "files/x", "files/none/y", false, -ENOENT },
	{ "files/x", "files/y", true, -EEXIST },
	{ "files/x", "files/d", false, -EISDIR },
	{ "files/d", "files/x", false, -ENOTDIR },
	{ "files/d", "files/full", false, -ENOTEMPTY },
	{ "files/d", "files/e", true, -EEXIST },
};

UNIT_TEST(a_rename_that_cannot_be_changes_nothing, .rows = NUM_ROWS(refusals))
{
	tree_store("$/a:$/b");
	put("a/files/x", "x");
	put("b/files/y", "y");
	put("a/files/d/z", "z");
	fx_mkdirs(fx_path("$/b/files/e"));
	fx_mkdirs(fx_path("$/a/files/full"));
	put("b/files/full/f", "f");
	ck_assert_int_eq(ucm_files_rename(&tree, refusals[_i].from,
					  refusals[_i].to,
					  refusals[_i].noreplace, &dir),
			 refusals[_i].err);
	leads_to("files/x", "x");
	leads_to("files/y", "y");
	leads_to("files/d/z", "z");
	leads_to("files/full/f", "f");
}

static const struct {
	const char *tiers, *call, *path;
} rename_faults[] = {
	{ "$/a:$/b", "link", "files/y" }, /* the old one is in front */
	{ "$/a:$/b", "unlink", "files/y" }, { "$/a:$/b", "fsync", "" },
	{ "$/b:$/a", "rename", "files/y" }, { "$/b:$/a", "unlink", "files/y" },
	{ "$/b:$/a", "fsync", "" },
};

UNIT_TEST(a_rename_that_fails_half_way_is_undone,
	  .rows = NUM_ROWS(rename_faults))
{
	tree_store(rename_faults[_i].tiers);
	put("a/files/y", "old");
	put("b/files/x", "new");
	if (*rename_faults[_i].path)
		fx_fail_on(rename_faults[_i].call, rename_faults[_i].path, 1,
			   -EIO, true);
	else
		fx_fail(rename_faults[_i].call, 1, -EIO, true);
	ck_assert_int_eq(rename_to("files/x", "files/y"), -EIO);
	ck_assert_ptr_nonnull(fx_failed_call());
	fx_fail(NULL, 0, 0, false);
	leads_to("files/x", "new");
	leads_to("files/y", "old");
	ck_assert(!fx_exists(fx_path("$/b/files/y")));
	ck_assert_int_eq(rename_to("files/x", "files/y"), 0);
	leads_to("files/y", "new");
}

UNIT_TEST(a_name_is_renamed_to_itself)
{
	tree_store("$/a:$/b");
	put("b/files/x", "x");
	put("b/files/d/y", "y");
	ck_assert_int_eq(rename_to("files/x", "files/x"), 0);
	ck_assert_uint_eq(dir, 1);
	ck_assert_int_eq(rename_to("files/d", "files/d"), 0);
	leads_to("files/x", "x");
	leads_to("files/d/y", "y");
}

/* ---- crashes ---- */

static unsigned die_at;
static unsigned changes;

/* Dies at the nth call that changes something. */
static int die_at_change(const char *call, const char *path)
{
	(void)path;
	if (strcmp(call, "rename") && strcmp(call, "unlink") &&
	    strcmp(call, "rmdir") && strcmp(call, "mkdir") &&
	    strcmp(call, "link"))
		return 0;
	if (++changes == die_at)
		_exit(42);
	return 0;
}

static const char *crash_from, *crash_to;

static void rename_and_die(void *arg)
{
	(void)arg;
	tree_open();
	tree_start_only();
	changes = 0;
	ucm_os_fault = die_at_change;
	ck_assert_int_eq(rename_to(crash_from, crash_to), 0);
}

/* For each place where it may die. Whether "old" or "new" is there is left to
 * chance; that one of them is, and stays, is not. */
/* The new bytes have one name or the other; the old ones are gone only if the
 * new ones have theirs. */
static void old_or_new(const char *from, const char *to)
{
	if (find(from)) {
		leads_to(to, "new");
	} else {
		leads_to(from, "new");
		leads_to(to, "old");
	}
}

/* 0: it is not there. */
static unsigned links_of(const char *path)
{
	struct stat st;

	return stat(fx_path("$/%s", path), &st) ? 0 : (unsigned)st.st_nlink;
}

UNIT_TEST(a_crash_leaves_the_old_file_or_the_new_one, .rows = 16)
{
	die_at = (unsigned)_i / 2 + 1;
	crash_from = "files/d/x";
	crash_to = "files/y";
	fx_configure(_i % 2 ? "$/a:$/b:$/c" : "$/b:$/a:$/c");
	put("a/files/y", "old");
	put("b/files/d/x", "new");
	put("c/files/y", "hid");
	put("c/files/d/x", "hid");
	fx_in_child(rename_and_die, NULL);
	for (unsigned i = 0; i < 2; i++) { /* and goes on to be the same */
		tree_open();
		tree_start();
		old_or_new("files/d/x", "files/y");
		tree_close();
	}
	/* no file has both names, and none is left behind */
	ck_assert_uint_eq(links_of("b/files/y") + links_of("b/files/d/x"), 1);
	ck_assert_uint_eq(links_of("b/.ucmfs/both.0"), 0);
	tree_open();
	tree_start();
	if (!find("files/d/x"))
		ck_assert_int_eq(rename_to("files/d/x", "files/y"), 0);
	leads_to("files/y", "new");
	leads_nowhere("files/d/x");
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/y"), 0);
	leads_nowhere("files/y");
}

/* A note that makes no sense harms nothing. */
UNIT_TEST(a_wrong_note_is_taken_away, .rows = 6)
{
	static const char *const texts[] = {
		"",	     "x",	   "999999 files/afiles/b",
		"7 files/a", "-1 files/a", "10 ../outsidefiles/b",
	};

	fx_configure("$/a:$/b");
	tree_open();
	tree_close();
	put("outside/s", "s");
	put("a/files/a/x", "x");
	fx_put(fx_path("$/a/.ucmfs/both.7"), texts[_i], strlen(texts[_i]));
	tree_open();
	tree_start();
	leads_to("files/a/x", "x");
	holds("outside/s", "s");
	ck_assert(!fx_exists(fx_path("$/a/.ucmfs/both.7")));
}

/* ---- renaming folders ---- */

/* Where the folder lies, and an empty one that it replaces. */
static const struct {
	const char *from, *to;
	int err;
} folder_renames[] = {
	{ "a", "", 0 },	      { "c", "", 0 },	     { "a", "a", 0 },
	{ "b", "a", 0 },      { "a", "bc", 0 },	     { "c", "abc", 0 },
	{ "ab", "", -EXDEV }, { "bc", "b", -EXDEV }, { "abc", "a", -EXDEV },
};

UNIT_TEST(a_folder_is_renamed_if_it_lies_in_one_directory,
	  .rows = NUM_ROWS(folder_renames))
{
	unsigned left = 0;
	bool done = !folder_renames[_i].err;

	tree_store("$/a:$/b:$/c");
	for (const char *d = folder_renames[_i].from; *d; d++)
		put(fx_path("%c/files/d/e/%c", *d, *d), "x");
	for (const char *d = folder_renames[_i].to; *d; d++)
		fx_mkdirs(fx_path("$/%c/files/n/m", *d));
	if (!*folder_renames[_i].to)
		fx_mkdirs(fx_path("$/b/files/n")); /* perhaps not where d is */
	ck_assert_int_eq(rename_to("files/d", "files/n/m"),
			 folder_renames[_i].err);
	for (const char *d = folder_renames[_i].from; *d; d++) {
		leads_to(fx_path("files/%s/e/%c", done ? "n/m" : "d", *d), "x");
		leads_nowhere(fx_path("files/%s/e/%c", done ? "d" : "n/m", *d));
	}
	for (const char *d = "abc"; *d; d++)
		left += fx_exists(fx_path("$/%c/files/n/m", *d));
	ck_assert_uint_eq(left, done ? 1 : strlen(folder_renames[_i].to));
}

UNIT_TEST(a_folder_whose_rename_fails_stays)
{
	tree_store("$/a:$/b");
	put("a/files/d/1", "1");
	fx_mkdirs(fx_path("$/b/files/n"));
	fx_fail_on("rename", "files/n", 1, -EIO, true);
	ck_assert_int_eq(rename_to("files/d", "files/n"), -EIO);
	fx_fail(NULL, 0, 0, false);
	leads_to("files/d/1", "1");
	ck_assert(fx_exists(fx_path("$/b/files/n")));
}

/* ---- listing and counting ---- */

UNIT_TEST(a_listing_has_each_name_once)
{
	static const char *const want[] = { "1", "2", "d", "e" };
	struct ucm_files_names names;

	tree_store("$/a:$/b");
	put("a/files/1", "a");
	put("b/files/1", "b");
	put("b/files/2", "b");
	put("a/files/d/x", "x");
	put("b/files/d/y", "y");
	fx_mkdirs(fx_path("$/b/files/e"));
	ck_assert_int_eq(ucm_files_list(&tree, "files", &names), 0);
	ck_assert_uint_eq(names.num, NUM_ROWS(want));
	for (unsigned i = 0; i < names.num; i++) {
		char path[64];

		ck_assert_str_eq(names.list[i].name, want[i]);
		snprintf(path, sizeof(path), "files/%s", want[i]);
		ck_assert_int_eq(find(path), 0);
		ck_assert_uint_eq(names.list[i].ino,
				  ucm_files_ino(&tree, &found));
		ck_assert_uint_eq(DTTOIF(names.list[i].type),
				  found.st.st_mode & S_IFMT);
	}
	ucm_files_names_free(&names);
	ck_assert_int_eq(ucm_files_list(&tree, "files/none", &names), -ENOENT);
	ck_assert_int_eq(ucm_files_list(&tree, "files/1", &names), -ENOENT);
}

UNIT_TEST(an_empty_folder_in_several_directories_is_empty)
{
	struct ucm_files_names names;

	tree_store("$/a:$/b");
	fx_mkdirs(fx_path("$/a/files/d"));
	fx_mkdirs(fx_path("$/b/files/d"));
	ck_assert_int_eq(ucm_files_list(&tree, "files/d", &names), 0);
	ck_assert_uint_eq(names.num, 0);
	ucm_files_names_free(&names);
}

UNIT_TEST(a_listing_that_fails_is_not_a_short_one)
{
	struct ucm_files_names names;

	tree_store("$/a:$/b");
	put("a/files/1", "a");
	fx_fail_on("list", "files", 2, -EIO, true);
	ck_assert_int_eq(ucm_files_list(&tree, "files", &names), -EIO);
}

/* ---- a directory that does not answer ---- */

static void fall_silent(const char *call, const char *path, unsigned nth)
{
	fx_fail_on(call, path, nth, -ETIMEDOUT, true);
}

static uint64_t left_out(unsigned tier)
{
	return ucm_counted(&dirs.tiers[tier].stats.files_left_out);
}

static int find_unknown(const char *path, bool *unsure)
{
	return ucm_files_find_unknown(&tree, path, &found, unsure);
}

UNIT_TEST(what_lies_elsewhere_is_found_without_a_silent_directory)
{
	bool unsure;

	tree_store("$/a:$/b");
	put("b/files/x", "b");
	fall_silent("stat", "files/x", 1);
	leads_to("files/x", "b");
	fall_silent("stat", "files/x", 1);
	ck_assert_int_eq(find_unknown("files/x", &unsure), 0);
	ck_assert(!unsure);
}

/* Or nothing could be made: the kernel looks up what it is about to make. */
UNIT_TEST(a_name_that_nobody_knows_is_absent_though_a_directory_is_silent)
{
	bool unsure;

	tree_store("$/a:$/b");
	fall_silent("stat", "files/x", 1);
	ck_assert_int_eq(find("files/x"), UCM_FILES_SILENT);
	fall_silent("stat", "files/x", 1);
	ck_assert_int_eq(find_unknown("files/x", &unsure), -ENOENT);
	ck_assert(unsure);
	ck_assert_uint_eq(left_out(0), 1);
	ck_assert_uint_eq(left_out(1), 0);
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(find_unknown("files/x", &unsure), -ENOENT);
	ck_assert(!unsure);
}

UNIT_TEST(a_file_known_in_a_silent_directory_is_no_other_ones)
{
	tree_store("$/a:$/b");
	put("a/files/x", "new");
	put("b/files/x", "old");
	fall_silent("stat", "files/x", 1);
	ck_assert_int_eq(ucm_files_find(&tree, "files/x", 0, &found),
			 UCM_FILES_SILENT);
}

/* errno, and whether the root of the tree fails as well */
static const struct {
	int err;
	bool root, silent;
} failures[] = {
	{ -ETIMEDOUT, false, true }, { -ENOTCONN, false, true },
	{ -EIO, true, true },	     { -EIO, false, false },
	{ -ESTALE, true, true },     { -ESTALE, false, false },
	{ -EACCES, true, false },
};

UNIT_TEST(one_bad_name_is_no_silent_directory, .rows = NUM_ROWS(failures))
{
	int err = failures[_i].err;
	bool unsure;

	tree_store("$/a:$/b");
	fx_fail_on("stat", failures[_i].root ? "files" : "files/x", 1, err,
		   false);
	ck_assert_int_eq(find_unknown("files/x", &unsure),
			 failures[_i].silent ? -ENOENT : err);
	ck_assert_int_eq(unsure, failures[_i].silent);
	ck_assert_int_eq(ucm_files_is_silent(&tree, 0), failures[_i].silent);
}

UNIT_TEST(an_outage_is_logged_once)
{
	static const char goes_on[] = "files/ goes on without this directory";
	bool unsure;

	tree_store("$/a:$/b");
	fall_silent("stat", "files/x", 1);
	find_unknown("files/x", &unsure);
	ck_assert(fx_logged(goes_on));
	fx_clear_log();
	fall_silent("stat", "files/y", 1);
	find_unknown("files/y", &unsure);
	ck_assert(!fx_logged(goes_on));
	fx_fail(NULL, 0, 0, false);
	/* an answer that comes soon after is no end of it */
	find_unknown("files/x", &unsure);
	ck_assert(ucm_files_is_silent(&tree, 0));
	tree.silence[0].last_ms -= 3600000;
	find_unknown("files/x", &unsure);
	ck_assert(!ucm_files_is_silent(&tree, 0));
	ck_assert(fx_logged("answers again"));
}

UNIT_TEST(a_file_is_made_without_a_silent_directory)
{
	tree_store("$/a:$/b");
	put("a/files/x", "old");
	fx_mkdirs(fx_path("$/b/files"));
	fall_silent("stat", "files/x", 1);
	/* as if that directory were not chosen either */
	atomic_store(&dirs.at[0]->retry_s, INT64_MAX);
	ck_assert_int_eq(create("files/x"), 0);
	ck_assert_uint_eq(found.dir, 1);
	ck_assert_uint_eq(left_out(0), 1);
	/* it is back: the first one hides the new one, and nothing is lost */
	fx_fail(NULL, 0, 0, false);
	leads_to("files/x", "old");
	ck_assert(fx_exists(fx_path("$/b/files/x")));
}

/* Or nobody could say whose folder it is. */
UNIT_TEST(nothing_is_made_in_a_folder_that_is_only_in_a_silent_directory)
{
	tree_store("$/a:$/b");
	fx_mkdirs(fx_path("$/a/files/d"));
	fx_fail_on("stat", "files/d", 1, -ETIMEDOUT, false);
	ck_assert_int_eq(create("files/d/x"), UCM_FILES_SILENT);
	ck_assert_uint_eq(ucm_medium_state(dirs.at[0]), UCM_DIR_GOOD);
	ck_assert_uint_eq(ucm_medium_state(dirs.at[1]), UCM_DIR_GOOD);
}

UNIT_TEST(a_file_is_removed_without_a_silent_directory)
{
	tree_store("$/a:$/b");
	put("a/files/x", "a");
	put("b/files/x", "b");
	fall_silent("stat", "files/x", 1);
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/x"), 0);
	ck_assert(!fx_exists(fx_path("$/b/files/x")));
	ck_assert_uint_eq(left_out(0), 1);
	fall_silent("stat", "files/x", 1);
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/x"), UCM_FILES_SILENT);
	ck_assert(fx_exists(fx_path("$/a/files/x")));
}

UNIT_TEST(a_file_is_renamed_without_a_silent_directory)
{
	tree_store("$/a:$/b");
	put("a/files/x", "x");
	put("a/files/y", "y");
	fall_silent("stat", "files/x", 2);
	ck_assert_int_eq(rename_to("files/x", "files/y"), 0);
	leads_to("files/y", "x");
	put("a/files/x", "z");
	fall_silent("stat", "files/new", 2);
	ck_assert_int_eq(rename_to("files/x", "files/new"), 0);
	leads_to("files/new", "z");
	ck_assert_uint_eq(left_out(1), 1);
}

/* It would be hidden when that one is back. */
UNIT_TEST(a_file_is_not_renamed_behind_a_silent_directory)
{
	tree_store("$/a:$/b");
	put("a/files/y", "old");
	put("b/files/x", "new");
	fall_silent("stat", "files/y", 1);
	ck_assert_int_eq(rename_to("files/x", "files/y"), UCM_FILES_SILENT);
	leads_to("files/x", "new");
	leads_to("files/y", "old");
}

static int remove_folder(void)
{
	return ucm_files_rmdir(&tree, "files/d");
}

static int rename_folder(void)
{
	return rename_to("files/d", "files/e");
}

static int change_folder(bool rights)
{
	struct ucm_files_change change = {
		.mode_set = rights,
		.mode = 0700,
		.times_set = !rights,
		.times = { { .tv_sec = 1 }, { .tv_sec = 1 } },
		.uid = (uid_t)-1,
		.gid = (gid_t)-1,
	};

	found.st.st_mode = S_IFDIR;
	return ucm_files_change(&tree, "files/d", &found, &change);
}

static int change_rights(void)
{
	return change_folder(true);
}

static int sync_folder(void)
{
	return ucm_files_sync_dir(&tree, "files/d");
}

static int (*const guesses[])(void) = {
	remove_folder, rename_folder, change_rights, sync_folder,
};

/* Whichever of the directories it is. */
UNIT_TEST(what_could_lose_something_by_a_guess_is_refused,
	  .rows = 2 * NUM_ROWS(guesses))
{
	mode_t mode[2];

	tree_store("$/a:$/b");
	fx_mkdirs(fx_path("$/a/files/d"));
	fx_mkdirs(fx_path("$/b/files/d"));
	mode[0] = mode_of("a/files/d");
	mode[1] = mode_of("b/files/d");
	fall_silent("stat", "files/d", 1 + _i % 2);
	ck_assert_int_eq(guesses[_i / 2](), UCM_FILES_SILENT);
	ck_assert_uint_eq(mode_of("a/files/d"), mode[0]);
	ck_assert_uint_eq(mode_of("b/files/d"), mode[1]);
}

UNIT_TEST(times_of_a_folder_change_without_a_silent_directory)
{
	tree_store("$/a:$/b");
	fx_mkdirs(fx_path("$/a/files/d"));
	fx_mkdirs(fx_path("$/b/files/d"));
	fall_silent("stat", "files/d", 2);
	ck_assert_int_eq(change_folder(false), 0);
}

UNIT_TEST(a_listing_says_what_it_lacks)
{
	struct ucm_files_mutes mutes;
	struct ucm_files_names names;

	tree_store("$/a:$/b");
	put("a/files/1", "a");
	put("b/files/2", "b");
	fall_silent("list", "files", 1);
	ck_assert_int_eq(ucm_files_list(&tree, "files", &names), 0);
	ck_assert_uint_eq(names.num, 1);
	ck_assert_str_eq(names.list[0].name, "2");
	ck_assert(ucm_files_is_mute(&names.mutes, 0));
	ck_assert(!ucm_files_is_mute(&names.mutes, 1));
	ck_assert_uint_eq(left_out(0), 1);
	ucm_files_names_free(&names);
	fx_fail_on("list", "files", 1, -ETIMEDOUT, false);
	ck_assert_int_eq(ucm_files_list(&tree, "files", &names),
			 UCM_FILES_SILENT);
	fall_silent("stat", "files", 2);
	ucm_files_missing(&tree, "files", &mutes);
	ck_assert(!ucm_files_is_mute(&mutes, 0));
	ck_assert(ucm_files_is_mute(&mutes, 1));
	ucm_files_missing(&tree, "files", &mutes);
	ck_assert_uint_eq(mutes.num, 0);
}

/* Times of files come from a coarse clock. */
static bool new_files_are_newer(void *than)
{
	const struct stat *old = than;
	struct stat st;

	fx_put(fx_path("$/clock"), "", 0);
	return !stat(fx_path("$/clock"), &st) &&
	       (st.st_ctim.tv_sec > old->st_ctim.tv_sec ||
		st.st_ctim.tv_nsec > old->st_ctim.tv_nsec);
}

UNIT_TEST(what_files_take_counts_in_the_limit)
{
	static char bytes[100000];
	uint64_t one;
	struct stat st;

	fx_configure("$/a:$/b");
	tree_open();
	tree_close();
	put("a/files/d/e/x", "");
	fx_put(fx_path("$/a/files/d/e/x"), bytes, sizeof(bytes));
	put("a/files/y", "");
	fx_put(fx_path("$/a/files/y"), bytes, sizeof(bytes));
	ck_assert_int_eq(stat(fx_path("$/a/files/y"), &st), 0);
	one = (uint64_t)st.st_blocks * 512;
	ck_assert_uint_gt(one, 0);
	/* what is as new as the start is taken to come after it */
	fx_wait(new_files_are_newer, &st);
	fx_configure("$/a:$/b");
	tree_open();
	tree_start();
	fx_wait(is_counted, NULL);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), 2 * one);
	ck_assert_uint_eq(ucm_tier_used(&dirs.tiers[0]), 2 * one);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[1]), 0);
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/d/e/x"), 0);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), one);
	ck_assert_int_eq(create("files/n"), 0);
	ck_assert_int_eq(rename_to("files/n", "files/y"), 0);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), 0);
	ucm_files_account_dir(&tree, 0, -4096); /* a wrong count does no harm */
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), 0);
}

UNIT_TEST(paths_may_be_long)
{
	char path[4000] = "files", deep[4096];
	struct ucm_files_names names;

	tree_store("$/a:$/b");
	while (strlen(path) < 3700) {
		strcat(path, "/0123456789012345678901234567890123456789");
		ck_assert_int_eq(make_folder(path, 0755), 0);
	}
	snprintf(deep, sizeof(deep), "%s/x", path);
	dirs.tiers[0].limit.size = 1;
	atomic_store(&dirs.at[0]->files, 2);
	ck_assert_int_eq(create(deep), 0); /* with all above it, in b */
	ck_assert_uint_eq(found.dir, 1);
	ck_assert_int_eq(ucm_files_list(&tree, path, &names), 0);
	ck_assert_uint_eq(names.num, 1);
	ucm_files_names_free(&names);
	ck_assert_int_eq(ucm_files_unlink(&tree, deep), 0);
}
