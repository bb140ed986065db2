/* SPDX-License-Identifier: Apache-2.0 */
/* unprivileged.c - see unprivileged.h. */
#include <config.h>

#include "fs/mount/setup/unprivileged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/process.h"

#define PROGRAM "fusermount3"

bool ucm_fusermount_detach(const char *mountpoint)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		execlp(PROGRAM, PROGRAM, "-u", "-z", "--", mountpoint,
		       (char *)NULL);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* Where execlp() finds it; to free. NULL: nowhere. */
static char *find_program(void)
{
	const char *path = getenv("PATH");
	_cleanup_free_ char *copy = strdup(path ? path : "/usr/bin:/bin");
	char *rest = copy, *dir, *file;

	while ((dir = strsep(&rest, ":"))) {
		if (asprintf(&file, "%s/" PROGRAM, *dir ? dir : ".") < 0)
			return NULL;
		if (!access(file, X_OK))
			return file;
		free(file);
	}
	return NULL;
}

static const char *why_no_root(const char *file)
{
	struct statvfs fs;
	struct stat st;

	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		return "no_new_privs is set here (by a container or a sandbox), "
		       "so it does not get root's rights";
	if (stat(file, &st) || st.st_uid != 0 || !(st.st_mode & S_ISUID))
		return "it is not setuid root; the package fuse3 installs it so";
	if (!statvfs(file, &fs) && fs.f_flag & ST_NOSUID)
		return "it is on a file system that is mounted nosuid";
	return NULL;
}

void ucm_fusermount_explain(void)
{
	_cleanup_free_ char *file = NULL;
	const char *why;

	if (ucm_has_sys_admin())
		return;
	file = find_program();
	if (!file) {
		ucm_error(PROGRAM " is not in PATH, and users other than root "
			  "mount by it; the package fuse3 installs it");
		return;
	}
	why = why_no_root(file);
	if (why)
		ucm_error("%s: users other than root mount by it: %s", file,
			  why);
}
