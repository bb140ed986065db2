/* SPDX-License-Identifier: Apache-2.0 */
/* stats.c - names of what is counted; see stats.h. */
#include <config.h>

#include "fs/tier/stats.h"

const char *const ucm_cause_names[UCM_FAULT_COUNT] = {
	[UCM_FAULT_NONE] = "in_the_way",
	[UCM_FAULT_SHORT] = "short",
	[UCM_FAULT_MAGIC] = "magic",
	[UCM_FAULT_VERSION] = "version",
	[UCM_FAULT_FLAGS] = "flags",
	[UCM_FAULT_HEADER_CRC] = "header_checksum",
	[UCM_FAULT_FIELD] = "field",
	[UCM_FAULT_NAME] = "name",
	[UCM_FAULT_SIZE] = "size",
	[UCM_FAULT_EXTENSION] = "extension",
	[UCM_FAULT_GEOMETRY] = "geometry",
	[UCM_FAULT_PLANE] = "plane_checksum",
	[UCM_FAULT_PAYLOAD] = "payload_checksum",
	[UCM_FAULT_TAIL] = "tail",
	[UCM_FAULT_UNVOUCHED] = "unvouched",
	[UCM_FAULT_SPACE] = "space_id",
};
