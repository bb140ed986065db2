/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_index.c - from the index to the snapshots, and back.
 *
 * At a clean end each directory's thread walks the index and writes a snapshot
 * of what lies in its directory. The next start takes one section (a bucket, in
 * all spaces) at a time into the index, when the scan or a listing comes to it.
 * Where the bucket is as it was, that is all; where it is not, its names decide
 * which records hold, and the scan reads the headers of the names that are new.
 * So the scan's tasks, its progress and what "complete" means stay the same.
 *
 * After an unclean stop there is no snapshot. One could tell what has not changed
 * since, but what is in doubt then shows in each file's own ctime, so that every
 * file must be looked at in any case.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/snapshot.h"
#include "hashing/tree.h"

/* ---- from a snapshot ---- */

#define NO_SPACE UINT32_MAX

struct ucm_recall {
	struct ucm_snapshot file;
	uint32_t *space_of; /* its number now, by its number in the file */
	pthread_mutex_t locks[UCM_SNAPSHOT_SECTIONS];
	_Atomic bool done[UCM_SNAPSHOT_SECTIONS];
	_Atomic bool bad;
	/* by number of the space now: buckets that were not listed */
	_Atomic uint64_t (*trusted)[4];
};

static void refuse(const struct ucm_backing *backing, const char *why)
{
	ucm_warning("%s/" UCM_TREE_OWN "/" UCM_SNAPSHOT_NAME
		    ": %s: not used; all names and headers are read instead",
		    backing->path, why);
}

/* What its blocks look like must be what they looked like: a manifest may have
 * been changed by hand. */
static bool fits(struct ucm_space *space,
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

static uint32_t find_space(struct ucm_store *set,
			   const struct ucm_snapshot_space *then)
{
	struct ucm_space *space = *then->name
		? ucm_namespace_find(&set->names, then->name)
		: set->names.spaces[0];

	return space && fits(space, then) ? space->number : NO_SPACE;
}

static void recall_free(struct ucm_recall *recall)
{
	if (recall->file.fd >= 0)
		ucm_snapshot_close(&recall->file);
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++)
		pthread_mutex_destroy(&recall->locks[i]);
	free(recall->space_of);
	free(recall->trusted);
	free(recall);
}

static struct ucm_recall *recall_new(struct ucm_store *set,
				     const struct ucm_snapshot *file)
{
	struct ucm_recall *recall = calloc(1, sizeof(*recall));

	if (!recall)
		return NULL;
	recall->file = *file;
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++)
		pthread_mutex_init(&recall->locks[i], NULL);
	recall->space_of = calloc(file->head.num_spaces + 1,
				  sizeof(*recall->space_of));
	recall->trusted = calloc(set->scan_spaces, sizeof(*recall->trusted));
	if (!recall->space_of || !recall->trusted) {
		recall->file.fd = -1; /* the caller's still */
		recall_free(recall);
		return NULL;
	}
	for (uint32_t i = 0; i < file->head.num_spaces; i++)
		recall->space_of[i] = find_space(set, file->spaces[i]);
	return recall;
}

static void open_snapshot(struct ucm_store *set, unsigned dir)
{
	struct ucm_backing *backing = set->dirs[dir];
	struct ucm_snapshot file;
	const char *why;
	struct stat st;
	int fd = ucm_os_open_regular(backing->ctlfd, UCM_SNAPSHOT_NAME,
				     O_RDONLY, &st);

	if (fd < 0) {
		refuse(backing, strerror(-fd));
		return;
	}
	if (ucm_snapshot_open(fd, backing->uuid, backing->recovery.snapshot,
			      &file, &why)) {
		refuse(backing, why);
		return;
	}
	set->recalls[dir] = recall_new(set, &file);
	if (!set->recalls[dir])
		ucm_snapshot_close(&file);
}

void ucm_snapshots_open(struct ucm_store *set)
{
	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		const struct ucm_recovery *state = &set->dirs[dir]->recovery;

		if (!state->unclean && state->snapshot)
			open_snapshot(set, dir);
	}
}

/* What is to be done with a space's records of the bucket in hand. */
struct verdict {
	enum { LEAVE, TRUST, COMPARE } what;
	struct ucm_space *space;
	struct ucm_id *ids; /* to compare with, sorted */
	size_t num_ids;
};

static int compare_ids(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct ucm_id));
}

static int sort_names(struct verdict *verdict, const char *names)
{
	size_t room = 0;

	for (const char *name = names; *name; name += strlen(name) + 1)
		room++;
	verdict->ids = calloc(room + 1, sizeof(*verdict->ids));
	if (!verdict->ids)
		return -ENOMEM;
	for (const char *name = names; *name; name += strlen(name) + 1) {
		if (!ucm_tree_parse_block(name, &verdict->ids[verdict->num_ids]))
			verdict->num_ids++;
	}
	qsort(verdict->ids, verdict->num_ids, sizeof(*verdict->ids),
	      compare_ids);
	return 0;
}

/* A bucket that cannot be read is the scan's to tell of. */
static void judge(struct ucm_store *set, unsigned dir, unsigned bucket,
		  const struct ucm_snapshot_stamp *stamp,
		  struct verdict *verdict)
{
	struct ucm_backing *backing = set->dirs[dir];
	_cleanup_free_ char *names = NULL;
	char path[UCM_TREE_PATH_MAX];
	struct stat st;

	ucm_tree_bucket_path(verdict->space->folder, bucket, path);
	if (!backing->remote && !ucm_os_stat(backing->dirfd, path, &st) &&
	    S_ISDIR(st.st_mode) && ucm_snapshot_stamp_equal(stamp, &st))
		verdict->what = TRUST;
	else if (!ucm_os_list(backing->dirfd, path, &names) &&
		 !sort_names(verdict, names))
		verdict->what = COMPARE;
}

static void judge_all(struct ucm_store *set, unsigned dir, unsigned bucket,
		      struct verdict *verdicts)
{
	const struct ucm_recall *recall = set->recalls[dir];

	for (uint32_t i = 0; i < recall->file.head.num_spaces; i++) {
		const struct ucm_snapshot_stamp *stamp =
			ucm_snapshot_bucket(recall->file.spaces[i], bucket);

		if (!stamp || recall->space_of[i] == NO_SPACE)
			continue;
		verdicts[i].space = ucm_namespace_get(&set->names,
						      recall->space_of[i]);
		if (verdicts[i].space &&
		    !ucm_space_is_scanned(verdicts[i].space, dir, bucket))
			judge(set, dir, bucket, stamp, &verdicts[i]);
	}
}

static bool holds(const struct verdict *verdict, const struct ucm_id *id)
{
	return verdict->what == TRUST ||
	       (verdict->what == COMPARE &&
		bsearch(id, verdict->ids, verdict->num_ids,
			sizeof(*verdict->ids), compare_ids));
}

static int admit(struct ucm_store *set, struct ucm_space *space, unsigned dir,
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
		.flags = UCM_ENTRY_UNREAD |
			 (record->flags & UCM_SNAPSHOT_DUPLICATE
				  ? UCM_ENTRY_DUPLICATE : 0),
	};
	int err = ucm_scan_admit(set, space, &entry);

	return err < 0 ? err : 0;
}

/* One that cannot be taken in leaves its space's bucket to the scan. */
static void admit_all(struct ucm_store *set, unsigned dir,
		      const struct ucm_snapshot_record *records, uint64_t num,
		      struct verdict *verdicts)
{
	for (uint64_t i = 0; i < num; i++) {
		struct verdict *verdict = &verdicts[records[i].space];

		if (holds(verdict, &records[i].id) &&
		    admit(set, verdict->space, dir, &records[i]))
			verdict->what = LEAVE;
	}
}

static void trust(struct ucm_recall *recall, const struct verdict *verdict,
		  unsigned dir, unsigned bucket)
{
	if (verdict->what != TRUST)
		return;
	atomic_fetch_or(&recall->trusted[verdict->space->number][bucket / 64],
			UINT64_C(1) << bucket % 64);
	ucm_space_set_scanned(verdict->space, dir, bucket);
}

static void load_section(struct ucm_store *set, unsigned dir, unsigned bucket)
{
	struct ucm_recall *recall = set->recalls[dir];
	_cleanup_free_ struct ucm_snapshot_record *records = NULL;
	uint32_t num_spaces = recall->file.head.num_spaces;
	struct verdict *verdicts;
	const char *why;
	uint64_t num;

	if (ucm_snapshot_read(&recall->file, bucket, &records, &num, &why)) {
		if (!atomic_exchange(&recall->bad, true))
			refuse(set->dirs[dir], why);
		return;
	}
	verdicts = calloc(num_spaces + 1, sizeof(*verdicts));
	if (!verdicts)
		return;
	judge_all(set, dir, bucket, verdicts);
	admit_all(set, dir, records, num, verdicts);
	for (uint32_t i = 0; i < num_spaces; i++) {
		trust(recall, &verdicts[i], dir, bucket);
		free(verdicts[i].ids);
	}
	free(verdicts);
}

void ucm_snapshots_load(struct ucm_store *set, unsigned dir, unsigned bucket)
{
	struct ucm_recall *recall = set->recalls[dir];

	if (!recall || atomic_load(&recall->done[bucket]))
		return;
	pthread_mutex_lock(&recall->locks[bucket]);
	if (!atomic_load(&recall->done[bucket]) && !atomic_load(&recall->bad))
		load_section(set, dir, bucket);
	atomic_store(&recall->done[bucket], true);
	pthread_mutex_unlock(&recall->locks[bucket]);
}

bool ucm_snapshots_trusted(struct ucm_store *set, const struct ucm_space *space,
			   unsigned dir, unsigned bucket)
{
	const struct ucm_recall *recall = set->recalls[dir];

	return recall &&
	       recall->trusted[space->number][bucket / 64] >> bucket % 64 & 1;
}

/* Others may still ask whether there is something to load. */
static void end_loading(struct ucm_recall *recall)
{
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++) {
		pthread_mutex_lock(&recall->locks[i]);
		atomic_store(&recall->done[i], true);
		pthread_mutex_unlock(&recall->locks[i]);
	}
	if (recall->file.fd >= 0)
		ucm_snapshot_close(&recall->file);
}

void ucm_snapshots_close(struct ucm_store *set)
{
	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		if (set->recalls[dir])
			end_loading(set->recalls[dir]);
	}
}

void ucm_snapshots_free(struct ucm_store *set)
{
	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		if (set->recalls[dir])
			recall_free(set->recalls[dir]);
	}
}

/* ---- to a snapshot ---- */

struct saving {
	struct ucm_store *set;
	unsigned dir;
	struct ucm_snapshot_writer writer;
	uint16_t *number_of; /* in the file, by the space's number */
};

static bool is_saved(const struct ucm_space *space)
{
	return !atomic_load(&space->removed);
}

static void number_spaces(struct saving *saving)
{
	const struct ucm_namespace *names = &saving->set->names;
	uint16_t number = 0;

	for (unsigned i = 0; i < names->num; i++) {
		saving->number_of[i] = number;
		number += is_saved(names->spaces[i]);
	}
}

static void save_entry(struct saving *saving, const struct ucm_entry *entry)
{
	bool duplicate = entry->flags & UCM_ENTRY_DUPLICATE;
	struct ucm_snapshot_record record = {
		.id = entry->id,
		.size = entry->size,
		.mtime_ns = entry->mtime_ns,
		.blocks = entry->blocks,
		.atime_s = entry->atime_s,
		.uses = entry->uses,
		.space = saving->number_of[entry->space],
		.flags = duplicate ? UCM_SNAPSHOT_DUPLICATE : 0,
	};
	struct ucm_space *space = saving->set->names.spaces[entry->space];
	unsigned bucket = ucm_tree_bucket(&entry->id);
	bool mine = entry->dir == saving->dir;

	/* of another directory's block nobody says that we have it, too; and what
	 * is in doubt is not for the next start to trust */
	if (mine ? entry->flags & UCM_ENTRY_DOUBT : duplicate)
		ucm_space_clear_scanned(space, saving->dir, bucket);
	else if (mine && is_saved(space))
		ucm_snapshot_put(&saving->writer, bucket, &record);
}

static void save_entries(struct saving *saving)
{
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++) {
		struct ucm_entry entry;
		uint32_t cursor = 0;

		while (ucm_index_next_any(saving->set->index, bucket, &cursor,
					  &entry))
			save_entry(saving, &entry);
	}
}

static void describe(struct ucm_space *space, struct ucm_snapshot_space *out)
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
static int stamp_bucket(int folder, unsigned bucket, int64_t taken_ns,
			struct ucm_snapshot_stamp *out)
{
	struct stat st;
	char name[3];
	int err;

	*out = (struct ucm_snapshot_stamp){ 0 };
	ucm_tree_bucket_name(bucket, name);
	err = ucm_os_stat(folder, name, &st);
	if (!err && S_ISDIR(st.st_mode))
		*out = ucm_snapshot_stamp(&st, taken_ns);
	return err == -ENOENT ? 0 : err;
}

static int stamp_buckets(struct saving *saving, const struct ucm_space *space,
			 const uint64_t there[4],
			 struct ucm_snapshot_stamp stamps[UCM_BUCKETS],
			 unsigned *num_out)
{
	struct ucm_backing *backing = saving->set->dirs[saving->dir];
	_cleanup_fd_ int folder = ucm_os_open(backing->dirfd, space->folder,
					      O_RDONLY | O_DIRECTORY, 0);
	int64_t taken_ns = saving->writer.head.taken_ns;
	int err = folder < 0 && folder != -ENOENT ? folder : 0;

	*num_out = 0;
	for (unsigned bucket = 0; bucket < UCM_BUCKETS && !err; bucket++) {
		struct ucm_snapshot_stamp *stamp = &stamps[*num_out];

		if (!(there[bucket / 64] >> bucket % 64 & 1))
			continue;
		++*num_out;
		*stamp = (struct ucm_snapshot_stamp){ 0 };
		if (folder >= 0 && !backing->remote &&
		    ucm_space_is_scanned(space, saving->dir, bucket))
			err = stamp_bucket(folder, bucket, taken_ns, stamp);
	}
	return err;
}

/* Whoever cannot be asked is not asked again: it may take its time to fail. */
static void save_space(struct saving *saving, struct ucm_space *space)
{
	struct ucm_snapshot_writer *writer = &saving->writer;
	struct ucm_snapshot_stamp stamps[UCM_BUCKETS];
	struct ucm_snapshot_space is;
	unsigned num = 0;

	if (writer->err)
		return;
	describe(space, &is);
	writer->err = ucm_scan_buckets(saving->set->dirs[saving->dir], space,
				       is.buckets);
	if (!writer->err)
		writer->err = stamp_buckets(saving, space, is.buckets, stamps,
					    &num);
	if (!writer->err)
		ucm_snapshot_put_space(writer, &is, stamps, num);
}

static int save(struct saving *saving)
{
	struct ucm_backing *backing = saving->set->dirs[saving->dir];
	struct ucm_namespace *names = &saving->set->names;
	int64_t now;
	int err = ucm_recovery_time(backing->ctlfd, &now);

	if (!err)
		err = ucm_snapshot_create(&saving->writer, backing->ctlfd,
					  backing->uuid, now);
	if (err)
		return err;
	number_spaces(saving);
	save_entries(saving);
	for (unsigned i = 0; i < names->num; i++) {
		if (is_saved(names->spaces[i]))
			save_space(saving, names->spaces[i]);
	}
	return ucm_snapshot_finish(&saving->writer,
				   &backing->recovery.snapshot);
}

void ucm_snapshots_save(struct ucm_store *set, unsigned dir)
{
	struct saving *saving;
	int err = -ENOMEM;

	if (atomic_load(&set->dirs[dir]->recovery.lost))
		return;
	saving = calloc(1, sizeof(*saving));
	if (saving)
		saving->number_of = calloc(set->names.num,
					   sizeof(*saving->number_of));
	if (saving && saving->number_of) {
		saving->set = set;
		saving->dir = dir;
		err = save(saving);
	}
	if (err)
		ucm_warning("%s/" UCM_TREE_OWN "/" UCM_SNAPSHOT_NAME ": %s",
			    set->dirs[dir]->path, strerror(-err));
	if (saving)
		free(saving->number_of);
	free(saving);
}
