/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - the files that an engine has open to read: which (files.c), how they
 * are had of the source (files_open.c), what their headers say (files_head.c), and
 * whether their bytes are known to be right (verified.c).
 *
 *	asked -> opening -> open ---- no user ----> idle ---> closed
 *	   ^        |         |                      |
 *	   '-again--'         '-> failed, or stale: closed with its last user
 *
 * Pieces wait for a file while it is not open, or its header is coming.
 */
#ifndef UCM_LOAD_FILES_H
#define UCM_LOAD_FILES_H

#include <sys/stat.h>

#include "common/table.h"
#include "gpu/load/engine/lane.h"
#include "gpu/load/engine/queue.h"
#include "gpu/load/files/file_header.h"
#include "gpu/load/task/group.h"
#include "gpu/source/source.h"

enum ucm_load_file_state {
	UCM_LOAD_FILE_ASKED,   /* for its descriptor, with the next request */
	UCM_LOAD_FILE_OPENING, /* an operation is under way */
	UCM_LOAD_FILE_OPEN,    /* its size is known */
	UCM_LOAD_FILE_FAILED,  /* see err and fault */
};

/* Its header. */
enum ucm_head_state {
	UCM_HEAD_UNKNOWN,
	UCM_HEAD_COMING, /* it is read: with a piece, or by itself */
	UCM_HEAD_KNOWN,  /* and right */
};

struct ucm_load_file {
	struct ucm_engine_op op; /* reading the head, vouching, close */
	struct ucm_engine *engine;
	struct ucm_group *group;
	struct ucm_id id;
	struct ucm_dir *dir;   /* where it is, or is expected */
	struct ucm_lane *lane; /* of the directory */
	enum ucm_load_file_state state;
	int fd;
	int err;        /* failed, and why: see struct ucm_outcome */
	uint16_t fault;
	bool direct;    /* O_DIRECT */
	bool revived;   /* opened once more: the mount had come back */
	bool spared;    /* opened once more: idle ones were closed for it */
	bool stale;     /* not to be found any more; ends with its last user */
	bool counted;   /* as used, in its queue */
	uint32_t align; /* of reads */
	uint64_t size;
	const uint8_t *map; /* memory files, once they are mapped */
	uint64_t taken;     /* bytes that were read of it before */
	enum ucm_head_state head_state;
	struct ucm_file_header head;
	uint8_t *buffer;             /* while the head is read, or it is
				      * vouched for */
	uint64_t vouch_at;           /* so far, in the file */
	uint32_t vouch_crc;          /* of the payload that far */
	uint32_t *vouch_planes;      /* and of its planes */
	/* For verified.c: the file as it was before its first read, or 0; which
	 * of its layers were right since, NULL: none; how many. */
	uint64_t stamp;
	uint64_t *right;
	uint32_t num_right;
	unsigned refs;
	struct ucm_piece_list waiters; /* for a change of state, or the head */
	UT_hash_handle hh;
	TAILQ_ENTRY(ucm_load_file) in_idle, in_asked;
	int64_t idle_since_ns;
};

/* A directory in which the source opens blocks. */
struct ucm_given_dir {
	struct ucm_dir dir; /* first */
	unsigned asking;    /* requests that are under way */
	bool met;	    /* what dir says is that of a directory on */
	dev_t device;
};

struct ucm_load_files {
	struct ucm_load_file *all; /* a table, by group and id */
	TAILQ_HEAD(, ucm_load_file) idle; /* oldest first */
	TAILQ_HEAD(, ucm_load_file) asked; /* for descriptors, with the next request */
	struct ucm_given_dir given[UCM_DIRECTORIES + 1]; /* by their numbers */
	unsigned most;   /* that are open, idle or not */
	unsigned closing; /* that still have descriptors */
	bool spares;     /* what is closed is closed at once */
	uint64_t wanted; /* by requests in the order of layers */
};

/* The file of a block, perhaps still opening; the caller has a reference. NULL: out
 * of memory. */
struct ucm_load_file *ucm_load_file_get(struct ucm_engine *engine,
			      struct ucm_group *group,
			      const struct ucm_id *id);
void ucm_load_file_put(struct ucm_load_file *file);

/* No later user shall find this one: something was wrong with it. */
void ucm_load_file_forget(struct ucm_load_file *file);

/* Make the head from the file's first bytes; fails the file if it is wrong. */
void ucm_load_file_take_head(struct ucm_load_file *file, const void *bytes,
			     size_t len);

/* Make a read of it of an operation that has a buffer, len and offset. */
void ucm_load_file_read(const struct ucm_load_file *file, struct ucm_io *io);

/* Read the head by itself; changes the file when it is there. */
void ucm_load_file_read_head(struct ucm_load_file *file);
/* Of a memory file, at once: its head is known then, or it has failed. */
void ucm_load_file_read_head_now(struct ucm_load_file *file);

/* Something has changed: pieces that wait for the file go on, soon. */
void ucm_load_file_tell(struct ucm_load_file *file);

/* Map a memory file; false if it cannot be, or is not what it was. */
bool ucm_load_file_map(struct ucm_load_file *file);

/* For forms without a plane table: is the checksum of the whole payload still
 * to be compared? And have that done, for a part of it alone says nothing. If
 * it is right the head has a plane table from then on, so that the bytes that
 * are copied, from another read, are checked as well. Changes the file. */
bool ucm_load_file_needs_vouch(const struct ucm_load_file *file);
void ucm_load_file_vouch(struct ucm_load_file *file);

/* Where its payload begins: as our writers have it, unless it is known. */
static inline uint64_t
ucm_load_file_data_offset(const struct ucm_load_file *file)
{
	return file->head_state == UCM_HEAD_KNOWN ? file->head.block.data_offset
						  : file->group->data_offset;
}

/* May a read of it keep the ring waiting? (ring.h) */
static inline bool ucm_load_file_may_hang(const struct ucm_load_file *file)
{
	return !file->dir->quick &&
	       !atomic_load_explicit(&file->dir->answered,
				     memory_order_relaxed);
}

/* Ask the source for descriptors of files that want some; once in a round. */
void ucm_load_files_ask(struct ucm_engine *engine);

/* Close those that have been idle for too long. Until the next one will have
 * been, in ns; -1: none is idle. */
int64_t ucm_load_files_expire(struct ucm_engine *engine);
/* A request comes to so many files once for each read of their layers; less
 * when it is done. They are kept open, as far as descriptors go. */
void ucm_load_files_want(struct ucm_engine *engine, int64_t num);

/* Close the idle ones. */
void ucm_load_files_close(struct ucm_engine *engine);
/* Close those of a group, which nobody uses. */
void ucm_load_files_close_group(struct ucm_engine *engine,
				const struct ucm_group *group);

/* ---- what the files of files have of each other ---- */

/* It is of no use; whoever waits for it fails likewise. */
void ucm_load_file_fail(struct ucm_load_file *file, int err, uint16_t fault);
/* Its descriptor is in use from now on, or no longer. */
void ucm_load_file_count(struct ucm_load_file *file, bool is_used);
/* Close the idle ones, at once: a descriptor is needed now. */
void ucm_load_files_spare(struct ucm_engine *engine);
/* Have it opened; it may have failed when this returns. */
void ucm_load_file_open(struct ucm_load_file *file);
/* It is asked for with no later request. */
void ucm_load_file_take_asked(struct ucm_load_file *file);

/* ---- files that need not be verified again (verified.c) ---- */

/* A file was opened, or is taken up again when nobody was using it. */
void ucm_verified_begin(struct ucm_load_file *file, const struct stat *st);
void ucm_verified_end(struct ucm_load_file *file);

/* Has this very file been verified on this machine? Asked anew each time, when
 * what is to be used of it has been read. */
bool ucm_verified_is(const struct ucm_load_file *file);

/* These layers of it were right; when all were, the mount is told. */
void ucm_verified_add(struct ucm_load_file *file, uint32_t first_layer,
		      uint32_t end_layer);

/* Something of it was not, wherever it was opened. */
void ucm_verified_deny(const struct ucm_load_file *file);

#endif
