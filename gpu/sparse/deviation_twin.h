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
	int64_t cached = block * pair->cached_stride_block +
			 token % args->block_size * pair->cached_stride_token;
	int64_t fresh = token * pair->fresh_stride_token;

	for (uint32_t head = 0; head < args->num_heads; head++) {
		for (uint32_t i = lane; i < args->head_dim; i += UCM_WARP) {
			int64_t bytes = ucm_twin_item_bytes(pair->cached_dtype);
			float x = ucm_twin_load(pair->cached +
						(uint64_t)(bytes *
							   (cached + i)),
						pair->cached_dtype), y;

			bytes = ucm_twin_item_bytes(pair->fresh_dtype);
			y = ucm_twin_load(pair->fresh +
					  (uint64_t)(bytes * (fresh + i)),
					  pair->fresh_dtype);
			sums->differs += fabsf(x - y);
			sums->size += fabsf(y);
		}
		cached += pair->cached_stride_head;
		fresh += pair->fresh_stride_head;
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
						  pair->num_blocks);

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
