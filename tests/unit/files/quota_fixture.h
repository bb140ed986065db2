/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota_fixture.h - folders with quotas, in files/. The thread is played by
 * the test, if it does not say otherwise, and a day has passed since the files
 * were made.
 */
#ifndef UCM_TESTS_QUOTA_FIXTURE_H
#define UCM_TESTS_QUOTA_FIXTURE_H

#include "fs/files/quota.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "fs/files/files.h"
#include "fs/files/node.h"
#include "tests/unit/tier_fixture.h"

#define BYTES 16384u /* of a file */
#define DAY_NS (INT64_C(86400) * 1000000000)

static struct ucm_dirs dirs;
static struct ucm_files_tree tree;
static struct ucm_files_nodes nodes;
static int64_t passed_ns; /* since the files were made */
static const char *open_name; /* this one is open */

/* ---- a tree ---- */

static inline int64_t later(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return ucm_time_ns(&now) + passed_ns;
}

static inline bool is_open(void *arg, const struct ucm_files_node *node)
{
	(void)arg;
	return open_name && !strcmp(node->name, open_name);
}

static inline void settle(void *arg)
{
	(void)arg;
}

static const struct ucm_files_quota_ops hooks = {
	.is_open = is_open,
	.settle = settle,
};

static inline void begin(void)
{
	struct ucm_error error = { "" };
	struct stat root;

	ck_assert_msg(!ucm_dirs_open(&dirs, &fx_config, &error), "%s",
		      error.text);
	ucm_files_tree_init(&tree, &dirs, 0);
	ck_assert_int_eq(ucm_medium_begin(dirs.at[0]), 0);
	ck_assert_int_eq(ucm_files_look(&tree, "files", &root), 0);
	ucm_files_nodes_init(&nodes, root.st_ino);
	ck_assert_int_eq(ucm_files_quotas_open(&tree), 0);
	tree.quotas->now_ns = later;
	tree.quotas->nodes = &nodes;
	tree.quotas->ops = &hooks;
}

static inline void end(void)
{
	ck_assert(ucm_files_quotas_stop(&tree, 10000));
	ucm_files_quotas_close(&tree);
	ucm_files_nodes_fini(&nodes);
	ucm_dirs_close(&dirs);
}

static inline void tree_store(const char *source)
{
	passed_ns = DAY_NS;
	open_name = NULL;
	fx_configure(source);
	begin();
}

static inline void tree_teardown(void)
{
	end();
	fx_teardown();
}

static inline void work(void)
{
	unsigned steps = 0;

	while (ucm_files_quotas_step(tree.quotas))
		must(++steps < 10000);
}

/* ---- what is in it ---- */

static inline void folder(const char *path)
{
	struct ucm_files_owner who = { geteuid(), getegid(), 0755, NULL };
	struct stat made;

	ck_assert_int_eq(ucm_files_mkdir(&tree, path, &who, &made), 0);
}

/* A file as the mount makes it. */
static inline void make(const char *path)
{
	static const char bytes[BYTES] = "x";
	struct ucm_files_owner who = { geteuid(), getegid(), 0644, NULL };
	struct stat st;
	int fd = ucm_files_create(&tree, path, &who, &st);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	ck_assert_int_eq(fstat(fd, &st), 0);
	ucm_files_account(&tree, path, (int64_t)ucm_file_takes(&st));
	close(fd);
}

static inline void remove_file(const char *path)
{
	struct stat st;

	ck_assert_int_eq(ucm_files_look(&tree, path, &st), 0);
	ck_assert_int_eq(ucm_files_unlink(&tree, path, &st), 0);
}

static inline void move(const char *from, const char *to)
{
	struct stat from_st, to_st;
	bool over = !ucm_files_look(&tree, to, &to_st);

	ck_assert_int_eq(ucm_files_look(&tree, from, &from_st), 0);
	ck_assert_int_eq(ucm_files_rename(&tree, from, to, 0, &from_st,
					  over ? &to_st : NULL),
			 0);
}

/* Last written and last used so many hours ago. */
static inline void age(const char *path, int written, int used)
{
	int64_t now = time(NULL);
	struct timespec times[2] = { { .tv_sec = now - 3600 * used },
				     { .tv_sec = now - 3600 * written } };

	ck_assert_int_eq(utimensat(tree.at->dirfd, path, times, 0), 0);
}

static inline int set(const char *path, const char *what, const char *value)
{
	return ucm_files_mark_set(&tree, path, what, value, strlen(value));
}

/* A quota of so many files: a little more than these take, so that one more
 * reaches it. */
static inline void mark(const char *path, unsigned files, const char *order)
{
	char quota[24];

	snprintf(quota, sizeof(quota), "%u", files * BYTES + BYTES / 2);
	ck_assert_int_eq(set(path, "quota", quota), 0);
	ck_assert_int_eq(set(path, "order", order), 0);
}

static inline struct ucm_files_mark_info info_of(const char *path)
{
	struct ucm_files_mark_info info = { 0 };

	ck_assert_msg(ucm_files_mark_get(&tree, path, &info), "%s has no mark",
		      path);
	return info;
}

static inline uint64_t used(const char *path)
{
	return info_of(path).used;
}

/* f0 to f(num-1), of which f0 is the oldest. */
static inline void make_row(const char *in, unsigned num)
{
	char path[128];

	for (unsigned i = 0; i < num; i++) {
		snprintf(path, sizeof(path), "%s/f%u", in, i);
		make(path);
		age(path, (int)(num - i), (int)(num - i));
	}
}

#endif
