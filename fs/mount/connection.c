/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.c - what the kernel and libfuse offer, and what is taken of it: at the
 * mount, by arguments, and when the connection begins (op_init()).
 */
#include <config.h>

#include "fs/mount/node/daemon.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/process.h"
#include "fs/mount/node/kinds.h"

/* doc/benchmarking.md, "Without passthrough" */
#define PASSTHROUGH_OFF                                                   \
	"passthrough off: %s; data goes through the daemon, and reads past " \
	"the page cache take up to 7 times as long; what uses libucm has "  \
	"descriptors by the socket"

void ucm_session_tell_lacking(const struct ucm_options *options)
{
	if (!options->foreground && options->passthrough != UCM_OFF &&
	    !ucm_has_sys_admin())
		ucm_info(PASSTHROUGH_OFF, "it needs CAP_SYS_ADMIN");
}

static const char *want_passthrough(const struct ucm_daemon *daemon,
				    struct fuse_conn_info *conn)
{
	if (daemon->options->passthrough == UCM_OFF)
		return "switched off";
	if (!ucm_has_sys_admin())
		return "it needs CAP_SYS_ADMIN";
	/* fails if the kernel has not offered it */
	if (!fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH))
		return "this kernel does not have it (6.9 or later does)";
	return NULL;
}

static void choose_passthrough(struct ucm_daemon *daemon,
			       struct fuse_conn_info *conn)
{
	daemon->passthrough_why = want_passthrough(daemon, conn);
	atomic_store(&daemon->passthrough, !daemon->passthrough_why);
	if (daemon->passthrough_why) {
		ucm_log(daemon->options->passthrough == UCM_ON ? UCM_LOG_WARNING
							       : UCM_LOG_INFO,
			PASSTHROUGH_OFF, daemon->passthrough_why);
		return;
	}
	/* a tier may be a FUSE mount itself */
	conn->max_backing_stack_depth = 1;
}

static void choose_uring(struct ucm_daemon *daemon, struct fuse_conn_info *conn)
{
	if (daemon->uring_why) {
		if (daemon->options->io_uring == UCM_ON)
			ucm_warning("io_uring off: %s", daemon->uring_why);
		return;
	}
#ifdef FUSE_CAP_OVER_IO_URING
	daemon->uring = fuse_get_feature_flag(conn, FUSE_CAP_OVER_IO_URING);
#else
	(void)conn;
#endif
	if (!daemon->uring) {
		daemon->uring_why = "the kernel did not offer it";
		ucm_info("io_uring off: %s", daemon->uring_why);
	}
}

/*
 * With io_uring a request is served on the processor that it comes from. A
 * program that waits for the answer has left the processor by then; but for a
 * RELEASE nobody waits, and serving it at once would interrupt a reader that
 * goes on, with two context switches for each block. As a batch process we are
 * scheduled when the reader sleeps or its time is over, and serve the RELEASE
 * together with its next request. The threads that libfuse starts after this
 * inherit the policy.
 */
static void yield_to_readers(const struct ucm_daemon *daemon)
{
	const struct sched_param none = { 0 };

	if (daemon->uring && sched_getscheduler(0) == SCHED_OTHER &&
	    sched_setscheduler(0, SCHED_BATCH, &none))
		ucm_debug(FUSE, 1, "sched_setscheduler: %m");
}

/* Worth its system calls only where data goes through the daemon: receiving a
 * request by splice takes a pipe and six calls more than a read. */
static void choose_splice(struct ucm_daemon *daemon,
			  struct fuse_conn_info *conn)
{
	static const uint64_t flags[] = {
		FUSE_CAP_SPLICE_READ, FUSE_CAP_SPLICE_WRITE,
		FUSE_CAP_SPLICE_MOVE,
	};

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		if (atomic_load(&daemon->passthrough))
			fuse_unset_feature_flag(conn, flags[i]);
		else
			fuse_set_feature_flag(conn, flags[i]);
	}
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct ucm_daemon *daemon = userdata;

	fuse_unset_feature_flag(conn, FUSE_CAP_WRITEBACK_CACHE);
	/* committed pages never change: no need to drop them on a new mtime */
	fuse_unset_feature_flag(conn, FUSE_CAP_AUTO_INVAL_DATA);
	/* without it each write(2) asks for security.capability first */
	fuse_set_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	fuse_set_feature_flag(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	fuse_set_feature_flag(conn, FUSE_CAP_PARALLEL_DIROPS);
	choose_passthrough(daemon, conn);
	choose_splice(daemon, conn);
	choose_uring(daemon, conn);
	yield_to_readers(daemon);
	ucm_say_ready(daemon);
}

static const struct fuse_lowlevel_ops operations = {
	.init = op_init,
	.lookup = ucm_op_lookup,
	.forget = ucm_op_forget,
	.forget_multi = ucm_op_forget_multi,
	.getattr = ucm_op_getattr,
	.setattr = ucm_op_setattr,
	.mknod = ucm_op_mknod,
	.mkdir = ucm_op_mkdir,
	.unlink = ucm_op_unlink,
	.rmdir = ucm_op_rmdir,
	.symlink = ucm_op_symlink,
	.readlink = ucm_op_readlink,
	.rename = ucm_op_rename,
	.link = ucm_op_link,
	.open = ucm_op_open,
	.read = ucm_op_read,
	.write_buf = ucm_op_write_buf,
	.flush = ucm_op_flush,
	.release = ucm_op_release,
	.fsync = ucm_op_fsync,
	.opendir = ucm_op_opendir,
	.readdir = ucm_op_readdir,
	.readdirplus = ucm_op_readdirplus,
	.releasedir = ucm_op_releasedir,
	.fsyncdir = ucm_op_fsyncdir,
	.statfs = ucm_op_statfs,
	.setxattr = ucm_op_setxattr,
	.getxattr = ucm_op_getxattr,
	.listxattr = ucm_op_listxattr,
	.removexattr = ucm_op_removexattr,
	.create = ucm_op_create,
	.fallocate = ucm_op_fallocate,
	.lseek = ucm_op_lseek,
};

/* ---- arguments for libfuse ---- */

#define RING_DEPTH 32 /* requests of a processor at a time */

static bool uring_enabled(void)
{
	FILE *file = fopen("/sys/module/fuse/parameters/enable_uring", "re");
	int c = file ? fgetc(file) : EOF;

	if (file)
		fclose(file);
	return c == 'Y' || c == '1';
}

/* NULL: ask for it. */
static const char *want_uring(const struct ucm_daemon *daemon)
{
	if (daemon->options->io_uring == UCM_OFF)
		return "switched off";
#ifndef FUSE_CAP_OVER_IO_URING
	(void)uring_enabled;
	return "ucmfs was built with a libfuse older than 3.18";
#else
	return uring_enabled() ? NULL : "the fuse module's parameter enable_uring is not Y";
#endif
}

static int build_args(struct ucm_daemon *daemon, struct fuse_args *args)
{
	const struct ucm_options *options = daemon->options;
	char *list = NULL, *more = NULL, rings[64] = "";
	int err = 0;

	/* escapes the commas of SOURCE */
	if (asprintf(&more, "fsname=%s", options->source) < 0)
		return -ENOMEM;
	if (fuse_opt_add_opt_escaped(&list, more))
		err = -ENOMEM;
	free(more);
	daemon->uring_why = want_uring(daemon);
	if (!daemon->uring_why)
		snprintf(rings, sizeof(rings), ",io_uring,io_uring_q_depth=%u",
			 RING_DEPTH);
	if (!err &&
	    asprintf(&more, "%s,subtype=ucmfs,default_permissions%s%s%s", list,
		     geteuid() == 0 ? ",nosuid,nodev" : "", rings,
		     options->pass ? options->pass : "") < 0)
		err = -ENOMEM;
	free(list);
	if (err)
		return err;
	if (fuse_opt_add_arg(args, "ucmfs") || fuse_opt_add_arg(args, "-o") ||
	    fuse_opt_add_arg(args, more) ||
	    (options->debug && fuse_opt_add_arg(args, "-d")))
		err = -ENOMEM;
	free(more);
	return err;
}

__attribute__((format(printf, 2, 0))) static void
log_of_libfuse(enum fuse_log_level level, const char *format, va_list args)
{
	char line[512];
	size_t len;

	vsnprintf(line, sizeof(line), format, args);
	len = strlen(line);
	while (len && line[len - 1] == '\n')
		line[--len] = '\0';
	if (len == 0)
		return;
	if (level <= FUSE_LOG_ERR)
		ucm_error("%s", line);
	else if (level <= FUSE_LOG_WARNING)
		ucm_warning("%s", line);
	else if (level <= FUSE_LOG_INFO)
		ucm_debug(FUSE, 1, "%s", line);
	else /* with -d only */
		ucm_log(UCM_LOG_INFO, "%s", line);
}

int ucm_session_new(struct ucm_daemon *daemon)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	int err = build_args(daemon, &args);

	fuse_set_log_func(log_of_libfuse);
	if (!err)
		daemon->session = fuse_session_new(&args, &operations,
						   sizeof(operations), daemon);
	fuse_opt_free_args(&args);
	return err || daemon->session ? err : -EINVAL;
}
