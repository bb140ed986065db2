/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr.c - the file of representations of a block; see repr.h.
 *
 * The entry has one bit for it, and its room is part of the entry's: so whatever
 * counts, moves or evicts the block counts the file without knowing of it. All
 * files of a block change under its name's lock.
 *
 * A file is written, and synced, before that lock is taken, as it may be large and
 * its server slow; under it, it gets its name. If the block has moved meanwhile,
 * that is done again where it is now.
 *
 * In each order the block is the first to come and the last to go. A crash
 * between leaves a block without the file in one of its places: then it is made
 * again, or found in the other place. It leaves a file without its block only if
 * a stranger, or a failing disk, takes part: the scan, which sees all names of a
 * bucket, removes it. A file enters an entry when it is put, or found by the
 * scan with a right header, and after an unclean stop with right checksums.
 *
 * A block in two places has the file in both, as it counts in both: where a crash
 * has kept it from one, the scan copies it there. A stranger may have taken it
 * away: whoever asks for it looks in both places, and takes the bit away if
 * neither has it.
 */
#include <config.h>

#include "fs/store/repr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/repr.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/log.h"
#include "fs/store/evict.h"
#include "fs/store/inside.h"
#include "fs/store/quota.h"
#include "hashing/tree.h"

/* ---- what is there ---- */

static void repr_lost(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_entry entry;

	if (!ucm_index_get(store->index, ref, &entry))
		return;
	ucm_store_lock_name(store, &entry.id);
	if (ucm_index_get(store->index, ref, &entry) && entry.has_repr &&
	    ucm_store_repr_is_nowhere(store, &entry))
		ucm_store_enter_repr(store, ref, &entry, entry.dir, NULL);
	ucm_store_unlock_name(store, &entry.id);
}

/* One of its places, as seen by look(); *entry says which: its dir. One that cannot
 * be asked may have it: then it is not absent, if the other one has not got it. */
static int repr_look(struct ucm_store *store, ucm_ref ref,
		     struct ucm_entry *entry,
		     int (*look)(struct ucm_medium *medium, const char *folder,
				 const struct ucm_id *id, void *arg),
		     void *arg)
{
	int result = -ENOENT;

	if (!ucm_index_get(store->index, ref, entry) || !entry->has_repr ||
	    entry->flags & UCM_ENTRY_LEAVING)
		return -ENOENT;
	for (int i = 0; ucm_entry_place(entry, i) != UINT_MAX; i++) {
		unsigned dir = ucm_entry_place(entry, i);
		int err;

		if (!ucm_store_reprs(store, dir))
			continue;
		err = ucm_wait_for(&store->dirs, dir);
		if (err)
			return err;
		err = look(store->dirs.at[dir], ucm_store_folder(store, entry),
			   &entry->id, arg);
		if (!err)
			entry->dir = (uint8_t)dir;
		if (!err)
			return 0;
		if (err != -ENOENT)
			result = ucm_store_repr_failed(store, dir, &entry->id,
						       "open", err);
	}
	if (result == -ENOENT)
		repr_lost(store, ref);
	return result;
}

static int look_stat(struct ucm_medium *medium, const char *folder,
		     const struct ucm_id *id, void *arg)
{
	return medium->ops->reprs->find(medium, folder, id, arg);
}

int ucm_store_stat_repr(struct ucm_store *store, ucm_ref ref,
			struct ucm_entry *entry_out, struct stat *out)
{
	return repr_look(store, ref, entry_out, look_stat, out);
}

struct repr_opened {
	struct ucm_file *file;
	struct stat *st;
};

static int look_open(struct ucm_medium *medium, const char *folder,
		     const struct ucm_id *id, void *arg)
{
	const struct repr_opened *opened = arg;

	return medium->ops->reprs->open(medium, folder, id, opened->file,
					opened->st);
}

int ucm_store_open_repr(struct ucm_store *store, ucm_ref ref,
			struct ucm_entry *entry_out, struct ucm_file *out,
			struct stat *st)
{
	struct repr_opened opened = { out, st };

	return repr_look(store, ref, entry_out, look_open, &opened);
}

int ucm_store_find_repr(struct ucm_store *store, const struct ucm_key *key,
			struct stat *out, ucm_ref *ref_out)
{
	struct ucm_entry entry;
	int err = ucm_store_peek(store, key, &entry, ref_out);

	return err ? err : ucm_store_stat_repr(store, *ref_out, &entry, out);
}

/* ---- the bytes ---- */

int ucm_repr_is_whole(const void *bytes, size_t len)
{
	struct ucm_repr_file file;

	if (len < UCM_REPR_FILE_HEADER_BYTES)
		return -EAGAIN;
	return !ucm_repr_file_parse(bytes, len, &file, NULL) &&
			       len < ucm_repr_file_size(&file)
		       ? -EAGAIN
		       : 0;
}

/* Are they those of this block? */
static int repr_judge(struct ucm_store *store, ucm_ref ref,
		      const struct ucm_key *key, const void *bytes, size_t len)
{
	struct ucm_repr_file file;
	struct ucm_block block;
	struct ucm_error error;
	int err = ucm_store_header(store, ref, &block);

	if (err)
		return err;
	if (!ucm_repr_file_verify(bytes, len, &file, &error) &&
	    !ucm_repr_file_check_block(&file, &block, &error))
		return 0;
	ucm_warning("representations of block %s: not taken: %s",
		    ucm_hex(&key->id).text, error.text);
	return -EINVAL;
}

/* ---- put ---- */

/* In a place that cannot be written to, where neither another can be put in its
 * place nor can it be removed. */
static bool lies_on_readonly(struct ucm_store *store,
			     const struct ucm_entry *entry)
{
	struct stat st;

	for (int i = 0; ucm_entry_place(entry, i) != UINT_MAX; i++) {
		unsigned dir = ucm_entry_place(entry, i);

		if (store->dirs.at[dir]->readonly &&
		    !ucm_store_stat_repr_in(store, entry, dir, &st))
			return true;
	}
	return false;
}

/* A file that is being put: written in each of the block's places that can be
 * written to, and then named. */
struct putting {
	struct ucm_store *store;
	const struct ucm_key *key;
	const void *bytes;
	size_t len;
	ucm_ref ref;
	struct ucm_entry entry; /* whose places these are */
	struct ucm_repr_temp temps[2];
	struct ucm_promise *promises[2];
	unsigned num;
};

/* Others who make room at the same time may be faster to take it. */
#define EVICT_TRIES 64

static int put_promise(struct putting *p, unsigned dir,
		       struct ucm_promise **out)
{
	struct ucm_store *store = p->store;
	struct ucm_tier *tier = store->dirs.tier_of[dir];

	for (unsigned i = 0; i <= EVICT_TRIES; i++) {
		uint64_t evictions = atomic_load(&store->evictions);
		int err = ucm_tier_promise(tier, dir, p->len, out);

		if (err != -ENOSPC || !store->value.policy)
			return err;
		if (!i)
			continue; /* a file system that could not say is asked
				   * once more, before blocks go */
		if (ucm_evict_in(store, dir, p->len) &&
		    !ucm_evict_wait_for_others(&store->evicting,
					       &store->evictions, evictions))
			break;
	}
	ucm_evict_explain(store, &p->key->id);
	return -ENOSPC;
}

static int put_write_in(struct putting *p, unsigned dir)
{
	struct ucm_promise *promise;
	int err = put_promise(p, dir, &promise);

	if (err)
		return err;
	err = ucm_store_write_repr(p->store, &p->key->id, dir, p->bytes, p->len,
				   &p->temps[p->num]);
	if (err) {
		ucm_promise_end(promise);
		return err;
	}
	ucm_room_watch_name(promise, p->temps[p->num].name);
	p->promises[p->num++] = promise;
	return 0;
}

static int put_write(struct putting *p)
{
	struct ucm_store *store = p->store;
	int err = -EROFS;

	for (int i = 0; ucm_entry_place(&p->entry, i) != UINT_MAX; i++) {
		unsigned dir = ucm_entry_place(&p->entry, i);

		/* the memory of a tier is none */
		if (store->dirs.at[dir]->readonly ||
		    !ucm_store_reprs(store, dir))
			continue;
		err = put_write_in(p, dir);
		if (err)
			return err;
	}
	return err;
}

static int put_prepare(struct putting *p)
{
	if (!ucm_index_get(p->store->index, p->ref, &p->entry) ||
	    p->entry.flags & UCM_ENTRY_LEAVING)
		return -ENOENT;
	if (lies_on_readonly(p->store, &p->entry))
		return -EROFS;
	return put_write(p);
}

/* The first has failed; one that could not be synced took away what was there. */
static bool is_untouched(const struct putting *p)
{
	struct stat st;
	bool is_there = !ucm_store_stat_repr_in(p->store, &p->entry,
						p->temps[0].dir, &st);

	return p->temps[0].is_made && is_there == p->entry.has_repr;
}

static int put_name(struct putting *p)
{
	struct ucm_store *store = p->store;
	unsigned dir = p->temps[p->num - 1].dir;
	struct stat st;
	int err = 0;

	for (unsigned i = 0; i < p->num && !err; i++)
		err = ucm_store_name_repr(store, &p->entry, &p->temps[i]);
	if (err && is_untouched(p))
		return err;
	if (!err)
		err = ucm_store_stat_repr_in(store, &p->entry, dir, &st);
	if (!err)
		err = ucm_store_enter_repr(store, p->ref, &p->entry, dir, &st);
	if (!err)
		return 0;
	ucm_store_remove_reprs(store, &p->entry); /* in all places, or in none */
	ucm_store_enter_repr(store, p->ref, &p->entry, dir, NULL);
	return err;
}

/* -EAGAIN: the block's places are others by now. */
static int put_locked(struct putting *p)
{
	struct ucm_entry now;

	if (!ucm_index_get(p->store->index, p->ref, &now) ||
	    now.flags & UCM_ENTRY_LEAVING)
		return -ENOENT;
	if (now.dir != p->entry.dir || now.copy != p->entry.copy)
		return -EAGAIN;
	p->entry = now;
	return put_name(p);
}

static int put_once(struct putting *p)
{
	int err = put_prepare(p);

	if (!err) {
		ucm_store_lock_name(p->store, &p->key->id);
		err = put_locked(p);
		ucm_store_unlock_name(p->store, &p->key->id);
	}
	for (unsigned i = 0; i < p->num; i++) {
		ucm_store_drop_repr(p->store, &p->temps[i]);
		ucm_promise_end(p->promises[i]);
	}
	p->num = 0;
	return err;
}

#define PUT_TRIES 4 /* while the block is moved to and fro */

/* The block is not the one that goes to make room for its own file. */
static int put_held(struct putting *p)
{
	struct ucm_allowance part = { 0 };
	struct ucm_open open = { 0 };
	int err = ucm_hold_open(p->store, &open, p->ref, false);

	if (err)
		return err;
	err = ucm_quota_promise(p->store, p->key, p->len, &part);
	if (!err)
		err = -EAGAIN;
	for (int i = 0; i < PUT_TRIES && err == -EAGAIN; i++)
		err = put_once(p);
	ucm_quota_end_promise(&part);
	ucm_hold_end(p->store, &open);
	return err == -EAGAIN ? -EBUSY : err;
}

int ucm_store_put_repr(struct ucm_store *store, const struct ucm_key *key,
		       const void *bytes, size_t len)
{
	struct putting p = {
		.store = store,
		.key = key,
		.bytes = bytes,
		.len = len,
	};
	int err = ucm_wait_long_for_any(&store->dirs);

	if (!err)
		err = ucm_store_peek(store, key, &p.entry, &p.ref);
	if (!err)
		err = repr_judge(store, p.ref, key, bytes, len);
	return err ? err : put_held(&p);
}

/* ---- remove ---- */

static int remove_locked(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_entry entry;
	int err;

	if (!ucm_index_get(store->index, ref, &entry) || !entry.has_repr)
		return -ENOENT;
	if (lies_on_readonly(store, &entry))
		return -EROFS;
	err = ucm_store_remove_reprs(store, &entry);
	if (!err)
		ucm_store_enter_repr(store, ref, &entry, entry.dir, NULL);
	return err;
}

int ucm_store_remove_repr(struct ucm_store *store, const struct ucm_key *key)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_wait_for_any(&store->dirs);

	if (!err)
		err = ucm_store_peek(store, key, &entry, &ref);
	if (err)
		return err;
	ucm_store_lock_name(store, &key->id);
	err = remove_locked(store, ref);
	ucm_store_unlock_name(store, &key->id);
	return err;
}

