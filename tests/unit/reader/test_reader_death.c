/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reader_death.c - a writer that stops after any of its instructions.
 *
 * A child, which shares the index's memory, makes one change. It is stepped
 * through it one instruction at a time, and between any two of them a reader
 * asks for everything: as if the writer had died there. Then some are killed.
 */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "tests/unit/reader_fixture.h"

#define KEPT 32u  /* entries that are there all the time, in one shard */
#define STEPS_MOST 2000000
#define QUIET 4000 /* instructions after which nothing more is expected */
#define SHARD 0    /* the first that is hidden from */

static struct ucm_index *ix;
static struct ucm_index_reader *reader, *of_nine;
static uint64_t kept[KEPT], other; /* other: the one that is changed */

/* All in one shard, where it can hurt. */
static void setup(void)
{
	uint64_t n = 0;

	ix = rf_index();
	reader = rf_reader(ix);
	of_nine = rf_reader(ix);
	of_nine->space = 9;
	for (unsigned i = 0; i < KEPT; n++) {
		if (rf_id(n).bytes[0] == SHARD)
			kept[i++] = n;
	}
	while (rf_id(n).bytes[0] != SHARD)
		n++;
	other = n;
}

static void teardown(void)
{
	ucm_index_close(reader);
	ucm_index_close(of_nine);
	ucm_index_free(ix);
}

static void add_kept(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		rf_add(ix, kept[i]);
}

/* ---- the changes ---- */

static void add_other(void)
{
	rf_add(ix, other);
}

static void remove_other(void)
{
	must(ucm_index_remove(ix, rf_ref(ix, other), NULL));
}

static void rewrite(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->size = rf_size(other, 1);
	entry->dir = (uint8_t)(entry->size % RF_DIRS);
}

static void edit_other(void)
{
	must(ucm_index_edit(ix, rf_ref(ix, other), rewrite, NULL));
}

static void flag_other(void)
{
	must(ucm_index_flag(ix, rf_ref(ix, other), UCM_ENTRY_PINNED, true));
}

static void hide_nine(void)
{
	must(!ucm_index_hide(ix, 9));
}

static void add_to_nine(void)
{
	struct ucm_entry entry = rf_entry(other, 0);

	entry.space = 9;
	must(!ucm_index_add(ix, &entry, NULL, NULL));
}

static void nothing(void)
{
}

/* kept: entries that lie there before. 32 fill the heads and the first chunk:
 * one more splits a chain, and takes a second chunk. */
static const struct change {
	const char *name;
	unsigned kept;
	void (*before)(void);
	void (*change)(void);
	char was, is; /* the answer for the other one */
} changes[] = {
	{ "add", 20, nothing, add_other, 'n', 'y' },
	{ "add, split", KEPT, nothing, add_other, 'n', 'y' },
	{ "add, first", 0, nothing, add_other, 'n', 'y' },
	{ "remove", 20, add_other, remove_other, 'y', 'n' },
	{ "rewrite", 20, add_other, edit_other, 'y', 'y' },
	{ "flag", 20, add_other, flag_other, 'y', 'y' },
	{ "hide", 20, add_to_nine, hide_nine, 'n', 'n' },
};

/* ---- what must hold at any moment ---- */

static void check_other(const struct change *change, bool done)
{
	struct ucm_id id = rf_id(other);
	struct ucm_index_entry entry;
	char answer = rf_ask(reader, other);

	must(answer == change->is || answer == '?' ||
	     (!done && answer == change->was));
	must(!done || answer == change->is);
	if (answer == 'y' && !ucm_index_entry(reader, &id, &entry))
		must(rf_is_whole(&entry, other));
}

/* What is hidden is not called absent: first the reader must be told to ask
 * again what the space's number is, which it cannot here. */
static void check_nine(bool done)
{
	struct ucm_id id = rf_id(other);
	uint64_t present, unknown;
	int err = ucm_index_lookup(of_nine, &id, 1, &present, &unknown);

	must(err || present || unknown);
	must(!done || err);
}

static void check_all(const struct change *change, bool done)
{
	/* this one's space is as it was */
	reader->names = ucm_reader_map_names(&reader->map);
	for (unsigned i = 0; i < change->kept; i++) {
		char answer = rf_ask(reader, kept[i]);

		must(answer == 'y' || (answer == '?' && !done));
	}
	for (unsigned n = 0; n < 4; n++) {
		char answer = rf_ask(reader, other + 1 + n);

		must(answer == 'n' || (answer == '?' && !done));
	}
	check_other(change, done);
	if (change->change == hide_nine)
		check_nine(done);
}

/* ---- stepping ---- */

static bool is_halfway(void)
{
	return ucm_index_memory_shard(ucm_index_live(ix), SHARD)->seq & 1;
}

static pid_t start(const struct change *change)
{
	pid_t pid = unit_fork();
	int status;

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(77);
		raise(SIGSTOP);
		change->change();
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSTOPPED(status));
	return pid;
}

/* Not so in some containers. */
static bool may_trace(void)
{
	int status;
	pid_t pid = unit_fork();

	if (pid == 0)
		_exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) ? errno : 0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return unit_skip("ptrace: no process to try it with");
	return !WEXITSTATUS(status) ||
	       unit_skip("ptrace: %s", strerror(WEXITSTATUS(status)));
}

/* False: it has ended. */
static bool step(pid_t pid)
{
	int status;

	if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL))
		return false;
	must(waitpid(pid, &status, 0) == pid);
	must(!WIFSIGNALED(status));
	return WIFSTOPPED(status);
}

/* To its end; what it still has to do is not looked at. */
static bool let_run(pid_t pid)
{
	int status;

	must(!ptrace(PTRACE_CONT, pid, NULL, NULL));
	must(waitpid(pid, &status, 0) == pid);
	must(WIFEXITED(status));
	return true;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown, .timeout = 120,
	     .only_if = may_trace);

UNIT_TEST(a_reader_sees_no_half_of_any_change, .rows = NUM_ROWS(changes))
{
	const struct change *change = &changes[_i];
	unsigned steps = 0, mid = 0, last = 0;
	pid_t pid;

	add_kept(change->kept);
	change->before();
	pid = start(change);
	while (step(pid)) {
		ck_assert_uint_lt(++steps, STEPS_MOST);
		mid += is_halfway();
		last = is_halfway() ? steps : last;
		if (last && steps - last > QUIET && let_run(pid))
			break;
		/* between its changes the memory is as it was */
		if (is_halfway() || steps % 16 == 0)
			check_all(change, false);
	}
	check_all(change, true);
	printf("# %s: %u instructions, %u of them half-way\n", change->name,
	       steps, mid);
	ck_assert_uint_gt(mid, 2);
}

/* ---- killing ---- */

/* The child keeps the index; it dies after so many instructions. */
static pid_t start_keeper(const struct change *change)
{
	pid_t pid = unit_fork();
	int status;

	if (pid == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) ||
		    ucm_index_memory_serve(ucm_index_live(ix)))
			_exit(77);
		raise(SIGSTOP);
		change->change();
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSTOPPED(status));
	return pid;
}

UNIT_TEST(a_killed_writer_is_told_of_whatever_it_was_doing, .rows = 15)
{
	const struct change *change = &changes[1];
	unsigned more = 20 * (unsigned)_i;
	bool runs = true;
	pid_t pid;

	ucm_index_memory_unserve(ucm_index_live(ix));
	ucm_index_memory_header(ucm_index_live(ix))->state =
		UCM_INDEX_MEMORY_COMPLETE;
	add_kept(change->kept);
	pid = start_keeper(change);
	ck_assert_int_eq(rf_ask(reader, kept[0]), 'y');
	while (runs && !is_halfway())
		runs = step(pid);
	while (runs && is_halfway() && more--)
		runs = step(pid);
	ck_assert(runs);
	ck_assert_int_ne(rf_ask(reader, kept[0]), '-');
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	for (unsigned i = 0; i < KEPT; i++)
		must(rf_ask(reader, kept[i]) == '-');
}
