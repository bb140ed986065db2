/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - work that goes after other work, but not never.
 */
#include <config.h>

#include "gpu/load/budget/share.h"

/* What is owed to somebody who cannot take it for long is not had at once. */
#define MOST ((uint64_t)64 << 20)

void ucm_share_wait(struct ucm_share *share, bool waits, int64_t now_ns)
{
	if (waits == share->waits)
		return;
	share->waits = waits;
	share->owed = 0;
	share->since_ns = now_ns;
}

void ucm_share_owe(struct ucm_share *share, uint64_t bytes, unsigned part)
{
	if (!share->waits)
		return;
	share->owed += bytes / part;
	if (share->owed > MOST)
		share->owed = MOST;
}

bool ucm_share_is_due(const struct ucm_share *share, uint64_t bytes,
		      int64_t age_ns, int64_t now_ns)
{
	if (bytes > MOST)
		bytes = MOST;
	return share->waits && (share->owed >= bytes ||
				now_ns - share->since_ns >= age_ns);
}

int64_t ucm_share_until(const struct ucm_share *share, int64_t age_ns,
			int64_t now_ns)
{
	int64_t left = share->since_ns + age_ns - now_ns;

	if (!share->waits)
		return -1;
	return left > 0 ? left : 0;
}

void ucm_share_take(struct ucm_share *share, uint64_t bytes, int64_t now_ns)
{
	share->owed -= bytes < share->owed ? bytes : share->owed;
	share->since_ns = now_ns;
}
