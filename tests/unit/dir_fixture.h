/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_fixture.h - a directory for each test, what is logged, and calls that fail.
 *
 * The directory is below one that the program makes in $TMPDIR or /tmp and
 * removes at its end, also after a test that crashed. In paths (and in the
 * SOURCEs of the fixtures above) '$' stands for it. Helpers assert: where they
 * return, they have done it.
 */
#ifndef UCM_TESTS_DIR_FIXTURE_H
#define UCM_TESTS_DIR_FIXTURE_H

#include "tests/unit/unit.h"

#include <sys/types.h>

/* From a constructor: the directory is in memory, where there is some and
 * $TMPDIR does not say otherwise. */
void fx_use_memory(void);

/* For UNIT_FIXTURE: a fresh directory, and the log kept. */
void fx_setup(void);
void fx_teardown(void);

/* fx_teardown() calls fn, once, and the latest first. */
void fx_at_end(void (*fn)(void));

/* ---- paths and files ---- */

/* Formats a path, '$' being the test's directory; good for the next 15 calls. */
const char *fx_path(const char *format, ...)
	__attribute__((format(printf, 1, 2)));
void fx_mkdirs(const char *path); /* with all above it */
void fx_put(const char *path, const void *bytes, size_t len);
bool fx_exists(const char *path);
void fx_read(const char *path, char *text, size_t size);
unsigned fx_count(const char *path); /* entries; 0 if there is no such folder */
unsigned fx_count_files(const char *path); /* below it, at any depth */

/* ---- waiting, and dying ---- */

/* The wait of all waits: until done(arg), for ten seconds at most. */
void fx_wait(bool (*done)(void *arg), void *arg);

/* For fx_wait, of a thread's id (an _Atomic pid_t; 0: not known yet): it waits,
 * for a lock or whatever it is. */
bool fx_sleeps(void *tid);

/* Runs fn in a child that leaves by _exit: a daemon that was killed. */
void fx_in_child(void (*fn)(void *arg), void *arg);
/* By the child, when it is about to die with all its threads; or NULL: so that
 * none of them is in the middle of what outlives it. */
extern void (*fx_before_death)(void);

/* ---- what was logged, and faults ---- */

bool fx_logged(const char *text);
void fx_clear_log(void);
void fx_print_log(void); /* on standard error */

/*
 * Fail calls: the nth call from now (1 is the next) named call (NULL: any)
 * returns err; 0 turns it off. only_once: later ones pass again.
 */
void fx_fail(const char *call, unsigned nth, int err, bool only_once);
/* The same, for calls whose path has this in it. */
void fx_fail_on(const char *call, const char *part_of_path, unsigned nth,
		int err, bool only_once);
unsigned fx_calls(void);         /* matching calls since fx_fail */
const char *fx_failed_call(void); /* the name of the call that failed, or NULL */

#endif
