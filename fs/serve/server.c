/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - the socket, and a thread for each peer.
 *
 * Idea: each connection has a thread, which receives a message, serves it and
 * sends the answer. So a directory that does not answer holds up those who ask
 * for its blocks, and no other peer; and a peer can have one request in the
 * daemon at a time, whatever it sends. Its memory is a stack, of which a few pages
 * are ever used, and while a request is served the message and its answer.
 *
 * Bounds: UCM_PEERS_MAX peers, UCM_PEERS_USER of one user, and no more than a part of
 * the descriptors of this process, which needs them to open blocks. A peer that does
 * not read its answers fills its own socket, and its thread waits SEND_S seconds for
 * it; then it is cut off. So is one that has descriptors to receive and asks for more:
 * what is on its way counts against the daemon's user, and could be anything. A message
 * that is too long for the protocol is received into nothing and refused. Descriptors
 * are never asked for. Linux 6.16 refuses to send them; before, they are received into
 * nothing, and closing one may take its peer's thread as long as the peer likes.
 *
 * Locks: server->lock guards the list of peers and their number, and is held for a few
 * instructions. A peer's thread takes its connection off the list before it closes
 * the descriptor, so that stop never shuts down another one.
 */
#include <config.h>

#include "fs/serve/peer.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

#define UCM_PEERS_MAX 4096u
#define UCM_PEERS_USER 1024u /* of one user, but root and ours */
/* The same, as parts of what RLIMIT_NOFILE allows. */
#define PEERS_PART 2
#define PEERS_USER_PART 4
#define STACK_BYTES (256u << 10)
#define BACKLOG 256
#define SEND_S 10
#define IDLE_MS 1500 /* without a peer, since the last message */
#define LOOK_MS 500

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

struct ucm_server {
	struct ucm_server_terms terms;
	unsigned peers_max, peers_user; /* that there may be */
	int listening;
	int stop; /* an eventfd */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	_Atomic int64_t used_ms; /* when a message came last */
	dev_t device; /* of the socket's name */
	ino_t inode;
	pthread_t acceptor;
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t ended;
	LIST_HEAD(, ucm_peer) peers;
	unsigned num_peers; /* threads, too */
	bool left; /* the last thread frees it */
};

/* ---- messages ---- */

static void close_all(const int *fds, unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		ucm_os_close(fds[i]);
}

static bool send_answer(int fd, const struct ucm_serve_answer *head,
			const struct ucm_exchange *exchange)
{
	struct iovec parts[] = {
		{ .iov_base = (void *)head, .iov_len = sizeof(*head) },
		{ .iov_base = exchange->out, .iov_len = exchange->out_size },
	};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(exchange->fds))];
	} control;
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	size_t bytes = exchange->num_fds * sizeof(exchange->fds[0]);

	if (bytes) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(bytes);
		control.head = (struct cmsghdr){
			.cmsg_len = CMSG_LEN(bytes),
			.cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS,
		};
		memcpy(CMSG_DATA(&control.head), exchange->fds, bytes);
	}
	return sendmsg(fd, &message, MSG_NOSIGNAL) >= 0;
}

/* Of the answers before. */
static bool has_received_all(int fd)
{
	int bytes;

	return ioctl(fd, SIOCOUTQ, &bytes) || !bytes;
}

/* One request and its answer; false: the connection ends. */
static bool exchange_one(struct ucm_peer *peer, void *message, size_t size)
{
	struct ucm_exchange exchange = {
		.peer = peer,
		.request = message,
		.items = (char *)message + sizeof(struct ucm_serve_request),
	};
	struct ucm_serve_answer head = { 0 };
	const uint32_t num_drafts = peer->num_drafts;
	bool sent;

	ucm_peer_serve(&exchange, size, &head);
	errno = 0;
	sent = (!exchange.num_fds || has_received_all(peer->fd)) &&
	       send_answer(peer->fd, &head, &exchange);
	if (!sent && errno == ETOOMANYREFS) {
		/* its user has too many descriptors on their way: new files are
		 * dropped with theirs */
		ucm_peer_drop(peer, num_drafts);
		close_all(exchange.fds, exchange.num_fds);
		free(exchange.out);
		exchange.out = NULL;
		exchange.out_size = exchange.num_fds = 0;
		head.result = -EMFILE;
		head.num = head.descriptors = 0;
		sent = send_answer(peer->fd, &head, &exchange);
	}
	close_all(exchange.fds, exchange.num_fds);
	free(exchange.out);
	return sent;
}

/* Wait for a message and take it: its size; 0: there will be none. The buffer is
 * made when there is a message for it. */
static size_t receive(int fd, void **out)
{
	char none;
	ssize_t size = recv(fd, &none, 0, MSG_PEEK | MSG_TRUNC);

	if (size <= 0)
		return 0;
	if ((size_t)size > UCM_SERVE_MESSAGE_MAX)
		size = UCM_SERVE_MESSAGE_MAX + 1; /* which is refused */
	if ((size_t)size < sizeof(struct ucm_serve_request))
		*out = malloc(sizeof(struct ucm_serve_request));
	else
		*out = malloc((size_t)size);
	if (!*out)
		return 0;
	/* without room for control data the kernel drops foreign descriptors */
	size = recv(fd, *out, (size_t)size, 0);
	return size > 0 ? (size_t)size : 0;
}

/* ---- a peer's thread ---- */

static void server_free(struct ucm_server *server)
{
	if (server->listening >= 0)
		close(server->listening);
	if (server->stop >= 0)
		close(server->stop);
	pthread_mutex_destroy(&server->lock);
	pthread_cond_destroy(&server->ended);
	free(server);
}

static void peer_end(struct ucm_peer *peer)
{
	struct ucm_server *server = peer->server;
	bool last;

	pthread_mutex_lock(&server->lock);
	LIST_REMOVE(peer, in_peers);
	pthread_mutex_unlock(&server->lock);
	close(peer->fd);
	ucm_peer_drop(peer, 0);
	free(peer);
	pthread_mutex_lock(&server->lock);
	last = --server->num_peers == 0 && server->left;
	pthread_cond_signal(&server->ended);
	pthread_mutex_unlock(&server->lock);
	if (last)
		server_free(server);
}

static void *peer_main(void *arg)
{
	struct ucm_peer *peer = arg;
	bool goes_on = true;

	pthread_setname_np(pthread_self(), "ucm-peer");
	while (goes_on) {
		_cleanup_free_ void *message = NULL;
		size_t size = receive(peer->fd, &message);

		if (size && peer->server->terms.idle)
			atomic_store(&peer->server->used_ms,
				     ucm_monotonic_ms());
		goes_on = size && exchange_one(peer, message, size);
	}
	peer_end(peer);
	return NULL;
}

/* ---- accepting ---- */

static bool may_connect(const struct ucm_server_terms *terms, uid_t uid)
{
	return terms->others || uid == 0 || uid == geteuid() ||
	       uid == terms->store->names.spaces[0]->uid;
}

/* What cannot be served gets one answer, and no thread. An end that is closed with
 * messages unread resets the other one, which then never sees the answer. */
static void refuse(int fd, int err)
{
	const struct ucm_serve_answer head = { .result = err };
	const struct ucm_exchange none = { .num_fds = 0 };
	char byte;

	send_answer(fd, &head, &none);
	shutdown(fd, SHUT_RDWR);
	while (recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) > 0)
		;
	close(fd);
}

/* Under the lock. */
static bool has_room(const struct ucm_server *server,
		     const struct ucm_peer *peer)
{
	const struct ucm_peer *other;
	unsigned of_user = 0;

	if (ucm_peer_is_daemons(peer))
		return server->num_peers < server->peers_max;
	LIST_FOREACH(other, &server->peers, in_peers)
		of_user += other->uid == peer->uid;
	return server->num_peers < server->peers_max &&
	       of_user < server->peers_user;
}

static int peer_start(struct ucm_server *server, struct ucm_peer *peer)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_mutex_lock(&server->lock);
	err = has_room(server, peer)
		      ? -pthread_create(&thread, &attr, peer_main, peer)
		      : -EMFILE;
	if (!err) {
		LIST_INSERT_HEAD(&server->peers, peer, in_peers);
		server->num_peers++;
	}
	pthread_mutex_unlock(&server->lock);
	pthread_attr_destroy(&attr);
	return err;
}

static void admit(struct ucm_server *server, int fd)
{
	const struct timeval wait = { .tv_sec = SEND_S };
	struct ucm_peer *peer;
	struct ucred who;
	socklen_t len = sizeof(who);
	int err = 0;

	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) ||
	    !may_connect(&server->terms, who.uid)) {
		refuse(fd, -EACCES);
		return;
	}
	peer = calloc(1, sizeof(*peer));
	if (!peer) {
		refuse(fd, -ENOMEM);
		return;
	}
	*peer = (struct ucm_peer){
		.server = server,
		.fd = fd,
		.terms = &server->terms,
		.uid = who.uid,
		.gid = who.gid,
	};
	err = peer_start(server, peer);
	if (!err)
		return;
	if (err == -EAGAIN) /* of threads; to a peer it is too many of them, too */
		err = -EMFILE;
	ucm_warning("socket: a peer is refused: %s", strerror(-err));
	free(peer);
	refuse(fd, err);
}

/* All descriptors are taken: those who wait go on waiting. */
static void wait_for_descriptors(struct ucm_server *server)
{
	struct pollfd stop = { .fd = server->stop, .events = POLLIN };

	poll(&stop, 1, 100);
}

static bool is_idle(struct ucm_server *server)
{
	return !ucm_server_peers(server) &&
	       ucm_monotonic_ms() - atomic_load(&server->used_ms) >= IDLE_MS;
}

static void *accept_main(void *arg)
{
	struct ucm_server *server = arg;
	struct pollfd fds[] = {
		{ .fd = server->stop, .events = POLLIN },
		{ .fd = server->listening, .events = POLLIN },
	};

	pthread_setname_np(pthread_self(), "ucm-accept");
	for (;;) {
		int fd, num = poll(fds, 2, server->terms.idle ? LOOK_MS : -1);

		if ((num < 0 && errno != EINTR) || fds[0].revents)
			break;
		if (server->terms.idle && is_idle(server))
			server->terms.idle(server->terms.arg);
		if (num <= 0)
			continue;
		fd = accept4(server->listening, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			admit(server, fd);
		else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
			wait_for_descriptors(server);
	}
	return NULL;
}

/* ---- the socket ---- */

/* A process that was killed leaves its socket. A file that is no socket refuses
 * connections likewise. */
void ucm_server_remove_dead(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	_cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct stat st;

	if (fd < 0 || strlen(path) >= sizeof(address.sun_path))
		return;
	strcpy(address.sun_path, path);
	if (!lstat(path, &st) && S_ISSOCK(st.st_mode) &&
	    connect(fd, (const struct sockaddr *)&address, sizeof(address)) &&
	    errno == ECONNREFUSED)
		unlink(path);
}

static unsigned least(unsigned a, rlim_t b)
{
	return b < a ? (unsigned)b : a;
}

static void count_room(struct ucm_server *server)
{
	struct rlimit limit = { .rlim_cur = RLIM_INFINITY };

	getrlimit(RLIMIT_NOFILE, &limit);
	server->peers_max = least(UCM_PEERS_MAX, limit.rlim_cur / PEERS_PART);
	server->peers_user =
		least(UCM_PEERS_USER, limit.rlim_cur / PEERS_USER_PART);
}

/* Who may connect is judged by who connects. */
static int listen_on(struct ucm_server *server)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct stat st;
	int fd;

	memcpy(address.sun_path, server->path, sizeof(address.sun_path));
	ucm_server_remove_dead(server->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	server->listening = fd;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
		return -errno;
	if (stat(server->path, &st))
		return -errno;
	server->device = st.st_dev;
	server->inode = st.st_ino;
	if (chmod(server->path, 0666) || listen(fd, BACKLOG))
		return -errno;
	return 0;
}

/* Unless another one has been put in its place. */
static void remove_name(const struct ucm_server *server)
{
	struct stat st;

	if (server->inode && !stat(server->path, &st) &&
	    st.st_dev == server->device && st.st_ino == server->inode)
		unlink(server->path);
}

/* A descriptor that is dropped is closed, by the acceptor, too: one that takes long
 * to close (SO_LINGER) would hold up all who connect. Accepted sockets inherit it. */
static void refuse_descriptors(int listening)
{
	const int no = 0;

	setsockopt(listening, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
}

static int server_open(struct ucm_server *server, const char *path,
		       int listening)
{
	int err = 0;

	count_room(server);
	server->stop = eventfd(0, EFD_CLOEXEC);
	if (server->stop < 0)
		return -errno;
	if (listening < 0 && strlen(path) >= sizeof(server->path))
		return -ENAMETOOLONG;
	server->listening = listening;
	if (listening < 0) {
		strcpy(server->path, path);
		err = listen_on(server);
	}
	if (!err)
		refuse_descriptors(server->listening);
	return err;
}

int ucm_server_start(const struct ucm_server_terms *terms, const char *path,
		     int listening, struct ucm_server **out)
{
	struct ucm_server *server = calloc(1, sizeof(*server));
	int err;

	if (!server)
		return -ENOMEM;
	/* a lease that proves that a new file is closed (descriptors.c) sends this
	 * when the file is opened in that moment; it kills */
	signal(SIGIO, SIG_IGN);
	server->terms = *terms;
	server->listening = server->stop = -1;
	atomic_init(&server->used_ms, ucm_monotonic_ms());
	pthread_mutex_init(&server->lock, NULL);
	ucm_cond_init_monotonic(&server->ended);
	LIST_INIT(&server->peers);
	err = server_open(server, path, listening);
	if (!err)
		err = -pthread_create(&server->acceptor, NULL, accept_main,
				      server);
	if (err) {
		remove_name(server);
		server_free(server);
		return err;
	}
	*out = server;
	return 0;
}

/* Peers that wait for a message find the end of it. */
static void cut_off_peers(struct ucm_server *server)
{
	struct ucm_peer *peer;

	LIST_FOREACH(peer, &server->peers, in_peers)
		shutdown(peer->fd, SHUT_RDWR);
}

bool ucm_server_stop(struct ucm_server *server, unsigned wait_ms)
{
	const struct timespec until = ucm_monotonic_in_ms(wait_ms);
	const uint64_t one = 1;
	bool all;

	if (!server)
		return true;
	remove_name(server);
	if (write(server->stop, &one, sizeof(one)) < 0)
		ucm_warning("socket: %m");
	pthread_join(server->acceptor, NULL);
	pthread_mutex_lock(&server->lock);
	cut_off_peers(server);
	while (server->num_peers &&
	       pthread_cond_timedwait(&server->ended, &server->lock, &until) !=
		       ETIMEDOUT)
		;
	all = server->num_peers == 0;
	server->left = !all;
	pthread_mutex_unlock(&server->lock);
	if (all)
		server_free(server);
	return all;
}

unsigned ucm_server_peers(struct ucm_server *server)
{
	unsigned num;

	pthread_mutex_lock(&server->lock);
	num = server->num_peers;
	pthread_mutex_unlock(&server->lock);
	return num;
}
