/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - from a store to a served mount, and back.
 *
 * Order: mount, mark the directories as in use, let go whoever waits for the
 * start, start the scan, serve. A dead mount on the mount point, left by a daemon
 * that was killed, is detached first.
 */
#include <config.h>

#include "fs/mount/node/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "common/log.h"
#include "fs/index/memory.h"
#include "fs/mount/node/kinds.h"
#include "fs/mount/ops/request.h"
#include "fs/mount/setup/background.h"
#include "fs/mount/setup/unprivileged.h"
#include "fs/store/jobs.h"
#include "fs/store/motion/motion.h"

/* ---- the mount point ---- */

/* What a daemon that was killed leaves. */
static void detach_dead_mount(const char *mountpoint)
{
	struct statvfs st;
	int err;

	for (int tries = 0; tries < 16; tries++) {
		/* stat(2) may be answered from the kernel's memory */
		if (!statvfs(mountpoint, &st) ||
		    !ucm_mount_is_dead(errno))
			return;
		ucm_info("%s: detaching a mount whose daemon is gone",
			 mountpoint);
		if (!umount2(mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW))
			continue;
		err = errno;
		if (ucm_fusermount_detach(mountpoint))
			continue;
		ucm_warning("%s: it stays: %s", mountpoint, strerror(err));
		return;
	}
}

/* ---- the process ---- */

static void raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static void choose_log(const struct ucm_options *options)
{
	ucm_log_sink sink = options->foreground ? ucm_log_stderr
						: ucm_log_syslog;
	enum ucm_log_level level = options->log_level;

	switch (options->log) {
	case UCM_LOG_TO_DEFAULT: break;
	case UCM_LOG_TO_STDERR: sink = ucm_log_stderr; break;
	case UCM_LOG_TO_SYSLOG: sink = ucm_log_syslog; break;
	case UCM_LOG_TO_FILE: sink = ucm_log_file; break;
	}
	if (options->debug && level < UCM_LOG_INFO)
		level = UCM_LOG_INFO; /* what -d is to show */
	ucm_log_set(sink, level);
}

/*
 * The module's parameter was switched off after the kernel had offered the
 * rings: it refuses them, and sends all requests over /dev/fuse. libfuse serves
 * those and tells of the refusal when its loop ends.
 */
static bool uring_was_refused(const struct ucm_daemon *daemon, int err)
{
	return daemon->uring && err == -EOPNOTSUPP;
}

/* The mount went while a request was being read, such as the end of a file, for which
 * nobody waits. Where none was the kernel says ENODEV, a normal end for libfuse. */
static bool mount_went(int err)
{
	return err == -ECONNABORTED;
}

static int loop(struct ucm_daemon *daemon)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int err;

	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_max_threads(config, daemon->options->threads);
	fuse_loop_cfg_set_clone_fd(config, 1);
	err = fuse_session_loop_mt(daemon->session, config);
	fuse_loop_cfg_destroy(config);
	if (uring_was_refused(daemon, err)) {
		ucm_warning("io_uring off: it was switched off while this mount began; requests came over /dev/fuse");
		err = 0;
	}
	if (mount_went(err))
		err = 0;
	if (err < 0)
		ucm_error("serving ended: %s", strerror(-err));
	return err < 0 ? err : 0; /* a signal's number is a normal end */
}

/* By this thread, which lives as long as the loop. */
static void serve_index(struct ucm_daemon *daemon)
{
	int err = ucm_index_memory_serve(ucm_index_live(daemon->store->index));

	daemon->index_fd = ucm_index_live(daemon->store->index)->fd;
	if (!err)
		return;
	ucm_warning("index: set_robust_list: %s; clients ask for each block",
		    strerror(-err));
	daemon->index_fd = -1;
}

static int start_quotas(struct ucm_daemon *daemon)
{
	daemon->quota_ops = ucm_files_quota_hooks;
	daemon->quota_ops.arg = daemon;
	return ucm_files_quotas_start(&daemon->file_tree, &daemon->nodes,
				      &daemon->quota_ops);
}

/* The program that waits for our exit status has it: what may fail comes before. */
static int leave_starter(struct ucm_daemon *daemon)
{
	int err = ucm_background_ready();

	if (err)
		ucm_error("background: %s", strerror(-err));
	else
		choose_log(daemon->options);
	return err;
}

static int start_store(struct ucm_daemon *daemon)
{
	int err;

	serve_index(daemon);
	err = ucm_expiry_start(daemon);
	if (err)
		return err;
	return ucm_store_start(daemon->store);
}

static int serve(struct ucm_daemon *daemon)
{
	int err = ucm_store_begin(daemon->store);

	if (!err)
		err = ucm_files_quotas_open(&daemon->file_tree);
	if (err)
		return err;
	ucm_session_tell_lacking(daemon->options);
	ucm_files_warn_of_others(&daemon->file_tree);
	daemon->store->scan.beside = ucm_files_count;
	err = leave_starter(daemon);
	if (!err)
		err = start_store(daemon);
	if (!err)
		err = start_quotas(daemon);
	if (!err) {
		ucm_socket_start(daemon);
		err = loop(daemon);
	}
	return err;
}

/* Without asking the mount, which nobody serves yet. */
static dev_t device_of_mount(const char *mountpoint)
{
	_cleanup_fd_ int fd = open(mountpoint, O_PATH | O_CLOEXEC);
	struct statx st;

	if (fd < 0 ||
	    statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st))
		return 0;
	return makedev(st.stx_dev_major, st.stx_dev_minor);
}

/* libfuse starts umount(8), and a child of ours waits for a file server that
 * hangs: it has our descriptors there, and closes them. */
static bool does_one_hang(const struct ucm_daemon *daemon)
{
	const struct ucm_dirs *dirs = &daemon->store->dirs;

	for (unsigned dir = 0; dir < dirs->num; dir++) {
		if (!ucm_medium_answers(dirs->at[dir]))
			return true;
	}
	return false;
}

/* Requests that will not be answered end at once. */
static void cut_connection(const char *mountpoint)
{
	if (umount2(mountpoint, MNT_FORCE | MNT_DETACH))
		ucm_warning("%s: cutting the connection: %s", mountpoint,
			    strerror(errno));
}

/* What is in a fast tier alone is copied below, before it is left. What stays
 * there, the next mount copies. */
static void flush_last(struct ucm_daemon *daemon)
{
	uint64_t blocks, bytes;

	ucm_jobs_count_unsaved(daemon->store, &blocks, &bytes);
	if (blocks)
		ucm_info("%llu blocks, %llu bytes are copied to a lower tier",
			 (unsigned long long)blocks, (unsigned long long)bytes);
	if (!ucm_movers_flush(daemon->store, NULL, NULL))
		return;
	ucm_jobs_count_unsaved(daemon->store, &blocks, &bytes);
	ucm_warning("%llu blocks, %llu bytes are in no lower tier: the next "
		    "mount copies them",
		    (unsigned long long)blocks, (unsigned long long)bytes);
}

static void unmount(struct ucm_daemon *daemon)
{
	if (does_one_hang(daemon))
		cut_connection(daemon->mountpoint);
	fuse_session_unmount(daemon->session);
}

/* The end of what was served, with or without a mount: first those who ask, then
 * what still moves, then the threads that served them. What does not end in time
 * may touch the store yet. */
static void wind_down(struct ucm_daemon *daemon, bool failed)
{
	struct ucm_store *store = daemon->store;
	bool ended;

	ucm_store_ending(store);
	ucm_index_memory_unserve(ucm_index_live(store->index));
	if (daemon->session)
		unmount(daemon);
	ended = ucm_socket_stop(daemon, store->life.close_ms);
	if (!failed)
		flush_last(daemon);
	ucm_store_quiet(store);
	/* some of the crews' requests wait for its thread */
	ended &= ucm_files_quotas_stop(&daemon->file_tree, store->life.close_ms);
	ended &= ucm_crews_close(daemon, store->life.close_ms);
	ucm_expiry_stop(daemon);
	store->life.left |= !ended;
}

static int mount_and_serve(struct ucm_daemon *daemon)
{
	const char *mountpoint = daemon->options->mountpoint;
	_cleanup_free_ char *path = NULL;
	int err;

	detach_dead_mount(mountpoint);
	/* the background's working directory is another */
	path = realpath(mountpoint, NULL);
	if (path)
		daemon->mountpoint = mountpoint = path;
	if (fuse_set_signal_handlers(daemon->session))
		return -EINVAL;
	err = fuse_session_mount(daemon->session, mountpoint);
	if (!err) {
		daemon->device = device_of_mount(mountpoint);
		err = serve(daemon);
		wind_down(daemon, err);
	} else {
		ucm_fusermount_explain();
		err = -EIO; /* libfuse has said what it knows */
	}
	fuse_remove_signal_handlers(daemon->session);
	daemon->mountpoint = daemon->options->mountpoint;
	return err;
}

/* ---- a socket alone ---- */

static int end_fd; /* an eventfd */

void ucm_daemon_end(void *daemon)
{
	const uint64_t one = 1;
	ssize_t written = write(end_fd, &one, sizeof(one));

	(void)daemon, (void)written;
}

static void end_by_signal(int number)
{
	(void)number;
	ucm_daemon_end(NULL);
}

/* They may come at any time from here on. */
static int take_signals(void)
{
	static const int ends[] = { SIGHUP, SIGINT, SIGTERM };
	const struct sigaction end = { .sa_handler = end_by_signal,
				       .sa_flags = SA_RESTART };

	end_fd = eventfd(0, EFD_CLOEXEC);
	if (end_fd < 0)
		return -errno;
	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		sigaction(ends[i], &end, NULL);
	return 0;
}

static int serve_until_signal(struct ucm_daemon *daemon)
{
	uint64_t signals;
	int err = ucm_socket_start(daemon);

	if (!err)
		err = leave_starter(daemon);
	if (err)
		return err;
	ucm_say_ready(daemon);
	while (read(end_fd, &signals, sizeof(signals)) < 0 && errno == EINTR)
		;
	return 0;
}

static int serve_socket(struct ucm_daemon *daemon)
{
	int err = take_signals();

	if (!err)
		err = ucm_store_begin(daemon->store);
	if (err)
		return err;
	if (daemon->options->foreground)
		choose_log(daemon->options);
	err = start_store(daemon);
	if (!err)
		err = serve_until_signal(daemon);
	wind_down(daemon, err);
	return err;
}

/* ---- one life ---- */

static void set_owner(struct ucm_daemon *daemon)
{
	struct ucm_space *space = daemon->store->names.spaces[0];

	if (daemon->options->uid != UCM_LEFT_OUT)
		space->uid = daemon->options->uid;
	if (daemon->options->gid != UCM_LEFT_OUT)
		space->gid = daemon->options->gid;
}

/* A thread still serves a request, in a directory that does not answer: what it
 * may touch stays. */
static bool is_in_use(const struct ucm_daemon *daemon)
{
	if (daemon->store->life.left)
		ucm_error("a request does not end: left as it is");
	return daemon->store->life.left;
}

static void daemon_fini(struct ucm_daemon *daemon)
{
	if (daemon->session)
		fuse_session_destroy(daemon->session);
	daemon->session = NULL;
	ucm_crews_close(daemon, 0);
	ucm_handles_fini(daemon);
	ucm_files_quotas_close(&daemon->file_tree);
	ucm_files_nodes_fini(&daemon->nodes);
	ucm_opstats_free(daemon->ops);
	ucm_iobudget_memory_close(daemon);
	free(daemon->socket);
	free(daemon);
}

int ucm_daemon_run(struct ucm_options *options, struct ucm_store *store,
		   unsigned files_dir, struct ucm_trace *trace)
{
	struct ucm_daemon *daemon = calloc(1, sizeof(*daemon));
	int err;

	if (!daemon)
		return -ENOMEM;
	*daemon = (struct ucm_daemon){
		.options = options,
		.store = store,
		.mountpoint = ucm_options_place(options),
		.index_fd = -1,
		.trace = trace,
		.ops = ucm_opstats_new(),
	};
	ucm_iobudget_memory_open(daemon);
	ucm_handles_init(&daemon->files);
	ucm_files_tree_init(&daemon->file_tree, &store->dirs, files_dir);
	err = ucm_crews_open(daemon);
	if (!err)
		ucm_files_ops_init(daemon);
	if (!daemon->ops)
		err = -ENOMEM;
	clock_gettime(CLOCK_REALTIME, &daemon->started);
	raise_file_limit();
	set_owner(daemon);
	if (!err && options->mountpoint)
		err = ucm_session_new(daemon);
	if (!err)
		err = options->mountpoint ? mount_and_serve(daemon)
					  : serve_socket(daemon);
	if (!is_in_use(daemon))
		daemon_fini(daemon);
	ucm_log_tell_left_out(true);
	return err;
}
