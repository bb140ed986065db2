/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_read.h - reads a trace to be replayed: lines of JSON as published
 * traces have them, or an access trace of a mount (ucm-trace(5)).
 */
#ifndef UCM_TOOLS_TRACE_REPLAY_READ_H
#define UCM_TOOLS_TRACE_REPLAY_READ_H

#include "fs/replay/replay.h"

/* Into an empty trace, for ucm_replay_trace_fini(). Where it cannot be read the
 * process ends (reported). */
void ucm_replay_read(const char *path, struct ucm_replay_trace *trace);

#endif
