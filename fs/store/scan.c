/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan.c - what lies in the directories, and what of it can be trusted.
 *
 * At the start every bucket of every space of every directory is a task; a few
 * threads take tasks in order, while the mount serves already. A bucket that is
 * listed before its turn is scanned by whoever lists it; scanning twice does no
 * harm. A file enters the index only after its header and size have been read
 * and are right, or if a clean end has left it in a snapshot (snapshot.h); then
 * its header is read when it is opened first. When all tasks are done, what is
 * in doubt after an unclean stop is checked by the same threads, which share the
 * index by its shards.
 *
 * What could not be read then, or checked, is tried again by the directory's
 * own thread (upkeep.c), so that one that hangs keeps no other waiting.
 */
#include <config.h>

#include "fs/store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/memory.h"
#include "fs/block/verify.h"
#include "hashing/tree.h"

static int open_file(struct ucm_store *set, struct ucm_space *space,
		     const struct ucm_id *id, unsigned dir, struct stat *st)
{
	int fd = ucm_backing_open_block(set->dirs[dir], space->folder, id,
					O_RDONLY, st);

	if (fd == -ENXIO || fd == -ELOOP) {
		ucm_count(&set->stats.strays);
		return -ENOENT;
	}
	if (fd < 0 && fd != -ENOENT) {
		ucm_error("%s: block %s: %s", set->dirs[dir]->path,
			  ucm_hex(id).text, strerror(-fd));
		ucm_store_count_error(set, dir, fd);
	}
	return fd;
}

/* Does the name still lead to the file that was judged? Under the name's lock,
 * and while a descriptor keeps its inode from being another's. */
static bool is_still(struct ucm_store *set, const struct ucm_space *space,
		     const struct ucm_id *id, unsigned dir,
		     const struct stat *judged)
{
	char path[UCM_TREE_PATH_MAX];
	struct stat now;

	if (!judged)
		return true;
	ucm_tree_block_path(space->folder, id, path);
	return ucm_os_stat(set->dirs[dir]->dirfd, path, &now) ||
	       (now.st_ino == judged->st_ino && now.st_dev == judged->st_dev);
}

static void quarantine(struct ucm_store *set, const struct ucm_space *space,
		       const struct ucm_id *id, unsigned dir,
		       enum ucm_fault fault, const char *detail)
{
	int err = ucm_backing_quarantine(set->dirs[dir], space->folder, id);

	ucm_warning("%s: block %s: %s%s: %s", set->dirs[dir]->path,
		    ucm_hex(id).text, ucm_fault_text(fault), detail,
		    err ? strerror(-err) : "quarantined");
	if (err && err != -ENOENT) /* it is still there, and in no index */
		atomic_store(&set->dirs[dir]->abandoned, true);
	if (err) {
		ucm_store_count_error(set, dir, err);
		return;
	}
	ucm_count(&set->stats.quarantined);
	ucm_count(&set->stats.quarantined_for[fault]);
}

void ucm_store_set_aside(struct ucm_store *set, struct ucm_space *space,
			 const struct ucm_id *id, unsigned dir,
			 const struct stat *judged, enum ucm_fault fault,
			 const char *detail)
{
	ucm_store_lock_name(set, id);
	if (is_still(set, space, id, dir, judged))
		quarantine(set, space, id, dir, fault, detail);
	ucm_store_unlock_name(set, id);
}

/* Torn files go; what is no block at all is somebody else's and stays. */
static void reject(struct ucm_store *set, struct ucm_space *space,
		   const struct ucm_id *id, unsigned dir, const struct stat *st,
		   enum ucm_fault fault)
{
	bool torn = fault == UCM_FAULT_SHORT || fault == UCM_FAULT_SIZE ||
		    ucm_recovery_doubts(&set->dirs[dir]->recovery, st);

	if (torn && fault != UCM_FAULT_GEOMETRY && fault != UCM_FAULT_SPACE) {
		ucm_store_set_aside(set, space, id, dir, st, fault, "");
		return;
	}
	ucm_warning("%s: %s.bin: %s: left alone", set->dirs[dir]->path,
		    ucm_hex(id).text, ucm_fault_text(fault));
	ucm_count(fault == UCM_FAULT_GEOMETRY || fault == UCM_FAULT_SPACE
			  ? &set->stats.misfits
			  : &set->stats.strays);
}

/* The entry that is there already is this very file, or a copy elsewhere. */
static void note_copy(struct ucm_store *set, ucm_ref ref, unsigned dir)
{
	struct ucm_entry entry;

	if (ucm_index_get(set->index, ref, &entry) && entry.dir != dir)
		ucm_index_flag(set->index, ref, UCM_ENTRY_DUPLICATE, true);
}

int ucm_scan_admit(struct ucm_store *set, struct ucm_space *space,
		   const struct ucm_entry *entry)
{
	ucm_ref ref;
	int err = ucm_store_index_add(set, space, entry, &ref);

	if (err == -EEXIST)
		note_copy(set, ref, entry->dir);
	return err && err != -EEXIST ? err : 1;
}

/* The page cache may have good bytes that never came to the disk, so it is not
 * asked. Where there is no O_DIRECT it is made to forget the file: what has
 * been written is written back before, and what is mapped stays. */
static int verify_on_disk(int fd, const struct stat *st,
			  const struct ucm_id *id, struct ucm_block *block,
			  enum ucm_fault *fault, uint32_t *plane)
{
	_cleanup_fd_ int direct = ucm_os_reopen(fd, O_RDONLY | O_DIRECT);
	int err = direct;

	if (direct >= 0)
		err = ucm_verify_whole(direct, (uint64_t)st->st_size, id, block,
				       fault, plane);
	if (err != -EINVAL)
		return err;
	err = ucm_os_fdatasync(fd);
	if (err)
		return err;
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return ucm_verify_whole(fd, (uint64_t)st->st_size, id, block, fault,
				plane);
}

/* A copy of what is known from another directory has no entry that could be in
 * doubt, so it is checked at once. What is wrong is set aside; what cannot be
 * read keeps its directory from being called clean. */
static bool is_good_copy(struct ucm_store *set, struct ucm_space *space,
			 const struct ucm_key *key, unsigned dir, int fd,
			 const struct stat *st)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	uint32_t plane;

	if (verify_on_disk(fd, st, &key->id, &block, &fault, &plane)) {
		ucm_unread_add(&set->unread, key, dir, ucm_monotonic_ms());
		return false;
	}
	if (!fault && !(block.flags & UCM_BLOCK_HAS_CRC) &&
	    atomic_load(&set->dirs[dir]->recovery.unvouched))
		fault = UCM_FAULT_UNVOUCHED;
	if (fault)
		ucm_store_set_aside(set, space, &key->id, dir, st, fault,
				    ", a second copy");
	return !fault;
}

static int admit_file(struct ucm_store *set, struct ucm_space *space,
		      const struct ucm_id *id, unsigned dir, int fd,
		      const struct stat *st)
{
	const struct ucm_recovery *recovery = &set->dirs[dir]->recovery;
	struct ucm_key key = { .id = *id, .space = space->number };
	struct ucm_entry entry, there;

	ucm_store_entry(&key, dir, st, &entry);
	if (ucm_recovery_is_recent(recovery, st))
		entry.epoch = atomic_load(&recovery->epoch);
	/* its directory may have had its checkpoint without this file */
	if (ucm_recovery_doubts(recovery, st) ||
	    ucm_unread_has(&set->unread, &key, dir))
		entry.flags |= UCM_ENTRY_DOUBT;
	if (entry.flags & UCM_ENTRY_DOUBT &&
	    ucm_index_find(set->index, &key, &there, NULL) &&
	    there.dir != dir && !is_good_copy(set, space, &key, dir, fd, st))
		return 0;
	return ucm_scan_admit(set, space, &entry);
}

/* A bare block's geometry is its size. One that a power cut may have torn would
 * teach its space a wrong one. */
static bool teaches(const struct ucm_backing *backing,
		    const struct ucm_block *block, const struct stat *st)
{
	return block->form != UCM_FORM_BARE ||
	       !atomic_load(&backing->recovery.unvouched) ||
	       !ucm_recovery_doubts(&backing->recovery, st);
}

/* An open file: into the index with it, or not; see ucm_store_examine(). */
static int examine_file(struct ucm_store *set, struct ucm_space *space,
			const struct ucm_id *id, unsigned dir, int fd,
			const struct stat *st)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	int err = ucm_verify_header(fd, (uint64_t)st->st_size, id, &block,
				    &fault);

	if (err) {
		ucm_error("%s: block %s: read: %s", set->dirs[dir]->path,
			  ucm_hex(id).text, strerror(-err));
		ucm_store_count_error(set, dir, err);
		return err;
	}
	if (!fault)
		fault = ucm_space_fits(space, &block,
				       teaches(set->dirs[dir], &block, st));
	ucm_debug(SCAN, 2, "%s: block %s: %s", set->dirs[dir]->path,
		  ucm_hex(id).text, ucm_fault_text(fault));
	if (fault) {
		reject(set, space, id, dir, st, fault);
		return 0;
	}
	return admit_file(set, space, id, dir, fd, st);
}

void ucm_store_read_again(struct ucm_store *set, const struct ucm_key *key,
			  unsigned dir)
{
	int64_t now_ms = ucm_monotonic_ms();
	struct ucm_unread_file file;
	unsigned cursor = 0;

	while (ucm_unread_next(&set->unread, key, dir, now_ms, &cursor,
			       &file)) {
		struct ucm_space *space =
			ucm_namespace_get(&set->names, file.key.space);

		if (!space ||
		    ucm_store_examine(set, space, &file.key.id, file.dir) >= 0)
			ucm_unread_remove(&set->unread, &file.key, file.dir);
	}
}

int ucm_store_examine(struct ucm_store *set, struct ucm_space *space,
		      const struct ucm_id *id, unsigned dir)
{
	_cleanup_fd_ int fd = -1;
	struct stat st;

	fd = open_file(set, space, id, dir, &st);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	return examine_file(set, space, id, dir, fd, &st);
}

/* Files of one bucket that are open: the disk is asked for the headers of all
 * of them before the first is waited for. */
#define BATCH 32

struct batch {
	struct ucm_store *set;
	struct ucm_space *space;
	unsigned dir, num;
	int err; /* one of them could not be looked at */
	struct {
		struct ucm_id id;
		struct stat st;
		int fd;
	} files[BATCH];
};

/* Want of descriptors or memory, or a server that does not answer, says nothing
 * of the file: the bucket must be looked at once more. Other errors are the
 * file's own. */
static void note_failure(struct batch *batch, const struct ucm_id *id, int err)
{
	struct ucm_key key = { .id = *id, .space = batch->space->number };

	if (err >= 0)
		return;
	switch (err) {
	case -EMFILE: case -ENFILE: case -ENOMEM: case -ETIMEDOUT: case -ESTALE:
	case -ENOTCONN: case -EINTR:
		batch->err = err;
		break;
	case -ENOENT: case -EFBIG:
		break;
	default:
		if (!ucm_unread_add(&batch->set->unread, &key, batch->dir,
				    ucm_monotonic_ms()))
			batch->err = err;
		break;
	}
}

static void batch_run(struct batch *batch)
{
	for (unsigned i = 0; i < batch->num; i++) {
		int err = examine_file(batch->set, batch->space,
				       &batch->files[i].id, batch->dir,
				       batch->files[i].fd,
				       &batch->files[i].st);

		note_failure(batch, &batch->files[i].id, err);
		close(batch->files[i].fd);
	}
	batch->num = 0;
}

static void batch_add(struct batch *batch, const struct ucm_id *id)
{
	struct stat *st = &batch->files[batch->num].st;
	int fd = open_file(batch->set, batch->space, id, batch->dir, st);

	note_failure(batch, id, fd);
	if (fd < 0)
		return;
	posix_fadvise(fd, 0, UCM_BLOCK_PAGE, POSIX_FADV_WILLNEED);
	batch->files[batch->num].id = *id;
	batch->files[batch->num++].fd = fd;
	if (batch->num == BATCH)
		batch_run(batch);
}

static void scan_name(struct batch *batch, unsigned bucket, const char *name)
{
	struct ucm_key key = { .space = batch->space->number };
	struct ucm_store *set = batch->set;
	struct ucm_entry entry;

	if (ucm_tree_parse_block(name, &key.id) ||
	    ucm_tree_bucket(&key.id) != bucket)
		ucm_count(&set->stats.strays);
	else if (!ucm_index_find(set->index, &key, &entry, NULL) ||
		 entry.dir != batch->dir)
		batch_add(batch, &key.id);
}

static int scan_names(struct ucm_store *set, struct ucm_space *space,
		      unsigned dir, unsigned bucket, const char *names)
{
	struct batch batch = { .set = set, .space = space, .dir = dir };

	/* whoever closes the store waits for us */
	for (const char *name = names; *name && !atomic_load(&set->stopping);
	     name += strlen(name) + 1)
		scan_name(&batch, bucket, name);
	batch_run(&batch);
	return atomic_load(&set->stopping) ? -ECANCELED : batch.err;
}

static int read_bucket(struct ucm_store *set, struct ucm_space *space,
		       unsigned dir, unsigned bucket)
{
	char path[UCM_TREE_PATH_MAX];
	_cleanup_free_ char *names = NULL;
	int err;

	ucm_tree_bucket_path(space->folder, bucket, path);
	err = ucm_os_list(set->dirs[dir]->dirfd, path, &names);
	if (err && err != -ENOENT) {
		if (!atomic_exchange(&set->dirs[dir]->unreadable, true))
			ucm_error("%s/%s: %s; its blocks are looked for one "
				  "by one",
				  set->dirs[dir]->path, path, strerror(-err));
		ucm_store_count_error(set, dir, err);
		return err;
	}
	if (atomic_exchange(&set->dirs[dir]->unreadable, false))
		ucm_info("%s: can be read again", set->dirs[dir]->path);
	err = names ? scan_names(set, space, dir, bucket, names) : 0;
	ucm_debug(SCAN, 1, "%s/%s: %s", set->dirs[dir]->path, path,
		  err ? strerror(-err) : names ? "read" : "not there");
	if (!err)
		ucm_space_set_scanned(space, dir, bucket);
	return err;
}

int ucm_store_scan_bucket(struct ucm_store *set, struct ucm_space *space,
			  unsigned dir, unsigned bucket)
{
	bool again = ucm_space_is_scanned(space, dir, bucket);

	ucm_snapshots_load(set, dir, bucket);
	if (!again && ucm_space_is_scanned(space, dir, bucket))
		return 0;
	return read_bucket(set, space, dir, bucket);
}

/* 1: it is a block, and in the index now. Quiet: what else there is to say of
 * the file, the scan says. */
static int learn_from_file(struct ucm_store *set, struct ucm_space *space,
			   const struct ucm_id *id, unsigned dir)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	_cleanup_fd_ int fd = -1;
	struct ucm_block block;
	struct stat st;
	int err;

	fd = ucm_backing_open_block(set->dirs[dir], space->folder, id,
				    O_RDONLY, &st);
	if (fd == -ENOENT || fd == -ENXIO || fd == -ELOOP)
		return 0;
	if (fd < 0)
		return fd;
	err = ucm_verify_header(fd, (uint64_t)st.st_size, id, &block, &fault);
	if (err || fault || !teaches(set->dirs[dir], &block, &st) ||
	    ucm_space_fits(space, &block, true))
		return err;
	return admit_file(set, space, id, dir, fd, &st);
}

/* One file after another until one is right: 1. 0: none is; -errno. */
static int learn_from_names(struct ucm_store *set, struct ucm_space *space,
			    unsigned dir, unsigned bucket, const char *piece,
			    ssize_t len)
{
	const struct dirent *entry;
	struct ucm_id id;
	int found = 0;

	for (ssize_t at = 0; at < len && !found; at += entry->d_reclen) {
		entry = (const struct dirent *)(piece + at);
		if (!ucm_tree_parse_block(entry->d_name, &id) &&
		    ucm_tree_bucket(&id) == bucket)
			found = learn_from_file(set, space, &id, dir);
	}
	return found;
}

/* In pieces: a bucket may have millions of names. */
static bool learn_from_bucket(struct ucm_store *set, struct ucm_space *space,
			      unsigned dir, unsigned bucket)
{
	_Alignas(struct dirent) char piece[4096];
	char path[UCM_TREE_PATH_MAX];
	_cleanup_fd_ int fd = -1;
	int found = 0;
	ssize_t len;

	ucm_tree_bucket_path(space->folder, bucket, path);
	fd = ucm_os_open(set->dirs[dir]->dirfd, path, O_RDONLY | O_DIRECTORY,
			 0);
	if (fd < 0)
		return false;
	while (!found &&
	       (len = ucm_os_list_piece(fd, piece, sizeof(piece))) > 0)
		found = learn_from_names(set, space, dir, bucket, piece, len);
	return found > 0;
}

int ucm_scan_buckets(const struct ucm_backing *backing,
		     const struct ucm_space *space, uint64_t out[4])
{
	_cleanup_free_ char *names = NULL;
	int err = ucm_os_list(backing->dirfd, space->folder, &names);

	memset(out, 0, 4 * sizeof(*out));
	if (err)
		return err == -ENOENT ? 0 : err;
	for (const char *name = names; *name; name += strlen(name) + 1) {
		int bucket = ucm_tree_parse_bucket(name);

		if (bucket >= 0)
			out[bucket / 64] |= UINT64_C(1) << bucket % 64;
	}
	return 0;
}

static bool is_there(uint64_t there[4], unsigned bucket)
{
	return there[bucket / 64] >> bucket % 64 & 1;
}

/* What a space's blocks look like must be known before the first commit, and
 * the mount is waiting: one block tells. */
static void learn_geometry(struct ucm_store *set, struct ucm_space *space,
			   uint64_t there[][4])
{
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++) {
		for (unsigned dir = 0; dir < set->num_dirs; dir++) {
			if (is_there(there[dir], bucket) &&
			    learn_from_bucket(set, space, dir, bucket))
				return;
		}
	}
}

void ucm_scan_look_around(struct ucm_store *set, struct ucm_space *space)
{
	uint64_t there[UCM_MAX_DIRS][4];

	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		if (ucm_scan_buckets(set->dirs[dir], space, there[dir]))
			continue;
		for (unsigned word = 0; word < 4; word++)
			atomic_fetch_or(&space->scanned[4 * dir + word],
					~there[dir][word]);
	}
	if (!space->has_geometry)
		learn_geometry(set, space, there);
}

struct settled {
	struct ucm_store *set;
	bool has_crc;
	bool changed;
};

static void edit_settled(struct ucm_entry *entry, void *arg)
{
	struct settled *settled = arg;

	settled->changed = entry->flags & UCM_ENTRY_DOUBT;
	if (settled->changed)
		ucm_store_count_doubts(settled->set, entry->dir, -1);
	entry->flags &= (uint8_t)~UCM_ENTRY_DOUBT;
	if (settled->has_crc) /* the disk has it; else it was only trusted */
		entry->epoch = 0;
}

int ucm_store_settle(struct ucm_store *set, ucm_ref ref)
{
	struct settled settled = { .set = set };
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_entry entry;
	struct ucm_space *space;
	struct ucm_block block;
	uint32_t plane = 0;
	char detail[40] = "";
	_cleanup_fd_ int fd = -1;
	struct stat st;
	int err;

	if (!ucm_index_get(set->index, ref, &entry))
		return -ENOENT;
	if (!(entry.flags & UCM_ENTRY_DOUBT))
		return 0;
	space = set->names.spaces[entry.space];
	fd = open_file(set, space, &entry.id, entry.dir, &st);
	if (fd == -ENOENT)
		ucm_store_lose(set, ref, fd);
	if (fd < 0)
		return fd;
	err = verify_on_disk(fd, &st, &entry.id, &block, &fault, &plane);
	if (err) {
		ucm_error("%s: block %s: read: %s", set->dirs[entry.dir]->path,
			  ucm_hex(&entry.id).text, strerror(-err));
		ucm_store_count_error(set, entry.dir, err);
		return err;
	}
	if (!fault && !(block.flags & UCM_BLOCK_HAS_CRC) &&
	    set->dirs[entry.dir]->recovery.unvouched)
		fault = UCM_FAULT_UNVOUCHED;
	if (fault) {
		if (fault == UCM_FAULT_PLANE)
			snprintf(detail, sizeof(detail), " (layer %u %s)",
				 plane / 2, plane % 2 ? "V" : "K");
		ucm_store_condemn(set, ref, &st, fault, detail);
		return -ENOENT;
	}
	settled.has_crc = block.flags & UCM_BLOCK_HAS_CRC;
	/* unless another thread has settled it meanwhile */
	if (ucm_index_edit(set->index, ref, edit_settled, &settled) &&
	    settled.changed)
		ucm_count(&set->stats.doubts_settled);
	return 0;
}

static bool doubt_entry(struct ucm_store *set, struct ucm_entry *entry)
{
	if (entry->flags & UCM_ENTRY_DOUBT)
		return false;
	ucm_store_count_doubts(set, entry->dir, 1);
	entry->flags |= UCM_ENTRY_DOUBT;
	return true;
}

static void edit_doubt(struct ucm_entry *entry, void *arg)
{
	doubt_entry(arg, entry);
}

void ucm_store_doubt(struct ucm_store *set, ucm_ref ref)
{
	ucm_index_edit(set->index, ref, edit_doubt, set);
}

/* Under the name's lock: take the entry out, if it is that file's. */
static bool take_entry(struct ucm_store *set, ucm_ref ref,
		       const struct stat *judged, struct ucm_entry *entry)
{
	return ucm_index_get(set->index, ref, entry) &&
	       is_still(set, set->names.spaces[entry->space], &entry->id,
			entry->dir, judged) &&
	       ucm_store_index_remove(set, ref, entry);
}

void ucm_store_condemn(struct ucm_store *set, ucm_ref ref,
		       const struct stat *judged, enum ucm_fault fault,
		       const char *detail)
{
	struct ucm_space *space;
	struct ucm_entry entry;
	struct ucm_key key;

	if (!ucm_index_get(set->index, ref, &entry))
		return;
	ucm_store_lock_name(set, &entry.id);
	if (!take_entry(set, ref, judged, &entry)) {
		ucm_store_unlock_name(set, &entry.id);
		return; /* another thread was faster */
	}
	key = (struct ucm_key){ .id = entry.id, .space = entry.space };
	space = set->names.spaces[entry.space];
	quarantine(set, space, &entry.id, entry.dir, fault, detail);
	if (entry.flags & UCM_ENTRY_PINNED)
		ucm_backing_pin(set->dirs[entry.dir], space->folder, &entry.id,
				false);
	if (entry.flags & UCM_ENTRY_DUPLICATE) {
		for (unsigned dir = 0; dir < set->num_dirs; dir++) {
			if (dir != entry.dir)
				ucm_store_examine(set, space, &entry.id, dir);
		}
	}
	ucm_store_unlock_name(set, &entry.id);
	ucm_store_tell_loss(set, &key);
}

/* What a task's number stands for. */
struct task {
	struct ucm_space *space; /* NULL: it is gone */
	unsigned dir, bucket;
};

static unsigned dir_of_task(const struct ucm_store *set, uint64_t number)
{
	return (unsigned)(number / UCM_BUCKETS / set->scan_spaces);
}

static struct task task_of(struct ucm_store *set, uint64_t number)
{
	unsigned space = (unsigned)(number / UCM_BUCKETS % set->scan_spaces);

	return (struct task){
		.space = ucm_namespace_get(&set->names, space),
		.dir = dir_of_task(set, number),
		.bucket = (unsigned)(number % UCM_BUCKETS),
	};
}

static int run_task(struct ucm_store *set, uint64_t number)
{
	struct task task = task_of(set, number);

	if (task.space &&
	    !ucm_space_is_scanned(task.space, task.dir, task.bucket))
		return ucm_store_scan_bucket(set, task.space, task.dir,
					     task.bucket);
	return 0;
}

bool ucm_scan_knows(struct ucm_store *set, unsigned dir)
{
	for (unsigned i = 0; i < set->scan_spaces; i++) {
		struct ucm_space *space = ucm_namespace_get(&set->names, i);

		for (unsigned word = 0; space && word < 4; word++) {
			if (~atomic_load(&space->scanned[4 * dir + word]))
				return false;
		}
	}
	return true;
}

/* A directory that could not be read keeps its names unknown: then the index
 * never counts as whole, and what it lacks is probed for. */
static bool all_scanned(struct ucm_store *set)
{
	if (atomic_load(&set->dirs_left))
		return false;
	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		if (!ucm_scan_knows(set, dir))
			return false;
	}
	return true;
}

static void mark_pinned(void *arg, const char *name, const struct ucm_id *id)
{
	struct ucm_store *set = arg;
	struct ucm_space *space = *name ? ucm_namespace_find(&set->names, name)
					: set->names.spaces[0];
	struct ucm_key key = { .id = *id };
	ucm_ref ref;

	if (!space)
		return;
	key.space = space->number;
	if (ucm_index_find(set->index, &key, NULL, &ref))
		ucm_index_flag(set->index, ref, UCM_ENTRY_PINNED, true);
}

/* What others put into a bucket behind an earlier mount, the snapshot does not
 * know, and its times do not tell. */
static void audit(struct ucm_store *set)
{
	for (uint64_t number = 0; number < set->num_tasks; number++) {
		struct task task = task_of(set, number);

		if (atomic_load(&set->stopping))
			return;
		if (task.space && ucm_snapshots_trusted(set, task.space,
							task.dir, task.bucket))
			ucm_store_scan_bucket(set, task.space, task.dir,
					      task.bucket);
	}
}

static void scan_ended(struct ucm_store *set)
{
	if (!all_scanned(set) || atomic_exchange(&set->scanned, true))
		return;
	ucm_index_memory_set_complete(ucm_index_live(set->index));
	ucm_info("%llu blocks found",
		 (unsigned long long)atomic_load(&set->blocks));
}

/* All tasks of a directory have been tried. */
static void dir_ended(struct ucm_store *set, unsigned dir)
{
	ucm_backing_each_pin(set->dirs[dir], mark_pinned, set);
	atomic_fetch_sub(&set->dirs_left, 1);
	scan_ended(set);
}

void ucm_scan_retry(struct ucm_store *set, unsigned dir)
{
	uint64_t num = (uint64_t)set->scan_spaces * UCM_BUCKETS;

	if (atomic_load(&set->keepers[dir].tasks_left) ||
	    ucm_scan_knows(set, dir))
		return;
	for (uint64_t task = dir * num; task < (dir + 1) * num; task++) {
		if (atomic_load(&set->stopping))
			return;
		/* one that fails again is not asked 256 times */
		if (run_task(set, task))
			task += UCM_BUCKETS - task % UCM_BUCKETS - 1;
	}
	ucm_backing_each_pin(set->dirs[dir], mark_pinned, set);
	scan_ended(set);
}

/* ---- doubts ---- */

struct doubtful {
	struct ucm_store *set;
	unsigned dir; /* or all */
	uint8_t flag;
	unsigned num;
	ucm_ref refs[UCM_INDEX_PIECE];
};
#define ALL_DIRS UINT_MAX

static bool note_flagged(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct doubtful *found = arg;

	if (entry->flags & found->flag &&
	    (found->dir == ALL_DIRS || found->dir == entry->dir))
		found->refs[found->num++] = ref;
	return false;
}

/* fn on the entries with a flag, outside of the index's locks. */
static void each_flagged(struct ucm_store *set, unsigned shard, unsigned dir,
			 uint8_t flag,
			 int (*fn)(struct ucm_store *set, ucm_ref ref))
{
	struct doubtful found = { .set = set, .dir = dir, .flag = flag };
	uint32_t cursor = 0;
	bool more;

	do {
		found.num = 0;
		more = ucm_index_walk(set->index, shard, &cursor, note_flagged,
				      &found);
		for (unsigned i = 0; i < found.num; i++) {
			if (atomic_load(&set->stopping))
				return;
			fn(set, found.refs[i]);
		}
	} while (more);
}

static void settle_shard(struct ucm_store *set, unsigned shard, unsigned dir)
{
	each_flagged(set, shard, dir, UCM_ENTRY_DOUBT, ucm_store_settle);
}

void ucm_scan_check_writers(struct ucm_store *set, unsigned dir)
{
	for (unsigned shard = 0;
	     shard < UCM_BUCKETS && atomic_load(&set->writers); shard++)
		each_flagged(set, shard, dir, UCM_ENTRY_WRITABLE,
			     ucm_store_check);
}

/* All that is in doubt; by several threads, each of which takes shards. */
static void settle_all(struct ucm_store *set)
{
	unsigned shard;

	while (atomic_load(&set->doubts) && !atomic_load(&set->stopping) &&
	       (shard = atomic_fetch_add(&set->next_shard, 1)) < UCM_BUCKETS)
		settle_shard(set, shard, ALL_DIRS);
}

void ucm_scan_settle(struct ucm_store *set, unsigned dir)
{
	const struct ucm_keeper *keeper = &set->keepers[dir];

	if (atomic_load(&keeper->tasks_left))
		return;
	/* from the other end than the threads of the scan, who may be at it */
	for (unsigned shard = UCM_BUCKETS; shard-- > 0;) {
		if (!atomic_load(&keeper->doubts) ||
		    atomic_load(&set->stopping))
			return;
		settle_shard(set, shard, dir);
	}
}

static bool doubt_uncovered(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	const struct doubtful *of = arg;

	(void)ref;
	return entry->dir == of->dir &&
	       ucm_recovery_uncovered(&of->set->dirs[of->dir]->recovery,
				      entry->epoch) &&
	       doubt_entry(of->set, entry);
}

void ucm_scan_doubt(struct ucm_store *set, unsigned dir)
{
	struct doubtful of = { .set = set, .dir = dir };

	for (unsigned shard = 0; shard < UCM_BUCKETS; shard++) {
		uint32_t cursor = 0;

		while (ucm_index_walk(set->index, shard, &cursor,
				      doubt_uncovered, &of))
			;
	}
}

/* ---- threads ---- */

static void task_ended(struct ucm_store *set, uint64_t number)
{
	unsigned dir = dir_of_task(set, number);

	if (atomic_fetch_sub(&set->keepers[dir].tasks_left, 1) == 1)
		dir_ended(set, dir);
	if (atomic_fetch_add(&set->tasks_done, 1) + 1 < set->num_tasks)
		return;
	pthread_mutex_lock(&set->upkeep_lock);
	pthread_cond_broadcast(&set->upkeep_wake);
	pthread_mutex_unlock(&set->upkeep_lock);
}

static void wait_for_last_task(struct ucm_store *set)
{
	pthread_mutex_lock(&set->upkeep_lock);
	while (atomic_load(&set->tasks_done) < set->num_tasks &&
	       !atomic_load(&set->stopping))
		pthread_cond_wait(&set->upkeep_wake, &set->upkeep_lock);
	pthread_mutex_unlock(&set->upkeep_lock);
}

static void *scan_main(void *arg)
{
	struct ucm_store *set = arg;
	uint64_t task;

	while (!atomic_load(&set->stopping) &&
	       (task = atomic_fetch_add(&set->next_task, 1)) < set->num_tasks) {
		run_task(set, task);
		task_ended(set, task);
	}
	wait_for_last_task(set);
	settle_all(set);
	if (!atomic_exchange(&set->audited, true)) {
		audit(set);
		ucm_snapshots_close(set);
	}
	return NULL;
}

int ucm_scan_start(struct ucm_store *set)
{
	uint64_t num = (uint64_t)set->scan_spaces * UCM_BUCKETS;

	set->num_tasks = set->num_dirs * num;
	set->dirs_left = set->num_dirs;
	for (unsigned dir = 0; dir < set->num_dirs; dir++)
		set->keepers[dir].tasks_left = num;
	for (unsigned i = 0; i < set->config->scan_threads; i++) {
		int err = pthread_create(&set->scan_threads[i], NULL,
					 scan_main, set);

		if (err)
			return set->num_scan_threads ? 0 : -err;
		set->num_scan_threads++;
	}
	return 0;
}

void ucm_scan_stop(struct ucm_store *set)
{
	pthread_mutex_lock(&set->upkeep_lock);
	pthread_cond_broadcast(&set->upkeep_wake);
	pthread_mutex_unlock(&set->upkeep_lock);
	for (unsigned i = 0; i < set->num_scan_threads; i++)
		pthread_join(set->scan_threads[i], NULL);
	set->num_scan_threads = 0;
}
