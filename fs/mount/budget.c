/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.c - .ucmfs/budget: the memory in which the loaders of the node share
 * what the options budget and inflight give them.
 *
 * The daemon makes it, and hands it out; what is in there is the loaders', and
 * anybody's who may open it. It cannot be made shorter, which would kill whoever
 * has mapped it, and the daemon relies on nothing in it: what it reads is
 * counted in statistics, as it is.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/budget_layout.h"

void ucm_iobudget_file_open(struct ucm_daemon *daemon)
{
	const struct ucm_options *options = daemon->options;

	daemon->budget_fd = -1;
	if (!options->budget && !options->inflight)
		return;
	daemon->budget_fd =
		ucm_os_memory_of("ucmfs-budget", UCM_CONTROL_BUDGET_BYTES);
	if (daemon->budget_fd < 0)
		ucm_warning("budget: no memory for loaders to share it in: %s; "
			    "each takes all of it for itself",
			    strerror(-daemon->budget_fd));
}

void ucm_iobudget_file_close(struct ucm_daemon *daemon)
{
	if (daemon->budget_fd >= 0)
		ucm_os_close(daemon->budget_fd);
}

/* Of those that are there; whoever was killed is, until its place is wanted. */
void ucm_iobudget_count(struct ucm_daemon *daemon, uint64_t *loaders,
		      uint64_t *bytes)
{
	_cleanup_free_ struct ucm_sharers_memory *copy = malloc(sizeof(*copy));

	*loaders = *bytes = 0;
	if (!copy || daemon->budget_fd < 0 ||
	    ucm_os_read_at(daemon->budget_fd, copy, sizeof(*copy), 0) !=
		    (ssize_t)sizeof(*copy))
		return;
	for (unsigned i = 0; i < UCM_SHARERS_MAX; i++) {
		if (!atomic_load(&copy->sharers[i].owner))
			continue;
		++*loaders;
		*bytes += atomic_load(&copy->sharers[i].bytes);
	}
}
