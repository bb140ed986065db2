/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.c - the mount's socket: where it lies, and what it serves.
 *
 * A socket lies in a folder of its user, under a number that no other mount has:
 * that of the mount's device. .ucmfs/socket in the mount leads there. A daemon that
 * was killed leaves its socket; the next one of the same user removes those on which
 * no process listens. So does the link in the first directory (.ucmfs/socket), by
 * which those find the daemon who know its directories; it is removed at the end.
 *
 * Without a socket a mount is a file system, and nothing else: so what fails here
 * is a warning. A daemon without a mount is nothing without its socket.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <ucm/serve.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/memory.h"
#include "fs/medium/dir/dir.h"
#include "fs/serve/serve.h"
#include "hashing/tree.h"

#define SUFFIX ".sock"
#define UNIX_PATH_MAX sizeof(((struct sockaddr_un *)0)->sun_path)

/* ---- the folder ---- */

/* Another user may have made it, where all may write to what it is in. */
static int make_folder(const char *path)
{
	struct stat st;

	if (mkdir(path, 0755) && errno != EEXIST)
		return -errno;
	if (lstat(path, &st))
		return -errno;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
			       !(st.st_mode & 022)
		       ? 0
		       : -EPERM;
}

static void name_folder(char *path, size_t size)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");

	if (geteuid() == 0)
		snprintf(path, size, "/run/ucmfs");
	else if (runtime && *runtime == '/')
		snprintf(path, size, "%s/ucmfs", runtime);
	else
		snprintf(path, size, "/tmp/ucmfs-%u", (unsigned)geteuid());
}

static void sweep(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		const char *end = strrchr(entry->d_name, '.');
		_cleanup_free_ char *path = NULL;

		if (!end || strcmp(end, SUFFIX) ||
		    asprintf(&path, "%s/%s", folder, entry->d_name) < 0)
			continue;
		ucm_server_remove_dead(path);
	}
	if (dir)
		closedir(dir);
}

/* ---- what is served ---- */

static char *text(void *arg, uint32_t what, size_t *len_out)
{
	static const char *const names[] = {
		[UCM_TEXT_STATS] = "stats.json",
		[UCM_TEXT_CONFIG] = "config.yaml",
		[UCM_TEXT_METRICS] = "metrics",
	};

	return ucm_control_text(arg, names[what], len_out);
}

static void count(void *arg)
{
	ucm_iobudget_count_lookups(arg);
}

static bool writes(void *arg, const struct ucm_space *space)
{
	return ucm_daemon_writes_to(arg, space);
}

static struct ucm_server_terms terms_of(struct ucm_daemon *daemon)
{
	const struct ucm_options *options = daemon->options;

	return (struct ucm_server_terms){
		.store = daemon->store,
		.others = options->allow_other,
		.readonly = ucm_options_passed(options, "ro"),
		.index_fd = daemon->index_fd,
		.index_bytes = ucm_index_memory_size(
			ucm_index_live(daemon->store->index)),
		.budget_fd = daemon->budget_fd,
		.budget_bytes = UCM_CONTROL_BUDGET_BYTES,
		.rate = options->budget,
		.in_flight = options->inflight,
		.text = text,
		.count = count,
		.writes = writes,
		.idle = options->ends_with_peers ? ucm_daemon_end : NULL,
		.arg = daemon,
	};
}

/* Where a mount's lies that is given no path. */
static int choose_path(struct ucm_daemon *daemon)
{
	char folder[UNIX_PATH_MAX];
	int err;

	name_folder(folder, sizeof(folder));
	err = make_folder(folder);
	if (err) {
		ucm_warning("socket: %s: %s", folder,
			    err == -EPERM ? "is not this user's alone"
					  : strerror(-err));
		return err;
	}
	sweep(folder);
	if (daemon->options->mountpoint)
		err = asprintf(&daemon->socket, "%s/%u-%u" SUFFIX, folder,
			       major(daemon->device), minor(daemon->device));
	else
		err = asprintf(&daemon->socket, "%s/private-%d" SUFFIX, folder,
			       (int)getpid());
	if (err < 0) {
		daemon->socket = NULL;
		return -ENOMEM;
	}
	/* the number is ours now: its last mount is gone, and its daemon may be
	 * ending yet, which would keep us from the name */
	unlink(daemon->socket);
	return 0;
}

/* ---- the link in the first directory ---- */

/* -1: all tiers are of memory, or shared: a link there would lead the programs of
 * another host to whatever has that path there. */
static int first_directory(const struct ucm_daemon *daemon)
{
	const struct ucm_dirs *dirs = &daemon->store->dirs;

	for (unsigned i = 0; i < dirs->num; i++) {
		if (!(dirs->at[i]->flags & UCM_MEDIUM_VOLATILE) &&
		    !dirs->at[i]->hosts)
			return ucm_directory_fd(dirs->at[i]);
	}
	return -1;
}

/* A daemon that was killed has left its own. Where it cannot be made, programs that
 * know the directories do not find this daemon. */
static void make_link(const struct ucm_daemon *daemon)
{
	int fd = first_directory(daemon), err;

	if (fd < 0 || ucm_options_passed(daemon->options, "ro"))
		return;
	ucm_os_unlink(fd, UCM_TREE_SOCKET);
	err = ucm_os_symlink(daemon->socket, fd, UCM_TREE_SOCKET);
	if (err)
		ucm_warning("first directory: " UCM_TREE_SOCKET ": %s",
			    strerror(-err));
}

/* Unless it is another's, which has taken the directory over. */
static void remove_link(const struct ucm_daemon *daemon)
{
	int fd = first_directory(daemon);
	char target[UNIX_PATH_MAX];

	if (fd >= 0 &&
	    !ucm_os_readlink(fd, UCM_TREE_SOCKET, target, sizeof(target)) &&
	    !strcmp(target, daemon->socket))
		ucm_os_unlink(fd, UCM_TREE_SOCKET);
}

/* ---- a life ---- */

static int start(struct ucm_daemon *daemon)
{
	const struct ucm_server_terms terms = terms_of(daemon);
	int err;

	err = ucm_server_start(&terms, daemon->socket, ucm_systemd_socket(),
			       &daemon->server);
	if (err)
		ucm_warning("socket %s: %s", daemon->socket, strerror(-err));
	return err;
}

int ucm_socket_start(struct ucm_daemon *daemon)
{
	const char *path = daemon->options->socket;
	int err = 0;

	daemon->socket = path ? strdup(path) : NULL;
	if (!path)
		err = choose_path(daemon);
	else if (!daemon->socket)
		err = -ENOMEM;
	if (!err)
		err = start(daemon);
	if (!err) {
		make_link(daemon);
		return 0;
	}
	free(daemon->socket);
	daemon->socket = NULL;
	daemon->server = NULL;
	return err;
}

bool ucm_socket_stop(struct ucm_daemon *daemon, unsigned wait_ms)
{
	struct ucm_server *server = daemon->server;

	if (server)
		remove_link(daemon);
	daemon->server = NULL;
	return ucm_server_stop(server, wait_ms);
}
