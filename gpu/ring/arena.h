/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - memory that devices read and write by address: huge pages where
 * they can be had, of a NUMA node, and no fork's.
 */
#ifndef UCM_ARENA_H
#define UCM_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UCM_ARENA_PAGE ((size_t)2 << 20) /* lengths are multiples of it */

/* Has this machine such a node? */
bool ucm_arena_has_node(int node);

/* NULL: none, with errno. node: -1 for any. */
uint8_t *ucm_arena_map(size_t len, int node, bool *huge_out);
void ucm_arena_unmap(uint8_t *memory, size_t len);

#endif
