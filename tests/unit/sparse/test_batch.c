/* SPDX-License-Identifier: Apache-2.0 */
/* test_batch.c - the tables of many rows are those of the single calls, row by
 * row; what is attended to whatever its score; what is refused. */
#include <config.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse_fixture.h"

#define CASES	    1250u /* of each method */
#define PAGES	    24u
#define HEADS	    2u
#define QUERY_HEADS 4u
#define DIM	    8u
#define MAX_ROWS    4u
#define MAX_BLOCKS  12u
#define MAX_STRIDE  (MAX_BLOCKS + 3)
#define WORK_BYTES  8192u
#define UNTOUCHED   (-77)

static const struct {
	const char *keeps;
	uint32_t kind, dtype;		/* representations, merged channels */
	uint32_t form, measure, norms; /* codes */
} methods[] = {
	{ "repr", UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 0, 0, 0 },
	{ "repr", UCM_REPR_MEAN, UCM_DTYPE_INT8, 0, 0, 0 },
	{ "repr", UCM_REPR_MAX, UCM_DTYPE_BFLOAT16, 0, 0, 0 },
	{ "repr", UCM_REPR_NORMED, UCM_DTYPE_FLOAT16, 0, 0, 0 },
	{ "repr", UCM_REPR_MINMAX, UCM_DTYPE_BFLOAT16, 0, 0, 0 },
	{ "codes", 0, 0, UCM_CODE_TOKENS, UCM_CODE_HAMMING, 0 },
	{ "codes", 0, 0, UCM_CODE_TOKENS, UCM_CODE_ESTIMATE, 1 },
	{ "codes", 0, 0, UCM_CODE_COUNTS, UCM_CODE_HAMMING, 0 },
	{ "star", 0, UCM_DTYPE_BFLOAT16, 0, 0, 0 },
};

/* A layer's pages, and a batch of rows. */
struct scene {
	struct ucm_repr_spec spec;
	struct ucm_code_spec codes;
	struct ucm_code_method method;
	struct ucm_star_spec star;
	void *encoder;
	struct ucm_repr_slab slab;
	struct ucm_sparse_pages pages;
	struct ucm_budget_config config;
	struct ucm_sparse_rows rows;
	struct ucm_sparse_tables out;
	uint8_t built[PAGES], dense[MAX_ROWS];
	int32_t tables[MAX_ROWS * MAX_STRIDE], lengths[MAX_ROWS];
	int32_t out_tables[MAX_ROWS * MAX_STRIDE], out_lengths[MAX_ROWS];
	float queries[MAX_ROWS * QUERY_HEADS * (DIM + 1)];
	uint64_t work[WORK_BYTES / 8];
};

static void *get(size_t bytes)
{
	void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

	must(bytes && memory);
	return memory;
}

/* ---- what is kept ---- */

static void slab_get(struct scene *scene, size_t bytes)
{
	scene->slab = (struct ucm_repr_slab){ get(PAGES * bytes), PAGES, bytes };
	scene->pages.slab = &scene->slab;
}

static void keep_codes(struct scene *scene, int i, uint32_t block_size,
		       const struct ucm_keys *keys)
{
	bool counts = methods[i].form == UCM_CODE_COUNTS;

	scene->codes = (struct ucm_code_spec){
		.form = methods[i].form, .num_heads = HEADS, .head_dim = DIM,
		.bits = 64, .block_size = block_size,
		.norms = methods[i].norms,
	};
	scene->method = (struct ucm_code_method){
		methods[i].measure, counts ? UCM_CODE_SUM : UCM_CODE_BEST,
		UCM_SCORE_BLOCK, QUERY_HEADS, 1,
	};
	scene->encoder = get(ucm_code_encoder_bytes(&scene->codes));
	must(!ucm_code_encoder_make(&scene->codes, NULL, scene->encoder, NULL));
	slab_get(scene, ucm_code_bytes(&scene->codes));
	must(!ucm_code_build(scene->encoder, keys, NULL, PAGES, block_size,
			     &scene->slab, NULL, NULL));
	scene->pages.encoder = scene->encoder;
	scene->pages.code_method = &scene->method;
}

static void keep_star(struct scene *scene, int i, uint32_t block_size,
		      const struct ucm_keys *keys)
{
	scene->star = (struct ucm_star_spec){ methods[i].dtype, HEADS, DIM,
					      block_size, 1, DIM, NULL };
	slab_get(scene, ucm_star_bytes(&scene->star));
	must(!ucm_star_build(&scene->star, keys, NULL, PAGES, block_size,
			     &scene->slab, NULL, NULL));
	scene->pages.star = &scene->star;
}

static void keep_repr(struct scene *scene, int i, uint32_t block_size,
		      const struct ucm_keys *keys)
{
	scene->spec = (struct ucm_repr_spec){ methods[i].kind, methods[i].dtype,
					      HEADS, DIM, block_size };
	slab_get(scene, ucm_repr_bytes(&scene->spec));
	must(!ucm_repr_build(&scene->spec, keys, NULL, PAGES, block_size,
			     &scene->slab, NULL, NULL));
	scene->pages.spec = &scene->spec;
}

/* ---- a batch ---- */

/* Rows whose tables share pages. */
static void batch_make(struct scene *scene, uint32_t block_size,
		       uint64_t *random)
{
	size_t stride = MAX_BLOCKS + (size_t)random_between(random, 0, 3);

	scene->rows = (struct ucm_sparse_rows){
		.num = (size_t)random_between(random, 1, MAX_ROWS),
		.query = { scene->queries, UCM_DTYPE_FLOAT32, QUERY_HEADS,
			   DIM + 1 },
		.stride_query = QUERY_HEADS * (DIM + 1),
		.tables = scene->tables, .stride_table = stride,
		.lengths = scene->lengths, .max_blocks = MAX_BLOCKS,
	};
	scene->out = (struct ucm_sparse_tables){
		.tables = scene->out_tables,
		.stride_table = MAX_BLOCKS +
				(size_t)random_between(random, 0, 3),
		.lengths = scene->out_lengths,
	};
	for (size_t i = 0; i < NUM_ROWS(scene->tables); i++) {
		scene->tables[i] = (int32_t)random_between(random, 0,
							   PAGES - 1);
		scene->out_tables[i] = UNTOUCHED;
	}
	for (size_t i = 0; i < MAX_ROWS; i++) {
		scene->lengths[i] = (int32_t)random_between(
			random, 0, MAX_BLOCKS * block_size);
		scene->out_lengths[i] = UNTOUCHED;
		scene->dense[i] = random_between(random, 0, 5) == 0;
	}
	for (size_t i = 0; i < NUM_ROWS(scene->queries); i++)
		scene->queries[i] = random_float(random, 1);
}

static void config_make(struct scene *scene, uint32_t block_size,
			uint64_t *random)
{
	scene->config = (struct ucm_budget_config){
		.block_size = block_size,
		.windows = { (uint32_t)random_between(random, 0, 2),
			     (uint32_t)random_between(random, 0, 2),
			     (uint32_t)random_between(random, 0, 5),
			     (uint32_t)random_between(random, 0, 5) },
		.ratio = (double)random_between(random, 0, 10) / 10,
	};
	if (random_between(random, 0, 3) == 0)
		scene->config.budget_tokens =
			block_size * (uint32_t)random_between(random, 1, 6);
	if (random_between(random, 0, 3) == 0)
		scene->config.dense_tokens = 2 * block_size;
}

static struct scene *scene_make(int i, uint64_t *random)
{
	struct scene *scene = calloc(1, sizeof(*scene));
	uint32_t block_size = (uint32_t)random_between(random, 1, 5);
	const struct ucm_repr_spec shape = { .num_heads = HEADS,
					     .head_dim = DIM,
					     .block_size = block_size };
	struct cache cache = cache_make(&shape, UCM_DTYPE_FLOAT32, PAGES,
					random);

	must(scene);
	if (!strcmp(methods[i].keeps, "codes"))
		keep_codes(scene, i, block_size, &cache.keys);
	else if (!strcmp(methods[i].keeps, "star"))
		keep_star(scene, i, block_size, &cache.keys);
	else
		keep_repr(scene, i, block_size, &cache.keys);
	free(cache.memory);
	batch_make(scene, block_size, random);
	config_make(scene, block_size, random);
	for (size_t page = 0; page < PAGES; page++)
		scene->built[page] = random_between(random, 0, 4) != 0;
	if (random_between(random, 0, 3))
		scene->pages.built = scene->built;
	if (random_between(random, 0, 1))
		scene->rows.dense = scene->dense;
	return scene;
}

static void scene_free(struct scene *scene)
{
	free(scene->encoder);
	free(scene->slab.base);
	free(scene);
}

/* ---- the single calls, and a plain reader of what the header says ---- */

static void score_all(const struct scene *scene, size_t row,
		      const int32_t *slots, size_t num, float *scores)
{
	struct ucm_query query = scene->rows.query;
	uint64_t words[256] = { 0 };
	float *floats = (float *)words;

	query.base = scene->queries + row * (size_t)scene->rows.stride_query;
	if (scene->pages.spec) {
		struct ucm_score_request request = {
			.query = floats, .num_heads = QUERY_HEADS,
			.per = UCM_SCORE_BLOCK, .slab = &scene->slab,
			.slots = slots, .num = num, .scores = scores,
		};

		must(!ucm_query_prepare(&scene->spec, &query, UCM_SCORE_BLOCK,
					floats, NULL));
		must(!ucm_score(&scene->spec, &request, 1, NULL));
	} else if (scene->pages.encoder) {
		struct ucm_code_request request = {
			.query = words, .slab = &scene->slab, .slots = slots,
			.num = num, .scores = scores,
		};

		must(!ucm_code_query_prepare(scene->encoder, &scene->method,
					     &query, NULL, words, NULL));
		must(!ucm_code_score(&scene->codes, &scene->method, &request, 1,
				     NULL));
	} else {
		struct ucm_star_request request = {
			.query = floats, .num_queries = 1,
			.num_heads = QUERY_HEADS, .per = UCM_SCORE_BLOCK,
			.slab = &scene->slab, .slots = slots, .num = num,
			.scores = scores,
		};

		must(!ucm_star_query_prepare(&scene->star, &query, 1, floats,
					     NULL));
		must(!ucm_star_score(&scene->star, &request, 1, NULL));
	}
}

/* The table of a row, its entries and its tokens. */
static uint32_t plain_row(const struct scene *scene, size_t row, int32_t *out,
			  uint32_t *tokens_out)
{
	const int32_t *table = scene->tables + row * scene->rows.stride_table;
	uint32_t tokens = (uint32_t)scene->lengths[row], num = 0;
	uint32_t size = scene->config.block_size;
	struct ucm_budget_config config = scene->config;
	bool taken[MAX_BLOCKS];
	struct ucm_budget budget;
	float scores[MAX_BLOCKS];

	if (!config.windows.local_blocks)
		config.windows.local_blocks = 1;
	must(!ucm_budget_blocks(&config, tokens, &budget, NULL));
	score_all(scene, row, table, budget.num_blocks, scores);
	for (uint32_t i = 0; i < budget.num_blocks; i++)
		taken[i] = (scene->rows.dense && scene->dense[row]) ||
			   i < budget.first ||
			   i >= budget.num_blocks - budget.last ||
			   (scene->pages.built && !scene->built[table[i]]);
	for (uint32_t k = 0; k < budget.topk; k++) {
		uint32_t best = UINT32_MAX;

		for (uint32_t i = 0; i < budget.num_blocks; i++) {
			if (!taken[i] && (best == UINT32_MAX ||
					  scores[i] > scores[best]))
				best = i;
		}
		if (best != UINT32_MAX)
			taken[best] = true;
	}
	*tokens_out = 0;
	for (uint32_t i = 0; i < budget.num_blocks; i++) {
		if (!taken[i])
			continue;
		out[num++] = table[i];
		*tokens_out += i + 1 < budget.num_blocks ? size
							 : tokens - i * size;
	}
	return num;
}

static int run(struct scene *scene, struct ucm_error *error)
{
	size_t bytes = ucm_sparse_select_bytes(&scene->pages, &scene->rows);

	must(bytes && bytes <= sizeof(scene->work));
	return ucm_sparse_select(&scene->pages, &scene->config, &scene->rows,
				 scene->work, bytes, &scene->out, error);
}

static bool rows_are_right(const struct scene *scene)
{
	uint64_t attended = 0, all = 0;
	uint32_t size = scene->config.block_size;

	for (size_t row = 0; row < scene->rows.num; row++) {
		const int32_t *got = scene->out_tables +
				     row * scene->out.stride_table;
		int32_t want[MAX_BLOCKS];
		uint32_t tokens;
		uint32_t num = plain_row(scene, row, want, &tokens);

		if (memcmp(got, want, num * sizeof(*got)) ||
		    scene->out_lengths[row] != (int32_t)tokens)
			return false;
		for (size_t i = num; i < scene->out.stride_table; i++)
			if (got[i] != UNTOUCHED)
				return false;
		attended += num;
		all += ((uint32_t)scene->lengths[row] + size - 1) / size;
	}
	return scene->out.blocks_attended == attended &&
	       scene->out.blocks_in_all == all;
}

UNIT_TEST(rows_are_those_of_the_single_calls, .rows = NUM_ROWS(methods))
{
	for (unsigned number = 0; number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene *scene = scene_make(_i, &random);

		must(!run(scene, NULL));
		must_in_case(rows_are_right(scene), number,
			     "not the single calls' rows");
		scene_free(scene);
	}
}

UNIT_TEST(no_more_work_memory_is_used_than_is_said, .rows = NUM_ROWS(methods))
{
	uint64_t random = random_case(0);
	struct scene *scene = scene_make(_i, &random);
	size_t bytes = ucm_sparse_select_bytes(&scene->pages, &scene->rows);
	uint8_t *end = (uint8_t *)scene->work + bytes;

	memset(scene->work, 0xa5, sizeof(scene->work));
	must(!run(scene, NULL));
	for (uint8_t *at = end; at < (uint8_t *)scene->work + WORK_BYTES; at++)
		must(*at == 0xa5);
	scene_free(scene);
}

/* ---- a row that is known: 8 blocks of 4 tokens, the last one partial ---- */

static struct scene *known_make(int i)
{
	uint64_t random = random_case(0);
	struct scene *scene;

	do {
		scene = scene_make(i, &random);
		if (scene->config.block_size == 4)
			break;
		scene_free(scene);
	} while (true);
	scene->rows.num = 1;
	scene->rows.dense = NULL;
	scene->pages.built = NULL;
	scene->config = (struct ucm_budget_config){ .block_size = 4 };
	scene->lengths[0] = 7 * 4 + 1;
	for (int32_t block = 0; block < 8; block++)
		scene->tables[block] = 20 - 2 * block;
	return scene;
}

static void known_is(struct scene *scene, uint32_t num, const int32_t *pages,
		     int32_t length)
{
	ck_assert_int_eq(run(scene, NULL), 0);
	ck_assert_int_eq(scene->out_lengths[0], length);
	ck_assert_uint_eq(scene->out.blocks_attended, num);
	ck_assert_mem_eq(scene->out_tables, pages, num * sizeof(*pages));
	ck_assert_int_eq(scene->out_tables[num], UNTOUCHED);
}

UNIT_TEST(the_last_block_is_attended_to_without_windows,
	  .rows = NUM_ROWS(methods))
{
	struct scene *scene = known_make(_i);

	known_is(scene, 1, (int32_t[]){ 6 }, 1);
	scene_free(scene);
}

/* They are not counted: ratio and topk are of all 7 blocks between the
 * windows. */
UNIT_TEST(pages_that_have_nothing_are_attended_to, .rows = NUM_ROWS(methods))
{
	struct scene *scene = known_make(_i);

	memset(scene->built, 1, sizeof(scene->built));
	scene->pages.built = scene->built;
	scene->built[16] = scene->built[8] = 0;
	known_is(scene, 3, (int32_t[]){ 16, 8, 6 }, 9);
	scene->config.max_topk = scene->config.min_topk = 1;
	ck_assert_int_eq(run(scene, NULL), 0);
	ck_assert_uint_eq(scene->out.blocks_attended, 4);
	scene->config.max_topk = scene->config.min_topk = 5;
	scene->queries[0] = NAN; /* not looked at */
	known_is(scene, 8, scene->tables, 29); /* all 5 others */
	memset(scene->built, 0, sizeof(scene->built));
	scene->config.max_topk = scene->config.min_topk = 0;
	known_is(scene, 8, scene->tables, 29);
	scene_free(scene);
}

/* Neither its query, nor its table, nor what is kept is looked at. */
UNIT_TEST(a_row_that_takes_all_is_copied, .rows = NUM_ROWS(methods))
{
	struct scene *scene = known_make(_i);
	uint8_t dense = 1;

	scene->queries[0] = NAN;
	scene->tables[3] = -1;
	memset(scene->slab.base, 0xff,
	       scene->slab.num_slots * scene->slab.stride_bytes);
	scene->config.ratio = 1;
	known_is(scene, 8, scene->tables, 29);
	scene->config.ratio = 0;
	scene->config.dense_tokens = 29;
	known_is(scene, 8, scene->tables, 29);
	scene->config.dense_tokens = 0;
	scene->rows.dense = &dense;
	known_is(scene, 8, scene->tables, 29);
	dense = 0;
	ck_assert_int_eq(run(scene, NULL), -EINVAL);
	scene_free(scene);
}

UNIT_TEST(a_row_may_have_no_block_or_one, .rows = NUM_ROWS(methods))
{
	struct scene *scene = known_make(_i);

	scene->lengths[0] = 0;
	known_is(scene, 0, scene->tables, 0);
	scene->lengths[0] = 3;
	known_is(scene, 1, (int32_t[]){ 20 }, 3);
	scene->lengths[0] = 4;
	known_is(scene, 1, (int32_t[]){ 20 }, 4);
	scene->rows.num = 0;
	ck_assert_int_eq(ucm_sparse_select(&scene->pages, &scene->config,
					   &scene->rows, NULL, 0, &scene->out,
					   NULL), 0);
	ck_assert_uint_eq(scene->out.blocks_in_all, 0);
	scene_free(scene);
}

/* ---- what is refused ---- */

/* Of two rows: the second is wrong, and nothing of the first is written. */
static void refused(struct scene *scene, size_t work_bytes, const char *word)
{
	struct ucm_error error;

	assert_einval(ucm_sparse_select(&scene->pages, &scene->config,
					&scene->rows, scene->work, work_bytes,
					&scene->out, &error), error, word);
	ck_assert_int_eq(scene->out_tables[0], UNTOUCHED);
	ck_assert_int_eq(scene->out_lengths[0], UNTOUCHED);
}

static struct scene *two_rows(void)
{
	struct scene *scene = known_make(0);
	size_t stride = scene->rows.stride_table;

	scene->rows.num = 2;
	memcpy(scene->tables + stride, scene->tables, 8 * sizeof(int32_t));
	scene->tables[stride + 2] = 1; /* of the second alone */
	scene->lengths[1] = 29;
	scene->config.min_topk = 2;
	return scene;
}

UNIT_TEST(a_wrong_row_is_named)
{
	struct scene *scene = two_rows();
	int32_t *second = scene->tables + scene->rows.stride_table;
	float *query = scene->queries + scene->rows.stride_query;
	float kept = *query;

	*query = INFINITY;
	refused(scene, WORK_BYTES, "row 1: query: head 0");
	*query = kept;
	*second = PAGES;
	refused(scene, WORK_BYTES, "row 1: table");
	*second = -1;
	refused(scene, WORK_BYTES, "row 1: table");
	*second = 20;
	((float *)scene->slab.base)[scene->slab.stride_bytes / 4] = NAN;
	refused(scene, WORK_BYTES, "row 1: scores: one is NaN");
	/* not if nothing valid is said to be there */
	memset(scene->built, 1, sizeof(scene->built));
	scene->built[1] = 0;
	scene->pages.built = scene->built;
	ck_assert_int_eq(run(scene, NULL), 0);
	scene_free(scene);
}

UNIT_TEST(wrong_arguments_are_named)
{
	struct scene *scene = two_rows(), right = *scene;
	size_t bytes = ucm_sparse_select_bytes(&scene->pages, &scene->rows);
	struct ucm_error error;

#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		__VA_ARGS__;                                                  \
		refused(scene, WORK_BYTES, word);                             \
		*scene = right;                                               \
	} while (0)
	REFUSED("spec, encoder, star", scene->pages.spec = NULL);
	REFUSED("spec, encoder, star", scene->pages.star = &scene->star);
	REFUSED("encoder", scene->pages.spec = NULL;
		scene->pages.encoder = scene->work);
	REFUSED("kind", scene->spec.kind = 9);
	REFUSED("slab", scene->pages.slab = NULL);
	REFUSED("stride_bytes", scene->slab.stride_bytes = 4);
	REFUSED("num_heads", scene->rows.query.num_heads = 3);
	REFUSED("row 0: query: dtype", scene->rows.query.dtype = UCM_DTYPE_INT8);
	REFUSED("row 0: query is NULL", scene->rows.query.base = NULL);
	REFUSED("stride_query", scene->rows.stride_query = INT64_MAX);
	REFUSED("num 65537", scene->rows.num = 65537);
	REFUSED("num 2, max_blocks 33554432", scene->rows.max_blocks = 1u << 25);
	REFUSED("block_size 8", scene->config.block_size = 8);
	REFUSED("block_size is 0", scene->config.block_size = 0);
	REFUSED("ratio", scene->config.ratio = 2);
	REFUSED("tables is NULL", scene->rows.tables = NULL);
	REFUSED("lengths is NULL", scene->rows.lengths = NULL);
	REFUSED("stride_table", scene->rows.stride_table = 11);
	REFUSED("stride_table", scene->out.stride_table = 11);
	REFUSED("lengths: row 1 has -1", scene->lengths[1] = -1);
	REFUSED("lengths: row 1 has -1", scene->lengths[1] = -1;
		scene->spec.block_size = scene->config.block_size = 65536;
		scene->rows.max_blocks = scene->rows.stride_table =
			scene->out.stride_table = 70000);
	REFUSED("lengths: row 1 has 49", scene->lengths[1] = 49);
	REFUSED("lengths: row 1 has 29", scene->rows.max_blocks = 7;
		scene->lengths[0] = 28);
#undef REFUSED
	refused(scene, bytes - 1, "work_bytes");
	assert_einval(ucm_sparse_select(NULL, &scene->config, &scene->rows,
					scene->work, bytes, &scene->out,
					&error), error, "pages is NULL");
	assert_einval(ucm_sparse_select(&scene->pages, &scene->config, NULL,
					scene->work, bytes, &scene->out,
					&error), error, "rows is NULL");
	assert_einval(ucm_sparse_select(&scene->pages, NULL, &scene->rows,
					scene->work, bytes, &scene->out,
					&error), error, "config is NULL");
	assert_einval(ucm_sparse_select(&scene->pages, &scene->config,
					&scene->rows, NULL, bytes, &scene->out,
					&error), error, "work is NULL");
	assert_einval(ucm_sparse_select(&scene->pages, &scene->config,
					&scene->rows, (char *)scene->work + 4,
					bytes, &scene->out, &error), error,
		      "work is not aligned");
	assert_einval(ucm_sparse_select(&scene->pages, &scene->config,
					&scene->rows, scene->work, bytes, NULL,
					&error), error, "out is NULL");
	scene_free(scene);
}

UNIT_TEST(what_is_written_may_not_overlap)
{
	struct scene *scene = two_rows();
	struct ucm_sparse_tables out = scene->out;
	struct ucm_error error;
	const struct {
		int32_t *tables, *lengths;
		const char *word;
	} overlaps[] = {
		{ scene->tables, out.lengths, "out overlaps" },
		{ scene->tables + 19, out.lengths, "out overlaps" },
		{ scene->lengths, out.lengths, "out overlaps" },
		{ out.tables, scene->lengths + 1, "out overlaps" },
		{ out.tables, scene->tables, "out overlaps" },
		{ out.tables, out.tables + 11, "out overlaps" },
		{ out.tables, out.tables + out.stride_table + 2, "out overlaps" },
		{ (int32_t *)scene->work, out.lengths, "work overlaps" },
	};

	for (size_t i = 0; i < NUM_ROWS(overlaps); i++) {
		scene->out.tables = overlaps[i].tables;
		scene->out.lengths = overlaps[i].lengths;
		assert_einval(run(scene, &error), error, overlaps[i].word);
	}
	scene_free(scene);
}
