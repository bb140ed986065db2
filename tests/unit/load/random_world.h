/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_world.h - a world of random tensors in memory, and of files with
 * their blocks, good and bad, over which a loader is open.
 */
#ifndef UCM_TESTS_RANDOM_WORLD_H
#define UCM_TESTS_RANDOM_WORLD_H

#include <stdio.h>
#include <string.h>

#include "gpu/layout/layout.h"
#include "hashing/tree.h"
#include "tests/unit/load_fixture.h"
#include "tests/unit/tensors.h"

#define NUM_GROUPS 5
#define NUM_FILES 8 /* of each group */
#define MOST_PAGES 3
#define GUARD 512

enum state { ABSENT, GOOD, BAD_PLANE, BAD_HEAD, TORN };

struct file {
	enum state state;
	bool checked;     /* each plane has a checksum */
	uint8_t *payload; /* what the file has, or its layers so far */
	uint8_t *have;    /* layers that were saved, while it is absent */
	uint32_t plane;   /* the bad one */
	bool bad_padding; /* it is bad where its layer has nothing */
	bool summed;      /* and its checksum is right, as in larger layers */
	uint64_t offset;  /* of the payload */
	bool busy;        /* some task of this round saves it, or an earlier one may
			   * still: it was cancelled when that was being done */
};

struct group {
	struct shape shape;
	char dims[UCM_TENSOR_MAX_DIMS + 1], memory[UCM_TENSOR_MAX_DIMS + 1];
	struct ucm_layout *layout;
	struct places places[MOST_PAGES];
	bool page_busy[MOST_PAGES];
	uint8_t *arena, *want;
	size_t len;
	uint64_t payload, layer;
	unsigned index, number;
	char space[8];
	struct file files[NUM_FILES];
};

struct world {
	uint64_t random;
	unsigned index;
	char tier[128];
	bool in_memory;
	bool has_store; /* for the first save */
	struct group groups[NUM_GROUPS];
	struct ucm_loader *loader;
};

static inline unsigned pick(struct world *world, unsigned num)
{
	return (unsigned)(random_next(&world->random) % num);
}

static inline bool chance(struct world *world, unsigned one_in)
{
	return !pick(world, one_in);
}

#define must_here(condition, what)                                            \
	must_in_case(condition, world->index, what)

/* ---- memory ---- */

/* How far from its first byte a tensor's last one is. */
static inline size_t span_of(const struct shape *s)
{
	uint64_t most = 0;

	for (uint64_t page = 0; page < s->pages; page++) {
		struct places all = expected(s, page);

		for (size_t i = 0; i < all.num; i++) {
			uint64_t at = all.at[i]; /* 0 also where it has none */

			at -= at >= s->v_data ? s->v_data : s->data;
			most = at > most ? at : most;
		}
		free(all.at);
	}
	return most + 1;
}

static inline void fill(struct world *world, uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)random_next(&world->random);
}

static inline void place_shape(struct world *world, struct group *group)
{
	struct shape *s = &group->shape;
	bool apart = s->form.has_v && !splits(s);
	size_t span;

	s->data = 0;
	s->v_data = UINT64_C(1) << 60;
	if (!has(s, L)) { /* a tensor for each layer, not far from the others */
		s->stride[L] = 0;
		s->stride[L] = (int64_t)span_of(s) + pick(world, 100);
	}
	span = span_of(s);
	group->len = (apart ? 2 * span + 37 : span) + 2 * GUARD + 8;
	group->arena = malloc(group->len);
	group->want = malloc(group->len);
	ck_assert(group->arena && group->want);
	s->data = (uintptr_t)group->arena + GUARD + pick(world, 8);
	s->v_data = s->data + span + 37;
	fill(world, group->arena, group->len);
	memcpy(group->want, group->arena, group->len);
}

static inline bool make_layout(struct world *world, struct group *group)
{
	struct ucm_error error = { "" };

	group->shape = random_shape(&world->random, group->dims, group->memory,
				    chance(world, 3) ? 100 : 5);
	group->shape.form.dims = group->dims;
	group->shape.form.memory = group->memory;
	place_shape(world, group);
	ck_assert_int_eq(ucm_layout_new(&group->shape.geometry,
					group->shape.pages, &group->layout,
					&error),
			 0);
	must_here(!set_sizes(group->layout, &group->shape, &error),
		  error.text);
	if (!add_all(group->layout, &group->shape, chance(world, 2), &error)) {
		must_here(!ucm_layout_seal(group->layout, &error), error.text);
		return true;
	}
	must_here(strstr(error.text, "repetitions of"), error.text);
	ucm_layout_free(group->layout);
	free(group->arena);
	free(group->want);
	return false;
}

/* ---- files ---- */

static inline unsigned name_of(const struct group *group, unsigned file)
{
	return group->index * NUM_FILES + file;
}

static inline const char *path_of(const struct world *world,
				  const struct group *group, unsigned file)
{
	struct ucm_id id = lf_id(name_of(group, file));
	char name[UCM_TREE_BELOW_LEN + 1];

	ucm_tree_block_below(&id, name);
	return fx_path("%s/spaces/%s/%s", world->tier, group->space, name);
}

static inline uint8_t *payload_of(uint8_t *bytes, size_t len,
				  struct ucm_block *block)
{
	ck_assert_int_eq(ucm_block_parse(bytes, len, len, block), 0);
	return bytes + block->data_offset;
}

/* The checksums that the payload has now, if it has any. */
static inline void sum_anew(uint8_t *bytes, size_t len)
{
	struct ucm_block block;
	uint8_t *payload = payload_of(bytes, len, &block);
	bool summed = block.flags & UCM_BLOCK_HAS_CRC;

	ck_assert_int_eq(ucm_block_encode(&block, summed ? payload : NULL,
					  bytes, len),
			 0);
}

/* Layers that are smaller than others have zeros in files. */
static inline void clear_padding(const struct group *group, uint8_t *bytes,
				 size_t len)
{
	struct ucm_block block;
	uint8_t *payload = payload_of(bytes, len, &block);

	for (uint64_t i = 0; i < group->payload; i++) {
		if (!group->places[0].at[i])
			payload[i] = 0;
	}
	sum_anew(bytes, len);
}

static inline void damage(struct world *world, const struct group *group,
			  struct file *file, uint8_t *bytes, size_t *len)
{
	const struct ucm_geometry *g = &group->shape.geometry;
	uint32_t planes = g->v_bytes ? 2 : 1, layer;
	uint64_t at;

	switch (file->state) {
	case BAD_PLANE:
		at = pick(world, (unsigned)group->payload);
		layer = (uint32_t)(at / group->layer);
		file->plane = 2 * layer +
			      (planes == 2 && at % group->layer >= g->k_bytes);
		file->bad_padding = !group->places[0].at[at];
		file->payload[at] ^= 1;
		bytes[file->offset + at] ^= 1;
		file->summed = file->bad_padding && chance(world, 2);
		if (file->summed)
			sum_anew(bytes, *len);
		break;
	case BAD_HEAD: bytes[pick(world, 128)] ^= 2; break;
	case TORN: *len -= 1 + pick(world, (unsigned)*len); break;
	case ABSENT: case GOOD: break;
	}
}

static inline void make_file(struct world *world, struct group *group,
			     unsigned n)
{
	static const enum fx_kind kinds[] = { FX_PAGED, FX_PAGED, FX_PAGED,
					      FX_PACKED, FX_PAGED_RAW,
					      FX_PACKED_RAW };
	static const enum state states[] = { ABSENT, ABSENT, GOOD, GOOD, GOOD,
					     BAD_PLANE, BAD_HEAD, TORN };
	struct file *file = &group->files[n];
	enum fx_kind kind = kinds[pick(world, NUM_ROWS(kinds))];
	const char *path = path_of(world, group, n);
	uint8_t *bytes;
	size_t len;

	*file = (struct file){
		.state = states[pick(world, NUM_ROWS(states))],
		.checked = kind == FX_PAGED,
		.payload = malloc(group->payload),
		.have = calloc(group->shape.geometry.num_layers, 1),
	};
	if (file->state != ABSENT && file->state != GOOD)
		kind = FX_PAGED;
	bytes = lf_file(&group->shape.geometry, name_of(group, n), kind, &len);
	file->offset = kind == FX_PACKED || kind == FX_PACKED_RAW
			       ? UCM_BLOCK_HEADER_BYTES
			       : ucm_block_data_offset(
					 group->shape.geometry.num_layers);
	clear_padding(group, bytes, len);
	memcpy(file->payload, bytes + file->offset, group->payload);
	damage(world, group, file, bytes, &len);
	if (file->state != ABSENT)
		fx_put(path, bytes, len);
	free(bytes);
}

/* ---- the world ---- */

static inline void open_loader(struct world *world)
{
	struct ucm_loader_options options = {
		.size = sizeof(options),
		.tiers = world->tier,
		.io = lf_io(chance(world, 3) ? UCM_IO_THREADS : UCM_IO_AUTO),
		.threads = 1 + pick(world, 3),
		.staging_bytes = 1,
		.write_buffer_bytes = pick(world, 2) * (2u << 20),
		.open_files = 1 + pick(world, 40),
	};
	const struct ucm_loader_limits limits = {
		.read_bytes = 1u << pick(world, 20),
		.window_bytes = chance(world, 2) ? 0 : 1u << pick(world, 22),
	};
	struct ucm_error error = { "" };

	must_here(!ucm_loader_open_within(&options, &limits, &world->loader,
					  &error),
		  error.text);
	for (unsigned i = 0; i < NUM_GROUPS; i++) {
		struct group *group = &world->groups[i];

		must_here(!ucm_loader_add_group(world->loader, group->layout,
						group->space, &group->number,
						&error),
			  error.text);
	}
}

static inline void make_world(struct world *world, unsigned index)
{
	*world = (struct world){ .random = random_case(index),
				 .index = index };
	world->in_memory = *lf_memory && chance(world, 4);
	snprintf(world->tier, sizeof(world->tier), "%s/%u",
		 world->in_memory ? lf_memory : fx_path("$"), index);
	lf_tier(world->tier);
	for (unsigned i = 0; i < NUM_GROUPS; i++) {
		struct group *group = &world->groups[i];
		struct ucm_geometry *g = &group->shape.geometry;

		group->index = i;
		snprintf(group->space, sizeof(group->space), "s%u", i);
		while (!make_layout(world, group))
			;
		group->layer = (uint64_t)g->k_bytes + g->v_bytes;
		group->payload = group->layer * g->num_layers;
		for (uint64_t page = 0; page < group->shape.pages; page++)
			group->places[page] = expected(&group->shape, page);
		fx_mkdirs(fx_path("%s/spaces/%s", world->tier, group->space));
		for (unsigned n = 0; n < NUM_FILES; n++)
			make_file(world, group, n);
	}
	open_loader(world);
}

static inline void end_world(struct world *world)
{
	ucm_loader_close(world->loader);
	must_here(!fx_count_files(fx_path("%s/.ucmfs/tmp", world->tier)),
		  "unfinished files are left");
	for (unsigned i = 0; i < NUM_GROUPS; i++) {
		struct group *group = &world->groups[i];

		for (unsigned n = 0; n < NUM_FILES; n++) {
			free(group->files[n].payload);
			free(group->files[n].have);
		}
		for (uint64_t page = 0; page < group->shape.pages; page++)
			free(group->places[page].at);
		ucm_layout_free(group->layout);
		free(group->arena);
		free(group->want);
	}
	if (world->in_memory)
		lf_empty_memory();
}

#endif
