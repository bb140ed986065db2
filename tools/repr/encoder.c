/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encoder.c - encoders for codes of many blocks, for ucm repr.
 *
 * W takes a while, and is the same for all blocks: so it is kept. Layers differ
 * by their centers alone; without centers one encoder serves them all.
 */
#include <config.h>

#include "tools/repr/repr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/align.h"
#include "common/error.h"
#include "tools/lib/tool.h"

#define ALIGN 64u

struct ucm_repr_encoders {
	struct ucm_code_spec spec;
	uint32_t num; /* one for each layer, or one; 0: they were not made */
	size_t stride;
	uint8_t *memory;
};

void ucm_repr_encoders_free(struct ucm_repr_encoders *encoders)
{
	if (encoders)
		free(encoders->memory);
	free(encoders);
}

/* Sets *out also after an error, to what is no encoder but to be freed. */
static int encoders_make(const struct ucm_code_spec *spec, uint32_t num,
			 const float *centers, struct ucm_repr_encoders **out,
			 struct ucm_error *error)
{
	struct ucm_repr_encoders *encoders = *out =
		ucm_tool_alloc(1, sizeof(*encoders));
	size_t numbers = (size_t)spec->num_heads * spec->head_dim;
	int err = 0;

	encoders->stride = ucm_round_up(ucm_code_encoder_bytes(spec), ALIGN);
	encoders->memory = aligned_alloc(ALIGN, num * encoders->stride);
	if (!encoders->memory)
		return ucm_error_set(error, -ENOMEM, "%s", strerror(ENOMEM));
	for (uint32_t i = 0; !err && i < num; i++)
		err = ucm_code_encoder_make(
			spec, centers ? centers + i * numbers : NULL,
			encoders->memory + i * encoders->stride, error);
	if (!err)
		encoders->num = num;
	encoders->spec = *spec;
	return err;
}

const void *ucm_repr_encoder(struct ucm_repr_encoders **encoders,
			     const struct ucm_repr_space *space,
			     const struct ucm_repr_side *side, uint32_t layer,
			     int *err, struct ucm_error *error)
{
	uint32_t num = side->bytes ? space->geometry.num_layers : 1;
	struct ucm_repr_encoders *have = *encoders;
	struct ucm_code_spec spec;

	*err = ucm_repr_space_codes(space, &spec, error);
	if (*err)
		return NULL;
	if (!have || have->num != num ||
	    memcmp(&have->spec, &spec, sizeof(spec)) != 0) {
		ucm_repr_encoders_free(have);
		*encoders = NULL;
		*err = encoders_make(&spec, num, side->bytes, encoders, error);
		if (*err)
			return NULL;
		have = *encoders;
	}
	return have->memory + (num > 1 ? layer : 0) * have->stride;
}
