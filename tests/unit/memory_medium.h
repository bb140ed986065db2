/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_medium.h - a medium that keeps its blocks in memory, for tests.
 *
 * It has no descriptors, and it is no stub: the store's whole suite runs on it.
 * What it keeps outlives a store, as a directory does, and a child that has
 * died. Its names are the paths that a directory would have, so that
 * medium_fixture.h can plant, cut and remove what lies in it.
 *
 * Each step of a call is named for the system call that a directory would make
 * of it, and asks ucm_os_fault first: so fx_fail() makes it fail, and
 * fx_delay() makes it slow.
 */
#ifndef UCM_TESTS_MEMORY_MEDIUM_H
#define UCM_TESTS_MEMORY_MEDIUM_H

#include "tests/unit/medium_fixture.h"

#include "fs/medium/medium.h"

/* All of it is anew. From now on what lies below this path is kept here, and
 * fx_other_tree is that. */
void memory_begin(const char *root);
void memory_end(void);

/* A ucm_medium_open_fn. */
int memory_open(const char *path, bool readonly,
		const struct ucm_config *config, struct ucm_medium **out,
		struct ucm_error *error);

/* Room that it says it has, for all that is kept. */
void memory_set_size(uint64_t bytes);

/* The steps of that name (NULL: all) take so long from now on, each a random
 * part of it; 0: no time. */
void memory_delay(const char *call, unsigned most_us);

/* Those that are opened from now on cannot be listed, only asked for names. */
void memory_hide_names(void);

/* The number of an open file, and the other way round. */
int memory_number(void *object);
void *memory_object(int number);

#endif
