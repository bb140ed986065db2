/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - .ucmfs/metrics: the mount's state for Prometheus.
 *
 * Anyone who may use the mount can read it, so it names tiers, but has no paths
 * and no names of spaces. Series that there can be are there from the start, with
 * the value 0; only errnos come as they happen. Several mounts of one machine may
 * be scraped together: each sample names its mount.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "fs/medium/shared/hosts.h"
#include "fs/store/endurance.h"
#include "fs/store/jobs.h"
#include "fs/store/pressure.h"
#include "fs/store/quota.h"
#include "fs/watch/promtext.h"

#define NS 1e-9

#define LABELS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const char *errno_name(unsigned error)
{
	const char *name = error ? strerrorname_np((int)error) : NULL;

	return name ? name : "other";
}

/* ---- families ---- */

static void put_gauge(struct ucm_prom *prom, const char *name,
		      const char *help, uint64_t value)
{
	ucm_prom_family(prom, name, "gauge", help);
	ucm_prom_u64(prom, NULL, value);
}

static void put_counter(struct ucm_prom *prom, const char *name,
			const char *help, uint64_t value)
{
	ucm_prom_family(prom, name, "counter", help);
	ucm_prom_u64(prom, NULL, value);
}

static void put_by_cause(struct ucm_prom *prom, const char *name,
			 const char *help, const _Atomic uint64_t *counters,
			 enum ucm_fault first)
{
	ucm_prom_family(prom, name, "counter", help);
	for (unsigned i = first; i < UCM_FAULT_COUNT; i++)
		ucm_prom_u64(prom, LABELS("cause", ucm_cause_names[i]),
			     ucm_counted(&counters[i]));
}

/* What one table of stats.h has; two of them show their causes instead. */
static void put_counters(struct ucm_prom *prom, const struct ucm_stats *stats)
{
#define PUT(name, help)                                                       \
	if (strcmp(#name, "commit_refused") && strcmp(#name, "quarantined"))  \
		put_counter(prom, "ucmfs_" #name "_total", help,              \
			    ucm_counted(&stats->name));
	UCM_STATS(PUT)
#undef PUT
	put_by_cause(prom, "ucmfs_commit_refused_total",
		     "files refused at commit as wrong, by cause",
		     stats->refused_for, UCM_FAULT_SHORT);
	put_by_cause(prom, "ucmfs_quarantined_total",
		     "torn and damaged blocks moved aside, by cause",
		     stats->quarantined_for, UCM_FAULT_NONE);
}

static void put_mount(struct ucm_prom *prom, struct ucm_daemon *daemon)
{
	ucm_prom_family(prom, "ucmfs_build_info", "gauge",
			"version of the daemon, and of libfuse");
	ucm_prom_u64(prom, LABELS("version", PACKAGE_VERSION, "libfuse",
				  fuse_pkgversion()), 1);
	ucm_prom_family(prom, "ucmfs_start_time_seconds", "gauge",
			"when it was mounted, since the epoch");
	ucm_prom_double(prom, NULL, (double)ucm_time_ns(&daemon->started) * NS);
	put_gauge(prom, "ucmfs_passthrough",
		  "1: the kernel reads and writes files itself",
		  atomic_load(&daemon->passthrough));
	put_gauge(prom, "ucmfs_io_uring", "1: requests come over io_uring",
		  daemon->uring);
}

static void put_index(struct ucm_prom *prom, struct ucm_store *store)
{
	uint64_t spaces = 0, unsaved, bytes;

	for (unsigned i = 0; i < store->names.num; i++)
		spaces += !!ucm_namespace_get(&store->names, i);
	put_gauge(prom, "ucmfs_index_blocks", "blocks known",
		  atomic_load(&store->blocks));
	put_gauge(prom, "ucmfs_index_doubtful_blocks",
		  "suspect blocks, to be verified before use",
		  atomic_load(&store->doubts));
	put_gauge(prom, "ucmfs_open_blocks", "blocks that are open",
		  ucm_store_count_open(store));
	put_gauge(prom, "ucmfs_index_memory_bytes", "memory of the index",
		  ucm_index_memory(store->index));
	put_gauge(prom, "ucmfs_index_complete",
		  "1: every directory has been read, so what is not known is "
		  "absent",
		  atomic_load(&store->scan.complete));
	ucm_jobs_count_unsaved(store, &unsaved, &bytes);
	put_gauge(prom, "ucmfs_unsaved_blocks",
		  "blocks that must still be copied to a lower tier", unsaved);
	put_gauge(prom, "ucmfs_unsaved_bytes", "what these take on disk", bytes);
	put_gauge(prom, "ucmfs_spaces", "spaces, the default one included",
		  spaces);
}

/* ---- tiers ---- */

/* What each tier is asked for once. */
struct space {
	uint64_t total, available;
	double limit;
};

static void measure_tiers(const struct ucm_store *store, struct space *out)
{
	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		const struct ucm_tier *tier = &store->dirs.tiers[i];
		uint64_t limit = ucm_tier_limit_bytes(tier);

		ucm_tier_space(tier, &out[i].total, &out[i].available);
		out[i].limit = limit == UINT64_MAX ? (double)INFINITY
						   : (double)limit;
	}
}

#define for_each_tier(tier, store)                                             \
	for (const struct ucm_tier *tier = (store)->dirs.tiers;                \
	     tier < (store)->dirs.tiers + (store)->dirs.num_tiers; tier++)

static void put_tier_space(struct ucm_prom *prom, const struct ucm_store *store,
			   const struct space *spaces)
{
	ucm_prom_family(prom, "ucmfs_tier_size_bytes", "gauge",
			"size of the tier's file systems, within its limit");
	for_each_tier(tier, store)
		ucm_prom_u64(prom, LABELS("tier", tier->name),
			     spaces[tier - store->dirs.tiers].total);
	ucm_prom_family(prom, "ucmfs_tier_free_bytes", "gauge",
			"free room, within the limit");
	for_each_tier(tier, store)
		ucm_prom_u64(prom, LABELS("tier", tier->name),
			     spaces[tier - store->dirs.tiers].available);
	ucm_prom_family(prom, "ucmfs_tier_limit_bytes", "gauge",
			"most that the tier's blocks and files may take");
	for_each_tier(tier, store)
		ucm_prom_double(prom, LABELS("tier", tier->name),
				spaces[tier - store->dirs.tiers].limit);
	ucm_prom_family(prom, "ucmfs_tier_used_bytes", "gauge",
			"what the tier's blocks and files take on disk");
	for_each_tier(tier, store) ucm_prom_u64(
		prom, LABELS("tier", tier->name), ucm_tier_used(tier));
	ucm_prom_family(prom, "ucmfs_tier_writing_bytes", "gauge",
			"room promised to files being written");
	for_each_tier(tier, store) ucm_prom_u64(
		prom, LABELS("tier", tier->name), atomic_load(&tier->writing));
}

#define for_each_dir(dir, store)                                               \
	for (unsigned dir = 0; dir < (store)->dirs.num; dir++)

static void put_dir_gauge(struct ucm_prom *prom, const struct ucm_store *store,
			  unsigned dir, double value)
{
	char number[12];

	snprintf(number, sizeof(number), "%u", dir);
	ucm_prom_double(prom,
			LABELS("tier", store->dirs.tier_of[dir]->name,
			       "directory", number),
			value);
}

static void put_endurance(struct ucm_prom *prom, struct ucm_store *store)
{
	ucm_prom_family(prom, "ucmfs_tier_endurance_bytes", "gauge",
			"bytes that may be written to the tier in a day");
	for_each_tier(tier, store)
	{
		uint64_t bytes = store->config
					 ->tiers[tier - store->dirs.tiers]
					 .endurance;

		ucm_prom_double(prom, LABELS("tier", tier->name),
				bytes ? (double)bytes : (double)INFINITY);
	}
	ucm_prom_family(prom, "ucmfs_tier_endurance_owed_seconds", "gauge",
			"how far writes are ahead of that budget; from 3600 "
			"on only what must be written is");
	for_each_tier(tier, store)
		ucm_prom_u64(prom, LABELS("tier", tier->name),
			     (uint64_t)(ucm_endurance_owed(store, tier) *
					3600));
}

/* By the number of the directory, from 0 in the order of SOURCE: its path is
 * not for everyone. */
static void put_dir_motion(struct ucm_prom *prom, const struct ucm_store *store)
{
	ucm_prom_family(prom, "ucmfs_directory_withheld_blocks", "gauge",
			"blocks that no other directory has, pinned to the tier by its "
			"endurance");
	for_each_dir(dir, store) put_dir_gauge(
		prom, store, dir,
		(double)atomic_load(&store->dirs.at[dir]->withheld));
	ucm_prom_family(prom, "ucmfs_directory_pressure_bytes", "gauge",
			"bytes above its high mark, which must leave");
	for_each_dir(dir, store) put_dir_gauge(
		prom, store, dir, (double)ucm_pressure(store, dir));
	ucm_prom_family(prom, "ucmfs_directory_daemons", "gauge",
			"daemons that share it, this one too; 1 if it is not "
			"shared");
	for_each_dir(dir, store) put_dir_gauge(
		prom, store, dir, ucm_hosts_living(store->dirs.at[dir]));
}

static void put_tier_state(struct ucm_prom *prom, const struct ucm_store *store)
{
	ucm_prom_family(prom, "ucmfs_tier_directories", "gauge",
			"the tier's directories by state: good; set aside "
			"after an error; unreadable; a sync failed; "
			"unresponsive; taken over");
	for_each_tier(tier, store)
	{
		unsigned num[UCM_DIR_STATES] = { 0 };

		for (unsigned i = 0; i < tier->num_dirs; i++)
			num[ucm_medium_state(tier->dirs[i])]++;
		for (unsigned i = 0; i < UCM_DIR_STATES; i++)
			ucm_prom_u64(prom, LABELS("tier", tier->name, "state",
						  ucm_dir_states[i]), num[i]);
	}
}

static void put_tier_counters(struct ucm_prom *prom,
			      const struct ucm_store *store)
{
#define PUT(field, help)                                                       \
	ucm_prom_family(prom, "ucmfs_tier_" #field "_total", "counter", help); \
	for_each_tier(tier, store)                                             \
		ucm_prom_u64(prom, LABELS("tier", tier->name),                 \
			     ucm_counted(&tier->stats.field));
	UCM_TIER_STATS(PUT)
#undef PUT
	ucm_prom_family(prom, "ucmfs_tier_errors_total", "counter",
			"failed calls on the tier's directories, by errno");
	for_each_tier(tier, store)
	{
		for (unsigned i = 0; i < UCM_ERRNOS; i++) {
			uint64_t num = ucm_counted(&tier->stats.errors[i]);

			if (num)
				ucm_prom_u64(prom, LABELS("tier", tier->name,
							  "errno",
							  errno_name(i)),
					     num);
		}
	}
}

static void put_tiers(struct ucm_prom *prom, struct ucm_store *store)
{
	struct space spaces[UCM_MAX_DIRS];

	measure_tiers(store, spaces);
	put_tier_space(prom, store, spaces);
	put_dir_motion(prom, store);
	put_tier_state(prom, store);
	put_endurance(prom, store);
	put_tier_counters(prom, store);
}

/* ---- marked folders of files/ ---- */

#define for_each_mark(mark, marks, num)                                        \
	for (const struct ucm_files_mark_info *mark = (marks);                 \
	     mark < (marks) + (num); mark++)

static void put_mark(struct ucm_prom *prom,
		     const struct ucm_files_mark_info *mark, uint64_t value)
{
	char number[24];

	snprintf(number, sizeof(number), "%llu",
		 (unsigned long long)mark->number);
	ucm_prom_u64(prom, LABELS("folder", number), value);
}

/* By the number of the folder: names of folders are not for everyone. */
static void put_quotas(struct ucm_prom *prom, struct ucm_files_tree *tree)
{
	struct ucm_files_mark_info *marks;
	size_t num = ucm_files_marks(tree, &marks);

	ucm_prom_family(prom, "ucmfs_folder_quota_bytes", "gauge",
			"quota of a folder of files/");
	for_each_mark(mark, marks, num) put_mark(prom, mark, mark->quota);
	ucm_prom_family(prom, "ucmfs_folder_used_bytes", "gauge",
			"what its files take on disk");
	for_each_mark(mark, marks, num) put_mark(prom, mark, mark->used);
	ucm_prom_family(prom, "ucmfs_folder_files_evicted_total", "counter",
			"files removed for the quota of their folder");
	for_each_mark(mark, marks, num)
		put_mark(prom, mark, mark->files_evicted);
	ucm_prom_family(prom, "ucmfs_folder_files_refused_total", "counter",
			"files refused: quota used up, and nothing may be removed");
	for_each_mark(mark, marks, num) put_mark(prom, mark, mark->refused);
	ucm_files_marks_free(marks, num);
}

/* ---- spaces that have a quota, or had one ---- */

#define for_each_quota(quota, store)                                           \
	for (const struct ucm_quota *quota = atomic_load(&(store)->quotas);    \
	     quota; quota = quota->next)                                       \
		if (!atomic_load(&quota->space->removed))

static void put_space(struct ucm_prom *prom, const struct ucm_quota *quota,
		      double value)
{
	char number[24];

	snprintf(number, sizeof(number), "%llu",
		 (unsigned long long)ucm_ino_of_space(quota->space));
	ucm_prom_double(prom, LABELS("space", number), value);
}

/* By the number of the folder's inode: names are not for everyone. */
static void put_space_quotas(struct ucm_prom *prom,
			     const struct ucm_store *store)
{
	ucm_prom_family(prom, "ucmfs_space_quota_bytes", "gauge",
			"quota of a space");
	for_each_quota(quota, store)
	{
		uint64_t bytes = ucm_quota_of(store->config, quota->space);

		put_space(prom, quota, bytes ? (double)bytes
					     : (double)INFINITY);
	}
	ucm_prom_family(prom, "ucmfs_space_used_bytes", "gauge",
			"what the blocks of a space take on disk, each once");
	for_each_quota(quota, store) put_space(
		prom, quota, (double)atomic_load(&quota->space->used));
	ucm_prom_family(prom, "ucmfs_space_blocks_evicted_total", "counter",
			"blocks removed for the quota of their space");
	for_each_quota(quota, store)
		put_space(prom, quota, (double)atomic_load(&quota->evicted));
	ucm_prom_family(prom, "ucmfs_space_blocks_refused_total", "counter",
			"blocks refused: quota used up, and nothing may be evicted");
	for_each_quota(quota, store)
		put_space(prom, quota, (double)atomic_load(&quota->refused));
}

/* ---- requests ---- */

static void put_times(struct ucm_prom *prom, const struct ucm_opstats *ops)
{
	double bounds[UCM_OP_BOUNDS];

	for (unsigned i = 0; i < UCM_OP_BOUNDS; i++)
		bounds[i] = (double)ucm_op_bound_ns(i) * NS;
	ucm_prom_family(prom, "ucmfs_request_duration_seconds", "histogram",
			"time in the daemon of each operation; a commit is "
			"part of another");
	for (unsigned op = 0; op < UCM_OP_COUNT; op++) {
		struct ucm_op_times times;

		ucm_opstats_times(ops, op, &times);
		ucm_prom_histogram(prom,
				   LABELS("operation", ucm_op_names[op]),
				   bounds, times.buckets, UCM_OP_BOUNDS,
				   (double)times.sum_ns * NS);
	}
}

static void put_errors(struct ucm_prom *prom, const struct ucm_opstats *ops)
{
	ucm_prom_family(prom, "ucmfs_request_errors_total", "counter",
			"requests answered with an error; a name that is "
			"absent is ENOENT of lookup");
	for (unsigned op = 0; op < UCM_OP_COUNT; op++) {
		for (unsigned i = 0; i < UCM_ERRNOS; i++) {
			uint64_t num = ucm_opstats_errors(ops, op, i);

			if (num)
				ucm_prom_u64(prom, LABELS("operation",
							  ucm_op_names[op],
							  "errno",
							  errno_name(i)),
					     num);
		}
	}
}

static void put_log(struct ucm_prom *prom)
{
	ucm_prom_family(prom, "ucmfs_log_lines_total", "counter",
			"lines logged");
	for (unsigned i = 0; i < UCM_LOG_LEVELS; i++)
		ucm_prom_u64(prom, LABELS("level", ucm_log_level_names[i]),
			     ucm_log_count(i));
	put_counter(prom, "ucmfs_log_left_out_total",
		    "lines left out because there were too many",
		    ucm_log_count_left_out());
}

char *ucm_metrics_text(struct ucm_daemon *daemon, size_t *len_out)
{
	struct ucm_prom prom;

	if (ucm_prom_begin(&prom, "mount", daemon->mountpoint))
		return NULL;
	put_mount(&prom, daemon);
	ucm_iobudget_count_lookups(daemon);
	put_counters(&prom, &daemon->store->stats);
	put_counter(&prom, "ucmfs_io_errors_total",
		    "failed calls on backing directories",
		    ucm_counted(&daemon->store->dirs.io_errors));
	put_index(&prom, daemon->store);
	put_tiers(&prom, daemon->store);
	put_quotas(&prom, &daemon->file_tree);
	put_space_quotas(&prom, daemon->store);
	put_times(&prom, daemon->ops);
	put_errors(&prom, daemon->ops);
	put_log(&prom);
	put_counter(&prom, "ucmfs_trace_records_total",
		    "records added to the trace",
		    daemon->trace ? ucm_trace_added(daemon->trace) : 0);
	return ucm_prom_end(&prom, len_out);
}
