/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_save.c - from the index to a directory's snapshot, at a clean end.
 *
 * Each directory's thread walks the index and writes a snapshot of what lies in
 * its directory (snapshot.h), when nobody uses the store any more. The next
 * start takes it in again (snapshot_load.c).
 */
#include <config.h>

#include "fs/store/start/start.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "fs/index/snapshot.h"
#include "hashing/tree.h"

struct saving {
	struct ucm_store *store;
	unsigned dir;
	struct ucm_file note;
	struct ucm_snapshot_writer writer;
	uint16_t *number_of; /* in the file, by the space's number */
};

static bool is_saved(const struct ucm_space *space)
{
	return !atomic_load(&space->removed);
}

static void number_spaces(struct saving *saving)
{
	const struct ucm_namespace *names = &saving->store->names;
	uint16_t number = 0;

	for (unsigned i = 0; i < names->num; i++) {
		saving->number_of[i] = number;
		number += is_saved(names->spaces[i]);
	}
}

static void snapshot_put_entry(struct saving *saving,
			       const struct ucm_entry *entry, ucm_ref ref)
{
	struct ucm_snapshot_record record = {
		.id = entry->id,
		.size = entry->size,
		.mtime_ns = entry->mtime_ns,
		.blocks = entry->blocks,
		.atime_s = entry->atime_s,
		.uses = entry->uses | (uint32_t)entry->wanted << 24,
		.space = saving->number_of[entry->space],
	};

	if (entry->flags & UCM_ENTRY_DUPLICATE)
		record.flags |= UCM_SNAPSHOT_DUPLICATE;
	if (ucm_index_parent(saving->store->index, ref, &record.parent))
		record.flags |= UCM_SNAPSHOT_PARENT;
	ucm_snapshot_put(&saving->writer, ucm_tree_bucket(&entry->id), &record);
}

static void snapshot_save_entry(struct saving *saving,
				const struct ucm_entry *entry, ucm_ref ref)
{
	struct ucm_space *space = saving->store->names.spaces[entry->space];
	bool mine = ucm_entry_has_place(entry, saving->dir);

	/* of a third place nobody says that it is one; and what is in doubt is
	 * not for the next start to trust */
	if (mine ? entry->flags & UCM_ENTRY_DOUBT
		 : ucm_entry_has_dir(entry, saving->dir))
		ucm_space_clear_scanned(space, saving->dir,
					ucm_tree_bucket(&entry->id));
	else if (mine && is_saved(space))
		snapshot_put_entry(saving, entry, ref);
}

static void snapshot_save_entries(struct saving *saving)
{
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++) {
		struct ucm_entry entry;
		uint32_t cursor = 0;
		ucm_ref ref;

		while (ucm_index_next(saving->store->index, UCM_ANY_SPACE,
				      bucket, &cursor, &entry, &ref))
			snapshot_save_entry(saving, &entry, ref);
	}
}

static void snapshot_describe(struct ucm_space *space,
			      struct ucm_snapshot_space *out)
{
	const struct ucm_geometry *g = &space->geometry;

	*out = (struct ucm_snapshot_space){
		.num_layers = g->num_layers,
		.block_size = g->block_size,
		.dtype = g->dtype,
		.k_bytes = g->k_bytes,
		.v_bytes = g->v_bytes,
		.num_kv_heads = g->num_kv_heads,
		.head_dim = g->head_dim,
		.order = g->order,
		.flags = (space->has_geometry ? UCM_SNAPSHOT_HAS_GEOMETRY : 0) |
			 (space->has_identity ? UCM_SNAPSHOT_HAS_IDENTITY : 0),
	};
	memcpy(out->name, space->name, sizeof(space->name));
	memcpy(out->space_id, space->space_id, sizeof(out->space_id));
}

/* A bucket that is none, or gone, is listed by the next start. */
static int stamp_bucket(struct ucm_medium *medium, const char *folder,
			unsigned bucket, int64_t taken_ns,
			struct ucm_snapshot_stamp *out)
{
	struct stat st;
	int err = ucm_medium_stamp(medium, folder, bucket, &st);

	if (!err)
		*out = ucm_snapshot_stamp(&st, taken_ns);
	return err == -ENOENT ? 0 : err;
}

static int stamp_buckets(struct saving *saving, const struct ucm_space *space,
			 const uint64_t there[4],
			 struct ucm_snapshot_stamp stamps[UCM_BUCKETS],
			 unsigned *num_out)
{
	struct ucm_medium *medium = saving->store->dirs.at[saving->dir];
	int64_t taken_ns = saving->writer.head.taken_ns;
	int err = 0;

	*num_out = 0;
	for (unsigned bucket = 0; bucket < UCM_BUCKETS && !err; bucket++) {
		struct ucm_snapshot_stamp *stamp = &stamps[*num_out];

		if (!(there[bucket / 64] >> bucket % 64 & 1))
			continue;
		++*num_out;
		*stamp = (struct ucm_snapshot_stamp){ 0 };
		if (ucm_store_shows_changes(medium) &&
		    ucm_space_is_scanned(space, saving->dir, bucket))
			err = stamp_bucket(medium, space->folder, bucket,
					   taken_ns, stamp);
	}
	return err;
}

/* Whoever cannot be asked is not asked again: it may take its time to fail. */
static void snapshot_save_space(struct saving *saving, struct ucm_space *space)
{
	struct ucm_medium *medium = saving->store->dirs.at[saving->dir];
	struct ucm_snapshot_writer *writer = &saving->writer;
	struct ucm_snapshot_stamp stamps[UCM_BUCKETS];
	struct ucm_snapshot_space is;
	unsigned num = 0;

	if (writer->err)
		return;
	snapshot_describe(space, &is);
	writer->err = ucm_medium_buckets(medium, space->folder, is.buckets);
	if (!writer->err)
		writer->err = stamp_buckets(saving, space, is.buckets, stamps,
					    &num);
	if (!writer->err)
		ucm_snapshot_put_space(writer, &is, stamps, num);
}

static int write_note(void *arg, const void *bytes, size_t len, uint64_t offset)
{
	const struct saving *saving = arg;

	return ucm_file_write(&saving->note, bytes, len, offset);
}

static int snapshot_write(struct saving *saving, int64_t now, uint64_t *number)
{
	struct ucm_medium *medium = saving->store->dirs.at[saving->dir];
	struct ucm_namespace *names = &saving->store->names;
	int err = ucm_snapshot_create(&saving->writer, write_note, saving,
				      medium->uuid, now);

	if (err)
		return err;
	number_spaces(saving);
	snapshot_save_entries(saving);
	for (unsigned i = 0; i < names->num; i++) {
		if (is_saved(names->spaces[i]))
			snapshot_save_space(saving, names->spaces[i]);
	}
	return ucm_snapshot_finish(&saving->writer, number);
}

static int snapshot_save(struct saving *saving)
{
	struct ucm_medium *medium = saving->store->dirs.at[saving->dir];
	uint64_t number = 0;
	int64_t now;
	int err = ucm_medium_now(medium, &now);

	if (!err)
		err = ucm_medium_open_note(medium, UCM_SNAPSHOT_NAME,
					   UCM_OPEN_NEW, &saving->note);
	if (err)
		return err;
	err = snapshot_write(saving, now, &number);
	err = ucm_medium_keep_note(medium, UCM_SNAPSHOT_NAME, &saving->note,
				   err);
	if (!err)
		medium->recovery.snapshot = number;
	return err;
}

void ucm_snapshots_save(struct ucm_store *store, unsigned dir)
{
	struct saving *saving;
	int err = -ENOMEM;

	if (atomic_load(&store->dirs.at[dir]->recovery.lost) ||
	    store->dirs.at[dir]->hosts)
		return;
	saving = calloc(1, sizeof(*saving));
	if (saving)
		saving->number_of = calloc(store->names.num,
					   sizeof(*saving->number_of));
	if (saving && saving->number_of) {
		saving->store = store;
		saving->dir = dir;
		err = snapshot_save(saving);
	}
	if (err)
		ucm_warning("%s/" UCM_TREE_OWN "/" UCM_SNAPSHOT_NAME ": %s",
			    store->dirs.at[dir]->path, strerror(-err));
	if (saving)
		free(saving->number_of);
	free(saving);
}
