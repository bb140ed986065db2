/* SPDX-License-Identifier: Apache-2.0 */
/*
 * members.h - the blocks of a directory, to draw some of them at random.
 *
 * Places in the index (ucm_ref_place()), 4 bytes each, in no order. An entry
 * that goes is not looked for here: it is dropped when it is drawn. So a place
 * may be listed that is empty by now, or has another block, or is there twice;
 * whoever draws looks at what it finds. When the list has become much longer
 * than what it stands for, it is made anew.
 *
 * Any thread may call.
 */
#ifndef UCM_MEMBERS_H
#define UCM_MEMBERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct ucm_members {
	pthread_mutex_t lock; /* guards the rest */
	uint32_t *places;
	uint32_t num, room;
	bool lacks_some; /* there was no memory */
};

void ucm_members_init(struct ucm_members *members);
void ucm_members_fini(struct ucm_members *members);

/* Without memory it is left out, and the list has to be made anew. */
void ucm_members_add(struct ucm_members *members, uint32_t place);

/* The one with that number, modulo how many there are; false: there is none. */
bool ucm_members_draw(struct ucm_members *members, uint64_t number,
		      uint32_t *place_out);
/* What was drawn by that number is none, or no longer: unless another has its
 * place on the list by now. */
void ucm_members_drop(struct ucm_members *members, uint64_t number,
		      uint32_t place);

/* Is it to be made anew, where there are so many? It is empty after that. */
bool ucm_members_begin_anew(struct ucm_members *members, uint64_t num);

#endif
