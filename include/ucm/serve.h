/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - the messages on the socket of a store; see ucm-serve(7).
 *
 * A SOCK_SEQPACKET socket in the file system. A request is one message: a head,
 * then num items. Each request has one answer: a head, then num items, and with
 * them descriptors (SCM_RIGHTS). The next request is sent when the answer has been
 * received; else the daemon may end the connection. <ucm/client.h> has all of it as
 * functions.
 *
 * All structs have one size on all machines; integers are the machine's own, as
 * both ends are on one machine. What is not used must be 0.
 *
 * result in the head of an answer, 0 or -errno, is of the request as a whole:
 * -EINVAL (a malformed message: too short or long, num out of range, a name
 * without its end, a field that must be 0), -EOPNOTSUPP (an unknown verb),
 * -ENOENT (no such space), -EACCES (a private space of another user), -EPERM (for
 * root, the daemon's user and the store's owner only), -EROFS (read-only), -ENOMEM,
 * -EMFILE (no more descriptors). If it is not 0 there are no items. What becomes
 * of each item is in the item.
 */
#ifndef UCM_SERVE_H
#define UCM_SERVE_H

#include <stdint.h>

#include <ucm/block.h>
#include <ucm/control.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCM_SERVE_VERSION 1u
#define UCM_SERVE_MESSAGE_MAX 67584u /* bytes: of a manifest, and its head */
#define UCM_SERVE_ITEMS 1000u        /* of a request, at most */
/* Of a request whose answer has descriptors; Linux passes 253 at once. */
#define UCM_SERVE_DESCRIPTORS 250u
#define UCM_SERVE_PATH_MAX 4096u     /* bytes, with the NUL */
#define UCM_SERVE_SPACE_MAX 136u /* bytes of a space's name, with its NUL */

/*
 * In brackets: the items of the request -> of the answer. "num" stands for one
 * for each item of the request. READ: for each user who may read the space's
 * blocks. WRITE: for root, the daemon's user and the space's owner. OWNER: for
 * root, the daemon's user and the store's owner.
 */
enum ucm_serve_verb {
	/* [-> ucm_serve_hello] The version. flags UCM_HELLO_MEMORY: with two
	 * descriptors of memory, the index (to map read-only) and the node's
	 * budget (read and write), as far as there are any. READ. */
	UCM_SERVE_HELLO = 1,

	/* [ucm_id -> int32_t] 1: there, 0: absent, -errno: unknown. READ. */
	UCM_SERVE_LOOKUP,
	/* [ucm_id -> int32_t] Count a use; flags UCM_TOUCH_EXPECTED: it is about
	 * to be opened, which counts then: for UCM_EXPECTED_MS it is not
	 * evicted while anything else may be. argument: for this time, ms,
	 * UCM_EXPECTED_MOST_MS at most, and it counts as no request. READ.
	 * UCM_TOUCH_ENDED: no use at all is expected: it is evicted first, with
	 * the blocks before it, as far as these are no other chain's. WRITE. */
	UCM_SERVE_TOUCH,
	/* [ucm_id -> int32_t] Keep it from being evicted; let it be evicted
	 * again. OWNER. */
	UCM_SERVE_PIN,
	UCM_SERVE_UNPIN,
	/* [ucm_id -> int32_t] Remove it from each tier unless it is held:
	 * -EPERM: pinned, -EBUSY: open. OWNER. */
	UCM_SERVE_EVICT,
	/* [ucm_id -> int32_t] Remove it, whatever holds it. WRITE. */
	UCM_SERVE_REMOVE,
	/* [ucm_id -> int32_t] Copy it to the fastest tier, in the background;
	 * -EAGAIN: too many are waiting. OWNER. */
	UCM_SERVE_WARM,
	/* [ucm_id -> int32_t] Compare its files with their checksums and
	 * quarantine what is wrong: 0: a whole one is there; -ENOENT. OWNER. */
	UCM_SERVE_CHECK,
	/* [ucm_control_offered -> int32_t] Is it worth saving? bytes: of each
	 * block's file. READ. */
	UCM_SERVE_OFFER,
	/* [ucm_control_verified_block -> int32_t] These files have passed their
	 * checksums, or have not. 0; -ESTALE: it is another file; -EAGAIN:
	 * the daemon must look at the block first; -ENOENT; -EOPNOTSUPP: in
	 * a private space, or in a directory that is not local, or reverify is 0.
	 * What is said here is believed by all. OWNER. */
	UCM_SERVE_VERIFIED,
	/* [ucm_id -> ucm_control_place] flags UCM_LOCATE_*. READ. */
	UCM_SERVE_LOCATE,
	/* [one ucm_id -> char of its path] OWNER. */
	UCM_SERVE_PATH,

	/* [-> ucm_control_statistics] READ. */
	UCM_SERVE_STATISTICS,
	/* [char of a path -> ucm_control_drain] argument: UCM_DRAIN_*. OWNER. */
	UCM_SERVE_DRAIN,
	/* [->] Of the whole store; see ucm_blocks(3). A peer that closes its
	 * end ends the first two. OWNER. */
	UCM_SERVE_FLUSH,
	UCM_SERVE_RESCAN,
	UCM_SERVE_CHECKPOINT,
	/* [->] A descriptor of a text: argument UCM_TEXT_*. -ENOENT: there is
	 * none. */
	UCM_SERVE_TEXT,

	/* [ucm_id -> ucm_serve_opened] Descriptors of whole blocks, open for
	 * reading, of those with result 0 and in their order. What is read
	 * through one stays right also when the block has been moved, removed or
	 * replaced. Counts as a use. UCM_SERVE_DESCRIPTORS at most. READ. */
	UCM_SERVE_OPEN,
	/* [ucm_id -> ucm_serve_created] Descriptors of new, empty files to write,
	 * which COMMIT makes the blocks of these ids. bytes: of each file.
	 * UCM_SERVE_DESCRIPTORS at most. -EEXIST: it is there; -ENOSPC; -EDQUOT;
	 * -EMFILE: the peer has UCM_SERVE_DRAFTS uncommitted files. WRITE. */
	UCM_SERVE_CREATE,
	/* [ucm_serve_commit -> int32_t] Files are whole, and closed by who has
	 * written them. 0: the block is there and as durable as the store's
	 * durability says. -EBUSY: a descriptor for writing is still open, the
	 * draft stays; -EINVAL: not a whole block of that id; the draft is gone.
	 * UCM_SERVE_COMMITS at most. */
	UCM_SERVE_COMMIT,
	/* [uint32_t draft -> int32_t] Drop new files. */
	UCM_SERVE_CANCEL,
	/* [->] Make a space of that name; argument: its mode, as of mkdir(2);
	 * -EEXIST. By each user.
	 * [char of its manifest ->] The same, for blocks of that manifest,
	 * unless it is there. -EEXIST: it has another one; -ENOTEMPTY: it has
	 * blocks, and none; -EINVAL: of another geometry; -EFBIG: they would be
	 * larger than block_max. By each user; WRITE if it is there without. */
	UCM_SERVE_MKSPACE,
	/* [-> ucm_serve_space] Of the space that the request names. READ. */
	UCM_SERVE_SPACE,
	/* [uint32_t draft -> int32_t] Descriptors of new files, to write, in
	 * place of those that have been closed. */
	UCM_SERVE_REOPEN,
	/* [->] A descriptor of the ids of the space's blocks that begin with the byte
	 * argument: as struct ucm_id, in no order. READ. */
	UCM_SERVE_LIST,
	/* [->] Remove a space with its blocks, whatever holds them. -EBUSY,
	 * -ENOTEMPTY: blocks are being saved; the others are removed. WRITE. */
	UCM_SERVE_RMSPACE,
	UCM_SERVE_VERBS
};

struct ucm_serve_request {
	uint32_t verb;     /* UCM_SERVE_* */
	uint32_t num;      /* of items */
	uint32_t flags;    /* of the verb */
	uint32_t argument; /* of the verb */
	uint64_t bytes;    /* of the verb */
	char space[UCM_SERVE_SPACE_MAX]; /* "": the default one */
};

struct ucm_serve_answer {
	uint32_t verb; /* the request's */
	uint32_t num;
	int32_t result;
	uint32_t descriptors; /* with this message */
};

#define UCM_HELLO_MEMORY 0x1u

#define UCM_SERVE_READONLY 0x1u /* nothing can be written */

struct ucm_serve_hello {
	uint32_t version; /* UCM_SERVE_VERSION */
	uint32_t flags;   /* UCM_SERVE_READONLY */
	uint64_t index_bytes;  /* 0: no descriptor of the index comes with it */
	uint64_t budget_bytes; /* likewise */
	uint64_t rate;      /* of all loaders of the node, bytes a second; 0: any */
	uint64_t in_flight; /* of each loader, bytes; 0: any */
};

#define UCM_SPACE_PUBLISHED 0x1u /* the index shows it, to everybody */

struct ucm_serve_space {
	uint32_t flags;  /* UCM_SPACE_* */
	uint32_t number; /* in the index */
};

#define UCM_TEXT_STATS 0u   /* stats.json. OWNER */
#define UCM_TEXT_CONFIG 1u  /* config.yaml. OWNER */
#define UCM_TEXT_METRICS 2u /* Prometheus' text */
#define UCM_TEXT_MANIFEST 3u /* of the space that the request names. READ */
#define UCM_TEXT_SPACES 4u /* all names but the default one's, each with its NUL */

#define UCM_OPENED_LOCAL 0x1u /* its directory is of no server, which may hang */

struct ucm_serve_opened {
	int32_t result;
	uint16_t directory; /* that has it: its number in SOURCE, from 0 */
	uint16_t flags;     /* UCM_OPENED_* */
	uint64_t size;      /* bytes of the file */
};

#define UCM_SERVE_DRAFTS 4096u /* of a peer, at a time */

struct ucm_serve_created {
	int32_t result;
	uint32_t draft;     /* the peer's name for it, until it is committed */
	uint32_t directory; /* where it is written */
	uint32_t reserved;
};

#define UCM_SERVE_COMMITS 16u /* of a request, at most */

struct ucm_serve_commit {
	uint32_t draft;
	/* The file's first bytes, which then need not be read from a disk that is
	 * busy with what is being written: its header, with all checksums of its
	 * extension. 0: the daemon reads them. */
	uint32_t header_bytes;
	char header[UCM_BLOCK_PAGE];
};

#ifdef __cplusplus
}
#endif

#endif
