/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_media_blocks.c - the blocks and spaces of directories; see ucm_media.h. */
#include <config.h>

#include "tools/ucm_media.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/block/verify.h"
#include "hashing/tree.h"
#include "tools/ucm_tool.h"

/* ---- one file ---- */

static void note_stray(struct ucm_media *media,
		       const struct ucm_medium *medium, const char *below,
		       const char *why)
{
	if (!media->strays++)
		ucm_tool_complain("%s/%s: %s: left alone", medium->path, below,
				  why);
}

static void fill_block(struct ucm_media *media, unsigned dir,
		       const struct ucm_space *space, const struct stat *st,
		       const struct ucm_block *header,
		       struct ucm_media_block *out)
{
	const struct ucm_key key = { .id = header->id,
				     .space = space->number };

	*out = (struct ucm_media_block){
		.id = header->id,
		.place = {
			.size = (uint64_t)st->st_size,
			.mtime_ns = ucm_time_ns(&st->st_mtim),
			.atime_s = (uint32_t)st->st_atim.tv_sec,
			.tier = (uint8_t)media->dirs[dir].tier,
			.directory = (uint8_t)dir,
		},
		.bytes = (uint64_t)st->st_size,
		.copies = 1,
	};
	if (header->flags & UCM_BLOCK_HAS_PARENT)
		out->parent = header->parent;
	if (header->flags & UCM_BLOCK_HAS_CRC) {
		out->place.flags |= UCM_PLACE_CRC;
		out->place.crc32c = header->payload_crc;
	}
	if (ucm_pins_have(&media->pins, &key))
		out->place.flags |= UCM_PLACE_PINNED;
}

int ucm_media_look(struct ucm_media *media, unsigned dir,
		   struct ucm_space *space, const struct ucm_id *id,
		   struct ucm_media_block *out)
{
	struct ucm_medium *medium = media->dirs[dir].medium;
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	enum ucm_fault fault = UCM_FAULT_NONE;
	char below[UCM_TREE_PATH_MAX];
	struct ucm_block header;
	struct ucm_bytes bytes;
	struct stat st;
	int err = medium->ops->open(medium, space->folder, id, &file, &st);

	ucm_tree_block_path(space->folder, id, below);
	if (err == -ENXIO || err == -ELOOP)
		note_stray(media, medium, below, "no plain file");
	if (err == -ENOENT || err == -ENXIO || err == -ELOOP)
		return 0;
	if (err)
		return ucm_media_note(media, &media->dirs[dir], below, err);
	ucm_file_leave_times(&file); /* looking at a block is no use of it */
	bytes = ucm_file_bytes(&file);
	err = ucm_verify_header(&bytes, (uint64_t)st.st_size, id, &header,
				&fault);
	if (err)
		return ucm_media_note(media, &media->dirs[dir], below, err);
	if (!fault)
		fault = ucm_space_fits(space, &header, true);
	if (fault) {
		note_stray(media, medium, below, ucm_fault_text(fault));
		return 0;
	}
	fill_block(media, dir, space, &st, &header, out);
	return 1;
}

/* The same block, of a directory that comes later. */
static void add_copy(struct ucm_media_block *block,
		     const struct ucm_media_block *copy)
{
	if (block->copies++ == 1)
		block->second = copy->place.tier;
	block->place.flags |= UCM_PLACE_COPY;
	block->bytes += copy->bytes;
}

int ucm_media_find(struct ucm_media *media, const char *space,
		   const struct ucm_id *id, struct ucm_media_block *out)
{
	struct ucm_space *in = ucm_media_space(media, space);
	int missing = in ? -ENOENT : -ENOMEM;
	bool found = false;

	for (unsigned i = 0; in && i < media->num; i++) {
		struct ucm_media_block block;
		int result = media->dirs[i].err;

		if (ucm_media_asks(&media->dirs[i]))
			result = ucm_media_look(media, i, in, id, &block);
		if (result > 0 && found)
			add_copy(out, &block);
		else if (result > 0)
			*out = block;
		found |= result > 0;
		if (result < 0)
			missing = result;
	}
	return found ? 0 : missing;
}

int ucm_media_path(struct ucm_media *media, const char *space,
		   const struct ucm_id *id,
		   const struct ucm_control_place *place,
		   char path[UCM_BLOCKS_PATH_MAX])
{
	const struct ucm_media_dir *dir = &media->dirs[place->directory];
	struct ucm_space *in = ucm_media_space(media, space);
	char below[UCM_TREE_PATH_MAX];
	int len;

	if (!in)
		return -ENOMEM;
	ucm_tree_block_path(in->folder, id, below);
	len = snprintf(path, UCM_BLOCKS_PATH_MAX, "%s/%s", dir->medium->path,
		       below);
	return len < (int)UCM_BLOCKS_PATH_MAX ? 0 : -ENAMETOOLONG;
}

int ucm_media_open_block(struct ucm_media *media, const char *space,
			 const struct ucm_id *id,
			 const struct ucm_control_place *place)
{
	const struct ucm_media_dir *dir = &media->dirs[place->directory];
	struct ucm_space *in = ucm_media_space(media, space);
	struct ucm_file file;
	struct stat st;
	int err = in ? dir->medium->ops->open(dir->medium, in->folder, id,
					      &file, &st)
		     : -ENOMEM;

	if (err)
		return err;
	ucm_file_leave_times(&file);
	return file.fd;
}

/* ---- a bucket ---- */

struct sights {
	struct ucm_media_block *blocks;
	size_t num, room;
};

static int add_sight(struct sights *sights, const struct ucm_media_block *block)
{
	if (sights->num == sights->room) {
		size_t room = sights->room ? 2 * sights->room : 64;
		struct ucm_media_block *more =
			reallocarray(sights->blocks, room, sizeof(*more));

		if (!more)
			return ucm_tool_fail(-ENOMEM, "no memory");
		sights->blocks = more;
		sights->room = room;
	}
	sights->blocks[sights->num++] = *block;
	return 0;
}

static int look_at_names(struct ucm_media *media, unsigned dir,
			 struct ucm_space *space, unsigned bucket,
			 const char *names, struct sights *sights)
{
	int err = 0;

	for (const char *name = names;
	     *name && !err && ucm_media_asks(&media->dirs[dir]);
	     name += strlen(name) + 1) {
		struct ucm_media_block block;
		struct ucm_id id;

		if (!ucm_tree_parse_block(name, &id) &&
		    ucm_tree_bucket(&id) == bucket &&
		    ucm_media_look(media, dir, space, &id, &block) > 0)
			err = add_sight(sights, &block);
	}
	return err;
}

static int look_at_bucket(struct ucm_media *media, unsigned dir,
			  struct ucm_space *space, unsigned bucket,
			  struct sights *sights)
{
	struct ucm_medium *medium = media->dirs[dir].medium;
	char below[UCM_TREE_PATH_MAX];
	_cleanup_free_ char *names = NULL;
	int err = medium->ops->list(medium, space->folder, bucket, &names);

	if (!err)
		return look_at_names(media, dir, space, bucket, names, sights);
	if (err == -ENOENT) /* buckets are made when they are needed */
		return 0;
	ucm_tree_bucket_path(space->folder, bucket, below);
	ucm_media_note(media, &media->dirs[dir], below, err);
	return 0;
}

static int by_id_and_directory(const void *a, const void *b)
{
	const struct ucm_media_block *x = a, *y = b;
	int order = memcmp(&x->id, &y->id, sizeof(x->id));

	return order ? order : x->place.directory - y->place.directory;
}

/* What several directories have becomes one. */
static void merge_copies(struct sights *sights)
{
	size_t num = 0;

	if (sights->num)
		qsort(sights->blocks, sights->num, sizeof(*sights->blocks),
		      by_id_and_directory);
	for (size_t i = 0; i < sights->num; i++) {
		const struct ucm_media_block *block = &sights->blocks[i];

		if (num && !memcmp(&sights->blocks[num - 1].id, &block->id,
				   sizeof(block->id)))
			add_copy(&sights->blocks[num - 1], block);
		else
			sights->blocks[num++] = *block;
	}
	sights->num = num;
}

int ucm_media_each(struct ucm_media *media, const char *space, unsigned bucket,
		   int (*fn)(void *arg, const struct ucm_media_block *block),
		   void *arg)
{
	struct ucm_space *in = ucm_media_space(media, space);
	struct sights sights = { 0 };
	int err = in ? 0 : ucm_tool_fail(-ENOMEM, "no memory");

	for (unsigned i = 0; i < media->num && !err; i++) {
		if (ucm_media_asks(&media->dirs[i]))
			err = look_at_bucket(media, i, in, bucket, &sights);
	}
	merge_copies(&sights);
	for (size_t i = 0; i < sights.num && !err; i++)
		err = fn(arg, &sights.blocks[i]);
	free(sights.blocks);
	return err;
}

/* ---- spaces ---- */

/* Has one of the first directories that space? */
static bool have_space(struct ucm_media *media, unsigned num,
		       const char *folder)
{
	for (unsigned i = 0; i < num; i++) {
		struct ucm_medium *medium = media->dirs[i].medium;

		if (ucm_media_asks(&media->dirs[i]) &&
		    !medium->ops->spaces->find(medium, folder))
			return true;
	}
	return false;
}

int ucm_media_check_space(struct ucm_media *media, const char *space)
{
	char folder[UCM_TREE_FOLDER_MAX];

	if (!space || !*space)
		return 0;
	ucm_tree_folder(space, folder);
	return have_space(media, media->num, folder)
		       ? 0
		       : ucm_tool_fail(-ENOENT, "%s: no such space", folder);
}

struct listing {
	struct ucm_media *media;
	unsigned dir;
	int (*fn)(void *arg, const char *name);
	void *arg;
	int result; /* of fn */
};

static int list_space(void *arg, const char *name, const struct stat *st)
{
	struct listing *listing = arg;
	char folder[UCM_TREE_FOLDER_MAX];

	(void)st;
	ucm_tree_folder(name, folder);
	if (!have_space(listing->media, listing->dir, folder))
		listing->result = listing->fn(listing->arg, name);
	return listing->result;
}

int ucm_media_spaces(struct ucm_media *media,
		     int (*fn)(void *arg, const char *name), void *arg)
{
	struct listing listing = { .media = media, .fn = fn, .arg = arg };

	for (unsigned i = 0; i < media->num && !listing.result; i++) {
		struct ucm_medium *medium = media->dirs[i].medium;
		struct ucm_error error;

		listing.dir = i;
		if (!ucm_media_asks(&media->dirs[i]) ||
		    !medium->ops->spaces->list(medium, list_space, &listing,
					       &error) ||
		    listing.result)
			continue;
		media->failed = true;
		ucm_tool_complain("%s", error.text);
	}
	return listing.result;
}
