/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.h - the staging memory of an engine: pinned as it grows, and given
 * back when it has been idle for long.
 */
#ifndef UCM_STAGE_H
#define UCM_STAGE_H

#include "gpu/load/engine/engine.h"

/* After its copy back end and its ring are open. */
int ucm_stage_open(struct ucm_engine *engine, struct ucm_error *error);

/* Give up what has not been used for so long (shared->staging_idle_ns). Until
 * that will be, in ns; -1: not before it is used again. */
int64_t ucm_stage_expire(struct ucm_engine *engine, int64_t now_ns);

#endif
