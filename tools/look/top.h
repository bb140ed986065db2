/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top.h - ucm top: what is measured and when (top.c), and how it is shown
 * (top_frame.c).
 */
#ifndef UCM_TOOLS_LOOK_TOP_H
#define UCM_TOOLS_LOOK_TOP_H

#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "hashing/tree.h"
#include "tools/lib/list.h"
#include "tools/lib/metrics.h"

/* A block, and whose. */
struct ucm_hot {
	struct ucm_row row;
	char folder[UCM_TREE_FOLDER_MAX];
};

#define UCM_HOT_MAX 200

/* A moment of a mount. */
struct ucm_sample {
	int64_t at_ns; /* monotonic */
	struct ucm_control_statistics stats;
	bool has_metrics;
	struct ucm_metrics metrics;
};

/* The blocks that were used most, found by asking for all of them: which is
 * done the more seldom the longer it takes. */
struct ucm_hottest {
	struct ucm_hot blocks[UCM_HOT_MAX];
	size_t num, most;
	const char *space; /* NULL: of all spaces that may be read */
	int64_t next_ns;
};

/* What went on between two samples. */
void ucm_top_print(struct ucm_target *target, const struct ucm_sample *before,
		   const struct ucm_sample *now,
		   const struct ucm_hottest *hottest, FILE *out);
json_t *ucm_top_describe(struct ucm_target *target,
			 const struct ucm_sample *before,
			 const struct ucm_sample *now,
			 const struct ucm_hottest *hottest);

#endif
