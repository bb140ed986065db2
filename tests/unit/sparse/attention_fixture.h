/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_fixture.h - requests over a cache, what is selected of them, and
 * the fast way over one token.
 */
#ifndef UCM_TESTS_ATTENTION_FIXTURE_H
#define UCM_TESTS_ATTENTION_FIXTURE_H

#include "sparse/rerope.h"
#include "tests/unit/sparse_fixture.h"

/* A request over a cache, with a table of its own. */
struct scene {
	struct ucm_attention attention;
	struct cache keys, values;
	int32_t table[64];
	float query[16 * 96];
	uint32_t num_blocks;
};

#define SCENE_OUT (16 * 96)

static inline struct scene *scene_make(unsigned number)
{
	uint64_t random = random_case(number);
	struct scene *s = calloc(1, sizeof(*s));
	struct ucm_repr_spec spec = {
		.num_heads = (uint32_t)random_between(&random, 1, 3),
		.head_dim = 2 * (uint32_t)random_between(&random, 1, 48),
		.block_size = (uint32_t)random_between(&random, 1, 40),
	};
	uint32_t dim = spec.head_dim, there;

	must(s);
	s->num_blocks = (uint32_t)random_between(&random, 1, 20);
	there = s->num_blocks + 3;
	s->keys = cache_make(&spec, input_types[random_between(&random, 0, 2)],
			     there, &random);
	if (random_between(&random, 0, 1))
		spec.head_dim = (uint32_t)random_between(&random, 1, 96);
	s->values = cache_make(&spec,
			       input_types[random_between(&random, 0, 2)],
			       there, &random);
	for (uint32_t i = 0; i < there; i++) {
		uint32_t j = (uint32_t)random_between(&random, 0, i);

		s->table[i] = s->table[j];
		s->table[j] = (int32_t)i;
	}
	s->attention = (struct ucm_attention){
		.query = { NULL, UCM_DTYPE_FLOAT32,
			   spec.num_heads *
				   (uint32_t)random_between(&random, 1, 5),
			   dim },
		.keys = s->keys.keys, .values = s->values.keys,
		.table = s->table, .num_heads = spec.num_heads,
		.head_dim = dim,
		.value_dim = spec.head_dim == dim ? 0 : spec.head_dim,
		.block_size = spec.block_size,
		.scale = random_between(&random, 0, 1) ? 0.02 : 0,
	};
	s->attention.num_tokens = (s->num_blocks - 1) * spec.block_size +
		(uint32_t)random_between(&random, 1, spec.block_size);
	for (size_t i = 0; i < NUM_ROWS(s->query); i++)
		s->query[i] = random_float(&random, .3f);
	s->attention.query.base = s->query;
	return s;
}

static inline void scene_free(struct scene *s)
{
	free(s->keys.memory);
	free(s->values.memory);
	free(s);
}

static inline uint32_t value_dim(const struct scene *s)
{
	return s->attention.value_dim ? s->attention.value_dim
				      : s->attention.head_dim;
}

/* Attention over the blocks for which chosen() says so; the number of them. */
static inline uint32_t select_blocks(const struct scene *s, uint32_t mask,
				     struct ucm_attention *out, int32_t *table)
{
	uint32_t selected[64], num = 0;

	for (uint32_t i = 0; i < s->num_blocks; i++) {
		if (mask >> i & 1)
			selected[num++] = i;
	}
	*out = s->attention;
	must(!ucm_select_table(s->table, s->attention.block_size,
			       s->attention.num_tokens, selected, num, table,
			       64, &out->num_tokens, NULL));
	out->table = table;
	return num;
}

/* ---- one token, fast ---- */

/* Room for a scene, with marks behind it. */
struct decoded {
	float out[SCENE_OUT + 1], lse[17];
};

static inline int run_decode(const struct ucm_rerope *rerope,
			     const struct ucm_attention *a, struct decoded *to,
			     struct ucm_error *error)
{
	size_t num = ucm_attention_floats(a), angles_num = 0;
	float *work = malloc((num + 1) * sizeof(*work)), *angles = NULL;
	int err;

	must(work && num);
	for (size_t i = 0; i <= num; i++)
		work[i] = NAN; /* what is not written must not be read */
	if (rerope) {
		angles_num = ucm_rerope_floats(rerope, a->block_size);
		angles = malloc((angles_num + 1) * sizeof(*angles));
		must(angles && angles_num);
		angles[angles_num] = 77;
		must(!ucm_rerope_prepare(rerope, a->block_size, angles, NULL));
		must(angles[angles_num] == 77);
	}
	work[num] = 77;
	err = rerope ? ucm_rerope_decode(rerope, angles, a, work, to->out,
					 to->lse, error)
		     : ucm_attention_decode(a, work, to->out, to->lse, error);
	must(work[num] == 77);
	free(work);
	free(angles);
	return err;
}

static inline void mark(struct decoded *decoded)
{
	memset(decoded, 0x55, sizeof(*decoded));
}

/* The largest value and product: what errors are in proportion to. */
static inline double largest(const struct scene *s, double *products)
{
	double most = 0;

	for (uint32_t t = 0; t < s->attention.num_tokens; t++) {
		uint64_t block = (uint64_t)s->table[t /
						    s->attention.block_size];

		for (uint32_t h = 0; h < s->attention.num_heads; h++)
			for (uint32_t i = 0; i < value_dim(s); i++)
				most = fmax(most, fabs((double)cache_key(
					&s->values, block,
					t % s->attention.block_size, h, i)));
	}
	/* |q| <= .3, |k| <= 100, and scale at most 1 */
	*products = .3 * 100 * s->attention.head_dim *
		    (s->attention.scale > 0 ? s->attention.scale
					    : 1 / sqrt(s->attention.head_dim));
	return most;
}

/* Against the reference; and all that is behind the end is as it was. */
static inline void check_decoded(const struct scene *s,
				 const struct decoded *got, const double *out,
				 const double *lse)
{
	uint32_t heads = s->attention.query.num_heads, dim = value_dim(s);
	struct decoded marked;
	double products, value = largest(s, &products);
	double off = 0x1p-20 * (4 + products);

	mark(&marked);
	for (uint32_t i = 0; i < heads * dim; i++)
		must(fabs((double)got->out[i] - out[i]) <= off * value);
	for (uint32_t i = 0; i < heads; i++)
		must(fabs((double)got->lse[i] - lse[i]) <=
		     off * fmax(1, fabs(lse[i])));
	must(!memcmp(&got->out[heads * dim], &marked.out[heads * dim],
		     (SCENE_OUT + 1 - heads * dim) * sizeof(float)));
	must(!memcmp(&got->lse[heads], &marked.lse[heads],
		     (17 - heads) * sizeof(float)));
}

/* ---- ReRoPE ---- */

static inline struct ucm_rerope rerope_make(struct scene *s, unsigned number)
{
	uint64_t random = random_case(number + 100000);
	struct ucm_rerope rerope = {
		.rope = { .pairing = (uint32_t)random_between(&random, 0, 1),
			  .head_dim = s->attention.head_dim, .base = 10000 },
		.window = (uint32_t)random_between(&random, 1,
						   s->attention.num_tokens + 2),
	};

	if (random_between(&random, 0, 1))
		rerope.rope.rotary_dim = 2 * (uint32_t)random_between(
			&random, 1, rerope.rope.head_dim / 2);
	if (random_between(&random, 0, 1)) {
		rerope.rope.scaling = UCM_ROPE_YARN;
		rerope.rope.factor = 4;
		rerope.rope.original_length = 100;
	}
	if (random_between(&random, 0, 1))
		rerope.training_length = (uint32_t)random_between(&random, 2,
								  300);
	s->attention.position = s->attention.num_tokens - 1 +
				(uint32_t)random_between(&random, 0, 5);
	return rerope;
}

#endif
