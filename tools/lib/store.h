/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - what ucm put, get and verify have in common: options, where a
 * store's blocks are, and what their geometry is.
 */
#ifndef UCM_TOOLS_LIB_STORE_H
#define UCM_TOOLS_LIB_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include <ucm/client.h>
#include <ucm/load.h>

#include "tools/lib/args.h"

struct ucm_store_options {
	const char *mount; /* as ucm_client_connect() has it; or (verify) NULL */
	const char *space;         /* "": the default one */
	bool shaped; /* geometry was given */
	struct ucm_geometry geometry;
	const char *like;
	uint64_t threads; /* 0: the default */
	enum ucm_io_kind io;
	bool json;
	bool parents;            /* put */
	struct ucm_id parent;    /* put: of the first block, or zero */
	unsigned missing_zero;   /* get */
	enum ucm_verify verify;  /* get */
	bool all;                /* verify */
	char **args; /* the operands, num_args of them */
	int num_args;
};

/* What the options are set to: a process runs one command. */
extern struct ucm_store_options ucm_store_opt;

/* Rows that the commands share. */
extern const struct ucm_arg ucm_store_where[]; /* put, get and verify */
extern const struct ucm_arg ucm_store_shapes[]; /* put and get: geometry, I/O */

/* For --help of put and get. */
#define UCM_STORE_SHAPES_END                                                  \
	"Without an option of geometry, it is that of the space's "           \
	"space.json, or else of one of its blocks."

/* Keeps the operands. */
void ucm_store_options_take(int argc, char **argv);
/* The same for put and get: with the geometry, and what may not be missing; the
 * process ends if it is (reported). */
void ucm_store_options_check(int argc, char **argv);

/* The daemon, which has the space; without it the process ends (reported). */
struct ucm_client *ucm_store_connect(const struct ucm_store_options *opt);

/* A descriptor to read the block, or -errno, not reported; -ENOENT: not there. */
int ucm_store_block_open(struct ucm_client *client, const char *space,
			 const struct ucm_id *id, struct stat *st);

/* The header of an open file: 0; -EBADMSG: it is no block; or -errno. */
int ucm_store_read_header(int fd, const struct stat *st, struct ucm_block *out);

/* Given as options, by --like, by the manifest of the space, or by one of its
 * blocks; where none of them has it, the process ends (reported). */
struct ucm_geometry ucm_store_shape(const struct ucm_store_options *opt);

#endif
