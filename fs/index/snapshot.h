/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h - what a clean end leaves for the next start: .ucmfs/snapshot.
 *
 * The blocks of one directory, so that the start need not read their headers
 * again. Only the file: what is put into it is decided by snapshot_save.c, and
 * what of it is used by snapshot_load.c.
 *
 * When it holds. It has a random number, which the state file has too, as long
 * as that says "clean" (recovery.h); the first write of the next mount ends
 * that, so that no crash brings an old one back. Nothing in it is trusted
 * otherwise: another version, directory or number, a wrong length or checksum,
 * and all is read as without it.
 *
 * What is promised of its blocks. Who owns a name is compared with the
 * directories: a bucket whose inode, ctime and mtime are those of the snapshot
 * has the names of the snapshot, and every other bucket is listed. A bucket
 * that changed within the clock's grain (two seconds) before, or is on a
 * network file system, whose times cannot be relied on, is always listed. A
 * name says nothing of a file's bytes, which an outsider may have replaced
 * meanwhile, so the header of each block is read at its first open: no block is
 * served before, as always. That was preferred to comparing the file's own
 * ctime, which costs memory for each block and another fstat for each commit,
 * changes with every chmod, and is not kept by a copy of the directory; whoever
 * opens a block reads its first page next.
 *
 * Little-endian, reserved bytes zero:
 *
 *   head      128 bytes
 *   sections  256 of 16 bytes, by a block's first byte: records, their CRC32C
 *   records   64 bytes each, section by section
 *   spaces    256 bytes each, and 24 for each bucket that it has
 *
 * All calls return 0 or -errno; -EINVAL: not to be used, with the reason.
 */
#ifndef UCM_SNAPSHOT_H
#define UCM_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <ucm/block.h>

#include "fs/block/bytes.h"

#define UCM_SNAPSHOT_NAME "snapshot"
#define UCM_SNAPSHOT_MAGIC "UCMSNAP\n"
#define UCM_SNAPSHOT_VERSION 2u /* 1 knew no parents */
#define UCM_SNAPSHOT_SECTIONS 256u

struct ucm_snapshot_head {
	char magic[8];
	uint32_t version;
	uint32_t head_bytes; /* with the sections */
	uint8_t uuid[16];    /* of the directory */
	uint64_t number;     /* the state file's, never 0 */
	int64_t taken_ns;    /* by the file system's clock */
	uint64_t file_bytes;
	uint32_t num_spaces;
	uint32_t record_bytes;
	uint32_t sections_crc;
	uint32_t spaces_crc;
	uint8_t zero[52];
	uint32_t crc; /* of all before */
};
_Static_assert(sizeof(struct ucm_snapshot_head) == 128, "layout");

struct ucm_snapshot_section {
	uint64_t num;
	uint32_t crc;
	uint32_t zero;
};

#define UCM_SNAPSHOT_HEAD_BYTES \
	(sizeof(struct ucm_snapshot_head) + \
	 UCM_SNAPSHOT_SECTIONS * sizeof(struct ucm_snapshot_section))

/* A block; its bucket is its section. */
struct ucm_snapshot_record {
	struct ucm_id id;
	struct ucm_id parent; /* UCM_SNAPSHOT_PARENT, else zero */
	uint64_t size;
	int64_t mtime_ns;
	uint32_t blocks;
	uint32_t atime_s;
	uint32_t uses; /* an entry's uses; in the highest 8 bits, wanted */
	uint16_t space; /* number in the snapshot */
	uint8_t flags;  /* UCM_SNAPSHOT_DUPLICATE, _PARENT */
	uint8_t zero;
};
_Static_assert(sizeof(struct ucm_snapshot_record) == 64, "layout");

#define UCM_SNAPSHOT_DUPLICATE 0x1u /* lies in more than two directories */
#define UCM_SNAPSHOT_PARENT 0x2u    /* its parent is known */
/* 0x4 was: it has a file of representations beside it. The directory is read then. */
#define UCM_SNAPSHOT_FLAGS 0x3u

/* A bucket as it was. ino 0: it is to be listed. */
struct ucm_snapshot_stamp {
	uint64_t ino;
	int64_t ctime_ns;
	int64_t mtime_ns;
};

struct ucm_snapshot_space {
	char name[136]; /* with at least one NUL */
	uint32_t num_layers, block_size, dtype, k_bytes, v_bytes;
	uint16_t num_kv_heads, head_dim;
	uint32_t order;
	uint32_t flags; /* UCM_SNAPSHOT_HAS_* */
	uint8_t space_id[32];
	uint64_t buckets[4]; /* one bit for each that it has */
	uint8_t zero[24];
};
_Static_assert(sizeof(struct ucm_snapshot_space) == 256, "layout");

#define UCM_SNAPSHOT_HAS_GEOMETRY 0x1u
#define UCM_SNAPSHOT_HAS_IDENTITY 0x2u

/* ---- reading ---- */

struct ucm_snapshot {
	struct ucm_bytes file;
	struct ucm_snapshot_head head;
	struct ucm_snapshot_section sections[UCM_SNAPSHOT_SECTIONS];
	char *area; /* spaces and stamps, as in the file */
	const struct ucm_snapshot_space **spaces; /* into it */
};

/* file: its bytes, for as long as it is used; size: of them. *why_out: static
 * text. To be closed. */
int ucm_snapshot_open(const struct ucm_bytes *file, uint64_t size,
		      const uint8_t uuid[16], uint64_t number,
		      struct ucm_snapshot *out, const char **why_out);
void ucm_snapshot_close(struct ucm_snapshot *snapshot);

/* The records of a section, to free; NULL where there are none. */
int ucm_snapshot_read(const struct ucm_snapshot *snapshot, unsigned section,
		      struct ucm_snapshot_record **out, uint64_t *num_out,
		      const char **why_out);

/* Of a bucket; NULL: the space had none of that name. */
const struct ucm_snapshot_stamp *
ucm_snapshot_bucket(const struct ucm_snapshot_space *space, unsigned bucket);

/* ---- writing ---- */

/* The coarsest clock that a file system may have; tests know their own. */
extern int64_t ucm_snapshot_grain_ns;

/* Of a bucket that has been unchanged for long enough; else ino is 0. */
struct ucm_snapshot_stamp ucm_snapshot_stamp(const struct stat *st,
					     int64_t taken_ns);
bool ucm_snapshot_stamp_equal(const struct ucm_snapshot_stamp *stamp,
			      const struct stat *st);

struct ucm_snapshot_writer {
	int (*write)(void *arg, const void *bytes, size_t len, uint64_t offset);
	void *arg;
	int err; /* the first; nothing is written after it */
	uint64_t at;
	size_t used; /* in buffer */
	char *buffer;
	struct ucm_snapshot_head head;
	struct ucm_snapshot_section sections[UCM_SNAPSHOT_SECTIONS];
};

/* write: all of it, or -errno. On success finish must follow. */
int ucm_snapshot_create(struct ucm_snapshot_writer *writer,
			int (*write)(void *arg, const void *bytes, size_t len,
				     uint64_t offset),
			void *arg, const uint8_t uuid[16], int64_t taken_ns);
/* By section, in order; then the spaces, each followed by its stamps. Errors are
 * kept for the end. */
void ucm_snapshot_put(struct ucm_snapshot_writer *writer, unsigned section,
		      const struct ucm_snapshot_record *record);
void ucm_snapshot_put_space(struct ucm_snapshot_writer *writer,
			    const struct ucm_snapshot_space *space,
			    const struct ucm_snapshot_stamp *stamps,
			    unsigned num_stamps);
/* All has been written: its number; or the first error. The writer is over. */
int ucm_snapshot_finish(struct ucm_snapshot_writer *writer,
			uint64_t *number_out);

#endif
