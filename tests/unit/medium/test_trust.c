/* SPDX-License-Identifier: Apache-2.0 */
/* test_trust.c - whose a directory's contents may be. */
#include <config.h>

#include "fs/medium/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/dir_fixture.h"

/* We are user 7, the directory is user 8's. */
enum { US = 7, OWNER = 8, OTHER = 9 };

static struct ucm_trust trust_of(bool readonly, bool remote, mode_t mode)
{
	struct stat st = { .st_uid = OWNER, .st_mode = S_IFDIR | mode };
	struct ucm_trust trust;

	ucm_trust_init(&trust, "/tier", &st, readonly, remote);
	trust.uid = US;
	return trust;
}

static const struct {
	bool readonly, remote;
	uid_t uid;
	mode_t mode;
	const char *why; /* NULL: it is trusted */
} rows[] = {
	{ false, false, US, S_IFDIR | 0755, NULL },
	{ false, false, US, S_IFDIR | 0700, NULL },
	{ false, false, 0, S_IFDIR | 0755, NULL },
	{ false, false, OTHER, S_IFDIR | 0700, "belongs to user 9, and ucmfs runs as 7" },
	{ false, false, OWNER, S_IFDIR | 0700, "belongs to user 8" },
	{ false, false, US, S_IFDIR | 0775, "others may write to it (mode 0775)" },
	{ false, false, US, S_IFDIR | 01702, "others may write to it (mode 1702)" },
	{ false, false, 0, S_IFDIR | 0777, "others may write to it" },
	{ false, false, US, S_IFREG | 0644, "is no directory" },
	{ false, false, US, S_IFLNK | 0777, "is a symbolic link" },
	{ false, true, OTHER, S_IFDIR | 0755, "belongs to user 9" },
	{ true, false, OWNER, S_IFDIR | 0755, NULL },
	{ true, false, OTHER, S_IFDIR | 0755, "belongs to user 9" },
	{ true, true, OTHER, S_IFDIR | 0755, NULL },
	{ true, true, OTHER, S_IFDIR | 0777, "others may write to it" },
};

/* Only root can give files away: else the cases of others are left out. */
static bool make(uid_t uid, mode_t mode)
{
	const char *path = fx_path("$/it");

	if (S_ISDIR(mode))
		fx_mkdirs(path);
	else if (S_ISLNK(mode))
		ck_assert_int_eq(symlink("x", path), 0);
	else
		fx_put(path, "", 0);
	if (!S_ISLNK(mode))
		ck_assert_int_eq(chmod(path, mode & 07777), 0);
	return !lchown(path, uid, (gid_t)-1);
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(owner_type_and_mode_decide, .rows = NUM_ROWS(rows))
{
	struct ucm_trust trust =
		trust_of(rows[_i].readonly, rows[_i].remote, 0755);
	struct ucm_error error = { "" };
	int dir, err;

	if (!make(rows[_i].uid, rows[_i].mode)) {
		unit_skip("files of others: needs root");
		return;
	}
	dir = open(fx_path("$/"), O_RDONLY | O_DIRECTORY);
	err = ucm_trust_name(&trust, dir, S_IFDIR, "it", &error);
	close(dir);
	ck_assert_int_eq(err, rows[_i].why ? -EPERM : 0);
	if (rows[_i].why) {
		ck_assert_ptr_nonnull(strstr(error.text, rows[_i].why));
		ck_assert_ptr_nonnull(
			strstr(error.text, "/tier/it is not to be trusted"));
	}
}

UNIT_TEST(what_is_not_there_is_nobodys)
{
	struct ucm_trust trust = trust_of(false, false, 0755);
	struct ucm_error error;
	int dir = open(fx_path("$/"), O_RDONLY | O_DIRECTORY);

	ck_assert_int_eq(ucm_trust_name(&trust, dir, S_IFDIR, "none", &error),
			 0);
	ck_assert_int_eq(ucm_trust_plain(&trust, dir, &error), 0);
	close(dir);
}

/* files/: owner, mode of the directory above it, and is it trusted? */
static const struct { uid_t uid; mode_t above; bool trusted; } plain[] = {
	{ OTHER, 0755, true },  { OTHER, 01777, false }, { OTHER, 0775, false },
	{ US, 01777, true },    { OWNER, 01777, true },
};

UNIT_TEST(files_is_anybodys_unless_the_directory_is_open_to_all,
	  .rows = NUM_ROWS(plain))
{
	struct ucm_trust trust = trust_of(false, false, plain[_i].above);
	struct ucm_error error;
	int dir;

	fx_mkdirs(fx_path("$/files"));
	ck_assert_int_eq(chmod(fx_path("$/files"), 0777), 0);
	if (lchown(fx_path("$/files"), plain[_i].uid, (gid_t)-1)) {
		unit_skip("files of others: needs root");
		return;
	}
	dir = open(fx_path("$/"), O_RDONLY | O_DIRECTORY);
	ck_assert_int_eq(ucm_trust_plain(&trust, dir, &error),
			 plain[_i].trusted ? 0 : -EPERM);
	close(dir);
}

UNIT_TEST(a_server_tells_who_we_are)
{
	struct ucm_trust trust = trust_of(false, true, 0755);
	int dir = open(fx_path("$/"), O_RDONLY | O_DIRECTORY);

	ck_assert_int_eq(ucm_trust_learn(&trust, dir), 0);
	ck_assert_uint_eq(trust.uid, geteuid());
	ck_assert_uint_eq(fx_count(fx_path("$/")), 0);
	fx_fail("open", 1, -EACCES, true);
	ck_assert_int_eq(ucm_trust_learn(&trust, dir), -EACCES);
	close(dir);
}
