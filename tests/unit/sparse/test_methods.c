/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_methods.c - each of the six methods from its name to the block table: what
 * the schedule says is done step by step, what the method keeps is built, a
 * retrieval scores it, and what is attended to is what the calls one by one
 * choose, and has the block that all queries are about.
 */
#include <config.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse_fixture.h"

#define BLOCK	    16u
#define LAYERS	    2u
#define HEADS	    2u
#define QUERY_HEADS 4u
#define DIM	    32u
#define PROMPT	    64u /* blocks */
#define STEPS	    40u
#define MAX_BLOCKS  (PROMPT + STEPS / BLOCK + 1)
#define QUERIES	    8u /* KVStar's */
#define TOPIC	    20u /* the block that queries are about */
#define SOON	    30000

static const struct ucm_sparse_model model = {
	.num_heads = HEADS, .query_heads = QUERY_HEADS, .head_dim = DIM,
	.dtype = UCM_DTYPE_FLOAT32, .seed = 11,
};

static const struct {
	const char *name, *key, *value;
} rows[] = {
	{ "ESA", NULL, NULL },
	{ "GSA", NULL, NULL },
	{ "GSA", "pooling", "minmax" },
	{ "GSA On-Device", "hash_topk_tokens", "256" },
	{ "KVStar", NULL, NULL },
	{ "Blend", NULL, NULL },
	{ "ReRoPE", NULL, NULL },
};

struct choice {
	uint64_t step; /* the last whose query it was made with */
	uint32_t blocks[MAX_BLOCKS], num;
};

static struct run {
	const struct ucm_sparse_method *method;
	struct ucm_sparse_config config;
	struct ucm_sparse_request request;
	struct ucm_retrieval *pool;
	float keys[LAYERS][MAX_BLOCKS][BLOCK][HEADS][DIM];
	float topic[LAYERS][HEADS][DIM];
	struct ucm_repr_slab slabs[LAYERS];
	/* of the one that the method keeps: */
	struct ucm_repr_spec spec;
	struct ucm_code_spec codes;
	struct ucm_code_method code_method;
	void *encoder;
	struct ucm_star_spec star[LAYERS];
	uint16_t channels[LAYERS][HEADS * DIM];
	struct ucm_budget budgets[STEPS + 1];
	struct choice choices[LAYERS];
	bool kept[LAYERS][STEPS + 1]; /* queries */
} run;

static void keys_make(void)
{
	uint64_t random = 5;

	for (uint32_t l = 0; l < LAYERS; l++) {
		for (uint32_t i = 0; i < HEADS * DIM; i++)
			run.topic[l][i / DIM][i % DIM] =
				random_float(&random, 1);
		for (uint32_t i = 0; i < MAX_BLOCKS * BLOCK * HEADS; i++) {
			uint32_t block = i / HEADS / BLOCK, head = i % HEADS;
			float *key = run.keys[l][block][i / HEADS % BLOCK][head];

			for (uint32_t c = 0; c < DIM; c++)
				key[c] = random_float(&random, 1) +
					 (block == TOPIC) *
						 run.topic[l][head][c];
		}
	}
}

/* The query of a step in a layer; those before step 0 are the prompt's. */
static void query_make(int64_t step, uint32_t layer, float *out)
{
	uint64_t random = (uint64_t)(step + 100) * 1000 + layer;

	for (uint32_t i = 0; i < QUERY_HEADS * DIM; i++)
		out[i] = random_float(&random, 0.5f) +
			 run.topic[layer][i / DIM / (QUERY_HEADS / HEADS)]
				  [i % DIM];
}

static struct ucm_query query_of(const float *base)
{
	return (struct ucm_query){ base, UCM_DTYPE_FLOAT32, QUERY_HEADS, DIM };
}

/* ---- what a method keeps ---- */

static size_t slot_bytes(uint32_t layer)
{
	if (run.method->keeps == UCM_KEEPS_REPR)
		return ucm_repr_bytes(&run.spec);
	if (run.method->keeps == UCM_KEEPS_CODES)
		return ucm_code_bytes(&run.codes);
	return ucm_star_bytes(&run.star[layer]);
}

static struct ucm_keys keys_of(uint32_t layer)
{
	return (struct ucm_keys){
		.base = run.keys[layer],
		.dtype = UCM_DTYPE_FLOAT32,
		.num_blocks = MAX_BLOCKS,
		.stride_block = BLOCK * HEADS * DIM,
		.stride_token = HEADS * DIM,
		.stride_head = DIM,
	};
}

/* Blocks from one on, of so many tokens in all. */
static void build(uint32_t layer, uint32_t first, uint32_t tokens)
{
	const struct ucm_keys keys = keys_of(layer);
	const struct ucm_repr_slab *slab = &run.slabs[layer];
	uint32_t end = (tokens - 1) / BLOCK + 1, last = (tokens - 1) % BLOCK + 1;
	int32_t ids[MAX_BLOCKS];
	size_t num = 0;
	int err;

	for (uint32_t i = first; i < end; i++)
		ids[num++] = (int32_t)i;
	if (run.method->keeps == UCM_KEEPS_REPR)
		err = ucm_repr_build(&run.spec, &keys, ids, num, last, slab,
				     ids, NULL);
	else if (run.method->keeps == UCM_KEEPS_CODES)
		err = ucm_code_build(run.encoder, &keys, ids, num, last, slab,
				     ids, NULL);
	else
		err = ucm_star_build(&run.star[layer], &keys, ids, num, last,
				     slab, ids, NULL);
	must(!err);
}

/* Its specs, from the configuration; and of all kinds but its own the refusal. */
static void specs_make(void)
{
	const uint32_t keeps = run.method->keeps;
	struct ucm_star_spec like;
	struct ucm_error error;

	must(!ucm_sparse_repr_spec(&run.config, &model, &run.spec, &error) ==
	     (keeps == UCM_KEEPS_REPR));
	must(!ucm_sparse_code_spec(&run.config, &model, &run.codes,
				   &run.code_method, &error) ==
	     (keeps == UCM_KEEPS_CODES));
	must(!ucm_sparse_star_spec(&run.config, &model, NULL, &like, &error) ==
	     (keeps == UCM_KEEPS_CHANNELS));
	if (keeps == UCM_KEEPS_CODES) {
		run.encoder = aligned_alloc(
			64, (ucm_code_encoder_bytes(&run.codes) + 63) / 64 * 64);
		must(!ucm_code_encoder_make(&run.codes, NULL, run.encoder,
					    NULL));
	}
	for (uint32_t l = 0; keeps == UCM_KEEPS_CHANNELS && l < LAYERS; l++) {
		const struct ucm_keys keys = keys_of(l);

		must(!ucm_star_channels(&like, &keys, NULL, PROMPT, BLOCK,
					run.channels[l], NULL));
		must(!ucm_sparse_star_spec(&run.config, &model,
					   run.channels[l], &run.star[l],
					   NULL));
	}
}

static void slabs_make(void)
{
	for (uint32_t l = 0; l < LAYERS; l++) {
		run.slabs[l] = (struct ucm_repr_slab){
			.base = aligned_alloc(64, MAX_BLOCKS * slot_bytes(l)),
			.num_slots = MAX_BLOCKS,
			.stride_bytes = slot_bytes(l),
		};
		memset(run.slabs[l].base, 0, MAX_BLOCKS * slot_bytes(l));
		build(l, 0, PROMPT * BLOCK);
	}
}

/* ---- choices ---- */

/* A prepared query, of the steps up to this one. */
union prepared {
	float floats[QUERIES * QUERY_HEADS * DIM];
	uint64_t words[256];
};

static void prepare(uint32_t layer, int64_t step, union prepared *out)
{
	static float vectors[QUERIES][QUERY_HEADS * DIM];
	uint32_t num = run.config.schedule.queries;
	struct ucm_query queries[QUERIES];

	must(num <= QUERIES);
	for (uint32_t i = 0; i < num; i++) {
		int64_t at = step - num + 1 + i;

		/* the schedule had said to keep it; the last one is at hand */
		must(at <= 0 || at == step || run.kept[layer][at]);
		query_make(at, layer, vectors[i]);
		queries[i] = query_of(vectors[i]);
	}
	if (run.method->keeps == UCM_KEEPS_CHANNELS) {
		must(!ucm_star_query_prepare(&run.star[layer], queries, num,
					     out->floats, NULL));
		return;
	}
	ck_assert_uint_eq(num, 1);
	if (run.method->keeps == UCM_KEEPS_REPR) {
		must(!ucm_query_prepare(&run.spec, queries, UCM_SCORE_BLOCK,
					out->floats, NULL));
		return;
	}
	must(ucm_code_query_words(&run.codes, &run.code_method) <= 256);
	must(!ucm_code_query_prepare(run.encoder, &run.code_method, queries,
				     NULL, out->words, NULL));
}

static void submit(uint32_t layer, uint64_t step)
{
	static union prepared query;
	struct ucm_retrieval_job job = {
		.lane = layer, .step = step, .num_heads = QUERY_HEADS,
		.slab = &run.slabs[layer], .budget = run.request.budget,
	};
	struct ucm_error error = { "" };

	prepare(layer, (int64_t)step, &query);
	if (run.method->keeps == UCM_KEEPS_REPR)
		job.spec = &run.spec;
	else if (run.method->keeps == UCM_KEEPS_CODES)
		job.codes = &run.codes;
	else
		job.star = &run.star[layer];
	job.code_method = &run.code_method;
	job.code_query = query.words;
	job.query = query.floats;
	job.num_queries = run.config.schedule.queries;
	run.budgets[step] = run.request.budget;
	ck_assert_msg(!ucm_retrieval_submit(run.pool, &job, &error), "%s",
		      error.text);
	memset(&query, 0xff, sizeof(query)); /* it was copied */
}

/* By the calls one by one. */
static void choose_directly(uint32_t layer, uint64_t step, struct choice *out)
{
	static union prepared query;
	float scores[MAX_BLOCKS];
	const struct ucm_budget *budget = &run.budgets[step];
	const struct ucm_repr_slab *slab = &run.slabs[layer];
	int err;

	prepare(layer, (int64_t)step, &query);
	if (run.method->keeps == UCM_KEEPS_REPR) {
		const struct ucm_score_request request = {
			.query = query.floats, .num_heads = QUERY_HEADS,
			.per = UCM_SCORE_BLOCK, .slab = slab,
			.num = budget->num_blocks, .scores = scores,
		};
		err = ucm_score(&run.spec, &request, 1, NULL);
	} else if (run.method->keeps == UCM_KEEPS_CODES) {
		const struct ucm_code_request request = {
			.query = query.words, .slab = slab,
			.num = budget->num_blocks, .scores = scores,
		};
		err = ucm_code_score(&run.codes, &run.code_method, &request, 1,
				     NULL);
	} else {
		const struct ucm_star_request request = {
			.query = query.floats,
			.num_queries = run.config.schedule.queries,
			.num_heads = QUERY_HEADS, .per = UCM_SCORE_BLOCK,
			.slab = slab, .num = budget->num_blocks,
			.scores = scores,
		};
		err = ucm_star_score(&run.star[layer], &request, 1, NULL);
	}
	must(!err);
	must(!ucm_select(scores, budget, out->blocks, MAX_BLOCKS, &out->num,
			 NULL));
}

static void take(uint32_t layer, uint64_t step)
{
	struct choice *choice = &run.choices[layer], want;
	struct ucm_retrieval_result result = { .blocks = choice->blocks,
					       .room = MAX_BLOCKS };
	bool has_topic = false;

	must(!ucm_retrieval_take(run.pool, layer, step, SOON, &result, NULL));
	choice->step = step;
	choice->num = result.num;
	choose_directly(layer, step, &want);
	ck_assert_uint_eq(choice->num, want.num);
	ck_assert_mem_eq(choice->blocks, want.blocks,
			 want.num * sizeof(*want.blocks));
	must(want.num < run.budgets[step].num_blocks);
	for (uint32_t i = 0; i < want.num; i++)
		has_topic |= want.blocks[i] == TOPIC;
	must(has_topic);
}

/* ---- steps ---- */

/* The block table of a choice, and of what was generated since. */
static void attend(uint32_t layer, const struct ucm_step *plan)
{
	const struct choice *choice = &run.choices[layer];
	uint32_t tokens = run.request.tokens, got;
	int32_t table[MAX_BLOCKS], out[MAX_BLOCKS];

	for (uint32_t i = 0; i < MAX_BLOCKS; i++)
		table[i] = (int32_t)(1000 - i);
	ck_assert_uint_eq(choice->step, plan->uses);
	must(!ucm_select_table(table, BLOCK, tokens, choice->blocks,
			       choice->num, out, MAX_BLOCKS, &got, NULL));
	must(got <= choice->num * BLOCK && got > (choice->num - 1) * BLOCK);
	for (uint32_t i = 0; i < choice->num; i++)
		ck_assert_int_eq(out[i], 1000 - (int32_t)choice->blocks[i]);
}

static void do_layer(uint32_t layer, uint64_t step)
{
	struct ucm_step plan;

	must(!ucm_sparse_layer(&run.request, layer, &plan, NULL));
	if (run.method->keeps == UCM_KEEPS_NOTHING) {
		must(plan.role == UCM_LAYER_DENSE && !plan.begin && !plan.end);
		return;
	}
	must(plan.role == UCM_LAYER_CHOOSES);
	if (plan.begin & UCM_DO_KEEP_QUERY)
		run.kept[layer][step] = true;
	if ((plan.begin | plan.end) & UCM_DO_SUBMIT)
		submit(layer, step);
	if (plan.begin & UCM_DO_SELECT) {
		submit(layer, step);
		take(layer, step);
	}
	if (step)
		attend(layer, &plan);
	if (plan.end & UCM_DO_BUILD)
		build(layer, (run.request.tokens - 1) / BLOCK,
		      run.request.tokens);
	if (plan.end & UCM_DO_COLLECT)
		take(layer, plan.collects);
}

static void open_method(int row)
{
	const struct ucm_retrieval_options options = {
		.size = sizeof(options), .threads = 2, .jobs = 2 * LAYERS * 4,
		.lanes = LAYERS, .max_blocks = MAX_BLOCKS,
		.query_floats = sizeof(union prepared) / sizeof(float),
	};

	memset(&run, 0, sizeof(run));
	run.method = ucm_sparse_find(rows[row].name);
	ck_assert_ptr_nonnull(run.method);
	must(!ucm_sparse_defaults(run.method, BLOCK, LAYERS, &run.config,
				  NULL));
	if (rows[row].key)
		must(!ucm_sparse_set(&run.config, rows[row].key,
				     rows[row].value, NULL));
	if (run.method->method == UCM_METHOD_GSA_ON_DEVICE)
		must(!ucm_sparse_set(&run.config, "recent_token", "64", NULL));
	must(!ucm_sparse_check(&run.config, NULL));
	keys_make();
	specs_make();
	if (run.method->keeps != UCM_KEEPS_NOTHING)
		slabs_make();
	must(!ucm_retrieval_open(&options, &run.pool, NULL));
}

static void close_method(void)
{
	ucm_retrieval_close(run.pool);
	free(run.encoder);
	for (uint32_t l = 0; l < LAYERS; l++)
		free(run.slabs[l].base);
}

UNIT_TEST(a_method_goes_from_its_name_to_a_block_table, .rows = NUM_ROWS(rows))
{
	struct ucm_retrieval_stats stats;
	uint32_t done = 0;

	open_method(_i);
	must(!ucm_sparse_begin(&run.request, &run.config, PROMPT * BLOCK,
			       NULL));
	must(!ucm_sparse_prefill(&run.request, PROMPT * BLOCK, &done, NULL) &&
	     done);
	for (uint64_t step = 0; step <= STEPS; step++) {
		if (step)
			must(!ucm_sparse_step(&run.request, 1, NULL));
		for (uint32_t l = 0; l < LAYERS; l++)
			do_layer(l, step);
	}
	ucm_retrieval_get_stats(run.pool, &stats);
	must((run.method->keeps == UCM_KEEPS_NOTHING) == !stats.taken);
	must((run.method->keeps == UCM_KEEPS_NOTHING) == run.request.dense);
	must(!ucm_sparse_finish(&run.request, NULL));
	close_method();
}
