/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handles.c - the table of open inodes and of files being written.
 *
 * Locks: files.lock guards the table, names and reference counts, and is held
 * for a few instructions; file->lock guards one file and may be held over a
 * system call. file->lock is never taken under files.lock.
 */
#include <config.h>

#include "fs/mount/mount.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"

#define HEADS 4096u

static struct ucm_file **node_head(struct ucm_files *files, fuse_ino_t node)
{
	return &files->by_node[(node * UINT64_C(0x9e3779b97f4a7c15)) >> 52];
}

static struct ucm_file **name_head(struct ucm_files *files, uint16_t space,
				   unsigned bucket, const char *name)
{
	uint32_t hash = space * 257u + bucket;

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619u;
	return &files->by_name[hash % HEADS];
}

int ucm_files_init(struct ucm_files *files)
{
	*files = (struct ucm_files){ 0 };
	pthread_mutex_init(&files->lock, NULL);
	files->by_node = calloc(HEADS, sizeof(struct ucm_file *));
	files->by_name = calloc(HEADS, sizeof(struct ucm_file *));
	return files->by_node && files->by_name ? 0 : -ENOMEM;
}

static void free_file(struct ucm_face *face, struct ucm_file *file)
{
	ucm_promise_end(file->promise);
	if (file->fd >= 0)
		close(file->fd);
	if (file->kind == UCM_FILE_WRITER || file->kind == UCM_FILE_STAGING)
		ucm_tierset_drop(face->set, &file->temp);
	pthread_mutex_destroy(&file->lock);
	free(file->name);
	free(file);
}

void ucm_files_fini(struct ucm_face *face)
{
	struct ucm_files *files = &face->files;

	for (unsigned i = 0; files->by_node && i < HEADS; i++) {
		while (files->by_node[i]) {
			struct ucm_file *file = files->by_node[i];

			files->by_node[i] = file->next_node;
			if (file->opens && ucm_file_has_temp(file))
				ucm_tierset_abandon(&file->temp);
			free_file(face, file);
		}
	}
	free(files->by_node);
	free(files->by_name);
	pthread_mutex_destroy(&files->lock);
}

struct ucm_file *ucm_file_open(struct ucm_face *face, enum ucm_file_kind kind,
			       fuse_ino_t node)
{
	struct ucm_files *files = &face->files;
	struct ucm_file *file = calloc(1, sizeof(*file));
	struct ucm_file **head, *there;

	if (!file)
		return NULL;
	file->kind = kind;
	file->fd = -1;
	file->refs = 1;
	file->touched_ms = ucm_monotonic_ms();
	pthread_mutex_init(&file->lock, NULL);
	pthread_mutex_lock(&files->lock);
	file->node = node ? node
			  : ucm_node_make(UCM_NODE_FILE, ++files->serial);
	head = node_head(files, file->node);
	there = *head;
	while (there && there->node != file->node)
		there = there->next_node;
	if (there) {
		there->refs++;
	} else {
		file->next_node = *head;
		*head = file;
	}
	pthread_mutex_unlock(&files->lock);
	if (!there)
		return file;
	pthread_mutex_destroy(&file->lock);
	free(file);
	return there;
}

struct ucm_file *ucm_file_get(struct ucm_face *face, fuse_ino_t node)
{
	struct ucm_files *files = &face->files;
	struct ucm_file *file;

	pthread_mutex_lock(&files->lock);
	file = *node_head(files, node);
	while (file && file->node != node)
		file = file->next_node;
	if (file)
		file->refs++;
	pthread_mutex_unlock(&files->lock);
	return file;
}

static struct ucm_file *find_name(struct ucm_files *files, uint16_t space,
				  unsigned bucket, const char *name)
{
	struct ucm_file *file = *name_head(files, space, bucket, name);

	while (file && (file->space != space || file->bucket != bucket ||
			strcmp(file->name, name)))
		file = file->next_name;
	return file;
}

struct ucm_file *ucm_file_by_name(struct ucm_face *face, uint16_t space,
				  unsigned bucket, const char *name)
{
	struct ucm_files *files = &face->files;
	struct ucm_file *file;

	pthread_mutex_lock(&files->lock);
	file = find_name(files, space, bucket, name);
	if (file)
		file->refs++;
	pthread_mutex_unlock(&files->lock);
	return file;
}

static void unlink_node(struct ucm_files *files, struct ucm_file *file)
{
	struct ucm_file **link = node_head(files, file->node);

	while (*link != file)
		link = &(*link)->next_node;
	*link = file->next_node;
}

static void unlink_name(struct ucm_files *files, struct ucm_file *file)
{
	struct ucm_file **link = name_head(files, file->space, file->bucket,
					   file->name);

	while (*link != file)
		link = &(*link)->next_name;
	*link = file->next_name;
	free(file->name);
	file->name = NULL;
}

/* Under files.lock. True if that was the last reference. */
static bool drop_ref(struct ucm_files *files, struct ucm_file *file)
{
	if (--file->refs)
		return false;
	unlink_node(files, file);
	return true;
}

int ucm_file_borrow_fd(struct ucm_face *face, struct ucm_file *file)
{
	if (file->fd >= 0)
		return file->fd;
	return ucm_file_has_temp(file)
		       ? ucm_tierset_reopen(face->set, &file->temp)
		       : -ENOENT;
}

void ucm_file_return_fd(const struct ucm_file *file, int fd)
{
	if (fd >= 0 && fd != file->fd)
		close(fd);
}

void ucm_file_put(struct ucm_face *face, struct ucm_file *file)
{
	bool last;

	pthread_mutex_lock(&face->files.lock);
	last = drop_ref(&face->files, file);
	pthread_mutex_unlock(&face->files.lock);
	if (last)
		free_file(face, file);
}

int ucm_file_commit(const struct ucm_event *within, struct ucm_file *file,
		    int fd, const struct ucm_key *key,
		    enum ucm_commit_when when)
{
	struct ucm_event event = ucm_event_within(within, UCM_OP_COMMIT);
	int err = ucm_tierset_commit(within->face->set, &file->temp, fd, key,
				     when);

	if (err == -EAGAIN)
		return err;
	ucm_event_block(&event, key);
	event.dir = file->dir;
	event.bytes = (uint64_t)file->temp.stamp.st_size;
	ucm_event_end(&event, err);
	if (!err)
		file->size = event.bytes;
	return err;
}

int ucm_file_set_name(struct ucm_face *face, struct ucm_file *file,
		      uint16_t space, unsigned bucket, const char *name)
{
	struct ucm_files *files = &face->files;
	char *copy = name ? strdup(name) : NULL;
	struct ucm_file *old = NULL;
	bool last = false;

	if (name && !copy)
		return -ENOMEM;
	pthread_mutex_lock(&files->lock);
	if (file->name) {
		unlink_name(files, file);
		file->refs--; /* the caller has another */
	}
	if (copy) {
		struct ucm_file **head = name_head(files, space, bucket, copy);

		old = find_name(files, space, bucket, copy);
		if (old) {
			unlink_name(files, old);
			last = drop_ref(files, old);
		}
		file->space = space;
		file->bucket = (uint8_t)bucket;
		file->name = copy;
		file->next_name = *head;
		*head = file;
		file->refs++;
	}
	file->touched_ms = ucm_monotonic_ms();
	pthread_mutex_unlock(&files->lock);
	if (last)
		free_file(face, old);
	return 0;
}

static int compare_serials(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

size_t ucm_files_list(struct ucm_face *face, uint16_t space, unsigned bucket,
		      uint64_t **out)
{
	struct ucm_files *files = &face->files;
	uint64_t *serials = NULL;
	size_t num = 0, room = 0;

	pthread_mutex_lock(&files->lock);
	for (unsigned i = 0; i < HEADS; i++) {
		for (struct ucm_file *file = files->by_name[i]; file;
		     file = file->next_name) {
			if (file->space != space ||
			    (bucket != UINT32_MAX && file->bucket != bucket))
				continue;
			if (num == room) {
				uint64_t *more;

				room = room ? 2 * room : 16;
				more = realloc(serials, room * sizeof(*more));
				if (!more)
					goto out;
				serials = more;
			}
			serials[num++] = ucm_node_value(file->node);
		}
	}
out:
	pthread_mutex_unlock(&files->lock);
	if (num)
		qsort(serials, num, sizeof(*serials), compare_serials);
	*out = serials;
	return num;
}

/* One that is neither open nor young; NULL when there is none left. */
static struct ucm_file *take_expired(struct ucm_face *face, int64_t before)
{
	struct ucm_files *files = &face->files;
	struct ucm_file *found = NULL;

	pthread_mutex_lock(&files->lock);
	for (unsigned i = 0; i < HEADS && !found; i++) {
		struct ucm_file *file = files->by_name[i];

		while (file && (file->refs > 1 || file->touched_ms > before))
			file = file->next_name;
		found = file;
	}
	if (found) {
		ucm_info("%s: staging untouched for too long: removed",
			 found->name);
		unlink_name(files, found);
		drop_ref(files, found);
	}
	pthread_mutex_unlock(&files->lock);
	return found;
}

void ucm_files_expire(struct ucm_face *face)
{
	int64_t before = ucm_monotonic_ms() -
			 face->set->config->staging_age_s * INT64_C(1000);
	struct ucm_file *file;

	while ((file = take_expired(face, before)))
		free_file(face, file);
}
