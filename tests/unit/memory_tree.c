/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_tree.c - what lies in a medium in memory, behind the store's back: it
 * stands in for the system where a test plants, cuts and removes files.
 */
#include <config.h>

#include "tests/unit/memory_medium.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "tests/unit/memory_inside.h"

#define MAX_NUMBERS 256

static pthread_mutex_t numbers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct open *numbers[MAX_NUMBERS];

int memory_number(void *object)
{
	int number = 0;

	pthread_mutex_lock(&numbers_lock);
	while (number < MAX_NUMBERS && numbers[number])
		number++;
	ck_assert_int_lt(number, MAX_NUMBERS);
	numbers[number] = object;
	pthread_mutex_unlock(&numbers_lock);
	return FX_NUMBERS + number;
}

void *memory_object(int number)
{
	return numbers[number - FX_NUMBERS];
}

static struct node *number_node(int number)
{
	const struct open *open = memory_object(number);

	return open->node;
}

/* As a system call answers. */
static int answer(int err)
{
	if (err >= 0)
		return err;
	errno = -err;
	return -1;
}

static int tree_open(const char *path, int flags)
{
	struct open *open;
	int err = nodes_open(path, flags, 0644, &open);

	return err ? answer(err) : memory_number(open);
}

#define LOCKED(doing)                                                         \
	({                                                                    \
		int locked_err;                                               \
		nodes_lock();                                                 \
		locked_err = (doing);                                         \
		nodes_unlock();                                               \
		answer(locked_err);                                           \
	})

static int tree_stat(const char *path, struct stat *st)
{
	return LOCKED(nodes_stat(path, st));
}

static int tree_unlink(const char *path)
{
	return LOCKED(nodes_remove(path));
}

static int tree_rename(const char *from, const char *to)
{
	return LOCKED(nodes_move(from, to));
}

static int tree_make(const char *path, mode_t mode)
{
	return LOCKED(nodes_make(path, mode));
}

static int tree_walk(const char *path, int (*fn)(void *arg, const char *path),
		     void *arg)
{
	_cleanup_free_ char *names = NULL;
	int err;

	nodes_lock();
	err = nodes_list(path, &names);
	nodes_unlock();
	if (err)
		return 0;
	for (const char *name = names; *name && !err;
	     name += strlen(name) + 1) {
		char inside[1024];

		snprintf(inside, sizeof(inside), "%s/%s", path, name);
		err = fn(arg, inside);
		if (!err)
			err = tree_walk(inside, fn, arg);
	}
	return err;
}

static ssize_t tree_pread(int number, void *bytes, size_t len, off_t offset)
{
	nodes_lock();
	len = node_read(number_node(number), bytes, len, (uint64_t)offset);
	nodes_unlock();
	return (ssize_t)len;
}

static ssize_t tree_pwrite(int number, const void *bytes, size_t len,
			   off_t offset)
{
	int err = LOCKED(node_write(number_node(number), bytes, len,
				    (uint64_t)offset));

	return err ? err : (ssize_t)len;
}

static int tree_ftruncate(int number, off_t size)
{
	return LOCKED(node_resize(number_node(number), (uint64_t)size));
}

static int tree_allocate(int number, off_t end)
{
	struct node *node = number_node(number);
	int err = LOCKED(node_allocate(node, 0, (uint64_t)end));

	if (!err && node->size < (uint64_t)end)
		node->size = (uint64_t)end;
	return err;
}

static int tree_fstat(int number, struct stat *st)
{
	nodes_lock();
	node_stat(number_node(number), st);
	nodes_unlock();
	return 0;
}

static int tree_futimens(int number, const struct timespec times[2])
{
	nodes_lock();
	node_set_times(number_node(number), times);
	nodes_unlock();
	return 0;
}

static void tree_close(int number)
{
	struct open *open = memory_object(number);

	pthread_mutex_lock(&numbers_lock);
	numbers[number - FX_NUMBERS] = NULL;
	pthread_mutex_unlock(&numbers_lock);
	nodes_close(open);
}

const struct fx_tree memory_tree = {
	.has = nodes_has,
	.open = tree_open,
	.stat = tree_stat,
	.unlink = tree_unlink,
	.rename = tree_rename,
	.make = tree_make,
	.walk = tree_walk,
	.pread = tree_pread,
	.pwrite = tree_pwrite,
	.ftruncate = tree_ftruncate,
	.allocate = tree_allocate,
	.fstat = tree_fstat,
	.futimens = tree_futimens,
	.close = tree_close,
};
