/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c - ucm trace replay: what a cache of some size would have made of
 * a trace, by policy. The policies are those of the daemon.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/parse.h"
#include "tools/lib/args.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"
#include "tools/trace/replay_read.h"

#define MOST 32 /* of each list */

struct capacities {
	uint64_t blocks[MOST];
	unsigned num;
};

struct policies {
	const struct ucm_policy_ops *ops[MOST];
	unsigned num;
};

static struct options {
	struct capacities capacities;
	struct policies policies;
	uint64_t seed;
	double admit;
	uint64_t endurance, block_bytes;
	bool ends, json;
} opt = { .seed = 1 };

static int parse_capacities(const struct ucm_arg *arg, char *value)
{
	struct capacities *to = arg->to;
	char *word;

	for (to->num = 0; (word = strsep(&value, ",")); to->num++) {
		if (to->num == MOST ||
		    ucm_parse_range(word, 1, UINT32_MAX - 1,
				    &to->blocks[to->num]))
			return -EINVAL;
	}
	return 0;
}

static int parse_policies(const struct ucm_arg *arg, char *value)
{
	struct policies *to = arg->to;
	char *word;

	for (to->num = 0; (word = strsep(&value, ",")); to->num++) {
		if (to->num == MOST ||
		    !(to->ops[to->num] = ucm_policy_find(word)))
			return -EINVAL;
	}
	return 0;
}

static int parse_share(const struct ucm_arg *arg, char *value)
{
	char *end;
	double share = strtod(value, &end);

	if (end == value || *end || !(share >= 0 && share <= 1))
		return -EINVAL;
	*(double *)arg->to = share;
	return 0;
}

/* "/day" may follow */
static int parse_endurance(const struct ucm_arg *arg, char *value)
{
	char *day = strstr(value, "/day");

	if (day && !day[4])
		*day = '\0';
	return ucm_arg_bytes(arg, value);
}

static const struct ucm_arg args[] = {
	{ "capacity", 'c', "N[,N...]", parse_capacities, &opt.capacities,
	  .help = "sizes of the cache, in blocks" },
	{ "policy", 'p', "P[,P...]", parse_policies, &opt.policies,
	  .help = "hazard or lru (default: both)" },
	{ "seed", 0, "N", ucm_arg_number, &opt.seed,
	  .help = "for what is random (default: 1)" },
	{ "admit", 0, "P", parse_share, &opt.admit,
	  .help = "write new blocks only that will be asked for again, while "
		  "they would stay, with at least this chance (0 to 1), or were "
		  "asked for before" },
	{ "endurance", 0, "BYTES", parse_endurance, &opt.endurance, .min = 1,
	  .help = "with --block-bytes: write no more than so much a day, such "
		  "as 2T" },
	{ "block-bytes", 0, "BYTES", ucm_arg_bytes, &opt.block_bytes, .min = 1,
	  .help = "the size of a block" },
	{ "ends", 0, .to = &opt.ends,
	  .help = "the last request of each session says so, as hints of vLLM "
		  "can: its blocks are evicted first" },
	{ "json", 'j', .to = &opt.json,
	  .help = "a JSON object on each line" },
	{ 0 },
};

/* ---- output ---- */

static double share(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

static void print_head(const struct ucm_replay_trace *trace)
{
	uint32_t last = trace->requests[trace->num_requests - 1].time_s;

	printf("%zu requests for %zu blocks, %zu of them different, in %s\n\n"
	       "%10s  %-8s %8s %10s %16s\n", trace->num_requests,
	       trace->num_asked, trace->num_blocks,
	       ucm_text_age(last - trace->requests[0].time_s).text, "CAPACITY",
	       "POLICY", "HIT RATE", "OF BELADY", "WRITES PER BLOCK");
}

static void print_row(uint64_t capacity, const char *policy,
		      const struct ucm_replay_result *result,
		      const struct ucm_replay_result *best)
{
	printf("%10" PRIu64 "  %-8s %8.4f %10s %16.4f\n", capacity, policy,
	       share(result->hits, result->asked),
	       ucm_text_share(result->hits, best->hits).text,
	       share(result->writes, result->asked));
}

static void print_json(uint64_t capacity, const char *policy,
		       const struct ucm_replay_result *result,
		       const struct ucm_replay_result *best)
{
	json_t *row = json_pack("{ss sI sf sf sf}", "policy", policy,
				"capacity", (json_int_t)capacity, "hit_rate",
				share(result->hits, result->asked),
				"writes_per_block",
				share(result->writes, result->asked),
				"belady_hit_rate",
				share(best->hits, best->asked));

	ucm_json_line(row);
}

/* ---- the work ---- */

static void require(int err)
{
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s", strerror(-err));
}

static void replay_one(const struct ucm_replay_trace *trace, uint64_t capacity,
		       const struct ucm_policy_ops *ops,
		       const struct ucm_replay_result *best)
{
	const struct ucm_replay_options options = {
		.capacity = capacity,
		.seed = opt.seed,
		.threshold = opt.admit,
		.bytes_per_day = opt.endurance,
		.block_bytes = opt.block_bytes,
		.ends = opt.ends,
	};
	struct ucm_replay_result result;

	require(ucm_replay_run(trace, ops, &options, &result));
	if (opt.json)
		print_json(capacity, ops->name, &result, best);
	else
		print_row(capacity, ops->name, &result, best);
}

static void replay_all(const struct ucm_replay_trace *trace)
{
	if (!opt.json)
		print_head(trace);
	for (unsigned i = 0; i < opt.capacities.num; i++) {
		uint64_t capacity = opt.capacities.blocks[i];
		struct ucm_replay_result best;

		require(ucm_replay_belady(trace, capacity, &best));
		for (unsigned j = 0; j < opt.policies.num; j++)
			replay_one(trace, capacity, opt.policies.ops[j], &best);
	}
}

static void choose_all(struct policies *policies)
{
	const char *name;

	while ((name = ucm_policy_name(policies->num)))
		policies->ops[policies->num++] = ucm_policy_find(name);
}

static int run(int argc, char **argv)
{
	struct ucm_replay_trace trace = { 0 };

	if (!argc)
		ucm_tool_usage("no TRACE");
	if (!opt.capacities.num)
		ucm_tool_usage("no --capacity");
	if (opt.endurance && !opt.block_bytes)
		ucm_tool_usage("--endurance without --block-bytes");
	if (!opt.policies.num)
		choose_all(&opt.policies);
	ucm_replay_read(argv[0], &trace);
	replay_all(&trace);
	ucm_replay_trace_fini(&trace);
	return ucm_tool_flush();
}

const struct ucm_command ucm_replay_command = {
	.name = "trace",
	.word = "replay",
	.does = "try eviction policies on a trace",
	.operands = "TRACE",
	.about = "Play a trace through caches of the given sizes, empty at "
		 "first, and print for each policy which share of the blocks "
		 "was found, how much of the best possible (Belady) that is, "
		 "and how many blocks were written for each one asked for. "
		 "TRACE has a JSON object with \"timestamp\" (ms) and "
		 "\"hash_ids\" on each line, or is an access trace "
		 "(ucmfs -o trace=FILE).",
	.args = args,
	.most = 1,
	.run = run,
};
