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

static void guard_fd(int fd, unsigned deadline_ms)
{
	ck_assert_int_eq(ucm_guard_open(fd, "shelf", deadline_ms, &guard), 0);
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
	ck_assert(fx_logged("shelf: answers again"));
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
	ck_assert_int_eq(ucm_guard_open(fd, "other", LONG_MS, &other), 0);
	guard_fd(root, SHORT_MS);
	set_hang("fstat");
	ck_assert_int_eq(ucm_os_fstat(root, &st), -ETIMEDOUT);
	ck_assert_int_eq(ucm_os_stat(root, "other", &st), -ETIMEDOUT);
	ck_assert_int_eq(ucm_os_stat(fd, ".", &st), 0);
	let_go("fstat", root, "");
	ucm_guard_close(other);
	close(fd);
}

#define CALLERS 80 /* more than there are workers */

struct caller {
	pthread_t thread;
	struct ucm_guard *guard;
	int fd, err;
};

static void *call_once(void *arg)
{
	struct caller *caller = arg;
	struct stat st;

	caller->err = ucm_os_fstat(caller->fd, &st);
	return NULL;
}

/* What no worker had taken is not made when one has time again. */
UNIT_TEST(when_all_workers_hang_every_call_times_out)
{
	struct caller callers[CALLERS];
	unsigned taken;

	set_hang("fstat");
	for (unsigned i = 0; i < CALLERS; i++) {
		struct caller *caller = &callers[i];

		caller->fd = fcntl(root, F_DUPFD_CLOEXEC, 0);
		ck_assert_int_eq(ucm_guard_open(caller->fd, "shelf", 1000,
						&caller->guard), 0);
		ck_assert_int_eq(pthread_create(&caller->thread, NULL,
						call_once, caller), 0);
	}
	for (unsigned i = 0; i < CALLERS; i++) {
		pthread_join(callers[i].thread, NULL);
		ck_assert_int_eq(callers[i].err, -ETIMEDOUT);
	}
	taken = tried();
	ck_assert_uint_lt(taken, CALLERS);
	set_hang(NULL);
	guard_fd(root, LONG_MS);
	for (unsigned i = 0; i < CALLERS; i++) {
		must(answers(NULL));
		ucm_guard_close(callers[i].guard); /* late calls have the fd */
	}
	ck_assert_uint_eq(tried(), taken + CALLERS);
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

/* It may take its time. */
UNIT_TEST(a_sync_is_made_by_its_caller)
{
	struct stat st;

	guard_fd(root, LONG_MS);
	ck_assert_int_eq(ucm_os_fstat(root, &st), 0);
	ck_assert(!pthread_equal(hang.last, pthread_self()));
	ck_assert_int_eq(ucm_os_fsync(root), 0);
	ck_assert(pthread_equal(hang.last, pthread_self()));
	ck_assert_int_eq(ucm_os_syncfs(root), 0);
	ck_assert(pthread_equal(hang.last, pthread_self()));
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
