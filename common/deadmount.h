/* SPDX-License-Identifier: Apache-2.0 */
/* deadmount.h - what the calls on a FUSE mount say once nobody serves it. */
#ifndef UCM_DEADMOUNT_H
#define UCM_DEADMOUNT_H

#include <errno.h>
#include <stdbool.h>

/* The errno (positive) of a mount whose server is gone for ever: ENOTCONN, or
 * ECONNABORTED for what was under way; ECONNREFUSED where the server died
 * before it had agreed with the kernel on a version. */
static inline bool ucm_mount_is_dead(int number)
{
	return number == ENOTCONN || number == ECONNABORTED ||
	       number == ECONNREFUSED;
}

/* -errno of a call on a mount: one value for all that says that it is dead. */
static inline int ucm_mount_error(int number)
{
	return ucm_mount_is_dead(number) ? -ENOTCONN : -number;
}

#endif
