/* SPDX-License-Identifier: Apache-2.0 */
/* commit_fixture.h - a temporary file that a test writes and commits. */
#ifndef UCM_TESTS_COMMIT_FIXTURE_H
#define UCM_TESTS_COMMIT_FIXTURE_H

#include "fs/store/store.h"

#include <stdatomic.h>

#include "tests/unit/store_fixture.h"

#define TMP "$/a/.ucmfs/tmp"
#define QUARANTINE "$/a/.ucmfs/quarantine"

static struct fx_file file;
static struct ucm_temp temp;

/* A temporary file with the first len bytes of a block. */
static inline int begin(const struct fx_file *from, size_t len)
{
	int fd = fx_create(&from->key, 0, &temp);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fx_pwrite(fd, from->bytes, len, 0), (ssize_t)len);
	return fd;
}

static inline int commit(int fd, const struct fx_file *as,
			 enum ucm_commit_when when)
{
	return fx_commit_temp(&temp, fd, &as->key, when);
}

static inline void end(int fd)
{
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	ck_assert_uint_eq(atomic_load(&temp.tier->writing), 0);
}

#endif
