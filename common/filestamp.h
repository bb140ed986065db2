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

/*
 * So old must a file's last change be for its stamp to vouch for its bytes. Clocks of
 * file systems tick, most of them every 1 to 10 ms, some every two seconds; that is
 * the least of it. A write(2) sets the times once, when it begins, and its last bytes
 * come later: after seconds if it writes many to a slow disk at once (O_DIRECT, or
 * where the page cache is throttled). Stores through a shared mapping set them when a
 * page is first written to since it was last clean, and the kernel cleans pages after
 * 30 s by default (vm.dirty_expire_centisecs).
 */
#define UCM_FILESTAMP_AGE_S 30

/* Was its last change so long ago, or longer? By the clock that files have their
 * times from; not of one from the future, after a clock was set back. */
bool ucm_file_is_older(const struct stat *st, unsigned seconds);

/* Has it been left alone for so long that a change from now on shows in its
 * stamp? */
bool ucm_file_is_settled(const struct stat *st);

#endif
