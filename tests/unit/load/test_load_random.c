/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_random.c - random loads and saves, against a naive reference.
 *
 * The reference (tensors.h) knows the address of each byte of each block. It
 * has a copy of all memory, with what lies between and around the tensors, in
 * which it does by single bytes what the loader is asked for; after each round
 * both must be the same. What a failed block left in the layers that were asked
 * for is not compared: it is never told to be loaded.
 *
 * UCMFS_TEST_ROUNDS (tasks in all; fewer by default under a sanitizer) is taken
 * from the environment, as the seed is.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu/layout/layout.h"
#include "hashing/tree.h"
#include "tests/unit/load_fixture.h"
#include "tests/unit/tensors.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TASKS 2000
#else
#define TASKS 10000
#endif
#define TASKS_OF_WORLD 400 /* then all is made anew */
#define NUM_GROUPS 5
#define NUM_FILES 8 /* of each group */
#define MOST_JOBS 3 /* tasks at a time */
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

struct job {
	struct group *group;
	bool save, cancelled;
	uint32_t first, end; /* layers */
	enum ucm_verify verify;
	unsigned num, files[MOST_PAGES];
	struct ucm_move moves[MOST_PAGES];
	struct ucm_task *task;
};

/* What goes wrong in this round. */
struct trouble {
	struct file *file; /* reading `at` of it fails */
	off_t at;
	bool writes;
};

static unsigned tasks_done, outcomes_seen[6];

static unsigned pick(struct world *world, unsigned num)
{
	return (unsigned)(random_next(&world->random) % num);
}

static bool chance(struct world *world, unsigned one_in)
{
	return !pick(world, one_in);
}

#define must_here(condition, what)                                            \
	must_in_case(condition, world->index, what)

/* ---- memory ---- */

/* How far from its first byte a tensor's last one is. */
static size_t span_of(const struct shape *s)
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

static void fill(struct world *world, uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)random_next(&world->random);
}

static void place_shape(struct world *world, struct group *group)
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

static bool make_layout(struct world *world, struct group *group)
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

static unsigned name_of(const struct group *group, unsigned file)
{
	return group->index * NUM_FILES + file;
}

static const char *path_of(const struct world *world,
			   const struct group *group, unsigned file)
{
	struct ucm_id id = lf_id(name_of(group, file));
	char name[UCM_TREE_BELOW_LEN + 1];

	ucm_tree_block_below(&id, name);
	return fx_path("%s/spaces/%s/%s", world->tier, group->space, name);
}

static uint8_t *payload_of(uint8_t *bytes, size_t len, struct ucm_block *block)
{
	ck_assert_int_eq(ucm_block_parse(bytes, len, len, block), 0);
	return bytes + block->data_offset;
}

/* The checksums that the payload has now, if it has any. */
static void sum_anew(uint8_t *bytes, size_t len)
{
	struct ucm_block block;
	uint8_t *payload = payload_of(bytes, len, &block);
	bool summed = block.flags & UCM_BLOCK_HAS_CRC;

	ck_assert_int_eq(ucm_block_encode(&block, summed ? payload : NULL,
					  bytes, len),
			 0);
}

/* Layers that are smaller than others have zeros in files. */
static void clear_padding(const struct group *group, uint8_t *bytes, size_t len)
{
	struct ucm_block block;
	uint8_t *payload = payload_of(bytes, len, &block);

	for (uint64_t i = 0; i < group->payload; i++) {
		if (!group->places[0].at[i])
			payload[i] = 0;
	}
	sum_anew(bytes, len);
}

static void damage(struct world *world, const struct group *group,
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

static void make_file(struct world *world, struct group *group, unsigned n)
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

static void open_loader(struct world *world)
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

static void make_world(struct world *world, unsigned index)
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

static void end_world(struct world *world)
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

/* ---- what is asked for ---- */

/* Pages and files that no other task of the round has: a block that is being
 * saved may or may not be there for others. */
static void choose_blocks(struct world *world, struct job *job)
{
	struct group *group = job->group;

	for (uint32_t page = 0; page < group->shape.pages; page++) {
		unsigned n = pick(world, NUM_FILES);
		struct file *file = &group->files[n];

		if (group->page_busy[page] || file->busy || chance(world, 4))
			continue;
		group->page_busy[page] = true;
		file->busy = job->save;
		job->files[job->num] = n;
		job->moves[job->num++] = (struct ucm_move){
			.id = lf_id(name_of(group, n)), .page = page
		};
	}
}

/* Is a file that is to be saved also to be loaded? */
static bool is_loaded(const struct job *jobs, unsigned num,
		      const struct group *group, unsigned n)
{
	for (unsigned i = 0; i < num; i++) {
		for (unsigned j = 0; j < jobs[i].num; j++) {
			if (jobs[i].group == group && !jobs[i].save &&
			    jobs[i].files[j] == n)
				return true;
		}
	}
	return false;
}

static void drop_loaded(const struct job *jobs, unsigned num, struct job *job)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < job->num; i++) {
		if (is_loaded(jobs, num, job->group, job->files[i])) {
			job->group->files[job->files[i]].busy = false;
			continue;
		}
		job->files[kept] = job->files[i];
		job->moves[kept++] = job->moves[i];
	}
	job->num = kept;
}

static void fill_pages(struct world *world, const struct job *job)
{
	struct group *group = job->group;

	for (unsigned i = 0; i < job->num; i++) {
		const struct places *places =
			&group->places[job->moves[i].page];

		for (size_t k = 0; k < places->num; k++) {
			uint8_t *byte = (uint8_t *)(uintptr_t)places->at[k];

			if (!byte)
				continue;
			*byte = (uint8_t)random_next(&world->random);
			group->want[byte - group->arena] = *byte;
		}
	}
}

static uint64_t *addresses_of(struct job *job)
{
	const struct ucm_layout *layout = job->group->layout;
	uint32_t first = layout->layer_first[job->first];
	uint32_t end = layout->layer_first[job->end];
	uint64_t *addresses = calloc((size_t)(end - first) * MOST_PAGES + 1,
				     sizeof(*addresses)), *at = addresses;

	for (unsigned i = 0; i < job->num; i++) {
		for (uint32_t r = first; r < end; r++)
			*at++ = layout->regions[r].base +
				job->moves[i].page *
					(uint64_t)layout->regions[r].page_stride;
		job->moves[i].page = UINT32_MAX;
	}
	return addresses;
}

static void start_job(struct world *world, struct job *job)
{
	struct ucm_move pages[MOST_PAGES];
	struct ucm_request request = {
		.size = sizeof(request),
		.group = job->group->number,
		.first_layer = job->first,
		.num_layers = job->end - job->first,
		.blocks = job->moves,
		.num_blocks = job->num,
		.verify = job->verify,
		.order = (enum ucm_load_order)pick(world, 2),
		.group_layers = pick(world, 4),
	};
	uint64_t *addresses = NULL;
	struct ucm_error error = { "" };

	memcpy(pages, job->moves, sizeof(pages));
	if (chance(world, 4))
		request.addresses = addresses = addresses_of(job);
	must_here(!(job->save ? ucm_save_submit : ucm_load_submit)(
			  world->loader, &request, &job->task, &error),
		  error.text);
	memcpy(job->moves, pages, sizeof(pages));
	free(addresses);
	job->cancelled = chance(world, 25);
	if (job->cancelled)
		ucm_task_cancel(job->task);
}

static void plan_job(struct world *world, struct job *jobs, unsigned num)
{
	struct job *job = &jobs[num];
	uint32_t layers;

	*job = (struct job){ .group = &world->groups[pick(world, NUM_GROUPS)],
			     .save = chance(world, 4),
			     .verify = (enum ucm_verify)pick(world, 3) };
	layers = job->group->shape.geometry.num_layers;
	job->end = layers;
	if (chance(world, 2)) {
		job->first = pick(world, layers);
		job->end = job->first + 1 + pick(world, layers - job->first);
	}
	choose_blocks(world, job);
	if (job->save) {
		world->has_store = true;
		drop_loaded(jobs, num, job);
		fill_pages(world, job);
	}
}

static struct trouble make_trouble(struct world *world, const struct job *job)
{
	struct trouble trouble = { .writes = chance(world, 20) };
	struct group *group = job->group;
	const char *path;

	if (trouble.writes)
		lf_fail(UCM_IO_WRITE, 1 + pick(world, 3), -ENOSPC, true);
	if (chance(world, 5))
		lf_shorten(UCM_IO_READ, 4096u << pick(world, 4),
			   pick(world, 8));
	if (!chance(world, 5) || !job->num || world->in_memory)
		return trouble;
	path = path_of(world, group, job->files[0]);
	if (!fx_exists(path))
		return trouble;
	trouble.file = &group->files[job->files[0]];
	trouble.at = pick(world, (unsigned)(trouble.file->offset +
					    group->payload));
	lf_fail_at(path, trouble.at, -EIO);
	return trouble;
}

/* ---- what must have come of it ---- */

static int natural(const struct job *job, const struct file *file)
{
	bool planes = job->verify == UCM_VERIFY_FULL;

	switch (file->state) {
	case ABSENT: return -ENOENT;
	case TORN: return -EBADMSG;
	case BAD_HEAD: return job->verify == UCM_VERIFY_NONE ? 0 : -EBADMSG;
	case BAD_PLANE:
		return (planes || file->bad_padding) &&
				       file->plane / 2 >= job->first &&
				       file->plane / 2 < job->end
			       ? -EBADMSG
			       : 0;
	case GOOD: break;
	}
	return 0;
}

static bool is_likely(struct world *world, const struct job *job,
		      const struct file *file, const struct trouble *trouble,
		      const struct ucm_outcome *outcome)
{
	uint64_t from = file->offset + job->first * job->group->layer;
	uint64_t end = file->offset + job->end * job->group->layer;
	int want = natural(job, file);
	bool hit = trouble->file == file;

	if (outcome->err == -ECANCELED)
		return job->cancelled;
	/* the store moves aside what is no block */
	if (outcome->err == -ENOENT && world->has_store &&
	    (file->state == TORN || file->state == BAD_HEAD))
		return true;
	if (outcome->err == -EIO)
		return hit;
	if (hit && !want && (uint64_t)trouble->at >= from &&
	    (uint64_t)trouble->at < end)
		return false; /* it cannot have been read */
	/* others may have had the header read */
	if (outcome->err == -EBADMSG && file->state == BAD_HEAD)
		return true;
	if (outcome->err == -EBADMSG && file->state == BAD_PLANE)
		return want && outcome->plane == file->plane &&
		       outcome->fault == (job->verify == UCM_VERIFY_FULL &&
							  !file->summed
						  ? UCM_FAULT_PLANE
						  : UCM_FAULT_GEOMETRY);
	return outcome->err == want;
}

/* By bytes: what was asked for of a block, between its page and a payload. */
static void move_bytes(struct job *job, unsigned i, uint8_t *payload,
		       bool to_payload)
{
	struct group *group = job->group;
	const struct places *places = &group->places[job->moves[i].page];

	for (size_t k = job->first * group->layer; k < job->end * group->layer;
	     k++) {
		size_t at = places->at[k] - (uintptr_t)group->arena;

		if (to_payload)
			payload[k] = places->at[k] ? group->want[at] : 0;
		else if (places->at[k])
			group->want[at] = payload[k];
	}
}

/* Whatever is there now: a failed block's. */
static void accept_page(struct job *job, unsigned i)
{
	struct group *group = job->group;
	const struct places *places = &group->places[job->moves[i].page];

	for (size_t k = job->first * group->layer; k < job->end * group->layer;
	     k++) {
		size_t at = places->at[k] - (uintptr_t)group->arena;

		if (places->at[k])
			group->want[at] = group->arena[at];
	}
}

static void judge_load(struct world *world, struct job *job,
		       const struct trouble *trouble)
{
	const struct ucm_outcome *outcomes = ucm_task_outcomes(job->task);

	for (unsigned i = 0; i < job->num; i++) {
		struct file *file = &job->group->files[job->files[i]];
		int err = outcomes[i].err;
		char text[128];

		snprintf(text, sizeof(text), "load: state %d ended with %d",
			 (int)file->state, err);
		must_here(is_likely(world, job, file, trouble, &outcomes[i]),
			  text);
		if (!err)
			move_bytes(job, i, file->payload, false);
		else if (err != -ENOENT)
			accept_page(job, i);
		outcomes_seen[!err ? 0 : err == -ENOENT ? 1
				 : err == -EBADMSG      ? 2
							: 3]++;
	}
}

static bool file_is(const uint8_t *bytes, size_t len,
		    const struct group *group, const uint8_t *payload)
{
	const struct ucm_geometry *g = &group->shape.geometry;
	struct ucm_block block;

	if (ucm_block_parse(bytes, len, len, &block) ||
	    !ucm_geometry_equal(&block.geometry, g) ||
	    ucm_block_file_size(&block) != len ||
	    ucm_block_check_extension(&block, bytes, len) ||
	    memcmp(bytes + block.data_offset, payload, group->payload) != 0)
		return false;
	for (uint32_t layer = 0; layer < g->num_layers; layer++) {
		const uint8_t *k = payload + layer * group->layer;

		if (ucm_block_plane_crc(&block, bytes, 2 * layer) !=
			    ucm_crc32c(0, k, g->k_bytes) ||
		    ucm_block_plane_crc(&block, bytes, 2 * layer + 1) !=
			    ucm_crc32c(0, k + g->k_bytes, g->v_bytes))
			return false;
	}
	return true;
}

/* Is the file there, and all that it should be? */
static bool is_saved(struct world *world, const struct group *group, unsigned n,
		     const uint8_t *payload)
{
	size_t room = group->payload + (1 << 17), len;
	uint8_t *bytes = malloc(room);
	FILE *file = fopen(path_of(world, group, n), "r");
	bool same;

	if (!file) {
		free(bytes);
		return false;
	}
	len = fread(bytes, 1, room, file);
	fclose(file);
	same = file_is(bytes, len, group, payload);
	free(bytes);
	must_here(same, "a file was saved wrong");
	return true;
}

static bool is_whole(const struct group *group, const struct file *file)
{
	return !memchr(file->have, 0, group->shape.geometry.num_layers);
}

/* The reference's save; false: the block is not one yet. */
static bool save_layers(struct job *job, unsigned i)
{
	struct group *group = job->group;
	struct file *file = &group->files[job->files[i]];

	move_bytes(job, i, file->payload, true);
	memset(file->have + job->first, 1, job->end - job->first);
	return is_whole(group, file);
}

static void become_good(const struct group *group, struct file *file)
{
	file->state = GOOD;
	file->checked = true;
	file->offset =
		ucm_block_data_offset(group->shape.geometry.num_layers);
}

/* Nothing was saved, unless it was too late to take it back; and if it is not there
 * it may still come: then nobody asks for it any more. */
static void judge_unsaved(struct world *world, struct job *job, unsigned i,
			  int err)
{
	struct group *group = job->group;
	struct file *file = &group->files[job->files[i]];
	bool whole = save_layers(job, i);

	if (fx_exists(path_of(world, group, job->files[i]))) {
		must_here(err == -ECANCELED && whole,
			  "a block that was not saved is there");
		must_here(is_saved(world, group, job->files[i], file->payload),
			  "it is not");
		become_good(group, file);
		return;
	}
	file->busy = err == -ECANCELED && whole;
	memset(file->have, 0, group->shape.geometry.num_layers);
	ucm_save_abandon(world->loader, group->number, &job->moves[i].id, 1);
}

static void judge_save(struct world *world, struct job *job,
		       const struct trouble *trouble)
{
	const struct ucm_outcome *outcomes = ucm_task_outcomes(job->task);

	for (unsigned i = 0; i < job->num; i++) {
		struct group *group = job->group;
		unsigned n = job->files[i];
		struct file *file = &group->files[n];
		int err = outcomes[i].err;

		file->busy = false;
		outcomes_seen[err ? 5 : 4]++;
		if (file->state != ABSENT) {
			must_here(err ? err == -ECANCELED : outcomes[i].skipped,
				  "a block that was there was not skipped");
			continue;
		}
		if (err) {
			must_here(err == -ECANCELED
					  ? job->cancelled
					  : err == -ENOSPC && trouble->writes,
				  "a save failed");
			judge_unsaved(world, job, i, err);
			continue;
		}
		must_here(!outcomes[i].skipped, "an absent block was skipped");
		if (save_layers(job, i)) {
			must_here(is_saved(world, group, n, file->payload),
				  "a saved block is not there");
			become_good(group, file);
		} else {
			must_here(!fx_exists(path_of(world, group, n)),
				  "a block is there that is not whole");
		}
	}
}

/* Blocks that are torn or have a bad header are no blocks for the store: it
 * may move them aside when it opens, and let them be saved anew. */
static void leave_to_the_store(struct job *job)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < job->num; i++) {
		struct file *file = &job->group->files[job->files[i]];

		if (file->state != ABSENT && file->state != GOOD) {
			file->busy = false;
			continue;
		}
		job->files[kept] = job->files[i];
		job->moves[kept++] = job->moves[i];
	}
	job->num = kept;
}

static void finish_job(struct world *world, struct job *job,
		       const struct trouble *trouble)
{
	must_here(ucm_task_wait(job->task, 30000) != -ETIMEDOUT,
		  "a task hangs");
	if (job->save)
		judge_save(world, job, trouble);
	else
		judge_load(world, job, trouble);
	ucm_task_free(job->task);
	memset(job->group->page_busy, 0, sizeof(job->group->page_busy));
}

static void play_round(struct world *world)
{
	unsigned num = 1 + pick(world, MOST_JOBS);
	struct job jobs[MOST_JOBS];
	struct trouble trouble;

	for (unsigned i = 0; i < num; i++) {
		plan_job(world, jobs, i);
		if (jobs[i].save)
			leave_to_the_store(&jobs[i]);
	}
	trouble = make_trouble(world, &jobs[0]);
	for (unsigned i = 0; i < num; i++)
		start_job(world, &jobs[i]);
	for (unsigned i = 0; i < num; i++)
		finish_job(world, &jobs[i], &trouble);
	lf_fail_at(NULL, 0, 0);
	lf_fail(UCM_IO_WRITE, 0, 0, false);
	lf_shorten(UCM_IO_READ, 0, 0);
	for (unsigned i = 0; i < num; i++)
		must_here(!memcmp(jobs[i].group->arena, jobs[i].group->want,
				  jobs[i].group->len),
			  jobs[i].group->memory);
	tasks_done += num;
}

static unsigned num_tasks(void)
{
	const char *text = getenv("UCMFS_TEST_ROUNDS");

	return text ? (unsigned)strtoul(text, NULL, 0) : TASKS;
}

static void setup(void)
{
	fx_setup();
	lf_faults();
}

static void open_memory(void)
{
	lf_open_memory();
}

UNIT_PROGRAM(.begin = open_memory);
UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 120);

UNIT_TEST(all_memory_is_as_the_reference_says)
{
	static struct world world;

	for (unsigned i = 0; tasks_done < num_tasks(); i++) {
		make_world(&world, i);
		for (unsigned end = tasks_done + TASKS_OF_WORLD;
		     tasks_done < end && tasks_done < num_tasks();)
			play_round(&world);
		end_world(&world);
		fx_clear_log();
	}
	printf("# %u tasks; loaded %u, absent %u, damaged %u, other failures "
	       "%u; saved %u, not saved %u\n",
	       tasks_done, outcomes_seen[0], outcomes_seen[1],
	       outcomes_seen[2], outcomes_seen[3], outcomes_seen[4],
	       outcomes_seen[5]);
	/* with fewer tasks chance may leave something out */
	for (unsigned i = 0; i < NUM_ROWS(outcomes_seen); i++)
		ck_assert(outcomes_seen[i] || num_tasks() < 1000);
}
