/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr_bench.c - how long is it until a request's representations are in memory,
 * compared with its blocks?
 *
 * usage: repr_bench FOLDER [ROUNDS [LAYER]]
 *
 * FOLDER: a space in a mount (MOUNT/blocks) or in a directory, with blocks, for
 * example of mkblocks. Those that have no file of representations get one (means
 * in bfloat16, of zeros). Then in each round all blocks are read, one thread,
 * O_DIRECT where there is such a thing: whole; all layers of their
 * representations, in one read each; and one layer, which with the header takes
 * two. Prints medians, and quartiles of the ratios of the same round.
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

#include <ucm/repr.h>

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
		err = measure(&bench, (unsigned)rounds);
	free(bench.buffer);
	free(bench.ids);
	return err ? 1 : 0;
}
