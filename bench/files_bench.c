/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_bench.c - what files/ of a mount costs, compared with a plain directory
 * on the same disk.
 *
 *   files_bench [--rounds N] [--count N] [--size MIB] [--label TEXT] [--tsv]
 *               PLAIN BEHIND MOUNTED
 *
 * Empty folders: BEHIND is where MOUNTED's files lie, and what is read on both
 * sides are the same; PLAIN is on the same disk, for what is written. Each work
 * is done on both sides in turn, which comes first changing every round; the
 * first round is dropped. What is printed: both medians, the median of the
 * rounds' ratios and its quartiles. Files hold numbers that are looked at when
 * the clock has stopped.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/table.h"
#include "common/parse.h"

#define ME "files_bench"
#define MAX_ROUNDS 200
#define MAX_COUNT 4096
#define SMALL 4096 /* bytes of a small file */

struct bench {
	uint64_t rounds, count, mib;
	const char *label;
	bool tsv;
	int dirfd[2];     /* read from: the directory, and the mount */
	int new_dirfd[2]; /* where is written */
	size_t size;
	char *bytes; /* size of them */
	uint64_t serial;
	int fds[MAX_COUNT];
};

struct work {
	const char *section, *name, *unit;
	int (*run)(struct bench *bench, int dirfd, double *out);
	bool writes;
	double target; /* of the ratio; 0: none */
};

static int complain(const char *object, const char *call)
{
	int err = errno ? -errno : -EIO;

	fprintf(stderr, ME ": %s: %s: %s\n", object, call, strerror(-err));
	return err;
}

static void name_of(uint64_t number, char name[32])
{
	snprintf(name, 32, "%03x/%llx.bin",
		 (unsigned)(number * 2654435761u) >> 22,
		 (unsigned long long)number);
}

/* ---- one file ---- */

static int write_one(struct bench *bench, int dirfd, uint64_t number,
		     size_t size)
{
	char name[32], temp[64];
	ssize_t put;
	int fd;

	name_of(number, name);
	snprintf(temp, sizeof(temp), "%s_%llu.tmp", name,
		 (unsigned long long)++bench->serial);
	memcpy(bench->bytes, &number, sizeof(number));
	memcpy(bench->bytes + size - sizeof(number), &number, sizeof(number));
	fd = openat(dirfd, temp,
		    O_WRONLY | O_CREAT | O_EXCL | O_TRUNC | O_DIRECT |
			    O_CLOEXEC, 0644);
	if (fd < 0)
		return complain(temp, "create");
	put = write(fd, bench->bytes, size);
	close(fd);
	if (put != (ssize_t)size)
		return complain(temp, "write");
	if (renameat(dirfd, temp, dirfd, name))
		return complain(name, "rename");
	return 0;
}

static int check_one(const struct bench *bench, uint64_t number)
{
	const char *end = bench->bytes + bench->size - sizeof(number);

	if (!memcmp(bench->bytes, &number, sizeof(number)) &&
	    !memcmp(end, &number, sizeof(number)))
		return 0;
	fprintf(stderr, ME ": file %llu: wrong bytes\n",
		(unsigned long long)number);
	return -EIO;
}

/* Adds to *ns what it took. */
static int read_one(struct bench *bench, int dirfd, uint64_t number, int fd,
		    uint64_t *ns)
{
	uint64_t from;
	char name[32];
	int own = -1;
	ssize_t got;

	name_of(number, name);
	memset(bench->bytes, 0, sizeof(number));
	from = now_ns();
	if (fd < 0)
		fd = own = openat(dirfd, name, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return complain(name, "open");
	got = pread(fd, bench->bytes, bench->size, 0);
	if (own >= 0)
		close(own);
	*ns += now_ns() - from;
	if (got != (ssize_t)bench->size)
		return complain(name, "short read");
	return check_one(bench, number);
}

/* ---- works ---- */

static double mb_s(const struct bench *bench, uint64_t ns)
{
	return (double)bench->count * (double)bench->size * 1e3 / (double)ns;
}

static int read_opened(struct bench *bench, int dirfd, double *out)
{
	uint64_t ns = 0;
	int err = 0;

	for (uint64_t i = 0; i < bench->count && !err; i++)
		err = read_one(bench, dirfd, i, -1, &ns);
	*out = mb_s(bench, ns);
	return err;
}

static int read_open(struct bench *bench, int dirfd, double *out)
{
	uint64_t ns = 0, num = 0;
	int err = 0;

	for (; num < bench->count && !err; num++) {
		char name[32];

		name_of(num, name);
		bench->fds[num] = openat(dirfd, name,
					 O_RDONLY | O_DIRECT | O_CLOEXEC);
		err = bench->fds[num] < 0 ? complain(name, "open") : 0;
	}
	for (uint64_t i = 0; i < num && !err; i++)
		err = read_one(bench, dirfd, i, bench->fds[i], &ns);
	while (num > 0)
		close(bench->fds[--num]);
	*out = mb_s(bench, ns);
	return err;
}

/* What is new each time, and is removed when the clock has stopped. */
static int write_files(struct bench *bench, int dirfd, size_t size,
		       uint64_t *ns_out)
{
	uint64_t from = now_ns();
	int err = 0;

	for (uint64_t i = 0; i < bench->count && !err; i++)
		err = write_one(bench, dirfd, MAX_COUNT + i, size);
	*ns_out = now_ns() - from;
	for (uint64_t i = 0; i < bench->count; i++) {
		char name[32];

		name_of(MAX_COUNT + i, name);
		unlinkat(dirfd, name, 0);
	}
	return err;
}

static int write_large(struct bench *bench, int dirfd, double *out)
{
	uint64_t ns;
	int err = write_files(bench, dirfd, bench->size, &ns);

	*out = mb_s(bench, ns);
	return err;
}

static int write_small(struct bench *bench, int dirfd, double *out)
{
	uint64_t ns;
	int err = write_files(bench, dirfd, SMALL, &ns);

	*out = (double)ns / 1e3 / (double)bench->count;
	return err;
}

/* The names that are there, or others. */
static int ask(struct bench *bench, int dirfd, uint64_t first, bool there,
	       double *out)
{
	uint64_t from = now_ns();
	int err = 0;

	for (uint64_t i = 0; i < bench->count && !err; i++) {
		char name[32];

		name_of(first + i, name);
		if (!faccessat(dirfd, name, F_OK, 0) != there)
			err = complain(name, "access");
	}
	*out = (double)(now_ns() - from) / 1e3 / (double)bench->count;
	return err;
}

static int ask_there(struct bench *bench, int dirfd, double *out)
{
	return ask(bench, dirfd, 0, true, out);
}

/* Others each time: an answer is remembered for a while. */
static int ask_absent(struct bench *bench, int dirfd, double *out)
{
	bench->serial += MAX_COUNT;
	return ask(bench, dirfd, UINT64_C(1) << 32 | bench->serial, false, out);
}

static const struct work works[] = {
	{ "direct", "read, opened before", "MB/s", read_open, false, 0.97 },
	{ "direct", "open, read, close", "MB/s", read_opened, false, 0.97 },
	{ "write", "create, write, close, rename", "MB/s", write_large, true,
	  0.90 },
	{ "names", "the same of 4 KiB", "us", write_small, true, 0 },
	{ "names", "access, there", "us", ask_there, false, 0 },
	{ "names", "access, not there", "us", ask_absent, false, 0 },
};

/* ---- rounds ---- */

static void print_work(const struct bench *bench, const struct work *work,
		       double *values[2], double *ratios)
{
	size_t n = bench->rounds;
	double ratio = quantile(ratios, n, 0.5);
	char text[5][16], target[24] = "-", line[256];

	text_of(quantile(values[0], n, 0.5), text[0]);
	text_of(quantile(values[1], n, 0.5), text[1]);
	text_of(ratio, text[2]);
	text_of(quantile(ratios, n, 0.25), text[3]);
	text_of(quantile(ratios, n, 0.75), text[4]);
	if (work->target)
		snprintf(target, sizeof(target), ">= %.2f", work->target);
	snprintf(line, sizeof(line),
		 "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", bench->label,
		 work->section, work->name, work->unit, text[0], text[1],
		 text[2], text[3], text[4], target,
		 verdict_least(ratios, n, work->target));
	print_line(bench->tsv, line);
}

static int measure(struct bench *bench, const struct work *work)
{
	static double plain[MAX_ROUNDS], mounted[MAX_ROUNDS],
		ratios[MAX_ROUNDS];
	double *values[2] = { plain, mounted }, figure[2];

	for (uint64_t round = 0; round <= bench->rounds; round++) {
		for (unsigned i = 0; i < 2; i++) {
			unsigned side = (i + round) % 2;
			int *dirfd = work->writes ? bench->new_dirfd
						  : bench->dirfd;
			int err = work->run(bench, dirfd[side], &figure[side]);

			if (err)
				return err;
		}
		if (round == 0)
			continue;
		plain[round - 1] = figure[0];
		mounted[round - 1] = figure[1];
		ratios[round - 1] = figure[1] / figure[0];
	}
	print_work(bench, work, values, ratios);
	return 0;
}

/* ---- setting up ---- */

static int make_folders(int dirfd)
{
	for (unsigned i = 0; i < 1024; i++) {
		char name[8];

		snprintf(name, sizeof(name), "%03x", i);
		if (mkdirat(dirfd, name, 0755))
			return complain(name, "mkdir");
	}
	return 0;
}

static int open_folder(const char *path, int *fd_out)
{
	*fd_out = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *fd_out < 0 ? complain(path, "open") : 0;
}

static int set_up(struct bench *bench, char *const folders[3])
{
	int err;

	bench->size = bench->mib << 20;
	bench->bytes = aligned_alloc(4096, bench->size);
	if (!bench->bytes)
		return -ENOMEM;
	memset(bench->bytes, 7, bench->size);
	err = open_folder(folders[0], &bench->new_dirfd[0]);
	if (!err)
		err = open_folder(folders[1], &bench->dirfd[0]);
	if (!err)
		err = open_folder(folders[2], &bench->dirfd[1]);
	if (err)
		return err;
	bench->new_dirfd[1] = bench->dirfd[1];
	err = make_folders(bench->new_dirfd[0]);
	if (!err)
		err = make_folders(bench->dirfd[1]);
	for (uint64_t i = 0; i < bench->count && !err; i++)
		err = write_one(bench, bench->dirfd[1], i, bench->size);
	return err;
}

static const struct {
	const char *name;
	size_t at;
	uint64_t max;
} numbers[] = {
	{ "--rounds", offsetof(struct bench, rounds), MAX_ROUNDS },
	{ "--count", offsetof(struct bench, count), MAX_COUNT },
	{ "--size", offsetof(struct bench, mib), 1024 },
};

static bool take_number(struct bench *bench, const char *name,
			const char *value)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		uint64_t *number = (uint64_t *)((char *)bench + numbers[i].at);

		if (!strcmp(name, numbers[i].name))
			return !ucm_parse_u64(value, number) && *number &&
			       *number <= numbers[i].max;
	}
	return false;
}

/* Where the folders begin, or -1. */
static int parse(struct bench *bench, int argc, char **argv)
{
	int i = 1;

	for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
		if (!strcmp(argv[i], "--tsv")) {
			bench->tsv = true;
			continue;
		}
		if (++i == argc)
			return -1;
		if (!strcmp(argv[i - 1], "--label"))
			bench->label = argv[i];
		else if (!take_number(bench, argv[i - 1], argv[i]))
			return -1;
	}
	return argc - i == 3 ? i : -1;
}

int main(int argc, char **argv)
{
	static struct bench bench = { .rounds = 15, .count = 64, .mib = 2,
				      .label = "files/" };
	int first = parse(&bench, argc, argv), err;

	if (first < 0) {
		fprintf(stderr, "usage: " ME " [--rounds N] [--count N] "
				"[--size MIB] [--label TEXT] [--tsv] "
				"PLAIN BEHIND MOUNTED\n");
		return 2;
	}
	err = set_up(&bench, argv + first);
	if (!err && !bench.tsv)
		print_line(false, "where\tsection\twork\tunit\tplain\tfiles/\t"
				  "ratio\tq1\tq3\ttarget\t");
	for (size_t i = 0; i < sizeof(works) / sizeof(works[0]) && !err; i++)
		err = measure(&bench, &works[i]);
	return err ? 1 : 0;
}
