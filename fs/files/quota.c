/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.c - marked folders of files/: what marks say, and what folders take;
 * see quota.h.
 *
 * Charges. A caller that changes what a file takes has its name locked, so that
 * the charges of one file come in order. While a walk counts a mark, it notes
 * where it has come to, in the order of names. A charge on what it has passed
 * is added to its sum. One on what is ahead is kept: it is forgotten when the
 * walk comes to that file and sees the result; what is left at the end are
 * files that were made where the names had been read already, which count, and
 * files that were removed, which do not. So counts are right however long a
 * walk takes, but for files that change at the very moment that it looks at
 * them; and the next walk puts that right: in ten minutes, or when the mark is
 * set again.
 */
#include <config.h>

#include "fs/files/quota.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/osguard.h"
#include "common/parse.h"
#include "fs/files/files.h"
#include "fs/tier/wait.h"

#define XATTR "user.ucmfs."
#define ROOM_WAIT_MS 5000
#define VALUE_MAX 32
#define AHEAD_MAX (1u << 16) /* a power of two */

const char *const ucm_files_orders[UCM_FILES_ORDERS] = { "lru", "fifo" };

/* ---- paths ---- */

#define TOP (sizeof(UCM_FILES_ROOT) - 1) /* where "/NAME" begins */

static bool is_top(const char *path)
{
	return path[TOP] && !strchr(path + TOP + 1, '/');
}

/* Is path the folder, or in it? */
static bool covers(const char *folder, const char *path)
{
	size_t len = strlen(folder);

	return !strncmp(folder, path, len) && (!path[len] || path[len] == '/');
}

static unsigned rank_of(char c)
{
	return !c ? 0 : c == '/' ? 1 : (unsigned char)c + 1u;
}

/* As a walk comes to them. */
static int compare_paths(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return (int)rank_of(*a) - (int)rank_of(*b);
}

/* ---- the table, under quotas->lock ---- */

void ucm_quota_pool_clear(struct ucm_quota_pool *pool)
{
	for (size_t i = pool->next; i < pool->num; i++)
		free(pool->list[i].path);
	free(pool->list);
	*pool = (struct ucm_quota_pool){ 0 };
}

void ucm_quota_mark_free(struct ucm_files_mark *mark)
{
	ucm_quota_pool_clear(&mark->pool);
	free(mark->path);
	free(mark);
}

/* Of the top folder that a path is in, or NULL. */
static struct ucm_files_mark *mark_of(struct ucm_files_quotas *quotas,
				      const char *path)
{
	for (unsigned i = 0; path && i < quotas->num; i++) {
		if (covers(quotas->marks[i]->path, path))
			return quotas->marks[i];
	}
	return NULL;
}

static struct ucm_files_mark *add_mark(struct ucm_files_quotas *quotas,
				       const char *path, uint64_t number)
{
	struct ucm_files_mark *mark = calloc(1, sizeof(*mark));

	if (mark)
		mark->path = strdup(path);
	if (!mark || !mark->path) {
		free(mark);
		return NULL;
	}
	mark->number = number;
	quotas->marks[quotas->num] = mark;
	atomic_fetch_add(&quotas->num, 1);
	return mark;
}

static void remove_mark(struct ucm_files_quotas *quotas,
			struct ucm_files_mark *mark)
{
	unsigned i = 0;

	while (quotas->marks[i] != mark)
		i++;
	atomic_fetch_sub(&quotas->num, 1);
	memmove(&quotas->marks[i], &quotas->marks[i + 1],
		(quotas->num - i) * sizeof(mark));
	mark->gone = true;
	if (!mark->held)
		ucm_quota_mark_free(mark);
	pthread_cond_broadcast(&quotas->room);
}

/* NULL where nothing is marked; else its lock is held. */
static struct ucm_files_quotas *lock_marks(struct ucm_files_tree *tree)
{
	struct ucm_files_quotas *quotas = tree->quotas;

	if (!quotas || !atomic_load(&quotas->num))
		return NULL;
	pthread_mutex_lock(&quotas->lock);
	return quotas;
}

/* ---- charges ---- */

/* To one mark. Is there work for the thread? */
static bool charge_mark(struct ucm_files_mark *mark, int64_t bytes)
{
	mark->used += bytes;
	if (bytes < 0)
		mark->again_ms = 0;
	if (!ucm_quota_is_reached(mark))
		mark->full = false;
	return ucm_quota_is_high(mark);
}

static uint64_t hash_of(const char *path)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (; *path; path++)
		hash = (hash ^ (unsigned char)*path) *
		       UINT64_C(0x100000001b3);
	hash ^= hash >> 29;
	return hash ? hash : 1;
}

/* Where a path is, or belongs. */
static struct ucm_quota_ahead *ahead_of(struct ucm_quota_walk *walk,
					const char *path)
{
	uint64_t hash = hash_of(path);
	size_t i = hash & (AHEAD_MAX - 1);

	while (walk->ahead[i].hash && walk->ahead[i].hash != hash)
		i = (i + 1) & (AHEAD_MAX - 1);
	return &walk->ahead[i];
}

/* What there is no room for the next walk sees. */
static void charge_ahead(struct ucm_quota_walk *walk, const char *path,
			 int64_t bytes)
{
	struct ucm_quota_ahead *ahead;

	if (!walk->ahead)
		walk->ahead = calloc(AHEAD_MAX, sizeof(*walk->ahead));
	if (!walk->ahead || walk->num_ahead == AHEAD_MAX / 2)
		return;
	ahead = ahead_of(walk, path);
	walk->num_ahead += !ahead->hash;
	ahead->hash = hash_of(path);
	ahead->bytes += bytes;
}

void ucm_quota_walk_pass(struct ucm_quota_walk *walk, const char *path,
			 uint64_t bytes)
{
	if (walk->ahead)
		ahead_of(walk, path)->bytes = 0;
	walk->sum += (int64_t)bytes;
	strcpy(walk->at, path);
}

void ucm_quota_walk_end(struct ucm_quota_walk *walk)
{
	for (size_t i = 0; walk->ahead && i < AHEAD_MAX; i++) {
		if (walk->ahead[i].bytes > 0)
			walk->sum += walk->ahead[i].bytes;
	}
	free(walk->ahead);
	walk->ahead = NULL;
	walk->num_ahead = 0;
}

/* What a walk counts has changed. */
static void charge_walk(struct ucm_quota_walk *walk, const char *path,
			int64_t bytes)
{
	if (!path || !walk->mark || !covers(walk->mark->path, path))
		return;
	if (compare_paths(path, walk->at) <= 0)
		walk->sum += bytes;
	else
		charge_ahead(walk, path, bytes);
}

/* from: NULL if it is new there. */
void ucm_files_charge_moved(struct ucm_files_tree *tree, const char *from,
			    const char *to, int64_t bytes)
{
	struct ucm_files_quotas *quotas = bytes ? lock_marks(tree) : NULL;
	struct ucm_files_mark *out, *in;
	bool work = false;

	if (!quotas)
		return;
	out = mark_of(quotas, from);
	in = mark_of(quotas, to);
	if (out && out != in)
		charge_mark(out, -bytes);
	if (in && out != in)
		work = charge_mark(in, bytes);
	charge_walk(&quotas->walk, from, -bytes);
	charge_walk(&quotas->walk, to, bytes);
	if (work)
		pthread_cond_signal(&quotas->work);
	if (from || bytes < 0)
		pthread_cond_broadcast(&quotas->room);
	pthread_mutex_unlock(&quotas->lock);
}

void ucm_files_charge(struct ucm_files_tree *tree, const char *path,
		      int64_t bytes)
{
	ucm_files_charge_moved(tree, NULL, path, bytes);
}

/* ---- room ---- */

static int refuse(struct ucm_files_mark *mark)
{
	mark->refused++;
	return -EDQUOT;
}

/* Under the lock. */
static int wait_for_room(struct ucm_files_quotas *quotas, const char *path)
{
	struct ucm_files_mark *mark;
	struct timespec until;
	int err = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ROOM_WAIT_MS / 1000;
	while ((mark = mark_of(quotas, path)) && ucm_quota_is_reached(mark)) {
		if (err || mark->again_ms > ucm_monotonic_ms())
			return refuse(mark);
		err = ucm_wait_long(UCM_WAIT_MANY);
		if (err)
			return err;
		if (!quotas->running || atomic_load(&quotas->stopping))
			return refuse(mark);
		pthread_cond_signal(&quotas->work);
		err = pthread_cond_timedwait(&quotas->room, &quotas->lock,
					     &until);
	}
	return 0;
}

int ucm_files_quota_room(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_quotas *quotas = lock_marks(tree);
	int err;

	if (!quotas)
		return 0;
	err = wait_for_room(quotas, path);
	pthread_mutex_unlock(&quotas->lock);
	return err;
}

/* ---- what marks say ---- */

struct says {
	uint64_t quota; /* 0: no mark */
	enum ucm_files_order order;
	uint32_t grace_s;
};

/* An empty text is the default. */
static int parse_what(const char *what, const char *text, struct says *says)
{
	uint64_t value;
	int err;

	if (!strcmp(what, "quota")) {
		says->quota = 0;
		return *text ? ucm_parse_bytes(text, &says->quota) : 0;
	}
	if (!strcmp(what, "order")) {
		says->order = UCM_FILES_LRU;
		return *text ? ucm_parse_word(text, ucm_files_orders,
					      UCM_FILES_ORDERS, &says->order)
			     : 0;
	}
	value = UCM_QUOTA_GRACE_S;
	err = *text ? ucm_parse_range(text, 0, UCM_QUOTA_GRACE_MAX_S, &value)
		    : 0;
	says->grace_s = (uint32_t)value;
	return err;
}

static const char *meant_by(const char *what)
{
	return !strcmp(what, "quota")	? "bytes, such as 500G"
	       : !strcmp(what, "order") ? "lru or fifo"
					: "seconds, at most 604800";
}

static const char *const whats[] = { "quota", "order", "grace" };
#define NUM_WHATS (sizeof(whats) / sizeof(whats[0]))

static int set_attribute(int fd, const char *what, const char *value)
{
	char name[VALUE_MAX];
	int err;

	snprintf(name, sizeof(name), XATTR "%s", what);
	err = ucm_os_setxattr(fd, name, *value ? value : NULL, strlen(value),
			      0);
	return err == -ENODATA ? 0 : err;
}

/* Of a folder that is open; what cannot be had is the default. */
static void read_says(int fd, const char *path, struct says *out)
{
	char name[VALUE_MAX], value[VALUE_MAX];

	*out = (struct says){ .grace_s = UCM_QUOTA_GRACE_S };
	for (size_t i = 0; i < NUM_WHATS; i++) {
		int len;

		snprintf(name, sizeof(name), XATTR "%s", whats[i]);
		len = ucm_os_getxattr(fd, name, value, sizeof(value) - 1);
		if (len < 0)
			continue;
		value[len] = '\0';
		if (parse_what(whats[i], value, out))
			ucm_error("%s: %s: \"%s\" is not what is wanted: %s",
				  path, name, value, meant_by(whats[i]));
	}
}

/* Under the lock. */
static int apply(struct ucm_files_quotas *quotas, const char *path,
		 uint64_t number, const struct says *says)
{
	struct ucm_files_mark *mark = mark_of(quotas, path);

	if (mark && (!says->quota || mark->number != number)) {
		remove_mark(quotas, mark);
		mark = NULL;
	}
	if (!says->quota)
		return 0;
	if (!mark && quotas->num == UCM_QUOTA_MARKS) {
		ucm_error("%s: user.ucmfs.quota: %u folders have one already",
			  path, UCM_QUOTA_MARKS);
		return -ENOSPC;
	}
	if (!mark)
		mark = add_mark(quotas, path, number);
	if (!mark)
		return -ENOMEM;
	mark->quota = says->quota;
	mark->order = says->order;
	mark->grace_s = says->grace_s;
	mark->changes++;
	mark->stale = true;
	mark->again_ms = 0;
	mark->full = false;
	pthread_cond_signal(&quotas->work);
	pthread_cond_broadcast(&quotas->room);
	return 0;
}

/* Under loading; fd: of the folder, < 0: there is none. */
static int load(struct ucm_files_quotas *quotas, const char *path, int fd)
{
	struct says says = { 0 };
	struct stat st = { 0 };
	int err;

	if (fd >= 0 && !ucm_os_fstat(fd, &st))
		read_says(fd, path, &says);
	pthread_mutex_lock(&quotas->lock);
	err = apply(quotas, path, st.st_ino, &says);
	pthread_mutex_unlock(&quotas->lock);
	return err;
}

static int open_folder(struct ucm_files_quotas *quotas, const char *path)
{
	return ucm_os_open(quotas->tree->at->dirfd, path,
			   O_PATH | O_DIRECTORY, 0);
}

int ucm_files_quota_load(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	_cleanup_fd_ int fd = -1;
	int err;

	if (!quotas || !is_top(path))
		return 0;
	pthread_mutex_lock(&quotas->loading);
	fd = open_folder(quotas, path);
	err = load(quotas, path, fd);
	pthread_mutex_unlock(&quotas->loading);
	return err;
}

void ucm_files_quota_renamed(struct ucm_files_tree *tree, const char *from,
			     const char *to)
{
	struct ucm_files_quotas *quotas;

	ucm_files_quota_load(tree, from);
	ucm_files_quota_load(tree, to);
	quotas = lock_marks(tree);
	if (!quotas)
		return;
	for (unsigned i = 0; i < quotas->num; i++) {
		struct ucm_files_mark *mark = quotas->marks[i];

		if (covers(mark->path, from) || covers(mark->path, to)) {
			mark->stale = true;
			mark->changes++;
		}
	}
	quotas->walk.mark = NULL;
	pthread_cond_signal(&quotas->work);
	pthread_mutex_unlock(&quotas->lock);
}

/* Under loading. */
static int set_mark(struct ucm_files_quotas *quotas, const char *path, int fd,
		    const char *what, const char *value)
{
	struct says says;
	int err;

	read_says(fd, path, &says);
	if (!says.quota && strcmp(what, "quota")) {
		if (!*value)
			return 0;
		ucm_error("%s: user.ucmfs.%s: the folder has no "
			  "user.ucmfs.quota; set that first",
			  path, what);
		return -EINVAL;
	}
	err = set_attribute(fd, what, value);
	for (size_t i = 1; i < NUM_WHATS && !err && !strcmp(what, "quota") &&
			   !*value;
	     i++)
		err = set_attribute(fd, whats[i], "");
	if (err)
		ucm_error("%s: user.ucmfs.%s: %s", path, what, strerror(-err));
	if (!err)
		err = load(quotas, path, fd);
	if (err == -ENOSPC)
		set_attribute(fd, what, "");
	return err;
}

int ucm_files_mark_set(struct ucm_files_tree *tree, const char *path,
		       const char *what, const char *text, size_t size)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	_cleanup_fd_ int fd = -1;
	char value[VALUE_MAX] = "";
	struct says says;
	int err = -EINVAL;

	if (!quotas || !is_top(path)) {
		ucm_error("%s: user.ucmfs.%s: only folders right in "
			  UCM_FILES_ROOT "/ have quotas", path, what);
		return -EOPNOTSUPP;
	}
	if (size < sizeof(value)) {
		memcpy(value, text, size);
		err = parse_what(what, value, &says);
	}
	if (err) {
		ucm_error("%s: user.ucmfs.%s: \"%.*s\" is not what is wanted: "
			  "%s",
			  path, what, (int)(size < 64 ? size : 64), text,
			  meant_by(what));
		return -EINVAL;
	}
	if (tree->at->medium.readonly)
		return -EROFS;
	pthread_mutex_lock(&quotas->loading);
	fd = open_folder(quotas, path);
	err = fd < 0 ? fd : set_mark(quotas, path, fd, what, value);
	pthread_mutex_unlock(&quotas->loading);
	return err;
}

/* ---- life ---- */

static int64_t wall_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return ucm_time_ns(&now);
}

static void load_all(struct ucm_files_tree *tree)
{
	struct ucm_files_entries tops;
	char path[PATH_MAX];

	if (ucm_files_entries(tree->at->dirfd, UCM_FILES_ROOT, &tops))
		return;
	for (size_t i = 0; i < tops.num; i++) {
		snprintf(path, sizeof(path), UCM_FILES_ROOT "/%s",
			 tops.list[i].name);
		if (tops.list[i].type == DT_DIR)
			ucm_files_quota_load(tree, path);
	}
	ucm_files_entries_free(&tops);
}

int ucm_files_quotas_open(struct ucm_files_tree *tree)
{
	struct ucm_files_quotas *quotas = calloc(1, sizeof(*quotas));

	if (!quotas)
		return -ENOMEM;
	quotas->tree = tree;
	quotas->now_ns = wall_ns;
	pthread_mutex_init(&quotas->loading, NULL);
	pthread_mutex_init(&quotas->lock, NULL);
	ucm_cond_init_monotonic(&quotas->work);
	ucm_cond_init_monotonic(&quotas->room);
	tree->quotas = quotas;
	load_all(tree);
	return 0;
}

void ucm_files_quotas_close(struct ucm_files_tree *tree)
{
	struct ucm_files_quotas *quotas = tree->quotas;

	if (!quotas)
		return;
	tree->quotas = NULL;
	for (unsigned i = 0; i < quotas->num; i++)
		ucm_quota_mark_free(quotas->marks[i]);
	pthread_cond_destroy(&quotas->room);
	pthread_cond_destroy(&quotas->work);
	pthread_mutex_destroy(&quotas->lock);
	pthread_mutex_destroy(&quotas->loading);
	free(quotas);
}

/* ---- what there is ---- */

/* Under the lock. */
static void fill_info(const struct ucm_files_mark *mark,
		      struct ucm_files_mark_info *out)
{
	*out = (struct ucm_files_mark_info){
		.number = mark->number,
		.quota = mark->quota,
		.used = mark->used > 0 ? (uint64_t)mark->used : 0,
		.order = mark->order,
		.grace_s = mark->grace_s,
		.counted = mark->counted,
		.files_evicted = mark->files_evicted,
		.bytes_evicted = mark->bytes_evicted,
		.refused = mark->refused,
	};
}

bool ucm_files_quota_of(struct ucm_files_tree *tree, const char *path,
			struct ucm_files_mark_info *out)
{
	struct ucm_files_quotas *quotas = lock_marks(tree);
	struct ucm_files_mark *mark;

	if (!quotas)
		return false;
	mark = mark_of(quotas, path);
	if (mark)
		fill_info(mark, out);
	pthread_mutex_unlock(&quotas->lock);
	return mark;
}

bool ucm_files_mark_get(struct ucm_files_tree *tree, const char *path,
			struct ucm_files_mark_info *out)
{
	return is_top(path) && ucm_files_quota_of(tree, path, out);
}

size_t ucm_files_marks(struct ucm_files_tree *tree,
		       struct ucm_files_mark_info **out)
{
	struct ucm_files_quotas *quotas = lock_marks(tree);
	struct ucm_files_mark_info *list;
	size_t num = 0;

	*out = NULL;
	if (!quotas)
		return 0;
	*out = list = calloc(UCM_QUOTA_MARKS, sizeof(*list));
	for (unsigned i = 0; list && i < quotas->num; i++) {
		fill_info(quotas->marks[i], &list[num]);
		list[num].path = strdup(quotas->marks[i]->path);
		num += list[num].path != NULL;
	}
	pthread_mutex_unlock(&quotas->lock);
	return num;
}

void ucm_files_marks_free(struct ucm_files_mark_info *marks, size_t num)
{
	for (size_t i = 0; i < num; i++)
		free(marks[i].path);
	free(marks);
}

bool ucm_files_quota_by_use(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_mark_info mark;

	return ucm_files_quota_of(tree, path, &mark) &&
	       mark.order == UCM_FILES_LRU;
}
