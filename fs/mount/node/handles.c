/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handles.c - the table of open inodes and of files being written.
 *
 * Locks: files.lock guards the table, names and reference counts, and is held
 * for a few instructions; file->lock guards one file and may be held over a
 * system call. file->lock is never taken under files.lock.
 */
#include <config.h>

#include "fs/mount/node/daemon.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/osguard.h"
#include "fs/tier/wait.h"

#define LOCK_NS 100000

/* linux/fuse.h has it since 6.9; libfuse makes the call only for a request */
#ifndef FUSE_DEV_IOC_BACKING_CLOSE
#define FUSE_DEV_IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)
#endif

void ucm_handles_init(struct ucm_handles *files)
{
	*files = (struct ucm_handles){ 0 };
	pthread_mutex_init(&files->lock, NULL);
}

void ucm_handle_close_file(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	uint32_t id = (uint32_t)file->backing_id;

	/* a connection that is gone has taken its ids with it */
	if (id && daemon->session)
		ioctl(fuse_session_fd(daemon->session),
		      FUSE_DEV_IOC_BACKING_CLOSE, &id);
	file->backing_id = 0;
	ucm_os_close(file->fd);
	ucm_os_close(file->read_fd);
	file->fd = file->read_fd = -1;
	ucm_hold_end(daemon->store, &file->open);
}

static void free_file(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	ucm_handle_close_file(daemon, file);
	if (file->ops->has_temp)
		ucm_store_drop(daemon->store, &file->temp);
	pthread_mutex_destroy(&file->lock);
	free(file->name);
	free(file);
}

void ucm_handles_fini(struct ucm_daemon *daemon)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_handle *file;

	HASH_CLEAR(in_names, files->by_name);
	while ((file = files->by_node)) {
		HASH_DELETE(in_nodes, files->by_node, file);
		if (file->opens && file->ops->has_temp)
			ucm_store_abandon(&file->temp);
		free_file(daemon, file);
	}
	pthread_mutex_destroy(&files->lock);
}

struct ucm_handle *ucm_handle_open(struct ucm_daemon *daemon,
				   const struct ucm_handle_ops *ops,
				   fuse_ino_t node)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_handle *file = calloc(1, sizeof(*file));
	struct ucm_handle *there;

	if (!file)
		return NULL;
	file->ops = ops;
	file->fd = file->read_fd = -1;
	file->refs = 1;
	file->touched_ms = ucm_monotonic_ms();
	pthread_mutex_init(&file->lock, NULL);
	pthread_mutex_lock(&files->lock);
	file->node = node ? node
			  : ucm_node_make(UCM_NODE_FILE, ++files->serial);
	HASH_FIND(in_nodes, files->by_node, &file->node, sizeof(file->node),
		  there);
	if (there)
		there->refs++;
	else
		HASH_ADD(in_nodes, files->by_node, node, sizeof(file->node),
			 file);
	pthread_mutex_unlock(&files->lock);
	if (file->in_nodes.tbl)
		return file;
	pthread_mutex_destroy(&file->lock);
	free(file);
	return there;
}

struct ucm_handle *ucm_handle_get(struct ucm_daemon *daemon, fuse_ino_t node)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_handle *file;

	pthread_mutex_lock(&files->lock);
	HASH_FIND(in_nodes, files->by_node, &node, sizeof(node), file);
	if (file)
		file->refs++;
	pthread_mutex_unlock(&files->lock);
	return file;
}

static void make_name(uint16_t space, unsigned bucket, const char *text,
		      struct ucm_staging_name *out)
{
	out->space = space;
	out->bucket = (uint8_t)bucket;
	snprintf(out->text, sizeof(out->text), "%s", text);
}

static size_t name_len(const struct ucm_staging_name *name)
{
	return offsetof(struct ucm_staging_name, text) + strlen(name->text);
}

static struct ucm_handle *find_name(struct ucm_handles *files, uint16_t space,
				    unsigned bucket, const char *name)
{
	struct ucm_staging_name key;
	struct ucm_handle *file;

	if (strlen(name) > UCM_NAME_MAX)
		return NULL;
	make_name(space, bucket, name, &key);
	HASH_FIND(in_names, files->by_name, &key, name_len(&key), file);
	return file;
}

struct ucm_handle *ucm_handle_by_name(struct ucm_daemon *daemon, uint16_t space,
				      unsigned bucket, const char *name)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_handle *file;

	pthread_mutex_lock(&files->lock);
	file = find_name(files, space, bucket, name);
	if (file)
		file->refs++;
	pthread_mutex_unlock(&files->lock);
	return file;
}

static void unlink_name(struct ucm_handles *files, struct ucm_handle *file)
{
	HASH_DELETE(in_names, files->by_name, file);
	free(file->name);
	file->name = NULL;
}

/* Under files.lock. True if that was the last reference. */
static bool drop_ref(struct ucm_handles *files, struct ucm_handle *file)
{
	if (--file->refs)
		return false;
	HASH_DELETE(in_nodes, files->by_node, file);
	return true;
}

int ucm_handle_take(struct ucm_handle *file, struct ucm_file *opened)
{
	int fd = ucm_file_descriptor(opened);

	if (fd < 0)
		ucm_file_close(opened);
	else
		file->fd = fd;
	return fd < 0 ? fd : 0;
}

int ucm_handle_reopen(struct ucm_daemon *daemon,
		      const struct ucm_handle *file)
{
	struct ucm_file opened;
	int err = ucm_store_reopen(daemon->store, &file->temp, &opened);

	if (err)
		return err;
	err = ucm_file_descriptor(&opened);
	if (err < 0)
		ucm_file_close(&opened);
	return err;
}

int ucm_handle_borrow_fd(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	if (file->fd >= 0)
		return file->fd;
	return file->ops->has_temp ? ucm_handle_reopen(daemon, file) : -ENOENT;
}

int ucm_handle_stat(struct ucm_daemon *daemon, fuse_ino_t node,
		    struct stat *out, struct ucm_key *key_out)
{
	struct ucm_handle *file = ucm_handle_get(daemon, node);
	int err;

	if (!file)
		return -ENOENT;
	err = ucm_wait_for(&daemon->store->dirs, file->dir);
	if (!err)
		err = ucm_handle_lock(file);
	if (!err) {
		err = file->fd < 0 ? -ENOENT : ucm_os_fstat(file->fd, out);
		*key_out = file->key;
		pthread_mutex_unlock(&file->lock);
	}
	ucm_handle_put(daemon, file);
	return err;
}

void ucm_handle_return_fd(const struct ucm_handle *file, int fd)
{
	if (fd != file->fd)
		ucm_os_close(fd);
}

/* Others hold it for a few instructions, as a rule. */
int ucm_handle_lock(struct ucm_handle *file)
{
	struct timespec until;

	if (!ucm_must_not_wait) {
		pthread_mutex_lock(&file->lock);
		return 0;
	}
	if (!pthread_mutex_trylock(&file->lock))
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += LOCK_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	return pthread_mutex_clocklock(&file->lock, CLOCK_MONOTONIC, &until)
		       ? ucm_wait_long(file->dir) : 0;
}

void ucm_handle_put(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	bool last;

	pthread_mutex_lock(&daemon->files.lock);
	last = drop_ref(&daemon->files, file);
	pthread_mutex_unlock(&daemon->files.lock);
	if (last)
		free_file(daemon, file);
}

fuse_ino_t *ucm_handles_open_of(struct ucm_daemon *daemon,
				const struct ucm_handle_ops *ops,
				size_t *num_out)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_handle *file, *next;
	fuse_ino_t *nodes;
	size_t num = 0;

	pthread_mutex_lock(&files->lock);
	nodes = calloc(HASH_CNT(in_nodes, files->by_node) + 1,
		       sizeof(*nodes));
	HASH_ITER(in_nodes, files->by_node, file, next) {
		if (nodes && file->ops == ops)
			nodes[num++] = file->node;
	}
	pthread_mutex_unlock(&files->lock);
	*num_out = num;
	return nodes;
}

int ucm_handle_commit(const struct ucm_account *within, struct ucm_handle *file,
		      int fd, const struct ucm_key *key,
		      enum ucm_commit_when when)
{
	struct ucm_account account = ucm_account_within(within, UCM_OP_COMMIT);
	const struct ucm_file opened = ucm_file_of(file->temp.medium, fd);
	int err = ucm_store_commit_evicting(within->daemon->store, &file->temp,
					    &opened, key, when);

	if (err == -EAGAIN)
		return err;
	ucm_account_block(&account, key);
	account.dir = file->dir;
	account.bytes = (uint64_t)file->temp.stamp.st_size;
	ucm_account_end(&account, err);
	if (!err)
		file->size = account.bytes;
	return err;
}

int ucm_handle_set_name(struct ucm_daemon *daemon, struct ucm_handle *file,
			uint16_t space, unsigned bucket, const char *name)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_staging_name *copy = name ? malloc(sizeof(*copy)) : NULL;
	struct ucm_handle *old = NULL;
	bool last = false;
	int err = 0;

	if (name && !copy)
		return -ENOMEM;
	pthread_mutex_lock(&files->lock);
	if (file->name) {
		unlink_name(files, file);
		file->refs--; /* the caller has another */
	}
	if (copy) {
		old = find_name(files, space, bucket, name);
		if (old) {
			unlink_name(files, old);
			last = drop_ref(files, old);
		}
		make_name(space, bucket, name, copy);
		HASH_ADD_KEYPTR(in_names, files->by_name, copy, name_len(copy),
				file);
		err = file->in_names.tbl ? 0 : -ENOMEM;
		file->name = err ? NULL : copy;
		file->refs += !err;
	}
	file->touched_ms = ucm_monotonic_ms();
	pthread_mutex_unlock(&files->lock);
	if (last)
		free_file(daemon, old);
	if (err)
		free(copy);
	return err;
}

static int compare_serials(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

size_t ucm_handles_list(struct ucm_daemon *daemon, uint16_t space,
			unsigned bucket, uint64_t **out)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_handle *file, *next;
	uint64_t *serials;
	size_t num = 0;

	pthread_mutex_lock(&files->lock);
	serials = calloc(HASH_CNT(in_names, files->by_name) + 1,
			 sizeof(*serials));
	HASH_ITER(in_names, files->by_name, file, next) {
		if (serials && file->name->space == space &&
		    (bucket == UINT32_MAX || file->name->bucket == bucket))
			serials[num++] = ucm_node_value(file->node);
	}
	pthread_mutex_unlock(&files->lock);
	if (num)
		qsort(serials, num, sizeof(*serials), compare_serials);
	*out = serials;
	return num;
}

/* One that is neither open nor young; NULL when there is none left. */
static struct ucm_handle *take_expired(struct ucm_daemon *daemon,
				       int64_t before)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_handle *found, *next;

	pthread_mutex_lock(&files->lock);
	HASH_ITER(in_names, files->by_name, found, next) {
		if (found->refs == 1 && found->touched_ms <= before)
			break;
	}
	if (found) {
		ucm_info("%s: staging untouched for too long: removed",
			 found->name->text);
		unlink_name(files, found);
		drop_ref(files, found);
	}
	pthread_mutex_unlock(&files->lock);
	return found;
}

void ucm_handles_expire(struct ucm_daemon *daemon)
{
	int64_t before = ucm_monotonic_ms() -
			 daemon->store->config->staging_age_s * INT64_C(1000);
	struct ucm_handle *file;

	while ((file = take_expired(daemon, before)))
		free_file(daemon, file);
}
