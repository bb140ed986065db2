/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shards.c - blocks by id and shard, by both forms of the interface,
 * against what a reader of store.h would expect to find.
 */
#include <config.h>

#include "gpu/load/engine.h"
#include "gpu/source/source.h"
#include "tests/unit/load_fixture.h"

#include <ucm/shards.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/osfile.h"
#include "tests/unit/random.h"

/* The payload of lf_geometry's blocks: 4 layers of K 2048 + V 2048. */
#define TENSOR 2048u
#define LAYER  4096u
#define BLOCK  16384u
#define LAYERS 4u

static struct ucm_loader *loader;
static struct ucm_shards *store;
static struct ucm_error error;

static const struct ucm_shards_config by_layer = {
	.size = sizeof(by_layer),
	.tensor_size = TENSOR,
	.shard_size = LAYER,
	.block_size = BLOCK,
	.geometry = &lf_geometry,
};

/* ---- faults ---- */

static enum { NO_FAULT, NO_COMMIT, STUCK } _Atomic fault;
static sem_t held, go;
static struct ucm_source_ops ops; /* those of tiers, with faults */

/* A new file waits until the test lets it; */
static int source_create(struct ucm_source *source, const char *space,
			 const struct ucm_id *id, uint64_t bytes,
			 struct ucm_draft **out)
{
	if (fault == STUCK) {
		sem_post(&held);
		sem_wait(&go);
	}
	return ucm_source_tiers.create(source, space, id, bytes, out);
}

/* or its commit fails. */
static int source_commit(struct ucm_source *source, struct ucm_draft *draft,
			 int fd, const void *header, uint32_t header_bytes)
{
	if (fault != NO_COMMIT)
		return ucm_source_tiers.commit(source, draft, fd, header,
					       header_bytes);
	close(fd);
	ucm_source_tiers.drop(source, draft);
	return -EIO;
}

static void stick(void)
{
	sem_init(&held, 0, 0);
	sem_init(&go, 0, 0);
	fault = STUCK;
}

static void let_go(void)
{
	fault = NO_FAULT;
	sem_post(&go);
}

/* ---- a store ---- */

/* The thread sanitizer does not see io_uring close a file, and takes the next
 * one of that number for the same. */
#ifdef __SANITIZE_THREAD__
#define USUAL_IO UCM_IO_THREADS
#else
#define USUAL_IO UCM_IO_AUTO
#endif

static void open_loader(enum ucm_io_kind io)
{
	struct ucm_loader_options options = {
		.size = sizeof(options),
		.tiers = fx_path("$/tier"),
		.staging_bytes = 16 << 20,
		.threads = 2,
		.io = io,
	};

	ck_assert_msg(!ucm_loader_open(&options, &loader, &error), "%s",
		      error.text);
}

static void open_store(const struct ucm_shards_config *config)
{
	ck_assert_msg(!ucm_shards_open(loader, config, &store, &error), "%s",
		      error.text);
}

static void setup(void)
{
	fx_setup();
	lf_tier("$/tier");
	ops = ucm_source_tiers;
	ops.create = source_create;
	ops.commit = source_commit;
	ucm_loader_source = &ops;
	open_loader(USUAL_IO);
	open_store(&by_layer);
}

static void teardown(void)
{
	ucm_shards_close(store);
	ucm_loader_close(loader);
	ucm_loader_source = NULL;
	fx_teardown();
}

/* ---- blocks in memory ---- */

static uint8_t *filled(unsigned n)
{
	uint8_t *bytes = malloc(BLOCK);

	for (unsigned i = 0; i < BLOCK; i++)
		bytes[i] = lf_byte(n, i);
	return bytes;
}

static bool is_block(const uint8_t *bytes, unsigned n, uint64_t first,
		     uint64_t len)
{
	for (uint64_t i = 0; i < len; i++) {
		if (bytes[i] != lf_byte(n, first + i))
			return false;
	}
	return true;
}

static bool there(unsigned n)
{
	struct ucm_id id = lf_id(n);
	uint8_t found = 2;

	ck_assert_int_eq(ucm_shards_lookup(store, &id, 1, &found), 0);
	return found;
}

static int wait_one(uint64_t handle, struct ucm_outcome *outcome)
{
	struct ucm_outcome own;

	ck_assert_uint_ne(handle, 0);
	return ucm_shards_wait(store, handle, 20000, outcome ? outcome : &own,
			       1);
}

/* One shard of a block, to or from where it is in bytes. */
static uint64_t start_shard(bool is_dump, unsigned n, uint32_t shard,
			    uint8_t *bytes)
{
	struct ucm_shards_shape shape;
	uint64_t addresses[64], handle = 0;
	struct ucm_id id = lf_id(n);

	ucm_shards_get_shape(store, &shape);
	ck_assert_uint_le(shape.tensors_per_shard, 64);
	for (uint32_t i = 0; i < shape.tensors_per_shard; i++)
		addresses[i] = (uintptr_t)bytes + shard * shape.shard_size +
			       i * shape.tensor_size;
	ck_assert_msg(!(is_dump ? ucm_shards_dump
				: ucm_shards_load)(store, &id, &shard, 1,
						   addresses, &handle, &error),
		      "%s", error.text);
	return handle;
}

static int dump_shard(unsigned n, uint32_t shard)
{
	uint8_t *bytes = filled(n);
	struct ucm_outcome outcome;
	int err = wait_one(start_shard(true, n, shard, bytes), &outcome);

	ck_assert_int_eq(err, outcome.err ? -EIO : 0);
	free(bytes);
	return outcome.err;
}

static uint64_t start_at(bool is_dump, unsigned n, uint64_t offset,
			 uint64_t len, uint8_t *bytes)
{
	struct ucm_span span = { (uintptr_t)bytes + offset, len };
	struct ucm_id id = lf_id(n);
	uint64_t handle = 0;

	ck_assert_msg(!(is_dump ? ucm_shards_dump_at : ucm_shards_load_at)(
			      store, &id, &offset, &span, 1, &handle, &error),
		      "%s", error.text);
	return handle;
}

static int dump_at(unsigned n, uint64_t offset, uint64_t len)
{
	uint8_t *bytes = filled(n);
	struct ucm_outcome outcome;
	int err = wait_one(start_at(true, n, offset, len, bytes), &outcome);

	ck_assert_int_eq(err, outcome.err ? -EIO : 0);
	free(bytes);
	return outcome.err;
}

static int create(unsigned n)
{
	struct ucm_id id = lf_id(n);
	int result = 1;

	ck_assert_int_eq(ucm_shards_create(store, &id, 1, &result), 0);
	return result;
}

static int commit(unsigned n, bool success)
{
	struct ucm_id id = lf_id(n);
	uint8_t flag = success;
	struct ucm_outcome outcome;
	uint64_t handle;

	ck_assert_int_eq(
		ucm_shards_commit(store, &id, &flag, 1, &handle, &error), 0);
	wait_one(handle, &outcome);
	return outcome.err;
}

/* The whole block comes back, by both forms. */
static void check_loads(unsigned n)
{
	uint8_t *bytes = calloc(2, BLOCK);
	struct ucm_shards_shape shape;

	ucm_shards_get_shape(store, &shape);
	for (uint32_t i = 0; i < shape.num_shards; i++)
		ck_assert_int_eq(
			wait_one(start_shard(false, n, i, bytes), NULL), 0);
	ck_assert_int_eq(
		wait_one(start_at(false, n, 0, BLOCK, bytes + BLOCK), NULL), 0);
	ck_assert(is_block(bytes, n, 0, BLOCK));
	ck_assert(is_block(bytes + BLOCK, n, 0, BLOCK));
	free(bytes);
}

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

static unsigned temporaries(void)
{
	return fx_count_files("$/tier/.ucmfs/tmp");
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

/* ---- failures ---- */

/* Files may not grow beyond that: writes behind it fail with EFBIG. */
static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = bytes;
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

UNIT_TEST(a_failed_dump_drops_the_block)
{
	limit_files(4096 + 2 * LAYER);
	ck_assert_int_eq(dump_shard(1, 0), 0);
	ck_assert_int_eq(dump_shard(1, 2), -EFBIG);
	ck_assert_int_eq(dump_shard(1, 1), -ECANCELED);
	limit_files(RLIM_INFINITY);
	ck_assert_int_eq(dump_shard(1, 3), -ECANCELED);
	ck_assert(!there(1));
	/* all have come: the next attempt is whole */
	for (uint32_t i = LAYERS; i--;) {
		ck_assert(!there(1));
		ck_assert_int_eq(dump_shard(1, i), 0);
	}
	check_loads(1);

	/* a shard that comes again begins anew as well */
	limit_files(4096 + 2 * LAYER);
	ck_assert_int_eq(dump_shard(2, 1), 0);
	ck_assert_int_eq(dump_shard(2, 3), -EFBIG);
	limit_files(RLIM_INFINITY);
	for (uint32_t i = 1; i <= LAYERS; i++) {
		ck_assert(!there(2));
		ck_assert_int_eq(dump_shard(2, i % LAYERS), 0);
	}
	check_loads(2);
}

UNIT_TEST(a_failed_dump_cannot_be_committed)
{
	ck_assert_int_eq(create(1), 0);
	limit_files(4096 + 2 * LAYER);
	ck_assert_int_eq(dump_at(1, 0, LAYER), 0);
	ck_assert_int_eq(dump_at(1, 2 * LAYER, 2 * LAYER), -EFBIG);
	limit_files(RLIM_INFINITY);
	ck_assert_int_eq(dump_at(1, 0, BLOCK), -ECANCELED);
	ck_assert_int_eq(commit(1, true), -EFBIG);
	ck_assert(!there(1));
	ck_assert_int_eq(commit(1, true), -ENOENT);
	ck_assert_int_eq(create(1), 0);
	ck_assert_int_eq(dump_at(1, 0, BLOCK), 0);
	ck_assert_int_eq(commit(1, true), 0);
	check_loads(1);
}

UNIT_TEST(a_failed_commit_leaves_nothing)
{
	ck_assert_int_eq(create(1), 0);
	ck_assert_int_eq(dump_at(1, 0, BLOCK), 0);
	fault = NO_COMMIT;
	ck_assert_int_eq(commit(1, true), -EIO);
	fault = NO_FAULT;
	ck_assert(!there(1));
	ck_assert_int_eq(commit(1, false), -ENOENT);
	ck_assert_int_eq(create(1), 0);
	ucm_shards_close(store);
	store = NULL;
	ucm_loader_close(loader);
	loader = NULL;
	ck_assert_uint_eq(temporaries(), 0);
}

/* Somebody else was quicker. */
UNIT_TEST(a_block_that_appears_is_not_saved_twice)
{
	ck_assert_int_eq(create(1), 0);
	/* not planted: the daemon must know of it */
	{
		struct ucm_shards *mine = store;

		open_store(&by_layer);
		for (uint32_t i = 0; i < LAYERS; i++)
			ck_assert_int_eq(dump_shard(1, i), 0);
		ucm_shards_close(store);
		store = mine;
	}
	ck_assert_int_eq(dump_at(1, 0, LAYER), 0);
	ck_assert_int_eq(commit(1, true), 0);
	ck_assert_int_eq(commit(1, true), -ENOENT);
	check_loads(1);
}

/* ---- handles ---- */

static uint64_t start_stuck(unsigned n, uint8_t *bytes)
{
	struct ucm_span span = { (uintptr_t)bytes, LAYER };
	struct ucm_id ids[2] = { lf_id(n), lf_id(n) };
	uint32_t shards[] = { 0, 1 };
	struct ucm_span spans[] = { span, span };
	uint64_t handle;

	stick();
	ck_assert_int_eq(ucm_shards_dump_data(store, ids, shards, 2, spans, 2,
					      &handle, &error),
			 0);
	sem_wait(&held);
	return handle;
}

UNIT_TEST(a_wait_that_times_out_loses_nothing)
{
	uint8_t *bytes = filled(1);
	struct ucm_outcome outcomes[2] = { { .err = 99 }, { .err = 99 } };
	uint64_t handle = start_stuck(1, bytes);

	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(
			ucm_shards_wait(store, handle, (int)i, outcomes, 2),
			-ETIMEDOUT);
		ck_assert_int_eq(outcomes[0].err, 99);
	}
	ck_assert_int_eq(ucm_shards_check(store, handle, outcomes, 2), 0);
	ck_assert_int_eq(outcomes[0].err, -EINPROGRESS);
	let_go();
	ck_assert_int_eq(ucm_shards_wait(store, handle, -1, outcomes, 2), 0);
	ck_assert_int_eq(outcomes[0].err, 0);
	ck_assert_int_eq(outcomes[1].err, 0);
	free(bytes);
}

UNIT_TEST(a_handle_means_one_call_and_ends_with_it)
{
	uint8_t *bytes = filled(1);
	struct ucm_outcome outcome;
	uint64_t handle, other;

	lf_plant("$/tier", &lf_geometry, 1);
	for (unsigned i = 0; i < 64; i++) {
		uint64_t wrong[] = { 0, 1, UINT64_MAX, (uint64_t)i << 32 };

		for (unsigned j = 0; j < NUM_ROWS(wrong); j++)
			ck_assert_int_eq(
				ucm_shards_wait(store, wrong[j], -1, NULL, 0),
				-ENOENT);
	}
	handle = start_shard(false, 1, 0, bytes);
	ck_assert_int_eq(ucm_shards_wait(store, handle, -1, &outcome, 2),
			 -EINVAL);
	while (!ucm_shards_check(store, handle, &outcome, 1))
		sched_yield();
	ck_assert_int_eq(ucm_shards_check(store, handle, &outcome, 3), -EINVAL);
	ck_assert_int_eq(ucm_shards_check(store, handle, NULL, 0), 1);
	ck_assert_int_eq(outcome.err, 0);
	ck_assert_int_eq(wait_one(handle, &outcome), 0);
	ck_assert_int_eq(wait_one(handle, &outcome), -ENOENT);
	ck_assert_int_eq(ucm_shards_check(store, handle, &outcome, 1), -ENOENT);
	ck_assert_int_eq(ucm_shards_cancel(store, handle), -ENOENT);
	other = start_shard(false, 1, 1, bytes);
	ck_assert_uint_ne(other, handle);
	ck_assert_int_eq(wait_one(handle, &outcome), -ENOENT);
	ck_assert_int_eq(wait_one(other, &outcome), 0);
	free(bytes);
}

UNIT_TEST(many_handles_are_open_at_once)
{
	uint8_t *bytes = filled(1);
	uint64_t handles[500];

	lf_plant("$/tier", &lf_geometry, 1);
	for (unsigned i = 0; i < NUM_ROWS(handles); i++)
		handles[i] = start_shard(false, 1, i % LAYERS, bytes);
	for (unsigned i = NUM_ROWS(handles); i--;)
		ck_assert_int_eq(wait_one(handles[i], NULL), 0);
	for (unsigned i = 0; i < NUM_ROWS(handles); i++)
		ck_assert_int_eq(wait_one(handles[i], NULL), -ENOENT);
	ck_assert(is_block(bytes, 1, 0, BLOCK));
	free(bytes);
}

static void *wait_for_it(void *arg)
{
	return (void *)(intptr_t)ucm_shards_wait(store, *(uint64_t *)arg, -1,
						 NULL, 0);
}

UNIT_TEST(whoever_waits_is_told)
{
	uint8_t *bytes = filled(1);
	uint64_t handle = start_stuck(1, bytes);
	pthread_t threads[4];
	unsigned told = 0;

	for (unsigned i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, wait_for_it, &handle);
	let_go();
	for (unsigned i = 0; i < 4; i++) {
		void *result;

		pthread_join(threads[i], &result);
		/* -ENOENT: it came when the others had been told */
		ck_assert((intptr_t)result == 0 || (intptr_t)result == -ENOENT);
		told += !result;
	}
	ck_assert_uint_ge(told, 1);
	ck_assert_int_eq(ucm_shards_wait(store, handle, 0, NULL, 0), -ENOENT);
	free(bytes);
}

UNIT_TEST(commit_before_the_dumps_are_done_is_refused)
{
	uint8_t *bytes = filled(1);
	uint64_t handle;

	ck_assert_int_eq(create(1), 0);
	stick();
	handle = start_at(true, 1, 0, BLOCK, bytes);
	sem_wait(&held);
	ck_assert_int_eq(commit(1, true), -EBUSY);
	ck_assert_int_eq(commit(1, false), 0);
	ck_assert_int_eq(create(1), -EBUSY); /* still being written */
	let_go();
	ck_assert_int_eq(wait_one(handle, NULL), 0);
	ck_assert(!there(1));
	ck_assert_int_eq(create(1), 0);
	free(bytes);
}

static uint64_t told(int fd)
{
	uint64_t num = 0;

	return read(fd, &num, sizeof(num)) == sizeof(num) ? num : 0;
}

UNIT_TEST(an_eventfd_is_told_of_the_end)
{
	uint8_t *bytes = filled(1);
	int first = eventfd(0, EFD_NONBLOCK), second = eventfd(0, 0);
	uint64_t handle = start_stuck(1, bytes);

	ck_assert_int_eq(ucm_shards_notify(store, handle, first), 0);
	ck_assert_int_eq(ucm_shards_notify(store, handle, second), 0);
	ck_assert_uint_eq(told(first), 0);
	let_go();
	ck_assert_uint_eq(told(second), 1); /* waits for it */
	ck_assert_uint_eq(told(first), 0);
	/* also of one that was before */
	ck_assert_int_eq(ucm_shards_notify(store, handle, first), 0);
	ck_assert_uint_eq(told(first), 1);
	ck_assert_int_eq(ucm_shards_wait(store, handle, 0, NULL, 0), 0);
	ck_assert_int_eq(ucm_shards_notify(store, handle, first), -ENOENT);
	close(first);
	close(second);
	free(bytes);
}

UNIT_TEST(a_cancelled_dump_drops_the_block)
{
	uint8_t *bytes = filled(1);
	struct ucm_outcome outcomes[2];
	uint64_t handle = start_stuck(1, bytes);

	ck_assert_int_eq(ucm_shards_cancel(store, handle), 0);
	let_go();
	ck_assert_int_eq(ucm_shards_wait(store, handle, 20000, outcomes, 2),
			 -EIO);
	ck_assert_int_eq(outcomes[0].err, -ECANCELED);
	ck_assert(!there(1));
	for (uint32_t i = 0; i < LAYERS; i++)
		ck_assert_int_eq(dump_shard(1, i), 0);
	check_loads(1);
	free(bytes);
}

UNIT_TEST(closing_ends_what_is_under_way)
{
	uint8_t *bytes = filled(0);

	lf_plant("$/tier", &lf_geometry, 0);
	ck_assert_int_eq(create(1), 0);
	ck_assert_int_eq(dump_at(1, 0, BLOCK), 0);
	ck_assert_int_eq(dump_shard(2, 0), 0);
	for (unsigned i = 0; i < 20; i++)
		start_shard(i & 1, i & 1 ? 3 : 0, i % LAYERS, bytes);
	ucm_shards_close(store);
	open_store(&by_layer);
	ck_assert(!there(1));
	ck_assert(!there(2));
	ucm_shards_close(store);
	store = NULL;
	ucm_loader_close(loader);
	loader = NULL;
	ck_assert_uint_eq(temporaries(), 0);
	free(bytes);
}

/* ---- all together ---- */

/* What is known of a block, kept as simply as possible. */
struct known {
	bool exists, created;
	bool have[LAYERS];
};

static bool is_whole(const struct known *known)
{
	for (unsigned i = 0; i < LAYERS; i++) {
		if (!known->have[i])
			return false;
	}
	return true;
}

static void known_dump(struct known *known, unsigned n, uint32_t layer)
{
	int err = dump_shard(n, layer);

	if (known->created) {
		ck_assert_int_eq(err, -EBUSY);
		return;
	}
	ck_assert_int_eq(err, 0);
	if (known->exists)
		return;
	known->have[layer] = true;
	known->exists = is_whole(known);
}

static void known_dump_at(struct known *known, unsigned n, uint32_t first,
			  uint32_t num)
{
	int err = dump_at(n, first * LAYER, num * LAYER);

	ck_assert_int_eq(err, known->created ? 0 : -ENOENT);
	for (uint32_t i = first; !err && i < first + num; i++)
		known->have[i] = true;
}

static void known_create(struct known *known, unsigned n)
{
	bool begun = false;

	for (unsigned i = 0; i < LAYERS; i++)
		begun |= known->have[i];
	ck_assert_int_eq(create(n), known->exists    ? -EEXIST
				    : known->created ? -EALREADY
				    : begun	     ? -EBUSY
						     : 0);
	if (!known->exists && !begun)
		known->created = true;
}

static void known_commit(struct known *known, unsigned n, bool success)
{
	bool begun = known->created;
	int want = 0;

	for (unsigned i = 0; i < LAYERS; i++)
		begun |= known->have[i];
	if (known->exists || !begun)
		want = -ENOENT;
	else if (success && !(known->created && is_whole(known)))
		want = -EAGAIN;
	ck_assert_int_eq(commit(n, success), want);
	if (want)
		return;
	known->exists = success;
	known->created = false;
	if (!success)
		memset(known->have, 0, sizeof(known->have));
}

UNIT_TEST(it_does_what_a_naive_one_does)
{
	struct known blocks[8] = { { 0 } };
	uint64_t random = random_case(0);

	for (unsigned step = 0; step < 1500; step++) {
		unsigned n = (unsigned)random_between(&random, 0, 7);
		unsigned what = (unsigned)random_between(&random, 0, 8);
		uint32_t layer = (uint32_t)random_between(&random, 0, 3);

		if (what < 3)
			known_dump(&blocks[n], n, layer);
		else if (what < 6)
			known_dump_at(&blocks[n], n, layer,
				      (uint32_t)random_between(&random, 1,
							       LAYERS - layer));
		else if (what < 7)
			known_create(&blocks[n], n);
		else
			known_commit(&blocks[n], n, what == 8);
		ck_assert_int_eq(there(n), blocks[n].exists);
	}
	for (unsigned n = 0; n < NUM_ROWS(blocks); n++) {
		if (blocks[n].exists)
			check_loads(n);
	}
}

#define SHARED 40u

/* All threads save and load the same blocks, each in an order of its own. */
static void *busy(void *arg)
{
	unsigned mine = *(unsigned *)arg;
	uint8_t *bytes = filled(0), *got = calloc(1, BLOCK);

	for (unsigned i = 0; i < SHARED; i++) {
		unsigned n = (i * 7 + mine * 13) % SHARED;

		for (unsigned j = 0; j < BLOCK; j++)
			bytes[j] = lf_byte(n, j);
		for (uint32_t j = 0; j < LAYERS; j++)
			wait_one(start_shard(true, n, (j + mine) % LAYERS,
					     bytes),
				 NULL);
		ck_assert_int_eq(
			wait_one(start_at(false, n, 0, BLOCK, got), NULL), 0);
		ck_assert(is_block(got, n, 0, BLOCK));
	}
	free(bytes);
	free(got);
	return NULL;
}

UNIT_TEST(threads_may_work_on_the_same_blocks)
{
	unsigned numbers[4] = { 0, 1, 2, 3 };
	pthread_t threads[4];

	for (unsigned i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, busy, &numbers[i]);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (unsigned n = 0; n < SHARED; n++)
		ck_assert(lf_saved("$/tier", &lf_geometry, n));
}
