/* SPDX-License-Identifier: Apache-2.0 */
/*
 * temp.h - whose is a file in .ucmfs/tmp, and can anybody still be writing it?
 *
 * The name says which machine made it, in which of its boots, and which start
 * of which daemon. Where a directory is locked for us all are ours to remove;
 * where it cannot be locked, as on a network file system, others are at work.
 */
#ifndef UCM_TEMP_H
#define UCM_TEMP_H

#include <stdbool.h>
#include <stdint.h>

#include "hashing/tree.h"

#define UCM_TEMPS UCM_TREE_OWN "/tmp" /* where they are, in folders */
#define UCM_TEMP_NAME_MAX 48
#define UCM_TEMP_PATH_MAX 64 /* of one, below its medium */

/* Untouched for so long, another machine's file is nobody's. */
#define UCM_TEMP_OLD_S 86400

struct ucm_temp_maker {
	uint32_t host; /* of its name and machine id */
	uint32_t boot; /* 0: not known */
	uint32_t instance; /* which start: random */
	int64_t up_s;  /* time since that boot */
};

void ucm_temp_whoami(struct ucm_temp_maker *out);

void ucm_temp_name(const struct ucm_temp_maker *maker, uint64_t serial,
		   char out[UCM_TEMP_NAME_MAX]);

/* Their folders: by the numbers in their names. */
#define UCM_TEMP_FOLDERS 64u

/* Can nobody be writing it? age_s: since it was written to last, by the file
 * system's own clock. */
bool ucm_temp_is_over(const struct ucm_temp_maker *self, const char *name,
		      int64_t age_s);

#endif
