/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - how long a group is there. */
#include <config.h>

#include "gpu/load/task/group.h"

#include <stdlib.h>

void ucm_group_get(struct ucm_group *group)
{
	atomic_fetch_add(&group->refs, 1);
}

void ucm_group_put(struct ucm_group *group)
{
	if (atomic_fetch_sub(&group->refs, 1))
		return;
	ucm_layout_free(group->layout);
	free(group);
}
