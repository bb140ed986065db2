/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.h - a daemon that is asked about blocks, by its mount, its socket or
 * its directories.
 *
 * The one place of ucm(1) that does so: errors are reported in words. Calls return
 * 0, or -errno (reported), unless it says otherwise; one thread.
 */
#ifndef UCM_TOOLS_LIB_TARGET_H
#define UCM_TOOLS_LIB_TARGET_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include <ucm/blocks.h>

#include "tools/lib/ids.h"
#include "tools/lib/progress.h"

#define UCM_TARGET_TIERS 256

struct ucm_target {
	char *mount;
	struct ucm_blocks *blocks;
	struct ucm_client *client;
	char *tiers[UCM_TARGET_TIERS]; /* names, as far as they are known */
	unsigned turn; /* which of several mounts it is, from 1 on; 0: the only */
};

/* mount: NULL for the only one that there is. */
int ucm_target_open(const char *mount, struct ucm_target *out);
void ucm_target_close(struct ucm_target *target);

/* Open, run, close: the exit status of run, or a failure. */
int ucm_target_run(const char *mount, int (*run)(struct ucm_target *target));

/* The same for the mount that is named or, if none is, for all that there are,
 * one after the other. One that fails does not keep the others from it. */
int ucm_target_run_each(const char *mount,
			int (*run)(struct ucm_target *target));

/* A line that says which mount the text below is about, if there are several. */
void ucm_target_title(const struct ucm_target *target);

/* One of the calls of <ucm/blocks.h> that have a result for each block. */
typedef int ucm_target_call(struct ucm_blocks *blocks, const char *space,
			    const struct ucm_id *ids, size_t num,
			    int32_t *results);

/* Make it for any number of blocks of a space (NULL or "": the default one);
 * progress may be NULL. */
int ucm_target_batch(const struct ucm_target *target, ucm_target_call *call,
		     const char *space, const struct ucm_id *ids, size_t num,
		     int32_t *results, struct ucm_progress *progress);

/* Look around: nothing is counted. */
int ucm_target_locate(const struct ucm_target *target, const char *space,
		      const struct ucm_id *ids, size_t num,
		      struct ucm_control_place *places);

/* -EPERM and -ENOENT (there is no such block) are not reported. */
int ucm_target_path(const struct ucm_target *target, const char *space,
		    const struct ucm_id *id, char path[UCM_BLOCKS_PATH_MAX]);

/* The blocks of a bucket: what ids had is replaced. */
int ucm_target_ids(const struct ucm_target *target, const char *space,
		   unsigned bucket, struct ucm_ids *ids);

int ucm_target_statistics(const struct ucm_target *target,
			  struct ucm_control_statistics *out);

/* A mount's stats.json; to be given back by json_decref(). 0, -EACCES (not
 * reported: it is for root and the owner) or -errno (reported). */
int ucm_target_stats(const char *mount, json_t **out);

/* The directories of all tiers in that, as an array; to be given back as well. */
json_t *ucm_target_directories(const json_t *stats);

/* A tier's name; "tier2" if that is not known. Valid until close. */
const char *ucm_target_tier(struct ucm_target *target, unsigned number);

/* A call's error in words: what an operator can do about it. */
const char *ucm_target_words(int err);

#endif
