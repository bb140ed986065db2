/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reader_races.c - what happens to a mapped index in the middle of a
 * call.
 */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include "tests/unit/dir_fixture.h"
#include "tests/unit/fake_server.h"
#include "tests/unit/reader/mapped_index.h"

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

static void complete(void)
{
	rf_add(ix, 1);
	ucm_index_memory_set_complete(ucm_index_live(ix));
}

static void complete_behind_it(void)
{
	trap_header(complete);
}

UNIT_FIXTURE(.setup = setup_trap, .teardown = teardown_trap,
	     .only_if = can_be_trapped);

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
