/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.h - saving: what the loop of an engine calls.
 */
#ifndef UCM_LOAD_SAVE_H
#define UCM_LOAD_SAVE_H

#include "gpu/load/engine/engine.h"

/* Start the next block of a part, if there is room. */
bool ucm_save_start(struct ucm_engine *engine, struct ucm_part *part);
void ucm_save_give_up(struct ucm_engine *engine, struct ucm_part *part,
		      int err);
/* Begin what was copied into the write buffer; once in a round. */
void ucm_save_go(struct ucm_engine *engine);
/* Go on with those that waited for staging memory. */
void ucm_save_feed(struct ucm_engine *engine);
/* Those that wait and have been given up end, whatever is before them. */
void ucm_save_end_given_up(struct ucm_engine *engine);
/* What was saved of blocks that are not whole is removed; and what will be by
 * parts that came before. */
void ucm_save_abandon_now(struct ucm_engine *engine,
			  const struct ucm_abandon *abandon);

#endif
