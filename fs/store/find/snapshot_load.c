/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_load.c - from what a clean end has left into the index.
 *
 * A start takes one section (a bucket, in all spaces) of a directory's snapshot
 * at a time into the index, when the scan or a listing comes to it. Where the
 * bucket is as it was, that is all; where it is not, its names decide which
 * records hold, and the scan reads the headers of the names that are new. So
 * the scan's tasks, its progress and what "complete" means stay the same.
 *
 * After an unclean stop there is no snapshot. One could tell what has not
 * changed since, but what is in doubt then shows in each file's own ctime, so
 * that every file must be looked at in any case.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "fs/index/snapshot.h"
#include "hashing/tree.h"

#define NO_SPACE UINT32_MAX

struct ucm_snapshot_load {
	struct ucm_file note; /* the snapshot reads it */
	struct ucm_snapshot file;
	uint32_t *space_of; /* its number now, by its number in the file */
	pthread_mutex_t locks[UCM_SNAPSHOT_SECTIONS];
	_Atomic bool done[UCM_SNAPSHOT_SECTIONS];
	_Atomic bool bad;
	/* by number of the space now: buckets that were not listed */
	_Atomic uint64_t (*trusted)[4];
};

static void snapshot_refuse(const struct ucm_medium *medium, const char *why)
{
	ucm_warning("%s/" UCM_TREE_OWN "/" UCM_SNAPSHOT_NAME
		    ": %s: not used; all names "
		    "and headers are read instead",
		    medium->path, why);
}

/* What its blocks look like must be what they looked like: a manifest may have
 * been changed by hand. */
static bool snapshot_fits(struct ucm_space *space,
			  const struct ucm_snapshot_space *then)
{
	struct ucm_block block = {
		.geometry = {
			.num_layers = then->num_layers,
			.block_size = then->block_size,
			.dtype = then->dtype,
			.k_bytes = then->k_bytes,
			.v_bytes = then->v_bytes,
			.num_kv_heads = then->num_kv_heads,
			.head_dim = then->head_dim,
			.order = then->order,
		},
	};

	if (!(then->flags & UCM_SNAPSHOT_HAS_GEOMETRY))
		return true;
	if (then->flags & UCM_SNAPSHOT_HAS_IDENTITY) {
		block.flags = UCM_BLOCK_HAS_SPACE;
		memcpy(block.space_id, then->space_id, sizeof(block.space_id));
	}
	return !ucm_space_fits(space, &block, true);
}

static uint32_t find_space(struct ucm_store *store,
			   const struct ucm_snapshot_space *then)
{
	struct ucm_space *space = *then->name
		? ucm_namespace_find(&store->names, then->name)
		: store->names.spaces[0];

	return space && snapshot_fits(space, then) ? space->number : NO_SPACE;
}

static void recall_end_file(struct ucm_snapshot_load *recall)
{
	ucm_snapshot_close(&recall->file);
	ucm_file_close(&recall->note);
}

static void recall_free(struct ucm_snapshot_load *recall)
{
	recall_end_file(recall);
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++)
		pthread_mutex_destroy(&recall->locks[i]);
	free(recall->space_of);
	free(recall->trusted);
	free(recall);
}

static int recall_open_file(struct ucm_snapshot_load *recall,
			    struct ucm_medium *medium, const char **why)
{
	struct ucm_bytes bytes;
	struct stat st;
	int err = ucm_medium_open_note(medium, UCM_SNAPSHOT_NAME, UCM_OPEN_READ,
				       &recall->note);

	if (!err)
		err = ucm_file_stat(&recall->note, &st);
	*why = strerror(-err);
	if (err)
		return err;
	bytes = ucm_file_bytes(&recall->note);
	return ucm_snapshot_open(&bytes, (uint64_t)st.st_size, medium->uuid,
				 medium->recovery.snapshot, &recall->file, why);
}

static int recall_find_spaces(struct ucm_snapshot_load *recall,
			      struct ucm_store *store)
{
	const struct ucm_snapshot *file = &recall->file;

	recall->space_of = calloc(file->head.num_spaces + 1,
				  sizeof(*recall->space_of));
	recall->trusted = calloc(store->scan.spaces, sizeof(*recall->trusted));
	if (!recall->space_of || !recall->trusted)
		return -ENOMEM;
	for (uint32_t i = 0; i < file->head.num_spaces; i++)
		recall->space_of[i] = find_space(store, file->spaces[i]);
	return 0;
}

static void open_snapshot(struct ucm_store *store, unsigned dir)
{
	struct ucm_snapshot_load *recall = calloc(1, sizeof(*recall));
	const char *why;

	if (!recall)
		return;
	recall->note = UCM_NO_FILE;
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++)
		pthread_mutex_init(&recall->locks[i], NULL);
	if (recall_open_file(recall, store->dirs.at[dir], &why)) {
		snapshot_refuse(store->dirs.at[dir], why);
		recall_free(recall);
	} else if (recall_find_spaces(recall, store)) {
		recall_free(recall);
	} else {
		store->keepers[dir].snapshot = recall;
	}
}

void ucm_snapshots_open(struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		const struct ucm_recovery *state =
			&store->dirs.at[dir]->recovery;

		if (!state->unclean && state->snapshot)
			open_snapshot(store, dir);
	}
}

/* What is to be done with a space's records of the bucket in hand. */
struct verdict {
	enum { LEAVE, TRUST, COMPARE } what;
	struct ucm_space *space;
	struct ucm_listed listed; /* to compare with */
};

/* The scan reports a bucket that cannot be read. */
static void snapshot_judge(struct ucm_store *store, unsigned dir,
			   unsigned bucket,
			   const struct ucm_snapshot_stamp *stamp,
			   struct verdict *verdict)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	const char *folder = verdict->space->folder;
	_cleanup_free_ char *names = NULL;
	struct stat st;

	if (ucm_store_shows_changes(medium) &&
	    !ucm_medium_stamp(medium, folder, bucket, &st) &&
	    ucm_snapshot_stamp_equal(stamp, &st))
		verdict->what = TRUST;
	else if (!ucm_medium_list(medium, folder, bucket, &names) &&
		 !ucm_listed_read(&verdict->listed, names))
		verdict->what = COMPARE;
}

static void snapshot_judge_all(struct ucm_store *store, unsigned dir,
			       unsigned bucket, struct verdict *verdicts)
{
	const struct ucm_snapshot_load *recall = store->keepers[dir].snapshot;

	for (uint32_t i = 0; i < recall->file.head.num_spaces; i++) {
		const struct ucm_snapshot_stamp *stamp =
			ucm_snapshot_bucket(recall->file.spaces[i], bucket);

		if (!stamp || recall->space_of[i] == NO_SPACE)
			continue;
		verdicts[i].space = ucm_namespace_get(&store->names,
						      recall->space_of[i]);
		if (verdicts[i].space &&
		    !ucm_space_is_scanned(verdicts[i].space, dir, bucket))
			snapshot_judge(store, dir, bucket, stamp, &verdicts[i]);
	}
}

static bool snapshot_holds(const struct verdict *verdict,
			   const struct ucm_id *id)
{
	return verdict->what == TRUST ||
	       (verdict->what == COMPARE &&
		ucm_listed_has(&verdict->listed, id));
}

static int snapshot_admit(struct ucm_store *store, struct ucm_space *space,
			  unsigned dir,
			  const struct ucm_snapshot_record *record)
{
	const struct ucm_entry entry = {
		.id = record->id,
		.space = space->number,
		.dir = (uint8_t)dir,
		.size = record->size,
		.blocks = record->blocks,
		.mtime_ns = record->mtime_ns,
		.atime_s = record->atime_s,
		.uses = record->uses & 0xffffff,
		.wanted = (uint8_t)(record->uses >> 24),
		.flags = UCM_ENTRY_UNREAD |
			 (record->flags & UCM_SNAPSHOT_DUPLICATE
				  ? UCM_ENTRY_DUPLICATE : 0),
	};
	const struct ucm_id *parent =
		record->flags & UCM_SNAPSHOT_PARENT ? &record->parent : NULL;
	int err = ucm_store_admit(store, space, &entry, parent);

	return err < 0 ? err : 0;
}

/* One that cannot be taken in leaves its space's bucket to the scan. */
static void snapshot_admit_all(struct ucm_store *store, unsigned dir,
			       const struct ucm_snapshot_record *records,
			       uint64_t num, struct verdict *verdicts)
{
	for (uint64_t i = 0; i < num; i++) {
		struct verdict *verdict = &verdicts[records[i].space];

		if (snapshot_holds(verdict, &records[i].id) &&
		    snapshot_admit(store, verdict->space, dir, &records[i]))
			verdict->what = LEAVE;
	}
}

static void snapshot_trust(struct ucm_snapshot_load *recall,
			   const struct verdict *verdict, unsigned dir,
			   unsigned bucket)
{
	if (verdict->what != TRUST)
		return;
	atomic_fetch_or(&recall->trusted[verdict->space->number][bucket / 64],
			UINT64_C(1) << bucket % 64);
	ucm_space_set_scanned(verdict->space, dir, bucket);
}

static void load_section(struct ucm_store *store, unsigned dir, unsigned bucket)
{
	struct ucm_snapshot_load *recall = store->keepers[dir].snapshot;
	_cleanup_free_ struct ucm_snapshot_record *records = NULL;
	uint32_t num_spaces = recall->file.head.num_spaces;
	struct verdict *verdicts;
	const char *why;
	uint64_t num;

	if (ucm_snapshot_read(&recall->file, bucket, &records, &num, &why)) {
		if (!atomic_exchange(&recall->bad, true))
			snapshot_refuse(store->dirs.at[dir], why);
		return;
	}
	verdicts = calloc(num_spaces + 1, sizeof(*verdicts));
	if (!verdicts)
		return;
	snapshot_judge_all(store, dir, bucket, verdicts);
	snapshot_admit_all(store, dir, records, num, verdicts);
	for (uint32_t i = 0; i < num_spaces; i++) {
		snapshot_trust(recall, &verdicts[i], dir, bucket);
		free(verdicts[i].listed.ids);
	}
	free(verdicts);
}

void ucm_snapshots_load(struct ucm_store *store, unsigned dir, unsigned bucket)
{
	struct ucm_snapshot_load *recall = store->keepers[dir].snapshot;

	if (!recall || atomic_load(&recall->done[bucket]))
		return;
	pthread_mutex_lock(&recall->locks[bucket]);
	if (!atomic_load(&recall->done[bucket]) && !atomic_load(&recall->bad))
		load_section(store, dir, bucket);
	atomic_store(&recall->done[bucket], true);
	pthread_mutex_unlock(&recall->locks[bucket]);
}

bool ucm_snapshots_trusted(struct ucm_store *store,
			   const struct ucm_space *space, unsigned dir,
			   unsigned bucket)
{
	const struct ucm_snapshot_load *recall = store->keepers[dir].snapshot;

	return recall &&
	       recall->trusted[space->number][bucket / 64] >> bucket % 64 & 1;
}

/* Others may still ask whether there is something to load. */
static void end_loading(struct ucm_snapshot_load *recall)
{
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++) {
		pthread_mutex_lock(&recall->locks[i]);
		atomic_store(&recall->done[i], true);
		pthread_mutex_unlock(&recall->locks[i]);
	}
	recall_end_file(recall);
}

void ucm_snapshots_close(struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (store->keepers[dir].snapshot)
			end_loading(store->keepers[dir].snapshot);
	}
}

void ucm_snapshots_free(struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (store->keepers[dir].snapshot)
			recall_free(store->keepers[dir].snapshot);
	}
}
