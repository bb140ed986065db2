/* SPDX-License-Identifier: Apache-2.0 */
/* dir_aside.c - a directory's quarantine, and the flat names of blocks there. */
#include <config.h>

#include "fs/tier/dir.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "common/osfile.h"

void ucm_directory_flat_name(const char *folder, const struct ucm_id *id,
			     char out[UCM_TREE_PATH_MAX])
{
	char hex[UCM_ID_HEX + 1];

	ucm_id_format(id, hex);
	snprintf(out, UCM_TREE_PATH_MAX, "%s@%s", ucm_tree_folder_name(folder),
		 hex);
}

int ucm_directory_set_aside(struct ucm_directory *dir, const char *path,
			    const char *folder, const struct ucm_id *id)
{
	char flat[UCM_TREE_PATH_MAX], to[UCM_TREE_PATH_MAX + 64];
	struct timespec now;

	if (dir->medium.readonly)
		return -EROFS;
	clock_gettime(CLOCK_REALTIME, &now);
	ucm_directory_flat_name(folder, id, flat);
	snprintf(to, sizeof(to), UCM_TREE_OWN "/quarantine/%s.%lld%09ld",
		 flat, (long long)now.tv_sec, now.tv_nsec);
	return ucm_os_rename(dir->dirfd, path, dir->dirfd, to);
}
