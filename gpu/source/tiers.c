/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers.c - blocks in the directories of a mount.
 *
 * Reading needs no daemon and does not disturb one: a block is looked for in
 * the directory where placement puts it, then in the others. Writing is the
 * store's work, with all that it promises (store.h), but for what an index of
 * everything would tell: others save there at the same time (savers, lock.h). It
 * takes the locks of the directories, and fails with -EBUSY while a daemon holds
 * them. Beside a tier of memory there is one saver: its limit is the memory that
 * the machine has to spare, so somebody must count all of it.
 */
#include <config.h>

#include "gpu/source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "fs/files/files.h"
#include "fs/store/store.h"
#include "fs/tier/dir.h"
#include "fs/tier/memory.h"
#include "hashing/tree.h"

#define RETRY_MS 1000

struct tier {
	unsigned first, num; /* of the directories */
	uint8_t (*uuids)[16];
};

struct ucm_source {
	struct ucm_config config;
	struct ucm_medium **media; /* directories, for reading only */
	struct ucm_dir *dirs;
	unsigned num_dirs;
	struct tier *tiers;
	pthread_mutex_t lock; /* guards the rest */
	struct ucm_store *store;   /* NULL until the first block is written */
	struct ucm_files_count files; /* of it: what files/ takes */
	int store_err;             /* why it could not be opened, */
	int64_t tried_ms;          /* and when */
};

struct ucm_draft {
	struct ucm_key key;
	struct ucm_temp temp;
};

/* NULL does nothing. */
static void close_store(struct ucm_source *source, struct ucm_store *store)
{
	if (!store)
		return;
	ucm_store_quiet(store);
	ucm_files_count_stop(&source->files);
	ucm_store_close(store);
}

static void tiers_close(struct ucm_source *source)
{
	close_store(source, source->store);
	for (unsigned i = 0; source->media && i < source->num_dirs; i++) {
		ucm_medium_close(source->media[i], false);
		ucm_medium_free(source->media[i]);
	}
	for (unsigned i = 0; source->tiers && i < source->config.num_tiers; i++)
		free(source->tiers[i].uuids);
	free(source->tiers);
	free(source->dirs);
	free(source->media);
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
	err = ucm_medium_open(config->dirs[number], true, &source->config, out,
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
		struct ucm_dir *dir = &source->dirs[tier->first + i];
		struct ucm_medium *medium;
		int err = open_dir(source, config, i, key, &medium, error);

		if (err)
			return err;
		source->media[tier->first + i] = medium;
		ucm_dir_init(dir, ucm_directory_fd(medium));
		dir->quick = !medium->remote;
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
	int err = ucm_config_source(&source->config, text, error);

	if (!err)
		err = ucm_config_check(&source->config, error);
	if (err)
		return err;
	for (unsigned i = 0; i < source->config.num_tiers; i++)
		num += source->config.tiers[i].num_dirs;
	source->media = calloc(num, sizeof(*source->media));
	source->dirs = calloc(num, sizeof(*source->dirs));
	source->tiers =
		calloc(source->config.num_tiers, sizeof(*source->tiers));
	if (!source->media || !source->dirs || !source->tiers)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	source->num_dirs = num;
	return open_all(source, error);
}

static int tiers_open(const char *text, struct ucm_source **out,
		      struct ucm_error *error)
{
	struct ucm_source *source = calloc(1, sizeof(*source));
	int err;

	if (!source)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	pthread_mutex_init(&source->lock, NULL);
	ucm_config_init(&source->config);
	/* what goes is for a daemon to say, which knows who uses what */
	strcpy(source->config.policy, UCM_POLICY_NONE);
	source->config.lock_wait_s = 0; /* an engine's thread is not kept */
	source->config.block_max = UINT64_MAX; /* its blocks are its own */
	err = open_tiers(source, text, error);
	source->config.saver = !ucm_config_has_memory(&source->config);
	if (err) {
		tiers_close(source);
		return err;
	}
	*out = source;
	return 0;
}

static int tiers_check_space(struct ucm_source *source, const char *space)
{
	char folder[UCM_TREE_PATH_MAX];
	struct stat st;

	ucm_tree_folder(space, folder);
	for (unsigned i = 0; i < source->num_dirs; i++) {
		if (!fstatat(source->dirs[i].fd, folder, &st,
			     AT_SYMLINK_NOFOLLOW))
			return 0;
	}
	return *space ? -ENOENT : 0;
}

static int tiers_place(struct ucm_source *source, const char *space,
		       const struct ucm_id *id, unsigned attempt,
		       struct ucm_place *out)
{
	char folder[UCM_TREE_PATH_MAX];
	uint8_t order[UCM_MAX_DIRS];
	const struct tier *tier = source->tiers;

	if (attempt >= source->num_dirs)
		return -ENOENT;
	while (attempt >= tier->num)
		attempt -= (tier++)->num;
	ucm_placement_order(source->config.placement,
			    (const uint8_t(*)[16])tier->uuids, tier->num, id, 0,
			    order);
	ucm_tree_folder(space, folder);
	ucm_tree_block_path(folder, id, out->path);
	out->dir = &source->dirs[tier->first + order[attempt]];
	return 0;
}

/* A directory that comes back is found by its path only when the source is
 * opened again. */
static bool tiers_lost(struct ucm_source *source)
{
	(void)source;
	return false;
}

/* As a mount does it: what lies in files/ counts towards the tiers' limits. */
static int start_store(struct ucm_source *source, struct ucm_store *store)
{
	int err = ucm_store_begin(store);

	if (!err)
		err = ucm_store_start(store);
	return err ? err : ucm_files_count_start(&source->files, &store->dirs);
}

static int try_store(struct ucm_source *source)
{
	struct ucm_error error;
	struct ucm_store *store;
	int err = ucm_store_open(&source->config, &store, &error);

	if (err) {
		ucm_error("%s", error.text);
		return err == -EAGAIN ? -EBUSY : err; /* somebody's lock */
	}
	err = source->config.saver ? ucm_store_start(store)
				   : start_store(source, store);
	if (err)
		close_store(source, store);
	else
		source->store = store;
	return err;
}

/* The store, opened for writing when it is needed first: it takes locks, which
 * who only reads must not. Whoever holds them may leave: it is tried again, now
 * and then. Others that save wait here meanwhile. */
static int open_store(struct ucm_source *source)
{
	int64_t now = ucm_monotonic_ms();
	int err = 0;

	pthread_mutex_lock(&source->lock);
	if (!source->store) {
		if (!source->store_err ||
		    now - source->tried_ms >= RETRY_MS) {
			source->store_err = try_store(source);
			source->tried_ms = now;
		}
		err = source->store_err;
	}
	pthread_mutex_unlock(&source->lock);
	return err;
}

static int key_of(struct ucm_source *source, const char *space,
		  const struct ucm_id *id, struct ucm_key *out)
{
	struct ucm_space *found;

	out->id = *id;
	out->space = 0;
	if (!*space)
		return 0;
	found = ucm_store_meet_space(source->store, space);
	if (!found)
		return -ENOENT;
	out->space = found->number;
	return 0;
}

static int tiers_create(struct ucm_source *source, const char *space,
			const struct ucm_id *id, uint64_t bytes,
			struct ucm_draft **out)
{
	struct ucm_draft *draft;
	struct ucm_entry entry;
	struct ucm_file file;
	ucm_ref ref;
	int err = open_store(source);

	if (err)
		return err;
	draft = calloc(1, sizeof(*draft));
	if (!draft)
		return -ENOMEM;
	err = key_of(source, space, id, &draft->key);
	if (!err && !ucm_store_find(source->store, &draft->key, &entry, &ref))
		err = -EEXIST;
	if (!err)
		err = ucm_store_create(source->store, &draft->key, bytes,
				       &draft->temp, &file);
	if (err) {
		free(draft);
		return err;
	}
	*out = draft;
	return ucm_file_descriptor(&file); /* of a directory: it has one */
}

static void tiers_drop(struct ucm_source *source, struct ucm_draft *draft)
{
	ucm_store_drop(source->store, &draft->temp);
	free(draft);
}

static int tiers_reopen(struct ucm_source *source,
			const struct ucm_draft *draft)
{
	struct ucm_file file;
	int err = ucm_store_reopen(source->store, &draft->temp, &file);

	return err ? err : ucm_file_descriptor(&file);
}

static int tiers_commit(struct ucm_source *source, struct ucm_draft *draft,
			int fd, const struct ucm_block *written)
{
	const struct ucm_file file = ucm_file_of(draft->temp.medium, fd);
	struct ucm_word word = { .block = *written };
	int err;

	/* what the store reads may use any memory */
	fcntl(fd, F_SETFL, O_RDWR);
	if (!ucm_file_stat(&file, &word.stamp))
		draft->temp.word = &word;
	err = ucm_store_commit(source->store, &draft->temp, &file,
			       &draft->key, UCM_COMMIT_NOW);
	ucm_os_close(fd);
	tiers_drop(source, draft);
	return err;
}

static int tiers_remove(struct ucm_source *source, const char *space,
			const struct ucm_id *id)
{
	struct ucm_key key;
	int err = open_store(source);

	if (!err)
		err = key_of(source, space, id, &key);
	return err ? err : ucm_store_remove(source->store, &key);
}

const struct ucm_source_ops ucm_source_tiers = {
	.name = "tiers",
	.open = tiers_open,
	.close = tiers_close,
	.check_space = tiers_check_space,
	.place = tiers_place,
	.lost = tiers_lost,
	.create = tiers_create,
	.reopen = tiers_reopen,
	.commit = tiers_commit,
	.drop = tiers_drop,
	.remove = tiers_remove,
};
