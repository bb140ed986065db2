/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - makes the kernel forget blocks that went by themselves, and
 * attributes that changed with their space's.
 *
 * A notification takes locks in the kernel that the request at hand may hold,
 * so it is sent from a thread of its own. The same thread drops old staging.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "hashing/tree.h"

#define EXPIRE_EVERY_S 30

void ucm_notify_loss(void *arg, const struct ucm_key *key)
{
	struct ucm_notifier *notifier = &((struct ucm_daemon *)arg)->notifier;

	pthread_mutex_lock(&notifier->lock);
	if (notifier->num == notifier->room) {
		size_t room = notifier->room ? 2 * notifier->room : 64;
		struct ucm_key *keys =
			realloc(notifier->keys, room * sizeof(*keys));

		if (keys) {
			notifier->keys = keys;
			notifier->room = room;
		}
	}
	/* without memory the kernel remembers a name that opens as ENOENT */
	if (notifier->num < notifier->room)
		notifier->keys[notifier->num++] = *key;
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->lock);
}

void ucm_notify_attr(struct ucm_daemon *daemon, fuse_ino_t ino)
{
	struct ucm_notifier *notifier = &daemon->notifier;

	pthread_mutex_lock(&notifier->lock);
	if (notifier->num_nodes == notifier->room_nodes) {
		size_t room = notifier->room_nodes ? 2 * notifier->room_nodes
						   : 64;
		fuse_ino_t *nodes =
			realloc(notifier->nodes, room * sizeof(*nodes));

		if (nodes) {
			notifier->nodes = nodes;
			notifier->room_nodes = room;
		}
	}
	/* without memory it remembers times that are too old */
	if (notifier->num_nodes < notifier->room_nodes)
		notifier->nodes[notifier->num_nodes++] = ino;
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->lock);
}

void ucm_notify_owner(struct ucm_daemon *daemon, const struct ucm_space *space)
{
	struct ucm_notifier *notifier = &daemon->notifier;
	uint64_t *word = &notifier->spaces[space->number / 64];
	uint64_t bit = UINT64_C(1) << space->number % 64;

	pthread_mutex_lock(&notifier->lock);
	notifier->num_spaces += !(*word & bit);
	*word |= bit;
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->lock);
}

/* The next space to report, under the lock. */
static unsigned take_space(struct ucm_notifier *notifier)
{
	unsigned word = 0, bit;

	while (!notifier->spaces[word])
		word++;
	bit = (unsigned)__builtin_ctzll(notifier->spaces[word]);
	notifier->spaces[word] &= ~(UINT64_C(1) << bit);
	notifier->num_spaces--;
	return 64 * word + bit;
}

static void forget_attr(struct ucm_daemon *daemon, fuse_ino_t ino)
{
	fuse_lowlevel_notify_inval_inode(daemon->session, ino, -1, 0);
}

/* Who may do what is decided by the kernel, by the attributes it remembers:
 * buckets first, as they are the way to the blocks. */
static void forget_owner(struct ucm_daemon *daemon, unsigned space)
{
	struct ucm_entry entry;
	ucm_ref ref;

	ucm_debug(NOTIFY, 1, "forget the owner of space %u", space);
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++)
		forget_attr(daemon, ucm_node_bucket((uint16_t)space, bucket));
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++) {
		uint32_t cursor = 0;

		while (ucm_index_next(daemon->store->index, (uint16_t)space,
				      bucket, &cursor, &entry, &ref))
			forget_attr(daemon, ucm_node_make(UCM_NODE_BLOCK, ref));
	}
}

static void forget(struct ucm_daemon *daemon, const struct ucm_key *key)
{
	char name[UCM_TREE_BLOCK_LEN + 1];
	fuse_ino_t bucket =
		ucm_node_bucket(key->space, ucm_tree_bucket(&key->id));

	ucm_tree_block_name(&key->id, name);
	ucm_debug(NOTIFY, 1, "forget %s of space %u", name, key->space);
	fuse_lowlevel_notify_inval_entry(daemon->session, bucket, name,
					 UCM_TREE_BLOCK_LEN);
}

static void *notify_main(void *arg)
{
	struct ucm_daemon *daemon = arg;
	struct ucm_notifier *notifier = &daemon->notifier;

	pthread_mutex_lock(&notifier->lock);
	while (!notifier->stopping) {
		struct timespec until;
		struct ucm_key key;
		unsigned space;
		fuse_ino_t ino;

		if (notifier->num_spaces) {
			space = take_space(notifier);
			pthread_mutex_unlock(&notifier->lock);
			forget_owner(daemon, space);
			pthread_mutex_lock(&notifier->lock);
			continue;
		}
		if (notifier->num_nodes) {
			ino = notifier->nodes[--notifier->num_nodes];
			pthread_mutex_unlock(&notifier->lock);
			forget_attr(daemon, ino);
			pthread_mutex_lock(&notifier->lock);
			continue;
		}
		if (notifier->num) {
			key = notifier->keys[--notifier->num];
			pthread_mutex_unlock(&notifier->lock);
			forget(daemon, &key);
			pthread_mutex_lock(&notifier->lock);
			continue;
		}
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec +=
			daemon->store->config->staging_age_s < EXPIRE_EVERY_S
				? 1
				: EXPIRE_EVERY_S;
		if (pthread_cond_timedwait(&notifier->wake, &notifier->lock,
					   &until) == ETIMEDOUT) {
			pthread_mutex_unlock(&notifier->lock);
			ucm_handles_expire(daemon);
			ucm_log_tell_left_out(false);
			pthread_mutex_lock(&notifier->lock);
		}
	}
	pthread_mutex_unlock(&notifier->lock);
	return NULL;
}

int ucm_notify_start(struct ucm_daemon *daemon)
{
	struct ucm_notifier *notifier = &daemon->notifier;
	int err;

	pthread_mutex_init(&notifier->lock, NULL);
	ucm_cond_init_monotonic(&notifier->wake);
	err = pthread_create(&notifier->thread, NULL, notify_main, daemon);
	notifier->running = !err;
	return -err;
}

void ucm_notify_stop(struct ucm_daemon *daemon)
{
	struct ucm_notifier *notifier = &daemon->notifier;

	if (!notifier->running)
		return;
	pthread_mutex_lock(&notifier->lock);
	notifier->stopping = true;
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->lock);
	pthread_join(notifier->thread, NULL);
	notifier->running = false;
	free(notifier->keys);
	notifier->keys = NULL;
	free(notifier->nodes);
	notifier->nodes = NULL;
	notifier->num_nodes = notifier->room_nodes = 0;
	notifier->num = notifier->room = 0;
}
