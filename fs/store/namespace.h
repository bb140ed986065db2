/* SPDX-License-Identifier: Apache-2.0 */
/*
 * namespace.h - the spaces: which there are, and what their blocks look like.
 *
 * Space 0 is the default one ("blocks/"). A space's struct lives until the
 * table is freed, also after its removal, so that a pointer is always good;
 * removed says that its name is gone. Knows no files.
 */
#ifndef UCM_NAMESPACE_H
#define UCM_NAMESPACE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <ucm/block.h>

#include "fs/block/manifest.h"
#include "hashing/tree.h"

#define UCM_MAX_SPACES 65535

struct ucm_quota;
struct ucm_fresh;

struct ucm_space {
	uint16_t number;
	char name[UCM_TREE_SPACE_MAX + 1];       /* "" for the default one */
	char folder[UCM_TREE_FOLDER_MAX];        /* "blocks", "spaces/NAME" */
	_Atomic bool removed;
	_Atomic uid_t maker; /* who made it, or owned it at the start */
	_Atomic uint64_t blocks; /* in the index */
	/* What they take on disk, each once, and what is promised to files that
	 * are being written (quota.h). */
	_Atomic uint64_t used, writing;
	_Atomic uint64_t own_quota; /* 0: that of the configuration, if any */
	/* Set once, by the first quota that it has; the store's. */
	struct ucm_quota *_Atomic quota;
	/* One bit for each bucket of each directory: 4 words a directory. */
	_Atomic uint64_t *scanned;
	/* When its buckets in shared directories were looked at; of find/. */
	struct ucm_fresh *_Atomic fresh;

	pthread_mutex_t lock; /* guards the rest */
	uid_t uid;
	gid_t gid;
	bool is_private; /* 0700, its blocks 0600 */
	bool has_geometry;
	bool has_identity; /* space_id, from space.json or the first block */
	bool has_manifest;
	bool closing; /* its folders are being removed: no new blocks */
	unsigned pending; /* commits admitted but not yet in the index */
	struct ucm_geometry geometry;
	uint8_t space_id[32];
};

struct ucm_namespace {
	pthread_rwlock_t lock;
	struct ucm_space **spaces;
	unsigned num;
	unsigned num_dirs;
};

int ucm_namespace_init(struct ucm_namespace *names, unsigned num_dirs);
void ucm_namespace_fini(struct ucm_namespace *names);

/* Nothing for others: then nothing for anybody but the owner. */
static inline bool ucm_space_mode_is_private(mode_t mode)
{
	return !(mode & 07);
}

/* NULL if there is none (any more). */
struct ucm_space *ucm_namespace_find(struct ucm_namespace *names,
				     const char *name);
struct ucm_space *ucm_namespace_get(struct ucm_namespace *names,
				    unsigned number);

/* -EEXIST, -EINVAL (name), -ENAMETOOLONG, -ENOSPC (too many), -ENOMEM. */
int ucm_namespace_add(struct ucm_namespace *names, const char *name,
		      struct ucm_space **out);
/* How many spaces has this user made? Removed ones are counted: their numbers,
 * of which there are UCM_MAX_SPACES, are never used again. */
unsigned ucm_namespace_made_by(struct ucm_namespace *names, uid_t uid);

void ucm_namespace_remove(struct ucm_namespace *names,
			  struct ucm_space *space);

/*
 * May this block be committed here? The first block of a space without a
 * manifest fixes its geometry. 0: yes, and ucm_space_settled() must follow
 * when the commit has ended; else the fault, and a text that names both
 * geometries.
 */
enum ucm_fault ucm_space_admit(struct ucm_space *space,
			       const struct ucm_block *block,
			       struct ucm_error *why);
void ucm_space_settled(struct ucm_space *space);

/* The same question about a block that is there already; changes nothing but,
 * if it may teach, a geometry that nothing has fixed yet. */
enum ucm_fault ucm_space_fits(struct ucm_space *space,
			      const struct ucm_block *block, bool teaches);

/* -EINVAL, in words, if blocks that are there would not fit. */
int ucm_space_set_manifest(struct ucm_space *space,
			   const struct ucm_manifest *manifest,
			   struct ucm_error *error);

/* It was not to be: the blocks that are there decide again. */
void ucm_space_drop_manifest(struct ucm_space *space);

/* Size of block files of a geometry in the paged form. */
uint64_t ucm_geometry_file_bytes(const struct ucm_geometry *geometry);

/* The same of the space's; of an empty one, what they had; 0 if not known yet. */
uint64_t ucm_space_block_bytes(struct ucm_space *space);
bool ucm_space_has_geometry(struct ucm_space *space);

/* Has this bucket of this directory been scanned? */
bool ucm_space_is_scanned(const struct ucm_space *space, unsigned dir,
			  unsigned bucket);
void ucm_space_set_scanned(struct ucm_space *space, unsigned dir,
			   unsigned bucket);
void ucm_space_clear_scanned(struct ucm_space *space, unsigned dir,
			     unsigned bucket);

#endif
