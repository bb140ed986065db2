/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_store_dirs.c - where the blocks of a store are read. */
#include <config.h>

#include "tools/ucm_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/tier/config.h"
#include "fs/tier/memory.h"
#include "hashing/tree.h"
#include "tools/ucm_ask.h"
#include "tools/ucm_tool.h"

static int add_dir(struct ucm_store_dirs *dirs, const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return ucm_tool_complain("%s: %s", path, strerror(errno));
	dirs->fds[dirs->num] = fd;
	dirs->paths[dirs->num] = strdup(path);
	return dirs->paths[dirs->num++]
		       ? 0
		       : ucm_tool_complain("%s", strerror(ENOMEM));
}

static int make_room(struct ucm_store_dirs *dirs, unsigned num)
{
	dirs->paths = calloc(num, sizeof(*dirs->paths));
	dirs->fds = calloc(num, sizeof(*dirs->fds));
	return dirs->paths && dirs->fds
		       ? 0
		       : ucm_tool_complain("%s", strerror(ENOMEM));
}

static int open_daemon(const char *path, struct ucm_store_dirs *dirs)
{
	int err = make_room(dirs, 1) ?: ucm_ask_connect(path, &dirs->client);

	if (err)
		return err;
	dirs->fds[0] = -1;
	dirs->paths[0] = strdup(path);
	dirs->num = 1;
	return dirs->paths[0] ? 0 : ucm_tool_complain("%s", strerror(ENOMEM));
}

static int open_tiers(const char *source, struct ucm_store_dirs *dirs)
{
	struct ucm_error error;
	struct ucm_config config;
	unsigned num = 0;
	int err;

	ucm_config_init(&config);
	err = ucm_config_source(&config, source, &error)
		      ?: ucm_config_check(&config, &error);
	if (err)
		ucm_tool_complain("%s", error.text);
	for (unsigned i = 0; i < config.num_tiers; i++)
		num += config.tiers[i].num_dirs;
	if (!err)
		err = make_room(dirs, num);
	for (unsigned i = 0; !err && i < config.num_tiers; i++) {
		const struct ucm_tier_config *tier = &config.tiers[i];
		char memory[UCM_MEMORY_PATH_MAX];

		if (tier->memory &&
		    ucm_memory_find(&config, tier->name, memory, &error))
			err = ucm_tool_complain("%s", error.text);
		for (unsigned j = 0; !err && j < tier->num_dirs; j++)
			err = add_dir(dirs,
				      tier->memory ? memory : tier->dirs[j]);
	}
	ucm_config_fini(&config);
	return err;
}

/* A name that is misspelt must not look like a space without blocks. */
static int check_space(const struct ucm_store_dirs *dirs, const char *space)
{
	struct stat st;

	if (dirs->client && !ucm_client_ids(dirs->client, UCM_SERVE_LOOKUP,
					    space, 0, NULL, 0, NULL))
		return 0;
	for (unsigned i = 0; i < dirs->num && !dirs->client; i++) {
		if (!ucm_os_stat(dirs->fds[i], dirs->folder, &st))
			return 0;
	}
	return *space ? ucm_tool_complain("space '%s': %s", space,
					  strerror(ENOENT))
		      : 0;
}

int ucm_store_dirs_open(const struct ucm_store_options *opt,
			struct ucm_store_dirs *out)
{
	int err;

	*out = (struct ucm_store_dirs){ .num = 0 };
	if (*opt->space && !ucm_tree_space_valid(opt->space))
		return ucm_tool_complain("space '%s': no name", opt->space);
	out->space = opt->space;
	ucm_tree_folder(opt->space, out->folder);
	err = opt->mount ? open_daemon(opt->mount, out)
			 : open_tiers(opt->tiers, out);
	if (!err)
		err = check_space(out, opt->space);
	if (err)
		ucm_store_dirs_close(out);
	return err;
}

void ucm_store_dirs_close(struct ucm_store_dirs *dirs)
{
	for (unsigned i = 0; i < dirs->num; i++) {
		if (dirs->fds[i] >= 0)
			close(dirs->fds[i]);
		free(dirs->paths[i]);
	}
	free(dirs->paths);
	free(dirs->fds);
	ucm_client_close(dirs->client);
	*dirs = (struct ucm_store_dirs){ .num = 0 };
}

bool ucm_store_dirs_have(const struct ucm_store_dirs *dirs, unsigned num,
			 const char *space, const struct ucm_id *id)
{
	char folder[UCM_TREE_FOLDER_MAX], path[UCM_TREE_PATH_MAX];
	int32_t found = 0;
	struct stat st;

	ucm_tree_folder(space, folder);
	ucm_tree_block_path(folder, id, path);
	for (unsigned i = 0; i < num && found <= 0; i++) {
		if (!dirs->client)
			found = !ucm_os_stat(dirs->fds[i], path, &st);
		else if (ucm_client_ids(dirs->client, UCM_SERVE_LOOKUP, space,
					0, id, 1, &found))
			found = 0;
	}
	return found > 0;
}

int ucm_store_dirs_open_block(const struct ucm_store_dirs *dirs, unsigned dir,
			 const struct ucm_id *id, struct stat *st)
{
	char path[UCM_TREE_PATH_MAX];
	int fd, err;

	ucm_tree_block_path(dirs->folder, id, path);
	if (!dirs->client)
		return ucm_os_open_regular(dirs->fds[dir], path, O_RDONLY, st);
	err = ucm_client_open(dirs->client, dirs->space, id, 1, &fd, NULL);
	if (!err && fd >= 0)
		err = ucm_os_fstat(fd, st);
	if (err && fd >= 0)
		ucm_os_close(fd);
	return err ? err : fd;
}

static int each_of_daemon(const struct ucm_store_dirs *dirs, unsigned bucket,
			  int (*fn)(void *arg, unsigned dir,
				    const struct ucm_id *id),
			  void *arg)
{
	struct ucm_ids ids = { .num = 0 };
	int err = ucm_ask_ids(dirs->client, dirs->space, bucket, &ids);

	for (size_t i = 0; !err && i < ids.num; i++)
		err = fn(arg, 0, &ids.ids[i]);
	ucm_ids_fini(&ids);
	return err;
}

int ucm_store_each(const struct ucm_store_dirs *dirs, unsigned dir,
		   unsigned bucket,
		   int (*fn)(void *arg, unsigned dir, const struct ucm_id *id),
		   void *arg)
{
	char path[UCM_TREE_PATH_MAX];
	_cleanup_free_ char *names = NULL;
	struct ucm_id id;
	int err;

	if (dirs->client)
		return each_of_daemon(dirs, bucket, fn, arg);
	ucm_tree_bucket_path(dirs->folder, bucket, path);
	err = ucm_os_list(dirs->fds[dir], path, &names);
	if (err == -ENOENT)
		return 0; /* buckets are made when they are needed */
	if (err < 0)
		return err;
	err = 0;
	for (const char *name = names; *name && !err; name += strlen(name) + 1) {
		if (!ucm_tree_parse_block(name, &id) &&
		    ucm_tree_bucket(&id) == bucket)
			err = fn(arg, dir, &id);
	}
	return err;
}
