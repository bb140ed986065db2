/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.c - "HOST-BOOT-INSTANCE-0 PID NAMESPACE SINCE HOSTNAME"; see owner.h.
 *
 * An NFS client answers from what it knows of a folder for up to a minute; so the
 * folder and the file are asked for at each look. O_EXCL is decided by the server.
 *
 * Of two that find a dead owner at once, one may remove what the other has just
 * made. So who has waited looks once more a moment later; and one that was even
 * faster finds it out by its next beat.
 */
#include <config.h>

#include "fs/medium/dir/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/process.h"

#define OWNER "owner"
#define TEXT_BYTES 192
#define LOOKS 10 /* of five beats none is seen: it is dead */

unsigned ucm_owner_look_ms = UCM_OWNER_BEAT_MS / 2;

void ucm_owner_init(struct ucm_owner *me, const struct ucm_temp_maker *self,
		    int64_t now_ns)
{
	struct utsname name = { .nodename = "" };

	*me = (struct ucm_owner){
		.pid = (int)getpid(),
		.pids = ucm_process_namespace(),
		.since_s = now_ns / 1000000000,
	};
	ucm_temp_name(self, 0, me->start);
	uname(&name);
	snprintf(me->host, sizeof(me->host), "%s",
		 *name.nodename ? name.nodename : "?");
}

struct ucm_owner_text ucm_owner_describe(const struct ucm_owner *owner)
{
	struct ucm_owner_text out;
	time_t since = (time_t)owner->since_s;
	char when[32] = "?";
	struct tm tm;

	if (localtime_r(&since, &tm))
		strftime(when, sizeof(when), "%F %T", &tm);
	if (*owner->start)
		snprintf(out.text, sizeof(out.text),
			 "host %s, process %d, since %s", owner->host,
			 owner->pid, when);
	else
		snprintf(out.text, sizeof(out.text), "it has not said which");
	return out;
}

/* A descriptor of its file, and what that says. */
static int owner_open(int ctldir, int flags, struct ucm_owner *out)
{
	char text[TEXT_BYTES + 1] = "";
	struct stat st;
	int err = ucm_os_refresh(ctldir), fd;
	ssize_t got;

	fd = err ? err : ucm_os_open_regular(ctldir, OWNER, flags, &st);
	if (fd < 0)
		return fd;
	err = ucm_os_refresh(fd); /* what was learned at the open may be older */
	if (!err)
		err = ucm_os_fstat(fd, &st);
	got = err ? err : ucm_os_read_at(fd, text, TEXT_BYTES, 0);
	if (got < 0) {
		ucm_os_close(fd);
		return (int)got;
	}
	*out = (struct ucm_owner){ .beat_ns = ucm_time_ns(&st.st_mtim) };
	if (sscanf(text, "%47s %d %llu %" SCNd64 " %64s", out->start, &out->pid,
		   &out->pids, &out->since_s, out->host) != 5)
		*out->start = '\0';
	return fd;
}

int ucm_owner_read(int ctldir, struct ucm_owner *out)
{
	_cleanup_fd_ int fd = owner_open(ctldir, O_RDONLY, out);

	return fd < 0 ? fd : 0;
}

static int owner_make(const struct ucm_owner *me, int ctldir)
{
	_cleanup_fd_ int fd = ucm_os_open(ctldir, OWNER,
					  O_WRONLY | O_CREAT | O_EXCL, 0644);
	char text[TEXT_BYTES];
	int len, err;

	if (fd < 0)
		return fd;
	len = snprintf(text, sizeof(text), "%s %d %llu %" PRId64 " %s\n",
		       me->start, me->pid, me->pids, me->since_s, me->host);
	err = ucm_os_write_at(fd, text, (size_t)len, 0);
	if (!err)
		err = ucm_os_fsync(fd);
	if (err)
		ucm_os_unlink(ctldir, OWNER);
	return err;
}

/* Without waiting for a beat: its machine was started again since, or it is a
 * process of this one that is not there. */
static bool is_gone(const struct ucm_owner *owner,
		    const struct ucm_temp_maker *self, int64_t now_s)
{
	unsigned host, boot;

	if (ucm_temp_is_over(self, owner->start,
			     now_s - owner->beat_ns / 1000000000))
		return true;
	return sscanf(owner->start, "%8x-%8x", &host, &boot) == 2 &&
	       host == self->host && boot && boot == self->boot &&
	       owner->pids && owner->pids == ucm_process_namespace() &&
	       kill(owner->pid, 0) && errno == ESRCH;
}

static void wait_a_look(void)
{
	const struct timespec time = {
		.tv_sec = ucm_owner_look_ms / 1000,
		.tv_nsec = ucm_owner_look_ms % 1000 * 1000000,
	};

	nanosleep(&time, NULL);
}

/* One that is in the way, and what was seen of it. */
struct rival {
	struct ucm_owner last;
	unsigned looks;  /* at which nothing had changed; the first counts */
	unsigned beats;
};

/* 0: its file is away; -EAGAIN: that is to be seen; -EBUSY: it lives. A single beat
 * may be the last of one that ends. */
static int rival_remove(struct rival *rival, const struct ucm_owner *me,
			const struct ucm_temp_maker *self, int ctldir,
			const char *path)
{
	int64_t beat_ns = rival->last.beat_ns;
	int err = ucm_owner_read(ctldir, &rival->last);

	if (err)
		return err == -ENOENT && ++rival->looks < LOOKS ? -EAGAIN : err;
	if (rival->looks++ && rival->last.beat_ns != beat_ns) {
		rival->looks = 1;
		return ++rival->beats > 1 ? -EBUSY : -EAGAIN;
	}
	if (rival->looks <= LOOKS && !is_gone(&rival->last, self, me->since_s)) {
		if (rival->looks == 1)
			ucm_info("%s: waiting whether another ucmfs uses it: "
				 "%s",
				 path, ucm_owner_describe(&rival->last).text);
		return -EAGAIN;
	}
	ucm_warning("%s: taken over from an ucmfs that is gone: %s", path,
		    ucm_owner_describe(&rival->last).text);
	err = ucm_os_unlink(ctldir, OWNER);
	return err == -ENOENT ? 0 : err;
}

int ucm_owner_take(const struct ucm_owner *me,
		   const struct ucm_temp_maker *self, int ctldir,
		   const char *path, struct ucm_error *error)
{
	struct rival rival = { .looks = 0 };
	bool waited = false;
	int err;

	while ((err = owner_make(me, ctldir)) == -EEXIST) {
		err = rival_remove(&rival, me, self, ctldir, path);
		if (err && err != -EAGAIN)
			break;
		if (err)
			wait_a_look();
		waited |= err;
	}
	if (!err && waited) {
		wait_a_look();
		err = ucm_owner_beat(me, ctldir, &rival.last);
	}
	if (err == -EBUSY)
		return ucm_error_set(error, err,
				     "%s: in use by another ucmfs: %s", path,
				     ucm_owner_describe(&rival.last).text);
	return err ? ucm_error_set(error, err, "%s: .ucmfs/" OWNER ": %s",
				   path, strerror(-err))
		   : 0;
}

/* If it was removed, perhaps by one that takes it over right now, the first to
 * make it is its owner. */
static int owner_open_own(const struct ucm_owner *me, int ctldir,
			  struct ucm_owner *other)
{
	int fd = owner_open(ctldir, O_RDWR, other), err;

	if (fd == -ENOENT) {
		err = owner_make(me, ctldir);
		fd = err ? err : owner_open(ctldir, O_RDWR, other);
	}
	if (fd < 0 || !strcmp(other->start, me->start))
		return fd;
	ucm_os_close(fd);
	return -EBUSY;
}

int ucm_owner_check(const struct ucm_owner *me, int ctldir,
		    struct ucm_owner *other)
{
	_cleanup_fd_ int fd = owner_open_own(me, ctldir, other);

	return fd < 0 ? fd : 0;
}

int ucm_owner_beat(const struct ucm_owner *me, int ctldir,
		   struct ucm_owner *other)
{
	_cleanup_fd_ int fd = owner_open_own(me, ctldir, other);

	return fd < 0 ? fd : ucm_os_utimens(fd, NULL);
}

void ucm_owner_leave(const struct ucm_owner *me, int ctldir)
{
	struct ucm_owner seen;

	if (me->pid == (int)getpid() && !ucm_owner_read(ctldir, &seen) &&
	    !strcmp(seen.start, me->start))
		ucm_os_unlink(ctldir, OWNER);
}
