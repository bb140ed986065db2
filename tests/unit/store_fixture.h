/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_fixture.h - directories, block files and an open store for the tests.
 *
 * Each test gets an empty directory of its own below one that the program makes
 * in $TMPDIR or /tmp and removes at its end, also after a test that crashed.
 * In paths and SOURCEs '$' stands for the test's directory. Helpers assert:
 * where they return, they have done it.
 */
#ifndef UCM_TESTS_STORE_FIXTURE_H
#define UCM_TESTS_STORE_FIXTURE_H

#include "tests/unit/unit.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <ucm/block.h>

#include "fs/tier/config.h"
#include "fs/index/index.h"
#include "fs/store/store.h"

/* For UNIT_FIXTURE: a fresh directory, and the log kept. */
void fx_setup(void);
void fx_teardown(void);

/* ---- paths and files ---- */

/* Formats a path, '$' being the test's directory; good for the next 15 calls. */
const char *fx_path(const char *format, ...)
	__attribute__((format(printf, 1, 2)));
void fx_mkdirs(const char *path); /* with all above it */
void fx_put(const char *path, const void *bytes, size_t len);
bool fx_exists(const char *path);
void fx_read(const char *path, char *text, size_t size);
unsigned fx_count(const char *path); /* entries; 0 if there is no such folder */

/* ---- block files ---- */

struct fx_file {
	struct ucm_block block;
	struct ucm_key key;
	size_t len;
	uint8_t bytes[32768];
};

enum fx_kind {
	FX_PAGED,     /* with checksums */
	FX_PACKED,    /* with checksums */
	FX_PAGED_RAW, /* without */
	FX_PACKED_RAW,
	FX_BARE,
};

/* 2 layers of 4 tokens, float16, 2 heads of 8: K 128 + V 128 bytes. */
extern const struct ucm_geometry fx_geometry;

/* Block number n of space 0: a file of 8192 bytes (paged), or 576. */
void fx_block(struct fx_file *file, unsigned n, enum fx_kind kind);
void fx_block_of(struct fx_file *file, unsigned n, enum fx_kind kind,
		 const struct ucm_geometry *geometry);
/* The same, as block and key in *file say (form, flags, parent, ...). */
void fx_encode(struct fx_file *file, bool crc);

/* "3f/3f9a....bin" */
const char *fx_name(const struct fx_file *file);
/* Puts the file into a backing directory, behind the store's back. */
void fx_plant(const char *dir, const char *folder, const struct fx_file *file);

/* ---- a store ---- */

extern struct ucm_config fx_config;
extern struct ucm_store *fx_set;
extern unsigned fx_losses; /* times on_loss was called */

/* Makes the directories of a SOURCE and configures it. No checkpoints. */
void fx_configure(const char *source);
void fx_option(const char *key, const char *value);
void fx_open(void);
void fx_start(void);      /* and waits until its threads are done */
void fx_start_only(void); /* does not wait */
void fx_close(void);
/* All three, with SOURCE. */
void fx_store(const char *source);

/* The wait of all waits: until done(arg), for ten seconds at most. */
void fx_wait(bool (*done)(void *arg), void *arg);
void fx_wait_scanned(void);
void fx_wait_settled(void); /* scanned, and nothing in doubt */

/* create, write, commit and drop; what commit (or create) returned. */
int fx_commit(const struct fx_file *file);
int fx_find(const struct fx_file *file); /* what find returned */
/* Found, opened, and the bytes are those of the file. */
void fx_serves(const struct fx_file *file);
/* Not found. */
void fx_misses(const struct fx_file *file);

/* Runs fn in a child that leaves by _exit: a daemon that was killed. */
void fx_in_child(void (*fn)(void *arg), void *arg);

/* Every file below DIR/blocks and DIR/spaces is a whole block. */
void fx_all_whole(const char *dir);

/* ---- what was logged, and faults ---- */

bool fx_logged(const char *text);
void fx_clear_log(void);

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
