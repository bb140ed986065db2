/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - the daemon by which the blocks of a store are read. */
#include <config.h>

#include "tools/lib/store.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "common/osfile.h"
#include "hashing/tree.h"
#include "tools/lib/ask.h"
#include "tools/lib/tool.h"

int ucm_store_connect(const struct ucm_store_options *opt, struct ucm_client **out)
{
	struct ucm_client *client;
	int err;

	if (*opt->space && !ucm_tree_space_valid(opt->space))
		return ucm_tool_complain("space '%s': no name", opt->space);
	err = ucm_ask_connect(opt->mount, &client);
	if (err)
		return err;
	/* a name that is misspelt must not look like a space without blocks */
	if (*opt->space)
		err = ucm_client_ids(client, UCM_SERVE_LOOKUP, opt->space, 0,
				     NULL, 0, NULL);
	if (err) {
		ucm_client_close(client);
		return ucm_tool_complain("space '%s': %s", opt->space,
					 strerror(-err));
	}
	*out = client;
	return 0;
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
