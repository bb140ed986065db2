/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_repr.h - a block's representations, made of the keys in its file, and what
 * their files say; for ucm sparse repr. */
#ifndef UCM_TOOLS_REPR_H
#define UCM_TOOLS_REPR_H

#include <jansson.h>

#include <ucm/repr.h>

/* What files have a digest of: the centers of keys, or the channels that are
 * kept, as numbers one behind the other; of a whole model. */
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

/* A file of representations in memory. */
struct ucm_repr_made {
	struct ucm_repr_file file;
	uint8_t *bytes; /* to free */
	uint64_t len;
};

/*
 * Read the keys of a block that is open (fd, size) and must have that id, and
 * make the file. 0; -EBADMSG: the block is damaged; -EINVAL: its keys are of no
 * use for this; or -errno. error says what.
 */
int ucm_repr_make(int fd, uint64_t size, const struct ucm_id *id,
		  const struct ucm_repr_method *method,
		  struct ucm_repr_made *out, struct ucm_error *error);

/* The block's header alone, and what the file of it would say. */
int ucm_repr_plan(int fd, uint64_t size, const struct ucm_id *id,
		  const struct ucm_repr_method *method,
		  struct ucm_block *block, struct ucm_repr_file *out,
		  struct ucm_error *error);

/* How a file was made: sets all of *out but encoders. side: what there is of
 * centers or channels. -EINVAL: the file was made with others. */
int ucm_repr_method_of(const struct ucm_repr_file *file,
		       const struct ucm_repr_side *side,
		       struct ucm_repr_method *out, struct ucm_error *error);

/*
 * The encoder of a layer, of those for the codes of a file: made when the first
 * is asked for, and again when a file has other codes. side: the centers. NULL:
 * error says why.
 */
const void *ucm_repr_encoder(struct ucm_repr_encoders **encoders,
			     const struct ucm_repr_file *file,
			     const struct ucm_repr_side *side, uint32_t layer,
			     int *err, struct ucm_error *error);
void ucm_repr_encoders_free(struct ucm_repr_encoders *encoders);

/* What the header of a file says. */
void ucm_repr_print(const char *path, const struct ucm_repr_file *file);
json_t *ucm_repr_json(const char *path, const struct ucm_repr_file *file);

#endif
