/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - the daemon by which the blocks of a store are read. */
#include <config.h>

#include "tools/lib/store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/osfile.h"
#include "tools/lib/ask.h"
#include "tools/lib/tool.h"

struct ucm_client *ucm_store_connect(const struct ucm_store_options *opt)
{
	struct ucm_client *client;
	int err;

	if (ucm_ask_connect(opt->mount, &client))
		exit(UCM_EXIT_FAILED);
	/* a name that is misspelt must not look like a space without blocks */
	err = *opt->space ? ucm_client_ids(client, UCM_SERVE_LOOKUP, opt->space,
					   0, NULL, 0, NULL)
			  : 0;
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "space '%s': %s", opt->space,
			     strerror(-err));
	return client;
}

int ucm_store_block_open(struct ucm_client *client, const char *space,
			 const struct ucm_id *id, struct stat *st)
{
	int fd, err = ucm_client_open(client, space, id, 1, &fd, NULL);

	if (!err && fd >= 0)
		err = ucm_os_fstat(fd, st);
	if (err && fd >= 0)
		ucm_os_close(fd);
	return err ? err : fd;
}
