/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket.c - one bucket of one directory, listed.
 *
 * Whoever needs a bucket lists it: the scan in its turn, or a listing before
 * that; twice does no harm. Its names are looked at in batches (examine.c). A
 * file that cannot be read is a miss until the next start or rescan; want of
 * descriptors or memory leaves the whole bucket to be read again.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "hashing/tree.h"

/* Files of one bucket that are open: the disk is asked for the headers of all
 * of them before the first is waited for. */
#define BATCH 32

struct batch {
	struct ucm_store *store;
	struct ucm_space *space;
	unsigned dir, num;
	int err; /* one of them could not be looked at */
	struct {
		struct ucm_id id;
		struct stat st;
		struct ucm_file file;
	} files[BATCH];
};

/* Want of descriptors or memory, or a server that does not answer, says nothing
 * of the file: the bucket must be looked at once more. Other errors are the
 * file's own. */
static bool is_to_be_read_again(int err)
{
	switch (err) {
	case -EMFILE: case -ENFILE: case -ENOMEM: case -EINTR: case -ETIMEDOUT:
	case -ENOTCONN: case -ESTALE: case -ESHUTDOWN: case -EHOSTDOWN:
	case -EHOSTUNREACH: case -ENETDOWN: case -ENETUNREACH:
		return true;
	default:
		return false;
	}
}

static void note_failure(struct batch *batch, int err)
{
	struct ucm_keeper *keeper = &batch->store->keepers[batch->dir];

	if (err >= 0 || err == -ENOENT || err == -EFBIG)
		return;
	if (is_to_be_read_again(err))
		batch->err = err;
	else if (atomic_load(&ucm_keeper_medium(keeper)->recovery.unclean))
		atomic_store(&keeper->unread, true);
}

static void batch_run(struct batch *batch)
{
	for (unsigned i = 0; i < batch->num; i++) {
		int err = ucm_store_examine_file(
			batch->store, batch->space, &batch->files[i].id,
			batch->dir, &batch->files[i].file, &batch->files[i].st);

		note_failure(batch, err);
		ucm_file_close(&batch->files[i].file);
	}
	batch->num = 0;
}

static void batch_add(struct batch *batch, const struct ucm_id *id)
{
	struct ucm_file *file = &batch->files[batch->num].file;
	int err = ucm_store_open_file(batch->store, batch->space, id,
				      batch->dir, file,
				      &batch->files[batch->num].st);

	note_failure(batch, err);
	if (err)
		return;
	ucm_file_want(file, UCM_BLOCK_PAGE);
	batch->files[batch->num++].id = *id;
	if (batch->num == BATCH)
		batch_run(batch);
}

/* A shared directory is listed again and again. */
static bool scan_is_known(const struct batch *batch,
			  const struct ucm_entry *entry)
{
	return entry->dir == batch->dir ||
	       (batch->store->dirs.at[batch->dir]->hosts &&
		ucm_entry_has_place(entry, batch->dir));
}

static void scan_name(struct batch *batch, unsigned bucket, const char *name)
{
	struct ucm_key key = { .space = batch->space->number };
	struct ucm_store *store = batch->store;
	struct ucm_entry entry;

	if (ucm_tree_is_remains(name))
		return;
	if (ucm_tree_parse_block(name, &key.id) ||
	    ucm_tree_bucket(&key.id) != bucket)
		ucm_count(&store->stats.strays);
	else if (!ucm_index_find(store->index, &key, &entry, NULL) ||
		 !scan_is_known(batch, &entry))
		batch_add(batch, &key.id);
}

static int scan_names(struct ucm_store *store, struct ucm_space *space,
		      unsigned dir, unsigned bucket, const char *names)
{
	struct batch batch = { .store = store, .space = space, .dir = dir };

	/* whoever closes the store waits for us */
	for (const char *name = names;
	     *name && !atomic_load(&store->life.stopping);
	     name += strlen(name) + 1)
		scan_name(&batch, bucket, name);
	batch_run(&batch);
	return atomic_load(&store->life.stopping) ? -ECANCELED : batch.err;
}

static int read_bucket(struct ucm_store *store, struct ucm_space *space,
		       unsigned dir, unsigned bucket)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	char path[UCM_TREE_PATH_MAX];
	_cleanup_free_ char *names = NULL;
	int err;

	if (medium->flags & UCM_MEDIUM_NO_LIST)
		return -EOPNOTSUPP; /* its names go on to be probed for */
	ucm_tree_bucket_path(space->folder, bucket, path);
	err = ucm_medium_list(medium, space->folder, bucket, &names);
	if (err && err != -ENOENT) {
		if (!atomic_exchange(&medium->unreadable, true))
			ucm_error("%s/%s: %s; its blocks are looked for one "
				  "by one",
				  medium->path, path, strerror(-err));
		ucm_dirs_count_error(&store->dirs, dir, err);
		return err;
	}
	if (atomic_exchange(&medium->unreadable, false))
		ucm_info("%s: can be read again", medium->path);
	err = names ? scan_names(store, space, dir, bucket, names) : 0;
	if (names && medium->hosts)
		ucm_store_drop_vanished(store, space, dir, bucket, names);
	ucm_debug(SCAN, 1, "%s/%s: %s", medium->path, path,
		  err ? strerror(-err) : names ? "read" : "not there");
	if (!err)
		ucm_space_set_scanned(space, dir, bucket);
	return err;
}

int ucm_store_scan_bucket(struct ucm_store *store, struct ucm_space *space,
			  unsigned dir, unsigned bucket)
{
	bool again = ucm_space_is_scanned(space, dir, bucket);

	ucm_snapshots_load(store, dir, bucket);
	if (!again && ucm_space_is_scanned(space, dir, bucket))
		return 0;
	return read_bucket(store, space, dir, bucket);
}

int ucm_store_fill_bucket(struct ucm_store *store, struct ucm_space *space,
			  unsigned bucket)
{
	int fresh = ucm_store_freshen(store, space, bucket);

	if (fresh || atomic_load(&store->scan.complete))
		return fresh;
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		int err;

		if (ucm_space_is_scanned(space, dir, bucket))
			continue;
		err = ucm_wait_long(UCM_WAIT_MANY);
		if (err)
			return err;
		ucm_store_scan_bucket(store, space, dir, bucket);
	}
	return 0;
}

/* ---- all of a directory ---- */

bool ucm_store_knows(struct ucm_store *store, unsigned dir)
{
	for (unsigned i = 0; i < store->scan.spaces; i++) {
		struct ucm_space *space = ucm_namespace_get(&store->names, i);

		for (unsigned word = 0; space && word < 4; word++) {
			if (~atomic_load(&space->scanned[4 * dir + word]))
				return false;
		}
	}
	return true;
}

bool ucm_store_knows_all(struct ucm_store *store)
{
	if (atomic_load_explicit(&store->scan.complete, memory_order_acquire))
		return true;
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (!ucm_store_knows(store, dir) &&
		    ucm_medium_answers(store->dirs.at[dir]))
			return false;
	}
	return true;
}

/* ---- what a listing has ---- */

static int compare_ids(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct ucm_id));
}

int ucm_listed_read(struct ucm_listed *listed, const char *names)
{
	size_t room = 0;

	for (const char *name = names; *name; name += strlen(name) + 1)
		room++;
	listed->ids = calloc(room + 1, sizeof(*listed->ids));
	if (!listed->ids)
		return -ENOMEM;
	for (const char *name = names; *name; name += strlen(name) + 1) {
		if (!ucm_tree_parse_block(name, &listed->ids[listed->num]))
			listed->num++;
	}
	qsort(listed->ids, listed->num, sizeof(*listed->ids), compare_ids);
	return 0;
}

bool ucm_listed_has(const struct ucm_listed *listed, const struct ucm_id *id)
{
	return bsearch(id, listed->ids, listed->num, sizeof(*listed->ids),
		       compare_ids);
}
