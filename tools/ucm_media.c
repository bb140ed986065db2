/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_media.c - opening the directories of a store; see ucm_media.h. */
#include <config.h>

#include "tools/ucm_media.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/osfile.h"
#include "common/osguard.h"
#include "fs/store/manifest.h"
#include "fs/tier/memory.h"
#include "hashing/tree.h"
#include "tools/ucm_tool.h"

/* ---- what cannot be read ---- */

/* Its server does not answer, or is gone: what is asked next would wait as long. */
static bool is_out_of_reach(int err)
{
	switch (err) {
	case -ETIMEDOUT: case -ENOTCONN: case -ESTALE: case -ESHUTDOWN:
	case -EHOSTDOWN: case -EHOSTUNREACH: case -ENETDOWN: case -ENETUNREACH:
		return true;
	default:
		return false;
	}
}

void ucm_media_leave(struct ucm_media *media, struct ucm_media_dir *dir,
		     int err)
{
	media->failed = true;
	if (!is_out_of_reach(err) || dir->err)
		return;
	dir->err = err;
	ucm_tool_complain("%s: left out from here on", dir->medium->path);
}

int ucm_media_note(struct ucm_media *media, struct ucm_media_dir *dir,
		   const char *below, int err)
{
	if (!dir->unread++)
		ucm_tool_complain("%s/%s: %s", dir->medium->path, below,
				  strerror(-err));
	ucm_media_leave(media, dir, err);
	return err;
}

/* ---- directories ---- */

static void close_dir(struct ucm_media_dir *dir)
{
	ucm_medium_close(dir->medium, false);
	ucm_medium_free(dir->medium);
	dir->medium = NULL;
}

/* It would be counted twice. */
static int check_known(const struct ucm_media *media,
		       const struct ucm_media_dir *dir)
{
	for (unsigned i = 0; i < media->num; i++) {
		const struct ucm_media_dir *other = &media->dirs[i];

		if (other != dir && other->medium &&
		    !memcmp(other->medium->uuid, dir->medium->uuid,
			    sizeof(dir->medium->uuid)))
			return ucm_tool_complain(
				"%s: the same directory as %s, or a copy of it",
				dir->medium->path, other->medium->path);
	}
	return 0;
}

static int open_path(struct ucm_media *media, struct ucm_media_dir *dir,
		     const char *path, bool readonly)
{
	struct ucm_error error;
	int err = ucm_medium_open(path, readonly, &media->config, &dir->medium,
				  &error);

	if (err) {
		dir->medium = NULL;
		return ucm_tool_fail(err, "%s", error.text);
	}
	err = check_known(media, dir);
	if (err)
		close_dir(dir);
	return err;
}

/* First as a reader, which makes nothing in a directory that is no store's. */
static int open_dir(struct ucm_media *media, struct ucm_media_dir *dir,
		    const char *path, bool readonly)
{
	int err = open_path(media, dir, path, true);

	if (err || readonly)
		return err;
	close_dir(dir);
	err = open_path(media, dir, path, false);
	if (!err) /* whoever starts meanwhile waits for us */
		dir->medium->ops->tell(dir->medium, UCM_MEDIUM_USE_ENDING, 0);
	return err;
}

/* A memory tier that is not there, as before its first daemon, has no blocks. */
static int open_memory(struct ucm_media *media, struct ucm_media_dir *dir,
		       bool readonly)
{
	const char *name = media->config.tiers[dir->tier].name;
	char path[UCM_MEMORY_PATH_MAX];
	struct ucm_error error;
	int err = ucm_memory_find(&media->config, name, path, &error);

	if (!err)
		return open_dir(media, dir, path, readonly);
	return err == -ENOENT && !media->failed
		       ? 0
		       : ucm_tool_fail(err, "%s", error.text);
}

static void open_tier(struct ucm_media *media, struct ucm_media_dir *dirs,
		      unsigned number, bool readonly)
{
	const struct ucm_tier_config *tier = &media->config.tiers[number];

	for (unsigned i = 0; i < tier->num_dirs; i++) {
		struct ucm_media_dir *dir = &dirs[i];

		dir->tier = number;
		dir->err = tier->memory
				   ? open_memory(media, dir, readonly)
				   : open_dir(media, dir, tier->dirs[i],
					      readonly);
		media->failed |= dir->err != 0;
	}
}

/* Memory last: the others say whose it is. */
static int open_dirs(struct ucm_media *media, bool readonly)
{
	const struct ucm_config *config = &media->config;
	bool some = false;

	for (int memory = 0; memory < 2; memory++) {
		struct ucm_media_dir *dirs = media->dirs;

		for (unsigned i = 0; i < config->num_tiers; i++) {
			if (config->tiers[i].memory == memory)
				open_tier(media, dirs, i, readonly);
			dirs += config->tiers[i].num_dirs;
		}
	}
	for (unsigned i = 0; i < media->num; i++)
		some |= !media->dirs[i].err;
	return some && (readonly || !media->failed) ? 0 : -EIO;
}

/* ---- mounts of the same directories ---- */

/* It may be a file server's that does not answer. To free; NULL: not known. */
static char *real_path(const char *path)
{
	struct ucm_guard *guard = NULL;
	char *real = NULL;

	if (!ucm_guard_new(path, UCM_DEADLINE_NETWORK * 1000, &guard) &&
	    ucm_os_real_path(guard, path, &real))
		real = NULL;
	ucm_guard_close(guard);
	return real;
}

/* fn for each directory that has a path, until it returns what is not 0. */
static int each_path(const struct ucm_config *config,
		     int (*fn)(void *arg, const char *path, const char *real),
		     void *arg)
{
	int result = 0;

	for (unsigned i = 0; i < config->num_tiers && !result; i++) {
		const struct ucm_tier_config *tier = &config->tiers[i];

		for (unsigned j = 0; j < tier->num_dirs && !result; j++) {
			_cleanup_free_ char *real =
				tier->memory ? NULL : real_path(tier->dirs[j]);

			result = real ? fn(arg, tier->dirs[j], real) : 0;
		}
	}
	return result;
}

static int is_path(void *arg, const char *path, const char *real)
{
	(void)path;
	return !strcmp(arg, real);
}

struct mounted {
	const struct ucm_mount *mount;
	struct ucm_config config;
};

/* A daemon has an index, and would go on to find what is gone. */
static int refuse_mounted(void *arg, const char *path, const char *real)
{
	const struct mounted *mounted = arg;

	return each_path(&mounted->config, is_path, (void *)real)
		       ? ucm_tool_fail(-EBUSY,
				       "%s: mounted at %s: use ucm evict "
				       "--mount %s",
				       path, mounted->mount->point,
				       mounted->mount->point)
		       : 0;
}

/* One of another machine, or whose SOURCE means nothing from here, has the lock,
 * where there are locks. */
static int check_mounts(const struct ucm_config *ours)
{
	struct ucm_mounts mounts;
	int err = ucm_mounts_list(&mounts);

	if (err)
		return err;
	for (size_t i = 0; i < mounts.num && !err; i++) {
		struct mounted mounted = { .mount = &mounts.mounts[i] };
		struct ucm_error error;

		ucm_config_init(&mounted.config);
		if (!ucm_config_source(&mounted.config, mounted.mount->source,
				       &error))
			err = each_path(ours, refuse_mounted, &mounted);
		ucm_config_fini(&mounted.config);
	}
	ucm_mounts_fini(&mounts);
	return err;
}

/* ---- spaces ---- */

static int read_manifest(struct ucm_media *media, const struct ucm_space *space,
			 char text[UCM_MANIFEST_MAX])
{
	int err = -ENOENT;

	for (unsigned i = 0; i < media->num && err == -ENOENT; i++) {
		struct ucm_medium *medium = media->dirs[i].medium;

		if (ucm_media_asks(&media->dirs[i]))
			err = medium->ops->notes->read(medium, space->folder,
						       UCM_TREE_MANIFEST, text,
						       UCM_MANIFEST_MAX);
	}
	return err;
}

/* What its blocks look like, as a mount learns it. A manifest that is wrong says
 * nothing of them there either. */
static void learn_manifest(struct ucm_media *media, struct ucm_space *space)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	struct ucm_manifest manifest;
	struct ucm_error error;
	uint64_t quota;
	int err = text ? read_manifest(media, space, text) : -ENOMEM;

	if (err == -ENOENT ||
	    (!err && ucm_manifest_quota_alone(text, strlen(text), &quota)))
		return;
	if (err)
		ucm_error_set(&error, err, "%s", strerror(-err));
	else
		err = ucm_manifest_parse(text, strlen(text), &manifest, &error);
	if (!err)
		err = ucm_space_set_manifest(space, &manifest, &error);
	if (err)
		ucm_tool_complain("%s: %s", space->folder, error.text);
}

struct ucm_space *ucm_media_space(struct ucm_media *media, const char *name)
{
	struct ucm_space *space;

	if (!name || !*name)
		return media->names.spaces[0];
	space = ucm_namespace_find(&media->names, name);
	if (space || ucm_namespace_add(&media->names, name, &space))
		return space;
	learn_manifest(media, space);
	return space;
}

static void add_pin(void *arg, const char *name, const struct ucm_id *id)
{
	struct ucm_media *media = arg;
	struct ucm_space *space = ucm_media_space(media, name);

	if (space)
		ucm_pins_add(&media->pins,
			     &(struct ucm_key){ .id = *id,
						.space = space->number });
}

static void read_pins(struct ucm_media *media)
{
	for (unsigned i = 0; i < media->num; i++) {
		struct ucm_medium *medium = media->dirs[i].medium;

		if (medium)
			medium->ops->notes->pins(medium, add_pin, media);
	}
}

/* ---- open and close ---- */

static int add_paths(struct ucm_config *config, const char *const *paths,
		     unsigned num, struct ucm_error *error)
{
	struct ucm_tier_config *tier;
	int err = 0;

	for (unsigned i = 0; i < num && !err; i++)
		err = ucm_config_add_tier(config, &tier)
			      ? ucm_error_set(error, -ENOMEM, "no memory")
			      : ucm_config_set_tier(tier, "directories",
						    paths[i], error);
	return err;
}

/* paths: NULL, or num of them instead of what source says. */
static int read_source(struct ucm_media *media, const char *source,
		       const char *const *paths, unsigned num)
{
	struct ucm_config *config = &media->config;
	struct ucm_error error;
	int err = paths ? add_paths(config, paths, num, &error)
			: ucm_config_source(config, source, &error);

	if (!err)
		err = ucm_config_check(config, &error);
	if (err)
		return ucm_tool_fail(err, "%s", error.text);
	for (unsigned i = 0; i < config->num_tiers; i++)
		media->num += config->tiers[i].num_dirs;
	media->source = strdup(source);
	media->dirs = calloc(media->num, sizeof(*media->dirs));
	if (!media->source || !media->dirs ||
	    ucm_namespace_init(&media->names, 1))
		return ucm_tool_fail(-ENOMEM, "no memory");
	return 0;
}

static int open_source(const char *source, const char *const *paths,
		       unsigned num, bool readonly, struct ucm_media **out)
{
	struct ucm_media *media = calloc(1, sizeof(*media));
	int err;

	if (!media)
		return ucm_tool_fail(-ENOMEM, "no memory");
	ucm_config_init(&media->config);
	ucm_pins_init(&media->pins);
	err = read_source(media, source, paths, num);
	if (!err && !readonly)
		err = check_mounts(&media->config);
	if (!err)
		err = open_dirs(media, readonly);
	if (err) {
		ucm_media_close(media);
		return err;
	}
	learn_manifest(media, media->names.spaces[0]);
	read_pins(media);
	*out = media;
	return 0;
}

int ucm_media_open(const char *source, struct ucm_media **out)
{
	return open_source(source, NULL, 0, true, out);
}

int ucm_media_open_paths(const char *source, const char *const *paths,
			 unsigned num, struct ucm_media **out)
{
	return open_source(source, paths, num, true, out);
}

int ucm_media_open_to_remove(const char *source, struct ucm_media **out)
{
	return open_source(source, NULL, 0, false, out);
}

/* The first of each was named. */
static void tell_rest(const struct ucm_media *media)
{
	for (unsigned i = 0; i < media->num; i++) {
		const struct ucm_media_dir *dir = &media->dirs[i];

		if (dir->unread > 1)
			ucm_tool_complain("%s: %" PRIu64
					  " more could not be read",
					  dir->medium->path, dir->unread - 1);
	}
	if (media->strays > 1)
		ucm_tool_complain("%" PRIu64 " more files are named as blocks "
				  "and are none: see ucm verify --tiers",
				  media->strays - 1);
}

void ucm_media_close(struct ucm_media *media)
{
	if (!media)
		return;
	if (media->dirs)
		tell_rest(media);
	for (unsigned i = 0; media->dirs && i < media->num; i++)
		close_dir(&media->dirs[i]);
	if (media->names.spaces)
		ucm_namespace_fini(&media->names);
	ucm_pins_fini(&media->pins);
	ucm_config_fini(&media->config);
	free(media->dirs);
	free(media->source);
	free(media);
}
