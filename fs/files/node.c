/* SPDX-License-Identifier: Apache-2.0 */
/* node.c - the nodes of files/ and their locks; see node.h. */
#include <config.h>

#include "fs/files/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/osfile.h"
#include "fs/files/files.h"

/* Of a name, for its lock. */
static unsigned lock_number(uint64_t parent, const char *name)
{
	uint64_t hash = parent * UINT64_C(0x9e3779b97f4a7c15);

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return (unsigned)((hash ^ hash >> 29) % UCM_FILES_LOCKS);
}

static void init_tree_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attr;

	/* or a busy mount would never let a folder be renamed */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(
		&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &attr);
	pthread_rwlockattr_destroy(&attr);
}

void ucm_files_nodes_init(struct ucm_files_nodes *nodes, uint64_t ino)
{
	init_tree_lock(&nodes->tree);
	for (unsigned i = 0; i < UCM_FILES_LOCKS; i++)
		pthread_mutex_init(&nodes->names[i], NULL);
	pthread_mutex_init(&nodes->lock, NULL);
	nodes->root = (struct ucm_files_node){
		.name = (char *)(uintptr_t)UCM_FILES_ROOT,
		.ino = ino,
		.refs = 1,
		.fd = -1,
		.is_dir = true,
	};
	nodes->table = NULL;
	LIST_INIT(&nodes->lost);
}

/* Without nodes->lock: a descriptor may be the last of a removed file, which is
 * freed then. */
static void free_nodes(struct ucm_files_list *list)
{
	struct ucm_files_node *node;

	while ((node = LIST_FIRST(list))) {
		LIST_REMOVE(node, in_list);
		ucm_os_close(node->fd);
		free(node->name);
		free(node);
	}
}

/* ---- the table, under nodes->lock ---- */

static struct ucm_files_node *find(const struct ucm_files_nodes *nodes,
				   uint64_t ino)
{
	struct ucm_files_node *node;

	HASH_FIND(hh, nodes->table, &ino, sizeof(ino), node);
	return node;
}

static void take_out(struct ucm_files_nodes *nodes, struct ucm_files_node *node)
{
	if (node->lost)
		LIST_REMOVE(node, in_list);
	else
		HASH_DEL(nodes->table, node);
}

/* Without a name and descriptor: its number may be another file's. */
static void lose(struct ucm_files_nodes *nodes, struct ucm_files_node *node)
{
	take_out(nodes, node);
	node->nameless = node->lost = true;
	LIST_INSERT_HEAD(&nodes->lost, node, in_list);
}

void ucm_files_nodes_fini(struct ucm_files_nodes *nodes)
{
	while (nodes->table)
		lose(nodes, nodes->table);
	free_nodes(&nodes->lost);
	for (unsigned i = 0; i < UCM_FILES_LOCKS; i++)
		pthread_mutex_destroy(&nodes->names[i]);
	pthread_mutex_destroy(&nodes->lock);
	pthread_rwlock_destroy(&nodes->tree);
}

static bool is_named(const struct ucm_files_node *node, uint64_t parent,
		     const char *name)
{
	return !node->nameless && node->parent->ino == parent &&
	       !strcmp(node->name, name);
}

/* And of its parents, where it was the last; the root has one for ever. Adds
 * to a list to be freed. */
static void drop_ref(struct ucm_files_nodes *nodes, struct ucm_files_node *node,
		     struct ucm_files_list *list)
{
	while (--node->refs == 0) {
		struct ucm_files_node *parent = node->parent;

		take_out(nodes, node);
		LIST_INSERT_HEAD(list, node, in_list);
		node = parent;
	}
}

/* ---- paths and locks ---- */

static bool name_is_valid(const char *name)
{
	return *name && !strchr(name, '/') && strcmp(name, ".") &&
	       strcmp(name, "..");
}

/* Put a name before what is at *at; false: no room. */
static bool prepend(const char *path, char **at, const char *name)
{
	size_t len = strlen(name);

	if ((size_t)(*at - path) < len + 1)
		return false;
	if (**at) /* not the last one */
		*--*at = '/';
	*at -= len;
	memcpy(*at, name, len);
	return true;
}

/* Under nodes->lock. name: one more below node, or NULL. */
static int make_path(const struct ucm_files_node *node, const char *name,
		     char *path)
{
	char *at = path + PATH_MAX - 1;

	*at = '\0';
	if (name && !prepend(path, &at, name))
		return -ENAMETOOLONG;
	for (; node; node = node->parent) {
		if (node->nameless)
			return -ENOENT;
		if (!prepend(path, &at, node->name))
			return -ENAMETOOLONG;
	}
	memmove(path, at, (size_t)(path + PATH_MAX - at));
	return 0;
}

int ucm_files_path(struct ucm_files_nodes *nodes,
		   const struct ucm_files_node *node, const char *name,
		   char *path)
{
	int err;

	if (name && !name_is_valid(name))
		return -EINVAL;
	if (name && strlen(name) > NAME_MAX)
		return -ENAMETOOLONG;
	pthread_mutex_lock(&nodes->lock);
	err = make_path(node, name, path);
	pthread_mutex_unlock(&nodes->lock);
	return err;
}

/* In ascending order, each once. */
static void lock_names(struct ucm_files_lock *lock)
{
	unsigned *n = lock->names;

	pthread_rwlock_rdlock(&lock->nodes->tree);
	if (lock->num == 2 && n[0] == n[1])
		lock->num = 1;
	if (lock->num == 2 && n[0] > n[1]) {
		unsigned first = n[0];

		n[0] = n[1];
		n[1] = first;
	}
	for (unsigned i = 0; i < lock->num; i++)
		pthread_mutex_lock(&lock->nodes->names[n[i]]);
}

void ucm_files_unlock(struct ucm_files_lock *lock)
{
	for (unsigned i = lock->num; i-- > 0;)
		pthread_mutex_unlock(&lock->nodes->names[lock->names[i]]);
	pthread_rwlock_unlock(&lock->nodes->tree);
}

int ucm_files_lock_name(struct ucm_files_nodes *nodes,
			struct ucm_files_node *parent, const char *name,
			struct ucm_files_lock *out, char *path)
{
	int err;

	*out = (struct ucm_files_lock){
		.nodes = nodes,
		.names = { lock_number(parent->ino, name) },
		.num = 1,
	};
	lock_names(out);
	err = ucm_files_path(nodes, parent, name, path);
	if (err)
		ucm_files_unlock(out);
	return err;
}

int ucm_files_lock_pair(struct ucm_files_nodes *nodes,
			struct ucm_files_pair *pair, bool tree,
			struct ucm_files_lock *out)
{
	int err;

	*out = (struct ucm_files_lock){ .nodes = nodes };
	if (tree) {
		pthread_rwlock_wrlock(&nodes->tree);
	} else {
		for (; out->num < 2; out->num++)
			out->names[out->num] =
				lock_number(pair->parent[out->num]->ino,
					    pair->name[out->num]);
		lock_names(out);
	}
	err = ucm_files_path(nodes, pair->parent[0], pair->name[0],
			     pair->path[0]);
	if (!err)
		err = ucm_files_path(nodes, pair->parent[1], pair->name[1],
				     pair->path[1]);
	if (err)
		ucm_files_unlock(out);
	return err;
}

/* Its name's lock, or -ESTALE. */
static int where_is(struct ucm_files_nodes *nodes,
		    const struct ucm_files_node *node, unsigned *number_out)
{
	bool nameless;

	pthread_mutex_lock(&nodes->lock);
	nameless = node->nameless;
	*number_out = lock_number(node->parent ? node->parent->ino : 0,
				  node->name);
	pthread_mutex_unlock(&nodes->lock);
	return nameless ? -ESTALE : 0;
}

int ucm_files_lock_node(struct ucm_files_nodes *nodes,
			struct ucm_files_node *node, struct ucm_files_lock *out,
			char *path)
{
	unsigned number, now;
	int err = where_is(nodes, node, &number);

	while (!err) {
		*out = (struct ucm_files_lock){
			.nodes = nodes,
			.names = { number },
			.num = 1,
		};
		lock_names(out);
		err = where_is(nodes, node, &now);
		if (!err && now == number) {
			err = ucm_files_path(nodes, node, NULL, path);
			if (!err)
				return 0;
		}
		number = now; /* it was renamed in between */
		ucm_files_unlock(out);
	}
	return err == -ENOENT ? -ESTALE : err;
}

int ucm_files_lock_path(struct ucm_files_nodes *nodes, int dirfd,
			const char *path, struct ucm_files_lock *out,
			uint64_t *parent_out)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_MAX];
	struct stat st;
	int err;

	snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
	pthread_rwlock_rdlock(&nodes->tree);
	err = ucm_os_stat(dirfd, folder, &st);
	if (err) {
		pthread_rwlock_unlock(&nodes->tree);
		return err;
	}
	*parent_out = st.st_ino;
	*out = (struct ucm_files_lock){
		.nodes = nodes,
		.names = { lock_number(st.st_ino, slash + 1) },
		.num = 1,
	};
	pthread_mutex_lock(&nodes->names[out->names[0]]);
	return 0;
}

/* ---- nodes ---- */

const struct ucm_files_node *ucm_files_known(struct ucm_files_nodes *nodes,
					     uint64_t ino)
{
	const struct ucm_files_node *node;

	pthread_mutex_lock(&nodes->lock);
	node = find(nodes, ino);
	pthread_mutex_unlock(&nodes->lock);
	return node;
}

static struct ucm_files_node *new_node(struct ucm_files_nodes *nodes,
				       struct ucm_files_node *parent,
				       const char *name, const struct stat *st)
{
	struct ucm_files_node *node = calloc(1, sizeof(*node));

	if (!node)
		return NULL;
	node->name = strdup(name);
	node->fd = -1;
	node->ino = st->st_ino;
	node->is_dir = S_ISDIR(st->st_mode);
	node->parent = parent;
	if (node->name)
		HASH_ADD(hh, nodes->table, ino, sizeof(node->ino), node);
	if (!node->hh.tbl) {
		free(node->name);
		free(node);
		return NULL;
	}
	parent->refs++;
	return node;
}

/* Takes the name over. */
static void set_name(struct ucm_files_nodes *nodes, struct ucm_files_node *node,
		     struct ucm_files_node *parent, char *name,
		     struct ucm_files_list *list)
{
	struct ucm_files_node *old = node->parent;

	free(node->name);
	node->name = name;
	node->nameless = false;
	node->parent = parent;
	parent->refs++;
	drop_ref(nodes, old, list);
}

static bool is_in(const struct ucm_files_node *folder,
		  const struct ucm_files_node *node)
{
	while (folder && folder != node)
		folder = folder->parent;
	return folder;
}

/* Is what has the number the file that it was? Others may have removed that,
 * and its number is a new file's; a folder that they moved is the same. */
static bool is_same(const struct ucm_files_node *node,
		    const struct ucm_files_node *parent, const char *name,
		    const struct stat *st)
{
	if (node->is_dir != S_ISDIR(st->st_mode))
		return false;
	return is_named(node, parent->ino, name) ||
	       ((node->fd >= 0 || node->is_dir || st->st_nlink > 1) &&
		!is_in(parent, node));
}

static struct ucm_files_node *looked_up(struct ucm_files_nodes *nodes,
					struct ucm_files_node *parent,
					const char *name, const struct stat *st,
					struct ucm_files_list *list)
{
	struct ucm_files_node *node = find(nodes, st->st_ino);
	char *copy;

	if (node && !is_same(node, parent, name, st)) {
		lose(nodes, node);
		node = NULL;
	}
	if (!node)
		return new_node(nodes, parent, name, st);
	if (is_named(node, parent->ino, name))
		return node;
	copy = strdup(name);
	if (copy)
		set_name(nodes, node, parent, copy, list);
	return copy ? node : NULL;
}

struct ucm_files_node *ucm_files_looked_up(struct ucm_files_nodes *nodes,
					   struct ucm_files_node *parent,
					   const char *name,
					   const struct stat *st)
{
	struct ucm_files_list list = LIST_HEAD_INITIALIZER(list);
	struct ucm_files_node *node;

	pthread_mutex_lock(&nodes->lock);
	node = looked_up(nodes, parent, name, st, &list);
	if (node && node->lookups++ == 0)
		node->refs++;
	pthread_mutex_unlock(&nodes->lock);
	free_nodes(&list);
	return node;
}

void ucm_files_hold(struct ucm_files_nodes *nodes, struct ucm_files_node *node)
{
	pthread_mutex_lock(&nodes->lock);
	if (node->lookups++ == 0)
		node->refs++;
	pthread_mutex_unlock(&nodes->lock);
}

void ucm_files_forget(struct ucm_files_nodes *nodes,
		      struct ucm_files_node *node, uint64_t lookups)
{
	struct ucm_files_list list = LIST_HEAD_INITIALIZER(list);

	if (node == &nodes->root)
		return;
	pthread_mutex_lock(&nodes->lock);
	node->lookups -= lookups;
	if (!node->lookups)
		drop_ref(nodes, node, &list);
	pthread_mutex_unlock(&nodes->lock);
	free_nodes(&list);
}

/* Under nodes->lock. Returns the descriptor if it has to be closed. */
static int let_go(struct ucm_files_nodes *nodes, uint64_t parent,
		  const char *name, uint64_t ino, int fd)
{
	struct ucm_files_node *node = find(nodes, ino);

	if (!node || !is_named(node, parent, name))
		return fd;
	node->nameless = true;
	if (node->fd >= 0)
		return fd;
	node->fd = fd;
	if (fd < 0)
		lose(nodes, node);
	return -1;
}

void ucm_files_removed(struct ucm_files_nodes *nodes, uint64_t parent,
		       const char *name, uint64_t ino, int fd)
{
	pthread_mutex_lock(&nodes->lock);
	fd = let_go(nodes, parent, name, ino, fd);
	pthread_mutex_unlock(&nodes->lock);
	ucm_os_close(fd);
}

void ucm_files_renamed(struct ucm_files_nodes *nodes,
		       const struct ucm_files_pair *pair, char *copy,
		       uint64_t ino, uint64_t over, int fd)
{
	struct ucm_files_list list = LIST_HEAD_INITIALIZER(list);
	struct ucm_files_node *node;

	pthread_mutex_lock(&nodes->lock);
	fd = let_go(nodes, pair->parent[1]->ino, pair->name[1], over, fd);
	node = find(nodes, ino);
	if (node && is_named(node, pair->parent[0]->ino, pair->name[0])) {
		set_name(nodes, node, pair->parent[1], copy, &list);
		copy = NULL;
	}
	pthread_mutex_unlock(&nodes->lock);
	free_nodes(&list);
	free(copy);
	ucm_os_close(fd);
}
