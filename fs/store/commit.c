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
 * taken before anything of it is judged, and compared before and after the link:
 * a verdict holds for the state that it was formed on and for no other. From the
 * link to the last close the entry says WRITABLE, and whoever opens the block
 * compares the stamp again, or the checksums where a mapping leaves no trace.
 *
 * Two writers of one block: link(2) lets one win, in one directory; the index
 * decides between directories. The loser's file goes, and its writer is told
 * that all is well, because the name says what the bytes are.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/block/verify.h"
#include "hashing/name.h"

/* ---- where to ---- */

/* A space's first blocks are taken to be no larger, unless larger ones have
 * been seen. */
#define GUESS_BYTES (UINT64_C(64) << 20)

static void raise_to(_Atomic uint64_t *most, uint64_t value)
{
	uint64_t was = atomic_load(most);

	while (was < value && !atomic_compare_exchange_weak(most, &was, value))
		;
}

static struct ucm_want guess(struct ucm_store *set)
{
	struct ucm_want want = {
		.bytes = GUESS_BYTES,
		.outgrown = atomic_load(&set->outgrown),
		.guessed = true,
	};
	uint64_t largest = atomic_load(&set->largest);

	/* no disk gives all that it calls free */
	want.outgrown += want.outgrown / 8;
	if (want.bytes < largest)
		want.bytes = largest;
	if (want.bytes < want.outgrown)
		want.bytes = want.outgrown;
	if (want.bytes > set->config->block_max)
		want.bytes = set->config->block_max;
	return want;
}

_Static_assert(UCM_TEMP_NAME_MAX <= UCM_ROOM_NAME_MAX,
	       "a promise has room for the name of its file");

/* A new file, and what is to become of it. */
struct creation {
	struct ucm_store *set;
	const struct ucm_key *key;
	struct ucm_want want;
	struct ucm_temp temp;
	int result;
};

static int create_in(struct creation *c, struct ucm_promise *promise)
{
	struct ucm_backing *backing = promise->backing;
	struct ucm_temp *temp = &c->temp;
	int fd = ucm_backing_temp(backing, temp->name);

	if (fd < 0)
		return fd;
	ucm_debug(TIER, 1, "block %s: new file %s in %s",
		  ucm_hex(&c->key->id).text, temp->name, backing->path);
	ucm_room_watch(promise, backing->tmpfd, temp->name);
	temp->promise = promise;
	temp->backing = backing;
	temp->losses = atomic_load(&backing->recovery.losses);
	temp->tier = promise->tier;
	temp->guessed = promise->guessed;
	temp->dir = (uint8_t)(temp->tier->first +
			      (unsigned)(backing - temp->tier->dirs));
	return fd;
}

static bool try_tier(struct creation *c, struct ucm_tier *tier)
{
	struct ucm_store *set = c->set;
	struct ucm_promise *promise;
	struct ucm_backing *backing;

	/* as often as there are directories: each failure rules one out */
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		int err = ucm_tier_choose(tier, set->config->placement,
					  &c->key->id, &c->want, &promise);

		if (err) {
			c->result = c->result == -EROFS ? err : c->result;
			return false;
		}
		backing = promise->backing;
		c->result = create_in(c, promise);
		if (c->result >= 0)
			return true;
		ucm_promise_end(promise);
		ucm_store_count_error(
			set, tier->first + (unsigned)(backing - tier->dirs),
			c->result);
		ucm_backing_failed(backing, "create", c->result);
		if (!atomic_load(&backing->retry_s))
			return false;
	}
	return false;
}

static bool try_tiers(struct creation *c)
{
	for (unsigned i = 0; i < c->set->num_tiers; i++) {
		if (try_tier(c, &c->set->tiers[i]))
			return true;
	}
	return false;
}

/* The one with the most free space. */
static struct ucm_tier *roomiest(struct ucm_store *set, const bool *tried)
{
	struct ucm_tier *best = NULL;
	uint64_t most = 0;

	for (unsigned i = 0; i < set->num_tiers; i++) {
		uint64_t total, room;

		if (tried[i])
			continue;
		ucm_tier_space(&set->tiers[i], &total, &room);
		if (!best || room > most) {
			best = &set->tiers[i];
			most = room;
		}
	}
	return best;
}

/* No tier has room for a guess, but the guess may be wrong: where there is most
 * room it is the least likely to be missed. */
static bool try_anywhere(struct creation *c)
{
	bool tried[UCM_MAX_DIRS] = { false };
	struct ucm_tier *tier;

	c->want.anywhere = true;
	while ((tier = roomiest(c->set, tried))) {
		if (try_tier(c, tier))
			return true;
		tried[tier - c->set->tiers] = true;
	}
	return false;
}

int ucm_store_create(struct ucm_store *set, const struct ucm_key *key,
		     uint64_t bytes, struct ucm_temp *out)
{
	struct ucm_space *space = ucm_namespace_get(&set->names, key->space);
	struct creation c = { .set = set, .key = key, .result = -EROFS };

	if (!space)
		return -ENOENT;
	c.want.bytes = bytes ? bytes : ucm_space_block_bytes(space);
	if (c.want.bytes > set->config->block_max) {
		if (ucm_space_has_geometry(space))
			return -EFBIG;
		c.want.bytes = 0; /* promise nothing for it */
	}
	if (!c.want.bytes)
		c.want = guess(set);
	if (!try_tiers(&c) &&
	    !(c.result == -ENOSPC && c.want.guessed && try_anywhere(&c)))
		return c.result;
	*out = c.temp;
	return c.result;
}

int ucm_store_reopen(struct ucm_store *set, const struct ucm_temp *temp)
{
	(void)set;
	return ucm_backing_temp_open(temp->backing, temp->name);
}

/* The room is taken now, or not needed. */
static void end_promise(struct ucm_temp *temp)
{
	ucm_promise_end(temp->promise);
	temp->promise = NULL;
}

void ucm_store_rest(struct ucm_temp *temp, int fd)
{
	struct stat st;

	if (temp->promise && temp->promise->guessed &&
	    !ucm_os_fstat(fd, &st) && st.st_size)
		ucm_promise_resize(temp->promise, ucm_file_takes(&st));
}

/* Where there is no room for more than this, files like it are not tried
 * again: one after the other would fail in mid-write. */
static void note_outgrown(struct ucm_store *set, const struct ucm_temp *temp)
{
	struct stat st;

	if (temp->guessed &&
	    !ucm_os_stat(temp->backing->tmpfd, temp->name, &st))
		raise_to(&set->outgrown, ucm_file_takes(&st));
}

void ucm_store_abandon(const struct ucm_temp *temp)
{
	if (temp->committed && temp->ref)
		temp->backing->abandoned = true;
}

void ucm_store_drop(struct ucm_store *set, struct ucm_temp *temp)
{
	if (!temp->committed) {
		note_outgrown(set, temp);
		ucm_backing_temp_drop(temp->backing, temp->name);
		ucm_count(&set->stats.dropped);
	} else if (temp->ref) {
		ucm_index_flag(set->index, temp->ref,
			       UCM_ENTRY_WRITABLE | UCM_ENTRY_SHARED, false);
		atomic_fetch_sub(&set->writers, 1);
	}
	end_promise(temp);
}

int ucm_store_refuse(struct ucm_store *set, const struct ucm_key *key,
		     enum ucm_fault fault, const char *detail)
{
	ucm_warning("block %s: not committed: %s", ucm_hex(&key->id).text,
		    detail ? detail : ucm_fault_text(fault));
	ucm_count(&set->stats.commit_refused);
	ucm_count(&set->stats.refused_for[fault]);
	return -EINVAL;
}

static int tier_failed(struct ucm_store *set, const struct ucm_temp *temp,
		       const struct ucm_key *key, const char *call, int err)
{
	char what[80];

	snprintf(what, sizeof(what), "commit %s: %s", ucm_hex(&key->id).text,
		 call);
	ucm_backing_failed(temp->backing, what, err);
	ucm_store_count_error(set, temp->dir, err);
	ucm_count(&set->stats.commit_failed);
	return err == -ENOSPC || err == -EDQUOT ? err : -EIO;
}

/* A bare header does not announce a size: the space's geometry does, or its
 * writer has the last word. */
static enum ucm_fault judge_bare(struct ucm_space *space,
				 const struct ucm_block *block, uint64_t size,
				 enum ucm_commit_when when)
{
	uint64_t want;

	if (!ucm_space_has_geometry(space))
		return when == UCM_COMMIT_NOW ? UCM_FAULT_NONE
					      : UCM_FAULT_SHORT;
	pthread_mutex_lock(&space->lock);
	want = block->data_offset + ucm_block_payload_bytes(&space->geometry);
	pthread_mutex_unlock(&space->lock);
	return size < want ? UCM_FAULT_SHORT : UCM_FAULT_NONE;
}

/* No checksums: holes are never whole, and for the rest its writer's word
 * counts. One that may be in the middle of writing has not given it where
 * nothing else shows that there are bytes everywhere. */
static enum ucm_fault judge_by_word(struct ucm_temp *temp,
				    enum ucm_holes holes,
				    enum ucm_commit_when when)
{
	if (holes == UCM_HOLES_SOME)
		return UCM_FAULT_SHORT;
	if (when == UCM_COMMIT_NOW)
		return UCM_FAULT_NONE;
	temp->wants_word = true;
	return when == UCM_COMMIT_CLOSED && holes == UCM_HOLES_NONE &&
			       !temp->presized
		       ? UCM_FAULT_NONE
		       : UCM_FAULT_SHORT;
}

/*
 * A file may have its size before it has its bytes: made by ftruncate or
 * fallocate, or full of holes because it was written out of order. Then only
 * the checksums tell whether it is whole.
 */
static int judge_bytes(struct ucm_temp *temp, int fd, const struct ucm_key *key,
		       enum ucm_commit_when when, struct ucm_block *block,
		       enum ucm_fault *fault)
{
	const struct stat *st = &temp->stamp;
	uint32_t plane;
	int err;

	if (!(block->flags & UCM_BLOCK_HAS_CRC)) {
		*fault = judge_by_word(
			temp, ucm_backing_find_holes(temp->backing, fd, st),
			when);
		return 0;
	}
	/* bytes everywhere need not be the right ones: zeros, or a gap within a
	 * page; its writer knows, or the checksums do */
	if (!temp->presized &&
	    (when == UCM_COMMIT_CLOSED || when == UCM_COMMIT_NOW) &&
	    ucm_backing_find_holes(temp->backing, fd, st) == UCM_HOLES_NONE)
		return 0;
	err = ucm_verify_whole(fd, (uint64_t)st->st_size, &key->id, block,
			       fault, &plane);
	if (!err && *fault && when < UCM_COMMIT_LAST)
		*fault = UCM_FAULT_SHORT; /* it may be on its way */
	return err;
}

static enum ucm_fault judge_written(const struct ucm_temp *temp,
				    const struct ucm_key *key,
				    struct ucm_block *block)
{
	uint64_t size = ucm_block_file_size(temp->written);

	if (memcmp(&temp->written->id, &key->id, sizeof(key->id)) != 0)
		return UCM_FAULT_NAME;
	if ((uint64_t)temp->stamp.st_size != size)
		return (uint64_t)temp->stamp.st_size < size ? UCM_FAULT_SHORT
							    : UCM_FAULT_SIZE;
	*block = *temp->written;
	return UCM_FAULT_NONE;
}

/* What is wrong with the file, of which temp->stamp is the state before
 * anything of it was read. Who has written it all knows that it is whole. */
static int find_fault(struct ucm_temp *temp, int fd, struct ucm_space *space,
		      const struct ucm_key *key, enum ucm_commit_when when,
		      struct ucm_block *block, enum ucm_fault *fault)
{
	uint64_t size = (uint64_t)temp->stamp.st_size;
	int err;

	if (temp->written) {
		*fault = judge_written(temp, key, block);
		return 0;
	}
	err = ucm_verify_commit(fd, size, &key->id, block, fault);
	if (!err && !*fault)
		err = judge_bytes(temp, fd, key, when, block, fault);
	if (!err && !*fault && block->form == UCM_FORM_BARE)
		*fault = judge_bare(space, block, size, when);
	return err;
}

/* 0 and the block; -EAGAIN if it is not whole yet; or what commit returns. */
static int judge(struct ucm_store *set, struct ucm_temp *temp, int fd,
		 struct ucm_space *space, const struct ucm_key *key,
		 enum ucm_commit_when when, struct ucm_block *block)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	int err = ucm_os_fstat(fd, &temp->stamp);

	temp->wants_word = false;
	if (!err)
		err = find_fault(temp, fd, space, key, when, block, &fault);
	if (err)
		return tier_failed(set, temp, key, "read", err);
	if (fault == UCM_FAULT_SHORT) {
		ucm_debug(COMMIT, 2, "block %s: incomplete: %lld bytes",
			  ucm_hex(&key->id).text,
			  (long long)temp->stamp.st_size);
		return -EAGAIN;
	}
	return fault ? ucm_store_refuse(set, key, fault, NULL) : 0;
}

static void forget_entry(struct ucm_store *set, const struct ucm_key *key,
			 unsigned dir)
{
	struct ucm_entry entry;
	ucm_ref ref;

	if (ucm_index_find(set->index, key, &entry, &ref) && entry.dir == dir)
		ucm_store_index_remove(set, ref, NULL);
}

/* What has our name is no block that can be served. */
static void make_way(struct ucm_store *set, const struct ucm_temp *temp,
		     struct ucm_space *space, const struct ucm_key *key)
{
	forget_entry(set, key, temp->dir);
	if (ucm_backing_quarantine(temp->backing, space->folder, &key->id))
		return;
	ucm_warning("%s: block %s: its name was that of another file: "
		    "quarantined",
		    temp->backing->path, ucm_hex(&key->id).text);
	ucm_count(&set->stats.quarantined);
	ucm_count(&set->stats.quarantined_for[UCM_FAULT_NONE]);
}

/* There already, and good: one that is in doubt is checked first, and one
 * whose file has vanished is none. */
static bool is_there(struct ucm_store *set, const struct ucm_key *key)
{
	ucm_ref ref;

	return ucm_index_find(set->index, key, NULL, &ref) &&
	       !ucm_store_check(set, ref);
}

static int link_block(struct ucm_store *set, const struct ucm_temp *temp,
		      struct ucm_space *space, const struct ucm_key *key)
{
	bool sync = set->config->durability == UCM_DURABILITY_FULL;
	int err = ucm_backing_commit(temp->backing, temp->name, space->folder,
				     &key->id, sync);

	if (err == -ENOENT) { /* the space's first block in this directory */
		err = ucm_store_make_folder(set, temp->backing, space);
		if (!err)
			err = ucm_backing_commit(temp->backing, temp->name,
						 space->folder, &key->id, sync);
	}
	if (err != -EEXIST)
		return err;
	/* a file has our name: a block, perhaps one that no scan has seen */
	if (is_there(set, key))
		return -EEXIST;
	err = ucm_store_examine(set, space, &key->id, temp->dir);
	if (err < 0 && err != -EIO)
		return err; /* it says nothing of the file */
	if (err > 0 && is_there(set, key))
		return -EEXIST;
	make_way(set, temp, space, key);
	err = ucm_backing_commit(temp->backing, temp->name, space->folder,
				 &key->id, sync);
	return err == -EEXIST ? -EIO : err; /* it did not go */
}

struct restat {
	struct stat st;
	struct ucm_store *set;
	unsigned dir;
	uint8_t flags; /* to add */
};

/* The tier gets back what it gave, whenever the block goes. */
static void edit_stat(struct ucm_entry *entry, void *arg)
{
	const struct restat *new = arg;
	uint64_t takes = ucm_file_takes(&new->st);
	struct ucm_store *set = new->set;

	atomic_fetch_sub(&set->tier_of[entry->dir]->used,
			 (uint64_t)entry->blocks * 512);
	atomic_fetch_add(&set->tier_of[new->dir]->used, takes);
	if (entry->dir != new->dir) {
		if (entry->flags & UCM_ENTRY_DOUBT)
			ucm_store_count_doubts(set, entry->dir, -1);
		entry->flags &= (uint8_t)~UCM_ENTRY_DOUBT;
		entry->flags |= UCM_ENTRY_DUPLICATE;
	}
	entry->dir = (uint8_t)new->dir;
	entry->epoch = atomic_load(&set->dirs[new->dir]->recovery.epoch);
	atomic_store(&set->keepers[new->dir].dirty, true);
	entry->size = (uint64_t)new->st.st_size;
	entry->blocks = (uint32_t)(takes / 512);
	entry->mtime_ns = ucm_time_ns(&new->st.st_mtim);
}

/* The entry is that file's now. */
static void move_entry(struct ucm_store *set, ucm_ref ref, unsigned dir,
		       const struct stat *st)
{
	struct restat new = { .st = *st, .set = set, .dir = dir };

	ucm_index_edit(set->index, ref, edit_stat, &new);
}

static void edit_adopt(struct ucm_entry *entry, void *arg)
{
	const struct restat *new = arg;

	edit_stat(entry, arg);
	if (entry->flags & UCM_ENTRY_DOUBT)
		ucm_store_count_doubts(new->set, entry->dir, -1);
	entry->flags &= (uint8_t)~(UCM_ENTRY_DOUBT | UCM_ENTRY_UNREAD);
	entry->flags |= new->flags;
}

/* The same for a file that has just been judged: what was to be said of an older
 * one is over. */
static void adopt_entry(struct ucm_store *set, const struct ucm_temp *temp,
			uint8_t flags)
{
	struct restat new = { .st = temp->stamp, .set = set, .dir = temp->dir,
			      .flags = flags };

	ucm_index_edit(set->index, temp->ref, edit_adopt, &new);
}

static bool is_unreadable(struct ucm_store *set, ucm_ref ref)
{
	int err = ucm_store_check(set, ref);

	return err && err != -ENOENT;
}

static void count_commit(struct ucm_store *set, const struct ucm_temp *temp)
{
	struct ucm_tier_stats *stats = &set->tier_of[temp->dir]->stats;

	atomic_store(&set->keepers[temp->dir].dirty, true);
	ucm_count(&set->stats.commits);
	ucm_count(&stats->commits);
	ucm_count_more(&stats->committed_bytes, (uint64_t)temp->stamp.st_size);
}

/* Its directory has lost writes since it was made: these, perhaps. */
static bool is_loser(const struct ucm_temp *temp)
{
	return atomic_load(&temp->backing->recovery.losses) != temp->losses;
}

/* The same bytes, as far as stamps tell; link(2) has set the ctime. */
static bool same_bytes(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size &&
	       !memcmp(&a->st_mtim, &b->st_mtim, sizeof(a->st_mtim));
}

/* A block's file that was written to after its commit was begun. Without
 * checksums nobody can say what it holds now. */
static int find_late_fault(struct ucm_space *space, int fd,
			   const struct stat *st, const struct ucm_id *id,
			   enum ucm_fault *fault)
{
	struct ucm_block block;
	uint32_t plane;
	int err = ucm_verify_whole(fd, (uint64_t)st->st_size, id, &block, fault,
				   &plane);

	if (err || *fault)
		return err;
	*fault = block.flags & UCM_BLOCK_HAS_CRC
			 ? ucm_space_fits(space, &block, false)
			 : UCM_FAULT_UNVOUCHED;
	return 0;
}

/* The file has its name. Was it still the one that was judged? Without a new
 * stamp the old one stays: it differs, so that the file is checked when it is
 * closed for the last time. */
static int stamp_link(struct ucm_store *set, struct ucm_temp *temp, int fd,
		      struct ucm_space *space, const struct ucm_key *key)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct stat st;

	if (ucm_os_fstat(fd, &st))
		return 0;
	if (!same_bytes(&st, &temp->stamp) &&
	    find_late_fault(space, fd, &st, &key->id, &fault))
		fault = UCM_FAULT_UNVOUCHED; /* changed, and cannot be read */
	temp->stamp = st;
	if (!fault)
		return 0;
	temp->lost = true; /* it has no name to be tried again under */
	/* a scan may have come between, and have taken it for a block */
	forget_entry(set, key, temp->dir);
	ucm_store_set_aside(set, space, &key->id, temp->dir, &st, fault,
			    ", written to during its commit");
	return ucm_store_refuse(set, key, fault, NULL);
}

/* Into the index, unless another directory's writer was faster. */
static int index_block(struct ucm_store *set, struct ucm_temp *temp,
		       struct ucm_space *space, const struct ucm_key *key)
{
	struct ucm_entry entry, there;
	int err;

	ucm_store_entry(key, temp->dir, &temp->stamp, &entry);
	entry.flags = temp->shared ? UCM_ENTRY_WRITABLE | UCM_ENTRY_SHARED
				   : UCM_ENTRY_WRITABLE;
	if (is_loser(temp))
		entry.flags |= UCM_ENTRY_DOUBT;
	entry.epoch = atomic_load(&temp->backing->recovery.epoch);
	err = ucm_store_index_add(set, space, &entry, &temp->ref);
	/* a scan came between link and index, or it is the entry of a file that
	 * made way; or another directory's is there that cannot be read */
	if (err == -EEXIST && ucm_index_get(set->index, temp->ref, &there) &&
	    (there.dir == temp->dir || is_unreadable(set, temp->ref))) {
		adopt_entry(set, temp,
			    entry.flags & (uint8_t)~UCM_ENTRY_DOUBT);
		err = 0;
	}
	if (!err) {
		if (is_loser(temp)) /* since the commit began */
			ucm_store_doubt(set, temp->ref);
		atomic_fetch_add(&set->writers, 1);
		count_commit(set, temp);
		return 0;
	}
	temp->ref = 0;
	ucm_backing_remove(temp->backing, space->folder, &key->id);
	if (err != -EEXIST)
		return err;
	ucm_count(&set->stats.commit_duplicates);
	return 0;
}

/* As durable as it is to be. A network file system writes what it has kept, and
 * tells of errors, when a file is closed; a failure is told once and never asked
 * for again: the next answer would be a lie. */
static int make_durable(struct ucm_store *set, struct ucm_temp *temp, int fd,
			const struct ucm_key *key)
{
	const char *call = "close";
	int err = temp->backing->remote ? ucm_os_flush(fd) : 0;

	if (!err && set->config->durability != UCM_DURABILITY_NONE) {
		call = "fdatasync";
		err = ucm_os_fdatasync(fd);
	}
	if (!err)
		return 0;
	temp->lost = true;
	return tier_failed(set, temp, key, call, err);
}

static int make_block(struct ucm_store *set, struct ucm_temp *temp, int fd,
		      struct ucm_space *space, const struct ucm_key *key)
{
	int err = make_durable(set, temp, fd, key);

	if (err)
		return err;
	temp->changed = !ucm_store_unchanged(temp, fd);
	if (temp->changed)
		return -EAGAIN;
	err = link_block(set, temp, space, key);
	if (err == -EEXIST) {
		ucm_backing_temp_drop(temp->backing, temp->name);
		ucm_count(&set->stats.commit_duplicates);
		return 0;
	}
	if (err)
		return tier_failed(set, temp, key, "link", err);
	err = stamp_link(set, temp, fd, space, key);
	return err ? err : index_block(set, temp, space, key);
}

/* The first block would fix a geometry for which each new file is promised as
 * much room. */
static int check_size(struct ucm_store *set, const struct ucm_key *key,
		      uint64_t size)
{
	char why[80];

	if (size <= set->config->block_max)
		return 0;
	snprintf(why, sizeof(why), "%llu bytes: block_max is %llu",
		 (unsigned long long)size,
		 (unsigned long long)set->config->block_max);
	ucm_store_refuse(set, key, UCM_FAULT_SIZE, why);
	return -EFBIG;
}

/* Judge it and, if it is right, make it a block. */
static int try_commit(struct ucm_store *set, struct ucm_temp *temp, int fd,
		      struct ucm_space *space, const struct ucm_key *key,
		      enum ucm_commit_when when)
{
	struct ucm_error why;
	struct ucm_block block;
	enum ucm_fault fault;
	int err;

	temp->changed = false;
	if (is_loser(temp)) {
		temp->lost = true;
		return tier_failed(set, temp, key, "writes were lost", -EIO);
	}
	err = judge(set, temp, fd, space, key, when, &block);
	if (!err)
		err = check_size(set, key, (uint64_t)temp->stamp.st_size);
	if (err)
		return err;
	fault = ucm_space_admit(space, &block, &why);
	if (fault)
		return ucm_store_refuse(set, key, fault, why.text);

	ucm_store_lock_name(set, &key->id);
	if (is_there(set, key)) {
		ucm_backing_temp_drop(temp->backing, temp->name);
		ucm_count(&set->stats.commit_duplicates);
	} else {
		err = make_block(set, temp, fd, space, key);
	}
	ucm_store_unlock_name(set, &key->id);
	if (!err) {
		ucm_debug(COMMIT, 1, "block %s: %s %s, %lld bytes",
			  ucm_hex(&key->id).text,
			  temp->ref ? "committed in" : "there already; from",
			  temp->backing->path,
			  (long long)temp->stamp.st_size);
		temp->committed = true;
		temp->key = *key;
		end_promise(temp);
	}
	ucm_space_settled(space);
	return err;
}

#define TRIES 3 /* of a file that is written to while it is judged */

int ucm_store_commit(struct ucm_store *set, struct ucm_temp *temp, int fd,
		     const struct ucm_key *key, enum ucm_commit_when when)
{
	struct ucm_space *space = ucm_namespace_get(&set->names, key->space);
	int err = -EAGAIN;

	if (!space)
		return -ENOENT;
	if (temp->lost)
		return -EIO;
	temp->changed = true;
	for (int i = 0; i < TRIES && err == -EAGAIN && temp->changed; i++)
		err = try_commit(set, temp, fd, space, key, when);
	return err;
}

static bool same_stamp(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size &&
	       !memcmp(&a->st_mtim, &b->st_mtim, sizeof(a->st_mtim)) &&
	       !memcmp(&a->st_ctim, &b->st_ctim, sizeof(a->st_ctim));
}

bool ucm_store_unchanged(const struct ucm_temp *temp, int fd)
{
	struct stat st;

	return !ucm_os_fstat(fd, &st) && same_stamp(&st, &temp->stamp);
}

/* Its size and mtime are those that the index knows, from the commit or from
 * utimensat(2) through the mount. */
static bool is_as_entered(const struct ucm_entry *entry, const struct stat *st)
{
	return (uint64_t)st->st_size == entry->size &&
	       ucm_time_ns(&st->st_mtim) == entry->mtime_ns;
}

/* Is the file of an entry right that was perhaps written to? fd and st are of
 * it. 0; -ENOENT: it was not, and has been set aside; -errno: it cannot be
 * read. */
static int recheck(struct ucm_store *set, ucm_ref ref,
		   const struct ucm_entry *entry, int fd, const struct stat *st)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	int err = find_late_fault(set->names.spaces[entry->space], fd, st,
				  &entry->id, &fault);

	if (err) {
		ucm_store_count_error(set, entry->dir, err);
		ucm_error("%s: block %s: read: %s", set->dirs[entry->dir]->path,
			  ucm_hex(&entry->id).text, strerror(-err));
		return err;
	}
	/* without checksums, but only its times were set, through the mount */
	if (fault == UCM_FAULT_UNVOUCHED && is_as_entered(entry, st))
		fault = UCM_FAULT_NONE;
	if (!fault) {
		move_entry(set, ref, entry->dir, st);
		return 0;
	}
	ucm_store_condemn(set, ref, st, fault, ", written to after its commit");
	return -ENOENT;
}

int ucm_store_check_written(struct ucm_store *set, ucm_ref ref,
			    const struct ucm_entry *entry, int fd,
			    const struct stat *st)
{
	if (!(entry->flags & UCM_ENTRY_SHARED) && is_as_entered(entry, st))
		return 0;
	return recheck(set, ref, entry, fd, st);
}

void ucm_store_recheck(struct ucm_store *set, const struct ucm_temp *temp,
		       int fd)
{
	struct ucm_entry entry;
	struct stat st;
	int err;

	if (!temp->committed || !temp->ref || ucm_os_fstat(fd, &st))
		return;
	if (!temp->shared && same_stamp(&st, &temp->stamp))
		return;
	if (!ucm_index_get(set->index, temp->ref, &entry))
		return;
	err = recheck(set, temp->ref, &entry, fd, &st);
	if (err && err != -ENOENT) /* before the next reader, then */
		ucm_store_doubt(set, temp->ref);
}
