/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_shards.c - turns of the store interface: whole blocks, or their shards.
 *
 * Both sides load the same bytes to the same places in one call; one names each
 * block once, the other names its shards, in an order of no use.
 */
#include <config.h>

#include "bench/load_bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/shards.h>

/* Two layers to a shard where that can be, else one. */
static uint32_t shards_of_block(const struct bench *bench)
{
	uint32_t layers = bench->block.geometry.num_layers;

	return layers % 2 ? layers : layers / 2;
}

static int open_store(struct bench *bench, struct side *side)
{
	const struct ucm_region *regions = ucm_layout_regions(bench->layout);
	const struct ucm_shards_config config = {
		.size = sizeof(config),
		.tensor_size = regions[0].run_bytes,
		.shard_size = bench->payload /
			      (side->shards ? shards_of_block(bench) : 1),
		.block_size = bench->payload,
		.geometry = &bench->block.geometry,
		.verify = side->verify,
	};
	struct ucm_error error = { "" };
	int err = ucm_shards_open(side->loader, &config, &side->store, &error);

	if (err)
		fprintf(stderr, ME ": %s: %s\n", side->name, error.text);
	return err;
}

/* What a call names. */
struct names {
	size_t num;
	uint32_t each; /* addresses of an entry */
	struct ucm_id *ids;
	uint32_t *shards;
	uint64_t *addresses;
};

static void free_names(struct names *names)
{
	free(names->ids);
	free(names->shards);
	free(names->addresses);
}

static int new_names(struct names *names, const struct bench *bench,
		     const struct side *side)
{
	struct ucm_shards_shape shape;

	ucm_shards_get_shape(side->store, &shape);
	*names = (struct names){
		.num = bench->num_files * shape.num_shards,
		.each = shape.tensors_per_shard,
	};
	names->ids = calloc(names->num, sizeof(*names->ids));
	names->shards = calloc(names->num, sizeof(*names->shards));
	names->addresses = calloc(names->num * names->each,
				  sizeof(*names->addresses));
	if (names->ids && names->shards && names->addresses)
		return 0;
	free_names(names);
	return -ENOMEM;
}

static void name_shard(struct names *names, size_t at,
		       const struct bench *bench, size_t file, uint32_t shard)
{
	const struct ucm_region *regions =
		ucm_layout_regions(bench->layout) + shard * names->each;

	names->ids[at] = bench->files[file].id;
	names->shards[at] = shard;
	for (uint32_t i = 0; i < names->each; i++)
		names->addresses[at * names->each + i] =
			regions[i].base +
			page_of(bench, file) * (uint64_t)regions[i].page_stride;
}

/* Once through all blocks for each shard, which is another one for each block:
 * so both sides come to the blocks in one order. */
static void name_all(struct names *names, struct bench *bench)
{
	size_t shards = names->num / bench->num_files;

	for (size_t i = 0; i < names->num; i++) {
		size_t file = i % bench->num_files;
		size_t turn = i / bench->num_files;

		name_shard(names, i, bench, file,
			   (uint32_t)((turn + file) % shards));
	}
}

int run_shards(struct bench *bench, struct side *side, struct figure *out)
{
	struct ucm_error error = { "" };
	struct ucm_loader_stats stats;
	struct names names;
	uint64_t began, handle;
	double cpu;
	int err = side->store ? 0 : open_store(bench, side);

	if (!err)
		err = new_names(&names, bench, side);
	if (err)
		return err;
	move_on(bench);
	name_all(&names, bench);
	ucm_loader_get_stats(side->loader, &stats, sizeof(stats));
	out->opens = -(double)stats.opens;
	out->reads = -(double)stats.reads;
	cpu = cpu_seconds();
	began = now_ns();
	err = ucm_shards_load(side->store, names.ids, names.shards, names.num,
			      names.addresses, &handle, &error);
	if (!err)
		err = ucm_shards_wait(side->store, handle, -1, NULL, 0);
	out->seconds = (double)(now_ns() - began) / 1e9;
	out->cpu = cpu_seconds() - cpu;
	ucm_loader_get_stats(side->loader, &stats, sizeof(stats));
	out->opens += (double)stats.opens;
	out->reads += (double)stats.reads;
	free_names(&names);
	if (err)
		fprintf(stderr, ME ": %s: %s\n", side->name,
			*error.text ? error.text : strerror(-err));
	return err ? err : check_pages(bench);
}

void shards_close(struct side *side)
{
	ucm_shards_close(side->store);
	side->store = NULL;
}
