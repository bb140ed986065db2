/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_join.c - shards of one block are loaded together, and fare each by
 * itself.
 */
#include <config.h>

#include "tests/unit/load_fixture.h"

#include <ucm/shards.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/shards/join.h"
#include "tests/unit/random.h"

/* The payload of lf_geometry's blocks: 4 layers of K 2048 + V 2048. */
#define TENSOR 2048u
#define SHARD  4096u
#define BLOCK  16384u
#define SHARDS 4u
#define HEAD   4096u /* of their files */

#define BLOCKS 60u

static struct ucm_loader *loader;
static struct ucm_shards *store;
static struct ucm_error error;

/* ---- runs ---- */

#define MOST_ENTRIES 64
#define RUN_CASES 300u

static struct ucm_shards_entry entries[MOST_ENTRIES];
static struct ucm_shards_run runs[MOST_ENTRIES];

/* Each entry once, in a run of its block where its layers follow those before. */
static size_t check_run(const struct ucm_shards_run *run, bool *seen,
			unsigned number)
{
	const struct ucm_shards_entry *entry = run->first;
	uint32_t end = run->first_layer;
	size_t num = 0;

	for (; entry; entry = entry->next, num++) {
		must_in_case(!memcmp(&entry->id, &run->first->id,
				     sizeof(entry->id)),
			     number, "one block");
		must_in_case(entry->first_layer == end, number, "in a row");
		must_in_case(!seen[entry->index], number, "once");
		seen[entry->index] = true;
		end += entry->num_layers;
	}
	must_in_case(end == run->first_layer + run->num_layers, number, "end");
	return num;
}

/* No two runs of a block that could be one. */
static bool could_be_one(size_t num_runs)
{
	for (size_t i = 0; i < num_runs; i++) {
		for (size_t k = 0; k < num_runs; k++) {
			if (!memcmp(&runs[i].first->id, &runs[k].first->id,
				    sizeof(runs[i].first->id)) &&
			    runs[i].first_layer + runs[i].num_layers ==
				    runs[k].first_layer)
				return true;
		}
	}
	return false;
}

static bool are_sorted(size_t num_runs)
{
	for (size_t i = 1; i < num_runs; i++) {
		if (runs[i - 1].first_layer > runs[i].first_layer ||
		    (runs[i - 1].first_layer == runs[i].first_layer &&
		     runs[i - 1].num_layers > runs[i].num_layers))
			return false;
	}
	return true;
}

UNIT_TEST(ranges_that_follow_each_other_become_runs)
{
	for (unsigned number = 0; number < RUN_CASES; number++) {
		uint64_t random = random_case(number);
		size_t num = (size_t)random_between(&random, 1, MOST_ENTRIES);
		bool seen[MOST_ENTRIES] = { false };
		size_t num_runs, all = 0;

		for (size_t i = 0; i < num; i++)
			entries[i] = (struct ucm_shards_entry){
				.id = lf_id((unsigned)random_between(&random, 0,
								     5)),
				.index = i,
				.first_layer = (uint32_t)random_between(&random,
									0, 9),
				.num_layers = (uint32_t)random_between(&random,
								       1, 3),
			};
		num_runs = ucm_shards_join(entries, num, runs);
		for (size_t i = 0; i < num_runs; i++)
			all += check_run(&runs[i], seen, number);
		must_in_case(all == num, number, "all");
		must_in_case(are_sorted(num_runs), number, "sorted");
		must_in_case(!could_be_one(num_runs), number, "few");
	}
}

UNIT_TEST(one_shard_a_thousand_times_is_a_thousand_runs)
{
	struct ucm_shards_entry *many = calloc(1000, sizeof(*many));
	struct ucm_shards_run *each = calloc(1000, sizeof(*each));

	for (size_t i = 0; i < 1000; i++) {
		many[i].index = i;
		many[i].num_layers = 1;
	}
	ck_assert_uint_eq(ucm_shards_join(many, 1000, each), 1000);
	for (size_t i = 0; i < 1000; i++)
		must(!each[i].first->next);
	free(many);
	free(each);
}

/* ---- loads ---- */

/* Room for two open files in each thread: what is asked for again later is
 * opened again. */
static void open_store(enum ucm_io_kind io)
{
	const struct ucm_loader_options options = {
		.size = sizeof(options),
		.tiers = fx_path("$/tier"),
		.staging_bytes = 16 << 20,
		.threads = 2,
		.open_files = 2,
		.io = lf_io(io),
	};
	const struct ucm_shards_config config = {
		.size = sizeof(config),
		.tensor_size = TENSOR,
		.shard_size = SHARD,
		.block_size = BLOCK,
		.geometry = &lf_geometry,
	};

	ck_assert_msg(!ucm_loader_open(&options, &loader, &error), "%s",
		      error.text);
	ck_assert_msg(!ucm_shards_open(loader, &config, &store, &error), "%s",
		      error.text);
}

static void setup(void)
{
	fx_setup();
	lf_tier("$/tier");
	for (unsigned n = 0; n < BLOCKS; n++)
		lf_plant("$/tier", &lf_geometry, n);
}

static void close_store(void)
{
	ucm_shards_close(store);
	ucm_loader_close(loader);
	store = NULL;
	loader = NULL;
}

static void teardown(void)
{
	close_store();
	fx_teardown();
}

/* What a call wants, and what it gets. */
#define MOST (2 * BLOCKS * SHARDS)

static struct {
	size_t num;
	struct ucm_id ids[MOST];
	uint32_t shards[MOST];
	unsigned blocks[MOST];
	uint64_t addresses[MOST * 2];
	struct ucm_outcome outcomes[MOST];
	uint8_t bytes[MOST][SHARD];
} wanted;

static void want(unsigned n, uint32_t shard)
{
	size_t i = wanted.num++;

	wanted.ids[i] = lf_id(n);
	wanted.blocks[i] = n;
	wanted.shards[i] = shard;
	memset(wanted.bytes[i], 0xa5, SHARD);
	/* K and V are far from each other */
	wanted.addresses[2 * i] = (uintptr_t)wanted.bytes[i] + TENSOR;
	wanted.addresses[2 * i + 1] = (uintptr_t)wanted.bytes[i];
}

/* Has the entry its shard? */
static bool has(size_t i)
{
	uint64_t first = wanted.shards[i] * SHARD;

	for (uint64_t at = 0; at < SHARD; at++) {
		uint64_t in = (at + TENSOR) % SHARD;

		if (wanted.bytes[i][in] != lf_byte(wanted.blocks[i],
						   first + at))
			return false;
	}
	return true;
}

static void swap(size_t a, size_t b)
{
	struct ucm_id id = wanted.ids[a];
	uint32_t shard = wanted.shards[a];
	unsigned n = wanted.blocks[a];

	wanted.ids[a] = wanted.ids[b];
	wanted.shards[a] = wanted.shards[b];
	wanted.blocks[a] = wanted.blocks[b];
	wanted.ids[b] = id;
	wanted.shards[b] = shard;
	wanted.blocks[b] = n;
}

static void shuffle(uint64_t *random)
{
	for (size_t i = wanted.num; i > 1; i--)
		swap(i - 1, (size_t)random_between(random, 0, (int64_t)i - 1));
}

/* What it took. */
struct cost {
	uint64_t opens, reads, loads;
};

static int load(struct cost *cost)
{
	struct ucm_loader_stats before, after;
	uint64_t handle;
	int err;

	ucm_loader_get_stats(loader, &before, sizeof(before));
	ck_assert_msg(!ucm_shards_load(store, wanted.ids, wanted.shards,
				       wanted.num, wanted.addresses, &handle,
				       &error),
		      "%s", error.text);
	err = ucm_shards_wait(store, handle, 20000, wanted.outcomes,
			      wanted.num);
	ucm_loader_get_stats(loader, &after, sizeof(after));
	*cost = (struct cost){
		.opens = after.opens - before.opens,
		.reads = after.reads - before.reads,
		.loads = after.loads - before.loads,
	};
	return err;
}

/* All shards of all blocks, each block by an entry of its own. */
static void load_whole(struct cost *cost)
{
	const struct ucm_shards_config config = {
		.size = sizeof(config),
		.tensor_size = BLOCK,
		.geometry = &lf_geometry,
	};
	struct ucm_shards *whole;
	struct ucm_loader_stats stats;
	uint64_t handle, addresses[BLOCKS];
	struct ucm_id ids[BLOCKS];

	open_store(UCM_IO_AUTO);
	ck_assert_int_eq(ucm_shards_open(loader, &config, &whole, &error), 0);
	for (unsigned n = 0; n < BLOCKS; n++) {
		ids[n] = lf_id(n);
		addresses[n] = (uintptr_t)wanted.bytes + n * BLOCK;
	}
	ck_assert_int_eq(ucm_shards_load(whole, ids, NULL, BLOCKS, addresses,
					 &handle, &error),
			 0);
	ck_assert_int_eq(ucm_shards_wait(whole, handle, 20000, NULL, 0), 0);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	*cost = (struct cost){ stats.opens, stats.reads, stats.loads };
	ucm_shards_close(whole);
	close_store();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown, .timeout = 60);

UNIT_TEST(shards_in_any_order_cost_what_whole_blocks_do)
{
	uint64_t random = random_case(1000);
	struct cost whole, cost;

	load_whole(&whole);
	open_store(UCM_IO_AUTO);
	wanted.num = 0;
	for (unsigned n = 0; n < BLOCKS; n++) {
		for (uint32_t shard = 0; shard < SHARDS; shard++)
			want(n, shard);
	}
	shuffle(&random);
	ck_assert_int_eq(load(&cost), 0);
	for (size_t i = 0; i < wanted.num; i++)
		must(!wanted.outcomes[i].err && has(i));
	ck_assert_uint_eq(cost.opens, whole.opens);
	ck_assert_uint_eq(cost.opens, BLOCKS);
	ck_assert_uint_eq(cost.reads, whole.reads);
	ck_assert_uint_eq(cost.loads, whole.loads);
}

/* Runs that the shards of a block make, by the bits of those that are wanted. */
static unsigned runs_of(unsigned bits)
{
	unsigned num = 0;

	for (uint32_t i = 0; i < SHARDS; i++)
		num += (bits >> i & 1) && !(i && bits >> (i - 1) & 1);
	return num;
}

UNIT_TEST(some_shards_of_each_block_are_as_few_loads_as_can_be, .rows = 4)
{
	uint64_t random = random_case(2000 + (unsigned)_i);
	struct cost cost;
	uint64_t loads = 0;

	open_store(_i & 1 ? UCM_IO_THREADS : UCM_IO_AUTO);
	wanted.num = 0;
	for (unsigned n = 0; n < BLOCKS; n++) {
		unsigned bits = (unsigned)random_between(
			&random, 0, (1 << SHARDS) - 1);

		for (uint32_t shard = 0; shard < SHARDS; shard++) {
			if (bits >> shard & 1)
				want(n, shard);
		}
		loads += runs_of(bits);
	}
	shuffle(&random);
	ck_assert_int_eq(load(&cost), 0);
	for (size_t i = 0; i < wanted.num; i++)
		must(!wanted.outcomes[i].err && has(i));
	ck_assert_uint_eq(cost.loads, loads);
	ck_assert_uint_le(cost.opens, loads);
}

UNIT_TEST(a_shard_that_is_wanted_twice_comes_twice)
{
	uint64_t random = random_case(3000);
	struct cost cost;

	open_store(UCM_IO_AUTO);
	wanted.num = 0;
	for (unsigned n = 0; n < BLOCKS; n++) {
		for (uint32_t shard = 0; shard < 2 * SHARDS; shard++)
			want(n, shard % SHARDS);
	}
	shuffle(&random);
	ck_assert_int_eq(load(&cost), 0);
	for (size_t i = 0; i < wanted.num; i++)
		must(!wanted.outcomes[i].err && has(i));
	ck_assert_uint_eq(cost.loads, 2 * BLOCKS);
}

UNIT_TEST(shards_of_a_block_that_is_absent_are_absent)
{
	struct cost cost;

	open_store(UCM_IO_AUTO);
	wanted.num = 0;
	for (uint32_t shard = 0; shard < SHARDS; shard++) {
		want(1, shard);
		want(BLOCKS + 1, shard);
	}
	ck_assert_int_eq(load(&cost), -EIO);
	for (size_t i = 0; i < wanted.num; i++) {
		ck_assert_int_eq(wanted.outcomes[i].err, i & 1 ? -ENOENT : 0);
		ck_assert(i & 1 || has(i));
	}
}

/* ---- of some layers alone ---- */

static void damage(unsigned n, off_t at)
{
	int fd = open(lf_path("$/tier", n), O_RDWR);
	uint8_t byte;

	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

UNIT_TEST(damage_in_a_shard_leaves_the_others_alone)
{
	struct cost cost;

	open_store(UCM_IO_AUTO);
	damage(0, HEAD + 2 * SHARD + TENSOR + 5);
	wanted.num = 0;
	for (uint32_t shard = 0; shard < SHARDS; shard++) {
		want(0, shard);
		want(1, shard);
	}
	ck_assert_int_eq(load(&cost), -EIO);
	for (size_t i = 0; i < wanted.num; i++) {
		if (i == 4) { /* block 0, shard 2 */
			ck_assert_int_eq(wanted.outcomes[i].err, -EBADMSG);
			ck_assert_int_eq(wanted.outcomes[i].fault,
					 UCM_FAULT_PLANE);
			ck_assert_uint_eq(wanted.outcomes[i].plane, 5);
			continue;
		}
		ck_assert_int_eq(wanted.outcomes[i].err, 0);
		ck_assert(has(i));
	}
}

UNIT_TEST(what_the_disk_cannot_read_is_missing_alone)
{
	struct cost cost;

	lf_faults();
	lf_fail_at(lf_path("$/tier", 0), HEAD + 3 * SHARD, -EIO);
	open_store(UCM_IO_THREADS);
	wanted.num = 0;
	for (uint32_t shard = SHARDS; shard--;)
		want(0, shard);
	ck_assert_int_eq(load(&cost), -EIO);
	for (size_t i = 0; i < SHARDS; i++) {
		ck_assert_int_eq(wanted.outcomes[i].err, i ? 0 : -EIO);
		ck_assert(!i || has(i));
	}
}

UNIT_TEST(a_damaged_header_fails_all_at_once)
{
	struct cost cost;

	open_store(UCM_IO_AUTO);
	damage(0, 9);
	wanted.num = 0;
	for (uint32_t shard = 0; shard < SHARDS; shard++)
		want(0, shard);
	ck_assert_int_eq(load(&cost), -EIO);
	for (size_t i = 0; i < SHARDS; i++)
		ck_assert_int_eq(wanted.outcomes[i].err, -EBADMSG);
	ck_assert_uint_eq(cost.opens, 1);
}
