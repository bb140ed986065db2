/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reader_socket.c - readers that are opened by a socket: what a daemon gives them
 * as its memory is not believed; and where there is no index it is asked.
 */
#include <config.h>

#include <ucm/client.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fs/index/budget_layout.h"
#include "tests/unit/dir_fixture.h"
#include "tests/unit/fake_server.h"
#include "tests/unit/reader_fixture.h"

#define MEMORY_NAME "given-memory"

static struct ucm_index *ix;
static struct ucm_index_reader *reader;
static struct fake_server server;
static int given;

/* Its only space is published; of blocks it has none. */
static void answer(const struct ucm_serve_request *request, const void *items,
		   struct fake_answer *out)
{
	const struct ucm_serve_space space = { .flags = UCM_SPACE_PUBLISHED };

	(void)items;
	if (request->verb == UCM_SERVE_SPACE)
		fake_put(out, &space, sizeof(space));
	else if (request->verb == UCM_SERVE_LOOKUP)
		fake_put_results(out, request->num, 0);
	else
		out->result = -EOPNOTSUPP;
}

static void setup(void)
{
	fx_setup();
	ix = rf_index();
	reader = NULL;
	given = -1;
	server = FAKE_SERVER;
	server.answer = answer;
}

static void teardown(void)
{
	ucm_index_close(reader);
	fake_server_stop(&server);
	if (given >= 0)
		close(given);
	ucm_index_free(ix);
	fx_teardown();
}

static void start(void)
{
	fake_server_start(&server, fx_path("$/s"));
}

static void give_index(int fd, uint64_t bytes)
{
	server.index_fd = fd;
	server.hello.index_bytes = bytes;
}

static void give_budget(int fd, uint64_t bytes)
{
	server.budget_fd = fd;
	server.hello.budget_bytes = bytes;
}

static int open_reader(void)
{
	return ucm_index_open(fx_path("$/s"), NULL, &reader);
}

static void seal(int fd)
{
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
}

static int memory_of(uint64_t bytes)
{
	int fd = memfd_create(MEMORY_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	return fd;
}

/* Descriptors of this process that are memory_of(). */
static unsigned count_given(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned num = 0;

	ck_assert_ptr_nonnull(dir);
	while ((entry = readdir(dir))) {
		char target[100];
		ssize_t len = readlinkat(dirfd(dir), entry->d_name, target,
					 sizeof(target) - 1);

		target[len < 0 ? 0 : len] = '\0';
		num += !!strstr(target, MEMORY_NAME);
	}
	closedir(dir);
	return num;
}

/* By all who would map it. */
static void check_refused(void)
{
	struct ucm_client *client;
	struct ucm_serve_hello hello;
	struct ucm_index_info info;
	int index, budget;

	ck_assert_int_eq(ucm_client_connect(fx_path("$/s"), &client), 0);
	ck_assert_int_eq(ucm_client_hello(client, &hello, &index, &budget),
			 -EPROTO);
	ucm_client_close(client);
	ck_assert_int_eq(open_reader(), 0);
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_str_eq(info.backend, "socket");
	ucm_index_close(reader);
	reader = NULL;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(the_memory_is_the_daemons)
{
	struct ucm_index_info info;
	struct ucm_budget_memory *shared;

	given = memory_of(sizeof(*shared));
	seal(given);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED,
		      given, 0);
	ck_assert_ptr_ne(shared, MAP_FAILED);
	give_index(ucm_index_live(ix)->fd,
		   ucm_index_memory_size(ucm_index_live(ix)));
	give_budget(given, sizeof(*shared));
	start();
	ck_assert_int_eq(open_reader(), 0);
	rf_add(ix, 1);
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	ck_assert_int_eq(rf_ask(reader, 2), 'n');
	ck_assert_int_eq(rf_ask(reader, 3), 'n');
	for (unsigned i = 1; i <= 3; i++) {
		const struct ucm_id id = rf_id(i);
		uint64_t present, unknown;

		ck_assert_int_eq(ucm_index_peek(reader, &id, 1, &present,
						&unknown), 0);
		ck_assert_uint_eq(present, i == 1);
		ck_assert_uint_eq(unknown, 0);
	}
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_str_eq(info.backend, "map");
	ucm_index_close(reader);
	reader = NULL;
	/* counted there, but for what has only been looked at */
	ck_assert_uint_eq(atomic_load(&shared->hits), 1);
	ck_assert_uint_eq(atomic_load(&shared->misses), 2);
	munmap(shared, sizeof(*shared));
	ck_assert_uint_eq(count_given(), 1);
}

/* Whoever has mapped it would die. */
UNIT_TEST(memory_that_can_be_made_shorter_is_refused, .rows = 2)
{
	given = memory_of(UCM_CONTROL_BUDGET_BYTES);
	(_i ? give_index : give_budget)(given, UCM_CONTROL_BUDGET_BYTES);
	start();
	check_refused();
	ck_assert_uint_eq(count_given(), 1);
	seal(given);
	ck_assert_int_eq(open_reader(), 0);
}

UNIT_TEST(a_file_on_a_disk_is_refused, .rows = 2)
{
	const char *path = fx_path("$/memory");

	fx_put(path, "", 0);
	ck_assert_int_eq(truncate(path, UCM_CONTROL_BUDGET_BYTES), 0);
	given = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(given, 0);
	(_i ? give_index : give_budget)(given, UCM_CONTROL_BUDGET_BYTES);
	start();
	check_refused();
}

UNIT_TEST(a_pipe_is_refused)
{
	int ends[2];

	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	given = ends[0];
	give_index(given, UCM_CONTROL_BUDGET_BYTES);
	start();
	check_refused();
	close(ends[1]);
}

UNIT_TEST(an_index_that_ends_too_early_is_not_mapped, .rows = 3)
{
	static const uint64_t sizes[] = {
		0,
		UCM_INDEX_MEMORY_HEADER_BYTES,
		UCM_INDEX_MEMORY_FIXED_BYTES - 1,
	};
	struct ucm_index_memory *live = ucm_index_live(ix);
	struct ucm_index_info info;

	given = memory_of(0);
	must(pwrite(given, live->base, sizes[_i], 0) == (ssize_t)sizes[_i]);
	seal(given);
	give_index(given, ucm_index_memory_size(live));
	start();
	ck_assert_int_eq(open_reader(), 0);
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_str_eq(info.backend, "socket");
	ck_assert_str_eq(info.why, "the memory is not an index");
	ck_assert_int_eq(rf_ask(reader, 1), 'n');
}

UNIT_TEST(a_budget_that_ends_too_early_is_not_used)
{
	struct ucm_index_info info;

	given = memory_of(sizeof(struct ucm_budget_memory) - 1);
	seal(given);
	give_index(ucm_index_live(ix)->fd,
		   ucm_index_memory_size(ucm_index_live(ix)));
	give_budget(given, sizeof(struct ucm_budget_memory));
	start();
	ck_assert_int_eq(open_reader(), 0);
	ck_assert_ptr_null(reader->shared);
	ck_assert_int_eq(rf_ask(reader, 1), 'n');
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_str_eq(info.backend, "socket");
}

UNIT_TEST(as_much_is_mapped_as_there_is)
{
	void *memory = NULL;

	start();
	given = memory_of(4096);
	ck_assert_int_eq(ucm_reader_map_memory(-1, PROT_READ, 4096, &memory),
			 -EOPNOTSUPP);
	ck_assert_int_eq(ucm_reader_map_memory(given, PROT_READ, 4097, &memory),
			 -EPROTO);
	ck_assert_ptr_null(memory);
	ck_assert_int_eq(ucm_reader_map_memory(given, PROT_READ, 4096, &memory),
			 0);
	ck_assert_int_eq(munmap(memory, 4096), 0);
}

/* ---- without an index ---- */

static int32_t lookup_result;
static struct ucm_control_place told;

/* Of each three blocks the first is there, and of the third it cannot be said. */
static void answer_by_requests(const struct ucm_serve_request *request,
			       const void *items, struct fake_answer *out)
{
	(void)items;
	must(!strcmp(request->space, "one"));
	switch (request->verb) {
	case UCM_SERVE_SPACE:
		fake_put(out, &(struct ucm_serve_space){ .number = 7 },
			 sizeof(struct ucm_serve_space));
		break;
	case UCM_SERVE_LOOKUP:
		out->result = lookup_result;
		for (uint32_t i = 0; !lookup_result && i < request->num; i++)
			fake_put_results(out, 1, i % 3 == 0   ? 1
						 : i % 3 == 1 ? 0
							      : -EAGAIN);
		break;
	case UCM_SERVE_LOCATE:
		must(request->flags == UCM_LOCATE_PEEK);
		must(request->argument == 0);
		fake_put(out, &told, sizeof(told));
		break;
	default: out->result = -EOPNOTSUPP;
	}
}

static void setup_asking(void)
{
	setup();
	server.answer = answer_by_requests;
	start();
	ck_assert_int_eq(ucm_index_open(fx_path("$/s"), "one", &reader), 0);
	lookup_result = 0;
}

UNIT_FIXTURE(.setup = setup_asking, .teardown = teardown);

UNIT_TEST(the_daemon_is_asked_for_many_at_once)
{
	enum { NUM = 3 * UCM_SERVE_ITEMS };
	struct ucm_id ids[NUM];
	uint64_t present[UCM_INDEX_WORDS(NUM)], unknown[NUM_ROWS(present)];
	struct ucm_index_info info;
	size_t count;
	int flag;

	for (unsigned i = 0; i < NUM; i++)
		ids[i] = rf_id(i);
	ck_assert_int_eq(ucm_index_lookup(reader, ids, NUM, present, unknown),
			 0);
	for (unsigned i = 0; i < NUM; i++) {
		unsigned at = i % UCM_SERVE_ITEMS % 3; /* of a request */

		must((present[i / 64] >> i % 64 & 1) == (at == 0));
		must((unknown[i / 64] >> i % 64 & 1) == (at == 2));
	}
	ck_assert_int_eq(ucm_index_prefix(reader, ids, NUM, &count, &flag), 0);
	ck_assert_uint_eq(count, 1);
	ck_assert_int_eq(flag, 0);
	ck_assert_int_eq(ucm_index_info(reader, &info), 0);
	ck_assert_str_eq(info.backend, "socket");
	ck_assert_str_eq(info.why, "the daemon's memory cannot be mapped");
}

UNIT_TEST(an_entry_is_told_by_the_daemon)
{
	struct ucm_index_entry entry = { .size = 1 };
	struct ucm_id id = rf_id(1);

	told = (struct ucm_control_place){ .result = -ENOENT };
	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), -ENOENT);
	told.result = -EIO;
	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), -EAGAIN);
	ck_assert_uint_eq(entry.size, 1);
	told = (struct ucm_control_place){
		.size = 4097,
		.tier = 2,
		.flags = UCM_PLACE_PINNED | UCM_PLACE_COPY,
	};
	ck_assert_int_eq(ucm_index_entry(reader, &id, &entry), 0);
	ck_assert_uint_eq(entry.size, 4097);
	ck_assert_int_eq(entry.tier, 2);
	ck_assert_uint_eq(entry.flags, UCM_INDEX_PINNED | UCM_INDEX_COPY);
	ck_assert_uint_eq(entry.generation, 0);
	ck_assert_str_eq(entry.tier_name, "");
}

/* A space that is gone has no blocks; all else is an error. */
UNIT_TEST(what_the_daemon_refuses_is_an_error, .rows = 3)
{
	static const struct { int result, want; } rows[] = {
		{ -ENOENT, 0 }, { -EACCES, -EACCES }, { -ENOMEM, -ENOMEM },
	};
	struct ucm_id id = rf_id(1);
	uint64_t present = 7, unknown = 7;

	lookup_result = rows[_i].result;
	ck_assert_int_eq(ucm_index_lookup(reader, &id, 1, &present, &unknown),
			 rows[_i].want);
	ck_assert_uint_eq(present | unknown, 0);
}

UNIT_TEST(a_daemon_that_has_gone_answers_no_more)
{
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	fake_server_stop(&server);
	ck_assert_int_eq(rf_ask(reader, 1), '-');
	ck_assert_int_eq(unlink(fx_path("$/s")), 0);
	start();
	ck_assert_int_eq(rf_ask(reader, 1), '-'); /* it must be opened again */
}
