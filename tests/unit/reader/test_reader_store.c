/* SPDX-License-Identifier: Apache-2.0 */
/* test_reader_store.c - what readers of the index see of the store's work. */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/index/memory.h"
#include "fs/reader/reader.h"
#include "fs/store/find/find.h"
#include "hashing/tree.h"
#include "tests/unit/fake_server.h"
#include "tests/unit/store_fixture.h"

static struct fx_file file, other;
static struct ucm_index_reader *reader;

static void attach(void)
{
	struct ucm_index_memory *live = ucm_index_live(fx_set->index);

	ck_assert_int_eq(ucm_index_memory_serve(live), 0);
	reader = calloc(1, sizeof(*reader));
	ck_assert_ptr_nonnull(reader);
	ck_assert_int_eq(ucm_reader_map_open(&reader->map, dup(live->fd)), 0);
	reader->resolved = reader->published = true;
	reader->names = ucm_reader_map_names(&reader->map);
}

static void setup(void)
{
	fx_setup();
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	reader = NULL;
}

static void teardown(void)
{
	ucm_os_fault = NULL; /* closing makes calls, too */
	ucm_index_close(reader);
	fx_teardown();
}

/* 'y', 'n' or '?' */
static char ask(const struct fx_file *of)
{
	uint64_t present, unknown;

	must(!ucm_index_lookup(reader, &of->key.id, 1, &present, &unknown));
	return present ? 'y' : unknown ? '?' : 'n';
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(before_the_scan_has_ended_nothing_is_absent)
{
	fx_configure("$/a");
	fx_plant("$/a", "blocks", &file);
	fx_open();
	attach();
	ck_assert_int_eq(ask(&other), '?');
	fx_start();
	ck_assert_int_eq(ask(&file), 'y');
	ck_assert_int_eq(ask(&other), 'n');
}

static void leave_unclean(void *arg)
{
	(void)arg;
	fx_open();
	fx_start();
	ck_assert_int_eq(fx_commit(&file), 0);
}

UNIT_TEST(a_block_in_doubt_is_unknown_until_it_has_been_checked)
{
	struct ucm_entry entry;
	ucm_ref ref;

	fx_configure("$/a");
	fx_in_child(leave_unclean, NULL);
	fx_open(); /* no thread has looked at anything */
	attach();
	ck_assert_int_eq(ask(&file), '?');
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_int_eq(ask(&file), 'y');
}

/* ---- the order of things ---- */

static const char *watched; /* a call */
static char seen[64];       /* answers at the time of it */

static int watch(const char *call, const char *path)
{
	size_t len = strlen(seen);

	(void)path;
	if (!strcmp(call, watched) && len + 1 < sizeof(seen))
		seen[len] = ask(&file);
	return 0;
}

static int watch_and_fail(const char *call, const char *path)
{
	watch(call, path);
	return strcmp(call, watched) ? 0 : -EIO;
}

static void start_watching(const char *call, int (*how)(const char *,
							const char *))
{
	memset(seen, 0, sizeof(seen));
	watched = call;
	ucm_os_fault = how;
}

UNIT_TEST(a_block_is_seen_behind_its_link_only)
{
	fx_store("$/a");
	attach();
	start_watching("link", watch);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_str_eq(seen, "nn"); /* the bucket was missing */
	ck_assert_int_eq(ask(&file), 'y');
}

UNIT_TEST(a_block_is_retracted_before_its_file_goes)
{
	fx_store("$/a");
	attach();
	ck_assert_int_eq(fx_commit(&file), 0);
	start_watching("unlink", watch);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_str_eq(seen, "?");
	ck_assert_int_eq(ask(&file), 'n');
}

UNIT_TEST(a_block_that_could_not_be_removed_is_there_again)
{
	fx_store("$/a");
	attach();
	ck_assert_int_eq(fx_commit(&file), 0);
	start_watching("unlink", watch_and_fail);
	ck_assert_int_ne(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_str_eq(seen, "?");
	ucm_os_fault = NULL;
	ck_assert_int_eq(ask(&file), 'y');
	fx_serves(&file);
}

UNIT_TEST(a_condemned_block_is_retracted_before_it_is_moved_aside)
{
	struct ucm_entry entry;
	ucm_ref ref;

	fx_store("$/a");
	attach();
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	start_watching("rename", watch);
	ucm_store_condemn(fx_set, ref, 0, NULL, UCM_FAULT_PLANE, "");
	ck_assert_str_eq(seen, "n");
	ck_assert_int_eq(ask(&file), 'n');
}

UNIT_TEST(a_block_too_large_for_the_index_is_refused_and_named)
{
	struct ucm_entry entry = { .id = file.key.id, .size = 1ull << 40 };
	ucm_ref ref;

	fx_store("$/a");
	ck_assert_int_eq(ucm_store_index_add(fx_set, fx_set->names.spaces[0],
					     &entry, NULL, &ref),
			 -EFBIG);
	ck_assert(fx_logged("too large for the index"));
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 0);
}

/* ---- spaces ---- */

static struct ucm_space *make(const char *name, mode_t mode)
{
	struct ucm_space *space;

	ck_assert_int_eq(ucm_store_mkdir(fx_set, name, mode, geteuid(),
					 getegid(), &space),
			 0);
	return space;
}

static bool is_published(const struct ucm_space *space)
{
	return ucm_index_is_published(fx_set->index, space->number);
}

UNIT_TEST(private_spaces_are_not_published_whichever_way_they_became_so)
{
	struct ucm_space *open, *closed, *later;

	fx_store("$/a");
	open = make("open", 0755);
	closed = make("closed", 0700);
	later = make("later", 0755);
	ck_assert(is_published(fx_set->names.spaces[0]));
	ck_assert(is_published(open));
	ck_assert(!is_published(closed));
	ck_assert_int_eq(ucm_store_chmod(fx_set, later, true), 0);
	ck_assert(!is_published(later));
	/* half of it would be in the index */
	ck_assert_int_eq(ucm_store_chmod(fx_set, later, false), 0);
	ck_assert(!is_published(later));
	fx_close();
	fx_open();
	ck_assert(is_published(ucm_namespace_find(&fx_set->names, "open")));
	ck_assert(!is_published(ucm_namespace_find(&fx_set->names, "closed")));
	ck_assert(is_published(ucm_namespace_find(&fx_set->names, "later")));
}

UNIT_TEST(readers_are_told_when_spaces_change)
{
	struct ucm_space *space;
	uint32_t names;

	fx_store("$/a");
	attach();
	names = ucm_reader_map_names(&reader->map);
	space = make("one", 0755);
	ck_assert_uint_ne(ucm_reader_map_names(&reader->map), names);
	names = ucm_reader_map_names(&reader->map);
	ck_assert_int_eq(ucm_store_chmod(fx_set, space, true), 0);
	ck_assert_uint_ne(ucm_reader_map_names(&reader->map), names);
	names = ucm_reader_map_names(&reader->map);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
	ck_assert_uint_ne(ucm_reader_map_names(&reader->map), names);
}

/* A block that is hidden while its writer still has it open is found wrong at
 * its release all the same. */
UNIT_TEST(a_writers_reference_holds_when_its_space_becomes_private)
{
	struct ucm_space *space;
	struct ucm_temp temp;
	char byte = 'x';
	int fd;

	fx_store("$/a");
	space = make("one", 0755);
	file.key.space = space->number;
	fd = fx_create(&file.key, 0, &temp);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ucm_os_write_at(fd, file.bytes, file.len, 0), 0);
	ck_assert_int_eq(
		fx_commit_temp(&temp, fd, &file.key, UCM_COMMIT_NOW),
		0);
	ck_assert_int_eq(ucm_store_chmod(fx_set, space, true), 0);
	ck_assert_int_eq(ucm_os_write_at(fd, &byte, 1, 4096), 0);
	temp.shared = true;
	fx_recheck(&temp, fd);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	fx_misses(&file);
	ck_assert_uint_eq(fx_set->stats.quarantined, 1);
}

/* ---- without a daemon ---- */

UNIT_TEST(what_is_no_mount_is_refused)
{
	fx_mkdirs(fx_path("$/a"));
	ck_assert_int_eq(ucm_index_open(fx_path("$/a"), NULL, &reader), -ENOENT);
	ck_assert_int_eq(ucm_index_open(fx_path("$/no"), NULL, &reader), -ENOENT);
}

UNIT_TEST(where_no_daemon_listens_it_has_gone)
{
	struct fake_server server = FAKE_SERVER;

	fx_mkdirs(fx_path("$/a/.ucmfs"));
	ck_assert_int_eq(
		symlink(fx_path("$/s"), fx_path("$/a/.ucmfs/socket")), 0);
	fake_server_start(&server, fx_path("$/s"));
	fake_server_stop(&server);
	ck_assert_int_eq(ucm_index_open(fx_path("$/a"), "", &reader), -ENOTCONN);
	ck_assert_int_eq(ucm_index_open(fx_path("$/s"), "", &reader), -ENOTCONN);
}
