/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make.c - a block's representation, made of the keys in its file.
 *
 * K planes alone are read, layer by layer, and compared with their checksums
 * where the block has a table of them. Of an encoder for codes W takes a while, and
 * is the same for all blocks: so it is kept. Layers differ by their centers alone;
 * without centers one encoder serves them all.
 */
#include <config.h>

#include "tools/repr/repr.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/align.h"
#include "common/cleanup.h"
#include "common/error.h"
#include "common/osfile.h"
#include "tools/lib/tool.h"

/* ---- encoders ---- */

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

/* The encoder of a layer, of those for the codes of a space: made when the first is
 * asked for, and again when another has other codes. side: the centers. NULL: error
 * says why. */
static const void *find_encoder(struct ucm_repr_encoders **encoders,
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

/* ---- blocks ---- */

struct making {
	int fd;
	const struct ucm_repr_method *method;
	struct ucm_block block;
	struct ucm_repr_space space;
	uint8_t *head;  /* the block's first data_offset bytes */
	uint8_t *plane; /* keys of a layer */
	uint8_t *layers; /* what is made of them, one after the other */
	struct ucm_error *error;
};

static int read_exactly(const struct making *m, void *buffer, size_t len,
			uint64_t offset)
{
	ssize_t got = ucm_os_read_at(m->fd, buffer, len, (off_t)offset);

	if (got < 0)
		return ucm_error_set(m->error, (int)got, "%s",
				     strerror((int)-got));
	if ((size_t)got < len)
		return ucm_error_set(m->error, -EBADMSG, "%s",
				     ucm_fault_text(UCM_FAULT_SHORT));
	return 0;
}

static int read_keys(const struct making *m, uint32_t layer)
{
	const struct ucm_block *block = &m->block;
	uint32_t k_bytes = block->geometry.k_bytes;
	int err = read_exactly(m, m->plane, k_bytes,
			       ucm_block_layer_offset(block, layer));

	if (err || !(block->flags & UCM_BLOCK_HAS_CRC) ||
	    block->form != UCM_FORM_PAGED)
		return err;
	if (ucm_crc32c(0, m->plane, k_bytes) ==
	    ucm_block_plane_crc(block, m->head, 2 * layer))
		return 0;
	return ucm_error_set(m->error, -EBADMSG, "layer %" PRIu32 " K: %s",
			     layer, ucm_fault_text(UCM_FAULT_PLANE));
}

static int build_codes(const struct making *m, uint32_t layer,
		       const struct ucm_keys *keys,
		       const struct ucm_repr_slab *slab,
		       struct ucm_error *error)
{
	int err;
	const void *encoder = find_encoder(m->method->encoders, &m->space,
					   &m->method->side, layer, &err, error);

	return encoder ? ucm_code_build(encoder, keys, NULL, 1,
					m->space.spec.block_size, slab, NULL,
					error)
		       : err;
}

static int build_channels(const struct making *m, uint32_t layer,
			  const struct ucm_keys *keys,
			  const struct ucm_repr_slab *slab,
			  struct ucm_error *error)
{
	const uint16_t *channels = m->method->side.bytes;
	struct ucm_star_spec spec;
	int err = ucm_repr_space_channels(&m->space, &spec, error);

	if (err)
		return err;
	if (channels)
		spec.channels = channels +
				(size_t)layer * spec.num_heads * spec.kept;
	return ucm_star_build(&spec, keys, NULL, 1, spec.block_size, slab, NULL,
			      error);
}

static int build_layer(const struct making *m, uint32_t layer,
		       const struct ucm_keys *keys,
		       const struct ucm_repr_slab *slab,
		       struct ucm_error *error)
{
	const struct ucm_repr_spec *spec = &m->space.spec;

	if (spec->kind == UCM_REPR_CODES)
		return build_codes(m, layer, keys, slab, error);
	if (spec->kind == UCM_REPR_CHANNELS)
		return build_channels(m, layer, keys, slab, error);
	return ucm_repr_build(spec, keys, NULL, 1, spec->block_size, slab,
			      NULL, error);
}

static int make_layer(const struct making *m, uint32_t layer)
{
	const struct ucm_repr_spec *spec = &m->space.spec;
	bool by_head = m->block.geometry.order == UCM_ORDER_HND;
	const struct ucm_keys keys = {
		.base = m->plane,
		.dtype = m->block.geometry.dtype,
		.num_blocks = 1,
		.stride_token = (int64_t)spec->head_dim *
				(by_head ? 1 : spec->num_heads),
		.stride_head = (int64_t)spec->head_dim *
			       (by_head ? spec->block_size : 1),
	};
	const struct ucm_repr_slab slab = {
		.base = m->layers +
			(size_t)layer * m->space.geometry.k_bytes,
		.num_slots = 1,
		.stride_bytes = m->space.geometry.k_bytes,
	};
	struct ucm_error error;
	int err = read_keys(m, layer);

	if (err)
		return err;
	err = build_layer(m, layer, &keys, &slab, &error);
	return err ? ucm_error_set(m->error, err, "layer %" PRIu32 ": %s",
				   layer, error.text)
		   : 0;
}

static int make_layers(const struct making *m)
{
	int err = read_exactly(m, m->head, m->block.data_offset, 0);

	for (uint32_t i = 0; !err && i < m->block.geometry.num_layers; i++)
		err = make_layer(m, i);
	return err;
}

int ucm_repr_make(int fd, uint64_t size, const struct ucm_id *id,
		  const struct ucm_repr_method *method, uint8_t *layers,
		  struct ucm_error *error)
{
	_cleanup_free_ uint8_t *head = NULL, *plane = NULL;
	struct making m = {
		.fd = fd, .method = method, .layers = layers, .error = error,
	};
	int err = ucm_repr_plan(fd, size, id, method, &m.block, &m.space,
				error);

	if (err)
		return err;
	head = m.head = ucm_tool_alloc(m.block.data_offset, 1);
	plane = m.plane = ucm_tool_alloc(m.block.geometry.k_bytes, 1);
	return make_layers(&m);
}
