/* SPDX-License-Identifier: Apache-2.0 */
/* test_crew.c - a queue, its threads, and what becomes of both. */
#include <config.h>

#include "common/crew.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/unit/dir_fixture.h"

#define MOST 3
#define JOBS 100

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool closed;
	unsigned inside, highest, done;
} gate = { .lock = PTHREAD_MUTEX_INITIALIZER,
	   .changed = PTHREAD_COND_INITIALIZER };

struct work {
	struct ucm_job job;
	unsigned number;
};

static unsigned order[JOBS];
static struct ucm_crew *crew;

/* Waits while the gate is closed. */
static void pass(struct ucm_job *job)
{
	struct work *work = (struct work *)job;

	pthread_mutex_lock(&gate.lock);
	if (++gate.inside > gate.highest)
		gate.highest = gate.inside;
	pthread_cond_broadcast(&gate.changed);
	while (gate.closed)
		pthread_cond_wait(&gate.changed, &gate.lock);
	gate.inside--;
	order[gate.done++] = work->number;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

static void set_gate(bool closed)
{
	pthread_mutex_lock(&gate.lock);
	gate.closed = closed;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

static void wait_inside(unsigned num)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.inside < num)
		pthread_cond_wait(&gate.changed, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

static void wait_done(unsigned num)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.done < num)
		pthread_cond_wait(&gate.changed, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

static void setup(void)
{
	fx_setup();
	ck_assert_int_eq(ucm_crew_open("test", MOST, &crew), 0);
}

static void teardown(void)
{
	set_gate(false);
	ucm_crew_close(crew, 60000);
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

static void add(struct work *work, unsigned num)
{
	for (unsigned i = 0; i < num; i++) {
		work[i] = (struct work){ .job.run = pass, .number = i };
		must(ucm_crew_add(crew, &work[i].job));
	}
}

UNIT_TEST(all_jobs_run_and_no_more_than_so_many_at_a_time)
{
	struct work work[JOBS];
	bool seen[JOBS] = { false };

	set_gate(true);
	add(work, JOBS);
	wait_inside(MOST);
	set_gate(false);
	wait_done(JOBS);
	ck_assert_uint_eq(gate.highest, MOST);
	for (unsigned i = 0; i < JOBS; i++)
		seen[order[i]] = true;
	for (unsigned i = 0; i < JOBS; i++)
		must(seen[i]);
}

UNIT_TEST(a_job_that_waits_can_be_taken_back)
{
	struct work work[MOST + 3];

	set_gate(true);
	add(work, MOST);
	wait_inside(MOST);
	for (unsigned i = MOST; i < MOST + 3; i++) {
		work[i] = (struct work){ .job.run = pass, .number = i };
		ck_assert(ucm_crew_add(crew, &work[i].job));
	}
	ck_assert(!ucm_crew_take_back(crew, &work[0].job)); /* it runs */
	ck_assert(ucm_crew_take_back(crew, &work[MOST + 1].job));
	ck_assert(!ucm_crew_take_back(crew, &work[MOST + 1].job));
	ck_assert(ucm_crew_take_back(crew, &work[MOST + 2].job));
	ck_assert(ucm_crew_add(crew, &work[MOST + 2].job)); /* at the end */
	set_gate(false);
	wait_done(MOST + 2);
	for (unsigned i = 0; i < MOST + 2; i++)
		must(order[i] != MOST + 1);
}

UNIT_TEST(closing_runs_what_waits)
{
	struct work work[JOBS];

	add(work, JOBS);
	ck_assert(ucm_crew_close(crew, 60000));
	crew = NULL;
	ck_assert_uint_eq(gate.done, JOBS);
}

/* It comes back when nobody but itself knows of the crew. */
UNIT_TEST(a_thread_that_hangs_is_left_behind)
{
	struct work work;

	set_gate(true);
	add(&work, 1);
	wait_inside(1);
	ck_assert(!ucm_crew_close(crew, 10));
	crew = NULL;
	set_gate(false);
	wait_done(1);
}

static cpu_set_t seen_cpus;

static void note_cpus(struct ucm_job *job)
{
	pthread_getaffinity_np(pthread_self(), sizeof(seen_cpus), &seen_cpus);
	pass(job);
}

/* One that is bound to its processor gives them work. */
UNIT_TEST(threads_run_where_the_owner_may_and_not_the_giver)
{
	struct work work = { .job.run = note_cpus };
	cpu_set_t all, one;
	int cpu = 0;

	ck_assert_int_eq(pthread_getaffinity_np(pthread_self(), sizeof(all),
						&all), 0);
	if (CPU_COUNT(&all) == 1) {
		unit_skip("processors of a giver: there is one only");
		return;
	}
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	ck_assert_int_eq(pthread_setaffinity_np(pthread_self(), sizeof(one),
						&one), 0);
	ck_assert(ucm_crew_add(crew, &work.job));
	wait_done(1);
	ck_assert(CPU_EQUAL(&seen_cpus, &all));
}

static void use_crew(void *arg)
{
	struct work work[MOST];

	(void)arg;
	/* those who wait there are not here */
	pthread_mutex_init(&gate.lock, NULL);
	pthread_cond_init(&gate.changed, NULL);
	gate.closed = false;
	gate.done = 0;
	add(work, MOST);
	wait_done(MOST);
	ck_assert(ucm_crew_close(crew, 60000));
	crew = NULL;
}

/* All of the parent's threads hang; none of them is the child's. */
UNIT_TEST(a_child_has_threads_of_its_own)
{
	struct work work[MOST];

#ifdef __SANITIZE_THREAD__
	unit_skip("threads of a child: TSAN starts none after a fork");
	return;
#endif
	set_gate(true);
	add(work, MOST);
	wait_inside(MOST);
	fx_in_child(use_crew, NULL);
	set_gate(false);
	wait_done(MOST);
}
