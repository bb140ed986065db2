/* SPDX-License-Identifier: Apache-2.0 */
/* test_dir.c - the medium that is a directory: identity, lock, files. */
#include <config.h>

#include "fs/medium/dir/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/block_fixture.h"
#include "tests/unit/tier_fixture.h"

static struct ucm_medium *dir;
static struct ucm_error error;
static struct fx_file file;

static int open_it(const char *path, bool readonly)
{
	dir = NULL;
	return ucm_medium_open(ucm_directory_open, path, readonly, &fx_config,
			       &dir, &error);
}

static void close_it(bool clean)
{
	ucm_medium_close(dir, clean);
	ucm_medium_free(dir);
	dir = NULL;
}

static void must_open(void)
{
	fx_mkdirs(fx_path("$/a"));
	ck_assert_msg(!open_it(fx_path("$/a"), false), "%s", error.text);
}

/* A temporary file with a block's bytes in it. */
static void put_temp(char path[UCM_TEMP_PATH_MAX])
{
	struct ucm_file temp;

	ck_assert_int_eq(ucm_medium_put(dir, path, &temp), 0);
	ck_assert_int_eq(ucm_file_write(&temp, file.bytes, file.len, 0), 0);
	ucm_file_close(&temp);
}

static int put_again(const char *path, struct ucm_file *out)
{
	return dir->ops->open(dir, path, UCM_OPEN_CHANGE, out, NULL);
}

static int commit(const char *folder, bool sync)
{
	char path[UCM_TEMP_PATH_MAX];
	int err;

	put_temp(path);
	err = ucm_medium_commit(dir, path, folder, &file.key.id, sync);
	if (err)
		ucm_medium_drop(dir, path);
	return err;
}

static void setup(void)
{
	fx_setup();
	fx_config_begin();
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(a_new_directory_gets_its_layout)
{
	static const char *const made[] = {
		"blocks", "spaces", ".ucmfs/id", ".ucmfs/tmp",
		".ucmfs/quarantine", ".ucmfs/pinned",
	};

	must_open();
	for (size_t i = 0; i < NUM_ROWS(made); i++)
		ck_assert_msg(fx_exists(fx_path("$/a/%s", made[i])), "%s",
			      made[i]);
	ck_assert(!fx_exists(fx_path("$/a/.ucmfs/state")));
	close_it(false);
}

UNIT_TEST(a_directory_keeps_its_identity)
{
	uint8_t uuid[16];

	must_open();
	memcpy(uuid, dir->uuid, 16);
	close_it(false);
	must_open();
	ck_assert_mem_eq(dir->uuid, uuid, 16);
	close_it(false);
}

static const char *const wrong_ids[] = {
	"",
	"ucmfs 2\nuuid 00112233445566778899aabbccddeeff\n",
	"ucmfs 1\nuuid 00112233445566778899aabbccddeef\n",
	"ucmfs 1\nuuid 00112233445566778899AABBCCDDEEFF\n",
	"ucmfs x\n",
	"garbage",
};

UNIT_TEST(an_identity_of_another_kind_is_refused, .rows = NUM_ROWS(wrong_ids))
{
	fx_put(fx_path("$/a/.ucmfs/id"), wrong_ids[_i], strlen(wrong_ids[_i]));
	ck_assert_int_lt(open_it(fx_path("$/a"), false), 0);
	ck_assert_ptr_nonnull(strstr(error.text, ".ucmfs/id"));
	ck_assert_ptr_null(dir);
}

UNIT_TEST(what_is_no_directory_is_named)
{
	fx_put(fx_path("$/file"), "x", 1);
	ck_assert_int_eq(open_it(fx_path("$/none"), false), -ENOENT);
	ck_assert_ptr_nonnull(strstr(error.text, "/none: No such file"));
	ck_assert_int_eq(open_it(fx_path("$/file"), false), -ENOTDIR);
	ck_assert_ptr_nonnull(strstr(error.text, "/file: "));
}

UNIT_TEST(a_directory_that_takes_no_files_is_named)
{
	static const char *const calls[] = { "mkdir", "open", "write",
					     "rename", "read" };

	for (size_t i = 0; i < NUM_ROWS(calls); i++) {
		fx_mkdirs(fx_path("$/d%zu", i));
		fx_fail(calls[i], 1, -EROFS, false);
		ck_assert_int_eq(open_it(fx_path("$/d%zu", i), false),
				 !strcmp(calls[i], "read") ? 0 : -EROFS);
		if (strcmp(calls[i], "read"))
			ck_assert_ptr_nonnull(
				strstr(error.text, fx_path("$/d%zu", i)));
		fx_fail(NULL, 0, 0, false);
		close_it(false);
	}
}

UNIT_TEST(a_readonly_directory_is_not_written_to)
{
	char path[UCM_TEMP_PATH_MAX];
	struct ucm_file temp;

	fx_mkdirs(fx_path("$/b"));
	ck_assert_int_lt(open_it(fx_path("$/b"), true), 0); /* none of ours */
	ck_assert_uint_eq(fx_count(fx_path("$/b")), 0);
	must_open();
	close_it(false);
	fx_fail("write", 1, -EROFS, false);
	ck_assert_int_eq(open_it(fx_path("$/a"), true), 0);
	ck_assert_int_eq(ucm_medium_begin(dir), 0);
	ck_assert_int_lt(ucm_medium_put(dir, path, &temp), 0);
	ck_assert_int_eq(ucm_medium_set_aside(dir, "blocks", &file.key.id),
			 -EROFS);
	ck_assert_int_eq(ucm_medium_pin(dir, "blocks", &file.key.id, true),
			 -EROFS);
	close_it(true);
	ck_assert(!fx_exists(fx_path("$/a/.ucmfs/state")));
	ck_assert_uint_eq(fx_calls(), 0);
}

static void open_in_use(void *arg)
{
	(void)arg;
	ck_assert_int_eq(open_it(fx_path("$/a"), false), -EBUSY);
	ck_assert_ptr_nonnull(strstr(error.text, "in use by another"));
	/* reading beside a writer is allowed */
	ck_assert_int_eq(open_it(fx_path("$/a"), true), 0);
	close_it(false);
}

UNIT_TEST(a_directory_in_use_is_refused_to_another_process)
{
	struct ucm_medium *mine;

	must_open();
	mine = dir;
	fx_in_child(open_in_use, NULL);
	dir = mine;
	close_it(false);
	must_open();
	close_it(false);
}

/* The lock is the open file's: the child that goes into the background has
 * it, whatever its parent does. */
static void close_in_child(void *arg)
{
	(void)arg;
	close_it(false);
}

UNIT_TEST(the_lock_outlives_a_forks_other_half)
{
	struct ucm_medium *mine;

	must_open();
	mine = dir;
	fx_in_child(close_in_child, NULL);
	fx_in_child(open_in_use, NULL);
	dir = mine;
	close_it(false);
}

UNIT_TEST(a_commit_makes_its_bucket_and_no_folder)
{
	char path[UCM_TEMP_PATH_MAX];

	must_open();
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(commit("blocks", false), 0);
	ck_assert(fx_exists(fx_path("$/a/blocks/%s", fx_name(&file))));
	ck_assert_int_eq(commit("spaces/new", false), -ENOENT);
	fx_mkdirs(fx_path("$/a/spaces/new"));
	ck_assert_int_eq(commit("spaces/new", false), 0);
	ck_assert(fx_exists(fx_path("$/a/spaces/new/%s", fx_name(&file))));
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 0);
	ck_assert_int_eq(commit("blocks", false), -EEXIST);
	put_temp(path);
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 1);
	ucm_medium_drop(dir, path);
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 0);
	close_it(false);
}

UNIT_TEST(a_synced_commit_syncs_the_folders_it_changed)
{
	must_open();
	fx_block(&file, 1, FX_PAGED);
	fx_fail("fsync", 99, -EIO, true);
	ck_assert_int_eq(commit("blocks", true), 0);
	ck_assert_uint_eq(fx_calls(), 2); /* a new bucket's folder, and it */
	ck_assert_int_eq(ucm_medium_remove(dir, "blocks", &file.key.id),
			 0);
	fx_fail("fsync", 99, -EIO, true);
	ck_assert_int_eq(commit("blocks", true), 0);
	ck_assert_uint_eq(fx_calls(), 1);
	fx_fail("fsync", 99, -EIO, true);
	fx_block(&file, 2, FX_PAGED);
	ck_assert_int_eq(commit("blocks", false), 0);
	ck_assert_uint_eq(fx_calls(), 0);
	close_it(false);
}

/* What may not be on disk must not be found by a second try as if it were. */
UNIT_TEST(a_commit_that_cannot_be_synced_leaves_no_block)
{
	must_open();
	fx_block(&file, 1, FX_PAGED);
	for (unsigned nth = 1; nth <= 2; nth++) {
		fx_fail("fsync", nth, -EIO, true);
		ck_assert_int_eq(commit("blocks", true), -EIO);
		ck_assert(!fx_exists(fx_path("$/a/blocks/%s",
					     fx_name(&file))));
		rmdir(fx_path("$/a/blocks/%.2s", fx_name(&file)));
	}
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(commit("blocks", true), 0);
	close_it(false);
}

UNIT_TEST(blocks_are_opened_and_removed)
{
	struct ucm_file opened;
	struct stat st;

	must_open();
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(ucm_medium_open_block(dir, "blocks", &file.key.id,
					       &opened, &st), -ENOENT);
	ck_assert_int_eq(commit("blocks", false), 0);
	ck_assert_int_eq(ucm_medium_open_block(dir, "blocks", &file.key.id,
					       &opened, &st), 0);
	ck_assert_int_eq(st.st_size, (off_t)file.len);
	ck_assert_int_ge(ucm_file_descriptor(&opened), 0);
	ucm_file_close(&opened);
	ck_assert_int_eq(ucm_medium_remove(dir, "blocks", &file.key.id),
			 0);
	ck_assert_int_eq(ucm_medium_remove(dir, "blocks", &file.key.id),
			 -ENOENT);
	close_it(false);
}

UNIT_TEST(quarantine_keeps_every_file)
{
	must_open();
	fx_block(&file, 1, FX_PAGED);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(commit("blocks", false), 0);
		ck_assert_int_eq(ucm_medium_set_aside(dir, "blocks",
						      &file.key.id), 0);
	}
	fx_mkdirs(fx_path("$/a/spaces/x"));
	ck_assert_int_eq(commit("spaces/x", false), 0);
	ck_assert_int_eq(ucm_medium_set_aside(dir, "spaces/x", &file.key.id),
			 0);
	ck_assert_int_eq(ucm_medium_set_aside(dir, "blocks", &file.key.id),
			 -ENOENT);
	ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/quarantine")), 4);
	close_it(false);
}

static char pins[512];

static void note_pin(void *arg, const char *space, const struct ucm_id *id)
{
	size_t len = strlen(pins);

	(void)arg;
	snprintf(pins + len, sizeof(pins) - len, "%s:%02x%02x ", space,
		 id->bytes[0], id->bytes[1]);
}

UNIT_TEST(pins_are_kept_by_space_and_id)
{
	struct ucm_id id = { { 0xab, 0xcd } };

	must_open();
	ck_assert_int_eq(ucm_medium_pin(dir, "blocks", &id, true), 0);
	ck_assert_int_eq(ucm_medium_pin(dir, "blocks", &id, true), 0);
	fx_put(fx_path("$/a/.ucmfs/pinned/junk"), "", 0);
	ucm_medium_pins(dir, note_pin, NULL);
	ck_assert_str_eq(pins, ":abcd ");
	ck_assert_int_eq(ucm_medium_pin(dir, "blocks", &id, false), 0);
	ck_assert_int_eq(ucm_medium_pin(dir, "blocks", &id, false), 0);
	ck_assert_int_eq(ucm_medium_pin(dir, "spaces/a@b", &id, true), 0);
	pins[0] = '\0';
	ucm_medium_pins(dir, note_pin, NULL);
	ck_assert_str_eq(pins, "a@b:abcd ");
	close_it(false);
}

UNIT_TEST(leftovers_of_a_stopped_daemon_go_at_the_start)
{
	char path[UCM_TEMP_PATH_MAX];

	must_open();
	fx_block(&file, 1, FX_PAGED);
	put_temp(path);
	put_temp(path);
	ck_assert_int_eq(ucm_medium_begin(dir), 0);
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 0);
	ck_assert(fx_logged("removed 2 unfinished files"));
	close_it(true);
}

/* On ext4 far from each other: see make_layout(). */
UNIT_TEST(temporary_files_are_spread_over_folders)
{
	char path[UCM_TEMP_PATH_MAX];
	struct statfs fs;
	int flags = FS_TOPDIR_FL, fd;

	must_open();
	for (unsigned i = 0; i < 2 * UCM_TEMP_FOLDERS; i++) {
		put_temp(path);
		ck_assert(fx_exists(fx_path("$/a/%s", path)));
		ck_assert_ptr_nonnull(strstr(fx_path("%s", path),
					     fx_path(".ucmfs/tmp/%02x/",
						     i % UCM_TEMP_FOLDERS)));
	}
	ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/tmp")),
			  UCM_TEMP_FOLDERS);
	fd = open(fx_path("$/a/.ucmfs/tmp"), O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(fstatfs(fd, &fs), 0);
	if (fs.f_type == EXT4_SUPER_MAGIC)
		ck_assert_int_eq(ioctl(fd, FS_IOC_GETFLAGS, &flags), 0);
	ck_assert(flags & FS_TOPDIR_FL);
	close(fd);
	close_it(false);
}

UNIT_TEST(temporary_names_are_never_used_twice)
{
	char first[UCM_TEMP_PATH_MAX], second[UCM_TEMP_PATH_MAX];
	struct ucm_file temp;

	must_open();
	ck_assert_int_eq(ucm_medium_begin(dir), 0);
	ck_assert_int_eq(ucm_medium_put(dir, first, &temp), 0);
	ucm_file_close(&temp);
	ck_assert_int_eq(ucm_medium_put(dir, second, &temp), 0);
	ucm_file_close(&temp);
	ck_assert_str_ne(first, second);
	ck_assert_int_eq(put_again(first, &temp), 0);
	ucm_file_close(&temp);
	ucm_medium_drop(dir, first);
	ck_assert_int_eq(put_again(first, &temp), -ENOENT);
	ucm_medium_drop(dir, first); /* harmless */
	ck_assert(!fx_logged(first));
	close_it(true);
}

UNIT_TEST(a_directory_open_to_all_is_warned_of)
{
	fx_mkdirs(fx_path("$/a"));
	ck_assert_int_eq(chmod(fx_path("$/a"), 0777), 0);
	must_open();
	ck_assert(fx_logged("anyone may write"));
	close_it(false);
	fx_clear_log();
	ck_assert_int_eq(chmod(fx_path("$/a"), 01777), 0);
	must_open();
	ck_assert(fx_logged("anyone may write"));
	close_it(false);
	fx_clear_log();
	ck_assert_int_eq(chmod(fx_path("$/a"), 0755), 0);
	must_open();
	ck_assert(!fx_logged("anyone may write"));
	close_it(false);
}

/* ---- where other machines may write, too ---- */

static uint32_t fs_type; /* 0: what it is */
static int fs_err;

/* In the place of the C library's, for this program. */
int fstatfs(int fd, struct statfs *out)
{
	int err = (int)syscall(SYS_fstatfs, fd, out);

	if (fs_type)
		out->f_type = fs_type;
	errno = fs_err ? fs_err : errno;
	return fs_err ? -1 : err;
}

static const struct { uint32_t type; bool remote; } types[] = {
	{ EXT4_SUPER_MAGIC, false }, { XFS_SUPER_MAGIC, false },
	{ TMPFS_MAGIC, false },	     { NFS_SUPER_MAGIC, true },
	{ SMB2_SUPER_MAGIC, true },  { CEPH_SUPER_MAGIC, true },
	{ FUSE_SUPER_MAGIC, true },  { 0x12345678, true },
};

/* It has deadlines, unless others are asked for, and no lock. */
UNIT_TEST(a_network_file_system_is_recognised, .rows = NUM_ROWS(types))
{
	fs_type = types[_i].type;
	must_open();
	ck_assert_int_eq(dir->remote, types[_i].remote);
	ck_assert_int_eq(ucm_directory_of(dir)->lockfd < 0, types[_i].remote);
	ck_assert_int_eq(dir->guard != NULL, types[_i].remote);
	close_it(false);
	fx_option("deadline", "0");
	must_open();
	ck_assert_ptr_null(dir->guard);
	close_it(false);
}

/* Elsewhere it is the kernel's, and no program's. */
UNIT_TEST(where_the_time_of_a_change_can_be_set_is_known, .rows = 3)
{
	static const struct { uint32_t type; unsigned flag; } rows[] = {
		{ EXT4_SUPER_MAGIC, 0 },
		{ MSDOS_SUPER_MAGIC, UCM_MEDIUM_NO_CTIME },
		{ EXFAT_SUPER_MAGIC, UCM_MEDIUM_NO_CTIME },
	};

	fs_type = rows[_i].type;
	must_open();
	ck_assert_uint_eq(dir->flags & UCM_MEDIUM_NO_CTIME, rows[_i].flag);
	close_it(false);
}

/* Who knows whether others use it, and what a crash leaves there. */
UNIT_TEST(a_file_system_that_cannot_be_asked_is_not_used)
{
	fs_err = EIO;
	fx_mkdirs(fx_path("$/a"));
	ck_assert_int_eq(open_it(fx_path("$/a"), false), -EIO);
	fs_err = 0;
}

#define DAY UCM_TEMP_OLD_S

/* Host 1, in its boot 2, which began 1000 s ago. */
static const struct ucm_temp_maker self = { .host = 1, .boot = 2,
					    .up_s = 1000 };

static const struct { uint32_t host, boot; int64_t age_s; bool stays; }
temps[] = {
	{ 1, 2, 900, true }, /* another daemon's */
	{ 1, 2, DAY + 60, false },
	{ 1, 9, 900, true },
	{ 1, 9, 1100, false },
	{ 8, 2, 900, true },
	{ 8, 9, DAY - 60, true },
	{ 8, 9, DAY + 60, false },
};

static const char *temp_path(unsigned row)
{
	const struct ucm_temp_maker maker = { .host = temps[row].host,
					      .boot = temps[row].boot,
					      .instance = 7 };
	char name[UCM_TEMP_NAME_MAX];

	ucm_temp_name(&maker, row, name);
	return fx_path(row % 2 ? "$/a/.ucmfs/tmp/%s" : "$/a/.ucmfs/tmp/03/%s",
		       name);
}

static void put_old_temp(unsigned row)
{
	const struct timespec then = { .tv_sec = time(NULL) -
						 temps[row].age_s };
	const struct timespec times[2] = { then, then };

	fx_put(temp_path(row), "x", 1);
	ck_assert_int_eq(utimensat(AT_FDCWD, temp_path(row), times, 0), 0);
}

static void begin_on(uint32_t type)
{
	fs_type = type;
	must_open();
	dir->maker = self;
	for (unsigned row = 0; row < NUM_ROWS(temps); row++)
		put_old_temp(row);
	ck_assert_int_eq(ucm_medium_begin(dir), 0);
}

UNIT_TEST(there_unfinished_files_of_others_stay)
{
	begin_on(NFS_SUPER_MAGIC);
	for (unsigned row = 0; row < NUM_ROWS(temps); row++)
		ck_assert_msg(fx_exists(temp_path(row)) == temps[row].stays,
			      "row %u", row);
	close_it(true);
}

UNIT_TEST(where_we_are_alone_all_of_them_go)
{
	begin_on(EXT4_SUPER_MAGIC);
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 0);
	close_it(true);
}
