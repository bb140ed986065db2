/* SPDX-License-Identifier: Apache-2.0 */
/* policy.c - policies by name. */
#include <config.h>

#include <string.h>

#include "fs/policy/policy.h"

static const struct ucm_policy_ops *const policies[] = {
	&ucm_policy_hazard,
	&ucm_policy_lru,
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

const char *ucm_policy_name(unsigned number)
{
	return number < LENGTH(policies) ? policies[number]->name : NULL;
}

const struct ucm_policy_ops *ucm_policy_find(const char *name)
{
	for (size_t i = 0; i < LENGTH(policies); i++) {
		if (!strcmp(policies[i]->name, name))
			return policies[i];
	}
	return NULL;
}
