/* SPDX-License-Identifier: Apache-2.0 */
/* tier_fixture.h - a configuration of directories. */
#ifndef UCM_TESTS_TIER_FIXTURE_H
#define UCM_TESTS_TIER_FIXTURE_H

#include "tests/unit/dir_fixture.h"

#include "fs/config/config.h"

extern struct ucm_config fx_config;

/* An empty one, until the test ends; for tests that use neither of these. */
void fx_config_begin(void);

/* For UNIT_PROGRAM(.variants = ...): all tests of the program run on
 * directories, and on media in memory. */
extern const struct unit_variant fx_media[];

/* True where fx_media runs on memory; else it says that the rest of a test is
 * about that. */
bool fx_needs_memory(const char *why);

/* True on directories; else it says why a test makes no sense, which ends. */
bool fx_needs_directory(const char *why);

/* Makes the directories of a SOURCE and configures it. No checkpoints. */
void fx_configure(const char *source);
void fx_option(const char *key, const char *value);

#endif
