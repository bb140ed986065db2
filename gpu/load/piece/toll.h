/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toll.h - what an engine asks of the loader's budget (iobudget.h), and when it
 * asks again. Without a budget all is allowed.
 */
#ifndef UCM_TOLL_H
#define UCM_TOLL_H

#include "gpu/load/budget/iobudget.h"
#include "gpu/load/engine/engine.h"

/* May so many bytes be read or written now? They are paid for, until they are
 * given back; else whoever waits for room is fed when it is worth asking again. */
bool ucm_toll_pay(struct ucm_engine *engine, enum ucm_iobudget_class class,
		  uint64_t bytes);
/* Nothing will keep them from it any more. */
void ucm_toll_begin(struct ucm_engine *engine, enum ucm_iobudget_class class,
		    uint64_t bytes);

/* So many bytes of a piece are under way; not of one whose lane is late. They no
 * longer are: it has been read, or given up. */
void ucm_toll_enter(struct ucm_piece *piece, uint64_t bytes);
void ucm_toll_leave(struct ucm_piece *piece);
/* The lane is late: what it has under way shall not keep others waiting. */
void ucm_toll_leave_lane(struct ucm_engine *engine, const struct ucm_lane *lane);

/* Each round: pay what is owed and feed, if it is time. */
void ucm_toll_look(struct ucm_engine *engine, int64_t now_ns);
/* Until then in ns; -1: nothing waits or is owed. */
int64_t ucm_toll_until(const struct ucm_engine *engine, int64_t now_ns);

#endif
