/* SPDX-License-Identifier: Apache-2.0 */
/*
 * md5.h - MD5's compression, for one message and for sixteen side by side.
 *
 * OpenSSL's MD5 (digest.h) is the reference. It is not used here because a
 * block's message is two or three compressions long: what OpenSSL adds to each
 * message is a good part of it, and it has no way to do several at once, which
 * is what hides the latency of a digest that cannot be computed in parallel.
 * Nor does it serve MD5 where FIPS mode is on; names are not secrets.
 */
#ifndef UCM_MD5_H
#define UCM_MD5_H

#include <stddef.h>
#include <stdint.h>

#define UCM_MD5_LANES 16
#define UCM_MD5_CHUNK 64 /* bytes of one compression */
#define UCM_MD5_PADDING 72 /* most bytes that ucm_md5_pad() writes */

/* The state before the first byte. */
extern const uint32_t ucm_md5_init[4];

/* Compress 64-byte chunks of one message. */
void ucm_md5_one(uint32_t state[4], const void *bytes, size_t chunks);

/* The same number of chunks of each of 16 messages; state[i][lane] is word i
 * of a message's state, data[lane] its bytes. */
typedef void (*ucm_md5_lanes)(uint32_t state[4][UCM_MD5_LANES],
			      const uint8_t *const data[UCM_MD5_LANES],
			      size_t chunks);

/* How this CPU does it best; NULL: one by one, with ucm_md5_one(). */
ucm_md5_lanes ucm_md5_lanes_best(void);

/* One way by its name ("avx2", "avx512"), for tests and benchmarks; NULL: it
 * is not compiled in, or this CPU cannot. */
ucm_md5_lanes ucm_md5_lanes_named(const char *name);

/*
 * Padding after the last byte of a message: 0x80, zeros, its length in bits.
 * room holds what the last whole chunk left over, partial bytes, and 72 more;
 * total is the message's length in bytes. Returns the chunks in room, 1 or 2.
 */
size_t ucm_md5_pad(uint8_t *room, size_t partial, uint64_t total);

/* A state as the 16 bytes of a digest. */
void ucm_md5_digest(const uint32_t state[4], uint8_t out[16]);

#endif
