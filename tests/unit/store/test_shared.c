/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shared.c - two daemons on one directory: what one commits, removes, uses and
 * pins the other sees; which of them evicts a block; and what a heart that stands
 * still, or is gone, means. Both are in this process, and no thread of theirs runs.
 *
 * The directory is as a client of NFS shows it: what a folder is said to be is what it
 * was when its server was asked, which a call must ask for. The server has a clock of
 * its own.
 */
#include <config.h>

#include "fs/medium/shared/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/store/find/find.h"
#include "fs/store/motion/motion.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192u /* of a block of FX_PAGED */
#define HOSTS "$/a/.ucmfs/hosts"
#define OTHER "00000007-00000009-00000001-0"

static struct ucm_store *one, *two; /* of which fx_set is one */
static time_t server_s;		    /* its clock; 0: this machine's */
static struct stat cached[1024];    /* folders */
static unsigned num_cached;
static bool ticks; /* that clock; else what changes has the time of before */

/* ---- the client ---- */

static struct stat *find_cached(const struct stat *st)
{
	for (unsigned i = 0; i < num_cached; i++) {
		if (cached[i].st_ino == st->st_ino)
			return &cached[i];
	}
	ck_assert_uint_lt(num_cached, NUM_ROWS(cached));
	cached[num_cached] = *st;
	return &cached[num_cached++];
}

/* In the place of the C library's, for this program. */
int fstatat(int fd, const char *path, struct stat *out, int flags)
{
	int err = (int)syscall(SYS_newfstatat, fd, path, out, flags);
	struct stat *before;

	if (err || !S_ISDIR(out->st_mode))
		return err;
	before = find_cached(out);
	if (flags & AT_STATX_FORCE_SYNC && ticks)
		*before = *out;
	*out = *before;
	return 0;
}

int utimensat(int fd, const char *path, const struct timespec times[2], int flags)
{
	const struct timespec now[2] = { { .tv_sec = server_s },
					 { .tv_sec = server_s } };

	return (int)syscall(SYS_utimensat, fd, path,
			    !times && server_s ? now : times, flags);
}

/* ---- the two ---- */

static void close_other(void)
{
	ucm_store_close(fx_set == one ? two : one);
}

static void open_both(void)
{
	fx_open_still();
	one = fx_set;
	fx_set = NULL;
	fx_open_still();
	two = fx_set;
}

static void setup(void)
{
	num_cached = 0;
	ticks = true;
	server_s = 0;
	ucm_fresh_age_ms = 1;
	fx_setup_files();
	fx_configure_lru("$/a");
	fx_config.tiers[0].shared = true;
	open_both();
	fx_at_end(close_other);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

static struct ucm_medium *medium_of(struct ucm_store *store)
{
	return store->dirs.at[0];
}

static void beat(struct ucm_store *store)
{
	struct ucm_hosts *hosts = medium_of(store)->hosts;

	hosts->due_ms = 0;
	hosts->look_due_ms = 0;
	ck_assert_int_eq(ucm_medium_beat(medium_of(store), UCM_BEAT_SHOW), 0);
}

/* Each has seen the other. */
static void meet(void)
{
	beat(one);
	beat(two);
}

static int find_in(struct ucm_store *store, unsigned i)
{
	fx_set = store;
	return fx_find(&fx_files[i]);
}

static bool is_found(void *arg)
{
	return !fx_find(arg);
}

/* Once what is known is old enough. */
static void must_find(struct ucm_store *store, unsigned i)
{
	fx_set = store;
	fx_wait(is_found, &fx_files[i]);
}

static int open_in(struct ucm_store *store, unsigned i)
{
	struct ucm_entry entry;
	int fd;

	fx_set = store;
	fd = fx_open_block(fx_ref(&fx_files[i]), &entry);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? fd : 0;
}

static int remove_in(struct ucm_store *store, unsigned i)
{
	return ucm_store_remove(store, &fx_files[i].key);
}

static bool is_on_disk(unsigned i)
{
	return fx_exists(fx_path("$/a/blocks/%s", fx_name(&fx_files[i])));
}

static void commit_in(struct ucm_store *store, unsigned first, unsigned num)
{
	fx_set = store;
	fx_commit_files(first, num);
}

/* ---- what the other does ---- */

UNIT_TEST(both_are_there)
{
	ck_assert_uint_eq(fx_count(fx_path(HOSTS)), 2);
	ck_assert(!fx_exists(fx_path("$/a/.ucmfs/state")));
	fx_close();
	ck_assert_uint_eq(fx_count(fx_path(HOSTS)), 1);
	fx_open_still();
	two = fx_set;
}

UNIT_TEST(what_one_commits_the_other_finds)
{
	ck_assert_int_eq(find_in(two, 0), -ENOENT);
	commit_in(one, 0, 1);
	must_find(two, 0);
	ck_assert_int_eq(open_in(two, 0), 0);
}

/* The second block is in the bucket of the first. */
static void put_beside(void)
{
	struct fx_file *file = &fx_files[1];

	file->key.id = fx_files[0].key.id;
	file->key.id.bytes[15] ^= 1;
	file->block.id = file->key.id;
	fx_encode(file, true);
}

/* The kernel has the folder as it was, and nothing is to be listed. */
UNIT_TEST(the_folder_is_asked_for_at_its_server)
{
	put_beside();
	commit_in(one, 0, 1);
	must_find(two, 0);
	for (unsigned i = 0; i < 4; i++) {
		usleep(30000);
		ck_assert_int_eq(find_in(two, 1), -ENOENT);
	}
	commit_in(one, 1, 1);
	must_find(two, 1);
}

/* Two names in one tick of the server's clock. */
UNIT_TEST(a_folder_that_changed_is_listed_once_more)
{
	put_beside();
	commit_in(one, 0, 1);
	must_find(two, 0);
	commit_in(one, 1, 1);
	ticks = false;
	must_find(two, 1);
}

UNIT_TEST(what_one_removes_is_a_miss_in_the_other)
{
	commit_in(one, 0, 2);
	must_find(two, 0);
	ck_assert_int_eq(remove_in(one, 0), 0);
	fx_clear_log();
	ck_assert_int_eq(open_in(two, 0), -ENOENT);
	ck_assert(!fx_logged("gone from"));
	ck_assert_int_eq(find_in(two, 0), -ENOENT);
}

static bool is_forgotten(void *arg)
{
	ucm_store_freshen_all(two, 0);
	return !fx_is_indexed(arg);
}

UNIT_TEST(what_is_listed_no_more_is_forgotten)
{
	commit_in(one, 0, 1);
	must_find(two, 0);
	ck_assert_int_eq(remove_in(one, 0), 0);
	fx_wait(is_forgotten, &fx_files[0]);
}

UNIT_TEST(of_two_that_commit_one_block_both_succeed)
{
	commit_in(one, 0, 1);
	commit_in(two, 0, 1);
	ck_assert_int_eq(open_in(two, 0), 0);
	ck_assert_int_eq(open_in(one, 0), 0);
	ck_assert_uint_eq(two->stats.commit_duplicates, 1);
	ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/quarantine")), 0);
}

UNIT_TEST(what_the_other_committed_can_be_removed)
{
	commit_in(one, 0, 1);
	ck_assert_int_eq(remove_in(two, 0), 0);
	ck_assert(!is_on_disk(0));
}

/* After a restart of the server. */
UNIT_TEST(a_stale_name_is_opened_once_more)
{
	commit_in(one, 0, 1);
	fx_fail_on("open", ".bin", 1, -ESTALE, true);
	ck_assert_int_eq(open_in(one, 0), 0);
	ck_assert_str_eq(fx_failed_call(), "open");
	fx_fail_on("open", ".bin", 1, -ESTALE, false);
	ck_assert_int_eq(open_in(one, 0), -ENOENT);
	ck_assert(!fx_is_indexed(&fx_files[0]));
}

UNIT_TEST(a_note_is_said_once)
{
	struct stat before, after;

	fx_mkdirs(fx_path("$/a/spaces/x"));
	ck_assert_int_eq(ucm_medium_replace_note(medium_of(one), "spaces/x",
						 "space.json", "two", 3),
			 0);
	ck_assert_int_eq(stat(fx_path("$/a/spaces/x/space.json"), &before), 0);
	ck_assert_int_eq(ucm_medium_replace_note(medium_of(two), "spaces/x",
						 "space.json", "three", 5),
			 -EEXIST);
	ck_assert_int_eq(ucm_medium_replace_note(medium_of(two), "spaces/x",
						 "space.json", "two", 3),
			 0);
	ck_assert_int_eq(stat(fx_path("$/a/spaces/x/space.json"), &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
}

/* ---- hearts ---- */

UNIT_TEST(each_bucket_is_in_one_slice)
{
	unsigned ours = 0;

	meet();
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++) {
		bool first = ucm_hosts_is_ours(medium_of(one), bucket);

		ours += first;
		ck_assert(first != ucm_hosts_is_ours(medium_of(two), bucket));
	}
	ck_assert_uint_gt(ours, UCM_BUCKETS / 4);
	ck_assert_uint_lt(ours, UCM_BUCKETS * 3 / 4);
	ck_assert_uint_eq(ucm_hosts_living(medium_of(one)), 2);
}

static void put_heart(time_t mtime)
{
	const struct timespec times[2] = { { .tv_sec = mtime },
					   { .tv_sec = mtime } };

	if (!fx_exists(fx_path(HOSTS "/" OTHER)))
		fx_put(fx_path(HOSTS "/" OTHER), "", 0);
	ck_assert_int_eq(utimensat(AT_FDCWD, fx_path(HOSTS "/" OTHER), times, 0),
			 0);
}

static bool is_alive(time_t now)
{
	server_s = now;
	meet();
	return fx_exists(fx_path(HOSTS "/" OTHER));
}

UNIT_TEST(a_heart_that_stands_still_is_removed)
{
	put_heart(990);
	ck_assert(is_alive(1000));
	ck_assert(is_alive(1011));
	ck_assert_uint_eq(ucm_hosts_living(medium_of(one)), 3);
	ck_assert(!is_alive(1013));
	ck_assert_uint_eq(ucm_hosts_living(medium_of(one)), 2);
	ck_assert(fx_logged(OTHER " is gone"));
}

/* Its time is years from that of this machine, and behind our heart's. */
UNIT_TEST(one_that_beats_is_alive_by_any_clock)
{
	for (unsigned i = 0; i < 20; i++) {
		put_heart(500 + 2 * i);
		ck_assert(is_alive(1000 + 4 * i));
	}
}

UNIT_TEST(what_is_no_heart_is_left_alone)
{
	fx_put(fx_path(HOSTS "/.nfs0001"), "", 0);
	for (unsigned i = 0; i < 5; i++)
		is_alive(1000 + 10 * i);
	ck_assert(fx_exists(fx_path(HOSTS "/.nfs0001")));
	ck_assert_uint_eq(ucm_hosts_living(medium_of(one)), 2);
}

/* ---- eviction ---- */

static uint64_t freed;

static int evict(struct ucm_store *store, unsigned blocks, enum ucm_eviction how)
{
	return ucm_evict_bytes(store, 0, blocks * (uint64_t)BYTES, how, NULL,
			       &freed);
}

static void age(unsigned first, unsigned num, uint32_t seconds)
{
	for (unsigned i = first; i < first + num; i++)
		fx_age(&fx_files[i], seconds);
}

UNIT_TEST(a_daemon_that_was_taken_for_dead_evicts_nothing)
{
	commit_in(one, 0, 4);
	meet();
	unlink(fx_path("$/a/%s", medium_of(one)->hosts->path));
	ck_assert_int_eq(evict(one, 1, UCM_EVICTION_LEAVES), -ENOSPC);
	ck_assert(fx_logged("taken this one for dead"));
	for (unsigned i = 0; i < 4; i++)
		ck_assert(is_on_disk(i));
	beat(one);
	ck_assert_int_eq(evict(one, 1, UCM_EVICTION_LEAVES), 0);
}

UNIT_TEST(movers_evict_in_their_slice_and_writers_anywhere)
{
	commit_in(one, 0, FX_FILES);
	meet();
	ck_assert_int_eq(evict(one, FX_FILES, UCM_EVICTION_MOVING), -ENOSPC);
	ck_assert_uint_gt(freed, 0);
	for (unsigned i = 0; i < FX_FILES; i++)
		ck_assert(is_on_disk(i) !=
			  ucm_hosts_is_ours(medium_of(one),
					    fx_files[i].key.id.bytes[0]));
	ck_assert_int_eq(evict(one, 1, UCM_EVICTION_LEAVES), 0);
}

UNIT_TEST(what_the_other_has_pinned_stays)
{
	commit_in(one, 0, 2);
	must_find(two, 0);
	ck_assert_int_eq(ucm_store_pin(two, fx_ref(&fx_files[0]), true), 0);
	ck_assert_int_eq(evict(one, 2, UCM_EVICTION_LEAVES), -ENOSPC);
	ck_assert(is_on_disk(0));
	ck_assert(!is_on_disk(1));
}

/* The server's clock is not this machine's. */
UNIT_TEST(what_the_other_has_used_is_evicted_last)
{
	const struct timespec used[2] = { { .tv_sec = 5000 - 10 },
					  { .tv_nsec = UTIME_OMIT } };
	const struct timespec idle[2] = { { .tv_sec = 5000 - 2000 },
					  { .tv_nsec = UTIME_OMIT } };

	commit_in(one, 0, 4);
	age(0, 4, 1000);
	age(2, 1, 1500);
	for (unsigned i = 0; i < 4; i++)
		utimensat(AT_FDCWD,
			  fx_path("$/a/blocks/%s", fx_name(&fx_files[i])),
			  i == 2 ? used : idle, 0);
	server_s = 5000;
	beat(one);
	ck_assert_int_eq(evict(one, 3, UCM_EVICTION_LEAVES), 0);
	ck_assert(is_on_disk(2));
	ck_assert_int_eq(evict(one, 1, UCM_EVICTION_LEAVES), 0);
	ck_assert(!is_on_disk(2));
}

/* Its file was used a moment ago, by the session itself; the others' long ago. */
UNIT_TEST(what_has_ended_is_evicted_first)
{
	const struct timespec idle[2] = { { .tv_sec = time(NULL) - 1000 },
					  { .tv_nsec = UTIME_OMIT } };

	commit_in(one, 0, 4);
	age(0, 4, 1000);
	for (unsigned i = 0; i < 4; i++)
		if (i != 2)
			utimensat(AT_FDCWD,
				  fx_path("$/a/blocks/%s", fx_name(&fx_files[i])),
				  idle, 0);
	ck_assert_int_eq(ucm_evict_first(one, &fx_files[2].key), 0);
	ck_assert_int_eq(evict(one, 1, UCM_EVICTION_LEAVES), 0);
	ck_assert(!is_on_disk(2));
}

UNIT_TEST(what_was_used_here_the_other_sees)
{
	const struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct stat st;

	commit_in(one, 0, 2);
	ck_assert_int_eq(open_in(one, 0), 0);
	for (unsigned i = 0; i < 2; i++)
		utimensat(AT_FDCWD,
			  fx_path("$/a/blocks/%s", fx_name(&fx_files[i])), old,
			  0);
	age(1, 1, 1000);
	one->keepers[0].uses_s = fx_entry(&fx_files[0]).atime_s - 100;
	ucm_store_share_uses(one, 0);
	stat(fx_path("$/a/blocks/%s", fx_name(&fx_files[0])), &st);
	ck_assert_int_gt(st.st_atim.tv_sec, 1000);
	ck_assert_int_eq(st.st_mtim.tv_sec, 1000);
	stat(fx_path("$/a/blocks/%s", fx_name(&fx_files[1])), &st);
	ck_assert_int_eq(st.st_atim.tv_sec, 1000);
}
