/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes.h - the bytes of a file, wherever they are.
 *
 * Who parses a file asks for its bytes through this, and whoever has it open
 * says how they are read: by descriptor, or by a medium that has none.
 */
#ifndef UCM_BYTES_H
#define UCM_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ucm_bytes {
	/* Until len bytes or the end: the number of them, or -errno. */
	ssize_t (*read)(const struct ucm_bytes *bytes, void *buffer, size_t len,
			uint64_t offset);
	/* One page is read, and nothing beside it; or (false) any again. */
	void (*expect_one_page)(const struct ucm_bytes *bytes, bool one);
	const void *from; /* read's */
	int fd;           /* the same */
};

/* Of an open descriptor. */
struct ucm_bytes ucm_bytes_of_fd(int fd);

#endif
