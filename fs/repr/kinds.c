/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinds.c - the kinds of spaces of representations: their names, and what
 * params say.
 *
 * A kind is a row in kinds[]: it says what of the other fields is right. Those of
 * enum ucm_repr_kind have nothing to say in params. Codes and merged channels say
 * there all that it takes to make them again, but for what a model has many of,
 * the centers of keys and the channels that are kept: of those there is a
 * digest, so that whoever comes with others is refused.
 *
 * A space has one right form: what is not used is zero, and channels are said
 * only where some are left out.
 */
#include <config.h>

#include "fs/repr/kinds.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/error.h"
#include "fs/repr/shape.h"
#include "hashing/digest.h"

/* How W follows from the seed (code_matrix.c); another way is another number. */
#define MATRIX_PHILOX_GRAM_SCHMIDT 1u

struct params_of_codes {
	uint32_t form;
	uint32_t bits;
	uint32_t rope_dim;
	uint32_t rope_bits;
	uint64_t seed;
	uint32_t norms;
	uint32_t matrix;
	uint8_t centers[UCM_SHA256_BYTES]; /* SHA-256; zero: there are none */
};
static_assert(sizeof(struct params_of_codes) == UCM_REPR_PARAMS_BYTES,
	      "codes");
static_assert(offsetof(struct params_of_codes, centers) == UCM_REPR_DIGEST_AT,
	      "centers");

struct params_of_channels {
	uint32_t merge_tokens;
	uint32_t kept;
	uint8_t zero[24];
	uint8_t channels[UCM_SHA256_BYTES]; /* SHA-256; zero: all are kept */
};
static_assert(sizeof(struct params_of_channels) == UCM_REPR_PARAMS_BYTES,
	      "channels");
static_assert(offsetof(struct params_of_channels, channels) ==
		      UCM_REPR_DIGEST_AT,
	      "channels");

static bool is_zero(const uint8_t *bytes, size_t len)
{
	uint8_t any = 0;

	for (size_t i = 0; i < len; i++)
		any |= bytes[i];
	return !any;
}

/* ---- what all have ---- */

/* A layer of so many bytes. */
static int check_bytes(const struct ucm_repr_space *space, size_t bytes,
		       struct ucm_error *error)
{
	if (space->geometry.k_bytes == bytes)
		return 0;
	return ucm_error_set(error, -EINVAL, "k_bytes %" PRIu32
			     ": must be %zu", space->geometry.k_bytes, bytes);
}

/* ---- enum ucm_repr_kind ---- */

static int check_plain(const struct ucm_repr_space *space,
		       struct ucm_error *error)
{
	struct ucm_repr_shape shape;
	int err = ucm_repr_shape(&space->spec, &shape, error);

	if (!err)
		err = check_bytes(space, shape.bytes, error);
	if (!err && !is_zero(space->params, sizeof(space->params)))
		err = ucm_error_set(error, -EINVAL, "params: not zero");
	return err;
}

/* ---- codes ---- */

static struct ucm_code_spec codes_of(const struct ucm_repr_space *space)
{
	struct params_of_codes params;

	memcpy(&params, space->params, sizeof(params));
	return (struct ucm_code_spec){
		.form = params.form,
		.num_heads = space->spec.num_heads,
		.head_dim = space->spec.head_dim,
		.rope_dim = params.rope_dim,
		.bits = params.bits,
		.rope_bits = params.rope_bits,
		.block_size = space->spec.block_size,
		.norms = params.norms,
		.seed = params.seed,
	};
}

static int check_codes(const struct ucm_repr_space *space,
		       struct ucm_error *error)
{
	const struct ucm_code_spec spec = codes_of(space);
	struct params_of_codes params;
	struct ucm_code_shape shape;
	int err = 0;

	memcpy(&params, space->params, sizeof(params));
	if (params.matrix != MATRIX_PHILOX_GRAM_SCHMIDT)
		return ucm_error_set(error, -EINVAL, "matrix %" PRIu32
				     ": unknown", params.matrix);
	if (space->spec.dtype != UCM_DTYPE_OPAQUE)
		return ucm_error_set(error, -EINVAL, "dtype %" PRIu32
				     ": codes have none", space->spec.dtype);
	err = ucm_code_shape(&spec, &shape, error);
	return err ? err : check_bytes(space, shape.bytes, error);
}

int ucm_repr_params_of_codes(const struct ucm_code_spec *spec,
			     const float *centers, uint32_t num_layers,
			     uint8_t params[UCM_REPR_PARAMS_BYTES],
			     struct ucm_error *error)
{
	size_t num = (size_t)num_layers * spec->num_heads * spec->head_dim;
	struct params_of_codes out = {
		.form = spec->form,
		.bits = spec->bits,
		.rope_dim = spec->rope_dim,
		.rope_bits = spec->rope_bits,
		.seed = spec->seed,
		.norms = spec->norms,
		.matrix = MATRIX_PHILOX_GRAM_SCHMIDT,
	};

	for (size_t i = 0; centers && i < num; i++) {
		if (!isfinite(centers[i]))
			return ucm_error_set(error, -EINVAL, "centers: number "
					     "%zu is not finite", i);
	}
	if (centers && ucm_sha256(centers, num * sizeof(*centers), out.centers))
		return ucm_error_set(error, -EIO, "centers: no SHA-256");
	memcpy(params, &out, sizeof(out));
	return 0;
}

/* ---- merged channels ---- */

static struct ucm_star_spec star_of(const struct ucm_repr_space *space)
{
	struct params_of_channels params;

	memcpy(&params, space->params, sizeof(params));
	return (struct ucm_star_spec){
		.dtype = space->spec.dtype,
		.num_heads = space->spec.num_heads,
		.head_dim = space->spec.head_dim,
		.block_size = space->spec.block_size,
		.merge_tokens = params.merge_tokens,
		.kept = params.kept,
	};
}

static int check_channels(const struct ucm_repr_space *space,
			  struct ucm_error *error)
{
	const struct ucm_star_spec spec = star_of(space);
	struct params_of_channels params;
	struct ucm_star_shape shape;
	int err = ucm_star_shape(&spec, &shape, error);

	if (!err)
		err = check_bytes(space, shape.bytes, error);
	if (err)
		return err;
	memcpy(&params, space->params, sizeof(params));
	if (!is_zero(params.zero, sizeof(params.zero)))
		return ucm_error_set(error, -EINVAL, "params: not zero");
	if (is_zero(params.channels, sizeof(params.channels)) ==
	    (spec.kept == spec.head_dim))
		return 0;
	return ucm_error_set(error, -EINVAL, "channels: %" PRIu32 " of %" PRIu32
			     " are kept, and %s", spec.kept, spec.head_dim,
			     spec.kept == spec.head_dim
				     ? "it is said which"
				     : "it is not said which");
}

int ucm_repr_params_of_channels(const struct ucm_star_spec *spec,
				const uint16_t *channels, uint32_t num_layers,
				uint8_t params[UCM_REPR_PARAMS_BYTES],
				struct ucm_error *error)
{
	struct params_of_channels out = {
		.merge_tokens = spec->merge_tokens,
		.kept = spec->kept,
	};
	struct ucm_star_spec layer = *spec;
	size_t num = (size_t)spec->num_heads * spec->kept;
	int err = 0;

	for (uint32_t i = 0; channels && !err && i < num_layers; i++) {
		layer.channels = channels + i * num;
		err = ucm_star_channels_check(&layer, error);
	}
	if (err)
		return err;
	/* all of them is nothing to be said */
	if (channels && spec->kept < spec->head_dim &&
	    ucm_sha256(channels, num_layers * num * sizeof(*channels),
		       out.channels))
		return ucm_error_set(error, -EIO, "channels: no SHA-256");
	memcpy(params, &out, sizeof(out));
	return 0;
}

/* ---- the table ---- */

static const struct {
	const char *name;
	int (*check)(const struct ucm_repr_space *space,
		     struct ucm_error *error);
} kinds[] = {
	[UCM_REPR_MEAN] = { "mean", check_plain },
	[UCM_REPR_MAX] = { "max", check_plain },
	[UCM_REPR_NORMED] = { "normed", check_plain },
	[UCM_REPR_MINMAX] = { "minmax", check_plain },
	[UCM_REPR_CODES] = { "codes", check_codes },
	[UCM_REPR_CHANNELS] = { "channels", check_channels },
};
#define NUM_KINDS (sizeof(kinds) / sizeof(kinds[0]))

const char *ucm_repr_kind_name(uint32_t kind)
{
	return kind < NUM_KINDS ? kinds[kind].name : NULL;
}

int ucm_repr_kind_parse(const char *name, uint32_t *out)
{
	for (uint32_t i = 0; i < NUM_KINDS; i++) {
		if (kinds[i].name && !strcmp(name, kinds[i].name)) {
			*out = i;
			return 0;
		}
	}
	return -EINVAL;
}

int ucm_repr_kind_check(const struct ucm_repr_space *space,
			struct ucm_error *error)
{
	if (!ucm_repr_kind_name(space->spec.kind))
		return ucm_error_set(error, -EINVAL, "kind %" PRIu32
				     ": unknown", space->spec.kind);
	return kinds[space->spec.kind].check(space, error);
}

/* ---- what a space says ---- */

static int kind_wanted(const struct ucm_repr_space *space, uint32_t kind,
		       struct ucm_error *error)
{
	const char *name = ucm_repr_kind_name(space->spec.kind);

	if (space->spec.kind == kind)
		return 0;
	return ucm_error_set(error, -EINVAL, "kind %s: not %s",
			     name ? name : "unknown",
			     ucm_repr_kind_name(kind));
}

int ucm_repr_space_codes(const struct ucm_repr_space *space,
			struct ucm_code_spec *out, struct ucm_error *error)
{
	int err = kind_wanted(space, UCM_REPR_CODES, error);

	if (!err)
		*out = codes_of(space);
	return err;
}

int ucm_repr_space_channels(const struct ucm_repr_space *space,
			   struct ucm_star_spec *out, struct ucm_error *error)
{
	int err = kind_wanted(space, UCM_REPR_CHANNELS, error);

	if (!err)
		*out = star_of(space);
	return err;
}

/* Are params those with the digest of what the caller has? */
static int side_check(const char *name, const struct ucm_repr_space *space,
		      const uint8_t *params, bool given,
		      struct ucm_error *error)
{
	const uint8_t *have = space->params + UCM_REPR_DIGEST_AT;

	if (!memcmp(have, params + UCM_REPR_DIGEST_AT, UCM_SHA256_BYTES))
		return 0;
	if (is_zero(have, UCM_SHA256_BYTES))
		return ucm_error_set(error, -EINVAL, "%s: the space was made "
				     "without", name);
	return ucm_error_set(error, -EINVAL, "%s: %s", name,
			     given ? "not those that the space was made with"
				   : "the space was made with some");
}

int ucm_repr_space_check_centers(const struct ucm_repr_space *space,
				const float *centers, struct ucm_error *error)
{
	uint8_t params[UCM_REPR_PARAMS_BYTES];
	struct ucm_code_spec spec;
	int err = ucm_repr_space_codes(space, &spec, error);

	if (!err)
		err = ucm_repr_params_of_codes(&spec, centers,
					       space->geometry.num_layers,
					       params, error);
	return err ? err
		   : side_check("centers", space, params, centers, error);
}

int ucm_repr_space_check_channels(const struct ucm_repr_space *space,
				 const uint16_t *channels,
				 struct ucm_error *error)
{
	uint8_t params[UCM_REPR_PARAMS_BYTES];
	struct ucm_star_spec spec;
	int err = ucm_repr_space_channels(space, &spec, error);

	if (!err)
		err = ucm_repr_params_of_channels(&spec, channels,
						  space->geometry.num_layers,
						  params, error);
	return err ? err
		   : side_check("channels", space, params, channels, error);
}
