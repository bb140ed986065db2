/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifeline.h - a word in shared memory that says whether a thread lives.
 *
 * The kernel itself changes the word when the thread ends, also by SIGKILL: it
 * takes the word for a robust futex (set_robust_list(2)) that the thread holds.
 * Whoever maps the word sees it without a call. One word for each thread; the
 * thread must hold no robust mutex of the C library's meanwhile.
 */
#ifndef UCM_LIFELINE_H
#define UCM_LIFELINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ucm_lifeline_list;

struct ucm_lifeline {
	struct ucm_lifeline_list *list; /* NULL: not held */
	_Atomic uint32_t *word;
	void *before; /* the C library's list of this thread */
};

/* From now on the word stands for the calling thread. A child made by fork(2)
 * does not hold it. 0 or -errno (the word is as it was). */
int ucm_lifeline_hold(struct ucm_lifeline *line, _Atomic uint32_t *word);

/* By the same thread; the word says "dead". Harmless if it is not held. */
void ucm_lifeline_release(struct ucm_lifeline *line);

/* Does the word, as it was read, say that its thread lives? */
static inline bool ucm_lifeline_lives(uint32_t word)
{
	return word & 0x3fffffff; /* FUTEX_TID_MASK */
}

#endif
