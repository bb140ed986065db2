/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - ucmfs, the daemon.
 *
 * Exit status: 0, 1 (could not mount or serve), 2 (wrong arguments, settings
 * or directories: one line that names the thing, nothing mounted), 3 (the same:
 * another process uses one of the directories).
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "common/deadmount.h"
#include "common/error.h"
#include "common/log.h"
#include "common/profile.h"
#include "fs/medium/memory/memory.h"
#include "fs/mount/node/daemon.h"
#include "fs/mount/setup/background.h"

static void show_version(void)
{
	printf("ucmfs %s, libfuse %s\n", PACKAGE_VERSION, fuse_pkgversion());
}

static int complain(const struct ucm_error *error)
{
	fprintf(stderr, "ucmfs: %s\n", error->text);
	return 2;
}

static bool lies_in(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return !strncmp(path, dir, len) &&
	       (path[len] == '/' || path[len] == '\0');
}

/* A tier below the mount point would vanish under the mount, and the daemon
 * would wait for itself; so it would with a mount over a tier's folder. */
static int check_mountpoint(const char *mountpoint,
			    const struct ucm_store *store,
			    struct ucm_error *error)
{
	char *path = mountpoint ? realpath(mountpoint, NULL) : NULL;
	struct stat st;

	if (!mountpoint)
		return 0;
	if (!path) {
		if (ucm_mount_is_dead(errno))
			return 0; /* a dead mount, soon to be detached */
		return ucm_error_set(error, -EINVAL, "%s: %m", mountpoint);
	}
	if (!stat(path, &st) && !S_ISDIR(st.st_mode)) {
		ucm_error_set(error, -EINVAL, "%s: %s", path,
			      strerror(ENOTDIR));
		free(path);
		return -EINVAL;
	}
	for (unsigned i = 0; i < store->dirs.num; i++) {
		const char *dir = store->dirs.at[i]->path;

		if (lies_in(dir, path) || lies_in(path, dir)) {
			ucm_error_set(
				error, -EINVAL,
				lies_in(dir, path)
					? "%s is inside the mount "
					  "point %s"
					: "%s contains the mount point %s",
				dir, path);
			free(path);
			return -EINVAL;
		}
	}
	free(path);
	return 0;
}

/* NULL without an error: none is asked for. */
static int open_trace(const struct ucm_options *options,
		      const struct ucm_store *store, struct ucm_trace **out,
		      struct ucm_error *error)
{
	const char *tiers[UCM_MAX_DIRS];
	struct ucm_trace_names names = {
		.ops = ucm_op_names,
		.num_ops = UCM_OP_COUNT,
		.tiers = tiers,
		.num_tiers = store->dirs.num_tiers,
	};
	char *mount;
	int err;

	*out = NULL;
	if (!options->trace)
		return 0;
	if (!options->mountpoint)
		return ucm_error_set(error, -EINVAL,
				     "trace: there is no mount to trace");
	for (unsigned i = 0; i < store->dirs.num_tiers; i++)
		tiers[i] = store->dirs.tiers[i].name;
	mount = realpath(options->mountpoint, NULL);
	names.mount = mount ? mount : options->mountpoint;
	err = ucm_trace_open(options->trace, options->trace_size, &names, out);
	free(mount);
	if (err)
		ucm_error_set(error, err, "trace %s: %s", options->trace,
			      err == -EEXIST ? "is there, and is no trace"
					     : strerror(-err));
	return err;
}

/* The option becomes what was chosen, for .ucmfs/config.yaml. */
static int choose_files(struct ucm_options *options,
			const struct ucm_store *store, unsigned *dir_out,
			struct ucm_error *error)
{
	int err = ucm_files_choose(&store->dirs, options->files, dir_out,
				   error);
	char *path = err ? NULL : strdup(store->dirs.at[*dir_out]->path);

	if (!path)
		return err ? err : -ENOMEM;
	free(options->files);
	options->files = path;
	return 0;
}

/* Also of a dead mount, which cannot be looked at: its folder can. To free; NULL:
 * it is nowhere. */
static char *absolute(const char *mountpoint)
{
	char *path = realpath(mountpoint, NULL), *copy, *folder, *slash;

	if (path || !ucm_mount_is_dead(errno))
		return path;
	copy = strdup(mountpoint);
	slash = copy ? strrchr(copy, '/') : NULL;
	if (slash)
		*slash = '\0';
	folder = realpath(!slash ? "." : *copy ? copy : "/", NULL);
	if (folder && asprintf(&path, "%s/%s", folder,
			       slash ? slash + 1 : mountpoint) < 0)
		path = NULL;
	free(folder);
	free(copy);
	return path;
}

static void tell_left(void *arg, const char *path)
{
	(void)arg;
	ucm_info("%s: memory that no store uses: rm -rf it if its blocks are "
		 "not needed any more",
		 path);
}

static int run(struct ucm_options *options)
{
	struct ucm_error error;
	struct ucm_store *store;
	struct ucm_trace *trace;
	unsigned files_dir;
	char *mount;
	int err = options->log_file ? ucm_log_open(options->log_file) : 0;

	if (err) {
		ucm_error_set(&error, err, "log %s: %s", options->log_file,
			      strerror(-err));
		return complain(&error);
	}
	if (!options->ends_with_peers) /* else the file is the program's that started us */
		ucm_profile_start();
	mount = options->mountpoint
			? absolute(options->mountpoint)
			: strdup(ucm_options_place(options));
	options->config.mount = mount;
	err = ucm_store_open(&options->config, &store, &error);
	options->config.mount = NULL;
	free(mount);
	if (err) {
		complain(&error);
		return err == -EBUSY || err == -EAGAIN ? 3 : 2;
	}
	if (check_mountpoint(options->mountpoint, store, &error) ||
	    choose_files(options, store, &files_dir, &error) ||
	    open_trace(options, store, &trace, &error)) {
		ucm_store_close(store);
		return complain(&error);
	}
	ucm_memory_each_left(tell_left, NULL);
	err = ucm_daemon_run(options, store, files_dir, trace);
	if (!store->life.left)
		ucm_trace_close(trace);
	ucm_store_close(store);
	return err ? 1 : 0;
}

/* A program may be started without some of the first three descriptors. What it
 * opened there would get what is meant for standard error. */
static void open_standard_ones(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* Where the background has /dev/null, or we our files, nobody reads READY=1. */
static bool may_say_ready(const struct ucm_options *options)
{
	int fd = options->ready_fd;

	return fd < 0 || (fcntl(fd, F_GETFD) >= 0 &&
			  (options->foreground || fd > STDERR_FILENO));
}

static int start(struct ucm_options *options)
{
	int status = 0, err;

	if (!may_say_ready(options)) {
		fprintf(stderr, "ucmfs: ready-fd %d: it must be open%s\n",
			options->ready_fd,
			options->foreground ? "" : ", and above 2 without -f");
		return 2;
	}
	err = options->foreground ? 0 : ucm_background_fork(&status);
	if (err < 0)
		fprintf(stderr, "ucmfs: background: %s\n", strerror(-err));
	if (err)
		return err < 0 ? 1 : status;
	return run(options);
}

int main(int argc, char **argv)
{
	struct ucm_error error = { "out of memory" };
	struct ucm_options options;
	int status = 0;

	open_standard_ones();
	openlog("ucmfs", LOG_PID, LOG_DAEMON);
	ucm_options_init(&options);
	if (ucm_options_parse(&options, argc, argv, &error))
		status = complain(&error);
	else if (options.show_help)
		ucm_options_help(stdout);
	else if (options.show_version)
		show_version();
	else
		status = start(&options);
	ucm_options_fini(&options);
	return status;
}
