/* SPDX-License-Identifier: Apache-2.0 */
/*
 * first_write.c - .ucmfs/first-write, and the first write to a mount: our own.
 *
 * With passthrough, a write that nobody waits for (io_uring's, AIO's) ends in a
 * workqueue of the kernel's. Each mount has one, which is made when the first of
 * these writes comes. But Linux (seen in 6.18; sb_init_dio_done_wq()) lets every
 * write that finds none make one: with a thread of its own, one after another
 * under a lock of the whole machine. The first that is ready is kept, the others
 * are thrown away. So a loader's first save made as many threads as it has
 * blocks; and where all processors are busy a new thread may wait for its first
 * turn for a long time. Then the save has waited for seconds, or until its
 * deadline, while loader, daemon and disk had nothing to do.
 *
 * So we make one such write as soon as the mount is served, when nobody else
 * writes yet: a byte, into memory that the kernel takes for a backing file. It
 * is AIO's, which needs nothing but system calls. A thread does it, for which
 * nobody waits. Where something fails nothing is lost but the time above.
 *
 * A daemon that asks its own mount must not be kept by it:
 *
 *	by us      The thread's requests are answered by our loop, or by the
 *	           end of the connection, which comes when its descriptors are
 *	           closed. If we are killed that is after the last thread that
 *	           has them; and this one waits for the answer. So it has
 *	           descriptors of its own (CLOSE_RANGE_UNSHARE), and none of
 *	           those.
 *	umount(8)  would find the mount busy. So the file is opened in a clone of
 *	           the mount, which no path leads to.
 *
 * Not with requests over io_uring: if the daemon is killed there, Linux (seen in
 * 6.18) may leave a request that waits for one of the rings without an answer for
 * ever, also when the last descriptor of the connection is closed.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/mount.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/crew.h"
#include "common/osfile.h"
#include "hashing/tree.h"

struct ucm_first_write {
	struct ucm_job job;
	struct ucm_crew *crew;
	char *mountpoint;
	int fd; /* of the memory */
};

/* ---- the write ---- */

/* This thread has descriptors of its own from here on, and none yet. */
static bool leave_descriptors(void)
{
	return !close_range(0, ~0U, CLOSE_RANGE_UNSHARE);
}

static int first_write_open(const char *mountpoint)
{
	_cleanup_fd_ int clone =
		(int)syscall(SYS_open_tree, AT_FDCWD, mountpoint,
			     OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	int fd = clone < 0 ? -1
			   : openat(clone, UCM_TREE_FIRST_WRITE,
				    O_WRONLY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static void first_write_wait(aio_context_t context)
{
	struct io_event event;

	while (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) < 0 &&
	       errno == EINTR)
		;
}

static void first_write_by_aio(int fd)
{
	const char byte = 1;
	struct iocb write = {
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_fildes = (uint32_t)fd,
		.aio_buf = (uintptr_t)&byte,
		.aio_nbytes = sizeof(byte),
	};
	struct iocb *writes[] = { &write };
	aio_context_t context = 0;

	if (syscall(SYS_io_setup, 1, &context))
		return;
	if (syscall(SYS_io_submit, context, 1, writes) == 1)
		first_write_wait(context);
	syscall(SYS_io_destroy, context);
}

/* What becomes of it nobody has to know; and the log is not open here. */
static void first_write_run(struct ucm_job *job)
{
	const struct ucm_first_write *first = (struct ucm_first_write *)job;
	_cleanup_fd_ int fd = -1;

	if (!leave_descriptors())
		return;
	fd = first_write_open(first->mountpoint);
	if (fd >= 0)
		first_write_by_aio(fd);
}

/* ---- from its start to its end ---- */

static void first_write_begin(struct ucm_first_write *first)
{
	if (first->fd < 0 || !first->mountpoint ||
	    ucm_crew_open("ucm-first", 1, &first->crew))
		return;
	first->job.run = first_write_run;
	ucm_crew_add(first->crew, &first->job);
}

void ucm_first_write_start(struct ucm_daemon *daemon)
{
	struct ucm_first_write *first;

	/* without passthrough there is no need of it */
	if (!atomic_load(&daemon->passthrough) || daemon->uring)
		return;
	first = calloc(1, sizeof(*first));
	if (!first)
		return;
	first->mountpoint = strdup(daemon->mountpoint);
	first->fd = ucm_os_memory_of("ucmfs-first-write", 1);
	daemon->first_write = first;
	first_write_begin(first);
}

bool ucm_first_write_stop(struct ucm_daemon *daemon, unsigned wait_ms)
{
	struct ucm_first_write *first = daemon->first_write;

	return !first || ucm_crew_close(first->crew, wait_ms);
}

void ucm_first_write_fini(struct ucm_daemon *daemon)
{
	struct ucm_first_write *first = daemon->first_write;

	if (!first)
		return;
	if (first->fd >= 0)
		ucm_os_close(first->fd);
	free(first->mountpoint);
	free(first);
}

int ucm_first_write_memory(const struct ucm_daemon *daemon)
{
	return daemon->first_write ? daemon->first_write->fd : -1;
}
