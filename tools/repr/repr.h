/* SPDX-License-Identifier: Apache-2.0 */
/* repr.h - a block's representation, made of the keys in its file, and what
 * spaces of them hold; for ucm repr. */
#ifndef UCM_TOOLS_REPR_REPR_H
#define UCM_TOOLS_REPR_REPR_H

#include <jansson.h>

#include <ucm/repr.h>

/* What spaces have a digest of: the centers of keys, or the channels that are
 * kept, as numbers one after the other; of a whole model. */
struct ucm_repr_side {
	void *bytes; /* NULL: there is none */
	size_t len;
};

struct ucm_repr_encoders;

/* What is to be made; the rest follows from the block. */
struct ucm_repr_method {
	uint32_t kind, dtype;
	/* Of codes: form, bits (0: as many as there are channels), rope_dim,
	 * rope_bits (0: their part of bits), norms and seed. */
	struct ucm_code_spec codes;
	/* Of channels: merge_tokens. How many are kept, side says. */
	struct ucm_star_spec star;
	struct ucm_repr_side side;
	/* Made when codes are made, and kept for the next block; begins as
	 * NULL, and ucm_repr_encoders_free() ends it. */
	struct ucm_repr_encoders **encoders;
};

/*
 * Read the keys of a block that is open (fd, size) and must have that id, and
 * make its representation, layer after layer. 0; -EBADMSG: the block is damaged;
 * -EINVAL: its keys are of no use for this; or -errno. error says what.
 */
int ucm_repr_make(int fd, uint64_t size, const struct ucm_id *id,
		  const struct ucm_repr_method *method, uint8_t *layers,
		  struct ucm_error *error);

/* The block's header alone, and the space that its representation is for. */
int ucm_repr_plan(int fd, uint64_t size, const struct ucm_id *id,
		  const struct ucm_repr_method *method,
		  struct ucm_block *block, struct ucm_repr_space *out,
		  struct ucm_error *error);

/* How those of a space were made: sets all of *out but encoders. side: what there
 * is of centers or channels. -EINVAL: they were made with others. */
int ucm_repr_method_of(const struct ucm_repr_space *space,
		       const struct ucm_repr_side *side,
		       struct ucm_repr_method *out, struct ucm_error *error);

void ucm_repr_encoders_free(struct ucm_repr_encoders *encoders);

/* What a space holds. */
void ucm_repr_print(const char *name, const struct ucm_repr_space *space);
json_t *ucm_repr_json(const char *name, const struct ucm_repr_space *space);

#endif
