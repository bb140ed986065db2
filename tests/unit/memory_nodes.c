/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_nodes.c - names and nodes in memory, see memory_inside.h.
 *
 * All that is kept is in one mapping that children share, under one lock, and
 * is never given back before the test ends.
 */
#include <config.h>

#include "tests/unit/memory_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define AREA_BYTES (UINT64_C(2) << 30)

/* ---- what is kept ---- */

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
void nodes_lock(void)
{
	if (pthread_mutex_lock(&area->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&area->lock);
}

void nodes_unlock(void)
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

struct node *nodes_find(const char *path)
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
	return nodes_find(folder);
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

int nodes_remove(const char *path)
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

int nodes_make(const char *path, mode_t mode)
{
	struct node *node = new_node(mode);
	int err = add_name(path, node);

	node_let_go(node);
	return err;
}

int nodes_remove_folder(const char *path)
{
	if (!nodes_find(path))
		return -ENOENT;
	for (struct name *name = area->names; name; name = name->next) {
		if (below(path, name->path))
			return -ENOTEMPTY;
	}
	return nodes_remove(path);
}

/* With all that lies below it. */
int nodes_move(const char *from, const char *to)
{
	struct node *node = nodes_find(from);
	char path[1024];

	if (!node || !parent_of(to))
		return -ENOENT;
	nodes_remove(to);
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

void node_stat(const struct node *node, struct stat *out)
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
int node_allocate(struct node *node, uint64_t from, uint64_t to)
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

int node_resize(struct node *node, uint64_t size)
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

int node_write(struct node *node, const void *bytes, size_t len, uint64_t at)
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

size_t node_read(const struct node *node, char *to, size_t len, uint64_t at)
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

void node_set_times(struct node *node, const struct timespec times[2])
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

int nodes_open(const char *path, int flags, mode_t mode, struct open **out)
{
	struct open *open = calloc(1, sizeof(*open));
	struct node *node;
	int err = 0;

	ck_assert_ptr_nonnull(open);
	nodes_lock();
	node = nodes_find(path);
	if (node && flags & O_EXCL)
		err = -EEXIST;
	else if (!node && !(flags & O_CREAT))
		err = -ENOENT;
	else if (!node)
		err = nodes_make(path, S_IFREG | mode);
	else if (!S_ISREG(node->mode))
		err = S_ISLNK(node->mode) ? -ELOOP : -ENXIO;
	if (!err) {
		node = nodes_find(path);
		node->opens++;
		open->node = node;
		if (flags & O_TRUNC)
			node_resize(node, 0);
	}
	nodes_unlock();
	if (err)
		free(open);
	else
		*out = open;
	return err;
}

void nodes_close(struct open *open)
{
	nodes_lock();
	open->node->opens--;
	node_let_go(open->node);
	nodes_unlock();
	free(open);
}

/* ---- by paths ---- */

int nodes_link(const char *from, const char *to)
{
	struct node *node = nodes_find(from);

	return node ? add_name(to, node) : -ENOENT;
}

int nodes_stat(const char *path, struct stat *out)
{
	struct node *node = nodes_find(path);

	if (node)
		node_stat(node, out);
	return node ? 0 : -ENOENT;
}

/* The names in a folder, as ucm_os_list() gives them. */
int nodes_list(const char *path, char **out)
{
	struct node *folder = nodes_find(path);
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

bool nodes_has(const char *path)
{
	return below(area->root, path);
}

/* ---- all of it ---- */

static void make_root(const char *path)
{
	struct node *node = new_node(S_IFDIR | 0755);

	snprintf(area->root, sizeof(area->root), "%s", path);
	area->names = new_name(path, node, NULL);
	node->names++;
}

void nodes_begin(const char *root)
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
}

void nodes_set_size(uint64_t bytes)
{
	area->size = bytes;
}

uint64_t nodes_size(void)
{
	return area->size;
}

uint64_t nodes_free(void)
{
	return area->size - area->pages * PAGE;
}
