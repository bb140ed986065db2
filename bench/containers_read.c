/* SPDX-License-Identifier: Apache-2.0 */
/*
 * containers_read.c - read pieces of files, several at a time.
 *
 *	containers_read THREADS LONGEST <PLAN
 *
 * A line of the plan is a piece, "PATH OFFSET LENGTH", of LONGEST bytes at most.
 * A thread takes one after another: opens the file with O_DIRECT, reads the piece,
 * closes it. Prints the seconds, the processor's seconds, and the bytes. For
 * containers.py.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench/table.h"

#define MOST_PIECES (1u << 20)
#define MOST_THREADS 64

struct piece {
	char *path;
	uint64_t offset, len;
};

static struct piece pieces[MOST_PIECES];
static size_t num_pieces, longest;
static _Atomic size_t next_piece;
static _Atomic uint64_t bytes_read;

static void die(const char *what, const char *why)
{
	fprintf(stderr, "containers_read: %s: %s\n", what, why);
	exit(EXIT_FAILURE);
}

static void read_plan(void)
{
	char line[4096], path[4096];

	while (num_pieces < MOST_PIECES && fgets(line, sizeof(line), stdin)) {
		struct piece *piece = &pieces[num_pieces++];

		if (sscanf(line, "%4095s %" SCNu64 " %" SCNu64, path,
			   &piece->offset, &piece->len) != 3 ||
		    piece->len > longest)
			die("no piece", line);
		piece->path = strdup(path);
	}
}

static void read_piece(const struct piece *piece, uint8_t *buffer)
{
	int fd = open(piece->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	ssize_t got;

	if (fd < 0)
		die(piece->path, strerror(errno));
	got = pread(fd, buffer, piece->len, (off_t)piece->offset);
	if (got != (ssize_t)piece->len)
		die(piece->path, got < 0 ? strerror(errno) : "a short read");
	atomic_fetch_add(&bytes_read, piece->len);
	close(fd);
}

static void *read_pieces(void *buffer)
{
	size_t piece;

	while ((piece = atomic_fetch_add(&next_piece, 1)) < num_pieces)
		read_piece(&pieces[piece], buffer);
	return NULL;
}

/* Its pages are there before the clock starts. */
static uint8_t *get_buffers(size_t len)
{
	uint8_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("buffers", strerror(errno));
	madvise(memory, len, MADV_HUGEPAGE);
	memset(memory, 0x5a, len);
	return memory;
}

static double cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
	unsigned threads = argc == 3 ? (unsigned)atoi(argv[1]) : 0;
	pthread_t ids[MOST_THREADS];
	uint8_t *buffers;
	double cpu;
	uint64_t began;

	longest = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
	if (!threads || threads > MOST_THREADS || !longest)
		die("usage", "containers_read THREADS LONGEST <PLAN");
	read_plan();
	longest = (longest + 4095) / 4096 * 4096;
	buffers = get_buffers(threads * longest);
	cpu = cpu_seconds();
	began = now_ns();
	for (unsigned i = 0; i < threads; i++) {
		if (pthread_create(&ids[i], NULL, read_pieces,
				   buffers + i * longest))
			die("thread", "cannot be made");
	}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("%.6f %.6f %" PRIu64 "\n", (double)(now_ns() - began) / 1e9,
	       cpu_seconds() - cpu, bytes_read);
	munmap(buffers, threads * longest);
	for (size_t i = 0; i < num_pieces; i++)
		free(pieces[i].path);
	return EXIT_SUCCESS;
}
