/* SPDX-License-Identifier: Apache-2.0 */
/* value.c - between the entries of the index and the policy; see value.h. */
#include <config.h>

#include "fs/store/value.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "fs/config/config.h"
#include "fs/store/store.h"

#define FIRST_CAPACITY UINT64_C(65536)

uint32_t ucm_value_now(void)
{
	return (uint32_t)time(NULL);
}

/* Ids are hashes already; two spaces may have the same. */
uint64_t ucm_value_tag(const struct ucm_key *key)
{
	uint64_t word;

	memcpy(&word, key->id.bytes, sizeof(word));
	return word ^ (uint64_t)key->space * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t value_tag(const struct ucm_entry *entry)
{
	const struct ucm_key key = {.id = entry->id, .space = entry->space};

	return ucm_value_tag(&key);
}

struct ucm_policy_state ucm_value_state(const struct ucm_entry *entry)
{
	return (struct ucm_policy_state){
		.last_s = entry->atime_s,
		.uses = entry->wanted,
		.mark = entry->mark,
	};
}

static void value_keep(struct ucm_entry *entry,
		       const struct ucm_policy_state *state)
{
	entry->atime_s = state->last_s;
	entry->wanted = state->uses < UINT8_MAX ? (uint8_t)state->uses
						: UINT8_MAX;
	entry->mark = state->mark;
}

int ucm_value_open(struct ucm_value *value, const char *name,
		   struct ucm_error *error)
{
	const struct ucm_policy_ops *ops = ucm_policy_find(name);
	uint64_t seed = 0;

	pthread_mutex_init(&value->lock, NULL);
	value->capacity = FIRST_CAPACITY;
	if (!strcmp(name, UCM_POLICY_NONE))
		return 0;
	if (!ops)
		return ucm_error_set(error, -EINVAL,
				     "policy '%s': use hazard, lru or none",
				     name);
	if (getrandom(&seed, sizeof(seed), 0) < 0)
		seed = ucm_value_now();
	return ops->new(seed, FIRST_CAPACITY, &value->policy);
}

void ucm_value_close(struct ucm_value *value)
{
	ucm_policy_free(value->policy);
	value->policy = NULL;
	pthread_mutex_destroy(&value->lock);
}

void ucm_value_use(struct ucm_value *value, struct ucm_entry *entry)
{
	struct ucm_policy_state state = ucm_value_state(entry);
	uint64_t tag = value_tag(entry);
	uint32_t now = ucm_value_now();
	bool locks;

	entry->uses++;
	entry->atime_s = now;
	if (!value->policy)
		return;
	locks = value->policy->ops->monitors(value->policy, tag);
	if (locks)
		pthread_mutex_lock(&value->lock);
	value->policy->ops->use(value->policy, now, tag, &state);
	if (locks)
		pthread_mutex_unlock(&value->lock);
	value_keep(entry, &state);
	entry->atime_s = now;
}

void ucm_value_fresh(struct ucm_value *value, struct ucm_entry *entry,
		     const struct ucm_entry *before)
{
	struct ucm_policy_state state, parent;

	if (!value->policy)
		return;
	if (before)
		parent = ucm_value_state(before);
	pthread_mutex_lock(&value->lock);
	value->policy->ops->fresh(value->policy, ucm_value_now(), value_tag(entry),
				  before ? &parent : NULL, &state);
	pthread_mutex_unlock(&value->lock);
	value_keep(entry, &state);
}

void ucm_value_added(struct ucm_value *value, const struct ucm_entry *entry)
{
	struct ucm_policy_state state = ucm_value_state(entry);

	if (!value->policy)
		return;
	pthread_mutex_lock(&value->lock);
	value->policy->ops->added(value->policy, value_tag(entry), &state);
	pthread_mutex_unlock(&value->lock);
}

void ucm_value_gone(struct ucm_value *value, const struct ucm_entry *entry,
		    enum ucm_policy_why why)
{
	struct ucm_policy_state state = ucm_value_state(entry);

	if (!value->policy)
		return;
	pthread_mutex_lock(&value->lock);
	value->policy->ops->gone(value->policy, ucm_value_now(), value_tag(entry), &state,
				 why);
	pthread_mutex_unlock(&value->lock);
}

/* ---- requests ---- */

static void edit_state(struct ucm_entry *entry, void *arg)
{
	value_keep(entry, arg);
}

void ucm_value_ask(struct ucm_value *value, struct ucm_policy_request *request)
{
	pthread_mutex_lock(&value->lock);
	value->policy->ops->ask(value->policy, ucm_value_now(), request);
	pthread_mutex_unlock(&value->lock);
}

void ucm_value_refused(struct ucm_value *value, const struct ucm_key *key,
		       const struct ucm_policy_state *state)
{
	pthread_mutex_lock(&value->lock);
	value->policy->ops->gone(value->policy, ucm_value_now(), ucm_value_tag(key),
				 state, UCM_POLICY_REFUSED);
	pthread_mutex_unlock(&value->lock);
}

void ucm_value_asked(struct ucm_store *store, uint16_t space,
		     const struct ucm_id *ids, size_t num)
{
	_cleanup_free_ struct ucm_policy_asked *blocks = NULL;
	_cleanup_free_ ucm_ref *refs = NULL;
	struct ucm_policy_request request = {.num = num};

	if (!store->value.policy || !num)
		return;
	blocks = calloc(num, sizeof(*blocks));
	refs = calloc(num, sizeof(*refs));
	if (!blocks || !refs)
		return; /* a request that it does not learn from */
	request.blocks = blocks;
	for (size_t i = 0; i < num; i++) {
		struct ucm_key key = {.id = ids[i], .space = space};
		struct ucm_entry entry;

		blocks[i].tag = ucm_value_tag(&key);
		blocks[i].present = ucm_index_find(store->index, &key, &entry,
						   &refs[i]);
		if (blocks[i].present)
			blocks[i].state = ucm_value_state(&entry);
	}
	ucm_value_ask(&store->value, &request);
	for (size_t i = 0; i < num; i++) {
		if (blocks[i].present)
			ucm_index_edit(store->index, refs[i], edit_state,
				       &blocks[i].state);
	}
}

void ucm_value_learn(struct ucm_value *value, uint64_t blocks)
{
	uint64_t capacity = value->capacity;

	if (!value->policy)
		return;
	/* four bytes each: not many more than there are blocks */
	if (capacity < blocks)
		capacity = blocks + blocks / 3;
	pthread_mutex_lock(&value->lock);
	if (capacity != value->capacity &&
	    !value->policy->ops->resize(value->policy, capacity))
		value->capacity = capacity;
	value->policy->ops->learn(value->policy, ucm_value_now());
	pthread_mutex_unlock(&value->lock);
}
