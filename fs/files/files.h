/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - files/: a plain tree for programs with a layout of their own.
 *
 * The tree lies over files/ of each backing directory. A file lies whole in one
 * of them, chosen when it is made, as a block's directory is; a folder may be
 * in any number of them and is made where it is needed. A name leads to what
 * the first directory has that has it, from fast to slow; a copy after that is
 * never seen, and is removed when the name is removed or replaced. A symbolic
 * link is a file whose content is what it says: it is never followed here. What
 * is none of these is not there. There is no index: the directories are asked.
 *
 * A rename over a file in another directory is done in steps, so that a crash
 * may leave both files: then the rule above says which one is seen, the old or
 * the new. If it is the old one, the new one still has the name that it had.
 *
 * It stands on the directories alone and knows nothing of blocks. Whoever opens
 * them has the tree: after the directories have been marked as in use it calls
 * ucm_files_recover(), then the tree may be used; ucm_files_count_start() makes
 * the tiers' limits hold for what lies there, too.
 *
 * A directory may stop answering: calls on it fail with -ETIMEDOUT at its
 * deadline, and at once after that (common/osguard.h), or with another error,
 * also for the root of the tree. Then the others go on without it. What they
 * have is found, opened, listed, changed and removed; what is made is made
 * there. What it may have as well is not known: a file that is removed may turn
 * up again from a copy that nobody saw, and a new one be hidden by an old one
 * of its name if that lies in front of it. Neither is lost, and as always
 * removing or replacing the name takes both. Where a wrong guess would lose
 * something, the answer is UCM_FILES_SILENT: the removal and renaming of
 * folders, because the directory may have names in them; the renaming of a file
 * behind it, which an old one of the new name may hide; new rights of folders;
 * a folder's fsync; and what is known to lie there. Each outage is logged once.
 *
 * Paths are below a backing directory and begin with "files". Whoever changes
 * a name sees to it that nobody else uses it meanwhile (node.h); apart
 * from that, calls may be made from any thread. They return 0 (or a descriptor)
 * or -errno; failures of a directory are logged and counted here.
 *
 * Split by task: files.c (one name), place.c (where a new one belongs),
 * rename.c, list.c (listing, walking; counting what is there), quota.h (how
 * much marked folders may take).
 */
#ifndef UCM_FILES_H
#define UCM_FILES_H

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "fs/files/quota.h"
#include "fs/tier/dir.h"
#include "fs/tier/dirs.h"
#include "hashing/tree.h"

#define UCM_FILES_ROOT	  UCM_TREE_FILES
#define UCM_FILES_NOWHERE UINT32_MAX /* for a number of a directory */

/* A directory does not answer, whatever its file system has said; see above. */
#define UCM_FILES_SILENT (-ETIMEDOUT)

struct ucm_files_silence {
	_Atomic bool is;
	_Atomic int64_t last_ms; /* a call failed, by the monotonic clock */
};

/* Directories that did not answer during a call. */
struct ucm_files_mutes {
	uint64_t bits[(UCM_MAX_DIRS + 63) / 64];
	unsigned num;
};

static inline bool ucm_files_is_mute(const struct ucm_files_mutes *mutes,
				     unsigned dir)
{
	return mutes->bits[dir / 64] >> dir % 64 & 1;
}

static inline void ucm_files_add_mute(struct ucm_files_mutes *mutes,
				      unsigned dir)
{
	mutes->num += !ucm_files_is_mute(mutes, dir);
	mutes->bits[dir / 64] |= UINT64_C(1) << dir % 64;
}

struct ucm_files_tree {
	struct ucm_dirs *dirs;
	_Atomic uint64_t file_bytes; /* what a new file may be going to take */
	struct ucm_files_silence silence[UCM_MAX_DIRS];

	struct ucm_files_quotas *quotas; /* NULL: nobody keeps them */

	/* list.c */
	pthread_t count_thread;
	bool counting; /* the thread has been started */
	_Atomic bool stopping;
	_Atomic bool counted; /* all that is there */
};

/* Where its names are made: only directories have files/. */
static inline struct ucm_directory *
ucm_files_directory(const struct ucm_files_tree *tree, unsigned dir)
{
	return ucm_directory_of(tree->dirs->at[dir]);
}

static inline int ucm_files_fd(const struct ucm_files_tree *tree, unsigned dir)
{
	return ucm_files_directory(tree, dir)->dirfd;
}

/* What a name leads to. */
struct ucm_files {
	unsigned dir;   /* where a file lies; the first that has a folder */
	struct stat st; /* a folder's times are the latest of all */
	struct ucm_promise *promise; /* room set aside for a new file */
};

/* What a new file or folder shall have. */
struct ucm_files_owner {
	uid_t uid;
	gid_t gid; /* unless the folder above hands down its own (setgid) */
	mode_t mode;
	const char *target; /* of a symbolic link */
};

/* What shall change of a file or folder. */
struct ucm_files_change {
	bool mode_set, size_set, times_set;
	mode_t mode;
	uid_t uid; /* -1: stays */
	gid_t gid;
	off_t size; /* of a file */
	struct timespec times[2]; /* as for utimensat(2) */
};

/* The directories are the caller's, and outlive the tree. */
void ucm_files_tree_init(struct ucm_files_tree *tree, struct ucm_dirs *dirs);

/* Is there a file, link or folder of this name? hint: the directory where a
 * file is known to lie, or NOWHERE. If none has it, and one could not say, the
 * error is that one's and not -ENOENT. */
int ucm_files_find(struct ucm_files_tree *tree, const char *path, unsigned hint,
		   struct ucm_files *out);

/* The same of a name that nobody knows and that may be about to be made: it is
 * absent where only directories that do not answer might have it, and unsure
 * then. */
int ucm_files_find_unknown(struct ucm_files_tree *tree, const char *path,
			   struct ucm_files *out, bool *unsure_out);

/* Has it lately not answered? Asks nobody. */
static inline bool ucm_files_is_silent(const struct ucm_files_tree *tree,
				       unsigned dir)
{
	return atomic_load_explicit(&tree->silence[dir].is,
				    memory_order_relaxed);
}

/* The directories that do not answer for a path. */
void ucm_files_missing(struct ucm_files_tree *tree, const char *path,
		       struct ucm_files_mutes *out);

/* A number for st_ino: of the file in its directory, which is known by its
 * UUID; so it survives renames and remounts. Bit 62 is set. */
uint64_t ucm_files_ino(const struct ucm_files_tree *tree,
		       const struct ucm_files *plain);

/*
 * Make a file, open for reading and writing. -EEXIST; -ENOSPC, -EROFS if no
 * tier takes it; -ENOENT if there is no such folder; -EPERM if the name is
 * taken by what is not shown. Room is set aside for it, where there is some:
 * as much as the files before it have taken, because programs that keep chunks
 * make them alike, and cannot go on if a tier fills up in the middle of one.
 * out->promise is for ucm_files_written(), before the descriptor is closed.
 */
int ucm_files_create(struct ucm_files_tree *tree, const char *path,
		     const struct ucm_files_owner *owner,
		     struct ucm_files *out);
int ucm_files_mkdir(struct ucm_files_tree *tree, const char *path,
		    const struct ucm_files_owner *owner, struct ucm_files *out);

int ucm_files_symlink(struct ucm_files_tree *tree, const char *path,
		      const struct ucm_files_owner *owner,
		      struct ucm_files *out);

/* What a link says (PATH_MAX bytes). */
int ucm_files_readlink(struct ucm_files_tree *tree, const char *path,
		       unsigned dir, char *target_out);

/* A new file has been written, and takes so many bytes (0: not known): what was
 * set aside is free again. */
void ucm_files_written(struct ucm_files_tree *tree, struct ucm_files *made,
		       uint64_t bytes);

/* Open a file that lies in dir; flags: O_RDONLY or O_RDWR. -ESTALE: it is not
 * there any more. */
int ucm_files_open(struct ucm_files_tree *tree, const char *path, unsigned dir,
		   int flags, struct stat *stat_out);

/* Remove a file, or an empty folder, from all directories. */
int ucm_files_unlink(struct ucm_files_tree *tree, const char *path);
int ucm_files_rmdir(struct ucm_files_tree *tree, const char *path);

/* Change a file or folder; plain: as it was found. An open file's descriptor
 * (for writing, if its size is to change) does as well. */
int ucm_files_change(struct ucm_files_tree *tree, const char *path,
		     const struct ucm_files *plain,
		     const struct ucm_files_change *change);
int ucm_files_change_fd(int fd, const struct ucm_files_change *change);

/* fsync of a folder, wherever it is; UCM_FILES_SILENT if one does not answer,
 * after the others have been synced. */
int ucm_files_sync_dir(struct ucm_files_tree *tree, const char *path);

/* ---- place.c ---- */

/* For the choice of a directory: the same for x and its temporary names. */
void ucm_files_place(const char *path, struct ucm_id *out);

/* A name without what makes it a temporary one: a part of it. */
const char *ucm_files_stem(const char *name, size_t *len_out);

/* ---- rename.c ---- */

/*
 * Rename a file or folder, over what is there unless noreplace (-EEXIST): a
 * file over a file, a folder over an empty folder. -EXDEV: a folder that is in
 * several directories. What fails half-way is undone. dir_out: where a file
 * lies.
 */
int ucm_files_rename(struct ucm_files_tree *tree, const char *from,
		     const char *to, bool noreplace, unsigned *dir_out);

/* Before anything is served, and once the directories may be written to: no
 * file keeps two names that a crash left. */
void ucm_files_recover(struct ucm_files_tree *tree);

/* ---- list.c ---- */

struct ucm_files_name {
	const char *name;
	uint64_t ino;	    /* as ucm_files_ino() */
	unsigned char type; /* DT_DIR, DT_REG, DT_LNK */
	uint8_t dir;
};

struct ucm_files_names {
	struct ucm_files_name *list;
	size_t num;
	struct dirent *entries[UCM_MAX_DIRS]; /* what the names are parts of */
	struct ucm_files_mutes mutes; /* whose names are not among them */
};

/* All names in a folder, each once; without those of directories that do not
 * answer. */
int ucm_files_list(struct ucm_files_tree *tree, const char *path,
		   struct ucm_files_names *out);
void ucm_files_names_free(struct ucm_files_names *names);

/* The names in a folder of one directory, in no order. */
struct ucm_files_entry {
	const char *name;
	unsigned char type; /* DT_DIR, DT_REG, DT_LNK */
};
struct ucm_files_entries {
	struct ucm_files_entry *list;
	size_t num;
	struct dirent *buffer;
};
/* -ENOENT, or the directory's error; not logged. */
int ucm_files_entries(struct ucm_files_tree *tree, unsigned dir,
		      const char *path, struct ucm_files_entries *out);
void ucm_files_entries_free(struct ucm_files_entries *entries);

/* For each file and link below a folder of one directory, a folder's in the
 * order of their names, in which folders count as well. False: that ends it,
 * with -ECANCELED. 0 if there is no such folder; errors are not logged. */
typedef bool ucm_files_visit_fn(void *arg, const char *path,
				const struct stat *st);
int ucm_files_walk(struct ucm_files_tree *tree, unsigned dir, const char *path,
		   ucm_files_visit_fn *visit, void *arg);

/* Add what the files take to their tiers, in a thread. What is
 * changed by others than new files meanwhile may be counted wrong. */
int ucm_files_count_start(struct ucm_files_tree *tree);
/* End it, as far as it has come. Before the directories are closed. */
void ucm_files_count_stop(struct ucm_files_tree *tree);

/* ---- for the files above ---- */

/* Where a name is. */
struct ucm_files_copies {
	unsigned num;
	uint8_t dirs[UCM_MAX_DIRS];
	uint64_t bytes[UCM_MAX_DIRS]; /* of disk space, in that order */
	uint64_t inos[UCM_MAX_DIRS];
	struct ucm_files_mutes mutes; /* they may have it, too */
	bool is_dir;   /* the first; others are left out */
	bool readonly; /* one lies on a read-only tier */
};

/* -ENOENT: in none. UCM_FILES_SILENT: in none that answers, and the rest of out
 * is written; another error if a directory could not say. */
int ucm_files_copies(struct ucm_files_tree *tree, const char *path,
		     struct ucm_files_copies *out);

/* -ENOTEMPTY: a folder has names in one of the directories. */
int ucm_files_check_empty(struct ucm_files_tree *tree, const char *path,
			  const struct ucm_files_copies *copies);

/* In one directory: 0, -ENOENT (also for what is none of ours), or its error,
 * logged and counted. */
int ucm_files_look(struct ucm_files_tree *tree, unsigned dir, const char *path,
		   struct stat *out);

/* Make the folders above a path in a directory, as they are elsewhere. */
int ucm_files_make_above(struct ucm_files_tree *tree, unsigned dir,
			 const char *path);

/* Log and count that a directory failed; err comes back, or
 * UCM_FILES_SILENT. */
int ucm_files_failed(struct ucm_files_tree *tree, unsigned dir,
		     const char *path, const char *what, int err);

/* Count a call that has gone on without directories that do not answer. */
void ucm_files_did_without(struct ucm_files_tree *tree,
			   const struct ucm_files_mutes *mutes);

/* Bytes more, or less, in a directory. */
static inline void ucm_files_account_dir(struct ucm_files_tree *tree,
					 unsigned dir, int64_t bytes)
{
	atomic_fetch_add(&tree->dirs->at[dir]->files, bytes);
}

/* The same of a file, for the marked folders that it is in as well. */
static inline void ucm_files_account(struct ucm_files_tree *tree, unsigned dir,
				     const char *path, int64_t bytes)
{
	ucm_files_account_dir(tree, dir, bytes);
	ucm_files_charge(tree, dir, path, bytes);
}

#endif
