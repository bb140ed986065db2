/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store: all tiers under one set of names.
 *
 * Finds a block in whichever tier has it, writes new ones to the first tier
 * with room, and keeps the index. It knows nothing of FUSE. Calls return 0
 * or -errno and may be made from any thread, except open,
 * begin, start, serving, quiet and close, which are the owner's.
 *
 * In a thread that must not wait (fs/tier/wait.h) those that find, read, create
 * and remove return -EINPROGRESS where they would have to wait for a directory;
 * nothing is changed then. Commits, syncs and spaces are for other threads.
 *
 * This folder has what a store consists of, and its accounts: spaces, members of
 * directories, pins, missing room, quotas, promotion requests. Four rooms stand on
 * it, each on those before it: find/ (which blocks there are, and where), motion/
 * (evict, move, promote, drain), commit/ (new blocks), start/ (from open to close;
 * spaces). None calls a later one.
 *
 * Locks, outer before inner:
 *
 *   sync_lock of a directory's keeper, over a sync and the checks before it
 *   one of name_locks, over the calls that change a name's file; recursive
 *   the lock of a snapshot's section (snapshot_load.c), while it is taken in
 *   the lock of a space, of the table of spaces, or of a shard of the index
 *   below that of a shard: its memory's, a chain's of open files; above none,
 *   and below a pool's of victims: that of expected.h
 *
 * Nobody holds two name locks, two sync_locks or two locks of the last two
 * lines. The lock of the store's life and the lock of a space's quota are held over
 * no other. The lock of writers of space.json is above all but the first two.
 */
#ifndef UCM_STORE_H
#define UCM_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "fs/config/config.h"
#include "fs/index/index.h"
#include "fs/store/find/hold.h"
#include "fs/store/motion/offers.h"
#include "fs/store/namespace.h"
#include "fs/store/pins.h"
#include "fs/store/value.h"
#include "fs/tier/dirs.h"
#include "fs/tier/stats.h"

struct ucm_store;
struct ucm_victims;
struct ucm_endurance;
struct ucm_movers;
struct ucm_quota;
struct ucm_snapshot_load;
struct ucm_view;
struct ucm_jobs;

/* What a directory has for itself: none waits for another that hangs. */
struct ucm_keeper {
	struct ucm_store *store;
	unsigned dir;
	_Atomic uint64_t doubts;     /* its entries that are in doubt */
	_Atomic uint64_t tasks_left; /* of the scan */
	_Atomic bool unread; /* what cannot be read there may be torn */
	pthread_mutex_t pins_lock;   /* held while its pins are read */
	_Atomic bool pins_known;
	_Atomic bool dirty; /* something was committed since the checkpoint */
	pthread_mutex_t sync_lock; /* for recovery.h: one sync at a time */
	struct ucm_snapshot_load *snapshot; /* snapshot_load.c; NULL: none */
	int64_t checkpoint_due_ms;
	uint32_t uses_s; /* when uses were shared with other daemons (fresh.c) */
	pthread_t thread;
	bool running;
	_Atomic bool ended; /* the thread, if there was one, is done */
};

/* From open to close (life.c). */
struct ucm_life {
	bool begun;
	_Atomic bool stopping; /* begin nothing more */
	_Atomic bool closing;  /* no request is left: leave the directories */
	bool left; /* at the close somebody may still be using it */
	unsigned close_ms; /* how long the close waits for one that hangs */
	pthread_mutex_t lock;
	pthread_cond_t wake;  /* of threads: the scan is over, or the store */
	pthread_cond_t ended; /* a keeper's */
};

/* Of blocks, for the size of a space's first ones. */
struct ucm_sizes {
	_Atomic uint64_t largest; /* that there has been */
	_Atomic uint64_t outgrown; /* of unknown size, when it was dropped */
};

struct ucm_evictions {
	_Atomic unsigned running; /* threads that take a block away now */
	_Atomic uint64_t done; /* blocks that were taken away */
};

/* The walk of all directories at the start (scan.c). */
struct ucm_scan {
	_Atomic bool complete; /* the index: but for what cannot be read */
	_Atomic uint64_t next_task;
	_Atomic uint64_t tasks_done;
	uint64_t num_tasks;
	unsigned spaces; /* that were there at the start */
	_Atomic unsigned dirs_left; /* whose tasks have not all been tried */
	_Atomic unsigned next_shard; /* to settle, once all tasks are done */
	_Atomic bool audited; /* and what came from snapshots is listed */
	/* Run once, by a thread that has no task left; NULL: nothing. */
	void (*_Atomic beside)(struct ucm_dirs *dirs,
			       const _Atomic bool *stopping);
	pthread_t threads[64];
	unsigned num_threads;
};

struct ucm_store {
	struct ucm_config *config; /* the caller's; outlives the store */
	struct ucm_dirs dirs; /* of all tiers */
	struct ucm_index *index;
	struct ucm_namespace names;
	struct ucm_life life;
	struct ucm_stats stats;
	_Atomic uint64_t blocks; /* in the index */
	_Atomic uint64_t doubts; /* entries that are in doubt, of all keepers */
	_Atomic uint64_t writers; /* files that are open after their commit */

	/* find */
	struct ucm_holds holds; /* what may not be moved or evicted */
	struct ucm_pins pins;
	struct ucm_scan scan;
	struct ucm_keeper keepers[UCM_MAX_DIRS]; /* by directory */
	/* Held by whoever changes both a name's file and its entry, so that
	 * nobody finds them apart; picked by the hash. Recursive: a commit may
	 * condemn what it finds there. */
	pthread_mutex_t name_locks[256];

	/* room: what is in a directory, what goes from it, and why */
	struct ucm_view *views; /* by directory (pressure.h) */
	struct ucm_victims *victims; /* likewise (victims.h) */
	struct ucm_endurance *endurance; /* by tier (endurance.h) */
	struct ucm_quota *_Atomic quotas; /* of spaces (quota.h); all there were */
	struct ucm_value value; /* of blocks: which one goes */
	struct ucm_offers offers; /* of saves that may be refused */
	struct ucm_sizes sizes;
	struct ucm_evictions evictions;

	struct ucm_jobs *jobs; /* jobs.h */
	struct ucm_movers *movers; /* mover.c */
};

/*
 * Open all tiers and learn which spaces there are, and what their blocks look
 * like. Writes only what a new directory lacks. error names the
 * directory.
 */
int ucm_store_open(struct ucm_config *config, struct ucm_store **out,
		   struct ucm_error *error);

/* Mark the directories as in use. */
int ucm_store_begin(struct ucm_store *store);

/* The same, if that has not been done; start the scan and the checkpoints. */
int ucm_store_start(struct ucm_store *store);

/* Other starts wait longer for the directories from here on. */
void ucm_store_ending(struct ucm_store *store);

/* Nothing more is begun. Close follows. */
void ucm_store_quiet(struct ucm_store *store);

/* End the threads, and leave each directory clean of which everything is known
 * to be. One that hangs is left as it is, and what its thread may still touch
 * is never freed; nor is anything that others may touch (left). */
void ucm_store_close(struct ucm_store *store);

/* ---- finding and reading ---- */

/* -ENOENT, also if a directory could not say, or the block is being removed. A
 * block in doubt is checked first: -EIO and the like if it cannot be read. */
int ucm_store_find(struct ucm_store *store, const struct ucm_key *key,
		   struct ucm_entry *out, ucm_ref *ref_out);

/* The same for browsing: it is not counted as a lookup. */
int ucm_store_peek(struct ucm_store *store, const struct ucm_key *key,
		   struct ucm_entry *out, ucm_ref *ref_out);

/* Open a block for reading and count the use. -ENOENT if it is gone. open: the
 * caller's, of no block; it holds this one from now on (hold.h). NULL: the file
 * is read at once, and nobody need know of it. */
int ucm_store_open_block(struct ucm_store *store, ucm_ref ref,
			 struct ucm_entry *out, struct ucm_file *file_out,
			 struct ucm_open *open);

/* One more open of a file that is open: count it. If it has come into
 * doubt, or its writer still has it open, it is checked first: -ENOENT as above. */
int ucm_store_open_again(struct ucm_store *store, struct ucm_open *open);

/* Read a block's header. */
int ucm_store_header(struct ucm_store *store, ucm_ref ref,
		     struct ucm_block *out);

/* See to it that the index has all of a bucket, for a listing: what could not be
 * read is not there. 0, or -EINPROGRESS, see below. */
int ucm_store_fill_bucket(struct ucm_store *store, struct ucm_space *space,
			  unsigned bucket);

/* Unlink a block from every tier, whatever holds it. -ENOENT, -EROFS, ... */
int ucm_store_remove(struct ucm_store *store, const struct ucm_key *key);

/* The same if nothing holds it: else -EPERM or -EBUSY (ucm_store_claim()). leaf: nor
 * has it a child, which may have come since it was chosen. */
int ucm_store_evict(struct ucm_store *store, const struct ucm_key *key, bool leaf);

/* Set atime and mtime as utimensat(2) does. */
int ucm_store_set_times(struct ucm_store *store, ucm_ref ref,
			const struct timespec times[2]);

/* Count a use that is no open. -ENOENT: it is gone. */
int ucm_store_touch(struct ucm_store *store, ucm_ref ref);

int ucm_store_pin(struct ucm_store *store, ucm_ref ref, bool pinned);

/* The path of a block's file, for people. */
int ucm_store_path(struct ucm_store *store, const struct ucm_entry *entry,
		   char *path, size_t size);

void ucm_store_statvfs(struct ucm_store *store, struct statvfs *out);

/* syncfs of all directories that may be written to. One that fails is logged;
 * the first error comes back, and the others are synced all the same. */
int ucm_store_sync(struct ucm_store *store);
/* Note now, for each directory, that all is on disk. -EAGAIN: one has not been
 * read, or something in it is in doubt; -EIO: one failed, which is logged. The
 * others have their checkpoint then. Any thread. */
int ucm_store_checkpoint(struct ucm_store *store);
/* What keeps a directory from having a checkpoint, in words; NULL: nothing. */
const char *ucm_store_unknown(struct ucm_store *store, unsigned dir);

/* ---- new blocks (create.c, commit.c, late.c) ---- */

/* What of a space's quota is promised to a file (quota.h). */
struct ucm_allowance {
	struct ucm_space *space; /* NULL: of none */
	uint64_t bytes;
};

/* A file being written. */
struct ucm_temp {
	struct ucm_medium *medium;
	struct ucm_tier *tier;
	uint8_t dir;
	char path[UCM_TEMP_PATH_MAX]; /* below the medium */
	struct ucm_promise *promise; /* room set aside, until it is committed */
	struct ucm_allowance part;
	bool committed;    /* path is gone; a block, or dropped as a duplicate */
	bool lost;         /* its bytes, perhaps: never to be committed */
	unsigned losses;   /* of its directory, when it was made */
	bool shared;       /* opened O_RDWR: it may be mapped, and then be
			    * written to without a trace */
	bool changed;      /* somebody wrote to it while it was judged */
	bool guessed;      /* its size was not known when it was made */
	struct ucm_key key; /* once committed */
	ucm_ref ref;        /* 0: a duplicate */
	struct stat stamp;  /* at the commit, or when it was tried last */
	/* what its writer says is in its head, at UCM_COMMIT_WRITTEN; NULL: read it */
	const struct ucm_bytes *head;
};

/*
 * Why a file may be whole. Checksums prove it, whoever closes it. Without them only
 * its writer knows, and says so by fsync or rename.
 */
enum ucm_commit_when {
	UCM_COMMIT_IF_WHOLE, /* a descriptor was closed, perhaps not the last */
	UCM_COMMIT_LAST,     /* the last close */
	UCM_COMMIT_NOW,      /* fsync or rename */
	UCM_COMMIT_WRITTEN,  /* its writer says that all is: no more than the header
			      * is looked at */
};

/* Make a temporary file where a block of this name shall lie. The caller gets
 * it open for reading and writing, closes it, and ends the file with
 * ucm_store_drop(). bytes: of room for it; 0: as the space's blocks take, or
 * a guess. -ENOSPC, -EROFS, ... if no tier takes it; -EFBIG if the space's
 * blocks are larger than block_max. */
int ucm_store_create(struct ucm_store *store, const struct ucm_key *key,
		     uint64_t bytes, struct ucm_temp *out,
		     struct ucm_file *file_out);

/* A temporary file is about to be closed for the last time, and may be renamed
 * later: a guess of its size becomes what it has. */
void ucm_store_rest(struct ucm_temp *temp, const struct ucm_file *file);

/* Open a temporary file once more. */
int ucm_store_reopen(struct ucm_store *store, const struct ucm_temp *temp,
		     struct ucm_file *out);

/*
 * Check a temporary file, which is open, and make it the block of that name.
 * 0: there is now a whole block of that name, this file's or an earlier one.
 * -EAGAIN: incomplete, go on writing. -EINVAL: wrong, or nothing says that it is
 * whole; logged with the rule. -EFBIG: larger than block_max, likewise. -EDQUOT:
 * its space has no room for it, see below. Others: the tier failed; logged. Not
 * from two threads for one file.
 */
int ucm_store_commit(struct ucm_store *store, struct ucm_temp *temp,
		     const struct ucm_file *file, const struct ucm_key *key,
		     enum ucm_commit_when when);

/* A commit evicts nothing. This one makes the room that the space lacks, and commits
 * once more: -EDQUOT where nothing may go, which is logged. */
int ucm_store_commit_evicting(struct ucm_store *store, struct ucm_temp *temp,
			      const struct ucm_file *file,
			      const struct ucm_key *key,
			      enum ucm_commit_when when);

/* Log and count that a file is not committed, and why: -EINVAL. detail: more
 * than the fault says, or NULL. */
int ucm_store_refuse(struct ucm_store *store, const struct ucm_key *key,
		     enum ucm_fault fault, const char *detail);

/* Has it been written to since its commit was last tried? After an error, too,
 * that counts. */
int ucm_store_changed(const struct ucm_temp *temp, const struct ucm_file *file,
		      bool *changed);

/* A committed file is closed for the last time: has it been written to
 * since? A wrong file is quarantined. */
void ucm_store_recheck(struct ucm_store *store, const struct ucm_temp *temp,
		       const struct ucm_file *file);

/* A descriptor of a committed file outlives the store, which will not see what
 * is written through it: its directory is not left clean, so that the next
 * mount checks what has changed. */
void ucm_store_abandon(const struct ucm_temp *temp);

/* Forget a temporary file; its name is removed if it was not committed. */
void ucm_store_drop(struct ucm_store *store, struct ucm_temp *temp);

/* ---- new files (newfile.c); for move.c and create.c ---- */

/* A new file for a block in that tier, for which room is promised. Otherwise as
 * ucm_store_create(); never -EINPROGRESS. */
int ucm_store_create_in(struct ucm_store *store, struct ucm_tier *tier,
			const struct ucm_key *key, const struct ucm_want *want,
			struct ucm_temp *out, struct ucm_file *file_out);

/* Its room is taken now and counts as a block's, or is not needed. */
void ucm_store_end_promise(struct ucm_temp *temp);

/* Give a file its name; sync: which is on disk then. Makes the space's folder, if it
 * is the first block there. -EEXIST, and what the directory says. */
int ucm_store_link(struct ucm_store *store, const struct ucm_temp *temp,
		   const struct ucm_space *space, const struct ucm_id *id,
		   bool sync);

/* Make a space's folder in a directory that has not got it, with the space's
 * owner and mode. */
int ucm_store_make_folder(struct ucm_store *store, struct ucm_medium *medium,
			  const struct ucm_space *space);

struct ucm_space_owner ucm_store_owner_of(const struct ucm_space *space);

/* ---- spaces ---- */

/* -EDQUOT: the user has made so many that he may make no more. */
int ucm_store_mkdir(struct ucm_store *store, const char *name, mode_t mode,
		    uid_t uid, gid_t gid, struct ucm_space **out);
/* By name, also one that somebody else has made since the store was opened; NULL:
 * there is none. */
struct ucm_space *ucm_store_meet_space(struct ucm_store *store,
				       const char *name);
int ucm_store_rmdir(struct ucm_store *store, struct ucm_space *space);
int ucm_store_chmod(struct ucm_store *store, struct ucm_space *space,
		    bool is_private);
int ucm_store_chown(struct ucm_store *store, struct ucm_space *space, uid_t uid,
		    gid_t gid);

/* What the blocks of a space may take on disk; 0: no limit but the configured
 * one. In space.json before it holds. Writes. */
int ucm_store_set_quota(struct ucm_store *store, struct ucm_space *space,
			uint64_t bytes);

/* Looks into all of its buckets. */
bool ucm_store_has_blocks(struct ucm_store *store, struct ucm_space *space);

/* space.json: what a text says (-EINVAL; -EFBIG: its blocks would be larger than
 * block_max; error has more); the text of a space's (-ENOENT, -EFBIG), or a new
 * one. */
int ucm_store_check_manifest(const struct ucm_store *store, const char *text,
			     size_t len, struct ucm_manifest *out,
			     struct ucm_error *error);
int ucm_store_read_manifest(struct ucm_store *store, struct ucm_space *space,
			    char *text, size_t size);
int ucm_store_write_manifest(struct ucm_store *store, struct ucm_space *space,
			     const char *text, size_t len);

/* A block is torn or damaged: out of the index, moved aside, reported. judged:
 * the file that was found so, in directory dir. If the entry is another
 * directory's by now, that file alone is moved aside; if another file has its
 * name, nothing is done. NULL: whatever the entry stands for. */
void ucm_store_condemn(struct ucm_store *store, ucm_ref ref, unsigned dir,
		       const struct stat *judged, enum ucm_fault fault,
		       const char *detail);

#endif
