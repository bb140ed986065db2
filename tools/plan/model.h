/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - what a model's KV cache takes, by its config.json.
 *
 * The keys are those of Hugging Face's configurations, read as vLLM reads them
 * (vllm/config/model.py, transformers_utils/model_arch_config_convertor.py).
 */
#ifndef UCM_TOOLS_PLAN_MODEL_H
#define UCM_TOOLS_PLAN_MODEL_H

#include <stdint.h>

struct ucm_model {
	char name[64];
	/* Layers whose attention sees all tokens, or a window of the last ones; and
	 * those that keep a state whose size does not depend on the text. */
	unsigned full, windowed, states;
	uint64_t window;   /* tokens */
	uint64_t elements; /* of K and V of a token in a layer */
	uint64_t beside;   /* bytes beside them: keys that choose what is attended to */
	uint64_t context;  /* the longest text, in tokens; 0: not known */
};

/* path: the file, or the folder that it is in. Where it cannot be read, or lacks what
 * is needed, the process ends (reported). */
void ucm_model_read(const char *path, struct ucm_model *out);

/* Bytes of a text, of which an element takes "element": what is stored of it, and what
 * of that is read, and held in the engine's memory: of windows the end alone. */
uint64_t ucm_model_stored(const struct ucm_model *model, uint64_t tokens,
			  unsigned element);
double ucm_model_held(const struct ucm_model *model, double tokens,
		      unsigned element);

#endif
