/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sized.h - structs that a caller fills, and that later versions may add to.
 *
 * The first field of such a struct is its size, as the caller's compiler knows it;
 * zero is a default in all others. A field is only ever added at the end. So
 *
 * - a struct of an older header is well: what it lacks counts as zero;
 * - a struct of a newer header is well as long as what this library does not know
 *   is zero; else the call fails with -E2BIG and starts nothing;
 * - a size that is too small, as 0 is, fails with -EINVAL.
 *
 * The line of struct ucm_error names the struct.
 */
#ifndef UCM_SIZED_H
#define UCM_SIZED_H

#include <stddef.h>

/*
 * One that is filled, in C; its fields after the name:
 *
 *	struct ucm_request request = UCM_SIZED(ucm_request, .group = group);
 *
 * In C++: struct ucm_request request = {}; request.size = sizeof(request);
 */
#define UCM_SIZED(name, ...)                                                  \
	((struct name){ .size = sizeof(struct name), __VA_ARGS__ })

#endif
