/* SPDX-License-Identifier: Apache-2.0 */
/*
 * completions.h - tasks that something has become of and that have not been
 * taken since, in that order.
 */
#ifndef UCM_COMPLETIONS_H
#define UCM_COMPLETIONS_H

#include <ucm/load.h>

#include "gpu/load/task/task.h"

/* A task that names the queue is done, or its pages are free, or what it had lent has
 * come back: it is put there, unless it is there still. Its lock is held. */
void ucm_completions_add(struct ucm_task *task);

/* It is going to be freed: nobody takes it any more. */
void ucm_completions_remove(struct ucm_task *task);

#endif
