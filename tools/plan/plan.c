/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c - ucm plan: how much a model's KV cache takes, and when it pays to keep it.
 *
 * Loading a token takes its bytes over the bandwidth, computing it one over the
 * engine's rate: the bandwidth at which both take as long is the product. A trace
 * says what a tier of some size would have had; it is played, by the daemon's
 * policies, through caches that are empty at first (fs/replay).
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/parse.h"
#include "tools/lib/args.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"
#include "tools/plan/chart.h"
#include "tools/plan/model.h"
#include "tools/trace/replay_read.h"

#define MOST 32     /* capacities */
#define POLICIES 2  /* that are drawn */
#define HALVINGS 6  /* of all that a trace asks for, where none are given */
#define SEED 1
/* With fewer blocks a sample's cache has too little to learn from: by 0.07 of the hits
 * off for 30 blocks, see doc/eviction.md. */
#define SAMPLED_LEAST 300

static struct options {
	uint64_t context, requests, block, element;
	uint64_t rate, bandwidth, device;
	const char *trace;
	uint64_t trace_block;
	uint64_t capacities[MOST];
	unsigned num_capacities;
	uint64_t hit;
	double sample; /* 0: all */
	const char *svg;
	bool json;
} opt = { .requests = 32, .block = 16, .element = 2 };

static int parse_capacities(const struct ucm_arg *arg, char *value)
{
	const char *word;

	for (opt.num_capacities = 0; (word = strsep(&value, ","));) {
		uint64_t *to = &opt.capacities[opt.num_capacities];

		if (++opt.num_capacities > MOST || ucm_parse_bytes(word, to) ||
		    !*to)
			return -EINVAL;
	}
	(void)arg;
	return 0;
}

static int parse_sample(const struct ucm_arg *arg, char *value)
{
	char *end;

	opt.sample = strtod(value, &end);
	(void)arg;
	return end == value || *end || !(opt.sample > 0 && opt.sample <= 1)
		       ? -EINVAL
		       : 0;
}

static const struct ucm_arg args[] = {
	{ "context", 'c', "TOKENS", ucm_arg_number, &opt.context, .min = 1,
	  .max = 1000000000, .help = "of a request (default: the model's longest)" },
	{ "requests", 'r', "N", ucm_arg_number, &opt.requests, .min = 1,
	  .max = 1000000, .help = "that are served at once (default: 32)" },
	{ "block", 'b', "TOKENS", ucm_arg_number, &opt.block, .min = 1,
	  .max = 65536, .help = "of the engine's blocks (default: 16)" },
	{ "element", 'e', "BYTES", ucm_arg_number, &opt.element, .min = 1,
	  .max = 4, .help = "of an element of the cache: 1 for fp8 (default: 2)" },
	{ "rate", 0, "N", ucm_arg_number, &opt.rate, .min = 1, .max = UINT32_MAX,
	  .help = "tokens of prompts that the engine computes in a second" },
	{ "bandwidth", 0, "BYTES", ucm_arg_bytes, &opt.bandwidth, .min = 1,
	  .help = "that a request is loaded with, in a second, such as 6G" },
	{ "trace", 't', "TRACE", ucm_arg_text, &opt.trace,
	  .help = "what is asked for, as ucm trace replay takes it" },
	{ "trace-block", 0, "TOKENS", ucm_arg_number, &opt.trace_block, .min = 1,
	  .max = 65536, .help = "of the blocks of TRACE (default: those of --block)" },
	{ "capacity", 0, "BYTES[,BYTES...]", parse_capacities, NULL,
	  .help = "of the tiers, to be tried on TRACE (default: all that it asks "
		  "for, and halves of that)" },
	{ "hit", 0, "PERCENT", ucm_arg_number, &opt.hit, .min = 1, .max = 100,
	  .help = "of the blocks of TRACE: find the capacity for it" },
	{ "sample", 0, "SHARE", parse_sample, NULL,
	  .help = "of the blocks of TRACE, such as 0.1: take these for all" },
	{ "device", 0, "BYTES", ucm_arg_bytes, &opt.device, .min = 1,
	  .help = "of a disk: count them" },
	{ "svg", 0, "FILE", ucm_arg_text, &opt.svg,
	  .help = "draw what tiers bring on TRACE, over their capacity" },
	{ "json", 'j', .to = &opt.json, .help = "print JSON instead" },
	{ 0 },
};

/* ---- what a tier of some size brings ---- */

static struct ucm_model model;

static uint64_t block_bytes(void)
{
	return ucm_model_stored(&model, opt.trace_block, (unsigned)opt.element);
}

static double held(double tokens)
{
	return ucm_model_held(&model, tokens, (unsigned)opt.element);
}

/* Seconds until the first token of a prompt whose tokens are loaded, and computed;
 * 0: not known. */
static double first_token(double loaded, double computed)
{
	double seconds = computed / (double)opt.rate;

	if (!opt.rate || (loaded > 0 && !opt.bandwidth))
		return 0;
	return loaded > 0 ? seconds + held(loaded) / (double)opt.bandwidth
			  : seconds;
}

static void require(int err)
{
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s", strerror(-err));
}

static double share(void)
{
	return opt.sample > 0 ? opt.sample : 1;
}

/* Different blocks of the whole trace. */
static uint64_t all_blocks(const struct ucm_replay_trace *trace)
{
	return (uint64_t)((double)trace->num_blocks / share());
}

static double mean_tokens(const struct ucm_replay_trace *trace)
{
	return (double)(trace->offered * opt.trace_block) /
	       (double)trace->num_requests;
}

/* A mean request stands for all: nothing waits for another here. */
static struct ucm_tier_row play(const struct ucm_replay_trace *trace,
			const struct ucm_policy_ops *policy, uint64_t blocks)
{
	uint64_t sampled = (uint64_t)((double)blocks * share() + .5);
	const struct ucm_replay_options options = {
		.capacity = sampled ? sampled : 1,
		.seed = SEED,
	};
	const struct ucm_replay_request *last =
		&trace->requests[trace->num_requests - 1];
	double seconds = last->time_s - trace->requests[0].time_s + 1;
	double requests = (double)trace->num_requests;
	struct ucm_replay_result result;
	struct ucm_tier_row tier;
	double rate, hit;

	require(ucm_replay_run(trace, policy, &options, &result));
	rate = ucm_replay_hit_rate(trace, &result);
	hit = rate * mean_tokens(trace);
	tier = (struct ucm_tier_row){
		.policy = policy->name,
		.capacity = blocks * block_bytes(),
		.hit_rate = rate,
		.read = held(hit) * requests / seconds,
		.written = (double)(result.writes * block_bytes()) / seconds /
			   share(),
		.first_token = first_token(hit, mean_tokens(trace) - hit),
	};
	return tier;
}

/* Neither doc/eviction.md's trace nor those of test_replay were off by more. */
static double sample_error(const struct ucm_replay_trace *trace)
{
	return 3 / sqrt((double)trace->num_blocks);
}

static uint64_t least_blocks(void)
{
	return opt.sample > 0 ? (uint64_t)(SAMPLED_LEAST / opt.sample) : 1;
}

/* More than the trace has brings no more. */
static uint64_t blocks_of(uint64_t bytes, const struct ucm_replay_trace *trace)
{
	uint64_t blocks = bytes / block_bytes(), most = all_blocks(trace);

	if (blocks >= most)
		return most;
	if (opt.sample > 0 && blocks < least_blocks())
		ucm_tool_die(UCM_EXIT_FAILED, "--sample %g: too little for a capacity "
			     "of %s, which is less than %d blocks of the sample",
			     opt.sample, ucm_text_size(bytes, false).text,
			     SAMPLED_LEAST);
	return blocks ? blocks : 1;
}

/* The least capacity that has this rate, by halving: false if none has. */
static bool find_hit(const struct ucm_replay_trace *trace,
		     const struct ucm_policy_ops *policy, struct ucm_tier_row *out)
{
	uint64_t least = least_blocks(), most = all_blocks(trace);
	double want = (double)opt.hit / 100;

	*out = play(trace, policy, most);
	if (out->hit_rate < want)
		return false;
	while (least < most) {
		uint64_t middle = least + (most - least) / 2;
		struct ucm_tier_row tier = play(trace, policy, middle);

		if (tier.hit_rate >= want) {
			*out = tier;
			most = middle;
		} else {
			least = middle + 1;
		}
	}
	return true;
}

/* ---- output ---- */

static void print_size(const char *what, uint64_t bytes)
{
	printf("%-40s %8s\n", what, ucm_text_size(bytes, false).text);
}

static void print_seconds(const char *what, double seconds)
{
	printf("%-40s %8s\n", what, ucm_text_duration(seconds).text);
}

static void print_layers(void)
{
	printf("%s: %u layers that see all tokens", model.name, model.full);
	if (model.windowed)
		printf(", %u with a window of %" PRIu64, model.windowed,
		       model.window);
	if (model.states)
		printf(", %u with a state (not counted)", model.states);
	printf("\n\n");
}

static void print_sizes(json_t *to)
{
	unsigned element = (unsigned)opt.element;
	uint64_t token = ucm_model_stored(&model, 1, element);
	uint64_t request = (uint64_t)held((double)opt.context);
	char what[64];

	if (to) {
		ucm_json_set(to, "token_bytes", ucm_json_number(token));
		ucm_json_set(to, "block_bytes", ucm_json_number(token * opt.block));
		ucm_json_set(to, "request_bytes", ucm_json_number(request));
		ucm_json_set(to, "requests_bytes",
			     ucm_json_number(request * opt.requests));
		return;
	}
	print_layers();
	print_size("a token", token);
	snprintf(what, sizeof(what), "a block of %" PRIu64 " tokens", opt.block);
	print_size(what, token * opt.block);
	snprintf(what, sizeof(what), "a request of %" PRIu64, opt.context);
	print_size(what, request);
	snprintf(what, sizeof(what), "%" PRIu64 " of them at once", opt.requests);
	print_size(what, request * opt.requests);
}

/* Loading or computing: only with the engine's rate. */
static void print_speeds(json_t *to)
{
	double context = (double)opt.context;
	double computed = first_token(0, context), loaded = first_token(context, 0);
	double even;

	if (computed <= 0)
		return;
	even = held(context) / computed;
	if (to) {
		ucm_json_set(to, "break_even_bytes_per_second", json_real(even));
		ucm_json_set(to, "first_token_computed", json_real(computed));
		ucm_json_set(to, "first_token_loaded",
			     loaded > 0 ? json_real(loaded) : json_null());
		return;
	}
	print_size("break-even bandwidth, bytes a second", (uint64_t)even);
	print_seconds("first token, computed", computed);
	if (loaded > 0)
		print_seconds("first token, loaded", loaded);
}

static uint64_t devices(uint64_t bytes)
{
	return opt.device ? (bytes + opt.device - 1) / opt.device : 0;
}

static void print_tier(const struct ucm_tier_row *tier, json_t *to)
{
	if (to) {
		json_t *row = json_pack(
			"{sI sf sf sf}", "capacity", (json_int_t)tier->capacity,
			"hit_rate", tier->hit_rate, "read_per_second", tier->read,
			"written_per_second", tier->written);

		if (tier->policy)
			ucm_json_set(row, "policy", json_string(tier->policy));
		if (tier->first_token > 0)
			ucm_json_set(row, "first_token",
				     json_real(tier->first_token));
		if (opt.device)
			ucm_json_set(row, "devices",
				     ucm_json_number(devices(tier->capacity)));
		ucm_json_add(to, row);
		return;
	}
	printf("%8s", ucm_text_size(tier->capacity, false).text);
	if (opt.device)
		printf(" %8" PRIu64, devices(tier->capacity));
	printf(" %-8s %8.4f %8s %10s", tier->policy ? tier->policy : "-",
	       tier->hit_rate,
	       ucm_text_size((uint64_t)tier->read, false).text,
	       ucm_text_size((uint64_t)tier->written, false).text);
	if (opt.rate && opt.bandwidth)
		printf(" %12s", ucm_text_duration(tier->first_token).text);
	printf("\n");
}

static void print_head(const struct ucm_replay_trace *trace)
{
	double mean = mean_tokens(trace);

	printf("\n%zu requests, of %.0f tokens on average\n", trace->num_requests,
	       mean);
	if (opt.sample > 0)
		printf("a sample: hit rates were off by less than %.3f in our tests\n",
		       sample_error(trace));
	printf("\n%8s", "CAPACITY");
	if (opt.device)
		printf(" %8s", "DEVICES");
	printf(" %-8s %8s %8s %10s%s\n", "POLICY", "HIT RATE", "READ/S",
	       "WRITTEN/S",
	       opt.rate && opt.bandwidth ? "  FIRST TOKEN" : "");
}

static void choose_capacities(const struct ucm_replay_trace *trace)
{
	uint64_t blocks = all_blocks(trace);

	for (int i = HALVINGS; i >= 0; i--)
		if (!i || blocks >> i >= least_blocks())
			opt.capacities[opt.num_capacities++] =
				(blocks * block_bytes()) >> i;
}

static const struct ucm_policy_ops *policy_at(unsigned i)
{
	const char *name = ucm_policy_name(i);

	return name ? ucm_policy_find(name) : NULL;
}

static void print_hit(const struct ucm_replay_trace *trace, json_t *to)
{
	json_t *rows = to ? json_array() : NULL;
	const struct ucm_policy_ops *policy;
	struct ucm_tier_row tier;
	bool found = false;

	for (unsigned i = 0; (policy = policy_at(i)); i++) {
		found = find_hit(trace, policy, &tier); /* all do, or none */
		if (!to && !i && found)
			printf("\nfor a hit rate of %" PRIu64 " %%:\n", opt.hit);
		else if (!to && !i)
			printf("\na hit rate of %" PRIu64 " %% cannot be reached; "
			       "with room for all of TRACE:\n", opt.hit);
		print_tier(&tier, rows);
	}
	if (to)
		ucm_json_set(to, found ? "for_hit" : "not_reached", rows);
}

static int by_size(const void *a, const void *b)
{
	uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

	return (one > other) - (one < other);
}

static struct ucm_tier_row drawn[MOST * POLICIES];
static unsigned num_drawn;

static void draw(void)
{
	FILE *file = fopen(opt.svg, "we");

	if (file)
		ucm_chart_draw(file, drawn, num_drawn);
	if (!file || fflush(file) || fclose(file))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", opt.svg, strerror(errno));
}

static void print_capacity(const struct ucm_replay_trace *trace, uint64_t bytes,
			   json_t *rows)
{
	uint64_t blocks = blocks_of(bytes, trace);
	const struct ucm_policy_ops *policy;

	for (unsigned i = 0; i < POLICIES && (policy = policy_at(i)); i++) {
		struct ucm_tier_row tier = play(trace, policy, blocks);

		tier.capacity = bytes;
		drawn[num_drawn++] = tier;
		print_tier(&tier, rows);
	}
}

static void print_trace(const struct ucm_replay_trace *trace, json_t *to)
{
	json_t *rows = to ? json_array() : NULL;
	struct ucm_tier_row tier = { .first_token = first_token(0, mean_tokens(trace)) };

	if (!to)
		print_head(trace);
	print_tier(&tier, rows); /* none */
	for (unsigned i = 0; i < opt.num_capacities; i++)
		print_capacity(trace, opt.capacities[i], rows);
	if (to)
		ucm_json_set(to, "tiers", rows);
	if (to && opt.sample > 0)
		ucm_json_set(to, "hit_rate_error", json_real(sample_error(trace)));
	if (opt.hit)
		print_hit(trace, to);
	if (opt.svg)
		draw();
}

static int run(int argc, char **argv)
{
	struct ucm_replay_trace trace = { .sample = opt.sample };
	json_t *to = opt.json ? json_object() : NULL;

	if (!argc)
		ucm_tool_usage("no CONFIG");
	if (!opt.trace && (opt.num_capacities || opt.hit || opt.trace_block ||
			   opt.sample > 0 || opt.svg))
		ucm_tool_usage("--capacity, --hit, --sample, --svg and --trace-block "
			       "need --trace");
	ucm_model_read(argv[0], &model);
	if (!opt.context)
		opt.context = model.context;
	if (!opt.context)
		ucm_tool_usage("%s does not say how long a text may be: --context",
			       argv[0]);
	if (!opt.trace_block)
		opt.trace_block = opt.block;
	if (opt.element == 1 && model.beside)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: fp8 beside index_head_dim is not "
			     "supported", argv[0]);
	if (held((double)opt.context) * (double)opt.requests > INT64_MAX / 2)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: more than 4 EiB", argv[0]);
	if (opt.trace) {
		ucm_replay_read(opt.trace, &trace);
		if (!opt.num_capacities)
			choose_capacities(&trace);
		qsort(opt.capacities, opt.num_capacities, sizeof(*opt.capacities),
		      by_size);
		for (unsigned i = 0; i < opt.num_capacities; i++)
			blocks_of(opt.capacities[i], &trace); /* or it ends */
	}
	print_sizes(to);
	print_speeds(to);
	if (opt.trace)
		print_trace(&trace, to);
	ucm_replay_trace_fini(&trace);
	return to ? ucm_json_print(to, 0) : ucm_tool_flush();
}

const struct ucm_command ucm_plan_command = {
	.name = "plan",
	.does = "how much a model's cache takes, and what a tier brings",
	.operands = "CONFIG",
	.about = "Print what the KV cache of a model takes, by its config.json "
		 "(CONFIG: the file or its folder), how fast a tier must be for "
		 "loading to win over computing, and, for a trace of requests, "
		 "what tiers of some sizes would have had.",
	.args = args,
	.most = 1,
	.run = run,
};
