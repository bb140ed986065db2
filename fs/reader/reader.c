/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c - the calls of <ucm/index.h>, and which back end answers them.
 *
 * A space is known by name to the caller and by number to the index. The daemon is
 * asked for the number once, and it holds until the map says that the spaces have
 * changed.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "fs/index/budget_layout.h"

#define CHOICES 8 /* times that the spaces may change under one call */
/* Look-ups that are counted at once: all readers add to the same memory. */
#define COUNT_AT 64

static int set_folder(struct ucm_index_reader *reader, const char *space)
{
	if (space && *space && !ucm_tree_space_valid(space))
		return -EINVAL;
	ucm_tree_folder(space, reader->folder);
	return 0;
}

static const char *why_not(int err)
{
	switch (err) {
	case -EOPNOTSUPP: return "the daemon's memory cannot be mapped";
	case -EPROTO: return "the memory is not an index";
	case -EPROTONOSUPPORT: return "the index is of another version";
	default: return "the index cannot be mapped";
	}
}

/* One that ends before is fatal to whoever reads it. */
int ucm_reader_map_memory(int fd, int prot, size_t len, void **out)
{
	struct stat st;

	if (fd < 0)
		return -EOPNOTSUPP;
	if (fstat(fd, &st))
		return -errno;
	if ((uint64_t)st.st_size < len)
		return -EPROTO;
	*out = mmap(NULL, len, prot, MAP_SHARED, fd, 0);
	return *out == MAP_FAILED ? -errno : 0;
}

/* The map takes the descriptor, if there is one. */
static int map_index(struct ucm_index_reader *reader, int memory)
{
	int err = memory < 0 ? -EOPNOTSUPP
			     : ucm_reader_map_open(&reader->map, memory);

	if (err && memory >= 0)
		close(memory);
	return err;
}

static void map_both(struct ucm_index_reader *reader)
{
	_cleanup_fd_ int budget_fd = -1;
	struct ucm_serve_hello hello;
	void *shared = NULL;
	int index_fd, err;

	err = ucm_client_hello(reader->client, &hello, &index_fd, &budget_fd);
	if (err) {
		reader->why = why_not(err);
		return;
	}
	err = map_index(reader, index_fd);
	if (err)
		reader->why = why_not(err);
	else if (!ucm_reader_map_memory(budget_fd, PROT_READ | PROT_WRITE,
					sizeof(*reader->shared), &shared))
		reader->shared = shared;
}

/* Is the space there, may it be read, and what is its number? */
static int ask_space(struct ucm_index_reader *reader)
{
	struct ucm_serve_request head = { .verb = UCM_SERVE_SPACE };
	struct ucm_serve_space space = { 0 };
	int err;

	snprintf(head.space, sizeof(head.space), "%s",
		 ucm_tree_folder_name(reader->folder));
	err = ucm_client_call(reader->client, &head, NULL, 0, &space,
			      sizeof(space), NULL);
	reader->published = !err && space.flags & UCM_SPACE_PUBLISHED;
	reader->space = (uint16_t)space.number;
	return err;
}

static int resolve(struct ucm_index_reader *reader)
{
	int err;

	reader->resolved = false;
	if (reader->map.base)
		reader->names = ucm_reader_map_names(&reader->map);
	err = ask_space(reader);
	if (err)
		return err;
	reader->resolved = true;
	if (reader->map.base)
		reader->why = reader->published
				      ? NULL
				      : "the space is, or was, private";
	return 0;
}

int ucm_index_open(const char *where, const char *space,
		   struct ucm_index_reader **out)
{
	struct ucm_index_reader *reader = calloc(1, sizeof(*reader));
	int err;

	if (!reader)
		return -ENOMEM;
	err = set_folder(reader, space);
	if (!err)
		err = ucm_client_connect(where, &reader->client);
	if (!err) {
		map_both(reader);
		err = resolve(reader);
	}
	if (err) {
		ucm_index_close(reader);
		return ucm_mount_error(-err);
	}
	*out = reader;
	return 0;
}

static void add_counts(struct ucm_index_reader *reader)
{
	atomic_fetch_add_explicit(&reader->shared->hits, reader->hits,
				  memory_order_relaxed);
	atomic_fetch_add_explicit(&reader->shared->misses, reader->misses,
				  memory_order_relaxed);
	reader->hits = reader->misses = 0;
}

void ucm_index_close(struct ucm_index_reader *reader)
{
	if (!reader)
		return;
	if (reader->shared) {
		add_counts(reader);
		munmap(reader->shared, sizeof(*reader->shared));
	}
	ucm_reader_map_close(&reader->map);
	ucm_client_close(reader->client);
	free(reader);
}

/* Who answers now. */
static int choose(struct ucm_index_reader *reader,
		  const struct ucm_reader_ops **out)
{
	const struct ucm_reader_map *map = &reader->map;
	int err;

	*out = &ucm_reader_socket_ops;
	if (!map->base)
		return 0;
	if (!ucm_reader_map_lives(map))
		return -ENOTCONN;
	if (!reader->resolved || ucm_reader_map_names(map) != reader->names) {
		err = resolve(reader);
		if (err)
			return err;
	}
	if (reader->published)
		*out = &ucm_reader_map_ops;
	return 0;
}

static void clear(uint64_t *bitmap, size_t num)
{
	if (num)
		memset(bitmap, 0, UCM_INDEX_WORDS(num) * sizeof(*bitmap));
}

/* Of the map: others count what they are asked for. */
static void count(struct ucm_index_reader *reader, const uint64_t *present,
		  size_t num)
{
	unsigned hits = 0;

	for (size_t i = 0; i < UCM_INDEX_WORDS(num); i++)
		hits += (unsigned)__builtin_popcountll(present[i]);
	reader->hits += hits;
	reader->misses += num - hits;
	if (reader->hits + reader->misses >= COUNT_AT)
		add_counts(reader);
}

/* By the back end that is right at the time. counted: by the map, too. */
static int lookup(struct ucm_index_reader *reader, const struct ucm_id *ids,
		  size_t num, uint64_t *present, uint64_t *unknown, bool counted)
{
	int err = -ESTALE;

	for (unsigned i = 0; i <= CHOICES && err == -ESTALE; i++) {
		const struct ucm_reader_ops *ops;

		clear(present, num);
		clear(unknown, num);
		err = choose(reader, &ops);
		if (err)
			break;
		if (i == CHOICES)
			ops = &ucm_reader_socket_ops; /* is always right */
		err = ops->lookup(reader, ids, num, present, unknown);
		if (!err && counted && ops == &ucm_reader_map_ops &&
		    reader->shared)
			count(reader, present, num);
	}
	if (err) {
		clear(present, num);
		clear(unknown, num);
	}
	return err;
}

int ucm_index_lookup(struct ucm_index_reader *reader, const struct ucm_id *ids,
		     size_t num, uint64_t *present, uint64_t *unknown)
{
	_cleanup_free_ uint64_t *scratch = NULL;

	if (!unknown) {
		scratch = calloc(UCM_INDEX_WORDS(num) + 1, sizeof(*scratch));
		if (!scratch) {
			clear(present, num);
			return -ENOMEM;
		}
		unknown = scratch;
	}
	return lookup(reader, ids, num, present, unknown, true);
}

int ucm_index_peek(struct ucm_index_reader *reader, const struct ucm_id *ids,
		   size_t num, uint64_t *present, uint64_t *unknown)
{
	return lookup(reader, ids, num, present, unknown, false);
}

/* Bits that are set from the first on. */
static size_t leading(const uint64_t *bitmap, size_t num)
{
	size_t i = 0;

	while (i < num && bitmap[i / 64] >> i % 64 & 1)
		i++;
	return i;
}

int ucm_index_prefix(struct ucm_index_reader *reader, const struct ucm_id *ids,
		     size_t num, size_t *count_out, int *unknown_out)
{
	uint64_t present[UCM_READER_BATCH / 64];
	uint64_t unknown[UCM_READER_BATCH / 64];
	size_t count = 0, part, found = 0;

	for (; count < num; count += part) {
		const struct ucm_reader_ops *ops;
		int err = choose(reader, &ops);

		if (err)
			return err;
		part = num - count < ops->batch ? num - count : ops->batch;
		err = lookup(reader, ids + count, part, present, unknown, true);
		if (err)
			return err;
		found = leading(present, part);
		if (found < part)
			break;
	}
	if (unknown_out)
		*unknown_out = count < num &&
			       unknown[found / 64] >> found % 64 & 1;
	*count_out = count < num ? count + found : count;
	return 0;
}

int ucm_index_entry(struct ucm_index_reader *reader, const struct ucm_id *id,
		    struct ucm_index_entry *out)
{
	int err = -ESTALE;

	for (unsigned i = 0; i <= CHOICES && err == -ESTALE; i++) {
		const struct ucm_reader_ops *ops;

		err = choose(reader, &ops);
		if (err)
			return err;
		if (i == CHOICES)
			ops = &ucm_reader_socket_ops; /* is always right */
		err = ops->entry(reader, id, out);
	}
	return err;
}

int ucm_index_info(struct ucm_index_reader *reader, struct ucm_index_info *out)
{
	const struct ucm_reader_ops *ops;
	int err = choose(reader, &ops);

	if (err)
		return err;
	*out = (struct ucm_index_info){
		.backend = ops->name,
		.why = reader->why,
		.complete = 1,
	};
	if (ops == &ucm_reader_map_ops) {
		out->blocks = ucm_reader_map_blocks(&reader->map);
		out->complete = ucm_reader_map_complete(&reader->map);
	}
	return 0;
}
