/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_bench.h - what the parts of the mount's benchmark share.
 *
 * A work is done on two sides in turn: on the backing directory and on the
 * mount. Split by task: mount_bench.c (options, rounds, the table),
 * mount_io.c (whole blocks), mount_names.c (names), mount_start.c (a daemon's
 * start).
 */
#ifndef UCM_MOUNT_BENCH_H
#define UCM_MOUNT_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <liburing.h>

#include <ucm/block.h>

#include "bench/table.h"
#include "hashing/tree.h"

#define ME "mount_bench"
#define SLOTS 8 /* reads in flight */
#define MAX_ROUNDS 200

/* Where a work is done. */
struct side {
	const char *name;
	int dirfd;      /* its buckets */
	int new_dirfd;  /* where new blocks go: other buckets of the same disk */
	bool is_mount;
};

struct name {
	struct ucm_id id;
	char path[UCM_TREE_BELOW_LEN + 1]; /* "3f/3f....bin" */
};

/* A buffer, and the block that was last read into it (NULL: none). */
struct slot {
	char *bytes;
	const struct name *name;
	int fd;
};

struct bench {
	/* options */
	uint64_t rounds, count, ops, min_ms;
	const char *section, *label, *plain, *daemon, *options, *empty;
	bool tsv;
	const char *tier, *mnt;
	bool uring_transport;

	struct side side[2]; /* backing directory, mount */
	struct name *names;
	size_t num_names;
	uint64_t file_size;
	struct ucm_block block; /* what all of them look like */
	struct slot slots[SLOTS];
	struct io_uring ring;
	double *samples; /* ops of them */
	unsigned round;
	uint64_t random;
};

enum unit { UNIT_MB_S, UNIT_US, UNIT_MS };

struct work {
	const char *section, *name;
	int (*run)(struct bench *bench, const struct side *side,
		   const struct work *work, double *out);
	enum unit unit;
	double min_ratio; /* target, 0: none */
	double max_value; /* target for the mount alone, 0: none */
	bool uring_only;  /* the target is one for FUSE over io_uring */
	/* how, for those that read */
	bool buffered, deep, reopen;
};

/* What is measured of the mount alone. */
struct reading {
	const char *section, *name, *unit;
	double max_value;
	double values[MAX_ROUNDS];
	unsigned num;
};

extern const struct work io_works[], name_works[]; /* end with no name */

/* Read the blocks (at most a thousand) on both sides; compare their bytes and
 * checksums. */
int verify_all(struct bench *bench);

/* Start and stop the daemon, several times. */
int measure_starts(struct bench *bench);

/* ---- helpers (mount_bench.c) ---- */

int complain(const char *object, const char *call); /* reports it; -errno */
uint64_t next_random(struct bench *bench);
int drop_caches(const char *which);
/* The names below a directory of buckets, at most count of them. */
int list_names(struct bench *bench, int dirfd);
void print_reading(struct bench *bench, struct reading *reading);

#endif
