/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shards.c - blocks by id and shard, by both forms of the interface,
 * against what a reader of store.h would expect to find.
 */
#include <config.h>

#include "tests/unit/shards/shards_fixture.h"

#include <ucm/shards.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ---- */

static const struct {
	uint64_t tensor, shard, block;
	uint32_t layers;
	int err;
	struct ucm_shards_shape want;
} sizes[] = {
	{ 2048,
	  4096,
	  16384,
	  0,
	  0,
	  { .layer_size = 4096,
	    .num_layers = 4,
	    .num_shards = 4,
	    .tensors_per_shard = 2 } },
	{ 2048,
	  0,
	  16384,
	  0,
	  0,
	  { .layer_size = 2048,
	    .num_layers = 8,
	    .num_shards = 1,
	    .tensors_per_shard = 8 } },
	{ 2048,
	  0,
	  16384,
	  4,
	  0,
	  { .layer_size = 4096,
	    .num_layers = 4,
	    .num_shards = 1,
	    .tensors_per_shard = 8 } },
	{ 16384,
	  0,
	  0,
	  4,
	  0,
	  { .layer_size = 4096,
	    .num_layers = 4,
	    .num_shards = 1,
	    .tensors_per_shard = 1 } },
	{ 4096,
	  4096,
	  16384,
	  16,
	  0,
	  { .layer_size = 1024,
	    .num_layers = 16,
	    .num_shards = 4,
	    .tensors_per_shard = 1 } },
	{ 1024,
	  8192,
	  16384,
	  8,
	  0,
	  { .layer_size = 2048,
	    .num_layers = 8,
	    .num_shards = 2,
	    .tensors_per_shard = 8 } },
	{ 1,
	  3,
	  9,
	  0,
	  0,
	  { .layer_size = 3,
	    .num_layers = 3,
	    .num_shards = 3,
	    .tensors_per_shard = 3 } },
	{ 0, 4096, 16384, 0, -EINVAL, { 0 } },
	{ 0, 0, 0, 0, -EINVAL, { 0 } },
	{ 3000, 4096, 16384, 0, -EINVAL, { 0 } },
	{ 2048, 6144, 16384, 0, -EINVAL, { 0 } },
	{ 4096, 2048, 16384, 0, -EINVAL, { 0 } },
	{ 2048, 4096, 16384, 3, -EINVAL, { 0 } }, /* not whole bytes */
	{ 2048, 4096, 16384, 2, -EINVAL, { 0 } }, /* two shards to a layer */
	{ 96,
	  96,
	  192,
	  6,
	  0,
	  { .layer_size = 32,
	    .num_layers = 6,
	    .num_shards = 2,
	    .tensors_per_shard = 1 } },
	{ 6, 12, 12, 3, -EINVAL, { 0 } }, /* tensors of 6, layers of 4 */
	{ UINT64_C(1) << 33, 0, 0, 0, -EINVAL, { 0 } },
	{ 1, UINT64_C(1) << 33, UINT64_C(1) << 33, 1 << 20, -EINVAL, { 0 } },
};

UNIT_FIXTURE(.setup = setup, .teardown = teardown, .timeout = 120);

UNIT_TEST(sizes_fit_each_other, .rows = NUM_ROWS(sizes))
{
	struct ucm_shards_config config = { .size = sizeof(config),
					    .tensor_size = sizes[_i].tensor,
					    .shard_size = sizes[_i].shard,
					    .block_size = sizes[_i].block,
					    .num_layers = sizes[_i].layers };
	const struct ucm_shards_shape *want = &sizes[_i].want;
	struct ucm_shards *other = NULL;
	struct ucm_shards_shape shape;

	ck_assert_int_eq(ucm_shards_open(loader, &config, &other, &error),
			 sizes[_i].err);
	if (sizes[_i].err) {
		ck_assert_ptr_null(other);
		ck_assert_uint_gt(strlen(error.text), 0);
		return;
	}
	ucm_shards_get_shape(other, &shape);
	ck_assert_uint_eq(shape.layer_size, want->layer_size);
	ck_assert_uint_eq(shape.num_layers, want->num_layers);
	ck_assert_uint_eq(shape.num_shards, want->num_shards);
	ck_assert_uint_eq(shape.tensors_per_shard, want->tensors_per_shard);
	ucm_shards_close(other);
}

UNIT_TEST(what_is_no_configuration_is_refused)
{
	struct ucm_shards_config config = by_layer;
	struct ucm_geometry geometry = lf_geometry;
	struct ucm_shards *other = NULL;

	config.size = 0;
	ck_assert_int_eq(ucm_shards_open(loader, &config, &other, NULL),
			 -EINVAL);
	config = by_layer;
	config.geometry = &geometry;
	geometry.v_bytes = 0; /* not 16384 bytes */
	ck_assert_int_eq(ucm_shards_open(loader, &config, &other, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "geometry"));
	geometry = lf_geometry;
	geometry.head_dim = 33; /* no header says that */
	ck_assert_int_eq(ucm_shards_open(loader, &config, &other, NULL),
			 -EINVAL);
	config = by_layer;
	config.num_layers = 8; /* the geometry has 4 */
	ck_assert_int_eq(ucm_shards_open(loader, &config, &other, NULL),
			 -EINVAL);
	config = by_layer;
	config.space = "none";
	ck_assert_int_eq(ucm_shards_open(loader, &config, &other, &error),
			 -ENOENT);
	ucm_shards_close(NULL);
}

/* ---- V1 ---- */

/* Ways to cut the same blocks; shards, in an order to dump them. */
static const struct {
	uint64_t tensor, shard;
	uint32_t layers;
	enum ucm_io_kind io;
	unsigned num;
	uint32_t order[8];
} cuts[] = {
	{ 2048, 4096, 4, USUAL_IO, 4, { 0, 1, 2, 3 } },
	{ 2048, 4096, 4, USUAL_IO, 4, { 3, 1, 0, 2 } },
	{ 2048, 4096, 8, UCM_IO_THREADS, 4, { 2, 3, 1, 0 } },
	{ 4096, 8192, 4, USUAL_IO, 2, { 1, 0 } },
	{ 16384, 16384, 4, USUAL_IO, 1, { 0 } },
	{ 512, 16384, 4, UCM_IO_THREADS, 1, { 0 } },
	{ 512, 2048, 8, USUAL_IO, 8, { 7, 0, 6, 1, 5, 2, 4, 3 } },
};

UNIT_TEST(shards_make_a_block_in_any_order, .rows = NUM_ROWS(cuts))
{
	struct ucm_shards_config config = {
		.size = sizeof(config),
		.tensor_size = cuts[_i].tensor,
		.shard_size = cuts[_i].shard,
		.block_size = BLOCK,
		.num_layers = cuts[_i].layers,
		.geometry = cuts[_i].layers == LAYERS ? &lf_geometry : NULL,
	};

	ucm_shards_close(store);
	ucm_loader_close(loader);
	open_loader(cuts[_i].io);
	open_store(&config);
	for (unsigned i = 0; i < cuts[_i].num; i++) {
		ck_assert(!there(1));
		ck_assert_int_eq(dump_shard(1, cuts[_i].order[i]), 0);
	}
	ck_assert(there(1));
	check_loads(1);
	if (config.geometry)
		ck_assert(lf_saved("$/tier", &lf_geometry, 1));
}

/* A call with several blocks, and other shards of each. */
UNIT_TEST(entries_of_a_call_have_outcomes_of_their_own)
{
	uint32_t shards[] = { 2, 0, 1, 2 };
	struct ucm_id ids[] = { lf_id(0), lf_id(7), lf_id(1), lf_id(1) };
	struct ucm_outcome outcomes[4];
	uint8_t memory[4][LAYER] = { { 0 } };
	struct ucm_span spans[4], halves[8];
	uint64_t handle;

	lf_plant("$/tier", &lf_geometry, 0);
	lf_plant("$/tier", &lf_geometry, 1);
	for (unsigned i = 0; i < 4; i++) {
		spans[i] = (struct ucm_span){ (uintptr_t)memory[i], LAYER };
		/* V first in memory, K behind it */
		halves[2 * i] =
			(struct ucm_span){ (uintptr_t)memory[i] + TENSOR,
					   TENSOR };
		halves[2 * i + 1] =
			(struct ucm_span){ (uintptr_t)memory[i], TENSOR };
	}
	ck_assert_int_eq(ucm_shards_load_data(store, ids, shards, 4, spans, 4,
					      &handle, &error),
			 0);
	ck_assert_int_eq(ucm_shards_wait(store, handle, 20000, outcomes, 4),
			 -EIO);
	ck_assert_int_eq(outcomes[0].err, 0);
	ck_assert_int_eq(outcomes[1].err, -ENOENT);
	ck_assert_int_eq(outcomes[2].err, 0);
	ck_assert_int_eq(outcomes[3].err, 0);
	ck_assert(is_block(memory[0], 0, 2 * LAYER, LAYER));
	ck_assert(memory[1][0] == 0 && memory[1][LAYER - 1] == 0);
	ck_assert(is_block(memory[2], 1, 1 * LAYER, LAYER));
	ck_assert(is_block(memory[3], 1, 2 * LAYER, LAYER));

	ck_assert_int_eq(ucm_shards_load_data(store, ids, shards, 4, halves, 8,
					      &handle, &error),
			 0);
	ck_assert_int_eq(ucm_shards_wait(store, handle, 20000, NULL, 0), -EIO);
	ck_assert(is_block(memory[3] + TENSOR, 1, 2 * LAYER, TENSOR));
	ck_assert(is_block(memory[3], 1, 2 * LAYER + TENSOR, TENSOR));
}

UNIT_TEST(a_block_that_exists_is_skipped)
{
	uint8_t *bytes = filled(3);
	struct ucm_outcome outcome;

	lf_plant("$/tier", &lf_geometry, 3);
	for (uint32_t i = 0; i < 2 * LAYERS; i++) {
		ck_assert_int_eq(
			wait_one(start_shard(true, 3, i % LAYERS, bytes),
				 &outcome),
			0);
		ck_assert_uint_eq(outcome.skipped, 1);
	}
	check_loads(3);
	free(bytes);
}

UNIT_TEST(wrong_arguments_start_nothing)
{
	uint8_t memory[LAYER];
	struct ucm_id id = lf_id(5);
	uint32_t shard = LAYERS;
	uint64_t addresses[] = { (uintptr_t)memory,
				 (uintptr_t)memory + TENSOR };
	uint64_t nowhere[] = { (uintptr_t)memory, 0 };
	struct ucm_span span = { (uintptr_t)memory, LAYER - 1 };
	struct ucm_span spans[] = { { (uintptr_t)memory, TENSOR },
				    { (uintptr_t)memory, TENSOR },
				    { (uintptr_t)memory, TENSOR } };
	uint64_t handle = 77;

	ck_assert_int_eq(ucm_shards_load(store, &id, &shard, 1, addresses,
					 &handle, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "shard 4 of 4"));
	ck_assert_int_eq(
		ucm_shards_dump(store, &id, NULL, 1, nowhere, &handle, &error),
		-EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "no address"));
	ck_assert_int_eq(ucm_shards_dump_data(store, &id, NULL, 1, &span, 1,
					      &handle, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "4095 bytes instead of 4096"));
	ck_assert_int_eq(ucm_shards_load_data(store, &id, NULL, 1, spans, 3,
					      &handle, NULL),
			 -EINVAL);
	ck_assert_uint_eq(handle, 77);
	ck_assert_int_eq(
		ucm_shards_load(store, NULL, NULL, 0, NULL, &handle, &error),
		0);
	ck_assert_int_eq(ucm_shards_wait(store, handle, 0, NULL, 0), 0);
}

/* ---- lookup ---- */

static const struct {
	bool there[5];
	int64_t last;
} prefixes[] = {
	{ { 0, 0, 0, 0, 0 }, -1 }, { { 1, 0, 0, 0, 0 }, 0 },
	{ { 0, 1, 1, 1, 1 }, -1 }, { { 1, 1, 0, 1, 1 }, 1 },
	{ { 1, 1, 1, 1, 0 }, 3 },  { { 1, 1, 1, 1, 1 }, 4 },
};

UNIT_TEST(lookup_tells_each_and_the_prefix, .rows = NUM_ROWS(prefixes))
{
	struct ucm_id ids[5];
	uint8_t found[5];
	int64_t last = -7;

	for (unsigned i = 0; i < 5; i++) {
		ids[i] = lf_id(i);
		if (prefixes[_i].there[i])
			lf_plant("$/tier", &lf_geometry, i);
	}
	ck_assert_int_eq(ucm_shards_lookup(store, ids, 5, found), 0);
	for (unsigned i = 0; i < 5; i++)
		ck_assert_uint_eq(found[i], prefixes[_i].there[i]);
	ck_assert_int_eq(ucm_shards_lookup_on_prefix(store, ids, 5, &last), 0);
	ck_assert_int_eq(last, prefixes[_i].last);
	ck_assert_int_eq(ucm_shards_lookup_on_prefix(store, ids, 0, &last), 0);
	ck_assert_int_eq(last, -1);
	ck_assert_int_eq(ucm_shards_prefetch(store, ids, 5), 0);
}

/* ---- V0 ---- */

UNIT_TEST(a_created_block_is_seen_after_its_commit)
{
	/* in one piece, and in two */
	for (unsigned n = 0; n < 2; n++) {
		ck_assert_int_eq(create(n), 0);
		ck_assert_int_eq(create(n), -EALREADY);
		ck_assert_int_eq(commit(n, true), -EAGAIN);
		ck_assert_int_eq(dump_shard(n, 0), -EBUSY);
		if (n)
			ck_assert_int_eq(dump_at(n, 3 * LAYER, LAYER), 0);
		ck_assert_int_eq(commit(n, true), -EAGAIN);
		ck_assert_int_eq(dump_at(n, 0, n ? 3 * LAYER : BLOCK), 0);
		ck_assert(!there(n));
		ck_assert_int_eq(commit(n, true), 0);
		ck_assert(there(n));
		ck_assert(lf_saved("$/tier", &lf_geometry, n));
		check_loads(n);
		ck_assert_int_eq(create(n), -EEXIST);
		ck_assert_int_eq(commit(n, true), -ENOENT);
		ck_assert_int_eq(dump_at(n, 0, LAYER), -ENOENT);
	}
}

UNIT_TEST(a_block_given_up_leaves_nothing)
{
	struct ucm_id id = lf_id(1);

	for (unsigned round = 0; round < 2; round++) {
		ck_assert_int_eq(create(1), 0);
		ck_assert_int_eq(dump_at(1, 0, round ? LAYER : BLOCK), 0);
		ck_assert_int_eq(commit(1, false), 0);
		ck_assert(!there(1));
		ck_assert_int_eq(commit(1, true), -ENOENT);
	}
	ck_assert_int_eq(create(1), 0);
	ck_assert_int_eq(commit(1, false), 0);
	/* V1's parts can be given up too, and begun anew */
	ck_assert_int_eq(dump_shard(1, 0), 0);
	ck_assert_int_eq(commit(1, true), -EAGAIN);
	ck_assert_int_eq(create(1), -EBUSY);
	ck_assert_int_eq(commit(1, false), 0);
	for (uint32_t i = 1; i < LAYERS; i++)
		ck_assert_int_eq(dump_shard(1, i), 0);
	ck_assert(!there(1));
	ck_assert_int_eq(dump_shard(1, 0), 0);
	ck_assert(there(1));
	ucm_save_abandon(loader, 0, &id, 1); /* of nothing */
	check_loads(1);
}

static const struct {
	uint64_t offset, len;
	const char *says;
} offsets[] = {
	{ 0, 0, "0 bytes from offset 0" },
	{ 100, LAYER, "4096 bytes from offset 100 on: not whole layers" },
	{ 0, TENSOR, "2048 bytes from offset 0 on: not whole layers" },
	{ TENSOR, TENSOR, "2048 bytes from offset 2048" },
	{ BLOCK, LAYER, "the block has 16384" },
	{ LAYER, BLOCK, "the block has 16384" },
	{ UINT64_MAX - 10, LAYER, "the block has 16384" },
	{ 0, UINT64_MAX, "the block has 16384" },
};

UNIT_TEST(offsets_inside_layers_are_refused, .rows = NUM_ROWS(offsets))
{
	uint8_t memory[1];
	struct ucm_span span = { (uintptr_t)memory, offsets[_i].len };
	struct ucm_id id = lf_id(1);
	uint64_t handle = 0;

	ck_assert_int_eq(create(1), 0);
	ck_assert_int_eq(ucm_shards_dump_at(store, &id, &offsets[_i].offset,
					    &span, 1, &handle, &error),
			 -EINVAL);
	ck_assert_msg(strstr(error.text, offsets[_i].says) != NULL, "%s",
		      error.text);
	ck_assert_int_eq(ucm_shards_load_at(store, &id, &offsets[_i].offset,
					    &span, 1, &handle, NULL),
			 -EINVAL);
	ck_assert_uint_eq(handle, 0);
}

/* With planes for layers, K and V may come by themselves. */
UNIT_TEST(planes_can_be_the_layers)
{
	struct ucm_shards_config config = { .size = sizeof(config),
					    .tensor_size = TENSOR,
					    .block_size = BLOCK };

	ucm_shards_close(store);
	open_store(&config);
	ck_assert_int_eq(create(1), 0);
	for (unsigned v = 0; v < 2; v++) {
		for (uint64_t i = 0; i < LAYERS; i++)
			ck_assert_int_eq(
				dump_at(1, i * LAYER + v * TENSOR, TENSOR), 0);
	}
	ck_assert_int_eq(commit(1, true), 0);
	check_loads(1);
}
