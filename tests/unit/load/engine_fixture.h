/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_fixture.h - one thread of the loader.
 *
 * Its source is a plain directory. The pages are those of a device that takes
 * its time: the copy back end holds its jobs for as long as the test wants,
 * and so does the source its calls. So a task can be cancelled, or run out of
 * time, at each step of its way.
 */
#ifndef UCM_TESTS_ENGINE_FIXTURE_H
#define UCM_TESTS_ENGINE_FIXTURE_H

#include "gpu/load/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu/load/task/buffer.h"
#include "tests/unit/load/engine_source.h"
#include "tests/unit/load_fixture.h"

/* ---- a device ---- */

struct ucm_copy {
	const struct ucm_layout *layout;
	struct ucm_copy_job *scatters, *gathers;
};

static _Atomic unsigned device_jobs; /* that it ever got */
static unsigned jobs_before;         /* and before a save was begun */
static bool has_begun;
static _Atomic bool device_holds;
static _Atomic int device_err;
static _Atomic bool event_comes; /* the one that is waited for */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* into its memory */
static pthread_mutex_t adding_gate = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool is_adding;

static inline int device_open(const struct ucm_copy_options *options,
			      struct ucm_copy **out, struct ucm_error *error)
{
	(void)options;
	(void)error;
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

static inline void device_close(struct ucm_copy *copy)
{
	ck_assert(!copy->scatters && !copy->gathers);
	free(copy);
}

static inline int device_add_group(struct ucm_copy *copy, unsigned group,
				   const struct ucm_layout *layout)
{
	(void)group;
	/* it may take its time, to pin the pages */
	atomic_store(&is_adding, true);
	pthread_mutex_lock(&adding_gate);
	pthread_mutex_unlock(&adding_gate);
	copy->layout = layout;
	return 0;
}

static inline void device_remove_group(struct ucm_copy *copy, unsigned number)
{
	(void)number;
	copy->layout = NULL;
}

static inline int device_register(struct ucm_copy *copy, void *memory,
				  size_t len)
{
	(void)copy;
	(void)memory;
	(void)len;
	return 0;
}

static inline void device_unregister(struct ucm_copy *copy, void *memory)
{
	(void)copy;
	(void)memory;
}

static inline void take(struct ucm_copy_job **list, struct ucm_copy_job *jobs)
{
	while (*list)
		list = &(*list)->next;
	*list = jobs;
	for (; jobs; jobs = jobs->next)
		atomic_fetch_add(&device_jobs, 1);
}

static inline void look_for_saves(void);

static inline void device_scatter(struct ucm_copy *copy,
				  struct ucm_copy_job *jobs)
{
	look_for_saves();
	take(&copy->scatters, jobs);
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
}

static inline void device_gather(struct ucm_copy *copy,
				 struct ucm_copy_job *jobs)
{
	look_for_saves();
	take(&copy->gathers, jobs);
}

static inline struct ucm_copy_job *device_poll(struct ucm_copy *copy)
{
	struct ucm_copy_job *done = NULL, **end = &done, *job;

	if (atomic_load(&device_holds))
		return NULL;
	*end = copy->scatters;
	for (job = copy->scatters; job; job = job->next) {
		job->err = atomic_load(&device_err);
		if (!job->err)
			ucm_host_scatter(copy->layout, job);
		end = &job->next;
	}
	*end = copy->gathers;
	for (job = copy->gathers; job; job = job->next) {
		job->err = atomic_load(&device_err);
		if (!job->err)
			ucm_host_gather(copy->layout, job);
	}
	copy->scatters = copy->gathers = NULL;
	return done;
}

static inline int device_reached(struct ucm_copy *copy, void *event)
{
	(void)copy;
	(void)event;
	return atomic_load(&event_comes);
}

static const struct ucm_copy_ops device = {
	.name = "device",
	.open = device_open,
	.close = device_close,
	.add_group = device_add_group,
	.remove_group = device_remove_group,
	.register_staging = device_register,
	.unregister_staging = device_unregister,
	.scatter = device_scatter,
	.gather = device_gather,
	.poll = device_poll,
	.reached = device_reached,
};

static inline bool device_has(void *arg)
{
	return atomic_load(&device_jobs) >= *(unsigned *)arg;
}

static inline void wait_device(unsigned jobs)
{
	fx_wait(device_has, &jobs);
}

/* ---- the engine ---- */

static struct lf_cache cache;
static struct ucm_group group;
static struct ucm_shared shared;
static struct ucm_engine engine, *engines[1] = { &engine };
static int64_t idle_ns = INT64_MAX / 2;
static uint64_t window_bytes; /* 0: it finds out */
static const struct ucm_copy_ops *copy_ops = &device;
static unsigned most_saves = 64;
static struct ucm_buffer *use_buffer;

/* The thread of the engine begins a save before it comes to the device again. */
static inline void look_for_saves(void)
{
	if (has_begun || !engine.savings_busy)
		return;
	has_begun = true;
	jobs_before = atomic_load(&device_jobs);
}

static inline void start(uint32_t read_bytes)
{
	struct ucm_error error = { "" };

	fx_mkdirs(fx_path("$/dir/drafts"));

	memset(&engine, 0, sizeof(engine));
	shared = (struct ucm_shared){
		.node = -1,
		.source_ops = &directory,
		.source = &source,
		.copy_ops = copy_ops,
		.io = UCM_IO_THREADS,
		.staging_bytes = SLOTS * 65536,
		.read_bytes = read_bytes,
		.window_bytes = window_bytes,
		.open_files = 64,
		.most_saves = most_saves,
		.buffer = use_buffer,
		.buffer_home = "",
		.idle_ns = idle_ns,
		.save_budget = UINT64_MAX,
	};
	ck_assert_msg(!ucm_engine_start(&engine, &shared, 0, &error), "%s",
		      error.text);
	ck_assert_int_eq(ucm_engine_add_group(&engine, &group), 0);
}

/* Of four layers. */
static inline void use_cache(void)
{
	uint64_t layer = ucm_layout_layer_bytes(cache.layout);

	group = (struct ucm_group){ .layout = cache.layout,
				    .layer_bytes = layer,
				    .payload_bytes = 4 * layer,
				    .data_offset = 4096,
				    .file_size = 4096 + 4 * layer };
}

static inline void make_buckets(void)
{
	for (unsigned i = 0; i < NUM; i++) {
		char folder[512];

		snprintf(folder, sizeof(folder), "%s", lf_path("$/dir", i));
		*strrchr(folder, '/') = '\0';
		fx_mkdirs(folder);
	}
}

static inline void setup(void)
{
	fx_setup();
	lf_faults();
	make_buckets();
	source.fd = open(fx_path("$/dir"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(source.fd, 0);
	lf_cache_open(&cache, &lf_geometry, NUM);
	use_cache();
}

static inline void teardown(void)
{
	close(source.fd);
	lf_cache_close(&cache);
	fx_teardown();
}

static inline void plant(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		lf_plant("$/dir", &lf_geometry, i);
}

static inline void fill(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		lf_fill_page(&cache, i, i);
}

static inline struct ucm_task *make_task(bool is_save, unsigned first,
					 unsigned num,
					 const struct ucm_request *options)
{
	struct ucm_move moves[NUM] = { 0 };
	struct ucm_request request = { 0 };
	struct ucm_task *task;
	struct ucm_part *part;

	if (options)
		request = *options;
	request.blocks = moves;
	request.num_blocks = num;
	for (unsigned i = 0; i < num; i++)
		moves[i] = (struct ucm_move){ .id = lf_id(first + i),
					      .page = i };
	ck_assert_int_eq(ucm_task_new(&request, &group, is_save, 1,
				      shared.read_bytes, &task),
			 0);
	task->threads.engines = engines;
	task->threads.wake = ucm_engine_wake;
	part = &task->parts[0];
	part->task = task;
	part->blocks = calloc(num, sizeof(*part->blocks));
	part->num_blocks = num;
	for (unsigned i = 0; i < num; i++)
		part->blocks[i] = i;
	return task;
}

static inline struct ucm_task *post(struct ucm_task *task)
{
	ucm_task_get(task);
	ucm_engine_post(&engine, &task->parts[0]);
	return task;
}

static inline struct ucm_task *submit(bool is_save, unsigned first,
				      unsigned num,
				      const struct ucm_request *options)
{
	struct ucm_task *task = make_task(is_save, first, num, options);

	if (is_save)
		atomic_fetch_add(&shared.save_waiting,
				 num * (task->terms.end_layer - task->terms.first_layer) *
					 (uint64_t)LAYER);
	return post(task);
}

/* Both ways in which a task is given up. */
static const struct {
	bool late;
	int err;
} ends[] = { { false, -ECANCELED }, { true, -ETIMEDOUT } };

/* The deadline comes when the task is in the state that is asked for. */
static inline void give_up(struct ucm_task *task, int row)
{
	if (!ends[row].late) {
		ucm_task_cancel(task);
		return;
	}
	atomic_store(&task->terms.deadline_ns, 1);
	ucm_engine_wake(&engine);
}

/* All of its blocks ended so, but for those before `from`. */
static inline void ended(struct ucm_task *task, unsigned from, int err)
{
	ck_assert_int_eq(ucm_task_wait(task, 20000), err ? -EIO : 0);
	for (unsigned i = from; i < task->num_blocks; i++)
		ck_assert_int_eq(ucm_task_outcomes(task)[i].err, err);
	ucm_task_free(task);
}

static inline void stop(void)
{
	ucm_engine_stop(&engine);
	ucm_engine_close(&engine);
	ck_assert_uint_eq(atomic_load(&shared.save_waiting), 0);
	/* no draft has been forgotten, no descriptor, and no file */
	ck_assert_uint_eq(atomic_load(&drafts), 0);
	ck_assert_uint_eq(lf_open_files("/dir/"), 0);
	ck_assert_int_eq(rmdir(fx_path("$/dir/drafts")), 0);
}

#endif
