/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c - what a mount has of the node's budget.
 *
 * The limits, and what the layout of the memory is, are asked of the daemon, and
 * not read from the memory, to which everybody may write. That the daemon has gone
 * is seen in its index, which nobody else can write to; it costs no call.
 */
#include <config.h>

#include "gpu/load/node.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucm/control.h>

#include "common/cleanup.h"
#include "common/lifeline.h"
#include "fs/index/budget_layout.h"
#include "fs/index/memory_layout.h"
#include "fs/reader/reader.h"
#include "hashing/tree.h"

/* An old daemon has no limits, and says so by not knowing the call. */
static int ask_limits(int root, struct ucm_node_budget *out)
{
	struct ucm_control_budget budget = { .version = UCM_CONTROL_VERSION };
	_cleanup_fd_ int fd = openat(root, UCM_TREE_CONTROL,
				     O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? -ENOTCONN : -errno; /* no mount */
	if (ioctl(fd, UCM_CONTROL_BUDGET, &budget))
		return errno == ENOTTY ? 0 : -errno;
	out->limits.rate = budget.rate;
	out->limits.in_flight = budget.in_flight;
	if (budget.layout != UCM_SHARERS_LAYOUT)
		out->why = -EPROTONOSUPPORT;
	return 0;
}

static int map_index(int root, struct ucm_node_budget *region)
{
	const struct ucm_index_memory_header *header;
	void *index;
	int err = ucm_reader_memory_map(root, UCM_TREE_INDEX, O_RDONLY,
					UCM_INDEX_MEMORY_HEADER_BYTES, &index);

	if (err)
		return err;
	header = region->index = index;
	if (!memcmp(header->magic, UCM_INDEX_MEMORY_MAGIC,
		    sizeof(header->magic)) &&
	    header->version == UCM_INDEX_MEMORY_VERSION)
		return 0;
	ucm_node_budget_close(region);
	return -EPROTO;
}

static int map_both(int root, struct ucm_node_budget *region)
{
	struct ucm_node_budget both = *region;
	void *memory;
	int err = map_index(root, &both);

	if (err)
		return err;
	err = ucm_reader_memory_map(root, UCM_TREE_BUDGET, O_RDWR,
				    UCM_CONTROL_BUDGET_BYTES, &memory);
	if (err) {
		ucm_node_budget_close(&both);
		return err;
	}
	both.memory = memory;
	*region = both;
	return 0;
}

int ucm_node_budget_open(const char *mount, struct ucm_node_budget *out)
{
	_cleanup_fd_ int root = open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct ucm_node_budget region = { .memory = NULL };
	int err;

	if (root < 0)
		return -errno;
	err = ask_limits(root, &region);
	if (err)
		return err;
	if (!region.limits.rate && !region.limits.in_flight) {
		region.why = 0;
		map_index(root, &region); /* else it is asked again */
	} else if (!region.why) {
		region.why = map_both(root, &region);
	}
	*out = region;
	return 0;
}

void ucm_node_budget_close(struct ucm_node_budget *region)
{
	if (region->memory)
		munmap(region->memory, UCM_CONTROL_BUDGET_BYTES);
	if (region->index)
		munmap((void *)(uintptr_t)region->index,
		       UCM_INDEX_MEMORY_HEADER_BYTES);
	*region = (struct ucm_node_budget){ .memory = NULL };
}

bool ucm_node_budget_lives(const struct ucm_node_budget *region)
{
	const struct ucm_index_memory_header *header = region->index;

	return header && ucm_lifeline_lives(atomic_load(&header->alive)) &&
	       !(atomic_load(&header->state) & UCM_INDEX_MEMORY_CLOSED);
}
