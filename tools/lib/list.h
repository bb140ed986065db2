/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.h - the blocks of a space, and the spaces of a mount.
 *
 * The daemon is asked for the ids of a bucket at a time, and then where these blocks
 * are. Blocks that are removed in between are left out.
 */
#ifndef UCM_TOOLS_LIB_LIST_H
#define UCM_TOOLS_LIB_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "tools/lib/args.h"
#include "tools/lib/target.h"

struct ucm_row {
	struct ucm_id id;
	struct ucm_control_place place;
};

struct ucm_list {
	struct ucm_row *rows;
	size_t num, room;
	uint64_t failed; /* blocks that could not be asked about (reported) */
};

/* Add those whose id begins with the hex digits of prefix ("": all) to a zeroed
 * *rows; fini also after an error. progress: NULL, or a line that it clears at the
 * end. 0 or -errno (reported). */
int ucm_list_read(struct ucm_target *target, const char *space,
		  const char *prefix, struct ucm_list *rows,
		  struct ucm_progress *progress);
void ucm_list_fini(struct ucm_list *rows);

enum ucm_list_order {
	UCM_ROWS_NAME,
	UCM_ROWS_SIZE,  /* the largest first */
	UCM_ROWS_AGE,   /* the youngest first */
	UCM_ROWS_USES,  /* the most used first */
	UCM_ROWS_ATIME, /* the one used last first */
};

/* What is equal is sorted by name. */
void ucm_list_sort(struct ucm_list *rows, enum ucm_list_order order);

/* An option: 1 to 32 lowercase hex digits, as a const char *. */
int ucm_list_prefix(const struct ucm_arg *arg, char *value);

/* The names of all spaces, the default one ("") first, then sorted; each with
 * its NUL, num of them; to free. 0 or -errno (reported). */
int ucm_spaces_read(const struct ucm_target *target, char ***out,
		    size_t *num_out);
void ucm_spaces_free(char **spaces, size_t num);

#endif
