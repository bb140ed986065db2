/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - counters of the store; each is added to from any thread.
 *
 * They stand in .ucmfs/stats.json and .ucmfs/metrics; what is added to these
 * tables appears in both.
 */
#ifndef UCM_STATS_H
#define UCM_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include <ucm/block.h>

/* name, what it counts */
#define UCM_STATS(X)                                                          \
	X(lookups, "blocks looked up: names, calls, and in the mapped index")  \
	X(hits, "lookups that found a block")                                 \
	X(misses, "lookups that found none")                                  \
	X(probes, "lookups that had to ask a directory")                      \
	X(opens, "blocks opened for reading")                                 \
	X(offers, "blocks whose admission was asked for")                     \
	X(offers_refused, "blocks that were not admitted")                    \
	X(commits, "blocks committed")                                        \
	X(commit_duplicates, "commits of a block that was there already")     \
	X(commit_refused, "files refused at commit as wrong")                 \
	X(commit_failed, "commits that failed on the tier")                   \
	X(dropped, "unfinished files dropped at release")                     \
	X(removed, "blocks unlinked")                                         \
	X(quarantined, "torn or damaged blocks moved aside")                  \
	X(strays, "files in buckets that are not blocks")                     \
	X(misfits, "blocks of another geometry than their space's")           \
	X(vanished, "blocks that disappeared without the daemon")              \
	X(doubts_settled, "suspect blocks that were found good")              \
	X(checkpoints, "syncfs checkpoints")                                  \
	X(rescanned, "buckets read again by a rescan")

/* The same of each tier. Bytes are the sizes of whole blocks: whoever reads
 * them reads past the daemon. */
#define UCM_TIER_STATS(X)                                                     \
	X(opens, "blocks opened for reading")                                 \
	X(opened_bytes, "sizes of blocks opened for reading")                 \
	X(commits, "blocks committed")                                        \
	X(committed_bytes, "sizes of blocks committed")                       \
	X(removed, "blocks unlinked")                                         \
	X(removed_bytes, "sizes of blocks unlinked")                          \
	X(files_opened, "files of files/ opened, the first time at once")     \
	X(files_created, "files made in files/")                              \
	X(files_removed, "files of files/ unlinked or replaced")              \
	X(promoted, "blocks copied to it because they are used")              \
	X(promoted_bytes, "sizes of blocks copied to it")                     \
	X(promotions_refused, "blocks not promoted: next to leave")           \
	X(demoted, "blocks that left it for a lower tier")                    \
	X(demoted_bytes, "sizes of blocks that left it for a lower tier")     \
	X(written_below, "blocks copied from it to a lower tier")             \
	X(flush_refused, "blocks that a flush left there: no room below")     \
	X(moves_refused, "blocks not moved to it, for its endurance")         \
	X(evicted, "blocks evicted from it to make room")                     \
	X(evicted_bytes, "sizes of blocks evicted from it")                   \
	X(read_bytes, "bytes read through the daemon, without passthrough")   \
	X(written_bytes, "bytes written through it")

#define UCM_ERRNOS 134 /* Linux's own, and 0 for all others */

#define UCM_STATS_FIELD(name, help) _Atomic uint64_t name;

struct ucm_tier_stats {
	UCM_TIER_STATS(UCM_STATS_FIELD)
	_Atomic uint64_t errors[UCM_ERRNOS]; /* failed calls, by errno */
};

struct ucm_stats {
	UCM_STATS(UCM_STATS_FIELD)
	/* by cause; they add up to commit_refused and quarantined */
	_Atomic uint64_t refused_for[UCM_FAULT_COUNT];
	_Atomic uint64_t quarantined_for[UCM_FAULT_COUNT];
};

#undef UCM_STATS_FIELD

/* A fault in a word; "in_the_way" (NONE): a file had a block's name. */
extern const char *const ucm_cause_names[UCM_FAULT_COUNT];

static inline void ucm_count(_Atomic uint64_t *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static inline void ucm_count_more(_Atomic uint64_t *counter, uint64_t more)
{
	atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static inline uint64_t ucm_counted(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* In a table of UCM_ERRNOS; err is -errno. */
static inline void ucm_count_errno(_Atomic uint64_t *counters, int err)
{
	ucm_count(&counters[-err > 0 && -err < UCM_ERRNOS ? -err : 0]);
}

#endif
