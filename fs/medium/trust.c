/* SPDX-License-Identifier: Apache-2.0 */
/* trust.c - owners and modes below a backing directory; see trust.h. */
#include <config.h>

#include "fs/medium/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/osfile.h"
#include "hashing/tree.h"

#define OTHERS_WRITE (S_IWGRP | S_IWOTH)

void ucm_trust_init(struct ucm_trust *trust, const char *path,
		    const struct stat *st, bool readonly, bool remote)
{
	*trust = (struct ucm_trust){
		.path = path,
		.uid = geteuid(),
		.owner = st->st_uid,
		.open_to_all = st->st_mode & OTHERS_WRITE,
		.owner_too = readonly,
		.any_owner = readonly && remote,
	};
}

int ucm_trust_learn(struct ucm_trust *trust, int ctldir)
{
	_cleanup_fd_ int fd = -1;
	uint64_t random = 0;
	char name[32];
	struct stat st;
	int err;

	/* other machines may be asking, and have crashed while they did */
	if (getrandom(&random, sizeof(random), 0) < 0)
		random = (uint64_t)getpid();
	snprintf(name, sizeof(name), "owner.%016llx",
		 (unsigned long long)random);
	fd = ucm_os_open(ctldir, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return fd;
	err = ucm_os_fstat(fd, &st);
	ucm_os_unlink(ctldir, name);
	if (!err)
		trust->uid = st.st_uid;
	return err;
}

static bool may_own(const struct ucm_trust *trust, uid_t uid)
{
	return uid == trust->uid || uid == 0 || trust->any_owner ||
	       (trust->owner_too && uid == trust->owner);
}

static int complain(const struct ucm_trust *trust, const char *name,
		    const char *why, struct ucm_error *error)
{
	return ucm_error_set(
		error, -EPERM,
		"%s/%s is not to be trusted: %s; see BACKING DIRECTORIES "
		"in ucmfs(8)",
		trust->path, name, why);
}

static int check(const struct ucm_trust *trust, const struct stat *st,
		 mode_t type, const char *name,
		 struct ucm_error *error)
{
	char why[80];

	if ((st->st_mode & S_IFMT) != type)
		return complain(trust, name,
				S_ISLNK(st->st_mode) ? "it is a symbolic link"
				: type == S_IFDIR    ? "it is no directory"
						     : "it is no plain file",
				error);
	if (!may_own(trust, st->st_uid)) {
		snprintf(why, sizeof(why),
			 "it belongs to user %u, and ucmfs runs as %u",
			 st->st_uid, trust->uid);
		return complain(trust, name, why, error);
	}
	if (st->st_mode & OTHERS_WRITE) {
		snprintf(why, sizeof(why), "others may write to it (mode %04o)",
			 st->st_mode & 07777);
		return complain(trust, name, why, error);
	}
	return 0;
}

static int cannot_tell(const struct ucm_trust *trust, const char *name, int err,
		       struct ucm_error *error)
{
	return ucm_error_set(error, err, "%s/%s: %s", trust->path, name,
			     strerror(-err));
}

int ucm_trust_fd(const struct ucm_trust *trust, int fd, mode_t type,
		 const char *name, struct ucm_error *error)
{
	struct stat st;
	int err = ucm_os_fstat(fd, &st);

	return err ? cannot_tell(trust, name, err, error)
		   : check(trust, &st, type, name, error);
}

int ucm_trust_name(const struct ucm_trust *trust, int dirfd, mode_t type,
		   const char *path, struct ucm_error *error)
{
	struct stat st;
	int err = ucm_os_stat(dirfd, path, &st);

	if (err)
		return err == -ENOENT
			       ? 0
			       : cannot_tell(trust, path, err, error);
	return check(trust, &st, type, path, error);
}

int ucm_trust_space(const char *medium, const struct stat *st,
		    const char *path, struct ucm_error *error)
{
	const struct ucm_trust anybody = { .path = medium, .any_owner = true };

	return check(&anybody, st, S_IFDIR, path, error);
}

int ucm_trust_plain(const struct ucm_trust *trust, int dirfd,
		    struct ucm_error *error)
{
	struct ucm_trust anybody = *trust;
	struct stat st;
	int err = ucm_os_stat(dirfd, UCM_TREE_FILES, &st);

	if (err)
		return err == -ENOENT
			       ? 0
			       : cannot_tell(trust, UCM_TREE_FILES, err,
					     error);
	st.st_mode &= ~(mode_t)OTHERS_WRITE; /* as its owner wants it */
	anybody.any_owner = !trust->open_to_all;
	anybody.owner_too = true;
	return check(&anybody, &st, S_IFDIR, UCM_TREE_FILES, error);
}
