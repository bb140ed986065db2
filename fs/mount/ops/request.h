/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - one request: what it asks, who serves it, and its answer.
 *
 * The threads of the transport take requests from the kernel: a few of them
 * over /dev/fuse, one for each processor over io_uring. They serve what memory
 * or a local disk answers. What may wait (fs/tier/wait.h) is handed over to a
 * crew: each directory has one for itself, and one is for what may ask several.
 * So a directory that does not answer keeps its own requests waiting, and its
 * own threads. Over io_uring only what is answered at once is handed over; the
 * rest is served by the thread that took it, and holds up its processor's other
 * requests: a reply from another thread races with libfuse's (its issue 1443).
 *
 * A request is served by a function that fills in the answer. In a thread of the
 * transport it may find that it would have to wait: then it has changed nothing,
 * says -EINPROGRESS, and runs once more in a thread of a crew.
 */
#ifndef UCM_REQUEST_H
#define UCM_REQUEST_H

#include "common/crew.h"
#include "fs/mount/node/daemon.h"
#include "fs/tier/wait.h"

enum ucm_answer {
	UCM_ANSWER_STATUS, /* 0 or an error; any other answer may be that too */
	UCM_ANSWER_ENTRY,
	UCM_ANSWER_ABSENT, /* an entry that the kernel remembers as absent */
	UCM_ANSWER_CREATED,
	UCM_ANSWER_OPENED,
	UCM_ANSWER_ATTR,
	UCM_ANSWER_BYTES,   /* out, out_size */
	UCM_ANSWER_FILE,    /* bytes of an open file, by splice(2) perhaps */
	UCM_ANSWER_WRITTEN, /* out_size */
	UCM_ANSWER_STATFS,
	UCM_ANSWER_XATTR, /* out, out_size; or its size alone, if none fits */
	UCM_ANSWER_TEXT,  /* out */
	UCM_ANSWER_OFFSET,
};

struct ucm_fuse_request;
typedef void ucm_serve_fn(struct ucm_fuse_request *request);

struct ucm_fuse_request {
	struct ucm_job job;
	ucm_serve_fn *serve;
	struct ucm_account account;
	bool answered; /* as soon as it is handed over: nobody waits for it */

	/* What is asked; what a request has not got is 0. */
	fuse_ino_t ino, newparent;
	const char *name;
	const char *text; /* a second name, a link's target, a value */
	const void *in;	  /* bytes: of a value, a write */
	size_t in_size;
	struct fuse_bufvec *write; /* in a thread of the transport */
	const struct stat *attr;
	struct fuse_file_info *fi;
	size_t size; /* of the answer, at most */
	off_t off, len;
	unsigned number; /* mode, flags, to_set, whence */

	/* The answer. */
	enum ucm_answer answer;
	int err;
	double timeout;
	void *out; /* freed with it */
	size_t out_size;
	union {
		struct fuse_entry_param entry;
		struct stat st;
		struct statvfs vfs;
	} u;

	/* Of one that was handed over, where the pointers above lead to. */
	struct fuse_file_info own_fi;
	struct stat own_attr;
	char own[];
};

/* The crews: of each directory, and of what may ask several. */
struct ucm_crews {
	struct ucm_crew *of[UCM_MAX_DIRS + 1];
};

int ucm_crews_open(struct ucm_daemon *daemon);
/* All requests have been served, or wait_ms are over: false. */
bool ucm_crews_close(struct ucm_daemon *daemon, unsigned wait_ms);

/* Serve it, here or by a crew, and answer. It is on the caller's stack, says what
 * is asked but for ino, and is used up. */
void ucm_request_run(struct ucm_fuse_request *request, fuse_req_t req,
		     enum ucm_op op, ucm_serve_fn *serve, fuse_ino_t ino);
/* The same, of one about node ino: all of files/ asks its directory. */
void ucm_request_run_on_node(struct ucm_fuse_request *request, fuse_req_t req,
			     enum ucm_op op, ucm_serve_fn *serve,
			     fuse_ino_t ino);

#endif
