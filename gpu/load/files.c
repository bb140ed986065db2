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
 *
 * The source opens files, many in a request: those of a directory and a space that
 * have come since its last request; what one directory keeps waiting holds up no
 * other. Which directory that is the source knows only for the moment; where the file
 * really was its answer says. A file that is OPENING or whose head is coming has
 * waiters: they are woken by ucm_load_go(), in their order.
 */
#include <config.h>

#include "gpu/load/engine.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/align.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

#define CLOSING_MOST 16u
#define ASKINGS 2u /* requests of a directory: one is served, one is filled */
#define VOUCH_STEP ((uint64_t)1 << 20) /* a multiple of any alignment */

/* Where a block has no descriptor: nothing of it may hang the ring, be mapped, or
 * be read directly. */
static struct ucm_dir nowhere = { .quick = true, .no_direct = true, .align = 1 };

/* ---- the table ---- */

/* As struct ucm_load_file has them, one after the other. */
struct key {
	const struct ucm_group *group;
	struct ucm_id id;
};

static_assert(offsetof(struct ucm_load_file, id) -
			      offsetof(struct ucm_load_file, group) ==
		      offsetof(struct key, id),
	      "the key is in one piece");

static struct ucm_load_file *find(struct ucm_engine *engine,
			     const struct ucm_group *group,
			     const struct ucm_id *id)
{
	const struct key key = { .group = group, .id = *id };
	struct ucm_load_file *file;

	HASH_FIND(hh, engine->files.all, &key, sizeof(key), file);
	return file;
}

static void unhash(struct ucm_load_file *file)
{
	HASH_DEL(file->engine->files.all, file);
}

static void leave_idle(struct ucm_load_file *file)
{
	TAILQ_REMOVE(&file->engine->files.idle, file, in_idle);
}

static void become_idle(struct ucm_load_file *file)
{
	file->idle_since_ns = ucm_monotonic_ns();
	TAILQ_INSERT_TAIL(&file->engine->files.idle, file, in_idle);
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
	unhash(file);
}

static void end_idle(struct ucm_load_file *file)
{
	leave_idle(file);
	unhash(file);
	end_file(file);
}

static void end_oldest(struct ucm_load_files *files)
{
	end_idle(TAILQ_FIRST(&files->idle));
}

static void trim(struct ucm_engine *engine, unsigned most)
{
	struct ucm_load_files *files = &engine->files;

	while (HASH_COUNT(files->all) > most &&
	       !TAILQ_EMPTY(&files->idle))
		end_oldest(files);
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

/* Its descriptor is in use from now on, or no longer. */
static void count(struct ucm_load_file *file, bool is_used)
{
	if (file->counted == is_used)
		return;
	file->counted = is_used;
	file->lane->used += is_used ? 1u : -1u;
}

static void end_use(struct ucm_load_file *file)
{
	count(file, false);
	if (file->state == UCM_LOAD_FILE_FAILED)
		ucm_load_file_forget(file);
	if (file->stale) {
		end_file(file);
		return;
	}
	become_idle(file);
	trim(file->engine, idle_room(file->engine));
}

static void take_asked(struct ucm_load_file *file)
{
	TAILQ_REMOVE(&file->engine->files.asked, file, in_asked);
	file->lane->asked--;
	file->asked = false;
}

/* Its header could not be used: whoever waits fails likewise. */
static void file_fail(struct ucm_load_file *file, int err, uint16_t fault)
{
	file->state = UCM_LOAD_FILE_FAILED;
	file->err = err;
	file->fault = fault;
	ucm_load_file_forget(file);
}

/* Nobody waits any more for an open that has not been made. */
static void drop_opening(struct ucm_load_file *file)
{
	take_asked(file);
	file_fail(file, -ECANCELED, 0);
	end_file(file);
}

void ucm_load_file_put(struct ucm_load_file *file)
{
	file->refs--;
	if (!file->refs)
		end_use(file);
	else if (file->refs == 1 && file->asked)
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
	leave_idle(file);
	unhash(file);
	end_file(file);
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

/* ---- changes ---- */

void ucm_load_file_tell(struct ucm_load_file *file)
{
	struct ucm_piece_list told;
	struct ucm_piece *piece;

	file->refs++; /* they may let go of it */
	ucm_piece_list_init(&told);
	ucm_piece_take_all(&told, &file->waiters);
	while ((piece = ucm_piece_pop(&told)))
		ucm_load_go(piece);
	ucm_load_file_put(file);
}

/* ---- opening ---- */

/* err: of the fstat() that st is from. */
static void take_file(struct ucm_load_file *file, int fd,
		      const struct stat *st, int err)
{
	file->fd = fd;
	if (!err && !S_ISREG(st->st_mode))
		err = -ENOENT; /* whatever has the name, it is no block */
	if (err) {
		file_fail(file, err, 0);
		return;
	}
	file->size = (uint64_t)st->st_size;
	file->align = ucm_dir_align(file->dir, fd);
	file->state = UCM_LOAD_FILE_OPEN;
	count(file, true);
}

/* The process has no descriptor left? Then those of files that nobody uses are given
 * back, once for each open. */
static bool spare_some(struct ucm_load_file *file, int err)
{
	struct ucm_load_files *files = &file->engine->files;

	if ((err != -EMFILE && err != -ENFILE) || file->spared)
		return false;
	file->spared = true;
	files->spares = true;
	while (!TAILQ_EMPTY(&files->idle))
		end_oldest(files);
	files->spares = false;
	return true;
}

/* The lane of its directory; or it fails. */
static bool enter_lane(struct ucm_load_file *file)
{
	file->op.lane = file->lane =
		ucm_lane_of(file->engine, file->dir);
	if (!file->lane)
		file_fail(file, -ENOMEM, 0);
	return file->lane;
}

/* While it is being opened, pieces that were given up are among its waiters: they
 * are no reason to try again. */
static bool is_awaited(struct ucm_load_file *file)
{
	ucm_load_end_given_up(&file->waiters);
	return file->refs > 1; /* the operation's */
}

/* ---- blocks without descriptors ---- */

static ssize_t read_of_source(const void *of, void *buffer, size_t len,
			      off_t offset)
{
	const struct ucm_load_file *file = of;
	const struct ucm_shared *shared = file->engine->shared;
	uint64_t size;

	return shared->source_ops->read_into(shared->source, file->group->space,
					     &file->id, buffer, len,
					     (uint64_t)offset, &size);
}

/* The file is nobody else's to look at until it is open. */
static ssize_t find_in_source(const void *of, void *buffer, size_t len,
			      off_t offset)
{
	struct ucm_load_file *file = (struct ucm_load_file *)(uintptr_t)of;
	const struct ucm_shared *shared = file->engine->shared;

	(void)offset;
	return shared->source_ops->read_into(shared->source, file->group->space,
					     &file->id, buffer, len, 0,
					     &file->size);
}

static void on_found(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_load_file *file = (struct ucm_load_file *)op;

	(void)engine;
	if (op->io.result < 0) {
		file_fail(file, (int)op->io.result, 0);
	} else {
		file->align = 1;
		file->by_call = true;
		file->state = UCM_LOAD_FILE_OPEN;
		count(file, true);
	}
	ucm_load_file_tell(file);
	ucm_load_file_put(file); /* the operation's */
}

static void find_by_call(struct ucm_load_file *file)
{
	file->dir = &nowhere;
	if (!enter_lane(file))
		return;
	ucm_add(&file->engine->shared->stats.opens, 1);
	file->op.io = (struct ucm_io){
		.op = UCM_IO_CALL,
		.call = find_in_source,
		.of = file,
		.align = 1,
	};
	file->op.done = on_found;
	ucm_engine_queue(file->engine, &file->op);
}

/* ---- blocks that the source opens ---- */

/* Files of one directory, for which the source is asked in one request. */
struct asking {
	struct ucm_engine_op op; /* first */
	unsigned num;
	struct ucm_load_file *files[UCM_SOURCE_DESCRIPTORS];
	struct ucm_id ids[UCM_SOURCE_DESCRIPTORS];
	struct ucm_given given[UCM_SOURCE_DESCRIPTORS];
};

static void ask_for(struct ucm_load_file *file)
{
	struct ucm_shared *shared = file->engine->shared;
	struct ucm_where where = { .directory = UCM_DIRECTORIES };

	if (shared->source_ops->where)
		shared->source_ops->where(shared->source, file->group->space,
					  &file->id, &where);
	file->dir = &file->engine->files.given[where.directory].dir;
	if (!enter_lane(file))
		return;
	ucm_add(&shared->stats.opens, 1);
	TAILQ_INSERT_TAIL(&file->engine->files.asked, file, in_asked);
	file->lane->asked++;
	file->asked = true;
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
		ask_for(file);
		return file->state != UCM_LOAD_FILE_OPENING;
	}
	file_fail(file, fd, 0);
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

static ssize_t ask_source(const void *of, void *buffer, size_t len,
			  off_t offset)
{
	struct asking *asking = (struct asking *)(uintptr_t)of;
	const struct ucm_load_file *first = asking->files[0];
	const struct ucm_shared *shared = first->engine->shared;

	(void)buffer, (void)len, (void)offset;
	shared->source_ops->descriptors(shared->source, first->group->space,
					asking->ids, asking->num,
					asking->given);
	return 0;
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
		take_asked(file);
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
			take_asked(file);
			end_asked(file, &(struct ucm_given){ .fd = -ENOMEM });
			continue;
		}
		given_of(file)->asking++;
		collect(asking, file);
		asking->op.io = (struct ucm_io){
			.op = UCM_IO_CALL,
			.call = ask_source,
			.of = asking,
			.align = 1,
		};
		asking->op.lane = file->lane;
		asking->op.done = on_given;
		ucm_engine_queue(engine, &asking->op);
	}
}

void ucm_load_file_read(const struct ucm_load_file *file, struct ucm_io *io)
{
	io->op = file->by_call ? UCM_IO_CALL : UCM_IO_READ;
	io->call = read_of_source;
	io->of = file;
	io->fd = file->fd;
	io->align = file->direct ? file->align : 1;
	io->may_hang = ucm_load_file_may_hang(file);
}

static void open_file(struct ucm_load_file *file)
{
	if (file->engine->shared->source_ops->read_into)
		find_by_call(file);
	else
		ask_for(file);
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
			leave_idle(file);
			count(file, true);
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
	HASH_ADD(hh, engine->files.all, group, sizeof(struct key), file);
	if (!file->hh.tbl) {
		free(file);
		return NULL;
	}
	file->engine = engine;
	ucm_group_get(group);
	ucm_piece_list_init(&file->waiters);
	file->fd = -1;
	file->refs = 2; /* the caller's, and the opening's */
	trim(engine, idle_room(engine));
	open_file(file);
	if (file->state != UCM_LOAD_FILE_OPENING)
		ucm_load_file_put(file);
	return file;
}

/* ---- the head ---- */

void ucm_load_file_take_head(struct ucm_load_file *file, const void *bytes,
			     size_t len)
{
	enum ucm_fault fault;
	int err;

	fault = ucm_file_header_make(bytes, len, file->size, &file->id,
				     &file->group->layout->geometry,
				     &file->head, &err);
	if (fault || err)
		file_fail(file, fault ? -EBADMSG : err,
				   (uint16_t)fault);
	else
		file->head_known = true;
}

static void read_head(struct ucm_load_file *file, uint64_t len);

/* A header that is longer than what was asked for: how long it says it is. */
static uint64_t longer_head(const struct ucm_load_file *file,
			    const struct ucm_io *io)
{
	struct ucm_block block;

	if (ucm_block_parse(io->buffer, (size_t)io->result, file->size,
			    &block) ||
	    block.form != UCM_FORM_PAGED || block.data_offset <= io->len ||
	    block.data_offset > file->size ||
	    block.data_offset > UCM_FILE_HEADER_MOST)
		return 0;
	return block.data_offset;
}

/* The head is made of what was read, or fails; unless so many bytes have to be
 * read for it. */
static uint64_t use_head(struct ucm_load_file *file, const struct ucm_io *io)
{
	uint64_t more = 0;

	if (io->result < 0)
		file_fail(file, (int)io->result, 0);
	else
		more = longer_head(file, io);
	if (io->result >= 0 && !more)
		ucm_load_file_take_head(file, io->buffer, (size_t)io->result);
	return more;
}

void ucm_load_file_read_head_now(struct ucm_load_file *file)
{
	uint64_t more = ucm_file_header_bytes(&file->group->layout->geometry);

	while (more) {
		struct ucm_io io = { .buffer = malloc(more), .len = more };

		io.result = io.buffer ? ucm_os_read_at(file->fd, io.buffer,
						       io.len, 0)
				      : -ENOMEM;
		more = use_head(file, &io);
		free(io.buffer);
	}
}

static void on_head(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_load_file *file = (struct ucm_load_file *)op;
	uint64_t more;

	(void)engine;
	file->head_coming = false;
	more = use_head(file, &op->io);
	free(file->buffer);
	file->buffer = NULL;
	if (more)
		read_head(file, more);
	if (!file->head_coming)
		ucm_load_file_tell(file);
	ucm_load_file_put(file); /* the operation's */
}

static size_t memory_align(const struct ucm_load_file *file)
{
	return file->align < sizeof(void *) ? sizeof(void *) : file->align;
}

/* Not through staging, which may be full of pieces that wait for this. */
static void read_head(struct ucm_load_file *file, uint64_t len)
{
	len = ucm_round_up(len, file->align);
	file->buffer = aligned_alloc(memory_align(file), len);
	if (!file->buffer) {
		file_fail(file, -ENOMEM, 0);
		return;
	}
	file->op.io = (struct ucm_io){ .buffer = file->buffer, .len = len };
	ucm_load_file_read(file, &file->op.io);
	file->op.done = on_head;
	file->head_coming = true;
	file->refs++;
	ucm_add(&file->engine->shared->stats.reads, 1);
	ucm_engine_queue(file->engine, &file->op);
}

void ucm_load_file_read_head(struct ucm_load_file *file)
{
	read_head(file, ucm_file_header_bytes(&file->group->layout->geometry));
}

bool ucm_load_file_map(struct ucm_load_file *file)
{
	struct stat st;
	void *map;

	/* touching a page past the end would kill the process: a file in
	 * memory that somebody has cut off is noticed here */
	if (ucm_os_fstat(file->fd, &st) || (uint64_t)st.st_size != file->size ||
	    !file->size)
		return false;
	if (file->map)
		return true;
	map = mmap(NULL, file->size, PROT_READ, MAP_SHARED, file->fd, 0);
	if (map == MAP_FAILED)
		return false;
	file->map = map;
	return true;
}

/* ---- forms without a plane table ---- */

static uint64_t payload_end(const struct ucm_load_file *file)
{
	return file->head.block.data_offset +
	       ucm_block_payload_bytes(&file->head.block.geometry);
}

bool ucm_load_file_needs_vouch(const struct ucm_load_file *file)
{
	return !file->head.planes &&
	       (file->head.block.flags & UCM_BLOCK_HAS_CRC);
}

static void read_to_vouch(struct ucm_load_file *file);

static void count_in(struct ucm_load_file *file, uint64_t got)
{
	uint64_t skip = file->vouch_at ? 0 : file->head.block.data_offset;
	uint64_t end = payload_end(file);

	if (got > end - file->vouch_at)
		got = end - file->vouch_at;
	if (got <= skip) {
		file_fail(file, -EBADMSG, UCM_FAULT_SHORT);
		return;
	}
	file->vouch_crc = ucm_crc32c(file->vouch_crc, file->buffer + skip,
				     got - skip);
	ucm_file_header_add(
		&file->head,
		file->vouch_at + skip - file->head.block.data_offset,
		file->buffer + skip, got - skip, file->vouch_planes);
	file->vouch_at += got;
	if (file->vouch_at < end)
		return;
	if (file->vouch_crc != file->head.block.payload_crc) {
		file_fail(file, -EBADMSG, UCM_FAULT_PAYLOAD);
		return;
	}
	file->head.planes = file->vouch_planes;
	file->vouch_planes = NULL;
}

static void end_vouching(struct ucm_load_file *file)
{
	free(file->vouch_planes);
	free(file->buffer);
	file->vouch_planes = NULL;
	file->buffer = NULL;
}

static void on_vouch(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_load_file *file = (struct ucm_load_file *)op;
	ssize_t result = op->io.result;

	(void)engine;
	if (result < 0)
		file_fail(file, (int)result, 0);
	else
		count_in(file, (uint64_t)result);
	if (file->state == UCM_LOAD_FILE_OPEN &&
	    ucm_load_file_needs_vouch(file)) {
		read_to_vouch(file);
		return;
	}
	end_vouching(file);
	ucm_load_file_tell(file);
	ucm_load_file_put(file); /* the operation's */
}

static void read_to_vouch(struct ucm_load_file *file)
{
	file->op.io = (struct ucm_io){ .buffer = file->buffer,
				       .len = VOUCH_STEP,
				       .offset = (off_t)file->vouch_at };
	ucm_load_file_read(file, &file->op.io);
	file->op.done = on_vouch;
	ucm_add(&file->engine->shared->stats.reads, 1);
	ucm_engine_queue(file->engine, &file->op);
}

void ucm_load_file_vouch(struct ucm_load_file *file)
{
	if (file->buffer)
		return; /* it is coming */
	file->buffer = aligned_alloc(memory_align(file), VOUCH_STEP);
	file->vouch_planes = calloc(file->head.block.geometry.num_layers,
				    2 * sizeof(*file->vouch_planes));
	if (!file->buffer || !file->vouch_planes) {
		end_vouching(file);
		file_fail(file, -ENOMEM, 0);
		ucm_load_file_tell(file);
		return;
	}
	file->vouch_at = 0;
	file->vouch_crc = 0;
	file->refs++;
	read_to_vouch(file);
}
