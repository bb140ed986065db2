/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept.c - blocks that were closed a moment ago and keep their descriptor.
 *
 * To the store such a block is not open: it may be evicted, and then leaves the
 * index, and with it the list.
 *
 * The handle of a block is in use (it has opens), kept (it has only its
 * descriptor, and the list has a reference), or neither, while somebody who has
 * looked it up is about to open it. Whoever drops the last reference closes.
 *
 * What must hold:
 * - A block that has left the index is not kept. It is put on the list first
 *   and looked for in the index then, so that either we see that it is gone or
 *   ucm_kept_gone() sees it on the list.
 * - Nobody is given a file that changed or went without us: it must have the
 *   size and the change time that it had when it was opened, and a name. And
 *   what was opened UCM_KEPT_SECONDS ago is not kept once more: a file that was
 *   moved away in the very moment of its opening is not served for ever.
 * - Only files of local file systems are kept, where no call needs a deadline.
 *   Elsewhere fstat(2) may be answered from memory when others have changed or
 *   removed the file, or wait for the server.
 * - A block that is in doubt, or whose writer has it open, is looked at as at
 *   any first open.
 *
 * Locks: the list, its references and the flag are files.lock's, which is held
 * for a few instructions; the descriptor is file->lock's, or belongs to whoever
 * has the last reference. Files are closed with neither held except, where
 * somebody opens or closes one, its own.
 */
#include <config.h>

#include "fs/mount/kept.h"

#include <errno.h>
#include <sys/resource.h>
#include <time.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "fs/mount/daemon.h"

#define SWEEP_S 1

/* ---- the list; under files.lock ---- */

static void kept_link(struct ucm_kept *kept, struct ucm_handle *file)
{
	file->kept = true;
	file->refs++;
	TAILQ_INSERT_TAIL(&kept->files, file, in_kept);
	kept->num++;
}

/* The list's reference is the caller's. */
static void kept_unlink(struct ucm_kept *kept, struct ucm_handle *file)
{
	TAILQ_REMOVE(&kept->files, file, in_kept);
	file->kept = false;
	kept->num--;
}

static struct ucm_handle *kept_pop(struct ucm_kept *kept)
{
	struct ucm_handle *file = TAILQ_FIRST(&kept->files);

	if (file)
		kept_unlink(kept, file);
	return file;
}

/* True if it was on the list. The caller has another reference. */
static bool kept_take(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	struct ucm_handles *files = &daemon->files;
	bool was;

	pthread_mutex_lock(&files->lock);
	was = file->kept;
	if (was) {
		kept_unlink(&daemon->kept, file);
		file->refs--;
	}
	pthread_mutex_unlock(&files->lock);
	return was;
}

/* ---- closing later ---- */

/* The next one that has been there too long, or is one too many. */
static struct ucm_handle *kept_expired(struct ucm_kept *kept, unsigned most,
				       int64_t before)
{
	const struct ucm_handle *oldest = TAILQ_FIRST(&kept->files);

	if (!oldest || (kept->num <= most && oldest->touched_ms > before))
		return NULL;
	return kept_pop(kept);
}

/* Under files.lock. */
static void kept_sweep(struct ucm_daemon *daemon, unsigned most)
{
	int64_t before = ucm_monotonic_ms() - UCM_KEPT_SECONDS * 1000;
	struct ucm_handle *file;

	while ((file = kept_expired(&daemon->kept, most, before))) {
		pthread_mutex_unlock(&daemon->files.lock);
		ucm_handle_put(daemon, file);
		pthread_mutex_lock(&daemon->files.lock);
	}
}

/* Three quarters, so that one wake-up closes many. */
static unsigned kept_low(const struct ucm_kept *kept)
{
	return kept->max - kept->max / 4;
}

/* Where the thread is woken before its time. */
static bool kept_is_high(const struct ucm_kept *kept)
{
	return kept->num == kept->max - kept->max / 8;
}

static void *kept_main(void *arg)
{
	struct ucm_daemon *daemon = arg;
	struct ucm_kept *kept = &daemon->kept;
	pthread_mutex_t *lock = &daemon->files.lock;

	pthread_mutex_lock(lock);
	while (!kept->stopping) {
		struct timespec until;

		kept_sweep(daemon, kept_low(kept));
		if (kept->stopping)
			break;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += SWEEP_S;
		if (kept->num)
			pthread_cond_timedwait(&kept->wake, lock, &until);
		else
			pthread_cond_wait(&kept->wake, lock);
	}
	pthread_mutex_unlock(lock);
	return NULL;
}

int ucm_kept_start(struct ucm_daemon *daemon, unsigned max)
{
	struct ucm_kept *kept = &daemon->kept;
	struct rlimit limit;
	int err;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return -errno;
	if (max > limit.rlim_cur / 4)
		max = (unsigned)(limit.rlim_cur / 4);
	if (!max)
		return 0;
	kept->max_handles = limit.rlim_cur / 2 < UINT32_MAX
				    ? (unsigned)(limit.rlim_cur / 2)
				    : UINT32_MAX;
	TAILQ_INIT(&kept->files);
	ucm_cond_init_monotonic(&kept->wake);
	err = pthread_create(&kept->thread, NULL, kept_main, daemon);
	if (err)
		return -err;
	kept->running = true;
	pthread_mutex_lock(&daemon->files.lock);
	kept->max = max;
	pthread_mutex_unlock(&daemon->files.lock);
	return 0;
}

void ucm_kept_stop(struct ucm_daemon *daemon)
{
	struct ucm_kept *kept = &daemon->kept;

	if (!kept->running)
		return;
	pthread_mutex_lock(&daemon->files.lock);
	kept->stopping = true;
	kept->max = 0;
	pthread_cond_signal(&kept->wake);
	kept_sweep(daemon, 0);
	pthread_mutex_unlock(&daemon->files.lock);
	pthread_join(kept->thread, NULL);
	kept->running = false;
}

/* ---- opening and closing blocks ---- */

/* The oldest of too many goes, where there are too many handles: descriptors
 * are for what is open. */
static void kept_make_room(struct ucm_daemon *daemon)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_handle *file = NULL;

	pthread_mutex_lock(&files->lock);
	if (ucm_handles_count(files) > daemon->kept.max_handles)
		file = kept_pop(&daemon->kept);
	pthread_mutex_unlock(&files->lock);
	if (file)
		ucm_handle_put(daemon, file);
}

void ucm_kept_opened(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	const struct ucm_medium *medium = daemon->store->dirs.at[file->dir];
	struct stat st;

	file->opened_ms = INT64_MIN; /* not to be kept */
	if (!daemon->kept.running || medium->remote || medium->guard ||
	    ucm_os_fstat(file->fd, &st))
		return;
	file->opened_ms = ucm_monotonic_ms();
	file->changed = st.st_ctim;
	kept_make_room(daemon);
}

/* Where the kernel should reach the file itself and cannot for now, the next
 * open tries again. */
static bool kept_is_worth_it(const struct ucm_daemon *daemon,
			     const struct ucm_handle *file)
{
	return file->ops->is_final &&
	       file->opened_ms >
		       ucm_monotonic_ms() - UCM_KEPT_SECONDS * 1000 &&
	       (file->backing_id || !ucm_handle_wants_backing(daemon, file));
}

/* Of a block as it is in the index; false: look at it again. */
static bool kept_is_entry(struct ucm_daemon *daemon,
			  const struct ucm_handle *file)
{
	struct ucm_entry entry;

	return ucm_index_get(daemon->store->index, ucm_node_value(file->node),
			     &entry) &&
	       !(entry.flags &
		 (UCM_ENTRY_DOUBT | UCM_ENTRY_WRITABLE | UCM_ENTRY_UNREAD)) &&
	       entry.dir == file->dir && entry.size == file->size;
}

bool ucm_kept_add(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	struct ucm_handles *files = &daemon->files;
	struct ucm_kept *kept = &daemon->kept;
	struct ucm_handle *other = NULL;
	bool keeps;

	if (!kept_is_worth_it(daemon, file))
		return false;
	pthread_mutex_lock(&files->lock);
	keeps = kept->max && ucm_handles_count(files) <= kept->max_handles;
	if (keeps) {
		if (kept->num == kept->max) /* the thread lags behind */
			other = kept_pop(kept);
		kept_link(kept, file);
		if (kept->num == 1 || kept_is_high(kept))
			pthread_cond_signal(&kept->wake);
	}
	pthread_mutex_unlock(&files->lock);
	if (other)
		ucm_handle_put(daemon, other);
	if (!keeps)
		return false;
	if (kept_is_entry(daemon, file))
		return true;
	kept_take(daemon, file);
	return false;
}

static bool kept_is_file(const struct ucm_handle *file)
{
	struct stat st;

	return !ucm_os_fstat(file->fd, &st) && st.st_nlink > 0 &&
	       (uint64_t)st.st_size == file->size &&
	       st.st_ctim.tv_sec == file->changed.tv_sec &&
	       st.st_ctim.tv_nsec == file->changed.tv_nsec;
}

bool ucm_kept_open(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	if (file->fd < 0)
		return false;
	kept_take(daemon, file);
	if (kept_is_entry(daemon, file) && kept_is_file(file) &&
	    !ucm_store_open_again(daemon->store, &file->open))
		return true;
	ucm_handle_close_file(daemon, file);
	return false;
}

void ucm_kept_gone(void *arg, ucm_ref ref)
{
	struct ucm_daemon *daemon = arg;
	struct ucm_handle *file =
		ucm_handle_get(daemon, ucm_node_make(UCM_NODE_BLOCK, ref));

	if (!file)
		return;
	kept_take(daemon, file);
	ucm_handle_put(daemon, file);
}
