/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ids.h - a list of blocks, one a line: as ucm hash prints it, with and
 * without --paths, or as find(1) and ls(1) print names.
 */
#ifndef UCM_TOOLS_LIB_IDS_H
#define UCM_TOOLS_LIB_IDS_H

#include <stddef.h>

#include <ucm/block.h>

struct ucm_ids {
	struct ucm_id *ids;
	size_t num, room;
};

/* A whole file; "-" is standard input. Into a zeroed *ids, freed by fini also
 * after an error. 0, or -errno and a line on standard error. */
int ucm_ids_read(const char *name, struct ucm_ids *ids);
/* From arguments: 0; -EINVAL: one is no id (reported). */
int ucm_ids_take(struct ucm_ids *ids, int num, char *const *arguments);
void ucm_ids_add(struct ucm_ids *ids, const struct ucm_id *id);
void ucm_ids_fini(struct ucm_ids *ids);

/* An id, an id with ".bin", or either after a path; 0 or -EINVAL. */
int ucm_ids_parse(const char *text, struct ucm_id *out);

#endif
