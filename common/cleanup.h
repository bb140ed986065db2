/* SPDX-License-Identifier: Apache-2.0 */
/* cleanup.h - scratch descriptors and buffers that end with their scope. */
#ifndef UCM_CLEANUP_H
#define UCM_CLEANUP_H

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

/* osfile.h; here so that a scratch descriptor of a server that does not answer
 * keeps nobody waiting. */
void ucm_os_close(int fd);

static inline void ucm_cleanup_fd(int *fd)
{
	ucm_os_close(*fd);
}

static inline void ucm_cleanup_free(void *pointer)
{
	free(*(void **)pointer);
}

static inline void ucm_cleanup_dir(DIR **dir)
{
	int saved = errno;

	if (*dir)
		closedir(*dir);
	errno = saved;
}

#define _cleanup_fd_ __attribute__((cleanup(ucm_cleanup_fd)))
#define _cleanup_free_ __attribute__((cleanup(ucm_cleanup_free)))
#define _cleanup_dir_ __attribute__((cleanup(ucm_cleanup_dir)))

#endif
