/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_mount.c - which mount is meant, and the files in its .ucmfs. */
#include <config.h>

#include "tools/ucm_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

int ucm_mount_is_named(const char *arg)
{
	return strchr(arg, '/') || !strcmp(arg, ".") || !strcmp(arg, "..");
}

#define LINE_MAX_LEN 65536 /* SOURCE names many directories */

/* The mount points, as many as there is room for. */
static unsigned list_mounts(char **mounts, unsigned room)
{
	FILE *table = setmntent("/proc/self/mounts", "re");
	static char line[LINE_MAX_LEN];
	struct mntent entry;
	unsigned num = 0;

	while (table && num < room &&
	       getmntent_r(table, &entry, line, sizeof(line))) {
		if (strcmp(entry.mnt_type, "fuse.ucmfs"))
			continue;
		mounts[num] = strdup(entry.mnt_dir);
		num += mounts[num] != NULL;
	}
	if (table)
		endmntent(table);
	return num;
}

char *ucm_mount_find(const char *arg)
{
	char *mounts[2];
	unsigned num;

	if (arg)
		return strdup(arg);
	num = list_mounts(mounts, 2);
	if (num == 1)
		return mounts[0];
	if (num == 0) {
		ucm_tool_fail(0, "nothing is mounted");
		return NULL;
	}
	ucm_tool_fail(0, "several are mounted, %s and %s among them: "
				  "name one", mounts[0], mounts[1]);
	free(mounts[0]);
	free(mounts[1]);
	return NULL;
}

int ucm_mount_open(const char *mount, const char *name,
		   int flags)
{
	_cleanup_free_ char *path = NULL;
	int fd, err;

	if (asprintf(&path, "%s/.ucmfs/%s", mount, name) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	fd = open(path, flags | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	err = -errno;
	ucm_tool_fail(0, "%s: %s", path, strerror(-err));
	return err;
}
