/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c - questions to a daemon; see ask.h. */
#include <config.h>

#include "tools/lib/ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "tools/lib/tool.h"

bool ucm_ask_is_tiers(const char *where)
{
	return !strncmp(where, UCM_CLIENT_TIERS, strlen(UCM_CLIENT_TIERS));
}

bool ucm_ask_is_socket(const char *where)
{
	struct stat st;

	return ucm_ask_is_tiers(where) ||
	       (!stat(where, &st) && S_ISSOCK(st.st_mode));
}

int ucm_ask_connect(const char *where, struct ucm_client **out)
{
	int err = ucm_client_connect(where, out);

	if (err && ucm_ask_is_tiers(where)) /* more of it may be in the log */
		ucm_tool_complain("%s: %s", where, strerror(-err));
	else if (err == -ENOENT)
		ucm_tool_complain("%s: not a mount of ucmfs, or one whose socket "
				  "is not in this namespace",
				  where);
	else if (err == -ECONNREFUSED)
		ucm_tool_complain("%s: its daemon is gone", where);
	else if (err == -ENOTCONN)
		ucm_tool_complain("%s: its daemon is gone; umount -l %s", where,
				  where);
	else if (err)
		ucm_tool_complain("%s: %s", where, strerror(-err));
	return err;
}

int ucm_ask_ids(struct ucm_client *client, const char *space, unsigned bucket,
		struct ucm_ids *ids)
{
	struct ucm_serve_request head = {
		.verb = UCM_SERVE_LIST,
		.argument = bucket,
	};
	_cleanup_fd_ int fd = -1;
	char *bytes;
	size_t len;
	int err;

	if (strlen(space) >= sizeof(head.space))
		return -ENOENT;
	strcpy(head.space, space);
	err = ucm_client_call(client, &head, NULL, 0, NULL, 0, &fd);
	err = err ?: ucm_tool_read_fd(fd, SIZE_MAX, &bytes, &len);
	if (err)
		return err;
	free(ids->ids);
	*ids = (struct ucm_ids){
		.ids = (struct ucm_id *)bytes,
		.num = len / sizeof(struct ucm_id),
		.room = len / sizeof(struct ucm_id),
	};
	return 0;
}
