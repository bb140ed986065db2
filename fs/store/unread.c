/* SPDX-License-Identifier: Apache-2.0 */
/* unread.c - a short list, searched through only while it is not empty. */
#include <config.h>

#include "fs/store/unread.h"

#include <string.h>

void ucm_unread_init(struct ucm_unread *unread)
{
	*unread = (struct ucm_unread){ .lock = PTHREAD_MUTEX_INITIALIZER };
}

void ucm_unread_fini(struct ucm_unread *unread)
{
	pthread_mutex_destroy(&unread->lock);
}

static bool unread_same_key(const struct ucm_key *a, const struct ucm_key *b)
{
	return a->space == b->space && !memcmp(&a->id, &b->id, sizeof(a->id));
}

/* Under the lock; num if it is not there. */
static unsigned unread_find(const struct ucm_unread *unread,
			    const struct ucm_key *key, unsigned dir)
{
	unsigned i = 0;

	while (i < unread->num && (unread->files[i].dir != dir ||
				   !unread_same_key(&unread->files[i].key,
						    key)))
		i++;
	return i;
}

bool ucm_unread_add(struct ucm_unread *unread, const struct ucm_key *key,
		    unsigned dir, int64_t now_ms)
{
	bool room;
	unsigned i;

	pthread_mutex_lock(&unread->lock);
	i = unread_find(unread, key, dir);
	room = i < UCM_UNREAD_MAX;
	if (room && i == unread->num) {
		unread->files[i] = (struct ucm_unread_file){
			.key = *key,
			.dir = (uint8_t)dir,
			.next_ms = now_ms + UCM_UNREAD_EVERY_MS,
		};
		atomic_fetch_add(&unread->num, 1);
	}
	pthread_mutex_unlock(&unread->lock);
	return room;
}

static bool unread_is_due(const struct ucm_unread_file *file,
			  const struct ucm_key *key, unsigned dir,
			  int64_t now_ms)
{
	return file->next_ms <= now_ms &&
	       (dir == UCM_UNREAD_ANY_DIR || dir == file->dir) &&
	       (key ? unread_same_key(&file->key, key)
		    : file->tries < UCM_UNREAD_TRIES);
}

bool ucm_unread_next(struct ucm_unread *unread, const struct ucm_key *key,
		     unsigned dir, int64_t now_ms, unsigned *cursor,
		     struct ucm_unread_file *out)
{
	bool found = false;

	if (!atomic_load_explicit(&unread->num, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&unread->lock);
	for (; *cursor < unread->num && !found; ++*cursor) {
		struct ucm_unread_file *file = &unread->files[*cursor];

		found = unread_is_due(file, key, dir, now_ms);
		if (!found)
			continue;
		file->next_ms = now_ms + UCM_UNREAD_EVERY_MS;
		file->tries += !key;
		*out = *file;
	}
	pthread_mutex_unlock(&unread->lock);
	return found;
}

bool ucm_unread_has(struct ucm_unread *unread, const struct ucm_key *key,
		    unsigned dir)
{
	bool has;

	if (!atomic_load_explicit(&unread->num, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&unread->lock);
	has = unread_find(unread, key, dir) < unread->num;
	pthread_mutex_unlock(&unread->lock);
	return has;
}

bool ucm_unread_any(struct ucm_unread *unread, unsigned dir)
{
	bool any = false;

	pthread_mutex_lock(&unread->lock);
	for (unsigned i = 0; i < unread->num; i++)
		any |= unread->files[i].dir == dir;
	pthread_mutex_unlock(&unread->lock);
	return any;
}

void ucm_unread_remove(struct ucm_unread *unread, const struct ucm_key *key,
		       unsigned dir)
{
	unsigned i, last;

	pthread_mutex_lock(&unread->lock);
	i = unread_find(unread, key, dir);
	if (i < unread->num) {
		last = atomic_fetch_sub(&unread->num, 1) - 1;
		unread->files[i] = unread->files[last];
	}
	pthread_mutex_unlock(&unread->lock);
}
