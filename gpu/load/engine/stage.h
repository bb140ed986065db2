/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.h - the staging memory of an engine, pinned as it grows.
 */
#ifndef UCM_STAGE_H
#define UCM_STAGE_H

#include "gpu/load/engine/engine.h"

/* After its copy back end and its ring are open. */
int ucm_stage_open(struct ucm_engine *engine, struct ucm_error *error);

#endif
