/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_files_nth.c - every call of an operation on files/ fails, each in its
 * turn, in ten ways: the names lead then to what they led to before, or to what
 * was asked for; so they do after the next start.
 */
#include <config.h>

#include "fs/files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/osfile.h"
#include "tests/unit/tier_fixture.h"

struct operation {
	const char *name;
	const char *files; /* there before: "a/x=new b/d/=" */
	int (*act)(void);
	/* What the names lead to, in the order of watched[]: before it, when it
	 * is done, and in between, until the next start (NULL: never). */
	const char *before, *done, *between;
	unsigned calls; /* that it makes at least */
	/* What they may lead to when it was done without a directory that did
	 * not answer, beside done. */
	const char *without[2];
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
static struct ucm_files found;
static char where[256]; /* for whoever reads of a failure */
static bool dying;      /* all calls fail from the nth on */
static bool half_done;  /* until the next start */

/* ---- a tree ---- */

static void start(const char *source)
{
	struct ucm_error error = { "" };

	fx_configure(source);
	ck_assert_msg(!ucm_dirs_open(&dirs, &fx_config, &error), "%s",
		      error.text);
	ucm_files_tree_init(&tree, &dirs);
	for (unsigned i = 0; i < dirs.num; i++)
		ck_assert_int_eq(ucm_medium_begin(dirs.at[i]), 0);
	ucm_files_recover(&tree);
}

static void stop(void)
{
	ucm_dirs_close(&dirs);
	ucm_config_fini(&fx_config);
	ucm_config_init(&fx_config);
}

/* "a/x=new", or a folder: "a/d/=" */
static void put(unsigned nth, const char *word)
{
	char path[256], *text;

	snprintf(path, sizeof(path), "%s",
		 fx_path("$/%u%c/files%s", nth, word[0], word + 1));
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
	int fd, err = ucm_files_find(&tree, path, UCM_FILES_NOWHERE, &found);

	if (err == -ENOENT || (!err && S_ISDIR(found.st.st_mode))) {
		snprintf(out, size, err ? "-" : "/");
		return;
	}
	ck_assert_msg(!err, "%s: %s: %s", where, path, strerror(-err));
	if (S_ISLNK(found.st.st_mode)) {
		ck_assert_int_eq(ucm_files_readlink(&tree, path, found.dir,
						    text), 0);
	} else {
		fd = ucm_files_open(&tree, path, found.dir, O_RDONLY, &st);
		ck_assert_int_ge(fd, 0);
		ck_assert_int_ge(read(fd, text, 64), 0);
		close(fd);
	}
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

static unsigned notes(unsigned nth)
{
	unsigned num = 0;

	for (char dir = 'a'; dir <= 'b'; dir++) {
		DIR *names = opendir(fx_path("$/%u%c/.ucmfs", nth, dir));
		struct dirent *entry;

		ck_assert_ptr_nonnull(names);
		while ((entry = readdir(names)))
			num += !strncmp(entry->d_name, "both.", 5);
		closedir(names);
	}
	return num;
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
	unsigned dir;

	return ucm_files_rename(&tree, from, to, false, &dir);
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
	ucm_files_written(&tree, &found, 0);
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
	return ucm_files_unlink(&tree, "files/x");
}

static int remove_d(void)
{
	return ucm_files_rmdir(&tree, "files/d");
}

static const struct operation operations[] = {
	{ "rename", "b/x=new", x_to_y, "new - - - - -", "- new - - - -", NULL,
	  5, { 0 } },
	{ "over one there", "b/x=new b/y=old", x_to_y, "new old - - - -",
	  "- new - - - -", NULL, 5, { 0 } },
	{ "over one in front", "b/x=new a/y=old", x_to_y, "new old - - - -",
	  "- new - - - -", "new new - - - -", 8, { 0 } },
	{ "over one after it", "a/x=new b/y=old", x_to_y, "new old - - - -",
	  "- new - - - -", NULL, 7, { 0 } },
	{ "over two", "b/x=new a/y=old b/y=older", x_to_y, "new old - - - -",
	  "- new - - - -", "new new - - - -", 8, { 0 } },
	{ "into a folder", "a/x=new b/d/=", x_into_d, "new - / - - -",
	  "- - / new - -", NULL, 8, { 0 } },
	{ "of a folder", "b/d/y=y a/e/=", d_to_e, "- - / y / -",
	  "- - - - / y", NULL, 6, { 0 } },
	{ "create", "", create, "- - - - - -", " - - - - -", NULL, 6, { 0 } },
	{ "mkdir", "", make_folder, "- - - - - -", "- - / - - -", NULL, 4,
	  { 0 } },
	{ "symlink", "", make_link, "- - - - - -", "to - - - - -", NULL, 4,
	  { 0 } },
	{ "unlink", "a/x=x b/x=hidden", remove_x, "x - - - - -", "- - - - - -",
	  NULL, 4, { "x - - - - -", "hidden - - - - -" } },
	{ "rmdir", "a/d/= b/d/=", remove_d, "- - / - - -", "- - - - - -", NULL,
	  4, { 0 } },
};

/* What failed is not done, unless it could not be undone. */
static void compare(const struct operation *op, int fault, int err)
{
	const char *now = look();

	for (unsigned i = 0; !err && fault == UCM_FILES_SILENT && i < 2; i++) {
		if (op->without[i] && !strcmp(now, op->without[i]))
			return;
	}
	if (err && !strcmp(now, op->before))
		return;
	if ((!err || half_done || dying) && !strcmp(now, op->done))
		return;
	ck_abort_msg("%s: '%s'", where, now);
}

static bool is_half_done(const struct operation *op, int err)
{
	return err && op->between && !strcmp(look(), op->between);
}

/* True if the fault was met. */
static bool try_nth(const struct operation *op, unsigned nth, int fault,
		    bool once)
{
	char source[64];
	const char *failed;
	int err;

	snprintf(source, sizeof(source), "$/%ua:$/%ub", nth, nth);
	put_all(nth, op->files);
	start(source);
	fx_fail(NULL, nth, fault, once);
	err = op->act();
	failed = fx_failed_call();
	fx_fail(NULL, 0, 0, false);
	snprintf(where, sizeof(where), "%s: call %u%s, %s: %s: %s", op->name,
		 nth, once ? "" : " and on", failed ? failed : "none",
		 strerror(-fault), err ? strerror(-err) : "succeeds");
	half_done = is_half_done(op, err);
	if (!half_done)
		compare(op, fault, err);
	stop();
	start(source);
	compare(op, fault, err);
	ck_assert_msg(!notes(nth), "%s: a note is left", where);
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
