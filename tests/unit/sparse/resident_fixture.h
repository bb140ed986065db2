/* SPDX-License-Identifier: Apache-2.0 */
/* resident_fixture.h - slots for blocks. */
#ifndef UCM_TESTS_RESIDENT_FIXTURE_H
#define UCM_TESTS_RESIDENT_FIXTURE_H

#include <ucm/retrieve.h>

#include "tests/unit/sparse_fixture.h"

static inline struct ucm_resident *
resident_new(const struct ucm_resident_config *config)
{
	size_t bytes = ucm_resident_bytes(config);
	struct ucm_resident *resident = NULL;
	struct ucm_error error;
	void *memory = malloc(bytes);

	must(bytes && memory);
	memset(memory, 0x5a, bytes);
	ck_assert_msg(!ucm_resident_begin(config, memory, &resident, &error),
		      "%s", error.text);
	must((void *)resident == memory);
	return resident;
}

#endif
