/* SPDX-License-Identifier: Apache-2.0 */
/* test_hasher.c - what a hasher accepts, and what it copies. */
#include <config.h>

#include <ucm/hash.h>

#include "tests/unit/hash_fixture.h"

UNIT_TEST(schemes_have_names)
{
	uint32_t scheme = 77;

	for (uint32_t i = 0; i < UCM_SCHEME_COUNT; i++) {
		ck_assert_int_eq(ucm_scheme_parse(ucm_scheme_name(i), &scheme),
				 0);
		ck_assert_uint_eq(scheme, i);
	}
	ck_assert_ptr_null(ucm_scheme_name(UCM_SCHEME_COUNT));
	scheme = 77;
	ck_assert_int_eq(ucm_scheme_parse("md5", &scheme), -EINVAL);
	ck_assert_int_eq(ucm_scheme_parse("", &scheme), -EINVAL);
	ck_assert_uint_eq(scheme, 77);
}

static void set_scheme(struct ucm_hash_meta *m) { m->scheme = UCM_SCHEME_COUNT; }
static void no_tokens(struct ucm_hash_meta *m) { m->block_size = 0; }
static void too_many(struct ucm_hash_meta *m) { m->block_size = (1 << 20) + 1; }
static void no_world(struct ucm_hash_meta *m) { m->world_size = 0; }
static void high_rank(struct ucm_hash_meta *m) { m->rank = 2; }
static void no_model(struct ucm_hash_meta *m) { m->model = NULL; }
static void no_dtype(struct ucm_hash_meta *m) { m->dtype = NULL; }
static void colon(struct ucm_hash_meta *m) { m->dtype = "torch:bfloat16"; }
static void no_tail(struct ucm_hash_meta *m) { m->tail = NULL; }
static void tail(struct ucm_hash_meta *m) { m->tail = ":dcp=1"; }
static void no_space(struct ucm_hash_meta *m) { m->space_id = NULL; }
static void salt(struct ucm_hash_meta *m) { m->extras.salt = "tenant"; }
static void lora(struct ucm_hash_meta *m) { m->extras.lora = "sql"; }

static const uint8_t digest[32];
static void digest_alone(struct ucm_hash_meta *m)
{
	m->extras.lora_digest = digest;
}

static const struct ucm_hash_item empty_item[] = { { .length = 0 } };
static const struct ucm_hash_item overlap[] = {
	{ .position = 0, .length = 5 }, { .position = 4, .length = 1 },
};
static const struct ucm_hash_item huge[] = {
	{ .position = 1, .length = UINT64_MAX },
};

static void items(struct ucm_hash_meta *m)
{
	m->extras.items = overlap;
	m->extras.num_items = 1;
}

static void items_null(struct ucm_hash_meta *m)
{
	m->extras.num_items = 1;
}

static void items_empty(struct ucm_hash_meta *m)
{
	m->extras.items = empty_item;
	m->extras.num_items = 1;
}

static void items_overlap(struct ucm_hash_meta *m)
{
	m->extras.items = overlap;
	m->extras.num_items = 2;
}

static void items_huge(struct ucm_hash_meta *m)
{
	m->extras.items = huge;
	m->extras.num_items = 1;
}

static const struct {
	uint32_t scheme;
	void (*spoil)(struct ucm_hash_meta *meta);
	const char *says;
} wrong[] = {
	{ UCM_SCHEME_UCM, set_scheme, "scheme " },
	{ UCM_SCHEME_UCM, no_tokens, "block_size 0: from 1 to 1048576" },
	{ UCM_SCHEME_UCM, too_many, "block_size" },
	{ UCM_SCHEME_UCM, no_world, "world_size 0: from 1 on" },
	{ UCM_SCHEME_UCM, high_rank, "rank 2 of 2" },
	{ UCM_SCHEME_UCM, no_model, "model: missing" },
	{ UCM_SCHEME_CHAIN, no_model, "model: missing" },
	{ UCM_SCHEME_SHA256, no_model, "model: missing" },
	{ UCM_SCHEME_UCM, no_dtype, "dtype: missing" },
	{ UCM_SCHEME_SHA256, no_dtype, "dtype: missing" },
	{ UCM_SCHEME_UCM, colon, "it has a ':'" },
	{ UCM_SCHEME_CHAIN, colon, "it has a ':'" },
	{ UCM_SCHEME_UCM2, colon, "it has a ':'" },
	{ UCM_SCHEME_UCM2, no_tail, "tail: missing" },
	{ UCM_SCHEME_UCM, tail, "tail: scheme ucm cannot express it" },
	{ UCM_SCHEME_SHA256, tail, "tail: scheme sha256 cannot express it" },
	{ UCM_SCHEME_EXTERNAL, no_space, "space_id: missing" },
	{ UCM_SCHEME_UCM, salt, "salt: scheme ucm cannot express it" },
	{ UCM_SCHEME_CHAIN, lora, "lora: scheme chain cannot express it" },
	{ UCM_SCHEME_UCM2, salt, "salt: scheme ucm2 cannot express it" },
	{ UCM_SCHEME_PREFIX, items, "items: scheme prefix cannot express it" },
	{ UCM_SCHEME_EXTERNAL, salt,
	  "salt: scheme external cannot express it" },
	{ UCM_SCHEME_SHA256, digest_alone, "lora_digest: there is no lora" },
	{ UCM_SCHEME_SHA256, items_null, "items: missing" },
	{ UCM_SCHEME_SHA256, items_empty, "items[0]: tokens " },
	{ UCM_SCHEME_SHA256, items_overlap, "items[1]: tokens " },
	{ UCM_SCHEME_SHA256, items_huge, "items[0]: tokens " },
};

UNIT_TEST(a_wrong_field_is_named, .rows = NUM_ROWS(wrong))
{
	struct ucm_hash_meta meta = meta_of(wrong[_i].scheme, 16);
	struct ucm_hasher *hasher = (void *)1;
	struct ucm_error error;

	wrong[_i].spoil(&meta);
	ck_assert_int_eq(ucm_hasher_open(&meta, &hasher, &error), -EINVAL);
	ck_assert_msg(strstr(error.text, wrong[_i].says), "%s", error.text);
	ck_assert_ptr_eq(hasher, (void *)1);
	ck_assert_int_eq(ucm_hasher_open(&meta, &hasher, NULL), -EINVAL);
}

UNIT_TEST(what_a_scheme_does_not_hash_need_not_be_there)
{
	static const uint32_t without[] = {
		UCM_SCHEME_PREFIX, UCM_SCHEME_HEXCHAIN, UCM_SCHEME_EXTERNAL,
	};

	for (size_t i = 0; i < NUM_ROWS(without); i++) {
		struct ucm_hash_meta meta = meta_of(without[i], 16);

		meta.model = NULL;
		meta.dtype = NULL;
		ucm_hasher_close(open_meta(&meta));
	}
}

UNIT_TEST(a_model_may_be_a_path_with_colons)
{
	struct ucm_hash_meta meta = meta_of(UCM_SCHEME_UCM, 16);

	meta.model = "hf://org/model:rev";
	ucm_hasher_close(open_meta(&meta));
}

UNIT_TEST(a_text_may_have_64_kib_and_no_more)
{
	struct ucm_hash_meta meta = meta_of(UCM_SCHEME_SHA256, 16);
	struct ucm_error error;
	struct ucm_hasher *hasher;
	char *text = malloc(UCM_HASH_TEXT_MAX + 2);

	memset(text, 'm', UCM_HASH_TEXT_MAX + 1);
	text[UCM_HASH_TEXT_MAX + 1] = '\0';
	meta.model = text;
	ck_assert_int_eq(ucm_hasher_open(&meta, &hasher, &error), -EINVAL);
	ck_assert_str_eq(error.text, "model: over 65536 bytes");
	text[UCM_HASH_TEXT_MAX] = '\0';
	ucm_hasher_close(open_meta(&meta));
	free(text);
}

UNIT_TEST(a_hasher_keeps_nothing_of_its_caller)
{
	char model[] = "/models/test", dtype[] = "float16", salt_text[] = "s";
	char lora_text[] = "l";
	uint8_t lora_digest[32] = { 1 };
	struct ucm_hash_item item = { .position = 1, .length = 2 };
	struct ucm_hash_meta meta = {
		.scheme = UCM_SCHEME_SHA256, .block_size = 2, .world_size = 1,
		.model = model, .dtype = dtype,
		.extras = { .salt = salt_text, .lora = lora_text,
			    .lora_digest = lora_digest, .items = &item,
			    .num_items = 1 },
	};
	const int64_t tokens[] = { 1, 2, 3, 4 };
	struct ucm_hasher *hasher = open_meta(&meta);
	struct ucm_hash_state before, after;
	struct ucm_id *a = ids_of(hasher, tokens, 4), *b;

	ucm_hash_start(hasher, NULL, &before, NULL);
	memset(model, 'x', sizeof(model) - 1);
	memset(dtype, 'x', sizeof(dtype) - 1);
	memset(salt_text, 'x', 1);
	memset(lora_text, 'x', 1);
	memset(lora_digest, 'x', sizeof(lora_digest));
	memset(&item, 'x', sizeof(item));
	memset(&meta, 'x', sizeof(meta));
	b = ids_of(hasher, tokens, 4);
	ucm_hash_start(hasher, NULL, &after, NULL);
	ck_assert(same_ids(a, b, 2));
	ck_assert_mem_eq(&before, &after, sizeof(before));
	ucm_hasher_close(hasher);
	ucm_hasher_close(NULL);
	free(a);
	free(b);
}
