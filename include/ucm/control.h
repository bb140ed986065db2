/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - what requests on a store's socket bring and take: items of
 * <ucm/serve.h>, which says who may make them and what they do.
 */
#ifndef UCM_CONTROL_H
#define UCM_CONTROL_H

#include <stdint.h>

#include <ucm/block.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCM_LOCATE_CRC 0x1u  /* read the header, and give its checksum */
#define UCM_LOCATE_PEEK 0x2u /* to look around: not counted as a lookup */

#define UCM_TOUCH_EXPECTED 0x4u /* the caller is about to open it */

#define UCM_TOUCH_ENDED 0x8u	 /* its chain has ended */

#define UCM_EXPECTED_MS 20000u /* how long a block is spared that is expected */
#define UCM_EXPECTED_MOST_MS 3600000u /* if the caller says how long */
#define UCM_EXPECTED_NO_MORE UINT32_MAX /* ucm_blocks_expect() */

#define UCM_PLACE_PINNED 0x1u
#define UCM_PLACE_CRC 0x2u /* crc32c is given */
/* It is not evicted now, because it is open, or its writer has it open: */
#define UCM_PLACE_OPEN 0x4u
#define UCM_PLACE_WRITTEN 0x10u
#define UCM_PLACE_COPY 0x20u     /* another directory is known to have it, too */
#define UCM_PLACE_CHILDREN 0x40u /* blocks here name it as their parent */

struct ucm_control_place {
	int32_t result;      /* 0; -ENOENT, -EIO, ... */
	uint8_t tier;        /* from 0, fast to slow */
	uint8_t directory;   /* from 0, over all tiers in order */
	uint16_t flags;      /* UCM_PLACE_* */
	uint64_t size;       /* bytes of its file */
	int64_t mtime_ns;    /* commit time */
	uint32_t generation; /* it or mtime_ns differ: another file */
	uint32_t crc32c;     /* of the payload, as the header says */
	uint32_t uses;       /* since the mount */
	uint32_t atime_s;    /* last use, seconds since the epoch */
};

/* Since the mount, unless it says otherwise. */
struct ucm_control_statistics {
	uint32_t reserved;
	uint32_t scanned; /* 1: the index is complete, absent means absent */
	uint64_t blocks;  /* in the index */
	uint64_t bytes;   /* that they take on disk, now */
	uint64_t total_bytes, free_bytes; /* as statfs(2) has them, now */
	uint64_t lookups, hits, misses, opens, commits, removed, quarantined,
		io_errors;
};

/* A block to save, and its parent (all zero: it has none). */
struct ucm_control_offered {
	struct ucm_id id, parent;
};

#define UCM_DRAIN_ASK 0u /* how much is left? */
#define UCM_DRAIN_BEGIN 1u
#define UCM_DRAIN_END 2u /* it is used again */

/* A directory that is taken out of use: nothing new is written there, and what it
 * has is moved to others, as long as the daemon runs. */
struct ucm_control_drain {
	uint64_t blocks; /* that it has yet */
	uint64_t bytes;
	uint64_t stays;    /* blocks that had no room elsewhere, when all were
			    * looked at last; they stay until there is some */
	uint32_t draining; /* 0 or 1 */
	uint32_t reserved;
};

/*
 * A block whose file was read, in its directory, and all checksums compared: loaders
 * that verify once (ucm_load(3)) need not do it again. stamp: of the file that was
 * read, see ucm-serve(7); the daemon looks at the file, too. 0: they differ, and the
 * block does not count as verified any more.
 */
struct ucm_control_verified_block {
	struct ucm_id id;
	uint64_t stamp;
};

#define UCM_CONTROL_BUDGET_BYTES 4096u /* of the memory of the node's budget */

#ifdef __cplusplus
}
#endif

#endif
