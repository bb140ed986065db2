/* SPDX-License-Identifier: Apache-2.0 */
/* wait.c - what may wait for a directory; see wait.h. */
#include <config.h>

#include "fs/tier/wait.h"

#include <errno.h>

#include "common/osguard.h"

static _Thread_local unsigned waited_for = UCM_WAIT_MANY;

int ucm_wait_long(unsigned dir)
{
	if (!ucm_must_not_wait)
		return 0;
	waited_for = dir;
	return -EINPROGRESS;
}

int ucm_wait_for(const struct ucm_dirs *dirs, unsigned dir)
{
	return dirs->at[dir]->guard ? ucm_wait_long(dir) : 0;
}

static bool is_any_guarded(const struct ucm_dirs *dirs)
{
	for (unsigned dir = 0; dir < dirs->num; dir++) {
		if (dirs->at[dir]->guard)
			return true;
	}
	return false;
}

int ucm_wait_for_any(const struct ucm_dirs *dirs)
{
	return is_any_guarded(dirs) ? ucm_wait_long(UCM_WAIT_MANY) : 0;
}

unsigned ucm_waited_for(void)
{
	return waited_for;
}
