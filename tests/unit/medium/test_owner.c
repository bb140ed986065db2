/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_owner.c - one daemon at a time on a network file system: who is refused, who
 * takes over from whom and after how many looks, and what one that was taken for
 * dead does. The other machine is what .ucmfs/owner says; its heart is here.
 */
#include <config.h>

#include "fs/medium/dir/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/osfile.h"
#include "common/process.h"
#include "fs/medium/dir/dir.h"
#include "fs/store/store.h"
#include "fs/tier/tier.h"
#include "tests/unit/child.h"
#include "tests/unit/store_fixture.h"

#define OWNER "$/a/.ucmfs/owner"
#define STATE "$/a/.ucmfs/state"
#define OTHER "00000007-00000009-00000001-0"

static struct fx_file one, two;
static struct ucm_error error;
static uint32_t fs_type;
static _Atomic unsigned looks; /* halves of them */
static _Atomic bool beats;

/* In the place of the C library's, for this program. */
int fstatfs(int fd, struct statfs *out)
{
	int err = (int)syscall(SYS_fstatfs, fd, out);

	out->f_type = fs_type;
	return err;
}

static int (*fixture_fault)(const char *call, const char *path);

/* Twice in each look, for folder and file: the heart of the other one. */
static int look(const char *call, const char *path)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT } };

	if (strcmp(call, "refresh"))
		return fixture_fault(call, path);
	times[1].tv_sec = 2000000000 + atomic_fetch_add(&looks, 1);
	if (atomic_load(&beats))
		utimensat(AT_FDCWD, fx_path(OWNER), times, 0);
	return fixture_fault(call, path);
}

static void setup(void)
{
	fx_setup();
	fs_type = NFS_SUPER_MAGIC;
	ucm_owner_look_ms = 1;
	looks = 0;
	beats = false;
	fx_configure("$/a");
	fx_block(&one, 1, FX_PAGED);
	fx_block(&two, 2, FX_PAGED);
	fixture_fault = atomic_exchange(&ucm_os_fault, look);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* What a daemon with such a start would have left. */
static void put_owner(const char *start, int pid, unsigned long long pids)
{
	char text[192];
	int len = snprintf(text, sizeof(text), "%s %d %llu 86400 otherhost\n",
			   start, pid, pids);

	fx_put(fx_path(OWNER), text, (size_t)len);
	ck_assert_int_eq(chmod(fx_path("$/a/.ucmfs"), 0700), 0);
}

/* It was touched last in 2014. */
static void age_owner(void)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
					   { .tv_sec = 1400000000 } };

	ck_assert_int_eq(utimensat(AT_FDCWD, fx_path(OWNER), times, 0), 0);
}

static bool owner_says(const char *text)
{
	char line[256] = "";

	if (fx_exists(fx_path(OWNER)))
		fx_read(fx_path(OWNER), line, sizeof(line));
	return strstr(line, text) != NULL;
}

/* By this process, in this boot; a start of so many digits. */
static const char *my_start(unsigned boot_off)
{
	static char start[UCM_TEMP_NAME_MAX];
	struct ucm_temp_maker self;

	ucm_temp_whoami(&self);
	self.boot += boot_off;
	ucm_temp_name(&self, 0, start);
	return start;
}

static int try_to_open(void)
{
	struct ucm_store *store;
	int err = ucm_store_open(&fx_config, &store, &error);

	if (!err)
		ucm_store_close(store);
	return err;
}

/* ---- who may have it ---- */

static bool opens(void *arg)
{
	(void)arg;
	fx_open();
	return true;
}

/* Two processes of one machine, which have each its own idea of who they are. */
UNIT_TEST(a_second_daemon_is_refused_and_the_first_named)
{
	char who[64];
	pid_t pid = child_start(opens, NULL);

	snprintf(who, sizeof(who), "process %d, since ", (int)pid);
	beats = true;
	ck_assert_int_eq(try_to_open(), -EBUSY);
	ck_assert_ptr_nonnull(strstr(error.text, "/a: in use by another ucmfs"));
	ck_assert_ptr_nonnull(strstr(error.text, who));
	ck_assert(fx_exists(fx_path(OWNER)));
	child_kill(pid);
	beats = false;
	ck_assert_int_eq(try_to_open(), 0);
	ck_assert(fx_logged("taken over from an ucmfs that is gone"));
}

UNIT_TEST(one_on_another_machine_is_named)
{
	put_owner(OTHER, 77, 1);
	beats = true;
	ck_assert_int_eq(try_to_open(), -EBUSY);
	ck_assert_ptr_nonnull(
		strstr(error.text, "host otherhost, process 77, since 1970-01-"));
	ck_assert(owner_says(OTHER));
	ck_assert(fx_logged("waiting whether another ucmfs uses it"));
}

UNIT_TEST(one_whose_file_stands_still_is_taken_over)
{
	put_owner(OTHER, 77, 1);
	fx_open();
	/* it was looked at once more, and before the identity was written */
	ck_assert_uint_eq(looks, 26);
	ck_assert(fx_logged("waiting whether another ucmfs uses it"));
	ck_assert(!owner_says(OTHER) && owner_says("-"));
	fx_close();
	ck_assert(!fx_exists(fx_path(OWNER)));
}

UNIT_TEST(what_says_nothing_is_waited_for_as_well)
{
	fx_put(fx_path(OWNER), "", 0);
	ck_assert_int_eq(chmod(fx_path("$/a/.ucmfs"), 0700), 0);
	beats = true;
	ck_assert_int_eq(try_to_open(), -EBUSY);
	beats = false;
	ck_assert_int_eq(try_to_open(), 0);
}

/* Its last beat, and it is ending. */
static int end_later(const char *call, const char *path)
{
	int err = look(call, path);

	if (atomic_load(&looks) > 2)
		atomic_store(&beats, false);
	if (atomic_load(&looks) == 9)
		unlink(fx_path(OWNER));
	return err;
}

UNIT_TEST(one_that_ends_is_waited_for)
{
	put_owner(OTHER, 77, 1);
	beats = true;
	atomic_store(&ucm_os_fault, end_later);
	ck_assert_int_eq(try_to_open(), 0);
	ck_assert_uint_lt(looks, 20);
	ck_assert(!fx_logged("taken over"));
}

static const struct {
	unsigned boot_off;
	int pid;
	bool foreign, old, waits;
} dead[] = {
	{ 0, 0x7ffffff0, false, false, false }, /* gone */
	{ 0, 0x7ffffff0, true, false, true },   /* in another namespace */
	{ 0, 1, false, false, true },
	{ 1, 1, false, true, false }, /* before this boot */
	{ 1, 1, false, false, true }, /* on a copied machine */
};

UNIT_TEST(who_is_sure_to_be_gone_is_not_waited_for, .rows = NUM_ROWS(dead))
{
	put_owner(my_start(dead[_i].boot_off), dead[_i].pid,
		  dead[_i].foreign ? 1 : ucm_process_namespace());
	if (dead[_i].old)
		age_owner();
	ck_assert_int_eq(try_to_open(), 0);
	ck_assert_int_eq(fx_logged("waiting whether"), dead[_i].waits);
}

/* The same moment: another was faster. */
static int take_too(const char *call, const char *path)
{
	if (look(call, path) || strcmp(call, "refresh"))
		return 0;
	if (atomic_load(&looks) == 23)
		put_owner(OTHER, 78, 1);
	return 0;
}

UNIT_TEST(of_two_who_take_it_over_one_has_it)
{
	put_owner("00000007-00000009-00000002-0", 77, 1);
	atomic_store(&ucm_os_fault, take_too);
	ck_assert_int_eq(try_to_open(), -EBUSY);
	ck_assert_ptr_nonnull(strstr(error.text, "process 78"));
	ck_assert(owner_says(OTHER));
}

UNIT_TEST(readers_are_let_in)
{
	fx_open();
	looks = 0;
	fx_config.tiers[0].readonly = true;
	ck_assert_int_eq(try_to_open(), 0);
	ck_assert_uint_eq(looks, 0);
	ck_assert(fx_exists(fx_path(OWNER)));
}

UNIT_TEST(a_local_directory_has_a_lock)
{
	fs_type = EXT4_SUPER_MAGIC;
	fx_open();
	ck_assert(!fx_exists(fx_path(OWNER)));
}

UNIT_TEST(a_full_one_can_be_mounted)
{
	fx_fail("write", 1, -ENOSPC, true);
	ck_assert_int_eq(try_to_open(), 0);
	ck_assert_str_eq(fx_failed_call(), "write");
	ck_assert(fx_logged("another daemon would not notice"));
	ck_assert(!fx_exists(fx_path(OWNER)));
}

/* ---- its heart ---- */

static bool has_beaten(void *arg)
{
	struct stat st;

	(void)arg;
	return !stat(fx_path(OWNER), &st) && st.st_mtim.tv_sec > 1400000000;
}

UNIT_TEST(it_beats_while_the_store_runs)
{
	fx_open();
	fx_start();
	age_owner();
	fx_wait(has_beaten, NULL);
}

static void beat(void)
{
	struct ucm_medium *medium = fx_set->dirs.at[0];

	ucm_directory_of(medium)->beat_due_ms = 0;
	ucm_medium_beat(medium, UCM_BEAT_SHOW);
}

UNIT_TEST(a_file_that_was_removed_is_made_again)
{
	fx_open();
	ck_assert_int_eq(unlink(fx_path(OWNER)), 0);
	beat();
	ck_assert(fx_exists(fx_path(OWNER)));
	ck_assert(!fx_set->dirs.at[0]->readonly);
}

UNIT_TEST(a_look_that_fails_is_none)
{
	fx_open();
	fx_fail("refresh", 1, -ESTALE, false);
	beat();
	ck_assert_uint_ge(fx_calls(), 1);
	ck_assert(!fx_set->dirs.at[0]->readonly);
}

/* It was taken for dead, by one that works there now. */
static void take_it_over(void)
{
	fx_put(fx_path(STATE), "clean=0\ncheckpoint=1\nboot=other\n", 32);
	put_owner(OTHER, 77, 1);
}

UNIT_TEST(who_was_taken_for_dead_writes_no_more)
{
	struct ucm_temp temp;
	char state[256];
	int fd;

	fx_open();
	fx_start();
	ck_assert_int_eq(fx_commit(&one), 0);
	fd = fx_create(&two.key, 0, &temp);
	ck_assert_int_eq(pwrite(fd, two.bytes, two.len, 0), (ssize_t)two.len);
	take_it_over();
	beat();
	ck_assert(fx_logged("another ucmfs has taken it over (host otherhost, "
			    "process 77"));
	ck_assert_int_eq(ucm_medium_state(fx_set->dirs.at[0]),
			 UCM_DIR_TAKEN_OVER);
	ck_assert_int_eq(fx_commit_temp(&temp, fd, &two.key, UCM_COMMIT_NOW),
			 -EIO);
	close(fd);
	ucm_store_drop(fx_set, &temp);
	ck_assert_int_eq(fx_commit(&two), -EROFS);
	ck_assert_int_eq(ucm_store_remove(fx_set, &one.key), -EROFS);
	fx_serves(&one);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	fx_close();
	fx_read(fx_path(STATE), state, sizeof(state));
	ck_assert_ptr_nonnull(strstr(state, "boot=other"));
	ck_assert(owner_says(OTHER));
}

/* Between two beats: what says that all is well asks before. */
UNIT_TEST(the_clean_end_of_one_hides_no_crash_of_the_other)
{
	char state[256];

	fx_open();
	fx_start();
	ck_assert_int_eq(fx_commit(&one), 0);
	ucm_directory_of(fx_set->dirs.at[0])->beat_due_ms = INT64_MAX;
	take_it_over();
	fx_close();
	fx_read(fx_path(STATE), state, sizeof(state));
	ck_assert_ptr_nonnull(strstr(state, "boot=other"));
	ck_assert(!fx_exists(fx_path("$/a/.ucmfs/snapshot")));
	ck_assert(owner_says(OTHER));
}
