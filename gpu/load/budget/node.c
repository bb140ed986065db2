/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c - what a mount has of the node's budget.
 *
 * The limits are the daemon's, and not read from the memory, to which everybody may
 * write. That the daemon has ended is seen in its index, which no other can write to;
 * it costs no call.
 */
#include <config.h>

#include "gpu/load/budget/node.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <ucm/client.h>

#include "common/cleanup.h"
#include "common/lifeline.h"
#include "fs/index/budget_layout.h"
#include "fs/index/memory_layout.h"
#include "fs/reader/reader.h"

static int map_index(int fd, struct ucm_node_budget *region)
{
	const struct ucm_index_memory_header *header;
	void *index;
	int err = ucm_reader_map_memory(fd, PROT_READ,
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

static int map_both(int index_fd, int budget_fd, struct ucm_node_budget *region)
{
	struct ucm_node_budget both = *region;
	void *memory;
	int err = map_index(index_fd, &both);

	if (err)
		return err;
	err = ucm_reader_map_memory(budget_fd, PROT_READ | PROT_WRITE,
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
	_cleanup_fd_ int index_fd = -1, budget_fd = -1;
	struct ucm_node_budget region = { .memory = NULL };
	struct ucm_serve_hello hello = { 0 };
	struct ucm_client *client;
	int err = ucm_client_connect(mount, &client);

	if (err)
		return err;
	err = ucm_client_hello(client, &hello, &index_fd, &budget_fd);
	ucm_client_close(client);
	if (err)
		return err;
	region.limits.rate = hello.rate;
	region.limits.in_flight = hello.in_flight;
	if (hello.rate || hello.in_flight)
		region.why = map_both(index_fd, budget_fd, &region);
	else
		map_index(index_fd, &region); /* else it is asked again */
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
