/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h - MD5 and SHA-256; the one door to OpenSSL. */
#ifndef UCM_DIGEST_H
#define UCM_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define UCM_MD5_BYTES 16
#define UCM_SHA256_BYTES 32

/* One-shot digests: 0, or -EIO if OpenSSL refuses (as MD5 in FIPS mode). */
int ucm_md5(const void *bytes, size_t len, uint8_t out[UCM_MD5_BYTES]);
int ucm_sha256(const void *bytes, size_t len, uint8_t out[UCM_SHA256_BYTES]);

/* SHA-256 in pieces, in the caller's memory: begin, add ..., end. It allocates
 * nothing and cannot fail. */
struct ucm_sha256 {
	uint64_t words[16]; /* OpenSSL's, whatever it keeps there */
};

void ucm_sha256_begin(struct ucm_sha256 *sha);
void ucm_sha256_add(struct ucm_sha256 *sha, const void *bytes, size_t len);
void ucm_sha256_end(struct ucm_sha256 *sha, uint8_t out[UCM_SHA256_BYTES]);

#endif
