/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr_bench.c - how long is it until a request's representations are in memory,
 * compared with its blocks?
 *
 * usage: repr_bench FOLDER [ROUNDS [LAYER]]
 *
 * FOLDER: the default space in a mount (MOUNT/blocks) or in a tier's directory,
 * with blocks, for example of mkblocks. Those that have no file of
 * representations get one (means in bfloat16, of zeros). Then in each round all
 * blocks are read, one thread, O_DIRECT where there is such a thing: whole; all
 * layers of their representations, in one read each; and one layer, which with
 * the header takes two. Prints medians, and quartiles of the ratios of the same
 * round.
 *
 * One layer is read through the page cache as well, once without any of the files
 * in it (as far as this process can see to that) and once again: by pread, file
 * by file, and by one call of ucm_reprs_load().
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucm/repr_load.h>

#include "bench/table.h"
#include "common/align.h"
#include "common/cleanup.h"
#include "hashing/tree.h"

#define ME "repr_bench"
#define PAGE ((uint64_t)UCM_BLOCK_PAGE)
#define MAX_ROUNDS 1000u
#define CHUNK (1u << 20)

struct bench {
	const char *folder;
	struct ucm_id *ids;
	size_t num, room;
	uint32_t layer;
	char *buffer; /* CHUNK bytes */
	struct ucm_reprs *reprs;
	struct ucm_repr_file like; /* what the first file says */
	struct ucm_repr_slab slab;
	uint64_t bytes; /* read in this turn */
};

static int complain(const char *object)
{
	fprintf(stderr, ME ": %s: %s\n", object, strerror(errno));
	return -1;
}

static int open_direct(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);

	return fd < 0 && errno == EINVAL ? open(path, O_RDONLY | O_CLOEXEC)
					 : fd;
}

/* As much as there is of a range, lengthened to pages, in pieces. */
static int read_range(struct bench *bench, int fd, uint64_t from, uint64_t to)
{
	from = from / PAGE * PAGE;
	to = ucm_round_up(to, PAGE);
	while (from < to) {
		size_t len = to - from < CHUNK ? (size_t)(to - from) : CHUNK;
		ssize_t got = pread(fd, bench->buffer, len, (off_t)from);

		if (got <= 0)
			return got < 0 ? -1 : 0;
		bench->bytes += (uint64_t)got;
		from += (uint64_t)got;
	}
	return 0;
}

/* ---- what is read ---- */

static int read_block(struct bench *bench, const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX];
	_cleanup_fd_ int fd = -1;
	struct stat st;

	ucm_tree_block_path(bench->folder, id, path);
	fd = open_direct(path);
	if (fd < 0 || fstat(fd, &st) ||
	    read_range(bench, fd, 0, (uint64_t)st.st_size))
		return complain(path);
	return 0;
}

static int read_reprs(struct bench *bench, const struct ucm_id *id, bool all)
{
	struct ucm_repr_file file;
	struct ucm_error error;
	char path[UCM_TREE_PATH_MAX];
	_cleanup_fd_ int fd = -1;
	struct stat st;
	uint64_t at;

	ucm_tree_repr_path(bench->folder, id, path);
	fd = open_direct(path);
	if (fd < 0 || (all && fstat(fd, &st)) ||
	    read_range(bench, fd, 0, all ? (uint64_t)st.st_size : PAGE))
		return complain(path);
	if (all)
		return 0;
	if (ucm_repr_file_parse(bench->buffer, PAGE, &file, &error)) {
		fprintf(stderr, ME ": %s: %s\n", path, error.text);
		return -1;
	}
	at = ucm_repr_file_layer_offset(&file, bench->layer %
					file.geometry.num_layers);
	return read_range(bench, fd, at, at + file.layer_bytes)
		       ? complain(path)
		       : 0;
}

/* ---- one layer through the page cache ---- */

static int forget_files(const struct bench *bench)
{
	for (size_t i = 0; i < bench->num; i++) {
		char path[UCM_TREE_PATH_MAX];
		_cleanup_fd_ int fd = -1;

		ucm_tree_repr_path(bench->folder, &bench->ids[i], path);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
			return complain(path);
	}
	return 0;
}

static int preads(struct bench *bench)
{
	const struct ucm_repr_file *like = &bench->like;
	uint32_t layer = bench->layer % like->geometry.num_layers;
	struct ucm_repr_file file;
	struct ucm_error error = { "" };

	for (size_t i = 0; i < bench->num; i++) {
		char path[UCM_TREE_PATH_MAX], *slot = bench->slab.base;
		_cleanup_fd_ int fd = -1;

		slot += i * bench->slab.stride_bytes;
		ucm_tree_repr_path(bench->folder, &bench->ids[i], path);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 ||
		    pread(fd, bench->buffer, PAGE, 0) != (ssize_t)PAGE ||
		    pread(fd, slot, like->layer_bytes,
			  (off_t)ucm_repr_file_layer_offset(like, layer)) !=
			    (ssize_t)like->layer_bytes)
			return complain(path);
		if (ucm_repr_file_parse(bench->buffer, PAGE, &file, &error) ||
		    ucm_repr_file_check_layer(&file, bench->buffer, layer,
					      slot, &error)) {
			fprintf(stderr, ME ": %s: %s\n", path, error.text);
			return -1;
		}
	}
	return 0;
}

static int library(struct bench *bench)
{
	const struct ucm_reprs_request request = {
		.size = sizeof(struct ucm_reprs_request),
		.ids = bench->ids, .num = bench->num, .like = &bench->like,
		.first_layer = bench->layer % bench->like.geometry.num_layers,
		.num_layers = 1, .slabs = &bench->slab,
	};
	struct ucm_error error;
	size_t loaded;

	if (!ucm_reprs_load(bench->reprs, &request, &loaded, &error))
		return 0;
	fprintf(stderr, ME ": %s\n", error.text);
	return -1;
}

static int timed(struct bench *bench, int (*read)(struct bench *bench),
		 double *ms)
{
	uint64_t began = now_ns();
	int err = read(bench);

	*ms = (double)(now_ns() - began) / 1e6;
	return err;
}

/* Turn about who is first, and so finds what is behind the cache warm. */
static int compare(struct bench *bench, unsigned rounds)
{
	static double ms[2][2][MAX_ROUNDS], ratio[MAX_ROUNDS];
	int (*const reads[])(struct bench *) = { preads, library };
	static const char *const names[] = { "cold", "cached" };

	for (unsigned i = 0; i < 2 * rounds; i++) {
		unsigned who = (i + i / 2) % 2;

		for (int warm = 0; warm < 2; warm++) {
			if ((!warm && forget_files(bench)) ||
			    timed(bench, reads[who], &ms[warm][who][i / 2]))
				return -1;
		}
	}
	printf("one layer    %12s %10s %8s  %s\n", "pread ms", "library ms",
	       "ratio", "quartiles");
	for (int warm = 0; warm < 2; warm++) {
		for (unsigned i = 0; i < rounds; i++)
			ratio[i] = ms[warm][0][i] / ms[warm][1][i];
		printf("%-12s %12.3f %10.3f %8.2f  %.2f-%.2f\n", names[warm],
		       quantile(ms[warm][0], rounds, 0.5),
		       quantile(ms[warm][1], rounds, 0.5),
		       quantile(ratio, rounds, 0.5),
		       quantile(ratio, rounds, 0.25),
		       quantile(ratio, rounds, 0.75));
	}
	return 0;
}

/* FOLDER's mount, or tier. */
static int open_library(struct bench *bench)
{
	struct ucm_reprs_options options = { .size = sizeof(options) };
	char root[UCM_TREE_PATH_MAX], stats[2 * UCM_TREE_PATH_MAX];
	struct ucm_error error;
	char *slash;

	snprintf(root, sizeof(root), "%s", bench->folder);
	slash = strrchr(root, '/');
	if (!slash || strcmp(slash, "/" UCM_TREE_BLOCKS)) {
		fprintf(stderr, ME ": %s: must end with /" UCM_TREE_BLOCKS
			"\n", bench->folder);
		return -1;
	}
	*slash = '\0';
	snprintf(stats, sizeof(stats), "%s/" UCM_TREE_STATS, root);
	if (access(stats, R_OK))
		options.tiers = root;
	else
		options.mount = root;
	if (ucm_reprs_open(&options, &bench->reprs, &error) ||
	    ucm_reprs_header(bench->reprs, bench->ids, &bench->like, &error)) {
		fprintf(stderr, ME ": %s: %s\n", root, error.text);
		return -1;
	}
	bench->slab = (struct ucm_repr_slab){
		.base = aligned_alloc(64, bench->num *
						  bench->like.layer_bytes),
		.num_slots = bench->num,
		.stride_bytes = bench->like.layer_bytes,
	};
	return bench->slab.base ? 0 : complain("slab");
}

static int read_all(struct bench *bench, int what, double *ms)
{
	uint64_t began = now_ns();
	int err = 0;

	bench->bytes = 0;
	for (size_t i = 0; !err && i < bench->num; i++)
		err = what == 0 ? read_block(bench, &bench->ids[i])
				: read_reprs(bench, &bench->ids[i], what == 1);
	*ms = (double)(now_ns() - began) / 1e6;
	return err;
}

/* ---- files ---- */

static int make_file(struct bench *bench, const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX], temp[UCM_TREE_PATH_MAX + 4];
	_cleanup_free_ char *bytes = NULL;
	_cleanup_fd_ int from = -1, fd = -1;
	struct ucm_repr_file file;
	struct ucm_repr_spec spec = { .dtype = UCM_DTYPE_BFLOAT16 };
	struct ucm_block block;
	struct ucm_error error = { "no block" };
	uint64_t len;

	ucm_tree_block_path(bench->folder, id, path);
	from = open(path, O_RDONLY | O_CLOEXEC);
	if (from < 0 || pread(from, bench->buffer, PAGE, 0) != (ssize_t)PAGE)
		return complain(path);
	if (ucm_block_parse(bench->buffer, PAGE, PAGE, &block))
		return complain(path);
	spec.num_heads = block.geometry.num_kv_heads;
	spec.head_dim = block.geometry.head_dim;
	spec.block_size = block.geometry.block_size;
	if (ucm_repr_file_init(&block, &spec, &file, &error)) {
		fprintf(stderr, ME ": %s: %s\n", path, error.text);
		return -1;
	}
	len = ucm_repr_file_size(&file);
	bytes = calloc(1, len);
	if (!bytes || ucm_repr_file_encode(&file, bytes + PAGE, bytes, len,
					   NULL))
		return complain(path);
	ucm_tree_repr_path(bench->folder, id, path);
	snprintf(temp, sizeof(temp), "%s.tmp", path);
	fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, bytes, len) != (ssize_t)len ||
	    rename(temp, path))
		return complain(temp);
	return 0;
}

static int add(struct bench *bench, const struct ucm_id *id)
{
	if (bench->num == bench->room) {
		size_t room = bench->room ? 2 * bench->room : 256;
		struct ucm_id *ids = realloc(bench->ids, room * sizeof(*ids));

		if (!ids)
			return complain("blocks");
		bench->ids = ids;
		bench->room = room;
	}
	bench->ids[bench->num++] = *id;
	return 0;
}

static int list_bucket(struct bench *bench, unsigned bucket)
{
	char path[UCM_TREE_PATH_MAX];
	_cleanup_dir_ DIR *dir = NULL;
	const struct dirent *entry;
	struct ucm_id id;

	ucm_tree_bucket_path(bench->folder, bucket, path);
	dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? 0 : complain(path);
	while ((entry = readdir(dir))) {
		if (!ucm_tree_parse_block(entry->d_name, &id) &&
		    add(bench, &id))
			return -1;
	}
	return 0;
}

static int prepare(struct bench *bench)
{
	bench->buffer = aligned_alloc(PAGE, CHUNK);
	if (!bench->buffer)
		return complain("buffer");
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++) {
		if (list_bucket(bench, bucket))
			return -1;
	}
	for (size_t i = 0; i < bench->num; i++) {
		char path[UCM_TREE_PATH_MAX];

		ucm_tree_repr_path(bench->folder, &bench->ids[i], path);
		if (access(path, R_OK) && make_file(bench, &bench->ids[i]))
			return -1;
	}
	errno = ENOENT;
	return bench->num ? 0 : complain(bench->folder);
}

/* ---- rounds ---- */

static int measure(struct bench *bench, unsigned rounds)
{
	static const char *const names[] = { "blocks", "all layers",
					     "one layer" };
	static double ms[3][MAX_ROUNDS], ratio[3][MAX_ROUNDS];
	uint64_t bytes[3];

	for (unsigned i = 0; i < rounds; i++) {
		for (int what = 0; what < 3; what++) {
			if (read_all(bench, what, &ms[what][i]))
				return -1;
			bytes[what] = bench->bytes;
			ratio[what][i] = ms[0][i] / ms[what][i];
		}
	}
	printf("%zu blocks, %u rounds\n%-12s %12s %10s %8s  %s\n", bench->num,
	       rounds, "read", "bytes", "ms", "ratio", "quartiles");
	for (int what = 0; what < 3; what++)
		printf("%-12s %12" PRIu64 " %10.3f %8.1f  %.1f-%.1f\n",
		       names[what], bytes[what],
		       quantile(ms[what], rounds, 0.5),
		       quantile(ratio[what], rounds, 0.5),
		       quantile(ratio[what], rounds, 0.25),
		       quantile(ratio[what], rounds, 0.75));
	return 0;
}

int main(int argc, char **argv)
{
	struct bench bench = { .folder = argc > 1 ? argv[1] : "" };
	unsigned long rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 15;
	int err;

	if (argc < 2 || argc > 4 || !rounds || rounds > MAX_ROUNDS ||
	    strlen(bench.folder) > UCM_TREE_PATH_MAX - 64) {
		fprintf(stderr, "usage: " ME " FOLDER [ROUNDS [LAYER]]\n");
		return 2;
	}
	bench.layer = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
	err = prepare(&bench);
	if (!err)
		err = open_library(&bench);
	if (!err)
		err = measure(&bench, (unsigned)rounds);
	if (!err)
		err = compare(&bench, (unsigned)rounds);
	ucm_reprs_close(bench.reprs);
	free(bench.slab.base);
	free(bench.buffer);
	free(bench.ids);
	return err ? 1 : 0;
}
