/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.h - a few threads for work that may wait, so that its giver need not.
 *
 * A crew has a queue and a cap. Threads are started when there is work for
 * them, and stay. One that gets stuck costs the crew that one thread, and
 * nobody else anything: what may wait for one thing gets one crew, and what may
 * wait for another thing gets another. Its threads run on the processors of the
 * thread that has opened it.
 *
 * A process that forks leaves its threads behind: in the child each crew is
 * empty, and starts anew.
 */
#ifndef UCM_CREW_H
#define UCM_CREW_H

#include <stdbool.h>
#include <sys/queue.h>

struct ucm_crew;

/* One piece of work, embedded in whatever it is about. */
struct ucm_job {
	void (*run)(struct ucm_job *job); /* the job is run()'s from then on */
	STAILQ_ENTRY(ucm_job) queued;	  /* the crew's */
};

/* name: of the threads, as ps(1) shows them; most: how many. -ENOMEM. */
int ucm_crew_open(const char *name, unsigned most, struct ucm_crew **out);

/* In a child of fork(2), once the crew is empty there: fn(arg). */
void ucm_crew_on_fork(struct ucm_crew *crew, void (*fn)(void *arg), void *arg);

/* Have it run, after those that wait already; any thread, also the crew's own.
 * False: there is no thread and none can be started; the job is not taken. */
bool ucm_crew_add(struct ucm_crew *crew, struct ucm_job *job);

/* Take back a job that waits: false if it has begun, or has never been added.
 */
bool ucm_crew_take_back(struct ucm_crew *crew, struct ucm_job *job);

/* Threads that there are: as many as could be started for what was added. */
unsigned ucm_crew_threads(struct ucm_crew *crew);

/*
 * No job is added any more. What waits is run, and the threads end. After
 * wait_ms those that have not ended are left to themselves, and so are the jobs
 * that wait for them: false. The crew is gone in any case. NULL is harmless.
 */
bool ucm_crew_close(struct ucm_crew *crew, unsigned wait_ms);

#endif
