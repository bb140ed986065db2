/* SPDX-License-Identifier: Apache-2.0 */
/* test_method.c - six methods by name, what they are configured by, and how a
 * request goes. */
#include <config.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse_fixture.h"

#define BLOCK  16u
#define LAYERS 32u

static struct ucm_sparse_config parsed(const char *text)
{
	struct ucm_sparse_config config;
	struct ucm_error error;

	ck_assert_msg(!ucm_sparse_parse(text, strlen(text), BLOCK, LAYERS,
					&config, &error), "%s", error.text);
	return config;
}

/* ---- names ---- */

static const struct {
	const char *name;
	uint32_t method, keeps;
} names[] = {
	{ "ESA", UCM_METHOD_ESA, UCM_KEEPS_REPR },
	{ "GSA", UCM_METHOD_GSA, UCM_KEEPS_REPR },
	{ "GSAOnDevice", UCM_METHOD_GSA_ON_DEVICE, UCM_KEEPS_CODES },
	{ "GSA On-Device", UCM_METHOD_GSA_ON_DEVICE, UCM_KEEPS_CODES },
	{ "KVStarMultiStep", UCM_METHOD_KVSTAR, UCM_KEEPS_CHANNELS },
	{ "KVStar", UCM_METHOD_KVSTAR, UCM_KEEPS_CHANNELS },
	{ "Blend", UCM_METHOD_BLEND, UCM_KEEPS_NOTHING },
	{ "ReRoPE", UCM_METHOD_REROPE, UCM_KEEPS_NOTHING },
};

UNIT_TEST(each_method_is_found_by_its_names, .rows = NUM_ROWS(names))
{
	const struct ucm_sparse_method *method =
		ucm_sparse_find(names[_i].name);

	ck_assert_ptr_nonnull(method);
	ck_assert_uint_eq(method->method, names[_i].method);
	ck_assert_uint_eq(method->keeps, names[_i].keeps);
	ck_assert_uint_eq(parsed(names[_i].name).method, names[_i].method);
}

UNIT_TEST(other_names_are_not_found)
{
	ck_assert_ptr_null(ucm_sparse_find("esa"));
	ck_assert_ptr_null(ucm_sparse_find(""));
	ck_assert_ptr_null(ucm_sparse_find(NULL));
}

/* ---- what is kept ---- */

static const struct ucm_sparse_model dense_model = {
	.num_heads = 8, .query_heads = 32, .head_dim = 128,
	.dtype = UCM_DTYPE_BFLOAT16, .seed = 7,
};
static const struct ucm_sparse_model latent_model = {
	.num_heads = 1, .query_heads = 128, .head_dim = 576, .rope_dim = 64,
	.dtype = UCM_DTYPE_FLOAT16,
};

UNIT_TEST(representations_follow_from_a_configuration)
{
	struct ucm_sparse_config config = parsed("GSA:pooling=max");
	struct ucm_repr_spec spec;

	ck_assert_int_eq(ucm_sparse_repr_spec(&config, &dense_model, &spec,
					      NULL), 0);
	must(spec.kind == UCM_REPR_MAX && spec.dtype == UCM_DTYPE_BFLOAT16 &&
	     spec.num_heads == 8 && spec.head_dim == 128 &&
	     spec.block_size == BLOCK);
	ck_assert_uint_ne(ucm_repr_bytes(&spec), 0);
}

UNIT_TEST(codes_follow_from_a_configuration)
{
	struct ucm_sparse_config config = parsed("GSAOnDevice:hash_bits=512");
	struct ucm_code_method method;
	struct ucm_code_spec spec;

	ck_assert_int_eq(ucm_sparse_code_spec(&config, &dense_model, &spec,
					      &method, NULL), 0);
	must(spec.form == UCM_CODE_TOKENS && spec.num_heads == 8 &&
	     spec.head_dim == 128 && !spec.rope_dim && spec.bits == 512 &&
	     !spec.rope_bits && spec.block_size == BLOCK && spec.seed == 7);
	must(method.measure == UCM_CODE_HAMMING &&
	     method.over == UCM_CODE_BEST && method.per == UCM_SCORE_BLOCK &&
	     method.num_heads == 32 && method.merged_heads == 4);
	ck_assert_uint_ne(ucm_code_query_words(&spec, &method), 0);

	ck_assert_int_eq(ucm_sparse_code_spec(&config, &latent_model, &spec,
					      &method, NULL), 0);
	must(spec.head_dim == 576 && spec.rope_dim == 64 && spec.bits == 512 &&
	     spec.rope_bits == 64);
	must(method.num_heads == 128 && method.merged_heads == 2);
	ck_assert_uint_ne(ucm_code_query_words(&spec, &method), 0);
	/* 104 * 64 / 512 is 13 */
	config = parsed("GSAOnDevice:hash_bits=104");
	ck_assert_int_eq(ucm_sparse_code_spec(&config, &latent_model, &spec,
					      &method, NULL), 0);
	ck_assert_uint_eq(spec.rope_bits, 16);
}

UNIT_TEST(merged_channels_follow_from_a_configuration)
{
	struct ucm_sparse_config config = parsed("KVStarMultiStep");
	uint16_t channels[8 * 64];
	struct ucm_star_spec spec;

	for (int i = 0; i < 8 * 64; i++)
		channels[i] = (uint16_t)(i % 64 * 2);
	ck_assert_int_eq(ucm_sparse_star_spec(&config, &dense_model, channels,
					      &spec, NULL), 0);
	must(spec.dtype == UCM_DTYPE_BFLOAT16 && spec.num_heads == 8 &&
	     spec.head_dim == 128 && spec.block_size == BLOCK &&
	     spec.merge_tokens == 4 && spec.kept == 64 &&
	     spec.channels == channels);
	ck_assert_uint_ne(ucm_star_bytes(&spec), 0);
}

UNIT_TEST(what_is_not_kept_is_refused)
{
	static const struct {
		const char *config, *error;
		struct ucm_sparse_model model;
	} wrong[] = {
		{ "KVStar", "method KVStarMultiStep: it keeps merged channels, "
			    "not hash codes", { 8, 32, 128, 0, 0, 0 } },
		{ "ReRoPE", "method ReRoPE: it keeps nothing, not hash codes",
		  { 8, 32, 128, 0, 0, 0 } },
		{ "GSAOnDevice", "query_heads 33: ", { 8, 33, 128, 0, 0, 0 } },
		{ "GSAOnDevice", "query_heads 32: ", { 0, 32, 128, 0, 0, 0 } },
		{ "GSAOnDevice", "rope_dim 128: ", { 8, 32, 128, 128, 0, 0 } },
		{ "GSAOnDevice", "head_dim 0: ", { 8, 32, 0, 0, 0, 0 } },
		{ "GSAOnDevice:hash_bits=100", "bits 100: ",
		  { 8, 32, 128, 0, 0, 0 } },
		{ "GSAOnDevice:hash_reduction_head_num=3",
		  "hash_reduction_head_num 3: ", { 1, 32, 128, 64, 0, 0 } },
	};

	for (size_t i = 0; i < NUM_ROWS(wrong); i++) {
		struct ucm_sparse_config config = parsed(wrong[i].config);
		struct ucm_code_spec spec = { .seed = 99 };
		struct ucm_code_method method = { .over = 99 };
		struct ucm_error error;

		ck_assert_int_eq(ucm_sparse_code_spec(&config, &wrong[i].model,
						      &spec, &method, &error),
				 -EINVAL);
		ck_assert_msg(!strncmp(error.text, wrong[i].error,
				       strlen(wrong[i].error)), "%s",
			      error.text);
		must(spec.seed == 99 && method.over == 99);
	}
}

/* ---- becoming sparse ---- */

UNIT_TEST(a_request_becomes_sparse_where_it_chooses)
{
	/* of 3 blocks the windows and the choice are all, of 4 they are not */
	struct ucm_sparse_config config = parsed("ESA:retrieval_lead=0");
	struct ucm_sparse_request request = { 0 };
	uint64_t chosen = 0, step = 0;
	uint32_t done;

	ck_assert_int_eq(ucm_sparse_begin(&request, &config, 3 * BLOCK - 1,
					  NULL), 0);
	ck_assert_int_eq(ucm_sparse_prefill(&request, 3 * BLOCK - 1, &done,
					    NULL), 0);
	while (++step <= 40) {
		struct ucm_step plan;

		ck_assert_int_eq(ucm_sparse_step(&request, 1, NULL), 0);
		ck_assert_int_eq(ucm_sparse_layer(&request, 0, &plan, NULL),
				 0);
		if (plan.begin & UCM_DO_SELECT)
			chosen = step;
		if (plan.role == UCM_LAYER_CHOOSES)
			ck_assert_uint_eq(plan.uses, chosen);
	}
	ck_assert_uint_eq(chosen, 33);
}

/* ---- defaults ---- */

UNIT_TEST(the_defaults_are_those_of_the_documents)
{
	struct ucm_sparse_config c = parsed("ESA");

	must(c.budget.ratio == .3 && c.budget.windows.initial_blocks == 1 &&
	     c.budget.windows.local_blocks == 2 && c.min_blocks == 4 &&
	     c.schedule.stride == 16 && c.schedule.lead == 1 &&
	     c.schedule.queries == 1 && c.schedule.num_layers == LAYERS &&
	     c.budget.block_size == BLOCK && c.pooling == UCM_REPR_MEAN);
	c = parsed("GSA");
	must(c.budget.ratio == .3 && c.budget.windows.initial_blocks == 2 &&
	     c.budget.windows.local_blocks == 4 && c.schedule.stride == 1 &&
	     c.schedule.lead == 1 && c.prefetch_enabled &&
	     c.prefetch_ahead == 2 && c.prefetch_workers == 4 &&
	     c.score_weight == .7 && c.recency_weight == .3);
	c = parsed("GSAOnDevice");
	must(c.budget.budget_tokens == 4096 && c.hash_bits == 256 &&
	     c.budget.windows.sink_tokens == 64 &&
	     c.budget.windows.recent_tokens == 512 &&
	     c.hash_reduction_heads == 2 && c.schedule.lead == 0 &&
	     c.schedule.stride == 1);
	c = parsed("KVStarMultiStep");
	must(c.schedule.stride == 8 && c.schedule.lead == 9 &&
	     c.schedule.queries == 8 && c.budget.ratio == .3 &&
	     c.budget.windows.initial_blocks == 2 &&
	     c.budget.windows.local_blocks == 4 && c.kept_channels == .5 &&
	     c.merged_tokens == 4);
	c = parsed("Blend");
	must(c.num_compute == 0 && c.hkvd_threshold == .1 &&
	     c.chunk_tokens == 64 && c.min_match_ratio == .8 &&
	     c.recompute_boundary == 2 && c.position_correction &&
	     c.rope_theta == 10000);
	c = parsed("ReRoPE");
	must(c.rerope_window == 32768 && c.training_length == 32768);
}

/* ---- the same in words and as a dictionary ---- */

/* Examples of UCM's documents, each beside its words. */
static const struct {
	const char *json, *words;
} same[] = {
	{ "{\"ESA\": {\"init_window_sz\": 1, \"sparse_ratio\": 0.3,"
	  " \"retrieval_stride\": 16}}", "ESA" },
	{ " {\"ucm_sparse_method\": \"GSA\", \"ucm_sparse_config\":"
	  " {\"GSA\": {\"sparse_ratio\": 0.25, \"prefetch_workers\": 2}},"
	  " \"ucm_connectors\": []}",
	  "GSA:topk_ratio=0.25,prefetch_workers=2" },
	{ "{\"sparse_type\": \"GSA\", \"GSA\": {\"topk_ratio\": 0.3,"
	  " \"prefetch_enabled\": false, \"prefetch_ahead\": 1}}",
	  "GSA:prefetch_enabled=no,prefetch_ahead=1" },
	{ "{\"ucm_sparse_config\": {\"ESA\": {\"retrieval_stride\": 4},"
	  " \"GSA\": {\"topk_ratio\": 0.5}, \"sparse_type\": \"ESA\"}}",
	  "ESA:retrieval_stride=4" },
	{ "{\"sparse_type\": \"GSAOnDevice\", \"GSAOnDevice\":"
	  " {\"hash_topk_tokens\": 2048, \"sink_token\": 32,"
	  " \"recent_token\": 256, \"hash_rollback_layers\": [0, 1],"
	  " \"hash_skip_layers\": [3, 5]}}",
	  "GSAOnDevice:topk_tokens=2048,sink_token=32,recent_token=256,"
	  "hash_rollback_layers=0-1,hash_skip_layers=5+3" },
	{ "{\"sparse_type\": \"KVStarMultiStep\", \"KVStarMultiStep\":"
	  " {\"retrieval_stride\": 16, \"sparse_ratio\": 0.2,"
	  " \"blk_repre_dim_prune_ratio\": 0.7}}",
	  "KVStar:retrieval_stride=16,sparse_ratio=0.2,"
	  "blk_repre_dim_prune_ratio=0.7" },
	{ "{\"sparse_type\": \"Blend\", \"Blend\": {\"compute_meta\":"
	  " {\"model.layers.15.self_attn\": {\"ratio\": 0.05},"
	  " \"model.layers.0.self_attn\": {}}}}",
	  "Blend:compute_meta=0:0.1+15:0.05" },
	{ "{\"ReRoPE\": {\"REROPE_WINDOW\": 512, \"TRAINING_LENGTH\": 4096}}",
	  "ReRoPE:rerope_window=512,training_length=4096" },
};

UNIT_TEST(a_dictionary_says_what_words_say, .rows = NUM_ROWS(same))
{
	struct ucm_sparse_config a = parsed(same[_i].json);
	struct ucm_sparse_config b = parsed(same[_i].words);

	ck_assert_mem_eq(&a, &b, sizeof(a));
}

UNIT_TEST(values_arrive)
{
	struct ucm_sparse_config c = parsed("KVStar:retrieval_stride=3");

	must(c.schedule.stride == 3 && c.schedule.lead == 4 &&
	     c.schedule.queries == 3);
	c = parsed("ESA:pooling=l2,retrieval_lead=15");
	must(c.pooling == UCM_REPR_NORMED && c.schedule.lead == 15);
	c = parsed("GSAOnDevice:hash_rollback_layers=0-2,"
		   "hash_skip_layers=9+31");
	must(c.schedule.dense.bits[0] == 7 &&
	     c.schedule.reuse.bits[0] == (1ull << 9 | 1ull << 31));
	c = parsed("Blend:compute_meta=3+4:1");
	must(c.num_compute == 2 && c.compute[0].layer == 3 &&
	     c.compute[0].ratio == .1 && c.compute[1].layer == 4 &&
	     c.compute[1].ratio == 1);
}

/* ---- what is refused ---- */

static const struct {
	const char *text;
	int err;
	const char *word;
} wrong[] = {
	{ "", -ENOENT, "method ''" },
	{ "Quest", -ENOENT, "method 'Quest': there are ESA" },
	{ "ESA:", -EINVAL, "'': not key=value" },
	{ "ESA:sparse_ratio", -EINVAL, "'sparse_ratio': not key=value" },
	{ "ESA:topk_ratio=.3", -ENOENT, "key 'topk_ratio': ESA has none" },
	{ "ESA:sparse_ratio=1.5", -EINVAL, "sparse_ratio '1.5'" },
	{ "ESA:sparse_ratio=nan", -EINVAL, "sparse_ratio 'nan'" },
	{ "ESA:sparse_ratio=", -EINVAL, "sparse_ratio ''" },
	{ "ESA:retrieval_stride=0", -EINVAL, "retrieval_stride '0'" },
	{ "ESA:retrieval_stride=-1", -EINVAL, "retrieval_stride '-1'" },
	{ "ESA:retrieval_stride=2,retrieval_lead=5", -EINVAL, "lead 5" },
	{ "ESA:pooling=median", -EINVAL, "pooling 'median'" },
	{ "GSA:prefetch_enabled=maybe", -EINVAL, "prefetch_enabled 'maybe'" },
	{ "GSA:prefetch_ahead=3", -EINVAL, "prefetch_ahead '3'" },
	{ "GSAOnDevice:hash_topk_tokens=500", -EINVAL, "hash_topk_tokens 500" },
	{ "GSAOnDevice:hash_rollback_layers=2-1", -EINVAL,
	  "hash_rollback_layers '2-1'" },
	{ "GSAOnDevice:hash_rollback_layers=40", -EINVAL, "dense: layer 40" },
	{ "GSAOnDevice:hash_skip_layers=0", -EINVAL, "reuse: layer 0" },
	{ "KVStar:blk_repre_inner_token_merge=3", -EINVAL,
	  "blk_repre_inner_token_merge 3" },
	{ "KVStar:blk_repre_dim_prune_ratio=0", -EINVAL,
	  "blk_repre_dim_prune_ratio '0'" },
	{ "Blend:compute_meta=3:2", -EINVAL, "compute_meta '3:2'" },
	{ "Blend:compute_meta=3+3", -EINVAL, "compute_meta '3+3'" },
	{ "Blend:compute_meta=99", -EINVAL, "compute_meta: there are 32" },
	{ "{", -EINVAL, "line 1" },
	{ "{}", -EINVAL, "sparse_type: not given" },
	{ "{\"ESA\": {}, \"GSA\": {}}", -EINVAL,
	  "sparse_type: not given, and there are 2" },
	{ "{\"ESA\": {}, \"ESA\": {}}", -EINVAL, "line 1" },
	{ "{\"ESA\": 3}", -EINVAL, "ESA: not a dictionary" },
	{ "{\"sparse_type\": 3}", -EINVAL, "sparse_type: not a string" },
	{ "{\"sparse_type\": \"X\"}", -ENOENT, "method 'X'" },
	{ "{\"Quest\": {}}", -ENOENT, "method 'Quest'" },
	{ "{\"ucm_sparse_config\": 1}", -EINVAL, "ucm_sparse_config" },
	{ "{\"ESA\": {\"x\": 1}}", -ENOENT, "key 'x'" },
	{ "{\"ESA\": {\"sparse_ratio\": null}}", -EINVAL, "sparse_ratio:" },
	{ "{\"ESA\": {\"sparse_ratio\": true}}", -EINVAL,
	  "sparse_ratio 'true'" },
	{ "{\"ESA\": {\"retrieval_stride\": 1.5}}", -EINVAL,
	  "retrieval_stride '1.5'" },
	{ "{\"GSAOnDevice\": {\"hash_skip_layers\": [\"a\"]}}", -EINVAL,
	  "hash_skip_layers:" },
	{ "{\"Blend\": {\"compute_meta\": {\"model\": {}}}}", -EINVAL,
	  "compute_meta: 'model'" },
	{ "{\"Blend\": {\"compute_meta\": {\"layers.1x\": {}}}}", -EINVAL,
	  "compute_meta: 'layers.1x'" },
	{ "{\"Blend\": {\"compute_meta\": {\"1\": {\"ratio\": \"a\"}}}}",
	  -EINVAL, "compute_meta:" },
};

UNIT_TEST(a_wrong_configuration_is_refused_by_name, .rows = NUM_ROWS(wrong))
{
	struct ucm_sparse_config out, before;
	struct ucm_error error = { "" };

	memset(&out, 0x5a, sizeof(out));
	before = out;
	ck_assert_int_eq(ucm_sparse_parse(wrong[_i].text,
					  strlen(wrong[_i].text), BLOCK,
					  LAYERS, &out, &error), wrong[_i].err);
	ck_assert_msg(!strncmp(error.text, wrong[_i].word,
			       strlen(wrong[_i].word)), "%s, not: %s",
		      error.text, wrong[_i].word);
	ck_assert_mem_eq(&out, &before, sizeof(out));
}

UNIT_TEST(wrong_arguments_are_refused_by_name)
{
	const struct ucm_sparse_method *esa = ucm_sparse_find("ESA");
	struct ucm_sparse_config config = parsed("ESA"), before = config;
	struct ucm_error error;

	assert_einval(ucm_sparse_defaults(NULL, 1, 1, &config, &error), error,
		      "method");
	assert_einval(ucm_sparse_defaults(esa, 0, 1, &config, &error), error,
		      "block_size 0");
	assert_einval(ucm_sparse_defaults(esa, 1, 257, &config, &error), error,
		      "num_layers 257");
	assert_einval(ucm_sparse_defaults(esa, 1, 1, NULL, &error), error,
		      "out");
	assert_einval(ucm_sparse_set(NULL, "a", "b", &error), error, "config");
	assert_einval(ucm_sparse_set(&config, NULL, "b", &error), error, "key");
	assert_einval(ucm_sparse_set(&config, "a", NULL, &error), error,
		      "value");
	ck_assert_int_eq(ucm_sparse_set(&config, "a", "b", &error), -ENOENT);
	assert_einval(ucm_sparse_parse(NULL, 0, 1, 1, &config, &error), error,
		      "text");
	assert_einval(ucm_sparse_parse("ESA\0", 4, 1, 1, &config, &error),
		      error, "text has a NUL");
	assert_einval(ucm_sparse_parse("ESA", 3, 1, 1, NULL, &error), error,
		      "out");
	ck_assert_mem_eq(&config, &before, sizeof(config));
	config.method = UCM_METHODS;
	assert_einval(ucm_sparse_check(&config, &error), error,
		      "config: method 6");
}

/* ---- requests ---- */

UNIT_TEST(a_request_goes_from_its_prompt_to_its_end)
{
	const struct ucm_sparse_config config =
		parsed("ESA:retrieval_stride=4,sparse_ratio=0.5");
	struct ucm_sparse_request request = { .state = UCM_REQUEST_NONE };
	struct ucm_step plan;
	uint32_t done = 9;

	must(!ucm_sparse_begin(&request, &config, 10 * BLOCK + 3, NULL));
	must(!request.dense && request.budget.num_blocks == 11);
	must(!ucm_sparse_prefill(&request, 100, &done, NULL) && !done);
	must(!ucm_sparse_prefill(&request, 63, &done, NULL) && done);
	must(!ucm_sparse_layer(&request, 0, &plan, NULL));
	must(plan.end & UCM_DO_SUBMIT && plan.end & UCM_DO_COLLECT);
	for (uint64_t step = 1; step <= 13; step++) {
		must(!ucm_sparse_step(&request, 1, NULL));
		must(!ucm_sparse_layer(&request, 3, &plan, NULL));
		must(request.step == step &&
		     !!(plan.begin & UCM_DO_SUBMIT) == (step % 4 == 0));
	}
	/* 13 steps of 11 blocks: 1 + 2 windows and half of 8 */
	ck_assert_uint_eq(request.blocks_in_all, 13 * 11);
	ck_assert_uint_eq(request.blocks_attended, 13 * 7);
	must(!ucm_sparse_step(&request, 1, NULL));
	ck_assert_uint_eq(request.budget.num_blocks, 12); /* 177 tokens */
	must(!ucm_sparse_finish(&request, NULL));
	must(request.state == UCM_REQUEST_NONE);
	must(!ucm_sparse_begin(&request, &config, 1, NULL));
	ucm_sparse_abort(&request);
	must(!ucm_sparse_begin(&request, &config, 1, NULL));
}

UNIT_TEST(a_short_request_stays_dense_but_keeps_what_it_needs)
{
	const struct ucm_sparse_config config = parsed("ESA");
	struct ucm_sparse_request request = { .state = UCM_REQUEST_NONE };
	struct ucm_step plan;
	uint32_t done;

	must(!ucm_sparse_begin(&request, &config, 3 * BLOCK, NULL));
	must(request.dense);
	must(!ucm_sparse_prefill(&request, 3 * BLOCK, &done, NULL));
	must(!ucm_sparse_layer(&request, 0, &plan, NULL));
	must(plan.role == UCM_LAYER_DENSE && plan.end == UCM_DO_BUILD);
	must(!ucm_sparse_step(&request, 1, NULL));
	must(!ucm_sparse_layer(&request, 0, &plan, NULL));
	must(!plan.begin && plan.end == UCM_DO_BUILD);
	must(request.blocks_attended == request.blocks_in_all);
}

UNIT_TEST(on_the_device_a_request_becomes_sparse_when_it_is_long_enough)
{
	const struct ucm_sparse_config config =
		parsed("GSAOnDevice:hash_topk_tokens=64,sink_token=16,"
		       "recent_token=16");
	struct ucm_sparse_request request = { .state = UCM_REQUEST_NONE };
	struct ucm_step plan;
	uint32_t done;

	must(!ucm_sparse_begin(&request, &config, 4 * BLOCK, NULL));
	must(!ucm_sparse_prefill(&request, 4 * BLOCK, &done, NULL));
	must(request.dense);
	must(!ucm_sparse_step(&request, 1, NULL));
	must(!ucm_sparse_layer(&request, 0, &plan, NULL));
	must(!request.dense && plan.begin & UCM_DO_SELECT);
}

UNIT_TEST(methods_that_choose_no_blocks_do_nothing_at_a_step)
{
	const struct ucm_sparse_config config = parsed("Blend");
	struct ucm_sparse_request request = { .state = UCM_REQUEST_NONE };
	struct ucm_step plan;
	uint32_t done;

	must(!ucm_sparse_begin(&request, &config, 1000, NULL));
	must(!ucm_sparse_prefill(&request, 1000, &done, NULL));
	must(!ucm_sparse_layer(&request, 0, &plan, NULL));
	must(plan.role == UCM_LAYER_DENSE && !plan.begin && !plan.end);
}

UNIT_TEST(slots_are_those_of_the_choice_and_of_what_is_generated)
{
	const struct ucm_sparse_config config = parsed("ESA:sparse_ratio=0.5");
	uint32_t slots;

	/* 11 blocks, of which 1 + 2 + 4; and 2 more */
	must(!ucm_sparse_slots(&config, 10 * BLOCK + 3, 2 * BLOCK, &slots,
			       NULL));
	ck_assert_uint_eq(slots, 9);
	must(!ucm_sparse_slots(&config, 3 * BLOCK, BLOCK, &slots, NULL));
	ck_assert_uint_eq(slots, 4);
}

UNIT_TEST(calls_out_of_order_are_refused_and_change_nothing)
{
	const struct ucm_sparse_config config = parsed("ESA");
	struct ucm_sparse_request request = { .state = UCM_REQUEST_NONE },
				  before;
	struct ucm_error error;
	struct ucm_step plan;
	uint32_t done = 9, slots = 9;

	assert_einval(ucm_sparse_step(&request, 1, &error), error, "request");
	assert_einval(ucm_sparse_prefill(&request, 1, &done, &error), error,
		      "request");
	assert_einval(ucm_sparse_finish(&request, &error), error, "request");
	assert_einval(ucm_sparse_begin(&request, &config, 0, &error), error,
		      "prompt_tokens 0");
	assert_einval(ucm_sparse_begin(&request, NULL, 1, &error), error,
		      "config");
	must(!ucm_sparse_begin(&request, &config, 10, NULL));
	before = request;
	assert_einval(ucm_sparse_begin(&request, &config, 10, &error), error,
		      "request: there is one");
	assert_einval(ucm_sparse_step(&request, 1, &error), error, "request");
	assert_einval(ucm_sparse_layer(&request, 0, &plan, &error), error,
		      "request");
	assert_einval(ucm_sparse_prefill(&request, 0, &done, &error), error,
		      "tokens 0");
	assert_einval(ucm_sparse_prefill(&request, 11, &done, &error), error,
		      "tokens 11");
	assert_einval(ucm_sparse_prefill(&request, 1, NULL, &error), error,
		      "done_out");
	ck_assert_mem_eq(&request, &before, sizeof(request));
	must(done == 9);
	assert_einval(ucm_sparse_slots(&config, 0, 1, &slots, &error), error,
		      "prompt_tokens 0");
	assert_einval(ucm_sparse_slots(&config, 1, UINT32_MAX, &slots, &error),
		      error, "prompt_tokens 1 + 4294967295");
	assert_einval(ucm_sparse_slots(&config, 1, 1, NULL, &error), error,
		      "out");
	must(slots == 9);
}

/* The configuration is the caller's, who may spoil it meanwhile. */
UNIT_TEST(a_step_that_is_refused_changes_nothing)
{
	struct ucm_sparse_config config = parsed("GSA");
	struct ucm_sparse_request request = { .state = UCM_REQUEST_NONE },
				  before;
	struct ucm_error error;
	uint32_t done;

	must(!ucm_sparse_begin(&request, &config, 10 * BLOCK, NULL));
	must(!ucm_sparse_prefill(&request, 10 * BLOCK, &done, NULL));
	before = request;
	config.budget.block_size = 0;
	assert_einval(ucm_sparse_step(&request, 1, &error), error,
		      "block_size");
	ck_assert_mem_eq(&request, &before, sizeof(request));
	assert_einval(ucm_sparse_step(&request, UINT32_MAX, &error), error,
		      "tokens 4294967295");
	ck_assert_mem_eq(&request, &before, sizeof(request));
	config.budget.block_size = BLOCK;
	must(!ucm_sparse_step(&request, 1, NULL));
	must(request.tokens == 10 * BLOCK + 1 && request.step == 1);
}
