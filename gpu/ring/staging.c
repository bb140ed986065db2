/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - the memory between files and pages.
 *
 * The arena is cut into units, of which a map shows the free ones. Slots are
 * few (what is in flight), and mostly of one size, so the search starts where
 * the last one ended and is short.
 */
#include <config.h>

#include "gpu/ring/staging.h"

#include <assert.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/align.h"
#include "common/log.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_POISON 1
#endif
#endif
#ifdef HAVE_POISON
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, len) ((void)(memory), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(memory, len) ((void)(memory), (void)(len))
#endif

#define UNIT UCM_STAGING_UNIT
#define HUGE_PAGE ((size_t)2 << 20)
#define MAX_NODES 1024
#define LONG_BITS (8 * sizeof(long))

enum unit { UNIT_FREE, UNIT_TAKEN, UNIT_LOST };

struct ucm_staging {
	uint8_t *memory;
	size_t len;
	bool huge;
	size_t num_units, num_free, num_lost;
	size_t turn; /* where to search next */
	uint8_t units[]; /* enum unit */
};

bool ucm_staging_has_node(int node)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", node);
	return node >= 0 && node < MAX_NODES && !access(path, F_OK);
}

/*
 * Before its first use. A device writes to this memory by address: if the process
 * forked meanwhile, and copied what it touches next, bytes would land in the copy
 * that is the child's.
 */
static void prepare(void *memory, size_t len, int node)
{
	unsigned long nodes[MAX_NODES / LONG_BITS] = { 0 };

	if (madvise(memory, len, MADV_DONTFORK))
		ucm_warning("staging: MADV_DONTFORK: %m");
	if (node < 0)
		return;
	nodes[(size_t)node / LONG_BITS] |= 1ul << (size_t)node % LONG_BITS;
	/* the kernel reads one bit less than it is told */
	if (syscall(SYS_mbind, memory, len, MPOL_PREFERRED, nodes,
		    MAX_NODES + 1, 0))
		ucm_warning("staging: memory of node %d: %m", node);
}

/* Huge pages from the pool, or those that the kernel makes by itself. */
static uint8_t *map_arena(size_t len, int node, bool *huge_out)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	uint8_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
			       flags | MAP_HUGETLB, -1, 0), *start;

	if (memory != MAP_FAILED)
		prepare(memory, len, node);
	/* had now, or not at all: a pool that runs out later would fail
	 * reads with EFAULT, and kill whoever touches the memory */
	if (memory != MAP_FAILED && madvise(memory, len, MADV_POPULATE_WRITE)) {
		munmap(memory, len);
		memory = MAP_FAILED;
	}
	*huge_out = memory != MAP_FAILED;
	if (*huge_out)
		return memory;
	memory = mmap(NULL, len + HUGE_PAGE, PROT_READ | PROT_WRITE, flags, -1,
		      0);
	if (memory == MAP_FAILED)
		return NULL;
	start = (uint8_t *)ucm_round_up((uintptr_t)memory, HUGE_PAGE);
	if (start > memory)
		munmap(memory, (size_t)(start - memory));
	munmap(start + len, (size_t)(memory + HUGE_PAGE - start));
	prepare(start, len, node);
	*huge_out = !madvise(start, len, MADV_HUGEPAGE);
	return start;
}

int ucm_staging_open(size_t len, int node, struct ucm_staging **out)
{
	struct ucm_staging *staging;

	len = ucm_round_up(len, HUGE_PAGE);
	staging = calloc(1, sizeof(*staging) + len / UNIT);
	if (!staging)
		return -ENOMEM;
	staging->len = len;
	staging->num_units = staging->num_free = len / UNIT;
	staging->memory = map_arena(len, node, &staging->huge);
	if (!staging->memory) {
		ucm_error("staging: %zu bytes: %m", len);
		free(staging);
		return -ENOMEM;
	}
	*out = staging;
	return 0;
}

void ucm_staging_close(struct ucm_staging *staging)
{
	if (!staging)
		return;
	for (size_t i = 0; i < staging->num_units; i++)
		assert(staging->units[i] != UNIT_TAKEN);
	if (!staging->num_lost)
		munmap(staging->memory, staging->len);
	free(staging);
}

uint8_t *ucm_staging_memory(const struct ucm_staging *staging)
{
	return staging->memory;
}

size_t ucm_staging_len(const struct ucm_staging *staging)
{
	return staging->len;
}

bool ucm_staging_is_huge(const struct ucm_staging *staging)
{
	return staging->huge;
}

/* The first place for num units at or after from, or num_units. */
static size_t search(const struct ucm_staging *staging, size_t from, size_t num)
{
	size_t run = 0;

	for (size_t i = from; i < staging->num_units; i++) {
		run = staging->units[i] == UNIT_FREE ? run + 1 : 0;
		if (run == num)
			return i + 1 - num;
	}
	return staging->num_units;
}

/* Will anybody give something back? */
static int no_room(const struct ucm_staging *staging)
{
	return staging->num_free + staging->num_lost < staging->num_units
		       ? -EAGAIN
		       : -EIO;
}

int ucm_staging_get(struct ucm_staging *staging, size_t len,
		    struct ucm_slot *out)
{
	size_t num = (len + UNIT - 1) / UNIT, at;

	if (!len || num > staging->num_units)
		return -EFBIG;
	if (num > staging->num_free)
		return no_room(staging);
	at = search(staging, staging->turn, num);
	if (at == staging->num_units && staging->turn)
		at = search(staging, 0, num);
	if (at == staging->num_units)
		return no_room(staging);
	memset(staging->units + at, UNIT_TAKEN, num);
	staging->num_free -= num;
	staging->turn = at + num == staging->num_units ? 0 : at + num;
	out->memory = staging->memory + at * UNIT;
	out->len = len;
	out->state = UCM_SLOT_HELD;
	return 0;
}

void ucm_staging_put(struct ucm_staging *staging, struct ucm_slot *slot)
{
	size_t at = (size_t)(slot->memory - staging->memory) / UNIT;
	size_t num = (slot->len + UNIT - 1) / UNIT;

	assert(slot->state == UCM_SLOT_HELD || slot->state == UCM_SLOT_LOST);
	if (slot->state == UCM_SLOT_LOST) {
		memset(staging->units + at, UNIT_LOST, num);
		staging->num_lost += num;
	} else {
		memset(staging->units + at, UNIT_FREE, num);
		staging->num_free += num;
	}
	slot->state = UCM_SLOT_FREE;
	slot->memory = NULL;
}

void ucm_slot_move(struct ucm_slot *slot, enum ucm_slot_state from,
		   enum ucm_slot_state to)
{
	assert(slot->state == from);
	slot->state = to;
	if (to == UCM_SLOT_HELD)
		ASAN_UNPOISON_MEMORY_REGION(slot->memory, slot->len);
	else if (to == UCM_SLOT_IO)
		ASAN_POISON_MEMORY_REGION(slot->memory, slot->len);
}

void ucm_slot_copied(struct ucm_slot *slot, bool lost)
{
	ucm_slot_move(slot, UCM_SLOT_COPY,
		      lost ? UCM_SLOT_LOST : UCM_SLOT_HELD);
}

void ucm_slot_let_write(struct ucm_slot *slot)
{
	ASAN_UNPOISON_MEMORY_REGION(slot->memory, slot->len);
}
