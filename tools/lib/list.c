/* SPDX-License-Identifier: Apache-2.0 */
/* list.c - the blocks of a space, and the spaces of a mount. */
#include <config.h>

#include "tools/lib/list.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/space.h>

#include "common/cleanup.h"
#include "hashing/tree.h"
#include "tools/lib/ids.h"
#include "tools/lib/tool.h"

/* ---- one bucket ---- */

static void add_rows(struct ucm_list *rows, const struct ucm_ids *ids,
		     const struct ucm_control_place *places)
{
	for (size_t i = 0; i < ids->num; i++) {
		if (places[i].result) {
			rows->failed += places[i].result != -ENOENT;
			continue;
		}
		rows->rows = ucm_tool_grow(rows->rows, rows->num, &rows->room,
					   sizeof(*rows->rows));
		rows->rows[rows->num++] =
			(struct ucm_row){ ids->ids[i], places[i] };
	}
}

static int read_bucket(struct ucm_target *target, const char *space,
		       const char *prefix, unsigned number, struct ucm_ids *ids,
		       struct ucm_list *rows)
{
	_cleanup_free_ struct ucm_control_place *places = NULL;
	int err = ucm_target_ids(target, space, number, ids);
	size_t kept = 0;

	if (err)
		return err;
	for (size_t i = 0; i < ids->num; i++) {
		if (!strncmp(ucm_hex(&ids->ids[i]).text, prefix, strlen(prefix)))
			ids->ids[kept++] = ids->ids[i];
	}
	ids->num = kept;
	if (!kept)
		return 0;
	places = ucm_tool_alloc(kept, sizeof(*places));
	err = ucm_target_locate(target, space, ids->ids, kept, places);
	if (!err)
		add_rows(rows, ids, places);
	return err;
}

int ucm_list_read(struct ucm_target *target, const char *space,
		  const char *prefix, struct ucm_list *rows,
		  struct ucm_progress *progress)
{
	struct ucm_ids ids = { 0 };
	int err = 0;

	for (unsigned i = 0; i < UCM_BUCKETS && !err; i++) {
		char name[3];

		ucm_tree_bucket_name(i, name);
		if (strncmp(name, prefix, strnlen(prefix, 2)))
			continue;
		err = read_bucket(target, space, prefix, i, &ids, rows);
		if (progress)
			ucm_progress_tell(progress, rows->num, 0, 0);
	}
	ucm_ids_fini(&ids);
	if (progress)
		ucm_progress_clear(progress);
	if (rows->failed)
		ucm_tool_complain("%" PRIu64 " blocks could not be asked about",
				  rows->failed);
	return err;
}

void ucm_list_fini(struct ucm_list *rows)
{
	free(rows->rows);
	*rows = (struct ucm_list){ 0 };
}

/* ---- order ---- */

static int by_name(const void *a, const void *b)
{
	return memcmp(&((const struct ucm_row *)a)->id,
		      &((const struct ucm_row *)b)->id, sizeof(struct ucm_id));
}

/* Larger first, then by name. */
#define BY(field)                                                             \
	static int by_##field(const void *a, const void *b)                   \
	{                                                                     \
		const struct ucm_row *x = a, *y = b;                          \
                                                                              \
		if (x->place.field != y->place.field)                         \
			return x->place.field > y->place.field ? -1 : 1;      \
		return by_name(a, b);                                         \
	}
BY(size)
BY(mtime_ns)
BY(uses)
BY(atime_s)
#undef BY

static int (*const orders[])(const void *a, const void *b) = {
	[UCM_ROWS_NAME] = by_name,
	[UCM_ROWS_SIZE] = by_size,
	[UCM_ROWS_AGE] = by_mtime_ns,
	[UCM_ROWS_USES] = by_uses,
	[UCM_ROWS_ATIME] = by_atime_s,
};

void ucm_list_sort(struct ucm_list *rows, enum ucm_list_order order)
{
	if (rows->num)
		qsort(rows->rows, rows->num, sizeof(*rows->rows),
		      orders[order]);
}

int ucm_list_prefix(const struct ucm_arg *arg, char *value)
{
	size_t len = strlen(value);

	if (!len || len > UCM_ID_HEX || strspn(value, "0123456789abcdef") != len)
		return -EINVAL;
	*(const char **)arg->to = value;
	return 0;
}

/* ---- spaces ---- */

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

struct spaces {
	char **names;
	size_t num, room;
};

static int add_space(void *arg, const char *name)
{
	struct spaces *spaces = arg;

	spaces->names = ucm_tool_grow(spaces->names, spaces->num, &spaces->room,
				      sizeof(*spaces->names));
	spaces->names[spaces->num++] = ucm_tool_format("%s", name);
	return 0;
}

int ucm_spaces_read(const struct ucm_target *target, char ***out,
		    size_t *num_out)
{
	struct spaces spaces = { 0 };
	struct ucm_error error;
	int err;

	add_space(&spaces, "");
	err = ucm_space_list(target->mount, NULL, add_space, &spaces, &error);
	if (err) {
		ucm_tool_complain("%s", error.text);
		ucm_spaces_free(spaces.names, spaces.num);
		return err;
	}
	qsort(spaces.names, spaces.num, sizeof(*spaces.names), compare_names);
	*out = spaces.names;
	*num_out = spaces.num;
	return 0;
}

void ucm_spaces_free(char **spaces, size_t num)
{
	for (size_t i = 0; i < num; i++)
		free(spaces[i]);
	free(spaces);
}
