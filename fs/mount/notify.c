/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - makes the kernel forget blocks that went by themselves, and
 * attributes that changed with their space's.
 *
 * A notification takes locks in the kernel that the request at hand may hold,
 * so it is sent from a thread of its own. That a name is gone takes the lock of
 * its folder, which a program has for as long as a call of its own in that
 * folder hangs: so names are told folder by folder (notices.h), and where that
 * does not get through the kernel is made to look up everything again (Linux
 * 6.16), or at least what is below the folder, by a notification about the
 * folder itself.
 *
 * If that is lost as well, the kernel remembers a block that is gone until
 * entry_timeout has passed: stat(2) finds it, and open(2) says that it is not
 * there. Nothing wrong is read: what a block's node stands for is never another
 * block.
 *
 * Attributes take no lock; a thread of its own forgets them, and drops old
 * staging.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "fs/mount/notices.h"
#include "hashing/tree.h"

#define EXPIRE_EVERY_S 30
#define MAX_NODES 65536u /* whose attributes wait to be forgotten */
#define QUIET_MS 1000
#define END_MS 30000

/* ---- names ---- */

static void forget_name(void *session, uint64_t bucket,
			const struct ucm_key *key)
{
	char name[UCM_TREE_BLOCK_LEN + 1];

	ucm_tree_block_name(&key->id, name);
	ucm_debug(NOTIFY, 1, "forget %s of space %u", name, key->space);
	fuse_lowlevel_notify_inval_entry(session, bucket, name,
					 UCM_TREE_BLOCK_LEN);
}

/* Of all folders: false where the kernel or libfuse is too old. */
static bool forget_everything(struct fuse_session *session)
{
#ifdef FUSE_CAP_OVER_IO_URING /* came with the same libfuse */
	return !fuse_lowlevel_notify_increment_epoch(session);
#else
	(void)session;
	return false;
#endif
}

static void forget_bucket(void *session, uint64_t bucket,
			  const struct ucm_key *key)
{
	char name[3];

	(void)bucket;
	ucm_tree_bucket_name(ucm_tree_bucket(&key->id), name);
	ucm_debug(NOTIFY, 1, "forget all of %s of space %u", name, key->space);
	if (!forget_everything(session))
		fuse_lowlevel_notify_inval_entry(
			session, ucm_node_make(UCM_NODE_SPACE, key->space),
			name, 2);
}

static const struct ucm_notices_ops notify_names = {
	.name = forget_name,
	.folder = forget_bucket,
};

void ucm_notify_loss(void *arg, const struct ucm_key *key)
{
	struct ucm_daemon *daemon = arg;

	ucm_notices_add(daemon->notifier.names,
			ucm_node_bucket(key->space, ucm_tree_bucket(&key->id)),
			ucm_node_make(UCM_NODE_SPACE, key->space), key);
}

/* ---- attributes ---- */

void ucm_notify_attr(struct ucm_daemon *daemon, fuse_ino_t ino)
{
	struct ucm_notifier *notifier = &daemon->notifier;

	pthread_mutex_lock(&notifier->lock);
	if (notifier->num_nodes == notifier->room_nodes &&
	    notifier->room_nodes < MAX_NODES) {
		size_t room = notifier->room_nodes ? 2 * notifier->room_nodes
						   : 64;
		fuse_ino_t *nodes =
			realloc(notifier->nodes, room * sizeof(*nodes));

		if (nodes) {
			notifier->nodes = nodes;
			notifier->room_nodes = room;
		}
	}
	/* else it remembers times that are too old */
	if (notifier->num_nodes < notifier->room_nodes)
		notifier->nodes[notifier->num_nodes++] = ino;
	else
		notifier->attrs_lost++;
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

static void *notify_main(void *arg)
{
	struct ucm_daemon *daemon = arg;
	struct ucm_notifier *notifier = &daemon->notifier;

	pthread_mutex_lock(&notifier->lock);
	while (!notifier->stopping) {
		struct timespec until;
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
	notifier->names = ucm_notices_open(&notify_names, daemon->session);
	if (!notifier->names)
		return -ENOMEM;
	err = pthread_create(&notifier->thread, NULL, notify_main, daemon);
	notifier->running = !err;
	return -err;
}

bool ucm_notify_quiet(struct ucm_daemon *daemon)
{
	return !daemon->notifier.names ||
	       ucm_notices_end(daemon->notifier.names, QUIET_MS);
}

bool ucm_notify_stop(struct ucm_daemon *daemon)
{
	struct ucm_notifier *notifier = &daemon->notifier;
	bool ended = ucm_notices_close(notifier->names, END_MS);

	notifier->names = NULL;
	if (!ended)
		ucm_error("a notification of the kernel hangs: ending without "
			  "it");
	if (!notifier->running)
		return ended;
	pthread_mutex_lock(&notifier->lock);
	notifier->stopping = true;
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->lock);
	pthread_join(notifier->thread, NULL);
	notifier->running = false;
	free(notifier->nodes);
	notifier->nodes = NULL;
	notifier->num_nodes = notifier->room_nodes = 0;
	return ended;
}

void ucm_notify_stats(struct ucm_daemon *daemon, struct ucm_notices_stats *out)
{
	struct ucm_notifier *notifier = &daemon->notifier;

	ucm_notices_get_stats(notifier->names, out);
	pthread_mutex_lock(&notifier->lock);
	out->waiting += (unsigned)notifier->num_nodes + notifier->num_spaces;
	out->lost += notifier->attrs_lost;
	pthread_mutex_unlock(&notifier->lock);
}
