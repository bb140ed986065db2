/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_commit.c - from a temporary file to a block: what is refused, what
 * fails, who wins, and that in none of it half a block becomes visible.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "fs/store/find/find.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

#define TMP "$/a/.ucmfs/tmp"
#define QUARANTINE "$/a/.ucmfs/quarantine"

static struct fx_file file, second;
static struct ucm_temp temp;

/* A temporary file with the first len bytes of a block. */
static int begin(const struct fx_file *from, size_t len)
{
	int fd = fx_create(&from->key, 0, &temp);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fx_pwrite(fd, from->bytes, len, 0), (ssize_t)len);
	return fd;
}

static int commit(int fd, const struct fx_file *as, enum ucm_commit_when when)
{
	return fx_commit_temp(&temp, fd, &as->key, when);
}

static void end(int fd)
{
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	ck_assert_uint_eq(atomic_load(&temp.tier->writing), 0);
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(blocks_of_every_form_are_committed)
{
	for (int kind = FX_PAGED; kind <= FX_BARE; kind++) {
		fx_close();
		ucm_config_fini(&fx_config);
		ucm_config_init(&fx_config);
		fx_store(fx_path("$/d%d", kind));
		fx_block(&file, 1, (enum fx_kind)kind);
		fx_misses(&file);
		ck_assert_int_eq(fx_commit(&file), 0);
		fx_serves(&file);
		ck_assert(fx_exists(fx_path("$/d%d/blocks/%s", kind,
					    fx_name(&file))));
		ck_assert_uint_eq(fx_count_files(fx_path("$/d%d/.ucmfs/tmp", kind)),
				  0);
		ck_assert_uint_eq(fx_set->stats.commits, 1);
		ck_assert_uint_eq(fx_set->stats.dropped, 0);
	}
}

UNIT_TEST(a_name_is_not_there_before_the_commit)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	fx_misses(&file);
	ck_assert_uint_eq(fx_count(fx_path("$/a/blocks")), 0);
	end(fd);
	fx_misses(&file);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
	ck_assert_uint_eq(fx_set->stats.dropped, 1);
}

UNIT_TEST(a_commit_tells_the_index_the_parent, .rows = 2)
{
	struct ucm_entry entry;
	struct ucm_key key;
	ucm_ref ref;
	int fd;

	fx_store("$/a");
	fx_block(&second, 1, FX_PAGED);
	fx_block(&file, 2, FX_PAGED);
	file.block.flags |= UCM_BLOCK_HAS_PARENT;
	file.block.parent = second.key.id;
	fx_encode(&file, true);
	ck_assert_int_eq(fx_commit(&second), 0);
	fd = begin(&file, file.len);
	ck_assert_int_eq(commit(fd, &file, _i ? UCM_COMMIT_WRITTEN
					      : UCM_COMMIT_IF_WHOLE), 0);
	end(fd);
	key = second.key;
	ck_assert_int_eq(ucm_store_find(fx_set, &key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.children, 1);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert(ucm_index_get(fx_set->index, ref, &entry));
	ck_assert_uint_eq(entry.children, 0);
}

UNIT_TEST(an_incomplete_file_may_be_gone_on_with)
{
	static const size_t lengths[] = { 0, 1, 63, 64, 4095, 4096, 8191 };
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 0);
	for (size_t i = 0; i < NUM_ROWS(lengths); i++) {
		size_t len = lengths[i];

		ck_assert_int_eq(fx_pwrite(fd, file.bytes, len, 0), (ssize_t)len);
		ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE),
				 -EAGAIN);
		ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EAGAIN);
		fx_misses(&file);
	}
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), 0);
	end(fd);
	fx_serves(&file);
	ck_assert_uint_eq(fx_set->stats.commit_refused, 0);
}

/* The payload's checksums differ: whoever believes its writer does not know. */
static int begin_with_wrong_payload(void)
{
	int fd;

	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	ck_assert_int_eq(fx_pwrite(fd, "X", 1, 5000), 1);
	return fd;
}

UNIT_TEST(what_the_writer_knows_is_not_read_back)
{
	int fd;

	fx_store("$/a");
	fd = begin_with_wrong_payload();
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EINVAL);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_WRITTEN), 0);
	end(fd);
	ck_assert_int_eq(fx_find(&file), 0);
}

/* A size, and no header or not all of the payload. */
UNIT_TEST(a_writers_word_is_no_header, .rows = 2)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, _i ? file.len - 1 : 0);
	if (!_i)
		ck_assert_int_eq(fx_ftruncate(fd, (off_t)file.len), 0);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_WRITTEN),
			 _i ? -EAGAIN : -EINVAL);
	fx_misses(&file);
	end(fd);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 0);
}

static const struct {
	const char *what;
	size_t at;
	uint8_t value;
	const char *says;
} wrongs[] = {
	{ "magic", 0, 'X', "magic" },
	{ "version", 4, 2, "version" },
	{ "header", 40, 0xee, "header checksum" },
	{ "extension", 200, 1, "extension" },
	{ "name", 0, 0, "not the file's name" },
	{ "longer", 8192, 0, "longer" },
};

/* The size is there before the bytes: header first, the payload later. */
UNIT_TEST(a_file_of_full_size_is_not_whole_without_its_bytes, .rows = 2)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 0);
	if (_i == 0) { /* holes */
		ck_assert_int_eq(fx_ftruncate(fd, (off_t)file.len), 0);
	} else { /* room, but zeroes in it */
		ck_assert_int_eq(fx_posix_fallocate(fd, 0, (off_t)file.len), 0);
	}
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, 4096, 0), 4096);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EAGAIN);
	fx_misses(&file);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EINVAL);
	fx_misses(&file);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes + 4096, file.len - 4096, 4096),
			 (ssize_t)(file.len - 4096));
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), 0);
	end(fd);
	fx_serves(&file);
}

UNIT_TEST(without_checksums_a_file_is_whole_when_its_writer_says_so)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED_RAW);
	fd = begin(&file, 0);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EINVAL);
	ck_assert_uint_eq(fx_set->stats.refused_for[UCM_FAULT_UNVOUCHED], 1);
	fx_misses(&file);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
}

UNIT_TEST(a_wrong_file_is_refused_by_rule_and_kept, .rows = NUM_ROWS(wrongs))
{
	uint8_t byte;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	second = file;
	fd = begin(&file, file.len);
	if (!strcmp(wrongs[_i].what, "name"))
		second.key.id.bytes[15] ^= 1;
	else
		ck_assert_int_eq(fx_pwrite(fd, &wrongs[_i].value, 1,
					(off_t)wrongs[_i].at), 1);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(commit(fd, &second, (enum ucm_commit_when)i),
				 -EINVAL);
		ck_assert(fx_logged(wrongs[_i].says));
		fx_misses(&second);
	}
	ck_assert_uint_eq(fx_set->stats.commit_refused, 2);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 1);
	/* and it can be mended */
	byte = file.bytes[wrongs[_i].at];
	ck_assert_int_eq(fx_pwrite(fd, &byte, 1, (off_t)wrongs[_i].at), 1);
	ck_assert_int_eq(fx_ftruncate(fd, (off_t)file.len), 0);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
}

/* ---- whose word it takes ---- */

/* A page of the payload, at least, is missing in a file with a hole. */
/* A block with checksums of bytes that were never written. */
#define FX_PAGED_ZEROS ((enum fx_kind)(FX_BARE + 1))

static const struct ucm_geometry wide = { 1, 4, 0, 8192, 8192, 0, 0, 0 };

/* What a commit says that is tried for this reason or that. */
static const struct {
	const char *what;
	enum fx_kind kind;
	bool geometry; /* known before */
	bool hole;
	int results[3]; /* IF_WHOLE, LAST, NOW */
} words[] = {
	{ "checksums prove it", FX_PAGED, true, false, { 0, 0, 0 } },
	{ "and show what is missing", FX_PAGED, true, true,
	  { -EAGAIN, -EINVAL, -EINVAL } },
	{ "packed", FX_PACKED, false, false, { 0, 0, 0 } },
	{ "packed, half", FX_PACKED, false, true,
	  { -EAGAIN, -EINVAL, -EINVAL } },
	{ "also in a file of zeros", FX_PAGED_ZEROS, true, false,
	  { -EAGAIN, -EINVAL, -EINVAL } },
	{ "without them its writer does", FX_PAGED_RAW, true, false,
	  { -EINVAL, -EINVAL, 0 } },
	{ "packed, without", FX_PACKED_RAW, false, false,
	  { -EINVAL, -EINVAL, 0 } },
	{ "bare, as large as the others", FX_BARE, true, false,
	  { -EINVAL, -EINVAL, 0 } },
	{ "bare, the first", FX_BARE, false, false, { -EINVAL, -EINVAL, 0 } },
};

static int begin_row(unsigned row)
{
	int fd;

	fx_block_of(&file, 2,
		    words[row].kind == FX_PAGED_ZEROS ? FX_PAGED
						      : words[row].kind, &wide);
	if (words[row].kind == FX_PAGED_ZEROS)
		memset(file.bytes + 4096, 0, file.len - 4096);
	fd = begin(&file, words[row].hole ? 4096 : file.len);
	if (words[row].hole)
		ck_assert_int_eq(fx_pwrite(fd, file.bytes + file.len - 1, 1,
					(off_t)file.len - 1), 1);
	return fd;
}

UNIT_TEST(what_proves_nothing_takes_its_writers_word, .rows = NUM_ROWS(words))
{
	for (int when = UCM_COMMIT_IF_WHOLE; when <= UCM_COMMIT_NOW; when++) {
		int fd, result;

		fx_store(fx_path("$/d%d", when));
		fx_block_of(&second, 1, FX_PAGED, &wide);
		if (words[_i].geometry)
			ck_assert_int_eq(fx_commit(&second), 0);
		fd = begin_row((unsigned)_i);
		result = commit(fd, &file, (enum ucm_commit_when)when);
		ck_assert_msg(result == words[_i].results[when],
			      "%s, %d: %d", words[_i].what, when, result);
		/* and no geometry is learnt from what is not committed */
		ck_assert_int_eq(
			ucm_space_has_geometry(fx_set->names.spaces[0]),
			words[_i].geometry || !result);
		end(fd);
		if (result)
			fx_misses(&file);
		else
			fx_serves(&file);
		fx_close();
		ucm_config_fini(&fx_config);
		ucm_config_init(&fx_config);
	}
}

/* A gap within a page is no hole. */
UNIT_TEST(a_gap_that_no_hole_shows_is_found_where_nobody_vouches)
{
	const size_t gap = 4096, end = gap + 384;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, gap);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes + end, file.len - end,
				(off_t)end), (ssize_t)(file.len - end));
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EAGAIN);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_LAST), -EINVAL);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	fx_misses(&file);
}

/* ---- bare blocks: only geometry or the end of writing tell the size ---- */

UNIT_TEST(a_bare_block_of_unknown_size_is_whole_when_its_writer_says_so)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_BARE);
	fd = begin(&file, 64 + 256); /* divides, and is not all of it */
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EINVAL);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EINVAL);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
}

UNIT_TEST(a_bare_block_of_known_size_is_not_whole_before_it_has_it)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_block(&file, 2, FX_BARE);
	fd = begin(&file, 64 + 256);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EAGAIN);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EAGAIN);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
	/* too large for the geometry */
	fx_block(&file, 3, FX_BARE);
	fd = begin(&file, file.len);
	ck_assert_int_eq(fx_ftruncate(fd, 64 + 1024), 0);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EINVAL);
	end(fd);
}

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

/* ---- geometry and identity ---- */

UNIT_TEST(a_block_of_another_geometry_is_refused_naming_both)
{
	struct ucm_geometry g = fx_geometry;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	g.num_layers = 3;
	fx_block_of(&second, 2, FX_PAGED, &g);
	fd = begin(&second, second.len);
	ck_assert_int_eq(commit(fd, &second, UCM_COMMIT_NOW), -EINVAL);
	ck_assert(fx_logged("the space has 2 layers"));
	ck_assert(fx_logged("the block has 3 layers"));
	end(fd);
	fx_misses(&second);
}

UNIT_TEST(a_space_that_is_empty_again_takes_another_geometry)
{
	struct ucm_geometry g = fx_geometry;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	g.num_layers = 3;
	fx_block_of(&second, 2, FX_PAGED, &g);
	ck_assert_int_eq(fx_commit(&second), -EINVAL);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(fx_commit(&second), 0);
	fx_serves(&second);
	ck_assert_int_eq(fx_commit(&file), -EINVAL);
}

UNIT_TEST(a_geometry_outlives_the_store)
{
	struct ucm_geometry g = fx_geometry;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_close();
	fx_open(); /* before any scan thread */
	g.num_layers = 3;
	fx_block_of(&second, 2, FX_PAGED, &g);
	ck_assert_int_eq(fx_commit(&second), -EINVAL);
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

/* ---- tiers that are full or fail ---- */

UNIT_TEST(a_full_tier_passes_blocks_to_the_next)
{
	struct ucm_entry entry;
	unsigned dirs[4];
	ucm_ref ref;

	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:20000");
	fx_open();
	fx_start();
	for (unsigned i = 0; i < 4; i++) {
		fx_block(&file, i, FX_PAGED);
		ck_assert_int_eq(fx_commit(&file), 0);
		ck_assert_int_eq(
			ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
		dirs[i] = entry.dir;
	}
	ck_assert_uint_eq(dirs[0], 0);
	ck_assert_uint_eq(dirs[1], 0);
	ck_assert_uint_eq(dirs[2], 1);
	ck_assert_uint_eq(dirs[3], 1);
	/* room again */
	fx_block(&file, 0, FX_PAGED);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.dir, 0);
}

/* Files that are being written count as if they were there. */
UNIT_TEST(room_is_promised_once)
{
	struct ucm_temp temps[3];
	int fds[3];

	fx_configure("fast=$/a");
	fx_option("limit", "fast:20000");
	fx_open();
	fx_start();
	fx_block(&file, 0, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_block(&file, 1, FX_PAGED);
	fds[0] = fx_create(&file.key, 0, &temps[0]);
	ck_assert_int_ge(fds[0], 0);
	ck_assert_int_eq(fx_create(&file.key, 0, &temps[1]),
			 -ENOSPC);
	ucm_store_drop(fx_set, &temps[0]);
	fx_close_file(fds[0]);
	fds[2] = fx_create(&file.key, 0, &temps[2]);
	ck_assert_int_ge(fds[2], 0);
	ucm_store_drop(fx_set, &temps[2]);
	fx_close_file(fds[2]);
}

/* Files of blocks first to first + 4 are made at once, with bytes told; then
 * all are written. How many lie in the first directory? */
static unsigned five_at_once(unsigned first, uint64_t bytes)
{
	struct ucm_temp temps[5];
	unsigned in_first = 0;
	int fds[5];

	for (unsigned i = 0; i < 5; i++) {
		fx_block(&file, first + i, FX_PAGED);
		fds[i] = fx_create(&file.key, bytes, &temps[i]);
		ck_assert_int_ge(fds[i], 0);
		in_first += temps[i].dir == 0;
	}
	for (unsigned i = 0; i < 5; i++) {
		fx_block(&file, first + i, FX_PAGED);
		ck_assert_int_eq(fx_pwrite(fds[i], file.bytes, file.len, 0),
				 (ssize_t)file.len);
		ck_assert_int_eq(fx_commit_temp(&temps[i], fds[i],
						  &file.key, UCM_COMMIT_NOW),
				 0);
		ucm_store_drop(fx_set, &temps[i]);
		fx_close_file(fds[i]);
		fx_serves(&file);
	}
	ck_assert_uint_eq(fx_set->dirs.tiers[0].writing, 0);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].guessed, 0);
	return in_first;
}

UNIT_TEST(the_first_blocks_of_a_space_do_not_pass_the_limit)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:30000");
	fx_open();
	fx_start();
	ck_assert_uint_eq(five_at_once(0, 0), 1);
	/* now the size is known: of three that fit, one is there */
	ck_assert_uint_eq(five_at_once(5, 0), 2);
	ck_assert_uint_eq(five_at_once(10, 0), 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 3 * file.len);
	ck_assert_uint_eq(fx_set->sizes.largest, file.len);
}

UNIT_TEST(a_size_that_is_told_needs_no_guess)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:30000");
	fx_open();
	fx_start();
	fx_block(&file, 0, FX_PAGED);
	ck_assert_uint_eq(five_at_once(0, file.len), 3);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 3 * file.len);
}

/* Of many that may be too large for all tiers, none is turned away. */
UNIT_TEST(a_guess_that_fits_nowhere_goes_where_there_is_most_room)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:30000");
	fx_open();
	fx_start();
	atomic_store(&fx_set->sizes.largest, UINT64_C(1) << 60);
	ck_assert_uint_eq(five_at_once(0, 0), 1);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[1]), 4 * file.len);
}

UNIT_TEST(what_a_file_of_unknown_size_had_is_remembered)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	end(fd);
	ck_assert_uint_eq(fx_set->sizes.outgrown, file.len);
	fd = begin(&file, 0);
	end(fd);
	ck_assert_uint_eq(fx_set->sizes.outgrown, file.len);
}

UNIT_TEST(a_closed_file_needs_no_guess)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 0);
	fx_rest(&temp, fd);
	ck_assert_uint_ge(fx_set->dirs.tiers[0].guessed, 1 << 20);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	fx_rest(&temp, fd);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].guessed, 0);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].writing, file.len);
	end(fd);
}

UNIT_TEST(a_directory_that_fails_is_passed_over_for_a_while, .rows = 4)
{
	static const int errors[] = { -ENOSPC, -EIO, -EROFS, -EDQUOT };
	struct ucm_entry entry;
	ucm_ref ref;

	fx_configure("fast=$/a:slow=$/b");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	fx_fail_on("open", "-", 1, errors[_i], true); /* a new file */
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_fail(NULL, 0, 0, false);
	fx_block(&second, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&second), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_store_find(fx_set,
						i ? &second.key : &file.key,
						&entry, &ref),
				 0);
		ck_assert_uint_eq(entry.dir, 1);
	}
	ck_assert_uint_eq(fx_set->dirs.tiers[0].writing, 0);
	ck_assert_uint_eq(fx_set->dirs.io_errors, 1);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].stats.errors[-errors[_i]], 1);
	ck_assert_uint_eq(fx_set->dirs.tiers[1].stats.errors[-errors[_i]], 0);
}

UNIT_TEST(commits_opens_and_removals_are_counted_by_tier)
{
	struct ucm_tier_stats *fast, *slow;

	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:10000");
	fx_open();
	fx_start();
	fast = &fx_set->dirs.tiers[0].stats;
	slow = &fx_set->dirs.tiers[1].stats;
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_block(&second, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&second), 0);
	ck_assert_int_eq(fx_commit(&second), 0); /* a duplicate is none */
	ck_assert_uint_eq(fast->commits, 1);
	ck_assert_uint_eq(fast->committed_bytes, file.len);
	ck_assert_uint_eq(slow->commits, 1);
	fx_serves(&file);
	fx_serves(&file);
	ck_assert_uint_eq(fast->opens, 2);
	ck_assert_uint_eq(fast->opened_bytes, 2 * file.len);
	ck_assert_uint_eq(slow->opens, 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &second.key), 0);
	ck_assert_uint_eq(slow->removed, 1);
	ck_assert_uint_eq(slow->removed_bytes, second.len);
	ck_assert_uint_eq(fast->removed, 0);
}

UNIT_TEST(refused_files_are_counted_by_cause)
{
	struct ucm_geometry g = fx_geometry;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	g.num_layers = 3;
	fx_block_of(&file, 2, FX_PAGED, &g);
	ck_assert_int_eq(fx_commit(&file), -EINVAL);
	fx_block(&file, 3, FX_PAGED);
	file.bytes[0] ^= 1;
	ck_assert_int_eq(fx_commit(&file), -EINVAL);
	ck_assert_uint_eq(fx_set->stats.refused_for[UCM_FAULT_GEOMETRY], 1);
	ck_assert_uint_eq(fx_set->stats.refused_for[UCM_FAULT_MAGIC], 1);
	ck_assert_uint_eq(fx_set->stats.commit_refused, 2);
}

UNIT_TEST(without_room_anywhere_it_is_enospc)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:1");
	fx_option("limit", "slow:1");
	fx_open();
	fx_start();
	fx_set->dirs.at[0]->used = fx_set->dirs.at[1]->used = 2;
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), -ENOSPC);
	fx_set->dirs.at[0]->used = fx_set->dirs.at[1]->used = 0;
}

UNIT_TEST(a_readonly_tier_takes_nothing)
{
	struct ucm_entry entry;
	ucm_ref ref;

	fx_store("$/r"); /* so that it is a directory of ours */
	fx_close();
	fx_configure("r=$/r:w=$/a");
	fx_option("readonly", "r");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.dir, 1);
	fx_close();

	fx_configure("r=$/r");
	fx_option("readonly", "r");
	fx_open();
	fx_start();
	ck_assert_int_eq(fx_commit(&file), -EROFS);
}

UNIT_TEST(enospc_of_the_link_is_told_as_such)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	fx_fail("link", 1, -ENOSPC, true);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -ENOSPC);
	fx_misses(&file);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
}

/* ---- durability ---- */

UNIT_TEST(durability_decides_what_is_synced)
{
	static const struct {
		const char *durability;
		unsigned fdatasync, fsync;
	} rows[] = {
		{ "none", 0, 0 }, { "data", 1, 0 }, { "full", 1, 2 },
	};

	fx_configure("$/a");
	fx_open();
	fx_start();
	for (unsigned i = 0; i < NUM_ROWS(rows); i++) {
		fx_option("durability", rows[i].durability);
		fx_block(&file, 2 * i, FX_PAGED);
		fx_fail("fdatasync", 99, -EIO, true);
		ck_assert_int_eq(fx_commit(&file), 0);
		ck_assert_uint_eq(fx_calls(), rows[i].fdatasync);
		fx_block(&file, 2 * i + 1, FX_PAGED);
		fx_fail("fsync", 99, -EIO, true);
		ck_assert_int_eq(fx_commit(&file), 0);
		ck_assert_uint_eq(fx_calls(), rows[i].fsync);
	}
}

/* The kernel tells of a lost write once; a second fdatasync would say that all
 * is well. */
UNIT_TEST(a_file_whose_fdatasync_failed_is_never_committed)
{
	int fd;

	fx_configure("$/a");
	fx_option("durability", "data");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	fx_fail("fdatasync", 1, -EIO, true);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EIO);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EIO);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EIO);
	ck_assert_uint_eq(fx_calls(), 1);
	fx_misses(&file);
	end(fd);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
	ck_assert_uint_eq(fx_count(fx_path("$/a/blocks")), 0);
	atomic_store(&fx_set->dirs.at[0]->retry_s, 0);
	ck_assert_int_eq(fx_commit(&file), 0); /* written anew */
	fx_serves(&file);
}

/* ---- every call fails once ---- */

static unsigned stuck; /* temporary names that could not be removed */

static void check_after_fault(int err, unsigned nth, const char *failed)
{
	const char *path = fx_path("$/a/blocks/%s", fx_name(&file));

	fx_all_whole("$/a");
	if (!err) {
		fx_serves(&file);
	} else {
		ck_assert_msg(fx_find(&file) == -ENOENT, "%u: %s", nth, failed);
		ck_assert_msg(!fx_exists(path), "%u: %s", nth, failed);
	}
	stuck += !strcmp(failed, "unlink");
	ck_assert_msg(fx_count_files(fx_path(TMP)) <= stuck, "%u: %s", nth, failed);
}

static void sweep(const char *durability)
{
	unsigned nth, failures = 0;

	fx_configure("$/a");
	fx_option("durability", durability);
	fx_open();
	fx_start();
	fx_block(&file, 0, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	for (nth = 1;; nth++) {
		const char *failed;
		int err;

		fx_block(&file, nth, FX_PAGED);
		fx_fail(NULL, nth, -EIO, true);
		err = fx_commit(&file);
		failed = fx_failed_call();
		fx_fail(NULL, 0, 0, false);
		if (!failed) {
			ck_assert_int_eq(err, 0);
			break;
		}
		failures += err != 0;
		check_after_fault(err, nth, failed);
		/* and then it succeeds */
		atomic_store(&fx_set->dirs.at[0]->retry_s, 0);
		ck_assert_msg(!fx_commit(&file), "after %s", failed);
		fx_serves(&file);
	}
	ck_assert_uint_ge(failures, 5); /* statvfs, open, fstat, read, link */
	fx_serves(&file);
	fx_close();
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), nth + 1);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
}

UNIT_TEST(no_call_that_fails_leaves_half_a_block, .rows = 3)
{
	static const char *const durabilities[] = { "none", "data", "full" };

	sweep(durabilities[_i]);
}

/* From some call on the disk is gone. */
UNIT_TEST(a_disk_that_dies_in_mid_commit_leaves_no_half_block)
{
	unsigned nth;

	fx_configure("$/a");
	fx_option("durability", "full");
	fx_open();
	fx_start();
	for (nth = 1;; nth++) {
		const char *failed;
		int err;

		fx_block(&file, nth, FX_PAGED);
		fx_fail(NULL, nth, -EIO, false);
		err = fx_commit(&file);
		failed = fx_failed_call();
		fx_fail(NULL, 0, 0, false);
		fx_all_whole("$/a");
		if (!err)
			fx_serves(&file);
		else
			fx_misses(&file);
		if (!failed)
			break;
		atomic_store(&fx_set->dirs.at[0]->retry_s, 0);
		ck_assert_msg(!fx_commit(&file), "after %s", failed);
		fx_serves(&file);
	}
	ck_assert_uint_gt(nth, 8);
}

static bool stamp_differs(void *arg)
{
	int fd = *(int *)arg;
	struct stat st;
	char c;

	/* clocks tick coarsely: touch it until it shows */
	ck_assert_int_eq(fx_pread(fd, &c, 1, 4100), 1);
	ck_assert_int_eq(fx_pwrite(fd, &c, 1, 4100), 1);
	fx_fstat(fd, &st);
	return memcmp(&st.st_mtim, &temp.stamp.st_mtim, sizeof(st.st_mtim));
}

static int commit_and_hold(void)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	return fd;
}

/* ---- during the commit ---- */

static const struct {
	const char *call; /* at which somebody writes */
	const char *durability;
	const char *bytes; /* NULL: those that are there */
	enum fx_kind kind;
	int result;
	unsigned left, quarantined; /* files in tmp, and set aside */
} intruders[] = {
	{ "fdatasync", "data", "X", FX_PAGED, -EINVAL, 1, 0 },
	{ "fdatasync", "data", NULL, FX_PAGED, 0, 0, 0 },
	{ "link", "none", "X", FX_PAGED, -EINVAL, 0, 1 },
	{ "link", "none", NULL, FX_PAGED, 0, 0, 0 },
	{ "link", "none", "X", FX_PAGED_RAW, -EINVAL, 0, 1 },
	{ "link", "none", NULL, FX_PAGED_RAW, -EINVAL, 0, 1 },
};
static const char *intruder_call, *intruder_bytes;
static int intruder_fd;
static off_t intruder_off;

static int intrude(const char *call, const char *path)
{
	(void)path;
	if (!intruder_call || strcmp(call, intruder_call))
		return 0;
	intruder_call = NULL; /* once */
	if (intruder_bytes)
		ck_assert_int_eq(fx_pwrite(intruder_fd, intruder_bytes, 1,
					   intruder_off),
				 1);
	fx_wait(stamp_differs, &intruder_fd);
	return 0;
}

UNIT_TEST(what_is_written_during_a_commit_is_judged_again,
	  .rows = NUM_ROWS(intruders))
{
	int fd;

	fx_configure("$/a");
	fx_option("durability", intruders[_i].durability);
	fx_open();
	fx_start();
	fx_block(&file, 1, intruders[_i].kind);
	fd = begin(&file, file.len);
	intruder_fd = fd;
	intruder_call = intruders[_i].call;
	intruder_bytes = intruders[_i].bytes;
	ucm_os_fault = intrude;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW),
			 intruders[_i].result);
	ck_assert_ptr_null(intruder_call);
	ucm_os_fault = NULL;
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), intruders[_i].left);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)),
			  intruders[_i].quarantined);
	end(fd);
	if (intruders[_i].result)
		fx_misses(&file);
	else
		fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks),
			  !intruders[_i].result);
}

UNIT_TEST(a_word_does_not_outlive_a_write_during_the_commit)
{
	int fd;

	fx_configure("$/a");
	fx_option("durability", "data");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	intruder_fd = fd;
	intruder_call = "fdatasync";
	intruder_bytes = "X";
	intruder_off = 5000;
	ucm_os_fault = intrude;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_WRITTEN), -EINVAL);
	ucm_os_fault = NULL;
	intruder_off = 0;
	ck_assert_ptr_null(intruder_call);
	end(fd);
	fx_misses(&file);
}

/* ---- after the commit ---- */

static int open_found(void)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int fd, err = ucm_store_find(fx_set, &file.key, &entry, &ref);

	if (err)
		return err;
	fd = fx_open_block(ref, &entry);
	if (fd >= 0)
		fx_close_file(fd);
	return fd < 0 ? fd : 0;
}

/* Its writer has not closed it yet: who opens it gets the right bytes, or
 * none. */
UNIT_TEST(a_late_write_is_found_by_the_next_reader)
{
	int fd = commit_and_hold();

	ck_assert_int_eq(open_found(), 0);
	fx_wait(stamp_differs, &fd);
	ck_assert_int_eq(open_found(), 0); /* the same bytes */
	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	fx_wait(stamp_differs, &fd);
	ck_assert_int_eq(open_found(), -ENOENT);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	end(fd);
	fx_misses(&file);
}

UNIT_TEST(a_late_write_is_found_by_who_opens_it_once_more)
{
	int fd = commit_and_hold(), reader;
	struct ucm_open open = { 0 };
	struct ucm_entry entry;
	ucm_ref ref;

	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	reader = fx_open_block_held(ref, &entry, &open);
	ck_assert_int_ge(reader, 0);
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), 0);
	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	fx_wait(stamp_differs, &fd);
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), -ENOENT);
	ucm_hold_end(fx_set, &open);
	fx_close_file(reader);
	end(fd);
	fx_misses(&file);
}

/* A mapping changes bytes and no time. */
UNIT_TEST(a_block_that_may_be_mapped_is_checked_by_every_reader, .rows = 2)
{
	struct timespec times[2];
	struct ucm_entry entry;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	temp.shared = _i;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_int_eq(open_found(), 0);
	times[0] = times[1] = temp.stamp.st_mtim;
	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	ck_assert_int_eq(fx_futimens(fd, times), 0);
	ck_assert_int_eq(open_found(), _i ? -ENOENT : 0);
	end(fd);
	ck_assert(_i || ucm_index_find(fx_set->index, &file.key, &entry, NULL));
	ck_assert(_i || !(entry.flags & UCM_ENTRY_WRITABLE));
}

/* The old file cannot be opened, and lies where the new one is to. */
UNIT_TEST(what_is_said_of_a_file_that_made_way_is_over, .rows = 2)
{
	struct ucm_entry entry;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, _i ? FX_PAGED_RAW : FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	fd = begin(&file, file.len);
	fx_wait(stamp_differs, &fd);
	fx_fail_on("open", strrchr(fx_name(&file), '/'), 1, -EIO, false);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(open_found(), 0);
	ck_assert(ucm_index_find(fx_set->index, &file.key, &entry, NULL));
	ck_assert_int_eq(entry.mtime_ns, ucm_time_ns(&temp.stamp.st_mtim));
	ck_assert_uint_eq(entry.epoch,
			  atomic_load(&temp.medium->recovery.epoch));
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	end(fd);
	fx_serves(&file);
}

/* A new good file is not dropped for an old one that nobody can check. */
UNIT_TEST(a_block_in_doubt_that_cannot_be_read_makes_way)
{
	int fd;

	if (!fx_needs_directory("there is no cache to read past"))
		return;
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	fx_fail(NULL, 0, 0, false);
	atomic_store(&fx_set->dirs.at[0]->recovery.lost, false);
	fd = begin(&file, file.len);
	fx_fail("reopen", 1, -EIO, false); /* to read past the page cache */
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_uint_ne(temp.ref, 0);
	fx_fail(NULL, 0, 0, false);
	end(fd);
	fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(new_times_do_not_hide_a_late_write, .rows = 2)
{
	struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
	ucm_ref ref;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, _i ? FX_PAGED_RAW : FX_PAGED);
	fd = begin(&file, file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	fx_wait(stamp_differs, &fd);
	ck_assert(ucm_index_find(fx_set->index, &file.key, NULL, &ref));
	ck_assert_int_eq(ucm_store_set_times(fx_set, ref, times), -ENOENT);
	ck_assert_int_eq(open_found(), -ENOENT);
	end(fd);
	fx_misses(&file);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(a_passing_error_condemns_no_late_write)
{
	int fd = commit_and_hold();

	fx_wait(stamp_differs, &fd);
	fx_fail("read", 1, -EIO, false);
	ck_assert_int_eq(open_found(), -EIO);
	fx_recheck(&temp, fd);
	fx_fail(NULL, 0, 0, false);
	end(fd);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 1);
	fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
}

UNIT_TEST(a_block_that_is_gone_is_not_opened_once_more)
{
	struct ucm_open open = { 0 };
	struct ucm_entry entry;
	ucm_ref ref;
	int reader;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	reader = fx_open_block_held(ref, &entry, &open);
	ucm_store_condemn(fx_set, ref, 0, NULL, UCM_FAULT_PLANE, "");
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), -ENOENT);
	ucm_hold_end(fx_set, &open);
	fx_close_file(reader);
}

UNIT_TEST(without_checksums_a_late_write_cannot_be_right)
{
	struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
	ucm_ref ref;
	int fd;

	fx_store("$/a");
	for (unsigned i = 1; i <= 2; i++) {
		fx_block(&file, i, FX_PAGED_RAW);
		fd = begin(&file, file.len);
		ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
		ck_assert(ucm_index_find(fx_set->index, &file.key, NULL, &ref));
		if (i == 1) /* tar sets times, and no bytes */
			ck_assert_int_eq(
				ucm_store_set_times(fx_set, ref, times), 0);
		else
			fx_wait(stamp_differs, &fd);
		fx_recheck(&temp, fd);
		end(fd);
		if (i == 1)
			fx_serves(&file);
		else
			fx_misses(&file);
	}
}

UNIT_TEST(a_late_write_that_damages_is_found_and_set_aside)
{
	int fd = commit_and_hold();

	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	fx_wait(stamp_differs, &fd);
	ck_assert_int_eq(fx_find(&file), 0);
	fx_recheck(&temp, fd);
	end(fd);
	fx_misses(&file);
	ck_assert(fx_logged("written to after its commit"));
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
}

UNIT_TEST(a_late_truncate_is_found_and_set_aside)
{
	int fd = commit_and_hold();

	ck_assert_int_eq(fx_ftruncate(fd, 100), 0);
	fx_recheck(&temp, fd);
	end(fd);
	fx_misses(&file);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(a_late_write_of_the_same_bytes_does_no_harm)
{
	int fd = commit_and_hold();

	fx_wait(stamp_differs, &fd);
	fx_recheck(&temp, fd);
	end(fd);
	fx_serves(&file);
}

/* A store through a mapping need not show in any time stamp. */
UNIT_TEST(a_file_that_was_mapped_is_checked_in_any_case)
{
	int fd = commit_and_hold();

	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	ck_assert_int_eq(fx_fstat(fd, &temp.stamp), 0); /* looks untouched */
	fx_recheck(&temp, fd);
	ck_assert_int_eq(fx_find(&file), 0);
	temp.shared = true;
	fx_recheck(&temp, fd);
	end(fd);
	fx_misses(&file);
}

/* A hole that is filled after the commit takes room that was not counted. */
UNIT_TEST(room_is_given_back_as_it_was_taken)
{
	struct ucm_geometry large = { 1, 4, 0, 16384, 0, 0, 0, 2 };
	int fd;

	fx_store("$/a");
	fx_block_of(&file, 1, FX_PAGED, &large);
	fd = begin(&file, 4096);
	ck_assert_int_eq(fx_ftruncate(fd, (off_t)file.len), 0);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_WRITTEN), 0);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(fx_fsync(fd), 0);
	temp.shared = true;
	fx_recheck(&temp, fd);
	end(fd);
	ck_assert_uint_ge(ucm_tier_used(&fx_set->dirs.tiers[0]), 16384);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 0);
}

/* As XFS does it before a file is closed. */
UNIT_TEST(what_was_allocated_beyond_the_end_is_not_counted)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20)) {
		end(fd);
		unit_skip("room beyond the end: this file system has none");
		return;
	}
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), file.len);
	ck_assert(ucm_index_find(fx_set->index, &file.key, &entry, &ref));
	ck_assert_uint_eq(entry.blocks, file.len / 512);
	ck_assert_int_eq(fx_futimens(fd, NULL), 0); /* seen as a write */
	temp.shared = true;
	fx_recheck(&temp, fd);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), file.len);
	end(fd);
	fx_close();
	fx_open();
	fx_start();
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), file.len);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 0);
}

UNIT_TEST(rechecking_what_was_not_committed_does_nothing)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 100);
	temp.shared = true;
	fx_recheck(&temp, fd);
	end(fd);
}

UNIT_TEST(a_temporary_file_can_be_opened_again)
{
	int fd, again;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 4096);
	fx_close_file(fd);
	again = fx_reopen(&temp);
	ck_assert_int_ge(again, 0);
	ck_assert_int_eq(fx_pwrite(again, file.bytes + 4096, 4096, 4096), 4096);
	ck_assert_int_eq(commit(again, &file, UCM_COMMIT_NOW), 0);
	end(again);
	fx_serves(&file);
}
