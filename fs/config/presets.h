/* SPDX-License-Identifier: Apache-2.0 */
/*
 * presets.h - tiers by the names that UCM's configurations have for them: a
 * pipeline of stages, directories, and a policy for these.
 *
 *   pipeline: Cache|Posix         a stage is Cache, Posix, Nfs or Ds3fs
 *   cache_size: 8G                of Cache; 1G
 *   storage_backends: /a:/b       or a list
 *   storage_policy: none          round_robin, random: one tier of these directories;
 *                                 tiered: a tier of each
 *
 * A list of stages is read as tiers by config_yaml.c. What belongs to a stage may
 * stand in a map of the stage's name (cache, posix, nfs, ds3fs). Stages but Cache
 * are the same: a directory shows by itself what it stands on.
 */
#ifndef UCM_PRESETS_H
#define UCM_PRESETS_H

#include "fs/config/config.h"

enum ucm_preset_policy {
	UCM_BACKENDS_NONE, /* and the placement is left as it is */
	UCM_BACKENDS_ROUND_ROBIN,
	UCM_BACKENDS_RANDOM,
	UCM_BACKENDS_TIERED,
	UCM_BACKENDS_POLICIES
};

/* What a file has said so far. */
struct ucm_preset {
	bool given;      /* anything of it */
	char *pipeline;  /* as given, or NULL */
	unsigned stages; /* of it, a bit for each; */
	unsigned maps;   /* and those that a map was for */
	char *cache;     /* the size, or NULL: not given */
	char **paths;
	unsigned num_paths;
	enum ucm_preset_policy policy;
};

void ucm_preset_init(struct ucm_preset *preset);
void ucm_preset_fini(struct ucm_preset *preset);

/* Is it one of these keys; is it the name of a stage, whose value is a map? */
bool ucm_preset_is_key(const char *key);
bool ucm_preset_is_stage(const char *key);

/* A key's value; of storage_backends, several paths or one of them. stage: the
 * map that it stands in, or NULL. -EINVAL, with the cause in error. */
int ucm_preset_set(struct ucm_preset *preset, const char *stage,
		   const char *key, const char *value,
		   struct ucm_error *error);
int ucm_preset_add_path(struct ucm_preset *preset, const char *path,
			struct ucm_error *error);

/* It becomes tiers of the configuration, which has none yet. tiered: fast to slow
 * by what the directories stand on, which is looked at; those of a kind in their
 * order. */
int ucm_preset_apply(const struct ucm_preset *preset, struct ucm_config *config,
		     struct ucm_error *error);

#endif
