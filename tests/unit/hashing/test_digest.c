/* SPDX-License-Identifier: Apache-2.0 */
/* test_digest.c - the digests give the values of their standards. */
#include <config.h>

#include "hashing/digest.h"

#include <string.h>

#include <ucm/block.h>

#include "tests/unit/unit.h"

static void hex_of(const uint8_t *bytes, size_t len, char *hex)
{
	for (size_t i = 0; i < len; i++) {
		hex[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
		hex[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
	}
	hex[2 * len] = '\0';
}

UNIT_TEST(md5_is_that_of_rfc_1321)
{
	uint8_t out[UCM_MD5_BYTES];
	char hex[33];

	ck_assert_int_eq(ucm_md5("", 0, out), 0);
	hex_of(out, sizeof(out), hex);
	ck_assert_str_eq(hex, "d41d8cd98f00b204e9800998ecf8427e");
	ck_assert_int_eq(ucm_md5("abc", 3, out), 0);
	hex_of(out, sizeof(out), hex);
	ck_assert_str_eq(hex, "900150983cd24fb0d6963f7d28e17f72");
}

UNIT_TEST(sha256_is_that_of_fips_180)
{
	uint8_t out[UCM_SHA256_BYTES];
	char hex[65];

	ck_assert_int_eq(ucm_sha256("", 0, out), 0);
	hex_of(out, sizeof(out), hex);
	ck_assert_str_eq(hex, "e3b0c44298fc1c149afbf4c8996fb924"
			      "27ae41e4649b934ca495991b7852b855");
	ck_assert_int_eq(ucm_sha256("abc", 3, out), 0);
	hex_of(out, sizeof(out), hex);
	ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223"
			      "b00361a396177a9cb410ff61f20015ad");
}
