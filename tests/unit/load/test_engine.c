/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine.c - one thread of the loader, stopped in every state there is.
 *
 * The source is a plain directory: its blocks are opened through the ring, new
 * ones are written as drafts and renamed. The pages are those of a device that
 * takes its time: the copy back end holds its jobs for as long as the test wants,
 * and so does the source its calls. So a task can be cancelled, or run out of
 * time, at each step of its way.
 */
#include <config.h>

#include "gpu/load/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/filestamp.h"
#include "gpu/load/buffer.h"
#include "hashing/tree.h"
#include "tests/unit/load_fixture.h"

#define NUM 40      /* blocks */
#define SLOTS 32    /* of the staging memory */
#define LAYER 4096

/* ---- a directory ---- */

struct ucm_source {
	int fd;
	bool local;
	_Atomic int open_err; /* its next opens, until this is 0 again, */
	bool once;	      /* or one of them, fail with it */
	_Atomic unsigned losses; /* times that it was asked */
	_Atomic bool comes_back;
};

static struct ucm_source source;

static void path_of(const char *space, const struct ucm_id *id,
		    char path[UCM_TREE_PATH_MAX])
{
	char folder[UCM_TREE_FOLDER_MAX];

	ucm_tree_folder(space, folder);
	ucm_tree_block_path(folder, id, path);
}

static int open_one(struct ucm_source *of, const char *space,
		    const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX];
	int err = atomic_load(&of->open_err);
	int fd;

	if (err && of->once)
		atomic_store(&of->open_err, 0);
	if (err)
		return err;
	path_of(space, id, path);
	fd = openat(of->fd, path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static void descriptors(struct ucm_source *of, const char *space,
			const struct ucm_id *ids, unsigned num,
			struct ucm_given *given)
{
	for (unsigned i = 0; i < num; i++)
		given[i] = (struct ucm_given){
			.fd = open_one(of, space, &ids[i]),
			.local = of->local,
		};
}

static bool lost(struct ucm_source *of)
{
	atomic_fetch_add(&of->losses, 1);
	return atomic_load(&of->comes_back);
}

/* Block 0 is marked as verified, which is first looked at for its directory; does it
 * hold after the first look at the mark? And has the disk lost a bit of it? */
static bool mark_goes, is_rotten;
static unsigned looks;

static void flip(const char *path, off_t at)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static bool where(struct ucm_source *of, const char *space,
		  const struct ucm_id *id, struct ucm_where *out)
{
	const char *path = lf_path("$/dir", 0);
	struct stat st;

	(void)of, (void)space, (void)id;
	*out = (struct ucm_where){ .directory = 0 };
	if (!looks++ || (looks > 2 && mark_goes))
		return true;
	if (is_rotten)
		flip(path, 4096 + LAYER + 77);
	ck_assert_int_eq(stat(path, &st), 0);
	out->verified = ucm_file_stamp(&st);
	return true;
}

/* ---- its drafts ---- */

struct ucm_draft {
	char temporary[32], path[UCM_TREE_PATH_MAX]; /* below the directory */
	struct ucm_id id;
	uint64_t bytes;
};

/* A call does its work, waits at its gate, and may be refused once. */
enum call { CREATE, COMMIT };

static struct {
	pthread_mutex_t gate;
	_Atomic unsigned made;
	_Atomic int refusal;
} calls[] = {
	[CREATE] = { .gate = PTHREAD_MUTEX_INITIALIZER },
	[COMMIT] = { .gate = PTHREAD_MUTEX_INITIALIZER },
};

static _Atomic unsigned drafts; /* that have not ended */

static int pass(enum call call)
{
	atomic_fetch_add(&calls[call].made, 1);
	pthread_mutex_lock(&calls[call].gate);
	pthread_mutex_unlock(&calls[call].gate);
	return atomic_exchange(&calls[call].refusal, 0);
}

static void drop(struct ucm_source *of, struct ucm_draft *draft)
{
	unlinkat(of->fd, draft->temporary, 0);
	free(draft);
	atomic_fetch_sub(&drafts, 1);
}

static int create(struct ucm_source *of, const char *space,
		  const struct ucm_id *id, uint64_t bytes,
		  struct ucm_draft **out)
{
	static _Atomic unsigned number;
	struct ucm_draft *draft = calloc(1, sizeof(*draft));
	int fd, err;

	atomic_fetch_add(&drafts, 1);
	path_of(space, id, draft->path);
	snprintf(draft->temporary, sizeof(draft->temporary), "drafts/%u",
		 atomic_fetch_add(&number, 1));
	draft->id = *id;
	draft->bytes = bytes;
	fd = openat(of->fd, draft->temporary,
		    O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
	err = fd < 0 ? -errno : pass(CREATE);
	if (!err && !faccessat(of->fd, draft->path, F_OK, 0))
		err = -EEXIST;
	if (!err) {
		*out = draft;
		return fd;
	}
	if (fd >= 0)
		close(fd);
	drop(of, draft);
	return err;
}

static int reopen(struct ucm_source *of, const struct ucm_draft *draft)
{
	int fd = openat(of->fd, draft->temporary, O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* It has to be the block that was announced, and whole. */
static int commit(struct ucm_source *of, struct ucm_draft *draft, int fd,
		  const void *header, uint32_t header_bytes)
{
	struct ucm_block written;
	struct stat st;
	int err = pass(COMMIT);

	if (!err && (ucm_block_parse(header, header_bytes, 0, &written) ||
		     fstat(fd, &st) || (uint64_t)st.st_size != draft->bytes ||
		     memcmp(&written.id, &draft->id, sizeof(draft->id)) != 0))
		err = -EINVAL;
	close(fd);
	if (!err && renameat(of->fd, draft->temporary, of->fd,
			     draft->path))
		err = -errno;
	drop(of, draft);
	return err;
}

static bool are_made(void *arg)
{
	enum call call = *(enum call *)arg;

	return atomic_load(&calls[call].made) >= 4;
}

/* Four calls are at their gate, which is locked. */
static void wait_calls(enum call call)
{
	fx_wait(are_made, &call);
}

static const struct ucm_source_ops directory = {
	.name = "directory", .descriptors = descriptors, .where = where,
	.lost = lost, .create = create, .reopen = reopen, .commit = commit,
	.drop = drop,
};

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

static int device_open(const struct ucm_copy_options *options,
		       struct ucm_copy **out, struct ucm_error *error)
{
	(void)options;
	(void)error;
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

static void device_close(struct ucm_copy *copy)
{
	ck_assert(!copy->scatters && !copy->gathers);
	free(copy);
}

static int device_add_group(struct ucm_copy *copy, unsigned group,
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

static void device_remove_group(struct ucm_copy *copy, unsigned number)
{
	(void)number;
	copy->layout = NULL;
}

static int device_register(struct ucm_copy *copy, void *memory, size_t len)
{
	(void)copy;
	(void)memory;
	(void)len;
	return 0;
}

static void device_unregister(struct ucm_copy *copy, void *memory)
{
	(void)copy;
	(void)memory;
}

static void take(struct ucm_copy_job **list, struct ucm_copy_job *jobs)
{
	while (*list)
		list = &(*list)->next;
	*list = jobs;
	for (; jobs; jobs = jobs->next)
		atomic_fetch_add(&device_jobs, 1);
}

static void look_for_saves(void);

static void device_scatter(struct ucm_copy *copy, struct ucm_copy_job *jobs)
{
	look_for_saves();
	take(&copy->scatters, jobs);
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
}

static void device_gather(struct ucm_copy *copy, struct ucm_copy_job *jobs)
{
	look_for_saves();
	take(&copy->gathers, jobs);
}

static struct ucm_copy_job *device_poll(struct ucm_copy *copy)
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

static int device_reached(struct ucm_copy *copy, void *event)
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

static bool device_has(void *arg)
{
	return atomic_load(&device_jobs) >= *(unsigned *)arg;
}

static void wait_device(unsigned jobs)
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
static void look_for_saves(void)
{
	if (has_begun || !engine.savings_busy)
		return;
	has_begun = true;
	jobs_before = atomic_load(&device_jobs);
}

static void start(uint32_t read_bytes)
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
static void use_cache(void)
{
	uint64_t layer = ucm_layout_layer_bytes(cache.layout);

	group = (struct ucm_group){ .layout = cache.layout,
				    .layer_bytes = layer,
				    .payload_bytes = 4 * layer,
				    .data_offset = 4096,
				    .file_size = 4096 + 4 * layer };
}

static void make_buckets(void)
{
	for (unsigned i = 0; i < NUM; i++) {
		char folder[512];

		snprintf(folder, sizeof(folder), "%s", lf_path("$/dir", i));
		*strrchr(folder, '/') = '\0';
		fx_mkdirs(folder);
	}
}

static void setup(void)
{
	fx_setup();
	lf_faults();
	make_buckets();
	source.fd = open(fx_path("$/dir"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(source.fd, 0);
	lf_cache_open(&cache, &lf_geometry, NUM);
	use_cache();
}

static void teardown(void)
{
	close(source.fd);
	lf_cache_close(&cache);
	fx_teardown();
}

static void plant(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		lf_plant("$/dir", &lf_geometry, i);
}

static void fill(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		lf_fill_page(&cache, i, i);
}

static struct ucm_task *make_task(bool is_save, unsigned first, unsigned num,
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
				      shared.read_bytes, 1, &task),
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

static struct ucm_task *post(struct ucm_task *task)
{
	ucm_task_get(task);
	ucm_engine_post(&engine, &task->parts[0]);
	return task;
}

static struct ucm_task *submit(bool is_save, unsigned first, unsigned num,
			       const struct ucm_request *options)
{
	struct ucm_task *task = make_task(is_save, first, num, options);

	if (is_save)
		atomic_fetch_add(&shared.save_waiting,
				 num * (task->terms.end_layer - task->terms.first_layer) *
					 (uint64_t)LAYER);
	return post(task);
}

static struct ucm_task *submit_commit(unsigned first, unsigned num)
{
	struct ucm_task *task = make_task(true, first, num, NULL);

	task->terms.is_commit = true;
	return post(task);
}

/* Both ways in which a task is given up. */
static const struct {
	bool late;
	int err;
} ends[] = { { false, -ECANCELED }, { true, -ETIMEDOUT } };

/* The deadline comes when the task is in the state that is asked for. */
static void give_up(struct ucm_task *task, int row)
{
	if (!ends[row].late) {
		ucm_task_cancel(task);
		return;
	}
	atomic_store(&task->terms.deadline_ns, 1);
	ucm_engine_wake(&engine);
}

/* All of its blocks ended so, but for those before `from`. */
static void ended(struct ucm_task *task, unsigned from, int err)
{
	ck_assert_int_eq(ucm_task_wait(task, 20000), err ? -EIO : 0);
	for (unsigned i = from; i < task->num_blocks; i++)
		ck_assert_int_eq(ucm_task_outcomes(task)[i].err, err);
	ucm_task_free(task);
}

/* A task is given up while so many of its operations are held. */
static void give_up_held(struct ucm_task *task, unsigned num, int how)
{
	lf_wait_held(num);
	give_up(task, how);
	ended(task, 0, ends[how].err);
	lf_release();
}

static void stop(void)
{
	ucm_engine_stop(&engine);
	ucm_engine_close(&engine);
	ck_assert_uint_eq(atomic_load(&shared.save_waiting), 0);
	/* no draft has been forgotten, no descriptor, and no file */
	ck_assert_uint_eq(atomic_load(&drafts), 0);
	ck_assert_uint_eq(lf_open_files("/dir/"), 0);
	ck_assert_int_eq(rmdir(fx_path("$/dir/drafts")), 0);
}

static void stop_untouched(void)
{
	stop();
	for (uint32_t page = 0; page < NUM; page++)
		must(lf_page_untouched(&cache, page, 0, 4));
}

/* ---- the way of a load ---- */

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(loads_and_saves_pass)
{
	for (unsigned i = 0; i < 2; i++) {
		start(i ? LAYER : 1 << 20);
		fill(NUM);
		ended(submit(true, 0, NUM, NULL), 0, 0);
		for (unsigned j = 0; j < NUM; j++)
			ck_assert(lf_saved("$/dir", &lf_geometry, j));
		lf_cache_clear(&cache);
		ended(submit(false, 0, NUM, NULL), 0, 0);
		for (unsigned j = 0; j < NUM; j++)
			ck_assert(lf_page_is(&cache, j, 0, 4, j));
		stop();
		for (unsigned j = 0; j < NUM; j++)
			unlink(lf_path("$/dir", j));
	}
}

/* The window has room for a block, and so a load is read when the one before it
 * has been. The saves are there first: they wait until they are owed a block,
 * an eighth of all. */
UNIT_TEST(saves_wait_for_loads_but_for_their_share)
{
	enum { LOADS = 16 };
	struct ucm_task *plug, *save, *load;

	plant(LOADS + 1);
	window_bytes = 4 * LAYER;
	start(1 << 20);
	pthread_mutex_lock(&gate);
	plug = submit(false, LOADS, 1, NULL);
	wait_device(1); /* the engine's thread stands before the gate */
	save = submit(true, LOADS + 1, 4, NULL);
	load = submit(false, 0, LOADS, NULL);
	pthread_mutex_unlock(&gate);
	ended(plug, 0, 0);
	ended(load, 0, 0);
	ended(save, 0, 0);
	stop();
	ck_assert_uint_ge(jobs_before, 1 + 7 - 2);
	ck_assert_uint_lt(jobs_before, 1 + LOADS - 2);
}

UNIT_TEST(a_load_is_given_up_while_it_opens, .rows = 2)
{
	struct ucm_task *task;

	plant(4);
	start(1 << 20);
	lf_hold(UCM_IO_CALL, 0);
	task = submit(false, 0, 4, NULL);
	give_up_held(task, 1, _i);
	stop_untouched();
}

UNIT_TEST(a_load_is_given_up_while_it_is_read, .rows = 2)
{
	struct ucm_task *task;

	source.local = true; /* a file server gets fewer calls at first */
	plant(4);
	start(LAYER);
	lf_hold(UCM_IO_READ, 0);
	task = submit(false, 0, 4, NULL);
	give_up_held(task, 4 * 4, _i);
	stop_untouched();
}

/* Its own bytes are there, the header is not. */
UNIT_TEST(a_load_is_given_up_while_it_waits_for_the_head, .rows = 2)
{
	struct ucm_request request = { .first_layer = 1 };
	struct ucm_task *task;

	plant(4);
	start(1 << 20);
	lf_hold_at(UCM_IO_READ, 0, 1);
	task = submit(false, 0, 4, &request);
	give_up_held(task, 4, _i);
	stop_untouched();
}

/* The same where nothing is read before the header is known. */
UNIT_TEST(a_load_is_given_up_before_its_form_is_known, .rows = 2)
{
	struct ucm_task *task;
	uint8_t *bytes;
	size_t len;

	for (unsigned i = 0; i < 4; i++) {
		bytes = lf_file(&lf_geometry, i, FX_PACKED, &len);
		fx_put(lf_path("$/dir", i), bytes, len);
		free(bytes);
	}
	start(1 << 20);
	lf_hold(UCM_IO_READ, 0);
	task = submit(false, 0, 4, NULL);
	give_up_held(task, 4, _i);
	stop_untouched();
}

/* Or while its payload is read to be vouched for: one read holds up all. */
UNIT_TEST(a_load_is_given_up_while_it_is_vouched_for, .rows = 2)
{
	struct ucm_request request = { .first_layer = 2, .num_layers = 1 };
	struct ucm_task *task;
	uint8_t *bytes;
	size_t len;

	bytes = lf_file(&lf_geometry, 0, FX_PACKED, &len);
	fx_put(lf_path("$/dir", 0), bytes, len);
	free(bytes);
	start(LAYER);
	lf_hold(UCM_IO_READ, 2); /* the header's, its own */
	task = submit(false, 0, 1, &request);
	give_up_held(task, 1, _i);
	stop_untouched();
}

/* What the device has begun is waited for; the rest starves meanwhile, and ends
 * at once. */
UNIT_TEST(a_load_is_given_up_while_it_is_copied, .rows = 2)
{
	struct ucm_task *task;

	plant(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	task = submit(false, 0, NUM, NULL);
	wait_device(SLOTS);
	give_up(task, _i);
	ck_assert_int_eq(ucm_task_wait(task, 20), -ETIMEDOUT);
	atomic_store(&device_holds, false);
	ended(task, 0, ends[_i].err);
	ck_assert_uint_eq(atomic_load(&device_jobs), SLOTS);
	/* and the next one finds room */
	ended(submit(false, 0, NUM, NULL), 0, 0);
	stop();
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
}

UNIT_TEST(starved_loads_go_on)
{
	struct ucm_task *tasks[2];

	plant(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	tasks[0] = submit(false, 0, NUM, NULL);
	tasks[1] = submit(false, 0, NUM, NULL);
	wait_device(SLOTS);
	atomic_store(&device_holds, false);
	ended(tasks[0], 0, 0);
	ended(tasks[1], 0, 0);
	stop();
}

/* Reads that hang have most of the memory, and one that found too little waits:
 * once it has been given up it must not keep small ones from the rest. */
UNIT_TEST(what_starved_and_was_given_up_is_in_nobodys_way)
{
	const struct ucm_geometry large = lf_geometry_of(4, 16, 8, 160);
	struct ucm_request layer = { .first_layer = 1, .num_layers = 1,
				     .verify = UCM_VERIFY_NONE };
	struct ucm_task *task;

	source.local = true; /* a file server never gets most of it */
	lf_cache_close(&cache);
	lf_cache_open(&cache, &large, NUM); /* 80 KiB a layer */
	use_cache();
	for (unsigned i = 0; i < 8; i++)
		lf_plant("$/dir", &large, i);
	start(1 << 20);
	lf_hold_at(UCM_IO_READ, 0, 1);
	task = submit(false, 0, 3, NULL);
	lf_wait_held(3); /* the window, and six units each */
	ucm_task_cancel(task);
	ended(task, 0, -ECANCELED);
	task = submit(false, 3, 3, NULL);
	lf_wait_held(5);
	ucm_task_cancel(task);
	ended(task, 0, -ECANCELED);
	ended(submit(false, 7, 1, &layer), 0, 0);
	ck_assert(lf_page_is(&cache, 0, 1, 2, 7));
	lf_release();
	stop();
}

/* Bytes have come, nobody has looked at them: they are not copied any more. */
UNIT_TEST(a_load_is_given_up_when_it_has_arrived, .rows = 2)
{
	struct ucm_task *task;
	unsigned jobs;

	source.local = true;
	plant(16);
	start(1 << 20);
	for (unsigned round = 0; round < 20; round++) {
		lf_hold(UCM_IO_READ, 0);
		task = submit(false, 0, 16, NULL);
		lf_wait_held(16);
		lf_release();
		give_up(task, _i);
		ck_assert_int_ne(ucm_task_wait(task, 20000), -ETIMEDOUT);
		ucm_task_free(task);
		jobs = atomic_load(&device_jobs);
		ended(submit(false, 100, 1, NULL), 0, -ENOENT);
		ck_assert_uint_eq(atomic_load(&device_jobs), jobs);
	}
	stop();
}

UNIT_TEST(a_device_may_fail)
{
	plant(4);
	start(1 << 20);
	atomic_store(&device_err, -EIO);
	ended(submit(false, 0, 4, NULL), 0, -EIO);
	fill(8);
	ended(submit(true, 4, 4, NULL), 0, -EIO);
	atomic_store(&device_err, 0);
	ended(submit(false, 0, 4, NULL), 0, 0);
	for (unsigned i = 4; i < 8; i++)
		ck_assert(!lf_saved("$/dir", &lf_geometry, i));
	stop();
}

UNIT_TEST(damage_does_not_reach_the_device)
{
	uint8_t *bytes;
	size_t len;

	bytes = lf_file(&lf_geometry, 0, FX_PAGED, &len);
	bytes[4096 + 2 * LAYER] ^= 1;
	fx_put(lf_path("$/dir", 0), bytes, len);
	free(bytes);
	start(1 << 20);
	ended(submit(false, 0, 1, NULL), 0, -EBADMSG);
	ck_assert_uint_eq(atomic_load(&device_jobs), 0);
	stop_untouched();
}

/* ---- a mount that goes ---- */

static const int gone[] = { -ENOTCONN, -ECONNABORTED, -ENODEV, -ESTALE };

UNIT_TEST(what_went_and_came_back_is_opened_anew, .rows = NUM_ROWS(gone))
{
	plant(4);
	start(1 << 20);
	atomic_store(&source.comes_back, true);
	ended(submit(false, 0, 4, NULL), 0, 0);
	lf_cache_clear(&cache);
	lf_fail(UCM_IO_READ, 1, gone[_i], true); /* the file is open */
	ended(submit(false, 0, 4, NULL), 0, 0);
	ck_assert_uint_eq(atomic_load(&source.losses), 1);
	source.once = true;
	atomic_store(&source.open_err, gone[_i]);
	ended(submit(false, 4, 1, NULL), 0, -ENOENT);
	ck_assert_uint_eq(atomic_load(&source.losses), 2);
	for (unsigned i = 1; i < 4; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	stop();
}

UNIT_TEST(what_went_for_good_fails, .rows = NUM_ROWS(gone))
{
	plant(NUM);
	start(1 << 20);
	/* the mount answers, but its files do not */
	atomic_store(&source.comes_back, _i % 2);
	ended(submit(false, 0, 4, NULL), 0, 0);
	lf_fail(UCM_IO_READ, 1, gone[_i], false);
	ended(submit(false, 0, NUM, NULL), 0, gone[_i]);
	lf_fail(UCM_IO_READ, 0, 0, false);
	atomic_store(&source.open_err, gone[_i]);
	ended(submit(false, 0, NUM, NULL), 0, gone[_i]);
	atomic_store(&source.open_err, 0);
	ended(submit(false, 0, NUM, NULL), 0, 0);
	stop();
}

static const int stale[] = { -ESTALE, -EBADF };

/* The directory is there, and so is the block. */
UNIT_TEST(a_stale_descriptor_is_replaced_once, .rows = NUM_ROWS(stale))
{
	plant(4);
	start(1 << 20);
	ended(submit(false, 0, 4, NULL), 0, 0);
	lf_cache_clear(&cache);
	lf_fail(UCM_IO_READ, 1, stale[_i], true);
	ended(submit(false, 0, 4, NULL), 0, 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	lf_fail(UCM_IO_READ, 1, stale[_i], false);
	ended(submit(false, 0, 4, NULL), 0, stale[_i]);
	stop();
}

/* Those that gave their memory back to be opened anew fail without it: whoever
 * waits for memory must hear of it all the same. */
UNIT_TEST(starved_loads_hear_of_memory_given_back)
{
	struct ucm_task *copying, *task;
	struct ucm_request layer = { .num_layers = 1 };

	plant(NUM);
	start(1 << 20);
	atomic_store(&source.comes_back, true);
	ended(submit(false, 0, 8, &layer), 0, 0); /* open, idle */
	atomic_store(&device_holds, true);
	copying = submit(false, 8, SLOTS - 4, NULL);
	wait_device(8 + SLOTS - 4);
	lf_hold(UCM_IO_READ, 0);
	lf_fail(UCM_IO_READ, 1, -ENOTCONN, false);
	task = submit(false, 0, 8, NULL); /* 4 of them starve */
	lf_wait_held(4);
	atomic_store(&source.open_err, -EIO);
	lf_release();
	ended(task, 0, -EIO);
	atomic_store(&source.open_err, 0);
	atomic_store(&device_holds, false);
	ended(copying, 0, 0);
	stop();
}

/* ---- marks that go while a file in memory is copied from ---- */

static const struct {
	bool goes, rotten;
	bool mapped; /* it is read the second time */
	int err;
	uint64_t unsummed; /* layers */
} marks[] = {
	{ false, false, false, 0, 4 },     { false, false, true, 0, 4 },
	{ true, false, false, 0, 0 },      { true, false, true, 0, 0 },
	{ true, true, false, -EBADMSG, 0 }, { true, true, true, -EBADMSG, 0 },
};

/* Its directory counts as one in memory, wherever the test runs. */
static void pretend_memory(void)
{
	struct ucm_given_dir *given = &engine.files.given[0];
	struct stat st;

	ck_assert_int_eq(fstat(source.fd, &st), 0);
	given->dir.memory = given->dir.quick = given->met = true;
	given->device = st.st_dev;
}

UNIT_TEST(a_mark_that_goes_meanwhile_does_not_count, .rows = NUM_ROWS(marks))
{
	struct ucm_request once = { .verify = UCM_VERIFY_ONCE }, all = { 0 };

	plant(1);
	source.local = true;
	copy_ops = &ucm_copy_host;
	start(1 << 20);
	pretend_memory();
	if (marks[_i].mapped)
		ended(submit(false, 0, 1, &all), 0, 0);
	mark_goes = marks[_i].goes;
	is_rotten = marks[_i].rotten;
	ended(submit(false, 0, 1, &once), 0, marks[_i].err);
	ck_assert_uint_eq(shared.stats.unsummed_bytes,
			  marks[_i].unsummed * LAYER);
	if (!marks[_i].err)
		ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
	stop();
}

/* ---- files that are open ---- */

static bool is_idle(void *arg)
{
	(void)arg;
	return !lf_open_files("/blocks/");
}

/* A block that was removed is open no longer than a moment. */
UNIT_TEST(files_do_not_stay_open)
{
	plant(4);
	idle_ns = 20 * 1000000;
	start(1 << 20);
	ended(submit(false, 0, 4, NULL), 0, 0);
	ck_assert_uint_gt(lf_open_files("/blocks/"), 0);
	fx_wait(is_idle, NULL);
	ended(submit(false, 0, 4, NULL), 0, 0);
	stop();
}

/* ---- the way of a save ---- */

static bool is_block(unsigned n)
{
	return lf_saved("$/dir", &lf_geometry, n);
}

static void stop_unsaved(unsigned num)
{
	stop();
	for (unsigned i = 0; i < num; i++)
		ck_assert(!is_block(i));
}

static const struct {
	off_t from;
	uint32_t read_bytes;
} steps[] = {
	{ 0, 1 << 20 },	      /* writing all at once */
	{ 3 * LAYER, LAYER }, /* a part of it */
	{ 0, LAYER },	      /* the header, last */
};

static void give_up_save(unsigned step, int row)
{
	struct ucm_task *task;

	fill(4);
	start(steps[step].read_bytes);
	lf_hold_at(UCM_IO_WRITE, steps[step].from, steps[step].from + 1);
	task = submit(true, 0, 4, NULL);
	lf_wait_held(4);
	give_up(task, row);
	ended(task, 0, ends[row].err);
	lf_cache_clear(&cache); /* the pages are the caller's again */
	lf_release();
	stop_unsaved(4);
}

UNIT_TEST(a_save_is_cancelled_at_each_step, .rows = NUM_ROWS(steps))
{
	give_up_save((unsigned)_i, 0);
}

UNIT_TEST(a_save_is_late_at_each_step, .rows = NUM_ROWS(steps))
{
	give_up_save((unsigned)_i, 1);
}

/* It ends before the calls of the source do. */
static void give_up_in_call(enum call call, int row)
{
	struct ucm_task *task;

	fill(4);
	start(1 << 20);
	pthread_mutex_lock(&calls[call].gate);
	task = submit(true, 0, 4, NULL);
	wait_calls(call);
	give_up(task, row);
	ended(task, 0, ends[row].err);
	lf_cache_clear(&cache);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(!is_block(i));
	pthread_mutex_unlock(&calls[call].gate);
}

UNIT_TEST(a_save_is_given_up_while_it_is_created, .rows = 2)
{
	give_up_in_call(CREATE, _i);
	stop_unsaved(4);
	ck_assert_uint_eq(atomic_load(&calls[COMMIT].made), 0);
}

/* The last step cannot be taken back: the block is whole, or not there. */
UNIT_TEST(a_save_is_given_up_while_it_is_committed, .rows = 2)
{
	give_up_in_call(COMMIT, _i);
	stop();
	for (unsigned i = 0; i < 4; i++)
		ck_assert(is_block(i));
}

/* Pages that the device reads are waited for; who has no memory yet ends at
 * once. */
UNIT_TEST(a_save_is_given_up_while_it_is_gathered, .rows = 2)
{
	struct ucm_task *task;

	fill(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	task = submit(true, 0, NUM, NULL);
	wait_device(SLOTS);
	give_up(task, _i);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20),
			 -ETIMEDOUT);
	atomic_store(&device_holds, false);
	ended(task, 0, ends[_i].err);
	lf_cache_clear(&cache);
	ck_assert_uint_eq(atomic_load(&device_jobs), SLOTS);
	stop_unsaved(NUM);
}

UNIT_TEST(hungry_saves_go_on)
{
	struct ucm_task *task;

	fill(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	task = submit(true, 0, NUM, NULL);
	wait_device(SLOTS);
	atomic_store(&device_holds, false);
	ended(task, 0, 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(is_block(i));
	stop();
}

static bool has_left(void *task)
{
	return !atomic_load(&((struct ucm_task *)task)->working);
}

/* The engine holds more of it than its part. */
static bool is_begun(void *task)
{
	return atomic_load(&((struct ucm_task *)task)->working) > 1;
}

/* It ends, and its group may go, while others before it wait. */
static void give_up_behind(struct ucm_task *task, int row)
{
	fx_wait(is_begun, task);
	give_up(task, row);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	fx_wait(has_left, task);
	ended(task, 0, ends[row].err);
}

UNIT_TEST(a_save_is_given_up_behind_hungry_ones, .rows = 2)
{
	struct ucm_task *task, *behind;

	fill(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	task = submit(true, 0, SLOTS + 2, NULL);
	wait_device(SLOTS);
	behind = submit(true, SLOTS + 2, 2, NULL);
	give_up_behind(behind, _i);
	atomic_store(&device_holds, false);
	ended(task, 0, 0);
	stop();
}

static struct ucm_buffer *start_buffered(void)
{
	struct ucm_buffer *buffer;
	struct ucm_error error;

	most_saves = 1;
	ck_assert_int_eq(ucm_buffer_open(4 << 20, &buffer, &error), 0);
	use_buffer = buffer;
	start(1 << 20);
	return buffer;
}

UNIT_TEST(a_save_is_given_up_in_the_middle_of_the_queue, .rows = 2)
{
	struct ucm_buffer *buffer = start_buffered();
	struct ucm_task *tasks[3];

	fill(3);
	lf_hold(UCM_IO_WRITE, 0);
	for (unsigned i = 0; i < 3; i++)
		tasks[i] = submit(true, i, 1, NULL);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(ucm_task_wait_copied(tasks[i], 20000), 0);
	lf_wait_held(1);
	give_up_behind(tasks[2], _i);
	ck_assert(!ucm_task_done(tasks[1]));
	lf_release();
	ended(tasks[0], 0, 0);
	ended(tasks[1], 0, 0);
	stop();
	ucm_buffer_close(buffer);
}

/* A load of blocks that are in the write buffer. */
static struct ucm_task *submit_kept(struct ucm_buffer *buffer, unsigned first,
				    unsigned num)
{
	struct ucm_task *task = make_task(false, first, num, NULL);

	task->kept = calloc(num, sizeof(*task->kept));
	for (unsigned i = 0; i < num; i++) {
		task->kept[i] = ucm_buffer_get(buffer, 4 * LAYER);
		task->kept[i]->payload = task->kept[i]->slot.memory;
		memset(task->kept[i]->payload, 0, 4 * LAYER);
	}
	return post(task);
}

UNIT_TEST(a_load_is_given_up_behind_others_from_the_buffer, .rows = 2)
{
	struct ucm_buffer *buffer = start_buffered();
	struct ucm_task *task, *behind;

	atomic_store(&device_holds, true);
	task = submit_kept(buffer, 0, SLOTS + 1);
	wait_device(SLOTS);
	behind = submit_kept(buffer, SLOTS + 1, 1);
	give_up_behind(behind, _i);
	atomic_store(&device_holds, false);
	ended(task, 0, 0);
	stop();
	ucm_buffer_close(buffer);
}

UNIT_TEST(a_save_is_given_up_while_it_waits_for_its_turn, .rows = 2)
{
	struct ucm_task *first, *second, *third;

	fill(4);
	start(1 << 20);
	lf_hold(UCM_IO_WRITE, 0);
	first = submit(true, 0, 4, NULL);
	lf_wait_held(4);
	second = submit(true, 0, 4, NULL);
	third = submit(true, 0, 4, NULL);
	give_up(second, _i);
	ended(second, 0, ends[_i].err);
	ck_assert(!ucm_task_done(first));
	lf_release();
	ended(first, 0, 0);
	ended(third, 0, 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(is_block(i));
	stop();
}

/* Others that come later need not wait, and are committed meanwhile. */
UNIT_TEST(a_commit_waits_for_saves_that_wait_for_events)
{
	struct ucm_request held = { .hold = 1, .after = &event_comes };
	struct ucm_task *save, *commit;

	fill(4);
	start(1 << 20);
	atomic_store(&event_comes, false);
	save = submit(true, 0, 2, &held);
	commit = submit_commit(0, 2);
	ended(submit(true, 2, 2, NULL), 0, 0);
	ck_assert(!ucm_task_done(save));
	ck_assert(!ucm_task_done(commit));
	atomic_store(&event_comes, true);
	ended(save, 0, 0);
	ended(commit, 0, 0);
	ck_assert(is_block(0) && is_block(1));
	stop();
}

/* What was to be committed has not been saved then. */
UNIT_TEST(a_commit_does_not_wait_for_what_was_given_up, .rows = 2)
{
	struct ucm_request held = { .hold = 1, .after = &event_comes };
	struct ucm_task *save, *commit;

	fill(2);
	start(1 << 20);
	atomic_store(&event_comes, false);
	save = submit(true, 0, 2, &held);
	commit = submit_commit(0, 2);
	give_up(save, _i);
	ended(save, 0, ends[_i].err);
	ended(commit, 0, -ENOENT);
	stop_unsaved(2);
}

/* Though all of it was written. */
UNIT_TEST(a_failed_write_leaves_no_block)
{
	fill(1);
	start(1 << 20);
	lf_fail(UCM_IO_WRITE, 1, -EIO, true);
	ended(submit(true, 0, 1, NULL), 0, -EIO);
	stop();
	ck_assert_int_eq(access(lf_path("$/dir", 0), F_OK), -1);
	ck_assert_int_eq(errno, ENOENT);
	ck_assert_uint_eq(atomic_load(&calls[COMMIT].made), 0);
}

/* ---- refusals ---- */

enum refuser { CREATING, WRITING, COMMITTING };

static const struct {
	enum refuser by;
	int err, outcome;
} refused[] = {
	{ CREATING, -ENOSPC, -ENOSPC },
	{ CREATING, -EDQUOT, -EDQUOT },
	{ CREATING, -EEXIST, 0 },
	{ CREATING, -ENOTCONN, -ENOTCONN },
	{ WRITING, -ENOSPC, -ENOSPC },
	{ WRITING, -EIO, -EIO },
	{ COMMITTING, -ENOSPC, -ENOSPC },
	{ COMMITTING, -EDQUOT, -EDQUOT },
	{ COMMITTING, -ENOTCONN, -ENOTCONN },
};

static void refuse(enum refuser by, int err)
{
	if (by == WRITING)
		lf_fail(UCM_IO_WRITE, 1, err, true);
	else
		atomic_store(&calls[by == CREATING ? CREATE : COMMIT].refusal,
			     err);
}

UNIT_TEST(a_save_is_refused, .rows = NUM_ROWS(refused))
{
	struct ucm_task *task;

	fill(1);
	start(1 << 20);
	refuse(refused[_i].by, refused[_i].err);
	task = submit(true, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait(task, 20000),
			 refused[_i].outcome ? -EIO : 0);
	ck_assert_int_eq(ucm_task_outcomes(task)->err, refused[_i].outcome);
	ck_assert_int_eq(ucm_task_outcomes(task)->skipped,
			 refused[_i].err == -EEXIST);
	ucm_task_free(task);
	ck_assert_uint_eq(atomic_load(&source.losses),
			  refused[_i].err == -ENOTCONN);
	ck_assert(!is_block(0));
	ended(submit(true, 0, 1, NULL), 0, 0);
	ck_assert(is_block(0));
	stop();
}

/* What is there is left as it is. */
UNIT_TEST(a_block_that_is_there_is_skipped)
{
	struct ucm_task *task;

	plant(1);
	fill(1);
	start(1 << 20);
	task = submit(true, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ck_assert_int_eq(ucm_task_outcomes(task)->skipped, 1);
	ucm_task_free(task);
	stop();
	ck_assert(is_block(0));
	ck_assert_uint_eq(atomic_load(&calls[COMMIT].made), 0);
}

/* ---- groups ---- */

static void *add_another(void *arg)
{
	ck_assert_int_eq(ucm_engine_add_group(&engine, arg), 0);
	return NULL;
}

static bool adds(void *arg)
{
	(void)arg;
	return atomic_load(&is_adding);
}

/* A submit while another group's pages are pinned, which may take seconds. */
UNIT_TEST(a_group_that_takes_long_holds_up_no_submit)
{
	struct ucm_task *task;
	pthread_t thread;

	plant(4);
	start(1 << 20);
	pthread_mutex_lock(&adding_gate);
	atomic_store(&is_adding, false);
	ck_assert_int_eq(pthread_create(&thread, NULL, add_another, &group), 0);
	fx_wait(adds, NULL);
	task = submit(false, 0, 4, NULL);
	pthread_mutex_unlock(&adding_gate);
	pthread_join(thread, NULL);
	ck_assert_int_eq(ucm_task_wait(task, 10000), 0);
	ucm_task_free(task);
	ucm_engine_stop(&engine);
	ucm_engine_close(&engine);
}
