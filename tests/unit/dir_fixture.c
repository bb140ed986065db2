/* SPDX-License-Identifier: Apache-2.0 */
/* dir_fixture.c - see dir_fixture.h. */
#include <config.h>

#include "tests/unit/dir_fixture.h"
#include "tests/unit/medium_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "common/osfile.h"

static char program_dir[4000], test_dir[4050];

/* ---- directories ---- */

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void remove_tree(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void fx_use_memory(void)
{
	struct statfs st;

	if (!statfs("/dev/shm", &st) && st.f_type == TMPFS_MAGIC &&
	    !access("/dev/shm", W_OK))
		setenv("TMPDIR", "/dev/shm", 0);
}

static void make_program_dir(void)
{
	const char *base = getenv("TMPDIR");

	snprintf(program_dir, sizeof(program_dir), "%s/ucm-unit-XXXXXX",
		 base && *base ? base : "/tmp");
	if (mkdtemp(program_dir))
		return;
	perror(program_dir);
	exit(EXIT_FAILURE);
}

static void remove_program_dir(void)
{
	remove_tree(program_dir);
}

UNIT_PROGRAM(.begin = make_program_dir, .end = remove_program_dir);

/* ---- the log ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[65536];
static size_t log_len;

static void keep_log(enum ucm_log_level level, const char *line)
{
	size_t len = strlen(line);

	(void)level;
	pthread_mutex_lock(&log_lock);
	if (log_len + len + 2 < sizeof(log_text)) {
		memcpy(log_text + log_len, line, len);
		log_len += len;
		log_text[log_len++] = '\n';
		log_text[log_len] = '\0';
	}
	pthread_mutex_unlock(&log_lock);
}

bool fx_logged(const char *text)
{
	bool found;

	pthread_mutex_lock(&log_lock);
	found = strstr(log_text, text) != NULL;
	pthread_mutex_unlock(&log_lock);
	return found;
}

void fx_print_log(void)
{
	fputs(log_text, stderr);
}

void fx_clear_log(void)
{
	pthread_mutex_lock(&log_lock);
	log_len = 0;
	log_text[0] = '\0';
	pthread_mutex_unlock(&log_lock);
}

/* ---- faults ---- */

static struct {
	pthread_mutex_t lock;
	const char *call; /* NULL: any */
	char part[256];   /* of the path; "": any */
	unsigned nth;     /* 0: none */
	int err;
	bool only_once;
	_Atomic unsigned seen;
	_Atomic(const char *) failed;
} failing = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool must_fail(const char *call, const char *path)
{
	unsigned seen;

	if (!failing.nth || (failing.call && strcmp(call, failing.call)) ||
	    (failing.part[0] && (!path || !strstr(path, failing.part))))
		return false;
	seen = atomic_fetch_add(&failing.seen, 1) + 1;
	return seen == failing.nth || (seen > failing.nth && !failing.only_once);
}

static int maybe_fail(const char *call, const char *path)
{
	int err = 0;

	pthread_mutex_lock(&failing.lock);
	if (must_fail(call, path)) {
		atomic_store(&failing.failed, call);
		err = failing.err;
	}
	pthread_mutex_unlock(&failing.lock);
	return err;
}

void fx_fail(const char *call, unsigned nth, int err, bool only_once)
{
	fx_fail_on(call, "", nth, err, only_once);
}

void fx_fail_on(const char *call, const char *part_of_path, unsigned nth,
		int err, bool only_once)
{
	pthread_mutex_lock(&failing.lock);
	snprintf(failing.part, sizeof(failing.part), "%s", part_of_path);
	failing.call = call;
	failing.err = err;
	failing.only_once = only_once;
	atomic_store(&failing.seen, 0);
	atomic_store(&failing.failed, NULL);
	failing.nth = nth;
	pthread_mutex_unlock(&failing.lock);
}

unsigned fx_calls(void)
{
	return atomic_load(&failing.seen);
}

const char *fx_failed_call(void)
{
	return atomic_load(&failing.failed);
}

/* ---- setting up ---- */

static void (*at_end[8])(void);
static unsigned num_at_end;

void fx_at_end(void (*fn)(void))
{
	for (unsigned i = 0; i < num_at_end; i++) {
		if (at_end[i] == fn)
			return;
	}
	ck_assert_uint_lt(num_at_end, NUM_ROWS(at_end));
	at_end[num_at_end++] = fn;
}

void fx_setup(void)
{
	snprintf(test_dir, sizeof(test_dir), "%s/t-XXXXXX", program_dir);
	ck_assert_ptr_nonnull(mkdtemp(test_dir));
	fx_clear_log();
	ucm_log_set(keep_log, UCM_LOG_INFO);
	fx_fail(NULL, 0, 0, false);
	ucm_os_fault = maybe_fail;
	if (fx_begin_tree)
		fx_begin_tree();
}

void fx_teardown(void)
{
	while (num_at_end)
		at_end[--num_at_end]();
	ucm_os_fault = NULL;
	remove_tree(test_dir);
}

/* ---- paths and files ---- */

static void expand(const char *text, char *out, size_t size)
{
	size_t at = 0;

	for (; *text && at + 1 < size; text++) {
		if (*text == '$')
			at += (size_t)snprintf(out + at, size - at, "%s",
					       test_dir);
		else
			out[at++] = *text;
		ck_assert_uint_lt(at, size);
	}
	out[at] = '\0';
}

const char *fx_path(const char *format, ...)
{
	static char paths[16][8192];
	static unsigned turn;
	char text[4096];
	char *out = paths[turn++ % 16];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	expand(text, out, sizeof(paths[0]));
	return out;
}

void fx_mkdirs(const char *path)
{
	char part[8192];

	snprintf(part, sizeof(part), "%s", path);
	for (char *slash = part + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		fx_mkdir(part, 0755);
		*slash = '/';
	}
	fx_mkdir(part, 0755);
	ck_assert_msg(fx_exists(path), "%s: %s", path, strerror(errno));
}

void fx_put(const char *path, const void *bytes, size_t len)
{
	char folder[8192];
	int number;

	snprintf(folder, sizeof(folder), "%s", path);
	*strrchr(folder, '/') = '\0';
	fx_mkdirs(folder);
	number = fx_open_path(path, O_WRONLY | O_CREAT | O_TRUNC);
	ck_assert_msg(number >= 0, "%s: %s", path, strerror(errno));
	ck_assert_int_eq(fx_pwrite(number, bytes, len, 0), (ssize_t)len);
	fx_close_file(number);
}

bool fx_exists(const char *path)
{
	struct stat st;

	return fx_stat(path, &st) == 0;
}

void fx_read(const char *path, char *text, size_t size)
{
	int number = fx_open_path(path, O_RDONLY);
	ssize_t got;

	ck_assert_msg(number >= 0, "%s: %s", path, strerror(errno));
	got = fx_pread(number, text, size - 1, 0);
	ck_assert_int_ge(got, 0);
	text[got] = '\0';
	fx_close_file(number);
}

struct counting {
	size_t skip; /* of a path, up to the name in the folder */
	unsigned num;
};

static int count_one(void *arg, const char *path)
{
	struct counting *counting = arg;

	counting->num += !strchr(path + counting->skip, '/');
	return 0;
}

unsigned fx_count(const char *path)
{
	struct counting counting = { .skip = strlen(path) + 1 };

	fx_walk(path, count_one, &counting);
	return counting.num;
}

static int count_file(void *arg, const char *path)
{
	struct stat st;

	*(unsigned *)arg += !fx_stat(path, &st) && S_ISREG(st.st_mode);
	return 0;
}

unsigned fx_count_files(const char *path)
{
	unsigned num = 0;

	fx_walk(path, count_file, &num);
	return num;
}

/* ---- waiting, and dying ---- */

void fx_wait(bool (*done)(void *arg), void *arg)
{
	static const struct timespec millisecond = { .tv_nsec = 1000000 };

	for (int i = 0; i < 10000; i++) {
		if (done(arg))
			return;
		nanosleep(&millisecond, NULL);
	}
	ck_abort_msg("waited ten seconds in vain; log:\n%s", log_text);
}

bool fx_sleeps(void *tid)
{
	return unit_sleeps(atomic_load((_Atomic pid_t *)tid));
}

void (*fx_before_death)(void);

void fx_in_child(void (*fn)(void *arg), void *arg)
{
	int status;
	pid_t pid = unit_fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		fn(arg);
		if (fx_before_death)
			fx_before_death();
		_exit(42); /* a failed assertion leaves with another status */
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 42,
		      "child: status %x", (unsigned)status);
}
