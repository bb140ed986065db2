/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_iobudget.c - loaders that keep a rate together, in a time that is ours; and
 * at the end in processes, of which one is killed.
 */
#include <config.h>

#include "gpu/load/iobudget.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "fs/index/budget_layout.h"
#include "fs/index/memory_layout.h"
#include "gpu/load/gcra.h"
#include "tests/unit/dir_fixture.h"
#include "tests/unit/fake_server.h"
#include "tests/unit/random.h"

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

static int sealed_memory(size_t len)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0 && !ftruncate(fd, (off_t)len));
	must(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	return fd;
}

static void serve(size_t budget_bytes)
{
	server.index_fd = index_fd;
	server.budget_fd = budget_fd;
	server.hello.index_bytes = UCM_INDEX_MEMORY_HEADER_BYTES;
	server.hello.budget_bytes = budget_fd < 0 ? 0 : budget_bytes;
	fake_server_start(&server, fx_path("$/s"));
	serves = true;
}

/* An index of a daemon that lives; of it only the header is there. */
static void make_index(void)
{
	struct ucm_index_memory_header header = {
		.version = UCM_INDEX_MEMORY_VERSION,
		.alive = 1,
	};

	memcpy(header.magic, UCM_INDEX_MEMORY_MAGIC, sizeof(header.magic));
	index_fd = sealed_memory(UCM_INDEX_MEMORY_HEADER_BYTES);
	must(pwrite(index_fd, &header, sizeof(header), 0) == sizeof(header));
}

static void start_daemon(uint64_t rate, uint64_t in_flight)
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

/* It has no memory for a clock. */
static void start_poor_daemon(uint64_t rate)
{
	server = FAKE_SERVER;
	server.hello.rate = rate;
	make_index();
	budget_fd = -1;
	serve(0);
}

static void end_daemon(void)
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

static void setup(void)
{
	fx_setup();
	memset(takers, 0, sizeof(takers));
	num_takers = 0;
	now = 17 * S;
}

static void teardown(void)
{
	for (unsigned i = 0; i < num_takers; i++)
		ucm_iobudget_close(takers[i].budget);
	if (serves)
		end_daemon();
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

static struct ucm_iobudget *open_with(const struct ucm_limits *own,
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

/* By itself. */
static struct ucm_iobudget *alone(uint64_t rate)
{
	return open_with(&(struct ucm_limits){ .rate = rate }, NULL);
}

/* On the daemon. */
static struct taker *add(void)
{
	open_with(&(struct ucm_limits){ .rate = 0 }, fx_path("$/s"));
	return &takers[num_takers - 1];
}

static void take_all(struct taker *taker)
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
static void run(int64_t ns)
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

static uint64_t taken_by_all(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < num_takers; i++)
		sum += takers[i].taken;
	return sum;
}

/* In per cent. */
static unsigned part_of(uint64_t a, uint64_t b)
{
	return (unsigned)(100 * a / b);
}

static void check_part(uint64_t a, uint64_t b, unsigned least, unsigned most)
{
	ck_assert_uint_ge(part_of(a, b), least);
	ck_assert_uint_le(part_of(a, b), most);
}

/* ---- the rate ---- */

UNIT_TEST(one_alone_has_all)
{
	struct taker *one;

	start_daemon(RATE, 0);
	one = add();
	run(S);
	run(S);
	check_part(one->taken, RATE, 97, 103);
	check_part(atomic_load(&memory->bytes), 2 * RATE, 97, 106);
}

/* What there was no time for until now, and not more. */
UNIT_TEST(unused_time_is_saved_up_for_a_moment)
{
	struct taker *one;

	start_daemon(RATE, 0);
	one = add();
	run(S);
	now += 10 * S;
	run(MS);
	check_part(one->taken, RATE, 5, 6);
}

/* In bytes, whatever the size of their pieces. */
static const uint64_t pieces[][4] = {
	{ SOME, SOME, SOME, SOME },
	{ SOME / 16, SOME, 4 * SOME, 16 * SOME },
};

UNIT_TEST(four_have_a_quarter_each, .rows = NUM_ROWS(pieces))
{
	start_daemon(RATE, 0);
	for (unsigned i = 0; i < 4; i++)
		add()->piece = pieces[_i][i];
	run(2 * S);
	run(4 * S);
	check_part(taken_by_all(), 4 * RATE, 97, 103);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}

UNIT_TEST(what_one_does_not_use_is_for_the_others)
{
	struct taker *light;

	start_daemon(RATE, 0);
	light = add();
	add();
	add();
	light->every_ns = 10 * MS; /* about a tenth of the rate */
	run(2 * S);
	run(S);
	check_part(light->taken, RATE, 6, 11);
	check_part(taken_by_all(), RATE, 97, 103);
	check_part(takers[1].taken, taken_by_all(), 42, 49);
	check_part(takers[2].taken, taken_by_all(), 42, 49);
}

/* Three load in pieces of 4 MiB, each of which takes 64 ms of the rate; and what is
 * owed for the last load does not keep the next one waiting. */
UNIT_TEST(a_small_load_waits_for_a_slice_of_each_of_the_others, .rows = 2)
{
	struct taker *small;

	start_daemon(RATE, 0);
	for (unsigned i = 0; i < 3; i++)
		add()->piece = 64 * SOME;
	run(2 * S);
	small = add();
	small->piece = _i ? 16 * SOME : SOME;
	small->every_ns = 100 * MS;
	run(5 * S);
	ck_assert_uint_ge(small->taken, 45 * small->piece);
	ck_assert_int_le(small->most_ns, 4 * UCM_IOBUDGET_SLICE_NS);
}

/* It ends in the middle of what it does, and nobody hears of it. */
UNIT_TEST(one_that_was_killed_leaves_nothing)
{
	start_daemon(RATE, 0);
	for (unsigned i = 0; i < 4; i++)
		add()->piece = 16 * SOME;
	run(S);
	takers[3].dead = true;
	run(S);
	check_part(taken_by_all(), RATE, 97, 103);
	for (unsigned i = 0; i < 3; i++)
		check_part(takers[i].taken, taken_by_all(), 31, 36);
	takers[3].dead = false; /* it was only stopped */
	run(S);
	run(S);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}

/* As saves that are skipped, and loads that find no staging memory. */
UNIT_TEST(what_is_given_back_costs_nothing)
{
	struct taker *one;
	int64_t until;

	start_daemon(RATE, 0);
	one = add();
	for (unsigned i = 0; i < 10000; i++) {
		ck_assert(ucm_iobudget_take(one->budget, UCM_IOBUDGET_SAVE,
					    SOME, now, &until));
		ucm_iobudget_give_back(one->budget, SOME);
	}
	ck_assert_int_lt(atomic_load(&memory->tat_ns), now);
	run(S);
	check_part(one->taken, RATE, 97, 107);
}

/* Nor is it saved up for long. */
UNIT_TEST(little_is_kept_of_what_is_given_back)
{
	struct taker *one;
	int64_t until;

	start_daemon(RATE, 0);
	one = add();
	ck_assert(ucm_iobudget_take(one->budget, UCM_IOBUDGET_SAVE, 1, now,
				    &until));
	ucm_iobudget_give_back(one->budget, RATE);
	atomic_store(&memory->tat_ns, now + 500 * MS); /* and no more is had */
	run(MS);
	check_part(one->taken, RATE, 4, 6);
}

UNIT_TEST(nothing_is_limited_without_a_budget)
{
	struct ucm_error error;
	struct ucm_iobudget *none = (void *)&error;
	const struct ucm_limits own = { .rate = 0 };

	ck_assert_int_eq(ucm_iobudget_open(&own, NULL, &none, &error), 0);
	ck_assert_ptr_null(none);
	ck_assert(ucm_iobudget_take(NULL, UCM_IOBUDGET_SAVE, 1, now, NULL));
	ucm_iobudget_enter(NULL, 1);
	ucm_iobudget_leave(NULL, 1);
	ucm_iobudget_begin(NULL, UCM_IOBUDGET_SAVE, 1, now);
	ucm_iobudget_give_back(NULL, 1);
	ck_assert_int_eq(ucm_iobudget_pay(NULL, now), 0);
	ck_assert(!ucm_iobudget_must_look(NULL, now));
	ucm_iobudget_close(NULL);
}

/* ---- limits of a loader ---- */

static bool may_take(struct ucm_iobudget *budget, uint64_t bytes)
{
	int64_t until = 0;
	bool may = ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, bytes, now,
				     &until);

	if (!may) {
		ck_assert_int_gt(until, now);
		ck_assert_int_le(until, now + 10 * MS);
	}
	return may;
}

/* Of its rate and the node's the lesser one holds. */
UNIT_TEST(a_loader_has_a_rate_of_its_own, .rows = 2)
{
	const struct ucm_limits own = { .rate = RATE / 4 };

	if (_i)
		start_daemon(RATE, 0);
	open_with(&own, _i ? fx_path("$/s") : NULL);
	run(S);
	run(S);
	check_part(takers[0].taken, RATE / 4, 97, 103);
}

static const struct {
	uint64_t own, node;
} flights[] = { { 10, 0 }, { 10, 20 }, { 20, 10 }, { 0, 10 } };

/* What is longer than the limit goes alone. */
UNIT_TEST(a_loader_has_so_much_in_flight, .rows = NUM_ROWS(flights))
{
	const struct ucm_limits own = { .in_flight = flights[_i].own };
	struct ucm_iobudget *one;

	start_daemon(0, flights[_i].node);
	one = open_with(&own, fx_path("$/s"));
	ck_assert(may_take(one, 11));
	ucm_iobudget_enter(one, 11);
	ck_assert(!may_take(one, 1));
	ucm_iobudget_leave(one, 11);
	ck_assert(may_take(one, 4));
	ucm_iobudget_enter(one, 4);
	ck_assert(!may_take(one, 7));
	ck_assert(may_take(one, 6));
	ucm_iobudget_leave(one, 4);
}

/* One that was killed could not take them back. */
UNIT_TEST(bytes_in_flight_are_each_loaders_own)
{
	struct ucm_iobudget *two[2];

	start_daemon(0, 10);
	for (unsigned i = 0; i < 2; i++) {
		two[i] = add()->budget;
		ck_assert(may_take(two[i], 10));
		ucm_iobudget_enter(two[i], 10);
	}
	for (unsigned i = 0; i < 2; i++) {
		ck_assert(!may_take(two[i], 1));
		ucm_iobudget_leave(two[i], 10);
	}
}

/* ---- what a daemon gives ---- */

/* Where a mount was, there is a folder: that is no mount without a budget. */
UNIT_TEST(a_folder_is_no_mount)
{
	struct ucm_node_budget node;

	fx_mkdirs(fx_path("$/mnt"));
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/mnt"), &node),
			 -ENOENT);
}

UNIT_TEST(limits_and_memory_are_the_daemons, .rows = 2)
{
	const uint64_t rate = _i ? RATE : 0, in_flight = _i ? 0 : SOME;
	const uint32_t dead = 0;
	struct ucm_node_budget node;

	start_daemon(rate, in_flight);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), 0);
	ck_assert_int_eq(node.why, 0);
	ck_assert_uint_eq(node.limits.rate, rate);
	ck_assert_uint_eq(node.limits.in_flight, in_flight);
	atomic_store(&memory->tat_ns, 1);
	ck_assert_int_eq(atomic_fetch_add(&node.memory->tat_ns, 1), 1);
	ck_assert_int_eq(atomic_load(&memory->tat_ns), 2);
	ck_assert(ucm_node_budget_lives(&node));
	must(pwrite(index_fd, &dead, sizeof(dead),
		    offsetof(struct ucm_index_memory_header, alive)) ==
	     sizeof(dead));
	ck_assert(!ucm_node_budget_lives(&node));
	ucm_node_budget_close(&node);
}

static _Atomic unsigned bad_closes;

/* In place of the C library's. */
int close(int fd)
{
	int err = (int)syscall(SYS_close, fd);

	if (err && errno == EBADF)
		bad_closes++;
	return err;
}

/* A second time the number could be that of another thread's file. */
UNIT_TEST(descriptors_of_the_memory_are_closed_once)
{
	struct ucm_node_budget node;

	start_daemon(RATE, 0);
	bad_closes = 0;
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), 0);
	ucm_node_budget_close(&node);
	ck_assert_uint_eq(bad_closes, 0);
}

UNIT_TEST(without_limits_only_the_index_is_mapped)
{
	struct ucm_node_budget node;

	start_daemon(0, 0);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), 0);
	ck_assert_ptr_null(node.memory);
	ck_assert_int_eq(node.why, 0);
	ck_assert(ucm_node_budget_lives(&node));
	ucm_node_budget_close(&node);
}

/* It would be the end of those that map it. */
UNIT_TEST(a_budget_that_ends_too_early_is_refused)
{
	struct ucm_node_budget node;

	server = FAKE_SERVER;
	server.hello.rate = RATE;
	make_index();
	budget_fd = sealed_memory(UCM_CONTROL_BUDGET_BYTES - 1);
	serve(UCM_CONTROL_BUDGET_BYTES);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), -EPROTO);
}

/* ---- one daemon after the other ---- */

static void check_rate(struct taker *taker, uint64_t rate)
{
	run(S);
	run(S);
	check_part(taker->taken, rate, 97, 103);
}

/* Who asks for it in time looks; once, and again when that was in vain. */
UNIT_TEST(an_end_of_the_daemon_is_noticed)
{
	struct ucm_iobudget *budget;

	start_daemon(RATE, 0);
	budget = add()->budget;
	ck_assert(!ucm_iobudget_must_look(budget, now));
	end_daemon();
	ck_assert(ucm_iobudget_must_look(budget, now));
	ck_assert(!ucm_iobudget_must_look(budget, now + S));
	ucm_iobudget_look(budget);
	ck_assert(!ucm_iobudget_must_look(budget, now + MS));
	ck_assert(ucm_iobudget_must_look(budget, now + S));
	start_daemon(RATE, 0);
	ucm_iobudget_look(budget);
	ck_assert(!ucm_iobudget_must_look(budget, now + 2 * S));
}

UNIT_TEST(the_memory_of_one_that_has_ended_is_used_until_there_is_another)
{
	struct taker *first, *second;

	start_daemon(RATE, 0);
	first = add();
	second = add();
	end_daemon();
	ucm_iobudget_look(first->budget);
	run(S);
	run(S);
	check_part(taken_by_all(), RATE, 97, 103);
	check_part(second->taken, taken_by_all(), 48, 52);
	start_daemon(RATE / 2, 0);
	ucm_iobudget_look(first->budget);
	ucm_iobudget_look(second->budget);
	run(S);
	run(S);
	check_part(taken_by_all(), RATE / 2, 97, 103);
	check_part(second->taken, taken_by_all(), 48, 52);
	ck_assert_int_gt(atomic_load(&memory->tat_ns), now - S);
}

static const struct {
	uint64_t before, after; /* rates */
} changes[] = { { 0, RATE }, { RATE, 0 }, { RATE / 2, RATE } };

UNIT_TEST(limits_of_the_next_daemon_hold, .rows = NUM_ROWS(changes))
{
	struct taker *one;

	start_daemon(changes[_i].before, 0);
	one = add();
	one->piece = 2 * SOME;
	one->every_ns = 1; /* one each ms, which is twice RATE */
	if (changes[_i].before)
		check_rate(one, changes[_i].before);
	end_daemon();
	start_daemon(changes[_i].after, 0);
	ucm_iobudget_look(one->budget);
	check_rate(one, changes[_i].after ? changes[_i].after : 2000 * SOME);
}

/* A loader without memory to share keeps the rate by itself. */
UNIT_TEST(a_rate_that_cannot_be_shared_holds_for_one)
{
	struct taker *one;

	start_poor_daemon(RATE);
	one = add();
	ck_assert(fx_logged("cannot be shared"));
	check_rate(one, RATE);
	ck_assert(ucm_iobudget_must_look(one->budget, now));
	end_daemon();
	start_daemon(RATE, 0);
	ucm_iobudget_look(one->budget);
	check_rate(one, RATE);
	ck_assert_int_gt(atomic_load(&memory->tat_ns), now - S);
}

/* The old memory is shared until the new one can be. */
UNIT_TEST(a_moment_without_memory_ends_no_sharing)
{
	struct taker *first, *second;

	start_daemon(RATE, 0);
	first = add();
	second = add();
	end_daemon();
	start_poor_daemon(2 * RATE);
	ucm_iobudget_look(first->budget);
	ucm_iobudget_look(second->budget);
	run(S);
	run(S);
	check_part(taken_by_all(), RATE, 97, 103);
}

/* ---- who comes first in a loader ---- */

/* Each kind from that one on asks every millisecond, as engines of one loader do;
 * the most urgent one has the first word, or the last. */
static void run_classes(uint64_t taken[UCM_IOBUDGET_CLASSES], unsigned from,
			bool last)
{
	struct ucm_iobudget *budget = takers[0].budget;
	int64_t end = now + 2 * S, until;

	memset(taken, 0, UCM_IOBUDGET_CLASSES * sizeof(*taken));
	for (; now < end; now += MS) {
		for (unsigned i = from; i < UCM_IOBUDGET_CLASSES; i++) {
			unsigned class = last ? UCM_IOBUDGET_CLASSES - 1 +
							from - i : i;

			while (ucm_iobudget_take(budget,
						 (enum ucm_iobudget_class)class,
						 SOME, now, &until)) {
				ucm_iobudget_begin(
					budget, (enum ucm_iobudget_class)class,
					SOME, now);
				taken[class] += SOME;
			}
		}
	}
}

UNIT_TEST(demand_comes_first_and_the_rest_is_not_forgotten, .rows = 2)
{
	uint64_t taken[UCM_IOBUDGET_CLASSES], sum;

	alone(RATE);
	run_classes(taken, UCM_IOBUDGET_DEMAND, _i);
	run_classes(taken, UCM_IOBUDGET_DEMAND, _i);
	sum = taken[0] + taken[1] + taken[2];
	check_part(sum, 2 * RATE, 97, 103);
	check_part(taken[UCM_IOBUDGET_DEMAND], sum, 70, 92);
	check_part(taken[UCM_IOBUDGET_SAVE], sum, 5, 18);
	check_part(taken[UCM_IOBUDGET_LOW], sum, 2, 12);
	run_classes(taken, UCM_IOBUDGET_LOW, _i); /* nobody is in a hurry */
	check_part(taken[1] + taken[2], 2 * RATE, 90, 103);
}

/* One that was refused and gives up keeps nobody waiting for long. */
UNIT_TEST(who_has_given_up_is_not_waited_for)
{
	struct ucm_iobudget *budget = alone(RATE);
	int64_t until, began;

	while (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				 &until))
		;
	ck_assert(!ucm_iobudget_take(budget, UCM_IOBUDGET_SAVE, SOME, now,
				     &until));
	began = now;
	do
		now += MS;
	while (!ucm_iobudget_take(budget, UCM_IOBUDGET_LOW, SOME, now, &until));
	ck_assert_int_le(now - began, 60 * MS);
	now += 120 * MS; /* the save would be due */
	ck_assert(ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				    &until));
}

/* How long is it refused, while demand takes all there is and begins nothing? */
static int64_t until_due(struct ucm_iobudget *budget,
			 enum ucm_iobudget_class class)
{
	int64_t until, began = now;

	while (!ucm_iobudget_take(budget, class, SOME, now, &until)) {
		now += MS;
		if (!ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				       &until))
			continue;
		ucm_iobudget_give_back(budget, SOME); /* no slot */
		while (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME,
					 now, &until))
			; /* nothing is left for others */
	}
	return now - began;
}

static const struct {
	enum ucm_iobudget_class class;
	int64_t age_ns;
} later[] = {
	{ UCM_IOBUDGET_LOW, 500 * MS },
	{ UCM_IOBUDGET_SAVE, 100 * MS },
};

/* Nothing is owed for what was given back, and it was nobody's turn. */
UNIT_TEST(what_is_given_back_was_no_turn, .rows = NUM_ROWS(later))
{
	enum ucm_iobudget_class class = later[_i].class;
	struct ucm_iobudget *budget = alone(RATE);
	int64_t until;

	while (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				 &until))
		;
	ck_assert_int_ge(until_due(budget, class), later[_i].age_ns);
	ucm_iobudget_give_back(budget, SOME); /* no slot, either */
	now += MS;
	ck_assert(!ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				     &until));
	ck_assert(ucm_iobudget_take(budget, class, SOME, now, &until));
	ucm_iobudget_begin(budget, class, SOME, now);
	now += MS;
	ck_assert(ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				    &until));
}

/* ---- whatever is in the memory ---- */

/* What was written there, and for how long nothing begins then. */
static const struct {
	int64_t ahead_ns, most_ns;
} written[] = {
	{ 0, 0 },
	{ 500 * MS, 500 * MS },
	{ S, S },
	{ S + 100 * MS, 0 },
	{ 1000 * S, 0 },
	{ -1000 * S, 0 },
};

UNIT_TEST(garbage_costs_a_second_at_most, .rows = NUM_ROWS(written))
{
	struct taker *one;
	int64_t began;

	start_daemon(RATE, 0);
	one = add();
	run(S);
	atomic_store(&memory->tat_ns, now + written[_i].ahead_ns);
	one->taken = 0;
	for (began = now; one->taken < 4 * SOME; now += MS)
		take_all(one);
	/* the slice that it had, and those of four pieces */
	ck_assert_int_le(now - began, written[_i].most_ns + 8 * MS);
	run(S);
	check_part(one->taken, RATE, 97, 108);
}

/* Kept ahead: a slice a second, and all of it a second after the liar has ended. */
UNIT_TEST(a_liar_slows_the_others_for_as_long_as_it_writes)
{
	struct taker *one;
	uint64_t slowly = 0;

	start_daemon(RATE, 0);
	one = add();
	for (unsigned ms = 0; ms < 10000; ms++) {
		atomic_store(&memory->tat_ns, now + S);
		run(MS);
		slowly += ms < 1000 ? 0 : one->taken;
	}
	ck_assert_uint_gt(slowly, 0);
	ck_assert_uint_le(slowly, 10 * (RATE / 1000 + SOME));
	run(S);
	check_rate(one, RATE);
}

/* At random, while four share it: nothing fails, and all is well two seconds later:
 * slices that were reserved come, and then the clock that was written. */
UNIT_TEST(noise_does_no_harm)
{
	uint64_t random = random_case(0);

	start_daemon(RATE, 0);
	for (unsigned i = 0; i < 4; i++)
		add();
	for (unsigned round = 0; round < 300; round++) {
		size_t at = random_next(&random) % sizeof(*memory) / 8;

		((uint64_t *)(void *)memory)[at] = random_next(&random);
		atomic_store(&memory->tat_ns,
			     now + random_between(&random, -2 * S, 2 * S));
		run(2 * MS);
	}
	run(2 * S);
	run(S);
	check_part(taken_by_all(), RATE, 97, 103);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}

/* ---- processes ---- */

#define PROCESSES 3
#define FAST ((uint64_t)256 << 20)

static _Atomic uint64_t *progress; /* shared: of each process, in bytes */

static void sleep_until(int64_t ns)
{
	const struct timespec end = { .tv_sec = ns / S, .tv_nsec = ns % S };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
}

static void take_in_a_process(struct ucm_iobudget *budget, unsigned number)
{
	int64_t until;

	for (;;) {
		int64_t time = ucm_monotonic_ns();

		if (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, 16 * SOME,
				      time, &until))
			atomic_fetch_add(&progress[number], 16 * SOME);
		else
			sleep_until(until);
	}
}

static uint64_t progress_of(unsigned num)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < num; i++)
		sum += atomic_load(&progress[i]);
	return sum;
}

static bool has_come_to(void *arg)
{
	return progress_of(PROCESSES) >= *(uint64_t *)arg;
}

/* Until they have begun so much more: what each had of it. Returns the time. */
static int64_t measure(uint64_t bytes, uint64_t each[PROCESSES])
{
	uint64_t end = progress_of(PROCESSES) + bytes;
	int64_t began = ucm_monotonic_ns();

	for (unsigned i = 0; i < PROCESSES; i++)
		each[i] = atomic_load(&progress[i]);
	fx_wait(has_come_to, &end);
	for (unsigned i = 0; i < PROCESSES; i++)
		each[i] = atomic_load(&progress[i]) - each[i];
	return ucm_monotonic_ns() - began;
}

static void kill_one(pid_t child)
{
	kill(child, SIGKILL);
	must(waitpid(child, NULL, 0) == child);
}

/* A busy machine may take longer, and never less. */
UNIT_TEST(processes_keep_the_rate_and_one_is_killed)
{
	uint64_t each[PROCESSES];
	pid_t children[PROCESSES];

	start_daemon(FAST, 0);
	progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(progress != MAP_FAILED);
	for (unsigned i = 0; i < PROCESSES; i++) {
		struct ucm_iobudget *budget = add()->budget;

		children[i] = fork();
		must(children[i] >= 0);
		if (!children[i])
			take_in_a_process(budget, i);
	}
	measure(FAST / 8, each); /* they start */
	ck_assert_int_ge(measure(FAST / 2, each), S / 2 * 8 / 10);
	for (unsigned i = 0; i < PROCESSES; i++)
		check_part(each[i], FAST / 2, 10, 60);
	kill_one(children[2]);
	ck_assert_int_ge(measure(FAST / 2, each), S / 2 * 8 / 10);
	ck_assert_uint_eq(each[2], 0);
	for (unsigned i = 0; i < 2; i++)
		kill_one(children[i]);
	munmap((void *)progress, 4096);
}
