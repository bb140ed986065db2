/* SPDX-License-Identifier: Apache-2.0 */
/* pins.c - a sorted list of names, and the marks beside blocks; see pins.h. */
#include <config.h>

#include "fs/store/pins.h"

#include <stdlib.h>
#include <string.h>

#include "fs/store/store.h"

void ucm_pins_init(struct ucm_pins *pins)
{
	pthread_mutex_init(&pins->lock, NULL);
}

void ucm_pins_fini(struct ucm_pins *pins)
{
	free(pins->keys);
	pthread_mutex_destroy(&pins->lock);
}

static int pins_compare(const struct ucm_key *a, const struct ucm_key *b)
{
	int order = memcmp(&a->id, &b->id, sizeof(a->id));

	return order ? order : (a->space > b->space) - (a->space < b->space);
}

/* Where it is, or belongs. */
static size_t pins_seek(const struct ucm_pins *pins, const struct ucm_key *key,
			bool *found)
{
	size_t low = 0, high = pins->num;

	*found = false;
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = pins_compare(&pins->keys[mid], key);

		if (!order) {
			*found = true;
			return mid;
		}
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool pins_grow(struct ucm_pins *pins)
{
	size_t room = 2 * pins->room + 64;
	struct ucm_key *keys = realloc(pins->keys, room * sizeof(*keys));

	if (!keys)
		return false;
	pins->keys = keys;
	pins->room = room;
	return true;
}

/* A mark that was found. */
static void pins_add(struct ucm_pins *pins, const struct ucm_key *key)
{
	bool found;
	size_t at;

	pthread_mutex_lock(&pins->lock);
	at = pins_seek(pins, key, &found);
	if (!found && pins->num == pins->room && !pins_grow(pins)) {
		pins->lacks_some = true;
	} else if (!found) {
		memmove(&pins->keys[at + 1], &pins->keys[at],
			(pins->num - at) * sizeof(*pins->keys));
		pins->keys[at] = *key;
		pins->num++;
	}
	pthread_mutex_unlock(&pins->lock);
}

bool ucm_pins_have(struct ucm_pins *pins, const struct ucm_key *key)
{
	bool found;

	if (!atomic_load_explicit(&pins->num, memory_order_acquire))
		return false;
	pthread_mutex_lock(&pins->lock);
	pins_seek(pins, key, &found);
	pthread_mutex_unlock(&pins->lock);
	return found;
}

void ucm_pins_remove(struct ucm_pins *pins, const struct ucm_key *key)
{
	bool found;
	size_t at;

	if (!atomic_load_explicit(&pins->num, memory_order_acquire))
		return;
	pthread_mutex_lock(&pins->lock);
	at = pins_seek(pins, key, &found);
	if (found) {
		pins->num--;
		memmove(&pins->keys[at], &pins->keys[at + 1],
			(pins->num - at) * sizeof(*pins->keys));
	}
	pthread_mutex_unlock(&pins->lock);
}

/* ---- the marks ---- */

static int mark_pin_in(struct ucm_store *store, const struct ucm_entry *entry,
		       unsigned dir, bool pinned)
{
	struct ucm_medium *medium = store->dirs.at[dir];

	return ucm_medium_pin(medium, store->names.spaces[entry->space]->folder,
			      &entry->id, pinned);
}

int ucm_store_mark_pin(struct ucm_store *store, const struct ucm_entry *entry,
		       bool pinned)
{
	int result = 0;

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		bool known = dir == entry->dir || dir + 1 == entry->copy;
		int err = 0;

		/* an earlier place may have kept its mark, in a crash */
		if (known || (!pinned && !store->dirs.at[dir]->readonly))
			err = mark_pin_in(store, entry, dir, pinned);
		if (err && known && !result)
			result = err;
	}
	return result;
}

static bool pins_key_of(struct ucm_store *store, const char *name,
			const struct ucm_id *id, struct ucm_key *key)
{
	struct ucm_space *space = *name ? ucm_namespace_find(&store->names,
							     name)
					: store->names.spaces[0];

	if (!space)
		return false;
	*key = (struct ucm_key){ .id = *id, .space = space->number };
	return true;
}

static void pins_keep(void *arg, const char *name, const struct ucm_id *id)
{
	struct ucm_store *store = arg;
	struct ucm_key key;

	if (pins_key_of(store, name, id, &key))
		pins_add(&store->pins, &key);
}

static void pins_mark(void *arg, const char *name, const struct ucm_id *id)
{
	struct ucm_store *store = arg;
	struct ucm_key key;
	ucm_ref ref;

	if (pins_key_of(store, name, id, &key) &&
	    ucm_pins_have(&store->pins, &key) &&
	    ucm_index_find(store->index, &key, NULL, &ref))
		ucm_index_flag(store->index, ref, UCM_ENTRY_PINNED, true);
}

/* What is indexed from now on is pinned at once (entry.c), and then what a probe
 * has indexed already. */
void ucm_pins_read(struct ucm_store *store, unsigned dir)
{
	struct ucm_keeper *keeper = &store->keepers[dir];
	struct ucm_medium *medium = store->dirs.at[dir];

	if (atomic_load(&keeper->pins_known))
		return;
	pthread_mutex_lock(&keeper->pins_lock);
	if (!atomic_load(&keeper->pins_known)) {
		ucm_medium_pins(medium, pins_keep, store);
		ucm_medium_pins(medium, pins_mark, store);
		atomic_store(&keeper->pins_known, true);
	}
	pthread_mutex_unlock(&keeper->pins_lock);
}
