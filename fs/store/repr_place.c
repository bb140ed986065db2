/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr_place.c - the files of representations in the places of blocks: put,
 * removed, copied, and found there. repr.c says how they are kept in step.
 */
#include <config.h>

#include "fs/store/repr.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/repr.h>

#include "common/align.h"
#include "common/cleanup.h"
#include "common/error.h"
#include "common/log.h"
#include "fs/store/endurance.h"
#include "fs/store/inside.h"
#include "hashing/tree.h"

int ucm_store_repr_failed(struct ucm_store *store, unsigned dir,
			  const struct ucm_id *id, const char *what, int err)
{
	ucm_dirs_count_error(&store->dirs, dir, err);
	ucm_error("%s: representations of block %s: %s: %s",
		  store->dirs.at[dir]->path, ucm_hex(id).text, what,
		  strerror(-err));
	return err;
}

/* ---- the entry ---- */

struct repr_edit {
	struct ucm_store *store;
	bool has;
	uint32_t blocks; /* of all that the block has in a place */
};

static void edit_repr(struct ucm_entry *entry, void *arg)
{
	const struct repr_edit *edit = arg;
	const struct ucm_entry was = *entry;

	entry->has_repr = edit->has;
	entry->blocks = edit->blocks;
	ucm_store_recount(edit->store, &was, entry);
}

static uint32_t blocks_of(const struct stat *st)
{
	return (uint32_t)(ucm_file_takes(st) / 512);
}

int ucm_store_enter_repr(struct ucm_store *store, ucm_ref ref,
			 const struct ucm_entry *entry, unsigned dir,
			 const struct stat *st)
{
	struct repr_edit edit = {
		.store = store,
		.has = st,
		.blocks = entry->blocks,
	};
	struct ucm_medium *medium = store->dirs.at[dir];
	struct stat block;
	int err = medium->ops->find(medium, ucm_store_folder(store, entry),
				    &entry->id, &block);

	if (err && st)
		return err;
	/* else it counts too much, until the block goes */
	if (!err)
		edit.blocks = blocks_of(&block) + (st ? blocks_of(st) : 0);
	if (st)
		atomic_store(&store->has_reprs, true);
	if (!ucm_index_edit(store->index, ref, edit_repr, &edit))
		return -ENOENT;
	atomic_store(&store->keepers[dir].dirty, true);
	return 0;
}

/* ---- in one place ---- */

int ucm_store_stat_repr_in(struct ucm_store *store,
			   const struct ucm_entry *entry, unsigned dir,
			   struct stat *out)
{
	const struct ucm_repr_ops *ops = ucm_store_reprs(store, dir);

	return ops ? ops->find(store->dirs.at[dir],
			       ucm_store_folder(store, entry), &entry->id, out)
		   : -ENOENT;
}

bool ucm_store_repr_is_nowhere(struct ucm_store *store,
			       const struct ucm_entry *entry)
{
	struct stat st;

	for (int i = 0; ucm_entry_place(entry, i) != UINT_MAX; i++) {
		if (ucm_store_stat_repr_in(store, entry,
					   ucm_entry_place(entry, i),
					   &st) != -ENOENT)
			return false;
	}
	return true;
}

/* Each piece is a call of its own, which a slow server has its deadline for. */
static int write_pieces(const struct ucm_file *file, const uint8_t *bytes,
			size_t len)
{
	int err = 0;

	for (size_t at = 0; at < len && !err; at += UCM_STORE_REPR_PIECE) {
		size_t left = len - at;

		err = ucm_file_write(file, bytes + at,
				     left < UCM_STORE_REPR_PIECE
					     ? left
					     : UCM_STORE_REPR_PIECE,
				     at);
	}
	return err;
}

static int write_file(struct ucm_store *store, const struct ucm_file *file,
		      bool sync, const void *bytes, size_t len)
{
	int err = write_pieces(file, bytes, len);

	if (!err && file->medium->flags & UCM_MEDIUM_REPORTS_AT_CLOSE)
		err = ucm_file_flush(file);
	if (!err &&
	    (sync || store->config->durability != UCM_DURABILITY_NONE))
		err = ucm_file_sync(file);
	return err;
}

int ucm_store_write_repr(struct ucm_store *store, const struct ucm_id *id,
			 unsigned dir, const void *bytes, size_t len,
			 struct ucm_repr_temp *out)
{
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct ucm_medium *medium = store->dirs.at[dir];
	int err;

	*out = (struct ucm_repr_temp){
		.dir = dir,
		.bytes = len,
		.sync = out->sync,
	};
	if (!ucm_store_reprs(store, dir))
		return -EOPNOTSUPP;
	if (medium->readonly)
		return -EROFS;
	err = medium->ops->put(medium, out->name, &file);
	out->is_made = !err;
	if (!err)
		err = write_file(store, &file, out->sync, bytes, len);
	if (!err)
		return 0;
	ucm_store_drop_repr(store, out);
	return ucm_store_repr_failed(store, dir, id, "write", err);
}

int ucm_store_name_repr(struct ucm_store *store, const struct ucm_entry *entry,
			struct ucm_repr_temp *temp)
{
	bool sync = temp->sync ||
		    store->config->durability == UCM_DURABILITY_FULL;
	struct ucm_medium *medium = store->dirs.at[temp->dir];
	int err = ucm_store_reprs(store, temp->dir)
			  ->commit(medium, temp->name,
				   ucm_store_folder(store, entry), &entry->id,
				   sync);

	if (err)
		return ucm_store_repr_failed(store, temp->dir, &entry->id,
					     "rename", err);
	temp->is_made = false;
	ucm_endurance_wrote(store, store->dirs.tier_of[temp->dir], temp->bytes);
	return 0;
}

void ucm_store_drop_repr(struct ucm_store *store, struct ucm_repr_temp *temp)
{
	struct ucm_medium *medium = store->dirs.at[temp->dir];

	if (temp->is_made)
		medium->ops->drop(medium, temp->name);
	temp->is_made = false;
}

int ucm_store_remove_repr_in(struct ucm_store *store, const char *folder,
			     const struct ucm_id *id, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	int err;

	if (!ucm_store_reprs(store, dir) || medium->readonly)
		return 0;
	err = ucm_store_reprs(store, dir)->remove(medium, folder, id);
	if (!err || err == -ENOENT)
		return 0;
	/* it is still there, and in no entry, perhaps: the next start looks */
	atomic_store(&medium->abandoned, true);
	return ucm_store_repr_failed(store, dir, id, "unlink", err);
}

int ucm_store_set_aside_repr(struct ucm_store *store, const char *folder,
			     const struct ucm_id *id, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	int err;

	if (!ucm_store_reprs(store, dir))
		return 0;
	if (medium->readonly)
		return -EROFS;
	err = ucm_store_reprs(store, dir)->set_aside(medium, folder, id);
	if (err == -ENOENT)
		return 0;
	if (!err) {
		ucm_count(&store->stats.reprs_quarantined);
		return 0;
	}
	atomic_store(&medium->abandoned, true); /* as above */
	return ucm_store_repr_failed(store, dir, id, "quarantine", err);
}

int ucm_store_remove_reprs(struct ucm_store *store,
			   const struct ucm_entry *entry)
{
	int result = 0;

	for (int i = 0; ucm_entry_place(entry, i) != UINT_MAX; i++) {
		int err = ucm_store_remove_repr_in(
			store, ucm_store_folder(store, entry), &entry->id,
			ucm_entry_place(entry, i));

		if (!result)
			result = err;
	}
	return result;
}

/* ---- moved ---- */

static ssize_t read_pieces(const struct ucm_file *file, uint8_t *bytes,
			   size_t len)
{
	size_t at = 0;

	while (at < len) {
		size_t left = len - at;
		ssize_t got = ucm_file_read(file, bytes + at,
					    left < UCM_STORE_REPR_PIECE
						    ? left
						    : UCM_STORE_REPR_PIECE,
					    at);

		if (got < 0)
			return got;
		if (!got)
			break; /* it has become short: its checksums say so */
		at += (size_t)got;
	}
	return (ssize_t)at;
}

/* Up to so many bytes of a file; *st is all of it. */
static int repr_read(struct ucm_store *store, const struct ucm_entry *entry,
		     unsigned dir, size_t most, uint8_t **bytes, size_t *len,
		     struct stat *st)
{
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct ucm_medium *medium = store->dirs.at[dir];
	uint8_t *all;
	ssize_t got;
	const struct ucm_repr_ops *ops = ucm_store_reprs(store, dir);
	int err = ops ? ops->open(medium, ucm_store_folder(store, entry),
				  &entry->id, &file, st)
		      : -ENOENT;

	if (err)
		return err;
	if (st->st_size > UCM_STORE_REPR_MAX)
		return -EFBIG;
	if ((uint64_t)st->st_size < most)
		most = (size_t)st->st_size;
	all = malloc(most ? most : 1);
	if (!all)
		return -ENOMEM;
	got = read_pieces(&file, all, most);
	if (got < 0) {
		free(all);
		return (int)got;
	}
	*bytes = all;
	*len = (size_t)got;
	return 0;
}

/* It is not there, or damaged: no place has it from now on. */
static void repr_give_up(struct ucm_store *store, ucm_ref ref,
			 const struct ucm_entry *entry)
{
	for (int i = 0; ucm_entry_place(entry, i) != UINT_MAX; i++)
		ucm_store_set_aside_repr(store, ucm_store_folder(store, entry),
					 &entry->id, ucm_entry_place(entry, i));
	ucm_store_enter_repr(store, ref, entry, entry->dir, NULL);
}

/* Of its bytes; else it could not be read, which says nothing of them. */
static bool repr_is_wrong(int err)
{
	return err == -EINVAL || err == -EBADMSG || err == -EFBIG;
}

/* Written by a later release: nobody here can say whether it is right. It goes along
 * with its block as it is, and readers refuse it. */
static bool is_of_later_version(int err)
{
	return err == -ENOTSUP;
}

/* The whole file in one place, if it is right. */
static int repr_read_right(struct ucm_store *store,
			   const struct ucm_entry *entry, unsigned dir,
			   uint8_t **bytes, size_t *len, struct stat *st,
			   struct ucm_error *error)
{
	struct ucm_repr_file file;
	int err = repr_read(store, entry, dir, UCM_STORE_REPR_MAX, bytes, len,
			    st);

	if (err)
		return ucm_error_set(error, err, "%s", strerror(-err));
	err = ucm_repr_file_verify(*bytes, *len, &file, error);
	return is_of_later_version(err) ? 0 : err;
}

/* One that cannot be copied: -errno, or 0 and the block has none, since a bad
 * sector would keep the block where it is for ever. */
static int repr_is_lost(struct ucm_store *store, ucm_ref ref,
			const struct ucm_entry *entry, unsigned dir, int err,
			const struct ucm_error *error)
{
	if (err != -ENOENT)
		ucm_warning("%s: representations of block %s: %s%s",
			    store->dirs.at[dir]->path,
			    ucm_hex(&entry->id).text, error->text,
			    ucm_store_is_directorys(err) ? ""
							 : ": quarantined");
	if (err != -ENOENT && !repr_is_wrong(err))
		ucm_dirs_count_error(&store->dirs, dir, err);
	if (ucm_store_is_directorys(err))
		return err;
	repr_give_up(store, ref, entry);
	return 0;
}

/* The same file, as it was? */
static bool is_same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino &&
	       a->st_size == b->st_size &&
	       !memcmp(&a->st_mtim, &b->st_mtim, sizeof(a->st_mtim));
}

void ucm_store_begin_copy_repr(struct ucm_store *store,
			       const struct ucm_entry *entry, unsigned from,
			       unsigned to, struct ucm_repr_temp *out)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	struct stat st;
	size_t len;

	*out = (struct ucm_repr_temp){ .dir = to, .sync = out->sync };
	if (!entry->has_repr || !ucm_store_reprs(store, to) ||
	    repr_read_right(store, entry, from, &bytes, &len, &st, NULL))
		return;
	if (!ucm_store_write_repr(store, &entry->id, to, bytes, len, out))
		out->source = st;
}

int ucm_store_copy_repr(struct ucm_store *store, ucm_ref ref,
			const struct ucm_entry *entry, unsigned from,
			struct ucm_repr_temp *temp)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	struct ucm_error error;
	struct stat st;
	size_t len;
	int err;

	if (!ucm_store_reprs(store, temp->dir))
		return 0;
	if (temp->is_made &&
	    !ucm_store_stat_repr_in(store, entry, from, &st) &&
	    is_same_file(&st, &temp->source))
		return ucm_store_name_repr(store, entry, temp);
	ucm_store_drop_repr(store, temp);
	err = repr_read_right(store, entry, from, &bytes, &len, &st, &error);
	if (err)
		return repr_is_lost(store, ref, entry, from, err, &error);
	err = ucm_store_write_repr(store, &entry->id, temp->dir, bytes, len,
				   temp);
	if (!err)
		err = ucm_store_name_repr(store, entry, temp);
	ucm_store_drop_repr(store, temp);
	return err;
}

/* A block in two places whose file is in one: from there, to there. */
struct pair {
	struct ucm_entry entry;
	unsigned from, to;
};

static bool pair_lacks(struct ucm_store *store, ucm_ref ref, unsigned dir,
		       struct pair *out)
{
	struct stat st;
	unsigned other;
	int err;

	if (!ucm_index_get(store->index, ref, &out->entry) ||
	    !out->entry.has_repr || !out->entry.copy ||
	    !ucm_entry_has_place(&out->entry, dir))
		return false;
	other = ucm_entry_other_place(&out->entry, dir);
	err = ucm_store_stat_repr_in(store, &out->entry, dir, &st);
	if (err && err != -ENOENT)
		return false;
	out->from = err ? other : dir;
	out->to = err ? dir : other;
	return ucm_store_stat_repr_in(store, &out->entry, other, &st) ==
	       (err ? 0 : -ENOENT);
}

/* A crash may have left it so. What fails now is tried again by the next scan: one
 * place will do. */
static void pair_places(struct ucm_store *store, ucm_ref ref, unsigned dir)
{
	struct ucm_repr_temp temp = { .is_made = false };
	struct pair pair, now;

	if (!pair_lacks(store, ref, dir, &pair))
		return;
	ucm_store_begin_copy_repr(store, &pair.entry, pair.from, pair.to,
				  &temp);
	ucm_store_lock_name(store, &pair.entry.id);
	if (pair_lacks(store, ref, dir, &now) && now.to == pair.to)
		ucm_store_copy_repr(store, ref, &now.entry, now.from, &temp);
	ucm_store_unlock_name(store, &pair.entry.id);
	ucm_store_drop_repr(store, &temp);
}

void ucm_store_pair_reprs(struct ucm_store *store, struct ucm_space *space,
			  unsigned dir, unsigned bucket)
{
	struct ucm_entry entry;
	uint32_t cursor = 0;
	ucm_ref ref;

	if (!atomic_load(&store->has_reprs))
		return; /* nobody pays for what nobody uses */
	while (ucm_store_reprs(store, dir) && !atomic_load(&store->stopping) &&
	       ucm_index_next(store->index, space->number, bucket, &cursor,
			      &entry, &ref)) {
		if (entry.has_repr && entry.copy)
			pair_places(store, ref, dir);
	}
}

/* ---- read by a scrub ---- */

/* As the disk has it: where there is no direct I/O the cache is made to forget it.
 * Aligned as that wants; such files are whole pages. */
static ssize_t scrub_read(const struct ucm_file *file, size_t size,
			  uint8_t *bytes, int (*pay)(void *arg, size_t bytes),
			  void *arg)
{
	_cleanup_file_ struct ucm_file direct = UCM_NO_FILE;
	size_t at = 0;
	int err = ucm_file_uncached(file, &direct);

	if (err == -EINVAL)
		err = ucm_file_forget(file);
	while (!err && at < size) {
		size_t left = ucm_round_up_to(size - at, UCM_BLOCK_PAGE);
		ssize_t got = ucm_file_read(
			direct.medium ? &direct : file, bytes + at,
			left < UCM_STORE_REPR_PIECE ? left
						    : UCM_STORE_REPR_PIECE,
			at);

		if (got <= 0)
			return got < 0 ? got : (ssize_t)at;
		at += (size_t)got;
		err = pay(arg, (size_t)got);
	}
	return err ? err : (ssize_t)at;
}

/* It was wrong: is it still the one that has the name? */
static void scrub_condemn_repr(struct ucm_store *store, ucm_ref ref,
			       unsigned dir, const struct stat *judged,
			       const struct ucm_error *error)
{
	struct ucm_entry entry;
	struct stat now;
	bool is_readonly;
	int err;

	if (!ucm_index_get(store->index, ref, &entry) ||
	    !ucm_entry_has_place(&entry, dir) ||
	    ucm_store_stat_repr_in(store, &entry, dir, &now) ||
	    !is_same_file(&now, judged))
		return;
	is_readonly = store->dirs.at[dir]->readonly;
	ucm_warning("%s: representations of block %s: %s, found by a scrub: "
		    "%s", store->dirs.at[dir]->path,
		    ucm_hex(&entry.id).text, error->text,
		    is_readonly ? "not used" : "quarantined");
	err = ucm_store_set_aside_repr(store, ucm_store_folder(store, &entry),
				       &entry.id, dir);
	if (is_readonly) /* it stays there, so no place is to have it */
		repr_give_up(store, ref, &entry);
	else if (!err && ucm_store_repr_is_nowhere(store, &entry))
		ucm_store_enter_repr(store, ref, &entry, dir, NULL);
}

int ucm_store_scrub_repr(struct ucm_store *store, ucm_ref ref,
			 const struct ucm_entry *entry, unsigned dir,
			 int (*pay)(void *arg, size_t bytes), void *arg,
			 uint64_t *bytes_out)
{
	const struct ucm_repr_ops *ops = ucm_store_reprs(store, dir);
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	_cleanup_free_ uint8_t *bytes = NULL;
	struct ucm_repr_file parsed;
	struct ucm_error error;
	struct stat st;
	size_t size;
	ssize_t got;
	int err = ops ? ops->open(store->dirs.at[dir],
				  ucm_store_folder(store, entry), &entry->id,
				  &file, &st)
		      : -ENOENT;

	if (err)
		return err == -ENOENT ? 0 : err;
	/* a larger one is wrong in any case */
	size = st.st_size < UCM_STORE_REPR_MAX ? (size_t)st.st_size
					       : UCM_STORE_REPR_MAX;
	/* a page more: a short read may leave less than one of the last */
	bytes = aligned_alloc(UCM_BLOCK_PAGE,
			      ucm_round_up_to(size, UCM_BLOCK_PAGE) +
				      UCM_BLOCK_PAGE);
	if (!bytes)
		return -ENOMEM;
	got = scrub_read(&file, size, bytes, pay, arg);
	if (got < 0)
		return (int)got;
	*bytes_out = (uint64_t)got;
	err = ucm_repr_file_verify(bytes, (uint64_t)got, &parsed, &error);
	if (!err || is_of_later_version(err))
		return 0;
	ucm_store_lock_name(store, &entry->id);
	scrub_condemn_repr(store, ref, dir, &st, &error);
	ucm_store_unlock_name(store, &entry->id);
	pair_places(store, ref, dir); /* the other one may be right */
	return -EBADMSG;
}

/* ---- found ---- */

/* Is a file right that was found? All of it is read only after an unclean stop,
 * if it is young. */
static int found_judge(struct ucm_store *store, const struct ucm_entry *entry,
		       unsigned dir, struct stat *st, struct ucm_error *error)
{
	const struct ucm_repr_ops *ops = ucm_store_reprs(store, dir);
	_cleanup_free_ uint8_t *bytes = NULL;
	struct ucm_repr_file file;
	bool doubted;
	size_t len;
	int err = ops->find(store->dirs.at[dir], ucm_store_folder(store, entry),
			    &entry->id, st);

	doubted = !err && ucm_recovery_doubts(&store->dirs.at[dir]->recovery,
					      st);
	if (!err)
		err = repr_read(store, entry, dir,
				doubted ? UCM_STORE_REPR_MAX
					: UCM_REPR_FILE_HEADER_BYTES,
				&bytes, &len, st);
	if (err)
		return ucm_error_set(error, err, "%s", strerror(-err));
	err = doubted ? ucm_repr_file_verify(bytes, len, &file, error)
		      : ucm_repr_file_parse(bytes, len, &file, error);
	if (is_of_later_version(err))
		return 0;
	if (!err && memcmp(&file.id, &entry->id, sizeof(file.id)) != 0)
		err = ucm_error_set(error, -EINVAL,
				    "block_hash is not the block's");
	if (!err && ucm_repr_file_size(&file) != (uint64_t)st->st_size)
		err = ucm_error_set(error, -EINVAL, "size %lld: must be %llu",
				    (long long)st->st_size,
				    (unsigned long long)
					    ucm_repr_file_size(&file));
	return err;
}

/* One that the entry knows of, from the other place or from a snapshot, is looked
 * at after an unclean stop alone. */
static bool found_is_known(struct ucm_store *store,
			   const struct ucm_entry *entry, unsigned dir)
{
	const struct ucm_recovery *recovery = &store->dirs.at[dir]->recovery;
	struct stat st;

	if (!entry->has_repr || !atomic_load(&recovery->unclean))
		return entry->has_repr;
	return ucm_store_stat_repr_in(store, entry, dir, &st) ||
	       !ucm_recovery_doubts(recovery, &st);
}

/* One that the entry says nothing of, or that is wrong. */
static int found_enter(struct ucm_store *store, ucm_ref ref,
		       const struct ucm_entry *entry, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	struct ucm_error error;
	struct stat st;
	int err = found_judge(store, entry, dir, &st, &error);

	if (!err && !entry->has_repr)
		return ucm_store_enter_repr(store, ref, entry, dir, &st);
	if (!err || err == -ENOENT)
		return 0;
	ucm_warning("%s: representations of block %s: %s%s", medium->path,
		    ucm_hex(&entry->id).text, error.text,
		    !repr_is_wrong(err) ? ""
		    : medium->readonly	? ": not used"
					: ": quarantined");
	if (!repr_is_wrong(err))
		return err;
	ucm_store_set_aside_repr(store, ucm_store_folder(store, entry),
				 &entry->id, dir);
	/* a second place may have a right one, and gives it back (pair) */
	if (entry->has_repr && (!entry->copy || medium->readonly))
		repr_give_up(store, ref, entry);
	return 0;
}

static int found_locked(struct ucm_store *store, struct ucm_space *space,
			const struct ucm_id *id, unsigned dir)
{
	const struct ucm_key key = { .id = *id, .space = space->number };
	struct ucm_medium *medium = store->dirs.at[dir];
	struct ucm_entry entry;
	struct stat st;
	ucm_ref ref;
	int err;

	if (medium->ops->find(medium, space->folder, id, &st) == -ENOENT) {
		ucm_info("%s: representations of block %s, which is not "
			 "there: removed", medium->path, ucm_hex(id).text);
		return ucm_store_remove_repr_in(store, space->folder, id, dir);
	}
	if (!ucm_index_find(store->index, &key, &entry, &ref) ||
	    !ucm_entry_has_place(&entry, dir) ||
	    found_is_known(store, &entry, dir))
		return 0;
	err = found_enter(store, ref, &entry, dir);
	if (err && !entry.has_repr) /* no entry says so: the next start looks */
		atomic_store(&medium->abandoned, true);
	return err;
}

int ucm_store_found_repr(struct ucm_store *store, struct ucm_space *space,
			 const struct ucm_id *id, unsigned dir)
{
	int err;

	if (!ucm_store_reprs(store, dir))
		return 0;
	ucm_store_lock_name(store, id);
	err = found_locked(store, space, id, dir);
	ucm_store_unlock_name(store, id);
	return err;
}

void ucm_store_find_reprs(struct ucm_store *store,
			  const struct ucm_entry *entry)
{
	struct ucm_space *space = store->names.spaces[entry->space];
	struct stat st;

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (ucm_entry_has_dir(entry, dir) &&
		    !ucm_store_stat_repr_in(store, entry, dir, &st))
			ucm_store_found_repr(store, space, &entry->id, dir);
	}
}
