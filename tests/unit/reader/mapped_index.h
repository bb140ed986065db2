/* SPDX-License-Identifier: Apache-2.0 */
/* mapped_index.h - an index that a reader has mapped. */
#ifndef UCM_TESTS_MAPPED_INDEX_H
#define UCM_TESTS_MAPPED_INDEX_H

#include <ucm/index.h>

#include "tests/unit/reader_fixture.h"

static struct ucm_index *ix;
static struct ucm_index_reader *reader;

static inline void setup(void)
{
	ix = rf_index();
	reader = rf_reader(ix);
}

static inline void teardown(void)
{
	ucm_index_close(reader);
	ucm_index_free(ix);
}

#endif
