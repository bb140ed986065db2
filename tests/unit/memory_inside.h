/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_inside.h - what the files of the medium in memory share.
 *
 * A tree of names and nodes, with the calls of a file system and their results:
 * open files keep a node that has no name any more, and a folder's times change
 * with the names in it. But for nodes_open() and nodes_close() they are called
 * under the lock.
 */
#ifndef UCM_TESTS_MEMORY_INSIDE_H
#define UCM_TESTS_MEMORY_INSIDE_H

#include "tests/unit/medium_fixture.h"

#define PAGE 4096u
#define DEVICE 0xfeed

struct node {
	struct node *next_free;
	uint64_t ino;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	unsigned names, opens;
	uint64_t size, room;
	char *bytes;
	uint8_t *written; /* of each page: does anything keep it? */
	int64_t mtime_ns, atime_ns, ctime_ns;
};

struct open {
	struct node *node;
	bool writes;
};

void nodes_begin(const char *root);
void nodes_lock(void);
void nodes_unlock(void);

struct node *nodes_find(const char *path);
int nodes_make(const char *path, mode_t mode);
int nodes_link(const char *from, const char *to);
int nodes_remove(const char *path);
int nodes_remove_folder(const char *path);
/* With all that lies below it. */
int nodes_move(const char *from, const char *to);
int nodes_stat(const char *path, struct stat *out);
/* The names in a folder, as ucm_os_list() gives them. */
int nodes_list(const char *path, char **out);
/* Is it kept here? */
bool nodes_has(const char *path);

int nodes_open(const char *path, int flags, mode_t mode, struct open **out);
void nodes_close(struct open *open);

void node_stat(const struct node *node, struct stat *out);
int node_allocate(struct node *node, uint64_t from, uint64_t to);
int node_resize(struct node *node, uint64_t size);
int node_write(struct node *node, const void *bytes, size_t len, uint64_t at);
size_t node_read(const struct node *node, char *to, size_t len, uint64_t at);
void node_set_times(struct node *node, const struct timespec times[2]);

/* Room, as a medium. */
void nodes_set_size(uint64_t bytes);
uint64_t nodes_size(void);
uint64_t nodes_free(void);

extern const struct fx_tree memory_tree; /* memory_tree.c */

#endif
