/* SPDX-License-Identifier: Apache-2.0 */
/* namespace.c - the table of spaces, and the one geometry of each. */
#include <config.h>

#include "fs/store/namespace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/align.h"
#include "common/error.h"

static struct ucm_space *new_space(const char *name, unsigned num_dirs)
{
	struct ucm_space *space = calloc(1, sizeof(*space));

	if (!space)
		return NULL;
	space->scanned = calloc(num_dirs ? 4 * (size_t)num_dirs : 1,
				sizeof(*space->scanned));
	if (!space->scanned) {
		free(space);
		return NULL;
	}
	pthread_mutex_init(&space->lock, NULL);
	snprintf(space->name, sizeof(space->name), "%s", name);
	ucm_tree_folder(name, space->folder);
	return space;
}

static void free_space(struct ucm_space *space)
{
	pthread_mutex_destroy(&space->lock);
	free(space->scanned);
	free(atomic_load(&space->fresh));
	free(space);
}

static int append(struct ucm_namespace *names, struct ucm_space *space)
{
	if (names->num >= UCM_MAX_SPACES)
		return -ENOSPC;
	space->number = (uint16_t)names->num;
	names->spaces[names->num++] = space;
	return 0;
}

int ucm_namespace_init(struct ucm_namespace *names, unsigned num_dirs)
{
	struct ucm_space *space;

	*names = (struct ucm_namespace){ .num_dirs = num_dirs };
	/* never moved, so that an entry may be read without the lock */
	names->spaces = calloc(UCM_MAX_SPACES, sizeof(*names->spaces));
	space = names->spaces ? new_space("", num_dirs) : NULL;
	if (!space) {
		free(names->spaces);
		names->spaces = NULL;
		return -ENOMEM;
	}
	pthread_rwlock_init(&names->lock, NULL);
	return append(names, space);
}

void ucm_namespace_fini(struct ucm_namespace *names)
{
	for (unsigned i = 0; i < names->num; i++)
		free_space(names->spaces[i]);
	free(names->spaces);
	pthread_rwlock_destroy(&names->lock);
}

static struct ucm_space *find_locked(struct ucm_namespace *names,
				     const char *name)
{
	for (unsigned i = 0; i < names->num; i++) {
		struct ucm_space *space = names->spaces[i];

		if (!atomic_load(&space->removed) && !strcmp(space->name, name))
			return space;
	}
	return NULL;
}

struct ucm_space *ucm_namespace_find(struct ucm_namespace *names,
				     const char *name)
{
	struct ucm_space *space;

	pthread_rwlock_rdlock(&names->lock);
	space = find_locked(names, name);
	pthread_rwlock_unlock(&names->lock);
	return space;
}

struct ucm_space *ucm_namespace_get(struct ucm_namespace *names,
				    unsigned number)
{
	struct ucm_space *space = NULL;

	pthread_rwlock_rdlock(&names->lock);
	if (number < names->num && !atomic_load(&names->spaces[number]->removed))
		space = names->spaces[number];
	pthread_rwlock_unlock(&names->lock);
	return space;
}

int ucm_namespace_add(struct ucm_namespace *names, const char *name,
		      struct ucm_space **out)
{
	struct ucm_space *space;
	int err;

	if (strlen(name) > UCM_TREE_SPACE_MAX)
		return -ENAMETOOLONG;
	if (!ucm_tree_space_valid(name))
		return -EINVAL;
	space = new_space(name, names->num_dirs);
	if (!space)
		return -ENOMEM;
	pthread_rwlock_wrlock(&names->lock);
	err = find_locked(names, name) ? -EEXIST : append(names, space);
	pthread_rwlock_unlock(&names->lock);
	if (err) {
		free_space(space);
		return err;
	}
	*out = space;
	return 0;
}

unsigned ucm_namespace_made_by(struct ucm_namespace *names, uid_t uid)
{
	unsigned made = 0;

	pthread_rwlock_rdlock(&names->lock);
	for (unsigned i = 1; i < names->num; i++)
		made += atomic_load(&names->spaces[i]->maker) == uid;
	pthread_rwlock_unlock(&names->lock);
	return made;
}

void ucm_namespace_remove(struct ucm_namespace *names, struct ucm_space *space)
{
	pthread_rwlock_wrlock(&names->lock);
	atomic_store(&space->removed, true);
	pthread_rwlock_unlock(&names->lock);
}

/* A bare block does not say heads and order: a fuller one completes it. */
static void learn(struct ucm_space *space, const struct ucm_block *block)
{
	if (!space->has_geometry || !space->geometry.num_kv_heads)
		space->geometry = block->geometry;
	space->has_geometry = true;
	if (block->flags & UCM_BLOCK_HAS_SPACE && !space->has_identity) {
		memcpy(space->space_id, block->space_id,
		       sizeof(space->space_id));
		space->has_identity = true;
	}
}

static bool is_empty(const struct ucm_space *space)
{
	return !space->pending && !atomic_load(&space->blocks);
}

static enum ucm_fault fits_locked(struct ucm_space *space,
				  const struct ucm_block *block)
{
	if (space->has_identity && (block->flags & UCM_BLOCK_HAS_SPACE) &&
	    memcmp(block->space_id, space->space_id, sizeof(space->space_id)))
		return UCM_FAULT_SPACE;
	if (space->has_geometry &&
	    !ucm_geometry_equal(&space->geometry, &block->geometry))
		return UCM_FAULT_GEOMETRY;
	return UCM_FAULT_NONE;
}

static void name_both(const struct ucm_geometry *mine,
		      const struct ucm_geometry *its, struct ucm_error *why)
{
	char a[160], b[160];

	ucm_geometry_text(mine, a, sizeof(a));
	ucm_geometry_text(its, b, sizeof(b));
	ucm_error_set(why, -EINVAL, "the space has %s; the block has %s", a, b);
}

enum ucm_fault ucm_space_admit(struct ucm_space *space,
			       const struct ucm_block *block,
			       struct ucm_error *why)
{
	enum ucm_fault fault;

	pthread_mutex_lock(&space->lock);
	if (!space->has_manifest && is_empty(space)) /* again: a new start */
		space->has_geometry = space->has_identity = false;
	fault = space->closing ? UCM_FAULT_SPACE : fits_locked(space, block);
	if (!fault) {
		learn(space, block);
		space->pending++;
	} else if (space->closing) {
		ucm_error_set(why, -EINVAL, "the space is being removed");
	} else if (fault == UCM_FAULT_GEOMETRY) {
		name_both(&space->geometry, &block->geometry, why);
	} else {
		ucm_error_set(why, -EINVAL, "%s", ucm_fault_text(fault));
	}
	pthread_mutex_unlock(&space->lock);
	return fault;
}

void ucm_space_settled(struct ucm_space *space)
{
	pthread_mutex_lock(&space->lock);
	space->pending--;
	pthread_mutex_unlock(&space->lock);
}

enum ucm_fault ucm_space_fits(struct ucm_space *space,
			      const struct ucm_block *block, bool teaches)
{
	enum ucm_fault fault;

	pthread_mutex_lock(&space->lock);
	fault = fits_locked(space, block);
	if (!fault && teaches)
		learn(space, block);
	pthread_mutex_unlock(&space->lock);
	return fault;
}

/* The blocks that are there must go on to fit. */
static int check_manifest(const struct ucm_space *space,
			  const struct ucm_manifest *manifest,
			  struct ucm_error *error)
{
	if (is_empty(space))
		return 0;
	if (space->has_geometry &&
	    !ucm_geometry_equal(&space->geometry, &manifest->geometry)) {
		name_both(&manifest->geometry, &space->geometry, error);
		return -EINVAL;
	}
	if (space->has_identity && memcmp(space->space_id, manifest->space_id,
					  sizeof(space->space_id)))
		return ucm_error_set(error, -EINVAL,
				     "the space has blocks of another "
				     "space_id; remove them first");
	return 0;
}

int ucm_space_set_manifest(struct ucm_space *space,
			   const struct ucm_manifest *manifest,
			   struct ucm_error *error)
{
	int err;

	pthread_mutex_lock(&space->lock);
	err = check_manifest(space, manifest, error);
	if (!err) {
		space->geometry = manifest->geometry;
		memcpy(space->space_id, manifest->space_id,
		       sizeof(space->space_id));
		space->has_geometry = space->has_identity =
			space->has_manifest = true;
	}
	pthread_mutex_unlock(&space->lock);
	return err;
}

void ucm_space_drop_manifest(struct ucm_space *space)
{
	pthread_mutex_lock(&space->lock);
	space->has_manifest = space->has_identity = false;
	pthread_mutex_unlock(&space->lock);
}

uint64_t ucm_geometry_file_bytes(const struct ucm_geometry *geometry)
{
	return ucm_block_data_offset(geometry->num_layers) +
	       ucm_round_up(ucm_block_payload_bytes(geometry), UCM_BLOCK_PAGE);
}

uint64_t ucm_space_block_bytes(struct ucm_space *space)
{
	uint64_t bytes;

	pthread_mutex_lock(&space->lock);
	/* of an empty one the geometry is that of the blocks it had */
	bytes = space->has_geometry ? ucm_geometry_file_bytes(&space->geometry)
				    : 0;
	pthread_mutex_unlock(&space->lock);
	return bytes;
}

bool ucm_space_has_geometry(struct ucm_space *space)
{
	bool has;

	pthread_mutex_lock(&space->lock);
	has = space->has_geometry && (space->has_manifest || !is_empty(space));
	pthread_mutex_unlock(&space->lock);
	return has;
}

bool ucm_space_is_scanned(const struct ucm_space *space, unsigned dir,
			  unsigned bucket)
{
	return atomic_load(&space->scanned[4 * dir + bucket / 64]) >>
		       bucket % 64 & 1;
}

void ucm_space_set_scanned(struct ucm_space *space, unsigned dir,
			   unsigned bucket)
{
	atomic_fetch_or(&space->scanned[4 * dir + bucket / 64],
			UINT64_C(1) << bucket % 64);
}

void ucm_space_clear_scanned(struct ucm_space *space, unsigned dir,
			     unsigned bucket)
{
	atomic_fetch_and(&space->scanned[4 * dir + bucket / 64],
			 ~(UINT64_C(1) << bucket % 64));
}
