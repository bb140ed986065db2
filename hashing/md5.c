/* SPDX-License-Identifier: Apache-2.0 */
/* md5.c - MD5 of one message; see md5.h. */
#include <config.h>

#include "hashing/md5.h"

#include <string.h>

const uint32_t ucm_md5_init[4] = {
	0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476,
};

/* clang would put the term that comes last into the longest sum */
#define CORE_KEEP(x) __asm__("" : "+r"(x))
#define CORE_NAME compress
#define CORE_LANES 1
#define CORE_VECTOR uint32_t
#define CORE_TARGET static
#define CORE_LOAD(w, data, at) memcpy(w, (data)[0] + (at), sizeof(w))
#include "hashing/md5_core.h"

void ucm_md5_one(uint32_t state[4], const void *bytes, size_t chunks)
{
	const uint8_t *data[1] = { bytes };

	compress((uint32_t (*)[1])state, data, chunks);
}

size_t ucm_md5_pad(uint8_t *room, size_t partial, uint64_t total)
{
	size_t chunks = partial + 9 <= UCM_MD5_CHUNK ? 1 : 2;
	size_t end = chunks * UCM_MD5_CHUNK;
	uint64_t bits = total * 8;

	memset(room + partial, 0, UCM_MD5_PADDING); /* a fixed size is fast */
	room[partial] = 0x80;
	memcpy(room + end - sizeof(bits), &bits, sizeof(bits));
	return chunks;
}

void ucm_md5_digest(const uint32_t state[4], uint8_t out[16])
{
	memcpy(out, state, 16);
}
