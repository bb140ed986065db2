/* SPDX-License-Identifier: Apache-2.0 */
/* store_fixture.h - an open store over the directories of dir_fixture.h. */
#ifndef UCM_TESTS_STORE_FIXTURE_H
#define UCM_TESTS_STORE_FIXTURE_H

#include "tests/unit/block_fixture.h"
#include "tests/unit/tier_fixture.h"

#include "fs/index/index.h"
#include "fs/store/store.h"

extern struct ucm_store *fx_set;

void fx_open(void);       /* as fx_config says; closed when the test ends */
void fx_open_still(void); /* and nothing moves by itself */
void fx_start(void);      /* and waits until its threads are done */
void fx_start_only(void); /* does not wait */
void fx_close(void);
/* fx_configure() of SOURCE, and these. */
void fx_store(const char *source);

/* With an LRU policy; the same, opened, and nothing moves by itself. */
void fx_configure_lru(const char *source);
void fx_still_store(const char *source);

/* Blocks of FX_PAGED for tests of many; fx_setup(), and they are made. */
#define FX_FILES 40
extern struct fx_file fx_files[FX_FILES];
void fx_setup_files(void);
void fx_commit_files(unsigned first, unsigned num);

void fx_wait_scanned(void);
void fx_wait_settled(void); /* scanned, and nothing in doubt */

/*
 * The calls of store.h on files, by number: their descriptor, or one from
 * FX_NUMBERS on. medium_fixture.h reads, writes and closes them.
 */
int fx_create(const struct ucm_key *key, uint64_t bytes, struct ucm_temp *temp);
int fx_reopen(const struct ucm_temp *temp);
int fx_open_block(ucm_ref ref, struct ucm_entry *entry);
/* The same, held by open (hold.h). */
int fx_open_block_held(ucm_ref ref, struct ucm_entry *entry,
		       struct ucm_open *open);
int fx_commit_temp(struct ucm_temp *temp, int number,
		   const struct ucm_key *key, enum ucm_commit_when when);
bool fx_unchanged(const struct ucm_temp *temp, int number);
void fx_recheck(const struct ucm_temp *temp, int number);
void fx_rest(struct ucm_temp *temp, int number);

/* create, write, commit and drop; what commit (or create) returned. */
int fx_commit(const struct fx_file *file);
int fx_find(const struct fx_file *file); /* what find returned */

/* Of a block's entry, without a look at its file. */
bool fx_is_indexed(const struct fx_file *file);
ucm_ref fx_ref(const struct fx_file *file);
struct ucm_entry fx_entry(const struct fx_file *file);
/* It was last used so many seconds ago. */
void fx_age(const struct fx_file *file, uint32_t seconds);

/* Found, opened, and the bytes are those of the file. */
void fx_serves(const struct fx_file *file);
/* Not found. */
void fx_misses(const struct fx_file *file);

#endif
