/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opstats.h - how long requests take, and how they fail.
 *
 * A histogram for each operation. Threads count in shards of their own, so
 * that they do not pull each other's cache lines; the reader adds them up. It
 * knows nothing of FUSE.
 */
#ifndef UCM_OPSTATS_H
#define UCM_OPSTATS_H

#include <stdint.h>

#include "fs/tier/stats.h"

/* id, name. COMMIT is what flush, fsync, rename or release made of a file. */
#define UCM_OPS(X)                                                            \
	X(LOOKUP, "lookup")                                                   \
	X(OPEN, "open")                                                       \
	X(CREATE, "create")                                                   \
	X(READ, "read")                                                       \
	X(WRITE, "write")                                                     \
	X(FLUSH, "flush")                                                     \
	X(FSYNC, "fsync")                                                     \
	X(RELEASE, "release")                                                 \
	X(COMMIT, "commit")                                                   \
	X(UNLINK, "unlink")                                                   \
	X(RENAME, "rename")                                                   \
	X(GETATTR, "getattr")                                                 \
	X(SETATTR, "setattr")                                                 \
	X(GETXATTR, "getxattr")                                               \
	X(LISTXATTR, "listxattr")                                             \
	X(SETXATTR, "setxattr")                                               \
	X(FALLOCATE, "fallocate")                                             \
	X(OPENDIR, "opendir")                                                 \
	X(READDIR, "readdir")                                                 \
	X(MKDIR, "mkdir")                                                     \
	X(RMDIR, "rmdir")                                                     \
	X(STATFS, "statfs")                                                   \
	X(LSEEK, "lseek")

enum ucm_op {
#define UCM_OPS_ENUM(id, name) UCM_OP_##id,
	UCM_OPS(UCM_OPS_ENUM)
#undef UCM_OPS_ENUM
	UCM_OP_COUNT
};

extern const char *const ucm_op_names[UCM_OP_COUNT];

/* Bucket i holds what took less than ucm_op_bound_ns(i) and not less than the
 * bound before: 2^10 ns, 2^11 ns, ... 2^33 ns (8.6 s); the last the rest. */
#define UCM_OP_BOUNDS 24
#define UCM_OP_BUCKETS (UCM_OP_BOUNDS + 1)

static inline uint64_t ucm_op_bound_ns(unsigned bucket)
{
	return UINT64_C(1) << (10 + bucket);
}

struct ucm_op_times {
	uint64_t buckets[UCM_OP_BUCKETS];
	uint64_t count; /* of all buckets */
	uint64_t sum_ns;
};

struct ucm_opstats;

/* NULL: no memory. */
struct ucm_opstats *ucm_opstats_new(void);
void ucm_opstats_free(struct ucm_opstats *stats);

/* An operation has ended: err is 0 or -errno. Any thread; no lock. */
void ucm_opstats_add(struct ucm_opstats *stats, enum ucm_op op, uint64_t ns,
		     int err);

/* What has been counted so far, while others keep counting. */
void ucm_opstats_times(const struct ucm_opstats *stats, enum ucm_op op,
		       struct ucm_op_times *out);
uint64_t ucm_opstats_errors(const struct ucm_opstats *stats, enum ucm_op op,
			    unsigned error);

#endif
