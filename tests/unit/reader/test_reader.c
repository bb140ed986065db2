/* SPDX-License-Identifier: Apache-2.0 */
/* test_reader.c - what a mapped index tells, also if it is none. */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "common/log.h"
#include "tests/unit/dir_fixture.h"
#include "tests/unit/fake_server.h"
#include "tests/unit/random.h"
#include "tests/unit/reader_fixture.h"

static struct ucm_index *ix;
static struct ucm_index_reader *reader;

static void setup(void)
{
	ix = rf_index();
	reader = rf_reader(ix);
}

static void teardown(void)
{
	ucm_index_close(reader);
	ucm_index_free(ix);
}

/* ---- answers ---- */

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(what_is_added_is_there_at_once_and_gone_when_removed)
{
	ucm_ref ref;

	ck_assert_int_eq(rf_ask(reader, 1), 'n');
	ref = rf_add(ix, 1);
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	ck_assert_int_eq(rf_ask(reader, 2), 'n');
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_int_eq(rf_ask(reader, 1), 'n');
}

UNIT_TEST(an_entry_is_told_as_it_is)
{
	struct ucm_index_entry entry, later;
	struct ucm_id id = rf_id(7);
	ucm_ref ref = rf_add(ix, 7);

	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), 0);
	ck_assert_uint_eq(entry.size, rf_size(7, 0));
	ck_assert_uint_eq(entry.generation, ref);
	ck_assert_uint_eq(entry.flags, 0);
	ck_assert_int_eq(entry.tier, (int)(rf_size(7, 0) % RF_DIRS));
	ck_assert_str_eq(entry.tier_name, "nfs");
	ck_assert(ucm_index_flag(ix, ref, UCM_ENTRY_PINNED, true));
	ck_assert_int_eq(ucm_index_entry(reader, &id, &later), 0);
	ck_assert_uint_eq(later.flags, UCM_INDEX_PINNED);
	ck_assert_uint_eq(later.generation, entry.generation);
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_int_eq(ucm_index_entry(reader, &id, &later), -ENOENT);
	rf_add(ix, 7);
	ck_assert_int_eq(ucm_index_entry(reader, &id, &later), 0);
	ck_assert_uint_ne(later.generation, entry.generation);
}

UNIT_TEST(what_is_in_doubt_or_leaving_is_unknown, .rows = 2)
{
	static const uint8_t flags[] = { UCM_ENTRY_DOUBT, UCM_ENTRY_LEAVING };
	struct ucm_index_entry entry;
	struct ucm_id id = rf_id(1);
	ucm_ref ref = rf_add(ix, 1);
	int unknown = 7;
	size_t count;

	ck_assert(ucm_index_flag(ix, ref, flags[_i], true));
	ck_assert_int_eq(rf_ask(reader, 1), '?');
	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), -EAGAIN);
	ck_assert_int_eq(ucm_index_prefix(reader, &id, 1, &count, &unknown), 0);
	ck_assert_uint_eq(count, 0);
	ck_assert_int_eq(unknown, 1);
	ck_assert(ucm_index_flag(ix, ref, flags[_i], false));
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
}

UNIT_TEST(a_block_is_located_until_it_moves)
{
	struct ucm_reader_place place;
	struct ucm_id id = rf_id(7);
	ucm_ref ref;

	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), -ENOENT);
	ref = rf_add(ix, 7);
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), 0);
	ck_assert_uint_eq(place.size, rf_size(7, 0));
	ck_assert_uint_eq(place.dir, rf_size(7, 0) % RF_DIRS);
	ck_assert(ucm_index_flag(ix, ref, UCM_ENTRY_PINNED, true));
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), 0);
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), -ENOENT);
}

UNIT_TEST(what_the_daemon_has_to_look_at_is_not_located, .rows = 4)
{
	static const uint8_t flags[] = { UCM_ENTRY_DOUBT, UCM_ENTRY_LEAVING,
					 UCM_ENTRY_WRITABLE,
					 UCM_ENTRY_UNREAD };
	struct ucm_reader_place place;
	struct ucm_id id = rf_id(1);
	ucm_ref ref = rf_add(ix, 1);

	ck_assert(ucm_index_flag(ix, ref, flags[_i], true));
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), -EAGAIN);
	ck_assert(ucm_index_flag(ix, ref, flags[_i], false));
	ck_assert_int_eq(ucm_reader_locate(reader, &id, &place), 0);
}

/* ---- marks ---- */

#define STAMP UINT64_C(0x1234567890)

/* What the reader says of block 7; of any space. */
static uint64_t verified(void)
{
	struct ucm_reader_place place = { .verified = 1 };
	struct ucm_id id = rf_id(7);

	return ucm_reader_locate(reader, &id, &place) ? 0 : place.verified;
}

static unsigned dir_of_7(void)
{
	return rf_size(7, 0) % RF_DIRS;
}

static ucm_ref add_marked(void)
{
	ucm_ref ref = rf_add(ix, 7);

	ucm_index_memory_set_reverify(ucm_index_live(ix), 1000);
	ck_assert_uint_eq(verified(), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP), 0);
	ck_assert_uint_eq(verified(), STAMP);
	ck_assert_uint_eq(ucm_index_marked(ix), 1);
	return ref;
}

UNIT_TEST(a_mark_goes_with_its_entry)
{
	ucm_ref ref = add_marked();

	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP), -ENOENT);
	ref = rf_add(ix, 7);
	ck_assert_uint_eq(verified(), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP + 1), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP + 2), 0);
	ck_assert_uint_eq(verified(), STAMP + 2);
	ck_assert_uint_eq(ucm_index_marked(ix), 1);
	ucm_index_unmark(ix, ref);
	ucm_index_unmark(ix, ref);
	ck_assert_uint_eq(verified(), 0);
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
}

static void edit_use(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->uses++;
	entry->atime_s = 77;
}

static void edit_dir(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->dir = (uint8_t)(entry->dir + 1) % RF_DIRS;
}

static void edit_size(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->size++;
}

static void edit_mtime(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->mtime_ns++;
}

static void edit_back(struct ucm_entry *entry, void *arg)
{
	*entry = *(const struct ucm_entry *)arg;
}

UNIT_TEST(a_mark_goes_when_its_file_is_another, .rows = 3)
{
	static void (*const edits[])(struct ucm_entry *, void *) = {
		edit_dir, edit_size, edit_mtime,
	};
	ucm_ref ref = add_marked();
	struct ucm_entry entry;

	ck_assert(ucm_index_edit(ix, ref, edit_use, NULL));
	ck_assert(ucm_index_flag(ix, ref, UCM_ENTRY_PINNED, true));
	ck_assert_uint_eq(verified(), STAMP);
	ck_assert(ucm_index_get(ix, ref, &entry));
	ck_assert(ucm_index_edit(ix, ref, edits[_i], NULL));
	ck_assert_uint_eq(verified(), 0);
	ck_assert(ucm_index_edit(ix, ref, edit_back, &entry));
	ck_assert_uint_eq(verified(), 0);
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
}

UNIT_TEST(a_mark_goes_with_any_doubt, .rows = 4)
{
	static const uint8_t flags[] = { UCM_ENTRY_DOUBT, UCM_ENTRY_LEAVING,
					 UCM_ENTRY_WRITABLE,
					 UCM_ENTRY_UNREAD };
	ucm_ref ref = add_marked();

	ck_assert(ucm_index_flag(ix, ref, flags[_i], true));
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP), -EAGAIN);
	ck_assert(ucm_index_flag(ix, ref, flags[_i], false));
	ck_assert_uint_eq(verified(), 0);
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
}

UNIT_TEST(what_lies_elsewhere_or_is_private_is_not_marked)
{
	ucm_ref ref = add_marked();

	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7() + 1, STAMP),
			 -ENOENT);
	ck_assert_int_eq(ucm_index_hide(ix, 0), 0);
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
	ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), STAMP),
			 -EOPNOTSUPP);
	/* another one gets its slot one day */
	ck_assert(ucm_index_remove(ix, ref, NULL));
	ck_assert_uint_eq(ucm_index_marked(ix), 0);
}

UNIT_TEST(a_mark_does_not_hold_for_ever)
{
	struct ucm_index_memory_header *header =
		ucm_index_memory_header(ucm_index_live(ix));
	uint64_t began_s = header->began_s;

	add_marked();
	header->began_s = began_s - 990; /* it was made so long ago */
	ck_assert_uint_eq(verified(), STAMP);
	header->began_s = began_s - 1000;
	ck_assert_uint_eq(verified(), 0);
	header->began_s = began_s + 1000; /* another clock */
	ck_assert_uint_eq(verified(), 0);
	header->began_s = began_s;
	ck_assert_uint_eq(verified(), STAMP);
	ucm_index_memory_set_reverify(ucm_index_live(ix), 0);
	ck_assert_uint_eq(verified(), 0);
	ck_assert_int_eq(ucm_index_mark(ix, rf_ref(ix, 7), dir_of_7(), STAMP),
			 -EOPNOTSUPP);
}

/* Of a stamp all bits count, and no time is part of it. */
UNIT_TEST(a_mark_has_the_whole_stamp)
{
	ucm_ref ref = add_marked();

	for (uint64_t stamp = 1; stamp < UCM_INDEX_MEMORY_STAMP; stamp *= 2) {
		ck_assert_int_eq(ucm_index_mark(ix, ref, dir_of_7(), stamp), 0);
		ck_assert_uint_eq(verified(), stamp);
	}
}

/* The file has grown since the reader mapped it. */
UNIT_TEST(marks_of_many_are_found)
{
	struct ucm_reader_place place;

	ucm_index_memory_set_reverify(ucm_index_live(ix), 1000);
	for (unsigned n = 0; n < 20000; n++)
		rf_add(ix, n);
	for (unsigned n = 0; n < 20000; n += 3)
		must(!ucm_index_mark(ix, rf_ref(ix, n), rf_size(n, 0) % RF_DIRS,
				     n + 1));
	ck_assert_uint_eq(ucm_index_marked(ix), 6667);
	for (unsigned n = 0; n < 20000; n++) {
		struct ucm_id id = rf_id(n);

		must(!ucm_reader_locate(reader, &id, &place));
		must(place.verified == (n % 3 ? 0 : n + 1));
	}
}

UNIT_TEST(while_the_scan_runs_absent_means_unknown)
{
	struct ucm_index *young;
	struct ucm_index_reader *early;
	struct ucm_index_entry entry;
	struct ucm_index_info info;
	struct ucm_id id = rf_id(2);

	ck_assert_int_eq(ucm_index_new(&young), 0);
	ucm_index_memory_unserve(ucm_index_live(ix)); /* one for each thread */
	ck_assert_int_eq(ucm_index_memory_serve(ucm_index_live(young)), 0);
	early = rf_reader(young);
	rf_add(young, 1);
	ck_assert_int_eq(rf_ask(early, 1), 'y');
	ck_assert_int_eq(rf_ask(early, 2), '?');
	ck_assert_int_eq(ucm_index_entry(early, &id, &entry), -EAGAIN);
	ck_assert_int_eq(ucm_index_info(early, &info), 0);
	ck_assert_int_eq(info.complete, 0);
	ucm_index_memory_set_complete(ucm_index_live(young));
	ck_assert_int_eq(rf_ask(early, 2), 'n');
	ck_assert_int_eq(ucm_index_entry(early, &id, &entry), -ENOENT);
	ucm_index_close(early);
	ucm_index_free(young);
}

UNIT_TEST(a_prefix_ends_at_the_first_that_is_absent, .rows = 12)
{
	static const unsigned holes[] = { 0, 1, 63, 64, 65, 255, 256, 257,
					  511, 512, 999, 1000 };
	struct ucm_id ids[1000];
	unsigned hole = holes[_i];
	size_t count;
	int unknown;

	for (unsigned i = 0; i < 1000; i++) {
		ids[i] = rf_id(i);
		if (i != hole)
			rf_add(ix, i);
	}
	ck_assert_int_eq(ucm_index_prefix(reader, ids, 1000, &count, &unknown),
			 0);
	ck_assert_uint_eq(count, hole);
	ck_assert_int_eq(unknown, 0);
	ck_assert_int_eq(ucm_index_prefix(reader, ids, 0, &count, NULL), 0);
	ck_assert_uint_eq(count, 0);
}

UNIT_TEST(a_bitmap_has_a_bit_for_each_id)
{
	enum { NUM = 1003 };
	struct ucm_id ids[NUM];
	uint64_t present[UCM_INDEX_WORDS(NUM) + 1];
	uint64_t unknown[UCM_INDEX_WORDS(NUM) + 1];

	memset(present, 0xaa, sizeof(present));
	memset(unknown, 0xaa, sizeof(unknown));
	for (unsigned i = 0; i < NUM; i++) {
		ids[i] = rf_id(i);
		if (i % 3 == 0)
			rf_add(ix, i);
		if (i % 9 == 0)
			ucm_index_flag(ix, rf_ref(ix, i), UCM_ENTRY_DOUBT,
				       true);
	}
	ck_assert_int_eq(ucm_index_lookup(reader, ids, NUM, present, unknown),
			 0);
	for (unsigned i = 0; i < NUM; i++) {
		must((present[i / 64] >> i % 64 & 1) ==
		     (i % 3 == 0 && i % 9 != 0));
		must((unknown[i / 64] >> i % 64 & 1) == (i % 9 == 0));
	}
	/* and not one more */
	ck_assert_uint_eq(present[NUM / 64] >> NUM % 64, 0);
	ck_assert_uint_eq(present[UCM_INDEX_WORDS(NUM)], 0xaaaaaaaaaaaaaaaa);
	ck_assert_int_eq(ucm_index_lookup(reader, ids, NUM, present, NULL), 0);
	ck_assert_uint_eq(present[0] & 0xff, 0x48);
}

UNIT_TEST(one_id_in_two_spaces_is_two_blocks)
{
	struct ucm_entry entry = rf_entry(1, 0);

	entry.space = 5;
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
	ck_assert_int_eq(rf_ask(reader, 1), 'n');
	reader->space = 5;
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
}

/* The file grows, and what it has is mapped as far as it is needed. */
UNIT_TEST(a_growing_index_is_followed)
{
	enum { NUM = 120000 };
	uint64_t before = reader->map.len;
	struct ucm_index_info info;

	for (unsigned i = 0; i < NUM; i++) {
		rf_add(ix, i);
		must(i % 97 || rf_ask(reader, i) == 'y');
	}
	for (unsigned i = 0; i < NUM; i++)
		must(rf_ask(reader, i) == 'y' && rf_ask(reader, i + NUM) == 'n');
	ck_assert_uint_gt(reader->map.len, before);
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_uint_eq(info.blocks, NUM);
	ck_assert_str_eq(info.backend, "map");
	ck_assert_ptr_null(info.why);
}

UNIT_TEST(counted_names_are_found)
{
	for (unsigned i = 0; i < 5000; i++) {
		struct ucm_entry entry = { .size = 4096 };
		uint64_t present;

		memcpy(entry.id.bytes + 12, &i, sizeof(i));
		must(!ucm_index_add(ix, &entry, NULL, NULL));
		must(!ucm_index_lookup(reader, &entry.id, 1, &present, NULL));
		must(present == 1);
	}
}

UNIT_TEST(what_is_hidden_is_not_found)
{
	struct ucm_id id = rf_id(1);
	uint64_t present = 7;

	rf_add(ix, 1);
	ck_assert_int_eq(ucm_index_hide(ix, 0), 0);
	/* it has no daemon to ask what the space's number is now */
	ck_assert_int_ne(ucm_index_lookup(reader, &id, 1, &present, NULL), 0);
	ck_assert_uint_eq(present, 0);
	reader->names = ucm_reader_map_names(&reader->map);
	reader->resolved = true;
	ck_assert_int_eq(rf_ask(reader, 1), '-');
}

/* ---- what happens in the middle of a call ---- */

/*
 * A call reads the header, the shards and the header again. Where the reader
 * is to come to next, its mapping is taken from it: the fault gives the turn to
 * the test, and then the reader goes on.
 */
static struct {
	char *start;
	size_t len; /* 0: none is set */
	void (*then)(void);
} trap;

static void set_trap(uint64_t from, uint64_t end, void (*then)(void))
{
	trap.start = (char *)(uintptr_t)reader->map.base + from;
	trap.len = end - from;
	trap.then = then;
	must(!mprotect(trap.start, trap.len, PROT_NONE));
}

#ifdef __SANITIZE_THREAD__
/* What the handler calls is safe: the fault is the reader's own. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "report_signal_unsafe=0";
}
#endif

static void on_fault(int number, siginfo_t *info, void *context)
{
	size_t len = trap.len;

	(void)context;
	if ((size_t)((char *)info->si_addr - trap.start) >= len) {
		signal(number, SIG_DFL); /* not ours: it comes again */
		return;
	}
	trap.len = 0;
	mprotect(trap.start, len, PROT_READ);
	trap.then();
}

static void trap_header(void (*then)(void))
{
	set_trap(0, UCM_INDEX_MEMORY_HEADER_BYTES, then);
}

static void trap_shards(void (*then)(void))
{
	set_trap(UCM_INDEX_MEMORY_HEADER_BYTES, UCM_INDEX_MEMORY_FIXED_BYTES,
		 then);
}

/* Header and shards have pages of their own? */
static bool can_be_trapped(void)
{
	const uint64_t mask = (uint64_t)sysconf(_SC_PAGESIZE) - 1;

	return !(UCM_INDEX_MEMORY_HEADER_BYTES & mask) &&
		       !(UCM_INDEX_MEMORY_FIXED_BYTES & mask)
	       ? true
	       : unit_skip("changes in the middle of a look-up: large pages");
}

static void setup_trap(void)
{
	struct sigaction action = { .sa_sigaction = on_fault,
				    .sa_flags = SA_SIGINFO };

	fx_setup();
	setup();
	ck_assert_int_eq(sigaction(SIGSEGV, &action, NULL), 0);
}

static void teardown_trap(void)
{
	teardown();
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup_trap, .teardown = teardown_trap,
	     .only_if = can_be_trapped);

static void complete(void)
{
	rf_add(ix, 1);
	ucm_index_memory_set_complete(ucm_index_live(ix));
}

static void complete_behind_it(void)
{
	trap_header(complete);
}

/* It is the last that a scan finds, in a chain that has just been walked. */
UNIT_TEST(what_comes_while_it_is_looked_for_is_not_called_absent, .rows = 2)
{
	struct ucm_index_entry entry;
	struct ucm_id id = rf_id(1);

	ucm_index_memory_header(ucm_index_live(ix))->state = 0;
	trap_shards(complete_behind_it);
	if (_i)
		ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), -EAGAIN);
	else
		ck_assert_int_eq(rf_ask(reader, 1), '?');
	ck_assert_uint_eq(trap.len, 0);
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
}

static void hide(void)
{
	must(!ucm_index_hide(ix, 0));
}

/* A daemon that serves this index, and has each block of its only space. */
static void answer_all(const struct ucm_serve_request *request,
		       const void *items, struct fake_answer *out)
{
	const struct ucm_serve_space space = {
		.flags = ucm_index_is_published(ix, 0) ? UCM_SPACE_PUBLISHED
						       : 0,
	};
	const struct ucm_control_place place = { .size = 77, .tier = 1 };

	(void)items;
	switch (request->verb) {
	case UCM_SERVE_SPACE: fake_put(out, &space, sizeof(space)); break;
	case UCM_SERVE_LOCATE: fake_put(out, &place, sizeof(place)); break;
	case UCM_SERVE_LOOKUP: fake_put_results(out, request->num, 1); break;
	default: out->result = -EOPNOTSUPP;
	}
}

static void open_by_socket(struct fake_server *server)
{
	*server = FAKE_SERVER;
	server->index_fd = ucm_index_live(ix)->fd;
	server->hello.index_bytes =
		ucm_index_memory_size(ucm_index_live(ix));
	server->answer = answer_all;
	fake_server_start(server, fx_path("$/s"));
	ucm_index_close(reader);
	ck_assert_int_eq(ucm_index_open(fx_path("$/s"), "", &reader), 0);
}

/* Its number means nothing any more: the daemon is asked. */
UNIT_TEST(what_is_hidden_while_it_is_looked_for_is_not_called_absent, .rows = 2)
{
	struct ucm_index_entry entry;
	struct ucm_id id = rf_id(1);
	struct ucm_index_info info;
	struct fake_server server;

	open_by_socket(&server);
	rf_add(ix, 1);
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_str_eq(info.backend, "map");
	trap_shards(hide);
	if (_i)
		ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), 0);
	else
		ck_assert_int_eq(rf_ask(reader, 1), 'y');
	ck_assert_uint_eq(trap.len, 0);
	ck_assert(!_i || (entry.size == 77 && entry.tier == 1));
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_str_eq(info.backend, "socket");
	ck_assert_str_eq(info.why, "the space is, or was, private");
	fake_server_stop(&server);
}

/* ---- the daemon's end ---- */

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(an_index_that_nobody_keeps_is_gone)
{
	struct ucm_index_entry entry = { .size = 77 };
	struct ucm_id id = rf_id(1);
	uint64_t present = 7, unknown = 7;
	struct ucm_index_info info;
	int flag = 77;
	size_t count = 77;

	rf_add(ix, 1);
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	ucm_index_memory_unserve(ucm_index_live(ix));
	ck_assert_int_eq(ucm_index_lookup(reader, &id, 1, &present, &unknown),
			 -ENOTCONN);
	ck_assert_uint_eq(present | unknown, 0);
	ck_assert_int_eq(ucm_index_prefix(reader, &id, 1, &count, &flag),
			 -ENOTCONN);
	ck_assert_uint_eq(count, 77);
	ck_assert_int_eq(flag, 77);
	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), -ENOTCONN);
	ck_assert_uint_eq(entry.size, 77);
	ck_assert_int_eq(ucm_index_info(reader, &info), -ENOTCONN);
}

/* A writer that never ends what it began; so does one that is stopped. */
UNIT_TEST(a_shard_that_is_being_changed_is_waited_for_not_for_ever)
{
	struct ucm_index_memory *live = ucm_index_live(ix);
	uint64_t present, unknown;
	struct ucm_id ids[64];

	for (unsigned i = 0; i < 64; i++) {
		ids[i] = rf_id(i);
		rf_add(ix, i);
	}
	for (unsigned i = 0; i < 32; i++)
		ucm_index_memory_shard(live, ids[i].bytes[0])->seq |= 1;
	ck_assert_int_eq(ucm_index_lookup(reader, ids, 64, &present, &unknown),
			 0);
	for (unsigned i = 0; i < 64; i++) {
		bool odd =
			ucm_index_memory_shard(live, ids[i].bytes[0])->seq & 1;

		must((unknown >> i & 1) == odd);
		must((present >> i & 1) == !odd);
	}
}

/* ---- files that are no index, or a damaged one ---- */

static int copy_of_index(uint64_t size)
{
	int fd = memfd_create("test", 0);

	ck_assert_int_ge(fd, 0);
	must(pwrite(fd, ucm_index_live(ix)->base, size, 0) == (ssize_t)size);
	return fd;
}

UNIT_TEST(what_is_no_index_is_refused, .rows = 7)
{
	static const struct { unsigned at; uint32_t value; } wrong[] = {
		{ 0, 0 }, { 12, 0 }, { 12, 12289 },
		{ 16, 64 }, { 20, 24 }, { 24, 256 }, { 24, UINT32_MAX },
	};
	struct ucm_reader_map map;
	int fd = copy_of_index(ucm_index_memory_size(ucm_index_live(ix)));

	must(pwrite(fd, &wrong[_i].value, 4, wrong[_i].at) == 4);
	ck_assert_int_eq(ucm_reader_map_open(&map, fd), -EPROTO);
	close(fd);
}

static char said[512];

static void note_line(enum ucm_log_level level, const char *line)
{
	(void)level;
	snprintf(said, sizeof(said), "%s", line);
}

UNIT_TEST(another_version_is_refused_by_name, .rows = 3)
{
	static const struct { uint32_t version, shard_bytes; } other[] = {
		{ 2, 1088 }, { 4, 4096 }, { 0, 1088 },
	};
	struct ucm_reader_map map;
	int fd = copy_of_index(UCM_INDEX_MEMORY_HEADER_BYTES);
	char both[80];

	must(pwrite(fd, &other[_i].version, 4, 8) == 4);
	must(pwrite(fd, &other[_i].shard_bytes, 4, 16) == 4);
	ucm_log_set(note_line, UCM_LOG_INFO);
	ck_assert_int_eq(ucm_reader_map_open(&map, fd), -EPROTONOSUPPORT);
	snprintf(both, sizeof(both), "version %u, and this library reads "
		 "version 3", other[_i].version);
	ck_assert_ptr_nonnull(strstr(said, both));
	close(fd);
}

/* What readers of version 1 compare before all else. */
UNIT_TEST(version_1_reads_another_version_where_it_looks)
{
	uint32_t version;

	memcpy(&version, ucm_index_live(ix)->base + 8, sizeof(version));
	ck_assert_uint_ne(version, 1);
	/* they ask for a file of that size first */
	ck_assert_uint_ge(ucm_index_memory_size(ucm_index_live(ix)),
			  12288 + 256 * 1088);
}

UNIT_TEST(a_name_that_is_only_a_parent_is_absent)
{
	struct ucm_entry entry = rf_entry(1, 0);
	struct ucm_id parent = rf_id(2);
	struct ucm_index_entry told;
	struct ucm_index_info info;
	ucm_ref ref;

	ck_assert_int_eq(ucm_index_add(ix, &entry, &parent, &ref), 0);
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	ck_assert_int_eq(rf_ask(reader, 2), 'n');
	ck_assert_int_eq(ucm_index_entry(reader, &parent, &told), -ENOENT);
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_uint_eq(info.blocks, 1);
	rf_add(ix, 2);
	ck_assert_int_eq(rf_ask(reader, 2), 'y');
	ck_assert(ucm_index_remove(ix, rf_ref(ix, 2), NULL));
	ck_assert_int_eq(rf_ask(reader, 2), 'n');
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_uint_eq(info.blocks, 1);
}

UNIT_TEST(a_second_place_is_told)
{
	struct ucm_entry entry = rf_entry(1, 0);
	struct ucm_index_entry told;

	rf_add(ix, 2);
	entry.copy = 3;
	ck_assert_int_eq(ucm_index_add(ix, &entry, NULL, NULL), 0);
	ck_assert_int_eq(ucm_index_entry(reader, &entry.id, &told), 0);
	ck_assert_uint_eq(told.flags, UCM_INDEX_COPY);
	entry = rf_entry(2, 0);
	ck_assert_int_eq(ucm_index_entry(reader, &entry.id, &told), 0);
	ck_assert_uint_eq(told.flags, 0);
}

UNIT_TEST(a_file_that_is_too_short_is_refused, .rows = 6)
{
	static const uint64_t sizes[] = {
		0,
		1,
		8,
		4096,
		UCM_INDEX_MEMORY_HEADER_BYTES,
		UCM_INDEX_MEMORY_FIXED_BYTES - 1,
	};
	struct ucm_reader_map map;
	int fd = copy_of_index(sizes[_i]);

	ck_assert_int_eq(ucm_reader_map_open(&map, fd), -EPROTO);
	close(fd);
	fd = open("/", O_RDONLY);
	ck_assert_int_eq(ucm_reader_map_open(&map, fd), -EPROTO);
	close(fd);
}

/* As if it had been cut: chunks that the header tells of are not there. */
UNIT_TEST(what_lies_behind_the_end_is_unknown)
{
	struct ucm_index_reader *cut;
	unsigned unknown = 0;

	for (unsigned i = 0; i < 30000; i++)
		rf_add(ix, i);
	cut = rf_reader_of(
		copy_of_index((UCM_INDEX_MEMORY_FIXED_BYTES + 4096) & ~4095u));
	ck_assert_ptr_nonnull(cut);
	for (unsigned i = 0; i < 30000; i += 7)
		unknown += rf_ask(cut, i) == '?';
	ck_assert_uint_gt(unknown, 4000);
	ucm_index_close(cut);
}

/* Numbers that hurt where a place, a count or a link is expected. */
static uint32_t bad_number(uint64_t *seed)
{
	static const uint32_t bad[] = { 0, 1, 31, 32, 33, 255, 0x7fffffff,
					0x80000000, UINT32_MAX, 1u << 24,
					(1u << 24) - 256, 4097 };

	*seed = rf_mix(*seed);
	switch (*seed >> 60 & 3) {
	case 0: return (uint32_t)(*seed >> 8);
	case 1: return (uint32_t)(*seed >> 8 & 0xffff);
	default: return bad[(*seed >> 8) % NUM_ROWS(bad)];
	}
}

/* Where it hurts most: shards of the ids that are asked for. */
static void spoil(char *base, uint64_t size, uint64_t *seed)
{
	unsigned num = 1 + (unsigned)(rf_mix(*seed) % 60);

	for (unsigned i = 0; i < num; i++) {
		uint32_t number = bad_number(seed);
		uint64_t at;

		*seed = rf_mix(*seed);
		if (*seed & 1)
			at = UCM_INDEX_MEMORY_HEADER_BYTES +
			     *seed / 2 %
				     (UCM_INDEX_MEMORY_FIXED_BYTES -
				      UCM_INDEX_MEMORY_HEADER_BYTES);
		else
			at = 64 + *seed / 2 % (size - 128);
		memcpy(base + (at & ~3ull), &number, sizeof(number));
	}
}

static void ask_everything(struct ucm_index_reader *of)
{
	static struct ucm_id ids[3000];
	uint64_t present[UCM_INDEX_WORDS(3000)], unknown[NUM_ROWS(present)];
	struct ucm_index_entry entry;
	struct ucm_index_info info;
	size_t count;
	int flag;

	for (unsigned i = 0; i < NUM_ROWS(ids); i++)
		ids[i] = rf_id(i);
	/* only that they end, and read nothing that is not there */
	ucm_index_lookup(of, ids, NUM_ROWS(ids), present, unknown);
	ucm_index_prefix(of, ids, NUM_ROWS(ids), &count, &flag);
	ucm_index_info(of, &info);
	for (unsigned i = 0; i < 20; i++) {
		if (ucm_index_entry(of, &ids[i * 100], &entry))
			continue;
		must(memchr(entry.tier_name, '\0', sizeof(entry.tier_name)));
	}
}

UNIT_TEST(a_damaged_index_harms_nobody, .rows = 4)
{
	uint64_t size, seed = random_case((unsigned)_i);
	char *whole;
	int fd;

	for (unsigned i = 0; i < 2000; i++)
		rf_add(ix, i);
	size = ucm_index_memory_size(ucm_index_live(ix));
	whole = ucm_index_live(ix)->base;
	fd = copy_of_index(size);
	for (unsigned round = 0; round < 150; round++) {
		struct ucm_index_reader *of;
		char *base = mmap(NULL, size, PROT_READ | PROT_WRITE,
				  MAP_SHARED, fd, 0);

		ck_assert_ptr_ne(base, MAP_FAILED);
		memcpy(base, whole, size);
		spoil(base, size, &seed);
		munmap(base, size);
		of = rf_reader_of(dup(fd));
		if (of) {
			ask_everything(of);
			ucm_index_close(of);
		}
	}
	close(fd);
}

/* A ring of records: each leads to another, none is the one. */
UNIT_TEST(a_chain_without_an_end_is_left)
{
	struct ucm_index_memory *live = ucm_index_live(ix);
	struct ucm_index_memory_shard *shard;
	struct ucm_index_memory_record *first;
	_Atomic uint32_t *heads;
	struct ucm_id id = rf_id(1);

	rf_add(ix, 1);
	shard = ucm_index_memory_shard(live, id.bytes[0]);
	first = ucm_index_memory_at(live, shard->records[0]);
	heads = ucm_index_memory_at(live, shard->heads[0]);
	first->next = 1; /* itself */
	first->id[1] ^= 1;
	for (unsigned i = 0; i < 32; i++)
		heads[i] = 1;
	ck_assert_int_eq(rf_ask(reader, 1), '?');
	first->id[1] ^= 1;
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	first->next = 0;
}

/* ---- opening ---- */

UNIT_TEST(names_that_are_no_spaces_are_refused)
{
	static const char *const names[] = { ".", "..", ".hidden", "a/b", "/" };
	struct ucm_index_reader *none = NULL;
	char name[200];

	for (unsigned i = 0; i < NUM_ROWS(names); i++)
		ck_assert_int_eq(ucm_index_open("/tmp", names[i], &none),
				 -EINVAL);
	memset(name, 'x', sizeof(name));
	name[129] = '\0';
	ck_assert_int_eq(ucm_index_open("/tmp", name, &none), -EINVAL);
	ck_assert_ptr_null(none);
}

UNIT_TEST(what_is_no_mount_is_not_there)
{
	struct ucm_index_reader *none = NULL;

	ck_assert_int_eq(ucm_index_open("/nowhere", NULL, &none), -ENOENT);
	ck_assert_int_eq(ucm_index_open("/proc", NULL, &none), -ENOENT);
	ck_assert_int_eq(ucm_index_open("/proc", "x", &none), -ENOENT);
	ck_assert_ptr_null(none);
	ucm_index_close(NULL);
}
