/* SPDX-License-Identifier: Apache-2.0 */
/* tier_fixture.h - a configuration of directories. */
#ifndef UCM_TESTS_TIER_FIXTURE_H
#define UCM_TESTS_TIER_FIXTURE_H

#include "tests/unit/dir_fixture.h"

#include "fs/tier/config.h"

extern struct ucm_config fx_config;

/* An empty one, until the test ends; for tests that use neither of these. */
void fx_config_begin(void);

/* Makes the directories of a SOURCE and configures it. No checkpoints. */
void fx_configure(const char *source);
void fx_option(const char *key, const char *value);

#endif
