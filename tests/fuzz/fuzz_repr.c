/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_repr.c - any text as the manifest of a space of representations: the parser
 * says no, and why, or what it says is consistent with itself and makes a manifest
 * that says the same.
 */
#include <config.h>

#include <ucm/repr.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/require.h"

/* What is said in params is right, and is what a layer has. */
static void check_kind(const struct ucm_repr_space *space)
{
	uint32_t bytes = space->geometry.k_bytes;
	struct ucm_code_spec codes;
	struct ucm_star_spec star;
	int is_codes = !ucm_repr_space_codes(space, &codes, NULL);
	int is_star = !ucm_repr_space_channels(space, &star, NULL);

	REQUIRE((space->spec.kind < UCM_REPR_KINDS) + is_codes + is_star == 1);
	if (is_codes) {
		REQUIRE(ucm_code_bytes(&codes) == bytes);
	} else if (is_star) {
		uint16_t *channels = calloc((size_t)star.num_heads * star.kept,
					    sizeof(*channels));

		if (!channels)
			return;
		for (uint32_t i = 0; i < star.num_heads * star.kept; i++)
			channels[i] = (uint16_t)(i % star.kept);
		star.channels = channels;
		REQUIRE(ucm_star_bytes(&star) == bytes);
		free(channels);
	} else {
		REQUIRE(ucm_repr_bytes(&space->spec) == bytes);
	}
}

static void check_space(const struct ucm_repr_space *space)
{
	const struct ucm_geometry *geometry = &space->geometry;
	char text[UCM_REPR_MANIFEST_MAX];
	struct ucm_repr_space back;
	uint32_t kind;

	REQUIRE(geometry->num_layers >= 1 &&
		geometry->num_layers <= UCM_REPR_LAYERS_MAX);
	REQUIRE(geometry->block_size == space->spec.block_size);
	REQUIRE(geometry->k_bytes && geometry->k_bytes <= UCM_REPR_LAYER_MAX);
	REQUIRE(!geometry->v_bytes && geometry->dtype == UCM_DTYPE_OPAQUE);
	REQUIRE(ucm_repr_kind_name(space->spec.kind));
	REQUIRE(!ucm_repr_kind_parse(ucm_repr_kind_name(space->spec.kind),
				     &kind) && kind == space->spec.kind);
	check_kind(space);
	REQUIRE(!ucm_repr_space_manifest(space, text, NULL));
	REQUIRE(!ucm_repr_space_parse(text, &back, NULL));
	REQUIRE(!memcmp(&back, space, sizeof(back)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ucm_error error = { "" };
	struct ucm_repr_space space;
	char *text = malloc(size + 1);
	int err;

	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	err = ucm_repr_space_parse(text, &space, &error);
	REQUIRE(!err || (err == -EINVAL && error.text[0]));
	if (!err)
		check_space(&space);
	free(text);
	return 0;
}
