/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_sparse.c - ucm sparse recall: how much of what attention looks for each way
 * to select blocks finds, in requests that are made up; see ucm(1).
 *
 * Requests come from ucm_recall_make.c, scores from ucm_recall_score.c. What is
 * done here: a request is drawn, its blocks are scored in each way, the best are
 * selected, and what was found is added up.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/cleanup.h"
#include "tools/ucm_args.h"
#include "tools/ucm_progress.h"
#include "tools/ucm_recall.h"
#include "tools/ucm_text.h"
#include "tools/ucm_tool.h"

#define KEYS_MAX ((uint64_t)1 << 32) /* channels in all */

static struct options {
	uint64_t tokens, block_size, heads, query_heads, dim;
	uint64_t needles, topics, outliers, requests, topk, seed;
	double ratio, strength, topic_strength, agree;
	unsigned method; /* 0: all; or of methods[] */
	bool rope, json;
} opt = {
	.tokens = 32768, .block_size = 128, .heads = 2, .query_heads = 8,
	.dim = 128, .needles = 1, .topics = 4, .outliers = 8, .requests = 16,
	.seed = 1, .ratio = 0.1, .strength = 12, .topic_strength = 4,
	.agree = 0.8,
};

/* Above 0, and up to max. */
static int parse_positive(const struct ucm_arg *arg, char *value)
{
	char *end;
	double number = strtod(value, &end);

	if (end == value || *end ||
	    !(number > 0 && number <= (double)arg->max))
		return -EINVAL;
	*(double *)arg->to = number;
	return 0;
}

#define METHODS \
	"all|mean|normed|max|minmax|distance|star|star-vote|hamming|"         \
	"hamming-sum|estimate"

static const struct ucm_arg args[] = {
	{ "tokens", 0, "N", ucm_arg_number, &opt.tokens,
	  .help = "of a request (32768)", .min = 1, .max = 1 << 22 },
	{ "block-size", 0, "N", ucm_arg_number, &opt.block_size,
	  .help = "tokens of a block (128)", .min = 1,
	  .max = UCM_REPR_BLOCK_SIZE_MAX },
	{ "heads", 0, "N", ucm_arg_number, &opt.heads,
	  .help = "of keys (2)", .min = 1, .max = 128 },
	{ "query-heads", 0, "N", ucm_arg_number, &opt.query_heads,
	  .help = "of queries, a multiple of these (8)", .min = 1,
	  .max = 1024 },
	{ "dim", 0, "N", ucm_arg_number, &opt.dim,
	  .help = "channels of a head, a multiple of 8 (128)", .min = 8,
	  .max = UCM_REPR_HEAD_DIM_MAX },
	{ "ratio", 0, "SHARE", parse_positive, &opt.ratio,
	  .help = "of the blocks that is selected (0.1)", .max = 1 },
	{ "topk", 0, "N", ucm_arg_number, &opt.topk,
	  .help = "instead: this many blocks are selected", .min = 1,
	  .max = 1 << 22 },
	{ "needles", 0, "N", ucm_arg_number, &opt.needles,
	  .help = "blocks of a request with one token that matters (1)",
	  .min = 1, .max = 1 << 22 },
	{ "topics", 0, "N", ucm_arg_number, &opt.topics,
	  .help = "blocks of a request of which all tokens do (4)", .min = 1,
	  .max = 1 << 22 },
	{ "strength", 0, "LOGIT", parse_positive, &opt.strength,
	  .help = "a needle's q.k / sqrt(dim), beside 1 for what others differ "
		  "by (12)", .max = 1000 },
	{ "topic-strength", 0, "LOGIT", parse_positive, &opt.topic_strength,
	  .help = "the same of a topic's tokens (4)", .max = 1000 },
	{ "agree", 0, "SHARE", parse_positive, &opt.agree,
	  .help = "the cosine of each query head and what its group looks for "
		  "(0.8)", .max = 1 },
	{ "outliers", 0, "N", ucm_arg_number, &opt.outliers,
	  .help = "channels that are large in all keys (8)", .min = 0,
	  .max = UCM_REPR_HEAD_DIM_MAX },
	{ "rope", .to = &opt.rope, .help = "rotate keys to their positions" },
	{ "requests", 0, "N", ucm_arg_number, &opt.requests,
	  .help = "with needles, and as many with topics (16)", .min = 1,
	  .max = 1000000 },
	{ "seed", 0, "N", ucm_arg_number, &opt.seed,
	  .help = "what requests are drawn from (1)" },
	{ "method", 0, METHODS, ucm_arg_choice, &opt.method,
	  .help = "what blocks are scored by (all)" },
	{ "json", 'j', .to = &opt.json, .help = "print JSON instead" },
	{ 0 },
};

struct tally {
	uint64_t found;
	double mass;
};

struct job {
	struct ucm_recall_shape shape;
	struct ucm_recall recall;
	struct ucm_budget budget;
	float *scores;
	uint32_t *selected;
	struct ucm_progress progress;
	/* of each method */
	struct tally (*tallies)[UCM_RECALL_WORKLOADS];
};

static const char *const workloads[] = { "needles", "topics" };

/* ---- what is found ---- */

/* What --method says, in METHODS; *len_out characters. */
static const char *method_wanted(size_t *len_out)
{
	const char *word = METHODS;

	for (unsigned i = 0; i < opt.method; i++)
		word = strchr(word, '|') + 1;
	*len_out = strcspn(word, "|");
	return word;
}

/* Those that look at all keys are what the others are compared with. */
static bool is_wanted(const struct ucm_recall_method *method)
{
	size_t len;
	const char *word = method_wanted(&len);

	return !opt.method || !method->bytes ||
	       (strlen(method->name) == len &&
		!strncmp(word, method->name, len));
}

static void add_up(const struct job *job, uint32_t num, uint32_t num_plants,
		   struct tally *tally)
{
	double mass = 0;

	for (uint32_t i = 0; i < num; i++) {
		uint32_t block = job->selected[i];

		mass += job->recall.mass[block];
		for (uint32_t j = 0; j < num_plants; j++)
			tally->found += job->recall.planted[j] == block;
	}
	tally->mass += mass;
}

static int try_method(struct job *job, size_t i,
		      enum ucm_recall_workload workload,
		      struct ucm_error *error)
{
	const struct ucm_recall_method *method = &ucm_recall_methods[i];
	uint32_t num;
	int err = method->score(method, &job->recall, job->scores, error);

	if (!err)
		err = ucm_select(job->scores, &job->budget, job->selected,
				 job->recall.num_blocks, &num, error);
	if (!err)
		add_up(job, num, job->shape.num_plants[workload],
		       &job->tallies[i][workload]);
	return err;
}

static int try_request(struct job *job, enum ucm_recall_workload workload,
		       uint32_t number)
{
	const char *what = "a request";
	struct ucm_error error = { 0 };
	int err = ucm_recall_draw(&job->recall, workload, number, &error);

	for (size_t i = 0; !err && i < ucm_recall_num_methods; i++) {
		what = ucm_recall_methods[i].name;
		if (is_wanted(&ucm_recall_methods[i]))
			err = try_method(job, i, workload, &error);
		ucm_progress_say(&job->progress,
				 "%" PRIu32 " of %" PRIu64 " requests with %s",
				 number, opt.requests, workloads[workload]);
	}
	if (err) {
		ucm_progress_clear(&job->progress);
		ucm_tool_complain("%s: %s", what, error.text);
	}
	return err;
}

static int try_all(struct job *job)
{
	int err = 0;

	ucm_progress_begin(&job->progress);
	for (int i = 0; i < UCM_RECALL_WORKLOADS; i++) {
		for (uint32_t j = 0; !err && j < opt.requests; j++)
			err = try_request(job, (enum ucm_recall_workload)i, j);
	}
	ucm_progress_clear(&job->progress);
	return err;
}

/* ---- what is said ---- */

static double share_found(const struct job *job, size_t method, int workload)
{
	return (double)job->tallies[method][workload].found /
	       (double)(opt.requests * job->shape.num_plants[workload]);
}

static double share_kept(const struct job *job, size_t method, int workload)
{
	return job->tallies[method][workload].mass / (double)opt.requests;
}

static void print_method(const struct job *job, size_t i)
{
	const struct ucm_recall_method *method = &ucm_recall_methods[i];
	char bytes[24] = "-";

	if (method->bytes)
		snprintf(bytes, sizeof(bytes), "%zu",
			 method->bytes(method, &job->shape));
	printf("%-11s %-8s %7s", method->name, method->stored, bytes);
	for (int j = 0; j < UCM_RECALL_WORKLOADS; j++)
		printf("  %6.3f %6.3f", share_found(job, i, j),
		       share_kept(job, i, j));
	putchar('\n');
}

static int print_table(const struct job *job)
{
	printf("%" PRIu64 " tokens in blocks of %" PRIu64 "; heads: %" PRIu64
	       " of keys, %" PRIu64 " of queries, dim %" PRIu64
	       "; requests: 2 x %" PRIu64 "\n"
	       "%" PRIu32 " of %" PRIu32 " blocks are selected: %.3f by chance\n"
	       "\n"
	       "%-11s %-8s %7s  %-13s  %s\n"
	       "%-11s %-8s %7s  %6s %6s  %6s %6s\n",
	       opt.tokens, opt.block_size, opt.heads, opt.query_heads, opt.dim,
	       opt.requests, job->budget.topk, job->recall.num_blocks,
	       job->budget.topk / (double)job->recall.num_blocks, "", "", "",
	       "needles", "topics", "scores", "stored", "bytes", "found", "mass",
	       "found", "mass");
	for (size_t i = 0; i < ucm_recall_num_methods; i++) {
		if (is_wanted(&ucm_recall_methods[i]))
			print_method(job, i);
	}
	return ucm_tool_flush();
}

static json_t *workload_json(const struct job *job, size_t i, int workload)
{
	return json_pack("{sI sI sf sf}", "found",
			 (json_int_t)job->tallies[i][workload].found,
			 "planted",
			 (json_int_t)(opt.requests *
				      job->shape.num_plants[workload]),
			 "found_share", share_found(job, i, workload), "mass",
			 share_kept(job, i, workload));
}

static json_t *method_json(const struct job *job, size_t i)
{
	const struct ucm_recall_method *method = &ucm_recall_methods[i];

	return json_pack("{ss ss so so so}", "scores", method->name, "stored",
			 method->stored, "block_bytes",
			 method->bytes ? json_integer((json_int_t)method->bytes(
						 method, &job->shape))
				       : json_null(),
			 workloads[0], workload_json(job, i, 0), workloads[1],
			 workload_json(job, i, 1));
}

static int print_json(const struct job *job)
{
	json_t *rows = json_array();
	size_t len;
	const char *word = method_wanted(&len);

	for (size_t i = 0; i < ucm_recall_num_methods; i++) {
		if (is_wanted(&ucm_recall_methods[i]))
			json_array_append_new(rows, method_json(job, i));
	}
	return ucm_json_print(
		json_pack("{so sI sI sI so so sI sI sI sI sI sI sI sf sf sf sI "
			  "sb ss% so}",
			  "seed", ucm_json_number(opt.seed), "tokens",
			  (json_int_t)opt.tokens, "block_size",
			  (json_int_t)opt.block_size, "blocks",
			  (json_int_t)job->recall.num_blocks, "ratio",
			  opt.topk ? json_null() : json_real(opt.ratio), "topk",
			  opt.topk ? ucm_json_number(opt.topk) : json_null(),
			  "selected", (json_int_t)job->budget.topk, "needles",
			  (json_int_t)opt.needles, "topics",
			  (json_int_t)opt.topics, "heads",
			  (json_int_t)opt.heads, "query_heads",
			  (json_int_t)opt.query_heads, "dim",
			  (json_int_t)opt.dim, "requests",
			  (json_int_t)opt.requests, "strength", opt.strength,
			  "topic_strength", opt.topic_strength, "agree",
			  opt.agree, "outliers", (json_int_t)opt.outliers,
			  "rope", (int)opt.rope, "method", word, len,
			  "methods", rows),
		0);
}

/* ---- the command ---- */

static int check_shape(void)
{
	if (opt.query_heads % opt.heads)
		return ucm_tool_complain("--query-heads %" PRIu64
					 ": not a multiple of --heads %" PRIu64
					 "; try --help",
					 opt.query_heads, opt.heads);
	if (opt.dim % 8)
		return ucm_tool_complain("--dim %" PRIu64 ": not a multiple "
					 "of 8; try --help", opt.dim);
	if (opt.outliers > opt.dim)
		return ucm_tool_complain("--outliers %" PRIu64 ": --dim is %"
					 PRIu64 "; try --help", opt.outliers,
					 opt.dim);
	if (opt.tokens * opt.heads * opt.dim > KEYS_MAX)
		return ucm_tool_complain("--tokens %" PRIu64 ": with so many "
					 "heads and channels, at most %" PRIu64
					 "; try --help", opt.tokens,
					 KEYS_MAX / opt.heads / opt.dim);
	return 0;
}

static int find_budget(struct ucm_budget *out)
{
	struct ucm_budget_config config = {
		.block_size = (uint32_t)opt.block_size,
		.ratio = opt.topk ? 1 : opt.ratio,
		.min_topk = 1, .max_topk = (uint32_t)opt.topk,
	};
	struct ucm_error error;

	if (ucm_budget_blocks(&config, (uint32_t)opt.tokens, out, &error))
		return ucm_tool_complain("%s", error.text);
	return 0;
}

/* What cannot be selected cannot be found. */
static int check_plants(const struct ucm_budget *budget)
{
	const uint64_t num[] = { opt.needles, opt.topics };

	for (int i = 0; i < UCM_RECALL_WORKLOADS; i++) {
		if (num[i] > budget->topk)
			return ucm_tool_complain("--%s %" PRIu64 ": %" PRIu32
						 " blocks are selected; try "
						 "--help", workloads[i], num[i],
						 budget->topk);
	}
	return 0;
}

static void take_shape(struct ucm_recall_shape *out)
{
	*out = (struct ucm_recall_shape){
		.tokens = (uint32_t)opt.tokens,
		.block_size = (uint32_t)opt.block_size,
		.heads = (uint32_t)opt.heads,
		.query_heads = (uint32_t)opt.query_heads,
		.dim = (uint32_t)opt.dim,
		.num_plants = { (uint32_t)opt.needles, (uint32_t)opt.topics },
		.strength = { opt.strength, opt.topic_strength },
		.agree = opt.agree,
		.outliers = (uint32_t)opt.outliers,
		.rope = opt.rope,
		.seed = opt.seed,
	};
}

static int run_job(struct job *job)
{
	_cleanup_free_ float *scores = NULL;
	_cleanup_free_ uint32_t *selected = NULL;
	_cleanup_free_ void *tallies = NULL;
	int err;

	take_shape(&job->shape);
	err = ucm_recall_open(&job->shape, &job->recall);
	if (err)
		return ucm_tool_fail(UCM_EXIT_FAILED, "%s", strerror(-err));
	scores = calloc(job->recall.num_blocks, sizeof(*scores));
	selected = calloc(job->recall.num_blocks, sizeof(*selected));
	tallies = calloc(ucm_recall_num_methods, sizeof(*job->tallies));
	job->scores = scores;
	job->selected = selected;
	job->tallies = tallies;
	if (!scores || !selected || !tallies)
		err = ucm_tool_complain("%s", strerror(ENOMEM));
	if (!err)
		err = try_all(job);
	if (!err)
		err = opt.json ? print_json(job) : print_table(job);
	ucm_recall_close(&job->recall);
	return err ? UCM_EXIT_FAILED : 0;
}

static int run(int argc, char **argv)
{
	struct job job = { 0 };

	if (!argc || strcmp(argv[0], "recall"))
		return ucm_tool_fail(UCM_EXIT_USAGE,
				     "'%s': must be recall; try --help",
				     argc ? argv[0] : "");
	if (argc > 1)
		return ucm_args_limit(argc - 1, argv + 1, 0);
	if (check_shape() || find_budget(&job.budget) ||
	    check_plants(&job.budget))
		return UCM_EXIT_USAGE;
	return run_job(&job);
}

const struct ucm_command ucm_sparse_command = {
	.name = "sparse",
	.forms = (const struct ucm_command *const[]){
		&ucm_repr_command, NULL },
	.does = "try ways to select blocks; make representations",
	.operands = "recall",
	.about = "Make up requests in which a few blocks matter, and print for "
		 "each way to score blocks how many of them it finds: blocks "
		 "with one token that matters (needles), and blocks of which "
		 "all do (topics). mass is the share of the attention that is "
		 "on the selected blocks.",
	.args = args,
	.end = "mass and best look at all keys, and select by the attention "
	       "itself, and by the largest q.k. The same options print the "
	       "same figures everywhere.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
