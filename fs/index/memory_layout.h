/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_layout.h - how the index lies in the memory that other processes map.
 *
 * The reference for the live index, version 3; doc/index-format.md has it in
 * words. Little-endian. The daemon writes, everybody else reads; what changes
 * after the memory has been passed to others is _Atomic. Only the layout and its arithmetic:
 * the reader (fs/reader/find.c) trusts no number in it and checks each against
 * the file's size.
 */
#ifndef UCM_INDEX_MEMORY_LAYOUT_H
#define UCM_INDEX_MEMORY_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <ucm/block.h>

#define UCM_INDEX_MEMORY_MAGIC	 "UCMINDEX"
#define UCM_INDEX_MEMORY_VERSION 3u
#define UCM_INDEX_MEMORY_SHARDS	 256u /* one for each first byte of an id */
#define UCM_INDEX_MEMORY_CHUNKS	 120u /* of a shard; of records, and of heads */
#define UCM_INDEX_MEMORY_TIERS	   255u
#define UCM_INDEX_MEMORY_TIER_NAME 40u /* bytes, with at least one NUL */
#define UCM_INDEX_MEMORY_UNIT	   64u /* bytes; places in the file count these */
#define UCM_INDEX_MEMORY_MAX_ITEMS                                             \
	((1u << 23) - 256u) /* in all chunks of a shard */

/* A block. */
struct ucm_index_memory_record {
	_Atomic uint64_t id[2]; /* its 16 bytes in order */
	_Atomic uint64_t place; /* size << 24 | space << 8 | directory */
	/* copy << 24 | number + 1 of the next in its shard, 0: the last.
	 * copy: 1 + a second directory that has the block, 0: none known */
	_Atomic uint32_t next;
	_Atomic uint32_t state; /* generation << 8 | flags */
};
_Static_assert(sizeof(struct ucm_index_memory_record) == 32, "layout");

#define UCM_INDEX_MEMORY_LINK	0xffffffu /* of next; of a head, too */
#define UCM_INDEX_MEMORY_COPY_SHIFT 24

#define UCM_INDEX_MEMORY_MAX_SIZE ((UINT64_C(1) << 40) - 1)

/* Flags of a record: those of an entry (fs/index/index.h), and: */
#define UCM_INDEX_MEMORY_DOUBT 0x1u /* its checksums are to be compared first  \
				     */
#define UCM_INDEX_MEMORY_PINNED	 0x2u
#define UCM_INDEX_MEMORY_LEAVING 0x8u  /* its file is about to go */
#define UCM_INDEX_MEMORY_WRITABLE 0x10u /* its writer still has it open */
#define UCM_INDEX_MEMORY_UNREAD 0x40u /* its header has not been looked at */
/* There is a block in this record. In a chain and without it: only a name, of
 * which others say that it is their parent; the block is absent. */
#define UCM_INDEX_MEMORY_USED	 0x80u

struct ucm_index_memory_shard {
	_Atomic uint32_t seq;       /* odd: chains are being changed */
	_Atomic uint32_t num_heads; /* 0: none, and no record either */
	_Atomic uint32_t count;     /* blocks */
	uint32_t zero[13];
	/* Where the chunks are, in units from the start; 0: not there. Each
	 * array begins a cache line; most look-ups need no other of it. */
	_Atomic uint32_t
		heads[UCM_INDEX_MEMORY_CHUNKS]; /* of uint32_t, as next */
	uint32_t zero2[8];
	_Atomic uint32_t records[UCM_INDEX_MEMORY_CHUNKS]; /* of records */
	uint32_t zero3[8];
	/* of uint64_t: the marks of the records of that number; see below */
	_Atomic uint32_t marks[UCM_INDEX_MEMORY_CHUNKS];
	uint32_t zero4[8];
};
_Static_assert(sizeof(struct ucm_index_memory_shard) == 1600, "layout");

/*
 * A mark says that all checksums of the block's file have been compared on this
 * machine, and when: seconds since began_s << 38 | stamp. The stamp is that of
 * the file which was read (common/filestamp.h), and never 0; a mark that is 0 is
 * none. Whoever relies on it opens the file, and compares its stamp.
 */
#define UCM_INDEX_MEMORY_STAMP_BITS 38
#define UCM_INDEX_MEMORY_STAMP                                                 \
	((UINT64_C(1) << UCM_INDEX_MEMORY_STAMP_BITS) - 1)
/* Later than that nothing is marked any more: two years. */
#define UCM_INDEX_MEMORY_MARK_MOST_S                                           \
	(UINT64_MAX >> UCM_INDEX_MEMORY_STAMP_BITS)

#define UCM_INDEX_MEMORY_COMPLETE 0x1u /* what is not here is absent */
#define UCM_INDEX_MEMORY_CLOSED	  0x2u /* nobody keeps it any more */

struct ucm_index_memory_header {
	char magic[8];
	uint32_t version;
	uint32_t header_bytes; /* where the shards start */
	uint32_t shard_bytes;
	uint32_t record_bytes;
	uint32_t num_tiers;
	uint32_t zero;
	uint8_t instance[16];   /* random; another for each start */
	_Atomic uint32_t alive; /* see common/lifeline.h */
	_Atomic uint32_t state; /* UCM_INDEX_MEMORY_* */
	_Atomic uint32_t names; /* counts changes of which spaces are here */
	uint32_t zero2;
	_Atomic uint64_t size;  /* bytes of the file; only grows */
	uint64_t began_s;       /* CLOCK_BOOTTIME; what marks count from */
	uint32_t reverify_s;    /* so long a mark holds; 0: there are none */
	uint8_t zero3[44];
	_Atomic uint8_t tier_of[256]; /* by directory */
	char tiers[UCM_INDEX_MEMORY_TIERS]
		  [UCM_INDEX_MEMORY_TIER_NAME]; /* fast to slow */
};

#define UCM_INDEX_MEMORY_HEADER_BYTES 12288u
_Static_assert(sizeof(struct ucm_index_memory_header) <=
		       UCM_INDEX_MEMORY_HEADER_BYTES,
	       "layout");
/* Where all versions have them. */
_Static_assert(offsetof(struct ucm_index_memory_header, magic) == 0 &&
		       offsetof(struct ucm_index_memory_header, version) == 8,
	       "layout");
_Static_assert(offsetof(struct ucm_index_memory_header, alive) == 48 &&
		       offsetof(struct ucm_index_memory_header, size) == 64 &&
		       offsetof(struct ucm_index_memory_header, tier_of) ==
			       128 &&
		       offsetof(struct ucm_index_memory_header, began_s) ==
			       72 &&
		       offsetof(struct ucm_index_memory_header, reverify_s) ==
			       80 &&
		       offsetof(struct ucm_index_memory_header, tiers) == 384,
	       "layout");

/* Header and shards: the least that a file has. */
#define UCM_INDEX_MEMORY_FIXED_BYTES                                           \
	(UCM_INDEX_MEMORY_HEADER_BYTES +                                       \
	 UCM_INDEX_MEMORY_SHARDS *                                             \
		 (uint32_t)sizeof(struct ucm_index_memory_shard))

/*
 * Items are numbered through the chunks of a shard. Chunks grow with the shard,
 * eight of one size, then eight of the double, so that at most an eighth of
 * them lies idle and none ever moves. at_out: the item's place in its chunk.
 */
static inline unsigned ucm_index_memory_chunk(uint32_t number, uint32_t *at_out)
{
	uint32_t x = number + 256;
	unsigned top = 31u - (unsigned)__builtin_clz(x);

	*at_out = x & ((1u << (top - 3)) - 1);
	return (top - 8) * 8 + (x >> (top - 3) & 7);
}

static inline uint32_t ucm_index_memory_chunk_items(unsigned chunk)
{
	return 32u << (chunk >> 3);
}

static inline uint64_t ucm_index_memory_mark(uint64_t after_s, uint64_t stamp)
{
	return after_s << UCM_INDEX_MEMORY_STAMP_BITS | stamp;
}

/* The stamp of a mark that holds at that time, of CLOCK_BOOTTIME; or 0. A clock
 * that has gone back, as in a time namespace, makes it older. */
static inline uint64_t
ucm_index_memory_stamp(const struct ucm_index_memory_header *header,
		       uint64_t mark, uint64_t now_s)
{
	uint64_t at_s = header->began_s + (mark >> UCM_INDEX_MEMORY_STAMP_BITS);

	return now_s >= at_s && now_s - at_s < header->reverify_s
		       ? mark & UCM_INDEX_MEMORY_STAMP
		       : 0;
}

static inline void ucm_index_memory_id_words(const struct ucm_id *id,
					     uint64_t out[2])
{
	memcpy(out, id->bytes, 2 * sizeof(*out));
}

/* Ids are hashes already; the space and a multiplication cover names that
 * were counted rather than hashed. */
static inline uint32_t ucm_index_memory_hash(const uint64_t id[2],
					     uint16_t space)
{
	uint64_t x = id[0] ^ (id[1] << 29 | id[1] >> 35) ^ space;

	x *= UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(x ^ x >> 32);
}

/* Linear hashing: the head of a hash's chain, where there are num_heads of
 * them (at least 32). One head more splits one chain. */
static inline uint32_t ucm_index_memory_head(uint32_t hash, uint32_t num_heads)
{
	uint32_t mask = UINT32_MAX >> __builtin_clz(num_heads - 1);
	uint32_t head = hash & mask;

	return head < num_heads ? head : hash & mask >> 1;
}

#endif
