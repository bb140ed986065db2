/* SPDX-License-Identifier: Apache-2.0 */
/*
 * savings.c - which blocks an engine is saving, by group and id, and what it keeps of
 * each. Where layers are saved one by one there are many thousands.
 */
#include <config.h>

#include "gpu/load/save/saving.h"

#include <assert.h>
#include <stdlib.h>

struct ucm_saving *ucm_savings_find(const struct ucm_savings *savings,
				    const struct ucm_group *group,
				    const struct ucm_id *id)
{
	const struct ucm_group_key key = { .group = group, .id = *id };
	struct ucm_saving *saving;

	HASH_FIND(hh, savings->all, &key, sizeof(key), saving);
	return saving;
}

bool ucm_savings_add(struct ucm_savings *savings, struct ucm_saving *saving)
{
	static_assert(offsetof(struct ucm_saving, id) -
				      offsetof(struct ucm_saving, group) ==
			      offsetof(struct ucm_group_key, id),
		      "the key is in one piece");
	HASH_ADD(hh, savings->all, group, sizeof(struct ucm_group_key), saving);
	return saving->hh.tbl;
}

void ucm_savings_remove(struct ucm_savings *savings, struct ucm_saving *saving)
{
	HASH_DEL(savings->all, saving);
}

/* ---- what one has ---- */

void ucm_saving_free(struct ucm_saving *saving)
{
	if (saving->stays_open)
		saving->engine->savings.open--;
	ucm_group_put(saving->group);
	free(saving->crcs);
	free(saving->have);
	free(saving->head);
	free(saving);
}

/* Layers come around again and again: the first files stay open, and all others
 * are opened once in each round. */
static void plan_between_turns(struct ucm_saving *saving)
{
	struct ucm_engine *engine = saving->engine;

	saving->stays_open =
		engine->savings.open < engine->shared->most_saves;
	saving->rests = !saving->stays_open;
	engine->savings.open += saving->stays_open;
}

struct ucm_saving *ucm_saving_new(struct ucm_engine *engine,
				  const struct ucm_task *task,
				  const struct ucm_id *id)
{
	struct ucm_group *group = task->group;
	uint32_t layers = group->layout->geometry.num_layers;
	struct ucm_saving *saving = calloc(1, sizeof(*saving));

	if (!saving)
		return NULL;
	saving->group = group;
	ucm_group_get(group);
	saving->crcs = calloc(2 * (size_t)layers, sizeof(*saving->crcs));
	saving->have = calloc(layers, 1);
	if (!saving->crcs || !saving->have) {
		ucm_saving_free(saving);
		return NULL;
	}
	saving->engine = engine;
	saving->id = *id;
	saving->fd = -1;
	if (!ucm_task_is_whole(task))
		plan_between_turns(saving);
	saving->missing = layers;
	if (ucm_savings_add(&engine->savings, saving))
		return saving;
	ucm_saving_free(saving);
	return NULL;
}
