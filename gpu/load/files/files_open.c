/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_open.c - how an engine has files of its source.
 *
 * The source opens them, many in a request: those of a directory and a space that
 * have come since its last request; what one directory keeps waiting holds up no
 * other. Which directory that is the source knows only for the moment; where the file
 * really was its answer says.
 */
#include <config.h>

#include "gpu/load/piece/piece.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/osfile.h"

/* Requests of a directory: one is served, one is filled. */
#define ASKINGS 2u

/* err: of the fstat() that st is from. */
static void take_file(struct ucm_load_file *file, int fd,
		      const struct stat *st, int err)
{
	file->fd = fd;
	if (!err && !S_ISREG(st->st_mode))
		err = -ENOENT; /* whatever has the name, it is no block */
	if (err) {
		ucm_load_file_fail(file, err, 0);
		return;
	}
	file->size = (uint64_t)st->st_size;
	file->align = ucm_dir_align(file->dir, fd);
	file->state = UCM_LOAD_FILE_OPEN;
	ucm_load_file_count(file, true);
}

/* The process has no descriptor left? Then those of files that nobody uses are given
 * back, once for each open. */
static bool spare_some(struct ucm_load_file *file, int err)
{
	if ((err != -EMFILE && err != -ENFILE) || file->spared)
		return false;
	file->spared = true;
	ucm_load_files_spare(file->engine);
	return true;
}

/* The lane of its directory; or it fails. */
static bool enter_lane(struct ucm_load_file *file)
{
	file->op.lane = file->lane =
		ucm_lane_of(file->engine, file->dir);
	if (!file->lane)
		ucm_load_file_fail(file, -ENOMEM, 0);
	return file->lane;
}

/* While it is being opened, pieces that were given up are among its waiters: they
 * are no reason to try again. */
static bool is_awaited(const struct ucm_load_file *file)
{
	const struct ucm_piece *piece = file->waiters.first;

	while (piece && !piece->part)
		piece = piece->next;
	return piece;
}

/* ---- requests ---- */

/* Files of one directory, for which the source is asked in one request. */
struct asking {
	struct ucm_engine_op op; /* first */
	unsigned num;
	struct ucm_load_file *files[UCM_SOURCE_DESCRIPTORS];
	struct ucm_id ids[UCM_SOURCE_DESCRIPTORS];
	struct ucm_given given[UCM_SOURCE_DESCRIPTORS];
};

void ucm_load_file_open(struct ucm_load_file *file)
{
	struct ucm_shared *shared = file->engine->shared;
	struct ucm_where where = { .directory = UCM_DIRECTORIES };

	shared->source_ops->where(shared->source, file->group->space,
				  &file->id, &where);
	file->dir = &file->engine->files.given[where.directory].dir;
	if (!enter_lane(file))
		return;
	ucm_add(&shared->stats.opens, 1);
	TAILQ_INSERT_TAIL(&file->engine->files.asked, file, in_asked);
	file->lane->asked++;
	file->state = UCM_LOAD_FILE_ASKED;
}

/* A new daemon may have other directories by their numbers. */
static void meet_directory(struct ucm_given_dir *given, bool local, int fd,
			   const struct stat *st)
{
	if (given->met && given->device == st->st_dev)
		return;
	ucm_dir_init(&given->dir, fd);
	given->dir.quick = local;
	given->device = st->st_dev;
	given->met = true;
}

/* It belongs to the directory where it was found. */
static void take_given(struct ucm_load_file *file,
		       const struct ucm_given *given)
{
	struct ucm_given_dir *of = &file->engine->files.given[given->directory];
	struct stat st = { 0 };
	int err = ucm_os_fstat(given->fd, &st);

	if (!err)
		meet_directory(of, given->local, given->fd, &st);
	file->dir = &of->dir;
	if (!enter_lane(file)) {
		ucm_os_close(given->fd);
		return;
	}
	file->direct = !of->dir.memory && !of->dir.no_direct;
	if (file->direct && fcntl(given->fd, F_SETFL, O_DIRECT)) {
		of->dir.no_direct = true;
		file->direct = false;
	}
	if (!err && of->dir.quick && file->engine->shared->hints)
		ucm_verified_begin(file, &st);
	take_file(file, given->fd, &st, err);
}

/* false: it is asked for once more. */
static bool took_given(struct ucm_load_file *file,
		       const struct ucm_given *given)
{
	struct ucm_shared *shared = file->engine->shared;
	int fd = given->fd;

	if (fd >= 0) {
		take_given(file, given);
		return true;
	}
	if (is_awaited(file) &&
	    (spare_some(file, fd) ||
	     (ucm_is_lost(fd) && !file->revived &&
	      (file->revived = shared->source_ops->lost(shared->source))))) {
		ucm_load_file_open(file);
		return file->state > UCM_LOAD_FILE_OPENING;
	}
	ucm_load_file_fail(file, fd, 0);
	return true;
}

static void end_asked(struct ucm_load_file *file, const struct ucm_given *given)
{
	if (!took_given(file, given))
		return;
	ucm_load_file_tell(file);
	ucm_load_file_put(file); /* the operation's */
}

/* Of one that is asked for. */
static struct ucm_given_dir *given_of(const struct ucm_load_file *file)
{
	return (struct ucm_given_dir *)file->dir;
}

static void on_given(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct asking *asking = (struct asking *)op;
	const struct ucm_given none = { .fd = (int)op->io.result };

	(void)engine;
	given_of(asking->files[0])->asking--;
	op->lane->opens -= asking->num;
	for (unsigned i = 0; i < asking->num; i++)
		end_asked(asking->files[i],
			  none.fd ? &none : &asking->given[i]);
	free(asking);
}

static void ask_source(struct ucm_io *io)
{
	struct asking *asking = (struct asking *)io;
	const struct ucm_shared *shared = asking->files[0]->engine->shared;

	shared->source_ops->descriptors(shared->source,
					asking->files[0]->group->space,
					asking->ids, asking->num,
					asking->given);
}

static struct ucm_load_file *first_to_ask(const struct ucm_engine *engine)
{
	struct ucm_load_file *file;

	TAILQ_FOREACH(file, &engine->files.asked, in_asked) {
		if (given_of(file)->asking < ASKINGS &&
		    ucm_lane_room(engine, file->lane))
			break;
	}
	return file;
}

/* The first, and those that can be asked for with it. */
static void collect(struct asking *asking, struct ucm_load_file *file)
{
	const struct ucm_load_file *first = file;
	unsigned most = ucm_lane_room(file->engine, file->lane);
	struct ucm_load_file *next;

	if (most > UCM_SOURCE_DESCRIPTORS)
		most = UCM_SOURCE_DESCRIPTORS;
	for (; file && asking->num < most; file = next) {
		next = TAILQ_NEXT(file, in_asked);
		if (file->dir != first->dir ||
		    strcmp(file->group->space, first->group->space) != 0)
			continue;
		ucm_load_file_take_asked(file);
		asking->ids[asking->num] = file->id;
		asking->files[asking->num++] = file;
	}
	first->lane->opens += asking->num;
}

void ucm_load_files_ask(struct ucm_engine *engine)
{
	struct ucm_load_file *file;

	while ((file = first_to_ask(engine))) {
		struct asking *asking = calloc(1, sizeof(*asking));

		if (!asking) {
			ucm_load_file_take_asked(file);
			end_asked(file, &(struct ucm_given){ .fd = -ENOMEM });
			continue;
		}
		given_of(file)->asking++;
		collect(asking, file);
		asking->op.lane = file->lane;
		asking->op.done = on_given;
		ucm_engine_call(engine, &asking->op, ask_source);
	}
}

void ucm_load_file_read(const struct ucm_load_file *file, struct ucm_io *io)
{
	io->op = UCM_IO_READ;
	io->fd = file->fd;
	io->align = file->direct ? file->align : 1;
	io->may_hang = ucm_load_file_may_hang(file);
}
