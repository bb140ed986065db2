/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.c - a loader: its options, and what it chooses by itself; its threads,
 * and what they have in common.
 */
#include <config.h>

#include "gpu/load/loader.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/error.h"
#include "common/log.h"
#include "common/sized.h"
#include "gpu/load/budget/iobudget.h"
#include "gpu/load/limits.h"
#include "gpu/ring/arena.h"

#define DEFAULT_STAGING ((uint64_t)256 << 20)
#define SAVES 4 /* times the staging memory, wait */
#define READ ((uint32_t)4 << 20)
#define DEFAULT_FILES 256u
#define IDLE_NS (INT64_C(10) * 1000000000)
#define MOST_FILES 8192u
#define LEAST_STAGING ((uint64_t)4 << 20)

/* ---- what it chooses ---- */

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
		return 0;
	case UCM_COPY_CUDA:
#ifdef HAVE_CUDA
		shared->copy_ops = &ucm_copy_cuda;
		return 0;
#else
		(void)shared;
		return ucm_error_set(error, -ENOTSUP,
				     "this library was built without CUDA");
#endif
	}
	return ucm_error_set(error, -EINVAL, "copy %d: unknown", (int)options->copy);
}

/* Where the device is, whose reads and writes need not cross the processors. */
static int choose_node(const struct ucm_shared *shared)
{
	const struct ucm_copy_ops *ops = shared->copy_ops;
	int node = ops ? ops->node(&shared->copy_options) : -1;

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
	if (threads > UCM_LOADER_THREADS)
		return ucm_error_set(error, -EINVAL, "%u threads: at most %u",
				     threads, UCM_LOADER_THREADS);
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

/* ---- open and close ---- */

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

	if (options->mount)
		shared->buffer_home = realpath(text, NULL);
	if (!shared->buffer_home)
		shared->buffer_home = strdup(text);
	if (!shared->buffer_home)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	return ucm_buffer_open(options->write_buffer_bytes, &shared->buffer,
			       error);
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

	ucm_log_take_environment();
	ucm_profile_start();
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
	free(loader->shared.buffer_home);
	for (unsigned i = 0; i < UCM_LOADER_GROUPS; i++) {
		if (loader->groups[i])
			ucm_group_put(loader->groups[i]);
	}
	pthread_mutex_destroy(&loader->lock);
	pthread_mutex_destroy(&loader->table_lock);
	free(loader->engines);
	free(loader);
}

/* ---- what is going on ---- */

void ucm_loader_get_stats(struct ucm_loader *loader,
			  struct ucm_loader_stats *out, size_t size)
{
	const _Atomic uint64_t *from = (void *)&loader->shared.stats;
	struct ucm_loader_stats all;
	uint64_t *to = (uint64_t *)&all;

	static_assert(sizeof(all) == sizeof(struct ucm_load_counters),
		      "they are the same");
	for (size_t i = 0; i < sizeof(all) / sizeof(*from); i++)
		to[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
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
		 loader->shared.copy_ops ? loader->shared.copy_ops->name : "host",
		 ucm_ring_text(engine->ring),
		 loader->num_engines,
		 staging >> 20,
		 loader->shared.staging_bytes * loader->num_engines >> 20,
		 ucm_staging_is_huge(engine->staging) ? " (huge pages)" : "",
		 node);
}
