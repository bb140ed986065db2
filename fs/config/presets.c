/* SPDX-License-Identifier: Apache-2.0 */
/* presets.c - UCM's pipelines and storage policies; see presets.h. */
#include <config.h>

#include "fs/config/presets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/statfs.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/fstype.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/osguard.h"
#include "common/parse.h"

#define DEFAULT_CACHE "1G"

enum stage { CACHE, POSIX, NFS, PC, DS3FS, EMPTY, FAKE, MOONCAKE, NUM_STAGES };

static const struct {
	const char *name, *key; /* in a pipeline, and of its map */
	const char *refused;    /* why not */
} stages[NUM_STAGES] = {
	[CACHE] = { "Cache", "cache", NULL },
	[POSIX] = { "Posix", "posix", NULL },
	[NFS] = { "Nfs", "nfs", NULL },
	[PC] = { "Pc", "pc", NULL },
	[DS3FS] = { "Ds3fs", "ds3fs", NULL },
	[EMPTY] = { "Empty", NULL,
		    "it keeps nothing: it is a store of the Python package" },
	[FAKE] = { "Fake", NULL,
		   "it keeps no data: it is a store of the Python package" },
	[MOONCAKE] = { "Mooncake", NULL, "it is not here" },
};
#define BIT(stage) (1u << (stage))
#define DISKS (BIT(POSIX) | BIT(NFS) | BIT(PC) | BIT(DS3FS))

static const char *const policies[UCM_BACKENDS_POLICIES] = {
	[UCM_BACKENDS_NONE] = "none",
	[UCM_BACKENDS_ROUND_ROBIN] = "round_robin",
	[UCM_BACKENDS_RANDOM] = "random",
	[UCM_BACKENDS_TIERED] = "tiered",
};

void ucm_preset_init(struct ucm_preset *preset)
{
	*preset = (struct ucm_preset){ .policy = UCM_BACKENDS_NONE };
}

void ucm_preset_fini(struct ucm_preset *preset)
{
	for (unsigned i = 0; i < preset->num_paths; i++)
		free(preset->paths[i]);
	free(preset->paths);
	free(preset->pipeline);
	free(preset->cache);
}

/* ---- keys ---- */

/* The stage whose map has that key. */
static unsigned preset_stage(const char *key)
{
	unsigned i = 0;

	while (i < NUM_STAGES &&
	       (!stages[i].key || strcasecmp(stages[i].key, key) != 0))
		i++;
	return i;
}

bool ucm_preset_is_stage(const char *key)
{
	return preset_stage(key) < NUM_STAGES;
}

static int preset_copy(const char *value, char **out, struct ucm_error *error)
{
	free(*out);
	*out = strdup(value);
	return *out ? 0 : ucm_error_set(error, -ENOMEM, "out of memory");
}

/* Cache first, if it is there, and one other. What keeps nothing may only stand
 * below a cache, which is then the whole store. */
static int preset_add_stage(struct ucm_preset *preset, const char *name,
			    size_t len, struct ucm_error *error)
{
	unsigned i = 0;

	while (i < NUM_STAGES && (strlen(stages[i].name) != len ||
				  memcmp(stages[i].name, name, len)))
		i++;
	if (i == NUM_STAGES)
		return ucm_error_set(error, -EINVAL,
				     "pipeline '%s': stages are Cache, Posix, "
				     "Nfs and Ds3fs",
				     preset->pipeline);
	if (stages[i].refused && !(i == EMPTY && preset->stages == BIT(CACHE)))
		return ucm_error_set(error, -EINVAL, "pipeline '%s': %s: %s",
				     preset->pipeline, stages[i].name,
				     stages[i].refused);
	if (preset->stages && (i == CACHE || preset->stages != BIT(CACHE)))
		return ucm_error_set(error, -EINVAL,
				     "pipeline '%s': Cache comes first, and "
				     "then one stage",
				     preset->pipeline);
	preset->stages |= BIT(i);
	return 0;
}

static int preset_set_pipeline(struct ucm_preset *preset, const char *value,
			       struct ucm_error *error)
{
	int err = preset_copy(value, &preset->pipeline, error);

	preset->stages = 0;
	while (!err) {
		size_t len = strcspn(value, "|");

		err = preset_add_stage(preset, value, len, error);
		if (!value[len])
			break;
		value += len + 1;
	}
	return err;
}

static int preset_set_cache(struct ucm_preset *preset, const char *value,
			    struct ucm_error *error)
{
	uint64_t size;
	bool percent;

	if (ucm_parse_limit(value, &size, &percent) || !size)
		return ucm_error_set(error, -EINVAL,
				     "cache_size '%s': not a size such as 8G",
				     value);
	return preset_copy(value, &preset->cache, error);
}

/* As UCM has it: a number of GiB. */
static int preset_set_cache_gb(struct ucm_preset *preset, const char *value,
			       struct ucm_error *error)
{
	char size[32];
	uint64_t gib;

	if (ucm_parse_range(value, 1, 1 << 20, &gib))
		return ucm_error_set(error, -EINVAL,
				     "cache_buffer_capacity_gb '%s': a number "
				     "from 1 to 1048576",
				     value);
	snprintf(size, sizeof(size), "%sG", value);
	return preset_copy(size, &preset->cache, error);
}

static int preset_set_policy(struct ucm_preset *preset, const char *value,
			     struct ucm_error *error)
{
	if (!ucm_parse_word(value, policies, UCM_BACKENDS_POLICIES,
			    &preset->policy))
		return 0;
	return ucm_error_set(error, -EINVAL,
			     "storage_policy '%s': use none, round_robin, random "
			     "or tiered",
			     value);
}

int ucm_preset_add_path(struct ucm_preset *preset, const char *path,
			struct ucm_error *error)
{
	char **paths;

	preset->given = true;
	if (!*path)
		return ucm_error_set(error, -EINVAL,
				     "storage_backends: an empty path");
	paths = realloc(preset->paths,
			(preset->num_paths + 1) * sizeof(*paths));
	if (!paths)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	preset->paths = paths;
	paths[preset->num_paths] = NULL;
	return preset_copy(path, &paths[preset->num_paths++], error);
}

static int preset_add_paths(struct ucm_preset *preset, const char *value,
			    struct ucm_error *error)
{
	_cleanup_free_ char *copy = strdup(value);
	char *rest = copy, *path;
	int err = copy ? 0 : -ENOMEM;

	while (!err && (path = strsep(&rest, ":")))
		err = ucm_preset_add_path(preset, path, error);
	return err;
}

static int preset_set_device(struct ucm_preset *preset, const char *value,
			     struct ucm_error *error)
{
	(void)preset, (void)error;
	ucm_info("device %s: no effect: the mount has no device, its readers "
		 "have",
		 value);
	return 0;
}

static const struct {
	const char *key;
	int (*set)(struct ucm_preset *preset, const char *value,
		   struct ucm_error *error);
	unsigned maps; /* of these stages it may stand in the map */
} keys[] = {
	{ "pipeline", preset_set_pipeline, 0 },
	{ "store_pipeline", preset_set_pipeline, 0 },
	{ "storage_backends", preset_add_paths, DISKS },
	{ "storage_policy", preset_set_policy, DISKS },
	{ "cache_size", preset_set_cache, BIT(CACHE) },
	{ "cache_buffer_capacity_gb", preset_set_cache_gb, BIT(CACHE) },
	{ "device", preset_set_device, BIT(CACHE) | DISKS },
	{ "device_id", preset_set_device, BIT(CACHE) | DISKS },
};
#define NUM_KEYS (sizeof(keys) / sizeof(keys[0]))

static size_t preset_key(const char *key)
{
	size_t i = 0;

	while (i < NUM_KEYS && strcmp(keys[i].key, key) != 0)
		i++;
	return i;
}

bool ucm_preset_is_key(const char *key)
{
	return preset_key(key) < NUM_KEYS;
}

int ucm_preset_set(struct ucm_preset *preset, const char *stage,
		   const char *key, const char *value, struct ucm_error *error)
{
	unsigned map = stage ? BIT(preset_stage(stage)) : 0;
	size_t i = preset_key(key);

	if (i == NUM_KEYS || map & ~keys[i].maps)
		return ucm_error_set(error, -EINVAL,
				     "unknown key '%.100s' of the stage %s",
				     key, stage);
	preset->given |= keys[i].set != preset_set_device;
	preset->maps |= map;
	return keys[i].set(preset, value, error);
}

/* ---- tiers ---- */

static int preset_check(const struct ucm_preset *preset,
			const struct ucm_config *config,
			struct ucm_error *error)
{
	if (config->num_tiers)
		return ucm_error_set(error, -EINVAL,
				     "tiers are listed: leave out cache_size, "
				     "storage_backends and storage_policy");
	if (!preset->pipeline)
		return ucm_error_set(error, -EINVAL,
				     "pipeline is missing: Posix, Cache|Posix, "
				     "...");
	if (preset->stages & DISKS && !preset->num_paths)
		return ucm_error_set(error, -EINVAL,
				     "pipeline '%s': storage_backends is "
				     "missing",
				     preset->pipeline);
	if (!(preset->stages & DISKS) && preset->num_paths)
		return ucm_error_set(error, -EINVAL,
				     "pipeline '%s' keeps nothing in "
				     "storage_backends",
				     preset->pipeline);
	if (preset->cache && !(preset->stages & BIT(CACHE)))
		return ucm_error_set(error, -EINVAL,
				     "cache_size: pipeline '%s' has no Cache",
				     preset->pipeline);
	for (unsigned i = 0; i < NUM_STAGES; i++) {
		if (preset->maps & ~preset->stages & BIT(i))
			return ucm_error_set(error, -EINVAL,
					     "%s: pipeline '%s' has no such "
					     "stage",
					     stages[i].key, preset->pipeline);
	}
	return 0;
}

/* Appended; of paths, one is added. */
static int preset_add_tier(struct ucm_config *config, const char *path,
			   struct ucm_error *error)
{
	struct ucm_tier_config *tier;
	int err = ucm_config_add_tier(config, &tier);

	if (err)
		return ucm_error_set(error, err, "out of memory");
	return ucm_config_set_tier(tier, "directories", path, error);
}

static int preset_add_cache(const struct ucm_preset *preset,
			    struct ucm_config *config, struct ucm_error *error)
{
	char text[64];

	snprintf(text, sizeof(text), "mem@%s",
		 preset->cache ? preset->cache : DEFAULT_CACHE);
	return preset_add_tier(config, text, error);
}

static int preset_add_one_tier(const struct ucm_preset *preset,
			       struct ucm_config *config,
			       struct ucm_error *error)
{
	int err = preset_add_tier(config, preset->paths[0], error);

	for (unsigned i = 1; i < preset->num_paths && !err; i++)
		err = ucm_config_set_tier(&config->tiers[config->num_tiers - 1],
					  "directories", preset->paths[i],
					  error);
	return err;
}

/* What cannot be looked at is a server that does not answer; or it is not there,
 * which opening it will say. */
static enum ucm_fskind preset_kind(const struct ucm_config *config,
				   const char *path)
{
	unsigned s = config->deadline_s == UCM_DEADLINE_AUTO
			     ? UCM_DEADLINE_NETWORK
			     : config->deadline_s;
	enum ucm_fskind kind = UCM_FS_NETWORK;
	struct ucm_guard *guard = NULL;
	struct statfs fs;
	struct stat st;
	int fd = -1;

	if (!s || !ucm_guard_new(path, s * 1000, &guard))
		fd = ucm_os_open_root(guard, path);
	if (fd >= 0 && !ucm_os_fstat(fd, &st) && !ucm_os_statfs(fd, &fs))
		kind = ucm_fskind_of((uint32_t)fs.f_type, st.st_dev);
	ucm_os_close(fd);
	ucm_guard_close(guard);
	return kind;
}

static int preset_add_tiers(const struct ucm_preset *preset,
			    struct ucm_config *config, struct ucm_error *error)
{
	_cleanup_free_ enum ucm_fskind *kinds =
		calloc(preset->num_paths, sizeof(*kinds));
	int err = kinds ? 0 : ucm_error_set(error, -ENOMEM, "out of memory");

	for (unsigned i = 0; i < preset->num_paths && !err; i++)
		kinds[i] = preset_kind(config, preset->paths[i]);
	for (unsigned kind = 0; kind < UCM_FS_KINDS && !err; kind++) {
		for (unsigned i = 0; i < preset->num_paths && !err; i++) {
			if (kinds[i] == kind)
				err = preset_add_tier(config, preset->paths[i],
						      error);
		}
	}
	return err;
}

int ucm_preset_apply(const struct ucm_preset *preset, struct ucm_config *config,
		     struct ucm_error *error)
{
	static const enum ucm_placement placements[UCM_BACKENDS_POLICIES] = {
		[UCM_BACKENDS_ROUND_ROBIN] = UCM_PLACEMENT_ROUND_ROBIN,
		[UCM_BACKENDS_RANDOM] = UCM_PLACEMENT_RANDOM,
	};
	int err;

	if (!preset->given)
		return 0;
	err = preset_check(preset, config, error);
	if (!err && preset->stages & BIT(CACHE))
		err = preset_add_cache(preset, config, error);
	if (err || !(preset->stages & DISKS))
		return err;
	if (preset->policy == UCM_BACKENDS_TIERED)
		return preset_add_tiers(preset, config, error);
	if (preset->policy != UCM_BACKENDS_NONE)
		config->placement = placements[preset->policy];
	return preset_add_one_tier(preset, config, error);
}
