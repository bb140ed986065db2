/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twins.cu - the kernels of sparse/'s twins: who runs which thread's work, and
 * where threads wait for each other. The work is that of the headers.
 *
 * Compiled with --fmad=false: a product and a sum are rounded each, as on the CPU.
 * Carried in the library (twins.S).
 */
#include "gpu/sparse/attention_twin.h"
#include "gpu/sparse/build_twin.h"
#include "gpu/sparse/code_score_twin.h"
#include "gpu/sparse/code_twin.h"
#include "gpu/sparse/deviation_twin.h"
#include "gpu/sparse/score_twin.h"
#include "gpu/sparse/select_twin.h"
#include "gpu/sparse/shift_twin.h"
#include "gpu/sparse/star_twin.h"

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
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

/* ---- hash codes ---- */

/* Of the vectors that are loaded, the codes of a part. */
UCM_INLINE void code_part(const struct ucm_twin_code_args *args,
			  const struct ucm_twin_code *code, uint32_t token,
			  uint32_t column, struct ucm_twin_vectors *v)
{
	struct ucm_twin_column of = ucm_twin_column_find(&args->coder, column);
	float products[UCM_TWIN_VECTORS];
	uint32_t masks[UCM_TWIN_VECTORS];

	ucm_twin_rotate(&of, v, products);
	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++)
		masks[j] = __ballot_sync(ALL_LANES, products[j] > 0);
	ucm_twin_code_store(args, code, token, column, masks);
	if (!args->norms)
		return;
	ucm_twin_norms_take(threadIdx.x, products, v);
	__syncthreads();
	ucm_twin_norms_add(threadIdx.x, v);
	__syncthreads();
}

KERNEL(UCM_TWIN_CODE_THREADS)
ucm_twin_encode(const __grid_constant__ struct ucm_twin_code_args args)
{
	__shared__ struct ucm_twin_vectors v;
	struct ucm_twin_code code = ucm_twin_code_find(&args, blockIdx.x);
	uint32_t columns = args.coder.words * UCM_CODE_WORD;

	if (!code.end) /* the same for the CTA */
		return;
	ucm_twin_code_begin(&args, &code, threadIdx.x);
	for (uint32_t t = code.first; t < code.end; t += UCM_TWIN_VECTORS) {
		__syncthreads(); /* all are done with the last ones */
		ucm_twin_keys_load(&args, &code, t, threadIdx.x, &v);
		__syncthreads();
		if (args.norms)
			ucm_twin_norms_begin(&args, threadIdx.x, &v);
		for (uint32_t c = 0; c < columns; c += UCM_TWIN_CODE_THREADS)
			code_part(&args, &code, t, c + threadIdx.x, &v);
		if (args.norms)
			ucm_twin_norms_store(&args, &code, t, threadIdx.x, &v);
	}
}

KERNEL(UCM_TWIN_CODE_THREADS)
ucm_twin_count(const __grid_constant__ struct ucm_twin_code_args args)
{
	__shared__ struct ucm_twin_vectors v;
	struct ucm_twin_code code = ucm_twin_code_find(&args, blockIdx.x);
	uint32_t column = blockIdx.y * UCM_TWIN_CODE_THREADS + threadIdx.x;
	struct ucm_twin_column of = ucm_twin_column_find(&args.coder, column);
	uint32_t count = 0;

	if (!code.end)
		return;
	for (uint32_t t = 0; t < code.end; t += UCM_TWIN_VECTORS) {
		float products[UCM_TWIN_VECTORS];

		__syncthreads();
		ucm_twin_keys_load(&args, &code, t, threadIdx.x, &v);
		__syncthreads();
		ucm_twin_rotate(&of, &v, products);
		UCM_UNROLL
		for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++)
			count += products[j] > 0;
	}
	for (uint32_t i = 0; i < args.rows; i++)
		ucm_twin_count_store(&args, &code, i, column,
				     __ballot_sync(ALL_LANES, count >> i & 1));
	if (!code.head && !blockIdx.y)
		ucm_twin_code_tail(&args, &code, threadIdx.x);
}

/* How many of the row's vectors have a column's bit; of the last one, the product. */
UCM_INLINE uint32_t heads_count(const struct ucm_twin_code_query_args *args,
				const struct ucm_twin_column *of,
				struct ucm_twin_code_row *s, float *product)
{
	float products[UCM_TWIN_VECTORS];
	uint32_t count = 0;

	for (uint32_t i = 0; i < args->vectors; i += UCM_TWIN_VECTORS) {
		__syncthreads();
		ucm_twin_code_heads_load(args, blockIdx.y, blockIdx.x, i,
					 threadIdx.x, s);
		__syncthreads();
		ucm_twin_rotate(of, &s->vectors, products);
		UCM_UNROLL
		for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++)
			count += products[j] > 0;
		*product = products[0];
	}
	return count;
}

KERNEL(UCM_TWIN_CODE_THREADS)
ucm_twin_code_query(const __grid_constant__ struct ucm_twin_code_query_args args)
{
	__shared__ struct ucm_twin_code_row s;
	uint32_t columns = args.coder.words * UCM_CODE_WORD, weight = 0;
	float product, most = 0;

	if (!threadIdx.x)
		s.bad = 0;
	for (uint32_t c = threadIdx.x; args.estimate &&
	     c - threadIdx.x < columns; c += UCM_TWIN_CODE_THREADS) {
		struct ucm_twin_column of = ucm_twin_column_find(&args.coder, c);

		heads_count(&args, &of, &s, &product);
		most = fabsf(product) > most ? fabsf(product) : most;
	}
	s.most[threadIdx.x] = most;
	__syncthreads();
	most = ucm_twin_most_of_all(&s);
	for (uint32_t c = threadIdx.x; c - threadIdx.x < columns;
	     c += UCM_TWIN_CODE_THREADS) {
		struct ucm_twin_column of = ucm_twin_column_find(&args.coder, c);
		uint32_t count = heads_count(&args, &of, &s, &product), which;

		which = ucm_twin_planes_of(&args, &of, count, product, most);
		weight += ucm_twin_planes_weight(&args, which);
		for (uint32_t p = 0; p < args.planes; p++)
			ucm_twin_plane_store(&args, blockIdx.y, blockIdx.x, p,
					     c, __ballot_sync(ALL_LANES,
							      which >> p & 1));
	}
	s.weights[threadIdx.x] = weight;
	__syncthreads();
	if (!threadIdx.x)
		ucm_twin_code_row_end(&args, blockIdx.y, blockIdx.x, &s);
}

UCM_INLINE struct ucm_twin_code_part
code_exchange(uint32_t mode, struct ucm_twin_code_part part, uint32_t n)
{
	struct ucm_twin_code_part other = part;

	if (mode == UCM_TWIN_CODE_BEST)
		other.best = __shfl_xor_sync(ALL_LANES, part.best, n);
	else if (mode == UCM_TWIN_CODE_LEAST) /* of 32 bits */
		other.sum = __shfl_xor_sync(ALL_LANES, (uint32_t)part.sum, n);
	else
		other.sum = __shfl_xor_sync(
			ALL_LANES, (unsigned long long)part.sum, n);
	return ucm_twin_code_join(mode, part, other);
}

UCM_INLINE float code_head(const struct ucm_twin_code_score_args *args,
			   uint32_t mode, const struct ucm_twin_code_item *item,
			   uint32_t h)
{
	struct ucm_twin_code_part part =
		ucm_twin_code_take(args, mode, item, h);

	for (uint32_t n = args->team / 2; n; n /= 2)
		part = code_exchange(mode, part, n);
	return ucm_twin_code_run(args, mode, item, h, part);
}

UCM_INLINE float code_head_normed(const struct ucm_twin_code_score_args *args,
				  const struct ucm_twin_code_item *item,
				  uint32_t h)
{
	double sum = 0;

	for (uint32_t i = 0; i < ucm_twin_code_steps(args); i++) {
		struct ucm_twin_pair_scores two =
			ucm_twin_code_pair(args, item, h, i);

		for (uint32_t j = 0; j < args->team; j++) {
			sum += (double)__shfl_sync(ALL_LANES, two.of[0],
						   (int)j, (int)args->team);
			sum += (double)__shfl_sync(ALL_LANES, two.of[1],
						   (int)j, (int)args->team);
		}
	}
	return ucm_twin_code_normed(args, item, h, sum);
}

UCM_INLINE void code_score(const struct ucm_twin_code_score_args *args,
			   uint32_t mode)
{
	uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
	struct ucm_twin_code_item item =
		ucm_twin_code_item_find(args, thread, blockIdx.y, 1);
	float score = 0;
	double all = 0;

	for (uint32_t h = 0; h < item.num_heads; h++) {
		score = mode == UCM_TWIN_CODE_NORMED
				? code_head_normed(args, &item, h)
				: code_head(args, mode, &item, h);
		all += (double)score;
	}
	ucm_twin_code_item_end(args, &item, score, all);
}

#define CODE_KERNEL(name, mode)                                               	KERNEL(UCM_TWIN_THREADS)                                              	name(const __grid_constant__ struct ucm_twin_code_score_args args)    	{                                                                     		code_score(&args, mode);                                      	}

CODE_KERNEL(ucm_twin_code_least, UCM_TWIN_CODE_LEAST)
CODE_KERNEL(ucm_twin_code_best, UCM_TWIN_CODE_BEST)
CODE_KERNEL(ucm_twin_code_sum, UCM_TWIN_CODE_SUM)
CODE_KERNEL(ucm_twin_code_counts, UCM_TWIN_CODE_COUNT)
CODE_KERNEL(ucm_twin_code_normed_sum, UCM_TWIN_CODE_NORMED)

KERNEL(UCM_TWIN_THREADS)
ucm_twin_code_tokens(const __grid_constant__ struct ucm_twin_code_score_args args)
{
	struct ucm_twin_code_item item = ucm_twin_code_item_find(
		&args, blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y,
		args.block_size);

	ucm_twin_code_each(&args, &item);
}

/* ---- merged channels ---- */

KERNEL(UCM_TWIN_BUILD_THREADS)
ucm_twin_star_build(const __grid_constant__ struct ucm_twin_star_build_args args)
{
	__shared__ struct ucm_twin_star_means means;
	struct ucm_twin_block block = ucm_twin_block_find(&args.from,
							  blockIdx.x);
	uint32_t group;

	if (!block.tokens) /* the same for the CTA */
		return;
	group = ucm_twin_star_first(&args, &block, blockIdx.x) +
		threadIdx.x / UCM_WARP;
	for (; group < args.lanes; group += UCM_TWIN_STAR_WARPS) {
		struct ucm_twin_star_most most = ucm_twin_star_take(
			&args, &block, group, threadIdx.x, &means), other;

		UCM_UNROLL
		for (uint32_t n = UCM_WARP / 2; n; n /= 2) {
			other.most = __shfl_xor_sync(ALL_LANES, most.most, n);
			other.finite = __shfl_xor_sync(ALL_LANES, most.finite,
						       n);
			most = ucm_twin_star_join(most, other);
		}
		ucm_twin_star_store(&args, &block, group, threadIdx.x, most,
				    &means);
	}
	ucm_twin_star_tail(&args, &block, threadIdx.x);
}

KERNEL(UCM_TWIN_THREADS)
ucm_twin_star_query(const __grid_constant__ struct ucm_twin_star_query_args args)
{
	ucm_twin_star_query_thread(&args, blockIdx.x * blockDim.x + threadIdx.x,
				   blockIdx.y);
}

/* 4 rows of a head: the largest product of each, and its weights. */
UCM_INLINE struct ucm_twin_star_rows
star_rows(const struct ucm_twin_star_score_args *args, uint32_t dtype,
	  const struct ucm_twin_star_item *item, uint32_t head, uint32_t row)
{
	struct ucm_twin_star_rows all =
		ucm_twin_star_find(args, dtype, item, head, row);

	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++) {
		float own = all.best[j];

		UCM_UNROLL
		for (uint32_t n = UCM_STAR_LANES / 2; n; n /= 2)
			all.best[j] = ucm_twin_star_larger(
				all.best[j],
				__shfl_xor_sync(ALL_LANES, all.best[j], n));
		if (!args->weights)
			continue;
		all.sums[j] = ucm_twin_star_weigh(args, item, own, all.sums[j],
						  all.best[j]);
		UCM_UNROLL
		for (uint32_t n = UCM_STAR_LANES / 2; n; n /= 2)
			all.sums[j] += __shfl_xor_sync(ALL_LANES, all.sums[j],
						       n);
	}
	return all;
}

UCM_INLINE float star_head(const struct ucm_twin_star_score_args *args,
			   uint32_t dtype,
			   const struct ucm_twin_star_item *item, uint32_t head)
{
	float sum = 0;

	for (uint32_t row = 0; row < args->rows; row += UCM_TWIN_STAR_ROWS) {
		struct ucm_twin_star_rows all =
			star_rows(args, dtype, item, head, row);

		sum = ucm_twin_star_sum(args, item, row, &all, sum);
	}
	return sum / (float)args->rows;
}

UCM_INLINE void star_score(const struct ucm_twin_star_score_args *args,
			   uint32_t dtype)
{
	struct ucm_twin_star_item item = ucm_twin_star_item_find(
		args, blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y);
	struct ucm_twin_star_rows all;
	float sum;

	if (args->per == UCM_SCORE_HEAD) {
		all = star_rows(args, dtype, &item, item.head, item.row);
		ucm_twin_star_put(args, &item, &all);
		return;
	}
	sum = star_head(args, dtype, &item, item.head);
	for (uint32_t h = 1; args->per == UCM_SCORE_BLOCK &&
			     h < args->num_heads; h++)
		sum += star_head(args, dtype, &item, h);
	ucm_twin_star_put_sum(args, &item, sum);
}

#define STAR_KERNEL(name, dtype)                                              \
	KERNEL(UCM_TWIN_THREADS)                                              \
	name(const __grid_constant__ struct ucm_twin_star_score_args args)    \
	{                                                                     \
		star_score(&args, dtype);                                     \
	}

STAR_KERNEL(ucm_twin_star_float32, UCM_DTYPE_FLOAT32)
STAR_KERNEL(ucm_twin_star_float16, UCM_DTYPE_FLOAT16)
STAR_KERNEL(ucm_twin_star_bfloat16, UCM_DTYPE_BFLOAT16)
STAR_KERNEL(ucm_twin_star_int8, UCM_DTYPE_INT8)

KERNEL(UCM_TWIN_THREADS)
ucm_twin_vote_rows(const __grid_constant__ struct ucm_twin_vote_args args)
{
	__shared__ struct ucm_twin_vote s;
	uint32_t num = ucm_twin_vote_blocks(&args, blockIdx.y);
	uint64_t scores = ucm_twin_vote_row(&args, args.scores, blockIdx.y,
					    blockIdx.x);
	uint64_t weights = ucm_twin_vote_row(&args, args.weights, blockIdx.y,
					     blockIdx.x);

	if (!threadIdx.x)
		s.bad = 0;
	__syncthreads();
	ucm_twin_vote_top(scores, num, threadIdx.x, &s);
	__syncthreads();
	ucm_twin_vote_shares(&args, scores, weights, num, threadIdx.x, &s);
	__syncthreads();
	ucm_twin_vote_lane(weights, num, threadIdx.x, &s);
	__syncthreads();
	ucm_twin_vote_divide(weights, num, threadIdx.x, &s);
}

KERNEL(UCM_TWIN_THREADS)
ucm_twin_votes(const __grid_constant__ struct ucm_twin_vote_args args)
{
	ucm_twin_votes_thread(&args, blockIdx.x * blockDim.x + threadIdx.x,
			      blockIdx.y);
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

/* ---- attention ---- */

/* All heads' products of a tile. */
UCM_INLINE void attend_products(const struct ucm_twin_attend_args *args,
				const struct ucm_twin_attend_part *part,
				int64_t block, uint32_t first, uint32_t num,
				int far, uint32_t heads,
				struct ucm_twin_attend *s)
{
	uint32_t lane = threadIdx.x % UCM_WARP;

	for (uint32_t i = threadIdx.x / UCM_WARP; i < num;
	     i += UCM_TWIN_ATTEND_THREADS / UCM_WARP) {
		float sums[UCM_TWIN_ATTEND_HEADS];

		ucm_twin_products(args, part, block, first + i, far, heads,
				  lane, s, sums);
		UCM_UNROLL
		for (uint32_t n = UCM_WARP / 2; n; n /= 2) {
			uint32_t kept = ucm_twin_fold_kept(heads, n);

			UCM_UNROLL
			for (uint32_t j = 0; j < (kept ? kept : 1); j++) {
				float sent = ucm_twin_fold_sent(sums, kept,
								lane, n, j);

				ucm_twin_fold_take(
					sums, kept, lane, n, j,
					__shfl_xor_sync(ALL_LANES, sent, n));
			}
		}
		ucm_twin_product_store(heads, lane, i, sums[0], s);
	}
}

UCM_INLINE void attend_weights(uint32_t num, uint32_t heads,
			       struct ucm_twin_attend *s)
{
	struct ucm_twin_weight w;

	/* whole warps, the last one with a head that there is not */
	if (threadIdx.x / UCM_WARP * 2 >= heads)
		return;
	w = ucm_twin_weight_find(threadIdx.x, num, s);
	UCM_UNROLL
	for (uint32_t n = UCM_TILE_TOKENS / 2; n; n /= 2) {
		float other = __shfl_xor_sync(ALL_LANES, w.most, n);

		w.most = other > w.most ? other : w.most;
		w.finite &= __shfl_xor_sync(ALL_LANES, w.finite, n);
	}
	ucm_twin_weight_make(threadIdx.x, &w, s);
	UCM_UNROLL
	for (uint32_t n = UCM_TILE_TOKENS / 2; n; n /= 2)
		w.sum += __shfl_xor_sync(ALL_LANES, w.sum, n);
	__syncwarp(); /* all have read what was before */
	ucm_twin_weight_store(threadIdx.x, &w, s);
}

/* Tokens first to end - 1 of a block. */
UCM_INLINE void attend_tokens(const struct ucm_twin_attend_args *args,
			      const struct ucm_twin_attend_part *part,
			      int64_t block, uint32_t first, uint32_t end,
			      int far, uint32_t heads,
			      struct ucm_twin_attend *s)
{
	for (uint32_t i = first; i < end; i += UCM_TILE_TOKENS) {
		uint32_t num = ucm_least_of(end - i, UCM_TILE_TOKENS);

		attend_products(args, part, block, i, num, far, heads, s);
		__syncthreads();
		attend_weights(num, heads, s);
		__syncthreads();
		ucm_twin_weigh(args, part, block, i, num, heads, threadIdx.x, s);
		__syncthreads();
	}
}

UCM_INLINE void attend(const struct ucm_twin_attend_args *args, uint32_t heads)
{
	extern __shared__ float room[];
	__shared__ struct ucm_twin_attend_state state;
	struct ucm_twin_attend s = { &state, room, 0, 0 };
	struct ucm_twin_attend_part part =
		ucm_twin_attend_find(args, blockIdx.x, blockIdx.y, heads);

	if (part.begin >= part.end) /* the same for the CTA, here and below */
		return;
	s.sums = s.near + heads * args->keys.dim;
	s.far = s.sums + heads * args->values.dim;
	ucm_twin_attend_begin(args, &part, heads, threadIdx.x, &s);
	__syncthreads();
	for (uint32_t i = part.begin; i < part.end; i++) {
		struct ucm_twin_attend_block block =
			ucm_twin_attend_block_find(args, &part, i);

		if (block.block < 0) {
			ucm_twin_attend_lack(heads, threadIdx.x, &s);
			__syncthreads();
			continue;
		}
		if (block.far) {
			ucm_twin_attend_turns(args, block.delta, threadIdx.x,
					      &s);
			__syncthreads();
			ucm_twin_queries_turn(args, heads, threadIdx.x, &s);
			__syncthreads();
			attend_tokens(args, &part, block.block, 0, block.far,
				      1, heads, &s);
		}
		attend_tokens(args, &part, block.block, block.far,
			      block.tokens, 0, heads, &s);
	}
	ucm_twin_attend_end(args, &part, threadIdx.x, &s);
}

#define ATTEND_KERNEL(heads)                                                  \
	KERNEL(UCM_TWIN_ATTEND_THREADS)                                       \
	ucm_twin_attend_##heads(                                              \
		const __grid_constant__ struct ucm_twin_attend_args args)     \
	{                                                                     \
		attend(&args, heads);                                         \
	}

ATTEND_KERNEL(1)
ATTEND_KERNEL(2)
ATTEND_KERNEL(4)
ATTEND_KERNEL(8)

KERNEL(UCM_TWIN_ATTEND_THREADS)
ucm_twin_attend_joined(const __grid_constant__ struct ucm_twin_attend_args args)
{
	ucm_twin_attend_join(&args, blockIdx.x, blockIdx.y, threadIdx.x);
}
