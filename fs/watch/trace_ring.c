/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_ring.c - adds records to a trace.
 *
 * The file is allocated in full and mapped shared: adding a record is one
 * atomic addition, a checksum and a cache line of stores, and what was stored
 * is in the page cache whatever becomes of us. Threads take turns by the
 * addition alone. One that sleeps between it and its stores while the others
 * go round the whole ring may mix its record with a later one in the same
 * slot; the checksum tells.
 */
#include <config.h>

#include "fs/watch/trace.h"
#include "fs/watch/trace_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/align.h"
#include "common/cleanup.h"
#include "common/clock.h"

#define WORDS (UCM_TRACE_RECORD_BYTES / 8)

struct ucm_trace {
	struct trace_header *header;
	_Atomic uint64_t (*slots)[WORDS];
	uint64_t num_slots;
	size_t len; /* of the mapping */
	int64_t epoch_ns; /* from CLOCK_MONOTONIC to the epoch */
	_Atomic uint64_t *written; /* in the header */
};

/* ---- the file ---- */

/* Does path name a trace, or nothing (empty file)? */
static int check_is_trace(const char *path)
{
	char magic[sizeof(TRACE_MAGIC) - 1];
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EEXIST;
	if (st.st_size == 0)
		return 0;
	if (pread(fd, magic, sizeof(magic), 0) != sizeof(magic) ||
	    memcmp(magic, TRACE_MAGIC, sizeof(magic)))
		return -EEXIST;
	return 0;
}

static int put_aside(const char *path)
{
	_cleanup_free_ char *old = NULL;
	int err = check_is_trace(path);

	if (err == -ENOENT)
		return 0;
	if (err)
		return err;
	if (asprintf(&old, "%s.old", path) < 0) {
		old = NULL;
		return -ENOMEM;
	}
	return rename(path, old) ? -errno : 0;
}

/* All of it, so that no store meets a full disk: that would be a SIGBUS. */
static int make_file(const char *path, size_t len)
{
	int fd, err = put_aside(path);

	if (err)
		return err;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
		  0600);
	if (fd < 0)
		return -errno;
	err = -posix_fallocate(fd, 0, (off_t)len);
	if (!err)
		return fd;
	close(fd);
	unlink(path);
	return err;
}

/* ---- the header ---- */

static size_t names_len(const struct ucm_trace_names *names)
{
	size_t len = strlen(names->mount) + 1;

	for (unsigned i = 0; i < names->num_ops; i++)
		len += strlen(names->ops[i]) + 1;
	for (unsigned i = 0; i < names->num_tiers; i++)
		len += strlen(names->tiers[i]) + 1;
	return len;
}

static void write_names(const struct ucm_trace_names *names, char *to)
{
	for (unsigned i = 0; i < names->num_ops; i++)
		to = stpcpy(to, names->ops[i]) + 1;
	for (unsigned i = 0; i < names->num_tiers; i++)
		to = stpcpy(to, names->tiers[i]) + 1;
	strcpy(to, names->mount);
}

static void write_header(struct ucm_trace *trace,
			 const struct ucm_trace_names *names,
			 uint32_t header_bytes)
{
	struct trace_header *header = trace->header;
	char *text = (char *)header + sizeof(*header);
	struct timespec now;
	uint32_t crc;

	clock_gettime(CLOCK_REALTIME, &now);
	*header = (struct trace_header){
		.magic = TRACE_MAGIC,
		.version = UCM_TRACE_VERSION,
		.header_bytes = header_bytes,
		.record_bytes = UCM_TRACE_RECORD_BYTES,
		.num_ops = names->num_ops,
		.num_slots = trace->num_slots,
		.started_ns = (uint64_t)ucm_time_ns(&now),
		.num_tiers = names->num_tiers,
		.names_offset = sizeof(*header),
		.names_bytes = (uint32_t)names_len(names),
	};
	write_names(names, text);
	crc = ucm_crc32c(0, header, offsetof(struct trace_header, crc));
	header->crc = ucm_crc32c(crc, text, header->names_bytes);
	trace->epoch_ns = (int64_t)header->started_ns - ucm_monotonic_ns();
}

/* ---- open and close ---- */

static int map(struct ucm_trace *trace, const char *path)
{
	_cleanup_fd_ int fd = make_file(path, trace->len);
	void *bytes;

	if (fd < 0)
		return fd;
	bytes = mmap(NULL, trace->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		     0);
	if (bytes == MAP_FAILED)
		return -errno;
#ifdef MADV_POPULATE_WRITE
	/* no page faults while it serves; without it they come one by one */
	madvise(bytes, trace->len, MADV_POPULATE_WRITE);
#endif
	trace->header = bytes;
	return 0;
}

int ucm_trace_open(const char *path, uint64_t size,
		   const struct ucm_trace_names *names, struct ucm_trace **out)
{
	uint64_t header_bytes = ucm_round_up(
		sizeof(struct trace_header) + names_len(names),
		UCM_TRACE_HEADER_MIN);
	struct ucm_trace *trace = calloc(1, sizeof(*trace));
	int err;

	if (!trace)
		return -ENOMEM;
	if (size < UCM_TRACE_SIZE_MIN)
		size = UCM_TRACE_SIZE_MIN;
	trace->num_slots = size / UCM_TRACE_RECORD_BYTES;
	trace->len = header_bytes + trace->num_slots * UCM_TRACE_RECORD_BYTES;
	err = map(trace, path);
	if (err) {
		free(trace);
		return err;
	}
	write_header(trace, names, (uint32_t)header_bytes);
	trace->written = (_Atomic uint64_t *)&trace->header->written;
	trace->slots = (void *)((char *)trace->header + header_bytes);
	*out = trace;
	return 0;
}

void ucm_trace_close(struct ucm_trace *trace)
{
	if (!trace)
		return;
	trace->header->ended = 1;
	munmap(trace->header, trace->len);
	free(trace);
}

/* ---- records ---- */

uint64_t ucm_trace_time(const struct ucm_trace *trace, int64_t monotonic_ns)
{
	return (uint64_t)(monotonic_ns + trace->epoch_ns);
}

void ucm_trace_add(struct ucm_trace *trace, struct ucm_trace_record *record)
{
	uint64_t words[WORDS], before;
	_Atomic uint64_t *slot;

	before = atomic_fetch_add_explicit(trace->written, 1,
					   memory_order_relaxed);
	slot = trace->slots[before % trace->num_slots];
	record->seq = before + 1;
	ucm_trace_encode(record, words);
	for (unsigned i = 0; i < WORDS; i++)
		atomic_store_explicit(&slot[i], words[i], memory_order_relaxed);
}

uint64_t ucm_trace_added(const struct ucm_trace *trace)
{
	return atomic_load_explicit(trace->written, memory_order_relaxed);
}
