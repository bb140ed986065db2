/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shape.h - is a spec of representations, hash codes or merged channels right, and
 * what follows from it: how their bytes are laid out.
 *
 * It holds no state: libucmsparse has a copy.
 */
#ifndef UCM_REPR_SHAPE_H
#define UCM_REPR_SHAPE_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/sparse.h>

/* value is from least to most, and is called name. */
int ucm_repr_check_range(const char *name, uint32_t value, uint32_t least,
			 uint32_t most, struct ucm_error *error);

/* Numbers that follow from a right spec. */
struct ucm_repr_shape {
	uint32_t padded;     /* head_dim, up to a multiple of UCM_REPR_ROW */
	uint32_t width;      /* elements of a head: one row, or two */
	uint32_t item_bytes; /* of an element */
	size_t scales_at;    /* offset of the scales: the rows' bytes */
	size_t bytes;        /* ucm_repr_bytes() */
};

/* out may be NULL. */
int ucm_repr_shape(const struct ucm_repr_spec *spec,
		   struct ucm_repr_shape *out, struct ucm_error *error);

/* Bytes of a key's or query's element; 0: neither may be of that type. */
uint32_t ucm_repr_input_bytes(uint32_t dtype);

/* Has each slot at least these bytes, and is it aligned? */
int ucm_repr_slab_check(const struct ucm_repr_slab *slab, size_t bytes,
			size_t alignment, struct ucm_error *error);

/* ids (NULL: first, first + 1, ...) are all below limit; name is theirs. */
int ucm_repr_ids_check(const char *name, const int32_t *ids, uint64_t first,
		       size_t num, uint64_t limit, struct ucm_error *error);

/* Place i of such a list. */
static inline uint64_t ucm_repr_id(const int32_t *ids, uint64_t first,
				   size_t i)
{
	return ids ? (uint64_t)ids[i] : first + i;
}

/* Where block number i is written. */
static inline uint8_t *ucm_repr_slot(const struct ucm_repr_slab *slab,
				     const int32_t *slots, size_t i)
{
	return (uint8_t *)slab->base +
	       ucm_repr_id(slots, 0, i) * slab->stride_bytes;
}

/* ---- hash codes ---- */

#define UCM_CODE_PARTS 2u  /* nope, rope */
#define UCM_CODE_TILE  8u  /* rows that are interleaved */
#define UCM_CODE_WORD  64u /* bits of a word */

/* Numbers that follow from a right spec. */
struct ucm_code_shape {
	struct {
		uint32_t first, dim; /* channels */
		uint32_t bits;	     /* 0: there is no such part */
		uint32_t words;
		size_t matrix_at; /* in floats, after the encoder's head */
	} parts[UCM_CODE_PARTS];
	uint32_t bits, words; /* of all parts */
	uint32_t rows;	      /* of a head */
	uint32_t tiles;
	size_t head_bytes; /* rows, and then their norms */
	size_t norms_at;   /* offset in these */
	size_t tokens_at;  /* offset in a block's codes */
	size_t bytes;	   /* ucm_code_bytes() */
	size_t centers_at, floats;  /* of the encoder, after its head */
};

int ucm_code_shape(const struct ucm_code_spec *spec,
		   struct ucm_code_shape *out, struct ucm_error *error);

/* ---- merged channels ---- */

/* Groups of tokens that are scored side by side: sparse/kernels_star.h. */
#define UCM_STAR_LANES 16

/* Numbers that follow from a right spec. */
struct ucm_star_shape {
	struct ucm_repr_spec keys; /* what it says of keys */
	uint32_t groups;	   /* of a full block */
	uint32_t lanes;		   /* these, up to whole chunks */
	uint32_t item_bytes;
	size_t scales_at, groups_at; /* offsets in a slot */
	size_t bytes;		     /* ucm_star_bytes() with right channels */
};

/* All but the channels. */
int ucm_star_shape(const struct ucm_star_spec *spec,
		   struct ucm_star_shape *out, struct ucm_error *error);

/* The channels, of a spec that is right but for them. */
int ucm_star_channels_check(const struct ucm_star_spec *spec,
			    struct ucm_error *error);

#endif
