/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_names.c - look up, open and list names.
 *
 * Each call has its own clock; a side's figure for a round is the median.
 * "New" names are ones that the kernel does not know, because it was told to
 * drop its dentries (those of tmpfs itself cannot be dropped); for the mount,
 * the tier's directory knows them.
 */
#include <config.h>

#include "bench/mount_bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The directories on the way are known, whatever was dropped. */
static int warm_buckets(const struct side *side)
{
	struct stat st;

	for (unsigned i = 0; i < UCM_BUCKETS; i++) {
		char bucket[3];

		ucm_tree_bucket_name(i, bucket);
		if (fstatat(side->dirfd, bucket, &st, 0) && errno != ENOENT)
			return complain(bucket, "stat");
	}
	return 0;
}

static const struct name *some_name(struct bench *bench, size_t i)
{
	/* others each round; the names are in no order */
	size_t at = bench->round * bench->ops + i;

	return &bench->names[at % bench->num_names];
}

/* What a cold inode costs the disk is the directory's figure; the mount's is
 * that of a name which is new to the mount alone. */
static int warm_backing(struct bench *bench)
{
	struct stat st;

	for (size_t i = 0; i < bench->ops; i++) {
		const char *path = some_name(bench, i)->path;

		if (fstatat(bench->side[0].dirfd, path, &st, 0))
			return complain(path, "stat");
	}
	return 0;
}

static int forget_names(struct bench *bench, const struct side *side)
{
	int err = drop_caches("2");

	if (!err && side->is_mount)
		err = warm_backing(bench);
	return err ? err : warm_buckets(side);
}

static int timed_open(const struct side *side, const struct name *name,
		      double *us)
{
	uint64_t began = now_ns();
	int fd = openat(side->dirfd, name->path,
			O_RDONLY | O_CLOEXEC | O_DIRECT);

	*us = (double)(now_ns() - began) / 1e3;
	if (fd < 0)
		return complain(name->path, "open");
	close(fd);
	return 0;
}

static int timed_open_close(const struct side *side, const struct name *name,
			    double *us)
{
	uint64_t began = now_ns();
	int fd = openat(side->dirfd, name->path,
			O_RDONLY | O_CLOEXEC | O_DIRECT);

	if (fd < 0)
		return complain(name->path, "open");
	close(fd);
	*us = (double)(now_ns() - began) / 1e3;
	return 0;
}

static int timed_stat(const struct side *side, const struct name *name,
		      double *us)
{
	struct stat st;
	uint64_t began = now_ns();
	int err = fstatat(side->dirfd, name->path, &st, AT_SYMLINK_NOFOLLOW);

	*us = (double)(now_ns() - began) / 1e3;
	return err ? complain(name->path, "stat") : 0;
}

typedef int (*timed_call)(const struct side *side, const struct name *name,
			  double *us);

static int time_calls(struct bench *bench, const struct side *side,
		      timed_call call, double *out)
{
	int err = 0;

	for (size_t i = 0; i < bench->ops && !err; i++)
		err = call(side, some_name(bench, i), &bench->samples[i]);
	*out = quantile(bench->samples, bench->ops, 0.5);
	return err;
}

static int run_open_new(struct bench *bench, const struct side *side,
			const struct work *work, double *out)
{
	int err = forget_names(bench, side);

	(void)work;
	return err ? err : time_calls(bench, side, timed_open, out);
}

static int run_stat_new(struct bench *bench, const struct side *side,
			const struct work *work, double *out)
{
	int err = forget_names(bench, side);

	(void)work;
	return err ? err : time_calls(bench, side, timed_stat, out);
}

static int run_open_known(struct bench *bench, const struct side *side,
			  const struct work *work, double *out)
{
	int err = time_calls(bench, side, timed_stat, out);

	(void)work;
	return err ? err : time_calls(bench, side, timed_open, out);
}

static int run_open_close(struct bench *bench, const struct side *side,
			  const struct work *work, double *out)
{
	int err = time_calls(bench, side, timed_stat, out);

	(void)work;
	return err ? err : time_calls(bench, side, timed_open_close, out);
}

static int run_stat_known(struct bench *bench, const struct side *side,
			  const struct work *work, double *out)
{
	int err = time_calls(bench, side, timed_stat, out);

	(void)work;
	return err ? err : time_calls(bench, side, timed_stat, out);
}

static int timed_read(const struct side *side, const struct name *name,
		      double *us)
{
	uint64_t began = now_ns();
	int fd = openat(side->dirfd, name->path, O_RDONLY | O_CLOEXEC);
	char page[4096];

	if (fd < 0 || pread(fd, page, sizeof(page), 0) <= 0)
		return complain(name->path, "read");
	close(fd);
	*us = (double)(now_ns() - began) / 1e3;
	return 0;
}

/* What one of a hundred readers waits at least. */
static int run_read_p99(struct bench *bench, const struct side *side,
			const struct work *work, double *out)
{
	int err = time_calls(bench, side, timed_read, out);

	(void)work;
	*out = quantile(bench->samples, bench->ops, 0.99);
	return err;
}

/* A name that was never asked for: no negative entry helps. */
static int run_stat_absent(struct bench *bench, const struct side *side,
			   const struct work *work, double *out)
{
	(void)work;
	for (size_t i = 0; i < bench->ops; i++) {
		struct name name = *some_name(bench, i);
		uint64_t word = next_random(bench), began;
		struct stat st;

		memcpy(name.id.bytes + 8, &word, sizeof(word));
		ucm_tree_block_below(&name.id, name.path);
		began = now_ns();
		if (!fstatat(side->dirfd, name.path, &st, 0) ||
		    errno != ENOENT) {
			fprintf(stderr, ME ": %s: is not absent\n", name.path);
			return -EIO;
		}
		bench->samples[i] = (double)(now_ns() - began) / 1e3;
	}
	*out = quantile(bench->samples, bench->ops, 0.5);
	return 0;
}

/* ---- listing ---- */

static int list_bucket(int dirfd, unsigned bucket, bool with_stat,
		       unsigned *num)
{
	struct dirent *entry;
	struct stat st;
	char name[3];
	DIR *dir;
	int fd, err = 0;

	ucm_tree_bucket_name(bucket, name);
	fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return complain(name, "opendir");
	for (*num = 0; !err && (entry = readdir(dir)); ++*num) {
		if (with_stat && entry->d_name[0] != '.' &&
		    fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
			err = complain(entry->d_name, "stat");
	}
	closedir(dir);
	return err;
}

/* Another bucket each round, so that it is new even where nothing is dropped;
 * but the bucket of a name that is there. */
static int run_list(struct bench *bench, const struct side *side,
		    const struct work *work, double *out)
{
	unsigned bucket = some_name(bench, bench->round)->id.bytes[0];
	unsigned seen, there;
	uint64_t began;
	int err = forget_names(bench, side);

	if (err)
		return err;
	began = now_ns();
	err = list_bucket(side->dirfd, bucket, work->reopen, &seen);
	*out = (double)(now_ns() - began) / 1e6;
	if (!err)
		err = list_bucket(bench->side[0].dirfd, bucket, false, &there);
	if (err || seen == there)
		return err;
	fprintf(stderr, ME ": bucket %02x: %u names, %s has %u\n", bucket,
		there, side->name, seen);
	return -EIO;
}

const struct work name_works[] = {
	{ .section = "latency", .name = "open, new name", .run = run_open_new,
	  .unit = UNIT_US, .max_value = 25, .uring_only = true },
	{ .section = "latency", .name = "open, known name",
	  .run = run_open_known, .unit = UNIT_US },
	{ .section = "latency", .name = "open + close, known name",
	  .run = run_open_close, .unit = UNIT_US },
	{ .section = "latency", .name = "stat, new name", .run = run_stat_new,
	  .unit = UNIT_US },
	{ .section = "latency", .name = "stat, known name",
	  .run = run_stat_known, .unit = UNIT_US, .max_value = 2 },
	{ .section = "latency", .name = "stat, absent name",
	  .run = run_stat_absent, .unit = UNIT_US, .max_value = 25 },
	{ .section = "movers", .name = "open, read, close: p99",
	  .run = run_read_p99, .unit = UNIT_US },
	{ .section = "list", .name = "readdir of a bucket", .run = run_list,
	  .unit = UNIT_MS, .max_value = 50 },
	{ .section = "list", .name = "readdir and stat of a bucket",
	  .run = run_list, .unit = UNIT_MS, .max_value = 50, .reopen = true },
	{ 0 }
};
