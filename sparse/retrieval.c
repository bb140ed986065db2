/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retrieval.c - threads that score and select.
 *
 * The threads are a crew's (common/crew.h); here are the jobs, a fixed number
 * of them, each with memory for its query, scores and selection.
 *
 *	FREE -submit-> WAITING -a thread-> RUNNING -> DONE -take-> TAKEN -> FREE
 *
 * Whoever drops a job frees it: at once if it is DONE or still in the crew's
 * queue, or else when its thread says DONE, which is at its next look. Whoever
 * has no time to wait for that leaves it on its lane, dropped and stale, and
 * whoever takes or cancels next goes on.
 *
 * Under the lock are the states, the lanes' lists and the numbers. A job's
 * memory is its thread's while it is RUNNING, and the taker's when it has been
 * taken off its lane. `dropped` alone is read without the lock: between pieces
 * of PIECE_BLOCKS blocks, where the deadline is looked at as well.
 *
 * Order of locks: this one, then the crew's.
 */
#include <config.h>

#include <ucm/retrieve.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/align.h"
#include "common/clock.h"
#include "common/crew.h"
#include "common/error.h"
#include "common/sized.h"
#include "sparse/scoring.h"
#include "sparse/spec.h"

#define PIECE_BLOCKS 1024u
#define MAX_COUNT    (1u << 24)

enum job_state {
	JOB_FREE = 0,
	JOB_WAITING,
	JOB_RUNNING,
	JOB_DONE,
	JOB_TAKEN, /* its results are being copied */
};

struct job {
	struct ucm_job crew; /* first: the crew knows it by this */
	struct ucm_retrieval *pool;
	struct job *next; /* of its lane, later steps behind; or of the free */
	enum job_state state;
	atomic_bool dropped;

	struct ucm_retrieval_job what; /* not its pointers */
	struct ucm_scoring scoring;
	int64_t deadline_ns; /* INT64_MAX: none */
	int64_t submitted_ns, begun_ns, ended_ns;

	int err;
	struct ucm_error error;
	float *query, *scores;
	float least; /* of the scores */
	uint32_t *blocks;
	uint32_t num;
};

struct lane {
	struct job *first;
	uint64_t newest; /* the step after it; 0: none */
	uint64_t stale;	 /* steps below it are, and may be on the list still */
};

struct ucm_retrieval {
	struct ucm_retrieval_options options;
	struct ucm_crew *crew;
	pthread_mutex_t lock;
	pthread_cond_t moved; /* a job is DONE; a thread has come */
	struct job *jobs, *free;
	struct lane *lanes;
	void *memory; /* of the jobs' results */
	struct ucm_retrieval_stats stats;
	unsigned started; /* jobs for threads, while it is opened */
	bool open;
};

/* ---- a job's thread ---- */

static bool is_late(const struct job *job)
{
	return job->deadline_ns != INT64_MAX &&
	       ucm_monotonic_ns() >= job->deadline_ns;
}

static int too_late(struct job *job)
{
	return ucm_error_set(&job->error, -ETIME, "deadline_ms %" PRIu32
			     ": over", job->what.deadline_ms);
}

/* The blocks between the windows. */
static int score_all(struct job *job)
{
	const struct ucm_budget *budget = &job->what.budget;
	uint32_t end = budget->num_blocks - budget->last;

	for (uint32_t at = budget->first; at < end;) {
		uint32_t piece = end - at < PIECE_BLOCKS ? end - at
							 : PIECE_BLOCKS;
		int err;

		if (atomic_load_explicit(&job->dropped, memory_order_relaxed))
			return -ECANCELED;
		if (is_late(job))
			return too_late(job);
		err = job->scoring.run(&job->scoring, at, piece,
				       job->scores + at, &job->error);
		if (err)
			return err;
		at += piece;
	}
	return 0;
}

static int find_least(struct job *job)
{
	const struct ucm_budget *budget = &job->what.budget;
	uint32_t num = budget->num_blocks - budget->first - budget->last;
	float most;

	job->least = 0;
	if (num && !ucm_score_range(job->scores + budget->first, num,
				    &job->least, &most))
		return ucm_error_set(&job->error, -EINVAL,
				     "scores: one is NaN");
	return 0;
}

static int retrieve(struct job *job)
{
	int err;

	job->error.text[0] = '\0';
	err = is_late(job) ? too_late(job) : score_all(job);
	if (!err)
		err = find_least(job);
	if (!err)
		err = ucm_select(job->scores, &job->what.budget, job->blocks,
				 job->pool->options.max_blocks, &job->num,
				 &job->error);
	return err;
}

/* Under the lock: it is on no lane. */
static void job_free(struct job *job)
{
	job->state = JOB_FREE;
	job->next = job->pool->free;
	job->pool->free = job;
}

/* Under the lock. */
static void job_end(struct job *job, int err)
{
	job->err = err;
	job->ended_ns = ucm_monotonic_ns();
	job->state = JOB_DONE;
	pthread_cond_broadcast(&job->pool->moved);
}

static void job_run(struct ucm_job *crew)
{
	struct job *job = (struct job *)crew;
	struct ucm_retrieval *pool = job->pool;
	int err;

	pthread_mutex_lock(&pool->lock);
	job->state = JOB_RUNNING;
	job->begun_ns = ucm_monotonic_ns();
	pthread_mutex_unlock(&pool->lock);
	err = retrieve(job);
	/* what ucm_retrieval_take() says of itself, and then the job stays */
	if (err == -EINVAL)
		err = -EBADMSG;
	else if (err == -ETIMEDOUT || err > 0)
		err = -EIO;
	pthread_mutex_lock(&pool->lock);
	job_end(job, err);
	pthread_mutex_unlock(&pool->lock);
}

/* ---- lanes, under the lock ---- */

static void lane_add(struct lane *lane, struct job *job)
{
	struct job **link = &lane->first;

	while (*link)
		link = &(*link)->next;
	job->next = NULL;
	*link = job;
	lane->newest = job->what.step + 1;
}

static struct job *lane_find(const struct lane *lane, uint64_t step)
{
	struct job *job = lane->first;

	while (job && job->what.step != step)
		job = job->next;
	return job;
}

/* Until something moves, or the clock is there. */
static void wait_until(struct ucm_retrieval *pool, int64_t until_ns)
{
	const struct timespec at = {
		.tv_sec = until_ns / 1000000000,
		.tv_nsec = until_ns % 1000000000,
	};

	if (until_ns == INT64_MAX)
		pthread_cond_wait(&pool->moved, &pool->lock);
	else
		pthread_cond_timedwait(&pool->moved, &pool->lock, &at);
}

/* Take its first job off, and see that nothing of it is read any more.
 * -ETIMEDOUT: its thread has not ended it yet; then it stays, to be dropped
 * again. */
static int lane_drop_first(struct ucm_retrieval *pool, struct lane *lane,
			   int64_t until_ns)
{
	struct job *job = lane->first;

	if (job->state != JOB_WAITING ||
	    !ucm_crew_take_back(pool->crew, &job->crew)) {
		atomic_store_explicit(&job->dropped, true,
				      memory_order_relaxed);
		while (job->state != JOB_DONE) {
			if (ucm_monotonic_ns() >= until_ns)
				return -ETIMEDOUT;
			wait_until(pool, until_ns);
		}
	}
	lane->first = job->next;
	job_free(job);
	return 0;
}

/* ---- open and close ---- */

static int options_check(const struct ucm_retrieval_options *options,
			 struct ucm_error *error)
{
	if (ucm_sparse_in_range("threads", options->threads,
				UCM_RETRIEVAL_THREADS_MAX, error) ||
	    ucm_sparse_in_range("jobs", options->jobs, UCM_RETRIEVAL_JOBS_MAX,
				error) ||
	    ucm_sparse_in_range("lanes", options->lanes, MAX_COUNT, error) ||
	    ucm_sparse_in_range("max_blocks", options->max_blocks, MAX_COUNT,
				error) ||
	    ucm_sparse_in_range("query_floats", options->query_floats,
				MAX_COUNT, error))
		return -EINVAL;
	return 0;
}

/* All jobs are free, all lanes as new. */
static void pool_reset(struct ucm_retrieval *pool)
{
	pool->free = NULL;
	for (uint32_t i = pool->options.jobs; i-- > 0;) {
		atomic_init(&pool->jobs[i].dropped, false);
		job_free(&pool->jobs[i]);
	}
	memset(pool->lanes, 0, pool->options.lanes * sizeof(*pool->lanes));
}

/* The parent's threads are not here, and may have held the lock. */
static void pool_after_fork(void *arg)
{
	struct ucm_retrieval *pool = arg;

	pthread_mutex_init(&pool->lock, NULL);
	ucm_cond_init_monotonic(&pool->moved);
	pool->stats = (struct ucm_retrieval_stats){ 0 };
	pool_reset(pool);
}

static int pool_alloc(struct ucm_retrieval *pool)
{
	const struct ucm_retrieval_options *options = &pool->options;
	size_t floats = (size_t)ucm_round_up(options->query_floats, 16) +
			2 * (size_t)ucm_round_up(options->max_blocks, 16);
	float *at;

	pool->jobs = calloc(options->jobs, sizeof(*pool->jobs));
	pool->lanes = calloc(options->lanes, sizeof(*pool->lanes));
	pool->memory = calloc(options->jobs, floats * sizeof(float));
	if (!pool->jobs || !pool->lanes || !pool->memory)
		return -ENOMEM;
	at = pool->memory;
	for (uint32_t i = 0; i < options->jobs; i++) {
		struct job *job = &pool->jobs[i];

		job->pool = pool;
		job->crew.run = job_run;
		job->query = at;
		at += ucm_round_up(options->query_floats, 16);
		job->scores = at;
		at += ucm_round_up(options->max_blocks, 16);
		job->blocks = (uint32_t *)at;
		at += ucm_round_up(options->max_blocks, 16);
	}
	pool_reset(pool);
	return 0;
}

static void pool_free(struct ucm_retrieval *pool)
{
	pthread_mutex_destroy(&pool->lock);
	pthread_cond_destroy(&pool->moved);
	free(pool->memory);
	free(pool->lanes);
	free(pool->jobs);
	free(pool);
}

/* A job that keeps its thread until all have been added. */
struct starter {
	struct ucm_job crew;
	struct ucm_retrieval *pool;
};

static void starter_run(struct ucm_job *crew)
{
	struct ucm_retrieval *pool = ((struct starter *)crew)->pool;

	pthread_mutex_lock(&pool->lock);
	while (!pool->open)
		pthread_cond_wait(&pool->moved, &pool->lock);
	pool->started--;
	pthread_cond_broadcast(&pool->moved);
	pthread_mutex_unlock(&pool->lock);
}

/* The crew starts threads when there is work for them, which takes memory: so
 * there is some for each of them now. Returns how many there are. */
static uint32_t start_threads(struct ucm_retrieval *pool)
{
	struct starter starters[UCM_RETRIEVAL_THREADS_MAX];
	uint32_t threads;

	pthread_mutex_lock(&pool->lock);
	for (uint32_t i = 0; i < pool->options.threads; i++) {
		starters[i] = (struct starter){ { .run = starter_run }, pool };
		if (!ucm_crew_add(pool->crew, &starters[i].crew))
			break;
		pool->started++;
	}
	threads = ucm_crew_threads(pool->crew);
	pool->open = true;
	pthread_cond_broadcast(&pool->moved);
	while (pool->started)
		pthread_cond_wait(&pool->moved, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
	return threads;
}

int ucm_retrieval_open(const struct ucm_retrieval_options *given,
		       struct ucm_retrieval **out, struct ucm_error *error)
{
	struct ucm_retrieval_options own, *options = &own;
	struct ucm_retrieval *pool;
	int err = ucm_sized_take(&own, sizeof(own), given, sizeof(own),
				 "ucm_retrieval_options", error)
		?: options_check(&own, error);
	uint32_t threads;

	if (err)
		return err;
	if (!out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return ucm_error_set(error, -ENOMEM, "retrieval: no memory");
	pool->options = *options;
	pthread_mutex_init(&pool->lock, NULL);
	ucm_cond_init_monotonic(&pool->moved);
	err = pool_alloc(pool)
		?: ucm_crew_open("ucm-retrieve", options->threads, &pool->crew);
	if (err) {
		ucm_error_set(error, err, "retrieval: no memory");
		goto free_pool;
	}
	ucm_crew_on_fork(pool->crew, pool_after_fork, pool);
	threads = start_threads(pool);
	if (threads < options->threads) {
		err = ucm_error_set(error, -EAGAIN, "threads %" PRIu32
				    ": %" PRIu32 " could be started",
				    options->threads, threads);
		goto close_crew;
	}
	*out = pool;
	return 0;

close_crew:
	ucm_crew_close(pool->crew, INT_MAX);
free_pool:
	pool_free(pool);
	return err;
}

void ucm_retrieval_close(struct ucm_retrieval *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool->lock);
	for (uint32_t i = 0; i < pool->options.lanes; i++) {
		while (pool->lanes[i].first)
			lane_drop_first(pool, &pool->lanes[i], INT64_MAX);
	}
	pthread_mutex_unlock(&pool->lock);
	ucm_crew_close(pool->crew, INT_MAX);
	pool_free(pool);
}

/* ---- submit ---- */

static int lane_check(const struct ucm_retrieval *pool, uint32_t lane,
		      struct ucm_error *error)
{
	if (!pool)
		return ucm_error_set(error, -EINVAL, "retrieval is NULL");
	if (lane >= pool->options.lanes)
		return ucm_error_set(error, -EINVAL, "lane %" PRIu32
				     ": there are %" PRIu32, lane,
				     pool->options.lanes);
	return 0;
}

static int job_check(const struct ucm_retrieval *pool,
		     const struct ucm_retrieval_job *job,
		     struct ucm_error *error)
{
	const struct ucm_budget *budget;
	int err = ucm_sparse_given(error, "job", job, NULL)
		?: lane_check(pool, job->lane, error);

	if (err)
		return err;
	budget = &job->budget;
	if (job->step == UINT64_MAX)
		return ucm_error_set(error, -EINVAL, "step: too large");
	if (budget->num_blocks > pool->options.max_blocks)
		return ucm_error_set(error, -EINVAL, "budget: %" PRIu32
				     " blocks, at most %" PRIu32,
				     budget->num_blocks,
				     pool->options.max_blocks);
	if ((uint64_t)budget->first + budget->topk + budget->last >
	    budget->num_blocks)
		return ucm_error_set(error, -EINVAL, "budget: %" PRIu32 " + %"
				     PRIu32 " + %" PRIu32 " of %" PRIu32
				     " blocks", budget->first, budget->topk,
				     budget->last, budget->num_blocks);
	return 0;
}

static void job_fill(struct job *job, const struct ucm_retrieval_job *what,
		     const struct ucm_scoring *scoring, size_t query_bytes)
{
	job->what = *what;
	job->scoring = *scoring;
	if (query_bytes)
		memcpy(job->query, scoring->query, query_bytes);
	job->scoring.query = job->query;
	atomic_store_explicit(&job->dropped, false, memory_order_relaxed);
	job->submitted_ns = ucm_monotonic_ns();
	job->deadline_ns = INT64_MAX;
	if (what->deadline_ms)
		job->deadline_ns = job->submitted_ns +
				   what->deadline_ms * INT64_C(1000000);
	job->state = JOB_WAITING;
}

/* Under the lock. */
static int submit(struct ucm_retrieval *pool,
		  const struct ucm_retrieval_job *what,
		  const struct ucm_scoring *scoring, size_t query_bytes,
		  struct ucm_error *error)
{
	struct lane *lane = &pool->lanes[what->lane];
	struct job *job = pool->free;

	if (what->step < lane->newest)
		return ucm_error_set(error, -EINVAL, "step %" PRIu64
				     ": lane %" PRIu32 " is at %" PRIu64,
				     what->step, what->lane, lane->newest - 1);
	if (!job) {
		pool->stats.refused++;
		return ucm_error_set(error, -EAGAIN, "jobs %" PRIu32
				     ": all are in use", pool->options.jobs);
	}
	pool->free = job->next;
	job_fill(job, what, scoring, query_bytes);
	if (!ucm_crew_add(pool->crew, &job->crew)) {
		job_free(job); /* in a child of fork(2), without threads */
		return ucm_error_set(error, -EAGAIN,
				     "threads: none can be started");
	}
	lane_add(lane, job);
	pool->stats.submitted++;
	return 0;
}

int ucm_retrieval_submit(struct ucm_retrieval *pool,
			 const struct ucm_retrieval_job *job,
			 struct ucm_error *error)
{
	struct ucm_scoring scoring;
	size_t query_bytes;
	int err = ucm_sparse_given(error, "retrieval", pool, NULL)
		?: job_check(pool, job, error)
		?: ucm_scoring_take(job, pool->options.query_floats, &scoring,
				    &query_bytes, error);

	if (err)
		return err;
	pthread_mutex_lock(&pool->lock);
	err = submit(pool, job, &scoring, query_bytes, error);
	pthread_mutex_unlock(&pool->lock);
	return err;
}

/* ---- take ---- */

static int64_t least_of(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Under the lock. Its deadline ends it even if no thread comes to it. */
static int wait_done(struct ucm_retrieval *pool, struct job *job,
		     int64_t until_ns)
{
	while (job->state != JOB_DONE) {
		int64_t now = ucm_monotonic_ns(), end = until_ns;

		if (job->state == JOB_WAITING && now >= job->deadline_ns &&
		    ucm_crew_take_back(pool->crew, &job->crew)) {
			job->begun_ns = now;
			job_end(job, too_late(job));
			break;
		}
		if (now >= until_ns)
			return -ETIMEDOUT;
		if (job->state == JOB_WAITING && now < job->deadline_ns)
			end = least_of(end, job->deadline_ns);
		wait_until(pool, end);
	}
	return 0;
}

static int room_check(const struct job *job,
		      const struct ucm_retrieval_result *out,
		      struct ucm_error *error)
{
	const struct ucm_budget *budget = &job->what.budget;
	uint32_t num = budget->first + budget->topk + budget->last;

	if (out->room < num || (num && !out->blocks))
		return ucm_error_set(error, -EINVAL, "room %zu: %" PRIu32
				     " are selected", out->room, num);
	if (out->scores && out->num_scores < budget->num_blocks)
		return ucm_error_set(error, -EINVAL, "num_scores %zu: there are"
				     " %" PRIu32, out->num_scores,
				     budget->num_blocks);
	return 0;
}

static void fill_scores(const struct job *job, uint32_t begin, uint32_t end,
			float *out)
{
	for (; begin < end; begin++)
		out[begin] = job->least;
}

static void copy_result(const struct job *job, uint64_t newest,
			struct ucm_retrieval_result *out)
{
	const struct ucm_budget *budget = &job->what.budget;
	uint32_t end = budget->num_blocks - budget->last;

	if (job->num)
		memcpy(out->blocks, job->blocks, job->num * sizeof(uint32_t));
	if (out->scores) {
		fill_scores(job, 0, budget->first, out->scores);
		memcpy(out->scores + budget->first, job->scores + budget->first,
		       (end - budget->first) * sizeof(float));
		fill_scores(job, end, budget->num_blocks, out->scores);
	}
	out->num = job->num;
	out->num_blocks = budget->num_blocks;
	out->newest = newest;
	out->wait_ns = (uint64_t)(job->begun_ns - job->submitted_ns);
	out->run_ns = (uint64_t)(job->ended_ns - job->begun_ns);
}

/*
 * Those before a job that is done are stale from now on, also if one is still
 * being read and the time is over: then the job is to be asked for again.
 */
static int drop_earlier(struct ucm_retrieval *pool, struct lane *lane,
			const struct job *job, int64_t until_ns)
{
	lane->stale = job->what.step;
	while (lane->first != job) {
		int err = lane_drop_first(pool, lane, until_ns);

		if (err)
			return err;
		pool->stats.stale++;
	}
	return 0;
}

/* Under the lock: the job that is asked for, done and off its lane. */
static int take_job(struct ucm_retrieval *pool, struct lane *lane,
		    uint64_t step, int64_t until_ns,
		    const struct ucm_retrieval_result *out,
		    struct job **job_out, struct ucm_error *error)
{
	struct job *job = lane_find(lane, step);
	int err;

	if (step < lane->stale)
		return ucm_error_set(error, -ESTALE, "step %" PRIu64
				     ": stale, or taken", step);
	if (!job)
		return ucm_error_set(error, -ENOENT, "step %" PRIu64
				     ": not submitted", step);
	err = room_check(job, out, error);
	if (err)
		return err;
	err = wait_done(pool, job, until_ns)
		?: drop_earlier(pool, lane, job, until_ns);
	if (err)
		return ucm_error_set(error, err, "step %" PRIu64 ": not done "
				     "yet", step);
	lane->first = job->next;
	lane->stale = step + 1;
	job->state = JOB_TAKEN;
	*job_out = job;
	return 0;
}

/* Under the lock. */
static void count_taken(struct ucm_retrieval *pool, int err)
{
	if (!err)
		pool->stats.taken++;
	else if (err == -ETIME)
		pool->stats.late++;
	else
		pool->stats.failed++;
}

int ucm_retrieval_take(struct ucm_retrieval *pool, uint32_t lane, uint64_t step,
		       int timeout_ms, struct ucm_retrieval_result *out,
		       struct ucm_error *error)
{
	int64_t until_ns = INT64_MAX;
	struct job *job = NULL;
	uint64_t newest;
	int err = lane_check(pool, lane, error);

	if (!err && !out)
		err = ucm_error_set(error, -EINVAL, "out is NULL");
	if (err)
		return err;
	if (timeout_ms >= 0)
		until_ns = ucm_monotonic_ns() + timeout_ms * INT64_C(1000000);
	pthread_mutex_lock(&pool->lock);
	err = take_job(pool, &pool->lanes[lane], step, until_ns, out, &job,
		       error);
	newest = pool->lanes[lane].newest - 1;
	pthread_mutex_unlock(&pool->lock);
	if (err)
		return err;
	err = job->err;
	if (!err)
		copy_result(job, newest, out);
	else
		ucm_error_set(error, err, "%s", job->error.text);
	pthread_mutex_lock(&pool->lock);
	count_taken(pool, err);
	job_free(job);
	pthread_mutex_unlock(&pool->lock);
	return err;
}

int ucm_retrieval_cancel(struct ucm_retrieval *pool, uint32_t lane,
			 struct ucm_error *error)
{
	struct lane *at;
	int err = lane_check(pool, lane, error);

	if (err)
		return err;
	at = &pool->lanes[lane];
	pthread_mutex_lock(&pool->lock);
	while (at->first) {
		lane_drop_first(pool, at, INT64_MAX);
		pool->stats.cancelled++;
	}
	at->newest = at->stale = 0;
	pthread_mutex_unlock(&pool->lock);
	return 0;
}

void ucm_retrieval_get_stats(struct ucm_retrieval *pool,
			     struct ucm_retrieval_stats *out)
{
	pthread_mutex_lock(&pool->lock);
	*out = pool->stats;
	for (uint32_t i = 0; i < pool->options.jobs; i++) {
		out->waiting += pool->jobs[i].state == JOB_WAITING;
		out->running += pool->jobs[i].state == JOB_RUNNING;
		out->done += pool->jobs[i].state == JOB_DONE;
	}
	pthread_mutex_unlock(&pool->lock);
}
