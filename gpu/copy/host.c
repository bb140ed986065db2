/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - pages in the memory of this process.
 */
#include <config.h>

#include "gpu/copy/copy.h"

#include <string.h>

unsigned ucm_host_widest = 64;

/* ---- runs ---- */

/*
 * Pages are written by stores that go past the caches: memory need not be read
 * before it is overwritten, and what the caches hold stays there. It pays off
 * for runs that are not short. Others see such stores in any order: move_job()
 * ends with a fence.
 */
#ifdef __x86_64__
#include <immintrin.h>

#define STREAM_LEAST 2048
#define STREAM_STEP 256u

/* len is a multiple of STREAM_STEP; to is aligned to 64. */
typedef void stream_lines(uint8_t *to, const uint8_t *from, size_t len);

#define STREAM_LINES(name, isa, vector, load, stream)                         \
	__attribute__((target(isa))) static void name(                        \
		uint8_t *to, const uint8_t *from, size_t len)                 \
	{                                                                     \
		for (size_t i = 0; i < len; i += 4 * sizeof(vector)) {        \
			const vector *in = (const void *)(from + i);          \
			vector *out = (void *)(to + i);                       \
			vector a = load(in), b = load(in + 1);                \
			vector c = load(in + 2), d = load(in + 3);            \
                                                                              \
			stream(out, a);                                       \
			stream(out + 1, b);                                   \
			stream(out + 2, c);                                   \
			stream(out + 3, d);                                   \
		}                                                             \
	}

STREAM_LINES(stream_avx512, "avx512f", __m512i, _mm512_loadu_si512,
	     _mm512_stream_si512)
STREAM_LINES(stream_avx2, "avx2", __m256i, _mm256_loadu_si256,
	     _mm256_stream_si256)
STREAM_LINES(stream_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128)

/* The widest that the processor has; the compiler's own check is cheap. */
static stream_lines *choose_lines(void)
{
	if (ucm_host_widest >= 64 && __builtin_cpu_supports("avx512f"))
		return stream_avx512;
	if (ucm_host_widest >= 32 && __builtin_cpu_supports("avx2"))
		return stream_avx2;
	return ucm_host_widest >= 16 ? stream_sse2 : NULL; /* all have it */
}

static void write_run(uint8_t *to, const uint8_t *from, size_t len)
{
	stream_lines *lines = len < STREAM_LEAST ? NULL : choose_lines();
	size_t head = -(uintptr_t)to & 63, body;

	if (!lines) {
		memcpy(to, from, len);
		return;
	}
	memcpy(to, from, head);
	body = (len - head) & ~(size_t)(STREAM_STEP - 1);
	lines(to + head, from + head, body);
	memcpy(to + head + body, from + head + body, len - head - body);
}

static void fence(void)
{
	_mm_sfence();
}
#else
static void write_run(uint8_t *to, const uint8_t *from, size_t len)
{
	memcpy(to, from, len);
}

static void fence(void)
{
}
#endif

/* ---- regions ---- */

/* One region of one page: to it, or from it. */
static void move_region(const struct ucm_region *region, uint8_t *page,
			uint8_t *staging, bool to_page)
{
	for (uint32_t i1 = 0; i1 < region->n1; i1++) {
		uint8_t *run = page + i1 * region->s1;

		for (uint32_t i0 = 0; i0 < region->n0; i0++) {
			if (to_page)
				write_run(run, staging, region->run_bytes);
			else
				memcpy(staging, run, region->run_bytes);
			staging += region->run_bytes;
			run += region->s0;
		}
	}
}

static void move_job(const struct ucm_layout *layout,
		     const struct ucm_copy_job *job, bool to_page)
{
	uint32_t first = layout->layer_first[job->first_layer];
	uint32_t end = layout->layer_first[job->end_layer];
	uint64_t start = job->first_layer * ucm_layout_layer_bytes(layout);

	for (uint32_t i = first; i < end; i++) {
		const struct ucm_region *region = &layout->regions[i];
		uint64_t page = job->addresses
					? job->addresses[i - first]
					: region->base + (uint64_t)job->page *
						  (uint64_t)region->page_stride;

		move_region(region, (uint8_t *)(uintptr_t)page,
			    job->staging + (region->offset - start), to_page);
	}
	if (to_page)
		fence();
}

void ucm_host_scatter(const struct ucm_layout *layout,
		      const struct ucm_copy_job *job)
{
	move_job(layout, job, true);
}

void ucm_host_gather(const struct ucm_layout *layout,
		     const struct ucm_copy_job *job)
{
	move_job(layout, job, false);
}
