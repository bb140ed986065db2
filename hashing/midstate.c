/* SPDX-License-Identifier: Apache-2.0 */
/* midstate.c - what is the same at the start of many messages is hashed once.
 */
#include <config.h>

#include "hashing/explain.h"

#include <string.h>

void ucm_midstate_init(struct ucm_midstate *lead)
{
	memset(lead, 0, sizeof(*lead));
	memcpy(lead->state, ucm_md5_init, sizeof(lead->state));
}

void ucm_midstate_add(void *arg, const char *name, const void *bytes,
		      size_t len)
{
	struct ucm_midstate *lead = arg;
	const uint8_t *from = bytes;

	(void)name;
	while (len > 0) {
		size_t have = ucm_midstate_rest(lead);
		size_t part = UCM_MD5_CHUNK - have;

		if (part > len)
			part = len;
		memcpy(lead->rest + have, from, part);
		lead->bytes += part;
		from += part;
		len -= part;
		if (ucm_midstate_rest(lead) == 0)
			ucm_md5_one(lead->state, lead->rest, 1);
	}
}

void ucm_midstate_meta(const struct ucm_hasher *hasher, uint32_t rank,
		       struct ucm_midstate *out)
{
	ucm_midstate_init(out);
	ucm_explain_meta(hasher, rank, ucm_midstate_add, out);
}
