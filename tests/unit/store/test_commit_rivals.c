/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_commit_rivals.c - several writers of one name, and files that have the
 * name already: who wins, and that no other name waits.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/store/find/find.h"
#include "tests/unit/store/commit_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static struct fx_file second;

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

/* ---- one name, several writers ---- */

UNIT_TEST(a_second_commit_of_a_block_succeeds_and_leaves_the_first)
{
	struct stat before, after;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(fx_stat(fx_path("$/a/blocks/%s", fx_name(&file)),
			      &before), 0);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(fx_stat(fx_path("$/a/blocks/%s", fx_name(&file)), &after),
			 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	ck_assert_uint_eq(fx_set->stats.commits, 1);
	ck_assert_uint_eq(fx_set->stats.commit_duplicates, 1);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 1);
}

UNIT_TEST(two_writers_at_once_both_succeed)
{
	struct ucm_temp first;
	int fd, other;

	fx_configure("$/a,$/b");
	fx_option("placement", "round_robin"); /* one directory each */
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	other = begin(&file, file.len);
	first = temp;
	fd = begin(&file, file.len);
	ck_assert_uint_ne(first.dir, temp.dir);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_int_eq(fx_commit_temp(&first, other, &file.key,
					  UCM_COMMIT_NOW),
			 0);
	ucm_store_drop(fx_set, &first);
	fx_close_file(other);
	end(fd);
	fx_serves(&file);
	ck_assert_uint_eq(fx_count(fx_path("$/a/blocks")) +
			  fx_count(fx_path("$/b/blocks")), 1);
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 0);
	ck_assert_uint_eq(fx_count_files(fx_path("$/b/.ucmfs/tmp")), 0);
}

/* The other writer comes in between our look at the index and our link. */
static struct ucm_temp rival_temp;
static int rival_fd, rival_err = 1;

static int commit_rival_at_link(const char *call, const char *path)
{
	(void)path;
	if (!strcmp(call, "link") && rival_err == 1) {
		rival_err = 0; /* its own link must not come here */
		rival_err = fx_commit_temp(&rival_temp, rival_fd,
					     &file.key, UCM_COMMIT_NOW);
	}
	return 0;
}

static void race(const char *source)
{
	int fd;

	fx_configure(source);
	fx_option("placement", "round_robin");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	rival_fd = begin(&file, file.len);
	rival_temp = temp;
	fd = begin(&file, file.len);
	ucm_os_fault = commit_rival_at_link;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_int_eq(rival_err, 0);
	ucm_store_drop(fx_set, &rival_temp);
	fx_close_file(rival_fd);
	end(fd);
	fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 1);
	ck_assert_uint_eq(fx_set->stats.commits, 1);
	ck_assert_uint_eq(fx_set->stats.commit_duplicates, 1);
}

UNIT_TEST(a_rival_who_links_first_in_the_same_directory_wins)
{
	race("$/a");
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
}

UNIT_TEST(a_rival_who_links_first_in_another_directory_wins)
{
	unsigned files = 0;

	race("$/a,$/b");
	files += fx_exists(fx_path("$/a/blocks/%s", fx_name(&file)));
	files += fx_exists(fx_path("$/b/blocks/%s", fx_name(&file)));
	ck_assert_uint_eq(files, 1);
}

/* A writer who comes while a damaged block of that name is being set aside:
 * what is set aside must not be the new one. */
static pthread_t late_thread;
static _Atomic pid_t late_tid;
static _Atomic bool late_ended;

static void *late_writer(void *arg)
{
	const struct fx_file *as = arg;

	late_tid = gettid();
	rival_err = fx_commit_temp(&rival_temp, rival_fd, &as->key,
				     UCM_COMMIT_NOW);
	late_ended = true;
	return NULL;
}

/* It does one or the other. */
static bool late_waits_or_has_ended(void *arg)
{
	(void)arg;
	return late_ended || fx_sleeps(&late_tid);
}

/* At the first call of that name. */
static void commit_late(const char *call, const char *at, struct fx_file *as,
			bool (*until)(void *arg))
{
	static _Atomic bool begun;

	if (!strcmp(call, at) && !atomic_exchange(&begun, true)) {
		pthread_create(&late_thread, NULL, late_writer, as);
		fx_wait(until, NULL);
	}
}

static int commit_at_quarantine(const char *call, const char *path)
{
	(void)path;
	commit_late(call, "rename", &file, late_waits_or_has_ended);
	return 0;
}

UNIT_TEST(a_commit_during_a_quarantine_is_not_quarantined)
{
	ucm_ref ref;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert(ucm_index_find(fx_set->index, &file.key, NULL, &ref));
	rival_fd = begin(&file, file.len);
	rival_temp = temp;
	ucm_os_fault = commit_at_quarantine;
	ucm_store_condemn(fx_set, ref, 0, NULL, UCM_FAULT_PLANE, "");
	pthread_join(late_thread, NULL);
	ucm_os_fault = NULL;
	ck_assert_int_eq(rival_err, 0);
	ucm_store_drop(fx_set, &rival_temp);
	fx_close_file(rival_fd);
	fx_serves(&file);
}

static bool late_has_ended(void *arg)
{
	(void)arg;
	return late_ended;
}

/* A server may let a sync hang until others have ended. */
static int commit_at_sync(const char *call, const char *path)
{
	(void)path;
	commit_late(call, "fdatasync", &second, late_has_ended);
	return 0;
}

static void two_of_one_lock(void)
{
	fx_block(&file, 0, FX_PAGED);
	for (unsigned i = 1; i == 1 || second.key.id.bytes[1] !=
					       file.key.id.bytes[1]; i++)
		fx_block(&second, i, FX_PAGED);
}

UNIT_TEST(a_sync_keeps_no_other_name_waiting)
{
	int fd;

	fx_configure("$/a,$/b");
	fx_option("placement", "round_robin"); /* one directory each */
	fx_option("durability", "data");
	fx_open();
	fx_start();
	two_of_one_lock();
	rival_fd = begin(&second, second.len);
	rival_temp = temp;
	fd = begin(&file, file.len);
	ucm_os_fault = commit_at_sync;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	pthread_join(late_thread, NULL);
	ucm_os_fault = NULL;
	ck_assert_int_eq(rival_err, 0);
	ucm_store_drop(fx_set, &rival_temp);
	fx_close_file(rival_fd);
	end(fd);
}

/* So may the look at what has the name already. */
static int commit_at_check(const char *call, const char *path)
{
	if (path && strstr(path, ".bin"))
		commit_late(call, "open", &second, late_has_ended);
	return 0;
}

UNIT_TEST(a_look_at_a_duplicate_keeps_no_other_name_waiting)
{
	int fd;

	fx_store("$/a");
	two_of_one_lock();
	ck_assert_int_eq(fx_commit(&file), 0);
	rival_fd = begin(&second, second.len);
	rival_temp = temp;
	fd = begin(&file, file.len);
	ucm_os_fault = commit_at_check;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ucm_os_fault = NULL;
	pthread_join(late_thread, NULL);
	ck_assert_int_eq(rival_err, 0);
	ck_assert_uint_eq(fx_set->stats.commit_duplicates, 1);
	ucm_store_drop(fx_set, &rival_temp);
	fx_close_file(rival_fd);
	end(fd);
}

/* A scan that comes upon our link before we have indexed it. */
static int scan_after_link(const char *call, const char *path)
{
	static bool linked;

	(void)path;
	if (!strcmp(call, "link")) {
		linked = true;
	} else if (linked && !strcmp(call, "fstat") && rival_err == 1) {
		rival_err = 0;
		rival_err = ucm_store_examine(fx_set, fx_set->names.spaces[0],
					      &file.key.id, 0);
	}
	return 0;
}

UNIT_TEST(a_commit_that_a_scan_was_first_to_see_is_still_ours)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	ucm_os_fault = scan_after_link;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_int_eq(rival_err, 1); /* a block */
	ck_assert_uint_ne(temp.ref, 0); /* so that late writes are noticed */
	ck_assert_uint_eq(fx_set->stats.commits, 1);
	end(fd);
	fx_serves(&file);
}

/* ---- what lies there already ---- */

UNIT_TEST(a_good_file_behind_the_index_is_the_block)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fx_plant("$/a", "blocks", &file);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
	ck_assert_uint_eq(fx_set->stats.commit_duplicates, 1);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 0);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
}

static void plant_obstacle(int which)
{
	const char *path = fx_path("$/a/blocks/%s", fx_name(&file));

	fx_mkdirs(fx_path("$/a/blocks/%.2s", fx_name(&file)));
	switch (which) {
	case 0: fx_put(path, file.bytes, 5000); break; /* torn */
	case 1: fx_put(path, "", 0); break;
	case 2: fx_put(path, second.bytes, second.len); break;
	case 3: fx_put(path, "a file of somebody else's, of some length, which "
			     "is no block at all", 68); break;
	case 4: ck_assert_int_eq(fx_symlink("/etc/passwd", path), 0); break;
	case 5: ck_assert_int_eq(fx_mkfifo(path, 0644), 0); break;
	case 6: ck_assert_int_eq(fx_mkdir(path, 0755), 0); break;
	}
}

UNIT_TEST(whatever_else_has_the_name_makes_room, .rows = 7)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fx_block(&second, 2, FX_PAGED);
	plant_obstacle(_i);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
}

/* The index has it, the disk has not: success must not mean "neither". */
UNIT_TEST(a_block_that_vanished_can_be_committed_again)
{
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(fx_unlink(fx_path("$/a/blocks/%s", fx_name(&file))), 0);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
}

static int unreadable_blocks(const char *call, const char *path)
{
	return !strcmp(call, "open") && path && strstr(path, ".bin") ? -EIO : 0;
}

UNIT_TEST(a_copy_that_cannot_be_read_is_no_reason_to_drop_a_new_one)
{
	struct ucm_entry entry;
	ucm_ref ref;

	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:1");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_set->dirs.tiers[0].limit.size = 0; /* from now on there is room */

	ucm_os_fault = unreadable_blocks;
	ck_assert_int_eq(fx_commit(&file), 0);
	ucm_os_fault = NULL;
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.dir, 0);
	fx_serves(&file);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[1]), 0);
	/* and both go when it is removed */
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert(!fx_exists(fx_path("$/b/blocks/%s", fx_name(&file))));
}
