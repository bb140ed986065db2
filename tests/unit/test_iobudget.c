/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_iobudget.c - loaders that share a budget, in a time that is ours; and at
 * the end in processes, of which one is killed.
 */
#include <config.h>

#include "gpu/load/iobudget.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "fs/index/memory_layout.h"
#include "gpu/load/fair.h"
#include "gpu/load/node_watch.h"
#include "tests/unit/dir_fixture.h"
#include "tests/unit/fake_server.h"
#include "tests/unit/random.h"

#define MS INT64_C(1000000)
#define S (1000 * MS)
#define RATE ((uint64_t)64 << 20)
#define SOME ((uint64_t)64 << 10)
#define MOST 8

static struct ucm_sharers_memory *memory;
static int64_t now;

/* A loader that takes what it can get, up to a rate of its own. */
struct taker {
	struct ucm_iobudget *budget;
	enum ucm_iobudget_class class;
	uint64_t wants; /* bytes a second */
	struct ucm_bucket bucket;
	uint64_t taken, held; /* bytes; held: under way, and never ended */
	uint64_t holds;       /* so many */
	bool dead;
};

static struct taker takers[MOST];
static unsigned num_takers;

static void setup(void)
{
	memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(memory != MAP_FAILED);
	memset(takers, 0, sizeof(takers));
	num_takers = 0;
	now = 17 * S;
}

static void teardown(void)
{
	for (unsigned i = 0; i < num_takers; i++) {
		ucm_iobudget_leave(takers[i].budget, takers[i].held);
		ucm_iobudget_close(takers[i].budget);
	}
	munmap(memory, sizeof(*memory));
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

static struct taker *add(uint64_t own_rate, uint64_t node_rate,
			 uint64_t node_flight)
{
	const struct ucm_limits own = { .rate = own_rate };
	const struct ucm_limits node = { .rate = node_rate,
					 .in_flight = node_flight };
	struct taker *taker = &takers[num_takers++];

	taker->budget = ucm_iobudget_of(&own, &node, memory, now);
	must(taker->budget);
	taker->wants = UCM_FAIR_ALL;
	return taker;
}

static void want(struct taker *taker, uint64_t rate)
{
	taker->wants = rate;
	ucm_bucket_init(&taker->bucket, rate, now);
}

static bool wants_some(struct taker *taker)
{
	if (taker->wants == UCM_FAIR_ALL)
		return true;
	ucm_bucket_fill(&taker->bucket, taker->wants, now);
	return ucm_bucket_has_some(&taker->bucket);
}

static void take_all(struct taker *taker)
{
	int64_t until;

	while (wants_some(taker) &&
	       ucm_iobudget_take(taker->budget, taker->class, SOME, now,
				 &until)) {
		ucm_bucket_take(&taker->bucket, SOME);
		taker->taken += SOME;
		if (taker->held < taker->holds) {
			ucm_iobudget_enter(taker->budget, SOME);
			taker->held += SOME;
		}
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
			if (takers[i].dead)
				continue;
			take_all(&takers[i]);
			if (now / MS % 10 == i)
				ucm_iobudget_follow(takers[i].budget, now);
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

UNIT_TEST(one_alone_has_all)
{
	struct taker *one = add(0, RATE, 0);

	run(S);
	run(S);
	check_part(one->taken, RATE, 97, 103);
}

UNIT_TEST(four_have_a_quarter_each)
{
	for (unsigned i = 0; i < 4; i++)
		add(0, RATE, 0);
	run(S);
	run(S);
	check_part(taken_by_all(), RATE, 95, 105);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}

/* And one that comes later gets its own at once. */
UNIT_TEST(one_that_comes_later_gets_its_share)
{
	struct taker *first = add(0, RATE, 0), *second;

	run(S);
	second = add(0, RATE, 0);
	run(S / 2);
	check_part(second->taken, first->taken + second->taken, 42, 58);
	run(S);
	check_part(second->taken, first->taken + second->taken, 48, 52);
	check_part(taken_by_all(), RATE, 95, 105);
}

UNIT_TEST(what_one_does_not_want_is_for_the_others)
{
	struct taker *light = add(0, RATE, 0);

	add(0, RATE, 0);
	add(0, RATE, 0);
	want(light, RATE / 10);
	run(2 * S);
	run(S);
	check_part(light->taken, RATE, 9, 11);
	check_part(taken_by_all(), RATE, 93, 105);
	check_part(takers[1].taken, taken_by_all(), 41, 49);
	check_part(takers[2].taken, taken_by_all(), 41, 49);
}

UNIT_TEST(one_that_has_nothing_to_do_counts_for_nothing)
{
	struct taker *idle = add(0, RATE, 0);

	add(0, RATE, 0);
	run(S);
	want(idle, 0);
	idle->bucket.bytes = 0;
	run(S);
	run(S);
	check_part(takers[1].taken, RATE, 95, 105);
}

/* As with saves of which half are skipped: they were begun, and then not. */
UNIT_TEST(what_is_given_back_was_not_wanted)
{
	struct ucm_iobudget *budget = add(0, RATE, 0)->budget;
	uint64_t rate = 50 * SOME, told; /* SOME each 20 ms */
	int64_t until;

	ucm_iobudget_follow(budget, now);
	for (unsigned i = 0; i < 100; i++) {
		now += 10 * MS;
		ck_assert(ucm_iobudget_take(budget, UCM_IOBUDGET_SAVE, 2 * SOME,
					    now, &until));
		ucm_iobudget_follow(budget, now);
		now += 10 * MS;
		ucm_iobudget_give_back(budget, SOME);
		ucm_iobudget_follow(budget, now);
		told = atomic_load(&memory->sharers[0].rate);
		ck_assert_uint_le(told, rate);
	}
	check_part(told, rate, 85, 100);
}

/* It ends in the middle of what it does, and tells nobody. */
UNIT_TEST(the_share_of_one_that_was_killed_comes_back)
{
	for (unsigned i = 0; i < 4; i++)
		add(0, RATE, 0);
	run(S);
	takers[3].dead = true;
	run(UCM_SHARER_DEAD_NS + 50 * MS);
	run(S / 2);
	check_part(taken_by_all(), RATE / 2, 95, 105);
	for (unsigned i = 0; i < 3; i++)
		check_part(takers[i].taken, taken_by_all(), 30, 36);
	takers[3].dead = false; /* it was only stopped */
	run(S);
	run(S);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}

UNIT_TEST(bytes_under_way_are_shared_and_come_back)
{
	for (unsigned i = 0; i < 4; i++) {
		add(0, 0, 64 * SOME);
		takers[i].holds = UCM_FAIR_ALL;
	}
	/* no more than there are come free by themselves: take it in turns */
	for (unsigned i = 0; i < 4; i++)
		ucm_iobudget_follow(takers[i].budget, now);
	for (unsigned round = 0; round < 100; round++) {
		run(10 * MS);
		for (unsigned i = 0; i < 4; i++) {
			if (takers[i].held)
				ucm_iobudget_leave(takers[i].budget, SOME);
			takers[i].held -= takers[i].held ? SOME : 0;
		}
	}
	run(10 * MS);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(takers[i].held, 16 * SOME);
	takers[3].dead = true; /* with what it held */
	run(UCM_SHARER_DEAD_NS + 50 * MS);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_eq(takers[i].held, 21 * SOME);
}

/* The least of both limits holds, and what is longer than a limit goes alone. */
UNIT_TEST(limits_of_its_own)
{
	const struct ucm_limits own = { .in_flight = 10 },
				none = { .rate = 0 };
	struct taker *one = add(RATE / 4, RATE, 0);
	struct ucm_iobudget *small = ucm_iobudget_of(&own, &none, NULL, now);
	int64_t until = 0;

	run(S);
	run(S);
	check_part(one->taken, RATE / 4, 97, 103);
	ck_assert(ucm_iobudget_take(small, UCM_IOBUDGET_DEMAND, 11, now,
				    &until));
	ucm_iobudget_enter(small, 11);
	ck_assert(!ucm_iobudget_take(small, UCM_IOBUDGET_DEMAND, 1, now,
				     &until));
	ck_assert_int_gt(until, now);
	ck_assert_int_le(until, now + 10 * MS);
	ucm_iobudget_leave(small, 11);
	ck_assert(ucm_iobudget_take(small, UCM_IOBUDGET_DEMAND, 4, now,
				    &until));
	ucm_iobudget_enter(small, 4);
	ck_assert(!ucm_iobudget_take(small, UCM_IOBUDGET_DEMAND, 7, now,
				     &until));
	ck_assert(ucm_iobudget_take(small, UCM_IOBUDGET_DEMAND, 6, now,
				    &until));
	ucm_iobudget_leave(small, 4);
	ucm_iobudget_close(small);
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
	ucm_iobudget_close(NULL);
}

/* ---- what a mount's daemon gives ---- */

/* Where a mount was, there is a folder: that is no mount without a budget. */
UNIT_TEST(a_folder_is_no_mount)
{
	struct ucm_node_budget node;

	fx_setup();
	fx_mkdirs(fx_path("$/mnt"));
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/mnt"), &node),
			 -ENOENT);
	fx_teardown();
}

static struct fake_server server;
static int index_fd, budget_fd;

static int sealed_memory(size_t len)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0 && !ftruncate(fd, (off_t)len));
	must(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	return fd;
}

/* An index of a daemon that lives; of it only the header is there. */
static void serve_budget(uint64_t rate, uint64_t in_flight, size_t budget_bytes)
{
	struct ucm_index_memory_header header = {
		.version = UCM_INDEX_MEMORY_VERSION,
		.alive = 1,
	};

	fx_setup();
	memcpy(header.magic, UCM_INDEX_MEMORY_MAGIC, sizeof(header.magic));
	index_fd = sealed_memory(UCM_INDEX_MEMORY_HEADER_BYTES);
	must(pwrite(index_fd, &header, sizeof(header), 0) == sizeof(header));
	budget_fd = sealed_memory(budget_bytes);
	server = FAKE_SERVER;
	server.index_fd = index_fd;
	server.budget_fd = budget_fd;
	server.hello.index_bytes = UCM_INDEX_MEMORY_HEADER_BYTES;
	server.hello.budget_bytes = UCM_CONTROL_BUDGET_BYTES;
	server.hello.rate = rate;
	server.hello.in_flight = in_flight;
	fake_server_start(&server, fx_path("$/s"));
}

static void end_server(void)
{
	fake_server_stop(&server);
	close(index_fd);
	close(budget_fd);
	fx_teardown();
}

UNIT_TEST(limits_and_memory_are_the_daemons, .rows = 2)
{
	const uint64_t rate = _i ? RATE : 0, in_flight = _i ? 0 : SOME;
	const uint64_t one = 1;
	const uint32_t dead = 0;
	uint64_t hits = 0;
	struct ucm_node_budget node;

	serve_budget(rate, in_flight, UCM_CONTROL_BUDGET_BYTES);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), 0);
	ck_assert_int_eq(node.why, 0);
	ck_assert_uint_eq(node.limits.rate, rate);
	ck_assert_uint_eq(node.limits.in_flight, in_flight);
	must(pwrite(budget_fd, &one, sizeof(one), 0) == sizeof(one));
	ck_assert_uint_eq(atomic_load(&node.memory->hits), 1);
	atomic_fetch_add(&node.memory->hits, 1);
	must(pread(budget_fd, &hits, sizeof(hits), 0) == sizeof(hits));
	ck_assert_uint_eq(hits, 2);
	ck_assert(ucm_node_budget_lives(&node));
	must(pwrite(index_fd, &dead, sizeof(dead),
		    offsetof(struct ucm_index_memory_header, alive)) ==
	     sizeof(dead));
	ck_assert(!ucm_node_budget_lives(&node));
	ucm_node_budget_close(&node);
	end_server();
}

UNIT_TEST(without_limits_only_the_index_is_mapped)
{
	struct ucm_node_budget node;

	serve_budget(0, 0, UCM_CONTROL_BUDGET_BYTES);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), 0);
	ck_assert_ptr_null(node.memory);
	ck_assert_int_eq(node.why, 0);
	ck_assert(ucm_node_budget_lives(&node));
	ucm_node_budget_close(&node);
	end_server();
}

/* It has limits, and each loader keeps to them by itself. */
UNIT_TEST(a_budget_that_ends_too_early_is_not_shared)
{
	struct ucm_node_budget node;

	serve_budget(RATE, 0, UCM_CONTROL_BUDGET_BYTES - 1);
	ck_assert_int_eq(ucm_node_budget_open(fx_path("$/s"), &node), -EPROTO);
	end_server();
}

/* ---- a mount that has a budget, or has it later ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t rate;
	int why;
	bool hangs;
	unsigned looks;
	struct ucm_index_memory_header *index; /* shared with whoever opens it */
	int index_fd, memory_fd;
} mount = { .lock = PTHREAD_MUTEX_INITIALIZER,
	    .changed = PTHREAD_COND_INITIALIZER };

static void *map_fd(int fd, size_t len)
{
	void *mapped = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			    0);

	must(mapped != MAP_FAILED);
	return mapped;
}

/* As ucm_node_budget_open(). */
static int open_mount(const char *path, struct ucm_node_budget *out)
{
	(void)path;
	pthread_mutex_lock(&mount.lock);
	mount.looks++;
	while (mount.hangs)
		pthread_cond_wait(&mount.changed, &mount.lock);
	*out = (struct ucm_node_budget){ .limits.rate = mount.rate,
					 .why = mount.why };
	if (!mount.why)
		out->index = map_fd(mount.index_fd,
				    UCM_INDEX_MEMORY_HEADER_BYTES);
	if (mount.rate && !mount.why)
		out->memory = map_fd(mount.memory_fd,
				     UCM_CONTROL_BUDGET_BYTES);
	pthread_mutex_unlock(&mount.lock);
	return 0;
}

static int memory_of(size_t len)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	must(fd >= 0 && !ftruncate(fd, (off_t)len));
	return fd;
}

/* The daemon that was ends, and another one comes. */
static void start_mount(uint64_t rate, int why)
{
	pthread_mutex_lock(&mount.lock);
	if (mount.index) {
		atomic_store(&mount.index->alive, 0);
		munmap(mount.index, UCM_INDEX_MEMORY_HEADER_BYTES);
		munmap(memory, sizeof(*memory));
		close(mount.index_fd);
		close(mount.memory_fd);
	} else {
		munmap(memory, sizeof(*memory));
	}
	mount.rate = rate;
	mount.why = why;
	mount.index_fd = memory_of(UCM_INDEX_MEMORY_HEADER_BYTES);
	mount.memory_fd = memory_of(UCM_CONTROL_BUDGET_BYTES);
	mount.index = map_fd(mount.index_fd, UCM_INDEX_MEMORY_HEADER_BYTES);
	memory = map_fd(mount.memory_fd, sizeof(*memory));
	atomic_store(&mount.index->alive, 1);
	pthread_mutex_unlock(&mount.lock);
}

static void hang_mount(bool hangs)
{
	pthread_mutex_lock(&mount.lock);
	mount.hangs = hangs;
	pthread_cond_broadcast(&mount.changed);
	pthread_mutex_unlock(&mount.lock);
}

static struct ucm_iobudget *open_budget(void)
{
	const struct ucm_limits own = { .rate = 0 };
	struct ucm_iobudget *budget = NULL;
	struct ucm_error error;

	ucm_node_watch_opens = open_mount;
	ck_assert_int_eq(ucm_iobudget_open(&own, "/", &budget, &error), 0);
	ck_assert_ptr_nonnull(budget);
	return budget;
}

/* It takes something, so that it follows. */
static void take_some(struct ucm_iobudget *budget)
{
	int64_t until;

	ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, 1, ucm_monotonic_ns(),
			  &until);
}

static bool shares(void *budget)
{
	take_some(budget);
	return atomic_load(&memory->sharers[0].owner) != 0;
}

/* Twice in a row: there is no rate. */
static bool is_free(void *budget)
{
	int64_t until, time = ucm_monotonic_ns();

	return ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, S, time,
				 &until) &&
	       ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, S, time, &until);
}

static bool is_bound(void *budget)
{
	return !is_free(budget);
}

static void end_mount(struct ucm_iobudget *budget)
{
	ucm_iobudget_close(budget);
	ucm_node_watch_opens = ucm_node_budget_open;
}

static bool looked(struct ucm_iobudget *budget, unsigned times)
{
	bool yes;

	take_some(budget);
	pthread_mutex_lock(&mount.lock);
	yes = mount.looks >= times;
	pthread_mutex_unlock(&mount.lock);
	return yes;
}

/* After the one at the open. */
static bool was_looked_at(void *budget)
{
	return looked(budget, 2);
}

static bool was_answered(void *budget)
{
	return looked(budget, 3);
}

static const struct {
	uint64_t rate;
	int why;
} without[] = {
	{ 0, 0 },             /* no options */
	{ RATE, -EMFILE },    /* and then a moment without descriptors */
};

UNIT_TEST(a_budget_that_comes_later_is_followed, .rows = NUM_ROWS(without))
{
	struct ucm_iobudget *budget;

	start_mount(without[_i].rate, without[_i].why);
	budget = open_budget();
	ck_assert(_i ? is_bound(budget) : is_free(budget));
	start_mount(RATE, 0);
	fx_wait(shares, budget);
	ck_assert(is_bound(budget));
	end_mount(budget);
	ck_assert_uint_eq(atomic_load(&memory->sharers[0].owner), 0);
}

/* For one life of the daemon it had no options. */
UNIT_TEST(a_budget_that_goes_comes_back)
{
	struct ucm_iobudget *budget;

	start_mount(RATE, 0);
	budget = open_budget();
	fx_wait(shares, budget);
	start_mount(0, 0);
	fx_wait(is_free, budget);
	start_mount(RATE, 0);
	fx_wait(shares, budget);
	ck_assert(is_bound(budget));
	end_mount(budget);
}

/* The old memory is shared until the new one can be. */
UNIT_TEST(a_moment_without_descriptors_ends_no_sharing)
{
	struct ucm_sharers_memory *old;
	struct ucm_iobudget *budget;

	start_mount(RATE, 0);
	budget = open_budget();
	fx_wait(shares, budget);
	old = map_fd(mount.memory_fd, sizeof(*old));
	start_mount(RATE, -EMFILE);
	fx_wait(was_answered, budget);
	ck_assert_uint_ne(atomic_load(&old->sharers[0].owner), 0);
	start_mount(RATE, 0);
	fx_wait(shares, budget);
	ck_assert_uint_eq(atomic_load(&old->sharers[0].owner), 0);
	munmap(old, sizeof(*old));
	end_mount(budget);
}

static bool has_one_thread(void *arg)
{
	struct stat st;

	(void)arg;
	return !stat("/proc/self/task", &st) && st.st_nlink == 2 + 1;
}

/* While the mount does not answer, the old memory hears of the loader; and it
 * ends all the same. So does the thread, and frees what it had, when it answers. */
UNIT_TEST(a_mount_that_hangs_stops_nothing)
{
	struct ucm_sharers_memory *old;
	struct ucm_iobudget *budget;
	uint64_t beat;

	start_mount(RATE, 0);
	budget = open_budget();
	fx_wait(shares, budget);
	old = map_fd(mount.memory_fd, sizeof(*old));
	hang_mount(true);
	start_mount(RATE, 0);
	fx_wait(was_looked_at, budget);
	beat = atomic_load(&old->sharers[0].beat);
	while (atomic_load(&old->sharers[0].beat) < beat + 5)
		take_some(budget);
	end_mount(budget); /* within the time of a test */
	munmap(old, sizeof(*old));
	hang_mount(false);
	fx_wait(has_one_thread, NULL);
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

	add(RATE, 0, 0);
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
	struct ucm_iobudget *budget = add(RATE, 0, 0)->budget;
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
	struct ucm_iobudget *budget = add(RATE, 0, 0)->budget;
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

/* All places speak and want all there is: a part is left, and all of it a moment
 * after the liar has ended. */
UNIT_TEST(a_liar_slows_the_others_for_as_long_as_it_lives)
{
	struct taker *one;
	uint64_t slowly = 0;

	for (unsigned i = 0; i < UCM_SHARERS_MAX; i++)
		atomic_store(&memory->sharers[i].owner, i + 1);
	one = add(0, RATE, 0);
	for (unsigned i = 0; i < UCM_SHARERS_MAX; i++) {
		atomic_store(&memory->sharers[i].rate, UCM_FAIR_ALL);
		atomic_store(&memory->sharers[i].in_flight, UCM_FAIR_ALL);
	}
	for (unsigned round = 0; round < 100; round++) {
		for (unsigned i = 0; i < UCM_SHARERS_MAX; i++)
			atomic_fetch_add(&memory->sharers[i].beat, 1);
		run(20 * MS);
		slowly += round < 50 ? 0 : one->taken;
	}
	check_part(slowly, RATE / 256, 75, 125); /* in a second */
	run(UCM_SHARER_DEAD_NS);
	run(S);
	check_part(one->taken, RATE, 95, 105);
}

/* At random, while four share it: nothing fails, and all is well after it. */
UNIT_TEST(noise_does_no_harm)
{
	uint64_t random = random_case(0);

	for (unsigned i = 0; i < 4; i++)
		add(0, RATE, 0);
	for (unsigned round = 0; round < 300; round++) {
		size_t at = random_next(&random) % sizeof(*memory) / 8;

		((uint64_t *)(void *)memory)[at] = random_next(&random);
		run(2 * MS);
	}
	run(UCM_SHARER_GONE_NS + S);
	run(S);
	check_part(taken_by_all(), RATE, 95, 105);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}

/* The places of those that are gone are had again. */
UNIT_TEST(places_come_back)
{
	struct taker *last;

	for (unsigned i = 0; i < UCM_SHARERS_MAX; i++)
		atomic_store(&memory->sharers[i].owner, i + 1);
	last = add(0, RATE, 0);
	run(S);
	ck_assert_uint_eq(atomic_load(&memory->sharers[0].owner), 1);
	run(UCM_SHARER_GONE_NS);
	ck_assert_uint_ne(atomic_load(&memory->sharers[0].owner), 1);
	ucm_iobudget_close(last->budget);
	num_takers = 0;
	ck_assert_uint_eq(atomic_load(&memory->sharers[0].owner), 0);
}

/* ---- processes ---- */

#define PROCESSES 4
#define FAST ((uint64_t)256 << 20)

static _Atomic uint64_t *progress; /* shared: of each process, in bytes */

static void take_in_a_process(unsigned number)
{
	const struct ucm_limits node = { .rate = FAST }, own = { .rate = 0 };
	struct ucm_iobudget *budget = ucm_iobudget_of(
		&own, &node, memory, ucm_monotonic_ns());
	int64_t followed = 0, until;

	for (;;) {
		int64_t time = ucm_monotonic_ns();

		if (time - followed > 5 * MS) {
			ucm_iobudget_follow(budget, time);
			followed = time;
		}
		if (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, time,
				      &until)) {
			ucm_iobudget_enter(budget, SOME); /* and holds it */
			atomic_fetch_add(&progress[number], SOME);
		} else {
			usleep(1000);
		}
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

/* Until they have taken so much more: what each had of it. */
static void measure(uint64_t bytes, uint64_t each[PROCESSES])
{
	uint64_t end = progress_of(PROCESSES) + bytes;

	for (unsigned i = 0; i < PROCESSES; i++)
		each[i] = atomic_load(&progress[i]);
	fx_wait(has_come_to, &end);
	for (unsigned i = 0; i < PROCESSES; i++)
		each[i] = atomic_load(&progress[i]) - each[i];
}

UNIT_TEST(processes_share_and_one_is_killed)
{
	uint64_t each[PROCESSES], sum = 0;
	pid_t children[PROCESSES];
	int64_t began, took;

	progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(progress != MAP_FAILED);
	for (unsigned i = 0; i < PROCESSES; i++) {
		children[i] = fork();
		must(children[i] >= 0);
		if (!children[i])
			take_in_a_process(i);
	}
	measure(FAST / 4, each); /* they find each other */
	began = ucm_monotonic_ns();
	measure(FAST / 2, each);
	took = ucm_monotonic_ns() - began;
	for (unsigned i = 0; i < PROCESSES; i++)
		sum += each[i];
	for (unsigned i = 0; i < PROCESSES; i++)
		check_part(each[i], sum, 20, 30);
	/* a busy machine may take longer, and never less */
	ck_assert_int_ge(took, S / 2 * 9 / 10);
	kill(children[3], SIGKILL);
	must(waitpid(children[3], NULL, 0) == children[3]);
	began = ucm_monotonic_ns();
	measure(FAST / 3, each); /* in what they had together it would be 0.44 s */
	measure(FAST / 4, each);
	ck_assert_uint_eq(each[3], 0);
	for (unsigned i = 0; i < 3; i++)
		check_part(each[i], each[0] + each[1] + each[2], 25, 42);
	for (unsigned i = 0; i < 3; i++) {
		kill(children[i], SIGKILL);
		must(waitpid(children[i], NULL, 0) == children[i]);
	}
	munmap((void *)progress, 4096);
}
