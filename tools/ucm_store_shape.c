/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_store_shape.c - finds out the geometry of a space's blocks. */
#include <config.h>

#include "tools/ucm_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/store/manifest.h"
#include "hashing/tree.h"
#include "tools/ucm_tool.h"

/* Of an open file, if it is a block. */
static int of_file(int fd, uint64_t size, struct ucm_geometry *out)
{
	char bytes[UCM_BLOCK_HEADER_BYTES];
	struct ucm_block block;
	ssize_t got = ucm_os_read_at(fd, bytes, sizeof(bytes), 0);

	if (got < 0)
		return (int)got;
	if (ucm_block_parse(bytes, (size_t)got, size, &block))
		return -EBADMSG;
	*out = block.geometry;
	return 0;
}

static int of_like(const char *path, struct ucm_geometry *out)
{
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	int err;

	if (fd < 0 || fstat(fd, &st))
		return ucm_tool_complain("%s: %s", path, strerror(errno));
	err = of_file(fd, (uint64_t)st.st_size, out);
	if (err == -EBADMSG)
		return ucm_tool_complain("%s: not a block", path);
	return err ? ucm_tool_complain("%s: %s", path, strerror(-err)) : 0;
}

/* 0, -ENOENT: there is none; or an error. */
static int of_manifest(const struct ucm_store_dirs *dirs, unsigned dir,
		       struct ucm_geometry *out)
{
	char path[UCM_TREE_PATH_MAX];
	static char text[UCM_MANIFEST_MAX + 1];
	struct ucm_error error;
	struct ucm_manifest manifest;
	int err;

	if (dirs->client)
		return -ENOENT; /* its blocks have the same */
	ucm_tree_manifest_path(dirs->folder, path);
	err = ucm_os_read_file(dirs->fds[dir], path, text, sizeof(text));
	if (err == -ENOENT)
		return err;
	if (err < 0)
		return ucm_tool_complain("%s/%s: %s", dirs->paths[dir], path,
					 strerror(-err));
	err = ucm_manifest_parse(text, strlen(text), &manifest, &error);
	if (err)
		return ucm_tool_complain("%s/%s: %s", dirs->paths[dir],
					 dirs->folder, error.text);
	*out = manifest.geometry;
	return 0;
}

struct search {
	const struct ucm_store_dirs *dirs;
	struct ucm_geometry *out;
};

/* 1: found. */
static int try_block(void *arg, unsigned dir, const struct ucm_id *id)
{
	const struct search *search = arg;
	struct stat st;
	_cleanup_fd_ int fd =
		ucm_store_dirs_open_block(search->dirs, dir, id, &st);

	return fd >= 0 && !of_file(fd, (uint64_t)st.st_size, search->out);
}

int ucm_store_shape(const struct ucm_store_options *opt,
		    struct ucm_geometry *out)
{
	struct ucm_store_dirs dirs;
	struct search search = { .dirs = &dirs, .out = out };
	int err, found = 0;

	if (opt->shaped) {
		*out = opt->geometry;
		return 0;
	}
	if (opt->like)
		return of_like(opt->like, out);
	err = ucm_store_dirs_open(opt, &dirs);
	if (err)
		return err;
	err = -ENOENT;
	for (unsigned i = 0; err == -ENOENT && i < dirs.num; i++)
		err = of_manifest(&dirs, i, out);
	for (unsigned i = 0; err == -ENOENT && i < dirs.num * UCM_BUCKETS &&
			     found <= 0; i++)
		found = ucm_store_each(&dirs, i / UCM_BUCKETS, i % UCM_BUCKETS,
				       try_block, &search);
	if (found > 0)
		err = 0;
	else if (err == -ENOENT)
		ucm_tool_complain("the space has no block and no manifest: "
				  "give its geometry, or --like");
	ucm_store_dirs_close(&dirs);
	return err;
}
