/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.c - the files that an engine has open.
 *
 * An open costs as much as reading some hundred kilobytes, and a request in
 * layers comes to each file many times: files stay open for a while, the least
 * recently used are closed, and all that nobody has asked for in a few seconds:
 * a block that is removed gives no room back while it is open. With a file its
 * header is kept, once it has been read and found right; a block never changes
 * under its name.
 */
#include <config.h>

#include "gpu/load/engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/clock.h"
#include "common/osfile.h"

#define CLOSING_MOST 16u

/* ---- the table ---- */

static_assert(offsetof(struct ucm_load_file, id) -
			      offsetof(struct ucm_load_file, group) ==
		      offsetof(struct ucm_group_key, id),
	      "the key is in one piece");

static struct ucm_load_file *find(struct ucm_engine *engine,
			     const struct ucm_group *group,
			     const struct ucm_id *id)
{
	const struct ucm_group_key key = { .group = group, .id = *id };
	struct ucm_load_file *file;

	HASH_FIND(hh, engine->files.all, &key, sizeof(key), file);
	return file;
}

/* ---- the end of a file ---- */

static void free_file(struct ucm_load_file *file)
{
	ucm_group_put(file->group);
	free(file);
}

static void on_closed(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	engine->files.closing--;
	free_file((struct ucm_load_file *)op);
}

/* Opens in local directories do not wait for the ring; so that closes that do
 * have not all descriptors, no more than a few do. None does where a descriptor is
 * needed now. */
static bool closes_at_once(const struct ucm_load_file *file)
{
	const struct ucm_load_files *files = &file->engine->files;

	return files->spares ||
	       (file->dir->quick && files->closing >= CLOSING_MOST);
}

static void end_file(struct ucm_load_file *file)
{
	if (file->map)
		munmap((void *)(uintptr_t)file->map, file->size);
	ucm_file_header_fini(&file->head);
	ucm_verified_end(file);
	if (file->fd >= 0 && closes_at_once(file)) {
		ucm_os_close(file->fd);
		file->fd = -1;
	}
	if (file->fd < 0) {
		free_file(file);
		return;
	}
	file->engine->files.closing++;
	file->op.io = (struct ucm_io){ .op = UCM_IO_CLOSE, .fd = file->fd };
	file->op.done = on_closed;
	ucm_lane_queue(file->engine, &file->op);
}

void ucm_load_file_forget(struct ucm_load_file *file)
{
	if (file->stale)
		return;
	file->stale = true;
	HASH_DEL(file->engine->files.all, file);
}

static void end_idle(struct ucm_load_file *file)
{
	TAILQ_REMOVE(&file->engine->files.idle, file, in_idle);
	HASH_DEL(file->engine->files.all, file);
	end_file(file);
}

static void trim(struct ucm_engine *engine, unsigned most)
{
	struct ucm_load_files *files = &engine->files;

	while (HASH_COUNT(files->all) > most &&
	       !TAILQ_EMPTY(&files->idle))
		end_idle(TAILQ_FIRST(&files->idle));
}

int64_t ucm_load_files_expire(struct ucm_engine *engine)
{
	struct ucm_load_files *files = &engine->files;
	int64_t now = ucm_monotonic_ns(), most = engine->shared->idle_ns;
	struct ucm_load_file *oldest;

	while ((oldest = TAILQ_FIRST(&files->idle))) {
		if (now - oldest->idle_since_ns < most)
			return oldest->idle_since_ns + most - now;
		end_idle(oldest);
	}
	return -1;
}

void ucm_load_files_spare(struct ucm_engine *engine)
{
	engine->files.spares = true;
	trim(engine, 0);
	engine->files.spares = false;
}

/* ---- users ---- */

static unsigned idle_room(const struct ucm_engine *engine)
{
	const struct ucm_load_files *files = &engine->files;
	uint64_t most = files->wanted;

	if (most > engine->shared->most_files)
		most = engine->shared->most_files;
	return most > files->most ? (unsigned)most : files->most;
}

void ucm_load_files_want(struct ucm_engine *engine, int64_t num)
{
	engine->files.wanted += (uint64_t)num;
	if (num < 0)
		trim(engine, idle_room(engine));
}

void ucm_load_file_count(struct ucm_load_file *file, bool is_used)
{
	if (file->counted == is_used)
		return;
	file->counted = is_used;
	file->lane->used += is_used ? 1u : -1u;
}

static void end_use(struct ucm_load_file *file)
{
	ucm_load_file_count(file, false);
	if (file->state == UCM_LOAD_FILE_FAILED)
		ucm_load_file_forget(file);
	if (file->stale) {
		end_file(file);
		return;
	}
	file->idle_since_ns = ucm_monotonic_ns();
	TAILQ_INSERT_TAIL(&file->engine->files.idle, file, in_idle);
	trim(file->engine, idle_room(file->engine));
}

void ucm_load_file_take_asked(struct ucm_load_file *file)
{
	TAILQ_REMOVE(&file->engine->files.asked, file, in_asked);
	file->lane->asked--;
	file->state = UCM_LOAD_FILE_OPENING;
}

void ucm_load_file_fail(struct ucm_load_file *file, int err, uint16_t fault)
{
	file->state = UCM_LOAD_FILE_FAILED;
	file->err = err;
	file->fault = fault;
	ucm_load_file_forget(file);
}

/* Nobody waits any more for an open that has not been made. */
static void drop_opening(struct ucm_load_file *file)
{
	ucm_load_file_take_asked(file);
	ucm_load_file_fail(file, -ECANCELED, 0);
	end_file(file);
}

void ucm_load_file_put(struct ucm_load_file *file)
{
	file->refs--;
	if (!file->refs)
		end_use(file);
	else if (file->refs == 1 && file->state == UCM_LOAD_FILE_ASKED)
		drop_opening(file);
}

void ucm_load_files_close(struct ucm_engine *engine)
{
	trim(engine, 0);
}

/* One whose open or head is still coming ends by itself. */
static void close_unused(struct ucm_load_file *file)
{
	if (file->refs) {
		ucm_load_file_forget(file);
		return;
	}
	end_idle(file);
}

void ucm_load_files_close_group(struct ucm_engine *engine,
				const struct ucm_group *group)
{
	struct ucm_load_file *file, *next;

	HASH_ITER(hh, engine->files.all, file, next) {
		if (file->group == group)
			close_unused(file);
	}
}

void ucm_load_file_tell(struct ucm_load_file *file)
{
	ucm_piece_take_all(&file->engine->told, &file->waiters);
	ucm_gate_wake(file->engine);
}

/* One that was too young to be told as verified may not be any more. */
static void look_again(struct ucm_load_file *file)
{
	struct stat st;

	if (file->engine->shared->hints && !file->stamp && file->dir->quick &&
	    !ucm_os_fstat(file->fd, &st))
		ucm_verified_begin(file, &st);
}

struct ucm_load_file *ucm_load_file_get(struct ucm_engine *engine,
			      struct ucm_group *group,
			      const struct ucm_id *id)
{
	struct ucm_load_file *file = find(engine, group, id);

	if (file) {
		if (!file->refs++) {
			TAILQ_REMOVE(&file->engine->files.idle, file, in_idle);
			ucm_load_file_count(file, true);
			look_again(file);
		}
		ucm_add(&engine->shared->stats.open_hits, 1);
		return file;
	}
	file = calloc(1, sizeof(*file));
	if (!file)
		return NULL;
	file->group = group;
	file->id = *id;
	HASH_ADD(hh, engine->files.all, group, sizeof(struct ucm_group_key),
		 file);
	if (!file->hh.tbl) {
		free(file);
		return NULL;
	}
	file->engine = engine;
	ucm_group_get(group);
	ucm_piece_list_init(&file->waiters);
	file->state = UCM_LOAD_FILE_OPENING;
	file->fd = -1;
	file->refs = 2; /* the caller's, and the opening's */
	trim(engine, idle_room(engine));
	ucm_load_file_open(file);
	if (file->state > UCM_LOAD_FILE_OPENING)
		ucm_load_file_put(file);
	return file;
}
