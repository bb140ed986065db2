/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - the block tables of the decode rows of a batch.
 *
 * A thin loop over the calls that prepare a query, score, select and write a
 * table. Blocks whose pages have nothing that is kept are left out of the list
 * that is scored, so that ucm_select() sees the others alone; they are taken
 * afterwards, with those of the windows.
 *
 * What is selected stays in the work memory until that of all rows is known:
 * nothing is written if a row is refused.
 */
#include <config.h>

#include <ucm/retrieve.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/error.h"
#include "sparse/budget.h"
#include "sparse/code.h"
#include "sparse/lists.h"
#include "sparse/scoring.h"
#include "sparse/spec.h"

struct batch {
	const struct ucm_sparse_pages *pages;
	const struct ucm_sparse_rows *rows;
	struct ucm_budget_config config;
	struct ucm_scoring scoring;
	uint32_t block_size; /* of what is kept */
	size_t query_bytes;
	/* in the work memory, of a row: */
	void *query; /* prepared */
	int32_t *slots;    /* that are scored, ... */
	uint32_t *numbers; /* ... and their blocks' numbers */
	float *scores;
	uint32_t *best; /* numbers in this list */
	uint8_t *taken; /* of each block; 1: it is selected */
	/* and of all rows: */
	uint32_t *selected; /* max_blocks apart; not of rows that take all */
	uint32_t *counts;
};

/* ---- what is given ---- */

static int pages_take(struct batch *batch, struct ucm_error *error)
{
	const struct ucm_sparse_pages *pages = batch->pages;
	const struct ucm_code_spec *codes = NULL;
	const uint64_t unused = 0; /* a query; those of no blocks are scored */
	struct ucm_retrieval_job job = {
		.spec = pages->spec, .star = pages->star,
		.code_method = pages->code_method, .slab = pages->slab,
		.query = (const float *)&unused, .code_query = &unused,
		.num_heads = batch->rows->query.num_heads, .num_queries = 1,
	};
	int err = 0;

	if (!!pages->spec + !!pages->encoder + !!pages->star != 1)
		return ucm_error_set(error, -EINVAL, "spec, encoder, star: one "
				     "of them is needed");
	if (pages->encoder)
		err = ucm_code_encoder_check(pages->encoder, &codes, error);
	if (err)
		return err;
	job.codes = codes;
	batch->block_size = pages->spec ? pages->spec->block_size
			    : codes     ? codes->block_size
					: pages->star->block_size;
	return ucm_scoring_take(&job, UINT32_MAX, &batch->scoring,
				&batch->query_bytes, error);
}

static int batch_begin(const struct ucm_sparse_pages *pages,
		       const struct ucm_sparse_rows *rows, struct batch *out,
		       struct ucm_error *error)
{
	if (!pages || !rows)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     pages ? "rows" : "pages");
	if (rows->num > UCM_SPARSE_ROWS_MAX ||
	    rows->max_blocks > UCM_SPARSE_BLOCKS_MAX)
		return ucm_error_set(error, -EINVAL, "num %zu, max_blocks %"
				     PRIu32 ": too large", rows->num,
				     rows->max_blocks);
	*out = (struct batch){ .pages = pages, .rows = rows };
	return pages_take(out, error);
}

/* The next array of num words of 32 bits. */
static void *words(uint8_t *base, size_t *end, size_t num)
{
	return ucm_list_lay(base, end, num, sizeof(uint32_t));
}

/* Where everything is in the work memory; its bytes. base NULL: count only. */
static size_t batch_parts(struct batch *batch, uint8_t *base)
{
	size_t blocks = batch->rows->max_blocks, num = batch->rows->num;
	size_t end = 0;

	batch->query = words(base, &end, batch->query_bytes / 4);
	batch->slots = words(base, &end, blocks);
	batch->numbers = words(base, &end, blocks);
	batch->scores = words(base, &end, blocks);
	batch->best = words(base, &end, blocks);
	batch->taken = words(base, &end, blocks / 4 + 1);
	batch->selected = words(base, &end, num * blocks);
	batch->counts = words(base, &end, num);
	return end;
}

size_t ucm_sparse_select_bytes(const struct ucm_sparse_pages *pages,
			       const struct ucm_sparse_rows *rows)
{
	struct batch batch;

	return batch_begin(pages, rows, &batch, NULL)
		       ? 0 : batch_parts(&batch, NULL);
}

static int config_take(struct batch *batch,
		       const struct ucm_budget_config *config,
		       struct ucm_error *error)
{
	int err = ucm_budget_check(config, error);

	if (err)
		return err;
	if (config->block_size != batch->block_size)
		return ucm_error_set(error, -EINVAL, "block_size %" PRIu32
				     ": pages have %" PRIu32,
				     config->block_size, batch->block_size);
	batch->config = *config;
	if (!config->windows.local_blocks)
		batch->config.windows.local_blocks = 1;
	return 0;
}

static int lengths_check(const struct batch *batch, struct ucm_error *error)
{
	const int32_t *lengths = batch->rows->lengths;
	uint32_t most = batch->rows->max_blocks;

	for (size_t i = 0; i < batch->rows->num; i++) {
		if (lengths[i] < 0 || ucm_blocks_of((uint32_t)lengths[i],
						    batch->block_size) > most)
			return ucm_error_set(error, -EINVAL, "lengths: row %zu "
					     "has %" PRId32 ", max_blocks is %"
					     PRIu32, i, lengths[i], most);
	}
	return 0;
}

/* What is written is apart from what is read, and from what else is written. */
static int apart_check(const struct ucm_sparse_rows *rows,
		       const struct ucm_sparse_tables *out, const void *work,
		       size_t work_bytes, struct ucm_error *error)
{
	size_t last = rows->num - 1, row_bytes = 4 * (size_t)rows->max_blocks;
	const struct {
		const void *base;
		size_t bytes;
	} at[] = {
		{ rows->tables, 4 * last * rows->stride_table + row_bytes },
		{ rows->lengths, 4 * rows->num },
		{ out->tables, 4 * last * out->stride_table + row_bytes },
		{ out->lengths, 4 * rows->num },
		{ work, work_bytes },
	};

	for (int i = 2; i < 5; i++) {
		for (int j = 0; j < i; j++) {
			uintptr_t a = (uintptr_t)at[i].base;
			uintptr_t b = (uintptr_t)at[j].base;

			if (a < b + at[j].bytes && b < a + at[i].bytes)
				return ucm_error_set(error, -EINVAL, "%s "
						     "overlaps other memory",
						     i < 4 ? "out" : "work");
		}
	}
	return 0;
}

/* There is at least one row. */
static int rows_check(struct batch *batch, const struct ucm_sparse_tables *out,
		      void *work, size_t work_bytes, struct ucm_error *error)
{
	const struct ucm_sparse_rows *rows = batch->rows;
	size_t bytes = batch_parts(batch, work);
	int64_t span;
	int err;

	if (!rows->tables || !out->tables || !rows->lengths || !out->lengths)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     rows->tables && out->tables ? "lengths"
								 : "tables");
	if (rows->num > 1 && (rows->stride_table < rows->max_blocks ||
			      out->stride_table < rows->max_blocks))
		return ucm_error_set(error, -EINVAL, "stride_table: below "
				     "max_blocks %" PRIu32, rows->max_blocks);
	if (__builtin_mul_overflow(rows->stride_query, 4 * (int64_t)rows->num,
				   &span))
		return ucm_error_set(error, -EINVAL, "stride_query %" PRId64
				     ": too large", rows->stride_query);
	err = lengths_check(batch, error)
		?: ucm_sparse_aligned("work", work, sizeof(uint64_t), error);
	if (err)
		return err;
	if (work_bytes < bytes)
		return ucm_error_set(error, -EINVAL, "work_bytes %zu: at least "
				     "%zu", work_bytes, bytes);
	return apart_check(rows, out, work, bytes, error);
}

/* ---- a row ---- */

/* List the blocks between the windows that can be scored; how many. All others
 * are taken. */
static uint32_t blocks_list(const struct batch *batch, const int32_t *table,
			    const struct ucm_budget *budget)
{
	const uint8_t *built = batch->pages->built;
	uint32_t end = budget->num_blocks - budget->last, num = 0;

	memset(batch->taken, 1, budget->num_blocks);
	for (uint32_t i = budget->first; i < end; i++) {
		bool scored = !built || built[table[i]];

		batch->slots[num] = table[i];
		batch->numbers[num] = i;
		batch->taken[i] = !scored;
		num += scored;
	}
	return num;
}

static int query_prepare(const struct batch *batch, size_t row,
			 struct ucm_error *error)
{
	const struct ucm_sparse_pages *pages = batch->pages;
	struct ucm_query query = batch->rows->query;
	int64_t item = ucm_repr_input_bytes(query.dtype);

	if (query.base)
		query.base = (const uint8_t *)query.base +
			     item * (int64_t)row * batch->rows->stride_query;
	if (pages->spec)
		return ucm_query_prepare(pages->spec, &query, UCM_SCORE_BLOCK,
					 batch->query, error);
	if (pages->encoder)
		return ucm_code_query_prepare(pages->encoder,
					      pages->code_method, &query, NULL,
					      batch->query, error);
	return ucm_star_query_prepare(pages->star, &query, 1, batch->query,
				      error);
}

/* Of the num blocks of the list take topk. */
static int best_take(const struct batch *batch, uint32_t num, uint32_t topk,
		     struct ucm_error *error)
{
	const struct ucm_budget budget = { .num_blocks = num, .topk = topk };
	uint32_t taken;
	int err = batch->scoring.run(&batch->scoring, 0, num, batch->scores,
				     error)
		?: ucm_select(batch->scores, &budget, batch->best, num, &taken,
			      error);

	if (err)
		return err;
	for (uint32_t i = 0; i < taken; i++)
		batch->taken[batch->numbers[batch->best[i]]] = 1;
	return 0;
}

/* The numbers of those that are taken, ascending; how many. */
static uint32_t taken_list(const uint8_t *taken, uint32_t num_blocks,
			   uint32_t *out)
{
	uint32_t num = 0;

	for (uint32_t i = 0; i < num_blocks; i++) {
		out[num] = i;
		num += taken[i];
	}
	return num;
}

static int row_choose(const struct batch *batch, size_t row,
		      struct ucm_error *error)
{
	const struct ucm_sparse_rows *rows = batch->rows;
	const int32_t *table = rows->tables + row * rows->stride_table;
	struct ucm_budget budget = ucm_budget_of(&batch->config,
						 (uint32_t)rows->lengths[row]);
	uint32_t num;
	int err;

	batch->counts[row] = budget.num_blocks;
	if ((rows->dense && rows->dense[row]) ||
	    budget.first + budget.topk + budget.last == budget.num_blocks)
		return 0;
	err = ucm_repr_ids_check("table", table, 0, budget.num_blocks,
				 batch->scoring.slab.num_slots, error);
	if (err)
		return err;
	num = blocks_list(batch, table, &budget);
	if (num <= budget.topk)
		return 0;
	if (budget.topk) {
		err = query_prepare(batch, row, error)
			?: best_take(batch, num, budget.topk, error);
	}
	if (!err)
		batch->counts[row] = taken_list(
			batch->taken, budget.num_blocks,
			batch->selected + row * rows->max_blocks);
	return err;
}

/* All numbers are right. */
static void row_write(const struct batch *batch, size_t row,
		      struct ucm_sparse_tables *out)
{
	const struct ucm_sparse_rows *rows = batch->rows;
	const int32_t *table = rows->tables + row * rows->stride_table;
	int32_t *to = out->tables + row * out->stride_table;
	uint32_t tokens = (uint32_t)rows->lengths[row], num = batch->counts[row];
	uint32_t all = ucm_blocks_of(tokens, batch->block_size);

	if (num == all)
		memcpy(to, table, num * sizeof(*to));
	else
		ucm_select_table(table, batch->block_size, tokens,
				 batch->selected + row * rows->max_blocks, num,
				 to, num, &tokens, NULL);
	out->lengths[row] = (int32_t)tokens;
	out->blocks_attended += num;
	out->blocks_in_all += all;
}

int ucm_sparse_select(const struct ucm_sparse_pages *pages,
		      const struct ucm_budget_config *config,
		      const struct ucm_sparse_rows *rows, void *work,
		      size_t work_bytes, struct ucm_sparse_tables *out,
		      struct ucm_error *error)
{
	struct batch batch;
	struct ucm_error why;
	int err = batch_begin(pages, rows, &batch, error)
		?: config_take(&batch, config, error);

	if (!err && !out)
		err = ucm_error_set(error, -EINVAL, "out is NULL");
	if (!err && rows->num)
		err = rows_check(&batch, out, work, work_bytes, error);
	if (err)
		return err;
	batch.scoring.query = batch.query;
	batch.scoring.slots = batch.slots;
	for (size_t i = 0; i < rows->num; i++) {
		err = row_choose(&batch, i, &why);
		if (err)
			return ucm_error_set(error, err, "row %zu: %s", i,
					     why.text);
	}
	out->blocks_attended = out->blocks_in_all = 0;
	for (size_t i = 0; i < rows->num; i++)
		row_write(&batch, i, out);
	return 0;
}
