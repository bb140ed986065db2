/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.c - marked folders of files/: what marks say, and what folders take;
 * see quota.h.
 *
 * Charges. Whoever changes what a file takes has its name locked, so that the
 * charges of one file come in order. Each goes to the marks that the path is
 * in, by directory. While a walk counts a mark anew, it notes where it has come
 * to, in the order of names. A charge on what it has passed is added to its
 * sum. One on what lies ahead is kept: it is forgotten when the walk comes to
 * that file and sees the result; what is left at the end are files that were
 * made where the names had been read already, which count, and files that were
 * removed, which do not. So counts are right however long a walk takes, but for
 * files that change at the very moment that it looks at them; and the next walk
 * puts that right.
 *
 * Notes. A line for each mark: quota, order, grace, number, length of the path,
 * path. They are replaced as a whole, and what could be written to one
 * directory holds. In memory a mark changes after its note. A rename of a
 * folder writes the marks under both names before, and under the new name after
 * it: a crash in between leaves a mark on a folder that is not there.
 */
#include <config.h>

#include "fs/files/quota.h"

#include <errno.h>
#include <inttypes.h>
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
#include "fs/files/quota_marks.h"
#include "fs/tier/wait.h"

#define NOTE "quotas" /* in .ucmfs */
#define NOTE_HEAD "ucmfs-quotas 1 "
#define LINE_MAX_BYTES (PATH_MAX + 128)
#define NOTE_MAX (UCM_QUOTA_MARKS * LINE_MAX_BYTES + 64)
#define ROOM_WAIT_MS 5000
#define SEE_WHOLE 4096u
#define VALUE_MAX 32
#define AHEAD_MAX (1u << 20)

const char *const ucm_files_orders[UCM_FILES_ORDERS] = { "lru", "fifo" };

/* ---- paths ---- */

bool ucm_quota_covers(const char *folder, size_t len, const char *path)
{
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

static struct ucm_files_mark *find_mark(struct ucm_files_quotas *quotas,
					const char *path)
{
	for (unsigned i = 0; i < quotas->num; i++) {
		if (!strcmp(quotas->marks[i]->path, path))
			return quotas->marks[i];
	}
	return NULL;
}

static struct ucm_files_mark *add_mark(struct ucm_files_quotas *quotas,
				       const char *path)
{
	struct ucm_files_mark *mark = calloc(1, sizeof(*mark));

	if (mark)
		mark->path = strdup(path);
	if (!mark || !mark->path) {
		free(mark);
		return NULL;
	}
	mark->len = strlen(path);
	mark->grace_s = UCM_QUOTA_GRACE_S;
	mark->stale = true;
	quotas->marks[quotas->num] = mark;
	atomic_fetch_add(&quotas->num, 1);
	return mark;
}

static void remove_mark(struct ucm_files_quotas *quotas, unsigned i)
{
	struct ucm_files_mark *mark = quotas->marks[i];

	atomic_fetch_sub(&quotas->num, 1);
	memmove(&quotas->marks[i], &quotas->marks[i + 1],
		(quotas->num - i) * sizeof(mark));
	mark->gone = true;
	if (!mark->held)
		ucm_quota_mark_free(mark);
	pthread_cond_broadcast(&quotas->room);
}

/* Those of a folder and of all below it. */
static void remove_marks(struct ucm_files_quotas *quotas, const char *path)
{
	for (unsigned i = quotas->num; i-- > 0;) {
		if (ucm_quota_covers(path, strlen(path),
				     quotas->marks[i]->path))
			remove_mark(quotas, i);
	}
}

/* What it takes is no longer known. */
static void count_anew(struct ucm_files_quotas *quotas, const char *path)
{
	for (unsigned i = 0; i < quotas->num; i++) {
		struct ucm_files_mark *mark = quotas->marks[i];

		if (ucm_quota_covers(mark->path, mark->len, path)) {
			mark->stale = true;
			mark->changes++;
		}
	}
	pthread_cond_signal(&quotas->work);
}

static bool is_in(struct ucm_files_quotas *quotas, const char *path)
{
	for (unsigned i = 0; i < quotas->num; i++) {
		if (ucm_quota_covers(path, strlen(path),
				     quotas->marks[i]->path))
			return true;
	}
	return false;
}

/* ---- charges ---- */

/* To one mark. Is there work for the thread? */
static bool charge_mark(struct ucm_files_mark *mark, unsigned dir,
			int64_t bytes)
{
	mark->used[dir] += bytes;
	mark->total += bytes;
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

/* Where a hash is, or belongs. */
static struct ucm_quota_ahead *ahead_of(struct ucm_quota_ahead *table,
					size_t room, uint64_t hash)
{
	size_t i = hash & (room - 1);

	while (table[i].hash && table[i].hash != hash)
		i = (i + 1) & (room - 1);
	return &table[i];
}

/* At most half of the table is used; false: no memory, or too many. */
static bool make_room_ahead(struct ucm_quota_walk *walk)
{
	size_t room = walk->room_ahead ? 2 * walk->room_ahead : 64;
	struct ucm_quota_ahead *table;

	if (2 * (walk->num_ahead + 1) <= walk->room_ahead)
		return true;
	table = room <= AHEAD_MAX ? calloc(room, sizeof(*table)) : NULL;
	if (!table)
		return false;
	for (size_t i = 0; i < walk->room_ahead; i++) {
		if (walk->ahead[i].hash)
			*ahead_of(table, room, walk->ahead[i].hash) =
				walk->ahead[i];
	}
	free(walk->ahead);
	walk->ahead = table;
	walk->room_ahead = room;
	return true;
}

static void charge_ahead(struct ucm_quota_walk *walk, const char *path,
			 int64_t bytes)
{
	struct ucm_quota_ahead *ahead;

	if (!make_room_ahead(walk))
		return; /* the next walk sees it */
	ahead = ahead_of(walk->ahead, walk->room_ahead, hash_of(path));
	walk->num_ahead += !ahead->hash;
	ahead->hash = hash_of(path);
	ahead->bytes += bytes;
}

void ucm_quota_walk_begin(struct ucm_quota_walk *walk, unsigned dir)
{
	walk->dir = dir;
	walk->sum = 0;
	*walk->at = '\0';
}

void ucm_quota_walk_pass(struct ucm_quota_walk *walk, const char *path,
			 uint64_t bytes)
{
	struct ucm_quota_ahead *ahead =
		walk->num_ahead ? ahead_of(walk->ahead, walk->room_ahead,
					   hash_of(path))
				: NULL;

	if (ahead)
		ahead->bytes = 0;
	walk->sum += (int64_t)bytes;
	strcpy(walk->at, path);
}

void ucm_quota_walk_end(struct ucm_quota_walk *walk)
{
	for (size_t i = 0; i < walk->room_ahead; i++) {
		if (walk->ahead[i].bytes > 0)
			walk->sum += walk->ahead[i].bytes;
	}
	free(walk->ahead);
	walk->ahead = NULL;
	walk->num_ahead = walk->room_ahead = 0;
}

/* What a walk counts has changed. */
static void charge_walk(struct ucm_quota_walk *walk, unsigned dir,
			const char *path, int64_t bytes)
{
	if (!walk->mark || walk->dir != dir ||
	    !ucm_quota_covers(walk->mark->path, walk->mark->len, path))
		return;
	if (compare_paths(path, walk->at) <= 0)
		walk->sum += bytes;
	else
		charge_ahead(walk, path, bytes);
}

/* From one path, to another; either may be NULL. */
static void charge(struct ucm_files_tree *tree, unsigned dir, const char *from,
		   const char *to, int64_t bytes)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	bool work = false;

	if (!quotas || !bytes || !atomic_load(&quotas->num))
		return;
	pthread_mutex_lock(&quotas->lock);
	for (unsigned i = 0; i < quotas->num; i++) {
		struct ucm_files_mark *mark = quotas->marks[i];
		bool in = to && ucm_quota_covers(mark->path, mark->len, to);
		bool out = from &&
			   ucm_quota_covers(mark->path, mark->len, from);

		if (in != out)
			work |= charge_mark(mark, dir, in ? bytes : -bytes);
	}
	if (from)
		charge_walk(&quotas->walk, dir, from, -bytes);
	if (to)
		charge_walk(&quotas->walk, dir, to, bytes);
	if (work)
		pthread_cond_signal(&quotas->work);
	if (from || bytes < 0)
		pthread_cond_broadcast(&quotas->room);
	pthread_mutex_unlock(&quotas->lock);
}

void ucm_files_charge(struct ucm_files_tree *tree, unsigned dir,
		      const char *path, int64_t bytes)
{
	charge(tree, dir, NULL, path, bytes);
}

void ucm_files_charge_moved(struct ucm_files_tree *tree, unsigned dir,
			    const char *from, const char *to, int64_t bytes)
{
	charge(tree, dir, from, to, bytes);
}

/* ---- room ---- */

/* A mark above a path whose quota is used up, or NULL. */
static struct ucm_files_mark *reached(struct ucm_files_quotas *quotas,
				      const char *path)
{
	for (unsigned i = 0; i < quotas->num; i++) {
		struct ucm_files_mark *mark = quotas->marks[i];

		if (ucm_quota_covers(mark->path, mark->len, path) &&
		    ucm_quota_is_reached(mark))
			return mark;
	}
	return NULL;
}

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
	while ((mark = reached(quotas, path))) {
		if (err || mark->again_ms > ucm_monotonic_ms() ||
		    !quotas->running || atomic_load(&quotas->stopping))
			return refuse(mark);
		pthread_cond_signal(&quotas->work);
		err = pthread_cond_timedwait(&quotas->room, &quotas->lock,
					     &until);
	}
	return 0;
}

int ucm_files_quota_room(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	struct ucm_files_mark *mark;
	int err = 0;

	if (!quotas || !atomic_load(&quotas->num))
		return 0;
	pthread_mutex_lock(&quotas->lock);
	mark = reached(quotas, path);
	if (mark && mark->again_ms > ucm_monotonic_ms())
		err = refuse(mark);
	else if (mark)
		err = ucm_wait_long_for_any(tree->dirs);
	if (mark && !err)
		err = wait_for_room(quotas, path);
	pthread_mutex_unlock(&quotas->lock);
	return err;
}

/* ---- notes ---- */

static size_t put_line(char *text, const struct ucm_files_mark *mark,
		       const char *path)
{
	return (size_t)sprintf(text, "%" PRIu64 " %s %" PRIu32 " %" PRIu32
			       " %zu %s\n",
			       mark->quota, ucm_files_orders[mark->order],
			       mark->grace_s, mark->number, strlen(path), path);
}

/* Another name that marks are to have, for a while or for good. */
struct moving {
	const char *from, *to;
	bool both;
};

/* The path of a mark as it is to be; false: it stays. */
static bool moved_path(const struct ucm_files_mark *mark,
		       const struct moving *moving, char path[PATH_MAX])
{
	size_t len = moving ? strlen(moving->from) : 0;

	return moving && ucm_quota_covers(moving->from, len, mark->path) &&
	       snprintf(path, PATH_MAX, "%s%s", moving->to, mark->path + len) <
		       PATH_MAX;
}

/* Under writing and lock: of all marks. */
static size_t put_note(struct ucm_files_quotas *quotas, char *text,
		       const struct moving *moving)
{
	size_t len = (size_t)sprintf(text, NOTE_HEAD "%" PRIu64 "\n",
				     quotas->serial);
	unsigned lines = 0;

	for (unsigned i = 0; i < quotas->num; i++) {
		const struct ucm_files_mark *mark = quotas->marks[i];
		char path[PATH_MAX];
		bool moves = moved_path(mark, moving, path);

		if (moves && lines < UCM_QUOTA_MARKS) {
			len += put_line(text + len, mark, path);
			lines++;
		}
		if ((!moves || moving->both) && lines < UCM_QUOTA_MARKS) {
			len += put_line(text + len, mark, mark->path);
			lines++;
		}
	}
	return len;
}

/* Under writing. To all directories that can be written to: 0 if there is one,
 * else the error of the last. */
static int write_note(struct ucm_files_quotas *quotas,
		      const struct moving *moving)
{
	struct ucm_dirs *dirs = quotas->tree->dirs;
	_cleanup_free_ char *text = malloc(NOTE_MAX);
	int err = -EROFS;
	size_t len;

	if (!text)
		return -ENOMEM;
	quotas->serial++;
	pthread_mutex_lock(&quotas->lock);
	len = put_note(quotas, text, moving);
	pthread_mutex_unlock(&quotas->lock);
	for (unsigned dir = 0; dir < dirs->num; dir++) {
		int failed;

		if (dirs->at[dir]->readonly)
			continue;
		failed = ucm_os_replace_file(
			ucm_files_directory(quotas->tree, dir)->ctlfd, NOTE,
			text, len);
		if (failed)
			ucm_warning("%s/" UCM_TREE_OWN "/" NOTE ": %s",
				    dirs->at[dir]->path, strerror(-failed));
		if (!failed || err)
			err = failed;
	}
	return err;
}

/* A line; *at is moved behind it. False: it is none. */
static bool parse_line(struct ucm_files_quotas *quotas, char **at)
{
	uint64_t quota;
	unsigned number, grace, path_len;
	struct ucm_files_mark *mark;
	enum ucm_files_order order = 0;
	char word[8], *path;
	int used;

	if (sscanf(*at, "%" SCNu64 " %7s %u %u %u%n", &quota, word, &grace,
		   &number, &path_len, &used) != 5)
		return false;
	while (order < UCM_FILES_ORDERS &&
	       strcmp(ucm_files_orders[order], word))
		order++;
	path = *at + used + 1;
	if (order == UCM_FILES_ORDERS || path_len >= PATH_MAX ||
	    (*at)[used] != ' ' || strnlen(path, path_len + 1) <= path_len ||
	    path[path_len] != '\n' || quotas->num == UCM_QUOTA_MARKS)
		return false;
	path[path_len] = '\0';
	if (!ucm_quota_covers(UCM_FILES_ROOT, strlen(UCM_FILES_ROOT), path))
		return false;
	mark = add_mark(quotas, path);
	if (!mark)
		return false;
	mark->quota = quota;
	mark->order = order;
	mark->grace_s = grace;
	mark->number = number;
	if (number >= quotas->next_number)
		quotas->next_number = number + 1;
	*at = path + path_len + 1;
	return true;
}

/* The serial number of a note, 0 if it is none. */
static uint64_t serial_of(const char *text)
{
	size_t len = strlen(NOTE_HEAD);

	return strncmp(text, NOTE_HEAD, len) ? 0
					     : strtoull(text + len, NULL, 10);
}

/* The newest of all directories, in text (NOTE_MAX bytes); where it was. */
static const char *newest_note(struct ucm_files_quotas *quotas, char *text)
{
	struct ucm_dirs *dirs = quotas->tree->dirs;
	_cleanup_free_ char *note = malloc(NOTE_MAX);
	const char *where = NULL;

	for (unsigned dir = 0; note && dir < dirs->num; dir++) {
		int err = ucm_os_read_file(
			ucm_files_directory(quotas->tree, dir)->ctlfd, NOTE,
			note, NOTE_MAX);

		if (!err && !serial_of(note))
			err = -EINVAL;
		if (err && err != -ENOENT)
			ucm_error("%s/" UCM_TREE_OWN "/" NOTE ": %s: the marks "
				  "of other directories hold",
				  dirs->at[dir]->path, strerror(-err));
		if (err || serial_of(note) <= quotas->serial)
			continue;
		quotas->serial = serial_of(note);
		where = dirs->at[dir]->path;
		strcpy(text, note);
	}
	return where;
}

static int read_notes(struct ucm_files_quotas *quotas)
{
	_cleanup_free_ char *text = malloc(NOTE_MAX);
	const char *where = text ? newest_note(quotas, text) : NULL;
	char *at;

	if (!text)
		return -ENOMEM;
	if (!where)
		return 0;
	at = strchr(text, '\n');
	for (at = at ? at + 1 : text; *at;) {
		if (parse_line(quotas, &at))
			continue;
		ucm_error("%s/" UCM_TREE_OWN "/" NOTE ": from here on it "
			  "cannot be read: %.60s",
			  where, at);
		break;
	}
	return 0;
}

/* ---- life ---- */

static int64_t wall_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return ucm_time_ns(&now);
}

int ucm_files_quotas_open(struct ucm_files_tree *tree)
{
	struct ucm_files_quotas *quotas = calloc(1, sizeof(*quotas));
	int err;

	if (!quotas)
		return -ENOMEM;
	*quotas = (struct ucm_files_quotas){
		.tree = tree,
		.next_number = 1,
		.now_ns = wall_ns,
		.see_whole = SEE_WHOLE,
		.random = (uint64_t)wall_ns(),
	};
	pthread_mutex_init(&quotas->writing, NULL);
	pthread_mutex_init(&quotas->lock, NULL);
	ucm_cond_init_monotonic(&quotas->work);
	ucm_cond_init_monotonic(&quotas->room);
	tree->quotas = quotas;
	err = read_notes(quotas);
	if (err)
		ucm_files_quotas_close(tree);
	return err;
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
	pthread_mutex_destroy(&quotas->writing);
	free(quotas);
}

/* ---- setting ---- */

/* What a mark shall say. */
struct says {
	uint64_t quota; /* 0: no mark */
	enum ucm_files_order order;
	uint32_t grace_s;
};

static int parse_order(const char *text, enum ucm_files_order *out)
{
	for (int order = 0; order < UCM_FILES_ORDERS; order++) {
		if (!strcmp(text, ucm_files_orders[order])) {
			*out = order;
			return 0;
		}
	}
	return -EINVAL;
}

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
		return *text ? parse_order(text, &says->order) : 0;
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

/* Under writing. Of what a mark says now, or would by default. */
static void says_now(struct ucm_files_quotas *quotas, const char *path,
		     struct says *out)
{
	struct ucm_files_mark *mark;

	*out = (struct says){ .grace_s = UCM_QUOTA_GRACE_S };
	pthread_mutex_lock(&quotas->lock);
	mark = find_mark(quotas, path);
	if (mark)
		*out = (struct says){ mark->quota, mark->order, mark->grace_s };
	pthread_mutex_unlock(&quotas->lock);
}

/* Under writing: so, in memory. */
static int apply(struct ucm_files_quotas *quotas, const char *path,
		 const struct says *says)
{
	struct ucm_files_mark *mark;
	int err = 0;

	pthread_mutex_lock(&quotas->lock);
	mark = find_mark(quotas, path);
	if (!says->quota) {
		for (unsigned i = quotas->num; i-- > 0;) {
			if (quotas->marks[i] == mark)
				remove_mark(quotas, i);
		}
		pthread_mutex_unlock(&quotas->lock);
		return 0;
	}
	if (!mark && quotas->num < UCM_QUOTA_MARKS) {
		mark = add_mark(quotas, path);
		if (mark)
			mark->number = quotas->next_number++;
	} else if (!mark) {
		err = -ENOSPC;
	}
	if (mark) {
		mark->quota = says->quota;
		mark->order = says->order;
		mark->grace_s = says->grace_s;
		mark->changes++;
		mark->again_ms = 0;
		mark->full = false;
		pthread_cond_signal(&quotas->work);
		pthread_cond_broadcast(&quotas->room);
	} else if (!err) {
		err = -ENOMEM;
	}
	pthread_mutex_unlock(&quotas->lock);
	return err;
}

int ucm_files_mark_set(struct ucm_files_tree *tree, const char *path,
		       const char *what, const char *text, size_t size)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	char value[VALUE_MAX] = "";
	struct says before, says;
	int err = -EINVAL;

	if (!quotas)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&quotas->writing);
	says_now(quotas, path, &before);
	says = before;
	if (size < sizeof(value)) {
		memcpy(value, text, size);
		err = parse_what(what, value, &says);
	}
	if (err) {
		err = -EINVAL;
		ucm_error("%s: user.ucmfs.%s: \"%.*s\" is not what is wanted: "
			  "%s",
			  path, what, (int)(size < 64 ? size : 64), text,
			  meant_by(what));
	} else if (!before.quota && !says.quota && *value &&
		   strcmp(what, "quota")) {
		err = -EINVAL;
		ucm_error("%s: user.ucmfs.%s: the folder has no "
			  "user.ucmfs.quota; set that first",
			  path, what);
	}
	if (!err)
		err = apply(quotas, path, &says);
	if (err == -ENOSPC)
		ucm_error("%s: user.ucmfs.quota: %u folders have one already",
			  path, UCM_QUOTA_MARKS);
	if (!err && (before.quota || says.quota)) {
		err = write_note(quotas, NULL);
		if (err) /* it would not be so at the next start */
			apply(quotas, path, &before);
	}
	pthread_mutex_unlock(&quotas->writing);
	return err;
}

/* ---- folders that come and go ---- */

bool ucm_files_quota_is_in(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	bool found;

	if (!quotas || !atomic_load(&quotas->num))
		return false;
	pthread_mutex_lock(&quotas->lock);
	found = is_in(quotas, path);
	pthread_mutex_unlock(&quotas->lock);
	return found;
}

void ucm_files_quota_forget(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_quotas *quotas = tree->quotas;

	if (!ucm_files_quota_is_in(tree, path))
		return;
	pthread_mutex_lock(&quotas->writing);
	pthread_mutex_lock(&quotas->lock);
	remove_marks(quotas, path);
	pthread_mutex_unlock(&quotas->lock);
	/* it has logged; a mark of nothing is harmless */
	write_note(quotas, NULL);
	pthread_mutex_unlock(&quotas->writing);
}

int ucm_files_quota_moving(struct ucm_files_tree *tree, const char *from,
			   const char *to)
{
	struct moving moving = { .from = from, .to = to, .both = true };
	struct ucm_files_quotas *quotas = tree->quotas;
	int err;

	if (!ucm_files_quota_is_in(tree, from))
		return 0;
	pthread_mutex_lock(&quotas->writing);
	err = write_note(quotas, &moving);
	pthread_mutex_unlock(&quotas->writing);
	return err;
}

/* Under the lock. What is marked there was an empty folder, and is gone. */
static void move_marks(struct ucm_files_quotas *quotas, const char *from,
		       const char *to)
{
	struct moving moving = { .from = from, .to = to };
	char path[PATH_MAX], *copy;

	remove_marks(quotas, to);
	for (unsigned i = 0; i < quotas->num; i++) {
		struct ucm_files_mark *mark = quotas->marks[i];

		if (!moved_path(mark, &moving, path))
			continue;
		copy = strdup(path);
		if (!copy)
			continue; /* the note has it, for the next start */
		free(mark->path);
		mark->path = copy;
		mark->len = strlen(copy);
		mark->stale = true;
		mark->changes++;
	}
	quotas->walk.mark = NULL;
	count_anew(quotas, from);
	count_anew(quotas, to);
}

void ucm_files_quota_moved(struct ucm_files_tree *tree, const char *from,
			   const char *to, bool done)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	bool write;

	if (!quotas || !atomic_load(&quotas->num))
		return;
	pthread_mutex_lock(&quotas->writing);
	pthread_mutex_lock(&quotas->lock);
	write = is_in(quotas, from) || (done && is_in(quotas, to));
	if (done)
		move_marks(quotas, from, to);
	pthread_mutex_unlock(&quotas->lock);
	if (write)
		write_note(quotas, NULL);
	pthread_mutex_unlock(&quotas->writing);
}

/* ---- what there is ---- */

/* Under the lock. */
static void fill_info(const struct ucm_files_mark *mark,
		      struct ucm_files_mark_info *out)
{
	*out = (struct ucm_files_mark_info){
		.number = mark->number,
		.quota = mark->quota,
		.used = mark->total > 0 ? (uint64_t)mark->total : 0,
		.order = mark->order,
		.grace_s = mark->grace_s,
		.counted = mark->counted,
		.files_evicted = mark->files_evicted,
		.bytes_evicted = mark->bytes_evicted,
		.refused = mark->refused,
	};
}

bool ucm_files_mark_get(struct ucm_files_tree *tree, const char *path,
			struct ucm_files_mark_info *out)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	struct ucm_files_mark *mark;

	if (!quotas || !atomic_load(&quotas->num))
		return false;
	pthread_mutex_lock(&quotas->lock);
	mark = find_mark(quotas, path);
	if (mark)
		fill_info(mark, out);
	pthread_mutex_unlock(&quotas->lock);
	return mark;
}

size_t ucm_files_marks(struct ucm_files_tree *tree,
		       struct ucm_files_mark_info **out)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	struct ucm_files_mark_info *list;
	size_t num = 0;

	*out = NULL;
	if (!quotas || !atomic_load(&quotas->num))
		return 0;
	list = calloc(UCM_QUOTA_MARKS, sizeof(*list));
	if (!list)
		return 0;
	pthread_mutex_lock(&quotas->lock);
	for (unsigned i = 0; i < quotas->num; i++) {
		fill_info(quotas->marks[i], &list[num]);
		list[num].path = strdup(quotas->marks[i]->path);
		num += list[num].path != NULL;
	}
	pthread_mutex_unlock(&quotas->lock);
	*out = list;
	return num;
}

void ucm_files_marks_free(struct ucm_files_mark_info *marks, size_t num)
{
	for (size_t i = 0; i < num; i++)
		free(marks[i].path);
	free(marks);
}

static int64_t room_left(const struct ucm_files_mark *mark)
{
	return (int64_t)mark->quota - mark->total;
}

bool ucm_files_quota_of(struct ucm_files_tree *tree, const char *path,
			struct ucm_files_mark_info *out)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	struct ucm_files_mark *least = NULL;

	if (!quotas || !atomic_load(&quotas->num))
		return false;
	pthread_mutex_lock(&quotas->lock);
	for (unsigned i = 0; i < quotas->num; i++) {
		struct ucm_files_mark *mark = quotas->marks[i];

		if (ucm_quota_covers(mark->path, mark->len, path) &&
		    (!least || room_left(mark) < room_left(least)))
			least = mark;
	}
	if (least)
		fill_info(least, out);
	pthread_mutex_unlock(&quotas->lock);
	return least;
}

bool ucm_files_quota_by_use(struct ucm_files_tree *tree, const char *path)
{
	struct ucm_files_quotas *quotas = tree->quotas;
	bool by_use = false;

	if (!quotas || !atomic_load(&quotas->num))
		return false;
	pthread_mutex_lock(&quotas->lock);
	for (unsigned i = 0; i < quotas->num; i++) {
		struct ucm_files_mark *mark = quotas->marks[i];

		by_use |= mark->order == UCM_FILES_LRU &&
			  ucm_quota_covers(mark->path, mark->len, path);
	}
	pthread_mutex_unlock(&quotas->lock);
	return by_use;
}
