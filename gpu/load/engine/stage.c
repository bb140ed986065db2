/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.c - the staging memory of an engine; see stage.h.
 *
 * Each piece of the pool (staging.h) is registered with the copy back end, which
 * has to have it, and with the ring, which is only faster with it: the kernel
 * counts pinned buffers against RLIMIT_MEMLOCK, and who has reached that goes on
 * with memory that is pinned for each read.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "common/error.h"
#include "common/log.h"
#include "gpu/load/engine/stage.h"

static void stage_pin(struct ucm_engine *engine, uint8_t *memory, size_t len)
{
	struct ucm_shared *shared = engine->shared;
	int err = ucm_ring_pin_own(engine->ring, memory, len);

	if (err && err != -ENOTSUP &&
	    !atomic_exchange(&shared->told_unregistered, true))
		ucm_warning("staging: thread %u: %zu bytes more are not "
			    "registered with io_uring: %s; reads pin them each "
			    "time",
			    engine->number, len,
			    err == -ENOMEM ? "ulimit -l (RLIMIT_MEMLOCK) "
					     "allows no more"
					   : strerror(-err));
}

static int stage_take(void *arg, uint8_t *memory, size_t len)
{
	struct ucm_engine *engine = arg;
	const struct ucm_copy_ops *ops = engine->shared->copy_ops;
	int err = 0;

	if (ops)
		err = ops->register_staging(engine->copy, memory, len);
	if (err)
		return err;
	if (engine->staging)
		stage_pin(engine, memory, len);
	else /* the first: what becomes of it is said in the ring's text */
		ucm_ring_register(engine->ring, memory, len);
	return 0;
}

static void stage_leave(void *arg, uint8_t *memory, size_t len)
{
	struct ucm_engine *engine = arg;

	ucm_ring_unpin(engine->ring, memory, len);
	if (engine->shared->copy_ops)
		engine->shared->copy_ops->unregister_staging(engine->copy, memory);
}

static const struct ucm_staging_ops stage_ops = {
	.take = stage_take,
	.leave = stage_leave,
};

int ucm_stage_open(struct ucm_engine *engine, struct ucm_error *error)
{
	struct ucm_shared *shared = engine->shared;
	int err = ucm_staging_open_pool(shared->staging_bytes, shared->node,
					&stage_ops, engine, &engine->staging);

	return err ? ucm_error_set(error, err, "no staging memory: %s",
				   strerror(-err))
		   : 0;
}
