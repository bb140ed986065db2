/* SPDX-License-Identifier: Apache-2.0 */
/* midstate.c - what is the same at the start of many messages is hashed once.
 */
#include <config.h>

#include "hashing/hasher.h"

#include <stdio.h>
#include <string.h>

void ucm_midstate_init(struct ucm_midstate *lead)
{
	memset(lead, 0, sizeof(*lead));
	memcpy(lead->state, ucm_md5_init, sizeof(lead->state));
}

void ucm_midstate_add(struct ucm_midstate *lead, const void *bytes, size_t len)
{
	const uint8_t *from = bytes;

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

void ucm_midstate_add_decimal(struct ucm_midstate *lead, uint32_t number)
{
	char text[16];

	ucm_midstate_add(lead, text,
			 (size_t)snprintf(text, sizeof(text), "%u", number));
}
