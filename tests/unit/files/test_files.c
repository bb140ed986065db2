/* SPDX-License-Identifier: Apache-2.0 */
/* test_files.c - files/: a tree in one of the directories. */
#include <config.h>

#include "fs/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "tests/unit/store_fixture.h"

static struct ucm_dirs dirs;
static struct ucm_files_tree tree;
static struct stat found;

/* ---- a tree ---- */

static void tree_open(void)
{
	struct ucm_error error = { "" };
	unsigned dir;

	ck_assert_msg(!ucm_dirs_open(&dirs, &fx_config, &error), "%s",
		      error.text);
	ck_assert_int_eq(ucm_files_choose(&dirs, NULL, &dir, &error), 0);
	ucm_files_tree_init(&tree, &dirs, dir);
}

static void tree_close(void)
{
	ucm_dirs_close(&dirs);
}

static void tree_teardown(void)
{
	tree_close();
	fx_teardown();
}

static void tree_start(void)
{
	static const _Atomic bool stopping;

	for (unsigned i = 0; i < dirs.num; i++)
		ck_assert_int_eq(ucm_medium_begin(dirs.at[i]), 0);
	ucm_files_count(&dirs, &stopping);
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
	return ucm_files_look(&tree, path, &found);
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
	return 0;
}

static int make_folder(const char *path, mode_t mode)
{
	struct ucm_files_owner who = owner(mode);

	return ucm_files_mkdir(&tree, path, &who, &found);
}

static int make_link(const char *target, const char *path)
{
	struct ucm_files_owner who = owner(0777);

	who.target = target;
	return ucm_files_symlink(&tree, path, &who, &found);
}

static int unlink_it(const char *path)
{
	int err = find(path);

	return err ? err : ucm_files_unlink(&tree, path, &found);
}

static int rename_flags(const char *from, const char *to, unsigned flags)
{
	struct stat from_st, to_st;
	int err = ucm_files_look(&tree, from, &from_st), over;

	if (err)
		return err;
	over = !ucm_files_look(&tree, to, &to_st);
	return ucm_files_rename(&tree, from, to, flags, &from_st,
				over ? &to_st : NULL);
}

static int rename_to(const char *from, const char *to)
{
	return rename_flags(from, to, 0);
}

static mode_t mode_of(const char *path)
{
	struct stat st;

	ck_assert_int_eq(stat(fx_path("$/%s", path), &st), 0);
	return st.st_mode & 07777;
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = tree_teardown);

/* ---- where it is ---- */

static void tree_is_in(const char *source, const char *path)
{
	fx_configure(source);
	tree_open();
	ck_assert_str_eq(tree.at->medium.path, fx_path("$/%s", path));
}

UNIT_TEST(it_is_in_the_first_directory)
{
	tree_is_in("$/a,$/b:$/c", "a");
}

UNIT_TEST(memory_and_what_is_read_only_come_last)
{
	static const unsigned want[] = { 1, 2, 1 };
	struct ucm_error error;
	unsigned dir;

	fx_configure("$/a:$/b:$/c");
	tree_open();
	dirs.at[0]->readonly = true;
	for (unsigned i = 0; i < NUM_ROWS(want); i++) {
		ck_assert_int_eq(ucm_files_choose(&dirs, NULL, &dir, &error),
				 0);
		ck_assert_uint_eq(dir, want[i]);
		dirs.at[i + 1 < dirs.num ? i + 1 : 1]->flags |=
			UCM_MEDIUM_VOLATILE;
	}
}

UNIT_TEST(a_directory_may_be_named)
{
	struct ucm_error error;
	unsigned dir = 7;

	fx_configure("$/a,$/b:$/c");
	tree_open();
	ck_assert_int_eq(symlink("c", fx_path("$/link")), 0);
	ck_assert_int_eq(ucm_files_choose(&dirs, fx_path("$/link"), &dir,
					  &error),
			 0);
	ck_assert_uint_eq(dir, 2);
	ck_assert_int_eq(ucm_files_choose(&dirs, fx_path("$/c/files"), &dir,
					  &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, fx_path("$/c/files")));
	ck_assert_int_eq(ucm_files_choose(&dirs, "/not/there", &dir, &error),
			 -EINVAL);
	ck_assert_str_eq(error.text, "files=/not/there: it is not one of the "
				     "mount's directories");
	ck_assert_uint_eq(dir, 2);
}

UNIT_TEST(others_with_files_are_named_once)
{
	tree_store("$/a,$/b:$/c");
	put("a/files/x", "a");
	ucm_files_warn_of_others(&tree);
	ck_assert(!fx_logged("not served"));
	put("b/files/x", "b");
	put("c/files/d/y", "c");
	ucm_files_warn_of_others(&tree);
	ck_assert(fx_logged(fx_path("is not served: $/b, $/c;")));
}

UNIT_TEST(what_is_in_others_is_not_there)
{
	tree_store("$/a,$/b");
	put("b/files/x", "b");
	leads_nowhere("files/x");
	ck_assert_int_eq(create("files/x"), 0);
	holds("b/files/x", "b");
}

/* ---- finding ---- */

UNIT_TEST(what_is_neither_file_link_nor_folder_is_not_there)
{
	struct ucm_files_entries names;

	tree_store("$/a");
	ck_assert_int_eq(mkfifo(fx_path("$/a/files/fifo"), 0600), 0);
	put("a/files/file", "good");
	leads_nowhere("files/fifo");
	leads_nowhere("files/file/below");
	ck_assert_int_eq(create("files/fifo"), -EPERM);
	ck_assert_int_eq(
		ucm_files_entries(tree.at->dirfd, "files", &names), 0);
	ck_assert_uint_eq(names.num, 1);
	ck_assert_str_eq(names.list[0].name, "file");
	ucm_files_entries_free(&names);
}

UNIT_TEST(a_directory_that_cannot_say_makes_no_name_absent)
{
	tree_store("$/a");
	put("a/files/x", "a");
	fx_fail_on("stat", "files/", 1, -EIO, false);
	ck_assert_int_eq(find("files/none"), -EIO);
	fx_fail(NULL, 0, 0, false);
	ck_assert(fx_logged("/files/none: stat: Input/output error"));
	ck_assert_uint_eq(dirs.io_errors, 1);
	fx_fail_on("stat", "files/", 1, -ETIMEDOUT, false);
	ck_assert_int_eq(find("files/x"), -ETIMEDOUT);
}

UNIT_TEST(an_inode_number_outlives_rename_and_restart)
{
	ino_t ino;

	tree_store("$/a");
	ck_assert_int_eq(create("files/x"), 0);
	ino = found.st_ino;
	ck_assert_int_eq(create("files/y"), 0);
	ck_assert(ucm_files_ino(ino) != ucm_files_ino(found.st_ino));
	ck_assert_int_eq(rename_to("files/x", "files/z"), 0);
	tree_close();
	tree_store("$/a");
	ck_assert_int_eq(find("files/z"), 0);
	ck_assert_uint_eq(found.st_ino, ino);
}

/* ---- symbolic links ---- */

/* The name is a link, and says so. */
static void says(const char *path, const char *target)
{
	char is[PATH_MAX];

	ck_assert_msg(!find(path), "%s is not there", path);
	ck_assert(S_ISLNK(found.st_mode));
	ck_assert_uint_eq(found.st_size, strlen(target));
	ck_assert_int_eq(ucm_os_readlink(tree.at->dirfd, path, is, sizeof(is)),
			 0);
	ck_assert_str_eq(is, target);
}

UNIT_TEST(a_link_is_never_followed)
{
	tree_store("$/a");
	put("outside/secret", "s");
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
	ck_assert_int_eq(unlink_it("files/link/secret"), -ENOENT);
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/link"), -ENOTDIR);
	ck_assert_int_eq(unlink_it("files/file"), 0);
	leads_nowhere("files/file");
	holds("outside/secret", "s");
}

UNIT_TEST(a_link_in_the_place_of_the_tree_is_none_of_it)
{
	tree_store("$/a");
	put("outside/secret", "s");
	ck_assert_int_eq(rmdir(fx_path("$/a/files")), 0);
	ck_assert_int_eq(symlink("../outside", fx_path("$/a/files")), 0);
	leads_nowhere("files");
	leads_nowhere("files/secret");
}

static const char *const targets[] = {
	"x", "/", "/etc/passwd", "../../..", "l", "not/there", " ", "\\\n",
};

UNIT_TEST(a_link_says_what_it_was_told, .rows = NUM_ROWS(targets))
{
	tree_store("$/a");
	ck_assert_int_eq(make_link(targets[_i], "files/l"), 0);
	says("files/l", targets[_i]);
	ck_assert_int_eq(make_link(targets[_i], "files/none/l"), -ENOENT);
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
	"../outside/secret",
};

UNIT_TEST(no_path_leaves_the_tree, .rows = NUM_ROWS(ways_out))
{
	struct stat st = { .st_nlink = 1 };

	tree_store("$/a");
	put("outside/secret", "s");
	ck_assert_int_lt(find(ways_out[_i]), 0);
	ck_assert_int_lt(ucm_files_unlink(&tree, ways_out[_i], &st), 0);
	ck_assert_int_lt(ucm_files_rename(&tree, ways_out[_i], "files/x", 0,
					  &st, NULL),
			 0);
	ck_assert(fx_exists(fx_path("$/outside/secret")));
}

/* ---- making ---- */

UNIT_TEST(a_new_file_is_what_was_asked_for)
{
	tree_store("$/a");
	ck_assert_int_eq(create("files/x"), 0);
	ck_assert_uint_eq(found.st_mode, S_IFREG | 0640);
	ck_assert_int_eq(create("files/x"), -EEXIST);
	ck_assert_int_eq(make_folder("files/x", 0755), -EEXIST);
	ck_assert_int_eq(create("files/none/x"), -ENOENT);
	ck_assert_int_eq(create("files/x/y"), -ENOTDIR);
	ck_assert_int_eq(make_folder("files/d", 0711), 0);
	ck_assert_uint_eq(found.st_mode, S_IFDIR | 0711);
	ck_assert_int_eq(create("files/d"), -EEXIST);
	ck_assert_uint_eq(dirs.tiers[0].stats.files_created, 1);
}

UNIT_TEST(set_id_bits_are_refused)
{
	struct ucm_files_owner who = owner(0);

	tree_store("$/a");
	for (mode_t bits = 02000; bits <= 06000; bits += 02000) {
		who.mode = 0755 | bits;
		ck_assert_int_eq(ucm_files_create(&tree, "files/x", &who,
						  &found),
				 -EPERM);
	}
	leads_nowhere("files/x");
	ck_assert_int_eq(make_folder("files/d", 04755), -EPERM);
	leads_nowhere("files/d");
	/* a folder hands down its group by one */
	ck_assert_int_eq(make_folder("files/d", 02770), 0);
	ck_assert_uint_eq(mode_of("a/files/d"), 02770);
	ck_assert_int_eq(make_folder("files/d/e", 0700), 0);
	ck_assert_uint_eq(mode_of("a/files/d/e"), 02700);
}

UNIT_TEST(a_full_tier_takes_no_more)
{
	tree_store("$/a:$/b");
	dirs.tiers[0].limit.size = 1 << 20;
	ck_assert_int_eq(create("files/x"), 0);
	atomic_store(&dirs.at[0]->used, 1 << 20);
	ck_assert_int_eq(create("files/y"), -ENOSPC);
	ck_assert_int_eq(make_folder("files/d", 0755), -ENOSPC);
	ck_assert_int_eq(make_link("x", "files/l"), -ENOSPC);
	leads_nowhere("files/y");
	atomic_store(&dirs.at[0]->used, 0);
	dirs.tiers[0].limit.size = 0;
	dirs.at[0]->limit.size = 1 << 20;
	atomic_store(&dirs.at[0]->files, 1 << 20);
	ck_assert_int_eq(create("files/y"), -ENOSPC);
	atomic_store(&dirs.at[0]->files, 0);
	ck_assert_int_eq(create("files/y"), 0);
}

UNIT_TEST(a_directory_that_is_drained_takes_no_more)
{
	tree_store("$/a");
	atomic_store(&dirs.at[0]->draining, true);
	ck_assert_int_eq(create("files/x"), -ENOSPC);
}

UNIT_TEST(a_read_only_tier_takes_and_loses_nothing)
{
	fx_configure("$/a");
	tree_open();
	tree_close();
	put("a/files/d/x", "x");
	fx_configure("$/a");
	fx_config.tiers[0].readonly = true;
	tree_open();
	tree_start();
	ck_assert_int_eq(unlink_it("files/d/x"), -EROFS);
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/d"), -EROFS);
	ck_assert_int_eq(rename_to("files/d/x", "files/y"), -EROFS);
	ck_assert_int_eq(rename_to("files/d", "files/y"), -EROFS);
	ck_assert_int_eq(create("files/new"), -EROFS);
	ck_assert_int_eq(make_folder("files/new", 0755), -EROFS);
	holds("a/files/d/x", "x");
}

/* ---- names of one file ---- */

static int link_to(const char *from, const char *to)
{
	_cleanup_fd_ int fd = ucm_os_open(tree.at->dirfd, from, O_PATH, 0);

	ck_assert_int_ge(fd, 0);
	return ucm_files_link(&tree, fd, to, &found);
}

UNIT_TEST(a_file_has_several_names)
{
	static const char bytes[20000];

	tree_store("$/a");
	put("a/files/x", "");
	fx_put(fx_path("$/a/files/x"), bytes, sizeof(bytes));
	ck_assert_int_eq(find("files/x"), 0);
	atomic_store(&dirs.at[0]->files, (int64_t)ucm_file_takes(&found));
	ck_assert_int_eq(link_to("files/x", "files/y"), 0);
	ck_assert_uint_eq(found.st_nlink, 2);
	ck_assert_int_eq(link_to("files/x", "files/y"), -EEXIST);
	ck_assert_int_eq(link_to("files/x", "files/none/y"), -ENOENT);
	/* its bytes are there once, and gone with the last name */
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]),
			  ucm_file_takes(&found));
	ck_assert_int_eq(rename_to("files/x", "files/y"), 0); /* POSIX */
	ck_assert_int_eq(unlink_it("files/x"), 0);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]),
			  ucm_file_takes(&found));
	ck_assert_int_eq(unlink_it("files/y"), 0);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), 0);
}

UNIT_TEST(a_link_that_cannot_be_looked_at_is_none)
{
	tree_store("$/a");
	put("a/files/x", "x");
	fx_fail("fstat", 1, -EIO, true);
	ck_assert_int_eq(link_to("files/x", "files/y"), -EIO);
	leads_nowhere("files/y");
}

/* ---- removing ---- */

UNIT_TEST(only_an_empty_folder_is_removed)
{
	struct stat st = { .st_nlink = 1 };

	tree_store("$/a");
	put("a/files/d/x", "x");
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/d"), -ENOTEMPTY);
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/d/x"), -ENOTDIR);
	ck_assert_int_eq(ucm_files_unlink(&tree, "files/d", &st), -EISDIR);
	ck_assert_int_eq(unlink_it("files/d/x"), 0);
	ck_assert_int_eq(unlink_it("files/d/x"), -ENOENT);
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/d"), 0);
	leads_nowhere("files/d");
	ck_assert_uint_eq(dirs.tiers[0].stats.files_removed, 1);
}

/* ---- renaming ---- */

static const struct {
	const char *from, *to;
	unsigned flags;
	int err;
} refusals[] = {
	{ "files/none", "files/y", 0, -ENOENT },
	{ "files/x", "files/none/y", 0, -ENOENT },
	{ "files/x", "files/y", RENAME_NOREPLACE, -EEXIST },
	{ "files/x", "files/d", 0, -EISDIR },
	{ "files/d", "files/x", 0, -ENOTDIR },
	{ "files/d", "files/full", 0, -ENOTEMPTY },
	{ "files/d", "files/e", RENAME_NOREPLACE, -EEXIST },
};

UNIT_TEST(a_rename_that_cannot_be_changes_nothing, .rows = NUM_ROWS(refusals))
{
	tree_store("$/a");
	put("a/files/x", "x");
	put("a/files/y", "y");
	put("a/files/d/z", "z");
	fx_mkdirs(fx_path("$/a/files/e"));
	put("a/files/full/f", "f");
	ck_assert_int_eq(rename_flags(refusals[_i].from, refusals[_i].to,
				      refusals[_i].flags),
			 refusals[_i].err);
	holds("a/files/x", "x");
	holds("a/files/y", "y");
	holds("a/files/d/z", "z");
	holds("a/files/full/f", "f");
}

UNIT_TEST(a_rename_is_one_call)
{
	tree_store("$/a");
	put("a/files/x", "new");
	put("a/files/y", "old");
	put("a/files/d/e/z", "z");
	fx_mkdirs(fx_path("$/a/files/n/m"));
	fx_fail("rename", 2, -EIO, true);
	ck_assert_int_eq(rename_to("files/x", "files/y"), 0);
	ck_assert_int_eq(rename_to("files/d", "files/n/m"), -EIO);
	holds("a/files/y", "new");
	holds("a/files/d/e/z", "z");
	ck_assert_int_eq(rename_to("files/d", "files/n/m"), 0);
	leads_nowhere("files/x");
	leads_nowhere("files/d");
	holds("a/files/n/m/e/z", "z");
}

UNIT_TEST(a_name_is_renamed_to_itself)
{
	tree_store("$/a");
	put("a/files/x", "x");
	put("a/files/d/y", "y");
	ck_assert_int_eq(rename_to("files/x", "files/x"), 0);
	ck_assert_int_eq(rename_to("files/d", "files/d"), 0);
	holds("a/files/x", "x");
	holds("a/files/d/y", "y");
	ck_assert_uint_eq(dirs.tiers[0].stats.files_removed, 0);
}

/* ---- listing and counting ---- */

UNIT_TEST(a_listing_has_all_names)
{
	struct ucm_files_entries names;
	int dirfd;

	tree_store("$/a");
	dirfd = tree.at->dirfd;
	put("a/files/1", "a");
	put("a/files/d/x", "x");
	ck_assert_int_eq(make_link("1", "files/l"), 0);
	ck_assert_int_eq(ucm_files_entries(dirfd, "files", &names), 0);
	ck_assert_uint_eq(names.num, 3);
	for (unsigned i = 0; i < names.num; i++) {
		char path[300];

		snprintf(path, sizeof(path), "files/%s", names.list[i].name);
		ck_assert_int_eq(find(path), 0);
		ck_assert_uint_eq(names.list[i].ino, found.st_ino);
		ck_assert_uint_eq(DTTOIF(names.list[i].type),
				  found.st_mode & S_IFMT);
	}
	ucm_files_entries_free(&names);
	ck_assert_int_eq(ucm_files_entries(dirfd, "files/none", &names),
			 -ENOENT);
	ck_assert_int_eq(ucm_files_entries(dirfd, "files/1", &names), -ENOENT);
	fx_fail_on("list", "files", 1, -EIO, true);
	ck_assert_int_eq(ucm_files_entries(dirfd, "files", &names), -EIO);
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
	ck_assert_int_eq(link(fx_path("$/a/files/y"),
			      fx_path("$/a/files/same")),
			 0);
	/* of another directory than that of the tree as well */
	put("b/files/z", "");
	fx_put(fx_path("$/b/files/z"), bytes, sizeof(bytes));
	ck_assert_int_eq(stat(fx_path("$/b/files/z"), &st), 0);
	one = (uint64_t)st.st_blocks * 512;
	ck_assert_uint_gt(one, 0);
	/* what is as new as the start is taken to come after it */
	fx_wait(new_files_are_newer, &st);
	tree_store("$/a:$/b");
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), 2 * one);
	ck_assert_uint_eq(ucm_tier_used(&dirs.tiers[0]), 2 * one);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[1]), one);
	ck_assert_int_eq(unlink_it("files/d/e/x"), 0);
	ck_assert_int_eq(unlink_it("files/same"), 0);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), one);
	ck_assert_int_eq(create("files/n"), 0);
	ck_assert_int_eq(rename_to("files/n", "files/y"), 0);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), 0);
	/* a wrong count does no harm */
	ucm_files_account(&tree, "files/y", -4096);
	ck_assert_uint_eq(ucm_tier_files(&dirs.tiers[0]), 0);
}

UNIT_TEST(paths_may_be_long)
{
	char path[4000] = "files", deep[4096];
	struct ucm_files_entries names;

	tree_store("$/a");
	while (strlen(path) < 3700) {
		strcat(path, "/0123456789012345678901234567890123456789");
		ck_assert_int_eq(make_folder(path, 0755), 0);
	}
	snprintf(deep, sizeof(deep), "%s/x", path);
	ck_assert_int_eq(create(deep), 0);
	ck_assert_int_eq(ucm_files_entries(tree.at->dirfd, path, &names), 0);
	ck_assert_uint_eq(names.num, 1);
	ucm_files_entries_free(&names);
	ck_assert_int_eq(unlink_it(deep), 0);
}
