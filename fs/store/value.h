/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value.h - what the blocks of the store are worth, as its policy sees it.
 *
 * The policy's state of a block is kept in its entry: atime_s, wanted, mark. The
 * lock here is the innermost of all, so that an entry can be handed over while
 * it is edited.
 */
#ifndef UCM_VALUE_H
#define UCM_VALUE_H

#include <pthread.h>
#include <stdint.h>

#include <ucm/error.h>

#include "fs/index/index.h"
#include "fs/policy/policy.h"

struct ucm_store;

struct ucm_value {
	struct ucm_policy *policy; /* NULL: blocks stay */
	pthread_mutex_t lock;
	uint64_t capacity; /* that the policy knows of */
};

/* name: of a policy, or "none". -EINVAL, with the cause in error. */
int ucm_value_open(struct ucm_value *value, const char *name,
		   struct ucm_error *error);
void ucm_value_close(struct ucm_value *value);

/* An entry that is being edited was used just now. */
void ucm_value_use(struct ucm_value *value, struct ucm_entry *entry);

/* What a block is that is about to be indexed; before: its parent, or NULL. */
void ucm_value_fresh(struct ucm_value *value, struct ucm_entry *entry,
		     const struct ucm_entry *before);
void ucm_value_added(struct ucm_value *value, const struct ucm_entry *entry);
void ucm_value_gone(struct ucm_value *value, const struct ucm_entry *entry,
		    enum ucm_policy_why why);

/* What a block is to the policy. */
uint64_t ucm_value_tag(const struct ucm_key *key);

/* A request, whose states are the caller's; there is a policy. */
void ucm_value_ask(struct ucm_value *value, struct ucm_policy_request *request);
/* A block that would have had this state was not let in. */
void ucm_value_refused(struct ucm_value *value, const struct ucm_key *key,
		       const struct ucm_policy_state *state);

/* A program asks for a chain of blocks, head first. */
void ucm_value_asked(struct ucm_store *store, uint16_t space,
		     const struct ucm_id *ids, size_t num);

/* Once a second or so; blocks: how many there are. */
void ucm_value_learn(struct ucm_value *value, uint64_t blocks);

struct ucm_policy_state ucm_value_state(const struct ucm_entry *entry);
uint32_t ucm_value_now(void);

#endif
