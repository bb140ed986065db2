/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fresh.c - what other daemons add to shared directories, take from them, and use.
 *
 * There a name that the index lacks is not absent but unknown. A look-up of one has
 * its bucket looked at, at most once in two seconds: one stat of the folder that the server
 * answers, after which names are no longer absent because a kernel remembers it so
 * (NFS does for 30 s and more, also when the name itself is asked for). Where the
 * folder has changed it is listed. What is new enters the index as at the scan; what
 * is no longer there leaves it.
 *
 * A folder's times are coarse: of two names that are made in one tick the listing may
 * have met the first alone. So it is listed once more at the next look, which is later
 * than that tick. And since some servers do not show each change, it is listed after
 * LIST_MS in any case.
 *
 * Uses are shared as the files' times of access, which each daemon sets once in USES_S
 * for what it has used. A block that is about to be evicted is looked at: one that
 * another daemon has used or pinned stays.
 *
 * Locks: one for the buckets of a space that have the same number modulo LOCKS, over a
 * look; so it is above the locks of names, and no caller has one of these.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "fs/medium/shared/hosts.h"
#include "hashing/tree.h"

#define LIST_MS 30000
#define REST 10 /* times as long as it took to list a bucket */
#define LOCKS 16
#define USES_S 60 /* how often uses are shared */

int64_t ucm_fresh_age_ms = 2000;

/* A bucket of a directory, as it was at the last look. */
struct fresh_bucket {
	_Atomic int64_t due_ms; /* the next look */
	int64_t listed_ms;
	ino_t ino; /* 0: it was not there */
	int64_t mtime_ns, ctime_ns;
	unsigned lists; /* that are owed */
};

struct ucm_fresh {
	pthread_mutex_t locks[LOCKS];
	struct fresh_bucket at[]; /* by directory and bucket */
};

bool ucm_store_is_shared(const struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (store->dirs.at[dir]->hosts)
			return true;
	}
	return false;
}

/* NULL: no memory, and what others have added is not there. */
static struct ucm_fresh *fresh_of(struct ucm_store *store,
				  struct ucm_space *space)
{
	struct ucm_fresh *fresh = atomic_load(&space->fresh), *other = NULL;

	if (fresh)
		return fresh;
	fresh = calloc(1, sizeof(*fresh) + (size_t)store->dirs.num *
						   UCM_BUCKETS *
						   sizeof(fresh->at[0]));
	if (!fresh)
		return NULL;
	for (unsigned i = 0; i < LOCKS; i++)
		pthread_mutex_init(&fresh->locks[i], NULL);
	if (atomic_compare_exchange_strong(&space->fresh, &other, fresh))
		return fresh;
	free(fresh);
	return other;
}

/* ---- one look ---- */

/* A folder that another daemon has made may be absent here for the same reason as a
 * name: the folders above it are asked for first. */
static int stamp_folder(struct ucm_medium *medium, const char *folder,
			unsigned bucket, struct stat *out)
{
	int err = ucm_medium_stamp(medium, folder, bucket, out);

	if (err != -ENOENT)
		return err;
	medium->ops->stat(medium, *ucm_tree_folder_name(folder)
					  ? UCM_TREE_SPACES
					  : ".",
			  out);
	medium->ops->stat(medium, folder, out);
	return ucm_medium_stamp(medium, folder, bucket, out);
}

static void fresh_note(struct fresh_bucket *at, const struct stat *st)
{
	if (at->ino != st->st_ino ||
	    at->mtime_ns != ucm_time_ns(&st->st_mtim) ||
	    at->ctime_ns != ucm_time_ns(&st->st_ctim))
		at->lists = 2;
	at->ino = st->st_ino;
	at->mtime_ns = ucm_time_ns(&st->st_mtim);
	at->ctime_ns = ucm_time_ns(&st->st_ctim);
}

static int64_t more_of(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* What fails is a miss, and tried again after ucm_fresh_age_ms. */
static void fresh_look(struct ucm_store *store, struct ucm_space *space,
		       unsigned dir, unsigned bucket, struct fresh_bucket *at)
{
	int64_t now = ucm_monotonic_ms();
	struct stat st;
	int err = stamp_folder(store->dirs.at[dir], space->folder, bucket, &st);

	atomic_store(&at->due_ms, now + ucm_fresh_age_ms);
	if (err)
		return;
	fresh_note(at, &st);
	if (!at->lists && now - at->listed_ms < LIST_MS)
		return;
	if (ucm_store_scan_bucket(store, space, dir, bucket))
		return;
	at->listed_ms = now;
	if (at->lists)
		at->lists--;
	now = ucm_monotonic_ms();
	atomic_store(&at->due_ms,
		     now + more_of(ucm_fresh_age_ms, REST * (now - at->listed_ms)));
}

static bool is_due(const struct fresh_bucket *at)
{
	return ucm_monotonic_ms() >= atomic_load(&at->due_ms);
}

static int freshen(struct ucm_store *store, struct ucm_space *space,
		   unsigned dir, unsigned bucket)
{
	struct ucm_fresh *fresh = fresh_of(store, space);
	struct fresh_bucket *at;
	int err;

	if (!fresh)
		return 0;
	at = &fresh->at[dir * UCM_BUCKETS + bucket];
	if (!is_due(at) || !ucm_medium_answers(store->dirs.at[dir]))
		return 0;
	err = ucm_wait_for(&store->dirs, dir);
	if (err)
		return err;
	pthread_mutex_lock(&fresh->locks[bucket % LOCKS]);
	if (is_due(at))
		fresh_look(store, space, dir, bucket, at);
	pthread_mutex_unlock(&fresh->locks[bucket % LOCKS]);
	return 0;
}

int ucm_store_freshen(struct ucm_store *store, struct ucm_space *space,
		      unsigned bucket)
{
	int err = 0;

	for (unsigned dir = 0; dir < store->dirs.num && !err; dir++) {
		if (store->dirs.at[dir]->hosts)
			err = freshen(store, space, dir, bucket);
	}
	return err;
}

void ucm_store_freshen_all(struct ucm_store *store, unsigned dir)
{
	for (unsigned i = 0; i < store->names.num; i++) {
		struct ucm_space *space = ucm_namespace_get(&store->names, i);

		for (unsigned bucket = 0; space && bucket < UCM_BUCKETS;
		     bucket++) {
			if (atomic_load(&store->life.stopping))
				return;
			freshen(store, space, dir, bucket);
		}
	}
}

/* ---- what is no longer there ---- */

struct vanishing {
	struct ucm_listed listed;
	unsigned space, dir, num;
	ucm_ref refs[UCM_INDEX_PIECE];
};

static bool note_vanished(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct vanishing *of = arg;

	if (entry->space == of->space && ucm_entry_has_place(entry, of->dir) &&
	    !ucm_listed_has(&of->listed, &entry->id))
		of->refs[of->num++] = ref;
	return false;
}

/* It may have been committed since the listing: it is looked for once more. */
static void fresh_lose(struct ucm_store *store, ucm_ref ref, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	struct ucm_entry entry;
	struct stat st;

	if (!ucm_index_get(store->index, ref, &entry))
		return;
	if (entry.dir == dir) {
		ucm_store_lose(store, ref, dir, NULL, -ENOENT);
		return;
	}
	ucm_store_lock_name(store, &entry.id);
	if (ucm_medium_find(medium, ucm_store_folder(store, &entry), &entry.id,
			    &st) == -ENOENT)
		ucm_store_forget_copy(store, ref, dir);
	ucm_store_unlock_name(store, &entry.id);
}

void ucm_store_drop_vanished(struct ucm_store *store,
			     const struct ucm_space *space, unsigned dir,
			     unsigned bucket, const char *names)
{
	struct vanishing of = { .space = space->number, .dir = dir };
	uint32_t cursor = 0;
	bool more = !ucm_listed_read(&of.listed, names);

	while (more) {
		of.num = 0;
		more = ucm_index_walk(store->index, bucket, &cursor,
				      note_vanished, &of);
		for (unsigned i = 0; i < of.num; i++)
			fresh_lose(store, of.refs[i], dir);
	}
	free(of.listed.ids);
}

/* ---- what is wanted elsewhere ---- */

bool ucm_store_is_pinned_in(struct ucm_store *store, ucm_ref ref,
			    const struct ucm_entry *entry, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];

	if (!medium->hosts || !ucm_entry_has_place(entry, dir) ||
	    ucm_medium_find_pin(medium, ucm_store_folder(store, entry),
				&entry->id))
		return false;
	ucm_index_flag(store->index, ref, UCM_ENTRY_PINNED, true);
	return true;
}

static void edit_use(struct ucm_entry *entry, void *arg)
{
	entry->atime_s = *(uint32_t *)arg;
}

/* The file's time is the server's, and that of our last use our own clock's: so ages
 * are compared. */
bool ucm_store_is_used_in(struct ucm_store *store, ucm_ref ref,
			  const struct ucm_entry *entry, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	uint32_t now = ucm_value_now(), used_s;
	struct stat st;
	int64_t age_s;

	if (!medium->hosts || !entry->atime_s || /* it has ended: the hint decides */
	    ucm_medium_find(medium, ucm_store_folder(store, entry), &entry->id,
			    &st))
		return false;
	age_s = more_of(ucm_hosts_age_s(medium, &st.st_atim), 0);
	if (age_s + 2 * USES_S >= (int64_t)now - entry->atime_s)
		return false;
	used_s = now - (uint32_t)age_s;
	ucm_index_edit(store->index, ref, edit_use, &used_s);
	return true;
}

/* ---- uses ---- */

struct using {
	unsigned dir, num;
	uint32_t since_s;
	struct ucm_entry at[UCM_INDEX_PIECE];
};

static bool note_used(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct using *of = arg;

	(void)ref;
	if (entry->uses && entry->atime_s >= of->since_s &&
	    ucm_entry_has_place(entry, of->dir))
		of->at[of->num++] = *entry;
	return false;
}

/* What fails costs a block its time of use. */
static void share_use(struct ucm_store *store, unsigned dir,
		      const struct ucm_entry *entry)
{
	static const struct timespec times[2] = { { .tv_nsec = UTIME_NOW },
						  { .tv_nsec = UTIME_OMIT } };
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct stat st;

	if (!ucm_medium_open_block(store->dirs.at[dir],
				   ucm_store_folder(store, entry), &entry->id,
				   &file, &st))
		ucm_file_set_times(&file, times);
}

void ucm_store_share_uses(struct ucm_store *store, unsigned dir)
{
	struct using of = { .dir = dir };
	uint32_t now = ucm_value_now();

	if (store->dirs.at[dir]->readonly ||
	    now - store->keepers[dir].uses_s < USES_S)
		return;
	of.since_s = store->keepers[dir].uses_s;
	store->keepers[dir].uses_s = now;
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++) {
		uint32_t cursor = 0;
		bool more = true;

		while (more && !atomic_load(&store->life.stopping)) {
			of.num = 0;
			more = ucm_index_walk(store->index, bucket, &cursor,
					      note_used, &of);
			for (unsigned i = 0; i < of.num; i++)
				share_use(store, dir, &of.at[i]);
		}
	}
}
