/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c - the calls of <ucm/index.h>, and which back end answers them.
 *
 * A space is known by name to the caller and by number to the index. The number
 * is asked for once (an extended attribute of the space's folder, which says
 * whether it is published as well) and holds until the map says that the spaces
 * have changed.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "common/parse.h"
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
	case -ENOENT: return "the mount has no " UCM_TREE_INDEX;
	case -EACCES: return UCM_TREE_INDEX " may not be read";
	case -EOPNOTSUPP:
		return "the daemon has no passthrough, and this user cannot "
		       "look into it";
	case -EPROTO: return UCM_TREE_INDEX " is no index";
	case -EPROTONOSUPPORT: return UCM_TREE_INDEX " is of another version";
	case -EXDEV: return "this is no FUSE mount of this machine";
	default: return UCM_TREE_INDEX " cannot be mapped";
	}
}

static int map_index(struct ucm_index_reader *reader)
{
	int fd = ucm_reader_memory_open(reader->root, UCM_TREE_INDEX, O_RDONLY);
	int err = fd < 0 ? fd : ucm_reader_map_open(&reader->map, fd);

	if (err && fd >= 0)
		close(fd);
	return err;
}

/* Is the space there, may it be read, and what is its number? */
static int resolve(struct ucm_index_reader *reader)
{
	char text[8] = "";
	_cleanup_fd_ int fd = -1;
	uint64_t number;

	reader->resolved = false;
	if (reader->map.base)
		reader->names = ucm_reader_map_names(&reader->map);
	fd = openat(reader->root, reader->folder,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return ucm_mount_error(errno);
	fgetxattr(fd, "user.ucmfs.index", text, sizeof(text) - 1);
	reader->published = !ucm_parse_range(text, 0, UINT16_MAX, &number);
	reader->space = reader->published ? (uint16_t)number : 0;
	reader->resolved = true;
	if (reader->map.base)
		reader->why = reader->published
				      ? NULL
				      : "the space is, or was, private";
	return 0;
}

static int open_mount(struct ucm_index_reader *reader, const char *mount)
{
	void *shared = NULL;
	int err;

	reader->root = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (reader->root < 0)
		return ucm_mount_error(errno);
	ucm_reader_control_open(reader);
	err = map_index(reader);
	if (err)
		reader->why = why_not(err);
	else
		ucm_reader_memory_map(reader->root, UCM_TREE_BUDGET, O_RDWR,
				      sizeof(*reader->shared), &shared);
	reader->shared = shared;
	return resolve(reader);
}

int ucm_index_open(const char *mount, const char *space,
		   struct ucm_index_reader **out)
{
	struct ucm_index_reader *reader = calloc(1, sizeof(*reader));
	int err;

	if (!reader)
		return -ENOMEM;
	reader->root = reader->control = -1;
	err = set_folder(reader, space);
	if (!err)
		err = open_mount(reader, mount);
	if (err) {
		ucm_index_close(reader);
		return err;
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
	if (reader->control >= 0)
		close(reader->control);
	if (reader->root >= 0)
		close(reader->root);
	free(reader);
}

/* Who answers now. */
static int choose(struct ucm_index_reader *reader,
		  const struct ucm_reader_ops **out)
{
	const struct ucm_reader_map *map = &reader->map;
	int err;

	*out = reader->control >= 0 ? &ucm_reader_control_ops
				    : &ucm_reader_stat_ops;
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

/* By the back end that is right at the time; or by stat, which always is. */
static int lookup(struct ucm_index_reader *reader, const struct ucm_id *ids,
		  size_t num, uint64_t *present, uint64_t *unknown)
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
			ops = &ucm_reader_stat_ops;
		err = ops->lookup(reader, ids, num, present, unknown);
		if (!err && ops == &ucm_reader_map_ops && reader->shared)
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
	return lookup(reader, ids, num, present, unknown);
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
		err = lookup(reader, ids + count, part, present, unknown);
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
			ops = &ucm_reader_stat_ops;
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
