/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h - a daemon that is asked by a connection, such as for lists of blocks. */
#ifndef UCM_TOOLS_LIB_ASK_H
#define UCM_TOOLS_LIB_ASK_H

#include <stdbool.h>

#include <ucm/client.h>

#include "tools/lib/ids.h"

/* A place may be "tiers=SOURCE", by which libucm finds or starts a daemon. */
bool ucm_ask_is_tiers(const char *where);

/* Such a place, or the path of a socket? Then there are no files of a mount. */
bool ucm_ask_is_socket(const char *where);

/* where: as ucm_client_connect() has it. -errno, reported. */
int ucm_ask_connect(const char *where, struct ucm_client **out);

/* The blocks of a space whose ids begin with the byte bucket; what ids had is
 * replaced. Not reported. */
int ucm_ask_ids(struct ucm_client *client, const char *space, unsigned bucket,
		struct ucm_ids *ids);

#endif
