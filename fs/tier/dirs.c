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
						     "%s lies inside %s", b, a);
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

static int dirs_open_tiers(struct ucm_dirs *dirs,
			   const struct ucm_config *config,
			   struct ucm_error *error)
{
	int err = 0;

	dirs->tiers = calloc(config->num_tiers, sizeof(*dirs->tiers));
	if (!dirs->tiers)
		return -ENOMEM;
	for (unsigned i = 0; i < config->num_tiers && !err; i++) {
		struct ucm_tier *tier = &dirs->tiers[i];

		err = ucm_tier_open(tier, &config->tiers[i], dirs->num, config,
				    error);
		if (err)
			break;
		dirs->num_tiers++;
		for (unsigned j = 0; j < tier->num_dirs; j++) {
			dirs->tier_of[dirs->num] = tier;
			dirs->at[dirs->num++] = tier->dirs[j];
		}
		err = dirs_check_nesting(dirs, error);
	}
	return err;
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
