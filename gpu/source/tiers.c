/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers.c - blocks in the directories of tiers.
 *
 * Reading needs no daemon and does not disturb one: a block is looked for in
 * the directory where placement puts it, then in the others. Saving and removing
 * are a daemon's work: that which serves the directories, or a private one, which
 * is started with the first block that is saved (fs/reader/private.c).
 */
#include <config.h>

#include "gpu/source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucm/client.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/osfile.h"
#include "fs/medium/dir/dir.h"
#include "fs/medium/memory/memory.h"
#include "fs/reader/reader.h"
#include "hashing/tree.h"

#define RETRY_MS 1000

struct tier {
	unsigned first, num; /* of the directories */
	uint8_t (*uuids)[16];
};

struct ucm_source {
	struct ucm_config config;
	struct ucm_medium **media; /* directories, for reading only */
	unsigned num_dirs;
	struct tier *tiers;
	char *socket; /* how the daemon is found */
	pthread_mutex_t lock; /* guards the rest */
	struct ucm_source *saves; /* of the daemon; NULL: not yet */
	int saves_err;            /* why it could not be opened, */
	int64_t tried_ms;         /* and when */
};

static void tiers_close(struct ucm_source *source)
{
	if (source->saves)
		ucm_source_socket.close(source->saves);
	for (unsigned i = 0; source->media && i < source->num_dirs; i++) {
		ucm_medium_close(source->media[i], false);
		ucm_medium_free(source->media[i]);
	}
	for (unsigned i = 0; source->tiers && i < source->config.num_tiers; i++)
		free(source->tiers[i].uuids);
	free(source->tiers);
	free(source->media);
	free(source->socket);
	ucm_config_fini(&source->config);
	pthread_mutex_destroy(&source->lock);
	free(source);
}

static int open_dir(struct ucm_source *source,
		    const struct ucm_tier_config *config, unsigned number,
		    struct ucm_memory_key *key, struct ucm_medium **out,
		    struct ucm_error *error)
{
	int err;

	if (config->memory)
		return ucm_memory_open(key, &source->config, config, true, out,
				       error);
	err = ucm_medium_open(ucm_opener(&source->config),
			      config->dirs[number], true, &source->config, out,
			      error);
	if (!err)
		ucm_memory_key_add(key, (*out)->uuid);
	return err;
}

static int open_tier(struct ucm_source *source,
		     const struct ucm_tier_config *config, struct tier *tier,
		     struct ucm_memory_key *key, struct ucm_error *error)
{
	tier->uuids = calloc(config->num_dirs, sizeof(*tier->uuids));
	if (!tier->uuids)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	for (unsigned i = 0; i < config->num_dirs; i++) {
		struct ucm_medium *medium;
		int err = open_dir(source, config, i, key, &medium, error);

		if (err)
			return err;
		source->media[tier->first + i] = medium;
		memcpy(tier->uuids[tier->num++], medium->uuid, 16);
	}
	return 0;
}

/* Memory last: the others say whose it is. */
static int open_all(struct ucm_source *source, struct ucm_error *error)
{
	struct ucm_memory_key key = { .num = 0 };
	int err = 0;

	for (int memory = 0; memory < 2; memory++) {
		unsigned first = 0;

		for (unsigned i = 0; i < source->config.num_tiers; i++) {
			struct ucm_tier_config *tier = &source->config.tiers[i];

			source->tiers[i].first = first;
			first += tier->num_dirs;
			if (tier->memory == memory && !err)
				err = open_tier(source, tier,
						&source->tiers[i], &key, error);
		}
	}
	return err;
}

static int open_tiers(struct ucm_source *source, const char *text,
		      struct ucm_error *error)
{
	unsigned num = 0;
	int err = ucm_config_source(&source->config, text, error)
		?: ucm_config_check(&source->config, error);

	if (err)
		return err;
	for (unsigned i = 0; i < source->config.num_tiers; i++)
		num += source->config.tiers[i].num_dirs;
	source->media = calloc(num, sizeof(*source->media));
	source->tiers =
		calloc(source->config.num_tiers, sizeof(*source->tiers));
	if (!source->media || !source->tiers)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	source->num_dirs = num;
	return open_all(source, error);
}

static int open_once(const char *text, struct ucm_source **out,
		     struct ucm_error *error)
{
	struct ucm_source *source = calloc(1, sizeof(*source));
	int err;

	if (!source)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	pthread_mutex_init(&source->lock, NULL);
	ucm_config_init(&source->config);
	if (asprintf(&source->socket, UCM_CLIENT_TIERS "%s", text) < 0)
		source->socket = NULL;
	err = source->socket ? open_tiers(source, text, error)
			     : ucm_error_set(error, -ENOMEM, "out of memory");
	if (err) {
		tiers_close(source);
		return err;
	}
	*out = source;
	return 0;
}

/* Directories that have never been tiers become some by a daemon. */
static int tiers_open(const char *text, struct ucm_source **out,
		      struct ucm_error *error)
{
	struct ucm_client *client;
	int err = open_once(text, out, error);

	if (err != -ENOENT)
		return err;
	if (ucm_private_connect(text, &client))
		return err;
	ucm_client_close(client);
	return open_once(text, out, error);
}

static int tiers_check_space(struct ucm_source *source, const char *space)
{
	char folder[UCM_TREE_PATH_MAX];
	struct stat st;

	ucm_tree_folder(space, folder);
	for (unsigned i = 0; i < source->num_dirs; i++) {
		if (!fstatat(ucm_directory_fd(source->media[i]), folder, &st,
			     AT_SYMLINK_NOFOLLOW))
			return 0;
	}
	return *space ? -ENOENT : 0;
}

/* The directory where a block is looked for at the attempt-th time, from 0; -ENOENT:
 * there are no more. */
static int directory_at(const struct ucm_source *source,
			const struct ucm_id *id, unsigned attempt)
{
	uint8_t order[UCM_MAX_DIRS];
	const struct tier *tier = source->tiers;

	if (attempt >= source->num_dirs)
		return -ENOENT;
	while (attempt >= tier->num)
		attempt -= (tier++)->num;
	ucm_placement_order(source->config.placement,
			    (const uint8_t(*)[16])tier->uuids, tier->num, id, 0,
			    order);
	return (int)(tier->first + order[attempt]);
}

static void path_of(const char *space, const struct ucm_id *id,
		    char path[UCM_TREE_PATH_MAX])
{
	char folder[UCM_TREE_PATH_MAX];

	ucm_tree_folder(space, folder);
	ucm_tree_block_path(folder, id, path);
}

/* No block has the name there. */
static bool is_absent(int err)
{
	return err == -ENOENT || err == -ENOTDIR || err == -ELOOP ||
	       err == -ENXIO;
}

/* It may lie in a directory that could not say. */
static struct ucm_given open_block(const struct ucm_source *source,
				   const struct ucm_id *id, const char *path)
{
	struct ucm_given given = { .fd = -ENOENT };
	int dir, fd;

	for (unsigned i = 0; (dir = directory_at(source, id, i)) >= 0; i++) {
		fd = ucm_os_open(ucm_directory_fd(source->media[dir]), path,
				 O_RDONLY | O_CLOEXEC, 0);
		if (fd >= 0)
			return (struct ucm_given){
				.fd = fd,
				.directory = (unsigned)dir,
				.local = !source->media[dir]->remote,
			};
		if (!is_absent(fd) && given.fd == -ENOENT)
			given.fd = fd;
	}
	return given;
}

static void tiers_descriptors(struct ucm_source *source, const char *space,
			      const struct ucm_id *ids, unsigned num,
			      struct ucm_given *given)
{
	char path[UCM_TREE_PATH_MAX];

	for (unsigned i = 0; i < num; i++) {
		path_of(space, &ids[i], path);
		given[i] = open_block(source, &ids[i], path);
	}
}

static bool is_there(struct ucm_medium *medium, const char *path,
		     int *err_out)
{
	struct stat st;
	int err = fstatat(ucm_directory_fd(medium), path, &st,
			  AT_SYMLINK_NOFOLLOW)
			  ? -errno
			  : 0;

	if (err && !is_absent(err))
		*err_out = err;
	return !err && S_ISREG(st.st_mode);
}

/* A file server is not asked: the block may be with the first one. */
static bool tiers_where(struct ucm_source *source, const char *space,
			const struct ucm_id *id, struct ucm_where *out)
{
	char path[UCM_TREE_PATH_MAX];
	int dir, err;

	path_of(space, id, path);
	for (unsigned i = 0; (dir = directory_at(source, id, i)) >= 0; i++) {
		struct ucm_medium *medium = source->media[dir];

		if (medium->remote || is_there(medium, path, &err))
			break;
	}
	if (dir < 0)
		return false;
	*out = (struct ucm_where){ .directory = (unsigned)dir };
	return true;
}

static int tiers_look(struct ucm_source *source, const char *space,
		      const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX];
	int dir, err = 0;

	path_of(space, id, path);
	for (unsigned i = 0; (dir = directory_at(source, id, i)) >= 0; i++) {
		if (is_there(source->media[dir], path, &err))
			return 1;
	}
	return err;
}

/* A directory that comes back is found by its path only when the source is
 * opened again. */
static bool tiers_lost(struct ucm_source *source)
{
	(void)source;
	return false;
}

/* ---- saving: by a daemon ---- */

/* The source that saves, opened for the first block: who only reads needs no daemon.
 * Where that cannot be it is tried again, now and then; others that save wait here
 * until it has been. */
static int open_saves(struct ucm_source *source)
{
	int64_t now = ucm_monotonic_ms();
	int err = 0;

	pthread_mutex_lock(&source->lock);
	if (!source->saves) {
		if (!source->saves_err ||
		    now - source->tried_ms >= RETRY_MS) {
			source->saves_err = ucm_source_socket.open(
				source->socket, &source->saves, NULL);
			source->tried_ms = now;
		}
		err = source->saves_err;
	}
	pthread_mutex_unlock(&source->lock);
	return err;
}

static int tiers_create(struct ucm_source *source, const char *space,
			const struct ucm_id *id, uint64_t bytes,
			struct ucm_draft **out)
{
	int err = open_saves(source);

	return err ?: ucm_source_socket.create(source->saves, space, id, bytes,
					       out);
}

static int tiers_reopen(struct ucm_source *source,
			const struct ucm_draft *draft)
{
	return ucm_source_socket.reopen(source->saves, draft);
}

static int tiers_commit(struct ucm_source *source, struct ucm_draft *draft,
			int fd, const void *header, uint32_t header_bytes)
{
	return ucm_source_socket.commit(source->saves, draft, fd, header,
					header_bytes);
}

static void tiers_drop(struct ucm_source *source, struct ucm_draft *draft)
{
	ucm_source_socket.drop(source->saves, draft);
}

static int tiers_remove(struct ucm_source *source, const char *space,
			const struct ucm_id *id)
{
	int err = open_saves(source);

	return err ? err : ucm_source_socket.remove(source->saves, space, id);
}

const struct ucm_source_ops ucm_source_tiers = {
	.name = "tiers",
	.open = tiers_open,
	.close = tiers_close,
	.check_space = tiers_check_space,
	.descriptors = tiers_descriptors,
	.where = tiers_where,
	.look = tiers_look,
	.lost = tiers_lost,
	.create = tiers_create,
	.reopen = tiers_reopen,
	.commit = tiers_commit,
	.drop = tiers_drop,
	.remove = tiers_remove,
};
