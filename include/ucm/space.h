/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - spaces and their manifests.
 *
 * mount: a mount point of ucmfs, or the path of a daemon's socket. Or NULL, and
 * tiers: directories, as SOURCE of ucmfs(8) says; if no daemon has them, a private
 * one is started. All calls return 0 or -errno, and error (see error.h) names the
 * place and the cause. Any thread; they block the caller.
 * See ucm_blocks(3).
 */
#ifndef UCM_SPACE_H
#define UCM_SPACE_H

#include <ucm/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCM_SPACE_MANIFEST_MAX 65536u /* bytes of a manifest, with a NUL */

/*
 * Make the space for blocks of a manifest, unless it is there. Many may do so at
 * once: one of them makes it, and all see the same manifest.
 *
 * -EEXIST: it has another manifest, which is written to there (may be NULL).
 * -ENOTEMPTY: it has blocks and no manifest: nobody knows what they are for.
 * -EINVAL: no name of a space, or a manifest that the daemon does not accept.
 * -EFBIG: its blocks would be larger than the daemon's block_max.
 * -ENOENT: no daemon, or no directory; -ENOTCONN: the daemon has ended.
 * A new space of a daemon is this user's; where the umask keeps others from it, it
 * is private.
 */
int ucm_space_make(const char *mount, const char *tiers, const char *name,
		   const char *manifest, char there[UCM_SPACE_MANIFEST_MAX],
		   struct ucm_error *error);

/* The manifest of a space, as it was written. -ENOENT: it has none, or there is
 * no such space. */
int ucm_space_manifest(const char *mount, const char *tiers, const char *name,
		       char text[UCM_SPACE_MANIFEST_MAX],
		       struct ucm_error *error);

/* Call each with the name of every space except the default one, each once and in
 * no order, until it returns what is not 0; returns that, with error empty. */
int ucm_space_list(const char *mount, const char *tiers,
		   int (*each)(void *arg, const char *name), void *arg,
		   struct ucm_error *error);

/*
 * Remove a space of a daemon with its blocks, pinned ones too. Whoever
 * has one open reads it to its end; what a loader is saving is lost, and a file that
 * is being written in a mount is in the way.
 *
 * -EBUSY, -ENOTEMPTY: something is; blocks are gone already.
 * -ENOENT: no daemon, or no such space. -EACCES: another user's.
 */
int ucm_space_remove(const char *mount, const char *name,
		     struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
