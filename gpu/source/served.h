/* SPDX-License-Identifier: Apache-2.0 */
/*
 * served.h - spaces of a daemon, by its socket: the calls of <ucm/space.h> where a
 * mount or a socket is named. Names are checked already.
 */
#ifndef UCM_SERVED_H
#define UCM_SERVED_H

#include <ucm/space.h>

int ucm_served_make(const char *where, const char *name, const char *manifest,
		    char there[UCM_SPACE_MANIFEST_MAX],
		    struct ucm_error *error);
/* -ENOENT: no daemon, no space, or one without a space.json. */
int ucm_served_manifest(const char *where, const char *name,
			char text[UCM_SPACE_MANIFEST_MAX],
			struct ucm_error *error);
int ucm_served_list(const char *where,
		    int (*each)(void *arg, const char *name), void *arg,
		    struct ucm_error *error);
int ucm_served_remove(const char *where, const char *name,
		      struct ucm_error *error);

#endif
