/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - files/: a plain tree for programs with a layout of their own.
 *
 * The tree is the folder files/ of one backing directory: a name here is a name
 * there. A symbolic link is a file whose content is what it says: it is never
 * followed here. What is neither file, link nor folder is not shown. There is
 * no index: the directory is asked.
 *
 * It stands on the directories alone and knows nothing of blocks. Files take
 * room of their tier, whose limit holds for them when they are made.
 *
 * Paths are below the backing directory and begin with "files". The caller
 * locks a name that it changes (node.h); apart from that, calls may be made
 * from any thread. They return 0 (or a descriptor) or -errno; a failure of the
 * directory is logged and counted here.
 *
 * Split by task: files.c (one name), walk.c (listing, walking, counting),
 * node.h (what the kernel knows), quota.h (what top folders may take).
 */
#ifndef UCM_FILES_H
#define UCM_FILES_H

#include <dirent.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "fs/files/quota.h"
#include "fs/medium/dir/dir.h"
#include "fs/tier/dirs.h"
#include "hashing/tree.h"

#define UCM_FILES_ROOT UCM_TREE_FILES

struct ucm_files_tree {
	struct ucm_dirs *dirs;
	struct ucm_directory *at; /* where it is */
	unsigned dir;		  /* the number of that */
	struct ucm_files_quotas *quotas; /* NULL: none are kept */
};

/* Whose a new file or folder is. */
struct ucm_files_owner {
	uid_t uid;
	gid_t gid; /* unless the folder above hands down its own (setgid) */
	mode_t mode;
	const char *target; /* of a symbolic link */
};

/* Which directory has files/: the one of that path (NULL: the first on disk
 * that may be written to). -EINVAL: error names a path that is none. */
int ucm_files_choose(const struct ucm_dirs *dirs, const char *path,
		     unsigned *dir_out, struct ucm_error *error);

/* The directories are the caller's, and outlive the tree. */
void ucm_files_tree_init(struct ucm_files_tree *tree, struct ucm_dirs *dirs,
			 unsigned dir);

/* Log which other directories have files/ with something in it: these are not
 * served. */
void ucm_files_warn_of_others(const struct ucm_files_tree *tree);

/* What a name leads to. -ENOENT, also for what is not shown. */
int ucm_files_look(struct ucm_files_tree *tree, const char *path,
		   struct stat *out);

/* st_ino of a file or folder: that of the backing one, with bit 62 set. */
uint64_t ucm_files_ino(uint64_t ino);

/*
 * Make a file, open for reading and writing. -EEXIST; -ENOSPC, -EROFS: the tier
 * takes none; -ENOENT if there is no such folder; -EPERM if the name is taken
 * by what is not shown, or for set-id bits (of a folder: but for setgid).
 */
int ucm_files_create(struct ucm_files_tree *tree, const char *path,
		     const struct ucm_files_owner *owner, struct stat *out);
int ucm_files_mkdir(struct ucm_files_tree *tree, const char *path,
		    const struct ucm_files_owner *owner, struct stat *out);
int ucm_files_symlink(struct ucm_files_tree *tree, const char *path,
		      const struct ucm_files_owner *owner, struct stat *out);
/* One more name of the file that fd (O_PATH will do) is open on. */
int ucm_files_link(struct ucm_files_tree *tree, int fd, const char *path,
		   struct stat *out);

/* Would these bits be refused? */
bool ucm_files_is_set_id(mode_t mode, bool is_dir);

/* Remove a file, or an empty folder; st: as it was looked at. */
int ucm_files_unlink(struct ucm_files_tree *tree, const char *path,
		     const struct stat *st);
int ucm_files_rmdir(struct ucm_files_tree *tree, const char *path);

/* As renameat2(2) with these flags. from_st, to_st: as they were looked at;
 * to_st: NULL if nothing had the name. */
int ucm_files_rename(struct ucm_files_tree *tree, const char *from,
		     const char *to, unsigned flags,
		     const struct stat *from_st, const struct stat *to_st);

/* ---- walk.c ---- */

/* The names in a folder, in no order. */
struct ucm_files_entry {
	const char *name;
	uint64_t ino;
	unsigned char type; /* DT_DIR, DT_REG, DT_LNK */
};
struct ucm_files_entries {
	struct ucm_files_entry *list;
	size_t num;
	struct dirent *buffer;
};
/* path: below dirfd. -ENOENT, or the directory's error; not logged. */
int ucm_files_entries(int dirfd, const char *path,
		      struct ucm_files_entries *out);
void ucm_files_entries_free(struct ucm_files_entries *entries);

/* For each file and link below a folder, a folder's in the order of their
 * names, in which folders count as well. False: that ends it, with -ECANCELED.
 * 0 if there is no such folder; errors are not logged. */
typedef bool ucm_files_visit_fn(void *arg, const char *path,
				const struct stat *st);
int ucm_files_walk(int dirfd, const char *path, ucm_files_visit_fn *visit,
		   void *arg);

/* Adds what is in files/ of each directory to its tier. What is changed by others
 * than new files while it runs may be counted wrong. Stopped, it ends. */
void ucm_files_count(struct ucm_dirs *dirs, const _Atomic bool *stopping);

/* ---- for the files above ---- */

/* Log and count an error of the directory; any err comes back. */
int ucm_files_result(struct ucm_files_tree *tree, const char *path,
		     const char *what, int err);

/* Bytes more, or less, of a file: in its tier, and in the top folder that it is
 * in. */
static inline void ucm_files_account(struct ucm_files_tree *tree,
				     const char *path, int64_t bytes)
{
	atomic_fetch_add(&tree->at->medium.files, bytes);
	ucm_files_charge(tree, path, bytes);
}

#endif
