/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_bench.c - what a mount costs, compared with the directory that it
 * shows.
 *
 * Each work is done on the backing directory and on the mount in turn, which
 * comes first changing every round; the first round is dropped. What is
 * printed: both medians, the median of the rounds' ratios and its quartiles.
 * A ratio is mount / directory; where the figures are rates, more is better.
 *
 * It starts no mount except for --section start; mount.sh does that.
 */
#include <config.h>

#include "bench/mount_bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/parse.h"

static const char usage_text[] =
	"usage: " ME " [options] TIER MOUNT   (TIER: its one directory)\n"
	"       " ME " --format <FILE.tsv     (a table of them)\n"
	"\n"
	"  --section NAME   direct, buffered, write, latency, movers, list or start\n"
	"                   (all but start)\n"
	"  --rounds N       that count (15)\n"
	"  --min-ms N       least time of a side's round, for rates (200)\n"
	"  --ops N          calls in a side's round, for latencies (1000)\n"
	"  --count N        most blocks to use (128)\n"
	"  --plain DIR      write: where the yardstick writes; same disk as TIER\n"
	"  --daemon FILE    start: ucmfs, to be started on TIER and MOUNT\n"
	"  --options LIST   start: more options for it\n"
	"  --empty DIR      start: an empty tier\n"
	"  --label TEXT     first column\n"
	"  --tsv            for machines\n";

/* ---- helpers ---- */

int complain(const char *object, const char *call)
{
	int err = errno ? -errno : -EIO;

	fprintf(stderr, ME ": %s: %s: %s\n", object, call, strerror(-err));
	return err;
}

uint64_t next_random(struct bench *bench)
{
	uint64_t x = bench->random += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

int drop_caches(const char *which)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
	ssize_t put = fd < 0 ? -1 : write(fd, which, 1);
	int err = put == 1 ? 0 : complain("drop_caches", "write");

	if (fd >= 0)
		close(fd);
	return err;
}

/* ---- names ---- */

static int add_name(struct bench *bench, const struct ucm_id *id, size_t *room)
{
	if (bench->num_names == *room) {
		size_t more = *room ? 2 * *room : 1024;
		struct name *names =
			reallocarray(bench->names, more, sizeof(*names));

		if (!names)
			return -ENOMEM;
		bench->names = names;
		*room = more;
	}
	bench->names[bench->num_names].id = *id;
	ucm_tree_block_below(id, bench->names[bench->num_names++].path);
	return 0;
}

static int list_bucket(struct bench *bench, int dirfd, unsigned bucket,
		       size_t *room)
{
	struct dirent *entry;
	char name[3];
	DIR *dir;
	int fd, err = 0;

	ucm_tree_bucket_name(bucket, name);
	fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return 0;
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return complain(name, "opendir");
	while (!err && (entry = readdir(dir))) {
		struct ucm_id id;

		if (!ucm_tree_parse_block(entry->d_name, &id))
			err = add_name(bench, &id, room);
	}
	closedir(dir);
	return err;
}

static void shuffle(struct bench *bench)
{
	for (size_t i = bench->num_names; i > 1; i--) {
		size_t j = next_random(bench) % i;
		struct name swap = bench->names[j];

		bench->names[j] = bench->names[i - 1];
		bench->names[i - 1] = swap;
	}
}

int list_names(struct bench *bench, int dirfd)
{
	size_t room = 0;
	int err = 0;

	for (unsigned i = 0; i < UCM_BUCKETS && !err; i++)
		err = list_bucket(bench, dirfd, i, &room);
	if (err)
		return err;
	if (!bench->num_names) {
		fprintf(stderr, ME ": %s: no blocks\n", bench->tier);
		return -ENOENT;
	}
	shuffle(bench);
	if (bench->num_names > bench->count)
		bench->num_names = bench->count;
	return 0;
}

/* ---- the table ---- */

static const char *const units[] = {
	[UNIT_MB_S] = "MB/s", [UNIT_US] = "us", [UNIT_MS] = "ms",
};

static const char head_line[] =
	"where\tsection\twork\tunit\tdirectory\tmount\tratio\tq1\tq3\ttarget\t";

void print_reading(struct bench *bench, struct reading *reading)
{
	double median = quantile(reading->values, reading->num, 0.5);
	char line[512], value[16], target[24] = "-";

	text_of(median, value);
	if (reading->max_value > 0)
		snprintf(target, sizeof(target), "<= %g", reading->max_value);
	snprintf(line, sizeof(line), "%s\t%s\t%s\t%s\t-\t%s\t-\t-\t-\t%s\t%s",
		 bench->label, reading->section, reading->name, reading->unit,
		 value, target,
		 verdict_most(reading->values, reading->num,
			      reading->max_value));
	print_line(bench->tsv, line);
}

static void print_work(const struct bench *bench, const struct work *work,
		       double *values[2], double *ratios)
{
	bool by_ratio = work->min_ratio > 0;
	bool by_value = work->max_value > 0 &&
			(!work->uring_only || bench->uring_transport);
	double ratio = quantile(ratios, bench->rounds, 0.5);
	double median = quantile(values[1], bench->rounds, 0.5);
	char line[512], here[16], there[16], target[24] = "-";

	text_of(quantile(values[0], bench->rounds, 0.5), there);
	text_of(median, here);
	if (by_ratio)
		snprintf(target, sizeof(target), ">= %.2f", work->min_ratio);
	else if (by_value)
		snprintf(target, sizeof(target), "<= %g", work->max_value);
	snprintf(line, sizeof(line),
		 "%s\t%s\t%s\t%s\t%s\t%s\t%.3f\t%.3f\t%.3f\t%s\t%s",
		 bench->label, work->section, work->name, units[work->unit],
		 there, here, ratio, quantile(ratios, bench->rounds, 0.25),
		 quantile(ratios, bench->rounds, 0.75), target,
		 by_ratio ? verdict_least(ratios, bench->rounds,
					  work->min_ratio)
			  : verdict_most(values[1], bench->rounds,
					 by_value ? work->max_value : 0));
	print_line(bench->tsv, line);
}

/* ---- rounds ---- */

static int one_round(struct bench *bench, const struct work *work,
		     double figure[2])
{
	for (unsigned i = 0; i < 2; i++) {
		unsigned side = (i + bench->round) % 2;
		int err = work->run(bench, &bench->side[side], work,
				    &figure[side]);

		if (err)
			return err;
	}
	return 0;
}

static int measure(struct bench *bench, const struct work *work)
{
	double backing[MAX_ROUNDS], mount[MAX_ROUNDS], ratios[MAX_ROUNDS];
	double *values[2] = { backing, mount };
	double figure[2];

	for (bench->round = 0; bench->round <= bench->rounds; bench->round++) {
		int err = one_round(bench, work, figure);

		if (err)
			return err;
		if (bench->round == 0)
			continue;
		backing[bench->round - 1] = figure[0];
		mount[bench->round - 1] = figure[1];
		ratios[bench->round - 1] = figure[1] / figure[0];
	}
	print_work(bench, work, values, ratios);
	return 0;
}

static int measure_works(struct bench *bench, const struct work *work)
{
	int err = 0;

	for (; work->name && !err; work++) {
		if (bench->section && strcmp(bench->section, work->section))
			continue;
		if (!strcmp(work->section, "write") && !bench->plain)
			continue;
		err = measure(bench, work);
	}
	return err;
}

/* ---- setting up ---- */

static int open_dir(const char *parent, const char *name)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", parent, name);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? complain(path, "open") : fd;
}

static int open_plain(struct bench *bench)
{
	int fd;

	bench->side[1].new_dirfd = bench->side[1].dirfd;
	if (!bench->plain)
		return 0;
	fd = open_dir(bench->plain, ".");
	if (fd < 0)
		return fd;
	for (unsigned i = 0; i < UCM_BUCKETS; i++) {
		char name[3];

		ucm_tree_bucket_name(i, name);
		if (mkdirat(fd, name, 0755) && errno != EEXIST)
			return complain(name, "mkdir");
	}
	bench->side[0].new_dirfd = fd;
	return 0;
}

static int open_sides(struct bench *bench)
{
	bench->side[0] = (struct side){
		.name = "directory",
		.dirfd = open_dir(bench->tier, UCM_TREE_BLOCKS),
	};
	bench->side[1] = (struct side){
		.name = "mount",
		.dirfd = open_dir(bench->mnt, UCM_TREE_BLOCKS),
		.is_mount = true,
	};
	if (bench->side[0].dirfd < 0 || bench->side[1].dirfd < 0)
		return -ENOENT;
	return open_plain(bench);
}

/* What all blocks look like, from the first one. */
static int learn_block(struct bench *bench)
{
	char bytes[UCM_BLOCK_EXT_BYTES];
	struct stat st;
	int fd = openat(bench->side[0].dirfd, bench->names[0].path,
			O_RDONLY | O_CLOEXEC);
	enum ucm_fault fault = UCM_FAULT_SHORT;

	if (fd < 0 || fstat(fd, &st))
		return complain(bench->names[0].path, "open");
	if (pread(fd, bytes, sizeof(bytes), 0) == sizeof(bytes))
		fault = ucm_block_parse(bytes, sizeof(bytes),
					(uint64_t)st.st_size, &bench->block);
	close(fd);
	bench->file_size = (uint64_t)st.st_size;
	if (!fault && bench->block.form != UCM_FORM_PAGED)
		fault = UCM_FAULT_FIELD; /* O_DIRECT needs whole pages */
	if (!fault)
		return 0;
	fprintf(stderr, ME ": %s: %s\n", bench->names[0].path,
		ucm_fault_text(fault));
	return -EINVAL;
}

static int make_buffers(struct bench *bench)
{
	int err;

	for (unsigned i = 0; i < SLOTS; i++) {
		bench->slots[i].bytes =
			aligned_alloc(UCM_BLOCK_PAGE, bench->file_size);
		if (!bench->slots[i].bytes)
			return -ENOMEM;
		memset(bench->slots[i].bytes, (int)i + 1, bench->file_size);
	}
	bench->samples = calloc(bench->ops, sizeof(*bench->samples));
	if (!bench->samples)
		return -ENOMEM;
	err = io_uring_queue_init(2 * SLOTS, &bench->ring, 0);
	if (err)
		fprintf(stderr, ME ": io_uring: %s\n", strerror(-err));
	return err;
}

static bool uses_uring(const struct bench *bench)
{
	char path[512], text[2048] = "";
	FILE *file;

	snprintf(path, sizeof(path), "%s/" UCM_TREE_STATS, bench->mnt);
	file = fopen(path, "re");
	if (!file)
		return false;
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	return strstr(text, "\"io_uring\": true");
}

static int run_starts(struct bench *bench)
{
	int fd, err;

	if (!bench->daemon || !bench->empty) {
		fprintf(stderr, ME ": --section start needs --daemon and "
				"--empty\n");
		return -EINVAL;
	}
	fd = open_dir(bench->tier, UCM_TREE_BLOCKS);
	if (fd < 0)
		return fd;
	err = list_names(bench, fd);
	close(fd);
	return err ? err : measure_starts(bench);
}

static int run_all(struct bench *bench)
{
	int err;

	if (getrandom(&bench->random, sizeof(bench->random), 0) < 0)
		bench->random = now_ns();
	if (!bench->tsv)
		print_line(bench, head_line);
	if (bench->section && !strcmp(bench->section, "start"))
		return run_starts(bench);
	err = open_sides(bench);
	if (!err)
		err = list_names(bench, bench->side[0].dirfd);
	if (!err)
		err = learn_block(bench);
	if (!err)
		err = make_buffers(bench);
	if (!err)
		err = verify_all(bench);
	if (err)
		return err;
	bench->uring_transport = uses_uring(bench);
	err = measure_works(bench, io_works);
	return err ? err : measure_works(bench, name_works);
}

/* ---- options ---- */

static const struct {
	const char *name;
	size_t at;
	uint64_t min, max;
} numbers[] = {
	{ "rounds", offsetof(struct bench, rounds), 1, MAX_ROUNDS },
	{ "min-ms", offsetof(struct bench, min_ms), 1, 60000 },
	{ "ops", offsetof(struct bench, ops), 1, 1 << 20 },
	{ "count", offsetof(struct bench, count), 1, UINT32_MAX },
};

static const struct {
	const char *name;
	size_t at;
} words[] = {
	{ "section", offsetof(struct bench, section) },
	{ "label", offsetof(struct bench, label) },
	{ "plain", offsetof(struct bench, plain) },
	{ "daemon", offsetof(struct bench, daemon) },
	{ "options", offsetof(struct bench, options) },
	{ "empty", offsetof(struct bench, empty) },
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static int set_option(struct bench *bench, const char *name, const char *value)
{
	for (unsigned i = 0; i < LENGTH(numbers); i++) {
		if (!strcmp(name, numbers[i].name))
			return ucm_parse_range(value, numbers[i].min,
					       numbers[i].max,
					       (uint64_t *)(void *)
					       ((char *)bench + numbers[i].at));
	}
	for (unsigned i = 0; i < LENGTH(words); i++) {
		if (!strcmp(name, words[i].name)) {
			memcpy((char *)bench + words[i].at, &value,
			       sizeof(value));
			return 0;
		}
	}
	return -ENOENT;
}

static int parse_arguments(struct bench *bench, char **arg)
{
	for (arg++; *arg; arg++) {
		if (!strcmp(*arg, "--tsv")) {
			bench->tsv = true;
		} else if (!strncmp(*arg, "--", 2)) {
			if (!arg[1] || set_option(bench, *arg + 2, arg[1]))
				return -EINVAL;
			arg++;
		} else if (!bench->tier) {
			bench->tier = *arg;
		} else if (!bench->mnt) {
			bench->mnt = *arg;
		} else {
			return -EINVAL;
		}
	}
	return bench->mnt ? 0 : -EINVAL;
}

int main(int argc, char **argv)
{
	struct bench bench = {
		.rounds = 15, .count = 128, .ops = 1000, .min_ms = 200,
		.label = "-",
	};

	if (argc == 2 && !strcmp(argv[1], "--help")) {
		fputs(usage_text, stdout);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "--format"))
		return format_table(head_line);
	if (parse_arguments(&bench, argv)) {
		fputs(usage_text, stderr);
		return 2;
	}
	return run_all(&bench) ? 1 : 0;
}
