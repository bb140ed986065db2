/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver_fixture.h - the CUDA back end on a driver made for tests
 * (fake_cuda.c): what is called, in which order, with which memory. It says
 * nothing of a real driver: tests/gpu.
 */
#ifndef UCM_TESTS_DRIVER_FIXTURE_H
#define UCM_TESTS_DRIVER_FIXTURE_H

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "gpu/copy/cuda.h"
#include "tests/unit/cuda_fixture.h"
#include "tests/unit/fake_cuda.h"

static struct fake_cuda *fake;
static struct cuda_fixture fixture;
static unsigned num_logged;
static char logged[1024];

static inline void keep_line(enum ucm_log_level level, const char *line)
{
	if (level > UCM_LOG_WARNING)
		return;
	num_logged++;
	strncpy(logged, line, sizeof(logged) - 1);
}

/* Beside this program, in the build directory. */
static inline void use_fake(void)
{
	void *library;

	ucm_cuda_library = FAKE_CUDA;
	library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(library != NULL, "%s", dlerror());
	fake = dlsym(library, "fake_cuda");
	ck_assert_ptr_nonnull(fake);
	ucm_log_set(keep_line, UCM_LOG_INFO);
}

#define KERNELS "1T"
#define ENGINE "0"

static inline void open_with(const char *run_bytes, void *stream)
{
	struct ucm_copy_options options = { .stream = stream };

	use_fake();
	setenv("UCM_CUDA_RUN_BYTES", run_bytes, 1);
	cuda_fixture_open(&fixture, &options);
}

static inline void close_clean(void)
{
	fake->fail = NULL;
	cuda_fixture_close(&fixture);
	ck_assert_uint_eq(fake->live, 0);
	ck_assert_int_eq(fake->pushed, 0);
	ck_assert_uint_eq(fake->mistakes, 0);
}

/* ---- copying ---- */

static inline void rounds(int num)
{
	while (num--) {
		if (!fixture.num_groups || below(2))
			cuda_fixture_group(&fixture);
		cuda_fixture_round(&fixture, below(2));
		ck_assert_int_eq(fake->pushed, 0);
	}
}

/* ---- many at a time ---- */

static inline struct ucm_copy_job *many_jobs(const struct ucm_layout *layout,
					     unsigned num,
					     const uint64_t *addresses)
{
	struct ucm_copy_job *jobs = calloc(num, sizeof(*jobs));

	for (unsigned i = 0; i < num; i++)
		jobs[i] = (struct ucm_copy_job){
			.end_layer = layout->geometry.num_layers,
			.staging = fixture.staging,
			.addresses = addresses,
		};
	return jobs;
}

#endif
