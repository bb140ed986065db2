/* SPDX-License-Identifier: Apache-2.0 */
/* tier_fixture.c - see tier_fixture.h. */
#include <config.h>

#include "tests/unit/tier_fixture.h"

#include "tests/unit/memory_medium.h"

struct ucm_config fx_config;

/* ---- on which media ---- */

static bool in_memory;

static void begin_memory(void)
{
	memory_begin(fx_path("$"));
	fx_at_end(memory_end);
}

static void use_directories(void)
{
	in_memory = false;
	fx_begin_tree = NULL;
}

static void use_memory(void)
{
	in_memory = true;
	fx_begin_tree = begin_memory;
}

const struct unit_variant fx_media[] = {
	{ "directory", use_directories },
	{ "memory", use_memory },
	{ 0 },
};

bool fx_needs_directory(const char *why)
{
	return !in_memory || unit_skip("not in memory: %s", why);
}

bool fx_needs_memory(const char *why)
{
	return in_memory || unit_skip("not on directories: %s", why);
}

/* ---- the configuration ---- */

static bool has_begun;

static void config_end(void)
{
	ucm_config_fini(&fx_config);
	has_begun = false;
}

void fx_config_begin(void)
{
	if (has_begun)
		return;
	ucm_config_init(&fx_config);
	/* what is full is full, but where a test says so */
	strcpy(fx_config.policy, UCM_POLICY_NONE);
	fx_config.open_medium = in_memory ? memory_open : NULL;
	has_begun = true;
	fx_at_end(config_end);
}

void fx_configure(const char *source)
{
	struct ucm_error error = { "" };

	fx_config_begin();
	fx_config.open_medium = in_memory ? memory_open : NULL;
	ck_assert_msg(!ucm_config_source(&fx_config, fx_path("%s", source),
					 &error), "%s", error.text);
	for (unsigned i = 0; i < fx_config.num_tiers; i++) {
		const struct ucm_tier_config *tier = &fx_config.tiers[i];

		for (unsigned j = 0; !tier->memory && j < tier->num_dirs; j++)
			fx_mkdirs(tier->dirs[j]);
	}
	fx_option("checkpoint", "0");
}

void fx_option(const char *key, const char *value)
{
	struct ucm_error error = { "" };

	fx_config_begin();
	ck_assert_msg(!ucm_config_set(&fx_config, key, value, &error),
		      "%s", error.text);
}
