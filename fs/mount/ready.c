/* SPDX-License-Identifier: Apache-2.0 */
/* ready.c - telling who has started the daemon that it serves, and what systemd
 * has opened for it. */
#include <config.h>

#include "fs/mount/node/daemon.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"

/* sd_notify(3): one datagram to the socket that systemd names. */
static void notify_systemd(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	_cleanup_fd_ int fd = -1;
	size_t len = path ? strlen(path) : 0;

	if (len < 2 || len >= sizeof(address.sun_path))
		return;
	memcpy(address.sun_path, path, len);
	if (path[0] == '@')
		address.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 ||
	    sendto(fd, "READY=1", 7, MSG_NOSIGNAL, (struct sockaddr *)&address,
		   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) <
		    0)
		ucm_warning("NOTIFY_SOCKET: %m");
}

void ucm_say_ready(struct ucm_daemon *daemon)
{
	static const char text[] = "READY=1\n";
	int fd = daemon->options->ready_fd;

	/* the manager that started its first client has not started it */
	if (!daemon->options->ends_with_peers)
		notify_systemd();
	if (fd < 0)
		return;
	if (write(fd, text, sizeof(text) - 1) < 0)
		ucm_warning("ready-fd %d: %m", fd);
	close(fd);
}

/* sd_listen_fds(3): the first, which must be a socket that listens. */
#define LISTEN_FD 3

int ucm_systemd_socket(void)
{
	const char *pid = getenv("LISTEN_PID"), *num = getenv("LISTEN_FDS");
	int listens = 0;
	socklen_t len = sizeof(listens);

	if (!pid || !num || strtol(pid, NULL, 10) != getpid() ||
	    strtol(num, NULL, 10) < 1)
		return -1;
	if (getsockopt(LISTEN_FD, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) ||
	    !listens)
		return -1;
	fcntl(LISTEN_FD, F_SETFD, FD_CLOEXEC);
	return LISTEN_FD;
}
