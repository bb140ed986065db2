/* SPDX-License-Identifier: Apache-2.0 */
/* node.c - the nodes of files/ and their locks; see node.h. */
#include <config.h>

#include "fs/files/node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/osfile.h"
#include "fs/files/files.h"

#define FIRST_HEADS 1024u /* a power of two, as all that follow */

static uint64_t hash_of(const struct ucm_files_node *parent, const char *name)
{
	uint64_t hash = (uintptr_t)parent * UINT64_C(0x9e3779b97f4a7c15);

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return hash ^ hash >> 29;
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

int ucm_files_nodes_init(struct ucm_files_nodes *nodes)
{
	init_tree_lock(&nodes->tree);
	for (unsigned i = 0; i < UCM_FILES_LOCKS; i++)
		pthread_mutex_init(&nodes->names[i], NULL);
	pthread_mutex_init(&nodes->lock, NULL);
	nodes->root = (struct ucm_files_node){
		.name = (char *)(uintptr_t)UCM_FILES_ROOT,
		.refs = 1,
		.fd = -1,
		.is_dir = true,
	};
	nodes->num = 0;
	nodes->heads = FIRST_HEADS;
	nodes->table = calloc(nodes->heads, sizeof(*nodes->table));
	return nodes->table ? 0 : -ENOMEM;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		ucm_os_close(fd);
}

/* A list of them, without nodes->lock: a descriptor may be the last of a
 * removed file, which is freed then. */
static void free_nodes(struct ucm_files_node *node)
{
	while (node) {
		struct ucm_files_node *next = node->next;

		close_fd(node->fd);
		free(node->name);
		free(node);
		node = next;
	}
}

void ucm_files_nodes_fini(struct ucm_files_nodes *nodes)
{
	for (size_t i = 0; nodes->table && i < nodes->heads; i++)
		free_nodes(nodes->table[i]);
	free(nodes->table);
	for (unsigned i = 0; i < UCM_FILES_LOCKS; i++)
		pthread_mutex_destroy(&nodes->names[i]);
	pthread_mutex_destroy(&nodes->lock);
	pthread_rwlock_destroy(&nodes->tree);
}

/* ---- the table, under nodes->lock ---- */

static struct ucm_files_node **head_of(struct ucm_files_nodes *nodes,
				       uint64_t hash)
{
	return &nodes->table[hash & (nodes->heads - 1)];
}

static struct ucm_files_node *find(struct ucm_files_nodes *nodes,
				   const struct ucm_files_node *parent,
				   const char *name)
{
	uint64_t hash = hash_of(parent, name);
	struct ucm_files_node *node = *head_of(nodes, hash);

	while (node && (node->hash != hash || node->gone ||
			node->parent != parent || strcmp(node->name, name)))
		node = node->next;
	return node;
}

/* Twice the heads; without memory the lists get longer. */
static void grow(struct ucm_files_nodes *nodes)
{
	struct ucm_files_node **old = nodes->table;
	size_t heads = nodes->heads;

	nodes->table = calloc(2 * heads, sizeof(*nodes->table));
	if (!nodes->table) {
		nodes->table = old;
		return;
	}
	nodes->heads = 2 * heads;
	for (size_t i = 0; i < heads; i++) {
		while (old[i]) {
			struct ucm_files_node *node = old[i];
			struct ucm_files_node **head =
				head_of(nodes, node->hash);

			old[i] = node->next;
			node->next = *head;
			*head = node;
		}
	}
	free(old);
}

/* Gone ones stay in it, under the hash that they had. */
static void insert(struct ucm_files_nodes *nodes, struct ucm_files_node *node)
{
	struct ucm_files_node **head;

	if (nodes->num >= nodes->heads)
		grow(nodes);
	head = head_of(nodes, node->hash);
	node->next = *head;
	*head = node;
	nodes->num++;
}

static void take_out(struct ucm_files_nodes *nodes, struct ucm_files_node *node)
{
	struct ucm_files_node **link = head_of(nodes, node->hash);

	while (*link != node)
		link = &(*link)->next;
	*link = node->next;
	nodes->num--;
}

/* And of its parents, where it was the last; the root has one for ever. Adds
 * to a list to be freed. */
static void drop_ref(struct ucm_files_nodes *nodes, struct ucm_files_node *node,
		     struct ucm_files_node **list)
{
	while (--node->refs == 0) {
		struct ucm_files_node *parent = node->parent;

		take_out(nodes, node);
		node->next = *list;
		*list = node;
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
		if (node->gone)
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

static unsigned lock_number(uint64_t hash)
{
	return (unsigned)(hash % UCM_FILES_LOCKS);
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
		.names = { lock_number(hash_of(parent, name)) },
		.num = 1,
	};
	lock_names(out);
	err = ucm_files_path(nodes, parent, name, path);
	if (err)
		ucm_files_unlock(out);
	return err;
}

int ucm_files_lock_tree(struct ucm_files_nodes *nodes,
			struct ucm_files_node *parent, const char *name,
			struct ucm_files_lock *out, char *path)
{
	int err;

	*out = (struct ucm_files_lock){ .nodes = nodes };
	pthread_rwlock_wrlock(&nodes->tree);
	err = ucm_files_path(nodes, parent, name, path);
	if (err)
		ucm_files_unlock(out);
	return err;
}

/* Is it known to be a file? */
static bool leads_to_file(struct ucm_files_nodes *nodes,
			  const struct ucm_files_node *parent, const char *name)
{
	struct ucm_files_child child;

	return ucm_files_child(nodes, parent, name, &child) && !child.is_dir;
}

int ucm_files_lock_pair(struct ucm_files_nodes *nodes,
			struct ucm_files_pair *pair, struct ucm_files_lock *out)
{
	int err;

	*out = (struct ucm_files_lock){ .nodes = nodes };
	for (; out->num < 2; out->num++)
		out->names[out->num] = lock_number(
			hash_of(pair->parent[out->num], pair->name[out->num]));
	lock_names(out);
	if (!leads_to_file(nodes, pair->parent[0], pair->name[0])) {
		ucm_files_unlock(out);
		out->num = 0;
		pthread_rwlock_wrlock(&nodes->tree);
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

/* A node's hash, or -ESTALE. */
static int where_is(struct ucm_files_nodes *nodes,
		    const struct ucm_files_node *node, uint64_t *hash_out)
{
	bool gone;

	pthread_mutex_lock(&nodes->lock);
	gone = node->gone;
	*hash_out = node->hash;
	pthread_mutex_unlock(&nodes->lock);
	return gone ? -ESTALE : 0;
}

int ucm_files_lock_node(struct ucm_files_nodes *nodes,
			struct ucm_files_node *node, struct ucm_files_lock *out,
			char *path)
{
	uint64_t hash, now;
	int err = where_is(nodes, node, &hash);

	while (!err) {
		*out = (struct ucm_files_lock){
			.nodes = nodes,
			.names = { lock_number(hash) },
			.num = 1,
		};
		lock_names(out);
		err = where_is(nodes, node, &now);
		if (!err && now == hash) {
			err = ucm_files_path(nodes, node, NULL, path);
			if (!err)
				return 0;
		}
		hash = now; /* renamed meanwhile */
		ucm_files_unlock(out);
	}
	return err == -ENOENT ? -ESTALE : err;
}

/* ---- nodes ---- */

bool ucm_files_child(struct ucm_files_nodes *nodes,
		     const struct ucm_files_node *parent, const char *name,
		     struct ucm_files_child *out)
{
	const struct ucm_files_node *node;

	pthread_mutex_lock(&nodes->lock);
	node = find(nodes, parent, name);
	if (node)
		*out = (struct ucm_files_child){ node, node->dir,
						 node->is_dir };
	pthread_mutex_unlock(&nodes->lock);
	return node;
}

static struct ucm_files_node *new_node(struct ucm_files_nodes *nodes,
				       struct ucm_files_node *parent,
				       const char *name)
{
	struct ucm_files_node *node = calloc(1, sizeof(*node));
	char *copy = strdup(name);

	if (!node || !copy) {
		free(node);
		free(copy);
		return NULL;
	}
	node->name = copy;
	node->fd = -1;
	node->hash = hash_of(parent, name);
	node->parent = parent;
	parent->refs++;
	insert(nodes, node);
	return node;
}

static void keep_no_longer(struct ucm_files_nodes *nodes,
			   struct ucm_files_node *node,
			   struct ucm_files_node **list)
{
	if (!node->kept)
		return;
	node->kept = false;
	drop_ref(nodes, node, list);
}

static struct ucm_files_node *looked_up(struct ucm_files_nodes *nodes,
					struct ucm_files_node *parent,
					const char *name, bool is_dir,
					uint64_t ino,
					struct ucm_files_node **list)
{
	struct ucm_files_node *node = find(nodes, parent, name);

	if (node && (node->is_dir != is_dir || (!is_dir && node->ino != ino))) {
		node->gone = true;
		keep_no_longer(nodes, node, list);
		node = NULL;
	}
	if (!node) {
		node = new_node(nodes, parent, name);
		if (!node)
			return NULL;
		node->is_dir = is_dir;
		node->ino = ino;
	}
	if (node->lookups++ == 0)
		node->refs++;
	keep_no_longer(nodes, node, list);
	return node;
}

struct ucm_files_node *ucm_files_looked_up(struct ucm_files_nodes *nodes,
					   struct ucm_files_node *parent,
					   const char *name, bool is_dir,
					   uint64_t ino, unsigned dir)
{
	struct ucm_files_node *node, *list = NULL;

	pthread_mutex_lock(&nodes->lock);
	node = looked_up(nodes, parent, name, is_dir, ino, &list);
	if (node)
		node->dir = dir;
	pthread_mutex_unlock(&nodes->lock);
	free_nodes(list);
	return node;
}

void ucm_files_keep(struct ucm_files_nodes *nodes,
		    const struct ucm_files_node *parent, const char *name)
{
	struct ucm_files_node *node;

	pthread_mutex_lock(&nodes->lock);
	node = find(nodes, parent, name);
	if (node && !node->kept) {
		node->kept = true;
		node->refs++;
	}
	pthread_mutex_unlock(&nodes->lock);
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
	struct ucm_files_node *list = NULL;

	if (node == &nodes->root)
		return;
	pthread_mutex_lock(&nodes->lock);
	node->lookups -= lookups;
	if (!node->lookups)
		drop_ref(nodes, node, &list);
	pthread_mutex_unlock(&nodes->lock);
	free_nodes(list);
}

/* Under nodes->lock: what has that name is gone. Returns what is left to
 * close; adds to a list to be freed. */
static int let_go(struct ucm_files_nodes *nodes,
		  const struct ucm_files_node *parent, const char *name, int fd,
		  struct ucm_files_node **list)
{
	struct ucm_files_node *node = find(nodes, parent, name);

	if (!node)
		return fd;
	node->gone = true;
	node->fd = fd;
	keep_no_longer(nodes, node, list);
	return -1;
}

void ucm_files_removed(struct ucm_files_nodes *nodes,
		       struct ucm_files_node *parent, const char *name, int fd)
{
	struct ucm_files_node *list = NULL;

	pthread_mutex_lock(&nodes->lock);
	fd = let_go(nodes, parent, name, fd, &list);
	pthread_mutex_unlock(&nodes->lock);
	free_nodes(list);
	close_fd(fd);
}

/* Under nodes->lock. */
static void move_node(struct ucm_files_nodes *nodes,
		      struct ucm_files_node *node,
		      struct ucm_files_node *parent, char *name,
		      struct ucm_files_node **list)
{
	struct ucm_files_node *old = node->parent;

	take_out(nodes, node);
	free(node->name);
	node->name = name;
	node->parent = parent;
	node->hash = hash_of(parent, name);
	parent->refs++;
	insert(nodes, node);
	drop_ref(nodes, old, list);
}

void ucm_files_renamed(struct ucm_files_nodes *nodes,
		       const struct ucm_files_pair *pair, char *copy,
		       unsigned dir, int fd)
{
	struct ucm_files_node *node, *list = NULL;

	pthread_mutex_lock(&nodes->lock);
	fd = let_go(nodes, pair->parent[1], pair->name[1], fd, &list);
	node = find(nodes, pair->parent[0], pair->name[0]);
	if (node) {
		move_node(nodes, node, pair->parent[1], copy, &list);
		node->dir = dir;
		copy = NULL;
	}
	pthread_mutex_unlock(&nodes->lock);
	free_nodes(list);
	free(copy);
	close_fd(fd);
}

bool ucm_files_is_gone(struct ucm_files_nodes *nodes,
		       const struct ucm_files_node *node)
{
	bool gone;

	pthread_mutex_lock(&nodes->lock);
	gone = node->gone;
	pthread_mutex_unlock(&nodes->lock);
	return gone;
}
