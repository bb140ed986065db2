/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.h - does what lies in a backing directory belong to us?
 *
 * Where others may make names (/tmp, a shared disk) somebody may have made ours
 * before us, and would read and swap what we write. So whatever the store uses
 * belongs to the user who runs it, or to root, and nobody else may write to it.
 * What lies below can then have been put there by nobody else. Not files/, which
 * has owners and modes of its own, and not a space's folder, which is its
 * owner's.
 *
 * A read-only directory may also be all its owner's, who could give us whatever
 * he likes in any case.
 */
#ifndef UCM_TRUST_H
#define UCM_TRUST_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "fs/config/config.h"

struct ucm_trust {
	const char *path; /* of the backing directory; the caller's */
	uid_t uid;        /* whose files ours are */
	uid_t owner;      /* of the directory */
	bool open_to_all; /* others may make names in it */
	bool owner_too;   /* trust him as well */
	bool any_owner;   /* only the server knows the users */
};

/* st: of the directory. remote: a server decides whose our files are, which
 * ucm_trust_learn() finds out. */
void ucm_trust_init(struct ucm_trust *trust, const char *path,
		    const struct stat *st, bool readonly, bool remote);

/* Whose are our files there? Makes one, for a moment: 0 or -errno. */
int ucm_trust_learn(struct ucm_trust *trust, int ctldir);

/* What is open, of that type (S_IFDIR, S_IFREG): 0, or -EPERM and a
 * line in error that calls it name. */
int ucm_trust_fd(const struct ucm_trust *trust, int fd, mode_t type,
		 const char *name, struct ucm_error *error);

/* The same for a name below dirfd, the end of path. What is not there is
 * nobody's. */
int ucm_trust_name(const struct ucm_trust *trust, int dirfd, mode_t type,
		   const char *path, struct ucm_error *error);

/* A space's folder, path below a medium: it is anybody's, but nobody else may write
 * to it. */
int ucm_trust_space(const char *medium, const struct stat *st,
		    const char *path, struct ucm_error *error);

/* files/: it may be anybody's, because chown(2) through the mount changes its
 * owner; but in a directory that is open to all, ours or the directory owner's:
 * there somebody else may have made it. */
int ucm_trust_plain(const struct ucm_trust *trust, int dirfd,
		    struct ucm_error *error);

#endif
