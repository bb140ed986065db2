/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twins.cu - the kernels of sparse/'s twins: who runs which thread's work, and
 * where threads wait for each other. The work is that of the headers.
 *
 * Compiled with --fmad=false: a product and a sum are rounded each, as on the CPU.
 * Carried in the library (twins.S).
 */
#include "gpu/sparse/build_twin.h"
#include "gpu/sparse/deviation_twin.h"
#include "gpu/sparse/score_twin.h"
#include "gpu/sparse/select_twin.h"
#include "gpu/sparse/shift_twin.h"

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define ALL_LANES	0xffffffffu

/* ---- scores ---- */

KERNEL(UCM_TWIN_THREADS)
ucm_twin_query(const __grid_constant__ struct ucm_twin_query_args args)
{
	ucm_twin_query_thread(&args, blockIdx.x * blockDim.x + threadIdx.x,
			      blockIdx.y);
}

KERNEL(UCM_TWIN_BUILD_THREADS)
ucm_twin_query_steps(const __grid_constant__ struct ucm_twin_query_args args)
{
	__shared__ struct ucm_twin_steps s;

	ucm_twin_steps_take(&args, blockIdx.x, blockIdx.y, threadIdx.x, &s);
	__syncthreads();
	ucm_twin_steps_scale(&args, threadIdx.x, &s);
	__syncthreads();
	ucm_twin_steps_store(&args, blockIdx.x, blockIdx.y, threadIdx.x, &s);
}

UCM_INLINE void score(const struct ucm_twin_score_args *args, uint32_t dtype)
{
	struct ucm_twin_item item = ucm_twin_item_find(
		args, dtype, blockIdx.x * blockDim.x + threadIdx.x,
		blockIdx.y);
	float lanes[UCM_TWIN_LANES_MAX];

	ucm_twin_item_lanes(args, dtype, &item, lanes);
	UCM_UNROLL
	for (uint32_t n = ucm_twin_team(dtype) / 2; n; n /= 2) {
		UCM_UNROLL
		for (uint32_t j = 0; j < ucm_twin_each(dtype); j++)
			lanes[j] += __shfl_xor_sync(ALL_LANES, lanes[j], n);
	}
	ucm_twin_item_end(args, dtype, &item, lanes);
}

#define SCORE_KERNEL(name, dtype)                                             \
	KERNEL(UCM_TWIN_THREADS)                                              \
	name(const __grid_constant__ struct ucm_twin_score_args args)         \
	{                                                                     \
		score(&args, dtype);                                          \
	}

SCORE_KERNEL(ucm_twin_score_float32, UCM_DTYPE_FLOAT32)
SCORE_KERNEL(ucm_twin_score_float16, UCM_DTYPE_FLOAT16)
SCORE_KERNEL(ucm_twin_score_bfloat16, UCM_DTYPE_BFLOAT16)
SCORE_KERNEL(ucm_twin_score_int8, UCM_DTYPE_INT8)
SCORE_KERNEL(ucm_twin_score_steps, UCM_TWIN_STEPS)

/* ---- representations ---- */

KERNEL(UCM_TWIN_BUILD_THREADS)
ucm_twin_build(const __grid_constant__ struct ucm_twin_build_args args)
{
	__shared__ struct ucm_twin_head head;
	struct ucm_twin_block block = ucm_twin_block_find(&args.from,
							  blockIdx.x);

	if (!block.tokens) /* the same for the CTA */
		return;
	ucm_twin_build_take(&args, &block, threadIdx.x, &head);
	__syncthreads();
	ucm_twin_build_length(&args, threadIdx.x, &head);
	__syncthreads();
	ucm_twin_build_normalize(&args, threadIdx.x, &head);
	__syncthreads();
	ucm_twin_build_scale(&args, threadIdx.x, &head);
	__syncthreads();
	ucm_twin_build_store(&args, &block, threadIdx.x, &head);
}

/* ---- selection ---- */

UCM_INLINE void find_kth(const struct ucm_twin_select_args *args,
			 struct ucm_twin_selection *s)
{
	for (uint32_t byte = 4; byte--;) {
		uint32_t from = 0;

		ucm_twin_bins_clear(s, threadIdx.x);
		__syncthreads();
		ucm_twin_bins_count(args, blockIdx.x, threadIdx.x, byte, s);
		for (uint32_t d = 1; d < UCM_TWIN_BINS; d *= 2) {
			__syncthreads();
			ucm_twin_bins_add(s, threadIdx.x, d, from);
			from = !from;
		}
		__syncthreads();
		ucm_twin_bins_choose(s, threadIdx.x, from);
		__syncthreads();
		if (!threadIdx.x)
			ucm_twin_bins_narrow(s, byte);
	}
	__syncthreads();
}

UCM_INLINE struct ucm_twin_masks
masks_of(const struct ucm_twin_select_args *args,
	 const struct ucm_twin_selection *s, uint32_t block)
{
	uint32_t place = ucm_twin_place_of(args, blockIdx.x, block, s);
	struct ucm_twin_masks masks;

	masks.sure = __ballot_sync(ALL_LANES, place == UCM_TWIN_SURE);
	masks.equal = __ballot_sync(ALL_LANES, place == UCM_TWIN_EQUAL);
	return masks;
}

UCM_INLINE void count_part(const struct ucm_twin_select_args *args,
			   struct ucm_twin_selection *s)
{
	uint32_t warp = threadIdx.x / UCM_WARP, lane = threadIdx.x % UCM_WARP;
	uint32_t part = ucm_twin_part(s), begin = warp * part;
	struct ucm_twin_before before = { 0, 0 };

	for (uint32_t i = begin; i < begin + part; i += UCM_WARP)
		ucm_twin_part_add(&before, masks_of(args, s, i + lane));
	if (!lane) {
		s->sure[warp] = before.sure;
		s->equal[warp] = before.equal;
	}
	__syncthreads();
}

UCM_INLINE void write_part(const struct ucm_twin_select_args *args, int write,
			   struct ucm_twin_selection *s)
{
	uint32_t warp = threadIdx.x / UCM_WARP, lane = threadIdx.x % UCM_WARP;
	uint32_t part = ucm_twin_part(s), begin = warp * part;
	struct ucm_twin_before before = ucm_twin_part_before(s, warp);

	for (uint32_t i = begin; i < begin + part; i += UCM_WARP) {
		struct ucm_twin_masks masks = masks_of(args, s, i + lane);

		ucm_twin_part_write(args, blockIdx.x, i + lane, before, masks,
				    write, s);
		ucm_twin_part_add(&before, masks);
	}
	__syncthreads();
}

KERNEL(UCM_TWIN_SELECT_THREADS)
ucm_twin_select(const __grid_constant__ struct ucm_twin_select_args args)
{
	__shared__ struct ucm_twin_selection s;

	if (!threadIdx.x)
		ucm_twin_select_begin(&args, blockIdx.x, &s);
	__syncthreads();
	if (!s.invalid) { /* the same for the CTA, here and below */
		find_kth(&args, &s);
		count_part(&args, &s);
		write_part(&args, 0, &s);
		if (!s.invalid)
			write_part(&args, 1, &s);
	}
	if (!threadIdx.x)
		ucm_twin_select_end(&args, blockIdx.x, &s);
}

/* ---- positions ---- */

KERNEL(UCM_TWIN_THREADS)
ucm_twin_shift(const __grid_constant__ struct ucm_twin_shift_args args)
{
	__shared__ struct ucm_twin_turns turns;
	struct ucm_twin_move move = ucm_twin_move_find(&args, blockIdx.x,
						       blockIdx.y);
	int32_t filled = 0;
	int is_filled = 0;

	for (uint32_t token = move.first; token < move.end; token++) {
		int32_t delta = ucm_twin_delta(&args, &move, token);
		int stays = ucm_twin_stays(&args, delta);

		if (!stays && !(is_filled && filled == delta)) {
			__syncthreads(); /* all are at this token */
			ucm_twin_turns_fill(&args, delta, threadIdx.x, &turns);
			__syncthreads();
			is_filled = 1;
			filled = delta;
		}
		ucm_twin_token_move(&args, &move, token, threadIdx.x, stays,
				    &turns);
	}
}

KERNEL(UCM_TWIN_THREADS)
ucm_twin_deviation(const __grid_constant__ struct ucm_twin_deviation_args args)
{
	uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
	struct ucm_twin_sums sums = ucm_twin_deviation_lane(&args, thread);

	UCM_UNROLL
	for (uint32_t n = UCM_WARP / 2; n; n /= 2) {
		sums.differs += __shfl_xor_sync(ALL_LANES, sums.differs, n);
		sums.size += __shfl_xor_sync(ALL_LANES, sums.size, n);
	}
	ucm_twin_deviation_end(&args, thread, sums);
}
