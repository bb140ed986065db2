/* SPDX-License-Identifier: Apache-2.0 */
/*
 * touches.h - telling a mount which blocks were read without it.
 *
 * A daemon sees the opens of its mount, and by them which blocks are in use.
 * Blocks that are read from the tiers' directories it hears of here, by touch of
 * .ucmfs/control. A hint, no more: what cannot be sent soon is forgotten, and
 * nobody waits for it.
 */
#ifndef UCM_TOUCHES_H
#define UCM_TOUCHES_H

#include <stddef.h>

#include <ucm/block.h>
#include <ucm/error.h>

struct ucm_touches;

/* A thread of its own. -errno: no mount of ucmfs. */
int ucm_touches_open(const char *mount, struct ucm_touches **out,
		     struct ucm_error *error);

/* Tells what it still has, unless the daemon does not answer. NULL is
 * harmless. */
void ucm_touches_close(struct ucm_touches *touches);

/* A block was read. From any thread; touches may be NULL. */
void ucm_touches_add(struct ucm_touches *touches, const char *space,
		     const struct ucm_id *id);

#endif
