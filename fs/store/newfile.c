/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newfile.c - a temporary file for a block, in one tier, and its end.
 *
 * Which tier it is to be is create.c's affair, or a mover's.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>

#include "common/log.h"
#include "fs/store/jobs.h"
#include "fs/store/quota.h"
#include "hashing/tree.h"

static int newfile_make(const struct ucm_key *key, struct ucm_promise *promise,
			struct ucm_temp *temp, struct ucm_file *file)
{
	struct ucm_medium *medium = promise->medium;
	int err = ucm_medium_put(medium, temp->path, file);

	if (err)
		return err;
	ucm_debug(TIER, 1, "block %s: new file %s in %s",
		  ucm_hex(&key->id).text, temp->path, medium->path);
	ucm_room_watch(promise, temp->path);
	temp->promise = promise;
	temp->medium = medium;
	temp->losses = atomic_load(&medium->recovery.losses);
	temp->tier = promise->tier;
	temp->guessed = promise->guessed;
	temp->dir = (uint8_t)ucm_tier_dir(temp->tier, medium);
	return 0;
}

int ucm_store_create_in(struct ucm_store *store, struct ucm_tier *tier,
			const struct ucm_key *key, const struct ucm_want *want,
			struct ucm_temp *out, struct ucm_file *file_out)
{
	struct ucm_promise *promise;
	struct ucm_medium *medium;
	int result = -EROFS;

	*out = (struct ucm_temp){ .dir = 0 };
	/* as often as there are directories: each failure rules one out */
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		int err = ucm_tier_choose(tier, store->dirs.placement,
					  &key->id, want, &promise);

		if (err)
			return result == -EROFS ? err : result;
		medium = promise->medium;
		result = newfile_make(key, promise, out, file_out);
		if (!result)
			return 0;
		ucm_promise_end(promise);
		ucm_dirs_count_error(&store->dirs, ucm_tier_dir(tier, medium),
				     result);
		ucm_medium_failed(medium, "create", result);
		if (!atomic_load(&medium->retry_s))
			return result;
	}
	return result;
}

int ucm_store_reopen(struct ucm_store *store, const struct ucm_temp *temp,
		     struct ucm_file *out)
{
	(void)store;
	return temp->medium->ops->open(temp->medium, temp->path,
				       UCM_OPEN_CHANGE, out, NULL);
}

static void raise_to(_Atomic uint64_t *most, uint64_t value)
{
	uint64_t was = atomic_load(most);

	while (was < value && !atomic_compare_exchange_weak(most, &was, value))
		;
}

void ucm_store_end_promise(struct ucm_temp *temp)
{
	ucm_promise_end(temp->promise);
	temp->promise = NULL;
	ucm_quota_end_promise(&temp->part);
}

void ucm_store_rest(struct ucm_temp *temp, const struct ucm_file *file)
{
	struct stat st;

	if (temp->promise && temp->promise->guessed &&
	    !ucm_file_stat(file, &st) && st.st_size)
		ucm_promise_resize(temp->promise, ucm_file_takes(&st));
}

/* Where there is no room for more than this, files like it are not tried
 * again: one after the other would fail in mid-write. */
static void note_outgrown(struct ucm_store *store, const struct ucm_temp *temp)
{
	struct stat st;

	if (temp->guessed &&
	    !temp->medium->ops->stat(temp->medium, temp->path, &st))
		raise_to(&store->sizes.outgrown, ucm_file_takes(&st));
}

void ucm_store_abandon(const struct ucm_temp *temp)
{
	if (temp->committed && temp->ref)
		temp->medium->abandoned = true;
}

void ucm_store_drop(struct ucm_store *store, struct ucm_temp *temp)
{
	if (!temp->committed) {
		note_outgrown(store, temp);
		ucm_medium_drop(temp->medium, temp->path);
		ucm_count(&store->stats.dropped);
	} else if (temp->ref) {
		ucm_index_flag(store->index, temp->ref,
			       UCM_ENTRY_WRITABLE | UCM_ENTRY_SHARED, false);
		atomic_fetch_sub(&store->writers, 1);
		ucm_jobs_written(store, temp->ref);
	}
	ucm_store_end_promise(temp);
}

/* ---- the folder of a space ---- */

struct ucm_space_owner ucm_store_owner_of(const struct ucm_space *space)
{
	return (struct ucm_space_owner){
		.uid = space->uid,
		.gid = space->gid,
		.is_private = space->is_private,
	};
}

int ucm_store_link(struct ucm_store *store, const struct ucm_temp *temp,
		   const struct ucm_space *space, const struct ucm_id *id,
		   bool sync)
{
	struct ucm_medium *medium = temp->medium;
	int err = ucm_medium_commit(medium, temp->path, space->folder, id,
				    sync);

	if (err != -ENOENT)
		return err;
	err = ucm_store_make_folder(store, medium, space);
	return err ? err
		   : ucm_medium_commit(medium, temp->path, space->folder, id,
				       sync);
}

int ucm_store_make_folder(struct ucm_store *store, struct ucm_medium *medium,
			  const struct ucm_space *space)
{
	const struct ucm_space_owner owner = ucm_store_owner_of(space);

	return ucm_medium_make_space(
				     medium, space->folder, &owner,
		store->config->durability == UCM_DURABILITY_FULL);
}
