/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_groups.c - the groups of a loader.
 *
 * An engine learns of a group before it is in the table, and forgets it when it no
 * longer is: a group of the table is known to all engines. A place in the table is
 * given again, the number that callers have is not.
 */
#include <config.h>

#include "gpu/load/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ucm/space.h>

#include "common/clock.h"
#include "common/error.h"

#define MOST_USES (UINT32_MAX / UCM_LOADER_GROUPS) /* of a place in the table */
#define GRACE_MS 1000

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
	for (unsigned i = 0; i < UCM_LOADER_GROUPS; i++) {
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
				     UCM_LOADER_GROUPS);
	group->id = loader->uses[group->number] * UCM_LOADER_GROUPS + group->number;
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
	struct ucm_group *group = loader->groups[id % UCM_LOADER_GROUPS];

	return group && group->id == id ? group : NULL;
}

struct ucm_group *ucm_loader_use_group(struct ucm_loader *loader, unsigned id)
{
	struct ucm_group *group;

	pthread_mutex_lock(&loader->table_lock);
	group = find_group(loader, id);
	if (group)
		atomic_fetch_add(&group->users, 1);
	pthread_mutex_unlock(&loader->table_lock);
	return group;
}

void ucm_loader_leave_group(struct ucm_group *group)
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
