/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstype.h - can other machines write to a file system, are its times to be
 * trusted, and what does it stand on?
 */
#ifndef UCM_FSTYPE_H
#define UCM_FSTYPE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Is it certain that only this machine uses a file system of that type
 * (statfs(2))? There is no end of file systems of clusters and networks, and to
 * take one for local is to trust in locks, clocks and caches that it may not
 * have; so those are listed that are local, and the rest is not.
 */
bool ucm_fstype_is_local(uint32_t type);

/*
 * Does such a file system say when a file was changed last, in a time that nobody
 * can set? FAT and exFAT have no ctime: they show the mtime, which utimensat(2)
 * sets.
 */
bool ucm_fstype_has_ctime(uint32_t type);

/* What a file system stands on, fast to slow. */
enum ucm_fskind {
	UCM_FS_MEMORY,  /* gone when the machine restarts */
	UCM_FS_SOLID,   /* a disk that does not rotate, or nobody says */
	UCM_FS_DISK,
	UCM_FS_NETWORK, /* or a program, by FUSE */
	UCM_FS_KINDS
};
extern const char *const ucm_fskind_names[UCM_FS_KINDS];

/* By statfs(2)'s type and stat(2)'s device. */
enum ucm_fskind ucm_fskind_of(uint32_t type, dev_t dev);

#endif
