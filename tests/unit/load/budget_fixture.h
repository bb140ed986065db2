/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget_fixture.h - a daemon with a budget, and loaders that take from it in
 * a time that is ours.
 */
#ifndef UCM_TESTS_BUDGET_FIXTURE_H
#define UCM_TESTS_BUDGET_FIXTURE_H

#include "gpu/load/budget/iobudget.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/index/budget_layout.h"
#include "fs/index/memory_layout.h"
#include "tests/unit/dir_fixture.h"
#include "tests/unit/fake_server.h"

#define MS INT64_C(1000000)
#define S (1000 * MS)
#define RATE ((uint64_t)64 << 20)
#define SOME ((uint64_t)64 << 10)
#define MOST 8

/* ---- a daemon ---- */

static struct fake_server server;
static bool serves;
static int index_fd, budget_fd;
static struct ucm_budget_memory *memory; /* the daemon's */

static inline int sealed_memory(size_t len)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0 && !ftruncate(fd, (off_t)len));
	must(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	return fd;
}

static inline void serve(size_t budget_bytes)
{
	server.index_fd = index_fd;
	server.budget_fd = budget_fd;
	server.hello.index_bytes = UCM_INDEX_MEMORY_HEADER_BYTES;
	server.hello.budget_bytes = budget_fd < 0 ? 0 : budget_bytes;
	fake_server_start(&server, fx_path("$/s"));
	serves = true;
}

/* An index of a daemon that lives; of it only the header is there. */
static inline void make_index(void)
{
	struct ucm_index_memory_header header = {
		.version = UCM_INDEX_MEMORY_VERSION,
		.alive = 1,
	};

	memcpy(header.magic, UCM_INDEX_MEMORY_MAGIC, sizeof(header.magic));
	index_fd = sealed_memory(UCM_INDEX_MEMORY_HEADER_BYTES);
	must(pwrite(index_fd, &header, sizeof(header), 0) == sizeof(header));
}

static inline void start_daemon(uint64_t rate, uint64_t in_flight)
{
	server = FAKE_SERVER;
	server.hello.rate = rate;
	server.hello.in_flight = in_flight;
	make_index();
	budget_fd = sealed_memory(UCM_CONTROL_BUDGET_BYTES);
	memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED,
		      budget_fd, 0);
	must(memory != MAP_FAILED);
	serve(UCM_CONTROL_BUDGET_BYTES);
}

static inline void end_daemon(void)
{
	const uint32_t dead = 0;

	must(pwrite(index_fd, &dead, sizeof(dead),
		    offsetof(struct ucm_index_memory_header, alive)) ==
	     sizeof(dead));
	fake_server_stop(&server);
	serves = false;
	unlink(fx_path("$/s"));
	close(index_fd);
	if (memory)
		munmap(memory, sizeof(*memory));
	memory = NULL;
	if (budget_fd >= 0)
		close(budget_fd);
}

/* ---- loaders ---- */

/* A loader that takes what it can get, up to a rate of its own. */
struct taker {
	struct ucm_iobudget *budget;
	uint64_t piece;  /* bytes */
	int64_t every_ns; /* one piece; 0: as many as it can */
	int64_t next_ns;
	uint64_t taken;  /* bytes */
	int64_t waited_ns, most_ns; /* for the piece that is next; of all */
	bool dead;
};

static int64_t now;
static struct taker takers[MOST];
static unsigned num_takers;

static inline void setup(void)
{
	fx_setup();
	memset(takers, 0, sizeof(takers));
	num_takers = 0;
	now = 17 * S;
}

static inline void teardown(void)
{
	for (unsigned i = 0; i < num_takers; i++)
		ucm_iobudget_close(takers[i].budget);
	if (serves)
		end_daemon();
	fx_teardown();
}

static inline struct ucm_iobudget *open_with(const struct ucm_limits *own,
					     const char *mount)
{
	struct ucm_iobudget *budget = NULL;
	struct ucm_error error;

	ck_assert_int_eq(ucm_iobudget_open(own, mount, &budget, &error), 0);
	ck_assert_ptr_nonnull(budget);
	takers[num_takers++] = (struct taker){ .budget = budget,
					       .piece = SOME };
	return budget;
}

/* On the daemon. */
static inline struct taker *add(void)
{
	open_with(&(struct ucm_limits){ .rate = 0 }, fx_path("$/s"));
	return &takers[num_takers - 1];
}

static inline void take_all(struct taker *taker)
{
	int64_t until;

	ucm_iobudget_pay(taker->budget, now);
	while (now >= taker->next_ns) {
		if (!ucm_iobudget_take(taker->budget, UCM_IOBUDGET_DEMAND,
				       taker->piece, now, &until)) {
			taker->waited_ns += MS;
			return;
		}
		ucm_iobudget_begin(taker->budget, UCM_IOBUDGET_DEMAND,
				   taker->piece, now);
		taker->taken += taker->piece;
		if (taker->waited_ns > taker->most_ns)
			taker->most_ns = taker->waited_ns;
		taker->waited_ns = 0;
		if (taker->every_ns)
			taker->next_ns = now + taker->every_ns;
	}
}

/* All of them, for so long; what they had taken before is forgotten. */
static inline void run(int64_t ns)
{
	int64_t end = now + ns;

	for (unsigned i = 0; i < num_takers; i++)
		takers[i].taken = 0;
	for (; now < end; now += MS) {
		for (unsigned i = 0; i < num_takers; i++) {
			if (!takers[i].dead)
				take_all(&takers[i]);
		}
	}
}

static inline uint64_t taken_by_all(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < num_takers; i++)
		sum += takers[i].taken;
	return sum;
}

/* In per cent. */
static inline unsigned part_of(uint64_t a, uint64_t b)
{
	return (unsigned)(100 * a / b);
}

static inline void check_part(uint64_t a, uint64_t b, unsigned least,
			      unsigned most)
{
	ck_assert_uint_ge(part_of(a, b), least);
	ck_assert_uint_le(part_of(a, b), most);
}

#endif
