/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - where the files of a memory tier lie ("mem@SIZE" in SOURCE).
 *
 * A memory tier is a directory on tmpfs, the medium of dir.h, in a place that
 * nobody has to name:
 *
 *   /dev/shm/ucmfs-UID/TIER-KEY
 *
 * UID is the user who runs the store, TIER the tier's name, and KEY is computed
 * from the UUIDs of all other directories of the store: the same store finds its
 * memory again after a restart of the daemon, and no other store does. A store of
 * nothing but memory is known by its mount point.
 *
 * Everybody may make names in /dev/shm. So each of the two folders must be a
 * directory of this user's that nobody else may enter; anything else that has
 * its name is refused and left as it is.
 */
#ifndef UCM_MEMORY_H
#define UCM_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include <ucm/error.h>

#include "fs/config/config.h"

#define UCM_MEMORY_PATH_MAX 256

/* The tmpfs: /dev/shm. Unit tests set it. */
extern const char *ucm_memory_root;

/* What the other directories of a store are, in whatever order they come. */
struct ucm_memory_key {
	uint8_t sum[32];
	unsigned num;
};

void ucm_memory_key_add(struct ucm_memory_key *key, const uint8_t uuid[16]);

/*
 * The place of a memory tier of the store with that key; an empty one stands for
 * the configuration's mount point. make: it is made if it is not there, else
 * that is -ENOENT. -EPERM: what is there is not ours; -EINVAL: no tmpfs, or
 * neither another directory nor a mount point. error says which.
 */
int ucm_memory_place(const struct ucm_memory_key *key,
		     const struct ucm_config *config, const char *tier,
		     bool make, char out[UCM_MEMORY_PATH_MAX],
		     struct ucm_error *error);

/* The same by the configuration alone: the UUIDs are read from the directories,
 * which must have been used before. Makes nothing. */
int ucm_memory_find(const struct ucm_config *config, const char *tier,
		    char out[UCM_MEMORY_PATH_MAX], struct ucm_error *error);

/* Open the medium of a memory tier, in its place, which is made. readonly: by
 * somebody who reads beside the daemon, or before the first one. Otherwise its
 * size is compared with what there is: -EINVAL if it can never fit. */
int ucm_memory_open(const struct ucm_memory_key *key,
		    const struct ucm_config *config,
		    const struct ucm_tier_config *tier, bool readonly,
		    struct ucm_medium **out, struct ucm_error *error);

/* fn for each place of this user's that no store uses now. */
void ucm_memory_each_left(void (*fn)(void *arg, const char *path), void *arg);

#endif
