/* SPDX-License-Identifier: Apache-2.0 */
/* lists.c - lists of blocks and scores; see lists.h. */
#include <config.h>

#include "sparse/lists.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/error.h"
#include "sparse/spec.h"

int ucm_list_mark(const uint32_t *blocks, size_t num, uint32_t limit,
		  uint64_t *mark, uint64_t serial, struct ucm_error *error)
{
	if (num && !blocks)
		return ucm_error_set(error, -EINVAL, "blocks is NULL");
	for (size_t i = 0; i < num; i++) {
		if (blocks[i] >= limit)
			return ucm_error_set(error, -EINVAL, "blocks: number "
					     "%zu is %" PRIu32 ", there are %"
					     PRIu32, i, blocks[i], limit);
		if (mark[blocks[i]] == serial)
			return ucm_error_set(error, -EINVAL, "blocks: number "
					     "%zu is %" PRIu32 ", again", i,
					     blocks[i]);
		mark[blocks[i]] = serial;
	}
	return 0;
}

int ucm_list_range(const float *scores, size_t num, uint32_t limit,
		   float *least, float *most, struct ucm_error *error)
{
	*least = *most = 0;
	if (num > limit)
		return ucm_error_set(error, -EINVAL, "num_scores %zu: there are"
				     " %" PRIu32, num, limit);
	if (!num)
		return 0;
	if (!ucm_score_range(scores, num, least, most))
		return ucm_error_set(error, -EINVAL, "scores: one is NaN");
	if (!isfinite(*least) || !isfinite(*most))
		return ucm_error_set(error, -EINVAL,
				     "scores: one is not finite");
	return 0;
}

int ucm_list_memory(void *memory, size_t bytes, const void *out,
		    struct ucm_error *error)
{
	int err = ucm_sparse_aligned("memory", memory, sizeof(uint64_t), error);

	if (!err && !out)
		err = ucm_error_set(error, -EINVAL, "out is NULL");
	if (!err)
		memset(memory, 0, bytes);
	return err;
}
