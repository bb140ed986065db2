/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr_load.c - representations of many blocks at once.
 *
 * A call has a ring of its own, so that any thread may make it, and a number of
 * flights: files that are opened, read and closed at the same time. A flight
 * goes through
 *
 *	OPEN -> READ (header, and layers if they are near) -> [LAYERS] -> CLOSE
 *
 * and takes the next block when it is at the end. What was read lies in its own
 * memory until header and layers have been found right; only then is it copied
 * to the slabs, so that of a block all layers are there, or none is touched.
 *
 * The first layers follow the header closely: one read takes both, and what is
 * between them, up to NEAR_BYTES. A layer further on is a read of its own.
 *
 * What is in the page cache needs no ring: of a local directory files are opened
 * at once, and read if that does not wait (RWF_NOWAIT). The ring is opened for the
 * first file that would.
 */
#include <config.h>

#include <ucm/repr_load.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/align.h"
#include "common/error.h"
#include "common/sized.h"
#include "common/osfile.h"
#include "fs/repr/shape.h"
#include "gpu/load/engine.h"
#include "gpu/ring/ring.h"
#include "gpu/source/source.h"
#include "hashing/tree.h"

#define DEFAULT_DEPTH 64u
#define MAX_DEPTH     4096u
#define NEAR_BYTES    (64u << 10)
#define MEMORY_BYTES  ((uint64_t)64 << 20) /* of all flights, about */
#define THREADS	      16u /* where there is no io_uring */

struct ucm_reprs {
	const struct ucm_source_ops *ops;
	struct ucm_source *source;
	char *space;
	enum ucm_io_kind io;
	uint32_t depth;
};

struct flight;

/* A call. */
struct reprs_job {
	struct ucm_reprs *reprs;
	const struct ucm_reprs_request *request;
	struct ucm_ring *ring; /* NULL: not needed yet */
	uint32_t depth;
	size_t next;   /* the block that has not begun yet */
	size_t flying; /* flights under way */
	size_t loaded;
	uint64_t layers_at, layers_len; /* in a flight's memory */
	bool near;			/* read with the header */
	size_t failed; /* the first block that was not loaded, */
	int err;       /* why, and in words */
	struct ucm_error why;
};

enum flight_state { FLIGHT_OPEN, FLIGHT_READ, FLIGHT_LAYERS, FLIGHT_CLOSE };

struct flight {
	struct ucm_io io; /* first: the ring hands it back */
	struct reprs_job *job;
	enum flight_state state;
	size_t number; /* of the block */
	unsigned attempt;
	bool revived;
	int err; /* of a place, beside that it is not there */
	int fd;
	struct ucm_place place;
	uint8_t *memory; /* header, then layers */
};

/* ---- open and close ---- */

static int options_check(const struct ucm_reprs_options *options,
			 struct ucm_error *error)
{
	if (!options->mount && !options->tiers)
		return ucm_error_set(error, -EINVAL,
				     "mount or tiers must be given");
	if (options->io > UCM_IO_THREADS)
		return ucm_error_set(error, -EINVAL, "io %d: unknown",
				     (int)options->io);
	if (options->depth > MAX_DEPTH)
		return ucm_error_set(error, -EINVAL, "depth %" PRIu32
				     ": up to %u", options->depth, MAX_DEPTH);
	return 0;
}

static int space_check(const struct ucm_reprs *reprs, struct ucm_error *error)
{
	int err = reprs->ops->check_space(reprs->source, reprs->space);

	return err ? ucm_error_set(error, err, "space %s: %s", reprs->space,
				   err == -ENOENT ? "there is none"
						  : strerror(-err))
		   : 0;
}

int ucm_reprs_open(const struct ucm_reprs_options *given,
		   struct ucm_reprs **out, struct ucm_error *error)
{
	struct ucm_reprs_options own, *options = &own;
	struct ucm_reprs *reprs;
	int err = ucm_sized_take(&own, sizeof(own), given,
				 offsetof(struct ucm_reprs_options, space),
				 "ucm_reprs_options", error);

	if (!err)
		err = options_check(&own, error);
	if (err)
		return err;
	if (!out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	reprs = calloc(1, sizeof(*reprs));
	if (reprs)
		reprs->space = strdup(options->space ? options->space : "");
	if (!reprs || !reprs->space) {
		free(reprs);
		return ucm_error_set(error, -ENOMEM, "out of memory");
	}
	reprs->io = options->io;
	reprs->depth = options->depth ? options->depth : DEFAULT_DEPTH;
	reprs->ops = options->tiers ? &ucm_source_tiers : &ucm_source_mount;
	if (ucm_loader_source)
		reprs->ops = ucm_loader_source;
	err = reprs->ops->open(options->tiers ? options->tiers
					      : options->mount,
			       &reprs->source, error);
	if (!err && reprs->ops->read_into)
		err = ucm_error_set(error, -ENOTSUP,
				    "its blocks have no files");
	if (!err)
		err = space_check(reprs, error);
	if (err)
		ucm_reprs_close(reprs);
	else
		*out = reprs;
	return err;
}

void ucm_reprs_close(struct ucm_reprs *reprs)
{
	if (!reprs)
		return;
	if (reprs->source)
		reprs->ops->close(reprs->source);
	free(reprs->space);
	free(reprs);
}

/* ---- what a file says ---- */

/* The field in which a file is not what it must be like; NULL: none. */
static const char *differs(const struct ucm_repr_file *file,
			   const struct ucm_repr_file *like)
{
	if (file->spec.kind != like->spec.kind)
		return "kind";
	if (file->spec.dtype != like->spec.dtype)
		return "dtype";
	if (file->spec.num_heads != like->spec.num_heads)
		return "num_heads";
	if (file->spec.head_dim != like->spec.head_dim)
		return "head_dim";
	if (file->spec.block_size != like->spec.block_size)
		return "block_size";
	if (file->geometry.num_layers != like->geometry.num_layers)
		return "num_layers";
	if (file->layer_bytes != like->layer_bytes)
		return "layer_bytes";
	if (memcmp(file->params, like->params, sizeof(file->params)) != 0)
		return "params";
	return NULL;
}

static int check_file(const struct flight *flight, struct ucm_repr_file *file,
		      struct ucm_error *error)
{
	const struct ucm_reprs_request *request = flight->job->request;
	const char *name;
	int err = ucm_repr_file_parse(flight->memory,
				      UCM_REPR_FILE_HEADER_BYTES, file, error);

	if (err)
		return err;
	if (memcmp(&file->id, &request->ids[flight->number],
		   sizeof(file->id)) != 0)
		return ucm_error_set(error, -EBADMSG,
				     "block_hash is not the block's");
	name = differs(file, request->like);
	return name ? ucm_error_set(error, -EINVAL, "%s: not that of the "
				    "request", name)
		    : 0;
}

static void copy_layers(const struct flight *flight, const uint8_t *layers)
{
	const struct ucm_reprs_request *request = flight->job->request;
	uint32_t len = request->like->layer_bytes;

	for (uint32_t i = 0; i < request->num_layers; i++)
		memcpy(ucm_repr_slot(&request->slabs[i], request->slots,
				     flight->number),
		       layers + (size_t)i * len, len);
}

/* All of it has been read. */
static int flight_take(struct flight *flight, struct ucm_error *error)
{
	const struct reprs_job *job = flight->job;
	const uint8_t *layers = flight->memory + job->layers_at;
	struct ucm_repr_file file;
	int err = check_file(flight, &file, error);

	for (uint32_t i = 0; !err && i < job->request->num_layers; i++)
		err = ucm_repr_file_check_layer(
			&file, flight->memory, job->request->first_layer + i,
			layers + (size_t)i * file.layer_bytes, error);
	if (!err)
		copy_layers(flight, layers);
	return err;
}

/* ---- flights ---- */

static void flight_result(struct flight *flight, int err,
			  const struct ucm_error *why)
{
	struct reprs_job *job = flight->job;

	if (job->request->results)
		job->request->results[flight->number] = err;
	if (!err) {
		job->loaded++;
	} else if (flight->number < job->failed) {
		job->failed = flight->number;
		job->err = err;
		job->why = *why;
	}
}

static void flight_fail(struct flight *flight, int err, const char *text)
{
	struct ucm_error why;

	ucm_error_set(&why, err, "%s", text);
	flight_result(flight, err, &why);
}

/* Into the ring, which has room for each flight. */
static void flight_queue(struct flight *flight, enum flight_state state,
			 struct ucm_io io)
{
	flight->state = state;
	flight->io = io;
	ucm_ring_queue(flight->job->ring, &flight->io);
}

/* Is there a ring? Its -errno is the flight's. */
static int job_ring(struct reprs_job *job)
{
	return job->ring ? 0
			 : ucm_ring_open(job->reprs->io, job->depth,
					 job->depth < THREADS ? job->depth
							      : THREADS,
					 &job->ring);
}

static void flight_read(struct flight *flight)
{
	const struct reprs_job *job = flight->job;

	flight_queue(flight, FLIGHT_READ, (struct ucm_io){
		.op = UCM_IO_READ,
		.fd = flight->fd,
		.buffer = flight->memory,
		.len = job->near ? job->layers_at + job->layers_len
				 : UCM_REPR_FILE_HEADER_BYTES,
		.align = 1,
		.may_hang = !flight->place.dir->quick,
	});
}

static void flight_read_layers(struct flight *flight)
{
	const struct reprs_job *job = flight->job;
	const struct ucm_reprs_request *request = job->request;

	flight_queue(flight, FLIGHT_LAYERS, (struct ucm_io){
		.op = UCM_IO_READ,
		.fd = flight->fd,
		.buffer = flight->memory + job->layers_at,
		.len = job->layers_len,
		.offset = (off_t)ucm_repr_file_layer_offset(
			request->like, request->first_layer),
		.align = 1,
	});
}

/* Tests that look at the ring's results have all reads go there. */
static bool read_now(int fd, void *buffer, uint64_t len, uint64_t offset)
{
	const struct iovec part = { buffer, len };

	return !ucm_ring_fault &&
	       preadv2(fd, &part, 1, (off_t)offset, RWF_NOWAIT) == (ssize_t)len;
}

/* Is all that is wanted in the page cache? Then it is read. */
static bool flight_read_now(struct flight *flight)
{
	const struct reprs_job *job = flight->job;
	const struct ucm_reprs_request *request = job->request;

	return flight->place.dir->quick &&
	       read_now(flight->fd, flight->memory, UCM_REPR_FILE_HEADER_BYTES,
			0) &&
	       read_now(flight->fd, flight->memory + job->layers_at,
			job->layers_len,
			ucm_repr_file_layer_offset(request->like,
						   request->first_layer));
}

/* The file's name, where its block's would be. */
static int flight_place(struct flight *flight)
{
	const struct reprs_job *job = flight->job;
	const struct ucm_id *id = &job->request->ids[flight->number];
	char folder[UCM_TREE_FOLDER_MAX];
	int err = job->reprs->ops->place(job->reprs->source, job->reprs->space,
					 id, flight->attempt, &flight->place);

	if (err)
		return err;
	ucm_tree_folder(job->reprs->space, folder);
	ucm_tree_repr_path(folder, id, flight->place.path);
	return 0;
}

/* It is not there, or cannot be opened: the next place, or this once more. */
static void flight_go_on(struct flight *flight, int err)
{
	struct ucm_reprs *reprs = flight->job->reprs;

	if (ucm_is_lost(err) && !flight->revived &&
	    reprs->ops->lost(reprs->source)) {
		flight->revived = true;
		return;
	}
	flight->attempt++;
	if (err != -ENOENT && err != -ENOTDIR && !flight->err)
		flight->err = err;
}

/* No place has it: what was in the way, or nothing. */
static int flight_absent(const struct flight *flight)
{
	return flight->err ? flight->err : -ENOENT;
}

/* It is open. True: it is in the ring; or else it is done with. */
static bool flight_go(struct flight *flight)
{
	struct ucm_error why = { "" };
	int err;

	if (flight_read_now(flight)) {
		err = flight_take(flight, &why);
	} else {
		err = job_ring(flight->job);
		if (!err) {
			flight_read(flight);
			return true;
		}
		ucm_error_set(&why, err, "%s", strerror(-err));
	}
	close(flight->fd);
	flight_result(flight, err, &why);
	return false;
}

/* True: it is in the ring. */
static bool flight_open(struct flight *flight)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
	int err;

	while (!(err = flight_place(flight))) {
		if (!flight->place.dir->quick) {
			err = job_ring(flight->job);
			if (err)
				break;
			flight_queue(flight, FLIGHT_OPEN, (struct ucm_io){
				.op = UCM_IO_OPEN,
				.fd = flight->place.dir->fd,
				.path = flight->place.path,
				.flags = flags,
			});
			return true;
		}
		err = ucm_os_open(flight->place.dir->fd, flight->place.path,
				  flags | O_NONBLOCK, 0);
		if (err >= 0) {
			flight->fd = err;
			return flight_go(flight);
		}
		flight_go_on(flight, err);
	}
	if (err == -ENOENT)
		err = flight_absent(flight);
	flight_fail(flight, err, err == -ENOENT ? "it has no file of "
						  "representations"
						: strerror(-err));
	return false;
}

/* The next block that has a file. False: there is none. */
static bool flight_begin(struct flight *flight)
{
	struct reprs_job *job = flight->job;

	while (job->next < job->request->num) {
		flight->number = job->next++;
		flight->attempt = 0;
		flight->revived = false;
		flight->err = 0;
		if (flight_open(flight))
			return true;
	}
	return false;
}

static void flight_end(struct flight *flight, int err,
		       const struct ucm_error *why)
{
	flight_result(flight, err, why);
	flight_queue(flight, FLIGHT_CLOSE, (struct ucm_io){
		.op = UCM_IO_CLOSE,
		.fd = flight->fd,
	});
}

/* True: it is in the ring again. */
static bool flight_opened(struct flight *flight)
{
	int fd = (int)flight->io.result;

	if (fd >= 0) {
		flight->fd = fd;
		flight_read(flight);
		return true;
	}
	flight_go_on(flight, fd);
	return flight_open(flight) || flight_begin(flight);
}

static void flight_was_read(struct flight *flight)
{
	const struct reprs_job *job = flight->job;
	struct ucm_error why = { "" };
	int err = 0;

	if (flight->io.result < 0)
		err = ucm_error_set(&why, (int)flight->io.result, "%s",
				    strerror((int)-flight->io.result));
	else if ((size_t)flight->io.result < flight->io.len)
		err = ucm_error_set(&why, -EBADMSG, "the file is cut short");
	if (!err && flight->state == FLIGHT_READ && !job->near) {
		flight_read_layers(flight);
		return;
	}
	if (!err)
		err = flight_take(flight, &why);
	flight_end(flight, err, &why);
}

/* True: it is in the ring again. */
static bool flight_done(struct flight *flight)
{
	switch (flight->state) {
	case FLIGHT_OPEN:
		return flight_opened(flight);
	case FLIGHT_READ:
	case FLIGHT_LAYERS:
		flight_was_read(flight);
		return true;
	default:
		return flight_begin(flight);
	}
}

/* ---- a call ---- */

static int request_check(const struct ucm_reprs_request *request,
			 struct ucm_error *error)
{
	const struct ucm_repr_file *like;
	uint32_t layers;

	if ((request->num && !request->ids) || !request->like ||
	    !request->slabs)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !request->like    ? "like"
				     : !request->slabs ? "slabs" : "ids");
	like = request->like;
	layers = like->geometry.num_layers;
	if (!like->layer_bytes || like->layer_bytes > UCM_REPR_FILE_LAYER_MAX ||
	    !layers || layers > UCM_REPR_FILE_LAYERS_MAX)
		return ucm_error_set(error, -EINVAL, "like: it is of no file");
	if (!request->num_layers || request->first_layer >= layers ||
	    request->num_layers > layers - request->first_layer)
		return ucm_error_set(error, -EINVAL, "layers: %" PRIu32 " from %"
				     PRIu32 " on, there are %" PRIu32,
				     request->num_layers, request->first_layer,
				     layers);
	for (uint32_t i = 0; i < request->num_layers; i++) {
		const struct ucm_repr_slab *slab = &request->slabs[i];
		const struct ucm_repr_shape room = {
			.bytes = like->layer_bytes,
		};
		int err = ucm_repr_slab_check(slab, &room, error);

		if (!err)
			err = ucm_repr_ids_check("slots", request->slots, 0,
						 request->num,
						 slab->num_slots, error);
		if (err)
			return err;
	}
	return 0;
}

static void job_plan(struct reprs_job *job)
{
	const struct ucm_reprs_request *request = job->request;
	uint64_t at = ucm_repr_file_layer_offset(request->like,
						 request->first_layer);

	job->layers_len = (uint64_t)request->num_layers *
			  request->like->layer_bytes;
	job->near = at - UCM_REPR_FILE_HEADER_BYTES <= NEAR_BYTES;
	job->layers_at = job->near ? at : UCM_REPR_FILE_HEADER_BYTES;
}

static uint32_t job_depth(const struct reprs_job *job)
{
	uint64_t each = job->layers_at + job->layers_len;
	uint64_t depth = MEMORY_BYTES / each + 1;

	if (depth > job->reprs->depth)
		depth = job->reprs->depth;
	return (uint32_t)(depth < job->request->num ? depth
						    : job->request->num);
}

static void job_run(struct reprs_job *job, struct flight *flights)
{
	for (uint32_t i = 0; i < job->depth; i++)
		job->flying += flight_begin(&flights[i]);
	while (job->flying) {
		struct ucm_io *io = ucm_ring_poll(job->ring, -1), *next;

		for (; io; io = next) {
			next = io->next;
			if (!flight_done((struct flight *)io))
				job->flying--;
		}
	}
}

static int job_start(struct reprs_job *job, struct ucm_error *error)
{
	uint64_t each = ucm_round_up(job->layers_at + job->layers_len, 64);
	struct flight *flights;
	uint8_t *memory;
	int err = 0;

	job->depth = job_depth(job);
	flights = calloc(job->depth, sizeof(*flights));
	memory = aligned_alloc(64, job->depth * each);
	if (!flights || !memory)
		err = ucm_error_set(error, -ENOMEM, "representations: %s",
				    strerror(ENOMEM));
	for (uint32_t i = 0; !err && i < job->depth; i++) {
		flights[i].job = job;
		flights[i].memory = memory + i * each;
	}
	if (!err)
		job_run(job, flights);
	ucm_ring_close(job->ring);
	free(memory);
	free(flights);
	return err;
}

int ucm_reprs_load(struct ucm_reprs *reprs,
		   const struct ucm_reprs_request *given,
		   size_t *num_loaded, struct ucm_error *error)
{
	struct ucm_reprs_request own, *request = &own;
	struct reprs_job job = {
		.reprs = reprs, .request = &own, .failed = SIZE_MAX,
	};
	char hex[UCM_ID_HEX + 1];
	int err;

	if (num_loaded)
		*num_loaded = 0;
	if (!reprs || !num_loaded)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     reprs ? "num_loaded" : "reprs");
	err = ucm_sized_take(&own, sizeof(own), given,
			     offsetof(struct ucm_reprs_request, slots),
			     "ucm_reprs_request", error);
	if (!err)
		err = request_check(&own, error);
	if (err || !request->num)
		return err;
	job_plan(&job);
	err = job_start(&job, error);
	*num_loaded = job.loaded;
	if (err || !job.err)
		return err;
	ucm_id_format(&request->ids[job.failed], hex);
	return ucm_error_set(error, job.err, "%s: %s", hex, job.why.text);
}

/* ---- one header ---- */

int ucm_reprs_header(struct ucm_reprs *reprs, const struct ucm_id *id,
		     struct ucm_repr_file *out, struct ucm_error *error)
{
	const struct ucm_reprs_request request = { .ids = id, .num = 1 };
	struct reprs_job job = { .reprs = reprs, .request = &request };
	struct flight flight = { .job = &job, .fd = -1 };
	uint8_t header[UCM_REPR_FILE_HEADER_BYTES];
	ssize_t got;
	int err;

	if (!reprs || !id || !out)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !reprs ? "reprs" : !id ? "id" : "out");
	while (!(err = flight_place(&flight))) {
		flight.fd = ucm_os_open(flight.place.dir->fd,
					flight.place.path,
					O_RDONLY | O_CLOEXEC | O_NOFOLLOW |
						O_NONBLOCK, 0);
		if (flight.fd >= 0)
			break;
		flight_go_on(&flight, flight.fd);
	}
	if (flight.fd < 0) {
		err = flight_absent(&flight);
		return ucm_error_set(error, err, "%s", strerror(-err));
	}
	got = ucm_os_read_at(flight.fd, header, sizeof(header), 0);
	close(flight.fd);
	if (got < 0)
		return ucm_error_set(error, (int)got, "%s",
				     strerror((int)-got));
	return ucm_repr_file_parse(header, (size_t)got, out, error);
}
