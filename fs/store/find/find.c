/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.c - find and read blocks, remove and mark them.
 *
 * The index is the truth for what it has. What it does not have is absent,
 * unless the scan has not come to that bucket yet: then every directory that
 * may have the name is asked, fast tiers first; or a directory is shared (fresh.c).
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "fs/block/verify.h"
#include "fs/store/jobs.h"
#include "hashing/tree.h"

/* Ask the directories that the scan has not come to. A directory that cannot
 * say counts as one that has not got it: to a cache a miss is never wrong, and
 * new blocks must find their way past it. */
static int store_probe(struct ucm_store *store, struct ucm_space *space,
		       const struct ucm_id *id)
{
	bool asked = false;

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (ucm_space_is_scanned(space, dir, ucm_tree_bucket(id)))
			continue;
		/* which of them are asked after this one, it will say */
		if (ucm_wait_for_any(&store->dirs))
			return -EINPROGRESS;
		asked = true;
		if (ucm_store_examine(store, space, id, dir) > 0)
			break;
	}
	if (asked)
		ucm_count(&store->stats.probes);
	return 0;
}

/* Also one that is being removed. */
static int find_or_probe(struct ucm_store *store, const struct ucm_key *key,
			 struct ucm_entry *out, ucm_ref *ref)
{
	/* asked first: the scan may find it, and end, after we have looked */
	bool scanned = atomic_load_explicit(&store->scan.complete,
					    memory_order_acquire);
	struct ucm_space *space;
	int err;

	if (ucm_index_find(store->index, key, out, ref))
		return 0;
	if (scanned)
		return -ENOENT;
	space = ucm_namespace_get(&store->names, key->space);
	if (!space)
		return -ENOENT;
	err = store_probe(store, space, &key->id);
	if (err)
		return err;
	return ucm_index_find(store->index, key, out, ref) ? 0 : -ENOENT;
}

/* And what others may have added since. Not under a name's lock. */
static int find_fresh(struct ucm_store *store, const struct ucm_key *key,
		      struct ucm_entry *out, ucm_ref *ref)
{
	int err = find_or_probe(store, key, out, ref);
	struct ucm_space *space;

	if (err != -ENOENT || !ucm_store_is_shared(store))
		return err;
	space = ucm_namespace_get(&store->names, key->space);
	if (!space)
		return err;
	err = ucm_store_freshen(store, space, ucm_tree_bucket(&key->id));
	if (err)
		return err;
	return ucm_index_find(store->index, key, out, ref) ? 0 : -ENOENT;
}

int ucm_store_peek(struct ucm_store *store, const struct ucm_key *key,
		   struct ucm_entry *out, ucm_ref *ref_out)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err = find_fresh(store, key, &entry, &ref);

	if (!err && entry.flags & UCM_ENTRY_LEAVING)
		err = -ENOENT;
	if (!err && entry.flags & UCM_ENTRY_DOUBT) {
		err = ucm_wait_long(entry.dir);
		if (!err)
			err = ucm_store_settle(store, ref);
		if (!err && !ucm_index_get(store->index, ref, &entry))
			err = -ENOENT;
	}
	if (err)
		return err;
	*out = entry;
	*ref_out = ref;
	return 0;
}

int ucm_store_find(struct ucm_store *store, const struct ucm_key *key,
		   struct ucm_entry *out, ucm_ref *ref_out)
{
	int err = ucm_store_peek(store, key, out, ref_out);

	if (err == -EINPROGRESS)
		return err;
	ucm_count(&store->stats.lookups);
	ucm_count(err ? &store->stats.misses : &store->stats.hits);
	return err;
}

static void edit_touch(struct ucm_entry *entry, void *arg)
{
	ucm_value_use(arg, entry);
}

int ucm_store_touch(struct ucm_store *store, ucm_ref ref)
{
	return ucm_index_edit(store->index, ref, edit_touch, &store->value)
		       ? 0
		       : -ENOENT;
}

static int store_open_entry(struct ucm_store *store,
			    const struct ucm_entry *entry,
			    struct ucm_file *out, struct stat *st)
{
	struct ucm_medium *medium = store->dirs.at[entry->dir];

	return ucm_medium_open_block(medium, ucm_store_folder(store, entry),
				     &entry->id, out, st);
}

/* For the store's own use; ends with store_close_ref(). */
static int store_open_ref(struct ucm_store *store, ucm_ref ref,
			  struct ucm_entry *entry_out, struct ucm_file *out,
			  struct stat *st, struct ucm_open *open)
{
	int err = ucm_hold_open(store, open, ref, false);

	if (err)
		return err;
	err = ucm_index_get(store->index, ref, entry_out)
		      ? store_open_entry(store, entry_out, out, st)
		      : -ENOENT;
	if (err)
		ucm_hold_end(store, open);
	return err;
}

static void store_close_ref(struct ucm_store *store, struct ucm_open *open,
			    struct ucm_file *file)
{
	ucm_file_close(file);
	ucm_hold_end(store, open);
}

/* What is in doubt is read, and of a writer's file it is asked whether it has
 * changed. -ENOENT: the block is gone. */
static int store_wait_to_open(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_entry entry;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	return entry.flags & (UCM_ENTRY_DOUBT | UCM_ENTRY_WRITABLE)
		       ? ucm_wait_long(entry.dir)
		       : ucm_wait_for(&store->dirs, entry.dir);
}

int ucm_store_header(struct ucm_store *store, ucm_ref ref,
		     struct ucm_block *out)
{
	struct ucm_open open = { 0 };
	enum ucm_fault fault;
	struct ucm_entry entry;
	struct ucm_file file;
	struct ucm_bytes bytes;
	struct stat st;
	int err = store_wait_to_open(store, ref);

	if (!err)
		err = store_open_ref(store, ref, &entry, &file, &st, &open);
	if (err)
		return err;
	bytes = ucm_file_bytes(&file);
	err = ucm_verify_header(&bytes, (uint64_t)st.st_size, &entry.id, out,
				&fault);
	store_close_ref(store, &open, &file);
	return err ? err : fault ? -EIO : 0;
}

/* The first open of what a snapshot has named: is it the block? If not, it is
 * looked at as if it had just been found. */
static int store_first_look(struct ucm_store *store, ucm_ref ref,
			    const struct ucm_entry *entry,
			    const struct ucm_file *file, const struct stat *st)
{
	const struct ucm_bytes bytes = ucm_file_bytes(file);
	uint64_t size = (uint64_t)st->st_size;
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	int err = ucm_verify_header(&bytes, size, &entry->id, &block, &fault);

	if (err)
		return ucm_store_fail(store, entry->dir, &entry->id, "read",
				      err);
	if (!fault)
		fault = ucm_space_fits(store->names.spaces[entry->space],
				       &block, true);
	if (!fault && size == entry->size) {
		ucm_index_set_parent(store->index, ref,
				     ucm_store_parent(&block));
		ucm_index_flag(store->index, ref, UCM_ENTRY_UNREAD, false);
		return 0;
	}
	return ucm_store_lose(store, ref, entry->dir, st, -ESTALE) ? -ENOENT
								   : -EAGAIN;
}

/* A file of another size than its entry says. -ENOENT: it has been set aside;
 * -EAGAIN: the entry says so no more. */
static int store_wrong_size(struct ucm_store *store, ucm_ref ref,
			    const struct ucm_entry *entry,
			    const struct stat *st)
{
	struct ucm_entry now;
	bool wrong;

	ucm_store_lock_name(store, &entry->id);
	wrong = ucm_store_get_judged(store, ref, entry->dir, st, &now) &&
		now.size != (uint64_t)st->st_size;
	if (wrong)
		ucm_store_condemn(store, ref, entry->dir, st,
				  (uint64_t)st->st_size < now.size
					  ? UCM_FAULT_SHORT
					  : UCM_FAULT_SIZE,
				  "");
	ucm_store_unlock_name(store, &entry->id);
	return wrong ? -ENOENT : -EAGAIN;
}

/* What of an open file may be wrong with regard to its entry. -EAGAIN: the
 * entry has become another file's meanwhile. */
static int store_look(struct ucm_store *store, ucm_ref ref,
		      const struct ucm_entry *entry,
		      const struct ucm_file *file, const struct stat *st)
{
	int err = 0;

	if (entry->flags & UCM_ENTRY_UNREAD)
		err = store_first_look(store, ref, entry, file, st);
	if (!err && (uint64_t)st->st_size != entry->size)
		err = store_wrong_size(store, ref, entry, st);
	if (!err && entry->flags & UCM_ENTRY_WRITABLE)
		err = ucm_store_check_written(store, ref, entry, file,
					      st);
	return err;
}

/* The server was restarted, or another daemon has removed the file. Once more, now that
 * the folder is as the server has it. */
static int store_open_fresh(struct ucm_store *store,
			    const struct ucm_entry *entry, struct ucm_file *file,
			    struct stat *st)
{
	int err = store_open_entry(store, entry, file, st);

	if (err != -ESTALE || !store->dirs.at[entry->dir]->hosts)
		return err;
	ucm_medium_stamp(store->dirs.at[entry->dir],
			 ucm_store_folder(store, entry),
			 ucm_tree_bucket(&entry->id), st);
	err = store_open_entry(store, entry, file, st);
	return err == -ESTALE ? -ENOENT : err;
}

/* -EAGAIN: likewise. */
static int store_open_once(struct ucm_store *store, ucm_ref ref,
			   struct ucm_entry *out, struct ucm_file *file)
{
	struct ucm_entry entry;
	struct stat st;
	int err;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (entry.flags & UCM_ENTRY_DOUBT) {
		err = ucm_store_settle(store, ref);
		if (!err && !ucm_index_get(store->index, ref, &entry))
			err = -ENOENT;
		if (err)
			return err;
	}
	err = store_open_fresh(store, &entry, file, &st);
	if (err == -ENOENT || err == -ENXIO || err == -ELOOP)
		return ucm_store_lose(store, ref, entry.dir, NULL, err)
			       ? -ENOENT
			       : -EAGAIN;
	if (err)
		return ucm_store_fail(store, entry.dir, &entry.id, "open",
				      err);
	err = store_look(store, ref, &entry, file, &st);
	if (err)
		ucm_file_close(file);
	else
		*out = entry;
	return err;
}

/* A miss is never wrong: one that changes all the time is one. */
#define OPEN_TRIES 4

static int store_open_checked(struct ucm_store *store, ucm_ref ref,
			      struct ucm_entry *out, struct ucm_file *file)
{
	int err = -EAGAIN;

	for (int i = 0; i < OPEN_TRIES && err == -EAGAIN; i++)
		err = store_open_once(store, ref, out, file);
	return err == -EAGAIN ? -ENOENT : err;
}

int ucm_store_open_block(struct ucm_store *store, ucm_ref ref,
			 struct ucm_entry *out, struct ucm_file *file_out,
			 struct ucm_open *open)
{
	struct ucm_open own = { 0 };
	int err = store_wait_to_open(store, ref);

	if (!err)
		err = store_open_checked(store, ref, out, file_out);
	if (err)
		return err;
	/* it may have been evicted while it was opened */
	err = ucm_hold_open(store, open ? open : &own, ref, true);
	if (err) {
		ucm_file_close(file_out);
		return err;
	}
	ucm_hold_end(store, &own);
	ucm_jobs_used(store, ref, out);
	return 0;
}

int ucm_store_check(struct ucm_store *store, ucm_ref ref)
{
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct ucm_entry entry;

	return store_open_checked(store, ref, &entry, &file);
}

int ucm_store_open_again(struct ucm_store *store, struct ucm_open *open)
{
	struct ucm_entry entry;
	int err = 0;

	if (!ucm_index_get(store->index, open->ref, &entry))
		return -ENOENT;
	if (entry.flags & (UCM_ENTRY_DOUBT | UCM_ENTRY_WRITABLE)) {
		err = store_wait_to_open(store, open->ref);
		if (!err)
			err = ucm_store_check(store, open->ref);
	}
	if (!err)
		err = ucm_hold_open(store, open, open->ref, true);
	if (!err)
		ucm_jobs_used(store, open->ref, &entry);
	return err;
}

/* ---- removing and marking ---- */

/* Its two places; everywhere, if more were seen; and where nobody has looked.
 * The entry as it is after that was asked: a scan may have found one meanwhile. */
static bool may_lie_in(struct ucm_store *store, ucm_ref ref,
		       const struct ucm_entry *entry, unsigned dir)
{
	struct ucm_space *space = store->names.spaces[entry->space];
	struct ucm_entry now;

	return !ucm_space_is_scanned(space, dir, ucm_tree_bucket(&entry->id)) ||
	       !ucm_index_get(store->index, ref, &now) ||
	       ucm_entry_has_dir(&now, dir);
}

/* A copy on a read-only tier would come back with the next mount. */
static bool lies_on_readonly(struct ucm_store *store, struct ucm_space *space,
			     ucm_ref ref, const struct ucm_entry *entry)
{
	for (unsigned i = 0; i < store->dirs.num; i++) {
		struct ucm_medium *medium = store->dirs.at[i];
		struct stat st;

		if (!medium->readonly || !may_lie_in(store, ref, entry, i))
			continue;
		if (!ucm_medium_find(medium, space->folder, &entry->id, &st))
			return true;
	}
	return false;
}

static void count_removal(struct ucm_store *store,
			  const struct ucm_entry *entry)
{
	struct ucm_tier_stats *stats = &store->dirs.tier_of[entry->dir]->stats;

	ucm_debug(TIER, 1, "block %s: removed", ucm_hex(&entry->id).text);
	ucm_count(&store->stats.removed);
	ucm_count(&stats->removed);
	ucm_count_more(&stats->removed_bytes, entry->size);
}

/* Slow tiers first: what fails leaves the fast copy and the entry. */
static int store_remove_files(struct ucm_store *store,
			      const struct ucm_space *space, ucm_ref ref,
			      const struct ucm_entry *entry)
{
	for (unsigned i = store->dirs.num; i-- > 0;) {
		struct ucm_medium *medium = store->dirs.at[i];
		int err;

		if (medium->readonly || !may_lie_in(store, ref, entry, i))
			continue;
		err = ucm_medium_remove(medium, space->folder, &entry->id);
		if (err && err != -ENOENT)
			return ucm_store_fail(store, i, &entry->id, "unlink",
					      err);
	}
	return 0;
}

/* Of an unlink, which asks nobody. */
static int store_mark_leaving(struct ucm_store *store, ucm_ref ref)
{
	ucm_index_flag(store->index, ref, UCM_ENTRY_LEAVING, true);
	return 0;
}

static int store_remove_locked(struct ucm_store *store,
			       const struct ucm_key *key,
			       enum ucm_policy_why why, bool leaf)
{
	struct ucm_space *space = ucm_namespace_get(&store->names, key->space);
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	if (!space)
		return -ENOENT;
	err = find_or_probe(store, key, &entry, &ref);
	if (err)
		return err;
	if (lies_on_readonly(store, space, ref, &entry))
		return -EROFS;
	if (why == UCM_POLICY_EVICTED &&
	    (ucm_store_is_pinned_in(store, ref, &entry, entry.dir) ||
	     (entry.copy && ucm_store_is_pinned_in(store, ref, &entry,
						   entry.copy - 1u))))
		return -EPERM;
	/* before the file: whoever maps the index never sees a block that is
	 * gone; the entry is removed after it, so that we find it until then */
	err = why == UCM_POLICY_EVICTED
		      ? ucm_store_claim(store, ref, leaf, NULL)
		      : store_mark_leaving(store, ref);
	if (err)
		return err;
	/* the mark first: it must not wait for another block of that name */
	ucm_pins_remove(&store->pins, key);
	if (entry.flags & UCM_ENTRY_PINNED)
		ucm_store_mark_pin(store, &entry, false);
	err = store_remove_files(store, space, ref, &entry);
	if (err) {
		if (entry.flags & UCM_ENTRY_PINNED)
			ucm_store_mark_pin(store, &entry, true);
		ucm_store_unclaim(store, ref);
		return err;
	}
	if (!ucm_store_index_remove(store, ref, why, &entry))
		return -ENOENT;
	count_removal(store, &entry);
	return 0;
}

/* Before a mark is taken away: one that is being read would come back. */
static void store_read_pins(struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		ucm_pins_read(store, dir);
}

static int store_remove(struct ucm_store *store, const struct ucm_key *key,
			enum ucm_policy_why why, bool leaf)
{
	int err = ucm_wait_for_any(&store->dirs);
	struct ucm_entry entry;
	ucm_ref ref;

	if (!err && ucm_store_is_shared(store))
		err = find_fresh(store, key, &entry, &ref);
	if (err)
		return err;
	store_read_pins(store);
	ucm_store_lock_name(store, &key->id);
	err = store_remove_locked(store, key, why, leaf);
	ucm_store_unlock_name(store, &key->id);
	return err;
}

int ucm_store_remove(struct ucm_store *store, const struct ucm_key *key)
{
	return store_remove(store, key, UCM_POLICY_REMOVED, false);
}

int ucm_store_evict(struct ucm_store *store, const struct ucm_key *key, bool leaf)
{
	return store_remove(store, key, UCM_POLICY_EVICTED, leaf);
}

static void edit_times(struct ucm_entry *entry, void *arg)
{
	const struct stat *st = arg;

	entry->mtime_ns = ucm_time_ns(&st->st_mtim);
	entry->atime_s = (uint32_t)st->st_atim.tv_sec;
}

int ucm_store_set_times(struct ucm_store *store, ucm_ref ref,
			const struct timespec times[2])
{
	struct ucm_open open = { 0 };
	struct ucm_entry entry;
	struct ucm_file file;
	struct stat st;
	int err = store_wait_to_open(store, ref);

	if (!err)
		err = store_open_ref(store, ref, &entry, &file, &st, &open);
	if (err)
		return err;
	/* or new times would hide what its writer has done meanwhile */
	err = entry.flags & UCM_ENTRY_WRITABLE
		      ? ucm_store_check_written(store, ref, &entry, &file, &st)
		      : 0;
	if (!err)
		err = ucm_file_set_times(&file, times);
	if (!err)
		err = ucm_file_stat(&file, &st);
	if (!err)
		ucm_index_edit(store->index, ref, edit_times, &st);
	store_close_ref(store, &open, &file);
	return err;
}

static int pin_locked(struct ucm_store *store, ucm_ref ref, bool pinned)
{
	struct ucm_entry entry;
	int err;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (!pinned)
		ucm_pins_remove(&store->pins,
				&(struct ucm_key){ .id = entry.id,
						   .space = entry.space });
	err = ucm_store_mark_pin(store, &entry, pinned);
	if (err)
		return ucm_store_fail(store, entry.dir, &entry.id,
				      "the mark of its pin", err);
	ucm_index_flag(store->index, ref, UCM_ENTRY_PINNED, pinned);
	return 0;
}

/* Under the name's lock: no mark is left of a block that is just being
 * removed, and none that is being pinned is evicted. */
int ucm_store_pin(struct ucm_store *store, ucm_ref ref, bool pinned)
{
	struct ucm_entry entry;
	int err;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	err = ucm_wait_for(&store->dirs, entry.dir);
	if (err)
		return err;
	if (!pinned)
		store_read_pins(store);
	ucm_store_lock_name(store, &entry.id);
	err = pin_locked(store, ref, pinned);
	ucm_store_unlock_name(store, &entry.id);
	return err;
}

/* ---- for people ---- */

int ucm_store_path(struct ucm_store *store, const struct ucm_entry *entry,
		   char *path, size_t size)
{
	char block[UCM_TREE_PATH_MAX];
	int len;

	ucm_tree_block_path(store->names.spaces[entry->space]->folder,
			       &entry->id, block);
	len = snprintf(path, size, "%s/%s", store->dirs.at[entry->dir]->path,
		       block);
	return (size_t)len < size ? 0 : -ERANGE;
}

/* The tier, or each of its directories. */
static bool is_limited(const struct ucm_tier *tier)
{
	bool all = true;

	for (unsigned i = 0; i < tier->num_dirs; i++)
		all = all && tier->dirs[i]->limit.size;
	return tier->limit.size || all;
}

/* Tiers without a limit on one file system share its space. */
static bool shares_device(const struct ucm_store *store, unsigned number)
{
	const struct ucm_tier *tiers = store->dirs.tiers;

	for (unsigned i = 0; i < number; i++) {
		if (!is_limited(&tiers[i]) &&
		    tiers[i].dirs[0]->dev == tiers[number].dirs[0]->dev)
			return true;
	}
	return false;
}

void ucm_store_statvfs(struct ucm_store *store, struct statvfs *out)
{
	uint64_t total = 0, available = 0;

	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		uint64_t tier_total, tier_free;

		ucm_tier_space(&store->dirs.tiers[i], &tier_total, &tier_free);
		if (shares_device(store, i) &&
		    !is_limited(&store->dirs.tiers[i]))
			continue;
		total += tier_total;
		if (!store->dirs.tiers[i].readonly)
			available += tier_free;
	}
	*out = (struct statvfs){
		.f_bsize = UCM_BLOCK_PAGE,
		.f_frsize = UCM_BLOCK_PAGE,
		.f_blocks = total / UCM_BLOCK_PAGE,
		.f_bfree = available / UCM_BLOCK_PAGE,
		.f_bavail = available / UCM_BLOCK_PAGE,
		/* as many small blocks as there is room for */
		.f_files = atomic_load(&store->blocks) +
			   available / UCM_BLOCK_PAGE,
		.f_ffree = available / UCM_BLOCK_PAGE,
		.f_favail = available / UCM_BLOCK_PAGE,
		.f_namemax = 255,
	};
}
