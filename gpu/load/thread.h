/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - the threads of a loader: each runs an engine (thread.c), and does what
 * others want of it (mail.c).
 */
#ifndef UCM_LOAD_THREAD_H
#define UCM_LOAD_THREAD_H

#include "gpu/load/engine/engine.h"

/* Start a thread. The engine is the caller's memory, zeroed. */
int ucm_engine_start(struct ucm_engine *engine, struct ucm_shared *shared,
		     unsigned number, struct ucm_error *error);
/* End its thread. All tasks must be done; I/O that came too late is waited for.
 * Engines that are left may go on waking this one. */
void ucm_engine_stop(struct ucm_engine *engine);
/* When those of the loader have stopped. */
void ucm_engine_close(struct ucm_engine *engine);

/* From other threads; these two wait, and are called by one of them at a time.
 * A group is removed when nobody uses it: no task has a reference of the loader.
 * What was saved of blocks that are not whole is dropped. */
int ucm_engine_add_group(struct ucm_engine *engine, struct ucm_group *group);
void ucm_engine_remove_group(struct ucm_engine *engine,
			     struct ucm_group *group);
/* From other threads. */
void ucm_engine_post(struct ucm_engine *engine, struct ucm_part *part);
void ucm_engine_abandon(struct ucm_engine *engine, struct ucm_abandon *abandon);
void ucm_engine_wake(struct ucm_engine *engine);
/* The engine's: take in what the others want; false: it is to stop. */
bool ucm_engine_take_mail(struct ucm_engine *engine);
/* There is some. */
void ucm_engine_mail(struct ucm_engine *engine);
/* Have a stream wait for the copies that are queued by now; see copy.h. */
int ucm_engine_join(struct ucm_engine *engine, void *stream);

#endif
