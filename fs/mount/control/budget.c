/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.c - the memory in which the loaders of the node keep the rate that the
 * setting budget gives them, and clients count what they look up in the index.
 *
 * The daemon makes it, and hands it out by its socket; what is in there is the
 * clients'. It cannot be made shorter, which would kill whoever
 * has mapped it, and the daemon relies on nothing in it: what it reads is
 * counted in statistics, as it is.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <string.h>
#include <sys/mman.h>

#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/budget_layout.h"

#define COUNT_MOST (UINT64_C(1) << 48)

void ucm_iobudget_memory_open(struct ucm_daemon *daemon)
{
	void *shared;

	daemon->budget_fd =
		ucm_os_memory_of("ucmfs-budget", UCM_CONTROL_BUDGET_BYTES);
	if (daemon->budget_fd < 0) {
		ucm_warning("budget: no memory to share: %s; each loader takes "
			    "all of the rate, and look-ups are not counted",
			    strerror(-daemon->budget_fd));
		return;
	}
	shared = mmap(NULL, sizeof(*daemon->shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED, daemon->budget_fd, 0);
	if (shared == MAP_FAILED)
		ucm_warning("budget: mmap: %m; look-ups are not counted");
	else
		daemon->shared = shared;
}

void ucm_iobudget_memory_close(struct ucm_daemon *daemon)
{
	if (daemon->shared)
		munmap(daemon->shared, sizeof(*daemon->shared));
	if (daemon->budget_fd >= 0)
		ucm_os_close(daemon->budget_fd);
}

uint64_t ucm_iobudget_bytes(const struct ucm_daemon *daemon)
{
	return daemon->shared ? atomic_load(&daemon->shared->bytes) : 0;
}

/* Larger than that, it is nonsense that a client has written. */
static uint64_t take(_Atomic uint64_t *count)
{
	uint64_t taken = atomic_exchange(count, 0);

	return taken < COUNT_MOST ? taken : 0;
}

void ucm_iobudget_count_lookups(struct ucm_daemon *daemon)
{
	struct ucm_stats *stats = &daemon->store->stats;
	struct ucm_budget_memory *shared = daemon->shared;
	uint64_t hits = shared ? take(&shared->hits) : 0;
	uint64_t misses = shared ? take(&shared->misses) : 0;

	ucm_count_more(&stats->lookups, hits + misses);
	ucm_count_more(&stats->hits, hits);
	ucm_count_more(&stats->misses, misses);
}
