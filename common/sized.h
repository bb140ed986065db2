/* SPDX-License-Identifier: Apache-2.0 */
/* sized.h - take a caller's struct whose first field is its size (<ucm/sized.h>). */
#ifndef UCM_COMMON_SIZED_H
#define UCM_COMMON_SIZED_H

#include <stddef.h>

#include <ucm/error.h>
#include <ucm/sized.h>

/* Copy it to *own, of own_size bytes; what it lacks is zero. least: bytes that
 * every version had. -EINVAL, -E2BIG: see <ucm/sized.h>; error has the name. */
int ucm_sized_take(void *own, size_t own_size, const void *given, size_t least,
		   const char *name, struct ucm_error *error);

#endif
