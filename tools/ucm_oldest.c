/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_oldest.c - which blocks go first; see ucm_oldest.h.
 *
 * Blocks that nobody names as a parent are looked at first, and each tells its
 * parent of its time and height; a parent's turn comes after its last child's.
 * Parents that form a circle, which only a forged header can say, never have a turn
 * and keep their own times.
 */
#include <config.h>

#include "tools/ucm_oldest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

static int compare_u64(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int by_name(const void *a, const void *b)
{
	const struct ucm_aged *x = a, *y = b;
	int order = compare_u64(x->space, y->space);

	return order ? order : memcmp(&x->id, &y->id, sizeof(x->id));
}

static int by_age(const void *a, const void *b)
{
	const struct ucm_aged *x = a, *y = b;
	int order;

	if (x->used_ns != y->used_ns)
		return x->used_ns < y->used_ns ? -1 : 1;
	order = compare_u64(x->height, y->height);
	return order ? order : by_name(a, b);
}

/* NULL: it has none here. blocks are sorted by name. */
static struct ucm_aged *parent_of(struct ucm_aged *blocks, size_t num,
				  const struct ucm_aged *block)
{
	static const struct ucm_id none;
	struct ucm_aged key = { .id = block->parent, .space = block->space };

	return memcmp(&key.id, &none, sizeof(none))
		       ? bsearch(&key, blocks, num, sizeof(*blocks), by_name)
		       : NULL;
}

static void tell_parent(struct ucm_aged *parent, const struct ucm_aged *child)
{
	if (parent->used_ns < child->used_ns)
		parent->used_ns = child->used_ns;
	if (parent->height <= child->height)
		parent->height = child->height + 1;
}

static void look_at_chains(struct ucm_aged *blocks, size_t num,
			   struct ucm_aged **ready)
{
	struct ucm_aged *parent;
	size_t end = 0;

	for (size_t i = 0; i < num; i++) {
		parent = parent_of(blocks, num, &blocks[i]);
		if (parent)
			parent->waits++;
	}
	for (size_t i = 0; i < num; i++) {
		if (!blocks[i].waits)
			ready[end++] = &blocks[i];
	}
	for (size_t i = 0; i < end; i++) {
		parent = parent_of(blocks, num, ready[i]);
		if (!parent)
			continue;
		tell_parent(parent, ready[i]);
		if (!--parent->waits)
			ready[end++] = parent;
	}
}

int ucm_oldest_sort(struct ucm_aged *blocks, size_t num)
{
	_cleanup_free_ struct ucm_aged **ready = calloc(num + 1,
							sizeof(*ready));

	if (!ready)
		return -ENOMEM;
	if (!num)
		return 0;
	for (size_t i = 0; i < num; i++)
		blocks[i].height = blocks[i].waits = 0;
	qsort(blocks, num, sizeof(*blocks), by_name);
	look_at_chains(blocks, num, ready);
	qsort(blocks, num, sizeof(*blocks), by_age);
	return 0;
}

uint64_t ucm_oldest_choose(struct ucm_aged *blocks, size_t num, uint64_t keep)
{
	uint64_t left = 0;

	for (size_t i = 0; i < num; i++)
		left += blocks[i].bytes;
	for (size_t i = 0; i < num; i++) {
		blocks[i].goes = left > keep && !blocks[i].stays;
		if (blocks[i].goes)
			left -= blocks[i].bytes;
	}
	return left;
}
