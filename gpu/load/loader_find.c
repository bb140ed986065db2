/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_find.c - which blocks are there, and what is to become of them: hints, and
 * removal. Blocks are in the source, or still in the write buffer.
 */
#include <config.h>

#include "gpu/load/loader.h"

#include <errno.h>
#include <stdlib.h>

void ucm_loader_prefetch(struct ucm_loader *loader, unsigned group,
			 const struct ucm_id *ids, size_t num)
{
	struct ucm_group *of = ucm_loader_use_group(loader, group);

	if (!of)
		return;
	ucm_hints_add(loader->shared.hints, UCM_HINT_WANTED, of->space, ids,
		      num);
	ucm_loader_leave_group(of);
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

/* Before the source is asked: a block can be found there when it leaves the
 * buffer. NULL: none, or no memory for it. */
static uint8_t *lookup_buffered(const struct ucm_shared *shared,
				const struct ucm_group *group,
				const struct ucm_id *ids, size_t num)
{
	uint8_t *found = ucm_loader_has_buffered(shared) ? malloc(num + 1) : NULL;

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

/* ---- lookup ---- */

/* So that they are there when they are loaded. */
static size_t expect_found(struct ucm_loader *loader,
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
	return num_found;
}

int ucm_loader_lookup(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, uint8_t *found)
{
	struct ucm_group *of = ucm_loader_use_group(loader, group);
	struct ucm_shared *shared = &loader->shared;
	int64_t begin_ns = ucm_profile_begin();
	size_t good = 0;
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
		good = expect_found(loader, of, ids, num, found);
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_TASK, err, "lookup", begin_ns, .blocks = num, .good = good });
	ucm_loader_leave_group(of);
	return err;
}

int ucm_loader_prefix(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, size_t *count_out)
{
	struct ucm_group *of = ucm_loader_use_group(loader, group);
	struct ucm_shared *shared = &loader->shared;
	int64_t begin_ns = ucm_profile_begin();
	int err;

	if (!of)
		return -EINVAL;
	err = loader_prefix(shared, of, ids, num, count_out);
	if (!err)
		ucm_hints_add(loader->shared.hints, UCM_HINT_EXPECTED,
			      of->space, ids, *count_out);
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_TASK, err, "prefix", begin_ns, .blocks = num,
		.good = err ? 0 : *count_out });
	ucm_loader_leave_group(of);
	return err;
}

/* ---- remove ---- */

int ucm_loader_remove(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, int32_t *results)
{
	struct ucm_group *of = ucm_loader_use_group(loader, group);
	struct ucm_shared *shared = &loader->shared;

	if (!of)
		return -EINVAL;
	for (size_t i = 0; i < num; i++)
		results[i] = shared->source_ops->remove(shared->source,
							of->space, &ids[i]);
	ucm_loader_leave_group(of);
	return 0;
}
