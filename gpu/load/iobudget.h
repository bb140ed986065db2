/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iobudget.h - how many bytes a loader may begin to read and write in a second,
 * and have under way: by its own options, and by its share of the node's.
 *
 * Any thread. The time is an argument where it can be; what the thread of a
 * budget does is ucm_iobudget_follow().
 */
#ifndef UCM_IOBUDGET_H
#define UCM_IOBUDGET_H

#include <ucm/error.h>

#include "gpu/load/sharers.h"
#include "gpu/load/node.h"

struct ucm_iobudget;

/* Who comes first, where not all can begin. The later ones are owed a part of
 * what the first ones begin, and a turn after a time. */
enum ucm_iobudget_class {
	UCM_IOBUDGET_DEMAND,
	UCM_IOBUDGET_LOW, /* loaded beforehand */
	UCM_IOBUDGET_SAVE,
};
#define UCM_IOBUDGET_CLASSES 3

/* mount: whose budget is shared, now or when it has one, or NULL. *out is NULL
 * where nothing will be limited; NULL is harmless to all calls. */
int ucm_iobudget_open(const struct ucm_limits *own, const char *mount,
		    struct ucm_iobudget **out, struct ucm_error *error);
/* Nothing is under way. Waits for the mount no longer than a little. */
void ucm_iobudget_close(struct ucm_iobudget *budget);

/* For tests: one that shares that memory, with no thread. */
struct ucm_iobudget *ucm_iobudget_of(const struct ucm_limits *own,
				 const struct ucm_limits *node,
				 struct ucm_sharers_memory *memory,
				 int64_t now_ns);

/* May so much be begun? Then it counts against the rate; else *until_ns is when to
 * ask again. */
bool ucm_iobudget_take(struct ucm_iobudget *budget,
		       enum ucm_iobudget_class class, uint64_t bytes,
		       int64_t now_ns, int64_t *until_ns);
/* It is begun: its class has had its turn, and the others are owed a part. */
void ucm_iobudget_begin(struct ucm_iobudget *budget,
			enum ucm_iobudget_class class, uint64_t bytes,
			int64_t now_ns);
/* It was not begun, or came to nothing. */
void ucm_iobudget_give_back(struct ucm_iobudget *budget, uint64_t bytes);

/* It is under way; it no longer is. */
void ucm_iobudget_enter(struct ucm_iobudget *budget, uint64_t bytes);
void ucm_iobudget_leave(struct ucm_iobudget *budget, uint64_t bytes);

/* Tell the others what we want, and learn what is ours. False: we want nothing,
 * and need not do so again before something is taken. */
bool ucm_iobudget_follow(struct ucm_iobudget *budget, int64_t now_ns);

#endif
