/* SPDX-License-Identifier: Apache-2.0 */
/* mount.c - which mount is meant. */
#include <config.h>

#include "tools/lib/tool.h"

#include <errno.h>
#include <mntent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ucm_mount_is_named(const char *arg)
{
	return strchr(arg, '/') || !strcmp(arg, ".") || !strcmp(arg, "..");
}

static bool is_listed(const struct ucm_mounts *mounts, const char *point)
{
	for (size_t i = 0; i < mounts->num; i++) {
		if (!strcmp(mounts->mounts[i].point, point))
			return true;
	}
	return false;
}

#define LINE_MAX_LEN 65536 /* SOURCE names many directories */

void ucm_mounts_list(struct ucm_mounts *out)
{
	FILE *table = setmntent("/proc/self/mounts", "re");
	static char line[LINE_MAX_LEN];
	struct mntent entry;
	size_t room = 0;

	*out = (struct ucm_mounts){ 0 };
	if (!table)
		ucm_tool_die(UCM_EXIT_FAILED, "/proc/self/mounts: %s",
			     strerror(errno));
	while (getmntent_r(table, &entry, line, sizeof(line))) {
		if (strcmp(entry.mnt_type, "fuse.ucmfs") ||
		    is_listed(out, entry.mnt_dir))
			continue;
		out->mounts = ucm_tool_grow(out->mounts, out->num, &room,
					    sizeof(*out->mounts));
		out->mounts[out->num++] = (struct ucm_mount){
			ucm_tool_format("%s", entry.mnt_dir),
			ucm_tool_format("%s", entry.mnt_fsname)
		};
	}
	endmntent(table);
}

void ucm_mounts_fini(struct ucm_mounts *mounts)
{
	for (size_t i = 0; i < mounts->num; i++) {
		free(mounts->mounts[i].point);
		free(mounts->mounts[i].source);
	}
	free(mounts->mounts);
	*mounts = (struct ucm_mounts){ 0 };
}

static _Noreturn void die_of_several(const struct ucm_mounts *mounts)
{
	char *list = ucm_tool_format("%s", mounts->mounts[0].point);

	for (size_t i = 1; i < mounts->num; i++)
		list = ucm_tool_format("%s, %s", list, mounts->mounts[i].point);
	ucm_tool_die(UCM_EXIT_FAILED, "several are mounted; name one of %s",
		     list);
}

char *ucm_mount_find(const char *arg)
{
	struct ucm_mounts mounts;
	char *found;

	if (arg)
		return ucm_tool_format("%s", arg);
	ucm_mounts_list(&mounts);
	if (mounts.num == 0)
		ucm_tool_die(UCM_EXIT_FAILED, "nothing is mounted");
	if (mounts.num > 1)
		die_of_several(&mounts);
	found = ucm_tool_format("%s", mounts.mounts[0].point);
	ucm_mounts_fini(&mounts);
	return found;
}
