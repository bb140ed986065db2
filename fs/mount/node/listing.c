/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing.c - the reply to a READDIR, entry by entry.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

bool ucm_list_entry(struct ucm_listing *list, const char *name,
		    const struct fuse_entry_param *entry, off_t next)
{
	char *at = list->buffer + list->used;
	size_t room = list->size - list->used;
	size_t need = list->plus
			      ? fuse_add_direntry_plus(list->req, at, room,
						       name, entry, next)
			      : fuse_add_direntry(list->req, at, room, name,
						  &entry->attr, next);

	if (need > room)
		return false;
	list->used += need;
	return true;
}

bool ucm_list_name(struct ucm_listing *list, const char *name,
		   const struct stat *attr, off_t next)
{
	struct fuse_entry_param entry = { .attr = *attr };

	return ucm_list_entry(list, name, &entry, next);
}

bool ucm_list_dots(struct ucm_listing *list, const struct stat *self,
		   off_t *off)
{
	static const char *const dots[] = { ".", ".." };

	for (; *off < 2; ++*off) {
		if (!ucm_list_name(list, dots[*off], self, *off + 1))
			return false;
	}
	return true;
}
