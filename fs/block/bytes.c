/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.c - bytes by descriptor; see bytes.h. */
#include <config.h>

#include "fs/block/bytes.h"

#include <fcntl.h>

#include "common/osfile.h"

static ssize_t bytes_read_fd(const struct ucm_bytes *bytes, void *buffer,
			     size_t len, uint64_t offset)
{
	return ucm_os_read_at(bytes->fd, buffer, len, (off_t)offset);
}

/* No read-ahead: the rest is not wanted, or was written with O_DIRECT. */
static void bytes_expect_fd(const struct ucm_bytes *bytes, bool one)
{
	posix_fadvise(bytes->fd, 0, 0,
		      one ? POSIX_FADV_RANDOM : POSIX_FADV_NORMAL);
}

struct ucm_bytes ucm_bytes_of_fd(int fd)
{
	return (struct ucm_bytes){
		.read = bytes_read_fd,
		.expect_one_page = bytes_expect_fd,
		.fd = fd,
	};
}
