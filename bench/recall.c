/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recall.c - how much of what attention looks for each way to select blocks
 * finds, in requests that are made up; see doc/sparse.md.
 *
 * usage: recall [OPTIONS]; --help has them.
 *
 * Requests come from recall_make.c, scores from recall_score.c. What is
 * done here: a request is drawn, its blocks are scored in each way, the best are
 * selected, and what was found is added up.
 */
#include <config.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "bench/recall.h"
#include "common/cleanup.h"
#include "common/parse.h"

#define ME	    "recall"
#define KEYS_MAX    ((uint64_t)1 << 32) /* channels in all */
#define TOKENS_MAX  (1 << 22)
#define USAGE	    2
#define HELP_COLUMN 26

static struct options {
	uint64_t tokens, block_size, heads, query_heads, dim;
	uint64_t needles, topics, outliers, requests, topk, seed;
	double ratio, strength, topic_strength, agree;
	const char *method; /* NULL: all */
	bool rope, json;
} opt = {
	.tokens = 32768, .block_size = 128, .heads = 2, .query_heads = 8,
	.dim = 128, .needles = 1, .topics = 4, .outliers = 8, .requests = 16,
	.seed = 1, .ratio = 0.1, .strength = 12, .topic_strength = 4,
	.agree = 0.8,
};

/* One of number, share (above 0), choice and flag is where its value goes. */
static const struct row {
	const char *name, *value, *help;
	uint64_t *number;
	double *share;
	const char **choice;
	bool *flag;
	uint64_t min, max;
} rows[] = {
	{ "tokens", "N", "of a request (32768)", .number = &opt.tokens,
	  .min = 1, .max = TOKENS_MAX },
	{ "block-size", "N", "tokens of a block (128)",
	  .number = &opt.block_size, .min = 1, .max = UCM_REPR_BLOCK_SIZE_MAX },
	{ "heads", "N", "of keys (2)", .number = &opt.heads, .min = 1,
	  .max = 128 },
	{ "query-heads", "N", "of queries, a multiple of these (8)",
	  .number = &opt.query_heads, .min = 1, .max = 1024 },
	{ "dim", "N", "channels of a head, a multiple of 8 (128)",
	  .number = &opt.dim, .min = 8, .max = UCM_REPR_HEAD_DIM_MAX },
	{ "ratio", "SHARE", "of the blocks that is selected (0.1)",
	  .share = &opt.ratio, .max = 1 },
	{ "topk", "N", "instead: this many blocks are selected",
	  .number = &opt.topk, .min = 1, .max = TOKENS_MAX },
	{ "needles", "N", "blocks of a request with one token that matters (1)",
	  .number = &opt.needles, .min = 1, .max = TOKENS_MAX },
	{ "topics", "N", "blocks of a request of which all tokens do (4)",
	  .number = &opt.topics, .min = 1, .max = TOKENS_MAX },
	{ "strength", "LOGIT", "a needle's q.k / sqrt(dim), beside 1 for what "
	  "others differ by (12)", .share = &opt.strength, .max = 1000 },
	{ "topic-strength", "LOGIT", "the same of a topic's tokens (4)",
	  .share = &opt.topic_strength, .max = 1000 },
	{ "agree", "SHARE", "cosine of each query head and what its group "
	  "looks for (0.8)", .share = &opt.agree, .max = 1 },
	{ "outliers", "N", "channels that are large in all keys (8)",
	  .number = &opt.outliers, .max = UCM_REPR_HEAD_DIM_MAX },
	{ "rope", NULL, "rotate keys to their positions", .flag = &opt.rope },
	{ "requests", "N", "with needles, and as many with topics (16)",
	  .number = &opt.requests, .min = 1, .max = 1000000 },
	{ "seed", "N", "what requests are drawn from (1)",
	  .number = &opt.seed, .max = UINT64_MAX },
	{ "method", "NAME", "what blocks are scored by: all, or of the first "
	  "column (all)", .choice = &opt.method },
	{ "json", NULL, "or -j: print JSON instead", .flag = &opt.json },
};
#define NUM_ROWS (sizeof(rows) / sizeof(rows[0]))

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
	/* of each method */
	struct tally (*tallies)[UCM_RECALL_WORKLOADS];
};

static const char *const workloads[] = { "needles", "topics" };

__attribute__((format(printf, 1, 2)))
static int complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs(ME ": ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	return -EINVAL;
}

/* ---- what is found ---- */

static bool is_named(const struct ucm_recall_method *method)
{
	return method->bytes && !strcmp(method->name, opt.method);
}

/* Those that look at all keys are what the others are compared with. */
static bool is_wanted(const struct ucm_recall_method *method)
{
	return !opt.method || !method->bytes || is_named(method);
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
	}
	return err ? complain("%s: %s", what, error.text) : 0;
}

static int try_all(struct job *job)
{
	int err = 0;

	for (int i = 0; i < UCM_RECALL_WORKLOADS; i++) {
		for (uint32_t j = 0; !err && j < opt.requests; j++)
			err = try_request(job, (enum ucm_recall_workload)i, j);
	}
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
	return 0;
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
	json_t *methods = json_array();
	json_t *object;
	int err;

	for (size_t i = 0; i < ucm_recall_num_methods; i++) {
		if (is_wanted(&ucm_recall_methods[i]))
			json_array_append_new(methods, method_json(job, i));
	}
	object = json_pack(
		"{sI sI sI sI so so sI sI sI sI sI sI sI sf sf sf sI sb ss so}",
		"seed", (json_int_t)opt.seed,
		"tokens", (json_int_t)opt.tokens,
		"block_size", (json_int_t)opt.block_size,
		"blocks", (json_int_t)job->recall.num_blocks,
		"ratio", opt.topk ? json_null() : json_real(opt.ratio),
		"topk", opt.topk ? json_integer((json_int_t)opt.topk)
				 : json_null(),
		"selected", (json_int_t)job->budget.topk,
		"needles", (json_int_t)opt.needles,
		"topics", (json_int_t)opt.topics,
		"heads", (json_int_t)opt.heads,
		"query_heads", (json_int_t)opt.query_heads,
		"dim", (json_int_t)opt.dim,
		"requests", (json_int_t)opt.requests,
		"strength", opt.strength,
		"topic_strength", opt.topic_strength,
		"agree", opt.agree,
		"outliers", (json_int_t)opt.outliers,
		"rope", (int)opt.rope,
		"method", opt.method ?: "all",
		"methods", methods);
	err = object ? json_dumpf(object, stdout, JSON_INDENT(2)) : -1;
	json_decref(object);
	putchar('\n');
	return err ? complain("cannot print the JSON") : 0;
}

/* ---- the command line ---- */

static int help(void)
{
	puts("usage: " ME " [OPTIONS]\n"
	     "\n"
	     "Make up requests in which a few blocks matter, and print for each "
	     "way to score\n"
	     "blocks how many of them it finds: blocks with one token that "
	     "matters (needles),\n"
	     "and blocks of which all do (topics). mass is the share of the "
	     "attention that is\n"
	     "on the selected blocks. mass and best look at all keys, and "
	     "select by the\n"
	     "attention itself, and by the largest q.k. The same options print "
	     "the same\n"
	     "figures everywhere; see doc/sparse.md.\n");
	for (size_t i = 0; i < NUM_ROWS; i++) {
		int len = printf("  --%s%s%s", rows[i].name,
				 rows[i].value ? " " : "", rows[i].value ?: "");

		printf("%*s%s\n", HELP_COLUMN - len, "", rows[i].help);
	}
	return 0;
}

/* Above 0, and up to max. */
static int parse_share(const char *text, double max, double *out)
{
	char *end;
	double number = strtod(text, &end);

	if (end == text || *end || !(number > 0 && number <= max))
		return -EINVAL;
	*out = number;
	return 0;
}

/* Of methods that look at all keys there is no choice: they are always tried. */
static int parse_method(const char *text, const char **out)
{
	*out = NULL;
	for (size_t i = 0; i < ucm_recall_num_methods; i++) {
		if (ucm_recall_methods[i].bytes &&
		    !strcmp(text, ucm_recall_methods[i].name))
			*out = ucm_recall_methods[i].name;
	}
	return *out || !strcmp(text, "all") ? 0 : -EINVAL;
}

static int set_row(const struct row *row, const char *text)
{
	int err = 0;

	if (row->flag)
		*row->flag = true;
	else if (row->number)
		err = ucm_parse_range(text, row->min, row->max, row->number);
	else if (row->share)
		err = parse_share(text, (double)row->max, row->share);
	else
		err = parse_method(text, row->choice);
	return err ? complain("--%s '%s': not a valid %s; try --help",
			      row->name, text, row->value) : 0;
}

static int parse_options(int argc, char **argv)
{
	struct option options[NUM_ROWS + 1] = { { 0 } };
	int key, number, err = 0;

	for (size_t i = 0; i < NUM_ROWS; i++)
		options[i] = (struct option){
			rows[i].name,
			rows[i].value ? required_argument : no_argument,
			NULL, 0,
		};
	while (!err && (key = getopt_long(argc, argv, "j", options,
					  &number)) != -1) {
		if (key == 'j')
			opt.json = true;
		else
			err = key ? -EINVAL : set_row(&rows[number], optarg);
	}
	if (!err && optind < argc)
		return complain("too many arguments: %s; try --help",
				argv[optind]);
	return err;
}

static int check_shape(void)
{
	if (opt.query_heads % opt.heads)
		return complain("--query-heads %" PRIu64 ": not a multiple of "
				"--heads %" PRIu64 "; try --help",
				opt.query_heads, opt.heads);
	if (opt.dim % 8)
		return complain("--dim %" PRIu64 ": not a multiple of 8; try "
				"--help", opt.dim);
	if (opt.outliers > opt.dim)
		return complain("--outliers %" PRIu64 ": --dim is %" PRIu64
				"; try --help", opt.outliers, opt.dim);
	if (opt.tokens * opt.heads * opt.dim > KEYS_MAX)
		return complain("--tokens %" PRIu64 ": with so many heads and "
				"channels, at most %" PRIu64 "; try --help",
				opt.tokens, KEYS_MAX / opt.heads / opt.dim);
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
		return complain("%s", error.text);
	return 0;
}

/* What cannot be selected cannot be found. */
static int check_plants(const struct ucm_budget *budget)
{
	const uint64_t num[] = { opt.needles, opt.topics };

	for (int i = 0; i < UCM_RECALL_WORKLOADS; i++) {
		if (num[i] > budget->topk)
			return complain("--%s %" PRIu64 ": %" PRIu32 " blocks "
					"are selected; try --help",
					workloads[i], num[i], budget->topk);
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
		return complain("%s", strerror(-err));
	scores = calloc(job->recall.num_blocks, sizeof(*scores));
	selected = calloc(job->recall.num_blocks, sizeof(*selected));
	tallies = calloc(ucm_recall_num_methods, sizeof(*job->tallies));
	job->scores = scores;
	job->selected = selected;
	job->tallies = tallies;
	if (!scores || !selected || !tallies)
		err = complain("%s", strerror(ENOMEM));
	if (!err)
		err = try_all(job);
	if (!err)
		err = opt.json ? print_json(job) : print_table(job);
	ucm_recall_close(&job->recall);
	return err;
}

int main(int argc, char **argv)
{
	struct job job = { 0 };

	if (argc == 2 && !strcmp(argv[1], "--help"))
		return help();
	if (parse_options(argc, argv) || check_shape() ||
	    find_budget(&job.budget) || check_plants(&job.budget))
		return USAGE;
	if (run_job(&job))
		return 1;
	if (fflush(stdout) || ferror(stdout)) {
		complain("standard output: %s", strerror(errno));
		return 1;
	}
	return 0;
}
