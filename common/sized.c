/* SPDX-License-Identifier: Apache-2.0 */
/* sized.c - take a caller's struct whose first field is its size. */
#include <config.h>

#include "common/sized.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "common/error.h"

/* The first byte that is not zero, after those that we know; 0: none. */
static size_t first_unknown(const uint8_t *given, size_t size, size_t known)
{
	for (size_t at = known; at < size; at++) {
		if (given[at])
			return at;
	}
	return 0;
}

int ucm_sized_take(void *own, size_t own_size, const void *given, size_t least,
		   const char *name, struct ucm_error *error)
{
	size_t size, unknown;

	if (!given)
		return ucm_error_set(error, -EINVAL, "struct %s is NULL", name);
	memcpy(&size, given, sizeof(size));
	if (size < least)
		return ucm_error_set(error, -EINVAL,
				     "size %zu of struct %s: set it to "
				     "sizeof(struct %s), which is %zu here",
				     size, name, name, own_size);
	unknown = first_unknown(given, size, own_size);
	if (unknown)
		return ucm_error_set(error, -E2BIG,
				     "size %zu of struct %s: this library knows "
				     "%zu bytes, and byte %zu is not zero",
				     size, name, own_size, unknown);
	memset(own, 0, own_size);
	memcpy(own, given, size < own_size ? size : own_size);
	return 0;
}
