/* SPDX-License-Identifier: Apache-2.0 */
/*
 * touches.h - telling a mount which blocks were read behind its back.
 *
 * A daemon sees the opens of its mount, and by them which blocks are in use.
 * Blocks that are read from the tiers' directories it hears of here, by touch of
 * .ucmfs/control. A hint, no more: what cannot be told soon is forgotten, and
 * nobody waits for it.
 */
#ifndef UCM_HEAT_H
#define UCM_HEAT_H

#include <stddef.h>

#include <ucm/block.h>

struct ucm_heat;

/* A thread of its own. -errno with why: no mount of ucmfs. */
int ucm_heat_open(const char *mount, struct ucm_heat **out, char *why,
		  size_t why_len);

/* Tells what it still has, unless the daemon does not answer. NULL is
 * harmless. */
void ucm_heat_close(struct ucm_heat *heat);

/* A block was read. From any thread; heat may be NULL. */
void ucm_heat_add(struct ucm_heat *heat, const char *space,
		  const struct ucm_id *id);

#endif
