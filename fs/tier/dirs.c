/* SPDX-License-Identifier: Apache-2.0 */
/* dirs.c - opening the directories of all tiers; see dirs.h. */
#include <config.h>

#include "fs/tier/dirs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/error.h"
#include "common/osfile.h"
#include "common/osguard.h"
#include "fs/tier/stats.h"

static int dirs_check_nesting(const struct ucm_dirs *dirs,
			      struct ucm_error *error)
{
	for (unsigned i = 0; i < dirs->num; i++) {
		for (unsigned j = 0; j < dirs->num; j++) {
			const char *a = dirs->at[i]->path;
			const char *b = dirs->at[j]->path;
			size_t len = strlen(a);

			if (i != j && !strncmp(a, b, len) && b[len] == '/')
				return ucm_error_set(error, -EINVAL,
						     "%s is inside %s", b, a);
		}
	}
	return 0;
}

/* It may be a file server's that does not answer. */
static int dirs_look_at(const struct ucm_config *config, const char *path,
			struct stat *out)
{
	unsigned s = config->deadline_s == UCM_DEADLINE_AUTO
			     ? UCM_DEADLINE_NETWORK
			     : config->deadline_s;
	struct ucm_guard *guard = NULL;
	int err = s ? ucm_guard_new(path, s * 1000, &guard) : 0;

	if (!err)
		err = ucm_os_stat_root(guard, path, out);
	ucm_guard_close(guard);
	return err;
}

/* Before anything is locked, so that it is not "in use by another ucmfs". */
static int dirs_check_twice(const struct ucm_config *config,
			    struct ucm_error *error)
{
	struct stat seen[UCM_MAX_DIRS];
	unsigned num = 0;

	for (unsigned i = 0; i < config->num_tiers; i++) {
		for (unsigned j = 0; j < config->tiers[i].num_dirs; j++) {
			const char *path = config->tiers[i].dirs[j];

			if (config->tiers[i].memory)
				continue; /* it has no path yet */
			if (dirs_look_at(config, path, &seen[num]))
				continue; /* opening it will say why */
			for (unsigned k = 0; k < num; k++) {
				if (seen[k].st_dev != seen[num].st_dev ||
				    seen[k].st_ino != seen[num].st_ino)
					continue;
				return ucm_error_set(error, -EINVAL,
						     "%s: given twice", path);
			}
			num++;
		}
	}
	return 0;
}

static int dirs_open_tier(struct ucm_dirs *dirs, unsigned number,
			  unsigned first, const struct ucm_config *config,
			  struct ucm_memory_key *key, struct ucm_error *error)
{
	const struct ucm_tier_config *from = &config->tiers[number];
	struct ucm_tier *tier = &dirs->tiers[number];
	int err = from->memory ? ucm_tier_open_memory(tier, from, first, config,
						      key, error)
			       : ucm_tier_open(tier, from, first, config,
					       error);

	if (err)
		return err;
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		dirs->tier_of[first + i] = tier;
		dirs->at[first + i] = tier->dirs[i];
		if (!from->memory)
			ucm_memory_key_add(key, tier->uuids[i]);
	}
	return 0;
}

/* Memory last: the others say whose it is. */
static int dirs_open_tiers(struct ucm_dirs *dirs,
			   const struct ucm_config *config,
			   struct ucm_error *error)
{
	struct ucm_memory_key key = { .num = 0 };
	int err = 0;

	dirs->tiers = calloc(config->num_tiers, sizeof(*dirs->tiers));
	if (!dirs->tiers)
		return -ENOMEM;
	dirs->num_tiers = config->num_tiers;
	for (int memory = 0; memory < 2; memory++) {
		dirs->num = 0;
		for (unsigned i = 0; i < config->num_tiers && !err; i++) {
			if (config->tiers[i].memory == memory)
				err = dirs_open_tier(dirs, i, dirs->num,
						     config, &key, error);
			dirs->num += config->tiers[i].num_dirs;
		}
	}
	return err ? err : dirs_check_nesting(dirs, error);
}

int ucm_dirs_open(struct ucm_dirs *dirs, const struct ucm_config *config,
		  struct ucm_error *error)
{
	int err;

	*dirs = (struct ucm_dirs){ .placement = config->placement };
	err = dirs_check_twice(config, error);
	if (!err)
		err = dirs_open_tiers(dirs, config, error);
	if (err)
		ucm_dirs_close(dirs);
	return err;
}

void ucm_dirs_close(struct ucm_dirs *dirs)
{
	for (unsigned i = 0; i < dirs->num_tiers; i++)
		ucm_tier_close(&dirs->tiers[i]);
	free(dirs->tiers);
	*dirs = (struct ucm_dirs){ 0 };
}

void ucm_dirs_count_error(struct ucm_dirs *dirs, unsigned dir, int err)
{
	ucm_count(&dirs->io_errors);
	ucm_count_errno(dirs->tier_of[dir]->stats.errors, err);
}
