/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.c - look-ups by requests on the store's socket, many ids at a time.
 *
 * For spaces that are not published, and where the index cannot be mapped. The
 * daemon answers for what it has not read yet and for what is in doubt.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cleanup.h"

static int lookup(struct ucm_index_reader *reader, const struct ucm_id *ids,
		  size_t num, uint64_t *present, uint64_t *unknown)
{
	_cleanup_free_ int32_t *results = calloc(num + 1, sizeof(*results));
	int err;

	if (!results)
		return -ENOMEM;
	err = ucm_client_ids(reader->client, UCM_SERVE_LOOKUP,
			     ucm_tree_folder_name(reader->folder), 0, ids,
			     num, results);
	for (size_t i = 0; !err && i < num; i++) {
		if (results[i] == 1)
			ucm_bit_set(present, i);
		else if (results[i] < 0)
			ucm_bit_set(unknown, i);
	}
	return err == -ENOENT ? 0 : err; /* no such space: none of its blocks */
}

static void name_tier(const struct ucm_reader_map *map, unsigned tier,
		      struct ucm_index_entry *out)
{
	const struct ucm_index_memory_header *header = ucm_reader_header(map);

	out->tier = (int32_t)tier;
	if (map->base && tier < UCM_INDEX_MEMORY_TIERS)
		snprintf(out->tier_name, sizeof(out->tier_name), "%.*s",
			 (int)UCM_INDEX_MEMORY_TIER_NAME - 1,
			 header->tiers[tier]);
}

static int entry(struct ucm_index_reader *reader, const struct ucm_id *id,
		 struct ucm_index_entry *out)
{
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_LOCATE,
		.flags = UCM_LOCATE_PEEK,
	};
	struct ucm_control_place place;
	int err = ucm_client_items(reader->client, &head,
				   ucm_tree_folder_name(reader->folder), id,
				   sizeof(*id), 1, &place, sizeof(place));

	if (err)
		return err;
	if (place.result) /* else it may be there, and cannot be read now */
		return place.result == -ENOENT ? -ENOENT : -EAGAIN;
	*out = (struct ucm_index_entry){ .size = place.size };
	if (place.flags & UCM_PLACE_PINNED)
		out->flags |= UCM_INDEX_PINNED;
	if (place.flags & UCM_PLACE_COPY)
		out->flags |= UCM_INDEX_COPY;
	name_tier(&reader->map, place.tier, out);
	return 0;
}

const struct ucm_reader_ops ucm_reader_socket_ops = {
	.name = "socket",
	.batch = UCM_READER_BATCH,
	.lookup = lookup,
	.entry = entry,
};
