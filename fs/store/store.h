/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store: all tiers under one set of names.
 *
 * Finds a block in whichever tier has it, writes new ones to the first tier
 * with room, and keeps the index. It knows nothing of FUSE. Calls return 0 (or
 * a descriptor) or -errno and may be made from any thread, but open, start,
 * stop and close, which are the owner's.
 *
 * Split by task: store.c (open, find, read, remove), commit.c (new blocks),
 * scan.c (filling the index; doubts after a crash), snapshot_index.c (filling
 * it from what a clean end has left), upkeep.c (threads). files/ is not of
 * blocks: files.h.
 */
#ifndef UCM_STORE_H
#define UCM_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "fs/tier/config.h"
#include "fs/index/index.h"
#include "fs/store/namespace.h"
#include "fs/tier/stats.h"
#include "fs/tier/tier.h"
#include "fs/store/unread.h"

struct ucm_store;

/* What a directory has for itself: none waits for another that hangs. */
struct ucm_keeper {
	struct ucm_store *set;
	unsigned dir;
	_Atomic uint64_t doubts;     /* its entries that are in doubt */
	_Atomic uint64_t tasks_left; /* of the scan */
	_Atomic bool dirty; /* something was committed since the checkpoint */
	pthread_mutex_t sync_lock; /* for recovery.h: one sync at a time */
	int64_t checkpoint_due_ms;
	pthread_t thread;
	bool running;
	_Atomic bool ended; /* the thread, if there was one, is done */
};

struct ucm_store {
	struct ucm_config *config; /* the caller's; outlives the store */
	struct ucm_tier *tiers;
	unsigned num_tiers;
	struct ucm_backing *dirs[UCM_MAX_DIRS]; /* of all tiers, in order */
	struct ucm_tier *tier_of[UCM_MAX_DIRS];
	unsigned num_dirs;
	struct ucm_index *index;
	struct ucm_namespace names;
	struct ucm_stats stats;
	_Atomic uint64_t blocks; /* in the index */
	_Atomic uint64_t doubts; /* entries that are in doubt, of all keepers */
	_Atomic uint64_t writers; /* files that are open after their commit */
	_Atomic bool scanned;    /* the whole index is filled, */
	struct ucm_unread unread; /* but for what could not be read */
	/* For the size of a space's first blocks: the largest block that there
	 * has been, and the most that a file of unknown size had when it was
	 * dropped. */
	_Atomic uint64_t largest, outgrown;
	/* Held by whoever changes both a name's file and its entry, so that
	 * nobody finds them apart; picked by the hash. Recursive: a commit may
	 * condemn what it finds there. */
	pthread_mutex_t name_locks[256];

	/* Told when a block goes that nobody has unlinked through this store:
	 * damaged, torn or vanished. Set before start; called from any thread,
	 * with no lock held but loss_lock. */
	void (*on_loss)(void *arg, const struct ucm_key *key);
	void *on_loss_arg;
	pthread_mutex_t loss_lock; /* so that nobody is told after quiet */

	/* Told when an entry has left the index, whatever the reason. Set before
	 * start; called from any thread, also with a name's lock held. */
	void (*on_gone)(void *arg, ucm_ref ref);
	void *on_gone_arg;
	pthread_rwlock_t gone_lock; /* the same */

	struct ucm_recall *recalls[UCM_MAX_DIRS]; /* snapshot_index.c */

	/* scan.c and upkeep.c */
	_Atomic uint64_t next_task;
	_Atomic uint64_t tasks_done;
	uint64_t num_tasks;
	unsigned scan_spaces; /* spaces that were there at the start */
	_Atomic unsigned dirs_left; /* whose tasks have not all been tried */
	_Atomic unsigned next_shard; /* to settle, once the scan is over */
	_Atomic bool audited; /* and to list what came from snapshots */
	_Atomic bool stopping; /* begin nothing more */
	_Atomic bool closing;  /* no request is left: leave the directories */
	pthread_mutex_t upkeep_lock;
	pthread_cond_t upkeep_wake; /* the scan or the set's life is over */
	pthread_cond_t upkeep_ended;
	struct ucm_keeper keepers[UCM_MAX_DIRS]; /* by directory */
	unsigned close_ms; /* how long the close waits for one that hangs */
	pthread_t scan_threads[64];
	unsigned num_scan_threads;
	pthread_t count_thread; /* list.c */
	bool counting;
	_Atomic bool files_counted;
	_Atomic uint64_t file_bytes; /* what a new file may be going to take */
	bool begun;
};

/*
 * Open all tiers and learn which spaces there are, and what their blocks look
 * like. Writes nothing but what a new directory lacks. Errors come with a
 * complaint that names the directory.
 */
int ucm_store_open(struct ucm_config *config, struct ucm_store **out,
		   struct ucm_complaint *complaint);

/* Mark the directories as in use. */
int ucm_store_begin(struct ucm_store *set);

/* The same, if that has not been done; start the scan and the checkpoints. */
int ucm_store_start(struct ucm_store *set);

/* Tell other starts that a mount, of this device, uses the directories: when
 * it is gone they wait for us to end. */
void ucm_store_serving(struct ucm_store *set, dev_t mount);

/* From now on nobody is told of losses. Close follows. */
void ucm_store_quiet(struct ucm_store *set);

/* End the threads, and leave each directory clean of which everything is known
 * to be. One that hangs is left as it is, and what its thread may still touch
 * is never freed. */
void ucm_store_close(struct ucm_store *set);

/* ---- finding and reading ---- */

/* -ENOENT, also if a directory could not say. A block in doubt is checked
 * first: -EIO and the like if it cannot be read. */
int ucm_store_find(struct ucm_store *set, const struct ucm_key *key,
		   struct ucm_entry *out, ucm_ref *ref_out);

/* The same for those who look around: it is not counted as a lookup. */
int ucm_store_peek(struct ucm_store *set, const struct ucm_key *key,
		   struct ucm_entry *out, ucm_ref *ref_out);

/* Open a block for reading and count the use. -ENOENT if it is gone. */
int ucm_store_open_block(struct ucm_store *set, ucm_ref ref,
			 struct ucm_entry *out);

/* One more open of a block that is open already: count it. If it has come into
 * doubt, or its writer still has it open, it is checked first: -ENOENT as above. */
int ucm_store_open_again(struct ucm_store *set, ucm_ref ref);

/* Read a block's header. */
int ucm_store_header(struct ucm_store *set, ucm_ref ref, struct ucm_block *out);

/* See to it that the index has all of a bucket, for a listing. */
void ucm_store_fill_bucket(struct ucm_store *set, struct ucm_space *space,
			   unsigned bucket);

/* Unlink a block from every tier. -ENOENT, -EROFS, ... */
int ucm_store_remove(struct ucm_store *set, const struct ucm_key *key);

/* Set atime and mtime as utimensat(2) does. */
int ucm_store_set_times(struct ucm_store *set, ucm_ref ref,
			const struct timespec times[2]);

/* Count a use that is no open. -ENOENT: it is gone. */
int ucm_store_touch(struct ucm_store *set, ucm_ref ref);

int ucm_store_pin(struct ucm_store *set, ucm_ref ref, bool pinned);

/* The path of a block's file, for people. */
int ucm_store_path(struct ucm_store *set, const struct ucm_entry *entry,
		   char *path, size_t size);

void ucm_store_statvfs(struct ucm_store *set, struct statvfs *out);

/* syncfs of all directories that may be written to. One that fails is logged;
 * the first error comes back, and the others are synced all the same. */
int ucm_store_sync(struct ucm_store *set);

/* ---- new blocks (commit.c) ---- */

/* A file being written. */
struct ucm_temp {
	struct ucm_backing *backing;
	struct ucm_tier *tier;
	uint8_t dir;
	char name[UCM_TEMP_NAME_MAX];
	struct ucm_promise *promise; /* room set aside, until it is committed */
	bool committed;    /* name is gone; a block, or dropped as a duplicate */
	bool lost;         /* its bytes, perhaps: never to be committed */
	unsigned losses;   /* of its directory, when it was made */
	bool presized;     /* its size was set: it says nothing of its bytes */
	bool shared;       /* opened O_RDWR: it may be mapped, and then be
			    * written to without a trace */
	bool changed;      /* somebody wrote to it while it was judged */
	bool wants_word;   /* nothing was wrong when it was tried last, but only
			    * its writer can say that it is whole */
	bool guessed;      /* its size was not known when it was made */
	struct ucm_key key; /* once committed */
	ucm_ref ref;        /* 0: a duplicate */
	struct stat stamp;  /* at the commit, or when it was tried last */
	/* What its header says, from who has written all of the file and knows
	 * that it was written; the commit reads nothing back then. NULL: it
	 * looks for itself. */
	const struct ucm_block *written;
};

/*
 * Why a file may be whole. Checksums prove it whoever closes it. Without them,
 * and without a geometry that tells the size, only its writer knows: its word
 * is fsync, rename, or a close by a process that goes on. What the kernel
 * closes for a process that was killed is nobody's word.
 */
enum ucm_commit_when {
	UCM_COMMIT_IF_WHOLE, /* a descriptor was closed, perhaps not the last */
	UCM_COMMIT_CLOSED,   /* the same, by a process that goes on */
	UCM_COMMIT_LAST,     /* the last close */
	UCM_COMMIT_NOW,      /* fsync, rename, or the last close of what has not
			      * changed since a process that goes on closed it */
};

/* Make a temporary file where a block of this name shall lie. The caller gets
 * a descriptor open for reading and writing, and ends the file with
 * ucm_store_drop(). bytes: of room for it; 0: as the space's blocks take, or
 * a guess. -ENOSPC, -EROFS, ... if no tier takes it; -EFBIG if the space's
 * blocks are larger than block_max. */
int ucm_store_create(struct ucm_store *set, const struct ucm_key *key,
		     uint64_t bytes, struct ucm_temp *out);

/* A temporary file's last descriptor (fd) is about to be closed, and it may be
 * renamed later: a guess of its size becomes what it has. */
void ucm_store_rest(struct ucm_temp *temp, int fd);

/* Open a temporary file once more. */
int ucm_store_reopen(struct ucm_store *set, const struct ucm_temp *temp);

/*
 * Check a temporary file and make it the block of that name; fd is open on it.
 * 0: there is now a whole block of that name, this file's or an earlier one.
 * -EAGAIN: incomplete, go on writing; or temp->wants_word. -EINVAL: wrong,
 * logged with the rule. -EFBIG: larger than block_max, likewise.
 * Others: the tier failed; logged. Not from two threads for one file.
 */
int ucm_store_commit(struct ucm_store *set, struct ucm_temp *temp, int fd,
		     const struct ucm_key *key, enum ucm_commit_when when);

/* Log and count that a file is not committed, and why: -EINVAL. detail: more
 * than the fault says, or NULL. */
int ucm_store_refuse(struct ucm_store *set, const struct ucm_key *key,
		     enum ucm_fault fault, const char *detail);

/* Has it not been written to since its commit was last tried? */
bool ucm_store_unchanged(const struct ucm_temp *temp, int fd);

/* The last descriptor of a committed file is closed: has it been written to
 * since? A wrong file is quarantined. */
void ucm_store_recheck(struct ucm_store *set, const struct ucm_temp *temp,
		       int fd);

/* A descriptor of a committed file outlives the store, which will not see what
 * is written through it: its directory is not left clean, so that the next
 * mount checks what has changed. */
void ucm_store_abandon(const struct ucm_temp *temp);

/* Forget a temporary file; its name goes if it was not committed. */
void ucm_store_drop(struct ucm_store *set, struct ucm_temp *temp);

/* ---- spaces ---- */

/* -EDQUOT: the user has made so many that he may make no more. */
int ucm_store_mkdir(struct ucm_store *set, const char *name, mode_t mode,
		    uid_t uid, gid_t gid, struct ucm_space **out);
int ucm_store_rmdir(struct ucm_store *set, struct ucm_space *space);
int ucm_store_chmod(struct ucm_store *set, struct ucm_space *space,
		    bool is_private);
int ucm_store_chown(struct ucm_store *set, struct ucm_space *space, uid_t uid,
		    gid_t gid);

/* space.json: text of it (-ENOENT, -EFBIG), or a new one (-EINVAL; -EFBIG: its
 * blocks would be larger than block_max). */
int ucm_store_read_manifest(struct ucm_store *set, struct ucm_space *space,
			    char *text, size_t size);
int ucm_store_write_manifest(struct ucm_store *set, struct ucm_space *space,
			     const char *text, size_t len);

/* ---- shared by the store's own files ---- */

/* What a text says, within our limits: -EINVAL, -EFBIG with a complaint. */
int ucm_store_parse_manifest(struct ucm_store *set, const char *text,
			     size_t len, struct ucm_manifest *out,
			     struct ucm_complaint *complaint);

/* What space.json says, if there is one; logs what is wrong with it. */
void ucm_store_load_manifest(struct ucm_store *set, struct ucm_space *space);

/* Make a space's folder in a directory that has not got it, with the space's
 * owner and mode. */
int ucm_store_make_folder(struct ucm_store *set, struct ucm_backing *backing,
			  const struct ucm_space *space);

/* Count a failed call on a directory; err is -errno. */
void ucm_store_count_error(struct ucm_store *set, unsigned dir, int err);

void ucm_store_lock_name(struct ucm_store *set, const struct ucm_id *id);
void ucm_store_unlock_name(struct ucm_store *set, const struct ucm_id *id);

/* Add what a directory holds; flags as in the index. Counts space and room. */
int ucm_store_index_add(struct ucm_store *set, struct ucm_space *space,
			const struct ucm_entry *entry, ucm_ref *ref_out);
bool ucm_store_index_remove(struct ucm_store *set, ucm_ref ref,
			    struct ucm_entry *out);

/* What fstat says of a block's file, as an entry. */
void ucm_store_entry(const struct ucm_key *key, unsigned dir,
		     const struct stat *st, struct ucm_entry *out);

/* Look at one name in one directory and index it if it is a block.
 * 1: it is; 0: it is not; -errno: the directory failed. */
int ucm_store_examine(struct ucm_store *set, struct ucm_space *space,
		      const struct ucm_id *id, unsigned dir);

/* Index one bucket of one directory, also if that has been done: the first
 * time a snapshot may save the listing. -errno if it could not be read (logged
 * the first time); then its names go on to be probed for. */
int ucm_store_scan_bucket(struct ucm_store *set, struct ucm_space *space,
			  unsigned dir, unsigned bucket);

/* Look again at the files of a block (NULL: of any) that could not be read, in a
 * directory or in UCM_UNREAD_ANY_DIR, if it is time to. */
void ucm_store_read_again(struct ucm_store *set, const struct ucm_key *key,
			  unsigned dir);

/* Is the file of an entry there and good, as far as open_block looks? 0;
 * -ENOENT: it was not, and the entry is gone; -errno. Counts as no use. */
int ucm_store_check(struct ucm_store *set, ucm_ref ref);

/* The file is not there, or is no file: the entry goes, unless another
 * directory has a copy, which takes its place. err: for the log. */
void ucm_store_lose(struct ucm_store *set, ucm_ref ref, int err);

/* Compare the checksums of a block in doubt with what the disk has. 0: it is
 * good; -ENOENT: it was not, and is gone. */
int ucm_store_settle(struct ucm_store *set, ucm_ref ref);

/* Put it in doubt. */
void ucm_store_doubt(struct ucm_store *set, ucm_ref ref);
/* Count doubts of a directory: before an entry gets the flag, and after it has
 * lost it. */
void ucm_store_count_doubts(struct ucm_store *set, unsigned dir, int more);

/* By who has removed an entry. */
void ucm_store_tell_loss(struct ucm_store *set, const struct ucm_key *key);

/* A block is torn or damaged: out of the index, moved aside, told. judged: the
 * file that was found so; if another one has the name by now, nothing is done.
 * NULL: whatever has it. */
void ucm_store_condemn(struct ucm_store *set, ucm_ref ref,
		       const struct stat *judged, enum ucm_fault fault,
		       const char *detail);

/* The same for a file that is not in the index. */
void ucm_store_set_aside(struct ucm_store *set, struct ucm_space *space,
			 const struct ucm_id *id, unsigned dir,
			 const struct stat *judged, enum ucm_fault fault,
			 const char *detail);

/* A block whose writer still has it open is about to be read: fd and st are of
 * its file. 0; -ENOENT: it was written to and is wrong, and has been set
 * aside; -errno: it cannot be read. */
int ucm_store_check_written(struct ucm_store *set, ucm_ref ref,
			    const struct ucm_entry *entry, int fd,
			    const struct stat *st);

/* The scan threads, and their end. */
int ucm_scan_start(struct ucm_store *set);
/* Have all buckets of a directory been read? */
bool ucm_scan_knows(struct ucm_store *set, unsigned dir);
/* Of one directory, once its scan has ended: try again what could not be
 * read, and what is in doubt. */
void ucm_scan_retry(struct ucm_store *set, unsigned dir);
void ucm_scan_settle(struct ucm_store *set, unsigned dir);
/* Check the blocks whose writers still have them open: what these wrote late
 * must not pass for older than a checkpoint. */
void ucm_scan_check_writers(struct ucm_store *set, unsigned dir);
/* Writes were lost: put in doubt what no sync has covered. */
void ucm_scan_doubt(struct ucm_store *set, unsigned dir);
void ucm_scan_stop(struct ucm_store *set);
/* Which buckets of a space there are, the others are scanned; and what its
 * blocks look like, from the first right one. */
void ucm_scan_look_around(struct ucm_store *set, struct ucm_space *space);
/* Into the index, or noted as a copy of what is there. 1, or -errno. */
int ucm_scan_admit(struct ucm_store *set, struct ucm_space *space,
		   const struct ucm_entry *entry);
/* One bit for each bucket that a space's folder has; none if there is no such
 * folder. */
int ucm_scan_buckets(const struct ucm_backing *backing,
		     const struct ucm_space *space, uint64_t out[4]);

/* ---- what the last clean end has left (snapshot_index.c, snapshot.h) ---- */

/* Look for the snapshots, once the spaces are known. */
void ucm_snapshots_open(struct ucm_store *set);
/* Index what a directory's snapshot has of a bucket, in all spaces, if that has
 * not been done: buckets that are as they were count as scanned. */
void ucm_snapshots_load(struct ucm_store *set, unsigned dir, unsigned bucket);
/* Was that bucket indexed without being listed? */
bool ucm_snapshots_trusted(struct ucm_store *set, const struct ucm_space *space,
			   unsigned dir, unsigned bucket);
/* They are not asked again. */
void ucm_snapshots_close(struct ucm_store *set);
void ucm_snapshots_free(struct ucm_store *set);
/* Write a directory's new one; its number is for the state file of a clean end.
 * When nobody uses the store any more. */
void ucm_snapshots_save(struct ucm_store *set, unsigned dir);

/* Note now, for each directory, that all is on disk. -EAGAIN: one has not been
 * read, or something in it is in doubt; -EIO: one failed, which is logged. The
 * others have their checkpoint then. Any thread. */
int ucm_upkeep_checkpoint(struct ucm_store *set);
/* The syncfs alone, of one directory. */
int ucm_upkeep_sync(struct ucm_store *set, unsigned dir);
int ucm_upkeep_start(struct ucm_store *set);
/* The threads leave each directory clean, if it is, and end. False if one
 * hangs: its keeper has not ended. */
bool ucm_upkeep_stop(struct ucm_store *set);

#endif
