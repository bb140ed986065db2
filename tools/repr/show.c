/* SPDX-License-Identifier: Apache-2.0 */
/* show.c - what a space of representations holds, for ucm repr
 * stat. */
#include <config.h>

#include "tools/repr/repr.h"

#include <inttypes.h>
#include <stdio.h>

#include "fs/repr/kinds.h"
#include "hashing/digest.h"
#include "tools/lib/text.h"

#define HEX_MAX (2 * UCM_SHA256_BYTES + 1)

static const char *form_name(const struct ucm_code_spec *spec)
{
	return spec->form == UCM_CODE_COUNTS ? "counts" : "tokens";
}

/* The digest of a space; false: it has none. */
static bool digest_text(const struct ucm_repr_space *space, char hex[HEX_MAX])
{
	const uint8_t *digest = space->params + UCM_REPR_DIGEST_AT;
	uint8_t any = 0;

	for (unsigned i = 0; i < UCM_SHA256_BYTES; i++) {
		snprintf(hex + 2 * (size_t)i, 3, "%02x", digest[i]);
		any |= digest[i];
	}
	return any;
}

/* ---- text ---- */

static void print_codes(const struct ucm_repr_space *space,
			const struct ucm_code_spec *spec)
{
	char hex[HEX_MAX];

	printf("  codes   %s, %" PRIu32 " bits", form_name(spec), spec->bits);
	if (spec->rope_dim)
		printf(" and %" PRIu32 " of the last %" PRIu32 " channels",
		       spec->rope_bits, spec->rope_dim);
	printf(", seed %" PRIu64 "%s\n", spec->seed,
	       spec->norms ? ", norms" : "");
	if (digest_text(space, hex))
		printf("  centers %s\n", hex);
}

static void print_channels(const struct ucm_repr_space *space,
			   const struct ucm_star_spec *spec)
{
	char hex[HEX_MAX];

	printf("  merged  %" PRIu32 " tokens, %" PRIu32 " of %" PRIu32
	       " channels\n", spec->merge_tokens, spec->kept, spec->head_dim);
	if (digest_text(space, hex))
		printf("  kept    %s\n", hex);
}

void ucm_repr_print(const char *name, const struct ucm_repr_space *space)
{
	struct ucm_code_spec codes;
	struct ucm_star_spec star;
	bool is_codes = !ucm_repr_space_codes(space, &codes, NULL);

	printf("space %s:\n"
	       "  kind    %s%s%s\n"
	       "  blocks  %" PRIu32 " layers, %" PRIu32 " tokens\n"
	       "  keys    %" PRIu32 " heads of %" PRIu32 "\n",
	       name, ucm_repr_kind_name(space->spec.kind),
	       is_codes ? "" : ", ",
	       is_codes ? "" : ucm_dtype_name(space->spec.dtype),
	       space->geometry.num_layers, space->geometry.block_size,
	       space->spec.num_heads, space->spec.head_dim);
	if (is_codes)
		print_codes(space, &codes);
	else if (!ucm_repr_space_channels(space, &star, NULL))
		print_channels(space, &star);
	printf("  layer   %" PRIu32 " bytes\n", space->geometry.k_bytes);
}

/* ---- JSON ---- */

static json_t *codes_json(const struct ucm_repr_space *space,
			  const struct ucm_code_spec *spec)
{
	char hex[HEX_MAX];

	return json_pack("{ss sI sI sI so sb so}", "form", form_name(spec),
			 "bits", (json_int_t)spec->bits, "rope_dim",
			 (json_int_t)spec->rope_dim, "rope_bits",
			 (json_int_t)spec->rope_bits, "seed",
			 ucm_json_number(spec->seed), "norms", (int)spec->norms,
			 "centers", digest_text(space, hex) ? json_string(hex)
							   : json_null());
}

static json_t *channels_json(const struct ucm_repr_space *space,
			     const struct ucm_star_spec *spec)
{
	char hex[HEX_MAX];

	return json_pack("{sI sI so}", "merge_tokens",
			 (json_int_t)spec->merge_tokens, "kept",
			 (json_int_t)spec->kept, "channels",
			 digest_text(space, hex) ? json_string(hex)
						: json_null());
}

json_t *ucm_repr_json(const char *name, const struct ucm_repr_space *space)
{
	const struct ucm_geometry *geometry = &space->geometry;
	struct ucm_code_spec codes;
	struct ucm_star_spec star;
	json_t *out = json_pack(
		"{so ss ss sI sI sI sI sI}", "space", ucm_json_text(name),
		"kind", ucm_repr_kind_name(space->spec.kind), "dtype",
		ucm_dtype_name(space->spec.dtype), "num_heads",
		(json_int_t)space->spec.num_heads, "head_dim",
		(json_int_t)space->spec.head_dim, "block_size",
		(json_int_t)geometry->block_size, "num_layers",
		(json_int_t)geometry->num_layers, "layer_bytes",
		(json_int_t)geometry->k_bytes);

	if (!ucm_repr_space_codes(space, &codes, NULL))
		json_object_set_new(out, "codes", codes_json(space, &codes));
	else if (!ucm_repr_space_channels(space, &star, NULL))
		json_object_set_new(out, "channels",
				    channels_json(space, &star));
	return out;
}
