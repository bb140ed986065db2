/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_sides.c - the loader's turns.
 *
 * A side keeps its loader from round to round, as an engine does. The clock
 * runs from the submit until the task is done; pages and files are checked when
 * it has stopped.
 */
#include <config.h>

#include "bench/load_bench.h"
#include "gpu/load/limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANY 8192 /* blocks of run_submit() */

/* ---- loaders ---- */

static uint64_t at_least(uint64_t value, uint64_t least)
{
	return value > least ? value : least;
}

static struct ucm_loader_options options_of(const struct bench *bench,
					    const struct side *side)
{
	const char *tiers = side->is_save ? bench->saves : bench->tiers;
	struct ucm_loader_options options = {
		.size = sizeof(options),
		.mount = side->mount ? bench->mnt : NULL,
		.tiers = side->mount ? NULL : tiers,
		.threads = side->threads,
		.open_files = side->open_files,
	};

	/* saves have half of the staging memory, reads at most half */
	options.staging_bytes = 2 * side->depth * bench->file_size;
	if (!side->is_save)
		options.staging_bytes = at_least(2 * options.staging_bytes,
						 (uint64_t)256 << 20);
	if (side->buffer)
		options.write_buffer_bytes =
			bench->num_files * (bench->file_size + (1 << 16));
	return options;
}

int side_open(struct bench *bench, struct side *side)
{
	struct ucm_loader_options options = options_of(bench, side);
	const struct ucm_loader_limits limits = {
		.window_bytes = side->depth * bench->payload,
	};
	struct ucm_error error = { "" };
	unsigned group;
	int err = ucm_loader_open_within(&options, &limits, &side->loader,
					 &error);

	if (!err)
		err = ucm_loader_add_group(
			side->loader, side->lent ? bench->lent : bench->layout,
			NULL, &group, &error);
	if (err)
		fprintf(stderr, ME ": %s: %s\n", side->name, error.text);
	return err;
}

void side_close(struct side *side)
{
	shards_close(side);
	ucm_loader_close(side->loader);
	side->loader = NULL;
}

/* ---- requests ---- */

static int submit(struct side *side, struct ucm_request *request,
		  struct ucm_task **out)
{
	struct ucm_error error = { "" };
	int err;

	request->size = sizeof(*request);
	request->verify = side->verify;
	request->order = side->order;
	request->group_layers = side->group_layers;
	err = (side->is_save ? ucm_save_submit : ucm_load_submit)(
		side->loader, request, out, &error);
	if (err)
		fprintf(stderr, ME ": %s: %s\n", side->name, error.text);
	return err;
}

static int complain_of(const struct side *side, const struct ucm_task *task,
		       size_t num)
{
	const struct ucm_outcome *outcomes = ucm_task_outcomes(task);
	char text[96];

	for (size_t i = 0; i < num; i++) {
		if (!outcomes[i].err && !outcomes[i].skipped)
			continue;
		ucm_outcome_text(&outcomes[i], text, sizeof(text));
		fprintf(stderr, ME ": %s: block %zu of %zu: %s\n", side->name,
			i, num, text);
		return -EIO;
	}
	return 0;
}

/* Submit, wait for layer 0 and for all. */
static int move(struct bench *bench, struct side *side,
		const struct ucm_move *moves, size_t num, struct figure *out)
{
	struct ucm_request request = { .blocks = moves, .num_blocks = num };
	double cpu = cpu_seconds();
	uint64_t began = now_ns();
	struct ucm_task *task;
	int err = submit(side, &request, &task);

	(void)bench;
	if (err)
		return err;
	if (side->order == UCM_LOAD_LAYERS)
		ucm_task_wait_layer(task, 0, -1);
	out->first = (double)(now_ns() - began) / 1e9;
	if (side->until_copied) {
		ucm_task_wait_copied(task, -1);
		out->seconds = (double)(now_ns() - began) / 1e9;
	}
	ucm_task_wait(task, -1);
	out->cpu = cpu_seconds() - cpu;
	if (!side->until_copied)
		out->seconds = (double)(now_ns() - began) / 1e9;
	err = complain_of(side, task, num);
	ucm_task_free(task);
	return err;
}

/* ---- loads ---- */

static void fill_moves(const struct bench *bench, struct ucm_move *moves)
{
	for (size_t i = 0; i < bench->num_files; i++) {
		moves[i].id = bench->files[i].id;
		moves[i].page = page_of(bench, i);
	}
}

int run_load(struct bench *bench, struct side *side, struct figure *out)
{
	struct ucm_move *moves = calloc(bench->num_files, sizeof(*moves));
	int err;

	if (!moves)
		return -ENOMEM;
	move_on(bench);
	fill_moves(bench, moves);
	err = move(bench, side, moves, bench->num_files, out);
	free(moves);
	return err ? err : check_pages(bench);
}

static int submit_each(struct side *side, const struct ucm_move *moves,
		       size_t num, struct ucm_task **tasks)
{
	struct ucm_request request = { .num_blocks = 1 };
	int err = 0;

	for (size_t i = 0; i < num && !err; i++) {
		request.blocks = &moves[i];
		err = submit(side, &request, &tasks[i]);
	}
	return err;
}

static int wait_each(const struct side *side, struct ucm_task **tasks,
		     size_t num)
{
	int err = 0;

	for (size_t i = 0; i < num && tasks[i]; i++) {
		ucm_task_wait(tasks[i], -1);
		if (!err)
			err = complain_of(side, tasks[i], 1);
	}
	return err;
}

int run_single(struct bench *bench, struct side *side, struct figure *out)
{
	size_t num = bench->num_files;
	struct ucm_move *moves = calloc(num, sizeof(*moves));
	struct ucm_task **tasks = calloc(num, sizeof(*tasks));
	double cpu = cpu_seconds();
	uint64_t began;
	int err, failed;

	if (!moves || !tasks)
		return -ENOMEM;
	move_on(bench);
	fill_moves(bench, moves);
	began = now_ns();
	err = submit_each(side, moves, num, tasks);
	failed = wait_each(side, tasks, num);
	out->seconds = (double)(now_ns() - began) / 1e9;
	out->cpu = cpu_seconds() - cpu;
	for (size_t i = 0; i < num; i++)
		ucm_task_free(tasks[i]);
	free(tasks);
	free(moves);
	return err ? err : failed ? failed : check_pages(bench);
}

/* ---- saves ---- */

static void invent(struct bench *bench, struct ucm_id *id)
{
	uint64_t words[2] = { next_random(bench), next_random(bench) };

	memcpy(id->bytes, words, sizeof(words));
}

static int remove_saved(struct bench *bench, const char *dir,
			const char *backing, const struct ucm_move *moves,
			size_t num)
{
	char name[UCM_TREE_BELOW_LEN + 1], path[512];
	int err = 0;

	for (size_t i = 0; i < num && !err; i++) {
		ucm_tree_block_below(&moves[i].id, name);
		snprintf(path, sizeof(path), "%s/" UCM_TREE_BLOCKS "/%s",
			 backing, name);
		err = bury(bench, path);
		snprintf(path, sizeof(path), "%s/" UCM_TREE_BLOCKS "/%s", dir,
			 name);
		if (!err && unlink(path))
			err = complain(path, "unlink");
	}
	return err;
}

int run_save(struct bench *bench, struct side *side, struct figure *out)
{
	const char *dir = side->mount ? bench->mnt : bench->saves;
	size_t num = bench->num_files;
	struct ucm_move *moves = calloc(num, sizeof(*moves));
	size_t i;
	int err;

	if (!moves)
		return -ENOMEM;
	for (i = 0; i < num; i++) {
		invent(bench, &moves[i].id);
		moves[i].page = (uint32_t)i;
	}
	err = move(bench, side, moves, num, out);
	for (unsigned n = 0; n < 4 && !err; n++) {
		i = next_random(bench) % num;
		err = check_saved(bench, side, dir, &moves[i]);
	}
	if (!err)
		err = remove_saved(bench, dir,
				   side->mount ? bench->tiers : dir, moves,
				   num);
	free(moves);
	return err;
}

/* ---- submits ---- */

static uint64_t *make_addresses(const struct bench *bench, size_t num)
{
	const struct ucm_region *regions = ucm_layout_regions(bench->layout);
	size_t planes = ucm_layout_num_regions(bench->layout);
	uint64_t *addresses = calloc(num * planes, sizeof(*addresses));

	for (size_t i = 0; addresses && i < num * planes; i++)
		addresses[i] = regions[i % planes].base;
	return addresses;
}

int run_submit(struct bench *bench, struct side *side, struct figure *out)
{
	struct ucm_move *moves = calloc(MANY, sizeof(*moves));
	struct ucm_request request = { .blocks = moves, .num_blocks = MANY };
	uint64_t *addresses = side->with_addresses
				      ? make_addresses(bench, MANY)
				      : NULL;
	struct ucm_task *task;
	uint64_t began;
	int err = 0;

	if (!moves || (side->with_addresses && !addresses))
		return -ENOMEM;
	for (size_t i = 0; i < MANY; i++) {
		invent(bench, &moves[i].id);
		moves[i].page = (uint32_t)(i % bench->num_files);
	}
	request.addresses = addresses;
	began = now_ns();
	err = submit(side, &request, &task);
	out->seconds = (double)(now_ns() - began) / 1e9;
	if (!err)
		ucm_task_free(task); /* cancelled */
	free(addresses);
	free(moves);
	return err;
}
