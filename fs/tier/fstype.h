/* SPDX-License-Identifier: Apache-2.0 */
/* fstype.h - can other machines write to a file system? */
#ifndef UCM_FSTYPE_H
#define UCM_FSTYPE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Is it certain that only this machine uses a file system of that type
 * (statfs(2))? There is no end of file systems of clusters and networks, and to
 * take one for local is to trust in locks, clocks and caches that it may not
 * have; so those are listed that are local, and the rest is not.
 */
bool ucm_fstype_is_local(uint32_t type);

#endif
