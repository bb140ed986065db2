/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - what a header needs that is one text for the device and the host,
 * where the tests run it for every thread. Whoever runs it on memory of a
 * pretended device defines UCM_AT before it.
 */
#ifndef UCM_COPY_DEVICE_H
#define UCM_COPY_DEVICE_H

#include <stdint.h>

#define UCM_WARP 32

#ifdef __CUDACC__
#define UCM_INLINE static __device__ __forceinline__
#define UCM_UNROLL _Pragma("unroll")
#else
#define UCM_INLINE static inline
#define UCM_UNROLL
#endif

#ifndef UCM_AT
#define UCM_AT(type, address) ((type *)(uintptr_t)(address))
#endif

#endif
