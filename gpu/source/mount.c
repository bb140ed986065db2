/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - blocks by their paths below a mount of ucmfs.
 *
 * A mount may go and come back (its daemon was restarted): then the descriptor
 * of its root is dead and is replaced, under the same number, so that nobody
 * who uses it meanwhile is left with a stale one.
 */
#include <config.h>

#include "gpu/source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <ucm/blocks.h>
#include <ucm/index.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "gpu/source/located.h"
#include "hashing/tree.h"

#define RETRY_MS 200

/* The live index of a space, opened when it is first asked. */
struct space_index {
	struct ucm_index_reader *reader; /* NULL: the mount had gone */
	struct space_index *next;
	char space[];
};

struct ucm_source {
	char *path;
	struct ucm_dir dir;
	struct ucm_located *located;
	pthread_mutex_t lock; /* guards the rest */
	int64_t tried_ms;
	bool told;
	_Atomic bool unheard; /* it does not listen to what is written */
	pthread_mutex_t index_lock; /* guards the indexes */
	struct space_index *indexes;
};

/* A mount of ucmfs, and not the empty directory below a dead one. */
static int open_root(const char *path, int *fd_out)
{
	struct statfs fs;
	struct stat st;
	int fd, err = 0;

	fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstatfs(fd, &fs))
		err = -errno;
	else if (fs.f_type != FUSE_SUPER_MAGIC ||
		 fstatat(fd, UCM_TREE_STATS, &st, AT_SYMLINK_NOFOLLOW))
		err = -ENOTCONN;
	if (err) {
		close(fd);
		return err;
	}
	*fd_out = fd;
	return 0;
}

static int mount_open(const char *text, struct ucm_source **out,
		      struct ucm_error *error)
{
	struct ucm_source *source;
	int fd, err;

	err = open_root(text, &fd);
	if (err)
		return ucm_error_set(error, err, "%s: %s", text,
				     err == -ENOTCONN ? "no mount of ucmfs"
						      : strerror(-err));
	source = calloc(1, sizeof(*source));
	if (source)
		source->path = realpath(text, NULL);
	if (source && source->path)
		source->located = ucm_located_new(source->path);
	if (!source || !source->located) {
		if (source)
			free(source->path);
		free(source);
		close(fd);
		return ucm_error_set(error, -ENOMEM, "out of memory");
	}
	ucm_dir_init(&source->dir, fd);
	pthread_mutex_init(&source->lock, NULL);
	pthread_mutex_init(&source->index_lock, NULL);
	*out = source;
	return 0;
}

static void mount_close(struct ucm_source *source)
{
	while (source->indexes) {
		struct space_index *index = source->indexes;

		source->indexes = index->next;
		ucm_index_close(index->reader);
		free(index);
	}
	ucm_located_free(source->located);
	close(source->dir.fd);
	pthread_mutex_destroy(&source->lock);
	pthread_mutex_destroy(&source->index_lock);
	free(source->path);
	free(source);
}

static int mount_check_space(struct ucm_source *source, const char *space)
{
	char folder[UCM_TREE_FOLDER_MAX];
	struct stat st;

	ucm_tree_folder(space, folder);
	return fstatat(source->dir.fd, folder, &st, AT_SYMLINK_NOFOLLOW)
		       ? -errno
		       : 0;
}

/* It need not be heard: who may not write does not announce, and what nobody
 * has announced is guessed. */
static void mount_announce(struct ucm_source *source, const char *space,
			   uint64_t bytes)
{
	char folder[UCM_TREE_FOLDER_MAX], text[24];
	int len = snprintf(text, sizeof(text), "%" PRIu64, bytes);
	_cleanup_fd_ int fd = -1;

	ucm_tree_folder(space, folder);
	fd = openat(source->dir.fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		fsetxattr(fd, "user.ucmfs.block_bytes", text, (size_t)len, 0);
}

static int mount_offer(struct ucm_source *source, const char *space,
		       const struct ucm_id *ids, const struct ucm_id *parents,
		       size_t num, uint64_t bytes, int32_t *answers)
{
	struct ucm_blocks *blocks;
	int err = ucm_blocks_open(source->path, &blocks);

	if (err)
		return err;
	err = ucm_blocks_offer(blocks, space, ids, parents, num, bytes,
			       answers);
	ucm_blocks_close(blocks);
	return err;
}

static int mount_place(struct ucm_source *source, const char *space,
		       const struct ucm_id *id, unsigned attempt,
		       struct ucm_place *out)
{
	char folder[UCM_TREE_FOLDER_MAX];

	if (attempt)
		return -ENOENT;
	ucm_tree_folder(space, folder);
	ucm_tree_block_path(folder, id, out->path);
	out->dir = &source->dir;
	return 0;
}

static void mount_chart(struct ucm_source *source, const char *space)
{
	ucm_located_prepare(source->located, space);
}

static bool mount_locate(struct ucm_source *source, const char *space,
			 const struct ucm_id *id, struct ucm_place *out,
			 uint64_t *size_out)
{
	return ucm_located_find(source->located, space, id, out, size_out);
}

static uint64_t mount_verified(struct ucm_source *source, const char *space,
			       const struct ucm_id *id)
{
	return ucm_located_verified(source->located, space, id);
}

static struct space_index *index_of(struct ucm_source *source,
				    const char *space)
{
	struct space_index *index = source->indexes;

	while (index && strcmp(index->space, space) != 0)
		index = index->next;
	if (index)
		return index;
	index = calloc(1, sizeof(*index) + strlen(space) + 1);
	if (!index)
		return NULL;
	strcpy(index->space, space);
	index->next = source->indexes;
	source->indexes = index;
	return index;
}

/* A question to an index, and its answer. */
struct question {
	int (*ask)(struct ucm_index_reader *reader, struct question *question);
	const struct ucm_id *ids;
	size_t num;
	uint64_t *present, *unknown; /* lookup: bitmaps */
	size_t count;                /* prefix: so many, and */
	int doubt;                   /* whether the next one is not known */
};

static int ask_each(struct ucm_index_reader *reader, struct question *question)
{
	return ucm_index_lookup(reader, question->ids, question->num,
				question->present, question->unknown);
}

static int ask_prefix(struct ucm_index_reader *reader,
		      struct question *question)
{
	return ucm_index_prefix(reader, question->ids, question->num,
				&question->count, &question->doubt);
}

/* A reader that finds its daemon gone is opened anew, for the next mount. */
static int ask_index(struct ucm_source *source, struct space_index *index,
		     struct question *question)
{
	int err = -ENOTCONN;

	for (unsigned i = 0; i < 2 && err == -ENOTCONN; i++) {
		err = index->reader ? 0
				    : ucm_index_open(source->path, index->space,
						     &index->reader);
		if (!err)
			err = question->ask(index->reader, question);
		if (err) {
			ucm_index_close(index->reader);
			index->reader = NULL;
		}
	}
	return err;
}

static int ask_space(struct ucm_source *source, const char *space,
		     struct question *question)
{
	struct space_index *index;
	int err;

	pthread_mutex_lock(&source->index_lock);
	index = index_of(source, space);
	err = index ? ask_index(source, index, question) : -ENOMEM;
	pthread_mutex_unlock(&source->index_lock);
	return err;
}

static int mount_lookup(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, size_t num, uint8_t *found)
{
	size_t words = UCM_INDEX_WORDS(num);
	_cleanup_free_ uint64_t *bits = calloc(2 * words + 1, sizeof(*bits));
	uint64_t *unknown = bits + words;
	struct question question = {
		.ask = ask_each,
		.ids = ids,
		.num = num,
		.present = bits,
		.unknown = unknown,
	};
	int err = bits ? ask_space(source, space, &question) : -ENOMEM;

	for (size_t i = 0; i < num && !err; i++) {
		if (unknown[i / 64] >> i % 64 & 1)
			found[i] = UCM_FOUND_UNKNOWN;
		else
			found[i] = bits[i / 64] >> i % 64 & 1;
	}
	return err;
}

static int mount_prefix(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, size_t num, size_t *count_out,
			bool *unknown_out)
{
	struct question question = {
		.ask = ask_prefix,
		.ids = ids,
		.num = num,
	};
	int err = ask_space(source, space, &question);

	if (err)
		return err;
	*count_out = question.count;
	*unknown_out = question.doubt;
	return 0;
}

/* Does the descriptor answer? Somebody else may have replaced it. */
static bool is_alive(const struct ucm_source *source)
{
	struct stat st;

	return !fstatat(source->dir.fd, UCM_TREE_STATS, &st,
			AT_SYMLINK_NOFOLLOW);
}

static bool mount_lost(struct ucm_source *source)
{
	int64_t now = ucm_monotonic_ms();
	bool back;
	int fd;

	pthread_mutex_lock(&source->lock);
	back = is_alive(source);
	if (!back && !source->told)
		ucm_warning("%s: the mount has gone", source->path);
	source->told |= !back;
	if (!back && now - source->tried_ms >= RETRY_MS) {
		source->tried_ms = now;
		if (!open_root(source->path, &fd)) {
			atomic_store(&source->dir.answered, false);
			back = dup3(fd, source->dir.fd, O_CLOEXEC) >= 0;
			close(fd);
		}
	}
	if (back)
		atomic_store(&source->unheard, false);
	if (back && source->told) {
		ucm_info("%s: the mount is back", source->path);
		source->told = false;
	}
	pthread_mutex_unlock(&source->lock);
	return back;
}

/* A mount that reads the file instead says so, and is not told again. */
static void mount_say_written(struct ucm_source *source, int fd,
			      const void *header, size_t len)
{
	if (!atomic_load(&source->unheard) &&
	    fsetxattr(fd, "user.ucmfs.written", header, len, 0) &&
	    errno == EOPNOTSUPP)
		atomic_store(&source->unheard, true);
}

/* ---- new blocks that are closed before they are whole ---- */

/*
 * Under its own name the last close of a block decides what it is. So it has a
 * staging name (ucmfs(8)) until it is renamed; if we die before, the mount removes
 * it after a while.
 */
struct ucm_draft {
	char name[UCM_TREE_PATH_MAX]; /* below the mount */
	char block[UCM_TREE_PATH_MAX];
};

static int draft_name(struct ucm_draft *draft, const char *space,
		      const struct ucm_id *id)
{
	char folder[UCM_TREE_FOLDER_MAX], bucket[UCM_TREE_PATH_MAX];
	char hex[UCM_ID_HEX + 1];
	uint64_t number;

	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return -EIO;
	ucm_tree_folder(space, folder);
	ucm_tree_block_path(folder, id, draft->block);
	ucm_tree_bucket_path(folder, ucm_tree_bucket(id), bucket);
	ucm_id_format(id, hex);
	return snprintf(draft->name, sizeof(draft->name),
			"%s/.%s.%016" PRIx64, bucket, hex,
			number) < (int)sizeof(draft->name)
		       ? 0
		       : -ENAMETOOLONG;
}

static int draft_open(struct ucm_source *source, const struct ucm_draft *draft,
		      int flags)
{
	int fd = openat(source->dir.fd, draft->name,
			O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0644);

	return fd < 0 ? -errno : fd;
}

/* The mount is asked whether the block is there: a new name does not show it. */
static int draft_create(struct ucm_source *source,
			const struct ucm_draft *draft)
{
	struct stat st;

	if (!fstatat(source->dir.fd, draft->block, &st, AT_SYMLINK_NOFOLLOW))
		return -EEXIST;
	return errno == ENOENT ? draft_open(source, draft, O_CREAT | O_EXCL)
			       : -errno;
}

static int mount_create_parts(struct ucm_source *source, const char *space,
			      const struct ucm_id *id, uint64_t bytes,
			      struct ucm_draft **out)
{
	struct ucm_draft *draft = calloc(1, sizeof(*draft));
	int fd = draft ? draft_name(draft, space, id) : -ENOMEM;

	(void)bytes; /* it has been announced */
	if (!fd)
		fd = draft_create(source, draft);
	if (ucm_is_lost(fd) && mount_lost(source))
		fd = draft_create(source, draft);
	if (fd < 0)
		free(draft);
	else
		*out = draft;
	return fd;
}

static int mount_reopen(struct ucm_source *source,
			const struct ucm_draft *draft)
{
	return draft_open(source, draft, 0);
}

static void mount_drop(struct ucm_source *source, struct ucm_draft *draft)
{
	unlinkat(source->dir.fd, draft->name, 0);
	free(draft);
}

/* The rename says that it is whole, and tells what is wrong with it. */
static int mount_commit(struct ucm_source *source, struct ucm_draft *draft,
			int fd, const struct ucm_block *written)
{
	int err = renameat(source->dir.fd, draft->name, source->dir.fd,
			   draft->block)
			  ? -errno
			  : 0;

	(void)fd, (void)written;
	if (err)
		mount_drop(source, draft);
	else
		free(draft);
	return err;
}

const struct ucm_source_ops ucm_source_mount = {
	.name = "mount",
	.open = mount_open,
	.close = mount_close,
	.check_space = mount_check_space,
	.announce = mount_announce,
	.offer = mount_offer,
	.place = mount_place,
	.chart = mount_chart,
	.locate = mount_locate,
	.verified = mount_verified,
	.lookup = mount_lookup,
	.prefix = mount_prefix,
	.say_written = mount_say_written,
	.lost = mount_lost,
	.create_parts = mount_create_parts,
	.reopen = mount_reopen,
	.commit = mount_commit,
	.drop = mount_drop,
};
