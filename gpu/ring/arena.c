/* SPDX-License-Identifier: Apache-2.0 */
/* arena.c - memory that devices read and write by address; see arena.h. */
#include <config.h>

#include "gpu/ring/arena.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/align.h"
#include "common/log.h"

#define MAX_NODES 1024
#define LONG_BITS (8 * sizeof(long))

bool ucm_arena_has_node(int node)
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
static void arena_prepare(void *memory, size_t len, int node)
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
uint8_t *ucm_arena_map(size_t len, int node, bool *huge_out)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	uint8_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
			       flags | MAP_HUGETLB, -1, 0), *start;

	if (memory != MAP_FAILED)
		arena_prepare(memory, len, node);
	/* had now, or not at all: a pool that runs out later would fail
	 * reads with EFAULT, and kill whoever touches the memory */
	if (memory != MAP_FAILED && madvise(memory, len, MADV_POPULATE_WRITE)) {
		munmap(memory, len);
		memory = MAP_FAILED;
	}
	*huge_out = memory != MAP_FAILED;
	if (*huge_out)
		return memory;
	memory = mmap(NULL, len + UCM_ARENA_PAGE, PROT_READ | PROT_WRITE, flags, -1,
		      0);
	if (memory == MAP_FAILED)
		return NULL;
	start = (uint8_t *)ucm_round_up((uintptr_t)memory, UCM_ARENA_PAGE);
	if (start > memory)
		munmap(memory, (size_t)(start - memory));
	munmap(start + len, (size_t)(memory + UCM_ARENA_PAGE - start));
	arena_prepare(start, len, node);
	*huge_out = !madvise(start, len, MADV_HUGEPAGE);
	return start;
}

void ucm_arena_unmap(uint8_t *memory, size_t len)
{
	munmap(memory, len);
}
