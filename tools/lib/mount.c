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

#include "common/cleanup.h"

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

static int add_mount(struct ucm_mounts *mounts, const struct mntent *entry)
{
	struct ucm_mount *more = reallocarray(mounts->mounts, mounts->num + 1,
					      sizeof(*more));
	struct ucm_mount mount;

	if (!more)
		return -ENOMEM;
	mounts->mounts = more;
	mount = (struct ucm_mount){ strdup(entry->mnt_dir),
				    strdup(entry->mnt_fsname) };
	if (mount.point && mount.source) {
		more[mounts->num++] = mount;
		return 0;
	}
	free(mount.point);
	free(mount.source);
	return -ENOMEM;
}

#define LINE_MAX_LEN 65536 /* SOURCE names many directories */

int ucm_mounts_list(struct ucm_mounts *out)
{
	FILE *table = setmntent("/proc/self/mounts", "re");
	static char line[LINE_MAX_LEN];
	struct ucm_mounts mounts = { 0 };
	struct mntent entry;
	int err = table ? 0 : -errno;

	while (!err && getmntent_r(table, &entry, line, sizeof(line))) {
		if (!strcmp(entry.mnt_type, "fuse.ucmfs") &&
		    !is_listed(&mounts, entry.mnt_dir))
			err = add_mount(&mounts, &entry);
	}
	if (table)
		endmntent(table);
	if (err) {
		ucm_tool_complain("/proc/self/mounts: %s", strerror(-err));
		ucm_mounts_fini(&mounts);
		return err;
	}
	*out = mounts;
	return 0;
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

static void tell_several(const struct ucm_mounts *mounts)
{
	_cleanup_free_ char *list = NULL;
	size_t len;
	FILE *out = open_memstream(&list, &len);

	if (!out)
		return;
	for (size_t i = 0; i < mounts->num; i++)
		fprintf(out, "%s%s", i ? ", " : "", mounts->mounts[i].point);
	if (!fclose(out))
		ucm_tool_complain("several are mounted; name one of %s", list);
}

char *ucm_mount_find(const char *arg)
{
	struct ucm_mounts mounts;
	char *found = NULL;

	if (arg)
		return strdup(arg);
	if (ucm_mounts_list(&mounts))
		return NULL;
	if (mounts.num == 0)
		ucm_tool_complain("nothing is mounted");
	else if (mounts.num > 1)
		tell_several(&mounts);
	else
		found = strdup(mounts.mounts[0].point);
	ucm_mounts_fini(&mounts);
	return found;
}
