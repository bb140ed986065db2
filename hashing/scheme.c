/* SPDX-License-Identifier: Apache-2.0 */
/* scheme.c - the schemes, by name and number, and what each can express. */
#include <config.h>

#include "hashing/hasher.h"

#include <errno.h>
#include <string.h>

static const struct ucm_scheme_info schemes[UCM_SCHEME_COUNT] = {
	[UCM_SCHEME_UCM] = {
		.name = "ucm",
		.encoder = &ucm_encode_ucm,
		.token_max = INT32_MAX,
		.meta = true,
		.plain = true,
		.ranks = true,
		.pickled = 2,
	},
	[UCM_SCHEME_CHAIN] = {
		.name = "chain",
		.encoder = &ucm_encode_chain,
		.token_max = INT32_MAX,
		.meta = true,
		.plain = true,
	},
	[UCM_SCHEME_PREFIX] = {
		.name = "prefix",
		.encoder = &ucm_encode_prefix,
		.token_max = UINT32_MAX,
	},
	[UCM_SCHEME_HEXCHAIN] = {
		.name = "hexchain",
		.encoder = &ucm_encode_hexchain,
		.token_max = INT32_MAX,
	},
	[UCM_SCHEME_SHA256] = {
		.name = "sha256",
		.token_max = UINT32_MAX,
		.meta = true,
		.extras = true,
		.ranks = true,
	},
	[UCM_SCHEME_EXTERNAL] = {
		.name = "external",
		.ranks = true,
	},
	[UCM_SCHEME_UCM2] = {
		.name = "ucm2",
		.encoder = &ucm_encode_ucm,
		.token_max = INT32_MAX,
		.meta = true,
		.plain = true,
		.ranks = true,
		.tail = true,
		.pickled = 3,
	},
};

const struct ucm_scheme_info *ucm_scheme_info(uint32_t scheme)
{
	return scheme < UCM_SCHEME_COUNT ? &schemes[scheme] : NULL;
}

const char *ucm_scheme_name(uint32_t scheme)
{
	return scheme < UCM_SCHEME_COUNT ? schemes[scheme].name : NULL;
}

int ucm_scheme_parse(const char *name, uint32_t *out)
{
	for (uint32_t i = 0; i < UCM_SCHEME_COUNT; i++) {
		if (!strcmp(name, schemes[i].name)) {
			*out = i;
			return 0;
		}
	}
	return -EINVAL;
}
