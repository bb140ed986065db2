/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_quarantine.h - what lies in the quarantine of backing directories, and
 * how it becomes a block again.
 */
#ifndef UCM_TOOLS_QUARANTINE_H
#define UCM_TOOLS_QUARANTINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <ucm/error.h>
#include <ucm/load.h>

#include "hashing/tree.h"

/* A backing directory. */
struct ucm_aside_dir {
	char *path;
	char *mount; /* that serves it; NULL: none does, as far as is known */
	int fd;	     /* of .ucmfs/quarantine */
};

/* A file that was moved aside. */
struct ucm_aside {
	unsigned dir; /* number of its directory */
	char *name;   /* SPACE@HASH.TIME, or SPACE@HASH.repr.TIME */
	bool is_repr; /* a block's representations (ucm-repr(5)) */
	char space[UCM_TREE_SPACE_MAX + 1];
	struct ucm_id id;
	int64_t since_s; /* the epoch */
	uint64_t size, bytes; /* of it, and on disk */
	/* once it was inspected: */
	struct ucm_outcome outcome;
	struct ucm_error error; /* of representations: why not */
	bool unchecked; /* right as far as it can be said: no checksums */
	bool there;	/* the store has a file of that name */
	/* what became of it; NULL: nothing */
	const char *done, *failed;
};

struct ucm_asides {
	struct ucm_aside_dir *dirs;
	unsigned num_dirs;
	struct ucm_aside *files; /* by directory, then by name */
	size_t num;
};

/* The file, for reading; -errno. */
int ucm_aside_open(const struct ucm_asides *asides,
		   const struct ucm_aside *aside, struct stat *st);

/* Read all of it, and find out what is wrong with it. */
void ucm_aside_inspect(const struct ucm_asides *asides,
		       struct ucm_aside *aside);

/* ---- back into the store (ucm_quarantine_restore.c) ---- */

struct ucm_restorer;

/* Where the files of a directory go: through its mount or, if there is none,
 * into the directory, which nobody else may use meanwhile. 0, or -errno
 * (reported). */
int ucm_restorer_open(const struct ucm_aside_dir *dir,
		      struct ucm_restorer **out);
void ucm_restorer_close(struct ucm_restorer *restorer); /* NULL is harmless */

/* All of a file of representations, to free. -EFBIG: it is none. */
int ucm_aside_read(int fd, void **bytes_out, size_t *len_out);

/* Commit a copy of a file that was found to be good. 0; -EEXIST: there is such a
 * block, or it has representations; -ENOENT: no such space, or no block of its
 * name; -EINVAL: it is not taken; -errno. */
int ucm_restorer_commit(struct ucm_restorer *restorer,
			const struct ucm_aside *aside, int fd);

#endif
