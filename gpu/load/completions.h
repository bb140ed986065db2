/* SPDX-License-Identifier: Apache-2.0 */
/*
 * completions.h - tasks that are done and have not been taken, in that order.
 */
#ifndef UCM_COMPLETIONS_H
#define UCM_COMPLETIONS_H

#include <ucm/load.h>

#include "gpu/load/task.h"

/* A task that names the queue is done, or what it had lent has come back. Its
 * lock is held. One that is in there is not put there twice. */
void ucm_completions_add(struct ucm_task *task);

/* It is going to be freed: nobody takes it any more. */
void ucm_completions_remove(struct ucm_task *task);

#endif
