/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h - how many blocks are selected: <ucm/sparse.h>'s rule, as arithmetic. */
#ifndef UCM_SPARSE_BUDGET_H
#define UCM_SPARSE_BUDGET_H

#include <ucm/sparse.h>

#include "sparse/plain.h"

/* Blocks that have one of the first num tokens. */
UCM_PLAIN uint32_t ucm_blocks_of(uint32_t num, uint32_t block_size)
{
	return num / block_size + (num % block_size != 0);
}

UCM_PLAIN uint32_t ucm_least_of(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* How many are to be taken by score, of so many that may be. */
UCM_PLAIN uint32_t ucm_topk_of(const struct ucm_budget_config *config,
			       uint32_t candidates, uint32_t forced)
{
	uint32_t topk, blocks;

	if (config->budget_tokens) {
		blocks = config->budget_tokens / config->block_size;
		topk = blocks > forced ? blocks - forced : 0;
	} else {
		topk = (uint32_t)(candidates * config->ratio);
	}
	if (topk < config->min_topk)
		topk = config->min_topk;
	if (config->max_topk)
		topk = ucm_least_of(topk, config->max_topk);
	return ucm_least_of(topk, candidates);
}

/* Of a request of so many tokens; config is right. */
UCM_PLAIN struct ucm_budget
ucm_budget_of(const struct ucm_budget_config *config, uint32_t tokens)
{
	const struct ucm_windows *windows = &config->windows;
	struct ucm_budget budget;
	uint32_t recent, num;

	budget.num_blocks = num = ucm_blocks_of(tokens, config->block_size);
	budget.first = ucm_blocks_of(ucm_least_of(windows->sink_tokens, tokens),
				     config->block_size);
	if (budget.first < windows->initial_blocks)
		budget.first = ucm_least_of(windows->initial_blocks, num);
	/* the first block that has one of the last tokens, and all after it */
	recent = ucm_least_of(windows->recent_tokens, tokens);
	budget.last = recent ? num - (tokens - recent) / config->block_size : 0;
	if (budget.last < windows->local_blocks)
		budget.last = ucm_least_of(windows->local_blocks, num);
	budget.last = ucm_least_of(budget.last, num - budget.first);
	num -= budget.first + budget.last;
	budget.topk = tokens <= config->dense_tokens
			      ? num
			      : ucm_topk_of(config, num,
					    budget.first + budget.last);
	return budget;
}

/* What the last block lacks to be full. */
UCM_PLAIN uint32_t ucm_tokens_lacking(uint32_t tokens, uint32_t block_size)
{
	return (block_size - tokens % block_size) % block_size;
}

#endif
