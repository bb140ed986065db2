/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_store.h - what ucm put, get and verify have in common: the command line,
 * where a store's blocks are, and what their geometry is.
 */
#ifndef UCM_TOOLS_STORE_H
#define UCM_TOOLS_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include <ucm/load.h>

#include "hashing/tree.h"

/* The commands, as bits: which of them know an option. */
enum { UCM_PUT = 1, UCM_GET = 2, UCM_VERIFY = 4 };

struct ucm_store_options {
	const char *mount, *tiers; /* one of the two, or (verify) none */
	const char *space;         /* "": the default one */
	bool shaped; /* geometry was given */
	struct ucm_geometry geometry;
	const char *like;
	uint32_t threads; /* 0: the default */
	enum ucm_io_kind io;
	bool json, help;
	bool parents;            /* put */
	struct ucm_id parent;    /* put: of the first block, or zero */
	bool missing_zero;       /* get */
	enum ucm_verify verify;  /* get */
	bool all;                /* verify */
	char **args; /* the others, num_args of them */
	int num_args;
};

/* command: UCM_PUT or another. 0, or -EINVAL and a line on standard error. */
int ucm_store_parse(struct ucm_store_options *opt, int command, int argc,
		    char **argv);
void ucm_store_help(int command);

/* ---- the directories that blocks lie below (ucm_store_dirs.c) ---- */

struct ucm_store_dirs {
	unsigned num;
	char **paths;
	int *fds;
	char folder[UCM_TREE_FOLDER_MAX]; /* the space's */
};

/* 0, or -errno and a line on standard error. */
int ucm_store_dirs_open(const struct ucm_store_options *opt,
			struct ucm_store_dirs *out);
void ucm_store_dirs_close(struct ucm_store_dirs *dirs); /* zeroed is fine */

/* Call fn for each name of a block in a bucket, until it returns what is not
 * 0; returns that, or -errno if the bucket could not be listed. */
int ucm_store_each(const struct ucm_store_dirs *dirs, unsigned dir,
		   unsigned bucket,
		   int (*fn)(void *arg, unsigned dir, const struct ucm_id *id),
		   void *arg);

/* ---- geometry (ucm_store_shape.c) ---- */

/* Given as options, by --like, by the manifest of the space, or by one of its
 * blocks. -errno and a line on standard error if none of them tells. */
int ucm_store_shape(const struct ucm_store_options *opt,
		    struct ucm_geometry *out);

#endif
