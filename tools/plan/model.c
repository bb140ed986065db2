/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c - reads a model's config.json; see model.h.
 *
 * Configurations say the same thing under several names, and which layers attend
 * to what in half a dozen ways. A way that is not known is refused where a wrong
 * figure would come of it: the kind of a layer, or a size that is missing.
 */
#include <config.h>

#include "tools/plan/model.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

#define MOST_BYTES ((size_t)16 << 20)
#define MOST_LAYERS 10000

struct config {
	const char *path;
	const json_t *json; /* of the part that makes text */
};

/* ---- values ---- */

static const json_t *get(const struct config *config, const char *name)
{
	const json_t *value = json_object_get(config->json, name);

	return json_is_null(value) ? NULL : value;
}

/* The first of names (up to NULL) that is there; 0: none is. */
static uint64_t number(const struct config *config, const char *const *names)
{
	for (; *names; names++) {
		const json_t *value = get(config, *names);

		if (!value)
			continue;
		if (!json_is_integer(value) || json_integer_value(value) < 0 ||
		    json_integer_value(value) > INT32_MAX)
			ucm_tool_die(UCM_EXIT_FAILED, "%s: %s is not a number of "
				     "tokens or elements", config->path, *names);
		return (uint64_t)json_integer_value(value);
	}
	return 0;
}

#define NUMBER(config, ...)                                                   \
	number(config, (const char *const[]){ __VA_ARGS__, NULL })

static uint64_t needed(const struct config *config, uint64_t value,
		       const char *name)
{
	if (!value)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: no %s", config->path, name);
	return value;
}

static bool is_true(const struct config *config, const char *name)
{
	return json_is_true(get(config, name));
}

/* What says more of layers or tokens than is read here. */
static const char *const unknown_keys[] = {
	"attn_config", "attn_layer_indices", "attn_type_list", "attention_head_dim",
	"block_configs", "compress_ratios", "global_head_dim",
	"hidden_size_per_head", "hybrid_layer_pattern", "linear_attn_config",
	"num_attention_groups", "num_global_key_value_heads", "num_kv_shared_layers",
};

static void refuse_unknown(const struct config *config, const char *type)
{
	size_t num = sizeof(unknown_keys) / sizeof(unknown_keys[0]);

	for (size_t i = 0; i < num; i++) {
		const json_t *value = get(config, unknown_keys[i]);

		if (value && (!json_is_integer(value) || json_integer_value(value)))
			ucm_tool_die(UCM_EXIT_FAILED, "%s: models with %s are not "
				     "supported", config->path, unknown_keys[i]);
	}
	if (!strcmp(type, "minicpm3") || !strncmp(type, "longcat", 7))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: models of type %s are not "
			     "supported", config->path, type);
}

/* ---- layers ---- */

/* Words of layer_types and of what came before it, and letters of Nemotron's. */
static const struct {
	const char *word;
	enum { FULL, WINDOWED, STATE, NOTHING } kind;
} kinds[] = {
	{ "full_attention", FULL },
	{ "attention", FULL },
	{ "global", FULL },
	{ "*", FULL },
	{ "hybrid", FULL }, /* Zamba2: a state beside it is not counted */
	{ "sliding_attention", WINDOWED },
	{ "chunked_attention", WINDOWED },
	{ "local", WINDOWED },
	{ "linear_attention", STATE },
	{ "mamba", STATE },
	{ "mamba2", STATE },
	{ "conv", STATE },
	{ "recurrent", STATE },
	{ "M", STATE },
	{ "-", NOTHING }, /* a layer without attention */
	{ "E", NOTHING },
};

static void add_layer(const struct config *config, struct ucm_model *model,
		      const char *key, const char *word)
{
	unsigned *const of[] = { &model->full, &model->windowed, &model->states };

	for (size_t i = 0; word && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (strcmp(kinds[i].word, word))
			continue;
		if (kinds[i].kind != NOTHING)
			++*of[kinds[i].kind];
		return;
	}
	ucm_tool_die(UCM_EXIT_FAILED, "%s: %s: unknown layer type '%s'",
		     config->path, key, word ? word : "(not text)");
}

/* The kind of each layer by name. False: there is no such key. */
static bool layers_by_words(const struct config *config, const char *key,
			    struct ucm_model *model)
{
	const json_t *list = get(config, key), *word;
	size_t i;

	if (!json_is_array(list))
		return false;
	json_array_foreach(list, i, word)
		add_layer(config, model, key, json_string_value(word));
	return true;
}

static bool layers_by_letters(const struct config *config,
			      struct ucm_model *model)
{
	const char *key = "hybrid_override_pattern";
	const char *letters = json_string_value(get(config, key));

	for (const char *at = letters; at && *at; at++)
		add_layer(config, model, key, (const char[]){ *at, '\0' });
	return letters;
}

/* Layers that attend to all: the one at this place, and one in each further period. */
static unsigned each(uint64_t layers, uint64_t period, uint64_t place)
{
	return place < layers ? (unsigned)((layers - place - 1) / period + 1) : 0;
}

/* Models whose configurations leave out which layers have no window: one in each. */
static uint64_t usual_pattern(const char *type)
{
	static const struct {
		const char *type;
		uint64_t pattern;
	} of[] = { { "gemma2", 2 }, { "gemma3", 6 }, { "gemma3_text", 6 },
		   { "cohere2", 4 } };

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (!strcmp(type, of[i].type))
			return of[i].pattern;
	return 0;
}

static void layers_by_period(const struct config *config, uint64_t layers,
			     const char *type, struct ucm_model *model)
{
	uint64_t states = NUMBER(config, "full_attention_interval");
	uint64_t jamba = NUMBER(config, "attn_layer_period");
	uint64_t pattern = NUMBER(config, "sliding_window_pattern");
	uint64_t windows = pattern ? pattern : usual_pattern(type);
	bool has_window = NUMBER(config, "sliding_window") &&
			  (!get(config, "use_sliding_window") ||
			   is_true(config, "use_sliding_window"));
	unsigned *others = &model->states;

	model->full = (unsigned)layers;
	if (states)
		model->full = each(layers, states, states - 1);
	else if (jamba)
		model->full = each(layers, jamba,
				   NUMBER(config, "attn_layer_offset"));
	else if (has_window)
		model->full = windows ? each(layers, windows, windows - 1) : 0;
	if (!states && !jamba)
		others = &model->windowed;
	*others = (unsigned)layers - model->full;
}

static void read_layers(const struct config *config, const char *type,
			struct ucm_model *model)
{
	uint64_t layers = NUMBER(config, "num_hidden_layers", "n_layer",
				 "n_layers", "num_layers");
	const json_t *list = get(config, "layer_types");

	needed(config, layers, "num_hidden_layers");
	if (layers > MOST_LAYERS)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %llu layers", config->path,
			     (unsigned long long)layers);
	if (list && json_array_size(list) != layers)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: layer_types: %zu of %llu layers",
			     config->path, json_array_size(list),
			     (unsigned long long)layers);
	if (!layers_by_words(config, "layer_types", model) &&
	    !layers_by_words(config, "layers_block_type", model) &&
	    !layers_by_letters(config, model))
		layers_by_period(config, layers, type, model);
	if (model->windowed)
		model->window = needed(config,
				       NUMBER(config, "sliding_window",
					      "attention_chunk_size"),
				       "sliding_window");
}

/* ---- a token ---- */

/* DeepSeek's sparse attention: a key of 8 bits an element, with a scale for each
 * 128 of them (vllm/model_executor/models/deepseek_v2.py). */
static uint64_t index_bytes(const struct config *config)
{
	uint64_t dim = NUMBER(config, "index_head_dim");

	return dim + dim / 128 * 4;
}

static uint64_t kv_heads(const struct config *config, uint64_t heads)
{
	uint64_t num = NUMBER(config, "num_key_value_heads", "num_kv_heads",
			      "multi_query_group_num", "n_head_kv");

	if (is_true(config, "multi_query") &&
	    !is_true(config, "new_decoder_architecture") &&
	    !get(config, "multi_query_group_num"))
		return 1;
	return num ? num : heads;
}

/* Head sizes that transformers' classes have where the file says none. */
static uint64_t head_size(const struct config *config, const char *type,
			  uint64_t heads)
{
	uint64_t size = NUMBER(config, "head_dim", "kv_channels");
	uint64_t hidden = NUMBER(config, "hidden_size", "n_embd", "d_model");

	if (!size && !strncmp(type, "gemma", 5))
		size = 256;
	if (size)
		return size;
	needed(config, hidden, "head_dim or hidden_size");
	if (hidden % heads)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: no head_dim, and hidden_size %llu "
			     "is no multiple of %llu heads", config->path,
			     (unsigned long long)hidden, (unsigned long long)heads);
	return hidden / heads;
}

static void read_token(const struct config *config, const char *type,
		       struct ucm_model *model)
{
	uint64_t latent = NUMBER(config, "kv_lora_rank");
	uint64_t heads = NUMBER(config, "num_attention_heads", "n_head", "n_heads");
	uint64_t v = NUMBER(config, "v_head_dim"), k;

	model->beside = index_bytes(config);
	if (latent) {
		model->elements = latent + NUMBER(config, "qk_rope_head_dim");
		return;
	}
	needed(config, heads, "num_attention_heads");
	k = head_size(config, type, heads);
	model->elements = kv_heads(config, heads) * (k + (v ? v : k));
}

/* ---- the file ---- */

/* Models that see or hear have one that makes text inside. */
static const json_t *text_part(const json_t *json)
{
	static const char *const names[] = { "thinker_config", "text_config",
					     "llm_config", "language_config" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const json_t *part = json_object_get(json, names[i]);

		if (json_is_object(part))
			return text_part(part);
	}
	return json;
}

static json_t *load(const char *path)
{
	_cleanup_free_ char *text = NULL;
	json_error_t where;
	json_t *json;
	size_t len;
	int err = ucm_tool_read(path, MOST_BYTES, &text, &len);

	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", path, strerror(-err));
	json = json_loadb(text, len, 0, &where);
	if (!json_is_object(json))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: not a JSON object: %s", path,
			     json ? "another value" : where.text);
	return json;
}

void ucm_model_read(const char *path, struct ucm_model *out)
{
	_cleanup_free_ char *inside = ucm_tool_format("%s/config.json", path);
	struct config config = { .path = path };
	const char *type;
	struct stat st;
	json_t *json;

	if (!stat(path, &st) && S_ISDIR(st.st_mode))
		config.path = inside;
	json = load(config.path);
	config.json = text_part(json);
	type = ucm_json_get_text(config.json, "model_type");
	*out = (struct ucm_model){ 0 };
	snprintf(out->name, sizeof(out->name), "%s", type ? type : "a model");
	type = type ? type : "";
	refuse_unknown(&config, type);
	read_layers(&config, type, out);
	read_token(&config, type, out);
	needed(&config, out->full + out->windowed, "layer with K and V");
	out->context = NUMBER(&config, "max_position_embeddings", "n_positions",
			      "max_sequence_length", "seq_length");
	json_decref(json);
}

/* ---- sizes ---- */

static uint64_t token_bytes(const struct ucm_model *model, unsigned element)
{
	return model->elements * element + model->beside;
}

uint64_t ucm_model_stored(const struct ucm_model *model, uint64_t tokens,
			  unsigned element)
{
	return (model->full + model->windowed) * token_bytes(model, element) *
	       tokens;
}

double ucm_model_held(const struct ucm_model *model, double tokens,
		      unsigned element)
{
	double window = (double)model->window;
	double seen = tokens < window ? tokens : window;

	return (double)token_bytes(model, element) *
	       (model->full * tokens + model->windowed * seen);
}
