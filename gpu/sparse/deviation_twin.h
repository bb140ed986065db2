/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deviation_twin.h - what a thread of the GPU adds to a token's deviation.
 *
 * A warp has a token, and a thread one of the 32 lanes of sparse/deviation.c, which
 * takes the channels i, i + 32, ... of each head, of keys and then of values.
 * Between ucm_twin_deviation_lane() and _end() whoever runs this exchanges both
 * sums: for n = 16, 8, 4, 2, 1 each thread adds that of the thread whose number
 * differs in bit n.
 */
#ifndef UCM_GPU_SPARSE_DEVIATION_TWIN_H
#define UCM_GPU_SPARSE_DEVIATION_TWIN_H

#include "gpu/sparse/shift_twin.h"

struct ucm_twin_sums {
	float differs, size; /* |cached - fresh|, |fresh| */
};

UCM_INLINE void ucm_twin_rows_differ(const struct ucm_twin_deviation_args *args,
				     const struct ucm_twin_pair_args *pair,
				     int64_t block, uint32_t token,
				     uint32_t lane, struct ucm_twin_sums *sums)
{
	for (uint32_t head = 0; head < args->num_heads; head++) {
		uint64_t cached = ucm_twin_row_at(&pair->cached, block,
						  token % args->block_size,
						  head);
		uint64_t fresh = ucm_twin_row_at(&pair->fresh, 0, token, head);

		for (uint32_t i = lane; i < pair->cached.dim; i += UCM_WARP) {
			float x = ucm_twin_row_load(&pair->cached, cached, i);
			float y = ucm_twin_row_load(&pair->fresh, fresh, i);

			sums->differs += fabsf(x - y);
			sums->size += fabsf(y);
		}
	}
}

/* Of a block that is not there NaN. */
UCM_INLINE struct ucm_twin_sums
ucm_twin_deviation_lane(const struct ucm_twin_deviation_args *args,
			uint32_t thread)
{
	uint32_t token = thread / UCM_WARP, lane = thread % UCM_WARP;
	struct ucm_twin_sums sums = { 0, 0 };

	if (token >= args->num_tokens)
		return sums;
	for (uint32_t i = 0; i < args->num_pairs; i++) {
		const struct ucm_twin_pair_args *pair = &args->pairs[i];
		int64_t block = ucm_twin_block_of(args->table,
						  token / args->block_size,
						  pair->cached.num_blocks);

		if (block < 0)
			sums.differs = ucm_float_of(0x7fc00000u);
		else
			ucm_twin_rows_differ(args, pair, block, token, lane,
					     &sums);
	}
	return sums;
}

UCM_INLINE void
ucm_twin_deviation_end(const struct ucm_twin_deviation_args *args,
		       uint32_t thread, struct ucm_twin_sums sums)
{
	uint32_t token = thread / UCM_WARP;

	if (thread % UCM_WARP || token >= args->num_tokens)
		return;
	if (args->relative && sums.differs > 0)
		sums.differs /= sums.size;
	*UCM_AT(float, args->out + token * 4ull) = sums.differs;
}

#endif
