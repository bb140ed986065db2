/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - requests are served and answered, and some are handed over.
 *
 * A request begins on the stack of the transport's thread. One that is handed
 * over is copied, with all that its pointers lead to, because libfuse's buffers
 * are the thread's. It is answered by the thread that has served it.
 */
#include <config.h>

#include "fs/mount/ops/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/osguard.h"
#include "common/process.h"
#include "fs/mount/node/kinds.h"

#define CREW_REMOTE 16 /* threads, of a directory under guard */
#define CREW_LOCAL 4
#define CREW_MANY 16

/* ---- the crews ---- */

int ucm_crews_open(struct ucm_daemon *daemon)
{
	const struct ucm_dirs *dirs = &daemon->store->dirs;
	struct ucm_crews *crews = calloc(1, sizeof(*crews));
	int err = crews ? 0 : -ENOMEM;

	daemon->crews = crews;
	for (unsigned dir = 0; dir < dirs->num && !err; dir++) {
		char name[24];

		snprintf(name, sizeof(name), "ucm-dir-%u", dir);
		err = ucm_crew_open(name,
				    dirs->at[dir]->guard ? CREW_REMOTE
							 : CREW_LOCAL,
				    &crews->of[dir]);
	}
	if (!err)
		err = ucm_crew_open("ucm-dirs", CREW_MANY,
				    &crews->of[UCM_WAIT_MANY]);
	return err;
}

bool ucm_crews_close(struct ucm_daemon *daemon, unsigned wait_ms)
{
	int64_t until = ucm_monotonic_ms() + wait_ms;
	bool all = true;

	if (!daemon->crews)
		return true;
	for (unsigned i = 0; i <= UCM_MAX_DIRS; i++) {
		int64_t left = until - ucm_monotonic_ms();

		all &= ucm_crew_close(daemon->crews->of[i],
				      left > 0 ? (unsigned)left : 0);
	}
	free(daemon->crews);
	daemon->crews = NULL;
	return all;
}

/* ---- answers ---- */

static void request_reply_xattr(struct ucm_fuse_request *request)
{
	fuse_req_t req = request->account.req;

	if (request->size == 0)
		fuse_reply_xattr(req, request->out_size);
	else
		fuse_reply_buf(req, request->out, request->out_size);
}

static void request_reply_created(struct ucm_fuse_request *request)
{
	/* interrupted: the kernel has no such open. req is gone, and with it
	 * the way to close the backing id; its descriptor and the file go at
	 * the end of the mount. */
	if (fuse_reply_create(request->account.req, &request->u.entry,
			      request->fi) == -ENOENT)
		ucm_debug(OP, 1, "create interrupted");
}

static void request_reply_file(struct ucm_fuse_request *request)
{
	struct fuse_bufvec bytes = FUSE_BUFVEC_INIT(request->size);
	const struct ucm_handle *file =
		(struct ucm_handle *)(uintptr_t)request->fi->fh;

	bytes.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK |
			     FUSE_BUF_FD_RETRY;
	bytes.buf[0].fd = file->fd;
	bytes.buf[0].pos = request->off;
	/* it reads and replies in one, and reports no failure of the file */
	fuse_reply_data(request->account.req, &bytes, FUSE_BUF_SPLICE_MOVE);
}

static void request_reply(struct ucm_fuse_request *request)
{
	fuse_req_t req = request->account.req;
	static const struct fuse_entry_param absent;

	switch (request->err ? UCM_ANSWER_STATUS : request->answer) {
	case UCM_ANSWER_STATUS: fuse_reply_err(req, -request->err); break;
	case UCM_ANSWER_ENTRY: fuse_reply_entry(req, &request->u.entry); break;
	case UCM_ANSWER_ABSENT: fuse_reply_entry(req, &absent); break;
	case UCM_ANSWER_CREATED: request_reply_created(request); break;
	case UCM_ANSWER_OPENED: fuse_reply_open(req, request->fi); break;
	case UCM_ANSWER_ATTR:
		fuse_reply_attr(req, &request->u.st, request->timeout);
		break;
	case UCM_ANSWER_BYTES:
		fuse_reply_buf(req, request->out, request->out_size);
		break;
	case UCM_ANSWER_FILE: request_reply_file(request); break;
	case UCM_ANSWER_WRITTEN:
		fuse_reply_write(req, request->out_size);
		break;
	case UCM_ANSWER_STATFS: fuse_reply_statfs(req, &request->u.vfs); break;
	case UCM_ANSWER_XATTR: request_reply_xattr(request); break;
	case UCM_ANSWER_TEXT: fuse_reply_readlink(req, request->out); break;
	case UCM_ANSWER_OFFSET: fuse_reply_lseek(req, request->off); break;
	}
}

/* It is counted first: who asked must find it counted. */
static void request_answer(struct ucm_fuse_request *request)
{
	ucm_account_end(&request->account,
			request->answer == UCM_ANSWER_ABSENT ? -ENOENT
							     : request->err);
	if (!request->answered)
		request_reply(request);
	free(request->out);
	request->out = NULL;
}

/* ---- handing over ---- */

static size_t request_text_size(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

static void *request_put(char **at, const void *bytes, size_t size)
{
	void *to = *at;

	if (!bytes)
		return NULL;
	memcpy(to, bytes, size);
	*at += size;
	return to;
}

static int request_put_write(char **at, struct ucm_fuse_request *copy)
{
	struct fuse_bufvec to = FUSE_BUFVEC_INIT(fuse_buf_size(copy->write));
	ssize_t got;

	to.buf[0].mem = *at;
	got = fuse_buf_copy(&to, copy->write, 0);
	if (got < 0)
		return (int)got;
	copy->in = *at;
	copy->in_size = (size_t)got;
	copy->write = NULL;
	return 0;
}

/* A write is taken out of its pipe, if it came by one: it is lost where there
 * is an error. */
static int request_copy(const struct ucm_fuse_request *request,
			struct ucm_fuse_request **out)
{
	size_t name = request_text_size(request->name);
	size_t text = request_text_size(request->text);
	size_t write = request->write ? fuse_buf_size(request->write) : 0;
	struct ucm_fuse_request *copy;
	char *at;
	int err = 0;

	copy = malloc(sizeof(*copy) + name + text + request->in_size + write);
	if (!copy)
		return -ENOMEM;
	*copy = *request;
	at = copy->own;
	copy->name = request_put(&at, request->name, name);
	copy->text = request_put(&at, request->text, text);
	copy->in = request_put(&at, request->in, request->in_size);
	if (request->write)
		err = request_put_write(&at, copy);
	if (request->fi) {
		copy->own_fi = *request->fi;
		copy->fi = &copy->own_fi;
	}
	if (request->attr) {
		copy->own_attr = *request->attr;
		copy->attr = &copy->own_attr;
	}
	*out = copy;
	if (err)
		free(copy);
	return err;
}

/* A signal that does not end the caller ends no call, as with NFS. */
static bool request_is_killed(void *req)
{
	return fuse_req_interrupted(req) &&
	       ucm_process_is_killed(fuse_req_ctx(req)->pid);
}

/* In a thread of a crew. */
static void request_run_job(struct ucm_job *job)
{
	struct ucm_fuse_request *request = (struct ucm_fuse_request *)job;

	ucm_caller = request->account.req;
	ucm_caller_is_gone = ucm_caller ? request_is_killed : NULL;
	request->serve(request);
	ucm_caller_is_gone = NULL; /* the answer ends req */
	request_answer(request);
	free(request);
}

/* Not what came over io_uring: there only its own thread can answer. */
static bool request_may_go(const struct ucm_fuse_request *request)
{
#ifdef FUSE_CAP_OVER_IO_URING
	char *payload;
	size_t size;

	return request->answered ||
	       fuse_req_get_payload(request->account.req, &payload, &size,
				    NULL);
#else
	(void)request;
	return true;
#endif
}

/* False: it has to be served here. */
static bool request_hand_over(struct ucm_fuse_request *request, unsigned dir)
{
	struct ucm_crews *crews = request->account.daemon->crews;
	struct ucm_fuse_request *copy;
	int err;

	err = request_copy(request, &copy);
	if (err && !request->write)
		return false;
	if (err) {
		request->err = err;
		request_answer(request);
		return true;
	}
	if (copy->answered) {
		/* the entry of the ring is free for others then */
		fuse_reply_err(copy->account.req, 0);
		copy->account.req = NULL;
	}
	copy->job.run = request_run_job;
	if (!ucm_crew_add(crews->of[dir], &copy->job))
		copy->job.run(&copy->job); /* no thread can be had */
	return true;
}

/* ---- serving ---- */

static void request_begin(struct ucm_fuse_request *request, fuse_req_t req,
			  enum ucm_op op, ucm_serve_fn *serve, fuse_ino_t ino)
{
	request->serve = serve;
	request->account = ucm_account_begin(req, op);
	request->ino = ino;
}

static void request_run(struct ucm_fuse_request *request)
{
	ucm_must_not_wait = request_may_go(request);
	request->serve(request);
	ucm_must_not_wait = false;
	if (request->err == -EINPROGRESS) {
		if (request_hand_over(request, ucm_waited_for()))
			return;
		request->serve(request);
	}
	if (request->answered) {
		request->answered = false;
		request->err = 0;
	}
	request_answer(request);
}

void ucm_request_run(struct ucm_fuse_request *request, fuse_req_t req,
		     enum ucm_op op, ucm_serve_fn *serve, fuse_ino_t ino)
{
	request_begin(request, req, op, serve, ino);
	request_run(request);
}

void ucm_request_run_on_node(struct ucm_fuse_request *request, fuse_req_t req,
			     enum ucm_op op, ucm_serve_fn *serve,
			     fuse_ino_t ino)
{
	const struct ucm_files_tree *tree = &ucm_daemon_of(req)->file_tree;

	request_begin(request, req, op, serve, ino);
	if (ucm_node_type(ino) == UCM_NODE_TREE && tree->at->medium.guard &&
	    request_may_go(request) && request_hand_over(request, tree->dir))
		return;
	request_run(request);
}
