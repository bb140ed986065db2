/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.c - from a temporary file to a block.
 *
 * The order of a commit: look at the file (header, size, extension), ask the
 * space for its geometry, make it durable as configured, link it, index it.
 * Whatever fails before the link leaves a temporary file; the link is the one
 * moment at which the block comes to be; after it, nothing can fail but our
 * own memory, and then the next probe or scan finds the block.
 *
 * Its writer may be at work all the time: through another descriptor, by a copy
 * that a fork made, or by a mapping. So the state of the file (its stamp) is
 * taken before anything of it is judged, and compared before and after the
 * link: a verdict holds for the state that it was formed on and for no other.
 * So does its writer's word that the payload need not be read: if the file has
 * changed since then, its checksums are compared.
 * What is written later is late.c's.
 *
 * Two writers of one block: link(2) lets one win, in one directory; the index
 * decides between directories. The loser's file is removed, and its writer is
 * told that all is well, because the name says what the bytes are.
 *
 * It ends with the block: what follows is for the movers. With write=through the
 * caller waits until one has copied it below, and holds nothing meanwhile.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "fs/block/verify.h"
#include "fs/store/endurance.h"
#include "fs/store/jobs.h"
#include "fs/store/quota.h"
#include "hashing/tree.h"

int ucm_store_refuse(struct ucm_store *store, const struct ucm_key *key,
		     enum ucm_fault fault, const char *detail)
{
	ucm_warning("block %s: not committed: %s", ucm_hex(&key->id).text,
		    detail ? detail : ucm_fault_text(fault));
	ucm_count(&store->stats.commit_refused);
	ucm_count(&store->stats.refused_for[fault]);
	return -EINVAL;
}

static int tier_failed(struct ucm_store *store, const struct ucm_temp *temp,
		       const struct ucm_key *key, const char *call, int err)
{
	char what[80];

	snprintf(what, sizeof(what), "commit %s: %s", ucm_hex(&key->id).text,
		 call);
	ucm_medium_failed(temp->medium, what, err);
	ucm_dirs_count_error(&store->dirs, temp->dir, err);
	ucm_count(&store->stats.commit_failed);
	return err == -ENOSPC || err == -EDQUOT ? err : -EIO;
}

/* A bare header does not announce a size; the space's geometry does, if it has
 * one. */
static bool is_short_bare(struct ucm_space *space,
			  const struct ucm_block *block, uint64_t size)
{
	uint64_t want;

	if (block->form != UCM_FORM_BARE || !ucm_space_has_geometry(space))
		return false;
	pthread_mutex_lock(&space->lock);
	want = block->data_offset + ucm_block_payload_bytes(&space->geometry);
	pthread_mutex_unlock(&space->lock);
	return size < want;
}

/* A file may have its size before it has its bytes: only checksums show that. */
static int judge_bytes(const struct ucm_temp *temp,
		       const struct ucm_bytes *bytes, const struct ucm_key *key,
		       enum ucm_commit_when when, struct ucm_block *block,
		       enum ucm_fault *fault)
{
	uint32_t plane;
	int err;

	if (!(block->flags & UCM_BLOCK_HAS_CRC)) {
		if (when != UCM_COMMIT_NOW)
			*fault = UCM_FAULT_UNVOUCHED;
		return 0;
	}
	err = ucm_verify_whole(bytes, (uint64_t)temp->stamp.st_size, &key->id,
			       block, fault, &plane);
	if (!err && *fault && when == UCM_COMMIT_IF_WHOLE)
		*fault = UCM_FAULT_SHORT; /* it may be on its way */
	return err;
}

/* What is wrong with the file, of which temp->stamp is the state before
 * anything of it was read. */
static int find_fault(struct ucm_temp *temp, const struct ucm_file *file,
		      struct ucm_space *space, const struct ucm_key *key,
		      enum ucm_commit_when when, struct ucm_block *block,
		      enum ucm_fault *fault)
{
	const struct ucm_bytes bytes = ucm_file_bytes(file);
	bool is_written = when == UCM_COMMIT_WRITTEN;
	uint64_t size = (uint64_t)temp->stamp.st_size;
	int err = ucm_verify_commit(is_written && temp->head ? temp->head : &bytes,
				    size, &key->id, block, fault);

	if (!err && !*fault && is_short_bare(space, block, size))
		*fault = UCM_FAULT_SHORT;
	if (!err && !*fault && !is_written)
		err = judge_bytes(temp, &bytes, key, when, block, fault);
	return err;
}

/* 0 and the block; -EAGAIN if it is not whole yet; or what commit returns. */
static int commit_judge(struct ucm_store *store, struct ucm_temp *temp,
			const struct ucm_file *file, struct ucm_space *space,
			const struct ucm_key *key, enum ucm_commit_when when,
			struct ucm_block *block)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	int err = ucm_file_stat(file, &temp->stamp);

	if (!err)
		err = find_fault(temp, file, space, key, when, block, &fault);
	if (err)
		return tier_failed(store, temp, key, "read", err);
	if (fault == UCM_FAULT_SHORT) {
		ucm_debug(COMMIT, 2, "block %s: incomplete: %lld bytes",
			  ucm_hex(&key->id).text,
			  (long long)temp->stamp.st_size);
		return -EAGAIN;
	}
	if (fault == UCM_FAULT_UNVOUCHED)
		return ucm_store_refuse(store, key, fault,
					"it has no checksums: fsync or rename "
					"makes it a block");
	return fault ? ucm_store_refuse(store, key, fault, NULL) : 0;
}

/* Under the name's lock. */
static void commit_forget_entry(struct ucm_store *store,
				const struct ucm_key *key, unsigned dir)
{
	struct ucm_entry entry;
	ucm_ref ref;

	if (!ucm_index_find(store->index, key, &entry, &ref))
		return;
	if (entry.dir == dir)
		ucm_store_index_remove(store, ref, UCM_POLICY_REMOVED, NULL);
	else
		ucm_store_forget_copy(store, ref, dir);
}

/* What has our name is no block that can be served. */
static void make_way(struct ucm_store *store, const struct ucm_temp *temp,
		     struct ucm_space *space, const struct ucm_key *key)
{
	struct ucm_medium *medium = temp->medium;

	commit_forget_entry(store, key, temp->dir);
	if (ucm_medium_set_aside(medium, space->folder, &key->id))
		return;
	ucm_warning("%s: block %s: its name was that of another file: "
		    "quarantined",
		    medium->path, ucm_hex(&key->id).text);
	ucm_count(&store->stats.quarantined);
	ucm_count(&store->stats.quarantined_for[UCM_FAULT_NONE]);
}

/* There already, and good: one that is in doubt is checked first, and one
 * whose file has vanished is none. */
static bool commit_is_there(struct ucm_store *store, const struct ucm_key *key)
{
	ucm_ref ref;

	return ucm_index_find(store->index, key, NULL, &ref) &&
	       !ucm_store_check(store, ref);
}

/* Another daemon has committed it: that is a success, and nothing of it is set aside.
 * For it to be seen here its folder is asked for first. */
static int link_beside_others(struct ucm_store *store,
			      const struct ucm_temp *temp,
			      struct ucm_space *space,
			      const struct ucm_key *key)
{
	struct stat st;

	ucm_medium_stamp(temp->medium, space->folder, ucm_tree_bucket(&key->id),
			 &st);
	if (!commit_is_there(store, key))
		ucm_store_examine(store, space, &key->id, temp->dir);
	return -EEXIST;
}

static int commit_link_block(struct ucm_store *store,
			     const struct ucm_temp *temp,
			     struct ucm_space *space, const struct ucm_key *key)
{
	bool sync = store->config->durability == UCM_DURABILITY_FULL;
	int err = ucm_store_link(store, temp, space, &key->id, sync);

	if (err != -EEXIST)
		return err;
	if (temp->medium->hosts)
		return link_beside_others(store, temp, space, key);
	/* a file has our name: a block, perhaps one that no scan has seen */
	if (commit_is_there(store, key))
		return -EEXIST;
	err = ucm_store_examine(store, space, &key->id, temp->dir);
	if (err < 0 && err != -EIO)
		return err; /* it says nothing of the file */
	if (err > 0 && commit_is_there(store, key))
		return -EEXIST;
	make_way(store, temp, space, key);
	err = ucm_store_link(store, temp, space, &key->id, sync);
	return err == -EEXIST ? -EIO : err; /* it did not go */
}

static bool is_unreadable(struct ucm_store *store, ucm_ref ref)
{
	int err = ucm_store_check(store, ref);

	return err && err != -ENOENT;
}

static void count_commit(struct ucm_store *store, const struct ucm_temp *temp)
{
	struct ucm_tier_stats *stats = &store->dirs.tier_of[temp->dir]->stats;

	atomic_store(&store->keepers[temp->dir].dirty, true);
	ucm_count(&store->stats.commits);
	ucm_count(&stats->commits);
	ucm_count_more(&stats->committed_bytes, (uint64_t)temp->stamp.st_size);
	ucm_endurance_wrote(store, store->dirs.tier_of[temp->dir],
			    ucm_file_takes(&temp->stamp));
}

/* Its directory has lost writes since it was made: these, perhaps. */
static bool is_loser(const struct ucm_temp *temp)
{
	return atomic_load(&temp->medium->recovery.losses) != temp->losses;
}

/* The same bytes, as far as stamps show; link(2) has set the ctime. */
static bool same_bytes(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size &&
	       !memcmp(&a->st_mtim, &b->st_mtim, sizeof(a->st_mtim));
}

/* The file has its name. Was it still the one that was judged? Without a new
 * stamp the old one stays: it differs, so that the file is checked when it is
 * closed for the last time. */
static int stamp_link(struct ucm_store *store, struct ucm_temp *temp,
		      const struct ucm_file *file, struct ucm_space *space,
		      const struct ucm_key *key)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct stat st;

	if (ucm_file_stat(file, &st))
		return 0;
	if (!same_bytes(&st, &temp->stamp) &&
	    ucm_store_find_late_fault(space, file, &st, &key->id, &fault))
		fault = UCM_FAULT_UNVOUCHED; /* changed, and cannot be read */
	temp->stamp = st;
	if (!fault)
		return 0;
	temp->lost = true; /* it has no name to be tried again under */
	/* a scan may have come between, and have taken it for a block */
	commit_forget_entry(store, key, temp->dir);
	ucm_store_set_aside(store, space, &key->id, temp->dir, &st, fault,
			    ", written to during its commit");
	return ucm_store_refuse(store, key, fault, NULL);
}

static void commit_value(struct ucm_store *store, struct ucm_entry *entry,
			 const struct ucm_id *parent)
{
	struct ucm_key key = { .space = entry->space };
	struct ucm_entry before;
	bool has_parent = false;

	if (parent) {
		key.id = *parent;
		has_parent = ucm_index_find(store->index, &key, &before, NULL);
	}
	ucm_value_fresh(&store->value, entry, has_parent ? &before : NULL);
}

/* Into the index, unless another directory's writer was faster. */
static int commit_index_block(struct ucm_store *store, struct ucm_temp *temp,
			      struct ucm_space *space,
			      const struct ucm_key *key,
			      const struct ucm_id *parent)
{
	struct ucm_entry entry, there;
	int err;

	ucm_store_entry(key, temp->dir, &temp->stamp, &entry);
	commit_value(store, &entry, parent);
	entry.flags = temp->shared ? UCM_ENTRY_WRITABLE | UCM_ENTRY_SHARED
				   : UCM_ENTRY_WRITABLE;
	if (is_loser(temp))
		entry.flags |= UCM_ENTRY_DOUBT;
	entry.epoch = atomic_load(&temp->medium->recovery.epoch);
	err = ucm_store_index_add(store, space, &entry, parent, &temp->ref);
	/* a scan came between link and index, or it is the entry of a file that
	 * made way; or another directory's is there that cannot be read */
	if (err == -EEXIST && ucm_index_get(store->index, temp->ref, &there) &&
	    (there.dir == temp->dir || is_unreadable(store, temp->ref))) {
		ucm_store_adopt(store, temp,
				entry.flags & (uint8_t)~UCM_ENTRY_DOUBT);
		err = 0;
	}
	if (!err) {
		if (is_loser(temp)) /* since the commit began */
			ucm_store_doubt(store, temp->ref);
		atomic_fetch_add(&store->writers, 1);
		count_commit(store, temp);
		return 0;
	}
	temp->ref = 0;
	ucm_medium_remove(temp->medium, space->folder, &key->id);
	if (err != -EEXIST)
		return err;
	ucm_count(&store->stats.commit_duplicates);
	return 0;
}

/* As durable as it is to be. A network file system writes what it has kept, and
 * reports errors, when a file is closed; a failure is reported once and never
 * asked for again: the next answer would be a lie. */
static int make_durable(struct ucm_store *store, struct ucm_temp *temp,
			const struct ucm_file *file, const struct ucm_key *key)
{
	const char *call = "close";
	int err = temp->medium->flags & UCM_MEDIUM_REPORTS_AT_CLOSE
			  ? ucm_file_sync(file, UCM_SYNC_FLUSH)
			  : 0;

	/* of a shared one no daemon suspects what a crash has torn */
	if (!err && (store->config->durability != UCM_DURABILITY_NONE ||
		     temp->medium->hosts)) {
		call = "fdatasync";
		err = ucm_file_sync(file, UCM_SYNC_DATA);
	}
	if (!err)
		return 0;
	temp->lost = true;
	return tier_failed(store, temp, key, call, err);
}

/* -EEXIST: a good block of that name, which no entry stood for, is there. */
static int make_block(struct ucm_store *store, struct ucm_temp *temp,
		      const struct ucm_file *file, struct ucm_space *space,
		      const struct ucm_key *key, const struct ucm_id *parent)
{
	int err = ucm_store_changed(temp, file, &temp->changed);

	if (err)
		return tier_failed(store, temp, key, "read", err);
	if (temp->changed)
		return -EAGAIN;
	err = commit_link_block(store, temp, space, key);
	if (err == -EEXIST)
		return err;
	if (err)
		return tier_failed(store, temp, key, "link", err);
	err = stamp_link(store, temp, file, space, key);
	return err ? err
		   : commit_index_block(store, temp, space, key, parent);
}

/* The first block would fix a geometry for which each new file is promised as
 * much room. */
static int check_size(struct ucm_store *store, const struct ucm_key *key,
		      uint64_t size)
{
	char why[80];

	if (size <= store->config->block_max)
		return 0;
	snprintf(why, sizeof(why), "%llu bytes: block_max is %llu",
		 (unsigned long long)size,
		 (unsigned long long)store->config->block_max);
	ucm_store_refuse(store, key, UCM_FAULT_SIZE, why);
	return -EFBIG;
}

/* Its space may have promised it less than it takes: the size was not known, or
 * there was no quota, or it was made in another one. A duplicate takes nothing. */
static int commit_promise(struct ucm_store *store, struct ucm_temp *temp,
			  struct ucm_space *space, const struct ucm_key *key)
{
	bool is_there = ucm_index_find(store->index, key, NULL, NULL);
	uint64_t takes = ucm_store_takes(&temp->stamp);

	if (!is_there && ucm_quota_try(space, takes, &temp->part))
		return -EDQUOT;
	return 0;
}

static ucm_ref commit_find_entry(struct ucm_store *store,
				 const struct ucm_key *key)
{
	ucm_ref ref;

	return ucm_index_find(store->index, key, NULL, &ref) ? ref : 0;
}

#define LOOKS 16 /* at entries that others change all the time */

/* Is a block of that name there, and is it good? That is asked, and the file made
 * durable, before the name's lock is taken: others' names share it, and a server
 * may let either hang. What was seen holds as long as the entry is the same. */
static int commit_publish(struct ucm_store *store, struct ucm_temp *temp,
			  const struct ucm_file *file, struct ucm_space *space,
			  const struct ucm_key *key,
			  const struct ucm_id *parent)
{
	bool durable = false, changed;
	unsigned looks = 0;
	int err;

	do {
		ucm_ref seen = commit_find_entry(store, key);
		bool good = seen && !ucm_store_check(store, seen);

		err = good || durable ? 0 : make_durable(store, temp, file, key);
		if (err)
			return err;
		durable |= !good;
		ucm_store_lock_name(store, &key->id);
		changed = commit_find_entry(store, key) != seen &&
			  ++looks < LOOKS;
		if (!changed)
			err = good ? -EEXIST
				   : make_block(store, temp, file, space, key,
						parent);
		ucm_store_unlock_name(store, &key->id);
	} while (changed);
	if (err != -EEXIST)
		return err;
	ucm_medium_drop(temp->medium, temp->path);
	ucm_count(&store->stats.commit_duplicates);
	return 0;
}

/* Judge it and, if it is right, make it a block. */
static int try_commit(struct ucm_store *store, struct ucm_temp *temp,
		      const struct ucm_file *file, struct ucm_space *space,
		      const struct ucm_key *key, enum ucm_commit_when when)
{
	struct ucm_error why;
	struct ucm_block block;
	enum ucm_fault fault;
	int err;

	temp->changed = false;
	if (is_loser(temp)) {
		temp->lost = true;
		return tier_failed(store, temp, key, "writes were lost", -EIO);
	}
	err = commit_judge(store, temp, file, space, key, when, &block);
	if (!err)
		err = check_size(store, key, (uint64_t)temp->stamp.st_size);
	if (err)
		return err;
	fault = ucm_space_admit(space, &block, &why);
	if (fault)
		return ucm_store_refuse(store, key, fault, why.text);
	err = commit_promise(store, temp, space, key);
	if (!err)
		err = commit_publish(store, temp, file, space, key,
				     ucm_store_parent(&block));
	if (!err) {
		ucm_debug(COMMIT, 1, "block %s: %s %s, %lld bytes",
			  ucm_hex(&key->id).text,
			  temp->ref ? "committed in" : "there already; from",
			  temp->medium->path,
			  (long long)temp->stamp.st_size);
		temp->committed = true;
		temp->key = *key;
		ucm_store_end_promise(temp);
	}
	ucm_space_settled(space);
	return err;
}

/* What fails is tried again once the file is closed: the block is there. */
static void commit_through(struct ucm_store *store, const struct ucm_temp *temp)
{
	int err = ucm_jobs_write_through(store, temp->ref);

	if (err && err != -EEXIST && err != -ENOENT)
		ucm_warning("block %s: not written through to a lower tier: %s",
			    ucm_hex(&temp->key.id).text, strerror(-err));
}

#define TRIES 3 /* of a file that is written to while it is judged */

int ucm_store_commit(struct ucm_store *store, struct ucm_temp *temp,
		     const struct ucm_file *file, const struct ucm_key *key,
		     enum ucm_commit_when when)
{
	struct ucm_space *space = ucm_namespace_get(&store->names, key->space);
	int err = -EAGAIN;

	if (!space)
		return -ENOENT;
	if (temp->lost)
		return -EIO;
	temp->changed = true;
	for (int i = 0; i < TRIES && err == -EAGAIN && temp->changed; i++) {
		err = try_commit(store, temp, file, space, key, when);
		/* its writer said it of what was there before */
		if (temp->changed && when == UCM_COMMIT_WRITTEN)
			when = UCM_COMMIT_NOW;
	}
	if (!err && temp->ref && temp->tier->write_mode == UCM_WRITE_THROUGH)
		commit_through(store, temp);
	return err;
}
