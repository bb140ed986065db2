/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_savers.c - several stores that save into one directory side by side: what
 * each finds, what of those that were killed is left, what the state file says, and
 * what a daemon after them believes. One that is killed is a child that leaves by
 * _exit.
 */
#include <config.h>

#include "fs/tier/recovery.h"

#include <errno.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/store/inside.h"
#include "fs/tier/dir.h"
#include "tests/unit/child.h"
#include "tests/unit/store_fixture.h"

#define STATE "$/a/.ucmfs/state"
#define TMP "$/a/.ucmfs/tmp"
#define SNAPSHOT "$/a/.ucmfs/snapshot"

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

static struct fx_file one, two;
static struct ucm_store *stores[2];
static struct ucm_error error;

static void close_savers(void)
{
	for (unsigned i = 0; i < NUM_ROWS(stores); i++) {
		ucm_store_close(stores[i]);
		stores[i] = NULL;
	}
	fx_set = NULL; /* it was one of them */
}

static void configure(const char *source)
{
	fx_configure(source);
	fx_config.saver = true;
	fx_block(&one, 1, FX_PAGED);
	fx_block(&two, 2, FX_PAGED);
}

/* What the calls of store_fixture.h are about from now on. */
static void be(unsigned number)
{
	fx_set = stores[number];
}

static void start(unsigned number)
{
	fx_at_end(close_savers);
	ck_assert_msg(!ucm_store_open(&fx_config, &stores[number], &error),
		      "%s", error.text);
	ck_assert_int_eq(ucm_store_start(stores[number]), 0);
	be(number);
}

static void stop(unsigned number)
{
	ucm_store_close(stores[number]);
	stores[number] = NULL;
	fx_set = NULL;
}

static void two_savers(const char *source)
{
	configure(source);
	start(0);
	start(1);
}

/* A mount of the same directories. */
static void daemon_starts(void)
{
	fx_config.saver = false;
	fx_open();
	fx_start();
}

static struct ucm_recovery *recovery_of(unsigned number)
{
	return &stores[number]->dirs.at[0]->recovery;
}

static bool state_says(const char *text)
{
	char state[256];

	fx_read(fx_path(STATE), state, sizeof(state));
	return strstr(state, text) != NULL;
}

static int64_t checkpoint(void)
{
	char state[256];
	long long ns;

	fx_read(fx_path(STATE), state, sizeof(state));
	ck_assert_int_eq(sscanf(state, "clean=%*d checkpoint=%lld", &ns), 1);
	return ns;
}

static void put_state(const char *boot, const char *rest)
{
	char text[256];
	int len = snprintf(text, sizeof(text),
			   "clean=0\ncheckpoint=1\nboot=%s\n%s", boot, rest);

	fx_put(fx_path(STATE), text, (size_t)len);
}

/* ---- blocks ---- */

UNIT_TEST(what_one_has_saved_the_other_finds)
{
	two_savers("$/a:b=$/b");
	be(0);
	ck_assert_int_eq(fx_commit(&one), 0);
	be(1);
	fx_serves(&one);
	be(0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &one.key), 0);
	be(1);
	fx_misses(&one); /* though it has an entry */
	ck_assert_int_eq(fx_commit(&one), 0);
	be(0);
	fx_serves(&one);
	/* also what nobody here has seen */
	fx_plant("$/b", "blocks", &two);
	fx_serves(&two);
}

/* Both have begun to write it before either has it. */
UNIT_TEST(of_two_who_save_a_block_both_are_told_that_it_is_there)
{
	struct ucm_temp temps[2];
	int fds[2];

	two_savers("$/a");
	for (unsigned i = 0; i < 2; i++) {
		be(i);
		fds[i] = fx_create(&one.key, 0, &temps[i]);
		ck_assert_int_eq(fx_pwrite(fds[i], one.bytes, one.len, 0),
				 (ssize_t)one.len);
	}
	ck_assert_uint_eq(fx_count(fx_path(TMP)), 2);
	for (unsigned i = 0; i < 2; i++) {
		be(i);
		ck_assert_int_eq(fx_commit_temp(&temps[i], fds[i], &one.key,
						UCM_COMMIT_NOW), 0);
		fx_close_file(fds[i]);
		ucm_store_drop(fx_set, &temps[i]);
		fx_serves(&one);
	}
	ck_assert_uint_eq(stores[1]->stats.commit_duplicates, 1);
	ck_assert_uint_eq(fx_count(fx_path(TMP)), 0);
	fx_all_whole("$/a");
}

UNIT_TEST(a_space_of_later_is_met)
{
	struct ucm_space *space;

	configure("$/a");
	start(0);
	ck_assert_ptr_null(ucm_store_meet_space(fx_set, "llama"));
	fx_mkdirs(fx_path("$/a/spaces/llama"));
	space = ucm_store_meet_space(fx_set, "llama");
	ck_assert_ptr_nonnull(space);
	ck_assert_ptr_eq(ucm_store_meet_space(fx_set, "llama"), space);
	one.key.space = space->number;
	ck_assert_int_eq(fx_commit(&one), 0);
	fx_serves(&one);
}

/* Nothing is read at a start but where a space has a quota. */
UNIT_TEST(of_a_space_with_a_quota_what_is_there_counts)
{
	static const char quota[] = "{\"quota\": 12000}";
	struct ucm_space *space;

	configure("$/a");
	fx_plant("$/a", "blocks", &one);
	start(0);
	ck_assert_uint_eq(fx_set->num_scan_threads, 0);
	stop(0);
	fx_plant("$/a", "spaces/llama", &one);
	fx_put(fx_path("$/a/spaces/llama/space.json"), quota, strlen(quota));
	start(0);
	fx_wait_scanned();
	space = ucm_store_meet_space(fx_set, "llama");
	two.key.space = space->number;
	ck_assert_int_eq(fx_commit(&two), -EDQUOT);
	two.key.space = 0;
	ck_assert_int_eq(fx_commit(&two), 0);
}

/* ---- those that are killed ---- */

static bool has_saved(void *arg)
{
	struct ucm_temp temp;

	(void)arg;
	start(1);
	return !fx_commit(&two) && fx_create(&one.key, 0, &temp) >= 0;
}

/* Another process that has saved block two, and is writing block one. */
static pid_t saver(void)
{
	return child_start(has_saved, NULL);
}

UNIT_TEST(unfinished_files_go_when_who_writes_them_is_gone)
{
	pid_t pid;

	configure("$/a");
	pid = saver();
	start(0);
	ck_assert_uint_eq(fx_count(fx_path(TMP)), 1);
	ck_assert(!fx_logged("unfinished"));
	stop(0);
	ck_assert(state_says("savers=1")); /* not the last */
	child_kill(pid);
	fx_put(fx_path(TMP "/what-is-no-name-of-ours"), "x", 1);
	start(0);
	ck_assert_uint_eq(fx_count(fx_path(TMP)), 0);
	ck_assert(fx_logged("removed 2 unfinished files"));
	fx_serves(&two);
}

UNIT_TEST(what_one_that_was_killed_has_saved_is_not_in_doubt)
{
	int64_t since;

	configure("$/a");
	child_kill(saver());
	since = checkpoint();
	daemon_starts();
	ck_assert_uint_eq(fx_count(fx_path(TMP)), 0);
	ck_assert(!fx_set->dirs.at[0]->recovery.unclean);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
	fx_serves(&two);
	/* but it may not be on disk yet, and now it is a daemon's to say */
	ck_assert(state_says("clean=0") && !state_says("savers"));
	ck_assert_int_eq(checkpoint(), since);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	ck_assert_int_gt(checkpoint(), since);
}

UNIT_TEST(after_a_restart_of_the_machine_it_is)
{
	configure("$/a");
	child_kill(saver());
	put_state("00000000-0000-0000-0000-000000000000", "savers=1\n");
	start(0);
	ck_assert(recovery_of(0)->unclean && recovery_of(0)->unvouched);
	fx_serves(&two);
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 1);
	ck_assert_int_eq(fx_commit(&one), 0);
	/* which is for a daemon to look through */
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	stop(0);
	ck_assert_int_eq(checkpoint(), 1);
	ck_assert(state_says("clean=0") && state_says("boot=00000000-"));
	daemon_starts();
	fx_wait_settled();
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 2);
}

/* ---- the state file ---- */

UNIT_TEST(a_damaged_one_is_for_a_daemon_to_look_through)
{
	static const char damaged[] = "clean=1\nche";

	configure("$/a");
	start(0);
	ck_assert_int_eq(fx_commit(&two), 0);
	stop(0);
	fx_put(fx_path(STATE), damaged, strlen(damaged));
	start(0);
	fx_serves(&two);
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 1);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	stop(0);
	ck_assert(state_says(damaged));
	daemon_starts();
	fx_wait_settled();
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 1);
	ck_assert(state_says("clean=0"));
}

UNIT_TEST(the_last_one_leaves_the_directory_clean)
{
	int64_t first;

	configure("$/a");
	start(0);
	ck_assert(state_says("clean=0") && state_says("savers=1"));
	first = checkpoint();
	start(1);
	ck_assert_int_eq(checkpoint(), first);
	ck_assert(!recovery_of(1)->unclean);
	ck_assert_int_eq(fx_commit(&one), 0);
	stop(0);
	ck_assert(state_says("clean=0") && state_says("savers=1"));
	stop(1);
	ck_assert(state_says("clean=1") && !state_says("savers"));
	ck_assert(!state_says("snapshot") && !fx_exists(fx_path(SNAPSHOT)));
	daemon_starts();
	fx_serves(&one);
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 0);
}

/* Neither has closed the directory when the other one looks. */
UNIT_TEST(of_those_that_end_at_once_one_is_the_last)
{
	two_savers("$/a");
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_recovery_end(recovery_of(i),
						  stores[i]->dirs.at[0]), 0);
	ck_assert(state_says("clean=1"));
}

/* What a daemon left is not so any more. */
UNIT_TEST(no_snapshot_outlives_the_first_saver)
{
	configure("$/a");
	daemon_starts();
	ck_assert_int_eq(fx_commit(&one), 0);
	fx_close();
	ck_assert(state_says("clean=1") && state_says("snapshot="));
	ck_assert(fx_exists(fx_path(SNAPSHOT)));
	fx_config.saver = true;
	start(0);
	ck_assert(!fx_exists(fx_path(SNAPSHOT)));
	ck_assert_int_eq(ucm_store_remove(fx_set, &one.key), 0);
	ck_assert_int_eq(fx_commit(&two), 0);
	stop(0);
	daemon_starts();
	fx_misses(&one);
	fx_serves(&two);
}

UNIT_TEST(a_checkpoint_of_one_is_not_taken_back_by_another)
{
	int64_t early;

	two_savers("$/a");
	be(0);
	ucm_recovery_mark(recovery_of(0), stores[0]->dirs.at[0]);
	early = recovery_of(0)->mark_ns;
	be(1);
	ck_assert_int_eq(fx_commit(&one), 0);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	ck_assert_int_gt(checkpoint(), early);
	ck_assert_int_eq(ucm_recovery_checkpoint(recovery_of(0),
						 stores[0]->dirs.at[0]), 0);
	ck_assert_int_gt(checkpoint(), early);
	ck_assert(state_says("savers=1"));
}

/* Of the first one's own blocks nothing is known to the other. */
UNIT_TEST(what_one_has_lost_is_in_doubt_after_all_have_ended)
{
	two_savers("$/a");
	be(0);
	ck_assert_int_eq(fx_commit(&one), 0);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	fx_fail(NULL, 0, 0, false);
	ck_assert(state_says("boot=lost"));
	be(1);
	ck_assert_int_eq(fx_commit(&two), 0);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	stop(1);
	stop(0);
	ck_assert(state_says("clean=0") && state_says("boot=lost"));
	daemon_starts();
	fx_wait_settled();
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 2);
	fx_serves(&one);
}

UNIT_TEST(a_directory_that_one_could_not_set_right_is_not_left_clean)
{
	two_savers("$/a");
	stores[0]->dirs.at[0]->abandoned = true;
	stop(0);
	ck_assert(state_says("clean=0") && !state_says("savers"));
	stop(1);
	ck_assert(state_says("clean=0"));
}

/* One that was stopped inside the gate, or whose disk hangs there. */
UNIT_TEST(who_cannot_begin_does_not)
{
	configure("$/a");
	start(0);
	ck_assert_int_eq(ucm_store_open(&fx_config, &stores[1], &error), 0);
	fx_fail("lock", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_start(stores[1]), -EIO);
	fx_fail(NULL, 0, 0, false);
}

/* ---- where nobody can be asked who is there ---- */

static bool is_nfs;

/* In the place of the C library's, for this program. */
int fstatfs(int fd, struct statfs *out)
{
	int err = (int)syscall(SYS_fstatfs, fd, out);

	if (is_nfs)
		out->f_type = NFS_SUPER_MAGIC;
	return err;
}

/* A snapshot there is no more than names, which are compared. */
UNIT_TEST(on_a_network_file_system_the_state_is_left_alone)
{
	static struct fx_file three;
	char before[256], after[256];

	is_nfs = true;
	configure("$/a");
	fx_block(&three, 3, FX_PAGED);
	daemon_starts();
	ck_assert_int_eq(fx_commit(&one), 0);
	ck_assert_int_eq(fx_commit(&three), 0);
	fx_close();
	fx_read(fx_path(STATE), before, sizeof(before));
	fx_config.saver = true;
	start(0);
	start(1);
	ck_assert_int_eq(ucm_store_remove(fx_set, &three.key), 0);
	ck_assert_int_eq(fx_commit(&two), 0);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	be(0);
	fx_serves(&two);
	fx_misses(&three);
	stop(0);
	stop(1);
	fx_read(fx_path(STATE), after, sizeof(after));
	ck_assert_str_eq(after, before);
	ck_assert(fx_exists(fx_path(SNAPSHOT)));
	daemon_starts();
	fx_serves(&one);
	fx_serves(&two);
	fx_misses(&three);
	fx_close();
	is_nfs = false;
}

/* ---- new directories ---- */

static int told[2];

static void be_one_of_many(void)
{
	char byte;

	close(told[1]);
	if (read(told[0], &byte, 1) == 0 && /* all at once */
	    !ucm_store_open(&fx_config, &stores[0], &error)) {
		ucm_store_close(stores[0]);
		_exit(42);
	}
	fprintf(stderr, "%s\n", error.text);
	_exit(1);
}

UNIT_TEST(of_many_who_make_a_directory_all_make_the_same)
{
	pid_t pids[12];
	int status;

	configure("$/a");
	ck_assert_int_eq(pipe(told), 0);
	for (unsigned i = 0; i < NUM_ROWS(pids); i++) {
		pids[i] = fork();
		ck_assert_int_ge(pids[i], 0);
		if (!pids[i])
			be_one_of_many();
	}
	close(told[0]);
	close(told[1]);
	for (unsigned i = 0; i < NUM_ROWS(pids); i++) {
		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 42,
			      "child %u: status %x", i, (unsigned)status);
	}
	ck_assert_uint_eq(fx_count(fx_path(TMP)), 0);
	start(0);
}

/* It was made by another between our look and our link. */
UNIT_TEST(the_identity_of_who_was_first_stays)
{
	static const char first[] =
		"ucmfs 1\nuuid 00112233445566778899aabbccddeeff\n";

	configure("$/a");
	fx_put(fx_path("$/a/.ucmfs/id"), first, strlen(first));
	ck_assert_int_eq(chmod(fx_path("$/a/.ucmfs"), 0700), 0);
	fx_fail_on("open", "id", 1, -ENOENT, true);
	start(0);
	fx_fail(NULL, 0, 0, false);
	ck_assert_uint_eq(stores[0]->dirs.at[0]->uuid[1], 0x11);
	ck_assert_uint_eq(fx_count(fx_path(TMP)), 0);
}
