/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - a sealed memory file that grows.
 *
 * It is mapped once, far beyond its end. Growing allocates the pages, so that
 * want of memory is an error here and not a SIGBUS in the middle of a chain;
 * and there are no holes, which a reader could make the kernel fill. Where there
 * can be no such file it is ordinary memory, and nobody else's business.
 */
#include <config.h>

#include "fs/index/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/align.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

#define RESERVE_MOST (UINT64_C(1) << 36)
#define RESERVE_LEAST (UINT64_C(1) << 30)
#define STEP (UINT64_C(64) << 10) /* the file grows by this */

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* A limit on the size of files holds for memory files, too, and comes with a
 * signal that kills. */
static int new_file(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY)
		return -EFBIG;
	return ucm_os_memory_file("ucmfs-index");
}

/* Less where the process may not have so many addresses. */
static int reserve(struct ucm_index_memory *live)
{
	int kind = live->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	int err = -ENOMEM;

	for (uint64_t size = RESERVE_MOST; size >= RESERVE_LEAST; size /= 2) {
		void *base = mmap(NULL, size, PROT_READ | PROT_WRITE,
				  kind | MAP_NORESERVE, live->fd, 0);

		if (base != MAP_FAILED) {
			live->base = base;
			live->reserve = size;
			return 0;
		}
		err = -errno;
	}
	return err;
}

/* After the mapping: it is the last one that can be written to. Before
 * Linux 5.1 nothing but the permissions of the mount keeps others out. */
static int seal(int fd)
{
	if (fd < 0)
		return 0;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE) &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		return -errno;
	return 0;
}

static int grow(struct ucm_index_memory *live, uint64_t size)
{
	int err;

	size = ucm_round_up(size, STEP);
	err = size <= live->reserve ? 0 : -ENOMEM;
	if (!err && live->fd >= 0)
		err = ucm_os_fallocate(live->fd, 0, (off_t)live->size,
				       (off_t)(size - live->size));
	if (err && !live->starved)
		ucm_error("index: no memory for more blocks: %s",
			  strerror(-err));
	live->starved = err;
	if (err)
		return -ENOMEM;
	live->size = size;
	return 0;
}

static int write_header(struct ucm_index_memory *live)
{
	struct ucm_index_memory_header *header = ucm_index_memory_header(live);

	if (getrandom(header->instance, sizeof(header->instance), 0) !=
	    sizeof(header->instance))
		return -EIO;
	memcpy(header->magic, UCM_INDEX_MEMORY_MAGIC, sizeof(header->magic));
	header->version = UCM_INDEX_MEMORY_VERSION;
	header->header_bytes = UCM_INDEX_MEMORY_HEADER_BYTES;
	header->shard_bytes = sizeof(struct ucm_index_memory_shard);
	header->record_bytes = sizeof(struct ucm_index_memory_record);
	header->began_s = ucm_boottime_s();
	atomic_store(&header->size, live->size);
	return 0;
}

int ucm_index_memory_init(struct ucm_index_memory *live)
{
	int err;

	*live = (struct ucm_index_memory){
		.used = UCM_INDEX_MEMORY_FIXED_BYTES
	};
	live->fd = new_file();
	if (live->fd < 0) {
		ucm_info("index: other processes cannot map it: %s",
			 strerror(-live->fd));
		live->fd = -1;
	}
	pthread_mutex_init(&live->lock, NULL);
	err = reserve(live);
	if (!err)
		err = grow(live, live->used);
	if (!err)
		err = seal(live->fd);
	if (!err)
		err = write_header(live);
	if (err)
		ucm_index_memory_fini(live);
	return err;
}

void ucm_index_memory_fini(struct ucm_index_memory *live)
{
	ucm_lifeline_release(&live->line);
	if (live->base)
		munmap(live->base, live->reserve);
	if (live->fd >= 0)
		close(live->fd);
	pthread_mutex_destroy(&live->lock);
}

struct ucm_index_memory_shard *
ucm_index_memory_shard(struct ucm_index_memory *live, unsigned number)
{
	char *first = live->base + UCM_INDEX_MEMORY_HEADER_BYTES;

	return (struct ucm_index_memory_shard *)first + number;
}

int ucm_index_memory_take(struct ucm_index_memory *live, uint64_t bytes,
			  uint32_t *unit_out)
{
	uint64_t end;
	int err = 0;

	pthread_mutex_lock(&live->lock);
	end = live->used + ucm_round_up(bytes, UCM_INDEX_MEMORY_UNIT);
	if (end > live->size) {
		err = grow(live, end);
		/* before there is anything that lies in there */
		atomic_store_explicit(&ucm_index_memory_header(live)->size,
				      live->size, memory_order_release);
	}
	if (!err) {
		*unit_out = (uint32_t)(live->used / UCM_INDEX_MEMORY_UNIT);
		live->used = end;
	}
	pthread_mutex_unlock(&live->lock);
	return err;
}

uint64_t ucm_index_memory_size(struct ucm_index_memory *live)
{
	uint64_t size;

	pthread_mutex_lock(&live->lock);
	size = live->size;
	pthread_mutex_unlock(&live->lock);
	return size;
}

/* ---- what readers see ---- */

int ucm_index_memory_serve(struct ucm_index_memory *live)
{
	return ucm_lifeline_hold(&live->line,
				 &ucm_index_memory_header(live)->alive);
}

void ucm_index_memory_unserve(struct ucm_index_memory *live)
{
	atomic_fetch_or(&ucm_index_memory_header(live)->state,
			UCM_INDEX_MEMORY_CLOSED);
	ucm_lifeline_release(&live->line);
}

void ucm_index_memory_name_tier(struct ucm_index_memory *live, unsigned dir,
				unsigned tier, const char *name)
{
	struct ucm_index_memory_header *header = ucm_index_memory_header(live);

	atomic_store(&header->tier_of[dir], (uint8_t)tier);
	snprintf(header->tiers[tier], UCM_INDEX_MEMORY_TIER_NAME, "%s", name);
	if (header->num_tiers <= tier)
		header->num_tiers = tier + 1;
}

void ucm_index_memory_set_reverify(struct ucm_index_memory *live,
				   uint32_t seconds)
{
	ucm_index_memory_header(live)->reverify_s = seconds;
}

void ucm_index_memory_set_complete(struct ucm_index_memory *live)
{
	atomic_fetch_or(&ucm_index_memory_header(live)->state,
			UCM_INDEX_MEMORY_COMPLETE);
}

void ucm_index_memory_names_changed(struct ucm_index_memory *live)
{
	atomic_fetch_add(&ucm_index_memory_header(live)->names, 1);
}
