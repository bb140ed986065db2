/* SPDX-License-Identifier: Apache-2.0 */
/* drafts_fixture.h - two clients of a server, and blocks for them. */
#ifndef UCM_TESTS_DRAFTS_FIXTURE_H
#define UCM_TESTS_DRAFTS_FIXTURE_H

#include "tests/unit/serve_fixture.h"

/* Thousands of files are made and removed. */
static void __attribute__((constructor)) use_memory(void)
{
	fx_use_memory();
}

static struct ucm_client *client, *second;
static struct fx_file file, other;

static inline void close_clients(void)
{
	ucm_client_close(client);
	ucm_client_close(second);
	client = second = NULL;
}

static inline void setup(void)
{
	fx_setup_served();
	fx_at_end(close_clients);
	client = fx_client();
	second = fx_client();
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
}

static inline int one(enum ucm_serve_verb verb, const struct fx_file *of)
{
	return fx_one_id(client, verb, NULL, of);
}

#endif
