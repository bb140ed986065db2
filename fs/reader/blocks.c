/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - the calls of <ucm/blocks.h>: requests on the store's socket.
 *
 * Who may make a call, and what becomes of a block, is the daemon's to say.
 */
#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/blocks.h>
#include <ucm/client.h>

struct ucm_blocks {
	struct ucm_client *client;
};

int ucm_blocks_open(const char *where, struct ucm_blocks **out)
{
	struct ucm_blocks *blocks = calloc(1, sizeof(*blocks));
	int err = blocks ? ucm_client_connect(where, &blocks->client) : -ENOMEM;

	if (err)
		free(blocks);
	else
		*out = blocks;
	return err == -ECONNREFUSED ? -ENOTCONN : err;
}

void ucm_blocks_close(struct ucm_blocks *blocks)
{
	if (blocks)
		ucm_client_close(blocks->client);
	free(blocks);
}

#define CALL(name, verb, flags)                                             \
	int ucm_blocks_##name(struct ucm_blocks *blocks, const char *space, \
			      const struct ucm_id *ids, size_t num,         \
			      int32_t *results)                             \
	{                                                                   \
		return ucm_client_ids(blocks->client, verb, space, flags,   \
				      ids, num, results);                   \
	}
CALL(lookup, UCM_SERVE_LOOKUP, 0)
CALL(touch, UCM_SERVE_TOUCH, 0)
CALL(pin, UCM_SERVE_PIN, 0)
CALL(unpin, UCM_SERVE_UNPIN, 0)
CALL(check, UCM_SERVE_CHECK, 0)
CALL(evict, UCM_SERVE_EVICT, 0)
CALL(warm, UCM_SERVE_WARM, 0)
CALL(remove, UCM_SERVE_REMOVE, 0)

int ucm_blocks_expect(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, uint32_t ms,
		      int32_t *results)
{
	bool ended = ms == UCM_EXPECTED_NO_MORE;
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_TOUCH,
		.flags = ended ? UCM_TOUCH_ENDED : UCM_TOUCH_EXPECTED,
		.argument = ended ? 0 : ms,
	};

	return ucm_client_items(blocks->client, &head, space, ids, sizeof(*ids),
				num, results, sizeof(*results));
}

int ucm_blocks_offer(struct ucm_blocks *blocks, const char *space,
		     const struct ucm_id *ids, const struct ucm_id *parents,
		     size_t num, uint64_t bytes, int32_t *results)
{
	return ucm_client_offer(blocks->client, space, ids, parents, num, bytes,
				results);
}

int ucm_blocks_locate(struct ucm_blocks *blocks, const char *space,
		      const struct ucm_id *ids, size_t num, uint32_t flags,
		      struct ucm_control_place *places)
{
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_LOCATE,
		.flags = flags,
	};

	return ucm_client_items(blocks->client, &head, space, ids, sizeof(*ids),
				num, places, sizeof(*places));
}

int ucm_blocks_path(struct ucm_blocks *blocks, const char *space,
		    const struct ucm_id *id, char path[UCM_BLOCKS_PATH_MAX])
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_PATH };

	return ucm_client_items(blocks->client, &head, space, id, sizeof(*id),
				1, path, UCM_BLOCKS_PATH_MAX);
}

/* ---- of the whole store ---- */

int ucm_blocks_statistics(struct ucm_blocks *blocks,
			  struct ucm_control_statistics *out)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_STATISTICS };

	return ucm_client_call(blocks->client, &head, NULL, 0, out,
			       sizeof(*out), NULL);
}

static int call(struct ucm_blocks *blocks, enum ucm_serve_verb verb)
{
	const struct ucm_serve_request head = { .verb = verb };

	return ucm_client_call(blocks->client, &head, NULL, 0, NULL, 0, NULL);
}

int ucm_blocks_flush(struct ucm_blocks *blocks)
{
	return call(blocks, UCM_SERVE_FLUSH);
}

int ucm_blocks_rescan(struct ucm_blocks *blocks)
{
	return call(blocks, UCM_SERVE_RESCAN);
}

int ucm_blocks_checkpoint(struct ucm_blocks *blocks)
{
	return call(blocks, UCM_SERVE_CHECKPOINT);
}

int ucm_blocks_drain(struct ucm_blocks *blocks, const char *directory,
		     uint32_t what, struct ucm_control_drain *out)
{
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_DRAIN,
		.num = (uint32_t)strlen(directory),
		.argument = what,
	};
	struct ucm_control_drain drain;
	int err;

	if (head.num >= UCM_SERVE_PATH_MAX)
		return -ENOENT;
	err = ucm_client_call(blocks->client, &head, directory, 1, &drain,
			      sizeof(drain), NULL);
	if (!err && out)
		*out = drain;
	return err;
}
