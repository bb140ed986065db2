/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor_memory.c - memory that a memory tier has left: its daemon was killed,
 * or its SOURCE is another one now.
 */
#include <config.h>

#include "tools/check/doctor.h"

#include <ftw.h>
#include <stdio.h>

#include "fs/medium/memory/memory.h"
#include "tools/lib/text.h"

#define OPEN_FOLDERS 16

static uint64_t sum; /* nftw(3) has no argument to hand on */

static int add(const char *path, const struct stat *st, int kind,
	       struct FTW *where)
{
	(void)path, (void)where;
	if (kind == FTW_F)
		sum += (uint64_t)st->st_blocks * 512;
	return 0;
}

static void tell(void *arg, const char *path)
{
	char mend[600];

	(void)arg;
	sum = 0;
	nftw(path, add, OPEN_FOLDERS, FTW_PHYS);
	snprintf(mend, sizeof(mend),
		 "mount its store again, or rm -rf %s", path);
	ucm_doctor_warn(path, mend, "a memory tier that no store uses, of %s",
			ucm_text_size(sum, false).text);
}

void ucm_doctor_memory(void)
{
	ucm_memory_each_left(tell, NULL);
}
