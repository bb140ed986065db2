/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - calls on MOUNT/.ucmfs/control, many blocks at a time.
 *
 * Open the file for reading and use ioctl(2) with the commands below; see
 * ucm-control(7). <ucm/blocks.h> has them as functions, for any number of
 * blocks. All structs have one size on all machines. The kernel passes
 * at most 16 KiB with a call: hence the sizes of the batches.
 *
 * A call returns 0 or fails with errno: EINVAL (version, number, a field that
 * must be 0, a name without its end), ENOENT (no such space), EACCES (a private
 * space of somebody else), EPERM (not root or the owner of the mount), EROFS
 * (mounted read-only), EOPNOTSUPP (see each command), ENOTTY (no such command,
 * or not a control file). What becomes of each block is reported separately.
 */
#ifndef UCM_CONTROL_H
#define UCM_CONTROL_H

#include <stdint.h>
#include <sys/ioctl.h>

#include <ucm/block.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCM_CONTROL_VERSION 1u
#define UCM_CONTROL_IDS 1000u   /* of a batch, at most */
#define UCM_CONTROL_PLACES 400u /* of a locate, at most */
#define UCM_CONTROL_LEASE_MAX_MS 60000u

struct ucm_control_head {
	uint32_t version;  /* UCM_CONTROL_VERSION */
	uint32_t num;      /* blocks */
	uint32_t lease_ms; /* locate, lease: see there; else 0 */
	uint32_t flags;    /* UCM_LOCATE_*, UCM_LEASE_*, UCM_TOUCH_*; else 0 */
	char space[136];   /* with its NUL; "": the default one */
};

/* In: ids. Out: results in their place. */
struct ucm_control_batch {
	struct ucm_control_head head;
	union {
		struct ucm_id ids[UCM_CONTROL_IDS];
		int32_t results[UCM_CONTROL_IDS];
	} u;
};

#define UCM_LOCATE_CRC 0x1u  /* read the header, and give its checksum */
#define UCM_LOCATE_PEEK 0x2u /* to look around: not counted as a lookup */

#define UCM_LEASE_RENEW 0x4u /* of what the caller has leased already */

#define UCM_TOUCH_OPENED 0x8u /* the caller has opened its file, not here */

#define UCM_PLACE_PINNED 0x1u
#define UCM_PLACE_CRC 0x2u /* crc32c is given */
/* It is not evicted now, because it is open, leased, or its writer has it open: */
#define UCM_PLACE_OPEN 0x4u
#define UCM_PLACE_LEASED 0x8u
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

/* In: ids. Out: places in their place. */
struct ucm_control_locate {
	struct ucm_control_head head;
	union {
		struct ucm_id ids[UCM_CONTROL_PLACES];
		struct ucm_control_place places[UCM_CONTROL_PLACES];
	} u;
};

/* In: one id. Out: the path of its file, with its NUL. */
struct ucm_control_path {
	struct ucm_control_head head;
	union {
		struct ucm_id id;
		char path[4096];
	} u;
};

/* Since the mount, unless it says otherwise. */
struct ucm_control_statistics {
	uint32_t version; /* in: UCM_CONTROL_VERSION */
	uint32_t scanned; /* 1: the index is complete, absent means absent */
	uint64_t blocks;  /* in the index */
	uint64_t bytes;   /* that they take on disk, now */
	uint64_t total_bytes, free_bytes; /* as statfs(2) has them, now */
	uint64_t lookups, hits, misses, opens, commits, removed, quarantined,
		io_errors;
};

/*
 * lookup: result 1: there, 0: absent; -errno: could not be learned.
 * touch: counts a use, as an open does; UCM_TOUCH_OPENED: it was one, which is
 * counted among opens and may bring the block up. result 0 or -ENOENT.
 * Both and locate and statistics are for whoever may read the blocks.
 */
#define UCM_CONTROL_LOOKUP _IOWR('U', 1, struct ucm_control_batch)
#define UCM_CONTROL_TOUCH _IOWR('U', 2, struct ucm_control_batch)
/* Where blocks lie. With lease_ms (up to UCM_CONTROL_LEASE_MAX_MS) they are not
 * evicted for so long; unlink(2) removes them all the same. result -EDQUOT: this
 * user has as many leases as allowed, or has kept this block for too long. */
#define UCM_CONTROL_LOCATE _IOWR('U', 3, struct ucm_control_locate)
#define UCM_CONTROL_STATISTICS _IOWR('U', 4, struct ucm_control_statistics)

/* The rest is for root, the daemon's user and the owner of the mount's root
 * directory. result 0 or -errno. */
#define UCM_CONTROL_PATH _IOWR('U', 5, struct ucm_control_path)
#define UCM_CONTROL_PIN _IOWR('U', 6, struct ucm_control_batch)
#define UCM_CONTROL_UNPIN _IOWR('U', 7, struct ucm_control_batch)
/* Remove blocks from every tier: -EPERM: pinned, -EBUSY: open or leased,
 * -EROFS. */
#define UCM_CONTROL_EVICT _IOWR('U', 8, struct ucm_control_batch)
/* Copy blocks to the fastest tier, in the background. 0: it is there, or about
 * to be; EAGAIN: too many are waiting. */
#define UCM_CONTROL_WARM _IOWR('U', 9, struct ucm_control_batch)
/* Compare the files of blocks, in all directories, with their checksums; what is
 * wrong is quarantined. 0: a whole one is there; -ENOENT: none is, now. */
#define UCM_CONTROL_CHECK _IOWR('U', 28, struct ucm_control_batch)
/* Wait until new blocks of tiers with write=back are in a lower tier, then
 * syncfs(2) of all tiers. EIO: some cannot be copied, or a sync failed; EINTR. */
#define UCM_CONTROL_FLUSH _IO('U', 10)
/* Look for blocks that were put into the directories by hand. EINTR: by a
 * signal; or the first error, after all else has been looked at. */
#define UCM_CONTROL_RESCAN _IO('U', 11)
/* Flush, and note that all is on disk: a crash leaves nothing older in doubt.
 * EAGAIN: a directory has not been read to its end, or has blocks in doubt;
 * EIO: the sync of one failed. It is noted for all others. */
#define UCM_CONTROL_CHECKPOINT _IO('U', 12)

/* Keep blocks from being evicted for lease_ms (up to UCM_CONTROL_LEASE_MAX_MS),
 * as locate does; 0: give the lease back. A block that a user has leased several
 * times, for several requests, is held until each has given it back or the time
 * is over; UCM_LEASE_RENEW: the time of one of them begins anew. For whoever may
 * read the blocks. result 0, -ENOENT, or -EDQUOT as for locate. */
#define UCM_CONTROL_LEASE _IOWR('U', 13, struct ucm_control_batch)

/*
 * Which of these blocks are worth saving? For who may go on without: an engine
 * computes again what is not there. In: the id of each block and that of its
 * parent (all zero: it has none), those of a chain in their order. Out, in their
 * place: 1: save it, or it is there; 0: it is refused. A refusal costs nothing
 * but this call; what is saved without an offer is not refused. For whoever may
 * read the blocks.
 */
#define UCM_CONTROL_OFFERS 500u /* of a call, at most */

struct ucm_control_offered {
	struct ucm_id id, parent;
};

struct ucm_control_offer {
	struct ucm_control_head head;
	uint64_t bytes; /* of a block's file; 0: as those of the space */
	union {
		struct ucm_control_offered blocks[UCM_CONTROL_OFFERS];
		int32_t results[UCM_CONTROL_OFFERS];
	} u;
};
#define UCM_CONTROL_OFFER _IOWR('U', 15, struct ucm_control_offer)

/*
 * Take a directory out of use: nothing new is written there, and what it has is
 * moved to others, as long as the mount lasts. path is how the configuration
 * names it. ENOENT: there is none of that name; EROFS: it is read-only.
 */
#define UCM_DRAIN_ASK 0u /* how much is left? */
#define UCM_DRAIN_BEGIN 1u
#define UCM_DRAIN_END 2u /* it is used again */

struct ucm_control_drain {
	uint32_t version; /* UCM_CONTROL_VERSION */
	uint32_t what;    /* UCM_DRAIN_* */
	uint64_t blocks;  /* out: that it has yet */
	uint64_t bytes;
	uint64_t stays;    /* out: blocks that had no room elsewhere, when all were
			    * looked at last; they stay until there is some */
	uint32_t draining; /* out: 0 or 1 */
	char path[4060];
};
#define UCM_CONTROL_DRAIN _IOWR('U', 20, struct ucm_control_drain)

/*
 * A directory of the mount: a program that may open it itself need not open
 * blocks here. That it is the one, its device and inode say: another namespace
 * may have another under that path. Of one that is not local they are 0: its
 * server may hang, which the daemon has deadlines for and others may not. For
 * whoever may read the blocks.
 */
#define UCM_DIRECTORY_LOCAL 0x1u

struct ucm_control_directory {
	uint32_t version; /* in: UCM_CONTROL_VERSION */
	uint32_t number;  /* in: as locate's directory. ENOENT: there are less */
	uint32_t flags;	  /* out: UCM_DIRECTORY_* */
	uint32_t tier;	  /* out: from 0, fast to slow */
	uint64_t device;  /* out: st_dev and st_ino of stat(2) */
	uint64_t inode;
	char path[4064]; /* out: absolute, with its NUL */
};
#define UCM_CONTROL_DIRECTORY _IOWR('U', 24, struct ucm_control_directory)

/*
 * These blocks' files were read, in their directories, and all checksums
 * compared: loaders that verify once (ucm_load(3)) need not do it again. stamp: of
 * the file that was read, see ucm-control(7); the daemon looks at the file, too.
 * 0: they differ, and the block does not count as verified any more.
 * result 0; -ESTALE: it is another file; -EAGAIN: something is to be looked at
 * before it is used; -ENOENT; -EOPNOTSUPP: in a private space, or in a directory
 * that is not local, or the mount's reverify is 0. For root, the daemon's user and
 * the owner of the mount's root directory: who makes this call is believed by all.
 */
#define UCM_CONTROL_VERIFIED_MOST 600u /* of a call */

struct ucm_control_verified_block {
	struct ucm_id id;
	uint64_t stamp;
};

/* In: blocks. Out: results in their place. */
struct ucm_control_verified {
	struct ucm_control_head head;
	union {
		struct ucm_control_verified_block
			blocks[UCM_CONTROL_VERIFIED_MOST];
		int32_t results[UCM_CONTROL_VERIFIED_MOST];
	} u;
};
#define UCM_CONTROL_VERIFIED _IOWR('U', 25, struct ucm_control_verified)

/*
 * What all loaders of the node together may read and write, as the mount's
 * options say; 0: any. They share it by the file .ucmfs/budget, of
 * UCM_CONTROL_BUDGET_BYTES, which they map. For whoever may read the blocks.
 */
#define UCM_CONTROL_BUDGET_BYTES 16384u

struct ucm_control_budget {
	uint32_t version;   /* in: UCM_CONTROL_VERSION */
	uint32_t layout;    /* in: 0; out: of what is in the file */
	uint64_t rate;      /* out: bytes a second */
	uint64_t in_flight; /* out: bytes */
};
#define UCM_CONTROL_BUDGET _IOWR('U', 26, struct ucm_control_budget)

/*
 * Where the memory is that .ucmfs/index and .ucmfs/budget show: these can be opened
 * with passthrough only, and the memory in /proc by whoever may look into the
 * daemon. Descriptor fd of process pid, as the daemon sees it; a file with another
 * device or inode is another one. For root, the owner and the daemon's user.
 * -ENOENT: there is none; -EOPNOTSUPP: it is not to be mapped.
 */
#define UCM_MEMORY_INDEX 0u
#define UCM_MEMORY_BUDGET 1u

struct ucm_control_memory {
	uint32_t version; /* in: UCM_CONTROL_VERSION */
	uint32_t what;    /* in: UCM_MEMORY_... */
	int32_t pid, fd;  /* in: 0; out */
	uint64_t device, inode;
};
#define UCM_CONTROL_MEMORY _IOWR('U', 27, struct ucm_control_memory)

#ifdef __cplusplus
}
#endif

#endif
