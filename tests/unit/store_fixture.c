/* SPDX-License-Identifier: Apache-2.0 */
/* store_fixture.c - see store_fixture.h. */
#include <config.h>

#include "tests/unit/store_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "common/osfile.h"
#include "fs/block/verify.h"
#include "hashing/name.h"

static char program_dir[4000], test_dir[4050];

const struct ucm_geometry fx_geometry = {
	.num_layers = 2, .block_size = 4, .dtype = UCM_DTYPE_FLOAT16,
	.k_bytes = 128, .v_bytes = 128, .num_kv_heads = 2, .head_dim = 8,
};

struct ucm_config fx_config;
struct ucm_store *fx_set;
unsigned fx_losses;

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

void fx_clear_log(void)
{
	pthread_mutex_lock(&log_lock);
	log_len = 0;
	log_text[0] = '\0';
	pthread_mutex_unlock(&log_lock);
}

/* ---- faults ---- */

static struct {
	const char *call; /* NULL: any */
	char part[256];   /* of the path; "": any */
	_Atomic unsigned nth, seen;
	int err;
	bool only_once;
	_Atomic(const char *) failed;
} failing;

static int maybe_fail(const char *call, const char *path)
{
	unsigned seen;

	if (!atomic_load(&failing.nth) ||
	    (failing.call && strcmp(call, failing.call)) ||
	    (failing.part[0] && (!path || !strstr(path, failing.part))))
		return 0;
	seen = atomic_fetch_add(&failing.seen, 1) + 1;
	if (seen < failing.nth || (failing.only_once && seen > failing.nth))
		return 0;
	atomic_store(&failing.failed, call);
	return failing.err;
}

void fx_fail(const char *call, unsigned nth, int err, bool only_once)
{
	fx_fail_on(call, "", nth, err, only_once);
}

void fx_fail_on(const char *call, const char *part_of_path, unsigned nth,
		int err, bool only_once)
{
	atomic_store(&failing.nth, 0);
	snprintf(failing.part, sizeof(failing.part), "%s", part_of_path);
	failing.call = call;
	failing.err = err;
	failing.only_once = only_once;
	atomic_store(&failing.seen, 0);
	atomic_store(&failing.failed, NULL);
	atomic_store(&failing.nth, nth);
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

void fx_setup(void)
{
	snprintf(test_dir, sizeof(test_dir), "%s/t-XXXXXX", program_dir);
	ck_assert_ptr_nonnull(mkdtemp(test_dir));
	fx_clear_log();
	ucm_log_set(keep_log, UCM_LOG_INFO);
	fx_fail(NULL, 0, 0, false);
	ucm_os_fault = maybe_fail;
	fx_losses = 0;
	ucm_config_init(&fx_config);
}

void fx_teardown(void)
{
	fx_close();
	ucm_config_fini(&fx_config);
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
		mkdir(part, 0755);
		*slash = '/';
	}
	mkdir(part, 0755);
	ck_assert_msg(fx_exists(path), "%s: %s", path, strerror(errno));
}

void fx_put(const char *path, const void *bytes, size_t len)
{
	char folder[8192];
	int fd;

	snprintf(folder, sizeof(folder), "%s", path);
	*strrchr(folder, '/') = '\0';
	fx_mkdirs(folder);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	close(fd);
}

bool fx_exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

void fx_read(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t got;

	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	got = read(fd, text, size - 1);
	ck_assert_int_ge(got, 0);
	text[got] = '\0';
	close(fd);
}

unsigned fx_count(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	unsigned num = 0;

	if (!dir)
		return 0;
	while ((entry = readdir(dir)))
		num += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	closedir(dir);
	return num;
}

/* ---- block files ---- */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

void fx_encode(struct fx_file *file, bool crc)
{
	struct ucm_block *block = &file->block;
	size_t payload = ucm_block_payload_bytes(&block->geometry);
	uint8_t *at = file->bytes + block->data_offset;

	file->len = ucm_block_file_size(block);
	ck_assert_uint_le(file->len, sizeof(file->bytes));
	memset(file->bytes, 0, sizeof(file->bytes));
	for (size_t i = 0; i < payload; i++)
		at[i] = (uint8_t)mix(i ^ (uint64_t)file->key.id.bytes[15] << 32);
	ck_assert_int_eq(ucm_block_encode(block, crc ? at : NULL, file->bytes,
					  block->data_offset), 0);
}

static void make_bare(struct fx_file *file)
{
	fx_encode(file, false);
	memset(file->bytes + 36, 0, 28);
	file->block.form = UCM_FORM_BARE;
}

void fx_block_of(struct fx_file *file, unsigned n, enum fx_kind kind,
		 const struct ucm_geometry *geometry)
{
	bool paged = kind == FX_PAGED || kind == FX_PAGED_RAW;
	uint64_t words[2] = { mix(n), mix(n + 1000003) };

	*file = (struct fx_file){ .block = { .geometry = *geometry } };
	memcpy(file->key.id.bytes, words, sizeof(words));
	file->block.id = file->key.id;
	file->block.form = paged ? UCM_FORM_PAGED : UCM_FORM_PACKED;
	file->block.data_offset =
		paged ? ucm_block_data_offset(geometry->num_layers) : 64;
	if (kind == FX_BARE)
		make_bare(file);
	else
		fx_encode(file, kind == FX_PAGED || kind == FX_PACKED);
}

void fx_block(struct fx_file *file, unsigned n, enum fx_kind kind)
{
	fx_block_of(file, n, kind, &fx_geometry);
}

const char *fx_name(const struct fx_file *file)
{
	char name[UCM_BLOCK_PATH_LEN + 1];

	ucm_path_format(&file->key.id, name);
	return fx_path("%s", name);
}

void fx_plant(const char *dir, const char *folder, const struct fx_file *file)
{
	fx_put(fx_path("%s/%s/%s", dir, folder, fx_name(file)), file->bytes,
	       file->len);
}

/* ---- a store ---- */

void fx_configure(const char *source)
{
	struct ucm_complaint complaint = { "" };

	ck_assert_msg(!ucm_config_source(&fx_config, fx_path("%s", source),
					 &complaint), "%s", complaint.text);
	for (unsigned i = 0; i < fx_config.num_tiers; i++) {
		for (unsigned j = 0; j < fx_config.tiers[i].num_dirs; j++)
			fx_mkdirs(fx_config.tiers[i].dirs[j]);
	}
	fx_option("checkpoint", "0");
}

void fx_option(const char *key, const char *value)
{
	struct ucm_complaint complaint = { "" };

	ck_assert_msg(!ucm_config_set(&fx_config, key, value, &complaint),
		      "%s", complaint.text);
}

static void count_loss(void *arg, const struct ucm_key *key)
{
	(void)arg;
	(void)key;
	fx_losses++;
}

void fx_open(void)
{
	struct ucm_complaint complaint = { "" };

	ck_assert_ptr_null(fx_set);
	ck_assert_msg(!ucm_store_open(&fx_config, &fx_set, &complaint), "%s",
		      complaint.text);
	fx_set->on_loss = count_loss;
}

void fx_start_only(void)
{
	ck_assert_int_eq(ucm_store_start(fx_set), 0);
}

static bool is_counted(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->files_counted);
}

void fx_start(void)
{
	fx_start_only();
	fx_wait_scanned();
	fx_wait(is_counted, NULL); /* or its calls meet a test's faults */
}

void fx_close(void)
{
	ucm_store_close(fx_set);
	fx_set = NULL;
}

void fx_store(const char *source)
{
	fx_configure(source);
	fx_open();
	fx_start();
}

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

static bool is_scanned(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->scanned);
}

static bool is_settled(void *arg)
{
	return is_scanned(arg) && !atomic_load(&fx_set->doubts);
}

void fx_wait_scanned(void)
{
	fx_wait(is_scanned, NULL);
}

void fx_wait_settled(void)
{
	fx_wait(is_settled, NULL);
}

int fx_commit(const struct fx_file *file)
{
	struct ucm_temp temp;
	int fd = ucm_store_create(fx_set, &file->key, 0, &temp);
	int err;

	if (fd < 0)
		return fd;
	err = pwrite(fd, file->bytes, file->len, 0) == (ssize_t)file->len
		      ? 0 : -EIO;
	if (!err)
		err = ucm_store_commit(fx_set, &temp, fd, &file->key,
				       UCM_COMMIT_NOW);
	close(fd);
	ucm_store_drop(fx_set, &temp);
	return err;
}

int fx_find(const struct fx_file *file)
{
	struct ucm_entry entry;
	ucm_ref ref;

	return ucm_store_find(fx_set, &file->key, &entry, &ref);
}

void fx_misses(const struct fx_file *file)
{
	ck_assert_int_eq(fx_find(file), -ENOENT);
}

void fx_serves(const struct fx_file *file)
{
	uint8_t bytes[sizeof(file->bytes)];
	struct ucm_entry entry;
	ucm_ref ref;
	int fd;

	ck_assert_int_eq(ucm_store_find(fx_set, &file->key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.size, file->len);
	fd = ucm_store_open_block(fx_set, ref, &entry);
	ck_assert_msg(fd >= 0, "open: %s", strerror(-fd));
	ck_assert_int_eq(read(fd, bytes, sizeof(bytes)), (ssize_t)file->len);
	ck_assert_mem_eq(bytes, file->bytes, file->len);
	close(fd);
}

void fx_in_child(void (*fn)(void *arg), void *arg)
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		fn(arg);
		_exit(42); /* a failed assertion leaves with another status */
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 42,
		      "child: status %x", (unsigned)status);
}

static int check_one(const char *path, const struct stat *st, int type,
		     struct FTW *ftw)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	struct ucm_id id;
	uint32_t plane;
	int fd;

	if (type != FTW_F || !strcmp(path + ftw->base, "space.json"))
		return 0;
	ck_assert_int_eq(ucm_name_parse(path + ftw->base, &id), 0);
	fd = open(path, O_RDONLY);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ucm_verify_whole(fd, (uint64_t)st->st_size, &id,
					  &block, &fault, &plane), 0);
	ck_assert_msg(!fault, "%s: %s", path, ucm_fault_text(fault));
	close(fd);
	return 0;
}

void fx_all_whole(const char *dir)
{
	nftw(fx_path("%s/blocks", dir), check_one, 16, FTW_PHYS);
	nftw(fx_path("%s/spaces", dir), check_one, 16, FTW_PHYS);
}
