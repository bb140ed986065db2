/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.c - reading all blocks, to find those that the disk has not kept.
 *
 * A thread for each directory, begun with its first run: one that hangs keeps no
 * other waiting. It takes the blocks that the index has of its directory, shard
 * by shard and in the order of their ids, so that one id says where it is: all up
 * to it have been read, whatever was added or removed meanwhile. Second copies
 * are read as well.
 *
 * A file is read past the page cache and without any lock. What was found holds
 * for the file that was read: whoever acts on it takes the name's lock and
 * compares (ucm_store_condemn). If a second directory has the block, that copy
 * is put in doubt, so that it is compared too before anybody gets it.
 *
 * A block's representations are read after it, and count with it: its bytes are
 * theirs too, and it counts as bad if they are.
 *
 * What cannot be read says nothing about its bytes: it is reported and stays.
 * Where the directory itself does not answer, or many of its files in a row
 * cannot be read, the run waits, and goes on where it was.
 *
 * The note of a directory has what its run was to do, where it is, and what it
 * has found. It is written now and then, and always between two ids: so a run
 * that was killed reads again what it has read since, and counts nothing twice.
 *
 * It gives way in two ways. All threads together read at most so many bytes a
 * second: who has read pays for it before the next read. And their I/O is idle
 * (ioprio_set(2)), which schedulers such as BFQ and mq-deadline heed; under guard the
 * reads are another thread's, and only the rate holds.
 *
 *            start            all read
 *   NONE ----------> RUNNING ----------> DONE -- start --> RUNNING
 *                    |  ^  ^
 *            failed  v  |  | start
 *                 WAITING  STOPPED <-- stop -- RUNNING, WAITING
 *
 * (WAITING ends after a while, or by a start.)
 *
 * lock guards all of it and is held over no call. turn counts starts and stops,
 * so that a thread sees that its run is over, though another has begun. The end
 * of the store ends threads, not runs: their notes say that they are running. A
 * directory's keeper waits for its thread before it leaves the directory.
 */
#include <config.h>

#include "fs/store/scrub.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/process.h"
#include "fs/store/inside.h"
#include "fs/store/scrub_note.h"
#include "hashing/tree.h"

#define NOTE "scrub"
#define NOTE_EVERY_MS 3000
#define RETRY_MS 30000 /* of a directory that failed */
#define SCAN_MS 200    /* looks at whether the scan is over */
#define ROW 16 /* so many unreadable files, one after the other: it failed */

struct scrub_dir {
	struct ucm_store *store;
	unsigned dir;
	pthread_t thread;
	bool started; /* the thread */
	uint64_t turn;
	struct ucm_scrub_status status;
	struct ucm_scrub_place place;
};

/* A run as its thread sees it, and nobody else. */
struct run {
	struct scrub_dir *of;
	uint64_t turn;
	struct ucm_scrub_place place;
	int64_t noted_ms;
	unsigned row; /* of unreadable files */
};

struct ucm_scrub {
	pthread_mutex_t lock;
	pthread_cond_t wake; /* turns, and the end */
	uint64_t rate;	     /* bytes a second, or 0 */
	int64_t paid_ns;     /* until then what was read has been paid for */
	struct scrub_dir dirs[UCM_MAX_DIRS];
};

static struct ucm_medium *scrub_medium(const struct scrub_dir *of)
{
	return of->store->dirs.at[of->dir];
}

/* ---- the note ---- */

/* A run that waits is one that goes on. Under the lock. */
static struct ucm_scrub_note note_of(const struct scrub_dir *of, uint64_t rate)
{
	struct ucm_scrub_note note = {
		.status = of->status,
		.place = of->place,
		.rate = rate,
	};

	if (note.status.state == UCM_SCRUB_STATE_WAITING)
		note.status.state = UCM_SCRUB_STATE_RUNNING;
	return note;
}

static void note_write(struct run *run)
{
	struct scrub_dir *of = run->of;
	struct ucm_medium *medium = scrub_medium(of);
	struct ucm_scrub *scrub = of->store->scrub;
	char text[UCM_SCRUB_NOTE_MAX];
	struct ucm_scrub_note note;
	int err;

	run->noted_ms = ucm_monotonic_ms();
	if (medium->readonly)
		return;
	pthread_mutex_lock(&scrub->lock);
	note = note_of(of, scrub->rate);
	pthread_mutex_unlock(&scrub->lock);
	err = medium->ops->notes->replace(medium, NULL, NOTE, text,
					  ucm_scrub_note_format(&note, text));
	if (err)
		ucm_warning("%s: scrub: its place cannot be noted: %s",
			    medium->path, strerror(-err));
}

/* ---- turns ---- */

static struct ucm_scrub *scrub_of(const struct run *run)
{
	return run->of->store->scrub;
}

/* Under the lock. */
static bool is_over(const struct run *run)
{
	return run->of->turn != run->turn ||
	       atomic_load(&run->of->store->stopping);
}

/* Under the lock. */
static void sleep_until(struct ucm_scrub *scrub, int64_t ns)
{
	struct timespec until = {
		.tv_sec = ns / 1000000000,
		.tv_nsec = ns % 1000000000,
	};

	pthread_cond_timedwait(&scrub->wake, &scrub->lock, &until);
}

/* -ECANCELED if the run is over. */
static int scrub_pause(const struct run *run, int64_t ms)
{
	int64_t until_ns = ucm_monotonic_ns() + ms * 1000000;
	struct ucm_scrub *scrub = scrub_of(run);
	bool over;

	pthread_mutex_lock(&scrub->lock);
	while (!is_over(run) && ucm_monotonic_ns() < until_ns)
		sleep_until(scrub, until_ns);
	over = is_over(run);
	pthread_mutex_unlock(&scrub->lock);
	return over ? -ECANCELED : 0;
}

/* ---- the rate ---- */

/* So many bytes have been read: -ECANCELED if the run is over. What one thread
 * has read, all pay for; another rate ends the debts of the old one. */
static int scrub_pay(void *arg, size_t bytes)
{
	const struct run *run = arg;
	struct ucm_scrub *scrub = scrub_of(run);
	int64_t now = ucm_monotonic_ns(), until_ns;
	uint64_t rate;
	bool over;

	pthread_mutex_lock(&scrub->lock);
	rate = scrub->rate;
	if (scrub->paid_ns < now)
		scrub->paid_ns = now;
	if (rate)
		scrub->paid_ns += (int64_t)((double)bytes * 1e9 / (double)rate);
	until_ns = scrub->paid_ns;
	while (!is_over(run) && rate && scrub->rate == rate &&
	       ucm_monotonic_ns() < until_ns)
		sleep_until(scrub, until_ns);
	over = is_over(run);
	pthread_mutex_unlock(&scrub->lock);
	return over ? -ECANCELED : 0;
}

/* ---- what is to be read ---- */

struct item {
	struct ucm_id id;
	ucm_ref ref;
};

struct list {
	const struct run *run;
	const struct ucm_space *space; /* NULL: of all */
	uint64_t blocks, bytes;
	struct item *items; /* NULL: they are counted only */
	size_t num, room;
	};

static bool is_to_be_read(const struct list *list,
			  const struct ucm_entry *entry)
{
	const struct run *run = list->run;

	return ucm_entry_has_dir(entry, run->of->dir) &&
	       (!list->space || list->space->number == entry->space) &&
	       (!run->place.any_read ||
		memcmp(&entry->id, &run->place.after, sizeof(entry->id)) > 0);
}

static bool count_item(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct list *list = arg;

	(void)ref;
	if (is_to_be_read(list, entry)) {
		list->blocks++;
		list->bytes += entry->size + ucm_entry_repr_bytes(entry);
	}
	return false;
}

static bool add_item(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct list *list = arg;

	if (list->num < list->room && is_to_be_read(list, entry))
		list->items[list->num++] = (struct item){ entry->id, ref };
	return false;
}

static int by_id(const void *a, const void *b)
{
	return memcmp(&((const struct item *)a)->id,
		      &((const struct item *)b)->id, sizeof(struct ucm_id));
}

static void walk(struct list *list, unsigned shard,
		 bool (*visit)(struct ucm_entry *entry, ucm_ref ref, void *arg))
{
	uint32_t cursor = 0;

	while (ucm_index_walk(list->run->of->store->index, shard, &cursor,
			      visit, list))
		;
}

/* Those of a shard, sorted. What is added after they were counted need not be
 * among them. */
static int list_shard(struct list *list, unsigned shard)
{
	struct item *more;

	list->blocks = 0;
	list->num = 0;
	walk(list, shard, count_item);
	if (!list->blocks)
		return 0;
	more = reallocarray(list->items, list->blocks, sizeof(*more));
	if (!more)
		return -ENOMEM;
	list->items = more;
	list->room = list->blocks;
	walk(list, shard, add_item);
	qsort(list->items, list->num, sizeof(*list->items), by_id);
	return 0;
}

static void count_total(const struct run *run, const struct ucm_space *space)
{
	struct list list = { .run = run, .space = space };
	struct ucm_scrub *scrub = scrub_of(run);
	struct scrub_dir *of = run->of;

	for (unsigned shard = 0; shard < UCM_BUCKETS; shard++)
		walk(&list, shard, count_item);
	pthread_mutex_lock(&scrub->lock);
	if (of->turn == run->turn) {
		of->status.total_blocks = of->status.blocks + list.blocks;
		of->status.total_bytes = of->status.bytes + list.bytes;
	}
	pthread_mutex_unlock(&scrub->lock);
}

/* ---- one file ---- */

/* What it adds to the status. */
struct found {
	uint64_t bytes;
	bool read, bad, missing, repaired, unreadable, unchecked;
};

/* A second directory may have what this one has lost: that copy is compared
 * before it is believed. */
static bool scrub_repair(const struct scrub_dir *of, const struct ucm_key *key)
{
	struct ucm_store *store = of->store;
	struct ucm_entry entry;
	ucm_ref ref;

	if (!ucm_index_find(store->index, key, &entry, &ref) ||
	    entry.dir == of->dir)
		return false;
	ucm_store_doubt(store, ref);
	if (ucm_store_settle(store, ref))
		return false;
	ucm_count(&store->stats.scrub_repaired);
	ucm_info("%s: block %s: the copy in %s takes its place",
		 scrub_medium(of)->path, ucm_hex(&key->id).text,
		 store->dirs.at[entry.dir]->path);
	return true;
}

/* A copy may have been moved away while its name was looked up, or back. */
static void scrub_forget(const struct scrub_dir *of, ucm_ref ref,
			 const struct ucm_entry *entry)
{
	struct ucm_medium *medium = scrub_medium(of);
	struct ucm_store *store = of->store;
	struct stat st;

	ucm_store_lock_name(store, &entry->id);
	if (medium->ops->find(medium, store->names.spaces[entry->space]->folder,
			      &entry->id, &st) == -ENOENT) {
		ucm_store_forget_copy(store, ref, of->dir);
		if (entry->has_repr)
			ucm_store_remove_repr_in(
				store, ucm_store_folder(store, entry),
				&entry->id, of->dir);
	}
	ucm_store_unlock_name(store, &entry->id);
}

static void scrub_lost(const struct scrub_dir *of, ucm_ref ref,
		       const struct ucm_entry *entry, struct found *found)
{
	const struct ucm_key key = { .id = entry->id, .space = entry->space };

	if (entry->dir != of->dir) {
		scrub_forget(of, ref, entry);
		return;
	}
	found->missing = ucm_store_lose(of->store, ref, of->dir, NULL, -ENOENT);
	found->repaired = found->missing && scrub_repair(of, &key);
}

static void scrub_condemn(const struct scrub_dir *of, ucm_ref ref,
			  const struct ucm_entry *entry, const struct stat *st,
			  enum ucm_fault fault, uint32_t plane,
			  struct found *found)
{
	const struct ucm_key key = { .id = entry->id, .space = entry->space };
	char detail[64];

	snprintf(detail, sizeof(detail), "%s, found by a scrub",
		 ucm_store_fault_place(fault, plane).text);
	ucm_store_condemn(of->store, ref, of->dir, st, fault, detail);
	ucm_count(&of->store->stats.scrub_bad);
	found->bad = true;
	found->repaired = scrub_repair(of, &key);
}

/* 0: its bytes were judged; -errno: they could not be read. */
static int scrub_verify(struct run *run, ucm_ref ref,
			const struct ucm_entry *entry,
			const struct ucm_file *file, const struct stat *st,
			struct found *found)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block = { .flags = 0 };
	uint32_t plane = 0;
	int err = ucm_file_verify(file, st, &entry->id, scrub_pay, run, &block,
				  &fault, &plane);

	if (err)
		return err;
	found->read = true;
	found->bytes = (uint64_t)st->st_size;
	if (fault)
		scrub_condemn(run->of, ref, entry, st, fault, plane,
			      found);
	else
		found->unchecked = !(block.flags & UCM_BLOCK_HAS_CRC);
	return 0;
}

/* With its block, when that is right. */
static int scrub_repr(struct run *run, ucm_ref ref,
		      const struct ucm_entry *entry, struct found *found)
{
	struct ucm_stats *stats = &run->of->store->stats;
	uint64_t bytes = 0;
	int err;

	if (!entry->has_repr || found->bad)
		return 0;
	err = ucm_store_scrub_repr(run->of->store, ref, entry, run->of->dir,
				   scrub_pay, run, &bytes);
	found->bytes += bytes;
	if (err && err != -EBADMSG)
		return err;
	ucm_count_more(&stats->reprs_scrubbed, bytes > 0);
	ucm_count_more(&stats->reprs_scrub_bad, err == -EBADMSG);
	found->bad = err == -EBADMSG;
	return 0;
}

static int scrub_file(struct run *run, ucm_ref ref, struct found *found)
{
	const struct scrub_dir *of = run->of;
	struct ucm_medium *medium = scrub_medium(of);
	struct ucm_store *store = of->store;
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct ucm_entry entry;
	struct stat st;
	int err;

	/* gone, or moved to another directory, which has a thread of its own */
	if (!ucm_index_get(store->index, ref, &entry) ||
	    entry.flags & UCM_ENTRY_LEAVING ||
	    !ucm_entry_has_dir(&entry, of->dir))
		return 0;
	err = medium->ops->open(medium, store->names.spaces[entry.space]->folder,
				&entry.id, &file, &st);
	if (err == -ENOENT || err == -ENXIO || err == -ELOOP) {
		scrub_lost(of, ref, &entry, found);
		return 0;
	}
	if (!err)
		err = scrub_verify(run, ref, &entry, &file, &st, found);
	return err ? err : scrub_repr(run, ref, &entry, found);
}

/* ---- the run ---- */

/* What a run has found that is over already, its note does not have. */
static void scrub_add(const struct run *run, const struct found *found)
{
	struct ucm_stats *stats = &run->of->store->stats;
	struct ucm_scrub_status *status = &run->of->status;
	struct ucm_scrub *scrub = scrub_of(run);

	ucm_count_more(&stats->scrubbed, found->read);
	ucm_count_more(&stats->scrubbed_bytes, found->bytes);
	ucm_count_more(&stats->scrub_unreadable, found->unreadable);
	pthread_mutex_lock(&scrub->lock);
	if (run->of->turn == run->turn) {
		status->blocks++; /* in whatever way, it has been dealt with */
		status->bytes += found->bytes;
		status->bad += found->bad;
		status->missing += found->missing;
		status->repaired += found->repaired;
		status->unreadable += found->unreadable;
		status->unchecked += found->unchecked;
	}
	pthread_mutex_unlock(&scrub->lock);
}

/* 0, also if it could not be read; -errno: the run cannot go on, and it is still
 * to be read. */
static int scrub_item(struct run *run, const struct item *item)
{
	const struct scrub_dir *of = run->of;
	struct found found = { 0 };
	int err = scrub_file(run, item->ref, &found);

	if (err == -ECANCELED || ucm_store_is_directorys(err))
		return err;
	run->row = err ? run->row + 1 : 0;
	if (err) {
		ucm_error("%s: block %s: scrub: %s", scrub_medium(of)->path,
			  ucm_hex(&item->id).text, strerror(-err));
		ucm_dirs_count_error(&of->store->dirs, of->dir, err);
		found.unreadable = true;
	}
	scrub_add(run, &found);
	return 0;
}

static void scrub_passed(struct run *run, const struct ucm_id *id)
{
	struct ucm_scrub *scrub = scrub_of(run);

	run->place.after = *id;
	run->place.any_read = true;
	pthread_mutex_lock(&scrub->lock);
	if (run->of->turn == run->turn)
		run->of->place = run->place;
	pthread_mutex_unlock(&scrub->lock);
	if (ucm_monotonic_ms() - run->noted_ms >= NOTE_EVERY_MS)
		note_write(run);
}

/* A name may be there in several spaces: it is passed with the last of them. */
static int scrub_shard(struct run *run, struct list *list, unsigned shard)
{
	int err = list_shard(list, shard);

	for (size_t i = 0; i < list->num && !err; i++) {
		const struct item *item = &list->items[i];

		err = scrub_item(run, item);
		if (err || (i + 1 < list->num && !by_id(item, item + 1)))
			continue;
		scrub_passed(run, &item->id);
		if (run->row >= ROW) {
			run->row = 0;
			err = -EIO;
		}
	}
	return err;
}

/* NULL: all. -ENOENT: it is gone. */
static int scrub_space(const struct run *run, const struct ucm_space **out)
{
	struct ucm_namespace *names = &run->of->store->names;

	*out = NULL;
	if (run->place.all)
		return 0;
	*out = *run->place.space ? ucm_namespace_find(names, run->place.space)
				 : ucm_namespace_get(names, 0);
	return *out ? 0 : -ENOENT;
}

/* What the scan has not found is not in the index. */
static int wait_for_scan(const struct run *run)
{
	const struct ucm_keeper *keeper =
		&run->of->store->keepers[run->of->dir];
	int err = 0;

	while (!err && atomic_load(&keeper->tasks_left))
		err = scrub_pause(run, SCAN_MS);
	return err;
}

/* All that is left. 0: to the end. */
static int scrub_rest(struct run *run)
{
	unsigned first = run->place.any_read
				 ? ucm_tree_bucket(&run->place.after)
				 : 0;
	const struct ucm_space *space;
	struct list list;
	int err = wait_for_scan(run);

	if (err)
		return err;
	if (scrub_space(run, &space))
		return 0; /* nothing of it is left */
	count_total(run, space);
	list = (struct list){ .run = run, .space = space };
	for (unsigned shard = first; shard < UCM_BUCKETS && !err; shard++)
		err = scrub_shard(run, &list, shard);
	free(list.items);
	return err;
}

/* ---- its thread ---- */

/* Under the lock, unless another turn has begun. */
static void scrub_set(struct scrub_dir *of, enum ucm_scrub_state state, int err)
{
	of->status.state = state;
	of->status.err = err;
	if (state != UCM_SCRUB_STATE_DONE)
		return;
	of->status.ended_s = (uint64_t)time(NULL);
	of->status.total_blocks = of->status.blocks;
	of->status.total_bytes = of->status.bytes;
}

static void scrub_tell_begin(const struct run *run)
{
	const char *path = scrub_medium(run->of)->path;

	if (run->place.any_read)
		ucm_info("%s: scrub: goes on after %s", path,
			 ucm_hex(&run->place.after).text);
	else
		ucm_info("%s: scrub: begins", path);
}

static void scrub_tell_end(const struct scrub_dir *of, const char *how)
{
	struct ucm_scrub_status status;

	ucm_scrub_status(of->store, of->dir, &status);
	ucm_info("%s: scrub: %s: %" PRIu64 " blocks read, %" PRIu64
		 " bad, %" PRIu64 " missing, %" PRIu64
		 " of them repaired, %" PRIu64 " unreadable",
		 scrub_medium(of)->path, how, status.blocks, status.bad,
		 status.missing, status.repaired, status.unreadable);
}

/* The directory has failed: a while without it. */
static void scrub_wait(const struct run *run, int err)
{
	struct ucm_scrub *scrub = scrub_of(run);

	ucm_warning("%s: scrub: %s: it goes on in %d s",
		    scrub_medium(run->of)->path, strerror(-err),
		    RETRY_MS / 1000);
	if (scrub_pause(run, RETRY_MS))
		return;
	pthread_mutex_lock(&scrub->lock);
	if (!is_over(run))
		scrub_set(run->of, UCM_SCRUB_STATE_RUNNING, 0);
	pthread_mutex_unlock(&scrub->lock);
}

static void scrub_run(struct run *run)
{
	struct ucm_scrub *scrub = scrub_of(run);
	bool over;
	int err;

	note_write(run);
	scrub_tell_begin(run);
	err = scrub_rest(run);
	pthread_mutex_lock(&scrub->lock);
	over = is_over(run);
	if (!over)
		scrub_set(run->of, err ? UCM_SCRUB_STATE_WAITING
				       : UCM_SCRUB_STATE_DONE, err);
	pthread_mutex_unlock(&scrub->lock);
	/* one that has failed is not asked to keep a note */
	if (over || !err)
		note_write(run);
	if (over)
		scrub_tell_end(run->of, "stopped");
	else if (err)
		scrub_wait(run, err);
	else
		scrub_tell_end(run->of, "done");
}

static bool is_active(const struct scrub_dir *of)
{
	return of->status.state == UCM_SCRUB_STATE_RUNNING ||
	       of->status.state == UCM_SCRUB_STATE_WAITING;
}

static void *scrub_main(void *arg)
{
	struct scrub_dir *of = arg;
	struct ucm_scrub *scrub = of->store->scrub;

	ucm_process_give_way(true);
	pthread_mutex_lock(&scrub->lock);
	while (!atomic_load(&of->store->stopping)) {
		struct run run = {
			.of = of,
			.turn = of->turn,
			.place = of->place,
		};

		if (!is_active(of)) {
			pthread_cond_wait(&scrub->wake, &scrub->lock);
			continue;
		}
		pthread_mutex_unlock(&scrub->lock);
		scrub_run(&run);
		pthread_mutex_lock(&scrub->lock);
	}
	pthread_mutex_unlock(&scrub->lock);
	return NULL;
}

/* Under the lock; it is active. */
static int scrub_begin_thread(struct scrub_dir *of)
{
	int err = 0;

	if (!of->started)
		err = pthread_create(&of->thread, NULL, scrub_main, of);
	of->started |= !err;
	return -err;
}

/* ---- for others ---- */

int ucm_scrub_new(struct ucm_store *store)
{
	struct ucm_scrub *scrub = calloc(1, sizeof(*scrub));

	if (!scrub)
		return -ENOMEM;
	pthread_mutex_init(&scrub->lock, NULL);
	ucm_cond_init_monotonic(&scrub->wake);
	for (unsigned dir = 0; dir < UCM_MAX_DIRS; dir++) {
		scrub->dirs[dir].store = store;
		scrub->dirs[dir].dir = dir;
	}
	store->scrub = scrub;
	return 0;
}

void ucm_scrub_free(struct ucm_store *store)
{
	if (!store->scrub)
		return;
	pthread_mutex_destroy(&store->scrub->lock);
	pthread_cond_destroy(&store->scrub->wake);
	free(store->scrub);
	store->scrub = NULL;
}

static void scrub_resume_dir(struct scrub_dir *of)
{
	struct ucm_medium *medium = scrub_medium(of);
	struct ucm_scrub *scrub = of->store->scrub;
	char text[UCM_SCRUB_NOTE_MAX];
	struct ucm_scrub_note note;
	int err;

	if (medium->readonly)
		return;
	err = medium->ops->notes->read(medium, NULL, NOTE, text, sizeof(text));
	if (err == -ENOENT)
		return;
	if (!err)
		err = ucm_scrub_note_parse(text, &note);
	if (err) {
		ucm_warning("%s: .ucmfs/" NOTE ": %s", medium->path,
			    strerror(-err));
		return;
	}
	pthread_mutex_lock(&scrub->lock);
	of->status = note.status;
	of->place = note.place;
	if (is_active(of)) {
		scrub->rate = note.rate;
		err = scrub_begin_thread(of);
	}
	pthread_mutex_unlock(&scrub->lock);
	if (err)
		ucm_error("%s: scrub: %s", medium->path, strerror(-err));
}

void ucm_scrub_resume(struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		scrub_resume_dir(&store->scrub->dirs[dir]);
}

static bool is_of_space(const struct scrub_dir *of, const char *space)
{
	return space ? !of->place.all && !strcmp(of->place.space, space)
		     : of->place.all;
}

/* Has it been begun, and not come to its end? Under the lock. */
static bool is_unfinished(const struct scrub_dir *of,
			  const struct ucm_scrub_terms *terms)
{
	return is_active(of) ||
	       (of->status.state == UCM_SCRUB_STATE_STOPPED &&
		is_of_space(of, terms->space) && !terms->anew);
}

/* since: when those were begun that some directory has not come to the end of (0:
 * none); what is done of them is not begun anew. Under the lock. */
static int scrub_start_dir(struct scrub_dir *of,
			   const struct ucm_scrub_terms *terms, uint64_t since,
			   uint64_t now)
{
	if (of->status.state == UCM_SCRUB_STATE_RUNNING)
		return 0;
	if (!terms->anew && is_of_space(of, terms->space) &&
	    of->status.state == UCM_SCRUB_STATE_DONE &&
	    of->status.began_s == since)
		return 0;
	of->turn++; /* one that waits is woken */
	if (!is_unfinished(of, terms)) {
		of->status = (struct ucm_scrub_status){
			.began_s = now,
		};
		of->place = (struct ucm_scrub_place){ .all = !terms->space };
		snprintf(of->place.space, sizeof(of->place.space), "%s",
			 terms->space ? terms->space : "");
	}
	of->status.state = UCM_SCRUB_STATE_RUNNING;
	of->status.err = 0;
	return scrub_begin_thread(of);
}

int ucm_scrub_start(struct ucm_store *store,
		    const struct ucm_scrub_terms *terms)
{
	struct ucm_scrub *scrub = store->scrub;
	uint64_t since = 0, now = (uint64_t)time(NULL);
	int err = 0;

	if (terms->space && *terms->space &&
	    !ucm_namespace_find(&store->names, terms->space))
		return -ENOENT;
	pthread_mutex_lock(&scrub->lock);
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		const struct scrub_dir *of = &scrub->dirs[dir];

		if (is_active(of) && !is_of_space(of, terms->space))
			err = -EBUSY;
		if (is_unfinished(of, terms))
			since = of->status.began_s;
	}
	if (!err)
		scrub->rate = terms->rate;
	for (unsigned dir = 0; dir < store->dirs.num && !err; dir++)
		err = scrub_start_dir(&scrub->dirs[dir], terms, since, now);
	scrub->paid_ns = 0; /* the debts of the old rate are over */
	pthread_cond_broadcast(&scrub->wake);
	pthread_mutex_unlock(&scrub->lock);
	return err;
}

void ucm_scrub_stop(struct ucm_store *store)
{
	struct ucm_scrub *scrub = store->scrub;

	pthread_mutex_lock(&scrub->lock);
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		struct scrub_dir *of = &scrub->dirs[dir];

		if (!is_active(of))
			continue;
		of->turn++;
		scrub_set(of, UCM_SCRUB_STATE_STOPPED, 0);
	}
	pthread_cond_broadcast(&scrub->wake);
	pthread_mutex_unlock(&scrub->lock);
}

void ucm_scrub_status(struct ucm_store *store, unsigned dir,
		      struct ucm_scrub_status *out)
{
	struct ucm_scrub *scrub = store->scrub;

	pthread_mutex_lock(&scrub->lock);
	*out = scrub->dirs[dir].status;
	pthread_mutex_unlock(&scrub->lock);
}

void ucm_scrub_join(struct ucm_store *store, unsigned dir)
{
	struct ucm_scrub *scrub = store->scrub;
	bool started;

	pthread_mutex_lock(&scrub->lock);
	pthread_cond_broadcast(&scrub->wake);
	started = scrub->dirs[dir].started;
	scrub->dirs[dir].started = false;
	pthread_mutex_unlock(&scrub->lock);
	if (started)
		pthread_join(scrub->dirs[dir].thread, NULL);
}
