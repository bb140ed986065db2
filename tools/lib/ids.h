/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ids.h - a list of blocks, one a line: as ucm hash prints it, with and
 * without --paths, or as find(1) and ls(1) print names.
 */
#ifndef UCM_TOOLS_LIB_IDS_H
#define UCM_TOOLS_LIB_IDS_H

#include <stddef.h>

#include <ucm/client.h>

struct ucm_ids {
	struct ucm_id *ids;
	size_t num, room;
};

/* A whole file; "-" is standard input. Into a zeroed *ids. Where it cannot be read the
 * process ends (reported). */
void ucm_ids_read(const char *name, struct ucm_ids *ids);
/* From arguments: 0; -EINVAL: one is no id (reported). */
int ucm_ids_take(struct ucm_ids *ids, int num, char *const *arguments);
void ucm_ids_add(struct ucm_ids *ids, const struct ucm_id *id);
void ucm_ids_fini(struct ucm_ids *ids);

/* The blocks of a space whose ids begin with the byte bucket; what ids had is
 * replaced. -errno is not reported. */
int ucm_ids_ask(struct ucm_client *client, const char *space, unsigned bucket,
		struct ucm_ids *ids);

/* An id, an id with ".bin", or either after a path; 0 or -EINVAL. */
int ucm_ids_parse(const char *text, struct ucm_id *out);

#endif
