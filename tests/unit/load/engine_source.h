/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_source.h - a source that is a plain directory: its blocks are opened
 * through the ring, new ones are written as drafts and renamed. It holds its
 * calls for as long as a test wants.
 */
#ifndef UCM_TESTS_ENGINE_SOURCE_H
#define UCM_TESTS_ENGINE_SOURCE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/filestamp.h"
#include "hashing/tree.h"
#include "tests/unit/load_fixture.h"

#define NUM 40      /* blocks */
#define SLOTS 32    /* of the staging memory */
#define LAYER 4096

/* ---- a directory ---- */

struct ucm_source {
	int fd;
	bool local;
	_Atomic int open_err; /* its next opens, until this is 0 again, */
	bool once;	      /* or one of them, fail with it */
	_Atomic unsigned losses; /* times that it was asked */
	_Atomic bool comes_back;
};

static struct ucm_source source;

static inline void path_of(const char *space, const struct ucm_id *id,
			   char path[UCM_TREE_PATH_MAX])
{
	char folder[UCM_TREE_FOLDER_MAX];

	ucm_tree_folder(space, folder);
	ucm_tree_block_path(folder, id, path);
}

static inline int open_one(struct ucm_source *of, const char *space,
			   const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX];
	int err = atomic_load(&of->open_err);
	int fd;

	if (err && of->once)
		atomic_store(&of->open_err, 0);
	if (err)
		return err;
	path_of(space, id, path);
	fd = openat(of->fd, path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static inline void descriptors(struct ucm_source *of, const char *space,
			       const struct ucm_id *ids, unsigned num,
			       struct ucm_given *given)
{
	for (unsigned i = 0; i < num; i++)
		given[i] = (struct ucm_given){
			.fd = open_one(of, space, &ids[i]),
			.local = of->local,
		};
}

static inline bool lost(struct ucm_source *of)
{
	atomic_fetch_add(&of->losses, 1);
	return atomic_load(&of->comes_back);
}

/* Block 0 is marked as verified, which is first looked at for its directory; does it
 * hold after the first look at the mark? And has the disk lost a bit of it? */
static bool mark_goes, is_rotten;
static unsigned looks;

static inline void flip(const char *path, off_t at)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static inline bool where(struct ucm_source *of, const char *space,
			 const struct ucm_id *id, struct ucm_where *out)
{
	const char *path = lf_path("$/dir", 0);
	struct stat st;

	(void)of, (void)space, (void)id;
	*out = (struct ucm_where){ .directory = 0 };
	if (!looks++ || (looks > 2 && mark_goes))
		return true;
	if (is_rotten)
		flip(path, 4096 + LAYER + 77);
	ck_assert_int_eq(stat(path, &st), 0);
	out->verified = ucm_file_stamp(&st);
	return true;
}

/* ---- its drafts ---- */

struct ucm_draft {
	char temporary[32], path[UCM_TREE_PATH_MAX]; /* below the directory */
	struct ucm_id id;
	uint64_t bytes;
};

/* A call does its work, waits at its gate, and may be refused once. */
enum call { CREATE, COMMIT };

static struct {
	pthread_mutex_t gate;
	_Atomic unsigned made;
	_Atomic int refusal;
} calls[] = {
	[CREATE] = { .gate = PTHREAD_MUTEX_INITIALIZER },
	[COMMIT] = { .gate = PTHREAD_MUTEX_INITIALIZER },
};

static _Atomic unsigned drafts; /* that have not ended */

static inline int pass(enum call call)
{
	atomic_fetch_add(&calls[call].made, 1);
	pthread_mutex_lock(&calls[call].gate);
	pthread_mutex_unlock(&calls[call].gate);
	return atomic_exchange(&calls[call].refusal, 0);
}

static inline void drop(struct ucm_source *of, struct ucm_draft *draft)
{
	unlinkat(of->fd, draft->temporary, 0);
	free(draft);
	atomic_fetch_sub(&drafts, 1);
}

static inline int create(struct ucm_source *of, const char *space,
			 const struct ucm_id *id, uint64_t bytes,
			 struct ucm_draft **out)
{
	static _Atomic unsigned number;
	struct ucm_draft *draft = calloc(1, sizeof(*draft));
	int fd, err;

	atomic_fetch_add(&drafts, 1);
	path_of(space, id, draft->path);
	snprintf(draft->temporary, sizeof(draft->temporary), "drafts/%u",
		 atomic_fetch_add(&number, 1));
	draft->id = *id;
	draft->bytes = bytes;
	fd = openat(of->fd, draft->temporary,
		    O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
	err = fd < 0 ? -errno : pass(CREATE);
	if (!err && !faccessat(of->fd, draft->path, F_OK, 0))
		err = -EEXIST;
	if (!err) {
		*out = draft;
		return fd;
	}
	if (fd >= 0)
		close(fd);
	drop(of, draft);
	return err;
}

static inline int reopen(struct ucm_source *of, const struct ucm_draft *draft)
{
	int fd = openat(of->fd, draft->temporary, O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* It has to be the block that was announced, and whole. */
static inline int commit(struct ucm_source *of, struct ucm_draft *draft, int fd,
			 const void *header, uint32_t header_bytes)
{
	struct ucm_block written;
	struct stat st;
	int err = pass(COMMIT);

	if (!err && (ucm_block_parse(header, header_bytes, 0, &written) ||
		     fstat(fd, &st) || (uint64_t)st.st_size != draft->bytes ||
		     memcmp(&written.id, &draft->id, sizeof(draft->id)) != 0))
		err = -EINVAL;
	close(fd);
	if (!err && renameat(of->fd, draft->temporary, of->fd,
			     draft->path))
		err = -errno;
	drop(of, draft);
	return err;
}

static const struct ucm_source_ops directory = {
	.name = "directory", .descriptors = descriptors, .where = where,
	.lost = lost, .create = create, .reopen = reopen, .commit = commit,
	.drop = drop,
};

#endif
