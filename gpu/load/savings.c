/* SPDX-License-Identifier: Apache-2.0 */
/*
 * savings.c - which blocks an engine is saving, by group and id. Where layers
 * are saved one by one there are many thousands.
 */
#include <config.h>

#include "gpu/load/saving.h"

#include <assert.h>

/* As struct ucm_saving has them, one after the other. */
struct key {
	const struct ucm_group *group;
	struct ucm_id id;
};

struct ucm_saving *ucm_savings_find(const struct ucm_savings *savings,
				    const struct ucm_group *group,
				    const struct ucm_id *id)
{
	const struct key key = { .group = group, .id = *id };
	struct ucm_saving *saving;

	HASH_FIND(hh, savings->all, &key, sizeof(key), saving);
	return saving;
}

bool ucm_savings_add(struct ucm_savings *savings, struct ucm_saving *saving)
{
	static_assert(offsetof(struct ucm_saving, id) -
				      offsetof(struct ucm_saving, group) ==
			      offsetof(struct key, id),
		      "the key is in one piece");
	HASH_ADD(hh, savings->all, group, sizeof(struct key), saving);
	return saving->hh.tbl;
}

void ucm_savings_remove(struct ucm_savings *savings, struct ucm_saving *saving)
{
	HASH_DEL(savings->all, saving);
}
