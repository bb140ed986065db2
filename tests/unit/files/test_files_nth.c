/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_files_nth.c - every call of an operation on files/ fails, each in its
 * turn, in ten ways: the names lead then to what they led to before, or to what
 * was asked for.
 */
#include <config.h>

#include "fs/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "tests/unit/tier_fixture.h"

struct operation {
	const char *name;
	const char *files; /* there before: "x=new d/=" */
	int (*act)(void);
	/* What the names lead to, in the order of watched[]: before it, and when
	 * it is done. */
	const char *before, *done;
	unsigned calls; /* that it makes at least */
};

static const char *const watched[] = {
	"files/x", "files/y", "files/d", "files/d/y", "files/e", "files/e/y",
};

static const int errnos[] = {
	-EIO,	 -ENOSPC, -EDQUOT, -EROFS,     -ENOMEM,
	-EMFILE, -EINTR,  -ESTALE, -ETIMEDOUT, -EACCES,
};

static struct ucm_dirs dirs;
static struct ucm_files_tree tree;
static struct stat found;
static char where[256]; /* for whoever reads of a failure */
static bool dying;      /* all calls fail from the nth on */

/* ---- a tree ---- */

static void start(const char *source)
{
	struct ucm_error error = { "" };

	fx_configure(source);
	ck_assert_msg(!ucm_dirs_open(&dirs, &fx_config, &error), "%s",
		      error.text);
	ucm_files_tree_init(&tree, &dirs, 0);
	ck_assert_int_eq(ucm_medium_begin(dirs.at[0]), 0);
}

static void stop(void)
{
	ucm_dirs_close(&dirs);
	ucm_config_fini(&fx_config);
	ucm_config_init(&fx_config);
}

/* "x=new", or a folder: "d/=" */
static void put(unsigned nth, const char *word)
{
	char path[256], *text;

	snprintf(path, sizeof(path), "%s",
		 fx_path("$/%u/files/%s", nth, word));
	text = strchr(path, '=');
	*text++ = '\0';
	if (text[-2] == '/')
		fx_mkdirs(path);
	else
		fx_put(path, text, strlen(text));
}

static void put_all(unsigned nth, const char *files)
{
	char words[256], *next = NULL;

	snprintf(words, sizeof(words), "%s", files);
	for (char *word = strtok_r(words, " ", &next); word;
	     word = strtok_r(NULL, " ", &next))
		put(nth, word);
}

/* What a name leads to: "-", "/", what a link says, or a file's text. */
static void look_at(const char *path, char *out, size_t size)
{
	char text[PATH_MAX] = "";
	struct stat st;
	int err = ucm_files_look(&tree, path, &st);

	if (err == -ENOENT || (!err && S_ISDIR(st.st_mode))) {
		snprintf(out, size, err ? "-" : "/");
		return;
	}
	ck_assert_msg(!err, "%s: %s: %s", where, path, strerror(-err));
	err = S_ISLNK(st.st_mode) ? ucm_os_readlink(tree.at->dirfd, path, text,
						    sizeof(text))
				  : ucm_os_read_file(tree.at->dirfd, path, text,
						     sizeof(text));
	ck_assert_int_eq(err, 0);
	snprintf(out, size, "%.60s", text);
}

static const char *look(void)
{
	static char all[512];
	size_t len = 0;

	for (size_t i = 0; i < NUM_ROWS(watched); i++) {
		all[len++] = ' ';
		look_at(watched[i], all + len, 64);
		len += strlen(all + len);
	}
	return all + 1;
}

/* ---- operations ---- */

static const struct ucm_files_owner *owner(void)
{
	static struct ucm_files_owner who = { .mode = 0750, .target = "to" };

	who.uid = geteuid();
	who.gid = getegid();
	return &who;
}

static int rename_to(const char *from, const char *to)
{
	struct stat from_st, to_st;
	int err = ucm_files_look(&tree, from, &from_st), over;

	if (err)
		return err;
	over = ucm_files_look(&tree, to, &to_st);
	if (over && over != -ENOENT)
		return over;
	return ucm_files_rename(&tree, from, to, 0, &from_st,
				over ? NULL : &to_st);
}

static int x_to_y(void)
{
	return rename_to("files/x", "files/y");
}

static int x_into_d(void)
{
	return rename_to("files/x", "files/d/y");
}

static int d_to_e(void)
{
	return rename_to("files/d", "files/e");
}

static int create(void)
{
	int fd = ucm_files_create(&tree, "files/x", owner(), &found);

	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

static int make_folder(void)
{
	return ucm_files_mkdir(&tree, "files/d", owner(), &found);
}

static int make_link(void)
{
	return ucm_files_symlink(&tree, "files/x", owner(), &found);
}

static int remove_x(void)
{
	int err = ucm_files_look(&tree, "files/x", &found);

	return err ? err : ucm_files_unlink(&tree, "files/x", &found);
}

static int link_x(void)
{
	_cleanup_fd_ int fd = ucm_os_open(tree.at->dirfd, "files/x", O_PATH, 0);

	return fd < 0 ? fd : ucm_files_link(&tree, fd, "files/y", &found);
}

static int remove_d(void)
{
	return ucm_files_rmdir(&tree, "files/d");
}

static const struct operation operations[] = {
	{ "rename", "x=new", x_to_y, "new - - - - -", "- new - - - -", 3 },
	{ "over one", "x=new y=old", x_to_y, "new old - - - -",
	  "- new - - - -", 3 },
	{ "into a folder", "x=new d/=", x_into_d, "new - / - - -",
	  "- - / new - -", 3 },
	{ "of a folder", "d/y=y e/=", d_to_e, "- - / y / -", "- - - - / y",
	  3 },
	{ "create", "", create, "- - - - - -", " - - - - -", 3 },
	{ "mkdir", "", make_folder, "- - - - - -", "- - / - - -", 3 },
	{ "symlink", "", make_link, "- - - - - -", "to - - - - -", 3 },
	{ "link", "x=x", link_x, "x - - - - -", "x x - - - -", 3 },
	{ "unlink", "x=x", remove_x, "x - - - - -", "- - - - - -", 2 },
	{ "rmdir", "d/=", remove_d, "- - / - - -", "- - - - - -", 1 },
};

/* What failed is not done, unless it could not be undone. */
static void compare(const struct operation *op, int err)
{
	const char *now = look();

	if ((err && !strcmp(now, op->before)) ||
	    ((!err || dying) && !strcmp(now, op->done)))
		return;
	ck_abort_msg("%s: '%s'", where, now);
}

/* True if the fault was met. */
static bool try_nth(const struct operation *op, unsigned nth, int fault,
		    bool once)
{
	char source[64];
	const char *failed;
	int err;

	snprintf(source, sizeof(source), "$/%u", nth);
	put_all(nth, op->files);
	start(source);
	fx_fail(NULL, nth, fault, once);
	err = op->act();
	failed = fx_failed_call();
	fx_fail(NULL, 0, 0, false);
	snprintf(where, sizeof(where), "%s: call %u%s, %s: %s: %s", op->name,
		 nth, once ? "" : " and on", failed ? failed : "none",
		 strerror(-fault), err ? strerror(-err) : "succeeds");
	compare(op, err);
	stop();
	return failed;
}

static void sweep(const struct operation *op, int err, bool once)
{
	unsigned nth = 1;

	dying = !once;
	while (try_nth(op, nth, err, once))
		nth++;
	ck_assert_msg(nth > op->calls, "%s: %u calls only", op->name, nth - 1);
}

/* There are thousands of starts, and each syncs. */
static void __attribute__((constructor)) use_memory(void)
{
	fx_use_memory();
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(a_call_that_fails_leaves_no_name_half_way,
	  .rows = NUM_ROWS(operations) * NUM_ROWS(errnos))
{
	sweep(&operations[_i / NUM_ROWS(errnos)],
	      errnos[_i % NUM_ROWS(errnos)], true);
}

UNIT_TEST(a_disk_that_dies_leaves_no_name_half_way,
	  .rows = NUM_ROWS(operations) * NUM_ROWS(errnos))
{
	sweep(&operations[_i / NUM_ROWS(errnos)],
	      errnos[_i % NUM_ROWS(errnos)], false);
}
