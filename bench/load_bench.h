/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_bench.h - what the parts of the loader's benchmark share.
 *
 * Split by task: load_bench.c (options, sections, rounds, the table),
 * load_sides.c (the loader's turns), load_shards.c (those of the interface by
 * id and shard), load_pages.c (blocks, pages, and the loops that copy by hand),
 * load_fio.c (fio's turns).
 */
#ifndef UCM_LOAD_BENCH_H
#define UCM_LOAD_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/load.h>

#include "bench/table.h"
#include "hashing/tree.h"

#define ME "load_bench"
#define MAX_ROUNDS 200
#define MAX_SIDES 16

/* A block file that is there. */
struct file {
	struct ucm_id id;
	char path[UCM_TREE_BELOW_LEN + 1]; /* below blocks/ */
	uint32_t crc;                      /* of its payload */
};

/* What one turn took. */
struct figure {
	double seconds;
	double cpu;   /* seconds, user and system, of all threads */
	double first; /* seconds until layer 0 was there */
	double opens, reads; /* of run_shards() */
};

struct bench;
struct ucm_shards;

/* One of those that take turns. Zero is a default. */
struct side {
	const char *name;
	int (*run)(struct bench *bench, struct side *side, struct figure *out);
	unsigned depth; /* blocks in flight; 0: the loader finds out */
	unsigned threads;
	unsigned open_files;
	bool mount; /* else the tiers */
	enum ucm_verify verify;
	enum ucm_load_order order;
	uint32_t group_layers;
	bool with_addresses, is_save;
	bool huge; /* fio: huge pages, registered */
	bool shards; /* run_shards(): not whole blocks */
	/* a save: seconds until the pages are free; with a write buffer */
	bool until_copied, buffer;
	bool lent; /* pages are in one piece, and written from there */
	/* its own, and what it took */
	struct ucm_loader *loader;
	struct ucm_shards *store;
	struct figure figures[MAX_ROUNDS];
};

struct bench {
	/* options */
	uint64_t rounds, count, depth;
	const char *section, *label, *list, *tiers, *mnt, *saves, *plain, *work;
	bool tsv, huge; /* there are huge pages for fio */

	struct file *files;
	size_t num_files, num_links; /* fio's */
	uint64_t file_size;
	struct ucm_block block; /* what all of them look like */
	uint64_t payload;
	/* the pages: for each plane num_files planes in a row */
	uint8_t *pages;
	struct ucm_layout *layout;
	struct ucm_layout *lent; /* the same memory as pages in one piece */
	uint64_t shift; /* page of file 0 at present */
	uint8_t *staging; /* where copy_run() copies from */
	uint8_t *gathered; /* where run_gather() copies to, or NULL */
	const uint8_t **maps; /* of the files, or NULL */
	unsigned round, buried;
	uint64_t random;
	double fio_cpu; /* that fio takes for itself */
};

/* ---- load_pages.c ---- */

int complain(const char *object, const char *call); /* reports it; -errno */
uint64_t next_random(struct bench *bench);
struct rusage;
double seconds_of(const struct rusage *usage); /* of CPU */
double cpu_seconds(void);                      /* all our threads' */

/* A file that is to be unlinked gives back its room, but keeps its inode (as a
 * file of the plain directory): ext4 does not use one again that was free for
 * less than some seconds, and looks long for others. */
int bury(struct bench *bench, const char *path);

/* Read the list and each file's header; make pages for them. */
int pages_open(struct bench *bench);
void pages_close(struct bench *bench);

/* Files go to other pages than the last time. */
void move_on(struct bench *bench);
uint32_t page_of(const struct bench *bench, size_t file);
/* Are the files in their pages? All of them in round 0, else some. */
int check_pages(struct bench *bench);
/* Is that file, of blocks/ in a directory, what the page holds? */
int check_saved(struct bench *bench, const struct side *side, const char *dir,
		const struct ucm_move *move);

/* memcpy() of each file from its mapping; of files that are opened and mapped
 * for that; of staging memory, with checksums as verify says. */
int run_mapped(struct bench *bench, struct side *side, struct figure *out);
int run_mapping(struct bench *bench, struct side *side, struct figure *out);
int run_copy(struct bench *bench, struct side *side, struct figure *out);
/* memcpy() of all pages into memory for all of them, which has been touched. */
int run_gather(struct bench *bench, struct side *side, struct figure *out);

/* ---- load_sides.c ---- */

/* The side's loader, the pages as its group 0. */
int side_open(struct bench *bench, struct side *side);
void side_close(struct side *side);
int run_load(struct bench *bench, struct side *side, struct figure *out);
/* The same by a request for each block, all submitted before the first wait. */
int run_single(struct bench *bench, struct side *side, struct figure *out);
int run_save(struct bench *bench, struct side *side, struct figure *out);
/* seconds: of the call alone, for 8192 blocks that are not there. */
int run_submit(struct bench *bench, struct side *side, struct figure *out);

/* ---- load_shards.c ---- */

/* All blocks in one call, whole or by their shards. */
int run_shards(struct bench *bench, struct side *side, struct figure *out);
void shards_close(struct side *side);

/* ---- load_fio.c ---- */

/* fio reads the files, or writes as many new ones, side->depth at a time. */
int run_fio_read(struct bench *bench, struct side *side, struct figure *out);
int run_fio_write(struct bench *bench, struct side *side, struct figure *out);
void fio_close(struct bench *bench);

#endif
