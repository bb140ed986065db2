/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards_fixture.h - a store of shards over a loader, whose source sticks or
 * fails as a test wants, and blocks in memory.
 */
#ifndef UCM_TESTS_SHARDS_FIXTURE_H
#define UCM_TESTS_SHARDS_FIXTURE_H

#include "gpu/load/thread.h"
#include "gpu/source/source.h"
#include "tests/unit/load_fixture.h"

#include <ucm/shards.h>

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <unistd.h>

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
static inline int source_create(struct ucm_source *source, const char *space,
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
static inline int source_commit(struct ucm_source *source,
				struct ucm_draft *draft, int fd,
				const void *header, uint32_t header_bytes)
{
	if (fault != NO_COMMIT)
		return ucm_source_tiers.commit(source, draft, fd, header,
					       header_bytes);
	close(fd);
	ucm_source_tiers.drop(source, draft);
	return -EIO;
}

/* ---- a store ---- */

/* The thread sanitizer does not see io_uring close a file, and takes the next
 * one of that number for the same. */
#ifdef __SANITIZE_THREAD__
#define USUAL_IO UCM_IO_THREADS
#else
#define USUAL_IO UCM_IO_AUTO
#endif

static inline void open_loader(enum ucm_io_kind io)
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

static inline void open_store(const struct ucm_shards_config *config)
{
	ck_assert_msg(!ucm_shards_open(loader, config, &store, &error), "%s",
		      error.text);
}

static inline void setup(void)
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

static inline void teardown(void)
{
	ucm_shards_close(store);
	ucm_loader_close(loader);
	ucm_loader_source = NULL;
	fx_teardown();
}

/* ---- blocks in memory ---- */

static inline uint8_t *filled(unsigned n)
{
	uint8_t *bytes = malloc(BLOCK);

	for (unsigned i = 0; i < BLOCK; i++)
		bytes[i] = lf_byte(n, i);
	return bytes;
}

static inline bool is_block(const uint8_t *bytes, unsigned n, uint64_t first,
			    uint64_t len)
{
	for (uint64_t i = 0; i < len; i++) {
		if (bytes[i] != lf_byte(n, first + i))
			return false;
	}
	return true;
}

static inline bool there(unsigned n)
{
	struct ucm_id id = lf_id(n);
	uint8_t found = 2;

	ck_assert_int_eq(ucm_shards_lookup(store, &id, 1, &found), 0);
	return found;
}

static inline int wait_one(uint64_t handle, struct ucm_outcome *outcome)
{
	struct ucm_outcome own;

	ck_assert_uint_ne(handle, 0);
	return ucm_shards_wait(store, handle, 20000, outcome ? outcome : &own,
			       1);
}

/* One shard of a block, to or from where it is in bytes. */
static inline uint64_t start_shard(bool is_dump, unsigned n, uint32_t shard,
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

static inline int dump_shard(unsigned n, uint32_t shard)
{
	uint8_t *bytes = filled(n);
	struct ucm_outcome outcome;
	int err = wait_one(start_shard(true, n, shard, bytes), &outcome);

	ck_assert_int_eq(err, outcome.err ? -EIO : 0);
	free(bytes);
	return outcome.err;
}

static inline uint64_t start_at(bool is_dump, unsigned n, uint64_t offset,
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

static inline int dump_at(unsigned n, uint64_t offset, uint64_t len)
{
	uint8_t *bytes = filled(n);
	struct ucm_outcome outcome;
	int err = wait_one(start_at(true, n, offset, len, bytes), &outcome);

	ck_assert_int_eq(err, outcome.err ? -EIO : 0);
	free(bytes);
	return outcome.err;
}

static inline int create(unsigned n)
{
	struct ucm_id id = lf_id(n);
	int result = 1;

	ck_assert_int_eq(ucm_shards_create(store, &id, 1, &result), 0);
	return result;
}

static inline int commit(unsigned n, bool success)
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
static inline void check_loads(unsigned n)
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

/* ---- V0 ---- */

static inline unsigned temporaries(void)
{
	return fx_count_files("$/tier/.ucmfs/tmp");
}

#endif
