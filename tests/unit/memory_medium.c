/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_medium.c - see memory_medium.h.
 *
 * A tree of names and nodes, with the calls of a file system and their results:
 * open files keep a node that has no name any more, and a folder's times change
 * with the names in it. Above it, the ops of medium.h, each in the steps that a
 * directory would take, because the store's tests say what is there when one of
 * them fails.
 *
 * All that is kept is in one mapping that children share, under one lock, and
 * is never given back before the test ends.
 */
#include <config.h>

#include "tests/unit/memory_medium.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/osfile.h"

#define AREA_BYTES (UINT64_C(2) << 30)
#define PAGE 4096u
#define DEVICE 0xfeed

/* ---- what is kept ---- */

struct node {
	struct node *next_free;
	uint64_t ino;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	unsigned names, opens;
	uint64_t size, room;
	char *bytes;
	uint8_t *written; /* of each page: does anything keep it? */
	int64_t mtime_ns, atime_ns, ctime_ns;
};

struct name {
	struct name *next;
	struct node *node;
	uint64_t hash;
	char path[];
};

struct area {
	pthread_mutex_t lock; /* guards all of it */
	uint64_t used;
	uint64_t inos;
	int64_t last_ns;
	uint64_t size; /* as a medium */
	uint64_t pages; /* that nodes have */
	struct name *names;
	struct node *free_nodes;
	char root[512];
	_Alignas(64) char bytes[];
};

static struct area *area;

struct open {
	struct node *node;
	bool writes;
};

static void *area_take(uint64_t bytes)
{
	void *at = area->bytes + area->used;

	area->used += (bytes + 63) / 64 * 64;
	ck_assert_uint_lt(area->used, AREA_BYTES - sizeof(*area));
	return at;
}

/* A clock that never stands still. */
static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (ucm_time_ns(&now) > area->last_ns)
		area->last_ns = ucm_time_ns(&now);
	else
		area->last_ns++;
	return area->last_ns;
}

/* A child may have died with the lock, but never in the middle of a change. */
static void area_lock(void)
{
	if (pthread_mutex_lock(&area->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&area->lock);
}

static void area_unlock(void)
{
	pthread_mutex_unlock(&area->lock);
}

/* ---- paths ---- */

/* The name in a folder, or NULL: path does not lie in it. */
static const char *below(const char *folder, const char *path)
{
	size_t len = strlen(folder);

	return !strncmp(path, folder, len) && path[len] == '/'
		       ? path + len + 1
		       : NULL;
}

/* ---- faults and delays ---- */

static struct {
	char call[16];
	_Atomic unsigned most_us;
} delay;

void memory_delay(const char *call, unsigned most_us)
{
	snprintf(delay.call, sizeof(delay.call), "%s", call ? call : "");
	atomic_store(&delay.most_us, most_us);
}

/* One step of a call is about to be taken. Not under the lock: what a test does
 * then may come here again. */
static int meet(const char *call, const char *path)
{
	int (*fault)(const char *call, const char *path) = ucm_os_fault;
	unsigned most_us = atomic_load(&delay.most_us);
	int err = fault ? fault(call, path) : 0;

	if (most_us && (!*delay.call || !strcmp(delay.call, call)))
		usleep((unsigned)(ucm_monotonic_ns() % most_us));
	return err;
}

/* ---- names ---- */

static uint64_t hash_of(const char *path)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (; *path; path++)
		hash = (hash ^ (uint8_t)*path) * UINT64_C(0x100000001b3);
	return hash;
}

static struct name **find_name(const char *path)
{
	uint64_t hash = hash_of(path);
	struct name **at = &area->names;

	while (*at && ((*at)->hash != hash || strcmp((*at)->path, path) != 0))
		at = &(*at)->next;
	return at;
}

static struct node *find_node(const char *path)
{
	struct name *name = *find_name(path);

	return name ? name->node : NULL;
}

static struct node *parent_of(const char *path)
{
	char folder[1024];
	char *slash;

	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (!slash)
		return NULL;
	*slash = '\0';
	return find_node(folder);
}

static void names_changed(const char *path)
{
	struct node *folder = parent_of(path);

	if (folder)
		folder->mtime_ns = folder->ctime_ns = now_ns();
}

static struct name *new_name(const char *path, struct node *node,
			     struct name *next)
{
	struct name *name = area_take(sizeof(*name) + strlen(path) + 1);

	name->next = next;
	name->node = node;
	name->hash = hash_of(path);
	strcpy(name->path, path);
	return name;
}

static int add_name(const char *path, struct node *node)
{
	struct node *folder = parent_of(path);

	if (*find_name(path))
		return -EEXIST;
	if (!folder)
		return -ENOENT;
	if (!S_ISDIR(folder->mode))
		return -ENOTDIR;
	area->names = new_name(path, node, area->names);
	node->names++;
	node->ctime_ns = now_ns();
	names_changed(path);
	return 0;
}

static void node_let_go(struct node *node)
{
	if (node->names || node->opens)
		return;
	for (uint64_t i = 0; i < node->room / PAGE; i++)
		area->pages -= node->written[i];
	node->next_free = area->free_nodes;
	area->free_nodes = node;
}

static struct node *new_node(mode_t mode)
{
	struct node *node = area->free_nodes;
	struct node fresh = { .mode = mode };

	if (node) {
		area->free_nodes = node->next_free;
		fresh.room = node->room;
		fresh.bytes = node->bytes;
		fresh.written = node->written;
		if (fresh.room)
			memset(fresh.written, 0, fresh.room / PAGE);
	} else {
		node = area_take(sizeof(*node));
	}
	*node = fresh;
	node->ino = ++area->inos;
	node->uid = geteuid();
	node->gid = getegid();
	node->mtime_ns = node->atime_ns = node->ctime_ns = now_ns();
	return node;
}

static int remove_name(const char *path)
{
	struct name **at = find_name(path);
	struct node *node;

	if (!*at)
		return -ENOENT;
	node = (*at)->node;
	*at = (*at)->next;
	node->names--;
	node->ctime_ns = now_ns();
	names_changed(path);
	node_let_go(node);
	return 0;
}

static int make_node(const char *path, mode_t mode)
{
	struct node *node = new_node(mode);
	int err = add_name(path, node);

	node_let_go(node);
	return err;
}

static int remove_folder(const char *path)
{
	if (!find_node(path))
		return -ENOENT;
	for (struct name *name = area->names; name; name = name->next) {
		if (below(path, name->path))
			return -ENOTEMPTY;
	}
	return remove_name(path);
}

/* With all that lies below it. */
static int move_name(const char *from, const char *to)
{
	struct node *node = find_node(from);
	char path[1024];

	if (!node || !parent_of(to))
		return -ENOENT;
	remove_name(to);
	for (struct name **at = &area->names; *at; at = &(*at)->next) {
		const char *rest = below(from, (*at)->path);

		if (!rest && strcmp((*at)->path, from) != 0)
			continue;
		snprintf(path, sizeof(path), "%s%s%s", to, rest ? "/" : "",
			 rest ? rest : "");
		*at = new_name(path, (*at)->node, (*at)->next);
	}
	node->ctime_ns = now_ns();
	names_changed(from);
	names_changed(to);
	return 0;
}

/* ---- nodes ---- */

static void node_stat(const struct node *node, struct stat *out)
{
	uint64_t pages = 0;

	for (uint64_t i = 0; i < node->room / PAGE; i++)
		pages += node->written[i];
	*out = (struct stat){
		.st_dev = DEVICE,
		.st_ino = node->ino,
		.st_mode = node->mode,
		.st_nlink = node->names,
		.st_uid = node->uid,
		.st_gid = node->gid,
		.st_size = (off_t)node->size,
		.st_blksize = PAGE,
		.st_blocks = (blkcnt_t)(pages * PAGE / 512),
		.st_mtim = { node->mtime_ns / 1000000000,
			     node->mtime_ns % 1000000000 },
		.st_atim = { node->atime_ns / 1000000000,
			     node->atime_ns % 1000000000 },
		.st_ctim = { node->ctime_ns / 1000000000,
			     node->ctime_ns % 1000000000 },
	};
}

static void node_make_room(struct node *node, uint64_t size)
{
	uint64_t room = (size + PAGE - 1) / PAGE * PAGE;
	uint8_t *written;
	char *bytes;

	if (room <= node->room)
		return;
	if (room < 2 * node->room)
		room = 2 * node->room;
	bytes = area_take(room);
	written = area_take(room / PAGE);
	memset(written, 0, room / PAGE);
	if (node->room) {
		memcpy(bytes, node->bytes, node->room);
		memcpy(written, node->written, node->room / PAGE);
	}
	node->bytes = bytes;
	node->written = written;
	node->room = room;
}

/* Pages from one byte to another are kept; what was none is zero. */
static int node_allocate(struct node *node, uint64_t from, uint64_t to)
{
	uint64_t more = 0;

	node_make_room(node, to);
	for (uint64_t i = from / PAGE; i * PAGE < to; i++)
		more += !node->written[i];
	if ((area->pages + more) * PAGE > area->size)
		return -ENOSPC;
	for (uint64_t i = from / PAGE; i * PAGE < to; i++) {
		if (!node->written[i])
			memset(node->bytes + i * PAGE, 0, PAGE);
		node->written[i] = 1;
	}
	area->pages += more;
	return 0;
}

static int node_resize(struct node *node, uint64_t size)
{
	node_make_room(node, size);
	for (uint64_t i = (size + PAGE - 1) / PAGE; i < node->room / PAGE;
	     i++) {
		area->pages -= node->written[i];
		node->written[i] = 0;
	}
	if (size % PAGE && node->written[size / PAGE])
		memset(node->bytes + size, 0, PAGE - size % PAGE);
	node->size = size;
	node->mtime_ns = node->ctime_ns = now_ns();
	return 0;
}

static int node_write(struct node *node, const void *bytes, size_t len,
		      uint64_t at)
{
	int err = len ? node_allocate(node, at, at + len) : 0;

	if (err)
		return err;
	if (len)
		memcpy(node->bytes + at, bytes, len);
	if (at + len > node->size)
		node->size = at + len;
	node->mtime_ns = node->ctime_ns = now_ns();
	return 0;
}

static size_t node_read(const struct node *node, char *to, size_t len,
			uint64_t at)
{
	if (at >= node->size)
		return 0;
	if (len > node->size - at)
		len = node->size - at;
	for (size_t done = 0, part; done < len; done += part) {
		uint64_t page = (at + done) / PAGE;

		part = PAGE - (at + done) % PAGE;
		if (part > len - done)
			part = len - done;
		if (node->written[page])
			memcpy(to + done, node->bytes + at + done, part);
		else
			memset(to + done, 0, part);
	}
	return len;
}

static void node_set_times(struct node *node, const struct timespec times[2])
{
	int64_t *const ns[2] = { &node->atime_ns, &node->mtime_ns };

	for (int i = 0; i < 2; i++) {
		if (!times || times[i].tv_nsec == UTIME_NOW)
			*ns[i] = now_ns();
		else if (times[i].tv_nsec != UTIME_OMIT)
			*ns[i] = ucm_time_ns(&times[i]);
	}
	node->ctime_ns = now_ns();
}

/* ---- open files ---- */

static int open_node(const char *path, int flags, mode_t mode,
		     struct open **out)
{
	struct open *open = calloc(1, sizeof(*open));
	struct node *node;
	int err = 0;

	ck_assert_ptr_nonnull(open);
	area_lock();
	node = find_node(path);
	if (node && flags & O_EXCL)
		err = -EEXIST;
	else if (!node && !(flags & O_CREAT))
		err = -ENOENT;
	else if (!node)
		err = make_node(path, S_IFREG | mode);
	else if (!S_ISREG(node->mode))
		err = S_ISLNK(node->mode) ? -ELOOP : -ENXIO;
	if (!err) {
		node = find_node(path);
		node->opens++;
		open->node = node;
		if (flags & O_TRUNC)
			node_resize(node, 0);
	}
	area_unlock();
	if (err)
		free(open);
	else
		*out = open;
	return err;
}

static void close_node(struct open *open)
{
	area_lock();
	open->node->opens--;
	node_let_go(open->node);
	area_unlock();
	free(open);
}

static ssize_t memory_read(const struct ucm_file *file, void *buffer,
			   size_t len, uint64_t offset)
{
	const struct open *open = file->object;
	int err = meet("read", NULL);

	if (err)
		return err;
	area_lock();
	len = node_read(open->node, buffer, len, offset);
	area_unlock();
	return (ssize_t)len;
}

static int memory_write(const struct ucm_file *file, const void *bytes,
			size_t len, uint64_t offset)
{
	const struct open *open = file->object;
	int err = meet("write", NULL);

	if (err)
		return err;
	area_lock();
	err = node_write(open->node, bytes, len, offset);
	area_unlock();
	return err;
}

static int memory_stat(const struct ucm_file *file, struct stat *out)
{
	const struct open *open = file->object;
	int err = meet("fstat", NULL);

	if (err)
		return err;
	area_lock();
	node_stat(open->node, out);
	area_unlock();
	return 0;
}

static int memory_set_times(const struct ucm_file *file,
			    const struct timespec times[2])
{
	const struct open *open = file->object;
	int err = meet("utimens", NULL);

	if (err)
		return err;
	area_lock();
	node_set_times(open->node, times);
	area_unlock();
	return 0;
}

static int memory_sync_file(const struct ucm_file *file, enum ucm_sync what)
{
	static const char *const calls[] = { "flush", "fdatasync", "fsync" };

	(void)file;
	return meet(calls[what], NULL);
}

static void memory_close_file(const struct ucm_file *file)
{
	close_node(file->object);
}

static const struct ucm_file_ops memory_files = {
	.read = memory_read,
	.write = memory_write,
	.stat = memory_stat,
	.set_times = memory_set_times,
	.sync = memory_sync_file,
	.close = memory_close_file,
};

/* ---- names, by their paths in a medium ---- */

/* Good for the next three calls. */
static const char *at(const struct ucm_medium *medium, const char *path)
{
	static _Thread_local char paths[4][1024];
	static _Thread_local unsigned turn;
	char *out = paths[turn++ % 4];

	snprintf(out, sizeof(paths[0]), "%s/%s", medium->path, path);
	return out;
}

static int memory_open_file(struct ucm_medium *medium, const char *path,
			    enum ucm_open_how how, struct ucm_file *out,
			    struct stat *st)
{
	static const int flags[] = {
		[UCM_OPEN_READ] = O_RDONLY,
		[UCM_OPEN_CHANGE] = O_RDWR,
		[UCM_OPEN_NEW] = O_RDWR | O_CREAT | O_EXCL,
		[UCM_OPEN_OVER] = O_WRONLY | O_CREAT | O_TRUNC,
	};
	struct open *open;
	int err = meet("open", path);

	if (!err)
		err = open_node(at(medium, path), flags[how],
				how == UCM_OPEN_NEW ? 0600 : 0644, &open);
	if (err)
		return err;
	*out = (struct ucm_file){ .medium = medium, .fd = -1, .object = open };
	err = how == UCM_OPEN_READ ? memory_stat(out, st) : 0;
	if (err)
		ucm_file_close(out);
	return err;
}

#define STEP(call, path, doing)                                               \
	({                                                                    \
		int step_err = meet(call, path);                              \
		if (!step_err) {                                              \
			area_lock();                                          \
			step_err = (doing);                                   \
			area_unlock();                                        \
		}                                                             \
		step_err;                                                     \
	})

static int link_node(const char *from, const char *to)
{
	struct node *node = find_node(from);

	return node ? add_name(to, node) : -ENOENT;
}

static int memory_link(struct ucm_medium *medium, const char *path,
		       const char *name)
{
	int err = meet("chmod", path);

	return err ? err
		   : STEP("link", name,
			  link_node(at(medium, path), at(medium, name)));
}

static int memory_rename(struct ucm_medium *medium, const char *from,
			 const char *to)
{
	return STEP("rename", to, move_name(at(medium, from), at(medium, to)));
}

static int memory_remove(struct ucm_medium *medium, const char *path,
			 bool is_folder)
{
	return is_folder
		       ? STEP("rmdir", path, remove_folder(at(medium, path)))
		       : STEP("unlink", path, remove_name(at(medium, path)));
}

static int memory_mkdir(struct ucm_medium *medium, const char *path,
			mode_t mode)
{
	return STEP("mkdir", path,
		    make_node(at(medium, path), S_IFDIR | mode));
}

static int own_node(const char *path, const struct ucm_space_owner *owner)
{
	struct node *node = find_node(path);

	if (!node)
		return -ENOENT;
	if (geteuid() == 0) {
		node->uid = owner->uid;
		node->gid = owner->gid;
	}
	node->mode = S_IFDIR | (owner->is_private ? 0700 : 0755);
	return 0;
}

static int memory_own(struct ucm_medium *medium, const char *path,
		      const struct ucm_space_owner *owner)
{
	int err = meet("open", path);

	if (!err)
		err = meet("fchown", NULL);
	return err ? err
		   : STEP("fchmod", NULL, own_node(at(medium, path), owner));
}

static int stat_node(const char *path, struct stat *out)
{
	struct node *node = find_node(path);

	if (node)
		node_stat(node, out);
	return node ? 0 : -ENOENT;
}

static int memory_stat_path(struct ucm_medium *medium, const char *path,
			    struct stat *out)
{
	return STEP("stat", path, stat_node(at(medium, path), out));
}

/* The names in a folder, as ucm_os_list() gives them. */
static int list_folder(const char *path, char **out)
{
	struct node *folder = find_node(path);
	size_t len = 1;
	char *names;

	if (!folder)
		return -ENOENT;
	if (!S_ISDIR(folder->mode))
		return -ENOTDIR;
	names = calloc(1, area->used + 1);
	ck_assert_ptr_nonnull(names);
	len = 0;
	for (struct name *name = area->names; name; name = name->next) {
		const char *rest = below(path, name->path);

		if (!rest || strchr(rest, '/'))
			continue;
		strcpy(names + len, rest);
		len += strlen(rest) + 1;
	}
	*out = realloc(names, len + 1);
	(*out)[len] = '\0';
	return 0;
}

static int memory_list(struct ucm_medium *medium, const char *folder,
		       char **names_out)
{
	return STEP("list", folder,
		    list_folder(at(medium, folder), names_out));
}

static int memory_sync(struct ucm_medium *medium, const char *folder)
{
	int err;

	(void)medium;
	if (!folder)
		return meet("syncfs", NULL);
	err = meet("open", folder);
	return err ? err : meet("fsync", NULL);
}

/* ---- all of it ---- */

static int memory_room(struct ucm_medium *medium, struct ucm_medium_room *out)
{
	int err = meet("statvfs", NULL);

	(void)medium;
	if (err)
		return err;
	area_lock();
	*out = (struct ucm_medium_room){
		.total_bytes = area->size,
		.free_bytes = area->size - area->pages * PAGE,
		.unit = PAGE,
	};
	area_unlock();
	return 0;
}

void memory_set_size(uint64_t bytes)
{
	area->size = bytes;
}

static void memory_close(struct ucm_medium *medium)
{
	free(medium->path);
	medium->path = NULL;
}

static const struct ucm_medium_ops memory_ops = {
	.close = memory_close,
	.room = memory_room,
	.list = memory_list,
	.stat = memory_stat_path,
	.open = memory_open_file,
	.link = memory_link,
	.rename = memory_rename,
	.remove = memory_remove,
	.mkdir = memory_mkdir,
	.own = memory_own,
	.sync = memory_sync,
	.files = &memory_files,
};

static bool hides_names;

void memory_hide_names(void)
{
	hides_names = true;
}

static int make_layout(struct ucm_medium *medium)
{
	static const char *const folders[] = {
		".ucmfs", "blocks", "spaces", ".ucmfs/tmp",
		".ucmfs/quarantine", ".ucmfs/pinned",
	};
	int err = 0;

	for (size_t i = 0; i < NUM_ROWS(folders) && !err; i++) {
		err = memory_mkdir(medium, folders[i], 0755);
		if (err == -EEXIST)
			err = 0;
	}
	return err;
}

int memory_open(const char *path, bool readonly,
		const struct ucm_config *config, struct ucm_medium **out,
		struct ucm_error *error)
{
	struct ucm_medium *medium = calloc(1, sizeof(*medium));
	int err = 0;

	(void)config;
	ck_assert_ptr_nonnull(medium);
	medium->ops = &memory_ops;
	medium->flags = hides_names ? UCM_MEDIUM_NO_LIST : 0;
	medium->path = strdup(path);
	medium->dev = DEVICE;
	medium->readonly = readonly;
	if (!readonly)
		err = make_layout(medium);
	if (err) {
		ucm_error_set(error, err, "%s: %s", path, strerror(-err));
		memory_close(medium);
		free(medium);
		return err;
	}
	*out = medium;
	return 0;
}

/* ---- behind the store's back ---- */

#define MAX_NUMBERS 256

static pthread_mutex_t numbers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct open *numbers[MAX_NUMBERS];

int memory_number(void *object)
{
	int number = 0;

	pthread_mutex_lock(&numbers_lock);
	while (number < MAX_NUMBERS && numbers[number])
		number++;
	ck_assert_int_lt(number, MAX_NUMBERS);
	numbers[number] = object;
	pthread_mutex_unlock(&numbers_lock);
	return FX_NUMBERS + number;
}

void *memory_object(int number)
{
	return numbers[number - FX_NUMBERS];
}

static struct node *number_node(int number)
{
	const struct open *open = memory_object(number);

	return open->node;
}

/* As a system call answers. */
static int answer(int err)
{
	if (err >= 0)
		return err;
	errno = -err;
	return -1;
}

static bool tree_has(const char *path)
{
	return below(area->root, path);
}

static int tree_open(const char *path, int flags)
{
	struct open *open;
	int err = open_node(path, flags, 0644, &open);

	return err ? answer(err) : memory_number(open);
}

#define LOCKED(doing)                                                         \
	({                                                                    \
		int locked_err;                                               \
		area_lock();                                                  \
		locked_err = (doing);                                         \
		area_unlock();                                                \
		answer(locked_err);                                           \
	})

static int tree_stat(const char *path, struct stat *st)
{
	return LOCKED(stat_node(path, st));
}

static int tree_unlink(const char *path)
{
	return LOCKED(remove_name(path));
}

static int tree_rename(const char *from, const char *to)
{
	return LOCKED(move_name(from, to));
}

static int tree_make(const char *path, mode_t mode)
{
	return LOCKED(make_node(path, mode));
}

static int tree_walk(const char *path, int (*fn)(void *arg, const char *path),
		     void *arg)
{
	_cleanup_free_ char *names = NULL;
	int err;

	area_lock();
	err = list_folder(path, &names);
	area_unlock();
	if (err)
		return 0;
	for (const char *name = names; *name && !err;
	     name += strlen(name) + 1) {
		char inside[1024];

		snprintf(inside, sizeof(inside), "%s/%s", path, name);
		err = fn(arg, inside);
		if (!err)
			err = tree_walk(inside, fn, arg);
	}
	return err;
}

static ssize_t tree_pread(int number, void *bytes, size_t len, off_t offset)
{
	area_lock();
	len = node_read(number_node(number), bytes, len, (uint64_t)offset);
	area_unlock();
	return (ssize_t)len;
}

static ssize_t tree_pwrite(int number, const void *bytes, size_t len,
			   off_t offset)
{
	int err = LOCKED(node_write(number_node(number), bytes, len,
				    (uint64_t)offset));

	return err ? err : (ssize_t)len;
}

static int tree_ftruncate(int number, off_t size)
{
	return LOCKED(node_resize(number_node(number), (uint64_t)size));
}

static int tree_allocate(int number, off_t end)
{
	struct node *node = number_node(number);
	int err = LOCKED(node_allocate(node, 0, (uint64_t)end));

	if (!err && node->size < (uint64_t)end)
		node->size = (uint64_t)end;
	return err;
}

static int tree_fstat(int number, struct stat *st)
{
	area_lock();
	node_stat(number_node(number), st);
	area_unlock();
	return 0;
}

static int tree_futimens(int number, const struct timespec times[2])
{
	area_lock();
	node_set_times(number_node(number), times);
	area_unlock();
	return 0;
}

static void tree_close(int number)
{
	struct open *open = memory_object(number);

	pthread_mutex_lock(&numbers_lock);
	numbers[number - FX_NUMBERS] = NULL;
	pthread_mutex_unlock(&numbers_lock);
	close_node(open);
}

static const struct fx_tree memory_tree = {
	.has = tree_has,
	.open = tree_open,
	.stat = tree_stat,
	.unlink = tree_unlink,
	.rename = tree_rename,
	.make = tree_make,
	.walk = tree_walk,
	.pread = tree_pread,
	.pwrite = tree_pwrite,
	.ftruncate = tree_ftruncate,
	.allocate = tree_allocate,
	.fstat = tree_fstat,
	.futimens = tree_futimens,
	.close = tree_close,
};

static void make_root(const char *path)
{
	struct node *node = new_node(S_IFDIR | 0755);

	snprintf(area->root, sizeof(area->root), "%s", path);
	area->names = new_name(path, node, NULL);
	node->names++;
}

void memory_begin(const char *root)
{
	pthread_mutexattr_t attr;

	area = mmap(NULL, AREA_BYTES, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ck_assert_ptr_ne(area, MAP_FAILED);
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&area->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	area->size = UINT64_C(64) << 30;
	make_root(root);
	fx_other_tree = &memory_tree;
	fx_before_death = area_lock;
}

void memory_end(void)
{
	memory_delay(NULL, 0);
	hides_names = false;
	fx_other_tree = NULL;
	fx_before_death = NULL;
	/* a thread that hangs may come back to what it had */
}
