/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - the calls of <ucm/client.h>: requests on a socket, one at a time.
 *
 * A request that fails between its first and last byte leaves the socket out of
 * step: then it is shut down, and each later call is -ENOTCONN. What a daemon
 * answers is checked as a peer's request is: sizes, numbers and descriptors are
 * those that were asked for, or it is no daemon of ours (-EPROTO).
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <ucm/client.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "fs/reader/reader.h"
#include "hashing/tree.h"

#define HELLO_FDS 2
#define CONNECT_S 5

struct ucm_client {
	int fd;
	pthread_mutex_t lock; /* of the request that is being made */
	bool broken;          /* under lock */
};

/* One request, with its answer's room. */
struct request {
	struct ucm_serve_request head;
	const void *items;
	size_t items_size;
	void *out; /* all of it is written, or the answer is refused */
	size_t out_size;
	int *fds;
	unsigned num_fds, most_fds;
};

/* ---- one request ---- */

/* These take long, and end with their caller. */
static bool ends_by_signal(const struct request *request)
{
	return request->head.verb == UCM_SERVE_FLUSH ||
	       request->head.verb == UCM_SERVE_RESCAN;
}

static int send_request(const struct ucm_client *client,
			const struct request *request)
{
	struct iovec parts[] = {
		{ .iov_base = (void *)&request->head,
		  .iov_len = sizeof(request->head) },
		{ .iov_base = (void *)request->items,
		  .iov_len = request->items_size },
	};
	const struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	ssize_t sent;

	do /* all of it is sent, or nothing */
		sent = sendmsg(client->fd, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR && !ends_by_signal(request));
	/* a daemon that refuses us, or ends, may have said why before it was asked */
	return sent < 0 && errno != EPIPE ? -errno : 0;
}

static void take_descriptors(struct msghdr *message, struct request *request)
{
	struct cmsghdr *head = CMSG_FIRSTHDR(message);

	for (; head; head = CMSG_NXTHDR(message, head)) {
		size_t num = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		int fds[UCM_SERVE_DESCRIPTORS];

		if (head->cmsg_level != SOL_SOCKET ||
		    head->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(fds, CMSG_DATA(head), num * sizeof(int));
		for (size_t i = 0; i < num; i++) {
			if (request->num_fds < request->most_fds)
				request->fds[request->num_fds++] = fds[i];
			else
				close(fds[i]);
		}
	}
}

#define ENDS 3 /* of which the last is one */

/* A daemon that refuses a peer answers unasked, and closes. Then recvmsg(2) may show
 * the end before the answer: by ECONNRESET, once, as the request was not read; and
 * by 0, if both came while it looked for a message. */
static ssize_t receive(const struct ucm_client *client,
		       const struct request *request, struct msghdr *message)
{
	const size_t room = message->msg_controllen;
	ssize_t size = 0;

	for (int end = 0; size <= 0 && end < ENDS;) {
		message->msg_controllen = room;
		size = recvmsg(client->fd, message, MSG_CMSG_CLOEXEC);
		if (size == 0 && message->msg_controllen)
			break; /* an empty message, with descriptors to close */
		if (size == 0 || (size < 0 && errno == ECONNRESET))
			end++;
		else if (size < 0 &&
			 (errno != EINTR || ends_by_signal(request)))
			break;
	}
	return size;
}

static int receive_answer(const struct ucm_client *client,
			  struct request *request,
			  struct ucm_serve_answer *answer, size_t *size_out)
{
	struct iovec parts[] = {
		{ .iov_base = answer, .iov_len = sizeof(*answer) },
		{ .iov_base = request->out, .iov_len = request->out_size },
	};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(UCM_SERVE_DESCRIPTORS * sizeof(int))];
	} control;
	struct msghdr message = {
		.msg_iov = parts,
		.msg_iovlen = 2,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t size;

	size = receive(client, request, &message);
	if (size < 0)
		return -errno;
	take_descriptors(&message, request);
	if (size == 0)
		return -ENOTCONN;
	/* this process has no more descriptors: those that are lacking are lost */
	if (message.msg_flags & MSG_CTRUNC)
		return -EMFILE;
	*size_out = (size_t)size;
	return message.msg_flags & MSG_TRUNC ? -EPROTO : 0;
}

static int check_answer(const struct request *request,
			const struct ucm_serve_answer *answer, size_t size)
{
	if (size < sizeof(*answer))
		return -EPROTO;
	if (answer->result)
		return answer->result < 0 ? answer->result : -EPROTO;
	if (answer->verb != request->head.verb ||
	    size != sizeof(*answer) + request->out_size ||
	    answer->descriptors != request->num_fds)
		return -EPROTO;
	return 0;
}

static void drop_descriptors(struct request *request)
{
	while (request->num_fds)
		close(request->fds[--request->num_fds]);
}

/* After this the socket is in step, or broken. */
static int exchange(struct ucm_client *client, struct request *request)
{
	struct ucm_serve_answer answer = { 0 };
	size_t size = 0;
	int err = client->broken ? -ENOTCONN : send_request(client, request);

	if (!err)
		err = receive_answer(client, request, &answer, &size);
	if (err && err != -EMFILE)
		client->broken = true;
	if (client->broken) {
		shutdown(client->fd, SHUT_RDWR);
		if (err == -ECONNRESET) /* of the sending */
			err = -ENOTCONN;
	}
	if (!err)
		err = check_answer(request, &answer, size);
	if (err)
		drop_descriptors(request);
	return err;
}

static int ask(struct ucm_client *client, struct request *request)
{
	int err;

	if (!client)
		return -ENOTCONN;
	pthread_mutex_lock(&client->lock);
	err = exchange(client, request);
	pthread_mutex_unlock(&client->lock);
	return err;
}

/* ---- connecting ---- */

/* The path of the socket: of a mount, where its link leads. */
static int find_socket(const char *where, struct sockaddr_un *address)
{
	char link[4096];
	struct stat st;
	ssize_t len;

	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (stat(where, &st))
		return errno == ENOTDIR ? -ENOENT : ucm_mount_error(errno);
	if (S_ISSOCK(st.st_mode)) {
		len = (ssize_t)strlen(where);
		if (len < (ssize_t)sizeof(address->sun_path))
			memcpy(address->sun_path, where, (size_t)len);
	} else {
		if (snprintf(link, sizeof(link), "%s/" UCM_TREE_SOCKET, where) >=
		    (int)sizeof(link))
			return -ENAMETOOLONG;
		len = readlink(link, address->sun_path,
			       sizeof(address->sun_path));
		if (len < 0)
			return errno == EINVAL || errno == ENOTDIR
				       ? -ENOENT
				       : ucm_mount_error(errno);
	}
	return len < (ssize_t)sizeof(address->sun_path) ? 0 : -ENAMETOOLONG;
}

/* Memory that ends early, or is made shorter, kills those who have mapped it. */
static bool stays_as_long(int memory, uint64_t bytes)
{
	int seals = fcntl(memory, F_GET_SEALS);
	struct stat st;

	if (fstat(memory, &st) || (uint64_t)st.st_size < bytes)
		return false;
	return seals >= 0 && seals & F_SEAL_SHRINK;
}

static int say_hello(struct ucm_client *client, uint32_t flags,
		     struct ucm_serve_hello *out, int memory[HELLO_FDS])
{
	int fds[HELLO_FDS];
	struct request request = {
		.head = { .verb = UCM_SERVE_HELLO, .flags = flags },
		.out = out,
		.out_size = sizeof(*out),
		.fds = fds,
		.most_fds = flags ? HELLO_FDS : 0,
	};
	int err = ask(client, &request);
	unsigned at = 0;

	if (err)
		return err;
	memory[0] = memory[1] = -1;
	if (out->version != UCM_SERVE_VERSION)
		err = -EPROTONOSUPPORT;
	else if (request.num_fds !=
		 (unsigned)(!!out->index_bytes + !!out->budget_bytes))
		err = -EPROTO;
	if (!err && out->index_bytes &&
	    !stays_as_long(memory[0] = fds[at++], out->index_bytes))
		err = -EPROTO;
	if (!err && out->budget_bytes &&
	    !stays_as_long(memory[1] = fds[at], out->budget_bytes))
		err = -EPROTO;
	if (err)
		drop_descriptors(&request);
	return err;
}

/* For a daemon that hangs; 0: without end, as a request may take its time. */
static void limit_wait(const struct ucm_client *client, time_t seconds)
{
	const struct timeval wait = { .tv_sec = seconds };

	setsockopt(client->fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	setsockopt(client->fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
}

int ucm_client_connect(const char *where, struct ucm_client **out)
{
	struct ucm_client *client;
	struct ucm_serve_hello hello;
	struct sockaddr_un address;
	int none[HELLO_FDS], err;

	if (!strncmp(where, UCM_CLIENT_TIERS, strlen(UCM_CLIENT_TIERS)))
		return ucm_private_connect(where + strlen(UCM_CLIENT_TIERS), out);
	client = calloc(1, sizeof(*client));
	if (!client)
		return -ENOMEM;
	pthread_mutex_init(&client->lock, NULL);
	client->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	err = client->fd < 0 ? -errno : find_socket(where, &address);
	if (!err)
		limit_wait(client, CONNECT_S);
	if (!err && connect(client->fd, (struct sockaddr *)&address,
			    sizeof(address)))
		err = errno == EPROTOTYPE ? -ENOENT : -errno;
	if (!err)
		err = say_hello(client, 0, &hello, none);
	if (!err)
		limit_wait(client, 0);
	if (err == -EAGAIN)
		err = -ETIMEDOUT;
	if (err) {
		ucm_client_close(client);
		return err;
	}
	*out = client;
	return 0;
}

void ucm_client_close(struct ucm_client *client)
{
	if (!client)
		return;
	if (client->fd >= 0)
		close(client->fd);
	pthread_mutex_destroy(&client->lock);
	free(client);
}

int ucm_client_hello(struct ucm_client *client, struct ucm_serve_hello *out,
		     int *index_fd, int *budget_fd)
{
	int memory[HELLO_FDS];
	int err = say_hello(client, UCM_HELLO_MEMORY, out, memory);

	if (err)
		return err;
	*index_fd = memory[0];
	*budget_fd = memory[1];
	return 0;
}

/* ---- many items ---- */

static size_t min(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* A name that is cut would be another space's. */
static int set_space(struct ucm_serve_request *head, const char *space)
{
	if (!space)
		space = "";
	if (strlen(space) >= sizeof(head->space))
		return -ENOENT;
	memset(head->space, 0, sizeof(head->space));
	memcpy(head->space, space, strlen(space));
	return 0;
}

/* Parts of as many items as a message takes, each a request; one at least, so that
 * a caller who may not ask hears of it. */
int ucm_client_items(struct ucm_client *client,
		     const struct ucm_serve_request *head, const char *space,
		     const void *items, size_t in, size_t num, void *out,
		     size_t out_each)
{
	struct request request = { .head = *head };
	size_t most = min(UCM_SERVE_ITEMS,
			  (UCM_SERVE_MESSAGE_MAX - sizeof(*head)) / (in + !in));
	int err = set_space(&request.head, space);

	for (size_t at = 0, part; !err && (at < num || !at); at += part + !num) {
		part = min(num - at, most);
		request.head.num = (uint32_t)part;
		request.items = (const char *)items + at * in;
		request.items_size = part * in;
		request.out = (char *)out + at * out_each;
		request.out_size = part * out_each;
		err = ask(client, &request);
	}
	return err;
}

int ucm_client_ids(struct ucm_client *client, enum ucm_serve_verb verb,
		   const char *space, uint32_t flags, const struct ucm_id *ids,
		   size_t num, int32_t *results)
{
	const struct ucm_serve_request head = { .verb = verb, .flags = flags };

	return ucm_client_items(client, &head, space, ids, sizeof(*ids), num,
				results, sizeof(*results));
}

int ucm_client_offer(struct ucm_client *client, const char *space,
		     const struct ucm_id *ids, const struct ucm_id *parents,
		     size_t num, uint64_t bytes, int32_t *results)
{
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_OFFER,
		.bytes = bytes,
	};
	_cleanup_free_ struct ucm_control_offered *offered =
		calloc(num + 1, sizeof(*offered));

	if (!offered)
		return -ENOMEM;
	for (size_t i = 0; i < num; i++) {
		offered[i].id = ids[i];
		if (parents)
			offered[i].parent = parents[i];
	}
	return ucm_client_items(client, &head, space, offered,
				sizeof(*offered), num, results,
				sizeof(*results));
}

/* ---- descriptors ---- */

/* Those of an answer are of the items with result 0, in their order: fds, which
 * has them from its beginning, gets each to its place. */
static int spread(int *fds, unsigned num_fds, const void *items, size_t each,
		  size_t num)
{
	size_t good = 0;

	for (size_t i = 0; i < num; i++) {
		int32_t result;

		memcpy(&result, (const char *)items + i * each, sizeof(result));
		if (result > 0) /* no error, nor a descriptor of ours */
			return -EPROTO;
		good += result == 0;
	}
	if (good != num_fds)
		return -EPROTO;
	for (size_t i = num; i-- > 0;) {
		int32_t result;

		memcpy(&result, (const char *)items + i * each, sizeof(result));
		fds[i] = result == 0 ? fds[--good] : result;
	}
	return 0;
}

/* Those of the first parts of num, as the last one failed. */
static void close_all(int *fds, size_t at, size_t num, int err)
{
	for (size_t i = 0; i < num; i++) {
		if (i < at && fds[i] >= 0)
			close(fds[i]);
		fds[i] = err;
	}
}

/* items: room of each bytes for each block, whose first field is its result. */
static int ask_descriptors(struct ucm_client *client,
			   const struct ucm_serve_request *head,
			   const struct ucm_id *ids, size_t num, int *fds,
			   void *items, size_t each)
{
	size_t at = 0, part;
	int err = 0;

	for (; !err && at < num; at += err ? 0 : part) {
		struct request request = {
			.head = *head,
			.items = ids + at,
			.out = (char *)items + at * each,
			.fds = fds + at,
		};

		part = min(num - at, UCM_SERVE_DESCRIPTORS);
		request.head.num = request.most_fds = (unsigned)part;
		request.items_size = part * sizeof(*ids);
		request.out_size = part * each;
		err = ask(client, &request);
		if (!err)
			err = spread(fds + at, request.num_fds, request.out,
				     each, part);
		if (err)
			drop_descriptors(&request);
	}
	if (err)
		close_all(fds, at, num, err);
	return err;
}

int ucm_client_open(struct ucm_client *client, const char *space,
		    const struct ucm_id *ids, size_t num, int *fds,
		    struct ucm_serve_opened *opened)
{
	struct ucm_serve_request head = { .verb = UCM_SERVE_OPEN };
	_cleanup_free_ struct ucm_serve_opened *own =
		opened ? NULL : calloc(num + 1, sizeof(*own));
	int err = set_space(&head, space);

	if (!opened && !own)
		return -ENOMEM;
	return err ? err
		   : ask_descriptors(client, &head, ids, num, fds,
				     opened ? opened : own, sizeof(*opened));
}

/* Files of a call that has failed: nobody has a descriptor of one. */
static void cancel_created(struct ucm_client *client,
			   const struct ucm_serve_created *created, size_t num)
{
	_cleanup_free_ uint32_t *drafts = calloc(num + 1, sizeof(*drafts));
	size_t made = 0;

	for (size_t i = 0; drafts && i < num; i++) {
		if (!created[i].result && created[i].draft)
			drafts[made++] = created[i].draft;
	}
	if (made)
		ucm_client_cancel(client, drafts, made);
}

int ucm_client_create(struct ucm_client *client, const char *space,
		      const struct ucm_id *ids, size_t num, uint64_t bytes,
		      int *fds, struct ucm_serve_created *created)
{
	struct ucm_serve_request head = {
		.verb = UCM_SERVE_CREATE,
		.bytes = bytes,
	};
	int err = set_space(&head, space);

	if (err)
		return err;
	memset(created, 0, num * sizeof(*created));
	err = ask_descriptors(client, &head, ids, num, fds, created,
			      sizeof(*created));
	if (err)
		cancel_created(client, created, num);
	return err;
}

int ucm_client_commit(struct ucm_client *client,
		      const struct ucm_serve_commit *commits, size_t num,
		      int32_t *results)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_COMMIT };

	return ucm_client_items(client, &head, NULL, commits, sizeof(*commits),
				num, results, sizeof(*results));
}

int ucm_client_cancel(struct ucm_client *client, const uint32_t *drafts,
		      size_t num)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_CANCEL };
	_cleanup_free_ int32_t *results = calloc(num + 1, sizeof(*results));

	return results ? ucm_client_items(client, &head, NULL, drafts,
					  sizeof(*drafts), num, results,
					  sizeof(*results))
		       : -ENOMEM;
}

int ucm_client_call(struct ucm_client *client,
		    const struct ucm_serve_request *head, const void *items,
		    size_t item_in, void *out, size_t out_size, int *fd_out)
{
	int fd = -1;
	struct request request = {
		.head = *head,
		.items = items,
		.items_size = item_in * head->num,
		.out = out,
		.out_size = out_size,
		.fds = &fd,
		.most_fds = fd_out ? 1 : 0,
	};
	int err = ask(client, &request);

	if (!err && fd_out && fd < 0)
		return -EPROTO;
	if (!err && fd_out)
		*fd_out = fd;
	return err;
}
