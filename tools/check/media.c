/* SPDX-License-Identifier: Apache-2.0 */
/* media.c - opening the directories of a store; see media.h. */
#include <config.h>

#include "tools/check/media.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/error.h"
#include "fs/medium/dir/dir.h"
#include "tools/lib/tool.h"

/* ---- what cannot be read ---- */

/* Its server does not answer, or is gone: what is asked next would wait as long. */
static bool is_out_of_reach(int err)
{
	switch (err) {
	case -ETIMEDOUT: case -ENOTCONN: case -ESTALE: case -ESHUTDOWN:
	case -EHOSTDOWN: case -EHOSTUNREACH: case -ENETDOWN: case -ENETUNREACH:
		return true;
	default:
		return false;
	}
}

void ucm_media_leave(struct ucm_media *media, struct ucm_media_dir *dir,
		     int err)
{
	media->failed = true;
	if (!is_out_of_reach(err) || dir->err)
		return;
	dir->err = err;
	ucm_tool_complain("%s: left out from here on", dir->medium->path);
}

void ucm_media_note(struct ucm_media *media, struct ucm_media_dir *dir,
		    const char *below, int err)
{
	if (!dir->unread++)
		ucm_tool_complain("%s/%s: %s", dir->medium->path, below,
				  strerror(-err));
	ucm_media_leave(media, dir, err);
}

static void open_dir(struct ucm_media *media, const char *path)
{
	struct ucm_media_dir *dir = &media->dirs[media->num++];
	struct ucm_error error;

	dir->err = ucm_medium_open(ucm_opener(&media->config), path, true,
				   &media->config, &dir->medium, &error);
	if (!dir->err)
		return;
	dir->medium = NULL;
	media->failed = true;
	ucm_tool_complain("%s", error.text);
}

int ucm_media_open(struct ucm_media *media, const char *const *paths,
		   unsigned num)
{
	struct ucm_tier_config *tier;
	struct ucm_error error;
	bool some = false;
	int err = 0;

	*media = (struct ucm_media){ .num = 0 };
	ucm_config_init(&media->config);
	for (unsigned i = 0; i < num && !err; i++)
		err = ucm_config_add_tier(&media->config, &tier)
			      ? ucm_error_set(&error, -ENOMEM, "no memory")
			      : ucm_config_set_tier(tier, "directories",
						    paths[i], &error);
	if (!err)
		err = ucm_config_check(&media->config, &error);
	if (err)
		return ucm_tool_fail(err, "%s", error.text);
	for (unsigned i = 0; i < num; i++) {
		open_dir(media, paths[i]);
		some |= !media->dirs[i].err;
	}
	return some ? 0 : -EIO;
}

void ucm_media_close(struct ucm_media *media)
{
	for (unsigned i = 0; i < media->num; i++) {
		struct ucm_media_dir *dir = &media->dirs[i];

		if (dir->unread > 1)
			ucm_tool_complain("%s: %" PRIu64
					  " more could not be read",
					  dir->medium->path, dir->unread - 1);
		ucm_medium_close(dir->medium, false);
		ucm_medium_free(dir->medium);
	}
	ucm_config_fini(&media->config);
}
