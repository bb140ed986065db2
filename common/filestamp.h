/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filestamp.h - a number that is another one for another file.
 *
 * The daemon and loaders tell by it whether they speak of the same file, and
 * whether it is as it was. It follows from the file's place (device and inode)
 * and from what changes with its bytes: size, mtime and ctime. The last of these
 * nobody can set. It means nothing on another machine, or after a restart.
 */
#ifndef UCM_FILESTAMP_H
#define UCM_FILESTAMP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define UCM_FILESTAMP_BITS 38

/* Never 0. Two files have the same one by a chance of 2^-38. */
uint64_t ucm_file_stamp(const struct stat *st);

/* Has it been left alone for so long that a change from now on shows in its
 * stamp? Clocks of file systems tick, most of them every 1 to 10 ms. */
bool ucm_file_is_settled(const struct stat *st);

#endif
