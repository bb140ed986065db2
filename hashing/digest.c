/* SPDX-License-Identifier: Apache-2.0 */
/* digest.c - the one file that includes OpenSSL. */
#include <config.h>

#include "hashing/digest.h"

#include <errno.h>

#include <openssl/evp.h>

int ucm_md5(const void *bytes, size_t len, uint8_t out[UCM_MD5_BYTES])
{
	return EVP_Digest(bytes, len, out, NULL, EVP_md5(), NULL) ? 0 : -EIO;
}

int ucm_sha256(const void *bytes, size_t len, uint8_t out[UCM_SHA256_BYTES])
{
	return EVP_Digest(bytes, len, out, NULL, EVP_sha256(), NULL) ? 0 : -EIO;
}
