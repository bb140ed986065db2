/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.cu - staging to pages and back, by the GPU's own loads and stores.
 *
 * Staging is pinned memory of the host, mapped: the kernels read and write it
 * over the bus. Bytes pass once, so every access is marked as streaming, to
 * leave the caches to the model. What goes where is scatter.h's.
 *
 * Compiled to device code only and carried in the library (kernels.S).
 */
#include "gpu/copy/scatter.h"

UCM_INLINE struct ucm_vector ucm_scatter_load(uint64_t from)
{
	const ulonglong2 value = __ldcs(UCM_AT(const ulonglong2, from));
	struct ucm_vector vector = { value.x, value.y };

	return vector;
}

UCM_INLINE void ucm_scatter_store(uint64_t to, struct ucm_vector vector)
{
	__stcs(UCM_AT(ulonglong2, to), make_ulonglong2(vector.lo, vector.hi));
}

UCM_INLINE void ucm_scatter_piece(uint64_t to, uint64_t from, uint32_t width)
{
	switch (width) {
	case 16:
		ucm_scatter_store(to, ucm_scatter_load(from));
		break;
	case 8:
		__stcs(UCM_AT(unsigned long long, to),
		       __ldcs(UCM_AT(const unsigned long long, from)));
		break;
	case 4:
		__stcs(UCM_AT(unsigned int, to),
		       __ldcs(UCM_AT(const unsigned int, from)));
		break;
	case 2:
		__stcs(UCM_AT(unsigned short, to),
		       __ldcs(UCM_AT(const unsigned short, from)));
		break;
	default:
		__stcs(UCM_AT(unsigned char, to),
		       __ldcs(UCM_AT(const unsigned char, from)));
	}
}

UCM_INLINE void copy(const struct ucm_scatter_args *args, int gather)
{
	ucm_scatter_thread(args, blockIdx.x * blockDim.x + threadIdx.x,
			   gridDim.x * blockDim.x, gather);
}

extern "C" __global__ void __launch_bounds__(UCM_CTA_THREADS, 1)
ucm_scatter(const __grid_constant__ struct ucm_scatter_args args)
{
	copy(&args, 0);
}

extern "C" __global__ void __launch_bounds__(UCM_CTA_THREADS, 1)
ucm_gather(const __grid_constant__ struct ucm_scatter_args args)
{
	copy(&args, 1);
}
