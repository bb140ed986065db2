/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_medium.c - see memory_medium.h.
 *
 * Above names and nodes (memory_nodes.c), the ops of medium.h, each in the steps
 * that a directory would take, because the store's tests say what is there when
 * one of them fails.
 */
#include <config.h>

#include "tests/unit/memory_medium.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/osfile.h"
#include "tests/unit/memory_inside.h"

/* ---- faults and delays ---- */

static struct {
	char call[16];
	_Atomic unsigned most_us;
} delay;

void memory_delay(const char *call, unsigned most_us)
{
	snprintf(delay.call, sizeof(delay.call), "%s", call ? call : "");
	atomic_store(&delay.most_us, most_us);
}

/* One step of a call is about to be taken. Not under the lock: what a test does
 * then may come here again. */
static int meet(const char *call, const char *path)
{
	int (*fault)(const char *call, const char *path) = ucm_os_fault;
	unsigned most_us = atomic_load(&delay.most_us);
	int err = fault ? fault(call, path) : 0;

	if (most_us && (!*delay.call || !strcmp(delay.call, call)))
		usleep((unsigned)(ucm_monotonic_ns() % most_us));
	return err;
}

/* ---- open files ---- */

static ssize_t memory_read(const struct ucm_file *file, void *buffer,
			   size_t len, uint64_t offset)
{
	const struct open *open = file->object;
	int err = meet("read", NULL);

	if (err)
		return err;
	nodes_lock();
	len = node_read(open->node, buffer, len, offset);
	nodes_unlock();
	return (ssize_t)len;
}

static int memory_write(const struct ucm_file *file, const void *bytes,
			size_t len, uint64_t offset)
{
	const struct open *open = file->object;
	int err = meet("write", NULL);

	if (err)
		return err;
	nodes_lock();
	err = node_write(open->node, bytes, len, offset);
	nodes_unlock();
	return err;
}

static int memory_stat(const struct ucm_file *file, struct stat *out)
{
	const struct open *open = file->object;
	int err = meet("fstat", NULL);

	if (err)
		return err;
	nodes_lock();
	node_stat(open->node, out);
	nodes_unlock();
	return 0;
}

static int memory_set_times(const struct ucm_file *file,
			    const struct timespec times[2])
{
	const struct open *open = file->object;
	int err = meet("utimens", NULL);

	if (err)
		return err;
	nodes_lock();
	node_set_times(open->node, times);
	nodes_unlock();
	return 0;
}

static int memory_sync_file(const struct ucm_file *file, enum ucm_sync what)
{
	static const char *const calls[] = { "flush", "fdatasync", "fsync" };

	(void)file;
	return meet(calls[what], NULL);
}

static void memory_close_file(const struct ucm_file *file)
{
	nodes_close(file->object);
}

static const struct ucm_file_ops memory_files = {
	.read = memory_read,
	.write = memory_write,
	.stat = memory_stat,
	.set_times = memory_set_times,
	.sync = memory_sync_file,
	.close = memory_close_file,
};

/* ---- names, by their paths in a medium ---- */

/* Good for the next three calls. */
static const char *at(const struct ucm_medium *medium, const char *path)
{
	static _Thread_local char paths[4][1024];
	static _Thread_local unsigned turn;
	char *out = paths[turn++ % 4];

	snprintf(out, sizeof(paths[0]), "%s/%s", medium->path, path);
	return out;
}

static int memory_open_file(struct ucm_medium *medium, const char *path,
			    enum ucm_open_how how, struct ucm_file *out,
			    struct stat *st)
{
	static const int flags[] = {
		[UCM_OPEN_READ] = O_RDONLY,
		[UCM_OPEN_CHANGE] = O_RDWR,
		[UCM_OPEN_NEW] = O_RDWR | O_CREAT | O_EXCL,
		[UCM_OPEN_OVER] = O_WRONLY | O_CREAT | O_TRUNC,
	};
	struct open *open;
	int err = meet("open", path);

	if (!err)
		err = nodes_open(at(medium, path), flags[how],
				how == UCM_OPEN_NEW ? 0600 : 0644, &open);
	if (err)
		return err;
	*out = (struct ucm_file){ .medium = medium, .fd = -1, .object = open };
	err = how == UCM_OPEN_READ ? memory_stat(out, st) : 0;
	if (err)
		ucm_file_close(out);
	return err;
}

#define STEP(call, path, doing)                                               \
	({                                                                    \
		int step_err = meet(call, path);                              \
		if (!step_err) {                                              \
			nodes_lock();                                         \
			step_err = (doing);                                   \
			nodes_unlock();                                       \
		}                                                             \
		step_err;                                                     \
	})

static int memory_link(struct ucm_medium *medium, const char *path,
		       const char *name)
{
	int err = meet("chmod", path);

	return err ? err
		   : STEP("link", name,
			  nodes_link(at(medium, path), at(medium, name)));
}

static int memory_rename(struct ucm_medium *medium, const char *from,
			 const char *to)
{
	return STEP("rename", to, nodes_move(at(medium, from), at(medium, to)));
}

static int memory_remove(struct ucm_medium *medium, const char *path,
			 bool is_folder)
{
	return is_folder ? STEP("rmdir", path,
				nodes_remove_folder(at(medium, path)))
			 : STEP("unlink", path,
				nodes_remove(at(medium, path)));
}

static int memory_mkdir(struct ucm_medium *medium, const char *path,
			mode_t mode)
{
	return STEP("mkdir", path,
		    nodes_make(at(medium, path), S_IFDIR | mode));
}

static int own_node(const char *path, const struct ucm_space_owner *owner)
{
	struct node *node = nodes_find(path);

	if (!node)
		return -ENOENT;
	if (geteuid() == 0) {
		node->uid = owner->uid;
		node->gid = owner->gid;
	}
	node->mode = S_IFDIR | (owner->is_private ? 0700 : 0755);
	return 0;
}

static int memory_own(struct ucm_medium *medium, const char *path,
		      const struct ucm_space_owner *owner)
{
	int err = meet("open", path);

	if (!err)
		err = meet("fchown", NULL);
	return err ? err
		   : STEP("fchmod", NULL, own_node(at(medium, path), owner));
}

static int memory_stat_path(struct ucm_medium *medium, const char *path,
			    struct stat *out)
{
	return STEP("stat", path, nodes_stat(at(medium, path), out));
}

static int memory_list(struct ucm_medium *medium, const char *folder,
		       char **names_out)
{
	return STEP("list", folder,
		    nodes_list(at(medium, folder), names_out));
}

static int memory_sync(struct ucm_medium *medium, const char *folder)
{
	int err;

	(void)medium;
	if (!folder)
		return meet("syncfs", NULL);
	err = meet("open", folder);
	return err ? err : meet("fsync", NULL);
}

/* ---- all of it ---- */

static int memory_room(struct ucm_medium *medium, struct ucm_medium_room *out)
{
	int err = meet("statvfs", NULL);

	(void)medium;
	if (err)
		return err;
	nodes_lock();
	*out = (struct ucm_medium_room){
		.total_bytes = nodes_size(),
		.free_bytes = nodes_free(),
		.unit = PAGE,
	};
	nodes_unlock();
	return 0;
}

void memory_set_size(uint64_t bytes)
{
	nodes_set_size(bytes);
}

static void memory_close(struct ucm_medium *medium)
{
	free(medium->path);
	medium->path = NULL;
}

static const struct ucm_medium_ops memory_ops = {
	.close = memory_close,
	.room = memory_room,
	.list = memory_list,
	.stat = memory_stat_path,
	.open = memory_open_file,
	.link = memory_link,
	.rename = memory_rename,
	.remove = memory_remove,
	.mkdir = memory_mkdir,
	.own = memory_own,
	.sync = memory_sync,
	.files = &memory_files,
};

static bool hides_names;

void memory_hide_names(void)
{
	hides_names = true;
}

static int make_layout(struct ucm_medium *medium)
{
	static const char *const folders[] = {
		".ucmfs", "blocks", "spaces", ".ucmfs/tmp",
		".ucmfs/quarantine", ".ucmfs/pinned",
	};
	int err = 0;

	for (size_t i = 0; i < NUM_ROWS(folders) && !err; i++) {
		err = memory_mkdir(medium, folders[i], 0755);
		if (err == -EEXIST)
			err = 0;
	}
	return err;
}

int memory_open(const char *path, bool readonly,
		const struct ucm_config *config, struct ucm_medium **out,
		struct ucm_error *error)
{
	struct ucm_medium *medium = calloc(1, sizeof(*medium));
	int err = 0;

	(void)config;
	ck_assert_ptr_nonnull(medium);
	medium->ops = &memory_ops;
	medium->flags = hides_names ? UCM_MEDIUM_NO_LIST : 0;
	medium->path = strdup(path);
	medium->dev = DEVICE;
	medium->readonly = readonly;
	if (!readonly)
		err = make_layout(medium);
	if (err) {
		ucm_error_set(error, err, "%s: %s", path, strerror(-err));
		memory_close(medium);
		free(medium);
		return err;
	}
	*out = medium;
	return 0;
}

void memory_begin(const char *root)
{
	nodes_begin(root);
	fx_other_tree = &memory_tree;
	fx_before_death = nodes_lock;
}

void memory_end(void)
{
	memory_delay(NULL, 0);
	hides_names = false;
	fx_other_tree = NULL;
	fx_before_death = NULL;
	/* a thread that hangs may come back to what it had */
}
