/* SPDX-License-Identifier: Apache-2.0 */
/* twins_attention.c - attention of the device and that of the CPU: the same bits
 * where a request is one part, and near enough where it is several. */
#include <config.h>

#include "tests/unit/twins_inside.h"

#define PART_TOKENS 256u

struct attend_case {
	struct twins_fixture *fixture;
	unsigned number;
	uint64_t random;
	struct ucm_rope rope;
	struct ucm_rerope rerope;
	float *angles; /* NULL: without ReRoPE */
	const float *device_angles;
	struct both keys, values;
	struct requests requests;
	uint8_t *queries;
	int32_t positions[REQUESTS_MAX];
	uint32_t selected[REQUESTS_MAX * SELECT_MAX];
	struct ucm_cuda_attention device;
	float *want, *want_lse;
};

static uint32_t value_dim(const struct attend_case *c)
{
	return c->device.value_dim ? c->device.value_dim : c->device.head_dim;
}

static void caches_make(struct attend_case *c, uint32_t num_blocks)
{
	struct ucm_repr_spec spec = { .num_heads = c->device.num_heads,
				      .head_dim = c->device.head_dim,
				      .block_size = c->device.block_size };

	c->keys = both_make(c->fixture, &spec, input_types[any(&c->random, 2)],
			    num_blocks, &c->random);
	spec.head_dim = value_dim(c);
	c->values = both_make(c->fixture, &spec,
			      input_types[any(&c->random, 2)], num_blocks,
			      &c->random);
	c->device.keys = c->keys.device;
	c->device.values = c->values.device;
}

static void queries_make(struct attend_case *c)
{
	struct ucm_cuda_queries *queries = &c->device.queries;
	size_t num, item;

	queries->dtype = input_types[any(&c->random, 2)];
	queries->num = c->requests.num;
	queries->stride_head = c->device.head_dim + any(&c->random, 2);
	queries->stride_query = queries->stride_head * queries->num_heads;
	num = (size_t)queries->stride_query * queries->num;
	item = type_bytes(queries->dtype);
	c->queries = malloc(num * item);
	for (size_t i = 0; i < num; i++)
		store_number(c->queries + i * item, queries->dtype,
			     random_float(&c->random, 1));
	queries->base = twins_upload(c->fixture, c->queries, num * item);
}

/* Blocks of a longer request, ascending; and a position behind them. */
static void positions_make(struct attend_case *c)
{
	uint32_t stride = c->requests.stride, size = c->device.block_size;

	for (uint32_t r = 0; r < c->requests.num; r++) {
		uint32_t tokens = (uint32_t)c->requests.tokens[r], at = 0;
		uint32_t blocks = request_blocks(&c->requests, r, size);

		for (uint32_t i = 0; i < blocks; i++) {
			at += i ? 1 + any(&c->random, 2) : any(&c->random, 2);
			c->selected[r * stride + i] = at;
		}
		c->positions[r] = (int32_t)(at * size +
					    (tokens ? (tokens - 1) % size : 0) +
					    any(&c->random, 3) * 50);
	}
	c->device.selected = twins_upload(c->fixture, c->selected,
					  sizeof(c->selected));
	c->device.selected_stride = stride;
	c->device.positions = twins_upload(c->fixture, c->positions,
					   sizeof(c->positions));
}

static void rerope_make(struct attend_case *c)
{
	uint32_t dim = c->device.head_dim;
	size_t floats;
	struct ucm_error error;

	c->rerope = (struct ucm_rerope){
		.rope = { .pairing = any(&c->random, 1), .head_dim = dim,
			  .base = 10000,
			  .rotary_dim = any(&c->random, 1) ? 2 : 0 },
		.window = 1 + any(&c->random, 300),
		.training_length = any(&c->random, 1) ? 1 << 20 : 0,
	};
	floats = ucm_rerope_floats(&c->rerope, c->device.block_size);
	c->angles = malloc(floats * sizeof(float));
	done(ucm_rerope_prepare(&c->rerope, c->device.block_size, c->angles,
				&error), &error);
	c->device_angles = twins_upload(c->fixture, c->angles,
					floats * sizeof(float));
	positions_make(c);
}

/* What the CPU says of a request, or 0. */
static void attention_want(struct attend_case *c, uint32_t r, float *out,
			   float *lse)
{
	const struct ucm_cuda_queries *queries = &c->device.queries;
	struct ucm_attention attention = {
		.query = { c->queries + r * (size_t)queries->stride_query *
						type_bytes(queries->dtype),
			   queries->dtype, queries->num_heads,
			   queries->stride_head },
		.keys = c->keys.host.keys,
		.values = c->values.host.keys,
		.table = c->requests.tables + r * c->requests.stride,
		.num_tokens = (uint32_t)c->requests.tokens[r],
		.num_heads = c->device.num_heads,
		.head_dim = c->device.head_dim,
		.value_dim = c->device.value_dim,
		.block_size = c->device.block_size,
		.scale = c->device.scale,
		.position = (uint32_t)c->positions[r],
		.selected = c->selected + r * c->requests.stride,
	};
	size_t floats = ucm_attention_floats(&attention);
	float *work = malloc(floats * sizeof(float));
	struct ucm_error error;

	if (!attention.num_tokens) {
		memset(out, 0, queries->num_heads * value_dim(c) *
				       sizeof(float));
		for (uint32_t i = 0; i < queries->num_heads; i++)
			lse[i] = -INFINITY;
	} else if (c->angles) {
		done(ucm_rerope_decode(&c->rerope, c->angles, &attention, work,
				       out, lse, &error), &error);
	} else {
		done(ucm_attention_decode(&attention, work, out, lse, &error),
		     &error);
	}
	free(work);
}

static float largest_value(const struct attend_case *c)
{
	float most = 0;

	for (size_t i = 0; i < c->values.bytes;
	     i += type_bytes(c->values.host.keys.dtype))
		most = fmaxf(most, fabsf(load_number(
					   c->values.host.memory + i,
					   c->values.host.keys.dtype)));
	return most;
}

static void request_compare(struct attend_case *c, uint32_t r, const float *got,
			    const float *lse)
{
	uint32_t size = c->device.block_size;
	uint32_t blocks = request_blocks(&c->requests, r, size);
	uint32_t each = size < PART_TOKENS ? PART_TOKENS / size : 1;
	uint32_t parts = (blocks + each - 1) / each;
	uint32_t heads = c->device.queries.num_heads;
	uint32_t num = heads * value_dim(c);
	double off = parts > 1 ? (parts + 4) * 0x1p-20 *
					 (double)largest_value(c) : 0;

	for (uint32_t i = 0; i < num; i++)
		must_in_case(fabs((double)got[i] - (double)c->want[i]) <= off,
			     c->number, "attention");
	if (parts <= 1)
		must_in_case(!memcmp(got, c->want, num * sizeof(float)),
			     c->number, "the bits of attention");
	for (uint32_t i = 0; i < heads; i++)
		must_in_case(lse[i] == c->want_lse[i] ||
			     fabsf(lse[i] - c->want_lse[i]) <=
				     0x1p-20f * (4 + fabsf(c->want_lse[i])),
			     c->number, "lse");
}

static void attention_compare(struct attend_case *c)
{
	uint32_t heads = c->device.queries.num_heads;
	size_t out_stride = (size_t)heads * value_dim(c) + any(&c->random, 2);
	size_t num = out_stride * c->requests.num;
	size_t work = ucm_sparse_cuda_attention_floats(&c->device);
	float *out = calloc(num + work, sizeof(float)), *lse;
	struct ucm_error error;

	lse = calloc(heads * REQUESTS_MAX, sizeof(float));
	c->want = calloc(out_stride, sizeof(float));
	c->want_lse = calloc(heads, sizeof(float));
	c->device.out = twins_upload(c->fixture, out, num * sizeof(float));
	c->device.work = twins_upload(c->fixture, out, work * sizeof(float));
	c->device.lse = twins_upload(c->fixture, lse,
				     heads * REQUESTS_MAX * sizeof(float));
	c->device.out_stride = out_stride;
	c->device.lse_stride = heads;
	if (c->angles)
		done(ucm_sparse_cuda_rerope(c->fixture->twins, &c->rerope,
					    c->device_angles, &c->device,
					    c->fixture->stream, &error),
		     &error);
	else
		done(ucm_sparse_cuda_attention(c->fixture->twins, &c->device,
					       c->fixture->stream, &error),
		     &error);
	twins_download(c->fixture, out, c->device.out, num * sizeof(float));
	twins_download(c->fixture, lse, c->device.lse,
		       heads * REQUESTS_MAX * sizeof(float));
	for (uint32_t r = 0; r < c->requests.num; r++) {
		attention_want(c, r, c->want, c->want_lse);
		request_compare(c, r, out + r * out_stride, lse + r * heads);
	}
	free(out);
	free(lse);
}

void twins_compare_attention(struct twins_fixture *fixture, unsigned number)
{
	static const uint32_t dims[] = { 2, 6, 64, 80, 128, 576 };
	struct attend_case *c = calloc(1, sizeof(*c));
	uint32_t num_blocks;

	c->fixture = fixture;
	c->number = number;
	c->random = random_case(number);
	num_blocks = 1 + any(&c->random, 9);
	c->device.head_dim = dims[any(&c->random, NUM_ROWS(dims) - 1)];
	c->device.value_dim = any(&c->random, 1) ? 0 : 1 + any(&c->random, 99);
	c->device.num_heads = 1 + any(&c->random, 1);
	c->device.block_size = 1 + any(&c->random, 39);
	c->device.scale = any(&c->random, 1) ? 0 : .5;
	c->device.queries.num_heads = c->device.num_heads *
				      (1 + any(&c->random, 9));
	caches_make(c, num_blocks);
	c->requests.max_blocks = 1 + any(&c->random, 19);
	requests_make(fixture, &c->requests, c->device.block_size, num_blocks,
		      &c->random);
	c->device.requests = c->requests.device;
	queries_make(c);
	if (c->device.head_dim < 512 && any(&c->random, 1))
		rerope_make(c);
	attention_compare(c);
	free(c->keys.host.memory);
	free(c->values.host.memory);
	free(c->queries);
	free(c->angles);
	free(c->want);
	free(c->want_lse);
	free(c);
	twins_release(fixture);
}
