/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_io.c - read and write whole blocks.
 *
 * A read is one pread(2) of the whole file, or one of eight in flight in an
 * io_uring; for "one block" each has its own clock. Each buffer is checked
 * against the block's own checksum when the clock has stopped, so that no error
 * is ever measured as speed.
 *
 * The yardstick for a commit is what a careful program does in a plain
 * directory: write a temporary file, rename it.
 */
#include <config.h>

#include "bench/mount_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VERIFY_MAX 1000
#define BATCH 8 /* blocks written before the clock stops to remove them */

static int open_block(const struct side *side, const struct name *name,
		      bool buffered)
{
	int fd = openat(side->dirfd, name->path,
			O_RDONLY | O_CLOEXEC | (buffered ? 0 : O_DIRECT));

	return fd < 0 ? complain(name->path, "open") : fd;
}

static int wrong_length(const struct name *name, ssize_t got)
{
	fprintf(stderr, ME ": %s: %s\n", name->path,
		got < 0 ? strerror((int)-got) : "short read");
	return -EIO;
}

/* ---- checking ---- */

static int check_slot(struct bench *bench, struct slot *slot)
{
	const struct name *name = slot->name;
	struct ucm_block block;
	enum ucm_fault fault;
	uint32_t crc;

	if (!name)
		return 0;
	fault = ucm_block_parse(slot->bytes, bench->file_size,
				bench->file_size, &block);
	if (!fault && memcmp(&block.id, &name->id, sizeof(block.id)))
		fault = UCM_FAULT_NAME;
	if (!fault && !(block.flags & UCM_BLOCK_HAS_CRC))
		fault = UCM_FAULT_UNVOUCHED;
	if (!fault) {
		crc = ucm_crc32c(0, slot->bytes + block.data_offset,
				 ucm_block_payload_bytes(&block.geometry));
		if (crc != block.payload_crc)
			fault = UCM_FAULT_PAYLOAD;
	}
	slot->name = NULL;
	if (!fault)
		return 0;
	fprintf(stderr, ME ": %s: %s\n", name->path, ucm_fault_text(fault));
	return -EIO;
}

static int check_slots(struct bench *bench)
{
	int err = 0;

	for (unsigned i = 0; i < SLOTS && !err; i++)
		err = check_slot(bench, &bench->slots[i]);
	return err;
}

/* ---- reading ---- */

static int read_fd(struct bench *bench, int fd, const struct name *name)
{
	struct slot *slot = &bench->slots[0];
	ssize_t got = pread(fd, slot->bytes, bench->file_size, 0);

	if (got != (ssize_t)bench->file_size)
		return wrong_length(name, got < 0 ? -errno : got);
	slot->name = name;
	return 0;
}

/* fds: opened before, or NULL: open and close each file */
static int pass_pread(struct bench *bench, const struct side *side,
		      const struct work *work, const int *fds)
{
	int err = 0;

	for (size_t i = 0; i < bench->num_names && !err; i++) {
		const struct name *name = &bench->names[i];
		int fd = fds ? fds[i] : open_block(side, name, work->buffered);

		if (fd < 0)
			return fd;
		err = read_fd(bench, fd, name);
		if (!fds)
			close(fd);
	}
	return err;
}

static int queue_read(struct bench *bench, const struct side *side,
		      struct slot *slot, size_t i, bool buffered,
		      const int *fds)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&bench->ring);

	slot->name = &bench->names[i];
	slot->fd = fds ? fds[i] : open_block(side, slot->name, buffered);
	if (slot->fd < 0)
		return slot->fd;
	io_uring_prep_read(sqe, slot->fd, slot->bytes,
			   (unsigned)bench->file_size, 0);
	io_uring_sqe_set_data(sqe, slot);
	return 0;
}

/* The next completion's slot is free again. */
static int reap_read(struct bench *bench, bool close_it, struct slot **out)
{
	struct io_uring_cqe *cqe;
	struct slot *slot;
	int err, got;

	do {
		err = io_uring_submit_and_wait(&bench->ring, 1);
	} while (err == -EINTR);
	if (err >= 0)
		err = io_uring_peek_cqe(&bench->ring, &cqe);
	if (err)
		return err;
	slot = io_uring_cqe_get_data(cqe);
	got = cqe->res;
	io_uring_cqe_seen(&bench->ring, cqe);
	if (close_it)
		close(slot->fd);
	*out = slot;
	return got == (int)bench->file_size ? 0
					    : wrong_length(slot->name, got);
}

static int pass_ring(struct bench *bench, const struct side *side,
		     const struct work *work, const int *fds)
{
	struct slot *slot;
	size_t next = 0, busy = 0;
	int err = 0;

	while (!err && next < bench->num_names && next < SLOTS) {
		slot = &bench->slots[next];
		err = queue_read(bench, side, slot, next++, work->buffered,
				 fds);
		busy++;
	}
	while (!err && busy > 0) {
		err = reap_read(bench, !fds, &slot);
		busy--;
		if (err || next == bench->num_names)
			continue;
		err = queue_read(bench, side, slot, next++, work->buffered,
				 fds);
		busy++;
	}
	return err;
}

static void close_all(int *fds, size_t num)
{
	for (size_t i = 0; fds && i < num; i++)
		close(fds[i]);
	free(fds);
}

static int open_all(struct bench *bench, const struct side *side,
		    const struct work *work, int **out)
{
	int *fds = calloc(bench->num_names, sizeof(*fds));

	if (!fds)
		return -ENOMEM;
	for (size_t i = 0; i < bench->num_names; i++) {
		fds[i] = open_block(side, &bench->names[i], work->buffered);
		if (fds[i] < 0) {
			int err = fds[i];

			close_all(fds, i);
			return err;
		}
	}
	*out = fds;
	return 0;
}

static int run_read(struct bench *bench, const struct side *side,
		    const struct work *work, double *out)
{
	uint64_t began, spent, bytes = 0;
	int *fds = NULL;
	int err = 0;

	if (!work->reopen)
		err = open_all(bench, side, work, &fds);
	if (err)
		return err;
	began = now_ns();
	do {
		err = work->deep ? pass_ring(bench, side, work, fds)
				 : pass_pread(bench, side, work, fds);
		bytes += bench->num_names * bench->file_size;
		spent = now_ns() - began;
	} while (!err && spent < bench->min_ms * 1000000);
	close_all(fds, bench->num_names);
	if (!err)
		err = check_slots(bench);
	*out = (double)bytes * 1e3 / (double)spent;
	return err;
}

static int read_one(struct bench *bench, const struct side *side,
		    const struct name *name)
{
	int fd = open_block(side, name, false);
	int err;

	if (fd < 0)
		return fd;
	err = read_fd(bench, fd, name);
	close(fd);
	return err;
}

int verify_all(struct bench *bench)
{
	uint32_t crc[2];

	for (size_t i = 0; i < bench->num_names && i < VERIFY_MAX; i++) {
		for (unsigned s = 0; s < 2; s++) {
			int err = read_one(bench, &bench->side[s],
					   &bench->names[i]);

			crc[s] = ucm_crc32c(0, bench->slots[0].bytes,
					    bench->file_size);
			if (!err)
				err = check_slot(bench, &bench->slots[0]);
			if (err)
				return err;
		}
		if (crc[0] != crc[1]) {
			fprintf(stderr, ME ": %s: not the same bytes\n",
				bench->names[i].path);
			return -EIO;
		}
	}
	return 0;
}

/* The time of each block by itself: where others use the machine as well, the
 * median leaves out those in which they had it. */
static int run_each(struct bench *bench, const struct side *side,
		    const struct work *work, double *out)
{
	int err = 0;

	for (size_t i = 0; i < bench->ops && !err; i++) {
		const struct name *name = &bench->names[i % bench->num_names];
		uint64_t began = now_ns();
		int fd = open_block(side, name, work->buffered);

		if (fd < 0)
			return fd;
		err = read_fd(bench, fd, name);
		close(fd);
		bench->samples[i] = (double)(now_ns() - began) / 1e3;
	}
	if (!err)
		err = check_slots(bench);
	*out = quantile(bench->samples, bench->ops, 0.5);
	return err;
}

/* ---- writing ---- */

/* A block that was never there, in a bucket that is; its bytes in slot 0. */
static int make_block(struct bench *bench, struct name *name)
{
	const struct name *like =
		&bench->names[next_random(bench) % bench->num_names];
	struct slot *slot = &bench->slots[0];
	uint64_t words[2] = { next_random(bench), next_random(bench) };

	memcpy(name->id.bytes, words, sizeof(words));
	name->id.bytes[0] = like->id.bytes[0];
	ucm_tree_block_below(&name->id, name->path);
	bench->block.id = name->id;
	slot->name = NULL;
	return ucm_block_encode(&bench->block,
				slot->bytes + bench->block.data_offset,
				slot->bytes, bench->file_size);
}

static int write_file(struct bench *bench, int dirfd, const char *path,
		      int extra)
{
	int fd = openat(dirfd, path,
			O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | extra, 0644);
	ssize_t put;

	if (fd < 0)
		return complain(path, "create");
	put = write(fd, bench->slots[0].bytes, bench->file_size);
	if (put != (ssize_t)bench->file_size) {
		complain(path, put < 0 ? "write" : "short write");
		close(fd);
		return -EIO;
	}
	return close(fd) ? complain(path, "close") : 0;
}

static int commit_plain(struct bench *bench, int dirfd, const char *path,
			int extra)
{
	char temp[UCM_TREE_BELOW_LEN + 5];
	int err;

	snprintf(temp, sizeof(temp), "%s.tmp", path);
	err = write_file(bench, dirfd, temp, extra);
	if (!err && renameat(dirfd, temp, dirfd, path))
		err = complain(path, "rename");
	return err;
}

static int write_one(struct bench *bench, const struct side *side,
		     const struct work *work, struct name *name,
		     uint64_t *spent)
{
	int extra = work->buffered ? 0 : O_DIRECT;
	uint64_t began;
	int err = make_block(bench, name);

	if (err)
		return err;
	began = now_ns();
	if (side->is_mount)
		err = write_file(bench, side->new_dirfd, name->path, extra);
	else
		err = commit_plain(bench, side->new_dirfd, name->path, extra);
	*spent += now_ns() - began;
	return err;
}

/* One of them is read back; all of them must be there to be removed. */
static int remove_batch(struct bench *bench, const struct side *side,
			const struct name *names)
{
	struct side there = { .dirfd = side->new_dirfd };
	int err = read_one(bench, &there, &names[BATCH - 1]);

	if (!err)
		err = check_slot(bench, &bench->slots[0]);
	for (unsigned i = 0; i < BATCH && !err; i++) {
		if (unlinkat(side->new_dirfd, names[i].path, 0))
			err = complain(names[i].path, "unlink");
	}
	return err;
}

static int run_write(struct bench *bench, const struct side *side,
		     const struct work *work, double *out)
{
	struct name names[BATCH];
	uint64_t spent = 0, bytes = 0;
	int err = 0;

	do {
		for (unsigned i = 0; i < BATCH && !err; i++)
			err = write_one(bench, side, work, &names[i], &spent);
		if (!err)
			err = remove_batch(bench, side, names);
		bytes += BATCH * bench->file_size;
	} while (!err && spent < bench->min_ms * 1000000);
	*out = (double)bytes * 1e3 / (double)spent;
	return err;
}

const struct work io_works[] = {
	{ .section = "direct", .name = "read, O_DIRECT, pread",
	  .run = run_read, .min_ratio = 0.97 },
	{ .section = "direct", .name = "open, read, close, O_DIRECT, pread",
	  .run = run_read, .min_ratio = 0.97, .reopen = true },
	{ .section = "direct", .name = "read, O_DIRECT, io_uring x 8",
	  .run = run_read, .min_ratio = 0.97, .deep = true },
	{ .section = "direct", .name = "open, read, close, O_DIRECT, io_uring x 8",
	  .run = run_read, .min_ratio = 0.97, .deep = true, .reopen = true },
	{ .section = "direct", .name = "one block: open, read, close, O_DIRECT",
	  .run = run_each, .unit = UNIT_US },
	{ .section = "buffered", .name = "read, cached, pread",
	  .run = run_read, .min_ratio = 0.95, .buffered = true },
	{ .section = "buffered", .name = "open, read, close, cached, pread",
	  .run = run_read, .min_ratio = 0.95, .buffered = true,
	  .reopen = true },
	{ .section = "buffered", .name = "one block: open, read, close, cached",
	  .run = run_each, .unit = UNIT_US, .buffered = true },
	{ .section = "write", .name = "create, write, commit, O_DIRECT",
	  .run = run_write, .min_ratio = 0.90 },
	{ .section = "write", .name = "create, write, commit, cached",
	  .run = run_write, .buffered = true },
	{ 0 }
};
