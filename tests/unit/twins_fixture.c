/* SPDX-License-Identifier: Apache-2.0 */
/* twins_fixture.c - <ucm/sparse_cuda.h> compared with the calls for the CPU. */
#include <config.h>

#include "tests/unit/twins_inside.h"

static void ok(CUresult result)
{
	ck_assert_int_eq(result, CUDA_SUCCESS);
}

static void enter(struct twins_fixture *fixture)
{
	ok(fixture->cuda->CtxPushCurrent(fixture->context));
}

static void leave(struct twins_fixture *fixture)
{
	CUcontext popped;

	ok(fixture->cuda->CtxPopCurrent(&popped));
}

void twins_open(struct twins_fixture *fixture, CUstream stream)
{
	struct ucm_error error;

	memset(fixture, 0, sizeof(*fixture));
	done(ucm_cuda_get(&fixture->cuda, &error), &error);
	ok(fixture->cuda->DeviceGet(&fixture->device, 0));
	ok(fixture->cuda->DevicePrimaryCtxRetain(&fixture->context,
						 fixture->device));
	done(ucm_sparse_cuda_open(0, &fixture->twins, &error), &error);
	fixture->stream = stream;
}

void twins_close(struct twins_fixture *fixture)
{
	twins_release(fixture);
	ucm_sparse_cuda_close(fixture->twins);
	ok(fixture->cuda->DevicePrimaryCtxRelease(fixture->device));
}

static void move(struct twins_fixture *fixture, CUdeviceptr to,
		 CUdeviceptr from, size_t len)
{
	enter(fixture);
	ok(fixture->cuda->MemcpyAsync(to, from, len, fixture->stream));
	ok(fixture->cuda->StreamSynchronize(fixture->stream));
	leave(fixture);
}

void *twins_upload(struct twins_fixture *fixture, const void *from, size_t len)
{
	CUdeviceptr *memory = &fixture->memory[fixture->num++];

	must(fixture->num <= TWINS_MEMORY_MAX);
	enter(fixture);
	ok(fixture->cuda->MemAlloc(memory, len));
	leave(fixture);
	move(fixture, *memory, (uintptr_t)from, len);
	return (void *)(uintptr_t)*memory;
}

void twins_download(struct twins_fixture *fixture, void *to, const void *from,
		    size_t len)
{
	move(fixture, (uintptr_t)to, (uintptr_t)from, len);
}

void twins_release(struct twins_fixture *fixture)
{
	enter(fixture);
	while (fixture->num)
		ok(fixture->cuda->MemFree(fixture->memory[--fixture->num]));
	leave(fixture);
}

/* ---- scores ---- */

struct score_case {
	struct twins_fixture *fixture;
	unsigned number;
	uint64_t random;
	struct ucm_repr_spec spec;
	struct ucm_repr_slab slab; /* the host's */
	uint32_t query_heads, per;
	size_t query_floats, query_stride;
	uint32_t num;
	float *queries;                    /* prepared, by the host */
	struct ucm_cuda_queries raw;       /* on the device */
	uint8_t *raw_host;
};

static void slab_fill(struct score_case *c, uint32_t num_blocks)
{
	uint32_t dtype = input_types[any(&c->random, 2)];
	struct cache cache = cache_make(&c->spec, dtype, num_blocks,
					&c->random);
	struct ucm_error error;

	c->slab = slab_make(&c->spec, num_blocks, 16 * any(&c->random, 4));
	done(ucm_repr_build(&c->spec, &cache.keys, NULL, num_blocks,
			    1 + any(&c->random, c->spec.block_size - 1),
			    &c->slab, NULL, &error), &error);
	free(cache.memory);
}

/* Random queries, and prepared ones as the host makes them. */
static void queries_make(struct score_case *c)
{
	struct ucm_cuda_queries *raw = &c->raw;
	size_t elements, item;
	struct ucm_error error;

	raw->dtype = input_types[any(&c->random, 2)];
	raw->num_heads = c->query_heads;
	raw->num = c->num;
	raw->stride_head = c->spec.head_dim + any(&c->random, 2);
	raw->stride_query = raw->stride_head * c->query_heads;
	elements = (size_t)raw->stride_query * c->num;
	item = type_bytes(raw->dtype);
	c->raw_host = malloc(elements * item);
	for (size_t i = 0; i < elements; i++)
		store_number(c->raw_host + i * item, raw->dtype,
			     random_float(&c->random, 2));
	raw->base = twins_upload(c->fixture, c->raw_host, elements * item);
	c->query_floats = ucm_query_floats(&c->spec, c->query_heads, c->per);
	c->query_stride = (c->query_floats + 3) / 4 * 4 +
			  4 * any(&c->random, 2);
	c->queries = malloc(c->query_stride * c->num * sizeof(float));
	memset(c->queries, 0x5a, c->query_stride * c->num * sizeof(float));
	for (uint32_t r = 0; r < c->num; r++) {
		struct ucm_query query = {
			c->raw_host + r * (size_t)raw->stride_query * item,
			raw->dtype, c->query_heads, raw->stride_head,
		};

		done(ucm_query_prepare(&c->spec, &query, c->per,
				       c->queries + r * c->query_stride,
				       &error), &error);
	}
}

/* Prepared by the device, and left there. */
static const float *queries_prepare(struct score_case *c)
{
	size_t bytes = c->query_stride * c->num * sizeof(float);
	void *blank = malloc(bytes);
	struct ucm_error error;
	float *out;

	memset(blank, 0xff, bytes); /* NaN */
	out = twins_upload(c->fixture, blank, bytes);
	free(blank);
	done(ucm_sparse_cuda_prepare(c->fixture->twins, &c->spec, &c->raw,
				     c->per, out, c->query_stride,
				     c->fixture->stream, &error), &error);
	return out;
}

/* What the host says of a request, into its part of want. */
static void score_want(struct score_case *c, const struct requests *requests,
		       uint32_t r, float *want, size_t stride_row)
{
	const int32_t *table = requests->tables + r * requests->stride;
	uint32_t num = request_blocks(requests, r, c->spec.block_size);
	uint32_t rows = c->per == UCM_SCORE_HEAD    ? c->query_heads
			: c->per == UCM_SCORE_GROUP ? c->spec.num_heads
						    : 1;
	struct ucm_error error;

	for (uint32_t i = 0; i < num; i++) {
		struct ucm_score_request request = {
			.query = c->queries + r * c->query_stride,
			.num_heads = c->query_heads,
			.per = c->per,
			.slab = &c->slab,
			.slots = &table[i],
			.num = 1,
			.scores = want + i,
			.stride = stride_row,
		};

		if (table[i] >= 0 && (uint64_t)table[i] < c->slab.num_slots) {
			done(ucm_score(&c->spec, &request, 1, &error), &error);
			continue;
		}
		for (uint32_t j = 0; j < rows; j++)
			want[j * stride_row + i] = ucm_float_of(0x7fc00000);
	}
}

static void scores_compare(struct score_case *c, struct requests *requests)
{
	size_t stride_row = requests->max_blocks + any(&c->random, 3);
	size_t stride_request = stride_row * c->query_heads;
	size_t bytes = stride_request * c->num * sizeof(float);
	float *want = malloc(bytes);
	struct ucm_repr_slab slab = c->slab;
	struct ucm_error error;
	struct ucm_cuda_score score = {
		.queries = queries_prepare(c),
		.query_stride = c->query_stride,
		.num_heads = c->query_heads,
		.per = c->per,
		.slab = &slab,
		.requests = requests->device,
		.stride_request = stride_request,
		.stride_row = stride_row,
	};

	memset(want, 0x5a, bytes);
	score.scores = twins_upload(c->fixture, want, bytes);
	slab.base = twins_upload(c->fixture, c->slab.base,
				 c->slab.num_slots * c->slab.stride_bytes);
	for (uint32_t r = 0; r < c->num; r++)
		score_want(c, requests, r, want + r * stride_request,
			   stride_row);
	done(ucm_sparse_cuda_score(c->fixture->twins, &c->spec, &score,
				   c->fixture->stream, &error), &error);
	same(c->fixture, score.scores, want, bytes, c->number, "scores");
	free(want);
}

void twins_compare_scores(struct twins_fixture *fixture, unsigned number)
{
	struct score_case c = { .fixture = fixture, .number = number,
				.random = random_case(number) };
	struct requests *requests = calloc(1, sizeof(*requests));
	uint32_t num_blocks = 1 + any(&c.random, BLOCKS_MAX - 1);

	c.spec = random_spec(&c.random);
	c.query_heads = c.spec.num_heads * (1 + any(&c.random, 4));
	c.per = any(&c.random, UCM_SCORE_BLOCK);
	requests->max_blocks = 1 + any(&c.random, BLOCKS_MAX);
	/* one more than there is a slot for, now and then */
	requests_make(fixture, requests, c.spec.block_size,
		      num_blocks + !any(&c.random, 3), &c.random);
	c.num = requests->num;
	slab_fill(&c, num_blocks);
	queries_make(&c);
	scores_compare(&c, requests);
	free(c.slab.base);
	free(c.queries);
	free(c.raw_host);
	free(requests);
	twins_release(fixture);
}

/* ---- representations ---- */

struct build_case {
	struct twins_fixture *fixture;
	uint64_t random;
	struct ucm_repr_spec spec;
	struct cache cache;
	size_t cache_bytes;
	struct ucm_repr_slab slab; /* as it ought to be */
	int64_t slots[4 * BLOCKS_MAX];
	int32_t blocks[BLOCKS_MAX], tokens[BLOCKS_MAX];
	struct ucm_cuda_written written;
};

static void build_want(struct build_case *c, int32_t block, uint32_t tokens)
{
	struct ucm_error error;

	done(ucm_repr_build(&c->spec, &c->cache.keys, &block, 1, tokens,
			    &c->slab, &block, &error), &error);
}

/* Some blocks; one that is not there, and one with too many tokens, now and
 * then. */
static void written_list(struct build_case *c)
{
	int full = !any(&c->random, 2);
	uint32_t num = 0, size = c->spec.block_size;

	for (uint32_t i = 0; i < c->cache.keys.num_blocks; i++) {
		c->blocks[num] = (int32_t)i;
		c->tokens[num] = 1 + (int32_t)any(&c->random, size - 1);
		if (any(&c->random, 1))
			continue;
		if (!any(&c->random, 9))
			c->blocks[num] = any(&c->random, 1) ? -1 : BLOCKS_MAX;
		else if (!full && !any(&c->random, 9))
			c->tokens[num] = any(&c->random, 1) ? 0
							    : (int32_t)size + 1;
		else
			build_want(c, c->blocks[num],
				   full ? size : (uint32_t)c->tokens[num]);
		num++;
	}
	c->written.num = num;
	c->written.blocks = twins_upload(c->fixture, c->blocks,
					 sizeof(c->blocks));
	if (!full)
		c->written.tokens = twins_upload(c->fixture, c->tokens,
						 sizeof(c->tokens));
}

/* Tokens of some blocks, as an engine writes them; padding between them. */
static void written_slots(struct build_case *c)
{
	uint32_t num = 0, size = c->spec.block_size;

	for (uint32_t i = 0; i < c->cache.keys.num_blocks; i++) {
		uint32_t first = any(&c->random, size - 1), end = first;

		if (any(&c->random, 1))
			continue;
		while (end < size && end - first < 3 && num < NUM_ROWS(c->slots))
			c->slots[num++] = (int64_t)i * size + end++;
		if (end > first)
			build_want(c, (int32_t)i, end);
		if (num < NUM_ROWS(c->slots) && !any(&c->random, 2))
			c->slots[num++] = -1;
	}
	c->written.num = num;
	c->written.slots = twins_upload(c->fixture, c->slots,
					sizeof(c->slots));
}

static void build_compare(struct build_case *c, unsigned number)
{
	struct ucm_keys keys = c->cache.keys;
	size_t bytes = c->slab.num_slots * c->slab.stride_bytes;
	ptrdiff_t at = (const uint8_t *)keys.base - c->cache.memory;
	struct ucm_repr_slab slab = c->slab;
	struct ucm_error error;

	slab.base = twins_upload(c->fixture, c->slab.base, bytes);
	keys.base = (uint8_t *)twins_upload(c->fixture, c->cache.memory,
					    c->cache_bytes) + at;
	if (any(&c->random, 1))
		written_list(c);
	else
		written_slots(c);
	done(ucm_sparse_cuda_build(c->fixture->twins, &c->spec, &keys,
				   &c->written, &slab, c->fixture->stream,
				   &error), &error);
	same(c->fixture, slab.base, c->slab.base, bytes, number, "slab");
}

void twins_compare_build(struct twins_fixture *fixture, unsigned number)
{
	struct build_case c = { .fixture = fixture,
				.random = random_case(number) };
	uint32_t num_blocks = 1 + any(&c.random, BLOCKS_MAX - 1);
	uint64_t step;

	c.spec = random_spec(&c.random);
	c.cache = cache_make(&c.spec, input_types[any(&c.random, 2)],
			     num_blocks, &c.random);
	step = (uint64_t)llabs(c.cache.keys.stride_block);
	c.cache_bytes = step * num_blocks * type_bytes(c.cache.keys.dtype);
	c.slab = slab_make(&c.spec, num_blocks, 4 * any(&c.random, 4));
	build_compare(&c, number);
	free(c.cache.memory);
	free(c.slab.base);
	twins_release(fixture);
}

/* ---- selection ---- */

struct select_case {
	unsigned number;
	uint64_t random;
	struct ucm_budget_config config;
	struct requests requests;
	float scores[REQUESTS_MAX * SELECT_MAX];
	uint32_t room;
	/* as they ought to be */
	int32_t tables[REQUESTS_MAX * SELECT_MAX];
	uint32_t blocks[REQUESTS_MAX * SELECT_MAX];
	int32_t tokens[REQUESTS_MAX], status[REQUESTS_MAX];
	uint32_t num[REQUESTS_MAX];
};

static struct ucm_budget_config config_make(uint64_t *random)
{
	uint32_t size = 1 + any(random, 30);
	struct ucm_budget_config config = {
		.block_size = size,
		.windows = { .initial_blocks = any(random, 4),
			     .local_blocks = any(random, 4),
			     .sink_tokens = any(random, 64),
			     .recent_tokens = any(random, 64) },
		.ratio = (double)any(random, 1000) / 1000,
		.budget_tokens = any(random, 2) ? 0 : size + any(random, 3000),
		.min_topk = any(random, 8),
		.dense_tokens = any(random, 3) ? 0 : any(random, 200),
	};

	if (!any(random, 2))
		config.max_topk = config.min_topk + any(random, 50);
	return config;
}

/* Many that are equal, of some kinds; both zeros; infinities, and rarely NaN. */
static void scores_make(struct select_case *c)
{
	static const float odd[] = { 0, -0.0f, INFINITY, -INFINITY, 0x1p-140f,
				     -0x1p-140f };
	uint32_t values = any(&c->random, 1) ? 8 : 1u << 20;
	uint32_t some = any(&c->random, 1) ? 4 : 1000;

	for (uint32_t i = 0; i < REQUESTS_MAX * SELECT_MAX; i++) {
		int32_t value = (int32_t)any(&c->random, values);

		c->scores[i] = (float)(value - (int32_t)values / 2);
		if (!any(&c->random, some))
			c->scores[i] = odd[any(&c->random, NUM_ROWS(odd) - 1)];
		if (!any(&c->random, 20000))
			c->scores[i] = NAN;
	}
}

/* What the host says of a request, into its part; nothing where it refuses. */
static void select_want(struct select_case *c, uint32_t r)
{
	const int32_t *table = c->requests.tables +
			       (size_t)r * c->requests.stride;
	uint32_t tokens = (uint32_t)c->requests.tokens[r], num, tokens_out;
	static uint32_t blocks[SELECT_MAX];
	struct ucm_budget budget;
	int err = ucm_budget_blocks(&c->config, tokens, &budget, NULL);

	must(!err);
	if (budget.num_blocks > c->requests.max_blocks)
		err = -EINVAL;
	if (!err)
		err = ucm_select(c->scores + (size_t)r * c->requests.stride,
				 &budget, blocks, c->room, &num, NULL);
	if (!err)
		err = ucm_select_table(table, c->config.block_size, tokens,
				       blocks, num, c->tables + r * c->room,
				       c->room, &tokens_out, NULL);
	c->status[r] = err;
	if (err)
		return;
	memcpy(c->blocks + r * c->room, blocks, num * sizeof(*blocks));
	c->tokens[r] = (int32_t)tokens_out;
	c->num[r] = num;
}

static void select_compare(struct twins_fixture *fixture,
			   struct select_case *c, unsigned number)
{
	int wanted = any(&c->random, 3) != 0;
	struct ucm_error error;
	struct ucm_cuda_select select = {
		.requests = c->requests.device,
		.scores = twins_upload(fixture, c->scores, sizeof(c->scores)),
		.scores_stride = c->requests.stride,
		.tables_out = twins_upload(fixture, c->tables,
					   sizeof(c->tables)),
		.room = c->room,
		.tokens_out = twins_upload(fixture, c->tokens,
					   sizeof(c->tokens)),
		.status = twins_upload(fixture, c->status, sizeof(c->status)),
	};

	if (wanted) {
		select.blocks_out = twins_upload(fixture, c->blocks,
						 sizeof(c->blocks));
		select.num_out = twins_upload(fixture, c->num, sizeof(c->num));
	}
	for (uint32_t r = 0; r < c->requests.num; r++)
		select_want(c, r);
	done(ucm_sparse_cuda_select(fixture->twins, &c->config, &select,
				    fixture->stream, &error), &error);
	same(fixture, select.status, c->status, sizeof(c->status), number,
	     "status");
	same(fixture, select.tables_out, c->tables, sizeof(c->tables), number,
	     "tables_out");
	same(fixture, select.tokens_out, c->tokens, sizeof(c->tokens), number,
	     "tokens_out");
	if (!wanted)
		return;
	same(fixture, select.blocks_out, c->blocks, sizeof(c->blocks), number,
	     "blocks_out");
	same(fixture, select.num_out, c->num, sizeof(c->num), number,
	     "num_out");
}

void twins_compare_select(struct twins_fixture *fixture, unsigned number)
{
	struct select_case *c = calloc(1, sizeof(*c));
	uint32_t num_blocks = 1000;

	c->random = random_case(number);
	c->config = config_make(&c->random);
	c->requests.max_blocks = 1 + any(&c->random, any(&c->random, 2)
							     ? 100 : 2990);
	requests_make(fixture, &c->requests, c->config.block_size, num_blocks,
		      &c->random);
	if (!any(&c->random, 9)) /* a page that is none, and too long a request */
		c->requests.tables[any(&c->random, 20)] = -1;
	if (!any(&c->random, 9))
		c->requests.tokens[0] += (int32_t)c->config.block_size;
	twins_release(fixture);
	c->requests.device.tables = twins_upload(fixture, c->requests.tables,
						 sizeof(c->requests.tables));
	c->requests.device.tokens = twins_upload(fixture, c->requests.tokens,
						 sizeof(c->requests.tokens));
	c->room = any(&c->random, 9) ? SELECT_MAX
				     : any(&c->random, c->requests.max_blocks);
	scores_make(c);
	select_compare(fixture, c, number);
	free(c);
	twins_release(fixture);
}

/* ---- positions ---- */

static struct ucm_key_room room_of(const struct ucm_keys *keys)
{
	return (struct ucm_key_room){ (void *)(uintptr_t)keys->base,
				      keys->num_blocks, keys->stride_block,
				      keys->stride_token, keys->stride_head };
}

static struct ucm_rope rope_make(uint64_t *random)
{
	static const uint32_t dims[] = { 2, 6, 64, 80, 128, 576 };
	struct ucm_rope rope = {
		.pairing = any(random, UCM_ROPE_PAIRINGS - 1),
		.scaling = any(random, UCM_ROPE_SCALINGS - 1),
		.head_dim = dims[any(random, NUM_ROWS(dims) - 1)],
		.base = any(random, 1) ? 10000 : 500000,
		.factor = 1 + any(random, 31),
		.original_length = 4096,
	};

	if (rope.head_dim > 512 || any(random, 1))
		rope.rotary_dim = 2 * (1 + any(random, 31));
	if (rope.rotary_dim > rope.head_dim)
		rope.rotary_dim = 0;
	return rope;
}

struct shift_case {
	struct ucm_repr_spec spec; /* of the caches' shape */
	struct ucm_rope rope;
	struct both from, to;
	int in_place;
	uint32_t num;
	int32_t from_blocks[BLOCKS_MAX], to_blocks[BLOCKS_MAX];
	int32_t tokens[BLOCKS_MAX], deltas[BLOCKS_MAX * 64];
	struct ucm_cuda_shift shift;
};

static void shift_make(struct shift_case *c, uint64_t *random)
{
	uint32_t size = c->spec.block_size, turn = any(random, BLOCKS_MAX);
	int far = (int)any(random, 1);

	for (uint32_t i = 0; i < c->num; i++) {
		c->from_blocks[i] = (int32_t)i;
		c->to_blocks[i] = (int32_t)((i + turn) % c->num);
		if (c->in_place)
			c->to_blocks[i] = c->from_blocks[i];
		c->tokens[i] = (int32_t)any(random, size);
	}
	for (uint32_t i = 0; i < c->num * size; i++) {
		c->deltas[i] = (int32_t)any(random, far ? 1 << 24 : 4) -
			       (far ? 1 << 23 : 2);
		if (i && any(random, 1)) /* a run of tokens */
			c->deltas[i] = c->deltas[i - 1];
	}
}

static void shift_want(struct shift_case *c, uint32_t i)
{
	const struct ucm_keys *to = c->in_place ? &c->from.host.keys
						: &c->to.host.keys;
	struct ucm_shift_request request = {
		.from = c->from.host.keys,
		.to = room_of(to),
		.from_blocks = &c->from_blocks[i],
		.to_blocks = &c->to_blocks[i],
		.num = 1,
		.num_heads = c->spec.num_heads,
		.block_size = c->spec.block_size,
		.last_tokens = (uint32_t)c->tokens[i],
		.deltas = &c->deltas[c->shift.per_token
					     ? i * c->spec.block_size : i],
		.per_token = c->shift.per_token,
		.unrotated = c->shift.unrotated,
	};
	struct ucm_error error;

	if (c->tokens[i])
		done(ucm_rope_shift(&c->rope, &request, &error), &error);
}

static void shift_compare(struct twins_fixture *fixture, struct shift_case *c,
			  unsigned number, uint64_t *random)
{
	struct ucm_cuda_shift *shift = &c->shift;
	struct ucm_error error;

	*shift = (struct ucm_cuda_shift){
		.from = c->from.device,
		.to = room_of(c->in_place ? &c->from.device : &c->to.device),
		.from_blocks = twins_upload(fixture, c->from_blocks,
					    sizeof(c->from_blocks)),
		.to_blocks = twins_upload(fixture, c->to_blocks,
					  sizeof(c->to_blocks)),
		.tokens = twins_upload(fixture, c->tokens, sizeof(c->tokens)),
		.num = c->num,
		.num_heads = c->spec.num_heads,
		.block_size = c->spec.block_size,
		.deltas = twins_upload(fixture, c->deltas, sizeof(c->deltas)),
		.per_token = any(random, 1),
		.unrotated = any(random, 1),
	};
	for (uint32_t i = 0; i < c->num; i++)
		shift_want(c, i);
	done(ucm_sparse_cuda_shift(fixture->twins, &c->rope, shift,
				   fixture->stream, &error), &error);
	both_same(fixture, &c->from, number, "from");
	if (!c->in_place)
		both_same(fixture, &c->to, number, "to");
}

void twins_compare_shift(struct twins_fixture *fixture, unsigned number)
{
	struct shift_case *c = calloc(1, sizeof(*c));
	uint64_t random = random_case(number);
	uint32_t dtype = input_types[any(&random, 2)];

	c->rope = rope_make(&random);
	c->spec = (struct ucm_repr_spec){
		.num_heads = 1 + any(&random, 3),
		.head_dim = c->rope.head_dim,
		.block_size = 1 + any(&random, 39),
	};
	c->num = 1 + any(&random, 4);
	c->in_place = (int)any(&random, 1);
	c->from = both_make(fixture, &c->spec, dtype, c->num, &random);
	c->to = both_make(fixture, &c->spec, dtype, c->num, &random);
	shift_make(c, &random);
	shift_compare(fixture, c, number, &random);
	free(c->from.host.memory);
	free(c->to.host.memory);
	free(c);
	twins_release(fixture);
}

struct deviation_case {
	struct ucm_repr_spec spec, fresh; /* of the caches' shape */
	struct both pairs[2][2];          /* keys, values: cached, fresh */
	int32_t table[BLOCKS_MAX];
	struct ucm_deviation_request host;
};

static void deviation_compare(struct twins_fixture *fixture,
			      struct deviation_case *c, unsigned number)
{
	struct ucm_deviation_request device = c->host;
	size_t bytes = c->host.num_tokens * sizeof(float);
	float *want = malloc(bytes), *out;
	struct ucm_error error;

	memset(want, 0x5a, bytes);
	out = twins_upload(fixture, want, bytes);
	done(ucm_kv_deviation(&c->host, want, &error), &error);
	device.cached = c->pairs[0][0].device;
	device.fresh = c->pairs[0][1].device;
	if (c->host.cached_values.base) {
		device.cached_values = c->pairs[1][0].device;
		device.fresh_values = c->pairs[1][1].device;
	}
	device.table = twins_upload(fixture, c->table, sizeof(c->table));
	done(ucm_sparse_cuda_deviation(fixture->twins, &device, out,
				       fixture->stream, &error), &error);
	same(fixture, out, want, bytes, number, "deviation");
	free(want);
}

void twins_compare_deviation(struct twins_fixture *fixture, unsigned number)
{
	struct deviation_case *c = calloc(1, sizeof(*c));
	uint64_t random = random_case(number);
	uint32_t num_blocks = 1 + any(&random, 5);

	c->spec = random_spec(&random);
	c->fresh = c->spec;
	c->fresh.block_size = c->spec.block_size * (1 + any(&random, 4));
	for (int i = 0; i < 4; i++)
		c->pairs[i / 2][i % 2] =
			both_make(fixture, i % 2 ? &c->fresh : &c->spec,
				  input_types[any(&random, 2)],
				  i % 2 ? 1 : num_blocks, &random);
	for (uint32_t i = 0; i < BLOCKS_MAX; i++)
		c->table[i] = (int32_t)any(&random, num_blocks - 1);
	c->host = (struct ucm_deviation_request){
		.cached = c->pairs[0][0].host.keys,
		.fresh = c->pairs[0][1].host.keys,
		.table = c->table,
		.num_tokens = 1 + any(&random, c->fresh.block_size - 1),
		.num_heads = c->spec.num_heads,
		.head_dim = c->spec.head_dim,
		.block_size = c->spec.block_size,
		.relative = any(&random, 1),
	};
	if (any(&random, 1)) {
		c->host.cached_values = c->pairs[1][0].host.keys;
		c->host.fresh_values = c->pairs[1][1].host.keys;
	}
	deviation_compare(fixture, c, number);
	for (int i = 0; i < 4; i++)
		free(c->pairs[i / 2][i % 2].host.memory);
	free(c);
	twins_release(fixture);
}
