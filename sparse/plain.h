/* SPDX-License-Identifier: Apache-2.0 */
/* plain.h - functions of numbers alone, which are compiled for a GPU, too. */
#ifndef UCM_SPARSE_PLAIN_H
#define UCM_SPARSE_PLAIN_H

#ifdef __CUDACC__
#define UCM_PLAIN static __host__ __device__ __forceinline__
#else
#define UCM_PLAIN static inline
#endif

#endif
