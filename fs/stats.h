/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h - counters of the store; each is added to from any thread. */
#ifndef UCM_STATS_H
#define UCM_STATS_H

#include <stdatomic.h>
#include <stdint.h>

/* name, what it counts */
#define UCM_STATS(X)                                                          \
	X(lookups, "names of blocks asked for")                               \
	X(hits, "lookups that found a block")                                 \
	X(misses, "lookups that found none")                                  \
	X(probes, "lookups that had to ask a directory")                      \
	X(opens, "blocks opened for reading")                                 \
	X(commits, "blocks committed")                                        \
	X(commit_duplicates, "commits of a block that was there already")     \
	X(commit_refused, "files refused at commit as wrong")                 \
	X(commit_failed, "commits that failed on the tier")                   \
	X(dropped, "unfinished files dropped at release")                     \
	X(removed, "blocks unlinked")                                         \
	X(quarantined, "torn or damaged blocks moved aside")                  \
	X(strays, "files in buckets that are not blocks")                     \
	X(misfits, "blocks of another geometry than their space's")           \
	X(vanished, "blocks that disappeared behind the daemon")              \
	X(doubts_settled, "blocks checked after an unclean stop")             \
	X(checkpoints, "syncfs checkpoints")                                  \
	X(io_errors, "failed calls on backing directories")

struct ucm_stats {
#define UCM_STATS_FIELD(name, help) _Atomic uint64_t name;
	UCM_STATS(UCM_STATS_FIELD)
#undef UCM_STATS_FIELD
};

static inline void ucm_count(_Atomic uint64_t *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

#endif
