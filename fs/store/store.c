/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - open the tiers, find and read blocks, remove them.
 *
 * The index is the truth for what it has. What it has not is absent, unless
 * the scan has not come to that bucket yet: then every directory that may have
 * the name is asked, fast tiers first.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/memory.h"
#include "fs/tier/lock.h"
#include "fs/files/files.h"
#include "fs/block/verify.h"
#include "hashing/name.h"

/* A sync of all that was written lately may take this long; what it leaves is
 * only checked once more. */
#define CLOSE_MS 30000

static int check_nesting(const struct ucm_store *set,
			 struct ucm_complaint *complaint)
{
	for (unsigned i = 0; i < set->num_dirs; i++) {
		for (unsigned j = 0; j < set->num_dirs; j++) {
			const char *a = set->dirs[i]->path;
			const char *b = set->dirs[j]->path;
			size_t len = strlen(a);

			if (i != j && !strncmp(a, b, len) && b[len] == '/') {
				ucm_complain(complaint,
					     "%s lies inside %s", b, a);
				return -EINVAL;
			}
		}
	}
	return 0;
}

/* Before anything is locked, so that it is not "in use by another ucmfs". */
static int check_given_twice(const struct ucm_config *config,
			     struct ucm_complaint *complaint)
{
	struct stat seen[UCM_MAX_DIRS];
	unsigned num = 0;

	for (unsigned i = 0; i < config->num_tiers; i++) {
		for (unsigned j = 0; j < config->tiers[i].num_dirs; j++) {
			const char *path = config->tiers[i].dirs[j];

			if (stat(path, &seen[num]))
				continue; /* opening it will say why */
			for (unsigned k = 0; k < num; k++) {
				if (seen[k].st_dev != seen[num].st_dev ||
				    seen[k].st_ino != seen[num].st_ino)
					continue;
				ucm_complain(complaint, "%s: given twice",
					     path);
				return -EINVAL;
			}
			num++;
		}
	}
	return 0;
}

static int open_tiers(struct ucm_store *set, struct ucm_complaint *complaint)
{
	int err = 0;

	set->tiers = calloc(set->config->num_tiers, sizeof(*set->tiers));
	if (!set->tiers)
		return -ENOMEM;
	for (unsigned i = 0; i < set->config->num_tiers && !err; i++) {
		struct ucm_tier *tier = &set->tiers[i];

		err = ucm_tier_open(tier, &set->config->tiers[i],
				    set->num_dirs, set->config, complaint);
		if (err)
			break;
		set->num_tiers++;
		for (unsigned j = 0; j < tier->num_dirs; j++) {
			set->tier_of[set->num_dirs] = tier;
			set->dirs[set->num_dirs++] = &tier->dirs[j];
		}
		err = check_nesting(set, complaint);
	}
	return err;
}

/* Owner and mode of a space are those of its folder. */
static void take_owner(struct ucm_space *space, const struct stat *st)
{
	space->uid = st->st_uid;
	space->gid = st->st_gid;
	space->is_private = ucm_space_mode_is_private(st->st_mode);
}

void ucm_store_load_manifest(struct ucm_store *set, struct ucm_space *space)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	struct ucm_complaint complaint;
	struct ucm_manifest manifest;
	int err;

	if (!text)
		return;
	err = ucm_store_read_manifest(set, space, text, UCM_MANIFEST_MAX);
	if (err == -ENOENT)
		return;
	ucm_complain(&complaint, "%s", strerror(-err));
	if (!err)
		err = ucm_store_parse_manifest(set, text, strlen(text),
					       &manifest, &complaint);
	if (!err)
		err = ucm_space_set_manifest(space, &manifest, &complaint);
	if (err)
		ucm_error("%s: %s", space->folder, complaint.text);
}

static int add_found_space(struct ucm_store *set, struct ucm_backing *backing,
			   const char *name, struct ucm_complaint *complaint)
{
	char path[UCM_BACKING_PATH_MAX];
	struct ucm_space *space;
	struct stat st;
	int err;

	if (!ucm_space_name_valid(name) || strlen(name) > UCM_SPACE_NAME_MAX)
		return 0;
	snprintf(path, sizeof(path), "spaces/%s", name);
	if (ucm_os_stat(backing->dirfd, path, &st) || !S_ISDIR(st.st_mode))
		return 0;
	err = ucm_trust_space(&backing->trust, &st, path, complaint);
	if (err)
		return err;
	if (ucm_namespace_add(&set->names, name, &space))
		return 0;
	take_owner(space, &st);
	atomic_store(&space->maker, st.st_uid);
	if (space->is_private) /* it has no blocks yet, so that cannot fail */
		ucm_index_hide(set->index, space->number);
	return 0;
}

static int list_spaces(struct ucm_store *set, struct ucm_backing *backing,
		       struct ucm_complaint *complaint)
{
	_cleanup_free_ char *names = NULL;
	int err = ucm_os_list(backing->dirfd, "spaces", &names);

	if (err == -ENOENT)
		return 0;
	if (err) {
		ucm_complain(complaint, "%s/spaces: %s", backing->path,
			     strerror(-err));
		return err;
	}
	for (const char *name = names; *name && !err; name += strlen(name) + 1)
		err = add_found_space(set, backing, name, complaint);
	return err;
}

static void name_tiers(struct ucm_store *set)
{
	struct ucm_index_memory *live = ucm_index_live(set->index);

	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		const struct ucm_tier *tier = set->tier_of[dir];

		ucm_index_memory_name_tier(
			live, dir, (unsigned)(tier - set->tiers), tier->name);
	}
}

static int find_spaces(struct ucm_store *set, struct ucm_complaint *complaint)
{
	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		int err = list_spaces(set, set->dirs[dir], complaint);

		if (err)
			return err;
	}
	set->names.spaces[0]->uid = geteuid();
	set->names.spaces[0]->gid = getegid();
	for (unsigned i = 0; i < set->names.num; i++) {
		ucm_store_load_manifest(set, set->names.spaces[i]);
		ucm_scan_look_around(set, set->names.spaces[i]);
	}
	set->scan_spaces = set->names.num;
	ucm_snapshots_open(set);
	return 0;
}

void ucm_store_count_error(struct ucm_store *set, unsigned dir, int err)
{
	ucm_count(&set->stats.io_errors);
	ucm_count_errno(set->tier_of[dir]->stats.errors, err);
}

static pthread_mutex_t *name_lock(struct ucm_store *set,
				  const struct ucm_id *id)
{
	return &set->name_locks[id->bytes[1]];
}

void ucm_store_lock_name(struct ucm_store *set, const struct ucm_id *id)
{
	pthread_mutex_lock(name_lock(set, id));
}

void ucm_store_unlock_name(struct ucm_store *set, const struct ucm_id *id)
{
	pthread_mutex_unlock(name_lock(set, id));
}

static void init_name_locks(struct ucm_store *set)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	for (unsigned i = 0; i < 256; i++)
		pthread_mutex_init(&set->name_locks[i], &attr);
	pthread_mutexattr_destroy(&attr);
}

static void init_keepers(struct ucm_store *set)
{
	for (unsigned dir = 0; dir < UCM_MAX_DIRS; dir++) {
		struct ucm_keeper *keeper = &set->keepers[dir];

		keeper->set = set;
		keeper->dir = dir;
		keeper->ended = true; /* it has not begun */
		pthread_mutex_init(&keeper->sync_lock, NULL);
	}
}

int ucm_store_open(struct ucm_config *config, struct ucm_store **out,
		   struct ucm_complaint *complaint)
{
	struct ucm_store *set = calloc(1, sizeof(*set));
	int err;

	ucm_complain(complaint, "out of memory");
	if (!set)
		return -ENOMEM;
	set->config = config;
	init_name_locks(set);
	ucm_unread_init(&set->unread);
	set->close_ms = CLOSE_MS;
	pthread_mutex_init(&set->loss_lock, NULL);
	pthread_rwlock_init(&set->gone_lock, NULL);
	pthread_mutex_init(&set->upkeep_lock, NULL);
	ucm_cond_init_monotonic(&set->upkeep_wake);
	ucm_cond_init_monotonic(&set->upkeep_ended);
	init_keepers(set);
	err = ucm_config_check(config, complaint);
	if (!err)
		err = check_given_twice(config, complaint);
	if (!err)
		err = open_tiers(set, complaint);
	if (!err)
		err = ucm_index_new(&set->index);
	if (!err)
		err = ucm_namespace_init(&set->names, set->num_dirs);
	if (!err)
		name_tiers(set);
	if (!err)
		err = find_spaces(set, complaint);
	if (err) {
		ucm_store_close(set);
		return err;
	}
	*out = set;
	return 0;
}

int ucm_store_begin(struct ucm_store *set)
{
	int err = 0;

	for (unsigned i = 0; i < set->num_dirs && !err; i++)
		err = ucm_backing_begin(set->dirs[i]);
	set->begun = !err;
	if (!err)
		ucm_files_recover(set);
	return err;
}

int ucm_store_start(struct ucm_store *set)
{
	int err = set->begun ? 0 : ucm_store_begin(set);

	if (!err)
		err = ucm_scan_start(set);
	if (!err)
		err = ucm_files_count_start(set);
	if (!err)
		err = ucm_upkeep_start(set);
	return err;
}

static void tell_all(struct ucm_store *set, enum ucm_lock_state state,
		     dev_t mount)
{
	for (unsigned i = 0; i < set->num_dirs; i++)
		ucm_lock_tell(set->dirs[i]->lockfd, state, mount);
}

void ucm_store_serving(struct ucm_store *set, dev_t mount)
{
	tell_all(set, UCM_LOCK_SERVING, mount);
}

void ucm_store_quiet(struct ucm_store *set)
{
	if (!atomic_exchange(&set->stopping, true))
		tell_all(set, UCM_LOCK_ENDING, 0);
	ucm_scan_stop(set);
	ucm_files_count_stop(set);
	/* the keepers are still there, and one may be at it */
	pthread_mutex_lock(&set->loss_lock);
	set->on_loss = NULL;
	pthread_mutex_unlock(&set->loss_lock);
	pthread_rwlock_wrlock(&set->gone_lock);
	set->on_gone = NULL;
	pthread_rwlock_unlock(&set->gone_lock);
}

/* A thread hangs in a directory that does not answer, and may come back: the
 * others are given free, and what it may touch stays. */
static void leave_behind(struct ucm_store *set)
{
	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		if (set->keepers[dir].ended)
			ucm_backing_close(set->dirs[dir], false);
	}
}

void ucm_store_close(struct ucm_store *set)
{
	if (!set)
		return;
	ucm_store_quiet(set);
	if (!ucm_upkeep_stop(set)) {
		leave_behind(set);
		return;
	}
	ucm_snapshots_free(set);
	for (unsigned i = 0; i < set->num_tiers; i++)
		ucm_tier_close(&set->tiers[i]);
	free(set->tiers);
	ucm_index_free(set->index);
	if (set->names.spaces)
		ucm_namespace_fini(&set->names);
	for (unsigned dir = 0; dir < UCM_MAX_DIRS; dir++)
		pthread_mutex_destroy(&set->keepers[dir].sync_lock);
	pthread_mutex_destroy(&set->loss_lock);
	pthread_rwlock_destroy(&set->gone_lock);
	pthread_mutex_destroy(&set->upkeep_lock);
	pthread_cond_destroy(&set->upkeep_wake);
	pthread_cond_destroy(&set->upkeep_ended);
	for (unsigned i = 0; i < 256; i++)
		pthread_mutex_destroy(&set->name_locks[i]);
	ucm_unread_fini(&set->unread);
	free(set);
}

void ucm_store_entry(const struct ucm_key *key, unsigned dir,
		     const struct stat *st, struct ucm_entry *out)
{
	*out = (struct ucm_entry){
		.id = key->id,
		.space = key->space,
		.dir = (uint8_t)dir,
		.size = (uint64_t)st->st_size,
		.blocks = (uint32_t)(ucm_file_takes(st) / 512),
		.mtime_ns = ucm_time_ns(&st->st_mtim),
		.atime_s = (uint32_t)st->st_atim.tv_sec,
	};
}

void ucm_store_count_doubts(struct ucm_store *set, unsigned dir, int more)
{
	atomic_fetch_add(&set->keepers[dir].doubts, (uint64_t)more);
	atomic_fetch_add(&set->doubts, (uint64_t)more);
}

int ucm_store_index_add(struct ucm_store *set, struct ucm_space *space,
			const struct ucm_entry *entry, ucm_ref *ref_out)
{
	int doubts = !!(entry->flags & UCM_ENTRY_DOUBT), err;

	ucm_store_count_doubts(set, entry->dir, doubts);
	err = ucm_index_add(set->index, entry, ref_out);
	if (err == -EFBIG)
		ucm_warning("block %s: too large for the index",
			    ucm_hex(&entry->id).text);
	if (err) {
		ucm_store_count_doubts(set, entry->dir, -doubts);
		return err;
	}
	atomic_fetch_add(&space->blocks, 1);
	atomic_fetch_add(&set->blocks, 1);
	atomic_fetch_add(&set->tier_of[entry->dir]->used,
			 (uint64_t)entry->blocks * 512);
	if (entry->size > atomic_load(&set->largest))
		atomic_store(&set->largest, entry->size);
	return 0;
}

static void tell_gone(struct ucm_store *set, ucm_ref ref)
{
	pthread_rwlock_rdlock(&set->gone_lock);
	if (set->on_gone)
		set->on_gone(set->on_gone_arg, ref);
	pthread_rwlock_unlock(&set->gone_lock);
}

bool ucm_store_index_remove(struct ucm_store *set, ucm_ref ref,
			    struct ucm_entry *out)
{
	struct ucm_entry entry;

	if (!ucm_index_remove(set->index, ref, &entry))
		return false;
	atomic_fetch_sub(&set->names.spaces[entry.space]->blocks, 1);
	atomic_fetch_sub(&set->blocks, 1);
	atomic_fetch_sub(&set->tier_of[entry.dir]->used,
			 (uint64_t)entry.blocks * 512);
	if (entry.flags & UCM_ENTRY_DOUBT)
		ucm_store_count_doubts(set, entry.dir, -1);
	tell_gone(set, ref);
	if (out)
		*out = entry;
	return true;
}

/* Ask the directories that the scan has not come to. A directory that cannot
 * say counts as one that has not got it: to a cache a miss is never wrong, and
 * new blocks must find their way past it. */
static void probe(struct ucm_store *set, struct ucm_space *space,
		  const struct ucm_id *id)
{
	bool asked = false;

	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		if (ucm_space_is_scanned(space, dir, ucm_bucket(id)))
			continue;
		asked = true;
		if (ucm_store_examine(set, space, id, dir) > 0)
			break;
	}
	if (asked)
		ucm_count(&set->stats.probes);
}

static int find_or_probe(struct ucm_store *set, const struct ucm_key *key,
			 struct ucm_entry *out, ucm_ref *ref)
{
	struct ucm_space *space;

	if (ucm_index_find(set->index, key, out, ref))
		return 0;
	if (atomic_load_explicit(&set->unread.num, memory_order_relaxed))
		ucm_store_read_again(set, key, UCM_UNREAD_ANY_DIR);
	else if (atomic_load_explicit(&set->scanned, memory_order_acquire))
		return -ENOENT;
	space = ucm_namespace_get(&set->names, key->space);
	if (!space)
		return -ENOENT;
	if (!atomic_load_explicit(&set->scanned, memory_order_acquire))
		probe(set, space, &key->id);
	return ucm_index_find(set->index, key, out, ref) ? 0 : -ENOENT;
}

int ucm_store_peek(struct ucm_store *set, const struct ucm_key *key,
		   struct ucm_entry *out, ucm_ref *ref_out)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err = find_or_probe(set, key, &entry, &ref);

	if (!err && entry.flags & UCM_ENTRY_DOUBT) {
		err = ucm_store_settle(set, ref);
		if (!err && !ucm_index_get(set->index, ref, &entry))
			err = -ENOENT;
	}
	if (err)
		return err;
	*out = entry;
	*ref_out = ref;
	return 0;
}

int ucm_store_find(struct ucm_store *set, const struct ucm_key *key,
		   struct ucm_entry *out, ucm_ref *ref_out)
{
	int err;

	ucm_count(&set->stats.lookups);
	err = ucm_store_peek(set, key, out, ref_out);
	ucm_count(err ? &set->stats.misses : &set->stats.hits);
	return err;
}

static void edit_touch(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->atime_s = (uint32_t)time(NULL);
	entry->uses++;
}

static void edit_use(struct ucm_entry *entry, void *arg)
{
	struct ucm_store *set = arg;
	struct ucm_tier_stats *stats = &set->tier_of[entry->dir]->stats;

	edit_touch(entry, NULL);
	ucm_count(&stats->opens);
	ucm_count_more(&stats->opened_bytes, entry->size);
}

static void count_use(struct ucm_store *set, ucm_ref ref)
{
	ucm_index_edit(set->index, ref, edit_use, set);
	ucm_count(&set->stats.opens);
}

int ucm_store_touch(struct ucm_store *set, ucm_ref ref)
{
	return ucm_index_edit(set->index, ref, edit_touch, NULL) ? 0 : -ENOENT;
}

static int open_entry(struct ucm_store *set, const struct ucm_entry *entry,
		      struct stat *st)
{
	return ucm_backing_open_block(set->dirs[entry->dir],
				      set->names.spaces[entry->space]->folder,
				      &entry->id, O_RDONLY, st);
}

static int open_ref(struct ucm_store *set, ucm_ref ref,
		    struct ucm_entry *entry_out, struct stat *st)
{
	return ucm_index_get(set->index, ref, entry_out)
		       ? open_entry(set, entry_out, st)
		       : -ENOENT;
}

int ucm_store_header(struct ucm_store *set, ucm_ref ref, struct ucm_block *out)
{
	enum ucm_fault fault;
	struct ucm_entry entry;
	_cleanup_fd_ int fd = -1;
	struct stat st;
	int err;

	fd = open_ref(set, ref, &entry, &st);
	if (fd < 0)
		return fd;
	err = ucm_verify_header(fd, (uint64_t)st.st_size, &entry.id, out,
				&fault);
	return err ? err : fault ? -EIO : 0;
}

void ucm_store_tell_loss(struct ucm_store *set, const struct ucm_key *key)
{
	pthread_mutex_lock(&set->loss_lock);
	if (set->on_loss)
		set->on_loss(set->on_loss_arg, key);
	pthread_mutex_unlock(&set->loss_lock);
}

void ucm_store_lose(struct ucm_store *set, ucm_ref ref, int err)
{
	struct ucm_entry entry;
	struct ucm_key key;

	if (!ucm_store_index_remove(set, ref, &entry))
		return;
	ucm_count(&set->stats.vanished);
	ucm_warning("block %s: gone from %s: %s", ucm_hex(&entry.id).text,
		    set->dirs[entry.dir]->path, strerror(-err));
	key = (struct ucm_key){ .id = entry.id, .space = entry.space };
	/* all copies, not only the first, so that a removal finds them */
	for (unsigned dir = 0; dir < set->num_dirs; dir++)
		ucm_store_examine(set, set->names.spaces[entry.space],
				  &entry.id, dir);
	ucm_store_tell_loss(set, &key);
}

/* The first open of what a snapshot has told: is it the block? If not, it is
 * looked at as if it had just been found. */
static int first_look(struct ucm_store *set, ucm_ref ref,
		      const struct ucm_entry *entry, int fd, uint64_t size)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	int err = ucm_verify_header(fd, size, &entry->id, &block, &fault);

	if (err) {
		ucm_store_count_error(set, entry->dir, err);
		ucm_error("%s: block %s: read: %s", set->dirs[entry->dir]->path,
			  ucm_hex(&entry->id).text, strerror(-err));
		return err;
	}
	if (!fault)
		fault = ucm_space_fits(set->names.spaces[entry->space], &block,
				       true);
	if (!fault && size == entry->size) {
		ucm_index_flag(set->index, ref, UCM_ENTRY_UNREAD, false);
		return 0;
	}
	ucm_store_lose(set, ref, -ESTALE);
	return -ENOENT;
}

static int open_checked(struct ucm_store *set, ucm_ref ref,
			struct ucm_entry *out)
{
	struct ucm_entry entry;
	struct stat st;
	int fd, err;

	if (!ucm_index_get(set->index, ref, &entry))
		return -ENOENT;
	if (entry.flags & UCM_ENTRY_DOUBT) {
		err = ucm_store_settle(set, ref);
		if (err)
			return err;
	}
	fd = open_entry(set, &entry, &st);
	if (fd == -ENOENT || fd == -ENXIO || fd == -ELOOP) {
		ucm_store_lose(set, ref, fd);
		return -ENOENT;
	}
	if (fd < 0) {
		ucm_store_count_error(set, entry.dir, fd);
		ucm_error("%s: block %s: open: %s", set->dirs[entry.dir]->path,
			  ucm_hex(&entry.id).text, strerror(-fd));
		return fd;
	}
	err = entry.flags & UCM_ENTRY_UNREAD
		      ? first_look(set, ref, &entry, fd, (uint64_t)st.st_size)
		      : 0;
	if (err) {
		close(fd);
		return err;
	}
	if ((uint64_t)st.st_size != entry.size) {
		ucm_store_condemn(set, ref, &st,
				  (uint64_t)st.st_size < entry.size
					  ? UCM_FAULT_SHORT
					  : UCM_FAULT_SIZE,
				  "");
		close(fd);
		return -ENOENT;
	}
	err = entry.flags & UCM_ENTRY_WRITABLE
		      ? ucm_store_check_written(set, ref, &entry, fd, &st)
		      : 0;
	if (err) {
		close(fd);
		return err;
	}
	*out = entry;
	return fd;
}

int ucm_store_open_block(struct ucm_store *set, ucm_ref ref,
			 struct ucm_entry *out)
{
	int fd = open_checked(set, ref, out);

	if (fd >= 0)
		count_use(set, ref);
	return fd;
}

int ucm_store_check(struct ucm_store *set, ucm_ref ref)
{
	struct ucm_entry entry;
	int fd = open_checked(set, ref, &entry);

	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

int ucm_store_open_again(struct ucm_store *set, ucm_ref ref)
{
	struct ucm_entry entry;
	int err = 0;

	if (!ucm_index_get(set->index, ref, &entry))
		return -ENOENT;
	if (entry.flags & (UCM_ENTRY_DOUBT | UCM_ENTRY_WRITABLE))
		err = ucm_store_check(set, ref);
	if (!err)
		count_use(set, ref);
	return err;
}

void ucm_store_fill_bucket(struct ucm_store *set, struct ucm_space *space,
			   unsigned bucket)
{
	if (atomic_load(&set->scanned))
		return;
	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		if (!ucm_space_is_scanned(space, dir, bucket))
			ucm_store_scan_bucket(set, space, dir, bucket);
	}
}

/* Where else a copy may lie: everywhere, if a second one was seen. */
static bool may_lie_in(struct ucm_store *set, const struct ucm_entry *entry,
		       unsigned dir)
{
	struct ucm_space *space = set->names.spaces[entry->space];

	return dir == entry->dir || entry->flags & UCM_ENTRY_DUPLICATE ||
	       !ucm_space_is_scanned(space, dir, ucm_bucket(&entry->id));
}

/* A copy on a read-only tier would come back with the next mount. */
static bool lies_on_readonly(struct ucm_store *set, struct ucm_space *space,
			     const struct ucm_entry *entry)
{
	for (unsigned i = 0; i < set->num_dirs; i++) {
		char path[UCM_BACKING_PATH_MAX];
		struct stat st;

		if (!set->dirs[i]->readonly || !may_lie_in(set, entry, i))
			continue;
		ucm_backing_block_path(space->folder, &entry->id, path);
		if (!ucm_os_stat(set->dirs[i]->dirfd, path, &st))
			return true;
	}
	return false;
}

static void count_removal(struct ucm_store *set, const struct ucm_entry *entry)
{
	struct ucm_tier_stats *stats = &set->tier_of[entry->dir]->stats;

	ucm_debug(TIER, 1, "block %s: removed", ucm_hex(&entry->id).text);
	ucm_count(&set->stats.removed);
	ucm_count(&stats->removed);
	ucm_count_more(&stats->removed_bytes, entry->size);
}

/* Slow tiers first: what fails leaves the fast copy and the entry. */
static int remove_files(struct ucm_store *set, const struct ucm_space *space,
			const struct ucm_entry *entry)
{
	for (unsigned i = set->num_dirs; i-- > 0;) {
		int err;

		if (set->dirs[i]->readonly || !may_lie_in(set, entry, i))
			continue;
		err = ucm_backing_remove(set->dirs[i], space->folder,
					 &entry->id);
		if (err && err != -ENOENT) {
			ucm_store_count_error(set, i, err);
			ucm_error("%s: block %s: unlink: %s",
				  set->dirs[i]->path, ucm_hex(&entry->id).text,
				  strerror(-err));
			return err;
		}
	}
	return 0;
}

static int remove_locked(struct ucm_store *set, const struct ucm_key *key)
{
	struct ucm_space *space = ucm_namespace_get(&set->names, key->space);
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	if (!space)
		return -ENOENT;
	err = find_or_probe(set, key, &entry, &ref);
	if (err)
		return err;
	if (lies_on_readonly(set, space, &entry))
		return -EROFS;
	/* before the file: who maps the index is never told of a block that
	 * is gone; behind it the entry goes, so that we find it as long */
	ucm_index_flag(set->index, ref, UCM_ENTRY_LEAVING, true);
	err = remove_files(set, space, &entry);
	if (err) {
		ucm_index_flag(set->index, ref, UCM_ENTRY_LEAVING, false);
		return err;
	}
	if (entry.flags & UCM_ENTRY_PINNED)
		ucm_backing_pin(set->dirs[entry.dir], space->folder, &key->id,
				false);
	if (!ucm_store_index_remove(set, ref, &entry))
		return -ENOENT;
	count_removal(set, &entry);
	return 0;
}

int ucm_store_remove(struct ucm_store *set, const struct ucm_key *key)
{
	int err;

	/* no snapshot shall bring it back while it goes */
	for (unsigned dir = 0; dir < set->num_dirs; dir++)
		ucm_snapshots_load(set, dir, ucm_bucket(&key->id));
	ucm_store_lock_name(set, &key->id);
	err = remove_locked(set, key);
	ucm_store_unlock_name(set, &key->id);
	return err;
}

static void edit_times(struct ucm_entry *entry, void *arg)
{
	const struct stat *st = arg;

	entry->mtime_ns = ucm_time_ns(&st->st_mtim);
	entry->atime_s = (uint32_t)st->st_atim.tv_sec;
}

int ucm_store_set_times(struct ucm_store *set, ucm_ref ref,
			const struct timespec times[2])
{
	struct ucm_entry entry;
	_cleanup_fd_ int fd = -1;
	struct stat st;
	int err;

	fd = open_ref(set, ref, &entry, &st);
	if (fd < 0)
		return fd;
	/* or new times would hide what its writer has done meanwhile */
	err = entry.flags & UCM_ENTRY_WRITABLE
		      ? ucm_store_check_written(set, ref, &entry, fd, &st)
		      : 0;
	if (!err)
		err = ucm_os_utimens(fd, times);
	if (!err)
		err = ucm_os_fstat(fd, &st);
	if (!err)
		ucm_index_edit(set->index, ref, edit_times, &st);
	return err;
}

static int pin_locked(struct ucm_store *set, ucm_ref ref, bool pinned)
{
	struct ucm_entry entry;
	int err;

	if (!ucm_index_get(set->index, ref, &entry))
		return -ENOENT;
	err = ucm_backing_pin(set->dirs[entry.dir],
			      set->names.spaces[entry.space]->folder,
			      &entry.id, pinned);
	if (err) {
		ucm_store_count_error(set, entry.dir, err);
		ucm_error("%s: block %s: .ucmfs/pinned: %s",
			  set->dirs[entry.dir]->path, ucm_hex(&entry.id).text,
			  strerror(-err));
		return err;
	}
	ucm_index_flag(set->index, ref, UCM_ENTRY_PINNED, pinned);
	return 0;
}

/* Under the name's lock: no mark stays behind of a block that is just being
 * removed, and none that is being pinned is evicted. */
int ucm_store_pin(struct ucm_store *set, ucm_ref ref, bool pinned)
{
	struct ucm_entry entry;
	int err;

	if (!ucm_index_get(set->index, ref, &entry))
		return -ENOENT;
	ucm_store_lock_name(set, &entry.id);
	err = pin_locked(set, ref, pinned);
	ucm_store_unlock_name(set, &entry.id);
	return err;
}

int ucm_store_path(struct ucm_store *set, const struct ucm_entry *entry,
		   char *path, size_t size)
{
	char block[UCM_BACKING_PATH_MAX];
	int len;

	ucm_backing_block_path(set->names.spaces[entry->space]->folder,
			       &entry->id, block);
	len = snprintf(path, size, "%s/%s", set->dirs[entry->dir]->path, block);
	return (size_t)len < size ? 0 : -ERANGE;
}

/* Tiers without a limit on one file system share its space. */
static bool shares_device(const struct ucm_store *set, unsigned number)
{
	for (unsigned i = 0; i < number; i++) {
		if (!set->tiers[i].limit &&
		    set->tiers[i].dirs[0].dev == set->tiers[number].dirs[0].dev)
			return true;
	}
	return false;
}

void ucm_store_statvfs(struct ucm_store *set, struct statvfs *out)
{
	uint64_t total = 0, available = 0;

	for (unsigned i = 0; i < set->num_tiers; i++) {
		uint64_t tier_total, tier_free;

		ucm_tier_space(&set->tiers[i], &tier_total, &tier_free);
		if (shares_device(set, i) && !set->tiers[i].limit)
			continue;
		total += tier_total;
		if (!set->tiers[i].readonly)
			available += tier_free;
	}
	*out = (struct statvfs){
		.f_bsize = UCM_BLOCK_PAGE,
		.f_frsize = UCM_BLOCK_PAGE,
		.f_blocks = total / UCM_BLOCK_PAGE,
		.f_bfree = available / UCM_BLOCK_PAGE,
		.f_bavail = available / UCM_BLOCK_PAGE,
		/* as many small blocks as there is room for */
		.f_files = atomic_load(&set->blocks) +
			   available / UCM_BLOCK_PAGE,
		.f_ffree = available / UCM_BLOCK_PAGE,
		.f_favail = available / UCM_BLOCK_PAGE,
		.f_namemax = 255,
	};
}

int ucm_store_sync(struct ucm_store *set)
{
	int first = 0;

	for (unsigned i = 0; i < set->num_dirs; i++) {
		int err = set->dirs[i]->readonly ? 0 : ucm_upkeep_sync(set, i);

		first = first ? first : err;
	}
	return first;
}
