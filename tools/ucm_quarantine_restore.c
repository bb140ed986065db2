/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_quarantine_restore.c - a file of the quarantine becomes a block again, or the
 * representations of one that is there.
 *
 * A copy of it is written as any program writes a block, and committed: header,
 * checksums where there are any, and the geometry of the space are judged once
 * more. So nothing that is wrong gets a block's name here. Where a daemon serves the
 * directory, it does that; else a store of our own, which holds the directory's
 * lock for so long.
 */
#include <config.h>

#include "tools/ucm_quarantine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/store/repr.h"
#include "fs/store/store.h"
#include "tools/ucm_tool.h"

#define CHUNK (1u << 20)

struct ucm_restorer {
	int mount; /* the mount point, or -1 */
	struct ucm_config config; /* of store */
	struct ucm_store *store;
};

/* write() until the end of the file; 0 or -errno. */
static int copy_bytes(int from, int (*write)(void *arg, const char *bytes,
					     size_t len, uint64_t offset),
		      void *arg)
{
	_cleanup_free_ char *bytes = malloc(CHUNK);
	uint64_t offset = 0;
	ssize_t got = -ENOMEM;
	int err = 0;

	while (bytes && !err &&
	       (got = ucm_os_read_at(from, bytes, CHUNK, (off_t)offset)) > 0) {
		err = write(arg, bytes, (size_t)got, offset);
		offset += (uint64_t)got;
	}
	return err ? err : got < 0 ? (int)got : 0;
}

/* ---- through a mount ---- */

static int write_fd(void *arg, const char *bytes, size_t len, uint64_t offset)
{
	while (len) {
		ssize_t put = pwrite(*(int *)arg, bytes, len, (off_t)offset);

		if (put < 0)
			return -errno;
		bytes += put;
		offset += (uint64_t)put;
		len -= (size_t)put;
	}
	return 0;
}

/* fsync(2) commits, and says what it has come to. */
static int commit_to_mount(const struct ucm_restorer *restorer,
			   const struct ucm_aside *aside, int from)
{
	char folder[UCM_TREE_FOLDER_MAX], path[UCM_TREE_PATH_MAX];
	_cleanup_fd_ int there = -1, fd = -1;
	struct stat st;
	int err;

	ucm_tree_folder(aside->space, folder);
	ucm_tree_block_path(folder, &aside->id, path);
	/* stat(2) may speak of a file that is gone: only an open looks for it */
	there = openat(restorer->mount, path, O_RDONLY | O_CLOEXEC);
	if (there >= 0)
		return -EEXIST;
	fd = openat(restorer->mount, path,
		    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	err = copy_bytes(from, write_fd, &fd);
	if (!err && fsync(fd))
		err = -errno;
	if (!err && fstatat(restorer->mount, path, &st, AT_SYMLINK_NOFOLLOW))
		err = errno == ENOENT ? -EINVAL : -errno;
	return err;
}

/* ---- into the directory ---- */

static int write_file(void *arg, const char *bytes, size_t len, uint64_t offset)
{
	return ucm_file_write(arg, bytes, len, offset);
}

static int commit_to_store(const struct ucm_restorer *restorer,
			   const struct ucm_aside *aside, int from)
{
	struct ucm_store *store = restorer->store;
	struct ucm_space *space =
		*aside->space ? ucm_namespace_find(&store->names, aside->space)
			      : ucm_namespace_get(&store->names, 0);
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct ucm_key key = { .id = aside->id };
	struct ucm_entry entry;
	struct ucm_temp temp;
	ucm_ref ref;
	int err;

	if (!space)
		return -ENOENT;
	key.space = space->number;
	if (!ucm_store_find(store, &key, &entry, &ref))
		return -EEXIST;
	err = ucm_store_create(store, &key, aside->size, &temp, &file);
	if (err)
		return err;
	err = copy_bytes(from, write_file, &file);
	if (!err)
		err = ucm_store_commit(store, &temp, &file, &key,
				       UCM_COMMIT_NOW);
	ucm_file_close(&file);
	ucm_store_drop(store, &temp);
	return err == -EAGAIN ? -EINVAL : err;
}

/* ---- representations: beside their block ---- */

int ucm_aside_read(int fd, void **bytes_out, size_t *len_out)
{
	struct stat st;
	void *bytes;
	ssize_t got;

	if (fstat(fd, &st))
		return -errno;
	if (st.st_size > UCM_STORE_REPR_MAX)
		return -EFBIG;
	bytes = malloc((size_t)st.st_size + 1);
	if (!bytes)
		return -ENOMEM;
	got = ucm_os_read_at(fd, bytes, (size_t)st.st_size, 0);
	if (got < 0) {
		free(bytes);
		return (int)got;
	}
	*bytes_out = bytes;
	*len_out = (size_t)got;
	return 0;
}

/* close(2) says what has become of it. */
static int repr_to_mount(const struct ucm_restorer *restorer,
			 const struct ucm_aside *aside, int from)
{
	char folder[UCM_TREE_FOLDER_MAX], path[UCM_TREE_PATH_MAX];
	int fd, err;

	ucm_tree_folder(aside->space, folder);
	ucm_tree_repr_path(folder, &aside->id, path);
	fd = openat(restorer->mount, path,
		    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	err = copy_bytes(from, write_fd, &fd);
	if (close(fd) && !err)
		err = -errno;
	return err;
}

static int repr_to_store(const struct ucm_restorer *restorer,
			 const struct ucm_aside *aside, int from)
{
	struct ucm_store *store = restorer->store;
	struct ucm_space *space =
		*aside->space ? ucm_namespace_find(&store->names, aside->space)
			      : ucm_namespace_get(&store->names, 0);
	_cleanup_free_ void *bytes = NULL;
	struct ucm_key key = { .id = aside->id };
	struct stat st;
	ucm_ref ref;
	size_t len;
	int err;

	if (!space)
		return -ENOENT;
	key.space = space->number;
	if (!ucm_store_find_repr(store, &key, &st, &ref))
		return -EEXIST;
	err = ucm_aside_read(from, &bytes, &len);
	return err ? err : ucm_store_put_repr(store, &key, bytes, len);
}

int ucm_restorer_commit(struct ucm_restorer *restorer,
			const struct ucm_aside *aside, int fd)
{
	if (aside->is_repr)
		return restorer->store ? repr_to_store(restorer, aside, fd)
				       : repr_to_mount(restorer, aside, fd);
	return restorer->store ? commit_to_store(restorer, aside, fd)
			       : commit_to_mount(restorer, aside, fd);
}

/* ---- open and close ---- */

static int open_store(struct ucm_restorer *restorer, const char *path)
{
	struct ucm_error error = { "" };
	int err = ucm_config_source(&restorer->config, path, &error);

	if (!err)
		err = ucm_store_open(&restorer->config, &restorer->store,
				     &error);
	if (err)
		return ucm_tool_complain("%s", error.text);
	err = ucm_store_start(restorer->store);
	return err ? ucm_tool_complain("%s: %s", path, strerror(-err)) : 0;
}

int ucm_restorer_open(const struct ucm_aside_dir *dir,
		      struct ucm_restorer **out)
{
	struct ucm_restorer *restorer = calloc(1, sizeof(*restorer));
	int err = 0;

	if (!restorer)
		return ucm_tool_complain("no memory");
	restorer->mount = -1;
	ucm_config_init(&restorer->config);
	if (dir->mount) {
		restorer->mount = open(dir->mount,
				       O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (restorer->mount < 0)
			err = ucm_tool_complain("%s: %s", dir->mount,
						strerror(errno));
	} else {
		err = open_store(restorer, dir->path);
	}
	if (err) {
		ucm_restorer_close(restorer);
		return err;
	}
	*out = restorer;
	return 0;
}

void ucm_restorer_close(struct ucm_restorer *restorer)
{
	if (!restorer)
		return;
	ucm_store_close(restorer->store);
	ucm_config_fini(&restorer->config);
	if (restorer->mount >= 0)
		close(restorer->mount);
	free(restorer);
}
