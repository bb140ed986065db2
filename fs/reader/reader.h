/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h - the client's side of the index: what its back ends share.
 *
 * reader.c has the calls of <ucm/index.h> and chooses a back end for each:
 * find.c where the index is mapped (map.c) and has the space, else socket.c. client.c, the calls of
 * <ucm/client.h>, stands below them, and blocks.c, those of <ucm/blocks.h>, beside.
 * Part of libucm; knows the mount and the layout, and nothing of the daemon.
 */
#ifndef UCM_READER_H
#define UCM_READER_H

#include <stdbool.h>
#include <stdint.h>

#include <ucm/client.h>
#include <ucm/index.h>

#include "fs/index/memory_layout.h"
#include "hashing/tree.h"

/* The mapped file. Whatever is in it, no call reads outside of it. */
struct ucm_reader_map {
	int fd;           /* -1: borrowed memory, which does not grow */
	const char *base; /* NULL: not mapped */
	uint64_t len;     /* of the mapping; may reach beyond the file's end */
	uint64_t limit;   /* so many bytes are there */
};

struct ucm_index_reader {
	struct ucm_client *client;
	char folder[UCM_TREE_FOLDER_MAX]; /* the space's */
	struct ucm_reader_map map;
	const char *why;  /* not "map", else NULL */
	bool resolved;    /* the rest holds, as long as names is the map's */
	uint32_t names;
	bool published;   /* the space is in the map, under this number: */
	uint16_t space;
	struct ucm_budget_memory *shared; /* NULL: look-ups are not counted */
	uint64_t hits, misses;            /* that are not yet added there */
};

#define UCM_READER_BATCH 256

/* Everything is as in <ucm/index.h>; bitmaps come zeroed, unknown is given. */
struct ucm_reader_ops {
	const char *name;
	size_t batch; /* ids to ask for at once; UCM_READER_BATCH at most */
	int (*lookup)(struct ucm_index_reader *reader, const struct ucm_id *ids,
		      size_t num, uint64_t *present, uint64_t *unknown);
	int (*entry)(struct ucm_index_reader *reader, const struct ucm_id *id,
		     struct ucm_index_entry *out);
};

/* -ESTALE of its calls: what is published has changed meanwhile. */
extern const struct ucm_reader_ops ucm_reader_map_ops;
extern const struct ucm_reader_ops ucm_reader_socket_ops;

/* Where a block's file lies. */
struct ucm_reader_place {
	uint64_t size;
	uint8_t dir; /* its number in SOURCE */
	/* Of the file whose checksums have all been compared, on this machine
	 * and not too long ago (common/filestamp.h); 0: it is not known. */
	uint64_t verified;
};

/*
 * By the map alone: it never waits for the daemon. -ESTALE: the reader has to be
 * opened anew first; -ENOTCONN: the daemon is gone; -EOPNOTSUPP: the map does
 * not have the space, or there is no map; -EAGAIN: the mount has to be asked, as
 * something is to be looked at before the block is used, or changes just now;
 * -ENOENT: it is not in the map.
 */
int ucm_reader_locate(struct ucm_index_reader *reader, const struct ucm_id *id,
		      struct ucm_reader_place *out);

static inline void ucm_bit_set(uint64_t *bitmap, size_t bit)
{
	bitmap[bit / 64] |= UINT64_C(1) << bit % 64;
}

/* Map the first len bytes of memory that a daemon has given. -EPROTO: it has fewer. */
int ucm_reader_map_memory(int fd, int prot, size_t len, void **out);

/* The same place from any working directory, to free; NULL: errno says why. */
char *ucm_reader_absolute(const char *where);

/* As ucm_client_connect(), of directories (SOURCE of ucmfs(8)): a daemon is started
 * if none serves them. */
int ucm_private_connect(const char *source, struct ucm_client **out);

/* ---- the map ---- */

/* A field of shared memory, and nothing after it before it. */
#define UCM_READ(field) atomic_load_explicit(field, memory_order_acquire)

static inline const struct ucm_index_memory_header *
ucm_reader_header(const struct ucm_reader_map *map)
{
	return (const struct ucm_index_memory_header *)map->base;
}

static inline const struct ucm_index_memory_shard *
ucm_reader_shard(const struct ucm_reader_map *map, unsigned number)
{
	const char *first = map->base + UCM_INDEX_MEMORY_HEADER_BYTES;

	return (const struct ucm_index_memory_shard *)first + number;
}

/*
 * Map the index. fd is the map's on success. -EPROTO: it is none;
 * -EPROTONOSUPPORT: of another version, which is logged; others from mmap(2).
 */
int ucm_reader_map_open(struct ucm_reader_map *map, int fd);
void ucm_reader_map_close(struct ucm_reader_map *map);
/* Take in what the file has grown by: true if it has. base may change. */
bool ucm_reader_map_refresh(struct ucm_reader_map *map);

/* What its header says: the number that changes with the spaces; whether the
 * daemon lives; whether what is not there is absent; how many blocks. */
uint32_t ucm_reader_map_names(const struct ucm_reader_map *map);
bool ucm_reader_map_lives(const struct ucm_reader_map *map);
bool ucm_reader_map_complete(const struct ucm_reader_map *map);
uint64_t ucm_reader_map_blocks(const struct ucm_reader_map *map);

#endif
