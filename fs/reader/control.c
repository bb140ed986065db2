/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - look-ups by calls on .ucmfs/control, many ids at a time.
 *
 * For spaces that are not published, and where the index cannot be mapped. The
 * daemon answers for what it has not read yet and for what is in doubt. One
 * block's entry, stat says.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ucm/control.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "hashing/tree.h"

static int ask(int fd, struct ucm_control_batch *batch)
{
	if (!ioctl(fd, UCM_CONTROL_LOOKUP, batch))
		return 0;
	return ucm_mount_error(errno);
}

static int lookup_some(struct ucm_index_reader *reader,
		       struct ucm_control_batch *batch,
		       const struct ucm_id *ids, size_t num, size_t first,
		       uint64_t *present, uint64_t *unknown)
{
	int err;

	batch->head.num = (uint32_t)num;
	memcpy(batch->u.ids, ids + first, num * sizeof(*ids));
	err = ask(reader->control, batch);
	if (err)
		return err;
	for (size_t i = 0; i < num; i++) {
		if (batch->u.results[i] == 1)
			ucm_bit_set(present, first + i);
		else if (batch->u.results[i] < 0)
			ucm_bit_set(unknown, first + i);
	}
	return 0;
}

static int lookup(struct ucm_index_reader *reader, const struct ucm_id *ids,
		  size_t num, uint64_t *present, uint64_t *unknown)
{
	_cleanup_free_ struct ucm_control_batch *batch =
		calloc(1, sizeof(*batch));
	size_t step;
	int err = 0;

	if (!batch)
		return -ENOMEM;
	batch->head.version = UCM_CONTROL_VERSION;
	snprintf(batch->head.space, sizeof(batch->head.space), "%s",
		 ucm_tree_folder_name(reader->folder));
	for (size_t at = 0; at < num && !err; at += step) {
		step = num - at < UCM_CONTROL_IDS ? num - at : UCM_CONTROL_IDS;
		err = lookup_some(reader, batch, ids, step, at, present,
				  unknown);
	}
	return err == -ENOENT ? 0 : err; /* no such space: none of its blocks */
}

static int entry(struct ucm_index_reader *reader, const struct ucm_id *id,
		 struct ucm_index_entry *out)
{
	return ucm_reader_stat_ops.entry(reader, id, out);
}

void ucm_reader_control_open(struct ucm_index_reader *reader)
{
	reader->control = openat(reader->root, UCM_TREE_CONTROL,
				 O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
}

const struct ucm_reader_ops ucm_reader_control_ops = {
	.name = "control",
	.batch = UCM_READER_BATCH,
	.lookup = lookup,
	.entry = entry,
};
