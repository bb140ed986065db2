/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_manifest.c - space.json: its geometry, and an identity that Python's
 * json and hashlib give as well (the digests below are theirs).
 */
#include <config.h>

#include "fs/block/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"

#define GEOMETRY                                                              \
	"\"geometry\": {\"num_layers\": 2, \"block_size\": 4, "               \
	"\"dtype\": \"float16\", \"k_bytes\": 128, \"v_bytes\": 128, "        \
	"\"num_kv_heads\": 2, \"head_dim\": 8, \"order\": \"HND\"}"

static struct ucm_error error;
static struct ucm_manifest manifest;

static int parse(const char *text)
{
	error.text[0] = '\0';
	return ucm_manifest_parse(text, strlen(text), &manifest, &error);
}

static void identity(char hex[65])
{
	for (int i = 0; i < 32; i++)
		snprintf(hex + 2 * i, 3, "%02x", manifest.space_id[i]);
}

UNIT_TEST(the_geometry_is_read)
{
	ck_assert_msg(!parse("{" GEOMETRY "}"), "%s", error.text);
	ck_assert_uint_eq(manifest.geometry.num_layers, 2);
	ck_assert_uint_eq(manifest.geometry.block_size, 4);
	ck_assert_uint_eq(manifest.geometry.dtype, UCM_DTYPE_FLOAT16);
	ck_assert_uint_eq(manifest.geometry.k_bytes, 128);
	ck_assert_uint_eq(manifest.geometry.v_bytes, 128);
	ck_assert_uint_eq(manifest.geometry.num_kv_heads, 2);
	ck_assert_uint_eq(manifest.geometry.head_dim, 8);
	ck_assert_uint_eq(manifest.geometry.order, UCM_ORDER_HND);
}

UNIT_TEST(the_identity_is_that_of_python)
{
	char hex[65];

	ck_assert_int_eq(parse("{\"model\":\"llama\",\"hash\":\"sha256\",\n"
			       GEOMETRY " }"), 0);
	identity(hex);
	ck_assert_str_eq(hex, "8cfe91ee5db01e6643b34a5e764a1be7"
			      "a2c555a6ebb8e04de0f49ecf62d9c515");
}

/* Python writes \u001f, jansson \u001F. */
UNIT_TEST(the_identity_of_odd_characters_is_that_of_python)
{
	char hex[65];

	ck_assert_int_eq(parse("{\"model\":\"x/\\u00E9\\u001F\\u000B\","
			       "\"hash\":\"sha256\"," GEOMETRY "}"), 0);
	identity(hex);
	ck_assert_str_eq(hex, "4808180b4128dd36b75b143d9c1598e4"
			      "2dd6a091f07725363c0fc8dcb92ff010");
}

UNIT_TEST(a_quota_is_read_and_no_part_of_the_identity)
{
	static const struct {
		const char *text;
		uint64_t quota;
	} quotas[] = {
		{ "0", 0 },
		{ "4096", 4096 },
		{ "\"64K\"", 65536 },
		{ "9223372036854775807", INT64_MAX },
	};
	char plain[65], other[65], text[400];

	ck_assert_int_eq(parse("{" GEOMETRY "}"), 0);
	ck_assert(!manifest.has_quota);
	identity(plain);
	for (unsigned i = 0; i < NUM_ROWS(quotas); i++) {
		snprintf(text, sizeof(text), "{" GEOMETRY ", \"quota\": %s}",
			 quotas[i].text);
		ck_assert_msg(!parse(text), "%s", error.text);
		ck_assert(manifest.has_quota);
		ck_assert_uint_eq(manifest.quota, quotas[i].quota);
		identity(other);
		ck_assert_str_eq(plain, other);
	}
}

UNIT_TEST(a_wrong_quota_is_refused, .rows = 6)
{
	static const char *const wrong[] = { "-1", "\"\"", "\"5X\"", "null",
					     "[1]", "\"9223372036854775808\"" };
	char text[400];
	uint64_t quota;

	snprintf(text, sizeof(text), "{" GEOMETRY ", \"quota\": %s}",
		 wrong[_i]);
	ck_assert_int_eq(parse(text), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "quota: not bytes"));
	snprintf(text, sizeof(text), "{\"quota\": %s}", wrong[_i]);
	ck_assert(!ucm_manifest_quota_alone(text, strlen(text), &quota));
}

UNIT_TEST(a_quota_is_put_in_and_taken_out)
{
	char first[65], second[65], *with, *without;
	uint64_t quota;

	ck_assert_int_eq(parse("{" GEOMETRY ", \"model\": \"m\"}"), 0);
	identity(first);
	ck_assert_int_eq(ucm_manifest_with_quota(
				 "{" GEOMETRY ", \"model\": \"m\"}", 77, &with),
			 0);
	ck_assert_int_eq(parse(with), 0);
	ck_assert_uint_eq(manifest.quota, 77);
	identity(second);
	ck_assert_str_eq(first, second);
	ck_assert_int_eq(ucm_manifest_with_quota(with, 0, &without), 0);
	ck_assert_int_eq(parse(without), 0);
	ck_assert(!manifest.has_quota);
	free(with);
	free(without);
	ck_assert_int_eq(ucm_manifest_with_quota(NULL, 0, &with), 0);
	ck_assert(ucm_manifest_quota_alone(with, strlen(with), &quota));
	ck_assert_uint_eq(quota, 0);
	free(with);
	ck_assert_int_eq(ucm_manifest_with_quota("[]", 1, &with), -EINVAL);
	ck_assert_int_eq(ucm_manifest_with_quota("{", 1, &with), -EINVAL);
}

UNIT_TEST(spelling_does_not_change_the_identity)
{
	char first[65], second[65];

	ck_assert_int_eq(parse("{\"a\":[1,{\"y\":2,\"x\":\"\\u0041\"}],"
			       GEOMETRY "}"), 0);
	identity(first);
	ck_assert_int_eq(parse("{ " GEOMETRY ",\n\t\"a\" : [ 1 , "
			       "{\"x\":\"A\", \"y\":2} ]}\n"), 0);
	identity(second);
	ck_assert_str_eq(first, second);
	ck_assert_int_eq(parse("{" GEOMETRY ", \"a\":[1,{\"x\":\"B\","
			       "\"y\":2}]}"), 0);
	identity(second);
	ck_assert_str_ne(first, second);
}

static const struct {
	const char *text, *says;
} wrong[] = {
	{ "", "space.json:" },
	{ "{", "space.json:1" },
	{ "[]", "not a map" },
	{ "7", "space.json:1" },
	{ "{\n\n\"a\": }", "space.json:3" },
	{ "{}", "no map 'geometry'" },
	{ "{\"geometry\": 7}", "no map 'geometry'" },
	{ "{\"geometry\": {}}", "geometry.num_layers" },
	{ "{\"a\": 1.5, " GEOMETRY "}", "fraction" },
	{ "{\"a\": [[{\"b\": 1e3}]], " GEOMETRY "}", "fraction" },
	{ "{\"a\": 1, \"a\": 2, " GEOMETRY "}", "duplicate" },
	{ "{" GEOMETRY "} x", "space.json:1" },
	{ "{\"a\": \"\\u0000\", " GEOMETRY "}", "space.json:1" },
	{ "{\"a\": \"\xff\", " GEOMETRY "}", "decode byte" },
};

UNIT_TEST(a_wrong_manifest_is_named, .rows = NUM_ROWS(wrong))
{
	memset(&manifest, 0x55, sizeof(manifest));
	ck_assert_int_eq(parse(wrong[_i].text), -EINVAL);
	ck_assert_msg(strstr(error.text, wrong[_i].says) != NULL, "%s",
		      error.text);
	ck_assert_uint_eq(manifest.space_id[0], 0x55); /* left alone */
}

static const struct {
	const char *geometry, *says; /* NULL: right */
} geometries[] = {
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"opaque\",\"k_bytes\":1,"
	  "\"v_bytes\":0", NULL },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"opaque\",\"k_bytes\":1",
	  NULL },
	{ "\"num_layers\":0,\"block_size\":1,\"dtype\":\"opaque\",\"k_bytes\":1",
	  "num_layers" },
	{ "\"num_layers\":1048577,\"block_size\":1,\"dtype\":\"opaque\","
	  "\"k_bytes\":1", "num_layers" },
	{ "\"num_layers\":\"1\",\"block_size\":1,\"dtype\":\"opaque\","
	  "\"k_bytes\":1", "num_layers" },
	{ "\"num_layers\":1,\"block_size\":0,\"dtype\":\"opaque\",\"k_bytes\":1",
	  "block_size" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"int4\",\"k_bytes\":1",
	  "dtype" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":1,\"k_bytes\":1",
	  "dtype" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"opaque\",\"k_bytes\":0",
	  "k_bytes" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"opaque\","
	  "\"k_bytes\":4294967296", "k_bytes" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"opaque\","
	  "\"k_bytes\":1,\"v_bytes\":-1", "v_bytes" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"opaque\","
	  "\"k_bytes\":1,\"num_kv_heads\":65536", "num_kv_heads" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"opaque\","
	  "\"k_bytes\":1,\"order\":\"hnd\"", "order" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"float16\","
	  "\"k_bytes\":15,\"num_kv_heads\":2,\"head_dim\":4", "k_bytes is not" },
	{ "\"num_layers\":1,\"block_size\":1,\"dtype\":\"float16\","
	  "\"k_bytes\":16,\"num_kv_heads\":2,\"head_dim\":4", NULL },
};

UNIT_TEST(a_geometry_obeys_the_rules_of_a_header, .rows = NUM_ROWS(geometries))
{
	char text[512];
	int err;

	snprintf(text, sizeof(text), "{\"geometry\":{%s}}",
		 geometries[_i].geometry);
	err = parse(text);
	ck_assert_int_eq(err, geometries[_i].says ? -EINVAL : 0);
	if (err)
		ck_assert_msg(strstr(error.text, geometries[_i].says) != NULL,
			      "%s", error.text);
}

UNIT_TEST(deep_nesting_is_refused_not_followed)
{
	static char text[65536];

	memset(text, '[', sizeof(text) - 1);
	memcpy(text, "{\"a\":", 5);
	ck_assert_int_eq(parse(text), -EINVAL);
}
