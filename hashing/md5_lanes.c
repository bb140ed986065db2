/* SPDX-License-Identifier: Apache-2.0 */
/*
 * md5_lanes.c - MD5 of 16 messages side by side; see md5.h.
 *
 * GCC's vector extensions, without intrinsics: each function is compiled for
 * one instruction set, and the CPU is asked at run time. With AVX2 a vector of
 * 16 words is two registers, whose steps alternate and hide each other's
 * latency; with AVX-512 it is one.
 */
#include <config.h>

#include "hashing/md5.h"

#include <string.h>

#ifdef __x86_64__

#define LANES UCM_MD5_LANES

typedef uint32_t words4 __attribute__((vector_size(16)));
typedef uint32_t words16 __attribute__((vector_size(64)));

#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define PICK(a, b, i, j, k, l) __builtin_shuffle(a, b, (words4){ i, j, k, l })
#endif

/* Words k to k + 3 of four messages: rows in, columns out. */
static inline __attribute__((always_inline)) void
turn4(const uint8_t *const *data, size_t at, uint32_t (*out)[LANES])
{
	words4 row[4], low[2], high[2], column[4];

	for (int i = 0; i < 4; i++)
		memcpy(&row[i], data[i] + at, sizeof(row[i]));
	low[0] = PICK(row[0], row[1], 0, 4, 1, 5);
	low[1] = PICK(row[2], row[3], 0, 4, 1, 5);
	high[0] = PICK(row[0], row[1], 2, 6, 3, 7);
	high[1] = PICK(row[2], row[3], 2, 6, 3, 7);
	column[0] = PICK(low[0], low[1], 0, 1, 4, 5);
	column[1] = PICK(low[0], low[1], 2, 3, 6, 7);
	column[2] = PICK(high[0], high[1], 0, 1, 4, 5);
	column[3] = PICK(high[0], high[1], 2, 3, 6, 7);
	for (int i = 0; i < 4; i++)
		memcpy(out[i], &column[i], sizeof(column[i]));
}

static inline __attribute__((always_inline)) void
load(uint32_t (*words)[LANES], const uint8_t *const *data, size_t at)
{
	for (int lane = 0; lane < LANES; lane += 4) {
		for (int k = 0; k < 16; k += 4)
			turn4(data + lane, at + 4 * (size_t)k,
			      (uint32_t (*)[LANES])&words[k][lane]);
	}
}

#define LOAD(w, data, at)                                                     \
	do {                                                                  \
		uint32_t words[16][LANES] __attribute__((aligned(64)));       \
		load(words, data, at);                                        \
		memcpy(w, words, sizeof(words));                              \
	} while (0)

#define CORE_NAME lanes_avx2
#define CORE_LANES LANES
#define CORE_VECTOR words16
#define CORE_TARGET static __attribute__((target("avx2")))
#define CORE_LOAD(w, data, at) LOAD(w, data, at)
#define CORE_KEEP(x) (void)0
#include "hashing/md5_core.h"

#define CORE_NAME lanes_avx512
#define CORE_LANES LANES
#define CORE_VECTOR words16
#define CORE_TARGET static __attribute__((target("avx512f")))
#define CORE_LOAD(w, data, at) LOAD(w, data, at)
#define CORE_KEEP(x) (void)0
#include "hashing/md5_core.h"

ucm_md5_lanes ucm_md5_lanes_named(const char *name)
{
	if (!strcmp(name, "avx512"))
		return __builtin_cpu_supports("avx512f") ? lanes_avx512 : NULL;
	if (!strcmp(name, "avx2"))
		return __builtin_cpu_supports("avx2") ? lanes_avx2 : NULL;
	return NULL;
}

#else

ucm_md5_lanes ucm_md5_lanes_named(const char *name)
{
	(void)name;
	return NULL;
}

#endif

ucm_md5_lanes ucm_md5_lanes_best(void)
{
	ucm_md5_lanes best = ucm_md5_lanes_named("avx512");

	return best ? best : ucm_md5_lanes_named("avx2");
}
