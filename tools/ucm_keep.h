/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_keep.h - ucm evict --keep: room is made in directories without a daemon. */
#ifndef UCM_TOOLS_KEEP_H
#define UCM_TOOLS_KEEP_H

#include <stdint.h>

#include "tools/ucm_args.h"

/* Remove the oldest blocks of common->tiers, of all spaces or of common->space,
 * until no more than so many bytes are left. The exit status. */
int ucm_keep(const struct ucm_common *common, uint64_t bytes);

#endif
