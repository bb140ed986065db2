/* SPDX-License-Identifier: Apache-2.0 */
/* digest.c - the one file that includes OpenSSL. */

/* XXX: SHA256_Init() and its kin are deprecated since OpenSSL 3, whose EVP
 * interface allocates for each digest and takes longer to begin one than a
 * block's message takes to hash. They are in every OpenSSL from 1.1.1 on. */
#define OPENSSL_SUPPRESS_DEPRECATED

#include <config.h>

#include "hashing/digest.h"

#include <assert.h>
#include <errno.h>

#include <openssl/evp.h>
#include <openssl/sha.h>

static_assert(sizeof(SHA256_CTX) <= sizeof(struct ucm_sha256),
	      "OpenSSL's state fits ours");

int ucm_md5(const void *bytes, size_t len, uint8_t out[UCM_MD5_BYTES])
{
	return EVP_Digest(bytes, len, out, NULL, EVP_md5(), NULL) ? 0 : -EIO;
}

int ucm_sha256(const void *bytes, size_t len, uint8_t out[UCM_SHA256_BYTES])
{
	return EVP_Digest(bytes, len, out, NULL, EVP_sha256(), NULL) ? 0 : -EIO;
}

void ucm_sha256_begin(struct ucm_sha256 *sha)
{
	SHA256_Init((SHA256_CTX *)(void *)sha);
}

void ucm_sha256_add(struct ucm_sha256 *sha, const void *bytes, size_t len)
{
	SHA256_Update((SHA256_CTX *)(void *)sha, bytes, len);
}

void ucm_sha256_end(struct ucm_sha256 *sha, uint8_t out[UCM_SHA256_BYTES])
{
	SHA256_Final(out, (SHA256_CTX *)(void *)sha);
}
