/* SPDX-License-Identifier: Apache-2.0 */
/*
 * method.c - six methods by name, and what each is configured by.
 *
 * All that UCM's documents say of keys and defaults is in one table,
 * settings[]: a row for each key of a method. Where these differ, or say
 * nothing, doc/retrieve.md tells whose the value is.
 */
#include <config.h>

#include "sparse/method.h"

#include <ucm/position.h>

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/parse.h"
#include "sparse/spec.h"

static const struct ucm_sparse_method methods[UCM_METHODS] = {
	{ UCM_METHOD_ESA, UCM_KEEPS_REPR, "ESA", "ESA" },
	{ UCM_METHOD_GSA, UCM_KEEPS_REPR, "GSA", "GSA" },
	{ UCM_METHOD_GSA_ON_DEVICE, UCM_KEEPS_CODES, "GSAOnDevice",
	  "GSA On-Device" },
	{ UCM_METHOD_KVSTAR, UCM_KEEPS_CHANNELS, "KVStarMultiStep", "KVStar" },
	{ UCM_METHOD_BLEND, UCM_KEEPS_NOTHING, "Blend", "Blend" },
	{ UCM_METHOD_REROPE, UCM_KEEPS_NOTHING, "ReRoPE", "ReRoPE" },
};

/* ---- keys ---- */

enum value_type {
	VALUE_COUNT,   /* least to most */
	VALUE_NUMBER,  /* the same, with fractions */
	VALUE_SWITCH,  /* yes or no */
	VALUE_POOLING, /* mean, max or l2 */
	VALUE_LAYERS,  /* 0-2+5 */
	VALUE_COMPUTE, /* 0:0.1+15:0.05, Blend's layers and ratios */
};

#define AT(field) offsetof(struct ucm_sparse_config, field)

static const struct setting {
	uint32_t method;
	const char *key;
	const char *text; /* the default; NULL: it is another name for the row
			   * above */
	enum value_type type;
	size_t at; /* in struct ucm_sparse_config */
	double least, most;
} settings[] = {
#define TOKENS_MAX 2147483647.0
#define BLOCKS_MAX 16777216.0
#define METHOD UCM_METHOD_ESA
#define KEY(...) { METHOD, __VA_ARGS__ }
	KEY("sparse_ratio", "0.3", VALUE_NUMBER, AT(budget.ratio), 0, 1),
	KEY("init_window_sz", "1", VALUE_COUNT,
	    AT(budget.windows.initial_blocks), 0, BLOCKS_MAX),
	KEY("local_window_sz", "2", VALUE_COUNT, /* UCM's */
	    AT(budget.windows.local_blocks), 0, BLOCKS_MAX),
	KEY("min_blocks", "4", VALUE_COUNT, AT(min_blocks), 0, /* UCM's */
	    BLOCKS_MAX),
	KEY("retrieval_stride", "16", VALUE_COUNT, AT(schedule.stride), 1,
	    UCM_STRIDE_MAX),
	KEY("retrieval_lead", "1", VALUE_COUNT, AT(schedule.lead), 0, /* ours */
	    2.0 * UCM_STRIDE_MAX),
	KEY("pooling", "mean", VALUE_POOLING, AT(pooling), 0, 0), /* ours */
#undef METHOD
#define METHOD UCM_METHOD_GSA
	KEY("topk_ratio", "0.3", VALUE_NUMBER, AT(budget.ratio), 0, 1),
	KEY("sparse_ratio", NULL, VALUE_NUMBER, AT(budget.ratio), 0, 1),
	KEY("init_window_size", "2", VALUE_COUNT,
	    AT(budget.windows.initial_blocks), 0, BLOCKS_MAX),
	KEY("local_window_size", "4", VALUE_COUNT,
	    AT(budget.windows.local_blocks), 0, BLOCKS_MAX),
	KEY("retrieval_stride", "1", VALUE_COUNT, AT(schedule.stride), 1,
	    UCM_STRIDE_MAX), /* ours */
	KEY("retrieval_lead", "1", VALUE_COUNT, AT(schedule.lead), 0,
	    2.0 * UCM_STRIDE_MAX), /* ours */
	KEY("pooling", "mean", VALUE_POOLING, AT(pooling), 0, 0), /* ours */
	KEY("prefetch_enabled", "true", VALUE_SWITCH, AT(prefetch_enabled), 0,
	    0),
	KEY("prefetch_ahead", "2", VALUE_COUNT, AT(prefetch_ahead), 1, 2),
	KEY("prefetch_workers", "4", VALUE_COUNT, AT(prefetch_workers), 1, 64),
	KEY("score_weight", "0.7", VALUE_NUMBER, AT(score_weight), 0, 1),
	KEY("recency_weight", "0.3", VALUE_NUMBER, AT(recency_weight), 0, 1),
#undef METHOD
#define METHOD UCM_METHOD_GSA_ON_DEVICE
	KEY("hash_topk_tokens", "4096", VALUE_COUNT, AT(budget.budget_tokens),
	    1, TOKENS_MAX),
	KEY("topk_tokens", NULL, VALUE_COUNT, AT(budget.budget_tokens), 1,
	    TOKENS_MAX),
	KEY("sink_token", "64", VALUE_COUNT, AT(budget.windows.sink_tokens), 0,
	    TOKENS_MAX),
	KEY("recent_token", "512", VALUE_COUNT,
	    AT(budget.windows.recent_tokens), 0, TOKENS_MAX),
	KEY("hash_bits", "256", VALUE_COUNT, AT(hash_bits), 8, 4096),
	KEY("hash_reduction_head_num", "2", VALUE_COUNT, /* UCM's */
	    AT(hash_reduction_heads), 1, 65536),
	KEY("hash_rollback_layers", "", VALUE_LAYERS, AT(schedule.dense), 0,
	    0), /* UCM's, as the next */
	KEY("hash_skip_layers", "", VALUE_LAYERS, AT(schedule.reuse), 0, 0),
#undef METHOD
#define METHOD UCM_METHOD_KVSTAR
	KEY("retrieval_stride", "8", VALUE_COUNT, AT(schedule.stride), 1,
	    UCM_STRIDE_MAX),
	KEY("init_window_sz", "2", VALUE_COUNT,
	    AT(budget.windows.initial_blocks), 0, BLOCKS_MAX),
	KEY("local_window_sz", "4", VALUE_COUNT,
	    AT(budget.windows.local_blocks), 0, BLOCKS_MAX),
	KEY("sparse_ratio", "0.3", VALUE_NUMBER, AT(budget.ratio), 0, 1),
	KEY("blk_repre_dim_prune_ratio", "0.5", VALUE_NUMBER,
	    AT(kept_channels), 0x1p-20, 1),
	KEY("blk_repre_inner_token_merge", "4", VALUE_COUNT,
	    AT(merged_tokens), 1, UCM_REPR_BLOCK_SIZE_MAX),
#undef METHOD
#define METHOD UCM_METHOD_BLEND
	KEY("compute_meta", "", VALUE_COMPUTE, AT(compute), 0, 0),
	KEY("hkvd_threshold", "0.1", VALUE_NUMBER, AT(hkvd_threshold), 0,
	    1e30),
	KEY("blend_chunk_size", "64", VALUE_COUNT, AT(chunk_tokens), 1,
	    TOKENS_MAX),
	KEY("min_match_ratio", "0.8", VALUE_NUMBER, AT(min_match_ratio), 0, 1),
	KEY("recompute_boundary", "2", VALUE_COUNT, AT(recompute_boundary), 0,
	    TOKENS_MAX),
	KEY("position_correction", "true", VALUE_SWITCH,
	    AT(position_correction), 0, 0),
	KEY("rope_theta", "10000", VALUE_NUMBER, AT(rope_theta), 1, 1e30),
#undef METHOD
#define METHOD UCM_METHOD_REROPE
	KEY("rerope_window", "32768", VALUE_COUNT, AT(rerope_window), 1,
	    UCM_POSITION_MAX),
	KEY("REROPE_WINDOW", NULL, VALUE_COUNT, AT(rerope_window), 1,
	    UCM_POSITION_MAX),
	KEY("training_length", "32768", VALUE_COUNT, AT(training_length), 2,
	    TOKENS_MAX),
	KEY("TRAINING_LENGTH", NULL, VALUE_COUNT, AT(training_length), 2,
	    TOKENS_MAX),
#undef METHOD
#undef KEY
};

#define NUM_SETTINGS (sizeof(settings) / sizeof(settings[0]))
#define BLEND_RATIO  0.1 /* of a layer of which it is not said */

/* ---- values ---- */

static int wrong_value(const char *key, const char *value, const char *wanted,
		       struct ucm_error *error)
{
	return ucm_error_set(error, -EINVAL, "%s '%s': %s", key, value, wanted);
}

static locale_t c_locale;

static void make_c_locale(void)
{
	c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* In whatever locale our host is: a point is a point. */
static int parse_number(const char *text, double *out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	char *end;
	double value;

	/* no blanks, no hexadecimal, no words such as "nan" */
	if (!*text || text[strspn(text, "0123456789.eE+-")])
		return -EINVAL;
	pthread_once(&once, make_c_locale);
	value = c_locale ? strtod_l(text, &end, c_locale) : strtod(text, &end);
	if (*end || !isfinite(value))
		return -EINVAL;
	*out = value;
	return 0;
}

static int set_count(const struct setting *setting, const char *value,
		     uint32_t *out, struct ucm_error *error)
{
	uint64_t number;

	if (ucm_parse_range(value, (uint64_t)setting->least,
			    (uint64_t)setting->most, &number))
		return ucm_error_set(error, -EINVAL, "%s '%s': a whole number "
				     "from %.0f to %.0f", setting->key, value,
				     setting->least, setting->most);
	*out = (uint32_t)number;
	return 0;
}

static int set_number(const struct setting *setting, const char *value,
		      double *out, struct ucm_error *error)
{
	double number;

	if (parse_number(value, &number) || number < setting->least ||
	    number > setting->most)
		return ucm_error_set(error, -EINVAL, "%s '%s': from %g to %g",
				     setting->key, value, setting->least,
				     setting->most);
	*out = number;
	return 0;
}

static int set_switch(const struct setting *setting, const char *value,
		      uint32_t *out, struct ucm_error *error)
{
	bool yes;

	if (ucm_parse_bool(value, &yes))
		return wrong_value(setting->key, value, "yes or no", error);
	*out = yes;
	return 0;
}

static int set_pooling(const struct setting *setting, const char *value,
		       uint32_t *out, struct ucm_error *error)
{
	static const struct {
		const char *name;
		uint32_t kind;
	} kinds[] = {
		{ "mean", UCM_REPR_MEAN },
		{ "max", UCM_REPR_MAX },
		{ "l2", UCM_REPR_NORMED },
		{ "minmax", UCM_REPR_MINMAX },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!strcmp(kinds[i].name, value)) {
			*out = kinds[i].kind;
			return 0;
		}
	}
	return wrong_value(setting->key, value, "mean, max, l2 or minmax",
			   error);
}

/* Cut the next part off a list with '+' between; NULL: there is none. */
static char *next_part(char **rest)
{
	char *part = *rest, *plus;

	if (!part)
		return NULL;
	plus = strchr(part, '+');
	if (plus)
		*plus = '\0';
	*rest = plus ? plus + 1 : NULL;
	return part;
}

/* "3" or "3-5" */
static int parse_layers(char *part, uint64_t *first, uint64_t *last)
{
	char *dash = strchr(part, '-');

	if (dash)
		*dash = '\0';
	if (ucm_parse_range(part, 0, UCM_LAYERS_MAX - 1, first))
		return -EINVAL;
	*last = *first;
	if (dash && ucm_parse_range(dash + 1, *first, UCM_LAYERS_MAX - 1, last))
		return -EINVAL;
	return 0;
}

static int set_layers(const struct setting *setting, const char *value,
		      char *copy, struct ucm_layers *out,
		      struct ucm_error *error)
{
	struct ucm_layers layers = { { 0 } };
	char *rest = *copy ? copy : NULL, *part;

	while ((part = next_part(&rest))) {
		uint64_t first, last;

		if (parse_layers(part, &first, &last))
			return wrong_value(setting->key, value,
					   "layers, such as 0-2+5", error);
		for (; first <= last; first++)
			layers.bits[first / 64] |= UINT64_C(1) << first % 64;
	}
	*out = layers;
	return 0;
}

/* "15:0.05", or "15" */
static int parse_compute(char *part, struct ucm_compute *out)
{
	char *colon = strchr(part, ':');
	uint64_t layer;

	if (colon)
		*colon = '\0';
	if (ucm_parse_range(part, 0, UCM_LAYERS_MAX - 1, &layer))
		return -EINVAL;
	out->layer = (uint32_t)layer;
	out->ratio = BLEND_RATIO;
	if (!colon)
		return 0;
	if (parse_number(colon + 1, &out->ratio) || out->ratio < 0 ||
	    out->ratio > 1)
		return -EINVAL;
	return 0;
}

static int set_compute(const struct setting *setting, const char *value,
		       char *copy, struct ucm_sparse_config *config,
		       struct ucm_error *error)
{
	struct ucm_compute compute[UCM_COMPUTE_MAX] = { { 0 } };
	char *rest = *copy ? copy : NULL, *part;
	uint32_t num = 0;

	while ((part = next_part(&rest))) {
		if (num == UCM_COMPUTE_MAX)
			return wrong_value(setting->key, value,
					   "more than 64 layers", error);
		if (parse_compute(part, &compute[num]) ||
		    (num && compute[num].layer <= compute[num - 1].layer))
			return wrong_value(setting->key, value,
					   "layers and ratios, ascending, such "
					   "as 0:0.1+15:0.05", error);
		num++;
	}
	memcpy(config->compute, compute, num * sizeof(*compute));
	config->num_compute = num;
	return 0;
}

static int set_list(const struct setting *setting, const char *value,
		    struct ucm_sparse_config *config, void *to,
		    struct ucm_error *error)
{
	char copy[2048];

	if (strlen(value) >= sizeof(copy))
		return wrong_value(setting->key, "...", "too long", error);
	strcpy(copy, value);
	return setting->type == VALUE_LAYERS
		       ? set_layers(setting, value, copy, to, error)
		       : set_compute(setting, value, copy, config, error);
}

static int set_value(struct ucm_sparse_config *config,
		     const struct setting *setting, const char *value,
		     struct ucm_error *error)
{
	void *to = (uint8_t *)config + setting->at;

	switch (setting->type) {
	case VALUE_COUNT: return set_count(setting, value, to, error);
	case VALUE_NUMBER: return set_number(setting, value, to, error);
	case VALUE_SWITCH: return set_switch(setting, value, to, error);
	case VALUE_POOLING: return set_pooling(setting, value, to, error);
	default: return set_list(setting, value, config, to, error);
	}
}

/* ---- configurations ---- */

const struct ucm_sparse_method *ucm_sparse_find(const char *name)
{
	for (size_t i = 0; name && i < UCM_METHODS; i++) {
		if (!strcmp(methods[i].name, name) ||
		    !strcmp(methods[i].alias, name))
			return &methods[i];
	}
	return NULL;
}

const struct ucm_sparse_method *ucm_method_of(uint32_t method)
{
	return method < UCM_METHODS ? &methods[method] : NULL;
}

int ucm_method_find(const char *name, const struct ucm_sparse_method **out,
		    struct ucm_error *error)
{
	*out = ucm_sparse_find(name);
	if (*out)
		return 0;
	return ucm_error_set(error, -ENOENT, "method '%.64s': there are ESA, "
			     "GSA, GSAOnDevice, KVStarMultiStep, Blend and "
			     "ReRoPE", name);
}

/* KVStar's stride says all of its schedule: the queries of a stride's steps,
 * and a stride to retrieve and load. */
static void settle_schedule(struct ucm_sparse_config *config)
{
	if (config->method != UCM_METHOD_KVSTAR)
		return;
	config->schedule.queries = config->schedule.stride;
	config->schedule.lead = config->schedule.stride + 1;
}

int ucm_sparse_defaults(const struct ucm_sparse_method *method,
			uint32_t block_size, uint32_t num_layers,
			struct ucm_sparse_config *out, struct ucm_error *error)
{
	struct ucm_sparse_config config = {
		.budget = { .block_size = block_size },
		.schedule = { .stride = 1, .queries = 1,
			      .num_layers = num_layers },
	};

	if (!method || !out)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     method ? "out" : "method");
	if (ucm_sparse_in_range("block_size", block_size,
				UCM_REPR_BLOCK_SIZE_MAX, error) ||
	    ucm_sparse_in_range("num_layers", num_layers, UCM_LAYERS_MAX,
				error))
		return -EINVAL;
	config.method = method->method;
	for (size_t i = 0; i < NUM_SETTINGS; i++) {
		int err = 0;

		if (settings[i].method == config.method && settings[i].text)
			err = set_value(&config, &settings[i],
					settings[i].text, error);
		if (err)
			return err;
	}
	settle_schedule(&config);
	*out = config;
	return 0;
}

static int config_check(const struct ucm_sparse_config *config,
			struct ucm_error *error)
{
	if (!config)
		return ucm_error_set(error, -EINVAL, "config is NULL");
	if (config->method >= UCM_METHODS)
		return ucm_error_set(error, -EINVAL, "config: method %" PRIu32
				     ": unknown", config->method);
	return 0;
}

int ucm_sparse_set(struct ucm_sparse_config *config, const char *key,
		   const char *value, struct ucm_error *error)
{
	int err = config_check(config, error);

	if (err)
		return err;
	if (!key || !value)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     key ? "value" : "key");
	for (size_t i = 0; i < NUM_SETTINGS; i++) {
		if (settings[i].method != config->method ||
		    strcmp(settings[i].key, key))
			continue;
		err = set_value(config, &settings[i], value, error);
		if (!err)
			settle_schedule(config);
		return err;
	}
	return ucm_error_set(error, -ENOENT, "key '%.64s': %s has none of that "
			     "name", key, methods[config->method].name);
}

/* A budget in tokens must have room for its windows, and for one block more. */
static int tokens_check(const struct ucm_budget_config *budget,
			struct ucm_error *error)
{
	uint64_t windows = (uint64_t)budget->windows.sink_tokens +
			   budget->windows.recent_tokens;

	if (!budget->budget_tokens || budget->budget_tokens > windows)
		return 0;
	return ucm_error_set(error, -EINVAL, "hash_topk_tokens %" PRIu32
			     ": no more than sink_token and recent_token, %"
			     PRIu64, budget->budget_tokens, windows);
}

int ucm_sparse_check(const struct ucm_sparse_config *config,
		     struct ucm_error *error)
{
	struct ucm_budget unused;
	int err = config_check(config, error)
		?: ucm_schedule_check(&config->schedule, error)
		?: ucm_budget_blocks(&config->budget, 1, &unused, error)
		?: tokens_check(&config->budget, error);

	if (err)
		return err;
	if (config->method == UCM_METHOD_KVSTAR &&
	    (!config->merged_tokens ||
	     config->budget.block_size % config->merged_tokens))
		return ucm_error_set(error, -EINVAL,
				     "blk_repre_inner_token_merge %" PRIu32
				     ": blocks have %" PRIu32 " tokens",
				     config->merged_tokens,
				     config->budget.block_size);
	if (config->num_compute > UCM_COMPUTE_MAX ||
	    (config->num_compute &&
	     config->compute[config->num_compute - 1].layer >=
		     config->schedule.num_layers))
		return ucm_error_set(error, -EINVAL, "compute_meta: there are "
				     "%" PRIu32 " layers",
				     config->schedule.num_layers);
	return 0;
}

/* ---- text ---- */

/* "key=value,key=value"; text is cut up. */
static int set_all(struct ucm_sparse_config *config, char *text,
		   struct ucm_error *error)
{
	while (text) {
		char *comma = strchr(text, ','), *equals;
		int err;

		if (comma)
			*comma = '\0';
		equals = strchr(text, '=');
		if (!equals)
			return ucm_error_set(error, -EINVAL,
					     "'%.64s': not key=value", text);
		*equals = '\0';
		err = ucm_sparse_set(config, text, equals + 1, error);
		if (err)
			return err;
		text = comma ? comma + 1 : NULL;
	}
	return 0;
}

static int parse_words(char *text, uint32_t block_size, uint32_t num_layers,
		       struct ucm_sparse_config *out, struct ucm_error *error)
{
	const struct ucm_sparse_method *method;
	char *colon = strchr(text, ':');
	int err;

	if (colon)
		*colon = '\0';
	err = ucm_method_find(text, &method, error)
		?: ucm_sparse_defaults(method, block_size, num_layers, out,
				       error);
	return err || !colon ? err : set_all(out, colon + 1, error);
}

int ucm_sparse_parse(const char *text, size_t len, uint32_t block_size,
		     uint32_t num_layers, struct ucm_sparse_config *out,
		     struct ucm_error *error)
{
	struct ucm_sparse_config config;
	char *copy;
	int err;

	if (!text || !out)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     text ? "out" : "text");
	if (memchr(text, '\0', len))
		return ucm_error_set(error, -EINVAL, "text has a NUL");
	copy = strndup(text, len);
	if (!copy)
		return ucm_error_set(error, -ENOMEM, "text: no memory");
	if (copy[strspn(copy, " \t\r\n")] == '{')
		err = ucm_method_parse_json(text, len, block_size, num_layers,
					    &config, error);
	else
		err = parse_words(copy, block_size, num_layers, &config, error);
	free(copy);
	if (!err)
		err = ucm_sparse_check(&config, error);
	if (!err)
		*out = config;
	return err;
}
