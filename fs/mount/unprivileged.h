/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unprivileged.h - what a daemon can do whose user is not root: which rights it
 * lacks, and mounts by fusermount3.
 */
#ifndef UCM_UNPRIVILEGED_H
#define UCM_UNPRIVILEGED_H

#include <stdbool.h>

/* CAP_SYS_ADMIN: to mount without fusermount3, and for passthrough. */
bool ucm_has_sys_admin(void);

/* Take a mount away, at once, even if it is busy. fusermount3 says why it fails. */
bool ucm_fusermount_detach(const char *mountpoint);

/* A mount has failed, and libfuse and fusermount3 have said what they know: says
 * what keeps fusermount3 from mounting, if that is so. */
void ucm_fusermount_explain(void);

#endif
