/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_fixture.h - a client of a server, and two blocks of which one is there.
 */
#ifndef UCM_TESTS_PEER_FIXTURE_H
#define UCM_TESTS_PEER_FIXTURE_H

#include "tests/unit/serve_fixture.h"

static struct ucm_client *client;
static struct fx_file file, other;

static inline void close_client(void)
{
	ucm_client_close(client);
	client = NULL;
}

static inline void setup_peer(void)
{
	client = fx_client();
	fx_at_end(close_client);
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
}

static inline void setup(void)
{
	fx_setup_served();
	setup_peer();
}

static inline int one(enum ucm_serve_verb verb, const struct fx_file *of)
{
	return fx_one_id(client, verb, NULL, of);
}

static inline int call(enum ucm_serve_verb verb, uint32_t argument, void *out,
		       size_t size, int *fd_out)
{
	const struct ucm_serve_request head = { .verb = verb,
						.argument = argument };

	return ucm_client_call(client, &head, NULL, 0, out, size, fd_out);
}

#endif
