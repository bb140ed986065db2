/* SPDX-License-Identifier: Apache-2.0 */
/* abandon.c - a sorted array of ids; see abandon.h. */
#include <config.h>

#include "gpu/load/task/abandon.h"

#include <stdlib.h>
#include <string.h>

static int compare_ids(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct ucm_id));
}

struct ucm_abandon *ucm_abandon_new(struct ucm_group *group,
				    const struct ucm_id *ids, size_t num)
{
	struct ucm_abandon *abandon =
		calloc(1, sizeof(*abandon) + num * sizeof(*ids));

	if (!abandon)
		return NULL;
	abandon->group = group;
	ucm_group_get(group);
	abandon->num = num;
	if (num) {
		memcpy(abandon->ids, ids, num * sizeof(*ids));
		qsort(abandon->ids, num, sizeof(*ids), compare_ids);
	}
	return abandon;
}

void ucm_abandon_free(struct ucm_abandon *abandon)
{
	ucm_group_put(abandon->group);
	free(abandon);
}

bool ucm_abandon_means(const struct ucm_abandon *abandon,
		       const struct ucm_group *group, const struct ucm_id *id)
{
	if (abandon->group && abandon->group != group)
		return false;
	return !abandon->num || bsearch(id, abandon->ids, abandon->num,
					sizeof(*id), compare_ids);
}
