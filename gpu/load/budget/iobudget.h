/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iobudget.h - how many bytes a loader may begin to read and write in a second,
 * and have in flight: by its own limits, and by the daemon's settings.
 *
 * Any thread. The time is an argument where it can be.
 */
#ifndef UCM_IOBUDGET_H
#define UCM_IOBUDGET_H

#include <ucm/error.h>

#include "gpu/load/budget/node.h"

/* Of the node's rate a loader reserves so much at a time. */
#define UCM_IOBUDGET_SLICE_NS INT64_C(1000000)

struct ucm_iobudget;

/* Who comes first, where not all can begin. The later ones are owed a part of
 * what the first ones begin, and a turn after a time. */
enum ucm_iobudget_class {
	UCM_IOBUDGET_DEMAND,
	UCM_IOBUDGET_LOW, /* loaded beforehand */
	UCM_IOBUDGET_SAVE,
};
#define UCM_IOBUDGET_CLASSES 3

/* mount: whose budget is kept, or NULL. *out is NULL where nothing will be limited;
 * NULL is harmless to all calls. */
int ucm_iobudget_open(const struct ucm_limits *own, const char *mount,
		    struct ucm_iobudget **out, struct ucm_error *error);
/* Nothing is in flight. */
void ucm_iobudget_close(struct ucm_iobudget *budget);

/* May so much be begun? Then it counts against the rate; else *until_ns is when to
 * ask again. */
bool ucm_iobudget_take(struct ucm_iobudget *budget,
		       enum ucm_iobudget_class class, uint64_t bytes,
		       int64_t now_ns, int64_t *until_ns);
/* Pay what is still owed for what was begun, as far as its time has come. When to do
 * so again; 0: nothing is owed. */
int64_t ucm_iobudget_pay(struct ucm_iobudget *budget, int64_t now_ns);
/* It is begun: its class has had its turn, and the others are owed a part. */
void ucm_iobudget_begin(struct ucm_iobudget *budget,
			enum ucm_iobudget_class class, uint64_t bytes,
			int64_t now_ns);
/* It was not begun, or came to nothing. */
void ucm_iobudget_give_back(struct ucm_iobudget *budget, uint64_t bytes);

/* It is in flight; it no longer is. */
void ucm_iobudget_enter(struct ucm_iobudget *budget, uint64_t bytes);
void ucm_iobudget_leave(struct ucm_iobudget *budget, uint64_t bytes);

/* Has the daemon ended, and has nobody looked for the next one of late? Then the
 * caller must call ucm_iobudget_look(), which may wait for the daemon: a thread that
 * may wait, too. Until it has found one the old memory is used. */
bool ucm_iobudget_must_look(struct ucm_iobudget *budget, int64_t now_ns);
void ucm_iobudget_look(struct ucm_iobudget *budget);

#endif
