/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing.h - one backing directory.
 *
 * It has an identity, makes temporary files, links them into place, opens,
 * removes and quarantines blocks. It does not know that other directories
 * exist: choosing between them is tier.h's and store.h's work.
 *
 *   blocks/3f/3f9a….bin   spaces/NAME/3f/…   space.json in a space's folder
 *   files/                see files.h
 *   .ucmfs/id             UUID and format version
 *   .ucmfs/state          see recovery.h
 *   .ucmfs/snapshot       see snapshot.h
 *   .ucmfs/lock           held while a daemon uses the directory
 *   .ucmfs/tmp/           files being written
 *   .ucmfs/quarantine/    torn and damaged blocks, never deleted by us
 *   .ucmfs/both.N         a file of files/ that is being renamed over another
 *   .ucmfs/pinned/        one empty file for each pinned block
 *
 * "folder" below is a space's place in the directory: "blocks" or
 * "spaces/NAME". All calls may be made from any thread, except open and close.
 */
#ifndef UCM_BACKING_H
#define UCM_BACKING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <ucm/block.h>

#include "fs/tier/config.h"
#include "fs/tier/recovery.h"
#include "fs/tier/temp.h"
#include "fs/tier/trust.h"

struct ucm_guard;

struct ucm_backing {
	char *path; /* absolute */
	int dirfd;
	int ctlfd; /* .ucmfs */
	int tmpfd; /* .ucmfs/tmp */
	int lockfd;
	uint8_t uuid[16];
	dev_t dev;
	ino_t ino;
	bool readonly;
	bool remote; /* other machines may use it: no lock */
	bool is_tmpfs; /* st_blocks are the pages that a file has */
	struct ucm_trust trust; /* whose its files are to be */
	struct ucm_guard *guard; /* NULL: calls may take for ever */
	struct ucm_recovery recovery;
	struct ucm_temp_maker self; /* whose temporary files, */
	uint32_t instance;       /* and of which start: random */
	_Atomic uint64_t temps;  /* for their names */
	_Atomic int64_t retry_s; /* no new files before this time: it failed */
	/* Never left clean, so that the next mount checks: it is written to when
	 * we are gone, or a torn block could not be moved aside. */
	_Atomic bool abandoned;
	pthread_mutex_t
		folder_lock;	 /* files.c: a folder is copied, or changed */
	_Atomic bool unreadable; /* the last listing failed, which is logged */
	_Atomic int holes; /* enum ucm_holes: what SEEK_HOLE is worth there */
};

/*
 * Open a directory: it must exist, be writable (unless readonly) and not in
 * use by another daemon; for one that is ending it waits. What of it we use
 * must be ours (trust.h). Makes what it lacks of .ucmfs. Of config it takes
 * deadline_s and lock_wait_s. error names the path.
 */
int ucm_backing_open(struct ucm_backing *backing, const char *path,
		     bool readonly, const struct ucm_config *config,
		     struct ucm_error *error);

/* Before the first write: the state file; leftovers in tmp are removed. */
int ucm_backing_begin(struct ucm_backing *backing);

/* clean: everything in it is known to be good. */
void ucm_backing_close(struct ucm_backing *backing, bool clean);

/* A new temporary file, open for reading and writing, by nobody else. */
int ucm_backing_temp(struct ucm_backing *backing,
		     char name_out[UCM_TEMP_NAME_MAX]);
int ucm_backing_temp_open(struct ucm_backing *backing, const char *name);
void ucm_backing_temp_drop(struct ucm_backing *backing, const char *name);

/* Has a temporary file bytes everywhere? Not every file system can say: some
 * answer "no holes" to everything, and huge pages fill what nobody wrote. */
enum ucm_holes {
	UCM_HOLES_UNKNOWN, /* not known */
	UCM_HOLES_NONE,
	UCM_HOLES_SOME,
};
enum ucm_holes ucm_backing_find_holes(struct ucm_backing *backing, int fd,
				      const struct stat *st);

/*
 * Link a temporary file to a block's name and drop its temporary name. From now
 * on all who come so far may read it.
 * -EEXIST if a file has that name already; -ENOENT if the space's folder is
 * missing. sync: see UCM_DURABILITY_FULL.
 */
int ucm_backing_commit(struct ucm_backing *backing, const char *temp,
		       const char *folder, const struct ucm_id *id, bool sync);

/* Open a block; -ENOENT, or -ENXIO if it is no regular file. */
int ucm_backing_open_block(struct ucm_backing *backing, const char *folder,
			   const struct ucm_id *id, int flags,
			   struct stat *stat_out);

int ucm_backing_remove(struct ucm_backing *backing, const char *folder,
		       const struct ucm_id *id);

/* Move a block's file aside. */
int ucm_backing_quarantine(struct ucm_backing *backing, const char *folder,
			   const struct ucm_id *id);

/* The marks of pinned blocks; they outlive the mount. */
int ucm_backing_pin(struct ucm_backing *backing, const char *folder,
		    const struct ucm_id *id, bool pinned);
/* Calls fn for each mark; space is the space's name, "" for blocks/. */
void ucm_backing_each_pin(struct ucm_backing *backing,
			  void (*fn)(void *arg, const char *space,
				     const struct ucm_id *id),
			  void *arg);

/* One bit for each bucket that a space's folder has; none if there is no such
 * folder. */
int ucm_backing_buckets(const struct ucm_backing *backing, const char *folder,
			uint64_t out[4]);

/* A block's path below the directory, and its bucket's. */
#define UCM_TREE_PATH_MAX 320
void ucm_tree_block_path(const char *folder, const struct ucm_id *id,
			    char path[UCM_TREE_PATH_MAX]);
void ucm_tree_bucket_path(const char *folder, unsigned bucket,
			     char path[UCM_TREE_PATH_MAX]);

#endif
