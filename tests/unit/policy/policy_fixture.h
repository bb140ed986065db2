/* SPDX-License-Identifier: Apache-2.0 */
/* policy_fixture.h - a policy that is asked for blocks. */
#ifndef UCM_TESTS_POLICY_FIXTURE_H
#define UCM_TESTS_POLICY_FIXTURE_H

#include "fs/policy/policy.h"
#include "tests/unit/unit.h"

#define LONGEST 64

/* ---- policies ---- */

static struct ucm_policy *policy;
static struct ucm_policy_asked asked[LONGEST];

static inline void open_policy(const struct ucm_policy_ops *ops)
{
	ck_assert_int_eq(ops->new(1, 1000, &policy), 0);
}

static inline void close_policy(void)
{
	ucm_policy_free(policy);
	policy = NULL;
}

/* Ask for the blocks tag, tag + 1, ...; those that are there keep their
 * states in asked[]. */
static inline void ask(uint32_t now_s, uint64_t tag, size_t num, size_t present)
{
	struct ucm_policy_request request = { asked, num, NULL };

	for (size_t i = 0; i < num; i++) {
		asked[i].tag = tag + i;
		asked[i].present = i < present;
	}
	policy->ops->ask(policy, now_s, &request);
}

static inline void add_all(size_t num)
{
	for (size_t i = 0; i < num; i++)
		policy->ops->added(policy, asked[i].tag, &asked[i].state);
}

#endif
