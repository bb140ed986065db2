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

#include "gpu/layout/layout.h"
#include "tests/unit/load/random_world.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TASKS 2000
#else
#define TASKS 10000
#endif
#define TASKS_OF_WORLD 400 /* then all is made anew */
#define MOST_JOBS 3 /* tasks at a time */

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
