/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - the index, mapped, as far as it has grown.
 *
 * How long the file is, only the file itself is believed. One that shrank below
 * us would be fatal; the daemon's is sealed against it.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/lifeline.h"
#include "common/log.h"

#define SIZE_MOST (UINT64_C(1) << 40)
#define POPULATE_MOST (UINT64_C(1) << 30)

/* Of another version nothing is known but where it says so. */
static int check_header(const struct ucm_index_memory_header *header)
{
	if (memcmp(header->magic, UCM_INDEX_MEMORY_MAGIC,
		   sizeof(header->magic)) != 0)
		return -EPROTO;
	if (header->version != UCM_INDEX_MEMORY_VERSION) {
		ucm_warning("the index has version %u, and this library reads "
			    "version %u: the daemon is asked instead",
			    header->version, UCM_INDEX_MEMORY_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (header->header_bytes != UCM_INDEX_MEMORY_HEADER_BYTES ||
	    header->shard_bytes != sizeof(struct ucm_index_memory_shard) ||
	    header->record_bytes != sizeof(struct ucm_index_memory_record) ||
	    header->num_tiers > UCM_INDEX_MEMORY_TIERS)
		return -EPROTO;
	return 0;
}

/* fstat(2) says what the daemon says; this asks the file itself. */
static bool reaches(int fd, uint64_t size)
{
	char byte;

	return size && pread(fd, &byte, 1, (off_t)size - 1) == 1;
}

/* Page tables now, not under the first look-ups. */
static void populate(const struct ucm_reader_map *map, uint64_t from)
{
#ifdef MADV_POPULATE_READ
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t len;

	from &= ~(page - 1);
	len = map->limit - from;
	madvise((char *)map->base + from,
		len < POPULATE_MOST ? len : POPULATE_MOST, MADV_POPULATE_READ);
#else
	(void)map, (void)from;
#endif
}

/* Twice as much as there is, so that it need not be mapped anew each time the
 * file grows. */
int ucm_reader_map_open(struct ucm_reader_map *map, int fd)
{
	struct stat st;
	uint64_t size;
	void *base;
	int err;

	if (fstat(fd, &st))
		return -errno;
	size = (uint64_t)st.st_size;
	if (!S_ISREG(st.st_mode) || size < sizeof(struct ucm_index_memory_header) ||
	    size > SIZE_MOST || !reaches(fd, size))
		return -EPROTO;
	base = mmap(NULL, 2 * size, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	err = check_header(base);
	if (!err && size < UCM_INDEX_MEMORY_FIXED_BYTES)
		err = -EPROTO;
	if (err) {
		munmap(base, 2 * size);
		return err;
	}
	*map = (struct ucm_reader_map){
		.fd = fd, .base = base, .len = 2 * size, .limit = size,
	};
	populate(map, 0);
	return 0;
}

void ucm_reader_map_close(struct ucm_reader_map *map)
{
	if (map->base && map->fd >= 0) {
		munmap((void *)map->base, map->len);
		close(map->fd);
	}
	map->base = NULL;
}

bool ucm_reader_map_refresh(struct ucm_reader_map *map)
{
	uint64_t size = UCM_READ(&ucm_reader_header(map)->size);
	uint64_t before = map->limit;
	void *base;

	if (map->fd < 0 || size <= map->limit || size > SIZE_MOST ||
	    !reaches(map->fd, size))
		return false;
	if (size > map->len) {
		base = mremap((void *)map->base, map->len, 2 * size,
			      MREMAP_MAYMOVE);
		if (base == MAP_FAILED)
			return false;
		map->base = base;
		map->len = 2 * size;
	}
	map->limit = size;
	populate(map, before);
	return true;
}

uint32_t ucm_reader_map_names(const struct ucm_reader_map *map)
{
	return UCM_READ(&ucm_reader_header(map)->names);
}

bool ucm_reader_map_lives(const struct ucm_reader_map *map)
{
	const struct ucm_index_memory_header *header = ucm_reader_header(map);

	return ucm_lifeline_lives(UCM_READ(&header->alive)) &&
	       !(UCM_READ(&header->state) & UCM_INDEX_MEMORY_CLOSED);
}

bool ucm_reader_map_complete(const struct ucm_reader_map *map)
{
	return UCM_READ(&ucm_reader_header(map)->state) &
	       UCM_INDEX_MEMORY_COMPLETE;
}

uint64_t ucm_reader_map_blocks(const struct ucm_reader_map *map)
{
	uint64_t blocks = 0;

	for (unsigned i = 0; i < UCM_INDEX_MEMORY_SHARDS; i++)
		blocks += UCM_READ(&ucm_reader_shard(map, i)->count);
	return blocks;
}
