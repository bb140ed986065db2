/* SPDX-License-Identifier: Apache-2.0 */
/* test_lock.c - who uses a directory, and who waits for whom. */
#include <config.h>

#include "fs/tier/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "tests/unit/child.h"
#include "tests/unit/dir_fixture.h"

static struct ucm_error error;
static int ctl, held;

static void setup(void)
{
	fx_setup();
	fx_mkdirs(fx_path("$/ctl"));
	ctl = open(fx_path("$/ctl"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(ctl, 0);
	held = ucm_lock_take(ctl, "dir", 0, &error);
	ck_assert_int_ge(held, 0);
}

static void teardown(void)
{
	if (held >= 0)
		close(held);
	close(ctl);
	fx_teardown();
}

static int take(unsigned wait_s)
{
	int fd = ucm_lock_take(ctl, "dir", wait_s, &error);

	if (fd >= 0)
		close(fd);
	return fd < 0 ? fd : 0;
}

/* A device that is mounted where we are: the root's. */
static dev_t mounted_device(void)
{
	struct stat st;

	ck_assert_int_eq(stat("/proc/self", &st), 0);
	return st.st_dev;
}

static void say(const char *text)
{
	ck_assert_int_eq(ftruncate(held, 0), 0);
	ck_assert_int_eq(pwrite(held, text, strlen(text), 0),
			 (ssize_t)strlen(text));
}

/* The test itself has it. */
static const char *in_use_by_us(void)
{
	static char text[96];
	char name[32] = "";
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t len = read(fd, name, sizeof(name) - 1);

	ck_assert_int_gt(len, 0);
	close(fd);
	name[len - 1] = '\0';
	snprintf(text, sizeof(text),
		 "dir: in use by another ucmfs (process %d, %s)", (int)getpid(),
		 name);
	return text;
}

static void must_be_refused_at_once(const char *why)
{
	int64_t before = ucm_monotonic_ms();

	ck_assert_int_eq(take(60), -EBUSY);
	ck_assert_int_lt(ucm_monotonic_ms() - before, 30000);
	ck_assert_str_eq(error.text, why);
	ck_assert(!fx_logged("waiting"));
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(one_that_starts_or_serves_is_not_waited_for)
{
	must_be_refused_at_once(in_use_by_us());
	ucm_lock_tell(held, UCM_LOCK_SERVING, mounted_device());
	must_be_refused_at_once(in_use_by_us());
}

/* Of an older version, of another mount namespace, and whatever else. */
static const char *const sayings[] = {
	"", "\n", "x", "serving", "serving 1 0:0 0", "serving 0 4000:4000 0",
	"serving 1 4000:4000 0", "serving -1 -1:-1 -1", "\xff\xff\xff",
	"endin", "serving 1 0:0 0 1", "starting 1 0:0 0 1 1",
	"starting 1 0:0 0 -1 0", "starting 1 0:0 0 x 1",
};

UNIT_TEST(what_cannot_be_understood_is_not_waited_for,
	  .rows = NUM_ROWS(sayings))
{
	say(sayings[_i]);
	must_be_refused_at_once("dir: in use by another ucmfs");
}

static void *let_go(void *arg)
{
	(void)arg;
	while (!fx_logged("dir: waiting for another ucmfs to end"))
		usleep(1000);
	close(held);
	held = -1;
	return NULL;
}

static void must_be_waited_for(void)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, let_go, NULL), 0);
	ck_assert_int_eq(take(60), 0);
	pthread_join(thread, NULL);
}

UNIT_TEST(one_that_is_ending_is_waited_for)
{
	ucm_lock_tell(held, UCM_LOCK_ENDING, 0);
	must_be_waited_for();
}

UNIT_TEST(one_whose_mount_is_gone_is_waited_for)
{
	ucm_lock_tell(held, UCM_LOCK_SERVING, makedev(4000, 1000000));
	must_be_waited_for();
}

/* Numbers of devices are soon used again. */
UNIT_TEST(another_mount_of_its_device_number_is_not_its_own)
{
	char text[65] = "";
	unsigned long long where;
	unsigned a, b, place;

	ucm_lock_tell(held, UCM_LOCK_SERVING, mounted_device());
	ck_assert_int_gt(pread(held, text, 64, 0), 0);
	ck_assert_int_eq(sscanf(text, "serving %llu %u:%u %x", &where, &a, &b,
				&place), 4);
	ck_assert_uint_ne(place, 0);
	snprintf(text, sizeof(text), "serving %llu %u:%u %x", where, a, b,
		 place ^ 1);
	say(text);
	must_be_waited_for();
}

UNIT_TEST(the_wait_is_bounded)
{
	int64_t before = ucm_monotonic_ms();

	ucm_lock_tell(held, UCM_LOCK_ENDING, 0);
	ck_assert_int_eq(take(0), -EBUSY);
	ck_assert(!fx_logged("waiting"));
	ck_assert_int_eq(take(1), -EBUSY);
	ck_assert_int_ge(ucm_monotonic_ms() - before, 1000);
	ck_assert_ptr_nonnull(strstr(error.text, in_use_by_us()));
	ck_assert_ptr_nonnull(strstr(error.text, "), which is ending"));
}

UNIT_TEST(one_that_ends_between_two_looks_is_no_user)
{
	close(held);
	held = -1;
	fx_fail("lock", 1, -EAGAIN, true);
	ck_assert_int_eq(take(0), 0);
}

static const struct { int err, want; const char *says; } errors[] = {
	{ -EAGAIN, -EBUSY, NULL },
	{ -EACCES, -EBUSY, NULL },
	{ -ENOLCK, -ENOLCK, "dir: .ucmfs/lock: No locks available" },
	{ -EOPNOTSUPP, -EOPNOTSUPP,
	  "dir: .ucmfs/lock: Operation not supported" },
	{ -EIO, -EIO, "dir: .ucmfs/lock: Input/output error" },
};

UNIT_TEST(in_use_is_said_only_of_what_is_in_use, .rows = NUM_ROWS(errors))
{
	fx_fail("lock", 1, errors[_i].err, false);
	ck_assert_int_eq(take(0), errors[_i].want);
	ck_assert_str_eq(error.text, errors[_i].says ? errors[_i].says
						     : in_use_by_us());
}

/* A full directory is to be used, and emptied. */
UNIT_TEST(a_lock_in_which_nothing_can_be_written_is_one)
{
	close(held);
	fx_fail("write", 1, -ENOSPC, false);
	held = ucm_lock_take(ctl, "dir", 0, &error);
	ck_assert_int_ge(held, 0);
	ucm_lock_tell(held, UCM_LOCK_ENDING, 0);
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(take(0), -EBUSY);
	ucm_lock_tell(-1, UCM_LOCK_ENDING, 0); /* harmless */
}

/* ---- savers ---- */

static int join(uint32_t instance)
{
	return ucm_lock_join(ctl, "dir", 0, instance, &error);
}

/* Nobody has it for itself. */
static void give_up(void)
{
	close(held);
	held = -1;
}

static void nothing(int fd)
{
	(void)fd;
}

struct joining {
	uint32_t instance;
	void (*then)(int fd);
};

static bool has_joined(void *arg)
{
	const struct joining *joining = arg;
	int fd = join(joining->instance);

	if (fd >= 0)
		joining->then(fd);
	return fd >= 0;
}

/* Another process that has joined. */
static pid_t saver(uint32_t instance, void (*then)(int fd))
{
	struct joining joining = { instance, then };

	return child_start(has_joined, &joining);
}

UNIT_TEST(savers_are_let_in_together)
{
	int fds[3];

	give_up();
	for (unsigned i = 0; i < 3; i++) {
		fds[i] = join(i);
		ck_assert_int_ge(fds[i], 0);
	}
	for (unsigned i = 0; i < 3; i++)
		close(fds[i]);
	ck_assert_int_eq(take(0), 0);
}

UNIT_TEST(a_saver_is_refused_beside_who_has_it_for_itself)
{
	ck_assert_int_eq(join(1), -EBUSY);
	ck_assert_str_eq(error.text, in_use_by_us());
}

/* Who ends is waited for by whoever it is. */
UNIT_TEST(a_saver_waits_as_others_do)
{
	pthread_t thread;
	int fd;

	ucm_lock_tell(held, UCM_LOCK_ENDING, 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, let_go, NULL), 0);
	fd = ucm_lock_join(ctl, "dir", 60, 1, &error);
	pthread_join(thread, NULL);
	ck_assert_int_ge(fd, 0);
	close(fd);
}

UNIT_TEST(who_finds_savers_is_told_which)
{
	char both[96], more[96];
	pid_t pids[6];

	ucm_lock_tell(held, UCM_LOCK_ENDING, 0); /* of old: nobody waits for it */
	give_up();
	for (unsigned i = 0; i < 2; i++)
		pids[i] = saver(i, nothing);
	ck_assert_int_eq(take(60), -EBUSY);
	snprintf(both, sizeof(both), "another ucmfs (process %d, ", pids[0]);
	ck_assert_ptr_nonnull(strstr(error.text, both));
	snprintf(both, sizeof(both), "; process %d, ", pids[1]);
	ck_assert_ptr_nonnull(strstr(error.text, both));
	ck_assert(!strstr(error.text, "ending"));
	for (unsigned i = 2; i < 6; i++)
		pids[i] = saver(i, nothing);
	ck_assert_int_eq(take(0), -EBUSY);
	snprintf(more, sizeof(more), "; and 2 more)");
	ck_assert_ptr_nonnull(strstr(error.text, more));
	for (unsigned i = 0; i < 6; i++)
		child_kill(pids[i]);
	ck_assert_int_eq(take(0), 0);
}

UNIT_TEST(an_instance_lives_as_long_as_its_process)
{
	pid_t early, late;
	struct stat st;
	int fd;

	give_up();
	early = saver(0xabc, nothing);
	fd = join(1);
	late = saver(0xfffffff0, nothing);
	ck_assert(!ucm_lock_is_alone(fd));
	ck_assert(ucm_lock_is_savers(fd, 0xabc));
	ck_assert(ucm_lock_is_savers(fd, 0xfffffff0));
	ck_assert(!ucm_lock_is_savers(fd, 2));
	child_kill(early);
	ck_assert(!ucm_lock_is_savers(fd, 0xabc)); /* though its line is there */
	ck_assert(ucm_lock_is_savers(fd, 0xfffffff0));
	early = saver(0xdef, nothing); /* in that line */
	ck_assert(ucm_lock_is_savers(fd, 0xdef));
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_int_eq(st.st_size, 4 * 64);
	child_kill(early);
	child_kill(late);
	ck_assert(ucm_lock_is_alone(fd));
	close(fd);
}

/* Of a later version, perhaps. */
UNIT_TEST(whose_line_cannot_be_read_may_be_anybody)
{
	pid_t pid;
	int fd;

	give_up();
	pid = saver(1, nothing);
	fd = join(2);
	ck_assert_int_eq(pwrite(fd, "saving x", 9, 64), 9);
	ck_assert(ucm_lock_is_savers(fd, 77));
	child_kill(pid);
	ck_assert(!ucm_lock_is_savers(fd, 77));
	close(fd);
}

static void enter(int fd)
{
	if (ucm_lock_enter(fd))
		_exit(1);
}

static void *kill_inside(void *pid)
{
	kill(*(pid_t *)pid, SIGKILL);
	return NULL;
}

UNIT_TEST(one_is_inside_at_a_time)
{
	pthread_t thread;
	pid_t pid;
	int fd;

	give_up();
	pid = saver(1, enter);
	fd = join(2); /* which does not wait */
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ucm_os_lock(fd, 0, 1), -EAGAIN);
	ck_assert_int_eq(take(0), -EBUSY);
	ck_assert_int_eq(pthread_create(&thread, NULL, kill_inside, &pid), 0);
	ck_assert_int_eq(ucm_lock_enter(fd), 0);
	pthread_join(thread, NULL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ucm_lock_leave(fd);
	pid = saver(1, enter);
	child_kill(pid);
	close(fd);
}

/* Others would take its unfinished files for nobody's. */
UNIT_TEST(a_saver_that_cannot_say_who_it_is_is_none)
{
	give_up();
	fx_fail("write", 1, -ENOSPC, true);
	ck_assert_int_eq(join(1), -ENOSPC);
	ck_assert_str_eq(error.text,
			 "dir: .ucmfs/lock: No space left on device");
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(take(0), 0);
}
