/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_repr.h - a block's representations, made of the keys in its file; for ucm
 * repr. */
#ifndef UCM_TOOLS_REPR_H
#define UCM_TOOLS_REPR_H

#include <ucm/repr.h>

/* What is to be made; the rest follows from the block. */
struct ucm_repr_method {
	uint32_t kind, dtype;
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

#endif
