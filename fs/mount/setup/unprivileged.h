/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unprivileged.h - mounts by fusermount3, of a daemon whose user is not root.
 */
#ifndef UCM_UNPRIVILEGED_H
#define UCM_UNPRIVILEGED_H

#include <stdbool.h>

/* Take a mount away, at once, even if it is busy. fusermount3 says why it fails. */
bool ucm_fusermount_detach(const char *mountpoint);

/* A mount has failed, and libfuse and fusermount3 have said what they know: says
 * what keeps fusermount3 from mounting, if that is so. */
void ucm_fusermount_explain(void);

#endif
