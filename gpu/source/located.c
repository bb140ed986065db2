/* SPDX-License-Identifier: Apache-2.0 */
/*
 * located.c - blocks of a mount by their directories; see located.h.
 *
 * A view of a space is a reader of the index and the directories by the numbers
 * that the daemon gives them. It holds as long as that daemon lives and no space
 * comes or goes; then another one is made. That takes calls which may hang with
 * the daemon, and is done by a thread of its own (or by whoever prepares a
 * space), without the lock; meanwhile blocks are opened in the mount. What is
 * done with the lock never waits: a walk through the map.
 *
 *	find	the view's directory of the block, if it holds; else the view is
 *		wanted anew, and the thread is woken
 *	thread	makes views that are wanted, each at most once in RETRY_MS
 *
 * A directory is used if its path leads to the very directory that the daemon
 * has: device and inode must be the same, which a container with other mounts,
 * or a copy, does not have. So nothing else can be taken for it. Directories that
 * are not local stay with the mount: the daemon has deadlines for their servers.
 * Once opened they are kept until the end, for files that are on their way.
 */
#include <config.h>

#include "gpu/source/located.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <ucm/client.h>
#include <ucm/index.h>

#include "common/clock.h"
#include "fs/reader/reader.h"

#define RETRY_MS 200
#define CLOSE_WAIT_S 2
#define DIRECTORIES 256

struct located_dir {
	struct ucm_dir dir;
	uint64_t device, inode;
	struct located_dir *next;
};

/* Of a space, under one daemon. */
struct view {
	struct ucm_index_reader *reader;
	struct located_dir *dirs[DIRECTORIES]; /* NULL: not to be opened */
};

struct located_space {
	struct view *view; /* NULL: none yet */
	bool wanted;       /* another one */
	int64_t tried_ms;
	struct located_space *next;
	char name[];
};

struct ucm_located {
	char *mount;
	pthread_mutex_t making; /* one view is made at a time: guards dirs */
	struct located_dir *dirs;
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t wake;
	pthread_t thread;
	bool running, stopping;
	struct located_space *spaces;
};

/* ---- directories ---- */

static void located_dir_free(struct located_dir *dir)
{
	close(dir->dir.fd);
	free(dir);
}

/* The very directory that the daemon has; -1: it cannot be had. */
static int open_located(const struct ucm_control_directory *told)
{
	int fd = open(told->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return -1;
	if (!fstat(fd, &st) && st.st_dev == told->device &&
	    st.st_ino == told->inode)
		return fd;
	close(fd);
	return -1;
}

/* NULL: it is not to be used. */
static struct located_dir *get_dir(struct ucm_located *located,
				   const struct ucm_control_directory *told)
{
	struct located_dir *dir = located->dirs;
	int fd = told->flags & UCM_DIRECTORY_LOCAL ? open_located(told) : -1;

	if (fd < 0)
		return NULL;
	while (dir && (dir->device != told->device ||
		       dir->inode != told->inode))
		dir = dir->next;
	if (dir) {
		close(fd);
		atomic_store(&dir->dir.refused, false);
		return dir;
	}
	dir = calloc(1, sizeof(*dir));
	if (!dir) {
		close(fd);
		return NULL;
	}
	ucm_dir_init(&dir->dir, fd);
	dir->dir.quick = true;
	dir->device = told->device;
	dir->inode = told->inode;
	dir->next = located->dirs;
	located->dirs = dir;
	return dir;
}

/* ---- views ---- */

static void view_free(struct view *view)
{
	if (!view)
		return;
	ucm_index_close(view->reader);
	free(view);
}

/* All directories, by a request each. */
static void ask_directories(struct ucm_located *located, struct view *view)
{
	struct ucm_serve_request head = { .verb = UCM_SERVE_DIRECTORY };

	for (; head.argument < DIRECTORIES; head.argument++) {
		struct ucm_control_directory told;
		int err = ucm_client_call(view->reader->client, &head, NULL, 0,
					  &told, sizeof(told), NULL);

		if (!err)
			view->dirs[head.argument] = get_dir(located, &told);
		else if (err != -ENAMETOOLONG)
			break;
	}
}

static struct view *view_new(struct ucm_located *located, const char *space)
{
	struct view *view = calloc(1, sizeof(*view));

	if (!view)
		return NULL;
	if (ucm_index_open(located->mount, space, &view->reader)) {
		free(view);
		return NULL;
	}
	/* a space that is not in the map need not be asked for again */
	if (view->reader->map.base && view->reader->published)
		ask_directories(located, view);
	return view;
}

/* ---- spaces; under the lock ---- */

static struct located_space *located_space_get(struct ucm_located *located,
					       const char *name)
{
	struct located_space *space = located->spaces;

	while (space && strcmp(space->name, name) != 0)
		space = space->next;
	if (space)
		return space;
	space = calloc(1, sizeof(*space) + strlen(name) + 1);
	if (!space)
		return NULL;
	strcpy(space->name, name);
	space->next = located->spaces;
	located->spaces = space;
	return space;
}

/* The lock is given up meanwhile. */
static void make_view(struct ucm_located *located, struct located_space *space)
{
	struct view *view, *before;

	pthread_mutex_unlock(&located->lock);
	pthread_mutex_lock(&located->making);
	view = view_new(located, space->name);
	pthread_mutex_lock(&located->lock);
	before = space->view;
	space->view = view;
	space->wanted = false;
	space->tried_ms = ucm_monotonic_ms();
	pthread_mutex_unlock(&located->lock);
	view_free(before);
	pthread_mutex_unlock(&located->making);
	pthread_mutex_lock(&located->lock);
}

/* One whose view is wanted, and may be tried now; or NULL, and when there may be
 * one. */
static struct located_space *next_wanted(struct ucm_located *located,
					 int64_t *when_ms)
{
	int64_t now_ms = ucm_monotonic_ms();
	struct located_space *space = located->spaces;

	*when_ms = INT64_MAX;
	for (; space; space = space->next) {
		int64_t due_ms = space->tried_ms + RETRY_MS;

		if (!space->wanted)
			continue;
		if (due_ms <= now_ms)
			return space;
		if (due_ms < *when_ms)
			*when_ms = due_ms;
	}
	return NULL;
}

static void wait_wanted(struct ucm_located *located, int64_t when_ms)
{
	const struct timespec until = { .tv_sec = when_ms / 1000,
					.tv_nsec = when_ms % 1000 * 1000000 };

	if (when_ms == INT64_MAX)
		pthread_cond_wait(&located->wake, &located->lock);
	else
		pthread_cond_timedwait(&located->wake, &located->lock, &until);
}

static void *located_main(void *arg)
{
	struct ucm_located *located = arg;
	int64_t when_ms;

	pthread_mutex_lock(&located->lock);
	while (!located->stopping) {
		struct located_space *space = next_wanted(located, &when_ms);

		if (space)
			make_view(located, space);
		else
			wait_wanted(located, when_ms);
	}
	pthread_mutex_unlock(&located->lock);
	return NULL;
}

/* By the first view that is wanted anew: most loaders need no thread. */
static void want_view(struct ucm_located *located, struct located_space *space)
{
	sigset_t all, before;

	if (space->wanted && located->running)
		return;
	space->wanted = true;
	if (!located->running) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		located->running = !pthread_create(&located->thread, NULL,
						   located_main, located);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_cond_signal(&located->wake);
}

/* ---- the calls ---- */

struct ucm_located *ucm_located_new(const char *mount)
{
	struct ucm_located *located = calloc(1, sizeof(*located));

	if (!located)
		return NULL;
	located->mount = strdup(mount);
	if (!located->mount) {
		free(located);
		return NULL;
	}
	pthread_mutex_init(&located->making, NULL);
	pthread_mutex_init(&located->lock, NULL);
	ucm_cond_init_monotonic(&located->wake);
	return located;
}

static void located_end(struct ucm_located *located)
{
	while (located->spaces) {
		struct located_space *space = located->spaces;

		located->spaces = space->next;
		view_free(space->view);
		free(space);
	}
	while (located->dirs) {
		struct located_dir *dir = located->dirs;

		located->dirs = dir->next;
		located_dir_free(dir);
	}
	pthread_mutex_destroy(&located->making);
	pthread_mutex_destroy(&located->lock);
	pthread_cond_destroy(&located->wake);
	free(located->mount);
	free(located);
}

void ucm_located_free(struct ucm_located *located)
{
	struct timespec until;
	bool running;

	if (!located)
		return;
	pthread_mutex_lock(&located->lock);
	located->stopping = true;
	running = located->running;
	pthread_cond_signal(&located->wake);
	pthread_mutex_unlock(&located->lock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSE_WAIT_S;
	if (running && pthread_timedjoin_np(located->thread, NULL, &until))
		pthread_detach(located->thread);
	else
		located_end(located);
}

void ucm_located_prepare(struct ucm_located *located, const char *name)
{
	struct located_space *space;

	pthread_mutex_lock(&located->lock);
	space = located_space_get(located, name);
	if (space && !space->view)
		make_view(located, space);
	pthread_mutex_unlock(&located->lock);
}

/* NULL: in none that may be opened; *number: that of the directory, if it is known. */
static struct located_dir *find_dir(struct ucm_located *located,
				    const char *name, const struct ucm_id *id,
				    struct ucm_reader_place *place,
				    unsigned *number)
{
	struct located_dir *dir = NULL;
	struct located_space *space;
	struct view *view;
	int err;

	*number = UCM_DIRECTORIES;
	pthread_mutex_lock(&located->lock);
	space = located_space_get(located, name);
	view = space ? space->view : NULL;
	err = view ? ucm_reader_locate(view->reader, id, place) : -ESTALE;
	if (space && (err == -ESTALE || err == -ENOTCONN))
		want_view(located, space);
	if (!err) {
		*number = place->dir;
		dir = view->dirs[place->dir];
	}
	pthread_mutex_unlock(&located->lock);
	return dir;
}

bool ucm_located_find(struct ucm_located *located, const char *space,
		      const struct ucm_id *id, struct ucm_place *out,
		      uint64_t *size_out)
{
	char folder[UCM_TREE_FOLDER_MAX];
	struct ucm_reader_place place;
	struct located_dir *dir =
		find_dir(located, space, id, &place, &out->directory);

	if (!dir || atomic_load(&dir->dir.refused))
		return false;
	*size_out = place.size;
	ucm_tree_folder(space, folder);
	ucm_tree_block_path(folder, id, out->path);
	out->dir = &dir->dir;
	return true;
}

uint64_t ucm_located_verified(struct ucm_located *located, const char *space,
			      const struct ucm_id *id)
{
	struct ucm_reader_place place;
	unsigned number;

	return find_dir(located, space, id, &place, &number) ? place.verified
							      : 0;
}
