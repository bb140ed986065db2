/* SPDX-License-Identifier: Apache-2.0 */
/* dir_reprs.c - the files of representations of a directory's blocks: each lies
 * beside its block, in the same bucket. */
#include <config.h>

#include "fs/tier/dir.h"

#include <fcntl.h>

#include "common/osfile.h"

/* These are that medium's, and no others'. */
static struct ucm_directory *of(struct ucm_medium *medium)
{
	return (struct ucm_directory *)medium;
}

static int directory_find_repr(struct ucm_medium *medium, const char *folder,
			       const struct ucm_id *id, struct stat *out)
{
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_repr_path(folder, id, path);
	return ucm_os_stat(of(medium)->dirfd, path, out);
}

static int directory_open_repr(struct ucm_medium *medium, const char *folder,
			       const struct ucm_id *id, struct ucm_file *out,
			       struct stat *st)
{
	char path[UCM_TREE_PATH_MAX];
	int fd;

	ucm_tree_repr_path(folder, id, path);
	fd = ucm_os_open_regular(of(medium)->dirfd, path, O_RDONLY, st);
	if (fd < 0)
		return fd;
	*out = ucm_file_of(medium, fd);
	return 0;
}

/* Its block is there, so its bucket is. */
static int directory_commit_repr(struct ucm_medium *medium, const char *name,
				 const char *folder, const struct ucm_id *id,
				 bool sync)
{
	struct ucm_directory *dir = of(medium);
	char path[UCM_TREE_PATH_MAX], bucket[UCM_TREE_PATH_MAX];
	int err = medium->readonly ? -EROFS
				   : ucm_directory_publish(dir, name);

	if (err)
		return err;
	ucm_tree_repr_path(folder, id, path);
	ucm_tree_bucket_path(folder, ucm_tree_bucket(id), bucket);
	err = ucm_os_rename(dir->tmpfd, name, dir->dirfd, path);
	if (err || !sync || medium->flags & UCM_MEDIUM_VOLATILE)
		return err;
	err = ucm_os_sync_dir(dir->dirfd, bucket);
	if (err) /* it is not what the caller was promised */
		ucm_os_unlink(dir->dirfd, path);
	return err;
}

static int directory_remove_repr(struct ucm_medium *medium, const char *folder,
				 const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_repr_path(folder, id, path);
	return ucm_os_unlink(of(medium)->dirfd, path);
}

static int directory_set_aside_repr(struct ucm_medium *medium,
				    const char *folder, const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_repr_path(folder, id, path);
	return ucm_directory_set_aside(of(medium), path, folder, id,
				       UCM_TREE_REPR_SUFFIX);
}

const struct ucm_repr_ops ucm_directory_reprs = {
	.find = directory_find_repr,
	.open = directory_open_repr,
	.commit = directory_commit_repr,
	.remove = directory_remove_repr,
	.set_aside = directory_set_aside_repr,
};
