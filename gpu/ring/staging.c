/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - the memory between files and pages.
 *
 * A pool of pieces, each cut into units, of which a map shows the free ones.
 * Slots are few (what is in flight), and mostly of one size, so the search
 * starts where the last one ended and is short.
 *
 * A pool that grows begins with a small piece (one that is small is that piece),
 * and gets another one when a slot fits none: a multiple of that slot's length, so that a row of them leaves
 * little over. A slot lies in one piece, as each is pinned by itself: the kernel
 * and a device's driver know pieces, not the pool. Where the limit is reached
 * and a longer slot than before is wanted, pieces that nobody uses are given up
 * for one in which it fits; so any slot up to the limit is had in the end,
 * whatever came before, as it was when all was one piece.
 *
 * Growing may be refused: by the kernel, or by a driver that does not pin. Then
 * the pool is as large as it is, until all slots are free: whoever waits for one
 * that is taken has no worse fate than in a smaller pool. The first one after
 * that asks again.
 */
#include <config.h>

#include "gpu/ring/staging.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/align.h"
#include "common/log.h"
#include "gpu/ring/arena.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_POISON 1
#endif
#endif
#ifdef HAVE_POISON
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, len) ((void)(memory), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(memory, len) ((void)(memory), (void)(len))
#endif

#define UNIT UCM_STAGING_UNIT
#define FIRST ((size_t)2 << 20)  /* of a pool that grows, from the start */
#define STEP ((size_t)16 << 20)  /* and at least so much at a time, */
#define STEPS 32                 /* in no more pieces, about */

enum unit { UNIT_FREE, UNIT_TAKEN, UNIT_LOST };

struct piece {
	struct piece *next; /* that came after it */
	uint8_t *memory;
	size_t len;
	size_t num_units, num_free, num_lost;
	size_t turn;     /* where to search next */
	uint8_t units[]; /* enum unit */
};

struct ucm_staging {
	size_t limit; /* of all pieces */
	_Atomic size_t size; /* so much there is; others look at it */
	size_t taken; /* units */
	int node;
	const struct ucm_staging_ops *ops; /* NULL: it does not grow */
	void *arg;
	bool huge; /* the first piece was */
	struct piece *first;
	int refused; /* -errno: it could not grow, and is not asked to again
		      * while any slot is taken */
	bool told;
};

/* ---- pieces ---- */

static int piece_map(struct ucm_staging *staging, size_t len,
		     struct piece **out)
{
	struct piece *piece = calloc(1, sizeof(*piece) + len / UNIT);
	bool huge;
	int err;

	if (!piece)
		return -ENOMEM;
	piece->len = len;
	piece->num_units = piece->num_free = len / UNIT;
	piece->memory = ucm_arena_map(len, staging->node, &huge);
	err = piece->memory ? 0 : -ENOMEM;
	if (!err && staging->ops)
		err = staging->ops->take(staging->arg, piece->memory, len);
	if (err) {
		if (piece->memory)
			ucm_arena_unmap(piece->memory, len);
		free(piece);
		return err;
	}
	if (!staging->first)
		staging->huge = huge;
	*out = piece;
	return 0;
}

static int piece_add(struct ucm_staging *staging, size_t len)
{
	struct piece **at = &staging->first;
	int err;

	while (*at)
		at = &(*at)->next;
	err = piece_map(staging, len, at);
	if (!err)
		staging->size += len;
	return err;
}

static bool piece_is_unused(const struct piece *piece)
{
	return piece->num_free == piece->num_units;
}

static void piece_drop(struct ucm_staging *staging, struct piece **at)
{
	struct piece *piece = *at;

	*at = piece->next;
	staging->size -= piece->len;
	staging->ops->leave(staging->arg, piece->memory, piece->len);
	ucm_arena_unmap(piece->memory, piece->len);
	free(piece);
}

/* ---- open ---- */

static int staging_make(size_t len, size_t first, int node,
			const struct ucm_staging_ops *ops, void *arg,
			struct ucm_staging **out)
{
	struct ucm_staging *staging = calloc(1, sizeof(*staging));
	int err;

	if (!staging)
		return -ENOMEM;
	*staging = (struct ucm_staging){
		.limit = len, .node = node, .ops = ops, .arg = arg,
	};
	err = piece_add(staging, first);
	if (err) {
		ucm_error("staging: %zu bytes: %s", first, strerror(-err));
		free(staging);
		return err;
	}
	*out = staging;
	return 0;
}

int ucm_staging_open(size_t len, int node, struct ucm_staging **out)
{
	len = ucm_round_up(len, UCM_ARENA_PAGE);
	return staging_make(len, len, node, NULL, NULL, out);
}

int ucm_staging_open_pool(size_t len, int node,
			  const struct ucm_staging_ops *ops, void *arg,
			  struct ucm_staging **out)
{
	len = ucm_round_up(len, UCM_ARENA_PAGE);
	return staging_make(len, len <= STEP ? len : FIRST, node, ops, arg,
			    out);
}

void ucm_staging_close(struct ucm_staging *staging)
{
	if (!staging)
		return;
	assert(!staging->taken);
	while (staging->first) {
		struct piece *piece = staging->first;

		staging->first = piece->next;
		if (!piece->num_lost)
			ucm_arena_unmap(piece->memory, piece->len);
		free(piece);
	}
	free(staging);
}

uint8_t *ucm_staging_memory(const struct ucm_staging *staging)
{
	return staging->first->memory;
}

size_t ucm_staging_len(const struct ucm_staging *staging)
{
	return staging->refused ? staging->size : staging->limit;
}

size_t ucm_staging_limit(const struct ucm_staging *staging)
{
	return staging->limit;
}

size_t ucm_staging_size(const struct ucm_staging *staging)
{
	return staging->size;
}

bool ucm_staging_is_huge(const struct ucm_staging *staging)
{
	return staging->huge;
}

/* ---- growing ---- */

/* What a slot of that length is in: several of them, with little left over. */
static size_t piece_len(const struct ucm_staging *staging, size_t len)
{
	size_t step = staging->limit / STEPS;

	step = step > STEP ? step : STEP;
	len = ucm_round_up(len, UNIT);
	return ucm_round_up((step + len - 1) / len * len, UCM_ARENA_PAGE);
}

/* Pieces that nobody uses make room for one that a longer slot needs. */
static void make_room(struct ucm_staging *staging, size_t len)
{
	size_t room = staging->limit - staging->size;
	struct piece **at = &staging->first;

	for (struct piece *piece = *at; piece; piece = piece->next)
		room += piece_is_unused(piece) ? piece->len : 0;
	while (room >= len && staging->limit - staging->size < len) {
		if (piece_is_unused(*at))
			piece_drop(staging, at);
		else
			at = &(*at)->next;
	}
}

static void tell_refused(struct ucm_staging *staging, size_t len, int err)
{
	if (!staging->told)
		ucm_warning("staging: %zu bytes more: %s; going on with %zu of "
			    "%zu", len, strerror(-err), staging->size,
			    staging->limit);
	staging->told = true;
}

/* A piece for such a slot; a smaller one where the usual one is not to be had.
 * -EAGAIN: the limit is reached. */
static int grow(struct ucm_staging *staging, size_t len)
{
	size_t least = ucm_round_up(len, UCM_ARENA_PAGE), room, want;
	int err;

	if (!staging->ops || staging->limit < least)
		return -EAGAIN;
	if (staging->refused)
		return -EAGAIN;
	if (staging->limit - staging->size < least)
		make_room(staging, least);
	room = staging->limit - staging->size;
	if (room < least)
		return -EAGAIN;
	want = piece_len(staging, len);
	want = want < room ? want : room;
	err = piece_add(staging, want);
	if (err && want > least)
		err = piece_add(staging, least);
	if (err)
		tell_refused(staging, least, err);
	staging->refused = err;
	return err;
}

/* ---- slots ---- */

/* The first place for num units at or after from, or num_units. */
static size_t search(const struct piece *piece, size_t from, size_t num)
{
	size_t run = 0;

	for (size_t i = from; i < piece->num_units; i++) {
		run = piece->units[i] == UNIT_FREE ? run + 1 : 0;
		if (run == num)
			return i + 1 - num;
	}
	return piece->num_units;
}

static bool get_of_piece(struct piece *piece, size_t num, uint8_t **out)
{
	size_t at = piece->num_units;

	if (num <= piece->num_free)
		at = search(piece, piece->turn, num);
	if (at == piece->num_units && piece->turn && num <= piece->num_free)
		at = search(piece, 0, num);
	if (at == piece->num_units)
		return false;
	memset(piece->units + at, UNIT_TAKEN, num);
	piece->num_free -= num;
	piece->turn = at + num == piece->num_units ? 0 : at + num;
	*out = piece->memory + at * UNIT;
	return true;
}

static bool get_of_any(struct ucm_staging *staging, size_t num, uint8_t **out)
{
	for (struct piece *piece = staging->first; piece; piece = piece->next) {
		if (get_of_piece(piece, num, out))
			return true;
	}
	return false;
}

/* Will anybody give something back? */
static int no_room(const struct ucm_staging *staging, int err)
{
	if (staging->taken)
		return -EAGAIN;
	return err == -EAGAIN ? -EIO : err;
}

int ucm_staging_get(struct ucm_staging *staging, size_t len,
		    struct ucm_slot *out)
{
	size_t num = (len + UNIT - 1) / UNIT;
	uint8_t *memory;
	int err;

	if (!len || num > staging->limit / UNIT)
		return -EFBIG;
	if (!staging->taken)
		staging->refused = 0;
	if (!get_of_any(staging, num, &memory)) {
		err = grow(staging, len);
		if (err)
			return no_room(staging, err);
		get_of_any(staging, num, &memory);
	}
	staging->taken += num;
	*out = (struct ucm_slot){
		.memory = memory, .len = len, .state = UCM_SLOT_HELD,
	};
	return 0;
}

static struct piece *piece_of(const struct ucm_staging *staging,
			      const uint8_t *memory)
{
	struct piece *piece = staging->first;

	while ((uintptr_t)memory - (uintptr_t)piece->memory >= piece->len)
		piece = piece->next;
	return piece;
}

void ucm_staging_put(struct ucm_staging *staging, struct ucm_slot *slot)
{
	struct piece *piece = piece_of(staging, slot->memory);
	size_t at = (size_t)(slot->memory - piece->memory) / UNIT;
	size_t num = (slot->len + UNIT - 1) / UNIT;

	assert(slot->state == UCM_SLOT_HELD || slot->state == UCM_SLOT_LOST);
	if (slot->state == UCM_SLOT_LOST) {
		memset(piece->units + at, UNIT_LOST, num);
		piece->num_lost += num;
	} else {
		memset(piece->units + at, UNIT_FREE, num);
		piece->num_free += num;
	}
	staging->taken -= num;
	slot->state = UCM_SLOT_FREE;
	slot->memory = NULL;
}

void ucm_slot_move(struct ucm_slot *slot, enum ucm_slot_state from,
		   enum ucm_slot_state to)
{
	assert(slot->state == from);
	slot->state = to;
	if (to == UCM_SLOT_HELD)
		ASAN_UNPOISON_MEMORY_REGION(slot->memory, slot->len);
	else if (to == UCM_SLOT_IO)
		ASAN_POISON_MEMORY_REGION(slot->memory, slot->len);
}

void ucm_slot_copied(struct ucm_slot *slot, bool lost)
{
	ucm_slot_move(slot, UCM_SLOT_COPY,
		      lost ? UCM_SLOT_LOST : UCM_SLOT_HELD);
}
