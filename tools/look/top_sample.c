/* SPDX-License-Identifier: Apache-2.0 */
/* top_sample.c - what ucm top measures. */
#include <config.h>

#include "tools/look/top.h"

#include <string.h>

#include "common/clock.h"
#include "hashing/tree.h"

#define REST 10 /* times as long as it took to look at all blocks */

int ucm_sample_take(struct ucm_target *target, struct ucm_sample *out)
{
	struct ucm_sample sample = { .at_ns = ucm_monotonic_ns() };
	int err = ucm_target_statistics(target, &sample.stats);

	if (err)
		return err;
	sample.has_metrics = !ucm_metrics_read(target->mount, &sample.metrics);
	*out = sample;
	return 0;
}

void ucm_sample_fini(struct ucm_sample *sample)
{
	if (sample->has_metrics)
		ucm_metrics_fini(&sample->metrics);
	sample->has_metrics = false;
}

/* ---- the hottest blocks ---- */

static bool is_hotter(const struct ucm_control_place *a,
		      const struct ucm_control_place *b)
{
	return a->uses != b->uses ? a->uses > b->uses
				  : a->atime_s > b->atime_s;
}

/* Into its place among those that were found so far. */
static void insert(struct ucm_hottest *hottest, const struct ucm_row *row,
		   const char *folder)
{
	size_t at = hottest->num;

	while (at > 0 && is_hotter(&row->place, &hottest->blocks[at - 1].row.place))
		at--;
	if (at >= hottest->most)
		return;
	if (hottest->num < hottest->most)
		hottest->num++;
	memmove(&hottest->blocks[at + 1], &hottest->blocks[at],
		(hottest->num - at - 1) * sizeof(*hottest->blocks));
	hottest->blocks[at].row = *row;
	snprintf(hottest->blocks[at].folder, UCM_TREE_FOLDER_MAX, "%s", folder);
}

static int add_space(struct ucm_target *target, struct ucm_hottest *hottest,
		     const char *space)
{
	char folder[UCM_TREE_FOLDER_MAX];
	struct ucm_list rows = { 0 };
	int err = ucm_list_read(target, space, "", &rows, NULL);

	ucm_tree_folder(space, folder);
	for (size_t i = 0; i < rows.num; i++) {
		if (rows.rows[i].place.uses)
			insert(hottest, &rows.rows[i], folder);
	}
	ucm_list_fini(&rows);
	return err;
}

/* A private space of somebody else is none of ours. */
static bool may_read(const struct ucm_target *target, const char *space)
{
	return !ucm_client_ids(target->client, UCM_SERVE_LOOKUP, space, 0,
			       NULL, 0, NULL);
}

static int add_spaces(struct ucm_target *target, struct ucm_hottest *hottest)
{
	char **spaces;
	size_t num;
	int err;

	if (hottest->space)
		return add_space(target, hottest, hottest->space);
	err = ucm_spaces_read(target, &spaces, &num);
	if (err)
		return err;
	for (size_t i = 0; i < num && !err; i++) {
		if (may_read(target, spaces[i]))
			err = add_space(target, hottest, spaces[i]);
	}
	ucm_spaces_free(spaces, num);
	return err;
}

int ucm_hottest_take(struct ucm_target *target, struct ucm_hottest *hottest)
{
	int64_t began_ns = ucm_monotonic_ns(), now_ns;
	int err;

	if (!hottest->most || began_ns < hottest->next_ns)
		return 0;
	hottest->num = 0;
	err = add_spaces(target, hottest);
	now_ns = ucm_monotonic_ns();
	hottest->next_ns = now_ns + REST * (now_ns - began_ns);
	return err;
}
