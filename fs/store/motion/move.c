/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move.c - one block from one place to another; see motion.h.
 *
 * A copy, in order: the source is opened, and held, so that nobody evicts it; a
 * new file is made where there is room; verify.h reads the source, and whatever
 * it reads is written to the new file, so that no byte is copied that no
 * checksum has seen (of a block that has some) and none is read twice; the new
 * file is made durable, if that is wanted; then, under the name's lock and if
 * the entry is still that of the file that was read, it is linked, and the entry
 * gets its second place.
 *
 * The end of a place, in order, under the name's lock: the entry says that the
 * block is no longer there, and then the file is removed.
 *
 * So at each moment all places that the entry names have the whole block, and a
 * crash leaves at worst a temporary file, which the next start removes, or a
 * file more than the entry says, which the next scan finds as a second place. A
 * reader who has the block open keeps the file that he has; one who found the
 * old place and comes too late gets -ENOENT from the directory and looks again
 * (store_open_checked()).
 *
 * What may come between the opening of the source and the link: an unlink, an
 * eviction (not while we hold it), another mover, a new commit of that name
 * after an unlink. All of them change the entry under the name's lock: its
 * reference is stale then, or its first place another.
 */
#include <config.h>

#include "fs/store/motion/motion.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/profile.h"
#include "fs/block/verify.h"
#include "fs/store/endurance.h"
#include "fs/store/find/find.h"
#include "hashing/tree.h"

#define CHUNK (1u << 20) /* of what verify.h does not read */

struct moving {
	struct ucm_store *store;
	const struct ucm_move_terms *move;
	ucm_ref ref;
	struct ucm_entry entry;
	struct ucm_space *space;
	struct ucm_key key;
	struct ucm_file source;
	struct stat st; /* of it, before anything was read */
	struct ucm_temp temp;
	struct ucm_file target;
	uint64_t done; /* so many bytes from the start are written */
};

/* ---- the bytes ---- */

/* Reads the source, and writes what was read. */
static ssize_t move_read(const struct ucm_bytes *bytes, void *buffer,
			 size_t len, uint64_t offset)
{
	struct moving *m = (struct moving *)(uintptr_t)bytes->from;
	ssize_t got = ucm_file_read(&m->source, buffer, len, offset);
	uint64_t end = offset + (uint64_t)(got > 0 ? got : 0);
	uint64_t skip = m->done > offset ? m->done - offset : 0;
	int err;

	/* a gap is left to move_rest() */
	if (got < 0 || end <= m->done || offset > m->done)
		return got;
	err = ucm_file_write(&m->target, (const char *)buffer + skip,
			     (size_t)(end - m->done), m->done);
	if (err)
		return err;
	if (m->move->pace)
		m->move->pace(m->move->arg, end - m->done);
	m->done = end;
	return got;
}

/* What verify.h had no need to read: all of a block without checksums. */
static int move_rest(struct moving *m)
{
	const struct ucm_bytes bytes = { .read = move_read, .from = m };
	uint64_t size = (uint64_t)m->st.st_size;
	_cleanup_free_ char *buffer = NULL;

	if (m->done >= size)
		return 0;
	buffer = aligned_alloc(UCM_BLOCK_PAGE, CHUNK);
	if (!buffer)
		return -ENOMEM;
	while (m->done < size) {
		uint64_t left = size - m->done;
		ssize_t got = move_read(&bytes, buffer,
					left < CHUNK ? (size_t)left : CHUNK,
					m->done);

		if (got <= 0)
			return got < 0 ? (int)got : -EIO; /* it became short */
	}
	return 0;
}

/* A source that is wrong is set aside, as if a reader had found it. */
static int move_condemn(struct moving *m, enum ucm_fault fault, uint32_t plane)
{
	ucm_store_condemn(m->store, m->ref, m->entry.dir, &m->st, fault,
			  ucm_store_fault_place(fault, plane).text);
	return -ENOENT;
}

static int move_bytes(struct moving *m)
{
	const struct ucm_bytes bytes = { .read = move_read, .from = m };
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	uint32_t plane = 0;
	int err = ucm_verify_whole(&bytes, (uint64_t)m->st.st_size, &m->key.id,
				   &block, &fault, &plane);

	if (!err && fault)
		return move_condemn(m, fault, plane);
	return err ? err : move_rest(m);
}

/* ---- the new file ---- */

static int move_fail(struct moving *m, unsigned dir, const char *what, int err)
{
	const struct ucm_medium *medium = m->store->dirs.at[dir];

	ucm_dirs_count_error(&m->store->dirs, dir, err);
	if (!ucm_medium_is_no_news(medium, err))
		ucm_error("%s: block %s: moved to tier %s: %s: %s",
			  medium->path, ucm_hex(&m->key.id).text,
			  m->move->to->name, what, strerror(-err));
	return err;
}

/* A server need not hear of a sync of the whole directory that follows (by FUSE it
 * never does): each file is synced there. */
static bool move_syncs(const struct moving *m)
{
	return m->move->durable || m->temp.medium->hosts ||
	       (m->move->soon &&
		m->temp.medium->flags & UCM_MEDIUM_REPORTS_AT_CLOSE);
}

/* The block's times are those of its commit and of its last use. */
static int move_finish_file(struct moving *m)
{
	const struct timespec times[2] = {
		{ .tv_sec = m->entry.atime_s },
		m->st.st_mtim,
	};
	int err = ucm_file_set_times(&m->target, times);

	if (!err &&
	    m->temp.medium->flags & UCM_MEDIUM_REPORTS_AT_CLOSE)
		err = ucm_file_sync(&m->target, UCM_SYNC_FLUSH);
	if (!err && move_syncs(m))
		err = ucm_file_sync(&m->target, UCM_SYNC_DATA);
	if (!err)
		err = ucm_file_stat(&m->target, &m->temp.stamp);
	if (!err && m->temp.stamp.st_size != m->st.st_size)
		err = -EIO;
	/* last: while ext4 writes a file, st_blocks may leave some out */
	if (!err && !move_syncs(m) && m->move->soon)
		ucm_file_start_writing(&m->target);
	return err ? move_fail(m, m->temp.dir, "new file", err) : 0;
}

static int move_fill(struct moving *m)
{
	int err = move_bytes(m);

	/* the source's errors and the target's: which one, errno does not say */
	if (err && err != -ENOENT)
		return move_fail(m, m->temp.dir, "copy", err);
	return err ? err : move_finish_file(m);
}

/* ---- the switch; under the name's lock ---- */

/* Is the entry still that of the file that was read, as it was read? */
static bool move_is_still(struct moving *m)
{
	unsigned dir = m->entry.dir;
	struct stat st;

	return ucm_index_get(m->store->index, m->ref, &m->entry) &&
	       m->entry.dir == dir && !m->entry.copy &&
	       !(m->entry.flags & (UCM_ENTRY_LEAVING | UCM_ENTRY_DOUBT)) &&
	       (m->move->open || !(m->entry.flags & UCM_ENTRY_WRITABLE)) &&
	       !ucm_file_stat(&m->source, &st) &&
	       st.st_size == m->st.st_size &&
	       !memcmp(&st.st_mtim, &m->st.st_mtim, sizeof(st.st_mtim));
}

/* A pin's mark lies beside the block, in each of its places. */
static void move_pin(struct moving *m)
{
	struct ucm_medium *medium = m->temp.medium;

	if (m->entry.flags & UCM_ENTRY_PINNED)
		ucm_medium_pin(medium, m->space->folder, &m->key.id, true);
}

static int move_switch(struct moving *m)
{
	int err;

	if (!move_is_still(m))
		return -EBUSY;
	/* the name as well: a power cut must not take it, and the source with
	 * it */
	err = ucm_store_link(m->store, &m->temp, m->space, &m->key.id,
			     move_syncs(m));
	if (err == -EEXIST) {
		/* a copy, perhaps, that no scan has seen */
		return ucm_store_examine(m->store, m->space, &m->key.id,
					 m->temp.dir) > 0
			       ? -EEXIST
			       : move_fail(m, m->temp.dir, "link", -EEXIST);
	}
	if (err) {
		ucm_dirs_count_error(&m->store->dirs, m->temp.dir, err);
		ucm_medium_failed(m->temp.medium, "link", err);
		return err;
	}
	m->temp.committed = true;
	ucm_endurance_wrote(m->store, m->temp.tier,
			    ucm_file_takes(&m->temp.stamp));
	move_pin(m);
	if (m->move->first)
		ucm_store_move_to(m->store, m->ref, m->temp.dir);
	else
		ucm_store_note_copy(m->store, m->ref, m->temp.dir);
	/* the entry counts its bytes now: twice, others would be evicted for it */
	ucm_store_end_promise(&m->temp);
	return 0;
}

/* ---- a copy ---- */

static int move_to_new_file(struct moving *m)
{
	const struct ucm_want want = {
		.bytes = ucm_file_takes(&m->st),
		.only = m->move->only,
	};
	int err = ucm_store_create_in(m->store, m->move->to, &m->key, &want,
				      &m->temp, &m->target);

	if (err)
		return err;
	err = ucm_entry_has_dir(&m->entry, m->temp.dir) ? -EEXIST
							: move_fill(m);
	if (!err) {
		ucm_store_lock_name(m->store, &m->key.id);
		err = move_switch(m);
		ucm_store_unlock_name(m->store, &m->key.id);
	}
	if (!m->temp.committed)
		ucm_medium_drop(m->temp.medium, m->temp.path);
	ucm_file_close(&m->target);
	ucm_store_end_promise(&m->temp);
	return err;
}

static bool move_has_place(const struct moving *m)
{
	const struct ucm_tier *to = m->move->to;

	for (unsigned i = 0; i < to->num_dirs; i++) {
		if (ucm_entry_has_dir(&m->entry, to->first + i))
			return true;
	}
	return false;
}

/* It has a place there, which is not read: from now on it is. */
static void move_prefer(const struct moving *m)
{
	unsigned copy = m->entry.copy - 1u;

	if (m->move->first && m->entry.copy &&
	    m->store->dirs.tier_of[copy] == m->move->to)
		ucm_store_note_copy(m->store, m->ref, copy);
}

static int move_open_source(struct moving *m)
{
	struct ucm_medium *medium = m->store->dirs.at[m->entry.dir];
	int err = ucm_medium_open_block(medium, m->space->folder, &m->key.id,
					&m->source, &m->st);

	if (err == -ENOENT || err == -ENXIO || err == -ELOOP) {
		ucm_store_lose(m->store, m->ref, m->entry.dir, NULL, err);
		return -ENOENT;
	}
	return err ? move_fail(m, m->entry.dir, "open", err) : 0;
}

static int move_held(struct moving *m)
{
	int err;

	if (!ucm_index_get(m->store->index, m->ref, &m->entry))
		return -ENOENT;
	if (m->entry.flags & UCM_ENTRY_WRITABLE && !m->move->open)
		return -EBUSY;
	if (m->move->within && m->entry.copy)
		return -EEXIST;
	if (!m->move->within && move_has_place(m)) {
		move_prefer(m);
		return -EEXIST;
	}
	m->space = m->store->names.spaces[m->entry.space];
	m->key = (struct ucm_key){ .id = m->entry.id,
				   .space = m->entry.space };
	err = move_open_source(m);
	if (err)
		return err;
	err = move_to_new_file(m);
	ucm_file_close(&m->source);
	return err;
}

/* What is in doubt, or has not been looked at, is looked at first. */
static int move_look(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_entry entry;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	/* another daemon may have put it where it is to go */
	ucm_store_freshen(store, store->names.spaces[entry.space],
			  ucm_tree_bucket(&entry.id));
	return entry.flags & (UCM_ENTRY_DOUBT | UCM_ENTRY_UNREAD)
		       ? ucm_store_check(store, ref)
		       : 0;
}

/* No third place: nobody would know of it, and it would count nowhere. */
static int move_make_way(struct ucm_store *store, ucm_ref ref,
			 const struct ucm_move_terms *move)
{
	struct ucm_entry entry;
	unsigned copy;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (entry.flags & UCM_ENTRY_DUPLICATE)
		return -EEXIST;
	/* the block may have other places */
	if (!ucm_store_knows_all(store))
		return -EBUSY;
	copy = entry.copy - 1u;
	if (!entry.copy || store->dirs.tier_of[entry.dir] == move->to ||
	    store->dirs.tier_of[copy] == move->to)
		return 0; /* what it has there is seen below */
	if (!move->first ||
	    store->dirs.at[entry.dir]->flags & UCM_MEDIUM_VOLATILE)
		return -EEXIST;
	return ucm_store_drop_place(store, ref, copy, NULL);
}

int ucm_store_copy(struct ucm_store *store, ucm_ref ref,
		   const struct ucm_move_terms *move, uint64_t *copied)
{
	struct moving m = { .store = store, .move = move, .ref = ref };
	struct ucm_open open = { 0 };
	int64_t begin_ns = ucm_profile_begin();
	int err = move_look(store, ref);

	if (!err)
		err = move_make_way(store, ref, move);
	if (!err)
		err = ucm_hold_open(store, &open, ref, false);
	if (err)
		return err;
	err = move_held(&m);
	ucm_hold_end(store, &open);
	ucm_profile_end((struct ucm_profile_event){
		.kind = UCM_PROFILE_COPY,
		.name = "move",
		.begin_ns = begin_ns,
		.bytes = err ? err : (int64_t)m.done,
		.id = m.key.id,
	});
	if (copied)
		*copied = m.done;
	if (!err)
		ucm_debug(MOVE, 1, "block %s: copied from %s to %s",
			  ucm_hex(&m.key.id).text,
			  store->dirs.at[m.entry.dir]->path,
			  m.temp.medium->path);
	return err;
}

/* ---- the end of a place ---- */

/* Is the file there that is to be the only one? A stranger may have removed it,
 * and the directory may not answer. */
static int drop_look_at_other(struct ucm_store *store, ucm_ref ref,
			      const struct ucm_entry *entry, unsigned dir)
{
	unsigned other = ucm_entry_other_place(entry, dir);
	struct ucm_medium *medium = store->dirs.at[other];
	struct stat st;
	int err = ucm_medium_find(medium, ucm_store_folder(store, entry),
				  &entry->id, &st);

	if (!err && (uint64_t)st.st_size == entry->size)
		return 0;
	if ((!err || err == -ENOENT) && other != entry->dir)
		ucm_store_forget_copy(store, ref, other);
	return err && err != -ENOENT ? err : -ESTALE;
}

/* A copy that a crash has left, or a stranger, has no mark of a pin. */
static int drop_pin_other(struct ucm_store *store,
			  const struct ucm_entry *entry, unsigned dir)
{
	unsigned other = ucm_entry_other_place(entry, dir);
	struct ucm_medium *medium = store->dirs.at[other];

	if (!(entry->flags & UCM_ENTRY_PINNED))
		return 0;
	return ucm_medium_pin(medium, ucm_store_folder(store, entry),
			      &entry->id, true);
}

static int drop_locked(struct ucm_store *store, ucm_ref ref, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	struct ucm_entry now, *entry = &now;
	const char *folder;
	int err;

	if (medium->readonly)
		return -EROFS;
	if (!ucm_index_get(store->index, ref, entry))
		return -ENOENT;
	if (!entry->copy || !ucm_entry_has_place(entry, dir))
		return -ESTALE;
	if (!(entry->flags & UCM_ENTRY_PINNED) &&
	    ucm_store_is_pinned_in(store, ref, entry, dir))
		return -EPERM;
	folder = ucm_store_folder(store, entry);
	err = drop_look_at_other(store, ref, entry, dir);
	if (!err)
		err = drop_pin_other(store, entry, dir);
	if (err)
		return err;
	err = ucm_store_leave_place(store, ref, dir);
	if (err)
		return err;
	err = ucm_medium_remove(medium, folder, &entry->id);
	if (err && err != -ENOENT) {
		ucm_store_note_copy(store, ref, dir);
		ucm_store_left(store, dir, entry->blocks);
		return ucm_store_fail(store, dir, &entry->id, "unlink", err);
	}
	ucm_store_left(store, dir, entry->blocks);
	if (entry->flags & UCM_ENTRY_PINNED)
		ucm_medium_pin(medium, folder, &entry->id, false);
	return 0;
}

int ucm_store_drop_place(struct ucm_store *store, ucm_ref ref, unsigned dir,
			 uint64_t *freed)
{
	struct ucm_entry entry;
	int err = move_look(store, ref);

	if (err)
		return err;
	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	/* no snapshot shall bring it back while it is removed */
	ucm_snapshots_load(store, dir, ucm_tree_bucket(&entry.id));
	ucm_store_lock_name(store, &entry.id);
	err = drop_locked(store, ref, dir);
	ucm_store_unlock_name(store, &entry.id);
	if (err)
		return err;
	if (freed)
		*freed = (uint64_t)entry.blocks * 512;
	ucm_debug(MOVE, 1, "block %s: left %s", ucm_hex(&entry.id).text,
		  store->dirs.at[dir]->path);
	return 0;
}
