/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.c - the calls of <ucm/load.h> on a loader: options, groups, submits.
 *
 * A request is checked here as a whole, made a task, and shared out: of loads
 * each block to the engine that has the least to read, saves by their ids, so
 * that one block is always written by one engine.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucm/control.h>
#include <ucm/space.h>

#include "common/align.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/sized.h"
#include "gpu/load/abandon.h"
#include "gpu/load/buffer.h"
#include "gpu/load/engine.h"
#include "gpu/load/iobudget.h"
#include "gpu/load/limits.h"
#include "gpu/ring/arena.h"

#define MAX_THREADS 64 /* a byte tells one */
#define MAX_GROUPS 256 /* at a time */
#define MOST_USES (UINT32_MAX / MAX_GROUPS) /* of a place in the table */
#define GRACE_MS 1000
#define DEFAULT_STAGING ((uint64_t)256 << 20)
#define SAVES 4 /* times the staging memory, wait */
#define READ ((uint32_t)4 << 20)
#define DEFAULT_FILES 256u
#define IDLE_NS (INT64_C(10) * 1000000000)
#define STAGING_IDLE_NS (INT64_C(60) * 1000000000)
#define MOST_FILES 8192u
#define LEAST_STAGING ((uint64_t)4 << 20)

struct ucm_loader {
	struct ucm_shared shared;
	unsigned num_engines;
	struct ucm_engine **engines;
	pthread_mutex_t lock; /* one group is added or removed at a time */
	pthread_mutex_t table_lock; /* guards these, and is never kept long */
	struct ucm_group *groups[MAX_GROUPS];
	uint32_t uses[MAX_GROUPS]; /* groups that had the place before */
};

/* ---- open ---- */

const struct ucm_source_ops *ucm_loader_source;

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
	return value ? value : otherwise;
}

static unsigned default_threads(void)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	return cores < 2 ? 1 : cores < 8 ? 2 : 4;
}

/* The program needs some, too. */
static unsigned half_of_descriptors(void)
{
	struct rlimit limit = { .rlim_cur = 0 };

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > 2 * MOST_FILES)
		return MOST_FILES;
	return (unsigned)limit.rlim_cur / 2;
}

/* No more than can be had. */
static unsigned load_files(const struct ucm_loader_options *options)
{
	uint64_t files = or_default(options->open_files, DEFAULT_FILES);
	unsigned most = half_of_descriptors();

	return files < most ? (unsigned)files : most;
}

/* Blocks are not shared out evenly to the last one (least_of()). */
static unsigned files_of_each(unsigned files, unsigned threads)
{
	unsigned each = files / threads;

	return each + (threads > 1 ? each / 8 : 0) + 1;
}

static int choose_copy(struct ucm_shared *shared,
		       const struct ucm_loader_options *options,
		       struct ucm_error *error)
{
	switch (options->copy) {
	case UCM_COPY_HOST:
		shared->copy_ops = &ucm_copy_host;
		return 0;
	case UCM_COPY_CUDA:
#ifdef HAVE_CUDA
		shared->copy_ops = &ucm_copy_cuda;
		return 0;
#else
		return ucm_error_set(error, -ENOTSUP,
				     "this library was built without CUDA");
#endif
	}
	return ucm_error_set(error, -EINVAL, "copy %d: unknown",
			     (int)options->copy);
}

/* Where the device is, whose reads and writes need not cross the processors. */
static int choose_node(const struct ucm_shared *shared)
{
	const struct ucm_copy_ops *ops = shared->copy_ops;
	int node = ops->node ? ops->node(&shared->copy_options) : -1;

	return ucm_arena_has_node(node) ? node : -1;
}

/* Memory, windows and files, which the threads share out. */
static void set_sizes(struct ucm_shared *shared,
		      const struct ucm_loader_options *options,
		      const struct ucm_loader_limits *limits, unsigned threads)
{
	uint64_t staging = or_default(options->staging_bytes, DEFAULT_STAGING);
	uint64_t read = or_default(limits->read_bytes, READ);

	if (staging / threads < LEAST_STAGING)
		staging = threads * LEAST_STAGING;
	shared->staging_bytes = staging / threads;
	shared->window_bytes = limits->window_bytes / threads;
	if (read > shared->staging_bytes / 4)
		read = shared->staging_bytes / 4;
	shared->read_bytes = (uint32_t)read;
	shared->open_files = files_of_each(load_files(options), threads);
	shared->idle_ns = IDLE_NS;
	shared->staging_idle_ns = STAGING_IDLE_NS;
	shared->most_files = half_of_descriptors() / threads;
	shared->most_saves = half_of_descriptors() / 4 / threads + 1;
	shared->save_budget = or_default(limits->save_bytes, SAVES * staging);
}

static int set_up(struct ucm_loader *loader,
		  const struct ucm_loader_options *options,
		  const struct ucm_loader_limits *limits,
		  struct ucm_error *error)
{
	struct ucm_shared *shared = &loader->shared;
	unsigned threads = (unsigned)or_default(options->threads,
						default_threads());
	int err;

	if (!options->mount == !options->tiers)
		return ucm_error_set(error, -EINVAL,
				     "either mount or tiers must be given");
	if (options->io > UCM_IO_THREADS)
		return ucm_error_set(error, -EINVAL, "io %d: unknown",
				     (int)options->io);
	if (threads > MAX_THREADS)
		return ucm_error_set(error, -EINVAL, "%u threads: at most %u",
				     threads, MAX_THREADS);
	shared->source_ops =
		options->tiers ? &ucm_source_tiers : &ucm_source_socket;
	if (ucm_loader_source)
		shared->source_ops = ucm_loader_source;
	shared->copy_options = (struct ucm_copy_options){
		.device = options->device,
		.stream = options->stream,
	};
	shared->io = options->io;
	set_sizes(shared, options, limits, threads);
	loader->engines = calloc(threads, sizeof(*loader->engines));
	if (!loader->engines)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	err = choose_copy(shared, options, error);
	if (err)
		return err;
	shared->node = choose_node(shared);
	return (int)threads;
}

static int start_engines(struct ucm_loader *loader, unsigned threads,
			 struct ucm_error *error)
{
	for (unsigned i = 0; i < threads; i++) {
		struct ucm_engine *engine = calloc(1, sizeof(*engine));
		int err =
			engine ? ucm_engine_start(engine, &loader->shared, i,
						  error)
			       : ucm_error_set(error, -ENOMEM, "out of memory");

		if (err) {
			free(engine);
			return err;
		}
		loader->engines[loader->num_engines++] = engine;
	}
	return 0;
}

/* Those who have the same mount, or the same tiers, see each other's blocks. */
static int open_buffer(struct ucm_shared *shared,
		       const struct ucm_loader_options *options,
		       struct ucm_error *error)
{
	const char *text = options->mount ? options->mount : options->tiers;
	char *path = options->mount ? realpath(options->mount, NULL) : NULL;
	int err = ucm_buffer_open(options->write_buffer_bytes, &shared->buffer,
				  error);

	if (!err) {
		shared->buffer_home =
			ucm_buffer_home(shared->buffer, path ? path : text);
		if (!shared->buffer_home)
			err = ucm_error_set(error, -ENOMEM, "out of memory");
	}
	free(path);
	return err;
}

static int open_budget(struct ucm_shared *shared,
		       const struct ucm_loader_options *options,
		       const struct ucm_loader_limits *limits,
		       struct ucm_error *error)
{
	const struct ucm_limits own = {
		.rate = options->budget,
		.in_flight = limits->in_flight,
	};

	return ucm_iobudget_open(&own, options->mount, &shared->budget, error);
}

int ucm_loader_open_within(const struct ucm_loader_options *options,
			   const struct ucm_loader_limits *limits,
			   struct ucm_loader **out, struct ucm_error *error)
{
	struct ucm_loader_options own;
	struct ucm_loader *loader;
	int threads, err;

	err = ucm_sized_take(&own, sizeof(own), options,
			     offsetof(struct ucm_loader_options, copy),
			     "ucm_loader_options", error);
	if (err)
		return err;
	loader = calloc(1, sizeof(*loader));
	if (!loader)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	pthread_mutex_init(&loader->lock, NULL);
	pthread_mutex_init(&loader->table_lock, NULL);
	threads = err = set_up(loader, &own, limits, error);
	if (threads > 0)
		err = loader->shared.source_ops->open(
			own.tiers ? own.tiers : own.mount,
			&loader->shared.source, error);
	if (!err && own.write_buffer_bytes)
		err = open_buffer(&loader->shared, &own, error);
	if (!err)
		err = open_budget(&loader->shared, &own, limits, error);
	if (!err && own.mount)
		err = ucm_hints_open(own.mount, &loader->shared.hints, error);
	if (!err)
		err = start_engines(loader, (unsigned)threads, error);
	if (err) {
		ucm_loader_close(loader);
		return err;
	}
	*out = loader;
	return 0;
}

int ucm_loader_open(const struct ucm_loader_options *options,
		    struct ucm_loader **out, struct ucm_error *error)
{
	static const struct ucm_loader_limits none;

	return ucm_loader_open_within(options, &none, out, error);
}

void ucm_loader_close(struct ucm_loader *loader)
{
	if (!loader)
		return;
	for (unsigned i = 0; i < loader->num_engines; i++)
		ucm_engine_stop(loader->engines[i]);
	for (unsigned i = 0; i < loader->num_engines; i++) {
		ucm_engine_close(loader->engines[i]);
		free(loader->engines[i]);
	}
	ucm_iobudget_close(loader->shared.budget);
	ucm_hints_close(loader->shared.hints);
	if (loader->shared.source)
		loader->shared.source_ops->close(loader->shared.source);
	ucm_buffer_close(loader->shared.buffer);
	for (unsigned i = 0; i < MAX_GROUPS; i++) {
		if (loader->groups[i])
			ucm_group_put(loader->groups[i]);
	}
	pthread_mutex_destroy(&loader->lock);
	pthread_mutex_destroy(&loader->table_lock);
	free(loader->engines);
	free(loader);
}

/* ---- groups ---- */

static int new_group(struct ucm_loader *loader, const struct ucm_layout *layout,
		     const char *space, struct ucm_group **out,
		     struct ucm_error *error)
{
	const struct ucm_geometry *g = &layout->geometry;
	uint64_t most = loader->shared.staging_bytes / 2;
	struct ucm_block block = { .geometry = *g, .form = UCM_FORM_PAGED };
	struct ucm_group *group;

	if (!layout->layer_first)
		return ucm_error_set(error, -EINVAL,
				     "the layout is not sealed");
	if (*space && !ucm_tree_space_valid(space))
		return ucm_error_set(error, -EINVAL, "space '%s': no name",
				     space);
	if (ucm_layout_layer_bytes(layout) +
		    ucm_block_data_offset(g->num_layers) > most)
		return ucm_error_set(
			error, -EFBIG,
			"a header of %" PRIu32 " and a layer of %" PRIu64
			" bytes: the staging memory of a thread holds "
			"%" PRIu64,
			ucm_block_data_offset(g->num_layers),
			ucm_layout_layer_bytes(layout), most);
	group = calloc(1, sizeof(*group));
	if (!group || ucm_layout_copy(layout, &group->layout)) {
		free(group);
		return ucm_error_set(error, -ENOMEM, "out of memory");
	}
	snprintf(group->space, sizeof(group->space), "%s", space);
	group->layer_bytes = ucm_layout_layer_bytes(layout);
	group->payload_bytes = ucm_block_payload_bytes(g);
	group->data_offset = ucm_block_data_offset(g->num_layers);
	block.data_offset = group->data_offset;
	group->file_size = ucm_block_file_size(&block);
	*out = group;
	return 0;
}

/* A place that no group has, if not too many have had it. */
static int find_place(const struct ucm_loader *loader, unsigned *out)
{
	for (unsigned i = 0; i < MAX_GROUPS; i++) {
		if (!loader->groups[i] && loader->uses[i] < MOST_USES) {
			*out = i;
			return 0;
		}
	}
	return -ENOSPC;
}

static void enter_table(struct ucm_loader *loader, struct ucm_group *group)
{
	pthread_mutex_lock(&loader->table_lock);
	loader->groups[group->number] = group;
	pthread_mutex_unlock(&loader->table_lock);
}

/* Engines learn of it one by one; nobody uses it before the last one has. Where
 * one refuses it, those that know it forget it again. */
static int publish(struct ucm_loader *loader, struct ucm_group *group,
		   struct ucm_error *error)
{
	unsigned told = 0;
	int err = find_place(loader, &group->number);

	if (err)
		return ucm_error_set(error, err,
				     "a loader has %d groups at most",
				     MAX_GROUPS);
	group->id = loader->uses[group->number] * MAX_GROUPS + group->number;
	while (told < loader->num_engines && !err) {
		err = ucm_engine_add_group(loader->engines[told], group);
		told += !err;
	}
	if (!err) {
		enter_table(loader, group);
		return 0;
	}
	while (told--)
		ucm_engine_remove_group(loader->engines[told], group);
	return ucm_error_set(error, err, "group %u: %s", group->id,
			     strerror(-err));
}

/* The mount may have come back since it was last looked at. */
static int check_space(struct ucm_shared *shared, const char *space)
{
	const struct ucm_source_ops *ops = shared->source_ops;
	int err = ops->check_space(shared->source, space);

	if (ucm_is_lost(err) && ops->lost(shared->source))
		err = ops->check_space(shared->source, space);
	return err;
}

int ucm_loader_add_group(struct ucm_loader *loader,
			 const struct ucm_layout *layout, const char *space,
			 unsigned *group_out, struct ucm_error *error)
{
	struct ucm_shared *shared = &loader->shared;
	struct ucm_group *group = NULL;
	int err;

	space = space ? space : "";
	err = new_group(loader, layout, space, &group, error);
	if (err)
		return err;
	err = check_space(shared, space);
	if (err)
		ucm_error_set(error, err, "space '%s': %s", space,
			      strerror(-err));
	pthread_mutex_lock(&loader->lock);
	if (!err)
		err = publish(loader, group, error);
	pthread_mutex_unlock(&loader->lock);
	if (err)
		ucm_group_put(group);
	else
		*group_out = group->id;
	return err;
}

/* With the lock of the table. NULL: there is none of that id (any more). */
static struct ucm_group *find_group(struct ucm_loader *loader, unsigned id)
{
	struct ucm_group *group = loader->groups[id % MAX_GROUPS];

	return group && group->id == id ? group : NULL;
}

/* It is not removed until it is let go of. NULL: unknown. */
static struct ucm_group *use_group(struct ucm_loader *loader, unsigned id)
{
	struct ucm_group *group;

	pthread_mutex_lock(&loader->table_lock);
	group = find_group(loader, id);
	if (group)
		atomic_fetch_add(&group->users, 1);
	pthread_mutex_unlock(&loader->table_lock);
	return group;
}

static void leave_group(struct ucm_group *group)
{
	atomic_fetch_sub(&group->users, 1);
}

/* ---- groups that go ---- */

/* Out of the table, if nobody uses it. -EAGAIN: only threads of ours do, who
 * may be about to let go of it. */
static int leave_table(struct ucm_loader *loader, unsigned id,
		       struct ucm_group **out)
{
	struct ucm_group *group;
	int err = 0;

	pthread_mutex_lock(&loader->table_lock);
	group = find_group(loader, id);
	if (!group) {
		err = -EINVAL;
	} else if (atomic_load(&group->tasks)) {
		err = -EBUSY;
	} else if (atomic_load(&group->users)) {
		err = -EAGAIN;
	} else {
		loader->groups[group->number] = NULL;
		loader->uses[group->number]++;
		*out = group;
	}
	pthread_mutex_unlock(&loader->table_lock);
	return err;
}

/* Parts of tasks that are done are put away when their threads look at them
 * next. I/O that came too late takes as long as it takes. */
static int withdraw(struct ucm_loader *loader, unsigned id,
		    struct ucm_group **out)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	int64_t end_ms = ucm_monotonic_ms() + GRACE_MS;
	int err;

	while ((err = leave_table(loader, id, out)) == -EAGAIN &&
	       ucm_monotonic_ms() < end_ms) {
		for (unsigned i = 0; i < loader->num_engines; i++)
			ucm_engine_wake(loader->engines[i]);
		nanosleep(&moment, NULL);
	}
	return err;
}

int ucm_loader_remove_group(struct ucm_loader *loader, unsigned group,
			    struct ucm_error *error)
{
	struct ucm_group *gone;
	int err;

	pthread_mutex_lock(&loader->lock);
	err = withdraw(loader, group, &gone);
	for (unsigned i = 0; !err && i < loader->num_engines; i++)
		ucm_engine_remove_group(loader->engines[i], gone);
	pthread_mutex_unlock(&loader->lock);
	switch (err) {
	case 0:
		ucm_group_put(gone);
		return 0;
	case -EINVAL:
		return ucm_error_set(error, err, "group %u: unknown", group);
	case -EBUSY:
		return ucm_error_set(error, err,
				     "group %u: tasks of it are not done",
				     group);
	default:
		return ucm_error_set(error, -EBUSY,
				     "group %u: I/O of tasks that have ended is "
				     "still under way", group);
	}
}

/* ---- what is to come ---- */

void ucm_loader_prefetch(struct ucm_loader *loader, unsigned group,
			 const struct ucm_id *ids, size_t num)
{
	struct ucm_group *of = use_group(loader, group);

	if (!of)
		return;
	ucm_hints_add(loader->shared.hints, UCM_HINT_WANTED, of->space, ids,
		      num);
	leave_group(of);
}

/* ---- lookup ---- */

/* So that they are there when they are loaded. */
static void expect_found(struct ucm_loader *loader,
			 const struct ucm_group *group,
			 const struct ucm_id *ids, size_t num,
			 const uint8_t *found)
{
	struct ucm_id *some = malloc(num * sizeof(*some));
	size_t num_found = 0;

	for (size_t i = 0; i < num && some; i++) {
		if (found[i])
			some[num_found++] = ids[i];
	}
	ucm_hints_add(loader->shared.hints, UCM_HINT_EXPECTED, group->space,
		      some, num_found);
	free(some);
}

/* ---- in the write buffer ---- */

static bool is_buffered(const struct ucm_shared *shared,
			const struct ucm_group *group, const struct ucm_id *id)
{
	struct ucm_buffered *kept = ucm_buffer_find(
		shared->buffer, shared->buffer_home, group, id);

	ucm_buffered_put(kept);
	return kept;
}

static bool has_buffered(const struct ucm_shared *shared)
{
	return shared->buffer && !ucm_buffer_is_empty(shared->buffer);
}

/* Before the source is asked: a block can be found there when it leaves the
 * buffer. NULL: none, or no memory for it. */
static uint8_t *lookup_buffered(const struct ucm_shared *shared,
				const struct ucm_group *group,
				const struct ucm_id *ids, size_t num)
{
	uint8_t *found = has_buffered(shared) ? malloc(num + 1) : NULL;

	for (size_t i = 0; found && i < num; i++)
		found[i] = is_buffered(shared, group, &ids[i]);
	return found;
}

/* What the source has, and then what the buffer has, and so on. */
static int loader_prefix(struct ucm_shared *shared,
			 const struct ucm_group *group,
			 const struct ucm_id *ids, size_t num, size_t *count_out)
{
	uint8_t *kept = lookup_buffered(shared, group, ids, num);
	size_t at = 0, before, some;
	int err = 0;

	do {
		before = at;
		some = 0;
		err = ucm_source_prefix(shared->source_ops, shared->source,
					group->space, ids + at, num - at,
					&some);
		if (err)
			break;
		at += some;
		while (kept && at < num && kept[at])
			at++;
	} while (kept && at < num && at > before + some);
	free(kept);
	if (!err)
		*count_out = at;
	return err;
}

int ucm_loader_lookup(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, uint8_t *found)
{
	struct ucm_group *of = use_group(loader, group);
	struct ucm_shared *shared = &loader->shared;
	uint8_t *kept;
	int err;

	if (!of)
		return -EINVAL;
	kept = lookup_buffered(shared, of, ids, num);
	err = ucm_source_lookup(shared->source_ops, shared->source, of->space,
				ids, num, found);
	for (size_t i = 0; kept && !err && i < num; i++)
		found[i] |= kept[i];
	free(kept);
	if (!err)
		expect_found(loader, of, ids, num, found);
	leave_group(of);
	return err;
}

int ucm_loader_prefix(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, size_t *count_out)
{
	struct ucm_group *of = use_group(loader, group);
	struct ucm_shared *shared = &loader->shared;
	int err;

	if (!of)
		return -EINVAL;
	err = loader_prefix(shared, of, ids, num, count_out);
	if (!err)
		ucm_hints_add(loader->shared.hints, UCM_HINT_EXPECTED,
			      of->space, ids, *count_out);
	leave_group(of);
	return err;
}

static int remove_block(struct ucm_shared *shared, const char *space,
			const struct ucm_id *id)
{
	const struct ucm_source_ops *ops = shared->source_ops;

	return ops->remove ? ops->remove(shared->source, space, id)
			   : -EOPNOTSUPP; /* it is only read */
}

int ucm_loader_remove(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, int32_t *results)
{
	struct ucm_group *of = use_group(loader, group);
	struct ucm_shared *shared = &loader->shared;

	if (!of)
		return -EINVAL;
	for (size_t i = 0; i < num; i++)
		results[i] = remove_block(shared, of->space, &ids[i]);
	leave_group(of);
	return 0;
}

/* ---- submit ---- */

enum kind { LOAD, SAVE, COMMIT };

static int check_request(const struct ucm_group *group,
			 const struct ucm_request *request, enum kind kind,
			 struct ucm_error *error)
{
	uint32_t layers = group->layout->geometry.num_layers;

	if (request->first_layer >= layers ||
	    request->num_layers > layers - request->first_layer)
		return ucm_error_set(error, -EINVAL,
				     "layers %" PRIu32 " + %" PRIu32
				     ": the group has %" PRIu32,
				     request->first_layer, request->num_layers,
				     layers);
	if (request->num_blocks > UINT32_MAX ||
	    (request->num_blocks && !request->blocks))
		return ucm_error_set(error, -EINVAL, "%zu blocks",
				     request->num_blocks);
	if (request->verify > UCM_VERIFY_ONCE ||
	    request->order > UCM_LOAD_LAYERS ||
	    request->priority > UCM_LOAD_PREFETCH ||
	    request->lend > UCM_LEND_ALWAYS)
		return ucm_error_set(error, -EINVAL,
				     "verify %d, order %d, priority %d, lend "
				     "%d: unknown",
				     (int)request->verify, (int)request->order,
				     (int)request->priority,
				     (int)request->lend);
	if (request->addresses || kind == COMMIT)
		return 0;
	for (size_t i = 0; i < request->num_blocks; i++) {
		if (request->blocks[i].page >= group->layout->num_pages)
			return ucm_error_set(error, -EINVAL,
					     "block %zu: page %" PRIu32
					     " of %" PRIu64,
					     i, request->blocks[i].page,
					     group->layout->num_pages);
	}
	return 0;
}

/* Which engine an id belongs to, for saves; loads find a file open there, if
 * it was asked for before. */
static unsigned home_of(const struct ucm_task *task, size_t block)
{
	uint32_t hash;

	memcpy(&hash, task->blocks[block].id.bytes + 8, sizeof(hash));
	return hash % task->num_parts;
}

static uint64_t bytes_of(const struct ucm_task *task)
{
	return (task->end_layer - task->first_layer) *
	       task->group->layer_bytes;
}

/* The one with the least to read; its home, if that has hardly more: to open a
 * file anew costs more than to wait a little longer in a long queue. */
static unsigned least_of(const uint64_t *bytes, const struct ucm_task *task,
			 size_t block)
{
	unsigned home = home_of(task, block), least = home;

	for (unsigned i = 0; i < task->num_parts; i++) {
		if (bytes[i] < bytes[least])
			least = i;
	}
	return bytes[home] - bytes[least] <= bytes[least] / 16 ? home : least;
}

/* The engine of each block, num of them. */
static void choose_engines(struct ucm_loader *loader,
			   const struct ucm_task *task, uint8_t *chosen,
			   unsigned *num)
{
	uint64_t bytes[MAX_THREADS];

	for (unsigned i = 0; i < task->num_parts; i++)
		bytes[i] = atomic_load_explicit(&loader->engines[i]->load_bytes,
						memory_order_relaxed);
	for (size_t i = 0; i < task->num_blocks; i++) {
		unsigned engine = task->is_save ? home_of(task, i)
						: least_of(bytes, task, i);

		bytes[engine] += bytes_of(task);
		chosen[i] = (uint8_t)engine;
		num[engine]++;
	}
}

static int make_parts(struct ucm_loader *loader, struct ucm_task *task,
		      const uint8_t *chosen, const unsigned *num)
{
	task->engines = loader->engines;
	task->wake = ucm_engine_wake;
	if (loader->shared.copy_ops->join)
		task->join = ucm_engine_join;
	for (unsigned i = 0; i < task->num_parts; i++) {
		struct ucm_part *part = &task->parts[i];

		part->task = task;
		part->blocks = calloc(num[i] ? num[i] : 1,
				      sizeof(*part->blocks));
		if (!part->blocks)
			return -ENOMEM;
	}
	for (size_t i = 0; i < task->num_blocks; i++) {
		struct ucm_part *part = &task->parts[chosen[i]];

		part->blocks[part->num_blocks++] = (uint32_t)i;
	}
	return 0;
}

static int share_out(struct ucm_loader *loader, struct ucm_task *task)
{
	uint8_t *chosen = malloc(task->num_blocks ? task->num_blocks : 1);
	unsigned num[MAX_THREADS] = { 0 };
	int err;

	if (!chosen)
		return -ENOMEM;
	choose_engines(loader, task, chosen, num);
	err = make_parts(loader, task, chosen, num);
	free(chosen);
	return err;
}

/* Blocks over the budget of waiting saves are dropped here and now; but a request
 * that finds none waiting is taken as a whole. */
static void admit_saves(struct ucm_shared *shared, struct ucm_task *task)
{
	const struct ucm_outcome dropped = { .err = -ENOBUFS };
	bool alone = !atomic_load(&shared->save_waiting);
	uint64_t bytes = bytes_of(task);

	for (size_t i = 0; i < task->num_blocks; i++) {
		uint64_t before =
			atomic_fetch_add(&shared->save_waiting, bytes);

		if (alone || before + bytes <= shared->save_budget)
			continue;
		atomic_fetch_sub(&shared->save_waiting, bytes);
		task->blocks[i].dropped = true;
		ucm_task_decide(task, (uint32_t)i, &dropped);
		ucm_add(&shared->stats.save_dropped, 1);
	}
}

static void post(struct ucm_loader *loader, struct ucm_task *task)
{
	ucm_task_get(task); /* it may be done before we are */
	for (unsigned i = 0; i < task->num_parts; i++) {
		if (!task->parts[i].num_blocks)
			continue;
		ucm_task_get(task);
		if (!task->is_save)
			ucm_add(&loader->engines[i]->load_bytes,
				task->parts[i].num_blocks * bytes_of(task));
		ucm_engine_post(loader->engines[i], &task->parts[i]);
	}
	ucm_task_ready(task);
	ucm_task_put(task);
}

/* What is read or written at a time must fit the staging memory. */
static void fit_staging(const struct ucm_loader *loader,
			const struct ucm_group *group,
			struct ucm_request *request)
{
	uint64_t most = loader->shared.staging_bytes / 4 / group->layer_bytes;

	if (!most)
		most = 1;
	if (request->group_layers > most)
		request->group_layers = (uint32_t)most;
}

/* What is in the write buffer is copied from there. Without memory for that it
 * is read, if its file is there already. */
static void take_buffered(struct ucm_shared *shared, struct ucm_task *task)
{
	task->kept = calloc(task->num_blocks + 1,
			    sizeof(*task->kept));
	for (size_t i = 0; task->kept && i < task->num_blocks; i++)
		task->kept[i] = ucm_buffer_find(shared->buffer,
						shared->buffer_home,
						task->group,
						&task->blocks[i].id);
}

/* Of a request that is whole, for a group that does not go meanwhile. */
static int submit_to(struct ucm_loader *loader, struct ucm_group *group,
		     struct ucm_request *request, enum kind kind,
		     struct ucm_task **out, struct ucm_error *error)
{
	struct ucm_task *task;
	int err = check_request(group, request, kind, error);

	if (err)
		return err;
	if (request->after && !loader->shared.copy_ops->reached)
		return ucm_error_set(error, -EINVAL,
				     "after: pages of the host have no events");
	fit_staging(loader, group, request);
	err = ucm_task_new(request, group, kind != LOAD, loader->num_engines,
			   loader->shared.read_bytes, 1, &task);
	if (!err) {
		err = share_out(loader, task);
		if (err)
			ucm_task_drop(task);
	}
	if (err)
		return ucm_error_set(error, err, "out of memory");
	task->is_commit = kind == COMMIT;
	if (kind == LOAD && has_buffered(&loader->shared))
		take_buffered(&loader->shared, task);
	if (kind == SAVE)
		admit_saves(&loader->shared, task);
	*out = task; /* before on_done can run */
	post(loader, task);
	return 0;
}

static int submit(struct ucm_loader *loader, const struct ucm_request *request,
		  enum kind kind, struct ucm_task **out,
		  struct ucm_error *error)
{
	struct ucm_request own;
	struct ucm_group *group;
	int err;

	err = ucm_sized_take(&own, sizeof(own), request,
			     offsetof(struct ucm_request, addresses),
			     "ucm_request", error);
	if (err)
		return err;
	if (kind == COMMIT) {
		own.first_layer = own.num_layers = 0;
		own.addresses = NULL;
	}
	group = use_group(loader, own.group);
	if (!group)
		return ucm_error_set(error, -EINVAL, "group %u: unknown",
				     own.group);
	err = submit_to(loader, group, &own, kind, out, error);
	leave_group(group);
	return err;
}

int ucm_load_submit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error)
{
	return submit(loader, request, LOAD, out, error);
}

int ucm_save_submit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error)
{
	return submit(loader, request, SAVE, out, error);
}

int ucm_save_commit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error)
{
	return submit(loader, request, COMMIT, out, error);
}

void ucm_save_abandon(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num)
{
	struct ucm_group *of = ids && !num ? NULL : use_group(loader, group);

	if (!of)
		return;
	for (unsigned i = 0; i < loader->num_engines; i++) {
		struct ucm_abandon *abandon =
			ucm_abandon_new(of, ids, ids ? num : 0);

		if (!abandon)
			break; /* they stay until the loader closes */
		ucm_engine_abandon(loader->engines[i], abandon);
	}
	leave_group(of);
}

/* ---- what is going on ---- */

void ucm_loader_get_stats(struct ucm_loader *loader,
			  struct ucm_loader_stats *out, size_t size)
{
	struct ucm_shared *shared = &loader->shared;
	struct ucm_loader_stats all;

#define GET(name) \
	.name = atomic_load_explicit(&shared->stats.name, memory_order_relaxed)
	all = (struct ucm_loader_stats){
		GET(loads),	   GET(load_bytes),   GET(load_absent),
		GET(load_damaged), GET(load_failed),  GET(saves),
		GET(save_bytes),   GET(save_skipped), GET(save_dropped),
		GET(save_failed),  GET(reads),	      GET(short_reads),
		GET(opens),	   GET(open_hits),    GET(mapped_bytes),
		GET(direct_bytes), GET(save_refused),
		GET(save_buffered_bytes), GET(load_buffered_bytes),
		GET(save_direct_bytes), GET(unsummed_bytes),
	};
#undef GET
	for (unsigned i = 0; i < loader->num_engines; i++)
		all.window_bytes +=
			atomic_load(&loader->engines[i]->window_limit);
	memset(out, 0, size);
	memcpy(out, &all, size < sizeof(all) ? size : sizeof(all));
}

void ucm_loader_describe(struct ucm_loader *loader, char *text, size_t len)
{
	const struct ucm_engine *engine = loader->engines[0];
	size_t staging = 0;
	char node[32] = "";

	for (unsigned i = 0; i < loader->num_engines; i++)
		staging += ucm_staging_size(loader->engines[i]->staging);

	if (loader->shared.node >= 0)
		snprintf(node, sizeof(node), " on node %d",
			 loader->shared.node);
	snprintf(text, len,
		 "%s, pages by %s, %s, %u threads, %zu of %" PRIu64
		 " MiB staging%s%s",
		 loader->shared.source_ops->name,
		 loader->shared.copy_ops->name, ucm_ring_text(engine->ring),
		 loader->num_engines,
		 staging >> 20,
		 loader->shared.staging_bytes * loader->num_engines >> 20,
		 ucm_staging_is_huge(engine->staging) ? " (huge pages)" : "",
		 node);
}
