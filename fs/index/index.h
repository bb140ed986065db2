/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - which blocks there are, and in which directory each lies.
 *
 * In memory only; filled by the scan, by commits and by probes. It knows
 * nothing of files. All calls may be made from any thread; entries are copied
 * out, so that nothing points into the table.
 *
 * Other processes can map it (memory_layout.h): what names a block and says
 * where it lies is kept in shared memory from the start, so that there is one
 * table and no copy of it. What is added can be seen at once, what is removed
 * cannot be seen any more when the call returns.
 */
#ifndef UCM_FS_INDEX_H
#define UCM_FS_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include <ucm/block.h>

struct ucm_index;
struct ucm_index_memory;

/* A block's name: its hash, in its space. */
struct ucm_key {
	struct ucm_id id;
	uint16_t space;
};

/*
 * A reference to an entry: 24 bits generation, 8 bits shard, 28 bits slot;
 * below 2^60 and never 0. It stays valid until the entry is removed and is
 * never valid for a later entry in the same slot (the generation counts
 * removals; it wraps after 16 million of them in one slot).
 */
typedef uint64_t ucm_ref;

#define UCM_ENTRY_DOUBT 0x1u     /* must pass all checksums before use */
#define UCM_ENTRY_PINNED 0x2u
#define UCM_ENTRY_DUPLICATE 0x4u /* lies in more directories, perhaps */
#define UCM_ENTRY_LEAVING 0x8u   /* its file is being removed */
#define UCM_ENTRY_WRITABLE 0x10u /* its writer still has it open */
#define UCM_ENTRY_SHARED 0x20u   /* and may have it mapped */
#define UCM_ENTRY_UNREAD 0x40u   /* from a snapshot; no header read yet */
/* Its file is to be looked at before it is used. */
#define UCM_ENTRY_UNSURE                                                       \
	(UCM_ENTRY_DOUBT | UCM_ENTRY_LEAVING | UCM_ENTRY_WRITABLE |            \
	 UCM_ENTRY_UNREAD)

struct ucm_entry {
	struct ucm_id id;
	uint64_t size;     /* bytes */
	int64_t mtime_ns;  /* commit time, or what utimensat(2) said later */
	uint32_t blocks;   /* 512-byte units on disk */
	uint32_t atime_s;  /* last use, seconds since the epoch */
	uint32_t uses;     /* opens and touches; 24 bits are kept */
	uint32_t generation;
	uint32_t parent;   /* the index's; 0: it is not known to have one */
	uint32_t children; /* see ucm_index_add() */
	uint16_t space;
	uint8_t dir;	   /* the directory's number (dirs.h) */
	uint8_t copy;      /* 1 + another directory that has it; 0: unknown */
	uint8_t flags;     /* UCM_ENTRY_* */
	bool tier_only;	   /* no lower tier must have a copy */
	uint8_t mark;	   /* what the policy keeps of it (fs/policy), */
	uint8_t wanted;	   /* and how often it was wanted, as that counts */
	uint16_t epoch;    /* when it was committed; see recovery.h */
};

/* Is that directory one of its two places? */
static inline bool ucm_entry_has_place(const struct ucm_entry *entry,
				       unsigned dir)
{
	return dir == entry->dir || dir + 1 == entry->copy;
}

/* The other one, of an entry that has two. */
static inline unsigned ucm_entry_other_place(const struct ucm_entry *entry,
					     unsigned dir)
{
	return dir == entry->dir ? entry->copy - 1u : entry->dir;
}

/* May an entry's block lie in that directory? */
static inline bool ucm_entry_has_dir(const struct ucm_entry *entry,
				     unsigned dir)
{
	return ucm_entry_has_place(entry, dir) ||
	       entry->flags & UCM_ENTRY_DUPLICATE;
}

int ucm_index_new(struct ucm_index **out);
void ucm_index_free(struct ucm_index *index);

/*
 * Add an entry (generation, parent and children are ignored). 0 and its
 * reference, or -EEXIST and the reference of the one that is there, or -ENOMEM,
 * or -EFBIG (a size of 1 TiB or more).
 *
 * A parent is the id of the block before it, in the same space (NULL: none). An
 * entry has one parent, the first that it was given; one that is there already
 * (-EEXIST) and has none gets this one.
 *
 * children is the number of entries whose parent is this name, whether or not
 * it is the name of an entry itself: they may come before it, stay when it is
 * removed, and are counted when it comes again. It is never too small; it is
 * too large while such an entry is just being added or removed. A block whose
 * header has not been read, or names no parent, is nobody's child: so what a
 * scan has not reached yet is missing, and bare blocks always are. Names that
 * are each other's parents, which no hash makes, have no leaf.
 */
int ucm_index_add(struct ucm_index *index, const struct ucm_entry *entry,
		  const struct ucm_id *parent, ucm_ref *ref_out);

/* Give an entry a parent, if it has none. -ENOENT: it is gone; -ENOMEM. */
int ucm_index_set_parent(struct ucm_index *index, ucm_ref ref,
			 const struct ucm_id *parent);

/* The id of an entry's parent; false: none is known, or the entry is gone. */
bool ucm_index_parent(struct ucm_index *index, ucm_ref ref,
		      struct ucm_id *out);

/* By name or by reference: true and a copy. Either output may be NULL. */
bool ucm_index_find(struct ucm_index *index, const struct ucm_key *key,
		    struct ucm_entry *out, ucm_ref *ref_out);
bool ucm_index_get(struct ucm_index *index, ucm_ref ref,
		   struct ucm_entry *out);

/*
 * Where an entry is in the table: what remains of a reference without its
 * generation. It fits in 32 bits, and means another entry, or none, once the
 * entry has been removed. So does entry.parent - 1, for the entry of that name.
 */
static inline uint32_t ucm_ref_place(ucm_ref ref)
{
	return (uint32_t)(ref >> 28 & 0xff) << 24 | (uint32_t)(ref & 0xffffff);
}

/* The entry at such a place: true, its reference and a copy. */
bool ucm_index_at(struct ucm_index *index, uint32_t place,
		  struct ucm_entry *out, ucm_ref *ref_out);

/* Change an entry in place, under its lock: edit() must be short and must not
 * touch id, space, generation, parent or children. False if the reference is
 * stale, or if the new size is too big: then nothing is changed. */
bool ucm_index_edit(struct ucm_index *index, ucm_ref ref,
		    void (*edit)(struct ucm_entry *entry, void *arg),
		    void *arg);

/* Set or clear a flag; true if that changed the entry. */
bool ucm_index_flag(struct ucm_index *index, ucm_ref ref, uint8_t flag,
		    bool on);

/*
 * Mark an entry: its file, the one of that stamp (common/filestamp.h) in that
 * directory, has passed all its checksums just now. The mark goes with the entry,
 * when its file is another one or elsewhere, and when anything is uncertain
 * about it (UCM_ENTRY_UNSURE). -ENOENT: it is gone, or elsewhere; -EAGAIN: it is
 * uncertain; -EOPNOTSUPP: nobody can see it; -ENOMEM.
 */
int ucm_index_mark(struct ucm_index *index, ucm_ref ref, unsigned dir,
		   uint64_t stamp);

/* Take its mark away, if it has one. */
void ucm_index_unmark(struct ucm_index *index, ucm_ref ref);

/* How many have one; some may be too old to hold. */
uint64_t ucm_index_marked(struct ucm_index *index);

/* Take an entry out: true and its last state, or false if it was gone. */
bool ucm_index_remove(struct ucm_index *index, ucm_ref ref,
		      struct ucm_entry *out);

#define UCM_ANY_SPACE -1

/*
 * The entries of one bucket of one space or any, in no order. *cursor is 0 to
 * begin with; false at the end. Entries added or removed meanwhile may or may
 * not be seen; all others are seen exactly once.
 */
bool ucm_index_next(struct ucm_index *index, int space, unsigned bucket,
		    uint32_t *cursor, struct ucm_entry *out, ucm_ref *ref_out);

/*
 * A piece of a shard, of all spaces: visit() is called under the shard's lock
 * for the entries in the next UCM_INDEX_PIECE slots, must be short, and returns
 * true if it has changed the entry (as edit() may). *cursor is 0 to begin with;
 * false at the end. Which entries are seen: as above.
 */
#define UCM_INDEX_PIECE 256
bool ucm_index_walk(struct ucm_index *index, unsigned shard, uint32_t *cursor,
		    bool (*visit)(struct ucm_entry *entry, ucm_ref ref,
				  void *arg),
		    void *arg);

/* Bytes of memory that the index takes. */
uint64_t ucm_index_memory(struct ucm_index *index);

/* ---- for others to map ---- */

/* The memory; the index's own, as long as it lives. */
struct ucm_index_memory *ucm_index_live(struct ucm_index *index);

/*
 * Take a space out of what others can see: entries that are there, and those
 * to come. There is no way back before the next index. -ENOMEM: some are still
 * seen, and is_published says false all the same.
 */
int ucm_index_hide(struct ucm_index *index, uint16_t space);
bool ucm_index_is_published(const struct ucm_index *index, uint16_t space);

#endif
