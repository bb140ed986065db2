/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_osguard.c - calls that hang: whoever made them goes on, and what comes
 * too late does no harm.
 *
 * A call hangs in the hook for faults, in the thread that was to make it, until
 * the test lets go of it; then it is made. What has become of it then, only the
 * lines for debugging say.
 */
#include <config.h>

#include "common/osguard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/log.h"
#include "common/osfile.h"
#include "tests/unit/dir_fixture.h"

#define SHORT_MS 100  /* for calls that hang in any case */
#define LONG_MS 60000 /* for those that do not */
#define PAGE 4096

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	const char *call; /* hangs; NULL: none does */
	unsigned tried;   /* calls of any name */
	pthread_t last;   /* who made the last one */
} hang = { .lock = PTHREAD_MUTEX_INITIALIZER,
	   .changed = PTHREAD_COND_INITIALIZER };

static int hang_in(const char *call, const char *path)
{
	(void)path;
	pthread_mutex_lock(&hang.lock);
	hang.tried++;
	hang.last = pthread_self();
	while (hang.call && !strcmp(call, hang.call))
		pthread_cond_wait(&hang.changed, &hang.lock);
	pthread_mutex_unlock(&hang.lock);
	return 0;
}

/* NULL: what hangs goes on, and nothing does from now on. */
static void set_hang(const char *call)
{
	pthread_mutex_lock(&hang.lock);
	hang.call = call;
	pthread_cond_broadcast(&hang.changed);
	pthread_mutex_unlock(&hang.lock);
}

static unsigned tried(void)
{
	unsigned num;

	pthread_mutex_lock(&hang.lock);
	num = hang.tried;
	pthread_mutex_unlock(&hang.lock);
	return num;
}

static int root;
static struct ucm_guard *guard;

static void open_guard(int fd, const char *name, unsigned deadline_ms,
		       struct ucm_guard **out)
{
	ck_assert_int_eq(ucm_guard_new(name, deadline_ms, out), 0);
	ck_assert_int_eq(ucm_guard_set(*out, fd), 0);
}

static void guard_fd(int fd, unsigned deadline_ms)
{
	open_guard(fd, "shelf", deadline_ms, &guard);
}

static void setup(void)
{
	struct ucm_error error;

	fx_setup();
	ck_assert_int_eq(ucm_log_areas_set("os.call=2", &error), 0);
	ucm_os_fault = hang_in;
	root = open(fx_path("$"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(root, 0);
}

static void teardown(void)
{
	set_hang(NULL);
	ucm_guard_close(guard);
	close(root);
	fx_teardown();
}

static bool was_logged(void *arg)
{
	return fx_logged(arg);
}

/* Let go of the call, and wait until it has been made: "NAME of FD PATH". */
static void let_go(const char *name, int fd, const char *path)
{
	char line[128];

	snprintf(line, sizeof(line), "%s of %d %s: ", name, fd, path);
	set_hang(NULL);
	fx_wait(was_logged, line);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- what comes too late ---- */

/* The caller has unmapped its buffer: a read into that would fail. */
UNIT_TEST(a_late_read_leaves_the_callers_memory_alone)
{
	char *buffer = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char bytes[PAGE], done[64];
	int fd;

	ck_assert_ptr_ne(buffer, MAP_FAILED);
	memset(bytes, 'x', sizeof(bytes));
	fx_put(fx_path("$/f"), bytes, sizeof(bytes));
	fd = open(fx_path("$/f"), O_RDONLY | O_CLOEXEC);
	guard_fd(fd, SHORT_MS);
	set_hang("read");
	ck_assert_int_eq(ucm_os_read_at(fd, buffer, PAGE, 0), -ETIMEDOUT);
	ck_assert_int_eq(munmap(buffer, PAGE), 0);
	let_go("read", fd, "");
	snprintf(done, sizeof(done), "read of %d : done", fd);
	ck_assert(fx_logged(done));
	close(fd);
}

/* It writes what it was to write, whatever is there now. */
UNIT_TEST(a_late_write_has_bytes_of_its_own)
{
	char bytes[] = "before", text[16];
	int fd = open(fx_path("$/f"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	guard_fd(fd, SHORT_MS);
	set_hang("write");
	ck_assert_int_eq(ucm_os_write_at(fd, bytes, 6, 0), -ETIMEDOUT);
	memcpy(bytes, "behind", 6);
	let_go("write", fd, "");
	fx_read(fx_path("$/f"), text, sizeof(text));
	ck_assert_str_eq(text, "before");
	close(fd);
}

UNIT_TEST(a_late_call_has_a_path_of_its_own)
{
	char path[] = "before";

	guard_fd(root, SHORT_MS);
	set_hang("mkdir");
	ck_assert_int_eq(ucm_os_mkdir(root, path, 0755), -ETIMEDOUT);
	memcpy(path, "behind", 6);
	let_go("mkdir", root, "before");
	ck_assert(fx_exists(fx_path("$/before")));
	ck_assert(!fx_exists(fx_path("$/behind")));
}

static bool are_as_many(void *arg)
{
	return fx_count("/proc/self/fd") == *(unsigned *)arg;
}

UNIT_TEST(a_late_descriptor_is_closed)
{
	unsigned before = fx_count("/proc/self/fd");

	guard_fd(root, SHORT_MS);
	set_hang("open");
	ck_assert_int_eq(ucm_os_open(root, "f", O_RDWR | O_CREAT, 0644),
			 -ETIMEDOUT);
	let_go("open", root, "f");
	ck_assert(fx_exists(fx_path("$/f"))); /* it was opened */
	fx_wait(are_as_many, &before);
}

UNIT_TEST(a_late_descriptor_of_an_open_file_is_closed)
{
	int fd = open(fx_path("$/f"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	unsigned before = fx_count("/proc/self/fd");

	guard_fd(fd, SHORT_MS);
	set_hang("reopen");
	ck_assert_int_eq(ucm_os_reopen(fd, O_RDONLY), -ETIMEDOUT);
	let_go("reopen", fd, "");
	fx_wait(are_as_many, &before);
	close(fd);
}

/* ---- time-outs ---- */

static bool answers(void *arg)
{
	struct stat st;

	(void)arg;
	return !ucm_os_fstat(root, &st);
}

static bool is_gone(void *caller)
{
	return *(bool *)caller;
}

/* It says nothing of the server, which others go on asking. */
UNIT_TEST(a_call_whose_caller_is_gone_ends_before_the_deadline)
{
	bool gone = true;
	struct stat st;

	guard_fd(root, LONG_MS);
	set_hang("fstat");
	ucm_caller = &gone;
	ucm_caller_is_gone = is_gone;
	ck_assert_int_eq(ucm_os_fstat(root, &st), -EINTR);
	ck_assert(!ucm_guard_is_down(guard, UCM_CALL_READS));
	set_hang(NULL);
	/* what changes something is waited for */
	ck_assert_int_eq(ucm_os_unlink(root, "none"), -ENOENT);
	gone = false;
	fx_wait(answers, NULL);
	ucm_caller_is_gone = NULL;
}

/* One in some seconds tries again, and the others need not wait for it. */
UNIT_TEST(after_a_time_out_calls_fail_at_once_until_one_is_answered)
{
	struct stat st;

	guard_fd(root, 1000);
	set_hang("fstat");
	ck_assert_int_eq(ucm_os_fstat(root, &st), -ETIMEDOUT);
	ck_assert(fx_logged("shelf: no answer in 1000 ms"));
	for (unsigned i = 0; i < 100; i++)
		must(ucm_os_fstat(root, &st) == -ETIMEDOUT);
	ck_assert_uint_eq(tried(), 1);
	set_hang(NULL);
	fx_wait(answers, NULL);
	ck_assert_uint_eq(tried(), 2);
	ck_assert(fx_logged("shelf: answers reads again"));
	for (unsigned i = 0; i < 100; i++)
		must(!ucm_os_fstat(root, &st));
	ck_assert_uint_eq(tried(), 102);
}

UNIT_TEST(one_directory_that_hangs_is_none_of_the_others)
{
	struct ucm_guard *other;
	struct stat st;
	int fd;

	fx_mkdirs(fx_path("$/other"));
	fd = open(fx_path("$/other"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	open_guard(fd, "other", LONG_MS, &other);
	guard_fd(root, SHORT_MS);
	set_hang("fstat");
	ck_assert_int_eq(ucm_os_fstat(root, &st), -ETIMEDOUT);
	ck_assert_int_eq(ucm_os_stat(root, "other", &st), -ETIMEDOUT);
	ck_assert_int_eq(ucm_os_stat(fd, ".", &st), 0);
	let_go("fstat", root, "");
	ucm_guard_close(other);
	close(fd);
}

#define CALLERS 80 /* more than a guard has threads */

struct caller {
	pthread_t thread;
	int fd, err;
};

static void *call_once(void *arg)
{
	struct caller *caller = arg;
	struct stat st;

	caller->err = ucm_os_fstat(caller->fd, &st);
	return NULL;
}

static void call_at_once(struct caller *callers, void *(*fn)(void *arg))
{
	for (unsigned i = 0; i < CALLERS; i++) {
		callers[i].fd = root;
		ck_assert_int_eq(pthread_create(&callers[i].thread, NULL, fn,
						&callers[i]), 0);
	}
}

static void join_timed_out(struct caller *callers)
{
	for (unsigned i = 0; i < CALLERS; i++) {
		pthread_join(callers[i].thread, NULL);
		must(callers[i].err == -ETIMEDOUT);
	}
}

/* What no thread had taken is not made when one has time again. */
UNIT_TEST(when_all_threads_hang_every_call_times_out)
{
	struct caller callers[CALLERS];
	unsigned taken;

	guard_fd(root, 1000);
	set_hang("fstat");
	call_at_once(callers, call_once);
	join_timed_out(callers);
	taken = tried();
	ck_assert_uint_lt(taken, CALLERS);
	set_hang(NULL);
	fx_wait(answers, NULL);
	must(answers(NULL));
	ck_assert_uint_eq(tried(), taken + 2);
}

/* They are all of that directory's. */
UNIT_TEST(when_all_threads_of_one_hang_another_is_served)
{
	struct caller callers[CALLERS];
	struct ucm_guard *other;
	struct stat st;
	int fd;

	fx_mkdirs(fx_path("$/other"));
	fd = open(fx_path("$/other"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	open_guard(fd, "other", LONG_MS, &other);
	guard_fd(root, 1000);
	set_hang("fstat");
	call_at_once(callers, call_once);
	for (unsigned i = 0; i < CALLERS; i++)
		must(!ucm_os_stat(fd, ".", &st));
	join_timed_out(callers);
	for (unsigned i = 0; i < CALLERS; i++)
		must(!ucm_os_stat(fd, ".", &st));
	set_hang(NULL);
	ucm_guard_close(other);
	close(fd);
}

/* ---- who is under guard ---- */

UNIT_TEST(what_is_opened_below_is_under_guard)
{
	int folder, file, memory;

	guard_fd(root, LONG_MS);
	fx_put(fx_path("$/d/f"), "x", 1);
	folder = ucm_os_open(root, "d", O_RDONLY | O_DIRECTORY, 0);
	file = ucm_os_open(folder, "f", O_RDONLY, 0);
	ck_assert_ptr_eq(ucm_guard_of(folder), guard);
	ck_assert_ptr_eq(ucm_guard_of(file), guard);
	close(file);
	memory = ucm_os_memory_file("test"); /* has its number now */
	ck_assert_int_eq(memory, file);
	ck_assert_ptr_null(ucm_guard_of(memory));
	ucm_guard_close(guard);
	guard = NULL;
	ck_assert_ptr_null(ucm_guard_of(folder));
	close(folder);
	close(memory);
}

/* ---- kinds of calls ---- */

UNIT_TEST(where_writes_hang_reads_go_on)
{
	struct stat st;

	guard_fd(root, SHORT_MS);
	set_hang("mkdir");
	ck_assert_int_eq(ucm_os_mkdir(root, "a", 0755), -ETIMEDOUT);
	ck_assert(fx_logged("shelf: no answer in 100 ms: taken as gone for "
			    "writes"));
	for (unsigned i = 0; i < 100; i++)
		must(!ucm_os_fstat(root, &st));
	ck_assert_int_eq(ucm_os_rmdir(root, "b"), -ETIMEDOUT); /* at once */
	ck_assert(ucm_guard_is_down(guard, UCM_CALL_WRITES));
	ck_assert(!ucm_guard_is_down(guard, UCM_CALL_READS));
	let_go("mkdir", root, "a");
}

/* More writers than there are threads for writes. */
static void *make_folder(void *arg)
{
	struct caller *caller = arg;

	caller->err = ucm_os_mkdir(caller->fd, "a", 0755);
	return NULL;
}

UNIT_TEST(many_writes_that_hang_leave_threads_to_reads)
{
	struct caller callers[CALLERS];
	struct stat st;

	guard_fd(root, 1000);
	set_hang("mkdir");
	call_at_once(callers, make_folder);
	for (unsigned i = 0; i < CALLERS; i++)
		must(!ucm_os_fstat(root, &st));
	join_timed_out(callers);
}

/* It may take longer, and not for ever. */
UNIT_TEST(a_sync_has_a_deadline_too)
{
	struct stat st;

	guard_fd(root, SHORT_MS);
	ck_assert_int_eq(ucm_os_fsync(root), 0);
	ck_assert(!pthread_equal(hang.last, pthread_self()));
	set_hang("syncfs");
	ck_assert_int_eq(ucm_os_syncfs(root), -ETIMEDOUT);
	ck_assert(fx_logged("shelf: no answer in 400 ms: taken as gone for "
			    "syncs"));
	ck_assert_int_eq(ucm_os_fstat(root, &st), 0);
	let_go("syncfs", root, "");
}

/* Nobody waits for a close, and the number is free when it has been made. */
UNIT_TEST(a_close_that_hangs_keeps_nobody_waiting)
{
	unsigned before = fx_count("/proc/self/fd");
	struct stat st;
	int fds[CALLERS];

	guard_fd(root, LONG_MS);
	for (unsigned i = 0; i < CALLERS; i++)
		fds[i] = ucm_os_open(root, "f", O_RDWR | O_CREAT, 0644);
	set_hang("close");
	for (unsigned i = 0; i < CALLERS; i++)
		ucm_os_close(fds[i]);
	ck_assert_int_eq(ucm_os_fstat(root, &st), 0);
	ck_assert(!ucm_guard_is_down(guard, UCM_CALL_CLOSES));
	ck_assert_uint_eq(fx_count("/proc/self/fd"), before + CALLERS);
	set_hang(NULL);
	fx_wait(are_as_many, &before);
	ck_assert_ptr_null(ucm_guard_of(fds[0]));
}

UNIT_TEST(a_path_that_hangs_is_given_up)
{
	char *path;

	ck_assert_int_eq(ucm_guard_new("shelf", SHORT_MS, &guard), 0);
	set_hang("real path");
	ck_assert_int_eq(ucm_os_real_path(guard, fx_path("$"), &path),
			 -ETIMEDOUT);
	ck_assert_ptr_null(path);
	set_hang(NULL);
}

UNIT_TEST(what_is_opened_by_its_path_is_under_guard)
{
	char *path;
	int fd;

	ck_assert_int_eq(ucm_guard_new("shelf", LONG_MS, &guard), 0);
	ck_assert_int_eq(ucm_os_real_path(guard, fx_path("$/."), &path), 0);
	ck_assert_str_eq(path, fx_path("$"));
	fd = ucm_os_open_root(guard, path);
	ck_assert_int_ge(fd, 0);
	ck_assert_ptr_eq(ucm_guard_of(fd), guard);
	free(path);
	ucm_os_close(fd);
	ck_assert_int_eq(ucm_os_open_root(guard, fx_path("$/none")), -ENOENT);
}

/* ---- threads that must not wait ---- */

UNIT_TEST(a_thread_that_must_not_wait_is_reported)
{
	struct stat st;

	ucm_must_not_wait = true;
	ck_assert_int_eq(ucm_os_fstat(root, &st), 0); /* under no guard */
	ck_assert(!fx_logged("made by a thread"));
	ck_assert_int_eq(ucm_os_fdatasync(root), 0);
	ck_assert(fx_logged("fdatasync: made by a thread"));
	guard_fd(root, LONG_MS);
	ck_assert_int_eq(ucm_os_fstat(root, &st), 0);
	ck_assert(fx_logged("fstat: made by a thread"));
	ucm_must_not_wait = false;
}

static void ask_again(void *arg)
{
	ck_assert(answers(arg));
}

/* When it is forked for the second time, our own have nothing to do. */
UNIT_TEST(a_child_has_workers_of_its_own)
{
#ifdef __SANITIZE_THREAD__
	unit_skip("workers of a child: TSAN starts no thread after a fork");
	return;
#endif
	guard_fd(root, LONG_MS);
	ck_assert(answers(NULL));
	for (unsigned i = 0; i < 2; i++)
		fx_in_child(ask_again, NULL);
}
